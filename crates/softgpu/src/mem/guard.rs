//! Guard: addresses on either side of a block, which belong to no block.

const LEAST: u64 = 4096;
const MOST: u64 = 16 << 20;
const UNIT: u64 = 512;

/// Bytes of guard on each side of a block of `len` bytes: a quarter of it, at least 4 KiB and at
/// most 16 MiB, in multiples of 512.
pub(crate) fn guard_bytes(len: u64) -> u64 {
    (len / 4).clamp(LEAST, MOST).next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_grows_with_its_block() {
        let cases = [
            (0, LEAST),
            (4, LEAST),
            (16 << 10, 4096),
            (70_000, 17_920),
            (1 << 20, 256 << 10),
            (32 << 20, 8 << 20),
            (u64::MAX, MOST),
        ];
        for (len, guard) in cases {
            assert_eq!(guard_bytes(len), guard, "{len}");
        }
    }
}
