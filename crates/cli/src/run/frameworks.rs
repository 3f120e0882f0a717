//! What frameworks are told, so that they are good tenants: each has an
//! allocator of its own that takes memory and keeps it, out of the pool's and
//! the other tenants' reach.
//!
//! Invariant: what the user has set, under whichever of its names, stays.

use std::ffi::OsStr;

/// Variables that mean the same, and what they are set to.
pub(crate) struct Setting {
    /// All its names: old and new versions of a framework read different ones.
    pub(crate) names: &'static [&'static str],
    pub(crate) value: &'static str,
    /// Whether to set it when memory is to be shared with other processes.
    pub(crate) with_ipc: bool,
    /// The argument for it, which `fercuda run --help` shows.
    pub(crate) why: &'static str,
}

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        names: &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"],
        value: "backend:cudaMallocAsync",
        with_ipc: false,
        why: "each tensor is the pool's, and freed to it; the caching allocator would keep what it frees",
    },
    Setting {
        names: &["XLA_PYTHON_CLIENT_ALLOCATOR"],
        value: "cuda_async",
        with_ipc: true,
        why: "each buffer is the pool's; by default JAX carves one block itself",
    },
    Setting {
        names: &["XLA_PYTHON_CLIENT_PREALLOCATE"],
        value: "false",
        with_ipc: true,
        why: "by default JAX takes three quarters of the device before its first array",
    },
];

/// What is to be set, where `is_set` says what the user has. `ipc`: memory is
/// to be shared.
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
