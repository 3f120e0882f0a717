//! Files that a command writes: results that the user asked to have in a file.
//!
//! Invariant: an existing file is replaced only with `--force`, and a file that the command reads
//! never; a file gets its name when it is complete, and has none before where the system can do so,
//! so that nothing is left of one that is not. It is its user's alone, whatever the umask, unless
//! the command says otherwise or it replaces one of the user's with other permissions. In a folder
//! that others may write to, as `/tmp`, their links are not followed, and their pipes get nothing.
//! `-` is standard output.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{AtFlags, CWD, linkat};
use rustix::process::geteuid;
use tempfile::NamedTempFile;

use crate::status::bail_usage;

/// Whether a name on the command line stands for standard input or output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Fails if `path` may not be written: it exists and `force` is not set, is a directory, or is the
/// same file (by device and inode) as one of `inputs`.
///
/// # Errors
/// A usage error.
pub(crate) fn check_writable(path: &Path, force: bool, inputs: &[&Path]) -> Result<()> {
    if is_stream(path) {
        return Ok(());
    }
    let name = path.display();
    let place = followed(path);
    // Through a descriptor's name the kernel goes on to a file that has none, perhaps.
    let metadata = match is_descriptor(&place) {
        true => fs::metadata(&place),
        false => place.symlink_metadata(),
    };
    let Ok(metadata) = metadata else {
        return Ok(());
    };
    if let Some(owner) = owner_of_strange_pipe(&place, &metadata) {
        bail_usage!(
            "{name} is a pipe or a socket of user {owner}, which would read the output\n\
             try: another name, or - > {name}"
        );
    }
    let path = place.as_path();
    let identity = |it: &fs::Metadata| (it.dev(), it.ino());
    let mut read = inputs.iter().filter_map(|input| fs::metadata(input).ok());
    if !is_special(path) && read.any(|input| identity(&input) == identity(&metadata)) {
        bail_usage!("{name} would be overwritten while it is read\ntry: another name");
    }
    if metadata.is_dir() {
        bail_usage!("{name} is a directory\ntry: a file in it");
    }
    if !is_special(path) && !force {
        bail_usage!("{name} exists\ntry: --force, or another name");
    }
    Ok(())
}

/// Fails if two of these names are of one file, by a link or another spelling: what was written
/// first would be lost. Devices and pipes take any number.
///
/// # Errors
/// A usage error.
pub(crate) fn check_distinct(paths: &[&Path]) -> Result<()> {
    let mut places = HashMap::new();
    let is_replaced = |path: &&&Path| !is_stream(path) && !is_special(&followed(path));
    for path in paths.iter().filter(is_replaced) {
        if let Some(other) = places.insert(place_of(path), path) {
            let (one, two) = (other.display(), path.display());
            match other == path {
                true => bail_usage!("{one} is named for two outputs\ntry: two names"),
                false => bail_usage!("{one} and {two} are one file\ntry: two files"),
            }
        }
    }
    Ok(())
}

/// Where a file is or would be, with links followed.
fn place_of(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let parent = path.parent().unwrap_or(Path::new("")).join(".");
        let parent = parent.canonicalize().unwrap_or(parent);
        parent.join(path.file_name().unwrap_or_default())
    })
}

/// Fails if `path` is a device or a pipe, or another file that cannot be replaced.
///
/// # Errors
/// A usage error.
pub(crate) fn check_regular(path: &Path, what: &str) -> Result<()> {
    let is_other = path.symlink_metadata().is_ok_and(|it| !it.is_file());
    if is_other || is_special(path) {
        bail_usage!(
            "{} is no regular file, which {what} is written to\ntry: another name",
            path.display()
        );
    }
    Ok(())
}

/// Whether a path without links to follow is written to, not replaced: a device, a pipe, or a
/// descriptor of the process.
fn is_special(path: &Path) -> bool {
    let kind = path.symlink_metadata().map(|it| it.file_type());
    is_descriptor(path)
        || kind.is_ok_and(|it| {
            it.is_char_device() || it.is_block_device() || it.is_fifo() || it.is_socket()
        })
}

/// Whether a path names an open file of a process.
fn is_descriptor(path: &Path) -> bool {
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"]
        .iter()
        .any(|prefix| path.starts_with(prefix))
}

/// The file that `path` leads to by links of the user's and of root's. A link of another user is
/// the file itself: where it leads is that user's choice, such as a file of the user's that is no
/// output. So is a link to nothing.
fn followed(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const LINKS_MAX: usize = 40;
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        if is_descriptor(&place) {
            return place;
        }
        let Ok(metadata) = place.symlink_metadata() else {
            break;
        };
        let target = match metadata.is_symlink() && is_of_user_or_root(&metadata) {
            true => place.read_link(),
            false => return place,
        };
        let Ok(target) = target else { break };
        place = place.parent().unwrap_or(Path::new("")).join(target);
    }
    path.to_owned()
}

