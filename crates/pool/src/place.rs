//! Places where blocks are taken and freed.
//!
//! Elsewhere: what a place means for the reuse of a block ([`crate::order`]).

/// A stream, by a number that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Where a block is taken or freed: in a stream, or anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolPlace {
    /// In the order of a stream.
    Stream(StreamId),
    /// In no stream's order: taken for work anywhere, the host's included; freed behind all work
    /// queued so far.
    Anywhere,
}
