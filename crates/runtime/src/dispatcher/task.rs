//! Task functions that a resident kernel runs: how they are written, and the kernel itself.
//!
//! A task's body is written once, for all threads of a block, and becomes part of the kernel,
//! behind a comparison of its number. Its arguments are words and spans: ranges of registered
//! buffers, with every access bounds-checked. Its loops count steps.
//!
//! Invariant: whatever a task's arguments are, a body that accesses memory by spans and loops with
//! the task's loops ends within its budget, never faults, and reports what was wrong. Elsewhere:
//! the host side of the queue (`dispatcher`).

use std::cell::Cell;
use std::sync::Mutex;

use fercuda_cuda::{Context, Error, Function, Image, Module};
use fercuda_ptx::build::{
    Arch, Arg, BuildError, FULL_MASK, Global, KernelBuilder, Loop, MemoryElement, ModuleBuilder,
    Pred, Ptr, Reg, RegVar, Scalar, Shared,
};

use super::{DispatchError, DispatchOptions};
use crate::runtime::lock;

/// Words of a slot, which the host writes.
pub(super) const SLOT_WORDS: usize = 32;
/// Ticket of the task in the slot, written last.
pub(super) const READY: usize = 0;
pub(super) const NUMBER: usize = 1;
/// Maximum number of steps of each thread.
pub(super) const BUDGET: usize = 2;
/// Not 0: the task is cancelled.
pub(super) const CANCEL: usize = 3;
/// Arguments, two words each, the low one first.
pub(super) const ARGUMENTS: usize = 4;
/// Spans, six words each: buffer, padding, first byte, bytes.
pub(super) const SPANS: usize = 12;
/// Argument words of a task.
pub const TASK_WORDS: usize = 4;
/// Spans of a task.
pub const TASK_SPANS: usize = 3;

/// Words of a result, which the device writes.
pub(super) const RESULT_WORDS: usize = 8;
/// Ticket of the completed task, written last.
pub(super) const DONE: usize = 0;
pub(super) const STATUS: usize = 1;
/// Two words.
pub(super) const VALUE: usize = 2;
/// Steps of the first thread.
pub(super) const STEPS: usize = 4;
/// Ticket of the running task.
pub(super) const BEGUN: usize = 5;

/// Command of the host to all blocks, a stricter one by a larger number: go on, exit when the rings
/// are empty, exit now.
pub(super) const GO_ON: u32 = 0;
pub(super) const DRAIN: u32 = 1;
pub(super) const END: u32 = 2;

/// Result of a task: the largest value that any of its threads reports.
pub(super) const GOOD: u32 = 0;
pub(super) const FAILED: u32 = 1;
pub(super) const OUTSIDE: u32 = 2;
pub(super) const OVER_BUDGET: u32 = 3;
pub(super) const CANCELLED: u32 = 4;
pub(super) const UNKNOWN: u32 = 5;

/// Interval in steps at which a running task checks for cancellation.
const LOOK_STEPS: u32 = 256;

type TaskBody = Box<dyn for<'k> Fn(&Task<'k>)>;

/// Task functions, by their numbers.
#[derive(Default)]
pub struct TaskSet {
    tasks: Vec<(String, TaskBody)>,
    /// Whether they are exactly those of [`TaskSet::standard`].
    pub(super) is_standard: bool,
    /// Whether their bodies are writing a kernel right now.
    is_written: Cell<bool>,
    /// Their loaded kernels. See [`TaskSet::load`].
    loaded: KernelCache,
}

/// LoadedKernel kernels of one set: one for each context and shape, loaded once.
#[derive(Default)]
pub(crate) struct KernelCache(Mutex<Vec<LoadedKernel>>);

/// A loaded kernel, with its context and shape.
struct LoadedKernel {
    context: Context,
    shape: KernelShape,
    function: Function,
}

/// Rings, slots of a ring, threads of a block, and idle time in nanoseconds.
pub(crate) type KernelShape = (u32, u32, u32, u32);

impl std::fmt::Debug for KernelCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(lock(&self.0).iter().map(|it| it.shape))
            .finish()
    }
}

impl KernelCache {
    fn find(&self, context: &Context, options: &DispatchOptions) -> Option<Function> {
        let (all, shape) = (lock(&self.0), options.shape());
        let mut all = all.iter();
        let found = all.find(|it| it.context == *context && it.shape == shape)?;
        Some(found.function.clone())
    }

