//! When things may be destroyed.
//!
//! A host callback must not call CUDA, so what is dropped inside one is
//! destroyed later, by an ordinary thread. And some waits break the captures
//! that run, or are refused because of them; what needs such a wait is
//! destroyed after them. And what the driver destroys only when the whole
//! device is idle would wait for a kernel that stays until the host tells it
//! to end: that is destroyed when none does.
//!
//! Invariants: between `enter` and its end no function of the driver is called
//! by this thread through this crate. What waits for the whole device is asked
//! of the driver while [`NoneStays`] lives, so whether a kernel stays cannot
//! change between the look and the call. No lock is held while something is
//! destroyed: it may be the user's in part.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::stream::next_id;
use crate::uses::lock;

/// What trying to destroy something has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Destroyed {
    Yes,
    /// It is to be asked again, whenever a thread allocates or waits.
    NotYet,
    /// The same, when no kernel stays.
    WhileOneStays,
}

type Destroy = Box<dyn FnMut() -> Destroyed + Send>;

/// So many are asked in one pass at most: each may leave others.
const MOST_ASKED: usize = 1 << 16;

static LATER: Mutex<VecDeque<Destroy>> = Mutex::new(VecDeque::new());
/// How many there are in it, or are being asked just now.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// How many captures of this crate's run.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// Kernels that stay, and what is destroyed when none does.
static STAYS: Mutex<Stays> = Mutex::new(Stays {
    kernels: Vec::new(),
    calls: 0,
    waiting: Vec::new(),
});
static NO_CALLS: Condvar = Condvar::new();

/// A kernel that is to stay waits so long for calls that wait for the device: not for
/// ever, as they may be waiting for work that waits for what that kernel does.
const PATIENCE: Duration = Duration::from_secs(1);

struct Stays {
    kernels: Vec<Staying>,
    /// How many calls there are that wait for the whole device to destroy something.
    calls: usize,
    waiting: Vec<Destroy>,
}

