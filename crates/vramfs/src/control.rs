//! Control requests of tools to a mounted filesystem, and their replies.
//!
//! A request is an `ioctl` on the root or on a file in it: 64 bytes there, 64 bytes back. Each
//! request does a short piece of work and returns where the next one begins, so a tool shows its
//! progress, may stop at any time, and leaves no state in the daemon.
//!
//! Invariant: a message that is not exactly a known request is refused. Permissions are checked by
//! the server (`fuse`).
//! Elsewhere: the work (`tools`).
#![expect(
    unsafe_code,
    reason = "an ioctl with the size of its data in the command, and a socket option"
)]

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use crate::error::{Error, Result};

/// Words of a message, both ways.
const WORDS: usize = 8;
/// A message, both ways. The first word is the kind of request, or the errno of the reply.
pub(crate) type ControlMessage = [u64; WORDS];
/// The `ioctl` command, which reads and writes a message.
pub(crate) const COMMAND: Opcode = opcode::read_write::<ControlMessage>(b'V', 0x46);

/// Kinds of errors that can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// One symbol of one code word.
    Symbol,
    /// A whole row, of data or of parity.
    Row,
    /// Up to 3 KiB of contiguous data and parity.
    Burst,
    /// The record, which has the block's identity and the checksums of its rows.
    Metadata,
}

/// All kinds, in the order of their numbers in messages.
const FAULTS: [InjectedFault; 4] = [
    InjectedFault::Symbol,
    InjectedFault::Row,
    InjectedFault::Burst,
    InjectedFault::Metadata,
];

/// One control request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Verifies some blocks and corrects those with errors: [`ScrubResult`].
    Scrub {
        /// Index of the first block.
        from: u64,
    },
    /// Injects errors into blocks in use, or into those of the file that has the request. Returns
    /// the number of errors, and of the blocks that they were chosen from.
    Inject {
        /// The kind of error.
        fault: InjectedFault,
        /// Number of errors.
        count: u64,
        /// Seed of the choice of blocks and positions.
        seed: u64,
    },
    /// Sets the capacity in blocks of data. Blocks beyond it are allocated no more, and stay while
    /// they are in use.
    Resize {
        /// The new capacity.
        blocks: u64,
    },
    /// Moves data out of the blocks beyond the capacity, for some inodes. Returns the first inode
    /// of the next request, 0 at the end, and the number of pages moved.
    Move {
        /// The first inode.
        from: u64,
    },
    /// Frees the memory beyond the capacity if none of it is in use. Returns how many of its blocks
    /// are still in use, and the bytes of memory that there are.
    Trim,
    /// Lends the memory of the file that has the request to the process that listens at a socket of
    /// this name ([`crate::import`]). Returns the user that the daemon connects as.
    Export {
        /// Number of an abstract socket, which [`crate::export::socket_name`] makes the name of.
        name: [u64; 2],
        /// Whether the borrower may write.
        writes: bool,
    },
}

impl ControlRequest {
    fn encode(self) -> ControlMessage {
        let mut words = [0; WORDS];
        let [what, rest @ ..] = &mut words;
        match self {
            Self::Scrub { from } => (*what, rest[0]) = (1, from),
            Self::Inject { fault, count, seed } => {
                *what = 2;
                rest[0] = FAULTS.iter().position(|it| *it == fault).unwrap_or(0) as u64;
                (rest[1], rest[2]) = (count, seed);
            }
            Self::Resize { blocks } => (*what, rest[0]) = (3, blocks),
            Self::Move { from } => (*what, rest[0]) = (4, from),
            Self::Trim => *what = 5,
            Self::Export { name, writes } => {
                *what = 6;
                (rest[0], rest[1], rest[2]) = (name[0], name[1], u64::from(writes));
            }
        }
        words
    }

    /// Decodes a request; `None` if it is unknown.
    pub(crate) fn decode(words: &[u8]) -> Option<Self> {
        let words: ControlMessage = bytemuck::try_pod_read_unaligned(words).ok()?;
        let [what, first, second, third, ..] = words;
        let step = match what {
            1 => Self::Scrub { from: first },
            2 => Self::Inject {
                fault: *FAULTS.get(usize::try_from(first).ok()?)?,
                count: second,
                seed: third,
            },
            3 => Self::Resize { blocks: first },
            4 => Self::Move { from: first },
            5 => Self::Trim,
            6 => Self::Export {
                name: [first, second],
                writes: third == 1,
            },
            _ => return None,
        };
        (step.encode() == words).then_some(step)
    }
}

