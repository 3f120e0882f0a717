//! Lost blocks.

use super::*;

#[test]
fn writes_to_a_lost_block_go_elsewhere_and_it_is_formatted_once_unused() {
    let (memory, store) = memory(4);
    let space = store.space();
    let chunk = vec![7; DATA_BYTES];
    let (long, small, other) = (File::default(), File::default(), File::default());
    let lose = |file: &File| {
        let block = file.layout_shared().table.of(0).next().unwrap().run().block;
        memory.lost.store(block, Relaxed);
        block
    };
    let look = |file: &File| store.read_file(file, 0, 1 << 17, <[u8]>::to_vec);
    // A whole block, in the middle of the file and at its end.
    for len in [DATA_BYTES, DATA_BYTES - 100] {
        assert_eq!(store.write_file(&long, 1, 0, &chunk[..len]), Ok(len));
        let lost = lose(&long);
        assert_eq!(look(&long), Err(Errno::IO));
        // A write that has to keep some bytes of it fails.
        assert_eq!(store.write_file(&long, 1, 1, &[8; 3 << 10]), Err(Errno::IO));
        assert_eq!(store.punch(&long, 1..9000), Err(Errno::IO));
        assert_eq!(store.write_file(&long, 1, 0, &[9; 4096]), Ok(4096));
        assert_eq!(look(&long), Err(Errno::IO));
        assert_eq!(read(&store, &long, 0, 4096), [9; 4096]);
        assert_eq!((space.free_pages(), long.pages()), (4 * 32 - 33, 32));
        let done = store.write_file(&long, 1, 0, &vec![8; len]);
        assert_eq!((done, look(&long)), (Ok(len), Ok(vec![8; len])));
        let layout = long.layout_shared();
        assert!(layout.table.of(0).all(|it| it.run().block != lost));
        drop(layout);
        assert_eq!((long.pages(), space.free_pages()), (32, 3 * 32));
        store.free(&long);
    }
    // A page of a block that holds pages of other files.
    for file in [&small, &other] {
        assert_eq!(store.write_file(file, 1, 0, &[5; 700]), Ok(700));
    }
    let lost = lose(&small);
    assert_eq!(look(&small), Err(Errno::IO));
    assert_eq!(store.write_file(&small, 1, 0, &[6; 700]), Ok(700));
    assert_eq!(look(&small), Ok(vec![6; 700]));
    assert_eq!(look(&other), Err(Errno::IO));
    // Its free pages are not available.
    assert_eq!(
        (space.pages(), space.free_pages()),
        (3 * 32 + 1, 3 * 32 - 1)
    );
    let mut all = Vec::new();
    while space.free_pages() > 0 {
        let file = File::default();
        assert!(store.write_file(&file, 2, 0, &[4; 5000]).is_ok());
        all.push(file);
    }
    assert!(all.iter().all(|file| look(file).is_ok()));
    store.free(&other);
    assert_eq!((space.pages(), space.free_pages()), (4 * 32, 32));
    assert_eq!(store.write_file(&long, 1, 0, &chunk), Ok(chunk.len()));
    assert_eq!(
        long.layout_shared().table.of(0).next().unwrap().run().block,
        lost
    );
    assert_eq!(look(&long), Ok(chunk));
    // Whole pages of a lost block can be freed.
    lose(&long);
    assert_eq!(store.punch(&long, 0..5 << 12), Ok(()));
    assert_eq!((long.pages(), space.free_pages()), (27, 0));
    assert_eq!(look(&long), Err(Errno::IO));
    assert_eq!(store.truncate(&long, 0), Ok(()));
    assert_eq!(space.free_pages(), 32);
    all.iter()
        .chain([&small])
        .for_each(|file| assert!(store.free(file)));
    assert_eq!((space.used_pages(), space.free_pages()), (0, 4 * 32));
}
