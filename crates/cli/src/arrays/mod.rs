//! Arrays of a command line: their layouts and contents, and results beside expected ones.
//!
//! Shared by `jit` and `ops`, in part by `check`.

pub(crate) mod compare;
pub(crate) mod fill;
pub(crate) mod input;
pub(crate) mod limits;
pub(crate) mod value;
