//! Where a filesystem is mounted, and for how long.
//!
//! A mount has threads that read requests, each from a descriptor of its own, and answer them (`fuse`); one more looks at
//! blocks that nobody reads, if that was asked for.
//!
//! Invariants: nothing is mounted over something else; when a mount is dropped, nothing is mounted by it any more, or it
//! vanishes with the last who uses it; what somebody else has mounted there since stays.
//! Elsewhere: what is answered (`fuse`), the memory (`medium`).

use std::ffi::OsString;
use std::fmt::Display;
use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use fercuda_cuda::Context;
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::blocks::Blocks;
use crate::engine::Kernels;
use crate::error::{Error, Result};
pub use crate::fuse::Cache;
use crate::fuse::{FIGURES, Requests, SLOTS, now};
use crate::layout::{BLOCK_BYTES, DATA_BYTES};
use crate::medium::{Device, Medium, Verify};
use crate::store::Store;
use crate::tree::{Caller, Tree};

/// What is said to be mounted.
const SOURCE: &str = "vramfs";
/// Where the kernel gives requests out.
const FUSE: &str = "/dev/fuse";
/// Programs that mount for who may not.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Of the time that it looks at blocks, it rests so many times as long.
const SCRUBBER_RESTS: u32 = 19;
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

/// A store in a device's memory.
///
/// # Errors
/// [`Error::Room`] for more than the device has; those of the driver and of compiling the code's kernels.
pub fn store(context: &Context, shape: &Shape) -> Result<Store<Device>> {
    let block_bytes = match shape.has_code {
        true => BLOCK_BYTES,
        false => DATA_BYTES,
    } as u64;
    let blocks = shape.size_bytes.div_ceil(DATA_BYTES as u64).max(1);
    let (free_bytes, total_bytes) = context.memory_info()?;
    let needed_bytes = blocks.saturating_mul(block_bytes);
    if needed_bytes > free_bytes {
        return Err(Error::Room {
            device: context.device().to_string(),
            size_bytes: shape.size_bytes,
            needed_bytes,
            free_bytes,
            total_bytes,
        });
    }
    let count = u32::try_from(blocks).map_err(|_| Error::Size {
        blocks: blocks as usize,
    })?;
    let kernels = shape.has_code.then(|| Kernels::load(context)).transpose()?;
    let blocks = Blocks::new(context, count as usize, count as usize, shape.has_code)?;
    let device = Device::new(Arc::new(blocks), kernels, shape.verify, SLOTS);
    // One more for the scrubber.
    Ok(Store::new(device, count, count, shape.threads + 1))
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
    /// Whether blocks are looked at that nobody reads.
    pub scrubs: bool,
    /// What [`figures`] begins with, whole lines.
    pub facts: String,
}

/// A filesystem that is mounted.
#[derive(Debug)]
pub struct Mount {
    place: Place,
    session: Option<JoinHandle<std::io::Result<()>>>,
    scrubber: Option<Scrubber>,
}

impl Mount {
    /// Mounts a store, without any files, at an empty directory.
    ///
    /// # Errors
    /// [`Error::Mount`], with what to try.
    pub fn new<M: Medium + 'static>(store: Store<M>, at: &Path, options: &Options) -> Result<Self> {
        let at = free_place(at)?;
        let owner = Caller {
            user: options.user,
            group: options.group,
            umask: 0,
        };
        let store = Arc::new(store);
        let notifier = Arc::new(OnceLock::new());
        let requests = Requests {
            tree: Tree::new(options.inodes, options.mode & 0o7777, owner, now()),
            store: store.clone(),
            cache: options.cache,
            facts: options.facts.clone(),
            notifier: notifier.clone(),
            held: AtomicU64::new(0),
        };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(SOURCE.to_owned()),
            MountOption::DefaultPermissions,
        ];
        if is_root() {
            config
                .mount_options
                .extend([MountOption::Dev, MountOption::Suid]);
        }
        config.acl = match options.allow_other {
            true => SessionACL::All,
            false => SessionACL::Owner,
        };
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = true;
        let failed = |error: std::io::Error| {
            let hint = match error.kind() {
                // Neither the call nor a program that may make it.
                ErrorKind::NotFound | ErrorKind::PermissionDenied => HINT_PERMISSION,
                _ => "",
            };
            refused(&at, format!("{error}{hint}"))
        };
        let session = Session::new(requests, &at, &config).map_err(failed)?;
        // If it cannot be told from others the session goes, and what it has mounted with it.
        let id = id(&at)?;
        let none = Builder::new().spawn(|| Ok(())).map_err(failed)?;
        let session = session.spawn().map_err(failed)?;
        // What fuser 0.18 does as one goes is to unmount whatever is at the path by then, since it takes a connection
        // that has ended for one that has not. So it does not go: a descriptor stays open.
        let mut session = ManuallyDrop::new(session);
        let thread = std::mem::replace(&mut session.guard, none);
        // There is one: this is the only place that sets it.
        notifier.set(session.notifier()).unwrap_or_default();
        let mount = Self {
            scrubber: options.scrubs.then(|| Scrubber::new(store)),
            session: Some(thread),
            place: Place { at, id },
        };
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
        let answer = match self.session.take() {
            Some(session) => {
                let ended = session.join();
                ended.unwrap_or_else(|_| Err(std::io::Error::other("what answers has panicked")))
            }
            None => Ok(()),
        };
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
        if let Some(session) = self.session.take() {
            // It may be unmounted already, and that is as good.
            let place = &self.place;
            let gone = place.unmount(false).or_else(|_| place.unmount(true));
            if matches!(gone, Ok(true)) {
                session.join().map(drop).unwrap_or_default();
            }
        }
    }
}

