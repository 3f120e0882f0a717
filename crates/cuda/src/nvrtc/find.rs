//! Where NVRTC and CUDA's headers may be.
//!
//! In this order: the file `FERCUDA_NVRTC`; the wheels under `FERCUDA_WHEELS`
//! (a `site-packages/nvidia` directory) and those of a `build/venv` or
//! `build/setup` of the current directory or one above it, if it is the user's
//! own or root's and no stranger can write to it; a toolkit at `CUDA_HOME` or
//! `CUDA_PATH`; the active Python environment; the one that `fercuda setup`
//! makes for the user, on the same terms; `/usr/local/cuda`; what the loader
//! finds.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Python environments in a checkout, from its root: that of its chores, and
/// that of `fercuda setup`.
pub const OF_CHECKOUT: [&str; 2] = ["build/venv", "build/setup"];

/// The Python environment that `fercuda setup` makes outside of a checkout:
/// `fercuda/venv` in `XDG_DATA_HOME`, else in `~/.local/share`. None without a
/// home.
pub fn of_user() -> Option<PathBuf> {
    of_user_with(&|name| std::env::var_os(name))
}

fn of_user_with(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| {
        let path = environment(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let data = folder("XDG_DATA_HOME").or_else(|| folder("HOME").map(|it| it.join(".local/share")));
    Some(data?.join("fercuda/venv"))
}

/// The library files to try, best first, without repeats.
pub fn libraries() -> Vec<PathBuf> {
    let environment = |name: &str| std::env::var_os(name);
    libraries_with(&environment, std::env::current_dir().ok().as_deref())
}

fn libraries_with(
    environment: &dyn Fn(&str) -> Option<OsString>,
    current: Option<&Path>,
) -> Vec<PathBuf> {
    let path = |name: &str| {
        environment(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let mut found = Vec::new();
    found.extend(path("FERCUDA_NVRTC"));
    if let Some(wheels) = path("FERCUDA_WHEELS") {
        found.extend(in_wheels(&wheels));
    }
    for above in current.into_iter().flat_map(Path::ancestors) {
        for environment in OF_CHECKOUT.map(|name| above.join(name)) {
            if is_trusted(&environment) {
                found.extend(in_environment(&environment));
            }
        }
    }
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path) {
        found.extend(in_toolkit(&toolkit));
    }
    if let Some(environment) = path("VIRTUAL_ENV") {
        found.extend(in_environment(&environment));
    }
    if let Some(own) = of_user_with(environment).filter(|own| is_trusted(own)) {
        found.extend(in_environment(&own));
    }
    found.extend(in_toolkit(Path::new("/usr/local/cuda")));
    found.extend(["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from));
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(path.clone()));
    found
}

/// Whether what is in `directory` is the user's own or the system's doing. A
/// library found there is loaded into the process, and the current directory
/// may be anybody's.
pub fn is_trusted(directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|metadata| {
        [0, super::cache::effective_user()].contains(&metadata.uid())
            && metadata.mode() & 0o002 == 0
    })
}

/// The directories with CUDA's headers that belong to the library `file`.
pub fn includes(file: &Path) -> Vec<PathBuf> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    // The library is in ROOT/lib, ROOT/lib64 or ROOT/targets/TRIPLE/lib, and
    // the headers are in ROOT/include or ROOT/targets/TRIPLE/include.
    let roots = file.ancestors().skip(2).take(3);
    let mut includes: Vec<PathBuf> = Vec::new();
    for root in roots {
        let include = root.join("include");
        let cccl = include.join("cccl");
        for directory in [include, cccl] {
            if holds_headers(&directory) && !includes.contains(&directory) {
                includes.push(directory);
            }
        }
    }
    // Wheels before CUDA 13 give each part a directory of its own beside the
    // library's.
    if let Some(wheels) = file
        .ancestors()
        .nth(3)
        .filter(|path| path.ends_with("nvidia"))
    {
        for part in ["cuda_runtime", "cuda_cccl"] {
            let directory = wheels.join(part).join("include");
            if directory.is_dir() && !includes.contains(&directory) {
                includes.push(directory);
            }
        }
    }
    includes
}

fn holds_headers(directory: &Path) -> bool {
    directory.join("cuda_fp16.h").is_file() || directory.join("cub").is_dir()
}

/// The libraries of the wheels in a `site-packages/nvidia` directory.
fn in_wheels(nvidia: &Path) -> Vec<PathBuf> {
    let folders = subdirectories(nvidia);
    let mut found: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| files_named_nvrtc(&folder.join("lib")))
        .collect();
    // Newer major versions have higher numbers in their names.
    found.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    found
}

/// The libraries of a Python environment.
fn in_environment(environment: &Path) -> Vec<PathBuf> {
    subdirectories(&environment.join("lib"))
        .iter()
        .filter(|folder| {
            folder
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        })
        .flat_map(|folder| in_wheels(&folder.join("site-packages/nvidia")))
        .collect()
}

fn in_toolkit(root: &Path) -> Vec<PathBuf> {
    ["lib64", "lib"]
        .iter()
        .flat_map(|folder| files_named_nvrtc(&root.join(folder)))
        .collect()
}

/// `libnvrtc.so` and `libnvrtc.so.MAJOR` in `folder`, the highest first.
fn files_named_nvrtc(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.strip_prefix("libnvrtc.so").is_some_and(|rest| {
                rest.is_empty()
                    || rest
                        .strip_prefix('.')
                        .is_some_and(|major| major.parse::<u32>().is_ok())
            })
        })
        .map(|entry| entry.path())
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

