//! Shadow of a block's shared memory: for each word its last writer, its last reader, and one
//! further access that neither stands for ([`SharedShadow::earlier`]).
//!
//! An access is ordered before another if its time is in the clock of the other's warp
//! ([`super::clock`]).

use super::clock::WarpClocks;
use super::remote::{MeetingAccess, RemoteRecords};
use crate::mem::{AddressShape, At};
use crate::report::AccessKind;

mod proxy;
pub(crate) use proxy::ProxyFinding;

/// A writer's record of a word, in 64 bits: time (26), instruction (16), thread (10), narrow,
/// strong and pending flags, whether a further access wrote, and in the low eight bits the bytes
/// last written and the bytes ever written. A reader's is the same with the bytes read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedRecord(pub(crate) u64);

const TIME_SHIFT: u32 = 38;
const PC_SHIFT: u32 = 22;
const THREAD_SHIFT: u32 = 12;
const PENDING: u64 = 1 << 9;
/// Of the further access: that it wrote.
const WROTE: u64 = 1 << 10;
const STRONG: u64 = 1 << 8;
/// Of a strong access: with the scope of its block.
const NARROW: u64 = 1 << 11;

impl SharedRecord {
    pub(crate) fn new(time: u32, pc: u32, thread: u32, strong: bool) -> Self {
        SharedRecord(
            (u64::from(time & 0x3ff_ffff) << TIME_SHIFT)
                | (u64::from(pc.min(0xffff)) << PC_SHIFT)
                | (u64::from(thread & 1023) << THREAD_SHIFT)
                | if strong { STRONG } else { 0 },
        )
    }
    /// The same of a strong access whose scope is its block.
    pub(crate) fn narrow_if(self, is_narrow: bool) -> Self {
        SharedRecord(self.0 | if is_narrow { NARROW } else { 0 })
    }
    /// Whether it is strong for threads of other blocks.
    pub(crate) fn reaches_cluster(self) -> bool {
        self.0 & (STRONG | NARROW) == STRONG
    }
    /// The same of the thread `n` further on.
    #[inline(always)]
    pub(crate) fn of(self, n: usize) -> Self {
        SharedRecord(self.0 + ((n as u64) << THREAD_SHIFT))
    }
    pub(crate) fn time(self) -> u32 {
        (self.0 >> TIME_SHIFT) as u32
    }
    pub(crate) fn pc(self) -> u32 {
        (self.0 >> PC_SHIFT) as u32 & 0xffff
    }
    pub(crate) fn thread(self) -> u32 {
        (self.0 >> THREAD_SHIFT) as u32 & 1023
    }
    pub(crate) fn strong(self) -> bool {
        self.0 & STRONG != 0
    }
    fn bytes(self) -> u64 {
        self.0 >> 4 & 15
    }
    /// Whether one thread left both at the same time.
    fn same_thread(self, other: SharedRecord) -> bool {
        let differ = self.0 ^ other.0;
        differ >> TIME_SHIFT == 0 && differ >> THREAD_SHIFT & 1023 == 0
    }
    /// Whether one instruction of one warp left both at the same time.
    fn same_instruction(self, other: SharedRecord) -> bool {
        let differ = self.0 ^ other.0;
        differ >> PC_SHIFT == 0 && differ >> (THREAD_SHIFT + 5) & 31 == 0
    }
}

/// Records of several words, taken together.
struct RecordSummary {
    latest: u64,
    all: u64,
    any: u64,
}

impl Default for RecordSummary {
    fn default() -> Self {
        RecordSummary {
            latest: 0,
            all: u64::MAX,
            any: 0,
        }
    }
}

impl RecordSummary {
    #[inline(always)]
    fn add(&mut self, words: &[u64]) {
        for &raw in words {
            self.latest = self.latest.max(raw);
            self.all &= raw;
            self.any |= raw;
        }
    }
    /// Whether these are of words written whole, by writers before `floor`.
    #[inline(always)]
    fn readable(&self, floor: u64) -> bool {
        self.latest < floor
            && self.all & 15 == 15
            && self.any & PENDING == 0
            && (self.all ^ self.any) & 0xf0 == 0
            && matches!(self.any & 0xf0, 0 | 0xf0)
    }
    /// Whether no access was made since `floor`, and none is pending.
    #[inline(always)]
    fn writable(&self, floor: u64) -> bool {
        self.latest < floor && self.any & PENDING == 0
    }
}

