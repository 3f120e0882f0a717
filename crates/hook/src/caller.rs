//! Which library asked: the return address of its call, looked up once.
//!
//! CUDA's runtime library asks in the name of whoever called it, as does the
//! bridge by which Python calls C functions; so frames of those are passed
//! over. Where their callers' return addresses lie on the stack is found by
//! unwinding once for each place they call from; after that it is one load.
//!
//! Invariant: a wrong answer charges the wrong tenant and does nothing else.
//! So a distance on the stack that was learned is used only if what lies there
//! is a return address that was looked up before.

use core::ffi::{CStr, c_int, c_void};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use fercuda_governor::Governor;
use fercuda_ledger::Tenant;
use rustc_hash::FxHashMap;

/// Callers that a thread remembers.
const REMEMBERED: usize = 32;
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

thread_local! {
    static KNOWN: Cell<[(usize, Meaning); REMEMBERED]> =
        const { Cell::new([(0, Meaning::Somewhere); REMEMBERED]) };
}

/// The tenant who made the call that found this stack: `frame` points to the
/// return address.
///
/// # Safety
/// `frame` is where the return address of a call of this thread lies that has
/// not returned.
#[inline]
pub(crate) unsafe fn tenant(governor: &Governor, frame: *const usize) -> Tenant {
    // SAFETY: the caller's promise.
    let address = unsafe { *frame };
    let meaning = recall(address);
    match meaning {
        Some(Meaning::Of(tenant)) => return tenant,
        Some(Meaning::For(distance)) => {
            // SAFETY: as far up as there was a frame when the distance was
            // learned; a stack ends at the frames of its thread's start, which
            // `learn` leaves room for.
            let beyond = unsafe { *frame.add(distance) };
            if let Some(Meaning::Of(tenant)) = recall(beyond) {
                return tenant;
            }
        }
        _ => {}
    }
    learn(governor, address, frame)
}

#[inline]
fn place(address: usize) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) % REMEMBERED
}

#[inline]
fn recall(address: usize) -> Option<Meaning> {
    let known = KNOWN.try_with(|known| {
        let all: *const (usize, Meaning) = known.as_ptr().cast();
        // SAFETY: in bounds, and nothing changes it meanwhile in this thread.
        unsafe { *all.add(place(address)) }
    });
    known
        .ok()
        .filter(|(of, _)| *of == address)
        .map(|(_, meaning)| meaning)
}

fn remember(address: usize, meaning: Meaning) {
    let _a_thread_at_its_end_remembers_nothing = KNOWN.try_with(|known| {
        let mut all = known.get();
        all[place(address)] = (address, meaning);
        known.set(all);
    });
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
        frames: Vec<(usize, Option<usize>)>,
    }

    unsafe extern "C" {
        fn _Unwind_Backtrace(
            trace: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            argument: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
        fn _Unwind_GetCFA(context: *mut c_void) -> usize;
    }

    extern "C" fn trace(context: *mut c_void, walk: *mut c_void) -> c_int {
        const CONTINUE: c_int = 0;
        const STOP: c_int = 5;
        // SAFETY: `walk` is what `frames_above` gave, and the unwinder gives
        // its context to these two.
        let (walk, address, above) = unsafe {
            let walk = &mut *walk.cast::<Walk>();
            (walk, _Unwind_GetIP(context), _Unwind_GetCFA(context))
        };
        let slot = above.wrapping_sub(size_of::<usize>());
        // Frames of this library lie below.
        if slot > walk.from {
            // SAFETY: a word of this thread's stack, in a frame that has not
            // returned: the unwinder has just read it.
            let is_there = unsafe { *(slot as *const usize) } == address;
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
