//! Resolution of the program to run, and whether the loader would preload a library into it.
//!
//! Only headers are read. A file that cannot be read is accepted: the system reports best why
//! it does not start.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::status::ExitStatus;

/// Search path if `PATH` is not set, like the C library's.
const USUAL_PATH: &str = "/bin:/usr/bin";
/// Longest chain of `#!` lines that Linux follows.
const INTERPRETERS: usize = 5;
/// Bytes of a file that are read for its `#!` line, like Linux.
const LINE_BYTES: usize = 256;
/// Most program headers that are examined.
const HEADERS: u64 = 256;

/// Why a program does not start, in a shell's terms.
#[derive(Debug)]
pub(crate) struct NotFound {
    pub(crate) program: PathBuf,
    pub(crate) why: String,
    /// Whether it was not found or may not be executed.
    pub(crate) status: ExitStatus,
}

/// The file that `program` names: itself if it has a slash, else the first executable in `PATH`.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, NotFound> {
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(refused(path, &error)),
        };
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    let mut denied = None;
    for folder in env::split_paths(&folders) {
        let path = folder.join(program);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => denied = denied.or(Some(refused(path, &error))),
        }
    }
    Err(denied.unwrap_or_else(|| NotFound {
        program: program.into(),
        why: format!("it is not in PATH\n  {}", folders.display()),
        status: ExitStatus::NotFound,
    }))
}

fn executable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    Ok(rustix::fs::access(path, Access::EXEC_OK)?)
}

fn refused(program: PathBuf, error: &io::Error) -> NotFound {
    NotFound {
        program,
        why: error.to_string(),
        status: match error.kind() {
            io::ErrorKind::NotFound => ExitStatus::NotFound,
            _ => ExitStatus::NotExecutable,
        },
    }
}

/// Why a library of ours is to be preloaded into a program, for errors.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PreloadPurpose {
    pub(crate) verb: &'static str,
    pub(crate) library: &'static str,
    /// The command line before the program.
    pub(crate) command: &'static str,
    /// A further hint, or empty.
    pub(crate) hint: &'static str,
}

/// Governing, by the hook.
pub(crate) const GOVERNING: PreloadPurpose = PreloadPurpose {
    verb: "govern",
    library: "the hook",
    command: "fercuda run",
    hint: "\ntry: --ungoverned, to start it anyway, without hook and limits",
};

/// A program into which nothing can be preloaded, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ungovernable {
    purpose: &'static PreloadPurpose,
    /// The program to start.
    program: PathBuf,
    /// The file that prevents preloading: the program, or an interpreter of its `#!` line.
    file: PathBuf,
    why: PreloadObstacle,
}

#[derive(Debug, PartialEq, Eq)]
enum PreloadObstacle {
    Static,
    SetUser { owner: u32 },
    SetGroup { group: u32 },
    Capabilities,
    ThirtyTwoBits,
    Machine { number: u16 },
    Musl { loader: String },
    NotElf,
    TooDeep,
}

impl fmt::Display for Ungovernable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PreloadPurpose {
            verb,
            library,
            command,
            hint,
        } = self.purpose;
        write!(f, "cannot {verb} {}: ", self.program.display())?;
        if self.file == self.program {
            f.write_str("it ")?;
        } else {
            write!(f, "it is run by {}, which ", self.file.display())?;
        }
        match &self.why {
            PreloadObstacle::Static => write!(
                f,
                "is statically linked, so there is no loader to preload {library}\n\
                 try: a dynamically linked build of it"
            ),
            PreloadObstacle::SetUser { owner } => write!(
                f,
                "is set-user-ID, and the loader preloads nothing into such programs\n\
                 try: run it as user {owner}"
            ),
            PreloadObstacle::SetGroup { group } => write!(
                f,
                "is set-group-ID, and the loader preloads nothing into such programs\n\
                 try: run it as group {group}"
            ),
            PreloadObstacle::Capabilities => f.write_str(
                "has file capabilities, and the loader preloads nothing into such programs\n\
                 try: a copy of it (cp leaves capabilities out)",
            ),
            PreloadObstacle::ThirtyTwoBits => write!(
                f,
                "is a 32-bit program, but {library} is a 64-bit library\n\
                 try: a 64-bit build of it"
            ),
            PreloadObstacle::Machine { number } => write!(
                f,
                "is for another architecture (ELF machine {number}), but {library} is for x86-64\n\
                 try: an x86-64 build of it"
            ),
            PreloadObstacle::Musl { loader } => write!(
                f,
                "is linked with musl ({loader}), but {library} needs glibc\n\
                 try: a glibc build of it"
            ),
            PreloadObstacle::NotElf => write!(
                f,
                "is neither an ELF program nor a script that begins with #!\n\
                 try: name its interpreter, as in: {command} -- sh FILE"
            ),
            PreloadObstacle::TooDeep => write!(
                f,
                "is a script with a chain of more than {INTERPRETERS} #! lines\n\
                 try: name the last interpreter yourself"
            ),
        }?;
        f.write_str(hint)
    }
}

