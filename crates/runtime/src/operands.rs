//! Operands: buffers with their memory, bound to work that a caller queues itself.
//!
//! Elsewhere: expressions, which a session compiles and queues (`expressions`).

use fercuda_cuda::Stream;
use fercuda_jit::BoundArg;
use fercuda_tensor::Layout;

use crate::error::Result;
use crate::session::{BufferEntry, BufferId, Session};

/// A buffer with its memory, which lives until this is dropped and the work that was queued with it
/// is done.
#[derive(Clone, Debug)]
pub struct BoundBuffer {
    entry: BufferEntry,
}

impl BoundBuffer {
    /// Its layout.
    pub fn layout(&self) -> &Layout {
        &self.entry.layout
    }

    /// Its memory, from the first element on and before it, for an expression or an op.
    pub fn arg(&self) -> BoundArg<'_> {
        BoundArg::of(&self.entry.memory.buffer).first_at(self.entry.first)
    }
}

impl Session {
    /// Binds a buffer, for work that [`Session::queue`] queues.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale); [`Error::Ended`](crate::Error::Ended).
    pub fn bind(&self, id: BufferId) -> Result<BoundBuffer> {
        let entry = self.core.entry(id)?;
        Ok(BoundBuffer { entry })
    }

    /// Calls `work` with the session's stream, behind its earlier work: at once, or when the jobs
    /// that wait on the host have been queued. Returns what it returns.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Ended`](crate::Error::Ended);
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn queue<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Stream) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        self.core.with(|_| Ok(()))?;
        self.core.in_order(work)
    }
}