    fn find_or_load(
        &self,
        set: &TaskSet,
        context: &Context,
        options: &DispatchOptions,
    ) -> Result<Function, DispatchError> {
        if let Some(function) = self.find(context, options) {
            return Ok(function);
        }
        // Outside the lock: bodies are user code, and loading code waits for the device.
        let text = options.listing(set)?;
        let function = Module::load(context, &Image::ptx(&text))?.function(ENTRY)?;
        let first = LoadedKernel {
            context: context.clone(),
            shape: options.shape(),
            function: function.clone(),
        };
        let reset = |it: &LoadedKernel| matches!(it.context.bind(), Err(Error::ContextReset));
        let mut all = lock(&self.0);
        // Another thread may have loaded it first: both work.
        all.push(first);
        let gone: Vec<LoadedKernel>;
        (gone, *all) = std::mem::take(&mut *all).into_iter().partition(reset);
        drop(all);
        drop(gone);
        Ok(function)
    }

    /// Drops the kernels: each is unloaded when no dispatcher uses it.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        drop(all);
    }
}

impl std::fmt::Debug for TaskSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.tasks.iter().map(|(name, _)| name))
            .finish()
    }
}

/// Number of a function in a [`TaskSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub u32);

impl TaskSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function. All threads of a block run `body` together.
    ///
    /// # Safety
    /// The body accesses memory by [`TaskSpan`]s and its own shared memory only, loops with the
    /// task's loops only, has no barrier in them, and does not return, trap or let threads exit by
    /// themselves. The caller is responsible for anything else that it does: a fault of one task
    /// ends the kernel, and with it the context.
    #[expect(
        unsafe_code,
        reason = "only the author knows what a device function does"
    )]
    pub unsafe fn add(&mut self, name: &str, body: impl for<'k> Fn(&Task<'k>) + 'static) -> TaskId {
        // The loaded kernels lack it.
        self.loaded.clear();
        self.is_standard = false;
        self.tasks.push((name.to_owned(), Box::new(body)));
        TaskId((self.tasks.len() - 1) as u32)
    }

    /// Builds the kernel that runs these functions and loads it to the device, where it stays as
    /// long as the set: one for each context and each shape of rings and blocks. A dispatcher does
    /// so itself; a session's dispatcher keeps that of the standard tasks for the next one of the
    /// runtime's, until a reboot. To start a dispatcher while another kernel is resident, call this
    /// before: loading code waits for the device, and so for that kernel.
    ///
    /// # Errors
    /// [`DispatchError::Value`], [`DispatchError::Build`], [`DispatchError::Cuda`].
    pub fn load(&self, context: &Context, options: &DispatchOptions) -> Result<(), DispatchError> {
        self.function(context, options).map(drop)
    }

    /// Returns the kernel, and loads it first if needed.
    pub(crate) fn function(
        &self,
        context: &Context,
        options: &DispatchOptions,
    ) -> Result<Function, DispatchError> {
        self.loaded.find_or_load(self, context, options)
    }

    /// The same; for the standard tasks the kernel is in `kept`, and stays there.
    pub(crate) fn function_of(
        &self,
        kept: &KernelCache,
        context: &Context,
        options: &DispatchOptions,
    ) -> Result<Function, DispatchError> {
        let own = self.loaded.find(context, options);
        match own {
            Some(function) => Ok(function),
            None if self.is_standard => kept.find_or_load(self, context, options),
            None => self.function(context, options),
        }
    }

    /// Runs the bodies to write the kernel.
    ///
    /// # Errors
    /// In a body of the set itself, which would recurse without end.
    pub(super) fn write(
        &self,
        kernel: impl FnOnce(&Self) -> Result<String, BuildError>,
    ) -> Result<String, DispatchError> {
        struct WritingGuard<'s>(&'s Cell<bool>);
        impl Drop for WritingGuard<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        if self.is_written.replace(true) {
            let why = "a task's body builds the kernel that it is part of".into();
            return Err(DispatchError::Value { why });
        }
        let _guard = WritingGuard(&self.is_written);
        Ok(kernel(self)?)
    }

    /// Name of a function.
    pub fn name(&self, task: TaskId) -> Option<&str> {
        let (name, _) = self.tasks.get(task.0 as usize)?;
        Some(name)
    }
}

