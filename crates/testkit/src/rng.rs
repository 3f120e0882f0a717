//! Generator of the corpus's inputs, whose sequence of a seed never changes.
//!
//! `h200.json` records what an H200 computed of the inputs of one seed, so these numbers may not
//! depend on the version of a library. Everything else takes `fercuda_trials::rng`.

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub struct RecordedRng(u64);

impl RecordedRng {
    /// The sequence of `seed` for the test called `name`.
    pub fn new(seed: u64, name: &str) -> RecordedRng {
        // FNV-1a, so that tests differ from each other under one seed.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        RecordedRng(seed ^ hash)
    }

    /// The next 64 bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "an endless sequence, not an iterator's"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly below `n`, which is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}
