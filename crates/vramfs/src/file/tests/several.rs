//! Files on an array of memories that fail now and then or for good, checked against a model.

use super::*;
use crate::array::{Array, ArrayLayout};
use crate::medium::{ArrayMember, LendStaging};

/// A memory that fails each call counts as failed for good.
impl ArrayMember for Arc<TestMemory> {
    fn access_unstaged(&self) -> crate::Result<HostAccess> {
        let mut host = self.access()?;
        host.data = Vec::new();
        Ok(host)
    }

    fn background_unstaged(&self) -> crate::Result<HostAccess> {
        self.access_unstaged()
    }

    fn has_failed(&self, _: &Error) -> bool {
        self.fails.load(Relaxed) == 1
    }
}

impl LendStaging for HostAccess {
    fn exchange(&mut self, other: &mut Self) -> crate::Result<()> {
        if self.is_spent() || other.is_spent() {
            return Err(Error::Failed);
        }
        std::mem::swap(&mut self.data, &mut other.data);
        Ok(())
    }

    fn restage(&mut self, bytes: &[u8]) -> crate::Result<()> {
        if self.is_spent() {
            return Err(Error::Failed);
        }
        self.data = bytes.to_vec();
        Ok(())
    }
}

/// Checks that blocks have the identities passed, and are not lost.
pub(super) fn verified<'h>(
    host: &'h mut HostAccess,
    work: &[BlockWork<'_>],
) -> crate::Result<&'h [BlockOutcome]> {
    let is_it = |it: &BlockWork<'_>| {
        let block = host.memory.blocks[it.block].read().unwrap();
        it.identity.is_none_or(|identity| block.1 == *identity)
    };
    let is_it: Vec<bool> = work.iter().map(is_it).collect();
    host.lost(work)?;
    for (outcome, _) in host.outcomes.iter_mut().zip(is_it).filter(|it| !it.1) {
        *outcome = BlockOutcome::LOST;
    }
    Ok(&host.outcomes)
}

struct Several {
    memories: Vec<Arc<TestMemory>>,
    store: Store<Array<Arc<TestMemory>>>,
    spread: ArrayLayout,
    /// One in this many calls fails.
    often: AtomicU32,
}

impl Several {
    fn new(devices: usize, spread: ArrayLayout, blocks: u32) -> Self {
        let share = |at| spread.share(blocks as usize, devices, at) as u32;
        let memories: Vec<_> = (0..devices).map(|at| memory(share(at)).0).collect();
        let all = memories.iter().cloned().zip(0..);
        let all = all.map(|(memory, number)| (number, memory)).collect();
        let array = Array::new(all, spread, blocks as usize);
        Self {
            memories,
            store: Store::new(array, blocks, blocks, 2),
            spread,
            often: AtomicU32::new(0),
        }
    }

    /// Makes one in this many calls fail on each memory that has not failed for good; 0: none.
    fn fails(&self, often: u32) {
        self.often.store(often, Relaxed);
        self.fail(often);
    }

    fn fail(&self, often: u32) {
        for memory in &self.memories {
            if memory.fails.load(Relaxed) != 1 {
                memory.fails.store(often, Relaxed);
            }
        }
    }

    fn is_out(&self, at: usize) -> bool {
        let figures = self.store.medium().figures();
        figures.contains(&format!("device_{at}_state failed\n"))
    }

    fn figure(&self, name: &str) -> u64 {
        let figures = self.store.medium().figures();
        let of_name = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        figures.lines().find_map(of_name).unwrap()
    }

    /// Checks that all working mirrors have the same content in each used block.
    fn are_same(&self) {
        if self.spread == ArrayLayout::Stripe {
            return;
        }
        let live = (0..self.memories.len()).filter(|at| !self.is_out(*at));
        let live: Vec<_> = live.map(|at| &self.memories[at]).collect();
        for block in self.store.used_blocks() {
            let of =
                |memory: &Arc<TestMemory>| memory.blocks[block as usize].read().unwrap().clone();
            let first = of(live[0]);
            assert!(live.iter().all(|it| of(it) == first), "block {block}");
        }
    }

