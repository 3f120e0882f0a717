//! Allowed places for ledgers, and the handling of files that are not ledgers.

use std::fs::{self, OpenOptions, Permissions};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use fercuda_ledger::{
    Error, FILE_BYTES, Folder, FormatError, Ledger, LedgerDevice, LedgerReader, LedgerSnapshot,
    OwnerState,
};
use fercuda_trials::{Work, corpus, try_mutations};
use proptest::prelude::*;

use crate::property::{PatchedLedger, use_all, valid};
use crate::support::{folder, live_bytes, open};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn folder_and_files_are_private_and_files_have_the_full_size() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(folder.path()), 0o700);
    let path = ledger.path().unwrap();
    assert_eq!(mode(path), 0o600);
    let meta = fs::metadata(path).unwrap();
    assert_eq!(meta.len(), FILE_BYTES as u64);
    // No page of it can be missing when the disk is full.
    assert!(meta.blocks() * 512 >= FILE_BYTES as u64);
    let pid = std::process::id().to_string();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with(&format!("{pid}-")) && name.ends_with(".ledger"),
        "{name}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_open_to_others_is_refused_with_advice() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("ledgers");
    fs::create_dir(&path).unwrap();
    for mode in [0o710, 0o701, 0o770, 0o777, 0o1777] {
        set_mode(&path, mode);
        let error = Folder::at(&path).unwrap_err();
        assert!(
            matches!(&error, Error::NotPrivate { mode: found, .. } if *found == mode),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.contains(path.to_str().unwrap()) && text.contains("try: chown"),
            "{text}"
        );
    }
    set_mode(&path, 0o700);
    assert!(Folder::at(&path).is_ok());
}

#[test]
fn a_folder_that_is_a_link_or_a_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (real, link, file) = (
        root.path().join("real"),
        root.path().join("link"),
        root.path().join("file"),
    );
    Folder::at(&real).unwrap();
    symlink(&real, &link).unwrap();
    fs::write(&file, "").unwrap();
    for path in [&link, &file] {
        let error = Folder::at(path).unwrap_err();
        assert!(matches!(error, Error::System { .. }), "{error}");
    }
}

#[test]
fn a_writer_without_its_folder_works_in_memory_and_gives_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::at(&root.path().join("ledgers")).unwrap();
    fs::remove_dir(folder.path()).unwrap();
    let (ledger, warning) = Ledger::open_in(&folder, None);
    let text = warning.unwrap().to_string();
    assert!(
        text.starts_with("this process's memory ledger is not visible to readers: cannot make"),
        "{text}"
    );
    assert!(text.contains("\ntry: a private folder"), "{text}");
    assert_eq!(ledger.path(), None);
    ledger.charge(LedgerDevice::new(0), ledger.tenant("torch"), 77);
    let snapshot = ledger.snapshot().unwrap();
    assert_eq!(live_bytes(&snapshot), 77);
    assert_eq!(snapshot.owner, OwnerState::Alive);
}

#[test]
fn files_that_are_not_our_ledgers_are_neither_read_nor_swept() {
    let (root, folder) = folder();
    let at = |name: &str| folder.path().join(name);
    let outside = root.path().join("outside");
    fs::write(&outside, "kept").unwrap();
    symlink(&outside, at("link.ledger")).unwrap();
    fs::create_dir(at("folder.ledger")).unwrap();
    set_mode(&at("folder.ledger"), 0o700);
    fs::write(at("open.ledger"), "kept").unwrap();
    set_mode(&at("open.ledger"), 0o644);
    fs::write(at("notes.txt"), "kept").unwrap();
    // Opening a pipe for reading would block until a writer opens it.
    let pipe = std::process::Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(at("pipe.ledger"))
        .status();
    assert!(pipe.unwrap().success());

    assert_eq!(folder.sweep().unwrap(), 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    assert_eq!(fs::read_to_string(outside).unwrap(), "kept");
    let found = folder.ledgers().unwrap();
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|reader| reader.is_err()));
}

