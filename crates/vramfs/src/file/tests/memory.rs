//! Blocks in host memory with injected failures, as the medium of a store.

use super::*;

/// A block: its rows of data, the identity in its record, and its corrupt bits.
pub(super) type Block = (Vec<u8>, Identity, Corruption);

/// Blocks in host memory. Each access to a block must pass the block's identity. Corruption
/// ([`BlockAccess::flip_bits`]) is detected and corrected as the error-correcting code would.
pub(crate) struct TestMemory {
    pub(super) blocks: Vec<RwLock<Block>>,
    /// One in this many calls fails; 0: none.
    pub(crate) fails: AtomicU32,
    /// After this many calls the next `fails_then` calls fail.
    pub(crate) fails_after: AtomicU32,
    pub(crate) fails_then: AtomicU32,
    /// Sometimes sleeps before a call, so that other threads run.
    pub(crate) yields: AtomicBool,
    /// Whether faults can be injected.
    pub(crate) has_code: AtomicBool,
    /// Every format of a block fails.
    pub(super) formats_fail: AtomicBool,
    /// Held while a block is formatted.
    pub(super) gate: Mutex<()>,
    /// The number of attempts to format.
    pub(super) at_gate: AtomicU32,
    /// The number of operations on blocks.
    pub(super) calls: AtomicU32,
    /// The number of operations that failed, and of blocks that were reported as lost.
    pub(crate) refusals: AtomicU32,
    pub(crate) losses: AtomicU32,
    /// The block that is lost, until it is formatted; none for `u32::MAX`.
    pub(crate) lost: AtomicU32,
    /// Whether the host has no memory for another staging buffer.
    pub(crate) refuses_accesses: AtomicBool,
    /// The number of blocks with memory.
    pub(super) there: AtomicU32,
    /// Rows that went through a staging buffer, and rows copied from block to block.
    pub(super) staged_rows: AtomicU32,
    pub(super) moved_rows: AtomicU32,
    /// The block with rows that are found corrupt when they are verified before a copy, and the one
    /// with rows that the copy finds corrupt; none for `u32::MAX`.
    pub(super) corrupt_at_verify: AtomicU32,
    pub(super) corrupt_at_copy: AtomicU32,
}

pub(crate) struct HostAccess {
    pub(super) memory: Arc<TestMemory>,
    pub(super) data: Vec<u8>,
    pub(super) outcomes: Vec<BlockOutcome>,
    /// The update that is committed and not made yet.
    pub(super) started: Option<Vec<early_ack::OwnedWork>>,
    pub(super) random: Rng,
}

impl Medium for Arc<TestMemory> {
    type Access = HostAccess;

    fn access(&self) -> crate::Result<HostAccess> {
        if self.refuses_accesses.load(Relaxed) {
            let error = fercuda_cuda::OutOfMemory {
                call: "cuMemHostAlloc",
                asked_bytes: 1,
                free_and_total_bytes: None,
                deferred_free_bytes: 0,
                device: String::new(),
            };
            return Err(fercuda_cuda::Error::OutOfMemory(Box::new(error)).into());
        }
        Ok(HostAccess {
            memory: self.clone(),
            data: vec![0x5A; 3 * DATA_BYTES],
            outcomes: Vec::new(),
            started: None,
            random: Rng::new(),
        })
    }

    fn background(&self) -> crate::Result<HostAccess> {
        self.access()
    }

    fn has_code(&self) -> bool {
        self.has_code.load(Relaxed)
    }

    fn bytes(&self) -> u64 {
        (self.blocks.len() * DATA_BYTES) as u64
    }

    fn grow(&self, blocks: usize) -> crate::Result<()> {
        self.access()?;
        self.there.fetch_max(blocks as u32, Relaxed);
        Ok(())
    }

    fn shrink(&self, blocks: usize) {
        self.there.fetch_min(blocks as u32, Relaxed);
    }
}

impl HostAccess {
    pub(super) fn may_fail(&mut self) -> crate::Result<()> {
        self.memory.calls.fetch_add(1, Relaxed);
        if self.memory.yields.load(Relaxed) && self.random.u32(..4) == 0 {
            std::thread::sleep(Duration::from_micros(self.random.u64(..50)));
        }
        let fails = self.memory.fails.load(Relaxed);
        let less = |it: &AtomicU32| it.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        let (after, then) = (&self.memory.fails_after, &self.memory.fails_then);
        let has_turn = then.load(Relaxed) > 0 && less(after).is_err() && less(then).is_ok();
        match has_turn || fails > 0 && self.random.u32(..fails) == 0 {
            true => {
                self.memory.refusals.fetch_add(1, Relaxed);
                Err(Error::Copy("an injected failure".into()))
            }
            false => Ok(()),
        }
    }

