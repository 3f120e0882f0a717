//! Just-in-time compiler of array expressions over device buffers. See the README.
#![deny(unsafe_code)]

mod bound;
mod canonical;
mod compiler;
mod dims;
mod emit;
mod error;
mod expr;
mod fold;
mod fused;
mod graph;
mod kernel;
mod key;
mod near;
mod node;
mod op;
mod program;
pub mod reference;
mod split;
pub mod text;

pub use bound::{ALIGN, Bindings, BoundArg, BoundNames};
pub use canonical::Canonical;
pub use compiler::{CodeOrigin, CompiledExpr, Compiler};
pub use dims::{Axes, Dims};
pub use error::Error;
pub use fused::{Fused, Temporary};
pub use graph::{ExprError, ExprGraph, MAX_ARRAYS, MAX_NODES};
pub use kernel::ParameterBinding;
pub use key::CodeKey;
pub use node::{ExprNodeId, NumberLiteral};
pub use op::{Binary, Reduction, TypeClass, Unary};
pub use program::{LaunchPlan, Program, ProgramError};
