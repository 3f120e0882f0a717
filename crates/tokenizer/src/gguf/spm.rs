//! Merges of SentencePiece's byte-pair models: the best-scored token that two neighbours make.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::vocabulary::Vocabulary;

const NO_INDEX: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct ScoredPair {
    score: f32,
    left: u32,
    right: u32,
    /// Bytes of both, by which a pair that has changed is known.
    bytes: u32,
}

impl Ord for ScoredPair {
    /// The greatest is merged first: the best score, then the leftmost.
    fn cmp(&self, other: &ScoredPair) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for ScoredPair {
    fn partial_cmp(&self, other: &ScoredPair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScoredPair {
    fn eq(&self, other: &ScoredPair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScoredPair {}

#[derive(Clone, Copy)]
struct ScoredPart {
    from: u32,
    len: u32,
    before: u32,
    behind: u32,
}

/// Appends the tokens of a text whose spaces are escaped.
pub(crate) fn encode(vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
    let last = text.chars().count().saturating_sub(1) as u32;
    let chars = text.char_indices().enumerate();
    let part = |(index, (from, it)): (usize, (usize, char))| ScoredPart {
        from: from as u32,
        len: it.len_utf8() as u32,
        before: (index as u32).checked_sub(1).unwrap_or(NO_INDEX),
        behind: match (index as u32) < last {
            true => index as u32 + 1,
            false => NO_INDEX,
        },
    };
    let mut parts: Vec<ScoredPart> = chars.map(part).collect();
    let mut queue = BinaryHeap::new();
    let bytes = text.as_bytes();
    for right in 1..parts.len() as u32 {
        offer(vocabulary, bytes, &parts, (right - 1, right), &mut queue);
    }
    while let Some(pair) = queue.pop() {
        let [left, right] = [pair.left, pair.right].map(|it| parts[it as usize]);
        if left.len == 0 || right.len == 0 || left.len + right.len != pair.bytes {
            continue;
        }
        parts[pair.left as usize].len = pair.bytes;
        parts[pair.left as usize].behind = right.behind;
        parts[pair.right as usize].len = 0;
        if right.behind != NO_INDEX {
            parts[right.behind as usize].before = pair.left;
            let next = (pair.left, right.behind);
            offer(vocabulary, bytes, &parts, next, &mut queue);
        }
        if left.before != NO_INDEX {
            let next = (left.before, pair.left);
            offer(vocabulary, bytes, &parts, next, &mut queue);
        }
    }
    let mut at = 0;
    while let Some(part) = parts.get(at as usize) {
        emit(
            vocabulary,
            &bytes[part.from as usize..][..part.len as usize],
            tokens,
        );
        at = part.behind;
    }
}

fn offer(
    vocabulary: &Vocabulary,
    text: &[u8],
    parts: &[ScoredPart],
    (left, right): (u32, u32),
    queue: &mut BinaryHeap<ScoredPair>,
) {
    let [first, second] = [left, right].map(|it| parts[it as usize]);
    let bytes = first.len + second.len;
    // Also a bound: no text is hashed that is longer than every token.
    if bytes as usize > vocabulary.longest {
        return;
    }
    let joined = &text[first.from as usize..][..bytes as usize];
    if let Some(token) = vocabulary.table.find(joined) {
        queue.push(ScoredPair {
            score: vocabulary.score(token),
            left,
            right,
            bytes,
        });
    }
}

fn emit(vocabulary: &Vocabulary, text: &[u8], tokens: &mut Vec<u32>) {
    if let Some(token) = vocabulary.table.find(text) {
        tokens.push(token);
        return;
    }
    for byte in text {
        let token = vocabulary.byte_tokens[usize::from(*byte)];
        tokens.extend(token.or(vocabulary.unknown));
    }
}
