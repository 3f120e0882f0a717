//! Conversion of a trace to a PyTorch memory snapshot: what `torch.cuda.memory._snapshot()`
//! returns, as a pickle, for PyTorch's viewer.
//!
//! Events are the trace's. Segments are runs of adjacent live blocks of one stream: free memory
//! of a pool is not in a trace, and nor is the device, so everything is on device 0.
//!
//! Invariant: the output can be read by `pickle`, and by Python's.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

use super::trace::TraceRow;

/// Block sizes are multiples of this; adjacent blocks may be up to twice as far apart.
const ROUND_BYTES: u64 = 256;

/// The live blocks at the end of a trace.
#[derive(Debug, Default)]
pub(super) struct MemorySnapshot {
    rows: Vec<TraceRow>,
    /// By address. Lines of several threads may be out of order, so an address can be allocated
    /// again before its free.
    live: BTreeMap<u64, VecDeque<SnapshotBlock>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SnapshotBlock {
    requested_bytes: u64,
    stream: u64,
}

/// Adjacent blocks, by address.
#[derive(Debug, PartialEq, Eq)]
struct SnapshotSegment {
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
        let blocks = self.live.entry(row.address).or_default();
        if row.is_free {
            blocks.pop_front();
        } else {
            blocks.push_back(SnapshotBlock {
                requested_bytes: row.bytes,
                stream: row.stream,
            });
        }
        if blocks.is_empty() {
            self.live.remove(&row.address);
        }
        self.rows.push(row);
    }

    /// Live blocks, by address.
    fn blocks(&self) -> impl Iterator<Item = (u64, SnapshotBlock)> {
        let all = self.live.iter();
        all.filter_map(|(address, blocks)| Some((*address, *blocks.back()?)))
    }

    fn segments(&self) -> Vec<SnapshotSegment> {
        let mut segments: Vec<SnapshotSegment> = Vec::new();
        let mut end = 0;
        for (address, block) in self.blocks() {
            match segments.last_mut() {
                Some(last) if last.stream == block.stream && address <= end => {
                    last.blocks.push((address, block));
                }
                _ => segments.push(SnapshotSegment {
                    stream: block.stream,
                    blocks: vec![(address, block)],
                }),
            }
            let size = block.requested_bytes.max(1);
            end = address
                .saturating_add(size)
                .next_multiple_of(2 * ROUND_BYTES);
        }
        segments
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
                pickle.list(&[&self.rows], |pickle, rows| {
                    pickle.list(rows, PickleWriter::events)
                })
            })
        })?;
        pickle.end()?;
        Ok(SnapshotCounts {
            events: self.rows.len(),
            blocks: self.live.len(),
            segments: segments.len(),
            live_bytes: self.blocks().map(|(_, block)| block.requested_bytes).sum(),
        })
    }
}

impl SnapshotSegment {
    /// Each block with its size: up to the next one, the last rounded up.
    fn sizes(&self) -> impl Iterator<Item = (u64, u64, SnapshotBlock)> {
        self.blocks
            .iter()
            .enumerate()
            .map(|(at, (address, block))| {
                let next = self.blocks.get(at + 1).map(|(next, _)| next - address);
                let rounded = || block.requested_bytes.next_multiple_of(ROUND_BYTES);
                (*address, next.unwrap_or_else(rounded), *block)
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

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[b'K', small]);
        }
        // LONG1, with a ninth byte so that the number is not negative.
        self.out.write_all(&[0x8a, 9])?;
        self.out.write_all(&number.to_le_bytes())?;
        self.out.write_all(&[0])
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
        let total: u64 = segment.sizes().map(|(_, size, _)| size).sum();
        let requested: u64 = segment
            .blocks
            .iter()
            .map(|(_, it)| it.requested_bytes)
            .sum();
        let sizes: Vec<_> = segment.sizes().collect();
        self.dictionary(|pickle| {
            pickle.numbers(&[
                ("device", 0),
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

    /// One event for an allocation; two for a free, requested and completed, which the trace does
    /// not distinguish.
    fn events(&mut self, row: &TraceRow) -> io::Result<()> {
        let actions: &[&'static str] = match row.is_free {
            false => &["alloc"],
            true => &["free_requested", "free_completed"],
        };
        for action in actions {
            self.dictionary(|pickle| {
                pickle.entry("action", |pickle| pickle.text(action))?;
                pickle.numbers(&[
                    ("addr", row.address),
                    ("size", row.bytes),
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
        pickle.get(value, name).unwrap().number().unwrap()
    }

    fn list(pickle: &Pickle<'_>, value: PickleValue, name: &str) -> Vec<PickleValue> {
        pickle.items(pickle.get(value, name).unwrap()).to_vec()
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
                snapshot.add(TraceRow {
                    address,
                    bytes,
                    stream,
                    time_us,
                    is_free: !model.contains_key(&address),
                });
            }
            let mut bytes = Vec::new();
            let written = snapshot.write(&mut bytes).unwrap();
            let pickle = Pickle::read(&bytes).unwrap();
            let root = pickle.root();

            let traces = list(&pickle, root, "device_traces");
            let events_read: Vec<(&str, u64)> = pickle
                .items(traces[0])
                .iter()
                .map(|event| {
                    let action = pickle.text(pickle.get(*event, "action").unwrap());
                    (action.unwrap(), number(&pickle, *event, "addr"))
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
        for (is_free, bytes) in [(false, 300), (false, 500), (true, 300)] {
            snapshot.add(TraceRow {
                address: 4096,
                bytes,
                stream: 1,
                time_us: 0,
                is_free,
            });
        }
        let written = snapshot.write(Vec::new()).unwrap();
        assert_eq!((written.blocks, written.live_bytes), (1, 500));
    }
}
