//! Handles that know what they meant.
//!
//! A buffer is named by a number that can be kept, copied and sent to another
//! language. What it names may be gone: so it has a generation, and a table that it
//! is not of, or that has given its place to another, says so instead of leading
//! anywhere.
//!
//! Invariant: a handle that was given out means one value for ever, or nothing. A
//! place whose generations are used up is not used again.

use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

const PLACE_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// A handle: a table, a place there, and the how manieth there. As bits, from the
/// highest: 16, 24 and 24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(NonZeroU64);

impl Id {
    fn new(table: u16, generation: u32, place: u32) -> Option<Self> {
        let high = u64::from(table) << GENERATION_BITS | u64::from(generation);
        NonZeroU64::new(high << PLACE_BITS | u64::from(place)).map(Self)
    }

    /// For who cannot have types: never 0.
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// What [`Id::to_bits`] gave, or any number, which then names nothing.
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }

    /// The number of its table.
    pub fn table(self) -> u16 {
        (self.0.get() >> (PLACE_BITS + GENERATION_BITS)) as u16
    }

    fn generation(self) -> u32 {
        (self.0.get() >> PLACE_BITS) as u32 & LAST_GENERATION
    }

    fn place(self) -> u32 {
        self.0.get() as u32 & ((1 << PLACE_BITS) - 1)
    }
}

/// `2:17.3`: of table 2, in place 17, the third there.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, place) = (self.table(), self.place());
        f.pad(&format!("{table}:{place}.{}", self.generation()))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

/// A handle that names nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stale {
    /// It is of another table.
    #[error("{id} is of session {}, and this is session {here}\ntry: the session that made it", id.table())]
    Foreign {
        /// The handle.
        id: Id,
        /// This table.
        here: u16,
    },
    /// What it named was freed.
    #[error("{id} was freed {} ago", seconds(*ago))]
    Freed {
        /// The handle.
        id: Id,
        /// Before the question.
        ago: Duration,
    },
    /// What it named was freed, and another in its place after it.
    #[error("{id} was freed, more than {} ago: there have been {others} in its place since", seconds(*ago))]
    Replaced {
        /// The handle.
        id: Id,
        /// When the last of the others that are gone was freed, or the one there now
        /// made.
        ago: Duration,
        /// How many came after it.
        others: u32,
    },
    /// Nothing ever had it.
    #[error("{id} was never given out")]
    Unknown {
        /// The handle.
        id: Id,
    },
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 0.001 => format!("{:.0} us", short * 1e6),
        short if short < 1.0 => format!("{:.0} ms", short * 1e3),
        long => format!("{long:.1} s"),
    }
}

/// A table has as many as it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("session {table} holds {held}, and has no handle for another\ntry: free some")]
pub struct Full {
    /// The table.
    pub table: u16,
    /// How many it holds.
    pub held: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// That of what is there, or was there last.
    generation: u32,
    value: Option<T>,
    /// When what is there was made, or what was there freed.
    since: Instant,
}

/// Values by their handles.
#[derive(Debug)]
pub struct Table<T> {
    number: u16,
    slots: Vec<Slot<T>>,
    /// Places that may be used again, the last one freed last.
    vacant: Vec<u32>,
    most: u32,
}

