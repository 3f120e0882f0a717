//! Reboot requests to the process that writes a ledger: which processes accept them, and arbitrary
//! words in the file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use fercuda_ledger::{
    Error, FIELDS, FILE_BYTES, Ledger, LedgerDevice, LedgerReader, Progress, RebootFailure,
    RebootOutcome, RequestError,
};

use crate::support::{Random, folder, open};

const DEVICE: u32 = 3;
const LONG: Duration = Duration::from_secs(600);

fn row() -> LedgerDevice {
    LedgerDevice::new(DEVICE)
}

/// A ledger of a process with a runtime that accepts requests, and a reader of it.
fn served() -> (tempfile::TempDir, Ledger, LedgerReader) {
    let (root, folder) = folder();
    let ledger = open(&folder);
    ledger.note_runtime(row(), true);
    ledger.note_requests(row(), true);
    let reader = LedgerReader::open(ledger.path().unwrap()).unwrap();
    (root, ledger, reader)
}

fn file_of(ledger: &Ledger) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.open(ledger.path().unwrap()).unwrap()
}

fn offset(record: &str, name: &str) -> u64 {
    let mut fields = FIELDS.iter();
    let field = fields.find(|it| it.record == record && it.name == name);
    field.unwrap().offset_bytes as u64
}

fn set_header(ledger: &Ledger, name: &str, value: u64) {
    let at = offset("Header", name);
    file_of(ledger)
        .write_all_at(&value.to_le_bytes(), at)
        .unwrap();
}

fn start_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields
        .split_ascii_whitespace()
        .nth(19)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn a_request_is_taken_once_and_its_outcome_reaches_the_requester() {
    let (_root, ledger, reader) = served();
    assert_eq!(ledger.take_request(DEVICE, 0), None);
    let mut last = 0;
    for outcome in [
        RebootOutcome::Rebooted {
            epoch: 2,
            sessions: 3,
            returned_bytes: u64::MAX,
        },
        RebootOutcome::Refused,
        RebootOutcome::Failed(RebootFailure::Context),
    ] {
        let asked = reader.request_reboot(DEVICE, LONG).unwrap();
        assert_eq!(asked.progress().unwrap(), Progress::Waiting);
        assert_eq!(ledger.take_request(DEVICE + 1, last), None);
        let number = ledger.take_request(DEVICE, last).unwrap();
        last = number.get();
        assert_eq!(ledger.take_request(DEVICE, last), None);
        assert_eq!(asked.progress().unwrap(), Progress::Taken);
        // A request that was taken cannot be withdrawn.
        assert_eq!(asked.withdraw().unwrap(), Progress::Taken);
        ledger.answer(row(), number, outcome);
        assert_eq!(asked.progress().unwrap(), Progress::Over(outcome));
    }
}