    /// Sets the outcome of each work item: lost for the block that is.
    pub(super) fn lost(&mut self, work: &[BlockWork<'_>]) -> crate::Result<&[BlockOutcome]> {
        let lost = self.memory.lost.load(Relaxed) as usize;
        let outcome = |it: &BlockWork<'_>| match it.block == lost {
            true => self.memory.report_lost(),
            false => BlockOutcome::CLEAN,
        };
        self.outcomes = work.iter().map(outcome).collect();
        Ok(&self.outcomes)
    }

    pub(super) fn are_there(&self, work: &[BlockWork<'_>]) {
        let there = self.memory.there.load(Relaxed) as usize;
        let source = |place| match place {
            RowLocation::Block(block, _) => block,
            RowLocation::Staging(_) | RowLocation::Nowhere => 0,
        };
        let is_there = |it: &BlockWork<'_>| it.block.max(source(it.place)) < there;
        assert!(work.iter().all(is_there), "a block has no memory");
    }

    pub(super) fn put(
        &mut self,
        work: &[BlockWork<'_>],
        clears: bool,
    ) -> crate::Result<&[BlockOutcome]> {
        self.may_fail()?;
        self.are_there(work);
        let mut blocks: Vec<usize> = work.iter().map(|it| it.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(
            blocks.len(),
            work.len(),
            "a block is changed twice in one call"
        );
        let mut outcomes = vec![BlockOutcome::CLEAN; work.len()];
        for (it, outcome) in work.iter().zip(&mut outcomes) {
            if let Some(refused) = self.memory.refused(it, clears) {
                *outcome = match refused.is_lost() {
                    true => self.memory.report_lost(),
                    false => refused,
                };
                continue;
            }
            let rows = it.rows.start * ROW_BYTES..it.rows.end * ROW_BYTES;
            let count = it.rows.len() as u32;
            let bytes = match it.place {
                RowLocation::Staging(at) => {
                    self.memory.staged_rows.fetch_add(count, Relaxed);
                    self.data[at..at + rows.len()].to_vec()
                }
                RowLocation::Block(source, row) => {
                    self.memory.moved_rows.fetch_add(count, Relaxed);
                    let is_beside = row >= it.rows.end || row + it.rows.len() <= it.rows.start;
                    assert!(
                        source != it.block || is_beside,
                        "source rows are changed by the same call"
                    );
                    assert!(source == it.block || blocks.binary_search(&source).is_err());
                    let block = self.memory.blocks[source].try_read();
                    let block = block.expect("the block is being changed");
                    block.0[row * ROW_BYTES..][..rows.len()].to_vec()
                }
                RowLocation::Nowhere => panic!("rows from nowhere"),
            };
            let mut block = self.memory.blocks[it.block]
                .try_write()
                .expect("the block is in use");
            let identity = it.identity.copied().unwrap_or(block.1);
            if clears {
                if self.memory.lost.load(Relaxed) as usize == it.block {
                    self.memory.lost.store(u32::MAX, Relaxed);
                }
                block.0.fill(0);
                block.2 = Corruption::default();
            } else {
                assert_eq!(
                    block.1[..2],
                    identity[..2],
                    "the changed block has another identity"
                );
            }
            block.1 = identity;
            block.0[rows].copy_from_slice(&bytes);
        }
        self.outcomes = outcomes;
        Ok(&self.outcomes)
    }
}

impl BlockAccess for HostAccess {
    fn slots(&self) -> usize {
        self.data.len() / DATA_BYTES
    }

    fn data(&self) -> &[u8] {
        &self.data
    }

    fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    fn read(&mut self, work: &[BlockWork<'_>]) -> crate::Result<&[BlockOutcome]> {
        self.may_fail()?;
        self.are_there(work);
        for it in work {
            let RowLocation::Staging(at) = it.place else {
                panic!("rows of a block");
            };
            let block = self.memory.blocks[it.block]
                .try_read()
                .expect("the block is being changed");
            let is_it = it.identity.is_none_or(|identity| block.1 == *identity);
            assert!(is_it, "the block read has another identity");
            let rows = &block.0[it.rows.start * ROW_BYTES..it.rows.end * ROW_BYTES];
            self.data[at..at + rows.len()].copy_from_slice(rows);
            let count = it.rows.len() as u32;
            self.memory.staged_rows.fetch_add(count, Relaxed);
        }
        self.lost(work)?;
        self.look_at(work, |it| it.rows.clone());
        Ok(&self.outcomes)
    }

    fn check(&mut self, work: &[BlockWork<'_>]) -> crate::Result<&[BlockOutcome]> {
        self.may_fail()?;
        self.are_there(work);
        let wrong = self.memory.corrupt_at_verify.load(Relaxed) as usize;
        let outcome = |it: &BlockWork<'_>| {
            assert_eq!(it.place, RowLocation::Nowhere);
            let block = self.memory.blocks[it.block].try_read();
            let block = block.expect("the block is being changed");
            assert_eq!(
                block.1,
                *it.identity.unwrap(),
                "the verified block has another identity"
            );
            match it.block == wrong {
                true => BlockOutcome::WRONG_SOURCE,
                false => BlockOutcome::CLEAN,
            }
        };
        let outcomes = work.iter().map(outcome).collect();
        self.outcomes = outcomes;
        self.look_at(work, |it| it.rows.clone());
        Ok(&self.outcomes)
    }

    fn start_update(&mut self, work: &[BlockWork<'_>]) -> crate::Result<()> {
        early_ack::start(self, work)
    }

    fn wait_committed(&mut self) -> bool {
        self.started.is_some()
    }

    fn finish_update(&mut self) -> crate::Result<&[BlockOutcome]> {
        early_ack::finish(self)
    }

    fn format(&mut self, work: &[BlockWork<'_>]) -> crate::Result<&[BlockOutcome]> {
        self.memory.at_gate.fetch_add(1, Relaxed);
        let memory = self.memory.clone();
        let _gate = memory.gate.lock().unwrap();
        match self.memory.formats_fail.load(Relaxed) {
            true => Err(Error::Copy("an injected failure".into())),
            false => self.put(work, true),
        }
    }

    fn verify(&mut self, work: &[BlockWork<'_>]) -> crate::Result<&[BlockOutcome]> {
        self.are_there(work);
        several::verified(self, work)?;
        self.look_at(work, |_| 0..ROWS);
        Ok(&self.outcomes)
    }

    fn correct(&mut self, work: &[BlockWork<'_>]) -> crate::Result<&[BlockOutcome]> {
        self.correct_blocks(work)?;
        Ok(&self.outcomes)
    }

    fn scan(&mut self, blocks: &[u32]) -> crate::Result<Vec<u32>> {
        self.may_fail()?;
        Ok(blocks.to_vec())
    }

    fn refresh(&mut self, _: &[BlockWork<'_>]) -> crate::Result<()> {
        self.may_fail()
    }

    fn flip_bits(&mut self, block: usize, at: usize, mask: &[u8]) -> crate::Result<()> {
        self.corrupt_bits(block, at, mask)
    }

    fn is_spent(&self) -> bool {
        self.memory.fails.load(Relaxed) == 1
    }
}

pub(crate) fn memory(blocks: u32) -> (Arc<TestMemory>, Store<Arc<TestMemory>>) {
    let block = |_| {
        RwLock::new((
            vec![0xEE; DATA_ROWS * ROW_BYTES],
            [u64::MAX; IDENTITY_WORDS],
            Corruption::default(),
        ))
    };
    let memory = Arc::new(TestMemory {
        blocks: (0..blocks).map(block).collect(),
        fails: AtomicU32::new(0),
        fails_after: AtomicU32::new(0),
        fails_then: AtomicU32::new(0),
        yields: AtomicBool::new(false),
        has_code: AtomicBool::new(false),
        formats_fail: AtomicBool::new(false),
        gate: Mutex::new(()),
        at_gate: AtomicU32::new(0),
        calls: AtomicU32::new(0),
        refusals: AtomicU32::new(0),
        losses: AtomicU32::new(0),
        lost: AtomicU32::new(u32::MAX),
        refuses_accesses: AtomicBool::new(false),
        there: AtomicU32::new(blocks),
        staged_rows: AtomicU32::new(0),
        moved_rows: AtomicU32::new(0),
        corrupt_at_verify: AtomicU32::new(u32::MAX),
        corrupt_at_copy: AtomicU32::new(u32::MAX),
    });
    (memory.clone(), Store::new(memory, blocks, blocks, 4))
}
