//! Rows that streams and threads take and leave again.
//!
//! A row's first word says who has it: a number and whether it is in use or
//! has ended. Taking a row is one compare-and-swap of that word, so two never
//! take the same. A row that has ended is taken again once nothing charged to
//! it is live; until then what was charged to it is given back to it.
//!
//! Invariant: who finds no row goes to row 0, so no byte is without one. One
//! number may come to have two rows, when two threads meet it for the first
//! time while a row ends; readers add them up.

use std::sync::atomic::Ordering::{Acquire, Release};

use crate::word::Word;

const IN_USE: u64 = 1;
const ENDED: u64 = 2;
const FLAGS: u64 = 3;

/// Numbers from here on do not fit beside the flags.
const LIMIT: u64 = 1 << 62;

/// Row 0: for those that found no other.
pub(crate) const OTHERS: usize = 0;

/// What a row's first word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    InUse(u64),
    Ended(u64),
}

impl State {
    /// Also of words that no writer has written.
    pub(crate) fn of(word: u64) -> State {
        match word & FLAGS {
            IN_USE => State::InUse(word >> 2),
            ENDED => State::Ended(word >> 2),
            _ => State::Free,
        }
    }
}

/// How often a row that another took first is looked for anew.
const TRIES: usize = 64;

/// A row, and whether it was taken just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) place: usize,
    pub(crate) fresh: bool,
}

/// The row in use by `number`, or one taken for it, of `count` rows; their
/// states and live bytes are what `row` says. [`OTHERS`] if there is none.
pub(crate) fn find_or_take<'a, W: Word + 'a>(
    count: usize,
    row: impl Fn(usize) -> (&'a W, &'a W),
    number: u64,
) -> Found {
    let found = |place, fresh| Found { place, fresh };
    if number >= LIMIT {
        return found(OTHERS, false);
    }
    let mine = number << 2 | IN_USE;
    let rows = count - 1;
    let start = spread(number) as usize % rows;
    for _ in 0..TRIES {
        let mut best = None;
        for place in (0..rows).map(|step| 1 + (start + step) % rows) {
            let (state, live) = row(place);
            let word = state.load(Acquire);
            match State::of(word) {
                State::InUse(_) if word == mine => return found(place, false),
                // No row becomes free again, so `number` has none behind it.
                State::Free => {
                    best = best.or(Some((place, word)));
                    break;
                }
                State::Ended(_) if best.is_none() && live.load(Acquire) == 0 => {
                    best = Some((place, word));
                }
                State::InUse(_) | State::Ended(_) => {}
            }
        }
        match best {
            Some((place, word)) if row(place).0.replace(word, mine) => return found(place, true),
            Some(_) => {}
            None => break,
        }
    }
    found(OTHERS, false)
}

/// Lets a row be taken again once nothing charged to it is live.
pub(crate) fn end<W: Word>(state: &W) {
    if let State::InUse(number) = State::of(state.load(Acquire)) {
        state.store(number << 2 | ENDED, Release);
    }
}

/// Spreads neighbouring numbers over the rows.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    /// States and live bytes of rows; row 0 is for the others.
    type Rows<const N: usize> = [(AtomicU64, AtomicU64); N];

    fn rows<const N: usize>() -> Rows<N> {
        [(); N].map(|()| (AtomicU64::new(0), AtomicU64::new(0)))
    }

    fn take<const N: usize>(rows: &Rows<N>, number: u64) -> usize {
        find_or_take(N, |place| (&rows[place].0, &rows[place].1), number).place
    }

    #[test]
    fn two_that_come_at_once_never_get_one_row_and_one_gets_none_twice() {
        loom::model(|| {
            let shared = Arc::new(rows::<3>());
            let other = {
                let rows = Arc::clone(&shared);
                thread::spawn(move || (take(&rows, 7), take(&rows, 7)))
            };
            let mine = (take(&shared, 9), take(&shared, 9));
            let other = other.join().unwrap();
            assert_eq!(mine.0, mine.1);
            assert_eq!(other.0, other.1);
            assert_ne!(mine.0, other.0);
            assert!(mine.0 != OTHERS && other.0 != OTHERS);
        });
    }

    #[test]
    fn an_ended_row_is_taken_by_one_and_only_when_nothing_is_live() {
        loom::model(|| {
            let shared = Arc::new(rows::<2>());
            assert_eq!(take(&shared, 7), 1);
            shared[1].1.store(100, Relaxed);
            end(&shared[1].0);
            let freeing = {
                let rows = Arc::clone(&shared);
                thread::spawn(move || {
                    rows[1].1.fetch_add(100u64.wrapping_neg(), Relaxed);
                })
            };
            let taking = {
                let rows = Arc::clone(&shared);
                thread::spawn(move || take(&rows, 8))
            };
            let mine = take(&shared, 9);
            let other = taking.join().unwrap();
            freeing.join().unwrap();
            assert!(mine == OTHERS || other == OTHERS);
            if mine + other != 0 {
                assert_eq!(shared[1].1.load(Relaxed), 0);
            }
        });
    }

    #[test]
    fn a_number_too_large_for_a_row_goes_to_the_others() {
        loom::model(|| {
            let rows = rows::<2>();
            assert_eq!(take(&rows, u64::MAX), OTHERS);
            assert_eq!(take(&rows, LIMIT), OTHERS);
            assert_eq!(take(&rows, LIMIT - 1), 1);
            assert_eq!(State::of(rows[1].0.load(Relaxed)), State::InUse(LIMIT - 1));
            end(&rows[1].0);
            assert_eq!(State::of(rows[1].0.load(Relaxed)), State::Ended(LIMIT - 1));
        });
    }
}
