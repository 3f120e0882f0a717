//! Replays: argument blocks, threads, timing and retained resources.

use super::*;

#[test]
fn replay_reads_the_push_before_it_however_far_the_host_is_ahead() {
    const STEPS: usize = 500;
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let log = bench.zeroed(STEPS * 2 + 2);
    // The first word is the number of words, including itself.
    bench.add(&log, 1, &bench.stream);
    let mut layout = BlockLayout::new();
    let fields = decode::DecodeFields::add_to(&mut layout);
    let mine = layout.array::<f32>("mine", 3);
    let wide = layout.field::<u64>("wide");
    assert_eq!(
        [
            fields.token.offset_bytes(),
            fields.position.offset_bytes(),
            fields.kv_len.offset_bytes()
        ],
        [0, 4, 8]
    );
    assert_eq!(
        (mine.offset_bytes(), wide.offset_bytes(), layout.bytes()),
        (12, 24, 32)
    );
    for pushes in [1, 5, 64] {
        let mut block = ArgumentBlock::new(&bench.stream, layout.clone(), pushes).unwrap();
        let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
        bench.note(&log, &block.field(fields.token).unwrap());
        bench.note(&log, &block.field(fields.kv_len).unwrap());
        recording.finish().unwrap();
        let first = log.slice(..1).unwrap().to_vec(&bench.stream).unwrap()[0] as usize;
        assert_eq!(first, 1);
        let mut held = (pushes == 64).then(|| Held::hold(&bench.stream));
        for step in 0..STEPS as u32 {
            if step == 64
                && let Some(held) = held.take()
            {
                assert!(held.release(), "a push waited for the device");
            }
            block.set(fields.token, step * 3).unwrap();
            block.set(fields.kv_len, step + 1).unwrap();
            block.push(&bench.stream).unwrap();
            block.set(fields.token, 0xdead).unwrap();
            cache.replay(&Number(1), &bench.stream).unwrap();
        }
        let noted = log.to_vec(&bench.stream).unwrap();
        for (step, pair) in (0_u32..).zip(noted[1..=2 * STEPS].chunks(2)) {
            assert_eq!(pair, [step * 3, step + 1], "{pushes} pushes");
        }
        let back = DeviceBuffer::from_host(&[1_u32], &bench.stream).unwrap();
        let mut count = log.part::<u32>(0, 1).unwrap();
        count.copy_from(back.as_slice(), &bench.stream).unwrap();
        bench.stream.synchronize().unwrap();
    }
}

#[test]
fn field_of_another_layout_is_refused() {
    let bench = Bench::new();
    let (mut layout, mut other) = (BlockLayout::new(), BlockLayout::new());
    let token = layout.field::<u32>("token");
    let pair = layout.array::<f32>("pair", 2);
    other.field::<u64>("pad");
    let far = other.field::<u32>("far");
    let float = BlockLayout::new().field::<f32>("float");
    let mut block = ArgumentBlock::new(&bench.stream, layout, 4).unwrap();
    block.set(token, 5).unwrap();
    block.set_at(pair, 1, 2.5).unwrap();
    let refused = [
        block.set(far, 1).unwrap_err(),
        block.set(float, 1.0).unwrap_err(),
        block.set_at(pair, 2, 1.0).unwrap_err(),
        block.field(far).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, GraphError::Field { .. }), "{error}");
    }
    block.push(&bench.stream).unwrap();
    let bytes = block.memory().to_vec(&bench.stream).unwrap();
    assert_eq!(bytes, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 64]);
}