#[test]
fn ledgers_without_an_owner_are_swept_whatever_their_content() {
    let (_root, folder) = folder();
    let at = |name: &str| folder.path().join(name);
    for (name, bytes) in [("1-1-0.ledger", &b""[..]), ("2-2-0.ledger", b"rubbish")] {
        fs::write(at(name), bytes).unwrap();
        set_mode(&at(name), 0o600);
    }
    // A recent draft may be about to become a ledger; an old one was left behind.
    for name in ["3-3-0.draft", "4-4-0.draft"] {
        fs::write(at(name), "").unwrap();
        set_mode(&at(name), 0o600);
    }
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(120);
    let old = OpenOptions::new()
        .write(true)
        .open(at("4-4-0.draft"))
        .unwrap();
    old.set_modified(long_ago).unwrap();
    assert_eq!(folder.sweep().unwrap(), 3);
    assert!(at("3-3-0.draft").exists());
}

#[test]
fn ledgers_of_one_process_have_a_file_each() {
    let (_root, folder) = folder();
    let (one, other) = (open(&folder), open(&folder));
    assert_ne!(one.path(), other.path());
    one.charge(LedgerDevice::new(0), one.tenant("torch"), 5);
    let alive = folder.ledgers().unwrap();
    let owners: Vec<OwnerState> = alive
        .iter()
        .map(|reader| reader.as_ref().unwrap().owner().unwrap())
        .collect();
    assert_eq!(owners, [OwnerState::Alive; 2]);
    drop(one);
    assert_eq!(folder.sweep().unwrap(), 1);
    assert_eq!(live_bytes(&other.snapshot().unwrap()), 0);
}

#[test]
fn ledgers_of_a_run_stay_until_the_hold_is_released() {
    let (_root, folder) = folder();
    let run = NonZeroU64::new(0xfeed).unwrap();
    let of_run = |number| {
        let (ledger, warning) = Ledger::open_in(&folder, NonZeroU64::new(number));
        assert!(warning.is_none(), "{warning:?}");
        drop(ledger);
    };
    let runs = || -> Vec<u64> {
        let found = folder.ledgers().unwrap();
        let snapshots = found.iter().map(|it| it.as_ref().unwrap().snapshot());
        let runs = snapshots.map(|it| it.unwrap().run.map_or(0, NonZeroU64::get));
        runs.collect()
    };
    let hold = folder.hold(run).unwrap();
    assert!(folder.hold(run).is_err());
    of_run(0xfeed);
    of_run(0xfeed);
    assert_eq!(runs(), [0xfeed; 2]);
    // Those of another run, and of none, are swept.
    of_run(0xbeef);
    of_run(0);
    assert_eq!(folder.sweep().unwrap(), 1);
    assert_eq!(runs(), [0xfeed; 2]);
    drop(hold);
    assert_eq!(folder.sweep().unwrap(), 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_run_whose_holder_was_killed_is_swept_and_many_ledgers_of_one_are_bounded() {
    let (_root, folder) = folder();
    let run = NonZeroU64::new(7).unwrap();
    let ledger = || Ledger::open_in(&folder, Some(run));
    drop(ledger());
    let left = folder.ledgers().unwrap().remove(0).unwrap();
    let bytes = fs::read(left.path()).unwrap();
    // As a killed holder leaves it: present, and not locked.
    let held = folder.path().join("0000000000000007.held");
    fs::write(&held, "").unwrap();
    set_mode(&held, 0o600);
    assert_eq!(folder.sweep().unwrap(), 1);
    assert!(held.exists(), "it may be about to be locked");
    fs::remove_file(&held).unwrap();

    let hold = folder.hold(run).unwrap();
    for number in 0..260 {
        let path = folder.path().join(format!("1-{number}-0.ledger"));
        // The header alone, so that the test needs no space.
        fs::write(&path, &bytes[..512]).unwrap();
        set_mode(&path, 0o600);
    }
    assert_eq!(folder.sweep().unwrap(), 4);
    drop(hold);
}

#[test]
fn a_file_cut_short_while_it_is_open_is_an_error() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let path = ledger.path().unwrap().to_owned();
    let reader = LedgerReader::open(&path).unwrap();
    drop(ledger);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for len_bytes in [FILE_BYTES as u64 - 1, 4096, 64, 63, 8, 0] {
        file.set_len(len_bytes).unwrap();
        let error = reader.snapshot().unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
    }
}

#[test]
fn each_thing_wrong_with_a_header_has_its_error() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let path = ledger.path().unwrap().to_owned();
    drop(ledger);
    let refused = |offset_bytes: u64, value: u64| {
        let bytes = fs::read(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&value.to_le_bytes(), offset_bytes)
            .unwrap();
        let error = match LedgerReader::open(&path).unwrap().snapshot() {
            Err(Error::Format { source, .. }) => source,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            LedgerSnapshot::from_bytes(&fs::read(&path).unwrap()),
            Err(error)
        );
        file.write_all_at(&bytes, 0).unwrap();
        error
    };
    assert_eq!(refused(0, 0), FormatError::NotALedger);
    assert_eq!(refused(8, 2), FormatError::Version { found: 2 });
    assert_eq!(refused(16, 17), FormatError::Damaged { found: 17 });
    for offset_bytes in [72, 80, 88, 96, 104] {
        assert_eq!(refused(offset_bytes, u64::MAX), FormatError::Rows);
    }
    assert!(LedgerReader::open(&path).unwrap().snapshot().is_ok());
}

