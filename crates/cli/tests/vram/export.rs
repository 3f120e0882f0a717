//! Files whose memory another process uses where it is: this one.

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

use crate::{Here, SOMEBODY, fercuda, read, refused, seed, vram};

const CHUNK: u64 = 128 << 10;
/// Where a process that is only to borrow a file finds its name.
const BORROWS: &str = "FERCUDA_TEST_BORROWS";

fn context() -> Context {
    let device = Cuda::select(Select::Software).unwrap().device(0).unwrap();
    Context::primary(device).unwrap()
}

/// All bytes of a file as the device has them; a hole is zeros.
fn on_device(file: &Import) -> Vec<u8> {
    let stream = Stream::new(file.context()).unwrap();
    let mut all = vec![0; file.size() as usize];
    for it in file.segments() {
        let (from, end) = (it.offset as usize, (it.offset + it.bytes) as usize);
        let there = file.slice(it.offset, it.bytes).unwrap();
        assert_eq!(there.address().0, it.at);
        there.copy_to_host(&mut all[from..end], &stream).unwrap();
    }
    all
}

fn error<T>(it: std::io::Result<T>) -> Option<Errno> {
    it.err().and_then(|it| Errno::from_io_error(&it))
}

fn random_file(here: &Here, name: &str, random: &mut Rng, len: usize) -> (File, Vec<u8>) {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    let file = here.file(name);
    file.write_all_at(&bytes, 0).unwrap();
    (file, bytes)
}

/// A process that has borrowed a file, and does nothing more.
fn borrower(at: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "export::who_is_to_borrow_a_file_does",
            "--nocapture",
        ])
        .env(BORROWS, at)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let has_it = out.lines().any(|line| line.unwrap().contains("borrowed"));
    assert!(has_it, "{:?}", child.wait());
    child
}

