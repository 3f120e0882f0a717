//! A mounted filesystem, from mount to unmount.
//!
//! A mount owns worker threads that read requests, each from a descriptor of its own, and answer
//! them (`fuse`); one more thread scrubs blocks, if that is enabled.
//!
//! Invariant: when a mount is dropped, its filesystem is unmounted, or detached and gone with its
//! last user.
//! Elsewhere: the answers (`fuse`), the mount point (`place`), the memory (`medium`).

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use fercuda_cuda::Context;
use fuser::{Config, MountOption, Session, SessionACL};

use crate::array::{Array, ArrayLayout};
use crate::blocks::Blocks;
use crate::clock::now;
use crate::engine::{Kernels, Mover};
use crate::error::{Error, Result};
use crate::export::Exports;
pub use crate::fuse::PageCache;
use crate::fuse::{InitHandshake, RequestHandler, SLOTS, serve};
use crate::layout::{BLOCK_BYTES, DATA_BYTES};
use crate::medium::{DeviceMedium, Medium, Verify};
use crate::meter::Meter;
use crate::place::{DetachedMount, EmptyDirectory, HINT_PERMISSION, SOURCE, id, is_root, refused};
pub use crate::place::{
    MountLocation, MountRestrictions, Mounted, all, figures, is_anywhere, mounted, unmount,
};
use crate::space::BLOCKS_MAX;
use crate::store::Store;
use crate::tree::{Credentials, Tree};

/// The length of one slice of scrubbing. The scrubber then rests this many times as long, if no
/// rate is given.
const SCRUB_SLICE: Duration = Duration::from_millis(2);
const SCRUB_REST_FACTOR: u32 = 19;
/// The pause between two rounds; and the pause after an error, which may mean a failed device.
const SCRUB_ROUND_PAUSE: Duration = Duration::from_secs(1);
const SCRUB_ERROR_PAUSE: Duration = Duration::from_secs(10);
/// The kernel's read-ahead for sequential reads, if it caches pages.
const READ_AHEAD_KIB: u32 = 1024;

/// The size of a store, its error-correcting code and its concurrency.
#[derive(Clone, Copy, Debug)]
pub struct StoreGeometry {
    /// Bytes for data.
    pub size_bytes: u64,
    /// Whether blocks have the error-correcting code, or data alone.
    pub has_code: bool,
    /// When rows are verified against their checksums.
    pub verify: Verify,
    /// The number of requests answered concurrently.
    pub threads: usize,
}

/// Loads the code's kernels into a context: [`Kernels::load`], or a cache.
pub type KernelLoader<'a> = &'a dyn Fn(&Context) -> Result<Kernels>;

/// Creates a store in a device's memory.
///
/// # Errors
/// [`Error::Room`] if the device has less free memory; those of the driver and of loading the
/// code's kernels.
pub fn store(
    context: &Context,
    shape: &StoreGeometry,
    load: KernelLoader<'_>,
) -> Result<Store<DeviceMedium>> {
    let max_blocks = room(context, shape, shape.blocks())?;
    let count = shape.count()?;
    let max_blocks = max_blocks.clamp(count, BLOCKS_MAX);
    let device = device(context, shape, load, count as usize, max_blocks as usize)?;
    Ok(Store::new(device, count, max_blocks, shape.threads))
}

/// Creates a store in several devices' memory. Each device holds its share of the blocks; the store
/// can grow as far as the device with the least memory allows. The devices may be of different
/// kinds.
///
/// # Errors
/// As [`store`], for each device.
///
/// # Panics
/// As [`Array::new`].
pub fn array(
    contexts: &[Context],
    spread: ArrayLayout,
    shape: &StoreGeometry,
    load: KernelLoader<'_>,
) -> Result<Store<Array<DeviceMedium>>> {
    let all = contexts.len();
    let mut max_blocks = u32::MAX;
    for (at, context) in contexts.iter().enumerate() {
        let blocks = spread.share(shape.blocks(), all, at);
        max_blocks = max_blocks.min(room(context, shape, blocks)?);
    }
    let count = shape.count()?;
    let share = |blocks: u32, at| spread.share(blocks as usize, all, at);
    if spread == ArrayLayout::Stripe {
        max_blocks = max_blocks.saturating_mul(u32::try_from(all).unwrap_or(u32::MAX));
    }
    let max_blocks = max_blocks.clamp(count, BLOCKS_MAX);
    let one = |(at, context): (usize, &Context)| {
        let made = device(
            context,
            shape,
            load,
            share(count, at),
            share(max_blocks, at),
        )?;
        Ok((context.device().ordinal(), made))
    };
    let devices = contexts.iter().enumerate().map(one);
    let array = Array::new(devices.collect::<Result<_>>()?, spread, count as usize);
    Ok(Store::new(array, count, max_blocks, shape.threads))
}

