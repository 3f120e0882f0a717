//! Matrices in f64, and what references of linear algebra need of them: products, inverses,
//! factors, by other algorithms than those of the kernels.

use super::scalar::total;
use crate::arrays::HostArray;

/// A matrix on the host, row after row.
#[derive(Clone, Debug)]
pub(super) struct HostMatrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<f64>,
}

impl HostMatrix {
    /// The matrix whose elements a function gives.
    pub(super) fn by(rows: usize, columns: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        let all = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
        Self {
            rows,
            columns,
            values: all.map(|(i, j)| f(i, j)).collect(),
        }
    }

    /// The matrix of an array at an index of the outer dimensions, to which these are broadcast.
    pub(super) fn of(x: &HostArray, outer: &[u64]) -> Self {
        let [.., rows, columns] = x.shape[..] else {
            return Self::by(0, 0, |_, _| 0.0);
        };
        let at = |i: usize, j: usize| x.at(&[outer, &[i as u64, j as u64]].concat());
        Self::by(rows as usize, columns as usize, at)
    }

    pub(super) fn identity(extent: usize) -> Self {
        Self::by(extent, extent, |i, j| f64::from(u8::from(i == j)))
    }

    pub(super) fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.columns + j]
    }

    pub(super) fn set(&mut self, i: usize, j: usize, value: f64) {
        self.values[i * self.columns + j] = value;
    }

    pub(super) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self::by(self.rows, self.columns, |i, j| f(self.at(i, j)))
    }

    /// The elements' magnitudes.
    pub(super) fn magnitudes(&self) -> Self {
        self.map(f64::abs)
    }

    pub(super) fn transposed(&self) -> Self {
        Self::by(self.columns, self.rows, |i, j| self.at(j, i))
    }

    pub(super) fn product(&self, other: &Self) -> Self {
        let sum =
            |i: usize, j: usize| total((0..self.columns).map(|k| self.at(i, k) * other.at(k, j)));
        Self::by(self.rows, other.columns, sum)
    }

    /// Elements of both, by a function.
    pub(super) fn with(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let both = |i: usize, j: usize| f(self.at(i, j), other.at(i, j));
        Self::by(self.rows, self.columns, both)
    }

    /// The root of the sum of squares.
    pub(super) fn norm(&self) -> f64 {
        self.values.iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    /// The largest sum of magnitudes of a row.
    pub(super) fn row_norm(&self) -> f64 {
        let row = |i: usize| (0..self.columns).map(|j| self.at(i, j).abs()).sum::<f64>();
        (0..self.rows).map(row).fold(0.0, f64::max)
    }

    /// The inverse, by Gauss-Jordan elimination; nothing of a singular matrix.
    pub(super) fn inverse(&self) -> Option<Self> {
        let n = self.rows;
        let (mut left, mut right) = (self.clone(), Self::identity(n));
        for j in 0..n {
            let size = |i: &usize| left.at(*i, j).abs();
            let pivot = (j..n).max_by(|a, b| size(a).total_cmp(&size(b)))?;
            let scale = left.at(pivot, j);
            if scale == 0.0 || !scale.is_finite() {
                return None;
            }
            for side in [&mut left, &mut right] {
                for k in 0..n {
                    let (a, b) = (side.at(j, k), side.at(pivot, k));
                    side.set(pivot, k, a);
                    side.set(j, k, b / scale);
                }
            }
            for i in (0..n).filter(|i| *i != j) {
                let factor = left.at(i, j);
                for side in [&mut left, &mut right] {
                    for k in 0..n {
                        side.set(i, k, side.at(i, k) - factor * side.at(j, k));
                    }
                }
            }
        }
        Some(right)
    }

    /// The product of the inverse and a matrix, improved once by its residual.
    pub(super) fn solved(&self, inverse: &Self, right: &Self) -> Self {
        let first = inverse.product(right);
        let residual = right.with(&self.product(&first), |b, ax| b - ax);
        first.with(&inverse.product(&residual), |x, dx| x + dx)
    }
}

/// Factors of a matrix with interchanged rows, column after column.
pub(super) struct HostFactors {
    /// Both factors in one.
    pub(super) packed: HostMatrix,
    pub(super) pivots: Vec<usize>,
    /// The row of the matrix that is each row of the product.
    pub(super) order: Vec<usize>,
    /// Smallest distance of a pivot from the next candidate, and of a pivot from 0.
    pub(super) margin: f64,
    pub(super) least: f64,
}

