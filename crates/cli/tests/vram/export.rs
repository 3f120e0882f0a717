//! Export of files' device memory to another process, which is this one.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fastrand::Rng;
use fercuda_cuda::{Context, Cuda, Select, Stream};
use fercuda_vramfs::import::Import;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde_json::Value;

use crate::{OTHER_USER, TestMount, expect_failure, fercuda, read, seed, vram};

const CHUNK: u64 = 128 << 10;
/// Variable with the file that a child process has to map.
const BORROWED_FILE: &str = "FERCUDA_TEST_BORROWS";

fn context() -> Context {
    let device = Cuda::select(Select::Software).unwrap().device(0).unwrap();
    Context::primary(device).unwrap()
}

/// Contents of a mapped file, read from the device; holes are zeros.
fn on_device(file: &Import) -> Vec<u8> {
    let stream = Stream::new(file.context()).unwrap();
    let mut all = vec![0; file.size() as usize];
    for it in file.segments() {
        let (from, end) = (it.offset as usize, (it.offset + it.bytes) as usize);
        let slice = file.slice(it.offset, it.bytes).unwrap();
        assert_eq!(slice.address().0, it.at);
        slice.copy_to_host(&mut all[from..end], &stream).unwrap();
    }
    all
}

fn error<T>(it: std::io::Result<T>) -> Option<Errno> {
    it.err().and_then(|it| Errno::from_io_error(&it))
}

fn random_file(mounted: &TestMount, name: &str, random: &mut Rng, len: usize) -> (File, Vec<u8>) {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    let file = mounted.file(name);
    file.write_all_at(&bytes, 0).unwrap();
    (file, bytes)
}

/// Starts a process that maps a file and keeps it mapped.
fn borrower(at: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "export::borrow_a_file_until_killed",
            "--nocapture",
        ])
        .env(BORROWED_FILE, at)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let has_it = out.lines().any(|line| line.unwrap().contains("borrowed"));
    assert!(has_it, "{:?}", child.wait());
    child
}

