//! One thread's access to an array: has the devices do their parts of a call, one after the other.
//!
//! Invariant: before a call that changes blocks returns, all devices in use of a mirror have the
//! same blocks, and the devices that cannot have them are out of use.

use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};

use super::state::{ArrayLayout, ArrayState};
use crate::engine::{BlockOutcome, BlockWork, Identity, RowLocation};
use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, DATA_ROWS};
use crate::medium::{ArrayMember, BlockAccess, LendStaging as _};

/// First bit of the device index in the generation of a stripe's block. No block has 2^56
/// generations.
const DEVICE_SHIFT: u32 = 56;

/// An operation of one device's access on some blocks.
type BlockOperation<A> =
    for<'a, 'b, 'c> fn(&'a mut A, &'b [BlockWork<'c>]) -> Result<&'a [BlockOutcome]>;

/// What devices answered, with their indices.
type DeviceAnswers = Vec<(usize, Result<Vec<BlockOutcome>>)>;

/// Which devices of a mirror do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MirrorCall {
    /// Any one of them: what is right on one device is right.
    ReadOne,
    /// Each: errors of each device count.
    ReadAll,
    /// Each, and afterwards their blocks are the same.
    Change,
}

/// One thread's access to an array.
#[derive(Debug)]
pub struct ArrayAccess<M: ArrayMember> {
    pub(super) all: Arc<ArrayState<M>>,
    /// Accesses by device index; none for a device that is out of use.
    pub(super) accesses: Vec<Option<M::Access>>,
    /// Index of the device that has the staging buffer. Its access always exists, even if it is out
    /// of use.
    pub(super) holder: usize,
    /// Value of the array's `losses` when `accesses` was last refitted.
    pub(super) losses: u32,
    /// Index of the device that the next read goes to first.
    pub(super) next_read: usize,
    pub(super) outcomes: Vec<BlockOutcome>,
}

impl<M: ArrayMember> ArrayAccess<M> {
    /// Drops the accesses to devices that are out of use. The staging buffer may be page-locked by
    /// one of them, or in use by it: another buffer with the same bytes replaces it.
    fn refit(&mut self) -> Result<()> {
        let holder = self.accesses[self.holder].as_ref();
        if holder.is_some_and(|it| it.is_spent()) {
            self.all.fail_device(self.holder);
        }
        let losses = self.all.losses.load(Acquire);
        // The holder may be out of use already and not be counted in `losses` yet.
        if losses == self.losses && !self.all.devices[self.holder].is_out() {
            return Ok(());
        }
        let bytes = self.data().to_vec();
        self.holder = loop {
            let mut live = self.all.live().map(|(at, _)| at);
            let live = live.find(|at| self.accesses[*at].is_some());
            let live = live.ok_or(Error::NoDevice)?;
            let Some(access) = &mut self.accesses[live] else {
                continue;
            };
            match access.restage(&bytes) {
                Ok(()) => break live,
                // This device has failed as well, and had no request since.
                Err(error)
                    if access.is_spent() || self.all.devices[live].medium.has_failed(&error) =>
                {
                    self.all.fail_device(live);
                }
                Err(error) => return Err(error),
            }
        };
        let losses = self.all.losses.load(Acquire);
        for (access, one) in self.accesses.iter_mut().zip(&self.all.devices) {
            if one.is_out() {
                *access = None;
            }
        }
        self.losses = losses;
        Ok(())
    }

