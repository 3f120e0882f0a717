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
use fercuda_cuda_sys::{ENTRIES, FunctionEntry, PER_THREAD, Symbol};
use rustc_hash::FxHashMap;

use crate::below::{self, Below};
use crate::process;
use crate::{doors, settings};

/// Whether the kill switch is on: then every function is the driver's own.
pub fn is_disabled() -> bool {
    settings::config().disabled
}

/// The door of a function, if it is governed.
pub fn door(symbol: Symbol) -> Option<NonNull<c_void>> {
    static DOORS: OnceLock<FxHashMap<usize, usize>> = OnceLock::new();
    let doors = DOORS.get_or_init(|| {
        let all = doors::all().into_iter();
        all.map(|(symbol, door)| (symbol as usize, door as usize))
            .collect()
    });
    NonNull::new(*doors.get(&(symbol as usize))? as *mut c_void)
}

/// Functions that make contexts and have no door; other versions begin so.
pub const UNTOLD: [&str; 2] = ["cuGLCtxCreate", "cuVDPAUCtxCreate"];
/// What else may leave a thread with another current context, or none.
const TOLD: [&str; 4] = [
    "cuCtxCreate",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
];

/// From now on there may be contexts of which no door tells.
#[cold]
pub fn may_have_other_contexts() {
    if let Some(governor) = process::governor() {
        governor.may_have_other_contexts();
    }
}

/// What is given out for a function of that name that has no door. Those that make
/// contexts are noted when they are called, as some ask for all there are.
fn without_door(address: *mut c_void, asked: &[u8]) -> *mut c_void {
    let is_one_of = |names: &[&str]| names.iter().any(|name| name.as_bytes() == asked);
    let Some(own) = NonNull::new(address) else {
        return address;
    };
    if is_one_of(&UNTOLD)
        && let Some(Some(below)) = below::placed()
        && let Some(noted) = below.noted(asked, own)
    {
        return noted.as_ptr();
    }
    // Of a version that is not known here.
    if is_one_of(&UNTOLD) || is_one_of(&TOLD) {
        may_have_other_contexts();
    }
    address
}

/// Doors by the address of the driver's function behind them. Functions that
/// share one address are told apart by the name asked for.
type Exchange = FxHashMap<usize, Vec<(&'static str, usize)>>;

fn exchange_table() -> &'static Exchange {
    static TABLE: OnceLock<Exchange> = OnceLock::new();
    TABLE.get().unwrap_or_else(|| {
        // Made while nobody waits for it: the loader is asked (see `below`).
        let made = made_table();
        TABLE.get_or_init(|| made)
    })
}

#[cold]
fn made_table() -> Exchange {
    let mut table = Exchange::default();
    let Some(Some(below)) = below::placed() else {
        return table;
    };
    for (symbol, _) in doors::all() {
        let (Some(door), Some(base)) = (door(symbol), base(symbol)) else {
            continue;
        };
        let mut addresses: Vec<usize> = Vec::new();
        let exported = below.find(symbol.name());
        addresses.extend(exported.map(|address| address.as_ptr() as usize));
        addresses.extend(ask_the_driver(below, symbol));
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
fn row(symbol: Symbol) -> Option<(&'static FunctionEntry, bool)> {
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
fn ask_the_driver(below: &Below, symbol: Symbol) -> Option<usize> {
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
        below
            .driver
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
