//! Corrections: what is corrected, what is lost, and what is left unchanged.

use fercuda_trials::{Budget, Work};
use fercuda_vramfs::layout::{
    BLOCK_BYTES, CODED_ROWS, DATA_ROWS, IDENTITY_OFFSET, IDENTITY_WORDS, RECORD_OFFSET, ROW_BYTES,
    WORDS,
};
use fercuda_vramfs::{BlockOutcome, BlockWork, Blocks, Identity, RowLocation, crc32c};

use crate::bench::{Bench, change, distinct, rowless, sum, whole};

/// Bursts at four places.
const BURSTS: Work = Work {
    name: "bursts",
    least: 8,
    ci_seconds: 5,
    soak: u64::MAX,
};

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
    // Each has the same chance: a run has some of them, a long one all.
    bench.random.shuffle(&mut places);
    let budget = Budget::begin(BURSTS);
    for (done, part) in (0..).zip(places.chunks(4)) {
        if !budget.has_left(done) {
            break;
        }
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
