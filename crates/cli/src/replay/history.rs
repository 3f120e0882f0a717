//! Reader of PyTorch memory snapshots: the history of each device's allocator, and the blocks
//! that were live before it.
//!
//! A block that the snapshot shows as live, and whose allocation is not in the history, was
//! allocated before the recording began. A snapshot without a history has such blocks alone, as
//! has the list of segments that `torch.cuda.memory_snapshot()` returns.
//!
//! Invariant: time is linear in the file, also where its parts refer to one list many times.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result, bail};

use super::pickle::{Pickle, PickleValue};
use super::row::{
    DEVICES, LastLine, LeftOut, NameTable, RowVisitor, TraceAction, TraceReading, TraceRow, cut,
};

/// The tenant of all blocks of a snapshot.
const TENANT: &str = "PyTorch";
/// Frames of a call stack that are kept, and bytes of each of their texts.
const FRAMES: usize = 32;
const FRAME_BYTES: usize = 120;
/// Events of PyTorch's allocator that are of no block of the program: a request to free, of
/// which the completion is another event, and those of whole segments.
const NO_BLOCK: [&str; 8] = [
    "free_requested",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "workspace_snapshot",
    "none",
];

/// State while a snapshot is read.
struct HistoryReader<'p, 'b> {
    pickle: &'p Pickle<'b>,
    names: NameTable,
    tenant: u32,
    /// Stacks by the list of frames, which events share. `None`: stacks are not read.
    stacks: Option<HashMap<PickleValue, Option<u32>>>,
    live: HashSet<(u32, u64)>,
    left_out: LeftOut,
    /// Whether there was an event of a block.
    has_history: bool,
}

/// Reads the rows of all devices, one device after the other.
pub(super) fn read(bytes: &[u8], with_stacks: bool, each: RowVisitor<'_>) -> Result<TraceReading> {
    let pickle = Pickle::read(bytes)?;
    let mut names = NameTable::default();
    let mut reading = HistoryReader {
        pickle: &pickle,
        tenant: names.tenant(TENANT),
        names,
        stacks: with_stacks.then(HashMap::new),
        live: HashSet::new(),
        left_out: LeftOut::default(),
        has_history: false,
    };
    let root = pickle.root();
    let [traces, segments] = pickle.fields(root, ["device_traces", "segments"]);
    // The list of segments alone.
    let segments = segments.unwrap_or(root);
    let traces: Vec<PickleValue> = pickle.items(traces.unwrap_or(PickleValue::None)).collect();
    if traces.len() as u64 > DEVICES {
        bail!("it has {} devices; the maximum is {DEVICES}", traces.len());
    }
    for (device, events) in traces.iter().enumerate() {
        let earlier = traces[..device].iter().position(|it| it == events);
        if let Some(earlier) = earlier.filter(|_| pickle.items(*events).next().is_some()) {
            bail!("devices {earlier} and {device} have one history, not one each");
        }
        for (number, event) in pickle.items(*events).enumerate() {
            let place = || match device {
                0 => format!("event {number}"),
                _ => format!("event {number} of device {device}"),
            };
            if let Some(row) = reading.event(device as u32, event).with_context(place)? {
                each(&row).with_context(place)?;
            }
        }
    }
    let held = reading.held(segments, each)?;
    if !reading.has_history && held == 0 {
        bail!(
            "it is a pickle without a history of allocations\n\
             try: call torch.cuda.memory._record_memory_history() before the allocations"
        );
    }
    reading.left_out.is_without_history = !reading.has_history;
    Ok(reading
        .names
        .into_reading(LastLine::Whole, reading.left_out))
}

