//! Records of the last accesses to each word of global memory, kept by lines and regions.
//!
//! Most words are accessed like their neighbours: a warp takes a line of 32 words at once, a driver
//! operation a whole array. So a line that one access left is one number, and a region that one
//! operation left is one; only lines that several accesses share hold a record a word.
//!
//! Invariants: what a word's record is does not depend on how its line is kept. A region changes
//! under its own lock, so threads that access neighbouring words lose none of each other's records;
//! no thread holds two regions at once.

use std::sync::{Mutex, MutexGuard, OnceLock};

use super::access_record::AccessRecord;
use crate::lock::lock;

/// Words a line.
pub(crate) const LINE_WORDS: usize = 32;
const REGION_LINES: usize = 512;
/// Words a region.
pub(crate) const REGION_WORDS: usize = LINE_WORDS * REGION_LINES;
/// Regions that come into being at once.
const PAGE_REGIONS: usize = 4096;
/// Shared lines for which a region takes room at a time.
const ROOM: usize = 64;

/// What a table of records holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordOf {
    /// The last writer.
    Write,
    /// The last reader.
    Read,
    /// A reader before the last, of another warp and not ordered before it, or one that took the
    /// data for read-only: a writer that is the last reader itself still meets this one. Or the
    /// plain write before the last strong one.
    Earlier,
}

impl RecordOf {
    pub(crate) const ALL: [RecordOf; 3] = [RecordOf::Write, RecordOf::Read, RecordOf::Earlier];
}

/// The records of a line. 0: none; else in the low four bits, where a record has its bytes, how
/// the rest is to be read. A regular line is the record of its first word, and how many words each
/// thread has accessed, whole. A shared one is the place of its records, a word each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LineRecord(u64);

impl LineRecord {
    const SHARED: u64 = 15;
    const NONE: LineRecord = LineRecord(0);

    /// A line of which consecutive threads, the first of which `first` says, accessed `per` words
    /// each: 1, 2, 4 and so on up to a line.
    #[inline(always)]
    pub(crate) fn regular(first: AccessRecord, per: usize) -> Self {
        LineRecord(first.0 & !15 | u64::from(per.trailing_zeros() + 1))
    }

    /// A line that one thread or operation has accessed.
    pub(crate) fn uniform(record: AccessRecord) -> Self {
        Self::regular(record, LINE_WORDS)
    }

    fn shared(at: u32) -> Self {
        LineRecord(u64::from(at) << 4 | Self::SHARED)
    }

    #[inline(always)]
    fn place(self) -> Option<usize> {
        (self.0 & 15 == Self::SHARED).then_some((self.0 >> 4) as usize)
    }

    /// Words a thread.
    fn per(self) -> usize {
        1 << ((self.0 & 15) - 1)
    }

    /// The record of a word of a regular line.
    #[inline(always)]
    fn of(self, word: usize) -> AccessRecord {
        if self == Self::NONE {
            return AccessRecord(0);
        }
        AccessRecord(AccessRecord(self.0).of(word / self.per()).0 | 15)
    }
}

/// A line as it is kept.
pub(crate) enum LineView<'a> {
    /// Not accessed yet.
    Empty,
    /// The record of the first word asked for, and the words that each thread accessed.
    Regular(AccessRecord, usize),
    /// The records of the words asked for.
    Shared(&'a [u64]),
}

#[derive(Debug)]
enum RecordTable {
    Whole(LineRecord),
    Lines(Box<[LineRecord; REGION_LINES]>),
}

impl Default for RecordTable {
    fn default() -> Self {
        RecordTable::Whole(LineRecord::NONE)
    }
}

impl RecordTable {
    #[inline(always)]
    fn line(&self, line: usize) -> LineRecord {
        match self {
            RecordTable::Whole(all) => *all,
            RecordTable::Lines(lines) => lines[line],
        }
    }

    #[inline(always)]
    fn line_mut(&mut self, line: usize) -> &mut LineRecord {
        if let RecordTable::Whole(all) = self {
            *self = RecordTable::Lines(Box::new([*all; REGION_LINES]));
        }
        match self {
            RecordTable::Lines(lines) => &mut lines[line],
            RecordTable::Whole(all) => all,
        }
    }
}

/// The parts of lines that hold words `from..to` of a region: (line, from, to).
#[inline(always)]
pub(crate) fn parts(from: usize, to: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (from / LINE_WORDS..to.div_ceil(LINE_WORDS)).map(move |line| {
        let start = line * LINE_WORDS;
        (
            line,
            from.max(start) - start,
            to.min(start + LINE_WORDS) - start,
        )
    })
}

