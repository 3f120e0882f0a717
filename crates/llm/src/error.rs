//! Errors of models and requests.

use fercuda_ops::OpError;
use fercuda_tensor::LayoutError;

/// Why a model was not opened, or a request not computed.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    /// The file was not read.
    #[error(transparent)]
    File(#[from] fercuda_modelfile::Error),
    /// The file describes no model that is supported.
    #[error("{what}\ntry: {advice}")]
    Model {
        /// What, and where.
        what: String,
        /// What to do.
        advice: String,
    },
    /// The memory that was planned is not there.
    #[error("{what}\ntry: {advice}")]
    #[non_exhaustive]
    Memory {
        /// How much is needed for what.
        what: String,
        /// What would fit.
        advice: String,
        /// Bytes that are needed.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// A request that can never run.
    #[error("{what}\ntry: {advice}")]
    Request {
        /// What does not fit.
        what: String,
        /// What to do.
        advice: String,
    },
    /// Logits are not numbers.
    #[error(
        "the model computes what are no numbers\n\
         try: the file's checksum, as its weights may be damaged; or a cache of f32"
    )]
    NotNumbers,
    /// A request's grammar cannot be followed further.
    #[error(
        "the grammar cannot be followed further: no token fits, or it needs too many states\n\
         try: a simpler grammar or schema"
    )]
    GrammarStuck,
    /// A file was not written.
    #[error(transparent)]
    Write(#[from] std::io::Error),
    /// An op of a step was refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A layout of a step was refused.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The session refused.
    #[error(transparent)]
    Runtime(#[from] fercuda_runtime::Error),
}

/// A request that can never run.
pub(crate) fn refused(what: impl Into<String>, advice: impl Into<String>) -> LlmError {
    LlmError::Request {
        what: what.into(),
        advice: advice.into(),
    }
}

/// A model that is not supported.
pub(crate) fn unsupported(what: impl Into<String>, advice: impl Into<String>) -> LlmError {
    LlmError::Model {
        what: what.into(),
        advice: advice.into(),
    }
}
