//! Reboot requests to the process that writes a ledger, and their answers.
//!
//! A requester writes a record into the file, and a runtime in the process polls it if it has
//! announced that it accepts requests. Any process that may write the file may write any of it at
//! any time: nothing here trusts a word, waits, or panics.
//!
//! - A request is three words: number, device and kind; its deadline; and a checksum of both. It is
//!   written by a system call, since a truncated file kills a process that has mapped it, and the
//!   bytes of such a write become visible in any order. A reader accepts the three words as a
//!   request only if the third is the checksum of the other two.
//! - A requester may withdraw, and then nothing happens later: it writes that there is no request,
//!   and then reads the answer; the process answers that it has taken the request, and then reads
//!   the request again. Between the two steps of each side is a sequentially consistent fence, so
//!   that at least one sees the other: the process abandons the request, or the requester sees that
//!   it was taken. A requester that was killed cannot withdraw; the deadline covers that case.
//! - The answer's word is stored last, with release, and names the request. A reader that reads all
//!   of it twice, with equal results, has the values stored before.
//!
//! Elsewhere: carrying out the reboot (`fercuda-runtime`).

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher as _, RandomState};
use std::io;
use std::mem::{offset_of, size_of};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::collect::read_words;
use crate::error::{Error, FormatError};
use crate::format::{DEVICES, DeviceRow, LedgerLayout, LedgerRecord as _};
use crate::owner::OwnerProcess;
use crate::private::open_private_to_write;
use crate::reader::LedgerReader;
use crate::snapshot::OwnerState;
use crate::word::AtomicWord;
use crate::writer::{Ledger, LedgerDevice};

/// The only kind of request: reboot.
const REBOOT: u64 = 1;
/// No request.
const NO_REQUEST: [u64; 3] = [0, 0, CHECKSUM_SEED];
const CHECKSUM_SEED: u64 = 0x6665_7263_7265_7173;

const TAKEN: u64 = 1;
const WITHDRAWN: u64 = 2;
const REBOOTED: u64 = 3;
const REFUSED: u64 = 4;
const FAILED: u64 = 5;

/// How long after its deadline other requesters leave a request in place, so that a requester that
/// withdraws at the deadline removes its own request and not theirs.
const GRACE: Duration = Duration::from_secs(1);
/// How often an answer is read until two readings agree.
const READINGS: usize = 8;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootOutcome {
    /// The runtime was rebooted.
    Rebooted {
        /// The epoch of the device's memory after the reboot.
        epoch: u64,
        /// Sessions that were ended.
        sessions: u64,
        /// Bytes that were returned to the driver.
        returned_bytes: u64,
    },
    /// The program declined.
    Refused,
    /// The reboot was tried and failed.
    Failed(RebootFailure),
}

/// Why a reboot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootFailure {
    /// The context has faulted: sessions have ended, and only the program itself may reset it.
    Context,
    /// The driver does not recover in this process.
    Lost,
    /// Another reason, known to the program.
    Other,
}

impl RebootFailure {
    const ALL: [RebootFailure; 3] = [
        RebootFailure::Context,
        RebootFailure::Lost,
        RebootFailure::Other,
    ];
}

impl RebootOutcome {
    /// Encodes the result as words: the status, and its details.
    pub fn words(self) -> (u64, [u64; 3]) {
        match self {
            Self::Rebooted {
                epoch,
                sessions,
                returned_bytes,
            } => (REBOOTED, [epoch, sessions, returned_bytes]),
            Self::Refused => (REFUSED, [0; 3]),
            Self::Failed(why) => (FAILED, [why as u64, 0, 0]),
        }
    }

    /// Decodes words that any process may have written.
    pub fn from_words(state: u64, detail: [u64; 3]) -> Option<RebootOutcome> {
        match state {
            REBOOTED => Some(Self::Rebooted {
                epoch: detail[0],
                sessions: detail[1],
                returned_bytes: detail[2],
            }),
            REFUSED => Some(Self::Refused),
            FAILED => {
                let why = usize::try_from(detail[0]).ok();
                let why = why.and_then(|at| RebootFailure::ALL.get(at).copied());
                Some(Self::Failed(why.unwrap_or(RebootFailure::Other)))
            }
            _ => None,
        }
    }
}

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The process has not taken it.
    Waiting,
    /// It is being carried out.
    Taken,
    /// It is finished.
    Over(RebootOutcome),
    /// It was withdrawn, and nothing is done.
    Withdrawn,
    /// Another requester has replaced it, and this one was not taken.
    Overtaken,
    /// Another requester has replaced it and was answered: whether this one was taken before, and
    /// with what result, cannot be determined any more.
    Unknown,
}

