//! Work that its giver does not wait for.
//!
//! A session that was given a job has a clerk: one thread, which takes jobs in their
//! order, lets each queue its work in the session's stream, and hears from the device
//! when that is done. No more than a window of them are on the device; the others wait
//! on the host, and can be cancelled there.
//!
//! Invariants: jobs end in the order in which they were given, each once, whatever
//! becomes of the device. What fails in a way from which the context does not recover
//! is the failure of the first job that was not done; those behind it say so.

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

use crate::error::{Error, Result};
use crate::machine::lock;
use crate::session::Core;

/// So many jobs of a session are on the device at most.
const WINDOW: usize = 64;
/// How often a clerk looks whether the device has failed, while it waits for it.
const LOOK: Duration = Duration::from_millis(10);

/// So many clerks there were.
static CLERKS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of the clerk that the calling thread is; 0 if it is none.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// Whether the calling thread is a session's clerk.
pub(crate) fn is_clerk() -> bool {
    HERE.with(Cell::get) != 0
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It waits on the host.
    Waiting,
    /// The device has it.
    Running,
    /// It is done, and went well.
    Done,
    /// It failed, or did not run because one before it has.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// A job, and what it will have: to be waited for, polled, awaited or forgotten.
#[derive(Debug)]
pub struct Job<T> {
    number: u64,
    /// The number of its clerk.
    clerk: u64,
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    status: Status,
    /// What it has come to, until that is taken.
    outcome: Option<Result<T>>,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    /// Ends it, unless it is over.
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
    /// Its number in its session, from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How far it is. Never waits.
    pub fn status(&self) -> Status {
        lock(&self.shared.state).status
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What it failed with; [`Error::Cancelled`]; [`Error::Taken`];
    /// [`Error::WithinJob`] in a job of the same session, which would wait for ever.
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

    /// Waits for it, for so long at most.
    ///
    /// # Errors
    /// [`Error::Timeout`], and it goes on; else as for [`Job::wait`].
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

    /// A job that is not over cannot be waited for by the thread that has to do it.
    fn check_place(&self) -> Result<()> {
        let waits = is_over(self.status()) || HERE.with(Cell::get) != self.clerk;
        match waits {
            true => Ok(()),
            false => Err(Error::WithinJob { job: self.number }),
        }
    }

    /// Cancels it, unless the device has it; whether it was cancelled.
    pub fn cancel(&self) -> bool {
        let job = self.number;
        // The clerk finds that it is over.
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

/// A job as the clerk sees it.
trait Task: Send {
    fn number(&self) -> u64;
    /// From now on the device has it; false if it is over already.
    fn begin(&mut self) -> bool;
    /// Has it queue its work.
    fn queue(&mut self, stream: &Stream) -> Result<()>;
    /// Its work is done, or has failed.
    fn end(&mut self, done: Result<()>);
}

/// A job that is given up ends all the same.
impl<W, R, F, G> Drop for Work<W, R, F, G> {
    fn drop(&mut self) {
        let job = self.number;
        self.shared.end(Err(Error::GivenUp { job }));
        self.open.fetch_sub(1, AcqRel);
    }
}

struct Work<W, R, F, G> {
    number: u64,
    work: Option<F>,
    between: Option<W>,
    finish: Option<G>,
    shared: Arc<Shared<R>>,
    /// Its clerk's count.
    open: Arc<AtomicUsize>,
}

impl<W, R, F, G> Task for Work<W, R, F, G>
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
        self.between = Some(unpanicked(self.number, || work(stream))?);
        Ok(())
    }

    fn end(&mut self, done: Result<()>) {
        let (between, finish) = (self.between.take(), self.finish.take());
        let outcome = match (done, between, finish) {
            (Ok(()), Some(between), Some(finish)) => unpanicked(self.number, || finish(between)),
            // What it holds may say that it failed as well.
            (Err(error), between, _) => unpanicked(self.number, || {
                drop(between);
                Err(error)
            }),
            _ => Err(Error::GivenUp { job: self.number }),
        };
        self.shared.end(outcome);
    }
}

/// A panic of the giver's is a failure of the job.
fn unpanicked<R>(job: u64, work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = said(panic.as_ref());
        Err(Error::Panicked { job, message })
    })
}

