//! The function that a caller is linked to, of a name that this library has
//! before it.
//!
//! Of a runtime library there may be several in a process, each opened for
//! somebody. Which is meant the loader says, asked for what the caller needs;
//! nothing is loaded that was not.
//!
//! Invariants: what is kept for a caller is used only while nothing has been
//! loaded or unloaded since. The caller is there, being at work; so it is the
//! same one, and what it was found to be linked to is there too. Nothing of ours
//! is held while the loader is asked (see `real`): what is kept is a thread's own.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use std::ffi::CString;

use fercuda_regime::{Recent, guarded};

use crate::{loader, real};

/// How many objects the loader has loaded so far, and unloaded.
type Changes = (u64, u64);

/// What a call was found to lead to.
#[derive(Clone, Copy)]
struct Known {
    name: *const c_char,
    /// What had been loaded and unloaded by then.
    changes: Changes,
    function: NonNull<c_void>,
}

thread_local! {
    /// By the return addresses of calls.
    static KNOWN: Recent<Known, 8> = const { Recent::new() };
}

impl Known {
    fn holds(&self, name: &'static CStr, changes: Changes) -> bool {
        (self.name, self.changes) == (name.as_ptr(), changes)
    }
}

/// The name by which others need the library that the code at a return address
/// belongs to.
pub(crate) fn soname(caller: usize) -> Option<CString> {
    let name = Object::of(caller)?.soname()?;
    // SAFETY: the object's own string, and it is loaded while it makes a call.
    Some(unsafe { CStr::from_ptr(name) }.to_owned())
}

/// The function of a name that the code at a return address is linked to, as if
/// this library had none of that name. A name is known again by where it is.
pub(crate) fn function(name: &'static CStr, caller: usize) -> Option<NonNull<c_void>> {
    guarded(|| {
        let changes = changes();
        let known = KNOWN.with(|known| known.get(caller));
        if let Some(known) = known.filter(|known| known.holds(name, changes)) {
            return Some(known.function);
        }
        let function = find(name, caller)?;
        let found = Known {
            name: name.as_ptr(),
            changes,
            function,
        };
        KNOWN.with(|known| known.put(caller, found));
        Some(function)
    })
}

/// As of now. The loader counts before others may load or unload anything.
fn changes() -> Changes {
    unsafe extern "C" fn of_any(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        into: *mut c_void,
    ) -> c_int {
        const THAT_IS_ALL: c_int = 1;
        // SAFETY: the loader's description of an object, which has had these counts
        // for longer than there has been CUDA; `into` is what was given below.
        let (object, into) = unsafe { (&*object, &mut *into.cast::<Changes>()) };
        *into = (object.dlpi_adds, object.dlpi_subs);
        THAT_IS_ALL
    }

    let mut changes: Changes = (0, 0);
    // SAFETY: `changes` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(of_any), (&raw mut changes).cast()) };
    changes
}

#[cold]
fn find(name: &CStr, caller: usize) -> Option<NonNull<c_void>> {
    let of_its_own = Object::of(caller).and_then(|object| {
        let opened = Opened::again(object.name)?;
        opened.find(name).or_else(|| {
            // Beside this library, of which a library may be in need by the driver's
            // name, and which the loader may come to first.
            let mut needed = object.needed();
            needed.find_map(|needed| Opened::again(needed)?.find(name))
        })
    });
    // Of the program, which others may count on too.
    let of_the_program = || {
        let places = [libc::RTLD_NEXT, libc::RTLD_DEFAULT];
        NonNull::new(loader::behind(places.map(|place| look_up(place, name)))?)
    };
    // Of whoever it was loaded for, which the loader does not tell.
    let of_anybody = || {
        let mut all = loaded().into_iter();
        all.find_map(|object| Opened::again(object.as_ptr())?.find(name))
    };
    let found = of_its_own.or_else(of_the_program).or_else(of_anybody);
    // Wherever it was not, the program's own calls had no error.
    // SAFETY: takes nothing; what it points to is not used.
    let _it_is_forgotten = unsafe { libc::dlerror() };
    found
}

