//! Names of driver calls and threads that are the same in two runs of a program.
//!
//! A thread's first use of a thread-local with a destructor takes the loader's lock, to register
//! it. A caller may hold a lock of its own around a call that allocates, and a library's
//! constructor may wait for that lock while it holds the loader's: a deadlock. So `cuInit` and
//! `cuCtxGetCurrent`, which callers make before they take such locks, register what this thread
//! will need ([`prepare_thread`], and `context` likewise for its stack of contexts).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use crate::mem::DriverCallSite;

static THREADS: AtomicU64 = AtomicU64::new(1);

#[derive(Default)]
struct Calls {
    /// Set by the first call that is counted.
    thread: Option<Arc<str>>,
    counts: FxHashMap<&'static str, u64>,
}

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::default();
}

/// Registers the destructor of the calling thread's counts; names nothing and counts no call.
pub(crate) fn prepare_thread() {
    // In a thread that is exiting there is nothing left to register.
    CALLS.try_with(|_| ()).ok();
}

/// The main thread by that name, others by their own or by the order of their first call.
fn thread_name() -> Arc<str> {
    // SAFETY: plain system calls. glibc has a function for the second since 2.30 only.
    let main = unsafe { i64::from(libc::getpid()) == libc::syscall(libc::SYS_gettid) };
    match std::thread::current().name() {
        _ if main => "main".into(),
        Some(name) => name.into(),
        None => format!("{}", THREADS.fetch_add(1, Ordering::Relaxed) + 1).into(),
    }
}

/// Counts and names a call that allocates or frees.
pub(crate) fn site(call: &'static str) -> DriverCallSite {
    CALLS
        .try_with(|calls| {
            let mut calls = calls.borrow_mut();
            let count = calls.counts.entry(call).or_default();
            *count += 1;
            let ordinal = *count;
            DriverCallSite {
                call,
                ordinal,
                thread: calls.thread.get_or_insert_with(thread_name).clone(),
            }
        })
        .unwrap_or_else(|_| DriverCallSite {
            call,
            ordinal: 0,
            thread: "an exiting thread".into(),
        })
}
