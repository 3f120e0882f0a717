//! `fercuda vram test`: tests device memory as a filesystem uses it, without mounting one.
//!
//! Invariant: exit status 0 means that every byte was read back as written, and with the code that
//! every injected error was found and corrected, and nothing else was reported.
//! Elsewhere: operations on blocks (`fercuda-vramfs`).

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_governor::MemorySize;
use fercuda_vramfs::layout::{DATA_BYTES, DATA_ROWS, ROW_BYTES};
use fercuda_vramfs::{BlockOutcome, BlockWork, Blocks, Copier, Identity, RowLocation, Worker};
use serde::Serialize;

use super::daemon::compile_kernels;
use crate::out::{say, step};
use crate::run::DeviceKind;
use crate::status::ExitStatus;
use crate::terminal::{bytes, count};

/// Blocks in one call: 8 MiB of data.
const BATCH: usize = 64;
/// Of so many blocks one gets errors.
const DAMAGE_INTERVAL: usize = 8;
/// Wrong symbols of one word that the code corrects.
const SYMBOLS: usize = 4;

/// Test device memory without mounting a filesystem: write, damage, correct, compare.
#[derive(clap::Args)]
#[command(after_help = "\
Allocates memory for --size of data, writes random data to all of it and reads
it back. With --ecc it is encoded on the device; then four symbols of a word are
changed in every eighth block, all blocks are scanned, and the errors corrected.
The memory is freed at the end.

Exit status: 0; 1 if data differ, or errors were missed or not corrected.

Examples:
  fercuda vram test --size 1G --ecc
  fercuda vram test --size 512M --ecc --device 1")]
pub(crate) struct TestArgs {
    /// Bytes of data, such as 1G; rounded up to a multiple of 128 KiB.
    #[arg(long, value_name = "BYTES")]
    size: MemorySize,
    /// With the error-correcting code, which takes 9 KiB more for each 128.
    #[arg(long)]
    ecc: bool,
    /// A device ordinal, or a kind of device: auto, gpu or soft [default: device 0
    /// of FERCUDA_DEVICE, or of auto].
    #[arg(long, value_name = "DEVICE")]
    device: Option<TestedDevice>,
    /// Print a JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What `--device` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestedDevice {
    Ordinal(u32),
    Kind(DeviceKind),
}

impl FromStr for TestedDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ordinal) = text.parse() {
            return Ok(Self::Ordinal(ordinal));
        }
        let kind = <DeviceKind as clap::ValueEnum>::from_str(text, false);
        let kind = kind.map_err(|_| "expected an ordinal such as 0, or auto, gpu or soft")?;
        Ok(Self::Kind(kind))
    }
}

/// The result of a test.
#[derive(Debug, Default, Serialize)]
struct TestReport {
    device: String,
    blocks: usize,
    data_bytes: u64,
    memory_bytes: u64,
    ecc: bool,
    /// Blocks that were changed behind the code.
    damaged: usize,
    /// Blocks whose errors were found.
    found: usize,
    /// Blocks whose errors were corrected.
    corrected: usize,
    /// Blocks that were reported, or whose data differ, without a reason.
    wrong: usize,
    write_seconds: f64,
    read_seconds: f64,
    scan_seconds: f64,
}

impl TestReport {
    fn is_good(&self) -> bool {
        self.wrong == 0 && self.found == self.damaged && self.corrected == self.damaged
    }
}

pub(super) fn test(args: &TestArgs) -> Result<ExitCode> {
    let (cuda, ordinal) = match args.device {
        Some(TestedDevice::Kind(kind)) => (Cuda::select(kind.into()), 0),
        Some(TestedDevice::Ordinal(ordinal)) => (Cuda::from_env(), ordinal),
        None => (Cuda::from_env(), 0),
    };
    let what = "cannot test device memory";
    let device = cuda.and_then(|cuda| cuda.device(ordinal)).context(what)?;
    step!("device {device}");
    let context = Context::primary(device).context(what)?;
    let blocks = usize::try_from(args.size.get().div_ceil(DATA_BYTES as u64));
    let blocks = blocks.context("the size has more blocks than this machine has addresses")?;
    let report = run(&context, blocks, args.ecc).context(what)?;
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&report)?),
        false => show(&report),
    }
    Ok(ExitStatus::of_findings(!report.is_good()).into())
}

