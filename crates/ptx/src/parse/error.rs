//! Parse errors with their position.

use std::fmt;

/// Why a text is not PTX: the first thing wrong.
///
/// Displays as three lines: position and message, the text's line, a caret under the column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// 1-based.
    pub line: u32,
    /// 1-based, in characters.
    pub column: u32,
    /// What was expected and what was found, without the position.
    pub message: String,
    /// The line at fault and a caret beneath; a long line is cut around the column.
    pub excerpt: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}\n{}",
            self.line, self.column, self.message, self.excerpt
        )
    }
}

/// Characters of a line that are shown on either side of the fault.
const SHOWN: usize = 60;

/// The column of byte `pos`, and its line with a caret.
pub(super) fn excerpt(text: &str, pos: usize) -> (u32, String) {
    let mut pos = pos.min(text.len());
    while !text.is_char_boundary(pos) {
        pos -= 1;
    }
    let start = text[..pos].rfind('\n').map_or(0, |i| i + 1);
    let column = text[start..pos].chars().count();
    let cut = column.saturating_sub(SHOWN);
    let line = text[start..]
        .chars()
        .skip(cut)
        .take_while(|&c| c != '\n')
        .take(2 * SHOWN);
    let shown: String = line.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let caret = column - cut;
    (
        u32::try_from(column + 1).unwrap_or(u32::MAX),
        format!("  {}\n  {:caret$}^", shown.trim_end(), ""),
    )
}

/// The word of `known` that `word` most likely stands for, as `; did you mean ...?`, or nothing.
pub(super) fn suggestion(word: &str, known: impl IntoIterator<Item = &'static str>) -> String {
    if word.len() > 40 {
        return String::new();
    }
    let best = known.into_iter().map(|k| (distance(word, k), k)).min();
    match best {
        Some((d, k)) if d <= 1 + word.len() / 4 => format!("; did you mean `{k}`?"),
        _ => String::new(),
    }
}

/// Letters to add, drop, change or swap with a neighbour to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = last;
        last = row;
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_stands_under_the_column() {
        assert_eq!(
            excerpt("ab\n\tfoo bar;\nc", 8),
            (6, "   foo bar;\n       ^".to_owned())
        );
        assert_eq!(excerpt("", 0), (1, "  \n  ^".to_owned()));
    }

    #[test]
    fn a_near_word_is_suggested_and_a_far_one_is_not() {
        assert_eq!(suggestion("fam", ["add", "fma"]), "; did you mean `fma`?");
        assert_eq!(suggestion("zzz", ["add", "fma"]), "");
    }
}
