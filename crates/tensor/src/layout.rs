//! Strided layout of a tensor.
//!
//! A layout is relative to its first element: element type, extents, and strides in elements, which
//! may be negative, or 0 where one element is repeated. It owns no memory and has no address; the
//! owner of memory checks how far a layout reaches.
//!
//! Invariant: every offset of a layout fits in 63 bits, in bytes. So neither this code nor a check
//! of the reach can overflow.

use std::ops::Range;

use crate::dtype::Dtype;

/// Maximum number of dimensions.
pub const MAX_RANK: usize = 8;

/// A strided layout. See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: Dtype,
    rank: u8,
    shape: [u64; MAX_RANK],
    strides: [i64; MAX_RANK],
}

/// An invalid layout, or one that needs a copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Too many dimensions.
    #[error("{rank} dimensions exceed the maximum of {MAX_RANK}\ntry: reshape it")]
    Rank {
        /// Number of dimensions.
        rank: usize,
    },
    /// The number of strides differs from that of the dimensions.
    #[error(
        "{shape} dimensions have {strides} strides\ntry: one stride, in elements, for each dimension"
    )]
    Strides {
        /// Dimensions.
        shape: usize,
        /// Strides.
        strides: usize,
    },
    /// The elements' offsets do not fit in 63 bits.
    #[error("{shape:?} of {dtype} reaches farther than any memory")]
    TooLarge {
        /// The type.
        dtype: Dtype,
        /// The shape.
        shape: Vec<u64>,
    },
    /// A dimension out of range.
    #[error("dimension {dimension} of {rank}: no such dimension\ntry: one below {rank}")]
    NoDimension {
        /// The dimension.
        dimension: usize,
        /// Number of dimensions.
        rank: usize,
    },
    /// A range that is not inside a dimension.
    #[error(
        "elements {from} to {until} of dimension {dimension}, which has {len}\ntry: a range within 0 to {len}"
    )]
    Range {
        /// The dimension.
        dimension: usize,
        /// The first element.
        from: u64,
        /// The element behind the last.
        until: u64,
        /// Length of the dimension.
        len: u64,
    },
    /// A step of 0.
    #[error("a step of 0 elements in dimension {dimension}\ntry: 1 or more")]
    Step {
        /// The dimension.
        dimension: usize,
    },
    /// Not a permutation of the dimensions.
    #[error(
        "{order:?} is not a permutation of {rank} dimensions\ntry: each of 0 to {rank} once, without {rank}"
    )]
    Order {
        /// The order.
        order: Vec<usize>,
        /// Number of dimensions.
        rank: usize,
    },
    /// A shape with another number of elements.
    #[error("{from:?} has {elements} elements, {to:?} another number")]
    Elements {
        /// The shape.
        from: Vec<u64>,
        /// Its number of elements.
        elements: u64,
        /// The requested shape.
        to: Vec<u64>,
    },
    /// The shape is impossible without a copy, because of the strides.
    #[error(
        "{from:?} with strides {strides:?} has no view as {to:?}\ntry: a contiguous copy first"
    )]
    NotAView {
        /// The shape.
        from: Vec<u64>,
        /// The strides.
        strides: Vec<i64>,
        /// The requested shape.
        to: Vec<u64>,
    },
    /// Incompatible shapes of a broadcast.
    #[error(
        "{from:?} cannot be broadcast to {to:?}\ntry: equal extents or 1, with dimensions aligned from the last"
    )]
    Broadcast {
        /// The shape.
        from: Vec<u64>,
        /// The requested shape.
        to: Vec<u64>,
    },
}

impl Layout {
    /// A contiguous layout in row-major order. No dimensions: one element.
    ///
    /// # Errors
    /// [`LayoutError::Rank`], [`LayoutError::TooLarge`].
    pub fn contiguous(dtype: Dtype, shape: &[u64]) -> Result<Self, LayoutError> {
        let mut strides = [0; MAX_RANK];
        let too_large = || LayoutError::TooLarge {
            dtype,
            shape: shape.to_vec(),
        };
        let rank = checked_rank(shape.len())?;
        let mut next: i64 = 1;
        for (at, len) in shape.iter().enumerate().rev() {
            strides[at] = next;
            // Without elements the strides are still those of the shape.
            let len = i64::try_from((*len).max(1)).map_err(|_| too_large())?;
            next = next.checked_mul(len).ok_or_else(too_large)?;
        }
        Self::strided(dtype, shape, &strides[..rank])
    }

