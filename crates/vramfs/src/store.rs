//! Concurrent store of page runs: locked reads, writes and corrections of blocks.
//!
//! One reader-writer lock for each block, since all pages of a block share its parity; the lock
//! holds the identity in the block's record. Several blocks are locked in the order of their
//! numbers. A thread has an access to the memory, with its own staging buffer, for the duration of
//! one call.
//!
//! Invariants: the identity in a block's lock is that of its record, or the block is free; a newly
//! allocated run has zeros wherever its first write does not reach; with the code, what is read is
//! right or an error. A run is freed only when no table refers to it, as it may be allocated again
//! at once.
//! Elsewhere: changes of runs (`change`), allocation (`space`), which pages a file has (`file`), the
//! memory (`medium`).

mod change;
mod counters;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use rustix::io::Errno;

pub(crate) use self::change::{Change, Content, WantedRows};
pub use self::counters::Counters;
use crate::engine::{BlockOutcome, BlockWork, Identity, RowLocation};
use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, ROW_BYTES};
use crate::medium::{BlockAccess, Medium};
use crate::pieces::LazyTable;
use crate::space::PageAllocator;

/// Corrections before an access gives up: new errors may occur meanwhile.
const ATTEMPTS: usize = 3;

/// Accesses to the medium that calls reuse.
#[derive(Debug)]
struct AccessPool<A> {
    idle: Vec<A>,
    /// How many accesses exist, in use or not.
    made: usize,
}

/// Lock of a block, with the identity in the block's record.
type IdentityLock = RwLock<Identity>;

/// Returns the lock of a block that was never written.
fn unowned(block: u32) -> IdentityLock {
    let mut identity = [0; IDENTITY_WORDS];
    identity[0] = u64::from(block);
    RwLock::new(identity)
}

/// How many blocks a store has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLimits {
    /// Blocks that have memory.
    pub backed: u32,
    /// The capacity: blocks from this index on are retired.
    pub capacity: u32,
}

/// Blocks of a medium, with their allocator and their locks.
#[derive(Debug)]
pub struct Store<M: Medium> {
    medium: M,
    space: PageAllocator,
    /// A lock for each block; host memory is allocated for those that are used.
    identities: LazyTable<IdentityLock, 1024>,
    /// Shared by threads that access blocks that may be free; exclusive for threads that add or
    /// free memory.
    extent: RwLock<BlockLimits>,
    pool: Mutex<AccessPool<M::Access>>,
    /// The low-priority access of the scrubber and the tools.
    background: Mutex<Option<M::Access>>,
    returned: Condvar,
    accesses_max: usize,
    counters: Counters,
    /// Number of failed devices with blocks that were already removed from the allocator.
    handled_losses: Mutex<u32>,
}

impl<M: Medium> Store<M> {
    /// Creates a store of the medium's `blocks`, with room for `most`, for that many concurrent
    /// threads.
    pub fn new(medium: M, blocks: u32, most: u32, threads: usize) -> Self {
        let space = PageAllocator::new(most);
        space.add(0..blocks);
        Self {
            medium,
            space,
            identities: LazyTable::new(most),
            extent: RwLock::new(BlockLimits {
                backed: blocks,
                capacity: blocks,
            }),
            background: Mutex::new(None),
            pool: Mutex::new(AccessPool {
                idle: Vec::new(),
                made: 0,
            }),
            returned: Condvar::new(),
            accesses_max: threads.max(1),
            counters: Counters::default(),
            handled_losses: Mutex::new(0),
        }
    }

    /// Stops allocation from blocks that were lost with a device. The caller, which has found one
    /// lost, holds other locks, so this takes none but its own.
    fn retire_lost_blocks(&self) {
        let mut handled_losses = lock(&self.handled_losses);
        let losses = self.medium.failed_devices();
        if *handled_losses != losses {
            let gone = (0..self.blocks()).filter(|block| self.medium.is_lost(*block as usize));
            gone.for_each(|block| self.space.mark_lost(block));
            *handled_losses = losses;
        }
    }

    /// Retries work that was the first to detect a device failure: there may be room on other
    /// devices.
    /// Only for work that may be done in part, or twice.
    pub(crate) fn retry_on_device_loss<R>(
        &self,
        mut work: impl FnMut() -> std::result::Result<R, Errno>,
    ) -> std::result::Result<R, Errno> {
        loop {
            let known = *lock(&self.handled_losses);
            match work() {
                Err(Errno::IO) if *lock(&self.handled_losses) != known => {}
                answer => return answer,
            }
        }
    }

