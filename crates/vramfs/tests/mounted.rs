//! Faults in the memory of a mounted filesystem: corrected faults are invisible, uncorrectable ones
//! are errors for the readers of that data only.
//!
//! Needs /dev/fuse and root, and fails with a message that says so. All calls into the mount are
//! made by other programs, since the process that serves a mount must not wait for it. The calls
//! themselves are tested with the program `fercuda vram`.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_vramfs::file::File;
use fercuda_vramfs::layout::BLOCK_BYTES;
use fercuda_vramfs::medium::{DeviceMedium, Verify};
use fercuda_vramfs::mount::{Mount, MountOptions, MountRestrictions, PageCache, Scrub, mounted};
use fercuda_vramfs::store::Store;
use fercuda_vramfs::{Blocks, Kernels};

const BLOCKS: u32 = 16;
const THREADS: usize = 4;

fn sh(line: &str, at: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).current_dir("/").env("AT", at);
    shell.output().unwrap()
}

fn figure(at: &Path, name: &str) -> u64 {
    let line = r#"python3 -c 'import os,sys; sys.stdout.write(os.getxattr(os.environ["AT"], "fercuda.figures").decode())'"#;
    let all = String::from_utf8(sh(line, at).stdout).unwrap();
    let of_name = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    all.lines().find_map(of_name).unwrap()
}

#[test]
fn uncorrectable_data_is_an_error_and_the_daemon_keeps_running() {
    assert!(
        Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root(),
        "this test mounts, for which it needs /dev/fuse and root\ntry: modprobe fuse, or as root"
    );
    let seed = fercuda_trials::seed();
    let mut random = Rng::with_seed(seed);
    let device = Cuda::from_env().unwrap().device(0).unwrap();
    let context = Context::primary(device).unwrap();
    let blocks = Blocks::new(&context, BLOCKS as usize, BLOCKS as usize, true).unwrap();
    let blocks = Arc::new(blocks);
    let kernels = Kernels::load(&context).unwrap();
    let device = DeviceMedium::new(blocks.clone(), Some(kernels), None, Verify::Read, 9);
    let store = Store::new(device, BLOCKS, BLOCKS, THREADS);
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions {
        inodes: 100,
        user: 0,
        group: 0,
        mode: 0o755,
        allow_other: false,
        cache: PageCache::None,
        threads: THREADS,
        scrub: Scrub::Off,
        forbidden: MountRestrictions::default(),
        facts: String::new(),
    };
    let mount = Mount::new(store, dir.path(), &options).unwrap();
    let at = mount.at().to_owned();
    let model = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(128 << 10)
        .collect();
    std::fs::write(model.path(), &bytes).unwrap();
    let model = model.path().display();
    let fill = format!("cp '{model}' $AT/file && cmp '{model}' $AT/file");
    let is_same = format!("cmp '{model}' $AT/file");
    let done = sh(&fill, &at);
    assert!(done.status.success(), "{done:?}");
    // The file has one of the blocks; the fault covers four rows in each block.
    let stream = Stream::new(&context).unwrap();
    let wreck = |random: &mut Rng, len: usize| {
        let mut much = vec![0; len];
        for block in 0..BLOCKS as usize {
            random.fill(&mut much);
            blocks
                .poke(block * BLOCK_BYTES + 20_000, &much, &stream)
                .unwrap();
        }
    };
    wreck(&mut random, 3 << 10);
    assert!(sh(&is_same, &at).status.success());
    assert_eq!(figure(&at, "corrected_blocks"), 1);
    assert_eq!(figure(&at, "lost_blocks"), 0);
    wreck(&mut random, BLOCK_BYTES / 2);
    let done = sh("cat $AT/file", &at);
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(message.contains("Input/output error"), "{message}");
    assert_eq!(figure(&at, "lost_blocks"), 1);
    // Still the same block.
    assert!(!sh("cat $AT/file", &at).status.success());
    assert_eq!(figure(&at, "lost_blocks"), 1);
    // Other files still work, and data that replaces the block is correct.
    assert!(
        sh("echo well > $AT/other && grep well $AT/other", &at)
            .status
            .success()
    );
    let again = format!("rm $AT/file && {fill}");
    let done = sh(&again, &at);
    assert!(done.status.success(), "{done:?}");
    drop(mount);
    assert_eq!(mounted(&at).unwrap(), None);
    let found = fercuda_softgpu::control::take_findings();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn data_is_verified_before_it_is_recoded_even_if_reads_are_not() {
    let seed = fercuda_trials::seed();
    let mut random = Rng::with_seed(seed);
    let device = Cuda::from_env().unwrap().device(0).unwrap();
    let context = Context::primary(device).unwrap();
    let blocks = Blocks::new(&context, BLOCKS as usize, BLOCKS as usize, true).unwrap();
    let blocks = Arc::new(blocks);
    let kernels = Kernels::load(&context).unwrap();
    let device = DeviceMedium::new(blocks.clone(), Some(kernels), None, Verify::Scrub, 9);
    let store = Store::new(device, BLOCKS, BLOCKS, THREADS);
    let stream = Stream::new(&context).unwrap();
    let len = 5000;
    for what in ["write", "grow", "copy", "move"] {
        let (file, other) = (File::default(), File::default());
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        store.write_file(&file, 1, 0, &bytes).unwrap();
        // A bit of the file's second row, wherever that is.
        for block in 0..BLOCKS as usize {
            let mut all = vec![0; BLOCK_BYTES];
            blocks.peek(block * BLOCK_BYTES, &mut all, &stream).unwrap();
            let found = all.windows(1024).position(|it| *it == bytes[1024..2048]);
            if let Some(at) = found {
                let byte = [all[at + 100] ^ 4];
                blocks
                    .poke(block * BLOCK_BYTES + at + 100, &byte, &stream)
                    .unwrap();
            }
        }
        match what {
            "write" => {
                store.write_file(&file, 1, 1500, b"x").unwrap();
                bytes[1500] = b'x';
            }
            "grow" => {
                let more = vec![7; 20_000];
                store.write_file(&file, 1, len as u64, &more).unwrap();
                bytes.extend(more);
            }
            "copy" => {
                // Once in whole rows, once not.
                let copied = store.copy((&file, 0), (&other, 2, 0), 4096).unwrap();
                assert_eq!(copied, 4096);
                let copied = store.copy((&file, 1000), (&other, 2, 4097), 2000).unwrap();
                assert_eq!(copied, 2000);
                let seen = store.read_file(&other, 0, 1 << 17, <[u8]>::to_vec).unwrap();
                assert!(seen[..4096] == bytes[..4096], "{what}");
                assert!(seen[4097..] == bytes[1000..3000], "{what}");
            }
            _ => {
                store.space().retire(0..8);
                store.evacuate(&file, 1, 0).unwrap();
                store.space().add(0..8);
            }
        }
        let seen = store.read_file(&file, 0, 1 << 17, <[u8]>::to_vec).unwrap();
        // An unverified read may return corrupt bytes until they are scrubbed.
        if what != "copy" {
            assert!(seen == bytes, "{what}");
        }
        assert_eq!(store.scrub(0, Duration::MAX, u32::MAX).unwrap().lost, 0);
        let seen = store.read_file(&file, 0, 1 << 17, <[u8]>::to_vec).unwrap();
        assert!(seen == bytes, "{what}, scrubbed");
        store.free(&file);
        store.free(&other);
    }
    let found = fercuda_softgpu::control::take_findings();
    assert!(found.is_empty(), "{found:#?}");
}
