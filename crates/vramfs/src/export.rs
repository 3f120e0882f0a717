//! Loans of files' device memory to other processes.
//!
//! A process that wants a file's memory (the borrower) listens at an abstract socket with a random
//! name, and requests the loan by `ioctl` ([`crate::control`]). The daemon connects there, checks
//! the peer's credentials, and sends descriptors of the memory and where in it the file's bytes
//! are. So there is no path on a disk to protect and to clean up.
//!
//! A descriptor gives access to all of that memory, other files' included. So only users that may
//! run tools on the filesystem get any: root, and the mount's owner.
//!
//! Invariant: a file stays lent until the borrower reports that it is done with it, or until its
//! process has ended, and with it all work that the device did for it. A broken connection does not
//! end a loan.
//! Elsewhere: the state of a lent file (`file::lending`), borrowing (`import`).

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
use crate::file::{File, FileLoan, LentRange};
use crate::medium::{Medium, SharedBlocks};
use crate::store::Store;
use crate::tree::Tree;

/// First bytes of a loan.
pub(crate) const MAGIC: [u8; 8] = *b"fcvexp01";
/// Maximum number of concurrent loans: each has a thread.
const MAX_LOANS: usize = 1024;
/// How often a waiting thread checks that the filesystem is still mounted.
const UNMOUNT_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// First message to the borrower.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LoanHeader {
    pub magic: [u8; 8],
    /// UUID of the device that has the memory.
    pub device: [u8; 16],
    /// The errno for which nothing was lent, or 0.
    pub error: u64,
    /// The file's size in bytes.
    pub size: u64,
    /// Distance of the first bytes of adjacent blocks.
    pub block_bytes: u64,
    /// Number of [`MemoryPart`]s that follow, each with a descriptor.
    pub parts: u64,
    /// Number of [`FileSegment`]s that follow them.
    pub segments: u64,
}

/// A range of device memory, in bytes from the first byte of the first block.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MemoryPart {
    pub at: u64,
    pub bytes: u64,
}

/// Bytes of the file that are contiguous in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FileSegment {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// For the borrower an address on the device; in the message, bytes from the first byte of the
    /// first block.
    pub at: u64,
}

/// The borrower's message that it is done with the file.
pub(crate) const DONE: u8 = b'D';
/// The replies to it: the file can be used again, with what the borrower wrote; or its blocks could
/// not be made consistent with what it wrote.
pub(crate) const RETURNED: u8 = b'T';
pub(crate) const FAILED: u8 = b'F';

/// The name of the socket with this number.
pub(crate) fn socket_name(number: [u64; 2]) -> String {
    format!("fercuda-vramfs-{:016x}{:016x}", number[0], number[1])
}

/// The current loans of a filesystem.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    open: Mutex<LoanTable>,
}

#[derive(Debug, Default)]
struct LoanTable {
    links: BTreeMap<u64, UnixStream>,
    next: u64,
    /// Whether the filesystem was unmounted.
    is_closed: bool,
}

impl Exports {
    fn open(&self) -> MutexGuard<'_, LoanTable> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of current loans.
    pub(crate) fn count(&self) -> usize {
        self.open().links.len()
    }

    /// Stops lending, as the filesystem is being unmounted: what is lent stays with the borrowers,
    /// and no thread waits for them.
    pub(crate) fn close(&self) {
        let mut open = self.open();
        open.is_closed = true;
        for link in open.links.values() {
            // A borrower that has exited already needs no notice.
            link.shutdown(Shutdown::Both).unwrap_or_default();
        }
    }
}

/// A file to be lent, and what lending it takes.
pub(crate) struct FileLender<M: Medium> {
    pub store: Arc<Store<M>>,
    pub tree: Arc<Tree>,
    pub exports: Arc<Exports>,
    pub notifier: Arc<OnceLock<Notifier>>,
    pub file: Arc<File>,
    pub inode: u32,
    pub writes: bool,
}

