//! Kernels of the error-correcting code, on the software device with all checks or on a GPU with
//! `FERCUDA_DEVICE=gpu`, against arithmetic written here. Seeds are printed; `FERCUDA_SEED`
//! repeats one.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_vramfs::code::mask_values;
use fercuda_vramfs::layout::{
    BLOCK_BYTES, CODED_ROWS, DATA_BYTES, DATA_ROWS, IDENTITY_OFFSET, IDENTITY_WORDS, MAGIC,
    MAGIC_OFFSET, RECORD_OFFSET, RECORD_SUM_OFFSET, ROW_BYTES, WORDS, bit_position, factor,
};
use fercuda_vramfs::{
    BlockOutcome, BlockWork, Blocks, Copier, Identity, Kernels, Mover, RowLocation, Worker, crc32c,
};

/// Findings of the software device are global to the process, so tests run one after the other.
static ONE: Mutex<()> = Mutex::new(());

struct Bench {
    stream: Stream,
    worker: Worker,
    random: Rng,
    _one: MutexGuard<'static, ()>,
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
    fn borders(&mut self, least: usize) -> Vec<Range<usize>> {
        let lens = [0, 1, 3, 4, 5, 8, 9, 12, 127, 128];
        let mut all = Vec::new();
        for len in lens.into_iter().filter(|it| *it >= least) {
            let anywhere = self.random.usize(..=DATA_ROWS - len);
            all.extend([0, DATA_ROWS - len, anywhere].map(|first| first..first + len));
        }
        all
    }

