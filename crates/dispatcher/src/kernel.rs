//! The resident kernel: takes tasks from the rings, and runs the function of each.

use fercuda_cuda::{Context, Function, Image, Module};
use fercuda_ptx::build::{Arch, BuildError, FULL_MASK, ModuleBuilder};

use crate::error::DispatchError;
use crate::options::KernelShape;
use crate::task::{Task, TaskBody};
use crate::words::{
    BEGUN, BUDGET, CANCEL, CANCELLED, DRAIN, END, GOOD, NUMBER, RESULT_WORDS, SLOT_WORDS, STATUS,
    STEPS, UNKNOWN, VALUE,
};

/// The kernel's name.
const ENTRY: &str = "fercuda_dispatcher";

/// A loaded kernel of task functions, for rings and blocks of one shape.
#[derive(Clone, Debug)]
pub struct TaskKernel {
    function: Function,
    shape: KernelShape,
}

impl TaskKernel {
    /// Loads the kernel that [`kernel`] has printed for this shape.
    pub(crate) fn load(
        context: &Context,
        text: &str,
        shape: KernelShape,
    ) -> Result<Self, DispatchError> {
        let function = Module::load(context, &Image::ptx(text))?.function(ENTRY)?;
        Ok(Self { function, shape })
    }

    pub(crate) fn shape(&self) -> KernelShape {
        self.shape
    }

    /// The kernel as a function of its module.
    pub fn function(&self) -> &Function {
        &self.function
    }
}

/// Prints the kernel as PTX: it serves `rings` rings of `capacity` slots, the first ring first, and
/// sleeps for `idle_ns` when the rings are empty.
pub(crate) fn kernel(
    tasks: &[(String, TaskBody)],
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
            let unknown = number.ge(tasks.len() as u32);
            k.if_(unknown, || task.end_with(UNKNOWN));
            k.if_else(
                cancelled,
                || task.end_with(CANCELLED),
                || {
                    for (at, (name, body)) in (0u32..).zip(tasks) {
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