pub(crate) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "something that is no text".to_owned())
}

enum Message {
    Task(Box<dyn Task>),
    /// The device has done the first of those that it has.
    Done,
    /// There will be no more.
    End,
}

/// A session's clerk.
#[derive(Debug)]
pub(crate) struct Clerk {
    number: u64,
    sender: Sender<Message>,
    /// Jobs that wait on the host.
    backlog: Arc<AtomicUsize>,
    /// Jobs that are not over.
    open: Arc<AtomicUsize>,
    next: AtomicU64,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
}

impl Clerk {
    pub(crate) fn begin(session: &Arc<Core>) -> Result<Arc<Self>> {
        let (sender, receiver) = channel();
        let backlog = Arc::new(AtomicUsize::new(0));
        let number = CLERKS.fetch_add(1, AcqRel);
        let mut desk = Desk {
            stream: session.stream().clone(),
            sender: sender.clone(),
            receiver,
            backlog: backlog.clone(),
            waiting: VecDeque::new(),
            running: VecDeque::new(),
            looked: Instant::now(),
            failed: Ok(()),
            lost: None,
            is_ending: false,
        };
        let named = std::thread::Builder::new().name("fercuda jobs".to_owned());
        let thread = named.spawn(move || {
            HERE.with(|here| here.set(number));
            desk.work()
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

    /// Whether the calling thread is this clerk.
    pub(crate) fn is_here(&self) -> bool {
        HERE.with(Cell::get) == self.number
    }

    /// Whether no job waits on the host.
    pub(crate) fn has_no_backlog(&self) -> bool {
        self.backlog.load(Acquire) == 0
    }

    /// Whether every job is over, and says so.
    pub(crate) fn has_ended_all(&self) -> bool {
        self.open.load(Acquire) == 0
    }

    pub(crate) fn submit<W: Send + 'static, R: Send + 'static>(
        &self,
        work: impl FnOnce(&Stream) -> Result<W> + Send + 'static,
        finish: impl FnOnce(W) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        let number = self.next.fetch_add(1, AcqRel);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                status: Status::Waiting,
                outcome: None,
                waker: None,
            }),
            changed: Condvar::new(),
        });
        self.open.fetch_add(1, AcqRel);
        let task = Box::new(Work {
            number,
            work: Some(work),
            between: None,
            finish: Some(finish),
            shared: shared.clone(),
            open: self.open.clone(),
        });
        self.backlog.fetch_add(1, AcqRel);
        if self.sender.send(Message::Task(task)).is_err() {
            // With the message the task has gone, and so has ended.
            self.backlog.fetch_sub(1, AcqRel);
        }
        Ok(Job {
            number,
            clerk: self.number,
            shared,
        })
    }

    /// Waits for all jobs; the first error of any of them. Not for a job.
    pub(crate) fn finish(&self) -> Result<()> {
        // Nobody listens: then it has ended.
        drop(self.sender.send(Message::End));
        let thread = lock(&self.thread).take();
        thread.map_or(Ok(()), |thread| {
            thread.join().unwrap_or(Err(Error::GivenUp { job: 0 }))
        })
    }
}

impl Drop for Clerk {
    /// Its thread ends behind its jobs.
    fn drop(&mut self) {
        drop(self.sender.send(Message::End));
    }
}

/// What is on the device, in its order.
struct Running {
    task: Box<dyn Task>,
    /// It failed on the host, which is said when those before it are done.
    failed: Option<Error>,
    /// Whether the device will say when that is. If not, it has failed.
    is_told: bool,
}