/// Why a request could not be made. The process did not receive it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The process has ended.
    #[error(
        "process {pid} has ended; this is the ledger it left\n\
         try: fercuda top --once, which lists the running processes"
    )]
    Gone {
        /// The process id.
        pid: u64,
    },
    /// The process id is not valid in this scope.
    #[error(
        "process {pid} runs in another container, or its start is not known:\n\
         its process id does not identify it here\n\
         try: run fercuda reboot in that container"
    )]
    Elsewhere {
        /// The process id there.
        pid: u64,
    },
    /// The process belongs to another user.
    #[error(
        "process {pid} is user {owner}'s, and you are user {uid}\ntry: run this command as that user"
    )]
    OtherUser {
        /// The process id.
        pid: u64,
        /// The process's user.
        owner: u32,
        /// The requesting user.
        uid: u32,
    },
    /// The process has no runtime.
    #[error(
        "process {pid} has no feRcuda runtime for device {device}:\n\
         its memory is governed, and there is nothing to reboot\n\
         try: restart the process; fercuda top {pid} shows what it holds"
    )]
    NoRuntime {
        /// The process id.
        pid: u64,
        /// The device's ordinal.
        device: u32,
    },
    /// The process's runtime accepts no requests.
    #[error(
        "the runtime of process {pid} for device {device} does not accept requests\n\
         try: call Runtime::serve_requests in that program"
    )]
    TakesNone {
        /// The process id.
        pid: u64,
        /// The device's ordinal.
        device: u32,
    },
    /// Another request is pending.
    #[error(
        "device {device} of process {pid} already has a pending request\n\
         try: again when that request is finished"
    )]
    Busy {
        /// The process id.
        pid: u64,
        /// The device's ordinal.
        device: u32,
    },
    /// The ledger cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] Error),
}

/// One decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RebootRequest {
    /// Identifies it: 40 random bits, never 0.
    number: u64,
    /// The device's ordinal.
    device: u16,
    kind: u64,
    until_unix_ns: u64,
}

impl RebootRequest {
    fn words(self) -> [u64; 3] {
        let what = self.number << 24 | u64::from(self.device) << 8 | self.kind;
        [what, self.until_unix_ns, checksum(what, self.until_unix_ns)]
    }

    /// `None` if the words are not a valid request, or mean that there is none.
    fn from_words([what, until_unix_ns, check]: [u64; 3]) -> Option<RebootRequest> {
        let request = RebootRequest {
            number: what >> 24,
            device: (what >> 8) as u16,
            kind: what & 0xff,
            until_unix_ns,
        };
        (check == checksum(what, until_unix_ns) && request.number != 0).then_some(request)
    }
}

/// A checksum: it differs if any byte does, except with a probability of about 2^-64.
fn checksum(what: u64, until: u64) -> u64 {
    let mix = |word: u64| (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(mix(what) ^ until) ^ mix(until) ^ CHECKSUM_SEED
}

/// The words through which a device's runtime receives requests.
struct RequestSlot<'a, T> {
    request: &'a [T; 3],
    answer: &'a T,
    detail: &'a [T; 3],
}

impl<T: AtomicWord> RequestSlot<'_, T> {
    fn read(&self) -> Option<RebootRequest> {
        RebootRequest::from_words(self.request.each_ref().map(|word| word.load(Acquire)))
    }

    /// Takes the pending request for a device, unless it is the request `last`.
    fn take(&self, device: u32, last: u64, now_unix_ns: u64) -> Option<NonZeroU64> {
        let asked = self.read()?;
        let is_due = asked.kind == REBOOT
            && u32::from(asked.device) == device
            && asked.number != last
            && now_unix_ns < asked.until_unix_ns;
        if !is_due {
            return None;
        }
        self.answer.store(asked.number << 24 | TAKEN, Relaxed);
        T::fence();
        if self.read() != Some(asked) {
            self.answer.store(asked.number << 24 | WITHDRAWN, Release);
            return None;
        }
        NonZeroU64::new(asked.number)
    }

    fn finish(&self, number: NonZeroU64, (state, detail): (u64, [u64; 3])) {
        for (word, value) in self.detail.iter().zip(detail) {
            word.store(value, Relaxed);
        }
        self.answer.store(number.get() << 24 | state, Release);
    }
}

