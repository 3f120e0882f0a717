//! Accesses of neighbouring lanes to a run of whole words, judged and recorded a line at a time.
//!
//! Invariants: what is admitted here is what the lanes one by one would be admitted to without a
//! finding, and leaves the same records. What needs a report is left to them.

use super::conflict::is_retired;
use super::site::{GlobalAccessSite, OrderedRecords, OrderedSegments};
use crate::check::{
    AccessRecord, LINE_WORDS, LineRecord, LineView, REGION_WORDS, RecordOf, RecordRegion,
    RegionCursor, Shadow, parts,
};
use crate::mem::{AddressShape, At};
use crate::report::AccessKind;

const MARK: u64 = AccessRecord::MARK;

/// Words that lanes access, one behind the other.
#[derive(Clone, Copy)]
pub(super) struct WordRun {
    at: u64,
    /// Bytes that each lane accesses, and that all do.
    size: u64,
    len: u64,
    /// Of the first lane, without its bytes.
    record: AccessRecord,
    /// Whether a word is one lane's alone.
    own: bool,
    /// How many lanes before the one of the record have read the same words at once.
    others: usize,
}

impl WordRun {
    /// The run of lanes that access `size` bytes each, if they do: `record` is the first one's.
    #[inline(always)]
    pub(super) fn of_eights(
        eights: &[[u64; 8]],
        size: u64,
        record: AccessRecord,
        kind: AccessKind,
    ) -> Option<Self> {
        let at = eights.first()?[0];
        let words = size.is_power_of_two() && (4..=4 * LINE_WORDS as u64).contains(&size);
        if !(words && at.is_multiple_of(size)) {
            return None;
        }
        let (len, last) = (8 * size, 8 * eights.len() - 1);
        let shape = u64::shape(&eights[0], size as usize);
        let step = match shape {
            AddressShape::Step => len,
            AddressShape::Same if kind == AccessKind::Read => 0,
            _ => return None,
        };
        let mut rest = (1u64..).zip(&eights[1..]);
        let follow = |(n, e): (u64, &[u64; 8])| {
            e[0] == at.wrapping_add(n * step) && u64::shape(e, size as usize) == shape
        };
        if !rest.all(follow) {
            return None;
        }
        Some(match shape {
            AddressShape::Step => WordRun {
                at,
                size,
                len: len * eights.len() as u64,
                record,
                own: true,
                others: 0,
            },
            // The last lane's is the record that stays.
            _ => WordRun {
                at,
                size,
                len: size,
                record: record.of(last),
                own: false,
                others: last,
            },
        })
    }
}

/// The fast path: a run which only threads and operations before have accessed, as far as it
/// matters. Returns whether it applied; then the access is recorded.
#[inline(always)]
pub(super) fn quick(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    cursor: &mut RegionCursor<'_>,
    run: WordRun,
    kind: AccessKind,
) -> bool {
    // What strong stores leave besides is the lanes' matter.
    let strong_write = kind == AccessKind::Write && run.record.strong();
    if strong_write || !site.run.spec.space.contains(run.at, run.len) {
        return false;
    }
    let (first, len) = (shadow.index(run.at), run.len as usize);
    let states = &shadow.states;
    let (region, from) = cursor.word(first / 4);
    let range = (from, from + len / 4);
    // Runs across two regions are few.
    if range.1 > REGION_WORDS {
        return false;
    }
    let quick = QuickRun {
        site,
        shadow,
        ordered: OrderedRecords::of(site),
        per: run.size as usize / 4,
        own: run.own,
    };
    match kind {
        AccessKind::Read => {
            let fine = states.initialised(first, len)
                && quick.fine(region, &[(RecordOf::Write, 0)], range, run.record);
            if fine {
                quick.read(region, range, run);
            }
            fine
        }
        AccessKind::Write => {
            const TABLES: [(RecordOf, u64); 3] = [
                (RecordOf::Write, 0),
                (RecordOf::Read, MARK),
                (RecordOf::Earlier, MARK),
            ];
            let fine =
                states.allocated(first, len) && quick.fine(region, &TABLES, range, run.record);
            if fine {
                quick.write(region, range, run.record);
                states.initialise(first, len);
            }
            fine
        }
        _ => false,
    }
}

