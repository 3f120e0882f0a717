//! Ownership check of a path that only the user and root can have changed.
//!
//! Code found at such a path is loaded or run, so another user must not be able to put it there.
//! Every component from the root of the filesystem down is examined by `lstat`: its owner is the
//! effective user or root, and neither its group nor others may write to it. A directory with the
//! sticky bit (`/tmp`) may be writable if it is not the last component: entries of other users
//! are refused by their owner, and those of the user cannot be renamed by them. What belongs to a
//! program may also be changed by those that could change the program.
//!
//! Invariant: a path that passes can be changed by the user and root only, so there is no
//! race between this check and the use of the path. A component is looked at when all those above
//! it have passed: entries of a folder can be exchanged by users that may write to it, and, where
//! it is sticky, by its owner and the entry's, of which all are now the user and root. So what is
//! seen below is final for anybody else, and what is opened by that path later is the same. A
//! descriptor of a folder from before the check does not help: each write is checked anew.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use fercuda_cache::is_uid_mapped;

/// As many symbolic links are followed as Linux follows in one path.
const LINKS_MAX: usize = 40;

/// What makes a path unfit to load code from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrustedPath {
    /// The component concerned, from the root of the filesystem.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for UntrustedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// Whether symbolic links are allowed on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Followed; each link and each component of its target is checked too.
    Followed,
    /// Refused in the last so many components, followed above them.
    RefusedInLast(usize),
}

/// Users and groups that may be able to change what passes.
struct TrustedOwners {
    /// The user of this process.
    user: u32,
    owners: Vec<u32>,
    /// Groups whose members may write.
    groups: Vec<u32>,
}

impl TrustedOwners {
    /// The user and root.
    fn user_and_root() -> TrustedOwners {
        let user = rustix::process::geteuid().as_raw();
        TrustedOwners {
            user,
            owners: vec![0, user],
            groups: Vec::new(),
        }
    }

    /// These, and all that could exchange `program`, a canonical path: the owners of the file and
    /// of the folders on its way, and groups that may write to them. An entry of a sticky folder is
    /// its owner's alone.
    fn with_owners_of(program: &Path) -> TrustedOwners {
        let mut trusted = TrustedOwners::user_and_root();
        // Users without a number in this namespace cannot be distinguished: of theirs is only what
        // stands in folders of one of them.
        let is_shared = program.ancestors().skip(1).any(|folder| {
            let metadata = fs::symlink_metadata(folder);
            metadata.is_ok_and(|it| it.mode() & 0o022 != 0)
        });
        for (distance, component) in program.ancestors().enumerate() {
            let Ok(metadata) = fs::symlink_metadata(component) else {
                continue;
            };
            if is_uid_mapped(metadata.uid()) || !is_shared {
                trusted.owners.push(metadata.uid());
            }
            let is_sticky = distance > 0 && metadata.mode() & 0o1000 != 0;
            if metadata.mode() & 0o020 != 0 && !is_sticky {
                trusted.groups.push(metadata.gid());
            }
        }
        trusted
    }
}

/// Checks `path`, a file that belongs to `program`, and follows symbolic links: only those can have
/// changed it that could change the program itself.
///
/// # Errors
/// The first component that another user could have changed, or that is missing.
pub(crate) fn check_as_program(program: &Path, path: &Path) -> Result<(), UntrustedPath> {
    walk(
        path,
        Links::Followed,
        &TrustedOwners::with_owners_of(program),
    )
}

/// Checks `below`, a relative path, in the directory `base`: no symbolic link is allowed in
/// `below`. Links in `base`, for instance a home directory on another disk, are followed, and
/// their targets checked.
///
/// # Errors
/// The first component that another user could have changed, or that is missing.
pub(crate) fn check_below(base: &Path, below: &Path) -> Result<(), UntrustedPath> {
    let count = below.components().count();
    walk(
        &base.join(below),
        Links::RefusedInLast(count),
        &TrustedOwners::user_and_root(),
    )
}

