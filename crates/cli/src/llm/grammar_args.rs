//! Options of a grammar that a generated text follows.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fercuda_grammar::{GrammarCompiler, GrammarError, GrammarSource, MOST_SOURCE, TokenGrammar};

use super::LoadedModel;
use crate::input::{read_at_most, read_stdin};
use crate::status::bail_usage;

/// Options of the commands that generate a text which follows a grammar.
#[derive(clap::Args)]
pub(crate) struct GrammarArgs {
    /// Follow the JSON schema in FILE; - reads it from standard input.
    #[arg(long, value_name = "FILE", group = "followed")]
    json_schema: Option<PathBuf>,
    /// Match this regular expression whole.
    #[arg(
        long,
        value_name = "REGEX",
        group = "followed",
        allow_hyphen_values = true
    )]
    regex: Option<String>,
    /// Follow the grammar in FILE, in Lark's notation or in GBNF; - reads standard input.
    #[arg(long, value_name = "FILE", group = "followed")]
    grammar: Option<PathBuf>,
}

impl GrammarArgs {
    /// Whether standard input has the grammar.
    pub(crate) fn reads_stdin(&self) -> bool {
        let files = [&self.json_schema, &self.grammar];
        files.into_iter().flatten().any(|it| it == Path::new("-"))
    }

    /// The grammar as it is written, if there is one.
    pub(crate) fn source(&self) -> Result<Option<GrammarSource>> {
        if let Some(regex) = &self.regex {
            return Ok(Some(GrammarSource::Regex(regex.clone())));
        }
        Ok(match (&self.json_schema, &self.grammar) {
            (Some(file), _) => Some(GrammarSource::JsonSchema(read(file, "a JSON schema")?)),
            (None, Some(file)) => Some(GrammarSource::Lark(read(file, "a grammar")?)),
            (None, None) => None,
        })
    }
}

/// A file's text, or that of standard input.
fn read(file: &Path, what: &str) -> Result<String> {
    let most = MOST_SOURCE as u64;
    let bytes = match file == Path::new("-") {
        true => read_stdin(what, most)?,
        false => read_at_most(file, most)?,
    };
    if bytes.len() > MOST_SOURCE {
        bail_usage!(
            "{} has more than {}\ntry: {what}",
            file.display(),
            crate::terminal::bytes(most)
        );
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail_usage!("{} is no text of UTF-8\ntry: {what}", file.display()),
    }
}

impl LoadedModel {
    /// Compiles a grammar for the model's tokens.
    pub(crate) fn compile(&self, source: Option<&GrammarSource>) -> Result<Option<TokenGrammar>> {
        let Some(source) = source else {
            return Ok(None);
        };
        let compiler = GrammarCompiler::new(&self.tokenizer)?;
        match compiler.compile(source) {
            Ok(grammar) => Ok(Some(grammar)),
            Err(error @ GrammarError::Vocabulary { .. }) => {
                Err(error).context("a grammar was given")
            }
            Err(error) => bail_usage!("{error}"),
        }
    }
}
