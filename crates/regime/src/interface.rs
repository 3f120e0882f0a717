//! C interface to the governed pool for other libraries of the process.
//!
//! A library can set the tenant of a thread's calls, read what a tenant holds, trim a
//! pool, and take requests for its runtime. A library with interposed functions of its
//! own, such as the runtime in a process without the hook, first looks for those of
//! others ([`find`]), so that the process has one pool.
//!
//! Invariant: the table's C functions never change within a version, which is part of
//! the symbol's name; none of them unwinds.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::num::NonZeroU64;
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use fercuda_ledger::{DEVICES, EventKind, Governed, LedgerDevice, LedgerEvent, Tenant};
pub use fercuda_ledger::{RebootFailure, RebootOutcome};

use crate::caller;
pub use crate::caller::BY_ADDRESS;
use crate::process::{catch_panic, governor, governor_if_started};
use crate::real_driver::real_driver;
use crate::substitute::{function_of, is_disabled};

/// The version of [`Interface`].
pub const VERSION: u32 = 4;

/// The symbol of [`fercuda_regime_4`].
const NAME: &CStr = c"fercuda_regime_4";

/// A tenant's memory on a device, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantFigures {
    /// Live blocks of the pool.
    pub pooled: u64,
    /// The number of those blocks.
    pub blocks: u64,
    /// Memory that the driver allocated and that is charged, host memory included.
    pub governed: u64,
}

/// The ledger's figures of the process, summed over its devices.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// Allocations from the pools since the process began.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
    /// Live blocks of the pools, in bytes.
    pub live: u64,
    /// The sum of the devices' peaks, in bytes.
    pub peak: u64,
    /// Memory that the driver allocated and that is charged, host memory included, in
    /// bytes.
    pub governed: u64,
    /// What the driver uses for contexts and code, in bytes, as of its last query.
    pub overhead: u64,
    /// Allocations that a pool should have served and the driver did.
    pub fallbacks: u64,
    /// 1 if the figures changed during the read.
    pub racing: u64,
}

/// The table of C functions; see the module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// [`VERSION`].
    pub version: u32,
    tenant: unsafe extern "C" fn(name: *const u8, bytes: usize) -> u32,
    act_as: extern "C" fn(tenant: u32) -> u32,
    record_limit: extern "C" fn(device: u32, tenant: u32, bytes: u64),
    usage: unsafe extern "C" fn(device: u32, tenant: u32, into: *mut TenantFigures) -> c_int,
    trim: extern "C" fn(device: u32, patience_us: u64) -> u64,
    holders: unsafe extern "C" fn(device: u32, to: *mut c_void, each: HolderCallback),
    next_epoch: extern "C" fn(device: u32) -> u64,
    function: unsafe extern "C" fn(name: *const u8, bytes: usize) -> *mut c_void,
    figures: unsafe extern "C" fn(into: *mut ProcessFigures) -> c_int,
    note_runtime: extern "C" fn(device: u32, is_open: c_int),
    accept_requests: extern "C" fn(device: u32, accept: c_int) -> c_int,
    take_request: extern "C" fn(device: u32) -> u64,
    answer_request:
        unsafe extern "C" fn(device: u32, number: u64, state: u64, detail: *const [u64; 3]),
}

/// Receives one tenant that holds memory: its name, of `bytes` bytes, and its usage.
type HolderCallback = unsafe extern "C" fn(
    to: *mut c_void,
    name: *const u8,
    bytes: usize,
    usage: *const TenantFigures,
);

/// Guard that charges the calling thread's calls to a tenant until it is dropped.
#[derive(Debug)]
pub struct ActingTenant {
    interface: &'static Interface,
    before: u32,
    /// The setting that it restores is per thread.
    _not_send: core::marker::PhantomData<*const ()>,
}

impl Drop for ActingTenant {
    fn drop(&mut self) {
        (self.interface.act_as)(self.before);
    }
}

impl Interface {
    /// The tenant of this name, created if the ledger has room; else the tenant that
    /// collects all others.
    pub fn tenant(&self, name: &str) -> u32 {
        // SAFETY: the bytes outlive the call.
        unsafe { (self.tenant)(name.as_ptr(), name.len()) }
    }

