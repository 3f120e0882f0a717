//! Threads that read what the kernel asks, each from a descriptor of its own, and answer it.
//!
//! fuser mounts and agrees with the kernel on what both can do. Requests are read here: it does not know all of them (a file
//! without a name), and says times before 1970 wrong.
//!
//! Invariant: a request that was read is answered, also where answering it panics.
#![expect(unsafe_code, reason = "an ioctl, whose command says what it touches")]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use fuser::{InitFlags, KernelConfig, Request};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

use super::wire::{Call, Reply};
use super::{REQUEST_BYTES, Requests};
use crate::medium::Medium;
use crate::place::FUSE;

/// Bytes that a request may have before those of a write.
const HEAD_BYTES: usize = 4096;

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

/// Another descriptor of the same connection, which has a queue of its own for what is being answered.
fn another(connection: impl AsFd) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open(FUSE)?;
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
    for at in 0..count {
        let device = another(&connection)?;
        let requests = requests.clone();
        let thread = Builder::new().name(format!("vramfs-{at}"));
        threads.push(thread.spawn(move || answer_all(&requests, &device))?);
    }
    Ok(())
}

/// Answers one request after another, until there are none any more.
fn answer_all<M: Medium + 'static>(requests: &Requests<M>, mut device: &File) -> io::Result<()> {
    let mut request = vec![0; REQUEST_BYTES as usize + HEAD_BYTES];
    let mut body = Vec::new();
    loop {
        let len = match device.read(&mut request) {
            Ok(len) => len,
            // Whoever asked was killed before it was read; a signal; nothing there after all.
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
