//! Matrix multiply-accumulate on the fragments of a warp: `mma.sync` and `wmma.mma`.
//!
//! One operation of the warp is one native loop nest: fragments are spread into matrices,
//! multiplied, and gathered again. `mma.sync` has the ISA's fragment layouts; `wmma` fragments are
//! opaque to programs, so theirs is simply the matrix in row order, dealt out to the lanes.
//!
//! Sums in f16 and f32 are those of [`super::dot`], by the steps into which NVIDIA's assembler
//! divides an instruction on compute capability 9.0: `mma` of e4m3 and e5m2 forms two products of
//! f16 without C, and then adds that; `wmma` of tf32 takes its depth of 8 in two steps.

use super::dot::DotRule;
pub(crate) use super::mma_types::{Accumulator, MAX_MN, MmaElement};
use super::scalar::RoundMode;
use super::scalar::float::canonical;
use super::scalar::half::{F16, Overflow};

/// How single bits are combined before they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BitOp {
    Xor,
    And,
}

/// Which rows or columns of a matrix lie next to each other in a register of `m8n8k4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Major {
    Row,
    Column,
}

/// How fragments are laid over the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FragmentLayout {
    /// The ISA's layouts for `mma.sync`.
    Mma,
    /// Our own for `wmma`, whatever `.row` or `.col` the matrix had in memory.
    Wmma,
}

/// Which matrix a fragment is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Matrix {
    /// m x k
    A,
    /// k x n
    B,
    /// m x n, accumulators
    C,
}

/// D = A * B + C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mma {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) a: MmaElement,
    pub(crate) b: MmaElement,
    pub(crate) c: Accumulator,
    pub(crate) d: Accumulator,
    /// `.satfinite`: integer sums clamp to 32 bits.
    pub(crate) saturate: bool,
    pub(crate) bit_op: BitOp,
    pub(crate) layout: FragmentLayout,
}

/// Largest k of any shape.
pub(super) const MAX_K: usize = 256;

/// Place of `element` of the fragment of `matrix` that `lane` holds in our wmma layout: (row,
/// column).
///
/// Fragments with more room than a 32nd of the matrix hold it again; those copies are equal.
pub(crate) fn wmma_place(
    m: u32,
    n: u32,
    k: u32,
    matrix: Matrix,
    lane: u32,
    element: u32,
) -> (u32, u32) {
    let (rows, columns) = match matrix {
        Matrix::A => (m, k),
        Matrix::B => (k, n),
        Matrix::C => (m, n),
    };
    let per_lane = rows * columns / 32;
    let index = lane * per_lane + element % per_lane;
    (index / columns, index % columns)
}

impl Mma {
    /// (row, column) of element `i` of register `register` in `lane`, `per` elements a register.
    #[inline]
    pub(super) fn place(
        &self,
        matrix: Matrix,
        lane: u32,
        register: u32,
        i: u32,
        per: u32,
    ) -> (u32, u32) {
        if self.layout == FragmentLayout::Wmma {
            return wmma_place(self.m, self.n, self.k, matrix, lane, register * per + i);
        }
        let (group, thread) = (lane / 4, lane % 4);
        match matrix {
            Matrix::A => {
                let (row, block) = if self.m == 16 {
                    (group + 8 * (register & 1), register / 2)
                } else {
                    (group, register)
                };
                (row, block * 4 * per + thread * per + i)
            }
            Matrix::B => (register * 4 * per + thread * per + i, group),
            Matrix::C if per == 2 => (group + 8 * register, 2 * thread + i),
            Matrix::C => (group + 8 * (register / 2), 2 * thread + (register & 1)),
        }
    }

