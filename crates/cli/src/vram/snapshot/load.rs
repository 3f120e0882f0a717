//! Snapshot loader, which verifies the snapshot before it creates files.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_vramfs::layout::PAGE_BYTES;
use fercuda_vramfs::tree::{TEXT_COST, TEXT_MAX_OF_INODE};
use indicatif::ProgressBar;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tar::{Archive, EntryType};

use super::{
    BUFFER_BYTES, LoadArgs, MANIFEST, MANIFEST_HEADER, SPARSE_MAJOR, SPARSE_NAME, SPARSE_SIZE,
    XATTR_PREFIX, hex, require_permission, sha256_hex,
};
use crate::out::{note, say};
use crate::terminal::{bytes, count, plain};
use crate::vram::show::MountStats;
use crate::vram::tools::progress_bar;

/// Maximum size of a member's records; a saved member has at most 1 MiB of attributes.
const RECORDS_MAX_BYTES: u64 = 64 << 20;
/// Maximum digits of a number.
const MAX_DIGITS: u64 = 20;
/// Attributes that hold access control lists.
const ACL_ATTRIBUTES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
/// Unit in which zeros are left as holes.
const HOLE_UNIT_BYTES: usize = 128 << 10;

pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let what = || format!("cannot load {}", args.file.display());
    MountStats::query(&args.dir).with_context(what)?;
    require_permission(&args.dir).with_context(what)?;
    require_empty(&args.dir).with_context(what)?;
    let file = File::open(&args.file).with_context(what)?;
    let is = file.metadata().with_context(what)?;
    if !is.is_file() {
        bail!("{} is not a regular file", args.file.display());
    }
    let verified = verify(&file, is.len()).with_context(what)?;
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
        note!("{line}");
    }
    say!(
        "{} with {} of data loaded to {}",
        count(loader.files, "file"),
        bytes(loader.data_bytes),
        args.dir.display()
    );
    Ok(ExitCode::from(u8::from(!loader.warnings.is_empty())))
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

/// Result of verifying a snapshot.
struct VerifiedSnapshot {
    /// Offset of the manifest.
    end: u64,
    needs: SpaceNeeds,
}

/// Upper bound of the space that its members take: zeros may take no pages.
#[derive(Default)]
struct SpaceNeeds {
    /// Data of files.
    data_bytes: u64,
    pages: u64,
    /// Including further names of files, each of which counts as one.
    inodes: u64,
    /// Names, symbolic link targets and attributes.
    metadata_bytes: u64,
}

impl SpaceNeeds {
    fn add_text(&mut self, len: usize) {
        self.metadata_bytes += (len + TEXT_COST) as u64;
    }

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
            inodes = inodes.max(most + missing.div_ceil(TEXT_MAX_OF_INODE));
        }
        if inodes > most {
            hints += &format!("\ntry: fercuda vram mount with --inodes {inodes}");
        }
        Ok(Some(what + &hints).filter(|it| !it.is_empty()))
    }
}

/// Line of the manifest.
struct ManifestLine<'l> {
    sum: &'l str,
    begin: u64,
    bytes: u64,
    name: &'l str,
}

impl<'l> ManifestLine<'l> {
    fn read(line: &'l str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let sum = words.next().filter(|sum| sum.len() == 64)?;
        let (begin, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self {
            sum,
            begin,
            bytes,
            name: words.next()?,
        })
    }
}

/// Verifies the whole file against its manifest.
fn verify(file: &File, len: u64) -> Result<VerifiedSnapshot> {
    let (end, manifest) = read_manifest(file, len)?;
    let (all, own) = manifest
        .trim_end_matches('\n')
        .rsplit_once('\n')
        .map(|(all, own)| (format!("{all}\n"), own))
        .context("its manifest is empty: the snapshot is modified")?;
    let mut lines = all.lines();
    if lines.next() != Some(MANIFEST_HEADER) {
        bail!(
            "its manifest does not begin with \"{MANIFEST_HEADER}\": it is modified, or was written by a later version of this program"
        );
    }
    if sha256_hex(all.as_bytes()) != own {
        bail!("its manifest is modified: its checksum differs");
    }
    let bar = progress_bar("verifying", end, true);
    let mut at = 0;
    let mut part = vec![0; BUFFER_BYTES];
    for line in lines {
        let member = ManifestLine::read(line)
            .with_context(|| format!("its manifest has an invalid line: {line}"))?;
        let next = member.begin.checked_add(member.bytes);
        let next = next.filter(|next| member.begin == at && *next <= end.min(len));
        let next =
            next.with_context(|| format!("its manifest has a gap at \"{}\"", member.name))?;
        let mut hash = Sha256::new();
        while at < next {
            let wanted = part.len().min((next - at) as usize);
            let got = file.read_at(&mut part[..wanted], at)?;
            if got == 0 {
                bail!("it ends within \"{}\": it is truncated", member.name);
            }
            hash.update(&part[..got]);
            at += got as u64;
            bar.set_position(at);
        }
        if hex(hash.finalize()) != member.sum {
            bail!("\"{}\" is modified: its checksum differs", member.name);
        }
    }
    bar.finish_and_clear();
    if at != end {
        bail!("it has members that its manifest does not list, from byte {at} on: it is modified");
    }
    Ok(VerifiedSnapshot {
        end,
        needs: compute_needs(file, end)?,
    })
}

