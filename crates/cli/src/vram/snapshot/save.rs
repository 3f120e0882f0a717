//! Writing a snapshot.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};
use tempfile::{Builder, NamedTempFile, TempPath};

use super::{
    HEAD, LIST, PART_BYTES, SPARSE_MAJOR, SPARSE_MINOR, SPARSE_NAME, SPARSE_SIZE, SaveArgs, VALUE,
    hex, refuse_others, sum,
};
use crate::out::{note, say};
use crate::terminal::{bytes, count, plain};
use crate::vram::show::MountStats;
use crate::vram::tools::bar;

/// Bytes that are lost together.
const BLOCK_BYTES: usize = fercuda_vramfs::layout::DATA_BYTES;
/// Names in a header are no longer.
const NAME_BYTES: usize = 100;

pub(crate) fn save(args: &SaveArgs) -> Result<ExitCode> {
    let what = || format!("cannot save {}", args.dir.display());
    let figures = Figures::of(&args.dir).with_context(what)?;
    refuse_others(&args.dir).with_context(what)?;
    let root = args.dir.metadata().with_context(what)?;
    let folder = match args.file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder_is = folder
        .metadata()
        .with_context(|| format!("cannot write to {}", folder.display()))?;
    if folder_is.dev() == root.dev() {
        bail!(
            "{} lies in the filesystem that is to be saved\ntry: a file on a disk",
            args.file.display()
        );
    }
    if !args.force && args.file.symlink_metadata().is_ok() {
        bail!(
            "{} is there already\ntry: another name, or --force",
            args.file.display()
        );
    }
    let place = || format!("cannot write {}", args.file.display());
    // Its owner alone can read it, and nobody finds half of it under its name.
    let target = Target::new(folder).with_context(place)?;
    let bar = bar("saving", figures.number("used_bytes")?, true);
    let out = target.file.try_clone().with_context(place)?;
    let out = BufWriter::with_capacity(PART_BYTES, out);
    let mut saver = Saver {
        archive: tar::Builder::new(Summed::new(out)),
        list: format!("{HEAD}\n"),
        root: args.dir.clone(),
        device: root.dev(),
        links: HashMap::new(),
        bar,
        members: 0,
        data_bytes: 0,
        passed_over: Vec::new(),
        is_broken: false,
    };
    saver.tree().with_context(what)?;
    let Saver {
        archive,
        members,
        data_bytes,
        passed_over,
        bar,
        ..
    } = saver.end().with_context(place)?;
    let out = archive.into_inner().with_context(place)?.inner;
    let file = out
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error);
    file.and_then(|file| file.sync_all()).with_context(place)?;
    let kept = target.keep(folder, &args.file, args.force);
    kept.with_context(place)?;
    bar.finish_and_clear();
    for line in &passed_over {
        note!("{line}");
    }
    say!(
        "{} with {} of data saved to {}",
        count(members, "file"),
        bytes(data_bytes),
        args.file.display()
    );
    Ok(ExitCode::from(u8::from(!passed_over.is_empty())))
}

/// What a snapshot is written to until it is whole.
struct Target {
    file: File,
    /// Its name meanwhile, where the disk's filesystem has no files without one: a signal leaves those.
    named: Option<TempPath>,
}

impl Target {
    fn new(folder: &Path) -> std::io::Result<Self> {
        let how = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, how, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(Self {
                file: file.into(),
                named: None,
            }),
            // What else is wrong there this says too.
            Err(_) => {
                let (file, named) = NamedTempFile::new_in(folder)?.into_parts();
                Ok(Self {
                    file,
                    named: Some(named),
                })
            }
        }
    }

    /// Gives it its name; one that is there is replaced only by `force`.
    fn keep(self, folder: &Path, name: &Path, force: bool) -> std::io::Result<()> {
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |to: &Path| {
            rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW)?;
            Ok(())
        };
        let named = match self.named {
            Some(named) => named,
            None if !force => return link(name),
            // No call gives it a name that another has.
            None => Builder::new().make_in(folder, link)?.into_temp_path(),
        };
        let kept = match force {
            true => named.persist(name),
            false => named.persist_noclobber(name),
        };
        kept.map_err(|error| error.error)
    }
}

/// What is written, summed up.
struct Summed<W> {
    inner: W,
    sum: Sha256,
    begin: u64,
    at: u64,
}

