//! Task functions that a resident kernel runs: how they are written.
//!
//! A task's body is written once, for all threads of a block, and becomes part of the kernel,
//! behind a comparison of its number. Its arguments are words and spans: ranges of registered
//! buffers, with every access bounds-checked. Its loops count steps.
//!
//! Invariant: whatever a task's arguments are, a body that accesses memory by spans and loops with
//! the task's loops ends within its budget, never faults, and reports what was wrong. Elsewhere:
//! the kernel around it (`kernel`).

use fercuda_ptx::build::{
    Arg, Global, KernelBuilder, Loop, MemoryElement, Pred, Ptr, Reg, RegVar, Scalar, Shared,
};

use crate::words::{
    ARGUMENTS, CANCEL, CANCELLED, FAILED, GOOD, OUTSIDE, OVER_BUDGET, SPANS, TASK_SPANS, TASK_WORDS,
};

/// Interval in steps at which a running task checks for cancellation.
const LOOK_STEPS: u32 = 256;

/// A task, for its body to write.
pub struct Task<'k> {
    pub(crate) kernel: &'k KernelBuilder,
    pub(crate) payload: Ptr<'k, Shared, u32>,
    pub(crate) slot: Ptr<'k, Global, u32>,
    pub(crate) table: Ptr<'k, Global, u64>,
    pub(crate) buffers: Reg<'k, u32>,
    pub(crate) status: Ptr<'k, Shared, u32>,
    pub(crate) value: Ptr<'k, Shared, u64>,
    pub(crate) leader: Pred<'k>,
    pub(crate) budget: Reg<'k, u32>,
    pub(crate) steps: RegVar<'k, u32>,
    /// Not 0: this thread's loops end.
    pub(crate) halted: RegVar<'k, u32>,
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
    pub(crate) fn end_with(&self, status: u32) {
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
    pub fn all_well(&self) -> Pred<'k> {
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
    pub(crate) fn for_each_from(
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
    pub fn overlaps_shifted<U: MemoryElement>(&self, other: &TaskSpan<'_, 'k, U>) -> Pred<'k> {
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

/// Body of a task function.
pub(crate) type TaskBody = Box<dyn for<'k> Fn(&Task<'k>)>;
