//! Allocation traces: allocations and frees in order, from a log or a PyTorch memory snapshot.
//!
//! Invariant: for any input, reading takes memory proportional to the file, and an error names
//! its position.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, bail};

use super::live::{FreeTarget, LiveBlocks};
use super::row::{TraceAction, TraceRow};

/// One operation. Blocks and streams are numbered from 0 in order of appearance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TraceOp {
    Allocate { block: u32, bytes: u64, stream: u32 },
    Free { block: u32, stream: u32 },
}

/// All operations of one device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AllocationTrace {
    /// The device of the file.
    pub(super) device: u32,
    pub(super) ops: Vec<TraceOp>,
    pub(super) blocks: u32,
    pub(super) streams: u32,
    /// The first of the blocks: live before the trace began.
    pub(super) held: u32,
    /// Frees of addresses that were not allocated.
    pub(super) unmatched: u64,
    /// Failed allocations, which are not among the operations.
    pub(super) failures: u64,
}

impl AllocationTrace {
    /// The most bytes that are live at once.
    pub(super) fn peak_live_bytes(&self) -> u64 {
        let mut sizes = vec![0; self.blocks as usize];
        let (mut live, mut peak) = (0_u64, 0);
        for op in &self.ops {
            match *op {
                TraceOp::Allocate { block, bytes, .. } => {
                    sizes[block as usize] = bytes;
                    live = live.saturating_add(bytes);
                    peak = peak.max(live);
                }
                TraceOp::Free { block, .. } => live = live.saturating_sub(sizes[block as usize]),
            }
        }
        peak
    }
}

/// All operations of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileTraces {
    /// By device; at least one.
    pub(super) devices: Vec<AllocationTrace>,
    /// What was left out, as text.
    pub(super) notes: Vec<String>,
}

/// State while a trace is read.
#[derive(Default)]
pub(super) struct TraceBuilder {
    devices: BTreeMap<u32, DeviceTrace>,
    live: LiveBlocks<u32>,
}

/// One device's trace while it is read.
#[derive(Default)]
struct DeviceTrace {
    trace: AllocationTrace,
    /// Allocations of blocks that were live before the trace began.
    held: Vec<TraceOp>,
    streams: HashMap<u64, u32>,
}

impl TraceBuilder {
    pub(super) fn row(&mut self, row: &TraceRow) -> Result<()> {
        let device = self.devices.entry(row.device).or_default();
        match row.action {
            TraceAction::Allocate => {
                let block = device.allocate(row, false)?;
                self.live.allocate(row.device, row.address, block);
            }
            TraceAction::Hold => {
                let block = device.allocate(row, true)?;
                self.live.allocate(row.device, row.address, block);
            }
            TraceAction::Fail => device.trace.failures += 1,
            TraceAction::Free => {
                let block = match self.live.free(row.device, row.address, row.bytes) {
                    FreeTarget::Live(block) => block,
                    FreeTarget::Earlier => device.allocate(row, true)?,
                    FreeTarget::Unknown => {
                        device.trace.unmatched += 1;
                        return Ok(());
                    }
                };
                let stream = device.stream(row.stream);
                device.trace.ops.push(TraceOp::Free { block, stream });
            }
        }
        Ok(())
    }

    /// The traces by device.
    pub(super) fn finish(self) -> Vec<AllocationTrace> {
        let devices = self.devices.into_iter();
        let traces = devices.map(|(number, device)| {
            let mut trace = device.trace;
            trace.device = number;
            trace.held = device.held.len() as u32;
            trace.streams = device.streams.len() as u32;
            trace.ops.splice(0..0, device.held);
            trace
        });
        traces.collect()
    }
}

impl DeviceTrace {
    fn stream(&mut self, stream: u64) -> u32 {
        let next = self.streams.len() as u32;
        *self.streams.entry(stream).or_insert(next)
    }

