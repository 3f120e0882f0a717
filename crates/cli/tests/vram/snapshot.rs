//! Snapshots of filesystems in use, snapshots that do not fit, and restricted callers.

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
use super::mounting::DEADLINE;
use super::tools::{entry, expect_success};
use super::{
    OTHER_USER, TestMount, expect_failure, fercuda, fercuda_with_default_signals, read, seed,
};

fn random(len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::u8(1..))
        .take(len)
        .collect()
}

/// The text after a word of a message, up to the next whitespace.
fn behind<'m>(message: &'m str, word: &str) -> &'m str {
    let (_, rest) = message.split_once(word).expect(message);
    rest.split_whitespace().next().unwrap()
}

/// Asserts that no file was created.
fn assert_untouched(mounted: &TestMount) {
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
    assert_eq!(mounted.counter("used_inodes"), 1);
    assert_eq!(mounted.counter("used_bytes"), 0);
}

#[test]
fn oversized_snapshot_is_refused_before_any_file_is_created() {
    fastrand::seed(seed());
    let mounted = TestMount::plain();
    // Many files with few bytes, each of which takes a page.
    let files = fastrand::u64(300..400);
    for file in 0..files {
        let bytes = random(fastrand::usize(1..200));
        fs::write(mounted.at(&format!("file {file}")), bytes).unwrap();
    }
    let sparse = mounted.file("sparse");
    let extents = fastrand::u64(20..60);
    for extent in 0..extents {
        sparse.write_all_at(b"page", extent * 300_000).unwrap();
    }
    fs::create_dir(mounted.at("directory")).unwrap();
    fs::hard_link(mounted.at("file 0"), mounted.at("directory/too")).unwrap();
    let place = mounted.path().to_str().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    expect_success(&["save", place, saved]);

    // Each file and each extent has a page.
    let pages = files + extents;
    let other = TestMount::new(&["--size=1MiB", "--ecc=off"]);
    let target = other.path().to_str().unwrap();
    let message = expect_failure(&["load", target, saved]);
    assert!(message.contains("pages of 4 KiB"), "{message}");
    assert_untouched(&other);
    // The suggested size is sufficient.
    let size = behind(&message, "--size ");
    expect_success(&["grow", target, "--size", size]);
    expect_success(&["load", target, saved]);
    assert_eq!(other.counter("used_bytes"), pages * 4096);
    let exact = pages.div_ceil(32) * 128;
    let fits = TestMount::new(&[&format!("--size={exact}KiB"), "--ecc=off"]);
    expect_success(&["load", fits.path().to_str().unwrap(), saved]);

    // The root, the directory, the sparse file, and a further name.
    let inodes = files + 4;
    let given = format!("--inodes={}", inodes - 1);
    let other = TestMount::new(&["--size=32MiB", "--ecc=off", &given]);
    let message = expect_failure(&["load", other.path().to_str().unwrap(), saved]);
    assert_eq!(
        behind(&message, "--inodes "),
        inodes.to_string(),
        "{message}"
    );
    assert_untouched(&other);
    let given = format!("--inodes={inodes}");
    let other = TestMount::new(&["--size=32MiB", "--ecc=off", &given]);
    expect_success(&["load", other.path().to_str().unwrap(), saved]);
    assert_eq!(other.counter("used_inodes"), inodes);
}

#[test]
fn oversized_metadata_is_refused_before_any_file_is_created() {
    fastrand::seed(seed());
    let mounted = TestMount::plain();
    let value = random(64_000);
    for file in 0..66 {
        let name = mounted.at(&format!("file {file}"));
        File::create(&name).unwrap();
        for key in 0..16 {
            let key = format!("user.{key:02}");
            lsetxattr(&name, key, &value, XattrFlags::empty()).unwrap();
        }
    }
    let target = "t".repeat(fastrand::usize(1..4000));
    std::os::unix::fs::symlink(target, mounted.at("link")).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    expect_success(&["save", mounted.path().to_str().unwrap(), saved]);
    let other = TestMount::new(&["--size=1MiB", "--ecc=off", "--inodes=200"]);
    let message = expect_failure(&["load", other.path().to_str().unwrap(), saved]);
    assert!(message.contains("metadata bytes"), "{message}");
    assert_untouched(&other);
    // The suggested number is sufficient, and one fewer is not.
    let inodes: u64 = behind(&message, "--inodes ").parse().unwrap();
    let given = format!("--inodes={}", inodes - 1);
    let other = TestMount::new(&["--size=1MiB", "--ecc=off", &given]);
    expect_failure(&["load", other.path().to_str().unwrap(), saved]);
    assert_untouched(&other);
    let given = format!("--inodes={inodes}");
    let other = TestMount::new(&["--size=1MiB", "--ecc=off", &given]);
    expect_success(&["load", other.path().to_str().unwrap(), saved]);
    let figure = "used_metadata_bytes";
    assert_eq!(other.counter(figure), mounted.counter(figure));
}

