//! Per-thread counter cells that allocations are charged to.
//!
//! A cell belongs to one thread, device, tenant and stream. Its thread alone writes the cell's
//! first cache line, with plain loads and stores; a free by another thread adds to the second line.
//! So threads that free their own blocks share no cache line. Every table a reader shows is a sum
//! over cells, and adds up by construction. A cell's counts grow, and when they move to another
//! cell that cell's counts grow, so if two readings of all cells are equal, nothing changed between
//! them.
//!
//! The first [`SHARED`] cells are shared: one per tenant and device, written by any thread with
//! atomic additions. They hold charges of threads without a cell of their own, and the counts of
//! cells that have been reused. So no byte and no count is lost.
//!
//! A cell that its thread has left is taken over by one compare-and-swap, once all its blocks are
//! freed. After that no other thread writes it: the thread's last stores were released when it
//! left, another thread's by the addition that counts its free, and the new owner acquires both.
//! While the cell is folded into its shared cell its state records that, and readers do not trust
//! the counts.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::format::{CellRow, DEVICES, SHARED};
use crate::word::AtomicWord;

const IN_USE: u64 = 1;
const LEFT: u64 = 2;
const FOLDING: u64 = 3;

/// How many cells a search examines.
const WINDOW: usize = 64;

/// The account a cell belongs to: device, tenant, thread and stream, packed as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccountKey {
    /// Device, tenant and thread.
    pub(crate) packed: u64,
    /// The stream's number.
    pub(crate) stream: u64,
}

impl AccountKey {
    pub(crate) fn new(device: u8, tenant: u8, thread: u64, stream: u64) -> AccountKey {
        AccountKey {
            packed: u64::from(device) | u64::from(tenant) << 8 | thread << 16,
            stream,
        }
    }

    pub(crate) fn device(self) -> usize {
        (self.packed & 0xff) as usize
    }

    pub(crate) fn tenant(self) -> usize {
        (self.packed >> 8 & 0xff) as usize
    }

    /// The lowest 48 bits of the thread's number.
    pub(crate) fn thread(self) -> u64 {
        self.packed >> 16
    }

    /// The index of the shared cell for the same device and tenant.
    pub(crate) fn shared(self) -> usize {
        (self.tenant() * DEVICES + self.device()) % SHARED
    }
}

/// Whether a cell's state word marks it as being folded.
pub(crate) fn is_folding(state: u64) -> bool {
    state & 3 == FOLDING
}

/// Whether a cell's state word marks it as left by its thread.
pub(crate) fn is_left(state: u64) -> bool {
    state & 3 == LEFT
}

impl<T: AtomicWord> CellRow<T> {
    /// Whether the cell belongs to the thread that writes as `writer`.
    #[inline]
    pub(crate) fn is_of(&self, writer: u64) -> bool {
        self.state.load(Relaxed) == in_use(writer)
    }

    pub(crate) fn account_key(&self) -> AccountKey {
        AccountKey {
            packed: self.account_key.load(Relaxed),
            stream: self.stream.load(Relaxed),
        }
    }

    /// Counts an allocation by the cell's own thread.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) {
        grow(&self.allocated_bytes, bytes);
        grow(&self.allocs, 1);
    }

    /// Counts a free by the cell's own thread.
    #[inline]
    pub(crate) fn discharge(&self, bytes: u64) {
        grow(&self.freed_bytes, bytes);
        grow(&self.frees, 1);
    }

    /// Counts an allocation in a shared cell.
    pub(crate) fn charge_shared(&self, bytes: u64) {
        self.allocated_bytes.fetch_add(bytes, Relaxed);
        self.allocs.fetch_add(1, Relaxed);
    }

    /// Counts a free by another thread, or in a shared cell.
    pub(crate) fn discharge_foreign(&self, bytes: u64) {
        self.foreign_freed_bytes.fetch_add(bytes, Relaxed);
        // A thread that sees this free counted also sees its bytes.
        self.foreign_frees.fetch_add(1, Release);
    }

    /// Adds to the change that is not yet published to the levels. Returns the pending change, to
    /// be published, once it reaches `step` in either direction.
    #[inline]
    pub(crate) fn move_level(&self, change: u64, step: u64) -> Option<u64> {
        let pending = self.pending_bytes.load(Relaxed).wrapping_add(change);
        if (pending as i64).unsigned_abs() < step {
            self.pending_bytes.store(pending, Relaxed);
            return None;
        }
        self.pending_bytes.store(0, Relaxed);
        Some(pending)
    }

    /// Whether every block charged to the cell is freed. Only its thread may call this, or any
    /// thread once the owner has left.
    fn is_idle(&self) -> bool {
        // The other threads' count first: acquiring it makes their earlier writes visible.
        let frees = self.foreign_frees.load(Acquire);
        frees.wrapping_add(self.frees.load(Relaxed)) == self.allocs.load(Relaxed)
    }

    /// Moves the cell's counts to `shared`, and returns its unpublished change.
    fn fold(&self, shared: &CellRow<T>) -> u64 {
        let take = |word: &T| {
            let value = word.load(Relaxed);
            word.store(0, Relaxed);
            value
        };
        let foreign_frees = take(&self.foreign_frees);
        let frees = take(&self.frees).wrapping_add(foreign_frees);
        let foreign_freed_bytes = take(&self.foreign_freed_bytes);
        let freed_bytes = take(&self.freed_bytes).wrapping_add(foreign_freed_bytes);
        let sums = [
            (&shared.allocated_bytes, take(&self.allocated_bytes)),
            (&shared.allocs, take(&self.allocs)),
            (&shared.foreign_freed_bytes, freed_bytes),
            (&shared.foreign_frees, frees),
        ];
        for (word, value) in sums {
            word.fetch_add(value, Relaxed);
        }
        take(&self.pending_bytes)
    }
}

