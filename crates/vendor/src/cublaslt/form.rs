//! Checks of a product's description, and the column-major form in which the library gets it.
//!
//! Invariant: every number of a form fits the library's type for it, every layout's reach fits 63
//! bits in bytes, and no two elements of the output share memory.

use fercuda_tensor::{Dtype, Layout};

use super::spec::{Addend, MatrixLayout, MatrixOrder, ProductActivation, ProductMath, ProductSpec};
use crate::error::{Error, Result};

const OPERATION: &str = "describe a product";

/// A matrix as the library gets it: column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColumnMajor {
    pub(super) dtype: Dtype,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) leading: i64,
    pub(super) batch: i32,
    pub(super) batch_stride: i64,
    /// Bytes from its first element to behind its last.
    pub(super) reach_bytes: u64,
}

/// Number format of alpha, beta and the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleFormat {
    F32,
    F64,
    I32,
}

/// A product as the library gets it: column-major, the left factor first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColumnMajorProduct {
    pub(super) math: ProductMath,
    /// The left factor, which is B of a product that is swapped.
    pub(super) left: ColumnMajor,
    pub(super) transpose_left: bool,
    pub(super) right: ColumnMajor,
    pub(super) transpose_right: bool,
    pub(super) c: ColumnMajor,
    pub(super) d: ColumnMajor,
    /// Whether A and B changed places.
    pub(super) swapped: bool,
    pub(super) scale: ScaleFormat,
    pub(super) has_bias: bool,
    pub(super) activation: ProductActivation,
    pub(super) bias_dtype: Dtype,
    /// Whether left and right factor and the output have scale factors.
    pub(super) scaled: [bool; 3],
    pub(super) fast_accumulation: bool,
}

impl ColumnMajorProduct {
    /// Elements of the bias: one for each row.
    pub(super) fn bias_len(&self) -> u64 {
        self.d.rows
    }
}

fn refused(reason: String) -> Error {
    Error::refused(OPERATION, reason)
}

/// Checks one matrix and turns it into its column-major form.
fn column_major(name: &str, matrix: &MatrixLayout) -> Result<ColumnMajor> {
    let (inner, outer) = match matrix.order {
        MatrixOrder::Column => (matrix.rows, matrix.cols),
        MatrixOrder::Row => (matrix.cols, matrix.rows),
    };
    if inner == 0 || outer == 0 || matrix.batch == 0 {
        return Err(refused(format!(
            "{name} is empty ({matrix}), and there is nothing to multiply"
        )));
    }
    if matrix.leading < inner {
        return Err(refused(format!(
            "the leading dimension of {name} is {}, less than the {inner} elements of its \
             contiguous dimension ({matrix})",
            matrix.leading
        )));
    }
    let too_large = || refused(format!("{name} is too large ({matrix})"));
    let leading = i64::try_from(matrix.leading).map_err(|_| too_large())?;
    let batch = i32::try_from(matrix.batch).map_err(|_| too_large())?;
    let batch_stride = i64::try_from(matrix.batch_stride).map_err(|_| too_large())?;
    let layout = strided(
        matrix.dtype,
        [matrix.batch, outer, inner],
        batch_stride,
        leading,
    );
    let layout = layout.ok_or_else(too_large)?;
    Ok(ColumnMajor {
        dtype: matrix.dtype,
        rows: inner,
        cols: outer,
        leading,
        batch,
        batch_stride,
        reach_bytes: layout.reach_bytes().end.unsigned_abs(),
    })
}

fn strided(dtype: Dtype, shape: [u64; 3], batch_stride: i64, leading: i64) -> Option<Layout> {
    Layout::strided(dtype, &shape, &[batch_stride, leading, 1]).ok()
}

/// The types of a product, or why they do not go together.
fn check_types(spec: &ProductSpec) -> Result<ScaleFormat> {
    use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64, I8, I32};
    let (a, b, d) = (spec.a.dtype, spec.b.dtype, spec.d.dtype);
    let c = spec.addend_dtype();
    let is_f8 = |dtype| matches!(dtype, F8E4m3 | F8E5m2);
    let (allowed, format) = match spec.math {
        ProductMath::F64 => ([a, b, c, d] == [F64; 4], ScaleFormat::F64),
        ProductMath::F32 | ProductMath::Tf32 => ([a, b, c, d] == [F32; 4], ScaleFormat::F32),
        ProductMath::F16 => (
            [a, b] == [F16; 2] && matches!(d, F16 | F32) && c == d,
            ScaleFormat::F32,
        ),
        ProductMath::Bf16 => (
            [a, b] == [Bf16; 2] && matches!(d, Bf16 | F32) && c == d,
            ScaleFormat::F32,
        ),
        ProductMath::I8 => ([a, b] == [I8; 2] && [c, d] == [I32; 2], ScaleFormat::I32),
        ProductMath::F8 => (
            is_f8(a)
                && is_f8(b)
                && [a, b] != [F8E5m2; 2]
                && match d {
                    F32 | F16 | Bf16 => c == d,
                    F8E4m3 | F8E5m2 => matches!(c, F16 | Bf16),
                    _ => false,
                },
            ScaleFormat::F32,
        ),
    };
    if !allowed {
        return Err(refused(format!(
            "{:?} does not multiply {a} by {b}, add {c} and store {d}\n\
             try: the types that ProductMath lists",
            spec.math
        )));
    }
    let scaled = spec.scaled;
    let has_f8_only = spec.fast_accumulation || scaled.a || scaled.b || scaled.d;
    if has_f8_only && spec.math != ProductMath::F8 {
        return Err(refused(format!(
            "scale factors and fast accumulation are for 8-bit floats, not {:?}",
            spec.math
        )));
    }
    if scaled.d && !is_f8(d) {
        return Err(refused(format!(
            "the output has a scale factor, and is {d}, not an 8-bit float"
        )));
    }
    if spec.c == Addend::Output && is_f8(d) {
        return Err(refused(format!(
            "{d} output cannot be added to\ntry: Addend::Matrix of f16 or bf16"
        )));
    }
    Ok(format)
}

