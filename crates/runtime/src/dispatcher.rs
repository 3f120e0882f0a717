//! A kernel that stays, and the queue from which it takes tasks.
//!
//! Tasks are written to slots in pinned memory that the device reads; a resident kernel
//! takes them, runs the function of their number and writes the result to pinned memory
//! that the host reads. Nothing is launched for a task, and the host calls no driver.
//!
//! Invariants: a slot is the host's from when its last result was taken until its ticket
//! is written (release), and the device's from when it has read that ticket (acquire)
//! until it has written the same one to the result (release); a ticket is run by one
//! block, once. What a bad task does is its own error. Elsewhere: functions and the
//! kernel (`task`), functions that there are (`standard`), how it ends (`ending`),
//! dispatchers that a session owns (`resident`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, DeviceBuffer, Event, Function, Launch, SharedWords, Stream};

use crate::machine::lock;
use crate::session::Entry;

mod ending;
mod standard;
mod task;

use ending::{Hold, Patience, Used, Verdict};
use task::{
    ARGUMENTS, BEGUN, BUDGET, CANCEL, DONE, GO_ON, NUMBER, READY, RESULT_WORDS, SLOT_WORDS, SPANS,
    STATUS, STEPS, VALUE,
};

pub(crate) use task::Kernels;

pub use standard::StandardTask;
pub use task::{TASK_SPANS, TASK_WORDS, Task, TaskId, TaskSet, TaskSpan};

/// How a dispatcher is set up.
#[derive(Clone, Copy, Debug)]
pub struct DispatchOptions {
    /// Slots of each priority, a power of two.
    pub capacity: u32,
    /// How many priorities there are, 1 to 8. The first has the highest.
    pub priorities: u32,
    /// Blocks that take tasks. Each takes a place on the device for as long as it lives.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32, at most 1024.
    pub threads: u32,
    /// How long a block rests, in nanoseconds, before it looks for tasks again.
    pub idle_ns: u32,
    /// Steps that a thread of a task may make, if the task does not say.
    pub steps: u32,
    /// A task that runs longer is cancelled by who waits for it; if it does not end
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

/// Why a task was not taken, or a dispatcher not started or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The ring of its priority is full.
    #[error(
        "all {capacity} slots of priority {priority} are taken\ntry: to wait for an earlier task first, or a larger capacity"
    )]
    Full {
        /// Of which priority.
        priority: u32,
        /// Its slots.
        capacity: u32,
    },
    /// It takes no tasks any more.
    #[error("the dispatcher has been stopped\ntry: another one")]
    Stopped,
    /// It has been told to stop, and still runs what it was given.
    #[error("the dispatcher still has {waiting} tasks to run\ntry: to wait longer")]
    Running {
        /// How many.
        waiting: u64,
    },
    /// A buffer that tasks cannot have.
    #[error("buffer {id} cannot be registered: {why}")]
    Buffer {
        /// Its name.
        id: String,
        /// Why not, and what to try.
        why: String,
    },
    /// A task does not end, and nothing ends it.
    #[error(
        "the resident kernel does not answer: a task runs for ever\ntry: loops of the task's own; this one ends with the process"
    )]
    Lost,
    /// It is that of another process, of which this one is a fork.
    #[error(
        "the dispatcher is that of process {process}, of which this is a fork\ntry: another one here"
    )]
    Forked {
        /// Whose it is.
        process: u32,
    },
    /// Options or arguments that there cannot be.
    #[error("{why}")]
    Value {
        /// What is wrong.
        why: String,
    },
    /// The kernel could not be built.
    #[error(transparent)]
    Build(#[from] fercuda_ptx::build::BuildError),
    /// The driver's.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// What the session says.
    #[error(transparent)]
    Session(#[from] crate::Error),
}

/// Why a task gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Its function said so.
    #[error("the task failed")]
    Failed,
    /// A span was not inside its buffer or no whole elements of it, or an index not
    /// inside its span. What was outside was not touched.
    #[error(
        "the task reached outside of what it was passed\ntry: spans within the registered buffers"
    )]
    OutOfBounds,
    /// A thread used up its steps.
    #[error("the task used up its {steps} steps\ntry: a larger budget, or smaller tasks")]
    OverBudget {
        /// The budget.
        steps: u32,
    },
    /// It was cancelled, by [`TaskJob::cancel`] or the watchdog.
    #[error("the task was cancelled")]
    Cancelled,
    /// There is no function of that number.
    #[error("there is no task {number}\ntry: a number that this dispatcher's set gave")]
    Unknown {
        /// The number.
        number: u32,
    },
    /// The dispatcher ended before it was run.
    #[error("the dispatcher ended before it came to this task")]
    Stopped,
    /// It was not done in time; it still may be.
    #[error("the task was not done in time, and goes on\ntry: to wait longer, or to cancel it")]
    TimedOut,
    /// It runs for ever, and nothing ends it.
    #[error("the task does not end, and the dispatcher with it")]
    Lost,
    /// It is that of another process, of which this one is a fork.
    #[error("the task is that of process {process}, of which this is a fork")]
    Forked {
        /// Whose it is.
        process: u32,
    },
    /// The device failed.
    #[error("the device failed: {why}")]
    Device {
        /// What it said.
        why: String,
    },
}

