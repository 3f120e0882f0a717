//! Maintenance of a mounted filesystem, snapshots, and the mount helper.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, mknodat};
use serde_json::Value;

use super::{OTHER_USER, TestMount, expect_failure, expect_usage_error, fercuda, seed, vram};

pub(super) fn expect_success(words: &[&str]) -> String {
    let done = vram(words);
    let output = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{words:?}: {output}");
    String::from_utf8(done.stdout).unwrap()
}

fn scrub(mounted: &TestMount) -> (Option<i32>, [u64; 3]) {
    let done = vram(&["scrub", "--now", "--json", mounted.path().to_str().unwrap()]);
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let figure = |name: &str| all[name].as_u64().unwrap();
    let figures = ["looked_at", "corrected", "lost"].map(figure);
    (done.status.code(), figures)
}

#[test]
fn memory_is_tested_without_a_mount() {
    let figures = |words: &[&str]| -> Value {
        let words = [&["test", "--json"], words].concat();
        serde_json::from_str(&expect_success(&words)).unwrap()
    };
    // 9 blocks, of which two are damaged; the last one is rounded up.
    let coded = figures(&["--size", "1025K", "--ecc"]);
    assert_eq!(
        (&coded["blocks"], &coded["damaged"]),
        (&9.into(), &2.into())
    );
    assert_eq!(
        (&coded["found"], &coded["corrected"]),
        (&2.into(), &2.into())
    );
    assert_eq!((&coded["wrong"], &coded["ecc"]), (&0.into(), &true.into()));
    assert!(coded["memory_bytes"].as_u64() >= Some((9 * 137) << 10));
    let plain = figures(&["--size", "8576K", "--device", "soft"]);
    assert_eq!((&plain["blocks"], &plain["wrong"]), (&67.into(), &0.into()));
    assert_eq!(
        (&plain["damaged"], &plain["ecc"]),
        (&0.into(), &false.into())
    );
    let shown = expect_success(&["test", "--size", "128K", "--ecc", "--device", "0"]);
    assert!(
        shown.contains("1 block damaged, 1 found, 1 corrected"),
        "{shown}"
    );
    assert!(expect_failure(&["test", "--size", "1M", "--device", "99"]).contains("99"));
    expect_usage_error(&["test", "--size", "1M", "--device", "moon"]);
}

#[test]
fn the_name_vramfs_stands_for_its_commands() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("vramfs");
    symlink(env!("CARGO_BIN_EXE_fercuda"), &name).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&name);
        let done = command.args(words).env("FERCUDA_DEVICE", "soft").output();
        let done = done.unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let (code, shown) = run(&["test", "--size", "1M", "--ecc"]);
    assert!(
        code == Some(0) && shown.contains("all data are as written"),
        "{shown}"
    );
    let (code, help) = run(&["--help"]);
    assert!(code == Some(0) && help.contains("scrub"), "{help}");
}

#[test]
fn injected_faults_are_corrected_and_uncorrectable_ones_reported() {
    let mounted = TestMount::new(&["--size=2MiB", "--scrub-rate=off", "--verify=scrub"]);
    let place = mounted.path().to_str().unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(600_000)
        .collect();
    let name = mounted.at("file");
    fs::write(&name, &bytes).unwrap();
    assert_eq!(scrub(&mounted), (Some(0), [5, 0, 0]));
    let name = name.to_str().unwrap();
    let seed = seed().to_string();
    for kind in ["symbol", "row", "burst", "metadata"] {
        let words = ["inject", name, "--kind", kind, "--seed", &seed];
        assert_eq!(
            expect_success(&words),
            format!("1 fault injected into 5 blocks in use; seed {seed}\n")
        );
        assert_eq!(scrub(&mounted), (Some(0), [5, 1, 0]), "{kind}");
        assert_eq!(scrub(&mounted), (Some(0), [5, 0, 0]), "{kind}");
        assert!(fs::read(name).unwrap() == bytes, "{kind}");
    }
    assert_eq!(mounted.counter("corrected_blocks"), 4);
    // One row for the symbol, one for the row, up to four for the burst; and the record, without
    // which no row's checksum is known.
    assert_eq!(mounted.counter("corrected_records"), 1);
    let rows = mounted.counter("corrected_rows");
    assert!((3..=6).contains(&rows), "{rows}");
    assert!(mounted.counter("corrected_symbols") >= 1);
    assert_eq!(mounted.counter("scrub_rounds"), 0);
    assert!(expect_success(&["scrub", place]).contains("corrected blocks   4\n"));
    // A dozen or more rows of a block: more than the code corrects.
    expect_success(&["inject", name, "--kind=row", "--count=200", "--seed", &seed]);
    let (status, [looked, _, lost]) = scrub(&mounted);
    assert_eq!((status, looked), (Some(1), 5));
    assert!(lost >= 1);
    expect_success(&["umount", place]);
}

