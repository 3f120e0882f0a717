//! The page of a timeline: a template, the summary as a table, and the figures as JSON.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use super::super::row::TraceReading;
use super::timeline::{DeviceTimeline, TenantCurve, Timeline};
use crate::terminal::{bytes, count, duration, plain_text};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Bands of a chart; the tenants with the smallest peaks share the last.
const BANDS: usize = 12;
/// Columns and blocks of all devices together; a device has at least [`FEWEST`] of each.
const COLUMNS: usize = 4096;
const BLOCKS: usize = 6000;
const FEWEST: usize = 64;
/// Bytes of all call stacks together.
const STACK_BYTES: usize = 1 << 20;
const OTHERS: &str = "others";

/// The figures that the script draws.
#[derive(Debug, Serialize)]
struct PageData {
    devices: Vec<DeviceChart>,
    stacks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DeviceChart {
    device: u32,
    steps: u64,
    /// Steps of a column.
    width: u64,
    /// The time of the last step; 0 if the trace has no times.
    span_us: u64,
    /// The time of each column's first step.
    times_us: Vec<u64>,
    bands: Vec<ChartBand>,
    /// Columns with failed allocations: column, number, largest size.
    failures: Vec<(usize, u64, u64)>,
    peak: ChartPeak,
    blocks: Vec<ChartBlock>,
}

/// A tenant's part of each column.
#[derive(Debug, Serialize)]
struct ChartBand {
    name: String,
    bytes: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct ChartPeak {
    bytes: u64,
    step: u64,
    time_us: u64,
}

/// A block: its band, size, offset, first and last step, their times, and what the tooltip says.
#[derive(Debug, Serialize)]
struct ChartBlock {
    band: usize,
    bytes: u64,
    offset: u64,
    steps: (u64, u64),
    times_us: (u64, u64),
    /// Hexadecimal: it may exceed 2^53.
    address: String,
    stream: String,
    thread: u64,
    stack: Option<usize>,
    is_held: bool,
    is_live: bool,
}

/// Writes the page of a timeline, which `name` is the trace of.
///
/// # Errors
/// The output's.
pub(in super::super) fn write(
    mut timeline: Timeline,
    reading: &TraceReading,
    name: &str,
    mut out: impl Write,
) -> io::Result<()> {
    timeline.finish();
    let mut notes = reading.notes();
    if timeline.unmatched > 0 {
        let frees = count(timeline.unmatched as usize, "free");
        notes.push(format!("{frees} of memory that was not allocated left out"));
    }
    let devices = timeline.devices.len().max(1);
    let table = summary_table(&timeline, reading);
    let mut chosen = StackChoice::default();
    let mut charts = Vec::new();
    for (number, mut device) in timeline.devices {
        notes.extend(held_note(number, &device, devices > 1));
        device
            .columns
            .shrink((COLUMNS / devices).clamp(FEWEST, COLUMNS / 2));
        device
            .largest
            .shrink((BLOCKS / devices).clamp(FEWEST, BLOCKS / 2));
        notes.extend(omitted_note(number, &device, devices > 1));
        charts.push(chart(number, device, reading, &mut chosen));
    }
    if chosen.is_full {
        notes.push("some call stacks are left out".to_owned());
    }
    let data = PageData {
        devices: charts,
        stacks: chosen.stacks,
    };
    let json = in_script(&serde_json::to_string(&data)?);
    let notes: String = notes
        .iter()
        .map(|note| format!("<li>{}</li>", escaped(note)))
        .collect();
    let summary = summary_line(&data);
    let page = PAGE
        .split("{{")
        .flat_map(|part| part.split("}}"))
        .map(|part| match part {
            "name" => escaped(&plain_text(name)),
            "style" => STYLE.to_owned(),
            "script" => SCRIPT.to_owned(),
            "summary" => escaped(&summary),
            "notes" => notes.clone(),
            "table" => table.clone(),
            "data" => json.clone(),
            text => text.to_owned(),
        });
    for part in page {
        out.write_all(part.as_bytes())?;
    }
    out.flush()
}

fn held_note(number: u32, device: &DeviceTimeline, is_one_of_many: bool) -> Option<String> {
    let blocks = device.held_blocks as usize;
    (blocks > 0).then(|| {
        format!(
            "{}{} of {} live before the trace began",
            place(number, is_one_of_many),
            count(blocks, "block"),
            bytes(size(device.held_bytes())),
        )
    })
}

fn omitted_note(number: u32, device: &DeviceTimeline, is_one_of_many: bool) -> Option<String> {
    let omitted = device.largest.omitted;
    (omitted > 0).then(|| {
        format!(
            "{}the {} largest blocks are drawn, {omitted} others are in the totals only",
            place(number, is_one_of_many),
            device.largest.len(),
        )
    })
}

/// The device that a note is of, where the trace has several.
fn place(number: u32, is_one_of_many: bool) -> String {
    match is_one_of_many {
        true => format!("device {number}: "),
        false => String::new(),
    }
}

/// The peaks of the devices in one sentence.
fn summary_line(data: &PageData) -> String {
    let peaks: Vec<String> = data
        .devices
        .iter()
        .map(|device| {
            let peak = &device.peak;
            let at = match device.span_us {
                0 => format!("at step {}", peak.step),
                _ => {
                    let time = duration(peak.time_us as f64 / 1e6);
                    format!("after {time}, at step {}", peak.step)
                }
            };
            let of = match data.devices.len() {
                1 => String::new(),
                _ => format!("device {}: ", device.device),
            };
            format!("{of}peak {} {at}", bytes(peak.bytes))
        })
        .collect();
    peaks.join("; ")
}

/// Call stacks of the blocks that are shown.
#[derive(Debug, Default)]
struct StackChoice {
    stacks: Vec<String>,
    numbers: HashMap<u32, usize>,
    bytes: usize,
    is_full: bool,
}

impl StackChoice {
    fn number(&mut self, stack: u32, reading: &TraceReading) -> Option<usize> {
        if let Some(number) = self.numbers.get(&stack) {
            return Some(*number);
        }
        let text = reading.stacks.get(stack as usize)?;
        if self.bytes + text.len() > STACK_BYTES {
            self.is_full = true;
            return None;
        }
        self.bytes += text.len();
        let lines: Vec<String> = text.lines().map(plain_text).collect();
        self.stacks.push(lines.join("\n"));
        self.numbers.insert(stack, self.stacks.len() - 1);
        Some(self.stacks.len() - 1)
    }
}

/// Tenants that occur, largest peak first, the first of equal ones by index.
fn ranked(device: &DeviceTimeline) -> Vec<(usize, &TenantCurve)> {
    let all = device.tenants.iter().enumerate();
    let mut ranked: Vec<_> = all
        .filter(|(_, it)| it.allocations + it.failures + it.frees > 0 || it.held_bytes > 0)
        .collect();
    ranked.sort_by_key(|(at, it)| (Reverse(it.peak_bytes), *at));
    ranked
}

fn chart(
    number: u32,
    device: DeviceTimeline,
    reading: &TraceReading,
    chosen: &mut StackChoice,
) -> DeviceChart {
    let ranked: Vec<usize> = ranked(&device).iter().map(|(at, _)| *at).collect();
    let own = match ranked.len() {
        len if len > BANDS => BANDS - 1,
        len => len,
    };
    let held = |tenant: usize| device.tenants[tenant].held_bytes;
    let columns = &device.columns.columns;
    let part = |tenant: usize, column: usize| {
        let part = columns[column].parts.get(tenant).copied().unwrap_or(0);
        part + held(tenant)
    };
    let mut bands: Vec<ChartBand> = ranked[..own]
        .iter()
        .map(|tenant| ChartBand {
            name: tenant_name(reading, *tenant),
            bytes: (0..columns.len())
                .map(|column| size(part(*tenant, column)))
                .collect(),
        })
        .collect();
    if own < ranked.len() {
        let of_others = |column| ranked[own..].iter().map(|it| part(*it, column)).sum();
        bands.push(ChartBand {
            name: OTHERS.to_owned(),
            bytes: (0..columns.len()).map(|it| size(of_others(it))).collect(),
        });
    }
    let mut band_of: HashMap<usize, usize> = HashMap::new();
    for (band, tenant) in ranked.iter().enumerate() {
        band_of.insert(*tenant, band.min(own));
    }
    let held_bytes = device.held_bytes();
    let (peak, step, time_us) = device.columns.peak;
    let failures = columns
        .iter()
        .enumerate()
        .filter(|(_, it)| it.failures > 0)
        .map(|(at, it)| (at, it.failures, it.largest_failure))
        .collect();
    DeviceChart {
        device: number,
        steps: device.columns.steps,
        width: device.columns.width,
        span_us: device.span_us(),
        times_us: columns.iter().map(|it| it.time_us).collect(),
        failures,
        peak: ChartPeak {
            bytes: size(peak + held_bytes),
            step,
            time_us,
        },
        bands,
        blocks: device
            .largest
            .placed()
            .into_iter()
            .map(|(block, offset)| ChartBlock {
                band: band_of.get(&(block.tenant as usize)).copied().unwrap_or(0),
                bytes: block.bytes,
                offset: u64::try_from(offset).unwrap_or(u64::MAX),
                steps: block.steps,
                times_us: block.times_us,
                address: format!("{:#x}", block.address),
                stream: format!("{:#x}", block.stream),
                thread: block.thread,
                stack: block.stack.and_then(|it| chosen.number(it, reading)),
                is_held: block.is_held,
                is_live: block.is_live,
            })
            .collect(),
    }
}

/// Rows of the summary: a tenant on a device each, and the totals of each device.
fn summary_table(timeline: &Timeline, reading: &TraceReading) -> String {
    let mut rows = String::new();
    for (number, device) in &timeline.devices {
        let mut total = TenantCurve::default();
        for (tenant, it) in ranked(device) {
            row(&mut rows, *number, &tenant_name(reading, tenant), it, "");
            total.live_bytes += it.live_bytes;
            total.live_blocks += it.live_blocks;
            total.allocations += it.allocations;
            total.frees += it.frees;
            total.failures += it.failures;
        }
        total.peak_bytes = device.columns.peak.0 + device.held_bytes();
        row(&mut rows, *number, "all", &total, " class=\"total\"");
    }
    rows
}

fn row(rows: &mut String, device: u32, tenant: &str, it: &TenantCurve, attributes: &str) {
    // Rounded, with the exact number as the cell's title.
    let cell = |exact: i128| {
        let exact = size(exact);
        format!("<td title=\"{exact} bytes\">{}</td>", bytes(exact))
    };
    let (peak, live) = (cell(it.peak_bytes), cell(it.live_bytes));
    let _never_fails = writeln!(
        rows,
        "<tr{attributes}><th scope=\"row\"><bdi>{}</bdi></th><td>{device}</td>{peak}{live}\
         <td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        escaped(tenant),
        it.live_blocks,
        it.allocations,
        it.frees,
        it.failures,
    );
}

fn tenant_name(reading: &TraceReading, tenant: usize) -> String {
    let name = reading.tenants.get(tenant);
    plain_text(name.map_or("(no tenant)", String::as_str))
}

/// A number of bytes within the range of `u64`.
fn size(bytes: i128) -> u64 {
    u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
}

/// A text as HTML, in an element or a quoted attribute.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// JSON that contains nothing that ends a script element or begins a comment in it.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}