    fn new(slots: usize) -> Self {
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

    fn worker(slots: usize) -> Worker {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let stream = Stream::new(&context).unwrap();
        Worker::new(&Kernels::load(&context).unwrap(), slots, stream).unwrap()
    }

    fn blocks(&self, count: usize) -> Blocks {
        Blocks::new(self.stream.context(), count, count, true).unwrap()
    }

    fn bytes(&self, blocks: &Blocks) -> Vec<u8> {
        let mut bytes = vec![0; blocks.len() * BLOCK_BYTES];
        blocks.peek(0, &mut bytes, &self.stream).unwrap();
        bytes
    }

    fn put(&self, blocks: &Blocks, bytes: &[u8]) {
        blocks.poke(0, bytes, &self.stream).unwrap();
    }

    /// Encoded blocks of random data, their bytes and their identities.
    fn encoded(&mut self, count: usize) -> (Blocks, Vec<u8>, Vec<Identity>) {
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

fn whole(identities: &[Identity]) -> Vec<BlockWork<'_>> {
    let of = |(block, identity)| BlockWork {
        block,
        rows: 0..DATA_ROWS,
        place: RowLocation::Staging(block * DATA_BYTES),
        identity: Some(identity),
    };
    identities.iter().enumerate().map(of).collect()
}

fn rowless(count: usize) -> Vec<BlockWork<'static>> {
    let of = |block| BlockWork {
        block,
        rows: 0..0,
        place: RowLocation::Staging(0),
        identity: None,
    };
    (0..count).map(of).collect()
}

/// The symbol of a word in a row of a block.
fn symbol(block: &[u8], row: usize, word: usize) -> u8 {
    (0..8).fold(0, |sum, bit| {
        let (byte, at) = bit_position(word, bit);
        sum | (block[row * ROW_BYTES + byte] >> at & 1) << bit
    })
}

fn change(block: &mut [u8], row: usize, word: usize, by: u8) {
    for bit in 0..8 {
        let (byte, at) = bit_position(word, bit);
        block[row * ROW_BYTES + byte] ^= (by >> bit & 1) << at;
    }
}

/// Multiplication in GF(256) by shifts, which shares nothing with the crate's tables.
fn times(x: u8, y: u8) -> u8 {
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
fn syndromes(block: &[u8], word: usize) -> [u8; 8] {
    // alpha to the power of 251 is alpha to that of -4.
    let first = (0..251).fold(1, |x, _| times(x, 2));
    let mut root = first;
    std::array::from_fn(|_| {
        let value = (0..CODED_ROWS).fold(0, |sum, row| times(sum, root) ^ symbol(block, row, word));
        root = times(root, 2);
        value
    })
}

fn word_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(block[offset..offset + 4].try_into().unwrap())
}

#[test]
fn block_matches_the_format() {
    let mut bench = Bench::new(3);
    let (_, bytes, identities) = bench.encoded(3);
    for (at, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        assert!(
            block[..DATA_BYTES] == bench.worker.data()[at * DATA_BYTES..][..DATA_BYTES],
            "data"
        );
        let [number, generation, ..] = identities[at];
        for word in 0..WORDS {
            let factor = factor(number, generation, word / 32);
            assert_ne!(factor, 0);
            let mask = mask_values().map(|value| times(value, factor));
            assert_eq!(syndromes(block, word), mask, "word {word}");
        }
        let record = &block[RECORD_OFFSET..];
        for row in 0..CODED_ROWS {
            let sum = crc32c(&block[row * ROW_BYTES..][..ROW_BYTES]);
            assert_eq!(word_at(record, 4 * row), sum, "row {row}");
        }
        assert_eq!(word_at(record, MAGIC_OFFSET), MAGIC);
        let identity: &[u8] = bytemuck::cast_slice(&identities[at]);
        assert_eq!(record[IDENTITY_OFFSET..][..8 * IDENTITY_WORDS], *identity);
        let mut without = record.to_vec();
        without[RECORD_SUM_OFFSET..].fill(0);
        assert_eq!(word_at(record, RECORD_SUM_OFFSET), crc32c(&without));
    }
}

#[test]
fn read_detects_any_flipped_bit_in_its_rows() {
    let mut bench = Bench::new(1);
    let (blocks, bytes, identities) = bench.encoded(1);
    for round in 0..10 {
        let first = bench.random.usize(..DATA_ROWS);
        let rows = first..bench.random.usize(first..=DATA_ROWS);
        let work = [BlockWork {
            block: 0,
            rows: rows.clone(),
            place: RowLocation::Staging(0),
            identity: Some(&identities[0]),
        }];
        let expected = &bytes[rows.start * ROW_BYTES..rows.end * ROW_BYTES];
        for is_whole in [true, false] {
            bench.worker.data_mut().fill(0xAA);
            let outcomes = match is_whole {
                true => bench.worker.verify(&blocks, &work),
                false => bench.worker.check(&blocks, &work),
            };
            assert!(outcomes.unwrap()[0].is_clean(), "round {round}");
            assert!(
                bench.worker.data()[..expected.len()] == *expected,
                "{rows:?}"
            );
            assert!(
                bench.worker.data()[expected.len()..]
                    .iter()
                    .all(|it| *it == 0xAA)
            );
        }
        let (byte, bit) = (bench.random.usize(..BLOCK_BYTES), bench.random.u32(..8));
        let mut wrong = bytes.clone();
        wrong[byte] ^= 1 << bit;
        bench.put(&blocks, &wrong);
        let outcome = bench.worker.verify(&blocks, &work).unwrap()[0];
        assert_eq!(
            outcome.has_wrong_words(),
            byte < RECORD_OFFSET,
            "byte {byte}"
        );
        assert_eq!(
            outcome.has_wrong_record(),
            byte >= RECORD_OFFSET,
            "byte {byte}"
        );
        let outcome = bench.worker.check(&blocks, &work).unwrap()[0];
        let is_read = rows.contains(&(byte / ROW_BYTES));
        assert_eq!(outcome.has_wrong_rows(), is_read, "byte {byte} of {rows:?}");
        bench.put(&blocks, &bytes);
        let mut another = identities[0];
        another[bench.random.usize(..IDENTITY_WORDS)] ^= 1 << bench.random.u32(..64);
        let work = [BlockWork {
            block: 0,
            rows: 0..0,
            place: RowLocation::Staging(0),
            identity: Some(&another),
        }];
        assert!(bench.worker.verify(&blocks, &work).unwrap()[0].has_wrong_identity());
    }
}

/// Up to eight rows are verified on the host. The outcome has to be the one of the kernel.
#[test]
fn host_side_verify_of_few_rows_equals_the_kernels() {
    let mut bench = Bench::new(2);
    let (blocks, bytes, identities) = bench.encoded(2);
    let borders = bench.borders(1).into_iter().filter(|it| it.len() <= 9);
    for (round, rows) in borders.enumerate() {
        let block = bench.random.usize(..2);
        let room = 2 * DATA_BYTES - rows.len() * ROW_BYTES;
        let at = bench.random.usize(..=room / 16) * 16;
        let place = RowLocation::Staging(at);
        let identity = (!round.is_multiple_of(4)).then_some(&identities[block]);
        let work = |identity| BlockWork {
            block,
            rows: rows.clone(),
            place,
            identity,
        };
        bench.worker.data_mut().fill(0xAA);
        let outcomes = bench.worker.read(&blocks, &[work(identity)]).unwrap();
        assert!(matches!(outcomes, [one] if one.is_clean()), "{rows:?}");
        let end = at + rows.len() * ROW_BYTES;
        let data = bench.worker.data();
        let first = block * BLOCK_BYTES + rows.start * ROW_BYTES;
        assert!(data[at..end] == bytes[first..][..end - at], "{rows:?}");
        let mut others = data[..at].iter().chain(&data[end..]);
        assert!(others.all(|it| *it == 0xAA), "{rows:?}");

        // One bit: of these rows, of any row, or of the record's checksums, magic number, identity
        // or own checksum.
        let row = bench.random.usize(rows.clone());
        let any = bench.random.usize(..CODED_ROWS);
        let mut of_row = |row: usize| row * ROW_BYTES + bench.random.usize(..ROW_BYTES);
        let places = [
            of_row(row),
            of_row(rows.end - 1),
            of_row(any),
            RECORD_OFFSET + 4 * row,
            RECORD_OFFSET + MAGIC_OFFSET + bench.random.usize(..8),
            RECORD_OFFSET + IDENTITY_OFFSET + bench.random.usize(..8 * IDENTITY_WORDS),
            RECORD_OFFSET + RECORD_SUM_OFFSET + bench.random.usize(..4),
        ];
        for (kind, byte) in places.into_iter().enumerate() {
            let mut wrong = bytes.clone();
            wrong[block * BLOCK_BYTES + byte] ^= 1 << bench.random.u32(..8);
            // With a valid checksum it is the record's content that is wrong.
            if bench.random.bool() {
                sum(&mut wrong[block * BLOCK_BYTES + RECORD_OFFSET..][..ROW_BYTES]);
            }
            bench.put(&blocks, &wrong);
            let expected = bench.worker.check(&blocks, &[work(identity)]).unwrap()[0];
            let outcome = bench.worker.read(&blocks, &[work(identity)]).unwrap()[0];
            assert_eq!(outcome, expected, "{rows:?}, {kind}: byte {byte}");
            let is_seen = rows.contains(&(byte / ROW_BYTES));
            assert!(!is_seen || !outcome.is_clean(), "{rows:?}: byte {byte}");
        }
        bench.put(&blocks, &bytes);
        let mut another = identities[block];
        another[bench.random.usize(..IDENTITY_WORDS)] ^= 1 << bench.random.u32(..64);
        let outcome = bench.worker.read(&blocks, &[work(Some(&another))]).unwrap()[0];
        assert!(outcome.has_wrong_identity());
    }
}

#[test]
fn update_equals_a_full_encode() {
    let mut bench = Bench::new(2);
    let (blocks, _, mut identities) = bench.encoded(2);
    for rows in bench.borders(0) {
        let block = bench.random.usize(..2);
        identities[block][3] = bench.random.u64(..);
        let mut data = vec![0; rows.len() * ROW_BYTES];
        bench.random.fill(&mut data);
        bench.worker.data_mut()[..data.len()].copy_from_slice(&data);
        let before = bench.bytes(&blocks);
        let work = [BlockWork {
            block,
            rows: rows.clone(),
            place: RowLocation::Staging(0),
            identity: Some(&identities[block]),
        }];
        assert!(bench.worker.update(&blocks, &work).unwrap()[0].is_clean());
        let updated = bench.bytes(&blocks);
        bench.put(&blocks, &before);
        assert!(bench.worker.encode(&blocks, &work).unwrap()[0].is_clean());
        assert!(updated == bench.bytes(&blocks), "rows {rows:?} of {block}");
    }
}

#[test]
fn update_leaves_a_block_with_errors_unchanged() {
    let mut bench = Bench::new(1);
    let (blocks, bytes, identities) = bench.encoded(1);
    for rows in bench.borders(1) {
        let row = match bench.random.u32(..4) {
            0 => bench.random.usize(rows.clone()),
            1 => rows.end - 1,
            2 => bench.random.usize(DATA_ROWS..CODED_ROWS),
            _ => CODED_ROWS,
        };
        let mut wrong = bytes.clone();
        wrong[row * ROW_BYTES + bench.random.usize(..ROW_BYTES)] ^= 1 << bench.random.u32(..8);
        bench.put(&blocks, &wrong);
        let work = [BlockWork {
            block: 0,
            rows,
            place: RowLocation::Staging(0),
            identity: Some(&identities[0]),
        }];
        // Also if the update changes the owners.
        let mut owners = identities[0];
        owners[2 + bench.random.usize(..IDENTITY_WORDS - 2)] ^= bench.random.u64(..2);
        let update = [BlockWork {
            identity: Some(&owners),
            ..work[0].clone()
        }];
        let outcome = bench.worker.update(&blocks, &update).unwrap()[0];
        assert!(!outcome.is_clean() && !outcome.is_corrected(), "row {row}");
        assert!(bench.bytes(&blocks) == wrong, "row {row}");
        let outcome = bench.worker.correct(&blocks, &work).unwrap()[0];
        assert!(outcome.is_corrected(), "row {row}: {outcome:?}");
        assert!(bench.bytes(&blocks) == bytes, "row {row}");
    }
}

/// On a GPU the acknowledgement precedes the end of the update; its promise has to hold all the
/// same.
#[test]
fn update_is_acknowledged_once_if_no_block_refuses_it() {
    const WORKS: usize = 9;
    const LAST: usize = WORKS - 1;
    let mut bench = Bench::new(WORKS + 1);
    let (blocks, bytes, identities) = bench.encoded(WORKS + 1);
    for (round, rows) in bench.borders(1).into_iter().enumerate() {
        // The last work copies rows of a block that no work names.
        let source = bench.random.usize(..=DATA_ROWS - rows.len());
        let mut known = identities.clone();
        let staged = rows.len() * ROW_BYTES;
        let mut data = vec![0; LAST * staged];
        bench.random.fill(&mut data);
        bench.worker.data_mut()[..data.len()].copy_from_slice(&data);
        let (mut there, at) = (bytes.clone(), bench.random.usize(..WORKS));
        let wrong_row = match round % 8 {
            0 => None,
            1 => Some((at, bench.random.usize(rows.clone()))),
            2 => Some((at, rows.end - 1)),
            3 => Some((at, bench.random.usize(DATA_ROWS..CODED_ROWS))),
            4 => Some((at, CODED_ROWS)),
            5 => Some((WORKS, source + bench.random.usize(..rows.len()))),
            // The number or the generation of the block is another one.
            kind => {
                known[at][kind - 6] ^= 1 << bench.random.u32(..64);
                None
            }
        };
        if let Some((block, row)) = wrong_row {
            let byte = row * ROW_BYTES + bench.random.usize(..ROW_BYTES);
            there[block * BLOCK_BYTES + byte] ^= 1 << bench.random.u32(..8);
        }
        let refused = match round % 8 {
            0 => None,
            5 => Some(LAST),
            _ => Some(at),
        };
        bench.put(&blocks, &there);
        let works: Vec<BlockWork<'_>> = (0..WORKS)
            .map(|block| BlockWork {
                block,
                rows: rows.clone(),
                place: match block {
                    LAST => RowLocation::Block(WORKS, source),
                    _ => RowLocation::Staging(block * staged),
                },
                identity: Some(&known[block]),
            })
            .collect();
        let mut acknowledged = 0;
        let outcomes = bench
            .worker
            .update_with_ack(&blocks, &works, || acknowledged += 1);
        for (block, outcome) in outcomes.unwrap().iter().enumerate() {
            let is_refused = Some(block) == refused;
            assert_eq!(outcome.is_clean(), !is_refused, "round {round}, {block}");
        }
        assert_eq!(acknowledged, u32::from(refused.is_none()), "round {round}");
        let now = bench.bytes(&blocks);
        for block in 0..WORKS {
            let of = block * BLOCK_BYTES;
            let (now, before) = (&now[of..][..BLOCK_BYTES], &there[of..][..BLOCK_BYTES]);
            if Some(block) == refused {
                assert!(now == before, "round {round}, {block}");
                continue;
            }
            let taken = match block {
                LAST => &there[WORKS * BLOCK_BYTES + source * ROW_BYTES..][..staged],
                _ => &data[block * staged..][..staged],
            };
            assert!(now[rows.start * ROW_BYTES..][..staged] == *taken);
        }
        if refused.is_none() {
            let outcomes = bench.worker.verify(&blocks, &rowless(WORKS)).unwrap();
            assert!(outcomes.iter().all(BlockOutcome::is_clean), "round {round}");
        }
    }
}

#[test]
fn panic_in_the_acknowledgement_is_raised_after_the_update() {
    let mut bench = Bench::new(9);
    let (blocks, _, identities) = bench.encoded(9);
    for _ in 0..10 {
        bench.random.fill(bench.worker.data_mut());
        let worker = &mut bench.worker;
        let works = whole(&identities);
        let panics =
            || drop(worker.update_with_ack(&blocks, &works, || panic!("as it was asked to")));
        let panicked = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(panicked.downcast_ref(), Some(&"as it was asked to"));
        // All changes are complete when the panic arrives here.
        let now = bench.bytes(&blocks);
        for (block, data) in now
            .chunks(BLOCK_BYTES)
            .zip(bench.worker.data().chunks(DATA_BYTES))
        {
            assert!(block[..DATA_BYTES] == *data);
        }
        let outcomes = bench.worker.verify(&blocks, &rowless(9)).unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean));
    }
}

