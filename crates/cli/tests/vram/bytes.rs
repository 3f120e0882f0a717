//! Bytes of files: what is written is read, whichever way.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use fastrand::Rng;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use crate::{Here, copy_program, open, read, seed};

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn pages(file: &File) -> u64 {
    file.metadata().unwrap().blocks() / 8
}

#[test]
fn what_is_written_is_read_with_the_code_and_without() {
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let here = Here::new(&["--size=4MiB", ecc]);
        let mut random = Rng::with_seed(seed());
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(300_001)
            .collect();
        std::fs::write(here.at("a file"), &bytes).unwrap();
        assert!(std::fs::read(here.at("a file")).unwrap() == bytes);
        let file = here.file("a file");
        file.write_all_at(b"in the middle", 131_000).unwrap();
        assert_eq!(read(&file, 130_999, 15)[1..14], *b"in the middle");
        assert_eq!(file.metadata().unwrap().len(), 300_001);
        assert_eq!(read(&file, 300_001, 10), b"");
        file.sync_all().unwrap();
    }
}

#[test]
fn a_random_program_leaves_what_the_plainest_file_has() {
    let seed = seed();
    for cache in ["--cache=none", "--cache=keep"] {
        let here = Here::new(&["--size=32MiB", "--ecc=off", cache]);
        let mut random = Rng::with_seed(seed);
        let file = here.file("file");
        let mut model: Vec<u8> = Vec::new();
        for step in 0..1500 {
            let at = random.usize(..600_000);
            let len = match random.bool() {
                true => random.usize(1..5000),
                false => random.usize(1..300_000),
            };
            let (begin, end) = (at as u64, at + len);
            let zero = |model: &mut Vec<u8>| {
                let end = end.min(model.len());
                model[at.min(end)..end].fill(0);
            };
            match random.u32(..8) {
                0..3 => {
                    let byte = random.u8(1..);
                    file.write_all_at(&vec![byte; len], begin).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[at..end].fill(byte);
                }
                3 => {
                    file.set_len(begin).unwrap();
                    model.resize(at, 0);
                }
                4 => {
                    let how = FallocateFlags::PUNCH_HOLE | KEEP;
                    fallocate(&file, how, begin, len as u64).unwrap();
                    zero(&mut model);
                }
                5 => {
                    let how = [FallocateFlags::empty(), KEEP][random.usize(..2)];
                    let zeros = random.bool();
                    let with = match zeros {
                        true => how | FallocateFlags::ZERO_RANGE,
                        false => how,
                    };
                    fallocate(&file, with, begin, len as u64).unwrap();
                    if how.is_empty() {
                        model.resize(model.len().max(end), 0);
                    }
                    if zeros {
                        zero(&mut model);
                    }
                }
                6 => {
                    let to = (at + len + random.usize(..200_000)) as u64;
                    let (mut from, mut there) = (begin, to);
                    let done = rustix::fs::copy_file_range(
                        &file,
                        Some(&mut from),
                        &file,
                        Some(&mut there),
                        len,
                    );
                    let part = model.get(at..end.min(model.len())).unwrap_or(&[]).to_vec();
                    assert_eq!(done, Ok(part.len()), "{step}");
                    if !part.is_empty() {
                        let end = to as usize + part.len();
                        model.resize(model.len().max(end), 0);
                        model[to as usize..end].copy_from_slice(&part);
                    }
                }
                _ => {
                    let end = end.min(model.len());
                    let expected = &model[at.min(end)..end];
                    assert!(read(&file, begin, len) == expected, "step {step}");
                }
            }
            let size = file.metadata().unwrap().len();
            assert_eq!(size, model.len() as u64, "step {step}");
        }
        assert!(read(&file, 0, model.len() + 1) == model);
    }
}

#[test]
fn a_sparse_file_has_its_holes_and_takes_no_memory_for_them() {
    let here = Here::plain();
    let file = here.file("sparse");
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    file.write_all_at(&[2; 100], 40 << 30).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (40 << 30) + 100);
    assert_eq!(pages(&file), 2);
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(SeekFrom::Data((1 << 20) + 4096)), Ok(40 << 30));
    assert_eq!(seek(SeekFrom::Hole(40 << 30)), Ok((40 << 30) + 100));
    assert_eq!(seek(SeekFrom::Data((40 << 30) + 100)), Err(Errno::NXIO));
    assert_eq!(read(&file, 20 << 30, 10), [0; 10]);
}

