//! Capacity limits: full filesystems, inodes, device memory and file sizes.

use std::fs;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::{TestMount, expect_failure, fercuda, read, vram};

#[test]
fn full_filesystem_writes_partially_then_reports_enospc() {
    let mounted = TestMount::new(&["--size=1MiB", "--ecc=off", "--inodes=10000"]);
    let free = || statvfs(mounted.path()).unwrap();
    let all = free();
    assert_eq!((all.f_blocks, all.f_bfree, all.f_frsize), (256, 256, 4096));
    assert_eq!(
        (all.f_files, all.f_ffree, all.f_namemax),
        (10_000, 9_999, 255)
    );
    let file = mounted.file("file");
    file.write_all_at(&[1; 700_000], 0).unwrap();
    // Only the beginning of this call's data fits.
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
    // Existing pages can be overwritten nevertheless.
    file.write_all_at(&[3; 4096], 8192).unwrap();
    let whole = FallocateFlags::empty();
    assert_eq!(fallocate(&file, whole, 0, 2 << 20), Err(Errno::NOSPC));
    drop(file);
    for _ in 0..20 {
        // Space is free as soon as the name is removed.
        fs::remove_file(mounted.at("file")).unwrap();
        fs::write(mounted.at("file"), vec![4; 1 << 20]).unwrap();
    }
    fs::remove_file(mounted.at("file")).unwrap();
    super::mounting::wait_until("freed", || free().f_bfree == 256);
    // New pages show no old data.
    let file = mounted.file("new");
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[5], 500_000).unwrap();
    assert!(read(&file, 0, 500_000).iter().all(|it| *it == 0));
}

#[test]
fn freed_blocks_never_show_old_data_with_ecc_and_resizing() {
    for ecc in ["--ecc=off", "--ecc=rs"] {
        let mounted = TestMount::new(&["--size=1MiB", ecc]);
        let place = mounted.path().to_str().unwrap();
        let free = || statvfs(mounted.path()).unwrap();
        let resize = |how, size| {
            let done = vram(&[how, place, "--size", size]);
            assert!(done.status.success(), "{done:?}");
        };
        for round in 0..3u8 {
            let what = format!("{ecc}, {round}");
            fs::write(mounted.at("old"), vec![4; free().f_bfree as usize * 4096]).unwrap();
            assert_eq!(free().f_bfree, 0);
            fs::remove_file(mounted.at("old")).unwrap();
            super::mounting::wait_until("freed", || free().f_bfree == free().f_blocks);
            match round {
                0 => {}
                1 => {
                    // Memory is freed and allocated again, possibly the same memory with its old
                    // contents.
                    resize("shrink", "256KiB");
                    resize("grow", "1MiB");
                }
                _ => resize("grow", "2MiB"),
            }
            let all = free().f_blocks * 4096;
            let file = mounted.file("new");
            // One byte in each block of the first half, and only reserved blocks in the second.
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
            fs::remove_file(mounted.at("new")).unwrap();
            drop(file);
            super::mounting::wait_until("freed", || free().f_bfree == free().f_blocks);
        }
    }
}

#[test]
fn sizes_beyond_device_memory_are_refused() {
    let little = ("FERCUDA_SOFT_MEMORY", "64MiB");
    let mounted = TestMount::with(&[little], &["--size=32MiB", "--ecc=off"]);
    let place = mounted.path().to_str().unwrap();
    let message = expect_failure(&["grow", place, "--size=65MiB"]);
    assert!(
        message.contains("520 blocks are more than the 512 that the device has room for"),
        "{message}"
    );
    let done = vram(&["grow", place, "--size=64MiB"]);
    assert!(done.status.success(), "{done:?}");
    fs::write(mounted.at("all"), vec![7; 64 << 20]).unwrap();
    assert!(fs::read(mounted.at("all")).unwrap() == vec![7; 64 << 20]);
    let other = tempfile::tempdir().unwrap();
    let mut mount = fercuda();
    mount.env(little.0, little.1);
    mount.args(["vram", "mount", "--ecc=off", "--size=100MiB"]);
    let done = mount.arg(other.path()).output().unwrap();
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(
        message.contains("where 64.0 MiB of 64.0 MiB are free\ntry: a smaller --size"),
        "{message}"
    );
    assert_eq!(done.status.code(), Some(1));
    assert!(!super::is_mounted(other.path()));
}

#[test]
fn inode_limit_is_enforced() {
    let mounted = TestMount::new(&["--size=1MiB", "--ecc=off", "--inodes=10"]);
    for it in 0..9 {
        fs::write(mounted.at(&it.to_string()), "").unwrap();
    }
    let error = fs::create_dir(mounted.at("one more")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(statvfs(mounted.path()).unwrap().f_ffree, 0);
    fs::remove_file(mounted.at("3")).unwrap();
    fs::create_dir(mounted.at("one more")).unwrap();
}

#[test]
fn absurd_offsets_are_refused_without_allocating() {
    let mounted = TestMount::plain();
    let file = mounted.file("file");
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
    let free = statvfs(mounted.path()).unwrap();
    assert_eq!(free.f_bfree, free.f_blocks);
}
