//! Granule: the unit of what can be mapped.

/// Size and alignment of everything that can be mapped, in bytes.
pub const GRANULE: u64 = 2 << 20;

/// `len` in whole granules, at least one and at most as many as 64 bits hold.
#[must_use]
pub fn round_up(len: u64) -> u64 {
    len.clamp(1, u64::MAX / GRANULE * GRANULE)
        .next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_rounded_up_to_granules_that_exist() {
        let most = u64::MAX / GRANULE * GRANULE;
        for (len, rounded) in [
            (0, GRANULE),
            (1, GRANULE),
            (GRANULE, GRANULE),
            (GRANULE + 1, 2 * GRANULE),
            (most, most),
            (u64::MAX, most),
        ] {
            assert_eq!(round_up(len), rounded, "{len}");
        }
    }
}