/// The same for an atomic of whole words by one lane, wherever it is.
#[inline(always)]
pub(super) fn quick_atomic(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    cursor: &mut RegionCursor<'_>,
    (at, size): (u64, u64),
    record: AccessRecord,
) -> bool {
    let plain = |r: AccessRecord| !r.strong() || r.marked();
    if plain(record)
        || !matches!(size, 4 | 8)
        || !at.is_multiple_of(size)
        || !site.run.spec.space.contains(at, size)
    {
        return false;
    }
    let (first, len) = (shadow.index(at), size as usize);
    if !shadow.states.initialised(first, len) {
        return false;
    }
    let quick = QuickRun {
        site,
        shadow,
        ordered: OrderedRecords::of(site),
        per: len / 4,
        own: true,
    };
    let (region, word) = cursor.word(first / 4);
    let fine = (word..word + quick.per).all(|word| {
        // Atomics are ordered among themselves; what they follow otherwise is looked at closely.
        !plain(region.get(RecordOf::Write, word))
            && [RecordOf::Read, RecordOf::Earlier]
                .iter()
                .all(|&of| quick.follows(region.get(of, word).0, record, MARK, true))
    });
    if fine {
        let words = region.words(RecordOf::Write, word / LINE_WORDS);
        words[word % LINE_WORDS..][..quick.per].fill(record.0 | 15);
    }
    fine
}

/// What is the same for all words of a run.
struct QuickRun<'a> {
    site: &'a GlobalAccessSite<'a>,
    shadow: &'a Shadow,
    ordered: OrderedRecords,
    /// Words a lane.
    per: usize,
    own: bool,
}