/// Checks `path` and follows symbolic links, each of which passes the same check as its target.
///
/// # Errors
/// The first component that another user could have changed, or that is missing.
pub(crate) fn check_followed(path: &Path) -> Result<(), UntrustedPath> {
    walk(path, Links::Followed, &TrustedOwners::user_and_root())
}

fn walk(path: &Path, links: Links, trusted: &TrustedOwners) -> Result<(), UntrustedPath> {
    let refuse = |path: &Path, reason: String| UntrustedPath {
        path: path.to_owned(),
        reason,
    };
    if !path.is_absolute() {
        return Err(refuse(path, "it is not an absolute path".to_owned()));
    }
    let user = trusted.user;
    if !is_uid_mapped(user) {
        let reason = format!(
            "its owner is not known: user {user} stands for all without a number in this user \
             namespace"
        );
        return Err(refuse(path, reason));
    }
    let mut followed = 0;
    let mut done = PathBuf::from("/");
    let mut left: VecDeque<OsString> = components(path);
    // Components of the original path that no link has replaced: the last ones.
    let mut original = left.len();
    check_one(&done, left.is_empty(), trusted)?;
    while let Some(name) = left.pop_front() {
        original = original.min(left.len() + 1);
        if name == ".." {
            // The parent of a directory that was checked was checked before it.
            done.pop();
            continue;
        }
        let next = done.join(&name);
        let is_link = check_one(&next, left.is_empty(), trusted)?;
        if !is_link {
            done = next;
            continue;
        }
        let refused = match links {
            Links::Followed => false,
            Links::RefusedInLast(count) => original <= count,
        };
        if refused {
            return Err(refuse(&next, "it is a symbolic link".to_owned()));
        }
        followed += 1;
        if followed > LINKS_MAX {
            let reason = format!("more than {LINKS_MAX} symbolic links lead on from it");
            return Err(refuse(&next, reason));
        }
        let target = fs::read_link(&next).map_err(|error| refuse(&next, error.to_string()))?;
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        let mut replaced = components(&target);
        replaced.append(&mut left);
        left = replaced;
    }
    Ok(())
}

fn components(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}

