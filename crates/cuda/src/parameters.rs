//! Sizes of kernel parameters, packed to be compared at once.

/// The sizes of parameters or arguments, packed to be compared at once: a byte for each, one more
/// than the size, so that a shorter list is a different value. `None` for more than sixteen, or if
/// one does not fit its byte.
pub(crate) const fn pack(sizes: &[usize]) -> Option<[u64; 2]> {
    let mut packed = [0; 2];
    let mut index = 0;
    while index < sizes.len() {
        if index == 16 || sizes[index] > 253 {
            return None;
        }
        packed[index / 8] |= (sizes[index] as u64 + 1) << (index % 8 * 8);
        index += 1;
    }
    Some(packed)
}

/// A value that `pack` never returns.
pub(crate) const UNPACKED: [u64; 2] = [u64::MAX; 2];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_packed_alike_only_if_they_are_the_same() {
        let full = [8; 16];
        let lists: [&[usize]; 9] = [
            &[],
            &[0],
            &[0, 0],
            &[8, 4],
            &[8, 8],
            &[8, 4, 4],
            &[253; 16],
            &full[..8],
            &full,
        ];
        for (left, one) in lists.iter().enumerate() {
            assert!(
                pack(one).is_some_and(|packed| packed != UNPACKED),
                "{one:?}"
            );
            for (right, other) in lists.iter().enumerate() {
                assert_eq!(
                    pack(one) == pack(other),
                    left == right,
                    "{one:?}, {other:?}"
                );
            }
        }
        for none in [&[8; 17][..], &[254], &[8, 255], &[usize::MAX]] {
            assert_eq!(pack(none), None);
        }
    }
}
