//! Runs of test programs over the software device's library, with the hook and without it.
//!
//! Each run has a folder of its own for ledgers; governed memory is read there and never
//! assumed.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fercuda_ledger::{DeviceSnapshot, Folder, Governed, LedgerReader, LedgerSnapshot};
use tempfile::TempDir;

/// The timeout of a program.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The seed in `FERCUDA_SEED`, or a fresh one; a failing test shows it.
#[expect(clippy::print_stdout, reason = "a failing test shows its seed")]
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("FERCUDA_SEED") {
        Ok(seed) => seed.parse().expect("FERCUDA_SEED is a number"),
        Err(_) => fastrand::u64(..1 << 32),
    };
    println!("FERCUDA_SEED={seed}");
    seed
}

/// A library as cargo built it for this profile.
fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    let places = [deps.join(name), deps.parent().unwrap().join(name)];
    let found = places.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("cargo builds {name} before this test"))
}

/// `libfercuda_hook.so`.
pub(crate) fn hook() -> &'static Path {
    static HOOK: OnceLock<PathBuf> = OnceLock::new();
    HOOK.get_or_init(|| built("libfercuda_hook.so"))
}

/// The folder of the files that are built once for this test program.
fn build_folder() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hook");
        let driver = made.join("driver");
        fs::create_dir_all(&driver).unwrap();
        for name in ["libcuda.so.1", "libcuda.so"] {
            // Replaces an older one atomically, as another process may have it open.
            let draft = driver.join(format!("{name}.{}", std::process::id()));
            fs::copy(built("libcuda.so"), &draft).unwrap();
            fs::rename(&draft, driver.join(name)).unwrap();
        }
        made
    })
}

/// The software device's library under the driver's name.
pub(crate) fn driver() -> PathBuf {
    build_folder().join("driver/libcuda.so.1")
}

/// A driver that counts the users of contexts, which the software device does not, over
/// the software device's library.
pub(crate) fn counting_driver() -> PathBuf {
    // For the driver's name the loader would use the hook, and whatever is linked to the driver's
    // library asks for that name. So this is linked to a stub that is named as the path of a copy.
    let behind = build_folder().join("libbehind.so");
    let path = behind.to_str().unwrap();
    let named = format!("-Wl,-soname,{path}");
    let stub = compiled_as("libstub.so", "early.c", &["-shared", "-fPIC", &named]);
    let named = format!("-DBEHIND=\"{path}\"");
    let stub = stub.to_str().unwrap();
    let options = ["-shared", "-fPIC", "-Wl,--no-as-needed", &named, stub];
    let counting = compiled_as("libcounting.so", "counting.c", &options);
    let draft = build_folder().join(format!("libbehind.{}", std::process::id()));
    fs::copy(driver(), &draft).unwrap();
    fs::rename(draft, behind).unwrap();
    counting
}

/// The folder of the programs' sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// A program or library, compiled once. `linked`: to the driver's library.
pub(crate) fn compiled(source: &str, linked: bool) -> PathBuf {
    let stem = source.trim_end_matches(".c");
    let mut options = Vec::new();
    let name = if stem == "plugin" {
        options.extend(["-shared", "-fPIC"]);
        format!("lib{stem}.so")
    } else {
        stem.to_owned()
    };
    if linked {
        options.push("-lcuda");
    }
    compiled_as(&name, source, &options)
}

/// The hash of all that a compiled file depends on: the sources, the compiler and its options,
/// and the driver's library, which it may be linked to.
fn key_of(source: &str, compiler: &str, options: &[&str]) -> u64 {
    let mut key = DefaultHasher::new();
    let mut headers: Vec<PathBuf> = fs::read_dir(sources())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "h"))
        .collect();
    headers.sort();
    headers.push(sources().join(source));
    for path in headers {
        fs::read(path).unwrap().hash(&mut key);
    }
    let driver = fs::metadata(built("libcuda.so")).unwrap();
    (source, compiler, options, build_folder()).hash(&mut key);
    (driver.len(), driver.modified().unwrap()).hash(&mut key);
    key.finish()
}