/// A child process that is killed on drop.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

#[test]
fn directory_owner_cannot_redirect_files_that_root_loads() {
    fastrand::seed(seed());
    let mounted = TestMount::plain();
    let secret = random(100);
    fs::write(mounted.at("a-secret"), &secret).unwrap();
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(mounted.at("a-secret"), mode).unwrap();
    let large = random(24 << 20);
    fs::write(mounted.at("big"), &large).unwrap();
    let id = Some(OTHER_USER);
    std::os::unix::fs::chown(mounted.at("big"), id, id).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    expect_success(&["save", mounted.path().to_str().unwrap(), saved]);

    let other = TestMount::new(&["--size=32MiB", "--ecc=off", &format!("--uid={OTHER_USER}")]);
    let target = other.path().to_str().unwrap();
    // Files created there would inherit access for the other user.
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 7, u32::MAX),
        entry(2, 7, OTHER_USER),
        entry(4, 5, u32::MAX),
        entry(16, 7, u32::MAX),
        entry(32, 0, u32::MAX),
    ]
    .concat();
    let (name, flags) = ("system.posix_acl_default", XattrFlags::empty());
    lsetxattr(other.path(), name, &list, flags).unwrap();
    let mut meddler = Command::new("sh");
    // Moves the secret over the other file as soon as that exists.
    let line = "until [ -e big ] && mv -fT a-secret big; do sleep 0.002; done; echo moved";
    meddler.args(["-c", line]).current_dir(target);
    meddler
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .stdout(Stdio::piped());
    let _meddler = KilledOnDrop(meddler.stderr(Stdio::null()).spawn().unwrap());
    expect_success(&["load", target, saved]);
    let is = other.at("a-secret").symlink_metadata();
    let is = is.expect("a-secret was moved during the load");
    assert_eq!((is.uid(), is.mode() & 0o7777), (0, 0o600));
    assert_eq!(other.at("big").metadata().unwrap().uid(), OTHER_USER);
    assert!(fs::read(other.at("big")).unwrap() == large);
    for name in ["a-secret", "big", ""] {
        let mut value = [0; 100];
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            let listed = lgetxattr(other.at(name), list, &mut value[..]);
            assert_eq!(listed, Err(Errno::NODATA), "{name}: {list}");
        }
    }
    // After a failed load the directory is unchanged.
    let last = TestMount::new(&["--size=32MiB", "--ecc=off", &format!("--uid={OTHER_USER}")]);
    lsetxattr(last.path(), name, &list, flags).unwrap();
    let before = last.path().metadata().unwrap();
    let mut builder = SnapshotBuilder::default();
    builder.put(b'5', "directory", &[], b"");
    builder.put(b'0', "directory/file", &[], b"bytes");
    builder.put(b'5', "directory/within", &[], b"");
    builder.put(b'0', "file", &[], b"bytes");
    builder.put(b'5', "none/directory", &[], b"");
    fs::write(&file, builder.end()).unwrap();
    let message = expect_failure(&["load", last.path().to_str().unwrap(), saved]);
    assert!(message.contains("its member none/directory"), "{message}");
    assert!(!message.contains("cannot remove"), "{message}");
    assert_untouched(&last);
    let is = last.path().metadata().unwrap();
    assert_eq!((is.uid(), is.mode()), (before.uid(), before.mode()));
    let mut value = [0; 100];
    let len = lgetxattr(last.path(), name, &mut value[..]).unwrap();
    assert_eq!(&value[..len], list);
}

