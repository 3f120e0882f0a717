//! An argument block: what changes from replay to replay, in device memory.
//!
//! A kernel's arguments are captured with it. What is to change without another
//! capture is read from memory instead: a block has fields at fixed offsets, the host
//! sets them and pushes the block, a copy in the stream's order.
//!
//! Invariant: a push copies what was set before it, whatever is set after it: it goes
//! through a ring of pinned slots (`fercuda_cuda::Staging`), none of which is written
//! while a copy may read it.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use fercuda_cuda::{DeviceBuffer, Staging, Stream};
use fercuda_tensor::Dtype;

use super::GraphError;

mod sealed {
    pub trait Sealed {}
}

/// A type that a field may have.
pub trait FieldType: sealed::Sealed + Pod + fmt::Debug {
    /// What it is called.
    const NAME: &'static str;
    /// What a buffer of such values has.
    const DTYPE: Dtype;
}

macro_rules! field_types {
    ($($type:ident $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl FieldType for $type {
            const NAME: &'static str = stringify!($type);
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

field_types! { u32 U32, i32 I32, u64 U64, i64 I64, f32 F32, f64 F64 }

/// One field of a layout, or several of a type side by side.
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
    /// Where it begins in the block: what a kernel is given that takes the whole.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    name: String,
    type_name: &'static str,
    offset_bytes: usize,
    len: usize,
}

/// The fields of a block, in the order in which they are declared; each lies at a
/// multiple of its type's size, as in a structure of C.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockLayout {
    fields: Vec<Declared>,
    bytes: usize,
}

/// The fields that every step of decoding one sequence has.
#[derive(Clone, Copy, Debug)]
pub struct DecodeFields {
    /// The token to go on from.
    pub token: Field<u32>,
    /// Its position.
    pub position: Field<u32>,
    /// Positions that are in the cache, this one too.
    pub kv_len: Field<u32>,
}

impl BlockLayout {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field.
    pub fn field<T: FieldType>(&mut self, name: &str) -> Field<T> {
        self.array(name, 1)
    }

    /// Adds `len` values side by side.
    pub fn array<T: FieldType>(&mut self, name: &str, len: usize) -> Field<T> {
        let offset_bytes = self.bytes.next_multiple_of(size_of::<T>());
        self.bytes = offset_bytes + len * size_of::<T>();
        self.fields.push(Declared {
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

    /// Adds token, position and length of the cache.
    pub fn decode(&mut self) -> DecodeFields {
        DecodeFields {
            token: self.field("token"),
            position: self.field("position"),
            kv_len: self.field("kv_len"),
        }
    }

    /// What a block takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets one of a field's values among a block's bytes.
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

    /// Refuses a field of another layout, and a value that it has not.
    pub(crate) fn check<T: FieldType>(
        &self,
        field: Field<T>,
        index: usize,
    ) -> Result<(), GraphError> {
        let is_it = |it: &&Declared| {
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
            Some(it) if index >= it.len => {
                wrong(format!("{} has {} values, and no {index}", it.name, it.len))
            }
            Some(_) => Ok(()),
        }
    }
}

/// A block of arguments in device memory, and what the host has set of it. At first
/// all bytes are 0.
///
/// Kernels are given the block, or fields of it; a graph that captures them holds it.
/// Replays that are to see a push come after it in the order of its stream.
#[derive(Debug)]
pub struct ArgumentBlock {
    layout: BlockLayout,
    host: Vec<u8>,
    memory: DeviceBuffer<u8>,
    staging: Staging,
}

impl ArgumentBlock {
    /// A block with `layout`, allocated and zeroed in the order of `stream`; `pushes` of it
    /// may be under way, or a few more.
    ///
    /// # Errors
    /// Those of the driver, for instance if there is no memory;
    /// [`fercuda_cuda::Error::Value`] for a per-thread stream.
    pub fn new(stream: &Stream, layout: BlockLayout, pushes: usize) -> Result<Self, GraphError> {
        let bytes = layout.bytes().max(1);
        // Of the ring, a quarter is marked at a time.
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

    /// All of it in device memory, for kernels that know the offsets.
    pub fn memory(&self) -> &DeviceBuffer<u8> {
        &self.memory
    }

    /// A field in device memory, for kernels that know nothing of the rest.
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
    /// [`GraphError::Field`] for one of another layout, or a value that it has not.
    pub fn set_at<T: FieldType>(
        &mut self,
        field: Field<T>,
        index: usize,
        value: T,
    ) -> Result<(), GraphError> {
        self.layout.set(&mut self.host, field, index, value)
    }

    /// What was set, for who keeps that elsewhere.
    pub(crate) fn host_mut(&mut self) -> &mut [u8] {
        &mut self.host
    }

    /// Queues a copy of all that was set. Waits only if the device is more pushes
    /// behind than the block was made for.
    ///
    /// # Errors
    /// Those of the driver; [`fercuda_cuda::Error::Capturing`] while the stream is
    /// captured: push before a capture, or before a replay.
    pub fn push(&mut self, stream: &Stream) -> Result<(), GraphError> {
        let to = &mut self.memory.as_slice_mut();
        Ok(self.staging.upload(to, &self.host, stream)?)
    }
}
