//! Dispatcher: a resident kernel, and the ring buffers from which it takes tasks.
//!
//! Tasks are written to slots in pinned memory that the device reads; a resident kernel takes
//! them, runs the function of their number and writes the result to pinned memory that the host
//! reads. A task needs no launch, and no driver call.
//!
//! Invariants: the host owns a slot from when its last result was taken until its ticket is
//! written (release), and the device owns it from when it has read that ticket (acquire) until it
//! has written the same one to the result (release); a ticket is run by one block, once. A bad
//! task only fails itself. Elsewhere: functions and the kernel (`task`), built-in functions
//! (`standard`), shutdown (`shutdown`), dispatchers that a session owns (`resident`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, DeviceBuffer, Event, Function, Launch, SharedWords, Stream};

use crate::runtime::lock;
use crate::session::BufferEntry;

mod shutdown;
mod standard;
mod task;

use shutdown::{KernelResources, ResourceState, WatchdogTimer, WatchdogVerdict};
use task::{
    ARGUMENTS, BEGUN, BUDGET, CANCEL, DONE, GO_ON, NUMBER, READY, RESULT_WORDS, SLOT_WORDS, SPANS,
    STATUS, STEPS, VALUE,
};

pub(crate) use task::KernelCache;

pub use standard::StandardTask;
pub use task::{TASK_SPANS, TASK_WORDS, Task, TaskId, TaskSet, TaskSpan};

/// Options of a dispatcher.
#[derive(Clone, Copy, Debug)]
pub struct DispatchOptions {
    /// Slots of each priority's ring, a power of two.
    pub capacity: u32,
    /// Number of priorities, 1 to 8. The first has the highest.
    pub priorities: u32,
    /// Blocks that take tasks. Each occupies the device for as long as the kernel lives.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32, at most 1024.
    pub threads: u32,
    /// How long an idle block sleeps between polls, in nanoseconds.
    pub idle_ns: u32,
    /// Default limit of the steps of a task's thread.
    pub steps: u32,
    /// A task that runs longer is cancelled by the thread that waits for it; if it does not end
    /// within as long again, the dispatcher is lost.
    pub watchdog: Duration,
}

impl Default for DispatchOptions {
    fn default() -> Self {
        Self {
            capacity: 64,
            priorities: 2,
            blocks: 1,
            threads: 128,
            idle_ns: 100,
            steps: 1 << 20,
            watchdog: Duration::from_secs(2),
        }
    }
}