/// What a task gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskDone {
    /// What it returned, or 0.
    pub value: u64,
    /// Steps that its first thread made.
    pub steps: u32,
}

/// Memory that tasks may touch, registered with a dispatcher.
#[derive(Debug, Default)]
pub struct TaskBuffers {
    all: Vec<Registered>,
}

#[derive(Debug)]
enum Registered {
    Device(DeviceBuffer<u8>),
    /// A session's, whose account has it as long as this is there.
    Owned {
        memory: DeviceBuffer<u8>,
        _entry: Entry,
    },
    Host(Arc<SharedWords>),
}

/// One of [`TaskBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskBuffer(pub u32);

impl TaskBuffers {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds device memory. Until the dispatcher has ended, other work that uses it is
    /// ordered by the host alone: it waits for tasks before such work, and for that
    /// work before tasks.
    pub fn device(&mut self, memory: DeviceBuffer<u8>) -> TaskBuffer {
        self.add(Registered::Device(memory))
    }

    /// Adds memory of the host's.
    pub fn host(&mut self, memory: Arc<SharedWords>) -> TaskBuffer {
        self.add(Registered::Host(memory))
    }

    /// Adds memory of a session's: what the entry reaches.
    pub(crate) fn owned(&mut self, memory: DeviceBuffer<u8>, entry: Entry) -> TaskBuffer {
        self.add(Registered::Owned {
            memory,
            _entry: entry,
        })
    }

    fn add(&mut self, it: Registered) -> TaskBuffer {
        self.all.push(it);
        TaskBuffer((self.all.len() - 1) as u32)
    }
}

/// What a task is passed.
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
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One word more.
    #[must_use]
    pub fn word(mut self, value: u64) -> Self {
        if let Some(word) = self.words.get_mut(self.used.0) {
            *word = value;
        }
        self.used.0 += 1;
        self
    }

    /// One span more: these bytes of a registered buffer.
    #[must_use]
    pub fn span(mut self, buffer: TaskBuffer, bytes: Range<u64>) -> Self {
        if let Some(span) = self.spans.get_mut(self.used.1) {
            // An end before the beginning is no span of any buffer.
            let len = bytes.end.checked_sub(bytes.start).unwrap_or(u64::MAX);
            *span = (buffer.0, bytes.start, len);
        }
        self.used.1 += 1;
        self
    }

    /// Steps that each thread may make.
    #[must_use]
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = Some(steps);
        self
    }
}

