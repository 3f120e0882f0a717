//! Growing and mounting on a device with memory taken by other programs: what does not fit is
//! refused with figures, and nothing else changes.
//!
//! Needs /dev/fuse and root, and fails with an error that says so without them. Uses the software
//! device, which knows free memory to the byte; each test has a device of its own.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::path::Path;
use std::sync::OnceLock;

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Error as Driver, PhysicalMemory, Stream};
use fercuda_softgpu::control::{self, Config};
use fercuda_vramfs::control::Control;
use fercuda_vramfs::layout::{DATA_BYTES, DATA_ROWS, IDENTITY_WORDS};
use fercuda_vramfs::medium::Verify;
use fercuda_vramfs::mount::{
    self, Mount, MountOptions, MountRestrictions, PageCache, Scrub, StoreGeometry, figures,
};
use fercuda_vramfs::{BlockWork, Blocks, Error, Identity, Kernels, RowLocation, Worker};

const MIB: usize = 1 << 20;
/// Memory of each device in bytes.
const ALL: usize = 1 << 30;

fn device(number: u32) -> Context {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    let cuda = CUDA.get_or_init(|| {
        let mut config = Config::from_env();
        config.devices = 3;
        config.memory_bytes = ALL as u64;
        // Checking this much memory would take longer than everything else.
        config.checks = false;
        assert!(control::configure(config));
        Cuda::from_env().unwrap()
    });
    Context::primary(cuda.device(number).unwrap()).unwrap()
}

fn free(context: &Context) -> usize {
    context.memory_info().unwrap().0 as usize
}

/// Allocates all free memory but `left` bytes.
fn take_all_but(left: usize, context: &Context) -> PhysicalMemory {
    PhysicalMemory::new(context, free(context) - left).unwrap()
}

#[test]
fn growth_that_fails_halfway_frees_what_it_allocated() {
    let context = device(0);
    let stream = Stream::new(&context).unwrap();
    // Memory is allocated in pieces of 256 MiB.
    let blocks = Blocks::new(&context, 16, ALL / DATA_BYTES, false).unwrap();
    blocks.poke(0, b"kept", &stream).unwrap();
    let before = (blocks.len(), blocks.bytes());
    assert_eq!(before, (16, 2 * MIB));
    let other = take_all_but(600 * MIB, &context);
    let wanted = 700 * MIB / DATA_BYTES;
    let refused = blocks.grow(wanted);
    let is_full = matches!(&refused, Err(Error::Cuda(Driver::OutOfMemory(_))));
    assert!(is_full, "{refused:?}");
    assert_eq!((blocks.len(), blocks.bytes()), before);
    assert_eq!(free(&context), 600 * MIB);
    assert!(blocks.peek(16 * DATA_BYTES, &mut [0], &stream).is_err());
    drop(other);
    blocks.grow(wanted).unwrap();
    assert_eq!((blocks.len(), blocks.bytes()), (wanted, 700 * MIB));
    let mut kept = [0; 4];
    blocks.peek(0, &mut kept, &stream).unwrap();
    assert_eq!(kept, *b"kept");
    blocks
        .poke(wanted * DATA_BYTES - 3, b"end", &stream)
        .unwrap();
}

