//! The `fercuda` program.
fn main() {}
