//! The cells that allocations are charged to.
//!
//! A cell is for one thread, device, tenant and stream. Its thread alone
//! writes the first line of it, with plain loads and stores; a free by another
//! thread adds to the second. So threads that mind their own blocks share no
//! line. Every table a reader shows is a sum over cells, and adds up by
//! construction. Counts of cells grow, and when they move to another cell that
//! one's grow, so two equal readings of all had nothing between them.
//!
//! The first [`SHARED`] cells are a tenant's at a device, whoever writes them,
//! by atomic additions: for those without a cell of their own, and for what a
//! cell held that is taken anew. So no byte and no count is lost.
//!
//! A cell that its thread has left is taken by one compare-and-swap, once all
//! its blocks are freed. Then nobody else writes it: the thread's last stores
//! were released when it left, a stranger's by the addition that counts its
//! free, and the taker acquires both. While it is folded into its shared cell
//! its state says so, and readers do not trust the counts.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::format::{CellRow, DEVICES, SHARED};
use crate::word::Word;

const IN_USE: u64 = 1;
const LEFT: u64 = 2;
const FOLDING: u64 = 3;

/// How many cells are looked at for one.
const WINDOW: usize = 64;

/// Whose a cell is, packed as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Who {
    /// Device, tenant and thread.
    pub(crate) packed: u64,
    /// The stream's number.
    pub(crate) stream: u64,
}

impl Who {
    pub(crate) fn new(device: u8, tenant: u8, thread: u64, stream: u64) -> Who {
        Who {
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

    /// The lowest 48 bits of its number.
    pub(crate) fn thread(self) -> u64 {
        self.packed >> 16
    }

    /// The shared cell for its device and tenant.
    pub(crate) fn shared(self) -> usize {
        (self.tenant() * DEVICES + self.device()) % SHARED
    }
}

/// Whether a cell's state word says that it is being folded.
pub(crate) fn is_folding(state: u64) -> bool {
    state & 3 == FOLDING
}

/// Whether a cell's state word says that its thread has left it.
pub(crate) fn is_left(state: u64) -> bool {
    state & 3 == LEFT
}

impl<T: Word> CellRow<T> {
    /// Whether the thread that writes as `writer` has it.
    #[inline]
    pub(crate) fn is_of(&self, writer: u64) -> bool {
        self.state.load(Relaxed) == in_use(writer)
    }

    pub(crate) fn who(&self) -> Who {
        Who {
            packed: self.who.load(Relaxed),
            stream: self.stream.load(Relaxed),
        }
    }

    /// Counts an allocation of its own thread.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) {
        grow(&self.allocated_bytes, bytes);
        grow(&self.allocs, 1);
    }

    /// Counts a free by its own thread.
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
        // Whoever counts this free also sees its bytes.
        self.foreign_frees.fetch_add(1, Release);
    }

    /// Adds to what the levels have not yet heard of, and gives it back to be
    /// told once it is `step` or more, either way.
    #[inline]
    pub(crate) fn move_level(&self, change: u64, step: u64) -> Option<u64> {
        let untold = self.untold_bytes.load(Relaxed).wrapping_add(change);
        if (untold as i64).unsigned_abs() < step {
            self.untold_bytes.store(untold, Relaxed);
            return None;
        }
        self.untold_bytes.store(0, Relaxed);
        Some(untold)
    }

    /// Whether every block charged to it is freed. Only for its thread, or
    /// when that has left.
    fn is_idle(&self) -> bool {
        // The strangers' count first: it acquires what they did before.
        let frees = self.foreign_frees.load(Acquire);
        frees.wrapping_add(self.frees.load(Relaxed)) == self.allocs.load(Relaxed)
    }

    /// Moves its counts to `shared`, and gives back what it has not told.
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
        take(&self.untold_bytes)
    }
}

/// Adds to a word that nobody else writes.
#[inline]
fn grow<T: Word>(word: &T, value: u64) {
    word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
}

fn in_use(writer: u64) -> u64 {
    writer << 2 | IN_USE
}

