//! Generational handles: a handle table that detects stale handles.
//!
//! A buffer is named by a number that can be stored, copied and passed to another language. The
//! buffer may be freed meanwhile: so each handle has a generation, and a lookup with a handle of
//! another table, or of a slot that was reused, fails instead of returning another value.
//!
//! Invariant: a handle that was returned names one value for ever, or nothing. A slot with
//! exhausted generations is never reused.

use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// A handle: table number, generation and slot index. As bits, from the highest: 16, 24 and 24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(NonZeroU64);

impl HandleId {
    fn new(table: u16, generation: u32, index: u32) -> Option<Self> {
        let high = u64::from(table) << GENERATION_BITS | u64::from(generation);
        NonZeroU64::new(high << SLOT_BITS | u64::from(index)).map(Self)
    }

    /// The handle as a number, for other languages: never 0.
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The inverse of [`HandleId::to_bits`]. Any other number gives a handle that names nothing.
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }

    /// Number of the handle's table.
    pub fn table(self) -> u16 {
        (self.0.get() >> (SLOT_BITS + GENERATION_BITS)) as u16
    }

    fn generation(self) -> u32 {
        (self.0.get() >> SLOT_BITS) as u32 & LAST_GENERATION
    }

    fn index(self) -> u32 {
        self.0.get() as u32 & ((1 << SLOT_BITS) - 1)
    }
}

/// `2:17.3`: table 2, slot 17, generation 3.
impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, index) = (self.table(), self.index());
        f.pad(&format!("{table}:{index}.{}", self.generation()))
    }
}

impl fmt::Debug for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleId({self})")
    }
}

/// A handle that names nothing in this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StaleHandle {
    /// The handle belongs to another table.
    #[error("{id} belongs to session {}, and this is session {here}\ntry: the session that made it", id.table())]
    Foreign {
        /// The handle.
        id: HandleId,
        /// This table.
        here: u16,
    },
    /// The value was freed.
    #[error("{id} was freed {} ago", seconds(*ago))]
    Freed {
        /// The handle.
        id: HandleId,
        /// Time since it was freed.
        ago: Duration,
    },
    /// The value was freed, and its slot was reused.
    #[error("{id} was freed, more than {} ago: its slot was reused {others} times since", seconds(*ago))]
    Replaced {
        /// The handle.
        id: HandleId,
        /// Time since the slot's last change: its current value was inserted, or its last one
        /// freed.
        ago: Duration,
        /// Number of values that came after it.
        others: u32,
    },
    /// The handle was never returned.
    #[error("{id} is not a handle that was ever returned")]
    Unknown {
        /// The handle.
        id: HandleId,
    },
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 0.001 => format!("{:.0} us", short * 1e6),
        short if short < 1.0 => format!("{:.0} ms", short * 1e3),
        long => format!("{long:.1} s"),
    }
}

/// The table has no free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("session {table} holds {held}, and has no handle for another\ntry: free some")]
pub struct HandlesExhausted {
    /// The table.
    pub table: u16,
    /// Number of values in it.
    pub held: u64,
}

#[derive(Debug)]
struct HandleSlot<T> {
    /// Generation of the current value, or of the last one.
    generation: u32,
    value: Option<T>,
    /// When the current value was inserted, or the last one freed.
    since: Instant,
}

/// Values by their handles.
#[derive(Debug)]
pub struct GenerationalTable<T> {
    number: u16,
    slots: Vec<HandleSlot<T>>,
    /// Slots that can be reused, in the order in which they were freed.
    vacant: Vec<u32>,
    max_slots: u32,
}