/// Readers that a lane's read replaces stay, where there is room.
#[inline(always)]
fn retire_readers<const WORDS: usize>(
    earlier: &mut [u64; WORDS],
    was: &[u64; WORDS],
    floor: u64,
    now: SharedRecord,
) {
    for (earlier, &was) in earlier.iter_mut().zip(was) {
        if was >= floor && *earlier < floor && !SharedRecord(was).same_thread(now) {
            *earlier = was;
        }
    }
}

/// Whether lanes that access so many words each are aligned.
#[inline(always)]
fn aligned<const WORDS: usize>(off: &[u32; 8]) -> bool {
    let any = off.iter().fold(0, |x, o| x | o);
    (any as usize).is_multiple_of(4 * WORDS)
}

/// A finding in shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SharedFinding {
    Uninitialised,
    /// With another access, which wrote or read.
    Race(SharedRecord, AccessKind),
    /// The same, where both write the same value.
    SameValue(SharedRecord),
    /// A copy that was not waited for.
    Pending(SharedRecord),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SharedShadow {
    writes: Vec<u64>,
    reads: Vec<u64>,
    /// A reader before the last that it does not stand for, the plain writer before a strong one,
    /// or a writer of other bytes of the word. It gives way once it is before what comes.
    earlier: Vec<u64>,
    /// No write is later, nor of a copy that may not have landed.
    last_write: u64,
    /// Words of which not all bytes were written.
    open: usize,
    /// Time, of accesses to global memory too.
    pub(crate) clocks: WarpClocks,
    /// What other blocks of the cluster have accessed.
    pub(crate) remote: RemoteRecords,
}

impl SharedShadow {
    pub(crate) fn start(&mut self, block: u32, bytes: usize, warps: usize) {
        let words = bytes.div_ceil(4);
        self.writes.clear();
        self.writes.resize(words, 0);
        self.reads.clear();
        self.reads.resize(words, 0);
        self.earlier.clear();
        self.earlier.resize(words, 0);
        self.last_write = 0;
        self.open = words;
        self.clocks.start(block, warps);
        self.remote.clear();
    }

    /// Whether `now`, touching `bytes`, meets the access that left `was` with nothing between.
    fn races(&self, was: SharedRecord, now: SharedRecord, bytes: u64) -> bool {
        let both_strong = was.strong() && now.strong();
        // Lanes that write bytes of a word at once leave one record: which byte is whose is not
        // known, so a lane of the same warp is not judged by it.
        let shared = was.thread() / 32 == now.thread() / 32
            && was.bytes().count_ones() > bytes.count_ones()
            && bytes != 15;
        was.bytes() & bytes != 0 && !both_strong && !shared && !self.ordered(was, now.thread())
    }

    /// `was` is replaced as the last of its kind; it stays known where there is room.
    #[inline(always)]
    fn retire(&mut self, word: usize, was: u64, floor: u64) {
        if self.earlier[word] < floor {
            self.earlier[word] = was;
        }
    }

    fn ordered(&self, m: SharedRecord, thread: u32) -> bool {
        self.clocks.follows(thread, m.thread(), m.time())
    }

    /// Whether a record of that age is before anything `thread`'s warp does now, without a closer
    /// look.
    #[inline(always)]
    fn old(&self, raw: u64, floor: u64) -> bool {
        raw < floor
    }

    /// The mark that an access makes.
    pub(crate) fn mark(&mut self, warp: usize, pc: u32, thread: u32, strong: bool) -> SharedRecord {
        self.clocks.touch(warp);
        SharedRecord::new(self.clocks.now(warp), pc, thread, strong)
    }

    /// The least record that is not before everything that warp `warp` does now.
    #[inline(always)]
    fn floor(&self, warp: usize) -> u64 {
        u64::from(self.clocks.floor(warp) + 1) << TIME_SHIFT
    }

    /// A thread reads `len` bytes at `at`, inside the memory.
    #[inline(always)]
    pub(crate) fn read(
        &mut self,
        mark: SharedRecord,
        warp: usize,
        at: u32,
        len: u32,
    ) -> Option<SharedFinding> {
        let found = self.meets_writer(mark, warp, at, len);
        let mut a = at;
        while a < at + len {
            let end = (at + len).min((a & !3) + 4);
            let bytes = ((1u64 << (end - a)) - 1) << (a & 3);
            let (word, floor) = ((a / 4) as usize, self.floor(warp));
            let was = SharedRecord(self.reads[word]);
            if !self.old(was.0, floor) && !was.same_thread(mark) {
                self.retire(word, was.0, floor);
            }
            let keep = if was.same_thread(mark) {
                was.bytes()
            } else {
                0
            };
            self.reads[word] = mark.0 | ((bytes | keep) << 4);
            a = end;
        }
        found
    }

