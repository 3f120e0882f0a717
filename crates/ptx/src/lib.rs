//! PTX as data: parse, print, check, walk.
//!
//! Invariant: what is printed reads back equal, and nothing here knows what an instruction does.
#![forbid(unsafe_code)]

pub mod ast;
pub mod check;
pub mod parse;
pub mod print;
pub mod walk;
pub mod words;

pub use check::{Diagnostic, check};
pub use parse::{ParseError, parse};
pub use print::print;
