//! Attribution of a call to a tenant by its return address.
//!
//! The object that holds the return address is looked up once per address. CUDA's
//! runtime library and the bridge by which Python calls C functions (libffi) call on
//! behalf of their own callers, so their frames are skipped. The stack offset of their
//! callers' return addresses is found by unwinding once per call site; after that it is
//! one load.
//!
//! Invariants: a wrong answer charges the wrong tenant and does nothing else. What is
//! cached is dropped when a library is unloaded: another may be loaded at its addresses. A
//! cached offset is used only if the word there is a return address that was looked up
//! before. And only the thread's own stack is read by offset: the next call from that
//! site may run with less stack above it, on the small stack of a fiber or a signal
//! handler.

use core::ffi::{CStr, c_int, c_void};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use fercuda_governor::Governor;
use fercuda_ledger::Tenant;
use rustc_hash::FxHashMap;

use crate::caller_cache::CallerCache;
use crate::unloading::LibraryEpoch;

/// No tenant is set: calls are attributed by their return address.
pub const BY_ADDRESS: u32 = u32::MAX;

/// Frames that are unwound at most.
const MAX_FRAMES: usize = 64;
/// The limit of a cached offset, in words.
const MAX_OFFSET_WORDS: usize = 4096;

/// What a return address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOrigin {
    /// A tenant's own code.
    Tenant(Tenant),
    /// A bridge; its caller's return address lies this many words up the stack.
    Bridge(usize),
    /// A bridge; the offset of its caller's return address is unknown.
    BridgeToUnwind,
}

/// A thread's cache of its callers.
struct ThreadCallers {
    /// The mapped range of the thread's own stack, start and end; zeros before the
    /// range was looked up.
    stack: Cell<(usize, usize)>,
    /// The tenant that all calls are charged to, if it is set.
    acting: Cell<Option<Tenant>>,
    sites: CallerCache<CallOrigin, 16>,
    /// The epoch that the sites are of.
    epoch: Cell<LibraryEpoch>,
}

thread_local! {
    static CALLERS: ThreadCallers = const {
        ThreadCallers::new()
    };
}

impl ThreadCallers {
    const fn new() -> Self {
        Self {
            stack: Cell::new((0, 0)),
            acting: Cell::new(None),
            sites: CallerCache::new(),
            epoch: Cell::new(LibraryEpoch::FIRST),
        }
    }

    /// The tenant of a call, if all that it depends on is cached.
    ///
    /// # Safety
    /// As for [`tenant`].
    #[inline]
    unsafe fn tenant(&self, frame: *const usize) -> Option<Tenant> {
        if let Some(tenant) = self.acting.get() {
            return Some(tenant);
        }
        if LibraryEpoch::now() != self.epoch.get() {
            return None;
        }
        // SAFETY: the caller's promise.
        let offset = match self.sites.get(unsafe { *frame })? {
            CallOrigin::Tenant(tenant) => return Some(tenant),
            CallOrigin::Bridge(offset) => offset,
            CallOrigin::BridgeToUnwind => return None,
        };
        let beyond = frame.wrapping_add(offset);
        let (from, end) = self.stack.get();
        // A frame on the thread's own stack has all of that stack above it.
        if (frame as usize) < from || (beyond as usize) >= end {
            return None;
        }
        // SAFETY: between a frame of the thread's own stack and that stack's
        // end, which words do not straddle.
        match self.sites.get(unsafe { *beyond })? {
            CallOrigin::Tenant(tenant) => Some(tenant),
            _ => None,
        }
    }
}

/// The tenant that made the call with this stack frame: `frame` points to the return
/// address.
///
/// # Safety
/// `frame` points to the return address of a call of this thread that has not returned.
#[inline]
pub unsafe fn tenant(governor: &Governor, frame: *const usize) -> Tenant {
    // SAFETY: the caller's promise.
    match CALLERS.try_with(|callers| unsafe { callers.tenant(frame) }) {
        Ok(Some(tenant)) => tenant,
        // SAFETY: the caller's promise.
        _ => resolve(governor, unsafe { *frame }, frame),
    }
}

/// Charges the calling thread's calls to a tenant, given by its index, from now on;
/// [`BY_ADDRESS`] returns to attribution by return address. Returns the setting before.
/// An exiting thread has none.
pub(crate) fn act_as(tenant: u32) -> u32 {
    let before = CALLERS.try_with(|callers| callers.acting.replace(Tenant::from_index(tenant)));
    let before = before.ok().flatten();
    before.map_or(BY_ADDRESS, |tenant| tenant.index() as u32)
}

/// Caches what was found out since `epoch` was the current one.
fn remember(epoch: LibraryEpoch, address: usize, site: CallOrigin) {
    let _an_exiting_thread_caches_nothing = CALLERS.try_with(|callers| {
        if callers.epoch.replace(epoch) != epoch {
            callers.sites.clear();
        }
        callers.sites.put(address, site);
        if matches!(site, CallOrigin::Bridge(_)) && callers.stack.get() == (0, 0) {
            // If the range is unknown it stays empty, and each call unwinds.
            if let Some(stack) = own_stack() {
                callers.stack.set(stack);
            }
        }
    });
}

