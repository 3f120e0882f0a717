//! Private, verified, content-addressed disk cache of compiled programs.
//!
//! A directory owned by the user (mode 0700) holds one file (mode 0600) for each program, named by
//! the SHA-256 of everything the program depends on. A file begins with the SHA-256 of its content,
//! so a truncated or modified file is detected, reported and written again. Files appear
//! atomically, by a rename.
//!
//! File format: the line `fercuda nvrtc 1` (or another kind of program, in which case file names
//! begin with the kind), a line with the hash of the rest in hex, then code, log and the pairs of
//! names, each preceded by its length (8 bytes, little-endian).
//!
//! Invariant: every error here is a [`CacheWarning`]; nothing fails because of the cache.
//! Elsewhere: compilers (`fercuda-nvrtc`, `fercuda-jit`).

#![forbid(unsafe_code)]

mod entry;
mod owner;
#[cfg(test)]
mod property;

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

use entry::{hex, read_entry, write_entry};

pub use entry::CachedProgram;
pub use owner::is_uid_mapped;

/// The environment variable with the cache's directory; empty means no cache.
pub const CACHE_VARIABLE: &str = "FERCUDA_CACHE";

/// A limit above the size of any program compiled at run time; a larger file is no entry.
const ENTRY_BYTES_MAX: u64 = 1 << 30;

/// The kind of programs that NVRTC compiles.
const NVRTC: &str = "nvrtc";

/// A cache directory, and the kind of programs looked up in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCache {
    directory: PathBuf,
    kind: &'static str,
}

/// Why the cache was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheWarning {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for CacheWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the cache of compiled programs was not used: {}: {}\n\
             try: a private directory of yours in FERCUDA_CACHE",
            self.path.display(),
            self.reason
        )
    }
}

/// The hash of everything a compiled program depends on.
#[derive(Clone, Debug)]
pub struct CacheKey(Sha256);

impl Default for CacheKey {
    fn default() -> Self {
        Self::new()
    }
}

impl CacheKey {
    /// The key of an empty list of parts.
    pub fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds one part, preceded by label and length, so that no two lists of parts have the same
    /// bytes.
    pub fn add(&mut self, label: &str, part: impl AsRef<[u8]>) {
        for bytes in [label.as_bytes(), part.as_ref()] {
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
    }

    fn file_name(&self) -> String {
        hex(&self.0.clone().finalize())
    }
}

/// Outcome of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum CacheLookup {
    /// A complete entry.
    Found(CachedProgram),
    /// No entry.
    Absent,
    /// An entry that is corrupt or not trusted.
    Unusable(CacheWarning),
}

impl ProgramCache {
    /// The user's cache: `FERCUDA_CACHE`, else `fercuda/nvrtc` in `XDG_CACHE_HOME` or in
    /// `~/.cache`. `None` if `FERCUDA_CACHE` is empty or there is no home directory.
    pub fn of_user() -> Option<Self> {
        Self::of_user_for(NVRTC)
    }

    /// As [`ProgramCache::of_user`], for programs of another `kind`: letters alone. Its own
    /// directory is `fercuda/KIND`.
    pub fn of_user_for(kind: &'static str) -> Option<Self> {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        if let Some(directory) = path(CACHE_VARIABLE) {
            return (!directory.as_os_str().is_empty()).then(|| Self::at_for(directory, kind));
        }
        let caches = path("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| path("HOME").map(|home| home.join(".cache")))?;
        Some(Self::at_for(caches.join("fercuda").join(kind), kind))
    }