/// Stops a process when an unnamed file that it has open, on the disk that has this folder, reaches
/// a size.
fn stop(process: &Child, folder: &Path, bytes: u64) {
    let begun = Instant::now();
    let device = folder.metadata().unwrap().dev();
    let files = format!("/proc/{}/fd", process.id());
    let len = || {
        // A file may be closed meanwhile.
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
fn interrupted_save_leaves_nothing_and_a_complete_one_replaces_its_target() {
    fastrand::seed(seed());
    let mounted = TestMount::plain();
    fs::write(mounted.at("a"), random(24 << 20)).unwrap();
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
    let place = mounted.path().to_str().unwrap();
    for signal in [Signal::INT, Signal::KILL] {
        let mut saver = fercuda_with_default_signals();
        saver.args(["vram", "save", "--force", place, saved]);
        let mut saver = KilledOnDrop(saver.spawn().unwrap());
        stop(&saver.0, disk.path(), 2 << 20);
        kill_process(Pid::from_child(&saver.0), signal).unwrap();
        kill_process(Pid::from_child(&saver.0), Signal::CONT).unwrap();
        assert_eq!(saver.0.wait().unwrap().code(), None);
        assert_eq!(names(), ["saved.tar"], "{signal:?}");
        assert_eq!(fs::read(&file).unwrap(), b"another");
    }
    expect_success(&["save", "--force", place, saved]);
    assert_eq!(names(), ["saved.tar"]);
    assert!(file.metadata().unwrap().len() > 24 << 20);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn reused_inode_number_is_not_saved_as_a_hard_link() {
    fastrand::seed(seed());
    let mounted = TestMount::plain();
    let (old, new) = (random(5000), random(5000));
    fs::write(mounted.at("a1"), &old).unwrap();
    fs::hard_link(mounted.at("a1"), mounted.at("a2")).unwrap();
    fs::write(mounted.at("kept 1"), b"kept").unwrap();
    fs::hard_link(mounted.at("kept 1"), mounted.at("kept 2")).unwrap();
    // Large, so that the save can be stopped while it reads this file.
    fs::write(mounted.at("b"), random(24 << 20)).unwrap();
    fs::create_dir(mounted.at("later")).unwrap();
    let number = mounted.at("a1").metadata().unwrap().ino();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    let mut saver = fercuda();
    saver.args(["vram", "save", mounted.path().to_str().unwrap(), saved]);
    let saver = saver.stderr(Stdio::piped()).stdout(Stdio::null());
    let mut saver = KilledOnDrop(saver.spawn().unwrap());
    stop(&saver.0, disk.path(), 2 << 20);
    assert!(!file.exists(), "all was saved before it was stopped");
    fs::remove_file(mounted.at("a1")).unwrap();
    fs::remove_file(mounted.at("a2")).unwrap();
    // The inode number is freed asynchronously.
    let named = (0..1000).find(|it| {
        std::thread::sleep(Duration::from_millis(1));
        let name = mounted.at(&format!("later/{it}"));
        fs::write(&name, &new).unwrap();
        name.metadata().unwrap().ino() == number
    });
    let name = format!("later/{}", named.expect("no file has the number again"));
    fs::hard_link(mounted.at(&name), mounted.at("later/too")).unwrap();
    kill_process(Pid::from_child(&saver.0), Signal::CONT).unwrap();
    let mut output = String::new();
    let mut errors = saver.0.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut errors, &mut output).unwrap();
    let status = saver.0.wait().unwrap().code();

    let other = TestMount::plain();
    expect_success(&["load", other.path().to_str().unwrap(), saved]);
    assert!(fs::read(other.at("a1")).unwrap() == old);
    for name in [&name, "later/too"] {
        assert!(fs::read(other.at(name)).unwrap() == new, "{name}: {output}");
    }
    let ino = |name: &str| other.at(name).metadata().unwrap().ino();
    assert_eq!(ino(&name), ino("later/too"));
    assert_eq!(ino("kept 1"), ino("kept 2"));
    // The report mentions a1, as it could be that file, modified.
    assert!(output.contains(&name) && output.contains("a1"), "{output}");
    assert_eq!(status, Some(1), "{output}");
}

/// Builder of snapshots that `save` would not write.
#[derive(Default)]
struct SnapshotBuilder {
    bytes: Vec<u8>,
    list: String,
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|it| format!("{it:02x}")).collect()
}

impl SnapshotBuilder {
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
            // The length includes its own two digits.
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
fn sparse_file_with_millions_of_extents_is_loaded() {
    fastrand::seed(seed());
    // As `save` writes a file with every other page a hole; but with every other byte, mostly
    // zeros, which take no space.
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
    let mut builder = SnapshotBuilder::default();
    let size = begin + 2 * parts;
    let size_text = size.to_string();
    let records = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "file"),
        ("GNU.sparse.realsize", &size_text),
    ];
    builder.put(b'0', "file", &records, &data);
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("made.tar");
    fs::write(&file, builder.end()).unwrap();
    let mounted = TestMount::new(&["--size=128MiB", "--ecc=off"]);
    expect_success(&[
        "load",
        mounted.path().to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    let file = File::open(mounted.at("file")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size);
    assert_eq!(read(&file, size - 4, 9), [0, 0, last, 0]);
    assert_eq!(read(&file, begin, 100_000), vec![0; 100_000]);
}

#[test]
fn dirty_pages_of_mappings_are_saved() {
    fastrand::seed(seed());
    let disk = tempfile::tempdir().unwrap();
    for cache in ["--cache=none", "--cache=keep"] {
        let mounted = TestMount::new(&["--size=4MiB", "--ecc=off", cache]);
        let bytes = random(fastrand::usize(1..1 << 20));
        let file = mounted.file("file");
        file.set_len(bytes.len() as u64).unwrap();
        let mapping = Mapping::new(&file, bytes.len());
        mapping.write(0, &bytes);
        // Hard links are saved as one file, which is written back once.
        fs::hard_link(mounted.at("file"), mounted.at("other")).unwrap();
        let saved = disk.path().join(cache);
        let saved = saved.to_str().unwrap();
        expect_success(&["save", mounted.path().to_str().unwrap(), saved]);
        let other = TestMount::plain();
        expect_success(&["load", other.path().to_str().unwrap(), saved]);
        assert!(fs::read(other.at("file")).unwrap() == bytes, "{cache}");
        assert_eq!(fs::metadata(other.at("other")).unwrap().nlink(), 2);
        drop(mapping);
    }
}

#[test]
fn unrepresentable_attributes_are_reported_and_the_rest_is_saved() {
    let mounted = TestMount::plain();
    fs::create_dir(mounted.at("directory")).unwrap();
    for name in ["file", "directory/file"] {
        fs::write(mounted.at(name), name).unwrap();
    }
    let flags = XattrFlags::empty();
    for name in ["", "file", "directory"] {
        for key in [&b"user.a=b"[..], b"user.\xFF", b"user.kept"] {
            lsetxattr(mounted.at(name), key, b"value", flags).unwrap();
        }
    }
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    let message = expect_failure(&["save", mounted.path().to_str().unwrap(), saved]);
    for (name, times) in [
        ("attribute user.a=b omitted: ", 3),
        ("attribute user.\u{FFFD} omitted: ", 3),
    ] {
        assert_eq!(message.matches(name).count(), times, "{message}");
    }
    let other = TestMount::plain();
    expect_success(&["load", other.path().to_str().unwrap(), saved]);
    for name in ["file", "directory/file"] {
        assert_eq!(fs::read(other.at(name)).unwrap(), name.as_bytes());
    }
    let mut value = [0; 100];
    for name in ["", "file", "directory"] {
        let len = lgetxattr(other.at(name), "user.kept", &mut value[..]);
        assert_eq!(&value[..len.unwrap()], b"value", "{name}");
    }
}

/// Saves a mount and loads it as another user into that user's filesystem, which refuses a part of
/// it; returns the new mount and the standard error.
fn load_as_other_user(mounted: &TestMount) -> (TestMount, String) {
    let disk = tempfile::tempdir().unwrap();
    let mode = || fs::Permissions::from_mode(0o755);
    fs::set_permissions(disk.path(), mode()).unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    expect_success(&["save", mounted.path().to_str().unwrap(), saved]);
    fs::set_permissions(&file, mode()).unwrap();
    let other = TestMount::new(&["--size=1MiB", "--ecc=off", &format!("--uid={OTHER_USER}")]);
    let mut load = fercuda();
    load.args(["vram", "load", other.path().to_str().unwrap(), saved]);
    let done = load.uid(OTHER_USER).gid(OTHER_USER).output().unwrap();
    let output = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{output}");
    (other, output)
}

#[test]
fn forbidden_devices_are_reported_and_the_rest_is_loaded() {
    let mounted = TestMount::plain();
    let null = rustix::fs::makedev(1, 3);
    let (kind, mode) = (FileType::CharacterDevice, Mode::RUSR);
    mknodat(CWD, mounted.at("device"), kind, mode, null).unwrap();
    fs::hard_link(mounted.at("device"), mounted.at("again")).unwrap();
    mknodat(CWD, mounted.at("pipe"), FileType::Fifo, mode, 0).unwrap();
    fs::write(mounted.at("file"), b"bytes").unwrap();
    let (other, output) = load_as_other_user(&mounted);
    let mut lines: Vec<&str> = output
        .lines()
        .map(|it| it.split(": ").next().unwrap())
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, ["again", "device"], "{output}");
    let mut names: Vec<_> = fs::read_dir(other.path())
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["file", "pipe"]);
    assert_eq!(fs::read(other.at("file")).unwrap(), b"bytes");
}