/// A kernel that stays.
struct Staying {
    number: u64,
    context: usize,
    /// It was told to end, and may take until then.
    ends_by: Option<Instant>,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a host callback of this crate's: it must not call CUDA,
/// and a stream waits for it. Of another library's only the driver knows
/// ([`Error::is_in_callback`](crate::Error::is_in_callback)).
pub fn is_in_callback() -> bool {
    inside()
}

#[inline]
pub(crate) fn inside() -> bool {
    INSIDE.get()
}

/// Runs `body` as a host callback.
pub(crate) fn enter<R>(body: impl FnOnce() -> R) -> R {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _leave = Leave(INSIDE.replace(true));
    body()
}

/// Runs `destroy` now or, inside a callback, later; and again, whenever a
/// thread allocates or waits, until it answers that it is done.
pub(crate) fn outside(mut destroy: impl FnMut() -> Destroyed + Send + 'static) {
    let answer = match inside() {
        true => Destroyed::NotYet,
        false => destroy(),
    };
    if answer != Destroyed::Yes {
        LEFT.fetch_add(1, Ordering::AcqRel);
        keep(Box::new(destroy), answer);
    }
}

/// Asks `destroy` whenever a thread allocates or waits through this crate, outside of host
/// callbacks, until it says that it has destroyed what it has. For what cannot be destroyed
/// now: it may be called in any thread, so it waits for nothing.
pub fn destroy_later(mut destroy: impl FnMut() -> bool + Send + 'static) {
    let ask = move || match destroy() {
        true => Destroyed::Yes,
        false => Destroyed::NotYet,
    };
    LEFT.fetch_add(1, Ordering::AcqRel);
    keep(Box::new(ask), Destroyed::NotYet);
}

/// Destroys what was left for later and can be destroyed by now, as whoever allocates or
/// waits does; says whether nothing of it is left but what waits for a kernel that stays
/// ([`Context::stay`](crate::Context::stay)).
pub fn destroy_what_can_be() -> bool {
    drain();
    LEFT.load(Ordering::Acquire) == 0
}

/// Puts one of those that are [`LEFT`] where its answer says.
fn keep(destroy: Destroy, answer: Destroyed) {
    if answer == Destroyed::WhileOneStays {
        let mut stays = lock(&STAYS);
        if !stays.kernels.is_empty() {
            stays.waiting.push(destroy);
            LEFT.fetch_sub(1, Ordering::AcqRel);
            return;
        }
    }
    lock(&LATER).push_back(destroy);
}

/// Whether a kernel stays, on whatever device: drivers differ in what they wait for.
pub(crate) fn any_stays() -> bool {
    !lock(&STAYS).kernels.is_empty()
}

/// As long as this is there no kernel stays. For as long as a call of the driver's that
/// waits for the whole device, and no longer.
pub(crate) struct NoneStays(());

impl NoneStays {
    pub(crate) fn now() -> Result<Self, Destroyed> {
        let mut stays = lock(&STAYS);
        match stays.kernels.is_empty() {
            true => stays.calls += 1,
            false => return Err(Destroyed::WhileOneStays),
        }
        Ok(Self(()))
    }
}

impl Drop for NoneStays {
    fn drop(&mut self) {
        lock(&STAYS).calls -= 1;
        NO_CALLS.notify_all();
    }
}

/// A kernel stays in a context from now on; its number.
pub(crate) fn stay_begins(context: usize) -> u64 {
    let number = next_id();
    let mut stays = lock(&STAYS);
    // First, so that no more calls begin.
    stays.kernels.push(Staying {
        number,
        context,
        ends_by: None,
    });
    drop(NO_CALLS.wait_timeout_while(stays, PATIENCE, |stays| stays.calls > 0));
    number
}

/// It was told to end, and may take so long.
pub(crate) fn stay_is_told(number: u64, longest: Duration) {
    let mut stays = lock(&STAYS);
    let mut kernels = stays.kernels.iter_mut();
    if let Some(it) = kernels.find(|it| it.number == number) {
        it.ends_by = Instant::now().checked_add(longest);
    }
}

/// By when those of a context have ended that were told to.
pub(crate) fn told_end_by(context: usize) -> Option<Instant> {
    let stays = lock(&STAYS);
    let kernels = stays.kernels.iter().filter(|it| it.context == context);
    kernels.filter_map(|it| it.ends_by).max()
}

/// It does no more, if it has until now.
pub(crate) fn stay_ended(number: u64) {
    stays_end(|it| it.number == number);
}

/// Nor do any in a context, as nothing of it is there.
pub(crate) fn stays_ended_in(context: usize) {
    stays_end(|it| it.context == context);
}

/// Calls no driver: what was waiting goes when a thread allocates or waits.
fn stays_end(has_ended: impl Fn(&Staying) -> bool) {
    let mut stays = lock(&STAYS);
    stays.kernels.retain(|it| !has_ended(it));
    if stays.kernels.is_empty() {
        let waiting = std::mem::take(&mut stays.waiting);
        drop(stays);
        LEFT.fetch_add(waiting.len(), Ordering::AcqRel);
        lock(&LATER).extend(waiting);
    }
}

/// Whether a kernel stays in a context.
pub(crate) fn stays_in(context: usize) -> bool {
    let stays = lock(&STAYS);
    stays.kernels.iter().any(|it| it.context == context)
}

/// Whether captures of this crate's run.
pub(crate) fn captures_run() -> bool {
    CAPTURES.load(Ordering::Acquire) > 0
}

/// Counts a capture that begins.
pub(crate) fn capture_begins() {
    CAPTURES.fetch_add(1, Ordering::AcqRel);
}

/// Counts a capture that has ended.
pub(crate) fn capture_ended() {
    CAPTURES.fetch_sub(1, Ordering::AcqRel);
}

/// Destroys what was left behind, as far as that is possible now.
#[inline]
pub(crate) fn drain() {
    if LEFT.load(Ordering::Acquire) > 0 && !inside() {
        drain_all();
    }
}

#[cold]
fn drain_all() {
    let mut panicked = None;
    // Once each, one by one: what takes long is not in the way of another thread's pass. And what
    // is left because something is destroyed now, as what waited for a kernel that has stayed.
    let mut count = lock(&LATER).len();
    let (mut asked, mut again) = (0, 0);
    while asked < count.min(MOST_ASKED) {
        let Some(mut destroy) = lock(&LATER).pop_front() else {
            break;
        };
        asked += 1;
        let before = LEFT.load(Ordering::Acquire);
        // What is dropped in there may be the user's and panic. The others
        // must not be lost for that: they hold what work may still use.
        let answer = catch_unwind(AssertUnwindSafe(&mut destroy)).unwrap_or_else(|payload| {
            panicked.get_or_insert(payload);
            Destroyed::Yes
        });
        let more = LEFT.load(Ordering::Acquire).saturating_sub(before);
        match answer {
            Destroyed::Yes => drop(LEFT.fetch_sub(1, Ordering::AcqRel)),
            answer => {
                keep(destroy, answer);
                again += 1;
            }
        }
        if more > 0 {
            // Behind those that were asked in vain.
            count += more + again;
            again = 0;
        }
    }
    if let Some(payload) = panicked {
        resume_unwind(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left for later is the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn one_pass_reaches_what_it_leaves_itself() {
        let _alone = lock(&ALONE);
        static DONE: AtomicUsize = AtomicUsize::new(0);
        fn leaves(more: usize) {
            let mut is_left = false;
            outside(move || {
                if !std::mem::replace(&mut is_left, true) {
                    return Destroyed::NotYet;
                }
                if more > 0 {
                    leaves(more - 1);
                }
                DONE.fetch_add(1, Ordering::SeqCst);
                Destroyed::Yes
            });
        }
        // Some stay in the way.
        let (hold, held) = (std::sync::Arc::new(()), [(); 3]);
        for () in held {
            let holds = std::sync::Arc::downgrade(&hold);
            outside(move || match holds.upgrade() {
                Some(_) => Destroyed::NotYet,
                None => Destroyed::Yes,
            });
        }
        leaves(4);
        drain();
        assert_eq!(DONE.load(Ordering::SeqCst), 5);
        drop(hold);
        drain();
    }

    #[test]
    fn a_panic_in_one_destruction_does_not_lose_the_others() {
        let _alone = lock(&ALONE);
        static SECOND: AtomicUsize = AtomicUsize::new(0);
        static THIRD: AtomicUsize = AtomicUsize::new(0);
        enter(|| {
            outside(|| panic!("a user's drop"));
            outside(|| match SECOND.fetch_add(1, Ordering::SeqCst) {
                0 => Destroyed::NotYet,
                _ => Destroyed::Yes,
            });
            outside(|| {
                THIRD.fetch_add(1, Ordering::SeqCst);
                Destroyed::Yes
            });
        });
        let told = catch_unwind(drain).expect_err("the panic is passed on");
        assert_eq!(told.downcast_ref::<&str>(), Some(&"a user's drop"));
        // The second was not done the first time.
        drain();
        drain();
        let ran = [&SECOND, &THIRD].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(ran, [2, 1]);
    }
}
