//! A rendered prompt: text, and which of it is structure and which only looks like it.

use std::ops::Range;

/// What becomes of control tokens' texts in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They are text like any other: for whatever a user wrote.
    AsText,
    /// They become control tokens: for text whose author may write a conversation's structure.
    Parsed,
}

/// The text that a chat template made, in which the texts of messages stay text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    pub(crate) text: String,
    /// Texts of control tokens that messages have, in order.
    pub(crate) literals: Vec<Range<usize>>,
    /// Places over which no control token reaches, in order.
    pub(crate) seams: Vec<usize>,
}

impl Prompt {
    /// The text, as transformers renders it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of control tokens' texts that messages have, and that stay text.
    pub fn literal_count(&self) -> usize {
        self.literals.len()
    }
}

/// A text and where it has structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptText<'a> {
    pub(crate) text: &'a str,
    structure: PromptStructure<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PromptStructure<'a> {
    Nowhere,
    Everywhere,
    Of(&'a Prompt),
}

impl<'a> PromptText<'a> {
    pub(crate) fn new(text: &'a str, special: Special) -> PromptText<'a> {
        let structure = match special {
            Special::AsText => PromptStructure::Nowhere,
            Special::Parsed => PromptStructure::Everywhere,
        };
        PromptText { text, structure }
    }

    pub(crate) fn of(prompt: &'a Prompt) -> PromptText<'a> {
        let is_all_structure = prompt.literals.is_empty() && prompt.seams.is_empty();
        let structure = match is_all_structure {
            true => PromptStructure::Everywhere,
            false => PromptStructure::Of(prompt),
        };
        let text = &prompt.text;
        PromptText { text, structure }
    }

    pub(crate) fn has_no_structure(&self) -> bool {
        matches!(self.structure, PromptStructure::Nowhere)
    }

    pub(crate) fn is_all_structure(&self) -> bool {
        matches!(self.structure, PromptStructure::Everywhere)
    }

    /// Whether a control token's text at this place is one.
    pub(crate) fn is_structure(&self, place: &Range<usize>) -> bool {
        match self.structure {
            PromptStructure::Nowhere => false,
            PromptStructure::Everywhere => true,
            PromptStructure::Of(prompt) => {
                let literals = &prompt.literals;
                let next = literals.partition_point(|it| it.end <= place.start);
                let is_literal = literals.get(next).is_some_and(|it| it.start < place.end);
                let seam = prompt.seams.partition_point(|it| *it <= place.start);
                let is_cut = prompt.seams.get(seam).is_some_and(|it| *it < place.end);
                !is_literal && !is_cut
            }
        }
    }
}
