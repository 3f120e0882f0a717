//! What others ask of the process that writes a ledger, and what it answers.
//!
//! One who asks writes a record into the file, and a runtime in the process that has said it
//! takes requests looks at it now and then. All of it may be written by anybody
//! who may write the file, at any time: nothing here trusts a word, waits, or panics.
//!
//! - A request is three words: number, device and kind; until when it may be taken; and a
//!   mixture of both. It is written by a call of the system, since a file cut short kills who
//!   has mapped it, and such a write is seen in any order of its bytes. A reader takes the
//!   three for a request only if the third is that of the other two.
//! - Who asks may give up, and then nothing happens later: he writes that nothing is asked,
//!   and then reads the answer; the process answers that it has taken the request, and then
//!   reads that again. Between the two steps of each is a sequentially consistent fence, so
//!   that at least one sees the other: the process lets go, or the asker hears that
//!   it was taken. One who was killed cannot give up; for him there is the time.
//! - The answer's word is stored last, by a release, and names the request. Who reads all of
//!   it twice, and the same, has what was stored before.
//!
//! Elsewhere: doing what is asked (`fercuda-runtime`).

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

use crate::error::{Error, FormatError};
use crate::folder::open_private_to_write;
use crate::format::{DEVICES, DeviceRow, Layout, Record as _};
use crate::owner::Process;
use crate::reader::{Reader, read_words};
use crate::snapshot::Owner;
use crate::word::Word;
use crate::writer::{Device, Ledger};

/// The only thing that can be asked: to reboot.
const REBOOT: u64 = 1;
/// Nothing is asked.
const NOTHING: [u64; 3] = [0, 0, MIXED];
const MIXED: u64 = 0x6665_7263_7265_7173;

const TAKEN: u64 = 1;
const WITHDRAWN: u64 = 2;
const REBOOTED: u64 = 3;
const REFUSED: u64 = 4;
const FAILED: u64 = 5;

/// How long after its time others leave a request where it is, so that who gives up then takes
/// back his own and not theirs.
const KEPT: Duration = Duration::from_secs(1);
/// How often an answer is read in the hope that nobody writes meanwhile.
const READINGS: usize = 8;

/// What a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runtime was rebooted.
    Rebooted {
        /// How often the device's memory has begun anew.
        epoch: u64,
        /// Sessions that were ended.
        sessions: u64,
        /// Bytes that went back to the driver.
        returned_bytes: u64,
    },
    /// The program did not want to now.
    Refused,
    /// It was tried.
    Failed(Failure),
}

/// Why a reboot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The context has failed: sessions have ended, and only the program itself may reset it.
    Context,
    /// The driver does not recover in this process.
    Lost,
    /// Something else, which the program knows.
    Other,
}

impl Failure {
    const ALL: [Failure; 3] = [Failure::Context, Failure::Lost, Failure::Other];
}

impl Outcome {
    /// As words: the state, and what came of it.
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