    /// A thread reads and writes `len` bytes at `at` at once. It counts as a writer: the readers
    /// before it stay known to it.
    pub(crate) fn update(
        &mut self,
        mark: SharedRecord,
        warp: usize,
        at: u32,
        len: u32,
    ) -> Option<SharedFinding> {
        let read = self.meets_writer(mark, warp, at, len);
        let written = self.write(mark, warp, at, len, false, || false);
        read.or(written)
    }

    /// What a reader finds of the writers before it.
    #[inline(always)]
    fn meets_writer(
        &self,
        mark: SharedRecord,
        warp: usize,
        at: u32,
        len: u32,
    ) -> Option<SharedFinding> {
        let floor = self.floor(warp);
        let mut found = None;
        let mut a = at;
        while a < at + len {
            let word = (a / 4) as usize;
            let end = (at + len).min((a & !3) + 4);
            let bytes = ((1u64 << (end - a)) - 1) << (a & 3);
            let w = self.writes[word];
            if w & 15 & bytes != bytes && w & PENDING == 0 && found.is_none() {
                found = Some(SharedFinding::Uninitialised);
            }
            if w & PENDING != 0 && w >> 4 & bytes != 0 {
                found = Some(SharedFinding::Pending(SharedRecord(w)));
            } else if !self.old(w, floor) {
                let m = SharedRecord(w);
                if self.races(m, mark, bytes) && !matches!(found, Some(SharedFinding::Pending(_))) {
                    found = Some(SharedFinding::Race(m, AccessKind::Write));
                }
            }
            // The last writer wrote other bytes.
            let e = SharedRecord(self.earlier[word]);
            if w >> 4 & bytes != bytes
                && e.0 & WROTE != 0
                && found.is_none()
                && !self.old(e.0, floor)
                && self.races(e, mark, bytes)
            {
                found = Some(SharedFinding::Race(e, AccessKind::Write));
            }
            a = end;
        }
        found
    }

    /// Whether eight lanes may read or write whole words without a closer look; then they have.
    /// `mark` is the first's.
    #[inline(always)]
    pub(crate) fn quick(
        &mut self,
        mark: SharedRecord,
        warp: usize,
        off: &[u32; 8],
        size: u32,
        kind: AccessKind,
    ) -> bool {
        let floor = self.floor(warp);
        match (kind, size) {
            (AccessKind::Read, 4) => self.quick_read::<1>(mark, floor, off),
            (AccessKind::Read, 8) => self.quick_read::<2>(mark, floor, off),
            (AccessKind::Read, 16) => self.quick_read::<4>(mark, floor, off),
            (AccessKind::Write, 4) => self.quick_write::<1>(mark, floor, off),
            (AccessKind::Write, 8) => self.quick_write::<2>(mark, floor, off),
            (AccessKind::Write, 16) => self.quick_write::<4>(mark, floor, off),
            (AccessKind::Atomic, 4) => self.quick_update(mark, floor, off),
            _ => false,
        }
    }

