//! Error patterns by the million against the code: all single and double symbols, random ones of up
//! to nine, rows, and bursts at every position. No pattern may be miscorrected, and every
//! correctable one is corrected.
//!
//! Of each class a few blocks are damaged, each in a pattern of its own; with `FERCUDA_BUDGET=soak`
//! a million of each class and the complete lists, which is for a GPU: `FERCUDA_BUDGET=soak
//! FERCUDA_DEVICE=gpu cargo test --release -p fercuda-vramfs --test patterns -- --nocapture`.
//! Prints a table of the results. Blocks are damaged and compared on the device (damage.cu), and
//! the corrections are compared with those of an independent decoder (oracle.py). Elsewhere: what
//! the kernels do with a block without errors (`codes`).
#![expect(
    unsafe_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test reports by panicking, its figures are for people, and its own kernels have to be launched"
)]

mod oracle;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fastrand::Rng;
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream};
use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc};
use fercuda_trials as trials;
use fercuda_vramfs::layout::{BLOCK_BYTES, CODED_ROWS, DATA_ROWS, RECORD_OFFSET, ROW_BYTES, WORDS};
use fercuda_vramfs::{BlockOutcome, BlockWork, Blocks, Identity, Kernels, RowLocation, Worker};

/// Patterns of each class. The minimum takes a minute of the software device with its checks.
const PATTERNS: trials::Work = trials::Work {
    name: "vramfs-patterns",
    least: 16,
    ci_seconds: 0,
    soak: 1_000_000,
};
/// Pairs of a row and a nonzero difference: all single-symbol errors of a word.
const SINGLES: u64 = (CODED_ROWS * 255) as u64;
const DOUBLES: u64 = (CODED_ROWS * (CODED_ROWS - 1) / 2 * 255 * 255) as u64;
/// The longest stray write that is guaranteed to be corrected.
const BURST: u32 = 3 * ROW_BYTES as u32;
/// Words with an error beside the one under test, in so many rows that these cannot all be
/// erasures.
const ASIDE: u32 = 9;
const THREADS: u32 = 256;

/// Findings of the software device are global to the process, so tests run one after the other.
static ONE: Mutex<()> = Mutex::new(());

/// Kinds of damage to a block. The kernel has the same (damage.cu).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    /// One word with `symbols` errors, and `aside` words with one each.
    One {
        symbols: u32,
        aside: u32,
    },
    /// The same, in the direction of another code word, which is nine symbols away.
    Near {
        symbols: u32,
        aside: u32,
    },
    Every {
        symbols: u32,
    },
    Single,
    Double,
    /// Whole rows, and `unseen` more with checksums that stay valid.
    Rows {
        wrong: u32,
        unseen: u32,
    },
    /// In two adjacent blocks: `BURST` random bytes, or up to as many of one value.
    Burst {
        is_fill: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    Corrected,
    Lost,
    /// Lost, except for the one pattern in 2.7 million that is within three symbols of another code
    /// word.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Class {
    damage: Damage,
    loses_record: bool,
    promise: Promise,
}

impl Class {
    fn new(damage: Damage, loses_record: bool, promise: Promise) -> Self {
        Self {
            damage,
            loses_record,
            promise,
        }
    }

    /// `symbols` errors in one word, in rows that are not known to the decoder.
    fn errors(symbols: u32) -> Self {
        let damage = Damage::One {
            symbols,
            aside: ASIDE,
        };
        Self::new(damage, false, promised(symbols <= 4))
    }

    /// The same, nearer to another code word than to the original, and as near as the decoder
    /// searches: only the checksums keep that word from being returned.
    fn near(symbols: u32) -> Self {
        let damage = Damage::Near {
            symbols,
            aside: ASIDE,
        };
        Self::new(damage, false, Promise::Lost)
    }

    /// The same, in rows that their checksums identify.
    fn erasures(symbols: u32) -> Self {
        let damage = Damage::One { symbols, aside: 0 };
        Self::new(damage, false, promised(symbols <= 8))
    }