#[test]
fn memory_is_reserved_and_given_back_as_fallocate_says() {
    let here = Here::plain();
    let file = here.file("file");
    fallocate(&file, KEEP, 0, 1 << 20).unwrap();
    assert_eq!((file.metadata().unwrap().len(), pages(&file)), (0, 256));
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(
        (file.metadata().unwrap().len(), pages(&file)),
        (1 << 20, 256)
    );
    file.write_all_at(&[7; 1 << 20], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | KEEP;
    fallocate(&file, punch, 100, (1 << 19) - 50).unwrap();
    // Of the first chunk a page is left, of the second half all.
    assert_eq!(pages(&file), 128 + 1);
    let zero = FallocateFlags::ZERO_RANGE;
    fallocate(&file, zero, 1 << 19, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3 << 19);
    let bytes = read(&file, 0, 3 << 19);
    let expected = |at: usize| match at {
        0..100 => 7,
        _ => 0,
    };
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == expected(at))
    );
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(1 << 19)), Ok(1 << 19));
    assert_eq!(seek(SeekFrom::Hole(1 << 19)), Ok(3 << 19));
    let collapse = FallocateFlags::COLLAPSE_RANGE;
    assert_eq!(fallocate(&file, collapse, 0, 4096), Err(Errno::OPNOTSUPP));
    // What was behind the end does not come back.
    file.write_all_at(&[9; 5000], 0).unwrap();
    file.set_len(10).unwrap();
    file.set_len(5000).unwrap();
    let bytes = read(&file, 0, 5000);
    assert!(bytes[..10] == [9; 10] && bytes[10..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_begins_in_a_hole_is_cut_and_punched_to_its_end_and_its_room_comes_back() {
    let here = Here::plain();
    let free = || {
        let it = rustix::fs::statvfs(here.path()).unwrap();
        it.f_blocks - it.f_bfree
    };
    let punch = FallocateFlags::PUNCH_HOLE | KEEP;
    let file = here.file("file");
    let fill = || {
        file.set_len(0).unwrap();
        for at in [1 << 20, 3 << 20] {
            file.write_all_at(&[6; 4096], at).unwrap();
        }
        // Behind the end, too.
        fallocate(&file, KEEP, 5 << 20, 8192).unwrap();
        assert_eq!((pages(&file), free()), (4, 4));
    };
    fill();
    file.set_len(1 << 19).unwrap();
    assert_eq!((pages(&file), free()), (0, 0));
    file.set_len(4 << 20).unwrap();
    let data = rustix::fs::seek(&file, SeekFrom::Data(0));
    assert_eq!(data, Err(Errno::NXIO));
    assert!(read(&file, 0, 4 << 20).iter().all(|byte| *byte == 0));
    // From within a chunk without anything to within another one, and to behind all.
    for (begin, len, left) in [
        (0, 2 << 20, 3),
        ((1 << 19) + 7, 2 << 20, 3),
        ((2 << 20) + 5000, 1 << 30, 1),
        (100, 1 << 30, 0),
    ] {
        fill();
        fallocate(&file, punch, begin, len).unwrap();
        assert_eq!((pages(&file), free()), (left, left), "{begin} {len}");
        let is_data = |at: u64| u8::from(!(begin..begin + len).contains(&at)) * 6;
        for at in [1 << 20, 3 << 20] {
            assert_eq!(read(&file, at, 4096), [is_data(at); 4096], "{begin} {len}");
        }
    }
}

/// What is durable by the call that a mount is asked first.
#[test]
fn the_first_call_of_a_mount_that_waits_for_the_disk_is_answered_well() {
    use std::os::unix::fs::OpenOptionsExt as _;
    type First = fn(&Here);
    let firsts: [(&str, First); 6] = [
        ("fsync", |here| here.file("file").sync_all().unwrap()),
        ("fdatasync, of what has no name", |here| {
            let file = here.file("file");
            std::fs::remove_file(here.at("file")).unwrap();
            file.set_len(100).unwrap();
            file.sync_data().unwrap();
        }),
        ("fsync of a directory", |here| {
            File::open(here.path()).unwrap().sync_all().unwrap();
        }),
        ("syncfs", |here| {
            rustix::fs::syncfs(File::open(here.path()).unwrap()).unwrap();
        }),
        ("a write by O_SYNC", |here| {
            let mut how = File::options();
            how.write(true).create(true).custom_flags(libc::O_SYNC);
            let file = how.open(here.at("file")).unwrap();
            file.write_all_at(b"durable", 3).unwrap();
            let bytes = std::fs::read(here.at("file")).unwrap();
            assert_eq!(bytes, b"\0\0\0durable");
        }),
        ("msync", |here| {
            let file = here.file("file");
            file.set_len(4096).unwrap();
            let map = Mapping::new(&file, 4096);
            map.sync().unwrap();
            map.write(10, b"stored");
            map.sync().unwrap();
            assert_eq!(read(&file, 10, 6), b"stored");
        }),
    ];
    for cache in ["--cache=none", "--cache=keep"] {
        for (name, first) in firsts {
            let here = Here::new(&["--size=1MiB", "--ecc=off", cache]);
            println!("{name}, {cache}");
            first(&here);
        }
    }
}

#[test]
fn pages_are_in_the_host_only_where_they_are_to_be_kept() {
    for (cache, is_kept) in [("--cache=none", false), ("--cache=keep", true)] {
        let here = Here::new(&["--size=32MiB", "--ecc=off", cache]);
        let bytes = vec![5; 8 << 20];
        // By one descriptor: the kernel may let go of pages when a file is opened.
        let file = here.file("file");
        file.write_all_at(&bytes, 0).unwrap();
        for _ in 0..2 {
            assert!(read(&file, 0, bytes.len()) == bytes);
        }
        let kept = kept(&file);
        assert_eq!(kept > 0, is_kept, "{cache}: {kept} pages");
    }
}

/// The same for all machines; the C library has no name for it yet.
const CACHESTAT: libc::c_long = 451;

/// How many of a file's pages the kernel keeps, without a mapping, which would have it let go of them.
fn kept(file: &File) -> u64 {
    // struct cachestat, and of it the first.
    let (range, mut all) = ([0u64, 0], [0u64; 5]);
    let fd = std::os::fd::AsRawFd::as_raw_fd(file);
    // SAFETY: of the range two numbers are read, and five are written.
    let answer = unsafe { libc::syscall(CACHESTAT, fd, &range, &mut all, 0) };
    let error = std::io::Error::last_os_error();
    assert_eq!(answer, 0, "cachestat: {error}; it needs Linux 6.5");
    all[0]
}

/// Bytes of a file in this process's memory.
pub(super) struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    pub(super) fn new(file: &File, len: usize) -> Self {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let fd = std::os::fd::AsRawFd::as_raw_fd(file);
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, both, libc::MAP_SHARED, fd, 0) };
        let error = std::io::Error::last_os_error();
        assert!(at != libc::MAP_FAILED, "{error}");
        let at = at.cast();
        Self { at, len }
    }

    fn sync(&self) -> std::io::Result<()> {
        // SAFETY: all of the mapping, and nothing else.
        match unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: it lies within; others change these bytes between calls, not while they are read.
        let byte = |at: usize| unsafe { self.at.add(at).read_volatile() };
        (at..at + len).map(byte).collect()
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: it lies within, and nobody else has this mapping.
        unsafe { self.at.add(at).copy_from(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { libc::munmap(self.at.cast(), self.len) }, 0);
    }
}

