//! Elements that depend on their place: numbers in order, triangles, diagonals.
//!
//! `place.cu` writes each element of its output once, and of an operand reads the element at the
//! same place.

use crate::error::KernelError;
use crate::loops::Loops;
use crate::program::{NativeProgram, NativeStep};
use crate::text::{KernelText, c_type, unit_type};
use crate::view::MemoryView;

/// Part of a matrix, by a diagonal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrianglePart {
    /// At or below it.
    Lower,
    /// At or above it.
    Upper,
}

fn text(loops: &Loops) -> KernelText {
    KernelText::new("place.cu", include_str!("../cuda/place.cu"))
        .with("DIMS", loops.dims())
        .with("COUNTED", loops.index())
}

/// Adds `to[i] = start + i step`, `i` counted in row-major order. Of integers both are whole.
pub fn number(program: &mut NativeProgram, to: &MemoryView, start: f64, step: f64) {
    if to.layout.is_empty() {
        return;
    }
    let loops = Loops::over(&[to]).merge();
    let text = text(&loops)
        .with("NUMBERED", c_type(to.dtype()))
        .with("IS_FLOAT", u8::from(to.dtype().is_float()));
    let launch = NativeStep::new(text, "number_elements")
        .looped(to, &loops, 0)
        .writes()
        .f64(start)
        .f64(step)
        .u64((start as i64).cast_unsigned())
        .u64((step as i64).cast_unsigned())
        .u64(loops.count())
        .over(loops.count());
    program.push(launch);
}

/// Adds `to = from` in a part of each matrix of the last two dimensions, and 0 elsewhere.
///
/// # Errors
/// [`KernelError::Views`] if they differ in type or shape.
pub fn triangle(
    program: &mut NativeProgram,
    from: &MemoryView,
    to: &MemoryView,
    part: TrianglePart,
    diagonal: i64,
) -> Result<(), KernelError> {
    from.check("the operand", to.shape(), to.dtype())?;
    if to.layout.is_empty() || to.shape().len() < 2 {
        return Ok(());
    }
    program.allow_same(to, from);
    let loops = Loops::over(&[to, from]);
    let text = text(&loops)
        .with("UNIT", unit_type(to.dtype().bytes()))
        .with("PART", part as u32);
    let step = NativeStep::new(text, "keep_triangle")
        .looped(to, &loops, 0)
        .writes()
        .looped(from, &loops, 1)
        .u64(diagonal.cast_unsigned())
        .u64(loops.count())
        .over(loops.count());
    program.push(step);
    Ok(())
}

/// Adds 1, of these bits, on a diagonal of each matrix of the last two dimensions, and 0 elsewhere.
pub fn diagonal(program: &mut NativeProgram, to: &MemoryView, diagonal: i64, one: u64) {
    if to.layout.is_empty() || to.shape().len() < 2 {
        return;
    }
    let loops = Loops::over(&[to]);
    let text = text(&loops)
        .with("UNIT", unit_type(to.dtype().bytes()))
        .with("PART", 2);
    let step = NativeStep::new(text, "write_diagonal")
        .looped(to, &loops, 0)
        .writes()
        .u64(diagonal.cast_unsigned())
        .u64(loops.count())
        .u64(one)
        .over(loops.count());
    program.push(step);
}
