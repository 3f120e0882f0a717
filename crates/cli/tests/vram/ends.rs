//! How it ends while it is used: by signals, and by being killed.

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

use crate::place::{DEADLINE, comes};
use crate::{Here, heedful, is_mounted, vram};

/// A thread that makes one call again and again, until it fails.
struct Caller {
    name: &'static str,
    /// Where the kernel says what it does.
    stat: Arc<Mutex<PathBuf>>,
    rounds: Arc<AtomicU64>,
}

type Failed = (&'static str, Option<i32>);

/// Nobody joins it: who hangs in a call would have the test hang.
fn calls(
    name: &'static str,
    (tell, ends): (&Sender<Failed>, &Arc<AtomicBool>),
    mut call: impl FnMut() -> std::io::Result<()> + Send + 'static,
) -> Caller {
    let it = Caller {
        name,
        stat: Arc::default(),
        rounds: Arc::default(),
    };
    let (stat, rounds) = (it.stat.clone(), it.rounds.clone());
    let (tell, ends) = (tell.clone(), ends.clone());
    std::thread::spawn(move || {
        let own = fs::read_link("/proc/thread-self").unwrap();
        *stat.lock().unwrap() = Path::new("/proc").join(own).join("stat");
        let error = loop {
            match call() {
                Err(error) => break error,
                Ok(()) if ends.load(SeqCst) => return,
                Ok(()) => rounds.fetch_add(1, SeqCst),
            };
        };
        // What it has open is closed before anybody hears of it.
        drop(call);
        // Nobody hears it where the test has failed.
        tell.send((name, error.raw_os_error())).unwrap_or_default();
    });
    it
}

impl Caller {
    /// Whether it waits, which it does for answers alone.
    fn waits(&self) -> bool {
        waits(&self.stat.lock().unwrap())
    }
}

fn waits(stat: &Path) -> bool {
    let stat = fs::read_to_string(stat).unwrap();
    let state = stat.rsplit_once(") ").unwrap().1;
    state.starts_with(['S', 'D'])
}

/// Who uses it; all of them end when a test fails, as nothing ends that somebody uses.
struct Users {
    mapping: Child,
    ends: Arc<AtomicBool>,
}

impl Drop for Users {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        self.mapping.kill().unwrap_or_default();
    }
}

/// A process that looks at a file's mapping, page by page, and lets go of it before the next round.
fn looks_at_a_mapping(here: &Here) -> Child {
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
    python.args(["-c", line]).arg(here.at("mapped"));
    // How it ends is its status.
    python.stdout(Stdio::piped()).stderr(Stdio::null());
    python.spawn().unwrap()
}

fn all_calls(here: &Here, tell: (&Sender<Failed>, &Arc<AtomicBool>)) -> Vec<Caller> {
    let file = || here.file("file");
    let (reader, writer, sizer) = (file(), file(), here.file("sized"));
    let directory = File::open(here.path()).unwrap();
    let at = here.path().to_owned();
    let mut made = 0;
    let mut bytes = vec![0; 300_000];
    let more = vec![7; 300_000];
    let root = at.clone();
    vec![
        calls("read", tell, move || reader.read_exact_at(&mut bytes, 0)),
        calls("write", tell, move || writer.write_all_at(&more, 0)),
        calls("fallocate", tell, move || {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&sizer, FallocateFlags::empty(), 0, 1 << 20)?;
            fallocate(&sizer, punch, 0, 1 << 20)?;
            sizer.sync_all()?;
            sizer.set_len(0)
        }),
        calls("readdir", tell, move || {
            rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0))?;
            let mut buffer = Vec::with_capacity(8192);
            let mut entries = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                entry?;
            }
            Ok(())
        }),
        calls("names", tell, move || {
            made += 1;
            let name = at.join(format!("new {made}"));
            File::create(&name)?;
            fs::remove_file(name)
        }),
        calls("statfs", tell, move || {
            rustix::fs::statvfs(&root)?;
            Ok(())
        }),
    ]
}

/// All of them are told that it is gone, and nobody hangs.
fn are_told(calls: &[Caller], told: &Receiver<Failed>) {
    let mut left: Vec<&str> = calls.iter().map(|it| it.name).collect();
    while !left.is_empty() {
        let (name, error) = told
            .recv_timeout(DEADLINE)
            .unwrap_or_else(|_| panic!("{left:?} hang"));
        // Who had asked before, and who asks afterwards.
        let is_gone = matches!(error, Some(libc::ECONNABORTED | libc::ENOTCONN));
        assert!(is_gone, "{name}: {error:?}");
        left.retain(|it| *it != name);
    }
}