    /// Of words that anybody may have written.
    pub fn of_words(state: u64, detail: [u64; 3]) -> Option<Outcome> {
        match state {
            REBOOTED => Some(Self::Rebooted {
                epoch: detail[0],
                sessions: detail[1],
                returned_bytes: detail[2],
            }),
            REFUSED => Some(Self::Refused),
            FAILED => {
                let why = usize::try_from(detail[0]).ok();
                let why = why.and_then(|at| Failure::ALL.get(at).copied());
                Some(Self::Failed(why.unwrap_or(Failure::Other)))
            }
            _ => None,
        }
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The process has not taken it.
    Waiting,
    /// It is being done.
    Taken,
    /// It is over.
    Over(Outcome),
    /// It was taken back, and nothing is done.
    Withdrawn,
    /// Somebody else has asked since, and this one was not taken.
    Overtaken,
    /// Somebody else has asked since and was heard: whether this one was taken before, and what
    /// came of it, is not to be known any more.
    Unknown,
}

/// Why a process cannot be asked. It was not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It has ended.
    #[error(
        "process {pid} has ended; its ledger is what it left\n\
         try: fercuda top --once, which lists those that run"
    )]
    Gone {
        /// Its number.
        pid: u64,
    },
    /// Its number is that of another process here.
    #[error(
        "process {pid} runs in another container, or its start is not known:\n\
         which process that is cannot be told here\n\
         try: fercuda reboot where it runs"
    )]
    Elsewhere {
        /// Its number there.
        pid: u64,
    },
    /// It is another user's.
    #[error("process {pid} is user {owner}'s, and you are user {uid}\ntry: as that user")]
    OtherUser {
        /// Its number.
        pid: u64,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        uid: u32,
    },
    /// There is no runtime in it.
    #[error(
        "process {pid} has no runtime of feRcuda's for device {device}:\n\
         its memory is governed, and there is nothing to reboot\n\
         try: to end it and start it again; fercuda top {pid} says what it holds"
    )]
    NoRuntime {
        /// Its number.
        pid: u64,
        /// The device's ordinal.
        device: u32,
    },
    /// Its runtime takes no requests.
    #[error(
        "the runtime of process {pid} for device {device} does not take requests\n\
         try: Runtime::serve_requests in that program, which lets it be asked"
    )]
    TakesNone {
        /// Its number.
        pid: u64,
        /// The device's ordinal.
        device: u32,
    },
    /// Another request is there.
    #[error(
        "device {device} of process {pid} is being asked by somebody else\n\
         try: again when that is done"
    )]
    Busy {
        /// Its number.
        pid: u64,
        /// The device's ordinal.
        device: u32,
    },
    /// The ledger cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] Error),
}

/// One whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    /// Names it: 40 random bits, never 0.
    number: u64,
    /// The device's ordinal.
    device: u16,
    kind: u64,
    until_unix_ns: u64,
}

impl Request {
    fn words(self) -> [u64; 3] {
        let what = self.number << 24 | u64::from(self.device) << 8 | self.kind;
        [what, self.until_unix_ns, mixture(what, self.until_unix_ns)]
    }

    /// None if they are no whole request, or say that nothing is asked.
    fn of_words([what, until_unix_ns, check]: [u64; 3]) -> Option<Request> {
        let request = Request {
            number: what >> 24,
            device: (what >> 8) as u16,
            kind: what & 0xff,
            until_unix_ns,
        };
        (check == mixture(what, until_unix_ns) && request.number != 0).then_some(request)
    }
}

/// Differs if a byte does, but for one time in 2^64 or so.
fn mixture(what: u64, until: u64) -> u64 {
    let mix = |word: u64| (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(mix(what) ^ until) ^ mix(until) ^ MIXED
}

/// The words by which a device's runtime is asked.
struct Line<'a, T> {
    request: &'a [T; 3],
    answer: &'a T,
    detail: &'a [T; 3],
}

impl<T: Word> Line<'_, T> {
    fn read(&self) -> Option<Request> {
        Request::of_words(self.request.each_ref().map(|word| word.load(Acquire)))
    }

    /// Takes what is asked of a device, unless that is the request `last`.
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

fn line(row: &DeviceRow<AtomicU64>) -> Line<'_, AtomicU64> {
    Line {
        request: &row.request,
        answer: &row.answer,
        detail: &row.answer_detail,
    }
}

fn now_unix_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |since| since.as_nanos() as u64)
}

/// The process's side.
impl Ledger {
    /// A runtime for a device was opened, or was closed.
    pub fn note_runtime(&self, device: Device, is_open: bool) {
        let Some(layout) = self.layout() else { return };
        let change = if is_open { 1 } else { u64::MAX };
        device.row(layout).runtimes.fetch_add(change, Relaxed);
    }

