//! `fercuda setup` as a user runs it: printed commands are the ones that run, folders of others
//! stay unchanged, and an interrupted installation resumes.
//!
//! Packages are wheels that the test makes, in a folder that pip uses as its index; no network
//! is used. It needs python3 with venv and pip, as all tests do.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use common::remove_variables;

/// The pins of the bundle `hf`.
const HF: [(&str, &str); 4] = [
    ("transformers", "5.23.0"),
    ("safetensors", "0.8.0"),
    ("tokenizers", "0.23.3"),
    ("huggingface_hub", "2.4.0"),
];

/// A folder with wheels, homes and environments.
struct Place {
    folder: tempfile::TempDir,
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        for name in ["wheels", "home", "here"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// Adds a wheel with an empty module to the index.
    fn wheel(&self, name: &str, version: &str) {
        const MAKE: &str = "
import sys, zipfile
folder, name, version = sys.argv[1:]
info = f'{name}-{version}.dist-info'
with zipfile.ZipFile(f'{folder}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
    wheel.writestr(f'{name}/__init__.py', '')
    wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n')
    wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(f'{info}/RECORD', '')
";
        let mut python = Command::new("python3");
        python
            .args(["-c", MAKE])
            .arg(self.path("wheels"))
            .args([name, version]);
        assert!(python.status().unwrap().success());
    }

    fn hf_wheels(&self) {
        HF.iter()
            .for_each(|(name, version)| self.wheel(name, version));
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let ours = [
            "FERCUDA_",
            "PIP_",
            "VIRTUAL_ENV",
            "PYTHON",
            "XDG_",
            "NO_COLOR",
        ];
        remove_variables(&mut command, &ours);
        command
            .current_dir(self.path("here"))
            .env("HOME", self.path("home"))
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", self.path("wheels"));
        command
    }

    /// `fercuda setup` with these words.
    fn setup(&self, words: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_fercuda"));
        command.arg("setup").args(words);
        command
    }

    /// The same, into a folder of that name.
    fn setup_into(&self, folder: &str, words: &[&str]) -> Command {
        let mut command = self.setup(words);
        command.arg("--into").arg(self.path(folder));
        command
    }

    fn marker(&self, folder: &str) -> Value {
        let text = fs::read(self.path(folder).join("fercuda-setup.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

fn ended(command: &mut Command) -> Ended {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Ended {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{}{}", ended.out, ended.err))
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// The installed version of a package.
fn version(environment: &Path, package: &str) -> Option<String> {
    let ask = "import sys\nfrom importlib.metadata import version\nprint(version(sys.argv[1]))";
    let mut python = Command::new(environment.join("bin/python"));
    let output = python.args(["-I", "-c", ask, package]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| said.trim().to_owned())
}

/// The environment's only folder of modules.
fn python_folder(environment: &Path) -> PathBuf {
    let mut folders = fs::read_dir(environment.join("lib")).unwrap();
    folders.next().unwrap().unwrap().path()
}

#[test]
fn a_bundle_is_installed_into_its_own_folder_and_listed() {
    let place = Place::new();
    place.hf_wheels();
    let before = json(&ended(&mut place.setup_into("own", &["--json"])));
    assert_eq!(before["exists"], false);
    assert!(!place.path("own").exists());
    let first = ended(&mut place.setup_into("own", &["hf"]));
    assert_eq!(first.code, Some(0), "{}{}", first.out, first.err);
    // The commands come before any other output.
    let lines: Vec<&str> = first.out.lines().collect();
    assert_contains(lines[0], &["# into ", "own, which is created"]);
    assert_contains(lines[1], &["python3 -I -m venv ", "/own"]);
    assert_contains(
        lines[2],
        &[
            "/own/bin/python -I -m pip ",
            " install ",
            " transformers==5.23.0 ",
        ],
    );
    assert_contains(&first.out, &["installed in ", "source "]);
    for (name, expected) in HF {
        assert_eq!(version(&place.path("own"), name).as_deref(), Some(expected));
    }
    let marker = place.marker("own");
    assert_eq!(marker["unfinished"], serde_json::json!([]));
    assert_eq!(marker["bundles"]["hf"][0], "transformers==5.23.0");
    let after = json(&ended(&mut place.setup_into("own", &["--list", "--json"])));
    let standing = |name: &str| {
        let bundles = after["bundles"].as_array().unwrap();
        bundles
            .iter()
            .find(|it| it["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(standing("hf")["installed"], true);
    assert_eq!(standing("gguf")["installed"], false);
    assert_eq!(standing("gguf")["missing"].as_array().unwrap().len(), 9);
    let listed = ended(&mut place.setup_into("own", &[]));
    assert_contains(&listed.out, &[" yes hf ", "  no nvrtc "]);
    assert!(
        listed.out.lines().all(|line| line.chars().count() <= 80),
        "{}",
        listed.out
    );
    // Installed packages are not installed again, even if the index is gone.
    fs::remove_dir_all(place.path("wheels")).unwrap();
    let again = json(&ended(&mut place.setup_into("own", &["hf", "--json"])));
    assert_eq!(
        (&again["done"], &again["commands"]),
        (&Value::from(true), &Value::from([""; 0]))
    );
}

#[test]
fn printed_commands_do_the_same_in_a_shell() {
    let place = Place::new();
    place.hf_wheels();
    let printed = ended(&mut place.setup_into("copied", &["hf", "gguf", "--print-only"]));
    assert_eq!((printed.code, printed.err.as_str()), (Some(0), ""));
    assert!(!place.path("copied").exists());
    assert_contains(
        &printed.out,
        &[
            "--require-hashes -r /dev/stdin <<'END'",
            "gguf==0.19.0 \\\n    --hash=sha256:70bc",
        ],
    );
    let mut shell = place.command("sh");
    let ended_shell = ended(shell.args(["-c", &printed.out]));
    for (name, expected) in HF {
        assert_eq!(
            version(&place.path("copied"), name).as_deref(),
            Some(expected)
        );
    }
    // The index has no gguf; pip was asked for it with its hash.
    assert_contains(&ended_shell.err, &["gguf==0.19.0"]);
    // A folder created by hand is not ours.
    let refused = ended(&mut place.setup_into("copied", &["hf"]));
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert_contains(
        &refused.err,
        &["did not make it", "try: --into another folder"],
    );
    let into_it = json(&ended(
        place
            .setup(&["hf", "--json"])
            .env("VIRTUAL_ENV", place.path("copied")),
    ));
    assert_eq!(
        (&into_it["active"], &into_it["done"]),
        (&Value::from(true), &Value::from(true))
    );
    assert!(!place.path("copied/fercuda-setup.json").exists());
}

#[test]
fn a_folder_that_is_not_ours_is_unchanged() {
    let place = Place::new();
    let folder = place.path("mine");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("notes"), "mine").unwrap();
    for words in [&["hf"][..], &[], &["hf", "--json"], &["hf", "--print-only"]] {
        let refused = ended(&mut place.setup_into("mine", words));
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
        assert_contains(
            &refused.err,
            &["mine exists", "fercuda-setup.json", "try: "],
        );
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert_eq!(fs::read(folder.join("notes")).unwrap(), b"mine");
}

#[test]
fn a_wheel_with_a_wrong_hash_is_refused_and_the_rest_can_continue() {
    let place = Place::new();
    place.hf_wheels();
    for package in [
        "gguf", "numpy", "pyyaml", "requests", "tqdm", "certifi", "idna", "urllib3",
    ] {
        let pins = include_str!("../../../requirements.txt").lines();
        let mut versions = pins.filter_map(|line| line.strip_prefix(&format!("{package}==")));
        place.wheel(package, versions.next().unwrap().trim_end_matches(" \\"));
    }
    place.wheel("charset_normalizer", "3.5.2");
    let refused = ended(&mut place.setup_into("own", &["gguf"]));
    assert_eq!(refused.code, Some(1));
    assert_contains(
        &refused.err,
        &[
            "could not install gguf",
            "Expected sha256",
            "try: the index of NVIDIA or PyPI",
        ],
    );
    assert_eq!(version(&place.path("own"), "gguf"), None);
    assert_eq!(
        place.marker("own")["unfinished"],
        serde_json::json!(["gguf"])
    );
    let listed = ended(&mut place.setup_into("own", &["--list"]));
    assert_contains(
        &listed.out,
        &["gguf was interrupted; the same command again resumes it"],
    );
    let other = json(&ended(&mut place.setup_into("own", &["hf", "--json"])));
    assert_eq!(other["done"], true);
    // That does not change the state of the other bundle.
    let again = ended(&mut place.setup_into("own", &["gguf"]));
    assert_contains(&again.out, &["resuming gguf, which was interrupted"]);
}

#[test]
fn an_interrupted_installation_resumes() {
    let place = Place::new();
    // A python3 that is killed while it creates the environment.
    let bin = place.path("bin");
    fs::create_dir(&bin).unwrap();
    let script =
        "#!/bin/sh\ncase \"$3\" in venv) mkdir -p \"$4/bin\"; kill -9 $$;; esac\necho 3.11\n";
    fs::write(bin.join("python3"), script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bin.join("python3"), mode).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let killed = ended(place.setup_into("own", &["hf"]).env("PATH", &path));
    assert_eq!(killed.code, Some(1));
    assert_contains(
        &killed.err,
        &["could not install venv", "signal: 9", "python3-venv"],
    );
    assert_eq!(
        place.marker("own")["unfinished"],
        serde_json::json!(["venv"])
    );
    // No package is available.
    let none = ended(&mut place.setup_into("own", &["hf"]));
    assert_eq!(none.code, Some(1));
    assert_contains(&none.out, &["resuming venv, which was interrupted"]);
    assert_contains(
        &none.err,
        &[
            "No matching distribution",
            "try: check that pip reaches its index",
        ],
    );
    assert_eq!(place.marker("own")["unfinished"], serde_json::json!(["hf"]));
    place.hf_wheels();
    let at_last = ended(&mut place.setup_into("own", &["hf"]));
    assert_eq!(at_last.code, Some(0), "{}", at_last.err);
    assert_contains(&at_last.out, &["resuming hf, which was interrupted"]);
    assert!(!at_last.out.contains("-m venv"));
    assert_eq!(place.marker("own")["unfinished"], serde_json::json!([]));
}

#[test]
fn a_broken_environment_is_repaired_or_reported() {
    let place = Place::new();
    place.hf_wheels();
    let installs = || {
        let done = ended(&mut place.setup_into("own", &["hf"]));
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        done.out
    };
    installs();
    // As after pip is killed while it writes a package's folder.
    let packages = python_folder(&place.path("own")).join("site-packages");
    fs::remove_file(packages.join("safetensors-0.8.0.dist-info/METADATA")).unwrap();
    let broken = json(&ended(
        &mut place.setup_into("own", &["hf", "--print-only", "--json"]),
    ));
    let missing = &broken["bundles"][0]["missing"];
    assert_eq!(*missing, serde_json::json!(["safetensors==0.8.0"]));
    assert!(!installs().contains("-m venv"));
    assert_eq!(
        version(&place.path("own"), "safetensors").as_deref(),
        Some("0.8.0")
    );
    // Without its Python the environment is created again in place.
    let python = place.path("own/bin/python");
    let was = fs::read_link(&python).unwrap();
    fs::remove_file(&python).unwrap();
    assert_contains(&installs(), &["-m venv"]);
    assert_eq!(fs::read_link(&python).unwrap(), was);
    // The Python of the environment was uninstalled.
    fs::remove_file(&python).unwrap();
    std::os::unix::fs::symlink("/nowhere/python3", &python).unwrap();
    for words in [&["hf"][..], &[]] {
        let refused = ended(&mut place.setup_into("own", words));
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
        assert_contains(&refused.err, &["no longer exists", "try: rm -r "]);
    }
}

#[test]
fn modules_in_the_current_folder_are_not_run() {
    let place = Place::new();
    place.hf_wheels();
    for module in ["venv", "pip", "json", "ensurepip"] {
        let text = format!("open({:?}, 'w')", place.path("ran"));
        let folder = place.path("here").join(module);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("__init__.py"), &text).unwrap();
        fs::write(folder.join("__main__.py"), &text).unwrap();
    }
    let done = ended(
        place
            .setup_into("own", &["hf"])
            .env("PYTHONPATH", place.path("here")),
    );
    assert!(!place.path("ran").exists());
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
}

#[test]
fn pip_settings_do_not_change_the_target() {
    let place = Place::new();
    place.hf_wheels();
    let of = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let file = place.path("pip.conf");
    let settings = format!(
        "[global]\npython = {}\n[install]\ntarget = {}\nprefix = {}\nroot = {}\nuser = true\n",
        of("none"),
        of("other/target"),
        of("other/prefix"),
        of("other/root")
    );
    fs::write(&file, settings).unwrap();
    let variables = [
        ("PIP_PYTHON", of("none")),
        ("PIP_TARGET", of("other/target")),
        ("PIP_PREFIX", of("other/prefix")),
        ("PIP_ROOT", of("other/root")),
        ("PIP_USER", "1".to_owned()),
    ];
    let by_file = [("PIP_CONFIG_FILE", of("pip.conf"))];
    for (name, settings) in [("one", &variables[..]), ("two", &by_file)] {
        let mut setup = place.setup_into(name, &["hf", "--json"]);
        let done = ended(setup.envs(settings.iter().cloned()));
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert_eq!(json(&done)["done"], true);
        assert!(!place.path("other").exists());
    }
}

#[test]
fn jax_without_cuda_is_not_installed() {
    let place = Place::new();
    place.hf_wheels();
    place.wheel("jax", "0.10.2");
    assert_eq!(ended(&mut place.setup_into("own", &["hf"])).code, Some(0));
    let mut pip = place.command(place.path("own/bin/python"));
    let installed = ended(pip.args(["-m", "pip", "install", "jax"]));
    assert_eq!(installed.code, Some(0), "{}", installed.err);
    let listed = json(&ended(&mut place.setup_into("own", &["--json"])));
    let jax = &listed["bundles"][3];
    assert_eq!(
        (&jax["name"], &jax["installed"]),
        (&"jax".into(), &false.into())
    );
    let missing = jax["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{missing:?}");
    let plugin = missing[0].as_str().unwrap();
    assert!(
        plugin.starts_with("jax-cuda") && plugin.ends_with("==0.10.2"),
        "{plugin}"
    );
}

#[test]
fn a_folder_name_is_never_run_as_a_command() {
    let place = Place::new();
    let name = "own\ntouch \"$RAN\"\n\x1b[2J";
    let printed = ended(&mut place.setup_into(name, &["hf", "--print-only"]));
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    let first = printed.out.lines().next().unwrap();
    assert_contains(
        first,
        &["# into ", "own\\ntouch ", "\\u{1b}[2J, which is created"],
    );
    // The programs of the commands are in no folder of PATH.
    let path = "/bin:/usr/bin";
    let mut shell = place.command("/bin/sh");
    shell.args(["-c", &printed.out.replace("python3", "none")]);
    ended(shell.env("PATH", path).env("RAN", place.path("ran")));
    assert!(!place.path("ran").exists());
}

#[test]
fn it_finds_the_users_target_and_reports_what_is_missing() {
    let place = Place::new();
    let target = |command: &mut Command| json(&ended(command))["target"].clone();
    let list = || place.setup(&["--json"]);
    let at = |name: &str| Value::from(place.path(name).to_str().unwrap());
    assert_eq!(target(&mut list()), at("home/.local/share/fercuda/venv"));
    assert_eq!(
        target(list().env("XDG_DATA_HOME", place.path("data"))),
        at("data/fercuda/venv")
    );
    let absent = ended(list().env("VIRTUAL_ENV", place.path("none")));
    assert_eq!(absent.code, Some(2));
    assert_contains(&absent.err, &["which has no bin/python", "try: deactivate"]);
    let no_python = ended(place.setup(&["hf"]).env("PATH", place.path("here")));
    assert_eq!((no_python.code, no_python.out.as_str()), (Some(2), ""));
    assert_contains(
        &no_python.err,
        &[
            "cannot find a Python",
            "python3: not in PATH",
            "try: install",
        ],
    );
    let homeless = ended(list().env_remove("HOME"));
    assert_eq!(homeless.code, Some(2));
    assert_contains(&homeless.err, &["HOME is not set", "try: --into"]);
    let nothing = ended(&mut place.setup(&["--print-only"]));
    assert_eq!(nothing.code, Some(2));
    assert_contains(&nothing.err, &["needs a bundle"]);
    assert_eq!(ended(&mut place.setup(&["cuda"])).code, Some(2));
}
