//! Enums of spellings, each with a hash table filled at compile time.

/// Slots of a [`WordTable`]; a power of two, at least twice the number of words of any one table.
const SLOTS: usize = 2048;

/// A hash table from spelling to position, filled at compile time; probing is linear.
pub(crate) struct WordTable {
    /// Position + 1, or 0 if free.
    slots: [u16; SLOTS],
}

impl WordTable {
    /// Positions run on from one list to the next.
    pub(crate) const fn new(lists: &[&[&str]]) -> WordTable {
        let mut slots = [0u16; SLOTS];
        let mut position = 0;
        let mut l = 0;
        while l < lists.len() {
            let mut i = 0;
            while i < lists[l].len() {
                position += 1;
                let mut slot = hash(lists[l][i].as_bytes()) as usize % SLOTS;
                while slots[slot] != 0 {
                    slot = (slot + 1) % SLOTS;
                }
                slots[slot] = position;
                i += 1;
            }
            l += 1;
        }
        assert!((position as usize) < SLOTS / 2, "raise SLOTS");
        WordTable { slots }
    }

    pub(crate) fn find(
        &self,
        text: &str,
        hash: u32,
        spelling: impl Fn(usize) -> &'static str,
    ) -> Option<usize> {
        let mut slot = hash as usize % SLOTS;
        loop {
            let i = (self.slots[slot] as usize).checked_sub(1)?;
            if spelling(i) == text {
                return Some(i);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// The hash of an empty spelling.
pub(crate) const HASH_START: u32 = 0x811c_9dc5;

/// The hash of a spelling one byte longer. The lexer folds it as it scans.
pub(crate) const fn hash_step(hash: u32, byte: u8) -> u32 {
    let h = (hash ^ byte as u32).wrapping_mul(0x0100_0193);
    h ^ (h >> 15)
}

/// The hash of a spelling.
pub(crate) const fn hash(text: &[u8]) -> u32 {
    let mut h = HASH_START;
    let mut i = 0;
    while i < text.len() {
        h = hash_step(h, text[i]);
        i += 1;
    }
    h
}

/// Declares a fieldless enum with a spelling for each variant.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[expect(missing_docs, reason = "each variant is the PTX word beside it")]
        pub enum $name { $($variant,)* }

        impl $name {
            /// Every word, in order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            const TEXTS: &'static [&'static str] = &[$($text,)*];

            /// The PTX spelling, without a leading dot.
            #[must_use]
            pub const fn text(self) -> &'static str {
                Self::TEXTS[self as usize]
            }

            /// The word spelt `text` (no leading dot), if it is one.
            #[must_use]
            pub fn parse(text: &str) -> Option<$name> {
                Self::parse_hashed(text, hash(text.as_bytes()))
            }

            pub(crate) fn parse_hashed(text: &str, hash: u32) -> Option<$name> {
                static INDEX: WordTable = WordTable::new(&[$name::TEXTS]);
                Some(Self::ALL[INDEX.find(text, hash, |i| Self::TEXTS[i])?])
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}
pub(crate) use words;
