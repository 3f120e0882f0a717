//! Snapshot loader, which verifies the snapshot before it creates files.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use fercuda_vramfs::layout::PAGE_BYTES;
use fercuda_vramfs::tree::METADATA_BYTES_PER_INODE;
use indicatif::ProgressBar;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use tar::{Archive, EntryType};

use super::format::BUFFER_BYTES;
use super::members::{
    PaxRecords, SparseExtents, for_each_member, link_target, may_set, read_sparse_map,
};
use super::verified::{SpaceNeeds, VerifiedSnapshot, verify};
use super::{LoadArgs, require_permission};
use crate::out::{alert, say};
use crate::output::is_stream;
use crate::progress::progress_bar;
use crate::status::ExitStatus;
use crate::terminal::{bytes, count, plain};
use crate::vram::show::MountStats;

/// Attributes that hold access control lists.
const ACL_ATTRIBUTES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
/// Unit in which zeros are left as holes.
const HOLE_UNIT_BYTES: usize = 128 << 10;

pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let what = || format!("cannot load {}", args.file.display());
    MountStats::query(&args.dir).with_context(what)?;
    require_permission(&args.dir).with_context(what)?;
    require_empty(&args.dir).with_context(what)?;
    let file = match is_stream(&args.file) {
        true => spool_stdin().with_context(what)?,
        false => File::open(&args.file).with_context(what)?,
    };
    let is = file.metadata().with_context(what)?;
    if !is.is_file() {
        bail!("{} is not a regular file", args.file.display());
    }
    let verified = verify_visibly(&file, is.len()).with_context(what)?;
    require_space(args, &verified).with_context(what)?;
    let how = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&args.dir, how, Mode::empty()).with_context(what)?;
    let mut loader = SnapshotLoader {
        root,
        is_root: rustix::process::geteuid().is_root(),
        directories: Vec::new(),
        root_attributes: None,
        created: Vec::new(),
        omitted_devices: HashSet::new(),
        warnings: Vec::new(),
        bar: progress_bar("loading", verified.needs.data_bytes, true),
        files: 0,
        data_bytes: 0,
    };
    let was = loader.restrict_access().with_context(what)?;
    // Checked again, as other users could create files until access was restricted.
    let done = require_empty(&args.dir)
        .and_then(|()| require_space(args, &verified))
        .and_then(|()| loader.load_members(&file, verified.end))
        .with_context(what);
    if done.is_err() && was.is_restricted {
        loader.remove_created();
    }
    let opened = match done.is_err() || loader.root_attributes.is_none() {
        true => loader.restore_access(&was).with_context(what),
        false => Ok(()),
    };
    done.and(opened)?;
    loader.bar.finish_and_clear();
    for line in &loader.warnings {
        alert!("{line}");
    }
    say!(
        "{} with {} of data loaded to {}",
        count(loader.files, "file"),
        bytes(loader.data_bytes),
        args.dir.display()
    );
    Ok(ExitStatus::of_findings(!loader.warnings.is_empty()).into())
}

/// Copies standard input to a file without a name, since the whole snapshot is verified first.
fn spool_stdin() -> Result<File> {
    let mut file = tempfile::tempfile().context("cannot create a file in TMPDIR")?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file)
        .context("cannot copy standard input to a file in TMPDIR")?;
    Ok(file)
}

fn require_empty(dir: &Path) -> Result<()> {
    if let Some(entry) = dir.read_dir()?.next() {
        bail!(
            "{} is not empty: it has {}\ntry: a newly mounted filesystem",
            dir.display(),
            entry?.file_name().display()
        );
    }
    Ok(())
}

