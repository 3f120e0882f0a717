//! Reader of allocation logs: comma-separated lines in RMM's format, and in that of
//! `fercuda run --trace`, which adds the device and the tenant.
//!
//! Invariant: an error names its line; only an incomplete last line is left out, and reported.

use std::io::{BufRead, Read as _};

use anyhow::{Context as _, Result, bail};

use super::row::{
    DEVICES, LastLine, LeftOut, NameTable, RowVisitor, TraceAction, TraceReading, TraceRow,
};

/// Longer lines are rejected.
const LINE_BYTES: u64 = 4096;
/// The header line of RMM's log.
const HEAD: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
/// The columns that `fercuda run --trace` adds.
const ADDED: [&str; 2] = ["Device", "Tenant"];
/// The tenant of a log without that column.
const NO_TENANT: &str = "(no tenant)";

/// Reads a log's rows in order.
pub(super) fn read(mut reader: impl BufRead, each: RowVisitor<'_>) -> Result<TraceReading> {
    let mut names = NameTable::default();
    let mut line = Vec::new();
    let (mut any, mut empty_rows, mut is_ours) = (false, 0, false);
    let mut last_line = LastLine::Whole;
    for number in 1.. {
        line.clear();
        let len = reader
            .by_ref()
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if len == 0 {
            break;
        }
        let is_whole = line.ends_with(b"\n");
        if len as u64 == LINE_BYTES && !is_whole {
            bail!("line {number}: it is longer than {LINE_BYTES} bytes");
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if number == 1 {
            // Spreadsheets put a mark of the encoding before the first word.
            let text = text.trim_start_matches('\u{feff}');
            is_ours = is_ours_by(text)?;
            continue;
        }
        if text.is_empty() {
            continue;
        }
        let row = match row(text, is_ours, &mut names) {
            // Our own lines always end, and a name that is cut is another name.
            Ok(_) if is_ours && !is_whole => Err(None),
            Ok(row) => Ok(row),
            Err(_) if !is_whole => Err(None),
            Err(error) => Err(Some(error)),
        };
        if !is_whole {
            last_line = match row {
                Err(None) => LastLine::Cut,
                _ => LastLine::Open,
            };
        }
        match row {
            Ok(Some(row)) => {
                // A free with a size is of a block from before the trace.
                any |= row.action != TraceAction::Free || row.bytes > 0;
                each(&row).with_context(|| format!("line {number}"))?;
            }
            Ok(None) => empty_rows += 1,
            Err(Some(error)) => return Err(error.context(format!("line {number}"))),
            Err(None) => {}
        }
    }
    if !any {
        bail!("it contains no allocation");
    }
    let left_out = LeftOut {
        empty_rows,
        ..LeftOut::default()
    };
    Ok(names.into_reading(last_line, left_out))
}

/// Whether a header is that of our own logs; an error if it is of no log.
fn is_ours_by(text: &str) -> Result<bool> {
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    match cells.strip_prefix(&HEAD) {
        Some([]) => Ok(false),
        Some(rest) if rest == ADDED => Ok(true),
        _ => bail!(
            "line 1: it is {text:?}, not {}\n\
             try: a log of RMM or of fercuda run --trace, or a pickle of PyTorch",
            HEAD.join(",")
        ),
    }
}

/// A line of a log; `None` where nothing was allocated or freed: null address or size zero.
fn row(text: &str, is_ours: bool, names: &mut NameTable) -> Result<Option<TraceRow>> {
    // The tenant is the rest of the line.
    let mut cells = text.splitn(8, ',').map(str::trim);
    // A missing cell is rejected below as an empty one.
    let mut next = || cells.next().unwrap_or_default();
    let (thread, time, action) = (next(), next(), next());
    let (pointer, size, stream) = (next(), next(), next());
    let (device, tenant) = (next(), next());
    let action = match action {
        "allocate" => TraceAction::Allocate,
        "free" => TraceAction::Free,
        "allocate failure" => TraceAction::Fail,
        _ => bail!("{action:?} is not an action\ntry: allocate, free or allocate failure"),
    };
    let bytes = match number(size) {
        Some(bytes) => bytes,
        // A free is identified by its address.
        None if action == TraceAction::Free => 0,
        None => bail!("{size:?} is not a size"),
    };
    let address = match action {
        TraceAction::Fail => 0,
        _ => number(pointer).with_context(|| format!("{pointer:?} is not a pointer"))?,
    };
    let stream = number(stream).with_context(|| format!("{stream:?} is not a stream"))?;
    let device = match is_ours {
        true => number(device)
            .filter(|device| *device < DEVICES)
            .with_context(|| format!("{device:?} is not a device\ntry: 0 to {}", DEVICES - 1))?,
        false => 0,
    };
    let is_empty = match action {
        TraceAction::Fail => false,
        TraceAction::Free => address == 0,
        TraceAction::Allocate | TraceAction::Hold => address == 0 || bytes == 0,
    };
    if is_empty {
        return Ok(None);
    }
    let tenant = match is_ours && !tenant.is_empty() {
        true => names.tenant(tenant),
        false => names.tenant(NO_TENANT),
    };
    Ok(Some(TraceRow {
        action,
        device: device as u32,
        address,
        bytes,
        stream,
        thread: number(thread).unwrap_or(0),
        time_us: time_of_day_us(time).unwrap_or(0),
        tenant,
        stack: None,
    }))
}

/// `10:00:00.000001`; other time formats are ignored.
fn time_of_day_us(text: &str) -> Option<u64> {
    let (hours, rest) = text.split_once(':')?;
    let (minutes, rest) = rest.split_once(':')?;
    let (seconds, fraction) = rest.split_once(['.', ':']).unwrap_or((rest, ""));
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number < 60);
    let micros = format!("{fraction:0<6}");
    let micros: u64 = micros.get(..6)?.parse().ok()?;
    let minutes = number(hours)? * 60 + number(minutes)?;
    Some((minutes * 60 + number(seconds)?) * 1_000_000 + micros)
}

/// `0x70000`, `4096`, or C's null pointer.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text == "(nil)" => Some(0),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_microseconds() {
        for (text, time_us) in [
            ("00:00:00.000001", Some(1)),
            ("10:02:03.5", Some(36_123_500_000)),
            // In RMM's format.
            ("10:02:03:000007", Some(36_123_000_007)),
            ("10:02:03", Some(36_123_000_000)),
            ("", None),
            ("0", None),
            ("1:2:x", None),
            ("1:99:0.0", None),
        ] {
            assert_eq!(time_of_day_us(text), time_us, "{text}");
        }
    }
}