fn line(row: &DeviceRow<AtomicU64>) -> RequestSlot<'_, AtomicU64> {
    RequestSlot {
        request: &row.request,
        answer: &row.answer,
        detail: &row.answer_detail,
    }
}

fn now_unix_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |since| since.as_nanos() as u64)
}

/// The owner's side.
impl Ledger {
    /// Records that a runtime for a device was opened, or closed.
    pub fn note_runtime(&self, device: LedgerDevice, is_open: bool) {
        let Some(layout) = self.layout() else { return };
        let change = if is_open { 1 } else { u64::MAX };
        device.row(layout).runtimes.fetch_add(change, Relaxed);
    }

    /// Records whether a runtime for a device accepts requests.
    pub fn note_requests(&self, device: LedgerDevice, are_taken: bool) {
        let Some(layout) = self.layout() else { return };
        let takes = &device.row(layout).takes_requests;
        takes.store(u64::from(are_taken), Release);
    }

    /// Takes a pending reboot request for a device, by its ordinal. Returns the request's number;
    /// `last` is the number of the previous one, which is not taken again. A caller that takes a
    /// request must answer it. For one thread at a time.
    pub fn take_request(&self, device: u32, last: u64) -> Option<NonZeroU64> {
        let row = LedgerDevice::new(device).row(self.layout()?);
        line(row).take(device, last, now_unix_ns())
    }

    /// Answers a request with its result.
    pub fn answer(&self, device: LedgerDevice, number: NonZeroU64, outcome: RebootOutcome) {
        let Some(layout) = self.layout() else { return };
        line(device.row(layout)).finish(number, outcome.words());
    }
}

/// A request that was made. Dropping it does not withdraw it.
#[derive(Debug)]
pub struct PendingRequest {
    file: File,
    path: PathBuf,
    row: usize,
    number: u64,
    /// The answer's word before the request was made. Each request that is taken changes it, so
    /// while it is unchanged none was.
    before: u64,
}

impl LedgerReader {
    /// Requests that the process reboot its runtime for a device, starting within `wait`.
    ///
    /// # Errors
    /// [`RequestError`]; the process did not receive a request then.
    pub fn request_reboot(
        &self,
        device: u32,
        wait: Duration,
    ) -> Result<PendingRequest, RequestError> {
        let process = self.process()?.map_err(self.refused())?;
        let pid = process.pid;
        self.check_requestable(&process)?;
        let file = self.to_write()?;
        let path = self.path().to_owned();
        let mut asked = PendingRequest {
            file,
            path,
            row: row_word(device),
            number: fresh_number(),
            before: 0,
        };
        let row = asked.device_row()?;
        asked.before = row.answer;
        match (row.takes_requests, row.runtimes) {
            (1, _) => {}
            (_, 0) => return Err(RequestError::NoRuntime { pid, device }),
            _ => return Err(RequestError::TakesNone { pid, device }),
        }
        let now = now_unix_ns();
        let is_busy = RebootRequest::from_words(row.request).is_some_and(|other| {
            let is_answered = row.answer >> 24 == other.number;
            let state = row.answer & 0xff_ffff;
            match is_answered {
                true => state == TAKEN,
                false => now < other.until_unix_ns.saturating_add(GRACE.as_nanos() as u64),
            }
        });
        let Ok(device_word) = u16::try_from(device) else {
            return Err(RequestError::NoRuntime { pid, device });
        };
        if is_busy {
            return Err(RequestError::Busy { pid, device });
        }
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let request = RebootRequest {
            number: asked.number,
            device: device_word,
            kind: REBOOT,
            until_unix_ns: now.saturating_add(wait_ns),
        };
        asked.write(request.words())?;
        Ok(asked)
    }

