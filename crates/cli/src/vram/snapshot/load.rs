//! Making files of a snapshot, when all of it was found to be right.

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
    HEAD, LIST, LoadArgs, PART_BYTES, SPARSE_MAJOR, SPARSE_NAME, SPARSE_SIZE, VALUE, hex,
    refuse_others, sum,
};
use crate::out::{note, say};
use crate::terminal::{bytes, count, plain};
use crate::vram::show::MountStats;
use crate::vram::tools::bar;

/// No records of a member are longer; those of one that is saved have 1 MiB of attributes at most.
const RECORDS_BYTES_MOST: u64 = 64 << 20;
/// No number has more.
const DIGITS_MOST: u64 = 20;
/// Access lists.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
/// Bytes without any that is not zero are a hole.
const HOLE_BYTES: usize = 128 << 10;

pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let what = || format!("cannot load {}", args.file.display());
    Figures::of(&args.dir).with_context(what)?;
    refuse_others(&args.dir).with_context(what)?;
    refuse_entries(&args.dir).with_context(what)?;
    let file = File::open(&args.file).with_context(what)?;
    let is = file.metadata().with_context(what)?;
    if !is.is_file() {
        bail!("{} is no file", args.file.display());
    }
    let found = check(&file, is.len()).with_context(what)?;
    refuse_if_it_does_not_fit(args, &found).with_context(what)?;
    let how = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&args.dir, how, Mode::empty()).with_context(what)?;
    let mut loader = Loader {
        root,
        is_root: rustix::process::geteuid().is_root(),
        directories: Vec::new(),
        own: None,
        made: Vec::new(),
        without: HashSet::new(),
        left_out: Vec::new(),
        bar: bar("loading", found.needs.data_bytes, true),
        files: 0,
        data_bytes: 0,
    };
    let was = loader.close().with_context(what)?;
    // What others did before counts too; from here on they do nothing.
    let done = refuse_entries(&args.dir)
        .and_then(|()| refuse_if_it_does_not_fit(args, &found))
        .and_then(|()| loader.all(&file, found.end))
        .with_context(what);
    if done.is_err() && was.is_closed {
        loader.undo();
    }
    let opened = match done.is_err() || loader.own.is_none() {
        true => loader.open_again(&was).with_context(what),
        false => Ok(()),
    };
    done.and(opened)?;
    loader.bar.finish_and_clear();
    for line in &loader.left_out {
        note!("{line}");
    }
    say!(
        "{} with {} of data loaded to {}",
        count(loader.files, "file"),
        bytes(loader.data_bytes),
        args.dir.display()
    );
    Ok(ExitCode::from(u8::from(!loader.left_out.is_empty())))
}

fn refuse_entries(dir: &Path) -> Result<()> {
    if let Some(entry) = dir.read_dir()?.next() {
        bail!(
            "{} has entries, as {}\ntry: a filesystem that was just mounted",
            dir.display(),
            entry?.file_name().display()
        );
    }
    Ok(())
}

fn refuse_if_it_does_not_fit(args: &LoadArgs, found: &Found) -> Result<()> {
    let figures = Figures::of(&args.dir)?;
    if let Some(missing) = found.needs.missing(&figures, &args.dir)? {
        bail!(
            "{} does not fit into {}{missing}",
            args.file.display(),
            args.dir.display()
        );
    }
    Ok(())
}

/// A snapshot that is what its list says.
struct Found {
    /// Where its list begins.
    end: u64,
    needs: Needs,
}

/// What its members take at most: what is zero in them may take no pages.
#[derive(Default)]
struct Needs {
    /// Bytes of data of files.
    data_bytes: u64,
    pages: u64,
    /// And further names of files, each of which counts as one.
    inodes: u64,
    /// Of names, targets of links and attributes.
    metadata_bytes: u64,
}

impl Needs {
    fn text(&mut self, len: usize) {
        self.metadata_bytes += (len + TEXT_COST) as u64;
    }