    fn bytes(&self, file: &File) -> Result<Vec<u8>, Errno> {
        let mut all = Vec::new();
        while (all.len() as u64) < file.size() {
            let (at, left) = (all.len() as u64, file.size() as usize - all.len());
            let part = self.store.read_file(file, at, left, <[u8]>::to_vec)?;
            assert!(!part.is_empty());
            all.extend(part);
        }
        Ok(all)
    }

    /// A random operation on a file; if it fails it may have been done in part, which is looked up.
    fn step(&self, random: &mut Rng, all: &mut [(File, Vec<u8>)]) {
        let at_once = random.usize(1..4 * DATA_BYTES);
        let (inode, other) = (random.usize(..all.len()), random.usize(..all.len()));
        let (file, model) = &all[inode];
        let from = random.usize(..4 * DATA_BYTES);
        let place = match random.bool() {
            true => from / PAGE_BYTES * PAGE_BYTES,
            false => from,
        };
        let mut wanted = model.clone();
        let done = match random.u32(..6) {
            0..=2 => {
                let byte = random.u8(1..);
                let bytes: Vec<u8> = (0..at_once).map(|at| byte ^ (at / 700) as u8).collect();
                let done = self
                    .store
                    .write_file(file, inode as u32 + 1, place as u64, &bytes);
                done.map(|done| {
                    if done > 0 {
                        wanted.resize(wanted.len().max(place + done), 0);
                        wanted[place..place + done].copy_from_slice(&bytes[..done]);
                    }
                    done == at_once
                })
            }
            3 => {
                wanted.resize(place, 0);
                self.store.truncate(file, place as u64).map(|()| true)
            }
            4 => {
                let end = wanted.len().min(place + at_once);
                if place < end {
                    wanted[place..end].fill(0);
                }
                let hole = place as u64..(place + at_once) as u64;
                self.store.punch(file, hole).map(|()| true)
            }
            _ if inode == other => Ok(true),
            _ => {
                let (source, bytes) = &all[other];
                let row = from / ROW_BYTES * ROW_BYTES;
                let given = (row as u64 % 4096, at_once as u64);
                let to = (file, inode as u32 + 1, row as u64);
                let done = self.store.copy((source, given.0), to, given.1);
                done.map(|done| {
                    let (first, done) = (given.0 as usize, done as usize);
                    if done > 0 {
                        wanted.resize(wanted.len().max(row + done), 0);
                        wanted[row..row + done].copy_from_slice(&bytes[first..first + done]);
                    }
                    first + done == bytes.len().max(first).min(first + at_once)
                })
            }
        };
        let often = self.often.load(Relaxed);
        self.fail(0);
        let (file, model) = &mut all[inode];
        let is_whole = done == Ok(true);
        if is_whole {
            *model = wanted;
            assert!(self.bytes(file).unwrap() == *model);
        } else {
            // The part that was done is looked up; the other files are unchanged.
            assert!(
                often > 0 || matches!(done, Err(Errno::NOSPC) | Ok(false)),
                "{done:?}"
            );
            *model = self.bytes(file).unwrap();
        }
        self.fail(often);
    }
}

const ALL: [(usize, ArrayLayout); 4] = [
    (2, ArrayLayout::Stripe),
    (3, ArrayLayout::Stripe),
    (2, ArrayLayout::Mirror),
    (3, ArrayLayout::Mirror),
];

#[test]
fn stripe_shares_partition_the_blocks() {
    for devices in 2..9 {
        for blocks in 0..50 {
            let share = |at| ArrayLayout::Stripe.share(blocks, devices, at);
            assert_eq!((0..devices).map(share).sum::<usize>(), blocks);
            assert!((0..blocks).all(|block| block / devices < share(block % devices)));
            assert_eq!(ArrayLayout::Mirror.share(blocks, devices, 1), blocks);
        }
    }
}

