//! Asynchronous jobs.
//!
//! Invariants: a job's result is the same for every thread and every call. A download's target is
//! written under the job's lock, while a thread of the caller waits for it, and never once the job
//! is freed.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fercuda_runtime::{Error, Job, Status};

use super::buffers::check_len;
use super::types::{FER_WAIT_FOREVER, fer_buffer, fer_job, fer_job_state, fer_session};
use crate::handles::{Handles, OpenSession, SESSIONS, buffer as known};
use crate::pointers::{OutArray, OutPointer, list};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Host work: called once with its `context` and the session's stream, a CUstream, in which it may
/// queue work with the driver's functions; it calls no function of this library and does not
/// unwind. A result other than 0 is a failure, reported by the job.
pub type fer_host_work =
    Option<unsafe extern "C" fn(context: *mut c_void, stream: *mut c_void) -> c_int>;

/// A job of the C interface.
pub(crate) struct PendingJob {
    pub(crate) session: u64,
    job: Job<Vec<u8>>,
    /// Return value of the host work.
    answer: Arc<AtomicI32>,
    state: Mutex<JobOutcome>,
    changed: Condvar,
}

pub(crate) static JOBS: Handles<PendingJob> = Handles::new(2);

struct JobOutcome {
    into: Option<DownloadTarget>,
    /// The result, once a thread has waited for it.
    outcome: Option<Result<()>>,
}

/// Target of a download.
struct DownloadTarget(NonNull<u8>);

// SAFETY: it is dereferenced under the job's lock, in a thread of the caller, which has promised
// that it is valid until the job is freed.
unsafe impl Send for DownloadTarget {}

impl PendingJob {
    fn of(session: u64, job: Job<Vec<u8>>) -> Self {
        Self {
            session,
            job,
            answer: Arc::default(),
            state: Mutex::new(JobOutcome {
                into: None,
                outcome: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobOutcome> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops writing to the target.
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
            // Another thread has taken the result, and is about to publish it.
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
        into: &mut Option<DownloadTarget>,
    ) -> Result<()> {
        let bytes = ended?;
        match self.answer.load(Relaxed) {
            0 => {}
            answer => {
                return Err(CallFailure::new(
                    fer_status::FER_ERROR_HOST_WORK,
                    format!(
                        "job {} failed: its host work returned {answer}\ntry: to look up that value in the host work",
                        self.job.number()
                    ),
                ));
            }
        }
        if let Some(DownloadTarget(begin)) = into.take() {
            // SAFETY: there is room for the buffer's bytes, which were counted when the job was
            // created, until it is freed, which needs the lock that is held.
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
    place: OutPointer<fer_job>,
    work: impl FnOnce(&OpenSession) -> Result<PendingJob>,
) -> Result<()> {
    let open = SESSIONS.get("session", session)?;
    let pending = work(&open)?;
    place.put(JOBS.insert_of(&SESSIONS, session, pending)?);
    Ok(())
}

/// As fer_upload_bytes, as a job. The bytes are copied before this returns. The job is freed by
/// fer_job_free, or with its session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_upload_async(
    session: fer_session,
    buffer: fer_buffer,
    bytes: *const c_void,
    len_bytes: u64,
    job: *mut fer_job,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (bytes, place) = unsafe {
            (
                list("bytes", bytes.cast::<u8>(), len_bytes)?,
                OutPointer::new("job", job)?,
            )
        };
        let id = known("buffer", buffer)?;
        submit(session, place, |open| {
            let job = open.session.upload_async(id, bytes.to_vec())?;
            Ok(PendingJob::of(session, job))
        })
    })
}

/// As fer_download_bytes, as a job. The bytes are written to `into` during a successful
/// fer_job_wait for the job, and at no other time; so `into` must be valid until that or
/// fer_job_free has returned.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_download_async(
    session: fer_session,
    buffer: fer_buffer,
    into: *mut c_void,
    len_bytes: u64,
    job: *mut fer_job,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise. The room's beginning is kept with the job, for as long as
        // the caller has promised that it is valid.
        let (room, place) = unsafe {
            (
                OutArray::new("into", into.cast::<u8>(), len_bytes)?,
                OutPointer::new("job", job)?,
            )
        };
        let id = known("buffer", buffer)?;
        submit(session, place, |open| {
            check_len(&open.session, id, len_bytes)?;
            let pending = PendingJob::of(session, open.session.download_async(id)?);
            pending.lock().into = room.begin().map(DownloadTarget);
            Ok(pending)
        })
    })
}

/// Submits a job that is done when all earlier work of the session is: to wait for launches and
/// copies with a time limit.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_submit_fence(session: fer_session, job: *mut fer_job) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("job", job) }?;
        submit(session, place, |open| {
            let job = open.session.submit(|_| Ok(Vec::new()))?;
            Ok(PendingJob::of(session, job))
        })
    })
}

/// Submits host work to the session: `work` is called in a thread of the library, in the order of
/// the session's work, and the job is done when everything that it has queued is. `context` must
/// live until then.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_submit_host_work(
    session: fer_session,
    work: fer_host_work,
    context: *mut c_void,
    job: *mut fer_job,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("job", job) }?;
        let Some(work) = work else {
            return Err(CallFailure::argument("work", "it is NULL\ntry: a function"));
        };
        let context = HostWorkContext(context);
        submit(session, place, |open| {
            let answer = Arc::new(AtomicI32::new(0));
            let into = answer.clone();
            let job = open.session.submit(move |stream| {
                let context = context;
                // SAFETY: the caller's function with its context, once; the stream is alive during
                // the call.
                let answer = unsafe { work(context.0, stream.raw().0.cast()) };
                into.store(answer, Relaxed);
                Ok(Vec::new())
            })?;
            Ok(PendingJob {
                answer,
                ..PendingJob::of(session, job)
            })
        })
    })
}

/// Context of host work.
struct HostWorkContext(*mut c_void);

// SAFETY: it is passed only to its host work, which is called in a thread of the library, by its
// contract.
unsafe impl Send for HostWorkContext {}

/// Returns a job's state: `state` is set to a fer_job_state. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_job_status(job: fer_job, state: *mut u32) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("state", state) }?;
        place.put(JOBS.get("job", job)?.status() as u32);
        Ok(())
    })
}

/// Waits for a job, up to `timeout_ns` nanoseconds (FER_WAIT_FOREVER: until it is over). Returns
/// its result, the same for each call; or FER_ERROR_TIMEOUT, and the job goes on.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_job_wait(job: fer_job, timeout_ns: u64) -> fer_status {
    catch_panics(|| JOBS.get("job", job)?.wait(timeout_ns))
}

/// Cancels a job unless it was submitted to the device. `was_cancelled` is set to 1 if it is
/// cancelled, else 0; it may be NULL.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_job_cancel(job: fer_job, was_cancelled: *mut u32) -> fer_status {
    catch_panics(|| {
        let place = match was_cancelled.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::new("was_cancelled", was_cancelled) }?),
        };
        let was_cancelled = JOBS.get("job", job)?.job.cancel();
        if let Some(place) = place {
            place.put(u32::from(was_cancelled));
        }
        Ok(())
    })
}

/// Frees a job's handle. The work goes on; the data of a download are dropped.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_job_free(job: fer_job) -> fer_status {
    catch_panics(|| {
        JOBS.remove("job", job)?.forget();
        Ok(())
    })
}