/// Not a test: [`borrower`] runs it in a child process, which is then killed. Without the variable
/// it returns at once.
#[test]
fn borrow_a_file_until_killed() {
    if let Some(at) = std::env::var_os(BORROWED_FILE) {
        let mut file = Import::open(Path::new(&at), &context(), true).unwrap();
        let stream = Stream::new(file.context()).unwrap();
        let mut slice = file.slice_mut(0, CHUNK).unwrap();
        slice.fill_bytes(0x77, &stream).unwrap();
        stream.synchronize().unwrap();
        println!("borrowed");
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn read_only_mapping_sees_the_file_and_blocks_changes() {
    let mut random = Rng::with_seed(seed());
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let mounted = TestMount::new(&["--size=8MiB", ecc]);
        let len = 3 * CHUNK as usize + 777;
        let (file, mut bytes) = random_file(&mounted, "file", &mut random, len);
        // A hole, and a page far beyond it.
        file.set_len(9 * CHUNK).unwrap();
        file.write_all_at(b"behind", 7 * CHUNK + 5000).unwrap();
        bytes.resize(9 * CHUNK as usize, 0);
        bytes[7 * CHUNK as usize + 5000..][..6].copy_from_slice(b"behind");

        let borrowed = Import::open(&mounted.at("file"), &context(), false).unwrap();
        assert_eq!(borrowed.size(), 9 * CHUNK);
        assert_eq!(on_device(&borrowed), bytes);
        // The fourth chunk has data only at its beginning, and other files' data beside them.
        assert_eq!(borrowed.chunks(), None);
        assert_eq!(borrowed.stride_bytes(), None);
        let behind = borrowed.slice(7 * CHUNK + 5000, 6).unwrap();
        let segment = borrowed.segments().last().unwrap();
        let within = 7 * CHUNK + 5000 - segment.offset;
        assert_eq!(behind.address().0, segment.at + within);
        assert!(borrowed.slice(5 * CHUNK, 1).is_err());
        assert!(borrowed.slice(0, u64::MAX).is_err());
        assert_eq!(mounted.counter("exported_files"), 1);

        // Other readers are allowed, through calls and through mappings.
        assert_eq!(read(&file, 0, bytes.len()), bytes);
        let other = Import::open(&mounted.at("file"), &context(), false).unwrap();
        assert_eq!(on_device(&other), bytes);
        other.close().unwrap();
        // Writers are refused.
        assert_eq!(error(file.write_all_at(b"x", 0)), Some(Errno::BUSY));
        assert_eq!(error(file.write_all_at(b"x", 5 * CHUNK)), Some(Errno::BUSY));
        assert_eq!(error(file.set_len(3)), Some(Errno::BUSY));
        assert_eq!(error(file.set_len(99 * CHUNK)), Some(Errno::BUSY));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for how in [hole, FallocateFlags::empty(), FallocateFlags::ZERO_RANGE] {
            assert_eq!(fallocate(&file, how, 0, 4096), Err(Errno::BUSY), "{how:?}");
        }
        // A refused importer is not counted as a holder, not even for a moment.
        for _ in 0..50 {
            let writes = Import::open(&mounted.at("file"), &context(), true);
            assert!(writes.unwrap_err().to_string().contains("another process"));
            assert_eq!(mounted.counter("exported_files"), 1);
        }

        // An unlinked file exists as long as it is mapped.
        std::fs::remove_file(mounted.at("file")).unwrap();
        drop(file);
        std::fs::write(mounted.at("others"), vec![0xEE; 4 * CHUNK as usize]).unwrap();
        let used = mounted.counter("used_bytes");
        assert_eq!(on_device(&borrowed), bytes);
        borrowed.close().unwrap();
        assert_eq!(mounted.counter("exported_files"), 0);
        assert!(mounted.counter("used_bytes") < used);
    }
}

#[test]
fn writes_through_a_mapping_become_file_data_with_valid_parity() {
    let mut random = Rng::with_seed(seed());
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let mounted = TestMount::new(&["--size=8MiB", ecc, "--cache=keep"]);
        let file = mounted.file("file");
        let size = 4 * CHUNK;
        fallocate(&file, FallocateFlags::empty(), 0, size).unwrap();
        // Fills the page cache with the old data.
        assert_eq!(read(&file, 0, size as usize), vec![0; size as usize]);
        let mut borrowed = Import::open(&mounted.at("file"), &context(), true).unwrap();
        assert!(borrowed.stride_bytes().is_some());
        let mut wanted = vec![0; size as usize];
        random.fill(&mut wanted[..3 * CHUNK as usize]);
        let stream = Stream::new(borrowed.context()).unwrap();
        let other = mounted.file("file");
        assert_eq!(error(other.read_at(&mut [0], 0)), Some(Errno::BUSY));
        assert_eq!(error(other.write_at(&[0], 0)), Some(Errno::BUSY));
        for again in [false, true] {
            let writes = Import::open(&mounted.at("file"), &context(), again);
            assert!(writes.unwrap_err().to_string().contains("another process"));
        }
        for (at, part) in wanted.chunks(CHUNK as usize).enumerate().take(3) {
            let mut slice = borrowed.slice_mut(at as u64 * CHUNK, CHUNK).unwrap();
            slice.copy_from_host(part, &stream).unwrap();
        }
        // The scrubber does not take data that are being written for an error.
        let done = vram(&["scrub", "--now", mounted.path().to_str().unwrap()]);
        if ecc == "--ecc=rs" {
            assert!(done.status.success(), "{done:?}");
        }
        borrowed.close().unwrap();
        assert_eq!(read(&file, 0, size as usize), wanted);
        if ecc == "--ecc=rs" {
            let done = vram(&["scrub", "--now", "--json", mounted.path().to_str().unwrap()]);
            let found: Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!(
                (&found["corrected"], &found["lost"]),
                (&0.into(), &0.into()),
                "{found}"
            );
            // Later faults are corrected.
            let done = vram(&[
                "inject",
                "--kind=row",
                "--count=1",
                mounted.at("file").to_str().unwrap(),
            ]);
            assert!(done.status.success(), "{done:?}");
            let done = vram(&["scrub", "--now", mounted.path().to_str().unwrap()]);
            assert!(done.status.success(), "{done:?}");
            assert_eq!(read(&mounted.file("file"), 0, size as usize), wanted);
        }
        assert_eq!(mounted.counter("lost_blocks"), 0);
    }
}

#[test]
fn export_of_a_killed_borrower_is_released() {
    let mounted = TestMount::new(&["--size=8MiB", "--ecc=rs"]);
    let file = mounted.file("file");
    fallocate(&file, FallocateFlags::empty(), 0, 2 * CHUNK).unwrap();
    let mut child = borrower(&mounted.at("file"));
    assert_eq!(error(file.read_at(&mut [0], 0)), Some(Errno::BUSY));
    child.kill().unwrap();
    child.wait().unwrap();
    // The daemon notices the exit asynchronously.
    while mounted.counter("exported_files") != 0 {
        std::thread::yield_now();
    }
    let mut wanted = vec![0x77; 2 * CHUNK as usize];
    wanted[CHUNK as usize..].fill(0);
    assert_eq!(read(&file, 0, wanted.len()), wanted);
    assert_eq!(mounted.counter("lost_blocks"), 0);
}

