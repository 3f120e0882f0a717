//! Benchmark of reads and writes on each kind of mount and on tmpfs, in interleaved rounds.
//!
//! The example `io` of `fercuda-vramfs` makes the calls and prints its measurements. As a machine's
//! speed drifts, the mounts are compared within the same round.
//!
//! Invariant: a reported figure is the median of all rounds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;

use super::mounted::{MountSettings, SuiteMount};
use crate::{cargo, shell};

/// Kinds of mounts, with options of `fercuda vram mount`; none for tmpfs.
const KINDS: [(&str, &[&str]); 4] = [
    ("tmpfs", &[]),
    ("--ecc off", &["--ecc=off"]),
    ("--verify scrub", &["--ecc=rs", "--verify=scrub"]),
    ("--verify read", &["--ecc=rs", "--verify=read"]),
];
/// Index of the baseline mount.
const BASELINE: usize = 1;
/// Size of the mounts, which holds all files of `io`.
const SIZE: &str = "8GiB";

/// Measurement of one kind of call: its unit, and a figure for each number of jobs.
type CallFigures = (String, Vec<f64>);

/// Parsed output of `io`: numbers of jobs, and a measurement of each kind of call.
type IoOutput = (Vec<u32>, Vec<(String, CallFigures)>);

/// Measurements of one kind of mount.
#[derive(Default)]
struct MountFigures {
    /// By kind of call, one entry for each round.
    rounds: BTreeMap<String, Vec<CallFigures>>,
    /// Daemon memory after each round: private, and page-locked.
    memory_kib: Vec<[u64; 2]>,
}

/// Parameters of the benchmark.
pub(super) struct SpeedOptions<'a> {
    pub rounds: u32,
    pub seconds: f64,
    /// Measures only calls that have this in their names.
    pub calls: &'a str,
    /// File that all figures are written to as JSON.
    pub json: Option<&'a Path>,
}

/// Measures all rounds and prints a table.
pub(super) fn run(
    shape: &MountSettings,
    io: &Path,
    out: &Path,
    settings: &SpeedOptions<'_>,
) -> Result<()> {
    let (rounds, seconds) = (settings.rounds, settings.seconds);
    let mut all: [MountFigures; KINDS.len()] = Default::default();
    let mut jobs = Vec::new();
    for round in 1..=rounds {
        for turn in 0..KINDS.len() {
            // Each round starts with another mount.
            let kind = (turn + round as usize - 1) % KINDS.len();
            let ((name, options), measured) = (&KINDS[kind], &mut all[kind]);
            shell::step(&format!("{name}, round {round} of {rounds}"));
            let output = if options.is_empty() {
                let place = TmpfsMount::new()?;
                measure(io, place.0.path(), settings)?
            } else {
                let mut words = vec![format!("--size={SIZE}")];
                words.extend(options.iter().map(|it| (*it).to_owned()));
                let mounted = SuiteMount::new(shape, &words, &out.join("speed-mount.log"))?;
                let output = measure(io, mounted.at(), settings)?;
                measured.memory_kib.push(memory_kib(mounted.pid())?);
                mounted.end()?;
                output
            };
            print!("{output}");
            let (header, rows) = parse(&output)?;
            jobs = header;
            for (call, row) in rows {
                measured.rounds.entry(call).or_default().push(row);
            }
        }
    }
    let text = table(&jobs, &all);
    shell::step(&format!("medians of {rounds} rounds, {seconds} s each"));
    print!("{text}");
    if let Some(path) = settings.json {
        let kinds = KINDS.iter().zip(&all).map(|((name, _), it)| {
            let calls = it
                .rounds
                .iter()
                .map(|(call, rows)| (call.clone(), json!(rows)));
            let calls: serde_json::Map<_, _> = calls.collect();
            json!({ "mount": name, "calls": calls, "memory_kib": it.memory_kib })
        });
        let kinds: Vec<_> = kinds.collect();
        let all = json!({ "jobs": jobs, "seconds": seconds, "kinds": kinds });
        fs::write(path, serde_json::to_string_pretty(&all)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Builds the example with the release profile.
pub(super) fn build() -> Result<PathBuf> {
    let arguments = [
        "--locked",
        "--release",
        "--package",
        "fercuda-vramfs",
        "--example",
        "io",
    ];
    let made = cargo::artifacts("build", &arguments)?;
    let program = made.into_iter().find_map(|made| made.executable);
    program.context("fercuda-vramfs has no example io")
}

fn measure(io: &Path, at: &Path, settings: &SpeedOptions<'_>) -> Result<String> {
    let mut command = Command::new(io);
    command
        .arg(at)
        .arg(settings.seconds.to_string())
        .arg(settings.calls)
        .stdin(Stdio::null());
    shell::capture(command)
}

/// tmpfs on a private folder, unmounted on drop.
struct TmpfsMount(tempfile::TempDir);

impl TmpfsMount {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let none: Option<&std::ffi::CStr> = None;
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), none)
            .context("cannot mount a tmpfs")?;
        Ok(Self(dir))
    }
}

