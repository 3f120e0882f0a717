//! Discrete Fourier transforms along one axis, of any length.
//!
//! `fft.cu` accesses the elements `row_offset(row) + at * stride` of the operand and the output for
//! rows and places below their number and length, and for complex numbers the one `part` behind;
//! `TransformRows` compares these with the views. The workspace has rows of complex numbers, of the
//! extents that the launches get. No index comes from memory.
//!
//! A length whose prime factors are 2, 3, 5 and 7 is a product of lengths that fit in shared
//! memory, a launch each: Stockham's algorithm, with those as radices. Of other lengths the
//! transform is a convolution with a chirp (Bluestein), by transforms of a power of two. The roots
//! of unity are computed in f64, each once, by a launch before.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::rows;
use crate::text::{KernelText, c_type, computed_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Shared memory of a block, in bytes: both places of Stockham's algorithm.
const SHARED: u64 = 32 << 10;
/// Largest length: squares of places have 62 bits.
const MOST_LENGTH: u64 = 1 << 31;
/// Threads of a block at most.
const MOST_THREADS: u64 = 256;

/// Numbers of an operand and a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourierKind {
    /// Complex numbers to complex ones.
    Complex,
    /// Real numbers to the first half of their spectrum.
    RealToHalf,
    /// The first half of a spectrum to real numbers.
    HalfToReal,
}

/// A transform along one axis.
#[derive(Clone, Copy, Debug)]
pub struct FourierSpec {
    /// The axis, of the operand's dimensions.
    pub axis: usize,
    /// Number of elements of a whole row.
    pub len: u64,
    /// Whether the exponents are positive.
    pub is_inverse: bool,
    /// Factor of the result.
    pub scale: f64,
    /// Numbers of operand and result.
    pub kind: FourierKind,
}

/// How a view has the numbers of a row, as in `fft.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberForm {
    Complex = 0,
    Reals = 1,
    Half = 2,
}

/// A view as rows of numbers.
#[derive(Clone, Copy, Debug)]
struct TransformRows {
    view: MemoryView,
    shape: ShapeParameter,
    part: i64,
    form: NumberForm,
}

impl TransformRows {
    /// Rows along an axis of a view, with its other extents.
    fn of(view: &MemoryView, axis: usize, len: u64, form: NumberForm) -> Result<(Self, Vec<u64>)> {
        let rank = view.shape().len();
        let (numbers, part) = match (form, view.shape()) {
            (NumberForm::Reals, _) => (*view, 0),
            (_, [outer @ .., 2]) => {
                let real = view.slice(rank - 1, 0..1, 1)?;
                (real.reshape(outer)?, view.layout.strides()[rank - 1])
            }
            (_, shape) => {
                return Err(KernelError::Views {
                    what: format!("the last dimension of complex {shape:?} is not 2"),
                });
            }
        };
        let extent = match form {
            NumberForm::Half => len / 2 + 1,
            _ => len,
        };
        let own = numbers.shape().get(axis).copied();
        check(own == Some(extent), || {
            format!("axis {axis} of {:?} is not {extent}", view.shape())
        })?;
        let moved = numbers.move_last(axis)?;
        let others = moved.shape()[..moved.shape().len() - 1].to_vec();
        let rows = Self {
            view: *view,
            shape: rows::shape(&moved),
            part,
            form,
        };
        Ok((rows, others))
    }

    /// Rows of complex numbers in the workspace.
    fn reserve(program: &mut NativeProgram, real: Dtype, rows: u64, len: u64) -> Result<Self> {
        let view = program.reserve(real, &[rows, len, 2])?;
        Ok(Self::of(&view, 1, len, NumberForm::Complex)?.0)
    }
}

/// A transform of rows, which are compared with each other.
struct RowTransform {
    real: Dtype,
    rows: u64,
    len: u64,
    direction: f64,
    scale: f64,
}

impl RowTransform {
    fn step(&self, name: &'static str, from: &TransformRows, to: &TransformRows) -> NativeStep {
        let text = KernelText::new("fft.cu", include_str!("../cuda/fft.cu"))
            .with("REAL", computed_type(self.real))
            .with("FROM", c_type(from.view.dtype()))
            .with("TO", c_type(to.view.dtype()))
            .with("SOURCE", from.form as u8)
            .with("RESULT", to.form as u8);
        NativeStep::new(text, name)
    }

