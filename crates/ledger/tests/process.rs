//! Tests that need processes: owners that are killed, that fork, that are several, and process-wide
//! limits.
//!
//! Each scenario is a process of this program, and so is each owner.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]
#![expect(clippy::print_stdout, reason = "this program is the test harness")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fercuda_ledger::{
    Error, EventKind, Folder, Gauge, Ledger, LedgerDevice, LedgerEvent, LedgerReader,
    LedgerSnapshot, OwnerState, Share,
};
use libtest_mimic::{Arguments, Trial};

type Scenario = (&'static str, fn());
type Role = (&'static str, fn(&Path));

const SCENARIOS: &[Scenario] = &[
    (
        "a_killed_process_is_seen_as_gone_and_its_file_is_swept_by_the_next",
        killed,
    ),
    ("an_open_reader_outlives_its_owner_and_the_sweep", outlived),
    ("two_processes_have_a_ledger_each", two),
    (
        "a_killed_process_is_gone_although_its_child_holds_the_same_lock",
        killed_parent,
    ),
    (
        "a_forked_child_writes_nothing_into_its_parents_ledger_and_may_open_its_own",
        forked,
    ),
    (
        "a_forked_child_does_not_close_what_its_parent_has_open",
        forked_with_share,
    ),
    (
        "an_owner_is_alive_for_a_reader_without_a_free_descriptor",
        few_descriptors,
    ),
    (
        "a_process_whose_first_thread_has_ended_is_alive",
        first_thread,
    ),
    (
        "a_process_that_may_not_write_large_files_runs_and_is_warned",
        file_limit,
    ),
    (
        "a_process_without_descriptors_runs_and_is_warned",
        no_descriptors,
    ),
    ("a_process_that_execs_no_longer_owns_what_it_left", replaced),
    ("the_users_folder_is_found_as_the_variables_say", from_env),
];

/// Owners, run by scenarios with a folder.
const OWNERS: &[Role] = &[
    ("plain", own),
    ("parent", own_and_fork),
    ("threads", own_in_thread),
    ("exec", own_and_exec),
    ("env", own_from_env),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[..] {
        [_, flag, name] if flag == "--scenario" => {
            let (_, run) = SCENARIOS.iter().find(|(known, _)| known == name).unwrap();
            run();
            return ExitCode::SUCCESS;
        }
        [_, flag, name, folder] if flag == "--owner" => {
            let (_, run) = OWNERS.iter().find(|(known, _)| known == name).unwrap();
            run(Path::new(folder));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let trials = SCENARIOS.iter().map(|(name, _)| {
        Trial::test(*name, || {
            let output = this_program(&["--scenario", name]).output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            match output.status.success() {
                true => Ok(()),
                false => Err(format!("{}\n{stdout}{stderr}", output.status).into()),
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn this_program(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments);
    command
}

/// An owner in a process of its own, which ends when its standard input is closed or it is killed.
struct Process {
    child: Child,
    /// Its first line of output: its ledger's path, or another message.
    first_line: String,
}

impl Process {
    fn start(role: &str, folder: &Folder) -> Process {
        let path = folder.path().to_str().unwrap();
        Self::spawn(this_program(&["--owner", role, path]))
    }

    fn spawn(mut command: Command) -> Process {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut output)
            .unwrap();
        Process {
            child,
            first_line: output.trim().to_owned(),
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Prints `text` and waits until standard input is closed.
fn print_and_wait(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn folder() -> (tempfile::TempDir, Folder) {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::at(&root.path().join("ledgers")).unwrap();
    (root, folder)
}

fn open(folder: &Folder) -> Ledger {
    let (ledger, warning) = Ledger::open_in(folder, None);
    assert!(warning.is_none(), "{warning:?}");
    ledger
}

fn charge(ledger: &Ledger, bytes: u64) {
    let mut local = ledger.local(u64::from(std::process::id()));
    local.charge(LedgerDevice::new(0), ledger.tenant("torch"), 7, bytes);
}

fn live_bytes(snapshot: &LedgerSnapshot) -> u64 {
    snapshot.devices.iter().map(|row| row.live_bytes).sum()
}

fn readers(folder: &Folder) -> Vec<LedgerReader> {
    let found = folder.ledgers().unwrap();
    found.into_iter().map(|reader| reader.unwrap()).collect()
}

/// The owner's state of each ledger in the folder.
fn owners(folder: &Folder) -> Vec<OwnerState> {
    let readers = readers(folder);
    readers
        .iter()
        .map(|reader| reader.owner().unwrap())
        .collect()
}

// ---- owners ----

fn own(folder: &Path) {
    let ledger = open(&Folder::at(folder).unwrap());
    charge(&ledger, 1 << 20);
    ledger.set(LedgerDevice::new(0), Gauge::Pooled, 2 << 20);
    ledger.record(LedgerEvent {
        kind: EventKind::Growth,
        device: LedgerDevice::new(0),
        tenant: ledger.tenant("torch"),
        bytes: 2 << 20,
        address: 0x7000,
        detail: 2 << 20,
        stream: 7,
        thread: 1,
    });
    print_and_wait(ledger.path().unwrap().to_str().unwrap());
}

/// The child keeps the mapping and the lock, and survives when its parent is killed. The parent
/// prints the child's process id; the child ends when its input is closed.
fn own_and_fork(folder: &Path) {
    let ledger = open(&Folder::at(folder).unwrap());
    charge(&ledger, 100);
    // SAFETY: this process has one thread, so its child may do anything.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    } else {
        print_and_wait(&child.to_string());
    }
}

fn own_in_thread(folder: &Path) {
    let ledger = open(&Folder::at(folder).unwrap());
    std::thread::spawn(move || {
        // Until the first thread is a zombie.
        let stat = || std::fs::read_to_string("/proc/self/stat").unwrap();
        while !stat().contains(") Z ") {
            std::thread::yield_now();
        }
        print_and_wait(ledger.path().unwrap().to_str().unwrap());
        std::process::exit(0);
    });
    // SAFETY: ends this thread alone; nothing refers to its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

fn own_and_exec(folder: &Path) {
    use std::os::unix::process::CommandExt;

    let ledger = open(&Folder::at(folder).unwrap());
    charge(&ledger, 100);
    let script = "echo replaced; read line";
    panic!("{}", Command::new("/bin/sh").args(["-c", script]).exec());
}

fn own_from_env(_: &Path) {
    let (ledger, warning) = Ledger::open(None);
    match warning {
        Some(warning) => print_and_wait(&warning.to_string().replace('\n', "; ")),
        None => print_and_wait(ledger.path().unwrap().to_str().unwrap()),
    }
}

// ---- scenarios ----

fn killed() {
    let (_root, folder) = folder();
    let mut process = Process::start("plain", &folder);
    assert_eq!(owners(&folder), [OwnerState::Alive]);
    assert_eq!(folder.sweep().unwrap(), 0);

    process.kill();
    assert_eq!(owners(&folder), [OwnerState::Gone]);
    let snapshot = readers(&folder)[0].snapshot().unwrap();
    assert_eq!(snapshot.owner, OwnerState::Gone);
    assert_eq!(snapshot.pid, u64::from(process.child.id()));
    assert!(snapshot.program.starts_with("process"), "{snapshot:?}");
    assert!(!snapshot.racing);
    assert_eq!(live_bytes(&snapshot), 1 << 20);
    assert_eq!(snapshot.devices[0].pooled_bytes, 2 << 20);
    assert_eq!(snapshot.events.len(), 1);
    assert_eq!(snapshot.events[0].kind, EventKind::Growth);
    assert_eq!(snapshot.events[0].tenant, "torch");

    let next = open(&folder);
    let left = readers(&folder);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].path(), next.path().unwrap());
    assert!(!Path::new(&process.first_line).exists());
}

fn outlived() {
    let (_root, folder) = folder();
    let process = Process::start("plain", &folder);
    let reader = LedgerReader::open(Path::new(&process.first_line)).unwrap();
    assert_eq!(reader.snapshot().unwrap().owner, OwnerState::Alive);
    process.end();
    assert_eq!(folder.sweep().unwrap(), 1);
    assert!(readers(&folder).is_empty());
    let snapshot = reader.snapshot().unwrap();
    assert_eq!(snapshot.owner, OwnerState::Gone);
    assert_eq!(live_bytes(&snapshot), 1 << 20);
}

fn two() {
    let (_root, folder) = folder();
    let mut one = Process::start("plain", &folder);
    let other = Process::start("plain", &folder);
    assert_ne!(one.first_line, other.first_line);
    let mine = open(&folder);
    charge(&mine, 5);
    assert_eq!(owners(&folder), [OwnerState::Alive; 3]);
    let mut bytes: Vec<u64> = readers(&folder)
        .iter()
        .map(|reader| live_bytes(&reader.snapshot().unwrap()))
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [5, 1 << 20, 1 << 20]);

    one.kill();
    assert_eq!(folder.sweep().unwrap(), 1);
    assert_eq!(owners(&folder), [OwnerState::Alive; 2]);
    assert!(Path::new(&other.first_line).exists());
    other.end();
}

fn killed_parent() {
    let (_root, folder) = folder();
    let mut parent = Process::start("parent", &folder);
    let child: i32 = parent.first_line.parse().unwrap();
    assert_eq!(owners(&folder), [OwnerState::Alive]);
    // The child shares the parent's input: it lives until that is closed.
    let input = parent.child.stdin.take();
    parent.child.kill().unwrap();
    parent.child.wait().unwrap();
    assert!(Path::new("/proc").join(child.to_string()).exists());
    assert_eq!(owners(&folder), [OwnerState::Gone]);
    assert_eq!(folder.sweep().unwrap(), 1);
    drop(input);
}

fn forked() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let device = LedgerDevice::new(0);
    let mut local = Some(ledger.local(1));
    let torch = ledger.tenant("torch");
    let charged = local.as_mut().unwrap().charge(device, torch, 7, 100);
    let before = ledger.snapshot().unwrap();
    in_child(|| {
        assert!(!ledger.is_mine());
        charge(&ledger, 50);
        let mut local = local.take().unwrap();
        local.charge(device, ledger.tenant("child"), 7, 50);
        ledger.charge(device, ledger.tenant("torch"), 50);
        ledger.discharge(charged, 100);
        local.discharge(charged, 100);
        drop(local);
        ledger.set(device, Gauge::Ready, 1);
        let own = open(&folder);
        assert!(own.is_mine());
        charge(&own, 7);
        assert_eq!(live_bytes(&own.snapshot().unwrap()), 7);
        assert_eq!(owners(&folder), [OwnerState::Alive; 2]);
    });
    assert!(ledger.is_mine());
    assert_eq!(ledger.snapshot().unwrap(), before);
    assert_eq!(folder.sweep().unwrap(), 1);
    assert_eq!(owners(&folder), [OwnerState::Alive]);
}

/// Runs `work` in a forked child, and checks that the child succeeds.
fn in_child(work: impl FnOnce()) {
    // SAFETY: this process has one thread, so its child may do anything.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = std::panic::catch_unwind(AssertUnwindSafe(work)).is_ok();
        // SAFETY: ends the child without running its parent's exit handlers.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn forked_with_share() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let share = Share {
        source: fercuda_ledger::ShareSource::Handle([7; 64]),
        offset_bytes: 0,
        bytes: 1,
        whole_bytes: 1,
    };
    let offered = folder.share(&share, ledger.path().unwrap()).unwrap();
    let mut opened = Some(folder.open_share(offered.name).unwrap());
    in_child(|| drop(opened.take()));
    let lingering = folder.withdraw(offered).expect("it is open here");
    assert!(!lingering.is_over());
    drop(opened);
    assert!(lingering.is_over());
}

/// Another thread takes and releases all descriptors while the owner's state is queried: the reader
/// may find none free at any point.
fn few_descriptors() {
    let (_root, folder) = folder();
    let process = Process::start("plain", &folder);
    let reader = LedgerReader::open(Path::new(&process.first_line)).unwrap();
    set_limit(libc::RLIMIT_NOFILE, 32);
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                let _all_there_are: Vec<File> =
                    std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
            }
        });
        while Instant::now() < until {
            assert_eq!(reader.owner().unwrap(), OwnerState::Alive);
        }
    });
    process.end();
    assert_eq!(reader.owner().unwrap(), OwnerState::Gone);
}

fn first_thread() {
    let (_root, folder) = folder();
    let process = Process::start("threads", &folder);
    assert_eq!(owners(&folder), [OwnerState::Alive]);
    process.end();
    assert_eq!(owners(&folder), [OwnerState::Gone]);
}

fn set_limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: `limit` is read during the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

fn file_limit() {
    let (_root, folder) = folder();
    // A write beyond it would end the process.
    set_limit(libc::RLIMIT_FSIZE, 4096);
    assert_works_in_memory(&folder, "lock and reserve");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn no_descriptors() {
    let (_root, folder) = folder();
    set_limit(libc::RLIMIT_NOFILE, 3);
    assert_works_in_memory(&folder, "make");
}

fn assert_works_in_memory(folder: &Folder, doing: &str) {
    let (ledger, warning) = Ledger::open_in(folder, None);
    let warning = warning.expect("there can be no file");
    assert!(
        matches!(&warning.reason, Error::System { doing: did, .. } if *did == doing),
        "{warning}"
    );
    assert_eq!(ledger.path(), None);
    charge(&ledger, 64);
    assert_eq!(live_bytes(&ledger.snapshot().unwrap()), 64);
}

fn replaced() {
    let (_root, folder) = folder();
    let process = Process::start("exec", &folder);
    assert_eq!(process.first_line, "replaced");
    assert_eq!(owners(&folder), [OwnerState::Gone]);
    let mut child = process.child;
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn from_env() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let mode = |path: &PathBuf, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let owner = |runtime: Option<&PathBuf>, home: Option<&PathBuf>| {
        let mut command = this_program(&["--owner", "env", "none"]);
        for (name, value) in [("XDG_RUNTIME_DIR", runtime), ("HOME", home)] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let process = Process::spawn(command);
        let output = process.first_line.clone();
        process.end();
        PathBuf::from(output)
    };
    let (private, open, home) = (at("private"), at("open"), at("house"));
    mode(&private, 0o700);
    mode(&open, 0o755);
    mode(&home, 0o755);

    let found = owner(Some(&private), Some(&home));
    assert_eq!(found.parent().unwrap(), private.join("fercuda"));
    // Without a private folder for this session the home folder is next, unless the system has
    // created `/run/user/UID`.
    // SAFETY: returns a number.
    let usual = format!("/run/user/{}", unsafe { libc::geteuid() });
    if !Path::new(&usual).exists() {
        let cache = home.join(".cache/fercuda/ledgers");
        for runtime in [Some(&open), None] {
            assert_eq!(owner(runtime, Some(&home)).parent().unwrap(), cache);
        }
        let output = owner(None, None);
        let output = output.to_str().unwrap();
        assert!(
            output.contains("HOME is not set; try: set HOME"),
            "{output}"
        );
    }
    // A folder in the right place that is open to others is refused, not skipped.
    mode(&private.join("fercuda"), 0o750);
    let output = owner(Some(&private), Some(&home));
    let output = output.to_str().unwrap();
    assert!(output.contains("has mode 0750"), "{output}");
    assert!(output.contains("try: chown"), "{output}");
}