#[test]
fn files_on_several_devices_keep_written_bytes() {
    let mut random = Rng::with_seed(seed());
    let mut used = std::collections::HashMap::new();
    for round in 0..program_count() / 3 {
        for (devices, spread) in ALL {
            let several = Several::new(devices, spread, random.u32(6..20));
            let used = used.entry((devices, spread == ArrayLayout::Stripe));
            let used = used.or_insert(vec![0; devices]);
            several.fails([0, 40, 100][round as usize % 3]);
            let mut all: Vec<(File, Vec<u8>)> = (0..3).map(|_| <_>::default()).collect();
            for _ in 0..60 {
                several.step(&mut random, &mut all);
                several.are_same();
            }
            several.fails(0);
            for (file, model) in &all {
                assert!(several.bytes(file).unwrap() == *model);
            }
            for (used, memory) in used.iter_mut().zip(&several.memories) {
                *used += memory.staged_rows.load(Relaxed);
            }
        }
    }
    // The staging buffers of all of them were used.
    assert!(used.values().flatten().all(|used| *used > 0), "{used:?}");
}

#[test]
fn a_mirror_survives_failed_devices_until_the_last_one() {
    let mut random = Rng::with_seed(seed());
    for _ in 0..program_count() / 3 {
        let several = Several::new(3, ArrayLayout::Mirror, 60);
        let mut all: Vec<(File, Vec<u8>)> = (0..3).map(|_| <_>::default()).collect();
        let mut order = vec![0, 1, 2];
        random.shuffle(&mut order);
        for (failed, at) in order.iter().enumerate() {
            for _ in 0..20 {
                several.step(&mut random, &mut all);
            }
            several.are_same();
            assert_eq!(several.store.write_file(&all[0].0, 1, 0, &[9; 9]), Ok(9));
            all[0].1 = several.bytes(&all[0].0).unwrap();
            let expected: Vec<Vec<u8>> = all.iter().map(|it| it.1.clone()).collect();
            several.memories[*at].fails.store(1, Relaxed);
            let read = |(file, _): &(File, Vec<u8>)| several.bytes(file);
            if failed < 2 {
                // No call fails, whichever device serves it.
                for _ in 0..3 {
                    let read: Vec<_> = all.iter().map(|it| read(it).unwrap()).collect();
                    assert!(read == expected);
                }
                let (file, model) = &mut all[0];
                let bytes = vec![failed as u8 + 1; 5000];
                assert_eq!(several.store.write_file(file, 1, 0, &bytes), Ok(5000));
                model.resize(model.len().max(5000), 0);
                model[..5000].copy_from_slice(&bytes);
                assert!(several.is_out(*at));
                assert_eq!(several.store.medium().failed_devices(), failed as u32 + 1);
            } else {
                let file = &all[0].0;
                assert_eq!(several.bytes(file), Err(Errno::IO));
                let done = several.store.write_file(file, 1, 0, &[1]);
                assert_eq!(done, Err(Errno::IO));
            }
        }
        let figures = several.store.medium().figures();
        assert!(figures.starts_with("array_state failed\n"), "{figures}");
    }
}

#[test]
fn a_device_is_not_blamed_for_staging_held_by_one_being_taken_out() {
    for reads in 0..4 {
        let several = Several::new(2, ArrayLayout::Mirror, 4);
        let file = File::default();
        let bytes: Vec<u8> = (0..DATA_BYTES).map(|at| (at / 9) as u8).collect();
        let done = several.store.write_file(&file, 1, 0, &bytes);
        assert_eq!(done, Ok(bytes.len()));
        // Selects which of the two holds the staging buffer.
        for _ in 0..reads {
            assert!(several.bytes(&file).unwrap() == bytes);
        }
        several.memories[0].fails.store(1, Relaxed);
        several.store.medium().begin_to_fail_device(0);
        assert!(several.bytes(&file).unwrap() == bytes, "{reads}");
        assert!(!several.is_out(1), "{reads}");
    }
}

