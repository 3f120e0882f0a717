//! Lock-free ring buffer of events with many writers and many readers.
//!
//! A writer draws a ticket, which names the entry and its generation. It claims the entry by making
//! its sequence number odd, stores the data and makes it even: `2 ticket + 1`, then `2 ticket + 2`.
//! A writer does not wait for an entry that another writer holds, or that a later one has
//! overwritten: the event is dropped and counted.
//!
//! Why a reader never takes torn data for whole: it reads the sequence numbers, then the data, then
//! the sequence numbers again, and accepts an entry only if both numbers are that of its ticket,
//! written.
//! - Data of an earlier generation: the first number was read with acquire from the release that
//!   ended this generation's stores, so nothing older is visible.
//! - Data of a later generation: every data word is stored with release and read with acquire, so a
//!   reader that sees one also sees that generation's claim, made before it; the number read last
//!   is then not this ticket's. Numbers only grow.
//! - Two writers in one entry: the claim is a compare-and-swap from an even number, so there is one
//!   at a time; it acquires the previous writer's release, so its stores are later in every word.
//!
//! A process killed while writing leaves an odd number: that entry is never read, and no other
//! process writes it.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::word::AtomicWord;

/// A ring of `N` entries of `WORDS` data words.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EventRing<T, const N: usize, const WORDS: usize> {
    /// Tickets drawn.
    written: T,
    /// Events dropped because their entry was not available.
    dropped: T,
    reserved: [T; 6],
    entries: [RingEntry<T, WORDS>; N],
}

#[repr(C)]
#[derive(Debug)]
struct RingEntry<T, const WORDS: usize> {
    sequence: T,
    data: [T; WORDS],
}

/// Words before the first entry.
const HEAD_WORDS: usize = 8;

impl<T: AtomicWord, const N: usize, const WORDS: usize> EventRing<T, N, WORDS> {
    /// Writes an event, or counts it as dropped.
    pub(crate) fn write(&self, data: [u64; WORDS]) {
        let ticket = self.written.fetch_add(1, Relaxed);
        let entry = &self.entries[(ticket % N as u64) as usize];
        let claimed = ticket.wrapping_mul(2).wrapping_add(1);
        let found = entry.sequence.load(Relaxed);
        if found % 2 == 1 || found > claimed || !entry.sequence.replace(found, claimed) {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        for (word, value) in entry.data.iter().zip(data) {
            word.store(value, Release);
        }
        entry.sequence.store(claimed.wrapping_add(1), Release);
    }
}

/// The events that a reader found in a ring.
#[derive(Debug, Default)]
pub(crate) struct RingEvents<const WORDS: usize> {
    /// Whole events, oldest first, with their tickets.
    pub(crate) events: Vec<(u64, [u64; WORDS])>,
    /// Tickets drawn since the ledger was opened.
    pub(crate) written: u64,
    /// Events dropped by their writers.
    pub(crate) dropped: u64,
}

/// Reads a ring of `N` entries through `copy`, which fills a buffer with the ring's words, each
/// read with acquire and later than the reads of an earlier call.
pub(crate) fn read<const N: usize, const WORDS: usize, E>(
    mut copy: impl FnMut(&mut [u64]) -> Result<(), E>,
) -> Result<RingEvents<WORDS>, E> {
    let stride = WORDS + 1;
    let mut before = vec![0; HEAD_WORDS + N * stride];
    let (mut data, mut after) = (before.clone(), before.clone());
    copy(&mut before)?;
    copy(&mut data)?;
    copy(&mut after)?;
    let (written, dropped) = (before[0], before[1]);
    let mut events = Vec::new();
    for ticket in written.saturating_sub(N as u64)..written {
        let at = HEAD_WORDS + (ticket % N as u64) as usize * stride;
        let whole = ticket.wrapping_mul(2).wrapping_add(2);
        if before[at] == whole && after[at] == whole {
            let words = &data[at + 1..at + stride];
            events.push((ticket, std::array::from_fn(|word| words[word])));
        }
    }
    Ok(RingEvents {
        events,
        written,
        dropped,
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::Ordering::{self, Acquire};

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use crate::word::explore;

    type Small = EventRing<AtomicU64, 2, 2>;

    fn ring() -> Small {
        let word = || AtomicU64::new(0);
        EventRing {
            written: word(),
            dropped: word(),
            reserved: [(); 6].map(|()| word()),
            entries: [(); 2].map(|()| RingEntry {
                sequence: word(),
                data: [word(), word()],
            }),
        }
    }

    fn read_small(ring: &Small) -> RingEvents<2> {
        let load = |word: &AtomicU64| word.load(Acquire);
        let Ok(events) = read::<2, 2, Infallible>(|words| {
            words[0] = load(&ring.written);
            words[1] = load(&ring.dropped);
            for (entry, words) in ring.entries.iter().zip(words[8..].chunks_mut(3)) {
                // The worst order: a reader may not rely on any.
                words[2] = load(&entry.data[1]);
                words[0] = load(&entry.sequence);
                words[1] = load(&entry.data[0]);
            }
            Ok(())
        });
        events
    }

    /// Data that can be checked for being whole.
    fn event(number: u64) -> [u64; 2] {
        [number, number * 1000]
    }

    fn is_whole(data: [u64; 2]) -> bool {
        data[0] != 0 && data[1] == data[0] * 1000
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_reader_sees_whole_events_while_the_ring_is_lapped() {
        explore(3, || {
            let ring = Arc::new(ring());
            // Both entries are full, so the writer writes over one.
            ring.write(event(1));
            ring.write(event(2));
            let writer = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || ring.write(event(3)))
            };
            let seen = read_small(&ring);
            for (ticket, data) in &seen.events {
                assert_eq!(*data, event(ticket + 1));
            }
            writer.join().unwrap();
            let last = read_small(&ring);
            assert_eq!(last.events, [(1, event(2)), (2, event(3))]);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn writers_that_meet_in_an_entry_leave_one_whole_event_or_count_it_as_dropped() {
        explore(2, || {
            let ring = Arc::new(ring());
            let writers: Vec<_> = [1, 3]
                .map(|number| {
                    let ring = Arc::clone(&ring);
                    thread::spawn(move || {
                        ring.write(event(number));
                        ring.write(event(number + 1));
                    })
                })
                .into();
            for writer in writers {
                writer.join().unwrap();
            }
            let seen = read_small(&ring);
            assert!(seen.events.iter().all(|(_, data)| is_whole(*data)));
            assert_eq!(seen.written, 4);
            // Each of the four is there, was overwritten, or was dropped.
            assert!(seen.dropped <= 2, "{seen:?}");
            assert!(seen.events.len() as u64 + seen.dropped >= 2, "{seen:?}");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn an_entry_left_half_written_is_passed_over() {
        explore(2, || {
            let ring = ring();
            ring.write(event(1));
            ring.entries[1].sequence.store(3, Ordering::Relaxed);
            ring.written.fetch_add(1, Ordering::Relaxed);
            assert_eq!(read_small(&ring).events, [(0, event(1))]);
            ring.write(event(3));
            // The fourth finds the entry of the second taken.
            ring.write(event(4));
            let seen = read_small(&ring);
            assert_eq!(seen.events, [(2, event(3))]);
            assert_eq!(seen.dropped, 1);
        });
    }
}
