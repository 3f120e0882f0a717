//! Conversion of a trace to a PyTorch memory snapshot: what `torch.cuda.memory._snapshot()`
//! returns, as a pickle, for PyTorch's viewer.
//!
//! Events are the trace's. Segments are runs of adjacent live blocks of one stream: free memory
//! of a pool is not in a trace.
//!
//! Invariant: the output can be read by `pickle`, by Python's, and by readers without integers
//! of more than eight bytes, such as PyTorch's viewer.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

use super::row::{TraceAction, TraceRow};

/// Block sizes are multiples of this; adjacent blocks may be up to twice as far apart.
const ROUND_BYTES: u64 = 256;
/// The largest size that is written.
const LARGEST: u64 = i64::MAX as u64;

/// The live blocks at the end of a trace.
#[derive(Debug, Default)]
pub(super) struct MemorySnapshot {
    rows: Vec<TraceRow>,
    /// By device and address. Lines of several threads may be out of order, so an address can be
    /// allocated again before its free.
    live: BTreeMap<(u32, u64), VecDeque<SnapshotBlock>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SnapshotBlock {
    requested_bytes: u64,
    stream: u64,
}

/// Adjacent blocks, by address.
#[derive(Debug, PartialEq, Eq)]
struct SnapshotSegment {
    device: u32,
    stream: u64,
    blocks: Vec<(u64, SnapshotBlock)>,
}

/// Counts of what was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SnapshotCounts {
    pub(super) events: usize,
    pub(super) blocks: usize,
    pub(super) segments: usize,
    pub(super) live_bytes: u64,
}

impl MemorySnapshot {
    pub(super) fn add(&mut self, row: TraceRow) {
        let key = (row.device, row.address);
        match row.action {
            TraceAction::Allocate | TraceAction::Hold => {
                self.live.entry(key).or_default().push_back(SnapshotBlock {
                    requested_bytes: row.bytes.min(LARGEST),
                    stream: row.stream,
                });
            }
            TraceAction::Free => {
                if let Some(blocks) = self.live.get_mut(&key) {
                    blocks.pop_front();
                    if blocks.is_empty() {
                        self.live.remove(&key);
                    }
                }
            }
            TraceAction::Fail => {}
        }
        // A block from before the trace has no event.
        if row.action != TraceAction::Hold {
            self.rows.push(row);
        }
    }

    /// Live blocks, by device and address.
    fn blocks(&self) -> impl Iterator<Item = (u32, u64, SnapshotBlock)> {
        let all = self.live.iter();
        all.filter_map(|((device, address), blocks)| Some((*device, *address, *blocks.back()?)))
    }

    fn segments(&self) -> Vec<SnapshotSegment> {
        let mut segments: Vec<SnapshotSegment> = Vec::new();
        let mut end = 0;
        for (device, address, block) in self.blocks() {
            match segments.last_mut() {
                Some(last)
                    if last.device == device && last.stream == block.stream && address <= end =>
                {
                    last.blocks.push((address, block));
                }
                _ => segments.push(SnapshotSegment {
                    device,
                    stream: block.stream,
                    blocks: vec![(address, block)],
                }),
            }
            let size = block.requested_bytes.max(1);
            end = rounded(address.saturating_add(size), 2 * ROUND_BYTES);
        }
        segments
    }

    /// The rows of each device, from device 0 to the last that has any.
    fn devices(&self) -> Vec<Vec<&TraceRow>> {
        let mut devices = vec![Vec::new()];
        for row in &self.rows {
            let at = row.device as usize;
            if at >= devices.len() {
                devices.resize(at + 1, Vec::new());
            }
            devices[at].push(row);
        }
        devices
    }

    /// Writes the pickle.
    pub(super) fn write(&self, out: impl Write) -> io::Result<SnapshotCounts> {
        let mut pickle = PickleWriter {
            out,
            names: Vec::new(),
        };
        let segments = self.segments();
        pickle.begin()?;
        pickle.dictionary(|pickle| {
            pickle.entry("segments", |pickle| {
                pickle.list(&segments, PickleWriter::segment)
            })?;
            pickle.entry("device_traces", |pickle| {
                pickle.list(&self.devices(), |pickle, rows| {
                    pickle.list(rows, |pickle, row| pickle.events(row))
                })
            })
        })?;
        pickle.end()?;
        Ok(SnapshotCounts {
            events: self.rows.len(),
            blocks: self.live.len(),
            segments: segments.len(),
            live_bytes: sum(self.blocks().map(|(_, _, block)| block.requested_bytes)),
        })
    }
}

