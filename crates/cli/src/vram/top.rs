//! `fercuda vram top`: live throughput and latencies of mounted filesystems.
//!
//! Invariant: the output depends only on two samples, the time between them and the terminal's
//! size; the terminal is restored at exit. Elsewhere: the source of the statistics (`show`).

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::text::Line;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::show::{LatencyHistogram, MountStats, find_mounts};
use crate::out::say;
use crate::status::ExitStatus;
use crate::terminal::{bytes, clipped, duration, plain_text};

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest delay until a signal is noticed.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Bars of a histogram, by height.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Show live throughput, latencies and errors.
#[derive(clap::Args)]
#[command(after_help = "\
For each filesystem and each device: bytes read and written per second; a
latency histogram of the kernel's requests in the last second, with a bar for
each power of two from 1 us on; blocks corrected and lost since the mount. For
an array the figures are split over its devices, and failed ones are marked.

Keys: p pauses; q, Escape or Ctrl-C quits. If stdout is not a terminal, or with
--once, one second is sampled and printed; in a pipe, lines are not cut.

Examples:
  fercuda vram top
  fercuda vram top --once /mnt/vram")]
pub(crate) struct Args {
    /// Mount points [default: all].
    dirs: Vec<PathBuf>,
    /// Sample one second, print it and exit.
    #[arg(long)]
    once: bool,
}

/// Shown when nothing is mounted.
const NO_MOUNTS: &str =
    "No filesystem in device memory is mounted.\ntry: fercuda vram mount DIR --size 1GiB";

struct StatsSample {
    all: Vec<MountStats>,
    at: Instant,
}

impl StatsSample {
    fn new(dirs: &[PathBuf]) -> Result<Self> {
        let dirs = match dirs.is_empty() {
            true => find_mounts()?.0,
            false => dirs.to_vec(),
        };
        // A filesystem that does not answer was unmounted, or its daemon has exited.
        let all = dirs.iter().filter_map(|dir| MountStats::query(dir).ok());
        Ok(Self {
            all: all.collect(),
            at: Instant::now(),
        })
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.once || !std::io::stdout().is_terminal() {
        // Reports why a named filesystem does not answer.
        let (_, all_answered) = MountStats::query_all(&args.dirs)?;
        let before = StatsSample::new(&args.dirs)?;
        std::thread::sleep(SAMPLE_INTERVAL);
        let now = StatsSample::new(&args.dirs)?;
        // A pipe gets whole lines.
        let width = match std::io::stdout().is_terminal() {
            true => ratatui::crossterm::terminal::size().map_or(80, |(width, _)| width.into()),
            false => usize::MAX,
        };
        for line in lines(&before, &now, width) {
            say!("{}", line.trim_end());
        }
        return Ok(ExitStatus::of_findings(!all_answered).into());
    }
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGHUP, SIGINT, SIGQUIT] {
        let flag = Arc::clone(&signal);
        signal_hook::flag::register_usize(number, flag, number as usize)
            .context("cannot register signal handlers")?;
    }
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let ended = run_interactive(&mut terminal, &args.dirs, &signal);
    // Dropping it shows the cursor.
    drop(terminal);
    ratatui::restore();
    ended?;
    let number = signal.load(Ordering::Relaxed);
    if number != 0 {
        // The parent is to see the signal in this process's status.
        signal_hook::low_level::emulate_default_handler(number as i32)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_interactive(
    terminal: &mut DefaultTerminal,
    dirs: &[PathBuf],
    signal: &AtomicUsize,
) -> Result<()> {
    let mut before = StatsSample::new(dirs)?;
    let mut now = StatsSample::new(dirs)?;
    let mut is_paused = false;
    while signal.load(Ordering::Relaxed) == 0 {
        if !is_paused && now.at.elapsed() >= SAMPLE_INTERVAL {
            before = std::mem::replace(&mut now, StatsSample::new(dirs)?);
        }
        terminal.draw(|frame| {
            let area = frame.area();
            let all = lines(&before, &now, usize::from(area.width));
            let all = all.into_iter().take(usize::from(area.height));
            let all: Vec<Line<'_>> = all.map(Line::from).collect();
            frame.render_widget(ratatui::text::Text::from(all), area);
        })?;
        if event::poll(SIGNAL_POLL_INTERVAL)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => break,
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => break,
                KeyCode::Char('p') => is_paused = !is_paused,
                _ => {}
            }
        }
    }
    Ok(())
}

/// I/O of one filesystem between two samples.
#[derive(Clone)]
struct IoDelta {
    read_bytes: u64,
    written_bytes: u64,
    reads: LatencyHistogram,
    writes: LatencyHistogram,
}

