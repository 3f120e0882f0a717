//! A filesystem in host memory and the reference model, which execute the same calls, one after the
//! other.
//!
//! As long as the memory does not fail, answers and all state have to be equal, to the page and to
//! the byte. If the memory has failed a call, or reported a lost block, the answer may be `EIO` or
//! a short count, and a part that was not acknowledged may have been done: then each byte in the
//! range of the call has its old or its new value, and all else is unchanged.

mod bytes;
mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use super::model::{Body, CAPABILITY, Model, NOW, Node, pages_of};
use super::ops::{Op, Place, Program};
use super::*;
use crate::acl;
use crate::control::InjectedFault;
use crate::directory::NAME_MAX;
use crate::file::{SIZE_MAX, tests as files};
use crate::layout::{PAGES, ROW_BYTES};
use crate::tree::KIND;

const PAGE: u64 = PAGE_BYTES as u64;
const ROW: u64 = ROW_BYTES as u64;
const ROWS_OF_PAGE: usize = PAGE_BYTES / ROW_BYTES;
/// The maximum number of blocks.
pub(super) const MOST: u32 = 12;
/// All state is compared after this many calls.
const ROUND: usize = 40;

type Done = Result<(), String>;

fn same<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Done {
    match got == expected {
        true => Ok(()),
        false => Err(format!("{what}: {got:?} instead of {expected:?}")),
    }
}

fn holds(what: &str, holds: bool) -> Done {
    match holds {
        true => Ok(()),
        false => Err(what.to_owned()),
    }
}

/// The situations that programs have met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Calls that lacked space for a part of a write, or for an inode.
    pub full: u64,
    /// Calls with an answer affected by a failure.
    pub failed: u64,
    /// Pages that were moved to shrink the filesystem.
    pub moved: u64,
    pub corrected: u64,
    pub lost: u64,
    /// Inodes without a name that were written.
    pub nameless: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.full += other.full;
        self.failed += other.failed;
        self.moved += other.moved;
        self.corrected += other.corrected;
        self.lost += other.lost;
        self.nameless += other.nameless;
    }
}

pub(super) struct World {
    handler: RequestHandler<Arc<files::TestMemory>>,
    memory: Arc<files::TestMemory>,
    model: Model,
    /// The generation of each inode number, and all pairs that ever existed.
    generations: BTreeMap<u32, u32>,
    all_generations: BTreeSet<(u32, u32)>,
    /// Blocks offered to the filesystem.
    offered: u32,
    loses: bool,
    begin: Time,
    refusals: u32,
    losses: u32,
    tally: Tally,
}

pub(super) fn handler<M: Medium + 'static>(
    store: Store<M>,
    inodes: u32,
    threads: usize,
) -> RequestHandler<M> {
    RequestHandler {
        tree: Arc::new(Tree::new(inodes, 0o755, CALLERS[0], now())),
        store: Arc::new(store),
        cache: PageCache::None,
        facts: String::new(),
        notifier: Arc::default(),
        unforgotten: AtomicU64::new(0),
        forget_waiters: AtomicUsize::new(0),
        threads,
        reads: Meter::default(),
        writes: Meter::default(),
        owner: 0,
        exports: Arc::default(),
        listings: Default::default(),
    }
}

const fn credentials(user: u32, group: u32, umask: u32) -> Credentials {
    Credentials { user, group, umask }
}

pub(super) const CALLERS: [Credentials; 4] = [
    credentials(0, 0, 0),
    credentials(7, 8, 0o22),
    credentials(7, 99, 0o77),
    credentials(9, 8, 0),
];

fn of<T: Copy>(all: &[T], at: u8) -> T {
    all[usize::from(at) % all.len()]
}

