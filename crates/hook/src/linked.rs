//! Resolution of the function that a caller would be linked to without this library.
//!
//! A process may have several runtime libraries, each opened for another library. The one
//! meant is found through the loader, among what the caller depends on; nothing is loaded.
//!
//! Invariants: a cached result is used only while nothing has been loaded or unloaded
//! since. The caller is loaded, since it makes a call, so it is the same one, and the
//! function it was linked to is loaded too. No lock of ours is held while the loader runs
//! (see `real_driver`): the cache is per thread.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use std::ffi::CString;

use fercuda_regime::{CallerCache, catch_panic};

use crate::next_definition::{close, interposed_by_us, open};
use crate::own_library::is_own;

/// The loader's counts of objects loaded and unloaded so far.
type LoadCounts = (u64, u64);

/// The cached resolution of a call.
#[derive(Clone, Copy)]
struct CachedLink {
    name: *const c_char,
    /// The loader's counts at the time of the resolution.
    counts: LoadCounts,
    function: NonNull<c_void>,
}

thread_local! {
    /// Resolutions by return address.
    static LINKS: CallerCache<CachedLink, 8> = const { CallerCache::new() };
}

impl CachedLink {
    fn is_valid(&self, name: &'static CStr, counts: LoadCounts) -> bool {
        (self.name, self.counts) == (name.as_ptr(), counts)
    }
}

/// The SONAME of the library that contains a return address.
pub(crate) fn soname(caller: usize) -> Option<CString> {
    let name = LinkMap::of(caller)?.soname()?;
    // SAFETY: the object's own string; the object is loaded while it makes a call.
    Some(unsafe { CStr::from_ptr(name) }.to_owned())
}

/// The function of a name that the code at a return address would be linked to if this
/// library had none of that name. The cache compares names by address.
pub(crate) fn function(name: &'static CStr, caller: usize) -> Option<NonNull<c_void>> {
    catch_panic(|| {
        let counts = load_counts();
        let cached = LINKS.with(|links| links.get(caller));
        if let Some(cached) = cached.filter(|cached| cached.is_valid(name, counts)) {
            return Some(cached.function);
        }
        let function = find(name, caller)?;
        let found = CachedLink {
            name: name.as_ptr(),
            counts,
            function,
        };
        LINKS.with(|links| links.put(caller, found));
        Some(function)
    })
}

/// The number of objects that the loader has unloaded so far.
pub(crate) fn unload_count() -> u64 {
    load_counts().1
}

/// The current counts. The loader counts before another thread may load or unload anything.
fn load_counts() -> LoadCounts {
    unsafe extern "C" fn of_any(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        into: *mut c_void,
    ) -> c_int {
        const STOP: c_int = 1;
        // SAFETY: the loader's description of an object, which has had these counts
        // for longer than CUDA has existed; `into` is what is passed below.
        let (object, into) = unsafe { (&*object, &mut *into.cast::<LoadCounts>()) };
        *into = (object.dlpi_adds, object.dlpi_subs);
        STOP
    }

    let mut counts: LoadCounts = (0, 0);
    // SAFETY: `counts` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(of_any), (&raw mut counts).cast()) };
    counts
}

#[cold]
fn find(name: &CStr, caller: usize) -> Option<NonNull<c_void>> {
    let in_its_dependencies = LinkMap::of(caller).and_then(|object| {
        let opened = OpenLibrary::reopen(object.name)?;
        opened.find(name).or_else(|| {
            // A library that depends on the driver depends on this one, which the loader may
            // find first; so each dependency is searched on its own.
            let mut needed = object.needed();
            needed.find_map(|needed| OpenLibrary::reopen(needed)?.find(name))
        })
    });
    // The program's dependencies, which other libraries may rely on too.
    let in_the_programs = || {
        let handles = [libc::RTLD_NEXT, libc::RTLD_DEFAULT];
        NonNull::new(interposed_by_us(
            handles.map(|handle| look_up(handle, name)),
        )?)
    };
    // Any loaded library: the loader does not report for which one it was loaded.
    let in_any_library = || {
        let mut all = loaded().into_iter();
        all.find_map(|object| OpenLibrary::reopen(object.as_ptr())?.find(name))
    };
    let found = in_its_dependencies
        .or_else(in_the_programs)
        .or_else(in_any_library);
    // Clears the errors of the failed lookups, which the program did not cause.
    // SAFETY: takes nothing; what it points to is not used.
    let _discarded = unsafe { libc::dlerror() };
    found
}