fn is_of_user_or_root(metadata: &fs::Metadata) -> bool {
    [0, geteuid().as_raw()].contains(&metadata.uid())
}

/// The owner of a pipe or a socket that is another user's, which reads what is written. Devices are
/// root's to create, whatever user owns them.
fn owner_of_strange_pipe(path: &Path, metadata: &fs::Metadata) -> Option<u32> {
    let kind = metadata.file_type();
    let is_strange = (kind.is_fifo() || kind.is_socket())
        && !is_descriptor(path)
        && !is_of_user_or_root(metadata);
    is_strange.then(|| metadata.uid())
}

/// Opens a device, a pipe or a descriptor: another description of a file that standard output may
/// be, such as `/dev/stdout`. What stands there is examined again, as it may have been exchanged.
fn open_special(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)?;
    let metadata = file.metadata()?;
    let is_exchanged = metadata.is_file() && !is_descriptor(path);
    match is_exchanged || owner_of_strange_pipe(path, &metadata).is_some() {
        true => Err(io::Error::other("another file was put there meanwhile")),
        false => Ok(file),
    }
}

/// Gives `draft` the permissions of the file that it replaces if that is the user's, else `mode`.
fn set_permissions(draft: &File, place: &Path, mode: u32) -> io::Result<()> {
    let replaced = place.symlink_metadata().ok();
    let replaced = replaced.filter(|it| it.is_file() && it.uid() == geteuid().as_raw());
    let mode = match replaced {
        // Those of the group are that group's.
        Some(it) => {
            let is_kept =
                draft.metadata()?.gid() == it.gid() || fchown(draft, None, Some(it.gid())).is_ok();
            it.mode() & if is_kept { 0o777 } else { 0o707 }
        }
        None => mode,
    };
    draft.set_permissions(fs::Permissions::from_mode(mode))
}

/// Permissions of a new file.
const PRIVATE: u32 = 0o600;
/// Permissions of a new file that is meant for all users.
const PUBLIC: u32 = 0o644;

/// A file that is being written.
pub(crate) struct OutputFile {
    path: PathBuf,
    /// Where the path's links lead.
    place: PathBuf,
    force: bool,
    mode: u32,
    target: OutputTarget,
}

enum OutputTarget {
    Stdout,
    /// A device or a pipe.
    Special(File),
    /// Has no name, and gets one when complete.
    Unnamed(File),
    /// As that, in a folder of a system without files of no name; removed if it is not complete.
    Draft(NamedTempFile),
}

impl OutputFile {
    /// Opens `path` for writing, so that what prevents it is known before the work begins; see
    /// [`check_writable`].
    ///
    /// # Errors
    /// A usage error if it may not be written, or no file can be created there.
    pub(crate) fn open(path: &Path, force: bool, inputs: &[&Path]) -> Result<OutputFile> {
        check_writable(path, force, inputs)?;
        let place = followed(path);
        let target = if is_stream(path) {
            Ok(OutputTarget::Stdout)
        } else if is_special(&place) {
            open_special(&place).map(OutputTarget::Special)
        } else {
            // In the folder of the file that it replaces, which may be on another disk.
            OutputTarget::draft(&place)
        };
        match target {
            Ok(target) => Ok(OutputFile {
                path: path.to_owned(),
                place,
                force,
                mode: PRIVATE,
                target,
            }),
            Err(error) => bail_usage!(
                "cannot write {}: {error}\ntry: a file in an existing folder that you may write to",
                path.display()
            ),
        }
    }

    /// Lets all users read the file, as those of a program's installation.
    pub(crate) fn for_all_users(mut self) -> Self {
        self.mode = PUBLIC;
        self
    }

    /// Gives the file the permissions that the umask leaves, as those of a model.
    pub(crate) fn by_umask(mut self) -> Self {
        self.mode = 0o666 & !current_umask();
        self
    }

    /// Completes the file: it gets its name.
    ///
    /// # Errors
    /// It cannot be written, or another process has created a file of that name meanwhile.
    pub(crate) fn finish(mut self) -> Result<()> {
        let what = format!("cannot write {}", self.path.display());
        self.flush().with_context(|| what.clone())?;
        // A link stays one: the file that it leads to is replaced.
        let place = &self.place;
        let named = match self.target {
            OutputTarget::Stdout | OutputTarget::Special(_) => return Ok(()),
            OutputTarget::Unnamed(file) => set_permissions(&file, place, self.mode)
                .and_then(|()| give_name(&file, place, self.force)),
            OutputTarget::Draft(draft) => set_permissions(draft.as_file(), place, self.mode)
                .and_then(|()| match self.force {
                    true => draft.persist(place).map_err(|error| error.error),
                    false => draft.persist_noclobber(place).map_err(|error| error.error),
                })
                .map(|_| ()),
        };
        named.with_context(|| what)
    }