    /// Charges the calling thread's calls to `tenant` until the guard is dropped, whatever
    /// code makes them.
    pub fn act_as(&'static self, tenant: u32) -> ActingTenant {
        ActingTenant {
            interface: self,
            before: (self.act_as)(tenant),
            _not_send: core::marker::PhantomData,
        }
    }

    /// Records a tenant's limit on a device in the ledger; 0 for none. Enforcing it is the
    /// caller's responsibility.
    pub fn record_limit(&self, device: u32, tenant: u32, bytes: u64) {
        (self.record_limit)(device, tenant, bytes);
    }

    /// A tenant's memory on a device; `None` if that device is not governed.
    pub fn usage(&self, device: u32, tenant: u32) -> Option<TenantFigures> {
        let mut usage = TenantFigures::default();
        // SAFETY: `usage` outlives the call.
        let is_governed = unsafe { (self.usage)(device, tenant, &mut usage) } == 0;
        is_governed.then_some(usage)
    }

    /// Returns the unused memory of a device's pool to the driver, and the number of bytes.
    /// Waits about `patience` at most for queued work behind which memory becomes free.
    pub fn trim(&self, device: u32, patience: Duration) -> u64 {
        (self.trim)(device, patience.as_micros() as u64)
    }

    /// The tenants that hold memory of a device, by name.
    pub fn holders(&self, device: u32) -> Vec<(String, TenantFigures)> {
        unsafe extern "C" fn each(
            to: *mut c_void,
            name: *const u8,
            bytes: usize,
            usage: *const TenantFigures,
        ) {
            // SAFETY: `to` is what `holders` passes below; all arguments outlive the call.
            let (to, name, usage) = unsafe {
                let to = &mut *to.cast::<Vec<(String, TenantFigures)>>();
                (to, core::slice::from_raw_parts(name, bytes), *usage)
            };
            to.push((String::from_utf8_lossy(name).into_owned(), usage));
        }
        let mut all: Vec<(String, TenantFigures)> = Vec::new();
        // SAFETY: `all` outlives the call, and only `each` uses it during the call.
        unsafe { (self.holders)(device, (&raw mut all).cast(), each) };
        all
    }

    /// The function of an exported name of the driver: the interposed one, or else the
    /// driver's own.
    pub fn function(&self, name: &str) -> Option<NonNull<c_void>> {
        // SAFETY: the bytes outlive the call.
        NonNull::new(unsafe { (self.function)(name.as_ptr(), name.len()) })
    }

    /// Starts a new epoch of a device's memory, records it in the ledger and returns its
    /// number.
    pub fn next_epoch(&self, device: u32) -> u64 {
        (self.next_epoch)(device)
    }

    /// The process's figures; `None` if no call is governed. Reads the whole ledger, so it
    /// is for monitoring, not for each allocation.
    pub fn figures(&self) -> Option<ProcessFigures> {
        let mut figures = ProcessFigures::default();
        // SAFETY: `figures` outlives the call.
        let is_governed = unsafe { (self.figures)(&mut figures) } == 0;
        is_governed.then_some(figures)
    }

    /// Records in the ledger that a runtime for a device was opened or closed.
    pub fn note_runtime(&self, device: u32, is_open: bool) {
        (self.note_runtime)(device, c_int::from(is_open));
    }

    /// Starts accepting requests for a device's runtime, which the ledger advertises, until
    /// [`Interface::stop_accepting_requests`]. Returns false if this process accepts them
    /// already, or if no call is governed.
    pub fn accept_requests(&self, device: u32) -> bool {
        (self.accept_requests)(device, 1) == 0
    }

    /// Stops what an [`Interface::accept_requests`] that returned true started.
    pub fn stop_accepting_requests(&self, device: u32) {
        (self.accept_requests)(device, 0);
    }

    /// Takes the next request to reboot a device's runtime. Only one thread, of the library
    /// that accepts the device's requests, may call this; it has to answer the request.
    pub fn take_request(&self, device: u32) -> Option<NonZeroU64> {
        NonZeroU64::new((self.take_request)(device))
    }

