//! Any bytes are a program; the shadow sees what the pool does with it.
#![no_main]

#[path = "../../crates/pool/tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(wrong) = model::run_program(bytes) {
        panic!("{wrong}");
    }
});
