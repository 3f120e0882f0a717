//! How a resident kernel ends, and what it uses is let go of.
//!
//! It is told by a word that only gets stricter. It has ended when its stream says so; an
//! answer that says nothing of the stream says nothing of the kernel.
//!
//! Invariants: what the kernel uses is there as long as it may run, if need be for ever,
//! and is let go of once, by one thread, in no lock: lent memory is given back there, and
//! who has lent it may call anything. While the kernel may run, nobody waits for it by
//! dropping something (`ResidentKernelGuard`).

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::{DeviceBuffer, Function, ResidentKernelGuard, destroy_later};

use super::task::{DRAIN, END};
use super::{DispatchError, Pause, Pending, Queue, TaskBuffers, TaskError, lock};
use crate::within::{Leaving, is_within};

/// Who does not wait asks the driver so often, in milliseconds.
const GLANCE_MS: u64 = 5;

/// A kernel that is told to end, of which nobody knows how much it has to do, takes as long
/// as its watchdog lets a task, but no longer than this,
const MOST: Duration = Duration::from_secs(60);
/// and so much more.
const GRACE: Duration = Duration::from_secs(1);

/// What is known of a resident kernel.
#[derive(Debug)]
pub(super) enum Kernel {
    /// It runs, or its turn has not come.
    Runs,
    /// It has ended, well or not. What was not done never will be, and says so.
    Ended { is_well: bool },
    /// It may run for ever.
    Lost,
    /// Nobody could be asked.
    Unknown(fercuda_cuda::Error),
}

/// What a kernel uses.
#[derive(Debug)]
pub(super) enum Hold {
    Used(Used),
    /// It has ended, and a thread is letting go of that.
    Leaving,
    /// That is done, or never will be.
    Gone {
        is_well: bool,
    },
}

#[derive(Debug)]
pub(super) struct Used {
    /// Let go of first: the others wait for the device, which no kernel keeps busy then.
    pub(super) stay: ResidentKernelGuard,
    pub(super) _function: Function,
    pub(super) _heads: DeviceBuffer<u32>,
    pub(super) _table: DeviceBuffer<u64>,
    pub(super) _buffers: TaskBuffers,
}

impl Queue {
    /// Asks what has become of the kernel. Never waits.
    pub(super) fn kernel(&self) -> Kernel {
        if self.lost.load(Ordering::Acquire) {
            self.give_up_tasks(&TaskError::Lost);
            return Kernel::Lost;
        }
        let (is_well, why) = match self.stream.is_idle() {
            Ok(false) => return Kernel::Runs,
            Ok(true) => (true, TaskError::Stopped),
            Err(error) if error.is_refusal() => return Kernel::Unknown(error),
            Err(error) => {
                let why = error.to_string();
                (false, TaskError::Device { why })
            }
        };
        self.give_up_tasks(&why);
        Kernel::Ended { is_well }
    }