#[test]
fn scan_and_refresh_work_without_free_device_memory() {
    const COUNT: u32 = 6;
    let context = device(2);
    let stream = Stream::new(&context).unwrap();
    let kernels = Kernels::load(&context).unwrap();
    let blocks = Blocks::new(&context, COUNT as usize, COUNT as usize, true).unwrap();
    let mut worker = Worker::new(&kernels, COUNT as usize, Stream::new(&context).unwrap()).unwrap();
    let identities: Vec<Identity> = (0..COUNT)
        .map(|number| [u64::from(number); IDENTITY_WORDS])
        .collect();
    let works: Vec<BlockWork<'_>> = identities
        .iter()
        .enumerate()
        .map(|(block, identity)| BlockWork {
            block,
            rows: 0..DATA_ROWS,
            place: RowLocation::Staging(block * DATA_BYTES),
            identity: Some(identity),
        })
        .collect();
    worker.encode(&blocks, &works).unwrap();
    let mut others = Vec::new();
    let mut step = free(&context);
    while step != 0 {
        match DeviceBuffer::<u8>::alloc(&context, step) {
            Ok(other) => others.push(other),
            Err(_) => step /= 2,
        }
    }
    // More blocks than fit in the worker's memory, and in what it could allocate.
    let asked: Vec<u32> = (0..COUNT).cycle().take(20_000).collect();
    assert_eq!(worker.scan(&blocks, &asked).unwrap(), []);
    blocks
        .poke(3 * blocks.block_bytes() + 5, b"changed", &stream)
        .unwrap();
    let mut found = worker.scan(&blocks, &asked).unwrap();
    found.dedup();
    assert_eq!(found, [3]);
    let all: Vec<u32> = (0..COUNT).collect();
    assert_eq!(worker.refresh(&blocks, &all).unwrap(), []);
    assert_eq!(worker.scan(&blocks, &asked).unwrap(), []);
}

#[test]
fn filesystem_on_a_full_device_reports_free_memory_and_keeps_working() {
    assert!(
        Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root(),
        "this test mounts, for which it needs /dev/fuse and root\ntry: modprobe fuse, or as root"
    );
    let context = device(1);
    let shape = |size: usize| StoreGeometry {
        size_bytes: size as u64,
        has_code: false,
        verify: Verify::Scrub,
        threads: 2,
    };
    let store = mount::store(&context, &shape(32 * MIB), &Kernels::load).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions {
        inodes: 100,
        user: 0,
        group: 0,
        mode: 0o755,
        allow_other: false,
        cache: PageCache::None,
        threads: 2,
        scrub: Scrub::Off,
        forbidden: MountRestrictions::default(),
        facts: String::new(),
    };
    let mount = Mount::new(store, dir.path(), &options).unwrap();
    let at = mount.at().to_owned();
    let sh = |line: &str| {
        let mut shell = std::process::Command::new("sh");
        let done = shell.arg("-c").arg(line).env("AT", &at).output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
    };
    sh("echo kept > $AT/file");
    let control = Control::open(&at).unwrap();
    let grow = |size: usize| control.resize((size / DATA_BYTES) as u64, |_| {});
    let refused = |size: usize| grow(size).unwrap_err().to_string();
    let other = take_all_but(64 * MIB, &context);
    let message = refused(512 * MIB);
    let expected = format!(
        "4096 blocks take {} more bytes of device memory, and {} bytes are free\ntry: a smaller size",
        480 * MIB,
        64 * MIB
    );
    assert!(message.contains(&expected), "{message}");
    // Another filesystem does not fit either.
    match mount::store(&context, &shape(100 * MIB), &Kernels::load) {
        Err(Error::Room {
            needed_bytes,
            free_bytes,
            total_bytes,
            ..
        }) => {
            let all = [needed_bytes, free_bytes, total_bytes].map(|it| it as usize);
            assert_eq!(all, [100 * MIB, 64 * MIB, ALL]);
        }
        other => panic!("{other:?}"),
    }
    // The driver allocates in units of 2 MiB, so two and a half MiB take four.
    let more = take_all_but(2 * MIB, &context);
    let message = refused(34 * MIB + 4 * DATA_BYTES);
    let expected = format!("take {} more bytes of device memory", 4 * MIB);
    let free_now = format!("and {} bytes are free", 2 * MIB);
    assert!(
        message.contains(&expected) && message.contains(&free_now),
        "{message}"
    );
    let size = || {
        let all = figures(&at).unwrap();
        let of = |line: &str| line.strip_prefix("size_bytes ").map(str::to_owned);
        all.lines().find_map(of).unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(size(), 32 * MIB);
    sh("grep kept $AT/file && head -c 31m /dev/zero > $AT/large && ! cp $AT/large $AT/more");
    drop((more, other));
    grow(512 * MIB).unwrap();
    assert_eq!(size(), 512 * MIB);
    sh("cp $AT/large $AT/more && cmp $AT/large $AT/more && grep kept $AT/file");
}
