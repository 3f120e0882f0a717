//! Mutated traces and pickles: read or refused, by every consumer of rows.

use fercuda_trials::{Work, corpus, try_mutations};

use super::html::Timeline;
use super::row::{TraceReading, TraceRow};
use super::snapshot::MemorySnapshot;
use super::trace::TraceBuilder;
use super::{history, html, log};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

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
        super::peak_live_bytes(&trace);
    }
}

#[test]
fn mutated_traces_are_read_or_refused() {
    const WORK: Work = Work {
        name: "traces",
        least: 300,
        ci_seconds: 2,
        soak: 4_000_000,
    };
    try_mutations(ROOT, WORK, &corpus(ROOT, WORK.name), |bytes| {
        use_all(bytes.len(), &|_, each| log::read(bytes, each));
    });
}

#[test]
fn mutated_pickles_are_read_or_refused() {
    const WORK: Work = Work {
        name: "pickles",
        least: 300,
        ci_seconds: 2,
        soak: 4_000_000,
    };
    try_mutations(ROOT, WORK, &corpus(ROOT, WORK.name), |bytes| {
        use_all(bytes.len(), &|stacks, each| {
            history::read(bytes, stacks, each)
        });
    });
}