/// Checks whether a library can be preloaded into `program`, an executable file.
pub(crate) fn examine(
    program: &Path,
    purpose: &'static PreloadPurpose,
) -> Result<(), Ungovernable> {
    let mut file = program.to_owned();
    for _ in 0..=INTERPRETERS {
        let why = match look(&file) {
            ExecutableKind::Fine => return Ok(()),
            ExecutableKind::Interpreter(next) => {
                file = next;
                continue;
            }
            ExecutableKind::Refused(why) => why,
        };
        return Err(Ungovernable {
            purpose,
            program: program.to_owned(),
            file,
            why,
        });
    }
    Err(Ungovernable {
        purpose,
        program: program.to_owned(),
        file: program.to_owned(),
        why: PreloadObstacle::TooDeep,
    })
}

/// The file that finally runs when `program` is started: itself, or the last interpreter of its
/// `#!` lines.
pub(crate) fn runs_on(program: &Path) -> PathBuf {
    let mut file = program.to_owned();
    for _ in 0..=INTERPRETERS {
        match look(&file) {
            ExecutableKind::Interpreter(next) => file = next,
            ExecutableKind::Fine | ExecutableKind::Refused(_) => break,
        }
    }
    file
}

enum ExecutableKind {
    Fine,
    /// A script, run by this interpreter.
    Interpreter(PathBuf),
    Refused(PreloadObstacle),
}

fn look(path: &Path) -> ExecutableKind {
    // A file that is executable but not readable may still allow preloading.
    let Ok(file) = File::open(path) else {
        return ExecutableKind::Fine;
    };
    let mut start = [0; LINE_BYTES];
    let Ok(len) = read_at(&file, 0, &mut start) else {
        return ExecutableKind::Fine;
    };
    let start = &start[..len];
    if let Some(line) = start.strip_prefix(b"#!") {
        return interpreter(line).map_or(
            ExecutableKind::Refused(PreloadObstacle::NotElf),
            ExecutableKind::Interpreter,
        );
    }
    if !start.starts_with(b"\x7fELF") {
        return ExecutableKind::Refused(PreloadObstacle::NotElf);
    }
    match refusal(path, &file, start) {
        Some(why) => ExecutableKind::Refused(why),
        None => ExecutableKind::Fine,
    }
}

/// The interpreter of a `#!` line. For `env NAME` it is NAME, if `PATH` has it, since that is
/// the program that finally runs.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .filter(|word| !word.is_empty())
        .map(|word| PathBuf::from(OsString::from_vec(word.to_owned())));
    let program = words.next()?;
    if program.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words.next()
        && !name.as_os_str().as_bytes().contains(&b'=')
        && let Ok(found) = find(name.as_os_str())
    {
        return Some(found);
    }
    Some(program)
}

/// Why the loader would not preload into an ELF file.
fn refusal(path: &Path, file: &File, start: &[u8]) -> Option<PreloadObstacle> {
    if start.get(4) == Some(&1) {
        return Some(PreloadObstacle::ThirtyTwoBits);
    }
    let machine = word(start, 18, 2)? as u16;
    if machine != 62 {
        return Some(PreloadObstacle::Machine { number: machine });
    }
    match loader(file, start) {
        Ok(None) => return Some(PreloadObstacle::Static),
        Ok(Some(loader)) if loader.contains("ld-musl") => {
            return Some(PreloadObstacle::Musl { loader });
        }
        // The system reports what is wrong with a damaged file.
        Ok(Some(_)) | Err(_) => {}
    }
    let meta = file.metadata().ok()?;
    let (user, group) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if meta.mode() & 0o4000 != 0 && meta.uid() != user {
        return Some(PreloadObstacle::SetUser { owner: meta.uid() });
    }
    // Without the group-execute permission, the set-group-ID bit means something else.
    if meta.mode() & 0o2010 == 0o2010 && meta.gid() != group {
        return Some(PreloadObstacle::SetGroup { group: meta.gid() });
    }
    // Root has the capabilities anyway, so the loader does not enter secure mode.
    let mut value = [0; 64];
    let named = rustix::fs::getxattr(path, "security.capability", &mut value);
    (user != 0 && named.is_ok_and(|len| len > 0)).then_some(PreloadObstacle::Capabilities)
}

