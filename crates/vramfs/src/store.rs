//! Runs of pages with their content: read, written and given back, by many threads.
//!
//! Whoever reads rows of a block shares it, whoever changes any has it for himself, since all pages of
//! a block have their parity together: one lock for each block, which also knows what the block's record says. Several
//! are locked in the order of their numbers. A thread has a way to the memory, with staging of its own, for as long as
//! one call takes.
//!
//! Invariants: what is told of a block is what its record says, or the block is nobody's; a run that was just taken
//! has zeros wherever its first write leaves it alone; what is read is right or an error, with the code. What is
//! given back is nobody's from then on, so it is given back when nothing leads to it.
//! Elsewhere: whose a page is (`space`), which pages a file has (`file`), the memory (`medium`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use rustix::io::Errno;

use crate::engine::{Identity, Outcome, Place, Work};
use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, PAGE_BYTES, ROW_BYTES};
use crate::medium::{Access, Medium};
use crate::pieces::Pieces;
use crate::space::{Run, Space, WHOLE};
use crate::tools::BlockLimits;

/// So often something is corrected before it is given up: something else may go wrong meanwhile.
const ATTEMPTS: usize = 3;

/// Rows of a block that are wanted, and where in the staging.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub block: u32,
    pub rows: Range<usize>,
    pub at: usize,
}

impl Wanted {
    fn work<'i>(&self, identity: Option<&'i Identity>) -> Work<'i> {
        Work {
            block: self.block as usize,
            rows: self.rows.clone(),
            place: Place::Staging(self.at),
            identity,
        }
    }
}

/// What a run's bytes become.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'d> {
    Bytes(&'d [u8]),
    Zeros(usize),
    /// Rows of a block, none of which any change of the same call changes. They come to whole rows, and to all of a run that was
    /// just taken, unless that is a block.
    Rows {
        block: u32,
        row: usize,
        count: usize,
    },
}

impl Content<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => len,
            Self::Rows { count, .. } => count * ROW_BYTES,
        }
    }

    /// The block that it comes from.
    fn source(self) -> Option<u32> {
        match self {
            Self::Rows { block, .. } => Some(block),
            Self::Bytes(_) | Self::Zeros(_) => None,
        }
    }
}

/// Bytes of a run that change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'d> {
    pub run: Run,
    /// Of a run that was just taken, its block's generation: its other bytes become zeros.
    pub fresh: Option<u64>,
    /// Whose the pages are.
    pub owner: u64,
    /// From this byte of the run on.
    pub from: usize,
    pub content: Content<'d>,
}

impl Change<'_> {
    /// Rows of the block that are written.
    fn rows(&self) -> Range<usize> {
        let first = usize::from(self.run.page) * (PAGE_BYTES / ROW_BYTES);
        // The rest of a whole block is cleared with it.
        if self.fresh.is_some() && u32::from(self.run.order) != WHOLE {
            return first..first + self.run.pages() as usize * (PAGE_BYTES / ROW_BYTES);
        }
        let end = self.from + self.content.len();
        first + self.from / ROW_BYTES..first + end.div_ceil(ROW_BYTES)
    }

    /// Where in the rows the content begins.
    fn offset(&self) -> usize {
        let first = usize::from(self.run.page) * PAGE_BYTES;
        first + self.from - self.rows().start * ROW_BYTES
    }

    /// Rows that keep bytes of what they had: the first and the last, or one.
    fn kept(&self) -> impl Iterator<Item = usize> {
        let (rows, offset) = (self.rows(), self.offset());
        let end = offset + self.content.len();
        let first = (!offset.is_multiple_of(ROW_BYTES)).then_some(rows.start);
        let last = (!end.is_multiple_of(ROW_BYTES)).then_some(rows.end.wrapping_sub(1));
        let last = last.filter(|last| first != Some(*last));
        let is_kept = self.fresh.is_none() && self.content.len() > 0;
        first.into_iter().chain(last).filter(move |_| is_kept)
    }
}

