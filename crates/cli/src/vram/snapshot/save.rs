//! Snapshot writer.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{BufReader, BufWriter, IsTerminal as _, Read, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
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

use super::format::{
    BUFFER_BYTES, MANIFEST, MANIFEST_HEADER, SPARSE_MAJOR, SPARSE_MINOR, SPARSE_NAME, SPARSE_SIZE,
    XATTR_PREFIX, hex, sha256_hex,
};
use super::{SaveArgs, require_permission};
use crate::out::{alert, note, say};
use crate::output::{check_writable, is_stream};
use crate::progress::progress_bar;
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{bytes, count, plain};
use crate::vram::show::MountStats;

/// Unit of data loss.
const BLOCK_BYTES: usize = fercuda_vramfs::layout::DATA_BYTES;
/// Maximum length of a name in a header.
const NAME_BYTES: usize = 100;

pub(crate) fn save(args: &SaveArgs) -> Result<ExitCode> {
    let what = || format!("cannot save {}", args.dir.display());
    let figures = MountStats::query(&args.dir).with_context(what)?;
    require_permission(&args.dir).with_context(what)?;
    let root = args.dir.metadata().with_context(what)?;
    let place = || format!("cannot write {}", args.file.display());
    let target = open_target(args, root.dev())?;
    let bar = progress_bar("saving", figures.number("used_bytes")?, true);
    let out = target.file.try_clone().with_context(place)?;
    let out = BufWriter::with_capacity(BUFFER_BYTES, out);
    let mut saver = SnapshotWriter {
        archive: tar::Builder::new(HashingWriter::new(out)),
        manifest: format!("{MANIFEST_HEADER}\n"),
        root: args.dir.clone(),
        device: root.dev(),
        links: HashMap::new(),
        bar,
        members: 0,
        data_bytes: 0,
        warnings: Vec::new(),
        is_broken: false,
    };
    saver.save_tree().with_context(what)?;
    let SnapshotWriter {
        archive,
        members,
        data_bytes,
        warnings,
        bar,
        ..
    } = saver.finish().with_context(place)?;
    let out = archive.into_inner().with_context(place)?.inner;
    let file = out
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error);
    let file = file.with_context(place)?;
    if !is_stream(&args.file) {
        file.sync_all().with_context(place)?;
        let folder = folder_of(&args.file);
        let published = target.publish(folder, &args.file, args.force);
        published.with_context(place)?;
    }
    bar.finish_and_clear();
    for line in &warnings {
        alert!("{line}");
    }
    let (files, data) = (count(members, "file"), bytes(data_bytes));
    match is_stream(&args.file) {
        true => note!("{files} with {data} of data saved to standard output"),
        false => say!(
            "{files} with {data} of data saved to {}",
            args.file.display()
        ),
    }
    Ok(ExitStatus::of_findings(!warnings.is_empty()).into())
}

fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Opens what the snapshot is written to; `device` is the filesystem to be saved.
fn open_target(args: &SaveArgs, device: u64) -> Result<SnapshotFile> {
    if is_stream(&args.file) {
        let out = std::io::stdout();
        if out.is_terminal() {
            bail_usage!(
                "a snapshot is not written to a terminal\n\
                 try: fercuda vram save DIR - > FILE, or name a file"
            );
        }
        let file = out.as_fd().try_clone_to_owned()?.into();
        return Ok(SnapshotFile {
            file,
            temporary: None,
        });
    }
    let folder = folder_of(&args.file);
    let folder_metadata = folder
        .metadata()
        .with_context(|| format!("cannot write to {}", folder.display()))?;
    if folder_metadata.dev() == device {
        bail_usage!(
            "{} is on the filesystem to be saved\ntry: a file on a disk",
            args.file.display()
        );
    }
    check_writable(&args.file, args.force, &[])?;
    // Readable by its owner only, and without its final name until complete.
    SnapshotFile::new(folder).with_context(|| format!("cannot write {}", args.file.display()))
}

/// File that a snapshot is written to until it is complete.
struct SnapshotFile {
    file: File,
    /// Temporary name, if the disk's filesystem has no unnamed files; a signal leaves such a file
    /// behind.
    temporary: Option<TempPath>,
}

