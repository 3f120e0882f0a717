//! Errors of a text, with their position.

/// Number of characters of a line that are shown on each side of a position.
const SHOWN: usize = 60;
/// Characters of a problem that are shown: a name in it may be as long as the text.
const LONGEST: usize = 200;

/// A parse error and its position. Displayed with the line, and a mark below the position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.shown())]
#[non_exhaustive]
pub struct TextError {
    /// Offset from the beginning, in bytes.
    pub at: usize,
    /// Line number, from 1 on.
    pub line: usize,
    /// Character of that line, from 1 on.
    pub column: usize,
    /// The problem.
    pub what: String,
    /// What to try; empty if there is no suggestion.
    pub hint: String,
    /// The line around the position, and the number of characters of it before the position.
    excerpt: (String, usize),
    is_only_line: bool,
}

impl TextError {
    pub(super) fn new(wrong: TextProblem, text: &str) -> Self {
        let TextProblem { at, what, hint } = wrong;
        let (before, after) = text.split_at(at);
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let before: Vec<char> = before[begin..].chars().collect();
        let after = after.split('\n').next().unwrap_or_default();
        let cut = before.len().saturating_sub(SHOWN);
        let mut excerpt = String::from(if cut > 0 { "..." } else { "" });
        excerpt.extend(&before[cut..]);
        let place = excerpt.chars().count();
        excerpt.extend(after.chars().take(SHOWN));
        if after.chars().nth(SHOWN).is_some() {
            excerpt += "...";
        }
        Self {
            at,
            line: 1 + text[..begin].matches('\n').count(),
            column: 1 + before.len(),
            what,
            hint,
            excerpt: (excerpt, place),
            is_only_line: !text.trim_end().contains('\n'),
        }
    }

    fn shown(&self) -> String {
        let Self { what, hint, .. } = self;
        let (excerpt, place) = &self.excerpt;
        // A tab is repeated in the line of the mark.
        let before = excerpt.chars().take(*place);
        let mark: String = before.map(|c| if c == '\t' { c } else { ' ' }).collect();
        let line = match self.is_only_line {
            true => String::new(),
            false => format!("line {}, ", self.line),
        };
        let column = self.column;
        let mut all = format!("{line}column {column}: {what}\n  {excerpt}\n  {mark}^");
        if !hint.is_empty() {
            all += &format!("\ntry: {hint}");
        }
        all
    }
}

/// A problem at a byte of a text.
pub(super) struct TextProblem {
    at: usize,
    what: String,
    hint: String,
}

impl TextProblem {
    pub(super) fn new(at: usize, what: impl Into<String>, hint: impl Into<String>) -> Self {
        let (mut what, hint) = (what.into(), hint.into());
        if let Some((end, _)) = what.char_indices().nth(LONGEST) {
            what.truncate(end);
            what += "...";
        }
        Self { at, what, hint }
    }
}

/// A result whose error has a position.
pub(super) type Result<T> = std::result::Result<T, TextProblem>;
