//! Ops: descriptors with parameters by name, plans, and runs over a session's buffers.
//!
//! Invariant: of a call that is refused nothing is written, and no new buffer remains.
//! Elsewhere: the registry, kernels and their choice (`fercuda_ops`).

use core::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fercuda_ops::{KernelPolicy, OpDescriptor, OpError, OpParameterValue, OpPlan, OpRow, registry};
use fercuda_runtime::{BoundBuffer, BufferId, Dtype, Layout, MAX_RANK, Regime, Session};

use super::types::{
    fer_buffer, fer_layout, fer_op, fer_op_plan, fer_op_plan_details, fer_session, fit,
};
use super::unkept::UnkeptBuffers;
use crate::handles::{Handles, SESSIONS, buffer as known};
use crate::pointers::{OutArray, OutPointer, list, text};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// A descriptor of the C interface. Parameters are applied when a plan is made, as negative axes
/// are counted by the operands' dimensions.
pub(crate) struct OpenOp {
    row: &'static OpRow,
    settings: Mutex<OpSettings>,
}

#[derive(Clone, Default)]
struct OpSettings {
    values: Vec<(String, OpParameterValue)>,
    is_checked: bool,
}

pub(crate) static OPS: Handles<OpenOp> = Handles::new(12);

/// A plan of the C interface.
pub(crate) struct OpenOpPlan {
    pub(crate) session: u64,
    row: &'static OpRow,
    plan: Arc<OpPlan>,
    operands: Vec<Layout>,
    is_checked: bool,
}

pub(crate) static OP_PLANS: Handles<OpenOpPlan> = Handles::new(13);

impl OpenOp {
    fn settings(&self) -> MutexGuard<'_, OpSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a parameter that is valid for operands of some number of dimensions.
    fn set(&self, name: &str, value: OpParameterValue) -> Result<()> {
        let most = Layout::contiguous(Dtype::U8, &[1; MAX_RANK])?;
        OpDescriptor::new(self.row.name)?.named(name, &value, &[most])?;
        let mut settings = self.settings();
        settings.values.retain(|(known, _)| known != name);
        settings.values.push((name.to_owned(), value));
        Ok(())
    }

    fn describe(&self, operands: &[Layout]) -> Result<OpDescriptor> {
        let OpSettings { values, is_checked } = self.settings().clone();
        let mut op = OpDescriptor::new(self.row.name)?;
        for (name, value) in &values {
            op = op.named(name, value, operands)?;
        }
        Ok(if is_checked { op.checked()? } else { op })
    }
}

/// Creates a descriptor of an op by its name, with its parameters' defaults. docs/ops.md lists the
/// ops, with their operands, parameters, types and results. An unknown name is FER_ERROR_OP.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_open(name: *const c_char, op: *mut fer_op) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (name, place) = unsafe { (text("name", name)?, OutPointer::new("op", op)?) };
        let opened = OpenOp {
            row: registry::find(name)?,
            settings: Mutex::default(),
        };
        place.put(OPS.insert(opened)?);
        Ok(())
    })
}

/// # Safety
/// The name is null or a text.
unsafe fn set(
    op: fer_op,
    name: *const c_char,
    value: impl FnOnce() -> Result<OpParameterValue>,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the promise of this function's caller.
        let name = unsafe { text("name", name) }?;
        let value = value()?;
        OPS.get("op", op)?.set(name, value)
    })
}

/// Sets a parameter that is a number. FER_ERROR_OP if the op has no such parameter, or it is none.
/// Plans that were made before are not changed.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_set_number(
    op: fer_op,
    name: *const c_char,
    value: f64,
) -> fer_status {
    // SAFETY: the caller's promise.
    unsafe { set(op, name, || Ok(OpParameterValue::Number(value))) }
}

/// Sets a parameter that is a list of whole numbers, an axis, axes, the order of dimensions, a
/// shape, or a truth value (0 or 1). Negative axes are counted from the last one on.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_set_integers(
    op: fer_op,
    name: *const c_char,
    values: *const i64,
    count: u64,
) -> fer_status {
    let read = || {
        // SAFETY: the caller's promise.
        let values = unsafe { list("values", values, count) }?;
        Ok(match values {
            [value] => OpParameterValue::Integer(*value),
            values => OpParameterValue::Integers(values.to_vec()),
        })
    };
    // SAFETY: as above.
    unsafe { set(op, name, read) }
}

/// Sets a parameter that is a choice, or a type by its name, as fer_dtype_name has it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_set_text(
    op: fer_op,
    name: *const c_char,
    value: *const c_char,
) -> fer_status {
    let read = || {
        // SAFETY: the caller's promise.
        let value = unsafe { text("value", value) }?;
        Ok(OpParameterValue::Text(value.to_owned()))
    };
    // SAFETY: as above.
    unsafe { set(op, name, read) }
}

/// Has plans of the op record the first index outside of its axis, for fer_op_plan_check.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_op_check_indices(op: fer_op) -> fer_status {
    catch_panics(|| {
        let op = OPS.get("op", op)?;
        OpDescriptor::new(op.row.name)?.checked()?;
        op.settings().is_checked = true;
        Ok(())
    })
}