/// Not a test but what [`borrower`] starts, which is killed: without a file to borrow it is over at once.
#[test]
fn who_is_to_borrow_a_file_does() {
    if let Some(at) = std::env::var_os(BORROWS) {
        let mut file = Import::open(Path::new(&at), &context(), true).unwrap();
        let stream = Stream::new(file.context()).unwrap();
        let mut there = file.slice_mut(0, CHUNK).unwrap();
        there.fill_bytes(0x77, &stream).unwrap();
        stream.synchronize().unwrap();
        println!("borrowed");
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn a_file_is_read_where_it_is_and_nobody_changes_it_meanwhile() {
    let mut random = Rng::with_seed(seed());
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let here = Here::new(&["--size=8MiB", ecc]);
        let len = 3 * CHUNK as usize + 777;
        let (file, mut bytes) = random_file(&here, "file", &mut random, len);
        // A hole, and a page far behind.
        file.set_len(9 * CHUNK).unwrap();
        file.write_all_at(b"behind", 7 * CHUNK + 5000).unwrap();
        bytes.resize(9 * CHUNK as usize, 0);
        bytes[7 * CHUNK as usize + 5000..][..6].copy_from_slice(b"behind");

        let borrowed = Import::open(&here.at("file"), &context(), false).unwrap();
        assert_eq!(borrowed.size(), 9 * CHUNK);
        assert_eq!(on_device(&borrowed), bytes);
        // Of the fourth there is the beginning, and beside it somebody else's.
        assert_eq!(borrowed.chunks(), None);
        assert_eq!(borrowed.stride_bytes(), None);
        let behind = borrowed.slice(7 * CHUNK + 5000, 6).unwrap();
        let segment = borrowed.segments().last().unwrap();
        let within = 7 * CHUNK + 5000 - segment.offset;
        assert_eq!(behind.address().0, segment.at + within);
        assert!(borrowed.slice(5 * CHUNK, 1).is_err());
        assert!(borrowed.slice(0, u64::MAX).is_err());
        assert_eq!(here.figure("exported_files"), 1);

        // Others may read it, here and there.
        assert_eq!(read(&file, 0, bytes.len()), bytes);
        let other = Import::open(&here.at("file"), &context(), false).unwrap();
        assert_eq!(on_device(&other), bytes);
        other.close().unwrap();
        // And nobody may write.
        assert_eq!(error(file.write_all_at(b"x", 0)), Some(Errno::BUSY));
        assert_eq!(error(file.write_all_at(b"x", 5 * CHUNK)), Some(Errno::BUSY));
        assert_eq!(error(file.set_len(3)), Some(Errno::BUSY));
        assert_eq!(error(file.set_len(99 * CHUNK)), Some(Errno::BUSY));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for how in [hole, FallocateFlags::empty(), FallocateFlags::ZERO_RANGE] {
            assert_eq!(fallocate(&file, how, 0, 4096), Err(Errno::BUSY), "{how:?}");
        }
        // Who is refused is none that has it from then on: not a moment later.
        for _ in 0..50 {
            let writes = Import::open(&here.at("file"), &context(), true);
            assert!(writes.unwrap_err().to_string().contains("another process"));
            assert_eq!(here.figure("exported_files"), 1);
        }

        // Without a name it stays as long as somebody has it.
        std::fs::remove_file(here.at("file")).unwrap();
        drop(file);
        std::fs::write(here.at("others"), vec![0xEE; 4 * CHUNK as usize]).unwrap();
        let used = here.figure("used_bytes");
        assert_eq!(on_device(&borrowed), bytes);
        borrowed.close().unwrap();
        assert_eq!(here.figure("exported_files"), 0);
        assert!(here.figure("used_bytes") < used);
    }
}

#[test]
fn what_is_written_where_it_is_is_the_files_and_right() {
    let mut random = Rng::with_seed(seed());
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let here = Here::new(&["--size=8MiB", ecc, "--cache=keep"]);
        let file = here.file("file");
        let size = 4 * CHUNK;
        fallocate(&file, FallocateFlags::empty(), 0, size).unwrap();
        // The kernel keeps what was there before.
        assert_eq!(read(&file, 0, size as usize), vec![0; size as usize]);
        let mut borrowed = Import::open(&here.at("file"), &context(), true).unwrap();
        assert!(borrowed.stride_bytes().is_some());
        let mut wanted = vec![0; size as usize];
        random.fill(&mut wanted[..3 * CHUNK as usize]);
        let stream = Stream::new(borrowed.context()).unwrap();
        let other = here.file("file");
        assert_eq!(error(other.read_at(&mut [0], 0)), Some(Errno::BUSY));
        assert_eq!(error(other.write_at(&[0], 0)), Some(Errno::BUSY));
        for again in [false, true] {
            let writes = Import::open(&here.at("file"), &context(), again);
            assert!(writes.unwrap_err().to_string().contains("another process"));
        }
        for (at, part) in wanted.chunks(CHUNK as usize).enumerate().take(3) {
            let mut there = borrowed.slice_mut(at as u64 * CHUNK, CHUNK).unwrap();
            there.copy_from_host(part, &stream).unwrap();
        }
        // Nobody takes what is being written for an error.
        let done = vram(&["scrub", "--now", here.path().to_str().unwrap()]);
        if ecc == "--ecc=rs" {
            assert!(done.status.success(), "{done:?}");
        }
        borrowed.close().unwrap();
        assert_eq!(read(&file, 0, size as usize), wanted);
        if ecc == "--ecc=rs" {
            let done = vram(&["scrub", "--now", "--json", here.path().to_str().unwrap()]);
            let found: Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!(
                (&found["corrected"], &found["lost"]),
                (&0.into(), &0.into()),
                "{found}"
            );
            // And what goes wrong from then on is corrected.
            let done = vram(&[
                "inject",
                "--kind=row",
                "--count=1",
                here.at("file").to_str().unwrap(),
            ]);
            assert!(done.status.success(), "{done:?}");
            let done = vram(&["scrub", "--now", here.path().to_str().unwrap()]);
            assert!(done.status.success(), "{done:?}");
            assert_eq!(read(&here.file("file"), 0, size as usize), wanted);
        }
        assert_eq!(here.figure("lost_blocks"), 0);
    }
}

#[test]
fn what_a_borrower_has_who_is_killed_comes_back() {
    let here = Here::new(&["--size=8MiB", "--ecc=rs"]);
    let file = here.file("file");
    fallocate(&file, FallocateFlags::empty(), 0, 2 * CHUNK).unwrap();
    let mut child = borrower(&here.at("file"));
    assert_eq!(error(file.read_at(&mut [0], 0)), Some(Errno::BUSY));
    child.kill().unwrap();
    child.wait().unwrap();
    // The daemon hears of it when the system says so.
    while here.figure("exported_files") != 0 {
        std::thread::yield_now();
    }
    let mut wanted = vec![0x77; 2 * CHUNK as usize];
    wanted[CHUNK as usize..].fill(0);
    assert_eq!(read(&file, 0, wanted.len()), wanted);
    assert_eq!(here.figure("lost_blocks"), 0);
}