    /// The same with all checksums lost. Six errors may be three away from another code word.
    fn without_record(symbols: u32) -> Self {
        let damage = Damage::One { symbols, aside: 0 };
        let promise = match symbols {
            ..=3 => Promise::Corrected,
            4 | 5 => Promise::Lost,
            _ => Promise::Nothing,
        };
        Self::new(damage, true, promise)
    }

    fn name(&self) -> String {
        let what = match self.damage {
            Damage::One { symbols, aside: 0 } if !self.loses_record => {
                format!("{symbols} erasures")
            }
            Damage::One { symbols, .. } => format!("{symbols} errors"),
            Damage::Near { symbols, .. } => {
                format!("{symbols} errors, {} from another word", 9 - symbols)
            }
            Damage::Every { symbols } => format!("{symbols} errors in every word"),
            Damage::Single => "single symbols".to_owned(),
            Damage::Double => "double symbols".to_owned(),
            Damage::Rows { wrong, unseen: 0 } => format!("{wrong} rows"),
            Damage::Rows { wrong, unseen } => {
                format!("{wrong} rows, {unseen} with valid checksums")
            }
            Damage::Burst { is_fill: false } => format!("bursts of {BURST} bytes"),
            Damage::Burst { is_fill: true } => format!("bursts of up to {BURST}, one value"),
        };
        match self.loses_record {
            true => format!("{what}, no record"),
            false => what,
        }
    }

    /// Number of patterns in `blocks` blocks from the number `first` on.
    fn patterns(&self, first: u64, blocks: u64) -> u64 {
        let words = blocks * WORDS as u64;
        match self.damage {
            Damage::One { .. } | Damage::Near { .. } | Damage::Rows { .. } => blocks,
            Damage::Every { .. } | Damage::Single => words,
            Damage::Double => words.min(DOUBLES.saturating_sub(first * WORDS as u64)),
            Damage::Burst { .. } => blocks / 2,
        }
    }

    /// Number of symbol errors in them, if it is fixed.
    fn symbols(&self, patterns: u64) -> Option<u64> {
        match self.damage {
            Damage::One { symbols, aside } | Damage::Near { symbols, aside } => {
                Some(patterns * u64::from(symbols + aside))
            }
            Damage::Every { symbols } => Some(patterns * u64::from(symbols)),
            Damage::Single => Some(patterns),
            Damage::Double => Some(2 * patterns),
            Damage::Rows { .. } | Damage::Burst { .. } => None,
        }
    }

    /// Parameters of the kernel: kind, count, others.
    fn numbers(&self) -> (u32, u32, u32) {
        match self.damage {
            Damage::One { symbols, aside } => (0, symbols, aside),
            Damage::Every { symbols } => (1, symbols, 0),
            Damage::Single => (2, 0, 0),
            Damage::Double => (3, 0, 0),
            Damage::Rows { wrong, unseen } => (4, wrong, unseen),
            Damage::Burst { is_fill } => (5, BURST, u32::from(is_fill)),
            Damage::Near { symbols, aside } => (6, symbols, aside),
        }
    }
}

fn promised(is_corrected: bool) -> Promise {
    match is_corrected {
        true => Promise::Corrected,
        false => Promise::Lost,
    }
}

/// How many patterns are tested.
#[derive(Clone, Copy)]
struct Budget {
    each: u64,
    is_all: bool,
}

impl Budget {
    fn from_env() -> Self {
        let each = trials::Budget::begin(PATTERNS).planned_steps();
        Self {
            each,
            is_all: each == PATTERNS.soak,
        }
    }

    /// Number of blocks for the classes with many patterns per block.
    fn full_blocks(&self) -> u64 {
        (self.each / 16).max(1)
    }

    /// A part of a list of `whole` blocks: all of it, or `blocks` consecutive ones from a random
    /// position.
    fn part(&self, whole: u64, blocks: u64, random: &mut Rng) -> (u64, u64) {
        match self.is_all {
            true => (0, whole),
            false => {
                let blocks = blocks.min(whole);
                // A burst takes two blocks, and starts in an even one.
                (random.u64(..=whole - blocks) / 2 * 2, blocks)
            }
        }
    }
}

