//! Checked blocks side by side, judged one after another.
//!
//! Blocks of a kernel that has no means of speaking to other blocks compute the same in any order, so with checks
//! too they are spread over threads. A block's shadow of shared memory is its own. That of global memory is not, and
//! what is reported must be the same in every run: so the lowest block that is not done has the turn and judges its
//! accesses as it makes them; every other block writes down what it does ([`Log`]), to be judged when its turn comes.
//!
//! Invariants: the shadow of global memory is read for judging, and written, by one thread of a launch at a time: the
//! one that runs the block whose turn it is, or that replays its log. A block whose log is full waits for its turn;
//! the block that has the turn waits for nobody. Findings and faults of blocks after one that failed are dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::lanes::{ALL, LANES, eights};
use crate::mem::{At, Shape};
use crate::report::{AccessKind, Fault, Finding, Place};

/// Bytes that one block writes down before it waits for its turn.
const LOG_BYTES: usize = 1 << 20;
/// Bytes held for finished blocks above which no block is begun but the one whose turn it is.
const HELD_BYTES: usize = 64 << 20;
/// Bytes that a finished block takes until it is judged, whatever it has written down.
const ENDED_BYTES: usize = 256;
/// Bytes that a finding takes, texts apart: itself, and where the two threads were.
const FOUND_BYTES: usize = size_of::<Finding>() + 2 * size_of::<Place>();
/// How often a waiting thread looks whether the launch has been stopped.
const LOOK: Duration = Duration::from_millis(10);

/// One access of a warp to global memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WarpAccess {
    /// Instruction, counted through all functions.
    pub(crate) pc: u32,
    pub(crate) warp: u32,
    pub(crate) mask: u32,
    pub(crate) size: u32,
    pub(crate) kind: AccessKind,
    pub(crate) strong: bool,
}

#[derive(Debug)]
enum Entry {
    /// With distances: of each eight lanes the first address is written down, and the others follow at this distance.
    /// Without: all are.
    Access(WarpAccess, Option<[u32; LANES / 8]>),
    Found(Box<Finding>),
}

/// What a block did that is to be judged later.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: Vec<Entry>,
    addresses: Vec<u64>,
    /// Bytes of the findings.
    found: usize,
}

impl Log {
    pub(crate) fn access(&mut self, access: WarpAccess, addr: &[u64; LANES]) {
        let mut steps = [0; LANES / 8];
        let runs = access.mask == ALL
            && eights(addr).iter().zip(&mut steps).all(|(eight, step)| {
                match u64::shape(eight, access.size as usize) {
                    Shape::Step => *step = access.size,
                    Shape::Same => *step = 0,
                    Shape::Scattered => return false,
                }
                true
            });
        if runs {
            self.addresses.extend(eights(addr).iter().map(|e| e[0]));
        } else {
            self.addresses.extend(addr);
        }
        let steps = runs.then_some(steps);
        self.entries.push(Entry::Access(access, steps));
    }

    pub(crate) fn found(&mut self, finding: Finding) {
        self.found += FOUND_BYTES + finding.note.len();
        self.entries.push(Entry::Found(Box::new(finding)));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= LOG_BYTES
    }

    fn bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
            + self.addresses.len() * size_of::<u64>()
            + self.found
    }

    /// Passes on everything written down, in order, and forgets it.
    pub(crate) fn replay(
        &mut self,
        mut judge: impl FnMut(WarpAccess, &[u64; LANES]),
        mut found: impl FnMut(Finding),
    ) {
        let mut rest = self.addresses.as_slice();
        for entry in self.entries.drain(..) {
            let (access, steps) = match entry {
                Entry::Found(finding) => {
                    found(*finding);
                    continue;
                }
                Entry::Access(access, how) => (access, how),
            };
            let (these, others) = rest.split_at(steps.map_or(LANES, |_| LANES / 8));
            rest = others;
            let addr = std::array::from_fn(|l| match steps {
                Some(steps) => these[l / 8] + u64::from(steps[l / 8]) * (l % 8) as u64,
                None => these[l],
            });
            judge(access, &addr);
        }
        self.addresses.clear();
        self.found = 0;
    }
}

/// How a block ended.
#[derive(Debug)]
pub(crate) enum End {
    Done,
    Failed(Box<Fault>),
    /// The launch was stopped while it ran.
    Stopped,
}

#[derive(Debug, Default)]
struct Waiting {
    ended: BTreeMap<u64, (Option<Box<Log>>, End)>,
    /// Bytes that they take.
    held: usize,
    /// Threads that wait for a turn, or to begin a block.
    threads: usize,
    /// Whether a thread is judging them.
    busy: bool,
}

