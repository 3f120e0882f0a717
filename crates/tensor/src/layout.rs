//! Where the elements of a tensor lie.
//!
//! A layout says it from the first element on: which type, how many along each
//! dimension, and how many elements lie from one to the next there, forward or
//! back, or none where one is all of them. It owns no memory and knows no address;
//! who has memory asks how far a layout reaches.
//!
//! Invariant: every offset that a layout has fits into 63 bits, in bytes. So nothing
//! here or of who checks the reach can overflow.

use std::ops::Range;

use crate::dtype::Dtype;

/// A layout has at most so many dimensions.
pub const MAX_RANK: usize = 8;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: Dtype,
    rank: u8,
    shape: [u64; MAX_RANK],
    strides: [i64; MAX_RANK],
}

/// A layout that there cannot be, or not without a copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// It has too many dimensions.
    #[error("{rank} dimensions are more than the {MAX_RANK} there can be\ntry: reshape it")]
    Rank {
        /// How many.
        rank: usize,
    },
    /// It has not as many strides as dimensions.
    #[error(
        "{shape} dimensions have {strides} strides\ntry: one stride, in elements, for each dimension"
    )]
    Strides {
        /// Dimensions.
        shape: usize,
        /// Strides.
        strides: usize,
    },
    /// Its elements do not fit into 63 bits of address.
    #[error("{shape:?} of {dtype} reaches farther than any memory")]
    TooLarge {
        /// The type.
        dtype: Dtype,
        /// The shape.
        shape: Vec<u64>,
    },
    /// There is no such dimension.
    #[error("dimension {dimension} of {rank}: there is none\ntry: one below {rank}")]
    NoDimension {
        /// The one that was asked for.
        dimension: usize,
        /// How many there are.
        rank: usize,
    },
    /// A range that is not within a dimension.
    #[error(
        "elements {from} to {until} of dimension {dimension}, which has {len}\ntry: a range within 0 to {len}"
    )]
    Range {
        /// The dimension.
        dimension: usize,
        /// The first element.
        from: u64,
        /// The one behind the last.
        until: u64,
        /// How many there are.
        len: u64,
    },
    /// Elements so far apart are none.
    #[error("a step of 0 elements in dimension {dimension}\ntry: 1 or more")]
    Step {
        /// The dimension.
        dimension: usize,
    },
    /// An order that is none of the dimensions.
    #[error(
        "{order:?} is no order of {rank} dimensions\ntry: each of 0 to {rank} once, without {rank}"
    )]
    Order {
        /// What was asked for.
        order: Vec<usize>,
        /// How many there are.
        rank: usize,
    },
    /// A shape of another number of elements.
    #[error("{from:?} has {elements} elements, and {to:?} has another number")]
    Elements {
        /// The shape.
        from: Vec<u64>,
        /// Its elements.
        elements: u64,
        /// The shape that was asked for.
        to: Vec<u64>,
    },
    /// In its order its elements lie too unevenly for that shape.
    #[error("{from:?} with strides {strides:?} is no view as {to:?}\ntry: a contiguous copy first")]
    NotAView {
        /// The shape.
        from: Vec<u64>,
        /// The strides.
        strides: Vec<i64>,
        /// The shape that was asked for.
        to: Vec<u64>,
    },
    /// A shape that this one cannot be stretched to.
    #[error(
        "{from:?} cannot be broadcast to {to:?}\ntry: 1 or the same where dimensions meet, counted from the last"
    )]
    Broadcast {
        /// The shape.
        from: Vec<u64>,
        /// The shape that was asked for.
        to: Vec<u64>,
    },
}

impl Layout {
    /// Elements side by side, those of the last dimension first. No dimensions: one
    /// element.
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
            // Of no elements the strides still are those of a shape.
            let len = i64::try_from((*len).max(1)).map_err(|_| too_large())?;
            next = next.checked_mul(len).ok_or_else(too_large)?;
        }
        Self::strided(dtype, shape, &strides[..rank])
    }

    /// Elements `strides` apart, in elements.
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

    /// Whether all that is computed of it fits.
    fn is_sound(&self) -> bool {
        const LARGEST: u128 = i64::MAX as u128;
        let bytes = u128::from(self.dtype.bytes());
        let mut elements: u128 = 1;
        let mut spread: u128 = 1;
        for (len, stride) in self.shape().iter().zip(self.strides()) {
            let len = u128::from(*len);
            // Counted as if none were 0, since views may have fewer.
            elements = elements.saturating_mul(len.max(1));
            let stride = u128::from(stride.unsigned_abs());
            spread = spread.saturating_add(stride.saturating_mul(len.max(1)));
        }
        elements.saturating_mul(bytes) <= LARGEST && spread.saturating_mul(bytes) <= LARGEST
    }

    /// What an element is.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape[..usize::from(self.rank)]
    }

    /// How many elements lie from one to the next along each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..usize::from(self.rank)]
    }

    /// How many elements.
    pub fn len(&self) -> u64 {
        self.shape().iter().product()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// What the elements take, each for itself.
    pub fn bytes(&self) -> u64 {
        self.len() * self.dtype.bytes()
    }

    /// Which bytes it reaches, from the beginning of the first element. Empty if there
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

    /// Whether its elements lie side by side in their order.
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

    /// Whether two elements may lie in one place. It also says so of some layouts in
    /// which none do, as of two dimensions that are wound into each other.
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

    /// Every `step`th element of a range of a dimension, and where its first element
    /// lies from the first one of this, in bytes.
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
        // Of one element or none the next one may lie anywhere.
        if sliced.shape[dimension] > 1 {
            sliced.strides[dimension] *= step;
        }
        let first = start as i64 * self.strides[dimension] * self.dtype.bytes() as i64;
        Ok((sliced, first))
    }

    /// Its dimensions in another order: the first one will be `order[0]`.
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

    /// The same elements in the same order in another shape, without a copy.
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

    /// Strides of a shape of as many elements, if it has any. Dimensions that lie
    /// evenly are one run, which is cut into those of the shape, from the last on.
    fn split(&self, shape: &[u64]) -> Option<[i64; MAX_RANK]> {
        let mut strides = [0; MAX_RANK];
        let own = self.shape().iter().zip(self.strides());
        let mut own = own.rev().filter(|(len, _)| **len > 1).peekable();
        // Elements of the run that are in no dimension yet, and how far the next
        // dimension's lie apart.
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

    /// As if it had the larger shape, one element being many where a dimension is new
    /// or has 1. Dimensions meet from the last on.
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

/// `f32[24, 1024]`, and the strides where they are not those of the shape.
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
