//! Reader of PyTorch memory snapshots: the history of each device's allocator, and the blocks
//! that were live before it.
//!
//! A block that the snapshot shows as live, and whose allocation is not in the history, was
//! allocated before the recording began.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result, bail};

use super::pickle::{Pickle, PickleValue};
use super::row::{
    DEVICES, LastLine, NameTable, RowVisitor, TraceAction, TraceReading, TraceRow, cut,
};

/// The tenant of all blocks of a snapshot.
const TENANT: &str = "PyTorch";
/// Frames of a call stack that are kept, and bytes of each of their texts.
const FRAMES: usize = 32;
const FRAME_BYTES: usize = 120;

/// State while a snapshot is read.
struct HistoryReader<'p, 'b> {
    pickle: &'p Pickle<'b>,
    names: NameTable,
    tenant: u32,
    /// Stacks by the list of frames, which events share. `None`: stacks are not read.
    stacks: Option<HashMap<PickleList, Option<u32>>>,
    live: HashSet<(u32, u64)>,
    empty_rows: u64,
    any: bool,
}

/// A list's index in its pickle.
type PickleList = usize;

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
        empty_rows: 0,
        any: false,
    };
    let traces = pickle.get(pickle.root(), "device_traces");
    let traces = pickle.items(traces.unwrap_or(PickleValue::None));
    if traces.len() as u64 > DEVICES {
        bail!("it has {} devices; the maximum is {DEVICES}", traces.len());
    }
    for (device, events) in traces.iter().enumerate() {
        for (number, event) in pickle.items(*events).iter().enumerate() {
            let place = || match device {
                0 => format!("event {number}"),
                _ => format!("event {number} of device {device}"),
            };
            if let Some(row) = reading.event(device as u32, *event).with_context(place)? {
                each(&row).with_context(place)?;
            }
        }
    }
    if !reading.any {
        bail!(
            "it is a pickle without a history of allocations\n\
             try: call torch.cuda.memory._record_memory_history() before the allocations"
        );
    }
    reading.held(traces.len(), each)?;
    Ok(reading
        .names
        .into_reading(LastLine::Whole, reading.empty_rows))
}

impl HistoryReader<'_, '_> {
    fn number(&self, of: PickleValue, name: &str) -> Option<u64> {
        self.pickle.get(of, name)?.number()
    }

    /// An address or a stream, of which negative ones stand for the upper half of the range.
    fn identifier(&self, of: PickleValue, name: &str) -> Option<u64> {
        self.pickle.get(of, name)?.identifier()
    }

    fn text(&self, of: PickleValue, name: &str) -> Option<&str> {
        self.pickle.text(self.pickle.get(of, name)?)
    }

    /// One event's row; `None` if it is not of a block, or of an empty one.
    fn event(&mut self, device: u32, event: PickleValue) -> Result<Option<TraceRow>> {
        // A block freed in its own stream is reusable at once; others wait for
        // `free_completed`, when PyTorch has the block back.
        let (action, name) = match self.text(event, "action") {
            Some("alloc") => (TraceAction::Allocate, "alloc"),
            Some("free_completed") => (TraceAction::Free, "free_completed"),
            Some("oom") => (TraceAction::Fail, "oom"),
            _ => return Ok(None),
        };
        let address = match action {
            TraceAction::Fail => Some(0),
            _ => self.identifier(event, "addr"),
        };
        let (Some(address), Some(bytes)) = (address, self.number(event, "size")) else {
            bail!("{name} has no addr and size");
        };
        let is_empty = match action {
            TraceAction::Fail => false,
            TraceAction::Free => address == 0,
            TraceAction::Allocate | TraceAction::Hold => address == 0 || bytes == 0,
        };
        if is_empty {
            self.empty_rows += 1;
            return Ok(None);
        }
        match action {
            TraceAction::Free => {
                self.live.remove(&(device, address));
            }
            TraceAction::Allocate => {
                self.live.insert((device, address));
                self.any = true;
            }
            TraceAction::Fail | TraceAction::Hold => self.any = true,
        }
        let stack = match action {
            TraceAction::Free => None,
            _ => self.stack(event),
        };
        Ok(Some(TraceRow {
            action,
            device,
            address,
            bytes,
            stream: self.identifier(event, "stream").unwrap_or(0),
            thread: 0,
            time_us: self.number(event, "time_us").unwrap_or(0),
            tenant: self.tenant,
            stack,
        }))
    }

    /// The call stack of an event or a block.
    fn stack(&mut self, of: PickleValue) -> Option<u32> {
        let stacks = self.stacks.as_ref()?;
        let frames = self.pickle.get(of, "frames")?;
        let PickleValue::Items(list) = frames else {
            return None;
        };
        if let Some(known) = stacks.get(&list) {
            return *known;
        }
        let mut text = String::new();
        for frame in self.pickle.items(frames).iter().take(FRAMES) {
            let part = |name| cut(self.text(*frame, name).unwrap_or("?"), FRAME_BYTES);
            let line = self.number(*frame, "line").unwrap_or(0);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{} ({}:{line})", part("name"), part("filename")));
        }
        let number = self.names.stack(text);
        self.stacks.as_mut()?.insert(list, number);
        number
    }

    /// The rows of blocks that the segments have and the history has not.
    fn held(&mut self, devices: usize, each: RowVisitor<'_>) -> Result<()> {
        let pickle = self.pickle;
        let segments = pickle.get(pickle.root(), "segments");
        for segment in pickle.items(segments.unwrap_or(PickleValue::None)) {
            let device = self.number(*segment, "device").unwrap_or(0);
            if device >= devices as u64 {
                continue;
            }
            let mut next = self.identifier(*segment, "address").unwrap_or(0);
            let stream = self.identifier(*segment, "stream").unwrap_or(0);
            let blocks = pickle.get(*segment, "blocks");
            for block in pickle.items(blocks.unwrap_or(PickleValue::None)) {
                // Older snapshots have no address; blocks are in order.
                let address = self.identifier(*block, "address").unwrap_or(next);
                let bytes = self.number(*block, "size").unwrap_or(0);
                next = address.saturating_add(bytes);
                let is_live = self
                    .text(*block, "state")
                    .is_some_and(|it| it.starts_with("active"));
                let is_new = is_live && address != 0 && bytes != 0;
                if !is_new || !self.live.insert((device as u32, address)) {
                    continue;
                }
                let row = TraceRow {
                    action: TraceAction::Hold,
                    device: device as u32,
                    address,
                    bytes,
                    stream,
                    thread: 0,
                    time_us: 0,
                    tenant: self.tenant,
                    stack: self.stack(*block),
                };
                each(&row)?;
            }
        }
        Ok(())
    }
}
