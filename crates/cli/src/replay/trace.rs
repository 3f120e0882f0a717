//! Allocation traces: allocations and frees in order, read from a log in RMM's format or a
//! PyTorch memory snapshot.
//!
//! Invariant: for any input, reading takes memory proportional to the file, and an error names
//! its position.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::pickle::{Pickle, PickleValue};

/// Larger files are rejected.
const LARGEST_FILE: u64 = 2 << 30;
/// Longer lines are rejected.
const LINE_BYTES: u64 = 4096;
/// The header line of a log.
const HEAD: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// One operation. Blocks and streams are numbered from 0 in order of appearance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TraceOp {
    Allocate { block: u32, bytes: u64, stream: u32 },
    Free { block: u32, stream: u32 },
}

/// An operation as it is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceRow {
    pub(super) address: u64,
    /// The size in the row; may be 0 for a free.
    pub(super) bytes: u64,
    pub(super) stream: u64,
    /// Microseconds since the file's own origin.
    pub(super) time_us: u64,
    pub(super) is_free: bool,
}

/// All operations of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AllocationTrace {
    pub(super) ops: Vec<TraceOp>,
    pub(super) blocks: u32,
    pub(super) streams: u32,
    /// Frees of addresses that were never allocated, as from before the trace.
    pub(super) unmatched: u64,
}

impl AllocationTrace {
    pub(super) fn read(path: &Path) -> Result<AllocationTrace> {
        let mut making = TraceBuilder::default();
        rows(path, &mut |row| making.row(&row))?;
        Ok(making.trace)
    }
}

/// Reads a file's operations in order.
pub(super) fn rows(path: &Path, each: RowVisitor<'_>) -> Result<()> {
    let file = File::open(path)?;
    let len_bytes = file.metadata()?.len();
    if len_bytes > LARGEST_FILE {
        bail!("it has {len_bytes} bytes; the maximum is {LARGEST_FILE}\ntry: a shorter trace");
    }
    let mut reader = BufReader::new(file.take(LARGEST_FILE));
    // Pickles of protocol 2 and later begin with this byte.
    if reader.fill_buf()?.first() == Some(&0x80) {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        return from_snapshot(&bytes, each);
    }
    from_log(reader, each)
}

/// Called for each operation.
type RowVisitor<'e> = &'e mut dyn FnMut(TraceRow) -> Result<()>;

