//! A task that ends only with the context's failure, or with the process.

use fercuda_runtime::{TaskId, TaskSet};

/// The standard tasks, and one that bypasses the set's loops, which count steps: it waits until the
/// first word of its first span is not 0.
pub(crate) fn wild() -> (TaskSet, TaskId) {
    let mut set = TaskSet::standard();
    // SAFETY: it accesses its span only; that it may never end is the subject of its tests.
    let wild = unsafe {
        set.add("wild", |t| {
            let k = t.kernel();
            let span = t.span::<u32>(0);
            k.loop_("for_ever", |turn| {
                let zero = k.value(0u32);
                turn.break_if(span.load_volatile(zero).differs(0u32));
                k.nanosleep(1000);
            });
        })
    };
    (set, wild)
}