#[test]
fn two_threads_replay_record_and_invalidate_concurrently() {
    const KEYS: u32 = 4;
    let bench = Bench::new();
    let mut random = Random::fresh();
    let seeds = [random.rng.u64(..), random.rng.u64(..)];
    let cache = bench.cache(5 * NODE_BYTES);
    // A value for each thread and key, so that the additions on the device do not race.
    let outs: Vec<Vec<_>> = (0..2)
        .map(|_| (0..KEYS).map(|_| bench.zeroed(1)).collect())
        .collect();
    let shared = bench.zeroed(1);
    bench.record_adds(&cache, Number(99), &shared, &[0]);
    std::thread::scope(|threads| {
        for (thread, seed) in seeds.into_iter().enumerate() {
            let (bench, cache, outs) = (&bench, &cache, &outs[thread]);
            threads.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let stream = Stream::new(&bench.context).unwrap();
                let mut sums = [0_u32; KEYS as usize];
                for _ in 0..400 {
                    let number = random.u32(..KEYS);
                    let key = Number(10 * (thread as u32 + 1) + number);
                    match random.u8(..10) {
                        0 => {
                            cache.invalidate(&key);
                        }
                        // Each wants the entry that the other has checked out.
                        1 | 2 => {
                            cache.replay(&Number(99), &stream).unwrap();
                            stream.synchronize().unwrap();
                        }
                        _ => {
                            if !cache.replay(&key, &stream).unwrap() {
                                let recording = cache.begin(key, &stream, SMALL).unwrap();
                                bench.add(&outs[number as usize], 1, &stream);
                                recording.finish().unwrap();
                            } else {
                                sums[number as usize] += 1;
                            }
                        }
                    }
                }
                for (out, sum) in outs.iter().zip(sums) {
                    assert_eq!(out.to_vec(&stream).unwrap(), [sum]);
                }
            });
        }
    });
}

#[test]
fn timed_replay_reports_host_and_device_time() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let out = bench.zeroed(1);
    bench.record_adds(&cache, Number(1), &out, &[1; 50]);
    assert!(
        cache
            .replay_timed(&Number(2), &bench.stream)
            .unwrap()
            .is_none()
    );
    let timing = cache
        .replay_timed(&Number(1), &bench.stream)
        .unwrap()
        .unwrap();
    let times = timing.wait().unwrap();
    assert!(times.upload > Duration::ZERO && times.device > Duration::ZERO);
    assert!(times.launch <= times.completion, "{times:?}");
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [50]);
}

#[test]
fn graph_retains_host_slots_and_callbacks() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let slot = HostSlot::<u32>::new(&bench.context, 1).unwrap();
    let calls = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = calls.clone();
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    let mut scratch = recording.alloc::<u32>(1).unwrap();
    let capture = recording.capture();
    capture
        .upload(&mut scratch.as_slice_mut(), &slot, &bench.stream)
        .unwrap();
    bench.add(&scratch, 1, &bench.stream);
    capture
        .download(scratch.as_slice(), &slot, &bench.stream)
        .unwrap();
    capture
        .host_callback(&bench.stream, move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    drop(scratch);
    recording.finish().unwrap();
    for value in [10, 20] {
        slot.with(|values| values[0] = value).unwrap();
        cache.replay(&Number(1), &bench.stream).unwrap();
        assert_eq!(slot.with(|values| values[0]).unwrap(), value + 1);
    }
    let refused = slot
        .with(|_| cache.replay(&Number(1), &bench.stream))
        .unwrap();
    assert!(matches!(
        refused,
        Err(GraphError::Cuda(fercuda_cuda::Error::SlotHeld))
    ));
    bench.stream.synchronize().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn replays_of_many_keys_equal_eager_steps_despite_evictions_and_pool_use() {
    let bench = Bench::new();
    let random = Random::fresh();
    let options = Options {
        seed: random.seed,
        replays: 400,
        keys: 16,
        // A worker's eight keys do not fit: one is evicted also if the other worker has ended
        // before this one began.
        fitting: 4,
        stay: 5,
        compare: 20,
        invalidate: 60,
        workers: 2,
        churners: 1,
        longest: Duration::from_secs(60),
        shape: Shape {
            kernels: 32,
            width: 64,
            rows: 4,
        },
    };
    let report = run(&bench.context, &options).unwrap();
    assert_eq!((report.replays, report.compared), (400, 20));
    assert_eq!(report.around[0].pool_bytes, report.around[1].pool_bytes);
    let made = report.stats.instantiated + report.stats.updated;
    // The first one measured the size of a graph; invalidated ones are not kept.
    assert!(made <= report.captures + 1, "{report:?}");
    assert!(report.graph_bytes > 0 && report.took > Duration::ZERO);
    // With checks, freed memory stays reserved for a while.
    let [early, late] = [report.early, report.late].map(|held| held.device_bytes);
    assert!(late < early + (256 << 20) && report.late.host_bytes > 0);
    assert!(
        report.stats.evicted > 10 && report.stats.retired == 0 && report.churned > 0,
        "{report:?}"
    );
}

#[test]
fn cache_is_send_and_sync() {
    fn is<T: Send + Sync>() {}
    is::<GraphCache<Number>>();
    fn may_go<T: Send>() {}
    may_go::<ArgumentBlock>();
    may_go::<fercuda_runtime::Scratch<f32>>();
}
