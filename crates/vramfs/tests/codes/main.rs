//! Kernels of the error-correcting code, on the software device with all checks or on a GPU with
//! `FERCUDA_DEVICE=gpu`, against arithmetic written here. Seeds are printed; `FERCUDA_SEED`
//! repeats one.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod bench;
mod corrections;
mod sweeps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fercuda_cuda::Stream;
use fercuda_vramfs::code::mask_values;
use fercuda_vramfs::layout::{
    BLOCK_BYTES, CODED_ROWS, DATA_BYTES, DATA_ROWS, IDENTITY_OFFSET, IDENTITY_WORDS, MAGIC,
    MAGIC_OFFSET, RECORD_OFFSET, RECORD_SUM_OFFSET, ROW_BYTES, WORDS, factor,
};
use fercuda_vramfs::{BlockOutcome, BlockWork, Blocks, Copier, Mover, RowLocation, crc32c};

use crate::bench::{Bench, rowless, sum, syndromes, times, whole, word_at};

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
        let byte = match round % 2 {
            0 => bench.random.usize(..BLOCK_BYTES),
            _ => RECORD_OFFSET + bench.random.usize(..4 * DATA_ROWS),
        };
        let bit = bench.random.u32(..8);
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
        // A row is wrong too where its sum in the record is.
        let row = match byte.checked_sub(RECORD_OFFSET) {
            Some(at) => at / 4,
            None => byte / ROW_BYTES,
        };
        let is_read = rows.contains(&row);
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
fn update_is_committed_only_if_no_block_refuses_it() {
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
        let mut pending = bench.worker.start_update(&blocks, &works).unwrap();
        let is_committed = pending.wait_committed();
        for (block, outcome) in pending.finish().unwrap().iter().enumerate() {
            let is_refused = Some(block) == refused;
            assert_eq!(outcome.is_clean(), !is_refused, "round {round}, {block}");
        }
        assert!(!is_committed || refused.is_none(), "round {round}");
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
fn panic_while_an_update_is_in_flight_waits_for_it() {
    let mut bench = Bench::new(9);
    let (blocks, _, identities) = bench.encoded(9);
    for _ in 0..10 {
        bench.random.fill(bench.worker.data_mut());
        let worker = &mut bench.worker;
        let works = whole(&identities);
        let panics = || {
            let mut pending = worker.start_update(&blocks, &works).unwrap();
            pending.wait_committed();
            panic!("as it was asked to")
        };
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
