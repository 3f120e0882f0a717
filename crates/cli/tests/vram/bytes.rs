//! File data: reads, writes, holes, mappings, locks and copies.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use fastrand::Rng;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use crate::{TestMount, copy_program, open, read, seed};

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn pages(file: &File) -> u64 {
    file.metadata().unwrap().blocks() / 8
}

#[test]
fn data_round_trip_with_and_without_ecc() {
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let mounted = TestMount::new(&["--size=4MiB", ecc]);
        let mut random = Rng::with_seed(seed());
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(300_001)
            .collect();
        std::fs::write(mounted.at("a file"), &bytes).unwrap();
        assert!(std::fs::read(mounted.at("a file")).unwrap() == bytes);
        let file = mounted.file("a file");
        file.write_all_at(b"in the middle", 131_000).unwrap();
        assert_eq!(read(&file, 130_999, 15)[1..14], *b"in the middle");
        assert_eq!(file.metadata().unwrap().len(), 300_001);
        assert_eq!(read(&file, 300_001, 10), b"");
        file.sync_all().unwrap();
    }
}

#[test]
fn random_operations_match_a_reference_model() {
    let seed = seed();
    for cache in ["--cache=none", "--cache=keep"] {
        let mounted = TestMount::new(&["--size=32MiB", "--ecc=off", cache]);
        let mut random = Rng::with_seed(seed);
        let file = mounted.file("file");
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
fn holes_of_a_sparse_file_take_no_memory() {
    let mounted = TestMount::plain();
    let file = mounted.file("sparse");
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
fn fallocate_reserves_punches_and_zeroes() {
    let mounted = TestMount::plain();
    let file = mounted.file("file");
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
    // One page of the first chunk is left, and all of the second half.
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
    // Data beyond the old end do not reappear.
    file.write_all_at(&[9; 5000], 0).unwrap();
    file.set_len(10).unwrap();
    file.set_len(5000).unwrap();
    let bytes = read(&file, 0, 5000);
    assert!(bytes[..10] == [9; 10] && bytes[10..].iter().all(|byte| *byte == 0));
}

#[test]
fn truncate_and_punch_from_a_hole_free_all_pages() {
    let mounted = TestMount::plain();
    let free = || {
        let it = rustix::fs::statvfs(mounted.path()).unwrap();
        it.f_blocks - it.f_bfree
    };
    let punch = FallocateFlags::PUNCH_HOLE | KEEP;
    let file = mounted.file("file");
    let fill = || {
        file.set_len(0).unwrap();
        for at in [1 << 20, 3 << 20] {
            file.write_all_at(&[6; 4096], at).unwrap();
        }
        // Beyond the end of the file, too.
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
    // From inside a chunk without data to inside another one, and to beyond all data.
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

/// Each durability call as the first request of its kind on a mount.
#[test]
fn durability_calls_work_as_the_first_call_of_a_mount() {
    use std::os::unix::fs::OpenOptionsExt as _;
    type First = fn(&TestMount);
    let firsts: [(&str, First); 6] = [
        ("fsync", |mounted| mounted.file("file").sync_all().unwrap()),
        ("fdatasync, of what has no name", |mounted| {
            let file = mounted.file("file");
            std::fs::remove_file(mounted.at("file")).unwrap();
            file.set_len(100).unwrap();
            file.sync_data().unwrap();
        }),
        ("fsync of a directory", |mounted| {
            File::open(mounted.path()).unwrap().sync_all().unwrap();
        }),
        ("syncfs", |mounted| {
            rustix::fs::syncfs(File::open(mounted.path()).unwrap()).unwrap();
        }),
        ("a write by O_SYNC", |mounted| {
            let mut how = File::options();
            how.write(true).create(true).custom_flags(libc::O_SYNC);
            let file = how.open(mounted.at("file")).unwrap();
            file.write_all_at(b"durable", 3).unwrap();
            let bytes = std::fs::read(mounted.at("file")).unwrap();
            assert_eq!(bytes, b"\0\0\0durable");
        }),
        ("msync", |mounted| {
            let file = mounted.file("file");
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
            let mounted = TestMount::new(&["--size=1MiB", "--ecc=off", cache]);
            println!("{name}, {cache}");
            first(&mounted);
        }
    }
}

#[test]
fn pages_are_cached_only_with_cache_keep() {
    for (cache, is_cached) in [("--cache=none", false), ("--cache=keep", true)] {
        let mounted = TestMount::new(&["--size=32MiB", "--ecc=off", cache]);
        let bytes = vec![5; 8 << 20];
        // Through one descriptor: the kernel may drop pages when a file is opened.
        let file = mounted.file("file");
        file.write_all_at(&bytes, 0).unwrap();
        for _ in 0..2 {
            assert!(read(&file, 0, bytes.len()) == bytes);
        }
        let cached_pages = cached_pages(&file);
        assert_eq!(cached_pages > 0, is_cached, "{cache}: {cached_pages} pages");
    }
}

/// System call number on all architectures; the libc crate does not define it.
const CACHESTAT: libc::c_long = 451;

/// Number of a file's pages in the page cache, without mapping it, as a mapping would make the
/// kernel drop them.
fn cached_pages(file: &File) -> u64 {
    // struct cachestat; its first field is the number of cached pages.
    let (range, mut all) = ([0u64, 0], [0u64; 5]);
    let fd = std::os::fd::AsRawFd::as_raw_fd(file);
    // SAFETY: the call reads the two numbers of the range and writes the five of the result.
    let answer = unsafe { libc::syscall(CACHESTAT, fd, &range, &mut all, 0) };
    let error = std::io::Error::last_os_error();
    assert_eq!(answer, 0, "cachestat: {error}; it needs Linux 6.5");
    all[0]
}

/// Shared mapping of a file.
pub(super) struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    pub(super) fn new(file: &File, len: usize) -> Self {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let fd = std::os::fd::AsRawFd::as_raw_fd(file);
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, both, libc::MAP_SHARED, fd, 0) };
        let error = std::io::Error::last_os_error();
        assert!(at != libc::MAP_FAILED, "{error}");
        let at = at.cast();
        Self { at, len }
    }

    fn sync(&self) -> std::io::Result<()> {
        // SAFETY: the range is exactly the mapping.
        match unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: the byte is inside the mapping; other writers change these bytes between calls,
        // not during the read.
        let byte = |at: usize| unsafe { self.at.add(at).read_volatile() };
        (at..at + len).map(byte).collect()
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: the range is inside the mapping, and only this value uses the mapping.
        unsafe { self.at.add(at).copy_from(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used after its owner is dropped.
        assert_eq!(unsafe { libc::munmap(self.at.cast(), self.len) }, 0);
    }
}

#[test]
fn mapping_sees_punch_truncate_and_copy_of_another_process() {
    let python = |line: &str, mounted: &TestMount| {
        let head = "import ctypes, os, sys
os.chdir(sys.argv[1])
file = os.open('file', os.O_RDWR)
other = os.open('other', os.O_RDWR)
def punch(at, end):
    c = ctypes.CDLL(None, use_errno=True)
    assert c.fallocate(file, 3, ctypes.c_long(at), ctypes.c_long(end - at)) == 0, ctypes.get_errno()
";
        let mut it = std::process::Command::new("python3");
        let it = it
            .args(["-c", &format!("{head}{line}")])
            .arg(mounted.path());
        let done = it.output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    for cache in ["--cache=none", "--cache=keep"] {
        let mounted = TestMount::new(&["--size=32MiB", "--ecc=off", cache]);
        let (file, other) = (mounted.file("file"), mounted.file("other"));
        file.write_all_at(&[7; 1 << 18], 0).unwrap();
        other.write_all_at(&[8; 1 << 16], 0).unwrap();
        let map = Mapping::new(&file, 1 << 18);
        let mut model = vec![7; 1 << 18];
        // All pages are mapped, and some have data that no call has written.
        assert!(map.read(0, 1 << 18) == model);
        for at in [5000, 70_000, 200_000] {
            map.write(at, b"stored");
            model[at..at + 6].copy_from_slice(b"stored");
        }
        python("punch(4096 + 100, 66_000)", &mounted);
        model[4196..66_000].fill(0);
        assert!(map.read(0, 1 << 18) == model, "{cache}: punched");
        python(
            "assert os.copy_file_range(other, file, 60_000, 0, 100_001) == 60_000",
            &mounted,
        );
        model[100_001..160_001].fill(8);
        assert!(map.read(0, 1 << 18) == model, "{cache}: copied over it");
        // Data stored through the mapping are copied.
        let line = "assert os.copy_file_range(file, other, 6, 70_000, 9) == 6; print(os.pread(other, 8, 8))";
        assert_eq!(python(line, &mounted), "b'\\x08stored\\x08'\n", "{cache}");
        python(
            "os.truncate(file, 130_000); os.truncate(file, 1 << 18)",
            &mounted,
        );
        model[130_000..].fill(0);
        assert!(map.read(0, 1 << 18) == model, "{cache}: cut");
        map.write(250_000, b"again");
        assert_eq!(
            python("print(os.pread(file, 7, 249_999))", &mounted),
            "b'\\x00again\\x00'\n"
        );
        model[250_000..250_005].copy_from_slice(b"again");
        drop(map);
        assert!(
            std::fs::read(mounted.at("file")).unwrap() == model,
            "{cache}"
        );
    }
}

#[test]
fn unlinked_file_lives_until_closed() {
    let mounted = TestMount::plain();
    let before = mounted.counter("used_inodes");
    let file = mounted.file("file");
    file.write_all_at(&[3; 50_000], 0).unwrap();
    std::fs::remove_file(mounted.at("file")).unwrap();
    assert!(!mounted.at("file").exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(&[4; 50_000], 50_000).unwrap();
    assert!(read(&file, 0, 100_000) == [[3; 50_000], [4; 50_000]].concat());
    assert!(mounted.counter("used_bytes") >= 100_000);
    drop(file);
    // The inode is freed asynchronously; statfs waits for it.
    let free = || rustix::fs::statvfs(mounted.path()).unwrap();
    super::mounting::wait_until("freed", || free().f_bfree == free().f_blocks);
    assert_eq!(mounted.counter("used_inodes"), before);
}

#[test]
fn concurrent_appends_do_not_overlap() {
    let mounted = TestMount::plain();
    std::thread::scope(|threads| {
        for which in 0..4u8 {
            let path = mounted.at("log");
            threads.spawn(move || {
                let mut how = File::options();
                let mut file = how.append(true).create(true).open(path).unwrap();
                for _ in 0..200 {
                    file.write_all(&[which; 37]).unwrap();
                }
            });
        }
    });
    let bytes = std::fs::read(mounted.at("log")).unwrap();
    assert_eq!(bytes.len(), 4 * 200 * 37);
    assert!(
        bytes
            .chunks(37)
            .all(|it| it.iter().all(|byte| *byte == it[0]))
    );
}

#[test]
fn concurrent_writers_of_one_file_find_their_own_data() {
    let mounted = TestMount::new(&["--size=4MiB"]);
    let seed = seed();
    open(&mounted.at("file")).set_len(1 << 20).unwrap();
    std::thread::scope(|threads| {
        for which in 0..4u64 {
            let path = mounted.at("file");
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
fn mapping_and_direct_calls_are_coherent() {
    for cache in ["--cache=none", "--cache=keep"] {
        let mounted = TestMount::new(&["--size=32MiB", "--ecc=off", cache]);
        let file = mounted.file("file");
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
        assert_eq!(
            read(&open(&mounted.at("file")), 9000, 14),
            b"againa mapping"
        );
    }
}

#[test]
fn file_and_range_locks_exclude_each_other() {
    use rustix::fs::{FlockOperation, flock};
    let mounted = TestMount::plain();
    let (one, two) = (mounted.file("file"), mounted.file("file"));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    let now = FlockOperation::NonBlockingLockExclusive;
    assert_eq!(flock(&two, now), Err(Errno::AGAIN));
    flock(&one, FlockOperation::Unlock).unwrap();
    flock(&two, now).unwrap();
    let part = |file: &File, kind: i32, begin: i64| {
        // SAFETY: all fields are integers, for which zero is a valid value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, begin, 100);
        let fd = std::os::fd::AsRawFd::as_raw_fd(file);
        // SAFETY: the descriptor is open, and the lock outlives the call.
        unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &lock) == 0 }
    };
    assert!(part(&one, libc::F_WRLCK, 0));
    assert!(!part(&two, libc::F_WRLCK, 50) && part(&two, libc::F_WRLCK, 100));
    assert!(part(&one, libc::F_UNLCK, 0) && part(&two, libc::F_RDLCK, 50));
    // POSIX locks are owned by a process.
    let line = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 10, 60)";
    let python = || {
        let mut it = std::process::Command::new("python3");
        it.args(["-c", line]).arg(mounted.at("file"));
        it.output().unwrap().status.success()
    };
    assert!(!python());
    assert!(part(&two, libc::F_UNLCK, 50));
    assert!(python());
}

#[test]
fn copy_file_range_keeps_holes() {
    let mounted = TestMount::plain();
    let (from, to) = (mounted.file("from"), mounted.file("to"));
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
    assert!(std::fs::read(mounted.at("to")).unwrap() == std::fs::read(mounted.at("from")).unwrap());
    assert!(pages(&to) <= 8, "{}", pages(&to));
    assert_eq!(rustix::fs::seek(&to, SeekFrom::Data(12_288)), Ok(3 << 20));
}

#[test]
fn program_is_executed_and_text_read_to_its_end() {
    use std::os::unix::fs::PermissionsExt;
    let mounted = TestMount::plain();
    copy_program(Path::new("/bin/true"), &mounted.at("program"));
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(mounted.at("program"), mode).unwrap();
    let mut program = std::process::Command::new(mounted.at("program"));
    assert!(program.status().unwrap().success());
    let mut text = String::new();
    std::fs::write(mounted.at("text"), "a line\n".repeat(1000)).unwrap();
    let mut file = File::open(mounted.at("text")).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 1000);
    assert!(file.as_fd().try_clone_to_owned().is_ok());
}