impl Drop for TmpfsMount {
    fn drop(&mut self) {
        let _unmounted = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Private memory of a process, and memory it shares with a device.
fn memory_kib(pid: u32) -> Result<[u64; 2]> {
    let output = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| {
        let mut lines = output.lines();
        let line = lines.find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let both = of("RssAnon:").zip(of("RssShmem:"));
    let (own, shared) = both.context("the daemon's memory is missing in /proc/PID/status")?;
    Ok([own, shared])
}

fn parse(output: &str) -> Result<IoOutput> {
    let mut jobs = Vec::new();
    let mut rows = Vec::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.last() == Some(&"jobs") {
            let numbers = words.iter().step_by(2).map(|it| it.parse());
            jobs = numbers.collect::<Result<_, _>>()?;
        } else if !jobs.is_empty() {
            let figures = 2 * jobs.len();
            let first = words.len().checked_sub(figures);
            let first = first.with_context(|| format!("unexpected output of io: {line}"))?;
            let values = words[first..].iter().step_by(2).map(|it| it.parse());
            let values = values.collect::<Result<_, _>>();
            let values = values.with_context(|| format!("unexpected output of io: {line}"))?;
            rows.push((
                words[..first].join(" "),
                (words[first + 1].to_owned(), values),
            ));
        }
    }
    if rows.is_empty() {
        bail!("io printed no measurements:\n{output}");
    }
    Ok((jobs, rows))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    (low + high) / 2.0
}

fn table(jobs: &[u32], all: &[MountFigures]) -> String {
    let mut text = format!("{:<22}", "");
    for jobs in jobs {
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{:>12}", format!("{jobs} jobs"));
    }
    text.push('\n');
    let medians = |of: &MountFigures, call: &str| -> Option<Vec<f64>> {
        let rows = of.rounds.get(call)?;
        let of_jobs = |at: usize| median(rows.iter().map(|row| row.1[at]).collect());
        Some((0..jobs.len()).map(of_jobs).collect())
    };
    for (call, rows) in &all[BASELINE].rounds {
        let unit = rows.first().map_or("", |row| &row.0);
        let better = if unit == "us" { ", less is better" } else { "" };
        let _infallible = writeln!(text, "{call}, {unit}{better}");
        let plain = medians(&all[BASELINE], call);
        for ((name, _), of) in KINDS.iter().zip(all) {
            let Some(figures) = medians(of, call) else {
                continue;
            };
            let _infallible = write!(text, "  {name:<20}");
            for (at, figure) in figures.iter().enumerate() {
                let of_plain = plain
                    .as_ref()
                    .map_or(0.0, |plain| 100.0 * figure / plain[at]);
                let both = format!("{figure:.1} {of_plain:4.0}%");
                let _infallible = write!(text, "{both:>12}");
            }
            text.push('\n');
        }
    }
    for ((name, _), of) in KINDS.iter().zip(all) {
        let most = |at: usize| of.memory_kib.iter().map(|it| it[at]).max();
        if let Some((own, shared)) = most(0).zip(most(1)) {
            let mib = |kib: u64| kib as f64 / 1024.0;
            let _infallible = writeln!(
                text,
                "memory of the daemon, {name}: {:.1} MiB of its own, {:.1} MiB page-locked",
                mib(own),
                mib(shared)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE_OUTPUT: &str = "calls are direct\n                              1 jobs      4 jobs\n\
                        write 1 MiB                2.50 GB/s  10.00 GB/s\n\
                        read 4 KiB random          18.1 K/s   135.5 K/s\n\
                        read 4 KiB, 1 ms apart      76.4 us     62.2 us\n";

    #[test]
    fn output_of_io_is_parsed() {
        let (jobs, rows) = parse(SAMPLE_OUTPUT).unwrap();
        assert_eq!(jobs, [1, 4]);
        let expected = [
            ("write 1 MiB", "GB/s", vec![2.5, 10.0]),
            ("read 4 KiB random", "K/s", vec![18.1, 135.5]),
            ("read 4 KiB, 1 ms apart", "us", vec![76.4, 62.2]),
        ];
        let expected =
            expected.map(|(call, unit, values)| (call.to_owned(), (unit.to_owned(), values)));
        assert_eq!(rows, expected);
        for wrong in ["", "calls are direct\n", " 1 jobs\nwrite x GB/s\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn table_has_medians_and_percentages_of_the_baseline() {
        let measured = |values: &[f64]| {
            let rows = |unit: &str| {
                values
                    .iter()
                    .map(|it| (unit.to_owned(), vec![*it]))
                    .collect()
            };
            let rounds = [("read", "GB/s"), ("each", "us")];
            MountFigures {
                rounds: rounds
                    .map(|(call, unit)| (call.to_owned(), rows(unit)))
                    .into(),
                memory_kib: vec![[2048, 1024], [1024, 3072]],
            }
        };
        let all = [
            MountFigures::default(),
            measured(&[9.0, 11.0, 10.0, 1.0]),
            measured(&[9.0]),
            measured(&[4.75]),
        ];
        let text = table(&[8], &all);
        let has = |part: &str| assert!(text.contains(part), "{part}:\n{text}");
        has("each, us, less is better\n");
        has("read, GB/s\n");
        has("9.5  100%");
        has("9.0   95%");
        has("4.8   50%");
        has("--verify read: 2.0 MiB of its own, 3.0 MiB page-locked");
        assert!(!text.contains("tmpfs"), "{text}");
    }
}
