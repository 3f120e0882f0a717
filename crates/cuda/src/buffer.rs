//! Device memory as typed buffers.
//!
//! Elsewhere: parts of them and copies (`slice`), freeing (`allocation`).

use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;

use crate::address::DeviceAddr;
use crate::allocation::{DeviceAllocation, ReleaseCallback, ReturnCallback};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pool::MemoryPool;
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::stream::Stream;

/// Device memory for values of type `T`. When dropped, it is freed after its last use; a captured
/// graph keeps what it uses of it.
///
/// Every bit pattern must be a value of the type, since a kernel may write any:
///
/// ```compile_fail,E0277
/// # let context: fercuda_cuda::Context = unreachable!();
/// fercuda_cuda::DeviceBuffer::<bool>::alloc(&context, 8);
/// ```
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    allocation: Arc<DeviceAllocation>,
    len: usize,
    values: PhantomData<T>,
}

fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| Error::Value {
        operation: "allocate a buffer",
        reason: format!(
            "{len} values of {} bytes are more than an address can reach",
            size_of::<T>()
        ),
    })
}

impl<T: Pod> DeviceBuffer<T> {
    /// Memory for `len` values, to be used in any stream. Its initial content is unspecified.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing is allocated then.
    pub fn alloc(context: &Context, len: usize) -> Result<Self> {
        Ok(Self::new(
            DeviceAllocation::plain(context, bytes_of::<T>(len)?)?,
            len,
        ))
    }

    /// Memory for `len` values, allocated in the order of `stream` from the device's pool, and
    /// freed in that order when dropped. Another stream that uses it waits for the allocation
    /// automatically.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Capturing`].
    pub fn alloc_ordered(stream: &Stream, len: usize) -> Result<Self> {
        Ok(Self::new(
            DeviceAllocation::ordered(stream, None, bytes_of::<T>(len)?)?,
            len,
        ))
    }

    /// As [`DeviceBuffer::alloc_ordered`], from `pool`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::alloc_ordered`].
    pub fn alloc_from(pool: &MemoryPool, stream: &Stream, len: usize) -> Result<Self> {
        Ok(Self::new(
            DeviceAllocation::ordered(stream, Some(pool), bytes_of::<T>(len)?)?,
            len,
        ))
    }

    /// Managed memory for `len` values: one address for the host and all devices, to
    /// which the driver moves pages. To be used in any stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Driver`] on a device without it.
    pub fn managed(context: &Context, len: usize) -> Result<Self> {
        Ok(Self::new(
            DeviceAllocation::managed(context, bytes_of::<T>(len)?)?,
            len,
        ))
    }