    /// A runtime for a device takes requests from now on, or no more.
    pub fn note_requests(&self, device: Device, are_taken: bool) {
        let Some(layout) = self.layout() else { return };
        let takes = &device.row(layout).takes_requests;
        takes.store(u64::from(are_taken), Release);
    }

    /// Takes what somebody asks of a device, by its ordinal: that its runtime be rebooted. What
    /// comes back is the request's number; `last` is that of the one before, which is not
    /// taken again. Whoever has one answers it. For one thread at a time.
    pub fn take_request(&self, device: u32, last: u64) -> Option<NonZeroU64> {
        let row = Device::new(device).row(self.layout()?);
        line(row).take(device, last, now_unix_ns())
    }

    /// Says what a request came to.
    pub fn answer(&self, device: Device, number: NonZeroU64, outcome: Outcome) {
        let Some(layout) = self.layout() else { return };
        line(device.row(layout)).finish(number, outcome.words());
    }
}

/// A request that was made. Dropping it takes nothing back.
#[derive(Debug)]
pub struct Asked {
    file: File,
    path: PathBuf,
    row: usize,
    number: u64,
    /// The answer's word before it was asked. Each that is taken changes it, so while it is
    /// there none was.
    before: u64,
}

impl Reader {
    /// Asks the process to reboot its runtime for a device, which it may begin within `wait`.
    ///
    /// # Errors
    /// [`AskError`]; the process was not asked then.
    pub fn ask_to_reboot(&self, device: u32, wait: Duration) -> Result<Asked, AskError> {
        let process = self.process()?.map_err(self.refused())?;
        let pid = process.pid;
        self.may_be_asked(&process)?;
        let file = self.to_write()?;
        let path = self.path().to_owned();
        let mut asked = Asked {
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
            (_, 0) => return Err(AskError::NoRuntime { pid, device }),
            _ => return Err(AskError::TakesNone { pid, device }),
        }
        let now = now_unix_ns();
        let is_busy = Request::of_words(row.request).is_some_and(|other| {
            let is_answered = row.answer >> 24 == other.number;
            let state = row.answer & 0xff_ffff;
            match is_answered {
                true => state == TAKEN,
                false => now < other.until_unix_ns.saturating_add(KEPT.as_nanos() as u64),
            }
        });
        let Ok(device_word) = u16::try_from(device) else {
            return Err(AskError::NoRuntime { pid, device });
        };
        if is_busy {
            return Err(AskError::Busy { pid, device });
        }
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let request = Request {
            number: asked.number,
            device: device_word,
            kind: REBOOT,
            until_unix_ns: now.saturating_add(wait_ns),
        };
        asked.write(request.words())?;
        Ok(asked)
    }

    /// Whether the owner is a process here that is this user's, and not another of its number.
    fn may_be_asked(&self, process: &Process) -> Result<(), AskError> {
        let pid = process.pid;
        if !process.is_here() || process.start_ticks == 0 {
            return Err(AskError::Elsewhere { pid });
        }
        if self.state_of(process) != Owner::Alive {
            return Err(AskError::Gone { pid });
        }
        let uid = rustix::process::geteuid().as_raw();
        match fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(status) => check_user(pid, uid, &status),
            Err(_) => Err(AskError::Gone { pid }),
        }
    }

    /// The file that this one reads, to be written.
    fn to_write(&self) -> Result<File, AskError> {
        let file = open_private_to_write(self.path())?;
        let of = |file: &File| {
            let meta = file.metadata();
            meta.map_err(Error::system("examine", self.path()))
        };
        let (ours, theirs) = (of(self.file())?, of(&file)?);
        if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
            let why = io::Error::other("another file has its name now");
            return Err(Error::system("write", self.path())(why).into());
        }
        // Of another version or size the words would be others.
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