impl<W> Summed<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            sum: Sha256::new(),
            begin: 0,
            at: 0,
        }
    }

    /// The sum of what came since it was asked last, where that begins, and how many bytes it has.
    fn take(&mut self) -> (String, u64, u64) {
        let sum = hex(self.sum.finalize_reset());
        let begin = std::mem::replace(&mut self.begin, self.at);
        (sum, begin, self.at - begin)
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = self.inner.write(bytes)?;
        self.sum.update(&bytes[..done]);
        self.at += done as u64;
        Ok(done)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// Seconds since 1970, and nanoseconds: when anything of a file was changed last, which nobody can set.
type Changed = (i64, i64);

fn changed(it: &Metadata) -> Changed {
    (it.ctime(), it.ctime_nsec())
}

struct Saver {
    archive: tar::Builder<Summed<BufWriter<File>>>,
    list: String,
    root: PathBuf,
    device: u64,
    /// Where files with several names were saved, and when each had changed last. Its number may be another file's by now.
    links: HashMap<u64, (PathBuf, Changed)>,
    bar: ProgressBar,
    members: usize,
    data_bytes: u64,
    /// What was not saved as it is, and why.
    passed_over: Vec<String>,
    /// The file could not be written, so nothing more can.
    is_broken: bool,
}

impl Saver {
    /// All of it, a directory before what is in it.
    fn tree(&mut self) -> Result<()> {
        let mut left = vec![PathBuf::new()];
        while let Some(name) = left.pop() {
            let path = self.root.join(&name);
            let what = || format!("cannot save {}", plain(&path));
            let entries = match self.member(&name, &path) {
                Ok(true) => names(&path),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            match entries {
                Ok(mut entries) => {
                    entries.sort_unstable_by(|a, b| b.cmp(a));
                    left.extend(entries.into_iter().map(|entry| name.join(entry)));
                }
                Err(error) if self.is_broken || name == Path::new("") => {
                    return Err(error).with_context(what);
                }
                // It went meanwhile.
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    // Others are saved all the same.
                    let why = format!("{}: {error:#}", plain(&path));
                    self.passed_over.push(why);
                }
            }
        }
        Ok(())
    }

    /// One of it; whether it is a directory.
    fn member(&mut self, name: &Path, path: &Path) -> Result<bool> {
        let is = path.symlink_metadata()?;
        if is.dev() != self.device {
            let why = format!("{}: another filesystem is mounted there", plain(path));
            self.passed_over.push(why);
            return Ok(false);
        }
        if name == Path::new(LIST) {
            // As the last member is called, which this would be taken for.
            let why = format!("{}: snapshots have a list of that name", plain(path));
            self.passed_over.push(why);
            return Ok(false);
        }
        let kind = FileType::from_raw_mode(is.mode());
        let (is, file) = match kind {
            FileType::RegularFile => {
                let (file, now) = self.open(path, &is)?;
                (now, Some(file))
            }
            _ => (is, None),
        };
        let mut header = Header::new_ustar();
        header.set_mode(is.mode() & 0o7777);
        header.set_uid(u64::from(is.uid()));
        header.set_gid(u64::from(is.gid()));
        header.set_mtime(u64::try_from(is.mtime()).unwrap_or(0));
        header.set_size(0);
        let mut records = vec![
            ("mtime".to_owned(), time(is.mtime(), is.mtime_nsec())),
            ("atime".to_owned(), time(is.atime(), is.atime_nsec())),
        ];
        // The root is one too.
        let stored = match name == Path::new("") {
            true => b"./".to_vec(),
            false => name.as_os_str().as_bytes().to_vec(),
        };
        let has_names = is.nlink() > 1 && kind != FileType::Directory;
        if has_names && let Some((first, when)) = self.links.get(&is.ino()) {
            if *when == changed(&is) {
                let target = first.as_os_str().as_bytes().to_vec();
                header.set_entry_type(EntryType::Link);
                self.put(header, &stored, Some(&target), Vec::new(), std::io::empty())?;
                return Ok(false);
            }
            let why = format!(
                "{}: saved as a file of its own: the one that was saved as {} was changed since, or has gone",
                plain(path),
                plain(&self.root.join(first))
            );
            self.passed_over.push(why);
        }
        records.extend(values(path, &mut self.passed_over)?);
        match kind {
            FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.put(header, &stored, None, records, std::io::empty())?;
            }
            FileType::RegularFile => {
                let file = file.context("it is not open")?;
                self.file(header, &stored, path, (&file, &is), records)?;
            }
            FileType::Symlink => {
                let target = path.read_link()?.into_os_string().into_vec();
                header.set_entry_type(EntryType::Symlink);
                self.put(header, &stored, Some(&target), records, std::io::empty())?;
            }
            FileType::Socket => {
                let why = format!("{}: a socket, to which nobody will listen", plain(path));
                self.bar.suspend(|| note!("{why}; left out"));
                return Ok(false);
            }
            FileType::Fifo => {
                header.set_entry_type(EntryType::Fifo);
                self.put(header, &stored, None, records, std::io::empty())?;
            }
            kind => {
                let of_blocks = kind == FileType::BlockDevice;
                header.set_entry_type(match of_blocks {
                    true => EntryType::Block,
                    false => EntryType::Char,
                });
                header.set_device_major(libc::major(is.rdev()))?;
                header.set_device_minor(libc::minor(is.rdev()))?;
                self.put(header, &stored, None, records, std::io::empty())?;
            }
        }
        if has_names {
            self.links.insert(is.ino(), (name.to_owned(), changed(&is)));
        }
        self.members += usize::from(kind != FileType::Directory);
        Ok(kind == FileType::Directory)
    }

    /// A file as it was found, and what it is when all is written that was stored in it.
    fn open(&mut self, path: &Path, is: &Metadata) -> Result<(File, Metadata)> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // Something else may be there by now, which is not to be waited for.
        let how = how | OFlags::NOATIME | OFlags::NONBLOCK;
        let none = Mode::empty();
        let file = rustix::fs::open(path, how, none)
            // Only its owner may leave its time of access alone.
            .or_else(|_| rustix::fs::open(path, how - OFlags::NOATIME, none))?;
        let file = File::from(file);
        self.write_back(&file, path);
        let now = file.metadata()?;
        let which = |it: &Metadata| (it.dev(), it.ino(), it.mode() & libc::S_IFMT);
        if which(&now) != which(is) {
            bail!("something else has come in its place meanwhile");
        }
        Ok((file, now))
    }

    fn file(
        &mut self,
        mut header: Header,
        name: &[u8],
        path: &Path,
        (file, before): (&File, &Metadata),
        mut records: Vec<(String, Vec<u8>)>,
    ) -> Result<()> {
        let extents = extents(file, before.len())?;
        let bytes_there: u64 = extents.iter().map(|it| it.1).sum();
        header.set_entry_type(EntryType::Regular);
        let mut map = Vec::new();
        if bytes_there < before.len() {
            let lines = extents.iter().flat_map(|(at, len)| [*at, *len]);
            let lines = std::iter::once(extents.len() as u64).chain(lines);
            map = lines.map(|it| format!("{it}\n")).collect::<String>().into();
            map.resize(map.len().next_multiple_of(512), 0);
            for (key, value) in [
                (SPARSE_MAJOR, b"1".to_vec()),
                (SPARSE_MINOR, b"0".to_vec()),
                (SPARSE_NAME, name.to_vec()),
                (SPARSE_SIZE, before.len().to_string().into_bytes()),
            ] {
                records.push((key.to_owned(), value));
            }
        }
        header.set_size(map.len() as u64 + bytes_there);
        let failed = Cell::new(None);
        let data = Extents {
            file,
            left: extents.into(),
            bar: &self.bar.clone(),
            failed: &failed,
        };
        // Whoever copies it takes a few KiB at a time, for which nobody is to ask the kernel.
        let data = BufReader::with_capacity(PART_BYTES, data);
        self.put(header, name, None, records, map.as_slice().chain(data))?;
        self.data_bytes += bytes_there;
        self.write_back(file, path);
        let after = file.metadata()?;
        if let Some(error) = failed.take() {
            let why = format!("{}: {error}; what cannot be read is zeros", plain(path));
            self.passed_over.push(why);
        }
        let state = |it: &Metadata| (it.len(), it.mtime(), it.mtime_nsec());
        if state(before) != state(&after) {
            let why = format!("{}: it was changed while it was saved", plain(path));
            self.passed_over.push(why);
        }
        Ok(())
    }

    /// Has the kernel write what was stored by way of mappings: until then that is a hole, and changes no time.
    fn write_back(&mut self, file: &File, path: &Path) {
        if let Err(error) = file.sync_data() {
            let why = format!(
                "{}: {error}; what was stored by way of mappings, or written as a card failed, may be as it was before",
                plain(path)
            );
            self.passed_over.push(why);
        }
    }

    /// A member with its records, and its line in the list.
    fn put(
        &mut self,
        mut header: Header,
        name: &[u8],
        target: Option<&[u8]>,
        mut records: Vec<(String, Vec<u8>)>,
        data: impl Read,
    ) -> Result<()> {
        let fields = header.as_ustar_mut().context("a header of another kind")?;
        for (field, text, key) in [
            (&mut fields.name, Some(name), "path"),
            (&mut fields.linkname, target, "linkpath"),
        ] {
            let Some(text) = text else {
                continue;
            };
            let len = text.len().min(NAME_BYTES);
            field[..len].copy_from_slice(&text[..len]);
            if text.len() > NAME_BYTES {
                records.push((key.to_owned(), text.to_vec()));
            }
        }
        header.set_cksum();
        let records = records
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice()));
        let archive = &mut self.archive;
        let done = archive
            .append_pax_extensions(records)
            .and_then(|()| archive.append(&header, data));
        if let Err(error) = done {
            self.is_broken = true;
            return Err(error).context("the snapshot cannot be written");
        }
        let (sum, begin, len) = self.archive.get_mut().take();
        let name = String::from_utf8_lossy(name).escape_debug().to_string();
        self.list += &format!("{sum} {begin} {len} {name}\n");
        Ok(())
    }

    /// The list, by which it is whole.
    fn end(mut self) -> Result<Self> {
        self.list += &format!("{}\n", sum(self.list.as_bytes()));
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_path(LIST)?;
        header.set_mode(0o600);
        header.set_size(self.list.len() as u64);
        header.set_cksum();
        self.archive.append(&header, self.list.as_bytes())?;
        self.archive.finish()?;
        Ok(self)
    }
}