/// Reads the manifest; returns its offset and its text.
fn read_manifest(file: &File, len: u64) -> Result<(u64, String)> {
    let mut begin = file;
    begin.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(file);
    let mut last = None;
    let cut = |last: &Option<String>| match last {
        Some(name) => anyhow!(
            "it ends after \"{name}\" without a manifest: it is truncated, or modified there, or was not written by fercuda vram save"
        ),
        None => anyhow!("it is not a snapshot of fercuda vram save"),
    };
    for entry in archive.entries_with_seek()?.raw(true) {
        let mut entry = entry.map_err(|_| cut(&last))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if name != MANIFEST {
            last = Some(name);
            continue;
        }
        let begin = entry.raw_header_position();
        if entry.size() > len {
            bail!(
                "its manifest is modified: its size is given as {} bytes",
                entry.size()
            );
        }
        let mut text = String::new();
        let got = entry.read_to_string(&mut text);
        got.map_err(|_| anyhow!("its manifest is truncated or modified"))?;
        if text.len() as u64 != entry.size() {
            bail!("its manifest is truncated");
        }
        // Only the archive's end follows it: two blocks of zeros.
        let text_end = entry.raw_file_position() + entry.size();
        let mut rest = vec![0; (text_end.next_multiple_of(512) - text_end + 1024) as usize];
        let is_end =
            text_end + rest.len() as u64 == len && file.read_exact_at(&mut rest, text_end).is_ok();
        if !is_end || rest.iter().any(|byte| *byte != 0) {
            bail!("it does not end after its manifest: it is modified or truncated");
        }
        return Ok((begin, text));
    }
    Err(cut(&last))
}