    #[inline(always)]
    fn quick_read<const WORDS: usize>(
        &mut self,
        mark: SharedRecord,
        floor: u64,
        off: &[u32; 8],
    ) -> bool {
        if !aligned::<WORDS>(off) {
            return false;
        }
        let writes = self.writes.as_chunks::<WORDS>().0;
        let reads = self.reads.as_chunks_mut::<WORDS>().0;
        let earlier = self.earlier.as_chunks_mut::<WORDS>().0;
        let at = off.map(|o| o as usize / (4 * WORDS));
        let of = |l| [mark.of(l).0 | 0xf0; WORDS];
        let shape = u32::shape(off, 4 * WORDS);
        // Between two barriers memory is often read only: then no word needs a look at its writer.
        let read_only = self.open == 0 && self.last_write < floor;
        let mut seen = RecordSummary::default();
        match shape {
            AddressShape::Step => {
                let (Some(writes), Some(reads), Some(earlier)) = (
                    writes.get(at[0]..).and_then(<[_]>::first_chunk::<8>),
                    reads.get_mut(at[0]..).and_then(<[_]>::first_chunk_mut::<8>),
                    earlier
                        .get_mut(at[0]..)
                        .and_then(<[_]>::first_chunk_mut::<8>),
                ) else {
                    return false;
                };
                if !read_only {
                    writes.iter().for_each(|w| seen.add(w));
                }
                if !read_only && !seen.readable(floor) {
                    return false;
                }
                // Most have been read by two already, or by none, since all threads met.
                let full = earlier.iter().flatten().all(|&e| e >= floor);
                if !full && reads.iter().flatten().any(|&r| r >= floor) {
                    for l in 0..8 {
                        retire_readers(&mut earlier[l], &reads[l], floor, mark.of(l));
                    }
                }
                *reads = std::array::from_fn(of);
            }
            AddressShape::Same => {
                if !read_only {
                    seen.add(writes.get(at[0]).unwrap_or(&[0; WORDS]));
                }
                let (Some(read), Some(earlier)) = (reads.get_mut(at[0]), earlier.get_mut(at[0]))
                else {
                    return false;
                };
                if !read_only && !seen.readable(floor) {
                    return false;
                }
                // The first lane meets the readers so far, the others each the one before.
                if earlier.iter().any(|&e| e < floor) {
                    retire_readers(earlier, read, floor, mark);
                    retire_readers(earlier, &of(0), floor, mark.of(1));
                }
                *read = of(7);
            }
            AddressShape::Scattered => {
                at.iter()
                    .for_each(|&a| seen.add(writes.get(a).unwrap_or(&[0; WORDS])));
                if !seen.readable(floor) {
                    return false;
                }
                for (l, &a) in at.iter().enumerate() {
                    retire_readers(&mut earlier[a], &reads[a], floor, mark.of(l));
                    reads[a] = of(l);
                }
            }
        }
        true
    }

    #[inline(always)]
    fn quick_write<const WORDS: usize>(
        &mut self,
        mark: SharedRecord,
        floor: u64,
        off: &[u32; 8],
    ) -> bool {
        // Neighbours cannot meet each other.
        if !aligned::<WORDS>(off) || u32::shape(off, 4 * WORDS) != AddressShape::Step {
            return false;
        }
        let at = off[0] as usize / (4 * WORDS);
        let writes = self.writes.as_chunks_mut::<WORDS>().0.get_mut(at..);
        let reads = self.reads.as_chunks::<WORDS>().0.get(at..);
        let earlier = self.earlier.as_chunks::<WORDS>().0.get(at..);
        let (Some(writes), Some(reads), Some(earlier)) = (
            writes.and_then(<[_]>::first_chunk_mut::<8>),
            reads.and_then(<[_]>::first_chunk::<8>),
            earlier.and_then(<[_]>::first_chunk::<8>),
        ) else {
            return false;
        };
        let mut seen = RecordSummary::default();
        writes
            .iter()
            .chain(reads)
            .chain(earlier)
            .for_each(|w| seen.add(w));
        if !seen.writable(floor) {
            return false;
        }
        let written = writes.iter().flatten().filter(|w| **w & 15 != 15);
        self.open -= written.count();
        self.last_write = self.last_write.max(mark.of(7).0 | 0xff);
        *writes = std::array::from_fn(|l| [mark.of(l).0 | 0xff; WORDS]);
        true
    }

    /// Atomics, wherever they are: no other has accessed the words in another way since `floor`.
    #[inline(always)]
    fn quick_update(&mut self, mark: SharedRecord, floor: u64, off: &[u32; 8]) -> bool {
        if !mark.strong() || !aligned::<1>(off) {
            return false;
        }
        let fine = off.iter().all(|o| {
            let at = *o as usize / 4;
            let (Some(&w), Some(&r), Some(&e)) = (
                self.writes.get(at),
                self.reads.get(at),
                self.earlier.get(at),
            ) else {
                return false;
            };
            w & (15 | PENDING) == 15 && w & STRONG != 0 && r < floor && e < floor
        });
        if !fine {
            return false;
        }
        for (l, o) in off.iter().enumerate() {
            self.writes[*o as usize / 4] = mark.of(l).0 | 0xff;
        }
        self.last_write = self.last_write.max(mark.of(7).0 | 0xff);
        true
    }