/// Error of submitting a task, or of starting or stopping a dispatcher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The ring of its priority is full.
    #[error(
        "all {capacity} slots of priority {priority} are in use\ntry: to wait for an earlier task first, or a larger capacity"
    )]
    Full {
        /// The priority.
        priority: u32,
        /// Its number of slots.
        capacity: u32,
    },
    /// The dispatcher refuses new tasks.
    #[error("the dispatcher has been stopped\ntry: another one")]
    Stopped,
    /// The dispatcher was requested to stop, and still has tasks to run.
    #[error("the dispatcher still has {waiting} tasks to run\ntry: to wait longer")]
    Running {
        /// Number of these tasks.
        waiting: u64,
    },
    /// A buffer that cannot be registered.
    #[error("buffer {id} cannot be registered: {why}")]
    Buffer {
        /// Its name.
        id: String,
        /// The cause, and what to try.
        why: String,
    },
    /// A task does not end, and cannot be cancelled.
    #[error(
        "the resident kernel does not respond: a task runs for ever\ntry: `for_each` and `repeat` for loops in tasks; this kernel ends with the process"
    )]
    Lost,
    /// This process is a forked child of the dispatcher's process.
    #[error(
        "the dispatcher belongs to process {process}, from which this one was forked\ntry: to start another one here"
    )]
    Forked {
        /// The dispatcher's process.
        process: u32,
    },
    /// Invalid options or arguments.
    #[error("{why}")]
    Value {
        /// The cause.
        why: String,
    },
    /// The kernel could not be built.
    #[error(transparent)]
    Build(#[from] fercuda_ptx::build::BuildError),
    /// The driver's error.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// The session's error.
    #[error(transparent)]
    Session(#[from] crate::Error),
}

/// Error of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Its function reported failure.
    #[error("the task failed")]
    Failed,
    /// A span was not inside its buffer or not whole elements, or an index not inside its span.
    /// Nothing outside was accessed.
    #[error(
        "the task accessed memory outside its spans or buffers\ntry: spans within the registered buffers"
    )]
    OutOfBounds,
    /// A thread exhausted its steps.
    #[error("the task used up its {steps} steps\ntry: a larger budget, or smaller tasks")]
    OverBudget {
        /// The limit.
        steps: u32,
    },
    /// It was cancelled, by [`TaskJob::cancel`] or the watchdog.
    #[error("the task was cancelled")]
    Cancelled,
    /// There is no function of that number.
    #[error("there is no task {number}\ntry: a number from this dispatcher's task set")]
    Unknown {
        /// The number.
        number: u32,
    },
    /// The dispatcher ended before the task was begun.
    #[error("the dispatcher ended before it began this task")]
    Stopped,
    /// The wait timed out; the task goes on.
    #[error("the task was not done in time, and goes on\ntry: to wait longer, or to cancel it")]
    TimedOut,
    /// The task runs for ever, and cannot be cancelled.
    #[error("the task does not end, and neither does its dispatcher")]
    Lost,
    /// This process is a forked child of the task's process.
    #[error("the task belongs to process {process}, from which this one was forked")]
    Forked {
        /// The task's process.
        process: u32,
    },
    /// The device failed.
    #[error("the device failed: {why}")]
    Device {
        /// The driver's error.
        why: String,
    },
}

/// Result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskDone {
    /// Its return value, or 0.
    pub value: u64,
    /// Steps that its first thread made.
    pub steps: u32,
}

/// QueueMemory that tasks may access, to be registered with a dispatcher.
#[derive(Debug, Default)]
pub struct TaskBuffers {
    all: Vec<RegisteredBuffer>,
}

#[derive(Debug)]
enum RegisteredBuffer {
    Device(DeviceBuffer<u8>),
    /// A session's buffer, charged to its account as long as this exists.
    Owned {
        memory: DeviceBuffer<u8>,
        _entry: BufferEntry,
    },
    Host(Arc<SharedWords>),
}

/// Index of a buffer in [`TaskBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskBuffer(pub u32);

impl TaskBuffers {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds device memory. Until the dispatcher has ended, other work that uses it must be ordered
    /// by the host: the host waits for tasks before such work, and for that work before tasks.
    pub fn device(&mut self, memory: DeviceBuffer<u8>) -> TaskBuffer {
        self.add(RegisteredBuffer::Device(memory))
    }

    /// Adds host memory.
    pub fn host(&mut self, memory: Arc<SharedWords>) -> TaskBuffer {
        self.add(RegisteredBuffer::Host(memory))
    }

    /// Adds memory of a session: what the entry reaches.
    pub(crate) fn owned(&mut self, memory: DeviceBuffer<u8>, entry: BufferEntry) -> TaskBuffer {
        self.add(RegisteredBuffer::Owned {
            memory,
            _entry: entry,
        })
    }

    fn add(&mut self, it: RegisteredBuffer) -> TaskBuffer {
        self.all.push(it);
        TaskBuffer((self.all.len() - 1) as u32)
    }
}

/// Arguments of a task.
#[derive(Clone, Debug)]
pub struct TaskArgs {
    words: [u64; TASK_WORDS],
    spans: [(u32, u64, u64); TASK_SPANS],
    used: (usize, usize),
    steps: Option<u32>,
}

impl Default for TaskArgs {
    fn default() -> Self {
        Self {
            words: [0; TASK_WORDS],
            spans: [(u32::MAX, 0, 0); TASK_SPANS],
            used: (0, 0),
            steps: None,
        }
    }
}

