//! Snapshots of what others use meanwhile, and snapshots that do not fit.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, mknodat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

use super::bytes::Mapping;
use super::place::DEADLINE;
use super::tools::{entry, well};
use super::{Here, SOMEBODY, fercuda, heedful, read, refused, seed};

fn random(len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::u8(1..))
        .take(len)
        .collect()
}

/// What follows a word of a message, to the next blank or the end of the line.
fn behind<'m>(message: &'m str, word: &str) -> &'m str {
    let (_, rest) = message.split_once(word).expect(message);
    rest.split_whitespace().next().unwrap()
}

/// Nothing was made there.
fn assert_untouched(here: &Here) {
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
    assert_eq!(here.figure("used_inodes"), 1);
    assert_eq!(here.figure("used_bytes"), 0);
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused_before_anything_is_made() {
    fastrand::seed(seed());
    let here = Here::plain();
    // Files whose bytes are few, and their pages many.
    let files = fastrand::u64(300..400);
    for file in 0..files {
        let bytes = random(fastrand::usize(1..200));
        fs::write(here.at(&format!("file {file}")), bytes).unwrap();
    }
    let sparse = here.file("sparse");
    let extents = fastrand::u64(20..60);
    for extent in 0..extents {
        sparse.write_all_at(b"page", extent * 300_000).unwrap();
    }
    fs::create_dir(here.at("directory")).unwrap();
    fs::hard_link(here.at("file 0"), here.at("directory/too")).unwrap();
    let place = here.path().to_str().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    well(&["save", place, saved]);

    // Each has a page.
    let pages = files + extents;
    let other = Here::new(&["--size=1MiB", "--ecc=off"]);
    let target = other.path().to_str().unwrap();
    let told = refused(&["load", target, saved]);
    assert!(told.contains("pages of 4 KiB"), "{told}");
    assert_untouched(&other);
    // What is said to be tried helps.
    let size = behind(&told, "--size ");
    well(&["grow", target, "--size", size]);
    well(&["load", target, saved]);
    assert_eq!(other.figure("used_bytes"), pages * 4096);
    let exact = pages.div_ceil(32) * 128;
    let fits = Here::new(&[&format!("--size={exact}KiB"), "--ecc=off"]);
    well(&["load", fits.path().to_str().unwrap(), saved]);

    // The root, the directory, the sparse file, and a name more.
    let inodes = files + 4;
    let given = format!("--inodes={}", inodes - 1);
    let other = Here::new(&["--size=32MiB", "--ecc=off", &given]);
    let told = refused(&["load", other.path().to_str().unwrap(), saved]);
    assert_eq!(behind(&told, "--inodes "), inodes.to_string(), "{told}");
    assert_untouched(&other);
    let given = format!("--inodes={inodes}");
    let other = Here::new(&["--size=32MiB", "--ecc=off", &given]);
    well(&["load", other.path().to_str().unwrap(), saved]);
    assert_eq!(other.figure("used_inodes"), inodes);
}

#[test]
fn names_and_attributes_for_which_there_is_no_room_are_counted_before_anything_is_made() {
    fastrand::seed(seed());
    let here = Here::plain();
    let value = random(64_000);
    for file in 0..66 {
        let name = here.at(&format!("file {file}"));
        File::create(&name).unwrap();
        for key in 0..16 {
            let key = format!("user.{key:02}");
            lsetxattr(&name, key, &value, XattrFlags::empty()).unwrap();
        }
    }
    let target = "t".repeat(fastrand::usize(1..4000));
    std::os::unix::fs::symlink(target, here.at("link")).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    well(&["save", here.path().to_str().unwrap(), saved]);
    let other = Here::new(&["--size=1MiB", "--ecc=off", "--inodes=200"]);
    let told = refused(&["load", other.path().to_str().unwrap(), saved]);
    assert!(told.contains("metadata bytes"), "{told}");
    assert_untouched(&other);
    // So many and not one fewer.
    let inodes: u64 = behind(&told, "--inodes ").parse().unwrap();
    let given = format!("--inodes={}", inodes - 1);
    let other = Here::new(&["--size=1MiB", "--ecc=off", &given]);
    refused(&["load", other.path().to_str().unwrap(), saved]);
    assert_untouched(&other);
    let given = format!("--inodes={inodes}");
    let other = Here::new(&["--size=1MiB", "--ecc=off", &given]);
    well(&["load", other.path().to_str().unwrap(), saved]);
    let figure = "used_metadata_bytes";
    assert_eq!(other.figure(figure), here.figure(figure));
}

/// A process of these tests, which ends with them.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

#[test]
fn who_owns_the_directory_that_root_loads_to_is_given_no_others_file() {
    fastrand::seed(seed());
    let here = Here::plain();
    let secret = random(100);
    fs::write(here.at("a-secret"), &secret).unwrap();
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(here.at("a-secret"), mode).unwrap();
    let large = random(24 << 20);
    fs::write(here.at("big"), &large).unwrap();
    let id = Some(SOMEBODY);
    std::os::unix::fs::chown(here.at("big"), id, id).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    well(&["save", here.path().to_str().unwrap(), saved]);

    let other = Here::new(&["--size=32MiB", "--ecc=off", &format!("--uid={SOMEBODY}")]);
    let target = other.path().to_str().unwrap();
    // What is made there would let him in.
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 7, u32::MAX),
        entry(2, 7, SOMEBODY),
        entry(4, 5, u32::MAX),
        entry(16, 7, u32::MAX),
        entry(32, 0, u32::MAX),
    ]
    .concat();
    let (name, flags) = ("system.posix_acl_default", XattrFlags::empty());
    lsetxattr(other.path(), name, &list, flags).unwrap();
    let mut meddler = Command::new("sh");
    // As soon as that is there.
    let line = "until [ -e big ] && mv -fT a-secret big; do sleep 0.002; done; echo moved";
    meddler.args(["-c", line]).current_dir(target);
    meddler.uid(SOMEBODY).gid(SOMEBODY).stdout(Stdio::piped());
    let _meddler = Ended(meddler.stderr(Stdio::null()).spawn().unwrap());
    well(&["load", target, saved]);
    let is = other.at("a-secret").symlink_metadata();
    let is = is.expect("somebody has moved a-secret while it was loaded");
    assert_eq!((is.uid(), is.mode() & 0o7777), (0, 0o600));
    assert_eq!(other.at("big").metadata().unwrap().uid(), SOMEBODY);
    assert!(fs::read(other.at("big")).unwrap() == large);
    for name in ["a-secret", "big", ""] {
        let mut value = [0; 100];
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            let listed = lgetxattr(other.at(name), list, &mut value[..]);
            assert_eq!(listed, Err(Errno::NODATA), "{name}: {list}");
        }
    }
    // Of a snapshot that cannot be loaded the directory keeps nothing.
    let last = Here::new(&["--size=32MiB", "--ecc=off", &format!("--uid={SOMEBODY}")]);
    lsetxattr(last.path(), name, &list, flags).unwrap();
    let before = last.path().metadata().unwrap();
    let mut made = Made::default();
    made.put(b'5', "directory", &[], b"");
    made.put(b'0', "directory/file", &[], b"bytes");
    made.put(b'5', "directory/within", &[], b"");
    made.put(b'0', "file", &[], b"bytes");
    made.put(b'5', "none/directory", &[], b"");
    fs::write(&file, made.end()).unwrap();
    let told = refused(&["load", last.path().to_str().unwrap(), saved]);
    assert!(told.contains("its member none/directory"), "{told}");
    assert!(!told.contains("stays"), "{told}");
    assert_untouched(&last);
    let is = last.path().metadata().unwrap();
    assert_eq!((is.uid(), is.mode()), (before.uid(), before.mode()));
    let mut value = [0; 100];
    let len = lgetxattr(last.path(), name, &mut value[..]).unwrap();
    assert_eq!(&value[..len], list);
}