    /// Whether the owner is a live process in this scope, belongs to this user, and is not another
    /// process with the same id.
    fn check_requestable(&self, process: &OwnerProcess) -> Result<(), RequestError> {
        let pid = process.pid;
        if !process.is_here() || process.start_ticks == 0 {
            return Err(RequestError::Elsewhere { pid });
        }
        if self.state_of(process) != OwnerState::Alive {
            return Err(RequestError::Gone { pid });
        }
        let uid = rustix::process::geteuid().as_raw();
        match fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(status) => check_user(pid, uid, &status),
            Err(_) => Err(RequestError::Gone { pid }),
        }
    }

    /// Opens the file of this reader for writing.
    fn to_write(&self) -> Result<File, RequestError> {
        let file = open_private_to_write(self.path())?;
        let of = |file: &File| {
            let meta = file.metadata();
            meta.map_err(Error::system("examine", self.path()))
        };
        let (ours, theirs) = (of(self.file())?, of(&file)?);
        if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
            let why = io::Error::other("another file has taken its name");
            return Err(Error::system("write", self.path())(why).into());
        }
        // In another version or size the words would have other offsets.
        self.header_is_known(theirs.len())?;
        Ok(file)
    }

    fn header_is_known(&self, len_bytes: u64) -> Result<(), Error> {
        let mut words = [0; size_of::<crate::format::Header<u64>>() / 8];
        read_words(self.file(), 0, &mut words, &mut Vec::new())
            .map_err(Error::system("read", self.path()))?;
        let header = crate::format::Header::read(&words);
        let checked: Result<(), FormatError> = crate::snapshot::check(&header, len_bytes);
        checked.map_err(self.refused())
    }
}

/// Whether user `uid` may send requests to process `pid`, which has the `/proc/PID/status` text
/// `status`.
fn check_user(pid: u64, uid: u32, status: &str) -> Result<(), RequestError> {
    match user_of(status) {
        Some(owner) if owner == uid => Ok(()),
        Some(owner) => Err(RequestError::OtherUser { pid, owner, uid }),
        None => Err(RequestError::Elsewhere { pid }),
    }
}

/// The effective user named in `/proc/PID/status`.
fn user_of(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The index of the first word of a device's row.
fn row_word(device: u32) -> usize {
    let row = (device as usize).min(DEVICES - 1);
    let rows = offset_of!(LedgerLayout<AtomicU64>, devices);
    (rows + row * size_of::<DeviceRow<u64>>()) / 8
}

fn fresh_number() -> u64 {
    // The keys of its hasher are random.
    (RandomState::new().build_hasher().finish() >> 24).max(1)
}

impl PendingRequest {
    /// The current status.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be read.
    pub fn progress(&self) -> Result<Progress, Error> {
        // So that the write is visible before the reads below.
        fence(SeqCst);
        let row = self.device_row()?;
        Ok(progress(
            (self.number, self.before),
            row.request,
            row.answer,
            row.answer_detail,
        ))
    }

    /// Withdraws the request: from here on it is not started. Returns the status reached; after
    /// [`Progress::Withdrawn`] and [`Progress::Overtaken`] nothing has happened or will.
    ///
    /// To be called at most a second after the deadline: later another request may be pending, and
    /// could be withdrawn instead.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be read or written.
    pub fn withdraw(&self) -> Result<Progress, Error> {
        match self.progress()? {
            Progress::Waiting => {
                self.write(NO_REQUEST)?;
                Ok(match self.progress()? {
                    Progress::Overtaken => Progress::Withdrawn,
                    came => came,
                })
            }
            came => Ok(came),
        }
    }

    /// The device's row, read until two readings agree, if possible.
    fn device_row(&self) -> Result<DeviceRow<u64>, Error> {
        let mut words = [[0; size_of::<DeviceRow<u64>>() / 8]; 2];
        // Allocations keep changing the row's first part; requests and answers change less often.
        let first = offset_of!(DeviceRow<u64>, runtimes) / 8;
        for reading in 0..READINGS {
            read_words(
                &self.file,
                self.row,
                &mut words[reading % 2],
                &mut Vec::new(),
            )
            .map_err(Error::system("read", &self.path))?;
            if reading > 0 && words[0][first..] == words[1][first..] {
                break;
            }
        }
        Ok(DeviceRow::read(&words[0]))
    }

    fn write(&self, words: [u64; 3]) -> Result<(), Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = self.row * 8 + offset_of!(DeviceRow<u64>, request);
        self.file
            .write_all_at(&bytes, at as u64)
            .map_err(Error::system("write", &self.path))
    }
}