#[test]
fn a_mapping_sees_what_another_process_punches_cuts_and_copies() {
    let python = |line: &str, here: &Here| {
        let head = "import ctypes, os, sys
os.chdir(sys.argv[1])
file = os.open('file', os.O_RDWR)
other = os.open('other', os.O_RDWR)
def punch(at, end):
    c = ctypes.CDLL(None, use_errno=True)
    assert c.fallocate(file, 3, ctypes.c_long(at), ctypes.c_long(end - at)) == 0, ctypes.get_errno()
";
        let mut it = std::process::Command::new("python3");
        let it = it.args(["-c", &format!("{head}{line}")]).arg(here.path());
        let done = it.output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    for cache in ["--cache=none", "--cache=keep"] {
        let here = Here::new(&["--size=32MiB", "--ecc=off", cache]);
        let (file, other) = (here.file("file"), here.file("other"));
        file.write_all_at(&[7; 1 << 18], 0).unwrap();
        other.write_all_at(&[8; 1 << 16], 0).unwrap();
        let map = Mapping::new(&file, 1 << 18);
        let mut model = vec![7; 1 << 18];
        // All pages are there, and some have what no call has written.
        assert!(map.read(0, 1 << 18) == model);
        for at in [5000, 70_000, 200_000] {
            map.write(at, b"stored");
            model[at..at + 6].copy_from_slice(b"stored");
        }
        python("punch(4096 + 100, 66_000)", &here);
        model[4196..66_000].fill(0);
        assert!(map.read(0, 1 << 18) == model, "{cache}: punched");
        python(
            "assert os.copy_file_range(other, file, 60_000, 0, 100_001) == 60_000",
            &here,
        );
        model[100_001..160_001].fill(8);
        assert!(map.read(0, 1 << 18) == model, "{cache}: copied over it");
        // What was stored by it is what is copied.
        let line = "assert os.copy_file_range(file, other, 6, 70_000, 9) == 6; print(os.pread(other, 8, 8))";
        assert_eq!(python(line, &here), "b'\\x08stored\\x08'\n", "{cache}");
        python(
            "os.truncate(file, 130_000); os.truncate(file, 1 << 18)",
            &here,
        );
        model[130_000..].fill(0);
        assert!(map.read(0, 1 << 18) == model, "{cache}: cut");
        map.write(250_000, b"again");
        assert_eq!(
            python("print(os.pread(file, 7, 249_999))", &here),
            "b'\\x00again\\x00'\n"
        );
        model[250_000..250_005].copy_from_slice(b"again");
        drop(map);
        assert!(std::fs::read(here.at("file")).unwrap() == model, "{cache}");
    }
}

#[test]
fn a_file_without_a_name_lives_as_long_as_it_is_open() {
    let here = Here::plain();
    let before = here.figure("used_inodes");
    let file = here.file("file");
    file.write_all_at(&[3; 50_000], 0).unwrap();
    std::fs::remove_file(here.at("file")).unwrap();
    assert!(!here.at("file").exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(&[4; 50_000], 50_000).unwrap();
    assert!(read(&file, 0, 100_000) == [[3; 50_000], [4; 50_000]].concat());
    assert!(here.figure("used_bytes") >= 100_000);
    drop(file);
    // It is forgotten behind our back; whoever asks how much is free hears of it.
    let free = || rustix::fs::statvfs(here.path()).unwrap();
    super::place::comes("free again", || free().f_bfree == free().f_blocks);
    assert_eq!(here.figure("used_inodes"), before);
}

#[test]
fn who_appends_never_writes_over_another() {
    let here = Here::plain();
    std::thread::scope(|threads| {
        for which in 0..4u8 {
            let path = here.at("log");
            threads.spawn(move || {
                let mut how = File::options();
                let mut file = how.append(true).create(true).open(path).unwrap();
                for _ in 0..200 {
                    file.write_all(&[which; 37]).unwrap();
                }
            });
        }
    });
    let bytes = std::fs::read(here.at("log")).unwrap();
    assert_eq!(bytes.len(), 4 * 200 * 37);
    assert!(
        bytes
            .chunks(37)
            .all(|it| it.iter().all(|byte| *byte == it[0]))
    );
}

#[test]
fn many_write_one_file_at_a_time_and_each_finds_its_own() {
    let here = Here::new(&["--size=4MiB"]);
    let seed = seed();
    open(&here.at("file")).set_len(1 << 20).unwrap();
    std::thread::scope(|threads| {
        for which in 0..4u64 {
            let path = here.at("file");
            threads.spawn(move || {
                let mut random = Rng::with_seed(seed + which);
                let file = open(&path);
                let begin = which << 18;
                let mut model = vec![0; 1 << 18];
                for _ in 0..25 {
                    let at = random.usize(..1 << 18);
                    let end = model.len().min(at + random.usize(1..20_000));
                    model[at..end].fill(random.u8(..));
                    file.write_all_at(&model[at..end], begin + at as u64)
                        .unwrap();
                }
                assert!(read(&file, begin, 1 << 18) == model);
            });
        }
    });
}

#[test]
fn a_mapping_and_direct_calls_see_the_same_bytes() {
    for cache in ["--cache=none", "--cache=keep"] {
        let here = Here::new(&["--size=32MiB", "--ecc=off", cache]);
        let file = here.file("file");
        file.set_len(1 << 16).unwrap();
        file.write_all_at(b"from a call", 5000).unwrap();
        let map = Mapping::new(&file, 1 << 16);
        let seen = |at: usize, len: usize| map.read(at, len);
        assert_eq!(seen(5000, 11), b"from a call");
        map.write(9000, b"from a mapping");
        assert_eq!(read(&file, 9000, 14), b"from a mapping");
        file.write_all_at(b"again", 9000).unwrap();
        assert_eq!(seen(9000, 14), b"againa mapping");
        drop(map);
        assert_eq!(read(&open(&here.at("file")), 9000, 14), b"againa mapping");
    }
}

#[test]
fn locks_of_files_and_of_their_parts_hold() {
    use rustix::fs::{FlockOperation, flock};
    let here = Here::plain();
    let (one, two) = (here.file("file"), here.file("file"));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    let now = FlockOperation::NonBlockingLockExclusive;
    assert_eq!(flock(&two, now), Err(Errno::AGAIN));
    flock(&one, FlockOperation::Unlock).unwrap();
    flock(&two, now).unwrap();
    let part = |file: &File, kind: i32, begin: i64| {
        // SAFETY: all of it are numbers, of which zeros are some.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, begin, 100);
        let fd = std::os::fd::AsRawFd::as_raw_fd(file);
        // SAFETY: the descriptor is open, and the lock outlives the call.
        unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &lock) == 0 }
    };
    assert!(part(&one, libc::F_WRLCK, 0));
    assert!(!part(&two, libc::F_WRLCK, 50) && part(&two, libc::F_WRLCK, 100));
    assert!(part(&one, libc::F_UNLCK, 0) && part(&two, libc::F_RDLCK, 50));
    // POSIX's own are a process's.
    let line = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 10, 60)";
    let python = || {
        let mut it = std::process::Command::new("python3");
        it.args(["-c", line]).arg(here.at("file"));
        it.output().unwrap().status.success()
    };
    assert!(!python());
    assert!(part(&two, libc::F_UNLCK, 50));
    assert!(python());
}