/// Reads `Thread,Time,Action,Pointer,Size,Stream`.
fn from_log(mut reader: impl BufRead, each: RowVisitor<'_>) -> Result<()> {
    let mut line = Vec::new();
    let mut any = false;
    for number in 1.. {
        line.clear();
        let len = reader
            .by_ref()
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if len == 0 {
            break;
        }
        if len as u64 == LINE_BYTES && !line.ends_with(b"\n") {
            bail!("line {number}: it is longer than {LINE_BYTES} bytes");
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if number == 1 {
            if text.split(',').map(str::trim).ne(HEAD) {
                bail!(
                    "line 1: it is {text:?}, not {}\n\
                     try: a log of RMM or of fercuda run --trace, or a pickle of PyTorch",
                    HEAD.join(",")
                );
            }
        } else if !text.is_empty()
            && let Some(row) = row(text).with_context(|| format!("line {number}"))?
        {
            any |= !row.is_free;
            each(row).with_context(|| format!("line {number}"))?;
        }
    }
    if !any {
        bail!("it contains no allocation");
    }
    Ok(())
}

/// A line of a log; `None` where nothing was allocated or freed: null address, size zero, or a
/// failed allocation.
fn row(text: &str) -> Result<Option<TraceRow>> {
    let mut cells = text.split(',').map(str::trim);
    // A missing cell is rejected below as an empty one.
    let mut next = || cells.next().unwrap_or_default();
    let (_thread, time, action) = (next(), next(), next());
    let (pointer, size, stream) = (next(), next(), next());
    let is_free = match action {
        "allocate" => false,
        "free" => true,
        "allocate failure" => return Ok(None),
        _ => bail!("{action:?} is not an action\ntry: allocate, free or allocate failure"),
    };
    let bytes = match number(size) {
        Some(bytes) => bytes,
        // A free is identified by its address.
        None if is_free => 0,
        None => bail!("{size:?} is not a size"),
    };
    let address = number(pointer).with_context(|| format!("{pointer:?} is not a pointer"))?;
    let stream = number(stream).with_context(|| format!("{stream:?} is not a stream"))?;
    let row = TraceRow {
        address,
        bytes,
        stream,
        time_us: time_of_day_us(time).unwrap_or(0),
        is_free,
    };
    Ok((address != 0 && (is_free || bytes != 0)).then_some(row))
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

/// Reads a file of `torch.cuda.memory._dump_snapshot`: the history of the device with the most
/// events.
fn from_snapshot(bytes: &[u8], each: RowVisitor<'_>) -> Result<()> {
    let pickle = Pickle::read(bytes)?;
    let traces = pickle
        .get(pickle.root(), "device_traces")
        .unwrap_or(PickleValue::None);
    let longest = pickle
        .items(traces)
        .iter()
        .max_by_key(|device| pickle.items(**device).len());
    let events = longest.map_or(&[][..], |device| pickle.items(*device));
    let mut any = false;
    for (number, event) in events.iter().enumerate() {
        let number_of = |name| pickle.get(*event, name).and_then(|value| value.number());
        let action = pickle.get(*event, "action").and_then(|it| pickle.text(it));
        // A block freed in its own stream is reusable at once; others wait for
        // `free_completed`, when PyTorch has the block back.
        let Some(action @ ("alloc" | "free_completed")) = action else {
            continue;
        };
        let (Some(address), Some(bytes)) = (number_of("addr"), number_of("size")) else {
            bail!("event {number}: {action} has no addr and size");
        };
        let row = TraceRow {
            address,
            bytes,
            stream: number_of("stream").unwrap_or(0),
            time_us: number_of("time_us").unwrap_or(0),
            is_free: action != "alloc",
        };
        if address == 0 || !row.is_free && bytes == 0 {
            continue;
        }
        any |= !row.is_free;
        each(row).with_context(|| format!("event {number}"))?;
    }
    if !any {
        bail!(
            "it is a pickle without a history of allocations\n\
             try: call torch.cuda.memory._record_memory_history() before the allocations"
        );
    }
    Ok(())
}

/// State while a trace is read.
#[derive(Default)]
struct TraceBuilder {
    trace: AllocationTrace,
    streams: HashMap<u64, u32>,
    /// Live blocks by address. Lines of several threads may be out of order, so an address can
    /// be allocated again before its free.
    live: HashMap<u64, VecDeque<u32>>,
}

impl TraceBuilder {
    fn row(&mut self, row: &TraceRow) -> Result<()> {
        match row.is_free {
            true => self.free(row.address, row.stream),
            false => return self.allocate(row.address, row.bytes, row.stream),
        }
        Ok(())
    }

    fn stream(&mut self, stream: u64) -> u32 {
        let next = self.streams.len() as u32;
        let number = *self.streams.entry(stream).or_insert(next);
        self.trace.streams = self.streams.len() as u32;
        number
    }

    fn allocate(&mut self, address: u64, bytes: u64, stream: u64) -> Result<()> {
        let block = self.trace.blocks;
        let Some(next) = block.checked_add(1) else {
            bail!("there are more than {} allocations", u32::MAX);
        };
        self.trace.blocks = next;
        self.live.entry(address).or_default().push_back(block);
        let stream = self.stream(stream);
        self.trace.ops.push(TraceOp::Allocate {
            block,
            bytes,
            stream,
        });
        Ok(())
    }

    fn free(&mut self, address: u64, stream: u64) {
        let blocks = self.live.get_mut(&address);
        let Some(block) = blocks.and_then(VecDeque::pop_front) else {
            self.trace.unmatched += 1;
            return;
        };
        let stream = self.stream(stream);
        self.trace.ops.push(TraceOp::Free { block, stream });
    }
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

    fn log(rows: &str) -> Result<AllocationTrace> {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
        let mut making = TraceBuilder::default();
        from_log(text.as_bytes(), &mut |row| making.row(&row))?;
        Ok(making.trace)
    }

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

    #[test]
    fn a_log_is_read_in_order_with_blocks_and_streams_numbered() {
        let rows = "7,10:00:00.1,allocate,0x1000,400,0x0\n\
                    7,10:00:00.2,allocate failure,(nil),99999,0x0\n\
                    8,10:00:00.3,allocate,0x2000,512,0xabc\n\
                    7,10:00:00.4,free,0x1000,400,0xabc\n\
                    7,10:00:00.5,free,0x9000,1,0x0\n\
                    7,10:00:00.6,allocate,0x2000,64,0\n\
                    8,10:00:00.7,free,0x2000,512,0xabc\n";
        let trace = log(rows).unwrap();
        let allocate = |block, bytes, stream| TraceOp::Allocate {
            block,
            bytes,
            stream,
        };
        assert_eq!(
            trace.ops,
            [
                allocate(0, 400, 0),
                allocate(1, 512, 1),
                TraceOp::Free {
                    block: 0,
                    stream: 1
                },
                // Its free was written late.
                allocate(2, 64, 0),
                TraceOp::Free {
                    block: 1,
                    stream: 1
                },
            ]
        );
        assert_eq!((trace.blocks, trace.streams, trace.unmatched), (3, 2, 1));
    }

    #[test]
    fn an_error_in_a_log_names_the_line() {
        let long = format!("1,{},allocate,0x1,1,0\n", "x".repeat(5000));
        for (rows, said) in [
            (
                "1,2,allocate,0x10,many,0\n",
                "line 2: \"many\" is not a size",
            ),
            (
                "1,2,allocate,0x10,4,0\n1,2,free,here,4,0\n",
                "line 3: \"here\" is not a pointer",
            ),
            ("1,2,allocate,0x10,-4,0\n", "\"-4\" is not a size"),
            ("1,2,jump,0x10,4,0\n", "line 2: \"jump\" is not an action"),
            ("\n1,2\n", "line 3: \"\" is not an action"),
            (&long, "line 2: it is longer than 4096 bytes"),
            ("", "it contains no allocation"),
        ] {
            let error = format!("{:#}", log(rows).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
        let error = from_log(&b"a,b\n"[..], &mut |_| Ok(()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 1: it is \"a,b\", not Thread,Time"),
            "{error}"
        );
    }

    #[test]
    fn a_snapshot_of_pytorch_is_read() {
        // pickle.dumps({'segments': [], 'device_traces': [[], [
        //   {'action': 'segment_alloc', 'addr': 4096, 'size': 2097152, 'stream': 0},
        //   {'action': 'alloc', 'addr': 4096, 'size': 512, 'stream': 0},
        //   {'action': 'free_requested', 'addr': 4096, 'size': 512, 'stream': 0},
        //   {'action': 'free_completed', 'addr': 4096, 'size': 512, 'stream': 0}]]})
        let bytes = include_bytes!("snapshot.pickle");
        let mut making = TraceBuilder::default();
        from_snapshot(bytes, &mut |row| making.row(&row)).unwrap();
        let trace = making.trace;
        let (block, stream) = (0, 0);
        assert_eq!(
            trace.ops,
            [
                TraceOp::Allocate {
                    block,
                    bytes: 512,
                    stream
                },
                TraceOp::Free { block, stream },
            ]
        );
    }
}
