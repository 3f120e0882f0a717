//! Several devices as one medium: stripes of blocks, or a mirror of all.
//!
//! A stripe has block `b` on device `b % n`, there at place `b / n`, so a file's chunks lie on all of them in turn. A mirror has each
//! block on every device, at its own number. The records say the place on their device and, of a stripe, in the generation's highest
//! byte which device that is; so each device's memory is as one device's would be, and no block of one passes for another's.
//!
//! A way to it has a way to each device and one staging, which is lent to whose turn it is; a call has the devices do their parts one
//! after the other, and calls of other threads are done meanwhile.
//!
//! Invariants: after a call that changes blocks, all devices of a mirror that are in use have the same in them: what was done
//! by some alone is made of theirs by the others, and a device that cannot do that is out. So whoever answers a read may be believed alone.
//! A device that is out is never asked again. What a device that has failed may still be using is given to nobody else.
//! Elsewhere: one device (`medium`), whose blocks are given out no more (`space`).

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::{BlockOutcome, BlockWork, Identity, RowLocation};
use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, DATA_ROWS};
use crate::medium::{ArrayMember, BlockAccess, LendStaging as _, Medium};

/// In the generation of a stripe's block, its device begins here. No block has 2^56 generations.
const DEVICE_SHIFT: u32 = 56;
/// No more devices than that byte can tell.
pub const MOST: usize = 256;

/// How blocks lie on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each on one of them, in turn.
    Stripe,
    /// Each on all of them.
    Mirror,
}

impl Spread {
    /// How many of the first `blocks` of `devices` the one at this place has.
    pub fn share(self, blocks: usize, devices: usize, at: usize) -> usize {
        match self {
            Self::Stripe => (blocks + devices - 1 - at) / devices,
            Self::Mirror => blocks,
        }
    }
}

/// A device of several.
#[derive(Debug)]
struct One<M> {
    medium: M,
    /// What it is called in figures.
    number: u32,
    is_out: AtomicBool,
    /// Blocks in which something was wrong and is right now, by the code or from another device.
    corrected: AtomicU64,
    /// Of them, those that were made anew from another device.
    remade: AtomicU64,
    lost: AtomicU64,
}

impl<M> One<M> {
    fn is_out(&self) -> bool {
        self.is_out.load(Acquire)
    }
}

#[derive(Debug)]
struct All<M> {
    devices: Box<[One<M>]>,
    spread: Spread,
    /// Blocks of all.
    blocks: AtomicUsize,
    /// So many are out.
    losses: AtomicU32,
    /// Where a new way begins to ask.
    turns: AtomicUsize,
    /// Whoever leaves one out for being unlike another has it: two that do so to one another would leave none.
    unlike: Mutex<()>,
}

impl<M> All<M> {
    fn count(&self) -> usize {
        self.devices.len()
    }

    /// Those in use, with their places.
    fn live(&self) -> impl Iterator<Item = (usize, &One<M>)> {
        let all = self.devices.iter().enumerate();
        all.filter(|(_, one)| !one.is_out())
    }

    /// It has failed, or is not as the others are: it is asked nothing any more.
    fn leave_out(&self, at: usize) {
        if !self.devices[at].is_out.swap(true, AcqRel) {
            self.losses.fetch_add(1, AcqRel);
        }
    }

    /// What it has is not what another has; not if that is out itself, as then it may be the last one.
    fn leave_out_for(&self, at: usize, other: usize) {
        let _one = self.unlike.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.devices[other].is_out() {
            self.leave_out(at);
        }
    }