/// Stops a process when a file of its, on the disk that has this folder, has so many bytes.
fn stop(process: &Child, folder: &Path, bytes: u64) {
    let begun = Instant::now();
    let device = folder.metadata().unwrap().dev();
    let files = format!("/proc/{}/fd", process.id());
    let len = || {
        // It may have no name, and it may be closed meanwhile.
        let entries = fs::read_dir(&files).unwrap().flatten();
        let all = entries.filter_map(|it| it.path().metadata().ok());
        let there = all.filter(|it| it.is_file() && it.dev() == device && it.nlink() == 0);
        there.map(|it| it.len()).max().unwrap_or(0)
    };
    while len() < bytes {
        assert!(begun.elapsed() < DEADLINE, "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(process), Signal::STOP).unwrap();
}

#[test]
fn a_snapshot_that_a_signal_ends_leaves_nothing_and_one_that_is_whole_replaces_another() {
    fastrand::seed(seed());
    let here = Here::plain();
    fs::write(here.at("a"), random(24 << 20)).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    fs::write(&file, "another").unwrap();
    let names = || {
        let entries = fs::read_dir(disk.path()).unwrap();
        entries
            .map(|it| it.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    let place = here.path().to_str().unwrap();
    for signal in [Signal::INT, Signal::KILL] {
        let mut saver = heedful();
        saver.args(["vram", "save", "--force", place, saved]);
        let mut saver = Ended(saver.spawn().unwrap());
        stop(&saver.0, disk.path(), 2 << 20);
        kill_process(Pid::from_child(&saver.0), signal).unwrap();
        kill_process(Pid::from_child(&saver.0), Signal::CONT).unwrap();
        assert_eq!(saver.0.wait().unwrap().code(), None);
        assert_eq!(names(), ["saved.tar"], "{signal:?}");
        assert_eq!(fs::read(&file).unwrap(), b"another");
    }
    well(&["save", "--force", place, saved]);
    assert_eq!(names(), ["saved.tar"]);
    assert!(file.metadata().unwrap().len() > 24 << 20);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_new_file_with_an_old_ones_number_is_not_saved_as_a_link_to_it() {
    fastrand::seed(seed());
    let here = Here::plain();
    let (old, new) = (random(5000), random(5000));
    fs::write(here.at("a1"), &old).unwrap();
    fs::hard_link(here.at("a1"), here.at("a2")).unwrap();
    fs::write(here.at("kept 1"), b"kept").unwrap();
    fs::hard_link(here.at("kept 1"), here.at("kept 2")).unwrap();
    // As long as this is saved others go on.
    fs::write(here.at("b"), random(24 << 20)).unwrap();
    fs::create_dir(here.at("later")).unwrap();
    let number = here.at("a1").metadata().unwrap().ino();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    let mut saver = fercuda();
    saver.args(["vram", "save", here.path().to_str().unwrap(), saved]);
    let saver = saver.stderr(Stdio::piped()).stdout(Stdio::null());
    let mut saver = Ended(saver.spawn().unwrap());
    stop(&saver.0, disk.path(), 2 << 20);
    assert!(!file.exists(), "all was saved before it was stopped");
    fs::remove_file(here.at("a1")).unwrap();
    fs::remove_file(here.at("a2")).unwrap();
    // The kernel forgets it in its own time.
    let named = (0..1000).find(|it| {
        std::thread::sleep(Duration::from_millis(1));
        let name = here.at(&format!("later/{it}"));
        fs::write(&name, &new).unwrap();
        name.metadata().unwrap().ino() == number
    });
    let name = format!("later/{}", named.expect("no file has the number again"));
    fs::hard_link(here.at(&name), here.at("later/too")).unwrap();
    kill_process(Pid::from_child(&saver.0), Signal::CONT).unwrap();
    let mut said = String::new();
    let mut errors = saver.0.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut errors, &mut said).unwrap();
    let status = saver.0.wait().unwrap().code();

    let other = Here::plain();
    well(&["load", other.path().to_str().unwrap(), saved]);
    assert!(fs::read(other.at("a1")).unwrap() == old);
    for name in [&name, "later/too"] {
        assert!(fs::read(other.at(name)).unwrap() == new, "{name}: {said}");
    }
    let ino = |name: &str| other.at(name).metadata().unwrap().ino();
    assert_eq!(ino(&name), ino("later/too"));
    assert_eq!(ino("kept 1"), ino("kept 2"));
    // That it may be a1, written to, is said.
    assert!(said.contains(&name) && said.contains("a1"), "{said}");
    assert_eq!(status, Some(1), "{said}");
}

/// A snapshot that no filesystem was.
#[derive(Default)]
struct Made {
    bytes: Vec<u8>,
    list: String,
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|it| format!("{it:02x}")).collect()
}

impl Made {
    fn raw(&mut self, kind: u8, name: &str, data: &[u8]) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(0o644);
        header.set_path(name).unwrap();
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    fn put(&mut self, kind: u8, name: &str, records: &[(&str, &str)], data: &[u8]) {
        let begin = self.bytes.len();
        let records = records.iter().map(|(key, value)| {
            // The length counts its own two digits.
            let rest = format!(" {key}={value}\n");
            assert!((8..90).contains(&rest.len()));
            format!("{}{rest}", rest.len() + 2)
        });
        let records: String = records.collect();
        if !records.is_empty() {
            self.raw(b'x', "records", records.as_bytes());
        }
        self.raw(kind, name, data);
        let (sum, len) = (digest(&self.bytes[begin..]), self.bytes.len() - begin);
        self.list += &format!("{sum} {begin} {len} {name}\n");
    }

    fn end(mut self) -> Vec<u8> {
        let mut list = format!("fercuda vram snapshot 1\n{}", self.list);
        list += &format!("{}\n", digest(list.as_bytes()));
        self.raw(b'0', ".fercuda-vram-snapshot", list.as_bytes());
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

#[test]
fn a_sparse_file_of_millions_of_parts_is_loaded() {
    fastrand::seed(seed());
    // As `save` has it where every other page is a hole; but every other byte, and zeros, which take no room.
    let (parts, begin) = (3_800_000u64, 1u64 << 48);
    let last = fastrand::u8(1..);
    let mut data = format!("{parts}\n");
    for part in 0..parts {
        data += &format!("{}\n1\n", begin + 2 * part);
    }
    assert!(data.len() > 64 << 20);
    let mut data = data.into_bytes();
    data.resize(data.len().next_multiple_of(512), 0);
    data.resize(data.len() + parts as usize - 1, 0);
    data.push(last);
    let mut made = Made::default();
    let size = begin + 2 * parts;
    let size_text = size.to_string();
    let records = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "file"),
        ("GNU.sparse.realsize", &size_text),
    ];
    made.put(b'0', "file", &records, &data);
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("made.tar");
    fs::write(&file, made.end()).unwrap();
    let here = Here::new(&["--size=128MiB", "--ecc=off"]);
    well(&[
        "load",
        here.path().to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    let file = File::open(here.at("file")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size);
    assert_eq!(read(&file, size - 4, 9), [0, 0, last, 0]);
    assert_eq!(read(&file, begin, 100_000), vec![0; 100_000]);
}

#[test]
fn what_was_stored_by_way_of_a_mapping_is_saved_before_it_is_written_back() {
    fastrand::seed(seed());
    let disk = tempfile::tempdir().unwrap();
    for cache in ["--cache=none", "--cache=keep"] {
        let here = Here::new(&["--size=4MiB", "--ecc=off", cache]);
        let bytes = random(fastrand::usize(1..1 << 20));
        let file = here.file("file");
        file.set_len(bytes.len() as u64).unwrap();
        let mapping = Mapping::new(&file, bytes.len());
        mapping.write(0, &bytes);
        // It stays one file, which is written back once.
        fs::hard_link(here.at("file"), here.at("other")).unwrap();
        let saved = disk.path().join(cache);
        let saved = saved.to_str().unwrap();
        well(&["save", here.path().to_str().unwrap(), saved]);
        let other = Here::plain();
        well(&["load", other.path().to_str().unwrap(), saved]);
        assert!(fs::read(other.at("file")).unwrap() == bytes, "{cache}");
        assert_eq!(fs::metadata(other.at("other")).unwrap().nlink(), 2);
        drop(mapping);
    }
}

#[test]
fn attributes_that_no_snapshot_can_have_are_named_and_all_else_is_saved() {
    let here = Here::plain();
    fs::create_dir(here.at("directory")).unwrap();
    for name in ["file", "directory/file"] {
        fs::write(here.at(name), name).unwrap();
    }
    let flags = XattrFlags::empty();
    for name in ["", "file", "directory"] {
        for key in [&b"user.a=b"[..], b"user.\xFF", b"user.kept"] {
            lsetxattr(here.at(name), key, b"value", flags).unwrap();
        }
    }
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    let told = refused(&["save", here.path().to_str().unwrap(), saved]);
    for (name, times) in [
        ("its attribute user.a=b: ", 3),
        ("its attribute user.\u{FFFD}: ", 3),
    ] {
        assert_eq!(told.matches(name).count(), times, "{told}");
    }
    let other = Here::plain();
    well(&["load", other.path().to_str().unwrap(), saved]);
    for name in ["file", "directory/file"] {
        assert_eq!(fs::read(other.at(name)).unwrap(), name.as_bytes());
    }
    let mut value = [0; 100];
    for name in ["", "file", "directory"] {
        let len = lgetxattr(other.at(name), "user.kept", &mut value[..]);
        assert_eq!(&value[..len.unwrap()], b"value", "{name}");
    }
}

/// Saves it, and has somebody load that to a filesystem of his own, which not all of it can come to; this, and what he was told.
fn loaded_by_somebody(here: &Here) -> (Here, String) {
    let disk = tempfile::tempdir().unwrap();
    let mode = || fs::Permissions::from_mode(0o755);
    fs::set_permissions(disk.path(), mode()).unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    well(&["save", here.path().to_str().unwrap(), saved]);
    fs::set_permissions(&file, mode()).unwrap();
    let other = Here::new(&["--size=1MiB", "--ecc=off", &format!("--uid={SOMEBODY}")]);
    let mut load = fercuda();
    load.args(["vram", "load", other.path().to_str().unwrap(), saved]);
    let done = load.uid(SOMEBODY).gid(SOMEBODY).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    (other, said)
}

#[test]
fn devices_that_who_loads_may_not_make_are_named_and_all_else_is_loaded() {
    let here = Here::plain();
    let null = rustix::fs::makedev(1, 3);
    let (kind, mode) = (FileType::CharacterDevice, Mode::RUSR);
    mknodat(CWD, here.at("device"), kind, mode, null).unwrap();
    fs::hard_link(here.at("device"), here.at("again")).unwrap();
    mknodat(CWD, here.at("pipe"), FileType::Fifo, mode, 0).unwrap();
    fs::write(here.at("file"), b"bytes").unwrap();
    let (other, said) = loaded_by_somebody(&here);
    let mut lines: Vec<&str> = said
        .lines()
        .map(|it| it.split(": ").next().unwrap())
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, ["again", "device"], "{said}");
    let mut names: Vec<_> = fs::read_dir(other.path())
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["file", "pipe"]);
    assert_eq!(fs::read(other.at("file")).unwrap(), b"bytes");
}

#[test]
fn others_than_root_and_who_has_mounted_or_owns_it_neither_save_nor_load() {
    let here = Here::new(&["--size=1MiB", "--ecc=off", "--mode=777"]);
    fs::write(here.at("file"), b"bytes").unwrap();
    let disk = tempfile::tempdir().unwrap();
    let mode = fs::Permissions::from_mode(0o777);
    fs::set_permissions(disk.path(), mode.clone()).unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    well(&["save", here.path().to_str().unwrap(), saved]);
    fs::set_permissions(&file, mode).unwrap();
    let as_somebody = |words: &[&str]| {
        let mut command = fercuda();
        command.arg("vram").args(words).uid(SOMEBODY).gid(SOMEBODY);
        let done = command.output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        (done.status.code(), said)
    };
    let own = format!("--uid={SOMEBODY}");
    for (uid, status) in [("--uid=0", Some(1)), (&own, Some(0))] {
        let other = Here::new(&["--size=1MiB", "--ecc=off", "--mode=777", uid]);
        let target = other.path().to_str().unwrap();
        let again = disk.path().join(uid);
        for words in [
            ["load", target, saved],
            ["save", target, again.to_str().unwrap()],
        ] {
            let (code, said) = as_somebody(&words);
            assert_eq!(code, status, "{said}");
            assert_eq!(
                said.contains("only who has mounted it"),
                code == Some(1),
                "{said}"
            );
        }
        assert_eq!(other.at("file").exists(), status == Some(0));
        assert_eq!(again.exists(), status == Some(0));
    }
}

#[test]
fn attributes_that_only_root_may_set_are_named_where_another_loads() {
    let here = Here::plain();
    fs::write(here.at("file"), b"bytes").unwrap();
    let value = seed().to_string();
    for key in ["user.a", "trusted.b", "security.c"] {
        let flags = XattrFlags::empty();
        lsetxattr(here.at("file"), key, value.as_bytes(), flags).unwrap();
    }
    let (other, said) = loaded_by_somebody(&here);
    for key in ["trusted.b", "security.c"] {
        let line = said.lines().find(|line| line.contains(key));
        assert!(
            line.is_some_and(|line| line.starts_with("file: ")),
            "{said}"
        );
    }
    assert!(!said.contains("user.a"), "{said}");
    // All else is there.
    assert_eq!(read(&File::open(other.at("file")).unwrap(), 0, 9), b"bytes");
    let mut got = [0; 100];
    let len = lgetxattr(other.at("file"), "user.a", &mut got[..]).unwrap();
    assert_eq!(&got[..len], value.as_bytes());
}