impl TaskArgs {
    /// No arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a word.
    #[must_use]
    pub fn word(mut self, value: u64) -> Self {
        if let Some(word) = self.words.get_mut(self.used.0) {
            *word = value;
        }
        self.used.0 += 1;
        self
    }

    /// Adds a span: these bytes of a registered buffer.
    #[must_use]
    pub fn span(mut self, buffer: TaskBuffer, bytes: Range<u64>) -> Self {
        if let Some(span) = self.spans.get_mut(self.used.1) {
            // An end before the beginning becomes a length that is outside any buffer.
            let len = bytes.end.checked_sub(bytes.start).unwrap_or(u64::MAX);
            *span = (buffer.0, bytes.start, len);
        }
        self.used.1 += 1;
        self
    }

    /// Limits the steps of each thread.
    #[must_use]
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = Some(steps);
        self
    }
}

/// QueueMemory shared by host and device.
#[derive(Clone, Debug)]
struct QueueMemory {
    slots: Arc<SharedWords>,
    results: Arc<SharedWords>,
    control: Arc<SharedWords>,
}

/// Counters of a dispatcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// Tasks submitted.
    pub submitted: u64,
    /// Tasks waiting or running.
    pub waiting: u64,
    /// Tasks that the device has completed, with or without success.
    pub done: u64,
    /// Tasks dropped: the dispatcher ended before they did.
    pub dropped: u64,
    /// Whether it refuses new tasks.
    pub is_stopped: bool,
    /// Whether a task runs for ever.
    pub is_lost: bool,
}

