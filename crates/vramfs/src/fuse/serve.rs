//! Worker threads that read FUSE requests, each from a descriptor of its own, and answer them.
//!
//! A wake-up costs a worker, and the caller, more than a small request does. So a worker that has
//! answered spins for a moment before it parks, polling for the next request without blocking: then
//! it is awake, on a core that has its memory at hand. A worker that blocked in the kernel for
//! longer does not spin the next time; a worker that is unparked to spin does. One worker alone
//! blocks there, and the others park behind it (`workers`): if several blocked there, each request
//! would wake another one, on a core that sleeps.
//!
//! fuser mounts and negotiates capabilities with the kernel. Requests are read here: fuser
//! does not know all of them (a file without a name), and encodes times before 1970 wrongly.
//!
//! Invariant: a request that was read is answered, even if its handler panics.
#![expect(
    unsafe_code,
    reason = "the command of an ioctl defines the memory it accesses"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{InitFlags, KernelConfig, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

use super::wire::{KernelRequest, Reply};
use super::workers::WorkerPool;
use super::{REQUEST_BYTES, RequestHandler};
use crate::medium::Medium;
use crate::place::FUSE;

/// Bytes of a request besides the data of a write.
const HEAD_BYTES: usize = 4096;
/// How long a worker spins for a request before it blocks or parks.
const SPIN_DURATION: Duration = Duration::from_micros(20);
const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// A worker that finds this many others spinning parks at once: all would try to read the same
/// request.
const MAX_SPINNERS: usize = 4;

/// The capabilities negotiated with the kernel.
pub(crate) struct InitHandshake;

impl fuser::Filesystem for InitHandshake {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A capability that an older kernel lacks is not used: the kernel sends more requests, or
        // rejects a shared mapping.
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_HAS_IOCTL_DIR,
        ];
        for flag in wanted {
            config.add_capabilities(flag).unwrap_or_default();
        }
        let refused = |what: &str| io::Error::other(format!("the kernel refused {what}"));
        config
            .set_max_write(REQUEST_BYTES)
            .map_err(|_| refused("requests of 1 MiB"))?;
        config
            .set_max_background(128)
            .map_err(|_| refused("128 background requests"))?;
        Ok(())
    }
}

/// Clones the connection: another descriptor, with a queue of its own for requests in progress.
/// Reads do not block.
fn clone_connection(connection: impl AsFd) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(FUSE)?;
    let fd = connection.as_fd().as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads a descriptor's number; `connection` keeps that descriptor
    // open.
    unsafe {
        ioctl(
            &device,
            Setter::<{ opcode::read::<u32>(229, 0) }, u32>::new(fd),
        )
    }?;
    Ok(device)
}

/// Starts `count` workers that answer a connection's requests until it is closed. They are added to
/// `threads`, including those started before an error.
///
/// # Errors
/// The system's: no descriptor or no thread is left.
pub(crate) fn serve<M: Medium + 'static>(
    handler: &Arc<RequestHandler<M>>,
    connection: impl AsFd,
    count: usize,
    threads: &mut Vec<JoinHandle<io::Result<()>>>,
) -> io::Result<()> {
    let workers = Arc::new(WorkerPool::new());
    for at in 0..count {
        let device = clone_connection(&connection)?;
        let (handler, workers) = (handler.clone(), workers.clone());
        let thread = Builder::new().name(format!("vramfs-{at}"));
        threads.push(thread.spawn(move || answer_all(&handler, &workers, &device))?);
    }
    Ok(())
}

/// One worker's way to find requests.
struct RequestPoller<'a> {
    workers: &'a WorkerPool,
    device: &'a File,
    /// How long it spins before it blocks or parks.
    spin_duration: Duration,
}

impl RequestPoller<'_> {
    /// Whether there is a request, or the connection is closed; waits up to `wait` for that, or
    /// without limit.
    fn has_request(&self, wait: Option<&Timespec>) -> io::Result<bool> {
        match poll(&mut [PollFd::new(self.device, PollFlags::IN)], wait) {
            Ok(found) => Ok(found > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads one request. It may have been read by another worker meanwhile.
    fn read(&mut self, request: &mut [u8]) -> io::Result<usize> {
        // Stops spinning before the read: copying a mebibyte takes time, and parked workers wait
        // for a spinning one to stop.
        self.wait_for_request()?;
        let mut device = self.device;
        device.read(request)
    }

    /// Waits until there is a request, which another worker may read first.
    fn wait_for_request(&mut self) -> io::Result<()> {
        let (guard, mut before) = self.workers.start_spinning();
        loop {
            let begin = Instant::now();
            loop {
                if self.has_request(Some(&NO_WAIT))? {
                    return Ok(());
                }
                if begin.elapsed() >= self.spin_duration || before >= MAX_SPINNERS {
                    break;
                }
                // A thread that is about to send a request may need this processor.
                std::thread::yield_now();
            }
            if guard.park_unless_last() {
                // Unparked: the spinning worker has found a request.
                (self.spin_duration, before) = (SPIN_DURATION, 0);
                continue;
            }
            let begin = Instant::now();
            let found = self.has_request(None)?;
            self.spin_duration = match begin.elapsed() < SPIN_DURATION {
                true => SPIN_DURATION,
                false => Duration::ZERO,
            };
            if found {
                return Ok(());
            }
        }
    }
}

/// Answers requests one after another until the connection is closed.
fn answer_all<M: Medium + 'static>(
    handler: &RequestHandler<M>,
    workers: &WorkerPool,
    device: &File,
) -> io::Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES as usize + HEAD_BYTES];
    let mut body = Vec::new();
    let mut poller = RequestPoller {
        workers,
        device,
        spin_duration: SPIN_DURATION,
    };
    loop {
        let len = match poller.read(&mut buffer) {
            Ok(len) => len,
            // The caller was killed before its request was read; a signal; another worker has read
            // it.
            Err(error)
                if error.raw_os_error() == Some(libc::ENOENT)
                    || matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) =>
            {
                continue;
            }
            // Unmounted.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => return Err(error),
        };
        // An unknown protocol: there is no request identifier to answer to.
        let mut request = KernelRequest::new(&buffer[..len]).ok_or(ErrorKind::InvalidData)?;
        let mut reply = Reply::new(device, request.header.unique, &mut body);
        // A panic is answered with an error, so that the caller does not wait for ever. The panic
        // hook reports where it was.
        let answer = catch_unwind(AssertUnwindSafe(|| {
            handler.answer(&mut request, &mut reply)
        }));
        reply.complete(answer.unwrap_or(Err(Errno::IO)));
    }
}