#[test]
fn rows_of_another_block_are_copied_if_their_checksums_match() {
    let mut bench = Bench::new(3);
    let (blocks, bytes, identities) = bench.encoded(3);
    for round in 0..8 {
        // Rows go from the first block into the second, or within the second; and the third is
        // encoded from the first.
        let len = bench.random.usize(1..=DATA_ROWS / 2);
        let from = bench.random.usize(..=DATA_ROWS / 2 - len);
        let to = bench.random.usize(DATA_ROWS / 2..=DATA_ROWS - len);
        let source = round % 2;
        let work = |block: usize, source: usize| BlockWork {
            block,
            rows: to..to + len,
            place: RowLocation::Block(source, from),
            identity: Some(&identities[block]),
        };
        let rows = |bytes: &[u8], block: usize, first: usize| {
            let at = block * BLOCK_BYTES + first * ROW_BYTES;
            bytes[at..at + len * ROW_BYTES].to_vec()
        };
        let nowhere = [BlockWork {
            block: source,
            rows: from..from + len,
            place: RowLocation::Nowhere,
            identity: Some(&identities[source]),
        }];
        let mut wrong = bytes.clone();
        let row = from + bench.random.usize(..len);
        let at = source * BLOCK_BYTES + row * ROW_BYTES + bench.random.usize(..ROW_BYTES);
        wrong[at] ^= 1 << bench.random.u32(..8);
        bench.put(&blocks, &wrong);
        let checked = bench.worker.check(&blocks, &nowhere).unwrap()[0];
        assert!(checked.has_wrong_rows() && bench.bytes(&blocks) == wrong);
        let outcome = bench.worker.update(&blocks, &[work(1, source)]).unwrap()[0];
        assert!(outcome.has_wrong_source(), "{outcome:?}");
        assert!(bench.bytes(&blocks) == wrong);
        let outcome = bench
            .worker
            .encode_anew(&blocks, &[work(2, source)])
            .unwrap()[0];
        assert!(outcome.has_wrong_source(), "{outcome:?}");
        let of_third = BlockWork {
            block: 2,
            rows: 0..0,
            ..work(2, source)
        };
        assert!(!bench.worker.verify(&blocks, &[of_third]).unwrap()[0].is_clean());
        // The same without an error.
        bench.put(&blocks, &bytes);
        let checked = bench.worker.check(&blocks, &nowhere).unwrap()[0];
        assert!(checked.is_clean() && bench.bytes(&blocks) == bytes);
        let both = [work(1, source), work(2, source)];
        assert!(bench.worker.update(&blocks, &both[..1]).unwrap()[0].is_clean());
        assert!(bench.worker.encode_anew(&blocks, &both[1..]).unwrap()[0].is_clean());
        let now = bench.bytes(&blocks);
        for block in [1, 2] {
            assert!(rows(&now, block, to) == rows(&bytes, source, from));
        }
        let outcomes = bench.worker.verify(&blocks, &rowless(3)).unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean));
        bench.put(&blocks, &bytes);
    }
}