/// The tasks of a resident kernel, and its resources.
#[derive(Debug)]
pub(crate) struct TaskQueue {
    memory: QueueMemory,
    options: DispatchOptions,
    process: u32,
    stream: Stream,
    rings: Vec<Mutex<TaskRing>>,
    stopped: AtomicBool,
    lost: AtomicBool,
    resources: Mutex<ResourceState>,
    released: Condvar,
    /// When the dispatcher was started, and the milliseconds from then to the last query of the
    /// kernel's state by a call that does not wait.
    began: Instant,
    last_query_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct TaskRing {
    submitted: u64,
    dropped: u64,
    /// The last ticket.
    last: u32,
    /// The task in each slot.
    taken: Vec<Option<Arc<PendingTask>>>,
}

/// A submitted task.
#[derive(Debug)]
struct PendingTask {
    priority: u32,
    /// Index among all rings' slots.
    slot: usize,
    ticket: u32,
    number: u32,
    steps: u32,
    outcome: OnceLock<Result<TaskDone, TaskError>>,
}

impl TaskQueue {
    /// As [`Dispatcher::start`]; the kernel starts behind an event.
    pub(crate) fn start(
        event: Option<&Event>,
        context: &Context,
        function: Function,
        buffers: TaskBuffers,
        options: DispatchOptions,
    ) -> Result<Arc<Self>, DispatchError> {
        options.check()?;
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
                RegisteredBuffer::Device(memory) | RegisteredBuffer::Owned { memory, .. } => {
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
            if let RegisteredBuffer::Device(memory) | RegisteredBuffer::Owned { memory, .. } = it {
                // The kernel gets their addresses only through the table.
                memory.note_use(&stream)?;
            }
        }
        if let Some(event) = event {
            stream.wait_for(event)?;
        }
        let stay = context.guard_resident_kernel();
        // SAFETY: the kernel is the one built above. It accesses slots and results of `slots`
        // numbers, which exist, with strong operations; the table for buffers below `count`; and
        // the insides of those, for which the authors of the functions vouch. All of that is
        // retained until it has exited, or for ever.
        #[expect(unsafe_code, reason = "launches a kernel of this crate")]
        unsafe {
            Launch::new(blocks, threads).run(&function, &stream, arguments)?;
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
                _function: function,
                _heads: heads,
                _table: table,
                _buffers: buffers,
            })),
            released: Condvar::new(),
            began: Instant::now(),
            last_query_ms: AtomicU64::new(0),
        }))
    }

    fn slot(&self, slot: usize) -> &[AtomicU32] {
        &self.memory.slots.words()[slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS]
    }

    fn result(&self, slot: usize) -> &[AtomicU32] {
        &self.memory.results.words()[slot * RESULT_WORDS..(slot + 1) * RESULT_WORDS]
    }

    /// Reads the result of a task if it is done. From then on its slot may be reused.
    fn take_result<'p>(&self, task: &'p PendingTask) -> Option<&'p Result<TaskDone, TaskError>> {
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
            task::GOOD => Ok(done),
            task::FAILED => Err(TaskError::Failed),
            task::OUTSIDE => Err(TaskError::OutOfBounds),
            task::OVER_BUDGET => Err(TaskError::OverBudget { steps: task.steps }),
            task::CANCELLED => Err(TaskError::Cancelled),
            _ => Err(TaskError::Unknown {
                number: task.number,
            }),
        };
        // If another thread has taken the result first, the slot may have been reused since, and
        // this thread may have read the next task's result: the first result wins.
        Some(task.outcome.get_or_init(|| outcome))
    }

    /// As [`Dispatcher::submit`].
    pub(crate) fn submit(
        self: &Arc<Self>,
        priority: u32,
        task: TaskId,
        arguments: &TaskArgs,
    ) -> Result<TaskJob, DispatchError> {
        self.check_process()
            .map_err(|process| DispatchError::Forked { process })?;
        let options = &self.options;
        let (words, spans) = arguments.used;
        let Some(ring) = self.rings.get(priority as usize) else {
            let why = format!("there is no priority {priority} of {}", options.priorities);
            return Err(DispatchError::Value { why });
        };
        if words > TASK_WORDS || spans > TASK_SPANS {
            let why = format!(
                "{words} words and {spans} spans: a task has at most {TASK_WORDS} and {TASK_SPANS}"
            );
            return Err(DispatchError::Value { why });
        }
        let mut ring = lock(ring);
        // Under the lock, so that a stop or a failure sees every submitted task.
        if self.lost.load(Ordering::Acquire) {
            return Err(DispatchError::Lost);
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(DispatchError::Stopped);
        }
        let at = (ring.last & (options.capacity - 1)) as usize;
        if let Some(before) = &ring.taken[at]
            && self.take_result(before).is_none()
        {
            return Err(DispatchError::Full {
                priority,
                capacity: options.capacity,
            });
        }
        let pending = Arc::new(PendingTask {
            priority,
            slot: priority as usize * options.capacity as usize + at,
            ticket: ring.last.wrapping_add(1),
            number: task.0,
            steps: arguments.steps.unwrap_or(options.steps),
            outcome: OnceLock::new(),
        });
        let slot = self.slot(pending.slot);
        let write = |at: usize, value: u32| slot[at].store(value, Ordering::Relaxed);
        let wide = |at: usize, value: u64| {
            write(at, value as u32);
            write(at + 1, (value >> 32) as u32);
        };
        write(NUMBER, task.0);
        // The step counter must be able to exceed the limit.
        write(BUDGET, pending.steps.min(u32::MAX - 1));
        write(CANCEL, 0);
        for (at, word) in arguments.words.iter().enumerate() {
            wide(ARGUMENTS + 2 * at, *word);
        }
        for (at, (buffer, begin, bytes)) in arguments.spans.iter().enumerate() {
            let at = SPANS + 6 * at;
            write(at, *buffer);
            wide(at + 2, *begin);
            wide(at + 4, *bytes);
        }
        slot[READY].store(pending.ticket, Ordering::Release);
        ring.last = pending.ticket;
        ring.submitted += 1;
        ring.taken[at] = Some(pending.clone());
        Ok(TaskJob {
            queue: self.clone(),
            task: pending,
        })
    }

    /// Sets a task's cancel flag, unless its slot was reused.
    fn cancel(&self, task: &Arc<PendingTask>) {
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
    fn waiting(&self, ring: &TaskRing) -> Vec<Arc<PendingTask>> {
        let taken = ring.taken.iter().flatten();
        let waiting = taken.filter(|task| self.take_result(task).is_none());
        waiting.cloned().collect()
    }

    fn has_begun(&self, task: &PendingTask) -> bool {
        self.result(task.slot)[BEGUN].load(Ordering::Relaxed) == task.ticket
    }

    /// As [`Dispatcher::stats`].
    pub(crate) fn stats(&self) -> DispatchStats {
        if self.check_process().is_err() {
            return DispatchStats::default();
        }
        self.query_kernel_rarely();
        let mut stats = DispatchStats {
            is_stopped: self.stopped.load(Ordering::Acquire),
            is_lost: self.lost.load(Ordering::Acquire),
            ..DispatchStats::default()
        };
        for ring in &self.rings {
            let ring = lock(ring);
            stats.submitted += ring.submitted;
            stats.dropped += ring.dropped;
            stats.waiting += self.waiting(&ring).len() as u64;
        }
        stats.done = stats.submitted - stats.dropped - stats.waiting;
        stats
    }
}

