//! Fat binaries as a compiler writes them, each with the same PTX: plain, LZ4, Zstandard; and
//! modules that are loaded.

use fercuda_softgpu::control::{compile_ptx, ptx_of_fatbin};
use fercuda_trials::{Work, corpus, try_corpus};
use proptest::prelude::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The kept containers, by the order of their names: LZ4, plain, Zstandard.
fn kept() -> [Vec<u8>; 3] {
    corpus(ROOT, "images").try_into().expect("three containers")
}

#[test]
fn images_mutated_for_a_while_are_read_or_refused() {
    const WORK: Work = Work {
        name: "images",
        least: 1000,
        ci_seconds: 2,
        soak: 43_000_000,
    };
    // Compressed text may be longer, and is bounded by what its container says of it.
    try_corpus(ROOT, WORK, |bytes| {
        ptx_of_fatbin(bytes).ok();
    });
}

#[test]
fn modules_mutated_for_a_while_are_compiled_or_refused() {
    const WORK: Work = Work {
        name: "modules",
        least: 200,
        ci_seconds: 2,
        soak: 1_000_000,
    };
    for kept in corpus(ROOT, WORK.name) {
        let text = String::from_utf8(kept).unwrap();
        assert_eq!(compile_ptx(&text), Ok(()), "{text}");
    }
    try_corpus(ROOT, WORK, |bytes| {
        if let Err(why) = compile_ptx(&String::from_utf8_lossy(bytes)) {
            assert!(!why.is_empty());
        }
    });
}

#[test]
fn every_compression_gives_the_same_text() {
    let texts = kept().map(|container| ptx_of_fatbin(&container).unwrap());
    let [lz4, plain, zstd] = texts;
    assert!(plain.starts_with(".version 8.0") && plain.contains(".visible .entry idle6()"));
    assert_eq!(lz4, plain);
    assert_eq!(zstd, plain);
}

#[test]
fn a_container_cut_anywhere_is_an_error() {
    for whole in kept() {
        for len in 0..whole.len() {
            assert!(
                ptx_of_fatbin(&whole[..len]).is_err(),
                "{len} of {}",
                whole.len()
            );
        }
    }
}

proptest! {
    #[test]
    fn a_container_with_changed_bytes_never_panics_and_never_grows(
        which in 0..3usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = kept()[which].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(text) = ptx_of_fatbin(&bytes) {
            prop_assert!(text.len() <= 1 << 28);
        }
    }
}