    /// Bytes of a complex number in the workspace.
    fn number(&self) -> u64 {
        2 * self.real.bytes()
    }

    /// Adds the launches of a length without other prime factors than 2, 3, 5 and 7.
    fn smooth(
        &self,
        program: &mut NativeProgram,
        from: &TransformRows,
        to: &TransformRows,
    ) -> Result<()> {
        let most = SHARED / (2 * self.number());
        let lengths = pass_lengths(self.len, most);
        let roots = program.reserve(self.real, &[self.len, 2])?;
        let step = self.step("roots_of_unity", from, to);
        program.push(step.address(&roots).writes().u64(self.len).over(self.len));
        let (mut done, mut from) = (1, *from);
        for (at, length) in lengths.iter().copied().enumerate() {
            let is_last = at + 1 == lengths.len();
            let next = match is_last {
                true => *to,
                false => TransformRows::reserve(program, self.real, self.rows, self.len)?,
            };
            let transforms = self.rows.saturating_mul(self.len / length);
            let group = (most / length).clamp(1, MOST_THREADS).min(transforms);
            let threads = (group * length / 4)
                .next_multiple_of(32)
                .clamp(32, MOST_THREADS);
            let scale = if is_last { self.scale } else { 1.0 };
            let mut step = self
                .step("transform_pass", &from, &next)
                .threads(threads as u32)
                .address(&next.view)
                .writes()
                .shape(next.shape)
                .u64(next.part.cast_unsigned())
                .address(&from.view)
                .shape(from.shape)
                .u64(from.part.cast_unsigned())
                .address(&roots)
                .u64(transforms)
                .u64(self.len)
                .u64(done)
                .u64(packed_radices(length))
                .u32(length as u32)
                .u32(group as u32)
                .f64(self.direction)
                .f64(scale);
            step.shared_bytes = (2 * group * length * self.number()) as u32;
            program.push(step.over_blocks(transforms.div_ceil(group)));
            done *= length;
            from = next;
        }
        Ok(())
    }

    /// Adds the launches of any length, as a convolution.
    fn by_chirp(
        &self,
        program: &mut NativeProgram,
        from: &TransformRows,
        to: &TransformRows,
    ) -> Result<()> {
        let padded = (2 * self.len - 1).next_power_of_two();
        let chirp = program.reserve(self.real, &[self.len, 2])?;
        let reserve = |program: &mut NativeProgram, rows| {
            TransformRows::reserve(program, self.real, rows, padded)
        };
        let circle = reserve(program, 1)?;
        let circle_spectrum = reserve(program, 1)?;
        let (one, other) = (reserve(program, self.rows)?, reserve(program, self.rows)?);
        let step = self.step("chirp", &circle, &circle);
        let step = step.address(&chirp).writes().address(&circle.view).writes();
        let step = step.u64(self.len).u64(padded).f64(self.direction);
        program.push(step.over(padded));
        let transform = |rows, direction, scale| Self {
            real: self.real,
            rows,
            len: padded,
            direction,
            scale,
        };
        transform(1, -1.0, 1.0).smooth(program, &circle, &circle_spectrum)?;

        let count = self.rows.saturating_mul(padded);
        let step = self.step("chirp_load", from, &one);
        let step = step.address(&one.view).writes().address(&from.view);
        let step = step.shape(from.shape).u64(from.part.cast_unsigned());
        let step = step.address(&chirp).u64(count).u64(self.len).u64(padded);
        program.push(step.over(count));
        transform(self.rows, -1.0, 1.0).smooth(program, &one, &other)?;
        let step = self.step("chirp_multiply", &other, &other);
        let step = step.address(&other.view).writes();
        let step = step.address(&circle_spectrum.view).u64(count).u64(padded);
        program.push(step.over(count));
        transform(self.rows, 1.0, 1.0 / padded as f64).smooth(program, &other, &one)?;

        let count = self.rows.saturating_mul(self.len);
        let step = self.step("chirp_store", &one, to);
        let step = step.address(&to.view).writes();
        let step = step.shape(to.shape).u64(to.part.cast_unsigned());
        let step = step.address(&one.view).address(&chirp);
        let step = step.u64(count).u64(self.len).u64(padded).f64(self.scale);
        program.push(step.over(count));
        Ok(())
    }
}

