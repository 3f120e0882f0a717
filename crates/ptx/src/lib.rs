//! PTX as data: parse, print, check, walk, build.
//!
//! Invariant: printed text parses back to an equal module. Only [`build`], which emits
//! instructions, depends on their semantics.
#![forbid(unsafe_code)]

pub mod ast;
pub mod build;
mod bulk_rules;
pub mod check;
mod cluster_rules;
mod declaration_rules;
mod form_rules;
mod image_rules;
mod operand_types;
pub mod operands;
pub mod parse;
pub mod print;
pub mod walk;
mod wgmma_rules;
mod word_table;
pub mod words;

pub use check::{Diagnostic, check};
pub use operands::check_operands;
pub use parse::{ParseError, parse};
pub use print::print;
