//! Objects of other libraries that queued work uses, and queueing that work.
//!
//! A library of another author queues work in a stream through its own calls: cuFFT executes a
//! plan, cuBLASLt a product. The plan must outlive the work, and a graph that the work was captured
//! into.
//!
//! Invariant: an object is noted in a stream before work with it is queued there, and dropped when
//! that work is done and no graph has it.

use std::sync::Arc;

use fercuda_cuda_sys::types::CUstream;

use crate::argument::Arguments;
use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred::{self, DestroyOutcome};
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::uses::StreamUses;

/// An object of another library, such as a plan, that work in streams of one context uses. When the
/// last clone is dropped and the work with it is done, the object is dropped once, with its context
/// current, outside of host callbacks, and while no kernel is resident
/// ([`Context::guard_resident_kernel`]). It is leaked if the context was reset: what it names does
/// not exist any more.
#[derive(Debug)]
pub struct QueuedResource<T: Send + Sync + 'static> {
    inner: Arc<QueuedResourceInner<T>>,
}

#[derive(Debug)]
struct QueuedResourceInner<T: Send + Sync + 'static> {
    /// Taken by `drop` alone.
    object: Option<T>,
    context: Context,
    uses: StreamUses,
}

impl<T: Send + Sync + 'static> Clone for QueuedResource<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<T: Send + Sync + 'static> QueuedResource<T> {
    /// Takes `object`, which was made in `context`.
    pub fn new(context: &Context, object: T) -> Self {
        Self {
            inner: Arc::new(QueuedResourceInner {
                object: Some(object),
                context: context.clone(),
                uses: StreamUses::default(),
            }),
        }
    }

    /// The object.
    pub fn object(&self) -> &T {
        match &self.inner.object {
            Some(object) => object,
            None => unreachable!("only `drop` takes the object"),
        }
    }

    /// The context that it was made in.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }
}

impl<T: Send + Sync + 'static> Drop for QueuedResourceInner<T> {
    fn drop(&mut self) {
        let (mut object, context) = (self.object.take(), self.context.clone());
        let uses = std::mem::take(&mut self.uses);
        deferred::destroy_or_defer(move || {
            let _none_resident = match uses.wait_for_all() {
                Ok(none_resident) => none_resident,
                Err(retry) => return retry,
            };
            match context.bind_to_destroy() {
                Ok(Some(driver)) => {
                    let _relaxed = RelaxedCaptureMode::enter(driver);
                    drop(object.take());
                }
                Ok(None) => std::mem::forget(object.take()),
                Err(retry) => return retry,
            }
            DestroyOutcome::Done
        });
    }
}

impl Stream {
    /// Has `work` queue work of another library in this stream: with the stream's context current,
    /// and in a thread whose capture mode allows what libraries do when they are first used, such
    /// as loading kernels. `resource` and `memory` outlive that work; where the stream is captured,
    /// its graph keeps them. `work` gets the driver's handle of the stream, queues what it has to
    /// before it returns, and calls nothing of this crate that queues or waits.
    ///
    /// # Errors
    /// [`Error::OtherContext`] if the resource is of another context; [`Error::InCallback`];
    /// [`Error::Capturing`] while another thread ends a capture of the stream. `work` is not called
    /// then.
    pub fn queue_with<T: Send + Sync + 'static, R>(
        &self,
        resource: &QueuedResource<T>,
        memory: &impl Arguments,
        work: impl FnOnce(CUstream) -> R,
    ) -> Result<R> {
        if self.context() != resource.context() {
            return Err(Error::OtherContext {
                operation: "use an object of another library",
                left: resource.context().device().to_string(),
                right: self.context().device().to_string(),
            });
        }
        let inner = &resource.inner;
        if !inner.uses.has_recent(self) {
            inner.uses.note(self);
        }
        memory.note(self)?;
        let entered = self.enter()?;
        let driver = self.context().bind()?;
        if let Some(state) = entered.capture() {
            state.keep(Arc::as_ptr(inner) as usize, inner.clone());
            memory.for_each(|allocation| allocation.keep_in(&entered));
        }
        let _relaxed = RelaxedCaptureMode::enter(driver);
        Ok(work(self.raw()))
    }
}
