//! `libfercuda_guest.so`, our own runtime as a library for any process, with a C interface.
//! See the README.
//!
//! Invariant: nothing unwinds into the caller. Elsewhere: the computation and the memory
//! it holds (`work`).

mod work;

use core::ffi::{c_char, c_int};
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

use work::RetainedMemory;

/// The memory that the last `take` retains.
static RETAINED: Mutex<Option<RetainedMemory>> = Mutex::new(None);

/// Allocates memory on a device, computes there, and retains part of the memory. Returns 0
/// if every result is right.
///
/// # Safety
/// `message` is null or has room for `message_bytes`.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_guest_take(
    device: u32,
    seed: u64,
    message: *mut c_char,
    message_bytes: usize,
) -> c_int {
    let result = catch_panic(|| {
        let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
        if retained.is_some() {
            return Err("memory of an earlier take is still held; give it back first".to_owned());
        }
        let new = work::take(device, seed).map_err(|error| error.to_string())?;
        let text = new.to_string();
        *retained = Some(new);
        Ok(text)
    });
    // SAFETY: the caller's promise.
    unsafe { write_result(result, message, message_bytes) }
}

/// Frees the memory that [`fercuda_guest_take`] retains, after checking that its contents are
/// unchanged. Returns 0 if they are.
///
/// # Safety
/// As for [`fercuda_guest_take`].
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_guest_give_back(
    message: *mut c_char,
    message_bytes: usize,
) -> c_int {
    let result = catch_panic(|| {
        let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
        let retained = retained.take().ok_or("no memory is held")?;
        retained
            .verify_and_free()
            .map_err(|error| error.to_string())
    });
    // SAFETY: the caller's promise.
    unsafe { write_result(result, message, message_bytes) }
}

/// Runs `work` and returns an error if it panics: no panic unwinds into the caller.
fn catch_panic(
    work: impl FnOnce() -> Result<String, String> + std::panic::UnwindSafe,
) -> Result<String, String> {
    catch_unwind(work).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Writes a result's text to `message`, cut to fit, and returns its code: 0 for success, else 1.
///
/// # Safety
/// `message` is null or has room for `message_bytes`.
unsafe fn write_result(
    result: Result<String, String>,
    message: *mut c_char,
    message_bytes: usize,
) -> c_int {
    let (text, code) = match result {
        Ok(text) => (text, 0),
        Err(text) => (text, 1),
    };
    if let Some(room) = message_bytes.checked_sub(1)
        && !message.is_null()
    {
        let mut end = room.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = &text.as_bytes()[..end];
        // SAFETY: at most `message_bytes` with the zero, for which there is room.
        unsafe {
            message.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            message.add(bytes.len()).write(0);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(result: Result<String, String>, room: usize) -> (c_int, Vec<u8>) {
        let mut bytes = [0x7f_u8; 16];
        // SAFETY: `room` is not more than there is.
        let code = unsafe { write_result(result, bytes.as_mut_ptr().cast(), room.min(16)) };
        (code, bytes.to_vec())
    }

    #[test]
    fn a_message_is_cut_to_fit_and_terminated() {
        let (code, bytes) = written(Ok("fits".to_owned()), 16);
        assert_eq!((code, &bytes[..6]), (0, &b"fits\0\x7f"[..]));
        // Cut between characters, with the zero inside.
        let (code, bytes) = written(Err("abc\u{e4}\u{e4}".to_owned()), 7);
        assert_eq!((code, &bytes[..8]), (1, &b"abc\xc3\xa4\0\x7f\x7f"[..]));
        let (_, bytes) = written(Ok("abc".to_owned()), 0);
        assert_eq!(bytes, [0x7f; 16]);
        // SAFETY: nothing is written to no address.
        let code = unsafe { write_result(Ok(String::new()), core::ptr::null_mut(), 9) };
        assert_eq!(code, 0);
    }
}