    /// Runs the operation. `a`, `b` and `c` give a register of a lane (zero-extended), `d` takes
    /// one.
    ///
    /// `counts` are the numbers of registers of the fragments of A, B, C and D.
    pub(crate) fn run(
        &self,
        counts: [u32; 4],
        a: impl Fn(u32, u32) -> u64,
        b: impl Fn(u32, u32) -> u64,
        c: impl Fn(u32, u32) -> u64,
        mut d: impl FnMut(u32, u32, u64),
    ) {
        let mut sums = [[0f64; MAX_MN]; MAX_MN];
        let mut integers = [[0i64; MAX_MN]; MAX_MN];
        let (m, n, k) = (self.m as usize, self.n as usize, self.k as usize);
        // C first: the products are added to it.
        let per_c = if self.c == Accumulator::F16 { 2 } else { 1 };
        for lane in 0..32 {
            for register in 0..counts[2] {
                let raw = c(register, lane);
                for i in 0..per_c {
                    let (row, column) = self.place(Matrix::C, lane, register, i, per_c);
                    let (row, column) = (row as usize, column as usize);
                    match self.c {
                        Accumulator::S32 => integers[row][column] = i64::from(raw as i32),
                        _ => sums[row][column] = self.read_sum(raw, i),
                    }
                }
            }
        }
        if self.a.is_float() {
            let mut left = [[0f64; MAX_K]; MAX_MN];
            let mut right = [[0f64; MAX_MN]; MAX_K];
            self.spread(Matrix::A, self.a, counts[0], a, |row, column, raw| {
                left[row][self.place_in_steps(column, k)] = self.a.float(raw)
            });
            self.spread(Matrix::B, self.b, counts[1], b, |row, column, raw| {
                right[self.place_in_steps(row, k)][column] = self.b.float(raw)
            });
            for (sum, left) in sums.iter_mut().zip(&left).take(m) {
                self.add_products(&mut sum[..n], &left[..k], &right);
            }
        } else if self.a == MmaElement::B1 && self.layout == FragmentLayout::Mma {
            // A register is 32 bits of a row of A, or of a column of B.
            let mut left = [[0u32; MAX_K / 32]; MAX_MN];
            let mut right = [[0u32; MAX_K / 32]; MAX_MN];
            for lane in 0..32 {
                for register in 0..counts[0] {
                    let (row, at) = self.place(Matrix::A, lane, register, 0, 32);
                    left[row as usize][at as usize / 32] = a(register, lane) as u32;
                }
                for register in 0..counts[1] {
                    let (at, column) = self.place(Matrix::B, lane, register, 0, 32);
                    right[column as usize][at as usize / 32] = b(register, lane) as u32;
                }
            }
            for (sum, left) in integers.iter_mut().zip(&left).take(m) {
                for (sum, right) in sum.iter_mut().zip(&right).take(n) {
                    let both = left.iter().zip(right);
                    let ones = both.map(|(x, y)| match self.bit_op {
                        BitOp::And => x & y,
                        BitOp::Xor => x ^ y,
                    });
                    *sum += i64::from(ones.map(u32::count_ones).sum::<u32>());
                }
            }
        } else {
            let mut left = [[0i64; MAX_K]; MAX_MN];
            let mut right = [[0i64; MAX_MN]; MAX_K];
            self.spread(Matrix::A, self.a, counts[0], a, |row, column, raw| {
                left[row][column] = self.a.integer(raw)
            });
            self.spread(Matrix::B, self.b, counts[1], b, |row, column, raw| {
                right[row][column] = self.b.integer(raw)
            });
            let bits = self.a == MmaElement::B1;
            for (sum, left) in integers.iter_mut().zip(&left).take(m) {
                for (x, right) in left.iter().zip(&right).take(k) {
                    for (s, y) in sum.iter_mut().zip(right).take(n) {
                        *s += if bits && self.bit_op == BitOp::Xor {
                            x ^ y
                        } else {
                            x * y
                        };
                    }
                }
            }
        }
        let per_d = if self.d == Accumulator::F16 { 2 } else { 1 };
        for lane in 0..32 {
            for register in 0..counts[3] {
                let mut raw = 0u64;
                for i in 0..per_d {
                    let (row, column) = self.place(Matrix::C, lane, register, i, per_d);
                    let (row, column) = (row as usize, column as usize);
                    raw |= match self.d {
                        Accumulator::S32 if self.saturate => u64::from(
                            integers[row][column].clamp(i32::MIN.into(), i32::MAX.into()) as u32,
                        ),
                        Accumulator::S32 => u64::from(integers[row][column] as u32),
                        _ => self.write_sum(sums[row][column], i),
                    };
                }
                d(register, lane, raw);
            }
        }
    }

