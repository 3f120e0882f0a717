//! Kernels over many blocks: `scan` and `refresh`.

use std::sync::Arc;

use fercuda_vramfs::layout::{
    BLOCK_BYTES, DATA_BYTES, DATA_ROWS, MAGIC_OFFSET, RECORD_OFFSET, ROW_BYTES,
};
use fercuda_vramfs::{BlockOutcome, BlockWork, Blocks, Identity};

use crate::bench::{Bench, distinct, sum, whole};

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

/// Encoded blocks of random data, with their own numbers in their records.
fn numbered(bench: &mut Bench, count: usize) -> (Arc<Blocks>, Vec<Identity>) {
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
            let block = number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES;
            let is_made = asked.contains(&(number as u32)) && !bad.contains(&(number as u32));
            let expected = &(if is_made { &encoded } else { &bytes })[block.clone()];
            let mut pairs = after[block].iter().zip(expected);
            let differs = pairs.position(|(after, expected)| after != expected);
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
