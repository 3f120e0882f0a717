//! Byte-pair merges of one word, by a queue of pairs: n log n steps for n symbols.
//!
//! A symbol is a text that is a token, or that merges make on the way to one. Which pair merges
//! next is decided by the merges' order and then from left to right.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::vocabulary::Vocabulary;

/// A symbol that no merge knows.
const NO_SYMBOL: u32 = u32::MAX;
const NO_INDEX: u32 = u32::MAX;

/// The merges of a model.
#[derive(Debug)]
pub(crate) struct MergeTable {
    /// Of two symbols: the merge's place in the file, and the symbol that it makes. A symbol is a
    /// token's id, or beyond the last one.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Symbols of single bytes, where words are read as bytes.
    bytes: [u32; 256],
    /// Symbols that are no tokens.
    others: crate::vocabulary::TextTable,
    tokens: u32,
}

#[derive(Clone, Copy)]
struct WordPart {
    from: u32,
    len: u32,
    symbol: u32,
    before: u32,
    behind: u32,
}

impl MergeTable {
    /// Reads merges, each two texts; `None` where one is neither.
    pub(crate) fn new<'a>(
        vocabulary: &Vocabulary,
        merges: impl Iterator<Item = (Vec<u8>, Vec<u8>)> + 'a,
    ) -> MergeTable {
        let mut table = MergeTable {
            merges: HashMap::new(),
            bytes: [NO_SYMBOL; 256],
            others: Default::default(),
            tokens: vocabulary.len() as u32,
        };
        for (place, (left, right)) in merges.enumerate() {
            let left_symbol = table.symbol_for(vocabulary, &left);
            let right_symbol = table.symbol_for(vocabulary, &right);
            let joined = [left, right].concat();
            let made = table.symbol_for(vocabulary, &joined);
            let pair = (left_symbol, right_symbol);
            table.merges.entry(pair).or_insert((place as u32, made));
        }
        for byte in 0..=255_u8 {
            table.bytes[usize::from(byte)] = table.find(vocabulary, &[byte]);
        }
        table
    }

    fn find(&self, vocabulary: &Vocabulary, text: &[u8]) -> u32 {
        let token = vocabulary.table.find(text);
        let other = || self.others.find(text).map(|it| it + self.tokens);
        token.or_else(other).unwrap_or(NO_SYMBOL)
    }

    fn symbol_for(&mut self, vocabulary: &Vocabulary, text: &[u8]) -> u32 {
        match self.find(vocabulary, text) {
            NO_SYMBOL => self.others.push(text, true) + self.tokens,
            found => found,
        }
    }

    /// Appends the tokens of a word. Where the merges end at texts that are no tokens, those of
    /// their bytes are appended.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        as_bytes: bool,
        tokens: &mut Vec<u32>,
    ) {
        let mut parts = self.parts(vocabulary, word, as_bytes);
        let mut queue = BinaryHeap::new();
        for left in 1..parts.len() as u32 {
            self.offer(&parts, left - 1, left, &mut queue);
        }
        while let Some(Reverse((_, left, right, pair))) = queue.pop() {
            let [now_left, now_right] = [left, right].map(|it| parts[it as usize]);
            if (now_left.symbol, now_right.symbol) != pair || now_left.behind != right {
                continue;
            }
            let Some((_, made)) = self.merges.get(&pair) else {
                continue;
            };
            let behind = now_right.behind;
            let part = &mut parts[left as usize];
            part.len += now_right.len;
            part.symbol = *made;
            part.behind = behind;
            // So that no queued pair has it any more.
            parts[right as usize].symbol = NO_SYMBOL;
            parts[right as usize].behind = NO_INDEX;
            if behind != NO_INDEX {
                parts[behind as usize].before = left;
                self.offer(&parts, left, behind, &mut queue);
            }
            if now_left.before != NO_INDEX {
                self.offer(&parts, now_left.before, left, &mut queue);
            }
        }
        let mut at = 0;
        while let Some(part) = parts.get(at as usize) {
            self.emit(vocabulary, word, *part, tokens);
            at = part.behind;
        }
    }

    fn parts(&self, vocabulary: &Vocabulary, word: &str, as_bytes: bool) -> Vec<WordPart> {
        let part = |from: usize, len: usize, symbol| WordPart {
            from: from as u32,
            len: len as u32,
            symbol,
            before: NO_INDEX,
            behind: NO_INDEX,
        };
        let mut parts: Vec<WordPart> = match as_bytes {
            true => {
                let bytes = word.bytes().enumerate();
                bytes
                    .map(|(at, byte)| part(at, 1, self.bytes[usize::from(byte)]))
                    .collect()
            }
            false => {
                let symbol = |text: &str| self.find(vocabulary, text.as_bytes());
                let chars = word.char_indices();
                chars
                    .map(|(at, it)| (at, it.len_utf8()))
                    .map(|(at, len)| part(at, len, symbol(&word[at..at + len])))
                    .collect()
            }
        };
        let last = parts.len().saturating_sub(1);
        for (at, part) in parts.iter_mut().enumerate() {
            part.before = (at as u32).checked_sub(1).unwrap_or(NO_INDEX);
            part.behind = if at < last { at as u32 + 1 } else { NO_INDEX };
        }
        parts
    }

    #[expect(clippy::type_complexity, reason = "one queue, in one file")]
    fn offer(
        &self,
        parts: &[WordPart],
        left: u32,
        right: u32,
        queue: &mut BinaryHeap<Reverse<(u32, u32, u32, (u32, u32))>>,
    ) {
        let pair = (parts[left as usize].symbol, parts[right as usize].symbol);
        if let Some((place, _)) = self.merges.get(&pair) {
            queue.push(Reverse((*place, left, right, pair)));
        }
    }

    fn emit(&self, vocabulary: &Vocabulary, word: &str, part: WordPart, tokens: &mut Vec<u32>) {
        if part.symbol < self.tokens {
            tokens.push(part.symbol);
            return;
        }
        let bytes = &word.as_bytes()[part.from as usize..][..part.len as usize];
        for byte in bytes {
            tokens.extend(vocabulary.byte_tokens[usize::from(*byte)]);
        }
    }
}
