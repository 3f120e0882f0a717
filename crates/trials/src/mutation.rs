//! Mutation of kept inputs: what readers of untrusted bytes are tried with.
//!
//! Each step takes one input of a corpus, changes it in a few places, and hands it to the reader
//! under test. A step has a seed of its own, which is printed when the reader panics or is too
//! slow: `FERCUDA_SEED` set to it repeats that step first.
//!
//! A corpus is the folder `tests/corpora/NAME` of a crate: inputs as they are, or in hexadecimal
//! digits in a file `*.hex`, in which blanks and line ends mean nothing. An input that once failed
//! is kept there. No instrumented build chooses the inputs, so a stable compiler can run this; what
//! a corpus does not have is hardly reached.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Budget, Work, recorded, seed};

/// Where a crate keeps the inputs.
const CORPORA: &str = "tests/corpora";
/// Longer inputs are cut: a mutation must not grow them without end.
const LONGEST: usize = 1 << 16;
/// Changes of one step.
const CHANGES: usize = 6;
/// A step that takes longer is one of a reader that is not linear, on the slowest machine too.
const STEP: Duration = Duration::from_secs(20);
/// Numbers at the limits of their types, as text and as words.
const LIMITS: [u64; 12] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// The inputs of a crate's corpus, sorted by name.
///
/// # Panics
/// If there is none, or one cannot be read.
pub fn corpus(crate_root: &str, name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(crate_root).join(CORPORA).join(name);
    let failed = |error: std::io::Error| -> ! { panic!("{}: {error}", folder.display()) };
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| failed(error));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap_or_else(|error| failed(error)).path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| read_input(file)).collect()
}

/// One input: a file's bytes, or those that its hexadecimal digits say if its name ends with
/// `.hex`.
///
/// # Panics
/// If it cannot be read.
pub fn read_input(file: &Path) -> Vec<u8> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    match file.extension().is_some_and(|it| it == "hex") {
        true => unhex(&bytes).unwrap_or_else(|| panic!("{}: no hex", file.display())),
        false => bytes,
    }
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    let digits: Option<Vec<u32>> = digits.map(|byte| char::from(*byte).to_digit(16)).collect();
    let pairs = digits?;
    let pairs = pairs.chunks(2).map(|pair| match pair {
        [high, low] => Some((high << 4 | low) as u8),
        _ => None,
    });
    pairs.collect()
}

/// [`try_mutations`] of the inputs of the crate's corpus that has the name of `work`.
///
/// # Panics
/// As [`corpus`] and [`try_mutations`].
pub fn try_corpus(crate_root: &str, work: Work, read: impl FnMut(&[u8])) {
    try_mutations(crate_root, work, &corpus(crate_root, work.name), read);
}

/// Hands every input to `read`, then mutated ones until the budget of `work` is spent.
///
/// # Panics
/// If `read` does, or takes longer than 20 s for one input of at most 64 KiB; the seed and the
/// input are printed.
pub fn try_mutations(
    crate_root: &str,
    work: Work,
    inputs: &[Vec<u8>],
    mut read: impl FnMut(&[u8]),
) {
    for input in inputs {
        judge(None, input, &mut read);
    }
    let mut steps = 0;
    let step = |seed: u64, read: &mut dyn FnMut(&[u8])| {
        let mut random = fastrand::Rng::with_seed(seed);
        let input = mutated(&mut random, inputs);
        judge(Some(seed), &input, read);
    };
    for known in recorded(crate_root, work) {
        step(known.seed, &mut read);
    }
    let first = seed();
    let mut seeds = fastrand::Rng::with_seed(first);
    let budget = Budget::begin(work);
    while budget.has_left(steps) {
        let seed = if steps == 0 { first } else { seeds.u64(..) };
        step(seed, &mut read);
        steps += 1;
    }
    println!("{}: {steps} mutations", work.name);
}

fn judge(seed: Option<u64>, input: &[u8], read: &mut dyn FnMut(&[u8])) {
    let begun = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| read(input))).err();
    let took = begun.elapsed();
    if panicked.is_none() && took <= STEP {
        return;
    }
    if let Some(seed) = seed {
        println!("FERCUDA_SEED={seed}: this mutation fails");
    }
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{} bytes in hex: {hex}", input.len());
    match panicked {
        Some(panic) => resume_unwind(panic),
        None => panic!("{} bytes took {} s", input.len(), took.as_secs()),
    }
}

