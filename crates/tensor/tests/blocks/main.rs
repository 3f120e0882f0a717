//! Comparison of block formats with llama.cpp's C code, by the hashes in `vectors.txt`.
//!
//! `make_vectors.py` has the same inputs and writes that file.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_tensor::BlockFormat;
use fercuda_trials::{Budget, Work};
use sha2::{Digest as _, Sha256};

const DECODE_BLOCKS: usize = 256;
const ENCODE_BLOCKS: usize = 64;

/// SplitMix64, by counter.
fn word(seed: u64, at: u64) -> u64 {
    let z = seed.wrapping_add((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The seed of one case.
fn stream(name: &str) -> u64 {
    let hash = Sha256::digest(name.as_bytes());
    u64::from_le_bytes(hash[..8].try_into().unwrap())
}

/// Offsets of f16 scales.
fn halves(format: BlockFormat) -> &'static [usize] {
    use BlockFormat as F;
    match format {
        F::Q4_1 | F::Q5_1 | F::Q8_1 | F::Q4_K | F::Q5_K => &[0, 2],
        F::Q2_K => &[80, 82],
        F::Q3_K => &[108],
        F::Q6_K => &[208],
        F::TQ1_0 => &[52],
        F::TQ2_0 => &[64],
        F::Q8_K | F::IQ1_M | F::MXFP4 | F::NVFP4 => &[],
        _ => &[0],
    }
}

/// Random blocks; a scale that is not finite loses the highest bit of its exponent.
fn blocks(seed: &str, format: BlockFormat) -> Vec<u8> {
    let stream = stream(&format!("{seed} blocks {format}"));
    let len = DECODE_BLOCKS * format.bytes();
    let words = (0..len as u64 / 8 + 1).flat_map(|at| word(stream, at).to_le_bytes());
    let mut data: Vec<u8> = words.take(len).collect();
    for block in data.chunks_exact_mut(format.bytes()) {
        for at in halves(format) {
            if block[at + 1] & 0x7c == 0x7c {
                block[at + 1] &= 0xbf;
            }
        }
        let last = match format {
            BlockFormat::IQ1_M if block[55] & 0x70 == 0x70 && block[53] & 0xc0 == 0xc0 => 55,
            BlockFormat::Q8_K if block[3] & 0x7f == 0x7f && block[2] & 0x80 == 0x80 => 3,
            _ => continue,
        };
        block[last] &= 0xbf;
    }
    data
}

/// Elements of one kind, exact in every step.
fn elements(seed: &str, format: BlockFormat, kind: u64) -> Vec<f32> {
    let stream = stream(&format!("{seed} elements {format} {kind}"));
    let count = (ENCODE_BLOCKS * format.elements()) as u64;
    let elements = (0..count).map(|at| {
        let random = word(stream, at);
        let (low, high) = ((random & 0xff_ffff) as i32, random >> 32);
        let sign = ((high & 1) as u32) << 31;
        let unit = (low - 0x80_0000) as f32 * 2f32.powi(-23);
        match kind {
            0 => unit,
            1 => {
                let four: i64 = (0..4)
                    .map(|part| (random >> (16 * part) & 0xffff) as i64)
                    .sum();
                (four - 131_070) as f32 * 2f32.powi(-20)
            }
            2 => {
                let exponent = 100 + (high / 2 % 40) as u32;
                f32::from_bits(sign | exponent << 23 | low as u32 >> 1)
            }
            3 => (low % 3 - 1) as f32 * 0.375,
            4 => (low % 33 - 16) as f32 * 0.5,
            5 => f32::from_bits(sign | (low % 0x180_0000) as u32 >> 1),
            6 => unit + 3.0,
            7 => match low % 64 {
                0 => unit * 8.0,
                _ => 0.0,
            },
            8 => {
                let power = (60 + at / 16 * 7 % 130) as u32;
                f32::from_bits(sign | ((power << 23) - (high / 2 % 4) as u32))
            }
            _ if at / 32 % 3 == 0 => 0.0,
            _ => -unit.abs(),
        }
    });
    elements.collect()
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a line of the vectors stands for, hashed.
fn result(seed: &str, words: &[&str]) -> String {
    let format: BlockFormat = words[1].parse().unwrap();
    if words[0] == "decode" {
        let mut decoded = vec![0f32; DECODE_BLOCKS * format.elements()];
        format.decode(&blocks(seed, format), &mut decoded).unwrap();
        let bytes: Vec<u8> = decoded.iter().flat_map(|it| it.to_le_bytes()).collect();
        return digest(&bytes);
    }
    let mut encoded = vec![0xaa; ENCODE_BLOCKS * format.bytes()];
    let values = elements(seed, format, words[2].parse().unwrap());
    format.encode(&values, &mut encoded).unwrap();
    digest(&encoded)
}

#[test]
fn every_format_is_decoded_and_encoded_as_by_llama_cpp() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blocks/vectors.txt");
    let vectors = std::fs::read_to_string(file).unwrap();
    let mut lines = vectors.lines().skip(1);
    let seed = lines.next().unwrap().strip_prefix("seed ").unwrap();
    let (mut compared, mut different) = (0, Vec::new());
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let (expected, of) = words.split_last().unwrap();
        compared += 1;
        if result(seed, of) != *expected {
            different.push(of.join(" "));
        }
    }
    assert_eq!(different, Vec::<String>::new(), "of {compared}");
    // All are decoded but Q8_1, which C has no decoder of; all but IQ are encoded.
    assert_eq!(compared, 26 + 18 * 10);
}

const WORK: Work = Work {
    name: "blocks",
    least: 200,
    ci_seconds: 1,
    soak: 200_000,
};

/// The largest error of an element, in units of the block's largest magnitude: half a step, or a
/// whole one where the topmost code is missing, and what rounding the scale to f16 adds.
fn bound(format: BlockFormat) -> Option<f32> {
    let steps = match format {
        BlockFormat::Q8_0 | BlockFormat::Q8_1 | BlockFormat::Q8_K => 254.0,
        BlockFormat::Q4_1 => 15.0,
        BlockFormat::Q5_1 => 31.0,
        BlockFormat::Q4_0 => 8.0,
        BlockFormat::Q5_0 => 16.0,
        // Ternary: half of its step, which is the largest magnitude.
        BlockFormat::TQ1_0 | BlockFormat::TQ2_0 | BlockFormat::Q2_0 => 2.0,
        _ => return None,
    };
    Some(1.0 / steps + 1.0 / 512.0)
}

#[test]
fn any_bytes_decode_and_any_floats_encode_with_errors_within_a_step() {
    for (name, seed) in fercuda_trials::seeds(env!("CARGO_MANIFEST_DIR"), WORK) {
        println!("{name}: FERCUDA_SEED={seed}");
        try_blocks(&mut fastrand::Rng::with_seed(seed));
    }
}

fn try_blocks(random: &mut fastrand::Rng) {
    let budget = Budget::begin(WORK);
    let mut done = 0;
    while budget.has_left(done) {
        for format in BlockFormat::ALL {
            let bytes: Vec<u8> = (0..format.bytes()).map(|_| random.u8(..)).collect();
            let mut decoded = vec![0f32; format.elements()];
            format.decode(&bytes, &mut decoded).unwrap();
            if !format.has_encoder() {
                continue;
            }
            let mut encoded = [vec![0u8; format.bytes()], vec![0xff; format.bytes()]];
            let wild: Vec<f32> = (decoded.iter())
                .map(|_| f32::from_bits(random.u32(..)))
                .collect();
            for to in &mut encoded {
                format.encode(&wild, to).unwrap();
            }
            assert_eq!(encoded[0], encoded[1], "{format} of {wild:?}");
            let scale = 2f32.powi(random.i32(-3..10));
            let values: Vec<f32> = (decoded.iter())
                .map(|_| (random.f32() - 0.5) * scale)
                .collect();
            format.encode(&values, &mut encoded[0]).unwrap();
            format.decode(&encoded[0], &mut decoded).unwrap();
            let largest = values.iter().fold(0f32, |most, it| most.max(it.abs()));
            for (value, back) in values.iter().zip(&decoded) {
                let is_near =
                    bound(format).is_none_or(|most| (value - back).abs() <= most * largest);
                assert!(is_near, "{format}: {value} became {back} beside {largest}");
            }
        }
        done += 1;
    }
}
