//! Directory entries: files, directories, links, renames and special files.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};

use fercuda_trials::{Budget, Work};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, linkat, makedev, mknodat, openat,
    renameat_with,
};
use rustix::io::Errno;

use crate::TestMount;

/// Limits on host memory: per file with one page of data and a short name, its entry included; and
/// fixed.
const HOST_BYTES_A_FILE: u64 = 300;
const HOST_BYTES: u64 = 1 << 20;

fn kind_of<T: std::fmt::Debug>(answer: std::io::Result<T>) -> ErrorKind {
    answer.unwrap_err().kind()
}

#[test]
fn directories_are_created_listed_and_removed() {
    let mounted = TestMount::plain();
    fs::create_dir_all(mounted.at("a/b/c")).unwrap();
    fs::write(mounted.at("a/file"), "text").unwrap();
    assert_eq!(fs::metadata(mounted.at("a")).unwrap().nlink(), 3);
    assert_eq!(
        kind_of(fs::create_dir(mounted.at("a"))),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        kind_of(fs::remove_dir(mounted.at("a"))),
        ErrorKind::DirectoryNotEmpty
    );
    assert_eq!(
        kind_of(fs::remove_dir(mounted.at("a/file"))),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        kind_of(fs::remove_file(mounted.at("a/b"))),
        ErrorKind::IsADirectory
    );
    assert_eq!(
        kind_of(fs::read(mounted.at("nothing"))),
        ErrorKind::NotFound
    );
    let long = mounted.at(&"x".repeat(256));
    assert_eq!(
        fs::write(long, "").unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    fs::write(mounted.at(&"x".repeat(255)), "").unwrap();
    let names = |at: &str| {
        let entries = fs::read_dir(mounted.at(at)).unwrap();
        let name = |it: std::io::Result<fs::DirEntry>| it.unwrap().file_name().into_string();
        entries
            .map(|it| name(it).unwrap())
            .collect::<BTreeSet<String>>()
    };
    assert_eq!(names("a"), ["b", "file"].map(str::to_owned).into());
    fs::remove_dir(mounted.at("a/b/c")).unwrap();
    fs::remove_dir_all(mounted.at("a")).unwrap();
    assert!(!mounted.at("a").exists());
}

#[test]
fn hard_and_symbolic_links_resolve() {
    let mounted = TestMount::plain();
    fs::write(mounted.at("file"), "one").unwrap();
    fs::hard_link(mounted.at("file"), mounted.at("other")).unwrap();
    fs::write(mounted.at("other"), "two").unwrap();
    assert_eq!(fs::read_to_string(mounted.at("file")).unwrap(), "two");
    let (one, two) = (
        fs::metadata(mounted.at("file")),
        fs::metadata(mounted.at("other")),
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    fs::remove_file(mounted.at("file")).unwrap();
    assert_eq!(fs::metadata(mounted.at("other")).unwrap().nlink(), 1);
    std::os::unix::fs::symlink("other", mounted.at("link")).unwrap();
    assert_eq!(fs::read_to_string(mounted.at("link")).unwrap(), "two");
    assert_eq!(
        fs::read_link(mounted.at("link")).unwrap().to_str(),
        Some("other")
    );
    assert_eq!(fs::symlink_metadata(mounted.at("link")).unwrap().len(), 5);
    let error = fs::hard_link(mounted.path(), mounted.at("root")).unwrap_err();
    assert!(matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EXDEV)
    ));
}

