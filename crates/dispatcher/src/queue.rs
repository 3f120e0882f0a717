//! Ring buffers from which a resident kernel takes tasks, and the kernel's resources.
//!
//! Tasks are written to slots in pinned memory that the device reads; a resident kernel takes
//! them, runs the function of their number and writes the result to pinned memory that the host
//! reads. A task needs no launch, and no driver call.
//!
//! Invariants: the host owns a slot from when its last result was taken until its ticket is
//! written (release), and the device owns it from when it has read that ticket (acquire) until it
//! has written the same one to the result (release); a ticket is run by one block, once. A bad
//! task only fails itself. Elsewhere: submission (`job`), the kernel (`kernel`), its state
//! (`kernel_state`), shutdown (`shutdown`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use fercuda_cuda::{
    Context, DeviceBuffer, Event, Launch, ResidentKernelGuard, SharedWords, Stream,
};

use crate::buffers::{RegisteredBuffer, TaskBuffers};
use crate::error::{DispatchError, TaskError};
use crate::kernel::TaskKernel;
use crate::lock::lock;
use crate::options::DispatchOptions;
use crate::words::{
    self, BEGUN, CANCEL, DONE, GO_ON, RESULT_WORDS, SLOT_WORDS, STATUS, STEPS, VALUE,
};

/// Result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskDone {
    /// Its return value, or 0.
    pub value: u64,
    /// Steps that its first thread made.
    pub steps: u32,
}

/// Memory shared by host and device.
#[derive(Clone, Debug)]
pub(crate) struct QueueMemory {
    pub(crate) slots: Arc<SharedWords>,
    pub(crate) results: Arc<SharedWords>,
    pub(crate) control: Arc<SharedWords>,
}