    /// Answers a request with its outcome.
    pub fn answer_request(&self, device: u32, number: NonZeroU64, outcome: RebootOutcome) {
        let (state, detail) = outcome.words();
        // SAFETY: `detail` outlives the call.
        unsafe { (self.answer_request)(device, number.get(), state, &detail) };
    }
}

static INTERFACE: Interface = Interface {
    version: VERSION,
    tenant,
    act_as,
    record_limit,
    usage,
    trim,
    holders,
    next_epoch,
    function,
    figures,
    note_runtime,
    accept_requests,
    take_request,
    answer_request,
};

/// Returns this library's table, or null if it has no driver interposed.
// SAFETY: nothing else has a name like this.
#[unsafe(no_mangle)]
pub extern "C" fn fercuda_regime_4() -> *const Interface {
    match own() {
        Some(interface) => interface,
        None => core::ptr::null(),
    }
}

/// The interface of this library, if it has a driver interposed.
pub fn own() -> Option<&'static Interface> {
    real_driver()??;
    (!is_disabled()).then_some(&INTERFACE)
}

type InterfaceGetter = extern "C" fn() -> *const Interface;

/// The interface of the library of this process that has a driver interposed.
pub fn find() -> Option<&'static Interface> {
    if let Some(own) = own() {
        return Some(own);
    }
    // SAFETY: a name, and the handle that searches all libraries.
    let exported = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    // Libraries that were opened without RTLD_GLOBAL.
    let local = objects();
    let local = local.iter().map(|object| symbol_of(object));
    std::iter::once(exported).chain(local).find_map(|getter| {
        if getter.is_null() || getter == fercuda_regime_4 as *mut c_void {
            return None;
        }
        // SAFETY: only libraries of this project have a function of this name, and it has
        // this type.
        let getter = unsafe { core::mem::transmute::<*mut c_void, InterfaceGetter>(getter) };
        // SAFETY: null or a table that lives as long as the process: a library with
        // interposed functions is not unloaded.
        let found = unsafe { getter().as_ref() }?;
        (found.version == VERSION).then_some(found)
    })
}

/// The symbol [`NAME`] of a loaded object, or null. An object that has it is kept loaded.
fn symbol_of(object: &CStr) -> *mut c_void {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name outlives the calls; with RTLD_NOLOAD nothing is loaded.
    unsafe {
        let handle = libc::dlopen(object.as_ptr(), flags);
        if handle.is_null() {
            return core::ptr::null_mut();
        }
        let symbol = libc::dlsym(handle, NAME.as_ptr());
        // A library with the symbol stays open: its functions may be called from now on.
        if symbol.is_null() {
            libc::dlclose(handle);
        }
        symbol
    }
}

/// The file names of the loaded objects.
fn objects() -> Vec<CString> {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _: usize,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description, and the vector that `objects` passes.
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
    let found = catch_panic(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { core::slice::from_raw_parts(name, bytes) };
        let tenant = governor()?.tenant(&String::from_utf8_lossy(name));
        u32::try_from(tenant.index()).ok()
    });
    found.unwrap_or(0)
}

extern "C" fn act_as(tenant: u32) -> u32 {
    catch_panic(|| Some(caller::act_as(tenant))).unwrap_or(BY_ADDRESS)
}

extern "C" fn record_limit(device: u32, tenant: u32, bytes: u64) {
    catch_panic(|| {
        let ledger = governor()?.ledger();
        ledger.set_tenant_limit(
            LedgerDevice::new(device),
            Tenant::from_index(tenant)?,
            bytes,
        );
        Some(())
    });
}

unsafe extern "C" fn usage(device: u32, tenant: u32, into: *mut TenantFigures) -> c_int {
    let found = catch_panic(|| {
        let governor = governor()?;
        let tenant = Tenant::from_index(tenant)?;
        let (pooled, blocks) = governor.device(device)?.live_of(tenant);
        let governed = governor
            .ledger()
            .governed(LedgerDevice::new(device), tenant);
        Some(TenantFigures {
            pooled,
            blocks,
            governed,
        })
    });
    match found {
        Some(usage) if !into.is_null() => {
            // SAFETY: not null; the caller's.
            unsafe { into.write(usage) };
            0
        }
        _ => 1,
    }
}