#[test]
fn pipes_sockets_and_devices_work() {
    let mounted = TestMount::plain();
    let make = |name: &str, kind, device| {
        mknodat(
            CWD,
            mounted.at(name),
            kind,
            Mode::from_raw_mode(0o644),
            device,
        )
        .unwrap();
        fs::metadata(mounted.at(name)).unwrap()
    };
    assert!(make("pipe", FileType::Fifo, 0).file_type().is_fifo());
    let path = mounted.at("pipe");
    let writer = std::thread::spawn(move || fs::write(path, "through it").unwrap());
    assert_eq!(
        fs::read_to_string(mounted.at("pipe")).unwrap(),
        "through it"
    );
    writer.join().unwrap();
    let listener = UnixListener::bind(mounted.at("socket")).unwrap();
    let mut stream = UnixStream::connect(mounted.at("socket")).unwrap();
    stream.write_all(b"hello").unwrap();
    drop(stream);
    let mut said = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(said, "hello");
    let null = make("null", FileType::CharacterDevice, makedev(1, 3));
    assert!(null.file_type().is_char_device() && null.rdev() == makedev(1, 3));
    fs::write(mounted.at("null"), "gone").unwrap();
    assert_eq!(fs::read(mounted.at("null")).unwrap(), b"");
    let block = make("block", FileType::BlockDevice, makedev(259, 70_000));
    assert!(block.file_type().is_block_device() && block.rdev() == makedev(259, 70_000));
}

#[test]
fn rename_honours_its_flags() {
    let mounted = TestMount::plain();
    let rename =
        |from: &str, to: &str, how| renameat_with(CWD, mounted.at(from), CWD, mounted.at(to), how);
    let text = |name: &str| fs::read_to_string(mounted.at(name)).unwrap();
    fs::write(mounted.at("a"), "a").unwrap();
    fs::write(mounted.at("b"), "b").unwrap();
    fs::create_dir_all(mounted.at("d/e")).unwrap();
    let keep = RenameFlags::NOREPLACE;
    assert_eq!(rename("a", "b", keep), Err(Errno::EXIST));
    assert_eq!(rename("a", "c", keep), Ok(()));
    assert_eq!(rename("b", "c", RenameFlags::EXCHANGE), Ok(()));
    assert_eq!((text("b"), text("c")), ("a".to_owned(), "b".to_owned()));
    assert_eq!(rename("b", "c", RenameFlags::empty()), Ok(()));
    assert!(text("c") == "a" && !mounted.at("b").exists());
    assert_eq!(
        rename("d", "d/e/f", RenameFlags::empty()),
        Err(Errno::INVAL)
    );
    assert_eq!(rename("c", "d", RenameFlags::empty()), Err(Errno::ISDIR));
    assert_eq!(rename("d", "c", RenameFlags::EXCHANGE), Ok(()));
    assert!(mounted.at("c/e").is_dir() && text("d") == "a");
    let open = fs::File::open(mounted.at("d")).unwrap();
    fs::write(mounted.at("new"), "new").unwrap();
    assert_eq!(rename("new", "d", RenameFlags::empty()), Ok(()));
    assert_eq!(std::io::read_to_string(open).unwrap(), "a");
    assert_eq!(text("d"), "new");
    // A whiteout is a character device 0:0 without permissions, and can be replaced by a rename.
    let whiteout = RenameFlags::WHITEOUT;
    let is_whiteout = |name: &str| {
        let it = fs::symlink_metadata(mounted.at(name)).unwrap();
        it.file_type().is_char_device() && it.rdev() == 0 && it.mode() & 0o7777 == 0
    };
    assert_eq!(rename("d", "moved", whiteout), Ok(()));
    assert!(is_whiteout("d") && text("moved") == "new");
    let before = mounted.counter("used_inodes");
    assert_eq!(rename("moved", "d", whiteout | keep), Err(Errno::EXIST));
    assert_eq!(
        rename("moved", "d", whiteout | RenameFlags::EXCHANGE),
        Err(Errno::INVAL)
    );
    assert_eq!(rename("moved", "d", whiteout), Ok(()));
    assert!(is_whiteout("moved") && text("d") == "new");
    assert_eq!(rename("c", "directory", whiteout), Ok(()));
    assert!(is_whiteout("c") && mounted.at("directory/e").is_dir());
    assert_eq!(mounted.counter("used_inodes"), before + 1);
}