#[test]
fn ledgers_mutated_for_a_while_are_read_or_refused() {
    const WORK: Work = Work {
        name: "ledgers",
        least: 100,
        ci_seconds: 2,
        soak: 100_000,
    };
    // Its file's size is fixed, so a change is one of its bytes and words: a mutation is written
    // over the beginning.
    let whole = valid();
    let head = whole[..1 << 15].to_vec();
    let mut of_patches = PatchedLedger::new(whole.clone());
    let root = env!("CARGO_MANIFEST_DIR");
    let mut inputs = corpus(root, WORK.name);
    inputs.push(head);
    try_mutations(root, WORK, &inputs, |bytes| {
        use_all(bytes);
        of_patches.holds_for(&bytes[..bytes.len().min(1000)]);
        let mut changed = whole.clone();
        let len = bytes.len().min(changed.len());
        changed[..len].copy_from_slice(&bytes[..len]);
        use_all(&changed);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        use_all(&bytes);
    }

    #[test]
    fn no_words_behind_a_valid_header_make_a_reader_panic(
        extremes in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut bytes = valid();
        let mut random = seed;
        for word in bytes[112..].chunks_exact_mut(8) {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let value = match (extremes, random >> 62) {
                (true, 0) => 0,
                (true, 1) => u64::MAX,
                (true, 2) => i64::MAX as u64,
                _ => random ^ random >> 31,
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
        prop_assert!(LedgerSnapshot::from_bytes(&bytes).unwrap().racing);
        use_all(&bytes);
    }

    #[test]
    fn no_mutated_file_makes_a_reader_panic(
        changes in proptest::collection::vec((0..FILE_BYTES, any::<u8>()), 1..200),
        header in proptest::collection::vec((0..512usize, any::<u8>()), 0..4),
        len_bytes in 0..=FILE_BYTES,
    ) {
        let mut bytes = valid();
        for (place, byte) in changes.into_iter().chain(header) {
            bytes[place] = byte;
        }
        use_all(&bytes);
        use_all(&bytes[..len_bytes]);
        let (_root, folder) = folder();
        let path = folder.path().join("1-1-0.ledger");
        fs::write(&path, &bytes).unwrap();
        set_mode(&path, 0o600);
        for reader in folder.ledgers().unwrap() {
            let reader = reader.unwrap();
            reader.snapshot().ok();
            prop_assert_ne!(reader.owner().ok(), Some(OwnerState::Alive));
        }
        prop_assert_eq!(folder.sweep().unwrap(), 1);
    }
}
