//! Captures, updates and dropped graphs, and the cache beside a naive one.

use super::*;

#[test]
fn graph_is_captured_once_and_replayed_by_its_key() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    assert!(!cache.replay(&Number(1), &bench.stream).unwrap());
    let recorded = bench.record_adds(&cache, Number(1), &out, &[1, 10]);
    assert_eq!((recorded.nodes, recorded.bytes), (2, 2 * NODE_BYTES));
    assert!(!recorded.updated);
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [0]);
    for _ in 0..20 {
        assert!(cache.replay(&Number(1), &bench.stream).unwrap());
    }
    assert!(!cache.replay(&Number(2), &bench.stream).unwrap());
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [220]);
    let stats = cache.stats();
    assert_eq!((stats.replays, stats.absent, stats.entries), (20, 2, 1));
}

#[test]
fn failed_capture_leaves_the_stream_usable_and_the_earlier_graph() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    bench.record_adds(&cache, Number(1), &out, &[1]);
    let failing = |recording: &Recording<'_, Number>| -> Result<(), GraphError> {
        bench.add(&out, 100, recording.stream());
        let _scratch = recording.alloc::<u32>(1000)?;
        Err(GraphError::Field { why: "mine".into() })
    };
    for key in [Number(1), Number(2)] {
        let error = cache
            .record(key, &bench.stream, SMALL, failing)
            .unwrap_err();
        assert!(matches!(error, GraphError::Field { .. }), "{error}");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            cache.record(key, &bench.stream, SMALL, |recording| {
                failing(recording).unwrap_err();
                panic!("the body's");
                #[expect(unreachable_code, reason = "the type of what is never returned")]
                Ok::<(), GraphError>(())
            })
        }));
        let payload = panicked.unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"the body's"));
        drop(cache.begin(key, &bench.stream, SMALL).unwrap());
    }
    assert!(!bench.stream.is_capturing());
    bench.add(&out, 1000, &bench.stream);
    assert!(cache.replay(&Number(1), &bench.stream).unwrap());
    assert!(!cache.replay(&Number(2), &bench.stream).unwrap());
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [1001]);
}

#[test]
fn equal_topology_is_updated_in_place_and_another_is_instantiated() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let (out, other) = (bench.zeroed(1), bench.zeroed(1));
    bench.record_adds(&cache, Number(1), &out, &[1]);
    cache.replay(&Number(1), &bench.stream).unwrap();
    // A launch of the replaced graph is still pending.
    let before = Held::hold(&bench.stream);
    cache.replay(&Number(1), &bench.stream).unwrap();
    // The upload is ordered behind the graph's launches, in this stream, which waits for that on
    // drop.
    let side = Stream::new(&bench.context).unwrap();
    let released = std::thread::scope(|threads| {
        let (bench, cache, other, side) = (&bench, &cache, &other, &side);
        threads
            .spawn(move || {
                let recording = cache.begin(Number(1), side, SMALL).unwrap();
                bench.add(other, 7, side);
                let recorded = recording.finish().unwrap();
                assert!(recorded.updated);
            })
            .join()
            .unwrap();
        before.release()
    });
    assert!(released, "the update waited for a launch");
    cache.replay(&Number(1), &bench.stream).unwrap();
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [2]);
    assert_eq!(other.to_vec(&bench.stream).unwrap(), [7]);
    let recorded = bench.record_adds(&cache, Number(1), &out, &[1, 1]);
    assert!(!recorded.updated);
    cache.replay(&Number(1), &bench.stream).unwrap();
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [4]);
    let stats = cache.stats();
    assert_eq!(
        (
            stats.entries,
            stats.instantiated,
            stats.updated,
            stats.bytes
        ),
        (1, 2, 1, 2 * NODE_BYTES)
    );
}

#[test]
fn resources_replaced_by_an_update_are_freed_by_later_calls() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    let token = Arc::new(());
    let side = Stream::new(&bench.context).unwrap();
    let record = || {
        let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
        bench.add(&out, 1, recording.stream());
        recording.keep(token.clone());
        recording.finish().unwrap();
    };
    record();
    let before = Held::hold(&side);
    cache.replay(&Number(1), &side).unwrap();
    record();
    assert_eq!(Arc::strong_count(&token), 3);
    assert!(before.release());
    side.synchronize().unwrap();
    for _ in 0..64 {
        cache.replay(&Number(1), &side).unwrap();
    }
    assert_eq!(Arc::strong_count(&token), 2);
    assert_eq!(out.to_vec(&side).unwrap(), [65]);
}

