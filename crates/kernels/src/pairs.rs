//! Cross products, traces, and distances of pairs of rows.
//!
//! `pairs.cu` reads and writes rows of views by their numbers, which it compares with their count,
//! at places below their length.

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::rows::sizes;
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

fn text(view: &MemoryView) -> KernelText {
    KernelText::new("pairs.cu", include_str!("../cuda/pairs.cu")).with_type("ELEMENT", view.dtype())
}

/// Adds cross products of rows of three elements, which are along the last dimension.
///
/// # Errors
/// [`KernelError::Layout`] or [`KernelError::Views`] of views that do not go together.
pub fn cross(program: &mut NativeProgram, [x, y, to]: [&MemoryView; 3]) -> Result<()> {
    let (rows, length) = sizes(to);
    check(length == 3 && !to.shape().is_empty(), || {
        format!("cross products of {length} elements")
    })?;
    let (x, y) = (x.broadcast(to.shape())?, y.broadcast(to.shape())?);
    check(x.dtype() == to.dtype() && y.dtype() == to.dtype(), || {
        format!("{} and {} to {}", x.dtype(), y.dtype(), to.dtype())
    })?;
    if rows == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(to), "cross_products")
        .rows(to)
        .writes()
        .rows(&x)
        .rows(&y)
        .u64(rows)
        .over(rows);
    program.push(step);
    Ok(())
}

/// Adds the sums of the rows of `x` along its last dimension, one after another.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn row_sums(program: &mut NativeProgram, x: &MemoryView, to: &MemoryView) -> Result<()> {
    let (rows, length) = sizes(x);
    check(to.layout.len() == rows && to.dtype() == x.dtype(), || {
        format!("sums {} of {}", to.layout, x.layout)
    })?;
    if rows == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(to), "row_sums")
        .flat(to)
        .writes()
        .rows(x)
        .u64(length)
        .u64(rows)
        .over(rows);
    program.push(step);
    Ok(())
}

/// Norm of a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DistanceNorm {
    /// The sum of magnitudes.
    Sum,
    /// The root of the sum of squares.
    Root,
    /// The largest magnitude.
    Largest,
    /// The root of that power of the sum of powers.
    Power(f64),
}

/// Adds the distances of each row of `x[.., rows, length]` from each of `y[.., columns, length]` to
/// `to[.., rows, columns]`.
///
/// # Errors
/// [`KernelError::Layout`] or [`KernelError::Views`] of views that do not go together.
pub fn distances(
    program: &mut NativeProgram,
    norm: DistanceNorm,
    [x, y, to]: [&MemoryView; 3],
) -> Result<()> {
    let ([.., length], [.., rows, columns]) = (x.shape(), to.shape()) else {
        return check(false, || format!("distances of {}", x.layout));
    };
    check(x.dtype() == to.dtype() && y.dtype() == to.dtype(), || {
        format!("{} and {} to {}", x.dtype(), y.dtype(), to.dtype())
    })?;
    let whole = [to.shape(), &[*length]].concat();
    // Each view has an extent of 1 where the other one has its rows.
    let spread = |view: &MemoryView, extents: [u64; 2]| -> Result<MemoryView> {
        let outer = &view.shape()[..view.shape().len().saturating_sub(2)];
        let shape = [outer, &extents, &[*length]].concat();
        Ok(view.reshape(&shape)?.broadcast(&whole)?)
    };
    let (x, y) = (spread(x, [*rows, 1])?, spread(y, [1, *columns])?);
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let (number, power) = match norm {
        DistanceNorm::Sum => (0, 1.0),
        DistanceNorm::Root => (1, 2.0),
        DistanceNorm::Largest => (2, 1.0),
        DistanceNorm::Power(power) => (3, power),
    };
    let step = NativeStep::new(text(to).with("NORM", number), "distances")
        .flat(to)
        .writes()
        .rows(&x)
        .rows(&y)
        .f64(power)
        .u64(*length)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}
