//! Extents of a file: aligned parts of its chunks, each in a run of as many pages.
//!
//! Nearly all files have one extent, which takes no memory of its own; others have a map by their
//! first page. An extent takes eight bytes, and its key as many.
//!
//! Invariants: an extent is an aligned part of one chunk and as long as its run; no two overlap;
//! each has a page that was written.
//! Elsewhere: allocation of runs (`space`), locking and changes of the table (`file`).

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use crate::layout::{PAGE_BYTES, PAGES, ROW_BYTES};
use crate::space::{BLOCKS_MAX, PageRun, WHOLE};

const _: () = assert!(BLOCKS_MAX <= 1 << 24 && PAGES <= 1 << 5 && WHOLE < 1 << 3);

/// An aligned part of a chunk: `1 << order` pages from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPart {
    pub(crate) first: u32,
    pub(crate) order: u32,
}

impl ChunkPart {
    pub(crate) const WHOLE: Self = Self {
        first: 0,
        order: WHOLE,
    };

    /// Returns the longest part around a page of which more than half are these pages: a chunk
    /// written sequentially from its beginning has one that doubles, and pages far apart have one
    /// each.
    pub(crate) fn dense(pages: u32, page: u32) -> Self {
        let around = |order: u32| Self {
            first: page >> order << order,
            order,
        };
        let is_dense = |it: &Self| 2 * (pages & it.pages()).count_ones() > 1 << it.order;
        let mut longer = (1..=WHOLE).rev().map(around);
        longer.find(is_dense).unwrap_or(around(0))
    }

    /// Returns the longest part from the lowest of these pages on that has no others; there is at
    /// least one.
    pub(crate) fn exact(pages: u32) -> Self {
        let first = pages.trailing_zeros();
        let count = (pages >> first).trailing_ones();
        // Nothing is aligned to more than a chunk.
        let aligned = (first | PAGES as u32).trailing_zeros();
        Self {
            first,
            order: aligned.min(count.ilog2()),
        }
    }

    /// A bit for each of its pages.
    pub(crate) fn pages(self) -> u32 {
        let all = (1u64 << (1 << self.order)) - 1;
        (all << self.first) as u32
    }

    /// The bytes of the chunk that it is.
    pub(crate) fn bytes(self) -> Range<usize> {
        let first = self.first as usize * PAGE_BYTES;
        first..first + (PAGE_BYTES << self.order)
    }
}

/// Parts of a chunk, dense ones, which have all of these pages; in order.
pub(crate) fn parts(pages: u32) -> impl Iterator<Item = ChunkPart> {
    let mut left = pages;
    std::iter::from_fn(move || {
        let part = (left != 0).then(|| ChunkPart::dense(pages, left.trailing_zeros()))?;
        left &= !part.pages();
        Some(part)
    })
}

/// A part of a chunk, the run that holds it, and which of its pages were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The run: 24 bits of the block, 5 of the page, 3 of the order.
    run: u32,
    /// Pages of the chunk, a bit each.
    written: u32,
}

impl Extent {
    /// `written` has a page, and all that it has are of one aligned part as long as the run.
    pub(crate) fn new(run: PageRun, written: u32) -> Self {
        Self {
            run: run.block << 8 | u32::from(run.page) << 3 | u32::from(run.order),
            written,
        }
    }

    pub(crate) fn run(self) -> PageRun {
        PageRun {
            block: self.run >> 8,
            page: (self.run >> 3 & 31) as u8,
            order: (self.run & 7) as u8,
        }
    }

    pub(crate) fn written(self) -> u32 {
        self.written
    }

    /// The same, and these pages of it were written.
    pub(crate) fn with(self, pages: u32) -> Self {
        Self {
            written: self.written | pages & self.part().pages(),
            ..self
        }
    }

    pub(crate) fn part(self) -> ChunkPart {
        let order = self.run & 7;
        ChunkPart {
            first: self.written.trailing_zeros() >> order << order,
            order,
        }
    }

    /// A part of it, of which these pages are written.
    pub(crate) fn within(self, part: ChunkPart, written: u32) -> Self {
        let run = self.run();
        let run = PageRun {
            page: run.page + (part.first - self.part().first) as u8,
            order: part.order as u8,
            ..run
        };
        Self::new(run, written & part.pages())
    }

    /// Rows of the run's block that hold these bytes of the chunk, whole rows of it.
    pub(crate) fn rows(self, bytes: &Range<usize>) -> Range<usize> {
        let begin = usize::from(self.run().page) * PAGE_BYTES;
        let row = |byte: usize| (begin + byte - self.part().bytes().start) / ROW_BYTES;
        row(bytes.start)..row(bytes.end)
    }
}

/// A file's extents by chunk.
#[derive(Debug, Default)]
pub(crate) enum ExtentTable {
    #[default]
    Empty,
    /// The only one, of the first chunk.
    First(Extent),
    /// By their first pages in the file.
    Many(BTreeMap<u64, Extent>),
}

fn key(chunk: u32, page: u32) -> u64 {
    u64::from(chunk) * PAGES as u64 + u64::from(page)
}

fn chunk_of(key: u64) -> u32 {
    (key / PAGES as u64) as u32
}

