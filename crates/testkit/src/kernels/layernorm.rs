//! Layer normalisation of each row of a matrix, of any length.
//!
//! Three passes over the row: mean, then variance about that mean, then writing. Squares of
//! differences lose nothing to cancellation, as sums of squares would. The second and third
//! reading come from cache.

pub use super::rows::RowExtents;

use super::rows::{self, MAX_THREADS, MatrixRow};
use super::{ArgDoc, F32, F32_PTR, KernelDesc, U32, arg};
use fercuda_ptx::build::{Arch, BuildError, ModuleBuilder, Reg};

const ARGS: &[ArgDoc] = &[
    arg("x", F32_PTR, "[rows, cols], contiguous"),
    arg("gamma", F32_PTR, "[cols]: factor"),
    arg("beta", F32_PTR, "[cols]: addend"),
    arg("out", F32_PTR, "[rows, cols], contiguous; may be x"),
    arg("rows", U32, "number of rows"),
    arg("cols", U32, "length of a row"),
    arg("eps", F32, "added to the variance"),
];

/// `out = (x - mean) / sqrt(variance + eps) * gamma + beta` for each row, in `f32`; the
/// variance is the mean of squared differences (not corrected).
///
/// # Errors
/// None for architectures that exist.
pub fn f32(arch: Arch) -> Result<KernelDesc<RowExtents>, BuildError> {
    let mut module = ModuleBuilder::new(arch);
    module.kernel("layernorm", |k| {
        k.max_threads(MAX_THREADS);
        let x = k.param_ptr::<f32>("x");
        let gamma = k.param_ptr::<f32>("gamma");
        let beta = k.param_ptr::<f32>("beta");
        let out = k.param_ptr::<f32>("out");
        let rows = k.param::<u32>("rows");
        let cols = k.param::<u32>("cols");
        let eps = k.param::<f32>("eps");
        let (row, [x, out]) = MatrixRow::new(k, [rows, cols], [("x", x), ("out", out)]);
        let row = row.with(gamma).with(beta);
        let length = cols.to::<f32>().named("length");

        let sum = k.var("sum", 0.0);
        let add = |i: Reg<'_, u32>, four| {
            rows::load(x, i, four)
                .into_iter()
                .for_each(|v| sum.set(sum + v))
        };
        row.each(|i| add(i, true), |i| add(i, false));
        let mean = (row.reduce("sum", *sum, 0.0, |a, b| a + b) / length).named("mean");

        let squares = k.var("squares", 0.0);
        let add_squares = |i: Reg<'_, u32>, four| {
            for v in rows::load(x, i, four) {
                let difference = v - mean;
                squares.accumulate(difference, difference);
            }
        };
        row.each(|i| add_squares(i, true), |i| add_squares(i, false));
        let variance =
            (row.reduce("squares", *squares, 0.0, |a, b| a + b) / length).named("variance");
        let inverse = (variance + eps).sqrt().recip().named("inverse");

        let write = |i: Reg<'_, u32>, four| {
            let x = rows::load(x, i, four);
            let gamma = rows::load(gamma, i, four);
            let beta = rows::load(beta, i, four);
            let y: Vec<_> = x
                .into_iter()
                .zip(gamma.into_iter().zip(beta))
                .map(|(x, (gamma, beta))| ((x - mean) * inverse).mul_add(gamma, beta))
                .collect();
            rows::store(out, i, &y);
        };
        row.each(|i| write(i, true), |i| write(i, false));
    });
    Ok(KernelDesc {
        module: module.finish()?,
        entry: "layernorm".into(),
        args: ARGS,
        geometry: Box::new(|s| rows::launch("layernorm", s)),
    })
}
