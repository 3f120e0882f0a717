//! Fat binaries.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fercuda_fuzz::image(bytes));