impl HistoryReader<'_, '_> {
    /// One event's row; `None` if it is not of a block, or of an empty one.
    fn event(&mut self, device: u32, event: PickleValue) -> Result<Option<TraceRow>> {
        let pickle = self.pickle;
        let names = ["action", "addr", "size", "stream", "time_us", "frames"];
        let [action, address, bytes, stream, time, frames] = pickle.fields(event, names);
        // A block freed in its own stream is reusable at once; others wait for
        // `free_completed`, when PyTorch has the block back.
        let (action, name) = match action.and_then(|it| pickle.text(it)) {
            Some("alloc") => (TraceAction::Allocate, "alloc"),
            Some("free_completed") => (TraceAction::Free, "free_completed"),
            Some("oom") => (TraceAction::Fail, "oom"),
            other => {
                let is_known = other.is_some_and(|it| NO_BLOCK.contains(&it));
                self.left_out.unknown_events += u64::from(!is_known);
                return Ok(None);
            }
        };
        let identifier = |it: Option<PickleValue>| it.and_then(|it| pickle.identifier(it));
        let number = |it: Option<PickleValue>| it.and_then(|it| pickle.number(it));
        let address = match action {
            TraceAction::Fail => Some(0),
            _ => identifier(address),
        };
        let (Some(address), Some(bytes)) = (address, number(bytes)) else {
            bail!("{name} has no addr and size");
        };
        let is_empty = match action {
            TraceAction::Fail => false,
            TraceAction::Free => address == 0,
            TraceAction::Allocate | TraceAction::Hold => address == 0 || bytes == 0,
        };
        self.has_history = true;
        if is_empty {
            self.left_out.empty_rows += 1;
            return Ok(None);
        }
        match action {
            TraceAction::Free => {
                self.live.remove(&(device, address));
            }
            TraceAction::Allocate => {
                self.live.insert((device, address));
            }
            TraceAction::Fail | TraceAction::Hold => {}
        }
        let stack = match action {
            TraceAction::Free => None,
            _ => self.stack(frames),
        };
        Ok(Some(TraceRow {
            action,
            device,
            address,
            bytes,
            stream: identifier(stream).unwrap_or(0),
            thread: 0,
            time_us: number(time).unwrap_or(0),
            tenant: self.tenant,
            stack,
        }))
    }

    /// The call stack of an event or a block.
    fn stack(&mut self, frames: Option<PickleValue>) -> Option<u32> {
        let frames = frames?;
        if let Some(known) = self.stacks.as_ref()?.get(&frames) {
            return *known;
        }
        let pickle = self.pickle;
        let mut text = String::new();
        for frame in pickle.items(frames).take(FRAMES) {
            let [name, file, line] = pickle.fields(frame, ["name", "filename", "line"]);
            let part = |it: Option<PickleValue>| {
                let text = it.and_then(|it| pickle.text(it));
                cut(text.unwrap_or("?"), FRAME_BYTES)
            };
            let line = line.and_then(|it| pickle.number(it)).unwrap_or(0);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{} ({}:{line})", part(name), part(file)));
        }
        let number = self.names.stack(text);
        self.stacks.as_mut()?.insert(frames, number);
        number
    }

    /// The rows of blocks that the segments have and the history has not; their number.
    fn held(&mut self, segments: PickleValue, each: RowVisitor<'_>) -> Result<u64> {
        let pickle = self.pickle;
        let mut seen = HashSet::new();
        let mut held = 0;
        for segment in pickle.items(segments) {
            let names = ["device", "address", "stream", "blocks"];
            let [device, address, stream, blocks] = pickle.fields(segment, names);
            // A list of blocks is of one segment, however many refer to it.
            let Some(blocks) = blocks.filter(|it| seen.insert(*it)) else {
                continue;
            };
            let device = device.and_then(|it| pickle.number(it)).unwrap_or(0);
            if device >= DEVICES {
                self.left_out.far_blocks += pickle.items(blocks).count() as u64;
                continue;
            }
            let identifier = |it: Option<PickleValue>| it.and_then(|it| pickle.identifier(it));
            let mut next = identifier(address).unwrap_or(0);
            let stream = identifier(stream).unwrap_or(0);
            for block in pickle.items(blocks) {
                let names = ["address", "size", "state", "frames"];
                let [address, bytes, state, frames] = pickle.fields(block, names);
                // Older snapshots have no address; blocks are in order.
                let address = identifier(address).unwrap_or(next);
                let bytes = bytes.and_then(|it| pickle.number(it)).unwrap_or(0);
                next = address.saturating_add(bytes);
                let state = state.and_then(|it| pickle.text(it));
                let is_live = state.is_some_and(|it| it.starts_with("active"));
                let is_new = is_live && address != 0 && bytes != 0;
                if !is_new || !self.live.insert((device as u32, address)) {
                    continue;
                }
                held += 1;
                each(&TraceRow {
                    action: TraceAction::Hold,
                    device: device as u32,
                    address,
                    bytes,
                    stream,
                    thread: 0,
                    time_us: 0,
                    tenant: self.tenant,
                    stack: self.stack(frames),
                })?;
            }
        }
        Ok(held)
    }
}
