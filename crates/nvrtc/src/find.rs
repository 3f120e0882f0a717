//! Search path of NVIDIA's libraries, NVRTC among them, and of CUDA's headers.
//!
//! In this order: the file that the library's own variable names (`FERCUDA_NVRTC`); the wheels of
//! `FERCUDA_WHEELS` (a Python environment or its `site-packages/nvidia`); a toolkit at `CUDA_HOME`
//! or `CUDA_PATH`; the active Python environment (`VIRTUAL_ENV`, `CONDA_PREFIX`); the environment
//! that `fercuda setup` makes for the user; `/usr/local/cuda`; the packages of the `python3` of
//! `PATH`; the loader's own search path, without entries that are not absolute.
//!
//! Invariant: code is loaded from a place that the user named in the environment, or that
//! passes `trust`. The current directory and those above it are never searched.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::trust;
pub use crate::trust::UntrustedPath;

/// The environment of `fercuda setup` in the user's data directory.
const OWN: &str = "fercuda/venv";

/// The user's data directory, `XDG_DATA_HOME` or `~/.local/share`. None without a home.
fn data_directory(environment: Environment<'_>) -> Option<PathBuf> {
    let folder = |name: &str| {
        let path = environment(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    folder("XDG_DATA_HOME").or_else(|| folder("HOME").map(|it| it.join(".local/share")))
}

type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn of_process(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The Python environment that `fercuda setup` makes: `fercuda/venv` in `XDG_DATA_HOME`, else
/// in `~/.local/share`. None without a home.
pub fn of_user() -> Option<PathBuf> {
    Some(data_directory(&of_process)?.join(OWN))
}

/// Checks that only the user and root can have put `path` there, which is in the user's
/// environment [`of_user`]: no symbolic link is allowed from `fercuda/venv` on. A path elsewhere
/// may have links, which are checked as their targets are.
///
/// # Errors
/// The component that another user could have changed.
pub fn check_trusted(path: &Path) -> Result<(), UntrustedPath> {
    check_trusted_with(&of_process, path)
}

/// Checks that `path`, which belongs to `program`, can have been put there only by those that could
/// exchange the program itself: the user, root, the owners of its file and folders, and the groups
/// that may write to these. Symbolic links are followed and checked as their targets are.
///
/// # Errors
/// The component that another user could have changed.
pub fn check_trusted_as(program: &Path, path: &Path) -> Result<(), UntrustedPath> {
    trust::check_as_program(program, path)
}

fn check_trusted_with(environment: Environment<'_>, path: &Path) -> Result<(), UntrustedPath> {
    let below = data_directory(environment).and_then(|data| {
        let below = path.strip_prefix(&data).ok()?.to_owned();
        Some((data, below))
    });
    match below {
        Some((data, below)) => trust::check_below(&data, &below),
        None => trust::check_followed(path),
    }
}

/// A library of NVIDIA's to search for, by the rules of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibrarySearch {
    /// The variable that names its file, such as `FERCUDA_NVRTC`.
    pub variable: &'static str,
    /// Its file name before the version, such as `libnvrtc.so`.
    pub stem: &'static str,
    /// Names for the loader's own search, best first.
    pub loader_names: &'static [&'static str],
}

/// The search for NVRTC.
pub const NVRTC: LibrarySearch = LibrarySearch {
    variable: "FERCUDA_NVRTC",
    stem: "libnvrtc.so",
    loader_names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
};

/// The library files to try, best first, without repeats, and the files that were passed over
/// because another user could have changed them.
pub struct FoundLibraries {
    /// Existing files, and names for the loader's own search.
    pub files: Vec<PathBuf>,
    /// Files that are not opened, and why.
    pub refused: Vec<UntrustedPath>,
}

/// Searches every place for `search`. Where the places before it have no file, the `python3` of
/// `PATH` is started once to learn where its packages are.
pub fn libraries(search: &LibrarySearch) -> FoundLibraries {
    libraries_with(search, &of_process, &ask_python)
}

fn libraries_with(
    search: &LibrarySearch,
    environment: Environment<'_>,
    packages_of_python: &dyn Fn(&std::ffi::OsStr) -> Vec<PathBuf>,
) -> FoundLibraries {
    let stem = search.stem;
    let path = |name: &str| named(environment, name);
    let mut files = Vec::new();
    let mut refused = Vec::new();
    files.extend(path(search.variable));
    if let Some(wheels) = path("FERCUDA_WHEELS") {
        files.extend(in_wheels(&wheels, stem));
        files.extend(in_environment(&wheels, stem));
    }
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path) {
        files.extend(in_toolkit(&toolkit, stem));
    }
    for active in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path) {
        files.extend(in_environment(&active, stem));
        // Conda has packages of the toolkit too.
        files.extend(in_toolkit(&active, stem));
    }
    let own = data_directory(environment).map(|data| data.join(OWN));
    let unnamed = own.iter().flat_map(|own| in_environment(own, stem));
    let mut examine =
        |files: &mut Vec<PathBuf>, file: PathBuf| match check_trusted_with(environment, &file) {
            Ok(()) => files.push(file),
            Err(untrusted) => refused.push(untrusted),
        };
    for file in unnamed.chain(in_toolkit(Path::new("/usr/local/cuda"), stem)) {
        examine(&mut files, file);
    }
    if files.is_empty()
        && let Some(search_path) = environment("PATH")
    {
        // The user has named the Python, not the packages, which may be of another user's home.
        for packages in packages_of_python(&search_path) {
            for file in in_wheels(&packages.join("nvidia"), stem) {
                examine(&mut files, file);
            }
        }
    }
    files.extend(search.loader_names.iter().map(PathBuf::from));
    let mut seen = std::collections::HashSet::new();
    files.retain(|path| seen.insert(path.clone()));
    FoundLibraries { files, refused }
}

