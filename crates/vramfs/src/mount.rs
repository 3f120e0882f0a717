//! A filesystem that is mounted, for as long as that is.
//!
//! A mount has threads that read requests, each from a descriptor of its own, and answer them (`fuse`); one more looks at
//! blocks that nobody reads, if that was asked for.
//!
//! Invariant: when a mount is dropped, nothing is mounted by it any more, or it vanishes with the last who uses it.
//! Elsewhere: what is answered (`fuse`), where it is mounted (`place`), the memory (`medium`).

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

use crate::array::{Array, Spread};
use crate::blocks::Blocks;
use crate::engine::{Kernels, Mover};
use crate::error::{Error, Result};
use crate::export::Exports;
pub use crate::fuse::Cache;
use crate::fuse::{Requests, SLOTS, Terms, now, serve};
use crate::layout::{BLOCK_BYTES, DATA_BYTES};
use crate::medium::{Device, Medium, Verify};
use crate::meter::Meter;
use crate::place::{Detached, Free, HINT_PERMISSION, SOURCE, id, is_root, refused};
pub use crate::place::{Forbidden, Mounted, Place, all, figures, is_anywhere, mounted, unmount};
use crate::space::BLOCKS_MAX;
use crate::store::Store;
use crate::tree::{Caller, Tree};

/// How long the scrubber looks at blocks at a time. Then it rests so many times as long, if no rate is given.
const SCRUBBER_LOOKS: Duration = Duration::from_millis(2);
const SCRUBBER_RESTS: u32 = 19;
/// Between two rounds; and after an error, by which the device may have failed.
const SCRUBBER_WAITS: Duration = Duration::from_secs(1);
const SCRUBBER_WAITS_LONG: Duration = Duration::from_secs(10);
/// Read ahead of who reads a file from its begin, where pages are kept.
const READ_AHEAD_KIB: u32 = 1024;

/// How much memory, and how it is kept right.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes for data.
    pub size_bytes: u64,
    /// With the code; else data alone.
    pub has_code: bool,
    /// When rows are compared with their sums.
    pub verify: Verify,
    /// Requests that are answered at a time.
    pub threads: usize,
}

/// How a context comes by the code's kernels, where they are needed: [`Kernels::load`], or from elsewhere.
pub type Load<'a> = &'a dyn Fn(&Context) -> Result<Kernels>;

/// A store in a device's memory.
///
/// # Errors
/// [`Error::Room`] for more than the device has; those of the driver and of loading the code's kernels.
pub fn store(context: &Context, shape: &Shape, load: Load<'_>) -> Result<Store<Device>> {
    let most = room(context, shape, shape.blocks())?;
    let count = shape.count()?;
    let most = most.clamp(count, BLOCKS_MAX);
    let device = device(context, shape, load, count as usize, most as usize)?;
    Ok(Store::new(device, count, most, shape.threads))
}

/// A store in several devices' memory. Each has its share of the blocks, and room for what the one has that has least; they need not be
/// of one kind.
///
/// # Errors
/// As [`store`], for each.
///
/// # Panics
/// As [`Array::new`].
pub fn array(
    contexts: &[Context],
    spread: Spread,
    shape: &Shape,
    load: Load<'_>,
) -> Result<Store<Array<Device>>> {
    let all = contexts.len();
    let mut most = u32::MAX;
    for (at, context) in contexts.iter().enumerate() {
        let blocks = spread.share(shape.blocks(), all, at);
        most = most.min(room(context, shape, blocks)?);
    }
    let count = shape.count()?;
    let share = |blocks: u32, at| spread.share(blocks as usize, all, at);
    if spread == Spread::Stripe {
        most = most.saturating_mul(u32::try_from(all).unwrap_or(u32::MAX));
    }
    let most = most.clamp(count, BLOCKS_MAX);
    let one = |(at, context): (usize, &Context)| {
        let made = device(context, shape, load, share(count, at), share(most, at))?;
        Ok((context.device().ordinal(), made))
    };
    let devices = contexts.iter().enumerate().map(one);
    let array = Array::new(devices.collect::<Result<_>>()?, spread, count as usize);
    Ok(Store::new(array, count, most, shape.threads))
}

impl Shape {
    fn blocks(&self) -> usize {
        self.size_bytes.div_ceil(DATA_BYTES as u64).max(1) as usize
    }

