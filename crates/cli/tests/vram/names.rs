//! Names: directories, links, and what else a name leads to.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, linkat, makedev, mknodat, openat,
    renameat_with,
};
use rustix::io::Errno;

use crate::Here;

/// What a file of a page with a short name takes of the host's memory at most, with its entry; and what all of them take.
const HOST_BYTES_A_FILE: u64 = 300;
const HOST_BYTES: u64 = 1 << 20;

fn kind_of<T: std::fmt::Debug>(answer: std::io::Result<T>) -> ErrorKind {
    answer.unwrap_err().kind()
}

#[test]
fn directories_are_made_read_and_removed() {
    let here = Here::plain();
    fs::create_dir_all(here.at("a/b/c")).unwrap();
    fs::write(here.at("a/file"), "text").unwrap();
    assert_eq!(fs::metadata(here.at("a")).unwrap().nlink(), 3);
    assert_eq!(
        kind_of(fs::create_dir(here.at("a"))),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        kind_of(fs::remove_dir(here.at("a"))),
        ErrorKind::DirectoryNotEmpty
    );
    assert_eq!(
        kind_of(fs::remove_dir(here.at("a/file"))),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        kind_of(fs::remove_file(here.at("a/b"))),
        ErrorKind::IsADirectory
    );
    assert_eq!(kind_of(fs::read(here.at("nothing"))), ErrorKind::NotFound);
    let long = here.at(&"x".repeat(256));
    assert_eq!(
        fs::write(long, "").unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    fs::write(here.at(&"x".repeat(255)), "").unwrap();
    let names = |at: &str| {
        let entries = fs::read_dir(here.at(at)).unwrap();
        let name = |it: std::io::Result<fs::DirEntry>| it.unwrap().file_name().into_string();
        entries
            .map(|it| name(it).unwrap())
            .collect::<BTreeSet<String>>()
    };
    assert_eq!(names("a"), ["b", "file"].map(str::to_owned).into());
    fs::remove_dir(here.at("a/b/c")).unwrap();
    fs::remove_dir_all(here.at("a")).unwrap();
    assert!(!here.at("a").exists());
}

#[test]
fn links_lead_to_what_they_say() {
    let here = Here::plain();
    fs::write(here.at("file"), "one").unwrap();
    fs::hard_link(here.at("file"), here.at("other")).unwrap();
    fs::write(here.at("other"), "two").unwrap();
    assert_eq!(fs::read_to_string(here.at("file")).unwrap(), "two");
    let (one, two) = (
        fs::metadata(here.at("file")),
        fs::metadata(here.at("other")),
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    fs::remove_file(here.at("file")).unwrap();
    assert_eq!(fs::metadata(here.at("other")).unwrap().nlink(), 1);
    std::os::unix::fs::symlink("other", here.at("link")).unwrap();
    assert_eq!(fs::read_to_string(here.at("link")).unwrap(), "two");
    assert_eq!(
        fs::read_link(here.at("link")).unwrap().to_str(),
        Some("other")
    );
    assert_eq!(fs::symlink_metadata(here.at("link")).unwrap().len(), 5);
    let error = fs::hard_link(here.path(), here.at("root")).unwrap_err();
    assert!(matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EXDEV)
    ));
}

#[test]
fn pipes_sockets_and_devices_are_what_they_are() {
    let here = Here::plain();
    let make = |name: &str, kind, device| {
        mknodat(CWD, here.at(name), kind, Mode::from_raw_mode(0o644), device).unwrap();
        fs::metadata(here.at(name)).unwrap()
    };
    assert!(make("pipe", FileType::Fifo, 0).file_type().is_fifo());
    let path = here.at("pipe");
    let writer = std::thread::spawn(move || fs::write(path, "through it").unwrap());
    assert_eq!(fs::read_to_string(here.at("pipe")).unwrap(), "through it");
    writer.join().unwrap();
    let listener = UnixListener::bind(here.at("socket")).unwrap();
    let mut stream = UnixStream::connect(here.at("socket")).unwrap();
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
    fs::write(here.at("null"), "gone").unwrap();
    assert_eq!(fs::read(here.at("null")).unwrap(), b"");
    let block = make("block", FileType::BlockDevice, makedev(259, 70_000));
    assert!(block.file_type().is_block_device() && block.rdev() == makedev(259, 70_000));
}

