//! Model files: GGUF, safetensors, and quantised weights in them.
#![no_main]

#[path = "../../crates/modelfile/tests/suite/property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds_for(bytes));
