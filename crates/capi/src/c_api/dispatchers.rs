//! Tasks for a resident kernel.
//!
//! Invariants: a ticket belongs to one dispatcher, and is freed with it. An invalid task fails by
//! itself, which its ticket reports; only arguments without any meaning are refused on submission.

use std::time::Duration;

use fercuda_runtime::{
    BufferId, DispatchError, DispatchOptions, Error, Resident, StandardTask, TaskArgs, TaskBuffer,
    TaskDone, TaskError, TaskId, TaskJob, TaskSet,
};

use super::types::{
    FER_TASK_SPANS, FER_WAIT_FOREVER, fer_buffer, fer_dispatcher, fer_dispatcher_details,
    fer_dispatcher_options, fer_job_state, fer_session, fer_task, fer_task_result, fer_ticket,
};
use crate::handles::{Handles, SESSIONS, buffer as known};
use crate::pointers::{OutPointer, list, read_pointer};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// A dispatcher of the C interface.
pub(crate) struct RunningDispatcher {
    pub(crate) session: u64,
    resident: Resident,
    /// The registered buffers: handle, and size.
    buffers: Vec<(BufferId, u64)>,
    options: DispatchOptions,
}

pub(crate) static DISPATCHERS: Handles<RunningDispatcher> = Handles::new(6);

/// A submitted task of the C interface.
pub(crate) struct TaskTicket {
    pub(crate) dispatcher: u64,
    pub(crate) session: u64,
    job: TaskJob,
    task: fer_task,
    /// Size of the buffer of each of its spans, in bytes.
    sizes: Vec<u64>,
}

pub(crate) static TICKETS: Handles<TaskTicket> = Handles::new(7);

/// Fills in the defaults, which fer_persistent_dispatcher_boot uses for NULL.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_dispatcher_defaults(
    options: *mut fer_dispatcher_options,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("options", options) }?;
        let it = DispatchOptions::default();
        place.put(fer_dispatcher_options {
            capacity: it.capacity,
            priorities: it.priorities,
            blocks: it.blocks,
            threads: it.threads,
            idle_ns: it.idle_ns,
            steps: it.steps,
            watchdog_ns: it.watchdog.as_nanos() as u64,
        });
        Ok(())
    })
}

/// Starts a resident kernel on the session's device, which takes tasks (fer_task_number) from ring
/// buffers in host memory, so that a task needs no launch. Tasks may access the `count` buffers,
/// which stay allocated as long as the dispatcher may use them, even if their handles are freed;
/// they are contiguous and aligned to 16 bytes. `options` may be NULL, for those of
/// fer_dispatcher_defaults.
///
/// The kernel starts behind the session's work. From then on the program must order tasks and other
/// work with those buffers: it waits for the ones before it submits the others. While the kernel
/// runs, every wait for the whole device waits for it: loading modules, a kernel's first launch,
/// the first boot with other `capacity`, `priorities`, `threads` or `idle_ns` since a reboot. Stop
/// it before. Memory that is freed meanwhile and is not of the pool, and modules that are unloaded,
/// are released when no dispatcher runs any more (deferred free).
///
/// It is ended by fer_dispatcher_stop, fer_dispatcher_free, or with its session, closed or
/// rebooted, which lets it run the submitted tasks.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_persistent_dispatcher_boot(
    session: fer_session,
    options: *const fer_dispatcher_options,
    buffers: *const fer_buffer,
    count: u64,
    dispatcher: *mut fer_dispatcher,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (options, numbers, place) = unsafe {
            let options = match options.is_null() {
                true => DispatchOptions::default(),
                false => read_options(&read_pointer("options", options)?)?,
            };
            let numbers = list("buffers", buffers, count)?;
            (options, numbers, OutPointer::new("dispatcher", dispatcher)?)
        };
        let open = SESSIONS.get("session", session)?;
        // They grow with the elements read: the caller's count is not trusted.
        let (mut ids, mut registered) = (Vec::new(), Vec::new());
        for (at, number) in numbers.iter().enumerate() {
            let id = known(&format!("buffers[{at}]"), *number)?;
            ids.push(id);
            registered.push((id, open.session.layout(id)?.bytes()));
        }
        let booted = open.session.dispatcher(&TaskSet::standard(), &ids, options);
        let resident = booted.map_err(|error| match &error {
            Error::Dispatch(refused) => match &**refused {
                DispatchError::Value { why } => {
                    let what = format!("{why}\ntry: the values of fer_dispatcher_defaults");
                    CallFailure::argument("options", what)
                }
                _ => error.into(),
            },
            _ => error.into(),
        })?;
        let running = RunningDispatcher {
            session,
            resident,
            buffers: registered,
            options,
        };
        place.put(DISPATCHERS.insert_of(&SESSIONS, session, running)?);
        Ok(())
    })
}