impl<T> Table<T> {
    /// An empty one, which has this number.
    pub fn new(number: u16) -> Self {
        Self {
            number,
            slots: Vec::new(),
            vacant: Vec::new(),
            most: 1 << PLACE_BITS,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|it| it.value.is_some()).count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|it| it.value.is_none())
    }

    /// Takes a value in.
    ///
    /// # Errors
    /// [`Full`], with 2^24 of them or where all places are used up.
    pub fn insert(&mut self, value: T) -> Result<Id, Full> {
        let since = Instant::now();
        let place = match self.vacant.pop() {
            Some(place) => place,
            None if self.slots.len() < self.most as usize => {
                self.slots.push(Slot {
                    generation: 0,
                    value: None,
                    since,
                });
                self.slots.len() as u32 - 1
            }
            None => return Err(self.full()),
        };
        let slot = &mut self.slots[place as usize];
        slot.generation += 1;
        slot.value = Some(value);
        slot.since = since;
        Id::new(self.number, slot.generation, place).ok_or_else(|| self.full())
    }

    fn full(&self) -> Full {
        Full {
            table: self.number,
            held: self.len() as u64,
        }
    }

    /// What a handle names.
    ///
    /// # Errors
    /// [`Stale`].
    pub fn get(&self, id: Id) -> Result<&T, Stale> {
        let value = self.slots[self.slot(id)?].value.as_ref();
        // What is in a slot of that generation is there.
        value.ok_or(Stale::Unknown { id })
    }

    /// The same, to be changed.
    ///
    /// # Errors
    /// [`Stale`].
    pub fn get_mut(&mut self, id: Id) -> Result<&mut T, Stale> {
        let place = self.slot(id)?;
        let value = self.slots[place].value.as_mut();
        value.ok_or(Stale::Unknown { id })
    }

    /// Takes out what a handle names. From now on it names nothing.
    ///
    /// # Errors
    /// [`Stale`].
    pub fn remove(&mut self, id: Id) -> Result<T, Stale> {
        let place = self.slot(id)?;
        let slot = &mut self.slots[place];
        let value = slot.value.take().ok_or(Stale::Unknown { id })?;
        slot.since = Instant::now();
        if slot.generation < LAST_GENERATION {
            self.vacant.push(place as u32);
        }
        Ok(value)
    }

    /// All, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        (0_u32..).zip(&self.slots).filter_map(|(place, slot)| {
            let id = Id::new(self.number, slot.generation, place)?;
            Some((id, slot.value.as_ref()?))
        })
    }

    /// The place of what a handle names, if that is there.
    fn slot(&self, id: Id) -> Result<usize, Stale> {
        let place = id.place() as usize;
        let slot = self.slots.get(place);
        let is_it = |slot: &&Slot<T>| {
            id.table() == self.number && slot.generation == id.generation() && slot.value.is_some()
        };
        match slot.filter(is_it) {
            Some(_) => Ok(place),
            None => Err(self.stale(id)),
        }
    }

    #[cold]
    fn stale(&self, id: Id) -> Stale {
        if id.table() != self.number {
            let here = self.number;
            return Stale::Foreign { id, here };
        }
        let slot = self.slots.get(id.place() as usize);
        let asked = id.generation();
        match slot.filter(|slot| (1..=slot.generation).contains(&asked)) {
            None => Stale::Unknown { id },
            Some(slot) => {
                let ago = slot.since.elapsed();
                match slot.generation - asked {
                    0 => Stale::Freed { id, ago },
                    others => Stale::Replaced { id, ago, others },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_whose_generations_are_used_up_is_not_used_again() {
        let mut table = Table::new(7);
        table.most = 2;
        let first = table.insert('a').unwrap();
        table.slots[0].generation = LAST_GENERATION;
        let last = Id::new(7, LAST_GENERATION, 0).unwrap();
        assert_eq!(table.remove(last), Ok('a'));
        let other = table.insert('b').unwrap();
        assert_eq!(other.place(), 1);
        let full = table.insert('c').unwrap_err();
        assert_eq!((full.table, full.held), (7, 1));
        assert!(
            matches!(table.get(first), Err(Stale::Replaced { others, .. }) if others == LAST_GENERATION - 1)
        );
        assert!(matches!(table.get(last), Err(Stale::Freed { .. })));
    }

    #[test]
    fn a_handle_says_what_became_of_it() {
        let mut table = Table::new(2);
        let id = table.insert(1).unwrap();
        assert_eq!(Id::from_bits(id.to_bits()), Some(id));
        assert_eq!(
            (id.to_string(), Id::from_bits(0)),
            ("2:0.1".to_owned(), None)
        );
        let other = Table::new(3).insert(1).unwrap();
        let said = table.get(other).unwrap_err().to_string();
        assert!(
            said.starts_with("3:0.1 is of session 3, and this is session 2"),
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
        assert!(
            said.contains("there have been 1 in its place since"),
            "{said}"
        );
        let never = Id::new(2, 9, 0).unwrap();
        assert_eq!(table.get(never), Err(Stale::Unknown { id: never }));
        let never = Id::new(2, 0, 0).unwrap();
        assert_eq!(table.get(never), Err(Stale::Unknown { id: never }));
    }
}