/// One of the inputs with a few changes.
fn mutated(random: &mut fastrand::Rng, inputs: &[Vec<u8>]) -> Vec<u8> {
    let Some(input) = random.choice(inputs) else {
        return Vec::new();
    };
    let mut bytes = input.clone();
    for _ in 0..random.usize(1..=CHANGES) {
        change(random, &mut bytes, inputs);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(random: &mut fastrand::Rng, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    let at = random.usize(..=bytes.len());
    let end = |random: &mut fastrand::Rng, len: usize| at + random.usize(..=(len - at).min(64));
    match random.u8(..12) {
        0 => bytes.truncate(at),
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.u8(..8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.u8(..);
            }
        }
        3 => bytes.insert(at, random.u8(..)),
        4 => {
            let end = end(random, bytes.len());
            bytes.drain(at..end);
        }
        // A part twice, or many times.
        5 => {
            let end = end(random, bytes.len());
            let part = bytes[at..end].to_vec();
            let times = if random.u8(..8) == 0 { 300 } else { 1 };
            let many = part.repeat(times);
            bytes.splice(at..at, many);
        }
        // A word at a limit, little-endian, aligned or not.
        6 | 7 => {
            let value = limit(random).to_le_bytes();
            let at = if random.bool() { at } else { at / 8 * 8 };
            let len = [1, 2, 4, 8][random.usize(..4)];
            for (byte, new) in bytes.iter_mut().skip(at).take(len).zip(value) {
                *byte = new;
            }
        }
        // A number at a limit in place of one in the text.
        8 | 9 => {
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            let from = bytes[at..].iter().position(is_digit).map(|it| at + it);
            if let Some(from) = from {
                let rest = &bytes[from..];
                let len = rest
                    .iter()
                    .position(|it| !is_digit(it))
                    .unwrap_or(rest.len());
                let sign = if random.u8(..4) == 0 { "-" } else { "" };
                let text = format!("{sign}{}", limit(random));
                bytes.splice(from..from + len, text.bytes());
            }
        }
        // The rest of another input.
        10 => {
            if let Some(other) = random.choice(inputs) {
                let from = random.usize(..=other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
        // A part of one.
        _ => {
            if let Some(other) = random.choice(inputs) {
                let from = random.usize(..=other.len());
                let part = &other[from..(from + random.usize(..64)).min(other.len())];
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
}

fn limit(random: &mut fastrand::Rng) -> u64 {
    let limit = LIMITS[random.usize(..LIMITS.len())];
    limit.wrapping_add(random.u64(..3)).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        name: "letters",
        least: 3000,
        ci_seconds: 0,
        soak: 3000,
    };

    #[test]
    fn a_reader_is_given_all_inputs_and_changed_ones_of_bounded_length() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let place = folder.path().join(CORPORA).join(WORK.name);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("b.txt"), "size 4096;").unwrap();
        fs::write(place.join("a.hex"), "00 ff\n80").unwrap();
        let inputs = corpus(root, WORK.name);
        assert_eq!(inputs, [&[0, 0xff, 0x80][..], b"size 4096;"]);
        let (mut seen, mut changed, mut limits) = (Vec::new(), 0, 0);
        try_mutations(root, WORK, &inputs, |bytes| {
            assert!(bytes.len() <= LONGEST);
            if seen.len() < 2 {
                seen.push(bytes.to_vec());
            }
            changed += u32::from(!inputs.contains(&bytes.to_vec()));
            limits += u32::from(bytes.windows(19).any(|it| it == b"9223372036854775807"));
        });
        assert_eq!(seen, inputs);
        let few = if cfg!(miri) { 100 } else { 1 };
        assert!(changed > 2000 / few, "{changed}");
        // Some 14 of 3000; rarely fewer than 10, and never none.
        assert!(limits > 0 || cfg!(miri), "{limits}");
        assert_eq!(unhex(b"0"), None);
        assert_eq!(unhex(b"xy"), None);
    }

    #[test]
    fn a_seed_repeats_its_mutation() {
        let inputs = [b"first input".to_vec(), b"second".to_vec()];
        for seed in 0..50 {
            let of_seed = || mutated(&mut fastrand::Rng::with_seed(seed), &inputs);
            assert_eq!(of_seed(), of_seed());
        }
    }

    #[test]
    #[should_panic(expected = "it is long")]
    fn a_panic_of_the_reader_is_one_of_the_test() {
        let inputs = [vec![b'0'; 95]];
        try_mutations("/nowhere", WORK, &inputs, |bytes| {
            assert!(bytes.len() < 100, "it is long");
        });
    }
}