/// How much was found wrong.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks in which something was wrong and is right now.
    pub corrected_blocks: AtomicU64,
    /// Symbols that were wrong.
    pub corrected_symbols: AtomicU64,
    /// Rows that were not what their sums say.
    pub corrected_rows: AtomicU64,
    /// Records, with all sums of a block, that were not what their own sums say.
    pub corrected_records: AtomicU64,
    /// Blocks that were found to have what cannot be corrected.
    pub lost_blocks: AtomicU64,
    /// Blocks that were looked at though nobody read them.
    pub scrubbed_blocks: AtomicU64,
    /// Times that the scrubber has looked at all of them.
    pub scrub_rounds: AtomicU64,
    /// Times that it could not.
    pub scrub_failures: AtomicU64,
    /// Writes that were answered, and whose device failed before it had their bytes.
    pub unkept_writes: AtomicU64,
}

impl Counters {
    fn note(&self, outcome: Outcome) {
        if outcome.is_corrected() {
            self.corrected_blocks.fetch_add(1, Relaxed);
            self.corrected_symbols
                .fetch_add(u64::from(outcome.symbols()), Relaxed);
            self.corrected_rows
                .fetch_add(u64::from(outcome.wrong_rows()), Relaxed);
            self.corrected_records
                .fetch_add(u64::from(outcome.has_wrong_record()), Relaxed);
        }
    }
}

#[derive(Debug)]
struct Ways<A> {
    idle: Vec<A>,
    /// How many there are, in use or not.
    made: usize,
}

/// What a block's record says.
type Known = RwLock<Identity>;

/// Of a block that is nobody's.
fn nobody(block: u32) -> Known {
    let mut identity = [0; IDENTITY_WORDS];
    identity[0] = u64::from(block);
    RwLock::new(identity)
}

/// See the module.
#[derive(Debug)]
pub struct Store<M: Medium> {
    medium: M,
    space: Space,
    /// What blocks' records say, a lock each; host memory for those that there are.
    identities: Pieces<Known, 1024>,
    /// Who looks at blocks that may be nobody's shares it; who adds or takes memory has it alone.
    extent: RwLock<BlockLimits>,
    ways: Mutex<Ways<M::Access>>,
    /// The way by which blocks are looked at that nobody reads.
    background: Mutex<Option<M::Access>>,
    back: Condvar,
    most_ways: usize,
    counters: Counters,
    /// Blocks of so many devices that have failed are given out no more.
    heeded: Mutex<u32>,
}

impl<M: Medium> Store<M> {
    /// One of as many blocks as the medium has, and room for `most`; so many threads use it at a time.
    pub fn new(medium: M, blocks: u32, most: u32, threads: usize) -> Self {
        let space = Space::new(most);
        space.add(0..blocks);
        Self {
            medium,
            space,
            identities: Pieces::new(most),
            extent: RwLock::new(BlockLimits {
                backed: blocks,
                capacity: blocks,
            }),
            background: Mutex::new(None),
            ways: Mutex::new(Ways {
                idle: Vec::new(),
                made: 0,
            }),
            back: Condvar::new(),
            most_ways: threads.max(1),
            counters: Counters::default(),
            heeded: Mutex::new(0),
        }
    }

    /// Has blocks that went with a device given out no more. Who finds one gone holds other locks, so this takes none but its own.
    fn heed(&self) {
        let mut heeded = lock(&self.heeded);
        let losses = self.medium.losses();
        if *heeded != losses {
            let gone = (0..self.blocks()).filter(|block| self.medium.is_gone(*block as usize));
            gone.for_each(|block| self.space.lose(block));
            *heeded = losses;
        }
    }

    /// Does again what found, as the first, that a device has failed: there may be room on others. Not what can be neither done in part nor
    /// twice.
    pub(crate) fn with_others<R>(
        &self,
        mut work: impl FnMut() -> std::result::Result<R, Errno>,
    ) -> std::result::Result<R, Errno> {
        loop {
            let known = *lock(&self.heeded);
            match work() {
                Err(Errno::IO) if *lock(&self.heeded) != known => {}
                answer => return answer,
            }
        }
    }

    /// Whose pages are.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// What went wrong so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Room for so many blocks, of which some may not be there.
    pub fn blocks(&self) -> u32 {
        self.identities.count()
    }