    /// As [`Shape::blocks`], if there can be as many.
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

/// How many blocks the device could have, if so many have room now.
fn room(context: &Context, shape: &Shape, blocks: usize) -> Result<u32> {
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

/// Blocks of a device, with addresses for `most`, by which it can grow.
fn device(
    context: &Context,
    shape: &Shape,
    load: Load<'_>,
    count: usize,
    most: usize,
) -> Result<Device> {
    let kernels = shape.has_code.then(|| load(context)).transpose()?;
    let blocks = Blocks::new(context, count, most, shape.has_code)?;
    // The software device copies at once, and would run a kernel step by step.
    let is_quicker = !shape.has_code && !context.device().is_software()?;
    let mover = is_quicker.then(|| Mover::load(context)).transpose()?;
    let device = Device::new(Arc::new(blocks), kernels, mover, shape.verify, SLOTS);
    Ok(device.expecting(shape.threads))
}

/// How it is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many inodes there can be.
    pub inodes: u32,
    /// The root's owner.
    pub user: u32,
    /// The root's group.
    pub group: u32,
    /// The root's permissions.
    pub mode: u32,
    /// Whether others than who mounts may use it, as far as modes let them.
    pub allow_other: bool,
    /// What the kernel keeps.
    pub cache: Cache,
    /// Requests that are answered at a time.
    pub threads: usize,
    /// How fast blocks are looked at that nobody reads.
    pub scrub: Scrub,
    /// What nobody may do there. Who is not root cannot have it less than with suid and dev.
    pub forbidden: Forbidden,
    /// What [`figures`] begins with, whole lines.
    pub facts: String,
}

/// How fast blocks are looked at that nobody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// Not at all.
    Off,
    /// A twentieth of the time.
    Share,
    /// So many bytes of data in a second at most.
    Rate(u64),
}

/// A filesystem that is mounted.
#[derive(Debug)]
pub struct Mount {
    place: Place,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
    scrubber: Option<Scrubber>,
    exports: Arc<Exports>,
}

