//! `fercuda replay --html`: a memory timeline in one HTML file that loads nothing.
//!
//! Invariant: the output depends on the trace alone, and its size is bounded whatever the trace's
//! length. Names from a trace are text in it, never markup or code.

mod columns;
mod page;
mod rectangles;
#[cfg(test)]
mod tests;
mod timeline;

pub(super) use page::write;
pub(super) use timeline::Timeline;
