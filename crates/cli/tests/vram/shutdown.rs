//! Shutdown in use: by signals, and by killing the daemon.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::fs::{FallocateFlags, RawDir, fallocate};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::mounting::{DEADLINE, wait_until};
use crate::{TestMount, fercuda_with_default_signals, is_mounted, vram};

/// A thread that repeats one call until it fails.
struct Caller {
    name: &'static str,
    /// Its /proc stat file, which has its state.
    stat: Arc<Mutex<PathBuf>>,
    rounds: Arc<AtomicU64>,
}

type Failed = (&'static str, Option<i32>);

/// Not joined: a thread stuck in a call would hang the test.
fn spawn_caller(
    name: &'static str,
    (failures, stop): (&Sender<Failed>, &Arc<AtomicBool>),
    mut call: impl FnMut() -> std::io::Result<()> + Send + 'static,
) -> Caller {
    let it = Caller {
        name,
        stat: Arc::default(),
        rounds: Arc::default(),
    };
    let (stat, rounds) = (it.stat.clone(), it.rounds.clone());
    let (failures, stop) = (failures.clone(), stop.clone());
    std::thread::spawn(move || {
        let own = fs::read_link("/proc/thread-self").unwrap();
        *stat.lock().unwrap() = Path::new("/proc").join(own).join("stat");
        let error = loop {
            match call() {
                Err(error) => break error,
                Ok(()) if stop.load(SeqCst) => return,
                Ok(()) => rounds.fetch_add(1, SeqCst),
            };
        };
        // Its files are closed before the failure is reported.
        drop(call);
        // The receiver is gone if the test has failed.
        failures
            .send((name, error.raw_os_error()))
            .unwrap_or_default();
    });
    it
}

impl Caller {
    /// Whether the thread sleeps, which it does only while it waits for replies.
    fn is_sleeping(&self) -> bool {
        is_sleeping(&self.stat.lock().unwrap())
    }
}

fn is_sleeping(stat: &Path) -> bool {
    let stat = fs::read_to_string(stat).unwrap();
    let state = stat.rsplit_once(") ").unwrap().1;
    state.starts_with(['S', 'D'])
}

/// Users of the mount, ended when a test fails, as the daemon does not exit while they use it.
struct Users {
    mapping: Child,
    stop: Arc<AtomicBool>,
}

impl Drop for Users {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        self.mapping.kill().unwrap_or_default();
    }
}

/// A process that maps a file, reads each page and unmaps it, in a loop.
fn spawn_mapping_reader(mounted: &TestMount) -> Child {
    let line = "
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    while True:
        with mmap.mmap(file.fileno(), 0) as it:
            for at in range(0, len(it), 4096):
                it[at]
            it[0] = 1
            print(flush=True)";
    let mut python = Command::new("python3");
    python.args(["-c", line]).arg(mounted.at("mapped"));
    // Its exit status tells how it ended.
    python.stdout(Stdio::piped()).stderr(Stdio::null());
    python.spawn().unwrap()
}

fn all_calls(mounted: &TestMount, reports: (&Sender<Failed>, &Arc<AtomicBool>)) -> Vec<Caller> {
    let file = || mounted.file("file");
    let (reader, writer, sizer) = (file(), file(), mounted.file("sized"));
    let directory = File::open(mounted.path()).unwrap();
    let at = mounted.path().to_owned();
    let mut made = 0;
    let mut bytes = vec![0; 300_000];
    let more = vec![7; 300_000];
    let root = at.clone();
    vec![
        spawn_caller("read", reports, move || reader.read_exact_at(&mut bytes, 0)),
        spawn_caller("write", reports, move || writer.write_all_at(&more, 0)),
        spawn_caller("fallocate", reports, move || {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&sizer, FallocateFlags::empty(), 0, 1 << 20)?;
            fallocate(&sizer, punch, 0, 1 << 20)?;
            sizer.sync_all()?;
            sizer.set_len(0)
        }),
        spawn_caller("readdir", reports, move || {
            rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0))?;
            let mut buffer = Vec::with_capacity(8192);
            let mut entries = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                entry?;
            }
            Ok(())
        }),
        spawn_caller("names", reports, move || {
            made += 1;
            let name = at.join(format!("new {made}"));
            File::create(&name)?;
            fs::remove_file(name)
        }),
        spawn_caller("statfs", reports, move || {
            rustix::fs::statvfs(&root)?;
            Ok(())
        }),
    ]
}

/// Asserts that every caller gets an error, and that none hangs.
fn assert_all_fail(callers: &[Caller], failures: &Receiver<Failed>) {
    let mut left: Vec<&str> = callers.iter().map(|it| it.name).collect();
    while !left.is_empty() {
        let (name, error) = failures
            .recv_timeout(DEADLINE)
            .unwrap_or_else(|_| panic!("{left:?} hang"));
        // ECONNABORTED for requests in flight, ENOTCONN for later ones.
        let is_gone = matches!(error, Some(libc::ECONNABORTED | libc::ENOTCONN));
        assert!(is_gone, "{name}: {error:?}");
        left.retain(|it| *it != name);
    }
}

