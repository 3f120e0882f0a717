//! Interposed `dlopen` and `dlmopen`, for programs that open the driver by other names.
//!
//! This library has the name `libcuda.so.1`, so a program that links to or opens that name
//! gets it. `libcuda.so` and absolute paths would bypass it; `dlopen` redirects them here.
//! All other calls go on to the loader by a jump, since the loader inspects its caller's
//! address. `dlsym` needs no interposition for the driver: a handle of this library has the
//! driver's symbols.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use fercuda_regime::{catch_panic, is_disabled, print_diagnostic};

use crate::{real_driver, runtime};

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

/// Looks up the next definition of a loader's function, once.
fn next(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = slot.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let places = [libc::RTLD_NEXT, libc::RTLD_DEFAULT];
    // SAFETY: a name, and the handles that search the libraries behind this one, and all.
    let all = places.map(|place| unsafe { libc::dlsym(place, name.as_ptr()) });
    let found = interposed_by_us(all).unwrap_or(open_fails as *mut c_void);
    slot.store(found, Relaxed);
    found
}

/// The function that one of ours interposes, if it was found: in a library behind this one,
/// or in one loaded before it, as a preloaded C library may be. The loader may resolve the
/// name to our own function, which is recognised by its address.
pub(crate) fn interposed_by_us([next, first]: [*mut c_void; 2]) -> Option<*mut c_void> {
    let found = if next.is_null() { first } else { next };
    (!found.is_null() && !real_driver::is_own(found)).then_some(found)
}

/// Stands in for a `dlopen` that no library defines.
extern "C" fn open_fails() -> *mut c_void {
    core::ptr::null_mut()
}

fn next_dlopen() -> *mut c_void {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    next(&NEXT, c"dlopen")
}

/// The loader's own `dlopen`.
///
/// # Safety
/// As for `dlopen`.
pub(crate) unsafe fn open(name: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the loader's function of this type, or one that ignores its arguments; the
    // caller's promise for the rest.
    unsafe {
        let function = core::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
        >(next_dlopen());
        function(name, flags)
    }
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
        Some(
            match (real_driver::real_driver(), real_driver::own_path()) {
                (Some(_), Some(own)) => own,
                // Without a driver this library must not pretend that there is one.
                _ => MISSING_DRIVER,
            },
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_no_library_has_is_replaced_by_one_that_fails() {
        let slot = AtomicPtr::new(core::ptr::null_mut());
        let found = next(&slot, c"dlopen_of_no_library");
        assert_eq!(found, open_fails as *mut c_void);
        assert_eq!(slot.load(Relaxed), found);
        assert!(open_fails().is_null());
    }

    #[test]
    fn the_loaders_function_is_never_our_own() {
        let own = open_fails as *mut c_void;
        let other = libc::getpid as *mut c_void;
        let none = core::ptr::null_mut();
        assert_eq!(interposed_by_us([other, own]), Some(other));
        assert_eq!(interposed_by_us([none, other]), Some(other));
        assert_eq!(interposed_by_us([none, own]), None);
        assert_eq!(interposed_by_us([none, none]), None);
    }

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