impl<M: Medium + 'static> FileLender<M> {
    /// Lends the file to this user's process that listens at the socket `number`, on a thread of
    /// its own.
    ///
    /// # Errors
    /// `CONNREFUSED` if no process listens there, `PERM` if it is another user's, `SRCH` if the
    /// daemon cannot see that process, `AGAIN` if the maximum number of files is lent, or if the
    /// listener's backlog is full.
    pub(crate) fn start(self, number: [u64; 2], user: u32) -> Result<(), Errno> {
        let link = connect(number)?;
        let (borrower, borrowers_user) = peer(&link)?;
        if borrowers_user != user {
            return Err(Errno::PERM);
        }
        let borrower = Pid::from_raw(borrower).ok_or(Errno::SRCH)?;
        let process = pidfd_open(borrower, PidfdFlags::empty()).map_err(|_| Errno::SRCH)?;
        let exports = self.exports.clone();
        let mut open = exports.open();
        if open.is_closed || open.links.len() >= MAX_LOANS {
            return Err(Errno::AGAIN);
        }
        let own = link.try_clone().map_err(|_| Errno::MFILE)?;
        let id = open.next;
        let thread = Builder::new().name("vramfs-export".to_owned());
        let lend = move || {
            let answer = self.lend(&link, &process);
            // An inode that lost its last name during the loan could not be reclaimed.
            self.reclaim();
            // Before the borrower gets the reply, as it may then ask for the number of loans.
            self.exports.open().links.remove(&id);
            drop(self);
            send_final_reply(link, answer);
        };
        thread.spawn(lend).map_err(|_| Errno::AGAIN)?;
        open.next += 1;
        open.links.insert(id, own);
        Ok(())
    }

    /// Lends the file until the borrower is done with it. Returns the final reply, which is `None`
    /// if the filesystem was unmounted; or the reason why the file is not lent.
    fn lend(&self, link: &UnixStream, process: &OwnedFd) -> Result<Option<u8>, Errno> {
        // The kernel writes its dirty pages back; later writes are refused.
        self.forget_pages();
        if let Ok(None) = self.store.medium().share(&[]) {
            return Err(Errno::OPNOTSUPP);
        }
        let loan = self.store.lend(&self.file, self.writes)?;
        if self.writes {
            // Also pages that were read since.
            self.forget_pages();
        }
        let sent = match self.store.medium().share(&loan.blocks) {
            Ok(Some(sharing)) => {
                send_all(link, &loan, &sharing);
                Ok(())
            }
            Ok(None) => Err(Errno::OPNOTSUPP),
            Err(error) => Err(error.to_errno()),
        };
        // Also if it was sent only in part: the memory that did arrive may be in use.
        if sent.is_ok() && !self.wait_until_done(link, process) {
            return Ok(None);
        }
        let taken = self.store.take_back(&self.file, &loan);
        // Only if the inode still has this file.
        let file = self.tree.file(self.inode);
        if self.writes && file.is_ok_and(|it| Arc::ptr_eq(&it, &self.file)) {
            self.tree
                .note_written(self.inode, None, crate::clock::now())
                .unwrap_or_default();
            self.forget_pages();
        }
        sent?;
        Ok(Some(if taken.is_ok() { RETURNED } else { FAILED }))
    }

    fn reclaim(&self) {
        self.tree.reclaim(|file| self.store.free(file));
    }

    /// Has the kernel write back and drop its cached pages of the file.
    fn forget_pages(&self) {
        if let Some(notifier) = self.notifier.get() {
            // It fails if the kernel does not know the inode, and then it caches nothing of it.
            notifier
                .inval_inode(INodeNo(u64::from(self.inode)), 0, 0)
                .unwrap_or_default();
        }
    }

    /// Waits until the borrower is done or has exited; `false` if the filesystem was unmounted.
    fn wait_until_done(&self, link: &UnixStream, process: &OwnedFd) -> bool {
        let mut is_linked = true;
        loop {
            let mut waited = [
                PollFd::new(process, PollFlags::IN),
                PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN),
            ];
            let of = if is_linked { 2 } else { 1 };
            match poll(&mut waited[..of], Some(&UNMOUNT_CHECK_INTERVAL)) {
                Ok(_) | Err(Errno::INTR) => {}
                // Without `poll` the end of the loan cannot be detected, so it never ends.
                Err(_) => return false,
            }
            let is_there = |at: usize| !waited[at].revents().is_empty();
            let (has_ended, has_message) = (is_there(0), is_linked && is_there(1));
            if self.exports.open().is_closed {
                return false;
            }
            if has_ended {
                return true;
            }
            if has_message {
                let mut byte = [0];
                let mut link = link;
                match link.read(&mut byte) {
                    Ok(1) if byte == [DONE] => return true,
                    // The connection broke or was closed, but the memory may still be in use.
                    _ => is_linked = false,
                }
            }
        }
    }
}