#[test]
fn exported_memory_is_not_moved() {
    let mounted = TestMount::new(&["--size=8MiB", "--ecc=off"]);
    let mut random = Rng::with_seed(seed());
    let (before, _) = random_file(&mounted, "before", &mut random, 20 * CHUNK as usize);
    let (file, bytes) = random_file(&mounted, "file", &mut random, 20 * CHUNK as usize);
    before.set_len(0).unwrap();
    let borrowed = Import::open(&mounted.at("file"), &context(), false).unwrap();
    // No holes, and written in order.
    assert_eq!(borrowed.stride_bytes(), Some(CHUNK));
    let dir = mounted.path().to_str().unwrap();
    // A size that would require moving mapped blocks.
    let output = expect_failure(&["shrink", dir, "--size=2560KiB"]);
    assert!(output.contains("fercuda vram export"), "{output}");
    assert_eq!(on_device(&borrowed), bytes);
    borrowed.close().unwrap();
    let done = vram(&["shrink", dir, "--size=2560KiB"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(read(&file, 0, bytes.len()), bytes);
}

#[test]
fn impossible_exports_are_refused_with_a_reason() {
    let mounted = TestMount::plain();
    let small = mounted.file("small");
    small.write_all_at(b"small", 0).unwrap();
    let at = |name: &str| mounted.at(name).to_str().unwrap().to_owned();
    let output = expect_failure(&["export", &at("small"), "--write"]);
    assert!(output.contains("try: fallocate"), "{output}");
    fallocate(&small, FallocateFlags::KEEP_SIZE, 0, CHUNK).unwrap();
    let done = vram(&["export", &at("small"), "--write", "--json"]);
    let export: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(export["size_bytes"], 5, "{export}");
    assert_eq!(export["segments"][0]["bytes"], 5, "{export}");
    let done = vram(&["export", &at("small")]);
    let output = String::from_utf8(done.stdout).unwrap();
    assert!(output.contains("1 segment"), "{output}");

    assert!(expect_failure(&["export", &at("none")]).contains("No such file"));
    assert!(expect_failure(&["export", mounted.path().to_str().unwrap()]).contains("only a file"));
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let output = expect_failure(&["export", elsewhere.path().to_str().unwrap()]);
    assert!(
        output.contains("it is not where such a filesystem is mounted"),
        "{output}"
    );
    // Permission to read the file does not include the blocks of other files.
    let mut other = fercuda();
    other.args(["vram", "export", &at("small")]);
    let done = other.uid(OTHER_USER).gid(OTHER_USER).output().unwrap();
    let output = String::from_utf8(done.stderr).unwrap();
    assert!(
        output.contains("only the mount's owner and root may"),
        "{output}"
    );
    drop(mounted.file("empty"));
    let borrowed = Import::open(&mounted.at("empty"), &context(), false).unwrap();
    assert_eq!((borrowed.size(), borrowed.segments().len()), (0, 0));
    drop(borrowed);
}

#[test]
fn unmount_succeeds_while_memory_is_exported() {
    let mounted = TestMount::new(&["--size=8MiB", "--ecc=off"]);
    let mut random = Rng::with_seed(seed());
    let (file, bytes) = random_file(&mounted, "file", &mut random, 3 * CHUNK as usize);
    drop(file);
    let borrowed = Import::open(&mounted.at("file"), &context(), false).unwrap();
    drop(mounted);
    // Mapped memory outlives the filesystem.
    assert_eq!(on_device(&borrowed), bytes);
    borrowed.close().unwrap();
}

/// In its own process, as other tests open files in this one.
#[test]
fn closed_imports_leave_no_descriptors_open() {
    const IMPORTED_FILE: &str = "FERCUDA_TEST_LETS_GO";
    let Some(at) = std::env::var_os(IMPORTED_FILE) else {
        let mounted = TestMount::plain();
        let file = mounted.file("file");
        file.write_all_at(&[1; 3 * CHUNK as usize], 0).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "export::closed_imports_leave_no_descriptors_open",
            ])
            .env(IMPORTED_FILE, mounted.at("file"))
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        // The filesystem no longer counts it as exported.
        crate::mounting::wait_until("returned", || file.write_all_at(b"changed", 0).is_ok());
        return;
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let context = context();
    let lend = || drop(Import::open(Path::new(&at), &context, false).unwrap());
    // The first import opens files that stay open.
    lend();
    let before = open();
    for _ in 0..5 {
        lend();
    }
    assert_eq!(open(), before);
}