    /// What of it there is no room for, and what to try; nothing if all of it fits.
    fn missing(&self, figures: &Figures, dir: &Path) -> Result<Option<String>> {
        let less = |needed: u64, name: &str, used: &str| -> Result<(u64, u64)> {
            let free = figures.number(name)?.saturating_sub(figures.number(used)?);
            Ok((free, needed.saturating_sub(free)))
        };
        let (mut what, mut hints) = (String::new(), String::new());
        let needed = self.pages.saturating_mul(PAGE_BYTES as u64);
        let (free, missing) = less(needed, "size_bytes", "used_bytes")?;
        if missing > 0 {
            let (needed, free) = (bytes(needed), bytes(free));
            what +=
                &format!("\nits data take {needed} in pages of 4 KiB, of which {free} are free");
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
            what += &format!("\nits names take {needed} inodes, of which {free} are free");
        }
        let (free, missing) = less(self.metadata_bytes, "metadata_bytes", "used_metadata_bytes")?;
        if missing > 0 {
            let needed = self.metadata_bytes;
            what += &format!(
                "\nits names, links and attributes take {needed} metadata bytes, of which {free} are free"
            );
            inodes = inodes.max(most + missing.div_ceil(TEXT_MAX_OF_INODE));
        }
        if inodes > most {
            hints += &format!("\ntry: fercuda vram mount with --inodes {inodes}");
        }
        Ok(Some(what + &hints).filter(|it| !it.is_empty()))
    }
}

/// A line of the list.
struct Listed<'l> {
    sum: &'l str,
    begin: u64,
    bytes: u64,
    name: &'l str,
}