/// Blocks that are damaged, corrected and compared with their original content.
struct Field {
    stream: Stream,
    worker: Worker,
    blocks: Blocks,
    right: DeviceBuffer<u8>,
    identities: Vec<Identity>,
    module: Module,
    only: DeviceBuffer<u32>,
    words: DeviceBuffer<u32>,
    random: Rng,
    seed: u64,
    _one: MutexGuard<'static, ()>,
}

impl Drop for Field {
    fn drop(&mut self) {
        let found = fercuda_softgpu::control::take_findings();
        assert!(found.is_empty() || std::thread::panicking(), "{found:#?}");
    }
}

impl Field {
    fn new(slots: u64) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = fercuda_trials::seed();
        let mut random = Rng::with_seed(seed);
        let slots = slots.clamp(2, 4096).next_multiple_of(2) as usize;
        let context = Context::primary(Cuda::from_env().unwrap().device(0).unwrap()).unwrap();
        let stream = Stream::new(&context).unwrap();
        let kernels = Kernels::load(&context).unwrap();
        let mut worker = Worker::new(&kernels, slots, Stream::new(&context).unwrap()).unwrap();
        let blocks = Blocks::new(&context, slots, slots, true).unwrap();
        let identities: Vec<Identity> = (0..slots)
            .map(|_| std::array::from_fn(|_| random.u64(..)))
            .collect();
        random.fill(worker.data_mut());
        let outcomes = worker
            .encode(&blocks, &works(&identities, DATA_ROWS))
            .unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean));
        let mut bytes = vec![0; slots * BLOCK_BYTES];
        blocks.peek(0, &mut bytes, &stream).unwrap();
        let numbers = [
            ("ROW_BYTES", ROW_BYTES),
            ("BLOCK_BYTES", BLOCK_BYTES),
            ("CODED_ROWS", CODED_ROWS),
            ("RECORD_OFFSET", RECORD_OFFSET),
            ("WORDS", WORDS),
        ];
        let constants: String = numbers
            .iter()
            .map(|(name, number)| format!("constexpr unsigned int {name} = {number};\n"))
            .collect();
        let text = constants + include_str!("damage.cu");
        let program = CudaSource::new("damage.cu", text, GpuArch::new(8, 0)).option("--std=c++17");
        let compiled = Nvrtc::find().unwrap().compile(&program).unwrap();
        Self {
            module: Module::load(&context, &Image::from(&compiled)).unwrap(),
            right: DeviceBuffer::from_host(&bytes, &stream).unwrap(),
            only: DeviceBuffer::zeroed(&stream, slots).unwrap(),
            words: DeviceBuffer::zeroed(&stream, slots).unwrap(),
            stream,
            worker,
            blocks,
            identities,
            random,
            seed,
            _one: one,
        }
    }

    fn slots(&self) -> u64 {
        self.identities.len() as u64
    }

    fn kernel(&self, name: &str) -> Function {
        self.module.function(name).unwrap()
    }

    /// Damages the blocks that `only` names, or undoes the damage.
    fn damage(&mut self, class: &Class, first: u64, only: &[u32]) {
        self.only
            .slice_mut(..only.len())
            .unwrap()
            .copy_from_host(only, &self.stream)
            .unwrap();
        let (kind, count, others) = class.numbers();
        let kernel = self.kernel("damage");
        let launch = Launch::new(only.len() as u32, THREADS);
        let seed =
            self.seed ^ u64::from(kind) << 56 ^ u64::from(count) << 48 ^ u64::from(others) << 40;
        let arguments = (
            self.blocks.address(0).unwrap(),
            &self.right,
            &self.only,
            &mut self.words,
            kind,
            count,
            others,
            u32::from(class.loses_record),
            seed,
            first,
        );
        // SAFETY: the kernel touches a block for each block of threads, of which there are no more
        // than blocks, and as much of the buffers; nothing else uses them until the stream is
        // synchronized below.
        unsafe { launch.run(&kernel, &self.stream, arguments) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    /// Corrects the first `count` blocks by their identities.
    fn correct(&mut self, count: usize) -> Vec<BlockOutcome> {
        let work = works(&self.identities[..count], 0);
        self.worker.correct(&self.blocks, &work).unwrap().to_vec()
    }

    /// The number of words in each block that differ from the original. Restores the original.
    fn compare_and_restore(&mut self, count: usize) -> Vec<u32> {
        let wrong = DeviceBuffer::<u32>::zeroed(&self.stream, count).unwrap();
        let (kernel, base) = (
            self.kernel("compare_and_restore"),
            self.blocks.address(0).unwrap(),
        );
        let launch = Launch::new(count as u32, THREADS);
        // SAFETY: as above; it writes a number for each block, and the blocks.
        unsafe { launch.run(&kernel, &self.stream, (base, &self.right, &wrong)) }.unwrap();
        wrong.to_vec(&self.stream).unwrap()
    }

    /// Damages and corrects blocks with the pattern numbers from `first` on, and checks the class's
    /// promise.
    fn run(&mut self, class: &Class, first: u64, blocks: u64) {
        let (begun, mut all) = (Instant::now(), Tally::default());
        let mut done = 0;
        while done < blocks {
            let count = (blocks - done).min(self.slots()) as usize;
            self.damage(class, first + done, &vec![1; count]);
            let outcomes = self.correct(count);
            let lost: Vec<u32> = outcomes.iter().map(|it| u32::from(it.is_lost())).collect();
            if lost.contains(&1) {
                self.damage(class, first + done, &lost);
            }
            let wrong = self.compare_and_restore(count);
            for (outcome, wrong) in outcomes.iter().zip(wrong) {
                match (outcome.is_lost(), wrong) {
                    (true, 0) => all.detected += 1,
                    (true, _) => all.changed += 1,
                    (false, 0) => all.corrected += 1,
                    (false, _) => all.miscorrected += 1,
                }
                all.touched += u64::from(outcome.is_corrected());
                all.symbols += u64::from(outcome.symbols());
            }
            done += count as u64;
        }
        let patterns = class.patterns(first, blocks);
        println!(
            "{:36} {patterns:11} patterns in {blocks:7} blocks: {:7} corrected, {:7} detected, {} miscorrected; {:.1} s",
            class.name(),
            all.corrected,
            all.detected,
            all.miscorrected,
            begun.elapsed().as_secs_f64()
        );
        let (name, seed) = (class.name(), self.seed);
        assert_eq!(
            all.changed, 0,
            "{name}: lost blocks were changed, seed {seed}"
        );
        let (corrected, detected) = match class.promise {
            Promise::Corrected => (blocks, 0),
            Promise::Lost => (0, blocks),
            Promise::Nothing => {
                // A third of a pattern is expected in a million, so thirty do not happen by chance.
                assert!(all.miscorrected < 30, "{name}: {all:?}, seed {seed}");
                (0, blocks - all.miscorrected)
            }
        };
        let what = (all.corrected, all.detected, all.miscorrected);
        let expected = (corrected, detected, blocks - corrected - detected);
        assert_eq!(
            what, expected,
            "{name}: corrected, detected, neither; from {first} on, seed {seed}"
        );
        if class.promise == Promise::Corrected {
            // Most bursts touch only one of their two blocks.
            let least = if matches!(class.damage, Damage::Burst { .. }) {
                patterns
            } else {
                blocks
            };
            assert!(all.touched >= least, "{name}: {all:?}, seed {seed}");
            if let Some(symbols) = class.symbols(patterns) {
                assert_eq!(
                    all.symbols, symbols,
                    "{name}: symbols corrected, seed {seed}"
                );
            }
        }
    }
}

/// Counts of blocks by result.
#[derive(Debug, Default)]
struct Tally {
    corrected: u64,
    detected: u64,
    miscorrected: u64,
    /// Blocks that are lost and were changed nevertheless.
    changed: u64,
    /// Blocks in which something was corrected.
    touched: u64,
    symbols: u64,
}

fn works(identities: &[Identity], rows: usize) -> Vec<BlockWork<'_>> {
    let of = |(block, identity)| BlockWork {
        block,
        rows: 0..rows,
        place: RowLocation::Staging(block * rows * ROW_BYTES),
        identity: Some(identity),
    };
    identities.iter().enumerate().map(of).collect()
}

