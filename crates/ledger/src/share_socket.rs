//! Socket through which a process gives others the descriptors of memory that it shares.
//!
//! Messages keep their bounds (`SOCK_SEQPACKET`) and are small: a request names a share and the
//! first piece that is wanted, a reply has the sizes and descriptors of at most [`BATCH`] pieces.
//! An owner that has nothing to give ends the connection.
//!
//! Invariants: either side is of the same user, which the kernel reports. No call here waits longer
//! than the caller says. Descriptors that are received and not wanted are closed. A process that
//! inherited the socket from the one that created it neither removes nor shuts it down.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, geteuid, getpid};

use crate::error::{Error, Result};
use crate::folder::{Folder, LEDGER, SOCKET};
use crate::shares::{OpenedShare, ShareFileId, ShareName};

/// The most descriptors of one reply. The kernel sends at most 253 at a time.
pub const BATCH: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"feRpiece");
const VERSION: u64 = 1;
/// Magic, version, the share's name, its file, and the first piece.
const REQUEST_BYTES: usize = 56;
/// Magic, version, the number of pieces in the reply, and the number of those that follow.
const HEAD_BYTES: usize = 32;
/// The largest reply.
const REPLY_BYTES: usize = HEAD_BYTES + 8 * BATCH;
/// How many processes may wait to be served.
const BACKLOG: i32 = 64;
/// The pause after a connection could not be accepted, as without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// A request for descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorRequest {
    /// The share.
    pub name: ShareName,
    /// Its file, on which the asking process holds a lock.
    pub id: ShareFileId,
    /// How many pieces precede the wanted ones.
    pub first: u64,
}

/// Some pieces of a share.
#[derive(Debug, Default)]
pub struct DescriptorBatch {
    /// Their sizes and descriptors, in the order of their addresses; at most [`BATCH`].
    pub pieces: Vec<(u64, OwnedFd)>,
    /// How many follow.
    pub left: u64,
}

impl DescriptorRequest {
    fn encoded(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        let words = [MAGIC, VERSION].map(u64::to_le_bytes);
        let [a, b] = words;
        let tail = [self.id.device, self.id.inode, self.first].map(u64::to_le_bytes);
        let all = [a, b].into_iter().flatten();
        let all = all.chain(self.name.0).chain(tail.into_iter().flatten());
        for (to, from) in bytes.iter_mut().zip(all) {
            *to = from;
        }
        bytes
    }

    fn decoded(bytes: &[u8]) -> Option<DescriptorRequest> {
        if bytes.len() != REQUEST_BYTES {
            return None;
        }
        let word = |at: usize| word_at(bytes, at);
        ([word(0)?, word(1)?] == [MAGIC, VERSION]).then_some(())?;
        Some(DescriptorRequest {
            name: ShareName(bytes.get(16..32)?.try_into().ok()?),
            id: ShareFileId {
                device: word(4)?,
                inode: word(5)?,
            },
            first: word(6)?,
        })
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at * 8..at * 8 + 8)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

impl DescriptorBatch {
    /// The message but for the descriptors.
    fn encoded(&self) -> Vec<u8> {
        let sizes = self.pieces.iter().map(|(bytes, _)| *bytes);
        let words = [MAGIC, VERSION, self.pieces.len() as u64, self.left];
        words
            .into_iter()
            .chain(sizes)
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// `None` if it is not a whole reply with a descriptor for each of its pieces.
    fn decoded(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<DescriptorBatch> {
        let word = |at: usize| word_at(bytes, at);
        ([word(0)?, word(1)?] == [MAGIC, VERSION]).then_some(())?;
        let count = descriptors.len();
        let is_whole =
            count > 0 && word(2)? == count as u64 && bytes.len() == HEAD_BYTES + 8 * count;
        is_whole.then_some(())?;
        let sizes = (0..count).filter_map(|at| word(HEAD_BYTES / 8 + at));
        Some(DescriptorBatch {
            pieces: sizes.zip(descriptors).collect(),
            left: word(3)?,
        })
    }
}

/// The address of a file in a folder, whatever the length of the folder's path.
fn address(folder: &Folder, name: &[u8]) -> io::Result<SocketAddrUnix> {
    let mut path = format!("/proc/self/fd/{}/", folder.file().as_raw_fd()).into_bytes();
    path.extend(name);
    Ok(SocketAddrUnix::new(path)?)
}

/// The name of the socket of a ledger's owner.
fn socket_name(ledger: &[u8]) -> Option<Vec<u8>> {
    let stem = ledger.strip_suffix(LEDGER.as_bytes())?;
    Some([stem, SOCKET.as_bytes()].concat())
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// Whether the process at the other end is of this user.
fn is_of_this_user(socket: &OwnedFd) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == geteuid())
}

/// Runs a call on a socket, which waits until the deadline at most.
fn until<R>(
    socket: BorrowedFd<'_>,
    deadline: Instant,
    which: Timeout,
    mut call: impl FnMut() -> rustix::io::Result<R>,
) -> io::Result<R> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_socket_timeout(socket, which, Some(left.max(Duration::from_millis(1))))?;
        match call() {
            // A signal, or the time-out, which the deadline decides.
            Err(Errno::INTR | Errno::AGAIN) => {}
            done => return Ok(done?),
        }
    }
}

