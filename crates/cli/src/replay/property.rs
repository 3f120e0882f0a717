//! The property of any trace and of any pickle; mutations and cargo-fuzz both call it.

use super::html::Timeline;
use super::row::{TraceReading, TraceRow};
use super::snapshot::MemorySnapshot;
use super::trace::TraceBuilder;
use super::{history, html, log};

type Rows<'r> = &'r mut dyn FnMut(&TraceRow) -> anyhow::Result<()>;

/// Reads all that can be made of an input; what was read must be within the input's size.
fn use_all(len: usize, read: &dyn Fn(bool, Rows<'_>) -> anyhow::Result<TraceReading>) {
    let (mut timeline, mut rows) = (Timeline::default(), 0);
    let drawn = read(true, &mut |row| {
        rows += 1;
        timeline.add(row);
        Ok(())
    });
    assert!(rows <= len, "{rows} rows of {len} bytes");
    let (mut snapshot, mut traces) = (MemorySnapshot::default(), TraceBuilder::default());
    let read = read(false, &mut |row| {
        snapshot.add(*row);
        traces.row(row)
    });
    assert_eq!(drawn.is_ok(), read.is_ok());
    let Ok(reading) = drawn else {
        return;
    };
    let mut page = Vec::new();
    html::write(timeline, &reading, "name", &mut page).unwrap();
    assert!(page.len() < 64 << 20);
    let mut pickle = Vec::new();
    let written = snapshot.write(&mut pickle).unwrap();
    assert!(written.events <= rows);
    if written.events > 0 {
        history::read(&pickle, false, &mut |_| Ok(())).ok();
    }
    for trace in traces.finish() {
        trace.peak_live_bytes();
    }
}

/// Reads `bytes` as a log of allocations.
pub(crate) fn holds_for_trace(bytes: &[u8]) {
    use_all(bytes.len(), &|_, each| log::read(bytes, each));
}

/// Reads `bytes` as a memory snapshot of PyTorch.
pub(crate) fn holds_for_pickle(bytes: &[u8]) {
    use_all(bytes.len(), &|stacks, each| {
        history::read(bytes, stacks, each)
    });
}