impl World {
    pub(super) fn new(program: &Program, loses: bool) -> Result<Self, String> {
        let begin = now();
        let (memory, store) = files::memory(MOST);
        let handler = handler(store, program.inodes.into(), 1);
        memory.has_code.store(true, Relaxed);
        let mut it = Self {
            model: Model::new(program.inodes.into(), 0o755, CALLERS[0]),
            handler,
            memory,
            generations: BTreeMap::from([(ROOT, 0)]),
            all_generations: BTreeSet::new(),
            offered: MOST,
            loses,
            begin,
            refusals: 0,
            losses: 0,
            tally: Tally::default(),
        };
        it.model.node_mut(ROOT).unwrap().known = 1;
        // Accesses to the memory exist from now on.
        drop(it.handler.store.acquire_access());
        it.scrub()?;
        it.resize(program.blocks.into())?;
        it.compare()?;
        Ok(it)
    }

    /// Runs a program; also checks that nothing is left once all was removed.
    pub(super) fn run(program: &Program, loses: bool) -> Result<Tally, String> {
        let mut it = Self::new(program, loses)?;
        for (at, op) in program.ops.iter().enumerate() {
            let in_call = |error: String| format!("call {at}, {op:?}: {error}");
            it.step(*op).map_err(in_call)?;
            if at % ROUND == ROUND - 1 {
                it.compare_files().map_err(in_call)?;
            }
        }
        it.compare_files()?;
        it.remove_all()
            .map_err(|error| format!("at the end: {error}"))?;
        let counters = it.handler.store.counters();
        it.tally.corrected += counters.corrected_blocks.load(Relaxed);
        it.tally.lost += counters.lost_blocks.load(Relaxed);
        Ok(it.tally)
    }

    /// Whether the memory has failed a call or reported a loss since the call started.
    fn is_exposed(&self) -> bool {
        let (refusals, losses) = (&self.memory.refusals, &self.memory.losses);
        refusals.load(Relaxed) != self.refusals || losses.load(Relaxed) != self.losses
    }

    /// Whether a block was ever lost: there may be less space until all of it is freed.
    fn has_lost(&self) -> bool {
        self.memory.losses.load(Relaxed) > 0
    }

    fn has_met_loss(&self) -> bool {
        self.memory.losses.load(Relaxed) != self.losses
    }

    /// Runs `work` with pending failures suspended.
    fn calmly<R>(&self, work: impl FnOnce() -> R) -> R {
        let then = self.memory.fails_then.swap(0, Relaxed);
        let done = work();
        self.memory.fails_then.store(then, Relaxed);
        done
    }

    fn attributes(&self, inode: u32) -> InodeAttributes {
        self.handler.tree.attributes(inode).unwrap()
    }

    fn data(&self, inode: u32) -> Arc<crate::file::File> {
        self.handler.tree.file(inode).unwrap()
    }

    /// Free pages. Used pages beyond the offered blocks, which still have to be moved, are
    /// subtracted.
    fn free_pages(&self) -> u64 {
        let space = self.handler.store.space();
        let beyond = self.handler.store.retired();
        let beyond = beyond.map(|block| u64::from(space.used_of(block).count_ones()));
        space.pages() + beyond.sum::<u64>() - space.used_pages()
    }

    /// Any inode, or sometimes one that does not exist.
    fn node(&self, at: u8) -> u32 {
        let all = self.model.nodes.len();
        match at {
            255 => self.handler.tree.highest() + 1,
            254 => (2..).find(|it| !self.model.nodes.contains_key(it)).unwrap(),
            _ => *self.model.nodes.keys().nth(usize::from(at) % all).unwrap(),
        }
    }

    fn one_of(&self, at: u8, is_one: impl Fn(&Node) -> bool) -> u32 {
        let all = self.model.nodes.iter().filter(|it| is_one(it.1));
        let all: Vec<u32> = all.map(|it| *it.0).collect();
        match (at, all.len()) {
            (240.., _) | (_, 0) => self.node(at.wrapping_add(10)),
            (_, count) => all[usize::from(at) % count],
        }
    }

    /// In most cases a directory.
    fn directory(&self, at: u8) -> u32 {
        self.one_of(at, Node::is_directory)
    }

    /// In most cases a file.
    fn file(&self, at: u8) -> u32 {
        self.one_of(at, |it| matches!(it.body, Body::File(_)))
    }