/// A mount among all that are or were at a path: its number, which no other has from Linux 6.8 on, and its device's, which
/// no other has while somebody uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    mount: u64,
    device: (u32, u32),
}

/// What is on top at a path. Whatever is mounted there is not asked, so that it may be one that answers no more.
fn id(at: &Path) -> Result<Id> {
    // STATX_MNT_ID_UNIQUE; an older kernel passes it over.
    let unique = StatxFlags::from_bits_retain(0x4000);
    let how = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let known = statx(CWD, at, how, StatxFlags::MNT_ID | unique);
    let known = known.map_err(|error| refused(at, error))?;
    Ok(Id {
        mount: known.stx_mnt_id,
        device: (known.stx_dev_major, known.stx_dev_minor),
    })
}

/// Where a mount is, and which of those that were there it is.
#[derive(Clone, Debug)]
pub struct Place {
    at: PathBuf,
    id: Id,
}

impl Place {
    fn is_there(&self) -> Result<bool> {
        Ok(id(&self.at)? == self.id)
    }

    /// As [`unmount`], this mount alone: whether it was there. It was not if somebody has unmounted it, or mounted
    /// something over it.
    ///
    /// # Errors
    /// As [`unmount`].
    pub fn unmount(&self, lazily: bool) -> Result<bool> {
        match self.is_there()? {
            true => unmount(&self.at, lazily).map(|()| true),
            false => Ok(false),
        }
    }
}

const HINT_PERMISSION: &str =
    "\ntry: as root, or with fusermount3 (of the package fuse3) installed";

fn refused(at: &Path, why: impl Display) -> Error {
    Error::Mount {
        at: at.to_owned(),
        why: why.to_string(),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Takes what is mounted there away. If it is in use, only `lazily`: then it vanishes at once, and ends when the last
/// who uses it is done.
///
/// # Errors
/// [`Error::Mount`]: nothing is mounted there, it is in use, or the caller may not.
pub fn unmount(at: &Path, lazily: bool) -> Result<()> {
    let flags = match lazily {
        true => UnmountFlags::DETACH,
        false => UnmountFlags::empty(),
    };
    match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(refused(
            at,
            "it is in use\ntry: again when nobody has a file or a working directory there, or --lazy",
        )),
        Err(Errno::INVAL) => Err(refused(at, "nothing is mounted there")),
        Err(Errno::PERM) if !is_root() => helped(at, lazily),
        Err(error) => Err(refused(at, error)),
    }
}

fn helped(at: &Path, lazily: bool) -> Result<()> {
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg("-u").args(lazily.then_some("-z"));
        match command.arg("--").arg(at).output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                return Err(refused(at, format!("{helper} says: {said}")));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(refused(at, format!("{helper}: {error}"))),
        }
    }
    Err(refused(
        at,
        format!("it is somebody else's to unmount{HINT_PERMISSION}"),
    ))
}