/// Frees a descriptor. Plans made of it remain.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_op_free(op: fer_op) -> fer_status {
    catch_panics(|| OPS.remove("op", op).map(|_| ()))
}

/// Chooses a kernel of an op for operands of these layouts, and compiles it, or finds it in a
/// cache. Without layouts of outputs they are contiguous. `kernel` demands one by its name,
/// "measured" takes the one that `fercuda ops tune` kept, NULL leaves the choice to the plan. The
/// plan belongs to the session: it is freed by fer_op_plan_free, or with it.
///
/// FER_ERROR_OP if types, shapes or parameters do not fit, or no kernel can compute it; the message
/// has the reasons.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_plan_open(
    session: fer_session,
    op: fer_op,
    operands: *const fer_layout,
    operand_count: u64,
    outputs: *const fer_layout,
    output_count: u64,
    kernel: *const c_char,
    plan: *mut fer_op_plan,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (operands, outputs, place) = unsafe {
            (
                list("operands", operands, operand_count)?,
                list("outputs", outputs, output_count)?,
                OutPointer::new("plan", plan)?,
            )
        };
        let policy = match kernel.is_null() {
            true => KernelPolicy::Auto,
            // SAFETY: as above.
            false => match unsafe { text("kernel", kernel) }? {
                "measured" => KernelPolicy::Measured,
                id => KernelPolicy::Force(id),
            },
        };
        let open = SESSIONS.get("session", session)?;
        open.session.buffers()?;
        let op = OPS.get("op", op)?;
        let layouts = |all: &[fer_layout]| -> Result<Vec<Layout>> {
            all.iter().map(fer_layout::read).collect()
        };
        let (operands, outputs) = (layouts(operands)?, layouts(outputs)?);
        let described = op.describe(&operands)?;
        let made = OpPlan::new(open.ops()?, &described, &operands, &outputs, policy);
        let made = OpenOpPlan {
            session,
            row: op.row,
            plan: Arc::new(made.map_err(refused)?),
            operands,
            is_checked: described.is_checked(),
        };
        place.put(OP_PLANS.insert_of(&SESSIONS, session, made)?);
        Ok(())
    })
}

/// An error of a plan, with advice for C.
fn refused(error: OpError) -> CallFailure {
    let failure = CallFailure::from(error);
    let message = failure
        .message
        .replace("KernelPolicy::Auto", "NULL as kernel");
    CallFailure { message, ..failure }
}

/// Returns the kernel of a plan, and what a run needs.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_plan_info(
    plan: fer_op_plan,
    details: *mut fer_op_plan_details,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let it = OP_PLANS.get("plan", plan)?;
        place.put(fer_op_plan_details {
            kernel: fit(it.plan.sku().id),
            workspace_bytes: it.plan.workspace_bytes(),
            operands: it.operands.len() as u64,
            outputs: it.plan.outputs().len() as u64,
            launches: it.plan.sku().launches as u64,
            refused_runs: it.plan.refused_runs(),
        });
        Ok(())
    })
}

/// Returns the layout of an output, by its number from 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_plan_output(
    plan: fer_op_plan,
    number: u64,
    layout: *mut fer_layout,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("layout", layout) }?;
        let it = OP_PLANS.get("plan", plan)?;
        let outputs = it.plan.outputs();
        let found = usize::try_from(number).ok().and_then(|at| outputs.get(at));
        let found = found.ok_or_else(|| {
            let count = outputs.len();
            let what = format!("it is {number}, but there are {count} outputs\ntry: 0 or more");
            CallFailure::argument("number", what)
        })?;
        place.put(fer_layout::of(found));
        Ok(())
    })
}

/// Writes which kernel was chosen and why, and why each of the others was not, as a zero-terminated
/// text of `room` bytes at most. `needed` is set to its size with the zero byte; `text` may be NULL
/// for a `room` of 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_plan_sku(
    plan: fer_op_plan,
    text: *mut c_char,
    room: u64,
    needed: *mut u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (into, place) = unsafe {
            (
                OutArray::new("text", text.cast::<u8>(), room)?,
                OutPointer::new("needed", needed)?,
            )
        };
        let sku = OP_PLANS.get("plan", plan)?.plan.sku().to_string();
        place.put(into.put_text(sku));
        Ok(())
    })
}

/// Frees a plan. Runs that were queued are not affected.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_op_plan_free(plan: fer_op_plan) -> fer_status {
    catch_panics(|| OP_PLANS.remove("plan", plan).map(|_| ()))
}