#[test]
fn graph_dropped_while_running_lives_until_it_is_done_and_no_longer() {
    let bench = Bench::new();
    let cache = bench.cache(2 * NODE_BYTES + (1 << 20));
    let out = bench.zeroed(1);
    let token = Arc::new(());
    type LetGo = fn(&Bench, &GraphCache<Number>, &DeviceBuffer<u32>);
    let ways: [LetGo; 4] = [
        |_, cache, _| assert!(cache.invalidate(&Number(11))),
        |_, cache, _| assert_eq!(cache.invalidate_all(), 1),
        |_, cache, _| {
            assert_eq!(cache.invalidate_generation(0), 0);
            assert_eq!(cache.invalidate_generation(1), 1);
        },
        |_, cache, _| {
            cache.set_budget_bytes(0);
            cache.set_budget_bytes(2 * NODE_BYTES + (1 << 20));
        },
    ];
    for (way, let_go) in ways.iter().enumerate() {
        let recording = cache.begin(Number(11), &bench.stream, SMALL).unwrap();
        let mut scratch = recording.alloc::<u32>(1 << 18).unwrap();
        scratch
            .as_slice_mut()
            .fill(5 + way as u32, &bench.stream)
            .unwrap();
        let value = scratch.slice(77..78).unwrap();
        let mut out = out.part::<u32>(0, 1).unwrap();
        out.copy_from(value, &bench.stream).unwrap();
        recording.keep(token.clone());
        drop(scratch);
        let recorded = recording.finish().unwrap();
        assert_eq!(recorded.arena_bytes, 1 << 20);
        let before = Held::hold(&bench.stream);
        cache.replay(&Number(11), &bench.stream).unwrap();
        let_go(&bench, &cache, &out);
        let after = Held::hold(&bench.stream);
        assert!(!cache.contains(&Number(11)));
        assert!(!cache.replay(&Number(11), &bench.stream).unwrap());
        cache.reap();
        assert_eq!((cache.stats().retired, Arc::strong_count(&token)), (1, 2));
        // Memory that was freed too early would have been reused by now.
        let side = Stream::new(&bench.context).unwrap();
        let others: Vec<_> = (0..8)
            .map(|_| {
                let mut other = DeviceBuffer::<u32>::alloc_ordered(&side, 1 << 18).unwrap();
                other.fill(1000, &side).unwrap();
                other
            })
            .collect();
        assert!(before.release());
        wait_until(|| {
            cache.reap();
            cache.stats().retired == 0
        });
        assert_eq!(Arc::strong_count(&token), 1);
        assert!(after.release(), "dropping waited for later work");
        drop(others);
        assert_eq!(out.to_vec(&bench.stream).unwrap(), [5 + way as u32]);
    }
}

#[test]
fn dropped_cache_waits_for_its_replays_only() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    let token = Arc::new(());
    for number in 0..3 {
        let recording = cache.begin(Number(number), &bench.stream, SMALL).unwrap();
        bench.add(&out, 1, recording.stream());
        recording.keep(token.clone());
        recording.finish().unwrap();
    }
    let before = Held::hold(&bench.stream);
    for number in 0..3 {
        cache.replay(&Number(number), &bench.stream).unwrap();
    }
    let dropped = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let dropping = threads.spawn(|| {
            drop(cache);
            dropped.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!dropped.load(Ordering::SeqCst));
        assert_eq!(Arc::strong_count(&token), 4);
        assert!(before.release());
        dropping.join().unwrap();
    });
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [3]);
}

#[test]
fn graph_above_the_budget_is_an_error_with_numbers() {
    let bench = Bench::new();
    let cache = bench.cache(2 * NODE_BYTES);
    let out = bench.zeroed(1);
    bench.record_adds(&cache, Number(1), &out, &[1]);
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    for _ in 0..3 {
        bench.add(&out, 1, recording.stream());
    }
    let error = recording.finish().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a graph of 3 nodes with an arena of 0 bytes counts as 3000 bytes, but the budget is 2000"),
        "{error}"
    );
    assert!(cache.replay(&Number(1), &bench.stream).unwrap());
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [1]);
}

