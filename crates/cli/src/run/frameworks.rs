//! Environment variables that make frameworks use the shared pool: each framework has a caching
//! allocator that keeps memory out of reach of the pool and of other tenants.
//!
//! Invariant: a variable that the user has set, under any of its names, is kept.

use std::ffi::OsStr;

/// Variables with the same meaning, and their value.
pub(crate) struct Setting {
    /// All its names: old and new versions of a framework read different ones.
    pub(crate) names: &'static [&'static str],
    pub(crate) value: &'static str,
    /// Whether to set it when memory is shared with other processes.
    pub(crate) with_ipc: bool,
    /// Why it is set, for `fercuda run --help`.
    pub(crate) why: &'static str,
}

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        names: &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"],
        value: "backend:cudaMallocAsync",
        with_ipc: false,
        why: "allocates each tensor from the pool; the caching allocator would keep freed memory",
    },
    Setting {
        names: &["XLA_PYTHON_CLIENT_ALLOCATOR"],
        value: "cuda_async",
        with_ipc: true,
        why: "allocates each buffer from the pool; by default JAX suballocates one large block",
    },
    Setting {
        names: &["XLA_PYTHON_CLIENT_PREALLOCATE"],
        value: "false",
        with_ipc: true,
        why: "by default JAX allocates three quarters of the device memory before its first array",
    },
];

/// The settings to add, where `is_set` tells what the user has set. `ipc`: memory is shared
/// with other processes.
pub(crate) fn missing(
    is_set: impl Fn(&str) -> bool,
    ipc: bool,
) -> Vec<(&'static OsStr, &'static OsStr)> {
    let free = |setting: &&Setting| {
        (setting.with_ipc || !ipc) && !setting.names.iter().any(|name| is_set(name))
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

    #[test]
    fn what_the_user_has_set_under_either_name_stays() {
        let names = |set: &[&str]| -> Vec<&OsStr> {
            let missing = missing(|name| set.contains(&name), false);
            missing.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&[]).len(), 4);
        assert_eq!(
            names(&["PYTORCH_ALLOC_CONF", "XLA_PYTHON_CLIENT_ALLOCATOR"]),
            ["XLA_PYTHON_CLIENT_PREALLOCATE"]
        );
    }

    #[test]
    fn to_share_memory_pytorch_keeps_its_own_allocator() {
        let missing = missing(|_| false, true);
        let names: Vec<&OsStr> = missing.into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "XLA_PYTHON_CLIENT_ALLOCATOR",
                "XLA_PYTHON_CLIENT_PREALLOCATE"
            ]
        );
    }
}
