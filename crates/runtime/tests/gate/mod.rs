//! A task that ends on request.

use fercuda_runtime::{TaskId, TaskSet};

/// The standard tasks, and one that waits until the first word of its first span is not 0.
pub(crate) fn gated() -> (TaskSet, TaskId) {
    let mut set = TaskSet::standard();
    // SAFETY: it accesses its span only.
    let gate = unsafe {
        set.add("gate", |t| {
            let k = t.kernel();
            let gate = t.span::<u32>(0);
            t.repeat("closed", |turn| {
                let zero = k.value(0u32);
                turn.break_if(gate.load_volatile(zero).differs(0u32));
                k.nanosleep(1000);
            });
        })
    };
    (set, gate)
}