#[test]
fn names_are_moved_as_the_flags_say() {
    let here = Here::plain();
    let rename =
        |from: &str, to: &str, how| renameat_with(CWD, here.at(from), CWD, here.at(to), how);
    let text = |name: &str| fs::read_to_string(here.at(name)).unwrap();
    fs::write(here.at("a"), "a").unwrap();
    fs::write(here.at("b"), "b").unwrap();
    fs::create_dir_all(here.at("d/e")).unwrap();
    let keep = RenameFlags::NOREPLACE;
    assert_eq!(rename("a", "b", keep), Err(Errno::EXIST));
    assert_eq!(rename("a", "c", keep), Ok(()));
    assert_eq!(rename("b", "c", RenameFlags::EXCHANGE), Ok(()));
    assert_eq!((text("b"), text("c")), ("a".to_owned(), "b".to_owned()));
    assert_eq!(rename("b", "c", RenameFlags::empty()), Ok(()));
    assert!(text("c") == "a" && !here.at("b").exists());
    assert_eq!(
        rename("d", "d/e/f", RenameFlags::empty()),
        Err(Errno::INVAL)
    );
    assert_eq!(rename("c", "d", RenameFlags::empty()), Err(Errno::ISDIR));
    assert_eq!(rename("d", "c", RenameFlags::EXCHANGE), Ok(()));
    assert!(here.at("c/e").is_dir() && text("d") == "a");
    let open = fs::File::open(here.at("d")).unwrap();
    fs::write(here.at("new"), "new").unwrap();
    assert_eq!(rename("new", "d", RenameFlags::empty()), Ok(()));
    assert_eq!(std::io::read_to_string(open).unwrap(), "a");
    assert_eq!(text("d"), "new");
    // What is left there is a device without number or permissions, over which something can be moved again.
    let leaves = RenameFlags::WHITEOUT;
    let is_left = |name: &str| {
        let it = fs::symlink_metadata(here.at(name)).unwrap();
        it.file_type().is_char_device() && it.rdev() == 0 && it.mode() & 0o7777 == 0
    };
    assert_eq!(rename("d", "moved", leaves), Ok(()));
    assert!(is_left("d") && text("moved") == "new");
    let before = here.figure("used_inodes");
    assert_eq!(rename("moved", "d", leaves | keep), Err(Errno::EXIST));
    assert_eq!(
        rename("moved", "d", leaves | RenameFlags::EXCHANGE),
        Err(Errno::INVAL)
    );
    assert_eq!(rename("moved", "d", leaves), Ok(()));
    assert!(is_left("moved") && text("d") == "new");
    assert_eq!(rename("c", "directory", leaves), Ok(()));
    assert!(is_left("c") && here.at("directory/e").is_dir());
    assert_eq!(here.figure("used_inodes"), before + 1);
}

#[test]
fn a_file_made_without_a_name_gets_one_or_is_gone_when_it_is_closed() {
    let here = Here::new(&["--size=8MiB", "--ecc=off", "--inodes=4"]);
    fs::create_dir(here.at("d")).unwrap();
    rustix::fs::chown(here.at("d"), None, Some(Gid::from_raw(77))).unwrap();
    fs::set_permissions(here.at("d"), Permissions::from_mode(0o2755)).unwrap();
    let inodes = here.figure("used_inodes");
    let make = |more: OFlags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | more;
        let made = openat(CWD, here.at("d"), flags, Mode::from_raw_mode(0o666));
        made.map(fs::File::from)
    };
    let name = |file: &fs::File, name: &str| {
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, open, CWD, here.at(name), AtFlags::SYMLINK_FOLLOW)
    };
    let is_empty = || fs::read_dir(here.at("d")).unwrap().next().is_none();
    let mut file = make(OFlags::empty()).unwrap();
    file.write_all(b"text").unwrap();
    let known = file.metadata().unwrap();
    assert_eq!((known.nlink(), known.len(), known.gid()), (0, 4, 77));
    assert!(is_empty() && here.figure("used_inodes") == inodes + 1);
    // Its first name is no further inode, of which there is one left; the second is.
    assert_eq!(name(&file, "d/first"), Ok(()));
    assert_eq!(here.figure("used_inodes"), inodes + 1);
    assert_eq!(fs::read(here.at("d/first")).unwrap(), b"text");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(name(&file, "d/first"), Err(Errno::EXIST));
    assert_eq!(name(&file, "second"), Ok(()));
    assert_eq!(make(OFlags::empty()).unwrap_err(), Errno::NOSPC);
    fs::remove_file(here.at("second")).unwrap();
    fs::remove_file(here.at("d/first")).unwrap();
    // It had one, and gets none again.
    assert_eq!(name(&file, "d/again"), Err(Errno::NOENT));
    drop(file);
    let mut alone = make(OFlags::EXCL).unwrap();
    alone.write_all(&[1; 100_000]).unwrap();
    assert_eq!(name(&alone, "d/alone"), Err(Errno::NOENT));
    assert!(here.figure("used_bytes") >= 100_000);
    drop(alone);
    assert!(is_empty());
    let left = ["used_inodes", "used_bytes"].map(|it| here.figure(it));
    assert_eq!(left, [inodes, 0]);
}

