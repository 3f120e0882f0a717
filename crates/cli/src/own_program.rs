//! Path to start this program again by.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The running executable, by a link that the system keeps.
const RUNNING: &str = "/proc/self/exe";

/// The path of this program if it still leads to the running executable, else the system's link to
/// that. A file that was removed has `NAME (deleted)` as its path, and in a folder such as `/tmp`
/// any user can create a file of that name.
pub(crate) fn path() -> PathBuf {
    let named = fs::read_link(RUNNING).unwrap_or_default();
    checked(named, Path::new(RUNNING))
}

fn checked(named: PathBuf, running: &Path) -> PathBuf {
    let identity = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    match identity(&named).is_some_and(|it| Some(it) == identity(running)) {
        true => named,
        false => running.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_under_the_name_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let (program, running) = (folder.path().join("program"), folder.path().join("running"));
        fs::write(&program, "").unwrap();
        fs::hard_link(&program, &running).unwrap();
        assert_eq!(checked(program.clone(), &running), program);
        fs::remove_file(&program).unwrap();
        assert_eq!(checked(program.clone(), &running), running);
        fs::write(&program, "planted").unwrap();
        assert_eq!(checked(program, &running), running);
        assert_eq!(path(), std::env::current_exe().unwrap());
    }
}
