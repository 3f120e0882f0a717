//! Liveness check for the process that owns a ledger.
//!
//! Two signs together. The owner holds a lock on its file, which the kernel releases however the
//! process ends; but a child that it forked holds the same lock. So if the reader sees the same
//! processes as the owner (same boot, same PID namespace), the process with that id must also have
//! started when the owner did. Elsewhere, as from another container, the lock alone decides.
//!
//! A process that closes all its descriptors looks gone. It has then closed the driver's too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// A process, identified uniquely since the machine booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OwnerProcess {
    pub(crate) pid: u64,
    /// Clock ticks from the machine's boot to the process's start; 0 if unknown.
    pub(crate) start_ticks: u64,
    pub(crate) sight: PidScope,
}

/// The scope in which a process id is unique; unknown parts are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PidScope {
    pub(crate) pid_namespace: u64,
    pub(crate) boot_id: [u64; 2],
}

impl OwnerProcess {
    /// The current process.
    pub(crate) fn this() -> OwnerProcess {
        OwnerProcess {
            pid: u64::from(std::process::id()),
            start_ticks: match ProcStat::read("self") {
                Ok(Some(stat)) => stat.start_ticks,
                Ok(None) | Err(_) => 0,
            },
            sight: PidScope::this(),
        }
    }

    /// Whether the process holds `file`'s lock and lives.
    pub(crate) fn owns(&self, file: &File) -> bool {
        if !is_locked(file) {
            return false;
        }
        !self.is_here() || self.start_ticks == 0 || self.runs()
    }

    /// Whether its process id is valid in this process's scope.
    pub(crate) fn is_here(&self) -> bool {
        self.sight.is_known() && self.sight == PidScope::this()
    }

    /// Whether it runs; if that cannot be determined, as without a free descriptor, it is assumed
    /// to, and the lock decides.
    fn runs(&self) -> bool {
        let pid = self.pid.to_string();
        match ProcStat::read(&pid) {
            Ok(Some(stat)) => {
                stat.start_ticks == self.start_ticks && (!stat.ended || has_threads(&pid))
            }
            Ok(None) => false,
            Err(_) => true,
        }
    }
}

impl PidScope {
    pub(crate) fn this() -> PidScope {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|id| u128::from_str_radix(&id.trim().replace('-', ""), 16).ok())
            .unwrap_or(0);
        PidScope {
            pid_namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()),
            boot_id: [(boot_id >> 64) as u64, boot_id as u64],
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.pid_namespace != 0 && self.boot_id != [0, 0]
    }
}

/// The fields read from `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcStat {
    /// A zombie, or dead.
    ended: bool,
    start_ticks: u64,
}

impl ProcStat {
    /// `None` if there is no such process.
    fn read(pid: &str) -> io::Result<Option<ProcStat>> {
        ProcStat::of(fs::read(format!("/proc/{pid}/stat")))
    }

    fn of(read: io::Result<Vec<u8>>) -> io::Result<Option<ProcStat>> {
        let text = match read {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A program's name may hold any bytes.
        let stat = ProcStat::parse(&String::from_utf8_lossy(&text));
        stat.map(Some)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The name, in parentheses, may contain blanks and parentheses too, so the fields are counted
    /// from the last parenthesis: state is the 3rd, start the 22nd.
    fn parse(text: &str) -> Option<ProcStat> {
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(ProcStat {
            ended: matches!(fields.next()?, "Z" | "X" | "x"),
            start_ticks: fields.nth(18)?.parse().ok()?,
        })
    }
}

/// Whether the kernel reports that there is no such process, before its file was opened or after.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Whether a process with an ended first thread still has other threads; true unless the contrary
/// was observed.
fn has_threads(pid: &str) -> bool {
    match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(tasks) => tasks.count() > 1,
        Err(error) => !is_gone(&error),
    }
}

/// Whether an owner holds the lock. For a moment this holds a shared lock, which disturbs no owner:
/// an owner takes its lock before its file has its name.
pub(crate) fn is_locked(file: &File) -> bool {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            // The lock is released with the descriptor at the latest.
            let unlocked = rustix::fs::flock(file, FlockOperation::Unlock);
            debug_assert!(unlocked.is_ok(), "{unlocked:?}");
            false
        }
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let numbers = "1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 99 1";
        for name in ["python3", "a) Z (b", "", ") R 1 2"] {
            let stat = ProcStat::parse(&format!("17 ({name}) S {numbers}"));
            let expected = ProcStat {
                ended: false,
                start_ticks: 4242,
            };
            assert_eq!(stat, Some(expected), "{name:?}");
        }
        let stat = ProcStat::parse(&format!("17 (x) Z {numbers}"));
        assert!(stat.is_some_and(|stat| stat.ended));
        assert_eq!(ProcStat::parse("17 (x) S 1 2"), None);
        assert_eq!(ProcStat::parse(""), None);
    }

    #[test]
    fn a_process_is_gone_only_if_the_kernel_reports_it() {
        let read = |errno: Errno| ProcStat::of(Err(errno.into()));
        for errno in [Errno::NOENT, Errno::SRCH] {
            assert!(matches!(read(errno), Ok(None)), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS] {
            assert!(read(errno).is_err(), "{errno}");
        }
        assert!(ProcStat::of(Ok(b"17 (x) S 1 2".to_vec())).is_err());
    }

    #[test]
    fn this_process_runs_and_one_with_another_start_time_does_not() {
        let this = OwnerProcess::this();
        assert!(this.sight.is_known() && this.runs());
        let other = OwnerProcess {
            start_ticks: this.start_ticks + 1,
            ..this
        };
        assert!(!other.runs());
    }
}
