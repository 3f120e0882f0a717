//! Substitution of the driver's function pointers by the interposed functions.
//!
//! A request to `cuGetProcAddress` is passed to the driver unchanged, and the pointer
//! that it returns is replaced by the interposed function of that address.
//!
//! Invariant: the version of a function is never guessed.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::OnceLock;

use fercuda_cuda_sys::types::{CUdriverProcAddressQueryResult, CUresult};
use fercuda_cuda_sys::{Driver, ENTRIES, FunctionEntry, PER_THREAD, Symbol};
use rustc_hash::FxHashMap;

use crate::real_driver::{self, RealDriver};
use crate::{interposed, process, settings};

/// Whether the kill switch is on, so that every function is the driver's own.
pub fn is_disabled() -> bool {
    settings::config().disabled
}

/// The interposed function for a symbol, if there is one.
pub fn interposed_function(symbol: Symbol) -> Option<NonNull<c_void>> {
    static FUNCTIONS: OnceLock<FxHashMap<usize, usize>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        let all = interposed::all().into_iter();
        all.map(|(symbol, function)| (symbol as usize, function as usize))
            .collect()
    });
    NonNull::new(*functions.get(&(symbol as usize))? as *mut c_void)
}

/// Prefixes of functions that create contexts and are not interposed, in any version.
pub const CONTEXT_CREATORS: [&str; 2] = ["cuGLCtxCreate", "cuVDPAUCtxCreate"];
/// Other functions that may leave a thread with another current context, or none.
const CURRENT_CONTEXT_SETTERS: [&str; 4] = [
    "cuCtxCreate",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
];

/// Marks that there may be contexts which no interposed function has seen.
#[cold]
pub fn mark_unseen_contexts() {
    if let Some(governor) = process::governor() {
        governor.may_have_other_contexts();
    }
}

/// Returns what to hand out for a function of that name that is not interposed. One that
/// creates contexts is noted when it is called, not when it is requested, since some
/// programs request every function.
fn substitute_uninterposed(address: *mut c_void, requested: &[u8]) -> *mut c_void {
    let is_one_of = |names: &[&str]| names.iter().any(|name| name.as_bytes() == requested);
    let Some(own) = NonNull::new(address) else {
        return address;
    };
    if is_one_of(&CONTEXT_CREATORS)
        && let Some(Some(real)) = real_driver::real_driver()
        && let Some(stub) = real.noting_stub(requested, own)
    {
        return stub.as_ptr();
    }
    // A version that is not known here.
    if is_one_of(&CONTEXT_CREATORS) || is_one_of(&CURRENT_CONTEXT_SETTERS) {
        mark_unseen_contexts();
    }
    address
}

/// Interposed functions by the address of the driver's function. Functions that share
/// one address are distinguished by the requested name.
type SubstitutionTable = FxHashMap<usize, Vec<(&'static str, usize)>>;

fn substitution_table() -> &'static SubstitutionTable {
    static TABLE: OnceLock<SubstitutionTable> = OnceLock::new();
    TABLE.get().unwrap_or_else(|| {
        // Built outside `get_or_init`, so that no thread waits for one that calls the
        // loader (see `real_driver`).
        let built = build_table();
        TABLE.get_or_init(|| built)
    })
}

#[cold]
fn build_table() -> SubstitutionTable {
    let mut table = SubstitutionTable::default();
    let Some(Some(real)) = real_driver::real_driver() else {
        return table;
    };
    for (symbol, _) in interposed::all() {
        let (Some(function), Some(base)) = (interposed_function(symbol), base_name(symbol)) else {
            continue;
        };
        let mut addresses: Vec<usize> = Vec::new();
        let exported = real.find(symbol.name());
        addresses.extend(exported.map(|address| address.as_ptr() as usize));
        addresses.extend(query_address(real, symbol));
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            let entry = table.entry(address).or_default();
            entry.push((base, function.as_ptr() as usize));
        }
    }
    table
}

/// The table entry of a symbol, and whether the symbol is its per-thread twin.
fn entry_of(symbol: Symbol) -> Option<(&'static FunctionEntry, bool)> {
    let name = symbol.name();
    ENTRIES.iter().find_map(|entry| match entry.per_thread {
        Some((twin, _)) if twin == name => Some((entry, true)),
        _ => (entry.name == name).then_some((entry, false)),
    })
}

/// The name of a symbol without its version.
fn base_name(symbol: Symbol) -> Option<&'static str> {
    entry_of(symbol).map(|(entry, _)| entry.base)
}

/// Asks the driver for a function's address by its own version. That may differ from
/// the exported address.
fn query_address(real: &RealDriver, symbol: Symbol) -> Option<usize> {
    let (entry, twin) = entry_of(symbol)?;
    let (since, flags) = match entry.per_thread.filter(|_| twin) {
        Some((_, since)) => (since.max(entry.since), PER_THREAD),
        None => (entry.since, 0),
    };
    let name = CString::new(entry.base).ok()?;
    let mut address = core::ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::default();
    // SAFETY: the name and the results outlive the call.
    let queried = unsafe {
        let version = c_int::try_from(since).ok()?;
        let (into, status) = (&mut address, &mut status);
        real.driver
            .cuGetProcAddress_v2(name.as_ptr(), into, version, flags, status)
    };
    let found = matches!(queried, Ok(CUresult::CUDA_SUCCESS));
    NonNull::new(address)
        .filter(|_| found)
        .map(|address| address.as_ptr() as usize)
}

/// Returns the interposed function for the address that the driver returned to a request
/// for `requested`, or else what to hand out for an uninterposed one.
pub(crate) fn substitute(address: *mut c_void, requested: &[u8]) -> *mut c_void {
    if is_disabled() {
        return address;
    }
    let Some(functions) = substitution_table().get(&(address as usize)) else {
        return substitute_uninterposed(address, requested);
    };
    let named = functions
        .iter()
        .find(|(base, _)| base.as_bytes() == requested);
    match (named, functions.as_slice()) {
        (Some((_, function)), _) | (None, [(_, function)]) => *function as *mut c_void,
        // Several functions, none of that name: which one is meant is unknown.
        _ => substitute_uninterposed(address, requested),
    }
}

/// The function to call for a name: the interposed one, or else the driver's own.
pub(crate) fn function_of(driver: &'static Driver, name: &str) -> Option<NonNull<c_void>> {
    let symbol = symbol(name)?;
    // A function is interposed only where the driver has it.
    let own = driver.address(symbol).ok()?;
    Some(interposed_function(symbol).unwrap_or(own))
}

/// The symbol of an exported name of the driver.
pub(crate) fn symbol(name: &str) -> Option<Symbol> {
    Symbol::ALL.iter().find(|it| it.name() == name).copied()
}
