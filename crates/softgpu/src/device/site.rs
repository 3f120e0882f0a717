//! Names of driver calls and threads that are the same in two runs of a program.
//!
//! A thread's first use of a thread-local with a destructor takes the loader's lock, to register
//! it. A caller may hold a lock of its own around a call that allocates, and a library's
//! constructor may wait for that lock while it holds the loader's: a deadlock. So `cuInit` and
//! `cuCtxGetCurrent`, which callers make before they take such locks, register what this thread
//! will need ([`prepare_thread`], and `context` likewise for its stack of contexts).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use crate::mem::DriverCallSite;

/// Whether calls are traced to where the program makes them.
static TRACED: AtomicBool = AtomicBool::new(false);

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

/// Frames looked at: those of this library and of wrappers, then the program's.
const FRAMES: usize = 24;

/// Traces calls from now on.
pub(crate) fn trace_callers() {
    TRACED.store(true, Ordering::Relaxed);
    // The first trace loads the unwinder's library, which is better done here than in a call that
    // is made under a lock.
    caller();
}

/// The innermost caller outside of this library and the hook; 0 if there is none, or calls are not
/// traced.
fn caller() -> usize {
    if !TRACED.load(Ordering::Relaxed) {
        return 0;
    }
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: writes at most as many addresses as there is room for.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    let own = object_of(caller as *const () as usize);
    let is_foreign = |address: &usize| {
        let object = object_of(*address);
        let name = object.0.rsplit('/').next().unwrap_or_default();
        object.1 != own.1 && !name.starts_with("libcuda.so") && !name.starts_with("libfercuda")
    };
    let mut addresses = frames[..count.max(0) as usize]
        .iter()
        .map(|it| *it as usize);
    addresses.find(is_foreign).unwrap_or_default()
}

/// The object that an address lies in: its path and where it is loaded; the symbol there.
fn object_of(address: usize) -> (String, usize, Option<(String, usize)>) {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for; the answer is only read if there is one.
    if unsafe { libc::dladdr(address as *const _, &raw mut info) } == 0 {
        return (String::new(), 0, None);
    }
    let text = |name: *const std::ffi::c_char| {
        // SAFETY: names in a loaded object, which ends with a zero; read before it can be
        // unloaded, since its code is on the stack or is the program's.
        let name = (!name.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(name) });
        name.map(|name| name.to_string_lossy().into_owned())
    };
    let symbol = text(info.dli_sname).map(|name| (name, info.dli_saddr as usize));
    let path = text(info.dli_fname).unwrap_or_default();
    (path, info.dli_fbase as usize, symbol)
}

/// A caller as `program+0x1234 (function+0x56)`, which is the same in two runs.
pub(crate) fn caller_name(address: usize) -> Option<String> {
    let (path, base, symbol) = (address != 0).then(|| object_of(address))?;
    if base == 0 {
        return None;
    }
    let file = path.rsplit('/').next().unwrap_or_default();
    let mut name = format!("{file}+{:#x}", address - base);
    if let Some((function, at)) = symbol.filter(|(_, at)| *at <= address) {
        name += &format!(" ({function}+{:#x})", address - at);
    }
    Some(name)
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
                caller: caller(),
            }
        })
        .unwrap_or_else(|_| DriverCallSite {
            call,
            ordinal: 0,
            thread: "an exiting thread".into(),
            caller: 0,
        })
}