/// What is in a directory.
fn names(path: &Path) -> Result<Vec<OsString>> {
    let entries = path.read_dir()?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

fn is_gone(error: &anyhow::Error) -> bool {
    let of_calls = error.downcast_ref::<Errno>() == Some(&Errno::NOENT);
    let of_files = error.downcast_ref::<std::io::Error>();
    of_calls || of_files.is_some_and(|it| it.kind() == std::io::ErrorKind::NotFound)
}

/// As pax has times: seconds, and a fraction that is added to them also before 1970.
fn time(seconds: i64, nanoseconds: i64) -> Vec<u8> {
    let all = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let (whole, rest) = (all.abs() / 1_000_000_000, all.abs() % 1_000_000_000);
    let sign = if all < 0 { "-" } else { "" };
    format!("{sign}{whole}.{rest:09}").into_bytes()
}

/// Extended attributes, access lists among them. Those that no record can have are added to what is passed over.
fn values(path: &Path, passed_over: &mut Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    let mut names = vec![0; 1 << 16];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(Errno::NOENT) => return Err(Errno::NOENT.into()),
        Err(error) => {
            let why = format!("{}: its attributes cannot be listed: {error}", plain(path));
            passed_over.push(why);
            0
        }
    };
    let mut value = vec![0; 1 << 16];
    for name in names[..len].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut pass_over = |why: &str| {
            let name = String::from_utf8_lossy(name);
            let name = plain(Path::new(&*name));
            let why = format!("{}: its attribute {name}: {why}", plain(path));
            passed_over.push(why);
        };
        let text = std::str::from_utf8(name);
        let Some(text) = text.ok().filter(|it| !it.contains('=')) else {
            pass_over("no record can have that name");
            continue;
        };
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => all.push((format!("{VALUE}{text}"), value[..len].to_vec())),
            Err(Errno::NODATA) => {}
            Err(Errno::NOENT) => return Err(Errno::NOENT.into()),
            Err(error) => pass_over(&error.to_string()),
        }
    }
    Ok(all)
}

