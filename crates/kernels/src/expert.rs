//! Products of tokens with weights of experts that an index chooses, without reading the others.
//!
//! `expert.cu` compares each choice with the number of experts before it reads a weight; numbers of
//! pairs that it stores in the workspace are below the number of pairs, and tiles lie among them.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::rows::{flat_shape, matrix, sizes};
use crate::text::KernelText;
use crate::view::{BoundPlace, MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Most experts: their counts are in shared memory.
pub const MOST_EXPERTS: u64 = 4096;
/// Most pairs of a token and an expert that are computed one by one, without grouping them.
pub(crate) const FEW_PAIRS: u64 = 64;
/// Pairs that a warp of the plain product has.
const TILE: u64 = 8;
/// Warps of a block of the plain product.
const WARPS: u64 = 4;

/// Pairs of tokens and the experts that they chose, grouped by experts in the workspace.
pub(crate) struct ExpertGroups {
    /// Numbers of pairs, by their experts.
    pub(crate) order: MemoryView,
    /// Expert, first place in the order and number of pairs of each tile.
    pub(crate) tiles: MemoryView,
    /// Number of tiles, of which some may be empty.
    pub(crate) most: u64,
}

fn text() -> KernelText {
    KernelText::new("expert.cu", include_str!("../cuda/expert.cu"))
}

/// Checks an index of choices of so many experts.
pub(crate) fn check_choice(index: &MemoryView, experts: u64) -> Result<()> {
    check(index.is_index() && !index.shape().is_empty(), || {
        format!("the index is {}", index.layout)
    })?;
    let most = u64::from(u32::MAX);
    for (what, count, most) in [
        ("experts", experts, MOST_EXPERTS),
        ("pairs of a token and an expert", index.layout.len(), most),
    ] {
        if count > most {
            return Err(KernelError::TooMany { what, count, most });
        }
    }
    Ok(())
}

/// Adds the grouping of pairs in tiles of so many.
pub(crate) fn group(
    program: &mut NativeProgram,
    index: &MemoryView,
    experts: u64,
    tile: u64,
) -> Result<ExpertGroups> {
    check_choice(index, experts)?;
    let pairs = index.layout.len();
    // Each group has at most one tile that is not full; one group is of no expert.
    let most = pairs.div_ceil(tile) + pairs.min(experts + 1);
    let groups = ExpertGroups {
        order: program.reserve(Dtype::U32, &[pairs])?,
        tiles: program.reserve(Dtype::U32, &[most, 4])?,
        most,
    };
    let text = text()
        .with_type("INDEX", index.dtype())
        .with("EXPERTS", experts)
        .with("TILE", tile);
    let step = NativeStep::new(text, "group_pairs")
        .address(&groups.order)
        .writes()
        .address(&groups.tiles)
        .writes()
        .address(index)
        .shape(flat_shape(index))
        .u64(pairs)
        .u64(most);
    program.push(with_fault(step, program).blocks([1, 1, 1])?);
    Ok(groups)
}

/// Number of neighbouring pairs that have one row of x.
pub(crate) fn slots(x: &MemoryView, index: &MemoryView) -> Result<u64> {
    let (rows, pairs) = (sizes(x).0, index.layout.len());
    let of_row = pairs.checked_div(rows).unwrap_or(1);
    check(of_row > 0 && of_row * rows == pairs, || {
        format!("{} by choices {}", x.layout, index.layout)
    })?;
    Ok(of_row)
}

/// Views of a product: `to[pair] = x weight[index[pair]]^T + bias[index[pair]]`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertProduct<'a> {
    /// Tokens, with elements along the last dimension: a row for as many neighbouring pairs as
    /// there are for each.
    pub x: &'a MemoryView,
    /// `[experts, outputs, inputs]`.
    pub weight: &'a MemoryView,
    /// Expert of each pair.
    pub index: &'a MemoryView,
    /// `[experts, outputs]`.
    pub bias: Option<&'a MemoryView>,
    /// The result, a row for each pair; zeros for a choice of no expert.
    pub to: &'a MemoryView,
}

/// Elements of a weight that are read at once.
fn width(weight: &MemoryView, is_aligned: bool) -> u64 {
    let width = 16 / weight.dtype().bytes();
    let is_aligned = is_aligned || weight.place == BoundPlace::Scratch;
    match weight.has_vectors(is_aligned, 2) && weight.shape()[2].is_multiple_of(width) {
        true => width,
        false => 1,
    }
}

/// Adds the product of tokens and the weights of their experts, which are floats.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn product(program: &mut NativeProgram, views: ExpertProduct<'_>) -> Result<()> {
    let ExpertProduct {
        x,
        weight,
        index,
        bias,
        to,
    } = views;
    let &[experts, columns, depth] = weight.shape() else {
        return check(false, || format!("the weight is {}", weight.layout));
    };
    check_choice(index, experts)?;
    let pairs = index.layout.len();
    let is_float = |it: Dtype| it.is_float() && it.bytes() < 8;
    let fits = sizes(x).1 == depth && sizes(to) == (pairs, columns) && !x.shape().is_empty();
    let are_floats = is_float(x.dtype()) && is_float(weight.dtype()) && to.dtype() == x.dtype();
    check(fits && are_floats, || {
        format!("{} by {} to {}", x.layout, weight.layout, to.layout)
    })?;
    if let Some(bias) = bias {
        bias.check("the bias", &[experts, columns], x.dtype())?;
    }
    if to.layout.is_empty() {
        return Ok(());
    }
    let slots = slots(x, index)?;
    let rows = matrix(program, x, [pairs / slots, depth])?;
    let result = match to.reshape(&[pairs, columns]) {
        Ok(result) => result,
        Err(_) => program.reserve(to.dtype(), &[pairs, columns])?,
    };
    let groups = match pairs > FEW_PAIRS {
        true => Some(group(program, index, experts, TILE)?),
        false => None,
    };
    let text = text()
        .with_type("ELEMENT", x.dtype())
        .with_type("WEIGHT", weight.dtype())
        .with_type("INDEX", index.dtype())
        .with("IS_SORTED", u8::from(groups.is_some()))
        .with("TILE", if groups.is_some() { TILE } else { 1 })
        .with("WIDTH", width(weight, program.is_aligned));
    let step = NativeStep::new(text, "multiply_pairs")
        .threads(32 * WARPS as u32)
        .strided(&result)
        .writes()
        .strided(&rows)
        .view(weight);
    let step = match bias {
        Some(bias) => step.strided(bias),
        None => step.u64(0).u64(0).u64(0),
    };
    let step = step.address(index).shape(flat_shape(index));
    let step = match &groups {
        Some(groups) => step.address(&groups.order).address(&groups.tiles),
        None => step.u64(0).u64(0),
    };
    let across = groups.as_ref().map_or(pairs, |groups| groups.most);
    let step = with_fault(step.u64(slots), program);
    program.push(step.blocks([across, columns.div_ceil(WARPS), 1])?);
    match result.place == to.place {
        true => Ok(()),
        false => crate::copy::elements(program, &result.reshape(to.shape())?, to),
    }
}
