//! Tokenizers of GGUF files and tokenizer.json, and chat templates.
#![no_main]

#[path = "../../crates/tokenizer/tests/suite/property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds_for(bytes));