    /// A thread writes `len` bytes at `at`, inside the memory. `same` says whether they stay
    /// as they are.
    pub(crate) fn write(
        &mut self,
        mark: SharedRecord,
        warp: usize,
        at: u32,
        len: u32,
        pending: bool,
        same: impl Fn() -> bool,
    ) -> Option<SharedFinding> {
        let floor = self.floor(warp);
        let mut found = None;
        let mut a = at;
        while a < at + len {
            let word = (a / 4) as usize;
            let end = (at + len).min((a & !3) + 4);
            let bytes = ((1u64 << (end - a)) - 1) << (a & 3);
            let (w, r, e) = (self.writes[word], self.reads[word], self.earlier[word]);
            let of_earlier = match e & WROTE != 0 {
                true => AccessKind::Write,
                false => AccessKind::Read,
            };
            for (raw, kind) in [
                (w, AccessKind::Write),
                (r, AccessKind::Read),
                (e, of_earlier),
            ] {
                let m = SharedRecord(raw);
                if !self.old(raw, floor) && self.races(m, mark, bytes) {
                    if kind == AccessKind::Write && !m.strong() && same() {
                        found.get_or_insert(SharedFinding::SameValue(m));
                    } else {
                        found = Some(SharedFinding::Race(m, kind));
                    }
                }
            }
            if w & PENDING != 0 && w >> 4 & bytes != 0 && !pending {
                found = Some(SharedFinding::Pending(SharedRecord(w)));
            }
            let was = SharedRecord(w);
            // Bytes of the same word that this thread wrote at the same time stay known, and those
            // that other lanes of the warp write at once.
            let joins = was.strong() == mark.strong()
                && (was.same_thread(mark) || was.same_instruction(mark));
            let keep = if joins { w & 0xf0 } else { 0 };
            // Another thread's atomic meets the plain write still, whatever this one follows; and
            // what accesses the bytes of another writer meets that one.
            let plain = mark.strong() && !was.strong();
            if was.bytes() != 0 && !joins && (plain || was.bytes() & !bytes != 0) {
                self.retire(word, w & !(15 | PENDING) | WROTE, floor);
            }
            let new =
                mark.0 | keep | (bytes << 4) | (w & 15) | if pending { PENDING } else { bytes };
            self.open -= usize::from(w & 15 != 15 && new & 15 == 15);
            self.last_write = self.last_write.max(if pending { u64::MAX } else { new });
            self.writes[word] = new;
            a = end;
        }
        found
    }

    /// Accesses of the block's own threads to a word that one of another block would meet if
    /// nothing ordered them.
    pub(crate) fn met_by(
        &self,
        word: u32,
        now: MeetingAccess,
    ) -> impl Iterator<Item = (SharedRecord, AccessKind)> {
        let word = word as usize;
        let at = |of: &[u64]| SharedRecord(of.get(word).copied().unwrap_or(0));
        let (w, r, e) = (at(&self.writes), at(&self.reads), at(&self.earlier));
        let of_earlier = match e.0 & WROTE != 0 {
            true => AccessKind::Write,
            false => AccessKind::Read,
        };
        let all = [
            (w, AccessKind::Write),
            (e, of_earlier),
            (r, AccessKind::Read),
        ];
        all.into_iter().filter(move |(was, kind)| {
            was.bytes() & u64::from(now.bytes) != 0
                && (now.writes || *kind == AccessKind::Write)
                && !(was.reaches_cluster() && now.strong)
        })
    }

    /// Whether the block's own threads access a word by strong accesses, as they do a flag.
    pub(crate) fn is_watched(&self, word: u32) -> bool {
        let word = word as usize;
        let of = [&self.reads, &self.writes];
        let mut records = of.iter().filter_map(|of| of.get(word));
        records.any(|&raw| SharedRecord(raw).strong())
    }

    /// The bytes of a word that were ever written.
    pub(crate) fn written(&self, word: u32) -> u64 {
        self.writes.get(word as usize).map_or(0, |w| w & 15)
    }

    /// Bytes of a word are written by another block.
    pub(crate) fn initialise_bytes(&mut self, word: u32, bytes: u64) {
        if let Some(w) = self.writes.get_mut(word as usize) {
            self.open -= usize::from(*w & 15 != 15 && (*w | bytes) & 15 == 15);
            *w |= bytes & 15;
        }
    }

    /// A copy into `len` bytes at `at` has landed.
    pub(crate) fn landed(&mut self, at: u32, len: u32) {
        self.complete(at, len, PENDING);
    }

    /// Bytes written by something that is no race with anybody.
    pub(crate) fn initialise(&mut self, at: u32, len: u32) {
        self.complete(at, len, 0);
    }