/// The names of all loaded libraries.
fn loaded() -> Vec<CString> {
    unsafe extern "C" fn note(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        into: *mut c_void,
    ) -> c_int {
        const CONTINUE: c_int = 0;
        // SAFETY: the loader's description of an object; `into` is what is
        // passed below.
        let (object, into) = unsafe { (&*object, &mut *into.cast::<Vec<CString>>()) };
        if !object.dlpi_name.is_null() {
            // SAFETY: the loader's own string.
            into.push(unsafe { CStr::from_ptr(object.dlpi_name) }.to_owned());
        }
        CONTINUE
    }

    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `names` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names.retain(|name| !name.is_empty());
    names
}

/// Looks up a symbol by a loader's handle.
fn look_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: an open handle, or one that searches the libraries behind this one, or all;
    // and a name.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// An additional reference to a loaded library, until this is dropped.
struct OpenLibrary(NonNull<c_void>);

impl OpenLibrary {
    fn reopen(name: *const c_char) -> Option<Self> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the loader's own string; nothing is loaded.
        let handle = NonNull::new(unsafe { open(name, flags) })?;
        Some(Self(handle))
    }

    /// A function in it or its dependencies, but none of ours.
    fn find(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let found = NonNull::new(look_up(self.0.as_ptr(), name))?;
        (!is_own(found.as_ptr())).then_some(found)
    }
}

impl Drop for OpenLibrary {
    fn drop(&mut self) {
        // SAFETY: opened by this, and closed once.
        let _other_references_remain = unsafe { close(self.0.as_ptr()) };
    }
}

/// The beginning of the loader's `struct link_map` of an object.
#[repr(C)]
struct LinkMap {
    /// The difference between the load address and the addresses in the file.
    load_bias: usize,
    /// As it was opened; empty for the program.
    name: *const c_char,
    /// The dynamic section, up to an entry of kind `DT_NULL`.
    entries: *const DynamicEntry,
}

/// An entry of an object's dynamic section.
#[repr(C)]
struct DynamicEntry {
    kind: isize,
    value: usize,
}

impl LinkMap {
    /// The library that contains a return address, which stays loaded during the call; `None`
    /// for the program itself.
    fn of<'call>(return_address: usize) -> Option<&'call LinkMap> {
        const LINK_MAP: c_int = 2;
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        let mut object: *mut c_void = null_mut();
        // A return address may lie just past the end of its function.
        let within = return_address.wrapping_sub(1) as *const c_void;
        // SAFETY: dladdr1 accepts any address; the results outlive the call.
        let found = unsafe { libc::dladdr1(within, info.as_mut_ptr(), &mut object, LINK_MAP) };
        if found == 0 {
            return None;
        }
        // SAFETY: the loader's description of an object that is loaded.
        let object = unsafe { object.cast::<LinkMap>().as_ref() }?;
        // SAFETY: null, or the loader's own string.
        let is_program = object.name.is_null() || unsafe { *object.name } == 0;
        (!is_program).then_some(object)
    }

    /// The names of the libraries that it depends on.
    fn needed(&self) -> impl Iterator<Item = *const c_char> {
        const NEEDED: isize = 1;
        self.strings(NEEDED)
    }

    /// The name by which other libraries depend on it.
    fn soname(&self) -> Option<*const c_char> {
        const SONAME: isize = 14;
        self.strings(SONAME).next()
    }

    /// The strings that entries of a kind name.
    fn strings(&self, kind_wanted: isize) -> impl Iterator<Item = *const c_char> {
        const END: isize = 0;
        const STRINGS: isize = 5;
        let mut at = self.entries;
        let entries = core::iter::from_fn(move || {
            // SAFETY: an entry of the section; iteration stops at the last one.
            let entry = unsafe { at.as_ref() }?;
            if entry.kind == END {
                return None;
            }
            at = at.wrapping_add(1);
            Some((entry.kind, entry.value))
        });
        let entries: Vec<(isize, usize)> = entries.collect();
        let strings = entries.iter().find(|(kind, _)| *kind == STRINGS);
        // The loader relocates this address in place, unless the section is read-only.
        let strings = strings.map_or(0, |(_, address)| *address);
        let strings = match strings < self.load_bias {
            true => self.load_bias.wrapping_add(strings),
            false => strings,
        };
        let named = entries
            .into_iter()
            .filter(move |(kind, _)| *kind == kind_wanted);
        named.map(move |(_, at)| strings.wrapping_add(at) as *const c_char)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_link_is_valid_until_anything_is_loaded_or_unloaded() {
        let (name, other) = (c"a function", c"another function");
        let cached = CachedLink {
            name: name.as_ptr(),
            counts: (7, 3),
            function: NonNull::dangling(),
        };
        assert!(cached.is_valid(name, (7, 3)));
        assert!(!cached.is_valid(name, (8, 3)) && !cached.is_valid(name, (6, 3)));
        assert!(!cached.is_valid(name, (7, 4)) && !cached.is_valid(other, (7, 3)));
    }
}