/// What host and device share.
#[derive(Clone, Debug)]
struct Memory {
    slots: Arc<SharedWords>,
    results: Arc<SharedWords>,
    control: Arc<SharedWords>,
}

/// How much there was to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// Tasks that were taken in.
    pub submitted: u64,
    /// Of those, how many are waiting or being run.
    pub waiting: u64,
    /// How many the device has answered, well or not.
    pub done: u64,
    /// How many were given up: the dispatcher ended before they did.
    pub dropped: u64,
    /// Whether it takes no more.
    pub is_stopped: bool,
    /// Whether a task runs for ever.
    pub is_lost: bool,
}

/// A resident kernel's tasks, and what it uses.
#[derive(Debug)]
pub(crate) struct Queue {
    memory: Memory,
    options: DispatchOptions,
    process: u32,
    stream: Stream,
    rings: Vec<Mutex<Ring>>,
    stopped: AtomicBool,
    lost: AtomicBool,
    hold: Mutex<Hold>,
    released: Condvar,
    /// When it began, and how many milliseconds after that somebody who does not wait
    /// last asked what has become of the kernel.
    began: Instant,
    glanced_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Ring {
    submitted: u64,
    dropped: u64,
    /// The ticket before the next.
    last: u32,
    /// Who has each slot.
    taken: Vec<Option<Arc<Pending>>>,
}

/// A task that was submitted.
#[derive(Debug)]
struct Pending {
    priority: u32,
    /// Among all rings.
    slot: usize,
    ticket: u32,
    number: u32,
    steps: u32,
    outcome: OnceLock<Result<TaskDone, TaskError>>,
}

impl Queue {
    /// As [`Dispatcher::start`]; the kernel begins behind an event.
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
        let memory = Memory {
            slots: Arc::new(SharedWords::new(context, slots * SLOT_WORDS)?),
            results: Arc::new(SharedWords::new(context, slots * RESULT_WORDS)?),
            control: Arc::new(SharedWords::new(context, SLOT_WORDS)?),
        };
        let mut heads = DeviceBuffer::alloc_ordered(&stream, priorities as usize)?;
        heads.fill_bytes(0, &stream)?;
        let mut entries = Vec::new();
        for it in &buffers.all {
            let (address, bytes) = match it {
                Registered::Device(memory) | Registered::Owned { memory, .. } => {
                    (memory.address(), memory.len())
                }
                Registered::Host(memory) => (memory.device_address()?, memory.words().len() * 4),
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
        // From here on the stream may have to wait for other work, and the host does not.
        for it in &buffers.all {
            if let Registered::Device(memory) | Registered::Owned { memory, .. } = it {
                // The kernel has their addresses from the table alone.
                memory.note_use(&stream)?;
            }
        }
        if let Some(event) = event {
            stream.wait_for(event)?;
        }
        let stay = context.guard_resident_kernel();
        // SAFETY: the kernel is the one built above. It touches slots and results of
        // `slots` numbers, which are there, by strong operations; the table for buffers
        // below `count`; and of those what is inside, for which the authors of the
        // functions vouch. All of that is kept until it has ended, or for ever.
        #[expect(unsafe_code, reason = "a kernel of ours is launched")]
        unsafe {
            Launch::new(blocks, threads).run(&function, &stream, arguments)?;
        }
        let ring = || {
            Mutex::new(Ring {
                taken: vec![None; capacity as usize],
                ..Ring::default()
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
            hold: Mutex::new(Hold::Used(Used {
                stay,
                _function: function,
                _heads: heads,
                _table: table,
                _buffers: buffers,
            })),
            released: Condvar::new(),
            began: Instant::now(),
            glanced_ms: AtomicU64::new(0),
        }))
    }

    fn slot(&self, slot: usize) -> &[AtomicU32] {
        &self.memory.slots.words()[slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS]
    }

    fn result(&self, slot: usize) -> &[AtomicU32] {
        &self.memory.results.words()[slot * RESULT_WORDS..(slot + 1) * RESULT_WORDS]
    }

    /// Takes the result of a task that is done; says what is known of it. From then on
    /// its slot may be another's.
    fn look<'p>(&self, task: &'p Pending) -> Option<&'p Result<TaskDone, TaskError>> {
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
        // Another thread that took it first may have let the slot go since, and this one
        // have read another's: the first has it.
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
        // Under the lock, so that who stops or gives up sees all that was submitted.
        if self.lost.load(Ordering::Acquire) {
            return Err(DispatchError::Lost);
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(DispatchError::Stopped);
        }
        let at = (ring.last & (options.capacity - 1)) as usize;
        if let Some(before) = &ring.taken[at]
            && self.look(before).is_none()
        {
            return Err(DispatchError::Full {
                priority,
                capacity: options.capacity,
            });
        }
        let pending = Arc::new(Pending {
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
        // A counter that is at its end goes no further.
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

    /// Says that a task is no longer wanted, unless its slot is another's already.
    fn cancel(&self, task: &Arc<Pending>) {
        let ring = lock(&self.rings[task.priority as usize]);
        let at = task.slot % self.options.capacity as usize;
        if ring.taken[at]
            .as_ref()
            .is_some_and(|other| Arc::ptr_eq(other, task))
        {
            self.slot(task.slot)[CANCEL].store(1, Ordering::Relaxed);
        }
    }

    /// What a ring has that is not done.
    fn waiting(&self, ring: &Ring) -> Vec<Arc<Pending>> {
        let taken = ring.taken.iter().flatten();
        let waiting = taken.filter(|task| self.look(task).is_none());
        waiting.cloned().collect()
    }

    fn has_begun(&self, task: &Pending) -> bool {
        self.result(task.slot)[BEGUN].load(Ordering::Relaxed) == task.ticket
    }

    /// As [`Dispatcher::stats`].
    pub(crate) fn stats(&self) -> DispatchStats {
        if self.check_process().is_err() {
            return DispatchStats::default();
        }
        self.glance();
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

/// Waits a little longer each time: at first for what comes within microseconds.
struct Pause(u32);

impl Pause {
    fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..2000 => std::hint::spin_loop(),
            2000..2200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    /// Whether it is time for a look that costs more.
    fn is_long(&self) -> bool {
        self.0 >= 2000 && self.0.is_multiple_of(16)
    }
}

/// A task that was submitted. Dropping it lets the task be. The queue's own memory, some
/// kilobytes of the host's, stays until the last one is dropped.
#[derive(Debug)]
pub struct TaskJob {
    queue: Arc<Queue>,
    task: Arc<Pending>,
}

impl TaskJob {
    /// What the task gave, if it is done. Never waits.
    pub fn poll(&self) -> Option<Result<TaskDone, TaskError>> {
        if let Err(process) = self.queue.check_process() {
            return Some(Err(TaskError::Forked { process }));
        }
        if self.queue.look(&self.task).is_none() {
            self.queue.glance();
        }
        self.queue.look(&self.task).cloned()
    }

    /// Waits until it is done, at most so long.
    ///
    /// # Errors
    /// What became of the task; [`TaskError::TimedOut`], after which it may be waited
    /// for again.
    pub fn wait(&self, longest: Duration) -> Result<TaskDone, TaskError> {
        let queue = &*self.queue;
        queue
            .check_process()
            .map_err(|process| TaskError::Forked { process })?;
        let mut pause = Pause(0);
        // Asked for only where the wait is long.
        let mut since: Option<Instant> = None;
        let mut patience = Patience::default();
        loop {
            if let Some(outcome) = queue.look(&self.task) {
                return outcome.clone();
            }
            if longest.is_zero() && !queue.is_over() {
                return Err(TaskError::TimedOut);
            }
            pause.wait();
            if !pause.is_long() {
                continue;
            }
            let now = Instant::now();
            let since = *since.get_or_insert(now);
            if queue.is_over() {
                continue;
            }
            if queue.has_begun(&self.task) {
                match patience.look(now, queue.options.watchdog) {
                    Verdict::Runs => {}
                    Verdict::Late => queue.cancel(&self.task),
                    Verdict::Lost => queue.give_up(),
                }
            }
            if now - since > longest {
                return Err(TaskError::TimedOut);
            }
        }
    }

    /// Whether the kernel has taken it. Never waits.
    pub fn has_begun(&self) -> bool {
        // Who has the slot next has taken this one's outcome.
        self.task.outcome.get().is_some()
            || (self.queue.check_process().is_ok() && self.queue.has_begun(&self.task))
    }

    /// Asks that it end. One that was not begun is not; one that runs notices with its
    /// steps. It is done when it says so.
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
/// While it lives, what waits for the whole device waits for it: synchronising the
/// context, the legacy default stream, loading code, which a kernel's first launch may do.
/// It ends before such calls. What is dropped meanwhile and would wait, such as code and
/// memory that was not allocated in stream order, goes when no kernel stays any more.
#[derive(Debug)]
pub struct Dispatcher {
    queue: Arc<Queue>,
}

impl DispatchOptions {
    /// What a kernel is built for.
    fn shape(&self) -> task::Shape {
        (self.priorities, self.capacity, self.threads, self.idle_ns)
    }

    /// The kernel that serves `set`, as PTX.
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
            return value("a ring has a power of two of slots, at most 2^20");
        }
        if !(1..=8).contains(&self.priorities) || self.blocks == 0 {
            return value("there are 1 to 8 priorities, and at least one block");
        }
        let threads = self.threads;
        if threads == 0 || threads > 1024 || !threads.is_multiple_of(32) {
            return value("a block has 32 to 1024 threads, a multiple of 32");
        }
        Ok(())
    }
}

impl Dispatcher {
    /// Builds the kernel of these functions, and launches it in a stream of its own.
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
        let queue = Queue::start(None, context, function, buffers, options)?;
        Ok(Self { queue })
    }

    /// Gives a task to the resident kernel, at a priority, of which 0 is the highest.
    /// Tasks of one priority are begun in order; a lower one only when there are none
    /// of a higher. Never waits.
    ///
    /// # Errors
    /// [`DispatchError::Full`]; [`DispatchError::Stopped`]; [`DispatchError::Lost`];
    /// [`DispatchError::Forked`]; [`DispatchError::Value`] for a priority that there is not,
    /// or more arguments than a task has.
    pub fn submit(
        &self,
        priority: u32,
        task: TaskId,
        arguments: &TaskArgs,
    ) -> Result<TaskJob, DispatchError> {
        self.queue.submit(priority, task, arguments)
    }

    /// How much there was to do, and is; nothing in the child of a fork.
    pub fn stats(&self) -> DispatchStats {
        self.queue.stats()
    }

    /// Takes no more tasks, lets the kernel run those that it was given, and waits, at
    /// most so long, until it has ended.
    ///
    /// # Errors
    /// [`DispatchError::Running`] if it has not: it goes on as if this had been dropped;
    /// [`DispatchError::Lost`]; [`DispatchError::Forked`]; [`DispatchError::Cuda`], the
    /// kernel's error.
    pub fn stop(self, longest: Duration) -> Result<(), DispatchError> {
        self.queue.drain(longest)
    }
}

impl Drop for Dispatcher {
    /// Ends the kernel after the tasks that it runs; those that it has not begun are
    /// [`TaskError::Stopped`]. Waits for that, but not in a host callback, nor longer than
    /// twice the watchdog for a kernel whose turn has not come. In the child of a fork it
    /// does nothing.
    fn drop(&mut self) {
        // What went wrong has been told to who waits for tasks.
        drop(self.queue.abandon());
    }
}
