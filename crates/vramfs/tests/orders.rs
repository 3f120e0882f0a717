//! Model checking of `space` and `fuse/workers` by loom, over the interleavings of their threads.
//!
//! `space` is checked with all orders that its atomics allow: a thread that has a page has it
//! alone, and sees all that the previous one did to it. `workers` is checked in the interleavings
//! that its threads may take: a worker is spinning for requests as long as another is parked. Its
//! atomics are ordered by a lock, so weaker orders are not explored there, nor are spurious
//! wake-ups.
//!
//! The modules are compiled again here, with loom's primitives in place of the standard library's.
//! Few threads and few steps, as each shared primitive multiplies the number of executions;
//! executions with more than three preemptions are left out, or more than two where there are more
//! threads.

#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_vramfs::layout;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current, park, yield_now};
}

#[allow(
    dead_code,
    unreachable_pub,
    reason = "only part of the module is tested here"
)]
#[path = "../src/space.rs"]
mod space;

#[allow(dead_code, reason = "as before")]
#[path = "../src/pieces.rs"]
mod pieces;

#[allow(unreachable_pub, reason = "as before")]
#[path = "../src/fuse/workers.rs"]
mod workers;

use space::{PageAllocator, PageRun, WHOLE};
use workers::WorkerPool;

/// Half a block: a block is split into two of them.
const HALF: u32 = WHOLE - 1;

/// A space, and a cell for each half of each block, which only the thread that has it may access.
struct SharedSpace {
    space: PageAllocator,
    halves: Vec<[UnsafeCell<u32>; 2]>,
}

impl SharedSpace {
    fn new(most: u32, there: u32) -> Arc<Self> {
        let space = PageAllocator::new(most);
        space.add(0..there);
        let halves = (0..most).map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)]);
        Arc::new(Self {
            space,
            halves: halves.collect(),
        })
    }

    /// Takes a run, uses it, and frees it; returns whether there was one.
    fn use_one(&self, order: u32) -> bool {
        let Some((run, generation)) = self.space.allocate(order) else {
            return false;
        };
        assert!(generation > 0 && self.space.is_in_generation(run.block, generation));
        self.touch(run);
        self.space.free(run);
        true
    }

    /// As [`SharedSpace::use_one`], where another thread may have taken everything.
    fn tries(&self, order: u32) {
        if !self.use_one(order) {
            thread::yield_now();
        }
    }

    fn touch(&self, run: PageRun) {
        // The half of a shorter run belongs to other threads, too.
        let first = usize::from(run.page).div_ceil(1 << HALF);
        let halves = (run.pages() >> HALF) as usize;
        for half in &self.halves[run.block as usize][first..first + halves] {
            // SAFETY: only the thread that has the run comes here; loom reports if that is
            // violated.
            half.with_mut(|it| unsafe { *it += 1 });
        }
    }

    /// Checks that no run is in use and all blocks can be taken.
    fn check_whole(&self, blocks: u32) {
        assert_eq!(self.space.used_pages(), 0);
        assert_eq!(self.space.pages(), u64::from(blocks) << WHOLE);
        let all: Vec<_> = (0..blocks).map(|_| self.space.allocate(WHOLE)).collect();
        for taken in all {
            let (run, _) = taken.expect("a free block is on no free list");
            assert_eq!(u32::from(run.order), WHOLE, "a free block is split");
            self.touch(run);
        }
    }
}

/// Explores the interleavings with at most this many preemptions.
fn in_every_interleaving(preemptions: usize, work: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(work);
}

/// Runs both concurrently.
fn run_both(shared: &Arc<SharedSpace>, one: fn(&SharedSpace), other: fn(&SharedSpace)) {
    let with = shared.clone();
    let thread = thread::spawn(move || one(&with));
    other(shared);
    thread.join().unwrap();
}

#[test]
fn a_whole_block_belongs_to_one_thread_at_a_time() {
    in_every_interleaving(3, || {
        let shared = SharedSpace::new(1, 1);
        let once = |it: &SharedSpace| it.tries(WHOLE);
        run_both(&shared, once, once);
        shared.check_whole(1);
    });
}

#[test]
fn halves_freed_by_two_threads_merge_into_a_whole_block() {
    in_every_interleaving(3, || {
        let shared = SharedSpace::new(1, 1);
        // There are two halves, so neither thread fails.
        let once = |it: &SharedSpace| assert!(it.use_one(HALF));
        run_both(&shared, once, once);
        shared.check_whole(1);
    });
}

#[test]
fn a_block_retired_during_an_allocation_is_allocated_or_gone() {
    in_every_interleaving(3, || {
        let shared = SharedSpace::new(1, 1);
        run_both(&shared, |it| it.tries(HALF), |it| it.space.retire(0..1));
        // It was freed, by the thread that had it.
        assert!(shared.space.is_drained(0));
        assert_eq!((shared.space.used_pages(), shared.space.pages()), (0, 0));
        assert_eq!(shared.space.allocate(0), None);
        shared.space.add(0..1);
        shared.check_whole(1);
    });
}

