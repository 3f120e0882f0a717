//! Execution of a launch: the launching thread and idle helper threads run its blocks.
//!
//! Invariants: a block runs on one host thread at a time. A block that waits for others is
//! suspended and the next one begun, so blocks may wait for each other; of a launch that is not
//! cooperative only a limited number is resident, as on hardware. With ordered checks
//! ([`super::check_order`]) none is suspended; if all threads wait but one, and its block runs
//! long, another thread is added. The launch ends when all blocks are done or one has failed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::block;
use super::check_order::{BlockEnd, CheckOrder};
use super::checks;
use super::cluster_turns;
use super::ctx::{BoundKernel, Ctx, LaunchRun};
use super::launch::{LaunchSpec, LaunchStats};
use super::state::BlockState;
use super::state::ClusterState;
use super::warp::WarpStop;
use crate::lock::lock;
use crate::report::{ExecutionPoint, Fault, FaultKind};

/// The limit of suspended blocks, except for cooperative launches.
const MAX_ASIDE: usize = 4096;
/// The number of times that a thread with only sleeping blocks yields before it sleeps.
const RESTS: usize = 100;
/// How long it sleeps then.
const REST: Duration = Duration::from_micros(50);
/// The limit of threads added to one launch.
const MAX_LENT: usize = 64;

/// A block that was suspended, with the others of its cluster.
type Suspended = (Box<BlockState>, Option<Box<ClusterState>>);

/// A launch in execution: which of its blocks are begun, suspended and done. If its clusters have
/// several blocks, the clusters are what is counted.
struct GridRun {
    /// For added threads.
    this: Weak<GridRun>,
    launch: LaunchRun,
    /// The block before which no more are begun.
    end: AtomicU64,
    next: AtomicU64,
    done: AtomicU64,
    active: AtomicUsize,
    lent: AtomicUsize,
    aside: Mutex<VecDeque<Suspended>>,
    aside_count: AtomicUsize,
    /// The first block that had not ended when the launch was stopped, and where it stood.
    stopped: Mutex<Option<(u64, ExecutionPoint)>>,
    instructions: AtomicU64,
    ended: Condvar,
    ended_lock: Mutex<()>,
}

impl std::fmt::Debug for GridRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.launch.fmt(f)
    }
}

impl GridRun {
    fn wants_help(&self) -> bool {
        !self.launch.is_stopped()
            && (self.next.load(Ordering::Relaxed) < self.end.load(Ordering::Relaxed)
                || self.aside_count.load(Ordering::Relaxed) > 0)
    }