fn subdirectories(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn touch(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        path.to_owned()
    }

    #[test]
    fn places_are_tried_in_the_order_of_how_explicit_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| touch(&folder.path().join(path));
        let wheel = at("wheels/cu13/lib/libnvrtc.so.13");
        at("wheels/cu13/lib/libnvrtc-builtins.so.13.0");
        let built =
            at("project/build/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let toolkit = at("toolkit/lib64/libnvrtc.so.12");
        let set_up =
            at("project/build/setup/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let own = at(
            "home/.local/share/fercuda/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        );
        let venv = at("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        let named = folder.path().join("mine.so");
        let variables: HashMap<&str, PathBuf> = HashMap::from([
            ("FERCUDA_NVRTC", named.clone()),
            ("FERCUDA_WHEELS", folder.path().join("wheels")),
            ("CUDA_HOME", folder.path().join("toolkit")),
            ("VIRTUAL_ENV", folder.path().join("venv")),
            ("XDG_DATA_HOME", PathBuf::from("not/absolute")),
            ("HOME", folder.path().join("home")),
        ]);
        let environment = |name: &str| {
            variables
                .get(name)
                .map(|path| path.clone().into_os_string())
        };
        let current = folder.path().join("project/crates/deep");
        fs::create_dir_all(&current).unwrap();
        let found = libraries_with(&environment, Some(&current));
        let all = [named, wheel, built, set_up, toolkit, venv, own];
        assert_eq!(found[..7], all);
        assert_eq!(found.last().unwrap(), Path::new("libnvrtc.so"));
        // What anybody can write to is not loaded from the current directory.
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder.path().join("project/build/venv"), open).unwrap();
        let found = libraries_with(&environment, Some(&current));
        assert!(
            !found.contains(&all[2]) && found.contains(&all[3]),
            "{found:?}"
        );
        let open = fs::Permissions::from_mode(0o777);
        let own = folder.path().join("home/.local/share/fercuda/venv");
        fs::set_permissions(own, open).unwrap();
        let found = libraries_with(&environment, Some(&current));
        assert!(!found.contains(&all[6]), "{found:?}");
    }

    #[test]
    fn headers_are_found_beside_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let library = touch(&root.join("nvidia/cu13/lib/libnvrtc.so.13"));
        touch(&root.join("nvidia/cu13/include/cuda_fp16.h"));
        touch(&root.join("nvidia/cu13/include/cccl/cub/cub.cuh"));
        assert_eq!(
            includes(&library),
            [
                root.join("nvidia/cu13/include"),
                root.join("nvidia/cu13/include/cccl")
            ]
        );
    }
}