/// Where data begin, and how many bytes they have.
fn extents(file: &File, len: u64) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < len {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin.min(len),
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(begin)) {
            Ok(end) => end.min(len),
            Err(Errno::NXIO) => len,
            Err(error) => return Err(error.into()),
        };
        if end > begin {
            all.push((begin, end - begin));
        }
        at = end.max(at + 1);
    }
    Ok(all)
}

/// The bytes of these, as many as there were when that was looked at.
struct Extents<'f> {
    file: &'f File,
    left: VecDeque<(u64, u64)>,
    bar: &'f ProgressBar,
    /// Why some of them could not be read.
    failed: &'f Cell<Option<std::io::Error>>,
}

impl Read for Extents<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let Some((at, len)) = self.left.front_mut() else {
            return Ok(0);
        };
        let wanted = usize::try_from(*len).map_or(bytes.len(), |len| len.min(bytes.len()));
        // Not beyond a block: one that is lost says nothing of the next.
        let wanted = wanted.min(BLOCK_BYTES - (*at % BLOCK_BYTES as u64) as usize);
        let got = match self.file.read_at(&mut bytes[..wanted], *at) {
            Ok(0) => Err(None),
            Ok(got) => Ok(got),
            Err(error) => Err(Some(error)),
        };
        let got = got.unwrap_or_else(|error| {
            // It was cut meanwhile, which is told, as is what cannot be read.
            bytes[..wanted].fill(0);
            if error.is_some() {
                self.failed.set(error);
            }
            wanted
        });
        *at += got as u64;
        *len -= got as u64;
        if *len == 0 {
            self.left.pop_front();
        }
        self.bar.inc(got as u64);
        Ok(got)
    }
}
