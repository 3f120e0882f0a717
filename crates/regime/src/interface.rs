//! What another library of this process may ask of the doors: whose a thread's calls
//! are, what a tenant holds, that memory be given back, what others ask of its runtime.
//!
//! A library that has doors of its own, as the runtime in a process without the hook,
//! looks for those of others first ([`find`]). So there is one pool, whoever comes.
//!
//! Invariant: the table is one of C functions that never change within a version,
//! which is part of the name that it is found by; none of them unwinds.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::num::NonZeroU64;
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use fercuda_ledger::{DEVICES, EventKind, Governed, LedgerDevice, LedgerEvent, Tenant};
pub use fercuda_ledger::{RebootFailure, RebootOutcome};

use crate::below::placed;
use crate::caller;
use crate::exchange::is_disabled;
use crate::process::{begun, governor, guarded};

/// The version of [`Interface`].
pub const VERSION: u32 = 4;

/// The name under which a library has [`fercuda_regime_4`].
const NAME: &CStr = c"fercuda_regime_4";

/// Nobody: who calls is found by the return address.
pub const BY_ADDRESS: u32 = u32::MAX;

/// What a tenant holds of a device, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Live blocks of the pool.
    pub pooled: u64,
    /// How many those are.
    pub blocks: u64,
    /// What the driver gave by itself, also of the host.
    pub governed: u64,
}

/// What the ledger says of the process, its devices together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Allocations from the pools since the beginning.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Live blocks of the pools, in bytes.
    pub live: u64,
    /// The sum of what was the most on each device.
    pub peak: u64,
    /// What the driver gave by itself, also of the host, in bytes.
    pub governed: u64,
    /// What it takes for contexts and code, in bytes, when it was last asked.
    pub overhead: u64,
    /// Allocations that were for a pool, and that the driver did.
    pub fallbacks: u64,
    /// 1 if the figures changed while they were read.
    pub racing: u64,
}

/// See the module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// [`VERSION`].
    pub version: u32,
    /// The tenant with a name of so many bytes.
    tenant: unsafe extern "C" fn(name: *const u8, bytes: usize) -> u32,
    act_as: extern "C" fn(tenant: u32) -> u32,
    tell_limit: extern "C" fn(device: u32, tenant: u32, bytes: u64),
    held: unsafe extern "C" fn(device: u32, tenant: u32, into: *mut Held) -> c_int,
    trim: extern "C" fn(device: u32, patience_us: u64) -> u64,
    holders: unsafe extern "C" fn(device: u32, to: *mut c_void, each: Each),
    next_epoch: extern "C" fn(device: u32) -> u64,
    function: unsafe extern "C" fn(name: *const u8, bytes: usize) -> *mut c_void,
    figures: unsafe extern "C" fn(into: *mut Figures) -> c_int,
    runtime: extern "C" fn(device: u32, is_open: c_int),
    serve: extern "C" fn(device: u32, does: c_int) -> c_int,
    asked: extern "C" fn(device: u32) -> u64,
    answer: unsafe extern "C" fn(device: u32, number: u64, state: u64, detail: *const [u64; 3]),
}

/// Hears of one who holds memory: a name of so many bytes, and what.
type Each = unsafe extern "C" fn(to: *mut c_void, name: *const u8, bytes: usize, held: *const Held);

/// While this is there the calling thread's calls are a tenant's.
#[derive(Debug)]
pub struct Acting {
    interface: &'static Interface,
    before: u32,
    /// What it puts back is a thread's.
    _not_send: core::marker::PhantomData<*const ()>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        (self.interface.act_as)(self.before);
    }
}

impl Interface {
    /// The tenant of this name, made if there is room: else that of all others.
    pub fn tenant(&self, name: &str) -> u32 {
        // SAFETY: the bytes outlive the call.
        unsafe { (self.tenant)(name.as_ptr(), name.len()) }
    }

    /// From now on, until what comes back is dropped, the thread's calls are charged
    /// to `tenant`, whoever makes them.
    pub fn act_as(&'static self, tenant: u32) -> Acting {
        Acting {
            interface: self,
            before: (self.act_as)(tenant),
            _not_send: core::marker::PhantomData,
        }
    }

