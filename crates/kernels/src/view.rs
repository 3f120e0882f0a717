//! Part of an operand, an output or the workspace, as a kernel sees it.
//!
//! Invariant: every element of a view is one of the memory that it is of: a view begins as a whole
//! layout and is only narrowed. Views of the workspace are inside the bytes that were reserved.

use fercuda_tensor::{Dtype, Layout, LayoutError};

use crate::error::KernelError;

/// Refuses views that do not go together.
pub(crate) fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), KernelError> {
    match holds {
        true => Ok(()),
        false => Err(KernelError::Views { what: what() }),
    }
}

/// Memory that a program is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BoundPlace {
    Input(usize),
    Output(usize),
    Scratch,
}

/// Elements of bound memory, by a layout and the place of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// The program that it is of.
    pub(crate) program: u64,
    pub(crate) place: BoundPlace,
    /// Of the first element, from the first one of the memory.
    pub(crate) offset_bytes: i64,
    pub(crate) layout: Layout,
}

impl MemoryView {
    /// Checks that it has that shape and type.
    pub(crate) fn check(&self, what: &str, shape: &[u64], dtype: Dtype) -> Result<(), KernelError> {
        let (own, of) = (self.shape(), self.dtype());
        check(own == shape && of == dtype, || {
            format!("{what} is {of}{own:?}, not {dtype}{shape:?}")
        })
    }

    /// Whether its elements are whole numbers, which may number something.
    pub(crate) fn is_index(&self) -> bool {
        !self.dtype().is_float() && self.dtype() != Dtype::Bool
    }

    /// From one element of the first dimension to the next, in elements.
    pub(crate) fn first_stride(&self) -> u64 {
        let strides = self.layout.strides();
        strides.first().map_or(0, |it| it.cast_unsigned())
    }

    /// Whether elements of a dimension are read 16 bytes at a time: they are neighbours, and lines
    /// of them begin at multiples of 16 bytes, if the memory does, which `is_aligned` says.
    pub(crate) fn has_vectors(&self, is_aligned: bool, along: usize) -> bool {
        let near = (16 / self.dtype().bytes()).cast_signed();
        let (shape, strides) = (self.shape(), self.layout.strides());
        let mut dimensions = shape.iter().zip(strides).enumerate();
        is_aligned
            && self.offset_bytes % 16 == 0
            && strides[along] == 1
            && dimensions
                .all(|(at, (extent, stride))| at == along || *extent == 1 || stride % near == 0)
    }

    /// Its layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its shape.
    pub fn shape(&self) -> &[u64] {
        self.layout.shape()
    }

    /// Type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype()
    }

    /// The elements `start` to `end` of a dimension, every `step`th.
    ///
    /// # Errors
    /// As for [`Layout::slice`].
    pub fn slice(
        &self,
        dimension: usize,
        range: std::ops::Range<u64>,
        step: u64,
    ) -> Result<Self, LayoutError> {
        let (layout, offset) = self.layout.slice(dimension, range, step)?;
        Ok(Self {
            layout,
            // Both are inside one memory, so their sum is.
            offset_bytes: self.offset_bytes + offset,
            ..*self
        })
    }

    /// The same elements, those of a dimension in reverse order.
    ///
    /// # Errors
    /// [`LayoutError::NoDimension`].
    pub fn flip(&self, dimension: usize) -> Result<Self, LayoutError> {
        let (shape, rank) = (self.shape(), self.shape().len());
        let Some(len) = shape.get(dimension) else {
            return Err(LayoutError::NoDimension { dimension, rank });
        };
        let mut strides = self.layout.strides().to_vec();
        let last = len.saturating_sub(1) as i64 * strides[dimension];
        strides[dimension] = -strides[dimension];
        Ok(Self {
            layout: Layout::strided(self.dtype(), shape, &strides)?,
            offset_bytes: self.offset_bytes + last * self.dtype().bytes() as i64,
            ..*self
        })
    }

    /// The same elements with another order of dimensions.
    ///
    /// # Errors
    /// As for [`Layout::permute`].
    pub fn permute(&self, order: &[usize]) -> Result<Self, LayoutError> {
        let layout = self.layout.permute(order)?;
        Ok(Self { layout, ..*self })
    }

    /// Repeats elements along new dimensions, and those of extent 1.
    ///
    /// # Errors
    /// As for [`Layout::broadcast`].
    pub fn broadcast(&self, shape: &[u64]) -> Result<Self, LayoutError> {
        let layout = self.layout.broadcast(shape)?;
        Ok(Self { layout, ..*self })
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// As for [`Layout::reshape`].
    pub fn reshape(&self, shape: &[u64]) -> Result<Self, LayoutError> {
        let layout = self.layout.reshape(shape)?;
        Ok(Self { layout, ..*self })
    }

    /// The elements on a diagonal of the last two dimensions, the first of which are that many
    /// columns behind those of the main one.
    ///
    /// # Errors
    /// [`LayoutError::NoDimension`].
    pub fn diagonal(&self, offset: i64) -> Result<Self, LayoutError> {
        let ([outer @ .., rows, columns], [strides @ .., down, across]) =
            (self.shape(), self.layout.strides())
        else {
            let (dimension, rank) = (1, self.shape().len());
            return Err(LayoutError::NoDimension { dimension, rank });
        };
        let beyond = offset.unsigned_abs();
        let (rows, columns) = match offset >= 0 {
            true => (*rows, columns.saturating_sub(beyond)),
            false => (rows.saturating_sub(beyond), *columns),
        };
        let count = rows.min(columns);
        let first = match (count, offset >= 0) {
            (0, _) => 0,
            (_, true) => beyond as i64 * across,
            (_, false) => beyond as i64 * down,
        };
        let shape = [outer, &[count]].concat();
        let strides = [strides, &[down + across]].concat();
        Ok(Self {
            layout: Layout::strided(self.dtype(), &shape, &strides)?,
            offset_bytes: self.offset_bytes + first * self.dtype().bytes() as i64,
            ..*self
        })
    }

    /// The same elements with a dimension at the end.
    ///
    /// # Errors
    /// As for [`Layout::permute`].
    pub fn move_last(&self, dimension: usize) -> Result<Self, LayoutError> {
        let rank = self.shape().len();
        let others = (0..rank).filter(|at| *at != dimension);
        self.permute(&others.chain([dimension]).collect::<Vec<_>>())
    }
}