    /// Runs blocks until none is left. A panic of the simulator ends the kernel with a fault: a
    /// thread that unwound out of here would be counted as busy forever, and the launch would never
    /// end.
    fn work(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.run_blocks())).is_err() {
            self.launch.fail(Box::new(Fault {
                kind: FaultKind::Internal,
                place: None,
                allocation: None,
            }));
        }
    }

    fn run_blocks(&self) {
        let mut ctx = Ctx::new(&self.launch);
        let cooperative = self.launch.spec.cooperative;
        let mut rests = 0;
        while !self.launch.must_stop() {
            let aside = self.aside_count.load(Ordering::Relaxed);
            let fresh = if cooperative || aside < MAX_ASIDE / self.launch.cluster_size as usize {
                let n = self.next.fetch_add(1, Ordering::Relaxed);
                // Far beyond the end the counter could wrap in theory only: one step for each
                // attempt.
                (n < self.end.load(Ordering::Relaxed)).then_some(n)
            } else {
                None
            };
            if let Some(n) = fresh {
                if let Some(turns) = &self.launch.turns
                    && !turns.begin(n, || self.launch.must_stop())
                {
                    break;
                }
                cluster_turns::start(&mut ctx, n);
            } else {
                let Some(b) = lock(&self.aside).pop_front() else {
                    break;
                };
                self.aside_count.fetch_sub(1, Ordering::Relaxed);
                (ctx.block, ctx.cluster) = b;
            }
            let stop = cluster_turns::run(&mut ctx, || self.lend_a_thread());
            if stop == WarpStop::Yielded && self.launch.is_stopped() {
                self.note_stopped(&ctx.block);
                if let Some(cluster) = &mut ctx.cluster {
                    cluster.peers().for_each(|it| self.note_stopped(it));
                }
            }
            if let Some(turns) = &self.launch.turns {
                self.end_turn(&mut ctx, turns, stop);
                continue;
            }
            match stop {
                WarpStop::Done => {
                    checks::copies_left(&mut ctx);
                    checks::end_block(&mut ctx);
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                WarpStop::Trouble => {
                    if let Some(fault) = ctx.trouble.take() {
                        self.launch.fail(fault);
                    }
                }
                WarpStop::Yielded | WarpStop::Blocked => {
                    // As many sleeps as there are suspended blocks: all of them may be asleep.
                    rests = if ctx.idle { rests + 1 } else { 0 };
                    let b = (std::mem::take(&mut ctx.block), ctx.cluster.take());
                    // Counted before it is published, so that the thread that takes it can
                    // decrement.
                    let aside = self.aside_count.fetch_add(1, Ordering::Relaxed) + 1;
                    lock(&self.aside).push_back(b);
                    if rests > aside {
                        rest(rests / (aside + 1));
                    }
                }
            }
        }
        self.instructions
            .fetch_add(ctx.instructions, Ordering::Relaxed);
    }

    /// Notes where a block stood when the launch was stopped, if it is the first of them.
    fn note_stopped(&self, block: &BlockState) {
        let mut first = lock(&self.stopped);
        if first.as_ref().is_none_or(|it| block.linear < it.0)
            && let Some(place) = block::whereabouts(&self.launch, block)
        {
            *first = Some((block.linear, place));
        }
    }

    /// Ends the current block: its log is checked at its turn.
    fn end_turn(&self, ctx: &mut Ctx<'_>, turns: &CheckOrder, stop: WarpStop) {
        let block = ctx.block.linear;
        let end = match (stop, ctx.trouble.take()) {
            (WarpStop::Done, _) => BlockEnd::Done,
            (_, Some(fault)) => BlockEnd::Failed(fault),
            (_, None) => BlockEnd::Stopped,
        };
        checks::end_block(ctx);
        if !matches!(end, BlockEnd::Done) {
            self.end.fetch_min(block, Ordering::Relaxed);
        }
        turns.end(
            block,
            ctx.block.log.take(),
            end,
            |block, log| checks::replay(&self.launch, block, log),
            |end| match end {
                BlockEnd::Done => {
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                BlockEnd::Failed(fault) => self.launch.fail(fault),
                BlockEnd::Stopped => {}
            },
        );
    }

    /// Handles a block that runs long: it may wait for a block that no thread is free to begin.
    #[cold]
    fn lend_a_thread(&self) {
        // The launching thread is not counted as at work.
        let threads = self.active.load(Ordering::Relaxed) + 1;
        let more = self.next.load(Ordering::Relaxed) < self.end.load(Ordering::Relaxed);
        if !more || !self.launch.turns.as_ref().is_some_and(|t| t.stuck(threads)) {
            return;
        }
        let Some(this) = self.this.upgrade() else {
            return;
        };
        if self.lent.fetch_add(1, Ordering::Relaxed) >= MAX_LENT {
            return;
        }
        self.enter();
        let spawned = std::thread::Builder::new()
            .name("fercuda-block-lent".to_owned())
            .spawn(move || {
                this.work();
                this.leave();
            });
        if spawned.is_err() {
            self.leave();
        }
    }

    fn enter(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
    }

    fn leave(&self) {
        let _guard = lock(&self.ended_lock);
        self.active.fetch_sub(1, Ordering::AcqRel);
        self.ended.notify_all();
    }
}

/// Yields to other host threads, or sleeps if this has been idle often.
fn rest(times: usize) {
    if times < RESTS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(REST);
    }
}

/// Thread pool of helpers, and the launches that they may help.
#[derive(Debug)]
pub(crate) struct HelperPool {
    launches: Mutex<Vec<Arc<GridRun>>>,
    changed: Condvar,
    closing: AtomicBool,
}

