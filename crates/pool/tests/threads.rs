//! Threads that allocate and free constantly: no two of them ever hold the same memory, and none is
//! lost.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod idle;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use fercuda_pool::{
    AllocationRequest, DeviceClock, DevicePool, GrowthRefused, MemoryBacking, MemoryBudget,
    PoolPlace, Span, StreamId, TenantId,
};
use idle::Idle;

const PIECE: u64 = 2 << 20;
const THREADS: u64 = 8;
/// Requests of a thread; Miri takes some hundred times as long.
const ROUNDS: u32 = if cfg!(miri) { 200 } else { 100_000 };
/// A wait of this length does not end by itself.
const LONG: Duration = Duration::from_secs(60);

/// A device that makes no progress until the host lets it.
#[derive(Default)]
struct Waiting(AtomicBool);

impl DeviceClock for &Waiting {
    type Point = ();
    fn record_fence(&self, _: PoolPlace) -> Option<()> {
        Some(())
    }
    fn passed(&self, (): &()) -> bool {
        self.0.load(Relaxed)
    }
    fn wait(&self, _: StreamId, (): &()) -> bool {
        false
    }
    fn join(&self, (): &(), timeout: Duration) -> bool {
        let begun = Instant::now();
        while !self.passed(&()) && begun.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.passed(&())
    }
}

/// A device that is 50 ms behind its host.
struct Behind;

impl DeviceClock for Behind {
    type Point = Instant;
    fn record_fence(&self, _: PoolPlace) -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(50))
    }
    fn passed(&self, point: &Instant) -> bool {
        *point <= Instant::now()
    }
    fn wait(&self, _: StreamId, _: &Instant) -> bool {
        true
    }
    fn join(&self, point: &Instant, timeout: Duration) -> bool {
        let left = point.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(timeout));
        self.passed(point)
    }
}

/// Pieces at addresses that are never reused.
struct Pieces {
    top: u64,
    spare: u64,
    physical: Arc<AtomicU64>,
}

impl Pieces {
    fn new() -> Self {
        Self {
            top: 1 << 40,
            spare: 0,
            physical: Arc::default(),
        }
    }
}

impl MemoryBacking for Pieces {
    fn piece_bytes(&self) -> u64 {
        PIECE
    }
    fn rounded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(PIECE)
    }
    fn new_bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.spare)
    }
    fn site(&self, _: u64) -> Option<u64> {
        Some(self.top)
    }
    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        self.physical.fetch_add(self.new_bytes(bytes), Relaxed);
        self.spare = self.spare.saturating_sub(bytes);
        let address = self.top;
        self.top += bytes;
        Ok(Span { address, bytes })
    }
    fn separable(&self, span: Span) -> Option<Span> {
        let begin = span.address.next_multiple_of(PIECE);
        let end = span.end() / PIECE * PIECE;
        (begin < end).then(|| Span {
            address: begin,
            bytes: end - begin,
        })
    }
    fn shrink(&mut self, span: Span) {
        self.spare += span.bytes;
    }
    fn release(&mut self, but_for: u64) -> u64 {
        let gone = self.spare.saturating_sub(but_for);
        self.spare -= gone;
        self.physical.fetch_sub(gone, Relaxed);
        gone
    }
}

/// The spans in use.
#[derive(Default)]
struct Owners(Mutex<BTreeMap<u64, Span>>);

impl Owners {
    fn take(&self, span: Span) {
        let mut all = self.0.lock().unwrap();
        let before = all.range(..span.end()).next_back();
        let clash = before.filter(|(_, other)| other.end() > span.address);
        assert!(clash.is_none(), "{span:?} overlaps one in use: {clash:?}");
        all.insert(span.address, span);
    }

    fn give(&self, span: Span) {
        let was = self.0.lock().unwrap().remove(&span.address);
        assert_eq!(was, Some(span));
    }
}

/// A request for `bytes` in a stream.
fn request(bytes: u64, stream: u64) -> AllocationRequest {
    AllocationRequest {
        bytes,
        align_bytes: 512,
        place: PoolPlace::Stream(StreamId(stream)),
        tenant: TenantId::default(),
        note: (),
    }
}

/// Whether a thread ends within this time.
fn ends_within<T>(time: Duration, thread: &ScopedJoinHandle<'_, T>) -> bool {
    let begun = Instant::now();
    while !thread.is_finished() && begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.is_finished()
}