fn read_options(it: &fer_dispatcher_options) -> Result<DispatchOptions> {
    if it.watchdog_ns == 0 || it.steps == 0 {
        let (name, unit) = match it.steps {
            0 => ("options.steps", "steps"),
            _ => ("options.watchdog_ns", "time"),
        };
        let what = format!("0 leaves no task any {unit}\ntry: fer_dispatcher_defaults");
        return Err(CallFailure::argument(name, what));
    }
    Ok(DispatchOptions {
        capacity: it.capacity,
        priorities: it.priorities,
        blocks: it.blocks,
        threads: it.threads,
        idle_ns: it.idle_ns,
        steps: it.steps,
        watchdog: Duration::from_nanos(it.watchdog_ns),
    })
}

/// Submits a task to a dispatcher. Never waits: if the ring of its priority is full it returns
/// FER_ERROR_FULL at once. An invalid task is reported by its ticket, and does not affect other
/// tasks; but a span of a buffer that was not registered, too many spans, and an invalid priority
/// are refused here. `ticket` may be NULL if its result is not needed; else it is freed by
/// fer_ticket_free, or with its dispatcher.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_dispatcher_submit(
    dispatcher: fer_dispatcher,
    task: *const fer_task,
    ticket: *mut fer_ticket,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (task, place) = unsafe {
            let place = match ticket.is_null() {
                true => None,
                false => Some(OutPointer::new("ticket", ticket)?),
            };
            (read_pointer("task", task)?, place)
        };
        let running = DISPATCHERS.get("dispatcher", dispatcher)?;
        let (arguments, sizes) = running.read(&task)?;
        // 0 is no task, and wraps to an unknown number.
        let id = TaskId(task.task.wrapping_sub(1));
        let submitted = running.resident.submit(task.priority, id, &arguments);
        let job = submitted.map_err(|error| match error {
            DispatchError::Value { why } => CallFailure::argument(
                "task->priority",
                format!("{why}\ntry: a smaller number; 0 is the highest priority"),
            ),
            error => error.into(),
        })?;
        let Some(place) = place else { return Ok(()) };
        let ticket = TaskTicket {
            dispatcher,
            session: running.session,
            job,
            task,
            sizes,
        };
        place.put(TICKETS.insert_of(&DISPATCHERS, dispatcher, ticket)?);
        Ok(())
    })
}

impl RunningDispatcher {
    /// Converts a task's arguments; also returns the sizes of its spans' buffers.
    fn read(&self, task: &fer_task) -> Result<(TaskArgs, Vec<u64>)> {
        let spans = task.spans.get(..task.span_count as usize).ok_or_else(|| {
            let given = task.span_count;
            let what = format!("{given} are too many\ntry: at most {FER_TASK_SPANS}");
            CallFailure::argument("task->span_count", what)
        })?;
        let mut arguments = task
            .words
            .iter()
            .fold(TaskArgs::new(), |it, word| it.word(*word));
        if task.steps != 0 {
            arguments = arguments.steps(task.steps);
        }
        let mut sizes = Vec::with_capacity(spans.len());
        for (at, span) in spans.iter().enumerate() {
            let name = format!("task->spans[{at}].buffer");
            let id = known(&name, span.buffer)?;
            let found = self.buffers.iter().position(|(it, _)| *it == id);
            let Some(place) = found else {
                let what = format!(
                    "{id} is none of the {} buffers that the dispatcher was booted with\ntry: one of those",
                    self.buffers.len()
                );
                return Err(CallFailure::argument(&name, what));
            };
            sizes.push(self.buffers[place].1);
            // An end that overflows is beyond every buffer; the task reports that.
            let end = span.offset_bytes.checked_add(span.bytes);
            let bytes = match end {
                Some(end) => span.offset_bytes..end,
                None => u64::MAX..u64::MAX,
            };
            arguments = arguments.span(TaskBuffer(place as u32), bytes);
        }
        Ok((arguments, sizes))
    }
}

