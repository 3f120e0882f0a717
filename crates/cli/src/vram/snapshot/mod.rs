//! `fercuda vram save` and `load`: what a filesystem has, as a file on a disk.
//!
//! The file is a pax archive (POSIX.1-2008, `tar`), with GNU's records for sparse files (its format 1.0) and for extended
//! attributes (`SCHILY.xattr.`), so that other programs can unpack it. Its last member, [`LIST`], has a line for each
//! member: the SHA-256 of its bytes in the archive, headers and all, where they begin, how many, and its name. The list's last line
//! is the SHA-256 of the others.
//!
//! Invariant: nothing is made of a snapshot before all of it was found to be what its list says.

mod load;
mod save;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fercuda_vramfs::mount;
use sha2::{Digest as _, Sha256};

pub(super) use load::load;
pub(super) use save::save;

/// The name of the last member.
const LIST: &str = ".fercuda-vram-snapshot";
/// How the list begins: what it is, and its version.
const HEAD: &str = "fercuda vram snapshot 1";
/// Bytes at a time.
const PART_BYTES: usize = 1 << 20;
/// What a record of an extended attribute begins with.
const VALUE: &str = "SCHILY.xattr.";
/// Records of sparse files.
const SPARSE_MAJOR: &str = "GNU.sparse.major";
const SPARSE_MINOR: &str = "GNU.sparse.minor";
const SPARSE_NAME: &str = "GNU.sparse.name";
const SPARSE_SIZE: &str = "GNU.sparse.realsize";

/// Copies all that is in it to a file, for another time.
#[derive(clap::Args)]
#[command(after_help = "\
The file is a tar archive with names, modes, owners, times, links, holes, access
lists and extended attributes, so that other programs can read it too. Its last
member has a SHA-256 of each member. Sockets are left out, as nobody listens
there later. It appears under its name when it is whole, and only its owner can
read it.

Root may, who has mounted it, and who owns DIR.

Whoever writes meanwhile changes what is saved: what was changed while it was
read is named, and the status is 1.

Exit status: 0; 1 if something could not be saved, or changed meanwhile.

Examples:
  fercuda vram save /mnt/vram results.tar
  tar tvf results.tar")]
pub(crate) struct SaveArgs {
    /// Where it is mounted.
    dir: PathBuf,
    /// The file, which must not be there.
    file: PathBuf,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
}

/// Makes files of what was saved.
#[derive(clap::Args)]
#[command(after_help = "\
All of the snapshot is compared with its sums first: one that is cut off or was
altered is refused, with what is wrong, and nothing is made of it; so is one
that does not fit. Owners are set by root alone, as are attributes but access
lists and those that begin with `user.`; these attributes, and devices that you
may not make, are named, and the status is 1.

As long as it loads nobody else gets into DIR. Then DIR is as it was saved, or,
if that fails, empty, as it was. If this is killed DIR stays closed: mount
another. Root may, who has mounted it, and who owns DIR.

Exit status: 0; 1 if it was not loaded, or without all of its attributes.

Examples:
  fercuda vram mount /mnt/vram --size 8GiB
  fercuda vram load /mnt/vram results.tar")]
pub(crate) struct LoadArgs {
    /// Where it is mounted, without entries.
    dir: PathBuf,
    /// What `save` has made.
    file: PathBuf,
}

/// Refuses who has neither mounted it nor owns its directory, nor is root.
fn refuse_others(dir: &Path) -> Result<()> {
    let caller = rustix::process::geteuid().as_raw();
    let place = dir.canonicalize()?;
    let mounted = mount::mounted(&place)?.and_then(|it| it.user);
    let owner = dir.metadata()?.uid();
    if ![Some(0), Some(owner), mounted].contains(&Some(caller)) {
        bail!(
            "only who has mounted it, the owner of its directory (user {owner}), and root may, and this is user {caller}\ntry: as one of them"
        );
    }
    Ok(())
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

fn sum(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}