    /// An error of a write, with the file and what to try.
    fn named(path: &Path, error: io::Error) -> io::Error {
        let kind = error.kind();
        let what = format!("cannot write {}: {error}", path.display());
        match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                io::Error::new(kind, format!("{what}\ntry: a disk with more room"))
            }
            _ => io::Error::new(kind, what),
        }
    }
}

/// The process's umask. Reading it by the call of that name would change it for a moment.
fn current_umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|it| u32::from_str_radix(it.trim(), 8).ok());
    // Unknown: the file stays its user's.
    mask.unwrap_or(0o077)
}

/// Gives an open file without a name this one.
fn give_name(file: &File, place: &Path, force: bool) -> io::Result<()> {
    let link = |to: &Path| -> io::Result<()> {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)?;
        Ok(())
    };
    match link(place) {
        Err(error) if force && error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    // No call replaces one name by a file that has none.
    for _ in 0..100 {
        let draft = folder_of(place).join(format!(".fercuda-{:016x}", fastrand::u64(..)));
        match link(&draft) {
            Ok(()) => {
                return fs::rename(&draft, place).inspect_err(|_| {
                    fs::remove_file(&draft).unwrap_or_default();
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

impl OutputTarget {
    fn draft(path: &Path) -> io::Result<OutputTarget> {
        let folder = folder_of(path);
        let unnamed = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .mode(PRIVATE)
            .open(folder);
        if let Ok(file) = unnamed
            && Path::new("/proc/self/fd").is_dir()
        {
            return Ok(OutputTarget::Unnamed(file));
        }
        let draft = tempfile::Builder::new()
            .prefix(".fercuda-")
            .permissions(fs::Permissions::from_mode(PRIVATE))
            .tempfile_in(folder)?;
        Ok(OutputTarget::Draft(draft))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.target {
            OutputTarget::Stdout => return io::stdout().write(bytes),
            OutputTarget::Special(file) | OutputTarget::Unnamed(file) => file.write(bytes),
            OutputTarget::Draft(draft) => draft.write(bytes),
        };
        written.map_err(|error| match error.kind() {
            // Those that the caller tries again.
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => error,
            _ => Self::named(&self.path, error),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            OutputTarget::Stdout => io::stdout().flush(),
            OutputTarget::Special(file) | OutputTarget::Unnamed(file) => file.flush(),
            OutputTarget::Draft(draft) => draft.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::UsageError;

    fn refusal(path: &Path, force: bool, inputs: &[&Path]) -> String {
        let error = OutputFile::open(path, force, inputs).err();
        let error = error.unwrap_or_else(|| panic!("{} is opened", path.display()));
        assert!(error.is::<UsageError>(), "{error:#}");
        error.to_string()
    }

    #[test]
    fn an_existing_file_stays_without_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        let write = |force: bool, text: &str| {
            let mut file = OutputFile::open(&path, force, &[]).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.finish().unwrap();
        };
        write(false, "first");
        assert!(refusal(&path, false, &[]).contains("exists\ntry: --force, or another name"));
        write(true, "second");
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        // A draft that is dropped leaves nothing.
        drop(OutputFile::open(&path, true, &[]).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
    }

    #[test]
    fn a_file_is_its_users_alone_unless_it_replaces_one_that_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let open = |force: bool| OutputFile::open(&path, force, &[]).unwrap();
        open(false).finish().unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        open(true).finish().unwrap();
        assert_eq!(mode(), 0o640);
        fs::remove_file(&path).unwrap();
        open(false).for_all_users().finish().unwrap();
        assert_eq!(mode(), 0o644);
        fs::remove_file(&path).unwrap();
        open(false).by_umask().finish().unwrap();
        assert_eq!(mode(), 0o666 & !current_umask());
    }

    #[test]
    fn a_file_without_a_name_gets_one_and_a_draft_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        let names = || {
            let names = fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = names.map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for is_unnamed in [true, false] {
            for force in [false, true] {
                let mut file = OutputFile::open(&path, force, &[]).unwrap();
                match (is_unnamed, &file.target) {
                    // Not every file system has it.
                    (true, OutputTarget::Unnamed(_)) => {
                        assert_eq!(names().len(), usize::from(force))
                    }
                    (true, _) => {}
                    (false, _) => {
                        let draft = tempfile::Builder::new().tempfile_in(folder.path());
                        file.target = OutputTarget::Draft(draft.unwrap());
                    }
                }
                file.write_all(if force { b"two" } else { b"one" }).unwrap();
                file.finish().unwrap();
                assert_eq!(
                    fs::read(&path).unwrap(),
                    if force { b"two" } else { b"one" }
                );
                assert_eq!(names(), ["it"]);
            }
            // Another process was faster.
            let late = OutputFile::open(&path, true, &[]).unwrap();
            let late = OutputFile {
                force: false,
                ..late
            };
            let error = late.finish().unwrap_err();
            assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
            assert_eq!(names(), ["it"]);
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_full_disk_is_named_with_the_file() {
        let mut full = OutputFile::open(Path::new("/dev/full"), false, &[]).unwrap();
        let error = full.write_all(b"text").unwrap_err().to_string();
        assert!(error.contains("cannot write /dev/full: "), "{error}");
        assert!(error.contains("\ntry: a disk with more room"), "{error}");
    }

    #[test]
    fn an_input_is_not_overwritten_under_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let (input, link) = (folder.path().join("in"), folder.path().join("link"));
        let hard = folder.path().join("hard");
        fs::write(&input, "data").unwrap();
        std::os::unix::fs::symlink(&input, &link).unwrap();
        fs::hard_link(&input, &hard).unwrap();
        for name in [&input, &link, &hard] {
            let error = refusal(name, true, &[&input]);
            assert!(error.contains("overwritten while it is read"), "{error}");
        }
    }

    #[test]
    fn own_link_stays_a_link_and_its_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(refusal(&link, false, &[]).contains("exists"));
        OutputFile::open(&link, true, &[])
            .unwrap()
            .finish()
            .unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        fs::remove_file(&file).unwrap();
        assert!(refusal(&link, false, &[]).contains("exists"));
    }

    /// Only root can give a file away; CI and the suites run as root.
    #[test]
    fn what_another_user_put_at_the_name_gets_nothing() {
        const OTHER: Option<u32> = Some(65534);
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (name, precious) = (folder.path().join("it"), folder.path().join("precious"));
        let write = || {
            let mut file = OutputFile::open(&name, true, &[]).unwrap();
            file.write_all(b"text").unwrap();
            file.finish().unwrap();
            assert_eq!(fs::read(&name).unwrap(), b"text");
            let metadata = name.symlink_metadata().unwrap();
            assert!(metadata.is_file() && metadata.uid() == 0);
            assert_eq!(metadata.mode() & 0o777, 0o600);
            fs::remove_file(&name).unwrap();
        };
        for target in ["precious", "nothing", "/dev/null"] {
            fs::write(&precious, "kept").unwrap();
            fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
            std::os::unix::fs::symlink(target, &name).unwrap();
            std::os::unix::fs::lchown(&name, OTHER, None).unwrap();
            assert!(refusal(&name, false, &[]).contains("exists"), "{target}");
            write();
            assert_eq!(fs::read(&precious).unwrap(), b"kept");
        }
        // A chain: the user's link to another user's.
        let between = folder.path().join("between");
        std::os::unix::fs::symlink("precious", &between).unwrap();
        std::os::unix::fs::lchown(&between, OTHER, None).unwrap();
        std::os::unix::fs::symlink("between", &name).unwrap();
        OutputFile::open(&name, true, &[])
            .unwrap()
            .finish()
            .unwrap();
        assert!(name.is_symlink() && !between.is_symlink());
        assert_eq!(fs::read(&precious).unwrap(), b"kept");
        fs::remove_file(&name).unwrap();
        // The mode of another user's file.
        fs::write(&name, "theirs").unwrap();
        fs::set_permissions(&name, fs::Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::chown(&name, OTHER, None).unwrap();
        write();
        // A pipe, with a reader, and a socket.
        let made = std::process::Command::new("mkfifo").arg(&name).status();
        assert!(made.unwrap().success());
        let reader = OpenOptions::new().read(true).write(true).open(&name);
        OutputFile::open(&name, false, &[]).unwrap();
        std::os::unix::fs::chown(&name, OTHER, None).unwrap();
        for force in [false, true] {
            assert!(refusal(&name, force, &[]).contains("pipe or a socket of user 65534"));
            assert!(open_special(&name).is_err());
        }
        drop(reader);
        fs::remove_file(&name).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&name).unwrap();
        std::os::unix::fs::chown(&name, OTHER, None).unwrap();
        assert!(refusal(&name, true, &[]).contains("pipe or a socket of user 65534"));
        drop(socket);
        // A regular file that took the place of a pipe.
        assert!(open_special(&precious).is_err());
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused_and_a_device_is_written() {
        let error = refusal(Path::new("/nowhere/it"), false, &[]);
        assert!(error.contains("cannot write /nowhere/it"), "{error}");
        assert!(refusal(Path::new("/"), true, &[]).contains("is a directory"));
        let mut null = OutputFile::open(Path::new("/dev/null"), false, &[]).unwrap();
        null.write_all(b"text").unwrap();
        null.finish().unwrap();
    }
}
