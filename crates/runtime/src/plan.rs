//! Static memory planner: offsets in one arena for memory with lifetimes known in advance.
//!
//! Needs that are never live at one step may share memory. Finding the smallest arena is NP-hard,
//! so several heuristics run and the best result is kept: best fit in the order of the steps; and
//! largest first, each in the smallest gap between those with lifetimes that overlap its own
//! (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
//! 2020), also largest by size times steps. As long as there is something to gain, the need that
//! ends highest is moved to the front and all are placed again. For a few needs the search is
//! exhaustive.
//!
//! Invariant: two needs with overlapping lifetimes never overlap in memory.
//!
//! The effort is bounded by the comparisons made ([`MAX_COMPARISONS`]), not by a clock, so the same
//! needs have the same plan everywhere.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Maximum number of comparisons of needs in all heuristics together; the first heuristic visits
/// holes, of which there are fewer.
const MAX_COMPARISONS: u64 = 6_000_000;
/// Rounds in which the highest need is placed first.
const ROUNDS: usize = 64;
/// Up to this many needs are searched exhaustively.
const EXHAUSTIVE_MAX: usize = 8;
/// Number of buckets of the time line.
const BUCKETS: usize = 256;
/// Maximum size of an arena, and of an alignment.
const LARGEST: u64 = 1 << 56;

/// Memory that is live for a range of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Need {
    /// Size; 0 is placed anywhere.
    pub bytes: u64,
    /// Alignment, a power of two.
    pub align_bytes: u64,
    /// The first step that needs it.
    pub from: u32,
    /// The first later step that does not need it.
    pub until: u32,
}

impl Need {
    #[inline]
    fn is_live_with(&self, other: &Self) -> bool {
        self.from < other.until && other.from < self.until
    }
}

/// An invalid need.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The alignment is not a power of two, or is beyond 2^56.
    #[error(
        "need {need}: invalid alignment of {align_bytes} bytes\ntry: a power of two, such as 256"
    )]
    Align {
        /// Index of the need.
        need: usize,
        /// The alignment.
        align_bytes: u64,
    },
    /// The lifetime ends before it begins.
    #[error("need {need}: steps {from} to {until}\ntry: a last step that is not before the first")]
    Steps {
        /// Index of the need.
        need: usize,
        /// Its first step.
        from: u32,
        /// The step behind its last.
        until: u32,
    },
    /// The sum of all sizes, with their alignments, is beyond 2^56 bytes.
    #[error("need {need}: its {bytes} bytes bring the sum above 2^56")]
    TooLarge {
        /// Index of the need that exceeds it.
        need: usize,
        /// Its size.
        bytes: u64,
    },
}

/// Offsets of needs in an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    begins: Vec<u64>,
    bytes: u64,
    floor_bytes: u64,
}

impl Plan {
    /// Plans an arena for these needs.
    ///
    /// # Errors
    /// [`PlanError`], for the first invalid need.
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
        Ok(PlanSearch::new(needs).run())
    }

    /// Offset of each need in the arena; the arena's address must be a multiple of every alignment.
    pub fn begins(&self) -> &[u64] {
        &self.begins
    }

    /// Size of the arena.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Peak of the bytes live at one step: a lower bound for any arena.
    pub fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }
}

/// Peak of the bytes live at one step.
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
    // A need that ends at a step is not live there.
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

struct PlanSearch<'n> {
    needs: &'n [Need],
    /// Needs that take memory at some step.
    some: Vec<usize>,
    floor_bytes: u64,
    comparisons: u64,
}

impl<'n> PlanSearch<'n> {
    fn new(needs: &'n [Need]) -> Self {
        let is_some = |at: &usize| needs[*at].bytes > 0 && needs[*at].from < needs[*at].until;
        Self {
            needs,
            some: (0..needs.len()).filter(is_some).collect(),
            floor_bytes: floor(needs),
            comparisons: 0,
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
            let _out_of_comparisons = self.improve(order, &mut best);
        }
        if self.some.len() <= EXHAUSTIVE_MAX {
            let mut begins = vec![0; needs.len()];
            self.smallest(&mut begins, &mut Vec::new(), 0, &mut best);
        }
        best
    }

    /// Exhaustive search over the plans in which each need is as low as the overlapping needs below
    /// it allow: one of the optimal plans is among them. They are enumerated in the order of
    /// offsets.
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
                .filter(|other| self.needs[**other].is_live_with(need))
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

    /// Places the needs in an order, then in orders with the highest need moved to the front.
    /// Returns `None` when the comparisons are used up.
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

    /// Best fit in the order of the steps.
    fn in_order(&self) -> Vec<u64> {
        let mut begins = vec![0; self.needs.len()];
        let mut order = self.some.clone();
        order.sort_by_key(|at| (self.needs[*at].from, Reverse(self.needs[*at].bytes)));
        // Holes below the end, by their beginnings; none touches another.
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

    /// Places each need in the smallest gap between the overlapping ones placed before it, or above
    /// them. Returns `None` when the comparisons are used up.
    fn placed(&mut self, order: &[usize]) -> Option<Vec<u64>> {
        let mut begins = vec![0; self.needs.len()];
        let mut buckets = StepBuckets::new(self.needs, order);
        let mut meeting: Vec<(u64, u64)> = Vec::new();
        for at in order {
            let need = &self.needs[*at];
            meeting.clear();
            self.comparisons += buckets.for_each_meeting(self.needs, *at, |other| {
                meeting.push((begins[other], begins[other] + self.needs[other].bytes));
            });
            if self.comparisons > MAX_COMPARISONS {
                return None;
            }
            // The input consists of sorted runs, which the sort exploits.
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
            buckets.add(*at);
        }
        Some(begins)
    }
}

/// Index of needs by buckets of steps.
struct StepBuckets {
    /// The first and the last bucket of each need.
    of: Vec<(u16, u16)>,
    all: Vec<Vec<u32>>,
}

impl StepBuckets {
    fn new(needs: &[Need], order: &[usize]) -> Self {
        let mut steps: Vec<u32> = order.iter().map(|at| needs[*at].from).collect();
        steps.sort_unstable();
        // A bucket begins with one of these steps; each has as many needs.
        let each = steps.len().div_ceil(BUCKETS).max(1);
        let firsts: Vec<u32> = steps.into_iter().step_by(each).collect();
        let bucket = |step: u32| {
            firsts
                .partition_point(|first| *first <= step)
                .saturating_sub(1) as u16
        };
        let mut of = vec![(0, 0); needs.len()];
        for at in order {
            of[*at] = (bucket(needs[*at].from), bucket(needs[*at].until - 1));
        }
        Self {
            of,
            all: vec![Vec::new(); firsts.len().max(1)],
        }
    }

    fn add(&mut self, at: usize) {
        let (first, last) = self.of[at];
        for bucket in first..=last {
            self.all[usize::from(bucket)].push(at as u32);
        }
    }

    /// Visits the added needs with lifetimes that overlap that of `at`, each once; returns the
    /// number of comparisons.
    fn for_each_meeting(&self, needs: &[Need], at: usize, mut f: impl FnMut(usize)) -> u64 {
        let (first, last) = self.of[at];
        let mut comparisons = 0;
        for bucket in first..=last {
            let there = &self.all[usize::from(bucket)];
            comparisons += there.len() as u64;
            for other in there {
                let other = *other as usize;
                // Count each pair in the first bucket that both are in.
                if bucket == first.max(self.of[other].0) && needs[at].is_live_with(&needs[other]) {
                    f(other);
                }
            }
        }
        comparisons
    }
}