/// The records of a region. Words and lines are counted from its beginning.
#[derive(Debug, Default)]
pub(crate) struct RecordRegion {
    tables: [RecordTable; 3],
    shared: Vec<[u64; LINE_WORDS]>,
    unused: Vec<u32>,
}

impl RecordRegion {
    /// How words `from..to` of a line are kept.
    #[inline(always)]
    pub(crate) fn view(&self, of: RecordOf, line: usize, from: usize, to: usize) -> LineView<'_> {
        let record = self.tables[of as usize].line(line);
        match record.place() {
            Some(at) => LineView::Shared(&self.shared[at][from..to]),
            None if record == LineRecord::NONE => LineView::Empty,
            None => LineView::Regular(record.of(from), record.per()),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, of: RecordOf, word: usize) -> AccessRecord {
        let line = self.tables[of as usize].line(word / LINE_WORDS);
        match line.place() {
            Some(at) => AccessRecord(self.shared[at][word % LINE_WORDS]),
            None => line.of(word % LINE_WORDS),
        }
    }

    pub(crate) fn set(&mut self, of: RecordOf, word: usize, record: AccessRecord) {
        let line = self.tables[of as usize].line(word / LINE_WORDS);
        if line.place().is_none() && line.of(word % LINE_WORDS) == record {
            return;
        }
        self.words(of, word / LINE_WORDS)[word % LINE_WORDS] = record.0;
    }

    /// A line's records, a word each from now on.
    #[inline(always)]
    pub(crate) fn words(&mut self, of: RecordOf, line: usize) -> &mut [u64; LINE_WORDS] {
        let record = self.tables[of as usize].line(line);
        let at = match record.place() {
            Some(at) => at,
            None => self.share(of, line, record),
        };
        &mut self.shared[at]
    }

    fn share(&mut self, of: RecordOf, line: usize, record: LineRecord) -> usize {
        let words = std::array::from_fn(|n| record.of(n).0);
        let at = match self.unused.pop() {
            Some(at) => {
                self.shared[at as usize] = words;
                at as usize
            }
            None => {
                if self.shared.len() == self.shared.capacity() {
                    self.shared.reserve_exact(ROOM);
                }
                self.shared.push(words);
                self.shared.len() - 1
            }
        };
        // At most one for each line of the three tables.
        *self.tables[of as usize].line_mut(line) = LineRecord::shared(at as u32);
        at
    }

    #[inline(always)]
    pub(crate) fn set_line(&mut self, of: RecordOf, line: usize, record: LineRecord) {
        let was = self.tables[of as usize].line(line);
        if was == record {
            return;
        }
        if let Some(at) = was.place() {
            self.unused.push(at as u32);
        }
        *self.tables[of as usize].line_mut(line) = record;
    }

    /// One record for all words of a table.
    fn set_all(&mut self, of: RecordOf, record: LineRecord) {
        let was = std::mem::replace(&mut self.tables[of as usize], RecordTable::Whole(record));
        if let RecordTable::Lines(lines) = was {
            let places = lines.iter().filter_map(|l| l.place());
            self.unused.extend(places.map(|at| at as u32));
        }
        self.trim();
    }

    /// Gives back the room for shared lines, if there are none.
    fn trim(&mut self) {
        if !self.shared.is_empty() && self.unused.len() == self.shared.len() {
            (self.shared, self.unused) = (Vec::new(), Vec::new());
        }
    }

    /// One record for words `from..to`, accessed whole.
    pub(crate) fn fill(&mut self, of: RecordOf, from: usize, to: usize, record: AccessRecord) {
        let line_record = if record.0 == 0 {
            LineRecord::NONE
        } else {
            LineRecord::uniform(record)
        };
        if to - from == REGION_WORDS {
            self.set_all(of, line_record);
            return;
        }
        for (line, i, j) in parts(from, to) {
            if j - i == LINE_WORDS {
                self.set_line(of, line, line_record);
            } else if record.0 != 0 || self.tables[of as usize].line(line) != LineRecord::NONE {
                self.words(of, line)[i..j].fill(record.0);
            }
        }
    }

    /// A driver operation reads words `from..to`: the readers so far become the earlier ones.
    pub(crate) fn read_by_operation(&mut self, from: usize, to: usize, record: AccessRecord) {
        let (last, earlier) = (RecordOf::Read, RecordOf::Earlier);
        let passes = |was: AccessRecord| was.0 != 0 && was.segment() != record.segment();
        let whole = match self.tables[last as usize] {
            RecordTable::Whole(all) if to - from == REGION_WORDS => Some(all),
            _ => None,
        };
        if let Some(all) = whole {
            if passes(all.of(0)) {
                self.set_all(earlier, all);
            }
            self.set_all(last, LineRecord::uniform(record));
            return;
        }
        for (line, i, j) in parts(from, to) {
            let was = self.tables[last as usize].line(line);
            if was.place().is_none() && j - i == LINE_WORDS {
                if passes(was.of(0)) {
                    self.set_line(earlier, line, was);
                }
            } else {
                for word in line * LINE_WORDS + i..line * LINE_WORDS + j {
                    let was = self.get(last, word);
                    if passes(was) {
                        self.set(earlier, word, was);
                    }
                }
            }
        }
        self.fill(last, from, to, record);
    }