impl StoreGeometry {
    fn blocks(&self) -> usize {
        self.size_bytes.div_ceil(DATA_BYTES as u64).max(1) as usize
    }

    /// As [`StoreGeometry::blocks`], if that many are supported.
    fn count(&self) -> Result<u32> {
        let blocks = self.blocks();
        let count = u32::try_from(blocks).ok().filter(|it| *it <= BLOCKS_MAX);
        count.ok_or(Error::Size { blocks })
    }

    fn block_bytes(&self) -> u64 {
        match self.has_code {
            true => BLOCK_BYTES as u64,
            false => DATA_BYTES as u64,
        }
    }
}

/// The number of blocks the device could have, provided that `blocks` fit into its free memory.
fn room(context: &Context, shape: &StoreGeometry, blocks: usize) -> Result<u32> {
    let (free_bytes, total_bytes) = context.memory_info()?;
    let needed_bytes = (blocks as u64).saturating_mul(shape.block_bytes());
    if needed_bytes > free_bytes {
        return Err(Error::Room {
            device: context.device().to_string(),
            size_bytes: shape.size_bytes,
            needed_bytes,
            free_bytes,
            total_bytes,
        });
    }
    Ok(u32::try_from(total_bytes / shape.block_bytes()).unwrap_or(u32::MAX))
}

/// Allocates blocks of a device and reserves addresses for `max_blocks`, up to which it can grow.
fn device(
    context: &Context,
    shape: &StoreGeometry,
    load: KernelLoader<'_>,
    count: usize,
    max_blocks: usize,
) -> Result<DeviceMedium> {
    let kernels = shape.has_code.then(|| load(context)).transpose()?;
    let blocks = Blocks::new(context, count, max_blocks, shape.has_code)?;
    // The software device copies synchronously, and would interpret a kernel step by step.
    let is_quicker = !shape.has_code && !context.device().is_software()?;
    let mover = is_quicker.then(|| Mover::load(context)).transpose()?;
    let device = DeviceMedium::new(Arc::new(blocks), kernels, mover, shape.verify, SLOTS);
    Ok(device.expecting(shape.threads))
}

/// How a store is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The maximum number of inodes.
    pub inodes: u32,
    /// The root's owner.
    pub user: u32,
    /// The root's group.
    pub group: u32,
    /// The root's permissions.
    pub mode: u32,
    /// Whether users other than the mounting one may use it, as far as modes allow.
    pub allow_other: bool,
    /// What the kernel caches.
    pub cache: PageCache,
    /// The number of requests answered concurrently.
    pub threads: usize,
    /// How fast blocks are scrubbed.
    pub scrub: Scrub,
    /// Mount restrictions for all users. Without root they include at least nosuid and nodev.
    pub forbidden: MountRestrictions,
    /// The first lines of [`figures`].
    pub facts: String,
}

/// How fast blocks are scrubbed: verified although no program reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// Not at all.
    Off,
    /// A twentieth of the time.
    Share,
    /// At most this many bytes of data per second.
    Rate(u64),
}

/// A mounted filesystem.
#[derive(Debug)]
pub struct Mount {
    place: MountLocation,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
    scrubber: Option<Scrubber>,
    exports: Arc<Exports>,
}

