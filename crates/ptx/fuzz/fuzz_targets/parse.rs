//! Any bytes: read or refused, and what is read obeys the round trip.
//!
//! Start from the hand-written forms: `cargo +nightly fuzz run parse corpus ../tests/forms`.
#![no_main]

#[path = "../../tests/property/mod.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        property::holds_for(text);
    }
});