impl HelperPool {
    /// A pool with `helpers` threads, which end when the last owner drops the pool.
    pub(crate) fn new(helpers: usize) -> Arc<Self> {
        let pool = Arc::new(HelperPool {
            launches: Mutex::default(),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        for n in 0..helpers {
            let weak = Arc::downgrade(&pool);
            // Without helpers the launching thread does all the work.
            let _spawned = std::thread::Builder::new()
                .name(format!("fercuda-block-{n}"))
                .spawn(move || {
                    while let Some(pool) = weak.upgrade() {
                        if pool.closing.load(Ordering::Relaxed) {
                            return;
                        }
                        pool.help_once();
                    }
                });
        }
        pool
    }

    fn help_once(&self) {
        let launch = {
            let launches = lock(&self.launches);
            let found = launches.iter().find(|l| l.wants_help()).cloned();
            match found {
                Some(l) => {
                    l.enter();
                    Some(l)
                }
                None => {
                    // A while only, so that the pool can end.
                    let (_guard, _) = self
                        .changed
                        .wait_timeout(launches, Duration::from_millis(50))
                        .unwrap_or_else(PoisonError::into_inner);
                    None
                }
            }
        };
        if let Some(l) = launch {
            l.work();
            l.leave();
        }
    }

    /// Runs a launch to its end.
    pub(crate) fn run(
        &self,
        spec: LaunchSpec,
        prepared: Arc<BoundKernel>,
    ) -> Result<LaunchStats, Box<Fault>> {
        let total: u64 = spec.grid.iter().map(|&n| u64::from(n)).product();
        let size: u64 = spec.cluster.iter().map(|&n| u64::from(n)).product();
        let units = total / size.max(1);
        let mut workspace = None;
        if spec.cooperative {
            workspace = spec
                .space
                .map_new(crate::mem::GRANULE, 1 << spec.device.ordinal)
                .ok();
            if let (Some((at, _)), Some(shadow)) = (&workspace, spec.space.shadow()) {
                shadow.mark_initialised(*at, 4096);
            }
        }
        let checked = checks::begin(&spec, &prepared, total);
        let at = workspace.as_ref().map_or(0, |w| w.0);
        let launch = Arc::new_cyclic(|this| GridRun {
            this: this.clone(),
            launch: LaunchRun::new(spec, prepared, at, checked),
            end: AtomicU64::new(units),
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            lent: AtomicUsize::new(0),
            aside: Mutex::default(),
            aside_count: AtomicUsize::new(0),
            stopped: Mutex::default(),
            instructions: AtomicU64::new(0),
            ended: Condvar::new(),
            ended_lock: Mutex::default(),
        });
        let run = &launch.launch;
        // With checks, whatever the threads, a report is the same in every run.
        let shared = units > 1 && (run.spec.checks.is_none() || run.turns.is_some());
        if shared {
            lock(&self.launches).push(launch.clone());
            self.changed.notify_all();
        }
        loop {
            launch.work();
            let guard = lock(&launch.ended_lock);
            if launch.active.load(Ordering::Acquire) == 0
                && (run.is_stopped() || !launch.wants_help())
            {
                break;
            }
            // A helper may suspend a block again; check periodically.
            let (_guard, _) = launch
                .ended
                .wait_timeout(guard, Duration::from_millis(1))
                .unwrap_or_else(PoisonError::into_inner);
        }
        if shared {
            lock(&self.launches).retain(|l| !Arc::ptr_eq(l, &launch));
            // A helper may have entered since the last check; it finds no block, but has to leave.
            let mut guard = lock(&launch.ended_lock);
            while launch.active.load(Ordering::Acquire) != 0 {
                guard = launch
                    .ended
                    .wait_timeout(guard, Duration::from_millis(1))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        if let Some((at, _backing)) = workspace {
            // Only this launch knew the address, and it has ended.
            if run.spec.space.unmap(at, crate::mem::GRANULE).is_ok() {
                run.spec.space.release(at, crate::mem::GRANULE);
            }
        }
        if run.is_stopped() {
            for (block, cluster) in lock(&launch.aside).iter_mut() {
                launch.note_stopped(block);
                let peers = cluster.iter_mut().flat_map(|c| c.peers());
                peers.for_each(|it| launch.note_stopped(it));
            }
            if let Some((_, place)) = lock(&launch.stopped).take() {
                run.stopped_at(place);
            }
        }
        if let Some(fault) = run.take_fault() {
            return Err(fault);
        }
        Ok(LaunchStats {
            warp_instructions: launch.instructions.load(Ordering::Relaxed),
            blocks: launch.done.load(Ordering::Relaxed) * size.max(1),
            elapsed: run.elapsed(),
        })
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }
}
