//! Matrices in shared memory as the descriptors of `wgmma` say: where each 16 bytes of one lie.
//!
//! A matrix consists of cores of eight rows of 16 bytes. In the major order of K a row is one of M
//! (or N), and its 16 bytes continue along K; in that of M (or N) a row is one of K, and its bytes
//! continue along M (or N). A pattern of 32, 64 or 128 bytes a row has its 16 bytes exchanged: bits
//! 4 to 6 of the address are those of the linear one, exclusive or its bits 7 to 9, as many as the
//! pattern has. Layouts as in the PTX ISA, "Shared Memory Matrix Layout".

use super::registers::LANES;

/// A matrix descriptor taken apart; all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixDescriptor {
    pub(crate) start: u32,
    leading: u32,
    stride: u32,
    /// Rows of 128 bytes by which the pattern begins behind a multiple of its length.
    pub(crate) base_offset: u32,
    /// Bytes of a row of the pattern; 16: nothing is exchanged.
    pub(crate) width: u32,
}

/// Which direction lies in a row of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MajorOrder {
    /// Along K.
    Depth,
    /// Along M or N.
    Side,
}

impl MatrixDescriptor {
    pub(crate) fn of(bits: u64) -> Self {
        let field = |at: u32| ((bits >> at) as u32 & 0x3fff) << 4;
        MatrixDescriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (bits >> 49) as u32 & 7,
            width: match bits >> 62 {
                0 => 16,
                1 => 128,
                2 => 64,
                _ => 32,
            },
        }
    }

    /// Bytes after which the pattern repeats.
    pub(crate) fn period(&self) -> u32 {
        self.width * 8
    }

    fn exchanged(&self, linear: u32) -> u32 {
        let phase = (linear >> 7).wrapping_sub(self.base_offset);
        linear ^ (phase & (self.width / 16 - 1)) << 4
    }

    /// Where the 16 bytes with number `chunk` along K of row `row` of M (or N) lie.
    fn along_depth(&self, row: u32, chunk: u32) -> u32 {
        let along = if self.width == 16 { self.leading } else { 16 };
        let core = self.start + row / 8 * self.stride + chunk * along;
        self.exchanged(core + row % 8 * self.width)
    }

    /// Where the 16 bytes with number `chunk` along M (or N) of row `k` of K lie.
    fn along_side(&self, chunk: u32, k: u32) -> u32 {
        let wide = self.width / 16;
        let (chunks, rows) = match wide {
            1 => (self.stride, self.leading),
            _ => (self.leading, self.stride),
        };
        let core = self.start + chunk / wide * chunks + k / 8 * rows;
        self.exchanged(core + chunk % wide * 16 + k % 8 * self.width)
    }

    /// Where the eight rows of a core lie: the one with number `group` along M (or N) and `chunk`
    /// along K. Elements of 16 bits are eight in either direction.
    #[inline]
    pub(crate) fn core(&self, order: MajorOrder, group: u32, chunk: u32) -> [u32; 8] {
        std::array::from_fn(|n| match order {
            MajorOrder::Depth => self.along_depth(8 * group + n as u32, chunk),
            MajorOrder::Side => self.along_side(group, 8 * chunk + n as u32),
        })
    }
}

/// The words of a core as lanes hold those of a matrix of 8 by 16 bytes: four lanes a row of M (or
/// N). Nothing if a row lies outside of `memory`.
#[inline]
pub(crate) fn load_core(memory: &[u8], rows: &[u32; 8], order: MajorOrder) -> Option<[u32; LANES]> {
    let mut words = [0u32; LANES];
    for (words, &at) in words.as_chunks_mut::<4>().0.iter_mut().zip(rows) {
        let row = memory.get(at as usize..)?.first_chunk::<16>()?;
        for (word, bytes) in words.iter_mut().zip(row.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
    Some(match order {
        MajorOrder::Depth => words,
        MajorOrder::Side => exchange_halves(&words),
    })
}

/// A matrix of 8 by 8 halves with rows and columns exchanged; a row is the words of four lanes.
#[inline]
fn exchange_halves(words: &[u32; LANES]) -> [u32; LANES] {
    let half = |row: usize, column: usize| words[4 * row + column / 2] >> (16 * (column % 2));
    std::array::from_fn(|l| {
        let (row, column) = (l / 4, 2 * (l % 4));
        half(column, row) & 0xffff | half(column + 1, row) << 16
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(start: u32, leading: u32, stride: u32, mode: u64) -> MatrixDescriptor {
        let field = |v: u32| u64::from(v >> 4);
        MatrixDescriptor::of(field(start) | field(leading) << 16 | field(stride) << 32 | mode << 62)
    }

    #[test]
    fn the_layouts_are_those_of_the_manuals_examples() {
        // tf32, K-major, no pattern: ((8,2),(4,4)):((4,32),(1,64)) in elements.
        let d = descriptor(0, 256, 128, 0);
        for (row, k) in [(0, 0), (7, 3), (9, 4), (15, 7)] {
            let element = row % 8 * 4 + row / 8 * 32 + k % 4 + k / 4 * 64;
            assert_eq!(d.along_depth(row, k / 4) + k % 4 * 4, element * 4);
        }
        // bf16, N-major, no pattern: ((8,1,2),(8,2)):((1,8,64),(8,128)).
        let d = descriptor(0, 256, 128, 0);
        for (n, k) in [(0, 0), (7, 1), (8, 7), (15, 8), (3, 15)] {
            let element = n % 8 + n / 8 * 64 + k % 8 * 8 + k / 8 * 128;
            assert_eq!(d.along_side(n / 8, k) + n % 8 * 2, element * 2);
        }
        // bf16, N-major, 64 bytes: ((8,4,2),(8,2)):((1,8,256),(32,512)), then exchanged.
        let d = descriptor(0, 512, 1024, 2);
        for (n, k) in [(0u32, 0u32), (9, 1), (33, 5), (63, 15), (17, 8)] {
            let element = n % 8 + n / 8 % 4 * 8 + n / 32 * 256 + k % 8 * 32 + k / 8 * 512;
            let linear = element * 2;
            let place = linear ^ (linear >> 7 & 3) << 4;
            assert_eq!(d.along_side(n / 8, k) + n % 8 * 2, place);
        }
    }

    #[test]
    fn a_pattern_may_begin_behind_a_multiple_of_its_length() {
        let at = |start: u32, base: u64| {
            let bits = u64::from(start >> 4) | 64 << 32 | 1 << 62 | base << 49;
            let d = MatrixDescriptor::of(bits);
            d.core(MajorOrder::Depth, 0, 1).map(|a| a - start)
        };
        assert_eq!(at(1024, 0), at(1024 + 384, 3));
        assert_ne!(at(1024, 0), at(1024 + 384, 0));
    }
}