    /// Memory of another owner, for `len` values from `address` on, as a buffer. `end` is called
    /// once the buffer is dropped and no work that was queued with it runs any more: exactly once,
    /// in any thread. A panic of `end` is caught and ignored.
    ///
    /// # Errors
    /// [`Error::Value`] for an address of 0 or one that is not aligned for `T`. `end`
    /// is called then.
    ///
    /// # Safety
    /// The memory can be used by kernels and copies of the context, and stays until
    /// `end` is called.
    pub unsafe fn foreign(
        context: &Context,
        address: DeviceAddr,
        len: usize,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self> {
        // On every path from here on, it is called.
        let end = ReleaseCallback::new(end);
        let allocation = DeviceAllocation::foreign(context, address.0, bytes_of::<T>(len)?, end);
        if address.0 == 0 || !address.0.is_multiple_of(align_of::<T>() as u64) {
            return Err(Error::Value {
                operation: "import memory",
                reason: format!("{address} is no address of such values"),
            });
        }
        Ok(Self::new(allocation, len))
    }

    /// Memory of another owner, for `len` values from `address` on, lent in the order of `stream`:
    /// another stream that uses it waits automatically for the work that is there now. When the
    /// buffer is dropped and no more work can be queued with it, `taker` is called, exactly once,
    /// in any thread: with `stream`, which is then ordered after all work that was queued with the
    /// buffer; or with `None` if the stream is lost with its context. The host does not wait for
    /// the work. A panic of `taker` is caught and ignored.
    ///
    /// # Errors
    /// [`Error::Value`] for an address of 0 or one that is not aligned for `T`, and for a
    /// per-thread stream. `taker` is called then.
    ///
    /// # Safety
    /// Work that is queued in `stream` from now on can use the memory, which stays until `taker` is
    /// called, and after that for the work queued in `stream` before.
    pub unsafe fn lent(
        stream: &Stream,
        address: DeviceAddr,
        len: usize,
        taker: impl FnOnce(Option<&Stream>) + Send + Sync + 'static,
    ) -> Result<Self> {
        // On every path from here on, it is called.
        let taker = ReturnCallback::new(taker);
        let allocation = DeviceAllocation::lent(stream, address.0, bytes_of::<T>(len)?, taker);
        let wrong = |reason: String| Error::Value {
            operation: "borrow memory in stream order",
            reason,
        };
        if stream.is_handle_of_the_moment() {
            let why = "its handle may mean another stream, or none, when the memory is returned";
            return Err(wrong(why.into()));
        }
        if address.0 == 0 || !address.0.is_multiple_of(align_of::<T>() as u64) {
            return Err(wrong(format!("{address} is no address of such values")));
        }
        Ok(Self::new(allocation, len))
    }

    /// Memory of another owner, for `len` values from `address` on, of which nothing is noted:
    /// dropping the buffer waits for nothing and orders nothing.
    ///
    /// # Errors
    /// [`Error::Value`] for an address of 0 or one that is not aligned for `T`.
    ///
    /// # Safety
    /// The memory can be used by kernels and copies of the context, and stays until all work that
    /// was queued with the buffer or a part of it is done, and with graphs that captured such work.
    pub unsafe fn borrowed(context: &Context, address: DeviceAddr, len: usize) -> Result<Self> {
        if address.0 == 0 || !address.0.is_multiple_of(align_of::<T>() as u64) {
            return Err(Error::Value {
                operation: "borrow memory",
                reason: format!("{address} is no address of such values"),
            });
        }
        let allocation = DeviceAllocation::borrowed(context, address.0, bytes_of::<T>(len)?);
        Ok(Self::new(allocation, len))
    }

    /// Memory for `len` values, all bytes zero once `stream` has run the fill.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let mut buffer = Self::alloc(stream.context(), len)?;
        buffer.fill_bytes(0, stream)?;
        Ok(buffer)
    }

