//! What there is no room for.

use std::fs;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::{Here, read};

#[test]
fn a_full_filesystem_takes_what_there_is_room_for_and_says_so() {
    let here = Here::new(&["--size=1MiB", "--ecc=off", "--inodes=10000"]);
    let free = || statvfs(here.path()).unwrap();
    let all = free();
    assert_eq!((all.f_blocks, all.f_bfree, all.f_frsize), (256, 256, 4096));
    assert_eq!(
        (all.f_files, all.f_ffree, all.f_namemax),
        (10_000, 9_999, 255)
    );
    let file = here.file("file");
    file.write_all_at(&[1; 700_000], 0).unwrap();
    // One call, of which only the beginning has room.
    let done = file.write_at(&[2; 600_000], 700_000).unwrap();
    assert!((100_000..400_000).contains(&done), "{done}");
    let size = 700_000 + done;
    assert_eq!(file.metadata().unwrap().len(), size as u64);
    let mut rest = size as u64;
    let error = loop {
        match file.write_at(&[2; 4096], rest) {
            Ok(more) => rest += more as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(free().f_bfree, 0);
    let bytes = read(&file, 0, rest as usize + 1);
    assert_eq!(bytes.len() as u64, rest);
    assert!(
        bytes[..700_000].iter().all(|it| *it == 1) && bytes[700_000..].iter().all(|it| *it == 2)
    );
    // What is there can be written all the same.
    file.write_all_at(&[3; 4096], 8192).unwrap();
    let whole = FallocateFlags::empty();
    assert_eq!(fallocate(&file, whole, 0, 2 << 20), Err(Errno::NOSPC));
    drop(file);
    for _ in 0..20 {
        // Room is there as soon as the name has gone.
        fs::remove_file(here.at("file")).unwrap();
        fs::write(here.at("file"), vec![4; 1 << 20]).unwrap();
    }
    fs::remove_file(here.at("file")).unwrap();
    super::place::comes("free again", || free().f_bfree == 256);
    // And nothing old is in it.
    let file = here.file("new");
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[5], 500_000).unwrap();
    assert!(read(&file, 0, 500_000).iter().all(|it| *it == 0));
}

#[test]
fn there_are_as_many_inodes_as_were_asked_for() {
    let here = Here::new(&["--size=1MiB", "--ecc=off", "--inodes=10"]);
    for it in 0..9 {
        fs::write(here.at(&it.to_string()), "").unwrap();
    }
    let error = fs::create_dir(here.at("one more")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(statvfs(here.path()).unwrap().f_ffree, 0);
    fs::remove_file(here.at("3")).unwrap();
    fs::create_dir(here.at("one more")).unwrap();
}

#[test]
fn absurd_places_are_refused_before_anything_is_taken() {
    let here = Here::plain();
    let file = here.file("file");
    let code = |answer: std::io::Result<()>| answer.unwrap_err().raw_os_error();
    assert_eq!(code(file.set_len(1 << 60)), Some(libc::EFBIG));
    assert_eq!(code(file.write_all_at(b"x", 1 << 51)), Some(libc::EFBIG));
    let error = code(file.write_all_at(b"x", i64::MAX as u64));
    assert!(matches!(error, Some(libc::EFBIG | libc::EINVAL)));
    let whole = FallocateFlags::empty();
    assert_eq!(fallocate(&file, whole, 1 << 51, 4096), Err(Errno::FBIG));
    assert_eq!(fallocate(&file, whole, 0, 1 << 50), Err(Errno::FBIG));
    assert_eq!(fallocate(&file, whole, 0, 1 << 40), Err(Errno::NOSPC));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&file, punch, 1 << 40, 1 << 40), Ok(()));
    assert_eq!(fallocate(&file, punch, 1 << 40, 1 << 50), Ok(()));
    assert_eq!(file.metadata().unwrap().len(), 0);
    let free = statvfs(here.path()).unwrap();
    assert_eq!(free.f_bfree, free.f_blocks);
}
