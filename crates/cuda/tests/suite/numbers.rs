//! Data for the tests.

/// Numbers that differ from run to run; the seed is printed, so that a failure
/// shows it.
pub(crate) fn random(len: usize) -> Vec<u32> {
    use std::hash::{BuildHasher, RandomState};
    let mut state = RandomState::new().hash_one(len) | 1;
    println!("seed {state:#x}");
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    })
    .take(len)
    .collect()
}
