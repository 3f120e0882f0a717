//! Deterministic checking of blocks that run in parallel: accesses are checked in block order.
//!
//! Blocks of a kernel without inter-block communication compute the same in any order, so with
//! checks too they run on several threads. A block's shadow of shared memory is its own. The shadow
//! of global memory is shared, and reports must be the same in every run: so the lowest unfinished
//! block has the turn and checks its accesses immediately; every other block logs its accesses
//! ([`AccessLog`]), and they are checked at its turn.
//!
//! Invariants: one thread of a launch at a time reads and writes the shadow of global memory for
//! checks: the one that runs the block with the turn, or that replays its log. A block with a full
//! log waits for its turn; the block with the turn never waits. Findings and faults of blocks after
//! a failed one are dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::registers::{ALL, LANES, eights};
use crate::check::Strength;
use crate::check::clock::AccessTime;
use crate::check::known::WarpTimes;
use crate::check::views::ThreadViews;
use crate::mem::{AddressShape, At};
use crate::report::{AccessKind, ExecutionPoint, Fault, Finding};
use std::sync::Arc;

/// The log size in bytes at which a block waits for its turn.
const LOG_BYTES: usize = 1 << 20;
/// Bytes of finished blocks' logs above which only the block with the turn may begin.
const HELD_BYTES: usize = 64 << 20;
/// Bytes that a finished block takes until it is checked, besides its log.
const ENDED_BYTES: usize = 256;
/// Bytes of a finding besides its texts: itself, and the positions of the two threads.
const FOUND_BYTES: usize = size_of::<Finding>() + 2 * size_of::<ExecutionPoint>();
/// The period at which a waiting thread checks whether the launch has been stopped.
const STOP_POLL: Duration = Duration::from_millis(10);

/// One access of a warp to global memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WarpAccess {
    /// Instruction, counted through all functions.
    pub(crate) pc: u32,
    pub(crate) warp: u32,
    pub(crate) mask: u32,
    pub(crate) size: u32,
    pub(crate) kind: AccessKind,
    pub(crate) strength: Strength,
    pub(crate) time: AccessTime,
}

/// What a logged access needs besides its addresses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AccessDetails<'a> {
    /// What the warp knew of the times of its block's warps, if the access's time does not say it.
    pub(crate) row: Option<&'a WarpTimes>,
    /// What its threads knew besides, if anything.
    pub(crate) views: Option<&'a Arc<ThreadViews>>,
    /// Hashes of what the lanes of a store write.
    pub(crate) hashes: Option<&'a [u8; LANES]>,
}

#[derive(Debug)]
enum LogEntry {
    Access(LoggedAccess),
    Found(Box<Finding>),
}

#[derive(Debug)]
struct LoggedAccess {
    access: WarpAccess,
    /// Of each eight lanes the first address is logged, and the others follow at this stride.
    /// `None`: all addresses are.
    steps: Option<[u32; LANES / 8]>,
    row: Option<WarpTimes>,
    views: Option<Arc<ThreadViews>>,
    /// Whether hashes stand behind the addresses.
    hashed: bool,
}

/// Addresses' room that the hashes of a store's values take.
const HASH_WORDS: usize = LANES / 8;

/// A block's accesses and findings that are not checked yet.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    entries: Vec<LogEntry>,
    addresses: Vec<u64>,
    /// Bytes of the findings.
    found: usize,
}

impl AccessLog {
    pub(crate) fn access(
        &mut self,
        access: WarpAccess,
        addr: &[u64; LANES],
        details: AccessDetails<'_>,
    ) {
        let mut steps = [0; LANES / 8];
        let runs = access.mask == ALL
            && eights(addr).iter().zip(&mut steps).all(|(eight, step)| {
                match u64::shape(eight, access.size as usize) {
                    AddressShape::Step => *step = access.size,
                    AddressShape::Same => *step = 0,
                    AddressShape::Scattered => return false,
                }
                true
            });
        if runs {
            self.addresses.extend(eights(addr).iter().map(|e| e[0]));
        } else {
            self.addresses.extend(addr);
        }
        if let Some(hashes) = details.hashes {
            let words = hashes.as_chunks::<8>().0.iter();
            self.addresses.extend(words.map(|w| u64::from_le_bytes(*w)));
        }
        self.entries.push(LogEntry::Access(LoggedAccess {
            access,
            steps: runs.then_some(steps),
            row: details.row.cloned(),
            views: details.views.cloned(),
            hashed: details.hashes.is_some(),
        }));
    }

    pub(crate) fn found(&mut self, finding: Finding) {
        self.found += FOUND_BYTES + finding.note.len();
        self.entries.push(LogEntry::Found(Box::new(finding)));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= LOG_BYTES
    }

