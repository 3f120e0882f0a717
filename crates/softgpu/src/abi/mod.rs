//! C functions of the driver API: arguments are checked here, and nothing unwinds across it.
//!
//! Every entry of the driver's table becomes a function: those in the modules below, and for the
//! rest a stub that returns `CUDA_ERROR_NOT_SUPPORTED` and reports that once.
//!
//! Elsewhere: the semantics of the functions (`device`).

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use fercuda_cuda_sys::signatures;
use fercuda_cuda_sys::types::CUresult;

use crate::device::launch::in_host_function;
use crate::device::{CuResult, err, lock, say};

/// Writes driver functions: a name, its per-thread twin in brackets if it has one, arguments, and a
/// body that is a `CuResult`.
macro_rules! driver_fns {
    ($(fn $name:ident [$($twin:ident)?] $args:tt $body:block)*) => {
        $(
            driver_fns!(@one $name false $args $body);
            $(driver_fns!(@one $twin true $args $body);)?
        )*
    };
    (@one $name:ident $per_thread:literal ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            $crate::abi::guard(stringify!($name), $per_thread, || -> CuResult {
                // SAFETY: the caller of a driver function promises what its reference requires of
                // the pointers; null is checked before use, and handles are never followed.
                #[allow(unused_unsafe, reason = "some bodies need nothing unsafe")]
                unsafe { $body }
            })
        }
    };
}

mod array;
mod context;
mod copy;
mod event;
mod extension;
mod files;
mod graph;
mod graph_nodes;
mod init;
mod launch;
mod legacy_launch;
mod library;
mod managed;
mod memory;
mod module;
mod pool;
mod stream;
mod tensor_map;
mod texture;
mod texture_reference;
mod vmm;