/// The range of the calling thread's own stack, also while it runs on another. The main
/// thread's stack grows; its range is as far as it may reach.
fn own_stack() -> Option<(usize, usize)> {
    let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut from, mut bytes) = (core::ptr::null_mut(), 0);
    // SAFETY: the attributes are filled if the first call says so, and destroyed
    // once; the results outlive the calls.
    let found = unsafe {
        let this = libc::pthread_self();
        libc::pthread_getattr_np(this, attributes.as_mut_ptr()) == 0 && {
            let found =
                libc::pthread_attr_getstack(attributes.as_ptr(), &mut from, &mut bytes) == 0;
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            found
        }
    };
    found.then_some((from as usize, from as usize + bytes))
}

/// The kind of object that code belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallerObject {
    /// A library or program, by its tenant's name.
    Named(String),
    /// A bridge, which calls on behalf of its callers.
    Bridge,
    /// Code in no file.
    Generated,
}

fn object_at(address: usize) -> CallerObject {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // A return address may lie just past the end of its function.
    let within = address.wrapping_sub(1) as *const c_void;
    // SAFETY: dladdr accepts any address; `info` is filled if it answers so.
    if unsafe { libc::dladdr(within, info.as_mut_ptr()) } == 0 {
        return CallerObject::Generated;
    }
    // SAFETY: filled, see above.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return CallerObject::Generated;
    }
    // SAFETY: the loader's own string, alive while the object is loaded, which
    // it is while its code is being called.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    classify(&name)
}

/// Tenant names by parts of library paths. Of several that match, the rightmost counts,
/// since an environment's folder may have any name.
const FAMILIES: [(&str, &str); 15] = [
    ("/libtorch", "torch"),
    ("/libc10", "torch"),
    ("/torch/", "torch"),
    ("/jaxlib/", "jax"),
    ("/jax_plugins/", "jax"),
    ("/jax_cuda", "jax"),
    ("/cupy", "cupy"),
    ("/libtriton", "triton"),
    ("/triton/", "triton"),
    ("/.triton/", "triton"),
    ("/libnccl", "nccl"),
    ("/libcublas", "cublas"),
    ("/libcudnn", "cudnn"),
    ("/cuda/bindings/", "cuda.bindings"),
    ("/cuda/core/", "cuda.core"),
];

/// Libraries that call on behalf of their callers.
const BRIDGES: [&str; 4] = ["libcudart", "libffi", "_ctypes.", "libfercuda_hook"];

fn classify(path: &str) -> CallerObject {
    let file = path.rsplit('/').next().unwrap_or(path);
    if BRIDGES.iter().any(|bridge| file.starts_with(bridge)) {
        return CallerObject::Bridge;
    }
    let stem = file.split(".so").next().unwrap_or(file);
    let stem = stem.split(".cpython").next().unwrap_or(stem);
    let stem = stem.strip_prefix("lib").unwrap_or(stem);
    // python3.11 and python3.12 are one tenant, in whatever environment.
    if stem.starts_with("python") {
        return CallerObject::Named("python".to_owned());
    }
    // Vendored copies are renamed: `libcudart-1a2b3c.so.12`, in some folder.
    let families = FAMILIES.iter();
    let family = families.filter_map(|(part, name)| Some((path.rfind(part)?, name)));
    if let Some((_, name)) = family.max_by_key(|(at, _)| *at) {
        return CallerObject::Named((*name).to_owned());
    }
    match stem {
        "" => CallerObject::Generated,
        stem => CallerObject::Named(stem.to_owned()),
    }
}

/// The tenant of code in no file.
const GENERATED: &str = "generated code";

#[cold]
fn resolve(governor: &Governor, address: usize, frame: *const usize) -> Tenant {
    let epoch = LibraryEpoch::now();
    match known_object(epoch, address) {
        CallerObject::Named(name) => remember_tenant(governor, epoch, address, &name),
        CallerObject::Generated => remember_tenant(governor, epoch, address, GENERATED),
        CallerObject::Bridge => {
            for (beyond, slot) in frames_above(frame) {
                let name = match known_object(epoch, beyond) {
                    CallerObject::Bridge => continue,
                    CallerObject::Named(name) => name,
                    CallerObject::Generated => GENERATED.to_owned(),
                };
                let offset = slot.and_then(|slot| slot.checked_sub(frame as usize));
                let offset = offset.map(|bytes| bytes / size_of::<usize>());
                let site = match offset {
                    Some(words) if words < MAX_OFFSET_WORDS => CallOrigin::Bridge(words),
                    _ => CallOrigin::BridgeToUnwind,
                };
                remember(epoch, address, site);
                return remember_tenant(governor, epoch, beyond, &name);
            }
            governor.tenant("cudart")
        }
    }
}