impl Mount {
    /// Mounts a store, without any files, at an empty directory.
    ///
    /// # Errors
    /// [`Error::Mount`], with what to try.
    pub fn new<M: Medium + 'static>(
        store: Store<M>,
        at: &Path,
        options: &MountOptions,
    ) -> Result<Self> {
        let free = EmptyDirectory::new(at)?;
        let at = free.at.clone();
        let owner = Credentials {
            user: options.user,
            group: options.group,
            umask: 0,
        };
        let store = Arc::new(store);
        let notifier = Arc::new(OnceLock::new());
        let exports = Arc::new(Exports::default());
        let handler = Arc::new(RequestHandler {
            tree: Arc::new(Tree::new(
                options.inodes,
                options.mode & 0o7777,
                owner,
                now(),
            )),
            store: store.clone(),
            cache: options.cache,
            facts: options.facts.clone(),
            notifier: notifier.clone(),
            unforgotten: AtomicU64::new(0),
            forget_waiters: AtomicUsize::new(0),
            threads: options.threads.max(2),
            reads: Meter::default(),
            writes: Meter::default(),
            owner: rustix::process::geteuid().as_raw(),
            exports: exports.clone(),
            listings: Default::default(),
        });
        let mut config = Config::default();
        config.acl = match options.allow_other {
            true => SessionACL::All,
            false => SessionACL::Owner,
        };
        let failed = |error: std::io::Error| {
            let hint = match error.kind() {
                // Neither the system call nor the helper program is permitted.
                ErrorKind::NotFound | ErrorKind::PermissionDenied => HINT_PERMISSION,
                _ => "",
            };
            refused(&at, format!("{error}{hint}"))
        };
        let (session, place) = if is_root() {
            let made = DetachedMount::new(options.allow_other, options.forbidden);
            let (mount, connection) = made.map_err(|error| failed(error.into()))?;
            let acl = config.acl;
            let session =
                Session::from_fd(InitHandshake, connection, acl, config).map_err(failed)?;
            let place = mount.attach(free).map_err(|error| failed(error.into()))?;
            (session, place)
        } else {
            config.mount_options = vec![
                MountOption::FSName(SOURCE.to_owned()),
                MountOption::Subtype(SOURCE.to_owned()),
                MountOption::DefaultPermissions,
            ];
            if options.forbidden.exec {
                config.mount_options.push(MountOption::NoExec);
            }
            let session = Session::new(InitHandshake, &at, &config).map_err(failed)?;
            // If the mount cannot be identified, the session is dropped, which unmounts it.
            let id = id(&at)?;
            let at = at.clone();
            (session, MountLocation { at, id })
        };
        // Unmounts on any error from here on.
        let mut mount = Self {
            scrubber: None,
            threads: Vec::new(),
            place,
            exports,
        };
        // Not set yet: this is the only place that sets it.
        notifier.set(session.notifier()).unwrap_or_default();
        let served = serve(&handler, &session, handler.threads, &mut mount.threads);
        served.map_err(|error| refused(&at, error))?;
        // When fuser 0.18 drops a session, it unmounts whatever is at the path by then, since it
        // takes a closed connection for an open one. So the session is leaked: a descriptor stays
        // open.
        std::mem::forget(session);
        if options.scrub != Scrub::Off {
            let scrubber = Scrubber::new(store, options.scrub);
            mount.scrubber = Some(scrubber.map_err(|error| refused(&at, error))?);
        }
        if options.cache == PageCache::Keep {
            read_ahead(mount.at());
        }
        Ok(mount)
    }

    /// The mount point, without symbolic links.
    pub fn at(&self) -> &Path {
        &self.place.at
    }

    /// A handle that unmounts this mount, and no other.
    pub fn place(&self) -> MountLocation {
        self.place.clone()
    }

    /// Waits until it is unmounted, by any process.
    ///
    /// # Errors
    /// [`Error::Mount`] if requests could not be read any more.
    pub fn wait(mut self) -> Result<()> {
        let ended = |thread: JoinHandle<std::io::Result<()>>| {
            let panicked = |_| Err(std::io::Error::other("a worker thread has panicked"));
            thread.join().unwrap_or_else(panicked)
        };
        // Joins all of them, and returns the first error.
        let all: Vec<_> = self.threads.drain(..).map(ended).collect();
        let answer = all.into_iter().collect::<std::io::Result<()>>();
        match answer {
            // Some workers are notified of the unmount by this error.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {
                match self.place.is_there()? {
                    true => Err(refused(
                        self.at(),
                        "the FUSE connection was aborted\ntry: fercuda vram umount there",
                    )),
                    false => Ok(()),
                }
            }
            answer => answer.map_err(|error| refused(self.at(), error)),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Before the memory is freed.
        drop(self.scrubber.take());
        self.exports.close();
        // Also fine if it is unmounted already.
        let place = &self.place;
        let gone = place.unmount(false).or_else(|_| place.unmount(true));
        if matches!(gone, Ok(true)) {
            for thread in self.threads.drain(..) {
                thread.join().map(drop).unwrap_or_default();
            }
        }
    }
}