impl HostFactors {
    pub(super) fn of(x: &HostMatrix) -> Self {
        let (rows, columns) = (x.rows, x.columns);
        let mut all = Self {
            packed: x.clone(),
            pivots: Vec::new(),
            order: (0..rows).collect(),
            margin: f64::INFINITY,
            least: f64::INFINITY,
        };
        for j in 0..columns {
            // What earlier columns do to this one.
            for i in 1..rows {
                let known = i.min(j);
                let terms = (0..known).map(|k| all.packed.at(i, k) * all.packed.at(k, j));
                let value = all.packed.at(i, j) - total(terms);
                all.packed.set(i, j, value);
            }
            if j < rows {
                all.choose(j);
            }
        }
        all
    }

    /// Exchanges the pivot's row with row `j`, and divides the column below by it.
    fn choose(&mut self, j: usize) {
        let (rows, columns) = (self.packed.rows, self.packed.columns);
        let size = |i: usize| self.packed.at(i, j).abs();
        let mut pivot = j;
        for i in j..rows {
            if size(i) > size(pivot) {
                pivot = i;
            }
        }
        for i in (j..rows).filter(|i| *i != pivot) {
            self.margin = self.margin.min(size(pivot) - size(i));
        }
        self.least = self.least.min(size(pivot));
        self.pivots.push(pivot);
        self.order.swap(j, pivot);
        for k in 0..columns {
            let (a, b) = (self.packed.at(j, k), self.packed.at(pivot, k));
            self.packed.set(pivot, k, a);
            self.packed.set(j, k, b);
        }
        let scale = self.packed.at(j, j);
        for i in j + 1..rows {
            if scale != 0.0 {
                self.packed.set(i, j, self.packed.at(i, j) / scale);
            }
        }
    }

    /// Both factors, filled up to square ones by the identity.
    pub(super) fn square(&self) -> [HostMatrix; 2] {
        let (rows, columns) = (self.packed.rows, self.packed.columns);
        let (steps, extent) = (rows.min(columns), rows.max(columns));
        let is_there = |i: usize, j: usize| i < rows && j < columns;
        let unit = |i: usize, j: usize| f64::from(u8::from(i == j));
        let lower = |i: usize, j: usize| match is_there(i, j) && j < i && j < steps {
            true => self.packed.at(i, j),
            false => unit(i, j),
        };
        let upper = |i: usize, j: usize| match is_there(i, j) && i < steps {
            true if i <= j => self.packed.at(i, j),
            true => 0.0,
            false => unit(i, j),
        };
        [
            HostMatrix::by(extent, extent, lower),
            HostMatrix::by(extent, extent, upper),
        ]
    }

    /// The product of the factors' magnitudes, with the rows where they were in the matrix.
    pub(super) fn growth(&self) -> HostMatrix {
        let [lower, upper] = self.square().map(|factor| factor.magnitudes());
        let product = lower.product(&upper);
        let mut all = product.clone();
        for (own, from) in self.order.iter().enumerate() {
            for j in 0..all.columns {
                all.set(*from, j, product.at(own, j));
            }
        }
        all
    }
}

/// Orthonormal columns of a matrix, by orthogonalising each twice, and its triangle.
pub(super) fn orthogonal(x: &HostMatrix) -> [HostMatrix; 2] {
    let steps = x.rows.min(x.columns);
    let mut q = HostMatrix::by(x.rows, steps, |_, _| 0.0);
    let mut r = HostMatrix::by(steps, x.columns, |_, _| 0.0);
    for j in 0..x.columns {
        let mut column: Vec<f64> = (0..x.rows).map(|i| x.at(i, j)).collect();
        for k in (0..2).flat_map(|_| 0..j.min(steps)) {
            let along = total(column.iter().enumerate().map(|(i, own)| own * q.at(i, k)));
            for (i, own) in column.iter_mut().enumerate() {
                *own -= along * q.at(i, k);
            }
            r.set(k, j, r.at(k, j) + along);
        }
        if j < steps {
            let norm = total(column.iter().map(|own| own * own)).sqrt();
            r.set(j, j, norm);
            for (i, own) in column.iter().enumerate() {
                q.set(i, j, own / norm);
            }
        }
    }
    [q, r]
}