/// Connects to the borrower's socket, without blocking: as all users can see the socket's name,
/// other connections may fill the listener's backlog.
fn connect(number: [u64; 2]) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let link = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(socket_name(number).as_bytes())?;
    rustix::net::connect(&link, &address)?;
    ioctl_fionbio(&link, false)?;
    Ok(link.into())
}

/// Sends all bytes; a closed connection is an error and raises no signal.
pub(crate) fn send_message(link: &UnixStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match send(link, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends the final reply to the borrower, and closes the connection. Never blocks: the borrower has
/// read what came before, so there is room for the reply, or it does not read at all.
fn send_final_reply(link: UnixStream, answer: Result<Option<u8>, Errno>) {
    let refusal;
    let message = match &answer {
        Ok(answer) => answer.as_slice(),
        Err(error) => {
            refusal = LoanHeader {
                magic: MAGIC,
                error: error.raw_os_error() as u64,
                ..LoanHeader::zeroed()
            };
            bytemuck::bytes_of(&refusal)
        }
    };
    // A borrower that does not get it sees the connection close, which is an error where it waits
    // for a reply.
    let _sent = send(&link, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Sends all of a loan, or as much of it as the borrower receives.
fn send_all(link: &UnixStream, loan: &FileLoan, sharing: &SharedBlocks) {
    let segments = segments(&loan.pieces, sharing.block_bytes);
    let head = LoanHeader {
        magic: MAGIC,
        device: sharing.device,
        error: 0,
        size: loan.size,
        block_bytes: sharing.block_bytes,
        parts: sharing.parts.len() as u64,
        segments: segments.len() as u64,
    };
    let send = || {
        send_message(link, bytemuck::bytes_of(&head))?;
        for it in &sharing.parts {
            let part = MemoryPart {
                at: it.at,
                bytes: it.bytes,
            };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = SendAncillaryBuffer::new(&mut space);
            let memory = [it.memory.as_fd()];
            with.push(SendAncillaryMessage::ScmRights(&memory));
            let bytes = [IoSlice::new(bytemuck::bytes_of(&part))];
            let sent = retry_on_intr(|| sendmsg(link, &bytes, &mut with, SendFlags::NOSIGNAL))?;
            // The descriptor was sent with the first of these bytes.
            send_message(link, &bytemuck::bytes_of(&part)[sent..])?;
        }
        send_message(link, bytemuck::cast_slice(&segments))
    };
    let sent: std::io::Result<()> = send();
    if sent.is_err() {
        // The borrower sees the end of the message, and replies that it is done.
        link.shutdown(Shutdown::Write).unwrap_or_default();
    }
}

/// The loan's pieces in file order, with those merged that are contiguous in memory.
fn segments(pieces: &[LentRange], block_bytes: u64) -> Vec<FileSegment> {
    let mut all: Vec<FileSegment> = Vec::new();
    for it in pieces {
        let at = u64::from(it.block) * block_bytes + it.within;
        match all.last_mut() {
            Some(last) if (last.offset + last.bytes, last.at + last.bytes) == (it.offset, at) => {
                last.bytes += it.bytes;
            }
            _ => all.push(FileSegment {
                offset: it.offset,
                bytes: it.bytes,
                at,
            }),
        }
    }
    all
}

/// Why a file was not lent, for the borrower's error message.
pub(crate) fn describe_refusal(error: u64) -> String {
    let error = i32::try_from(error).map_or(Errno::IO, Errno::from_raw_os_error);
    match error {
        Errno::BUSY => "another process has mapped its memory, and one of the two is a writer\ntry: again when that process has ended".to_owned(),
        Errno::INVAL => "writing to a mapped file needs each of its chunks of 128 KiB to be a block of its own\ntry: fallocate it to a multiple of 128 KiB when it is made, or export a copy of it".to_owned(),
        Errno::IO => "it has more errors than can be corrected, or the device has failed".to_owned(),
        Errno::OPNOTSUPP => "its memory cannot be shared: it is on several devices, or the driver shares none".to_owned(),
        error => error.to_string(),
    }
}
