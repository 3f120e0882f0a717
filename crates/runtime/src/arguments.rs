//! Argument block of a session: values that change from replay to replay, as buffers.
//!
//! Invariants: the whole block and each field are buffers of the session, so every call that takes
//! buffers takes them. A push is ordered in the session's stream. Setting a value never waits for
//! a push: a push may wait for the device, and the device for a host function that sets a value.
//! The block is torn down with the session; graphs that were given its memory retain that.
//! Elsewhere: fields and pushes (`graphs::block`).

use std::sync::{Arc, Mutex};

use fercuda_tensor::Layout;

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::graphs::{ArgumentBlock, BlockLayout, Field, FieldType};
use crate::lock::lock;
use crate::resources::TearDown;
use crate::session::{BufferId, Session};

/// An argument block of a session ([`Session::arguments`]), initially all zeros.
///
/// All calls may be made from any thread; [`SessionArguments::set_at`] also in a host callback.
#[derive(Debug)]
pub struct SessionArguments {
    session: Session,
    block: Arc<SharedBlock>,
    whole: BufferId,
}

/// Host copy of the values, and the block that pushes them.
#[derive(Debug)]
struct SharedBlock {
    layout: BlockLayout,
    /// Held no longer than a copy of the values takes.
    host: Mutex<Vec<u8>>,
    /// Held during a push, and locked before `host`. `None` once the session has ended.
    pushed: Mutex<Option<ArgumentBlock>>,
}

impl TearDown for SharedBlock {
    fn tear_down(&self) {
        let pushed = lock(&self.pushed).take();
        drop(pushed);
    }
}

impl Session {
    /// Allocates a block with these fields in memory of the pool, with room for at least `pushes`
    /// pushes in flight.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::Graph`]; [`Error::Cuda`]; [`Error::Ended`];
    /// [`Error::Forked`].
    pub fn arguments(&self, layout: BlockLayout, pushes: usize) -> Result<SessionArguments> {
        let core = &self.core;
        core.with(|_| Ok(()))?;
        let made = || ArgumentBlock::new(core.stream(), layout.clone(), pushes);
        let block = core.as_tenant(made)?;
        let memory = block.memory();
        let whole = core.adopt(memory.part(0, memory.len())?)?;
        let arguments = SessionArguments {
            session: self.clone(),
            block: Arc::new(SharedBlock {
                layout,
                host: Mutex::new(vec![0; memory.len()]),
                pushed: Mutex::new(Some(block)),
            }),
            whole,
        };
        // Under the table's lock, so that the session cannot end in between.
        core.with(|_| {
            let block = Arc::downgrade(&arguments.block);
            core.owned().keep_until_end(block as _);
            Ok(())
        })?;
        Ok(arguments)
    }
}

impl SessionArguments {
    /// The whole block as a buffer of bytes, which is freed with this block.
    pub fn whole(&self) -> BufferId {
        self.whole
    }

    /// Returns another handle to a field's values: zero-dimensional if the field has one value,
    /// else one-dimensional. The caller frees it.
    ///
    /// # Errors
    /// [`Error::Graph`] for a field of another layout; [`Error::Ended`].
    pub fn field<T: FieldType>(&self, field: Field<T>) -> Result<BufferId> {
        self.session.core.with(|_| Ok(()))?;
        if !field.is_empty() {
            self.block.layout.check(field, 0)?;
        }
        let len = [field.len() as u64];
        let shape = if field.len() == 1 { &[][..] } else { &len };
        let layout = Layout::contiguous(T::DTYPE, shape)?;
        let offset = field.offset_bytes() as i64;
        self.session.view(self.whole, |_| Ok((layout, offset)))
    }

    /// Sets one of a field's values for the next push. Never waits.
    ///
    /// # Errors
    /// As for [`SessionArguments::field`].
    pub fn set_at<T: FieldType>(&self, field: Field<T>, index: usize, value: T) -> Result<()> {
        self.session.core.with(|_| Ok(()))?;
        let host = &mut lock(&self.block.host);
        Ok(self.block.layout.set(host, field, index, value)?)
    }

    /// Queues a copy of all values, behind the session's work. Waits only if more pushes are in
    /// flight than the block was made for, or if work submitted before waits on the host.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn push(&self) -> Result<()> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        let block = self.block.clone();
        core.in_order(move |stream| match &mut *lock(&block.pushed) {
            Some(pushed) => {
                pushed.host_mut().copy_from_slice(&lock(&block.host));
                Ok(pushed.push(stream)?)
            }
            // The session is being torn down, and no reader is left.
            None => Ok(()),
        })
    }
}

impl Drop for SessionArguments {
    fn drop(&mut self) {
        let core = &self.session.core;
        if core.check_process().is_err() {
            // The memory is the parent's, and one of the parent's threads may hold the locks.
            std::mem::forget(self.block.clone());
            return;
        }
        core.as_tenant(|| self.block.tear_down());
        // The handle may be freed already, or the session ended.
        drop(self.session.free(self.whole));
    }
}