/// The cell of `writer` for `who` among `cells`, of which the first `shared`
/// are shared. One is taken if it has none; if that held counts they are
/// folded, and `untold` hears whose they were and what levels had not heard.
/// `None` if there is none to take.
pub(crate) fn find_or_take<T: Word>(
    cells: &[CellRow<T>],
    shared: usize,
    writer: u64,
    who: Who,
    untold: impl FnOnce(Who, u64),
) -> Option<usize> {
    let own = cells.len() - shared;
    let start = spread(who, writer) as usize % own;
    let window = || (0..WINDOW.min(own)).map(|step| shared + (start + step) % own);
    let mut idle = None;
    for place in window() {
        let cell = &cells[place];
        if cell.is_of(writer) {
            if cell.who() == who {
                return Some(place);
            }
            if cell.is_idle() {
                idle = Some(place);
            }
        } else if cell.state.load(Relaxed) == 0 {
            // It would have taken this one before any behind it, and nobody
            // gives a cell back unused.
            break;
        }
    }
    // One that nobody has, else one of its own that is idle. Taking it may
    // fail because another was first; then the next will do.
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
    let was = cell.who();
    untold(was, cell.fold(&cells[was.shared() % shared]));
    cell.who.store(who.packed, Relaxed);
    cell.stream.store(who.stream, Relaxed);
    cell.state.store(in_use(writer), Release);
    Some(taken)
}

/// Lets others take the cells of `writer`, which writes no more.
pub(crate) fn leave<T: Word>(cells: &[CellRow<T>], writer: u64) {
    for cell in cells {
        if cell.is_of(writer) {
            cell.state.store(writer << 2 | LEFT, Release);
        }
    }
}

/// Spreads over the cells.
fn spread(who: Who, writer: u64) -> u64 {
    [who.packed, who.stream, writer]
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
            who: word(),
            stream: word(),
            allocated_bytes: word(),
            allocs: word(),
            freed_bytes: word(),
            frees: word(),
            untold_bytes: word(),
            foreign_freed_bytes: word(),
            foreign_frees: word(),
            cell_reserved: [(); 6].map(|()| word()),
        }
    }

    fn cells(count: usize) -> Arc<Cells> {
        Arc::new((0..count).map(|_| cell()).collect())
    }

    /// Like the ledger: one shared cell, the others to take.
    fn take(cells: &Cells, writer: u64, stream: u64) -> usize {
        let who = Who::new(0, 0, writer, stream);
        find_or_take(cells, 1, writer, who, |_, _| {}).unwrap_or(0)
    }

    fn charge(cells: &Cells, place: usize, bytes: u64) {
        match place {
            0 => cells[0].charge_shared(bytes),
            _ => cells[place].charge(bytes),
        }
    }

    /// Bytes allocated and freed, allocations and frees, of all cells.
    fn sums(cells: &Cells) -> [u64; 4] {
        let sum = |word: fn(&CellRow<AtomicU64>) -> &AtomicU64| {
            cells
                .iter()
                .map(|cell| word(cell).load(Acquire))
                .sum::<u64>()
        };
        [
            sum(|cell| &cell.allocated_bytes),
            sum(|cell| &cell.freed_bytes) + sum(|cell| &cell.foreign_freed_bytes),
            sum(|cell| &cell.allocs),
            sum(|cell| &cell.frees) + sum(|cell| &cell.foreign_frees),
        ]
    }

    #[test]
    fn two_that_come_at_once_get_a_cell_each_and_keep_it() {
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
    fn a_cell_whose_blocks_a_stranger_frees_is_taken_by_one_and_loses_nothing() {
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
    fn a_thread_that_leaves_has_told_the_next_all_it_wrote() {
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
    fn an_idle_cell_of_its_own_is_used_for_another_stream() {
        explore(3, || {
            let cells = cells(2);
            let first = take(&cells, 1, 1);
            charge(&cells, first, 100);
            assert_eq!(take(&cells, 1, 2), 0, "a block is live");
            cells[first].discharge(100);
            assert_eq!(take(&cells, 1, 2), first);
            assert_eq!(cells[first].who().stream, 2);
            assert_eq!(sums(&cells), [100, 100, 1, 1]);
        });
    }

    #[test]
    fn levels_hear_of_steps_either_way() {
        explore(3, || {
            let cells = cells(1);
            let cell = &cells[0];
            assert_eq!(cell.move_level(60, 100), None);
            assert_eq!(cell.move_level(60, 100), Some(120));
            assert_eq!(cell.move_level(60u64.wrapping_neg(), 100), None);
            let told = cell.move_level(50u64.wrapping_neg(), 100);
            assert_eq!(told, Some(110u64.wrapping_neg()));
        });
    }

    #[test]
    fn who_comes_back_from_its_packing() {
        let who = Who::new(15, 63, 0xffff_0000_1234, 7);
        assert_eq!((who.device(), who.tenant()), (15, 63));
        assert_eq!(who.thread(), 0xffff_0000_1234);
        assert_eq!(who.shared(), SHARED - 1);
        let lies = Who {
            packed: u64::MAX,
            stream: 0,
        };
        assert!(lies.shared() < SHARED);
    }
}