#[test]
fn memory_that_somebody_uses_stays_where_it_is() {
    let here = Here::new(&["--size=8MiB", "--ecc=off"]);
    let mut random = Rng::with_seed(seed());
    let (before, _) = random_file(&here, "before", &mut random, 20 * CHUNK as usize);
    let (file, bytes) = random_file(&here, "file", &mut random, 20 * CHUNK as usize);
    before.set_len(0).unwrap();
    let borrowed = Import::open(&here.at("file"), &context(), false).unwrap();
    // Without holes, and written in order.
    assert_eq!(borrowed.stride_bytes(), Some(CHUNK));
    let dir = here.path().to_str().unwrap();
    // Somewhere in it.
    let said = refused(&["shrink", dir, "--size=2560KiB"]);
    assert!(said.contains("fercuda vram export"), "{said}");
    assert_eq!(on_device(&borrowed), bytes);
    borrowed.close().unwrap();
    let done = vram(&["shrink", dir, "--size=2560KiB"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(read(&file, 0, bytes.len()), bytes);
}

#[test]
fn what_cannot_be_exported_says_why() {
    let here = Here::plain();
    let small = here.file("small");
    small.write_all_at(b"small", 0).unwrap();
    let at = |name: &str| here.at(name).to_str().unwrap().to_owned();
    let said = refused(&["export", &at("small"), "--write"]);
    assert!(said.contains("try: fallocate"), "{said}");
    fallocate(&small, FallocateFlags::KEEP_SIZE, 0, CHUNK).unwrap();
    let done = vram(&["export", &at("small"), "--write", "--json"]);
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(told["size_bytes"], 5, "{told}");
    assert_eq!(told["segments"][0]["bytes"], 5, "{told}");
    let done = vram(&["export", &at("small")]);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.contains("1 segment"), "{said}");

    assert!(refused(&["export", &at("none")]).contains("No such file"));
    assert!(refused(&["export", here.path().to_str().unwrap()]).contains("only a file"));
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let said = refused(&["export", elsewhere.path().to_str().unwrap()]);
    assert!(
        said.contains("it is not where such a filesystem is mounted"),
        "{said}"
    );
    // Who may read it may not have its neighbours.
    let mut other = fercuda();
    other.args(["vram", "export", &at("small")]);
    let done = other.uid(SOMEBODY).gid(SOMEBODY).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("only who has mounted it"), "{said}");
    drop(here.file("empty"));
    let borrowed = Import::open(&here.at("empty"), &context(), false).unwrap();
    assert_eq!((borrowed.size(), borrowed.segments().len()), (0, 0));
    drop(borrowed);
}

#[test]
fn a_filesystem_goes_whoever_has_its_memory() {
    let here = Here::new(&["--size=8MiB", "--ecc=off"]);
    let mut random = Rng::with_seed(seed());
    let (file, bytes) = random_file(&here, "file", &mut random, 3 * CHUNK as usize);
    drop(file);
    let borrowed = Import::open(&here.at("file"), &context(), false).unwrap();
    drop(here);
    // What is mapped is there as long as somebody maps it.
    assert_eq!(on_device(&borrowed), bytes);
    borrowed.close().unwrap();
}

/// In a process of its own, as others open files in this one.
#[test]
fn who_lets_go_of_files_has_nothing_of_them_open() {
    const LETS_GO: &str = "FERCUDA_TEST_LETS_GO";
    let Some(at) = std::env::var_os(LETS_GO) else {
        let here = Here::plain();
        let file = here.file("file");
        file.write_all_at(&[1; 3 * CHUNK as usize], 0).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "export::who_lets_go_of_files_has_nothing_of_them_open",
            ])
            .env(LETS_GO, here.at("file"))
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        // Nor does the filesystem have it lent.
        crate::place::comes("taken back", || file.write_all_at(b"changed", 0).is_ok());
        return;
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let context = context();
    let lend = || drop(Import::open(Path::new(&at), &context, false).unwrap());
    // Whatever is opened once.
    lend();
    let before = open();
    for _ in 0..5 {
        lend();
    }
    assert_eq!(open(), before);
}
