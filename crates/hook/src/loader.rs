//! Interposed `dlopen` and `dlmopen`, for programs that open the driver by other names, and
//! `dlclose`, after which another library may have the addresses of one that made calls.
//!
//! This library has the name `libcuda.so.1`, so a program that links to or opens that name
//! gets it. `libcuda.so` and absolute paths would bypass it; `dlopen` redirects them here.
//! All other calls go on to the loader by a jump, since the loader inspects its caller's
//! address. `dlsym` needs no interposition for the driver: a handle of this library has the
//! driver's symbols.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use fercuda_regime::{catch_panic, is_disabled, print_diagnostic, while_unloading};

use crate::exports::noting_stub;
use crate::linked::unload_count;
use crate::next_definition::{close, next, next_dlopen};
use crate::own_library::own_path;
use crate::real_driver::real_driver;
use crate::runtime;

/// A path that no file can have, so that the loader reports a missing library. Its last part
/// is the driver's name, which programs search for in the loader's error. It is a path, as
/// the loader would find this library by a plain name.
const MISSING_DRIVER: &CStr = c"/proc/no-driver/libcuda.so.1";

/// The function to jump to and the file name to pass.
#[repr(C)]
struct DlopenTarget {
    function: *mut c_void,
    name: *const c_char,
}

/// Whether a file name, with or without folders, is the driver's.
fn is_driver_name(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    matches!(file, b"libcuda.so" | b"libcuda.so.1")
        || file
            .strip_prefix(b"libcuda.so.")
            .is_some_and(|version| version.iter().all(|b| b.is_ascii_digit() || *b == b'.'))
}

/// Where `dlopen` of a name goes, called from `caller`.
///
/// # Safety
/// `name` is null or a C string.
unsafe extern "C" fn choose(name: *const c_char, caller: usize) -> DlopenTarget {
    let function = next_dlopen();
    // SAFETY: the caller's promise.
    let is_driver = !name.is_null() && is_driver_name(unsafe { CStr::from_ptr(name) }.to_bytes());
    if !is_driver {
        return DlopenTarget { function, name };
    }
    let redirected = catch_panic(|| {
        if is_disabled() {
            return None;
        }
        runtime::driver_opened_by(caller);
        Some(match (real_driver(noting_stub), own_path()) {
            (Some(_), Some(own)) => own,
            // Without a driver this library must not pretend that there is one.
            _ => MISSING_DRIVER,
        })
    });
    let name = redirected.map_or(name, CStr::as_ptr);
    DlopenTarget { function, name }
}

/// Reports a `dlmopen` of the driver, once: calls in another namespace bypass this library.
///
/// # Safety
/// `name` is null or a C string.
unsafe extern "C" fn note_namespace(name: *const c_char) -> *mut c_void {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    static REPORTED: AtomicBool = AtomicBool::new(false);
    // SAFETY: the caller's promise.
    let is_driver = !name.is_null() && is_driver_name(unsafe { CStr::from_ptr(name) }.to_bytes());
    catch_panic(|| {
        if is_driver && !is_disabled() && !REPORTED.swap(true, Relaxed) {
            print_diagnostic(
                "a library opens the driver in a namespace of its own (dlmopen)\n\
                 what it allocates there is not governed; reconciling shows it as ungoverned",
            );
        }
        Some(())
    });
    next(&NEXT, c"dlmopen")
}

/// Redirects an open of the driver to this library; see the module.
// SAFETY: interposes the loader's function of this name, and jumps to it.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov rsi, [rsp + 24]",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov rdi, rdx",
        "jmp rax",
        choose = sym choose,
    )
}

/// Notes an open of the driver in another namespace; see the module.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlmopen() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsi",
        "call {note}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        note = sym note_namespace,
    )
}

/// Closes a library, and ends what is known of callers if it is unloaded.
///
/// # Safety
/// As for the loader's function.
// SAFETY: interposes the loader's function of this name, and calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(library: *mut c_void) -> c_int {
    // SAFETY: the caller's promise. Its address means nothing to the loader.
    while_unloading(unload_count, || unsafe { close(library) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_own_names_are_redirected() {
        for name in [
            "libcuda.so",
            "libcuda.so.1",
            "/usr/lib/libcuda.so.1",
            "libcuda.so.580.1.2",
        ] {
            assert!(is_driver_name(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "libcudart.so.13",
            "libcuda.so.1.bak",
            "libcuda.so.old",
            "notlibcuda.so",
            "/x/libcuda.so.1/libcurl.so",
        ] {
            assert!(!is_driver_name(name.as_bytes()), "{name}");
        }
    }
}
