//! Search for a shared library by name, without loading it.
//!
//! Search order: LD_LIBRARY_PATH, NVIDIA's Python wheels in environments that the user named, the
//! CUDA toolkit, the wheels of the `python3` of `PATH`, the loader's cache.
//! A version is read from the file's own name (`libnccl.so.2.27.3`) or from the metadata of its
//! wheel, never by running the library's code.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fercuda_nvrtc::find;

/// A library that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundLibrary {
    pub path: PathBuf,
    /// As precise as the file name or its wheel allows.
    pub version: Option<String>,
}

/// The folders and the loader's cache, read once.
pub(crate) struct LibrarySearchPath {
    folders: Vec<PathBuf>,
    cached: Vec<PathBuf>,
}

impl LibrarySearchPath {
    /// Reads the environment of this process.
    pub(crate) fn of_this_process() -> LibrarySearchPath {
        let list = |name: &str| -> Vec<PathBuf> {
            env::var_os(name)
                .map(|value| {
                    let folders = env::split_paths(&value);
                    folders.filter(|folder| folder.is_absolute()).collect()
                })
                .unwrap_or_default()
        };
        let mut folders = list("LD_LIBRARY_PATH");
        for wheels in find::wheel_directories() {
            folders.extend(library_folders(&wheels));
        }
        for home in ["CUDA_HOME", "CUDA_PATH"] {
            for home in list(home) {
                folders.push(home.join("lib64"));
            }
        }
        folders.push(PathBuf::from("/usr/local/cuda/lib64"));
        for wheels in find::wheel_directories_of_path() {
            folders.extend(library_folders(&wheels));
        }
        LibrarySearchPath {
            folders,
            cached: loader_cache(),
        }
    }

    /// The newest file called `stem` or `stem.N...` in the first folder that has one:
    /// `libcudnn.so` finds `libcudnn.so.9`.
    pub(crate) fn find(&self, stem: &str) -> Option<FoundLibrary> {
        let matches = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.strip_prefix(stem))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let in_folders = self
            .folders
            .iter()
            .find_map(|folder| entries(folder).filter(&matches).max());
        let path = in_folders.or_else(|| {
            let mut cached = self.cached.iter();
            cached.find(|path| matches(path)).cloned()
        })?;
        Some(FoundLibrary {
            version: version(&path, stem),
            path,
        })
    }
}

/// `lib` of each package in a folder of NVIDIA's wheels.
fn library_folders(wheels: &Path) -> Vec<PathBuf> {
    let mut packages: Vec<PathBuf> = entries(wheels).collect();
    packages.sort();
    let folders = packages.into_iter().map(|package| package.join("lib"));
    folders.collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// Paths in `ldconfig`'s cache.
fn loader_cache() -> Vec<PathBuf> {
    for ldconfig in ["/sbin/ldconfig", "/usr/sbin/ldconfig"] {
        if let Ok(output) = Command::new(ldconfig).arg("-p").output() {
            let text = String::from_utf8_lossy(&output.stdout);
            return text
                .lines()
                .filter_map(|line| line.split_once(" => "))
                .map(|(_, path)| PathBuf::from(path.trim()))
                .collect();
        }
    }
    Vec::new()
}

fn version(path: &Path, stem: &str) -> Option<String> {
    let from_wheel = || {
        let site = path
            .ancestors()
            .find(|folder| folder.file_name().is_some_and(|name| name == "nvidia"))?
            .parent()?;
        let library = stem.strip_prefix("lib")?.strip_suffix(".so")?;
        let library = library.strip_suffix("Lt").unwrap_or(library);
        entries(site)
            .filter_map(|entry| entry.file_name()?.to_str().map(str::to_owned))
            .filter_map(|name| {
                let (wheel, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
                let wheel = wheel.strip_prefix("nvidia_")?;
                let wheel = wheel.strip_prefix("cuda_").unwrap_or(wheel);
                let same = wheel == library
                    || wheel
                        .strip_prefix(library)
                        .is_some_and(|rest| rest.starts_with("_cu"));
                same.then(|| version.to_owned())
            })
            .next()
    };
    from_wheel().or_else(|| {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = real.file_name()?.to_str()?;
        let numbers = name.split_once(".so.")?.1;
        Some(numbers.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_comes_from_the_wheel_beside_the_library() {
        let site = tempfile::tempdir().unwrap();
        let lib = site.path().join("nvidia/cudnn/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::create_dir(site.path().join("nvidia_cudnn_cu13-9.13.0.50.dist-info")).unwrap();
        fs::write(lib.join("libcudnn.so.9"), "").unwrap();
        let places = LibrarySearchPath {
            folders: vec![lib.clone()],
            cached: Vec::new(),
        };
        let found = places.find("libcudnn.so").unwrap();
        assert_eq!(found.path, lib.join("libcudnn.so.9"));
        assert_eq!(found.version.as_deref(), Some("9.13.0.50"));
    }

    #[test]
    fn version_comes_from_the_file_name_behind_a_symlink() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("libnccl.so.2.27.3");
        fs::write(&real, "").unwrap();
        let link = folder.path().join("libnccl.so.2");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(version(&link, "libnccl.so").as_deref(), Some("2.27.3"));
    }

    #[test]
    fn a_longer_name_is_another_library() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libcublasLt.so.13"), "").unwrap();
        let places = LibrarySearchPath {
            folders: vec![folder.path().to_owned()],
            cached: Vec::new(),
        };
        assert_eq!(places.find("libcublas.so"), None);
        assert!(places.find("libcublasLt.so").is_some());
    }
}
