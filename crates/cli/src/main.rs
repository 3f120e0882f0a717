//! The `fercuda` program.
#![forbid(unsafe_code)]
fn main() {}
