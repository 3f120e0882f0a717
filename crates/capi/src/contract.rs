//! What `execution_contract.h` declares: which ways into feRcuda there are, and which
//! of them are served here.
//!
//! Invariant: what is said to be served works in this process, by functions of these
//! headers or by the hook.

use core::ffi::{CStr, c_char};

use fercuda_regime::interface;

use crate::pointers::Place;
use crate::status::{Failure, Result, fer_status, guarded};

/// Programs that were compiled with another number do not fit this library.
pub const FER_ABI_MAJOR: u32 = 1;
/// Programs that were compiled with a smaller number fit this library.
pub const FER_ABI_MINOR: u32 = 3;

/// A way in.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_entrypoint {
    /// Buffers with layouts, copies between them, plans of arenas.
    FER_ENTRYPOINT_TENSOR = 1,
    /// Expressions that are fused and compiled when they are first asked for.
    FER_ENTRYPOINT_JIT_INTENT = 2,
    /// Kernels as PTX text or machine code, loaded and launched with checked arguments.
    FER_ENTRYPOINT_JIT_LAUNCH = 3,
    /// Tasks for a kernel that stays on the device.
    FER_ENTRYPOINT_RESIDENT_DAEMON = 4,
    /// The allocations of frameworks, governed before the driver sees them.
    FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR = 5,
}

/// Who comes in.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_frontend {
    /// C programs, by these headers.
    FER_FRONTEND_C = 1,
    /// C++ programs, by these headers.
    FER_FRONTEND_CPP = 2,
    /// Python programs, by a package that has this library or its own.
    FER_FRONTEND_PYTHON = 3,
    /// Rust programs, by the crates.
    FER_FRONTEND_RUST = 4,
    /// PyTorch, whose allocations are governed where it asks the driver.
    FER_FRONTEND_RUST_FERRITE_TORCH = 5,
}

/// Ways in and who comes in, with which of them are served.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_execution_contract {
    /// FER_ABI_MAJOR of the library.
    pub abi_major: u32,
    /// FER_ABI_MINOR of the library.
    pub abi_minor: u32,
    /// A bit for each fer_entrypoint that is served in this process: 1 << number.
    pub entrypoints: u32,
    /// A bit for each fer_frontend that is served in this process: 1 << number.
    pub frontends: u32,
}

struct Way {
    name: &'static CStr,
    is_served: fn() -> bool,
}

const WAYS: [Way; 5] = [
    Way {
        name: c"tensor",
        is_served: || true,
    },
    Way {
        name: c"jit_intent",
        is_served: || true,
    },
    Way {
        name: c"jit_launch",
        is_served: || true,
    },
    Way {
        name: c"resident_daemon",
        is_served: || true,
    },
    Way {
        name: c"framework_allocator",
        is_served: is_hooked,
    },
];

struct Comer {
    name: &'static CStr,
    by: fer_entrypoint,
    is_served: fn() -> bool,
}

const COMERS: [Comer; 5] = [
    Comer {
        name: c"c",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || true,
    },
    Comer {
        name: c"cpp",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || true,
    },
    Comer {
        name: c"python",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || false,
    },
    Comer {
        name: c"rust",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || false,
    },
    Comer {
        name: c"rust_ferrite_torch",
        by: fer_entrypoint::FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR,
        is_served: is_hooked,
    },
];

/// Whether the doors of this process are those of another library, the hook: only there
/// frameworks meet them. Ours are met by who calls through us.
fn is_hooked() -> bool {
    interface::own().is_none() && interface::find().is_some()
}

/// What each of a table's rows is, by numbers from 1 on.
fn row<'t, T>(rows: &'t [T], parameter: &str, number: u32) -> Result<&'t T> {
    let at = number.checked_sub(1);
    at.and_then(|at| rows.get(at as usize)).ok_or_else(|| {
        let most = rows.len();
        Failure::argument(parameter, format!("there is no {number}\ntry: 1 to {most}"))
    })
}

fn bits(served: impl Iterator<Item = bool>) -> u32 {
    let numbered = (1..).zip(served);
    numbered
        .filter(|(_, is_served)| *is_served)
        .map(|(number, _)| 1 << number)
        .sum()
}

/// What this library serves in this process, now. A program looks whether `abi_major` is
/// FER_ABI_MAJOR, and `abi_minor` at least FER_ABI_MINOR.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_execution_contract_get(
    contract: *mut fer_execution_contract,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("contract", contract) }?;
        place.put(fer_execution_contract {
            abi_major: FER_ABI_MAJOR,
            abi_minor: FER_ABI_MINOR,
            entrypoints: bits(WAYS.iter().map(|it| (it.is_served)())),
            frontends: bits(COMERS.iter().map(|it| (it.is_served)())),
        });
        Ok(())
    })
}

/// A fer_entrypoint's name, as "jit_launch"; "unknown" for a number that is none. Good
/// for ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_entrypoint_name(entrypoint: u32) -> *const c_char {
    let named = row(&WAYS, "entrypoint", entrypoint);
    named.map_or(c"unknown", |it| it.name).as_ptr()
}

/// Whether a fer_entrypoint is served in this process, now: `is_served` gets 1 or 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_entrypoint_served(entrypoint: u32, is_served: *mut u32) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("is_served", is_served) }?;
        let way = row(&WAYS, "entrypoint", entrypoint)?;
        place.put(u32::from((way.is_served)()));
        Ok(())
    })
}

/// A fer_frontend's name, as "cpp"; "unknown" for a number that is none. Good for ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_frontend_name(frontend: u32) -> *const c_char {
    let named = row(&COMERS, "frontend", frontend);
    named.map_or(c"unknown", |it| it.name).as_ptr()
}

/// By which fer_entrypoint a fer_frontend comes in first.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_frontend_entrypoint(
    frontend: u32,
    entrypoint: *mut u32,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("entrypoint", entrypoint) }?;
        place.put(row(&COMERS, "frontend", frontend)?.by as u32);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_numbers() {
        use fer_entrypoint::*;
        use fer_frontend::*;
        let ways = [
            FER_ENTRYPOINT_TENSOR,
            FER_ENTRYPOINT_JIT_INTENT,
            FER_ENTRYPOINT_JIT_LAUNCH,
            FER_ENTRYPOINT_RESIDENT_DAEMON,
            FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR,
        ];
        let named = |name: &CStr, prefix: &str| {
            format!("{prefix}_{}", name.to_str().unwrap().to_uppercase())
        };
        for way in ways {
            let row = row(&WAYS, "entrypoint", way as u32).unwrap();
            assert_eq!(named(row.name, "FER_ENTRYPOINT"), format!("{way:?}"));
        }
        let comers = [
            FER_FRONTEND_C,
            FER_FRONTEND_CPP,
            FER_FRONTEND_PYTHON,
            FER_FRONTEND_RUST,
            FER_FRONTEND_RUST_FERRITE_TORCH,
        ];
        for comer in comers {
            let row = row(&COMERS, "frontend", comer as u32).unwrap();
            assert_eq!(named(row.name, "FER_FRONTEND"), format!("{comer:?}"));
        }
        assert!(row(&WAYS, "entrypoint", 0).is_err() && row(&WAYS, "entrypoint", 6).is_err());
    }
}