/// The next multiple of `unit`, at most [`LARGEST`].
fn rounded(bytes: u64, unit: u64) -> u64 {
    let rounded = bytes.checked_next_multiple_of(unit);
    rounded.unwrap_or(LARGEST).min(LARGEST)
}

/// Adds up with saturation.
fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add).min(LARGEST)
}

impl SnapshotSegment {
    /// Each block with its size: up to the next one, the last rounded up.
    fn sizes(&self) -> impl Iterator<Item = (u64, u64, SnapshotBlock)> {
        self.blocks
            .iter()
            .enumerate()
            .map(|(at, (address, block))| {
                let next = self.blocks.get(at + 1).map(|(next, _)| next - address);
                let alone = || rounded(block.requested_bytes, ROUND_BYTES);
                (*address, next.unwrap_or_else(alone), *block)
            })
    }
}

/// Writer for the subset of Python's pickle format that a snapshot needs. A name is written
/// once, and then referred to by its memo index.
struct PickleWriter<W> {
    out: W,
    names: Vec<&'static str>,
}

impl<W: Write> PickleWriter<W> {
    fn begin(&mut self) -> io::Result<()> {
        // PROTO 4: strings with a length of one byte.
        self.out.write_all(b"\x80\x04")
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    fn text(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(at) = self.names.iter().position(|name| *name == text) {
            // BINGET
            return self.out.write_all(&[b'h', at as u8]);
        }
        // SHORT_BINUNICODE, BINPUT: there are fewer than 256 names.
        self.out.write_all(&[0x8c, text.len() as u8])?;
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(&[b'q', self.names.len() as u8])?;
        self.names.push(text);
        Ok(())
    }

    /// An integer in as few bytes as it needs. From 2^63 on, as only addresses and streams can
    /// be, it is the negative one with the same 64 bits.
    fn number(&mut self, number: u64) -> io::Result<()> {
        // BININT1, BININT2, BININT
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[b'K', small]);
        }
        if let Ok(small) = u16::try_from(number) {
            self.out.write_all(b"M")?;
            return self.out.write_all(&small.to_le_bytes());
        }
        let number = number as i64;
        if let Ok(small) = i32::try_from(number) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&small.to_le_bytes());
        }
        // LONG1 in two's complement, of which the sign is the highest bit.
        let magnitude = if number < 0 { !number } else { number };
        let bits = i64::BITS - magnitude.leading_zeros();
        let len = bits as usize / 8 + 1;
        self.out.write_all(&[0x8a, len as u8])?;
        self.out.write_all(&number.to_le_bytes()[..len])
    }

    fn dictionary(&mut self, entries: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        entries(self)?;
        self.out.write_all(b"u")
    }

    fn entry(
        &mut self,
        name: &'static str,
        value: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.text(name)?;
        value(self)
    }

    /// A list of what `write` writes for each item, which may be several values.
    fn list<T>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"](")?;
        for item in items {
            write(self, item)?;
        }
        self.out.write_all(b"e")
    }

    fn numbers(&mut self, entries: &[(&'static str, u64)]) -> io::Result<()> {
        for (name, number) in entries {
            self.entry(name, |pickle| pickle.number(*number))?;
        }
        Ok(())
    }

    /// An empty stack trace.
    fn no_frames(&mut self) -> io::Result<()> {
        self.entry("frames", |pickle| pickle.list(&[(); 0], |_, ()| Ok(())))
    }

    fn segment(&mut self, segment: &SnapshotSegment) -> io::Result<()> {
        let address = segment.blocks.first().map_or(0, |(address, _)| *address);
        let total = sum(segment.sizes().map(|(_, size, _)| size));
        let requested = sum(segment.blocks.iter().map(|(_, it)| it.requested_bytes));
        let sizes: Vec<_> = segment.sizes().collect();
        self.dictionary(|pickle| {
            pickle.numbers(&[
                ("device", u64::from(segment.device)),
                ("address", address),
                ("total_size", total),
                ("allocated_size", total),
                ("active_size", total),
                ("requested_size", requested),
                ("stream", segment.stream),
            ])?;
            // PyTorch's small segments are 2 MiB.
            let kind = if total > 2 << 20 { "large" } else { "small" };
            pickle.entry("segment_type", |pickle| pickle.text(kind))?;
            pickle.entry("segment_pool_id", |pickle| {
                pickle.number(0)?;
                pickle.number(0)?;
                // TUPLE2
                pickle.out.write_all(b"\x86")
            })?;
            // NEWFALSE
            pickle.entry("is_expandable", |pickle| pickle.out.write_all(b"\x89"))?;
            pickle.no_frames()?;
            pickle.entry("blocks", |pickle| {
                pickle.list(&sizes, |pickle, (address, size, block)| {
                    pickle.dictionary(|pickle| {
                        pickle.numbers(&[
                            ("address", *address),
                            ("size", *size),
                            ("requested_size", block.requested_bytes),
                        ])?;
                        pickle.entry("state", |pickle| pickle.text("active_allocated"))?;
                        pickle.no_frames()
                    })
                })
            })
        })
    }

    /// One event for an allocation, made or failed; two for a free, requested and completed, which
    /// the trace does not distinguish.
    fn events(&mut self, row: &TraceRow) -> io::Result<()> {
        let (actions, place): (&[&'static str], _) = match row.action {
            TraceAction::Allocate => (&["alloc"], ("addr", row.address)),
            TraceAction::Free => (&["free_requested", "free_completed"], ("addr", row.address)),
            // A trace does not record how much memory the device had left.
            TraceAction::Fail => (&["oom"], ("device_free", 0)),
            TraceAction::Hold => return Ok(()),
        };
        for action in actions {
            self.dictionary(|pickle| {
                pickle.entry("action", |pickle| pickle.text(action))?;
                pickle.numbers(&[
                    place,
                    ("size", row.bytes.min(LARGEST)),
                    ("stream", row.stream),
                    ("time_us", row.time_us),
                ])?;
                pickle.no_frames()
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::pickle::{Pickle, PickleValue};
    use super::super::random;
    use super::*;

    /// A dictionary's number under a key.
    fn number(pickle: &Pickle<'_>, value: PickleValue, name: &str) -> u64 {
        let value = pickle.get(value, name).unwrap();
        pickle.identifier(value).unwrap()
    }

    /// A row of device 0.
    fn row(action: TraceAction, address: u64, bytes: u64, stream: u64) -> TraceRow {
        TraceRow {
            action,
            device: 0,
            address,
            bytes,
            stream,
            thread: 1,
            time_us: 0,
            tenant: 0,
            stack: None,
        }
    }

    fn list(pickle: &Pickle<'_>, value: PickleValue, name: &str) -> Vec<PickleValue> {
        pickle.items(pickle.get(value, name).unwrap()).collect()
    }

    #[test]
    fn a_written_snapshot_reads_back_for_any_trace() {
        let mut random = random();
        for _ in 0..100 {
            let mut snapshot = MemorySnapshot::default();
            let mut model: HashMap<u64, (u64, u64)> = HashMap::new();
            let mut events = Vec::new();
            for time_us in 0..random.u64(..200) {
                // Slots of 64 KiB, high in the address space.
                let address = (0xffff << 48) + (random.u64(..64) << 16);
                let (bytes, stream) = match model.remove(&address) {
                    Some((bytes, stream)) => {
                        events.extend([("free_requested", address), ("free_completed", address)]);
                        (bytes, stream)
                    }
                    None => {
                        let block = (random.u64(1..=1 << 16), random.u64(..3) << 60);
                        model.insert(address, block);
                        events.push(("alloc", address));
                        block
                    }
                };
                let action = match model.contains_key(&address) {
                    true => TraceAction::Allocate,
                    false => TraceAction::Free,
                };
                let row = row(action, address, bytes, stream);
                snapshot.add(TraceRow { time_us, ..row });
            }
            let mut bytes = Vec::new();
            let written = snapshot.write(&mut bytes).unwrap();
            let pickle = Pickle::read(&bytes).unwrap();
            let root = pickle.root();

            let traces = list(&pickle, root, "device_traces");
            let events_read: Vec<(&str, u64)> = pickle
                .items(traces[0])
                .map(|event| {
                    let action = pickle.text(pickle.get(event, "action").unwrap());
                    (action.unwrap(), number(&pickle, event, "addr"))
                })
                .collect();
            assert_eq!((traces.len(), events_read), (1, events));

            let segments = list(&pickle, root, "segments");
            assert_eq!(segments.len(), written.segments);
            let mut sum = 0;
            for segment in &segments {
                let of = |name| number(&pickle, *segment, name);
                let blocks = list(&pickle, *segment, "blocks");
                let mut at = of("address");
                for block in &blocks {
                    let (address, size) = (
                        number(&pickle, *block, "address"),
                        number(&pickle, *block, "size"),
                    );
                    let requested = number(&pickle, *block, "requested_size");
                    // Without gaps, and each block is live in the segment's stream.
                    assert_eq!(address, at);
                    assert_eq!(model.remove(&address), Some((requested, of("stream"))));
                    assert!(size >= requested && size < requested + 512, "{size}");
                    (at, sum) = (at + size, sum + requested);
                }
                assert_eq!(at - of("address"), of("total_size"));
                assert_eq!(of("allocated_size"), of("total_size"));
            }
            assert_eq!((model.len(), sum), (0, written.live_bytes));
        }
    }

    #[test]
    fn an_address_reallocated_before_its_free_is_live_once() {
        let mut snapshot = MemorySnapshot::default();
        for (action, bytes) in [
            (TraceAction::Allocate, 300),
            (TraceAction::Allocate, 500),
            (TraceAction::Free, 300),
        ] {
            snapshot.add(row(action, 4096, bytes, 1));
        }
        let written = snapshot.write(Vec::new()).unwrap();
        assert_eq!((written.blocks, written.live_bytes), (1, 500));
    }

    #[test]
    fn devices_failures_and_blocks_from_before_are_written() {
        let mut snapshot = MemorySnapshot::default();
        snapshot.add(row(TraceAction::Hold, 4096, 100, 0));
        snapshot.add(row(TraceAction::Fail, 0, 1 << 40, 0));
        snapshot.add(TraceRow {
            device: 2,
            ..row(TraceAction::Allocate, 4096, 7, 0)
        });
        let mut bytes = Vec::new();
        let written = snapshot.write(&mut bytes).unwrap();
        assert_eq!(
            (written.events, written.blocks, written.segments),
            (2, 2, 2)
        );
        let pickle = Pickle::read(&bytes).unwrap();
        let traces = list(&pickle, pickle.root(), "device_traces");
        let lens: Vec<usize> = traces.iter().map(|it| pickle.items(*it).count()).collect();
        assert_eq!(lens, [1, 0, 1]);
        let failure = pickle.items(traces[0]).next().unwrap();
        let action = pickle.get(failure, "action").unwrap();
        assert_eq!(pickle.text(action), Some("oom"));
        assert_eq!(number(&pickle, failure, "size"), 1 << 40);
        let segments = list(&pickle, pickle.root(), "segments");
        let devices: Vec<u64> = segments
            .iter()
            .map(|it| number(&pickle, *it, "device"))
            .collect();
        assert_eq!(devices, [0, 2]);
    }

    /// Every integer of a pickle that this module wrote, read without the reader of `pickle`:
    /// as PyTorch's viewer does, which takes no more than eight bytes.
    fn integers(bytes: &[u8]) -> Vec<i64> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let (operand, len, is_signed) = match bytes[at] {
                b'K' => (at + 1, 1, false),
                b'M' => (at + 1, 2, false),
                b'J' => (at + 1, 4, true),
                0x8a => (at + 2, usize::from(bytes[at + 1]), true),
                0x8c => {
                    at += 2 + usize::from(bytes[at + 1]);
                    continue;
                }
                // PROTO, BINPUT and BINGET have one byte, the others none.
                0x80 | b'q' | b'h' => {
                    at += 2;
                    continue;
                }
                b'}' | b']' | b'(' | b'u' | b'e' | 0x86 | 0x89 | b'.' => {
                    at += 1;
                    continue;
                }
                other => panic!("opcode {other:#04x} at byte {at}"),
            };
            assert!((1..=8).contains(&len), "an integer of {len} bytes at {at}");
            let digits = &bytes[operand..operand + len];
            let fill = is_signed && digits[len - 1] >= 0x80;
            let mut all = [if fill { 0xff } else { 0 }; 8];
            all[..len].copy_from_slice(digits);
            found.push(i64::from_le_bytes(all));
            at = operand + len;
        }
        found
    }

    #[test]
    fn integers_take_at_most_eight_bytes_and_keep_their_value() {
        let mut values: Vec<u64> = (0..64)
            .flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])
            .collect();
        values.extend([u64::MAX - 1, u64::MAX]);
        for value in values {
            let mut snapshot = MemorySnapshot::default();
            snapshot.add(row(TraceAction::Allocate, value, value, value));
            let mut bytes = Vec::new();
            snapshot.write(&mut bytes).unwrap();
            let found = integers(&bytes);
            // The event is last: address, size, stream and time.
            let size = value.min(LARGEST) as i64;
            let event = [value as i64, size, value as i64, 0];
            assert!(found.ends_with(&event), "{value:#x}: {found:?}");
            let pickle = Pickle::read(&bytes).unwrap();
            let traces = list(&pickle, pickle.root(), "device_traces");
            let event = pickle.items(traces[0]).next().unwrap();
            assert_eq!(number(&pickle, event, "addr"), value);
        }
    }
}
