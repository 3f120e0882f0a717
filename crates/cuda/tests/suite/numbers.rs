//! Data for the tests.

use std::hash::{BuildHasher, RandomState};

/// Numbers that differ from run to run. The seed is printed, so that a failure
/// shows it, and `FERCUDA_SEED` repeats it.
pub(crate) fn random(len: usize) -> Vec<u32> {
    let seed = match std::env::var("FERCUDA_SEED") {
        Ok(seed) => seed.parse().expect("FERCUDA_SEED is a number"),
        Err(_) => RandomState::new().hash_one(len),
    };
    println!("FERCUDA_SEED={seed}");
    let mut state = seed | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    })
    .take(len)
    .collect()
}
