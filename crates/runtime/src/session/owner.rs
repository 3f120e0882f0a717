//! Sessions: owners of buffers, each with a stream that orders their work.

use std::sync::Arc;

use fercuda_cuda::{DeviceAddr, DeviceBuffer, Event, Image, Module, Stream};
use fercuda_tensor::Layout;

use super::core::SessionCore;
use super::entry::{BufferEntry, BufferId, Exported, Regime, SessionMemory, overlap, part};
use super::teardown::{LastHandle, tear_down_all};
use crate::error::{EndReason, Error, Result};
use crate::handles::GenerationalTable;
use crate::jobs::Job;

/// A session. Clones share it; it ends when it is closed, or when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) core: Arc<SessionCore>,
    _last_handle: Arc<LastHandle>,
}

impl Session {
    pub(crate) fn of(core: Arc<SessionCore>) -> Self {
        let _last_handle = Arc::new(LastHandle(core.clone()));
        Self { core, _last_handle }
    }

    /// The session's name, which is also its tenant's.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The stream that orders the session's work. Work that is queued there directly is not ordered
    /// behind jobs that still wait on the host.
    pub fn stream(&self) -> &Stream {
        &self.core.stream
    }

    /// Device memory that it holds, in bytes; blocks are multiples of 512. Freed memory counts as
    /// long as it has another owner ([`Session::free`]).
    pub fn held_bytes(&self) -> u64 {
        self.core.account.held_bytes()
    }