    /// Has the ledger say that a tenant may use so much of a device; 0 for no limit.
    /// That it does not use more is the caller's affair.
    pub fn tell_limit(&self, device: u32, tenant: u32, bytes: u64) {
        (self.tell_limit)(device, tenant, bytes);
    }

    /// What a tenant holds of a device; none if nothing is governed there.
    pub fn held(&self, device: u32, tenant: u32) -> Option<Held> {
        let mut held = Held::default();
        // SAFETY: `held` outlives the call.
        let is_there = unsafe { (self.held)(device, tenant, &mut held) } == 0;
        is_there.then_some(held)
    }

    /// Gives back to the driver what a device's pool has and nobody uses, behind what the
    /// device has to do if that takes no longer than `patience`; how many bytes.
    pub fn trim(&self, device: u32, patience: Duration) -> u64 {
        (self.trim)(device, patience.as_micros() as u64)
    }

    /// Everybody who holds something of a device, by name.
    pub fn holders(&self, device: u32) -> Vec<(String, Held)> {
        unsafe extern "C" fn each(
            to: *mut c_void,
            name: *const u8,
            bytes: usize,
            held: *const Held,
        ) {
            // SAFETY: what `holders` gave below, and what it is called with outlives
            // the call.
            let (to, name, held) = unsafe {
                let to = &mut *to.cast::<Vec<(String, Held)>>();
                (to, core::slice::from_raw_parts(name, bytes), *held)
            };
            to.push((String::from_utf8_lossy(name).into_owned(), held));
        }
        let mut all: Vec<(String, Held)> = Vec::new();
        // SAFETY: `all` outlives the call, in which `each` is called alone.
        unsafe { (self.holders)(device, (&raw mut all).cast(), each) };
        all
    }

    /// The driver's function of an exported name, with its door before it if it has one.
    pub fn function(&self, name: &str) -> Option<NonNull<c_void>> {
        // SAFETY: the bytes outlive the call.
        NonNull::new(unsafe { (self.function)(name.as_ptr(), name.len()) })
    }

    /// A device's memory begins anew, which the ledger says; with the how manieth time.
    pub fn next_epoch(&self, device: u32) -> u64 {
        (self.next_epoch)(device)
    }

    /// The process's figures; none if nothing is governed. Reads the whole ledger, so
    /// this is for people and programs that watch, not for each allocation.
    pub fn figures(&self) -> Option<Figures> {
        let mut figures = Figures::default();
        // SAFETY: `figures` outlives the call.
        let is_there = unsafe { (self.figures)(&mut figures) } == 0;
        is_there.then_some(figures)
    }

    /// Has the ledger say that a runtime for a device was opened, or was closed.
    pub fn note_runtime(&self, device: u32, is_open: bool) {
        (self.runtime)(device, c_int::from(is_open));
    }

    /// From now on, until [`Interface::serve_no_more`], the caller looks what others ask of a
    /// device's runtime, as the ledger says. False if somebody of this process does already,
    /// or if nothing is governed.
    pub fn serve(&self, device: u32) -> bool {
        (self.serve)(device, 1) == 0
    }

    /// Ends what a [`Interface::serve`] that said yes began.
    pub fn serve_no_more(&self, device: u32) {
        (self.serve)(device, 0);
    }

    /// Takes the next request, for who serves a device, in one thread: that its runtime
    /// be rebooted. It is to be answered.
    pub fn asked(&self, device: u32) -> Option<NonZeroU64> {
        NonZeroU64::new((self.asked)(device))
    }

    /// Says what a request came to.
    pub fn answer(&self, device: u32, number: NonZeroU64, outcome: RebootOutcome) {
        let (state, detail) = outcome.words();
        // SAFETY: `detail` outlives the call.
        unsafe { (self.answer)(device, number.get(), state, &detail) };
    }
}

static INTERFACE: Interface = Interface {
    version: VERSION,
    tenant,
    act_as,
    tell_limit,
    held,
    trim,
    holders,
    next_epoch,
    function,
    figures,
    runtime,
    serve,
    asked,
    answer,
};

/// The doors' table, if they stand before a driver; else null.
// SAFETY: nothing else has a name like this.
#[unsafe(no_mangle)]
pub extern "C" fn fercuda_regime_4() -> *const Interface {
    match own() {
        Some(interface) => interface,
        None => core::ptr::null(),
    }
}

