//! Files' memory in other processes' hands: who lends it, to whom, and until when.
//!
//! Who wants a file's memory listens at an abstract socket with a name that nobody guesses, and asks by `ioctl` ([`crate::control`]). The
//! daemon connects there, looks who it is, and sends descriptors of the memory, and where in it the file's bytes are. So there is no
//! place to guard and to clear away.
//!
//! Whoever has a descriptor reaches all that lies in that memory, other files too. So only who may have tools work on the filesystem
//! gets any: root, and who has mounted it.
//!
//! Invariant: a file is lent until the borrower says that he is done with it, or his process has ended, and with it all that the
//! device did for it; no connection that breaks ends it.
//! Elsewhere: what a lent file is (`file::lending`), how it is borrowed (`import`).

use std::collections::BTreeMap;
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;

use bytemuck::{Pod, Zeroable};
use fuser::{INodeNo, Notifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, send, sendmsg, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::control::peer;
use crate::file::{File, FileLoan, LentRange, to_errno};
use crate::medium::{Medium, SharedBlocks};
use crate::store::Store;
use crate::tree::Tree;

/// What begins a loan.
pub(crate) const MAGIC: [u8; 8] = *b"fcvexp01";
/// Files that are lent at a time, at most: each has a thread.
const LOANS_MOST: usize = 1024;
/// How often a thread that waits looks whether the filesystem is still mounted.
const LOOKS: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What the borrower hears first.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Head {
    pub magic: [u8; 8],
    /// Which device's memory it is, by its UUID.
    pub device: [u8; 16],
    /// Why there is nothing, as a number of the system's; or 0.
    pub error: u64,
    /// The file's.
    pub size: u64,
    /// Bytes from one block's first to the next one's.
    pub block_bytes: u64,
    /// So many [`Part`]s come, a descriptor with each.
    pub parts: u64,
    /// So many [`Segment`]s come behind them.
    pub segments: u64,
}

/// Memory, in bytes from the first block's first.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Part {
    pub at: u64,
    pub bytes: u64,
}

/// Bytes of the file that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Segment {
    /// From this byte of the file on.
    pub offset: u64,
    /// So many.
    pub bytes: u64,
    /// Where: to who borrows it an address, on the way there bytes from the first block's first.
    pub at: u64,
}

/// What the borrower says when he is done.
pub(crate) const DONE: u8 = b'D';
/// What he hears when the file is as it was, or as he has written it; or that it could not be made right.
pub(crate) const TAKEN: u8 = b'T';
pub(crate) const FAILED: u8 = b'F';

/// The name of a socket.
pub(crate) fn name(number: [u64; 2]) -> String {
    format!("fercuda-vramfs-{:016x}{:016x}", number[0], number[1])
}

/// Loans of a filesystem.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    links: BTreeMap<u64, UnixStream>,
    next: u64,
    /// It is not mounted any more.
    has_ended: bool,
}

impl Exports {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many files are lent.
    pub(crate) fn count(&self) -> usize {
        self.open().links.len()
    }

    /// Nobody asks for files any more: what is lent stays the borrowers', and nobody waits for them.
    pub(crate) fn end(&self) {
        let mut open = self.open();
        open.has_ended = true;
        for link in open.links.values() {
            // Who has gone does not hear it.
            link.shutdown(Shutdown::Both).unwrap_or_default();
        }
    }
}

/// A file that is to be lent.
pub(crate) struct Lender<M: Medium> {
    pub store: Arc<Store<M>>,
    pub tree: Arc<Tree>,
    pub exports: Arc<Exports>,
    pub notifier: Arc<OnceLock<Notifier>>,
    pub file: Arc<File>,
    pub inode: u32,
    pub writes: bool,
}