    /// A layout with these strides, in elements.
    ///
    /// # Errors
    /// [`LayoutError::Rank`], [`LayoutError::Strides`], [`LayoutError::TooLarge`].
    pub fn strided(dtype: Dtype, shape: &[u64], strides: &[i64]) -> Result<Self, LayoutError> {
        let rank = checked_rank(shape.len())?;
        if strides.len() != rank {
            return Err(LayoutError::Strides {
                shape: rank,
                strides: strides.len(),
            });
        }
        let mut layout = Self {
            dtype,
            rank: rank as u8,
            shape: [0; MAX_RANK],
            strides: [0; MAX_RANK],
        };
        layout.shape[..rank].copy_from_slice(shape);
        layout.strides[..rank].copy_from_slice(strides);
        match layout.is_sound() {
            true => Ok(layout),
            false => Err(LayoutError::TooLarge {
                dtype,
                shape: shape.to_vec(),
            }),
        }
    }

    /// Whether all derived numbers fit.
    fn is_sound(&self) -> bool {
        const LARGEST: u128 = i64::MAX as u128;
        let bytes = u128::from(self.dtype.bytes());
        let mut elements: u128 = 1;
        let mut spread: u128 = 1;
        for (len, stride) in self.shape().iter().zip(self.strides()) {
            let len = u128::from(*len);
            // An extent of 0 counts as 1, since views may have fewer.
            elements = elements.saturating_mul(len.max(1));
            let stride = u128::from(stride.unsigned_abs());
            spread = spread.saturating_add(stride.saturating_mul(len.max(1)));
        }
        elements.saturating_mul(bytes) <= LARGEST && spread.saturating_mul(bytes) <= LARGEST
    }

    /// Type of an element.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents of the dimensions.
    pub fn shape(&self) -> &[u64] {
        &self.shape[..usize::from(self.rank)]
    }

    /// Strides of the dimensions, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..usize::from(self.rank)]
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.shape().iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// Size of the elements, without gaps.
    pub fn bytes(&self) -> u64 {
        self.len() * self.dtype.bytes()
    }

    /// The range of bytes that the layout reaches, relative to the first element. Empty if there
    /// are no elements.
    pub fn reach_bytes(&self) -> Range<i64> {
        if self.is_empty() {
            return 0..0;
        }
        let element = self.dtype.bytes() as i64;
        let mut reach = 0..element;
        for (len, stride) in self.shape().iter().zip(self.strides()) {
            let farthest = (*len as i64 - 1) * stride * element;
            match farthest < 0 {
                true => reach.start += farthest,
                false => reach.end += farthest,
            }
        }
        reach
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut next: i64 = 1;
        for (len, stride) in self.shape().iter().zip(self.strides()).rev() {
            if *len > 1 && *stride != next {
                return self.is_empty();
            }
            next *= (*len).max(1) as i64;
        }
        true
    }

    /// Whether two elements may overlap. Conservative: also true for some layouts without overlap,
    /// such as two interleaved dimensions.
    pub fn may_overlap(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut dimensions: Vec<(u64, u64)> = (self.strides().iter().zip(self.shape()))
            .filter(|(_, len)| **len > 1)
            .map(|(stride, len)| (stride.unsigned_abs(), *len))
            .collect();
        dimensions.sort_unstable();
        let mut reached: u64 = 0;
        dimensions.into_iter().any(|(stride, len)| {
            let is_beyond = stride > reached;
            reached += stride * (len - 1);
            !is_beyond
        })
    }

    /// Takes every `step`th element of a range of a dimension; also returns the offset of its first
    /// element from the first one of this, in bytes.
    ///
    /// # Errors
    /// [`LayoutError::NoDimension`], [`LayoutError::Range`], [`LayoutError::Step`].
    pub fn slice(
        &self,
        dimension: usize,
        range: Range<u64>,
        step: u64,
    ) -> Result<(Self, i64), LayoutError> {
        let rank = usize::from(self.rank);
        if dimension >= rank {
            return Err(LayoutError::NoDimension { dimension, rank });
        }
        let len = self.shape[dimension];
        let Range { start, end } = range;
        if start > end || end > len {
            return Err(LayoutError::Range {
                dimension,
                from: start,
                until: end,
                len,
            });
        }
        let step = i64::try_from(step).ok().filter(|step| *step > 0);
        let step = step.ok_or(LayoutError::Step { dimension })?;
        let mut sliced = *self;
        sliced.shape[dimension] = (end - start).div_ceil(step as u64);
        // With at most one element the stride is arbitrary.
        if sliced.shape[dimension] > 1 {
            sliced.strides[dimension] *= step;
        }
        let first = start as i64 * self.strides[dimension] * self.dtype.bytes() as i64;
        Ok((sliced, first))
    }

