//! Grammars that texts of language models follow, token by token. See the README.
#![forbid(unsafe_code)]

mod compiler;
mod error;
mod gbnf;
mod lark_text;
mod source;
mod token_grammar;
mod vocabulary;

pub use compiler::GrammarCompiler;
pub use error::GrammarError;
pub use lark_text::lark_text;
pub use source::{GrammarSource, MOST_CHOICES, MOST_RULES, MOST_SOURCE, lark_schema};
pub use token_grammar::{AllowedTokens, TokenGrammar};