/// The socket of an owner of shares. It has a name until it is stopped.
#[derive(Debug)]
pub struct ShareListener {
    folder: Arc<Folder>,
    name: Vec<u8>,
    socket: OwnedFd,
    /// The process that created it.
    process: Pid,
    is_stopped: AtomicBool,
}

/// A process that asks for descriptors.
#[derive(Debug)]
pub struct AcceptedConnection {
    socket: OwnedFd,
}

/// A connection to the owner of a share.
#[derive(Debug)]
pub struct ShareConnection {
    socket: OwnedFd,
    name: ShareName,
    id: ShareFileId,
    deadline: Instant,
}

impl ShareListener {
    /// Creates the socket of the process that owns `ledger`.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn create(folder: &Arc<Folder>, ledger: &Path) -> Result<ShareListener> {
        let make = || {
            let name = ledger.file_name().map_or(&b""[..], OsStr::as_bytes);
            let name = socket_name(name).ok_or_else(|| io::Error::other("it is no ledger"))?;
            // One that this process created before.
            folder.remove(OsStr::from_bytes(&name)).ok();
            let socket = socket()?;
            rustix::net::bind(&socket, &address(folder, &name)?)?;
            let listener = ShareListener {
                folder: folder.clone(),
                name,
                socket,
                process: getpid(),
                is_stopped: AtomicBool::new(false),
            };
            let mode = Mode::RUSR | Mode::WUSR;
            let name = OsStr::from_bytes(&listener.name);
            rustix::fs::chmodat(folder.file(), name, mode, AtFlags::empty())?;
            rustix::net::listen(&listener.socket, BACKLOG)?;
            Ok(listener)
        };
        make().map_err(Error::system("make a socket in", folder.path()))
    }

    /// Waits for the next process of this user; `None` once the socket is stopped.
    pub fn accept(&self) -> Option<AcceptedConnection> {
        loop {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) if is_of_this_user(&socket) => {
                    return Some(AcceptedConnection { socket });
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) if self.is_stopped.load(Relaxed) => return None,
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Removes the socket, and ends the thread that waits in [`ShareListener::accept`].
    pub fn stop(&self) {
        if self.process != getpid() || self.is_stopped.swap(true, Relaxed) {
            return;
        }
        // What cannot be removed here is swept later.
        self.folder.remove(OsStr::from_bytes(&self.name)).ok();
        let _it_listens = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Drop for ShareListener {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AcceptedConnection {
    /// Answers requests until the other process has what it wants, `answer` has nothing to give, or
    /// time is over.
    pub fn serve(
        &self,
        patience: Duration,
        mut answer: impl FnMut(&DescriptorRequest) -> Option<DescriptorBatch>,
    ) {
        let deadline = Instant::now() + patience;
        while let Some(request) = self.request(deadline)
            && let Some(batch) = answer(&request)
            && self.reply(deadline, &batch).is_ok()
        {}
        // A child that was forked meanwhile has the socket too.
        let _it_may_be_gone = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    fn request(&self, deadline: Instant) -> Option<DescriptorRequest> {
        let mut bytes = [0; REQUEST_BYTES + 1];
        let receive = || rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty());
        let (_, length) = until(self.socket.as_fd(), deadline, Timeout::Recv, receive).ok()?;
        DescriptorRequest::decoded(bytes.get(..length)?)
    }

    fn reply(&self, deadline: Instant, batch: &DescriptorBatch) -> io::Result<()> {
        let bytes = batch.encoded();
        let borrowed: Vec<_> = batch.pieces.iter().map(|(_, it)| it.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        until(self.socket.as_fd(), deadline, Timeout::Send, || {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
                return Err(Errno::TOOBIG);
            }
            let message = [IoSlice::new(&bytes)];
            let flags = SendFlags::NOSIGNAL;
            rustix::net::sendmsg(&self.socket, &message, &mut control, flags)
        })?;
        Ok(())
    }
}

impl Folder {
    /// Connects to the owner of an open share, to ask for its descriptors. No call on the
    /// connection waits longer than until `patience` from now.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] or [`io::ErrorKind::ConnectionRefused`] if the owner is gone,
    /// [`io::ErrorKind::TimedOut`] if it does not answer; any other of the system's.
    pub fn connect(&self, opened: &OpenedShare, patience: Duration) -> io::Result<ShareConnection> {
        let deadline = Instant::now() + patience;
        let name = socket_name(&opened.owner).ok_or(io::ErrorKind::NotFound)?;
        // A child of an owner that is gone may have inherited the socket.
        if !self.is_owned(OsStr::from_bytes(&opened.owner)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let socket = socket()?;
        let address = address(self, &name)?;
        until(socket.as_fd(), deadline, Timeout::Send, || {
            rustix::net::connect(&socket, &address)
        })?;
        if !is_of_this_user(&socket) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(ShareConnection {
            socket,
            name: opened.name,
            id: opened.id,
            deadline,
        })
    }
}

impl ShareConnection {
    /// Asks for pieces, after the first `first`. There is at least one in the answer.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the owner has nothing to give, [`io::ErrorKind::TimedOut`] if
    /// it does not answer, [`io::ErrorKind::InvalidData`] if it answers something else, as it seems
    /// if no descriptor is free here.
    pub fn ask(&self, first: u64) -> io::Result<DescriptorBatch> {
        let request = DescriptorRequest {
            name: self.name,
            id: self.id,
            first,
        };
        let request = request.encoded();
        let (socket, deadline) = (self.socket.as_fd(), self.deadline);
        let sent = until(socket, deadline, Timeout::Send, || {
            rustix::net::send(socket, &request, SendFlags::NOSIGNAL)
        });
        let ended = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            )
        };
        match sent {
            Err(error) if ended(&error) => return Err(io::ErrorKind::NotFound.into()),
            sent => sent?,
        };
        let mut bytes = [0; REPLY_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let received = until(socket, deadline, Timeout::Recv, || {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let message = rustix::net::recvmsg(socket, into, &mut control, flags)?;
            let mut descriptors = Vec::new();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = part {
                    descriptors.extend(some);
                }
            }
            Ok((message.bytes, descriptors))
        });
        match received {
            Ok((0, _)) => Err(io::ErrorKind::NotFound.into()),
            Err(error) if ended(&error) => Err(io::ErrorKind::NotFound.into()),
            Ok((length, descriptors)) => {
                let batch = bytes.get(..length);
                let batch = batch.and_then(|bytes| DescriptorBatch::decoded(bytes, descriptors));
                batch.ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
            Err(error) => Err(error),
        }
    }
}