    fn bytes(&self) -> usize {
        self.entries.len() * size_of::<LogEntry>()
            + self.addresses.len() * size_of::<u64>()
            + self.found
    }

    /// Replays all entries in order and clears the log.
    pub(crate) fn replay(
        &mut self,
        mut judge: impl FnMut(WarpAccess, &[u64; LANES], AccessDetails<'_>),
        mut found: impl FnMut(Finding),
    ) {
        let mut rest = self.addresses.as_slice();
        for entry in self.entries.drain(..) {
            let logged = match entry {
                LogEntry::Found(finding) => {
                    found(*finding);
                    continue;
                }
                LogEntry::Access(logged) => logged,
            };
            let steps = logged.steps;
            let (these, others) = rest.split_at(steps.map_or(LANES, |_| LANES / 8));
            rest = others;
            let addr = std::array::from_fn(|l| match steps {
                Some(steps) => these[l / 8] + u64::from(steps[l / 8]) * (l % 8) as u64,
                None => these[l],
            });
            let mut hashes = [0; LANES];
            if logged.hashed {
                let (words, others) = rest.split_at(HASH_WORDS);
                rest = others;
                for (eight, word) in hashes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *eight = word.to_le_bytes();
                }
            }
            let details = AccessDetails {
                row: logged.row.as_ref(),
                views: logged.views.as_ref(),
                hashes: logged.hashed.then_some(&hashes),
            };
            judge(logged.access, &addr, details);
        }
        self.addresses.clear();
        self.found = 0;
    }
}

/// How a block ended.
#[derive(Debug)]
pub(crate) enum BlockEnd {
    Done,
    Failed(Box<Fault>),
    /// The launch was stopped while it ran.
    Stopped,
}

#[derive(Debug, Default)]
struct UncheckedBlocks {
    ended: BTreeMap<u64, (Option<Box<AccessLog>>, BlockEnd)>,
    /// Bytes that they take.
    held: usize,
    /// The number of threads that wait for a turn, or to begin a block.
    threads: usize,
    /// Whether a thread is checking them.
    busy: bool,
}

/// The order in which one launch's blocks are checked.
#[derive(Debug, Default)]
pub(crate) struct CheckOrder {
    /// The lowest block that is not done.
    next: AtomicU64,
    /// A block has failed or was stopped; no turn comes after its.
    over: AtomicBool,
    waiting: Mutex<UncheckedBlocks>,
    changed: Condvar,
}

impl CheckOrder {
    fn lock(&self) -> MutexGuard<'_, UncheckedBlocks> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is this block's turn.
    #[inline(always)]
    pub(crate) fn has(&self, block: u64) -> bool {
        self.next.load(Ordering::Acquire) == block && !self.over.load(Ordering::Relaxed)
    }

    /// Waits for this block's turn; returns false if the launch is stopped first.
    pub(crate) fn wait(&self, block: u64, stopped: impl Fn() -> bool) -> bool {
        self.wait_until(stopped, |_| self.has(block))
    }

    /// Waits until this block may begin; returns false if the launch is stopped first.
    pub(crate) fn begin(&self, block: u64, stopped: impl Fn() -> bool) -> bool {
        self.has(block) || self.wait_until(stopped, |w| w.held < HELD_BYTES || self.has(block))
    }

    fn wait_until(
        &self,
        stopped: impl Fn() -> bool,
        ready: impl Fn(&UncheckedBlocks) -> bool,
    ) -> bool {
        let mut waiting = self.lock();
        waiting.threads += 1;
        let mut is_ready = ready(&waiting);
        while !is_ready && !stopped() {
            waiting = self
                .changed
                .wait_timeout(waiting, STOP_POLL)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            is_ready = ready(&waiting);
        }
        waiting.threads -= 1;
        is_ready
    }

    /// Whether all but one of `threads` threads wait, and another thread could begin a block.
    pub(crate) fn stuck(&self, threads: usize) -> bool {
        let waiting = self.lock();
        waiting.threads + 1 >= threads && waiting.held < HELD_BYTES
    }