    /// A cache in `directory`, which is created when first needed.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self::at_for(directory, NVRTC)
    }

    /// As [`ProgramCache::at`], for programs of another kind.
    pub fn at_for(directory: impl Into<PathBuf>, kind: &'static str) -> Self {
        Self {
            directory: directory.into(),
            kind,
        }
    }

    fn path(&self, key: &CacheKey) -> PathBuf {
        let name = key.file_name();
        self.directory.join(match self.kind {
            NVRTC => name,
            kind => format!("{kind}-{name}"),
        })
    }

    fn header(&self) -> String {
        format!("fercuda {} 1\n", self.kind)
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program that was stored under `key`.
    pub fn look_up(&self, key: &CacheKey) -> CacheLookup {
        let path = self.path(key);
        let unusable = |reason: String| {
            CacheLookup::Unusable(CacheWarning {
                path: path.clone(),
                reason,
            })
        };
        let file = match fs::OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(&path)
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return CacheLookup::Absent,
            Err(error) => return unusable(error.to_string()),
        };
        // Another user may have put the file there while the directory was writable, so its own
        // owner is checked too.
        let privacy = self.check_private().and_then(|()| {
            let metadata = file.metadata().map_err(|error| warning_of(&path, &error))?;
            check_owner(&path, &metadata)
        });
        if let Err(warning) = privacy {
            return CacheLookup::Unusable(warning);
        }
        let len = match file.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) => return unusable(error.to_string()),
        };
        if len > ENTRY_BYTES_MAX {
            return unusable(format!("it is larger than {ENTRY_BYTES_MAX} bytes"));
        }
        match read_entry(&self.header(), len, file) {
            Ok(Some(entry)) => CacheLookup::Found(entry),
            Ok(None) => unusable("it is corrupt; the program is compiled again".into()),
            Err(error) => unusable(error.to_string()),
        }
    }

    /// Stores a program under `key`.
    ///
    /// # Errors
    /// A [`CacheWarning`] if it is not stored.
    pub fn store(
        &self,
        key: &CacheKey,
        code: &[u8],
        log: &str,
        names: &[(String, String)],
    ) -> Result<(), CacheWarning> {
        let of_directory = |error: io::Error| warning_of(&self.directory, &error);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(of_directory)?;
        self.check_private()?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = self
            .directory
            .join(format!(".{}-{unique}.part", std::process::id()));
        let path = self.path(key);
        let written = write_entry(&temporary, &self.header(), code, log, names)
            .and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|error| {
            // Best effort: the file may not exist.
            drop(fs::remove_file(&temporary));
            CacheWarning {
                path,
                reason: error.to_string(),
            }
        })
    }

    /// Removes the oldest programs of this kind, by time of writing, until at most `most` bytes are
    /// left. A file that another process removes meanwhile is no error.
    ///
    /// # Errors
    /// A [`CacheWarning`] if the directory cannot be read.
    pub fn trim(&self, most: u64) -> Result<(), CacheWarning> {
        let of_directory = |error: io::Error| warning_of(&self.directory, &error);
        let prefix = match self.kind {
            NVRTC => String::new(),
            kind => format!("{kind}-"),
        };
        let is_ours = |name: &str| {
            let hash = name.strip_prefix(&prefix);
            hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(of_directory)? {
            let entry = entry.map_err(of_directory)?;
            if entry.file_name().to_str().is_some_and(is_ours)
                && let Ok(metadata) = entry.metadata()
            {
                let written = metadata.modified().unwrap_or(std::time::UNIX_EPOCH);
                files.push((written, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let lens = files.iter().map(|(_, len, _)| *len);
        // A sparse file has any length.
        let mut bytes = lens.fold(0, u64::saturating_add);
        for (_, len, path) in files {
            if bytes <= most {
                break;
            }
            // Another process may have removed it already.
            drop(fs::remove_file(path));
            bytes = bytes.saturating_sub(len);
        }
        Ok(())
    }

    /// Checks that no other user can write to the directory: files put there by another user would
    /// be executed.
    fn check_private(&self) -> Result<(), CacheWarning> {
        let metadata =
            fs::metadata(&self.directory).map_err(|error| warning_of(&self.directory, &error))?;
        check_owner(&self.directory, &metadata)
    }
}

fn warning_of(path: &Path, error: &io::Error) -> CacheWarning {
    CacheWarning {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// Checks that `path` belongs to this process's user and that no other user can write to it.
fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), CacheWarning> {
    let warning = |reason: String| CacheWarning {
        path: path.to_owned(),
        reason,
    };
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(warning(format!(
            "it belongs to user {}, this process runs as {user}",
            metadata.uid()
        )));
    }
    if !is_uid_mapped(user) {
        return Err(warning(format!(
            "it belongs to user {user}, which has no number in this user namespace"
        )));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(warning(format!(
            "other users can write to it (mode {:o})",
            metadata.mode() & 0o777
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt as _;

    use fercuda_trials::{Work, try_corpus};

    use super::property::holds_for;
    use super::*;

    fn key(parts: &[&str]) -> CacheKey {
        let mut key = CacheKey::new();
        for part in parts {
            key.add("part", part);
        }
        key
    }

    fn names() -> Vec<(String, String)> {
        vec![("f<int>".into(), "_Z1fIiEvv".into())]
    }

    #[test]
    fn a_stored_program_is_found_again_complete() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::at(folder.path().join("deep/cache"));
        assert_eq!(cache.look_up(&key(&["a"])), CacheLookup::Absent);
        cache.store(&key(&["a"]), b"code", "log", &names()).unwrap();
        let entry = CachedProgram {
            code: b"code".to_vec(),
            log: "log".into(),
            names: names(),
        };
        assert_eq!(cache.look_up(&key(&["a"])), CacheLookup::Found(entry));
        assert_eq!(cache.look_up(&key(&["b"])), CacheLookup::Absent);
    }

    #[test]
    fn directory_and_files_are_private_and_no_part_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::at(folder.path().join("cache"));
        cache.store(&key(&["a"]), b"code", "", &[]).unwrap();
        assert_eq!(
            fs::metadata(cache.directory()).unwrap().mode() & 0o777,
            0o700
        );
        let files: Vec<_> = fs::read_dir(cache.directory())
            .unwrap()
            .map(|entry| entry.unwrap())
            .collect();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::at(folder.path());
        cache.store(&key(&["a"]), b"code", "", &[]).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            cache.look_up(&key(&["a"])),
            CacheLookup::Unusable(_)
        ));
        let warning = cache.store(&key(&["b"]), b"code", "", &[]).unwrap_err();
        assert!(warning.reason.contains("777"), "{warning}");
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o777);
    }

    #[test]
    fn an_entry_others_could_have_written_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::at(folder.path().join("cache"));
        let key = key(&["a"]);
        cache.store(&key, b"code", "", &[]).unwrap();
        let path = cache.directory().join(key.file_name());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(cache.look_up(&key), CacheLookup::Unusable(_)));
        let elsewhere = folder.path().join("elsewhere");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(matches!(cache.look_up(&key), CacheLookup::Unusable(_)));
    }

    /// A file that counts what is read of it.
    struct Counted(u64);

    impl Read for &mut Counted {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(0);
            self.0 += into.len() as u64;
            Ok(into.len())
        }
    }

    #[test]
    fn an_entry_whose_lengths_contradict_its_file_is_not_read() {
        let header = "fercuda nvrtc 1\n";
        let mut zeros = Counted(0);
        let read = read_entry(header, ENTRY_BYTES_MAX, &mut zeros).unwrap();
        assert_eq!((read, zeros.0), (None, header.len() as u64 + 73));
        // The code's length alone is wrong: what would follow it is not read either.
        let head = format!("{header}{}\n", "0".repeat(64));
        for len in [7, u64::MAX / 2, u64::MAX].map(u64::to_le_bytes) {
            let mut zeros = Counted(0);
            let file = head.as_bytes().chain(&len[..]).chain(&mut zeros);
            let whole = head.len() as u64 + 8 + 6;
            assert_eq!(read_entry(header, whole, file).unwrap(), None);
            assert_eq!(zeros.0, 0, "{len:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::at(folder.path());
        let key = key(&["a"]);
        cache.store(&key, b"code", "", &[]).unwrap();
        let file = File::options().write(true).open(cache.path(&key)).unwrap();
        // Sparse, and refused before a byte of it is read.
        file.set_len(ENTRY_BYTES_MAX + 1).unwrap();
        let CacheLookup::Unusable(warning) = cache.look_up(&key) else {
            panic!("it is used");
        };
        assert!(warning.reason.contains("larger than"), "{warning}");
        // More than all disks have, in two files.
        for name in ["0", "1"] {
            let file = File::create(folder.path().join(name.repeat(64))).unwrap();
            file.set_len(i64::MAX as u64).ok();
        }
        cache.trim(u64::MAX / 2).unwrap();
    }

    #[test]
    fn mutated_entries_are_read_or_refused() {
        const WORK: Work = Work {
            name: "cache-entries",
            least: 1000,
            ci_seconds: 1,
            soak: 10_000_000,
        };
        try_corpus(env!("CARGO_MANIFEST_DIR"), WORK, holds_for);
    }

    #[test]
    fn any_corruption_of_an_entry_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::at(folder.path());
        let key = key(&["a"]);
        cache.store(&key, b"code", "log", &names()).unwrap();
        let path = folder.path().join(key.file_name());
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert!(
                matches!(cache.look_up(&key), CacheLookup::Unusable(_)),
                "truncated at {len}"
            );
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(
                matches!(cache.look_up(&key), CacheLookup::Unusable(_)),
                "changed at {at}"
            );
        }
        cache.store(&key, b"code", "log", &names()).unwrap();
        assert!(matches!(cache.look_up(&key), CacheLookup::Found(_)));
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = ProgramCache::at(file.join("cache"));
        let warning = cache.store(&key(&["a"]), b"code", "", &[]).unwrap_err();
        assert!(warning.to_string().contains("FERCUDA_CACHE"), "{warning}");
    }

    #[test]
    fn kinds_of_programs_in_one_directory_are_separate() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, other) = (
            ProgramCache::at(folder.path()),
            ProgramCache::at_for(folder.path(), "other"),
        );
        let key = key(&["a"]);
        other.store(&key, b"code", "", &[]).unwrap();
        assert_eq!(ours.look_up(&key), CacheLookup::Absent);
        fs::rename(other.path(&key), ours.path(&key)).unwrap();
        assert!(matches!(ours.look_up(&key), CacheLookup::Unusable(_)));
    }

    #[test]
    fn trimming_removes_the_oldest_programs_of_its_own_kind() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, other) = (
            ProgramCache::at(folder.path()),
            ProgramCache::at_for(folder.path(), "other"),
        );
        let keys: Vec<CacheKey> = ["a", "b", "c"].map(|part| key(&[part])).into();
        other.store(&keys[0], &[1; 1000], "", &[]).unwrap();
        for (at, key) in keys.iter().enumerate() {
            ours.store(key, &[0; 1000], "", &[]).unwrap();
            let written = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at as u64 + 1);
            let file = fs::File::options()
                .write(true)
                .open(ours.path(key))
                .unwrap();
            file.set_modified(written).unwrap();
        }
        ours.trim(1 << 20).unwrap();
        let left = || {
            keys.iter()
                .map(|key| ours.look_up(key) != CacheLookup::Absent)
        };
        assert_eq!(left().collect::<Vec<_>>(), [true, true, true]);
        ours.trim(2500).unwrap();
        assert_eq!(left().collect::<Vec<_>>(), [false, true, true]);
        assert!(matches!(other.look_up(&keys[0]), CacheLookup::Found(_)));
    }

    #[test]
    fn lists_of_parts_are_unambiguous() {
        assert_ne!(key(&["ab", "c"]).file_name(), key(&["a", "bc"]).file_name());
        assert_ne!(key(&["a", ""]).file_name(), key(&["", "a"]).file_name());
    }
}
