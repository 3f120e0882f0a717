//! Boxes that overlap others of a higher score less than a threshold.
//!
//! `boxes.cu` goes over the places of sorted scores, which it compares with the number of boxes, as
//! they come from the workspace. It keeps at most as many boxes as there are.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::sort::{self, SortedPart};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of boxes, which are compared in pairs.
const MOST_BOXES: u64 = 1 << 20;
/// Threads of the block that compares boxes.
const COMPARING: u32 = 1024;

/// Adds the search of boxes that no kept box of a higher score overlaps by more than `threshold`
/// of both. `kept` gets their numbers in order of scores, and zeros behind; `number` how many.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn suppress(
    program: &mut NativeProgram,
    [boxes, scores]: [&MemoryView; 2],
    [kept, number]: [&MemoryView; 2],
    threshold: f64,
) -> Result<()> {
    let count = scores.layout.len();
    let dtype = boxes.dtype();
    boxes.check("the boxes", &[count, 4], dtype)?;
    check(dtype.is_float(), || format!("boxes of {dtype}"))?;
    scores.check("the scores", &[count], scores.dtype())?;
    kept.check("the kept", &[count], Dtype::I64)?;
    number.check("their number", &[], Dtype::I64)?;
    if count > MOST_BOXES {
        let what = "boxes";
        return Err(KernelError::TooMany {
            what,
            count,
            most: MOST_BOXES,
        });
    }
    if count == 0 {
        copy::fill(program, number, 0);
        return Ok(());
    }
    let places = program.reserve(Dtype::I64, &[count])?;
    let part = SortedPart {
        first: 0,
        count,
        is_descending: true,
        is_nan_if_any: false,
    };
    sort::along(program, 0, part, scores, None, Some(&places))?;
    let suppressed = program.reserve(Dtype::U8, &[count])?;
    let text = KernelText::new("boxes.cu", include_str!("../cuda/boxes.cu"));
    let step = NativeStep::new(text.with_type("ELEMENT", dtype), "suppress")
        .threads(count.next_power_of_two().clamp(32, COMPARING.into()) as u32)
        .view(kept)
        .writes()
        .address(number)
        .writes()
        .address(&suppressed)
        .writes()
        .address(&places)
        .view(boxes)
        .f64(threshold)
        .u64(count);
    program.push(step);
    Ok(())
}