#[test]
fn other_users_and_foreign_directories_are_refused() {
    let mounted = TestMount::plain();
    let place = mounted.path().to_str().unwrap();
    let message = expect_failure(&["inject", place]);
    assert!(message.contains("it has no code (--ecc off)"), "{message}");
    let message = expect_failure(&["scrub", "--now", place]);
    assert!(
        message.contains("try: fercuda vram mount without --ecc off"),
        "{message}"
    );
    for words in [
        vec!["scrub", "/proc"],
        vec!["inject", "/proc"],
        vec!["grow", "/proc", "--size=1GiB"],
        vec!["save", "/proc", "/tmp/never"],
        vec!["load", "/proc", "/dev/null"],
    ] {
        let message = expect_failure(&words);
        assert!(
            message.contains("not where such a filesystem is mounted"),
            "{message}"
        );
    }
    let message = expect_failure(&["grow", place, "--size=1MiB"]);
    assert!(
        message.contains("has a capacity of 32.0 MiB already"),
        "{message}"
    );
    let message = expect_failure(&["shrink", place, "--size=1GiB"]);
    assert!(
        message.contains("has a capacity of 32.0 MiB only"),
        "{message}"
    );
    let message = expect_failure(&["grow", place, "--size=900000GiB"]);
    assert!(message.contains("more than"), "{message}");
    assert_eq!(mounted.counter("size_bytes"), 32 << 20);
    // A user with access to the files may still not resize the filesystem.
    use std::os::unix::process::CommandExt as _;
    let mut other = fercuda();
    other.args(["vram", "grow", place, "--size=64MiB"]);
    let done = other.uid(OTHER_USER).gid(OTHER_USER).output().unwrap();
    let message = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        message.contains("only the mount's owner and root may"),
        "{message}"
    );
    assert_eq!(mounted.counter("size_bytes"), 32 << 20);
}

#[test]
fn unresponsive_directory_does_not_hide_others() {
    let mounted = TestMount::plain();
    let place = mounted.path().to_str().unwrap();
    for what in ["df", "stat"] {
        let done = vram(&[what, "/proc", place]);
        let output = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1));
        assert!(output.contains(place), "{output}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("cannot query /proc"));
    }
    let shown = expect_success(&["top", "--once", place]);
    assert!(shown.starts_with(place), "{shown}");
    // In a pipe no line is cut.
    assert!(!shown.contains('~'), "{shown}");
    assert!(shown.contains(" of data in "), "{shown}");
    assert!(shown.contains("/s written\n"), "{shown}");
    let message = expect_usage_error(&[
        "mount",
        "--size=1MiB",
        "--ecc=off",
        "--scrub-rate=1GiB",
        "/nowhere",
    ]);
    assert!(message.contains("try: without --ecc off"), "{message}");
    // After `--` comes a directory, also in the daemon's arguments.
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    expect_success(&["mount", "--size=1MiB", "--ecc=off", "--", place]);
    expect_success(&["umount", place]);
}

/// Metadata and contents of all files, by name.
fn snapshot_tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn visit(root: &Path, name: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
        let path = root.join(name);
        let is = path.symlink_metadata().unwrap();
        let mut text = format!(
            "{:o} {} {} {} {} {}.{:09} ",
            is.mode(),
            is.uid(),
            is.gid(),
            if is.is_dir() { 0 } else { is.nlink() },
            is.rdev(),
            is.mtime(),
            is.mtime_nsec()
        )
        .into_bytes();
        for key in [
            "user.a",
            "trusted.b",
            "system.posix_acl_access",
            "system.posix_acl_default",
        ] {
            let mut value = [0; 1000];
            if let Ok(len) = lgetxattr(&path, key, &mut value[..]) {
                text.extend(key.as_bytes());
                text.extend(&value[..len]);
            }
        }
        if is.is_symlink() {
            text.extend(path.read_link().unwrap().as_os_str().as_bytes());
        } else if is.is_file() {
            text.extend(fs::read(&path).unwrap());
        } else if is.is_dir() {
            for entry in path.read_dir().unwrap() {
                visit(root, &name.join(entry.unwrap().file_name()), all);
            }
        }
        all.insert(name.to_owned(), text);
    }
    let mut all = BTreeMap::new();
    visit(root, Path::new(""), &mut all);
    all
}

