//! What tools ask a mounted filesystem to do, and how they are answered.
//!
//! By `ioctl` of its root or of a file in it: 64 bytes there, 64 bytes back. Each step is short, and says where the next one
//! begins, so whoever asks shows how far it is, stops where he likes, and leaves nothing behind that waits for him.
//!
//! Invariant: what was asked for in a way that is not known here is refused. Who may ask is the server's to say (`fuse`).
//! Elsewhere: the work (`tools`).
#![expect(
    unsafe_code,
    reason = "an ioctl, whose command says what it touches, and an option of a socket"
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
/// A message, both ways. The first word is what is asked, or the error.
pub(crate) type Message = [u64; WORDS];
/// The command: it reads and writes a message.
pub(crate) const COMMAND: Opcode = opcode::read_write::<Message>(b'V', 0x46);

/// What faults are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One symbol of one word of the code.
    Symbol,
    /// All of a row, of data or of parity.
    Row,
    /// Up to 3 KiB side by side, of data and parity.
    Burst,
    /// The record, which says whose the block is and what its rows' sums are.
    Metadata,
}

/// All of them, as they are numbered in messages.
const FAULTS: [Fault; 4] = [Fault::Symbol, Fault::Row, Fault::Burst, Fault::Metadata];

/// One step of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Looks at some blocks from this one on, and makes right what is not: [`Scrubbed`].
    Scrub {
        /// The first.
        from: u64,
    },
    /// Makes something wrong in blocks that are in use, or in those of the file that is asked: how often it did, and
    /// in how many blocks there are.
    Inject {
        /// What.
        fault: Fault,
        /// How often.
        count: u64,
        /// Which, and where in them.
        seed: u64,
    },
    /// From now on there is room for so many blocks of data; those beyond are given out no more, and are left as long as
    /// they are somebody's.
    Resize {
        /// So many.
        blocks: u64,
    },
    /// Moves what lies beyond the room, of some inodes from this one on: where the next step begins, 0 at the end, and how many
    /// pages were moved.
    Move {
        /// The first.
        from: u64,
    },
    /// Gives memory beyond the room back if it is nobody's: how many blocks still are somebody's, and
    /// how much memory there is.
    Trim,
    /// Lends the memory of the file that is asked to who listens at a socket of this name ([`crate::import`]); the user that will
    /// come by it.
    Export {
        /// An abstract socket's, as [`crate::export::name`] makes it of this.
        name: [u64; 2],
        /// To who writes there, too.
        writes: bool,
    },
}

impl Step {
    fn words(self) -> Message {
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

    /// None for what is not known here.
    pub(crate) fn read(words: &[u8]) -> Option<Self> {
        let words: Message = bytemuck::try_pod_read_unaligned(words).ok()?;
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
        (step.words() == words).then_some(step)
    }
}

/// What a step of [`Step::Scrub`] has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Where the next one begins; 0 at the end.
    pub next: u64,
    /// Blocks that were looked at.
    pub looked: u64,
    /// Of them, those that were not right and are now.
    pub corrected: u64,
    /// And those that cannot be corrected.
    pub lost: u64,
}

/// A mounted filesystem, or a file in one, that is asked for steps.
#[derive(Debug)]
pub struct Control {
    file: File,
    at: std::path::PathBuf,
}

/// The `ioctl` of a message.
struct Asked(Message);

// SAFETY: the command is one that reads and writes as many bytes as a message has, and so does who answers it: the kernel
// copies no more than the command says. No other file's answer is taken for one.
unsafe impl Ioctl for Asked {
    type Output = Message;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        COMMAND
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, words: *mut c_void) -> rustix::io::Result<Message> {
        // SAFETY: it is what `as_ptr` has given, a message, which every value of its bytes is.
        Ok(unsafe { words.cast::<Message>().read() })
    }
}

impl Control {
    /// Of what is at a place.
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