extern "C" fn trim(device: u32, patience_us: u64) -> u64 {
    let done = catch_panic(|| {
        let governor: Option<_> = governor_if_started()?;
        let patience = Duration::from_micros(patience_us);
        Some(governor?.device(device)?.trim_within(patience))
    });
    done.unwrap_or(0)
}

unsafe extern "C" fn holders(device: u32, to: *mut c_void, each: HolderCallback) {
    catch_panic(|| {
        let governor = governor()?;
        let device_of = governor.device(device);
        let mut seen = 0u64;
        for (tenant, name) in governor.tenants() {
            // Tenants for which the ledger has no row of their own share one.
            let row = 1 << tenant.index();
            if seen & row != 0 {
                continue;
            }
            seen |= row;
            let name = if tenant == Tenant::OTHERS {
                "others".to_owned()
            } else {
                name
            };
            let live = device_of.map_or((0, 0), |device| device.live_of(tenant));
            let usage = TenantFigures {
                pooled: live.0,
                blocks: live.1,
                governed: governor
                    .ledger()
                    .governed(LedgerDevice::new(device), tenant),
            };
            if usage != TenantFigures::default() {
                // SAFETY: the caller's promise; name and figures outlive the call.
                unsafe { each(to, name.as_ptr(), name.len(), &usage) };
            }
        }
        Some(())
    });
}

unsafe extern "C" fn function(name: *const u8, bytes: usize) -> *mut c_void {
    let found = catch_panic(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { core::slice::from_raw_parts(name, bytes) };
        function_of(real_driver()??.driver, std::str::from_utf8(name).ok()?)
    });
    found.map_or(core::ptr::null_mut(), NonNull::as_ptr)
}

extern "C" fn next_epoch(device: u32) -> u64 {
    let next = catch_panic(|| {
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

unsafe extern "C" fn figures(into: *mut ProcessFigures) -> c_int {
    let found = catch_panic(|| {
        let snapshot = governor()?.ledger().snapshot().ok()?;
        let mut figures = ProcessFigures {
            racing: u64::from(snapshot.racing),
            ..ProcessFigures::default()
        };
        for device in &snapshot.devices {
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

extern "C" fn note_runtime(device: u32, is_open: c_int) {
    catch_panic(|| {
        governor()?
            .ledger()
            .note_runtime(LedgerDevice::new(device), is_open != 0);
        Some(())
    });
}

/// The devices for which this process accepts requests, one bit per ledger row. Not in the
/// ledger, which other processes may write.
static ACCEPTING: AtomicU32 = AtomicU32::new(0);
/// The last request taken, by ledger row.
static LAST_REQUEST: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
const _: () = assert!(DEVICES <= 32);

/// The ledger row of a device.
fn row_of(device: u32) -> usize {
    (device as usize).min(DEVICES - 1)
}

extern "C" fn accept_requests(device: u32, accept: c_int) -> c_int {
    let bit = 1 << row_of(device);
    let done = catch_panic(|| {
        let ledger = governor()?.ledger();
        if accept == 0 {
            ledger.note_requests(LedgerDevice::new(device), false);
            ACCEPTING.fetch_and(!bit, AcqRel);
            return Some(());
        }
        (ACCEPTING.fetch_or(bit, AcqRel) & bit == 0)
            .then(|| ledger.note_requests(LedgerDevice::new(device), true))
    });
    c_int::from(done.is_none())
}

extern "C" fn take_request(device: u32) -> u64 {
    let number = catch_panic(|| {
        if ACCEPTING.load(Acquire) & 1 << row_of(device) == 0 {
            return None;
        }
        let last = &LAST_REQUEST[row_of(device)];
        let number = governor()?
            .ledger()
            .take_request(device, last.load(Relaxed))?;
        last.store(number.get(), Relaxed);
        Some(number.get())
    });
    number.unwrap_or(0)
}

unsafe extern "C" fn answer_request(device: u32, number: u64, state: u64, detail: *const [u64; 3]) {
    catch_panic(|| {
        // SAFETY: the caller's promise.
        let detail = unsafe { *detail };
        let outcome = RebootOutcome::from_words(state, detail)?;
        let ledger = governor()?.ledger();
        ledger.answer(LedgerDevice::new(device), NonZeroU64::new(number)?, outcome);
        Some(())
    });
}