/// Verifies a snapshot, with a progress bar.
fn verify_visibly(file: &File, len: u64) -> Result<VerifiedSnapshot> {
    let mut bar = None;
    let verified = verify(file, len, &mut |done, all| {
        bar.get_or_insert_with(|| progress_bar("verifying", all, true))
            .set_position(done);
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(verified)
}

fn require_space(args: &LoadArgs, verified: &VerifiedSnapshot) -> Result<()> {
    let figures = MountStats::query(&args.dir)?;
    if let Some(missing) = verified.needs.describe_missing(&figures, &args.dir)? {
        bail!(
            "{} does not fit into {}{missing}",
            args.file.display(),
            args.dir.display()
        );
    }
    Ok(())
}

impl SpaceNeeds {
    /// Describes what does not fit, with what to try; `None` if everything fits.
    fn describe_missing(&self, figures: &MountStats, dir: &Path) -> Result<Option<String>> {
        let less = |needed: u64, name: &str, used: &str| -> Result<(u64, u64)> {
            let free = figures.number(name)?.saturating_sub(figures.number(used)?);
            Ok((free, needed.saturating_sub(free)))
        };
        let (mut what, mut hints) = (String::new(), String::new());
        let needed = self.pages.saturating_mul(PAGE_BYTES as u64);
        let (free, missing) = less(needed, "size_bytes", "used_bytes")?;
        if missing > 0 {
            let (needed, free) = (bytes(needed), bytes(free));
            what += &format!("\nits data need {needed} in pages of 4 KiB, and {free} are free");
            let size = figures.number("offered_bytes")?.saturating_add(missing);
            let size = size.div_ceil(1 << 20);
            let dir = dir.display();
            hints += &format!("\ntry: fercuda vram grow {dir} --size {size}MiB");
        }
        let most = figures.number("inodes")?;
        let (free, missing) = less(self.inodes, "inodes", "used_inodes")?;
        let mut inodes = most + missing;
        if missing > 0 {
            let needed = self.inodes;
            what += &format!("\nits names need {needed} inodes, and {free} are free");
        }
        let (free, missing) = less(self.metadata_bytes, "metadata_bytes", "used_metadata_bytes")?;
        if missing > 0 {
            let needed = self.metadata_bytes;
            what += &format!(
                "\nits names, links and attributes need {needed} metadata bytes, and {free} are free"
            );
            inodes = inodes.max(most + missing.div_ceil(METADATA_BYTES_PER_INODE));
        }
        if inodes > most {
            hints += &format!("\ntry: fercuda vram mount with --inodes {inodes}");
        }
        Ok(Some(what + &hints).filter(|it| !it.is_empty()))
    }
}

/// Attributes that every member has.
struct MemberAttributes {
    mode: u32,
    user: u32,
    group: u32,
    records: PaxRecords,
}

/// State of the root directory before the load.
struct RootState {
    /// Only root and the caller have access now.
    is_restricted: bool,
    user: Uid,
    group: Gid,
    mode: Mode,
    acls: Vec<(&'static str, Vec<u8>)>,
}

struct SnapshotLoader {
    root: OwnedFd,
    is_root: bool,
    /// Directories; their attributes are set after their entries exist.
    directories: Vec<(PathBuf, MemberAttributes)>,
    /// Attributes of the root, which is closed to other users until everything else is done.
    root_attributes: Option<MemberAttributes>,
    /// Created files, and whether each is a directory.
    created: Vec<(PathBuf, bool)>,
    /// Devices that could not be created; the snapshot may have further links to them.
    omitted_devices: HashSet<PathBuf>,
    /// What was omitted, and why.
    warnings: Vec<String>,
    bar: ProgressBar,
    files: usize,
    data_bytes: u64,
}

impl SnapshotLoader {
    /// Restricts access to root and the caller, and removes the root's access control lists. A user
    /// that could rename files could have a later call mistake one file for another, and a default
    /// list would be inherited.
    fn restrict_access(&self) -> Result<RootState> {
        let is = rustix::fs::fstat(&self.root)?;
        let mut was = RootState {
            is_restricted: false,
            user: Uid::from_raw(is.st_uid),
            group: Gid::from_raw(is.st_gid),
            mode: Mode::from_raw_mode(is.st_mode & 0o7777),
            acls: Vec::new(),
        };
        for name in ACL_ATTRIBUTES {
            let mut value = vec![0; 1 << 16];
            if let Ok(len) = rustix::fs::fgetxattr(&self.root, name, &mut value[..]) {
                value.truncate(len);
                was.acls.push((name, value));
            }
        }
        let closed = self.chown_root(Uid::ROOT, was.group).and_then(|()| {
            rustix::fs::fchmod(&self.root, Mode::RWXU)?;
            let mut acls = was.acls.iter();
            acls.try_for_each(|(name, _)| rustix::fs::fremovexattr(&self.root, *name))
        });
        match closed {
            // Owned by another user, that has given the caller access.
            Err(Errno::PERM) if !self.is_root => {}
            Err(error) => {
                self.restore_access(&was)?;
                let error = anyhow::Error::from(error);
                return Err(
                    error.context("cannot restrict access to its directory during the load")
                );
            }
            Ok(()) => was.is_restricted = true,
        }
        Ok(was)
    }

    /// Restores the root's state, unless the snapshot has defined it.
    fn restore_access(&self, was: &RootState) -> Result<()> {
        let opened = self.chown_root(was.user, was.group).and_then(|()| {
            rustix::fs::fchmod(&self.root, was.mode)?;
            let mut acls = was.acls.iter();
            let none = XattrFlags::empty();
            acls.try_for_each(|(name, list)| rustix::fs::fsetxattr(&self.root, *name, list, none))
        });
        match opened {
            Err(Errno::PERM) if !self.is_root => Ok(()),
            opened => opened.context("cannot restore access to its directory"),
        }
    }

    fn chown_root(&self, user: Uid, group: Gid) -> rustix::io::Result<()> {
        match self.is_root {
            true => rustix::fs::fchown(&self.root, Some(user), Some(group)),
            false => Ok(()),
        }
    }

    /// Removes the created files, the last first; reports those that cannot be removed.
    fn remove_created(&mut self) {
        // Modes that were set already may forbid the removal.
        for (name, _) in self
            .created
            .iter()
            .filter(|(_, is_directory)| *is_directory)
        {
            let opened = self.directory(name).and_then(|it| {
                let path = format!("/proc/self/fd/{}", it.as_raw_fd());
                Ok(rustix::fs::chmod(path, Mode::RWXU)?)
            });
            // If this fails, the removal of the entries fails too and is reported.
            opened.unwrap_or_default();
        }
        for (name, is_directory) in std::mem::take(&mut self.created).iter().rev() {
            let how = match is_directory {
                true => AtFlags::REMOVEDIR,
                false => AtFlags::empty(),
            };
            let parent = self.directory(name.parent().unwrap_or(Path::new("")));
            let gone = parent.and_then(|parent| {
                let last = name.file_name().context("it has no name")?;
                Ok(rustix::fs::unlinkat(&parent, last, how)?)
            });
            if let Err(error) = gone {
                alert!("{}: cannot remove it: {error:#}", plain(name));
            }
        }
    }

    fn load_members(&mut self, file: &File, end: u64) -> Result<()> {
        let mut begin = file;
        begin.seek(SeekFrom::Start(0))?;
        let mut archive = Archive::new(BufReader::with_capacity(BUFFER_BYTES, file));
        for_each_member(archive.entries()?.raw(true), end, |entry, name, records| {
            self.load_member(entry, name, records)
        })?;
        // The deepest first, as setting attributes of entries changes the times of their directory.
        for (name, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            let parent = self.directory(name.parent().unwrap_or(Path::new("")))?;
            let last = name.file_name().context("it has no name")?;
            let set = open_created(&parent, last.as_ref())
                .and_then(|it| self.set_attributes(&it, name, attributes, false));
            set.with_context(|| format!("its member {}", name.display()))?;
        }
        if let Some(attributes) = self.root_attributes.take() {
            let root = self.root.try_clone()?;
            let set = self.set_attributes(&root, Path::new("."), &attributes, false);
            set.context("its directory")?;
            self.root_attributes = Some(attributes);
        }
        Ok(())
    }

    /// Opens a directory below the root without following symbolic links.
    fn directory(&self, name: &Path) -> Result<OwnedFd> {
        let name = match name == Path::new("") {
            true => Path::new("."),
            false => name,
        };
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = rustix::fs::openat2(&self.root, name, how, Mode::empty(), within);
        opened.with_context(|| format!("the directory {}", name.display()))
    }

    fn load_member(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        name: &Path,
        records: PaxRecords,
    ) -> Result<()> {
        let is_plain =
            |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !name.components().all(is_plain) {
            bail!("its name points outside the snapshot");
        }
        let header = entry.header().clone();
        let number = |value: u64| u32::try_from(value).context("its owner is out of range");
        let attributes = MemberAttributes {
            mode: header.mode()? & 0o7777,
            user: number(header.uid()?)?,
            group: number(header.gid()?)?,
            records,
        };
        let kind = header.entry_type();
        let Some(last) = name.file_name().map(Path::new) else {
            if kind != EntryType::Directory {
                bail!("it has no name");
            }
            self.root_attributes = Some(attributes);
            return Ok(());
        };
        let parent = self.directory(name.parent().unwrap_or(Path::new("")))?;
        let leads = link_target(entry, &attributes.records);
        let target = || {
            let target = leads.as_deref().context("its link has no target")?;
            Ok::<_, anyhow::Error>(Path::new(std::ffi::OsStr::from_bytes(target)))
        };
        // Inaccessible to other users until owner and mode are set.
        let first = Mode::RUSR | Mode::WUSR;
        let made = match kind {
            EntryType::Directory => {
                let first = first | Mode::XUSR;
                rustix::fs::mkdirat(&parent, last, first)?;
                self.created.push((name.to_owned(), true));
                self.directories.push((name.to_owned(), attributes));
                return Ok(());
            }
            EntryType::Link => {
                let target = target()?;
                if self.omitted_devices.contains(target) {
                    self.omit_device(name);
                    return Ok(());
                }
                let from = self.directory(target.parent().unwrap_or(Path::new("")))?;
                let of = target.file_name().context("its link has no target")?;
                rustix::fs::linkat(&from, of, &parent, last, AtFlags::empty())?;
                self.created.push((name.to_owned(), false));
                return Ok(());
            }
            EntryType::Symlink => {
                rustix::fs::symlinkat(target()?, &parent, last)?;
                self.created.push((name.to_owned(), false));
                open_created(&parent, last)?
            }
            EntryType::Fifo | EntryType::Char | EntryType::Block => {
                let device = match kind {
                    EntryType::Fifo => 0,
                    _ => {
                        let (major, minor) = (header.device_major()?, header.device_minor()?);
                        rustix::fs::makedev(major.unwrap_or(0), minor.unwrap_or(0))
                    }
                };
                let kind = match kind {
                    EntryType::Fifo => FileType::Fifo,
                    EntryType::Char => FileType::CharacterDevice,
                    _ => FileType::BlockDevice,
                };
                match rustix::fs::mknodat(&parent, last, kind, first, device) {
                    // Root in a user namespace may not either.
                    Err(Errno::PERM) if kind != FileType::Fifo => {
                        self.omit_device(name);
                        return Ok(());
                    }
                    done => done?,
                }
                self.created.push((name.to_owned(), false));
                open_created(&parent, last)?
            }
            EntryType::Regular => {
                let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&parent, last, how | OFlags::NOFOLLOW, first)?;
                let file = File::from(file);
                self.created.push((name.to_owned(), false));
                self.write_data(entry, &file, &attributes.records)?;
                file.into()
            }
            other => bail!("its type is not one that save writes: {other:?}"),
        };
        self.files += 1;
        self.set_attributes(&made, name, &attributes, kind == EntryType::Symlink)
    }

    fn omit_device(&mut self, name: &Path) {
        let why = "a device, which only root may create, omitted";
        self.warnings.push(format!("{}: {why}", plain(name)));
        self.omitted_devices.insert(name.to_owned());
    }

    /// Writes a file's data at their offsets.
    fn write_data(
        &mut self,
        entry: &mut impl Read,
        file: &File,
        records: &PaxRecords,
    ) -> Result<()> {
        let mut part = vec![0; BUFFER_BYTES];
        // Reads of whole buffers bypass this one.
        let mut source = BufReader::new(entry);
        let Some(SparseExtents { size, extents }) = read_sparse_map(&mut source, records)? else {
            let end = self.write_extent(&mut source, file, 0, u64::MAX, &mut part)?;
            file.set_len(end)?;
            return Ok(());
        };
        file.set_len(size)?;
        for (at, len) in extents {
            let end = self.write_extent(&mut source, file, at, len, &mut part)?;
            if end != at + len {
                bail!("it has less data than its map lists");
            }
        }
        Ok(())
    }

    /// Writes up to `len` bytes at `begin`, leaving holes for zeros; returns where they end.
    fn write_extent(
        &mut self,
        entry: &mut impl Read,
        file: &File,
        begin: u64,
        len: u64,
        part: &mut [u8],
    ) -> Result<u64> {
        let mut at = begin;
        let mut source = entry.take(len);
        loop {
            let mut got = 0;
            while got < part.len() {
                match source.read(&mut part[got..])? {
                    0 => break,
                    more => got += more,
                }
            }
            if got == 0 {
                return Ok(at);
            }
            for (place, bytes) in part[..got].chunks(HOLE_UNIT_BYTES).enumerate() {
                if bytes.iter().any(|byte| *byte != 0) {
                    file.write_all_at(bytes, at + (place * HOLE_UNIT_BYTES) as u64)?;
                }
            }
            at += got as u64;
            self.data_bytes += got as u64;
            self.bar.inc(got as u64);
        }
    }

    /// Sets owner, attributes, mode and times, in an order in which none undoes another.
    fn set_attributes(
        &mut self,
        made: &OwnedFd,
        name: &Path,
        it: &MemberAttributes,
        is_link: bool,
    ) -> Result<()> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", made.as_raw_fd()));
        if self.is_root {
            let (user, group) = (Uid::from_raw(it.user), Gid::from_raw(it.group));
            rustix::fs::chownat(made, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        }
        // The mode may revoke the right to set attributes; access control lists determine the mode.
        let (acls, others): (Vec<_>, Vec<_>) = it
            .records
            .values()
            .partition(|(key, _)| key.starts_with("system."));
        for (key, value) in others {
            if may_set(key) {
                set_value(&path, key, value)?;
                continue;
            }
            let (name, key) = (plain(name), plain(Path::new(key)));
            let why = format!("{name}: attribute {key} omitted, as only root may set it");
            self.warnings.push(why);
        }
        if !is_link {
            rustix::fs::chmod(&path, Mode::from_raw_mode(it.mode))?;
        }
        for (key, value) in acls {
            set_value(&path, key, value)?;
        }
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: it.records.time("atime").unwrap_or(none),
            last_modification: it.records.time("mtime").unwrap_or(none),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
        Ok(())
    }
}

/// Opens a just created file in a directory in which no other user can rename files.
fn open_created(parent: &OwnedFd, name: &Path) -> Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, how, Mode::empty())?)
}

fn set_value(path: &Path, key: &str, value: &[u8]) -> Result<()> {
    let set = rustix::fs::setxattr(path, key, value, XattrFlags::empty());
    set.with_context(|| format!("attribute {key}"))
}
