//! Keys of the graph cache.

use std::hash::Hash;

/// Key of a cached graph. [`GraphKey`] is one; a program may define its own.
///
/// Every replay hashes and compares a key, so a key is best a few numbers.
pub trait Key: Eq + Hash + Clone {
    /// Generation of the memory that the graph refers to;
    /// [`GraphCache::invalidate_generation`](crate::GraphCache::invalidate_generation) selects by
    /// it.
    fn generation(&self) -> u64;
}

/// A key of numbers, all of which the program chooses. It is small enough for the fast path of a
/// replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Generation of the memory that the graph refers to: another one each time that it moves.
    pub generation: u64,
    /// Kind of the work.
    pub kind: u32,
    /// Size class of the work: the graph is captured for the largest one of it.
    pub bucket: u32,
    /// Whatever else distinguishes graphs, such as a program's number or an element type's.
    pub words: [u64; 2],
}

impl Key for GraphKey {
    fn generation(&self) -> u64 {
        self.generation
    }
}