    fn place(&self, inode: u32, place: Place) -> u64 {
        let size = self.model.file(inode).map_or(0, |it| it.size);
        match place {
            Place::Page(page) => u64::from(page) * PAGE,
            Place::Byte(byte) => byte.into(),
            Place::End(before) => size.saturating_sub(before.into()),
            Place::Far(which) => of(
                &[
                    1 << 33,
                    (1 << 40) + 77,
                    SIZE_MAX - 5000,
                    SIZE_MAX - 1,
                    SIZE_MAX,
                    SIZE_MAX + 1,
                ],
                which,
            ),
        }
    }

    /// Pages of these bytes that have no memory.
    fn missing(&self, inode: u32, bytes: &Range<u64>) -> Vec<u64> {
        let mut held = BTreeSet::new();
        for (chunk, extent) in files::places(&self.data(inode)) {
            let first = u64::from(chunk) * PAGES as u64;
            let pages = extent.part().pages();
            held.extend(
                (0..PAGES as u64)
                    .filter(|it| pages >> it & 1 != 0)
                    .map(|it| first + it),
            );
        }
        pages_of(bytes)
            .filter(|page| !held.contains(page))
            .collect()
    }

    /// Lost rows of a file, all pages with memory, and all written pages.
    fn pages(&self, inode: u32) -> (BTreeSet<u64>, BTreeSet<u64>, BTreeSet<u64>) {
        let (mut lost, mut held, mut written) =
            <(BTreeSet<_>, BTreeSet<_>, BTreeSet<_>)>::default();
        for (chunk, extent) in files::places(&self.data(inode)) {
            let block = extent.run().block;
            let is_lost = self.loses && self.memory.state(block).1;
            let (part, of_written) = (extent.part().pages(), extent.written());
            for at in (0..PAGES as u64).filter(|it| part >> it & 1 != 0) {
                let page = u64::from(chunk) * PAGES as u64 + at;
                held.insert(page);
                let row = extent.rows(&extent.part().bytes()).start;
                let row = row + (at as u32 - extent.part().first) as usize * ROWS_OF_PAGE;
                for row_of_page in (0..ROWS_OF_PAGE).filter(|_| is_lost) {
                    let row = row + row_of_page;
                    if self.memory.is_wrong(block as usize, row..row + 1) {
                        lost.insert(page * ROWS_OF_PAGE as u64 + row_of_page as u64);
                    }
                }
                if of_written >> at & 1 != 0 {
                    written.insert(page);
                }
            }
        }
        (lost, held, written)
    }

    fn read(&self, inode: u32, at: u64, len: usize) -> SysResult<Vec<u8>> {
        let file = self.data(inode);
        self.calmly(|| self.handler.store.read_file(&file, at, len, <[u8]>::to_vec))
    }

    /// Checks that these bytes equal the model's, or fail to read where they are lost.
    fn compare_bytes(&self, inode: u32, bytes: Range<u64>, lost: &BTreeSet<u64>) -> Done {
        let model = self.model.file(inode).unwrap();
        let end = bytes.end.min(model.size);
        let mut at = bytes.start;
        while at < end {
            let has_lost = lost.range(at / ROW..end.div_ceil(ROW)).next().is_some();
            let most = match has_lost {
                true => ROW - at % ROW,
                false => 128 << 10,
            };
            let len = most.min(end - at) as usize;
            let got = self.read(inode, at, len);
            let expected = match lost.contains(&(at / ROW)) {
                true => Err(Errno::IO),
                false => Ok(model.read(at, len)),
            };
            if got != expected {
                return Err(match (got, expected) {
                    (Ok(got), Ok(expected)) if got.len() == expected.len() => {
                        let first = (0..len).find(|it| got[*it] != expected[*it]).unwrap();
                        let (is, was) = (got[first], expected[first]);
                        let place = at + first as u64;
                        format!("inode {inode} has {is} instead of {was} at {place}")
                    }
                    (got, expected) => {
                        let len = |it: SysResult<Vec<u8>>| it.map(|it| it.len());
                        format!(
                            "inode {inode} from {at} on: {:?} instead of {:?} bytes",
                            len(got),
                            len(expected)
                        )
                    }
                });
            }
            at += len as u64;
        }
        Ok(())
    }

