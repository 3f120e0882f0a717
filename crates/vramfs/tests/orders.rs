//! What is written with words of its own, by loom. Of `space`, in every order that its words allow: whoever has a page is
//! alone, and sees all that who had it before has done. Of `crew`, in the orders that its threads may take: somebody looks
//! for what is asked as long as one rests. Its words are in order by a lock, so weaker ones are not seen there, nor is who
//! wakes for nothing.
//!
//! The modules are compiled once more here, with loom's words in place of the standard library's. Few threads and few steps, as each
//! word that several touch multiplies what there is to try; orders with more than three interruptions are left out, or with
//! more than two where there are more threads.

#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_vramfs::layout;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

mod words {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current, park, yield_now};
}

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the library has it for others; here some of it is tried"
)]
#[path = "../src/space.rs"]
mod space;

#[allow(dead_code, reason = "as before")]
#[path = "../src/pieces.rs"]
mod pieces;

#[allow(unreachable_pub, reason = "as before")]
#[path = "../src/fuse/crew.rs"]
mod crew;

use crew::Crew;
use space::{Run, Space, WHOLE};

/// Half a block: two of them are cut from one.
const HALF: u32 = WHOLE - 1;

/// A space, and something for each half of each block, which only who has it may touch.
struct Shared {
    space: Space,
    halves: Vec<[UnsafeCell<u32>; 2]>,
}

impl Shared {
    fn new(most: u32, there: u32) -> Arc<Self> {
        let space = Space::new(most);
        space.add(0..there);
        let halves = (0..most).map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)]);
        Arc::new(Self {
            space,
            halves: halves.collect(),
        })
    }

    /// Takes a run, uses it, and gives it back; whether there was one.
    fn use_one(&self, order: u32) -> bool {
        let Some((run, generation)) = self.space.take(order) else {
            return false;
        };
        assert!(generation > 0 && self.space.is_of(run.block, generation));
        self.touch(run);
        self.space.give(run);
        true
    }

    /// As [`Shared::use_one`], where another may have all.
    fn tries(&self, order: u32) {
        if !self.use_one(order) {
            thread::yield_now();
        }
    }

    fn touch(&self, run: Run) {
        // Of a run that is shorter the half is somebody else's, too.
        let first = usize::from(run.page).div_ceil(1 << HALF);
        let halves = (run.pages() >> HALF) as usize;
        for half in &self.halves[run.block as usize][first..first + halves] {
            // SAFETY: only who has the run comes here, which loom is here to deny.
            half.with_mut(|it| unsafe { *it += 1 });
        }
    }

    /// Nothing is somebody's, and all of it can be had.
    fn is_whole(&self, blocks: u32) {
        assert_eq!(self.space.used_pages(), 0);
        assert_eq!(self.space.pages(), u64::from(blocks) << WHOLE);
        let all: Vec<_> = (0..blocks).map(|_| self.space.take(WHOLE)).collect();
        for taken in all {
            let (run, _) = taken.expect("a block is on no stack");
            assert_eq!(u32::from(run.order), WHOLE, "a block is in pieces");
            self.touch(run);
        }
    }
}

/// With a thread interrupted so often at most.
fn in_every_order(interrupted: usize, work: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interrupted);
    builder.check(work);
}

/// Both do something at the same time.
fn beside(shared: &Arc<Shared>, one: fn(&Shared), other: fn(&Shared)) {
    let with = shared.clone();
    let thread = thread::spawn(move || one(&with));
    other(shared);
    thread.join().unwrap();
}

#[test]
fn a_whole_block_is_one_threads_at_a_time() {
    in_every_order(3, || {
        let shared = Shared::new(1, 1);
        let once = |it: &Shared| it.tries(WHOLE);
        beside(&shared, once, once);
        shared.is_whole(1);
    });
}

#[test]
fn halves_of_a_block_are_two_threads_and_it_is_whole_behind_them() {
    in_every_order(3, || {
        let shared = Shared::new(1, 1);
        // There are two, so none finds nothing.
        let once = |it: &Shared| assert!(it.use_one(HALF));
        beside(&shared, once, once);
        shared.is_whole(1);
    });
}

#[test]
fn a_block_that_goes_while_it_is_taken_is_somebodys_or_gone() {
    in_every_order(3, || {
        let shared = Shared::new(1, 1);
        beside(&shared, |it| it.tries(HALF), |it| it.space.retire(0..1));
        // It was given back, by whoever had it.
        assert!(shared.space.is_gone(0));
        assert_eq!((shared.space.used_pages(), shared.space.pages()), (0, 0));
        assert_eq!(shared.space.take(0), None);
        shared.space.add(0..1);
        shared.is_whole(1);
    });
}