/// What a clerk has before it.
struct Desk {
    stream: Stream,
    sender: Sender<Message>,
    receiver: Receiver<Message>,
    backlog: Arc<AtomicUsize>,
    waiting: VecDeque<Box<dyn Task>>,
    running: VecDeque<Running>,
    /// When it was last seen that the device has not failed.
    looked: Instant,
    /// The first failure of any job.
    failed: Result<()>,
    /// The job with which the context failed, and how: no other runs any more.
    lost: Option<(u64, Error)>,
    /// Whether there will be no more jobs.
    is_ending: bool,
}

/// Runs what is the givers' in part: a panic of it ends there.
fn contained(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        // What a panic carries may panic when it is dropped.
        std::mem::forget(panic);
    }
}

impl Desk {
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
                // A sender is here, so somebody may always write.
                true => self.receiver.recv().map_err(RecvTimeoutError::from),
                false => self.receiver.recv_timeout(LOOK),
            };
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Disconnected) => self.is_ending = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !self.running.is_empty() && self.looked.elapsed() >= LOOK {
                self.look();
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Task(task) => self.waiting.push_back(task),
            Message::Done => {
                // With it is done what was before it, of which the device does not tell.
                self.end_untold();
                if let Some(Running { task, failed, .. }) = self.running.pop_front() {
                    self.end(task, failed.map_or(Ok(()), Err));
                }
            }
            Message::End => self.is_ending = true,
        }
    }

    /// Ends the first ones of which the device does not tell, as it has done them.
    fn end_untold(&mut self) {
        while self.running.front().is_some_and(|first| !first.is_told)
            && let Some(first) = self.running.pop_front()
        {
            self.end(first.task, first.failed.map_or(Ok(()), Err));
        }
    }

    fn end(&mut self, mut task: Box<dyn Task>, outcome: Result<()>) {
        if let (Err(error), Ok(())) = (&outcome, &self.failed) {
            self.failed = Err(error.clone());
        }
        contained(move || {
            task.end(outcome);
            drop(task);
        });
    }

    fn start(&mut self, mut task: Box<dyn Task>) {
        if !task.begin() {
            contained(move || drop(task));
            return;
        }
        if self.lost.is_some() {
            return self.end_not_run(task);
        }
        let failed = task.queue(&self.stream).err();
        let sender = self.sender.clone();
        // Nobody listens any more when the session has ended.
        let tells = self
            .stream
            .host_callback(move || drop(sender.send(Message::Done)));
        let is_told = tells.is_ok();
        self.running.push_back(Running {
            task,
            failed: failed.or(tells.err().map(Error::from)),
            is_told,
        });
        if !is_told {
            // Whose failure it is, if the context has failed, says the order.
            self.look();
        }
    }

    fn end_not_run(&mut self, task: Box<dyn Task>) {
        let job = task.number();
        if let Some((by, source)) = self.lost.clone() {
            let source = Box::new(source);
            self.end(task, Err(Error::NotRun { job, by, source }));
        }
    }

    /// Looks whether the device has failed, and will say nothing more of what it has; and
    /// whether it has done that of which it does not tell. A failure on the host is that
    /// job's alone, whatever it is of.
    fn look(&mut self) {
        self.looked = Instant::now();
        let failed = match self.stream.is_idle() {
            Ok(false) => return,
            // What is captured had nothing to do when that began, and does nothing.
            Ok(true) | Err(fercuda_cuda::Error::Capturing { .. }) => None,
            // It was not asked.
            Err(error) if error.is_refusal() => return,
            Err(error) => Some(Error::from(error)),
        };
        // What the device has said until then it has done.
        let said: Vec<Message> = self.receiver.try_iter().collect();
        said.into_iter().for_each(|it| self.take(it));
        let Some(error) = failed else {
            return self.end_untold();
        };
        for Running { task, failed, .. } in std::mem::take(&mut self.running) {
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
