//! One arena for memory whose lifetimes are known before.
//!
//! What is never needed at one step may lie in one place. To find the smallest arena
//! is hard in the theory's sense, so several ways are gone and the best result is
//! kept: in the order of the steps, each need in the smallest hole that there is
//! then; and the largest first, each in the smallest hole between those that it
//! meets (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep
//! Neural Net Inference", 2020), also the largest by size times steps. As long as
//! there is something to gain, what lies highest is then placed first, and all anew.
//! Of a few needs every plan is looked at that could be smaller.
//!
//! Invariant: two needs that meet at a step have no byte in common.
//!
//! How long it takes is bounded by what it looks at ([`MOST_LOOKS`]), not by a clock:
//! so the same needs have the same plan everywhere.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// At most so many needs are looked at as neighbours of another, in all ways together;
/// the first way looks at holes, of which there are fewer.
const MOST_LOOKS: u64 = 6_000_000;
/// Rounds in which what lies highest is placed first.
const ROUNDS: usize = 64;
/// So many needs have the smallest arena that there is.
const FEW: usize = 8;
/// Parts of the time in which needs are looked for.
const PARTS: usize = 256;
/// No arena is larger, nor any alignment.
const LARGEST: u64 = 1 << 56;

/// Memory that is needed for some steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Need {
    /// How much; 0 lies anywhere.
    pub bytes: u64,
    /// A power of two that it begins at a multiple of.
    pub align_bytes: u64,
    /// The first step that needs it.
    pub from: u32,
    /// The first one after it that does not.
    pub until: u32,
}

impl Need {
    #[inline]
    fn meets(&self, other: &Self) -> bool {
        self.from < other.until && other.from < self.until
    }
}

/// A need that there cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Its alignment is no power of two, or beyond 2^56.
    #[error("need {need}: an alignment of {align_bytes} bytes\ntry: a power of two, as 256")]
    Align {
        /// Which one.
        need: usize,
        /// What was asked for.
        align_bytes: u64,
    },
    /// It ends before it begins.
    #[error("need {need}: steps {from} to {until}\ntry: a last step that is not before the first")]
    Steps {
        /// Which one.
        need: usize,
        /// Its first step.
        from: u32,
        /// The one behind its last.
        until: u32,
    },
    /// All together, with their alignments, are beyond 2^56 bytes.
    #[error("need {need}: with {bytes} bytes more there are more than 2^56")]
    TooLarge {
        /// The one with which they are.
        need: usize,
        /// Its bytes.
        bytes: u64,
    },
}

/// Where needs lie in an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    begins: Vec<u64>,
    bytes: u64,
    floor_bytes: u64,
}

impl Plan {
    /// A plan for these needs.
    ///
    /// # Errors
    /// [`PlanError`], of the first need that is wrong.
    pub fn of(needs: &[Need]) -> Result<Self, PlanError> {
        let mut all: u64 = 0;
        for (need, it) in needs.iter().enumerate() {
            let Need {
                bytes,
                align_bytes,
                from,
                until,
            } = *it;
            if !align_bytes.is_power_of_two() || align_bytes > LARGEST {
                return Err(PlanError::Align { need, align_bytes });
            }
            if from > until {
                return Err(PlanError::Steps { need, from, until });
            }
            let sum = all
                .checked_add(bytes)
                .and_then(|sum| sum.checked_add(align_bytes - 1));
            let sum = sum.filter(|sum| *sum <= LARGEST);
            all = sum.ok_or(PlanError::TooLarge { need, bytes })?;
        }
        Ok(Search::new(needs).run())
    }

    /// Where each need begins, from the arena's beginning, which has to be a multiple
    /// of every alignment.
    pub fn begins(&self) -> &[u64] {
        &self.begins
    }

    /// What the arena takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is needed at one step at the most: no arena is smaller.
    pub fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }
}

/// The most that is needed at one step.
fn floor(needs: &[Need]) -> u64 {
    let mut changes: Vec<(u32, i64)> = needs
        .iter()
        .filter(|need| need.from < need.until)
        .flat_map(|need| {
            [
                (need.from, need.bytes as i64),
                (need.until, -(need.bytes as i64)),
            ]
        })
        .collect();
    // What ends at a step is not needed there.
    changes.sort_unstable();
    let mut live = 0;
    let lives = changes.into_iter().map(|(_, bytes)| {
        live += bytes;
        live
    });
    lives.max().unwrap_or(0) as u64
}