#[test]
fn tmpfile_is_linked_later_or_freed_on_close() {
    let mounted = TestMount::new(&["--size=8MiB", "--ecc=off", "--inodes=4"]);
    fs::create_dir(mounted.at("d")).unwrap();
    rustix::fs::chown(mounted.at("d"), None, Some(Gid::from_raw(77))).unwrap();
    fs::set_permissions(mounted.at("d"), Permissions::from_mode(0o2755)).unwrap();
    let inodes = mounted.counter("used_inodes");
    let make = |more: OFlags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | more;
        let made = openat(CWD, mounted.at("d"), flags, Mode::from_raw_mode(0o666));
        made.map(fs::File::from)
    };
    let name = |file: &fs::File, name: &str| {
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, open, CWD, mounted.at(name), AtFlags::SYMLINK_FOLLOW)
    };
    let is_empty = || fs::read_dir(mounted.at("d")).unwrap().next().is_none();
    let mut file = make(OFlags::empty()).unwrap();
    file.write_all(b"text").unwrap();
    let known = file.metadata().unwrap();
    assert_eq!((known.nlink(), known.len(), known.gid()), (0, 4, 77));
    assert!(is_empty() && mounted.counter("used_inodes") == inodes + 1);
    // The first name takes no further inode of the one that is left; the second does.
    assert_eq!(name(&file, "d/first"), Ok(()));
    assert_eq!(mounted.counter("used_inodes"), inodes + 1);
    assert_eq!(fs::read(mounted.at("d/first")).unwrap(), b"text");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(name(&file, "d/first"), Err(Errno::EXIST));
    assert_eq!(name(&file, "second"), Ok(()));
    assert_eq!(make(OFlags::empty()).unwrap_err(), Errno::NOSPC);
    fs::remove_file(mounted.at("second")).unwrap();
    fs::remove_file(mounted.at("d/first")).unwrap();
    // A file that has had a name cannot be linked again.
    assert_eq!(name(&file, "d/again"), Err(Errno::NOENT));
    drop(file);
    let mut alone = make(OFlags::EXCL).unwrap();
    alone.write_all(&[1; 100_000]).unwrap();
    assert_eq!(name(&alone, "d/alone"), Err(Errno::NOENT));
    assert!(mounted.counter("used_bytes") >= 100_000);
    drop(alone);
    assert!(is_empty());
    let left = ["used_inodes", "used_bytes"].map(|it| mounted.counter(it));
    assert_eq!(left, [inodes, 0]);
}

/// Entries of a directory, and files with content.
const ENTRIES: Work = Work {
    name: "vram-entries",
    least: 20_000,
    ci_seconds: 0,
    soak: 1_000_000,
};

#[test]
fn readdir_of_a_changing_directory_returns_each_stable_entry_once() {
    let count = Budget::begin(ENTRIES).planned_steps() as u32;
    let inodes = format!("--inodes={}", count + 10);
    let mounted = TestMount::new(&["--size=32MiB", "--ecc=off", &inodes]);
    fs::create_dir(mounted.at("d")).unwrap();
    for it in 0..count {
        // Created without opening it.
        let path = mounted.at(&format!("d/{it}"));
        mknodat(
            CWD,
            path,
            FileType::RegularFile,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
    }
    let mut met = BTreeSet::new();
    let mut others = 0;
    for (step, entry) in fs::read_dir(mounted.at("d")).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        match name.parse::<u32>() {
            Ok(number) => assert!(met.insert(number), "{number} twice"),
            Err(_) => others += 1,
        }
        // Periodically an entry that was returned is removed, and a new one is created.
        if step % 100 == 0 {
            if let Some(gone) = met
                .first()
                .copied()
                .filter(|it| mounted.at(&format!("d/{it}")).exists())
            {
                fs::remove_file(mounted.at(&format!("d/{gone}"))).unwrap();
            }
            if others + step / 100 < 5 {
                fs::write(mounted.at(&format!("d/new {step}")), "").unwrap();
            }
        }
    }
    assert_eq!(met.len() as u32, count);
    fs::remove_dir_all(mounted.at("d")).unwrap();
    let free = || rustix::fs::statvfs(mounted.path()).unwrap();
    super::mounting::wait_until("inodes freed", || free().f_files - free().f_ffree == 1);
}