impl SnapshotFile {
    fn new(folder: &Path) -> std::io::Result<Self> {
        let how = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, how, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                // Whatever the umask.
                rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
                Ok(Self {
                    file: file.into(),
                    temporary: None,
                })
            }
            // Other errors in that directory are reported by this call too.
            Err(_) => {
                let (file, temporary) = NamedTempFile::new_in(folder)?.into_parts();
                Ok(Self {
                    file,
                    temporary: Some(temporary),
                })
            }
        }
    }

    /// Gives the file its final name; replaces an existing file only with `force`.
    fn publish(self, folder: &Path, name: &Path, force: bool) -> std::io::Result<()> {
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |to: &Path| {
            rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW)?;
            Ok(())
        };
        let temporary = match self.temporary {
            Some(temporary) => temporary,
            None if !force => return link(name),
            // No system call links over an existing name, so it gets a temporary one, which is
            // renamed.
            None => Builder::new().make_in(folder, link)?.into_temp_path(),
        };
        let published = match force {
            true => temporary.persist(name),
            false => temporary.persist_noclobber(name),
        };
        published.map_err(|error| error.error)
    }
}

/// Writer that hashes the bytes of each member.
struct HashingWriter<W> {
    inner: W,
    sum: Sha256,
    begin: u64,
    at: u64,
}

impl<W> HashingWriter<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            sum: Sha256::new(),
            begin: 0,
            at: 0,
        }
    }

    /// Ends a member: its hash, its offset and its length.
    fn finish_member(&mut self) -> (String, u64, u64) {
        let sum = hex(self.sum.finalize_reset());
        let begin = std::mem::replace(&mut self.begin, self.at);
        (sum, begin, self.at - begin)
    }
}

impl<W: Write> Write for HashingWriter<W> {
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

/// Time of the last status change (ctime): seconds since 1970, and nanoseconds. No call can set it.
type ChangeTime = (i64, i64);

fn ctime(it: &Metadata) -> ChangeTime {
    (it.ctime(), it.ctime_nsec())
}

struct SnapshotWriter {
    archive: tar::Builder<HashingWriter<BufWriter<File>>>,
    manifest: String,
    root: PathBuf,
    device: u64,
    /// Names and ctimes of files with several links, by inode number, as saved. The number may be
    /// reused by another file meanwhile.
    links: HashMap<u64, (PathBuf, ChangeTime)>,
    bar: ProgressBar,
    members: usize,
    data_bytes: u64,
    /// What was omitted or changed, and why.
    warnings: Vec<String>,
    /// A write to the snapshot has failed, so nothing more can be saved.
    is_broken: bool,
}

impl SnapshotWriter {
    /// Saves the whole tree, each directory before its entries.
    fn save_tree(&mut self) -> Result<()> {
        let mut left = vec![PathBuf::new()];
        while let Some(name) = left.pop() {
            let path = self.root.join(&name);
            let what = || format!("cannot save {}", plain(&path));
            let entries = match self.save_member(&name, &path) {
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
                // It was removed meanwhile.
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    // The other files are saved nevertheless.
                    let why = format!("{}: {error:#}", plain(&path));
                    self.warnings.push(why);
                }
            }
        }
        Ok(())
    }