    /// The memory.
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

    /// A way to the memory, for one call. If there may be more than there are one is made; if it cannot be, one of the others comes back.
    ///
    /// # Errors
    /// The medium's, if there is none and none can be made.
    pub(crate) fn way(&self) -> Result<Way<'_, M>> {
        let mut ways = lock(&self.ways);
        let mut refused = None;
        loop {
            if let Some(access) = ways.idle.pop() {
                return Ok(self.way_by(access));
            }
            if refused.is_none() && ways.made < self.most_ways {
                ways.made += 1;
                drop(ways);
                match self.medium.access() {
                    Ok(access) => return Ok(self.way_by(access)),
                    Err(error) => refused = Some(error),
                }
                ways = lock(&self.ways);
                ways.made -= 1;
                if ways.made == 0 {
                    // None comes back to those who wait.
                    self.back.notify_all();
                }
                continue;
            }
            // Who was refused tries no more: there are others, and they come back.
            if ways.made == 0
                && let Some(error) = refused
            {
                return Err(error);
            }
            ways = self.back.wait(ways).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn way_by(&self, access: M::Access) -> Way<'_, M> {
        Way {
            store: self,
            access: Some(access),
        }
    }

    pub(crate) fn shared(&self, block: u32) -> RwLockReadGuard<'_, Identity> {
        let it = self.identities.of(block, nobody);
        it.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alone(&self, block: u32) -> RwLockWriteGuard<'_, Identity> {
        let it = self.identities.of(block, nobody);
        it.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block that nobody uses was never written, wherever its memory comes from.
    pub(crate) fn unmake(&self, block: u32) {
        if let Some(it) = self.identities.known(block) {
            it.write().unwrap_or_else(PoisonError::into_inner)[1] = 0;
        }
    }

    /// Rows come to the staging, and are right.
    ///
    /// # Errors
    /// [`Error::Lost`]; the medium's.
    pub(crate) fn read(&self, access: &mut M::Access, wanted: &[Wanted]) -> Result<()> {
        self.bring(access, wanted, M::Access::read)
    }

