//! Stripes and mirrors of two devices, with the code's kernels: two software devices, or the one
//! GPU of a machine used twice. Seeds are printed; `FERCUDA_SEED` repeats one.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fastrand::Rng;
use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_softgpu::control::{self, Config};
use fercuda_vramfs::array::{Array, ArrayLayout};
use fercuda_vramfs::file::File;
use fercuda_vramfs::layout::{
    BLOCK_BYTES, DATA_BYTES, DATA_ROWS, IDENTITY_OFFSET, RECORD_OFFSET, ROW_BYTES,
};
use fercuda_vramfs::medium::{BlockAccess as _, DeviceMedium, Medium as _, Verify};
use fercuda_vramfs::store::Store;
use fercuda_vramfs::{BlockWork, Blocks, Kernels, RowLocation};

const BLOCKS: u32 = 8;
const SLOTS: usize = 4;

/// Findings and lost devices are global to the process, so tests run one after the other.
static ONE: Mutex<()> = Mutex::new(());

struct Bench {
    blocks: Vec<Arc<Blocks>>,
    streams: Vec<Stream>,
    store: Store<Array<DeviceMedium>>,
    random: Rng,
    _one: MutexGuard<'static, ()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let found = control::take_findings();
        assert!(found.is_empty() || std::thread::panicking(), "{found:#?}");
    }
}

impl Bench {
    /// An array on these two software devices. A device that a test loses is lost for all later
    /// tests.
    fn new(numbers: [u32; 2], spread: ArrayLayout, has_code: bool) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        static CUDA: OnceLock<Cuda> = OnceLock::new();
        let cuda = CUDA.get_or_init(|| {
            let mut config = Config::from_env();
            config.devices = 5;
            assert!(control::configure(config));
            Cuda::from_env().unwrap()
        });
        let seed = fercuda_trials::seed();
        let contexts = numbers.map(|number| {
            let device = cuda.device(number).or_else(|_| cuda.device(0));
            Context::primary(device.unwrap()).unwrap()
        });
        let mut all = Vec::new();
        let (mut blocks, mut streams) = (Vec::new(), Vec::new());
        for (at, context) in contexts.iter().enumerate() {
            let share = spread.share(BLOCKS as usize, 2, at);
            let own = Arc::new(Blocks::new(context, share, share, has_code).unwrap());
            let kernels = has_code.then(|| Kernels::load(context).unwrap());
            let device = DeviceMedium::new(own.clone(), kernels, None, Verify::Read, SLOTS);
            all.push((at as u32, device));
            blocks.push(own);
            streams.push(Stream::new(context).unwrap());
        }
        Self {
            blocks,
            streams,
            store: Store::new(Array::new(all, spread, BLOCKS as usize), BLOCKS, BLOCKS, 2),
            random: Rng::with_seed(seed),
            _one: one,
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.random.u8(..))
            .take(len)
            .collect()
    }

    fn read(&self, file: &File) -> Result<Vec<u8>, rustix::io::Errno> {
        let mut all = Vec::new();
        while (all.len() as u64) < file.size() {
            let (at, left) = (all.len() as u64, file.size() as usize - all.len());
            all.extend(self.store.read_file(file, at, left, <[u8]>::to_vec)?);
        }
        Ok(all)
    }

    /// Overwrites half of a block on one device with random bytes.
    fn corrupt(&mut self, device: usize, block: usize) {
        let much = self.bytes(BLOCK_BYTES / 2);
        let at = block * BLOCK_BYTES;
        self.blocks[device]
            .poke(at, &much, &self.streams[device])
            .unwrap();
    }

    /// All memory of a device.
    fn peek(&self, device: usize) -> Vec<u8> {
        let mut all = vec![0; self.blocks[device].len() * self.blocks[device].block_bytes()];
        self.blocks[device]
            .peek(0, &mut all, &self.streams[device])
            .unwrap();
        all
    }

    /// Writes the tenth row of a file, and checks that every read returns its bytes, that both
    /// devices have the same memory, and that both are in use.
    fn write_tenth_row_and_check_mirrors(&mut self, file: &File, bytes: &mut [u8]) {
        let change = self.bytes(ROW_BYTES);
        let at = 10 * ROW_BYTES;
        let done = self.store.write_file(file, 1, at as u64, &change);
        assert_eq!(done, Ok(ROW_BYTES));
        bytes[at..at + ROW_BYTES].copy_from_slice(&change);
        for _ in 0..2 {
            assert!(self.read(file).unwrap() == *bytes);
        }
        assert!(self.peek(0) == self.peek(1));
        let states = self.store.medium().figures();
        assert!(states.starts_with("array_state whole\n"), "{states}");
    }

    fn figure(&self, name: &str) -> u64 {
        let figures = self.store.medium().figures();
        let of_name = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        figures.lines().find_map(of_name).unwrap()
    }
}

