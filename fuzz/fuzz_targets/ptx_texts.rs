//! Any bytes as PTX: read or refused, and what is read obeys the round trip.
#![no_main]

#[path = "../../crates/ptx/tests/property/mod.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| property::holds_for(&String::from_utf8_lossy(bytes)));