/// Result of [`ControlRequest::Scrub`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubResult {
    /// First block of the next request; 0 at the end.
    pub next: u64,
    /// Blocks that were verified.
    pub verified: u64,
    /// Those of them that had errors and were corrected.
    pub corrected: u64,
    /// Those of them that cannot be corrected.
    pub lost: u64,
}

/// A mounted filesystem, or a file in one, that requests are sent to.
#[derive(Debug)]
pub struct Control {
    file: File,
    at: std::path::PathBuf,
}

/// The `ioctl` that sends a message.
struct ControlIoctl(ControlMessage);

// SAFETY: the command is one that reads and writes as many bytes as a message has, and so does the
// daemon that answers it: the kernel copies no more than the size in the command. A reply of any
// other file is not taken for an answer.
unsafe impl Ioctl for ControlIoctl {
    type Output = ControlMessage;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        COMMAND
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        _: IoctlOutput,
        words: *mut c_void,
    ) -> rustix::io::Result<ControlMessage> {
        // SAFETY: `words` is the pointer that `as_ptr` returned, to a message, for which all bit
        // patterns are valid.
        Ok(unsafe { words.cast::<ControlMessage>().read() })
    }
}

impl Control {
    /// Opens the filesystem or file at a path.
    ///
    /// # Errors
    /// [`Error::Mount`] if it cannot be opened.
    pub fn open(at: &Path) -> Result<Self> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(at, how, Mode::empty()).map_err(|error| refused(at, error))?;
        Ok(Self {
            file: file.into(),
            at: at.to_owned(),
        })
    }

    fn send(&self, step: ControlRequest) -> Result<[u64; WORDS - 1]> {
        // SAFETY: a file of another kind does not know this command; whatever it does with it, it
        // touches no more than the size of a message.
        let answer = unsafe { rustix::ioctl::ioctl(&self.file, ControlIoctl(step.encode())) };
        let [error, rest @ ..] = answer.map_err(|error| refused(&self.at, error))?;
        match i32::try_from(error) {
            Ok(0) => Ok(rest),
            Ok(error) => Err(failed(
                &self.at,
                step,
                Errno::from_raw_os_error(error),
                &rest,
            )),
            Err(_) => Err(refused(&self.at, Errno::NOTTY)),
        }
    }

    /// Scrubs some blocks, from the block `from` on.
    ///
    /// # Errors
    /// [`Error::Mount`]: it is not such a filesystem, the caller may not, or the device has failed.
    pub fn scrub(&self, from: u64) -> Result<ScrubResult> {
        let [next, verified, corrected, lost, ..] = self.send(ControlRequest::Scrub { from })?;
        Ok(ScrubResult {
            next,
            verified,
            corrected,
            lost,
        })
    }

    /// Injects `count` errors. Returns how many were injected, and the number of blocks that they
    /// were chosen from.
    ///
    /// # Errors
    /// As [`Control::scrub`]; also if there is no code to correct them.
    pub fn inject(&self, fault: InjectedFault, count: u64, seed: u64) -> Result<(u64, u64)> {
        let [done, blocks, ..] = self.send(ControlRequest::Inject { fault, count, seed })?;
        Ok((done, blocks))
    }

    /// Has the daemon lend this file's memory through a socket. Returns the user that it connects
    /// as.
    ///
    /// # Errors
    /// As [`Control::scrub`]; also if it is not a file.
    pub(crate) fn export(&self, name: [u64; 2], writes: bool) -> Result<u32> {
        let [user, ..] = self.send(ControlRequest::Export { name, writes })?;
        Ok(user as u32)
    }

    /// Sets the capacity to `blocks` blocks of data, and waits until the blocks beyond it are free.
    /// `left` is called with the number of those still in use, as it falls. Returns the bytes of
    /// device memory that there are then.
    ///
    /// # Errors
    /// As [`Control::scrub`]; also if there is not as much memory, or if more than that is in use.
    pub fn resize(&self, blocks: u64, mut left: impl FnMut(u64)) -> Result<u64> {
        self.send(ControlRequest::Resize { blocks })?;
        loop {
            let [beyond, bytes, ..] = self.send(ControlRequest::Trim)?;
            left(beyond);
            if beyond == 0 {
                return Ok(bytes);
            }
            let mut from = 0;
            loop {
                let [next, _, ..] = self.send(ControlRequest::Move { from })?;
                if next == 0 {
                    break;
                }
                from = next;
            }
        }
    }
}