fn run(context: &Context, count: usize, has_code: bool) -> Result<TestReport> {
    let blocks = Blocks::new(context, count, count, has_code)?;
    let mut report = TestReport {
        device: context.device().to_string(),
        blocks: count,
        data_bytes: (count * DATA_BYTES) as u64,
        memory_bytes: blocks.bytes() as u64,
        ecc: has_code,
        ..TestReport::default()
    };
    let stream = Stream::new(context)?;
    let seed = fastrand::u64(..);
    let slots = BATCH.min(count);
    match has_code {
        true => {
            let kernels = compile_kernels(context)?;
            let worker = Worker::new(&kernels, slots, stream)?;
            CodedMemory {
                worker,
                blocks,
                seed,
            }
            .test(&mut report)?;
        }
        false => {
            let copier = Copier::new(slots, stream, None)?;
            test_plain(copier, &blocks, seed, &mut report)?;
        }
    }
    Ok(report)
}

/// The data of a block, which is made again for a comparison.
fn fill(data: &mut [u8], seed: u64, first: usize) {
    for (block, part) in (first..).zip(data.chunks_mut(DATA_BYTES)) {
        fastrand::Rng::with_seed(seed.wrapping_add(block as u64)).fill(part);
    }
}

/// Blocks whose data in `data` differ from what was written.
fn differing(data: &[u8], seed: u64, first: usize) -> usize {
    let mut expected = vec![0; DATA_BYTES];
    let parts = (first..).zip(data.chunks(DATA_BYTES));
    parts
        .filter(|(block, part)| {
            fill(&mut expected, seed, *block);
            expected != *part
        })
        .count()
}

/// Whole blocks from `first` on, at the beginning of the staging memory.
fn whole(first: usize, identities: &[Identity]) -> Vec<BlockWork<'_>> {
    let of = |(slot, identity)| BlockWork {
        block: first + slot,
        rows: 0..DATA_ROWS,
        place: RowLocation::Staging(slot * DATA_BYTES),
        identity: Some(identity),
    };
    identities.iter().enumerate().map(of).collect()
}

fn identities(first: usize, count: usize) -> Vec<Identity> {
    let of = |block: usize| std::array::from_fn(|at| (block * (at + 1)) as u64);
    (first..first + count).map(of).collect()
}

/// The first block and the length of each batch.
fn batches(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let firsts = (0..count).step_by(BATCH);
    firsts.map(move |first| (first, BATCH.min(count - first)))
}

fn test_plain(
    mut copier: Copier,
    blocks: &Blocks,
    seed: u64,
    report: &mut TestReport,
) -> Result<()> {
    for (first, len) in batches(report.blocks) {
        fill(&mut copier.data_mut()[..len * DATA_BYTES], seed, first);
        let began = Instant::now();
        copier.put(blocks, &whole(first, &identities(first, len)))?;
        report.write_seconds += began.elapsed().as_secs_f64();
    }
    for (first, len) in batches(report.blocks) {
        copier.data_mut().fill(0);
        let began = Instant::now();
        copier.fetch(blocks, &whole(first, &identities(first, len)))?;
        report.read_seconds += began.elapsed().as_secs_f64();
        report.wrong += differing(&copier.data()[..len * DATA_BYTES], seed, first);
    }
    Ok(())
}

/// Memory with the code.
struct CodedMemory {
    worker: Worker,
    blocks: Blocks,
    seed: u64,
}

impl CodedMemory {
    fn test(&mut self, report: &mut TestReport) -> Result<()> {
        let unclean = |all: &[BlockOutcome]| all.iter().filter(|it| !it.is_clean()).count();
        for (first, len) in batches(report.blocks) {
            fill(
                &mut self.worker.data_mut()[..len * DATA_BYTES],
                self.seed,
                first,
            );
            let identities = identities(first, len);
            let began = Instant::now();
            let outcomes = self
                .worker
                .encode(&self.blocks, &whole(first, &identities))?;
            report.wrong += unclean(outcomes);
            report.write_seconds += began.elapsed().as_secs_f64();
        }
        let damaged: Vec<usize> = (0..report.blocks).step_by(DAMAGE_INTERVAL).collect();
        for block in &damaged {
            self.damage(*block)?;
        }
        report.damaged = damaged.len();
        self.find_and_correct(report, &damaged)?;
        for (first, len) in batches(report.blocks) {
            self.worker.data_mut().fill(0);
            let identities = identities(first, len);
            let began = Instant::now();
            let outcomes = self
                .worker
                .verify(&self.blocks, &whole(first, &identities))?;
            report.wrong += unclean(outcomes);
            report.read_seconds += began.elapsed().as_secs_f64();
            let data = &self.worker.data()[..len * DATA_BYTES];
            report.wrong += differing(data, self.seed, first);
        }
        Ok(())
    }