    /// In the child of a fork it is the parent's: what the kernel reads is memory that both
    /// have, or only the parent, and a lock may have been held for ever.
    ///
    /// # Errors
    /// Then, with the parent's number.
    pub(crate) fn check_process(&self) -> Result<(), u32> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(self.process),
        }
    }

    /// The same for who does not wait and may ask often: from time to time.
    pub(super) fn glance(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        let before = self.glanced_ms.load(Ordering::Relaxed);
        let is_time = now >= before + GLANCE_MS;
        if is_time && self.glanced_ms.swap(now, Ordering::Relaxed) == before {
            self.kernel();
        }
    }

    /// Whether nothing more will be done.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.kernel(), Kernel::Ended { .. } | Kernel::Lost)
    }

    /// What becomes of tasks when the kernel has ended, or nobody knows.
    fn give_up_tasks(&self, error: &TaskError) {
        for ring in &self.rings {
            let ring = &mut *lock(ring);
            for task in self.waiting(ring) {
                ring.dropped += u64::from(task.outcome.set(Err(error.clone())).is_ok());
            }
        }
    }

    /// The kernel may run for ever.
    pub(super) fn give_up(&self) {
        self.lost.store(true, Ordering::Release);
        self.give_up_tasks(&TaskError::Lost);
    }

    /// Takes no more tasks, and tells the kernel to end when it has run what it was given.
    pub(crate) fn tell_to_drain(&self) {
        self.tell(DRAIN);
    }

    fn tell(&self, order: u32) {
        for ring in &self.rings {
            // Who is submitting has done so, or sees this.
            let _ring = lock(ring);
            self.stopped.store(true, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.memory.control.words()[0].fetch_max(order, Ordering::Release);
        if let Hold::Used(used) = &*lock(&self.hold) {
            used.stay
                .note_stop_requested(twice(self.options.watchdog).min(MOST) + GRACE);
        }
    }

    /// Lets the kernel run what it was given, and waits until it has ended and what it
    /// used is let go of; but a job, and who hears that lent memory is given back, does
    /// not wait for another thread that lets go. May be asked again.
    ///
    /// # Errors
    /// [`DispatchError::Running`]; [`DispatchError::Forked`]; the others of
    /// [`super::Dispatcher::stop`].
    pub(crate) fn drain(&self, longest: Duration) -> Result<(), DispatchError> {
        self.end(DRAIN, longest)
    }

    /// Ends the kernel after the tasks that it runs; those that it has not begun are
    /// [`TaskError::Stopped`]. If it has not ended in twice the watchdog, as its turn has
    /// not come, or in a host callback, it goes on to end by itself, and what it uses is
    /// let go of after that.
    ///
    /// # Errors
    /// [`DispatchError::Lost`]; [`DispatchError::Cuda`], the kernel's error.
    pub(crate) fn abandon(self: &Arc<Self>) -> Result<(), DispatchError> {
        if self.check_process().is_err() {
            std::mem::forget(self.clone());
            return Ok(());
        }
        let ended = self.end(END, twice(self.options.watchdog));
        let goes_on = match &ended {
            Err(DispatchError::Running { .. }) => true,
            Err(DispatchError::Cuda(error)) => error.is_refusal(),
            _ => false,
        };
        if !goes_on {
            return ended;
        }
        self.leave();
        Ok(())
    }

    /// Leaves it to who allocates or waits next to let go of it, unless it has ended by now.
    pub(crate) fn leave(self: &Arc<Self>) {
        let (queue, mut watch) = (self.clone(), Watch::default());
        if !queue.has_left(&mut watch) {
            destroy_later(move || queue.has_left(&mut watch));
        }
    }

    /// Lets go of what an ended kernel used, unless another thread does; whether it has
    /// ended. Waits for no kernel, but where it has ended for other work that uses what it
    /// used, and for who hears that lent memory is given back.
    fn has_left(&self, watch: &mut Watch) -> bool {
        match self.kernel() {
            Kernel::Ended { is_well } => self.release(is_well),
            Kernel::Lost => self.lose(),
            Kernel::Runs | Kernel::Unknown(_) => {
                watch.look(self);
                return false;
            }
        }
        true
    }

    fn end(&self, order: u32, longest: Duration) -> Result<(), DispatchError> {
        self.check_process()
            .map_err(|process| DispatchError::Forked { process })?;
        self.tell(order);
        let gone = match *lock(&self.hold) {
            Hold::Gone { is_well } => Some(is_well),
            _ => None,
        };
        if let Some(is_well) = gone.filter(|_| !self.lost.load(Ordering::Acquire)) {
            // The context answers what it failed with until it is reset, and that then.
            return match is_well {
                true => Ok(()),
                false => Ok(self.stream.synchronize()?),
            };
        }
        let began = Instant::now();
        let mut pause = Pause(0);
        let mut watch = Watch::default();
        let is_well = loop {
            match self.kernel() {
                Kernel::Ended { is_well } => break is_well,
                Kernel::Lost => {
                    self.lose();
                    return Err(DispatchError::Lost);
                }
                // No wait of this thread's changes that.
                Kernel::Unknown(error) if error.is_in_callback() => return Err(error.into()),
                Kernel::Runs | Kernel::Unknown(_) => {}
            }
            pause.wait();
            if pause.is_long() {
                watch.look(self);
            }
            if began.elapsed() > longest {
                let waiting = self.stats().waiting;
                return Err(DispatchError::Running { waiting });
            }
        };
        self.release(is_well);
        self.wait_until_released();
        Ok(self.stream.synchronize()?)
    }

    /// Waits while another thread lets go of what the kernel has used.
    fn wait_until_released(&self) {
        let mut hold = lock(&self.hold);
        while matches!(*hold, Hold::Leaving) && !is_within() {
            let released = self.released.wait(hold);
            hold = released.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets go of what the kernel has used, unless another thread does or has.
    fn release(&self, is_well: bool) {
        let mut hold = lock(&self.hold);
        let used = match std::mem::replace(&mut *hold, Hold::Leaving) {
            Hold::Used(used) => used,
            other => {
                *hold = other;
                return;
            }
        };
        drop(hold);
        let _gone = OnDrop(|| {
            *lock(&self.hold) = Hold::Gone { is_well };
            self.released.notify_all();
        });
        let _leaving = Leaving::enter();
        drop(used);
    }

    /// It may be running for ever: nothing of what it uses may go, nor the queue.
    fn lose(&self) {
        self.give_up();
        let gone = Hold::Gone { is_well: false };
        let used = std::mem::replace(&mut *lock(&self.hold), gone);
        if let Hold::Used(it) = &used {
            it.stay.note_stop_requested(Duration::ZERO);
            std::mem::forget((used, self.memory.clone(), self.stream.clone()));
        }
    }
}

/// Does something when it goes, however that is.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// How long a task may run: as long as the watchdog, and as long again to notice that it is
/// cancelled.
fn twice(watchdog: Duration) -> Duration {
    watchdog.saturating_mul(2)
}

/// What somebody who looks at a task that runs knows of it.
#[derive(Default)]
pub(super) struct Patience {
    since: Option<Instant>,
    cancelled: Option<Instant>,
}

/// What is to be done about a task that runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Runs,
    /// It is to be cancelled.
    Late,
    /// It was, and does not end.
    Lost,
}

impl Patience {
    /// It runs `now`. Who looks may have been kept from that for any time, so the second
    /// time counts from the look at which it was to be cancelled: nothing is lost that
    /// nobody has told to end.
    pub(super) fn look(&mut self, now: Instant, watchdog: Duration) -> Verdict {
        let since = *self.since.get_or_insert(now);
        if now - since <= watchdog {
            return Verdict::Runs;
        }
        let cancelled = *self.cancelled.get_or_insert(now);
        match now - cancelled > watchdog {
            true => Verdict::Lost,
            false => Verdict::Late,
        }
    }
}

/// Sees to tasks that nobody may be waiting for.
#[derive(Default)]
struct Watch {
    /// What runs, and what is known since it has not changed.
    running: Vec<(usize, u32)>,
    patience: Patience,
}

impl Watch {
    fn look(&mut self, queue: &Queue) {
        let waiting = queue.rings.iter().map(|ring| queue.waiting(&lock(ring)));
        let mut running: Vec<Arc<Pending>> = waiting.flatten().collect();
        running.retain(|task| queue.has_begun(task));
        let names: Vec<_> = running.iter().map(|it| (it.slot, it.ticket)).collect();
        if names != self.running || names.is_empty() {
            (self.running, self.patience) = (names, Patience::default());
        }
        match self.patience.look(Instant::now(), queue.options.watchdog) {
            Verdict::Runs => {}
            Verdict::Late => running.iter().for_each(|task| queue.cancel(task)),
            Verdict::Lost => queue.give_up(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_to_end_late_has_as_long_to_end() {
        let (begin, watchdog) = (Instant::now(), Duration::from_secs(2));
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut patience = Patience::default();
        let mut look = |seconds| patience.look(after(seconds), watchdog);
        assert_eq!(look(0), Verdict::Runs);
        assert_eq!(look(2), Verdict::Runs);
        // Who looks was kept from it for much longer than the task might run.
        assert_eq!(look(60), Verdict::Late);
        assert_eq!(look(62), Verdict::Late);
        assert_eq!(look(63), Verdict::Lost);
        let mut unwatched = Patience::default();
        for seconds in [0, 1 << 20] {
            let verdict = unwatched.look(after(seconds), Duration::MAX);
            assert_eq!(verdict, Verdict::Runs);
        }
    }
}
