//! What is done to a filesystem while it is mounted, and its snapshots.

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

use super::{Here, SOMEBODY, fercuda, refused, seed, vram};

pub(super) fn well(words: &[&str]) -> String {
    let done = vram(words);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{words:?}: {said}");
    String::from_utf8(done.stdout).unwrap()
}

fn scrub(here: &Here) -> (Option<i32>, [u64; 3]) {
    let done = vram(&["scrub", "--now", "--json", here.path().to_str().unwrap()]);
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let figure = |name: &str| all[name].as_u64().unwrap();
    let figures = ["looked_at", "corrected", "lost"].map(figure);
    (done.status.code(), figures)
}

#[test]
fn faults_are_found_and_corrected_and_what_cannot_be_is_said() {
    let here = Here::new(&["--size=2MiB", "--scrub-rate=off", "--verify=scrub"]);
    let place = here.path().to_str().unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(600_000)
        .collect();
    let name = here.at("file");
    fs::write(&name, &bytes).unwrap();
    assert_eq!(scrub(&here), (Some(0), [5, 0, 0]));
    let name = name.to_str().unwrap();
    let seed = seed().to_string();
    for kind in ["symbol", "row", "burst", "metadata"] {
        let words = ["inject", name, "--kind", kind, "--seed", &seed];
        assert_eq!(
            well(&words),
            format!("1 fault made, among 5 blocks; seed {seed}\n")
        );
        assert_eq!(scrub(&here), (Some(0), [5, 1, 0]), "{kind}");
        assert_eq!(scrub(&here), (Some(0), [5, 0, 0]), "{kind}");
        assert!(fs::read(name).unwrap() == bytes, "{kind}");
    }
    assert_eq!(here.figure("corrected_blocks"), 4);
    // A symbol's row, a row, a burst's, and the record, without which no row's sum is known.
    assert_eq!(here.figure("corrected_records"), 1);
    let rows = here.figure("corrected_rows");
    assert!((3..=6).contains(&rows), "{rows}");
    assert!(here.figure("corrected_symbols") >= 1);
    assert_eq!(here.figure("scrub_rounds"), 0);
    assert!(well(&["scrub", place]).contains("corrected blocks   4\n"));
    // A dozen rows of a block, or more: beyond what the code corrects.
    well(&["inject", name, "--kind=row", "--count=200", "--seed", &seed]);
    let (status, [looked, _, lost]) = scrub(&here);
    assert_eq!((status, looked), (Some(1), 5));
    assert!(lost >= 1);
    well(&["umount", place]);
}

#[test]
fn who_may_not_and_what_is_none_of_ours_are_refused() {
    let here = Here::plain();
    let place = here.path().to_str().unwrap();
    let told = refused(&["inject", place]);
    assert!(told.contains("it has no code (--ecc off)"), "{told}");
    let told = refused(&["scrub", "--now", place]);
    assert!(
        told.contains("try: fercuda vram mount without --ecc off"),
        "{told}"
    );
    for words in [
        vec!["scrub", "/proc"],
        vec!["inject", "/proc"],
        vec!["grow", "/proc", "--size=1GiB"],
        vec!["save", "/proc", "/tmp/never"],
        vec!["load", "/proc", "/dev/null"],
    ] {
        let told = refused(&words);
        assert!(
            told.contains("not where such a filesystem is mounted"),
            "{told}"
        );
    }
    let told = refused(&["grow", place, "--size=1MiB"]);
    assert!(told.contains("has room for 32.0 MiB already"), "{told}");
    let told = refused(&["shrink", place, "--size=1GiB"]);
    assert!(told.contains("has room for 32.0 MiB only"), "{told}");
    let told = refused(&["grow", place, "--size=900000GiB"]);
    assert!(told.contains("more than"), "{told}");
    assert_eq!(here.figure("size_bytes"), 32 << 20);
    // Whoever may use it is not who may have its memory changed.
    use std::os::unix::process::CommandExt as _;
    let mut other = fercuda();
    other.args(["vram", "grow", place, "--size=64MiB"]);
    let done = other.uid(SOMEBODY).gid(SOMEBODY).output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        told.contains("only who has mounted it, and root, may"),
        "{told}"
    );
    assert_eq!(here.figure("size_bytes"), 32 << 20);
}