    /// All bytes there are written; `over` is taken from their words.
    fn complete(&mut self, at: u32, len: u32, over: u64) {
        for a in (at..at + len).step_by(4) {
            if let Some(w) = self.writes.get_mut((a / 4) as usize) {
                self.open -= usize::from(*w & 15 != 15);
                *w = (*w & !over) | 15;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Read(usize, [u32; 8], u32),
        Write(usize, [u32; 8], u32, bool),
        Update(usize, [u32; 8], u32),
        Barrier,
        WarpSync(usize),
        Landed(u32),
        Initialise(u32),
    }

    const WARPS: usize = 3;
    const BYTES: u32 = 256;

    /// Lanes in a row, at one place, or anywhere; sometimes outside.
    fn offsets() -> impl Strategy<Value = ([u32; 8], u32)> {
        let shapes = (
            0u32..3,
            0..BYTES / 4,
            prop::array::uniform8(0..BYTES / 4),
            0u32..3,
        );
        shapes.prop_map(|(shape, base, any, size)| {
            let size = 4 << size;
            let at = std::array::from_fn(|l| match shape {
                0 => base * 4 / size * size + l as u32 * size,
                1 => base * 4 / size * size,
                _ => any[l] * 4 / size * size,
            });
            (at, size)
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..WARPS, offsets()).prop_map(|(w, (at, size))| Step::Read(w, at, size)),
            6 => (0..WARPS, offsets(), prop::bool::weighted(0.1))
                .prop_map(|(w, (at, size), pending)| Step::Write(w, at, size, pending)),
            4 => (0..WARPS, offsets()).prop_map(|(w, (at, size))| Step::Update(w, at, size)),
            4 => Just(Step::Barrier),
            1 => (0..WARPS).prop_map(Step::WarpSync),
            1 => (0..BYTES / 4).prop_map(|w| Step::Landed(w * 4)),
            2 => (0..BYTES / 4).prop_map(|w| Step::Initialise(w * 4)),
        ]
    }

    proptest! {
        #[test]
        fn eight_lanes_at_a_time_see_what_one_lane_at_a_time_does(steps in prop::collection::vec(step(), 1..60)) {
            let mut shadows = [SharedShadow::default(), SharedShadow::default()];
            shadows.iter_mut().for_each(|s| s.start(0, BYTES as usize, WARPS));
            for step in steps {
                let mut found = [Vec::new(), Vec::new()];
                for (n, s) in shadows.iter_mut().enumerate() {
                    match &step {
                        Step::Read(warp, at, size)
                        | Step::Write(warp, at, size, _)
                        | Step::Update(warp, at, size) => {
                            let kind = match step {
                                Step::Read(..) => AccessKind::Read,
                                Step::Update(..) => AccessKind::Atomic,
                                Step::Write(.., true) => AccessKind::AsyncCopy,
                                _ => AccessKind::Write,
                            };
                            let mark = s.mark(*warp, 7, *warp as u32 * 32, kind == AccessKind::Atomic);
                            if n == 0 && s.quick(mark, *warp, at, *size, kind) {
                                continue;
                            }
                            for (l, &at) in at.iter().enumerate().filter(|(_, at)| **at + size <= BYTES) {
                                let was = match kind {
                                    AccessKind::Read => s.read(mark.of(l), *warp, at, *size),
                                    AccessKind::Atomic => s.update(mark.of(l), *warp, at, *size),
                                    _ => s.write(mark.of(l), *warp, at, *size, kind == AccessKind::AsyncCopy, || false),
                                };
                                found[n].extend(was.map(|f| format!("{f:?}")));
                            }
                        }
                        Step::Barrier => {
                            (0..WARPS).for_each(|w| s.clocks.arrived(w, 0, true));
                            s.clocks.opened(0, true);
                        }
                        Step::WarpSync(w) => s.clocks.warp_synced(*w, u32::MAX),
                        Step::Landed(at) => s.landed(*at, 16),
                        Step::Initialise(at) => s.initialise(*at, 8),
                    }
                }
                prop_assert_eq!(&found[0], &found[1]);
                prop_assert_eq!(&shadows[0].writes, &shadows[1].writes);
                prop_assert_eq!(&shadows[0].reads, &shadows[1].reads);
                prop_assert_eq!(&shadows[0].earlier, &shadows[1].earlier);
                for s in &shadows {
                    prop_assert_eq!(s.open, s.writes.iter().filter(|w| **w & 15 != 15).count());
                    let latest = s.writes.iter().copied().max().unwrap_or(0);
                    prop_assert!(s.last_write >> TIME_SHIFT >= latest >> TIME_SHIFT);
                    let pending = s.writes.iter().any(|w| w & PENDING != 0);
                    prop_assert!(!pending || s.last_write == u64::MAX);
                }
            }
        }
    }
}