    fn share(&self, blocks: usize, at: usize) -> usize {
        self.spread.share(blocks, self.count(), at)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Array<M>(Arc<All<M>>);

impl<M: ArrayMember> Array<M> {
    /// As far as another thread may have come with leaving one out.
    #[cfg(test)]
    pub(crate) fn begin_to_leave_out(&self, at: usize) {
        self.0.devices[at].is_out.swap(true, AcqRel);
    }

    /// Devices, with what each is called in figures, that have their shares ([`Spread::share`]) of so many blocks.
    ///
    /// # Panics
    /// For fewer than two, or more than [`MOST`].
    pub fn new(devices: Vec<(u32, M)>, spread: Spread, blocks: usize) -> Self {
        let count = devices.len();
        assert!(
            (2..=MOST).contains(&count),
            "{count} devices are not several, or more than {MOST}"
        );
        let one = |(number, medium)| One {
            medium,
            number,
            is_out: AtomicBool::new(false),
            corrected: AtomicU64::new(0),
            remade: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        Self(Arc::new(All {
            devices: devices.into_iter().map(one).collect(),
            spread,
            blocks: AtomicUsize::new(blocks),
            losses: AtomicU32::new(0),
            turns: AtomicUsize::new(0),
            unlike: Mutex::new(()),
        }))
    }

    fn by(
        &self,
        staged: impl Fn(&M) -> Result<M::Access>,
        bare: impl Fn(&M) -> Result<M::Access>,
    ) -> Result<ArrayAccess<M>> {
        let all = &self.0;
        let losses = all.losses.load(Acquire);
        let (mut hands, mut holder) = (Vec::new(), None);
        for (at, one) in all.devices.iter().enumerate() {
            let made = match holder {
                _ if one.is_out() => Ok(None),
                None => staged(&one.medium).map(Some),
                Some(_) => bare(&one.medium).map(Some),
            };
            let hand = match made {
                Ok(hand) => hand,
                Err(error) if one.medium.has_failed(&error) => {
                    all.leave_out(at);
                    None
                }
                Err(error) => return Err(error),
            };
            holder = holder.or(hand.as_ref().map(|_| at));
            hands.push(hand);
        }
        Ok(ArrayAccess {
            holder: holder.ok_or(Error::NoDevice)?,
            turn: all.turns.fetch_add(1, Relaxed),
            all: self.0.clone(),
            hands,
            losses,
            outcomes: Vec::new(),
        })
    }
}

impl<M: ArrayMember> Medium for Array<M> {
    type Access = ArrayAccess<M>;

    fn access(&self) -> Result<ArrayAccess<M>> {
        self.by(M::access, M::access_unstaged)
    }

    fn background(&self) -> Result<ArrayAccess<M>> {
        self.by(M::background, M::background_unstaged)
    }

    fn has_code(&self) -> bool {
        self.0.devices.iter().all(|one| one.medium.has_code())
    }

    fn bytes(&self) -> u64 {
        self.0.live().map(|(_, one)| one.medium.bytes()).sum()
    }

    fn grow(&self, blocks: usize) -> Result<()> {
        let all = &self.0;
        let before = all.blocks.load(Relaxed);
        for (at, one) in all.live() {
            match one.medium.grow(all.share(blocks, at)) {
                Ok(()) => {}
                Err(error) if one.medium.has_failed(&error) => all.leave_out(at),
                Err(error) => {
                    let grown = all.live().take_while(|it| it.0 < at);
                    grown.for_each(|(at, one)| one.medium.shrink(all.share(before, at)));
                    return Err(error);
                }
            }
        }
        match all.live().next() {
            Some(_) => all.blocks.store(blocks.max(before), Relaxed),
            None => return Err(Error::NoDevice),
        }
        Ok(())
    }

    fn shrink(&self, blocks: usize) {
        let all = &self.0;
        all.blocks.fetch_min(blocks, Relaxed);
        for (at, one) in all.live() {
            one.medium.shrink(all.share(blocks, at));
        }
    }

    fn can_copy_rows(&self, from: usize, to: usize) -> bool {
        match self.0.spread {
            Spread::Stripe => from % self.0.count() == to % self.0.count(),
            Spread::Mirror => true,
        }
    }

    fn failed_devices(&self) -> u32 {
        self.0.losses.load(Acquire)
    }

    fn note_lost(&self, block: usize) {
        let all = &self.0;
        for (_, one) in all.live().filter(|(at, _)| match all.spread {
            Spread::Stripe => *at == block % all.count(),
            Spread::Mirror => true,
        }) {
            one.lost.fetch_add(1, Relaxed);
        }
    }

    fn is_lost(&self, block: usize) -> bool {
        match self.0.spread {
            Spread::Stripe => self.0.devices[block % self.0.count()].is_out(),
            Spread::Mirror => false,
        }
    }

    fn figures(&self) -> String {
        let left = self.0.live().count();
        let state = match left {
            0 => "failed",
            left if left < self.0.count() => "degraded",
            _ => "whole",
        };
        let mut text = format!("array_state {state}\n");
        for one in &self.0.devices {
            let of = one.number;
            let state = match one.is_out() {
                true => "failed",
                false => "used",
            };
            let (corrected, remade) = (one.corrected.load(Relaxed), one.remade.load(Relaxed));
            let lost = one.lost.load(Relaxed);
            // Nothing can go wrong in a string.
            write!(
                text,
                "device_{of}_state {state}\ndevice_{of}_corrected_blocks {corrected}\n\
                 device_{of}_remade_blocks {remade}\ndevice_{of}_lost_blocks {lost}\n"
            )
            .unwrap_or_default();
        }
        text
    }
}

/// What is done with blocks of one device.
type Call<A> = for<'a, 'b, 'c> fn(&'a mut A, &'b [BlockWork<'c>]) -> Result<&'a [BlockOutcome]>;

/// What devices said, each with its place.
type Answers = Vec<(usize, Result<Vec<BlockOutcome>>)>;

/// One thread's way to several devices.
#[derive(Debug)]
pub struct ArrayAccess<M: ArrayMember> {
    all: Arc<All<M>>,
    /// A way to each, unless it is out.
    hands: Vec<Option<M::Access>>,
    /// Who has the staging; there always is its way, also if it is out.
    holder: usize,
    /// Ways to devices that have failed since are there still.
    losses: u32,
    /// Who is asked next.
    turn: usize,
    outcomes: Vec<BlockOutcome>,
}

impl<M: ArrayMember> ArrayAccess<M> {
    /// Leaves the ways to devices that are out. The staging may be page-locked by one of them, or in use by it: another takes its
    /// place, with the same bytes.
    fn refit(&mut self) -> Result<()> {
        let holder = self.hands[self.holder].as_ref();
        if holder.is_some_and(|it| it.is_spent()) {
            self.all.leave_out(self.holder);
        }
        let losses = self.all.losses.load(Acquire);
        // Who has the staging may be left out and not be counted yet.
        if losses == self.losses && !self.all.devices[self.holder].is_out() {
            return Ok(());
        }
        let bytes = self.data().to_vec();
        self.holder = loop {
            let mut live = self.all.live().map(|(at, _)| at);
            let live = live.find(|at| self.hands[*at].is_some());
            let live = live.ok_or(Error::NoDevice)?;
            let Some(hand) = &mut self.hands[live] else {
                continue;
            };
            match hand.restage(&bytes) {
                Ok(()) => break live,
                // It has failed as well, and nobody has asked it anything since.
                Err(error)
                    if hand.is_spent() || self.all.devices[live].medium.has_failed(&error) =>
                {
                    self.all.leave_out(live);
                }
                Err(error) => return Err(error),
            }
        };
        let losses = self.all.losses.load(Acquire);
        for (hand, one) in self.hands.iter_mut().zip(&self.all.devices) {
            if one.is_out() {
                *hand = None;
            }
        }
        self.losses = losses;
        Ok(())
    }