/// Sets the kernel's read-ahead to the size of one request. Best effort: only root may set it, and
/// reads are just slower without.
fn read_ahead(at: &Path) {
    if let Ok(it) = at.metadata() {
        let device = it.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let place = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        std::fs::write(place, READ_AHEAD_KIB.to_string()).unwrap_or_default();
    }
}

/// The thread that verifies blocks in turn, for a small part of the time.
#[derive(Debug)]
struct Scrubber {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scrubber {
    fn new<M: Medium + 'static>(store: Arc<Store<M>>, how: Scrub) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let max_blocks = match how {
            // A tenth of a second's worth, but at least one block.
            Scrub::Rate(rate) => rate / 10 / DATA_BYTES as u64,
            _ => u64::from(u32::MAX),
        };
        let max_blocks = u32::try_from(max_blocks).unwrap_or(u32::MAX).max(1);
        let thread = Builder::new().spawn(move || {
            let mut from = 0;
            let mut round = 0;
            loop {
                let begin = Instant::now();
                let rest = match store.scrub(from, SCRUB_SLICE, max_blocks) {
                    // A lost block is counted there, and an error for its readers.
                    Ok(step) => {
                        from = step.next as u32;
                        round += step.verified;
                        let bytes = step.verified * DATA_BYTES as u64;
                        let rest = match how {
                            Scrub::Rate(rate) => {
                                let time =
                                    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
                                time.saturating_sub(begin.elapsed())
                            }
                            _ => begin.elapsed() * SCRUB_REST_FACTOR,
                        };
                        if from == 0 {
                            let rounds = &store.counters().scrub_rounds;
                            rounds.fetch_add(u64::from(round > 0), Relaxed);
                            round = 0;
                            rest.max(SCRUB_ROUND_PAUSE)
                        } else {
                            rest
                        }
                    }
                    Err(_) => {
                        store.counters().scrub_failures.fetch_add(1, Relaxed);
                        SCRUB_ERROR_PAUSE
                    }
                };
                if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::file::tests::memory;
    use crate::place::FUSE;

    #[test]
    fn access_to_lost_data_fails_and_other_files_still_work() {
        assert!(
            Path::new(FUSE).exists() && is_root(),
            "this test mounts, for which it needs {FUSE} and root\ntry: modprobe fuse, or as root"
        );
        let (memory, store) = memory(8);
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions {
            inodes: 100,
            user: 0,
            group: 0,
            mode: 0o755,
            allow_other: false,
            cache: PageCache::None,
            threads: 2,
            scrub: Scrub::Off,
            forbidden: MountRestrictions::default(),
            facts: String::new(),
        };
        let mount = Mount::new(store, dir.path(), &options).unwrap();
        // The process that serves a mount never waits for it: the calls are made by another
        // program.
        let sh = |line: &str| {
            let mut shell = Command::new("sh");
            let done = shell.arg("-c").arg(line).env("AT", mount.at()).output();
            let done = done.unwrap();
            let output = [done.stdout, done.stderr].concat();
            (done.status.success(), String::from_utf8(output).unwrap())
        };
        assert_eq!(sh("echo text > $AT/file"), (true, String::new()));
        memory.fails.store(1, Relaxed);
        for line in ["cat $AT/file", "echo more >> $AT/file", "echo > $AT/new"] {
            let (is_well, output) = sh(line);
            let message = output.to_lowercase();
            assert!(
                !is_well && (message.contains("input/output") || message.contains("i/o")),
                "{output}"
            );
        }
        assert_eq!(sh("ls $AT; mkdir $AT/d"), (true, "file\nnew\n".to_owned()));
        memory.fails.store(0, Relaxed);
        assert_eq!(sh("cat $AT/file"), (true, "text\n".to_owned()));
        let at = mount.at().to_owned();
        drop(mount);
        assert_eq!(mounted(&at).unwrap(), None);
    }
}