#[test]
fn a_lost_block_is_given_out_again_when_all_of_it_was_given_back() {
    in_every_order(3, || {
        let shared = Shared::new(1, 1);
        let (run, _) = shared.space.take(HALF).unwrap();
        shared.touch(run);
        beside(
            &shared,
            |it| assert!(it.space.shun(0) || it.space.used_of(0) == 0),
            |it| {
                it.space.give(Run {
                    block: 0,
                    page: 0,
                    order: HALF as u8,
                })
            },
        );
        shared.is_whole(1);
    });
}

#[test]
fn three_threads_with_blocks_and_parts_of_them_leave_all_whole() {
    in_every_order(2, || {
        let shared = Shared::new(2, 2);
        let (one, other) = (shared.clone(), shared.clone());
        let one = thread::spawn(move || assert!(one.use_one(HALF)));
        let other = thread::spawn(move || other.tries(WHOLE));
        shared.tries(HALF - 1);
        one.join().unwrap();
        other.join().unwrap();
        shared.is_whole(2);
    });
}

#[test]
fn a_half_of_a_block_that_is_never_free_goes_from_one_thread_to_the_other() {
    in_every_order(3, || {
        let shared = Shared::new(1, 1);
        let (run, _) = shared.space.take(HALF).unwrap();
        let once = |it: &Shared| it.tries(HALF);
        beside(&shared, once, once);
        shared.space.give(run);
        shared.is_whole(1);
    });
}

#[test]
fn a_block_that_comes_back_to_the_top_is_not_taken_for_the_one_that_was_there() {
    in_every_order(3, || {
        let shared = Shared::new(2, 2);
        // One is given back at once, and the other while that may be had again.
        let both = |it: &Shared| {
            let first = it.space.take(WHOLE);
            let second = it.space.take(WHOLE);
            for (run, _) in first.into_iter().chain(second) {
                it.touch(run);
                it.space.give(run);
            }
        };
        beside(&shared, both, both);
        shared.is_whole(2);
    });
}

/// What the kernel has for who answers: a request that comes at any time, and others, each asked by who answers the one before, and
/// waits for all. So one does whose answer has the kernel say something by another.
struct Asked {
    crew: Crew,
    state: Mutex<State>,
    /// Also that all is over.
    came: Condvar,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// Behind that many all is over.
    last: usize,
    asked: usize,
    read: usize,
    is_over: bool,
}

impl Asked {
    fn new(last: usize) -> Arc<Self> {
        let state = State {
            last,
            ..State::default()
        };
        Arc::new(Self {
            crew: Crew::new(),
            state: Mutex::new(state),
            came: Condvar::new(),
            answered: Condvar::new(),
        })
    }

    fn ask(&self) {
        self.state.lock().unwrap().asked += 1;
        self.came.notify_all();
    }

    /// Whether there is something, even if it is that all is over.
    fn poll(&self, waits: bool) -> bool {
        let mut state = self.state.lock().unwrap();
        while waits && !state.is_over && state.read == state.asked {
            state = self.came.wait(state).unwrap();
        }
        state.is_over || state.read < state.asked
    }

    /// One of those who answer, until all is over.
    fn answer(&self) {
        loop {
            let (looking, _) = self.crew.look();
            while !self.poll(false) {
                if !looking.rest() && self.poll(true) {
                    break;
                }
            }
            drop(looking);
            let mut state = self.state.lock().unwrap();
            if state.is_over {
                return;
            }
            if state.read == state.asked {
                // Another was before me.
                continue;
            }
            state.read += 1;
            if state.read < state.last {
                drop(state);
                self.ask();
                state = self.state.lock().unwrap();
                while !state.is_over {
                    state = self.answered.wait(state).unwrap();
                }
            } else {
                state.is_over = true;
                self.came.notify_all();
                self.answered.notify_all();
            }
        }
    }
}

/// So many answer so many requests, and go. If one is read by nobody, or one rests behind all others, loom says that none can go on.
fn answers(threads: usize, count: usize) {
    let asked = Asked::new(count);
    let all: Vec<_> = (0..threads)
        .map(|_| {
            let asked = asked.clone();
            thread::spawn(move || asked.answer())
        })
        .collect();
    asked.ask();
    all.into_iter().for_each(|it| it.join().unwrap());
    let state = asked.state.lock().unwrap();
    assert_eq!((state.asked, state.read), (count, count));
    // Nobody is counted who has gone.
    assert_eq!(asked.crew.look().1, 0);
}

#[test]
fn somebody_reads_what_another_waits_for() {
    in_every_order(3, || answers(2, 2));
}

#[test]
fn somebody_of_three_reads_what_another_waits_for() {
    in_every_order(2, || answers(3, 3));
}

#[test]
fn who_rests_when_all_is_over_goes_too() {
    in_every_order(2, || answers(3, 2));
}
