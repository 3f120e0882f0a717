//! PTX as data: parse, print, build.
#![forbid(unsafe_code)]

pub mod ast;
pub mod words;