    /// Adds an allocation, before all operations if the block was held.
    fn allocate(&mut self, row: &TraceRow, is_held: bool) -> Result<u32> {
        let block = self.trace.blocks;
        let Some(next) = block.checked_add(1) else {
            bail!("there are more than {} allocations", u32::MAX);
        };
        self.trace.blocks = next;
        let op = TraceOp::Allocate {
            block,
            bytes: row.bytes,
            stream: self.stream(row.stream),
        };
        match is_held {
            true => self.held.push(op),
            false => self.trace.ops.push(op),
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::LastLine;
    use super::super::{history, log};
    use super::*;

    /// The trace of the only device of a log.
    fn log(rows: &str) -> Result<AllocationTrace> {
        Ok(log_with_notes(rows)?.0)
    }

    fn log_with_notes(rows: &str) -> Result<(AllocationTrace, Vec<String>)> {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
        let mut making = TraceBuilder::default();
        let reading = log::read(text.as_bytes(), &mut |row| making.row(row))?;
        let [trace] = making.finish().try_into().unwrap();
        Ok((trace, reading.notes()))
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
                // Freed below, and allocated before the trace began.
                allocate(2, 1, 0),
                allocate(0, 400, 0),
                allocate(1, 512, 1),
                TraceOp::Free {
                    block: 0,
                    stream: 1
                },
                TraceOp::Free {
                    block: 2,
                    stream: 0
                },
                // Its free was written late.
                allocate(3, 64, 0),
                TraceOp::Free {
                    block: 1,
                    stream: 1
                },
            ]
        );
        assert_eq!((trace.blocks, trace.held, trace.streams), (4, 1, 2));
        assert_eq!((trace.failures, trace.unmatched), (1, 0));
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
        let error = log::read(&b"a,b\n"[..], &mut |_| Ok(()))
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
        history::read(bytes, false, &mut |row| making.row(row)).unwrap();
        // The first device has no events.
        let [trace] = making.finish().try_into().unwrap();
        assert_eq!(trace.device, 1);
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

    #[test]
    fn a_second_free_of_an_address_is_counted() {
        let rows = "1,0,allocate,0x10,4,0\n1,0,free,0x10,4,0\n1,0,free,0x10,4,0\n\
                    1,0,free,0x20,0,0\n";
        let trace = log(rows).unwrap();
        assert_eq!((trace.blocks, trace.ops.len(), trace.unmatched), (1, 2, 2));
    }

    #[test]
    fn a_log_of_frees_alone_has_the_blocks_from_before() {
        let trace = log("1,0,free,0x10,512,0\n1,0,free,0x20,64,0\n").unwrap();
        assert_eq!((trace.blocks, trace.held, trace.ops.len()), (2, 2, 4));
    }

    #[test]
    fn an_incomplete_last_line_is_left_out_and_reported() {
        let whole = "1,0,allocate,0x10,512,0\n";
        for cut in [
            "1,0,allo",
            "1,0,allocate,0x1",
            "1,0,free,0x",
            "1,0,allocate,0x20,51",
        ] {
            let (trace, notes) = log_with_notes(&format!("{whole}{cut}")).unwrap();
            assert_eq!(trace.blocks, 1, "{cut}");
            assert_eq!(
                notes,
                ["the last line is incomplete and was left out"],
                "{cut}"
            );
            // It is an error in any other line.
            assert!(log(&format!("{whole}{cut}\n{whole}")).is_err(), "{cut}");
        }
        // A line with all its cells may be complete without a line end, or cut in the last one.
        let (trace, notes) = log_with_notes(whole.trim_end()).unwrap();
        assert_eq!(trace.blocks, 1);
        assert_eq!(
            notes,
            ["the last line has no end; its last number may be incomplete"]
        );
    }

    #[test]
    fn each_device_has_its_own_operations() {
        let head = "Thread,Time,Action,Pointer,Size,Stream,Device,Tenant\n";
        let rows = "1,0,allocate,0x10,512,0,0,torch\n1,0,allocate,0x10,64,0,1,a,b\n\
                    1,0,free,0x10,512,0,1,\n1,0,allocate failure,(nil),9,0,1,x\n\
                    1,0,allocate,0x20,512,0,0,tor";
        let mut making = TraceBuilder::default();
        let mut tenants = Vec::new();
        let text = format!("{head}{rows}");
        let reading = log::read(text.as_bytes(), &mut |row| {
            tenants.push(row.tenant);
            making.row(row)
        });
        let reading = reading.unwrap();
        // The last line has no end, so its tenant may be cut.
        assert_eq!(reading.tenants, ["torch", "a,b", "(no tenant)", "x", "tor"]);
        assert_eq!(tenants, [0, 1, 2, 3]);
        assert_eq!(reading.last_line, LastLine::Cut);
        let [first, second] = making.finish().try_into().unwrap();
        assert_eq!((first.device, first.blocks, first.failures), (0, 1, 0));
        assert_eq!(first.ops.len(), 1);
        assert_eq!((second.device, second.blocks, second.failures), (1, 1, 1));
        assert_eq!(second.ops.len(), 2);
        let wrong = format!("{head}1,0,allocate,0x10,512,0,64,torch\n");
        let error = log::read(wrong.as_bytes(), &mut |_| Ok(())).unwrap_err();
        assert!(format!("{error:#}").contains("line 2: \"64\" is not a device"));
    }
}
