//! Asynchronous jobs of a session.
//!
//! The first job of a session starts its submission thread, which takes jobs in order, lets each
//! queue its work in the session's stream, and is notified by the device when that is done. At
//! most a window of them is in flight on the device; the others wait on the host, and can be
//! cancelled there.
//!
//! Invariants: jobs complete in the order of their submission, each once, whatever happens to the
//! device. A failure from which the context does not recover is the failure of the first
//! incomplete job; the later ones report that they did not run.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fercuda_cuda::Stream;
use fercuda_dispatcher::TeardownScope;

use crate::error::{Error, Result};
use crate::lock::lock;

/// Maximum number of jobs of a session in flight on the device.
const WINDOW: usize = 64;
/// Interval at which a submission thread checks for failure of the device while it waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Number of the next submission thread.
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Number of the submission thread that the calling thread is; 0 if it is none.
    static CURRENT_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Waiting on the host.
    Waiting,
    /// Submitted to the device.
    Running,
    /// Complete, successfully.
    Done,
    /// Failed, or not run because an earlier one failed.
    Failed,
    /// Cancelled.
    Cancelled,
}

/// A job and its future result: wait for it, poll it, await it, or drop it.
#[derive(Debug)]
pub struct Job<T> {
    number: u64,
    /// Number of its submission thread.
    submission: u64,
    shared: Arc<JobShared<T>>,
}

#[derive(Debug)]
struct JobShared<T> {
    state: Mutex<JobState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct JobState<T> {
    status: Status,
    /// The result, until it is taken.
    outcome: Option<Result<T>>,
    waker: Option<Waker>,
}

impl<T> JobShared<T> {
    /// Completes the job, unless it is over.
    fn end(&self, outcome: Result<T>) {
        self.end_if(|status| !is_over(status), outcome);
    }

    fn end_if(&self, may: impl FnOnce(Status) -> bool, outcome: Result<T>) {
        let mut state = lock(&self.state);
        if !may(state.status) {
            return;
        }
        state.status = match &outcome {
            Ok(_) => Status::Done,
            Err(Error::Cancelled { .. }) => Status::Cancelled,
            Err(_) => Status::Failed,
        };
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn take(&self, number: u64) -> Result<T> {
        let outcome = lock(&self.state).outcome.take();
        outcome.unwrap_or(Err(Error::Taken { job: number }))
    }
}

fn is_over(status: Status) -> bool {
    !matches!(status, Status::Waiting | Status::Running)
}

impl<T> Job<T> {
    /// The job's number in its session, from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// State of the job. Never waits.
    pub fn status(&self) -> Status {
        lock(&self.shared.state).status
    }