#[test]
fn a_withdrawn_or_expired_request_is_not_taken() {
    let (_root, ledger, reader) = served();
    let asked = reader.request_reboot(DEVICE, LONG).unwrap();
    assert_eq!(asked.withdraw().unwrap(), Progress::Withdrawn);
    assert_eq!(ledger.take_request(DEVICE, 0), None);
    let _late = reader.request_reboot(DEVICE, Duration::ZERO).unwrap();
    assert_eq!(ledger.take_request(DEVICE, 0), None);
    // The expired request soon stops blocking others.
    let begun = Instant::now();
    let asked = loop {
        match reader.request_reboot(DEVICE, LONG) {
            Ok(asked) => break asked,
            Err(RequestError::Busy { .. }) if begun.elapsed() < Duration::from_secs(30) => {}
            Err(other) => panic!("{other}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(ledger.take_request(DEVICE, 0).is_some());
    assert_eq!(asked.progress().unwrap(), Progress::Taken);
}

#[test]
fn withdrawing_at_the_deadline_removes_only_the_requesters_own_request() {
    // It blocks others for a second more. If this thread was not scheduled for that long, try
    // again.
    let (_root, ledger, reader, late, refused) = loop {
        let begun = Instant::now();
        let (root, ledger, reader) = served();
        let late = reader.request_reboot(DEVICE, Duration::ZERO).unwrap();
        // If this request were accepted, withdrawing would remove it instead.
        let refused = reader.request_reboot(DEVICE, LONG);
        if begun.elapsed() < Duration::from_secs(1) {
            break (root, ledger, reader, late, refused);
        }
    };
    assert!(
        matches!(refused, Err(RequestError::Busy { .. })),
        "{refused:?}"
    );
    assert_eq!(late.withdraw().unwrap(), Progress::Withdrawn);
    let asked = reader.request_reboot(DEVICE, LONG).unwrap();
    // Nor does a second withdrawal.
    assert_eq!(late.withdraw().unwrap(), Progress::Overtaken);
    assert!(ledger.take_request(DEVICE, 0).is_some());
    assert_eq!(asked.progress().unwrap(), Progress::Taken);
}

#[test]
fn one_request_is_pending_at_a_time() {
    let (_root, ledger, reader) = served();
    let first = reader.request_reboot(DEVICE, LONG).unwrap();
    let busy = || {
        matches!(
            reader.request_reboot(DEVICE, LONG),
            Err(RequestError::Busy { .. })
        )
    };
    assert!(busy());
    let number = ledger.take_request(DEVICE, 0).unwrap();
    assert!(busy());
    ledger.answer(row(), number, RebootOutcome::Refused);
    assert_eq!(
        first.progress().unwrap(),
        Progress::Over(RebootOutcome::Refused)
    );
    let second = reader.request_reboot(DEVICE, LONG).unwrap();
    assert_eq!(
        first.progress().unwrap(),
        Progress::Over(RebootOutcome::Refused)
    );
    ledger.take_request(DEVICE, number.get()).unwrap();
    // It was refused, and might as well have been carried out: the file no longer has the answer.
    assert_eq!(first.progress().unwrap(), Progress::Unknown);
    assert_eq!(first.withdraw().unwrap(), Progress::Unknown);
    assert_eq!(second.progress().unwrap(), Progress::Taken);
}

#[test]
fn a_process_without_a_runtime_that_accepts_requests_gets_none() {
    let (_root, ledger, reader) = served();
    let refused = |device| {
        let error = reader.request_reboot(device, LONG).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\ntry: ") && text.contains(&format!("{}", std::process::id())));
        error
    };
    assert!(matches!(
        refused(DEVICE + 1),
        RequestError::NoRuntime { device: 4, .. }
    ));
    assert!(matches!(refused(u32::MAX), RequestError::NoRuntime { .. }));
    ledger.note_requests(row(), false);
    assert!(matches!(
        refused(DEVICE),
        RequestError::TakesNone { device: DEVICE, .. }
    ));
    let device = &ledger.snapshot().unwrap().devices[0];
    assert_eq!((device.runtimes, device.takes_requests), (1, false));
    ledger.note_runtime(row(), false);
    assert!(matches!(
        refused(DEVICE),
        RequestError::NoRuntime { device: DEVICE, .. }
    ));
    assert_eq!(ledger.take_request(DEVICE, 0), None);
}

#[test]
fn a_process_that_is_gone_or_whose_id_was_reused_gets_no_request() {
    let (_root, ledger, reader) = served();
    let ask = || reader.request_reboot(DEVICE, LONG);
    // The process id was reused: that process started at another time.
    set_header(&ledger, "start_ticks", start_ticks(std::process::id()) + 1);
    assert!(matches!(ask(), Err(RequestError::Gone { .. })));
    set_header(&ledger, "start_ticks", 0);
    assert!(matches!(ask(), Err(RequestError::Elsewhere { .. })));
    set_header(&ledger, "start_ticks", start_ticks(std::process::id()));
    set_header(&ledger, "pid_namespace", 1);
    assert!(matches!(ask(), Err(RequestError::Elsewhere { .. })));
    assert_eq!(ledger.take_request(DEVICE, 0), None);
}

#[test]
fn a_process_that_has_closed_its_ledger_gets_no_request() {
    let (_root, ledger, reader) = served();
    drop(ledger);
    let refused = reader.request_reboot(DEVICE, LONG);
    assert!(matches!(refused, Err(RequestError::Gone { .. })));
}

#[test]
fn another_users_process_gets_no_request() {
    let (_root, ledger, reader) = served();
    let (_, uid) = owner_of(std::process::id()).unwrap();
    // Root starts one; other users find one, unless they see only their own processes, as in some
    // containers.
    let mut child = (uid == 0).then(|| Command::new("sleep").arg("60").uid(65534).spawn().unwrap());
    let found = child.as_ref().map(std::process::Child::id);
    let Some(pid) = found.or_else(|| anothers(uid)) else {
        println!("found no process of another user: only the rule is tested, in `requests`");
        return;
    };
    let (_, owner) = owner_of(pid).unwrap();
    set_header(&ledger, "pid", u64::from(pid));
    set_header(&ledger, "start_ticks", start_ticks(pid));
    let refused = reader.request_reboot(DEVICE, LONG);
    if let Some(child) = &mut child {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let Err(RequestError::OtherUser {
        owner: said,
        uid: me,
        ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((said, me), (owner, uid));
    assert_ne!(said, me);
    assert_eq!(ledger.take_request(DEVICE, 0), None);
}

/// A process's real and effective user; `None` if it has ended.
fn owner_of(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("Uid:"))?;
    let mut numbers = line
        .split_ascii_whitespace()
        .skip(1)
        .map(|it| it.parse().unwrap());
    Some((numbers.next()?, numbers.next()?))
}

/// The process with the lowest id with another effective user: it is long-lived.
fn anothers(uid: u32) -> Option<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|it| it.file_name().to_string_lossy().parse().ok());
    numbers
        .filter(|pid| owner_of(*pid).is_some_and(|(_, owner)| owner != uid))
        .min()
}

#[test]
fn a_file_that_others_may_write_or_that_replaced_the_ledger_is_not_written() {
    let (_root, ledger, reader) = served();
    let path = ledger.path().unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o660)).unwrap();
    let refused = reader.request_reboot(DEVICE, LONG);
    let Err(RequestError::Ledger(Error::NotPrivate { mode: 0o660, .. })) = refused else {
        panic!("{refused:?}");
    };
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(&copy, path).unwrap();
    let refused = reader.request_reboot(DEVICE, LONG).unwrap_err();
    assert!(refused.to_string().contains("another file"), "{refused}");
    assert_eq!(ledger.take_request(DEVICE, 0), None);
}

#[test]
fn both_sides_survive_any_words_and_any_length() {
    let mut random = Random::new();
    let (_root, ledger, reader) = served();
    let file = file_of(&ledger);
    let from = 512 + u64::from(DEVICE) * 512 + offset("DeviceRow", "runtimes");
    let asked = reader.request_reboot(DEVICE, LONG).unwrap();
    for _ in 0..2000 {
        let words: Vec<u8> = (0..9)
            .flat_map(|_| {
                let word = match random.below(4) {
                    0 => 0,
                    1 => random.below(8),
                    2 => u64::MAX,
                    _ => random.next(),
                };
                word.to_le_bytes()
            })
            .collect();
        file.write_all_at(&words, from).unwrap();
        // One in 2^64 is a valid request.
        assert_eq!(ledger.take_request(DEVICE, 0), None);
        asked.progress().unwrap();
        reader.request_reboot(DEVICE, Duration::ZERO).ok();
        ledger.snapshot().unwrap();
    }
    let number = NonZeroU64::new(random.below(1 << 40)).unwrap_or(NonZeroU64::MIN);
    ledger.answer(row(), number, RebootOutcome::Refused);
    // Only a copy is truncated: a process that has mapped the file would be killed.
    let copy = ledger.path().unwrap().with_extension("cut");
    fs::copy(ledger.path().unwrap(), &copy).unwrap();
    let cut = OpenOptions::new().write(true).open(&copy).unwrap();
    for len in [0, 8, 500, 2100, FILE_BYTES as u64 - 1] {
        cut.set_len(len).unwrap();
        let held = locked(&copy);
        let cut = LedgerReader::open(&copy).unwrap();
        let refused = cut.request_reboot(DEVICE, LONG);
        let is_said = matches!(
            refused,
            Err(RequestError::Ledger(Error::Format { .. }) | RequestError::Elsewhere { .. })
        );
        assert!(is_said, "{len}: {refused:?}");
        assert_eq!(fs::metadata(&copy).unwrap().len(), len);
        drop(held);
    }
}

/// Holds the lock that an owner has.
fn locked(path: &std::path::Path) -> File {
    let file = OpenOptions::new().read(true).open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}