    fn ask(&self, step: Step) -> Result<[u64; WORDS - 1]> {
        // SAFETY: of a file of another kind this is a command that it does not know, of the size of a message
        // whatever it does.
        let answer = unsafe { rustix::ioctl::ioctl(&self.file, Asked(step.words())) };
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

    /// One step of scrubbing.
    ///
    /// # Errors
    /// [`Error::Mount`]: it is no such filesystem, the caller may not, or the device has failed.
    pub fn scrub(&self, from: u64) -> Result<Scrubbed> {
        let [next, looked, corrected, lost, ..] = self.ask(Step::Scrub { from })?;
        Ok(Scrubbed {
            next,
            looked,
            corrected,
            lost,
        })
    }

    /// Makes something wrong so often; how often it was, and of how many blocks they were chosen.
    ///
    /// # Errors
    /// As [`Control::scrub`]; there is no code to correct it.
    pub fn inject(&self, fault: Fault, count: u64, seed: u64) -> Result<(u64, u64)> {
        let [done, blocks, ..] = self.ask(Step::Inject { fault, count, seed })?;
        Ok((done, blocks))
    }

    /// Has the memory of this file come by a socket, from which user.
    ///
    /// # Errors
    /// As [`Control::scrub`]; it is no file.
    pub(crate) fn export(&self, name: [u64; 2], writes: bool) -> Result<u32> {
        let [user, ..] = self.ask(Step::Export { name, writes })?;
        Ok(user as u32)
    }

    /// Sees to there being room for so many blocks of data; `done` hears of how many blocks beyond are left to go, as they go.
    /// Bytes of device memory that it has then.
    ///
    /// # Errors
    /// As [`Control::scrub`]; there is not as much memory, or more is in use than there is to be.
    pub fn resize(&self, blocks: u64, mut left: impl FnMut(u64)) -> Result<u64> {
        self.ask(Step::Resize { blocks })?;
        loop {
            let [beyond, bytes, ..] = self.ask(Step::Trim)?;
            left(beyond);
            if beyond == 0 {
                return Ok(bytes);
            }
            let mut from = 0;
            loop {
                let [next, _, ..] = self.ask(Step::Move { from })?;
                if next == 0 {
                    break;
                }
                from = next;
            }
        }
    }
}

/// Who listens, or has connected, at the other end of a socket: the process, 0 if it cannot be seen from here, and the user.
pub(crate) fn peer(link: &UnixStream) -> std::result::Result<(i32, u32), Errno> {
    let mut who = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of_val(&who) as libc::socklen_t;
    // SAFETY: of this option the kernel writes no more than that many bytes, of numbers that may be any.
    let answer = unsafe {
        libc::getsockopt(
            link.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &mut bytes,
        )
    };
    match answer {
        0 => Ok((who.pid, who.uid)),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

pub(crate) fn refused(at: &Path, error: Errno) -> Error {
    let why = match error {
        Errno::NOTTY | Errno::NOSYS | Errno::INVAL => "it is not where such a filesystem is mounted, or one of another version of this program\ntry: the directory that was given to fercuda vram mount".to_owned(),
        Errno::NOTCONN => "its daemon has ended, and what it held is gone\ntry: fercuda vram umount there".to_owned(),
        Errno::PERM => "only who has mounted it, and root, may\ntry: as that user".to_owned(),
        error => error.to_string(),
    };
    Error::Mount {
        at: at.to_owned(),
        why,
    }
}

fn failed(at: &Path, step: Step, error: Errno, rest: &[u64]) -> Error {
    let why = match (step, error) {
        (Step::Inject { .. }, Errno::OPNOTSUPP) => {
            "it has no code (--ecc off): what is made wrong there stays wrong".to_owned()
        }
        (Step::Resize { blocks }, Errno::NOSPC) => format!(
            "{} pages are in use, and {blocks} blocks have {}\ntry: a larger size, or remove files first",
            rest[0],
            blocks.saturating_mul(crate::layout::PAGES as u64)
        ),
        (Step::Resize { blocks }, Errno::NOMEM) => format!(
            "{blocks} blocks take {} bytes of the device more than it has now, and {} bytes are free\ntry: a smaller size",
            rest[0], rest[1]
        ),
        (Step::Resize { blocks }, Errno::FBIG) => {
            format!("{blocks} blocks are more than the {} that the device has room for", rest[0])
        }
        (Step::Move { .. }, Errno::NOSPC) => {
            "files grew meanwhile: what is in use has no room in what is to be left\nThe room is as small as was asked for, and nothing is lost\ntry: again, or fercuda vram grow to what it was".to_owned()
        }
        (Step::Move { .. }, Errno::IO) => {
            "a file has something in memory that is to go, and it cannot be read\nThe room is as small as was asked for, and the memory stays\ntry: remove files that cannot be read (fercuda vram scrub --now), and again".to_owned()
        }
        (Step::Move { .. }, Errno::BUSY) => {
            "a file has something in memory that is to go, and another process uses it there (fercuda vram export)\nThe room is as small as was asked for, and the memory stays\ntry: again when that has ended".to_owned()
        }
        (Step::Export { .. }, Errno::ISDIR | Errno::INVAL) => {
            "only a file has memory to export".to_owned()
        }
        (Step::Export { .. }, Errno::SRCH) => {
            "the daemon cannot see this process, by whose end it would know that the memory is not used any more\ntry: a process in the daemon's namespaces, or a daemon in its own".to_owned()
        }
        (Step::Export { .. }, Errno::CONNREFUSED) => {
            "the daemon does not reach this process's socket\ntry: a process in the daemon's network namespace".to_owned()
        }
        (Step::Export { .. }, Errno::AGAIN) => {
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
    fn what_is_asked_is_what_is_read_and_nothing_else_is() {
        let faults = FAULTS.map(|fault| Step::Inject {
            fault,
            count: 7,
            seed: u64::MAX,
        });
        let others = [
            Step::Scrub { from: 5 },
            Step::Resize { blocks: 9 },
            Step::Move { from: 3 },
            Step::Trim,
            Step::Export {
                name: [3, u64::MAX],
                writes: true,
            },
        ];
        for step in faults.into_iter().chain(others) {
            let words = step.words();
            assert_eq!(Step::read(bytemuck::bytes_of(&words)), Some(step));
            let mut more = words;
            more[WORDS - 1] = 1;
            assert_eq!(Step::read(bytemuck::bytes_of(&more)), None);
            assert_eq!(Step::read(&bytemuck::bytes_of(&words)[1..]), None);
        }
        for what in [0, 7, u64::MAX] {
            let mut words = [0; WORDS];
            words[0] = what;
            assert_eq!(Step::read(bytemuck::bytes_of(&words)), None);
        }
        let mut words = faults[0].words();
        words[1] = FAULTS.len() as u64;
        assert_eq!(Step::read(bytemuck::bytes_of(&words)), None);
    }
}
