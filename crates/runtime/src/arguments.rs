//! An argument block of a session's: what changes from replay to replay, as its buffers.
//!
//! Invariants: the whole block and each field are buffers of the session, so whatever takes
//! buffers takes them. A push is in the session's order. What sets a value waits for no push:
//! that may wait for the device, and the device for a host function that sets one. The block
//! ends with the session; graphs that were given its memory hold that. Elsewhere: fields and
//! pushes (`graphs::block`).

use std::sync::{Arc, Mutex};

use fercuda_tensor::Layout;

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::graphs::{ArgumentBlock, BlockLayout, Field, FieldType};
use crate::machine::lock;
use crate::owned::Ends;
use crate::session::{BufferId, Session};

/// A block of arguments of a session's ([`Session::arguments`]). At first all bytes are 0.
///
/// All calls may be made from any thread; [`Arguments::set_at`] also in a host callback.
#[derive(Debug)]
pub struct Arguments {
    session: Session,
    block: Arc<Block>,
    whole: BufferId,
}

/// What the host sets, and by what it is pushed.
#[derive(Debug)]
struct Block {
    layout: BlockLayout,
    /// Held for no longer than a copy of them takes.
    host: Mutex<Vec<u8>>,
    /// Held over a push, and locked before `host`. None when the session has ended.
    pushed: Mutex<Option<ArgumentBlock>>,
}

impl Ends for Block {
    fn end(&self) {
        let pushed = lock(&self.pushed).take();
        drop(pushed);
    }
}

impl Session {
    /// A block with these fields, in memory of the pool; `pushes` of it may be under way, or
    /// a few more.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::Graph`]; [`Error::Cuda`]; [`Error::Ended`];
    /// [`Error::Forked`].
    pub fn arguments(&self, layout: BlockLayout, pushes: usize) -> Result<Arguments> {
        let core = &self.core;
        core.with(|_| Ok(()))?;
        let made = || ArgumentBlock::new(core.stream(), layout.clone(), pushes);
        let block = core.acting(made)?;
        let memory = block.memory();
        let whole = core.adopt(memory.part(0, memory.len())?)?;
        let arguments = Arguments {
            session: self.clone(),
            block: Arc::new(Block {
                layout,
                host: Mutex::new(vec![0; memory.len()]),
                pushed: Mutex::new(Some(block)),
            }),
            whole,
        };
        // Under the table's lock, so that the session does not end in between.
        core.with(|_| {
            let block = Arc::downgrade(&arguments.block);
            core.owned().keep_until_end(block as _);
            Ok(())
        })?;
        Ok(arguments)
    }
}

impl Arguments {
    /// All of it as a buffer of bytes, which ends with this.
    pub fn whole(&self) -> BufferId {
        self.whole
    }

    /// Another handle to a field's values: of no dimensions if it is one, else of one. It
    /// is the caller's to free.
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

    /// Sets one of a field's values for the next push. Waits for nothing.
    ///
    /// # Errors
    /// As for [`Arguments::field`].
    pub fn set_at<T: FieldType>(&self, field: Field<T>, index: usize, value: T) -> Result<()> {
        self.session.core.with(|_| Ok(()))?;
        let host = &mut lock(&self.block.host);
        Ok(self.block.layout.set(host, field, index, value)?)
    }

    /// Queues a copy of all that was set, behind the session's work. Waits only if the
    /// device is more pushes behind than the block was made for, or work that was given
    /// before waits on the host.
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
            // The session ends, and nobody will see it.
            None => Ok(()),
        })
    }
}

impl Drop for Arguments {
    fn drop(&mut self) {
        let core = &self.session.core;
        if core.check_process().is_err() {
            // It is memory of the parent's, and a thread of the parent's may have the locks.
            std::mem::forget(self.block.clone());
            return;
        }
        core.acting(|| self.block.end());
        // It may be freed already, or the session ended.
        drop(self.session.free(self.whole));
    }
}
