//! A shape: extents of at most [`MAX_RANK`] dimensions.

use std::fmt;
use std::ops::Deref;

use fercuda_tensor::MAX_RANK;

/// Extents of a shape; dereferences to a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Dims {
    rank: u8,
    extents: [u64; MAX_RANK],
}

impl Dims {
    /// Returns `None` if there are too many.
    pub(crate) fn new(extents: &[u64]) -> Option<Self> {
        let mut dims = Self {
            rank: u8::try_from(extents.len()).ok()?,
            ..Self::default()
        };
        dims.extents
            .get_mut(..extents.len())?
            .copy_from_slice(extents);
        Some(dims)
    }

    /// Number of elements.
    pub fn count(&self) -> u64 {
        self.iter().product()
    }

    /// The same with another extent at `axis`.
    pub(crate) fn with(mut self, axis: usize, extent: u64) -> Self {
        if let Some(old) = self.extents[..usize::from(self.rank)].get_mut(axis) {
            *old = extent;
        }
        self
    }
}

impl Deref for Dims {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.extents[..usize::from(self.rank)]
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &**self)
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Axes(u8);

impl Axes {
    pub(crate) fn with(self, axis: usize) -> Self {
        Self(self.0 | 1 << axis)
    }

    /// Whether the set contains `axis`.
    pub fn has(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    /// The axes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANK).filter(move |axis| self.has(*axis))
    }

    /// The dimensions that are not in the set.
    pub(crate) fn kept(self, of: &Dims) -> Dims {
        let mut left = Dims::default();
        for (_, extent) in of.iter().enumerate().filter(|(at, _)| !self.has(*at)) {
            left.extents[usize::from(left.rank)] = *extent;
            left.rank += 1;
        }
        left
    }

    /// Number of elements of `of` that are reduced to one.
    pub(crate) fn reduced(self, of: &Dims) -> u64 {
        self.iter().filter_map(|axis| of.get(axis)).product()
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
