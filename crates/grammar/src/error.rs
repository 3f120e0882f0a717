//! Errors of grammars.

/// Why a grammar was not compiled, or not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It has no meaning, or a larger one than is computed.
    #[error("{what}\ntry: {advice}")]
    Source {
        /// What is wrong, and where.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// No text of the model's tokens follows it.
    #[error("no text follows the {kind}: {what}\ntry: a {kind} that some text follows")]
    Unsatisfiable {
        /// Sort of the grammar.
        kind: &'static str,
        /// Why.
        what: String,
    },
    /// The vocabulary is none that grammars can be computed for.
    #[error("grammars cannot be followed with this model: {what}\ntry: another model")]
    Vocabulary {
        /// What is in the way.
        what: String,
    },
    /// The text so far cannot go on: more states than are computed, or no token that fits.
    #[error("the grammar cannot be followed further: {what}\ntry: a simpler grammar")]
    Stuck {
        /// What is in the way.
        what: String,
    },
}

/// The first line of a message of the parser, without what it adds for its authors.
pub(crate) fn first_lines(message: &str) -> String {
    const MOST: usize = 600;
    let ends = ["<non-verbose/>", "<state>", "<backtrace>", "; try "];
    let end = ends.iter().filter_map(|it| message.find(it)).min();
    let text = message[..end.unwrap_or(message.len())].trim_end();
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text.to_owned(),
    }
}

/// An error of a grammar's text.
pub(crate) fn refused(what: impl Into<String>, advice: &'static str) -> GrammarError {
    GrammarError::Source {
        what: what.into(),
        advice,
    }
}
