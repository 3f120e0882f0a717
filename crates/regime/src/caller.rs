//! Which library asked: the return address of its call, looked up once.
//!
//! CUDA's runtime library asks in the name of whoever called it, as does the
//! bridge by which Python calls C functions; so frames of those are passed
//! over. Where their callers' return addresses lie on the stack is found by
//! unwinding once for each place they call from; after that it is one load.
//!
//! Invariants: a wrong answer charges the wrong tenant and does nothing else.
//! So a distance on the stack that was learned is used only if what lies there
//! is a return address that was looked up before. And nothing is read there
//! but on the thread's own stack: the next call from that place may be made
//! with less above it, on the small stack of a fiber or a signal's handler.

use core::ffi::{CStr, c_int, c_void};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use fercuda_governor::Governor;
use fercuda_ledger::Tenant;
use rustc_hash::FxHashMap;

use crate::interface::BY_ADDRESS;
use crate::recent::Recent;

/// Frames that are looked at.
const FRAMES: usize = 64;
/// A learned distance is shorter, in words.
const FARTHEST: usize = 4096;

/// What a return address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The tenant's own code.
    Of(Tenant),
    /// A library that asks for others: the return address of whoever called it
    /// lies so many words up.
    For(usize),
    /// A library that asks for others, and it is not known where they are.
    Somewhere,
}

/// What a thread knows.
struct Known {
    /// Where its own stack is mapped, from which address to which, once that
    /// was asked for.
    stack: Cell<(usize, usize)>,
    /// Whose its calls are, if it has said so.
    acting: Cell<Option<Tenant>>,
    callers: Recent<Meaning, 16>,
}

thread_local! {
    static KNOWN: Known = const {
        Known::new()
    };
}

impl Known {
    const fn new() -> Self {
        Self {
            stack: Cell::new((0, 0)),
            acting: Cell::new(None),
            callers: Recent::new(),
        }
    }

    /// The tenant of a call, if all that is needed for that is known.
    ///
    /// # Safety
    /// As for [`tenant`].
    #[inline]
    unsafe fn tenant(&self, frame: *const usize) -> Option<Tenant> {
        if let Some(tenant) = self.acting.get() {
            return Some(tenant);
        }
        // SAFETY: the caller's promise.
        let distance = match self.callers.get(unsafe { *frame })? {
            Meaning::Of(tenant) => return Some(tenant),
            Meaning::For(distance) => distance,
            Meaning::Somewhere => return None,
        };
        let beyond = frame.wrapping_add(distance);
        let (from, end) = self.stack.get();
        // A frame on the thread's own stack has all of that stack above it.
        if (frame as usize) < from || (beyond as usize) >= end {
            return None;
        }
        // SAFETY: between a frame of the thread's own stack and that stack's
        // end, which words do not straddle.
        match self.callers.get(unsafe { *beyond })? {
            Meaning::Of(tenant) => Some(tenant),
            _ => None,
        }
    }
}

/// The tenant who made the call that found this stack: `frame` points to the
/// return address.
///
/// # Safety
/// `frame` is where the return address of a call of this thread lies that has
/// not returned.
#[inline]
pub unsafe fn tenant(governor: &Governor, frame: *const usize) -> Tenant {
    // SAFETY: the caller's promise.
    match KNOWN.try_with(|known| unsafe { known.tenant(frame) }) {
        Ok(Some(tenant)) => tenant,
        // SAFETY: the caller's promise.
        _ => learn(governor, unsafe { *frame }, frame),
    }
}

/// From now on the calling thread's calls are a tenant's, by its row, or again those of
/// whoever the return address says; what that was before. A thread at its end has no
/// tenant.
pub(crate) fn act_as(tenant: u32) -> u32 {
    let before = KNOWN.try_with(|known| known.acting.replace(Tenant::from_index(tenant)));
    let before = before.ok().flatten();
    before.map_or(BY_ADDRESS, |tenant| tenant.index() as u32)
}

fn remember(address: usize, meaning: Meaning) {
    let _a_thread_at_its_end_remembers_nothing = KNOWN.try_with(|known| {
        known.callers.put(address, meaning);
        if matches!(meaning, Meaning::For(_)) && known.stack.get() == (0, 0) {
            // What cannot be found out stays nowhere: frames are walked then.
            if let Some(stack) = own_stack() {
                known.stack.set(stack);
            }
        }
    });
}

/// Where the calling thread's own stack is, whichever it is on. Of the first
/// thread's, which grows, it is as far as it may come to reach.
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

/// The object that holds an address, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Object {
    /// A library or program, by its tenant's name.
    Named(String),
    /// One that asks for others.
    Transparent,
    /// Code that no file holds.
    Unknown,
}

fn object(address: usize) -> Object {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // A return address may be just behind its function.
    let within = address.wrapping_sub(1) as *const c_void;
    // SAFETY: any address may be asked for; `info` is filled if it answers so.
    if unsafe { libc::dladdr(within, info.as_mut_ptr()) } == 0 {
        return Object::Unknown;
    }
    // SAFETY: filled, see above.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return Object::Unknown;
    }
    // SAFETY: the loader's own string, alive while the object is loaded, which
    // it is while its code is being called.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    classify(&name)
}