    /// Runs `work` on one device. `None` if the device is out of use, or has failed just now.
    fn run_on<R>(
        &mut self,
        at: usize,
        work: impl FnOnce(&mut M::Access) -> Result<R>,
    ) -> Option<Result<R>> {
        if self.all.devices[at].is_out() {
            return None;
        }
        if let Err(error) = self.refit() {
            return Some(Err(error));
        }
        let done = match self.accesses.get_disjoint_mut([at, self.holder]) {
            Ok([Some(access), Some(holder)]) => match access.exchange(holder) {
                Ok(()) => {
                    self.holder = at;
                    work(access)
                }
                // Such an error does not show that this device failed: the other access may be its
                // cause. But a holder that has failed was replaced above, so the failure is this
                // device's.
                Err(_) if access.is_spent() => {
                    self.all.fail_device(at);
                    return None;
                }
                Err(error) => return Some(Err(error)),
            },
            // `at` holds the staging buffer already.
            _ => work(self.accesses[at].as_mut()?),
        };
        let error = match done {
            Ok(done) => return Some(Ok(done)),
            Err(error) => error,
        };
        let is_spent = self.accesses[at].as_ref().is_some_and(|it| it.is_spent());
        if is_spent || self.all.devices[at].medium.has_failed(&error) {
            self.all.fail_device(at);
            return None;
        }
        Some(Err(error))
    }

