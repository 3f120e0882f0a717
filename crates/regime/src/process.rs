//! The process's one governor, and each thread's seat at it.
//!
//! Invariant: the child of a fork is not governed: what the parent's figures
//! say is not true of it, and a driver that was used does not work in it. A
//! child of a process that had not used the driver yet is governed by itself.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fercuda_cuda_sys::types::CUresult;
use fercuda_cuda_sys::{Driver, Missing};
pub(crate) use fercuda_governor::answer;
use fercuda_governor::{Governor, ThreadContext};
use fercuda_ledger::Ledger;

use crate::below;
use crate::{say, settings, trace};

static GOVERNOR: OnceLock<Option<Box<Governor>>> = OnceLock::new();

thread_local! {
    static SEAT: RefCell<Kept> = const { RefCell::new(Kept(None)) };
}

/// A thread's seat, once it has one.
struct Kept(Option<ThreadContext<'static>>);

impl Drop for Kept {
    fn drop(&mut self) {
        // At a thread's end nothing may unwind.
        let seat = self.0.take();
        guarded(|| {
            drop(seat);
            Some(())
        });
    }
}

/// The governor; none where nothing is governed.
#[inline]
pub fn governor() -> Option<&'static Governor> {
    let governor = match GOVERNOR.get() {
        Some(governor) => governor,
        // Outside of any guard, as doors look here first.
        None => first(),
    };
    #[cfg(feature = "broken-rules")]
    crate::broken::fail();
    let governor: &'static Governor = governor.as_deref()?;
    governor.ledger().is_mine().then_some(governor)
}

#[cold]
fn first() -> &'static Option<Box<Governor>> {
    // Before a driver is named there is nothing to govern, but there may be.
    static NOT_YET: Option<Box<Governor>> = None;
    if below::placed().is_none() {
        return &NOT_YET;
    }
    let driver = below::driver();
    GOVERNOR.get_or_init(|| guarded(|| begin(driver?)))
}

/// The governor if it is there, for who must not begin it: none before that,
/// and then none where nothing is governed.
pub fn begun() -> Option<Option<&'static Governor>> {
    let governor: Option<&'static Governor> = GOVERNOR.get()?.as_deref();
    Some(governor.filter(|governor| governor.ledger().is_mine()))
}

/// Others wait until it has begun, in whatever they hold; so nothing here comes
/// to the loader, who has let `below` have all that is needed.
#[cold]
fn begin(driver: &'static Driver) -> Option<Box<Governor>> {
    let config = settings::config();
    let (ledger, warning) = Ledger::open(config.run);
    if let Some(warning) = warning {
        say(&warning.to_string());
    }
    let governor = Governor::new(driver, ledger, config.clone());
    governor.on_missing_pool(say);
    // SAFETY: the library is never unloaded, and `at_exit` does not unwind.
    let _it_is_only_for_last_figures = unsafe { libc::atexit(at_exit) };
    Some(Box::new(governor))
}

/// Takes the last figures. The driver may be gone: then it says so.
extern "C" fn at_exit() {
    guarded(|| {
        let governor = governor()?;
        governor.reconcile_all();
        governor.sharing_ends();
        trace::finish();
        Some(())
    });
}

/// Threads that have a seat, by number.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// Runs `work` with the calling thread's seat; none where nothing is governed,
/// or if `work` has failed in a way that it should not have.
#[inline]
pub(crate) fn seated<R>(work: impl FnOnce(&mut ThreadContext<'static>) -> Option<R>) -> Option<R> {
    guarded(|| {
        let mut work = Some(work);
        let done = SEAT.try_with(|seat| {
            // Taken if the driver calls back while it works for this thread.
            let mut seat = seat.try_borrow_mut().ok()?;
            let seat = match &mut seat.0 {
                Some(seat) if seat.is_mine() => {
                    #[cfg(feature = "broken-rules")]
                    crate::broken::fail();
                    seat
                }
                none_or_anothers => {
                    let governor = governor()?;
                    none_or_anothers
                        .get_or_insert_with(|| ThreadContext::new(governor, next_number()))
                }
            };
            Some(work.take()?(seat))
        });
        match (done, work) {
            (Ok(Some(result)), _) => result,
            // The thread is at its end, or here already; or nothing is governed.
            (_, Some(work)) => work(&mut ThreadContext::for_teardown(governor()?, 0)),
            _ => None,
        }
    })
}

/// Runs `work` with the seat that the calling thread has already; none if it has
/// none of its own, or is at work with it.
#[inline]
pub fn already_seated<R>(work: impl FnOnce(&mut ThreadContext<'static>) -> Option<R>) -> Option<R> {
    guarded(|| {
        let done = SEAT.try_with(|seat| {
            let mut seat = seat.try_borrow_mut().ok()?;
            let seat = seat.0.as_mut().filter(|seat| seat.is_mine())?;
            #[cfg(feature = "broken-rules")]
            crate::broken::fail();
            work(seat)
        });
        done.ok()?
    })
}

/// The calling thread may have no current context any more.
pub(crate) fn turned() {
    guarded(|| {
        let told = SEAT.try_with(|seat| match seat.try_borrow_mut() {
            Ok(mut seat) => seat.0.iter_mut().for_each(ThreadContext::forget_current),
            // In use, and the driver has called the program back: then all forget.
            Err(_) => governor().into_iter().for_each(Governor::changed),
        });
        told.ok()
    });
}

/// Keeps a defect of ours from unwinding into the program.
#[inline]
pub fn guarded<R>(work: impl FnOnce() -> Option<R>) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Relaxed) {
            say("a call could not be governed because of a defect; the driver answers it");
        }
        None
    })
}

/// Runs work of ours around a call of the driver, of which it makes none, one
/// or several. If the work fails in a way that it should not have, the program
/// hears what the driver answered last; where nothing is governed, or the driver
/// was not asked before, that is all that is done.
pub(crate) fn around(
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    work: impl FnOnce(&'static Governor, &dyn Fn() -> CUresult) -> CUresult,
) -> CUresult {
    let last = Cell::new(None);
    let asked = || {
        let answer = ask(&call);
        last.set(Some(answer));
        answer
    };
    let done = guarded(|| Some(work(governor()?, &asked)));
    done.or(last.get()).unwrap_or_else(asked)
}

/// What the driver below answers.
pub(crate) fn ask(call: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>) -> CUresult {
    below::driver().map_or(CUresult::CUDA_ERROR_STUB_LIBRARY, |driver| {
        answer(call(driver))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_nothing_and_what_does_not_is_itself() {
        assert_eq!(guarded(|| Some(7)), Some(7));
        assert_eq!(
            guarded(|| -> Option<u32> { panic!("as a test wants it") }),
            None
        );
    }
}
