//! Writes of changes, a batch of blocks at a time: locked, staged, given to the memory, recorded.
//!
//! Invariant: the lock of a block that is changed is held from before its old content is read until
//! the outcome is recorded in it, so while an update is in flight no other thread has the block.

use std::collections::BTreeSet;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::{ATTEMPTS, Change, Content, Store, WantedRows, wrong_of};
use crate::engine::{BlockOutcome, BlockWork, Identity, RowLocation};
use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, ROW_BYTES};
use crate::medium::{BlockAccess, Medium};

/// The number of changes that were made, from the first on, and why the next was not.
pub(crate) type WriteResult = std::result::Result<(), (usize, Error)>;

/// Changes, the first batch of which the memory was given ([`Store::start_write`]).
#[must_use = "only `Store::finish_write` records what was written"]
pub(crate) struct StartedWrite<'s> {
    /// Changes in the first batch.
    count: usize,
    batch: std::result::Result<StartedBatch<'s>, (usize, Error)>,
}

/// A batch whose blocks are locked, and whose updates are in flight.
struct StartedBatch<'s> {
    guards: Vec<(u32, BlockGuard<'s>)>,
    /// The identity that the block of each change gets.
    identities: Vec<Identity>,
    /// Changes that are updates, by index; the others are made already, or have failed.
    left: Vec<usize>,
    is_done: Vec<bool>,
    failed: Option<(usize, Error)>,
    is_in_flight: bool,
}

impl StartedBatch<'_> {
    /// Notes why a change was not made; the first one counts.
    fn fail(&mut self, at: usize, error: Error) {
        if self.failed.as_ref().is_none_or(|(first, _)| at < *first) {
            self.failed = Some((at, error));
        }
    }
}

impl<M: Medium> Store<M> {
    /// Overwrites parts of runs, in batches of as many as an access has slots, one of each block.
    ///
    /// # Errors
    /// The number of changes that were made, from the first on, and why the next was not.
    /// [`Error::Source`] if rows to be copied are wrong: a read corrects them.
    pub(crate) fn write(&self, access: &mut M::Access, changes: &[Change<'_>]) -> WriteResult {
        let started = self.start_write(access, changes);
        self.finish_write(access, changes, started)
    }

    /// As [`Store::write`], but the updates of the first batch are only started. Its blocks are
    /// locked until [`Store::finish_write`] returns, which is to be called with the same arguments.
    pub(crate) fn start_write(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
    ) -> StartedWrite<'_> {
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
        let part = changes
            .iter()
            .take(access.slots())
            .take_while(is_apart)
            .count();
        StartedWrite {
            count: part,
            batch: self.start_batch(access, &changes[..part], &targets, &sources),
        }
    }

    /// Waits for a moment, and returns whether only a failure of the memory can lose any of the
    /// changes that were started.
    pub(crate) fn is_write_committed(
        access: &mut M::Access,
        changes: &[Change<'_>],
        started: &StartedWrite<'_>,
    ) -> bool {
        // Only if the updates in flight are all that there is to do.
        let is_all = |it: &StartedBatch<'_>| it.is_in_flight && it.left.len() == changes.len();
        started.batch.as_ref().is_ok_and(is_all) && access.wait_committed()
    }

    /// Waits for the changes that were started, and makes the others.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub(crate) fn finish_write(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        started: StartedWrite<'_>,
    ) -> WriteResult {
        let (mut started, mut done) = (started, 0);
        loop {
            let part = &changes[done..done + started.count];
            let batch = started.batch;
            batch
                .and_then(|batch| self.finish_batch(access, part, batch))
                .map_err(|(more, error)| (done + more, error))?;
            done += part.len();
            if done == changes.len() {
                return Ok(());
            }
            started = self.start_write(access, &changes[done..]);
        }
    }

    /// Whether the rows that a change copies can be copied within the memory.
    fn is_reached(&self, it: &Change<'_>) -> bool {
        let source = it.content.source();
        source.is_some_and(|source| {
            self.medium
                .can_copy_rows(source as usize, it.run.block as usize)
        })
    }