#[test]
fn only_root_mount_owner_and_directory_owner_save_and_load() {
    let mounted = TestMount::new(&["--size=1MiB", "--ecc=off", "--mode=777"]);
    fs::write(mounted.at("file"), b"bytes").unwrap();
    let disk = tempfile::tempdir().unwrap();
    let mode = fs::Permissions::from_mode(0o777);
    fs::set_permissions(disk.path(), mode.clone()).unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    expect_success(&["save", mounted.path().to_str().unwrap(), saved]);
    fs::set_permissions(&file, mode).unwrap();
    let as_other_user = |words: &[&str]| {
        let mut command = fercuda();
        command
            .arg("vram")
            .args(words)
            .uid(OTHER_USER)
            .gid(OTHER_USER);
        let done = command.output().unwrap();
        let output = String::from_utf8(done.stderr).unwrap();
        (done.status.code(), output)
    };
    let own = format!("--uid={OTHER_USER}");
    for (uid, status) in [("--uid=0", Some(1)), (&own, Some(0))] {
        let other = TestMount::new(&["--size=1MiB", "--ecc=off", "--mode=777", uid]);
        let target = other.path().to_str().unwrap();
        let again = disk.path().join(uid);
        for words in [
            ["load", target, saved],
            ["save", target, again.to_str().unwrap()],
        ] {
            let (code, output) = as_other_user(&words);
            assert_eq!(code, status, "{output}");
            assert_eq!(
                output.contains("not permitted for user"),
                code == Some(1),
                "{output}"
            );
        }
        assert_eq!(other.at("file").exists(), status == Some(0));
        assert_eq!(again.exists(), status == Some(0));
    }
}

#[test]
fn root_only_attributes_are_reported_when_another_user_loads() {
    let mounted = TestMount::plain();
    fs::write(mounted.at("file"), b"bytes").unwrap();
    let value = seed().to_string();
    for key in ["user.a", "trusted.b", "security.c"] {
        let flags = XattrFlags::empty();
        lsetxattr(mounted.at("file"), key, value.as_bytes(), flags).unwrap();
    }
    let (other, output) = load_as_other_user(&mounted);
    for key in ["trusted.b", "security.c"] {
        let line = output.lines().find(|line| line.contains(key));
        assert!(
            line.is_some_and(|line| line.starts_with("file: ")),
            "{output}"
        );
    }
    assert!(!output.contains("user.a"), "{output}");
    // Everything else was loaded.
    assert_eq!(read(&File::open(other.at("file")).unwrap(), 0, 9), b"bytes");
    let mut got = [0; 100];
    let len = lgetxattr(other.at("file"), "user.a", &mut got[..]).unwrap();
    assert_eq!(&got[..len], value.as_bytes());
}
