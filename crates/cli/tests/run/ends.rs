//! Exit status and signals of a program: with a launcher that has replaced itself (`exec`), and
//! with one that stays for the report.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Stdio};

use crate::{Installed, ended};

pub(crate) fn signal(child: &Child, number: i32) {
    // SAFETY: sends a signal to a child that is not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, number) }, 0);
}

const BOTH: [&[&str]; 2] = [&[], &["--report"]];

#[test]
fn the_exit_status_is_the_programs() {
    let it = Installed::new();
    for options in BOTH {
        for code in [0, 1, 2, 77, 255] {
            let script = format!("exit {code}");
            let words = [options, &["--", "sh", "-c", &script]].concat();
            assert_eq!(ended(&mut it.run(&words)).code, Some(code));
        }
    }
}

#[test]
fn a_program_ended_by_a_signal_ends_the_launcher_by_the_same_signal() {
    let it = Installed::new();
    for options in BOTH {
        for number in [
            libc::SIGTERM,
            libc::SIGKILL,
            libc::SIGABRT,
            libc::SIGSEGV,
            libc::SIGPIPE,
            libc::SIGUSR1,
            libc::SIGHUP,
            libc::SIGRTMIN() + 3,
        ] {
            let script = format!("ulimit -c 0; kill -{number} $$");
            let words = [options, &["--", "sh", "-c", &script]].concat();
            let ended = ended(&mut it.run(&words));
            assert_eq!(
                (ended.code, ended.signal),
                (None, Some(number)),
                "{options:?}"
            );
        }
    }
}

/// A program that prints each signal it gets, in order, and exits with 9 at SIGALRM. It uses
/// `sigwait`, so none can be lost in between.
fn listener(it: &Installed) -> String {
    let source = "#include <signal.h>\n#include <stdio.h>\n
        int main(void) {
            sigset_t all;
            int number = 0;
            sigfillset(&all);
            sigprocmask(SIG_BLOCK, &all, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            for (printf(\"ready\\n\"); sigwait(&all, &number) == 0; printf(\"got <%d>\\n\", number))
                if (number == SIGALRM) return 9;
        }";
    let program = it.compile("listener", &["-x", "c"], source);
    program.display().to_string()
}

#[test]
fn signals_to_the_launcher_reach_the_program() {
    let it = Installed::new();
    let listener = listener(&it);
    for options in BOTH {
        let words = [options, &["--", &listener]].concat();
        let mut child = it
            .run(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap();
        assert_eq!(next(), "ready");
        for number in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGWINCH,
            libc::SIGCONT,
        ] {
            signal(&child, number);
            assert_eq!(next(), format!("got <{number}>"), "{options:?}");
        }
        // The launcher does not handle this signal, and would be ended by it; so the program
        // gets it directly.
        let pid = match options {
            [] => child.id() as i32,
            _ => child_of(&child),
        };
        // SAFETY: sends a signal to a process that runs.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGALRM) }, 0);
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

/// The only child of a child.
fn child_of(child: &Child) -> i32 {
    let pid = child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap().trim().parse().unwrap()
}

#[test]
fn a_stop_stops_both_and_a_continue_resumes_both() {
    let it = Installed::new();
    let words = [
        "--report",
        "--",
        "sh",
        "-c",
        "echo $$; read -r line; echo $line",
    ];
    let mut child = it
        .run(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Its own process group: a group without a parent shell is not stopped.
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let program = lines.next().unwrap().unwrap();
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.chars().next().unwrap()
    };
    let launcher = child.id().to_string();
    let wait_for = |stopped: bool| {
        while [&program, &launcher]
            .iter()
            .any(|pid| (state(pid) == 'T') != stopped)
        {
            std::thread::yield_now();
        }
    };
    wait_for(false);
    signal(&child, libc::SIGTSTP);
    wait_for(true);
    signal(&child, libc::SIGCONT);
    wait_for(false);
    child.stdin.take().unwrap().write_all(b"on\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "on");
    assert!(child.wait().unwrap().success());
}

#[test]
fn ignored_signals_stay_ignored() {
    let it = Installed::new();
    let fercuda = it.path("fercuda").display().to_string();
    // As with nohup: the launcher inherits the ignored signal, and so does the program.
    let outer = format!(
        "trap '' HUP; exec {fercuda} run --report --device soft -- sh -c 'kill -HUP $$ $PPID; echo alive'"
    );
    let ended = ended(&mut it.run(&["--ungoverned", "--", "sh", "-c", &outer]));
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "alive\n"));
}

/// A new pseudo-terminal: master and slave.
pub(crate) fn terminal() -> (File, File) {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: two numbers to be written and a size to be read; the null pointers omit the
    // optional arguments.
    let opened = unsafe { libc::openpty(&mut master, &mut slave, null, null.cast(), &size) };
    assert_eq!(opened, 0);
    // SAFETY: both were opened just now and are owned by nothing else.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}

#[test]
fn control_c_at_a_terminal_reaches_the_program_once() {
    let it = Installed::new();
    let listener = listener(&it);
    for options in BOTH {
        let (mut master, slave) = terminal();
        let words = [options, &["--", &listener]].concat();
        let mut command = it.run(&words);
        command
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave);
        // SAFETY: two system calls that make the terminal this session's.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let mut child = command.spawn().unwrap();
        // The slave is closed when the last of them has ended.
        drop(command);
        let mut said = String::new();
        let mut until = |master: &mut File, word: &str| {
            let mut bytes = [0; 256];
            while !said.contains(word) {
                let len = master.read(&mut bytes).unwrap();
                said.push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
            said.clone()
        };
        until(&mut master, "ready");
        master.write_all(b"\x03").unwrap();
        until(&mut master, "got <2>");
        // Any signal that the launcher forwards arrives before this one.
        signal(&child, libc::SIGUSR1);
        let said = until(&mut master, "got <10>");
        assert_eq!(said.matches("got <2>").count(), 1, "{said}");
        let pid = match options {
            [] => child.id() as i32,
            _ => child_of(&child),
        };
        // SAFETY: sends a signal to a process that runs.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGALRM) }, 0);
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(9), None));
    }
}