    /// Ends a block. Checks it and the consecutive ended blocks after it: `judge` gets a block with
    /// its log, `end` how it ended.
    pub(crate) fn end(
        &self,
        block: u64,
        log: Option<Box<AccessLog>>,
        how: BlockEnd,
        judge: impl Fn(u64, &mut AccessLog),
        end: impl Fn(BlockEnd),
    ) {
        let bytes =
            |log: &Option<Box<AccessLog>>| ENDED_BYTES + log.as_ref().map_or(0, |l| l.bytes());
        let mut waiting = self.lock();
        let mut at = self.next.load(Ordering::Relaxed);
        let is_busy = std::mem::replace(&mut waiting.busy, true);
        let mut current = None;
        if is_busy || block != at {
            waiting.held += bytes(&log);
            waiting.ended.insert(block, (log, how));
        } else {
            current = Some((log, how));
        }
        if is_busy {
            return;
        }
        let next = |waiting: &mut UncheckedBlocks, at: u64| {
            let (log, how) = waiting.ended.remove(&at)?;
            waiting.held -= bytes(&log);
            Some((log, how))
        };
        while !self.over.load(Ordering::Relaxed)
            && let Some((mut log, how)) = current.take().or_else(|| next(&mut waiting, at))
        {
            drop(waiting);
            if let Some(log) = &mut log {
                judge(at, log);
            }
            if !matches!(how, BlockEnd::Done) {
                self.over.store(true, Ordering::Relaxed);
            }
            end(how);
            at += 1;
            waiting = self.lock();
            self.next.store(at, Ordering::Release);
            // A call of the system, each time.
            if waiting.threads != 0 {
                self.changed.notify_all();
            }
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
            strength: Strength::Weak,
            time: AccessTime::default(),
        }
    }

    proptest! {
        #[test]
        fn a_log_replays_its_entries(
            accesses in prop::collection::vec(
                (any::<bool>(), 0u32..4, prop::array::uniform4((any::<u32>(), 0u64..3)), any::<u32>()),
                0..40,
            ),
        ) {
            let mut log = AccessLog::default();
            let mut expected = Vec::new();
            for (full, size, eights, mask) in accesses {
                let size = 1 << size;
                let mask = if full { ALL } else { mask };
                let addr: [u64; LANES] = std::array::from_fn(|l| {
                    let (base, kind) = eights[l / 8];
                    u64::from(base) + (l % 8) as u64 * [0, u64::from(size), 24][kind as usize]
                });
                let hashes = addr.map(|a| (a ^ u64::from(mask)) as u8);
                let hashed = mask & 2 == 0;
                let row = (mask & 4 == 0).then(|| WarpTimes::new(vec![mask]));
                let details = AccessDetails {
                    row: row.as_ref(),
                    views: None,
                    hashes: hashed.then_some(&hashes),
                };
                log.access(warp_access(mask, size), &addr, details);
                expected.push((mask, size, addr, hashed.then_some(hashes), row));
            }
            let mut got = Vec::new();
            log.replay(
                |a, addr, d| got.push((a.mask, a.size, *addr, d.hashes.copied(), d.row.cloned())),
                |_| (),
            );
            prop_assert_eq!(got, expected);
            prop_assert_eq!(log.bytes(), 0);
        }
    }

    #[test]
    fn blocks_are_judged_in_their_order_whatever_the_order_of_their_ends() {
        let turns = CheckOrder::default();
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
        end(2, BlockEnd::Done);
        end(1, BlockEnd::Done);
        assert!(turns.has(0) && judged.lock().unwrap().is_empty());
        end(0, BlockEnd::Done);
        assert!(turns.has(3));
        end(4, BlockEnd::Done);
        end(3, BlockEnd::Stopped);
        assert_eq!(*judged.lock().unwrap(), [0, 1, 2, 3]);
        assert!(!turns.has(4) && !turns.wait(4, || true));
    }

    #[test]
    fn blocks_that_wrote_nothing_down_are_held_too() {
        let turns = CheckOrder::default();
        let blocks = (HELD_BYTES / ENDED_BYTES) as u64;
        assert!(turns.begin(blocks + 1, || true));
        for block in 1..=blocks {
            turns.end(block, None, BlockEnd::Done, |_, _| (), drop);
        }
        assert!(!turns.begin(blocks + 1, || true) && turns.begin(0, || true));
        turns.end(0, None, BlockEnd::Done, |_, _| (), drop);
        assert!(turns.has(blocks + 1) && turns.begin(blocks + 2, || true));
    }

    #[test]
    fn a_log_of_findings_is_full_by_their_size() {
        let finding = Finding {
            kind: crate::report::FindingKind::SharedRace,
            access: None,
            actor: crate::report::FindingActor::Operation(String::new()),
            note: "x".repeat(100),
            allocation: None,
            other: None,
            count: 1,
        };
        let mut log = AccessLog::default();
        let mut written = 0;
        while !log.is_full() {
            log.found(finding.clone());
            written += 1;
        }
        assert!(written <= LOG_BYTES / (size_of::<Finding>() + 100));
        let mut passed_on = 0;
        log.replay(|_, _, _| (), |_| passed_on += 1);
        assert_eq!((passed_on, log.bytes()), (written, 0));
    }

    #[test]
    fn a_launch_is_stuck_when_all_but_one_of_its_threads_wait() {
        let turns = CheckOrder::default();
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