    /// Checks which pages a file has, how many there may be, and the bytes near a range.
    fn compare_file(&self, inode: u32, near: &Range<u64>) -> Done {
        let model = self.model.file(inode).unwrap();
        let (lost, held, written) = self.pages(inode);
        let expected: BTreeSet<u64> = model.pages.keys().copied().collect();
        same("pages that were written", &written, &expected)?;
        same("pages", self.attributes(inode).pages, held.len() as u64)?;
        // More than half of the first chunk's pages have been written; other chunks may have been
        // given a whole block.
        let of_first = |all: &BTreeSet<u64>| all.range(..PAGES as u64).count();
        let is_dense = of_first(&held) <= (2 * of_first(&written)).saturating_sub(1);
        holds(
            "memory that nothing was written in",
            is_dense || of_first(&held) == 0,
        )?;
        let beside = near.start.saturating_sub(PAGE)..near.end.saturating_add(PAGE);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in held.range(beside.start / PAGE..beside.end.div_ceil(PAGE)) {
            match runs.last_mut() {
                Some(last) if last.end == *page => last.end = page + 1,
                _ => runs.push(*page..page + 1),
            }
        }
        for run in runs {
            self.compare_bytes(inode, run.start * PAGE..run.end * PAGE, &lost)?;
        }
        // Its last byte, whatever it is.
        let end = model.size;
        self.compare_bytes(inode, end.saturating_sub(1)..end, &lost)?;
        Ok(())
    }

    fn compare_files(&mut self) -> Done {
        for (inode, node) in &self.model.nodes {
            match &node.body {
                Body::File(_) => self.compare_file(*inode, &(0..u64::MAX))?,
                Body::Directory { entries, .. } => {
                    let mut got = Vec::new();
                    let tree = &self.handler.tree;
                    let visit = |number: u64, name: &[u8], it: &InodeAttributes| {
                        got.push((number, name.to_vec(), it.inode));
                        true
                    };
                    same("list", tree.read_directory(*inode, 2, false, visit), Ok(()))?;
                    let entries = entries.iter();
                    let expected = entries.map(|it| (it.number + 2, it.name.clone(), it.inode));
                    same("entries", got, expected.collect())?;
                }
                Body::Link(target) => {
                    let got = self.handler.tree.target(*inode);
                    same("target", got.as_ref(), Ok(target))?;
                }
                Body::Other => {}
            }
            for (name, value) in &node.values {
                let got = self.handler.tree.xattr(*inode, name);
                same("value", got.as_ref(), Ok(value))?;
            }
        }
        Ok(())
    }

    /// Compares all that is cheap to compare.
    fn compare(&mut self) -> Done {
        self.model.reclaim();
        let nodes = &self.model.nodes;
        self.generations
            .retain(|inode, _| nodes.contains_key(inode));
        let links = self.model.links();
        let end = now();
        let window = self.begin.min(end)..=end;
        let mut pages = 0;
        for (inode, node) in &mut self.model.nodes {
            let got = self.handler.tree.attributes(*inode);
            let got = got.map_err(|error| format!("inode {inode}: {error}"))?;
            pages += got.pages;
            for (is, was, what) in [
                (got.accessed, &mut node.accessed, "accessed"),
                (got.modified, &mut node.modified, "modified"),
                (got.changed, &mut node.changed, "changed"),
            ] {
                if *was == NOW && window.contains(&is) {
                    *was = is;
                }
                holds(
                    &format!("inode {inode} {what}: {is} instead of {was}"),
                    is == *was,
                )?;
            }
            let size = match &node.body {
                Body::File(bytes) => bytes.size,
                Body::Link(target) => target.len() as u64,
                _ => 0,
            };
            let expected = InodeAttributes {
                inode: *inode,
                generation: self.generations[inode],
                mode: node.mode,
                links: links[inode],
                user: node.user,
                group: node.group,
                device: node.device,
                size,
                ..got
            };
            same("attributes", got, expected)?;
        }
        let tree = &self.handler.tree;
        same(
            "inodes",
            tree.inodes(),
            (self.model.count(&links), self.model.most),
        )?;
        same(
            "metadata bytes",
            tree.metadata_bytes().0,
            self.model.metadata_bytes(),
        )?;
        let nameless = links.values().filter(|it| **it == 0).count() as u64;
        same("inodes without a name", tree.orphans(), nameless)?;
        let space = self.handler.store.space();
        same("pages in use", space.used_pages(), pages)?;
        if !self.has_lost() {
            same(
                "pages",
                space.pages(),
                u64::from(self.offered) * PAGES as u64,
            )?;
        }
        Ok(())
    }