#[test]
fn who_reads_a_large_directory_meets_once_what_was_there_all_the_time() {
    let asked = std::env::var("FERCUDA_VRAM_ENTRIES");
    let count: u32 = asked.map_or(20_000, |it| it.parse().unwrap());
    let inodes = format!("--inodes={}", count + 10);
    let here = Here::new(&["--size=32MiB", "--ecc=off", &inodes]);
    fs::create_dir(here.at("d")).unwrap();
    for it in 0..count {
        // Without opening what is made.
        let path = here.at(&format!("d/{it}"));
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
    for (step, entry) in fs::read_dir(here.at("d")).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        match name.parse::<u32>() {
            Ok(number) => assert!(met.insert(number), "{number} twice"),
            Err(_) => others += 1,
        }
        // Now and then something goes that was met, and something comes.
        if step % 100 == 0 {
            if let Some(gone) = met
                .first()
                .copied()
                .filter(|it| here.at(&format!("d/{it}")).exists())
            {
                fs::remove_file(here.at(&format!("d/{gone}"))).unwrap();
            }
            if others + step / 100 < 5 {
                fs::write(here.at(&format!("d/new {step}")), "").unwrap();
            }
        }
    }
    assert_eq!(met.len() as u32, count);
    fs::remove_dir_all(here.at("d")).unwrap();
    let free = || rustix::fs::statvfs(here.path()).unwrap();
    super::place::comes("forgotten", || free().f_files - free().f_ffree == 1);
}

#[test]
fn many_files_with_content_fit_are_listed_and_take_little_of_the_host() {
    let asked = std::env::var("FERCUDA_VRAM_ENTRIES");
    let count: u64 = asked.map_or(20_000, |it| it.parse().unwrap());
    let directories = count.div_ceil(100);
    let inodes = format!("--inodes={}", count + directories + 1);
    // A page each, and not one more.
    let size = format!("--size={}KiB", (count * 4).next_multiple_of(128));
    // Its checks keep books of what was written, in the host's memory.
    let unchecked = [("FERCUDA_SOFT_CHECK", "0")];
    let here = Here::with(&unchecked, &["--ecc=off", &inodes, &size]);
    // Without the software device's memory, which is the files'.
    let host = || {
        let status = format!("/proc/{}/status", here.daemon.id());
        let status = fs::read_to_string(status).unwrap();
        let of = |line: &str| line.strip_prefix("RssAnon:").map(str::to_owned);
        let line = status.lines().find_map(of).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    };
    fs::write(here.at("first"), "first").unwrap();
    fs::remove_file(here.at("first")).unwrap();
    let before = host();
    let name = |it: u64| here.at(&format!("{}/file {it}", it / 100));
    let text = |it: u64| format!("of {it}");
    for it in 0..count {
        if it % 100 == 0 {
            fs::create_dir(here.at(&(it / 100).to_string())).unwrap();
        }
        fs::write(name(it), text(it)).unwrap();
    }
    assert_eq!(here.figure("used_bytes"), count * 4096);
    assert_eq!(here.figure("used_inodes"), count + directories + 1);
    let after = host();
    println!("{before} bytes, and {after} with {count} files");
    let most = count * HOST_BYTES_A_FILE + HOST_BYTES;
    assert!(after - before <= most, "{} and not {most}", after - before);
    let mut met = 0;
    for directory in fs::read_dir(here.path()).unwrap() {
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
    let full = fs::write(here.at("one more"), "text").unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn a_listing_ends_whatever_who_lists_renames_and_makes() {
    let here = Here::plain();
    fs::create_dir(here.at("d")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(here.at(&format!("d/{name}")), "").unwrap();
    }
    let mut met = 0;
    for entry in fs::read_dir(here.at("d")).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, path.with_extension(format!("{met}"))).unwrap();
        fs::write(here.at(&format!("d/new {met}")), "").unwrap();
        met += 1;
        assert!(met <= 3, "more than there were");
    }
    assert_eq!(met, 3);
    // Who begins anew has what is there now.
    let mut listing = Dir::read_from(File::open(here.at("d")).unwrap()).unwrap();
    let mut count = || listing.by_ref().count();
    assert_eq!(count(), 8);
    fs::write(here.at("d/last"), "").unwrap();
    assert_eq!(count(), 0);
    listing.rewind();
    assert_eq!(listing.by_ref().count(), 9);
    // And who goes on where another was has what that would have had.
    listing.rewind();
    let third = listing.nth(2).unwrap().unwrap().offset();
    let mut other = Dir::read_from(File::open(here.at("d")).unwrap()).unwrap();
    other.seek(third).unwrap();
    assert_eq!(other.count(), 6);
}