    /// Saves one file; returns whether it is a directory.
    fn save_member(&mut self, name: &Path, path: &Path) -> Result<bool> {
        let metadata = path.symlink_metadata()?;
        if metadata.dev() != self.device {
            let why = format!(
                "{}: omitted, as another filesystem is mounted there",
                plain(path)
            );
            self.warnings.push(why);
            return Ok(false);
        }
        if name == Path::new(MANIFEST) {
            // It would be taken for the manifest.
            let why = format!(
                "{}: omitted, as snapshots have a manifest of that name",
                plain(path)
            );
            self.warnings.push(why);
            return Ok(false);
        }
        let kind = FileType::from_raw_mode(metadata.mode());
        let (metadata, file) = match kind {
            FileType::RegularFile => {
                let (file, now) = self.open_written_back(path, &metadata)?;
                (now, Some(file))
            }
            _ => (metadata, None),
        };
        let mut header = Header::new_ustar();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(u64::from(metadata.uid()));
        header.set_gid(u64::from(metadata.gid()));
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        let mut records = vec![
            (
                "mtime".to_owned(),
                time(metadata.mtime(), metadata.mtime_nsec()),
            ),
            (
                "atime".to_owned(),
                time(metadata.atime(), metadata.atime_nsec()),
            ),
        ];
        // The root directory is a member too.
        let stored = match name == Path::new("") {
            true => b"./".to_vec(),
            false => name.as_os_str().as_bytes().to_vec(),
        };
        let has_names = metadata.nlink() > 1 && kind != FileType::Directory;
        if has_names && let Some((first, when)) = self.links.get(&metadata.ino()) {
            if *when == ctime(&metadata) {
                let target = first.as_os_str().as_bytes().to_vec();
                header.set_entry_type(EntryType::Link);
                self.append(header, &stored, Some(&target), Vec::new(), std::io::empty())?;
                return Ok(false);
            }
            let why = format!(
                "{}: saved as a separate file: the file saved as {}, with the same inode number, was modified or removed meanwhile",
                plain(path),
                plain(&self.root.join(first))
            );
            self.warnings.push(why);
        }
        records.extend(xattr_records(path, &mut self.warnings)?);
        match kind {
            FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.append(header, &stored, None, records, std::io::empty())?;
            }
            FileType::RegularFile => {
                let file = file.context("file is not open")?;
                self.save_file(header, &stored, path, (&file, &metadata), records)?;
            }
            FileType::Symlink => {
                let target = path.read_link()?.into_os_string().into_vec();
                header.set_entry_type(EntryType::Symlink);
                self.append(header, &stored, Some(&target), records, std::io::empty())?;
            }
            FileType::Socket => {
                let why = format!("{}: a socket, on which no process will listen", plain(path));
                self.bar.suspend(|| alert!("{why}; omitted"));
                return Ok(false);
            }
            FileType::Fifo => {
                header.set_entry_type(EntryType::Fifo);
                self.append(header, &stored, None, records, std::io::empty())?;
            }
            kind => {
                let of_blocks = kind == FileType::BlockDevice;
                header.set_entry_type(match of_blocks {
                    true => EntryType::Block,
                    false => EntryType::Char,
                });
                header.set_device_major(libc::major(metadata.rdev()))?;
                header.set_device_minor(libc::minor(metadata.rdev()))?;
                self.append(header, &stored, None, records, std::io::empty())?;
            }
        }
        if has_names {
            self.links
                .insert(metadata.ino(), (name.to_owned(), ctime(&metadata)));
        }
        self.members += usize::from(kind != FileType::Directory);
        Ok(kind == FileType::Directory)
    }

    /// Opens a file and writes its dirty pages back; returns it with its metadata after that.
    fn open_written_back(&mut self, path: &Path, metadata: &Metadata) -> Result<(File, Metadata)> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // Another file, such as a pipe, may have taken its place, and its open must not block.
        let how = how | OFlags::NOATIME | OFlags::NONBLOCK;
        let none = Mode::empty();
        let file = rustix::fs::open(path, how, none)
            // O_NOATIME is allowed only for the owner.
            .or_else(|_| rustix::fs::open(path, how - OFlags::NOATIME, none))?;
        let file = File::from(file);
        self.write_back(&file, path);
        let now = file.metadata()?;
        let which = |it: &Metadata| (it.dev(), it.ino(), it.mode() & libc::S_IFMT);
        if which(&now) != which(metadata) {
            bail!("it was replaced by another file meanwhile");
        }
        Ok((file, now))
    }

    fn save_file(
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
        let data = ExtentReader {
            file,
            left: extents.into(),
            bar: &self.bar.clone(),
            failed: &failed,
        };
        // The archive copies a few KiB at a time, each of which would be a system call.
        let data = BufReader::with_capacity(BUFFER_BYTES, data);
        self.append(header, name, None, records, map.as_slice().chain(data))?;
        self.data_bytes += bytes_there;
        self.write_back(file, path);
        let after = file.metadata()?;
        if let Some(error) = failed.take() {
            let why = format!(
                "{}: {error}; unreadable parts are saved as zeros",
                plain(path)
            );
            self.warnings.push(why);
        }
        let state = |it: &Metadata| (it.len(), it.mtime(), it.mtime_nsec());
        if state(before) != state(&after) {
            let why = format!("{}: modified while it was saved", plain(path));
            self.warnings.push(why);
        }
        Ok(())
    }

    /// Writes back dirty pages of shared mappings: until then their data count as a hole, and
    /// change no time.
    fn write_back(&mut self, file: &File, path: &Path) {
        if let Err(error) = file.sync_data() {
            let why = format!(
                "{}: write-back failed: {error}; data stored through mappings, or written while a device failed, may be stale",
                plain(path)
            );
            self.warnings.push(why);
        }
    }

    /// Appends a member with its records, and its line in the manifest.
    fn append(
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
        let (sum, begin, len) = self.archive.get_mut().finish_member();
        let name = String::from_utf8_lossy(name).escape_debug().to_string();
        self.manifest += &format!("{sum} {begin} {len} {name}\n");
        Ok(())
    }

    /// Appends the manifest, which completes the snapshot.
    fn finish(mut self) -> Result<Self> {
        self.manifest += &format!("{}\n", sha256_hex(self.manifest.as_bytes()));
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_path(MANIFEST)?;
        header.set_mode(0o600);
        header.set_size(self.manifest.len() as u64);
        header.set_cksum();
        self.archive.append(&header, self.manifest.as_bytes())?;
        self.archive.finish()?;
        Ok(self)
    }
}

