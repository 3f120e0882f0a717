//! Requests to the caching allocators of a Python process to release memory that they do not use,
//! when another library's allocation would fail.
//!
//! A thread that holds the interpreter asks by itself; any other has a helper thread ask, and waits
//! a bounded time ([`PATIENCE`]). Each owner is asked by its own documented function.
//!
//! Invariants: no lock of ours is held while an owner is asked or a helper waited for. The owner
//! whose allocation failed is never asked: it releases its cache by itself, and the calling thread
//! may hold its lock. Allocations of an owner while it is asked ask no other.
//!
//! Elsewhere: when to ask (`interposed`), Python's C interface (`python`), which thread waits for
//! which (`rounds`).

mod python;
mod rounds;

use core::ffi::{CStr, c_void};
use std::cell::Cell;
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use fercuda_governor::Governor;
use fercuda_ledger::{LedgerDevice, Tenant};

use crate::process::{catch_panic, governor};
use crate::settings;
use python::Interpreter;
use rounds::{MAX_OWNERS, Rounds};

/// How long a thread that does not hold the interpreter waits for one that does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// A library with a caching allocator.
struct CacheOwner {
    /// Its tenant's name.
    tenant: &'static str,
    /// Python statements that release its cache on the device `{device}`, if it is in use.
    release: &'static str,
}

const OWNERS: [CacheOwner; 2] = [
    CacheOwner {
        tenant: "torch",
        release: "\
import sys
cuda = getattr(sys.modules.get('torch'), 'cuda', None)
if cuda is not None and cuda.is_initialized():
    cuda.empty_cache()
",
    },
    CacheOwner {
        tenant: "cupy",
        release: "\
import sys
cupy = sys.modules.get('cupy')
if cupy is not None:
    with cupy.cuda.Device({device}):
        cupy.get_default_memory_pool().free_all_blocks()
",
    },
];
const _: () = assert!(OWNERS.len() <= MAX_OWNERS);

static ROUNDS: Rounds = Rounds::new();
/// The device on which memory was missing last, for the helper.
static LAST_DEVICE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread asks owners at the moment.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Asks the owners of caches, other than `caller`, to release what they do not use on a device.
/// Returns whether they were asked, so that another attempt is worth it.
#[cold]
pub(crate) fn ask(device: u32, caller: Tenant) -> bool {
    let asked = catch_panic(|| {
        if settings::config().keep_caches || IS_ASKING.try_with(Cell::get).unwrap_or(true) {
            return None;
        }
        let owners = owners_with_memory(governor()?, device, caller)?;
        let python = Interpreter::find()?;
        if python.is_attached() {
            release_all(&python, device, owners.asked);
            return Some(true);
        }
        LAST_DEVICE.store(device, Relaxed);
        Some(ROUNDS.wait(owners.caller, PATIENCE, start_helper))
    });
    asked == Some(true)
}

/// The owners to ask, as bits, and the one that the calling thread belongs to.
struct AskedOwners {
    asked: u32,
    caller: Option<usize>,
}

/// The owners that hold memory on a device and are not the caller; `None` if there are none.
fn owners_with_memory(governor: &Governor, device: u32, caller: Tenant) -> Option<AskedOwners> {
    let mut owners = AskedOwners {
        asked: 0,
        caller: None,
    };
    for (tenant, name) in governor.tenants() {
        let Some(owner) = OWNERS.iter().position(|owner| owner.tenant == name) else {
            continue;
        };
        if tenant == caller {
            owners.caller = Some(owner);
            continue;
        }
        let pooled = governor.device(device)?.live_of(tenant).0;
        let row = LedgerDevice::new(device);
        if pooled > 0 || governor.ledger().governed(row, tenant) > 0 {
            owners.asked |= 1 << owner;
        }
    }
    (owners.asked != 0).then_some(owners)
}

/// Asks those owners (bits) none of whose threads waits. The calling thread holds the interpreter.
///
/// No value here needs to be dropped while Python runs: it may end the thread.
fn release_all(python: &Interpreter, device: u32, owners: u32) {
    let _an_exiting_thread_asks_too = IS_ASKING.try_with(|it| it.set(true));
    for owner in 0..OWNERS.len() {
        if owners & 1 << owner != 0 && ROUNDS.may_ask(owner) {
            let statements = statements_of(owner, device);
            // SAFETY: the thread holds the interpreter; see above.
            unsafe { python.run(statements) };
            ROUNDS.asked(owner);
        }
    }
    let _as_above = IS_ASKING.try_with(|it| it.set(false));
}

/// The statements of an owner for a device, which are kept for good.
fn statements_of(owner: usize, device: u32) -> &'static CStr {
    const DEVICES: usize = 64;
    static TEXTS: [[OnceLock<CString>; DEVICES]; OWNERS.len()] =
        [const { [const { OnceLock::new() }; DEVICES] }; OWNERS.len()];
    let Some(text) = TEXTS[owner].get(device as usize) else {
        return c"";
    };
    text.get_or_init(|| {
        let text = OWNERS[owner].release;
        CString::new(text.replace("{device}", &device.to_string())).unwrap_or_default()
    })
}

/// Starts the helper, a thread with nothing below it that would have to be dropped.
fn start_helper() -> bool {
    let mut thread: libc::pthread_t = 0;
    // SAFETY: both types differ in what may happen to the thread alone: it may be ended by the
    // interpreter, which the C library's own frames below it expect.
    let main = unsafe {
        core::mem::transmute::<
            extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(help)
    };
    // SAFETY: `thread` outlives the call; `help` uses no argument. All signals are blocked in the
    // new thread, which inherits the mask, so that the program's handlers run in its own threads.
    unsafe {
        let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&mut all);
        if libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) != 0 {
            return false;
        }
        let null = core::ptr::null_mut();
        let created = libc::pthread_create(&mut thread, core::ptr::null(), main, null) == 0;
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        created && libc::pthread_detach(thread) == 0
    }
}

/// The helper: rounds, for as long as the process lives.
extern "C-unwind" fn help(_: *mut c_void) -> *mut c_void {
    loop {
        ROUNDS.begin();
        if let Some(python) = Interpreter::find() {
            // SAFETY: the thread holds the interpreter only between the two; nothing here or below
            // has anything to drop.
            unsafe {
                let attached = python.attach();
                release_all(&python, LAST_DEVICE.load(Relaxed), u32::MAX);
                python.detach(attached);
            }
        }
        ROUNDS.end();
    }
}