/// An array of two devices with the code, and a file of `len` bytes on it, with inode 1.
fn with_a_file(spread: ArrayLayout, len: usize) -> (Bench, File, Vec<u8>) {
    let mut bench = Bench::new([0, 1], spread, true);
    let (bytes, file) = (bench.bytes(len), File::default());
    let done = bench.store.write_file(&file, 1, 0, &bytes);
    assert_eq!(done, Ok(len));
    (bench, file, bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn stripe_alternates_chunks_and_each_record_has_the_local_index() {
    let mut bench = Bench::new([0, 1], ArrayLayout::Stripe, true);
    let mut bytes = bench.bytes(6 * DATA_BYTES);
    let (file, other) = (File::default(), File::default());
    let done = bench.store.write_file(&file, 1, 0, &bytes);
    assert_eq!(done, Ok(bytes.len()));
    // Rows are copied between any two blocks.
    for (from, to, rows) in [(0, 1, 100), (2, 5, 128), (3, 1, 20)] {
        let (from, to) = (from * DATA_BYTES, to * DATA_BYTES);
        let len = rows * ROW_BYTES;
        let done = bench
            .store
            .copy((&file, from as u64), (&file, 1, to as u64), len as u64);
        assert_eq!(done, Ok(len as u64));
        bytes.copy_within(from..from + len, to);
    }
    let change = bench.bytes(3 * ROW_BYTES);
    let at = DATA_BYTES - ROW_BYTES;
    assert_eq!(
        bench.store.write_file(&file, 1, at as u64, &change),
        Ok(change.len())
    );
    bytes[at..at + change.len()].copy_from_slice(&change);
    assert!(bench.read(&file).unwrap() == bytes);
    let found = bench
        .store
        .scrub(0, std::time::Duration::MAX, u32::MAX)
        .unwrap();
    assert_eq!((found.verified, found.corrected, found.lost), (6, 0, 0));
    for device in 0..2 {
        let all = bench.peek(device);
        let records = all.chunks(BLOCK_BYTES).map(|block| {
            let identity = &block[RECORD_OFFSET + IDENTITY_OFFSET..];
            (word(identity, 0), word(identity, 8))
        });
        let written: Vec<(u64, u64)> = records.filter(|it| it.1 != 0).collect();
        let expected = (0..3).map(|place| (place, 1 | (device as u64) << 56));
        assert_eq!(written, expected.collect::<Vec<_>>());
    }
    // A block with the content of another device's block is lost.
    let wrong = bench.peek(0)[..BLOCK_BYTES].to_vec();
    bench.blocks[1].poke(0, &wrong, &bench.streams[1]).unwrap();
    assert_eq!(bench.read(&file), Err(rustix::io::Errno::IO));
    assert_eq!(
        (
            bench.figure("device_0_lost_blocks"),
            bench.figure("device_1_lost_blocks")
        ),
        (0, 1)
    );
    // An error that can be corrected is corrected, and counted for its device.
    assert_eq!(
        bench.store.write_file(&other, 2, 0, &bytes[..DATA_BYTES]),
        Ok(DATA_BYTES)
    );
    for device in 0..2 {
        let few = bench.bytes(3 << 10);
        for block in 0..4 {
            let at = block * BLOCK_BYTES + 5000;
            bench.blocks[device]
                .poke(at, &few, &bench.streams[device])
                .unwrap();
        }
    }
    assert!(bench.read(&other).unwrap() == bytes[..DATA_BYTES]);
    let corrected = [0, 1].map(|at| bench.figure(&format!("device_{at}_corrected_blocks")));
    assert_eq!(corrected, [1, 0]);
}

#[test]
fn mirrors_with_one_error_each_in_a_block_are_both_corrected_and_stay_in_use() {
    let (mut bench, file, mut bytes) = with_a_file(ArrayLayout::Mirror, DATA_BYTES);
    // The device that is written to finds its own error; the other's is in a row that is not read.
    for (device, row) in [(0, 5), (1, 10)] {
        let wrong = bytes[row * ROW_BYTES] ^ 4;
        bench.blocks[device]
            .poke(row * ROW_BYTES, &[wrong], &bench.streams[device])
            .unwrap();
    }
    bench.write_tenth_row_and_check_mirrors(&file, &mut bytes);
    assert_eq!(bench.figure("device_0_corrected_blocks"), 1);
    assert_eq!(bench.figure("device_1_remade_blocks"), 1);
}

#[test]
fn block_readable_on_one_mirror_only_survives_a_write_on_the_other() {
    let (mut bench, file, mut bytes) = with_a_file(ArrayLayout::Mirror, DATA_BYTES);
    // The first has more errors than can be corrected, in rows that are not accessed; the second
    // has one bit error in the row that is written.
    let much = bench.bytes(12 * ROW_BYTES);
    for (device, at, wrong) in [(0, 40, much), (1, 10, vec![bytes[10 * ROW_BYTES] ^ 1])] {
        bench.blocks[device]
            .poke(at * ROW_BYTES, &wrong, &bench.streams[device])
            .unwrap();
    }
    bench.write_tenth_row_and_check_mirrors(&file, &mut bytes);
    assert_eq!(bench.store.medium().failed_devices(), 0);
}

#[test]
fn block_readable_on_one_mirror_only_survives_another_files_new_page() {
    let (mut bench, file, bytes) = with_a_file(ArrayLayout::Mirror, 20 * ROW_BYTES);
    // As above, but the page that is written was free before, so the block gets an identity with
    // other owners.
    let much = bench.bytes(12 * ROW_BYTES);
    let parity = DATA_ROWS * ROW_BYTES;
    let wrong = bench.peek(1)[parity] ^ 1;
    for (device, at, wrong) in [(0, 4 * ROW_BYTES, much), (1, parity, vec![wrong])] {
        bench.blocks[device]
            .poke(at, &wrong, &bench.streams[device])
            .unwrap();
    }
    let (other, page) = (File::default(), bench.bytes(4 * ROW_BYTES));
    let done = bench.store.write_file(&other, 2, 0, &page);
    assert_eq!(done, Ok(page.len()));
    for _ in 0..2 {
        assert!(bench.read(&file).unwrap() == bytes);
        assert!(bench.read(&other).unwrap() == page);
    }
    let used = (0..BLOCKS).filter(|block| bench.store.space().used_of(*block) != 0);
    assert_eq!(used.count(), 1);
    assert!(bench.peek(0) == bench.peek(1));
    assert_eq!(bench.store.medium().failed_devices(), 0);
}

#[test]
fn block_uncorrectable_on_one_mirror_is_copied_from_the_other() {
    let (mut bench, file, mut bytes) = with_a_file(ArrayLayout::Mirror, 3 * DATA_BYTES + 700);
    assert!(bench.peek(0) == bench.peek(1));
    let used = bench.store.medium().figures();
    for device in 0..2 {
        // Found by a read, with either device first; by a write; and by scrubbing.
        bench.corrupt(device, 0);
        for _ in 0..2 {
            assert!(bench.read(&file).unwrap() == bytes, "{used}");
        }
        bench.corrupt(device, 1);
        let at = DATA_BYTES as u64 * 2 - 5000;
        let change = bench.bytes(9000);
        assert_eq!(
            bench.store.write_file(&file, 1, at, &change),
            Ok(change.len())
        );
        bytes[at as usize..at as usize + change.len()].copy_from_slice(&change);
        bench.corrupt(device, 2);
        let found = bench
            .store
            .scrub(0, std::time::Duration::MAX, u32::MAX)
            .unwrap();
        assert_eq!((found.verified, found.lost), (4, 0));
        assert!(bench.peek(0) == bench.peek(1));
        assert_eq!(bench.figure(&format!("device_{device}_remade_blocks")), 3);
        assert!(bench.read(&file).unwrap() == bytes);
    }
    assert_eq!(bench.store.medium().failed_devices(), 0);
    bench.corrupt(0, 1);
    bench.corrupt(1, 1);
    assert_eq!(bench.read(&file), Err(rustix::io::Errno::IO));
    assert_eq!(
        (
            bench.figure("device_0_lost_blocks"),
            bench.figure("device_1_lost_blocks")
        ),
        (1, 1)
    );
}

#[test]
fn data_changed_in_place_gets_its_parity_refreshed_on_its_device() {
    for spread in [ArrayLayout::Stripe, ArrayLayout::Mirror] {
        let (mut bench, file, mut bytes) = with_a_file(spread, 2 * DATA_BYTES);
        // The file has the first two blocks, in its order; the changes to a mirror are both on the
        // first device.
        let change = bench.bytes(5000);
        for (chunk, block) in [0, 1].into_iter().enumerate() {
            let (device, there) = match spread {
                ArrayLayout::Stripe => (block % 2, block / 2),
                ArrayLayout::Mirror => (0, block),
            };
            let (at, stream) = (there * BLOCK_BYTES + 3000, &bench.streams[device]);
            bench.blocks[device].poke(at, &change, stream).unwrap();
            let at = chunk * DATA_BYTES + 3000;
            bytes[at..at + change.len()].copy_from_slice(&change);
        }
        let work = [0, 1].map(|block| BlockWork {
            block,
            rows: 0..0,
            place: RowLocation::Nowhere,
            identity: None,
        });
        let mut access = bench.store.medium().access().unwrap();
        access.refresh(&work).unwrap();
        for _ in 0..2 {
            assert!(bench.read(&file).unwrap() == bytes, "{spread:?}");
        }
        let found = bench.store.scrub(0, std::time::Duration::MAX, u32::MAX);
        assert_eq!(found.unwrap().corrected, 0);
        assert!(spread == ArrayLayout::Stripe || bench.peek(0) == bench.peek(1));
    }
}

/// Whether devices can be lost on request.
fn is_software() -> bool {
    Cuda::from_env().unwrap().is_software()
}

#[test]
fn mirror_that_loses_a_device_keeps_all_data() {
    // The device that has the staging buffer, and the one that has not.
    for (numbers, lost, has_code) in [([0, 2], 1, false), ([3, 1], 0, true)] {
        let mut bench = Bench::new(numbers, ArrayLayout::Mirror, has_code);
        if !is_software() {
            return;
        }
        let files: Vec<File> = (0..4).map(|_| File::default()).collect();
        let mut all: Vec<Vec<u8>> = Vec::new();
        for (at, file) in files.iter().enumerate() {
            if at == 2 {
                assert!(control::lose(numbers[lost]));
            }
            let bytes = bench.bytes(DATA_BYTES + 3000);
            let done = bench.store.write_file(file, at as u32 + 1, 0, &bytes);
            assert_eq!(done, Ok(bytes.len()));
            all.push(bytes);
        }
        for (file, bytes) in files.iter().zip(&all) {
            assert!(bench.read(file).unwrap() == *bytes);
        }
        let found = bench
            .store
            .scrub(0, std::time::Duration::MAX, u32::MAX)
            .unwrap();
        assert_eq!((found.corrected, found.lost), (0, 0));
        let figures = bench.store.medium().figures();
        assert!(figures.contains("array_state degraded\n"), "{figures}");
        assert!(
            figures.contains(&format!("device_{lost}_state failed\n")),
            "{figures}"
        );
    }
}

#[test]
fn stripe_that_loses_a_device_keeps_the_other_devices_files_and_room() {
    let mut bench = Bench::new([1, 4], ArrayLayout::Stripe, true);
    if !is_software() {
        return;
    }
    let files: Vec<File> = (0..4).map(|_| File::default()).collect();
    let bytes = bench.bytes(DATA_BYTES);
    for file in &files {
        assert_eq!(bench.store.write_file(file, 1, 0, &bytes), Ok(bytes.len()));
    }
    assert!(control::lose(4));
    let mut read: Vec<bool> = files
        .iter()
        .map(|file| bench.read(file) == Ok(bytes.clone()))
        .collect();
    read.sort_unstable();
    assert_eq!(read, [false, false, true, true]);
    let more = [File::default(), File::default()];
    for file in &more {
        assert_eq!(bench.store.write_file(file, 2, 0, &bytes), Ok(bytes.len()));
        assert!(bench.read(file).unwrap() == bytes);
    }
    let full = bench.store.write_file(&File::default(), 3, 0, &bytes);
    assert_eq!(full, Err(rustix::io::Errno::NOSPC));
}
