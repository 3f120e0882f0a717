//! `mma.m8n8k4` of f16: four products of 8 by 4 with 4 by 8, each of eight lanes.
//!
//! Lanes 4 q to 4 q + 3 and 16 + 4 q to 16 + 4 q + 3 hold the fragments of product q. A lane of the
//! lower half holds row or column `lane % 4` of a matrix, one of the upper half the one four
//! further.
//!
//! No tensor core of compute capability 9.0 does this: NVIDIA's assembler calls a function that
//! moves the elements and multiplies in f32, whose order of operations is that of
//! [`QuadProduct::add`].

use super::mma::{Accumulator, Major, Matrix, Mma, MmaElement};

/// Rows and columns of C, and the depth of a product.
const SIDE: usize = 8;
const DEPTH: usize = 4;

/// A product of such fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QuadProduct {
    pub(crate) product: Mma,
    pub(crate) a: Major,
    pub(crate) b: Major,
}

/// (row, column) of element `i` of a fragment, counted through its registers.
fn place(p: &QuadProduct, matrix: Matrix, lane: usize, i: usize) -> (usize, usize) {
    let within = lane % 4;
    let upper = if lane < 16 { 0 } else { 4 };
    match matrix {
        Matrix::A if p.a == Major::Row => (within + upper, i),
        Matrix::A => (i + upper, within),
        Matrix::B if p.b == Major::Row => (within, i + upper),
        Matrix::B => (i, within + upper),
        Matrix::C => (within + upper, i),
    }
}

/// The same for sums in f32, of which a lane holds two rows of four.
fn place_f32(lane: usize, i: usize) -> (usize, usize) {
    let row = (lane & 1) + (i & 2) + if lane < 16 { 0 } else { 4 };
    (row, (i & 4) + (lane & 2) + (i & 1))
}

fn place_sum(p: &QuadProduct, sums: Accumulator, lane: usize, i: usize) -> (usize, usize) {
    match sums {
        Accumulator::F16 => place(p, Matrix::C, lane, i),
        _ => place_f32(lane, i),
    }
}

impl QuadProduct {
    /// Registers of A, B, C and D.
    pub(crate) fn counts(&self) -> [usize; 4] {
        let sums = |a| if a == Accumulator::F16 { 4 } else { 8 };
        [2, 2, sums(self.product.c), sums(self.product.d)]
    }

    /// `c + x . y`.
    fn add(&self, c: f32, x: [f32; DEPTH], y: [f32; DEPTH]) -> f32 {
        if self.product.d == Accumulator::F32 {
            let products = x.iter().zip(y).fold(0f32, |p, (x, y)| x.mul_add(y, p));
            return c + products;
        }
        // Each pair is added to C by itself, all in f32.
        let pair = |i: usize| x[i + 1].mul_add(y[i + 1], x[i] * y[i]);
        c + pair(0) + pair(2)
    }

    /// Runs the operation, as [`Mma::run`] does.
    pub(crate) fn run(
        &self,
        a: impl Fn(u32, u32) -> u64,
        b: impl Fn(u32, u32) -> u64,
        c: impl Fn(u32, u32) -> u64,
        mut d: impl FnMut(u32, u32, u64),
    ) {
        let half =
            |raw: u64, i: usize| MmaElement::F16.float(raw >> (16 * (i % 2)) & 0xffff) as f32;
        let per = |sums| if sums == Accumulator::F16 { 2 } else { 1 };
        let (per_c, per_d) = (per(self.product.c), per(self.product.d));
        for quad in 0..4 {
            let lanes = || (0..8).map(|n| 4 * quad + n % 4 + 16 * (n / 4));
            let mut sums = [[0f64; SIDE]; SIDE];
            let mut left = [[0f32; DEPTH]; SIDE];
            let mut right = [[0f32; DEPTH]; SIDE];
            for lane in lanes() {
                for i in 0..DEPTH {
                    let register = i as u32 / 2;
                    let (row, column) = place(self, Matrix::A, lane, i);
                    left[row][column] = half(a(register, lane as u32), i);
                    let (row, column) = place(self, Matrix::B, lane, i);
                    right[column][row] = half(b(register, lane as u32), i);
                }
                for i in 0..SIDE {
                    let (row, column) = place_sum(self, self.product.c, lane, i);
                    let raw = c((i / per_c) as u32, lane as u32);
                    sums[row][column] = self.product.read_sum(raw, (i % per_c) as u32);
                }
            }
            for (sums, left) in sums.iter_mut().zip(&left) {
                for (sum, right) in sums.iter_mut().zip(&right) {
                    *sum = f64::from(self.add(*sum as f32, *left, *right));
                }
            }
            for lane in lanes() {
                for register in 0..SIDE / per_d {
                    let raw = (0..per_d).fold(0, |raw, k| {
                        let (row, column) =
                            place_sum(self, self.product.d, lane, register * per_d + k);
                        raw | self.product.write_sum(sums[row][column], k as u32)
                    });
                    d(register as u32, lane as u32, raw);
                }
            }
        }
    }
}