/// A directory without anything in it or over it.
fn free_place(at: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => refused(
            at,
            "what is mounted there has no daemon any more\ntry: fercuda vram umount there first",
        ),
        _ => refused(at, error),
    };
    let place = at.canonicalize().map_err(failed)?;
    if !place.metadata().map_err(failed)?.is_dir() {
        return Err(refused(at, "it is no directory"));
    }
    if let Some(it) = mounted(&place)? {
        let why = format!(
            "{} is mounted there already, of type {}\ntry: another directory, or fercuda vram umount there first",
            it.source, it.kind
        );
        return Err(refused(at, why));
    }
    let mut entries = place.read_dir().map_err(failed)?;
    if let Some(entry) = entries.next() {
        let name = entry.map_err(failed)?.file_name();
        let why = format!(
            "it has entries, as {}, which would be hidden\ntry: an empty directory",
            name.display()
        );
        return Err(refused(at, why));
    }
    if !Path::new(FUSE).exists() {
        let why = format!("the kernel has no FUSE: there is no {FUSE}\ntry: modprobe fuse");
        return Err(refused(at, why));
    }
    Ok(place)
}

/// What is mounted somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub at: PathBuf,
    /// Its type.
    pub kind: String,
    /// What is said to be mounted: a device, or just a word.
    pub source: String,
}

impl Mounted {
    /// Whether it is such a filesystem.
    pub fn is_ours(&self) -> bool {
        self.kind.starts_with("fuse") && self.source == SOURCE
    }
}

fn table() -> Result<Vec<Mounted>> {
    const TABLE: &str = "/proc/self/mountinfo";
    let text = std::fs::read(TABLE).map_err(|error| refused(Path::new(TABLE), error))?;
    let of_line = |line: &[u8]| {
        // The place is the fifth field; behind a lone dash come type and source.
        let mut fields = line.split(|byte| *byte == b' ').map(unescaped);
        let at = PathBuf::from(OsString::from_vec(fields.nth(4)?));
        let mut fields = fields.skip_while(|field| field != b"-").skip(1);
        let mut text = || Some(String::from_utf8_lossy(&fields.next()?).into_owned());
        Some(Mounted {
            at,
            kind: text()?,
            source: text()?,
        })
    };
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(of_line).collect())
}

/// What is mounted at a place, if anything is: the last, which is on top.
///
/// # Errors
/// [`Error::Mount`] if the kernel does not say.
pub fn mounted(at: &Path) -> Result<Option<Mounted>> {
    Ok(table()?.into_iter().rfind(|it| it.at == at))
}

/// Where such filesystems are mounted.
///
/// # Errors
/// [`Error::Mount`] if the kernel does not say.
pub fn all() -> Result<Vec<PathBuf>> {
    let ours = table()?.into_iter().filter(Mounted::is_ours);
    Ok(ours.map(|it| it.at).collect())
}

/// Spaces and the like are there as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| byte == b'\\');
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(byte));
        rest = match value {
            Some(_) => &behind[3..],
            None => behind,
        };
    }
    bytes
}

/// What the filesystem that is mounted there says of itself: names and values, a line each.
///
/// # Errors
/// [`Error::Mount`] if it is none of ours.
pub fn figures(at: &Path) -> Result<String> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(at, FIGURES, &mut value[..]);
    let len = len.map_err(|error| match error {
        Errno::NOTCONN => refused(
            at,
            "its daemon has ended, and what it held is gone\ntry: fercuda vram umount there",
        ),
        Errno::NOENT | Errno::ACCESS => refused(at, error),
        _ => refused(
            at,
            "it is not where such a filesystem is mounted\ntry: the directory that was given to fercuda vram mount",
        ),
    })?;
    value.truncate(len);
    String::from_utf8(value).map_err(|_| refused(at, "its figures are no text"))
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
    fn new<M: Medium + 'static>(store: Arc<Store<M>>) -> Self {
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            for block in (0..store.blocks()).cycle() {
                let begin = Instant::now();
                // What is lost is counted there, and told to who reads it.
                let rest = match store.scrub(block) {
                    Ok(_) | Err(Error::Lost { .. }) => begin.elapsed() * SCRUBBER_RESTS,
                    // The device is of no use.
                    Err(_) => return,
                };
                let rest = rest.max(Duration::from_micros(100));
                if ended.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Self {
            end: Some(end),
            thread: Some(thread),
        }
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
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::file::tests::memory;

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
            scrubs: false,
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

    #[test]
    fn places_with_spaces_are_found_among_mounts() {
        assert_eq!(unescaped(br"/a\040b\134c\x"), br"/a b\c\x");
        assert_eq!(unescaped(b"\\04"), b"\\04");
        assert!(mounted(Path::new("/proc")).unwrap().is_some());
        assert_eq!(mounted(Path::new("/proc/self")).unwrap(), None);
    }
}