fn named(environment: Environment<'_>, name: &str) -> Option<PathBuf> {
    let value = environment(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// `site-packages/nvidia` of every Python environment that the user named or `fercuda setup`
/// made, in the order of [`libraries`].
pub fn wheel_directories() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let named = |name: &str| named(&of_process, name);
    if let Some(wheels) = named("FERCUDA_WHEELS") {
        match site_packages(&wheels) {
            of_environment if of_environment.is_empty() => found.push(wheels),
            of_environment => found.extend(of_environment.iter().map(|it| it.join("nvidia"))),
        }
    }
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(named);
    for environment in active.chain(of_user()) {
        let directories = site_packages(&environment);
        found.extend(directories.into_iter().map(|it| it.join("nvidia")));
    }
    found.retain(|directory| directory.is_dir());
    found.dedup();
    found
}

/// `nvidia` in the package directories of the `python3` of `PATH`, which is started to learn them:
/// where `python3 -m pip install` puts wheels without an active environment.
pub fn wheel_directories_of_path() -> Vec<PathBuf> {
    let search = of_process("PATH").unwrap_or_default();
    let packages = ask_python(&search).into_iter();
    let mut found: Vec<PathBuf> = packages.map(|it| it.join("nvidia")).collect();
    found.retain(|directory| directory.is_dir() && check_trusted(directory).is_ok());
    found
}

/// The program `name` in the first absolute directory of `PATH` that has it: an entry that is empty
/// or relative means the current directory, where anybody may have put a program.
pub fn program_of_path(name: &str) -> Option<PathBuf> {
    let search = of_process("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    first_program(name, &search)
}

/// The first file `name` that may be executed in an absolute directory of `search`, a value of
/// `PATH`.
fn first_program(name: &str, search: &std::ffi::OsStr) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        let metadata = file.metadata();
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    let directories = std::env::split_paths(search).filter(|directory| directory.is_absolute());
    let mut files = directories.map(|directory| directory.join(name));
    files.find(is_program)
}

/// The package directories of the first `python3` in an absolute directory of `search`. It runs
/// isolated from the current directory and from variables of Python's; none if it fails.
fn ask_python(search: &std::ffi::OsStr) -> Vec<PathBuf> {
    const ASK: &str = "\
import site
print(*site.getsitepackages(), site.getusersitepackages(), sep='\\n')";
    let Some(python) = first_program("python3", search) else {
        return Vec::new();
    };
    let answer = Command::new(python)
        .args(["-I", "-c", ASK])
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match answer {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let directories = text.lines().map(PathBuf::from);
            directories.filter(|it| it.is_absolute()).collect()
        }
        _ => Vec::new(),
    }
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

/// The libraries `stem` of the wheels in a `site-packages/nvidia` directory.
fn in_wheels(nvidia: &Path, stem: &str) -> Vec<PathBuf> {
    let folders = subdirectories(nvidia);
    let mut found: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| files_of_stem(&folder.join("lib"), stem))
        .collect();
    // Newer major versions have higher numbers in their names.
    found.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    found
}