#[test]
fn a_block_lost_on_one_mirror_is_rebuilt_from_the_other() {
    let several = Several::new(2, ArrayLayout::Mirror, 4);
    let file = File::default();
    let bytes: Vec<u8> = (0..2 * DATA_BYTES).map(|at| (at / 9) as u8).collect();
    let done = several.store.write_file(&file, 1, 0, &bytes);
    assert_eq!(done, Ok(bytes.len()));
    for at in 0..2 {
        let lost = several.store.blocks_of(&file)[0];
        several.memories[at].lost.store(lost, Relaxed);
        // A partial write repairs the block, too, and its own bytes in the staging buffer survive.
        if at == 1 {
            let done = several.store.write_file(&file, 1, 3000, &[7; 3000]);
            assert_eq!(done, Ok(3000));
        }
        // Both devices are read, in turn.
        let mut expected = bytes.clone();
        expected[3000..6000].fill(if at == 1 { 7 } else { bytes[0] });
        for _ in 0..2 {
            let read = several.bytes(&file).unwrap();
            assert!(read[6000..] == bytes[6000..] && read[..3000] == bytes[..3000]);
            assert!(at == 0 || read[3000..6000] == expected[3000..6000]);
        }
        assert_eq!(several.memories[at].lost.load(Relaxed), u32::MAX);
        assert_eq!(several.figure(&format!("device_{at}_remade_blocks")), 1);
        several.are_same();
    }
    assert_eq!(several.store.medium().failed_devices(), 0);
    // A block that is lost on both is lost, and no device is taken out of use for it.
    let lost = several.store.blocks_of(&file)[0];
    for memory in &several.memories {
        memory.lost.store(lost, Relaxed);
    }
    assert_eq!(several.bytes(&file), Err(Errno::IO));
    assert_eq!(several.store.counters().lost_blocks.load(Relaxed), 1);
    assert_eq!(several.store.medium().failed_devices(), 0);
}

#[test]
fn rows_corrupted_in_transfer_leave_mirrors_identical() {
    let several = Several::new(2, ArrayLayout::Mirror, 12);
    let store = &several.store;
    let bytes: Vec<u8> = (0..DATA_BYTES).map(|at| (at / 9) as u8).collect();
    for both in [false, true] {
        let (source, target) = (File::default(), File::default());
        for file in [&source, &target] {
            assert_eq!(store.write_file(file, 1, 0, &bytes), Ok(bytes.len()));
        }
        let wrong = store.blocks_of(&source)[0];
        let memories = &several.memories[..1 + usize::from(both)];
        for memory in memories {
            memory.corrupt_at_copy.store(wrong, Relaxed);
        }
        let done = store.copy((&source, 1 << 10), (&target, 1, 8 << 10), 3 << 10);
        assert_eq!(done, Ok(3 << 10));
        let mut expected = bytes.clone();
        expected[8 << 10..11 << 10].copy_from_slice(&bytes[1 << 10..4 << 10]);
        for memory in memories {
            memory.corrupt_at_copy.store(u32::MAX, Relaxed);
        }
        for _ in 0..2 {
            assert!(several.bytes(&target).unwrap() == expected);
        }
        several.are_same();
        assert_eq!(store.medium().failed_devices(), 0);
    }
}

#[test]
fn a_stripe_loses_one_devices_blocks_and_keeps_working() {
    let several = Several::new(2, ArrayLayout::Stripe, 16);
    let store = &several.store;
    let chunk = vec![5; DATA_BYTES];
    let files: Vec<File> = (0..8).map(|_| File::default()).collect();
    for file in &files {
        assert_eq!(store.write_file(file, 1, 0, &chunk), Ok(chunk.len()));
    }
    several.memories[1].fails.store(1, Relaxed);
    let is_gone = |file: &File| store.medium().is_lost(store.blocks_of(file)[0] as usize);
    let read = |file: &File| several.bytes(file).is_ok();
    let well: Vec<bool> = files.iter().map(read).collect();
    for (file, is_well) in files.iter().zip(&well) {
        assert_eq!(is_gone(file), !is_well);
    }
    assert_eq!(well.iter().filter(|it| **it).count(), 4);
    assert!(several.is_out(1) && !several.is_out(0));
    // The space is that of the other device, and what is used.
    let space = store.space();
    assert_eq!((space.pages(), space.free_pages()), (12 * 32, 4 * 32));
    let more: Vec<File> = (0..4).map(|_| File::default()).collect();
    for file in &more {
        assert_eq!(store.write_file(file, 2, 0, &chunk), Ok(chunk.len()));
    }
    assert!(more.iter().all(read));
    let full = store.write_file(&File::default(), 3, 0, &[1]);
    assert_eq!(full, Err(Errno::NOSPC));
    for file in files.iter().chain(&more) {
        store.free(file);
    }
    assert_eq!((space.pages(), space.used_pages()), (8 * 32, 0));
    // New data is written to blocks as they are allocated again, and verified in the background.
    let file = File::default();
    let bytes = vec![6; 8 * DATA_BYTES];
    assert_eq!(store.write_file(&file, 4, 0, &bytes), Ok(bytes.len()));
    assert!(several.bytes(&file).unwrap() == bytes);
    let found = store
        .scrub(0, crate::tools::CALL_DURATION, u32::MAX)
        .unwrap();
    assert_eq!((found.verified, found.lost), (8, 0));
}

