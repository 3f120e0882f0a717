//! The source of a pool's memory.
//!
//! Elsewhere: when memory is added and removed ([`crate::growth`]).

use crate::blocks::Span;

/// Why memory cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrowthRefused(pub String);

/// The source of the pool's memory.
pub trait MemoryBacking: Send {
    /// The smallest amount of memory that can be added or removed.
    fn piece_bytes(&self) -> u64;

    /// The alignment of growths.
    fn align_bytes(&self) -> u64 {
        self.piece_bytes()
    }

    /// Whether a growth is never merged with memory that it happens to be adjacent to, as separate
    /// allocations of the driver's are not.
    fn is_apart(&self) -> bool {
        false
    }

    /// The bytes that a growth by `bytes` actually adds.
    fn rounded(&self, bytes: u64) -> u64;

    /// How many of them need new physical memory.
    fn new_bytes(&self, bytes: u64) -> u64;

    /// The start address of a growth by `bytes`, already rounded, if known.
    fn site(&self, bytes: u64) -> Option<u64>;

    /// Adds memory of `bytes`, already rounded, at its site.
    ///
    /// # Errors
    /// [`GrowthRefused`]; then nothing was added.
    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused>;

    /// The part of `span` that can be removed by itself.
    fn separable(&self, span: Span) -> Option<Span>;

    /// Unmaps a separable span. Its physical memory is kept as spare, for the next growth.
    fn shrink(&mut self, span: Span);

    /// Returns spare physical memory to the driver, except what a growth by `but_for` bytes would
    /// use; returns the bytes released.
    fn release(&mut self, but_for: u64) -> u64;
}
