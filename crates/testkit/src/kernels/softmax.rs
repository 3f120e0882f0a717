//! Softmax of each row of a matrix, of any length.
//!
//! Two passes: one finds the row's maximum and the sum of exponentials together, rescaling
//! the sum when the maximum grows (Milakov and Gimelshein, "Online normalizer calculation for
//! softmax", 2018); the other writes. The second reading of a row comes from cache.

pub use super::rows::RowExtents;

use super::rows::{self, MAX_THREADS, MatrixRow};
use super::{ArgDoc, F32_PTR, KernelDesc, U32, arg};
use fercuda_ptx::build::{Arch, BuildError, ModuleBuilder, Reg};

const ARGS: &[ArgDoc] = &[
    arg("x", F32_PTR, "[rows, cols], contiguous"),
    arg("out", F32_PTR, "[rows, cols], contiguous; may be x"),
    arg("rows", U32, "number of rows"),
    arg("cols", U32, "length of a row"),
];

/// `out[r, c] = exp(x[r, c] - max_r) / sum_c exp(x[r, c] - max_r)` in `f32`.
///
/// Entries of -inf give 0. A row of nothing but -inf, and a row with NaN or +inf, give NaN.
///
/// # Errors
/// [`BuildError::NeedsArch`] before sm_80.
pub fn f32(arch: Arch) -> Result<KernelDesc<RowExtents>, BuildError> {
    let mut module = ModuleBuilder::new(arch);
    module.kernel("softmax", |k| {
        k.max_threads(MAX_THREADS);
        let x = k.param_ptr::<f32>("x");
        let out = k.param_ptr::<f32>("out");
        let rows = k.param::<u32>("rows");
        let cols = k.param::<u32>("cols");
        let (row, [x, out]) = MatrixRow::new(k, [rows, cols], [("x", x), ("out", out)]);

        let max = k.var("max", f32::NEG_INFINITY);
        let sum = k.var("sum", 0.0);
        let accumulate = |i: Reg<'_, u32>, four| {
            let values = rows::load(x, i, four);
            let new_max = values.iter().fold(*max, |m, &v| m.max(v)).named("new_max");
            let shift = shift(new_max);
            sum.set(sum * (max - shift).exp());
            for v in values {
                sum.set(sum + (v - shift).exp());
            }
            max.set(new_max);
        };
        row.each(|i| accumulate(i, true), |i| accumulate(i, false));

        let row_max = row.reduce("row_max", *max, f32::NEG_INFINITY, |a, b| a.max(b));
        let shift = shift(row_max);
        let scaled = sum * (max - shift).exp();
        let row_sum = row.reduce("row_sum", scaled, 0.0, |a, b| a + b);
        let inverse = row_sum.recip().named("inverse");

        let write = |i: Reg<'_, u32>, four| {
            let values: Vec<_> = rows::load(x, i, four)
                .into_iter()
                .map(|v| (v - shift).exp() * inverse)
                .collect();
            rows::store(out, i, &values);
        };
        row.each(|i| write(i, true), |i| write(i, false));
    });
    Ok(KernelDesc {
        module: module.finish()?,
        entry: "softmax".into(),
        args: ARGS,
        geometry: Box::new(|s| rows::launch("softmax", s)),
    })
}

/// What to subtract: the maximum, or 0 while only -inf was seen, as -inf - -inf is NaN.
fn shift<'k>(max: Reg<'k, f32>) -> Reg<'k, f32> {
    max.equals(f32::NEG_INFINITY)
        .select(0.0, max)
        .named("shift")
}
