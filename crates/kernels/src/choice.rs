//! Choice of one element of each row, by weights that depend on its distance from the largest one.
//!
//! `choice.cu` reads elements of a row below its length. Places that it has sorted in shared memory
//! are those of elements that it has read.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::rows::matrix;
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Numbers of a row's settings.
pub const SETTINGS: u64 = 6;
/// Longest row: places have 32 bits, and one beside.
const MOST_ELEMENTS: u64 = 1 << 31;
/// Threads of a block, as in `choice.cu`.
const THREADS: u32 = 1024;

/// Adds the place of the chosen element of each row of `x[rows, n]`, and the largest element. A row
/// of `settings[rows, 6]` has as bits the temperature, as a number `top_k`, as bits `top_p` and
/// `min_p`, and as two halves the bits of an f64 from 0 to 1.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn choose(
    program: &mut NativeProgram,
    (x, settings): (&MemoryView, &MemoryView),
    (to, values): (&MemoryView, &MemoryView),
) -> Result<()> {
    let &[rows, len] = x.shape() else {
        let what = format!("x is {}", x.layout);
        return Err(KernelError::Views { what });
    };
    let dtype = x.dtype();
    check(dtype.is_float() && dtype != Dtype::F64 && len > 0, || {
        format!("rows of {}", x.layout)
    })?;
    settings.check("the settings", &[rows, SETTINGS], Dtype::I32)?;
    to.check("the places", &[rows], Dtype::I64)?;
    values.check("the values", &[rows], dtype)?;
    let limits = [
        ("elements of a row", len, MOST_ELEMENTS),
        ("rows", rows, MOST_ELEMENTS),
    ];
    for (what, count, most) in limits {
        if count > most {
            return Err(KernelError::TooMany { what, count, most });
        }
    }
    if rows == 0 {
        return Ok(());
    }
    let x = matrix(program, x, [rows, len])?;
    let text = KernelText::new("choice.cu", include_str!("../cuda/choice.cu"));
    let step = NativeStep::new(text.with_type("ELEMENT", dtype), "choose")
        .threads(THREADS)
        .address(to)
        .writes()
        .u64(to.first_stride())
        .address(values)
        .writes()
        .u64(values.first_stride())
        .view(&x)
        .strided(settings);
    program.push(step.blocks([rows, 1, 1])?);
    Ok(())
}