/// Corrects all blocks and checks each outcome: the block is as it was, or it is reported lost and
/// unchanged.
fn corrected(
    bench: &mut Bench,
    blocks: &Blocks,
    wrong: &[u8],
    right: &[u8],
    identities: &[Identity],
) -> Vec<BlockOutcome> {
    bench.put(blocks, wrong);
    let work: Vec<BlockWork<'_>> = whole(identities)
        .into_iter()
        .map(|it| BlockWork { rows: 0..0, ..it })
        .collect();
    let outcomes = bench.worker.correct(blocks, &work).unwrap().to_vec();
    let after = bench.bytes(blocks);
    for (at, outcome) in outcomes.iter().enumerate() {
        let of = |bytes: &'_ [u8]| bytes[at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES].to_vec();
        match outcome.is_lost() {
            true => assert!(of(&after) == of(wrong), "block {at} is lost, and changed"),
            false => assert!(
                of(&after) == of(right),
                "block {at}: {outcome:?}, and wrong"
            ),
        }
    }
    outcomes
}

#[test]
fn every_single_symbol_error_is_corrected() {
    let mut bench = Bench::new(3);
    let (blocks, bytes, identities) = bench.encoded(3);
    // 136 rows of 255 differences, each in a word of its own: 34 blocks in which every word has an
    // error.
    let all: Vec<(usize, u8)> = (0..CODED_ROWS)
        .flat_map(|row| (1..=255).map(move |by| (row, by)))
        .collect();
    for part in all.chunks(3 * WORDS) {
        let mut wrong = bytes.clone();
        for (at, (row, by)) in part.iter().enumerate() {
            let block = &mut wrong[at / WORDS * BLOCK_BYTES..][..BLOCK_BYTES];
            change(block, *row, at % WORDS, *by);
        }
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        let symbols: u32 = outcomes.iter().map(BlockOutcome::symbols).sum();
        assert_eq!(symbols as usize, part.len());
    }
}

/// `count` distinct numbers below `end`.
fn distinct(random: &mut Rng, count: usize, end: usize) -> Vec<usize> {
    random.choose_multiple(0..end, count)
}