    /// As [`Store::read`], for who only shows them to somebody: they may not have been looked at
    /// ([`Access::show`]).
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) fn show(&self, access: &mut M::Access, wanted: &[Wanted]) -> Result<()> {
        self.bring(access, wanted, M::Access::show)
    }

    fn bring(
        &self,
        access: &mut M::Access,
        wanted: &[Wanted],
        bring: impl for<'a> Fn(&'a mut M::Access, &[Work<'_>]) -> Result<&'a [Outcome]>,
    ) -> Result<()> {
        let blocks: BTreeSet<u32> = wanted.iter().map(|it| it.block).collect();
        let mut attempts = ATTEMPTS;
        loop {
            let wrong = {
                let guards: Vec<_> = blocks.iter().map(|it| (*it, self.shared(*it))).collect();
                let work: Vec<Work<'_>> = wanted
                    .iter()
                    .map(|it| it.work(known(&guards, it.block)))
                    .collect();
                wrong_of(wanted, bring(access, &work)?)
            };
            let Some(first) = wrong.first() else {
                return Ok(());
            };
            if attempts == 0 {
                // It is corrected, and wrong again.
                return Err(self.lost(*first));
            }
            attempts -= 1;
            for block in wrong {
                let identity = self.alone(block);
                self.correct(access, block, &identity)?;
            }
        }
    }

    /// Makes a block right, which the caller has for himself.
    pub(crate) fn correct(
        &self,
        access: &mut M::Access,
        block: u32,
        identity: &Identity,
    ) -> Result<()> {
        let work = Work {
            block: block as usize,
            rows: 0..0,
            place: Place::Staging(0),
            identity: Some(identity),
        };
        let outcome = access.correct(&[work])?[0];
        self.counters.note(outcome);
        match outcome.is_lost() {
            true => Err(self.lost(block)),
            false => Ok(()),
        }
    }

    /// A block that is wrong and stays so is nobody's to be: he could not write what he takes of it. Who looks again finds it as it
    /// is known.
    fn lost(&self, block: u32) -> Error {
        self.heed();
        if self.space.shun(block) {
            self.counters.lost_blocks.fetch_add(1, Relaxed);
            self.medium.note_lost(block as usize);
        }
        Error::Lost { block }
    }

    /// Changes what runs have: as many at once as a way has slots, and of one block one.
    ///
    /// # Errors
    /// [`Error::Source`] for rows of a block that are wrong: who reads them has them corrected.
    /// How many were changed, from the first on, and why the next was not.
    pub(crate) fn write(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
    ) -> std::result::Result<(), (usize, Error)> {
        self.write_telling(access, changes, &mut || {})
    }

    /// As [`Store::write`], and may call `taken`, once, before it returns: when only the memory's end keeps all of it from being written.
    pub(crate) fn write_telling(
        &self,
        access: &mut M::Access,
        changes: &[Change<'_>],
        taken: &mut dyn FnMut(),
    ) -> std::result::Result<(), (usize, Error)> {
        let mut done = 0;
        while done < changes.len() {
            // Of one block one at a time, and none that another comes from.
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
            let taken: &mut dyn FnMut() = match part == changes.len() {
                true => &mut *taken,
                false => &mut nothing,
            };
            self.write_apart(access, &rest[..part], &targets, &sources, taken)
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
        taken: &mut dyn FnMut(),
    ) -> std::result::Result<(), (usize, Error)> {
        let none = |error| (0, error);
        let guard = |block: &u32| match targets.contains(block) {
            true => (*block, Guard::Alone(self.alone(*block))),
            false => (*block, Guard::Shared(self.shared(*block))),
        };
        let mut guards: Vec<_> = targets.union(sources).map(guard).collect();
        let is_reached = |it: &Change<'_>| {
            let source = it.content.source();
            source.is_some_and(|source| self.medium.reaches(source as usize, it.run.block as usize))
        };
        look_at_sources(access, changes, &guards, is_reached).map_err(none)?;
        let identities: Vec<Identity> = changes
            .iter()
            .map(|it| {
                let is = known_of(&guards, it.run.block);
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
        // What stays of rows that are changed in part.
        let mut kept = Vec::new();
        for (slot, it) in changes.iter().enumerate() {
            for row in it.kept() {
                kept.push(Wanted {
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
            // Two of a change, so maybe more than there are slots.
            for some in kept.chunks(access.slots()) {
                let work: Vec<Work<'_>> = some
                    .iter()
                    .map(|it| it.work(Some(known_of(&guards, it.block))))
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
                self.correct(access, block, known_of(&guards, block))
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
        // A block of which all is given needs nothing of what it had; with rows of another that are wrong it would be none.
        let is_given = |it: &Change<'_>| {
            it.rows().len() == DATA_ROWS
                && it.kept().next().is_none()
                && it.content.source().is_none()
        };
        let is_made_anew = |at: usize| {
            let it = &changes[at];
            identities[at][1] != known_of(&guards, it.run.block)[1] || is_given(it)
        };
        let (anew, there): (Vec<usize>, Vec<usize>) =
            (0..changes.len()).partition(|at| is_made_anew(*at));
        let work = |at: &usize| Work {
            block: changes[*at].run.block as usize,
            rows: changes[*at].rows(),
            place: match changes[*at].content {
                Content::Rows { block, row, .. } if is_reached(&changes[*at]) => {
                    Place::Block(block as usize, row)
                }
                _ => Place::Staging(at * DATA_BYTES),
            },
            identity: Some(&identities[*at]),
        };
        let mut failed: Option<(usize, Error)> = None;
        let mut fail = |at: usize, error: Error| {
            if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                failed = Some((at, error));
            }
        };
        let has_bad_source = |at: usize, outcome: &Outcome| {
            let block = changes[at].content.source();
            let block = block.filter(|_| outcome.has_wrong_source())?;
            Some(Error::Source { block })
        };
        let mut is_done = vec![false; changes.len()];
        if !anew.is_empty() {
            let all: Vec<Work<'_>> = anew.iter().map(work).collect();
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
        // Where these are all that there is to do.
        let mut taken = anew.is_empty().then_some(taken);
        for _ in 0..ATTEMPTS {
            if left.is_empty() {
                break;
            }
            let all: Vec<Work<'_>> = left.iter().map(work).collect();
            let mut wrong = Vec::new();
            let mut tell = || {
                if let Some(taken) = taken.take() {
                    taken();
                }
            };
            match access.update_telling(&all, &mut tell) {
                Ok(outcomes) => {
                    for (at, outcome) in left.iter().zip(outcomes) {
                        is_done[*at] = outcome.is_clean();
                        match has_bad_source(*at, outcome) {
                            Some(error) => {
                                taken = None;
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
                if let Err(error) = self.correct(access, block, known_of(&guards, block)) {
                    taken = None;
                    fail(*at, error);
                }
            }
        }
        for (at, identity) in identities.iter().enumerate() {
            let block = changes[at].run.block;
            if is_done[at] {
                let guard = guards.iter_mut().find(|it| it.0 == block);
                if let Some((_, Guard::Alone(guard))) = guard {
                    **guard = *identity;
                }
            } else {
                fail(at, Error::Lost { block });
            }
        }
        if failed.is_some() {
            self.heed();
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The blocks of those that are not right.
fn wrong_of(wanted: &[Wanted], outcomes: &[Outcome]) -> BTreeSet<u32> {
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

/// A block that is changed, or whose rows are taken.
enum Guard<'g> {
    Alone(RwLockWriteGuard<'g, Identity>),
    Shared(RwLockReadGuard<'g, Identity>),
}

fn known_of<'g>(guards: &'g [(u32, Guard<'_>)], block: u32) -> &'g Identity {
    match guards.iter().find(|it| it.0 == block) {
        Some((_, Guard::Alone(identity))) => identity,
        Some((_, Guard::Shared(identity))) => identity,
        // Whoever asks has locked them all.
        None => &[0; IDENTITY_WORDS],
    }
}

/// Whether rows that are to be taken are right, and of the blocks that they are to be of: with parity made of what is
/// wrong nobody could ever tell. Those that do not reach where they are to go come to the staging.
fn look_at_sources<A: Access>(
    access: &mut A,
    changes: &[Change<'_>],
    guards: &[(u32, Guard<'_>)],
    is_reached: impl Fn(&Change<'_>) -> bool,
) -> Result<()> {
    let work = |(slot, it): (usize, &Change<'_>)| match it.content {
        Content::Rows { block, row, count } => Some(Work {
            block: block as usize,
            rows: row..row + count,
            place: match is_reached(it) {
                true => Place::Nowhere,
                false => Place::Staging(slot * DATA_BYTES),
            },
            identity: Some(known_of(guards, block)),
        }),
        Content::Bytes(_) | Content::Zeros(_) => None,
    };
    let work = changes.iter().enumerate().filter_map(work);
    let (looked, brought): (Vec<_>, Vec<_>) = work.partition(|it| it.place == Place::Nowhere);
    let wrong = |work: &[Work<'_>], outcomes: &[Outcome]| {
        let mut all = work.iter().zip(outcomes);
        all.find(|(_, outcome)| !outcome.is_clean())
            .map(|(it, _)| Error::Source {
                block: it.block as u32,
            })
    };
    let mut found = None;
    if !looked.is_empty() {
        found = wrong(&looked, access.look(&looked)?);
    }
    if !brought.is_empty() && found.is_none() {
        found = wrong(&brought, access.read(&brought)?);
    }
    found.map_or(Ok(()), Err)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A way to the memory, which goes back when this is dropped.
pub(crate) struct Way<'s, M: Medium> {
    store: &'s Store<M>,
    /// Until then.
    access: Option<M::Access>,
}

impl<M: Medium> Way<'_, M> {
    /// It.
    pub(crate) fn access(&mut self) -> &mut M::Access {
        let Some(access) = &mut self.access else {
            unreachable!("only who drops a way takes what it has");
        };
        access
    }
}

impl<M: Medium> Drop for Way<'_, M> {
    fn drop(&mut self) {
        if let Some(access) = self.access.take() {
            lock(&self.store.ways).idle.push(access);
            self.store.back.notify_one();
        }
    }
}
