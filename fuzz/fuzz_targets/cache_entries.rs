//! Entries of the cache of compiled programs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fercuda_fuzz::cache_entry(bytes));