/// Libraries by parts of their paths. Of several that fit, the one farthest to
/// the right: an environment may have any name.
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

/// Libraries that ask for others.
const BRIDGES: [&str; 4] = ["libcudart", "libffi", "_ctypes.", "libfercuda_hook"];

fn classify(path: &str) -> Object {
    let file = path.rsplit('/').next().unwrap_or(path);
    if BRIDGES.iter().any(|bridge| file.starts_with(bridge)) {
        return Object::Transparent;
    }
    let stem = file.split(".so").next().unwrap_or(file);
    let stem = stem.split(".cpython").next().unwrap_or(stem);
    let stem = stem.strip_prefix("lib").unwrap_or(stem);
    // python3.11 and python3.12 are one tenant, in whatever environment.
    if stem.starts_with("python") {
        return Object::Named("python".to_owned());
    }
    // Vendored copies are renamed: `libcudart-1a2b3c.so.12`, in some folder.
    let families = FAMILIES.iter();
    let family = families.filter_map(|(part, name)| Some((path.rfind(part)?, name)));
    if let Some((_, name)) = family.max_by_key(|(at, _)| *at) {
        return Object::Named((*name).to_owned());
    }
    match stem {
        "" => Object::Unknown,
        stem => Object::Named(stem.to_owned()),
    }
}

/// What code of no file is charged to.
const GENERATED: &str = "generated code";

#[cold]
fn learn(governor: &Governor, address: usize, frame: *const usize) -> Tenant {
    match known_object(address) {
        Object::Named(name) => named(governor, address, &name),
        Object::Unknown => named(governor, address, GENERATED),
        Object::Transparent => {
            for (beyond, slot) in frames_above(frame) {
                let name = match known_object(beyond) {
                    Object::Transparent => continue,
                    Object::Named(name) => name,
                    Object::Unknown => GENERATED.to_owned(),
                };
                let distance = slot.and_then(|slot| slot.checked_sub(frame as usize));
                let distance = distance.map(|bytes| bytes / size_of::<usize>());
                let meaning = match distance {
                    Some(words) if words < FARTHEST => Meaning::For(words),
                    _ => Meaning::Somewhere,
                };
                remember(address, meaning);
                return named(governor, beyond, &name);
            }
            governor.tenant("cudart")
        }
    }
}

fn named(governor: &Governor, address: usize, name: &str) -> Tenant {
    let tenant = governor.tenant(name);
    remember(address, Meaning::Of(tenant));
    tenant
}

/// Objects by return address, for all threads: each new thread asks anew, and
/// the loader's lock is one. Who holds that, in a library's constructor, may be
/// waiting here; so the loader is asked while nothing is held.
fn known_object(address: usize) -> Object {
    static ALL: Mutex<Option<FxHashMap<usize, Object>>> = Mutex::new(None);
    const MOST: usize = 1 << 16;
    let all = || ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |all: &FxHashMap<usize, Object>| all.get(&address).cloned();
    let found = all().as_ref().and_then(known);
    if let Some(object) = found {
        return object;
    }
    let object = object(address);
    let mut all = all();
    let all = all.get_or_insert_default();
    if all.len() >= MOST {
        all.clear();
    }
    all.insert(address, object.clone());
    object
}

/// Return addresses of the frames above the one whose return address lies at
/// `frame`, with where each lies, if that is known.
fn frames_above(frame: *const usize) -> Vec<(usize, Option<usize>)> {
    struct Walk {
        from: usize,
        /// Whether that frame was come to.
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
            let walk = &mut *walk.cast::<Walk>();
            let address = _Unwind_GetIPInfo(context, &mut interrupted);
            (walk, address, _Unwind_GetCFA(context))
        };
        let slot = above.wrapping_sub(size_of::<usize>());
        // Frames of this library come first.
        walk.is_above |= slot == walk.from;
        if walk.is_above && slot != walk.from {
            // What a signal interrupted made no call, and has no return address.
            let is_there = interrupted == 0 && {
                // SAFETY: a word of this stack, in a frame that has not
                // returned: the unwinder has just read it.
                address == unsafe { *(slot as *const usize) }
            };
            walk.frames.push((address, is_there.then_some(slot)));
        }
        if walk.frames.len() < FRAMES {
            CONTINUE
        } else {
            STOP
        }
    }

    let mut walk = Walk {
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
    fn libraries_are_known_by_their_families() {
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
            assert_eq!(classify(path), Object::Named(name.to_owned()), "{path}");
        }
    }

    #[test]
    fn bridges_are_nobody() {
        for path in [
            "/x/nvidia/cu13/lib/libcudart.so.13",
            "/x/libcudart-9d1f3a.so.12",
            "/usr/lib/x86_64-linux-gnu/libffi.so.8",
            "/x/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so",
        ] {
            assert_eq!(classify(path), Object::Transparent, "{path}");
        }
    }
}
