//! Sends words before and after our decoder to an independent decoder (oracle.py, which uses
//! reedsolo).
//!
//! `cargo xtask setup` installs reedsolo.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fercuda_cuda::{DeviceBuffer, Launch};
use fercuda_vramfs::layout::{CODED_ROWS, WORDS};

use super::{Budget, Class, Damage, Field, Promise, THREADS, of_rows};

/// The Python that has the test wheels: `FERCUDA_PYTHON`, else the checkout's, else any.
fn python() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/venv/bin/python");
    match std::env::var_os("FERCUDA_PYTHON") {
        Some(python) => python.into(),
        None if own.exists() => own,
        None => "python3".into(),
    }
}

const TRY: &str = "try: `cargo xtask setup`, and FERCUDA_PYTHON=build/venv/bin/python";

/// A process that decodes the words sent to it.
struct Oracle {
    process: Child,
    out: BufWriter<std::process::ChildStdin>,
}

impl Oracle {
    fn new(classes: &[Class]) -> Self {
        let mut command = Command::new(python());
        command.args(["-c", include_str!("oracle.py")]);
        command.args(classes.iter().map(Class::name));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let out = BufWriter::with_capacity(1 << 20, process.stdin.take().unwrap());
        Self { process, out }
    }

    fn send(&mut self, bytes: &[u8]) {
        let sent = self.out.write_all(bytes);
        sent.unwrap_or_else(|error| panic!("the independent decoder has ended: {error}\n{TRY}"));
    }

    /// Prints its table, and panics unless it agrees with all words.
    fn verdict(self) {
        // If it has exited already, its status shows that.
        drop(self.out.into_inner());
        let output = self.process.wait_with_output().unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        println!("{table}");
        assert!(
            output.status.success(),
            "{table}the independent decoder disagrees, or did not start\n{TRY}"
        );
    }
}

impl Field {
    /// The symbols of these words, concatenated.
    fn symbols(&self, base: u64, asked: &[u32]) -> Vec<u8> {
        let bytes = asked.len() * CODED_ROWS;
        let symbols = DeviceBuffer::<u8>::zeroed(&self.stream, bytes).unwrap();
        let asked = DeviceBuffer::from_host(asked, &self.stream).unwrap();
        let launch = Launch::new(asked.len() as u32, THREADS);
        let kernel = self.kernel("gather");
        // SAFETY: it reads existing blocks, and writes the symbols of all rows for each word in
        // `asked`.
        unsafe { launch.run(&kernel, &self.stream, (base, &asked, &symbols)) }.unwrap();
        symbols.to_vec(&self.stream).unwrap()
    }

    /// For each row of the blocks, whether it fails its checksum.
    fn erased(&self, count: usize) -> Vec<u8> {
        let rows = DeviceBuffer::<u8>::zeroed(&self.stream, count * CODED_ROWS).unwrap();
        let launch = Launch::new(count as u32, THREADS);
        let (kernel, base) = (self.kernel("erased"), self.blocks.address(0).unwrap());
        // SAFETY: it reads as many blocks, and writes a byte a row.
        unsafe { launch.run(&kernel, &self.stream, (base, &rows)) }.unwrap();
        rows.to_vec(&self.stream).unwrap()
    }

    /// Sends the oracle `blocks` blocks of each class: one word of each, or all words where all are
    /// damaged.
    fn ask(&mut self, classes: &[(Class, u64)]) {
        let names: Vec<Class> = classes.iter().map(|(class, _)| *class).collect();
        let mut oracle = Oracle::new(&names);
        for (kind, (class, blocks)) in classes.iter().enumerate() {
            let mut done = 0;
            while done < *blocks {
                let is_alone = matches!(class.damage, Damage::One { .. } | Damage::Near { .. });
                let most = if is_alone { self.slots() } else { 16 };
                let count = (blocks - done).min(most).min(self.slots()) as usize;
                self.send_damaged(&mut oracle, class, done, count, kind as u8, is_alone);
                done += count as u64;
            }
        }
        oracle.verdict();
    }

    fn send_damaged(
        &mut self,
        oracle: &mut Oracle,
        class: &Class,
        first: u64,
        count: usize,
        kind: u8,
        is_alone: bool,
    ) {
        self.damage(class, first, &vec![1; count]);
        let step = if Budget::from_env().is_all { 1 } else { 8 };
        let asked: Vec<u32> = match is_alone {
            true => {
                let words = self
                    .words
                    .slice(..count)
                    .unwrap()
                    .to_vec(&self.stream)
                    .unwrap();
                let of = |(at, word)| at * WORDS as u32 + word;
                (0..).zip(words).map(of).collect()
            }
            // Of all words a sample that includes each lane's.
            false => (self.random.u32(..step)..(count * WORDS) as u32)
                .step_by(step as usize)
                .collect(),
        };
        let base = self.blocks.address(0).unwrap();
        let sent = self.symbols(self.right.address().0, &asked);
        let received = self.symbols(base, &asked);
        let erased = self.erased(count);
        let outcomes = self.correct(count);
        let after = self.symbols(base, &asked);
        self.compare_and_restore(count);
        let parts = [sent, received, after];
        for (at, of) in asked.iter().enumerate() {
            let block = *of as usize / WORDS;
            let [number, generation, ..] = self.identities[block];
            let flags = [outcomes[block].is_lost(), !class.loses_record, is_alone].map(u8::from);
            let parts = parts
                .iter()
                .map(|part| &part[at * CODED_ROWS..][..CODED_ROWS]);
            oracle.send(&number.to_le_bytes());
            oracle.send(&generation.to_le_bytes());
            oracle.send(&(of % WORDS as u32).to_le_bytes());
            oracle.send(&flags);
            oracle.send(&[kind]);
            parts.for_each(|part| oracle.send(part));
            oracle.send(&erased[block * CODED_ROWS..][..CODED_ROWS]);
        }
    }
}

#[test]
fn three_to_nine_errors_decode_as_by_an_independent_decoder() {
    let budget = Budget::from_env();
    let errors = (3..=9).map(Class::errors).chain((5..=8).map(Class::near));
    let all: Vec<_> = errors.map(|it| (it, budget.each)).collect();
    Field::new(budget.each).ask(&all);
}

#[test]
fn three_to_nine_erasures_decode_as_by_an_independent_decoder() {
    let budget = Budget::from_env();
    let all: Vec<_> = (3..=9)
        .map(|it| (Class::erasures(it), budget.each))
        .collect();
    Field::new(budget.each).ask(&all);
}

/// Words that no checksum confirms, and blocks in which every word has errors.
#[test]
fn words_without_a_record_and_rows_decode_as_by_an_independent_decoder() {
    let budget = Budget::from_env();
    let mut all: Vec<_> = (1..=9)
        .map(|it| (Class::without_record(it), budget.each.min(20_000)))
        .collect();
    let every = |symbols, loses_record| {
        Class::new(Damage::Every { symbols }, loses_record, Promise::Corrected)
    };
    let whole = [every(3, false), every(4, false), every(3, true)];
    let blocks = if budget.is_all { 16 } else { 1 };
    all.extend(whole.into_iter().chain(of_rows()).map(|it| (it, blocks)));
    Field::new(budget.each).ask(&all);
}