    /// How the products of a step are added.
    pub(super) fn rule(&self) -> DotRule {
        // A sum in f32 that becomes an f16 in D is rounded twice.
        let sums = if (self.c, self.d) == (Accumulator::F16, Accumulator::F16) {
            Accumulator::F16
        } else {
            Accumulator::F32
        };
        DotRule::of(self.a, self.b, sums)
    }

    /// Whether C is added when all products have been, with a rounding of its own.
    pub(super) fn adds_c_last(&self) -> bool {
        matches!(self.a, MmaElement::E4m3 | MmaElement::E5m2)
    }

    /// Steps into which `depth` stored columns of A are divided.
    pub(super) fn steps(&self, depth: usize) -> usize {
        let halves =
            self.adds_c_last() || self.a == MmaElement::Tf32 && self.layout == FragmentLayout::Wmma;
        depth / if halves { 2 } else { 1 }
    }

    /// Where stored column `k` of A stands if the columns of one step follow one another.
    pub(super) fn place_in_steps(&self, k: usize, depth: usize) -> usize {
        if self.adds_c_last() {
            // The lower halves of registers, then the upper ones.
            k / 4 * 2 + k % 2 + (k / 2 % 2) * (depth / 2)
        } else {
            k
        }
    }

    /// Adds the product of a row of A with B to a row of sums; the columns of A are in the order
    /// of [`Mma::place_in_steps`].
    pub(super) fn add_products(
        &self,
        sums: &mut [f64],
        left: &[f64],
        right: &[[f64; MAX_MN]; MAX_K],
    ) {
        let (rule, step) = (self.rule(), self.steps(left.len()));
        let mut products = [0f64; MAX_MN];
        let n = sums.len();
        let last = self.adds_c_last();
        let into = if last { &mut products[..n] } else { &mut *sums };
        for (left, right) in left.chunks(step).zip(right.chunks(step)) {
            rule.add(into, left, right);
        }
        if last {
            for (s, p) in sums.iter_mut().zip(products) {
                *s = if rule.half {
                    // Exact in f64, so that this is rounded once.
                    F16.value(F16.round(*s + p, RoundMode::Nearest, Overflow::Ieee))
                } else {
                    f64::from(*s as f32 + p as f32)
                };
            }
        }
    }

    /// Element `i` of a register of C, in floating point.
    pub(super) fn read_sum(&self, raw: u64, i: u32) -> f64 {
        match self.c {
            Accumulator::F16 => F16.value((raw >> (16 * i)) as u32 & 0xffff),
            Accumulator::F32 => f64::from(f32::from_bits(raw as u32)),
            _ => f64::from_bits(raw),
        }
    }

    /// The bits of a sum as element `i` of a register of D.
    pub(super) fn write_sum(&self, sum: f64, i: u32) -> u64 {
        match self.d {
            Accumulator::F16 => {
                u64::from(F16.round(sum, RoundMode::Nearest, Overflow::Ieee)) << (16 * i)
            }
            Accumulator::F32 => u64::from(canonical(sum as f32).to_bits()),
            _ => sum.to_bits(),
        }
    }

    /// Calls `put` with (row, column, bits) of each element of a fragment of A or B.
    #[inline]
    pub(super) fn spread(
        &self,
        matrix: Matrix,
        element: MmaElement,
        registers: u32,
        source: impl Fn(u32, u32) -> u64,
        mut put: impl FnMut(usize, usize, u64),
    ) {
        let bits = element.bits();
        let per = (32 / bits).max(1);
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        for lane in 0..32 {
            for register in 0..registers {
                let raw = source(register, lane);
                for i in 0..per {
                    let (row, column) = self.place(matrix, lane, register, i, per);
                    put(row as usize, column as usize, raw >> (bits * i) & mask);
                }
            }
        }
    }
}
