//! Programs over the software device's library, with the hook and without it,
//! and the ledgers that they leave.
//!
//! Each run has a folder of its own for ledgers; what was governed is read
//! there and never assumed.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fercuda_ledger::{DeviceSnapshot, Folder, Governed, LedgerReader, LedgerSnapshot};
use tempfile::TempDir;

/// No program here takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The seed that was asked for, or a fresh one; a failing test shows it.
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

/// The folder of everything that is made once for this test program.
fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hook");
        let driver = made.join("driver");
        fs::create_dir_all(&driver).unwrap();
        for name in ["libcuda.so.1", "libcuda.so"] {
            // In place of an older one at once: somebody may have it open.
            let draft = driver.join(format!("{name}.{}", std::process::id()));
            fs::copy(built("libcuda.so"), &draft).unwrap();
            fs::rename(&draft, driver.join(name)).unwrap();
        }
        made
    })
}

/// The software device's library under the driver's name.
pub(crate) fn driver() -> PathBuf {
    made().join("driver/libcuda.so.1")
}

/// A driver that counts the users of contexts, which the software device does
/// not, before the software device's library.
pub(crate) fn counting_driver() -> PathBuf {
    // Linked while it has no name of its own, the library is needed by its path;
    // by the driver's name the loader would take the hook for it.
    let behind = compiled_as("libbehind.so", "early.c", &["-shared", "-fPIC"]);
    let path = behind.to_str().unwrap();
    let named = format!("-DBEHIND=\"{path}\"");
    let counting = compiled_as(
        "libcounting.so",
        "counting.c",
        &["-shared", "-fPIC", "-Wl,--no-as-needed", &named, path],
    );
    let draft = made().join(format!("libbehind.{}", std::process::id()));
    fs::copy(driver(), &draft).unwrap();
    fs::rename(draft, behind).unwrap();
    counting
}

/// Where the programs' sources are.
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

/// The same under a name of its own, with options of the compiler.
pub(crate) fn compiled_as(name: &str, source: &str, options: &[&str]) -> PathBuf {
    static ALL: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let program = made().join(name);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if all.iter().any(|known| known == name) {
        return program;
    }
    let draft = made().join(format!("{name}.{}", std::process::id()));
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(cc);
    command.args(["-O1", "-w", "-o"]).arg(&draft);
    command.arg(sources().join(source));
    for folder in ["driver", "nvml"] {
        command.arg("-L").arg(made().join(folder));
    }
    let status = command.args(options).args(["-ldl", "-lpthread"]).status();
    assert!(status.unwrap().success(), "cc {source}");
    fs::rename(&draft, &program).unwrap();
    all.push(name.to_owned());
    program
}

/// The folder of what stands in for NVML.
pub(crate) fn nvml() -> PathBuf {
    let folder = made().join("nvml");
    fs::create_dir_all(&folder).unwrap();
    let soname = "-Wl,-soname,libnvidia-ml.so.1";
    for name in ["nvml/libnvidia-ml.so.1", "nvml/libnvidia-ml.so"] {
        compiled_as(name, "ml.c", &["-shared", "-fPIC", soname]);
    }
    folder
}

/// What a program's standard error may be instead of a file.
#[derive(Clone, Copy)]
pub(crate) enum Listener {
    /// A device that has no room.
    Full,
    /// A pipe whose reader has closed it.
    Gone,
}

/// A program about to run.
pub(crate) struct Client {
    command: Command,
    listener: Option<Listener>,
    folder: TempDir,
}

/// What became of it.
pub(crate) struct Run {
    /// Its exit status, or 128 and the signal that ended it.
    pub(crate) code: i32,
    pub(crate) said: String,
    pub(crate) complained: String,
    /// The ledgers of all processes there were.
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
        // Each test has a process, and there are several tests at a time.
        command.env("FERCUDA_SOFT_THREADS", "2");
        Client {
            command,
            listener: None,
            folder,
        }
    }

    pub(crate) fn complaining_to(self, listener: Listener) -> Client {
        let listener = Some(listener);
        Client { listener, ..self }
    }

    /// The driver alone.
    pub(crate) fn plain(mut self) -> Client {
        self.command.env("LD_LIBRARY_PATH", made().join("driver"));
        self
    }

    /// The hook in front of the driver.
    pub(crate) fn hooked(self) -> Client {
        let driver = driver();
        self.preloaded().env("FERCUDA_DRIVER", driver)
    }

    /// The hook, and no driver named.
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
        self.env("FERCUDA_SOFT_CHECK", "1")
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
        match self.listener {
            None => {}
            Some(Listener::Full) => {
                let full = File::options().write(true).open("/dev/full");
                self.command.stderr(Stdio::from(full.unwrap()));
            }
            Some(Listener::Gone) => {
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
            if begun.elapsed() > PATIENCE {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let (said, complained) = (read(out), read(err));
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
            said,
            complained,
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
    /// It ended well.
    #[track_caller]
    pub(crate) fn succeeds(self) -> Run {
        let Run {
            code,
            said,
            complained,
            ..
        } = &self;
        assert_eq!(*code, 0, "it said:\n{said}\nit complained:\n{complained}");
        self
    }

    /// The ledger of the only process that used a device.
    #[track_caller]
    pub(crate) fn ledger(&self) -> &LedgerSnapshot {
        let [ledger] = self.ledgers.as_slice() else {
            panic!("{} ledgers; {}", self.ledgers.len(), self.complained);
        };
        ledger
    }

    /// How many files whose names end so are left beside the ledgers.
    pub(crate) fn left(&self, end: &str) -> usize {
        let files = fs::read_dir(self.folder.path().join("run/fercuda")).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(end))
            .count()
    }

    /// What the ledger said when the program came to `mark`.
    #[track_caller]
    pub(crate) fn at(&self, mark: &str) -> LedgerSnapshot {
        let path = self.folder.path().join(format!("run/{mark}.mark"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .unwrap_or_else(|error| panic!("the program came not to {mark:?}: {error}"));
        LedgerReader::open(&path).unwrap().snapshot().unwrap()
    }

    /// The figure behind `name` in what it said.
    #[track_caller]
    pub(crate) fn figure(&self, line: &str, name: &str) -> u64 {
        let said = self.said.lines().find(|said| said.starts_with(line));
        let words = said.unwrap_or_else(|| panic!("no {line:?} in {}", self.said));
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
