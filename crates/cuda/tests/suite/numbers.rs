//! Data for the tests.

/// Numbers that differ from run to run. The seed is printed, so that a failure
/// shows it, and `FERCUDA_SEED` repeats it.
pub(crate) fn random(len: usize) -> Vec<u32> {
    let seed = fercuda_trials::seed();
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