/// The status, according to words that any process may have written, of the request with this
/// number; before it was made, the answer's word was `before`.
fn progress(
    (number, before): (u64, u64),
    request: [u64; 3],
    answer: u64,
    detail: [u64; 3],
) -> Progress {
    let state = answer & 0xff_ffff;
    if answer >> 24 == number {
        return match state {
            TAKEN => Progress::Taken,
            WITHDRAWN => Progress::Withdrawn,
            state => {
                RebootOutcome::from_words(state, detail).map_or(Progress::Waiting, Progress::Over)
            }
        };
    }
    match RebootRequest::from_words(request) {
        Some(request) if request.number == number => Progress::Waiting,
        // It is not there any more. Had it been taken before that, its answer would be there.
        _ if answer == before => Progress::Overtaken,
        _ => Progress::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::thread;

    use super::*;
    use crate::word::explore;

    #[derive(Debug)]
    struct Words {
        request: [AtomicU64; 3],
        answer: AtomicU64,
        detail: [AtomicU64; 3],
    }

    fn words() -> Arc<Words> {
        let word = |_| AtomicU64::new(0);
        Arc::new(Words {
            request: NO_REQUEST.map(AtomicU64::new),
            answer: word(0),
            detail: [0; 3].map(word),
        })
    }

    impl Words {
        fn line(&self) -> RequestSlot<'_, AtomicU64> {
            RequestSlot {
                request: &self.request,
                answer: &self.answer,
                detail: &self.detail,
            }
        }

        /// Writes as a system call does, in the worst order.
        fn write(&self, values: [u64; 3]) {
            for (word, value) in self.request.iter().zip(values).rev() {
                word.store(value, Relaxed);
            }
        }

        fn state(&self) -> u64 {
            fence(SeqCst);
            self.answer.load(Acquire)
        }
    }

    fn request(number: u64) -> RebootRequest {
        RebootRequest {
            number,
            device: 0,
            kind: REBOOT,
            until_unix_ns: 100 + number,
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_withdrawn_request_is_not_taken_unless_the_requester_sees_that_it_was() {
        explore(3, || {
            let words = words();
            words.write(request(7).words());
            let process = {
                let words = Arc::clone(&words);
                thread::spawn(move || words.line().take(0, 0, 5))
            };
            words.write(NO_REQUEST);
            let heard = words.state() == 7 << 24 | TAKEN;
            let taken = process.join().unwrap();
            assert!(taken.is_none() || heard, "{taken:?}");
            if taken.is_none() {
                assert_ne!(words.state(), 7 << 24 | TAKEN, "taken for ever");
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn of_two_concurrent_requests_no_mixture_is_taken_and_none_twice() {
        // One is too late: taking it would mean taking its number with the other's deadline.
        let late = RebootRequest {
            until_unix_ns: 5,
            ..request(7)
        };
        explore(3, move || {
            let words = words();
            let asker = {
                let words = Arc::clone(&words);
                thread::spawn(move || words.write(late.words()))
            };
            let process = {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    let first = words.line().take(0, 0, 5);
                    let last = first.map_or(0, NonZeroU64::get);
                    (first, words.line().take(0, last, 5))
                })
            };
            words.write(request(9).words());
            asker.join().unwrap();
            let (first, second) = process.join().unwrap();
            for taken in [first, second].into_iter().flatten() {
                assert_eq!(taken.get(), 9, "a checksum");
            }
            assert!(first.is_none() || first != second);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_requester_that_sees_the_end_sees_the_result() {
        explore(3, || {
            let words = words();
            words.write(request(7).words());
            let outcome = RebootOutcome::Rebooted {
                epoch: 3,
                sessions: 2,
                returned_bytes: 1,
            };
            let process = {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    let number = words.line().take(0, 0, 5).unwrap();
                    words.line().finish(number, outcome.words());
                })
            };
            let answer = words.state();
            let detail = words.detail.each_ref().map(|word| word.load(Relaxed));
            let seen = progress((7, 0), request(7).words(), answer, detail);
            let possible = [Progress::Waiting, Progress::Taken, Progress::Over(outcome)];
            assert!(possible.contains(&seen), "{seen:?}");
            process.join().unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn only_a_request_that_is_due_is_taken() {
        loom::model(|| {
            let words = words();
            let take = |request: RebootRequest, device, last, now| {
                words.write(request.words());
                words.line().take(device, last, now).map(NonZeroU64::get)
            };
            let it = request(7);
            assert_eq!(take(it, 0, 6, 106), Some(7));
            assert_eq!(take(it, 0, 7, 106), None, "a second time");
            assert_eq!(take(it, 0, 6, 107), None, "too late");
            assert_eq!(take(it, 1, 6, 106), None, "of another device");
            assert_eq!(take(RebootRequest { kind: 2, ..it }, 0, 6, 106), None);
            assert_eq!(take(RebootRequest { number: 0, ..it }, 0, 6, 106), None);
        });
    }

    #[test]
    fn a_request_with_a_byte_of_another_is_rejected() {
        let (one, other) = (request(7), request(9));
        assert_eq!(RebootRequest::from_words(one.words()), Some(one));
        assert_eq!(RebootRequest::from_words(NO_REQUEST), None);
        assert_eq!(RebootRequest::from_words([0; 3]), None);
        let bytes = |of: RebootRequest| of.words().map(u64::to_le_bytes).concat();
        let (one, other) = (bytes(one), bytes(other));
        let mut mixed = one.clone();
        for at in 0..mixed.len() - 1 {
            mixed[at] = other[at];
            if mixed == one || mixed[..] == other[..] {
                continue;
            }
            let word = |at: usize| u64::from_le_bytes(mixed[at * 8..][..8].try_into().unwrap());
            assert_eq!(
                RebootRequest::from_words([word(0), word(1), word(2)]),
                None,
                "{at}"
            );
        }
    }

    #[test]
    fn no_words_are_taken_for_an_answer_that_was_not_given() {
        let asked = request(7).words();
        let of = |answer, detail| progress((7, 0), asked, answer, detail);
        assert_eq!(of(0, [0; 3]), Progress::Waiting);
        assert_eq!(of(7 << 24 | 99, [0; 3]), Progress::Waiting);
        assert_eq!(of(u64::MAX, [u64::MAX; 3]), Progress::Waiting);
        let failed = Progress::Over(RebootOutcome::Failed(RebootFailure::Other));
        assert_eq!(of(7 << 24 | FAILED, [u64::MAX; 3]), failed);
        for failure in RebootFailure::ALL {
            let (state, detail) = RebootOutcome::Failed(failure).words();
            let seen = of(7 << 24 | state, detail);
            assert_eq!(seen, Progress::Over(RebootOutcome::Failed(failure)));
        }
        let anothers =
            |answer| progress((7, 5 << 24 | REFUSED), request(9).words(), answer, [0; 3]);
        assert_eq!(anothers(5 << 24 | REFUSED), Progress::Overtaken);
        assert_eq!(anothers(9 << 24 | TAKEN), Progress::Unknown);
        assert_eq!(anothers(7 << 24 | TAKEN), Progress::Taken);
    }

    #[test]
    #[cfg_attr(miri, ignore = "the user that Miri says is not the one in /proc")]
    fn a_process_belongs_to_its_effective_user_and_accepts_requests_of_no_other() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let uid = rustix::process::geteuid().as_raw();
        check_user(9, uid, &status).unwrap();
        let named = "Name:\tUid: 1 2\nState:\tS\nUid:\t5\t6\t7\t8\nGid:\t1\t1\t1\t1\n";
        check_user(9, 6, named).unwrap();
        // Root is refused too, although it may read and write the file.
        for uid in [5, 7, 0] {
            let refused = check_user(9, uid, named);
            let Err(RequestError::OtherUser {
                pid: 9, owner: 6, ..
            }) = refused
            else {
                panic!("{refused:?}");
            };
        }
        for unknown in ["Uid:\t5\n", ""] {
            let refused = check_user(9, 5, unknown);
            assert!(
                matches!(refused, Err(RequestError::Elsewhere { pid: 9 })),
                "{refused:?}"
            );
        }
    }
}
