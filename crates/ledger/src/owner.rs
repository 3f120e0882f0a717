//! Who owns a ledger, and whether that process still lives.
//!
//! Two signs together. The owner holds a lock on its file, which the kernel
//! takes away however the process ends; but a child that it forked holds the
//! same lock. So where the reader sees the same processes as the owner (same
//! boot, same namespace), the process of that number must also have started
//! when the owner did. Elsewhere, as from another container, the lock decides.
//!
//! A process that closes all its descriptors looks gone. It has then closed
//! the driver's too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Which process, on this machine since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    /// Clock ticks from the machine's start to the process's; 0 if unknown.
    pub(crate) start_ticks: u64,
    pub(crate) sight: Sight,
}

/// From where process numbers are seen; what is unknown is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sight {
    pub(crate) pid_namespace: u64,
    pub(crate) boot_id: [u64; 2],
}

impl Process {
    /// This one.
    pub(crate) fn this() -> Process {
        Process {
            pid: u64::from(std::process::id()),
            start_ticks: match Stat::read("self") {
                Ok(Some(stat)) => stat.start_ticks,
                Ok(None) | Err(_) => 0,
            },
            sight: Sight::this(),
        }
    }

    /// Whether it holds `file`'s lock and lives.
    pub(crate) fn owns(&self, file: &File) -> bool {
        if !is_locked(file) {
            return false;
        }
        !self.is_here() || self.start_ticks == 0 || self.runs()
    }

    /// Whether it is seen from here by its number.
    pub(crate) fn is_here(&self) -> bool {
        self.sight.is_known() && self.sight == Sight::this()
    }

    /// Whether it runs; what cannot be found out, as without a descriptor to
    /// look with, leaves it to the lock.
    fn runs(&self) -> bool {
        let pid = self.pid.to_string();
        match Stat::read(&pid) {
            Ok(Some(stat)) => {
                stat.start_ticks == self.start_ticks && (!stat.ended || has_threads(&pid))
            }
            Ok(None) => false,
            Err(_) => true,
        }
    }
}

impl Sight {
    pub(crate) fn this() -> Sight {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|id| u128::from_str_radix(&id.trim().replace('-', ""), 16).ok())
            .unwrap_or(0);
        Sight {
            pid_namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()),
            boot_id: [(boot_id >> 64) as u64, boot_id as u64],
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.pid_namespace != 0 && self.boot_id != [0, 0]
    }
}

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// A zombie, or dead.
    ended: bool,
    start_ticks: u64,
}

impl Stat {
    /// None if there is no such process.
    fn read(pid: &str) -> io::Result<Option<Stat>> {
        Stat::of(fs::read(format!("/proc/{pid}/stat")))
    }

    fn of(read: io::Result<Vec<u8>>) -> io::Result<Option<Stat>> {
        let text = match read {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A program's name may hold any bytes.
        let stat = Stat::parse(&String::from_utf8_lossy(&text));
        stat.map(Some)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The name, in parentheses, may hold blanks and parentheses too, so the
    /// fields are counted from the last one: state is the 3rd, start the 22nd.
    fn parse(text: &str) -> Option<Stat> {
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Stat {
            ended: matches!(fields.next()?, "Z" | "X" | "x"),
            start_ticks: fields.nth(18)?.parse().ok()?,
        })
    }
}

/// Whether the kernel says that there is no such process, before its file was
/// opened or after.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Whether a process whose first thread has ended goes on in others, unless the
/// contrary was seen.
fn has_threads(pid: &str) -> bool {
    match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(tasks) => tasks.count() > 1,
        Err(error) => !is_gone(&error),
    }
}

/// Whether somebody holds the lock of its owner. For a moment this holds a shared
/// one, which is in nobody's way: an owner takes its lock before its file has
/// its name.
pub(crate) fn is_locked(file: &File) -> bool {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            // The lock goes with the descriptor at the latest.
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
            let stat = Stat::parse(&format!("17 ({name}) S {numbers}"));
            let expected = Stat {
                ended: false,
                start_ticks: 4242,
            };
            assert_eq!(stat, Some(expected), "{name:?}");
        }
        let stat = Stat::parse(&format!("17 (x) Z {numbers}"));
        assert!(stat.is_some_and(|stat| stat.ended));
        assert_eq!(Stat::parse("17 (x) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_is_gone_only_if_the_kernel_says_so() {
        let read = |errno: Errno| Stat::of(Err(errno.into()));
        for errno in [Errno::NOENT, Errno::SRCH] {
            assert!(matches!(read(errno), Ok(None)), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS] {
            assert!(read(errno).is_err(), "{errno}");
        }
        assert!(Stat::of(Ok(b"17 (x) S 1 2".to_vec())).is_err());
    }

    #[test]
    fn this_process_runs_and_one_that_started_otherwise_does_not() {
        let this = Process::this();
        assert!(this.sight.is_known() && this.runs());
        let other = Process {
            start_ticks: this.start_ticks + 1,
            ..this
        };
        assert!(!other.runs());
    }
}
