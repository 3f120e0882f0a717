//! Errors of finding, fetching and opening models.

use std::io;
use std::path::PathBuf;

/// The result of an operation with the hub.
pub type Result<T, E = HubError> = std::result::Result<T, E>;

/// Why a file of the hub is not there. No message has a token, or an address that a hub redirects
/// to, which may contain a signature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// No answer: there is no network, or the hub is not reachable.
    #[error(
        "cannot reach {host} for {repository}: {reason}\n\
         try: a network, HF_ENDPOINT for a mirror, or a folder that has the model's files"
    )]
    Unreachable {
        /// Host and port.
        host: String,
        /// `owner/name`.
        repository: String,
        /// What the system says.
        reason: String,
    },
    /// The hub lets this account not read the repository, or there is none of this name.
    #[error(
        "{host} refuses {repository} with status {status}{with}\n\
         try: the right name, or HF_TOKEN with a token of an account that may read it"
    )]
    Denied {
        /// Host and port.
        host: String,
        /// `owner/name`.
        repository: String,
        /// 401 or 403.
        status: u16,
        /// Whether the request had a token.
        with: &'static str,
    },
    /// There is no such repository, or no such file in it.
    #[error("{what}\ntry: {advice}")]
    Missing {
        /// What is not there.
        what: String,
        /// What is there, or what to do.
        advice: String,
    },
    /// A download that is not what the hub has announced. Where it was cut short, the part that
    /// came is kept, and the next attempt goes on behind it.
    #[error("{file} of {repository}: {what}\ntry: {advice}")]
    Damaged {
        /// The file.
        file: String,
        /// `owner/name`.
        repository: String,
        /// What is wrong, with numbers.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// An answer that is none of this protocol.
    #[error("{host}, asked for {repository}: {what}\ntry: later again, or another HF_ENDPOINT")]
    Answer {
        /// Host and port.
        host: String,
        /// `owner/name`.
        repository: String,
        /// What it said.
        what: String,
    },
    /// A variable of the environment, or a file with a setting.
    #[error("{variable} {what}\ntry: another value, or none")]
    Setting {
        /// Its name.
        variable: String,
        /// What is wrong; without its value, if that is a secret.
        what: String,
    },
    /// A call of the system failed.
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl HubError {
    /// An error of the system, for `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_owned();
        move |source| HubError::Io {
            action,
            path,
            source,
        }
    }
}

/// Why a model was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It was not fetched.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Its files were not read.
    #[error(transparent)]
    File(#[from] fercuda_modelfile::Error),
    /// It has no tokenizer, or one that was not read.
    #[error(transparent)]
    Tokenizer(#[from] fercuda_tokenizer::TokenizerError),
    /// Files beside its weights that contradict their format.
    #[error("{what}\ntry: {advice}")]
    Folder {
        /// Which file, and what is wrong.
        what: String,
        /// What to do.
        advice: &'static str,
    },
}