/// The same under a given name, with compiler options. A file is compiled once for all test
/// processes: it lies in a folder named by the hash of what it depends on, and gets its name
/// when it is complete.
pub(crate) fn compiled_as(name: &str, source: &str, options: &[&str]) -> PathBuf {
    static COMPILING: Mutex<()> = Mutex::new(());
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let key = key_of(source, &compiler, options);
    let folder = build_folder().join(format!("{key:016x}"));
    let program = folder.join(name);
    // Two threads of this process would use the same draft.
    let _one_at_a_time = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    if program.exists() {
        return program;
    }
    fs::create_dir_all(&folder).unwrap();
    let draft = folder.join(format!("{name}.{}", std::process::id()));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-w", "-o"]).arg(&draft);
    command.arg(sources().join(source));
    for folder in ["driver", "nvml"] {
        command.arg("-L").arg(build_folder().join(folder));
    }
    let status = command.args(options).args(["-ldl", "-lpthread"]).status();
    assert!(status.unwrap().success(), "cc {source}");
    fs::rename(&draft, &program).unwrap();
    program
}

/// The folder of the NVML stub.
pub(crate) fn nvml() -> PathBuf {
    let folder = build_folder().join("nvml");
    fs::create_dir_all(&folder).unwrap();
    let soname = "-Wl,-soname,libnvidia-ml.so.1";
    let stub = compiled_as("libnvidia-ml.so.1", "ml.c", &["-shared", "-fPIC", soname]);
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        let draft = folder.join(format!("{name}.{}", std::process::id()));
        fs::copy(&stub, &draft).unwrap();
        fs::rename(&draft, folder.join(name)).unwrap();
    }
    folder
}

/// A standard error that cannot be written to.
#[derive(Clone, Copy)]
pub(crate) enum BrokenStderr {
    /// A full device.
    Full,
    /// A pipe without a reader.
    Gone,
}

/// A program about to run.
pub(crate) struct Client {
    command: Command,
    broken_stderr: Option<BrokenStderr>,
    folder: TempDir,
}

/// A program's results.
pub(crate) struct Run {
    /// Its exit status, or 128 and the signal that ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The ledgers of all its processes.
    pub(crate) ledgers: Vec<LedgerSnapshot>,
    folder: TempDir,
}

