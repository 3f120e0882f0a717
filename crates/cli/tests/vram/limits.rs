//! What there is no room for.

use std::fs;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::{Here, fercuda, read, refused, vram};

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
fn nothing_old_is_in_blocks_that_others_had_also_with_the_code_and_after_they_went() {
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let here = Here::new(&["--size=1MiB", ecc]);
        let place = here.path().to_str().unwrap();
        let free = || statvfs(here.path()).unwrap();
        let resize = |how, size| {
            let done = vram(&[how, place, "--size", size]);
            assert!(done.status.success(), "{done:?}");
        };
        for round in 0..3u8 {
            let what = format!("{ecc}, {round}");
            fs::write(here.at("old"), vec![4; free().f_bfree as usize * 4096]).unwrap();
            assert_eq!(free().f_bfree, 0);
            fs::remove_file(here.at("old")).unwrap();
            super::place::comes("free again", || free().f_bfree == free().f_blocks);
            match round {
                0 => {}
                1 => {
                    // Memory that goes and comes, or lies where it was as it was.
                    resize("shrink", "256KiB");
                    resize("grow", "1MiB");
                }
                _ => resize("grow", "2MiB"),
            }
            let all = free().f_blocks * 4096;
            let file = here.file("new");
            // A byte in each block, and all of them without one.
            for chunk in 0..all >> 18 {
                file.write_all_at(&[5], (chunk << 17) + 70_000).unwrap();
            }
            fallocate(&file, FallocateFlags::empty(), 0, all).unwrap();
            assert_eq!(free().f_bfree, 0, "{what}");
            let bytes = read(&file, 0, all as usize);
            assert_eq!(bytes.len() as u64, all);
            for (at, byte) in bytes.iter().enumerate() {
                let is_written = at as u64 >> 17 < all >> 18 && at & 0x1FFFF == 70_000;
                assert_eq!(*byte, u8::from(is_written) * 5, "{what}: byte {at}");
            }
            fs::remove_file(here.at("new")).unwrap();
            drop(file);
            super::place::comes("free again", || free().f_bfree == free().f_blocks);
        }
    }
}

#[test]
fn what_the_device_has_no_memory_for_is_refused_and_the_rest_goes_on() {
    let little = ("FERCUDA_SOFT_MEMORY", "64MiB");
    let here = Here::with(&[little], &["--size=32MiB", "--ecc=off"]);
    let place = here.path().to_str().unwrap();
    let told = refused(&["grow", place, "--size=65MiB"]);
    assert!(
        told.contains("520 blocks are more than the 512 that the device has room for"),
        "{told}"
    );
    let done = vram(&["grow", place, "--size=64MiB"]);
    assert!(done.status.success(), "{done:?}");
    fs::write(here.at("all"), vec![7; 64 << 20]).unwrap();
    assert!(fs::read(here.at("all")).unwrap() == vec![7; 64 << 20]);
    let other = tempfile::tempdir().unwrap();
    let mut mount = fercuda();
    mount.env(little.0, little.1);
    mount.args(["vram", "mount", "--ecc=off", "--size=100MiB"]);
    let done = mount.arg(other.path()).output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(
        told.contains("of whose 64.0 MiB 64.0 MiB are free\ntry: a smaller --size"),
        "{told}"
    );
    assert_eq!(done.status.code(), Some(1));
    assert!(!super::is_mounted(other.path()));
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