/// Whether user `uid` may ask process `pid`, of which `/proc` says this.
fn check_user(pid: u64, uid: u32, status: &str) -> Result<(), AskError> {
    match user_of(status) {
        Some(owner) if owner == uid => Ok(()),
        Some(owner) => Err(AskError::OtherUser { pid, owner, uid }),
        None => Err(AskError::Elsewhere { pid }),
    }
}

/// The effective user that `/proc/PID/status` names.
fn user_of(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The first word of a device's row.
fn row_word(device: u32) -> usize {
    let row = (device as usize).min(DEVICES - 1);
    let rows = offset_of!(Layout<AtomicU64>, devices);
    (rows + row * size_of::<DeviceRow<u64>>()) / 8
}

fn fresh_number() -> u64 {
    // Keys of its hash are random.
    (RandomState::new().build_hasher().finish() >> 24).max(1)
}

impl Asked {
    /// How far it is.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be read.
    pub fn progress(&self) -> Result<Progress, Error> {
        // That what was written is seen before what is read now.
        fence(SeqCst);
        let row = self.device_row()?;
        Ok(progress(
            (self.number, self.before),
            row.request,
            row.answer,
            row.answer_detail,
        ))
    }

    /// Gives up: from now on it is not begun. How far it had come; after [`Progress::Withdrawn`]
    /// and [`Progress::Overtaken`] nothing has happened or will.
    ///
    /// At the latest a second after its time: then somebody else may be asking, and could be
    /// taken back in its stead.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be read or written.
    pub fn withdraw(&self) -> Result<Progress, Error> {
        match self.progress()? {
            Progress::Waiting => {
                self.write(NOTHING)?;
                Ok(match self.progress()? {
                    Progress::Overtaken => Progress::Withdrawn,
                    came => came,
                })
            }
            came => Ok(came),
        }
    }

    /// The device's row, the same in two readings if that can be had.
    fn device_row(&self) -> Result<DeviceRow<u64>, Error> {
        let mut words = [[0; size_of::<DeviceRow<u64>>() / 8]; 2];
        // Allocations go on in it; what is asked and answered does not change so often.
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

/// What words that anybody may have written say of a request with this number, before which the
/// answer's word was `before`.
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
            state => Outcome::of_words(state, detail).map_or(Progress::Waiting, Progress::Over),
        };
    }
    match Request::of_words(request) {
        Some(request) if request.number == number => Progress::Waiting,
        // It is not there any more. Had it been taken before that, its answer would be.
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
            request: NOTHING.map(AtomicU64::new),
            answer: word(0),
            detail: [0; 3].map(word),
        })
    }

    impl Words {
        fn line(&self) -> Line<'_, AtomicU64> {
            Line {
                request: &self.request,
                answer: &self.answer,
                detail: &self.detail,
            }
        }

        /// As a call of the system writes, in the worst order.
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

    fn request(number: u64) -> Request {
        Request {
            number,
            device: 0,
            kind: REBOOT,
            until_unix_ns: 100 + number,
        }
    }

    #[test]
    fn what_was_withdrawn_is_not_done_unless_the_asker_hears_that_it_was_taken() {
        explore(3, || {
            let words = words();
            words.write(request(7).words());
            let process = {
                let words = Arc::clone(&words);
                thread::spawn(move || words.line().take(0, 0, 5))
            };
            words.write(NOTHING);
            let heard = words.state() == 7 << 24 | TAKEN;
            let taken = process.join().unwrap();
            assert!(taken.is_none() || heard, "{taken:?}");
            if taken.is_none() {
                assert_ne!(words.state(), 7 << 24 | TAKEN, "taken for ever");
            }
        });
    }

    #[test]
    fn of_two_who_ask_at_once_no_mixture_is_taken_and_none_twice() {
        // One is too late: who takes it has taken its number with the other's time.
        let late = Request {
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
                assert_eq!(taken.get(), 9, "a mixture");
            }
            assert!(first.is_none() || first != second);
        });
    }

    #[test]
    fn who_sees_that_it_is_over_sees_what_came_of_it() {
        explore(3, || {
            let words = words();
            words.write(request(7).words());
            let outcome = Outcome::Rebooted {
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
    fn only_what_is_due_is_taken() {
        loom::model(|| {
            let words = words();
            let take = |request: Request, device, last, now| {
                words.write(request.words());
                words.line().take(device, last, now).map(NonZeroU64::get)
            };
            let it = request(7);
            assert_eq!(take(it, 0, 6, 106), Some(7));
            assert_eq!(take(it, 0, 7, 106), None, "a second time");
            assert_eq!(take(it, 0, 6, 107), None, "too late");
            assert_eq!(take(it, 1, 6, 106), None, "of another device");
            assert_eq!(take(Request { kind: 2, ..it }, 0, 6, 106), None);
            assert_eq!(take(Request { number: 0, ..it }, 0, 6, 106), None);
        });
    }

    #[test]
    fn a_request_of_which_a_byte_is_anothers_is_none() {
        let (one, other) = (request(7), request(9));
        assert_eq!(Request::of_words(one.words()), Some(one));
        assert_eq!(Request::of_words(NOTHING), None);
        assert_eq!(Request::of_words([0; 3]), None);
        let bytes = |of: Request| of.words().map(u64::to_le_bytes).concat();
        let (one, other) = (bytes(one), bytes(other));
        let mut mixed = one.clone();
        for at in 0..mixed.len() - 1 {
            mixed[at] = other[at];
            if mixed == one || mixed[..] == other[..] {
                continue;
            }
            let word = |at: usize| u64::from_le_bytes(mixed[at * 8..][..8].try_into().unwrap());
            assert_eq!(Request::of_words([word(0), word(1), word(2)]), None, "{at}");
        }
    }

    #[test]
    fn no_words_make_an_answer_that_is_not_there() {
        let asked = request(7).words();
        let of = |answer, detail| progress((7, 0), asked, answer, detail);
        assert_eq!(of(0, [0; 3]), Progress::Waiting);
        assert_eq!(of(7 << 24 | 99, [0; 3]), Progress::Waiting);
        assert_eq!(of(u64::MAX, [u64::MAX; 3]), Progress::Waiting);
        let failed = Progress::Over(Outcome::Failed(Failure::Other));
        assert_eq!(of(7 << 24 | FAILED, [u64::MAX; 3]), failed);
        for failure in Failure::ALL {
            let (state, detail) = Outcome::Failed(failure).words();
            let seen = of(7 << 24 | state, detail);
            assert_eq!(seen, Progress::Over(Outcome::Failed(failure)));
        }
        let anothers =
            |answer| progress((7, 5 << 24 | REFUSED), request(9).words(), answer, [0; 3]);
        assert_eq!(anothers(5 << 24 | REFUSED), Progress::Overtaken);
        assert_eq!(anothers(9 << 24 | TAKEN), Progress::Unknown);
        assert_eq!(anothers(7 << 24 | TAKEN), Progress::Taken);
    }

    #[test]
    fn a_process_is_that_of_its_effective_user_and_asked_by_nobody_else() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let uid = rustix::process::geteuid().as_raw();
        check_user(9, uid, &status).unwrap();
        let named = "Name:\tUid: 1 2\nState:\tS\nUid:\t5\t6\t7\t8\nGid:\t1\t1\t1\t1\n";
        check_user(9, 6, named).unwrap();
        // Nor by root, who may read and write the file all the same.
        for uid in [5, 7, 0] {
            let refused = check_user(9, uid, named);
            let Err(AskError::OtherUser {
                pid: 9, owner: 6, ..
            }) = refused
            else {
                panic!("{refused:?}");
            };
        }
        for unknown in ["Uid:\t5\n", ""] {
            let refused = check_user(9, 5, unknown);
            assert!(
                matches!(refused, Err(AskError::Elsewhere { pid: 9 })),
                "{refused:?}"
            );
        }
    }
}
