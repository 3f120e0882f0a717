//! Code that another user planted is neither loaded nor run.
//!
//! Each test plants a library, or a Python, that leaves a mark when it is loaded; the mark must
//! not appear. The same library leaves its mark where the user names it, which shows that the
//! tests can fail. As root, the planted files belong to another user.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WHEEL: &str = "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13";
const OTHER_USER: u32 = 65534;

struct Place {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Place {
    /// A library whose constructor creates the file that `MARK` names.
    fn new() -> Place {
        const SOURCE: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void leave_mark(void) {
    const char *path = getenv("MARK");
    if (path) (void)!open(path, O_CREAT | O_WRONLY, 0600);
}
"#;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (source, library) = (root.join("mark.c"), root.join("mark.so"));
        fs::write(&source, SOURCE).unwrap();
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut compile = Command::new(cc);
        compile
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source]);
        assert!(compile.status().unwrap().success());
        let text = "extern \"C\" __global__ void k(float* x) { x[threadIdx.x] = 1; }\n";
        fs::write(root.join("k.cu"), text).unwrap();
        fs::create_dir(root.join("home")).unwrap();
        Place { folder, library }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// Puts the library where NVRTC would be in the Python environment `environment`.
    fn plant(&self, environment: &Path) {
        let file = environment.join(WHEEL);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::copy(&self.library, file).unwrap();
        let python = environment.join("bin/python");
        fs::create_dir_all(python.parent().unwrap()).unwrap();
        fs::write(&python, "#!/bin/sh\n: > \"$MARK\"\n").unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A shell script that may be executed.
    fn script(&self, name: &str, line: &str) {
        fs::write(self.path(name), format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn fercuda(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        let path = std::env::var_os("PATH").unwrap();
        command
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path("home"))
            .env("FERCUDA_DEVICE", "soft")
            .env("FERCUDA_CACHE", "")
            .env("MARK", self.path("mark"))
            .current_dir(self.folder.path());
        command
    }

    fn check(&self) -> Command {
        let file = self.path("k.cu");
        self.fercuda(&[
            "check",
            file.to_str().unwrap(),
            "--grid",
            "1",
            "--block",
            "4",
            "--arg",
            "out:f32[4]",
        ])
    }

    #[track_caller]
    fn assert_unmarked(&self, output: &Output) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!self.path("mark").exists(), "planted code ran\n{text}");
    }
}

fn give_away(path: &Path) {
    if is_root() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            give_away(&entry.path());
        }
        std::os::unix::fs::lchown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn library_of_an_environment_that_the_user_names_is_loaded() {
    let place = Place::new();
    place.plant(&place.path("venv"));
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "FERCUDA_WHEELS"] {
        let output = place
            .check()
            .env(name, place.path("venv"))
            .output()
            .unwrap();
        assert!(place.path("mark").exists(), "{name}: {output:?}");
        fs::remove_file(place.path("mark")).unwrap();
    }
}

#[test]
fn nothing_is_loaded_from_the_current_directory_or_those_above_it() {
    let place = Place::new();
    for name in ["build/venv", "build/setup", ".venv", "venv", "."] {
        place.plant(&place.path(name));
    }
    fs::create_dir_all(place.path("deep/er")).unwrap();
    for library in ["libnvrtc.so.13", "libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::copy(&place.library, place.path(library)).unwrap();
        fs::copy(&place.library, place.path("deep/er").join(library)).unwrap();
    }
    for whose in ["the user's own", "another user's"] {
        for here in ["", "deep/er"] {
            let output = place
                .check()
                .current_dir(place.path(here))
                .output()
                .unwrap();
            place.assert_unmarked(&output);
            let mut demo = place.fercuda(&["demo"]);
            // No other Python, so that a planted one would be the best there is.
            demo.env("PATH", place.path("none"))
                .current_dir(place.path(here));
            let output = demo.output().unwrap();
            place.assert_unmarked(&output);
            // Entries that mean the current directory to the loader.
            for listed in [":/none", "/none;;/none", "venv/.."] {
                let mut check = place.check();
                let check = check.current_dir(place.path(here));
                let output = check.env("LD_LIBRARY_PATH", listed).output().unwrap();
                place.assert_unmarked(&output);
            }
            let output = place
                .fercuda(&["doctor"])
                .current_dir(place.path(here))
                .output();
            place.assert_unmarked(&output.unwrap());
            assert!(!place.path("mark").exists(), "{whose}, from {here:?}");
        }
        give_away(&place.path("build"));
        give_away(&place.path("venv"));
    }
}