    /// The works that make these changes.
    fn works<'i>(
        &self,
        changes: &[Change<'_>],
        some: &[usize],
        identities: &'i [Identity],
    ) -> Vec<BlockWork<'i>> {
        let work = |at: &usize| self.work_of(*at, &changes[*at], &identities[*at]);
        some.iter().map(work).collect()
    }

    /// The work that makes the change of a slot.
    fn work_of<'i>(
        &self,
        slot: usize,
        change: &Change<'_>,
        identity: &'i Identity,
    ) -> BlockWork<'i> {
        BlockWork {
            block: change.run.block as usize,
            rows: change.rows(),
            place: match change.content {
                Content::Rows { block, row, .. } if self.is_reached(change) => {
                    RowLocation::Block(block as usize, row)
                }
                _ => RowLocation::Staging(slot * DATA_BYTES),
            },
            identity: Some(identity),
        }
    }

    /// Locks the blocks of these changes, makes those that need no old content, and starts the
    /// others.
    fn start_batch(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        targets: &BTreeSet<u32>,
        sources: &BTreeSet<u32>,
    ) -> std::result::Result<StartedBatch<'_>, (usize, Error)> {
        let none = |error| (0, error);
        let guard = |block: &u32| match targets.contains(block) {
            true => (*block, BlockGuard::Alone(self.alone(*block))),
            false => (*block, BlockGuard::Shared(self.shared(*block))),
        };
        let guards: Vec<_> = targets.union(sources).map(guard).collect();
        verify_sources(access, changes, &guards, |it| self.is_reached(it)).map_err(none)?;
        let identities: Vec<Identity> = changes
            .iter()
            .map(|it| new_identity(it, identity_of(&guards, it.run.block)))
            .collect();
        self.stage(access, changes, &guards)?;
        // A block that is overwritten whole needs nothing of its old content. Not so with copied
        // rows: wrong ones would leave it invalid.
        let is_given = |it: &Change<'_>| {
            it.rows().len() == DATA_ROWS
                && it.kept().next().is_none()
                && it.content.source().is_none()
        };
        let is_made_anew = |at: usize| {
            let it = &changes[at];
            identities[at][1] != identity_of(&guards, it.run.block)[1] || is_given(it)
        };
        let (anew, left): (Vec<usize>, Vec<usize>) =
            (0..changes.len()).partition(|at| is_made_anew(*at));
        let mut batch = StartedBatch {
            guards,
            identities,
            left,
            is_done: vec![false; changes.len()],
            failed: None,
            is_in_flight: false,
        };
        if !anew.is_empty() {
            let made = access.format(&self.works(changes, &anew, &batch.identities));
            match made {
                Ok(outcomes) => {
                    for (at, outcome) in anew.iter().zip(outcomes) {
                        batch.is_done[*at] = outcome.is_clean();
                        if let Some(error) = bad_source(&changes[*at], outcome) {
                            batch.fail(*at, error);
                        }
                    }
                }
                Err(error) => batch.fail(anew[0], error),
            }
        }
        if !batch.left.is_empty() {
            match access.start_update(&self.works(changes, &batch.left, &batch.identities)) {
                Ok(()) => batch.is_in_flight = true,
                Err(error) => batch.fail(batch.left[0], error),
            }
        }
        Ok(batch)
    }

    /// Brings the rows that keep some of their bytes to the staging buffer, corrected, and puts the
    /// new bytes there.
    fn stage(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        guards: &[(u32, BlockGuard<'_>)],
    ) -> WriteResult {
        let none = |error| (0, error);
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
                    .map(|it| it.work(Some(identity_of(guards, it.block))))
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
                self.correct(access, block, identity_of(guards, block))
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
        Ok(())
    }

    /// Waits for the updates of a batch, repeats those that met errors, and records what was made.
    fn finish_batch(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        mut batch: StartedBatch<'_>,
    ) -> WriteResult {
        let mut left = std::mem::take(&mut batch.left);
        for attempt in 0..ATTEMPTS {
            if left.is_empty() || attempt == 0 && !batch.is_in_flight {
                break;
            }
            let answer = match attempt {
                0 => access.finish_update(),
                _ => access.update(&self.works(changes, &left, &batch.identities)),
            };
            let mut wrong = Vec::new();
            match answer {
                Ok(outcomes) => {
                    for (at, outcome) in left.iter().zip(outcomes) {
                        batch.is_done[*at] = outcome.is_clean();
                        match bad_source(&changes[*at], outcome) {
                            Some(error) => batch.fail(*at, error),
                            None if outcome.is_clean() => {}
                            None => wrong.push(*at),
                        }
                    }
                }
                Err(error) => {
                    batch.fail(left[0], error);
                    break;
                }
            }
            left = wrong;
            for at in &left {
                let block = changes[*at].run.block;
                let corrected = self.correct(access, block, identity_of(&batch.guards, block));
                if let Err(error) = corrected {
                    batch.fail(*at, error);
                }
            }
        }
        for (at, change) in changes.iter().enumerate() {
            let block = change.run.block;
            if batch.is_done[at] {
                let guard = batch.guards.iter_mut().find(|it| it.0 == block);
                if let Some((_, BlockGuard::Alone(guard))) = guard {
                    **guard = batch.identities[at];
                }
            } else {
                batch.fail(at, Error::Lost { block });
            }
        }
        if batch.failed.is_some() {
            self.retire_lost_blocks();
        }
        batch.failed.map_or(Ok(()), Err)
    }
}

/// The identity of a block after a change.
fn new_identity(it: &Change<'_>, is: &Identity) -> Identity {
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
}

/// The error of a change that was to copy rows that are wrong.
fn bad_source(change: &Change<'_>, outcome: &BlockOutcome) -> Option<Error> {
    let block = change.content.source();
    let block = block.filter(|_| outcome.has_wrong_source())?;
    Some(Error::Source { block })
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