/// Back-off of a waiting thread: spin, then yield, then sleep.
struct Backoff(u32);

impl Backoff {
    fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..2000 => std::hint::spin_loop(),
            2000..2200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    /// Whether it is time for a more expensive check.
    fn is_long(&self) -> bool {
        self.0 >= 2000 && self.0.is_multiple_of(16)
    }
}

/// A submitted task. Dropping it does not cancel the task. The queue's own memory, some kilobytes
/// on the host, is freed with the last one.
#[derive(Debug)]
pub struct TaskJob {
    queue: Arc<TaskQueue>,
    task: Arc<PendingTask>,
}

impl TaskJob {
    /// The task's result, if it is done. Never waits.
    pub fn poll(&self) -> Option<Result<TaskDone, TaskError>> {
        if let Err(process) = self.queue.check_process() {
            return Some(Err(TaskError::Forked { process }));
        }
        if self.queue.take_result(&self.task).is_none() {
            self.queue.query_kernel_rarely();
        }
        self.queue.take_result(&self.task).cloned()
    }

    /// Waits until the task is done, up to `longest`.
    ///
    /// # Errors
    /// The task's error; [`TaskError::TimedOut`], after which it may be waited for again.
    pub fn wait(&self, longest: Duration) -> Result<TaskDone, TaskError> {
        let queue = &*self.queue;
        queue
            .check_process()
            .map_err(|process| TaskError::Forked { process })?;
        let mut backoff = Backoff(0);
        // Read the clock only if the wait is long.
        let mut since: Option<Instant> = None;
        let mut timer = WatchdogTimer::default();
        loop {
            if let Some(outcome) = queue.take_result(&self.task) {
                return outcome.clone();
            }
            if longest.is_zero() && !queue.is_over() {
                return Err(TaskError::TimedOut);
            }
            backoff.wait();
            if !backoff.is_long() {
                continue;
            }
            let now = Instant::now();
            let since = *since.get_or_insert(now);
            if queue.is_over() {
                continue;
            }
            if queue.has_begun(&self.task) {
                match timer.check(now, queue.options.watchdog) {
                    WatchdogVerdict::Runs => {}
                    WatchdogVerdict::Late => queue.cancel(&self.task),
                    WatchdogVerdict::Lost => queue.mark_lost(),
                }
            }
            if now - since > longest {
                return Err(TaskError::TimedOut);
            }
        }
    }

    /// Whether the kernel has begun the task. Never waits.
    pub fn has_begun(&self) -> bool {
        // A slot is reused only after this task's outcome was taken.
        self.task.outcome.get().is_some()
            || (self.queue.check_process().is_ok() && self.queue.has_begun(&self.task))
    }

    /// Requests cancellation. A task not begun will not be; a running one notices in its steps.
    /// Poll or wait to learn when it is done.
    pub fn cancel(&self) {
        if self.queue.check_process().is_ok() {
            self.queue.cancel(&self.task);
        }
    }
}

impl Drop for TaskJob {
    fn drop(&mut self) {
        if self.queue.check_process().is_err() {
            std::mem::forget(self.queue.clone());
        }
    }
}