fn aligned(at: u64, need: &Need) -> u64 {
    (at + (need.align_bytes - 1)) & !(need.align_bytes - 1)
}

struct Search<'n> {
    needs: &'n [Need],
    /// Needs that take something at some step.
    some: Vec<usize>,
    floor_bytes: u64,
    looks: u64,
}

impl<'n> Search<'n> {
    fn new(needs: &'n [Need]) -> Self {
        let is_some = |at: &usize| needs[*at].bytes > 0 && needs[*at].from < needs[*at].until;
        Self {
            needs,
            some: (0..needs.len()).filter(is_some).collect(),
            floor_bytes: floor(needs),
            looks: 0,
        }
    }

    fn run(mut self) -> Plan {
        let begins = self.in_order();
        let mut best = self.plan(begins);
        let needs = self.needs;
        let by_bytes = |at: &usize| (Reverse(needs[*at].bytes), needs[*at].from, *at);
        let by_area = |at: &usize| {
            let steps = u128::from(needs[*at].until - needs[*at].from);
            (Reverse(u128::from(needs[*at].bytes) * steps), *at)
        };
        let mut orders = [self.some.clone(), self.some.clone()];
        orders[0].sort_by_key(by_bytes);
        orders[1].sort_by_key(by_area);
        for order in orders {
            let _none_is_left_to_look = self.improve(order, &mut best);
        }
        if self.some.len() <= FEW {
            let mut begins = vec![0; needs.len()];
            self.smallest(&mut begins, &mut Vec::new(), 0, &mut best);
        }
        best
    }

    /// All plans in which each need lies as low as those let it that begin below it: one
    /// of the smallest is among them. They are gone through in the order of their
    /// beginnings.
    fn smallest(&self, begins: &mut [u64], placed: &mut Vec<usize>, end: u64, best: &mut Plan) {
        if end >= best.bytes || best.bytes == self.floor_bytes {
            return;
        }
        if placed.len() == self.some.len() {
            *best = self.plan(begins.to_vec());
            return;
        }
        let last = placed.last().map_or(0, |at| begins[*at]);
        for at in &self.some {
            if placed.contains(at) {
                continue;
            }
            let need = &self.needs[*at];
            let mut meeting: Vec<(u64, u64)> = placed
                .iter()
                .filter(|other| self.needs[**other].meets(need))
                .map(|other| (begins[*other], begins[*other] + self.needs[*other].bytes))
                .collect();
            meeting.sort_unstable();
            let mut begin = 0;
            for (from, to) in meeting {
                if begin + need.bytes > from {
                    begin = aligned(to, need).max(begin);
                }
            }
            if begin >= last {
                begins[*at] = begin;
                placed.push(*at);
                self.smallest(begins, placed, end.max(begin + need.bytes), best);
                placed.pop();
            }
        }
    }

    fn plan(&self, begins: Vec<u64>) -> Plan {
        let ends = self
            .some
            .iter()
            .map(|at| begins[*at] + self.needs[*at].bytes);
        Plan {
            bytes: ends.max().unwrap_or(0),
            begins,
            floor_bytes: self.floor_bytes,
        }
    }

    /// Places in an order, and in orders in which what lay highest comes first. None
    /// when it may look no more.
    fn improve(&mut self, mut order: Vec<usize>, best: &mut Plan) -> Option<()> {
        for _ in 0..ROUNDS {
            if best.bytes == self.floor_bytes {
                break;
            }
            let begins = self.placed(&order)?;
            let plan = self.plan(begins);
            let end = |at: usize| plan.begins[at] + self.needs[at].bytes;
            let highest = order.iter().position(|at| end(*at) == plan.bytes);
            if plan.bytes < best.bytes {
                *best = plan;
            }
            match highest {
                None | Some(0) => break,
                Some(at) => order[..=at].rotate_right(1),
            }
        }
        Some(())
    }