/// Adds to a word that no other thread writes.
#[inline]
fn grow<T: AtomicWord>(word: &T, value: u64) {
    word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
}

fn in_use(writer: u64) -> u64 {
    writer << 2 | IN_USE
}

/// Finds the cell of `writer` for `key` among `cells`, of which the first `shared` are shared;
/// takes one if there is none. If that cell held counts, they are folded, and `publish` is called
/// with its previous key and its pending change. `None` if no cell is available.
pub(crate) fn find_or_take<T: AtomicWord>(
    cells: &[CellRow<T>],
    shared: usize,
    writer: u64,
    key: AccountKey,
    publish: impl FnOnce(AccountKey, u64),
) -> Option<usize> {
    let own = cells.len() - shared;
    let start = spread(key, writer) as usize % own;
    let window = || (0..WINDOW.min(own)).map(|step| shared + (start + step) % own);
    let mut idle = None;
    for place in window() {
        let cell = &cells[place];
        if cell.is_of(writer) {
            if cell.account_key() == key {
                return Some(place);
            }
            if cell.is_idle() {
                idle = Some(place);
            }
        } else if cell.state.load(Relaxed) == 0 {
            // The writer would have taken this cell before any behind it, and no cell is given back
            // unused.
            break;
        }
    }
    // A cell without an owner, else an idle one of its own. Taking it may fail because another
    // thread took it first; then the next is tried.
    let taken = window()
        .find(|place| {
            let state = cells[*place].state.load(Acquire);
            let free = state & 3 == 0 || state & 3 == LEFT && cells[*place].is_idle();
            free && cells[*place].state.replace(state, writer << 2 | FOLDING)
        })
        .or_else(|| {
            let place = idle?;
            cells[place].state.store(writer << 2 | FOLDING, Relaxed);
            Some(place)
        })?;
    let cell = &cells[taken];
    let was = cell.account_key();
    publish(was, cell.fold(&cells[was.shared() % shared]));
    cell.account_key.store(key.packed, Relaxed);
    cell.stream.store(key.stream, Relaxed);
    cell.state.store(in_use(writer), Release);
    Some(taken)
}

/// Lets other threads take the cells of `writer`, which will not write again.
pub(crate) fn leave<T: AtomicWord>(cells: &[CellRow<T>], writer: u64) {
    for cell in cells {
        if cell.is_of(writer) {
            cell.state.store(writer << 2 | LEFT, Release);
        }
    }
}

