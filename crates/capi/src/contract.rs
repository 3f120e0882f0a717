//! Declarations of `execution_contract.h`: feRcuda's entry points, and which of them this library
//! serves.
//!
//! Invariant: an entry point reported as served works in this process, by functions of these
//! headers or by the hook.

use core::ffi::{CStr, c_char};

use fercuda_regime::interface;

use crate::pointers::OutPointer;
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Programs compiled with another number are incompatible with this library.
pub const FER_ABI_MAJOR: u32 = 1;
/// Programs compiled with this number or a smaller one are compatible with this library.
pub const FER_ABI_MINOR: u32 = 4;

/// An entry point.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_entrypoint {
    /// Buffers with layouts, copies between them, plans of arenas.
    FER_ENTRYPOINT_TENSOR = 1,
    /// Expressions that are fused, and compiled on first use.
    FER_ENTRYPOINT_JIT_INTENT = 2,
    /// Kernels as PTX text or machine code, loaded and launched with checked arguments.
    FER_ENTRYPOINT_JIT_LAUNCH = 3,
    /// Tasks for a resident kernel.
    FER_ENTRYPOINT_RESIDENT_DAEMON = 4,
    /// Allocations of frameworks, intercepted before the driver.
    FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR = 5,
}

/// A client of an entry point.
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
    /// PyTorch; its driver allocations are intercepted.
    FER_FRONTEND_RUST_FERRITE_TORCH = 5,
}

/// Entry points and clients, and which of them are served.
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

struct EntrypointRow {
    name: &'static CStr,
    is_served: fn() -> bool,
}

const ENTRYPOINTS: [EntrypointRow; 5] = [
    EntrypointRow {
        name: c"tensor",
        is_served: || true,
    },
    EntrypointRow {
        name: c"jit_intent",
        is_served: || true,
    },
    EntrypointRow {
        name: c"jit_launch",
        is_served: || true,
    },
    EntrypointRow {
        name: c"resident_daemon",
        is_served: || true,
    },
    EntrypointRow {
        name: c"framework_allocator",
        is_served: is_hooked,
    },
];

struct FrontendRow {
    name: &'static CStr,
    by: fer_entrypoint,
    is_served: fn() -> bool,
}

const FRONTENDS: [FrontendRow; 5] = [
    FrontendRow {
        name: c"c",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || true,
    },
    FrontendRow {
        name: c"cpp",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || true,
    },
    FrontendRow {
        name: c"python",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || false,
    },
    FrontendRow {
        name: c"rust",
        by: fer_entrypoint::FER_ENTRYPOINT_TENSOR,
        is_served: || false,
    },
    FrontendRow {
        name: c"rust_ferrite_torch",
        by: fer_entrypoint::FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR,
        is_served: is_hooked,
    },
];

/// Whether the functions interposed in this process are another library's, the hook's: only these
/// intercept frameworks. Those of this library are used by its own calls only.
fn is_hooked() -> bool {
    interface::own().is_none() && interface::find().is_some()
}

/// The row of a table for a number, from 1 on.
fn row<'t, T>(rows: &'t [T], parameter: &str, number: u32) -> Result<&'t T> {
    let at = number.checked_sub(1);
    at.and_then(|at| rows.get(at as usize)).ok_or_else(|| {
        let most = rows.len();
        CallFailure::argument(parameter, format!("there is no {number}\ntry: 1 to {most}"))
    })
}

fn bits(served: impl Iterator<Item = bool>) -> u32 {
    let numbered = (1..).zip(served);
    numbered
        .filter(|(_, is_served)| *is_served)
        .map(|(number, _)| 1 << number)
        .sum()
}

/// Reports what this library serves in this process, now. A program checks that `abi_major` equals
/// FER_ABI_MAJOR, and that `abi_minor` is at least FER_ABI_MINOR.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_execution_contract_get(
    contract: *mut fer_execution_contract,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("contract", contract) }?;
        place.put(fer_execution_contract {
            abi_major: FER_ABI_MAJOR,
            abi_minor: FER_ABI_MINOR,
            entrypoints: bits(ENTRYPOINTS.iter().map(|it| (it.is_served)())),
            frontends: bits(FRONTENDS.iter().map(|it| (it.is_served)())),
        });
        Ok(())
    })
}

/// Returns a fer_entrypoint's name, such as "jit_launch"; "unknown" for an invalid number. Valid
/// for ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_entrypoint_name(entrypoint: u32) -> *const c_char {
    let named = row(&ENTRYPOINTS, "entrypoint", entrypoint);
    named.map_or(c"unknown", |it| it.name).as_ptr()
}

/// Returns whether a fer_entrypoint is served in this process, now: `is_served` is set to 1 or 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_entrypoint_served(entrypoint: u32, is_served: *mut u32) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("is_served", is_served) }?;
        let way = row(&ENTRYPOINTS, "entrypoint", entrypoint)?;
        place.put(u32::from((way.is_served)()));
        Ok(())
    })
}

/// Returns a fer_frontend's name, such as "cpp"; "unknown" for an invalid number. Valid for ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_frontend_name(frontend: u32) -> *const c_char {
    let named = row(&FRONTENDS, "frontend", frontend);
    named.map_or(c"unknown", |it| it.name).as_ptr()
}

/// Returns the primary fer_entrypoint of a fer_frontend.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_frontend_entrypoint(
    frontend: u32,
    entrypoint: *mut u32,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("entrypoint", entrypoint) }?;
        place.put(row(&FRONTENDS, "frontend", frontend)?.by as u32);
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
            let row = row(&ENTRYPOINTS, "entrypoint", way as u32).unwrap();
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
            let row = row(&FRONTENDS, "frontend", comer as u32).unwrap();
            assert_eq!(named(row.name, "FER_FRONTEND"), format!("{comer:?}"));
        }
        assert!(
            row(&ENTRYPOINTS, "entrypoint", 0).is_err()
                && row(&ENTRYPOINTS, "entrypoint", 6).is_err()
        );
    }
}