impl<T> GenerationalTable<T> {
    /// An empty table with this number.
    pub fn new(number: u16) -> Self {
        Self {
            number,
            slots: Vec::new(),
            vacant: Vec::new(),
            max_slots: 1 << SLOT_BITS,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|it| it.value.is_some()).count()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|it| it.value.is_none())
    }

    /// Inserts a value.
    ///
    /// # Errors
    /// [`HandlesExhausted`], with 2^24 values, or when the generations of all slots are exhausted.
    pub fn insert(&mut self, value: T) -> Result<HandleId, HandlesExhausted> {
        let since = Instant::now();
        let index = match self.vacant.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max_slots as usize => {
                self.slots.push(HandleSlot {
                    generation: 0,
                    value: None,
                    since,
                });
                self.slots.len() as u32 - 1
            }
            None => return Err(self.full()),
        };
        let slot = &mut self.slots[index as usize];
        slot.generation += 1;
        slot.value = Some(value);
        slot.since = since;
        HandleId::new(self.number, slot.generation, index).ok_or_else(|| self.full())
    }

    fn full(&self) -> HandlesExhausted {
        HandlesExhausted {
            table: self.number,
            held: self.len() as u64,
        }
    }

    /// Returns the value that a handle names.
    ///
    /// # Errors
    /// [`StaleHandle`].
    pub fn get(&self, id: HandleId) -> Result<&T, StaleHandle> {
        let value = self.slots[self.slot(id)?].value.as_ref();
        // A slot found under that generation has a value.
        value.ok_or(StaleHandle::Unknown { id })
    }

    /// The same, mutably.
    ///
    /// # Errors
    /// [`StaleHandle`].
    pub fn get_mut(&mut self, id: HandleId) -> Result<&mut T, StaleHandle> {
        let index = self.slot(id)?;
        let value = self.slots[index].value.as_mut();
        value.ok_or(StaleHandle::Unknown { id })
    }

    /// Removes the value that a handle names. The handle is stale from now on.
    ///
    /// # Errors
    /// [`StaleHandle`].
    pub fn remove(&mut self, id: HandleId) -> Result<T, StaleHandle> {
        let index = self.slot(id)?;
        let slot = &mut self.slots[index];
        let value = slot.value.take().ok_or(StaleHandle::Unknown { id })?;
        slot.since = Instant::now();
        if slot.generation < LAST_GENERATION {
            self.vacant.push(index as u32);
        }
        Ok(value)
    }

    /// All values, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (HandleId, &T)> {
        (0_u32..).zip(&self.slots).filter_map(|(index, slot)| {
            let id = HandleId::new(self.number, slot.generation, index)?;
            Some((id, slot.value.as_ref()?))
        })
    }

    /// Index of the slot that a handle names, if its value is live.
    fn slot(&self, id: HandleId) -> Result<usize, StaleHandle> {
        let index = id.index() as usize;
        let slot = self.slots.get(index);
        let is_it = |slot: &&HandleSlot<T>| {
            id.table() == self.number && slot.generation == id.generation() && slot.value.is_some()
        };
        match slot.filter(is_it) {
            Some(_) => Ok(index),
            None => Err(self.stale(id)),
        }
    }

    #[cold]
    fn stale(&self, id: HandleId) -> StaleHandle {
        if id.table() != self.number {
            let here = self.number;
            return StaleHandle::Foreign { id, here };
        }
        let slot = self.slots.get(id.index() as usize);
        let asked = id.generation();
        match slot.filter(|slot| (1..=slot.generation).contains(&asked)) {
            None => StaleHandle::Unknown { id },
            Some(slot) => {
                let ago = slot.since.elapsed();
                match slot.generation - asked {
                    0 => StaleHandle::Freed { id, ago },
                    others => StaleHandle::Replaced { id, ago, others },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_with_exhausted_generations_is_not_reused() {
        let mut table = GenerationalTable::new(7);
        table.max_slots = 2;
        let first = table.insert('a').unwrap();
        table.slots[0].generation = LAST_GENERATION;
        let last = HandleId::new(7, LAST_GENERATION, 0).unwrap();
        assert_eq!(table.remove(last), Ok('a'));
        let other = table.insert('b').unwrap();
        assert_eq!(other.index(), 1);
        let full = table.insert('c').unwrap_err();
        assert_eq!((full.table, full.held), (7, 1));
        assert!(
            matches!(table.get(first), Err(StaleHandle::Replaced { others, .. }) if others == LAST_GENERATION - 1)
        );
        assert!(matches!(table.get(last), Err(StaleHandle::Freed { .. })));
    }

    #[test]
    fn stale_handle_reports_what_happened_to_its_value() {
        let mut table = GenerationalTable::new(2);
        let id = table.insert(1).unwrap();
        assert_eq!(HandleId::from_bits(id.to_bits()), Some(id));
        assert_eq!(
            (id.to_string(), HandleId::from_bits(0)),
            ("2:0.1".to_owned(), None)
        );
        let other = GenerationalTable::new(3).insert(1).unwrap();
        let said = table.get(other).unwrap_err().to_string();
        assert!(
            said.starts_with("3:0.1 belongs to session 3, and this is session 2"),
            "{said}"
        );
        table.remove(id).unwrap();
        let said = table.remove(id).unwrap_err().to_string();
        assert!(
            said.starts_with("2:0.1 was freed ") && said.ends_with(" us ago"),
            "{said}"
        );
        table.insert(2).unwrap();
        let said = table.get_mut(id).unwrap_err().to_string();
        assert!(said.contains("its slot was reused 1 times since"), "{said}");
        let never = HandleId::new(2, 9, 0).unwrap();
        assert_eq!(table.get(never), Err(StaleHandle::Unknown { id: never }));
        let never = HandleId::new(2, 0, 0).unwrap();
        assert_eq!(table.get(never), Err(StaleHandle::Unknown { id: never }));
    }
}
