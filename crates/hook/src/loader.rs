//! `dlopen` and `dlmopen`, for those who ask for the driver by other names.
//!
//! The library poses as `libcuda.so.1`, which catches who links to that name or
//! opens it. `libcuda.so` and absolute paths would get past it; they are led
//! here. All else goes on to the loader, by a jump, since the loader looks at
//! its caller's address. `dlsym` needs nothing for the driver: a handle of this
//! library has its symbols.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use fercuda_regime::{guarded, is_disabled, say};

use crate::{real, runtime};

/// A name that no file can have, by which the loader says that there is none:
/// programs look for the end of it in what it says. It is a path, or else the
/// loader would find this library by its name.
const NOWHERE: &CStr = c"/proc/no-driver/libcuda.so.1";

/// Where to jump, and with which name.
#[repr(C)]
struct Way {
    function: *mut c_void,
    name: *const c_char,
}

/// Looks a function of the loader's up once.
fn next(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = slot.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let places = [libc::RTLD_NEXT, libc::RTLD_DEFAULT];
    // SAFETY: a name, and the handles that mean the libraries behind this one,
    // and all.
    let all = places.map(|place| unsafe { libc::dlsym(place, name.as_ptr()) });
    let found = behind(all).unwrap_or(opens_nothing as *mut c_void);
    slot.store(found, Relaxed);
    found
}

/// The function that one of ours stands before, if it was found: in a library
/// behind this one, or in one that was loaded before it, as a C library may be
/// that is preloaded too. Which of them a name means in our own code is the
/// loader's to say, so the address tells.
pub(crate) fn behind([next, first]: [*mut c_void; 2]) -> Option<*mut c_void> {
    let found = if next.is_null() { first } else { next };
    (!found.is_null() && !real::is_own(found)).then_some(found)
}

/// In place of a function that no library has.
extern "C" fn opens_nothing() -> *mut c_void {
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
    // SAFETY: the loader's function of this type, or one that looks at nothing;
    // the caller answers for the rest.
    unsafe {
        let function = core::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
        >(next_dlopen());
        function(name, flags)
    }
}

/// Whether a name, with or without folders, is the driver's library's.
fn is_the_drivers(name: &[u8]) -> bool {
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
unsafe extern "C" fn choose(name: *const c_char, caller: usize) -> Way {
    let function = next_dlopen();
    // SAFETY: the caller's promise.
    let is_ours = !name.is_null() && is_the_drivers(unsafe { CStr::from_ptr(name) }.to_bytes());
    if !is_ours {
        return Way { function, name };
    }
    let led = guarded(|| {
        if is_disabled() {
            return None;
        }
        runtime::driver_opened_by(caller);
        Some(match (real::real(), real::own_path()) {
            (Some(_), Some(own)) => own,
            // There is no driver; this library must not hide it.
            _ => NOWHERE,
        })
    });
    let name = led.map_or(name, CStr::as_ptr);
    Way { function, name }
}

/// Notes a `dlmopen` of the driver: what is loaded into another namespace gets
/// past this library.
///
/// # Safety
/// `name` is null or a C string.
unsafe extern "C" fn note_namespace(name: *const c_char) -> *mut c_void {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    static SAID: AtomicBool = AtomicBool::new(false);
    // SAFETY: the caller's promise.
    let is_ours = !name.is_null() && is_the_drivers(unsafe { CStr::from_ptr(name) }.to_bytes());
    guarded(|| {
        if is_ours && !is_disabled() && !SAID.swap(true, Relaxed) {
            say(
                "a library opens the driver in a namespace of its own (dlmopen)\n\
                 what it allocates there is not governed; reconciling shows it as ungoverned",
            );
        }
        Some(())
    });
    next(&NEXT, c"dlmopen")
}

/// See the module.
// SAFETY: stands before the loader's function of this name, and jumps to it.
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

/// See the module.
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
    fn what_no_library_has_opens_nothing() {
        let slot = AtomicPtr::new(core::ptr::null_mut());
        let found = next(&slot, c"dlopen_of_no_library");
        assert_eq!(found, opens_nothing as *mut c_void);
        assert_eq!(slot.load(Relaxed), found);
        assert!(opens_nothing().is_null());
    }

    #[test]
    fn a_function_of_the_loaders_is_never_the_one_that_stands_before_it() {
        let own = opens_nothing as *mut c_void;
        let other = libc::getpid as *mut c_void;
        let none = core::ptr::null_mut();
        assert_eq!(behind([other, own]), Some(other));
        assert_eq!(behind([none, other]), Some(other));
        assert_eq!(behind([none, own]), None);
        assert_eq!(behind([none, none]), None);
    }

    #[test]
    fn only_the_drivers_own_names_are_led_here() {
        for name in [
            "libcuda.so",
            "libcuda.so.1",
            "/usr/lib/libcuda.so.1",
            "libcuda.so.580.1.2",
        ] {
            assert!(is_the_drivers(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "libcudart.so.13",
            "libcuda.so.1.bak",
            "libcuda.so.old",
            "notlibcuda.so",
            "/x/libcuda.so.1/libcurl.so",
        ] {
            assert!(!is_the_drivers(name.as_bytes()), "{name}");
        }
    }
}