fn remember_tenant(governor: &Governor, epoch: LibraryEpoch, address: usize, name: &str) -> Tenant {
    let tenant = governor.tenant(name);
    remember(epoch, address, CallOrigin::Tenant(tenant));
    tenant
}

/// The object of a return address, from a cache that all threads share: the loader has one
/// lock, and every new thread looks its callers up. The loader is called while no lock of
/// ours is held, since a library's constructor, which holds the loader's lock, may be
/// waiting for ours.
fn known_object(epoch: LibraryEpoch, address: usize) -> CallerObject {
    type KnownObjects = (LibraryEpoch, FxHashMap<usize, CallerObject>);
    static ALL: Mutex<Option<KnownObjects>> = Mutex::new(None);
    const MAX_ENTRIES: usize = 1 << 16;
    let all = || ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |(of, all): &KnownObjects| all.get(&address).filter(|_| *of == epoch).cloned();
    let found = all().as_ref().and_then(known);
    if let Some(object) = found {
        return object;
    }
    let object = object_at(address);
    let mut all = all();
    let (of, all) = all.get_or_insert_with(|| (epoch, FxHashMap::default()));
    if *of != epoch || all.len() >= MAX_ENTRIES {
        *of = epoch;
        all.clear();
    }
    // If a library was unloaded meanwhile, the next call is of another epoch.
    all.insert(address, object.clone());
    object
}

/// The return addresses of the frames above the one with its return address at `frame`,
/// each with its location if that is known.
fn frames_above(frame: *const usize) -> Vec<(usize, Option<usize>)> {
    struct StackWalk {
        from: usize,
        /// Whether the walk has reached that frame.
        is_above: bool,
        frames: Vec<(usize, Option<usize>)>,
    }

    unsafe extern "C" {
        fn _Unwind_Backtrace(
            trace: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            argument: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIPInfo(context: *mut c_void, interrupted: *mut c_int) -> usize;
        fn _Unwind_GetCFA(context: *mut c_void) -> usize;
    }

    extern "C" fn trace(context: *mut c_void, walk: *mut c_void) -> c_int {
        const CONTINUE: c_int = 0;
        const STOP: c_int = 5;
        let mut interrupted = 0;
        // SAFETY: `walk` is what `frames_above` gave, and the unwinder gives
        // its context to these two; `interrupted` outlives the call.
        let (walk, address, above) = unsafe {
            let walk = &mut *walk.cast::<StackWalk>();
            let address = _Unwind_GetIPInfo(context, &mut interrupted);
            (walk, address, _Unwind_GetCFA(context))
        };
        let slot = above.wrapping_sub(size_of::<usize>());
        // Frames of this library come first.
        walk.is_above |= slot == walk.from;
        if walk.is_above && slot != walk.from {
            // Code that a signal interrupted made no call and has no return address.
            let is_there = interrupted == 0 && {
                // SAFETY: a word of this stack, in a frame that has not
                // returned: the unwinder has just read it.
                address == unsafe { *(slot as *const usize) }
            };
            walk.frames.push((address, is_there.then_some(slot)));
        }
        if walk.frames.len() < MAX_FRAMES {
            CONTINUE
        } else {
            STOP
        }
    }

    let mut walk = StackWalk {
        from: frame as usize,
        is_above: false,
        frames: Vec::new(),
    };
    // SAFETY: `walk` outlives the call.
    unsafe { _Unwind_Backtrace(trace, (&raw mut walk).cast()) };
    walk.frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_classified_by_their_families() {
        for (path, name) in [
            ("/x/site-packages/torch/lib/libc10_cuda.so", "torch"),
            ("/opt/torch/site-packages/torch/lib/libc10.so", "torch"),
            ("/opt/torch/site-packages/jaxlib/xla.so", "jax"),
            (
                "/opt/triton/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "nccl",
            ),
            ("/x/jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax"),
            (
                "/x/cupy_backends/cuda/api/driver.cpython-312-x86_64-linux-gnu.so",
                "cupy",
            ),
            ("/x/nvidia/cu13/lib/libcublasLt.so.13", "cublas"),
            ("/x/nvidia/nccl/lib/libnccl.so.2", "nccl"),
            ("/x/.triton/cache/ABC/cuda_utils.cpython-312.so", "triton"),
            ("/usr/bin/python3.12", "python"),
            ("/opt/torch/bin/python3.12", "python"),
            ("/usr/lib/libpython3.11.so.1.0", "python"),
            ("/opt/app/libmylib.so.3", "mylib"),
            ("./train", "train"),
        ] {
            assert_eq!(
                classify(path),
                CallerObject::Named(name.to_owned()),
                "{path}"
            );
        }
    }

    #[test]
    fn bridges_are_no_tenants() {
        for path in [
            "/x/nvidia/cu13/lib/libcudart.so.13",
            "/x/libcudart-9d1f3a.so.12",
            "/usr/lib/x86_64-linux-gnu/libffi.so.8",
            "/x/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so",
        ] {
            assert_eq!(classify(path), CallerObject::Bridge, "{path}");
        }
    }
}
