//! What goes wrong, in patterns by the million: every single and double symbol, random ones of up to nine, rows, bursts at
//! every place. None may come back as something else than what was written, and what is promised to be corrected is.
//!
//! `FERCUDA_VRAM_PATTERNS` says how many of each class, each in a block of its own; `all` a million of each and the lists whole,
//! which is for a GPU: `FERCUDA_VRAM_PATTERNS=all FERCUDA_DEVICE=gpu cargo test --release -p fercuda-vramfs --test patterns -- --nocapture`.
//! A table says what came of them. A block is damaged and compared on the device (damage.cu), and what the code makes of it is
//! held against an independent decoder (oracle.py). Elsewhere: what the kernels do with a block that is right (`codes`).
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
use fercuda_vramfs::layout::{BLOCK_BYTES, CODED_ROWS, DATA_ROWS, RECORD_OFFSET, ROW_BYTES, WORDS};
use fercuda_vramfs::{Blocks, Identity, Kernels, Outcome, Place, Work, Worker};

/// Patterns of each class where nobody says how many: a minute of the software device with its checks.
const USUAL: u64 = 16;
/// Of each where all are wanted.
const MANY: u64 = 1_000_000;
/// Rows of words that one with its difference has wrong.
const SINGLES: u64 = (CODED_ROWS * 255) as u64;
const DOUBLES: u64 = (CODED_ROWS * (CODED_ROWS - 1) / 2 * 255 * 255) as u64;
/// The longest stray write that is promised to be made right.
const BURST: u32 = 3 * ROW_BYTES as u32;
/// Words that are wrong beside one, in rows enough that these are not what is to be erased.
const ASIDE: u32 = 9;
const THREADS: u32 = 256;

/// Findings of the software device are the process's; so tests run one after the other.
static ONE: Mutex<()> = Mutex::new(());

/// What is done to each block. The kernel has the same (damage.cu).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    /// One word, and as many aside with one wrong symbol each.
    One {
        symbols: u32,
        aside: u32,
    },
    /// The same, on the way to another word of the code: nine symbols lie between.
    Near {
        symbols: u32,
        aside: u32,
    },
    Every {
        symbols: u32,
    },
    Single,
    Double,
    /// Whole rows, and such whose sums stay right.
    Rows {
        wrong: u32,
        unseen: u32,
    },
    /// In two blocks side by side; random, or up to so many bytes of one value.
    Burst {
        is_fill: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    Corrected,
    Lost,
    /// Lost, but for the one in 2.7 million that is within three symbols of another word.
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

    /// `symbols` wrong ones in one word, whose rows nothing says.
    fn errors(symbols: u32) -> Self {
        let damage = Damage::One {
            symbols,
            aside: ASIDE,
        };
        Self::new(damage, false, promised(symbols <= 4))
    }

    /// The same, and they are nearer to another word than to what was there, as near as the decoder looks: what keeps
    /// that from being returned is the sums alone.
    fn near(symbols: u32) -> Self {
        let damage = Damage::Near {
            symbols,
            aside: ASIDE,
        };
        Self::new(damage, false, Promise::Lost)
    }

    /// The same, in rows that their sums name.
    fn erasures(symbols: u32) -> Self {
        let damage = Damage::One { symbols, aside: 0 };
        Self::new(damage, false, promised(symbols <= 8))
    }

    /// The same where all sums are lost. Six that are wrong may be three from another word.
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
                format!("{symbols} errors, {} from another", 9 - symbols)
            }
            Damage::Every { symbols } => format!("{symbols} errors in every word"),
            Damage::Single => "single symbols".to_owned(),
            Damage::Double => "double symbols".to_owned(),
            Damage::Rows { wrong, unseen: 0 } => format!("{wrong} rows"),
            Damage::Rows { wrong, unseen } => format!("{wrong} rows, {unseen} with right sums"),
            Damage::Burst { is_fill: false } => format!("bursts of {BURST} bytes"),
            Damage::Burst { is_fill: true } => format!("bursts of up to {BURST}, one value"),
        };
        match self.loses_record {
            true => format!("{what}, no record"),
            false => what,
        }
    }

    /// So many patterns are in blocks from this number on.
    fn patterns(&self, first: u64, blocks: u64) -> u64 {
        let words = blocks * WORDS as u64;
        match self.damage {
            Damage::One { .. } | Damage::Near { .. } | Damage::Rows { .. } => blocks,
            Damage::Every { .. } | Damage::Single => words,
            Damage::Double => words.min(DOUBLES.saturating_sub(first * WORDS as u64)),
            Damage::Burst { .. } => blocks / 2,
        }
    }

    /// So many symbols are wrong in them, if that is told.
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

    /// As the kernel reads it: kind, count, others.
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

/// What was asked for by `FERCUDA_VRAM_PATTERNS`.
#[derive(Clone, Copy)]
struct Budget {
    each: u64,
    is_all: bool,
}

impl Budget {
    fn asked() -> Self {
        match std::env::var("FERCUDA_VRAM_PATTERNS") {
            Ok(all) if all == "all" => Self {
                each: MANY,
                is_all: true,
            },
            Ok(each) => Self {
                each: each.parse().unwrap(),
                is_all: false,
            },
            Err(_) => Self {
                each: USUAL,
                is_all: false,
            },
        }
    }

    /// Blocks of which each has many patterns.
    fn full_blocks(&self) -> u64 {
        (self.each / 16).max(1)
    }

