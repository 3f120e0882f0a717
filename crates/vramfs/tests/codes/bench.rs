//! Worker with blocks under test, and the code's arithmetic as the reference.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_vramfs::layout::{
    BLOCK_BYTES, CODED_ROWS, DATA_BYTES, DATA_ROWS, RECORD_SUM_OFFSET, ROW_BYTES, bit_position,
};
use fercuda_vramfs::{
    BlockOutcome, BlockWork, Blocks, Identity, Kernels, RowLocation, Worker, crc32c,
};

/// Findings of the software device are global to the process, so tests run one after the other.
pub(crate) static ONE: Mutex<()> = Mutex::new(());

pub(crate) struct Bench {
    pub(crate) stream: Stream,
    pub(crate) worker: Worker,
    pub(crate) random: Rng,
    pub(crate) _one: MutexGuard<'static, ()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let found = fercuda_softgpu::control::take_findings();
        assert!(found.is_empty() || std::thread::panicking(), "{found:#?}");
    }
}

impl Bench {
    /// Ranges of at least `least` rows: lengths around those of pages and of a kernel's rounds, one
    /// row more and less, from the first row on, up to the last, and anywhere.
    pub(crate) fn borders(&mut self, least: usize) -> Vec<Range<usize>> {
        let lens = [0, 1, 3, 4, 5, 8, 9, 12, 127, 128];
        let mut all = Vec::new();
        for len in lens.into_iter().filter(|it| *it >= least) {
            let anywhere = self.random.usize(..=DATA_ROWS - len);
            all.extend([0, DATA_ROWS - len, anywhere].map(|first| first..first + len));
        }
        all
    }

    pub(crate) fn new(slots: usize) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = fercuda_trials::seed();
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let kernels = Kernels::load(&context).unwrap();
        Self {
            stream: Stream::new(&context).unwrap(),
            worker: Worker::new(&kernels, slots, Stream::new(&context).unwrap()).unwrap(),
            random: Rng::with_seed(seed),
            _one: one,
        }
    }

    pub(crate) fn worker(slots: usize) -> Worker {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let stream = Stream::new(&context).unwrap();
        Worker::new(&Kernels::load(&context).unwrap(), slots, stream).unwrap()
    }

    pub(crate) fn blocks(&self, count: usize) -> Arc<Blocks> {
        Arc::new(Blocks::new(self.stream.context(), count, count, true).unwrap())
    }

    pub(crate) fn bytes(&self, blocks: &Blocks) -> Vec<u8> {
        let mut bytes = vec![0; blocks.len() * BLOCK_BYTES];
        blocks.peek(0, &mut bytes, &self.stream).unwrap();
        bytes
    }

    pub(crate) fn put(&self, blocks: &Blocks, bytes: &[u8]) {
        blocks.poke(0, bytes, &self.stream).unwrap();
    }

    /// Encoded blocks of random data, their bytes and their identities.
    pub(crate) fn encoded(&mut self, count: usize) -> (Arc<Blocks>, Vec<u8>, Vec<Identity>) {
        let blocks = self.blocks(count);
        let identities: Vec<Identity> = (0..count)
            .map(|_| std::array::from_fn(|_| self.random.u64(..)))
            .collect();
        for (slot, _) in identities.iter().enumerate() {
            let of = slot * DATA_BYTES..(slot + 1) * DATA_BYTES;
            self.random.fill(&mut self.worker.data_mut()[of]);
        }
        let outcomes = self.worker.encode(&blocks, &whole(&identities)).unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean));
        let bytes = self.bytes(&blocks);
        (blocks, bytes, identities)
    }
}

pub(crate) fn whole(identities: &[Identity]) -> Vec<BlockWork<'_>> {
    let of = |(block, identity)| BlockWork {
        block,
        rows: 0..DATA_ROWS,
        place: RowLocation::Staging(block * DATA_BYTES),
        identity: Some(identity),
    };
    identities.iter().enumerate().map(of).collect()
}

pub(crate) fn rowless(count: usize) -> Vec<BlockWork<'static>> {
    let of = |block| BlockWork {
        block,
        rows: 0..0,
        place: RowLocation::Staging(0),
        identity: None,
    };
    (0..count).map(of).collect()
}

/// The symbol of a word in a row of a block.
pub(crate) fn symbol(block: &[u8], row: usize, word: usize) -> u8 {
    (0..8).fold(0, |sum, bit| {
        let (byte, at) = bit_position(word, bit);
        sum | (block[row * ROW_BYTES + byte] >> at & 1) << bit
    })
}

pub(crate) fn change(block: &mut [u8], row: usize, word: usize, by: u8) {
    for bit in 0..8 {
        let (byte, at) = bit_position(word, bit);
        block[row * ROW_BYTES + byte] ^= (by >> bit & 1) << at;
    }
}

/// Multiplication in GF(256) by shifts, which shares nothing with the crate's tables.
pub(crate) fn times(x: u8, y: u8) -> u8 {
    let (mut x, mut sum) = (u16::from(x), 0u16);
    for bit in 0..8 {
        if y >> bit & 1 != 0 {
            sum ^= x;
        }
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= 0x11D;
        }
    }
    sum as u8
}

/// The syndromes of a word: its values at the roots of the generator, which are zero for a code
/// word.
pub(crate) fn syndromes(block: &[u8], word: usize) -> [u8; 8] {
    // alpha to the power of 251 is alpha to that of -4.
    let first = (0..251).fold(1, |x, _| times(x, 2));
    let mut root = first;
    std::array::from_fn(|_| {
        let value = (0..CODED_ROWS).fold(0, |sum, row| times(sum, root) ^ symbol(block, row, word));
        root = times(root, 2);
        value
    })
}

pub(crate) fn word_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(block[offset..offset + 4].try_into().unwrap())
}

/// `count` distinct numbers below `end`.
pub(crate) fn distinct(random: &mut Rng, count: usize, end: usize) -> Vec<usize> {
    random.choose_multiple(0..end, count)
}

pub(crate) fn sum(record: &mut [u8]) {
    record[RECORD_SUM_OFFSET..].fill(0);
    let sum = crc32c(record);
    record[RECORD_SUM_OFFSET..].copy_from_slice(&sum.to_le_bytes());
}