    /// Has the devices do the work: of a stripe each its part, of a mirror as `how` says.
    fn run(
        &mut self,
        work: &[BlockWork<'_>],
        call: BlockOperation<M::Access>,
        how: MirrorCall,
    ) -> Result<()> {
        match (self.all.spread, how) {
            (ArrayLayout::Stripe, how) => self.run_striped(work, call, how == MirrorCall::Change),
            (ArrayLayout::Mirror, MirrorCall::ReadOne) => self.run_on_any(work, call),
            (ArrayLayout::Mirror, MirrorCall::ReadAll) => self.examine_all(work, call),
            (ArrayLayout::Mirror, MirrorCall::Change) => self.change_all(work, call),
        }
    }

    /// Has each device of a stripe do its part of the work.
    fn run_striped(
        &mut self,
        work: &[BlockWork<'_>],
        call: BlockOperation<M::Access>,
        changes: bool,
    ) -> Result<()> {
        let count = self.all.count();
        self.outcomes.clear();
        // A block for which no device answers is lost.
        self.outcomes.resize(work.len(), BlockOutcome::LOST);
        let (mut is_done, mut refused) = (false, None);
        for at in 0..count {
            let own: Vec<usize> = (0..work.len())
                .filter(|it| work[*it].block % count == at)
                .collect();
            let there = own
                .iter()
                .map(|it| local_identity(work[*it].identity, count));
            let identities: Vec<Option<Identity>> = there.collect();
            let there = own.iter().zip(&identities);
            let part: Vec<BlockWork<'_>> = there
                .map(|(it, identity)| local_work(&work[*it], identity.as_ref(), count))
                .collect::<Result<_>>()?;
            if own.is_empty() {
                continue;
            }
            match self.run_on(at, |access| {
                call(access, &part).map(<[BlockOutcome]>::to_vec)
            }) {
                Some(Ok(outcomes)) => {
                    is_done = true;
                    for (it, outcome) in own.iter().zip(outcomes) {
                        self.outcomes[*it] = outcome;
                    }
                }
                Some(Err(error)) => refused = refused.or(Some(error)),
                None => {}
            }
        }
        match refused {
            // The caller needs the outcomes of what was changed already.
            Some(error) if !(changes && is_done) => Err(error),
            _ => Ok(()),
        }
    }

    /// Has one device of a mirror do the work, a different one each time.
    fn run_on_any(
        &mut self,
        work: &[BlockWork<'_>],
        call: BlockOperation<M::Access>,
    ) -> Result<()> {
        let count = self.all.count();
        self.next_read = (self.next_read + 1) % count;
        let mut refused = None;
        for at in (self.next_read..self.next_read + count).map(|at| at % count) {
            match self.run_on(at, |access| {
                call(access, work).map(<[BlockOutcome]>::to_vec)
            }) {
                Some(Ok(outcomes)) => {
                    self.outcomes = outcomes;
                    return Ok(());
                }
                Some(Err(error)) => refused = refused.or(Some(error)),
                None => {}
            }
        }
        Err(refused.unwrap_or(Error::NoDevice))
    }

    /// Has all devices of a mirror do the work. The answers are of the devices that are in use
    /// afterwards.
    fn run_on_all(
        &mut self,
        work: &[BlockWork<'_>],
        call: BlockOperation<M::Access>,
    ) -> DeviceAnswers {
        let mut answers = Vec::new();
        for at in 0..self.all.count() {
            let done = self.run_on(at, |access| {
                call(access, work).map(<[BlockOutcome]>::to_vec)
            });
            answers.extend(done.map(|it| (at, it)));
        }
        answers
    }

    /// Has all devices of a mirror examine blocks, and merges what they found.
    fn examine_all(
        &mut self,
        work: &[BlockWork<'_>],
        call: BlockOperation<M::Access>,
    ) -> Result<()> {
        let mut all: Option<Vec<BlockOutcome>> = None;
        for (_, answer) in self.run_on_all(work, call) {
            let outcomes = answer?;
            all = Some(match all {
                Some(all) => all
                    .into_iter()
                    .zip(outcomes)
                    .map(|(one, other)| one.with(other))
                    .collect(),
                None => outcomes,
            });
        }
        self.outcomes = all.ok_or(Error::NoDevice)?;
        Ok(())
    }

    /// Has all devices of a mirror change blocks, and makes the blocks equal on all of them
    /// afterwards.
    fn change_all(
        &mut self,
        work: &[BlockWork<'_>],
        call: BlockOperation<M::Access>,
    ) -> Result<()> {
        let has_code = |it: &ArrayState<M>| it.devices.iter().all(|one| one.medium.has_code());
        let mut answers = self.run_on_all(work, call);
        let first = answers.first().map(|it| it.0).ok_or(Error::NoDevice)?;
        if answers.iter().all(|(_, it)| it.is_err()) {
            let (_, answer) = answers.swap_remove(0);
            // Kernels that were not launched have changed nothing; but of several copies the first
            // may be done.
            let may_differ =
                !has_code(&self.all) && matches!(answer, Err(Error::Cuda(_) | Error::Copy(_)));
            for it in work.iter().filter(|_| may_differ) {
                // Without a code no identity is checked.
                let it = BlockWork {
                    identity: None,
                    ..it.clone()
                };
                self.synchronize(first, &it);
            }
            return answer.map(drop);
        }
        let mut outcomes = Vec::with_capacity(work.len());
        for (place, it) in work.iter().enumerate() {
            let of =
                |answer: &Result<Vec<BlockOutcome>>| answer.as_ref().ok().map(|all| all[place]);
            let is_clean = |answer| of(answer).is_some_and(|it| it.is_clean());
            let found = answers.iter().filter_map(|(_, answer)| of(answer));
            let found = found
                .reduce(BlockOutcome::with)
                .unwrap_or(BlockOutcome::LOST);
            let parts = answers.iter().map(|(at, answer)| (*at, is_clean(answer)));
            let (good, bad): (Vec<_>, Vec<_>) = parts.partition(|part| part.1);
            outcomes.push(if good.is_empty() {
                found
            } else {
                let all = |(to, _): (usize, bool)| {
                    self.rebuild_from_any(&good, to, it)
                        || self.repeat_change(&good, to, it, call)
                        || self.fail_as_different(&good, to)
                };
                match bad.into_iter().all(all) {
                    true => BlockOutcome::CLEAN,
                    // The device that did it has failed since, and the others did not do it.
                    false => BlockOutcome::LOST,
                }
            });
        }
        self.outcomes = outcomes;
        // The devices that did it may have been the last.
        self.all.live().next().map(drop).ok_or(Error::NoDevice)
    }

    /// Has all devices of a mirror correct blocks. A block that one cannot correct is copied from
    /// another.
    fn correct_all(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        let answers = self.run_on_all(work, M::Access::correct);
        let mut all = vec![Vec::new(); work.len()];
        for (at, answer) in answers {
            for (place, outcome) in answer?.into_iter().enumerate() {
                all[place].push((at, outcome));
            }
        }
        let mut outcomes = Vec::with_capacity(work.len());
        for (it, found) in work.iter().zip(all) {
            let both = found.iter().map(|it| it.1).reduce(BlockOutcome::with);
            let both = both.ok_or(Error::NoDevice)?;
            let (bad, good): (Vec<_>, Vec<_>) = found.iter().partition(|it| it.1.is_lost());
            for (at, outcome) in &good {
                let corrected = &self.all.devices[*at].corrected;
                corrected.fetch_add(u64::from(outcome.is_corrected()), Relaxed);
            }
            let mut is_right = !good.is_empty();
            for (at, _) in bad {
                is_right &= self.rebuild_or_fail(&good, at, it);
            }
            outcomes.push(match both.is_lost() && is_right {
                true => both.marked_corrected(),
                false => both,
            });
        }
        self.outcomes = outcomes;
        Ok(())
    }

    /// Repeats a change on the device `to`, which has not made it, if the devices `good` that have
    /// made it cannot read their block: they checked no more rows than they changed. Then their
    /// block is copied from `to`. Returns whether all devices in use have the same block; if not,
    /// none was taken out of use for that yet.
    fn repeat_change(
        &mut self,
        good: &[(usize, bool)],
        to: usize,
        it: &BlockWork<'_>,
        call: BlockOperation<M::Access>,
    ) -> bool {
        // A block that gets a new identity still has its old one. The call checks again which block
        // it is.
        let mut is_readable_as = |identity| {
            let whole = [BlockWork {
                rows: 0..0,
                place: RowLocation::Nowhere,
                identity,
                ..it.clone()
            }];
            let lost = self.run_on(to, |access| {
                access.correct(&whole).map(|it| it[0].is_lost())
            });
            matches!(lost, Some(Ok(false)))
        };
        if !is_readable_as(it.identity) && !is_readable_as(None) {
            return false;
        }
        let again = self.run_on(to, |access| {
            call(access, std::slice::from_ref(it)).map(|it| it[0].is_clean())
        });
        if !matches!(again, Some(Ok(true))) {
            return false;
        }
        for (from, _) in good {
            if !self.rebuild(to, *from, it) {
                self.all.fail_as_different_from(*from, to);
            }
        }
        !self.all.devices[to].is_out()
    }

    /// Copies a block to the device `to` from one of the others, or takes `to` out of use if no
    /// other device can read the block. If the others fail, `to` stays, as it may be the last one.
    /// Returns whether all devices in use have the same block.
    fn rebuild_or_fail<T>(&mut self, from: &[(usize, T)], to: usize, it: &BlockWork<'_>) -> bool {
        self.rebuild_from_any(from, to, it) || self.fail_as_different(from, to)
    }

    /// As [`ArrayAccess::rebuild_or_fail`], but takes no device out of use.
    fn rebuild_from_any<T>(&mut self, from: &[(usize, T)], to: usize, it: &BlockWork<'_>) -> bool {
        let mut is_made = self.all.devices[to].is_out();
        for (from, _) in from {
            is_made = is_made || self.rebuild(*from, to, it) || self.all.devices[to].is_out();
        }
        is_made
    }

    /// Takes a device out of use, the block of which differs from the others'. Returns whether it
    /// is out.
    fn fail_as_different<T>(&self, others: &[(usize, T)], to: usize) -> bool {
        for (other, _) in others {
            self.all.fail_as_different_from(to, *other);
        }
        self.all.devices[to].is_out()
    }

    fn rebuild(&mut self, from: usize, to: usize, it: &BlockWork<'_>) -> bool {
        let work = [BlockWork {
            block: it.block,
            rows: 0..DATA_ROWS,
            place: RowLocation::Staging(0),
            identity: it.identity,
        }];
        // The staging buffer holds the caller's data, which is restored below.
        let before = self.data()[..DATA_BYTES].to_vec();
        let is_clean = |done: Option<Result<bool>>| matches!(done, Some(Ok(true)));
        let one = |outcomes: &[BlockOutcome]| outcomes[0].is_clean();
        let mut is_read = is_clean(self.run_on(from, |access| access.read(&work).map(one)));
        if !is_read {
            // Rows beyond those of the request may have errors on that device too.
            let whole = [BlockWork {
                rows: 0..0,
                ..work[0].clone()
            }];
            let corrected = self.run_on(from, |access| access.correct(&whole).map(|it| it[0]));
            if let Some(Ok(outcome)) = corrected
                && !outcome.is_lost()
            {
                let corrected = &self.all.devices[from].corrected;
                corrected.fetch_add(u64::from(outcome.is_corrected()), Relaxed);
                is_read = is_clean(self.run_on(from, |access| access.read(&work).map(one)));
            }
        }
        let is_made = is_read && is_clean(self.run_on(to, |access| access.format(&work).map(one)));
        self.data_mut()[..DATA_BYTES].copy_from_slice(&before);
        if is_made {
            let one = &self.all.devices[to];
            one.corrected.fetch_add(1, Relaxed);
            one.remade.fetch_add(1, Relaxed);
        }
        is_made
    }

    /// Copies a block from the device `first`, or from the next one that can read it, to all
    /// others.
    fn synchronize(&mut self, first: usize, it: &BlockWork<'_>) {
        let work = [BlockWork {
            rows: 0..0,
            place: RowLocation::Nowhere,
            ..it.clone()
        }];
        let count = self.all.count();
        let all: Vec<usize> = (first..first + count).map(|at| at % count).collect();
        let right = all.iter().find(|at| {
            let looked = self.run_on(**at, |access| {
                access.verify(&work).map(|it| it[0].is_clean())
            });
            matches!(looked, Some(Ok(true)))
        });
        // If no device can read the block, nothing changed it, and a later read corrects it first.
        if let Some(right) = right {
            for at in all.iter().filter(|at| *at != right) {
                self.rebuild_or_fail(&[(*right, ())], *at, it);
            }
        }
    }

    fn count_corrected(&self, work: &[BlockWork<'_>]) {
        let count = self.all.count();
        for (it, outcome) in work.iter().zip(&self.outcomes) {
            let one = &self.all.devices[it.block % count];
            one.corrected
                .fetch_add(u64::from(outcome.is_corrected()), Relaxed);
        }
    }
}

/// The identity in the record of a block on its device of a stripe.
fn local_identity(identity: Option<&Identity>, devices: usize) -> Option<Identity> {
    identity.map(|identity| {
        let (number, device) = (identity[0] / devices as u64, identity[0] % devices as u64);
        let mut there = *identity;
        there[0] = number;
        there[1] |= device << DEVICE_SHIFT;
        there
    })
}

/// The work of a stripe's device that has the block, by the indices of that device.
fn local_work<'i>(
    work: &BlockWork<'_>,
    identity: Option<&'i Identity>,
    devices: usize,
) -> Result<BlockWork<'i>> {
    Ok(BlockWork {
        block: work.block / devices,
        rows: work.rows.clone(),
        place: match work.place {
            RowLocation::Block(from, _) if from % devices != work.block % devices => {
                return Err(Error::OtherDevice);
            }
            RowLocation::Block(from, row) => RowLocation::Block(from / devices, row),
            place => place,
        },
        identity,
    })
}

impl<M: ArrayMember> BlockAccess for ArrayAccess<M> {
    fn slots(&self) -> usize {
        self.data().len() / DATA_BYTES
    }

    fn data(&self) -> &[u8] {
        self.accesses[self.holder]
            .as_ref()
            .map_or(&[], BlockAccess::data)
    }

    fn data_mut(&mut self) -> &mut [u8] {
        let holder = self.accesses[self.holder].as_mut();
        holder.map_or(&mut [], BlockAccess::data_mut)
    }

    fn read(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.run(work, M::Access::read, MirrorCall::ReadOne)?;
        Ok(&self.outcomes)
    }

    fn read_by_policy(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.run(work, M::Access::read_by_policy, MirrorCall::ReadOne)?;
        Ok(&self.outcomes)
    }

    fn check(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        // Each device copies its own rows.
        self.run(work, M::Access::check, MirrorCall::ReadAll)?;
        Ok(&self.outcomes)
    }

    fn start_update(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        // Done at once: the devices use one staging buffer in turn.
        self.run(work, M::Access::update, MirrorCall::Change)
    }

    fn finish_update(&mut self) -> Result<&[BlockOutcome]> {
        Ok(&self.outcomes)
    }

    fn format(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.run(work, M::Access::format, MirrorCall::Change)?;
        Ok(&self.outcomes)
    }

    fn verify(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.run(work, M::Access::verify, MirrorCall::ReadAll)?;
        Ok(&self.outcomes)
    }

    fn correct(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            ArrayLayout::Stripe => {
                self.run_striped(work, M::Access::correct, true)?;
                self.count_corrected(work);
            }
            ArrayLayout::Mirror => self.correct_all(work)?,
        }
        Ok(&self.outcomes)
    }

    fn scan(&mut self, blocks: &[u32]) -> Result<Vec<u32>> {
        let count = self.all.count();
        let mut found = Vec::new();
        for at in 0..count {
            let is_own = |block: &u32| *block as usize % count == at;
            let (own, by) = match self.all.spread {
                ArrayLayout::Stripe => (
                    blocks.iter().copied().filter(is_own).collect::<Vec<u32>>(),
                    count as u32,
                ),
                ArrayLayout::Mirror => (blocks.to_vec(), 1),
            };
            let there: Vec<u32> = own.iter().map(|block| block / by).collect();
            match self.run_on(at, |access| access.scan(&there)) {
                Some(Ok(some)) => found.extend(some.iter().map(|block| match self.all.spread {
                    ArrayLayout::Stripe => block * by + at as u32,
                    ArrayLayout::Mirror => *block,
                })),
                Some(Err(error)) => return Err(error),
                // A device out of use: all of its blocks are suspect.
                None if self.all.spread == ArrayLayout::Stripe => found.extend(own),
                None => {}
            }
        }
        if self.all.live().next().is_none() {
            return Err(Error::NoDevice);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn refresh(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        let count = self.all.count();
        if self.all.spread == ArrayLayout::Mirror {
            // Another process has changed them on one device at most, and that device's rows are
            // copied to all.
            let first = self.all.live().next().map(|(at, _)| at);
            let first = first.ok_or(Error::NoDevice)?;
            let made = self.run_on(first, |access| access.refresh(work));
            made.unwrap_or(Err(Error::NoDevice))?;
            for it in work {
                for to in (0..count).filter(|to| *to != first) {
                    self.rebuild_or_fail(&[(first, ())], to, it);
                }
            }
            return Ok(());
        }
        for at in 0..count {
            let own = work.iter().filter(|it| it.block % count == at);
            let own: Vec<&BlockWork<'_>> = own.collect();
            let there = own.iter().map(|it| local_identity(it.identity, count));
            let identities: Vec<Option<Identity>> = there.collect();
            let part = own.iter().zip(&identities);
            let part = part.map(|(it, identity)| local_work(it, identity.as_ref(), count));
            let part: Vec<BlockWork<'_>> = part.collect::<Result<_>>()?;
            if !part.is_empty() {
                let made = self.run_on(at, |access| access.refresh(&part));
                made.unwrap_or(Err(Error::NoDevice))?;
            }
        }
        Ok(())
    }

    fn flip_bits(&mut self, block: usize, at: usize, mask: &[u8]) -> Result<()> {
        let count = self.all.count();
        self.next_read = (self.next_read + 1) % count;
        let (there, mut places) = match self.all.spread {
            ArrayLayout::Stripe => (block / count, vec![block % count]),
            // On one device only.
            ArrayLayout::Mirror => (block, (self.next_read..self.next_read + count).collect()),
        };
        let done = places.drain(..).find_map(|place| {
            self.run_on(place % count, |access| access.flip_bits(there, at, mask))
        });
        done.unwrap_or(Err(Error::NoDevice))
    }

    fn is_spent(&self) -> bool {
        // It drops those of its accesses that are spent.
        false
    }
}
