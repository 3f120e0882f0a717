//! Errors of captures and graph caches.

use crate::account::LimitExceeded;

/// Error of capturing, keeping or replaying a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The driver's error, or an invalid call of it.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// The graph exceeds the whole budget.
    #[error(
        "a graph of {nodes} nodes with an arena of {arena_bytes} bytes counts as {bytes} bytes, but the budget is {budget_bytes}\n\
         try: a larger budget, or memory of the session in place of the arena's"
    )]
    TooLarge {
        /// Size that it counts as.
        bytes: u64,
        /// The part allocated by the capture.
        arena_bytes: u64,
        /// Number of graph nodes.
        nodes: usize,
        /// Budget of the cache.
        budget_bytes: u64,
    },
    /// The key was invalidated during the capture, so the graph may refer to outdated memory.
    #[error(
        "the key was invalidated while its graph was captured\ntry: to capture it again, with the current memory"
    )]
    Invalidated,
    /// The size of an allocation overflows.
    #[error("{len} values of {each} bytes exceed the address space")]
    Size {
        /// Number of values.
        len: usize,
        /// The size of each.
        each: usize,
    },
    /// The allocation exceeds the limit of the session that owns the cache.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// The session that owned the cache has ended.
    #[error("the session of these graphs has ended\ntry: another session's")]
    Ended,
    /// A field of another layout, or an index out of bounds.
    #[error("an argument block has no such value: {why}\ntry: a field of the block's own layout")]
    Field {
        /// The cause.
        why: String,
    },
}