impl<'l> Listed<'l> {
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

/// Compares all of it with its list.
fn check(file: &File, len: u64) -> Result<Found> {
    let (end, list) = list(file, len)?;
    let (all, own) = list
        .trim_end_matches('\n')
        .rsplit_once('\n')
        .map(|(all, own)| (format!("{all}\n"), own))
        .context("its list of members is empty: it is altered")?;
    let mut lines = all.lines();
    if lines.next() != Some(HEAD) {
        bail!(
            "its list of members begins with another line than \"{HEAD}\": it is altered, or of a later version of this program"
        );
    }
    if sum(all.as_bytes()) != own {
        bail!("its list of members is altered: its sum is another");
    }
    let bar = bar("comparing", end, true);
    let mut at = 0;
    let mut part = vec![0; PART_BYTES];
    for line in lines {
        let member = Listed::read(line)
            .with_context(|| format!("its list of members has a line that says nothing: {line}"))?;
        let next = member.begin.checked_add(member.bytes);
        let next = next.filter(|next| member.begin == at && *next <= end.min(len));
        let next =
            next.with_context(|| format!("its list of members has a gap at \"{}\"", member.name))?;
        let mut hash = Sha256::new();
        while at < next {
            let wanted = part.len().min((next - at) as usize);
            let got = file.read_at(&mut part[..wanted], at)?;
            if got == 0 {
                bail!("it ends within \"{}\": it is cut off", member.name);
            }
            hash.update(&part[..got]);
            at += got as u64;
            bar.set_position(at);
        }
        if hex(hash.finalize()) != member.sum {
            bail!("\"{}\" is altered: its sum is another", member.name);
        }
    }
    bar.finish_and_clear();
    if at != end {
        bail!("it has members that its list does not name, from byte {at} on: it is altered");
    }
    Ok(Found {
        end,
        needs: needs(file, end)?,
    })
}

/// Where the list begins, and what it says.
fn list(file: &File, len: u64) -> Result<(u64, String)> {
    let mut begin = file;
    begin.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(file);
    let mut last = None;
    let cut = |last: &Option<String>| match last {
        Some(name) => anyhow!(
            "it ends behind \"{name}\" without a list of its members: it is cut off, or altered there, or not of fercuda vram save"
        ),
        None => anyhow!("it is no snapshot of fercuda vram save"),
    };
    for entry in archive.entries_with_seek()?.raw(true) {
        let mut entry = entry.map_err(|_| cut(&last))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if name != LIST {
            last = Some(name);
            continue;
        }
        let begin = entry.raw_header_position();
        if entry.size() > len {
            bail!(
                "its list of members is altered: it would have {} bytes",
                entry.size()
            );
        }
        let mut text = String::new();
        let got = entry.read_to_string(&mut text);
        got.map_err(|_| anyhow!("its list of members is cut off, or altered"))?;
        if text.len() as u64 != entry.size() {
            bail!("its list of members is cut off");
        }
        // Behind it is nothing but the end of an archive: two blocks of zeros.
        let text_end = entry.raw_file_position() + entry.size();
        let mut rest = vec![0; (text_end.next_multiple_of(512) - text_end + 1024) as usize];
        let is_end =
            text_end + rest.len() as u64 == len && file.read_exact_at(&mut rest, text_end).is_ok();
        if !is_end || rest.iter().any(|byte| *byte != 0) {
            bail!("it does not end behind its list of members: it is altered or cut off");
        }
        return Ok((begin, text));
    }
    Err(cut(&last))
}

/// What its members take.
fn needs(file: &File, end: u64) -> Result<Needs> {
    let mut begin = file;
    begin.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(file);
    let mut all = Needs::default();
    let entries = archive.entries_with_seek()?.raw(true);
    members(entries, end, |entry, name, records| {
        for (key, value) in records.values().filter(|(key, _)| may_set(key)) {
            all.text(key.len() + value.len());
        }
        let Some(last) = name.file_name() else {
            return Ok(());
        };
        all.text(last.len());
        all.inodes += 1;
        match entry.header().entry_type() {
            EntryType::Symlink => all.text(target(entry, &records).map_or(0, |it| it.len())),
            EntryType::Regular => {
                let size = entry.size();
                let map = map(BufReader::new(entry), &records)?;
                // Some have a page together; and what a map says may be anything.
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

/// Has each member before the list seen, with its name and its records.
fn members<'a, R: Read + 'a>(
    entries: tar::Entries<'a, R>,
    end: u64,
    mut see: impl FnMut(&mut tar::Entry<'a, R>, &Path, Records) -> Result<()>,
) -> Result<()> {
    let mut records = Records::default();
    for entry in entries {
        let mut entry = entry?;
        if entry.raw_header_position() >= end {
            break;
        }
        if entry.header().entry_type() == EntryType::XHeader {
            let mut text = Vec::new();
            entry
                .by_ref()
                .take(RECORDS_BYTES_MOST)
                .read_to_end(&mut text)?;
            records = Records::read(&text).context("a member's records say nothing")?;
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

/// Where a link leads.
fn target(entry: &tar::Entry<'_, impl Read>, records: &Records) -> Option<Vec<u8>> {
    match records.get("linkpath") {
        Some(target) => Some(target.to_vec()),
        None => entry.link_name_bytes().map(std::borrow::Cow::into_owned),
    }
}

/// Whether who loads may set an attribute, if it is no access list.
fn may_set(key: &str) -> bool {
    rustix::process::geteuid().is_root() || key.starts_with("user.") || key.starts_with("system.")
}

/// Records of a member: what stands before it, and says more than its header can.
#[derive(Default)]
struct Records(Vec<(String, Vec<u8>)>);

impl Records {
    /// Each is its own length, a blank, a key, an equals sign, a value and a newline.
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

    /// Seconds, and what is added to them.
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
            key.starts_with(VALUE).then_some((VALUE.len(), value.len()))
        };
        self.0
            .iter()
            .filter(move |it| named(it).is_some())
            .map(|(key, value)| (&key[VALUE.len()..], &**value))
    }
}

/// What every member has.
struct Attributes {
    mode: u32,
    user: u32,
    group: u32,
    records: Records,
}

/// What the root was.
struct Was {
    /// Nobody but root and who loads gets in now.
    is_closed: bool,
    user: Uid,
    group: Gid,
    mode: Mode,
    lists: Vec<(&'static str, Vec<u8>)>,
}

struct Loader {
    root: OwnedFd,
    is_root: bool,
    /// Their times are set when all that is in them is there.
    directories: Vec<(PathBuf, Attributes)>,
    /// The root's, which is closed to others until all else is done.
    own: Option<Attributes>,
    /// What was made, and whether it is a directory.
    made: Vec<(PathBuf, bool)>,
    /// Devices that were not, of which there may be further names.
    without: HashSet<PathBuf>,
    /// What was not made as it was, and why.
    left_out: Vec<String>,
    bar: ProgressBar,
    files: usize,
    data_bytes: u64,
}

impl Loader {
    /// Lets nobody but root and who loads into the root, and takes its access lists away: who may change names there could
    /// have what is made last mistaken for what was made before, and what a directory's list allows is passed on.
    fn close(&self) -> Result<Was> {
        let is = rustix::fs::fstat(&self.root)?;
        let mut was = Was {
            is_closed: false,
            user: Uid::from_raw(is.st_uid),
            group: Gid::from_raw(is.st_gid),
            mode: Mode::from_raw_mode(is.st_mode & 0o7777),
            lists: Vec::new(),
        };
        for name in LISTS {
            let mut value = vec![0; 1 << 16];
            if let Ok(len) = rustix::fs::fgetxattr(&self.root, name, &mut value[..]) {
                value.truncate(len);
                was.lists.push((name, value));
            }
        }
        let closed = self.own(Uid::ROOT, was.group).and_then(|()| {
            rustix::fs::fchmod(&self.root, Mode::RWXU)?;
            let mut lists = was.lists.iter();
            lists.try_for_each(|(name, _)| rustix::fs::fremovexattr(&self.root, *name))
        });
        match closed {
            // Another's, who has let others in.
            Err(Errno::PERM) if !self.is_root => {}
            Err(error) => {
                self.open_again(&was)?;
                let error = anyhow::Error::from(error);
                return Err(error.context("its directory cannot be closed to others meanwhile"));
            }
            Ok(()) => was.is_closed = true,
        }
        Ok(was)
    }

    /// As it was, where nothing says what it is to be.
    fn open_again(&self, was: &Was) -> Result<()> {
        let opened = self.own(was.user, was.group).and_then(|()| {
            rustix::fs::fchmod(&self.root, was.mode)?;
            let mut lists = was.lists.iter();
            let none = XattrFlags::empty();
            lists.try_for_each(|(name, list)| rustix::fs::fsetxattr(&self.root, *name, list, none))
        });
        match opened {
            Err(Errno::PERM) if !self.is_root => Ok(()),
            opened => opened.context("its directory stays closed to others"),
        }
    }

    fn own(&self, user: Uid, group: Gid) -> rustix::io::Result<()> {
        match self.is_root {
            true => rustix::fs::fchown(&self.root, Some(user), Some(group)),
            false => Ok(()),
        }
    }

    /// Takes away what was made, the last first; what cannot be is said.
    fn undo(&mut self) {
        // Of those that were done already modes may forbid it.
        for (name, _) in self.made.iter().filter(|(_, is_directory)| *is_directory) {
            let opened = self.directory(name).and_then(|it| {
                let path = format!("/proc/self/fd/{}", it.as_raw_fd());
                Ok(rustix::fs::chmod(path, Mode::RWXU)?)
            });
            // Then what is in it cannot be taken away, and that is said.
            opened.unwrap_or_default();
        }
        for (name, is_directory) in std::mem::take(&mut self.made).iter().rev() {
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
                note!("{}: it stays: {error:#}", plain(name));
            }
        }
    }

    fn all(&mut self, file: &File, end: u64) -> Result<()> {
        let mut begin = file;
        begin.seek(SeekFrom::Start(0))?;
        let mut archive = Archive::new(BufReader::with_capacity(PART_BYTES, file));
        members(archive.entries()?.raw(true), end, |entry, name, records| {
            self.member(entry, name, records)
        })?;
        // What is within goes first, as its times change those of what it is in.
        for (name, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            let parent = self.directory(name.parent().unwrap_or(Path::new("")))?;
            let last = name.file_name().context("it has no name")?;
            let set =
                made(&parent, last.as_ref()).and_then(|it| self.set(&it, name, attributes, false));
            set.with_context(|| format!("its member {}", name.display()))?;
        }
        if let Some(own) = self.own.take() {
            let root = self.root.try_clone()?;
            let set = self.set(&root, Path::new("."), &own, false);
            set.context("its directory")?;
            self.own = Some(own);
        }
        Ok(())
    }

    /// A directory below the root, to which no link leads.
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

    fn member(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        name: &Path,
        records: Records,
    ) -> Result<()> {
        let is_plain =
            |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !name.components().all(is_plain) {
            bail!("its name leads out of the snapshot");
        }
        let header = entry.header().clone();
        let number = |value: u64| u32::try_from(value).context("an owner that there cannot be");
        let attributes = Attributes {
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
            self.own = Some(attributes);
            return Ok(());
        };
        let parent = self.directory(name.parent().unwrap_or(Path::new("")))?;
        let leads = target(entry, &attributes.records);
        let target = || {
            let target = leads.as_deref().context("it leads nowhere")?;
            Ok::<_, anyhow::Error>(Path::new(std::ffi::OsStr::from_bytes(target)))
        };
        // Nobody else may look before all is as it was.
        let first = Mode::RUSR | Mode::WUSR;
        let made = match kind {
            EntryType::Directory => {
                let first = first | Mode::XUSR;
                rustix::fs::mkdirat(&parent, last, first)?;
                self.made.push((name.to_owned(), true));
                self.directories.push((name.to_owned(), attributes));
                return Ok(());
            }
            EntryType::Link => {
                let target = target()?;
                if self.without.contains(target) {
                    self.leave_out(name);
                    return Ok(());
                }
                let from = self.directory(target.parent().unwrap_or(Path::new("")))?;
                let of = target.file_name().context("it leads nowhere")?;
                rustix::fs::linkat(&from, of, &parent, last, AtFlags::empty())?;
                self.made.push((name.to_owned(), false));
                return Ok(());
            }
            EntryType::Symlink => {
                rustix::fs::symlinkat(target()?, &parent, last)?;
                self.made.push((name.to_owned(), false));
                made(&parent, last)?
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
                    // Not every root may either.
                    Err(Errno::PERM) if kind != FileType::Fifo => {
                        self.leave_out(name);
                        return Ok(());
                    }
                    done => done?,
                }
                self.made.push((name.to_owned(), false));
                made(&parent, last)?
            }
            EntryType::Regular => {
                let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&parent, last, how | OFlags::NOFOLLOW, first)?;
                let file = File::from(file);
                self.made.push((name.to_owned(), false));
                self.data(entry, &file, &attributes.records)?;
                file.into()
            }
            other => bail!("it is of a type that save does not make: {other:?}"),
        };
        self.files += 1;
        self.set(&made, name, &attributes, kind == EntryType::Symlink)
    }

    fn leave_out(&mut self, name: &Path) {
        let why = "a device, which only root may make, and left out";
        self.left_out.push(format!("{}: {why}", plain(name)));
        self.without.insert(name.to_owned());
    }

    /// Writes a file's bytes where they were.
    fn data(&mut self, entry: &mut impl Read, file: &File, records: &Records) -> Result<()> {
        let mut part = vec![0; PART_BYTES];
        // Parts as large are read past it.
        let mut source = BufReader::new(entry);
        let Some(Sparse { size, extents }) = map(&mut source, records)? else {
            let end = self.extent(&mut source, file, 0, u64::MAX, &mut part)?;
            file.set_len(end)?;
            return Ok(());
        };
        file.set_len(size)?;
        for (at, len) in extents {
            let end = self.extent(&mut source, file, at, len, &mut part)?;
            if end != at + len {
                bail!("it has fewer data than it says");
            }
        }
        Ok(())
    }

    /// Writes so many bytes, or as many as there are, from a place on; where they end. What is zero is left to be a hole.
    fn extent(
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
            for (place, bytes) in part[..got].chunks(HOLE_BYTES).enumerate() {
                if bytes.iter().any(|byte| *byte != 0) {
                    file.write_all_at(bytes, at + (place * HOLE_BYTES) as u64)?;
                }
            }
            at += got as u64;
            self.data_bytes += got as u64;
            self.bar.inc(got as u64);
        }
    }

    /// Owner, attributes, mode and times, in the order in which none takes from another.
    fn set(&mut self, made: &OwnedFd, name: &Path, it: &Attributes, is_link: bool) -> Result<()> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", made.as_raw_fd()));
        if self.is_root {
            let (user, group) = (Uid::from_raw(it.user), Gid::from_raw(it.group));
            rustix::fs::chownat(made, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        }
        // A mode may take the right to set attributes; access lists are part of it.
        let (lists, others): (Vec<_>, Vec<_>) = it
            .records
            .values()
            .partition(|(key, _)| key.starts_with("system."));
        for (key, value) in others {
            if may_set(key) {
                set_value(&path, key, value)?;
                continue;
            }
            let (name, key) = (plain(name), plain(Path::new(key)));
            let why = format!("{name}: its attribute {key} is for root to set, and left out");
            self.left_out.push(why);
        }
        if !is_link {
            rustix::fs::chmod(&path, Mode::from_raw_mode(it.mode))?;
        }
        for (key, value) in lists {
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

/// What was just made in a directory in which nobody else changes names.
fn made(parent: &OwnedFd, name: &Path) -> Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, how, Mode::empty())?)
}

fn set_value(path: &Path, key: &str, value: &[u8]) -> Result<()> {
    let set = rustix::fs::setxattr(path, key, value, XattrFlags::empty());
    set.with_context(|| format!("its attribute {key}"))
}

/// What a sparse file's member says of it.
struct Sparse {
    size: u64,
    /// Where data begin, and how many bytes they have.
    extents: Vec<(u64, u64)>,
}

/// What comes here of a sparse file before its data; nothing of another file.
fn map(source: impl BufRead, records: &Records) -> Result<Option<Sparse>> {
    if records.get(SPARSE_MAJOR).is_none() {
        return Ok(None);
    }
    let size = records.number(SPARSE_SIZE).context("it has no size")?;
    let mut map = Map {
        source,
        line: Vec::new(),
        read: 0,
    };
    let mut extents = Vec::new();
    for _ in 0..map.number()? {
        let (at, len) = (map.number()?, map.number()?);
        if at.checked_add(len).is_none_or(|end| end > size) {
            bail!("it has data beyond its end");
        }
        extents.push((at, len));
    }
    map.end()?;
    Ok(Some(Sparse { size, extents }))
}

/// A number a line, to a multiple of 512 bytes. It is as long as its member has it: who saves a file of many extents has as many
/// here.
struct Map<R> {
    source: R,
    line: Vec<u8>,
    read: u64,
}

impl<R: BufRead> Map<R> {
    fn number(&mut self) -> Result<u64> {
        self.line.clear();
        let mut source = self.source.by_ref().take(DIGITS_MOST + 1);
        let got = source.read_until(b'\n', &mut self.line)? as u64;
        self.read += got;
        if got <= DIGITS_MOST && !self.line.ends_with(b"\n") {
            bail!("it ends within its map");
        }
        let text = std::str::from_utf8(&self.line).unwrap_or("no text");
        let text = text.trim_end_matches('\n');
        if text.bytes().any(|byte| !byte.is_ascii_digit()) {
            bail!("its map has something else than numbers");
        }
        let number = text.parse();
        number.with_context(|| format!("its map has a number that there cannot be: {text}"))
    }

    fn end(mut self) -> Result<()> {
        let left = self.read.next_multiple_of(512) - self.read;
        let mut rest = [0; 512];
        let rest = self.source.read_exact(&mut rest[..left as usize]);
        rest.context("it ends within its map")
    }
}