#[test]
fn a_write_during_a_stripe_device_failure_uses_the_other_devices() {
    let several = Several::new(2, ArrayLayout::Stripe, 16);
    let file = File::default();
    several.memories[0].fails.store(1, Relaxed);
    let bytes: Vec<u8> = (0..6 * DATA_BYTES).map(|at| (at / 11) as u8).collect();
    let done = several.store.write_file(&file, 1, 0, &bytes);
    assert_eq!(done, Ok(bytes.len()));
    assert!(several.bytes(&file).unwrap() == bytes);
}

#[test]
fn allocations_and_copies_avoid_a_failed_stripe_device() {
    for how in 0..3 {
        let several = Several::new(2, ArrayLayout::Stripe, 20);
        let store = &several.store;
        let target = File::default();
        let bytes: Vec<u8> = (0..DATA_BYTES).map(|at| (at / 11) as u8).collect();
        // In a block of the device that still works: other blocks' data is left in place.
        let source = (0..20).find_map(|_| {
            let file = File::default();
            let done = store.write_file(&file, 1, 0, &bytes);
            assert_eq!(done, Ok(bytes.len()));
            store.blocks_of(&file)[0].is_multiple_of(2).then_some(file)
        });
        let source = source.unwrap();
        several.memories[1].fails.store(1, Relaxed);
        let all = 0..3 * DATA_BYTES as u64;
        let (done, expected) = match how {
            0 => (
                store.allocate(&target, 3, all, false),
                vec![0; 3 * DATA_BYTES],
            ),
            1 => (store.zero(&target, 3, all, false), vec![0; 3 * DATA_BYTES]),
            _ => {
                let mut copied = Ok(());
                for chunk in 0..3 {
                    let to = (&target, 3, chunk * DATA_BYTES as u64);
                    let done = store.copy((&source, 0), to, bytes.len() as u64);
                    copied = copied.and(done.map(|done| assert_eq!(done, bytes.len() as u64)));
                }
                (copied, bytes.repeat(3))
            }
        };
        assert_eq!(done, Ok(()), "{how}");
        assert!(several.bytes(&target).unwrap() == expected, "{how}");
        assert!(several.is_out(1));
    }
}

#[test]
fn growth_that_one_device_refuses_changes_no_device() {
    for spread in [ArrayLayout::Stripe, ArrayLayout::Mirror] {
        let several = Several::new(2, spread, 4);
        let medium = several.store.medium();
        let there = || {
            let all = several.memories.iter();
            all.map(|it| it.there.load(Relaxed)).collect::<Vec<_>>()
        };
        let before = there();
        several.memories[1].refuses_accesses.store(true, Relaxed);
        assert!(medium.grow(8).is_err());
        assert_eq!(there(), before);
        several.memories[1].refuses_accesses.store(false, Relaxed);
        medium.grow(7).unwrap();
        let grown = match spread {
            ArrayLayout::Stripe => [4, 3],
            ArrayLayout::Mirror => [7, 7],
        };
        assert_eq!(there(), grown);
        medium.shrink(2);
        let left = ArrayLayout::share(spread, 2, 2, 0) as u32;
        assert_eq!(there(), [left, left]);
    }
}