impl<M: Medium + 'static> Lender<M> {
    /// Lends it to this user's process that listens there, by a thread of its own.
    ///
    /// # Errors
    /// `CONNREFUSED` if nobody does, `PERM` if it is somebody else, `SRCH` if that process cannot be seen from here, `AGAIN` if
    /// as many files are lent as can be, or as many as can be wait for him to answer.
    pub(crate) fn begin(self, number: [u64; 2], user: u32) -> Result<(), Errno> {
        let link = connect(number)?;
        let (borrower, borrowers_user) = peer(&link)?;
        if borrowers_user != user {
            return Err(Errno::PERM);
        }
        let borrower = Pid::from_raw(borrower).ok_or(Errno::SRCH)?;
        let process = pidfd_open(borrower, PidfdFlags::empty()).map_err(|_| Errno::SRCH)?;
        let exports = self.exports.clone();
        let mut open = exports.open();
        if open.has_ended || open.links.len() >= LOANS_MOST {
            return Err(Errno::AGAIN);
        }
        let own = link.try_clone().map_err(|_| Errno::MFILE)?;
        let id = open.next;
        let thread = Builder::new().name("vramfs-export".to_owned());
        let lend = move || {
            let answer = self.lend(&link, &process);
            // Whoever lost its last name meanwhile could not go.
            self.sweep();
            // Before he hears it, as he may ask then how many are lent.
            self.exports.open().links.remove(&id);
            drop(self);
            end(link, answer);
        };
        thread.spawn(lend).map_err(|_| Errno::AGAIN)?;
        open.next += 1;
        open.links.insert(id, own);
        Ok(())
    }

    /// Lends it until he is done with it. What he is told then, which is nothing if the filesystem has ended; or why it is not lent.
    fn lend(&self, link: &UnixStream, process: &OwnedFd) -> Result<Option<u8>, Errno> {
        // What the kernel has of it that is newer comes here, or is refused from now on.
        self.forget_pages();
        if let Ok(None) = self.store.medium().share(&[]) {
            return Err(Errno::OPNOTSUPP);
        }
        let loan = self.store.lend(&self.file, self.writes)?;
        if self.writes {
            // And what somebody has read since.
            self.forget_pages();
        }
        let sent = match self.store.medium().share(&loan.blocks) {
            Ok(Some(sharing)) => {
                send_all(link, &loan, &sharing);
                Ok(())
            }
            Ok(None) => Err(Errno::OPNOTSUPP),
            Err(error) => Err(to_errno(&error)),
        };
        // Also if it could not be sent to the end: what has come there may be in use.
        if sent.is_ok() && !self.is_done(link, process) {
            return Ok(None);
        }
        let taken = self.store.take_back(&self.file, &loan);
        // If it has its inode still.
        let file = self.tree.file(self.inode);
        if self.writes && file.is_ok_and(|it| Arc::ptr_eq(&it, &self.file)) {
            self.tree
                .note_written(self.inode, None, crate::fuse::now())
                .unwrap_or_default();
            self.forget_pages();
        }
        sent?;
        Ok(Some(if taken.is_ok() { TAKEN } else { FAILED }))
    }

    fn sweep(&self) {
        self.tree.reclaim(|file| self.store.free(file));
    }

    /// Has the kernel write and forget what it keeps of the file's bytes.
    fn forget_pages(&self) {
        if let Some(notifier) = self.notifier.get() {
            // It fails if the inode is not known there, and then nothing is kept.
            notifier
                .inval_inode(INodeNo(u64::from(self.inode)), 0, 0)
                .unwrap_or_default();
        }
    }

    /// Waits until the borrower is done, or has ended; `false` if the filesystem has.
    fn is_done(&self, link: &UnixStream, process: &OwnedFd) -> bool {
        let mut is_linked = true;
        loop {
            let mut waited = [
                PollFd::new(process, PollFlags::IN),
                PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN),
            ];
            let of = if is_linked { 2 } else { 1 };
            match poll(&mut waited[..of], Some(&LOOKS)) {
                Ok(_) | Err(Errno::INTR) => {}
                // Nothing says when it is done, so it never is.
                Err(_) => return false,
            }
            let is_there = |at: usize| !waited[at].revents().is_empty();
            let (has_ended, says) = (is_there(0), is_linked && is_there(1));
            if self.exports.open().has_ended {
                return false;
            }
            if has_ended {
                return true;
            }
            if says {
                let mut byte = [0];
                let mut link = link;
                match link.read(&mut byte) {
                    Ok(1) if byte == [DONE] => return true,
                    // It broke, or was let go of; what was sent by it was not.
                    _ => is_linked = false,
                }
            }
        }
    }
}

