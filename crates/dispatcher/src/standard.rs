//! Built-in tasks, for programs that define none, such as C programs.
//!
//! Invariant: a task accesses memory through its spans only, and loops with the task's loops only,
//! so submitting one needs no safety promise. A task that fails writes nothing, except one that
//! is cancelled or exhausts its steps: it keeps what it has written by then.
//!
//! Elsewhere: defining tasks (`task`).

use fercuda_ptx::build::{Arg, Bits32, MemoryElement, Num};

use crate::task::Task;
use crate::task_set::{TaskId, TaskSet};

/// A task of [`TaskSet::standard`]. A span is whole elements of four bytes, as many as stated;
/// words that are not named are not read. Each task returns the number of elements that it has
/// written or read, except the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StandardTask {
    /// `to[i] = pattern`: span 0 is `to`, as `u32`; the low half of word 0 is the pattern.
    Fill,
    /// `to[i] = from[i]`: span 0 is `to`, span 1 `from`, as `u32`, of equal length. They are
    /// disjoint or identical.
    Copy,
    /// `y[i] = a * x[i] + y[i]`, rounded once: span 0 is `y`, span 1 `x`, as `f32`, of equal
    /// length; the low half of word 0 has the bits of `a`. They are disjoint or identical.
    AxpyF32,
    /// `sum[0] = values[0] + values[1] + ...` modulo 2^32: span 0 is `sum`, one `u32`, span 1
    /// `values`, which may contain `sum`. Returns the sum.
    SumU32,
    /// The same for `f32`: the threads of the block add the values in a stride of the block's size,
    /// then reduce their partial sums in pairs; so the sum depends on the values and the block's
    /// size alone. Returns the sum's bits.
    SumF32,
}

impl StandardTask {
    /// All tasks, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Fill,
        Self::Copy,
        Self::AxpyF32,
        Self::SumU32,
        Self::SumF32,
    ];

    /// The task's number in [`TaskSet::standard`].
    #[must_use]
    pub const fn id(self) -> TaskId {
        TaskId(self as u32)
    }

    /// The task's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Copy => "copy",
            Self::AxpyF32 => "axpy_f32",
            Self::SumU32 => "sum_u32",
            Self::SumF32 => "sum_f32",
        }
    }

    /// Number of spans that the task reads.
    #[must_use]
    pub const fn spans(self) -> usize {
        match self {
            Self::Fill => 1,
            _ => 2,
        }
    }

    /// Requirement on the spans, besides being inside their buffers.
    #[must_use]
    pub const fn asks(self) -> &'static str {
        match self {
            Self::Fill => "words of four bytes",
            Self::Copy | Self::AxpyF32 => "two spans of equal length, disjoint or identical",
            Self::SumU32 | Self::SumF32 => "one element for the sum",
        }
    }

    fn write(self, task: &Task<'_>) {
        match self {
            Self::Fill => fill(task),
            Self::Copy => copy(task),
            Self::AxpyF32 => axpy(task),
            Self::SumU32 => sum::<u32>(task, "sums_u32"),
            Self::SumF32 => sum::<f32>(task, "sums_f32"),
        }
    }
}

impl TaskSet {
    /// The tasks of [`StandardTask`], under their numbers. Others may be added.
    #[must_use]
    pub fn standard() -> Self {
        let mut set = Self::new();
        for it in StandardTask::ALL {
            // SAFETY: the functions below access their spans and their own shared memory, loop with
            // `for_each`, and have barriers only after that.
            #[expect(unsafe_code, reason = "device functions of this module")]
            let id = unsafe { set.add(it.name(), move |task| it.write(task)) };
            debug_assert_eq!(id, it.id());
        }
        set.is_standard = true;
        set
    }
}

fn fill(task: &Task<'_>) {
    let to = task.span::<u32>(0);
    let pattern = task.word(0).to::<u32>();
    task.for_each(to.len(), |i| to.store(i, pattern));
    task.returns(to.len().to::<u64>());
}

fn copy(task: &Task<'_>) {
    let (to, from) = (task.span::<u32>(0), task.span::<u32>(1));
    task.fail_if(to.len().differs(from.len()));
    task.fail_if(to.overlaps_shifted(&from));
    task.for_each(to.len(), |i| to.store(i, from.load(i)));
    task.returns(to.len().to::<u64>());
}

fn axpy(task: &Task<'_>) {
    let (y, x) = (task.span::<f32>(0), task.span::<f32>(1));
    let a = task.word(0).to::<u32>().bitcast::<f32>();
    task.fail_if(y.len().differs(x.len()));
    task.fail_if(y.overlaps_shifted(&x));
    task.for_each(y.len(), |i| y.store(i, a.mul_add(x.load(i), y.load(i))));
    task.returns(y.len().to::<u64>());
}

fn sum<'k, T>(task: &Task<'k>, scratch: &str)
where
    T: MemoryElement<Value = T> + Num + Bits32 + Arg<'k, T> + Default,
{
    let k = task.kernel();
    let (into, values) = (task.span::<T>(0), task.span::<T>(1));
    task.fail_if(into.len().differs(1u32));
    let own = k.var("own_sum", T::default());
    task.for_each(values.len(), |i| own.set(*own + values.load(i)));
    let scratch = k.shared::<T>(scratch, 32);
    let all = k.block_reduce(scratch, *own, T::default(), |a, b| a + b);
    // All threads have read their values by now, so `into` may lie among them. No thread stores if
    // one has stopped early.
    k.if_(task.all_well() & k.tid_x().equals(0u32), || {
        let zero = k.value(0u32);
        into.store(zero, all);
    });
    task.returns(all.bitcast::<u32>().to::<u64>());
}