thread_local! {
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the function being called reads a null stream as the thread's own.
fn per_thread() -> bool {
    PER_THREAD.try_with(Cell::get).unwrap_or(false)
}

/// Whether a function only reads constants, so that a host function may call it too.
fn is_plain_question(name: &str) -> bool {
    ["cuInit", "cuGet", "cuDriverGet", "cuDeviceGet"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Runs a driver function's body; a panic becomes an error.
fn guard(name: &'static str, per_thread: bool, body: impl FnOnce() -> CuResult) -> CUresult {
    if in_host_function() && !is_plain_question(name) {
        return err::NOT_PERMITTED;
    }
    let before = PER_THREAD
        .try_with(|p| p.replace(per_thread))
        .unwrap_or(false);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    PER_THREAD.try_with(|p| p.set(before)).ok();
    match done {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            say(&format!("internal error in {name}; please report it"));
            err::UNKNOWN
        }
    }
}

/// Writes a result through a pointer of the client's.
unsafe fn put<T>(out: *mut T, value: T) -> CuResult {
    if out.is_null() {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: not null, and the client promises room for a `T`.
    unsafe { out.write(value) };
    Ok(())
}

/// The same where the client may not want it.
unsafe fn put_if<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, and the client promises room for a `T`.
        unsafe { out.write(value) };
    }
}

/// Reads a structure of the client's.
unsafe fn get<'a, T>(at: *const T) -> CuResult<&'a T> {
    // SAFETY: the client promises a `T` there for the duration of the call; null is an error.
    unsafe { at.as_ref() }.ok_or(err::INVALID_VALUE)
}

/// Reads an array of the client's.
unsafe fn slice<'a, T>(at: *const T, len: usize) -> CuResult<&'a [T]> {
    let possible = len
        .checked_mul(size_of::<T>())
        .is_some_and(|bytes| isize::try_from(bytes).is_ok());
    match (len, at.is_null() || !possible) {
        (0, _) => Ok(&[]),
        (_, true) => Err(err::INVALID_VALUE),
        // SAFETY: the client promises `len` of `T` there for the duration of the call; so many can
        // exist.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

/// Reads a name of the client's.
unsafe fn text<'a>(at: *const c_char) -> CuResult<&'a str> {
    if at.is_null() {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the client promises a terminated string.
    unsafe { CStr::from_ptr(at) }
        .to_str()
        .map_err(|_| err::INVALID_VALUE)
}

/// Copies a string into a client's buffer, cut to fit, always terminated.
unsafe fn put_text(out: *mut c_char, len: i32, value: &str) -> CuResult {
    let len = usize::try_from(len)
        .ok()
        .filter(|&n| n > 0 && !out.is_null())
        .ok_or(err::INVALID_VALUE)?;
    let n = value.len().min(len - 1);
    // SAFETY: `n + 1 <= len` bytes that the client promises.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr().cast(), out, n);
        *out.add(n) = 0;
    }
    Ok(())
}

/// The result of a function that is not implemented; reported once for each.
#[doc(hidden)]
pub fn unsupported(name: &'static str) -> CUresult {
    unsupported_with(name, "")
}

/// The same, with a further sentence in the report.
fn unsupported_with(name: &'static str, advice: &str) -> CUresult {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let quiet = match crate::device::machine() {
        Ok(m) => m.config.quiet,
        Err(_) => std::env::var("FERCUDA_QUIET").is_ok_and(|v| v == "1"),
    };
    if !quiet && lock(&SAID).insert(name) {
        say(&format!(
            "{name} is not implemented on the software device{advice}"
        ));
    }
    err::NOT_SUPPORTED
}

mod stubs {
    use fercuda_cuda_sys::types::*;

    macro_rules! stub {
        ($name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
            #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
            pub(super) unsafe extern "C" fn $name($(_: $ty),*) -> CUresult {
                super::unsupported(stringify!($name))
            }
        };
    }
    macro_rules! stubs {
        ($($name:ident $base:literal $since:literal [$($twin:ident $t:literal)?] $args:tt;)*) => {
            $(stub! { $name $args } $(stub! { $twin $args })?)*
        };
    }
    fercuda_cuda_sys::for_each_driver_fn!(stubs);
}

mod implemented {
    pub(super) use super::array::*;
    pub(super) use super::context::*;
    pub(super) use super::copy::*;
    pub(super) use super::event::*;
    pub(super) use super::graph::*;
    pub(super) use super::graph_nodes::*;
    pub(super) use super::init::*;
    pub(super) use super::launch::*;
    pub(super) use super::legacy_launch::*;
    pub(super) use super::library::*;
    pub(super) use super::managed::*;
    pub(super) use super::memory::*;
    pub(super) use super::module::*;
    pub(super) use super::pool::*;
    pub(super) use super::stream::*;
    pub(super) use super::tensor_map::*;
    pub(super) use super::texture::*;
    pub(super) use super::texture_reference::*;
    pub(super) use super::vmm::*;
}

macro_rules! table {
    ($($name:ident $base:literal $since:literal [$($twin:ident $t:literal)?] $args:tt;)*) => {
        /// Every function of the driver, as this device fills it.
        #[doc(hidden)]
        #[allow(missing_docs, reason = "the driver's own names")]
        pub struct Table {
            $(pub $name: signatures::$name, $(pub $twin: signatures::$twin,)?)*
        }

        /// The one table; the drop-in library forwards to it.
        #[doc(hidden)]
        pub static TABLE: Table = {
            #[allow(unused_imports, reason = "shadowed where the function is written")]
            use stubs::*;
            {
                use implemented::*;
                Table { $($name: $name, $($twin: $twin,)?)* }
            }
        };

        fn addresses() -> Vec<(&'static str, usize)> {
            vec![$(
                (stringify!($name), TABLE.$name as usize),
                $((stringify!($twin), TABLE.$twin as usize),)?
            )*]
        }

        /// Names of the functions that are stubs.
        pub(crate) fn unimplemented_names() -> Vec<&'static str> {
            let mut names = Vec::new();
            $(
                if TABLE.$name as usize == stubs::$name as *const () as usize { names.push(stringify!($name)); }
                $(if TABLE.$twin as usize == stubs::$twin as *const () as usize { names.push(stringify!($twin)); })?
            )*
            names
        }
    };
}
fercuda_cuda_sys::for_each_driver_fn!(table);

/// The address of an exported symbol.
pub(crate) fn address(name: &str) -> Option<NonNull<c_void>> {
    static BY_NAME: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let found = BY_NAME
        .get_or_init(|| addresses().into_iter().collect())
        .get(name)?;
    NonNull::new(*found as *mut c_void)
}