#[test]
fn library_of_an_absolute_folder_of_the_loaders_path_is_loaded() {
    let place = Place::new();
    fs::create_dir(place.path("lib")).unwrap();
    fs::copy(&place.library, place.path("lib/libnvrtc.so.13")).unwrap();
    let lib = place.path("lib").into_os_string().into_string().unwrap();
    // What is relative beside it is passed over.
    for listed in [lib.clone(), format!(":{lib}"), format!("{lib};none")] {
        let mut check = place.check();
        let output = check.env("LD_LIBRARY_PATH", &listed).output().unwrap();
        assert!(place.path("mark").exists(), "{listed}: {output:?}");
        fs::remove_file(place.path("mark")).unwrap();
    }
}

#[test]
fn driver_of_the_current_directory_is_not_loaded() {
    let place = Place::new();
    fs::copy(&place.library, place.path("libcuda.so.1")).unwrap();
    fs::copy(&place.library, place.path("libnvidia-ml.so.1")).unwrap();
    for command in [&["doctor"][..], &["top", "--once"]] {
        for listed in [":/none", "."] {
            let mut started = place.fercuda(command);
            started.env("LD_LIBRARY_PATH", listed);
            let output = started.env("FERCUDA_DEVICE", "auto").output().unwrap();
            place.assert_unmarked(&output);
        }
    }
}

#[test]
fn programs_of_the_current_directory_are_not_started() {
    let place = Place::new();
    for name in [
        "python3",
        "python3.12",
        "fusermount3",
        "fusermount",
        "getent",
        "ldconfig",
    ] {
        place.script(name, ": > \"$MARK\"");
    }
    for path in [":/usr/bin:/bin", "."] {
        for command in [
            &["demo"][..],
            &["doctor"],
            &["setup", "nvrtc", "--print-only"],
            &[
                "check",
                "k.cu",
                "--grid",
                "1",
                "--block",
                "4",
                "--arg",
                "out:f32[4]",
            ],
            &[
                "vram",
                "mount",
                "mnt",
                "--size",
                "1MiB",
                "--uid",
                "no-user-of-this-name",
            ],
            &["vram", "umount", "home"],
        ] {
            let output = place.fercuda(command).env("PATH", path).output().unwrap();
            place.assert_unmarked(&output);
        }
    }
}

#[test]
fn packages_of_python_are_refused_where_another_user_could_change_them() {
    let place = Place::new();
    let packages = place.path("packages");
    let file = packages.join("nvidia/cu13/lib/libnvrtc.so.13");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::copy(&place.library, &file).unwrap();
    fs::create_dir(place.path("bin")).unwrap();
    // The folder of the user's packages, in a home that need not be the user's.
    place.script("bin/python3", &format!("echo {}", packages.display()));
    let path = format!("{}:/usr/bin:/bin", place.path("bin").display());
    let check = || place.check().env("PATH", &path).output().unwrap();
    let output = check();
    assert!(place.path("mark").exists(), "{output:?}");
    fs::remove_file(place.path("mark")).unwrap();
    for open in [0o775, 0o777] {
        fs::set_permissions(&packages, fs::Permissions::from_mode(open)).unwrap();
        let output = check();
        place.assert_unmarked(&output);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(&format!("(mode {open:o})")), "{text}");
    }
    fs::set_permissions(&packages, fs::Permissions::from_mode(0o755)).unwrap();
    if is_root() {
        give_away(&packages);
        let output = check();
        place.assert_unmarked(&output);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("it belongs to user 65534"), "{text}");
    }
}

