//! Pointers from C, validated before they are dereferenced.
//!
//! Invariant: no pointer is kept beyond the call that it was passed to; a caller that was promised
//! more takes it from [`OutArray::begin`].

use core::ffi::{CStr, c_char};
use core::ptr::NonNull;

use crate::status::{CallFailure, Result};

fn checked<T>(name: &str, pointer: *const T) -> Result<NonNull<T>> {
    let Some(pointer) = NonNull::new(pointer.cast_mut()) else {
        let to = size_of::<T>();
        return Err(CallFailure::argument(
            name,
            format!("it is NULL\ntry: a pointer to {to} bytes"),
        ));
    };
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(CallFailure::argument(
            name,
            format!("{pointer:?} is no multiple of {align}\ntry: a variable of its type"),
        ));
    }
    Ok(pointer)
}

/// Reads the value that a pointer points to.
///
/// # Safety
/// It is null, or points to a `T` that no thread writes meanwhile.
pub(crate) unsafe fn read_pointer<T: Copy>(name: &str, pointer: *const T) -> Result<T> {
    let pointer = checked(name, pointer)?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { pointer.read() })
}

/// The beginning of an array; `None` for an empty one, for which null is valid.
fn range<T>(name: &str, pointer: *const T, len: u64) -> Result<Option<NonNull<T>>> {
    if len == 0 {
        return Ok(None);
    }
    let begin = checked(name, pointer)?;
    let bytes = len.checked_mul(size_of::<T>() as u64);
    if bytes.is_none_or(|bytes| bytes > isize::MAX as u64) {
        return Err(CallFailure::argument(
            name,
            format!("{len} elements exceed the address space\ntry: the real number of elements"),
        ));
    }
    Ok(Some(begin))
}

/// An array of `len` elements; may be null only if it is empty.
///
/// # Safety
/// It is null, or points to `len` elements that no thread writes as long as this is used.
pub(crate) unsafe fn list<'a, T>(name: &str, pointer: *const T, len: u64) -> Result<&'a [T]> {
    let Some(begin) = range(name, pointer, len)? else {
        return Ok(&[]);
    };
    // SAFETY: not null, aligned and no longer than memory can be; the rest is the
    // caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(begin.as_ptr(), len as usize) })
}

/// A zero-terminated string.
///
/// # Safety
/// It is null, or points to such a string, which no thread writes as long as this is used.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str> {
    let pointer = checked(name, pointer)?;
    // SAFETY: not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer.as_ptr()) };
    text.to_str().map_err(|error| {
        CallFailure::argument(
            name,
            format!("the text is not UTF-8 ({error})\ntry: UTF-8, ended by a zero byte"),
        )
    })
}

/// Output pointer of a result.
pub(crate) struct OutPointer<T>(NonNull<T>);

impl<T> OutPointer<T> {
    /// # Safety
    /// It is null, or has room for a `T` that no other code uses as long as this exists.
    pub(crate) unsafe fn new(name: &str, pointer: *mut T) -> Result<Self> {
        Ok(Self(checked(name, pointer)?))
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: not null and aligned; that there is room was promised to `new`. The previous
        // value is C's, and has no destructor.
        unsafe { self.0.write(value) }
    }
}

/// Output array of results.
pub(crate) struct OutArray<T> {
    begin: Option<NonNull<T>>,
    len: usize,
}

impl<T: Copy> OutArray<T> {
    /// May be null only for a length of 0.
    ///
    /// # Safety
    /// It is null, or has room for `len` elements that no other code uses as long as this exists.
    pub(crate) unsafe fn new(name: &str, pointer: *mut T, len: u64) -> Result<Self> {
        Ok(Self {
            begin: range(name, pointer, len)?,
            len: len as usize,
        })
    }

    /// The beginning, for a caller that was promised more than the time of a call.
    pub(crate) fn begin(&self) -> Option<NonNull<T>> {
        self.begin
    }

    /// Writes as many values as there is room for.
    pub(crate) fn put(self, values: &[T]) {
        let Some(begin) = self.begin else { return };
        let len = values.len().min(self.len);
        // SAFETY: not null and aligned; that there is room for `self.len` elements was promised to
        // `new`, which also means that `values` does not overlap it.
        unsafe {
            begin
                .as_ptr()
                .copy_from_nonoverlapping(values.as_ptr(), len)
        }
    }
}

impl OutArray<u8> {
    /// Writes a text with a zero behind it, cut to the room with the zero at its end; returns the
    /// room that all of it needs.
    pub(crate) fn put_text(self, text: String) -> u64 {
        let mut bytes = text.into_bytes();
        bytes.push(0);
        if let Some(last) = self.len.checked_sub(1).filter(|last| *last < bytes.len()) {
            bytes[last] = 0;
        }
        let needed = bytes.len() as u64;
        self.put(&bytes);
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_pointer_is_reported_by_name() {
        // SAFETY: null.
        let refused = unsafe { read_pointer::<u64>("layout", core::ptr::null()) }.unwrap_err();
        assert!(refused.message.starts_with("layout: it is NULL"));
        // SAFETY: it is not dereferenced.
        let refused =
            unsafe { read_pointer("layout", core::ptr::without_provenance::<u64>(5)) }.unwrap_err();
        assert!(refused.message.contains("multiple of 8"));
        // SAFETY: it is not dereferenced.
        let refused = unsafe { list("shape", core::ptr::dangling::<u64>(), u64::MAX) }.unwrap_err();
        assert!(refused.message.contains("shape"));
        // SAFETY: null, for an empty array.
        assert!(unsafe { list::<u64>("shape", core::ptr::null(), 0) }.is_ok());
        // SAFETY: a text.
        let refused = unsafe { text("name", c"\xff".as_ptr()) }.unwrap_err();
        assert!(refused.message.contains("UTF-8"));
        // SAFETY: null.
        assert!(unsafe { OutPointer::<u8>::new("job", core::ptr::null_mut()) }.is_err());
    }

    #[test]
    fn output_is_cut_to_the_room() {
        let mut there = [7_u8; 4];
        // SAFETY: the length is that of the array.
        let room = unsafe { OutArray::new("into", there.as_mut_ptr(), 2) }.unwrap();
        room.put(&[1, 2, 3]);
        assert_eq!(there, [1, 2, 7, 7]);
        // SAFETY: null, for an empty array.
        let none = unsafe { OutArray::new("into", core::ptr::null_mut(), 0) }.unwrap();
        none.put(&[1_u8]);
    }
}
