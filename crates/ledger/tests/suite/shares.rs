//! Memory shared with other processes, and detecting whether it is still open there.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fercuda_ledger::{Folder, Share, ShareName, ShareSource};

use crate::support::{Random, folder, open};

fn share(random: &mut Random) -> Share {
    let whole_bytes = random.next() >> 1;
    let bytes = random.next() % (whole_bytes + 1);
    Share {
        source: match random.next() % 2 {
            0 => ShareSource::Handle(std::array::from_fn(|_| random.next() as u8)),
            _ => ShareSource::Descriptors,
        },
        offset_bytes: random.next() % (whole_bytes - bytes + 1),
        bytes,
        whole_bytes,
    }
}

fn path(folder: &Folder, name: ShareName) -> PathBuf {
    folder.path().join(format!("{name:?}.share"))
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[test]
fn a_share_is_read_by_its_name_and_is_private() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let mut random = Random::new();
    let all: Vec<(Share, ShareName)> = (0..20)
        .map(|_| {
            let share = share(&mut random);
            let offered = folder.share(&share, ledger.path().unwrap()).unwrap();
            (share, offered.name)
        })
        .collect();
    for (share, name) in &all {
        assert_eq!(folder.open_share(*name).unwrap().share, *share);
        let mode = fs::metadata(path(&folder, *name)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 21);
    assert!(folder.open_share(ShareName([7; 16])).is_err());
}

#[test]
fn withdrawing_a_share_reports_whether_it_is_still_open() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let share = share(&mut Random::new());
    let fresh = || folder.share(&share, ledger.path().unwrap()).unwrap();
    let offered = fresh();
    let name = offered.name;
    assert!(folder.withdraw(offered).is_none());
    assert!(!exists(&path(&folder, name)));
    assert!(folder.open_share(name).is_err());

    let offered = fresh();
    let name = offered.name;
    let both = [
        folder.open_share(name).unwrap(),
        folder.open_share(name).unwrap(),
    ];
    let lingering = folder.withdraw(offered).unwrap();
    assert!(folder.open_share(name).is_err());
    for opened in both {
        assert!(!lingering.is_over());
        drop(opened);
    }
    assert!(lingering.is_over());

    // Opened and closed before, it is not in use.
    let offered = fresh();
    drop(folder.open_share(offered.name).unwrap());
    assert!(folder.withdraw(offered).is_none());
}

#[test]
fn withdrawing_a_swept_or_unremovable_share_misses_no_user() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let share = share(&mut Random::new());
    let fresh = || folder.share(&share, ledger.path().unwrap()).unwrap();

    let offered = fresh();
    let opened = folder.open_share(offered.name).unwrap();
    fs::remove_file(path(&folder, offered.name)).unwrap();
    let lingering = folder.withdraw(offered).unwrap();
    assert!(!lingering.is_over());
    drop(opened);
    assert!(lingering.is_over());

    // A folder of that name cannot be removed as a file; the share has another name.
    let offered = fresh();
    let at = path(&folder, offered.name);
    let other = ShareName([7; 16]);
    fs::rename(&at, path(&folder, other)).unwrap();
    fs::create_dir(&at).unwrap();
    let opened = folder.open_share(other).unwrap();
    let lingering = folder.withdraw(offered).unwrap();
    assert!(exists(&at) && folder.open_share(other).is_err());
    assert!(!lingering.is_over());
    drop(opened);
    assert!(lingering.is_over());
    drop(lingering);
    assert!(folder.open_share(other).is_err());
}

#[test]
fn a_share_whose_ledger_cannot_be_opened_is_not_swept() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let share = share(&mut Random::new());
    let offered = folder.share(&share, ledger.path().unwrap()).unwrap();
    // A ledger that others may read is refused.
    fs::set_permissions(ledger.path().unwrap(), Permissions::from_mode(0o644)).unwrap();
    folder.sweep().unwrap();
    assert!(exists(&path(&folder, offered.name)));
}

#[test]
fn a_share_opened_while_it_is_withdrawn_is_detected_or_not_opened() {
    let (_root, folder) = folder();
    let folder = &folder;
    let ledger = open(folder);
    let share = share(&mut Random::new());
    for _ in 0..300 {
        let offered = folder.share(&share, ledger.path().unwrap()).unwrap();
        let name = offered.name;
        let (opened, lingering) = std::thread::scope(|scope| {
            let opener = scope.spawn(move || folder.open_share(name).ok());
            let lingering = folder.withdraw(offered);
            (opener.join().unwrap(), lingering)
        });
        if opened.is_some() {
            assert!(lingering.is_some_and(|lingering| !lingering.is_over()));
        } else {
            assert!(lingering.is_none_or(|lingering| lingering.is_over()));
        }
    }
}

#[test]
fn shares_of_processes_that_are_gone_are_swept() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let share = share(&mut Random::new());
    let kept = folder.share(&share, ledger.path().unwrap()).unwrap().name;
    let gone = folder.path().join("1-1-0.ledger");
    let stray = folder.share(&share, &gone).unwrap().name;
    let elsewhere = Path::new("..");
    let odd = folder.share(&share, elsewhere).unwrap().name;
    let part = folder.path().join("part.share");
    fs::write(&part, "feRsha").unwrap();
    fs::set_permissions(&part, Permissions::from_mode(0o600)).unwrap();
    folder.sweep().unwrap();
    assert!(exists(&path(&folder, kept)));
    assert!(!exists(&path(&folder, stray)) && !exists(&path(&folder, odd)));
    assert!(exists(&part), "it may be about to be written");
    let old = SystemTime::now() - Duration::from_secs(3600);
    let file = File::options().write(true).open(&part).unwrap();
    file.set_modified(old).unwrap();
    folder.sweep().unwrap();
    assert!(!exists(&part) && exists(&path(&folder, kept)));
    drop(ledger);
    folder.sweep().unwrap();
    assert!(!exists(&path(&folder, kept)));
}

#[test]
fn a_share_with_any_content_is_whole_or_refused() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let mut random = Random::new();
    let share = share(&mut random);
    let name = folder.share(&share, ledger.path().unwrap()).unwrap().name;
    let path = path(&folder, name);
    let good = fs::read(&path).unwrap();
    let mut opened = 0;
    for _ in 0..2000 {
        let mut bytes = good.clone();
        match random.next() % 4 {
            0 => bytes.truncate((random.next() % (good.len() as u64 + 1)) as usize),
            1 => bytes.push(0),
            2 => bytes[16..40].fill_with(|| random.next() as u8),
            _ => bytes[(random.next() % 168) as usize] ^= 1 << (random.next() % 8),
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(found) = folder.open_share(name) {
            opened += 1;
            let end = found.share.offset_bytes.checked_add(found.share.bytes);
            assert!(end.is_some_and(|end| end <= found.share.whole_bytes));
            assert_eq!(bytes.len(), good.len());
        }
    }
    assert!((1..2000).contains(&opened), "{opened}");
}
