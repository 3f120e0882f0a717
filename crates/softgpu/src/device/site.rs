//! Names of driver calls and threads that are the same in two runs of a program.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use crate::mem::DriverCallSite;

static THREADS: AtomicU64 = AtomicU64::new(1);

struct Calls {
    thread: Arc<str>,
    counts: FxHashMap<&'static str, u64>,
}

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::new(Calls { thread: thread_name(), counts: FxHashMap::default() });
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
            DriverCallSite {
                call,
                ordinal: *count,
                thread: calls.thread.clone(),
            }
        })
        .unwrap_or_else(|_| DriverCallSite {
            call,
            ordinal: 0,
            thread: "an exiting thread".into(),
        })
}
