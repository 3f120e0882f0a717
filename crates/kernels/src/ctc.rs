//! Losses by connectionist temporal classification.
//!
//! `ctc.cu` compares lengths with the numbers of steps and labels, and labels with the number of
//! classes, each time that one is read. States of a sample are in its own part of the workspace.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Views of losses.
#[derive(Clone, Copy, Debug)]
pub struct CtcViews {
    /// Logarithms of probabilities [steps, samples, classes].
    pub x: MemoryView,
    /// Labels [samples, labels].
    pub labels: MemoryView,
    /// Number of steps of each sample.
    pub lengths: MemoryView,
    /// Number of labels of each sample.
    pub label_lengths: MemoryView,
    /// A loss for each sample.
    pub to: MemoryView,
}

/// Adds losses of samples.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn losses(program: &mut NativeProgram, views: &CtcViews, blank: u64) -> Result<()> {
    let CtcViews {
        x,
        labels,
        lengths,
        label_lengths,
        to,
    } = views;
    let (&[_, samples, classes], &[rows, most]) = (x.shape(), labels.shape()) else {
        return check(false, || format!("{} by {}", x.layout, labels.layout));
    };
    let dtype = x.dtype();
    check(
        rows == samples && blank < classes && dtype.is_float(),
        || format!("{} by {} with blank {blank}", x.layout, labels.layout),
    )?;
    for view in [labels, lengths, label_lengths] {
        check(view.is_index(), || {
            format!("{} of no integers", view.layout)
        })?;
    }
    lengths.check("the lengths", &[samples], lengths.dtype())?;
    label_lengths.check("the lengths of labels", &[samples], label_lengths.dtype())?;
    to.check("the losses", &[samples], dtype)?;
    if samples == 0 {
        return Ok(());
    }
    let state = match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let apart = most.checked_mul(2).and_then(|most| most.checked_add(1));
    let states = program.reserve(state, &[samples, 2, apart.unwrap_or(u64::MAX)])?;
    let text = KernelText::new("ctc.cu", include_str!("../cuda/ctc.cu"))
        .with_type("ELEMENT", dtype)
        .with_type("INDEX", labels.dtype())
        .with_type("LENGTH", lengths.dtype())
        .with_type("LABEL_LENGTH", label_lengths.dtype());
    let step = NativeStep::new(text, "ctc_losses")
        .view(to)
        .writes()
        .address(&states)
        .writes()
        .view(x)
        .view(labels)
        .view(lengths)
        .view(label_lengths)
        .u64(blank)
        .u64(samples)
        .over_blocks(samples);
    program.push(with_fault(step, program));
    Ok(())
}