/// The power of two elements, of 16 bytes at most, that every row or column of a matrix and every
/// matrix of its batch begins at.
fn aligned_elements(matrix: &MatrixLayout) -> u64 {
    let stride = if matrix.batch > 1 {
        matrix.batch_stride
    } else {
        0
    };
    let most = 16 / matrix.dtype.bytes();
    1 << (matrix.leading | stride | most).trailing_zeros()
}

/// Refuses an added matrix that is more aligned than the output. cuBLASLt 13.1 chooses kernels by
/// the alignment of C alone: they then write the output misaligned, which ends the context.
fn check_alignment(spec: &ProductSpec) -> Result<()> {
    let Addend::Matrix(c) = &spec.c else {
        return Ok(());
    };
    let (of_c, of_d) = (aligned_elements(c), aligned_elements(&spec.d));
    if of_c <= of_d {
        return Ok(());
    }
    Err(refused(format!(
        "the added matrix ({c}) is aligned to {of_c} elements by its leading dimension and stride, \
         the output ({}) to {of_d}\n\
         try: one leading dimension and one stride for both",
        spec.d
    )))
}

/// Checks that the extents and batches of a product go together.
fn check_extents(spec: &ProductSpec) -> Result<()> {
    let extents = |matrix: &MatrixLayout, transposed: bool| match transposed {
        true => (matrix.cols, matrix.rows),
        false => (matrix.rows, matrix.cols),
    };
    let (m, k) = extents(&spec.a, spec.transpose_a);
    let (other_k, n) = extents(&spec.b, spec.transpose_b);
    if k != other_k || (spec.d.rows, spec.d.cols) != (m, n) {
        return Err(refused(format!(
            "{m}x{k} by {other_k}x{n} does not make the output's {}x{}",
            spec.d.rows, spec.d.cols
        )));
    }
    if let Addend::Matrix(c) = &spec.c
        && (c.rows, c.cols, c.order) != (m, n, spec.d.order)
    {
        return Err(refused(format!(
            "the added matrix ({c}) has not the output's extents and order ({})",
            spec.d
        )));
    }
    let addend = match &spec.c {
        Addend::Matrix(c) => c.batch,
        Addend::None | Addend::Output => spec.d.batch,
    };
    let batches = [spec.a.batch, spec.b.batch, addend];
    if batches != [spec.d.batch; 3] {
        return Err(refused(format!(
            "A, B and C are batches of {batches:?}, and the output of {}\n\
             try: a batch of the output's count with stride 0",
            spec.d.batch
        )));
    }
    Ok(())
}

impl ProductSpec {
    /// Checks it all, and returns what the library gets.
    pub(super) fn column_major(&self) -> Result<ColumnMajorProduct> {
        let scale = check_types(self)?;
        check_extents(self)?;
        check_alignment(self)?;
        let (a, b) = (column_major("A", &self.a)?, column_major("B", &self.b)?);
        let d = column_major("D", &self.d)?;
        let shape = [self.d.batch, d.cols, d.rows];
        let may_overlap = strided(d.dtype, shape, d.batch_stride, d.leading)
            .is_none_or(|layout| layout.may_overlap());
        if may_overlap {
            return Err(refused(format!(
                "elements of the output share memory ({})\ntry: a batch stride of {} or more",
                self.d,
                d.leading.unsigned_abs().saturating_mul(d.cols)
            )));
        }
        let c = match &self.c {
            Addend::Matrix(c) => column_major("C", c)?,
            Addend::None | Addend::Output => ColumnMajor {
                dtype: self.addend_dtype(),
                reach_bytes: 0,
                ..d
            },
        };
        let swapped = self.d.order == MatrixOrder::Row;
        let is_flipped = |order: MatrixOrder| (order == MatrixOrder::Row) != swapped;
        let transpose_a = self.transpose_a != is_flipped(self.a.order);
        let transpose_b = self.transpose_b != is_flipped(self.b.order);
        let scaled = self.scaled;
        let ordered = match swapped {
            false => ((a, transpose_a, scaled.a), (b, transpose_b, scaled.b)),
            true => ((b, transpose_b, scaled.b), (a, transpose_a, scaled.a)),
        };
        let ((left, transpose_left, left_scaled), (right, transpose_right, right_scaled)) = ordered;
        Ok(ColumnMajorProduct {
            math: self.math,
            left,
            transpose_left,
            right,
            transpose_right,
            c,
            d,
            swapped,
            scale,
            has_bias: self.epilogue.bias,
            activation: self.epilogue.activation,
            bias_dtype: self.bias_dtype(),
            scaled: [left_scaled, right_scaled, scaled.d],
            fast_accumulation: self.fast_accumulation,
        })
    }
}
