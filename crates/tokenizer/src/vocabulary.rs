//! Vocabulary of a GGUF file: the text, kind and score of each token, and the token of a text.
//!
//! Texts lie one behind the other; the table of texts has ids alone, hashed with a key of its own,
//! so that a hostile file cannot choose texts that collide.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A piece of text.
    Normal = 1,
    /// Stands for text that has no token.
    Unknown = 2,
    /// Structure of a conversation; text never becomes one unless that is asked for.
    Control = 3,
    /// Found in text before anything else is.
    UserDefined = 4,
    /// Reserved.
    Unused = 5,
    /// One byte.
    Byte = 6,
}

impl TokenKind {
    pub(crate) fn of_number(number: u64) -> TokenKind {
        match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            6 => TokenKind::Byte,
            _ => TokenKind::Unused,
        }
    }

    /// Whether it stands for structure, and no text may become it unasked.
    pub(crate) fn is_control(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown)
    }
}

/// Texts with an id each, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    texts: Vec<u8>,
    /// Where each text ends.
    ends: Vec<u32>,
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl TextTable {
    /// The text of this id, empty beyond the last.
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let from = match id.checked_sub(1) {
            Some(before) => self.ends.get(before).copied(),
            None => Some(0),
        };
        match (from, self.ends.get(id)) {
            (Some(from), Some(to)) => &self.texts[from as usize..*to as usize],
            _ => &[],
        }
    }

    /// The id of a text that is looked up: the last that was added with it.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        let is_it = |id: &u32| self.text(*id) == text;
        self.ids.find(hash, is_it).copied()
    }

    /// Makes a text be found no more.
    pub(crate) fn hide(&mut self, id: u32) {
        let hash = self.hasher.hash_one(self.text(id));
        if let Ok(found) = self.ids.find_entry(hash, |it| *it == id) {
            found.remove();
        }
    }

    /// Adds a text. One that is not looked up, has an id alone.
    pub(crate) fn push(&mut self, text: &[u8], is_found: bool) -> u32 {
        let id = self.ends.len() as u32;
        self.texts.extend(text);
        self.ends.push(self.texts.len() as u32);
        if !is_found {
            return id;
        }
        let hash = self.hasher.hash_one(text);
        let (texts, ends) = (&self.texts, &self.ends);
        let at = |id: u32| {
            let from = (id as usize).checked_sub(1).map_or(0, |it| ends[it]);
            &texts[from as usize..ends[id as usize] as usize]
        };
        match self.ids.find_mut(hash, |it| at(*it) == text) {
            Some(found) => *found = id,
            None => {
                let hasher = &self.hasher;
                self.ids
                    .insert_unique(hash, id, |it| hasher.hash_one(at(*it)));
            }
        }
        id
    }
}

/// The longest text, in bytes, that is found in other text by steps of a byte.
pub(crate) const LONGEST: usize = 1024;

/// Found texts of a table in their order, to find those that another text begins with.
#[derive(Debug, Default)]
pub(crate) struct TextOrder {
    ids: Vec<u32>,
}

impl TextOrder {
    pub(crate) fn new(table: &TextTable) -> TextOrder {
        let mut ids: Vec<u32> = table.ids.iter().copied().collect();
        ids.sort_unstable_by(|a, b| table.text(*a).cmp(table.text(*b)));
        TextOrder { ids }
    }

    /// Calls with the length and id of each text that this one begins with, the shortest first.
    pub(crate) fn prefixes(
        &self,
        table: &TextTable,
        text: &[u8],
        mut each: impl FnMut(usize, u32),
    ) {
        let mut left = &self.ids[..];
        for (depth, byte) in text.iter().enumerate().take(LONGEST) {
            let at = |id: &u32| table.text(*id).get(depth).copied();
            let from = left.partition_point(|id| at(id) < Some(*byte));
            left = &left[from..];
            let to = left.partition_point(|id| at(id) == Some(*byte));
            left = &left[..to];
            match left.first() {
                Some(id) if table.text(*id).len() == depth + 1 => each(depth + 1, *id),
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// All tokens of a model.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    /// The bytes that each token stands for when it is encoded.
    pub(crate) table: TextTable,
    /// As the file has them, where they differ from the bytes.
    pub(crate) pieces: TextTable,
    pub(crate) kinds: Vec<TokenKind>,
    pub(crate) scores: Vec<f32>,
    /// The tokens of single bytes.
    pub(crate) byte_tokens: Vec<Option<u32>>,
    /// Bytes of the longest text.
    pub(crate) longest: usize,
    /// What stands for text without tokens.
    pub(crate) unknown: Option<u32>,
    /// The texts in order.
    pub(crate) order: TextOrder,
}

impl Vocabulary {
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Bytes of the longest user-defined text that this one begins with, or 0.
    pub(crate) fn defined_prefix(&self, text: &str) -> usize {
        let mut longest = 0;
        self.order
            .prefixes(&self.table, text.as_bytes(), |len, id| {
                if self.kind(id) == Some(TokenKind::UserDefined) {
                    longest = len;
                }
            });
        longest
    }

    /// Takes a token out of the texts that are found.
    pub(crate) fn make_control(&mut self, id: u32) {
        if let Some(kind) = self.kinds.get_mut(id as usize) {
            *kind = TokenKind::Control;
            self.table.hide(id);
            for token in &mut self.byte_tokens {
                *token = token.filter(|it| *it != id);
            }
        }
    }

    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }
}
