//! How fast programs read and write files in a directory: `io DIR [SECONDS [CALLS]]`.
//!
//! Jobs are threads, each with a file of its own and one request at a time, by direct calls where the filesystem has such
//! (O_DIRECT), else by those that it has. One line for each kind, for 1, 4, 8 and 16 jobs: bytes or calls a
//! second, or how long one takes in the middle where a job rests between two; of all kinds, or of those in whose names CALLS is. Files
//! are written in full first, and removed at the end.
#![expect(clippy::print_stdout, reason = "figures are for people")]

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A file of each job.
const FILE_BYTES: u64 = 256 << 20;
const JOBS: [usize; 4] = [1, 4, 8, 16];
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// Where direct calls want buffers to begin.
const ALIGNMENT: usize = 4096;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    bytes: usize,
    writes: bool,
    /// In any order.
    is_random: bool,
    /// Between two calls; then it is told how long a call takes, not how many there are.
    rest: Duration,
}

impl Kind {
    fn rests(self) -> bool {
        !self.rest.is_zero()
    }
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "write 1 MiB",
        bytes: LARGE,
        writes: true,
        is_random: false,
        rest: Duration::ZERO,
    },
    Kind {
        name: "read 1 MiB",
        bytes: LARGE,
        writes: false,
        is_random: false,
        rest: Duration::ZERO,
    },
    Kind {
        name: "write 4 KiB random",
        bytes: SMALL,
        writes: true,
        is_random: true,
        rest: Duration::ZERO,
    },
    Kind {
        name: "read 4 KiB random",
        bytes: SMALL,
        writes: false,
        is_random: true,
        rest: Duration::ZERO,
    },
    Kind {
        name: "read 4 KiB, 1 ms apart",
        bytes: SMALL,
        writes: false,
        is_random: true,
        rest: Duration::from_millis(1),
    },
];

/// A buffer, and from where on it is aligned.
struct Buffer {
    bytes: Vec<u8>,
    from: usize,
}

impl Buffer {
    fn new(len: usize, fill: u8) -> Self {
        let bytes = vec![fill; len + ALIGNMENT];
        let from = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, from }
    }

    fn part(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + len]
    }
}

fn open(path: &Path, is_direct: bool) -> std::io::Result<File> {
    let mut how = File::options();
    how.read(true).write(true).create(true).truncate(false);
    if is_direct {
        how.custom_flags(libc::O_DIRECT);
    }
    how.open(path)
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let dir = words.next().ok_or("try: io DIR [SECONDS [CALLS]]")?;
    let dir = Path::new(&dir);
    let seconds = words.next().map_or(Ok(3.0), |it| it.parse::<f64>())?;
    let calls = words.next().unwrap_or_default();
    let kinds: Vec<_> = KINDS.iter().filter(|it| it.name.contains(&calls)).collect();
    if kinds.is_empty() {
        let all = KINDS.map(|it| it.name).join("; ");
        return Err(format!("no kind of calls is named {calls:?}: there are {all}").into());
    }
    let most = JOBS.into_iter().max().unwrap_or(1);
    let path = |job: usize| dir.join(format!("io-{job}"));
    let is_direct = open(&path(0), true).is_ok();
    let files = (0..most).map(|job| open(&path(job), is_direct));
    let files: Vec<File> = files.collect::<std::io::Result<_>>()?;
    std::thread::scope(|scope| {
        let fill = |file: &File| {
            let mut buffer = Buffer::new(LARGE, 0x5A);
            let mut at = 0;
            while at < FILE_BYTES {
                file.write_all_at(buffer.part(LARGE), at)?;
                at += LARGE as u64;
            }
            std::io::Result::Ok(())
        };
        let all: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || fill(file)))
            .collect();
        for one in all {
            one.join().map_err(|_| "a job has panicked")??;
        }
        Result::Ok(())
    })?;
    println!(
        "calls are {}",
        if is_direct { "direct" } else { "not direct" }
    );
    print!("{:<24}", "");
    JOBS.iter()
        .for_each(|jobs| print!("{:>12}", format!("{jobs} jobs")));
    println!();
    for kind in kinds {
        print!("{:<24}", kind.name);
        for jobs in JOBS {
            let value = measure(&files[..jobs], *kind, Duration::from_secs_f64(seconds))?;
            let figure = match kind.bytes {
                _ if kind.rests() => format!("{:.1} us", value * 1e6),
                LARGE => format!("{:.2} GB/s", value * LARGE as f64 / 1e9),
                _ => format!("{:.1} K/s", value / 1e3),
            };
            print!("{figure:>12}");
        }
        println!();
    }
    for job in 0..most {
        std::fs::remove_file(path(job))?;
    }
    Ok(())
}

/// Calls a second; of a kind that rests, the seconds that one call in the middle takes.
fn measure(files: &[File], kind: Kind, time: Duration) -> Result<f64> {
    let (ends, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let ready = Barrier::new(files.len() + 1);
    let (ends, calls, ready) = (&ends, &calls, &ready);
    std::thread::scope(|scope| {
        let job = |file: &File| {
            let mut random = fastrand::Rng::new();
            let mut buffer = Buffer::new(kind.bytes, 0xA5);
            let part = buffer.part(kind.bytes);
            let places = FILE_BYTES / kind.bytes as u64;
            let mut place = 0;
            let mut each = Vec::new();
            ready.wait();
            while !ends.load(Relaxed) {
                place = match kind.is_random {
                    true => random.u64(..places),
                    false => (place + 1) % places,
                };
                let at = place * kind.bytes as u64;
                let begin = kind.rests().then(Instant::now);
                match kind.writes {
                    true => file.write_all_at(part, at)?,
                    false => file.read_exact_at(part, at)?,
                }
                if let Some(begin) = begin {
                    each.push(begin.elapsed().as_secs_f64());
                    std::thread::sleep(kind.rest);
                }
                calls.fetch_add(1, Relaxed);
            }
            std::io::Result::Ok(each)
        };
        let all: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || job(file)))
            .collect();
        ready.wait();
        let begin = Instant::now();
        std::thread::sleep(time);
        let done = calls.load(Relaxed);
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        ends.store(true, Relaxed);
        let mut each = Vec::new();
        for one in all {
            each.extend(one.join().map_err(|_| "a job has panicked")??);
        }
        if !kind.rests() {
            return Ok(rate);
        }
        each.sort_by(f64::total_cmp);
        let middle = each.get(each.len() / 2).copied();
        middle.ok_or_else(|| "no call ended in that time: ask for more seconds".into())
    })
}