impl Client {
    /// A program in a clean environment, with no driver to be found.
    pub(crate) fn new(program: impl AsRef<Path>, args: &[&str]) -> Client {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program.as_ref());
        for (name, _) in std::env::vars_os() {
            let ours = name.to_string_lossy().starts_with("FERCUDA_");
            if ours || name == "LD_PRELOAD" || name == "LD_LIBRARY_PATH" {
                command.env_remove(&name);
            }
        }
        let runtime = folder.path().join("run");
        fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
        command.args(args).env("XDG_RUNTIME_DIR", runtime);
        // Several tests run at a time, each with a process.
        command.env("FERCUDA_SOFT_THREADS", "2");
        Client {
            command,
            broken_stderr: None,
            folder,
        }
    }

    pub(crate) fn with_broken_stderr(self, broken_stderr: BrokenStderr) -> Client {
        let broken_stderr = Some(broken_stderr);
        Client {
            broken_stderr,
            ..self
        }
    }

    /// The driver alone.
    pub(crate) fn plain(mut self) -> Client {
        self.command
            .env("LD_LIBRARY_PATH", build_folder().join("driver"));
        self
    }

    /// The hook in front of the driver.
    pub(crate) fn hooked(self) -> Client {
        let driver = driver();
        self.preloaded().env("FERCUDA_DRIVER", driver)
    }

    /// The hook, with no driver configured.
    pub(crate) fn preloaded(mut self) -> Client {
        self.command.env("LD_PRELOAD", hook());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Client {
        self.command.env(name, value);
        self
    }

    /// With the software device's checks; a finding is exit status 77.
    pub(crate) fn checked(self) -> Client {
        // The pool is under test.
        self.env("FERCUDA_BACKING", "vmm")
            .env("FERCUDA_SOFT_CHECK", "1")
            .env("FERCUDA_SOFT_CHECK_EXIT", "77")
    }

    pub(crate) fn run(self) -> Run {
        self.run_with("")
    }

    /// Runs it with this on its standard input.
    pub(crate) fn run_with(mut self, input: &str) -> Run {
        let path = |name: &str| self.folder.path().join(name);
        fs::write(path("in"), input).unwrap();
        let (out, err) = (path("out"), path("err"));
        self.command
            .stdin(Stdio::from(File::open(path("in")).unwrap()))
            .stdout(Stdio::from(File::create(&out).unwrap()))
            .stderr(Stdio::from(File::create(&err).unwrap()));
        match self.broken_stderr {
            None => {}
            Some(BrokenStderr::Full) => {
                let full = File::options().write(true).open("/dev/full");
                self.command.stderr(Stdio::from(full.unwrap()));
            }
            Some(BrokenStderr::Gone) => {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                self.command.stderr(Stdio::from(writer));
            }
        }
        let mut child = self.command.spawn().unwrap();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > TIMEOUT {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let (stdout, stderr) = (read(out), read(err));
        let ledgers = self.folder.path().join("run/fercuda");
        let ledgers = if ledgers.exists() {
            let folder = Folder::at(&ledgers).unwrap();
            let all = folder.ledgers().unwrap().into_iter();
            all.map(|ledger| ledger.unwrap().snapshot().unwrap())
                .collect()
        } else {
            Vec::new()
        };
        Run {
            code: status.code().unwrap_or(128 + status.signal().unwrap_or(0)),
            stdout,
            stderr,
            ledgers,
            folder: self.folder,
        }
    }
}

/// A C program under the hook.
pub(crate) fn hooked(source: &str, args: &[&str]) -> Client {
    Client::new(compiled(source, true), args).hooked()
}

/// The same over the driver alone.
pub(crate) fn plain(source: &str, args: &[&str]) -> Client {
    Client::new(compiled(source, true), args).plain()
}

impl Run {
    /// Asserts that it succeeded.
    #[track_caller]
    pub(crate) fn succeeds(self) -> Run {
        let Run {
            code,
            stdout,
            stderr,
            ..
        } = &self;
        assert_eq!(*code, 0, "stdout:\n{stdout}\nstderr:\n{stderr}");
        self
    }

    /// The ledger of the only process that used a device.
    #[track_caller]
    pub(crate) fn ledger(&self) -> &LedgerSnapshot {
        let [ledger] = self.ledgers.as_slice() else {
            panic!("{} ledgers; {}", self.ledgers.len(), self.stderr);
        };
        ledger
    }

    /// The number of files with this suffix that are left beside the ledgers.
    pub(crate) fn left(&self, end: &str) -> usize {
        let files = fs::read_dir(self.folder.path().join("run/fercuda")).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(end))
            .count()
    }

    /// The ledger as of when the program reached `mark`.
    #[track_caller]
    pub(crate) fn at(&self, mark: &str) -> LedgerSnapshot {
        let path = self.folder.path().join(format!("run/{mark}.mark"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .unwrap_or_else(|error| panic!("the program did not reach {mark:?}: {error}"));
        LedgerReader::open(&path).unwrap().snapshot().unwrap()
    }

    /// The figure after `name` in a line of its output.
    #[track_caller]
    pub(crate) fn figure(&self, line: &str, name: &str) -> u64 {
        let found = self.stdout.lines().find(|text| text.starts_with(line));
        let words = found.unwrap_or_else(|| panic!("no {line:?} in {}", self.stdout));
        let mut words = words.split_whitespace().skip_while(|word| *word != name);
        let word = words.nth(1).unwrap();
        word.trim_end_matches(',').parse().unwrap()
    }
}

/// A device's row, all zero where it has none.
pub(crate) fn device(snapshot: &LedgerSnapshot, ordinal: u32) -> Option<&DeviceSnapshot> {
    snapshot.devices.iter().find(|row| row.device == ordinal)
}

/// The first device's row.
#[track_caller]
pub(crate) fn first(snapshot: &LedgerSnapshot) -> &DeviceSnapshot {
    device(snapshot, 0).expect("the ledger has a row for GPU 0")
}

/// Governed bytes of a kind.
pub(crate) fn governed(row: &DeviceSnapshot, kind: Governed) -> u64 {
    let all = row.governed.iter().filter(|it| it.kind == kind);
    all.map(|it| it.bytes).sum()
}

/// (allocations, frees) of a process, on all devices.
pub(crate) fn counts(snapshot: &LedgerSnapshot) -> (u64, u64) {
    let rows = snapshot.devices.iter();
    rows.fold((0, 0), |(allocs, frees), row| {
        (allocs + row.allocs, frees + row.frees)
    })
}

/// Live bytes of a tenant on a device.
pub(crate) fn tenant_live(snapshot: &LedgerSnapshot, name: &str, device: u32) -> Option<u64> {
    let tenant = snapshot.tenants.iter().find(|it| it.name == name)?;
    let account = tenant.accounts.iter().find(|it| it.device == device)?;
    Some(account.live_bytes)
}