    /// After a call that was affected by a failure: checks that its range has old or new content,
    /// and takes that into the model.
    fn settle(&mut self, inode: u32, bytes: Range<u64>, may: &May<'_>) -> Done {
        holds("nothing failed, and it is not the same", self.is_exposed())?;
        self.tally.failed += 1;
        let (lost, _, written) = self.pages(inode);
        let size = self.attributes(inode).size;
        holds(&format!("a size of {size}"), may.sizes.contains(&size))?;
        let met = pages_of(&bytes);
        let model = self.model.file(inode).unwrap().clone();
        for page in written.iter().filter(|it| !model.pages.contains_key(it)) {
            holds(
                &format!("page {page} was written"),
                may.gain && met.contains(page),
            )?;
        }
        for page in model.pages.keys().filter(|it| !written.contains(it)) {
            holds(
                &format!("page {page} is a hole"),
                may.go && met.contains(page),
            )?;
        }
        let mut now = model.clone();
        now.size = size;
        now.pages.retain(|page, _| written.contains(page));
        for page in written.iter().filter(|it| met.contains(it)) {
            let before = model.pages.get(page);
            let mut all = before.map_or([0; PAGE_BYTES], |it| **it);
            for row in 0..ROWS_OF_PAGE {
                let at = page * PAGE + row as u64 * ROW;
                let here = &mut all[row * ROW_BYTES..][..ROW_BYTES];
                if at >= size {
                    here.fill(0);
                } else if !lost.contains(&(at / ROW)) {
                    // Bytes of a lost row cannot be read.
                    let seen = self.read(inode, at, ROW_BYTES);
                    let seen = seen.map_err(|error| format!("row at {at}: {error}"))?;
                    here.fill(0);
                    here[..seen.len()].copy_from_slice(&seen);
                }
            }
            for (at, byte) in all.iter().enumerate() {
                let place = page * PAGE + at as u64;
                let was = before.map_or(0, |it| it[at]);
                let is_new = bytes.contains(&place) && {
                    let new = may.bytes.get((place - bytes.start) as usize);
                    may.zeros && *byte == 0 || new == Some(byte)
                };
                let is_cut = place >= size && *byte == 0;
                let what = format!("byte {place} is {byte}, was {was}");
                holds(&what, *byte == was || is_new || is_cut)?;
            }
            now.pages.insert(*page, Box::new(all));
        }
        *self.model.file_mut(inode) = now;
        Ok(())
    }

    /// Checks that an error is allowed because the memory has failed.
    fn excuse(&self, got: Errno, expected: Option<Errno>) -> Done {
        let excused = match got {
            Errno::IO => self.is_exposed(),
            // Lost blocks leave less space.
            Errno::NOSPC => self.has_met_loss(),
            _ => false,
        };
        holds(&format!("{got} instead of {expected:?}"), excused)
    }

    pub(super) fn step(&mut self, op: Op) -> Done {
        self.begin = now();
        self.refusals = self.memory.refusals.load(Relaxed);
        self.losses = self.memory.losses.load(Relaxed);
        self.call(op)?;
        self.compare()
    }
}

/// The effects that a failed call may have had.
#[derive(Default)]
struct May<'b> {
    /// Bytes of the range may have these values, from its start on.
    bytes: &'b [u8],
    /// Or may be zero.
    zeros: bool,
    sizes: &'b [u64],
    /// Pages may have become holes, or may have been added.
    go: bool,
    gain: bool,
}