/// The libraries `stem` of a Python environment.
fn in_environment(environment: &Path, stem: &str) -> Vec<PathBuf> {
    let directories = site_packages(environment);
    directories
        .iter()
        .flat_map(|directory| in_wheels(&directory.join("nvidia"), stem))
        .collect()
}

/// The package directories of a Python environment, sorted.
fn site_packages(environment: &Path) -> Vec<PathBuf> {
    let mut pythons = subdirectories(&environment.join("lib"));
    pythons.retain(|folder| {
        let name = folder.file_name();
        name.is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    });
    let directories = pythons.iter().map(|python| python.join("site-packages"));
    directories.filter(|directory| directory.is_dir()).collect()
}

fn in_toolkit(root: &Path, stem: &str) -> Vec<PathBuf> {
    ["lib64", "lib"]
        .iter()
        .flat_map(|folder| files_of_stem(&root.join(folder), stem))
        .collect()
}

/// `STEM` and `STEM.MAJOR` in `folder`, for instance `libnvrtc.so.13`, the highest first.
fn files_of_stem(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.strip_prefix(stem).is_some_and(|rest| {
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

    fn touch(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        path.to_owned()
    }

    const WHEEL: &str = "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13";

    /// A folder with a library in every place, and the variables that name them.
    struct Places {
        folder: tempfile::TempDir,
        variables: HashMap<&'static str, PathBuf>,
    }

    impl Places {
        fn new() -> Places {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            let variables = HashMap::from([
                ("FERCUDA_NVRTC", root.join("mine.so")),
                ("FERCUDA_WHEELS", root.join("wheels")),
                ("CUDA_HOME", root.join("toolkit")),
                ("VIRTUAL_ENV", root.join("venv")),
                ("CONDA_PREFIX", root.join("conda")),
                ("XDG_DATA_HOME", PathBuf::from("not/absolute")),
                ("HOME", root.join("home")),
                ("PATH", root.join("bin")),
            ]);
            Places { folder, variables }
        }

        fn at(&self, path: &str) -> PathBuf {
            touch(&self.folder.path().canonicalize().unwrap().join(path))
        }

        fn find(&self) -> FoundLibraries {
            self.find_library(&NVRTC)
        }

        fn find_library(&self, library: &LibrarySearch) -> FoundLibraries {
            let environment = |name: &str| {
                let value = self.variables.get(name);
                value.map(|path| path.clone().into_os_string())
            };
            let packages = |search: &std::ffi::OsStr| {
                assert_eq!(search, self.variables["PATH"].as_os_str());
                vec![self.folder.path().canonicalize().unwrap().join("packages")]
            };
            libraries_with(library, &environment, &packages)
        }
    }

    #[test]
    fn places_are_tried_in_the_order_of_how_explicit_they_are() {
        let places = Places::new();
        let wheel = places.at("wheels/cu13/lib/libnvrtc.so.13");
        places.at("wheels/cu13/lib/libnvrtc-builtins.so.13.0");
        let toolkit = places.at("toolkit/lib64/libnvrtc.so.12");
        let venv =
            places.at("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        let conda = places.at("conda/lib/libnvrtc.so.12");
        let own = places.at(&format!("home/.local/share/fercuda/venv/{WHEEL}"));
        let of_path = places.at("packages/nvidia/cu13/lib/libnvrtc.so.13");
        let named = places.variables["FERCUDA_NVRTC"].clone();
        let found = places.find();
        assert_eq!(found.files[..6], [named, wheel, toolkit, venv, conda, own]);
        assert_eq!(found.files.last().unwrap(), Path::new("libnvrtc.so"));
        assert!(!found.files.contains(&of_path), "python3 was asked in vain");
        assert_eq!(found.refused, []);
    }

    #[test]
    fn each_library_is_found_by_its_own_variable_and_name() {
        const CUFFT: LibrarySearch = LibrarySearch {
            variable: "FERCUDA_CUFFT",
            stem: "libcufft.so",
            loader_names: &["libcufft.so.12", "libcufft.so.11"],
        };
        let mut places = Places::new();
        places.at("wheels/cu13/lib/libnvrtc.so.13");
        places.at("wheels/cufft/lib/libcufftw.so.11");
        let wheels = [12, 11].map(|major| {
            let folder = if major == 12 { "cu13" } else { "cufft" };
            places.at(&format!("wheels/{folder}/lib/libcufft.so.{major}"))
        });
        let named = PathBuf::from("/mine/libcufft.so");
        places.variables.insert("FERCUDA_CUFFT", named.clone());
        let found = places.find_library(&CUFFT).files;
        let [first, second] = wheels;
        let loader = ["libcufft.so.12", "libcufft.so.11"].map(PathBuf::from);
        assert_eq!(found[..3], [named, first, second]);
        assert_eq!(found[3..], loader);
    }

    #[test]
    fn wheels_may_be_named_by_their_environment() {
        let mut places = Places::new();
        let wheel = places.at(&format!("checkout/{WHEEL}"));
        let checkout = places
            .folder
            .path()
            .canonicalize()
            .unwrap()
            .join("checkout");
        places.variables = HashMap::from([("FERCUDA_WHEELS", checkout)]);
        assert_eq!(places.find().files[0], wheel);
    }

    #[test]
    fn python3_of_path_is_asked_where_no_other_place_has_a_library() {
        let mut places = Places::new();
        let of_path = places.at("packages/nvidia/cu13/lib/libnvrtc.so.13");
        places.variables.remove("FERCUDA_NVRTC");
        assert_eq!(places.find().files[0], of_path);
        let search = std::env::var_os("PATH").unwrap();
        assert!(!ask_python(&search).is_empty(), "the tests need a python3");
        // Never one of the current directory.
        assert_eq!(first_program("python3", "".as_ref()), None);
        assert_eq!(first_program("python3", ".:bin".as_ref()), None);
    }

    #[test]
    fn packages_of_python_are_passed_over_where_others_may_write() {
        let mut places = Places::new();
        let library = places.at("packages/nvidia/cu13/lib/libnvrtc.so.13");
        places.variables.remove("FERCUDA_NVRTC");
        let lib = library.parent().unwrap();
        for open in [0o775, 0o777] {
            fs::set_permissions(lib, fs::Permissions::from_mode(open)).unwrap();
            let found = places.find();
            assert!(!found.files.contains(&library), "{:?}", found.files);
            assert_eq!(found.refused[0].path, lib);
        }
        fs::set_permissions(lib, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(places.find().files.contains(&library));
    }

    #[test]
    fn own_environment_is_passed_over_where_others_may_write_or_a_link_leads_on() {
        let places = Places::new();
        let own = places.at(&format!("home/.local/share/fercuda/venv/{WHEEL}"));
        let data = places
            .folder
            .path()
            .canonicalize()
            .unwrap()
            .join("home/.local/share");
        let venv = data.join(OWN);
        assert!(places.find().files.contains(&own));
        let lib = venv.join("lib");
        fs::set_permissions(&lib, fs::Permissions::from_mode(0o777)).unwrap();
        let found = places.find();
        assert!(!found.files.contains(&own), "{:?}", found.files);
        assert_eq!(found.refused[0].path, lib);
        fs::set_permissions(&lib, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(places.find().files.contains(&own));
        fs::rename(&venv, data.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", &venv).unwrap();
        let found = places.find();
        assert!(!found.files.contains(&own), "{:?}", found.files);
        assert_eq!(found.refused[0].path, venv);
        // A home that is a link is the user's own arrangement.
        fs::remove_file(&venv).unwrap();
        fs::rename(data.join("elsewhere"), &venv).unwrap();
        let home = places.folder.path().canonicalize().unwrap().join("home");
        fs::rename(&home, home.with_file_name("disk")).unwrap();
        std::os::unix::fs::symlink("disk", &home).unwrap();
        assert!(places.find().files.contains(&own));
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