impl IoDelta {
    fn between(before: Option<&MountStats>, now: &MountStats) -> Result<Self> {
        let bytes = |name: &str| -> Result<u64> {
            let was = before.map_or(Ok(0), |it| it.number(name))?;
            Ok(now.number(name)?.saturating_sub(was))
        };
        let times = |name: &str| -> Result<LatencyHistogram> {
            let now = now.latencies(name)?;
            Ok(match before {
                Some(before) => now.since(&before.latencies(name)?),
                None => now,
            })
        };
        Ok(Self {
            read_bytes: bytes("read_bytes")?,
            written_bytes: bytes("written_bytes")?,
            reads: times("read_latency")?,
            writes: times("write_latency")?,
        })
    }
}

/// Draws a bar for each bucket.
fn bars(times: &LatencyHistogram) -> String {
    let counts = times.counts();
    let most = counts.iter().max().copied().unwrap_or(0).max(1);
    let bar = |count: &u64| match count {
        0 => ' ',
        // A nonzero count is always visible.
        count => BARS[((count * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
    };
    counts.iter().map(bar).collect()
}

/// Sum of all filesystems on one device.
#[derive(Default)]
struct DeviceTotals {
    name: String,
    used_bytes: u64,
    taken_bytes: u64,
    read_rate: f64,
    write_rate: f64,
    corrected: u64,
    lost: u64,
    has_failed: bool,
}

fn lines(before: &StatsSample, now: &StatsSample, width: usize) -> Vec<String> {
    if now.all.is_empty() {
        return NO_MOUNTS.lines().map(|line| clipped(line, width)).collect();
    }
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let seconds = if seconds > 0.0 { seconds } else { 1.0 };
    let mut lines = Vec::new();
    let mut devices = Vec::new();
    for one in &now.all {
        let is_same = |it: &&MountStats| {
            it.text("dir").ok() == one.text("dir").ok()
                && it.number("pid").ok() == one.number("pid").ok()
        };
        let was = before.all.iter().find(is_same);
        match mount_lines(was, one, seconds, &mut devices) {
            Ok(part) => lines.extend(part),
            Err(error) => lines.push(error.to_string().replace('\n', "; ")),
        }
    }
    lines.push(String::new());
    for device in devices {
        lines.push(format!(
            "device {}: {} of data in {}, {}/s read, {}/s written",
            device.name,
            bytes(device.used_bytes),
            bytes(device.taken_bytes),
            bytes(device.read_rate as u64),
            bytes(device.write_rate as u64)
        ));
        let failed = if device.has_failed { "  FAILED" } else { "" };
        let (corrected, lost) = (device.corrected, device.lost);
        lines.push(format!(
            "  blocks corrected {corrected}, lost {lost}{failed}"
        ));
    }
    lines.iter().map(|line| clipped(line, width)).collect()
}

fn mount_lines(
    was: Option<&MountStats>,
    one: &MountStats,
    seconds: f64,
    devices: &mut Vec<DeviceTotals>,
) -> Result<Vec<String>> {
    let work = IoDelta::between(was, one)?;
    let read_rate = work.read_bytes as f64 / seconds;
    let write_rate = work.written_bytes as f64 / seconds;
    let (size, used) = (one.number("size_bytes")?, one.number("used_bytes")?);
    let mut lines = vec![format!(
        "{}  {} of {} used, {}",
        plain_text(one.text("dir")?),
        bytes(used),
        bytes(size),
        one.text("device")?
    )];
    for (name, rate, times) in [
        ("read", read_rate, &work.reads),
        ("write", write_rate, &work.writes),
    ] {
        let within = |part: f64| times.quantile(part).map_or("-".to_owned(), duration);
        lines.push(format!(
            "  {name:<6}{:>10}/s {:>7.0}/s half {:>7} 99 % {:>7} {}",
            bytes(rate as u64),
            times.count() as f64 / seconds,
            within(0.5),
            within(0.99),
            bars(times)
        ));
    }
    lines.push(format!(
        "  blocks corrected {}, lost {}, scrubbed {}",
        one.number("corrected_blocks")?,
        one.number("lost_blocks")?,
        one.number("scrubbed_blocks")?
    ));
    lines.extend(
        one.describe_failed_devices()?
            .map(|it| format!("  {}", it.to_uppercase())),
    );
    let all = one.devices()?;
    let is_array = all.len() > 1;
    let is_mirror = is_array && one.text("array")? == "mirror";
    let left = all.iter().filter(|it| !one.has_failed(**it)).count().max(1);
    for number in all {
        let name = match is_array {
            false => format!("{number} {}", one.text("device")?),
            true => number.to_string(),
        };
        let is_it = |it: &DeviceTotals| it.name.split(' ').next() == name.split(' ').next();
        let place = devices.iter().position(is_it).unwrap_or_else(|| {
            devices.push(DeviceTotals {
                name: name.clone(),
                ..DeviceTotals::default()
            });
            devices.len() - 1
        });
        let device = &mut devices[place];
        if device.name.len() < name.len() {
            device.name = name;
        }
        let of = |name: &str| match is_array {
            true => one.of_device(number, name),
            false => one.number(name),
        };
        device.corrected += of("corrected_blocks")?;
        device.lost += of("lost_blocks")?;
        if one.has_failed(number) {
            device.has_failed = true;
            continue;
        }
        let share = 1.0 / left as f64;
        // A mirror has all data on each device, and a write goes to all of them.
        let of_data = if is_mirror { 1.0 } else { share };
        device.used_bytes += (used as f64 * of_data) as u64;
        device.taken_bytes += (one.number("device_bytes")? as f64 * share) as u64;
        device.read_rate += read_rate * share;
        device.write_rate += write_rate * of_data;
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(reads: &str, bytes: u64, at: Instant) -> StatsSample {
        let text = format!(
            "device A device\ndevice_number 1\npid 7\nsize_bytes 8388608\nused_bytes 4194304\ndevice_bytes 9437184\n\
             corrected_blocks 3\nlost_blocks 0\nscrubbed_blocks 12\nread_bytes {bytes}\nwritten_bytes 0\n\
             read_latency {reads}\nwrite_latency 0 0 0\n"
        );
        let all = vec![MountStats::parse("/mnt/vram".as_ref(), &text)];
        StatsSample { all, at }
    }

    #[test]
    fn array_devices_have_their_shares_and_failed_ones_are_named() {
        let at = Instant::now();
        let reading = |array: &str, state: &str| {
            let text = format!(
                "device A device\narray {array}\ndevice_numbers 2,0\npid 7\nsize_bytes 8388608\nused_bytes 4194304\n\
                 device_bytes 10485760\ncorrected_blocks 3\nlost_blocks 0\nscrubbed_blocks 12\nread_bytes 0\n\
                 written_bytes 0\nread_latency 0 0\nwrite_latency 0 0\narray_state {state}\n\
                 device_2_state used\ndevice_2_corrected_blocks 2\ndevice_2_lost_blocks 0\n\
                 device_0_state {}\ndevice_0_corrected_blocks 1\ndevice_0_lost_blocks 4\n",
                if state == "whole" { "used" } else { "failed" }
            );
            let all = vec![MountStats::parse("/mnt/vram".as_ref(), &text)];
            StatsSample { all, at }
        };
        let shown = |array: &str, state: &str| {
            let it = reading(array, state);
            lines(&it, &it, 80).split_off(3)
        };
        assert_eq!(
            shown("stripe", "whole"),
            [
                "  blocks corrected 3, lost 0, scrubbed 12",
                "",
                "device 2: 2.0 MiB of data in 5.0 MiB, 0 B/s read, 0 B/s written",
                "  blocks corrected 2, lost 0",
                "device 0: 2.0 MiB of data in 5.0 MiB, 0 B/s read, 0 B/s written",
                "  blocks corrected 1, lost 4",
            ]
        );
        assert_eq!(
            shown("mirror", "degraded"),
            [
                "  blocks corrected 3, lost 0, scrubbed 12",
                "  DEGRADED: DEVICE 0 HAS FAILED",
                "",
                "device 2: 4.0 MiB of data in 10.0 MiB, 0 B/s read, 0 B/s written",
                "  blocks corrected 2, lost 0",
                "device 0: 0 B of data in 0 B, 0 B/s read, 0 B/s written",
                "  blocks corrected 1, lost 4  FAILED",
            ]
        );
    }

    #[test]
    fn rates_and_latencies_are_those_between_two_samples() {
        let begin = Instant::now();
        let before = reading("5 5 0", 1 << 20, begin);
        let now = reading("5 103 2", 5 << 20, begin + Duration::from_secs(2));
        let shown = lines(&before, &now, 80);
        assert_eq!(
            shown,
            [
                "/mnt/vram  4.0 MiB of 8.0 MiB used, A device",
                "  read     2.0 MiB/s      50/s half 2.00 us 99 % 4.00 us  █▁",
                "  write        0 B/s       0/s half       - 99 %       -    ",
                "  blocks corrected 3, lost 0, scrubbed 12",
                "",
                "device 1 A device: 4.0 MiB of data in 9.0 MiB, 2.0 MiB/s read, 0 B/s written",
                "  blocks corrected 3, lost 0",
            ]
        );
        for width in [1, 20, 79] {
            let narrow = lines(&before, &now, width);
            assert!(narrow.iter().all(|line| line.chars().count() <= width));
        }
        let none = StatsSample {
            all: Vec::new(),
            at: begin,
        };
        assert!(lines(&before, &none, 80)[0].contains("No filesystem"));
    }
}
