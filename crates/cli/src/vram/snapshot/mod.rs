//! Snapshots: `fercuda vram save` and `load` copy a filesystem to and from a file on disk.
//!
//! A snapshot is a pax archive (POSIX.1-2008, `tar`) with GNU's records for sparse files (format
//! 1.0) and for extended attributes (`SCHILY.xattr.`), so other programs can unpack it. Its last
//! member, [`format::MANIFEST`], has a line for each member: the SHA-256 of its bytes in the
//! archive, headers included, their offset, their number, and the member's name. The manifest's
//! last line is the SHA-256 of the lines before.
//!
//! Invariant: `load` creates no file before the whole snapshot matches its manifest.

mod format;
mod load;
mod members;
#[cfg(test)]
mod property;
mod save;
mod verified;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fercuda_vramfs::mount;

pub(super) use load::load;
pub(super) use save::save;

/// Save all files to a tar archive on disk.
#[derive(clap::Args)]
#[command(after_help = "\
The snapshot is a tar archive with names, modes, owners, times, links, holes,
access control lists and extended attributes; tar can read it too. Its last
member has a SHA-256 of each member. Sockets are omitted, as no process will
listen on them. The file gets its name when it is complete, and only its owner
can read it.

Allowed for root, the mount's owner and the owner of DIR.

Files that are modified while they are read are reported, and the status is 1.

Exit status: 0; 1 if something could not be saved or was modified meanwhile.

Examples:
  fercuda vram save /mnt/vram results.tar
  fercuda vram save /mnt/vram - | zstd > results.tar.zst
  tar tvf results.tar")]
pub(crate) struct SaveArgs {
    /// Mount point.
    dir: PathBuf,
    /// Snapshot to create; must not exist. - is standard output.
    file: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

/// Load a snapshot into an empty filesystem.
#[derive(clap::Args)]
#[command(after_help = "\
The whole snapshot is verified first: if it is truncated or modified, or does
not fit, it is refused with the reason, and no file is created. Only root can
restore owners, devices, and extended attributes other than access control
lists and `user.*`; omitted devices and attributes are reported, and the status
is 1.

During the load other users have no access to DIR. Afterwards DIR has its saved
owner and mode; if the load fails, DIR is empty again with those it had before.
If the command is killed, DIR stays inaccessible: mount a new filesystem.

Allowed for root, the mount's owner and the owner of DIR. Standard input is
copied to a file in TMPDIR first.

Exit status: 0; 1 if it was not loaded, or not completely.

Examples:
  fercuda vram mount /mnt/vram --size 1GiB
  fercuda vram load /mnt/vram results.tar
  zstd -dc results.tar.zst | fercuda vram load /mnt/vram -")]
pub(crate) struct LoadArgs {
    /// Mount point of an empty filesystem.
    dir: PathBuf,
    /// Snapshot that `save` has written. - is standard input.
    file: PathBuf,
}

/// Fails unless the caller is root, the mount's owner or the owner of its root directory.
fn require_permission(dir: &Path) -> Result<()> {
    let caller = rustix::process::geteuid().as_raw();
    let place = dir.canonicalize()?;
    let mounted = mount::mounted(&place)?.and_then(|it| it.user);
    let owner = dir.metadata()?.uid();
    if ![Some(0), Some(owner), mounted].contains(&Some(caller)) {
        bail!(
            "not permitted for user {caller}: only root, the mount's owner and the owner of its directory (user {owner}) may\ntry: as one of them"
        );
    }
    Ok(())
}