#[test]
fn threads_never_hold_the_same_memory_and_nothing_is_lost() {
    let seed = fastrand::u64(..);
    let pieces = Pieces::new();
    let physical = pieces.physical.clone();
    let limit = 256 << 20;
    let budget = MemoryBudget::new(limit);
    let pool = DevicePool::new(pieces, Idle, budget.clone());
    let owners = Owners::default();
    let work = |thread: u64| {
        let mut random = Rng::with_seed(seed + thread);
        let mut live: Vec<(Span, PoolPlace)> = Vec::new();
        for n in 0..ROUNDS {
            if n % 1000 == 0 && thread.is_multiple_of(2) {
                pool.assume_contention();
            }
            let stream = StreamId(if random.u8(..) < 200 {
                thread
            } else {
                random.u64(..THREADS)
            });
            let place = match random.u8(..) {
                0..8 => PoolPlace::Anywhere,
                _ => PoolPlace::Stream(stream),
            };
            let most = 1 << random.u32(8..=21);
            let bytes = random.u64(1..=most);
            let request = AllocationRequest {
                bytes,
                align_bytes: 512,
                place,
                tenant: TenantId(thread as u16),
                note: (),
            };
            if let Ok(span) = pool.allocate(&request) {
                owners.take(span);
                live.push((span, place));
            }
            while live.len() > 12 || n + 1 == ROUNDS && !live.is_empty() {
                let (span, place) = live.swap_remove(random.usize(..live.len()));
                owners.give(span);
                let place = if random.u8(..) < 16 {
                    PoolPlace::Anywhere
                } else {
                    place
                };
                pool.free(span.address, place).unwrap();
            }
            match random.u32(..4096) {
                0 => drop(pool.trim()),
                1 => pool.retire(StreamId(random.u64(..THREADS) + 1000)),
                _ => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    pool.audit()
        .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let usage = pool.usage();
    assert_eq!((usage.live_bytes, usage.blocks), (0, 0), "seed {seed}");
    assert!(physical.load(Relaxed) <= limit, "seed {seed}");
    pool.trim();
    let usage = pool.usage();
    assert_eq!(
        (usage.bytes, budget.used_bytes()),
        (0, 0),
        "seed {seed}: {usage:?}"
    );
    assert_eq!(physical.load(Relaxed), 0, "seed {seed}");
}

#[test]
fn a_thread_that_waits_for_a_stalled_device_lets_others_allocate() {
    let device = Waiting::default();
    let pool = DevicePool::new(Pieces::new(), &device, MemoryBudget::new(8 * PIECE));
    let freed = pool.allocate(&request(4 * PIECE, 1)).unwrap();
    pool.allocate(&request(2 * PIECE, 1)).unwrap();
    pool.free(freed.address, PoolPlace::Stream(StreamId(1)))
        .unwrap();
    std::thread::scope(|scope| {
        // Needs the freed memory, which is in use until the device makes progress.
        let large = scope.spawn(|| pool.allocate(&request(5 * PIECE, 2)));
        let small = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            let small = pool.allocate(&request(PIECE, 3));
            device.0.store(true, Relaxed);
            small
        });
        let had_it_meanwhile = ends_within(LONG, &small);
        device.0.store(true, Relaxed);
        assert!(had_it_meanwhile);
        assert!(small.join().unwrap().is_ok());
        assert!(large.join().unwrap().is_ok());
    });
}

#[test]
fn a_request_that_never_fits_fails_although_others_keep_the_device_busy() {
    let pool = DevicePool::new(Pieces::new(), Behind, MemoryBudget::new(64 * PIECE));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for stream in 1..4 {
            let (pool, over) = (&pool, &over);
            scope.spawn(move || {
                // Never needs more: it reuses the memory it frees.
                let rest = pool.allocate(&request(PIECE / 4, stream)).unwrap();
                while !over.load(Relaxed) {
                    let span = pool.allocate(&request(PIECE / 4 * 3, stream)).unwrap();
                    pool.free(span.address, PoolPlace::Stream(StreamId(stream)))
                        .unwrap();
                }
                pool.free(rest.address, PoolPlace::Anywhere).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        let large = scope.spawn(|| pool.allocate(&request(65 * PIECE, 9)));
        let had_an_answer = ends_within(LONG, &large);
        over.store(true, Relaxed);
        assert!(had_an_answer, "it waits for work that is queued after it");
        assert!(large.join().unwrap().is_err());
    });
}

#[test]
fn arenas_leave_most_of_a_small_limit_to_others() {
    let pool = DevicePool::new(Pieces::new(), Idle, MemoryBudget::new(32 * PIECE));
    for stream in 0..16 {
        let small = || {
            pool.assume_contention();
            pool.allocate(&request(4096, stream)).unwrap()
        };
        std::thread::scope(|scope| scope.spawn(small).join()).unwrap();
    }
    // 64 KiB of 64 MiB are live.
    let large = pool.allocate(&request(24 * PIECE, 99));
    assert!(large.is_ok(), "{large:?}");
    let too_much = pool.allocate(&request(24 * PIECE, 99)).unwrap_err();
    let report = too_much.to_string();
    assert!(report.contains("8.0 MiB cached by threads"), "{report}");
    pool.audit().unwrap();
}
