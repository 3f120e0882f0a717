//! Splitting of long reductions into parts.
//!
//! A team that reduces a row alone has one multiprocessor's share of the bandwidth; a long row
//! deserves many. So its reduction becomes two: one of each part, then one of the parts. What is
//! computed for each element of such a row becomes a separate map.
//!
//! Invariant: whether a reduction is split, and how, depends on the row's length and on its layout,
//! never on the number of rows; so the order of additions does not either.
//!
//! Elsewhere: how a kernel finds its part (`emit::rows`).

use fercuda_tensor::Layout;

use crate::canonical::Canonical;
use crate::dims::{Axes, Dims};
use crate::expr::{ArrayOrigin, CanonicalArray, Expr, ExprEntry, LoadSource};
use crate::op::Reduction;

/// Length of a part along memory: a block of 1024 threads keeps it in registers.
pub(crate) const PART: u64 = 16384;
/// Length of a part across memory: 32 threads of a block's column keep it in registers.
pub(crate) const PART_ACROSS: u64 = 512;
/// Minimum number of parts' lengths in a row that is split.
const WORTH: u64 = 4;
/// Maximum number of parts in a grid.
const MOST_PARTS: u64 = 32768;

/// Splits the long reductions of a canonical form in two.
pub(crate) fn split(canonical: &Canonical) -> Canonical {
    let mut new = Canonical {
        inputs: canonical.inputs.clone(),
        exprs: canonical.exprs.clone(),
        arrays: Vec::new(),
        outputs: canonical.outputs.clone(),
    };
    // Maps each array to its new index.
    let mut moved: Vec<u32> = Vec::new();
    for array in &canonical.arrays {
        let mut array = *array;
        if let Some((op, partial)) = partial(canonical, &array)
            && let Ok(layout) = Layout::contiguous(partial.dtype, &partial.shape)
        {
            let source = LoadSource::Array(new.arrays.len() as u32);
            new.arrays.push(partial);
            let of = new.exprs.len() as u32;
            new.exprs.push(ExprEntry::load(source, layout));
            array = CanonicalArray {
                made: ArrayOrigin::Reduced(op, Axes::default().with(partial.shape.len() - 1)),
                of,
                from: partial.shape,
                ..array
            };
        }
        moved.push(new.arrays.len() as u32);
        new.arrays.push(array);
    }
    for entry in &mut new.exprs[..canonical.exprs.len()] {
        if let Expr::Load {
            source: LoadSource::Array(n),
            ..
        } = &mut entry.expr
        {
            *n = moved[*n as usize];
        }
    }
    new
}

/// The reduction of the parts of a row, if splitting pays.
fn partial(canonical: &Canonical, array: &CanonicalArray) -> Option<(Reduction, CanonicalArray)> {
    let ArrayOrigin::Reduced(op, axes) = array.made else {
        return None;
    };
    if matches!(op, Reduction::ArgMin | Reduction::ArgMax) {
        return None;
    }
    let row = axes.reduced(&array.from);
    let least = match lies_across(canonical, array, axes) {
        true => PART_ACROSS,
        false => PART,
    };
    if row < WORTH * least || array.shape.count() == 0 {
        return None;
    }
    let part = least * row.div_ceil(least).div_ceil(MOST_PARTS);
    let mut shape = array.shape.to_vec();
    shape.push(row.div_ceil(part));
    let partial = CanonicalArray {
        made: ArrayOrigin::Partial(op, axes, part),
        shape: Dims::new(&shape)?,
        ..*array
    };
    Some((op, partial))
}

/// Whether neighbours in memory belong to different rows more often than to one.
fn lies_across(canonical: &Canonical, array: &CanonicalArray, axes: Axes) -> bool {
    let long = |axis: &usize| array.from[*axis] > 1;
    let last = |reduced: bool| {
        let mut of = (0..array.from.len()).filter(|axis| axes.has(*axis) == reduced);
        of.rfind(long)
    };
    let (inner_col, inner_row) = (last(true), last(false));
    let mut votes = 0;
    for id in canonical.reached(&[array.of]) {
        if let Expr::Load { layout, .. } = canonical.entry(id).expr {
            let stride = |axis: Option<usize>| axis.and_then(|axis| layout.strides().get(axis));
            if axes
                .iter()
                .all(|axis| layout.strides().get(axis) == Some(&0))
            {
                continue;
            }
            votes += match (stride(inner_col), stride(inner_row)) {
                (Some(1), _) => -1,
                (_, Some(1)) => 1,
                _ => 0,
            };
        }
    }
    votes > 0
}