    /// Peak of the held bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.core.account.peak_bytes()
    }

    /// Limit of the held bytes.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.core.account.limit_bytes()
    }

    /// The session's handles, in unspecified order.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn buffers(&self) -> Result<Vec<BufferId>> {
        let ids = |table: &mut GenerationalTable<BufferEntry>| {
            Ok(table.iter().map(|(id, _)| id).collect())
        };
        self.core.with(ids)
    }

    /// Waits for the session's work, and releases all resources. Other clones return
    /// [`Error::Ended`] from now on. If a session's teardown may be waiting for the calling thread
    /// (in a job, in a host callback, and in a deleter of lent memory), this does not wait: a
    /// separate thread tears the session down.
    ///
    /// # Errors
    /// The first error of its work; the session has ended all the same.
    pub fn close(&self) -> Result<()> {
        Self::close_all(std::slice::from_ref(self))
    }

    /// Closes sessions together, the last one first, as [`Session::close`] does. Resident kernels
    /// exit before any of the sessions ends, since another session's work may wait for the whole
    /// device.
    ///
    /// # Errors
    /// The first error of their work; all have ended all the same. [`Error::Forked`], and
    /// none has; [`Error::NoThread`].
    pub fn close_all(sessions: &[Self]) -> Result<()> {
        sessions.iter().try_for_each(|it| it.core.check_process())?;
        let cores: Vec<Arc<SessionCore>> = sessions.iter().map(|it| it.core.clone()).collect();
        tear_down_all(&cores, EndReason::Closed)
            .into_iter()
            .collect()
    }

    /// Allocates a buffer for the elements of a layout, initially uninitialised.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::OutOfMemory`], with the holders;
    /// [`Error::Overlap`]; [`Error::Allocator`]; [`Error::NoAllocator`]; [`Error::Ended`];
    /// [`Error::Forked`].
    pub fn alloc(&self, layout: Layout, regime: Regime) -> Result<BufferId> {
        self.core.with(|_| Ok(()))?;
        let reach = layout.reach_bytes();
        if layout.may_overlap() {
            return Err(overlap("allocate", &layout));
        }
        // The reach of a layout fits in 63 bits.
        let bytes = (reach.end - reach.start) as u64;
        let memory = self.core.memory(bytes, regime)?;
        self.core.insert(BufferEntry {
            memory,
            layout,
            first: reach.start.unsigned_abs(),
            exported: false,
        })
    }

    /// Invalidates a handle at once, and frees its memory behind the last work that was queued with
    /// it, unless another handle refers to it. Freeing memory of the pool and of an allocator does
    /// not wait; for the other kinds it waits for the work that uses them, and is deferred while a
    /// resident kernel runs on the device ([`Session::dispatcher`]). The session is charged until
    /// then, and for memory of graphs or other owners until they release it.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn free(&self, id: BufferId) -> Result<()> {
        let entry = self.core.with(|table| Ok(table.remove(id)?))?;
        self.core.as_tenant(|| drop(entry));
        Ok(())
    }

    /// Layout of a buffer.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn layout(&self, id: BufferId) -> Result<Layout> {
        Ok(self.core.entry(id)?.layout)
    }

    /// Kind of a buffer's memory.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn regime(&self, id: BufferId) -> Result<Regime> {
        Ok(self.core.entry(id)?.memory.regime)
    }

    /// Whether the buffer's address was exported.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn is_exported(&self, id: BufferId) -> Result<bool> {
        Ok(self.core.entry(id)?.exported)
    }

    /// Creates another handle to the same memory. `view` computes its layout from the buffer's, and
    /// the offset of its first element from the buffer's first one, in bytes. The memory lives
    /// until the last handle to it is gone.
    ///
    /// # Errors
    /// [`Error::Reach`] and [`Error::Alignment`] if the view is not inside the memory or is
    /// misaligned; [`Error::Layout`] from `view`; [`Error::Stale`]; [`Error::Ended`].
    pub fn view(
        &self,
        id: BufferId,
        view: impl FnOnce(&Layout) -> Result<(Layout, i64)>,
    ) -> Result<BufferId> {
        let whole = self.core.entry(id)?;
        let (layout, from) = view(&whole.layout)?;
        let begin = i64::try_from(whole.first).ok();
        let begin = begin.and_then(|first| first.checked_add(from));
        // A view without elements fits anywhere.
        let begin = if layout.is_empty() { Some(0) } else { begin };
        let reach = layout.reach_bytes();
        let reach =
            begin.and_then(|at| Some((at.checked_add(reach.start)?, at.checked_add(reach.end)?)));
        let bytes = whole.memory.bytes;
        let (Some(begin), Some((from, until))) = (begin, reach) else {
            return Err(Error::Reach {
                id: id.to_string(),
                from: i64::MIN,
                until: i64::MAX,
                bytes,
            });
        };
        if begin < 0 || from < 0 || until.unsigned_abs() > bytes || begin.unsigned_abs() > bytes {
            return Err(Error::Reach {
                id: id.to_string(),
                from,
                until,
                bytes,
            });
        }
        let size = layout.dtype().bytes();
        if !begin.unsigned_abs().is_multiple_of(size) {
            return Err(Error::Alignment {
                id: id.to_string(),
                at: begin,
                dtype: layout.dtype(),
                size,
            });
        }
        self.core.insert(BufferEntry {
            layout,
            first: begin.unsigned_abs(),
            ..whole
        })
    }

    /// Exports a buffer's address, for other libraries, and marks the buffer as exported. The
    /// address is valid until the buffer is freed; ordering other libraries' work with the
    /// session's stream is up to the caller.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn export(&self, id: BufferId) -> Result<Exported> {
        self.core.with(|table| {
            let entry = table.get_mut(id)?;
            entry.exported = true;
            let base = entry.memory.buffer.address();
            Ok(Exported {
                address: DeviceAddr(base.0 + entry.first),
                layout: entry.layout,
                regime: entry.memory.regime,
            })
        })
    }

    /// Imports memory of another owner as a buffer of this session. `end` is called once, in any
    /// thread, when the last handle is gone and all work that was queued with the memory is done; a
    /// panic of it is caught.
    ///
    /// # Errors
    /// [`Error::Cuda`] for an address of 0; [`Error::Ended`]. `end` is called then.
    ///
    /// # Safety
    /// From `address` minus the layout's reach before its first element, to its reach behind it,
    /// the session's device can use the memory until `end` is called.
    #[expect(unsafe_code, reason = "only the caller knows that the memory exists")]
    pub unsafe fn import(
        &self,
        address: DeviceAddr,
        layout: Layout,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<BufferId> {
        let reach = layout.reach_bytes();
        let before = reach.start.unsigned_abs();
        let bytes = (reach.end - reach.start) as u64;
        let begin = DeviceAddr(address.0.saturating_sub(before));
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let buffer = unsafe { DeviceBuffer::foreign(&self.core.context, begin, len, end) }?;
        let charge = self.core.account.charge(0)?;
        let memory = SessionMemory::new(buffer, bytes, Regime::Foreign, charge);
        self.core.insert(BufferEntry {
            memory,
            layout,
            first: before,
            exported: false,
        })
    }

    /// A buffer's memory from its first element on, for the caller's own work in the session's
    /// stream or another. It lives until the returned buffer and the last handle are gone. As with
    /// all parts of one memory, concurrent work on two of them is a data race.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn memory(&self, id: BufferId) -> Result<DeviceBuffer<u8>> {
        part(&self.core.entry(id)?)
    }

    /// Loads a module into the session's context, with the session as tenant of the driver's
    /// memory.
    ///
    /// # Errors
    /// [`Error::Cuda`], with the compiler's log; [`Error::Ended`]; [`Error::Forked`].
    pub fn load(&self, image: &Image<'_>) -> Result<Module> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        let load = || Module::load(&self.core.context, image);
        Ok(self.core.as_tenant(load)?)
    }

    /// Submits work to the session as a job: `work` is called with the stream, in the order of
    /// submission, and queues work there. The job is done when all of that is, and returns the
    /// result of `work`.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Forked`]. Errors of the work are reported by the job.
    pub fn submit<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Stream) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        self.core.submit(work, Ok)
    }

    /// Records an event behind all submitted work of the session, for other streams to wait for.
    /// Waits only while jobs wait on the host, which are in no stream yet.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Forked`]; [`Error::Cuda`].
    pub fn record(&self) -> Result<Event> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        self.core.in_order(|stream| Ok(stream.record()?))
    }

    /// Orders the session's later work behind an event.
    ///
    /// # Errors
    /// As for [`Session::record`].
    pub fn wait_for(&self, event: Event) -> Result<()> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        let queue = move |stream: &Stream| Ok(stream.wait_for(&event)?);
        self.core.in_order(queue)
    }

    /// Waits for all submitted work of the session; its jobs are complete on return.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.core.with(|_| Ok(()))?;
        if !self.core.has_ended_all() {
            // Jobs complete in order.
            self.core.submit(|_| Ok(()), Ok)?.wait()?;
        }
        Ok(self.core.stream.synchronize()?)
    }

    /// Whether a call on this thread that waits for the session's work would block: some of that
    /// work is unfinished, and no teardown may be waiting for this thread. Never waits; the answer
    /// may change at once.
    pub fn would_wait(&self) -> bool {
        let core = &self.core;
        let is_done = || core.has_ended_all() && core.stream.is_idle().unwrap_or(true);
        core.check_process().is_ok() && !core.blocks_teardown() && !is_done()
    }
}
