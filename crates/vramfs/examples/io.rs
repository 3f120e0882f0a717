//! Benchmark of reads and writes of files in a directory: `io DIR [SECONDS [CALLS]]`.
//!
//! A job is a thread with a file of its own and one call in flight, with direct I/O where the
//! filesystem supports it (O_DIRECT), else with buffered calls. One line for each access
//! pattern, for 1, 4, 8 and 16 jobs: bytes or calls per second, or the median latency of a call
//! where a job pauses between two; for all patterns, or for those with CALLS in their names. Files
//! are written in full first, and removed at the end.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The size of each job's file.
const FILE_BYTES: u64 = 256 << 20;
const JOBS: [usize; 4] = [1, 4, 8, 16];
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// The alignment that direct I/O requires of buffers.
const ALIGNMENT: usize = 4096;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy)]
struct AccessPattern {
    name: &'static str,
    bytes: usize,
    writes: bool,
    /// At random offsets.
    is_random: bool,
    /// The pause between two calls; with one, latency is reported, not throughput.
    pause: Duration,
}

impl AccessPattern {
    fn has_pauses(self) -> bool {
        !self.pause.is_zero()
    }
}

const PATTERNS: [AccessPattern; 5] = [
    AccessPattern {
        name: "write 1 MiB",
        bytes: LARGE,
        writes: true,
        is_random: false,
        pause: Duration::ZERO,
    },
    AccessPattern {
        name: "read 1 MiB",
        bytes: LARGE,
        writes: false,
        is_random: false,
        pause: Duration::ZERO,
    },
    AccessPattern {
        name: "write 4 KiB random",
        bytes: SMALL,
        writes: true,
        is_random: true,
        pause: Duration::ZERO,
    },
    AccessPattern {
        name: "read 4 KiB random",
        bytes: SMALL,
        writes: false,
        is_random: true,
        pause: Duration::ZERO,
    },
    AccessPattern {
        name: "read 4 KiB, 1 ms apart",
        bytes: SMALL,
        writes: false,
        is_random: true,
        pause: Duration::from_millis(1),
    },
];

/// A buffer, and the offset at which it is aligned.
struct AlignedBuffer {
    bytes: Vec<u8>,
    from: usize,
}

impl AlignedBuffer {
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
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("try: io DIR [SECONDS [CALLS]]")?;
    let dir = Path::new(&dir);
    let seconds = args.next().map_or(Ok(3.0), |it| it.parse::<f64>())?;
    let calls = args.next().unwrap_or_default();
    let patterns: Vec<_> = PATTERNS
        .iter()
        .filter(|it| it.name.contains(&calls))
        .collect();
    if patterns.is_empty() {
        let all = PATTERNS.map(|it| it.name).join("; ");
        return Err(
            format!("no access pattern has {calls:?} in its name\ntry one of: {all}").into(),
        );
    }
    let most = JOBS.into_iter().max().unwrap_or(1);
    let path = |job: usize| dir.join(format!("io-{job}"));
    let is_direct = open(&path(0), true).is_ok();
    let files = (0..most).map(|job| open(&path(job), is_direct));
    let files: Vec<File> = files.collect::<std::io::Result<_>>()?;
    std::thread::scope(|scope| {
        let fill = |file: &File| {
            let mut buffer = AlignedBuffer::new(LARGE, 0x5A);
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
    for pattern in patterns {
        print!("{:<24}", pattern.name);
        for jobs in JOBS {
            let value = measure(&files[..jobs], *pattern, Duration::from_secs_f64(seconds))?;
            let figure = match pattern.bytes {
                _ if pattern.has_pauses() => format!("{:.1} us", value * 1e6),
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

/// Calls per second; for a pattern with pauses, the median latency of a call in seconds.
fn measure(files: &[File], pattern: AccessPattern, time: Duration) -> Result<f64> {
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let ready = Barrier::new(files.len() + 1);
    let (stop, calls, ready) = (&stop, &calls, &ready);
    std::thread::scope(|scope| {
        let job = |file: &File| {
            let mut random = fastrand::Rng::new();
            let mut buffer = AlignedBuffer::new(pattern.bytes, 0xA5);
            let part = buffer.part(pattern.bytes);
            let places = FILE_BYTES / pattern.bytes as u64;
            let mut place = 0;
            let mut each = Vec::new();
            ready.wait();
            while !stop.load(Relaxed) {
                place = match pattern.is_random {
                    true => random.u64(..places),
                    false => (place + 1) % places,
                };
                let at = place * pattern.bytes as u64;
                let begin = pattern.has_pauses().then(Instant::now);
                match pattern.writes {
                    true => file.write_all_at(part, at)?,
                    false => file.read_exact_at(part, at)?,
                }
                if let Some(begin) = begin {
                    each.push(begin.elapsed().as_secs_f64());
                    std::thread::sleep(pattern.pause);
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
        stop.store(true, Relaxed);
        let mut each = Vec::new();
        for one in all {
            each.extend(one.join().map_err(|_| "a job has panicked")??);
        }
        if !pattern.has_pauses() {
            return Ok(rate);
        }
        each.sort_by(f64::total_cmp);
        let median = each.get(each.len() / 2).copied();
        median.ok_or_else(|| {
            "no call finished in that time
try: more SECONDS"
                .into()
        })
    })
}
