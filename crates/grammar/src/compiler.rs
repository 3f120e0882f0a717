//! Grammars compiled for a tokenizer, within bounds of time and memory.

use std::fmt;

use fercuda_tokenizer::Tokenizer;
use llguidance::api::ParserLimits;
use llguidance::{Matcher, ParserFactory};

use crate::error::{GrammarError, first_lines, refused};
use crate::source::{EITHER_RULE, GrammarSource};
use crate::token_grammar::{NO_TOKEN, TokenGrammar};
use crate::vocabulary::vocabulary;

/// Stack of the thread that compiles; what it does not touch costs nothing. Rules that name each
/// other are descended into.
const STACK_BYTES: usize = 256 << 20;

/// Advice where the parser says what is wrong.
const OTHER: &str = "what it says, or a simpler one";

/// Compiles grammars for the tokens of one tokenizer. Threads may share it.
pub struct GrammarCompiler {
    factory: ParserFactory,
}

/// Bounds of a grammar and of each of its steps: tens of milliseconds, and of memory about 50 MB.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        // A choice has an item for each of its texts.
        max_items_in_row: 20_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 30_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

impl GrammarCompiler {
    /// Reads the vocabulary, which takes a tenth of a second of a large one.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer) -> Result<GrammarCompiler, GrammarError> {
        let refused = |error: String| GrammarError::Vocabulary {
            what: first_lines(&error),
        };
        let tokens = vocabulary(tokenizer)?;
        let factory = ParserFactory::new_simple(&tokens);
        let mut factory = factory.map_err(|error| refused(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(GrammarCompiler { factory })
    }

    /// Compiles a grammar, in a thread of its own, and computes which tokens begin a text.
    ///
    /// # Errors
    /// [`GrammarError::Source`] of what has no meaning or is too large, and
    /// [`GrammarError::Unsatisfiable`] of what no text follows.
    pub fn compile(&self, source: &GrammarSource) -> Result<TokenGrammar, GrammarError> {
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("fercuda-grammar".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.compile_here(source));
            match thread {
                Ok(thread) => thread.join().ok(),
                Err(error) => {
                    let what = format!("the grammar has no thread to be compiled in: {error}");
                    Some(Err(refused(what, "it again, when fewer programs run")))
                }
            }
        });
        compiled.unwrap_or_else(|| {
            let what = format!("the {} cannot be compiled", source.kind());
            Err(refused(what, "a simpler one"))
        })
    }

    fn compile_here(&self, source: &GrammarSource) -> Result<TokenGrammar, GrammarError> {
        let kind = source.kind();
        let parsed = source.parse()?;
        let matcher = Matcher::new(self.factory.create_parser(parsed));
        if let Some(error) = matcher.get_error() {
            let what = first_lines(&error);
            if what.starts_with("Unsatisfiable") || what.contains("false schema") {
                return Err(GrammarError::Unsatisfiable { kind, what });
            }
            let (what, advice) = match source {
                GrammarSource::Regex(_) => (without_rule(&what), OTHER),
                // Its places are those of a text that the user has not seen.
                _ if source.is_gbnf() => (without_place(&what).to_owned(), OTHER),
                GrammarSource::Lark(_) => (what, EITHER_RULE),
                _ => (what, OTHER),
            };
            let what = format!("the {kind} cannot be compiled: {what}");
            return Err(refused(what, advice));
        }
        let mut grammar = TokenGrammar::new(matcher);
        match grammar.allowed() {
            Ok(_) => Ok(grammar),
            Err(GrammarError::Stuck { what }) if what == NO_TOKEN => {
                let what = "none of the model's tokens begins one".to_owned();
                Err(GrammarError::Unsatisfiable { kind, what })
            }
            Err(GrammarError::Stuck { what }) => {
                let what = format!("the {kind} is too large: {what}");
                Err(refused(what, "a simpler one"))
            }
            Err(error) => Err(error),
        }
    }
}

/// A message without the place, and the line, that it names.
fn without_place(message: &str) -> &str {
    let first = message.lines().next().unwrap_or(message);
    let behind = first.trim_start_matches("at ");
    let behind = behind.trim_start_matches(|it: char| it.is_ascii_digit() || "()".contains(it));
    behind.strip_prefix(": ").unwrap_or(first)
}

/// A message of an expression, without the rule that it was put into.
fn without_rule(message: &str) -> String {
    let inner = message
        .split_once("(in regex): ")
        .map_or(message, |it| it.1);
    let end = inner.find("   1 | start:").unwrap_or(inner.len());
    inner[..end].trim_end().to_owned()
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        write!(out, "GrammarCompiler({tokens} tokens)")
    }
}