/// Hashes a key and writer, to spread them over the cells.
fn spread(key: AccountKey, writer: u64) -> u64 {
    [key.packed, key.stream, writer]
        .into_iter()
        .fold(0, |hash: u64, word| {
            (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
        >> 32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use crate::word::explore;

    type Cells = Vec<CellRow<AtomicU64>>;

    fn cell() -> CellRow<AtomicU64> {
        let word = || AtomicU64::new(0);
        CellRow {
            state: word(),
            account_key: word(),
            stream: word(),
            allocated_bytes: word(),
            allocs: word(),
            freed_bytes: word(),
            frees: word(),
            pending_bytes: word(),
            foreign_freed_bytes: word(),
            foreign_frees: word(),
            cell_reserved: [(); 6].map(|()| word()),
        }
    }

    fn cells(count: usize) -> Arc<Cells> {
        Arc::new((0..count).map(|_| cell()).collect())
    }

    /// As in the ledger: one shared cell, the others to take.
    fn take(cells: &Cells, writer: u64, stream: u64) -> usize {
        let key = AccountKey::new(0, 0, writer, stream);
        find_or_take(cells, 1, writer, key, |_, _| {}).unwrap_or(0)
    }

    fn charge(cells: &Cells, place: usize, bytes: u64) {
        match place {
            0 => cells[0].charge_shared(bytes),
            _ => cells[place].charge(bytes),
        }
    }

    /// Allocated bytes, freed bytes, allocations and frees, summed over all cells.
    fn sums(cells: &Cells) -> [u64; 4] {
        let sum = |word: fn(&CellRow<AtomicU64>) -> &AtomicU64| {
            cells
                .iter()
                .map(|cell| word(cell).load(Acquire))
                .fold(0, u64::saturating_add)
        };
        [
            sum(|cell| &cell.allocated_bytes),
            sum(|cell| &cell.freed_bytes) + sum(|cell| &cell.foreign_freed_bytes),
            sum(|cell| &cell.allocs),
            sum(|cell| &cell.frees) + sum(|cell| &cell.foreign_frees),
        ]
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn two_concurrent_threads_get_a_cell_each_and_keep_it() {
        explore(3, || {
            let shared = cells(3);
            let other = {
                let cells = Arc::clone(&shared);
                thread::spawn(move || (take(&cells, 7, 1), take(&cells, 7, 1)))
            };
            let mine = (take(&shared, 9, 1), take(&shared, 9, 1));
            let other = other.join().unwrap();
            assert_eq!(mine.0, mine.1);
            assert_eq!(other.0, other.1);
            assert!(mine.0 != other.0 && mine.0 != 0 && other.0 != 0);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_cell_whose_blocks_another_thread_frees_is_taken_once_and_loses_nothing() {
        explore(3, || {
            let shared = cells(2);
            let left = take(&shared, 1, 1);
            charge(&shared, left, 100);
            leave(&shared, 1);
            let freeing = {
                let cells = Arc::clone(&shared);
                thread::spawn(move || cells[left].discharge_foreign(100))
            };
            let taking = {
                let cells = Arc::clone(&shared);
                thread::spawn(move || {
                    let place = take(&cells, 2, 1);
                    charge(&cells, place, 10);
                    place
                })
            };
            let mine = take(&shared, 3, 1);
            charge(&shared, mine, 20);
            let other = taking.join().unwrap();
            freeing.join().unwrap();
            assert!(mine == 0 || other == 0, "both took the cell");
            assert_eq!(sums(&shared), [130, 100, 3, 1]);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn writes_of_a_thread_that_left_are_visible_to_the_next_owner() {
        static BOTH_HAD_IT: AtomicBool = AtomicBool::new(false);
        explore(3, || {
            let shared = cells(2);
            let place = take(&shared, 1, 1);
            let before = {
                let cells = Arc::clone(&shared);
                thread::spawn(move || {
                    charge(&cells, place, 100);
                    cells[place].discharge(100);
                    leave(&cells, 1);
                })
            };
            let after = {
                let cells = Arc::clone(&shared);
                thread::spawn(move || {
                    let place = take(&cells, 2, 1);
                    charge(&cells, place, 10);
                    place
                })
            };
            before.join().unwrap();
            let next = after.join().unwrap();
            BOTH_HAD_IT.fetch_or(place == next, Ordering::Relaxed);
            assert_eq!(sums(&shared), [110, 100, 2, 1]);
        });
        assert!(BOTH_HAD_IT.load(Ordering::Relaxed));
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_thread_reuses_its_idle_cell_for_another_stream() {
        explore(3, || {
            let cells = cells(2);
            let first = take(&cells, 1, 1);
            charge(&cells, first, 100);
            assert_eq!(take(&cells, 1, 2), 0, "a block is live");
            cells[first].discharge(100);
            assert_eq!(take(&cells, 1, 2), first);
            assert_eq!(cells[first].account_key().stream, 2);
            assert_eq!(sums(&cells), [100, 100, 1, 1]);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn changes_are_published_once_they_reach_a_step_in_either_direction() {
        explore(3, || {
            let cells = cells(1);
            let cell = &cells[0];
            assert_eq!(cell.move_level(60, 100), None);
            assert_eq!(cell.move_level(60, 100), Some(120));
            assert_eq!(cell.move_level(60u64.wrapping_neg(), 100), None);
            let published = cell.move_level(50u64.wrapping_neg(), 100);
            assert_eq!(published, Some(110u64.wrapping_neg()));
        });
    }

    #[test]
    fn account_key_survives_packing() {
        let key = AccountKey::new(15, 63, 0xffff_0000_1234, 7);
        assert_eq!((key.device(), key.tenant()), (15, 63));
        assert_eq!(key.thread(), 0xffff_0000_1234);
        assert_eq!(key.shared(), SHARED - 1);
        let lies = AccountKey {
            packed: u64::MAX,
            stream: 0,
        };
        assert!(lies.shared() < SHARED);
    }
}
