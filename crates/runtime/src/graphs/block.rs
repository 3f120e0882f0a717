//! Argument block: values that change from replay to replay, in device memory.
//!
//! A kernel's arguments are captured with it. A value that changes without another capture is
//! read from memory instead: a block has fields at fixed offsets, the host sets them and pushes
//! the block, a copy in the stream's order.
//!
//! Invariant: a push copies the values set before it, whatever is set after it: it goes through a
//! ring of pinned slots (`fercuda_cuda::Staging`), none of which is written while a copy may read
//! it.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use fercuda_cuda::{DeviceBuffer, Staging, Stream};
use fercuda_tensor::Dtype;

use super::error::GraphError;

mod sealed {
    pub trait SealedField {}
}

/// Type of a field.
pub trait FieldType: sealed::SealedField + Pod + fmt::Debug {
    /// The type's name.
    const NAME: &'static str;
    /// Element type of a buffer of such values.
    const DTYPE: Dtype;
}

macro_rules! field_types {
    ($($type:ident $dtype:ident),*) => {$(
        impl sealed::SealedField for $type {}
        impl FieldType for $type {
            const NAME: &'static str = stringify!($type);
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

field_types! { u32 U32, i32 I32, u64 U64, i64 I64, f32 F32, f64 F64 }

/// One field of a layout, or an array of one type.
#[derive(Debug)]
pub struct Field<T> {
    offset_bytes: usize,
    len: usize,
    values: PhantomData<T>,
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

impl<T> Field<T> {
    /// Offset in the block, for a kernel that is given the whole block.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldDeclaration {
    name: String,
    type_name: &'static str,
    offset_bytes: usize,
    len: usize,
}

/// The fields of a block, in the order in which they are declared; each is aligned to its type's
/// size, as in a C structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockLayout {
    fields: Vec<FieldDeclaration>,
    bytes: usize,
}

impl BlockLayout {
    /// An empty layout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field.
    pub fn field<T: FieldType>(&mut self, name: &str) -> Field<T> {
        self.array(name, 1)
    }

    /// Adds an array of `len` values.
    pub fn array<T: FieldType>(&mut self, name: &str, len: usize) -> Field<T> {
        let offset_bytes = self.bytes.next_multiple_of(size_of::<T>());
        self.bytes = offset_bytes + len * size_of::<T>();
        self.fields.push(FieldDeclaration {
            name: name.to_owned(),
            type_name: T::NAME,
            offset_bytes,
            len,
        });
        Field {
            offset_bytes,
            len,
            values: PhantomData,
        }
    }

    /// Size of a block.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets one of a field's values in a block's bytes.
    pub(crate) fn set<T: FieldType>(
        &self,
        host: &mut [u8],
        field: Field<T>,
        index: usize,
        value: T,
    ) -> Result<(), GraphError> {
        self.check(field, index)?;
        let begin = field.offset_bytes + index * size_of::<T>();
        let bytes = bytemuck::bytes_of(&value);
        host[begin..begin + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Refuses a field of another layout, and an index out of bounds.
    pub(crate) fn check<T: FieldType>(
        &self,
        field: Field<T>,
        index: usize,
    ) -> Result<(), GraphError> {
        let is_it = |it: &&FieldDeclaration| {
            (it.type_name, it.offset_bytes, it.len) == (T::NAME, field.offset_bytes, field.len)
        };
        let wrong = |why: String| Err(GraphError::Field { why });
        match self.fields.iter().find(is_it) {
            None => wrong(format!(
                "there are no {} values of {} at byte {}",
                field.len,
                T::NAME,
                field.offset_bytes
            )),
            Some(it) if index >= it.len => wrong(format!(
                "{} has {} values; index {index} is out of bounds",
                it.name, it.len
            )),
            Some(_) => Ok(()),
        }
    }
}

/// An argument block in device memory, and its values on the host, initially all zeros.
///
/// Kernels are given the block, or fields of it; a graph that captures them retains it. A replay
/// that must see a push is launched after it in the order of its stream.
#[derive(Debug)]
pub struct ArgumentBlock {
    layout: BlockLayout,
    host: Vec<u8>,
    memory: DeviceBuffer<u8>,
    staging: Staging,
}

impl ArgumentBlock {
    /// Allocates and zeroes a block in the order of `stream`, with room for at least `pushes`
    /// pushes in flight.
    ///
    /// # Errors
    /// Those of the driver, for instance if there is no memory;
    /// [`fercuda_cuda::Error::Value`] for a per-thread stream.
    pub fn new(stream: &Stream, layout: BlockLayout, pushes: usize) -> Result<Self, GraphError> {
        let bytes = layout.bytes().max(1);
        // The ring is recycled a quarter at a time.
        let slots = pushes.saturating_add(pushes.div_ceil(3)).max(4);
        let mut memory = DeviceBuffer::alloc_ordered(stream, bytes)?;
        memory.fill_bytes(0, stream)?;
        Ok(Self {
            host: vec![0; bytes],
            memory,
            staging: Staging::new(stream.context(), bytes, slots)?,
            layout,
        })
    }

    /// Its fields.
    pub fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// The whole block in device memory, for kernels that know the offsets.
    pub fn memory(&self) -> &DeviceBuffer<u8> {
        &self.memory
    }

    /// A field in device memory, for kernels that take just that.
    ///
    /// # Errors
    /// [`GraphError::Field`] for one of another layout.
    pub fn field<T: FieldType>(&self, field: Field<T>) -> Result<DeviceBuffer<T>, GraphError> {
        if field.len > 0 {
            self.layout.check(field, 0)?;
        }
        Ok(self.memory.part(field.offset_bytes, field.len)?)
    }

    /// Sets a field, or its first value, for the next push.
    ///
    /// # Errors
    /// [`GraphError::Field`] for one of another layout.
    pub fn set<T: FieldType>(&mut self, field: Field<T>, value: T) -> Result<(), GraphError> {
        self.set_at(field, 0, value)
    }

    /// Sets one of a field's values for the next push.
    ///
    /// # Errors
    /// [`GraphError::Field`] for one of another layout, or an index out of bounds.
    pub fn set_at<T: FieldType>(
        &mut self,
        field: Field<T>,
        index: usize,
        value: T,
    ) -> Result<(), GraphError> {
        self.layout.set(&mut self.host, field, index, value)
    }

    /// The host's values, for a caller that keeps them elsewhere.
    pub(crate) fn host_mut(&mut self) -> &mut [u8] {
        &mut self.host
    }

    /// Queues a copy of all values. Waits only if more pushes are in flight than the block was made
    /// for.
    ///
    /// # Errors
    /// Those of the driver; [`fercuda_cuda::Error::Capturing`] while the stream is
    /// captured: push before a capture, or before a replay.
    pub fn push(&mut self, stream: &Stream) -> Result<(), GraphError> {
        let to = &mut self.memory.as_slice_mut();
        Ok(self.staging.upload(to, &self.host, stream)?)
    }
}