#[test]
fn up_to_four_symbol_errors_per_word_are_corrected_anywhere() {
    let mut bench = Bench::new(4);
    let (blocks, bytes, identities) = bench.encoded(4);
    for most in 1..=4 {
        for _ in 0..2 {
            let mut wrong = bytes.clone();
            for block in wrong.chunks_mut(BLOCK_BYTES) {
                for word in 0..WORDS {
                    let count = bench.random.usize(..=most);
                    for row in distinct(&mut bench.random, count, CODED_ROWS) {
                        change(block, row, word, bench.random.u8(1..));
                    }
                }
            }
            let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
            assert!(
                outcomes.iter().all(BlockOutcome::is_corrected),
                "{most}: {outcomes:?}"
            );
        }
    }
}

#[test]
fn up_to_eight_erased_rows_are_corrected_and_nine_are_lost() {
    let mut bench = Bench::new(4);
    let (blocks, bytes, identities) = bench.encoded(4);
    for count in 5..=9 {
        let mut wrong = bytes.clone();
        for block in wrong.chunks_mut(BLOCK_BYTES) {
            for row in distinct(&mut bench.random, count, CODED_ROWS) {
                let row = &mut block[row * ROW_BYTES..][..ROW_BYTES];
                bench.random.fill(row);
            }
        }
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        for outcome in outcomes {
            assert_eq!(outcome.is_corrected(), count <= 8, "{count}: {outcome:?}");
            assert_eq!(outcome.is_lost(), count > 8);
            assert_eq!(outcome.wrong_rows() as usize, count);
        }
    }
}

#[test]
fn too_many_errors_are_reported_lost_and_never_miscorrected() {
    let mut bench = Bench::new(4);
    let (blocks, bytes, identities) = bench.encoded(4);
    for count in 5..=9 {
        let mut wrong = bytes.clone();
        for block in wrong.chunks_mut(BLOCK_BYTES) {
            for word in 0..WORDS {
                for row in distinct(&mut bench.random, count, CODED_ROWS) {
                    change(block, row, word, bench.random.u8(1..));
                }
            }
        }
        // `corrected` checks the content of the blocks.
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        assert!(
            outcomes.iter().all(BlockOutcome::is_lost),
            "{count}: {outcomes:?}"
        );
    }
}

#[test]
fn record_is_rebuilt_with_up_to_three_wrong_rows() {
    let mut bench = Bench::new(4);
    let (blocks, bytes, identities) = bench.encoded(4);
    for count in 0..=4 {
        let mut wrong = bytes.clone();
        for block in wrong.chunks_mut(BLOCK_BYTES) {
            bench.random.fill(&mut block[RECORD_OFFSET..]);
            for row in distinct(&mut bench.random, count, CODED_ROWS) {
                bench
                    .random
                    .fill(&mut block[row * ROW_BYTES..][..ROW_BYTES]);
            }
        }
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        for outcome in outcomes {
            assert_eq!(outcome.is_corrected(), count <= 3, "{count}: {outcome:?}");
        }
    }
}

#[test]
fn burst_of_three_kibibytes_is_corrected_anywhere() {
    const BURST: usize = 3 * ROW_BYTES;
    let mut bench = Bench::new(8);
    let (blocks, bytes, identities) = bench.encoded(8);
    // Also across the end of a block; every 4999 bytes, and around the ends of rows and blocks.
    let all = 2 * BLOCK_BYTES - BURST;
    let edges = (0..2 * (CODED_ROWS + 1))
        .step_by(4)
        .flat_map(|row| [-1, 1].map(|by| (row * ROW_BYTES) as isize + by));
    let mut places: Vec<usize> = (0..all).step_by(4999).collect();
    places.extend(
        edges
            .filter_map(|at| usize::try_from(at).ok())
            .filter(|at| *at < all),
    );
    for part in places.chunks(4) {
        let mut wrong = bytes.clone();
        for (pair, at) in part.iter().enumerate() {
            bench
                .random
                .fill(&mut wrong[2 * pair * BLOCK_BYTES + at..][..BURST]);
        }
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        assert!(
            outcomes.iter().all(|it| !it.is_lost()),
            "at {part:?}: {outcomes:?}"
        );
    }
}