/// Names of a directory's entries.
fn names(path: &Path) -> Result<Vec<OsString>> {
    let entries = path.read_dir()?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

fn is_gone(error: &anyhow::Error) -> bool {
    let of_calls = error.downcast_ref::<Errno>() == Some(&Errno::NOENT);
    let of_files = error.downcast_ref::<std::io::Error>();
    of_calls || of_files.is_some_and(|it| it.kind() == std::io::ErrorKind::NotFound)
}

/// Formats a time as pax does: in seconds, with a fraction that extends away from zero.
fn time(seconds: i64, nanoseconds: i64) -> Vec<u8> {
    let all = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let (whole, rest) = (all.abs() / 1_000_000_000, all.abs() % 1_000_000_000);
    let sign = if all < 0 { "-" } else { "" };
    format!("{sign}{whole}.{rest:09}").into_bytes()
}

/// Extended attributes, including access control lists, as records. Those that no record can
/// represent are added to `warnings`.
fn xattr_records(path: &Path, warnings: &mut Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    let mut names = vec![0; 1 << 16];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(Errno::NOENT) => return Err(Errno::NOENT.into()),
        Err(error) => {
            let why = format!("{}: cannot list its attributes: {error}", plain(path));
            warnings.push(why);
            0
        }
    };
    let mut value = vec![0; 1 << 16];
    for name in names[..len].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut omit = |why: &str| {
            let name = String::from_utf8_lossy(name);
            let name = plain(Path::new(&*name));
            let why = format!("{}: attribute {name} omitted: {why}", plain(path));
            warnings.push(why);
        };
        let text = std::str::from_utf8(name);
        let Some(text) = text.ok().filter(|it| !it.contains('=')) else {
            omit("its name cannot be represented in a record");
            continue;
        };
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => all.push((format!("{XATTR_PREFIX}{text}"), value[..len].to_vec())),
            Err(Errno::NODATA) => {}
            Err(Errno::NOENT) => return Err(Errno::NOENT.into()),
            Err(error) => omit(&error.to_string()),
        }
    }
    Ok(all)
}

/// Offset and length of each extent of data.
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

/// Reader of a file's extents, with the lengths that they had when they were listed.
struct ExtentReader<'f> {
    file: &'f File,
    left: VecDeque<(u64, u64)>,
    bar: &'f ProgressBar,
    /// Error of the last failed read.
    failed: &'f Cell<Option<std::io::Error>>,
}

impl Read for ExtentReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let Some((at, len)) = self.left.front_mut() else {
            return Ok(0);
        };
        let wanted = usize::try_from(*len).map_or(bytes.len(), |len| len.min(bytes.len()));
        // A read does not cross blocks, as a lost block does not affect the next.
        let wanted = wanted.min(BLOCK_BYTES - (*at % BLOCK_BYTES as u64) as usize);
        let got = match self.file.read_at(&mut bytes[..wanted], *at) {
            Ok(0) => Err(None),
            Ok(got) => Ok(got),
            Err(error) => Err(Some(error)),
        };
        let got = got.unwrap_or_else(|error| {
            // Truncated meanwhile or unreadable: filled with zeros, and reported by the caller.
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