fn sh(line: &str, at: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-ec").arg(line).current_dir(at).output().unwrap()
}

/// Creates files of every type.
fn fill(at: &Path) {
    let long = "n".repeat(200);
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(700_001)
        .collect();
    fs::write(at.join("bytes"), &bytes).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    // A socket with two names, neither of which is saved.
    let _socket = std::os::unix::net::UnixListener::bind(at.join("socket")).unwrap();
    fs::hard_link(at.join("socket"), at.join("socket too")).unwrap();
    fs::create_dir_all(at.join("directory/within").join(&long)).unwrap();
    let deep = at.join("directory/within").join(&long).join(&long);
    fs::write(&deep, "deep").unwrap();
    fs::hard_link(&deep, at.join("another name")).unwrap();
    symlink("a".repeat(300), at.join("link")).unwrap();
    symlink("/", at.join("out")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"odd\n\xFF name");
    fs::write(at.join(odd), "odd").unwrap();
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, at.join("pipe"), FileType::Fifo, mode, 0).unwrap();
    let null = rustix::fs::makedev(1, 3);
    mknodat(CWD, at.join("null"), FileType::CharacterDevice, mode, null).unwrap();
    let sparse = File::create(at.join("sparse")).unwrap();
    sparse.set_len(1 << 27).unwrap();
    use std::os::unix::fs::FileExt as _;
    for place in [0, 40_000_000, (1 << 26) + 5, (1 << 27) - 3] {
        sparse.write_all_at(b"end", place).unwrap();
    }
    // A newline in a value needs no escape.
    for name in ["bytes", "directory"] {
        lsetxattr(at.join(name), "user.a", b"x\ny=z\0", XattrFlags::empty()).unwrap();
        lsetxattr(at.join(name), "trusted.b", b"", XattrFlags::empty()).unwrap();
    }
    let done = sh(
        "chmod 6755 bytes; chown -h 1234:4321 empty directory link; chmod 1777 directory/within; \
         touch -d 1969-02-03T04:05:06.789 empty; touch -h -d 2001-01-01 link; touch -d 2031-02-03 directory; chmod 750 .",
        at,
    );
    assert!(done.status.success(), "{done:?}");
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 7, u32::MAX),
        entry(2, 5, 77),
        entry(4, 4, u32::MAX),
        entry(16, 7, u32::MAX),
        entry(32, 0, u32::MAX),
    ]
    .concat();
    lsetxattr(
        at.join("bytes"),
        "system.posix_acl_access",
        &list,
        XattrFlags::empty(),
    )
    .unwrap();
    lsetxattr(
        at.join("directory"),
        "system.posix_acl_default",
        &list,
        XattrFlags::empty(),
    )
    .unwrap();
}