/// Computes the space that the members take.
fn compute_needs(file: &File, end: u64) -> Result<SpaceNeeds> {
    let mut begin = file;
    begin.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(file);
    let mut all = SpaceNeeds::default();
    let entries = archive.entries_with_seek()?.raw(true);
    for_each_member(entries, end, |entry, name, records| {
        for (key, value) in records.values().filter(|(key, _)| may_set(key)) {
            all.add_text(key.len() + value.len());
        }
        let Some(last) = name.file_name() else {
            return Ok(());
        };
        all.add_text(last.len());
        all.inodes += 1;
        match entry.header().entry_type() {
            EntryType::Symlink => {
                all.add_text(link_target(entry, &records).map_or(0, |it| it.len()))
            }
            EntryType::Regular => {
                let size = entry.size();
                let map = read_sparse_map(BufReader::new(entry), &records)?;
                // Extents may share a page; and a sparse map is untrusted.
                let mut behind = 0;
                for (at, len) in map.map_or_else(|| vec![(0, size)], |it| it.extents) {
                    let first = (at / PAGE_BYTES as u64).max(behind);
                    behind = (at + len).div_ceil(PAGE_BYTES as u64).max(behind);
                    all.pages = all.pages.saturating_add(behind.saturating_sub(first));
                    all.data_bytes = all.data_bytes.saturating_add(len);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(all)
}

/// Calls `see` for each member before the manifest, with its name and its records.
fn for_each_member<'a, R: Read + 'a>(
    entries: tar::Entries<'a, R>,
    end: u64,
    mut see: impl FnMut(&mut tar::Entry<'a, R>, &Path, PaxRecords) -> Result<()>,
) -> Result<()> {
    let mut records = PaxRecords::default();
    for entry in entries {
        let mut entry = entry?;
        if entry.raw_header_position() >= end {
            break;
        }
        if entry.header().entry_type() == EntryType::XHeader {
            let mut text = Vec::new();
            entry
                .by_ref()
                .take(RECORDS_MAX_BYTES)
                .read_to_end(&mut text)?;
            records = PaxRecords::read(&text).context("a member has invalid records")?;
            continue;
        }
        let records = std::mem::take(&mut records);
        let name = [SPARSE_NAME, "path"]
            .iter()
            .find_map(|key| records.get(key));
        let name = match name {
            Some(name) => name.to_vec(),
            None => entry.path_bytes().into_owned(),
        };
        let name = PathBuf::from(std::ffi::OsStr::from_bytes(&name));
        see(&mut entry, &name, records)
            .with_context(|| format!("its member {}", name.display()))?;
    }
    Ok(())
}

/// Target of a link.
fn link_target(entry: &tar::Entry<'_, impl Read>, records: &PaxRecords) -> Option<Vec<u8>> {
    match records.get("linkpath") {
        Some(target) => Some(target.to_vec()),
        None => entry.link_name_bytes().map(std::borrow::Cow::into_owned),
    }
}

/// Whether the caller may set an attribute (access control lists included).
fn may_set(key: &str) -> bool {
    rustix::process::geteuid().is_root() || key.starts_with("user.") || key.starts_with("system.")
}

/// Extended header records of a member, which hold what its header cannot.
#[derive(Default)]
struct PaxRecords(Vec<(String, Vec<u8>)>);

impl PaxRecords {
    /// Parses records, each of which is its length, a blank, a key, an equals sign, a value and a
    /// newline.
    fn read(mut text: &[u8]) -> Option<Self> {
        let mut all = Vec::new();
        while !text.is_empty() {
            let blank = text.iter().position(|byte| *byte == b' ')?;
            let len: usize = std::str::from_utf8(&text[..blank]).ok()?.parse().ok()?;
            let record = text.get(blank + 1..len)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let key = std::str::from_utf8(&record[..equals]).ok()?;
            all.push((key.to_owned(), record[equals + 1..].to_vec()));
            text = &text[len..];
        }
        Some(Self(all))
    }

    fn get(&self, key: &str) -> Option<&[u8]> {
        let it = self.0.iter().find(|(it, _)| it == key);
        it.map(|(_, value)| &**value)
    }

    fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }

    /// Parses a time: seconds with a fraction.
    fn time(&self, key: &str) -> Option<Timespec> {
        let text = std::str::from_utf8(self.get(key)?).ok()?;
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let (sign, whole) = match whole.strip_prefix('-') {
            Some(whole) => (-1, whole),
            None => (1, whole),
        };
        let rest: i128 = format!("{rest:0<9}").get(..9)?.parse().ok()?;
        let all = sign * (whole.parse::<i64>().ok()? as i128 * 1_000_000_000 + rest);
        Some(Timespec {
            tv_sec: i64::try_from(all.div_euclid(1_000_000_000)).ok()?,
            tv_nsec: all.rem_euclid(1_000_000_000) as _,
        })
    }

    fn values(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let named = |(key, value): &'_ (String, Vec<u8>)| -> Option<(usize, usize)> {
            key.starts_with(XATTR_PREFIX)
                .then_some((XATTR_PREFIX.len(), value.len()))
        };
        self.0
            .iter()
            .filter(move |it| named(it).is_some())
            .map(|(key, value)| (&key[XATTR_PREFIX.len()..], &**value))
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
                note!("{}: cannot remove it: {error:#}", plain(name));
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

/// Size and extents of a sparse file.
struct SparseExtents {
    size: u64,
    /// Offset and length of each extent of data.
    extents: Vec<(u64, u64)>,
}

/// Reads the map that precedes a sparse file's data; `None` for another file.
fn read_sparse_map(source: impl BufRead, records: &PaxRecords) -> Result<Option<SparseExtents>> {
    if records.get(SPARSE_MAJOR).is_none() {
        return Ok(None);
    }
    let size = records.number(SPARSE_SIZE).context("it has no size")?;
    let mut map = SparseMapReader {
        source,
        line: Vec::new(),
        read: 0,
    };
    let mut extents = Vec::new();
    for _ in 0..map.number()? {
        let (at, len) = (map.number()?, map.number()?);
        if at.checked_add(len).is_none_or(|end| end > size) {
            bail!("its map has data beyond its end");
        }
        extents.push((at, len));
    }
    map.end()?;
    Ok(Some(SparseExtents { size, extents }))
}

/// Reader of a sparse map: one number per line, padded to a multiple of 512 bytes. Its length is
/// bounded only by its member, as a file may have any number of extents.
struct SparseMapReader<R> {
    source: R,
    line: Vec<u8>,
    read: u64,
}

impl<R: BufRead> SparseMapReader<R> {
    fn number(&mut self) -> Result<u64> {
        self.line.clear();
        let mut source = self.source.by_ref().take(MAX_DIGITS + 1);
        let got = source.read_until(b'\n', &mut self.line)? as u64;
        self.read += got;
        if got <= MAX_DIGITS && !self.line.ends_with(b"\n") {
            bail!("it ends within its map");
        }
        let text = std::str::from_utf8(&self.line).unwrap_or("no text");
        let text = text.trim_end_matches('\n');
        if text.bytes().any(|byte| !byte.is_ascii_digit()) {
            bail!("its map has text that is not a number");
        }
        let number = text.parse();
        number.with_context(|| format!("its map has a number out of range: {text}"))
    }

    fn end(mut self) -> Result<()> {
        let left = self.read.next_multiple_of(512) - self.read;
        let mut rest = [0; 512];
        let rest = self.source.read_exact(&mut rest[..left as usize]);
        rest.context("it ends within its map")
    }
}