impl TaskTicket {
    fn failure(&self, error: &TaskError) -> CallFailure {
        let status = match error {
            TaskError::Cancelled => fer_status::FER_ERROR_CANCELLED,
            TaskError::Stopped => fer_status::FER_ERROR_ENDED,
            TaskError::TimedOut => fer_status::FER_ERROR_TIMEOUT,
            TaskError::Lost => fer_status::FER_ERROR_DISPATCHER_LOST,
            TaskError::Forked { .. } => fer_status::FER_ERROR_FORKED,
            TaskError::Device { .. } => fer_status::FER_ERROR_CONTEXT_LOST,
            _ => fer_status::FER_ERROR_TASK,
        };
        let Some(task) = self.task() else {
            let (number, most) = (self.task.task, StandardTask::ALL.len());
            let what = format!("there is no task {number}\ntry: 1 to {most} (fer_task_number)");
            return match error {
                TaskError::Unknown { .. } => CallFailure::new(status, what),
                error => CallFailure::new(status, format!("task {number}: {error}")),
            };
        };
        let why = match error {
            TaskError::Failed => format!("its spans do not fit\ntry: {}", task.asks()),
            TaskError::OutOfBounds => self.what_is_outside(task),
            error => error.to_string(),
        };
        CallFailure::new(status, format!("task {}: {why}", task.name()))
    }

    fn task(&self) -> Option<StandardTask> {
        let mut all = StandardTask::ALL.into_iter();
        all.find(|it| it.id() == TaskId(self.task.task.wrapping_sub(1)))
    }

    /// Describes which span was invalid.
    fn what_is_outside(&self, task: StandardTask) -> String {
        let spans = self.task.spans.iter().zip(&self.sizes);
        for (at, (span, size)) in spans.enumerate() {
            let (from, bytes) = (span.offset_bytes, span.bytes);
            let end = from.checked_add(bytes);
            if end.is_none_or(|end| end > *size) {
                return format!(
                    "span {at}: {bytes} bytes from {from} on are outside its buffer of {size}\ntry: a span inside it"
                );
            }
            if (from | bytes) % 4 != 0 {
                return format!(
                    "span {at}: {bytes} bytes from {from} on are not whole elements\ntry: multiples of 4"
                );
            }
        }
        let (given, wanted) = (self.sizes.len(), task.spans());
        format!("it has {given} of its {wanted} spans\ntry: all of them")
    }

    fn state(&self) -> fer_job_state {
        match self.job.poll() {
            None if self.job.has_begun() => fer_job_state::FER_JOB_RUNNING,
            None => fer_job_state::FER_JOB_WAITING,
            Some(Ok(_)) => fer_job_state::FER_JOB_DONE,
            Some(Err(TaskError::Cancelled)) => fer_job_state::FER_JOB_CANCELLED,
            Some(Err(_)) => fer_job_state::FER_JOB_FAILED,
        }
    }
}

fn limit(timeout_ns: u64) -> Duration {
    match timeout_ns {
        FER_WAIT_FOREVER => Duration::MAX,
        limit => Duration::from_nanos(limit),
    }
}

/// Returns a task's state: `state` is set to a fer_job_state. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_ticket_status(ticket: fer_ticket, state: *mut u32) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("state", state) }?;
        place.put(TICKETS.get("ticket", ticket)?.state() as u32);
        Ok(())
    })
}