/// A resident kernel and its queue.
///
/// While it lives, every wait for the whole device waits for it: synchronising the context, the
/// legacy default stream, loading code, which a kernel's first launch may do. Stop it before such
/// calls. Resources dropped meanwhile that would wait, such as code and memory that
/// was not allocated in stream order, are destroyed once no kernel is resident (deferred free).
#[derive(Debug)]
pub struct Dispatcher {
    queue: Arc<TaskQueue>,
}

impl DispatchOptions {
    /// The parameters that a kernel is built for.
    fn shape(&self) -> task::KernelShape {
        (self.priorities, self.capacity, self.threads, self.idle_ns)
    }

    /// The kernel for `set`, as PTX.
    ///
    /// # Errors
    /// [`DispatchError::Value`], [`DispatchError::Build`].
    pub fn listing(&self, set: &TaskSet) -> Result<String, DispatchError> {
        self.check()?;
        let rings = (self.priorities, self.capacity);
        set.write(|set| task::kernel(set, rings, self.threads, self.idle_ns))
    }

    fn check(&self) -> Result<(), DispatchError> {
        let value = |why: &str| Err(DispatchError::Value { why: why.into() });
        if !self.capacity.is_power_of_two() || self.capacity > 1 << 20 {
            return value("the capacity must be a power of two, at most 2^20");
        }
        if !(1..=8).contains(&self.priorities) || self.blocks == 0 {
            return value("the priorities must be 1 to 8, the blocks at least 1");
        }
        let threads = self.threads;
        if threads == 0 || threads > 1024 || !threads.is_multiple_of(32) {
            return value("the threads of a block must be 32 to 1024, a multiple of 32");
        }
        Ok(())
    }
}

impl Dispatcher {
    /// Builds the kernel of these functions, and launches it in its own stream.
    ///
    /// # Errors
    /// [`DispatchError::Value`], [`DispatchError::Build`], [`DispatchError::Cuda`].
    pub fn start(
        context: &Context,
        set: &TaskSet,
        buffers: TaskBuffers,
        options: DispatchOptions,
    ) -> Result<Self, DispatchError> {
        let function = set.function(context, &options)?;
        let queue = TaskQueue::start(None, context, function, buffers, options)?;
        Ok(Self { queue })
    }

    /// Submits a task at a priority; 0 is the highest. Tasks of one priority are begun in order;
    /// those of a lower one only when there are none of a higher. Never waits.
    ///
    /// # Errors
    /// [`DispatchError::Full`]; [`DispatchError::Stopped`]; [`DispatchError::Lost`];
    /// [`DispatchError::Forked`]; [`DispatchError::Value`] for a priority that does not exist, or
    /// too many arguments.
    pub fn submit(
        &self,
        priority: u32,
        task: TaskId,
        arguments: &TaskArgs,
    ) -> Result<TaskJob, DispatchError> {
        self.queue.submit(priority, task, arguments)
    }

    /// Counters of the dispatcher; all 0 in the child of a fork.
    pub fn stats(&self) -> DispatchStats {
        self.queue.stats()
    }

    /// Refuses new tasks, lets the kernel run those already submitted, and waits up to `longest`
    /// until it has exited.
    ///
    /// # Errors
    /// [`DispatchError::Running`] if it has not: it goes on as if this had been dropped;
    /// [`DispatchError::Lost`]; [`DispatchError::Forked`]; [`DispatchError::Cuda`], the kernel's
    /// error.
    pub fn stop(self, longest: Duration) -> Result<(), DispatchError> {
        self.queue.drain(longest)
    }
}

impl Drop for Dispatcher {
    /// Shuts the kernel down after the tasks that are running; those not begun get
    /// [`TaskError::Stopped`]. Waits for that, but not in a host callback, nor longer than twice
    /// the watchdog for a kernel that is still queued. In the child of a fork it does nothing.
    fn drop(&mut self) {
        // Errors have been reported to the waiters of the tasks.
        drop(self.queue.abandon());
    }
}
