//! Iteration spaces: extents, and the strides of several views over them.
//!
//! Invariant: an index inside the extents is an element of every view whose shape and strides were
//! joined; merged and widened dimensions reach the same elements.

use crate::error::KernelError;
use crate::program::{NativeStep, ShapeParameter};
use crate::view::MemoryView;

/// From this number on, elements are counted in 64 bits. A loop's step goes beyond the count.
pub(crate) const WIDE: u64 = 1 << 31;

/// Extents, and for each of several views its strides, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loops {
    pub(crate) extents: Vec<u64>,
    pub(crate) strides: Vec<Vec<i64>>,
}

impl Loops {
    /// Over views of one shape; dimensions stay in their order.
    pub(crate) fn over(views: &[&MemoryView]) -> Self {
        let extents = views.first().map_or(&[][..], |view| view.shape());
        Self {
            extents: extents.to_vec(),
            strides: views
                .iter()
                .map(|view| view.layout.strides().to_vec())
                .collect(),
        }
    }

    /// Makes one view's stride along a dimension 0: the kernel adds its own offset there.
    pub(crate) fn fix(&mut self, view: usize, dimension: usize) -> i64 {
        std::mem::take(&mut self.strides[view][dimension])
    }

    /// Drops extents of 1, and merges neighbours that are one dimension in every view.
    pub(crate) fn merge(mut self) -> Self {
        let mut merged = Self {
            extents: Vec::new(),
            strides: vec![Vec::new(); self.strides.len()],
        };
        for at in 0..self.extents.len() {
            let len = self.extents[at];
            if len == 1 {
                continue;
            }
            let joins = self
                .strides
                .iter()
                .zip(&merged.strides)
                .all(|(own, outer)| {
                    let outer = outer.last();
                    outer.is_some_and(|outer| own[at].checked_mul(len as i64) == Some(*outer))
                });
            if joins && let Some(outer) = merged.extents.last_mut() {
                *outer *= len;
            } else {
                merged.extents.push(len);
                merged.strides.iter_mut().for_each(|it| it.push(0));
            }
            for (own, merged) in self.strides.iter_mut().zip(&mut merged.strides) {
                if let Some(last) = merged.last_mut() {
                    *last = own[at];
                }
            }
        }
        if merged.extents.is_empty() {
            merged.extents.push(1);
            merged.strides.iter_mut().for_each(|it| it.push(0));
        }
        merged
    }

    /// The largest number of neighbours, a power of two with at most 16 bytes, that are neighbours
    /// in the first `moved` views and one place in the others, and that begin at multiples of
    /// themselves. `also` are strides that a kernel adds by itself.
    pub(crate) fn width(&self, moved: &[&MemoryView], also: &[i64]) -> u64 {
        let (Some(extent), last) = (self.extents.last(), self.extents.len() - 1) else {
            return 1;
        };
        let bytes = moved.first().map_or(16, |view| view.dtype().bytes());
        let is_near =
            |(at, strides): (usize, &Vec<i64>)| strides[last] == i64::from(at < moved.len());
        if !self.strides.iter().enumerate().all(is_near) {
            return 1;
        }
        let mut width = 16 / bytes;
        let divides = |width: u64| {
            let by = width as i64;
            let outer = self.strides[..moved.len()]
                .iter()
                .flat_map(|it| &it[..last]);
            extent.is_multiple_of(width)
                && outer.chain(also).all(|stride| stride % by == 0)
                && (moved.iter()).all(|view| view.offset_bytes % (width * bytes) as i64 == 0)
        };
        while width > 1 && !divides(width) {
            width /= 2;
        }
        width
    }

    /// Joins so many neighbours of the first `moved` views to units.
    pub(crate) fn widen(&mut self, moved: usize, width: u64) {
        let last = self.extents.len() - 1;
        self.extents[last] /= width;
        for strides in &mut self.strides[..moved] {
            for stride in &mut strides[..last] {
                *stride /= width as i64;
            }
        }
    }

    /// Whether the elements of every view are neighbours in order, and begin at a multiple of 16
    /// bytes in memory that does.
    pub(crate) fn is_dense(&self, views: &[&MemoryView]) -> bool {
        let is_near = |strides: &Vec<i64>| strides.len() == 1 && strides[0] == 1;
        self.strides.iter().all(is_near) && views.iter().all(|view| view.offset_bytes % 16 == 0)
    }

    pub(crate) fn count(&self) -> u64 {
        self.extents.iter().product()
    }

    /// The C++ type that counts the elements.
    pub(crate) fn index(&self) -> &'static str {
        if self.count() < WIDE { "u32" } else { "u64" }
    }

    pub(crate) fn dims(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn shape(&self, view: usize) -> ShapeParameter {
        let strides = self.strides[view].iter().copied();
        ShapeParameter::new(self.extents.iter().copied().zip(strides))
    }
}

impl NativeStep {
    /// A view as the view of that number of a loop: its address, and its strides there.
    pub(crate) fn looped(self, view: &MemoryView, loops: &Loops, number: usize) -> Self {
        self.address(view).shape(loops.shape(number))
    }
}

/// A view of one dimension as one of another shape, in which it lies along `dimension`.
///
/// # Errors
/// [`KernelError::Layout`] if that shape does not have it.
pub fn along(
    view: &MemoryView,
    dimension: usize,
    shape: &[u64],
) -> Result<MemoryView, KernelError> {
    let mut single = vec![1; shape.len()];
    if let Some(extent) = single.get_mut(dimension) {
        *extent = view.layout.len();
    }
    Ok(view.reshape(&single)?.broadcast(shape)?)
}
