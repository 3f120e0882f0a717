//! Sparse table that allocates each piece on first access.

use std::sync::OnceLock;

/// `EACH` values in one piece.
#[derive(Debug)]
pub(crate) struct LazyTable<T, const EACH: u32> {
    pieces: Box<[OnceLock<Box<[T]>>]>,
    count: u32,
}

impl<T, const EACH: u32> LazyTable<T, EACH> {
    /// Creates a table of `count` values, none of which is allocated yet.
    pub(crate) fn new(count: u32) -> Self {
        let pieces = count.div_ceil(EACH);
        Self {
            pieces: (0..pieces).map(|_| OnceLock::new()).collect(),
            count,
        }
    }

    /// Returns for how many values there is room.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Returns a value. If its piece is not allocated yet, all values in it are created.
    ///
    /// # Panics
    /// If `at` is beyond the table.
    pub(crate) fn of(&self, at: u32, make: impl Fn(u32) -> T) -> &T {
        let first = at / EACH * EACH;
        let piece = || {
            (first..self.count.min(first.saturating_add(EACH)))
                .map(make)
                .collect()
        };
        &self.pieces[(at / EACH) as usize].get_or_init(piece)[(at - first) as usize]
    }

    /// Returns a value, if its piece is allocated.
    pub(crate) fn known(&self, at: u32) -> Option<&T> {
        self.pieces[(at / EACH) as usize]
            .get()
            .map(|piece| &piece[(at % EACH) as usize])
    }
}
