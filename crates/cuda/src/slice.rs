//! Parts of device memory, and copies in and out that the host waits for.
//!
//! The host never holds a reference to device memory, so device work that races with a copy can
//! garble values and do nothing worse; every bit pattern is a value of a `Pod` type.
//!
//! Invariant: a slice lies inside its allocation and holds it. Elsewhere: copies that the host does
//! not wait for (`transfer`).

use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytemuck::Pod;
use fercuda_cuda_sys::types::CUdeviceptr;

use crate::address::DeviceAddr;
use crate::allocation::DeviceAllocation;
use crate::capture_mode::RelaxedCaptureMode;
use crate::error::{Error, Result, call};
use crate::stream::{EnteredStream, Stream};

/// A part of a buffer, for reading. It does not outlive the buffer:
///
/// ```compile_fail,E0505
/// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, PinnedBuffer, Stream};
/// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
/// # let stream = Stream::new(&context)?;
/// let buffer = DeviceBuffer::<f32>::alloc(&context, 8)?;
/// let part = buffer.slice(2..4)?;
/// drop(buffer);
/// part.to_vec(&stream)?;
/// # Ok::<(), fercuda_cuda::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceSlice<'a, T> {
    allocation: &'a Arc<DeviceAllocation>,
    pub(crate) address: CUdeviceptr,
    len: usize,
    values: PhantomData<T>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

/// A part of a buffer, for writing. Only one exists at a time:
///
/// ```compile_fail,E0499
/// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, PinnedBuffer, Stream};
/// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
/// # let stream = Stream::new(&context)?;
/// let mut buffer = DeviceBuffer::<f32>::alloc(&context, 8)?;
/// let mut head = buffer.slice_mut(..4)?;
/// let mut tail = buffer.slice_mut(4..)?;
/// head.copy_from(tail.as_slice(), &stream)?;
/// # Ok::<(), fercuda_cuda::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    allocation: &'a Arc<DeviceAllocation>,
    pub(crate) address: CUdeviceptr,
    len: usize,
    values: PhantomData<&'a mut T>,
}

/// The offset and length of `range` in something of `len` values.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        return Err(Error::Length {
            operation: "take a slice",
            left_name: "the end of the range",
            left: end.max(start),
            right_name: "the buffer",
            right: len,
        });
    }
    Ok((start, end - start))
}

fn same_length(
    operation: &'static str,
    (left_name, left): (&'static str, usize),
    (right_name, right): (&'static str, usize),
) -> Result<()> {
    if left == right {
        return Ok(());
    }
    Err(Error::Length {
        operation,
        left_name,
        left,
        right_name,
        right,
    })
}

const FROM_HOST_IN_CAPTURE: Error = Error::Capturing {
    operation: "copy from ordinary host memory",
    advice: "a graph reads host memory each time it runs: give it some with HostSlot and Capture::upload",
};

const TO_HOST_IN_CAPTURE: Error = Error::Capturing {
    operation: "copy to ordinary host memory",
    advice: "a graph writes host memory each time it runs: give it some with HostSlot and Capture::download",
};

impl<'a, T: Pod> DeviceSlice<'a, T> {
    /// The first `len` values of an allocation that has at least as many.
    #[inline]
    pub(crate) fn of(allocation: &'a Arc<DeviceAllocation>, len: usize) -> Self {
        Self {
            allocation,
            address: allocation.address(),
            len,
            values: PhantomData,
        }
    }

    /// The same memory as bytes.
    pub fn as_bytes(self) -> DeviceSlice<'a, u8> {
        DeviceSlice {
            allocation: self.allocation,
            address: self.address,
            // The values exist, so the product does not overflow.
            len: self.len * size_of::<T>(),
            values: PhantomData,
        }
    }

    /// The values in `range`.
    ///
    /// # Errors
    /// [`Error::Length`] if the range reaches outside.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = resolve(range, self.len)?;
        let address = self.address + (start * size_of::<T>()) as u64;
        Ok(Self {
            address,
            len,
            ..self
        })
    }

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

    /// Its address on the device.
    #[inline]
    pub fn address(&self) -> DeviceAddr {
        DeviceAddr(self.address)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    #[inline]
    pub(crate) fn allocation(&self) -> &'a Arc<DeviceAllocation> {
        self.allocation
    }

    /// Copies to `values`, which must be as long. Waits for `stream`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`]; an error of earlier work.
    pub fn copy_to_host(&self, values: &mut [T], stream: &Stream) -> Result<()> {
        same_length(
            "copy to the host",
            ("the buffer", self.len),
            ("the slice", values.len()),
        )?;
        if self.is_empty() {
            return Ok(());
        }
        self.allocation.note(stream)?;
        let entered = stream.enter_uncaptured(TO_HOST_IN_CAPTURE)?;
        // SAFETY: `values` is as long and is borrowed until `finish` has waited.
        let queued = unsafe { self.queue_to_host(values.as_mut_ptr(), &entered) };
        finish(queued, entered)
    }

    /// The values. Waits for `stream`.
    ///
    /// # Errors
    /// As [`DeviceSlice::copy_to_host`].
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.len];
        self.copy_to_host(&mut values, stream)?;
        Ok(values)
    }

    /// Queues a copy of all values to `to`. In the legacy stream, for which waiting may become
    /// impossible at any time because of other libraries, the copy is done on return.
    ///
    /// # Safety
    /// `to` is valid for writes of as many values until the copy is done, and is not accessed
    /// otherwise until then. The stream was noted.
    pub(crate) unsafe fn queue_to_host(
        &self,
        to: *mut T,
        entered: &EnteredStream<'_>,
    ) -> Result<()> {
        let stream = entered.stream();
        let driver = stream.context().bind()?;
        self.allocation.keep_in(entered);
        // SAFETY: the source is inside its allocation, which waits for the
        // stream; the caller vouches for `to`.
        unsafe {
            if stream.is_legacy() {
                let _relaxed = RelaxedCaptureMode::enter(driver);
                return call!(
                    driver,
                    cuMemcpyDtoH_v2(to.cast(), self.address, self.bytes()),
                    "copy {} bytes to the host",
                    self.bytes()
                );
            }
            call!(
                driver,
                cuMemcpyDtoHAsync_v2(to.cast(), self.address, self.bytes(), stream.raw()),
                "copy {} bytes to the host",
                self.bytes()
            )
        }
    }
}