    /// Returns the allocator.
    pub fn space(&self) -> &PageAllocator {
        &self.space
    }

    /// Returns the counts of errors and failures so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns for how many blocks there is room; some may not be there.
    pub fn blocks(&self) -> u32 {
        self.identities.count()
    }

    /// Returns the medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    pub(crate) fn extent(&self) -> RwLockReadGuard<'_, BlockLimits> {
        self.extent.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn extent_alone(&self) -> RwLockWriteGuard<'_, BlockLimits> {
        self.extent.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn background(&self) -> MutexGuard<'_, Option<M::Access>> {
        lock(&self.background)
    }

    /// Acquires an access for one call: an idle one, else a new one if the limit allows; if it
    /// cannot be created, waits until another is returned.
    ///
    /// # Errors
    /// The medium's, if there is no access and none can be created.
    pub(crate) fn acquire_access(&self) -> Result<AccessGuard<'_, M>> {
        let mut pool = lock(&self.pool);
        let mut refused = None;
        loop {
            if let Some(access) = pool.idle.pop() {
                return Ok(self.guard_access(access));
            }
            if refused.is_none() && pool.made < self.accesses_max {
                pool.made += 1;
                drop(pool);
                match self.medium.access() {
                    Ok(access) => return Ok(self.guard_access(access)),
                    Err(error) => refused = Some(error),
                }
                pool = lock(&self.pool);
                pool.made -= 1;
                if pool.made == 0 {
                    // No access will be returned to the waiting threads.
                    self.returned.notify_all();
                }
                continue;
            }
            // A refused thread does not try again: other accesses exist, and are returned.
            if pool.made == 0
                && let Some(error) = refused
            {
                return Err(error);
            }
            pool = self
                .returned
                .wait(pool)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn guard_access(&self, access: M::Access) -> AccessGuard<'_, M> {
        AccessGuard {
            store: self,
            access: Some(access),
        }
    }

    pub(crate) fn shared(&self, block: u32) -> RwLockReadGuard<'_, Identity> {
        let it = self.identities.of(block, unowned);
        it.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alone(&self, block: u32) -> RwLockWriteGuard<'_, Identity> {
        let it = self.identities.of(block, unowned);
        it.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a free block as never written, wherever its memory comes from.
    pub(crate) fn reset_identity(&self, block: u32) {
        if let Some(it) = self.identities.known(block) {
            it.write().unwrap_or_else(PoisonError::into_inner)[1] = 0;
        }
    }

    /// Reads rows into the staging buffer; errors are corrected.
    ///
    /// # Errors
    /// [`Error::Lost`]; the medium's.
    pub(crate) fn read(&self, access: &mut M::Access, wanted: &[WantedRows]) -> Result<()> {
        self.bring(access, wanted, M::Access::read)
    }

    /// As [`Store::read`], for rows that are only returned to a caller: they may be unverified, by
    /// the mount's policy ([`BlockAccess::read_by_policy`]).
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) fn read_by_policy(
        &self,
        access: &mut M::Access,
        wanted: &[WantedRows],
    ) -> Result<()> {
        self.bring(access, wanted, M::Access::read_by_policy)
    }

    fn bring(
        &self,
        access: &mut M::Access,
        wanted: &[WantedRows],
        bring: impl for<'a> Fn(&'a mut M::Access, &[BlockWork<'_>]) -> Result<&'a [BlockOutcome]>,
    ) -> Result<()> {
        let blocks: BTreeSet<u32> = wanted.iter().map(|it| it.block).collect();
        let mut attempts = ATTEMPTS;
        loop {
            let wrong = {
                let guards: Vec<_> = blocks.iter().map(|it| (*it, self.shared(*it))).collect();
                let work: Vec<BlockWork<'_>> = wanted
                    .iter()
                    .map(|it| it.work(known(&guards, it.block)))
                    .collect();
                wrong_of(wanted, bring(access, &work)?)
            };
            let Some(first) = wrong.first() else {
                return Ok(());
            };
            if attempts == 0 {
                // It was corrected, and is wrong again.
                return Err(self.mark_lost(*first));
            }
            attempts -= 1;
            for block in wrong {
                let identity = self.alone(block);
                self.correct(access, block, &identity)?;
            }
        }
    }

    /// Corrects a block that the caller has locked exclusively.
    pub(crate) fn correct(
        &self,
        access: &mut M::Access,
        block: u32,
        identity: &Identity,
    ) -> Result<()> {
        let work = BlockWork {
            block: block as usize,
            rows: 0..0,
            place: RowLocation::Staging(0),
            identity: Some(identity),
        };
        let outcome = access.correct(&[work])?[0];
        self.counters.note(outcome);
        match outcome.is_lost() {
            true => Err(self.mark_lost(block)),
            false => Ok(()),
        }
    }

    /// Quarantines a block that cannot be corrected: runs allocated from it could not be written.
    /// Later reads find it as its lock says.
    fn mark_lost(&self, block: u32) -> Error {
        self.retire_lost_blocks();
        if self.space.quarantine(block) {
            self.counters.lost_blocks.fetch_add(1, Relaxed);
            self.medium.note_lost(block as usize);
        }
        Error::Lost { block }
    }

    /// Overwrites parts of runs, in batches of as many as an access has slots, one of each block.
    ///
    /// # Errors
    /// The number of changes that were made, from the first on, and why the next was not.
    /// [`Error::Source`] if rows to be copied are wrong: a read corrects them.
    pub(crate) fn write(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
    ) -> std::result::Result<(), (usize, Error)> {
        self.write_with_ack(access, changes, &mut || {})
    }

    /// As [`Store::write`], and may call `acknowledge`, once, before it returns: as soon as only a
    /// failure of the memory can lose the bytes.
    pub(crate) fn write_with_ack(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        acknowledge: &mut dyn FnMut(),
    ) -> std::result::Result<(), (usize, Error)> {
        let mut done = 0;
        while done < changes.len() {
            // Batches have one change a block, and no block that another change copies from.
            let (mut targets, mut sources) = (BTreeSet::new(), BTreeSet::new());
            let is_apart = |it: &&Change<'_>| {
                let block = it.run.block;
                let source = it.content.source().filter(|source| *source != block);
                let is_apart = !targets.contains(&block)
                    && !sources.contains(&block)
                    && source.is_none_or(|source| !targets.contains(&source));
                if is_apart {
                    targets.insert(block);
                    sources.extend(source);
                }
                is_apart
            };
            let rest = &changes[done..];
            let part = rest
                .iter()
                .take(access.slots())
                .take_while(is_apart)
                .count();
            let mut nothing = || {};
            let acknowledge: &mut dyn FnMut() = match part == changes.len() {
                true => &mut *acknowledge,
                false => &mut nothing,
            };
            self.write_apart(access, &rest[..part], &targets, &sources, acknowledge)
                .map_err(|(more, error)| (done + more, error))?;
            done += part;
        }
        Ok(())
    }

    fn write_apart(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        targets: &BTreeSet<u32>,
        sources: &BTreeSet<u32>,
        acknowledge: &mut dyn FnMut(),
    ) -> std::result::Result<(), (usize, Error)> {
        let none = |error| (0, error);
        let guard = |block: &u32| match targets.contains(block) {
            true => (*block, BlockGuard::Alone(self.alone(*block))),
            false => (*block, BlockGuard::Shared(self.shared(*block))),
        };
        let mut guards: Vec<_> = targets.union(sources).map(guard).collect();
        let is_reached = |it: &Change<'_>| {
            let source = it.content.source();
            source.is_some_and(|source| {
                self.medium
                    .can_copy_rows(source as usize, it.run.block as usize)
            })
        };
        verify_sources(access, changes, &guards, is_reached).map_err(none)?;
        let identities: Vec<Identity> = changes
            .iter()
            .map(|it| {
                let is = identity_of(&guards, it.run.block);
                let mut identity = *is;
                if let Some(generation) = it.fresh {
                    if is[1] != generation {
                        identity = [0; IDENTITY_WORDS];
                        identity[0] = u64::from(it.run.block);
                        identity[1] = generation;
                    }
                    let pages = usize::from(it.run.page)..;
                    identity[2..][pages][..it.run.pages() as usize].fill(it.owner);
                }
                identity
            })
            .collect();
        // Bytes that stay of rows that are changed in part.
        let mut kept = Vec::new();
        for (slot, it) in changes.iter().enumerate() {
            for row in it.kept() {
                kept.push(WantedRows {
                    block: it.run.block,
                    rows: row..row + 1,
                    at: slot * DATA_BYTES + (row - it.rows().start) * ROW_BYTES,
                });
            }
        }
        for (slot, it) in changes.iter().enumerate() {
            let rows = &mut access.data_mut()[slot * DATA_BYTES..][..it.rows().len() * ROW_BYTES];
            if it.fresh.is_some() && it.content.source().is_none() {
                rows.fill(0);
            }
        }
        for attempt in 0.. {
            if kept.is_empty() {
                break;
            }
            let mut wrong = BTreeSet::new();
            // Two for each change, so possibly more than there are slots.
            for some in kept.chunks(access.slots()) {
                let work: Vec<BlockWork<'_>> = some
                    .iter()
                    .map(|it| it.work(Some(identity_of(&guards, it.block))))
                    .collect();
                wrong.extend(wrong_of(some, access.read(&work).map_err(none)?));
            }
            if wrong.is_empty() {
                break;
            }
            for block in wrong {
                if attempt == ATTEMPTS {
                    return Err((0, Error::Lost { block }));
                }
                self.correct(access, block, identity_of(&guards, block))
                    .map_err(none)?;
            }
        }
        for (slot, it) in changes.iter().enumerate() {
            let at = slot * DATA_BYTES + it.offset();
            match it.content {
                Content::Bytes(bytes) => {
                    access.data_mut()[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Content::Zeros(len) => access.data_mut()[at..at + len].fill(0),
                Content::Rows { .. } => {}
            }
        }
        // A block that is overwritten whole needs nothing of its old content. Not so with copied
        // rows:
        // wrong ones would leave it invalid.
        let is_given = |it: &Change<'_>| {
            it.rows().len() == DATA_ROWS
                && it.kept().next().is_none()
                && it.content.source().is_none()
        };
        let is_made_anew = |at: usize| {
            let it = &changes[at];
            identities[at][1] != identity_of(&guards, it.run.block)[1] || is_given(it)
        };
        let (anew, there): (Vec<usize>, Vec<usize>) =
            (0..changes.len()).partition(|at| is_made_anew(*at));
        let work = |at: &usize| BlockWork {
            block: changes[*at].run.block as usize,
            rows: changes[*at].rows(),
            place: match changes[*at].content {
                Content::Rows { block, row, .. } if is_reached(&changes[*at]) => {
                    RowLocation::Block(block as usize, row)
                }
                _ => RowLocation::Staging(at * DATA_BYTES),
            },
            identity: Some(&identities[*at]),
        };
        let mut failed: Option<(usize, Error)> = None;
        let mut fail = |at: usize, error: Error| {
            if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                failed = Some((at, error));
            }
        };
        let has_bad_source = |at: usize, outcome: &BlockOutcome| {
            let block = changes[at].content.source();
            let block = block.filter(|_| outcome.has_wrong_source())?;
            Some(Error::Source { block })
        };
        let mut is_done = vec![false; changes.len()];
        if !anew.is_empty() {
            let all: Vec<BlockWork<'_>> = anew.iter().map(work).collect();
            match access.format(&all) {
                Ok(outcomes) => {
                    for (at, outcome) in anew.iter().zip(outcomes) {
                        is_done[*at] = outcome.is_clean();
                        if let Some(error) = has_bad_source(*at, outcome) {
                            fail(*at, error);
                        }
                    }
                }
                Err(error) => fail(anew[0], error),
            }
        }
        let mut left = there;
        // Early only if the updates are all that there is to do.
        let mut acknowledge = anew.is_empty().then_some(acknowledge);
        for _ in 0..ATTEMPTS {
            if left.is_empty() {
                break;
            }
            let all: Vec<BlockWork<'_>> = left.iter().map(work).collect();
            let mut wrong = Vec::new();
            let mut acknowledge_once = || {
                if let Some(acknowledge) = acknowledge.take() {
                    acknowledge();
                }
            };
            match access.update_with_ack(&all, &mut acknowledge_once) {
                Ok(outcomes) => {
                    for (at, outcome) in left.iter().zip(outcomes) {
                        is_done[*at] = outcome.is_clean();
                        match has_bad_source(*at, outcome) {
                            Some(error) => {
                                acknowledge = None;
                                fail(*at, error);
                            }
                            None if outcome.is_clean() => {}
                            None => wrong.push(*at),
                        }
                    }
                }
                Err(error) => {
                    fail(left[0], error);
                    break;
                }
            }
            left = wrong;
            for at in &left {
                let block = changes[*at].run.block;
                if let Err(error) = self.correct(access, block, identity_of(&guards, block)) {
                    acknowledge = None;
                    fail(*at, error);
                }
            }
        }
        for (at, identity) in identities.iter().enumerate() {
            let block = changes[at].run.block;
            if is_done[at] {
                let guard = guards.iter_mut().find(|it| it.0 == block);
                if let Some((_, BlockGuard::Alone(guard))) = guard {
                    **guard = *identity;
                }
            } else {
                fail(at, Error::Lost { block });
            }
        }
        if failed.is_some() {
            self.retire_lost_blocks();
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Returns the blocks that have errors.
fn wrong_of(wanted: &[WantedRows], outcomes: &[BlockOutcome]) -> BTreeSet<u32> {
    let all = wanted.iter().zip(outcomes);
    all.filter(|(_, outcome)| !outcome.is_clean())
        .map(|(it, _)| it.block)
        .collect()
}

fn known<'g>(
    guards: &'g [(u32, RwLockReadGuard<'_, Identity>)],
    block: u32,
) -> Option<&'g Identity> {
    let it = guards.iter().find(|it| it.0 == block);
    it.map(|(_, identity)| &**identity)
}

