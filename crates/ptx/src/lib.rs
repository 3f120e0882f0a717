//! PTX as data: parse, print, build.
#![forbid(unsafe_code)]

pub mod ast;
pub mod parse;
pub mod print;
pub mod words;

pub use parse::{ParseError, parse};
pub use print::print;
