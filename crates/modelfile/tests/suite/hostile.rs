//! Truncated, mutated and lying files.

use std::path::Path;

use fercuda_modelfile::{Gguf, ModelFile, Safetensors};
use fercuda_trials::{Work, corpus, try_mutations};

use crate::allocations::measured;
use crate::property::holds_for;
use crate::support;

const WORK: Work = Work {
    name: "model-files",
    least: 1000,
    ci_seconds: 3,
    soak: 1_000_000,
};

/// Bytes for an error's text, which may have a name from the file, with escapes, and grows by
/// doubling.
const SAID: usize = 4000;

fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = corpus(env!("CARGO_MANIFEST_DIR"), WORK.name);
    inputs.push(support::gguf());
    inputs.extend(crate::packed::files());
    inputs
}

#[test]
fn any_mutated_file_is_read_or_refused_within_its_size() {
    try_mutations(env!("CARGO_MANIFEST_DIR"), WORK, &inputs(), |bytes| {
        holds_for(bytes);
        let (_, most) = measured(|| Gguf::parse(bytes).is_ok());
        assert!(
            most <= bytes.len() + SAID,
            "{most} bytes for {}",
            bytes.len()
        );
        let (_, most) = measured(|| Safetensors::parse(bytes).is_ok());
        assert!(
            most <= bytes.len() + SAID,
            "{most} bytes for {}",
            bytes.len()
        );
    });
}

#[test]
fn every_beginning_of_a_file_is_refused_with_a_place() {
    for file in inputs() {
        let whole = ModelFile::from_bytes(Path::new("whole"), file.clone());
        if whole.is_err() || file.len() > 1 << 16 {
            continue;
        }
        for len in 0..file.len() {
            holds_for(&file[..len]);
            let part = ModelFile::from_bytes(Path::new("part"), file[..len].to_vec());
            // Only padding may be missing, or data of no tensor.
            assert!(
                part.is_err() || len + 64 > file.len(),
                "{len} of {}",
                file.len()
            );
        }
    }
}

/// A GGUF head with these counts, and what follows.
fn head(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(tensors.to_le_bytes());
    file.extend(keys.to_le_bytes());
    file.extend(rest);
    file
}

#[test]
fn lengths_and_counts_beyond_the_file_allocate_nothing() {
    let array = |kind: u32, len: u64| {
        let mut rest = 1u64.to_le_bytes().to_vec();
        rest.push(b'a');
        rest.extend(9u32.to_le_bytes());
        rest.extend(kind.to_le_bytes());
        rest.extend(len.to_le_bytes());
        rest
    };
    let mut long_key = u64::MAX.to_le_bytes().to_vec();
    long_key.extend([0; 32]);
    let files = [
        head(u64::MAX, 0, &[0; 64]),
        head(0, u64::MAX, &[0; 64]),
        head(1 << 40, 1 << 40, &[0; 64]),
        head(2, 2, &[0; 26]),
        head(0, 1, &array(4, u64::MAX)),
        head(0, 1, &array(8, 1 << 61)),
        head(0, 1, &array(10, 1 << 61)),
        head(0, 1, &array(9, 1)),
        head(0, 1, &array(13, 1)),
        head(0, 1, &long_key),
    ];
    for file in files {
        let (result, most) = measured(|| Gguf::parse(&file[..]));
        let said = result.unwrap_err().to_string();
        assert!(said.contains("byte ") && said.contains("\ntry: "), "{said}");
        assert!(most <= SAID, "{most} bytes: {said}");
    }
}

#[test]
fn tables_of_many_small_records_take_less_than_the_file() {
    let mut rest = Vec::new();
    let count = 20_000u64;
    for at in 0..count {
        rest.extend(5u64.to_le_bytes());
        rest.extend(format!("{at:05}").as_bytes());
        rest.extend(0u32.to_le_bytes());
        rest.push(1);
    }
    let file = head(0, count, &rest);
    let (result, most) = measured(|| Gguf::parse(&file[..]).is_ok());
    assert!(result && most <= file.len(), "{most} of {}", file.len());
    let members: Vec<String> = (0..count)
        .map(|at| format!("\"{at}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"))
        .collect();
    let file = support::safetensors(&format!("{{{}}}", members.join(",")), &[]);
    let (result, most) = measured(|| Safetensors::parse(&file[..]).is_ok());
    assert!(result && most <= file.len(), "{most} of {}", file.len());
    // Each tensor is found in no time that grows with their number.
    let begun = std::time::Instant::now();
    let model = ModelFile::from_bytes(Path::new("many"), file).unwrap();
    assert_eq!(model.tensors().count(), count as usize);
    assert_eq!(model.weight_names().len(), count as usize);
    for at in 0..count {
        assert!(model.tensor(&at.to_string()).is_ok());
    }
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}
