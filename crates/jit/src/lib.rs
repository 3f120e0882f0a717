//! Expressions over buffers, compiled when they are first run. See the README.
#![deny(unsafe_code)]

mod canonical;
mod compiler;
mod dims;
mod emit;
mod fold;
mod fused;
mod graph;
mod key;
mod op;
mod program;
pub mod reference;
mod split;
pub mod text;

pub use canonical::Canonical;
pub use compiler::{Arg, Compiled, Compiler, Error, Origin};
pub use dims::{Axes, Dims};
pub use fused::{Fused, Slot, Temporary};
pub use graph::{Graph, GraphError, Id, MAX_ARRAYS, MAX_NODES, Number};
pub use key::Key;
pub use op::{Binary, Class, Reduction, Unary};
pub use program::{LaunchPlan, Program, ProgramError};