/// Encodes an entry of an access control list.
pub(super) fn entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
    [
        &tag.to_le_bytes()[..],
        &permissions.to_le_bytes(),
        &id.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn snapshot_round_trip_is_exact_and_corruption_is_refused() {
    fastrand::seed(seed());
    let mounted = TestMount::plain();
    fill(mounted.path());
    let place = mounted.path().to_str().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    let output = expect_success(&["save", place, saved]);
    assert!(output.starts_with("9 files with "), "{output}");
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    // Holes are not in it.
    let len = file.metadata().unwrap().len();
    assert!(len < 2 << 20, "{len}");
    // tar can read it.
    let listed = sh("tar tf saved.tar", disk.path());
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8_lossy(&listed.stdout);
    assert!(names.lines().any(|name| name == "sparse"), "{names}");
    let other = TestMount::plain();
    let target = other.path().to_str().unwrap();
    let before = other.counter("used_bytes");
    for _ in 0..20 {
        let mut bytes = fs::read(&file).unwrap();
        let at = fastrand::usize(..bytes.len() - 1024);
        match fastrand::bool() {
            true => bytes.truncate(at),
            false => bytes[at] ^= fastrand::u8(1..),
        }
        let wrong = disk.path().join("wrong.tar");
        fs::write(&wrong, bytes).unwrap();
        let message = expect_failure(&["load", target, wrong.to_str().unwrap()]);
        let names = [
            "is modified",
            "truncated",
            "not a snapshot",
            "modified there",
        ];
        assert!(names.iter().any(|name| message.contains(name)), "{message}");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
        assert_eq!(other.counter("used_bytes"), before);
    }
    let message = expect_usage_error(&["save", place, saved]);
    assert!(
        message.contains("exists\ntry: --force, or another name"),
        "{message}"
    );
    let within = mounted.at("within.tar");
    let message = expect_usage_error(&["save", place, within.to_str().unwrap()]);
    assert!(message.contains("is on the filesystem"), "{message}");
    expect_success(&["load", target, saved]);
    let (mut was, is) = (snapshot_tree(mounted.path()), snapshot_tree(other.path()));
    for name in ["socket", "socket too"] {
        was.remove(Path::new(name)).unwrap();
    }
    assert_eq!(
        was.keys().collect::<Vec<_>>(),
        is.keys().collect::<Vec<_>>()
    );
    for (name, was) in &was {
        assert!(*was == is[name], "{}", name.display());
    }
    assert_eq!(mounted.counter("used_bytes"), other.counter("used_bytes"));
    let message = expect_failure(&["load", target, saved]);
    assert!(message.contains("is not empty"), "{message}");
    expect_success(&["save", "--force", target, saved]);
    // A file that cannot be saved is reported, and the others are saved.
    let named = other.at(".fercuda-vram-snapshot");
    fs::write(&named, "whatever").unwrap();
    let message = expect_failure(&["save", "--force", target, saved]);
    assert!(message.contains("a manifest of that name"), "{message}");
    let third = TestMount::plain();
    expect_success(&["load", third.path().to_str().unwrap(), saved]);
    let (mut was, is) = (snapshot_tree(other.path()), snapshot_tree(third.path()));
    was.remove(Path::new(".fercuda-vram-snapshot"));
    assert_eq!(
        was.keys().collect::<Vec<_>>(),
        is.keys().collect::<Vec<_>>()
    );
    let small = TestMount::new(&["--size=128KiB", "--ecc=off"]);
    let message = expect_failure(&["load", small.path().to_str().unwrap(), saved]);
    assert!(message.contains("try: fercuda vram grow"), "{message}");
}

#[test]
fn corrupt_snapshot_error_names_the_member() {
    let mounted = TestMount::plain();
    fs::create_dir(mounted.at("d")).unwrap();
    for name in ["one", "d/two", "three"] {
        fs::write(mounted.at(name), vec![name.len() as u8; 5000]).unwrap();
    }
    let place = mounted.path().to_str().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let saved = disk.path().join("saved.tar");
    expect_success(&["save", place, saved.to_str().unwrap()]);
    let good = fs::read(&saved).unwrap();
    let mut archive = tar::Archive::new(&good[..]);
    let members: Vec<(String, usize)> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.size() == 5000)
        .map(|entry| {
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            (name, entry.raw_file_position() as usize)
        })
        .collect();
    assert_eq!(members.len(), 3);
    let other = TestMount::plain();
    let wrong = disk.path().join("wrong.tar");
    let load = |bytes: &[u8]| {
        fs::write(&wrong, bytes).unwrap();
        expect_failure(&[
            "load",
            other.path().to_str().unwrap(),
            wrong.to_str().unwrap(),
        ])
    };
    for (name, at) in members {
        for byte in [0, 4999] {
            let mut bytes = good.clone();
            bytes[at + byte] ^= 1;
            let message = load(&bytes);
            let expected = format!("\"{name}\" is modified: its checksum differs");
            assert!(message.contains(&expected), "{message}");
        }
        let message = load(&good[..at + 2500]);
        let expected = format!("it ends after \"{name}\" without a manifest");
        assert!(message.contains(&expected), "{message}");
    }
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn unreadable_data_are_saved_as_zeros_and_reported() {
    let mounted = TestMount::new(&["--size=2MiB", "--scrub-rate=off", "--verify=read"]);
    let place = mounted.path().to_str().unwrap();
    // Whole blocks, which the files do not share.
    let bytes = vec![7; 256 << 10];
    fs::write(mounted.at("lost"), &bytes).unwrap();
    fs::write(mounted.at("kept"), &bytes).unwrap();
    let name = mounted.at("lost");
    let name = name.to_str().unwrap();
    expect_success(&["inject", name, "--kind=row", "--count=300"]);
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let message = expect_failure(&["save", place, file.to_str().unwrap()]);
    assert!(
        message.contains("lost") && message.contains("unreadable parts are saved as zeros"),
        "{message}"
    );
    let other = TestMount::plain();
    expect_success(&[
        "load",
        other.path().to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    assert!(fs::read(other.at("kept")).unwrap() == bytes);
    let seen = fs::read(other.at("lost")).unwrap();
    assert_eq!(seen.len(), bytes.len());
    assert!(seen.iter().all(|byte| [0, 7].contains(byte)) && seen.contains(&0));
}

#[test]
fn path_traversal_in_a_snapshot_is_refused() {
    let mounted = TestMount::plain();
    let disk = tempfile::tempdir().unwrap();
    fs::create_dir(disk.path().join("elsewhere")).unwrap();
    for (link, name) in [
        (None, "../escaped"),
        (None, "/escaped"),
        (Some("way"), "way/escaped"),
    ] {
        let file = disk.path().join("hostile.tar");
        let mut list = "fercuda vram snapshot 1\n".to_owned();
        let mut bytes = Vec::new();
        let mut put = |kind: u8, name: &str, target: &str, data: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::new(kind));
            header.set_mode(0o644);
            let fields = header.as_ustar_mut().unwrap();
            fields.name[..name.len()].copy_from_slice(name.as_bytes());
            fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(data.len() as u64);
            header.set_cksum();
            let begin = bytes.len();
            bytes.extend(header.as_bytes());
            bytes.extend(data);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
            (begin, bytes.len() - begin)
        };
        let mut spans = Vec::new();
        if let Some(link) = link {
            let target = disk.path().join("elsewhere");
            spans.push(put(b'2', link, target.to_str().unwrap(), b""));
        }
        spans.push(put(b'0', name, "", b"escaped"));
        let digest = |bytes: &[u8]| {
            use sha2::Digest as _;
            let digest = sha2::Sha256::digest(bytes);
            digest
                .iter()
                .map(|it| format!("{it:02x}"))
                .collect::<String>()
        };
        for (begin, len) in spans {
            let sum = digest(&bytes[begin..begin + len]);
            list += &format!("{sum} {begin} {len} x\n");
        }
        list += &format!("{}\n", digest(list.as_bytes()));
        let mut put_list = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(list.len() as u64);
        put_list
            .append_data(&mut header, ".fercuda-vram-snapshot", list.as_bytes())
            .unwrap();
        bytes.extend(put_list.into_inner().unwrap());
        let mut out = File::create(&file).unwrap();
        out.write_all(&bytes).unwrap();
        let message = expect_failure(&[
            "load",
            mounted.path().to_str().unwrap(),
            file.to_str().unwrap(),
        ]);
        assert!(message.contains("escaped"), "{message}");
        for place in [
            disk.path().join("elsewhere"),
            disk.path().to_owned(),
            PathBuf::from("/"),
        ] {
            assert!(!place.join("escaped").exists());
        }
        for entry in mounted.path().read_dir().unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

struct StopGuard<'e>(&'e AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn resizing_while_in_use_keeps_data() {
    let seed = seed();
    fastrand::seed(seed);
    let mounted = TestMount::new(&["--size=8MiB", "--ecc=off"]);
    let place = mounted.path().to_str().unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(3_000_000)
        .collect();
    // Placed so that the data that stay are behind those that are removed.
    fs::write(mounted.at("first"), vec![1; 4 << 20]).unwrap();
    fs::write(mounted.at("kept"), &bytes).unwrap();
    let message = expect_failure(&["shrink", place, "--size=4MiB"]);
    assert!(message.contains("are in use"), "{message}");
    assert_eq!(mounted.counter("size_bytes"), 8 << 20);
    expect_success(&["grow", place, "--size=16MiB"]);
    assert_eq!(mounted.counter("size_bytes"), 16 << 20);
    fs::write(mounted.at("more"), vec![2; 8 << 20]).unwrap();
    let most = mounted.counter("device_bytes");
    fs::remove_file(mounted.at("first")).unwrap();
    fs::remove_file(mounted.at("more")).unwrap();
    // A thread reads and writes all the time.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Stops it also if an assertion fails.
        let end = StopGuard(&stop);
        let worker = scope.spawn(|| {
            let file = mounted.file("busy");
            use std::os::unix::fs::FileExt as _;
            let mut round = 0u8;
            while !stop.load(Relaxed) || round < 3 {
                round = round.wrapping_add(1).max(1);
                file.write_all_at(&vec![round; 500_000], 0).unwrap();
                let got = super::read(&file, 0, 500_000);
                assert!(got.iter().all(|byte| *byte == round));
                assert!(fs::read(mounted.at("kept")).unwrap() == bytes);
            }
        });
        for size in ["6MiB", "12MiB", "5MiB", "4MiB"] {
            let how = match size {
                "12MiB" => "grow",
                _ => "shrink",
            };
            expect_success(&[how, place, "--size", size]);
        }
        std::thread::sleep(Duration::from_millis(20));
        drop(end);
        worker.join().unwrap();
    });
    assert_eq!(mounted.counter("size_bytes"), 4 << 20);
    assert!(mounted.counter("device_bytes") < most);
    assert!(fs::read(mounted.at("kept")).unwrap() == bytes);
}

#[test]
fn mount_helper_accepts_tmpfs_options() {
    super::needs_fuse();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("mount.vramfs");
    symlink(env!("CARGO_BIN_EXE_fercuda"), &program).unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let start = |options: &str| {
        let mut command = Command::new(&program);
        command.arg("vramfs").arg(&place).args(["-o", options]);
        command.env("FERCUDA_DEVICE", "soft").output().unwrap()
    };
    let done =
        start("rw,size=1m,nr_inodes=1k,mode=1770,uid=7,ecc=off,nosuid,nodev,noexec,x-y,noatime");
    assert!(done.status.success(), "{done:?}");
    let message = String::from_utf8_lossy(&done.stderr);
    assert!(
        message.contains("the option noatime is ignored"),
        "{message}"
    );
    let is = place.metadata().unwrap();
    assert_eq!((is.mode() & 0o7777, is.uid()), (0o1770, 7));
    let json = expect_success(&["stat", "--json", place.to_str().unwrap()]);
    let stats: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&stats[0]["size_bytes"], &stats[0]["inodes"]),
        (&(1 << 20).into(), &1024.into())
    );
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(place.to_str().unwrap()));
    let fields: Vec<&str> = line.unwrap().split(' ').collect();
    assert_eq!((fields[0], fields[2]), ("vramfs", "fuse.vramfs"));
    for option in [
        "nosuid",
        "nodev",
        "noexec",
        "default_permissions",
        "allow_other",
    ] {
        assert!(fields[3].split(',').any(|it| it == option), "{line:?}");
    }
    fs::copy("/bin/true", place.join("true")).unwrap();
    let run = Command::new(place.join("true")).status();
    assert_eq!(
        run.unwrap_err().kind(),
        std::io::ErrorKind::PermissionDenied
    );
    // As umount(8) does.
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
    let done = start("size=1m,odd");
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("unknown mount option odd"));
}