/// The names of all libraries.
fn loaded() -> Vec<CString> {
    unsafe extern "C" fn note(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        into: *mut c_void,
    ) -> c_int {
        const GO_ON: c_int = 0;
        // SAFETY: the loader's description of an object; `into` is what was given
        // below.
        let (object, into) = unsafe { (&*object, &mut *into.cast::<Vec<CString>>()) };
        if !object.dlpi_name.is_null() {
            // SAFETY: the loader's own string.
            into.push(unsafe { CStr::from_ptr(object.dlpi_name) }.to_owned());
        }
        GO_ON
    }

    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `names` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names.retain(|name| !name.is_empty());
    names
}

/// What the loader finds by a handle.
fn look_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: an open handle, or one that means the libraries behind this one, or
    // all; and a name.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// A library that is open already, once more until this is dropped.
struct Opened(NonNull<c_void>);

impl Opened {
    fn again(name: *const c_char) -> Option<Self> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the loader's own string; nothing is loaded.
        let handle = NonNull::new(unsafe { loader::open(name, flags) })?;
        Some(Self(handle))
    }

    /// A function in it or in what it needs, but none of ours.
    fn find(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let found = NonNull::new(look_up(self.0.as_ptr(), name))?;
        (!real::is_own(found.as_ptr())).then_some(found)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by this, and closed once.
        let _others_have_it_open = unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// What the loader shows of an object: the beginning of its `struct link_map`.
#[repr(C)]
struct Object {
    moved_by: usize,
    /// As it was opened; empty for the program.
    name: *const c_char,
    /// To the last one, which says so.
    entries: *const Entry,
}

/// An entry of an object's dynamic section.
#[repr(C)]
struct Entry {
    kind: isize,
    value: usize,
}

impl Object {
    /// The one that code belongs to that makes a call, if it is a library. It
    /// stays loaded for so long.
    fn of<'call>(return_address: usize) -> Option<&'call Object> {
        const LINK_MAP: c_int = 2;
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        let mut object: *mut c_void = null_mut();
        // A return address may be just behind its function.
        let within = return_address.wrapping_sub(1) as *const c_void;
        // SAFETY: any address may be asked for; the results outlive the call.
        let found = unsafe { libc::dladdr1(within, info.as_mut_ptr(), &mut object, LINK_MAP) };
        if found == 0 {
            return None;
        }
        // SAFETY: the loader's description of an object that is loaded.
        let object = unsafe { object.cast::<Object>().as_ref() }?;
        // SAFETY: null, or the loader's own string.
        let is_program = object.name.is_null() || unsafe { *object.name } == 0;
        (!is_program).then_some(object)
    }

    /// The names of the libraries that it needs.
    fn needed(&self) -> impl Iterator<Item = *const c_char> {
        const NEEDED: isize = 1;
        self.strings(NEEDED)
    }

    /// The name that it is needed by.
    fn soname(&self) -> Option<*const c_char> {
        const SONAME: isize = 14;
        self.strings(SONAME).next()
    }

    /// What entries of a kind name.
    fn strings(&self, of: isize) -> impl Iterator<Item = *const c_char> {
        const END: isize = 0;
        const STRINGS: isize = 5;
        let mut at = self.entries;
        let entries = core::iter::from_fn(move || {
            // SAFETY: an entry of the section's, at the latest its last.
            let entry = unsafe { at.as_ref() }?;
            if entry.kind == END {
                return None;
            }
            at = at.wrapping_add(1);
            Some((entry.kind, entry.value))
        });
        let entries: Vec<(isize, usize)> = entries.collect();
        let strings = entries.iter().find(|(kind, _)| *kind == STRINGS);
        // The loader has put the address there, unless it may not write there.
        let strings = strings.map_or(0, |(_, address)| *address);
        let strings = match strings < self.moved_by {
            true => self.moved_by.wrapping_add(strings),
            false => strings,
        };
        let named = entries.into_iter().filter(move |(kind, _)| *kind == of);
        named.map(move |(_, at)| strings.wrapping_add(at) as *const c_char)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_holds_of_a_name_until_anything_is_loaded_or_unloaded() {
        let (name, other) = (c"a function", c"another function");
        let known = Known {
            name: name.as_ptr(),
            changes: (7, 3),
            function: NonNull::dangling(),
        };
        assert!(known.holds(name, (7, 3)));
        assert!(!known.holds(name, (8, 3)) && !known.holds(name, (6, 3)));
        assert!(!known.holds(name, (7, 4)) && !known.holds(other, (7, 3)));
    }
}