    /// Changes symbols of one word, each of which is a byte of another row.
    fn damage(&self, block: usize) -> Result<()> {
        let column = fastrand::usize(..ROW_BYTES);
        let first = fastrand::usize(..DATA_ROWS - SYMBOLS);
        let stream = Stream::new(self.blocks.context())?;
        for row in first..first + SYMBOLS {
            let at = block * self.blocks.block_bytes() + row * ROW_BYTES + column;
            let mut symbol = [0];
            self.blocks.peek(at, &mut symbol, &stream)?;
            symbol[0] ^= fastrand::u8(1..);
            self.blocks.poke(at, &symbol, &stream)?;
        }
        Ok(())
    }

    fn find_and_correct(&mut self, report: &mut TestReport, damaged: &[usize]) -> Result<()> {
        for (first, len) in batches(report.blocks) {
            let numbers: Result<Vec<u32>, _> = (first..first + len).map(u32::try_from).collect();
            let began = Instant::now();
            let found = self.worker.scan(&self.blocks, &numbers?)?;
            report.scan_seconds += began.elapsed().as_secs_f64();
            for block in found {
                match damaged.binary_search(&(block as usize)) {
                    Ok(_) => report.found += 1,
                    Err(_) => report.wrong += 1,
                }
            }
        }
        for part in damaged.chunks(self.worker.slots()) {
            let identities: Vec<Identity> = part
                .iter()
                .flat_map(|block| identities(*block, 1))
                .collect();
            let of = |(block, identity)| BlockWork {
                block,
                rows: 0..0,
                place: RowLocation::Nowhere,
                identity: Some(identity),
            };
            let work: Vec<BlockWork<'_>> = part.iter().copied().zip(&identities).map(of).collect();
            let outcomes = self.worker.correct(&self.blocks, &work)?;
            let right = |it: &&BlockOutcome| it.is_corrected() && !it.is_lost();
            report.corrected += outcomes.iter().filter(right).count();
        }
        Ok(())
    }
}

fn show(report: &TestReport) {
    let rate = |seconds: f64| {
        let per_second = report.data_bytes as f64 / seconds.max(1e-9);
        format!("{}/s", bytes(per_second as u64))
    };
    say!("device   {}", report.device);
    say!(
        "memory   {} of data in {}, {} of device memory",
        bytes(report.data_bytes),
        count(report.blocks, "block"),
        bytes(report.memory_bytes)
    );
    say!(
        "written  {}; read {}",
        rate(report.write_seconds),
        rate(report.read_seconds)
    );
    if report.ecc {
        say!(
            "code     scanned {}; {} damaged, {} found, {} corrected",
            rate(report.scan_seconds),
            count(report.damaged, "block"),
            report.found,
            report.corrected
        );
    }
    match report.is_good() {
        true => say!("ok       all data are as written"),
        false => say!("FAILED   {} wrong", count(report.wrong, "block")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_an_ordinal_or_a_kind() {
        assert_eq!("1".parse(), Ok(TestedDevice::Ordinal(1)));
        assert_eq!("soft".parse(), Ok(TestedDevice::Kind(DeviceKind::Soft)));
        assert!("moon".parse::<TestedDevice>().is_err());
        assert!("-1".parse::<TestedDevice>().is_err());
    }

    #[test]
    fn batches_are_every_block_once() {
        for count in [1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH] {
            let all: Vec<usize> = batches(count).flat_map(|(at, len)| at..at + len).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_changed_byte_is_a_block_that_differs() {
        let mut data = vec![0; 3 * DATA_BYTES];
        fill(&mut data, 7, 10);
        assert_eq!(differing(&data, 7, 10), 0);
        data[DATA_BYTES + 5] ^= 1;
        assert_eq!(differing(&data, 7, 10), 1);
        assert_eq!(differing(&data, 8, 10), 3);
    }

    #[test]
    fn missed_errors_are_no_success() {
        let good = TestReport {
            damaged: 2,
            found: 2,
            corrected: 2,
            ..TestReport::default()
        };
        assert!(good.is_good());
        for wrong in [
            TestReport {
                found: 1,
                ..TestReport {
                    damaged: 2,
                    found: 2,
                    corrected: 2,
                    ..TestReport::default()
                }
            },
            TestReport {
                damaged: 2,
                found: 2,
                corrected: 1,
                ..TestReport::default()
            },
            TestReport {
                wrong: 1,
                ..TestReport::default()
            },
        ] {
            assert!(!wrong.is_good(), "{wrong:?}");
        }
    }
}