    /// The first of words `from..to` that has a record that is not `fine`, among some tables; the
    /// record is of the first such table. `fine` depends on the segment only.
    pub(crate) fn first_bad(
        &self,
        tables: &[RecordOf],
        (from, to): (usize, usize),
        mut fine: impl FnMut(AccessRecord) -> bool,
    ) -> Option<(usize, AccessRecord)> {
        let all_whole = |of: &RecordOf| matches!(self.tables[*of as usize], RecordTable::Whole(_));
        if tables.iter().all(all_whole) {
            let mut first = tables.iter().map(|&of| self.get(of, from));
            return first.find(|&r| !fine(r)).map(|r| (from, r));
        }
        for (line, i, j) in parts(from, to) {
            let is_fine = tables.iter().all(|&of| match self.view(of, line, i, j) {
                LineView::Empty => true,
                LineView::Regular(first, _) => fine(first),
                LineView::Shared(words) => words.iter().all(|&raw| fine(AccessRecord(raw))),
            });
            if is_fine {
                continue;
            }
            for word in line * LINE_WORDS + i..line * LINE_WORDS + j {
                let mut here = tables.iter().map(|&of| self.get(of, word));
                if let Some(record) = here.find(|&r| !fine(r)) {
                    return Some((word, record));
                }
            }
        }
        None
    }
}

/// Regions that come into being at once.
type RecordPage = Box<[Mutex<RecordRegion>]>;

/// The records of an address space.
pub(crate) struct WordRecords {
    pages: Box<[OnceLock<RecordPage>]>,
}

impl std::fmt::Debug for WordRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WordRecords")
            .field("pages", &self.pages.len())
            .finish()
    }
}

impl WordRecords {
    pub(crate) fn new(words: usize) -> Self {
        let pages = words.div_ceil(REGION_WORDS * PAGE_REGIONS);
        WordRecords {
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
        }
    }

    fn region(&self, n: usize) -> MutexGuard<'_, RecordRegion> {
        let page = self.pages[n / PAGE_REGIONS]
            .get_or_init(|| (0..PAGE_REGIONS).map(|_| Mutex::default()).collect());
        lock(&page[n % PAGE_REGIONS])
    }

    pub(crate) fn cursor(&self) -> RegionCursor<'_> {
        RegionCursor {
            records: self,
            at: 0,
            held: None,
        }
    }

    /// Calls `f` with each region of words `from..to`: its first word, the words in it.
    pub(crate) fn each(
        &self,
        from: usize,
        to: usize,
        mut f: impl FnMut(&mut RecordRegion, usize, (usize, usize)),
    ) {
        for n in from / REGION_WORDS..to.div_ceil(REGION_WORDS) {
            let start = n * REGION_WORDS;
            let range = (
                from.max(start) - start,
                to.min(start + REGION_WORDS) - start,
            );
            f(&mut self.region(n), start, range);
        }
    }

    /// Forgets the accesses to words `from..to`.
    pub(crate) fn forget(&self, from: usize, to: usize) {
        self.each(from, to, |region, _, (i, j)| {
            for of in RecordOf::ALL {
                region.fill(of, i, j, AccessRecord(0));
            }
        });
    }
}

/// A region that is held while accesses stay in it.
pub(crate) struct RegionCursor<'a> {
    records: &'a WordRecords,
    at: usize,
    held: Option<MutexGuard<'a, RecordRegion>>,
}

