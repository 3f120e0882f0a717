//! Asynchronous copies between host and device.
//!
//! The host memory is owned by the pending copy, or borrowed by a scope that waits, so it is
//! neither freed nor changed too early. Forgetting a pending copy leaks its memory, which is safe.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use crate::callback::is_in_callback;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pinned::PinnedBuffer;
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::stream::{EnteredStream, Stream};
use crate::wait::WaitOutcome;

mod sealed {
    /// Memory with an address that does not change when its owner is moved.
    ///
    /// # Safety
    /// The values keep one address from the first call until the owner is dropped.
    pub unsafe trait HostSource<T> {
        /// The values.
        fn values(&self) -> &[T];
    }

    /// As [`HostSource`], with exclusive access.
    ///
    /// # Safety
    /// As for [`HostSource`]; the values are reached through the owner alone.
    pub unsafe trait HostTarget<T>: HostSource<T> {
        /// The values.
        fn values_mut(&mut self) -> &mut [T];
    }
}

pub(crate) use sealed::{HostSource, HostTarget};

// SAFETY: the values are on the heap; moving a `Vec` moves its pointer.
unsafe impl<T: Pod> HostSource<T> for Vec<T> {
    fn values(&self) -> &[T] {
        self
    }
}

// SAFETY: as above, and a `Vec` owns its values alone.
unsafe impl<T: Pod> HostTarget<T> for Vec<T> {
    fn values_mut(&mut self) -> &mut [T] {
        self
    }
}

// SAFETY: the values are pinned memory of the driver.
unsafe impl<T: Pod> HostSource<T> for PinnedBuffer<T> {
    fn values(&self) -> &[T] {
        self
    }
}

// SAFETY: as above, and the buffer owns its values alone.
unsafe impl<T: Pod> HostTarget<T> for PinnedBuffer<T> {
    fn values_mut(&mut self) -> &mut [T] {
        self
    }
}

// SAFETY: as above; no clone can write, since the pending copy holds one.
unsafe impl<T: Pod> HostSource<T> for Arc<PinnedBuffer<T>> {
    fn values(&self) -> &[T] {
        self
    }
}

/// A copy in flight, and the host memory it needs. [`Transfer::wait`] returns that; dropping the
/// transfer waits as well.
#[derive(Debug)]
#[must_use = "dropping a transfer waits for it"]
pub struct Transfer<H> {
    /// `None` only after `wait`.
    host: Option<H>,
    done: Event,
    stream: Stream,
}

impl<H> Transfer<H> {
    /// Whether the copy is done. Never waits.
    ///
    /// # Errors
    /// The first error of the stream's work.
    pub fn is_done(&self) -> Result<bool> {
        self.done.is_done()
    }

    /// Waits for the copy and returns the host memory.
    ///
    /// # Errors
    /// The first error of the stream's work; the memory is dropped then.
    pub fn wait(mut self) -> Result<H> {
        self.done.synchronize()?;
        match self.host.take() {
            Some(host) => Ok(host),
            None => unreachable!("only `wait` takes it, and it takes `self`"),
        }
    }
}

impl<H> Drop for Transfer<H> {
    fn drop(&mut self) {
        let Some(host) = self.host.take() else { return };
        if is_in_callback() {
            // A callback must not wait. The copy may still run, so its memory is leaked.
            std::mem::forget(host);
        } else if self.done.synchronize().is_err()
            && self.stream.wait_to_destroy() != WaitOutcome::Done
        {
            // The copy may still be running.
            std::mem::forget(host);
        }
    }
}

impl<T: Pod> DeviceSliceMut<'_, T> {
    /// Queues a copy of all of `host`, which must be as long: a
    /// [`PinnedBuffer`], an `Arc` of one, or a `Vec`. From a `Vec` the driver
    /// may copy before this returns.
    ///
    /// The memory belongs to the copy until [`Transfer::wait`] returns it:
    ///
    /// ```compile_fail,E0382
    /// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, PinnedBuffer, Stream};
    /// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    /// # let stream = Stream::new(&context)?;
    /// let mut buffer = DeviceBuffer::<f32>::alloc(&context, 8)?;
    /// let mut pinned = PinnedBuffer::<f32>::new(&context, 8)?;
    /// let transfer = buffer.as_slice_mut().upload(pinned, &stream)?;
    /// pinned[0] = 1.0;
    /// # Ok::<(), fercuda_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`]. The memory is dropped then.
    pub fn upload<H: HostSource<T>>(&mut self, host: H, stream: &Stream) -> Result<Transfer<H>> {
        same_length(host.values().len(), self.len())?;
        self.allocation().note(stream)?;
        let done = Event::untimed(stream.context())?;
        let entered = stream.enter_uncaptured(IN_CAPTURE)?;
        let mut queued = Ok(());
        if !self.is_empty() {
            // SAFETY: `host` is as long and does not move; it is owned by `pending` or `Transfer`
            // until the copy is done, so it is not written before.
            queued = unsafe { self.queue_from_host(host.values().as_ptr(), &entered) };
        }
        pending(queued, host, done, entered)
    }
}

impl<T: Pod> DeviceSlice<'_, T> {
    /// Queues a copy to all of `host`, which must be as long: a
    /// [`PinnedBuffer`] or a `Vec`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`]. The memory is dropped then.
    pub fn download<H: HostTarget<T>>(&self, mut host: H, stream: &Stream) -> Result<Transfer<H>> {
        same_length(host.values().len(), self.len())?;
        self.allocation().note(stream)?;
        let done = Event::untimed(stream.context())?;
        let entered = stream.enter_uncaptured(IN_CAPTURE)?;
        let mut queued = Ok(());
        if !self.is_empty() {
            let to = host.values_mut().as_mut_ptr();
            // SAFETY: `host` is as long and does not move; it is owned by `pending` or `Transfer`
            // until the copy is done, so it is not accessed before.
            queued = unsafe { self.queue_to_host(to, &entered) };
        }
        pending(queued, host, done, entered)
    }
}

