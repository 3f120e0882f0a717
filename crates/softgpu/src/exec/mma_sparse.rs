//! `mma.sp`: products with a matrix A of which half the elements are zero and not stored.
//!
//! Of every four elements of a row of A two are stored, of tf32 one of every two, of four-bit
//! integers two pairs of every four pairs. Metadata holds their places, two bits for each stored
//! element or pair and four bits for each such group. The stored elements are laid over the lanes
//! as a dense matrix of half the columns.

use super::mma::{Accumulator, MAX_K, MAX_MN, Matrix, Mma, MmaElement};

/// A product with a sparse A; `product.k` counts the zeros too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SparseProduct {
    pub(crate) product: Mma,
    /// Which lanes of each four have the metadata.
    pub(crate) selector: u32,
}

impl SparseProduct {
    /// Columns of A in a group, and those of them that are stored.
    fn group(&self) -> (usize, usize) {
        match self.product.a {
            MmaElement::Tf32 => (2, 1),
            MmaElement::S4 | MmaElement::U4 => (8, 4),
            _ => (4, 2),
        }
    }

    /// Bits of metadata of a row.
    fn row_bits(&self) -> u32 {
        self.product.k / self.group().0 as u32 * 4
    }

    /// Whether an instruction may have this selector.
    pub(crate) fn is_selector_valid(&self) -> bool {
        self.selector < 64 / self.row_bits()
    }

    /// The four bits of metadata of group `group` of row `row`, as an H200 takes them.
    fn metadata(&self, row: usize, group: usize, e: &impl Fn(u32) -> u32) -> u32 {
        let (four, upper, at) = ((row % 8 * 4) as u32, (row / 8) as u32, 4 * group as u32);
        match (self.row_bits(), self.product.a.bits()) {
            // A lane has both rows.
            (16, _) => e(four + self.selector) >> (16 * upper + at) & 15,
            // Each lane of a pair has a half of both rows.
            (32, 16 | 32) => e(four + 2 * self.selector + at / 16) >> (16 * upper + at % 16) & 15,
            // One lane of a pair has a row, the other the row eight further; and so the second
            // pair the second half of each, where there is one.
            (32, _) => e(four + 2 * self.selector + upper) >> at & 15,
            _ => e(four + 2 * (at / 32) + upper) >> (at % 32) & 15,
        }
    }

    /// The column in which stored element `stored` of a row stands.
    pub(super) fn column(&self, row: usize, stored: usize, e: &impl Fn(u32) -> u32) -> usize {
        let (width, kept) = self.group();
        let (group, nth) = (stored / kept, stored % kept);
        let bits = self.metadata(row, group, e) as usize;
        let within = match self.product.a {
            // Two bits for each 16 of its bits: 0 and 1, or 2 and 3.
            MmaElement::Tf32 => bits >> 1 & 1,
            MmaElement::S4 | MmaElement::U4 => 2 * (bits >> (nth / 2 * 2) & 3) + nth % 2,
            _ => bits >> (2 * nth) & 3,
        };
        group * width + within
    }

    /// Runs the operation, as [`Mma::run`] does; `e` gives the metadata of a lane.
    pub(crate) fn run(
        &self,
        counts: [u32; 4],
        a: impl Fn(u32, u32) -> u64,
        b: impl Fn(u32, u32) -> u64,
        c: impl Fn(u32, u32) -> u64,
        e: impl Fn(u32) -> u32,
        mut d: impl FnMut(u32, u32, u64),
    ) {
        let p = &self.product;
        let (m, n, k) = (p.m as usize, p.n as usize, p.k as usize);
        let stored = k / 2;
        let mut left = vec![[0u64; MAX_K]; m];
        let mut right = vec![[0u64; MAX_MN]; k];
        p.spread(Matrix::A, p.a, counts[0], a, |row, column, raw| {
            left[row][column] = raw;
        });
        p.spread(Matrix::B, p.b, counts[1], b, |row, column, raw| {
            right[row][column] = raw;
        });
        let mut sums = [[0f64; MAX_MN]; MAX_MN];
        let mut integers = [[0i64; MAX_MN]; MAX_MN];
        let per = |sums| if sums == Accumulator::F16 { 2 } else { 1 };
        self.each_sum(counts[2], per(p.c), |register, lane, i, row, column| {
            let raw = c(register, lane);
            if p.c == Accumulator::S32 {
                integers[row][column] = i64::from(raw as i32);
            } else {
                sums[row][column] = p.read_sum(raw, i);
            }
        });
        for row in 0..m {
            let columns = (0..stored).map(|s| self.column(row, s, &e));
            if p.a.is_float() {
                // Only what is stored is multiplied: a zero that is not has no product.
                let mut factors = [0f64; MAX_K];
                let mut chosen = [[0f64; MAX_MN]; MAX_K];
                for (s, column) in columns.enumerate() {
                    let at = p.place_in_steps(s, stored);
                    factors[at] = p.a.float(left[row][s]);
                    for j in 0..n {
                        chosen[at][j] = p.b.float(right[column][j]);
                    }
                }
                p.add_products(&mut sums[row][..n], &factors[..stored], &chosen);
            } else {
                for (s, column) in columns.enumerate() {
                    let x = p.a.integer(left[row][s]);
                    for j in 0..n {
                        integers[row][j] += x * p.b.integer(right[column][j]);
                    }
                }
            }
        }
        let mut out = vec![[0u64; 32]; counts[3] as usize];
        self.each_sum(counts[3], per(p.d), |register, lane, i, row, column| {
            out[register as usize][lane as usize] |= match p.d {
                Accumulator::S32 => {
                    let v = integers[row][column];
                    u64::from(if p.saturate {
                        v.clamp(i32::MIN.into(), i32::MAX.into()) as u32
                    } else {
                        v as u32
                    })
                }
                _ => p.write_sum(sums[row][column], i),
            };
        });
        for (register, lanes) in out.iter().enumerate() {
            for (lane, &raw) in lanes.iter().enumerate() {
                d(register as u32, lane as u32, raw);
            }
        }
    }

    /// Calls `f` with (register, lane, element, row, column) of each sum.
    fn each_sum(&self, registers: u32, per: u32, mut f: impl FnMut(u32, u32, u32, usize, usize)) {
        for lane in 0..32 {
            for register in 0..registers {
                for i in 0..per {
                    let (row, column) = self.product.place(Matrix::C, lane, register, i, per);
                    f(register, lane, i, row as usize, column as usize);
                }
            }
        }
    }
}