/// That of this very library, if its doors stand before a driver.
pub fn own() -> Option<&'static Interface> {
    placed()??;
    (!is_disabled()).then_some(&INTERFACE)
}

type Ask = extern "C" fn() -> *const Interface;

/// That of whatever library of the process has doors that stand before a driver.
pub fn find() -> Option<&'static Interface> {
    if let Some(own) = own() {
        return Some(own);
    }
    // SAFETY: a name, and the handle that means all libraries.
    let shown = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    let hidden = objects();
    let hidden = hidden.iter().map(|object| symbol_of(object));
    std::iter::once(shown).chain(hidden).find_map(|ask| {
        if ask.is_null() || ask == fercuda_regime_4 as *mut c_void {
            return None;
        }
        // SAFETY: only libraries of this project have a function of this name, whose
        // type is this.
        let ask = unsafe { core::mem::transmute::<*mut c_void, Ask>(ask) };
        // SAFETY: null or a table that lives as long as the process: who has doors is
        // not unloaded.
        let found = unsafe { ask().as_ref() }?;
        (found.version == VERSION).then_some(found)
    })
}

/// What an object that is loaded has under [`NAME`]. One that has it is kept loaded.
fn symbol_of(object: &CStr) -> *mut c_void {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name outlives the calls, by which nothing is loaded.
    unsafe {
        let handle = libc::dlopen(object.as_ptr(), flags);
        if handle.is_null() {
            return core::ptr::null_mut();
        }
        let symbol = libc::dlsym(handle, NAME.as_ptr());
        // What has it stays: its doors may be called from now on.
        if symbol.is_null() {
            libc::dlclose(handle);
        }
        symbol
    }
}

/// The files of the objects that are loaded.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _: usize,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's own, and what `objects` gave.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: the loader's string.
            let name = unsafe { CStr::from_ptr(name.cast::<c_char>()) };
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `names` outlives the call, which nothing unwinds out of.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut names).cast()) };
    names
}

unsafe extern "C" fn tenant(name: *const u8, bytes: usize) -> u32 {
    let found = guarded(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { core::slice::from_raw_parts(name, bytes) };
        let tenant = governor()?.tenant(&String::from_utf8_lossy(name));
        u32::try_from(tenant.index()).ok()
    });
    found.unwrap_or(0)
}

extern "C" fn act_as(tenant: u32) -> u32 {
    guarded(|| Some(caller::act_as(tenant))).unwrap_or(BY_ADDRESS)
}

extern "C" fn tell_limit(device: u32, tenant: u32, bytes: u64) {
    guarded(|| {
        let ledger = governor()?.ledger();
        ledger.set_tenant_limit(
            LedgerDevice::new(device),
            Tenant::from_index(tenant)?,
            bytes,
        );
        Some(())
    });
}

unsafe extern "C" fn held(device: u32, tenant: u32, into: *mut Held) -> c_int {
    let found = guarded(|| {
        let governor = governor()?;
        let tenant = Tenant::from_index(tenant)?;
        let (pooled, blocks) = governor.device(device)?.live_of(tenant);
        let governed = governor
            .ledger()
            .governed(LedgerDevice::new(device), tenant);
        Some(Held {
            pooled,
            blocks,
            governed,
        })
    });
    match found {
        Some(held) if !into.is_null() => {
            // SAFETY: not null; the caller's.
            unsafe { into.write(held) };
            0
        }
        _ => 1,
    }
}

extern "C" fn trim(device: u32, patience_us: u64) -> u64 {
    let done = guarded(|| {
        let governor: Option<_> = begun()?;
        let patience = Duration::from_micros(patience_us);
        Some(governor?.device(device)?.trim_within(patience))
    });
    done.unwrap_or(0)
}

unsafe extern "C" fn holders(device: u32, to: *mut c_void, each: Each) {
    guarded(|| {
        let governor = governor()?;
        let device_of = governor.device(device);
        let mut told = 0u64;
        for (tenant, name) in governor.tenants() {
            // Those who found no row of their own share one.
            let row = 1 << tenant.index();
            if told & row != 0 {
                continue;
            }
            told |= row;
            let name = if tenant == Tenant::OTHERS {
                "others".to_owned()
            } else {
                name
            };
            let live = device_of.map_or((0, 0), |device| device.live_of(tenant));
            let held = Held {
                pooled: live.0,
                blocks: live.1,
                governed: governor
                    .ledger()
                    .governed(LedgerDevice::new(device), tenant),
            };
            if held != Held::default() {
                // SAFETY: the caller's promise; name and figures outlive the call.
                unsafe { each(to, name.as_ptr(), name.len(), &held) };
            }
        }
        Some(())
    });
}