#[test]
fn callers_of_a_killed_daemon_get_errors_and_it_can_be_remounted() {
    // Once while the daemon answers, and once with all callers waiting.
    for is_stopped in [false, true] {
        let mut mounted = TestMount::plain();
        fs::write(mounted.at("file"), vec![7; 300_000]).unwrap();
        fs::write(mounted.at("mapped"), vec![7; 300_000]).unwrap();
        for it in 0..200 {
            fs::write(mounted.at(&format!("{it} {}", "n".repeat(100))), "").unwrap();
        }
        let (sender, receiver) = channel();
        let mut users = Users {
            mapping: spawn_mapping_reader(&mounted),
            stop: Arc::default(),
        };
        let mapping = &mut users.mapping;
        let mut rounds_done = BufReader::new(mapping.stdout.take().unwrap());
        let mut line = String::new();
        rounds_done.read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "{:?}", mapping.wait());
        // The process continues, and its output is discarded.
        let drain =
            std::thread::spawn(move || std::io::copy(&mut rounds_done, &mut std::io::sink()));
        let callers = all_calls(&mounted, (&sender, &users.stop));
        wait_until("calls by all threads", || {
            callers.iter().all(|it| it.rounds.load(SeqCst) >= 10)
        });
        if is_stopped {
            kill_process(mounted.pid(), Signal::STOP).unwrap();
            let stat = PathBuf::from(format!("/proc/{}/stat", mapping.id()));
            wait_until("all threads waiting", || {
                callers.iter().all(Caller::is_sleeping) && is_sleeping(&stat)
            });
        }
        assert!(!is_zombie(mapping.id()), "no process reads the mapping");
        mounted.kill();
        assert_all_fail(&callers, &receiver);
        // An access to a mapping of the dead mount raises SIGBUS, and a call in progress fails.
        wait_until("exit of the mapping's process", || is_zombie(mapping.id()));
        assert!(!mapping.wait().unwrap().success());
        drain.join().unwrap().unwrap();
        let place = mounted.path().to_str().unwrap();
        let error = fs::read_dir(place).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        // Callers close their files after they report, so the mount may be busy for a moment.
        wait_until("unmounted", || vram(&["umount", place]).status.success());
        let done = vram(&["mount", "--size=1MiB", "--ecc=off", place]);
        assert!(done.status.success(), "{done:?}");
        fs::write(mounted.at("file"), "text").unwrap();
        assert!(vram(&["umount", place]).status.success());
    }
}

/// Whether a child has exited and is a zombie.
fn is_zombie(child: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('Z')
}

#[test]
fn termination_signals_unmount_and_a_second_one_forces_exit() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut mounted = TestMount::plain();
        fs::write(mounted.at("file"), "text").unwrap();
        kill_process(mounted.pid(), signal).unwrap();
        mounted.wait_for_exit();
        assert!(!is_mounted(mounted.path()), "{signal:?}");

        let mut mounted = TestMount::plain();
        let file = mounted.file("file");
        kill_process(mounted.pid(), signal).unwrap();
        wait_until("unmounted", || !is_mounted(mounted.path()));
        // The daemon runs until the file is closed or a second signal arrives.
        (&file).write_all(b"still").unwrap();
        assert_eq!(mounted.daemon.try_wait().unwrap(), None);
        kill_process(mounted.pid(), signal).unwrap();
        assert_eq!(mounted.daemon.wait().unwrap().code(), Some(1), "{signal:?}");
        let error = (&file).write_all(b"gone").unwrap_err();
        let gone = Errno::from_io_error(&error);
        assert!(
            matches!(gone, Some(Errno::NOTCONN | Errno::CONNABORTED)),
            "{signal:?}: {error}"
        );
        mounted.code = Some(1);
    }
}

#[test]
fn closed_stderr_changes_neither_unmount_nor_status() {
    let mut mounted = TestMount::plain();
    let file = mounted.file("file");
    drop(mounted.daemon.stderr.take());
    // Its message that a file is open has no reader.
    kill_process(mounted.pid(), Signal::TERM).unwrap();
    wait_until("unmounted", || !is_mounted(mounted.path()));
    drop(file);
    mounted.wait_for_exit();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut df = fercuda_with_default_signals();
    df.args(["vram", "df", "/proc"]).stdout(Stdio::null());
    let done = df.stderr(writer).status();
    assert_eq!(done.unwrap().code(), Some(1));
}

#[test]
fn signal_during_start_leaves_nothing_mounted() {
    crate::needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    // From before its signal handlers are registered until after the mount.
    for rounds in 0..12u32 {
        let mut mount = fercuda_with_default_signals();
        mount.args(["vram", "mount", "--foreground", "--size=1MiB", "--ecc=off"]);
        mount
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut daemon = mount.spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&daemon);
        match rounds {
            11 => {
                let mut said = String::new();
                let mut out = BufReader::new(daemon.stdout.as_mut().unwrap());
                out.read_line(&mut said).unwrap();
                assert!(said.starts_with("mounted at "), "{said}");
            }
            _ => std::thread::sleep(std::time::Duration::from_millis(1 << rounds >> 2)),
        }
        kill_process(pid, Signal::TERM).unwrap();
        let status = daemon.wait_with_output().unwrap();
        use std::os::unix::process::ExitStatusExt as _;
        let is_well = status.status.success() || status.status.signal() == Some(libc::SIGTERM);
        assert!(is_well && !is_mounted(dir.path()), "{rounds}: {status:?}");
    }
}