    /// Has one device do something. `None` if it has none to do it by, or has just failed.
    fn on<R>(
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
        let done = match self.hands.get_disjoint_mut([at, self.holder]) {
            Ok([Some(hand), Some(holder)]) => match hand.exchange(holder) {
                Ok(()) => {
                    self.holder = at;
                    work(hand)
                }
                // It says nothing of this device, as the other's way may be why: whoever holds the staging was left out if that
                // has failed, so it is this one's.
                Err(_) if hand.is_spent() => {
                    self.all.leave_out(at);
                    return None;
                }
                Err(error) => return Some(Err(error)),
            },
            // They are the same.
            _ => work(self.hands[at].as_mut()?),
        };
        let error = match done {
            Ok(done) => return Some(Ok(done)),
            Err(error) => error,
        };
        let is_spent = self.hands[at].as_ref().is_some_and(|it| it.is_spent());
        if is_spent || self.all.devices[at].medium.has_failed(&error) {
            self.all.leave_out(at);
            return None;
        }
        Some(Err(error))
    }

    /// Has each device do what is its own.
    fn each_own(
        &mut self,
        work: &[BlockWork<'_>],
        call: Call<M::Access>,
        changes: bool,
    ) -> Result<()> {
        let count = self.all.count();
        self.outcomes.clear();
        // What no device has answered for is none's any more.
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
                .map(|(it, identity)| local(&work[*it], identity.as_ref(), count))
                .collect::<Result<_>>()?;
            if own.is_empty() {
                continue;
            }
            match self.on(at, |hand| call(hand, &part).map(<[BlockOutcome]>::to_vec)) {
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
            // Of what is done already somebody has to know.
            Some(error) if !(changes && is_done) => Err(error),
            _ => Ok(()),
        }
    }

    /// Has one do it, another each time.
    fn any(&mut self, work: &[BlockWork<'_>], call: Call<M::Access>) -> Result<()> {
        let count = self.all.count();
        self.turn = (self.turn + 1) % count;
        let mut refused = None;
        for at in (self.turn..self.turn + count).map(|at| at % count) {
            match self.on(at, |hand| call(hand, work).map(<[BlockOutcome]>::to_vec)) {
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

    /// Has all do it; what those say that are in use then.
    fn every(&mut self, work: &[BlockWork<'_>], call: Call<M::Access>) -> Answers {
        let mut answers = Vec::new();
        for at in 0..self.all.count() {
            let done = self.on(at, |hand| call(hand, work).map(<[BlockOutcome]>::to_vec));
            answers.extend(done.map(|it| (at, it)));
        }
        answers
    }

    /// Has all look; what any has found.
    fn every_look(&mut self, work: &[BlockWork<'_>], call: Call<M::Access>) -> Result<()> {
        let mut all: Option<Vec<BlockOutcome>> = None;
        for (_, answer) in self.every(work, call) {
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

    /// Has all change blocks, and sees to it that all of them have the same then.
    fn every_change(&mut self, work: &[BlockWork<'_>], call: Call<M::Access>) -> Result<()> {
        let has_code = |it: &All<M>| it.devices.iter().all(|one| one.medium.has_code());
        let mut answers = self.every(work, call);
        let first = answers.first().map(|it| it.0).ok_or(Error::NoDevice)?;
        if answers.iter().all(|(_, it)| it.is_err()) {
            let (_, answer) = answers.swap_remove(0);
            // Kernels that were not launched have changed nothing; of several copies the first may have been made.
            let may_differ =
                !has_code(&self.all) && matches!(answer, Err(Error::Cuda(_) | Error::Copy(_)));
            for it in work.iter().filter(|_| may_differ) {
                // Without a code nobody asks whose it is.
                let it = BlockWork {
                    identity: None,
                    ..it.clone()
                };
                self.make_same(first, &it);
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
                    self.remake_of_any(&good, to, it)
                        || self.redo(&good, to, it, call)
                        || self.give_up(&good, to)
                };
                match bad.into_iter().all(all) {
                    true => BlockOutcome::CLEAN,
                    // Who had done it has failed since, and the others have not.
                    false => BlockOutcome::LOST,
                }
            });
        }
        self.outcomes = outcomes;
        // Those who did it may have been the last.
        self.all.live().next().map(drop).ok_or(Error::NoDevice)
    }

    /// Has all correct blocks. What one cannot, it has from another.
    fn every_correct(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        let answers = self.every(work, M::Access::correct);
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
                is_right &= self.remake_of(&good, at, it);
            }
            outcomes.push(match both.is_lost() && is_right {
                true => both.marked_corrected(),
                false => both,
            });
        }
        self.outcomes = outcomes;
        Ok(())
    }

    /// Has a device that has not changed a block do it, if those that have cannot tell what is in it: they have looked at no more than
    /// they changed. Then theirs are made anew. Whether all that are in use have the same; if not nobody is left out for that yet.
    fn redo(
        &mut self,
        good: &[(usize, bool)],
        to: usize,
        it: &BlockWork<'_>,
        call: Call<M::Access>,
    ) -> bool {
        // A block that is to have other owners has those that it had; which block it is the call asks again.
        let mut as_whose = |identity| {
            let whole = [BlockWork {
                rows: 0..0,
                place: RowLocation::Nowhere,
                identity,
                ..it.clone()
            }];
            let lost = self.on(to, |hand| hand.correct(&whole).map(|it| it[0].is_lost()));
            matches!(lost, Some(Ok(false)))
        };
        if !as_whose(it.identity) && !as_whose(None) {
            return false;
        }
        let again = self.on(to, |hand| {
            call(hand, std::slice::from_ref(it)).map(|it| it[0].is_clean())
        });
        if !matches!(again, Some(Ok(true))) {
            return false;
        }
        for (from, _) in good {
            if !self.remake(to, *from, it) {
                self.all.leave_out_for(*from, to);
            }
        }
        !self.all.devices[to].is_out()
    }

    /// Has a block of one device be what it is on one of the others, or leaves it out if no other can tell. Not if they fail: then it
    /// may be the last one. Whether all that are in use have the same.
    fn remake_of<T>(&mut self, from: &[(usize, T)], to: usize, it: &BlockWork<'_>) -> bool {
        self.remake_of_any(from, to, it) || self.give_up(from, to)
    }

    /// As [`ArrayAccess::remake_of`], and nobody is left out for it.
    fn remake_of_any<T>(&mut self, from: &[(usize, T)], to: usize, it: &BlockWork<'_>) -> bool {
        let mut is_made = self.all.devices[to].is_out();
        for (from, _) in from {
            is_made = is_made || self.remake(*from, to, it) || self.all.devices[to].is_out();
        }
        is_made
    }

    /// Leaves a device out whose block is not that of others; whether it is out.
    fn give_up<T>(&self, others: &[(usize, T)], to: usize) -> bool {
        for (other, _) in others {
            self.all.leave_out_for(to, *other);
        }
        self.all.devices[to].is_out()
    }

    fn remake(&mut self, from: usize, to: usize, it: &BlockWork<'_>) -> bool {
        let work = [BlockWork {
            block: it.block,
            rows: 0..DATA_ROWS,
            place: RowLocation::Staging(0),
            identity: it.identity,
        }];
        // The caller's, which has its turn again.
        let before = self.data()[..DATA_BYTES].to_vec();
        let is_clean = |done: Option<Result<bool>>| matches!(done, Some(Ok(true)));
        let one = |outcomes: &[BlockOutcome]| outcomes[0].is_clean();
        let mut is_read = is_clean(self.on(from, |hand| hand.read(&work).map(one)));
        if !is_read {
            // Rows that nobody asked for may be wrong there too.
            let whole = [BlockWork {
                rows: 0..0,
                ..work[0].clone()
            }];
            let corrected = self.on(from, |hand| hand.correct(&whole).map(|it| it[0]));
            if let Some(Ok(outcome)) = corrected
                && !outcome.is_lost()
            {
                let corrected = &self.all.devices[from].corrected;
                corrected.fetch_add(u64::from(outcome.is_corrected()), Relaxed);
                is_read = is_clean(self.on(from, |hand| hand.read(&work).map(one)));
            }
        }
        let is_made = is_read && is_clean(self.on(to, |hand| hand.format(&work).map(one)));
        self.data_mut()[..DATA_BYTES].copy_from_slice(&before);
        if is_made {
            let one = &self.all.devices[to];
            one.corrected.fetch_add(1, Relaxed);
            one.remade.fetch_add(1, Relaxed);
        }
        is_made
    }

    /// Has all others have a block as one device has it, or as the next one that has it right.
    fn make_same(&mut self, first: usize, it: &BlockWork<'_>) {
        let work = [BlockWork {
            rows: 0..0,
            place: RowLocation::Nowhere,
            ..it.clone()
        }];
        let count = self.all.count();
        let all: Vec<usize> = (first..first + count).map(|at| at % count).collect();
        let right = all.iter().find(|at| {
            let looked = self.on(**at, |hand| hand.verify(&work).map(|it| it[0].is_clean()));
            matches!(looked, Some(Ok(true)))
        });
        // What is right nowhere is what it was before, and is corrected before anybody has it.
        if let Some(right) = right {
            for at in all.iter().filter(|at| *at != right) {
                self.remake_of(&[(*right, ())], *at, it);
            }
        }
    }

    fn counted(&self, work: &[BlockWork<'_>]) {
        let count = self.all.count();
        for (it, outcome) in work.iter().zip(&self.outcomes) {
            let one = &self.all.devices[it.block % count];
            one.corrected
                .fetch_add(u64::from(outcome.is_corrected()), Relaxed);
        }
    }
}

/// Whose a block is, as its record says on the device of a stripe that has it.
fn local_identity(identity: Option<&Identity>, devices: usize) -> Option<Identity> {
    identity.map(|identity| {
        let (number, device) = (identity[0] / devices as u64, identity[0] % devices as u64);
        let mut there = *identity;
        there[0] = number;
        there[1] |= device << DEVICE_SHIFT;
        there
    })
}

/// What the device of a stripe is to do that has the block.
fn local<'i>(
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
        self.hands[self.holder]
            .as_ref()
            .map_or(&[], BlockAccess::data)
    }

    fn data_mut(&mut self) -> &mut [u8] {
        let holder = self.hands[self.holder].as_mut();
        holder.map_or(&mut [], BlockAccess::data_mut)
    }

    fn read(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => self.each_own(work, M::Access::read, false)?,
            Spread::Mirror => self.any(work, M::Access::read)?,
        }
        Ok(&self.outcomes)
    }

    fn read_by_policy(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => self.each_own(work, M::Access::read_by_policy, false)?,
            Spread::Mirror => self.any(work, M::Access::read_by_policy)?,
        }
        Ok(&self.outcomes)
    }

    fn check(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => self.each_own(work, M::Access::check, false)?,
            // Each takes its own rows.
            Spread::Mirror => self.every_look(work, M::Access::check)?,
        }
        Ok(&self.outcomes)
    }

    fn update(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => self.each_own(work, M::Access::update, true)?,
            Spread::Mirror => self.every_change(work, M::Access::update)?,
        }
        Ok(&self.outcomes)
    }

    fn format(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => self.each_own(work, M::Access::format, true)?,
            Spread::Mirror => self.every_change(work, M::Access::format)?,
        }
        Ok(&self.outcomes)
    }

