//! The process-wide governor and each thread's context with it.
//!
//! Invariant: the child of a fork is not governed, since the parent's figures are not
//! the child's, and a driver that was used does not work in a child. A child of a
//! process that had not used the driver yet is governed on its own.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fercuda_cuda_sys::types::CUresult;
use fercuda_cuda_sys::{Driver, Missing};
pub(crate) use fercuda_governor::answer;
use fercuda_governor::{Governor, ThreadContext};
use fercuda_ledger::Ledger;

use crate::{print_diagnostic, real_driver, settings, trace};

static GOVERNOR: OnceLock<Option<Box<Governor>>> = OnceLock::new();

thread_local! {
    static THREAD_CONTEXT: RefCell<ThreadContextSlot> =
        const { RefCell::new(ThreadContextSlot(None)) };
}

/// A thread's context, once it has one.
struct ThreadContextSlot(Option<ThreadContext<'static>>);

impl Drop for ThreadContextSlot {
    fn drop(&mut self) {
        // A destructor of a thread-local may not unwind.
        let context = self.0.take();
        catch_panic(|| {
            drop(context);
            Some(())
        });
    }
}

/// The governor, started by the first call; `None` where no call is governed.
#[inline]
pub fn governor() -> Option<&'static Governor> {
    let governor = match GOVERNOR.get() {
        Some(governor) => governor,
        // Catches panics itself, as interposed functions call this first.
        None => start(),
    };
    #[cfg(debug_assertions)]
    crate::injected_panic::panic_if_requested();
    let governor: &'static Governor = governor.as_deref()?;
    governor.ledger().is_mine().then_some(governor)
}

#[cold]
fn start() -> &'static Option<Box<Governor>> {
    // Before a driver is set no call is governed, but later ones may be.
    static NOT_YET: Option<Box<Governor>> = None;
    if real_driver::real_driver().is_none() {
        return &NOT_YET;
    }
    let driver = real_driver::table();
    GOVERNOR.get_or_init(|| catch_panic(|| create(driver?)))
}

/// The governor, without starting it: `None` before it is started, `Some(None)` where no
/// call is governed.
pub fn governor_if_started() -> Option<Option<&'static Governor>> {
    let governor: Option<&'static Governor> = GOVERNOR.get()?.as_deref();
    Some(governor.filter(|governor| governor.ledger().is_mine()))
}

/// Creates the governor. Other threads wait for this, with whatever locks they hold, so
/// it may not call the loader: `real_driver` has resolved everything before.
#[cold]
fn create(driver: &'static Driver) -> Option<Box<Governor>> {
    let config = settings::config();
    let (ledger, warning) = Ledger::open(config.run);
    if let Some(warning) = warning {
        print_diagnostic(&warning.to_string());
    }
    let governor = Governor::new(driver, ledger, config.clone());
    governor.on_missing_pool(print_diagnostic);
    governor.on_ended_block(trace::record_free);
    // SAFETY: the library is never unloaded, and `at_exit` does not unwind.
    let _only_the_final_figures_depend_on_it = unsafe { libc::atexit(at_exit) };
    Some(Box::new(governor))
}

/// Takes the final figures. The driver may have shut down by then and returns an error.
extern "C" fn at_exit() {
    catch_panic(|| {
        let governor = governor()?;
        governor.reconcile_all();
        governor.sharing_ends();
        trace::flush();
        Some(())
    });
}

/// The number of the next thread that gets a context.
fn next_thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// Runs `work` with the calling thread's context, which is created if the thread has none.
/// Returns `None` where no call is governed, or if `work` panicked.
#[inline]
pub(crate) fn with_thread_context<R>(
    work: impl FnOnce(&mut ThreadContext<'static>) -> Option<R>,
) -> Option<R> {
    catch_panic(|| {
        let mut work = Some(work);
        let done = THREAD_CONTEXT.try_with(|slot| {
            // Borrowed already if the driver calls back while it works for this thread.
            let mut slot = slot.try_borrow_mut().ok()?;
            let context = match &mut slot.0 {
                Some(context) if context.is_mine() => {
                    #[cfg(debug_assertions)]
                    crate::injected_panic::panic_if_requested();
                    context
                }
                none_or_inherited => {
                    let governor = governor()?;
                    none_or_inherited
                        .get_or_insert_with(|| ThreadContext::new(governor, next_thread_number()))
                }
            };
            Some(work.take()?(context))
        });
        match (done, work) {
            (Ok(Some(result)), _) => result,
            // The thread is exiting, or this is a re-entrant call; or no call is governed.
            (_, Some(work)) => work(&mut ThreadContext::for_teardown(governor()?, 0)),
            _ => None,
        }
    })
}

/// Runs `work` with the context that the calling thread has already. Returns `None` if it
/// has none of its own, or if this is a re-entrant call.
#[inline]
pub fn with_existing_thread_context<R>(
    work: impl FnOnce(&mut ThreadContext<'static>) -> Option<R>,
) -> Option<R> {
    catch_panic(|| {
        let done = THREAD_CONTEXT.try_with(|slot| {
            let mut slot = slot.try_borrow_mut().ok()?;
            let context = slot.0.as_mut().filter(|context| context.is_mine())?;
            #[cfg(debug_assertions)]
            crate::injected_panic::panic_if_requested();
            work(context)
        });
        done.ok()?
    })
}

/// Invalidates what the calling thread has cached of its current CUDA context: it may have
/// none any more.
pub(crate) fn invalidate_current_context() {
    catch_panic(|| {
        let done = THREAD_CONTEXT.try_with(|slot| match slot.try_borrow_mut() {
            Ok(mut slot) => slot.0.iter_mut().for_each(ThreadContext::forget_current),
            // In use by an outer call, during which the driver called the program back:
            // all threads' caches are invalidated instead.
            Err(_) => governor().into_iter().for_each(Governor::changed),
        });
        done.ok()
    });
}

/// Runs `work` and returns `None` if it panics: no defect here unwinds into the program.
/// The first panic of the process is reported.
#[inline]
pub fn catch_panic<R>(work: impl FnOnce() -> Option<R>) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        if !REPORTED.swap(true, Relaxed) {
            print_diagnostic(
                "a call could not be governed because of a defect; the driver answers it",
            );
        }
        None
    })
}

/// Runs `work` around a driver call, which `work` makes any number of times. If `work`
/// panics, the driver's last result is returned. Where no call is governed, or if `work`
/// panicked before its first driver call, the driver is called and its result returned.
pub(crate) fn govern_call(
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    work: impl FnOnce(&'static Governor, &dyn Fn() -> CUresult) -> CUresult,
) -> CUresult {
    let last = Cell::new(None);
    let call = || {
        let result = call_driver(&call);
        last.set(Some(result));
        result
    };
    let done = catch_panic(|| Some(work(governor()?, &call)));
    done.or(last.get()).unwrap_or_else(call)
}

/// Calls the real driver and returns its result.
pub(crate) fn call_driver(
    call: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    real_driver::table().map_or(CUresult::CUDA_ERROR_STUB_LIBRARY, |driver| {
        answer(call(driver))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_none_and_any_other_result_is_returned() {
        assert_eq!(catch_panic(|| Some(7)), Some(7));
        assert_eq!(
            catch_panic(|| -> Option<u32> { panic!("as a test wants it") }),
            None
        );
    }
}