/// The process at the other end of a socket, 0 if it cannot be seen from here, and its user.
pub(crate) fn peer(link: &UnixStream) -> std::result::Result<(i32, u32), Errno> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of_val(&credentials) as libc::socklen_t;
    // SAFETY: for this option the kernel writes no more than that many bytes, integers for which
    // all bit patterns are valid.
    let answer = unsafe {
        libc::getsockopt(
            link.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut bytes,
        )
    };
    match answer {
        0 => Ok((credentials.pid, credentials.uid)),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

pub(crate) fn refused(at: &Path, error: Errno) -> Error {
    let why = match error {
        Errno::NOTTY | Errno::NOSYS | Errno::INVAL => "it is not where such a filesystem is mounted, or that is one of another version of this program\ntry: the directory that was given to fercuda vram mount".to_owned(),
        Errno::NOTCONN => "its daemon has ended, and the files are lost\ntry: fercuda vram umount there".to_owned(),
        Errno::PERM => "only the mount's owner and root may\ntry: as that user".to_owned(),
        error => error.to_string(),
    };
    Error::Mount {
        at: at.to_owned(),
        why,
    }
}

fn failed(at: &Path, step: ControlRequest, error: Errno, rest: &[u64]) -> Error {
    let why = match (step, error) {
        (ControlRequest::Inject { .. }, Errno::OPNOTSUPP) => {
    "it has no code (--ecc off): injected errors would stay".to_owned()
        }
        (ControlRequest::Resize { blocks }, Errno::NOSPC) => format!(
    "{} pages are in use, and {blocks} blocks have {}\ntry: a larger size, or remove files first",
            rest[0],
            blocks.saturating_mul(crate::layout::PAGES as u64)
        ),
        (ControlRequest::Resize { blocks }, Errno::NOMEM) => format!(
            "{blocks} blocks take {} more bytes of device memory, and {} bytes are free\ntry: a smaller size",
            rest[0], rest[1]
        ),
        (ControlRequest::Resize { blocks }, Errno::FBIG) => {
            format!("{blocks} blocks are more than the {} that the device has room for", rest[0])
        }
        (ControlRequest::Move { .. }, Errno::NOSPC) => {
    "files grew meanwhile: the data in use does not fit in the smaller size\nThe capacity is as small as requested, and no data is lost\ntry: again, or fercuda vram grow back to the former size".to_owned()
        }
        (ControlRequest::Move { .. }, Errno::IO) => {
    "a file has data in memory that is to be freed, and the data cannot be read\nThe capacity is as small as requested, and the memory is not freed\ntry: remove files that cannot be read (fercuda vram scrub --now), and again".to_owned()
        }
        (ControlRequest::Move { .. }, Errno::BUSY) => {
    "a file has data in memory that is to be freed, and another process has it mapped (fercuda vram export)\nThe capacity is as small as requested, and the memory is not freed\ntry: again when that process has ended".to_owned()
        }
        (ControlRequest::Export { .. }, Errno::ISDIR | Errno::INVAL) => {
            "only a file has memory to export".to_owned()
        }
        (ControlRequest::Export { .. }, Errno::SRCH) => {
    "the daemon cannot see this process, and so would not notice its end\ntry: a process in the daemon's namespaces, or a daemon in its own".to_owned()
        }
        (ControlRequest::Export { .. }, Errno::CONNREFUSED) => {
    "the daemon cannot connect to this process's socket\ntry: a process in the daemon's network namespace".to_owned()
        }
        (ControlRequest::Export { .. }, Errno::AGAIN) => {
            "too many files of it are exported already\ntry: fewer at a time".to_owned()
        }
        (_, error) => error.to_string(),
    };
    Error::Mount {
        at: at.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_that_encode_a_request_are_decoded() {
        let faults = FAULTS.map(|fault| ControlRequest::Inject {
            fault,
            count: 7,
            seed: u64::MAX,
        });
        let others = [
            ControlRequest::Scrub { from: 5 },
            ControlRequest::Resize { blocks: 9 },
            ControlRequest::Move { from: 3 },
            ControlRequest::Trim,
            ControlRequest::Export {
                name: [3, u64::MAX],
                writes: true,
            },
        ];
        for step in faults.into_iter().chain(others) {
            let words = step.encode();
            assert_eq!(
                ControlRequest::decode(bytemuck::bytes_of(&words)),
                Some(step)
            );
            let mut more = words;
            more[WORDS - 1] = 1;
            assert_eq!(ControlRequest::decode(bytemuck::bytes_of(&more)), None);
            assert_eq!(
                ControlRequest::decode(&bytemuck::bytes_of(&words)[1..]),
                None
            );
        }
        for what in [0, 7, u64::MAX] {
            let mut words = [0; WORDS];
            words[0] = what;
            assert_eq!(ControlRequest::decode(bytemuck::bytes_of(&words)), None);
        }
        let mut words = faults[0].encode();
        words[1] = FAULTS.len() as u64;
        assert_eq!(ControlRequest::decode(bytemuck::bytes_of(&words)), None);
    }
}