impl Mount {
    /// Mounts a store, without any files, at an empty directory.
    ///
    /// # Errors
    /// [`Error::Mount`], with what to try.
    pub fn new<M: Medium + 'static>(store: Store<M>, at: &Path, options: &Options) -> Result<Self> {
        let free = Free::new(at)?;
        let at = free.at.clone();
        let owner = Caller {
            user: options.user,
            group: options.group,
            umask: 0,
        };
        let store = Arc::new(store);
        let notifier = Arc::new(OnceLock::new());
        let exports = Arc::new(Exports::default());
        let requests = Arc::new(Requests {
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
            held: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
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
                // Neither the call nor a program that may make it.
                ErrorKind::NotFound | ErrorKind::PermissionDenied => HINT_PERMISSION,
                _ => "",
            };
            refused(&at, format!("{error}{hint}"))
        };
        let (session, place) = if is_root() {
            let made = Detached::new(options.allow_other, options.forbidden);
            let (mount, connection) = made.map_err(|error| failed(error.into()))?;
            let acl = config.acl;
            let session = Session::from_fd(Terms, connection, acl, config).map_err(failed)?;
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
            let session = Session::new(Terms, &at, &config).map_err(failed)?;
            // If it cannot be told from others the session goes, and what it has mounted with it.
            let id = id(&at)?;
            let at = at.clone();
            (session, Place { at, id })
        };
        // From here on what fails unmounts it.
        let mut mount = Self {
            scrubber: None,
            threads: Vec::new(),
            place,
            exports,
        };
        // There is none yet: this is the only place that sets it.
        notifier.set(session.notifier()).unwrap_or_default();
        let served = serve(&requests, &session, requests.threads, &mut mount.threads);
        served.map_err(|error| refused(&at, error))?;
        // What fuser 0.18 does as one goes is to unmount whatever is at the path by then, since it takes a connection
        // that has ended for one that has not. So it does not go: a descriptor stays open.
        std::mem::forget(session);
        if options.scrub != Scrub::Off {
            let scrubber = Scrubber::new(store, options.scrub);
            mount.scrubber = Some(scrubber.map_err(|error| refused(&at, error))?);
        }
        if options.cache == Cache::Keep {
            read_ahead(mount.at());
        }
        Ok(mount)
    }

    /// Where it is, without symbolic links.
    pub fn at(&self) -> &Path {
        &self.place.at
    }

    /// What takes this mount away, and no other.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// Until it is unmounted, by whomever.
    ///
    /// # Errors
    /// [`Error::Mount`] if requests could not be read any more.
    pub fn wait(mut self) -> Result<()> {
        let ended = |thread: JoinHandle<std::io::Result<()>>| {
            let panicked = |_| Err(std::io::Error::other("what answers has panicked"));
            thread.join().unwrap_or_else(panicked)
        };
        // All of them, and what the first says that fails.
        let all: Vec<_> = self.threads.drain(..).map(ended).collect();
        let answer = all.into_iter().collect::<std::io::Result<()>>();
        match answer {
            // So the kernel tells some of the threads that it is over.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {
                match self.place.is_there()? {
                    true => Err(refused(
                        self.at(),
                        "somebody has cut the kernel's connection\ntry: fercuda vram umount there",
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
        // Before the memory goes.
        drop(self.scrubber.take());
        self.exports.end();
        // It may be unmounted already, and that is as good.
        let place = &self.place;
        let gone = place.unmount(false).or_else(|_| place.unmount(true));
        if matches!(gone, Ok(true)) {
            for thread in self.threads.drain(..) {
                thread.join().map(drop).unwrap_or_default();
            }
        }
    }
}

/// Has the kernel read ahead as far as one request goes. Without it reading is slower, no more: only root may ask.
fn read_ahead(at: &Path) {
    if let Ok(it) = at.metadata() {
        let device = it.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let place = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        std::fs::write(place, READ_AHEAD_KIB.to_string()).unwrap_or_default();
    }
}

/// Looks at blocks in turn, a small part of the time.
#[derive(Debug)]
struct Scrubber {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scrubber {
    fn new<M: Medium + 'static>(store: Arc<Store<M>>, how: Scrub) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let most = match how {
            // A tenth of a second's, or one.
            Scrub::Rate(rate) => rate / 10 / DATA_BYTES as u64,
            _ => u64::from(u32::MAX),
        };
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        let thread = Builder::new().spawn(move || {
            let mut from = 0;
            let mut round = 0;
            loop {
                let begin = Instant::now();
                let rest = match store.scrub(from, SCRUBBER_LOOKS, most) {
                    // What is lost is counted there, and told to who reads it.
                    Ok(step) => {
                        from = step.next as u32;
                        round += step.looked;
                        let bytes = step.looked * DATA_BYTES as u64;
                        let rest = match how {
                            Scrub::Rate(rate) => {
                                let time =
                                    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
                                time.saturating_sub(begin.elapsed())
                            }
                            _ => begin.elapsed() * SCRUBBER_RESTS,
                        };
                        if from == 0 {
                            let rounds = &store.counters().scrub_rounds;
                            rounds.fetch_add(u64::from(round > 0), Relaxed);
                            round = 0;
                            rest.max(SCRUBBER_WAITS)
                        } else {
                            rest
                        }
                    }
                    Err(_) => {
                        store.counters().scrub_failures.fetch_add(1, Relaxed);
                        SCRUBBER_WAITS_LONG
                    }
                };
                if ended.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        drop(self.end.take());
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
    fn who_reads_or_writes_what_is_lost_gets_an_error_and_all_else_goes_on() {
        assert!(
            Path::new(FUSE).exists() && is_root(),
            "this test mounts, for which it needs {FUSE} and root\ntry: modprobe fuse, or as root"
        );
        let (memory, store) = memory(8);
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            inodes: 100,
            user: 0,
            group: 0,
            mode: 0o755,
            allow_other: false,
            cache: Cache::None,
            threads: 2,
            scrub: Scrub::Off,
            forbidden: Forbidden::default(),
            facts: String::new(),
        };
        let mount = Mount::new(store, dir.path(), &options).unwrap();
        // Whoever serves a mount never waits for it: another program makes the calls.
        let sh = |line: &str| {
            let mut shell = Command::new("sh");
            let done = shell.arg("-c").arg(line).env("AT", mount.at()).output();
            let done = done.unwrap();
            let said = [done.stdout, done.stderr].concat();
            (done.status.success(), String::from_utf8(said).unwrap())
        };
        assert_eq!(sh("echo text > $AT/file"), (true, String::new()));
        memory.fails.store(1, Relaxed);
        for line in ["cat $AT/file", "echo more >> $AT/file", "echo > $AT/new"] {
            let (is_well, said) = sh(line);
            let told = said.to_lowercase();
            assert!(
                !is_well && (told.contains("input/output") || told.contains("i/o")),
                "{said}"
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