/// The program interpreter (loader) that a 64-bit ELF file requests.
fn loader(file: &File, start: &[u8]) -> io::Result<Option<String>> {
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let table = word(start, 32, 8).ok_or_else(damaged)?;
    let size = word(start, 54, 2).ok_or_else(damaged)?;
    let count = word(start, 56, 2).ok_or_else(damaged)?;
    for place in 0..count.min(HEADERS) {
        let mut header = [0; 56];
        let at = table.checked_add(place * size).ok_or_else(damaged)?;
        if read_at(file, at, &mut header)? < header.len() {
            return Err(damaged());
        }
        const INTERP: u64 = 3;
        if word(&header, 0, 4) != Some(INTERP) {
            continue;
        }
        let at = word(&header, 8, 8).ok_or_else(damaged)?;
        let mut name = [0; 256];
        let len = read_at(file, at, &mut name)?;
        let name = name[..len].split(|byte| *byte == 0).next();
        return Ok(name.map(|name| String::from_utf8_lossy(name).into_owned()));
    }
    Ok(None)
}

/// A little-endian number of `len` bytes.
fn word(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    let digits = bytes.iter().rev();
    Some(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Fills `bytes` from offset `at`; returns how many bytes were read.
fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], at.saturating_add(len as u64)) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with one program header, modified by `change`.
    fn elf(loader: Option<&str>, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempPath {
        let mut bytes = vec![0; 512];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = 62;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = if loader.is_some() { 3 } else { 1 };
        bytes[72] = 200;
        let loader = loader.unwrap_or_default();
        bytes[200..200 + loader.len()].copy_from_slice(loader.as_bytes());
        change(&mut bytes);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        file.into_temp_path()
    }

    const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");

    #[test]
    fn headers_show_what_the_loader_would_not_preload_into() {
        let why = |file: &Path| examine(file, &GOVERNING).err().map(|refused| refused.why);
        assert_eq!(why(&elf(GLIBC, |_| {})), None);
        assert_eq!(why(&elf(None, |_| {})), Some(PreloadObstacle::Static));
        assert_eq!(
            why(&elf(GLIBC, |bytes| bytes[4] = 1)),
            Some(PreloadObstacle::ThirtyTwoBits)
        );
        assert_eq!(
            why(&elf(GLIBC, |bytes| bytes[18] = 183)),
            Some(PreloadObstacle::Machine { number: 183 })
        );
        let loader = "/lib/ld-musl-x86_64.so.1";
        assert_eq!(
            why(&elf(Some(loader), |_| {})),
            Some(PreloadObstacle::Musl {
                loader: loader.to_owned()
            })
        );
        assert_eq!(
            why(&elf(GLIBC, |bytes| bytes[0] = b'X')),
            Some(PreloadObstacle::NotElf)
        );
    }

    #[test]
    fn damaged_headers_are_left_to_the_system() {
        for (at, value) in [(39, 0x7f), (32, 0xff), (57, 0xff)] {
            let file = elf(GLIBC, |bytes| {
                bytes[64] = 1;
                bytes[at] = value;
                bytes.truncate(256);
            });
            assert_eq!(
                examine(&file, &GOVERNING).map_err(|refused| refused.why),
                Ok(())
            );
        }
        let file = elf(GLIBC, |bytes| bytes.truncate(20));
        assert!(examine(&file, &GOVERNING).is_ok());
    }

    #[test]
    fn a_script_is_as_governable_as_its_interpreter() {
        let inner = elf(None, |_| {});
        let script = tempfile::NamedTempFile::new().unwrap();
        for (line, file) in [
            (format!("#!{} -x\n", inner.display()), inner.to_path_buf()),
            (format!("#! \t{}", inner.display()), inner.to_path_buf()),
        ] {
            fs::write(script.path(), line).unwrap();
            let refused = examine(script.path(), &GOVERNING).unwrap_err();
            assert_eq!((refused.file, refused.why), (file, PreloadObstacle::Static));
        }
        fs::write(script.path(), "#!/bin/sh\n").unwrap();
        assert_eq!(examine(script.path(), &GOVERNING), Ok(()));
        fs::write(script.path(), "#!/usr/bin/env sh\n").unwrap();
        assert_eq!(examine(script.path(), &GOVERNING), Ok(()));
        fs::write(script.path(), "#!\n").unwrap();
        assert_eq!(
            examine(script.path(), &GOVERNING).unwrap_err().why,
            PreloadObstacle::NotElf
        );
        // A script that names itself.
        fs::write(script.path(), format!("#!{}\n", script.path().display())).unwrap();
        assert_eq!(
            examine(script.path(), &GOVERNING).unwrap_err().why,
            PreloadObstacle::TooDeep
        );
    }
}
