//! The table as data: names, versions, and how `cuGetProcAddress` picks one.
//!
//! Invariant: what [`resolve`] returns for a name, a version and flags is the
//! exported symbol a CUDA 13.0 driver gives for them.

use crate::types::{CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, c_int};

/// One function of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The exported symbol, for instance `cuMemAlloc_v2`.
    pub name: &'static str,
    /// The name without a version, as given to `cuGetProcAddress`.
    pub base: &'static str,
    /// The first CUDA version with this symbol, as 1000 × major + 10 × minor.
    pub since: u32,
    /// The symbol that uses the per-thread default stream, and its version.
    pub per_thread: Option<(&'static str, u32)>,
}

/// The flag of `cuGetProcAddress` that asks for per-thread twins.
pub const PER_THREAD: u64 =
    CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0 as u64;

macro_rules! entries {
    ($($name:ident $base:literal $since:literal [$($twin:ident $twin_since:literal)?] $args:tt;)*) => {
        /// Every function of the table, in its order.
        pub static ENTRIES: &[Entry] = &[$(Entry {
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

/// What `cuGetProcAddress` should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// This exported symbol.
    Symbol(&'static str),
    /// The name is known, but only from the given version on.
    VersionNotSufficient {
        /// The first version that has it.
        since: u32,
    },
    /// No such name.
    NotFound,
}

impl Resolution {
    /// The query status `cuGetProcAddress_v2` reports with this answer.
    pub fn status(self) -> CUdriverProcAddressQueryResult {
        match self {
            Self::Symbol(_) => CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS,
            Self::VersionNotSufficient { .. } => {
                CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
            }
            Self::NotFound => CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        }
    }
}

/// The symbol for `base` in CUDA `version`: the newest that is no newer than
/// the version, and its per-thread twin where [`PER_THREAD`] is in `flags`
/// and there is one.
pub fn resolve(base: &str, version: c_int, flags: u64) -> Resolution {
    let version = u32::try_from(version).unwrap_or(0);
    let per_thread = flags & PER_THREAD != 0;
    let mut best: Option<&Entry> = None;
    let mut earliest: Option<u32> = None;
    for entry in ENTRIES.iter().filter(|entry| entry.base == base) {
        earliest = Some(earliest.map_or(entry.since, |since| since.min(entry.since)));
        if entry.since <= version && best.is_none_or(|best| best.since < entry.since) {
            best = Some(entry);
        }
    }
    match (best, earliest) {
        (Some(entry), _) => Resolution::Symbol(match entry.per_thread {
            Some((twin, since)) if per_thread && since <= version => twin,
            _ => entry.name,
        }),
        (None, Some(since)) => Resolution::VersionNotSufficient { since },
        (None, None) => Resolution::NotFound,
    }
}

/// Public symbols of `libcuda.so.1` that are not in the table: they exchange
/// objects with graphics and video libraries whose types are not bound here.
pub static UNTYPED: &[&str] = &[
    "cuEGLStreamConsumerAcquireFrame",
    "cuEGLStreamConsumerConnect",
    "cuEGLStreamConsumerConnectWithFlags",
    "cuEGLStreamConsumerDisconnect",
    "cuEGLStreamConsumerReleaseFrame",
    "cuEGLStreamProducerConnect",
    "cuEGLStreamProducerDisconnect",
    "cuEGLStreamProducerPresentFrame",
    "cuEGLStreamProducerReturnFrame",
    "cuEventCreateFromEGLSync",
    "cuGLCtxCreate",
    "cuGLCtxCreate_v2",
    "cuGLGetDevices",
    "cuGLGetDevices_v2",
    "cuGLInit",
    "cuGLMapBufferObject",
    "cuGLMapBufferObjectAsync",
    "cuGLMapBufferObjectAsync_v2",
    "cuGLMapBufferObjectAsync_v2_ptsz",
    "cuGLMapBufferObject_v2",
    "cuGLMapBufferObject_v2_ptds",
    "cuGLRegisterBufferObject",
    "cuGLSetBufferObjectMapFlags",
    "cuGLUnmapBufferObject",
    "cuGLUnmapBufferObjectAsync",
    "cuGLUnregisterBufferObject",
    "cuGraphicsEGLRegisterImage",
    "cuGraphicsGLRegisterBuffer",
    "cuGraphicsGLRegisterImage",
    "cuGraphicsResourceGetMappedEglFrame",
    "cuGraphicsVDPAURegisterOutputSurface",
    "cuGraphicsVDPAURegisterVideoSurface",
    "cuVDPAUCtxCreate",
    "cuVDPAUCtxCreate_v2",
    "cuVDPAUGetDevice",
];

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
    fn a_name_resolves_to_the_newest_symbol_of_the_asked_version() {
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
    fn the_per_thread_flag_gives_the_twin_where_there_is_one() {
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
    fn a_version_that_is_too_old_is_told_from_a_name_that_is_unknown() {
        assert_eq!(
            resolve("cuLaunchKernelEx", 11000, 0),
            Resolution::VersionNotSufficient { since: 11060 }
        );
        assert_eq!(resolve("cuMakeCoffee", 13000, 0), Resolution::NotFound);
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
