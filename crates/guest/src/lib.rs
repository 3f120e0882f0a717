//! `libfercuda_guest.so`: our own runtime as a guest of whatever process
//! loads it, with a C interface. See the README.
//!
//! Holds the interface; what is computed and kept is in `work`.
//!
//! Invariant: nothing unwinds into the caller.

mod work;

use core::ffi::{c_char, c_int};
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

use work::Kept;

/// What the last `take` has kept.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// Takes memory of a device, computes there, and keeps part of the memory. 0 if
/// every result is right.
///
/// # Safety
/// `said` is null or has room for `said_bytes`.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_guest_take(
    device: u32,
    seed: u64,
    said: *mut c_char,
    said_bytes: usize,
) -> c_int {
    let done = guarded(|| {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_some() {
            return Err("what was taken before is not given back".to_owned());
        }
        let new = work::take(device, seed).map_err(|error| error.to_string())?;
        let text = new.to_string();
        *kept = Some(new);
        Ok(text)
    });
    // SAFETY: the caller's promise.
    unsafe { answer(done, said, said_bytes) }
}

/// Gives back what [`fercuda_guest_take`] has kept, having looked whether it
/// still holds what it held. 0 if it does.
///
/// # Safety
/// As for [`fercuda_guest_take`].
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_guest_give_back(said: *mut c_char, said_bytes: usize) -> c_int {
    let done = guarded(|| {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.take().ok_or("nothing is kept")?;
        kept.give_back().map_err(|error| error.to_string())
    });
    // SAFETY: the caller's promise.
    unsafe { answer(done, said, said_bytes) }
}

/// Keeps a defect of ours from unwinding into the caller.
fn guarded(
    work: impl FnOnce() -> Result<String, String> + std::panic::UnwindSafe,
) -> Result<String, String> {
    catch_unwind(work).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Writes what is to be said, and says whether all went well.
///
/// # Safety
/// `said` is null or has room for `said_bytes`.
unsafe fn answer(done: Result<String, String>, said: *mut c_char, said_bytes: usize) -> c_int {
    let (text, code) = match done {
        Ok(text) => (text, 0),
        Err(text) => (text, 1),
    };
    if let Some(room) = said_bytes.checked_sub(1)
        && !said.is_null()
    {
        let mut end = room.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = &text.as_bytes()[..end];
        // SAFETY: at most `said_bytes` with the zero, for which there is room.
        unsafe {
            said.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            said.add(bytes.len()).write(0);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(done: Result<String, String>, room: usize) -> (c_int, Vec<u8>) {
        let mut bytes = [0x7f_u8; 16];
        // SAFETY: `room` is not more than there is.
        let code = unsafe { answer(done, bytes.as_mut_ptr().cast(), room.min(16)) };
        (code, bytes.to_vec())
    }

    #[test]
    fn what_is_said_fits_and_ends() {
        let (code, bytes) = answered(Ok("fits".to_owned()), 16);
        assert_eq!((code, &bytes[..6]), (0, &b"fits\0\x7f"[..]));
        // Cut between characters, with the zero inside.
        let (code, bytes) = answered(Err("abc\u{e4}\u{e4}".to_owned()), 7);
        assert_eq!((code, &bytes[..8]), (1, &b"abc\xc3\xa4\0\x7f\x7f"[..]));
        let (_, bytes) = answered(Ok("abc".to_owned()), 0);
        assert_eq!(bytes, [0x7f; 16]);
        // SAFETY: nothing is written to no address.
        let code = unsafe { answer(Ok(String::new()), core::ptr::null_mut(), 9) };
        assert_eq!(code, 0);
    }
}