unsafe extern "C" fn function(name: *const u8, bytes: usize) -> *mut c_void {
    let found = guarded(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { core::slice::from_raw_parts(name, bytes) };
        crate::table::function(placed()??.driver, std::str::from_utf8(name).ok()?)
    });
    found.map_or(core::ptr::null_mut(), NonNull::as_ptr)
}

extern "C" fn next_epoch(device: u32) -> u64 {
    let next = guarded(|| {
        let ledger = governor()?.ledger();
        let row = LedgerDevice::new(device);
        let detail = ledger.epoch(row) + 1;
        ledger.record(LedgerEvent {
            kind: EventKind::Epoch,
            device: row,
            tenant: Tenant::OTHERS,
            bytes: 0,
            address: 0,
            detail,
            stream: 0,
            thread: 0,
        });
        Some(detail)
    });
    next.unwrap_or(0)
}

unsafe extern "C" fn figures(into: *mut Figures) -> c_int {
    let found = guarded(|| {
        let said = governor()?.ledger().snapshot().ok()?;
        let mut figures = Figures {
            racing: u64::from(said.racing),
            ..Figures::default()
        };
        for device in &said.devices {
            figures.allocs += device.allocs;
            figures.frees += device.frees;
            figures.live += device.live_bytes;
            figures.peak += device.peak_bytes;
            for part in &device.governed {
                match part.kind {
                    Governed::Context | Governed::Module => figures.overhead += part.bytes,
                    _ => figures.governed += part.bytes,
                }
            }
            figures.fallbacks += device.event_counts.get(&EventKind::Fallback).unwrap_or(&0);
        }
        Some(figures)
    });
    match found {
        Some(figures) if !into.is_null() => {
            // SAFETY: not null; the caller's.
            unsafe { into.write(figures) };
            0
        }
        _ => 1,
    }
}

extern "C" fn runtime(device: u32, is_open: c_int) {
    guarded(|| {
        governor()?
            .ledger()
            .note_runtime(LedgerDevice::new(device), is_open != 0);
        Some(())
    });
}

/// Rows of devices whose requests somebody takes, a bit each. Kept here and not in the ledger,
/// which others may write.
static SERVED: AtomicU32 = AtomicU32::new(0);
/// By row, the request taken last.
static LAST: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
const _: () = assert!(DEVICES <= 32);

/// The row of a device.
fn row_of(device: u32) -> usize {
    (device as usize).min(DEVICES - 1)
}

extern "C" fn serve(device: u32, does: c_int) -> c_int {
    let bit = 1 << row_of(device);
    let done = guarded(|| {
        let ledger = governor()?.ledger();
        if does == 0 {
            ledger.note_requests(LedgerDevice::new(device), false);
            SERVED.fetch_and(!bit, AcqRel);
            return Some(());
        }
        (SERVED.fetch_or(bit, AcqRel) & bit == 0)
            .then(|| ledger.note_requests(LedgerDevice::new(device), true))
    });
    c_int::from(done.is_none())
}

extern "C" fn asked(device: u32) -> u64 {
    let number = guarded(|| {
        if SERVED.load(Acquire) & 1 << row_of(device) == 0 {
            return None;
        }
        let last = &LAST[row_of(device)];
        let number = governor()?
            .ledger()
            .take_request(device, last.load(Relaxed))?;
        last.store(number.get(), Relaxed);
        Some(number.get())
    });
    number.unwrap_or(0)
}

unsafe extern "C" fn answer(device: u32, number: u64, state: u64, detail: *const [u64; 3]) {
    guarded(|| {
        // SAFETY: the caller's promise.
        let detail = unsafe { *detail };
        let outcome = RebootOutcome::from_words(state, detail)?;
        let ledger = governor()?.ledger();
        ledger.answer(LedgerDevice::new(device), NonZeroU64::new(number)?, outcome);
        Some(())
    });
}