/// Queues a plan in its session's order, over buffers of the session with the plan's layouts. An
/// output that is 0 becomes a new buffer of the pool; its handle replaces the 0. An output may be
/// an operand if each element is computed from the element at the same place. Compiles nothing, and
/// does not wait for the device. For arrays that other code writes or reads, order the session with
/// its stream: fer_session_wait_for_stream before, fer_stream_wait_for_session after.
///
/// `workspace` is a buffer of the plan's workspace_bytes at least, aligned to 16, that later work
/// of the session may use again; with 0 the memory is allocated for the run, and freed behind it. A
/// plan of checked indices needs one.
///
/// FER_ERROR_LAYOUT if a buffer has another layout, or an output overlaps other memory.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_op_run(
    plan: fer_op_plan,
    operands: *const fer_buffer,
    operand_count: u64,
    outputs: *mut fer_buffer,
    output_count: u64,
    workspace: fer_buffer,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise; outputs are copied before there is room to write them.
        let (operands, wanted, room) = unsafe {
            (
                list("operands", operands, operand_count)?,
                list("outputs", outputs.cast_const(), output_count)?.to_vec(),
                OutArray::new("outputs", outputs, output_count)?,
            )
        };
        let it = OP_PLANS.get("plan", plan)?;
        let open = SESSIONS.get("session", it.session)?;
        let session = &open.session;
        if it.is_checked && workspace == 0 {
            return Err(CallFailure::argument(
                "workspace",
                "it is 0, but fer_op_plan_check has to read it\ntry: a buffer of the plan's workspace_bytes",
            ));
        }
        let bound = it.bind(session, "operands", operands, &it.operands)?;
        let written = it.bind(session, "outputs", &wanted, it.plan.outputs())?;
        let workspace = it.workspace(session, workspace)?;
        let mut made = UnkeptBuffers::of(session);
        let mut done = wanted;
        let mut all = Vec::with_capacity(done.len());
        for ((there, place), layout) in written.into_iter().zip(&mut done).zip(it.plan.outputs()) {
            all.push(match there {
                Some(there) => there,
                None => {
                    let id = made.add(session.alloc(*layout, Regime::Pool)?);
                    *place = id.to_bits();
                    session.bind(id)?
                }
            });
        }
        let plan = it.plan.clone();
        session.queue(move |stream| {
            let bound: Vec<_> = bound.iter().flatten().map(BoundBuffer::arg).collect();
            let written: Vec<_> = all.iter().map(BoundBuffer::arg).collect();
            let workspace = workspace.as_ref().map(BoundBuffer::arg);
            Ok(plan.run(stream, &bound, &written, workspace))
        })??;
        made.keep();
        room.put(&done);
        Ok(())
    })
}

/// Waits for the session's work, and reports the first index outside of its axis that the last run
/// with this workspace found, as FER_ERROR_INDEX. FER_OK if there was none, or the plan does not
/// check indices (fer_op_check_indices).
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_op_plan_check(plan: fer_op_plan, workspace: fer_buffer) -> fer_status {
    catch_panics(|| {
        let it = OP_PLANS.get("plan", plan)?;
        let open = SESSIONS.get("session", it.session)?;
        let memory = open.session.bind(known("workspace", workspace)?)?;
        let plan = it.plan.clone();
        let checked = open
            .session
            .queue(move |stream| Ok(plan.check(stream, &memory.arg())))?;
        Ok(checked?)
    })
}

impl OpenOpPlan {
    /// Binds buffers of these layouts; `None` where the number is 0, which only an output may be.
    fn bind(
        &self,
        session: &Session,
        what: &str,
        numbers: &[u64],
        layouts: &[Layout],
    ) -> Result<Vec<Option<BoundBuffer>>> {
        let name = self.row.name;
        if numbers.len() != layouts.len() {
            let (given, wanted) = (numbers.len(), layouts.len());
            let signature = self.row.signature();
            return Err(CallFailure::argument(
                what,
                format!("{given}, but the plan of {name} has {wanted}\ntry: {signature}"),
            ));
        }
        let bind = |(at, (number, layout)): (usize, (&u64, &Layout))| {
            let named = format!("{what}[{at}]");
            if *number == 0 && what == "outputs" {
                return Ok(None);
            }
            let bound = session.bind(known(&named, *number)?)?;
            match bound.layout() == layout {
                true => Ok(Some(bound)),
                false => Err(CallFailure::new(
                    fer_status::FER_ERROR_LAYOUT,
                    format!(
                        "{named} of {name} is {}, but the plan is for {layout}\ntry: a view of that layout, or another plan",
                        bound.layout()
                    ),
                )),
            }
        };
        let numbers = numbers.iter().zip(layouts).enumerate();
        numbers.map(bind).collect()
    }

    /// The given workspace, or one that is freed behind the work that it is queued with.
    fn workspace(&self, session: &Session, given: u64) -> Result<Option<BoundBuffer>> {
        if given != 0 {
            return Ok(Some(session.bind(known("workspace", given)?)?));
        }
        let bytes = self.plan.workspace_bytes();
        if bytes == 0 {
            return Ok(None);
        }
        let layout = Layout::contiguous(Dtype::U8, &[bytes])?;
        let id: BufferId = session.alloc(layout, Regime::Pool)?;
        let memory = session.bind(id);
        session.free(id)?;
        Ok(Some(memory?))
    }
}
