//! Private marks around what looks like a control token in the texts of messages.
//!
//! Before a template is rendered, each text of a control token within a message is put between an
//! opening and a closing mark, and where a message's text ends in what could become one together
//! with its neighbour, an edge mark is put. The marks are three characters of a private plane that
//! occur nowhere in the request. Behind rendering they are taken out, and what they said is kept
//! as places. A template sees the marks: it may cut a text between them, but whatever it puts
//! together from a message and marks is no control token.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::data::ChatValue;
use super::methods::MARKS;
use crate::error::{Result, TokenizerError};
use crate::prompt::Prompt;

/// The three marks of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptMarks {
    open: char,
    close: char,
    edge: char,
}

/// The texts of control tokens.
#[derive(Debug)]
pub(crate) struct ControlTexts {
    finder: AhoCorasick,
    /// Every first character of a text, and every last one, with the texts they are of.
    texts: Vec<String>,
}

impl ControlTexts {
    pub(crate) fn new(mut texts: Vec<String>) -> Result<ControlTexts> {
        texts.retain(|it| !it.is_empty());
        let mut builder = AhoCorasick::builder();
        let finder = builder.match_kind(MatchKind::LeftmostLongest).build(&texts);
        let finder = finder.map_err(|error| {
            let what = format!("{} control tokens: {error}", texts.len());
            TokenizerError::malformed(what, "a model with fewer or shorter control tokens")
        })?;
        Ok(ControlTexts { finder, texts })
    }

    /// Whether a text can become a control token together with what is before or behind it.
    fn has_edges(&self, text: &str) -> (bool, bool) {
        let begins = self.texts.iter().any(|it| {
            let mut ends = it.char_indices().skip(1).map(|(at, _)| &it[at..]);
            ends.any(|end| text.starts_with(end)) || (it.len() > text.len() && it.contains(text))
        });
        let ends = self.texts.iter().any(|it| {
            let mut fronts = it.char_indices().skip(1).map(|(at, _)| &it[..at]);
            fronts.any(|front| text.ends_with(front))
                || (it.len() > text.len() && it.contains(text))
        });
        (begins, ends)
    }

    /// Whether a text needs marks.
    fn concerns(&self, text: &str) -> bool {
        if text.is_empty() {
            return false;
        }
        let (begins, ends) = self.has_edges(text);
        begins || ends || self.finder.is_match(text)
    }
}

impl PromptMarks {
    /// Marks that occur in none of these values nor in the template; `None` if none are needed.
    pub(crate) fn choose(
        values: &[&ChatValue],
        template: &str,
        control: &ControlTexts,
    ) -> Result<Option<PromptMarks>> {
        let mut is_needed = false;
        let mut used = std::collections::BTreeSet::new();
        let mut note = |text: &str| {
            is_needed |= control.concerns(text);
            used.extend(text.chars().filter(|it| MARKS.contains(it)));
        };
        for value in values {
            each_text(value, &mut note);
        }
        if !is_needed {
            return Ok(None);
        }
        let texts = control.texts.iter().map(String::as_str);
        for text in texts.chain([template]) {
            used.extend(text.chars().filter(|it| MARKS.contains(it)));
        }
        let mut free = MARKS.filter(|it| !used.contains(it));
        match (free.next(), free.next(), free.next()) {
            (Some(open), Some(close), Some(edge)) => Ok(Some(PromptMarks { open, close, edge })),
            _ => Err(TokenizerError::Messages {
                what: "messages with every character from U+FFFF0 to U+FFFFD".to_owned(),
                hint: "messages without characters for private use",
            }),
        }
    }

    /// A value with marks in its texts; roles and types, which templates compare, have none.
    pub(crate) fn mark(self, value: &ChatValue, control: &ControlTexts) -> ChatValue {
        match value {
            ChatValue::Text(text) => ChatValue::Text(self.mark_text(text, control)),
            ChatValue::List(items) => {
                let items = items.iter().map(|it| self.mark(it, control));
                ChatValue::List(items.collect())
            }
            ChatValue::Object(members) => {
                let member = |(key, it): &(String, ChatValue)| match (&**key, it) {
                    ("role" | "type", ChatValue::Text(_)) => (key.clone(), it.clone()),
                    _ => (self.mark_name(key, control), self.mark(it, control)),
                };
                ChatValue::Object(members.iter().map(member).collect())
            }
            other => other.clone(),
        }
    }

    /// The name of a member, which templates look up: marked if it has a whole control token.
    fn mark_name(self, name: &str, control: &ControlTexts) -> String {
        match control.finder.is_match(name) {
            true => self.mark_text(name, control),
            false => name.to_owned(),
        }
    }

    fn mark_text(self, text: &str, control: &ControlTexts) -> String {
        if !control.concerns(text) {
            return text.to_owned();
        }
        let (begins, ends) = control.has_edges(text);
        let mut marked = String::with_capacity(text.len() + 16);
        if begins {
            marked.push(self.edge);
        }
        let mut at = 0;
        for found in control.finder.find_iter(text) {
            marked.push_str(&text[at..found.start()]);
            marked.push(self.open);
            marked.push_str(&text[found.range()]);
            marked.push(self.close);
            at = found.end();
        }
        marked.push_str(&text[at..]);
        if ends {
            marked.push(self.edge);
        }
        marked
    }

    /// Takes the marks out of a rendered text.
    pub(crate) fn unmark(self, marked: &str) -> Prompt {
        let mut text = String::with_capacity(marked.len());
        let mut literals: Vec<Range<usize>> = Vec::new();
        let mut seams = Vec::new();
        let mut opened = None;
        for it in marked.chars() {
            if it == self.open {
                opened = Some(text.len());
            } else if it == self.close {
                if let Some(from) = opened.take() {
                    literals.push(from..text.len());
                }
            } else if it != self.edge {
                text.push(it);
                continue;
            }
            // Each mark separates what is before it from what is behind it.
            if seams.last() != Some(&text.len()) {
                seams.push(text.len());
            }
        }
        Prompt {
            text,
            literals,
            seams,
        }
    }
}

/// Calls with every text of a value, names of members too.
fn each_text(value: &ChatValue, each: &mut impl FnMut(&str)) {
    match value {
        ChatValue::Text(text) => each(text),
        ChatValue::List(items) => items.iter().for_each(|it| each_text(it, each)),
        ChatValue::Object(members) => {
            for (key, it) in members {
                each(key);
                each_text(it, each);
            }
        }
        _ => {}
    }
}
