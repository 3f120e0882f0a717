//! The loader's own functions, behind those of the same names that this library interposes.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::own_library::is_own;

/// Looks up the next definition of a loader's function, once.
pub(crate) fn next(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
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
    (!found.is_null() && !is_own(found)).then_some(found)
}

/// Stands in for a `dlopen` that no library defines.
extern "C" fn open_fails() -> *mut c_void {
    core::ptr::null_mut()
}

/// The next definition of `dlopen`.
pub(crate) fn next_dlopen() -> *mut c_void {
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

/// The loader's own `dlclose`.
///
/// # Safety
/// As for `dlclose`.
pub(crate) unsafe fn close(library: *mut c_void) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: the loader's function of this type, or one that ignores its arguments and whose
    // answer is 0; the caller's promise for the rest.
    unsafe {
        let function = core::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*mut c_void) -> c_int,
        >(next(&NEXT, c"dlclose"));
        function(library)
    }
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
}
