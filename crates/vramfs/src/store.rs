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
//! Elsewhere: changes of runs (`change`), writing them (`batch`), allocation (`space`), which
//! pages a file has (`file`), the memory (`medium`).

mod batch;
mod change;
mod counters;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use rustix::io::Errno;

pub(crate) use self::batch::StartedWrite;
pub(crate) use self::change::{Change, Content, WantedRows};
pub use self::counters::Counters;
use crate::engine::{BlockOutcome, BlockWork, Identity, RowLocation};
use crate::error::{Error, Result};
use crate::layout::IDENTITY_WORDS;
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
