//! Loans of files in memory that fails.

use super::*;

#[test]
fn lent_memory_stays_in_place_and_invalid_loans_fail() {
    let (memory, store) = memory(8);
    let (file, other) = (File::default(), File::default());
    let chunk = DATA_BYTES as u64;
    let bytes = vec![7; 2 * DATA_BYTES];
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(bytes.len()));
    assert_eq!(store.write_file(&other, 2, 0, b"a page"), Ok(6));
    let places = |file: &File| -> Vec<Extent> {
        let layout = file.layout_shared();
        layout.table.within(0..=u32::MAX).map(|it| it.1).collect()
    };
    // One page of a block that holds other files' pages too.
    assert_eq!(store.lend(&other, true).err(), Some(Errno::INVAL));
    assert_eq!(store.write_file(&other, 2, 0, b"still"), Ok(5));
    // Memory that cannot be verified is not lent.
    for writes in [false, true] {
        memory.fails.store(1, Relaxed);
        assert_eq!(store.lend(&file, writes).err(), Some(Errno::IO));
        memory.fails.store(0, Relaxed);
        assert_eq!(store.write_file(&file, 1, 0, &[7]), Ok(1));
    }

    let before = places(&file);
    let reads = [false, false].map(|writes| store.lend(&file, writes).unwrap());
    assert_eq!(store.lend(&file, true).err(), Some(Errno::BUSY));
    let blocks: Vec<u32> = before.iter().map(|it| it.run().block).collect();
    assert_eq!(
        reads[0]
            .pieces
            .iter()
            .map(|it| it.block)
            .collect::<Vec<_>>(),
        blocks
    );
    assert_eq!(
        reads[0].pieces.iter().map(|it| it.bytes).sum::<u64>(),
        2 * chunk
    );
    let refused = Err(Errno::BUSY);
    for loan in &reads {
        assert_eq!(store.write_file(&file, 1, 3, &[1]).map(drop), refused);
        assert_eq!(
            store.write_file(&file, 1, 9 * chunk, &[1]).map(drop),
            refused
        );
        assert_eq!(store.truncate(&file, 1), refused);
        assert_eq!(store.punch(&file, 0..chunk), refused);
        assert_eq!(store.allocate(&file, 1, 0..3 * chunk, true), refused);
        assert_eq!(store.zero(&file, 1, 0..chunk, true), refused);
        assert_eq!(store.copy((&other, 0), (&file, 1, 0), 4).map(drop), refused);
        assert_eq!(store.evacuate(&file, 1, 0).map(drop), refused);
        assert!(!store.free(&file));
        assert_eq!(store.copy((&file, 0), (&other, 2, 0), 4), Ok(4));
        assert_eq!(store.read_file(&file, 0, 1, <[u8]>::to_vec), Ok(vec![7]));
        assert_eq!(places(&file), before);
        store.take_back(&file, loan).unwrap();
    }
    assert_eq!(store.write_file(&file, 1, 3, &[1]), Ok(1));

    let loan = store.lend(&file, true).unwrap();
    for writes in [false, true] {
        assert_eq!(store.lend(&file, writes).err(), Some(Errno::BUSY));
    }
    assert_eq!(store.read_file(&file, 0, 1, |_| ()), refused);
    assert_eq!(store.copy((&file, 0), (&other, 2, 0), 4).map(drop), refused);
    assert_eq!(store.write_file(&file, 1, 3, &[1]).map(drop), refused);
    // The scrubber sees the blocks as unused.
    for block in &blocks {
        assert!(
            !store
                .space()
                .is_in_generation(*block, store.shared(*block)[1])
        );
    }
    // The loan ends even if the memory fails.
    memory.fails.store(1, Relaxed);
    assert!(store.take_back(&file, &loan).is_err());
    memory.fails.store(0, Relaxed);
    for block in &blocks {
        assert!(
            store
                .space()
                .is_in_generation(*block, store.shared(*block)[1])
        );
    }
    assert_eq!(store.read_file(&file, 3, 1, <[u8]>::to_vec), Ok(vec![1]));
    // The borrower may have written past the end, too.
    assert_eq!(store.truncate(&file, chunk + 5), Ok(()));
    assert_eq!(store.allocate(&file, 1, 0..2 * chunk, true), Ok(()));
    let loan = store.lend(&file, true).unwrap();
    let last = loan.pieces.last().unwrap();
    assert_eq!((last.offset, last.bytes), (chunk, 5));
    memory.blocks[last.block as usize].write().unwrap().0[..].fill(9);
    store.take_back(&file, &loan).unwrap();
    assert_eq!(store.truncate(&file, 2 * chunk), Ok(()));
    let tail = store
        .read_file(&file, chunk, DATA_BYTES, <[u8]>::to_vec)
        .unwrap();
    assert_eq!(
        (&tail[..5], tail[5..].iter().all(|it| *it == 0)),
        (&[9; 5][..], true)
    );
    assert!(store.free(&file) && store.free(&other));
    assert_eq!(store.space().used_pages(), 0);
}
