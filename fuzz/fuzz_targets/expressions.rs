//! Texts of expressions, and the kernels that are made of them.
#![no_main]

#[path = "../../crates/jit/tests/suite/property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds_for(bytes));