impl RegionCursor<'_> {
    /// The region of a word of the space, and the word in it.
    #[inline(always)]
    pub(crate) fn word(&mut self, word: usize) -> (&mut RecordRegion, usize) {
        let n = word / REGION_WORDS;
        let held = match self.held.take() {
            Some(held) if self.at == n => held,
            other => {
                drop(other);
                self.at = n;
                self.records.region(n)
            }
        };
        (self.held.insert(held), word % REGION_WORDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Set(usize, usize, u64),
        Fill(usize, usize, usize, u64),
        Line(usize, usize, u64, usize),
        Operation(usize, usize, u64),
    }

    /// Words that are compared, and changed one by one: those of five lines.
    const SEEN: usize = 5 * LINE_WORDS;

    fn record() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            // Few segments, so that records meet their like.
            (0u64..5, any::<u32>()).prop_map(|(s, low)| s << 32 | u64::from(low & !15) | 15),
        ]
    }

    fn range() -> impl Strategy<Value = (usize, usize)> {
        prop_oneof![
            4 => (0..SEEN, 0..SEEN).prop_map(|(a, b)| (a.min(b), a.max(b))),
            1 => Just((0, REGION_WORDS)),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        let of = 0usize..3;
        prop_oneof![
            (of.clone(), 0..SEEN, record()).prop_map(|(t, w, r)| Step::Set(t, w, r)),
            (of.clone(), range(), record()).prop_map(|(t, (a, b), r)| Step::Fill(t, a, b, r)),
            (of, 0usize..5, record(), 0usize..6).prop_map(|(t, l, r, p)| Step::Line(t, l, r, p)),
            (range(), record()).prop_map(|((a, b), r)| Step::Operation(a, b, r)),
        ]
    }

    proptest! {
        #[test]
        fn lines_hold_what_an_array_of_records_does(steps in prop::collection::vec(step(), 1..40)) {
            let mut region = RecordRegion::default();
            // The words compared, and one for all others.
            let mut model = [[0u64; SEEN + 1]; 3];
            for step in steps {
                match step {
                    Step::Set(t, word, r) => {
                        region.set(RecordOf::ALL[t], word, AccessRecord(r));
                        model[t][word] = r;
                    }
                    Step::Fill(t, from, to, r) => {
                        region.fill(RecordOf::ALL[t], from, to, AccessRecord(r));
                        model[t][from..to.min(SEEN + 1)].fill(r);
                    }
                    Step::Line(t, line, r, per) => {
                        // Threads of one warp.
                        let first = AccessRecord(r & !(31 << 19));
                        let record = if r == 0 {
                            LineRecord::NONE
                        } else {
                            LineRecord::regular(first, 1 << per)
                        };
                        region.set_line(RecordOf::ALL[t], line, record);
                        for n in 0..LINE_WORDS {
                            let word = if r == 0 { 0 } else { first.of(n >> per).0 };
                            model[t][line * LINE_WORDS + n] = word;
                        }
                    }
                    Step::Operation(from, to, r) if r != 0 => {
                        region.read_by_operation(from, to, AccessRecord(r));
                        let [_, last, earlier] = &mut model;
                        let words = last.iter_mut().zip(earlier).take(to.min(SEEN + 1)).skip(from);
                        for (last, earlier) in words {
                            if *last != 0 && *last >> 32 != r >> 32 {
                                *earlier = *last;
                            }
                            *last = r;
                        }
                    }
                    Step::Operation(..) => {}
                }
                let live = |t: &RecordTable| match t {
                    RecordTable::Lines(lines) => lines.iter().filter(|l| l.place().is_some()).count(),
                    RecordTable::Whole(_) => 0,
                };
                let held: usize = region.tables.iter().map(live).sum();
                prop_assert_eq!(held + region.unused.len(), region.shared.len());
            }
            for of in RecordOf::ALL {
                let want = &model[of as usize];
                for word in (0..SEEN).chain([REGION_WORDS - 1]) {
                    let got = region.get(of, word).0;
                    prop_assert_eq!(got, want[word.min(SEEN)], "{:?} of word {}", of, word);
                }
            }
            for bad in 1..5 {
                let fine = |r: AccessRecord| r.segment() != bad;
                let got = region.first_bad(&RecordOf::ALL, (3, SEEN), fine);
                let mut words = 3..SEEN;
                let want = words.find_map(|w| {
                    let here = (0..3).map(|t| AccessRecord(model[t][w])).find(|&r| !fine(r));
                    here.map(|r| (w, r))
                });
                prop_assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn regular_accesses_take_no_room_and_scattered_ones_give_theirs_back() {
        let mut region = RecordRegion::default();
        let record = |thread: u64| AccessRecord(1 << 32 | thread << 19 | 15);
        for line in 0..REGION_LINES {
            region.set_line(RecordOf::Write, line, LineRecord::regular(record(32), 1));
            region.set_line(RecordOf::Read, line, LineRecord::regular(record(64), 4));
        }
        assert_eq!(region.shared.capacity(), 0);
        for word in (0..REGION_WORDS).step_by(3) {
            region.set(RecordOf::Earlier, word, record(5));
        }
        assert_eq!(region.shared.len(), REGION_LINES);
        assert!(region.shared.capacity() <= REGION_LINES + ROOM);
        for of in RecordOf::ALL {
            region.fill(of, 0, REGION_WORDS, record(0));
        }
        assert_eq!((region.shared.capacity(), region.unused.capacity()), (0, 0));
        let whole = |t: &RecordTable| matches!(t, RecordTable::Whole(_));
        assert!(region.tables.iter().all(whole));
    }
}