#[test]
fn one_that_says_nothing_hides_no_other() {
    let here = Here::plain();
    let place = here.path().to_str().unwrap();
    for what in ["df", "stat"] {
        let done = vram(&[what, "/proc", place]);
        let said = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1));
        assert!(said.contains(place), "{said}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("cannot look at /proc"));
    }
    let shown = well(&["top", "--once", place]);
    assert!(shown.starts_with(place), "{shown}");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    let told = refused(&[
        "mount",
        "--size=1MiB",
        "--ecc=off",
        "--scrub-rate=1GiB",
        "/nowhere",
    ]);
    assert!(told.contains("try: without --ecc off"), "{told}");
    // Behind a lone dash is a directory, also for the process that stays.
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    well(&["mount", "--size=1MiB", "--ecc=off", "--", place]);
    well(&["umount", place]);
}

/// All that is known of what is there, by name.
fn known(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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

/// Of everything that there can be.
fn fill(at: &Path) {
    let long = "n".repeat(200);
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(700_001)
        .collect();
    fs::write(at.join("bytes"), &bytes).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    // A socket with two names, of which neither is saved.
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
    // A newline in a value is a byte as any other.
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

/// One of an access list.
pub(super) fn entry(tag: u16, may: u16, who: u32) -> Vec<u8> {
    [
        &tag.to_le_bytes()[..],
        &may.to_le_bytes(),
        &who.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn what_was_saved_is_loaded_as_it_was_and_what_is_wrong_is_refused() {
    fastrand::seed(seed());
    let here = Here::plain();
    fill(here.path());
    let place = here.path().to_str().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let saved = file.to_str().unwrap();
    let said = well(&["save", place, saved]);
    assert!(said.starts_with("9 files with "), "{said}");
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    // Holes are not in it.
    let len = file.metadata().unwrap().len();
    assert!(len < 2 << 20, "{len}");
    // Others can read it.
    let listed = sh("tar tf saved.tar", disk.path());
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8_lossy(&listed.stdout);
    assert!(names.lines().any(|name| name == "sparse"), "{names}");
    let other = Here::plain();
    let target = other.path().to_str().unwrap();
    let before = other.figure("used_bytes");
    for _ in 0..20 {
        let mut bytes = fs::read(&file).unwrap();
        let at = fastrand::usize(..bytes.len() - 1024);
        match fastrand::bool() {
            true => bytes.truncate(at),
            false => bytes[at] ^= fastrand::u8(1..),
        }
        let wrong = disk.path().join("wrong.tar");
        fs::write(&wrong, bytes).unwrap();
        let told = refused(&["load", target, wrong.to_str().unwrap()]);
        let names = ["is altered", "cut off", "no snapshot", "altered there"];
        assert!(names.iter().any(|name| told.contains(name)), "{told}");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
        assert_eq!(other.figure("used_bytes"), before);
    }
    let told = refused(&["save", place, saved]);
    assert!(told.contains("is there already"), "{told}");
    let within = here.at("within.tar");
    let told = refused(&["save", place, within.to_str().unwrap()]);
    assert!(told.contains("lies in the filesystem"), "{told}");
    well(&["load", target, saved]);
    let (mut was, is) = (known(here.path()), known(other.path()));
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
    assert_eq!(here.figure("used_bytes"), other.figure("used_bytes"));
    let told = refused(&["load", target, saved]);
    assert!(told.contains("has entries"), "{told}");
    well(&["save", "--force", target, saved]);
    // What cannot be saved is named, and the others are saved.
    let named = other.at(".fercuda-vram-snapshot");
    fs::write(&named, "whatever").unwrap();
    let told = refused(&["save", "--force", target, saved]);
    assert!(told.contains("a list of that name"), "{told}");
    let third = Here::plain();
    well(&["load", third.path().to_str().unwrap(), saved]);
    let (mut was, is) = (known(other.path()), known(third.path()));
    was.remove(Path::new(".fercuda-vram-snapshot"));
    assert_eq!(
        was.keys().collect::<Vec<_>>(),
        is.keys().collect::<Vec<_>>()
    );
    let small = Here::new(&["--size=128KiB", "--ecc=off"]);
    let told = refused(&["load", small.path().to_str().unwrap(), saved]);
    assert!(told.contains("try: fercuda vram grow"), "{told}");
}

#[test]
fn a_damaged_snapshot_is_refused_with_the_member_that_is_wrong() {
    let here = Here::plain();
    fs::create_dir(here.at("d")).unwrap();
    for name in ["one", "d/two", "three"] {
        fs::write(here.at(name), vec![name.len() as u8; 5000]).unwrap();
    }
    let place = here.path().to_str().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let saved = disk.path().join("saved.tar");
    well(&["save", place, saved.to_str().unwrap()]);
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
    let other = Here::plain();
    let wrong = disk.path().join("wrong.tar");
    let load = |bytes: &[u8]| {
        fs::write(&wrong, bytes).unwrap();
        refused(&[
            "load",
            other.path().to_str().unwrap(),
            wrong.to_str().unwrap(),
        ])
    };
    for (name, at) in members {
        for byte in [0, 4999] {
            let mut bytes = good.clone();
            bytes[at + byte] ^= 1;
            let told = load(&bytes);
            let expected = format!("\"{name}\" is altered: its sum is another");
            assert!(told.contains(&expected), "{told}");
        }
        let told = load(&good[..at + 2500]);
        let expected = format!("it ends behind \"{name}\" without a list");
        assert!(told.contains(&expected), "{told}");
    }
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_read_is_saved_as_zeros_and_named() {
    let here = Here::new(&["--size=2MiB", "--scrub-rate=off", "--verify=read"]);
    let place = here.path().to_str().unwrap();
    // Whole blocks, of which each file has its own.
    let bytes = vec![7; 256 << 10];
    fs::write(here.at("lost"), &bytes).unwrap();
    fs::write(here.at("kept"), &bytes).unwrap();
    let name = here.at("lost");
    let name = name.to_str().unwrap();
    well(&["inject", name, "--kind=row", "--count=300"]);
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("saved.tar");
    let told = refused(&["save", place, file.to_str().unwrap()]);
    assert!(
        told.contains("lost") && told.contains("what cannot be read is zeros"),
        "{told}"
    );
    let other = Here::plain();
    well(&[
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
fn a_name_that_leads_elsewhere_is_not_followed() {
    let here = Here::plain();
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
        let told = refused(&[
            "load",
            here.path().to_str().unwrap(),
            file.to_str().unwrap(),
        ]);
        assert!(told.contains("escaped"), "{told}");
        for place in [
            disk.path().join("elsewhere"),
            disk.path().to_owned(),
            PathBuf::from("/"),
        ] {
            assert!(!place.join("escaped").exists());
        }
        for entry in here.path().read_dir().unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn it_grows_and_shrinks_while_it_is_used() {
    let seed = seed();
    fastrand::seed(seed);
    let here = Here::new(&["--size=8MiB", "--ecc=off"]);
    let place = here.path().to_str().unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(3_000_000)
        .collect();
    // So that what stays lies behind what goes.
    fs::write(here.at("first"), vec![1; 4 << 20]).unwrap();
    fs::write(here.at("kept"), &bytes).unwrap();
    let told = refused(&["shrink", place, "--size=4MiB"]);
    assert!(told.contains("are in use"), "{told}");
    assert_eq!(here.figure("size_bytes"), 8 << 20);
    well(&["grow", place, "--size=16MiB"]);
    assert_eq!(here.figure("size_bytes"), 16 << 20);
    fs::write(here.at("more"), vec![2; 8 << 20]).unwrap();
    let most = here.figure("device_bytes");
    fs::remove_file(here.at("first")).unwrap();
    fs::remove_file(here.at("more")).unwrap();
    // Somebody reads and writes all the time.
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when something else fails.
        let end = Ends(&ends);
        let worker = scope.spawn(|| {
            let file = here.file("busy");
            use std::os::unix::fs::FileExt as _;
            let mut round = 0u8;
            while !ends.load(Relaxed) || round < 3 {
                round = round.wrapping_add(1).max(1);
                file.write_all_at(&vec![round; 500_000], 0).unwrap();
                let got = super::read(&file, 0, 500_000);
                assert!(got.iter().all(|byte| *byte == round));
                assert!(fs::read(here.at("kept")).unwrap() == bytes);
            }
        });
        for size in ["6MiB", "12MiB", "5MiB", "4MiB"] {
            let how = match size {
                "12MiB" => "grow",
                _ => "shrink",
            };
            well(&[how, place, "--size", size]);
        }
        std::thread::sleep(Duration::from_millis(20));
        drop(end);
        worker.join().unwrap();
    });
    assert_eq!(here.figure("size_bytes"), 4 << 20);
    assert!(here.figure("device_bytes") < most);
    assert!(fs::read(here.at("kept")).unwrap() == bytes);
}

#[test]
fn mount_and_fstab_have_a_helper_that_takes_options_of_tmpfs() {
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
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(told.contains("the option noatime is passed over"), "{told}");
    let is = place.metadata().unwrap();
    assert_eq!((is.mode() & 0o7777, is.uid()), (0o1770, 7));
    let told = well(&["stat", "--json", place.to_str().unwrap()]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told[0]["size_bytes"], &told[0]["inodes"]),
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
    assert!(String::from_utf8_lossy(&done.stderr).contains("the option odd is not known"));
}
