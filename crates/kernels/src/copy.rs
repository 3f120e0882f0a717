//! Copies of views and fills: each element of one view is that of another, or one value.
//!
//! `copy.cu` accesses, of each view, the elements that its shape says; `Moved` has made it so that
//! both shapes have equal extents, and units of several elements begin and end with whole ones.
//!
//! Elements that are neighbours in both views are moved up to 16 bytes at a time. Where the
//! neighbours in one view are far from each other in the other, a block moves a tile through shared
//! memory, so that both are accessed in rows.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::loops::WIDE;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, unit_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest size of a unit that is moved at once.
const WIDEST: u64 = 16;
/// Elements that a thread of `copy_elements` moves at once.
const EACH: u64 = 4;
/// Smallest extent of both dimensions for which tiles are used.
const LEAST_TILED: u64 = 8;

/// A dimension of a copy, with strides in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MovedDimension {
    extent: u64,
    to: i64,
    from: i64,
}

/// Dimensions of a copy, as few as possible, and the size of a unit.
#[derive(Debug, PartialEq, Eq)]
struct Moved {
    dimensions: Vec<MovedDimension>,
    unit: u64,
}

impl Moved {
    /// Of views of equal shapes. `from` is absent for a fill.
    fn of(to: &MemoryView, from: Option<&MemoryView>, is_aligned: bool) -> Self {
        let strides = |view: &MemoryView| view.layout.strides().to_vec();
        let (of_to, of_from) = (strides(to), from.map(strides));
        let mut all: Vec<MovedDimension> = (to.shape().iter().enumerate())
            .filter(|(_, extent)| **extent != 1)
            .map(|(at, extent)| MovedDimension {
                extent: *extent,
                to: of_to[at],
                from: of_from.as_ref().map_or(of_to[at], |from| from[at]),
            })
            .collect();
        all.sort_by_key(|dimension| std::cmp::Reverse(dimension.to.unsigned_abs()));
        let mut dimensions: Vec<MovedDimension> = Vec::new();
        for inner in all {
            let joins = |outer: &MovedDimension| {
                let len = inner.extent as i64;
                // Both are offsets inside a layout, or overflow is no equality.
                inner.to.checked_mul(len) == Some(outer.to)
                    && inner.from.checked_mul(len) == Some(outer.from)
            };
            match dimensions.last_mut() {
                Some(outer) if joins(outer) => {
                    let extent = outer.extent * inner.extent;
                    *outer = MovedDimension { extent, ..inner };
                }
                _ => dimensions.push(inner),
            }
        }
        if dimensions.is_empty() {
            dimensions.push(MovedDimension {
                extent: 1,
                to: 1,
                from: 1,
            });
        }
        let mut moved = Self {
            dimensions,
            unit: to.dtype().bytes(),
        };
        let offsets = to.offset_bytes | from.map_or(0, |from| from.offset_bytes);
        if is_aligned {
            moved.widen(offsets);
        }
        moved
    }

    /// Joins neighbouring elements to larger units, where all begin at multiples of the unit.
    fn widen(&mut self, offsets: i64) {
        let Some((last, outer)) = self.dimensions.split_last() else {
            return;
        };
        if (last.to, last.from) != (1, 1) {
            return;
        }
        let mut factor = WIDEST / self.unit;
        let divides = |factor: u64| {
            let by = factor as i64;
            last.extent.is_multiple_of(factor)
                && offsets % (factor * self.unit) as i64 == 0
                && outer.iter().all(|it| it.to % by == 0 && it.from % by == 0)
        };
        while factor > 1 && !divides(factor) {
            factor /= 2;
        }
        self.unit *= factor;
        let last = self.dimensions.len() - 1;
        for (at, dimension) in self.dimensions.iter_mut().enumerate() {
            match at == last {
                true => dimension.extent /= factor,
                false => {
                    dimension.to /= factor as i64;
                    dimension.from /= factor as i64;
                }
            }
        }
    }

    fn count(&self) -> u64 {
        self.dimensions.iter().map(|it| it.extent).product()
    }

    fn target_shape(&self) -> ShapeParameter {
        ShapeParameter::new(self.dimensions.iter().map(|it| (it.extent, it.to)))
    }

    fn source_shape(&self) -> ShapeParameter {
        ShapeParameter::new(self.dimensions.iter().map(|it| (it.extent, it.from)))
    }

    fn text(&self) -> KernelText {
        // A narrow tile for wide elements: shared memory of a block is limited.
        self.text_of(if self.unit > 4 { 32 } else { 64 })
    }

    fn text_of(&self, tile: u64) -> KernelText {
        let index = if self.count() < WIDE { "u32" } else { "u64" };
        KernelText::new("copy.cu", include_str!("../cuda/copy.cu"))
            .with("UNIT", unit_type(self.unit))
            .with("DIMS", self.dimensions.len())
            .with("INDEX", index)
            .with("TILE", tile)
    }