#[test]
fn every_single_symbol_error_in_every_word_is_corrected() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.each);
    let (first, blocks) = budget.part(SINGLES, budget.full_blocks(), &mut field.random);
    let class = |loses_record| Class::new(Damage::Single, loses_record, Promise::Corrected);
    field.run(&class(false), first, blocks);
    field.run(&class(true), first, blocks);
}

#[test]
fn every_double_symbol_error_of_a_word_is_corrected() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.each);
    let whole = DOUBLES.div_ceil(WORDS as u64);
    let (first, blocks) = budget.part(whole, budget.each, &mut field.random);
    let class = Class::new(Damage::Double, false, Promise::Corrected);
    field.run(&class, first, blocks);
}

#[test]
fn up_to_four_errors_in_a_word_are_corrected_and_all_others_detected() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.each);
    for symbols in 3..=9 {
        field.run(&Class::errors(symbols), 0, budget.each);
    }
    for symbols in 5..=8 {
        field.run(&Class::near(symbols), 0, budget.each);
    }
    for symbols in 3..=4 {
        let class = Class::new(Damage::Every { symbols }, false, Promise::Corrected);
        field.run(&class, 0, budget.full_blocks());
    }
}

#[test]
fn up_to_eight_erasures_in_a_word_are_corrected_and_nine_detected() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.each);
    for symbols in 3..=9 {
        field.run(&Class::erasures(symbols), 0, budget.each);
    }
}