#[test]
fn a_lost_block_is_allocated_again_once_all_of_it_was_freed() {
    in_every_interleaving(3, || {
        let shared = SharedSpace::new(1, 1);
        let (run, _) = shared.space.allocate(HALF).unwrap();
        shared.touch(run);
        run_both(
            &shared,
            |it| assert!(it.space.quarantine(0) || it.space.used_of(0) == 0),
            |it| {
                it.space.free(PageRun {
                    block: 0,
                    page: 0,
                    order: HALF as u8,
                })
            },
        );
        shared.check_whole(1);
    });
}

#[test]
fn three_threads_with_blocks_and_halves_leave_whole_blocks() {
    in_every_interleaving(2, || {
        let shared = SharedSpace::new(2, 2);
        let (one, other) = (shared.clone(), shared.clone());
        let one = thread::spawn(move || assert!(one.use_one(HALF)));
        let other = thread::spawn(move || other.tries(WHOLE));
        shared.tries(HALF - 1);
        one.join().unwrap();
        other.join().unwrap();
        shared.check_whole(2);
    });
}

#[test]
fn half_of_a_block_passes_between_threads_while_the_other_half_is_in_use() {
    in_every_interleaving(3, || {
        let shared = SharedSpace::new(1, 1);
        let (run, _) = shared.space.allocate(HALF).unwrap();
        let once = |it: &SharedSpace| it.tries(HALF);
        run_both(&shared, once, once);
        shared.space.free(run);
        shared.check_whole(1);
    });
}

#[test]
fn a_block_pushed_again_is_not_mistaken_for_the_earlier_push() {
    in_every_interleaving(3, || {
        let shared = SharedSpace::new(2, 2);
        // The first is freed at once, and the second while the first may be taken again.
        let both = |it: &SharedSpace| {
            let first = it.space.allocate(WHOLE);
            let second = it.space.allocate(WHOLE);
            for (run, _) in first.into_iter().chain(second) {
                it.touch(run);
                it.space.free(run);
            }
        };
        run_both(&shared, both, both);
        shared.check_whole(2);
    });
}

/// The kernel's side of a connection: a first request that comes at any time, and further ones. The
/// worker that answers a request sends the next one, and waits until all are answered, as if its
/// answer made the kernel wait for another answer.
struct FakeKernel {
    workers: WorkerPool,
    state: Mutex<KernelState>,
    /// Also notified when all requests are answered.
    arrived: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct KernelState {
    /// The number of requests.
    count: usize,
    sent: usize,
    read: usize,
    is_over: bool,
}

impl FakeKernel {
    fn new(count: usize) -> Arc<Self> {
        let state = KernelState {
            count,
            ..KernelState::default()
        };
        Arc::new(Self {
            workers: WorkerPool::new(),
            state: Mutex::new(state),
            arrived: Condvar::new(),
            answered: Condvar::new(),
        })
    }

    fn send(&self) {
        self.state.lock().unwrap().sent += 1;
        self.arrived.notify_all();
    }

    /// Whether there is a request, or all are answered.
    fn poll(&self, waits: bool) -> bool {
        let mut state = self.state.lock().unwrap();
        while waits && !state.is_over && state.read == state.sent {
            state = self.arrived.wait(state).unwrap();
        }
        state.is_over || state.read < state.sent
    }

    /// One worker, until all requests are answered.
    fn answer(&self) {
        loop {
            let (guard, _) = self.workers.start_spinning();
            while !self.poll(false) {
                if !guard.park_unless_last() && self.poll(true) {
                    break;
                }
            }
            drop(guard);
            let mut state = self.state.lock().unwrap();
            if state.is_over {
                return;
            }
            if state.read == state.sent {
                // Another worker has read it.
                continue;
            }
            state.read += 1;
            if state.read < state.count {
                drop(state);
                self.send();
                state = self.state.lock().unwrap();
                while !state.is_over {
                    state = self.answered.wait(state).unwrap();
                }
            } else {
                state.is_over = true;
                self.arrived.notify_all();
                self.answered.notify_all();
            }
        }
    }
}

/// Runs this many workers and requests. If a request is not read, or a worker stays parked, loom
/// reports a deadlock.
fn check_answers(threads: usize, count: usize) {
    let kernel = FakeKernel::new(count);
    let all: Vec<_> = (0..threads)
        .map(|_| {
            let kernel = kernel.clone();
            thread::spawn(move || kernel.answer())
        })
        .collect();
    kernel.send();
    all.into_iter().for_each(|it| it.join().unwrap());
    let state = kernel.state.lock().unwrap();
    assert_eq!((state.sent, state.read), (count, count));
    // A worker that has exited is not counted as spinning.
    assert_eq!(kernel.workers.start_spinning().1, 0);
}

#[test]
fn a_request_is_read_while_another_worker_waits_for_its_answer() {
    in_every_interleaving(3, || check_answers(2, 2));
}

#[test]
fn one_of_three_workers_reads_the_request_the_others_wait_for() {
    in_every_interleaving(2, || check_answers(3, 3));
}

#[test]
fn a_worker_parked_at_the_end_exits_too() {
    in_every_interleaving(2, || check_answers(3, 2));
}