    /// A list of so many blocks: all of it, or as many one after the other as fit, from anywhere.
    fn part(&self, whole: u64, blocks: u64, random: &mut Rng) -> (u64, u64) {
        match self.is_all {
            true => (0, whole),
            false => {
                let blocks = blocks.min(whole);
                // Two blocks of a burst begin with the first.
                (random.u64(..=whole - blocks) / 2 * 2, blocks)
            }
        }
    }
}

/// Blocks that are damaged, corrected and compared with what they were.
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
        let seed = match std::env::var("FERCUDA_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => fastrand::u64(..),
        };
        println!("FERCUDA_SEED={seed}");
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
        assert!(outcomes.iter().all(Outcome::is_clean));
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

    /// Damages the blocks that are named, or makes them as they were.
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
        // SAFETY: the kernel touches a block for each block of threads, of which there are no more than blocks, and as
        // much of the buffers; nobody else uses them until it has been waited for.
        unsafe { launch.run(&kernel, &self.stream, arguments) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    /// As whose they are the first blocks are corrected.
    fn correct(&mut self, count: usize) -> Vec<Outcome> {
        let work = works(&self.identities[..count], 0);
        self.worker.correct(&self.blocks, &work).unwrap().to_vec()
    }

    /// How much of each block is other than it was; all of it is right then.
    fn judge(&mut self, count: usize) -> Vec<u32> {
        let wrong = DeviceBuffer::<u32>::zeroed(&self.stream, count).unwrap();
        let (kernel, base) = (self.kernel("judge"), self.blocks.address(0).unwrap());
        let launch = Launch::new(count as u32, THREADS);
        // SAFETY: as before; it writes a number a block, and the blocks.
        unsafe { launch.run(&kernel, &self.stream, (base, &self.right, &wrong)) }.unwrap();
        wrong.to_vec(&self.stream).unwrap()
    }

    /// Has blocks with these numbers damaged and corrected, and says what came of it.
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
            let wrong = self.judge(count);
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
            "{name}: blocks that are lost were changed, seed {seed}"
        );
        let (corrected, detected) = match class.promise {
            Promise::Corrected => (blocks, 0),
            Promise::Lost => (0, blocks),
            Promise::Nothing => {
                // A third of one is expected in a million: thirty are none by chance.
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
            // One of two has no part of most bursts.
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

/// Of blocks.
#[derive(Debug, Default)]
struct Tally {
    corrected: u64,
    detected: u64,
    miscorrected: u64,
    /// Though they were lost.
    changed: u64,
    /// Something was corrected there.
    touched: u64,
    symbols: u64,
}

fn works(identities: &[Identity], rows: usize) -> Vec<Work<'_>> {
    let of = |(block, identity)| Work {
        block,
        rows: 0..rows,
        place: Place::Staging(block * rows * ROW_BYTES),
        identity: Some(identity),
    };
    identities.iter().enumerate().map(of).collect()
}

#[test]
fn every_single_wrong_symbol_in_every_word_is_made_right() {
    let budget = Budget::asked();
    let mut field = Field::new(budget.each);
    let (first, blocks) = budget.part(SINGLES, budget.full_blocks(), &mut field.random);
    let class = |loses_record| Class::new(Damage::Single, loses_record, Promise::Corrected);
    field.run(&class(false), first, blocks);
    field.run(&class(true), first, blocks);
}

#[test]
fn every_two_wrong_symbols_of_a_word_are_made_right() {
    let budget = Budget::asked();
    let mut field = Field::new(budget.each);
    let whole = DOUBLES.div_ceil(WORDS as u64);
    let (first, blocks) = budget.part(whole, budget.each, &mut field.random);
    let class = Class::new(Damage::Double, false, Promise::Corrected);
    field.run(&class, first, blocks);
}

#[test]
fn a_word_with_up_to_four_errors_is_made_right_and_more_are_seen_whatever_they_look_like() {
    let budget = Budget::asked();
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
fn a_word_with_up_to_eight_erasures_is_made_right_and_nine_are_seen() {
    let budget = Budget::asked();
    let mut field = Field::new(budget.each);
    for symbols in 3..=9 {
        field.run(&Class::erasures(symbols), 0, budget.each);
    }
}

#[test]
fn without_a_record_three_errors_are_made_right_and_up_to_five_are_seen() {
    let budget = Budget::asked();
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

/// Rows whose sums are right though they are wrong are errors beside what is erased: two for one.
#[test]
fn whole_rows_are_made_right_as_far_as_the_code_goes() {
    let budget = Budget::asked();
    let mut field = Field::new(budget.full_blocks());
    for class in of_rows() {
        field.run(&class, 0, budget.full_blocks());
    }
}

#[test]
fn a_burst_of_three_kibibytes_anywhere_is_made_right() {
    let budget = Budget::asked();
    let mut field = Field::new(budget.each);
    for is_fill in [false, true] {
        let class = Class::new(Damage::Burst { is_fill }, false, Promise::Corrected);
        let whole = 2 * BLOCK_BYTES as u64;
        let (first, blocks) = budget.part(whole, 2 * budget.each, &mut field.random);
        field.run(&class, first, blocks);
    }
}

/// One to nine rows, with the record and without; and where some have sums that are right.
fn of_rows() -> Vec<Class> {
    let rows = |wrong, unseen| Damage::Rows { wrong, unseen };
    let seen = (1..=9).map(|wrong| Class::new(rows(wrong, 0), false, promised(wrong <= 8)));
    let lost = (1..=9).map(|wrong| Class::new(rows(wrong, 0), true, promised(wrong <= 3)));
    let unseen = (1..=4).map(|unseen| {
        // As many as there are checks for.
        let most = 8 - 2 * unseen;
        Class::new(rows(most, unseen), false, Promise::Corrected)
    });
    seen.chain(lost).chain(unseen).collect()
}