/// A task, for its body to write.
pub struct Task<'k> {
    kernel: &'k KernelBuilder,
    payload: Ptr<'k, Shared, u32>,
    slot: Ptr<'k, Global, u32>,
    table: Ptr<'k, Global, u64>,
    buffers: Reg<'k, u32>,
    status: Ptr<'k, Shared, u32>,
    value: Ptr<'k, Shared, u64>,
    leader: Pred<'k>,
    budget: Reg<'k, u32>,
    steps: RegVar<'k, u32>,
    /// Not 0: this thread's loops end.
    halted: RegVar<'k, u32>,
}

impl<'k> Task<'k> {
    /// The kernel builder, for arithmetic.
    pub fn kernel(&self) -> &'k KernelBuilder {
        self.kernel
    }

    fn wide(&self, at: usize) -> Reg<'k, u64> {
        let low = self.payload.offset(at as i64).load().to::<u64>();
        let high = self.payload.offset(at as i64 + 1).load().to::<u64>();
        low | (high << 32)
    }

    /// Argument word `index`, below [`TASK_WORDS`]; the first one beyond.
    #[must_use]
    pub fn word(&self, index: usize) -> Reg<'k, u64> {
        self.wide(ARGUMENTS + 2 * if index < TASK_WORDS { index } else { 0 })
    }

    /// Span `index` of elements, below [`TASK_SPANS`]; the first one beyond. If the argument is not
    /// inside its buffer, misaligned, no whole number of elements, or 2^32 of them or more, the
    /// span is empty, and the task ends as
    /// [`TaskError::OutOfBounds`](crate::TaskError::OutOfBounds).
    #[must_use]
    pub fn span<T: MemoryElement>(&self, index: usize) -> TaskSpan<'_, 'k, T> {
        let k = self.kernel;
        let at = SPANS + 6 * if index < TASK_SPANS { index } else { 0 };
        let buffer = self.payload.offset(at as i64).load();
        let (offset, bytes) = (self.wide(at + 2), self.wide(at + 4));
        let known = buffer.lt(self.buffers);
        let entry = self.table.index(buffer << 1);
        let base = entry.load_if(known, 0u64);
        let size = entry.offset(1).load_if(known, 0u64);
        // Without this, a partial element at the end would be ignored silently.
        let aligned = ((offset | bytes) & u64::from(T::BYTES - 1)).equals(0u64);
        let begins = offset.le(size);
        let ends = bytes.le(size - offset);
        // Without this, elements beyond the largest index would be ignored as well.
        let few = bytes.lt(u64::from(T::BYTES) << 32);
        let good = (known & aligned & begins & ends & few).named("inside");
        let len = k.var("span_len", 0u64);
        let begin = k.var("span", base);
        k.if_else(
            good,
            || {
                len.set(bytes / u64::from(T::BYTES));
                begin.set(base + offset);
            },
            || self.end_with(OUTSIDE),
        );
        TaskSpan {
            task: self,
            begin: Ptr::from_address(*begin),
            len: *len,
        }
    }

    /// Ends this thread's loops, and the task with `status` or a worse one.
    fn end_with(&self, status: u32) {
        let _before = self.status.atomic_max(status);
        self.halted.set(1u32);
    }

    /// Ends the task as [`TaskError::Failed`](crate::TaskError::Failed), after this thread's
    /// current step.
    pub fn fail(&self) {
        self.end_with(FAILED);
    }

    /// Calls [`Task::fail`] if `wrong` holds.
    pub fn fail_if(&self, wrong: Pred<'k>) {
        self.kernel.if_(wrong, || self.fail());
    }

    /// Whether no thread has ended the task so far. This is a barrier: all threads get the same
    /// answer.
    #[must_use]
    pub fn is_well(&self) -> Pred<'k> {
        self.kernel.barrier();
        self.status.load_volatile().equals(GOOD)
    }

    /// Sets the task's return value: that of the first thread.
    pub fn returns(&self, value: impl Arg<'k, u64>) {
        self.kernel.if_(self.leader, || self.value.store(value));
    }

    /// Counts a step, and periodically checks for cancellation.
    fn step(&self) {
        let k = self.kernel;
        self.steps.set(*self.steps + 1);
        k.if_(self.steps.gt(self.budget), || self.end_with(OVER_BUDGET));
        k.if_((*self.steps & (LOOK_STEPS - 1)).equals(0u32), || {
            let cancel = self.slot.offset(CANCEL as i64).load_volatile();
            k.if_(cancel.differs(0u32), || self.end_with(CANCELLED));
        });
    }

    /// Runs `body` for each number below `count`, spread over the block's threads.
    pub fn for_each(&self, count: impl Arg<'k, u32>, body: impl FnOnce(Reg<'k, u32>)) {
        self.for_each_from(self.kernel.tid_x(), count, body);
    }

    /// The same from `first` on, in strides of the block's size.
    fn for_each_from(
        &self,
        first: Reg<'k, u32>,
        count: impl Arg<'k, u32>,
        body: impl FnOnce(Reg<'k, u32>),
    ) {
        let k = self.kernel;
        let item = k.var("item", first);
        k.loop_("items", |items| {
            items.break_if(item.ge(count));
            items.break_if(self.halted.differs(0u32));
            self.step();
            body(*item);
            let next = *item + k.ntid_x();
            // On overflow no further number is below `count`.
            items.break_if(next.lt(*item));
            item.set(next);
        });
    }

    /// Repeats `body` until it breaks, or the task ends for another reason.
    pub fn repeat(&self, name: &str, body: impl for<'l> FnOnce(&'l Loop<'l>)) {
        self.kernel.loop_(name, |turn| {
            turn.break_if(self.halted.differs(0u32));
            self.step();
            body(turn);
        });
    }
}

