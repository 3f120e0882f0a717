//! What C gave: pointers that are looked at before they are followed.
//!
//! Invariant: nothing here keeps a pointer beyond the call that it was given for; who
//! does takes it from [`Room::begin`].

use core::ffi::{CStr, c_char};
use core::ptr::NonNull;

use crate::status::{Failure, Result};

fn checked<T>(name: &str, pointer: *const T) -> Result<NonNull<T>> {
    let Some(pointer) = NonNull::new(pointer.cast_mut()) else {
        let to = size_of::<T>();
        return Err(Failure::argument(
            name,
            format!("it is NULL\ntry: the address of the {to} bytes that it is about"),
        ));
    };
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(Failure::argument(
            name,
            format!("{pointer:?} is no multiple of {align}\ntry: a variable of its type"),
        ));
    }
    Ok(pointer)
}

/// What a pointer leads to.
///
/// # Safety
/// It is null, or leads to a `T` that nobody writes meanwhile.
pub(crate) unsafe fn given<T: Copy>(name: &str, pointer: *const T) -> Result<T> {
    let pointer = checked(name, pointer)?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { pointer.read() })
}

/// Where so many of them begin; none for none, for which null will do.
fn range<T>(name: &str, pointer: *const T, len: u64) -> Result<Option<NonNull<T>>> {
    if len == 0 {
        return Ok(None);
    }
    let begin = checked(name, pointer)?;
    let bytes = len.checked_mul(size_of::<T>() as u64);
    if bytes.is_none_or(|bytes| bytes > isize::MAX as u64) {
        return Err(Failure::argument(
            name,
            format!("{len} elements are more than memory can hold\ntry: the number that there is"),
        ));
    }
    Ok(Some(begin))
}

/// So many of them; null only for none.
///
/// # Safety
/// It is null, or leads to `len` of them that nobody writes as long as this is used.
pub(crate) unsafe fn list<'a, T>(name: &str, pointer: *const T, len: u64) -> Result<&'a [T]> {
    let Some(begin) = range(name, pointer, len)? else {
        return Ok(&[]);
    };
    // SAFETY: not null, aligned and no longer than memory can be; the rest is the
    // caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(begin.as_ptr(), len as usize) })
}

/// A text that ends with a zero byte.
///
/// # Safety
/// It is null, or leads to such a text, which nobody writes as long as this is used.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str> {
    let pointer = checked(name, pointer)?;
    // SAFETY: not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer.as_ptr()) };
    text.to_str().map_err(|error| {
        Failure::argument(
            name,
            format!("the text is no UTF-8 ({error})\ntry: UTF-8, ended by a zero byte"),
        )
    })
}

/// Where a result goes.
pub(crate) struct Place<T>(NonNull<T>);

impl<T> Place<T> {
    /// # Safety
    /// It is null, or has room for a `T` that nobody else uses as long as this is there.
    pub(crate) unsafe fn new(name: &str, pointer: *mut T) -> Result<Self> {
        Ok(Self(checked(name, pointer)?))
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: not null and aligned; that there is room was promised to `new`. What
        // was there is C's, and nothing that would have to be dropped.
        unsafe { self.0.write(value) }
    }
}

/// Where several results go.
pub(crate) struct Room<T> {
    begin: Option<NonNull<T>>,
    len: usize,
}

impl<T: Copy> Room<T> {
    /// Null only for no room.
    ///
    /// # Safety
    /// It is null, or has room for `len` of them that nobody else uses as long as this
    /// is there.
    pub(crate) unsafe fn new(name: &str, pointer: *mut T, len: u64) -> Result<Self> {
        Ok(Self {
            begin: range(name, pointer, len)?,
            len: len as usize,
        })
    }

    /// Where it begins, for who was promised more than the time of a call.
    pub(crate) fn begin(&self) -> Option<NonNull<T>> {
        self.begin
    }

    /// Puts in as many as there is room for.
    pub(crate) fn put(self, values: &[T]) {
        let Some(begin) = self.begin else { return };
        let len = values.len().min(self.len);
        // SAFETY: not null and aligned; that there is room for `self.len` of them was
        // promised to `new`, which also means that `values` do not lie there.
        unsafe {
            begin
                .as_ptr()
                .copy_from_nonoverlapping(values.as_ptr(), len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() {
        // SAFETY: null.
        let refused = unsafe { given::<u64>("layout", core::ptr::null()) }.unwrap_err();
        assert!(refused.message.starts_with("layout: it is NULL"));
        // SAFETY: it is not followed.
        let refused =
            unsafe { given("layout", core::ptr::without_provenance::<u64>(5)) }.unwrap_err();
        assert!(refused.message.contains("multiple of 8"));
        // SAFETY: it is not followed.
        let refused = unsafe { list("shape", core::ptr::dangling::<u64>(), u64::MAX) }.unwrap_err();
        assert!(refused.message.contains("shape"));
        // SAFETY: null, for nothing.
        assert!(unsafe { list::<u64>("shape", core::ptr::null(), 0) }.is_ok());
        // SAFETY: a text.
        let refused = unsafe { text("name", c"\xff".as_ptr()) }.unwrap_err();
        assert!(refused.message.contains("UTF-8"));
        // SAFETY: null.
        assert!(unsafe { Place::<u8>::new("job", core::ptr::null_mut()) }.is_err());
    }

    #[test]
    fn as_much_is_put_as_there_is_room_for() {
        let mut there = [7_u8; 4];
        // SAFETY: not more than there is.
        let room = unsafe { Room::new("into", there.as_mut_ptr(), 2) }.unwrap();
        room.put(&[1, 2, 3]);
        assert_eq!(there, [1, 2, 7, 7]);
        // SAFETY: null, for nothing.
        let none = unsafe { Room::new("into", core::ptr::null_mut(), 0) }.unwrap();
        none.put(&[1_u8]);
    }
}
