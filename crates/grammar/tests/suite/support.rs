//! A tokenizer of bytes, and what is compiled for it.

use std::path::Path;
use std::sync::OnceLock;

use fercuda_grammar::{GrammarCompiler, GrammarSource};
use fercuda_tokenizer::Tokenizer;

pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokenizer/tests/references");
        let file = std::fs::read(file.join("bytes.json")).unwrap();
        Tokenizer::from_json(&file).unwrap()
    })
}

pub(crate) fn compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| GrammarCompiler::new(tokenizer()).unwrap())
}

pub(crate) fn schema(text: &str) -> GrammarSource {
    GrammarSource::JsonSchema(text.to_owned())
}

pub(crate) fn lark(text: &str) -> GrammarSource {
    GrammarSource::Lark(text.to_owned())
}