/// Elements of a registered buffer. Reads beyond the end return 0, writes there are dropped; either
/// ends the task as [`TaskError::OutOfBounds`](crate::TaskError::OutOfBounds).
pub struct TaskSpan<'t, 'k, T> {
    task: &'t Task<'k>,
    begin: Ptr<'k, Global, T>,
    len: Reg<'k, u64>,
}

impl<'k, T: MemoryElement<Value = T> + Scalar + Arg<'k, T> + Default> TaskSpan<'_, 'k, T> {
    /// Number of elements, at most 2^32 - 1.
    #[must_use]
    pub fn len(&self) -> Reg<'k, u32> {
        self.len.to::<u32>()
    }

    /// Whether the two overlap without being identical.
    #[must_use]
    pub fn is_shifted_over<U: MemoryElement>(&self, other: &TaskSpan<'_, 'k, U>) -> Pred<'k> {
        let ends =
            |begin: Reg<'k, u64>, len: Reg<'k, u64>, bytes: u32| begin + len * u64::from(bytes);
        let (begin, from) = (self.begin.address(), other.begin.address());
        begin.differs(from)
            & begin.lt(ends(from, other.len, U::BYTES))
            & from.lt(ends(begin, self.len, <T as MemoryElement>::BYTES))
    }

    fn inside(&self, index: Reg<'k, u32>) -> Pred<'k> {
        let inside = index.to::<u64>().lt(self.len);
        let kernel = self.task.kernel;
        kernel.if_(!inside, || self.task.end_with(OUTSIDE));
        inside
    }

    /// The element at `index`.
    #[must_use]
    pub fn load(&self, index: Reg<'k, u32>) -> Reg<'k, T> {
        let inside = self.inside(index);
        self.begin.index(index).load_if(inside, T::default())
    }

    /// The current value of the element at `index`, for memory that others change concurrently.
    #[must_use]
    pub fn load_volatile(&self, index: Reg<'k, u32>) -> Reg<'k, T> {
        let kernel = self.task.kernel;
        let value = kernel.var("now", T::default());
        let inside = self.inside(index);
        kernel.if_(inside, || {
            value.set(self.begin.index(index).load_volatile())
        });
        *value
    }

    /// Writes the element at `index`.
    pub fn store(&self, index: Reg<'k, u32>, value: impl Arg<'k, T>) {
        let inside = self.inside(index);
        self.begin.index(index).store_if(inside, value);
    }
}

/// The kernel's name.
pub(super) const ENTRY: &str = "fercuda_dispatcher";

/// Prints the kernel as PTX: it serves `rings` rings of `capacity` slots, the first ring first, and
/// sleeps for `idle_ns` when the rings are empty.
pub(super) fn kernel(
    set: &TaskSet,
    (rings, capacity): (u32, u32),
    threads: u32,
    idle_ns: u32,
) -> Result<String, BuildError> {
    let mut module = ModuleBuilder::new(Arch::SM_80);
    module.kernel(ENTRY, |k| {
        k.max_threads(threads);
        let slots = k.param_ptr::<u32>("slots");
        let results = k.param_ptr::<u32>("results");
        let control = k.param_ptr::<u32>("control");
        let heads = k.param_ptr::<u32>("heads");
        let table = k.param_ptr::<u64>("table");
        let buffers = k.param::<u32>("buffers");
        // Slot index plus one, or 0 to exit; ticket; status.
        let command = k.shared::<u32>("command", 3);
        let payload = k.shared::<u32>("payload", SLOT_WORDS as u32);
        let value = k.shared::<u64>("value", 1);
        let status = command.offset(2);
        let tid = k.tid_x();
        let leader = tid.equals(0u32).named("leader");
        k.loop_("serve", |serve| {
            k.if_(leader, || {
                let (found, ticket) = (k.var("found", 0u32), k.var("ticket", 0u32));
                k.loop_("poll", |poll| {
                    // Read first: tasks that were submitted before the command are seen below.
                    let order = control.load_acquire_system().named("order");
                    poll.break_if(order.equals(END));
                    for ring in 0..rings {
                        let head = heads.offset(i64::from(ring));
                        let next = head.load_volatile().named("next");
                        let place = (next & (capacity - 1)) + ring * capacity;
                        let ready = slots.index(place * SLOT_WORDS as u32).load_acquire_system();
                        let wanted = next + 1;
                        k.if_(ready.equals(wanted), || {
                            let before = head.atomic_compare_swap(next, wanted);
                            k.if_(before.equals(next), || {
                                found.set(place + 1);
                                ticket.set(wanted);
                                poll.break_();
                            });
                        });
                    }
                    poll.break_if(order.equals(DRAIN));
                    k.nanosleep(idle_ns);
                });
                command.store(found);
                command.offset(1).store(ticket);
                status.store(GOOD);
                value.store(0u64);
            });
            k.warp_barrier(FULL_MASK);
            k.barrier();
            let place = command.load();
            serve.break_if(place.equals(0u32));
            let place = place - 1;
            let slot = slots.index(place * SLOT_WORDS as u32).named("slot");
            let result = results.index(place * RESULT_WORDS as u32).named("result");
            k.if_(tid.lt(SLOT_WORDS as u32), || {
                payload.index(tid).store(slot.index(tid).load_volatile());
            });
            let ticket = command.offset(1).load();
            k.if_(leader, || {
                result.offset(BEGUN as i64).store_volatile(ticket)
            });
            k.barrier();
            let task = Task {
                kernel: k,
                payload,
                slot,
                table,
                buffers,
                status,
                value,
                leader,
                budget: payload.offset(BUDGET as i64).load(),
                steps: k.var("steps", 0u32),
                halted: k.var("halted", 0u32),
            };
            let number = payload.offset(NUMBER as i64).load().named("number");
            let cancelled = payload.offset(CANCEL as i64).load().differs(0u32);
            let unknown = number.ge(set.tasks.len() as u32);
            k.if_(unknown, || task.end_with(UNKNOWN));
            k.if_else(
                cancelled,
                || task.end_with(CANCELLED),
                || {
                    for (at, (name, body)) in (0u32..).zip(&set.tasks) {
                        let is_it = number.equals(at).named(format!("is_{name}"));
                        k.if_(is_it, || body(&task));
                    }
                },
            );
            k.barrier();
            k.if_(leader, || {
                let value = value.load();
                let whole = result.offset(VALUE as i64);
                whole.store_volatile(value.to::<u32>());
                whole.offset(1).store_volatile((value >> 32).to::<u32>());
                result.offset(STATUS as i64).store_volatile(status.load());
                result.offset(STEPS as i64).store_volatile(task.steps);
                result.store_release_system(ticket);
            });
        });
    });
    Ok(fercuda_ptx::print(&module.finish()?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fercuda_cuda::{Context, Cuda};

    use crate::dispatcher::{DispatchOptions, Dispatcher, TaskArgs, TaskBuffers, TaskSet};

    #[test]
    fn a_loop_to_the_largest_number_ends_there() {
        let mut set = TaskSet::new();
        // SAFETY: it touches nothing.
        #[expect(unsafe_code, reason = "a device function of the test's")]
        let last = unsafe {
            set.add("last", |t| {
                let k = t.kernel();
                t.for_each_from(k.tid_x() + (u32::MAX - 100), u32::MAX, |_| {});
            })
        };
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let options = DispatchOptions {
            threads: 64,
            ..DispatchOptions::default()
        };
        let dispatcher = Dispatcher::start(&context, &set, TaskBuffers::new(), options).unwrap();
        let job = dispatcher.submit(0, last, &TaskArgs::new().steps(1000));
        let done = job.unwrap().wait(Duration::from_secs(30)).unwrap();
        assert_eq!(done.steps, 2);
    }
}