impl QuickRun<'_> {
    /// Whether some tables' records of words of a region, of which `now` is to be that of the
    /// first, are of accesses before. Those marked so need a closer look too.
    #[inline(always)]
    fn fine(
        &self,
        region: &RecordRegion,
        tables: &[(RecordOf, u64)],
        (from, to): (usize, usize),
        now: AccessRecord,
    ) -> bool {
        parts(from, to).all(|(line, i, j)| {
            let now = now.of((line * LINE_WORDS + i - from) / self.per);
            tables
                .iter()
                .all(|&(of, marked)| match region.view(of, line, i, j) {
                    LineView::Empty => true,
                    // Lanes of one warp that lie alike: the first one stands for all.
                    LineView::Regular(was, per) => {
                        self.follows(was.0, now, marked, self.own && per == self.per)
                    }
                    // A reader of a word of which the last writer wrote a part may meet another.
                    LineView::Shared(words) => {
                        let part = |raw: u64| raw != 0 && raw & 15 != 15;
                        !(tables.len() == 1 && words.iter().any(|&raw| part(raw)))
                            && self.follows_all(words, now, marked)
                    }
                })
        })
    }

    #[inline(always)]
    fn follows_all(&self, words: &[u64], now: AccessRecord, marked: u64) -> bool {
        let mut met = false;
        for (n, &raw) in words.iter().enumerate() {
            let now = now.of(n / self.per);
            met |= !self.ordered.has(raw, now, self.own) || raw & marked != 0;
        }
        !met || words
            .iter()
            .enumerate()
            .all(|(n, &raw)| self.follows(raw, now.of(n / self.per), marked, self.own))
    }

    /// Whether `now` follows the access that left `raw`; with `own`, also if it is the same
    /// thread's.
    #[inline(always)]
    fn follows(&self, raw: u64, now: AccessRecord, marked: u64, own: bool) -> bool {
        raw == 0
            || raw & marked == 0 && self.ordered.has(raw, now, own)
            || self.follows_slow(AccessRecord(raw), now, marked, own)
    }

    fn follows_slow(&self, was: AccessRecord, now: AccessRecord, marked: u64, own: bool) -> bool {
        let site = self.site;
        let Some(checks) = &site.run.spec.checks else {
            return false;
        };
        let segment = was.segment();
        let plain = was.0 & marked == 0 && !site.strength.is_cached();
        let thread = own.then(|| now.thread());
        if segment == site.segment {
            return plain && site.follows(was, 0, thread);
        }
        if OrderedSegments::has(checks.op.to_bits(), segment) {
            return true;
        }
        let Some((owner, lo, hi)) = self.shadow.range(segment) else {
            return true;
        };
        if owner == checks.op {
            return plain
                && self.shadow.owner(segment).is_some_and(|(owner, block)| {
                    u64::from(block) == site.block && site.follows(was, owner.from, thread)
                });
        }
        OrderedSegments::learn(checks, (owner, lo, hi))
    }

    /// The record of a line from its first word on.
    #[inline(always)]
    fn line_record(&self, now: AccessRecord) -> LineRecord {
        LineRecord::regular(now, self.per)
    }

    #[inline(always)]
    fn write(&self, region: &mut RecordRegion, (from, to): (usize, usize), now: AccessRecord) {
        for (line, i, j) in parts(from, to) {
            let now = now.of((line * LINE_WORDS + i - from) / self.per);
            if j - i == LINE_WORDS {
                region.set_line(RecordOf::Write, line, self.line_record(now));
            } else {
                self.put(&mut region.words(RecordOf::Write, line)[i..j], now);
            }
        }
    }

    #[inline(always)]
    fn put(&self, words: &mut [u64], now: AccessRecord) {
        for (n, lane) in words.chunks_mut(self.per).enumerate() {
            lane.fill(now.of(n).0 | 15);
        }
    }

    /// Records readers; those so far become the earlier ones, unless the new ones stand for them.
    #[inline(always)]
    fn read(&self, region: &mut RecordRegion, (from, to): (usize, usize), run: WordRun) {
        let now = run.record;
        for (line, i, j) in parts(from, to) {
            let now = now.of((line * LINE_WORDS + i - from) / self.per);
            self.retire(region, (line, i, j), now, run.others);
            if j - i == LINE_WORDS {
                region.set_line(RecordOf::Read, line, self.line_record(now));
            } else {
                self.put(&mut region.words(RecordOf::Read, line)[i..j], now);
            }
        }
    }

    /// What `read` does to the earlier readers of a part of a line.
    #[inline(always)]
    fn retire(
        &self,
        region: &mut RecordRegion,
        (line, i, j): (usize, usize, usize),
        now: AccessRecord,
        others: usize,
    ) {
        let before = |raw: u64| self.ordered.has(raw, now, false);
        let last = region.view(RecordOf::Read, line, i, j);
        // Nothing to keep: the readers are before, and no other lane reads now.
        let settled = match last {
            LineView::Empty => true,
            LineView::Regular(was, _) => before(was.0) && !was.read_only(),
            LineView::Shared(words) => words
                .iter()
                .all(|&raw| before(raw) && !AccessRecord(raw).read_only()),
        };
        if settled && others == 0 {
            return;
        }
        // Lanes that lie as those before them do: the first stands for all.
        if let LineView::Regular(was, per) = last
            && others == 0
            && per == self.per
            && j - i == LINE_WORDS
        {
            let earlier = match region.view(RecordOf::Earlier, line, i, j) {
                LineView::Empty => Some(AccessRecord(0)),
                LineView::Regular(earlier, _) => Some(earlier),
                LineView::Shared(_) => None,
            };
            if let Some(earlier) = earlier {
                if is_retired(&self.ordered, was, earlier, now, self.own) {
                    region.set_line(RecordOf::Earlier, line, LineRecord::regular(was, per));
                }
                return;
            }
        }
        for n in i..j {
            let word = line * LINE_WORDS + n;
            let now = now.of((n - i) / self.per);
            let mut earlier = region.get(RecordOf::Earlier, word);
            let was = region.get(RecordOf::Read, word);
            // The first lane meets the reader so far, the others each the one before.
            let first = now.back(others);
            if is_retired(&self.ordered, was, earlier, first, true) {
                region.set(RecordOf::Earlier, word, was);
                earlier = was;
            }
            let first = AccessRecord(first.0 | 15);
            if others != 0 && is_retired(&self.ordered, first, earlier, first.of(1), true) {
                region.set(RecordOf::Earlier, word, first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::super::check_order::WarpAccess;
    use super::super::super::ctx::LaunchRun;
    use super::super::super::image::{CompileOptions, Loaded, compile};
    use super::super::super::launch::{DeviceInfo, LaunchSpec};
    use super::super::super::registers::{ALL, LANES, each};
    use super::super::begin::begin;
    use super::super::global::{judge, lane};
    use super::*;
    use crate::check::clock::WarpClocks;
    use crate::check::{BlockSegments, CheckContext, CheckOptions, Strength};
    use crate::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE};
    use crate::order::{ActorId, OpKind, Order};
    use crate::report::FindingSink;

    const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {
.reg .u32 %r<4>; .reg .u64 %rd<4>; mov.u64 %rd1, 0;
ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; ld.global.u32 %r1, [%rd1+4]; ret;
}";
    const WARPS: usize = 3;
    /// Bytes that are accessed; those that are allocated are fewer.
    const BYTES: u64 = 2048;

    #[derive(Debug, Clone)]
    enum Step {
        /// Block, warp, first byte, bytes a lane, bytes from lane to lane, mask, kind, strength.
        Access(u64, usize, u64, u32, u64, u32, AccessKind, Strength),
        Meet(usize),
        MeetWarp(usize, usize),
        /// By the host: whether it writes, first byte, bytes.
        Operation(bool, u64, u64),
        HostWaits,
        NextLaunch,
    }

    fn step() -> impl Strategy<Value = Step> {
        let size = prop_oneof![4 => Just(4u32), 1 => Just(1), 1 => Just(8), 1 => Just(16)];
        let mask = prop_oneof![5 => Just(ALL), 1 => Just(0xff00u32), 1 => any::<u32>()];
        let kind = prop_oneof![
            3 => Just(AccessKind::Read),
            3 => Just(AccessKind::Write),
            1 => Just(AccessKind::Atomic),
        ];
        let strength = prop_oneof![
            6 => Just(Strength::Weak),
            1 => Just(Strength::ReadOnly),
            1 => Just(Strength::Strong),
            1 => Just(Strength::Block),
        ];
        let at = (0u64..16, 0u64..8).prop_map(|(line, word)| line * 128 + word / 7 * 4);
        prop_oneof![
            12 => (0u64..2, 0..WARPS, at, size, 0u64..8, mask, kind, strength).prop_map(
                |(block, warp, at, size, far, mask, kind, strength)| {
                    let step = [0, 1, 1, 1, 1, 1, 1, 2][far as usize] * u64::from(size);
                    Step::Access(block, warp, at, size, step, mask, kind, strength)
                }
            ),
            2 => (0usize..2).prop_map(Step::Meet),
            1 => (0usize..2, 0..WARPS).prop_map(|(b, w)| Step::MeetWarp(b, w)),
            1 => (any::<bool>(), 0..BYTES, 0..BYTES)
                .prop_map(|(write, a, b)| Step::Operation(write, a.min(b), a.abs_diff(b))),
            1 => Just(Step::HostWaits),
            1 => Just(Step::NextLaunch),
        ]
    }

    /// Two blocks of a launch, judged by lines or lane by lane.
    struct Bench {
        by_lines: bool,
        loaded: Arc<Loaded>,
        space: Arc<AddressSpace>,
        order: Arc<Order>,
        sink: Arc<FindingSink>,
        stream: ActorId,
        at: u64,
        run: LaunchRun,
        clocks: [WarpClocks; 2],
        segments: [BlockSegments; 2],
    }

    fn context(order: &Arc<Order>, sink: &Arc<FindingSink>, actor: ActorId) -> CheckContext {
        CheckContext {
            op: order.begin(actor, OpKind::Call("op")),
            order: order.clone(),
            sink: sink.clone(),
            options: CheckOptions::default(),
        }
    }

    fn launch(loaded: &Loaded, space: &Arc<AddressSpace>, checks: CheckContext) -> LaunchRun {
        let spec = LaunchSpec {
            grid: [2, 1, 1],
            block: [32 * WARPS as u32, 1, 1],
            cluster: [1; 3],
            explicit_cluster: false,
            dynamic_shared_bytes: 0,
            params: Vec::new(),
            device: DeviceInfo::default(),
            cooperative: false,
            space: space.clone(),
            checks: Some(checks),
            watchdog: None,
            late_copies: false,
            print: Arc::new(|_| ()),
            heap: None,
            bindings: Default::default(),
            cancel: None,
        };
        let prepared = loaded.prepared(0, true).unwrap();
        let checked = begin(&spec, &prepared, 2);
        LaunchRun::new(spec, prepared, 0, checked)
    }

    impl Bench {
        fn new(by_lines: bool) -> Self {
            let module = fercuda_ptx::parse(TEXT).unwrap();
            let compiled = compile(&module, &CompileOptions::default()).unwrap();
            let loaded = Loaded::new(compiled, Default::default()).unwrap();
            let space = AddressSpace::new(4 * GRANULE, true).unwrap();
            let (order, sink) = (Arc::new(Order::new()), Arc::new(FindingSink::new()));
            let at = space.base() + GRANULE;
            let ctx = context(&order, &sink, ActorId::HOST);
            let made = DriverCallSite::default();
            let kind = AllocKind::Device;
            space.add(at, BYTES - 256, kind, 0, None, made, true, Some(&ctx));
            let stream = order.add_actor("stream");
            let run = launch(&loaded, &space, context(&order, &sink, stream));
            let mut bench = Bench {
                by_lines,
                loaded,
                space,
                order,
                sink,
                stream,
                at,
                run,
                clocks: Default::default(),
                segments: Default::default(),
            };
            bench.begin_blocks();
            bench
        }

        fn begin_blocks(&mut self) {
            for (n, clocks) in self.clocks.iter_mut().enumerate() {
                clocks.start(n as u32, WARPS);
            }
            self.segments = Default::default();
        }

        fn step(&mut self, step: &Step) -> u32 {
            match *step {
                Step::Access(block, warp, at, size, apart, mask, kind, strength) => {
                    let strength = match (kind, strength) {
                        (AccessKind::Read, _) => strength,
                        (AccessKind::Atomic, s) if s.is_strong() => s,
                        (AccessKind::Atomic, _) => Strength::Strong,
                        (_, s) if s.is_strong() => s,
                        _ => Strength::Weak,
                    };
                    let clocks = &mut self.clocks[block as usize];
                    clocks.touch(warp);
                    let access = WarpAccess {
                        pc: 1,
                        warp: warp as u32,
                        mask,
                        size,
                        kind,
                        strength,
                        time: clocks.time(warp),
                    };
                    let addr = std::array::from_fn(|l| self.at + at + l as u64 * apart);
                    return self.access(block, access, &addr);
                }
                Step::Meet(block) => {
                    (0..WARPS).for_each(|w| self.clocks[block].arrived(w, 0, true));
                    self.clocks[block].opened(0, true);
                }
                Step::MeetWarp(block, warp) => self.clocks[block].warp_synced(warp, ALL),
                Step::Operation(write, at, len) => {
                    let ctx = context(&self.order, &self.sink, ActorId::HOST);
                    let shadow = self.space.shadow().unwrap();
                    if write {
                        shadow.copied(&Default::default(), self.at + at, 1 << 20, len, &ctx);
                    } else {
                        shadow.copied(&Default::default(), 1 << 20, self.at + at, len, &ctx);
                    }
                }
                Step::HostWaits => self.order.wait_for(ActorId::HOST, self.stream),
                Step::NextLaunch => {
                    let checks = context(&self.order, &self.sink, self.stream);
                    self.run = launch(&self.loaded, &self.space, checks);
                    self.begin_blocks();
                }
            }
            0
        }

        fn access(&mut self, block: u64, access: WarpAccess, addr: &[u64; LANES]) -> u32 {
            let (clocks, segments) = (
                &self.clocks[block as usize],
                &mut self.segments[block as usize],
            );
            let (warp, time) = (access.warp as usize, access.time);
            let site = GlobalAccessSite {
                run: &self.run,
                block,
                segment: segments.of(&self.run, block, time.now),
                before: segments.before(time),
                time,
                row: clocks.row(warp),
                views: clocks.views(warp),
                pc: access.pc,
                warp: access.warp,
                strength: access.strength,
            };
            let shadow = self.space.shadow().unwrap();
            if self.by_lines {
                return judge(&site, shadow, access, addr, None);
            }
            let site_number = self.run.prepared.site(access.pc);
            let record = AccessRecord::new(
                site.segment,
                time.now,
                site_number,
                access.warp * 32,
                access.strength,
            );
            let mut allowed = 0;
            each(access.mask, |l| {
                let (size, record) = (u64::from(access.size), record.of(l));
                let at = (shadow, &mut shadow.records.cursor());
                let may = lane(&site, l, at, addr[l], size, record, access.kind, None);
                allowed |= u32::from(may) << l;
            });
            allowed
        }

        /// All that the shadow holds, and what was found.
        fn contents(&self) -> (Vec<u64>, Vec<String>) {
            let shadow = self.space.shadow().unwrap();
            let mut cursor = shadow.records.cursor();
            let mut out = Vec::new();
            for byte in (0..BYTES + 256).step_by(4) {
                let first = shadow.index(self.at + byte);
                let (region, word) = cursor.word(first / 4);
                out.extend(RecordOf::ALL.map(|of| region.get(of, word).0));
                out.extend((first..first + 4).map(|b| u64::from(shadow.states.get(b))));
            }
            let found = self.sink.take().into_iter().map(|f| {
                let access = f.access.map(|a| (a.addr - self.at, a.len));
                format!(
                    "{:?} {access:?} {:?} {:?} {}",
                    f.kind, f.actor, f.other, f.count
                )
            });
            (out, found.collect())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn lines_are_judged_as_lanes_one_by_one_are(steps in prop::collection::vec(step(), 1..40)) {
            let (mut a, mut b) = (Bench::new(true), Bench::new(false));
            // What an operation of the same number in the case before has found does not hold.
            OrderedSegments::clear();
            for step in &steps {
                prop_assert_eq!(a.step(step), b.step(step), "{:?}", step);
            }
            let (a, b) = (a.contents(), b.contents());
            prop_assert_eq!(a.1, b.1);
            prop_assert_eq!(a.0, b.0);
        }
    }
}
