//! Memory that is allocated during a capture.

use super::*;

#[test]
fn arena_reuses_dropped_memory_and_never_memory_in_use() {
    let bench = Bench::new();
    let mut random = Random::fresh();
    let random = &mut random.rng;
    let cache = bench.cache(1 << 30);
    let out = bench.zeroed(1);
    for round in 0..30 {
        let options = RecordOptions {
            arena_bytes: random.u64(0..2) * random.u64(0..200_000),
            ..SMALL
        };
        let recording = cache.begin(Number(1), &bench.stream, options).unwrap();
        let mut live: Vec<fercuda_runtime::Scratch<u8>> = Vec::new();
        let (mut most, mut sum) = (0, 0);
        for _ in 0..200 {
            if live.len() < 12 && random.bool() {
                let len = random.usize(0..30_000);
                let fresh = recording.alloc::<u8>(len).unwrap();
                assert_eq!((fresh.len(), fresh.address().0 % 256), (len, 0));
                let ends =
                    |it: &DeviceBuffer<u8>| (it.address().0, it.address().0 + it.len() as u64);
                let (begin, end) = ends(&fresh);
                for other in live.iter().filter(|other| !other.is_empty()) {
                    let (from, to) = ends(other);
                    assert!(end <= from || to <= begin, "round {round}");
                }
                sum += len.next_multiple_of(256) as u64;
                live.push(fresh);
            } else if !live.is_empty() {
                let gone = live.swap_remove(random.usize(..live.len()));
                sum -= gone.len().next_multiple_of(256) as u64;
            }
            most = most.max(sum);
        }
        bench.add(&out, 1, recording.stream());
        let recorded = recording.finish().unwrap();
        assert_eq!(recorded.arena_peak_bytes, most);
        // Never more than a few times the live bytes, of 200 that were allocated.
        assert!(
            recorded.arena_bytes <= (4 * most).max(200_000),
            "{recorded:?}"
        );
    }
    // With an arena of that size from the beginning, one chunk.
    let options = RecordOptions {
        arena_bytes: 3000,
        ..SMALL
    };
    let recording = cache.begin(Number(2), &bench.stream, options).unwrap();
    for _ in 0..100 {
        drop(recording.alloc::<u8>(3000).unwrap());
    }
    bench.add(&out, 1, recording.stream());
    assert_eq!(recording.finish().unwrap().arena_bytes, 3072);
}

#[test]
fn arena_belongs_to_the_graph_even_if_work_has_only_an_address() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    let scratch = recording.alloc::<u32>(1 << 16).unwrap();
    let add = &bench.kernels["add"];
    let arguments = (scratch.address(), 1_u32);
    // SAFETY: the first value of `scratch` belongs to the graph as long as it is launched.
    unsafe { Launch::new(1, 1).run(add, recording.stream(), arguments) }.unwrap();
    drop(scratch);
    recording.finish().unwrap();
    let fresh = || {
        let mut buffer = DeviceBuffer::<u32>::alloc_ordered(&bench.stream, 1 << 16).unwrap();
        buffer.fill(5, &bench.stream).unwrap();
        buffer
    };
    let others: Vec<_> = (0..8).map(|_| fresh()).collect();
    // The initial content is undefined, and the kernel adds to it.
    cache.replay(&Number(1), &bench.stream).unwrap();
    for other in &others {
        assert_eq!(
            other.slice(..1).unwrap().to_vec(&bench.stream).unwrap(),
            [5]
        );
    }
    if bench.context.device().cuda().is_software() {
        let findings = fercuda_softgpu::control::take_findings();
        assert!(
            findings.iter().all(|it| it.to_string().contains("uninit")),
            "{findings:?}"
        );
    }
}

#[test]
fn memory_dropped_after_another_stream_joined_is_not_reused() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let side = Stream::new(&bench.context).unwrap();
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    let first = recording.alloc::<u32>(64).unwrap();
    let place = first.address();
    drop(first);
    let again = recording.alloc::<u32>(64).unwrap();
    assert_eq!(again.address(), place);
    bench.add(&again, 1, recording.stream());
    side.wait_for(&bench.stream.record().unwrap()).unwrap();
    drop(again);
    let other = recording.alloc::<u32>(64).unwrap();
    assert_ne!(other.address(), place);
    bench.stream.wait_for(&side.record().unwrap()).unwrap();
    recording.finish().unwrap();
}

#[test]
fn captured_memory_keeps_its_address_and_can_outlive_its_entry() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let (result, _) = cache
        .record(Number(1), &bench.stream, SMALL, |recording| {
            let stream = recording.stream();
            let mut result = recording.alloc::<u32>(100)?;
            result.as_slice_mut().fill(3, stream)?;
            bench.add(&result, 4, stream);
            Ok::<_, GraphError>(result)
        })
        .unwrap();
    let address = result.address();
    for _ in 0..3 {
        cache.replay(&Number(1), &bench.stream).unwrap();
        assert_eq!(
            result.slice(..2).unwrap().to_vec(&bench.stream).unwrap(),
            [7, 3]
        );
    }
    cache.invalidate_all();
    bench.stream.synchronize().unwrap();
    let others: Vec<_> = (0..8)
        .map(|_| DeviceBuffer::<u32>::zeroed(&bench.stream, 64).unwrap())
        .collect();
    assert_eq!(result.address(), address);
    assert_eq!(
        result.slice(..2).unwrap().to_vec(&bench.stream).unwrap(),
        [7, 3]
    );
    drop((cache, others, result));
}
