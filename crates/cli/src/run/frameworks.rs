//! Environment variables that make frameworks use the shared pool.
//!
//! JAX's default allocator keeps most of the device out of reach of other tenants. PyTorch keeps
//! its own: features such as CUDA graph trees, memory history and sharing need it, and the hook
//! asks it to release what it caches when memory is missing.
//!
//! Invariant: a variable that the user has set, under any of its names, is kept.

use std::ffi::OsStr;

/// The allocator that PyTorch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PytorchAllocator {
    /// Its own, or the one that its variables select.
    #[default]
    Own,
    /// One driver allocation for each tensor: nothing is cached, and several features are missing.
    Async,
}

/// Variables with the same meaning, and their value.
pub(crate) struct Setting {
    /// All its names: old and new versions of a framework read different ones.
    pub(crate) names: &'static [&'static str],
    pub(crate) value: &'static str,
    /// The allocator of PyTorch with which alone it is set.
    pub(crate) only_with: Option<PytorchAllocator>,
    /// Why it is set, for `fercuda run --help`.
    pub(crate) why: &'static str,
}

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        names: &["XLA_PYTHON_CLIENT_ALLOCATOR"],
        value: "cuda_async",
        only_with: None,
        why: "allocates each buffer from the pool; by default JAX suballocates one large block",
    },
    Setting {
        names: &["XLA_PYTHON_CLIENT_PREALLOCATE"],
        value: "false",
        only_with: None,
        why: "by default JAX allocates three quarters of the device memory before its first array",
    },
    Setting {
        names: &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"],
        value: "backend:cudaMallocAsync",
        only_with: Some(PytorchAllocator::Async),
        why: "allocates each tensor from the pool, so that PyTorch caches nothing",
    },
];

/// The settings to add, where `is_set` tells what the user has set.
pub(crate) fn missing(
    is_set: impl Fn(&str) -> bool,
    pytorch: PytorchAllocator,
) -> Vec<(&'static OsStr, &'static OsStr)> {
    let free = |setting: &&Setting| {
        setting.only_with.is_none_or(|only| only == pytorch)
            && !setting.names.iter().any(|name| is_set(name))
    };
    let all = SETTINGS.iter().filter(free).flat_map(|setting| {
        let names = setting.names.iter();
        names.map(|name| (OsStr::new(*name), OsStr::new(setting.value)))
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(set: &[&str], pytorch: PytorchAllocator) -> Vec<&'static OsStr> {
        let missing = missing(|name| set.contains(&name), pytorch);
        missing.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn what_the_user_has_set_under_either_name_stays() {
        let all = PytorchAllocator::Async;
        assert_eq!(names(&[], all).len(), 4);
        assert_eq!(
            names(&["PYTORCH_ALLOC_CONF", "XLA_PYTHON_CLIENT_ALLOCATOR"], all),
            ["XLA_PYTHON_CLIENT_PREALLOCATE"]
        );
    }

    #[test]
    fn pytorch_keeps_its_own_allocator_unless_asked_otherwise() {
        let names = names(&[], PytorchAllocator::default());
        assert!(
            names
                .iter()
                .all(|name| !name.to_string_lossy().contains("PYTORCH"))
        );
    }
}
