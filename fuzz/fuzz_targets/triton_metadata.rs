//! Metadata of Triton.
#![no_main]

#[path = "../../crates/runtime/tests/property/mod.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds_for_metadata(bytes));