#[test]
fn many_small_files_fit_and_take_little_host_memory() {
    let count = Budget::begin(ENTRIES).planned_steps();
    let directories = count.div_ceil(100);
    let inodes = format!("--inodes={}", count + directories + 1);
    // Exactly one page for each file.
    let size = format!("--size={}KiB", (count * 4).next_multiple_of(128));
    // The software device's checks keep a shadow of written data in host memory.
    let unchecked = [("FERCUDA_SOFT_CHECK", "0")];
    let mounted = TestMount::with(&unchecked, &["--ecc=off", &inodes, &size]);
    // Excludes the software device's memory, which holds the files.
    let host = || {
        let status = format!("/proc/{}/status", mounted.daemon.id());
        let status = fs::read_to_string(status).unwrap();
        let of = |line: &str| line.strip_prefix("RssAnon:").map(str::to_owned);
        let line = status.lines().find_map(of).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    };
    fs::write(mounted.at("first"), "first").unwrap();
    fs::remove_file(mounted.at("first")).unwrap();
    let before = host();
    let name = |it: u64| mounted.at(&format!("{}/file {it}", it / 100));
    let text = |it: u64| format!("of {it}");
    for it in 0..count {
        if it % 100 == 0 {
            fs::create_dir(mounted.at(&(it / 100).to_string())).unwrap();
        }
        fs::write(name(it), text(it)).unwrap();
    }
    assert_eq!(mounted.counter("used_bytes"), count * 4096);
    assert_eq!(mounted.counter("used_inodes"), count + directories + 1);
    let after = host();
    println!("{before} bytes, and {after} with {count} files");
    let most = count * HOST_BYTES_A_FILE + HOST_BYTES;
    assert!(after - before <= most, "{} and not {most}", after - before);
    let mut met = 0;
    for directory in fs::read_dir(mounted.path()).unwrap() {
        for entry in fs::read_dir(directory.unwrap().path()).unwrap() {
            let entry = entry.unwrap();
            let named = entry.file_name().into_string().unwrap();
            let it = named.strip_prefix("file ").unwrap().parse().unwrap();
            assert_eq!(entry.metadata().unwrap().len(), text(it).len() as u64);
            assert_eq!(entry.path(), name(it));
            met += 1;
        }
    }
    assert_eq!(met, count);
    for it in (0..count).step_by(37) {
        assert_eq!(fs::read_to_string(name(it)).unwrap(), text(it));
    }
    let full = fs::write(mounted.at("one more"), "text").unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn readdir_terminates_while_its_caller_renames_and_creates() {
    let mounted = TestMount::plain();
    fs::create_dir(mounted.at("d")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(mounted.at(&format!("d/{name}")), "").unwrap();
    }
    let mut met = 0;
    for entry in fs::read_dir(mounted.at("d")).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, path.with_extension(format!("{met}"))).unwrap();
        fs::write(mounted.at(&format!("d/new {met}")), "").unwrap();
        met += 1;
        assert!(met <= 3, "more than there were");
    }
    assert_eq!(met, 3);
    // A rewound listing sees the current entries.
    let mut listing = Dir::read_from(File::open(mounted.at("d")).unwrap()).unwrap();
    let mut count = || listing.by_ref().count();
    assert_eq!(count(), 8);
    fs::write(mounted.at("d/last"), "").unwrap();
    assert_eq!(count(), 0);
    listing.rewind();
    assert_eq!(listing.by_ref().count(), 9);
    // Seeking to another listing's offset continues as that listing would.
    listing.rewind();
    let third = listing.nth(2).unwrap().unwrap().offset();
    let mut other = Dir::read_from(File::open(mounted.at("d")).unwrap()).unwrap();
    other.seek(third).unwrap();
    assert_eq!(other.count(), 6);
}