#[test]
fn a_snapshot_passes_through_a_pipe_and_a_size_says_what_it_is_rounded_to() {
    let mounted = TestMount::plain();
    fs::write(mounted.at("file"), "text").unwrap();
    let place = mounted.path().to_str().unwrap();
    let saved = vram(&["save", place, "-"]);
    assert!(saved.status.success());
    let said = String::from_utf8(saved.stderr).unwrap();
    assert!(
        said.contains("1 file with 4 B of data saved to standard output"),
        "{said}"
    );
    let other = TestMount::plain();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &saved.stdout).unwrap();
    let mut load = fercuda();
    load.args(["vram", "load", other.path().to_str().unwrap(), "-"]);
    let loaded = load.stdin(fs::File::open(file.path()).unwrap()).output();
    assert!(loaded.unwrap().status.success());
    assert_eq!(fs::read(other.at("file")).unwrap(), b"text");
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let small = vram(&[
        "mount",
        "--size=1",
        "--ecc=off",
        "--uid=root",
        "--gid=root",
        "--",
        place,
    ]);
    let said = String::from_utf8(small.stderr).unwrap();
    assert!(small.status.success(), "{said}");
    assert!(
        said.contains("--size 1B is rounded up to 128.0 KiB"),
        "{said}"
    );
    assert!(vram(&["umount", place]).status.success());
}
