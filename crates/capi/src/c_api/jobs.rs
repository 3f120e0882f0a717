//! Work that nobody waits for yet.
//!
//! Invariants: what a job came to is the same however often and by how many threads it
//! is asked. A download's target is written under the job's lock, while one of the
//! caller's threads waits for it, and never once the job is forgotten.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fercuda_runtime::{Error, Job, Status};

use super::buffers::check_len;
use super::types::{FER_WAIT_FOREVER, fer_buffer, fer_job, fer_job_state, fer_session};
use crate::handles::{JOBS, Open, SESSIONS, buffer as known};
use crate::pointers::{Place, Room, list};
use crate::status::{Failure, Result, fer_status, guarded};

/// Host work: called once with the `context` that came with it and the session's
/// stream, a CUstream, in which it may queue what it likes with the driver's functions;
/// it calls none of this library and does not unwind. What is not 0 is a failure, and
/// the job's.
pub type fer_host_work =
    Option<unsafe extern "C" fn(context: *mut c_void, stream: *mut c_void) -> c_int>;

/// A job as C holds it.
pub(crate) struct Pending {
    pub(crate) session: u64,
    job: Job<Vec<u8>>,
    /// What host work answered.
    answer: Arc<AtomicI32>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    into: Option<Target>,
    /// What it came to, once somebody has waited for it.
    outcome: Option<Result<()>>,
}

/// Where a download goes.
struct Target(NonNull<u8>);

// SAFETY: it is followed under the job's lock, in a thread of the caller's, who has
// promised that it is there until the job is forgotten.
unsafe impl Send for Target {}

impl Pending {
    fn of(session: u64, job: Job<Vec<u8>>) -> Self {
        Self {
            session,
            job,
            answer: Arc::default(),
            state: Mutex::new(State {
                into: None,
                outcome: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing is written to where it was to go.
    pub(crate) fn forget(&self) {
        self.lock().into = None;
    }

    fn wait(&self, timeout_ns: u64) -> Result<()> {
        if let Some(outcome) = &self.lock().outcome {
            return outcome.clone();
        }
        let ended = match timeout_ns {
            FER_WAIT_FOREVER => self.job.wait(),
            limit => self.job.wait_for(Duration::from_nanos(limit)),
        };
        let mut state = self.lock();
        match ended {
            Err(error @ Error::Timeout { .. }) => return Err(error.into()),
            // Another thread has it, and is about to say so.
            Err(Error::Taken { .. }) => {}
            ended => {
                state.outcome = Some(self.outcome(ended, &mut state.into));
                self.changed.notify_all();
            }
        }
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            let changed = self.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn outcome(
        &self,
        ended: fercuda_runtime::Result<Vec<u8>>,
        into: &mut Option<Target>,
    ) -> Result<()> {
        let bytes = ended?;
        match self.answer.load(Relaxed) {
            0 => {}
            answer => {
                return Err(Failure::new(
                    fer_status::FER_ERROR_HOST_WORK,
                    format!(
                        "job {} failed: its work on the host answered {answer}\ntry: what that means there",
                        self.job.number()
                    ),
                ));
            }
        }
        if let Some(Target(begin)) = into.take() {
            // SAFETY: there is room for the buffer's bytes, which were counted when the
            // job was made, until it is forgotten, which needs the lock that is held.
            unsafe {
                begin
                    .as_ptr()
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
        Ok(())
    }

    fn status(&self) -> fer_job_state {
        match self.job.status() {
            Status::Waiting => fer_job_state::FER_JOB_WAITING,
            Status::Running => fer_job_state::FER_JOB_RUNNING,
            Status::Done if self.answer.load(Relaxed) == 0 => fer_job_state::FER_JOB_DONE,
            Status::Done | Status::Failed => fer_job_state::FER_JOB_FAILED,
            Status::Cancelled => fer_job_state::FER_JOB_CANCELLED,
        }
    }
}

/// Submits work to a session.
fn submit(
    session: fer_session,
    place: Place<fer_job>,
    work: impl FnOnce(&Open) -> Result<Pending>,
) -> Result<()> {
    let open = SESSIONS.get("session", session)?;
    let pending = work(&open)?;
    place.put(JOBS.insert_of(&SESSIONS, session, pending)?);
    Ok(())
}

/// Queues what fer_upload_bytes does. The bytes are copied, and the caller's again when
/// this returns. The job is freed by fer_job_free, or with its session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_upload_async(
    session: fer_session,
    buffer: fer_buffer,
    bytes: *const c_void,
    len_bytes: u64,
    job: *mut fer_job,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (bytes, place) = unsafe {
            (
                list("bytes", bytes.cast::<u8>(), len_bytes)?,
                Place::new("job", job)?,
            )
        };
        let id = known("buffer", buffer)?;
        submit(session, place, |open| {
            let job = open.session.upload_async(id, bytes.to_vec())?;
            Ok(Pending::of(session, job))
        })
    })
}

/// Queues what fer_download_bytes does. The bytes are written to `into` while
/// fer_job_wait waits for the job with success, and at no other time; so `into` is there
/// until that or fer_job_free has returned.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_download_async(
    session: fer_session,
    buffer: fer_buffer,
    into: *mut c_void,
    len_bytes: u64,
    job: *mut fer_job,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise. What the room begins with is kept with the job,
        // as long as the caller has promised that it is there.
        let (room, place) = unsafe {
            (
                Room::new("into", into.cast::<u8>(), len_bytes)?,
                Place::new("job", job)?,
            )
        };
        let id = known("buffer", buffer)?;
        submit(session, place, |open| {
            check_len(&open.session, id, len_bytes)?;
            let pending = Pending::of(session, open.session.download_async(id)?);
            pending.lock().into = room.begin().map(Target);
            Ok(pending)
        })
    })
}

/// A job that is done when all that the session was given before it is: to wait for
/// launches and copies with a time limit.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_submit_fence(session: fer_session, job: *mut fer_job) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("job", job) }?;
        submit(session, place, |open| {
            let job = open.session.submit(|_| Ok(Vec::new()))?;
            Ok(Pending::of(session, job))
        })
    })
}