#[test]
fn graph_captured_before_its_key_was_invalidated_is_not_kept() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    let ways: [fn(&GraphCache<Number>); 3] = [
        |cache| assert!(!cache.invalidate(&Number(25))),
        |cache| assert_eq!(cache.invalidate_all(), 0),
        |cache| assert_eq!(cache.invalidate_generation(2), 0),
    ];
    for invalidate in ways {
        let recording = cache.begin(Number(25), &bench.stream, SMALL).unwrap();
        bench.add(&out, 1, recording.stream());
        invalidate(&cache);
        let error = recording.finish().unwrap_err();
        assert!(matches!(error, GraphError::Invalidated), "{error}");
        assert!(!cache.contains(&Number(25)));
    }
    let recording = cache.begin(Number(25), &bench.stream, SMALL).unwrap();
    bench.add(&out, 1, recording.stream());
    cache.invalidate_generation(1);
    cache.invalidate(&Number(26));
    recording.finish().unwrap();
    assert!(cache.contains(&Number(25)));
}

/// A naive cache: a list, the least recently used first.
#[derive(Default)]
struct Model {
    entries: Vec<(Number, u64)>,
    evicted: u64,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.entries.iter().map(|(_, bytes)| bytes).sum()
    }

    fn take(&mut self, key: Number) -> Option<(Number, u64)> {
        let at = self.entries.iter().position(|(other, _)| *other == key)?;
        Some(self.entries.remove(at))
    }

    fn let_go(&mut self, which: impl Fn(Number) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|(key, _)| !which(*key));
        before - self.entries.len()
    }

    fn shrink(&mut self, budget: u64) {
        while self.bytes() > budget {
            self.entries.remove(0);
            self.evicted += 1;
        }
    }
}

#[test]
fn cache_matches_a_naive_one() {
    const KEYS: u32 = 24;
    let bench = Bench::new();
    let mut random = Random::fresh();
    let random = &mut random.rng;
    for _ in 0..4 {
        let mut budget = random.u64(10..60) << 10;
        let cache = bench.cache(budget);
        let mut model = Model::default();
        let out: Vec<_> = (0..KEYS).map(|_| bench.zeroed(1)).collect();
        let mut sums = [0_u32; KEYS as usize];
        let mut adds = [0_u32; KEYS as usize];
        for _ in 0..250 {
            let number = random.u32(..KEYS);
            let key = Number(number);
            match random.u8(..20) {
                0..8 => {
                    let found = model.take(key);
                    model.entries.extend(found);
                    assert_eq!(cache.replay(&key, &bench.stream).unwrap(), found.is_some());
                    if found.is_some() {
                        let sum = &mut sums[number as usize];
                        *sum = sum.wrapping_add(adds[number as usize]);
                    }
                }
                8..16 => {
                    let kernels = random.usize(1..4);
                    let arena = random.u64(0..32) << 10;
                    let values: Vec<u32> = (0..kernels).map(|_| random.u32(..100)).collect();
                    let options = RecordOptions {
                        arena_bytes: arena,
                        ..SMALL
                    };
                    let recording = cache.begin(key, &bench.stream, options).unwrap();
                    let scratch = recording.alloc::<u32>(arena as usize / 4).unwrap();
                    for value in &values {
                        bench.add(&out[number as usize], *value, recording.stream());
                    }
                    drop(scratch);
                    let bytes = arena + kernels as u64 * NODE_BYTES;
                    match recording.finish() {
                        Ok(recorded) => {
                            assert_eq!(recorded.bytes, bytes);
                            assert!(bytes <= budget);
                            adds[number as usize] = values.iter().sum();
                            model.take(key);
                            model.entries.push((key, bytes));
                            model.shrink(budget);
                        }
                        Err(error) => {
                            assert!(matches!(error, GraphError::TooLarge { .. }), "{error}");
                            assert!(bytes > budget);
                        }
                    }
                }
                16 => assert_eq!(cache.invalidate(&key), model.take(key).is_some()),
                17 => {
                    let generation = random.u64(..3);
                    assert_eq!(
                        cache.invalidate_generation(generation),
                        model.let_go(|key| key.generation() == generation)
                    );
                }
                18 if random.u8(..8) == 0 => {
                    assert_eq!(cache.invalidate_all(), model.let_go(|_| true));
                }
                19 => {
                    budget = random.u64(10..60) << 10;
                    cache.set_budget_bytes(budget);
                    model.shrink(budget);
                }
                _ => cache.reap(),
            }
            let stats = cache.stats();
            assert_eq!(
                (stats.entries, stats.bytes, stats.evicted),
                (model.entries.len(), model.bytes(), model.evicted)
            );
            assert!(model.entries.iter().all(|(key, _)| cache.contains(key)));
        }
        for (out, sum) in out.iter().zip(sums) {
            assert_eq!(out.to_vec(&bench.stream).unwrap(), [sum]);
        }
    }
}
