//! Threads that read what the kernel asks, each from a descriptor of its own, and answer it.
//!
//! To be woken costs a thread, and who asks, more than a small request does. So who has answered looks for the next
//! one a moment before it rests, by calls that do not wait: then it is awake, on a core that has its memory at hand.
//! Who waited longer in the kernel does not look the next time; who is woken to look next does. One alone waits there, and
//! the others for that one (`crew`): of several there each request wakes another, which comes to a core that sleeps.
//!
//! fuser mounts and agrees with the kernel on what both can do. Requests are read here: it does not know all of them (a file
//! without a name), and says times before 1970 wrong.
//!
//! Invariant: a request that was read is answered, also where answering it panics.
#![expect(unsafe_code, reason = "an ioctl, whose command says what it touches")]

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

use super::crew::Crew;
use super::wire::{Call, Reply};
use super::{REQUEST_BYTES, Requests};
use crate::medium::Medium;
use crate::place::FUSE;

/// Bytes that a request may have before those of a write.
const HEAD_BYTES: usize = 4096;
/// How long a thread looks for a request before it waits.
const LOOKS: Duration = Duration::from_micros(20);
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// Who comes to so many that look rests at once: all would try to read what one gets.
const LOOKERS: usize = 4;

/// What is agreed on with the kernel.
pub(crate) struct Terms;

impl fuser::Filesystem for Terms {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What an older kernel has not is not used: it asks more often, or refuses a shared mapping.
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
        let refused = |what: &str| io::Error::other(format!("{what} was refused"));
        config
            .set_max_write(REQUEST_BYTES)
            .map_err(|_| refused("a request of 1 MiB"))?;
        config
            .set_max_background(128)
            .map_err(|_| refused("128 requests in the background"))?;
        Ok(())
    }
}

/// Another descriptor of the same connection, which has a queue of its own for what is being answered. Reading does not wait.
fn another(connection: impl AsFd) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(FUSE)?;
    let of = connection.as_fd().as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads a descriptor's number, of which we have a borrow.
    unsafe {
        ioctl(
            &device,
            Setter::<{ opcode::read::<u32>(229, 0) }, u32>::new(of),
        )
    }?;
    Ok(device)
}

/// Has so many threads answer what is asked of a connection, until it ends. They are added to `threads`, also those that were begun before
/// an error.
///
/// # Errors
/// Those of the system: it has no descriptor or no thread any more.
pub(crate) fn serve<M: Medium + 'static>(
    requests: &Arc<Requests<M>>,
    connection: impl AsFd,
    count: usize,
    threads: &mut Vec<JoinHandle<io::Result<()>>>,
) -> io::Result<()> {
    let crew = Arc::new(Crew::new());
    for at in 0..count {
        let device = another(&connection)?;
        let (requests, crew) = (requests.clone(), crew.clone());
        let thread = Builder::new().name(format!("vramfs-{at}"));
        threads.push(thread.spawn(move || answer_all(&requests, &crew, &device))?);
    }
    Ok(())
}

/// Where one thread finds requests.
struct Lookout<'a> {
    crew: &'a Crew,
    device: &'a File,
    /// It looks so long before it waits.
    looks: Duration,
}

impl Lookout<'_> {
    /// Whether there is a request, or none will come any more; waits so long for that, or for ever.
    fn finds(&self, wait: Option<&Timespec>) -> io::Result<bool> {
        match poll(&mut [PollFd::new(self.device, PollFlags::IN)], wait) {
            Ok(found) => Ok(found > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads one request, for who has something to do then.
    fn read(&mut self, request: &mut [u8]) -> io::Result<usize> {
        // It looks no more before it reads: a mebibyte takes its time, and others wait for who looks.
        self.find()?;
        let mut device = self.device;
        device.read(request)
    }

    /// Until there is a request, which another may be reading by then.
    fn find(&mut self) -> io::Result<()> {
        let (looking, mut before) = self.crew.look();
        loop {
            let begin = Instant::now();
            loop {
                if self.finds(Some(&AT_ONCE))? {
                    return Ok(());
                }
                if begin.elapsed() >= self.looks || before >= LOOKERS {
                    break;
                }
                // Whoever would ask may need this processor for it.
                std::thread::yield_now();
            }
            if looking.rest() {
                // Whoever looked has found something.
                (self.looks, before) = (LOOKS, 0);
                continue;
            }
            let begin = Instant::now();
            let found = self.finds(None)?;
            self.looks = match begin.elapsed() < LOOKS {
                true => LOOKS,
                false => Duration::ZERO,
            };
            if found {
                return Ok(());
            }
        }
    }
}

/// Answers one request after another, until there are none any more.
fn answer_all<M: Medium + 'static>(
    requests: &Requests<M>,
    crew: &Crew,
    device: &File,
) -> io::Result<()> {
    let mut request = vec![0; REQUEST_BYTES as usize + HEAD_BYTES];
    let mut body = Vec::new();
    let mut lookout = Lookout {
        crew,
        device,
        looks: LOOKS,
    };
    loop {
        let len = match lookout.read(&mut request) {
            Ok(len) => len,
            // Whoever asked was killed before it was read; a signal; another has read it.
            Err(error)
                if error.raw_os_error() == Some(libc::ENOENT)
                    || matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) =>
            {
                continue;
            }
            // It was unmounted.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => return Err(error),
        };
        // A kernel that speaks another language: nothing says what to answer to.
        let mut call = Call::new(&request[..len]).ok_or(ErrorKind::InvalidData)?;
        let mut reply = Reply::new(device, call.header.unique, &mut body);
        // Whoever asks is told, rather than left to wait for ever. A panic says on its own where it was.
        let answer = catch_unwind(AssertUnwindSafe(|| requests.answer(&mut call, &mut reply)));
        reply.end(answer.unwrap_or(Err(Errno::IO)));
    }
}
