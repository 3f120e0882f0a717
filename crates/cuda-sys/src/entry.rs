//! The driver table as data: names, versions, and the resolution of `cuGetProcAddress`.
//!
//! Invariant: [`resolve`] returns, for a name, a version and flags, the exported symbol that a CUDA
//! 13.0 driver returns for them.

use crate::types::{
    CUDA_VERSION, CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, c_int,
};

/// One function of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionEntry {
    /// The exported symbol, for instance `cuMemAlloc_v2`.
    pub name: &'static str,
    /// The name without a version, as given to `cuGetProcAddress`.
    pub base: &'static str,
    /// The first CUDA version with this symbol, as 1000 × major + 10 × minor.
    pub since: u32,
    /// The symbol that uses the per-thread default stream, and its version.
    pub per_thread: Option<(&'static str, u32)>,
}

/// The flag of `cuGetProcAddress` that requests per-thread twins.
pub const PER_THREAD: u64 =
    CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0 as u64;

macro_rules! entries {
    ($($name:ident $base:literal $since:literal [$($twin:ident $twin_since:literal)?] $args:tt;)*) => {
        /// Every function of the table, in its order.
        pub static ENTRIES: &[FunctionEntry] = &[$(FunctionEntry {
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: entries!(@twin $($twin $twin_since)?),
        },)*];
    };
    (@twin) => { None };
    (@twin $twin:ident $since:literal) => { Some((stringify!($twin), $since)) };
}

crate::for_each_driver_fn!(entries);

/// The result that `cuGetProcAddress` should return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// This exported symbol.
    Symbol(&'static str),
    /// The name is known, but only from this version on.
    VersionNotSufficient {
        /// The first version that has it.
        since: u32,
    },
    /// No such name.
    NotFound,
    /// Unknown flags, or a version newer than the table: the call itself is
    /// refused with `CUDA_ERROR_INVALID_VALUE` and no status is written.
    Refused,
}

impl Resolution {
    /// The query status that `cuGetProcAddress_v2` reports with this result.
    pub fn status(self) -> Option<CUdriverProcAddressQueryResult> {
        match self {
            Self::Symbol(_) => Some(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS),
            Self::VersionNotSufficient { .. } => {
                Some(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
            }
            Self::NotFound => {
                Some(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            }
            Self::Refused => None,
        }
    }
}

/// The symbol for `base` in CUDA `version`: the newest that is no newer than the version. With
/// [`PER_THREAD`] in `flags`, a name with per-thread twins is resolved among those alone, so it
/// needs CUDA 7.0 at least. A negative version stands for the newest, as it does for NVIDIA's
/// driver.
pub fn resolve(base: &str, version: c_int, flags: u64) -> Resolution {
    if version > CUDA_VERSION || flags & !KNOWN_FLAGS != 0 {
        return Resolution::Refused;
    }
    let version = u32::try_from(version).unwrap_or(CUDA_VERSION as u32);
    let named = || ENTRIES.iter().filter(|entry| entry.base == base);
    let twins = flags & PER_THREAD != 0 && named().any(|entry| entry.per_thread.is_some());
    let candidates = named().filter_map(|entry| {
        if twins {
            entry.per_thread
        } else {
            Some((entry.name, entry.since))
        }
    });
    let newest = candidates
        .clone()
        .filter(|(_, since)| *since <= version)
        .max_by_key(|(_, since)| *since);
    match (newest, candidates.map(|(_, since)| since).min()) {
        (Some((name, _)), _) => Resolution::Symbol(name),
        (None, Some(since)) => Resolution::VersionNotSufficient { since },
        (None, None) => Resolution::NotFound,
    }
}

const KNOWN_FLAGS: u64 =
    CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM.0 as u64 | PER_THREAD;

/// Calls a macro with the public symbols of `libcuda.so.1` that are not in the table, after any
/// other tokens for it: they exchange objects with graphics and video libraries, the types of which
/// are not bound here.
///
/// ```
/// macro_rules! count {
///     ($first:literal $($name:ident)*) => { $first + [$(stringify!($name)),*].len() };
/// }
/// assert_eq!(fercuda_cuda_sys::for_each_untyped_fn!(count, 0), fercuda_cuda_sys::UNTYPED.len());
/// ```
#[macro_export]
macro_rules! for_each_untyped_fn {
    ($($callback:ident)::+ $(, $($before:tt)*)?) => {
        $($callback)::+! {
            $($($before)*)?
            cuEGLStreamConsumerAcquireFrame
            cuEGLStreamConsumerConnect
            cuEGLStreamConsumerConnectWithFlags
            cuEGLStreamConsumerDisconnect
            cuEGLStreamConsumerReleaseFrame
            cuEGLStreamProducerConnect
            cuEGLStreamProducerDisconnect
            cuEGLStreamProducerPresentFrame
            cuEGLStreamProducerReturnFrame
            cuEventCreateFromEGLSync
            cuGLCtxCreate
            cuGLCtxCreate_v2
            cuGLGetDevices
            cuGLGetDevices_v2
            cuGLInit
            cuGLMapBufferObject
            cuGLMapBufferObjectAsync
            cuGLMapBufferObjectAsync_v2
            cuGLMapBufferObjectAsync_v2_ptsz
            cuGLMapBufferObject_v2
            cuGLMapBufferObject_v2_ptds
            cuGLRegisterBufferObject
            cuGLSetBufferObjectMapFlags
            cuGLUnmapBufferObject
            cuGLUnmapBufferObjectAsync
            cuGLUnregisterBufferObject
            cuGraphicsEGLRegisterImage
            cuGraphicsGLRegisterBuffer
            cuGraphicsGLRegisterImage
            cuGraphicsResourceGetMappedEglFrame
            cuGraphicsVDPAURegisterOutputSurface
            cuGraphicsVDPAURegisterVideoSurface
            cuVDPAUCtxCreate
            cuVDPAUCtxCreate_v2
            cuVDPAUGetDevice
        }
    };
}

macro_rules! untyped {
    ($($name:ident)*) => {
        /// The names of [`for_each_untyped_fn`](crate::for_each_untyped_fn).
        pub static UNTYPED: &[&str] = &[$(stringify!($name)),*];
    };
}

for_each_untyped_fn!(untyped);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn symbol(base: &str, version: c_int, flags: u64) -> &'static str {
        match resolve(base, version, flags) {
            Resolution::Symbol(name) => name,
            other => panic!("{base}@{version}: {other:?}"),
        }
    }