/// A program in a folder such as `/tmp`: its own file is safe there, and names beside it are not.
#[test]
fn libraries_beside_a_program_in_a_shared_folder_are_refused() {
    let place = Place::new();
    let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shared = shared.path().canonicalize().unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let program = shared.join("fercuda");
    fs::hard_link(env!("CARGO_BIN_EXE_fercuda"), &program).unwrap();
    let run = || {
        let mut command = Command::new(&program);
        command.args(["run", "--device", "soft", "--", "/bin/true"]);
        command.env_clear().env("MARK", place.path("mark"));
        command.env("XDG_RUNTIME_DIR", place.path("home"));
        command.output().unwrap()
    };
    for (folder, in_cargos) in [("deps", true), ("deps", false), (".", false)] {
        let folder = shared.join(folder);
        fs::create_dir_all(&folder).unwrap();
        if in_cargos {
            fs::create_dir_all(shared.join(".fingerprint")).unwrap();
        }
        for name in ["libfercuda_hook.so", "libcuda.so"] {
            fs::copy(&place.library, folder.join(name)).unwrap();
        }
        let hook = folder.join("libfercuda_hook.so");
        let tried = |case: &str| {
            let output = run();
            place.assert_unmarked(&output);
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(
                text.contains("cannot find libfercuda_hook.so"),
                "{case}: {text}"
            );
        };
        if in_cargos || folder == shared.join(".") {
            let output = run();
            assert!(place.path("mark").exists(), "{output:?}");
            fs::remove_file(place.path("mark")).unwrap();
        }
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o666)).unwrap();
        tried("all may write");
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        if is_root() {
            chown(&hook, Some(OTHER_USER), None).unwrap();
            tried("another user's");
            fs::remove_file(&hook).unwrap();
            symlink(&place.library, &hook).unwrap();
            std::os::unix::fs::lchown(&hook, Some(OTHER_USER), None).unwrap();
            tried("another user's link");
        }
        fs::remove_file(&hook).unwrap();
        fs::remove_dir_all(shared.join(".fingerprint")).ok();
    }
}

#[test]
fn own_environment_is_refused_where_any_component_is_open_or_another_users() {
    let place = Place::new();
    let data = place.path("home/.local/share");
    let venv = data.join("fercuda/venv");
    place.plant(&venv);
    let output = place.check().output().unwrap();
    assert!(place.path("mark").exists(), "{output:?}");
    fs::remove_file(place.path("mark")).unwrap();

    let file = venv.join(WHEEL);
    let own = file.ancestors().take_while(|it| *it != data);
    let components: Vec<PathBuf> = own.map(Path::to_owned).collect();
    assert_eq!(components.len(), 9);
    for component in &components {
        let was = fs::metadata(component).unwrap();
        for open in [0o775, 0o777] {
            fs::set_permissions(component, fs::Permissions::from_mode(open)).unwrap();
            let output = place.check().output().unwrap();
            place.assert_unmarked(&output);
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains(&format!("(mode {open:o})")), "{text}");
        }
        fs::set_permissions(component, was.permissions()).unwrap();
        if is_root() {
            chown(component, Some(OTHER_USER), None).unwrap();
            let output = place.check().output().unwrap();
            place.assert_unmarked(&output);
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains("it belongs to user 65534"), "{text}");
            chown(component, Some(0), None).unwrap();
        }
        // A link in its place, to what is otherwise as it was.
        let moved = place.path("moved");
        fs::rename(component, &moved).unwrap();
        symlink(&moved, component).unwrap();
        let output = place.check().output().unwrap();
        place.assert_unmarked(&output);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("it is a symbolic link"), "{text}");
        fs::remove_file(component).unwrap();
        fs::rename(&moved, component).unwrap();
    }
    let output = place.check().output().unwrap();
    assert!(place.path("mark").exists(), "{output:?}");
}

#[test]
fn setup_refuses_a_folder_that_another_user_could_change() {
    let place = Place::new();
    let shared = place.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let into = shared.join("venv");
    let output = place
        .fercuda(&["setup", "hf", "--into", into.to_str().unwrap()])
        .env("PIP_INDEX_URL", "http://127.0.0.1:9/")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(text.contains("another user could change it"), "{text}");
    assert!(text.contains("try: --into another folder"), "{text}");
    assert!(!into.exists());
}