    /// Number of elements of 16 bytes, if the tiles of a transposing copy can be moved by them.
    fn near(&self, offsets: i64) -> Option<u64> {
        let near = match self.unit {
            2 | 4 => WIDEST / self.unit,
            _ => return None,
        };
        let by = near as i64;
        let last = self.dimensions.len() - 1;
        let [.., down, across] = self.dimensions[..] else {
            return None;
        };
        let is_whole = |(at, it): (usize, &MovedDimension)| {
            let (is_across, is_down) = (at == last, at + 1 == last);
            (is_across || it.to % by == 0) && (is_down || it.from % by == 0)
        };
        let fits = offsets % WIDEST as i64 == 0
            && (down.extent % near, across.extent % near) == (0, 0)
            && self.dimensions.iter().enumerate().all(is_whole);
        fits.then_some(near)
    }

    /// Puts the dimension that is contiguous in `from` before the last one, if tiles are worth it.
    fn tiles(&mut self) -> Option<[u64; 2]> {
        let (last, outer) = self.dimensions.split_last()?;
        if last.to != 1 || last.from == 1 || last.extent < LEAST_TILED {
            return None;
        }
        let near = |it: &MovedDimension| it.from == 1 && it.extent >= LEAST_TILED;
        let at = outer.iter().position(near)?;
        let before = self.dimensions.len() - 2;
        let moved = self.dimensions.remove(at);
        self.dimensions.insert(before, moved);
        let side = if self.unit > 4 { 32 } else { 64 };
        let [.., down, across] = self.dimensions[..] else {
            return None;
        };
        Some([across.extent.div_ceil(side), down.extent.div_ceil(side)])
    }
}

/// Adds a copy of `from` to `to`, which have one shape and elements of one size.
///
/// # Errors
/// [`KernelError::TooMany`]; [`KernelError::Layout`] of shapes that differ.
pub fn elements(program: &mut NativeProgram, from: &MemoryView, to: &MemoryView) -> Result<()> {
    let from = &from.broadcast(to.shape())?;
    check(from.dtype().bytes() == to.dtype().bytes(), || {
        format!("{} to {}", from.dtype(), to.dtype())
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let mut moved = Moved::of(to, Some(from), program.is_aligned);
    let mut tiles = moved.tiles();
    let offsets = to.offset_bytes | from.offset_bytes;
    let near = tiles.filter(|_| program.is_aligned);
    let near = near.and_then(|_| moved.near(offsets));
    let (name, text) = match (&mut tiles, near) {
        (Some(tiles), Some(near)) => {
            let [.., down, across] = moved.dimensions[..] else {
                return Ok(());
            };
            // Of both types a row of a tile has 256 bytes.
            let side = if near == 8 { 128 } else { 64 };
            *tiles = [across, down].map(|it| it.extent.div_ceil(side));
            let text = moved.text_of(side).with("NEAR", near);
            ("copy_transposed_wide", text)
        }
        (Some(_), None) => ("copy_transposed", moved.text()),
        (None, _) => ("copy_elements", moved.text()),
    };
    let step = NativeStep::new(text, name)
        .address(to)
        .writes()
        .shape(moved.target_shape())
        .address(from)
        .shape(moved.source_shape());
    let step = match tiles {
        Some([across, down]) => {
            let rank = moved.dimensions.len();
            let outer = moved.dimensions[..rank - 2].iter();
            let blocks = outer.map(|it| it.extent).product::<u64>();
            let blocks = blocks.saturating_mul(across).saturating_mul(down);
            step.u64(across).u64(down).blocks([blocks, 1, 1])?
        }
        None => {
            let count = moved.count();
            step.u64(count).over(count.div_ceil(EACH))
        }
    };
    program.push(step);
    Ok(())
}

/// Contiguous workspace for elements that later launches write before they are read.
///
/// # Errors
/// [`KernelError::TooMany`] of bytes.
pub fn unwritten(program: &mut NativeProgram, dtype: Dtype, shape: &[u64]) -> Result<MemoryView> {
    program.reserve(dtype, shape)
}

/// Adds a copy in contiguous workspace.
///
/// # Errors
/// As for [`elements`].
pub fn contiguous(program: &mut NativeProgram, from: &MemoryView) -> Result<MemoryView> {
    let to = program.reserve(from.dtype(), from.shape())?;
    elements(program, from, &to)?;
    Ok(to)
}

/// Adds a fill of `to` with an element's bits.
pub fn fill(program: &mut NativeProgram, to: &MemoryView, bits: u64) {
    if to.layout.is_empty() {
        return;
    }
    let moved = Moved::of(to, None, program.is_aligned);
    let bytes = to.dtype().bytes();
    let mut repeated = bits;
    for size in [1, 2, 4].into_iter().filter(|size| *size >= bytes) {
        let low = repeated & ((1 << (8 * size)) - 1);
        repeated = low | low << (8 * size);
    }
    let count = moved.count();
    let step = NativeStep::new(moved.text(), "fill_elements")
        .address(to)
        .writes()
        .shape(moved.target_shape());
    program.push(step.u64(count).u64(repeated).over(count));
}
