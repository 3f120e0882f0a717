//! Needs of memory, a line each, and their places.
#![no_main]

#[path = "../../crates/runtime/tests/property/mod.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds_for_plan(bytes));