/// The tasks of a resident kernel, and its resources, for an owner that shares them:
/// [`Dispatcher`](crate::Dispatcher) is one that does not. Its functions `drain`, `abandon` and
/// `release_later` end the kernel; without any of them it runs until the process ends.
#[derive(Debug)]
pub struct TaskQueue {
    pub(crate) memory: QueueMemory,
    pub(crate) options: DispatchOptions,
    pub(crate) process: u32,
    pub(crate) stream: Stream,
    pub(crate) rings: Vec<Mutex<TaskRing>>,
    pub(crate) stopped: AtomicBool,
    pub(crate) lost: AtomicBool,
    pub(crate) resources: Mutex<ResourceState>,
    pub(crate) released: Condvar,
    /// When the dispatcher was started, and the milliseconds from then to the last query of the
    /// kernel's state by a call that does not wait.
    pub(crate) began: Instant,
    pub(crate) last_query_ms: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct TaskRing {
    pub(crate) submitted: u64,
    pub(crate) dropped: u64,
    /// The last ticket.
    pub(crate) last: u32,
    /// The task in each slot.
    pub(crate) taken: Vec<Option<Arc<PendingTask>>>,
}

/// A submitted task.
#[derive(Debug)]
pub(crate) struct PendingTask {
    pub(crate) priority: u32,
    /// Index among all rings' slots.
    pub(crate) slot: usize,
    pub(crate) ticket: u32,
    pub(crate) number: u32,
    pub(crate) steps: u32,
    pub(crate) outcome: OnceLock<Result<TaskDone, TaskError>>,
}

/// Resources of a kernel.
#[derive(Debug)]
pub(crate) enum ResourceState {
    Held(KernelResources),
    /// The kernel has exited, and a thread is releasing them.
    Releasing,
    /// They are released, or leaked.
    Released {
        is_well: bool,
    },
}

#[derive(Debug)]
pub(crate) struct KernelResources {
    /// Dropped first: dropping the others waits for the device, which this kernel must not block.
    pub(crate) stay: ResidentKernelGuard,
    pub(crate) _kernel: TaskKernel,
    pub(crate) _heads: DeviceBuffer<u32>,
    pub(crate) _table: DeviceBuffer<u64>,
    pub(crate) _buffers: TaskBuffers,
}

impl TaskQueue {
    /// Refuses the child of a fork: the kernel is the parent's, the memory that it reads is shared
    /// or only the parent's, and a lock may be held for ever.
    ///
    /// # Errors
    /// The parent's process number.
    pub fn check_process(&self) -> Result<(), u32> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(self.process),
        }
    }

    /// Launches a task set's kernel ([`TaskSet::kernel`](crate::TaskSet::kernel)) in a stream of
    /// its own, behind an event.
    ///
    /// # Errors
    /// [`DispatchError::Value`]; [`DispatchError::Cuda`].
    pub fn start(
        event: Option<&Event>,
        context: &Context,
        kernel: TaskKernel,
        buffers: TaskBuffers,
        options: DispatchOptions,
    ) -> Result<Arc<Self>, DispatchError> {
        options.check()?;
        if kernel.shape() != options.shape() {
            let why = "the kernel was loaded for rings or blocks of another shape".into();
            return Err(DispatchError::Value { why });
        }
        let DispatchOptions {
            capacity,
            priorities,
            blocks,
            threads,
            ..
        } = options;
        let stream = Stream::new(context)?;
        let slots = (capacity * priorities) as usize;
        let memory = QueueMemory {
            slots: Arc::new(SharedWords::new(context, slots * SLOT_WORDS)?),
            results: Arc::new(SharedWords::new(context, slots * RESULT_WORDS)?),
            control: Arc::new(SharedWords::new(context, SLOT_WORDS)?),
        };
        let mut heads = DeviceBuffer::alloc_ordered(&stream, priorities as usize)?;
        heads.fill_bytes(0, &stream)?;
        let mut entries = Vec::new();
        for it in &buffers.all {
            let (address, bytes) = match it {
                RegisteredBuffer::Device(memory) | RegisteredBuffer::Kept { memory, .. } => {
                    (memory.address(), memory.len())
                }
                RegisteredBuffer::Host(memory) => {
                    (memory.device_address()?, memory.words().len() * 4)
                }
            };
            if !address.0.is_multiple_of(16) {
                let why = "a registered buffer begins at a multiple of 16 bytes".into();
                return Err(DispatchError::Value { why });
            }
            entries.extend([address.0, bytes as u64]);
        }
        let count = (entries.len() / 2) as u32;
        entries.resize(entries.len().max(2), 0);
        let mut table = DeviceBuffer::alloc_ordered(&stream, entries.len())?;
        table.copy_from_host(&entries, &stream)?;
        let arguments = (
            memory.slots.device_address()?,
            memory.results.device_address()?,
            memory.control.device_address()?,
            &heads,
            &table,
            count,
        );
        memory.control.words()[0].store(GO_ON, Ordering::Release);
        // From here on the stream may have to wait for other work; the host does not.
        for it in &buffers.all {
            if let RegisteredBuffer::Device(memory) | RegisteredBuffer::Kept { memory, .. } = it {
                // The kernel gets their addresses only through the table.
                memory.note_use(&stream)?;
            }
        }
        if let Some(event) = event {
            stream.wait_for(event)?;
        }
        let stay = context.guard_resident_kernel();
        // SAFETY: the kernel is one of this crate, as only those are a `TaskKernel`, for as many
        // rings and slots. It accesses slots and results of `slots` numbers, which exist, with
        // strong operations; the table for buffers below `count`; and the insides of those, for
        // which the authors of the functions vouch. All of that is retained until it has exited,
        // or for ever.
        #[expect(unsafe_code, reason = "launches a kernel of this crate")]
        unsafe {
            Launch::new(blocks, threads).run(kernel.function(), &stream, arguments)?;
        }
        let ring = || {
            Mutex::new(TaskRing {
                taken: vec![None; capacity as usize],
                ..TaskRing::default()
            })
        };
        Ok(Arc::new(Self {
            memory,
            options,
            process: std::process::id(),
            stream,
            rings: (0..priorities).map(|_| ring()).collect(),
            stopped: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            resources: Mutex::new(ResourceState::Held(KernelResources {
                stay,
                _kernel: kernel,
                _heads: heads,
                _table: table,
                _buffers: buffers,
            })),
            released: Condvar::new(),
            began: Instant::now(),
            last_query_ms: AtomicU64::new(0),
        }))
    }

    pub(crate) fn slot(&self, slot: usize) -> &[AtomicU32] {
        &self.memory.slots.words()[slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS]
    }

    pub(crate) fn result(&self, slot: usize) -> &[AtomicU32] {
        &self.memory.results.words()[slot * RESULT_WORDS..(slot + 1) * RESULT_WORDS]
    }

    /// Reads the result of a task if it is done. From then on its slot may be reused.
    pub(crate) fn take_result<'p>(
        &self,
        task: &'p PendingTask,
    ) -> Option<&'p Result<TaskDone, TaskError>> {
        if let Some(outcome) = task.outcome.get() {
            return Some(outcome);
        }
        let result = self.result(task.slot);
        if result[DONE].load(Ordering::Acquire) != task.ticket {
            return None;
        }
        let read = |at: usize| result[at].load(Ordering::Relaxed);
        let done = TaskDone {
            value: u64::from(read(VALUE)) | u64::from(read(VALUE + 1)) << 32,
            steps: read(STEPS),
        };
        let outcome = match read(STATUS) {
            words::GOOD => Ok(done),
            words::FAILED => Err(TaskError::Failed),
            words::OUTSIDE => Err(TaskError::OutOfBounds),
            words::OVER_BUDGET => Err(TaskError::OverBudget { steps: task.steps }),
            words::CANCELLED => Err(TaskError::Cancelled),
            _ => Err(TaskError::Unknown {
                number: task.number,
            }),
        };
        // If another thread has taken the result first, the slot may have been reused since, and
        // this thread may have read the next task's result: the first result wins.
        Some(task.outcome.get_or_init(|| outcome))
    }

    /// Sets a task's cancel flag, unless its slot was reused.
    pub(crate) fn cancel(&self, task: &Arc<PendingTask>) {
        let ring = lock(&self.rings[task.priority as usize]);
        let at = task.slot % self.options.capacity as usize;
        if ring.taken[at]
            .as_ref()
            .is_some_and(|other| Arc::ptr_eq(other, task))
        {
            self.slot(task.slot)[CANCEL].store(1, Ordering::Relaxed);
        }
    }

    /// The tasks of a ring that are not done.
    pub(crate) fn waiting(&self, ring: &TaskRing) -> Vec<Arc<PendingTask>> {
        let taken = ring.taken.iter().flatten();
        let waiting = taken.filter(|task| self.take_result(task).is_none());
        waiting.cloned().collect()
    }

    pub(crate) fn has_begun(&self, task: &PendingTask) -> bool {
        self.result(task.slot)[BEGUN].load(Ordering::Relaxed) == task.ticket
    }
}

#[cfg(test)]
mod tests {
    use fercuda_cuda::Cuda;

    use super::*;
    use crate::task_set::TaskSet;

    #[test]
    fn kernel_of_another_shape_is_refused() {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let options = DispatchOptions::default();
        let kernel = TaskSet::standard().kernel(&context, &options).unwrap();
        // It would read slots that do not exist.
        let fewer = DispatchOptions {
            capacity: options.capacity / 2,
            ..options
        };
        let started = TaskQueue::start(None, &context, kernel, TaskBuffers::new(), fewer);
        let refused = started.unwrap_err();
        assert!(
            matches!(&refused, DispatchError::Value { why } if why.contains("shape")),
            "{refused}"
        );
    }
}
