//! Options and result of a capture.

use std::time::Duration;

use fercuda_cuda::CaptureMode;

/// Options of a capture.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// What the capture forbids on other threads and streams. Default: nothing, since libraries
    /// load code and allocate memory when they are first called.
    pub mode: CaptureMode,
    /// Size of the arena's first chunk. 0 lets it grow from small; best is the
    /// [`RecordedGraph::arena_peak_bytes`] of an earlier capture of the same work.
    pub arena_bytes: u64,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self {
            mode: CaptureMode::Relaxed,
            arena_bytes: 0,
        }
    }
}

/// Result of a capture.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RecordedGraph {
    /// Number of graph nodes.
    pub nodes: usize,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Peak of the bytes allocated from it.
    pub arena_peak_bytes: u64,
    /// Size that the entry counts as: the arena, and the graph itself by its nodes.
    pub bytes: u64,
    /// Whether an existing graph was updated, rather than instantiated anew.
    pub updated: bool,
    /// Host time of the capture.
    pub capture: Duration,
    /// Host time of the update or instantiation.
    pub instantiate: Duration,
    /// Host time of the upload to the device.
    pub upload: Duration,
}