/// Checks one component, of which the parents have passed; returns whether it is a symbolic link.
fn check_one(path: &Path, is_last: bool, trusted: &TrustedOwners) -> Result<bool, UntrustedPath> {
    let refuse = |reason: String| {
        Err(UntrustedPath {
            path: path.to_owned(),
            reason,
        })
    };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return refuse(error.to_string()),
    };
    if !trusted.owners.contains(&metadata.uid()) {
        return refuse(format!(
            "it belongs to user {}, neither to root nor to user {}",
            metadata.uid(),
            trusted.user
        ));
    }
    let kind = metadata.file_type();
    if kind.is_symlink() {
        // Its mode means nothing; its directory has passed.
        return Ok(true);
    }
    if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device() {
        return refuse("it is neither a file nor a directory".to_owned());
    }
    let is_sticky = kind.is_dir() && metadata.mode() & 0o1000 != 0 && !is_last;
    let strangers = match trusted.groups.contains(&metadata.gid()) {
        true => 0o002,
        false => 0o022,
    };
    if metadata.mode() & strangers != 0 && !is_sticky {
        return refuse(format!(
            "its group or others may write to it (mode {:o})",
            metadata.mode() & 0o7777
        ));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A home with a library four directories down.
    fn home() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().canonicalize().unwrap();
        fs::create_dir_all(home.join("own/venv/lib")).unwrap();
        for directory in ["own", "own/venv", "own/venv/lib"] {
            mode(&home.join(directory), 0o755);
        }
        fs::write(home.join("own/venv/lib/code.so"), "").unwrap();
        mode(&home.join("own/venv/lib/code.so"), 0o644);
        (folder, home)
    }

    const LIBRARY: &str = "own/venv/lib/code.so";

    #[test]
    fn each_component_that_others_may_write_to_is_named() {
        let (_folder, home) = home();
        let check = || check_below(&home, Path::new(LIBRARY));
        check().unwrap();
        for part in ["own", "own/venv", "own/venv/lib", LIBRARY] {
            let path = home.join(part);
            let was = fs::metadata(&path).unwrap().permissions();
            for open in [0o775, 0o757, 0o777] {
                mode(&path, open);
                let error = check().unwrap_err();
                assert_eq!(error.path, path);
                assert!(
                    error.to_string().contains(&format!("mode {open:o}")),
                    "{error}"
                );
                assert_eq!(check_followed(&home.join(LIBRARY)), Err(error));
            }
            fs::set_permissions(&path, was).unwrap();
        }
        check().unwrap();
        // A sticky directory protects what is in it from others, and nothing that is put there.
        mode(&home.join("own/venv"), 0o1777);
        check().unwrap();
        assert!(check_below(&home, Path::new("own/venv")).is_err());
    }

    #[test]
    fn a_link_is_refused_below_the_base_and_checked_above_it() {
        let (_folder, home) = home();
        symlink("own", home.join("link")).unwrap();
        symlink(home.join("own/venv"), home.join("own/absolute")).unwrap();
        for path in ["link/venv/lib/code.so", "own/absolute/lib/code.so"] {
            let error = check_below(&home, Path::new(path)).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
            check_followed(&home.join(path)).unwrap();
        }
        check_below(&home.join("link"), Path::new("venv/lib/code.so")).unwrap();
        check_below(
            &home.join("own/absolute/../absolute"),
            Path::new("lib/code.so"),
        )
        .unwrap();
        // The target of a link is no safer than without the link.
        mode(&home.join("own/venv"), 0o777);
        for path in ["link/venv/lib/code.so", "own/absolute/lib/code.so"] {
            let error = check_followed(&home.join(path)).unwrap_err();
            assert_eq!(error.path, home.join("own/venv"));
        }
        symlink("loop", home.join("loop")).unwrap();
        let error = check_followed(&home.join("loop/file")).unwrap_err();
        assert!(error.to_string().contains("more than 40"), "{error}");
        assert!(check_followed(&home.join("none")).is_err());
        assert!(check_followed(Path::new("own/venv")).is_err());
    }

    #[test]
    fn what_belongs_to_a_program_is_trusted_as_the_program_is() {
        let (_folder, home) = home();
        let (program, library) = (home.join("own/program"), home.join(LIBRARY));
        fs::write(&program, "").unwrap();
        mode(&program, 0o755);
        let check = || check_as_program(&program, &library);
        check().unwrap();
        // A group that may write the library alone is none of the program's.
        mode(&library, 0o664);
        assert_eq!(check().unwrap_err().path, library);
        // A checkout of a user with umask 002: any user in its group could change the program.
        mode(&home.join("own"), 0o775);
        check().unwrap();
        mode(&library, 0o666);
        assert_eq!(check().unwrap_err().path, library);
        // In a sticky folder the group cannot.
        mode(&library, 0o664);
        mode(&home.join("own"), 0o1775);
        assert_eq!(check().unwrap_err().path, library);
        mode(&library, 0o644);
        check().unwrap();
        if rustix::process::geteuid().as_raw() == 0 {
            chown(&library, Some(65534), None).unwrap();
            assert_eq!(check().unwrap_err().path, library);
            // The installation of another user that the caller runs.
            chown(&program, Some(65534), None).unwrap();
            check().unwrap();
        }
    }

    /// In a user namespace without a mapping all files seem to belong to this process's user.
    #[test]
    fn nothing_is_trusted_where_users_are_not_told_apart() {
        const HOME: &str = "FERCUDA_TEST_TRUST_HOME";
        if let Some(home) = std::env::var_os(HOME) {
            let home = PathBuf::from(home);
            for error in [
                check_below(&home, Path::new(LIBRARY)).unwrap_err(),
                check_followed(&home.join(LIBRARY)).unwrap_err(),
            ] {
                assert!(error.to_string().contains("user namespace"), "{error}");
            }
            return;
        }
        let (_folder, home) = home();
        mode(&home, 0o755);
        check_below(&home, Path::new(LIBRARY)).unwrap();
        let in_namespace = |program: &std::ffi::OsStr, arguments: &[&str]| {
            let mut command = std::process::Command::new("unshare");
            command.arg("--user").arg(program).args(arguments);
            command.env(HOME, &home).output()
        };
        // Some systems allow no namespaces.
        if !in_namespace("true".as_ref(), &[]).is_ok_and(|it| it.status.success()) {
            return;
        }
        let own = std::env::current_exe().unwrap();
        let name = "trust::tests::nothing_is_trusted_where_users_are_not_told_apart";
        let tried = in_namespace(own.as_os_str(), &["--exact", name]).unwrap();
        let text = String::from_utf8_lossy(&tried.stdout).into_owned();
        assert!(
            tried.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }

    /// Another user exchanges what is behind a name as fast as it can: its own link to a library
    /// of the user's, its own folder with a library, and nothing.
    #[test]
    fn what_another_user_swaps_never_passes() {
        const SWAP: &str = "cd \"$1\" || exit 1; mkdir -p theirs/venv/lib && : > \"theirs/$3\"
            chmod -R go-w theirs; echo ready
            while [ ! -e stop ]; do
                ln -s \"$2\" swapped; mv -T swapped away; rm -f away
                mv -T theirs swapped 2>/dev/null; mv -T swapped theirs 2>/dev/null
            done";
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        use std::os::unix::process::CommandExt as _;
        let (_folder, home) = home();
        let parent = home.parent().unwrap().to_owned();
        // The other user has to reach the sticky folder in which both have entries.
        let open = tempfile::tempdir_in(&parent).unwrap();
        let shared = open.path().canonicalize().unwrap();
        mode(&shared, 0o1777);
        let mut other = std::process::Command::new("sh");
        other
            .args(["-c", SWAP, "sh"])
            .args([&shared, &home.join("own")]);
        other.arg("venv/lib/code.so").uid(65534).gid(65534);
        other.stdout(std::process::Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let (path, mut seen, mut tries) = (shared.join("swapped"), 0, 0);
        let begun = std::time::Instant::now();
        while (seen < 100 || tries < 20_000) && begun.elapsed().as_secs() < 60 {
            tries += 1;
            let error = check_followed(&path.join("venv/lib/code.so")).unwrap_err();
            seen += u32::from(error.reason.contains("user 65534"));
            let error = check_below(&shared, Path::new("swapped/venv/lib/code.so")).unwrap_err();
            assert!(error.path.starts_with(&path), "{error}");
        }
        fs::write(shared.join("stop"), "").unwrap();
        mode(&shared, 0o755);
        other.kill().ok();
        other.wait().unwrap();
        assert!(seen > 0, "nothing was swapped while it was looked at");
    }

    /// Only root can give a file away; CI and the suites run as root, and without it the
    /// directories of other users that every system has are examined.
    #[test]
    fn what_another_user_owns_is_refused_wherever_it_is_on_the_way() {
        let (_folder, home) = home();
        let is_root = rustix::process::geteuid().as_raw() == 0;
        for part in ["own", "own/venv", "own/venv/lib", LIBRARY] {
            let path = home.join(part);
            if is_root {
                chown(&path, Some(65534), None).unwrap();
                let error = check_below(&home, Path::new(LIBRARY)).unwrap_err();
                assert_eq!(error.path, path);
                assert!(error.to_string().contains("user 65534"), "{error}");
                chown(&path, Some(0), None).unwrap();
            }
            check_below(&home, Path::new(LIBRARY)).unwrap();
        }
        if is_root {
            // A link of another user's, in a directory like /tmp, to a file that is fine.
            mode(&home, 0o1777);
            symlink(home.join("own"), home.join("theirs")).unwrap();
            std::os::unix::fs::lchown(home.join("theirs"), Some(65534), None).unwrap();
            let error = check_followed(&home.join("theirs/venv/lib/code.so")).unwrap_err();
            assert_eq!(error.path, home.join("theirs"));
        }
    }
}