    /// Permutes the dimensions: the first one will be `order[0]`.
    ///
    /// # Errors
    /// [`LayoutError::Order`].
    pub fn permute(&self, order: &[usize]) -> Result<Self, LayoutError> {
        let rank = usize::from(self.rank);
        let mut seen = [false; MAX_RANK];
        let is_new = |at: &usize| *at < rank && !std::mem::replace(&mut seen[*at], true);
        if order.len() != rank || !order.iter().all(is_new) {
            return Err(LayoutError::Order {
                order: order.to_vec(),
                rank,
            });
        }
        let mut permuted = *self;
        for (to, from) in order.iter().enumerate() {
            permuted.shape[to] = self.shape[*from];
            permuted.strides[to] = self.strides[*from];
        }
        Ok(permuted)
    }

    /// Reshapes: the same elements in the same order in another shape, without a copy.
    ///
    /// # Errors
    /// [`LayoutError::Rank`], [`LayoutError::Elements`], [`LayoutError::NotAView`],
    /// [`LayoutError::TooLarge`].
    pub fn reshape(&self, shape: &[u64]) -> Result<Self, LayoutError> {
        let rank = checked_rank(shape.len())?;
        let wanted = Self::contiguous(self.dtype, shape)?;
        if wanted.len() != self.len() {
            return Err(LayoutError::Elements {
                from: self.shape().to_vec(),
                elements: self.len(),
                to: shape.to_vec(),
            });
        }
        if self.is_empty() {
            return Ok(wanted);
        }
        let strides = self.split(shape).ok_or_else(|| LayoutError::NotAView {
            from: self.shape().to_vec(),
            strides: self.strides().to_vec(),
            to: shape.to_vec(),
        })?;
        Self::strided(self.dtype, shape, &strides[..rank])
    }

    /// Strides of a shape with as many elements, if possible. Dimensions that are evenly spaced
    /// form one run, which is split into those of the shape, from the last on.
    fn split(&self, shape: &[u64]) -> Option<[i64; MAX_RANK]> {
        let mut strides = [0; MAX_RANK];
        let own = self.shape().iter().zip(self.strides());
        let mut own = own.rev().filter(|(len, _)| **len > 1).peekable();
        // Elements of the run that are not assigned to a dimension yet, and the stride of the next
        // dimension.
        let (mut left, mut stride) = (1, 1);
        for (at, len) in shape.iter().enumerate().rev() {
            if left == 1
                && *len > 1
                && let Some((run, apart)) = own.next()
            {
                (left, stride) = (*run, *apart);
                while let Some((more, apart)) = own.peek() {
                    let run = i64::try_from(left).ok()?;
                    if run.checked_mul(stride) != Some(**apart) {
                        break;
                    }
                    left *= **more;
                    own.next();
                }
                // The run is counted from its last dimension.
            }
            strides[at] = stride;
            if left % len != 0 {
                return None;
            }
            left /= len;
            stride = stride.checked_mul(i64::try_from(*len).ok()?)?;
        }
        (left == 1).then_some(strides)
    }

    /// Broadcasts to a larger shape, repeating elements along dimensions that are new or have
    /// extent 1. Dimensions are aligned from the last on.
    ///
    /// # Errors
    /// [`LayoutError::Rank`], [`LayoutError::Broadcast`], [`LayoutError::TooLarge`].
    pub fn broadcast(&self, shape: &[u64]) -> Result<Self, LayoutError> {
        let rank = checked_rank(shape.len())?;
        let refused = || LayoutError::Broadcast {
            from: self.shape().to_vec(),
            to: shape.to_vec(),
        };
        let new = rank
            .checked_sub(usize::from(self.rank))
            .ok_or_else(refused)?;
        let mut strides = [0; MAX_RANK];
        for (at, (len, stride)) in self.shape().iter().zip(self.strides()).enumerate() {
            strides[new + at] = match (*len, shape[new + at]) {
                (same, to) if same == to => *stride,
                (1, _) => 0,
                _ => return Err(refused()),
            };
        }
        Self::strided(self.dtype, shape, &strides[..rank])
    }
}

fn checked_rank(rank: usize) -> Result<usize, LayoutError> {
    match rank <= MAX_RANK {
        true => Ok(rank),
        false => Err(LayoutError::Rank { rank }),
    }
}

/// Prints `f32[24, 1024]`, and the strides if they are not those of the shape.
impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape())?;
        match self.is_contiguous() {
            true => Ok(()),
            false => write!(f, " by {:?}", self.strides()),
        }
    }
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Layout({self})")
    }
}
