//! PTX as data: parse, print, check, walk, build.
//!
//! Invariant: what is printed reads back equal, and nothing here knows what an instruction does
//! but [`build`], which writes them, and [`kernels`], written with it.
#![forbid(unsafe_code)]

pub mod ast;
pub mod build;
pub mod check;
pub mod kernels;
pub mod parse;
pub mod print;
pub mod walk;
pub mod words;

pub use check::{Diagnostic, check};
pub use parse::{ParseError, parse};
pub use print::print;