/// A link to whoever listens there. It waits for nobody: who listens may have others in his queue, as all can see his name.
fn connect(number: [u64; 2]) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let link = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(name(number).as_bytes())?;
    rustix::net::connect(&link, &address)?;
    ioctl_fionbio(&link, false)?;
    Ok(link.into())
}

/// Sends all of it, without a signal if nobody is there any more.
pub(crate) fn tell(link: &UnixStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match send(link, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Says the last that a borrower hears, and closes the link. It waits for nobody: he has read what came before, so there is
/// room for it, or he does not read.
fn end(link: UnixStream, answer: Result<Option<u8>, Errno>) {
    let refusal;
    let said = match &answer {
        Ok(answer) => answer.as_slice(),
        Err(error) => {
            refusal = Head {
                magic: MAGIC,
                error: error.raw_os_error() as u64,
                ..Head::zeroed()
            };
            bytemuck::bytes_of(&refusal)
        }
    };
    // Who is there and was not told is told by the end of the link, which is an error where he waits for an answer.
    let _sent = send(&link, said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Sends all of a loan, or as much as somebody takes.
fn send_all(link: &UnixStream, loan: &FileLoan, sharing: &SharedBlocks) {
    let segments = segments(&loan.pieces, sharing.block_bytes);
    let head = Head {
        magic: MAGIC,
        device: sharing.device,
        error: 0,
        size: loan.size,
        block_bytes: sharing.block_bytes,
        parts: sharing.parts.len() as u64,
        segments: segments.len() as u64,
    };
    let send = || {
        tell(link, bytemuck::bytes_of(&head))?;
        for it in &sharing.parts {
            let part = Part {
                at: it.at,
                bytes: it.bytes,
            };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = SendAncillaryBuffer::new(&mut space);
            let memory = [it.memory.as_fd()];
            with.push(SendAncillaryMessage::ScmRights(&memory));
            let bytes = [IoSlice::new(bytemuck::bytes_of(&part))];
            let sent = retry_on_intr(|| sendmsg(link, &bytes, &mut with, SendFlags::NOSIGNAL))?;
            // The descriptor went with the first of them.
            tell(link, &bytemuck::bytes_of(&part)[sent..])?;
        }
        tell(link, bytemuck::cast_slice(&segments))
    };
    let sent: std::io::Result<()> = send();
    if sent.is_err() {
        // Who waits for the rest hears that there is none, and says that he is done.
        link.shutdown(Shutdown::Write).unwrap_or_default();
    }
}

/// Pieces as they lie in memory, those side by side in one.
fn segments(pieces: &[LentRange], block_bytes: u64) -> Vec<Segment> {
    let mut all: Vec<Segment> = Vec::new();
    for it in pieces {
        let at = u64::from(it.block) * block_bytes + it.within;
        match all.last_mut() {
            Some(last) if (last.offset + last.bytes, last.at + last.bytes) == (it.offset, at) => {
                last.bytes += it.bytes;
            }
            _ => all.push(Segment {
                offset: it.offset,
                bytes: it.bytes,
                at,
            }),
        }
    }
    all
}

/// Why a file was not lent.
pub(crate) fn reason(error: u64) -> String {
    let error = i32::try_from(error).map_or(Errno::IO, Errno::from_raw_os_error);
    match error {
        Errno::BUSY => "another process uses its memory, and one of the two writes\ntry: when that has ended".to_owned(),
        Errno::INVAL => "to be written there, all of its chunks of 128 KiB have to be blocks of its own\ntry: fallocate it to a multiple of 128 KiB when it is made, or a copy of it".to_owned(),
        Errno::IO => "it has more wrong than can be corrected, or the device has failed".to_owned(),
        Errno::OPNOTSUPP => "its memory cannot be shared: it lies on several devices, or the driver shares none".to_owned(),
        error => error.to_string(),
    }
}