    #[test]
    fn a_name_resolves_to_the_newest_symbol_of_the_requested_version() {
        assert_eq!(symbol("cuMemAlloc", 3020, 0), "cuMemAlloc_v2");
        assert_eq!(symbol("cuMemAlloc", 13000, 0), "cuMemAlloc_v2");
        assert_eq!(symbol("cuCtxGetDevice", 12090, 0), "cuCtxGetDevice");
        assert_eq!(symbol("cuCtxGetDevice", 13000, 0), "cuCtxGetDevice_v2");
        assert_eq!(symbol("cuCtxSynchronize", 12000, 0), "cuCtxSynchronize");
        assert_eq!(symbol("cuCtxSynchronize", 13000, 0), "cuCtxSynchronize_v2");
        assert_eq!(symbol("cuCtxCreate", 11030, 0), "cuCtxCreate_v2");
        assert_eq!(symbol("cuCtxCreate", 11040, 0), "cuCtxCreate_v3");
        assert_eq!(symbol("cuCtxCreate", 12050, 0), "cuCtxCreate_v4");
        assert_eq!(symbol("cuGetProcAddress", 11030, 0), "cuGetProcAddress");
        assert_eq!(symbol("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
    }

    #[test]
    fn the_per_thread_flag_selects_the_twin_if_it_exists() {
        assert_eq!(
            symbol("cuMemcpyHtoD", 12000, PER_THREAD),
            "cuMemcpyHtoD_v2_ptds"
        );
        assert_eq!(
            symbol("cuLaunchKernel", 7000, PER_THREAD),
            "cuLaunchKernel_ptsz"
        );
        assert_eq!(symbol("cuMemAlloc", 12000, PER_THREAD), "cuMemAlloc_v2");
        assert_eq!(
            symbol("cuStreamGetCaptureInfo", 12030, PER_THREAD),
            "cuStreamGetCaptureInfo_v3_ptsz"
        );
    }

    #[test]
    fn a_version_that_is_too_old_is_distinguished_from_an_unknown_name() {
        assert_eq!(
            resolve("cuLaunchKernelEx", 11000, 0),
            Resolution::VersionNotSufficient { since: 11060 }
        );
        assert_eq!(
            resolve("cuEventRecord", 6050, PER_THREAD),
            Resolution::VersionNotSufficient { since: 7000 }
        );
        assert_eq!(resolve("cuMakeCoffee", 13000, 0), Resolution::NotFound);
        assert_eq!(resolve("cuMemAlloc_v2", 13000, 0), Resolution::NotFound);
    }

    #[test]
    fn unknown_flags_and_newer_versions_are_refused() {
        assert_eq!(resolve("cuInit", 13010, 0), Resolution::Refused);
        assert_eq!(resolve("cuInit", 13000, 8), Resolution::Refused);
        assert_eq!(symbol("cuGraphInstantiate", -1, 0), "cuGraphInstantiate_v2");
    }

    #[test]
    fn no_symbol_occurs_twice() {
        let mut seen = HashSet::new();
        for entry in ENTRIES {
            assert!(seen.insert(entry.name), "{}", entry.name);
            if let Some((twin, _)) = entry.per_thread {
                assert!(seen.insert(twin), "{twin}");
            }
        }
        for name in UNTYPED {
            assert!(seen.insert(name), "{name}");
        }
    }
}