#[test]
fn without_a_record_three_errors_are_corrected_and_up_to_five_detected() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.each);
    for symbols in 1..=9 {
        field.run(&Class::without_record(symbols), 0, budget.each);
    }
    let near = Damage::Near {
        symbols: 5,
        aside: 0,
    };
    field.run(&Class::new(near, true, Promise::Lost), 0, budget.each);
    let class = Class::new(Damage::Every { symbols: 3 }, true, Promise::Corrected);
    field.run(&class, 0, budget.full_blocks());
}

/// Wrong rows with valid checksums are errors beside the erasures, and each counts as two of these.
#[test]
fn whole_rows_are_corrected_up_to_the_limit_of_the_code() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.full_blocks());
    for class in of_rows() {
        field.run(&class, 0, budget.full_blocks());
    }
}

#[test]
fn burst_of_three_kibibytes_at_any_position_is_corrected() {
    let budget = Budget::from_env();
    let mut field = Field::new(budget.each);
    for is_fill in [false, true] {
        let class = Class::new(Damage::Burst { is_fill }, false, Promise::Corrected);
        let whole = 2 * BLOCK_BYTES as u64;
        let (first, blocks) = budget.part(whole, 2 * budget.each, &mut field.random);
        field.run(&class, first, blocks);
    }
}

/// Classes of one to nine rows, with the record and without, and with rows that have valid
/// checksums.
fn of_rows() -> Vec<Class> {
    let rows = |wrong, unseen| Damage::Rows { wrong, unseen };
    let seen = (1..=9).map(|wrong| Class::new(rows(wrong, 0), false, promised(wrong <= 8)));
    let lost = (1..=9).map(|wrong| Class::new(rows(wrong, 0), true, promised(wrong <= 3)));
    let unseen = (1..=4).map(|unseen| {
        // As many erasures as the remaining check symbols allow.
        let most = 8 - 2 * unseen;
        Class::new(rows(most, unseen), false, Promise::Corrected)
    });
    seen.chain(lost).chain(unseen).collect()
}