/// Lock of a block that is changed, or that rows are copied from.
enum BlockGuard<'g> {
    Alone(RwLockWriteGuard<'g, Identity>),
    Shared(RwLockReadGuard<'g, Identity>),
}

fn identity_of<'g>(guards: &'g [(u32, BlockGuard<'_>)], block: u32) -> &'g Identity {
    match guards.iter().find(|it| it.0 == block) {
        Some((_, BlockGuard::Alone(identity))) => identity,
        Some((_, BlockGuard::Shared(identity))) => identity,
        // The caller has locked all of them.
        None => &[0; IDENTITY_WORDS],
    }
}

/// Checks that rows to be copied are right, and of the expected blocks: parity that is computed
/// from a wrong row hides the error for ever. Rows that cannot be copied directly are read into
/// staging.
fn verify_sources<A: BlockAccess>(
    access: &mut A,
    changes: &[Change<'_>],
    guards: &[(u32, BlockGuard<'_>)],
    is_reached: impl Fn(&Change<'_>) -> bool,
) -> Result<()> {
    let work = |(slot, it): (usize, &Change<'_>)| match it.content {
        Content::Rows { block, row, count } => Some(BlockWork {
            block: block as usize,
            rows: row..row + count,
            place: match is_reached(it) {
                true => RowLocation::Nowhere,
                false => RowLocation::Staging(slot * DATA_BYTES),
            },
            identity: Some(identity_of(guards, block)),
        }),
        Content::Bytes(_) | Content::Zeros(_) => None,
    };
    let work = changes.iter().enumerate().filter_map(work);
    let (checked, staged): (Vec<_>, Vec<_>) = work.partition(|it| it.place == RowLocation::Nowhere);
    let wrong = |work: &[BlockWork<'_>], outcomes: &[BlockOutcome]| {
        let mut all = work.iter().zip(outcomes);
        all.find(|(_, outcome)| !outcome.is_clean())
            .map(|(it, _)| Error::Source {
                block: it.block as u32,
            })
    };
    let mut found = None;
    if !checked.is_empty() {
        found = wrong(&checked, access.check(&checked)?);
    }
    if !staged.is_empty() && found.is_none() {
        found = wrong(&staged, access.read(&staged)?);
    }
    found.map_or(Ok(()), Err)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An access that returns to the pool when this is dropped.
pub(crate) struct AccessGuard<'s, M: Medium> {
    store: &'s Store<M>,
    /// `Some` until then.
    access: Option<M::Access>,
}

impl<M: Medium> AccessGuard<'_, M> {
    /// Returns the access.
    pub(crate) fn access(&mut self) -> &mut M::Access {
        let Some(access) = &mut self.access else {
            unreachable!("only the drop of a guard takes its access");
        };
        access
    }
}

impl<M: Medium> Drop for AccessGuard<'_, M> {
    fn drop(&mut self) {
        if let Some(access) = self.access.take() {
            lock(&self.store.pool).idle.push(access);
            self.store.returned.notify_one();
        }
    }
}