/// Waits for a task, up to `timeout_ns` nanoseconds (FER_WAIT_FOREVER: until it is over). Returns
/// its result, the same for each call; or FER_ERROR_TIMEOUT, and the task goes on. `result` may be
/// NULL.
///
/// Short waits are the rule, so the first fraction of a millisecond is spent spinning. A waiting
/// thread also runs the watchdog: see `watchdog_ns`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_ticket_wait(
    ticket: fer_ticket,
    timeout_ns: u64,
    result: *mut fer_task_result,
) -> fer_status {
    catch_panics(|| {
        let place = match result.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::new("result", result) }?),
        };
        let ticket = TICKETS.get("ticket", ticket)?;
        let TaskDone { value, steps } = ticket
            .job
            .wait(limit(timeout_ns))
            .map_err(|error| ticket.failure(&error))?;
        if let Some(place) = place {
            let steps = steps.into();
            place.put(fer_task_result { value, steps });
        }
        Ok(())
    })
}

/// Requests a task's cancellation: one that was not begun will not be, a running one ends in the
/// middle. Its ticket reports the outcome.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_ticket_cancel(ticket: fer_ticket) -> fer_status {
    catch_panics(|| {
        TICKETS.get("ticket", ticket)?.job.cancel();
        Ok(())
    })
}

/// Frees a ticket. The task goes on.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_ticket_free(ticket: fer_ticket) -> fer_status {
    catch_panics(|| {
        TICKETS.remove("ticket", ticket)?;
        Ok(())
    })
}

/// Returns counters of a dispatcher. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_dispatcher_info(
    dispatcher: fer_dispatcher,
    details: *mut fer_dispatcher_details,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let running = DISPATCHERS.get("dispatcher", dispatcher)?;
        let stats = running.resident.stats();
        place.put(fer_dispatcher_details {
            submitted: stats.submitted,
            depth: stats.waiting,
            done: stats.done,
            lost: stats.dropped,
            buffers: running.buffers.len() as u64,
            capacity: running.options.capacity,
            priorities: running.options.priorities,
            is_stopped: u32::from(stats.is_stopped),
            is_lost: u32::from(stats.is_lost),
        });
        Ok(())
    })
}

/// Refuses new tasks, lets the kernel run the submitted ones, and waits until it has exited, up to
/// `timeout_ns` nanoseconds (FER_WAIT_FOREVER: as long as it takes). FER_ERROR_TIMEOUT if it has
/// not: it goes on, and this may be called again. Its buffers are released then; its tickets
/// remain.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_dispatcher_stop(dispatcher: fer_dispatcher, timeout_ns: u64) -> fer_status {
    catch_panics(|| {
        let running = DISPATCHERS.get("dispatcher", dispatcher)?;
        Ok(running.resident.stop(limit(timeout_ns))?)
    })
}

/// Ends a dispatcher, its handle and its tickets. If it was not stopped before, the kernel exits
/// after the running task, and the others are dropped.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_dispatcher_free(dispatcher: fer_dispatcher) -> fer_status {
    catch_panics(|| {
        let running = DISPATCHERS.remove("dispatcher", dispatcher)?;
        let tickets = TICKETS.take(|ticket| ticket.dispatcher == dispatcher);
        // Also if another thread is just submitting: that gets an error.
        running.resident.abandon()?;
        drop(tickets);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::super::types::fer_task_number;
    use super::*;

    #[test]
    fn tasks_have_the_numbers_of_the_set() {
        use fer_task_number::*;
        let numbers = [
            (FER_TASK_FILL, StandardTask::Fill),
            (FER_TASK_COPY, StandardTask::Copy),
            (FER_TASK_AXPY_F32, StandardTask::AxpyF32),
            (FER_TASK_SUM_U32, StandardTask::SumU32),
            (FER_TASK_SUM_F32, StandardTask::SumF32),
        ];
        assert_eq!(numbers.len(), StandardTask::ALL.len());
        for (number, task) in numbers {
            assert_eq!(number as u32 - 1, task.id().0);
            let name = format!("FER_TASK_{}", task.name().to_uppercase());
            assert_eq!(name, format!("{number:?}"));
        }
        assert_eq!(FER_TASK_SPANS, fercuda_runtime::TASK_SPANS);
        assert_eq!(
            super::super::types::FER_TASK_WORDS,
            fercuda_runtime::TASK_WORDS
        );
    }
}