const IN_CAPTURE: Error = Error::Capturing {
    operation: "queue a copy with host memory",
    advice: "a graph uses host memory each time it runs: give it some with HostSlot",
};

fn same_length(host: usize, device: usize) -> Result<()> {
    if host != device {
        return Err(Error::Length {
            operation: "queue a copy",
            left_name: "the host memory",
            left: host,
            right_name: "the buffer",
            right: device,
        });
    }
    Ok(())
}

/// The copy just queued. If no event can be recorded after it, the work of the stream is waited for
/// before `host` is dropped.
fn pending<H>(
    queued: Result<()>,
    host: H,
    done: Event,
    entered: EnteredStream<'_>,
) -> Result<Transfer<H>> {
    let stream = entered.stream().clone();
    // A copy that the driver refused is not in flight.
    queued?;
    if let Err(error) = done.record_in(&entered) {
        if entered.wait_for_borrowed().is_err() {
            // The context is lost; the copy may still be running.
            std::mem::forget(host);
        }
        return Err(error);
    }
    Ok(Transfer {
        host: Some(host),
        done,
        stream,
    })
}

/// Queues copies that borrow host memory; see [`Stream::scope`].
#[derive(Debug)]
pub struct CopyScope<'scope, 'env: 'scope> {
    stream: &'scope Stream,
    // Invariant in both, as for `std::thread::Scope`: neither may shrink to
    // let a borrow end before the scope does.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> CopyScope<'scope, '_> {
    /// Queues a copy of all of `host`, which must be as long.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`].
    pub fn upload<T: Pod>(
        &'scope self,
        to: &mut DeviceSliceMut<'_, T>,
        host: &'scope [T],
    ) -> Result<()> {
        same_length(host.len(), to.len())?;
        to.allocation().note(self.stream)?;
        let entered = self.stream.enter_uncaptured(IN_CAPTURE)?;
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: `host` is as long and borrowed until the scope has waited.
        let queued = unsafe { to.queue_from_host(host.as_ptr(), &entered) };
        finish_unless_owned(queued, entered)
    }

    /// Queues a copy to all of `host`, which must be as long.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`].
    pub fn download<T: Pod>(
        &'scope self,
        from: DeviceSlice<'_, T>,
        host: &'scope mut [T],
    ) -> Result<()> {
        same_length(host.len(), from.len())?;
        from.allocation().note(self.stream)?;
        let entered = self.stream.enter_uncaptured(IN_CAPTURE)?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: `host` is as long and borrowed mutably until the scope has waited.
        let queued = unsafe { from.queue_to_host(host.as_mut_ptr(), &entered) };
        finish_unless_owned(queued, entered)
    }
}

/// Waits for the copy just queued in a default stream: by the end of the scope another library may
/// have begun a capture that makes waiting impossible.
fn finish_unless_owned(queued: Result<()>, entered: EnteredStream<'_>) -> Result<()> {
    queued?;
    if !entered.stream().is_owned() {
        entered.wait_for_borrowed()?;
    }
    Ok(())
}

impl Stream {
    /// Runs `body`, the copies of which may borrow host memory of the caller, and waits for the
    /// stream before returning, also when `body` panics. In a default stream each copy is waited
    /// for at once.
    ///
    /// ```no_run
    /// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
    /// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    /// let stream = Stream::new(&context)?;
    /// let mut buffer = DeviceBuffer::<f32>::alloc(&context, 3)?;
    /// let (input, mut output) = ([1.0, 2.0, 3.0], [0.0; 3]);
    /// stream.scope(|copies| {
    ///     copies.upload(&mut buffer.as_slice_mut(), &input)?;
    ///     copies.download(buffer.as_slice(), &mut output)
    /// })?;
    /// # Ok::<(), fercuda_cuda::Error>(())
    /// ```
    ///
    /// Host memory that does not live as long as the scope is refused:
    ///
    /// ```compile_fail,E0597
    /// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
    /// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    /// # let stream = Stream::new(&context)?;
    /// # let mut buffer = DeviceBuffer::<f32>::alloc(&context, 3)?;
    /// stream.scope(|copies| {
    ///     let input = [1.0, 2.0, 3.0];
    ///     copies.upload(&mut buffer.as_slice_mut(), &input)
    /// })?;
    /// # Ok::<(), fercuda_cuda::Error>(())
    /// ```
    ///
    /// And so is reading it while the copy may still write:
    ///
    /// ```compile_fail,E0502
    /// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
    /// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = DeviceBuffer::<f32>::alloc(&context, 3)?;
    /// let mut output = [0.0; 3];
    /// stream.scope(|copies| {
    ///     copies.download(buffer.as_slice(), &mut output)?;
    ///     assert_eq!(output[0], 1.0);
    ///     copies.download(buffer.as_slice(), &mut output)
    /// })?;
    /// # Ok::<(), fercuda_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error that `body` returns, else the first error of the stream's work.
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope CopyScope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        struct WaitOnDrop<'a>(&'a Stream);
        impl Drop for WaitOnDrop<'_> {
            fn drop(&mut self) {
                self.0.wait_for_borrowed();
            }
        }
        self.refuse_capture("borrow host memory")?;
        // The wait below needs the context to be bindable; checked before anything borrows.
        self.context().bind()?;
        let wait = WaitOnDrop(self);
        let scope = CopyScope {
            stream: self,
            scope: PhantomData,
            env: PhantomData,
        };
        let result = body(&scope);
        drop(wait);
        let value = result?;
        self.synchronize()?;
        Ok(value)
    }
}