impl ExtentTable {
    /// Those of a chunk, in order.
    pub(crate) fn of(&self, chunk: u32) -> impl Iterator<Item = Extent> + '_ {
        self.within(chunk..=chunk).map(|(_, extent)| extent)
    }

    /// Those of these chunks, in order.
    pub(crate) fn within(
        &self,
        chunks: RangeInclusive<u32>,
    ) -> impl Iterator<Item = (u32, Extent)> + '_ {
        let (first, many) = match self {
            Self::Empty => (None, None),
            Self::First(extent) => ((*chunks.start() == 0).then_some((0, *extent)), None),
            Self::Many(all) => {
                let keys = key(*chunks.start(), 0)..key(*chunks.end(), PAGES as u32);
                (None, Some(all.range(keys)))
            }
        };
        let many = many.into_iter().flatten();
        let many = many.map(|(key, extent)| (chunk_of(*key), *extent));
        first.into_iter().chain(many)
    }

    /// The first chunk from one on that has any.
    pub(crate) fn next(&self, chunk: u32) -> Option<u32> {
        self.within(chunk..=u32::MAX).next().map(|(at, _)| at)
    }

    /// Pages of a chunk that were written.
    pub(crate) fn written(&self, chunk: u32) -> u32 {
        self.of(chunk).fold(0, |all, it| all | it.written())
    }

    /// Pages of a chunk that runs hold.
    pub(crate) fn held(&self, chunk: u32) -> u32 {
        self.of(chunk).fold(0, |all, it| all | it.part().pages())
    }

    /// Has an extent, in the place of one of the same part if there is one.
    pub(crate) fn set(&mut self, chunk: u32, extent: Extent) {
        let page = extent.part().first;
        match self {
            Self::Many(all) => {
                all.insert(key(chunk, page), extent);
            }
            Self::First(first) if chunk > 0 || first.part().first != page => {
                let first = (key(0, first.part().first), *first);
                *self = Self::Many(BTreeMap::from([first, (key(chunk, page), extent)]));
            }
            Self::Empty if chunk > 0 => {
                *self = Self::Many(BTreeMap::from([(key(chunk, page), extent)]));
            }
            _ => *self = Self::First(extent),
        }
    }

    /// Has it no more.
    pub(crate) fn remove(&mut self, chunk: u32, extent: Extent) {
        let page = extent.part().first;
        let Self::Many(all) = self else {
            if matches!(self, Self::First(first) if chunk == 0 && first.part().first == page) {
                *self = Self::Empty;
            }
            return;
        };
        all.remove(&key(chunk, page));
        match (all.len(), all.first_key_value()) {
            (0, _) => *self = Self::Empty,
            (1, Some((key, extent))) if chunk_of(*key) == 0 => *self = Self::First(*extent),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_all_pages_and_less_than_as_many_others() {
        let mut random = fastrand::Rng::new();
        eprintln!("seed {}", random.get_seed());
        let prefixes = (0..=32u32).map(|it| ((1u64 << it) - 1) as u32);
        let some = std::iter::repeat_with(|| random.u32(..) & random.u32(..)).take(2000);
        for pages in prefixes.chain(some).collect::<Vec<_>>() {
            let mut held = 0;
            for part in parts(pages) {
                assert_eq!(held & part.pages(), 0, "{pages:#x}");
                assert!(part.first.is_multiple_of(1 << part.order));
                assert!(2 * (part.pages() & pages).count_ones() > part.pages().count_ones());
                held |= part.pages();
            }
            assert_eq!(held & pages, pages);
            let mut left = pages;
            while left != 0 {
                let part = ChunkPart::exact(left);
                assert_eq!(part.pages() & left, part.pages(), "{left:#x}");
                assert_eq!(part.first, left.trailing_zeros());
                left &= !part.pages();
            }
        }
        let one = |first, order| vec![ChunkPart { first, order }];
        assert_eq!(parts(0x1F).collect::<Vec<_>>(), one(0, 3));
        assert_eq!(parts(0x1FFFF).collect::<Vec<_>>(), one(0, WHOLE));
        assert_eq!(parts(1 << 31 | 1).count(), 2);
        assert_eq!(ChunkPart::exact(u32::MAX), one(0, WHOLE)[0]);
    }

    #[test]
    fn a_table_is_a_map_by_chunk_and_page() {
        let mut random = fastrand::Rng::new();
        eprintln!("seed {}", random.get_seed());
        for _ in 0..200 {
            let (mut table, mut model) = (ExtentTable::default(), BTreeMap::new());
            for _ in 0..60 {
                let (chunk, order) = (random.u32(..3), random.u32(..=2));
                let first = random.u32(..8) << order;
                let run = PageRun {
                    block: random.u32(..BLOCKS_MAX),
                    page: (random.u32(..8) << order) as u8,
                    order: order as u8,
                };
                let extent = Extent::new(run, 1 << first);
                assert_eq!((extent.run(), extent.part().first), (run, first));
                let overlaps = |it: &Extent| it.part().pages() & extent.part().pages() != 0;
                let there: Vec<Extent> = table.of(chunk).filter(overlaps).collect();
                for it in there {
                    table.remove(chunk, it);
                    model.remove(&(chunk, it.part().first)).unwrap();
                }
                if random.bool() {
                    table.set(chunk, extent);
                    model.insert((chunk, first), extent);
                }
                let all: Vec<_> = table.within(0..=u32::MAX).collect();
                let expected = model.iter().map(|(at, extent)| (at.0, *extent));
                assert_eq!(all, expected.collect::<Vec<_>>());
                let next = model.range((1, 0)..).next().map(|it| it.0.0);
                assert_eq!(table.next(1), next);
            }
        }
        assert!(size_of::<Extent>() == 8 && size_of::<ExtentTable>() <= 32);
    }
}