#[test]
fn who_waits_for_a_daemon_that_is_killed_is_told_and_it_can_be_mounted_again() {
    // Once in the middle of answering, and once when all are sure to wait.
    for is_stopped in [false, true] {
        let mut here = Here::plain();
        fs::write(here.at("file"), vec![7; 300_000]).unwrap();
        fs::write(here.at("mapped"), vec![7; 300_000]).unwrap();
        for it in 0..200 {
            fs::write(here.at(&format!("{it} {}", "n".repeat(100))), "").unwrap();
        }
        let (tell, told) = channel();
        let mut users = Users {
            mapping: looks_at_a_mapping(&here),
            ends: Arc::default(),
        };
        let mapping = &mut users.mapping;
        let mut looked = BufReader::new(mapping.stdout.take().unwrap());
        let mut line = String::new();
        looked.read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "{:?}", mapping.wait());
        // It goes on looking, and not on telling.
        let drain = std::thread::spawn(move || std::io::copy(&mut looked, &mut std::io::sink()));
        let calls = all_calls(&here, (&tell, &users.ends));
        comes("all of them called", || {
            calls.iter().all(|it| it.rounds.load(SeqCst) >= 10)
        });
        if is_stopped {
            kill_process(here.pid(), Signal::STOP).unwrap();
            let stat = PathBuf::from(format!("/proc/{}/stat", mapping.id()));
            comes("all of them waiting", || {
                calls.iter().all(Caller::waits) && waits(&stat)
            });
        }
        assert!(!waitable(mapping.id()), "nobody looks at the mapping");
        here.killed();
        are_told(&calls, &told);
        // Who touches a mapping without a file behind it has SIGBUS, or the error of the call that he was in.
        comes("the mapping's process has ended", || waitable(mapping.id()));
        assert!(!mapping.wait().unwrap().success());
        drain.join().unwrap().unwrap();
        let place = here.path().to_str().unwrap();
        let error = fs::read_dir(place).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        // Who was told closes what he had behind that.
        comes("unmounted", || vram(&["umount", place]).status.success());
        let done = vram(&["mount", "--size=1MiB", "--ecc=off", place]);
        assert!(done.status.success(), "{done:?}");
        fs::write(here.at("file"), "text").unwrap();
        assert!(vram(&["umount", place]).status.success());
    }
}

/// Whether a child has ended; it is still to be waited for.
fn waitable(child: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('Z')
}

#[test]
fn each_signal_to_end_unmounts_and_a_second_one_ends_what_is_in_use() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut here = Here::plain();
        fs::write(here.at("file"), "text").unwrap();
        kill_process(here.pid(), signal).unwrap();
        here.ends();
        assert!(!is_mounted(here.path()), "{signal:?}");

        let mut here = Here::plain();
        let file = here.file("file");
        kill_process(here.pid(), signal).unwrap();
        comes("unmounted", || !is_mounted(here.path()));
        // It lives as long as the file is open, or as long as nobody insists.
        (&file).write_all(b"still").unwrap();
        assert_eq!(here.daemon.try_wait().unwrap(), None);
        kill_process(here.pid(), signal).unwrap();
        assert_eq!(here.daemon.wait().unwrap().code(), Some(1), "{signal:?}");
        let error = (&file).write_all(b"gone").unwrap_err();
        let gone = Errno::from_io_error(&error);
        assert!(
            matches!(gone, Some(Errno::NOTCONN | Errno::CONNABORTED)),
            "{signal:?}: {error}"
        );
        here.code = Some(1);
    }
}

#[test]
fn nobody_who_reads_errors_keeps_it_mounted_or_changes_a_status() {
    let mut here = Here::plain();
    let file = here.file("file");
    drop(here.daemon.stderr.take());
    // It says that somebody has a file open, to nobody.
    kill_process(here.pid(), Signal::TERM).unwrap();
    comes("unmounted", || !is_mounted(here.path()));
    drop(file);
    here.ends();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut df = heedful();
    df.args(["vram", "df", "/proc"]).stdout(Stdio::null());
    let done = df.stderr(writer).status();
    assert_eq!(done.unwrap().code(), Some(1));
}

#[test]
fn a_signal_while_it_starts_leaves_nothing_mounted() {
    crate::needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    // From before it listens to behind its being mounted.
    for rounds in 0..12u32 {
        let mut mount = heedful();
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
