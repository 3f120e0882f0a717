//! Files that a command writes: results that the user asked to have in a file.
//!
//! Invariant: an existing file is replaced only with `--force`, and a file that the command reads
//! never; a file gets its name when it is complete, and is its user's alone, whatever the umask,
//! unless it replaces one with other permissions. `-` is standard output.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
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
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        // A dangling link is an existing name.
        Err(_) if path.symlink_metadata().is_ok() && !force => {
            bail_usage!("{name} exists\ntry: --force, or another name")
        }
        Err(_) => return Ok(()),
    };
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
    for path in paths.iter().filter(|it| !is_stream(it) && !is_special(it)) {
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

/// Whether a path is written to, not replaced: a device, a pipe, or a descriptor of the process.
fn is_special(path: &Path) -> bool {
    let kind = fs::metadata(path).map(|it| it.file_type());
    let is_descriptor = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"]
        .iter()
        .any(|prefix| path.starts_with(prefix));
    is_descriptor
        || kind.is_ok_and(|it| {
            it.is_char_device() || it.is_block_device() || it.is_fifo() || it.is_socket()
        })
}

/// Permissions of a new file.
const PRIVATE: u32 = 0o600;
/// Permissions of a new file that is meant for all users.
const PUBLIC: u32 = 0o644;

/// A file that is being written.
pub(crate) struct OutputFile {
    path: PathBuf,
    force: bool,
    mode: u32,
    target: OutputTarget,
}

enum OutputTarget {
    Stdout,
    /// A device or a pipe.
    Special(File),
    /// Gets its name when complete; removed if it is not.
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
        let target = if is_stream(path) {
            Ok(OutputTarget::Stdout)
        } else if is_special(path) {
            // Another description of a file that standard output may be, such as /dev/stdout.
            let file = OpenOptions::new().append(true).open(path);
            file.map(OutputTarget::Special)
        } else {
            OutputTarget::draft(path)
        };
        match target {
            Ok(target) => Ok(OutputFile {
                path: path.to_owned(),
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

    /// Completes the file: it gets its name.
    ///
    /// # Errors
    /// It cannot be written, or another process has created a file of that name meanwhile.
    pub(crate) fn finish(mut self) -> Result<()> {
        let what = format!("cannot write {}", self.path.display());
        self.flush().with_context(|| what.clone())?;
        if let OutputTarget::Draft(draft) = self.target {
            // A link stays one: the file that it leads to is replaced.
            let path = self.path.canonicalize().unwrap_or(self.path);
            let replaced = fs::metadata(&path).map(|it| it.permissions().mode() & 0o777);
            let permissions = fs::Permissions::from_mode(replaced.unwrap_or(self.mode));
            let set = draft.as_file().set_permissions(permissions);
            set.with_context(|| what.clone())?;
            let named = match self.force {
                true => draft.persist(path),
                false => draft.persist_noclobber(path),
            };
            named.map_err(|error| error.error).with_context(|| what)?;
        }
        Ok(())
    }
}

impl OutputTarget {
    fn draft(path: &Path) -> io::Result<OutputTarget> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let draft = tempfile::Builder::new()
            .prefix(".fercuda-")
            .permissions(fs::Permissions::from_mode(PRIVATE))
            .tempfile_in(folder)?;
        Ok(OutputTarget::Draft(draft))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.target {
            OutputTarget::Stdout => io::stdout().write(bytes),
            OutputTarget::Special(file) => file.write(bytes),
            OutputTarget::Draft(draft) => draft.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            OutputTarget::Stdout => io::stdout().flush(),
            OutputTarget::Special(file) => file.flush(),
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
    fn a_folder_that_is_not_there_is_refused_and_a_device_is_written() {
        let error = refusal(Path::new("/nowhere/it"), false, &[]);
        assert!(error.contains("cannot write /nowhere/it"), "{error}");
        assert!(refusal(Path::new("/"), true, &[]).contains("is a directory"));
        let mut null = OutputFile::open(Path::new("/dev/null"), false, &[]).unwrap();
        null.write_all(b"text").unwrap();
        null.finish().unwrap();
    }
}
