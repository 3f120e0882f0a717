//! Snapshots of files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fercuda_fuzz::snapshot(bytes));