fn sum(record: &mut [u8]) {
    record[RECORD_SUM_OFFSET..].fill(0);
    let sum = crc32c(record);
    record[RECORD_SUM_OFFSET..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn wiped_memory_and_another_blocks_content_are_reported_lost() {
    let mut bench = Bench::new(2);
    let (blocks, bytes, identities) = bench.encoded(2);
    let (first, second) = bytes.split_at(BLOCK_BYTES);
    // Zeros, with up to three rows left, with and without the record.
    for (left, has_record) in [(0, false), (0, true), (1, false), (3, false), (3, true)] {
        let mut wrong = bytes.clone();
        for row in 0..CODED_ROWS - left {
            wrong[row * ROW_BYTES..][..ROW_BYTES].fill(0);
        }
        if !has_record {
            wrong[RECORD_OFFSET..BLOCK_BYTES].fill(0);
        }
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        assert!(outcomes[0].has_wrong_words(), "{left} left: {outcomes:?}");
        assert!(outcomes[0].is_lost(), "{left} left: {outcomes:?}");
        assert!(!bench.worker.verify(&blocks, &rowless(1)).unwrap()[0].is_clean());
    }
    // The other block's rows, with this block's record, with none, and with its own.
    for record in [Some(first), None, Some(second)] {
        let mut wrong = bytes.clone();
        wrong[..RECORD_OFFSET].copy_from_slice(&second[..RECORD_OFFSET]);
        match record {
            None => wrong[RECORD_OFFSET..BLOCK_BYTES].fill(0xA5),
            Some(of) => wrong[RECORD_OFFSET..BLOCK_BYTES].copy_from_slice(&of[RECORD_OFFSET..]),
        }
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        assert!(outcomes[0].is_lost(), "{outcomes:?}");
        let work = whole(&identities);
        assert!(bench.worker.verify(&blocks, &work).unwrap()[0].has_wrong_words());
    }
}

#[test]
fn change_with_another_identity_is_refused_except_for_the_owners() {
    let mut bench = Bench::new(1);
    let (blocks, bytes, identities) = bench.encoded(1);
    for at in 0..IDENTITY_WORDS {
        let mut another = identities.clone();
        another[0][at] ^= 1 << bench.random.u32(..64);
        let mut wrong = bytes.clone();
        change(&mut wrong, 3, 4, 5);
        for bytes in [&bytes, &wrong] {
            let outcomes = corrected(&mut bench, &blocks, bytes, bytes, &another);
            assert!(
                outcomes[0].is_lost() && outcomes[0].has_wrong_identity(),
                "{at}"
            );
        }
        bench.put(&blocks, &bytes);
        let work = BlockWork {
            block: 0,
            rows: 8..12,
            place: RowLocation::Staging(0),
            identity: Some(&another[0]),
        };
        let outcome = bench.worker.update(&blocks, &[work]).unwrap()[0];
        // The update may change the owners, but not which block it is.
        assert_eq!(outcome.has_wrong_identity(), at < 2, "{at}");
        assert_eq!(bench.bytes(&blocks) == bytes, at < 2, "{at}");
    }
    let mut wrong = bytes.clone();
    wrong[RECORD_OFFSET + IDENTITY_OFFSET + 20] ^= 1;
    bench.put(&blocks, &wrong);
    assert!(bench.worker.correct(&blocks, &rowless(1)).unwrap()[0].is_lost());
    assert!(bench.bytes(&blocks) == wrong);
    corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
}

#[test]
fn data_that_verifies_despite_wrong_sums_or_parity_is_not_lost() {
    let mut bench = Bench::new(1);
    let (blocks, bytes, identities) = bench.encoded(1);
    // Row checksums that were wrong already when the record's checksum was computed.
    for count in [1, 8] {
        let mut wrong = bytes.clone();
        for row in distinct(&mut bench.random, count, CODED_ROWS) {
            wrong[RECORD_OFFSET + 4 * row] ^= bench.random.u8(1..);
        }
        sum(&mut wrong[RECORD_OFFSET..]);
        let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
        assert!(
            outcomes[0].is_corrected() && outcomes[0].symbols() == 0,
            "{outcomes:?}"
        );
        assert_eq!(outcomes[0].wrong_rows() as usize, count);
    }
    // Parity that was wrong already when its checksums were computed.
    let mut wrong = bytes.clone();
    for row in DATA_ROWS..CODED_ROWS {
        bench
            .random
            .fill(&mut wrong[row * ROW_BYTES..][..ROW_BYTES]);
        let sum = crc32c(&wrong[row * ROW_BYTES..][..ROW_BYTES]);
        wrong[RECORD_OFFSET + 4 * row..][..4].copy_from_slice(&sum.to_le_bytes());
    }
    sum(&mut wrong[RECORD_OFFSET..]);
    let outcomes = corrected(&mut bench, &blocks, &wrong, &bytes, &identities);
    assert!(outcomes[0].is_corrected(), "{outcomes:?}");
}

#[test]
fn clean_blocks_are_left_unchanged() {
    let mut bench = Bench::new(2);
    let (blocks, bytes, _) = bench.encoded(2);
    let outcomes = bench.worker.correct(&blocks, &rowless(2)).unwrap();
    assert!(outcomes.iter().all(BlockOutcome::is_clean));
    assert!(bench.bytes(&blocks) == bytes);
}

#[test]
fn works_out_of_range_are_refused() {
    let mut bench = Bench::new(1);
    let blocks = bench.blocks(1);
    let work = |block, rows| BlockWork {
        block,
        rows,
        place: RowLocation::Staging(0),
        identity: None,
    };
    let beyond = bench.worker.encode(&blocks, &[work(1, 0..1)]).unwrap_err();
    assert!(
        beyond
            .to_string()
            .contains("block 1 is beyond the last of 1"),
        "{beyond}"
    );
    let rows = bench
        .worker
        .encode(&blocks, &[work(0, 100..129)])
        .unwrap_err();
    assert!(rows.to_string().contains("rows 100 to 129"), "{rows}");
    for (wrong, what) in [
        (work(1, 0..4), "block 1 is beyond the last of 1"),
        (work(0, 126..130), "rows 126 to 130"),
    ] {
        let error = bench.worker.read(&blocks, &[wrong]).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    for at in [8, DATA_BYTES - 3 * ROW_BYTES, usize::MAX - 15] {
        let beyond = BlockWork {
            place: RowLocation::Staging(at),
            ..work(0, 0..4)
        };
        let error = bench.worker.read(&blocks, &[beyond]).unwrap_err();
        assert!(error.to_string().contains("4 rows at byte"), "{error}");
    }
    // Where a record would be, the next block begins, or nothing.
    let bare = Blocks::new(bench.stream.context(), 1, 1, false).unwrap();
    let uncoded = [
        bench.worker.read(&bare, &[work(0, 0..4)]).map(drop),
        bench.worker.check(&bare, &[work(0, 0..4)]).map(drop),
        bench.worker.encode(&bare, &[work(0, 0..4)]).map(drop),
        bench.worker.scan(&bare, &[0]).map(drop),
    ];
    for error in uncoded.map(|it| it.unwrap_err().to_string()) {
        assert!(error.contains("no parity"), "{error}");
    }
    let twice = [work(0, 0..1), work(0, 1..2)];
    let mut two = Bench::worker(2);
    let twice = two.update(&blocks, &twice).unwrap_err();
    assert!(
        twice.to_string().contains("block 0 is named twice"),
        "{twice}"
    );
    let nothing = BlockWork {
        place: RowLocation::Nowhere,
        ..work(0, 3..5)
    };
    let nothing = bench.worker.update(&blocks, &[nothing]).unwrap_err();
    assert!(nothing.to_string().contains("rows 3 to 5"), "{nothing}");
    // A block that changes is the source of another, and a block is the source of all its own rows.
    let blocks = bench.blocks(2);
    let from = |block, source| BlockWork {
        place: RowLocation::Block(source, 8),
        ..work(block, 0..8)
    };
    for (works, taken) in [
        ([work(0, 0..1), from(1, 0)], 0),
        ([from(0, 1), from(1, 0)], 1),
    ] {
        let errors = [
            two.update(&blocks, &works).unwrap_err(),
            two.encode(&blocks, &works).unwrap_err(),
            two.encode_anew(&blocks, &works).unwrap_err(),
        ];
        for error in errors.map(|it| it.to_string()) {
            assert!(
                error.contains(&format!("rows to be copied are of block {taken}")),
                "{error}"
            );
        }
    }
    let reads = [
        two.verify(&blocks, &[from(0, 1)]).unwrap_err(),
        two.check(&blocks, &[from(0, 1)]).unwrap_err(),
        two.read(&blocks, &[from(0, 1)]).unwrap_err(),
    ];
    for error in reads.map(|it| it.to_string()) {
        assert!(error.contains("cannot be read into block 1"), "{error}");
    }
    assert!(two.encode(&blocks, &[from(0, 0)]).is_err());
    assert!(two.encode_anew(&blocks, &[from(0, 0)]).is_err());
    let many = bench.worker.verify(&blocks, &rowless(2)).unwrap_err();
    assert!(many.to_string().contains("takes 1"), "{many}");
}

/// A scan returns the blocks in which any byte differs from what was encoded, and no other: flipped
/// bits anywhere, wiped blocks, and one block's content in another's place.
#[test]
fn scan_finds_each_block_with_errors_and_no_other() {
    let mut bench = Bench::new(23);
    let (blocks, _) = numbered(&mut bench, 23);
    let right = bench.bytes(&blocks);
    let all: Vec<u32> = (0..23).collect();
    assert_eq!(bench.worker.scan(&blocks, &all).unwrap(), []);
    assert_eq!(bench.worker.scan(&blocks, &[]).unwrap(), []);
    for _ in 0..6 {
        let mut bytes = right.clone();
        let mut expected = Vec::new();
        for number in 0..23_usize {
            let block = number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES;
            match bench.random.u8(..10) {
                0..3 => {
                    let at = bench.random.usize(block);
                    bytes[at] ^= 1 << bench.random.u8(..8);
                }
                3 => bytes[block].fill(0),
                4 => {
                    let other = (number + 1) % 23 * BLOCK_BYTES;
                    bytes[block].copy_from_slice(&right[other..other + BLOCK_BYTES]);
                }
                _ => continue,
            }
            expected.push(number as u32);
        }
        bench.put(&blocks, &bytes);
        let asked: Vec<u32> = all
            .iter()
            .copied()
            .filter(|_| bench.random.bool())
            .collect();
        for asked in [&all, &asked] {
            let mut found = bench.worker.scan(&blocks, asked).unwrap();
            found.sort_unstable();
            let expected: Vec<u32> = expected
                .iter()
                .copied()
                .filter(|it| asked.contains(it))
                .collect();
            assert_eq!(found, expected);
        }
    }
    let error = bench
        .worker
        .scan(&blocks, &[3, 23])
        .unwrap_err()
        .to_string();
    assert!(error.contains("23"), "{error}");
}

#[test]
fn move_kernel_equals_separate_copies() {
    const SLOTS: usize = 3;
    let mut bench = Bench::new(1);
    let context = bench.stream.context().clone();
    let mover = Mover::load(&context).unwrap();
    let stream = || Stream::new(&context).unwrap();
    let mut launching = Copier::new(SLOTS, stream(), Some(&mover)).unwrap();
    let mut copying = Copier::new(SLOTS, stream(), None).unwrap();
    // Each has blocks of its own, with the same content.
    let blocks = [(); 2].map(|()| Blocks::new(&context, SLOTS + 1, SLOTS + 1, false).unwrap());
    let all = |blocks: &Blocks, stream: &Stream| {
        let mut bytes = vec![0; (SLOTS + 1) * DATA_BYTES];
        blocks.peek(0, &mut bytes, stream).unwrap();
        bytes
    };
    let mut bytes = vec![0; (SLOTS + 1) * DATA_BYTES];
    bench.random.fill(&mut bytes);
    for blocks in &blocks {
        blocks.poke(0, &bytes, &bench.stream).unwrap();
    }
    for round in 0..12 {
        let rows: Vec<_> = (0..SLOTS)
            .map(|_| {
                let first = bench.random.usize(..DATA_ROWS);
                first..bench.random.usize(first..=DATA_ROWS)
            })
            .collect();
        let work: Vec<BlockWork<'_>> = (0..SLOTS)
            .map(|slot| BlockWork {
                block: slot,
                rows: rows[slot].clone(),
                place: match slot {
                    // A source that no work changes.
                    0 if round % 3 == 1 => RowLocation::Block(SLOTS, 0),
                    slot => RowLocation::Staging(slot * DATA_BYTES),
                },
                identity: None,
            })
            .map(|mut it| {
                if let RowLocation::Block(..) = it.place {
                    it.rows = 0..it.rows.len();
                }
                it
            })
            .collect();
        bench.random.fill(&mut bytes[..SLOTS * DATA_BYTES]);
        for copier in [&mut launching, &mut copying] {
            copier
                .data_mut()
                .copy_from_slice(&bytes[..SLOTS * DATA_BYTES]);
        }
        match round % 3 {
            0 => {
                launching.fetch(&blocks[0], &work).unwrap();
                copying.fetch(&blocks[1], &work).unwrap();
                assert!(launching.data() == copying.data());
            }
            1 => {
                launching.put(&blocks[0], &work).unwrap();
                copying.put(&blocks[1], &work).unwrap();
            }
            _ => {
                launching.put_anew(&blocks[0], &work).unwrap();
                copying.put_anew(&blocks[1], &work).unwrap();
            }
        }
        let both = blocks.each_ref().map(|it| all(it, &bench.stream));
        assert!(both[0] == both[1], "round {round}");
    }
}

/// Encoded blocks of random data, with their own numbers in their records.
fn numbered(bench: &mut Bench, count: usize) -> (Blocks, Vec<Identity>) {
    let blocks = bench.blocks(count);
    let mut identities: Vec<Identity> = (0..count)
        .map(|_| std::array::from_fn(|_| bench.random.u64(..)))
        .collect();
    for (number, identity) in (0..).zip(&mut identities) {
        identity[0] = number;
    }
    bench.random.fill(bench.worker.data_mut());
    let outcomes = bench.worker.encode(&blocks, &whole(&identities)).unwrap();
    assert!(outcomes.iter().all(BlockOutcome::is_clean));
    (blocks, identities)
}

/// Rows of data that were changed in place have valid parity and checksums after a refresh, as if
/// they had been encoded. Blocks that are not named are unchanged, and so are blocks with an
/// invalid record.
#[test]
fn refresh_equals_encoding_the_same_data() {
    const COUNT: usize = 19;
    let mut bench = Bench::new(COUNT);
    let (blocks, identities) = numbered(&mut bench, COUNT);
    let right = bench.bytes(&blocks);
    for round in 0..3 {
        let mut bytes = right.clone();
        for block in bytes.chunks_mut(BLOCK_BYTES) {
            let count = bench.random.usize(..4);
            for row in distinct(&mut bench.random, count, DATA_ROWS) {
                bench
                    .random
                    .fill(&mut block[row * ROW_BYTES..][..ROW_BYTES]);
            }
            // Parity and checksums are recomputed, whatever they are.
            if bench.random.bool() {
                bench.random.fill(&mut block[DATA_BYTES..RECORD_OFFSET]);
            }
        }
        // The result of encoding, which `block_matches_the_format` compares with the format.
        bench.put(&blocks, &bytes);
        let in_place: Vec<BlockWork<'_>> = whole(&identities)
            .into_iter()
            .map(|it| BlockWork { rows: 0..0, ..it })
            .collect();
        let outcomes = bench.worker.encode(&blocks, &in_place).unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean));
        let encoded = bench.bytes(&blocks);
        // In any order; all of them in the first round.
        let mut asked: Vec<u32> = (0..COUNT as u32).collect();
        bench.random.shuffle(&mut asked);
        if round > 0 {
            asked.truncate(bench.random.usize(..COUNT));
        }
        // Flipped bits anywhere in the record, and another block's record, which is valid but for
        // its number.
        let mut bad = Vec::new();
        for number in (0..COUNT).filter(|_| round > 0) {
            let record = number * BLOCK_BYTES + RECORD_OFFSET..(number + 1) * BLOCK_BYTES;
            match bench.random.u8(..8) {
                0 | 1 => {
                    let at = bench.random.usize(record);
                    bytes[at] ^= 1 << bench.random.u8(..8);
                }
                2 => {
                    let other = (number + 1) % COUNT * BLOCK_BYTES;
                    bytes[record].copy_from_slice(&right[other + RECORD_OFFSET..][..ROW_BYTES]);
                }
                3 => {
                    // The record's checksum is valid, and its magic number is not.
                    bytes[record.start + MAGIC_OFFSET] ^= 1;
                    sum(&mut bytes[record]);
                }
                _ => continue,
            }
            bad.push(number as u32);
        }
        bench.put(&blocks, &bytes);
        let mut found = bench.worker.refresh(&blocks, &asked).unwrap();
        found.sort_unstable();
        bad.retain(|it| asked.contains(it));
        assert_eq!(found, bad, "of {asked:?}");
        let after = bench.bytes(&blocks);
        for number in 0..COUNT {
            let of = |bytes: &'_ [u8]| bytes[number * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
            let is_made = asked.contains(&(number as u32)) && !bad.contains(&(number as u32));
            let expected = of(if is_made { &encoded } else { &bytes });
            let differs = (0..BLOCK_BYTES).find(|at| of(&after)[*at] != expected[*at]);
            assert_eq!(differs, None, "block {number} of {asked:?}, not {bad:?}");
        }
        let made: Vec<u32> = asked.into_iter().filter(|it| !bad.contains(it)).collect();
        assert_eq!(bench.worker.scan(&blocks, &made).unwrap(), []);
        let work: Vec<BlockWork<'_>> = whole(&identities)
            .into_iter()
            .filter(|it| made.contains(&(it.block as u32)))
            .collect();
        let outcomes = bench.worker.verify(&blocks, &work).unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean), "{outcomes:?}");
        let outcomes = bench.worker.check(&blocks, &work).unwrap();
        assert!(outcomes.iter().all(BlockOutcome::is_clean), "{outcomes:?}");
    }
}

#[test]
fn refresh_out_of_range_or_with_a_duplicate_changes_nothing() {
    let mut bench = Bench::new(3);
    let (blocks, _) = numbered(&mut bench, 3);
    let mut bytes = bench.bytes(&blocks);
    for block in bytes.chunks_mut(BLOCK_BYTES) {
        block[bench.random.usize(..DATA_BYTES)] ^= 1;
    }
    bench.put(&blocks, &bytes);
    assert_eq!(bench.worker.refresh(&blocks, &[]).unwrap(), []);
    for (asked, message) in [
        (vec![2, 0, 2], "block 2 is named twice"),
        (vec![1, 1], "block 1 is named twice"),
        (vec![0, 3], "block 3 is beyond the last of 3"),
    ] {
        let error = bench.worker.refresh(&blocks, &asked).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    assert!(bench.bytes(&blocks) == bytes);
}