/// Waits for the copy just queued and returns its result.
fn finish(queued: Result<()>, entered: EnteredStream<'_>) -> Result<()> {
    let stream = entered.stream();
    // A copy that the driver refused is not in flight.
    queued?;
    // Still entered, so that no capture of the stream begins before the copy is done.
    entered.wait_for_borrowed()?;
    drop(entered);
    stream.synchronize()
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    /// The first `len` values of an allocation that has at least as many. The caller borrows the
    /// buffer mutably for as long.
    #[inline]
    pub(crate) fn of(allocation: &'a Arc<DeviceAllocation>, len: usize) -> Self {
        Self {
            allocation,
            address: allocation.address(),
            len,
            values: PhantomData,
        }
    }

    /// The values in `range`.
    ///
    /// # Errors
    /// [`Error::Length`] if the range reaches outside.
    pub fn into_slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = resolve(range, self.len)?;
        let address = self.address + (start * size_of::<T>()) as u64;
        Ok(Self {
            address,
            len,
            ..self
        })
    }

    /// The first `middle` values and the rest.
    ///
    /// # Errors
    /// [`Error::Length`] if there are fewer.
    pub fn split_at(self, middle: usize) -> Result<(Self, Self)> {
        resolve(..middle, self.len)?;
        let Self {
            allocation,
            address,
            len,
            values,
        } = self;
        let rest = address + (middle * size_of::<T>()) as u64;
        Ok((
            Self {
                allocation,
                address,
                len: middle,
                values,
            },
            Self {
                allocation,
                address: rest,
                len: len - middle,
                values,
            },
        ))
    }

    /// The same memory as bytes.
    pub fn into_bytes(self) -> DeviceSliceMut<'a, u8> {
        DeviceSliceMut {
            allocation: self.allocation,
            address: self.address,
            // The values exist, so the product does not overflow.
            len: self.len * size_of::<T>(),
            values: PhantomData,
        }
    }

    /// A shorter borrow of the same values.
    pub fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut {
            allocation: self.allocation,
            address: self.address,
            len: self.len,
            values: PhantomData,
        }
    }

    /// The same values, for reading.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice {
            allocation: self.allocation,
            address: self.address,
            len: self.len,
            values: PhantomData,
        }
    }

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

    /// Its address on the device.
    #[inline]
    pub fn address(&self) -> DeviceAddr {
        DeviceAddr(self.address)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    #[inline]
    pub(crate) fn allocation(&self) -> &'a Arc<DeviceAllocation> {
        self.allocation
    }

    /// Copies all of `values`, which must be as long. Waits for `stream`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`].
    pub fn copy_from_host(&mut self, values: &[T], stream: &Stream) -> Result<()> {
        same_length(
            "copy from the host",
            ("the slice", values.len()),
            ("the buffer", self.len),
        )?;
        if self.is_empty() {
            return Ok(());
        }
        self.allocation.note(stream)?;
        let entered = stream.enter_uncaptured(FROM_HOST_IN_CAPTURE)?;
        // SAFETY: `values` is as long and is borrowed until `finish` has waited.
        let queued = unsafe { self.queue_from_host(values.as_ptr(), &entered) };
        finish(queued, entered)
    }

    /// Queues a copy of as many values from `from`. In the legacy stream, for which waiting may
    /// become impossible at any time because of other libraries, `from` has been read on return.
    ///
    /// # Safety
    /// `from` is valid for reads of as many values until the copy is done, and is not written until
    /// then. The stream was noted.
    pub(crate) unsafe fn queue_from_host(
        &mut self,
        from: *const T,
        entered: &EnteredStream<'_>,
    ) -> Result<()> {
        let stream = entered.stream();
        let driver = stream.context().bind()?;
        self.allocation.keep_in(entered);
        // SAFETY: the target is inside its allocation, which waits for the
        // stream; the caller vouches for `from`.
        unsafe {
            if stream.is_legacy() {
                let _relaxed = RelaxedCaptureMode::enter(driver);
                return call!(
                    driver,
                    cuMemcpyHtoD_v2(self.address, from.cast(), self.bytes()),
                    "copy {} bytes from the host",
                    self.bytes()
                );
            }
            call!(
                driver,
                cuMemcpyHtoDAsync_v2(self.address, from.cast(), self.bytes(), stream.raw()),
                "copy {} bytes from the host",
                self.bytes()
            )
        }
    }

    /// Queues a copy from device memory of the same length, on this device or another.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn copy_from(&mut self, source: DeviceSlice<'_, T>, stream: &Stream) -> Result<()> {
        same_length(
            "copy on the device",
            ("the source", source.len),
            ("the target", self.len),
        )?;
        if self.is_empty() {
            return Ok(());
        }
        self.allocation.note(stream)?;
        source.allocation.note(stream)?;
        let entered = stream.enter()?;
        let driver = stream.context().bind()?;
        self.allocation.keep_in(&entered);
        source.allocation.keep_in(&entered);
        let (from, to) = (source.allocation.context(), self.allocation.context());
        // SAFETY: both ranges are inside their allocations, which wait for the
        // stream.
        unsafe {
            if from == to {
                call!(
                    driver,
                    cuMemcpyDtoDAsync_v2(self.address, source.address, self.bytes(), stream.raw()),
                    "copy {} bytes on {}",
                    self.bytes(),
                    to.device()
                )
            } else {
                call!(
                    driver,
                    cuMemcpyPeerAsync(
                        self.address,
                        to.raw(),
                        source.address,
                        from.raw(),
                        self.bytes(),
                        stream.raw(),
                    ),
                    "copy {} bytes from {} to {}",
                    self.bytes(),
                    from.device(),
                    to.device()
                )
            }
        }
    }

    /// Queues setting every byte.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn fill_bytes(&mut self, byte: u8, stream: &Stream) -> Result<()> {
        let bytes = self.bytes();
        if bytes == 0 {
            return Ok(());
        }
        self.allocation.note(stream)?;
        let entered = stream.enter()?;
        let driver = stream.context().bind()?;
        self.allocation.keep_in(&entered);
        // SAFETY: the range is inside its allocation, which waits for the
        // stream.
        unsafe {
            call!(
                driver,
                cuMemsetD8Async(self.address, byte, bytes, stream.raw()),
                "fill {bytes} bytes"
            )
        }
    }

    /// Queues setting every value. The driver can fill with 1, 2 or 4 bytes;
    /// a wider value works if all its bytes are equal.
    ///
    /// # Errors
    /// [`Error::Value`] for another value.
    pub fn fill(&mut self, value: T, stream: &Stream) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let bytes = bytemuck::bytes_of(&value);
        match *bytes {
            [] => Ok(()),
            [byte, ref rest @ ..] if rest.iter().all(|other| *other == byte) => {
                self.fill_bytes(byte, stream)
            }
            [a, b] => self.fill_with(stream, |driver, address, count, stream| {
                let value = u16::from_ne_bytes([a, b]);
                // SAFETY: `fill_with` gives a range inside the allocation.
                unsafe {
                    call!(
                        driver,
                        cuMemsetD16Async(address, value, count, stream),
                        "fill {count} values"
                    )
                }
            }),
            [a, b, c, d] => self.fill_with(stream, |driver, address, count, stream| {
                let value = u32::from_ne_bytes([a, b, c, d]);
                // SAFETY: `fill_with` gives a range inside the allocation.
                unsafe {
                    call!(
                        driver,
                        cuMemsetD32Async(address, value, count, stream),
                        "fill {count} values"
                    )
                }
            }),
            _ => Err(Error::Value {
                operation: "fill a buffer",
                reason: format!(
                    "its values have {} bytes; the driver fills with 1, 2 or 4",
                    bytes.len()
                ),
            }),
        }
    }

    /// Calls `memset` with this range, in units of `T`.
    fn fill_with(
        &mut self,
        stream: &Stream,
        memset: impl FnOnce(
            &fercuda_cuda_sys::Driver,
            CUdeviceptr,
            usize,
            fercuda_cuda_sys::types::CUstream,
        ) -> Result<()>,
    ) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        self.allocation.note(stream)?;
        let entered = stream.enter()?;
        let driver = stream.context().bind()?;
        self.allocation.keep_in(&entered);
        memset(driver, self.address, self.len, stream.raw())
    }
}
