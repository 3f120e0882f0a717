//! Things that chores install, in the user's cache folder, each under the hash of what determines
//! its content.
//!
//! A checkout's `build/NAME` is a symbolic link there, so a second checkout installs nothing that
//! the first one has. Without a cache folder that can be written, it is a folder of the checkout.
//!
//! Invariants: a folder is complete if its stamp exists, which is written last; one process at a
//! time installs into it, under a lock.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};

use crate::shell;

/// The file in a complete folder.
const STAMP: &str = "fercuda-complete";
/// How long a folder that no checkout uses is kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// What to install.
pub(crate) struct Wanted<'a> {
    /// The name of the link in `build/`.
    pub name: &'a str,
    /// Everything that determines the content: requirements with their hashes, versions.
    pub key: &'a [u8],
    /// What is printed before it is installed.
    pub what: &'a str,
    /// Whether it is installed again even if it is complete.
    pub force: bool,
}

/// The folder with what is wanted, installed by `install` if it is not complete; whether it was.
pub(crate) fn folder(
    wanted: &Wanted<'_>,
    install: impl FnOnce(&Path) -> Result<()>,
) -> Result<(PathBuf, bool)> {
    let link = shell::root().join("build").join(wanted.name);
    let place = match cache() {
        Some(cache) => cache.join(format!("{}-{}", wanted.name, hash(wanted.key))),
        None => {
            // An older link may lead to a place that is not trusted any more.
            if fs::symlink_metadata(&link).is_ok_and(|it| it.is_symlink()) {
                remove(&link)?;
            }
            link.clone()
        }
    };
    let was_complete = complete(wanted, &place, install)?;
    if place != link {
        point(&link, &place)?;
        sweep(&place, wanted.name);
    }
    Ok((place, was_complete))
}

/// Installs into a folder what is wanted unless that is there; whether it was.
fn complete(
    wanted: &Wanted<'_>,
    place: &Path,
    install: impl FnOnce(&Path) -> Result<()>,
) -> Result<bool> {
    let _lock = lock(place, wanted.what)?;
    let stamp = place.join(STAMP);
    if !wanted.force && fs::read(&stamp).is_ok_and(|had| had == wanted.key) {
        // Says when it was last used.
        if let Ok(stamp) = File::options().append(true).open(&stamp) {
            let _only_a_hint = stamp.set_modified(SystemTime::now());
        }
        return Ok(true);
    }
    shell::step(&format!("set-up: {}", wanted.what));
    remove(place)?;
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    install(place)?;
    fs::write(&stamp, wanted.key).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(false)
}

/// Folder for all of them: `fercuda-build` in the user's cache folder, with access for the user
/// alone; `None` if there is no such folder and none can be made.
fn cache() -> Option<PathBuf> {
    let named = |name: &str| -> Option<OsString> { std::env::var_os(name) };
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let of_home = || Some(named("HOME").and_then(absolute)?.join(".cache"));
    let cache = named("XDG_CACHE_HOME")
        .and_then(absolute)
        .or_else(of_home)?;
    let ours = cache.join("fercuda-build");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&ours);
    let is_ours = made.is_ok() && is_private(&ours);
    is_ours.then_some(ours)
}

/// Whether a folder is the user's, and no other user may write there.
fn is_private(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let user = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(folder)
        .is_ok_and(|it| it.is_dir() && it.uid() == user && it.mode() & 0o022 == 0)
}

/// The first digits of a key's SHA-256. The stamp has the whole key.
fn hash(key: &[u8]) -> String {
    let digest = Sha256::digest(key);
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Waits for other processes that install into a folder.
fn lock(place: &Path, what: &str) -> Result<File> {
    let path = place.with_extension("lock");
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let opened = File::create(&path);
    let file = opened.with_context(|| format!("cannot write {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        println!("another process sets up {what}; waiting for it");
        let locked = flock(&file, FlockOperation::LockExclusive);
        locked.with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// Makes a checkout's link, in place of what an earlier version of this program installed there.
fn point(link: &Path, place: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|there| there == place) {
        return Ok(());
    }
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    // A folder cannot be replaced by renaming; a link can, so two processes do not collide.
    if fs::symlink_metadata(link).is_ok_and(|it| it.is_dir()) {
        remove(link)?;
    }
    let draft = link.with_extension(format!("{}", std::process::id()));
    remove(&draft)?;
    symlink(place, &draft)
        .and_then(|()| fs::rename(&draft, link))
        .with_context(|| format!("cannot make {}", link.display()))
}

/// Removes a link, or a folder and all in it.
fn remove(path: &Path) -> Result<()> {
    let Ok(there) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let removed = match there.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

/// Removes folders of the same name that nothing has used for long. A failure leaves them there.
fn sweep(place: &Path, name: &str) {
    let others = place.parent().and_then(|parent| fs::read_dir(parent).ok());
    for other in others.into_iter().flatten().flatten() {
        let path = other.path();
        let file = other.file_name();
        let number = file.to_str().and_then(|it| it.strip_prefix(name));
        let number = number.and_then(|it| it.strip_prefix('-'));
        let is_one = number.is_some_and(|it| it.len() == 16 && u64::from_str_radix(it, 16).is_ok());
        if !is_one || path == place {
            continue;
        }
        let used = fs::metadata(path.join(STAMP)).and_then(|stamp| stamp.modified());
        let age = used.map(|used| SystemTime::now().duration_since(used).unwrap_or_default());
        if age.is_ok_and(|age| age > KEPT)
            && let Ok(lock) = File::create(path.with_extension("lock"))
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _left_for_the_next_time = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_installed_once_and_again_after_a_failure() {
        let root = tempfile::tempdir().expect("a folder");
        let wanted = |force: bool| Wanted {
            name: "thing",
            key: b"thing 1",
            what: "a thing",
            force,
        };
        let place = root.path().join("thing-0123456789abcdef");
        let fails = complete(&wanted(false), &place, |_| anyhow::bail!("no network"));
        assert!(fails.is_err());
        let mut times = 0;
        for (force, was_complete) in [(false, false), (false, true), (true, false), (false, true)] {
            let done = complete(&wanted(force), &place, |at| {
                // What an attempt left is gone.
                assert!(fs::read_dir(at)?.next().is_none());
                times += 1;
                Ok(fs::write(at.join("content"), "x")?)
            });
            assert_eq!(done.expect("it is installed"), was_complete);
            assert!(place.join("content").is_file());
        }
        assert_eq!(times, 2);
        // Another key: the folder is not what is wanted.
        let other = Wanted {
            key: b"thing 2",
            ..wanted(false)
        };
        assert!(!complete(&other, &place, |_| Ok(())).expect("it is installed"));
    }

    #[test]
    fn only_unused_folders_of_the_same_name_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let long_ago = SystemTime::now() - 2 * KEPT;
        let make = |name: &str, when: SystemTime| {
            let folder = root.path().join(name);
            fs::create_dir(&folder).expect("a folder");
            let stamp = File::create(folder.join(STAMP)).expect("a stamp");
            stamp.set_modified(when).expect("a time");
            folder
        };
        let current = make("venv-0000000000000001", long_ago);
        let old = make("venv-0000000000000002", long_ago);
        let recent = make("venv-0000000000000003", SystemTime::now());
        let others = make("venv-other", long_ago);
        let another = make("suites-0000000000000002", long_ago);
        sweep(&current, "venv");
        assert!(!old.exists());
        for kept in [current, recent, others, another] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn a_folder_that_others_may_write_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().expect("a folder");
        assert!(is_private(root.path()));
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(root.path(), open).expect("a mode");
        assert!(!is_private(root.path()));
    }
}
