//! Guesses of a request's next tokens, which one step checks together.
//!
//! Invariant: a guess never changes what a request generates. Each token is chosen by the model's
//! own logits behind all tokens before it; a guess saves the step that would have computed them.

use std::collections::HashMap;

use crate::error::LlmError;
use crate::request::RequestId;

/// Tokens of a pattern that is looked up.
const PATTERN: usize = 3;

/// A request whose next tokens are to be guessed.
#[derive(Clone, Copy, Debug)]
pub struct DraftRequest<'a> {
    /// The request.
    pub request: RequestId,
    /// Its prompt, and what was generated behind it.
    pub tokens: &'a [u32],
    /// Most tokens that are of use.
    pub most: usize,
}

/// What guesses the next tokens of requests.
pub trait Drafter: std::fmt::Debug + Send {
    /// The guesses, for each request in their order: the most likely tokens behind its last one, or
    /// fewer, or none. Those beyond [`DraftRequest::most`] are not looked at.
    ///
    /// # Errors
    /// What the guesses could not be computed for. The step fails with it.
    fn draft(&mut self, requests: &[DraftRequest<'_>]) -> Result<Vec<Vec<u32>>, LlmError>;
}

/// Guesses by the text itself: where its last three tokens stood before, what followed them there
/// follows again. (Prompt lookup decoding, Saxena 2023.) Costs no memory of the device, and is of
/// use where answers repeat parts of their prompts: code that is edited, texts that are quoted.
#[derive(Debug, Default)]
pub struct NgramDrafter {
    indexes: HashMap<RequestId, PatternIndex>,
}

impl NgramDrafter {
    /// One without any requests.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Drafter for NgramDrafter {
    fn draft(&mut self, requests: &[DraftRequest<'_>]) -> Result<Vec<Vec<u32>>, LlmError> {
        let mut before = std::mem::take(&mut self.indexes);
        let drafts = requests.iter().map(|it| {
            let mut index = before.remove(&it.request).unwrap_or_default();
            let draft = index.draft(it.tokens, it.most);
            self.indexes.insert(it.request, index);
            draft
        });
        Ok(drafts.collect())
    }
}

/// Where each pattern of a text was seen last.
#[derive(Debug, Default)]
struct PatternIndex {
    /// Numbers of the tokens behind patterns.
    behind: HashMap<[u32; PATTERN], usize>,
    /// Tokens behind whose patterns all are known.
    indexed: usize,
}

impl PatternIndex {
    /// The tokens that followed the last pattern where it was seen before. Behind the end of the
    /// text they go on with what is guessed itself, so that what repeats goes on to repeat.
    fn draft(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        // The last pattern is none that was seen before.
        for end in self.indexed.max(PATTERN)..tokens.len() {
            self.behind.insert(pattern_before(tokens, end), end);
        }
        self.indexed = tokens.len().max(self.indexed);
        if tokens.len() < PATTERN {
            return Vec::new();
        }
        let Some(first) = self.behind.get(&pattern_before(tokens, tokens.len())) else {
            return Vec::new();
        };
        let mut draft: Vec<u32> = Vec::with_capacity(most);
        for at in *first..*first + most {
            let token = match tokens.get(at) {
                Some(token) => *token,
                None => draft[at - tokens.len()],
            };
            draft.push(token);
        }
        draft
    }
}

/// The tokens before that one; there are as many.
fn pattern_before(tokens: &[u32], end: usize) -> [u32; PATTERN] {
    std::array::from_fn(|at| tokens[end - PATTERN + at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_go_on_as_they_did_last() {
        let draft = |tokens: &[u32], most| PatternIndex::default().draft(tokens, most);
        assert!(draft(&[], 4).is_empty());
        assert!(draft(&[1, 1], 4).is_empty());
        assert!(draft(&[1, 2, 3], 4).is_empty());
        assert!(draft(&[1, 2, 3, 4, 2, 3], 4).is_empty());
        assert_eq!(draft(&[1, 2, 3, 4, 5, 1, 2, 3], 2), [4, 5]);
        // The last of two places counts.
        assert_eq!(draft(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1), [5]);
        // Beyond the end of the text.
        assert_eq!(draft(&[7, 7, 7, 7], 5), [7; 5]);
        assert_eq!(draft(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert!(draft(&[1, 2, 3, 1, 2, 3], 0).is_empty());
    }

    #[test]
    fn an_index_that_grows_equals_one_of_all() {
        let mut random = fercuda_trials::rng();
        for _ in 0..200 {
            let (mut grows, mut tokens) = (PatternIndex::default(), Vec::new());
            for _ in 0..40 {
                for _ in 0..random.usize(..4) {
                    tokens.push(random.u32(..3));
                }
                let wanted = PatternIndex::default().draft(&tokens, 5);
                assert_eq!(grows.draft(&tokens, 5), wanted, "{tokens:?}");
            }
        }
    }
}