/// Whose turn it is, in one launch.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The lowest block that is not done.
    next: AtomicU64,
    /// A block has failed or was stopped; no turn comes after its.
    over: AtomicBool,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is this block's turn.
    #[inline(always)]
    pub(crate) fn has(&self, block: u64) -> bool {
        self.next.load(Ordering::Acquire) == block && !self.over.load(Ordering::Relaxed)
    }

    /// Waits until it is; false if the launch is stopped before.
    pub(crate) fn wait(&self, block: u64, stopped: impl Fn() -> bool) -> bool {
        self.wait_until(stopped, |_| self.has(block))
    }

    /// Waits until this block may begin; false if the launch is stopped before.
    pub(crate) fn begin(&self, block: u64, stopped: impl Fn() -> bool) -> bool {
        self.has(block) || self.wait_until(stopped, |w| w.held < HELD_BYTES || self.has(block))
    }

    fn wait_until(&self, stopped: impl Fn() -> bool, ready: impl Fn(&Waiting) -> bool) -> bool {
        let mut waiting = self.lock();
        waiting.threads += 1;
        let mut is_ready = ready(&waiting);
        while !is_ready && !stopped() {
            waiting = self
                .changed
                .wait_timeout(waiting, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            is_ready = ready(&waiting);
        }
        waiting.threads -= 1;
        is_ready
    }

    /// Whether of `threads` threads all but one wait, and a block could be begun by one more.
    pub(crate) fn stuck(&self, threads: usize) -> bool {
        let waiting = self.lock();
        waiting.threads + 1 >= threads && waiting.held < HELD_BYTES
    }

    /// A block has ended. It and those after it are judged, as far as they have: `judge` gets a block with its log,
    /// `end` what became of it.
    pub(crate) fn end(
        &self,
        block: u64,
        log: Option<Box<Log>>,
        how: End,
        judge: impl Fn(u64, &mut Log),
        end: impl Fn(End),
    ) {
        let bytes = |log: &Option<Box<Log>>| ENDED_BYTES + log.as_ref().map_or(0, |l| l.bytes());
        let mut waiting = self.lock();
        waiting.held += bytes(&log);
        waiting.ended.insert(block, (log, how));
        if std::mem::replace(&mut waiting.busy, true) {
            return;
        }
        let mut at = self.next.load(Ordering::Relaxed);
        while !self.over.load(Ordering::Relaxed)
            && let Some((mut log, how)) = waiting.ended.remove(&at)
        {
            waiting.held -= bytes(&log);
            drop(waiting);
            if let Some(log) = &mut log {
                judge(at, log);
            }
            if !matches!(how, End::Done) {
                self.over.store(true, Ordering::Relaxed);
            }
            end(how);
            at += 1;
            waiting = self.lock();
            self.next.store(at, Ordering::Release);
            self.changed.notify_all();
        }
        waiting.busy = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn warp_access(mask: u32, size: u32) -> WarpAccess {
        WarpAccess {
            pc: 7,
            warp: 3,
            mask,
            size,
            kind: AccessKind::Read,
            strong: false,
        }
    }

    proptest! {
        #[test]
        fn a_log_gives_back_what_was_written_down(
            accesses in prop::collection::vec(
                (any::<bool>(), 0u32..4, prop::array::uniform4((any::<u32>(), 0u64..3)), any::<u32>()),
                0..40,
            ),
        ) {
            let mut log = Log::default();
            let mut expected = Vec::new();
            for (full, size, eights, mask) in accesses {
                let size = 1 << size;
                let mask = if full { ALL } else { mask };
                let addr: [u64; LANES] = std::array::from_fn(|l| {
                    let (base, kind) = eights[l / 8];
                    u64::from(base) + (l % 8) as u64 * [0, u64::from(size), 24][kind as usize]
                });
                log.access(warp_access(mask, size), &addr);
                expected.push((mask, size, addr));
            }
            let mut got = Vec::new();
            log.replay(|a, addr| got.push((a.mask, a.size, *addr)), |_| ());
            prop_assert_eq!(got, expected);
            prop_assert_eq!(log.bytes(), 0);
        }
    }

    #[test]
    fn blocks_are_judged_in_their_order_whatever_the_order_of_their_ends() {
        let turns = Turns::default();
        let judged = Mutex::new(Vec::new());
        let end = |block, how| {
            turns.end(
                block,
                Some(Box::default()),
                how,
                |b, _| judged.lock().unwrap().push(b),
                drop,
            );
        };
        end(2, End::Done);
        end(1, End::Done);
        assert!(turns.has(0) && judged.lock().unwrap().is_empty());
        end(0, End::Done);
        assert!(turns.has(3));
        end(4, End::Done);
        end(3, End::Stopped);
        assert_eq!(*judged.lock().unwrap(), [0, 1, 2, 3]);
        assert!(!turns.has(4) && !turns.wait(4, || true));
    }

    #[test]
    fn blocks_that_wrote_nothing_down_are_held_too() {
        let turns = Turns::default();
        let blocks = (HELD_BYTES / ENDED_BYTES) as u64;
        assert!(turns.begin(blocks + 1, || true));
        for block in 1..=blocks {
            turns.end(block, None, End::Done, |_, _| (), drop);
        }
        assert!(!turns.begin(blocks + 1, || true) && turns.begin(0, || true));
        turns.end(0, None, End::Done, |_, _| (), drop);
        assert!(turns.has(blocks + 1) && turns.begin(blocks + 2, || true));
    }

    #[test]
    fn a_log_of_findings_is_full_by_what_they_take() {
        let finding = Finding {
            kind: crate::report::FindingKind::SharedRace,
            access: None,
            actor: crate::report::Actor::Operation(String::new()),
            note: "x".repeat(100),
            allocation: None,
            other: None,
            count: 1,
        };
        let mut log = Log::default();
        let mut written = 0;
        while !log.is_full() {
            log.found(finding.clone());
            written += 1;
        }
        assert!(written <= LOG_BYTES / (size_of::<Finding>() + 100));
        let mut passed_on = 0;
        log.replay(|_, _| (), |_| passed_on += 1);
        assert_eq!((passed_on, log.bytes()), (written, 0));
    }

    #[test]
    fn a_launch_is_stuck_when_all_but_one_of_its_threads_wait() {
        let turns = Turns::default();
        assert!(turns.stuck(1) && !turns.stuck(2));
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| turns.wait(1, || stop.load(Ordering::Relaxed)));
            while !turns.stuck(2) {
                std::thread::yield_now();
            }
            assert!(!turns.stuck(3));
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!turns.stuck(2));
    }
}