    /// Waits for the job, and takes its result.
    ///
    /// # Errors
    /// The job's error; [`Error::Cancelled`]; [`Error::Taken`]; [`Error::WithinJob`] in a job of
    /// the same session, which would be a deadlock.
    pub fn wait(&self) -> Result<T> {
        self.check_place()?;
        let mut state = lock(&self.shared.state);
        while !is_over(state.status) {
            let changed = self.shared.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.shared.take(self.number)
    }

    /// Waits for the job, up to `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`], and the job goes on; else as for [`Job::wait`].
    pub fn wait_for(&self, limit: Duration) -> Result<T> {
        self.check_place()?;
        let begun = Instant::now();
        let mut state = lock(&self.shared.state);
        while !is_over(state.status) {
            let waited = begun.elapsed();
            let Some(left) = limit.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(Error::Timeout {
                    what: format!("job {}", self.number),
                    waited,
                });
            };
            let changed = self.shared.changed.wait_timeout(state, left);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.shared.take(self.number)
    }

    /// Refuses to wait on the thread that has to run the job.
    fn check_place(&self) -> Result<()> {
        let waits = is_over(self.status()) || CURRENT_THREAD.with(Cell::get) != self.submission;
        match waits {
            true => Ok(()),
            false => Err(Error::WithinJob { job: self.number }),
        }
    }

    /// Cancels the job unless it was submitted to the device; returns whether it is cancelled.
    pub fn cancel(&self) -> bool {
        let job = self.number;
        // The submission thread skips a job that is over.
        let was = |status| status == Status::Waiting;
        self.shared.end_if(was, Err(Error::Cancelled { job }));
        self.status() == Status::Cancelled
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Result<T>> {
        let mut state = lock(&self.shared.state);
        if is_over(state.status) {
            drop(state);
            return Poll::Ready(self.shared.take(self.number));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A job as the submission thread sees it.
trait QueuedJob: Send {
    fn number(&self) -> u64;
    /// Marks the job as submitted; returns false if it is over already.
    fn begin(&mut self) -> bool;
    /// Queues the job's work.
    fn queue(&mut self, stream: &Stream) -> Result<()>;
    /// Completes the job: its work is done, or has failed.
    fn end(&mut self, done: Result<()>);
}

/// A dropped job completes too.
impl<W, R, F, G> Drop for JobWork<W, R, F, G> {
    fn drop(&mut self) {
        let job = self.number;
        self.shared.end(Err(Error::GivenUp { job }));
        self.open.fetch_sub(1, AcqRel);
    }
}

struct JobWork<W, R, F, G> {
    number: u64,
    work: Option<F>,
    between: Option<W>,
    finish: Option<G>,
    shared: Arc<JobShared<R>>,
    /// Counter of open jobs of its submission thread.
    open: Arc<AtomicUsize>,
}

impl<W, R, F, G> QueuedJob for JobWork<W, R, F, G>
where
    W: Send,
    R: Send,
    F: FnOnce(&Stream) -> Result<W> + Send,
    G: FnOnce(W) -> Result<R> + Send,
{
    fn number(&self) -> u64 {
        self.number
    }

    fn begin(&mut self) -> bool {
        let mut state = lock(&self.shared.state);
        if state.status == Status::Waiting {
            state.status = Status::Running;
        }
        state.status == Status::Running
    }

    fn queue(&mut self, stream: &Stream) -> Result<()> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        self.between = Some(catch_job_panic(self.number, || work(stream))?);
        Ok(())
    }

    fn end(&mut self, done: Result<()>) {
        let (between, finish) = (self.between.take(), self.finish.take());
        let outcome = match (done, between, finish) {
            (Ok(()), Some(between), Some(finish)) => {
                catch_job_panic(self.number, || finish(between))
            }
            // A destructor of the intermediate value may panic as well.
            (Err(error), between, _) => catch_job_panic(self.number, || {
                drop(between);
                Err(error)
            }),
            _ => Err(Error::GivenUp { job: self.number }),
        };
        self.shared.end(outcome);
    }
}

/// Turns a panic of user code into a failure of the job.
fn catch_job_panic<R>(job: u64, work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic_message(panic.as_ref());
        Err(Error::Panicked { job, message })
    })
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a payload that is not a string".to_owned())
}

enum SubmissionMessage {
    Job(Box<dyn QueuedJob>),
    /// The device has completed the first notifying job in flight.
    Done,
    /// No more jobs will come.
    End,
}

/// Handle of a session's submission thread.
#[derive(Debug)]
pub(crate) struct SubmissionThread {
    number: u64,
    sender: Sender<SubmissionMessage>,
    /// Jobs that wait on the host.
    backlog: Arc<AtomicUsize>,
    /// Jobs that are not complete.
    open: Arc<AtomicUsize>,
    next: AtomicU64,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
}

impl SubmissionThread {
    pub(crate) fn begin(stream: &Stream) -> Result<Arc<Self>> {
        let (sender, receiver) = channel();
        let backlog = Arc::new(AtomicUsize::new(0));
        let number = NEXT_THREAD.fetch_add(1, AcqRel);
        let state = SubmissionLoop {
            stream: stream.clone(),
            sender: sender.clone(),
            receiver,
            backlog: backlog.clone(),
            waiting: VecDeque::new(),
            running: VecDeque::new(),
            last_poll: Instant::now(),
            failed: Ok(()),
            lost: None,
            is_ending: false,
        };
        let named = std::thread::Builder::new().name("fercuda jobs".to_owned());
        let thread = named.spawn(move || {
            CURRENT_THREAD.with(|here| here.set(number));
            // A teardown waits for jobs, so no job waits for a teardown, nor do values of jobs
            // that are dropped with the loop.
            let _scope = TeardownScope::enter();
            let mut state = state;
            state.work()
        });
        let thread = thread.map_err(|error| Error::NoThread {
            why: error.to_string(),
        })?;
        Ok(Arc::new(Self {
            number,
            sender,
            backlog,
            open: Arc::default(),
            next: AtomicU64::new(1),
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Whether the calling thread is this submission thread.
    pub(crate) fn is_here(&self) -> bool {
        CURRENT_THREAD.with(Cell::get) == self.number
    }

    /// Whether no job waits on the host.
    pub(crate) fn has_no_backlog(&self) -> bool {
        self.backlog.load(Acquire) == 0
    }

    /// Whether every job is complete, and its result published.
    pub(crate) fn has_ended_all(&self) -> bool {
        self.open.load(Acquire) == 0
    }

    pub(crate) fn submit<W: Send + 'static, R: Send + 'static>(
        &self,
        work: impl FnOnce(&Stream) -> Result<W> + Send + 'static,
        finish: impl FnOnce(W) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        let number = self.next.fetch_add(1, AcqRel);
        let shared = Arc::new(JobShared {
            state: Mutex::new(JobState {
                status: Status::Waiting,
                outcome: None,
                waker: None,
            }),
            changed: Condvar::new(),
        });
        self.open.fetch_add(1, AcqRel);
        let task = Box::new(JobWork {
            number,
            work: Some(work),
            between: None,
            finish: Some(finish),
            shared: shared.clone(),
            open: self.open.clone(),
        });
        self.backlog.fetch_add(1, AcqRel);
        if self.sender.send(SubmissionMessage::Job(task)).is_err() {
            // The message was dropped, and the job with it, which has completed it.
            self.backlog.fetch_sub(1, AcqRel);
        }
        Ok(Job {
            number,
            submission: self.number,
            shared,
        })
    }

    /// Waits for all jobs; returns the first error of any. Must not be called by a job.
    pub(crate) fn finish(&self) -> Result<()> {
        // The send fails only if the thread has exited.
        drop(self.sender.send(SubmissionMessage::End));
        let thread = lock(&self.thread).take();
        thread.map_or(Ok(()), |thread| {
            thread.join().unwrap_or(Err(Error::GivenUp { job: 0 }))
        })
    }
}

impl Drop for SubmissionThread {
    /// The thread exits behind its jobs.
    fn drop(&mut self) {
        drop(self.sender.send(SubmissionMessage::End));
    }
}

/// A job in flight on the device, in the device's order.
struct InFlightJob {
    task: Box<dyn QueuedJob>,
    /// Its failure on the host, reported once the earlier jobs are done.
    failed: Option<Error>,
    /// Whether the device will notify of its completion. If not, queueing the notification failed.
    is_notified: bool,
}

/// State of the submission thread.
struct SubmissionLoop {
    stream: Stream,
    sender: Sender<SubmissionMessage>,
    receiver: Receiver<SubmissionMessage>,
    backlog: Arc<AtomicUsize>,
    waiting: VecDeque<Box<dyn QueuedJob>>,
    running: VecDeque<InFlightJob>,
    /// When the device was last seen not to have failed.
    last_poll: Instant,
    /// The first failure of any job.
    failed: Result<()>,
    /// The job with which the context failed, and its error: no later job runs.
    lost: Option<(u64, Error)>,
    /// Whether no more jobs will come.
    is_ending: bool,
}

/// Runs code that contains user code, and catches its panic.
fn contain_panic(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        // A payload's destructor may panic too.
        std::mem::forget(panic);
    }
}

impl SubmissionLoop {
    fn work(&mut self) -> Result<()> {
        loop {
            while self.running.len() < WINDOW
                && let Some(task) = self.waiting.pop_front()
            {
                self.start(task);
                self.backlog.fetch_sub(1, AcqRel);
            }
            let is_empty = self.waiting.is_empty() && self.running.is_empty();
            if self.is_ending && is_empty {
                return std::mem::replace(&mut self.failed, Ok(()));
            }
            let message = match self.running.is_empty() {
                // `self` has a sender, so the channel never disconnects.
                true => self.receiver.recv().map_err(RecvTimeoutError::from),
                false => self.receiver.recv_timeout(POLL_INTERVAL),
            };
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Disconnected) => self.is_ending = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !self.running.is_empty() && self.last_poll.elapsed() >= POLL_INTERVAL {
                self.poll_device();
            }
        }
    }

    fn take(&mut self, message: SubmissionMessage) {
        match message {
            SubmissionMessage::Job(task) => self.waiting.push_back(task),
            SubmissionMessage::Done => {
                // The earlier jobs that cannot notify are complete as well.
                self.end_unnotified();
                if let Some(InFlightJob { task, failed, .. }) = self.running.pop_front() {
                    self.end(task, failed.map_or(Ok(()), Err));
                }
            }
            SubmissionMessage::End => self.is_ending = true,
        }
    }

    /// Completes the jobs at the front that cannot notify, as the device has done them.
    fn end_unnotified(&mut self) {
        while self.running.front().is_some_and(|first| !first.is_notified)
            && let Some(first) = self.running.pop_front()
        {
            self.end(first.task, first.failed.map_or(Ok(()), Err));
        }
    }

    fn end(&mut self, mut task: Box<dyn QueuedJob>, outcome: Result<()>) {
        if let (Err(error), Ok(())) = (&outcome, &self.failed) {
            self.failed = Err(error.clone());
        }
        contain_panic(move || {
            task.end(outcome);
            drop(task);
        });
    }

    fn start(&mut self, mut task: Box<dyn QueuedJob>) {
        if !task.begin() {
            contain_panic(move || drop(task));
            return;
        }
        if self.lost.is_some() {
            return self.end_not_run(task);
        }
        let failed = task.queue(&self.stream).err();
        let sender = self.sender.clone();
        // The receiver is gone once the session has ended.
        let notification = self
            .stream
            .host_callback(move || drop(sender.send(SubmissionMessage::Done)));
        let is_notified = notification.is_ok();
        self.running.push_back(InFlightJob {
            task,
            failed: failed.or(notification.err().map(Error::from)),
            is_notified,
        });
        if !is_notified {
            // If the context has failed, the order decides which job is blamed.
            self.poll_device();
        }
    }

    fn end_not_run(&mut self, task: Box<dyn QueuedJob>) {
        let job = task.number();
        if let Some((by, source)) = self.lost.clone() {
            let source = Box::new(source);
            self.end(task, Err(Error::NotRun { job, by, source }));
        }
    }

    /// Polls the device: whether it has failed, and will notify of nothing in flight any more; and
    /// whether it has done the jobs that cannot notify. A failure on the host belongs to that job
    /// alone, whatever its cause.
    fn poll_device(&mut self) {
        self.last_poll = Instant::now();
        let failed = match self.stream.is_idle() {
            Ok(false) => return,
            // A captured stream was idle when the capture began, and executes nothing.
            Ok(true) | Err(fercuda_cuda::Error::Capturing { .. }) => None,
            // The driver refused the query.
            Err(error) if error.is_refusal() => return,
            Err(error) => Some(Error::from(error)),
        };
        // Notifications that have arrived by now are of completed jobs.
        let notifications: Vec<SubmissionMessage> = self.receiver.try_iter().collect();
        notifications.into_iter().for_each(|it| self.take(it));
        let Some(error) = failed else {
            return self.end_unnotified();
        };
        for InFlightJob { task, failed, .. } in std::mem::take(&mut self.running) {
            match &self.lost {
                Some(_) => self.end_not_run(task),
                None => {
                    self.lost = Some((task.number(), error.clone()));
                    self.end(task, Err(failed.unwrap_or_else(|| error.clone())));
                }
            }
        }
    }
}