/// Prime factors of a length without others than 2, 3, 5 and 7, those of 4 as one; else nothing.
fn radices(mut len: u64) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    for radix in [4, 2, 3, 5, 7] {
        while len > 1 && len.is_multiple_of(radix) {
            all.push(radix);
            len /= radix;
        }
    }
    (len == 1).then_some(all)
}

/// The radices of a pass, four bits each.
fn packed_radices(length: u64) -> u64 {
    let all = radices(length).unwrap_or_default();
    all.iter()
        .rev()
        .fold(0, |packed, radix| packed << 4 | radix)
}

/// A length as a product of lengths of at most `most`, near to each other.
fn pass_lengths(len: u64, most: u64) -> Vec<u64> {
    let (mut left, mut all) = (len, Vec::new());
    while left > most {
        let passes = (left as f64).log(most as f64).ceil().max(2.0);
        let even = (left as f64).powf(1.0 / passes);
        let divisors = (2..=most).filter(|length| left.is_multiple_of(*length));
        let divisors: Vec<u64> = divisors.collect();
        let near = divisors.iter().find(|length| **length as f64 >= even);
        let Some(length) = near.or(divisors.last()) else {
            break;
        };
        all.push(*length);
        left /= length;
    }
    all.push(left);
    all
}

/// Type of the real numbers in which elements of a type are transformed, and in which several
/// transforms leave numbers to each other.
pub fn real_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// Reserves workspace for complex numbers between two transforms.
///
/// # Errors
/// [`KernelError::Layout`], [`KernelError::TooMany`].
pub fn between(program: &mut NativeProgram, dtype: Dtype, shape: &[u64]) -> Result<MemoryView> {
    program.reserve(real_type(dtype), shape)
}

/// Adds a transform along an axis. Complex numbers are views whose last dimension is 2; all other
/// extents of both views are equal, but for that of the axis of half a spectrum.
///
/// # Errors
/// [`KernelError::Views`], [`KernelError::Layout`] of views that do not go together;
/// [`KernelError::TooMany`].
pub fn along(
    program: &mut NativeProgram,
    spec: FourierSpec,
    x: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let real = real_type(x.dtype());
    check(x.dtype().is_float() && to.dtype().is_float(), || {
        format!("a transform of {} to {}", x.dtype(), to.dtype())
    })?;
    check(real_type(to.dtype()) == real, || {
        format!("a transform of {} to {}", x.dtype(), to.dtype())
    })?;
    if !(1..=MOST_LENGTH).contains(&spec.len) {
        return Err(KernelError::TooMany {
            what: "elements of a transform",
            count: spec.len,
            most: MOST_LENGTH,
        });
    }
    let (of_x, of_to) = match spec.kind {
        FourierKind::Complex => (NumberForm::Complex, NumberForm::Complex),
        FourierKind::RealToHalf => (NumberForm::Reals, NumberForm::Half),
        FourierKind::HalfToReal => (NumberForm::Half, NumberForm::Reals),
    };
    let (from, others) = TransformRows::of(x, spec.axis, spec.len, of_x)?;
    let (to, of_result) = TransformRows::of(to, spec.axis, spec.len, of_to)?;
    check(others == of_result, || {
        format!("rows of {others:?} and of {of_result:?}")
    })?;
    let rows = others.iter().product();
    if rows == 0 {
        return Ok(());
    }
    let transform = RowTransform {
        real,
        rows,
        len: spec.len,
        direction: if spec.is_inverse { 1.0 } else { -1.0 },
        scale: spec.scale,
    };
    match radices(spec.len) {
        Some(_) => transform.smooth(program, &from, &to),
        None => transform.by_chirp(program, &from, &to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_passes_are_factors_of_few_passes() {
        for (len, most) in [
            (1, 1024),
            (2048, 2048),
            (2401, 1024),
            (1 << 21, 1024),
            (7u64.pow(9), 512),
        ] {
            let all = pass_lengths(len, most);
            assert_eq!(all.iter().product::<u64>(), len);
            assert!(all.iter().all(|length| *length <= most), "{all:?}");
            let least = (len as f64).log(most as f64).ceil().max(1.0);
            assert!(all.len() as f64 <= least + 1.0, "{all:?}");
        }
        assert_eq!(radices(360), Some(vec![4, 2, 3, 3, 5]));
        assert_eq!(packed_radices(360), 0x53324);
        assert_eq!(radices(22), None);
    }
}