    fn verify(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => self.each_own(work, M::Access::verify, false)?,
            Spread::Mirror => self.every_look(work, M::Access::verify)?,
        }
        Ok(&self.outcomes)
    }

    fn correct(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match self.all.spread {
            Spread::Stripe => {
                self.each_own(work, M::Access::correct, true)?;
                self.counted(work);
            }
            Spread::Mirror => self.every_correct(work)?,
        }
        Ok(&self.outcomes)
    }

    fn scan(&mut self, blocks: &[u32]) -> Result<Vec<u32>> {
        let count = self.all.count();
        let mut found = Vec::new();
        for at in 0..count {
            let is_own = |block: &u32| *block as usize % count == at;
            let (own, by) = match self.all.spread {
                Spread::Stripe => (
                    blocks.iter().copied().filter(is_own).collect::<Vec<u32>>(),
                    count as u32,
                ),
                Spread::Mirror => (blocks.to_vec(), 1),
            };
            let there: Vec<u32> = own.iter().map(|block| block / by).collect();
            match self.on(at, |hand| hand.scan(&there)) {
                Some(Ok(some)) => found.extend(some.iter().map(|block| match self.all.spread {
                    Spread::Stripe => block * by + at as u32,
                    Spread::Mirror => *block,
                })),
                Some(Err(error)) => return Err(error),
                // All that it had.
                None if self.all.spread == Spread::Stripe => found.extend(own),
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
        if self.all.spread == Spread::Mirror {
            // Somebody else has changed them in one place at most, and that is taken for all.
            let first = self.all.live().next().map(|(at, _)| at);
            let first = first.ok_or(Error::NoDevice)?;
            let made = self.on(first, |hand| hand.refresh(work));
            made.unwrap_or(Err(Error::NoDevice))?;
            for it in work {
                for to in (0..count).filter(|to| *to != first) {
                    self.remake_of(&[(first, ())], to, it);
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
            let part = part.map(|(it, identity)| local(it, identity.as_ref(), count));
            let part: Vec<BlockWork<'_>> = part.collect::<Result<_>>()?;
            if !part.is_empty() {
                let made = self.on(at, |hand| hand.refresh(&part));
                made.unwrap_or(Err(Error::NoDevice))?;
            }
        }
        Ok(())
    }

    fn flip_bits(&mut self, block: usize, at: usize, mask: &[u8]) -> Result<()> {
        let count = self.all.count();
        self.turn = (self.turn + 1) % count;
        let (there, mut places) = match self.all.spread {
            Spread::Stripe => (block / count, vec![block % count]),
            // In one place alone.
            Spread::Mirror => (block, (self.turn..self.turn + count).collect()),
        };
        let done = places
            .drain(..)
            .find_map(|place| self.on(place % count, |hand| hand.flip_bits(there, at, mask)));
        done.unwrap_or(Err(Error::NoDevice))
    }

    fn is_spent(&self) -> bool {
        // It leaves those of its ways that are.
        false
    }
}