#[test]
fn a_copy_from_file_to_file_is_made_without_the_caller_and_keeps_holes() {
    let here = Here::plain();
    let (from, to) = (here.file("from"), here.file("to"));
    from.write_all_at(&[1; 10_000], 0).unwrap();
    from.write_all_at(&[2; 10_000], 3 << 20).unwrap();
    let len = from.metadata().unwrap().len();
    let mut done = 0;
    while done < len {
        let (mut at, mut there) = (done, done);
        let (at, there) = (Some(&mut at), Some(&mut there));
        let more = rustix::fs::copy_file_range(&from, at, &to, there, (len - done) as usize);
        done += more.unwrap() as u64;
    }
    assert!(std::fs::read(here.at("to")).unwrap() == std::fs::read(here.at("from")).unwrap());
    assert!(pages(&to) <= 8, "{}", pages(&to));
    assert_eq!(rustix::fs::seek(&to, SeekFrom::Data(12_288)), Ok(3 << 20));
}

#[test]
fn a_file_is_run_and_read_to_its_end() {
    use std::os::unix::fs::PermissionsExt;
    let here = Here::plain();
    copy_program(Path::new("/bin/true"), &here.at("program"));
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(here.at("program"), mode).unwrap();
    let mut program = std::process::Command::new(here.at("program"));
    assert!(program.status().unwrap().success());
    let mut text = String::new();
    std::fs::write(here.at("text"), "a line\n".repeat(1000)).unwrap();
    let mut file = File::open(here.at("text")).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 1000);
    assert!(file.as_fd().try_clone_to_owned().is_ok());
}