    /// In the order of the steps, each in the smallest hole that there is then.
    fn in_order(&self) -> Vec<u64> {
        let mut begins = vec![0; self.needs.len()];
        let mut order = self.some.clone();
        order.sort_by_key(|at| (self.needs[*at].from, Reverse(self.needs[*at].bytes)));
        // Holes below the end of all, by their beginnings; none touches another.
        let mut holes: BTreeMap<u64, u64> = BTreeMap::new();
        let mut end: u64 = 0;
        let mut ending: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
        for at in order {
            let need = &self.needs[at];
            while let Some(Reverse((until, gone))) = ending.peek().copied()
                && until <= need.from
            {
                ending.pop();
                let (mut from, mut to) = (begins[gone], begins[gone] + self.needs[gone].bytes);
                if let Some((below, below_end)) =
                    holes.range(..from).next_back().map(|(a, b)| (*a, *b))
                    && below_end == from
                {
                    holes.remove(&below);
                    from = below;
                }
                if let Some(above_end) = holes.remove(&to) {
                    to = above_end;
                }
                match to == end {
                    true => end = from,
                    false => {
                        holes.insert(from, to);
                    }
                }
            }
            let fits = |(from, to): (&u64, &u64)| {
                let begin = aligned(*from, need);
                (begin + need.bytes <= *to).then_some((to - from, *from, *to, begin))
            };
            let begin = match holes.iter().filter_map(fits).min() {
                Some((_, from, to, begin)) => {
                    holes.remove(&from);
                    for (from, to) in [(from, begin), (begin + need.bytes, to)] {
                        if from < to {
                            holes.insert(from, to);
                        }
                    }
                    begin
                }
                None => {
                    let begin = aligned(end, need);
                    if end < begin {
                        holes.insert(end, begin);
                    }
                    end = begin + need.bytes;
                    begin
                }
            };
            begins[at] = begin;
            ending.push(Reverse((need.until, at)));
        }
        begins
    }

    /// Each in the smallest hole between those placed before that it meets, or above
    /// them. None when it may look no more.
    fn placed(&mut self, order: &[usize]) -> Option<Vec<u64>> {
        let mut begins = vec![0; self.needs.len()];
        let mut parts = Parts::new(self.needs, order);
        let mut meeting: Vec<(u64, u64)> = Vec::new();
        for at in order {
            let need = &self.needs[*at];
            meeting.clear();
            self.looks += parts.for_each_meeting(self.needs, *at, |other| {
                meeting.push((begins[other], begins[other] + self.needs[other].bytes));
            });
            if self.looks > MOST_LOOKS {
                return None;
            }
            // Runs of them are in order already, which the sort makes use of.
            meeting.sort();
            let (mut reached, mut best) = (0, None);
            for (from, to) in &meeting {
                let begin = aligned(reached, need);
                if begin + need.bytes <= *from {
                    let hole = (from - reached, begin);
                    best = best.into_iter().chain([hole]).min();
                }
                reached = reached.max(*to);
            }
            begins[*at] = best.map_or_else(|| aligned(reached, need), |(_, begin)| begin);
            parts.add(*at);
        }
        Some(begins)
    }
}

/// Needs by when they are needed.
struct Parts {
    /// The parts of each need, the first and the last.
    of: Vec<(u16, u16)>,
    all: Vec<Vec<u32>>,
}

impl Parts {
    fn new(needs: &[Need], order: &[usize]) -> Self {
        let mut steps: Vec<u32> = order.iter().map(|at| needs[*at].from).collect();
        steps.sort_unstable();
        // A part begins with one of these steps; there are as many needs in each.
        let each = steps.len().div_ceil(PARTS).max(1);
        let firsts: Vec<u32> = steps.into_iter().step_by(each).collect();
        let part = |step: u32| {
            firsts
                .partition_point(|first| *first <= step)
                .saturating_sub(1) as u16
        };
        let mut of = vec![(0, 0); needs.len()];
        for at in order {
            of[*at] = (part(needs[*at].from), part(needs[*at].until - 1));
        }
        Self {
            of,
            all: vec![Vec::new(); firsts.len().max(1)],
        }
    }

    fn add(&mut self, at: usize) {
        let (first, last) = self.of[at];
        for part in first..=last {
            self.all[usize::from(part)].push(at as u32);
        }
    }

    /// Those added that a need meets, each once; and how many were looked at.
    fn for_each_meeting(&self, needs: &[Need], at: usize, mut f: impl FnMut(usize)) -> u64 {
        let (first, last) = self.of[at];
        let mut looks = 0;
        for part in first..=last {
            let there = &self.all[usize::from(part)];
            looks += there.len() as u64;
            for other in there {
                let other = *other as usize;
                // In the first part that they have in common.
                if part == first.max(self.of[other].0) && needs[at].meets(&needs[other]) {
                    f(other);
                }
            }
        }
        looks
    }
}
