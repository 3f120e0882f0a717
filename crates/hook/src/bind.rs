//! Where each of the driver's functions leads: to the door that governs it, or
//! on to the driver.
//!
//! Pointers from `cuGetProcAddress` are led the same way: the driver is asked
//! for exactly what the caller asked, and its answer is exchanged for the door
//! of that function. So nothing here guesses versions.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::OnceLock;

use fercuda_cuda_sys::types::{CUdriverProcAddressQueryResult, CUresult};
use fercuda_cuda_sys::{ENTRIES, Entry, PER_THREAD, Symbol};
use rustc_hash::FxHashMap;

use crate::doors;
use crate::exports::{self, TYPED};
use crate::real::{Real, real};
use crate::{regime, settings};

/// Whether the kill switch is on: then every function is the driver's own.
pub(crate) fn is_disabled() -> bool {
    settings::get().disabled
}

/// Answers in place of a function on a machine without a driver, as a library
/// that only stands in for one.
extern "C" fn no_driver() -> CUresult {
    CUresult::CUDA_ERROR_STUB_LIBRARY
}

/// Answers in place of a function that the driver has not.
pub(crate) extern "C" fn no_function() -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// The door of a function, if it is governed.
fn door(index: usize) -> Option<NonNull<c_void>> {
    static DOORS: OnceLock<FxHashMap<usize, usize>> = OnceLock::new();
    let doors = DOORS.get_or_init(|| {
        let all = doors::all().into_iter();
        all.map(|(symbol, door)| (symbol as usize, door as usize))
            .collect()
    });
    NonNull::new(*doors.get(&index)? as *mut c_void)
}

/// Functions that make contexts and have no door; other versions begin so.
const UNTOLD: [&str; 2] = ["cuGLCtxCreate", "cuVDPAUCtxCreate"];
/// What else may leave a thread with another current context, or none.
const TOLD: [&str; 4] = [
    "cuCtxCreate",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
];

/// From now on there may be contexts of which no door tells.
#[cold]
fn note() {
    if let Some(governor) = regime::governor() {
        governor.may_have_other_contexts();
    }
}

/// What is given out for a function of that name that has no door. Those that make
/// contexts are noted when they are called, as some ask for all there are.
fn without_door(address: *mut c_void, asked: &[u8]) -> *mut c_void {
    let is_one_of = |names: &[&str]| names.iter().any(|name| name.as_bytes() == asked);
    if is_one_of(&UNTOLD)
        && let Some(real) = real()
    {
        let mut names = exports::UNTYPED.iter();
        let is_it = |name: &&&str| {
            let is_at = |own: NonNull<c_void>| own.as_ptr() == address;
            name.as_bytes().starts_with(asked) && real.find(name).is_some_and(is_at)
        };
        if let Some(jump) = names.find(is_it).and_then(|name| exports::untyped(name)) {
            return jump;
        }
    }
    // Of a version that is not known here.
    if !address.is_null() && (is_one_of(&UNTOLD) || is_one_of(&TOLD)) {
        note();
    }
    address
}

/// Where the function with this slot leads.
pub(crate) fn target(index: usize) -> *mut c_void {
    let Some(real) = real() else {
        return no_driver as *mut c_void;
    };
    let name = exports::name(index);
    if !is_disabled() && UNTOLD.iter().any(|it| name.starts_with(it)) {
        note();
    }
    match real.find(name) {
        None => no_function as *mut c_void,
        // A door stands only where the driver has a function behind it.
        Some(own) if is_disabled() => own.as_ptr(),
        Some(own) => door(index).unwrap_or(own).as_ptr(),
    }
}

/// Doors by the address of the driver's function behind them. Functions that
/// share one address are told apart by the name asked for.
type Exchange = FxHashMap<usize, Vec<(&'static str, usize)>>;

fn exchange_table() -> &'static Exchange {
    static TABLE: OnceLock<Exchange> = OnceLock::new();
    TABLE.get().unwrap_or_else(|| {
        // Made while nobody waits for it: the loader is asked (see `real`).
        let made = made_table();
        TABLE.get_or_init(|| made)
    })
}

#[cold]
fn made_table() -> Exchange {
    let mut table = Exchange::default();
    let Some(real) = real() else { return table };
    for (symbol, _) in doors::all() {
        let (Some(door), Some(base)) = (door(symbol as usize), base(symbol)) else {
            continue;
        };
        let mut addresses: Vec<usize> = Vec::new();
        let exported = real.find(symbol.name());
        addresses.extend(exported.map(|address| address.as_ptr() as usize));
        addresses.extend(ask_the_driver(real, symbol));
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            let entry = table.entry(address).or_default();
            entry.push((base, door.as_ptr() as usize));
        }
    }
    table
}

/// The row of a symbol, and whether it is the per-thread twin.
fn row(symbol: Symbol) -> Option<(&'static Entry, bool)> {
    let name = symbol.name();
    ENTRIES.iter().find_map(|entry| match entry.per_thread {
        Some((twin, _)) if twin == name => Some((entry, true)),
        _ => (entry.name == name).then_some((entry, false)),
    })
}

/// The name without version of a symbol.
fn base(symbol: Symbol) -> Option<&'static str> {
    row(symbol).map(|(entry, _)| entry.base)
}

/// Where the driver says a function is when it is asked in the function's own
/// version. That may be elsewhere than what it exports.
fn ask_the_driver(real: &Real, symbol: Symbol) -> Option<usize> {
    let (entry, twin) = row(symbol)?;
    let (since, flags) = match entry.per_thread.filter(|_| twin) {
        Some((_, since)) => (since.max(entry.since), PER_THREAD),
        None => (entry.since, 0),
    };
    let name = CString::new(entry.base).ok()?;
    let mut address = core::ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::default();
    // SAFETY: the name and the results outlive the call.
    let asked = unsafe {
        let version = c_int::try_from(since).ok()?;
        let (into, status) = (&mut address, &mut status);
        real.driver
            .cuGetProcAddress_v2(name.as_ptr(), into, version, flags, status)
    };
    let found = matches!(asked, Ok(CUresult::CUDA_SUCCESS));
    NonNull::new(address)
        .filter(|_| found)
        .map(|address| address.as_ptr() as usize)
}

/// The door for what the driver answered to a request for `asked`.
pub(crate) fn exchange(address: *mut c_void, asked: &[u8]) -> *mut c_void {
    if is_disabled() {
        return address;
    }
    let Some(doors) = exchange_table().get(&(address as usize)) else {
        return without_door(address, asked);
    };
    let named = doors.iter().find(|(base, _)| base.as_bytes() == asked);
    match (named, doors.as_slice()) {
        (Some((_, door)), _) | (None, [(_, door)]) => *door as *mut c_void,
        // Several functions, none of that name: which one is not known.
        _ => without_door(address, asked),
    }
}

const _: () = assert!(TYPED == Symbol::ALL.len());