/// Gives host work to the session: `work` is called in a thread of the library's, in the
/// order of what the session was given, and the job is done when all that it has queued
/// is. `context` is there until then.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_submit_host_work(
    session: fer_session,
    work: fer_host_work,
    context: *mut c_void,
    job: *mut fer_job,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("job", job) }?;
        let Some(work) = work else {
            return Err(Failure::argument("work", "it is NULL\ntry: a function"));
        };
        let context = Context(context);
        submit(session, place, |open| {
            let answer = Arc::new(AtomicI32::new(0));
            let into = answer.clone();
            let job = open.session.submit(move |stream| {
                let context = context;
                // SAFETY: the caller's function, with what came with it, once; the
                // stream is there meanwhile.
                let answer = unsafe { work(context.0, stream.raw().0.cast()) };
                into.store(answer, Relaxed);
                Ok(Vec::new())
            })?;
            Ok(Pending {
                answer,
                ..Pending::of(session, job)
            })
        })
    })
}

/// What comes with host work.
struct Context(*mut c_void);

// SAFETY: it is only handed to the work that it came with, which is called in a thread
// of the library's, as its type says.
unsafe impl Send for Context {}

/// How far a job is: `state` gets a fer_job_state. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_job_status(job: fer_job, state: *mut u32) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("state", state) }?;
        place.put(JOBS.get("job", job)?.status() as u32);
        Ok(())
    })
}

/// Waits for a job, for `timeout_ns` nanoseconds at most (FER_WAIT_FOREVER: until it is
/// over). Answers with what it came to, the same however often it is asked; or with
/// FER_ERROR_TIMEOUT, and it goes on.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_job_wait(job: fer_job, timeout_ns: u64) -> fer_status {
    guarded(|| JOBS.get("job", job)?.wait(timeout_ns))
}

/// Cancels a job, unless the device has it. `was_cancelled` gets 1 if it is cancelled,
/// else 0; it may be NULL.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_job_cancel(job: fer_job, was_cancelled: *mut u32) -> fer_status {
    guarded(|| {
        let place = match was_cancelled.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Place::new("was_cancelled", was_cancelled) }?),
        };
        let was_cancelled = JOBS.get("job", job)?.job.cancel();
        if let Some(place) = place {
            place.put(u32::from(was_cancelled));
        }
        Ok(())
    })
}

/// Ends a job's handle. The work goes on; what it downloads goes nowhere.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_job_free(job: fer_job) -> fer_status {
    guarded(|| {
        JOBS.remove("job", job)?.forget();
        Ok(())
    })
}
