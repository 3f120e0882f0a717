//! Errors of compiling and running expressions.

use crate::program::ProgramError;

/// Error of compiling or running an expression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No program could be generated for it.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// A wrong number of buffers is bound.
    #[error(
        "{given} {what}s are bound, the expression has {wanted}\ntry: one for each, in their order"
    )]
    Count {
        /// `input` or `output`.
        what: &'static str,
        /// NumberLiteral that the expression has.
        wanted: usize,
        /// NumberLiteral bound.
        given: usize,
    },
    /// The bound memory is too small for the layout.
    #[error(
        "{what} {name:?} as {layout} reaches bytes {from} to {until} of {bytes}\ntry: a larger buffer, or another place for its first element"
    )]
    Reach {
        /// `input`, `output` or `scratch`.
        what: &'static str,
        /// Its name.
        name: String,
        /// Its layout.
        layout: String,
        /// The first byte that it reaches, from the beginning of the memory.
        from: i64,
        /// The byte behind the last.
        until: i64,
        /// Size of the memory.
        bytes: u64,
    },
    /// The first element is misaligned.
    #[error(
        "{what} {name:?} begins at {address:#x}, which is no multiple of {align}\ntry: another place for its first element"
    )]
    Misaligned {
        /// `input`, `output` or `scratch`.
        what: &'static str,
        /// Its name.
        name: String,
        /// Its address.
        address: u64,
        /// The required alignment.
        align: u64,
    },
    /// An output overlaps other memory.
    #[error(
        "output {output:?} overlaps {what} {other:?}\ntry: separate memory; an output may share an input's memory, exactly, only if each element is computed from the element at the same place alone"
    )]
    Overlap {
        /// The output's name.
        output: String,
        /// `input` or `output`.
        what: &'static str,
        /// The other's name.
        other: String,
    },
}
