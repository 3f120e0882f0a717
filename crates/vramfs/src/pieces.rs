//! A table of which only parts are ever used: it comes in pieces, each with the first of it that is asked for.

use std::sync::OnceLock;

/// `EACH` values in one piece.
#[derive(Debug)]
pub(crate) struct LazyTable<T, const EACH: u32> {
    pieces: Box<[OnceLock<Box<[T]>>]>,
    count: u32,
}

impl<T, const EACH: u32> LazyTable<T, EACH> {
    /// Room for so many, none of which is there yet.
    pub(crate) fn new(count: u32) -> Self {
        let pieces = count.div_ceil(EACH);
        Self {
            pieces: (0..pieces).map(|_| OnceLock::new()).collect(),
            count,
        }
    }

    /// For how many there is room.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// One of them. If its piece is not there yet, all that are in it are made.
    ///
    /// # Panics
    /// If it is beyond the room.
    pub(crate) fn of(&self, at: u32, make: impl Fn(u32) -> T) -> &T {
        let first = at / EACH * EACH;
        let piece = || {
            (first..self.count.min(first.saturating_add(EACH)))
                .map(make)
                .collect()
        };
        &self.pieces[(at / EACH) as usize].get_or_init(piece)[(at - first) as usize]
    }

    /// One of them, if its piece is there.
    pub(crate) fn known(&self, at: u32) -> Option<&T> {
        self.pieces[(at / EACH) as usize]
            .get()
            .map(|piece| &piece[(at % EACH) as usize])
    }
}