    /// A copy of `values`. Waits for `stream`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn from_host(values: &[T], stream: &Stream) -> Result<Self> {
        let mut buffer = Self::alloc(stream.context(), values.len())?;
        buffer.copy_from_host(values, stream)?;
        Ok(buffer)
    }

    /// The whole buffer, for reading.
    #[inline]
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::of(&self.allocation, self.len)
    }

    /// The whole buffer, for writing.
    #[inline]
    pub fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::of(&self.allocation, self.len)
    }

    /// The values in `range`, for reading.
    ///
    /// # Errors
    /// [`Error::Length`] if the range reaches outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// The values in `range`, for writing.
    ///
    /// # Errors
    /// [`Error::Length`] if the range reaches outside.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        self.as_slice_mut().into_slice(range)
    }

    /// Copies all of `values`, which must be as long as the buffer. Waits for `stream`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`].
    pub fn copy_from_host(&mut self, values: &[T], stream: &Stream) -> Result<()> {
        self.as_slice_mut().copy_from_host(values, stream)
    }

    /// Copies the buffer to `values`, which must be as long. Waits for
    /// `stream`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`]; an error of earlier work.
    pub fn copy_to_host(&self, values: &mut [T], stream: &Stream) -> Result<()> {
        self.as_slice().copy_to_host(values, stream)
    }

    /// The buffer's values. Waits for `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_to_host`].
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        self.as_slice().to_vec(stream)
    }

    /// Queues a copy from device memory of the same length.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn copy_from(&mut self, source: DeviceSlice<'_, T>, stream: &Stream) -> Result<()> {
        self.as_slice_mut().copy_from(source, stream)
    }

    /// Queues setting every byte.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn fill_bytes(&mut self, byte: u8, stream: &Stream) -> Result<()> {
        self.as_slice_mut().fill_bytes(byte, stream)
    }

    /// Queues setting every value; see [`DeviceSliceMut::fill`].
    ///
    /// # Errors
    /// [`Error::Value`] for a value of a width the driver cannot fill with.
    pub fn fill(&mut self, value: T, stream: &Stream) -> Result<()> {
        self.as_slice_mut().fill(value, stream)
    }

    /// The same memory as values of another type, as many as fit.
    ///
    /// # Errors
    /// [`Error::Value`] if the address is not aligned for `U`, or `U` has no
    /// size.
    pub fn cast<U: Pod>(self) -> Result<DeviceBuffer<U>> {
        let aligned = self
            .allocation
            .address()
            .is_multiple_of(align_of::<U>() as u64);
        if size_of::<U>() == 0 || !aligned {
            return Err(Error::Value {
                operation: "read a buffer as another type",
                reason: format!("{} is not aligned to {}", self.address(), align_of::<U>()),
            });
        }
        let len = self.allocation.bytes() / size_of::<U>();
        Ok(DeviceBuffer::new(self.allocation, len))
    }

    /// Whether no other buffer, graph or part refers to its memory, which is freed when this is
    /// dropped in that case.
    pub fn is_last(&self) -> bool {
        self.allocation.is_last()
    }

    /// The memory from `offset_bytes` on, for `len` values, as a buffer of its own. It holds all of
    /// this one. Other parts may overlap it: concurrent work on two of them can garble values, as
    /// work of two streams can.
    ///
    /// # Errors
    /// [`Error::Length`] if it reaches outside; [`Error::Value`] if the address
    /// is not aligned for `U`.
    pub fn part<U: Pod>(&self, offset_bytes: usize, len: usize) -> Result<DeviceBuffer<U>> {
        let bytes = bytes_of::<U>(len)?;
        let end = offset_bytes.saturating_add(bytes);
        if end > self.allocation.bytes() {
            return Err(Error::Length {
                operation: "take a part",
                left_name: "the end of the part in bytes",
                left: end,
                right_name: "the buffer in bytes",
                right: self.allocation.bytes(),
            });
        }
        let address = self.allocation.address() + offset_bytes as u64;
        if !address.is_multiple_of(align_of::<U>() as u64) {
            return Err(Error::Value {
                operation: "take a part",
                reason: format!("{address:#x} is not aligned to {}", align_of::<U>()),
            });
        }
        Ok(DeviceBuffer::new(
            self.allocation.part(offset_bytes, bytes),
            len,
        ))
    }

    fn new(allocation: Arc<DeviceAllocation>, len: usize) -> Self {
        Self {
            allocation,
            len,
            values: PhantomData,
        }
    }

    /// The first `len` values of an allocation that has at least as many.
    pub(crate) fn from_allocation(allocation: Arc<DeviceAllocation>, len: usize) -> Self {
        debug_assert!(len * size_of::<T>() <= allocation.bytes());
        Self::new(allocation, len)
    }
}

impl<T> DeviceBuffer<T> {
    /// How many values it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address on the device; zero for an empty buffer.
    #[inline]
    pub fn address(&self) -> DeviceAddr {
        DeviceAddr(self.allocation.address())
    }

    /// The context it was allocated in.
    pub fn context(&self) -> &Context {
        self.allocation.context()
    }

    /// Notes that work in `stream` will use it that this crate cannot see, such as a kernel that
    /// reads its address from memory: it is freed after that work as after any other, and the
    /// stream waits for its allocation.
    ///
    /// # Errors
    /// [`Error::OtherContext`] for a stream of another driver; [`Error::Driver`].
    pub fn note_use(&self, stream: &Stream) -> Result<()> {
        self.allocation.note(stream)
    }

    /// Drops `thing` once the memory is freed, or returned to its lender: after the work with it
    /// and, if the free waits for a resident kernel ([`Context::guard_resident_kernel`]), after
    /// that; in any thread. For a part, this applies to the whole. Meant for accounting of memory.
    pub fn keep_until_returned(&self, thing: impl Send + 'static) {
        self.allocation.keep_until_returned(Box::new(thing));
    }

    #[inline]
    pub(crate) fn allocation(&self) -> &Arc<DeviceAllocation> {
        &self.allocation
    }
}
