//! Events and submissions that pass between handlers and the thread of the engine.

use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::client_watch::ClientWatch;
use crate::token_engine::{EmbedError, TokenChance, TokenRequest};

/// What is sent to the thread of the engine.
#[derive(Debug)]
pub(crate) enum EngineSubmission {
    Answer(Box<AnswerSubmission>),
    Embed(EmbedSubmission),
}

/// Texts on their way to the engine.
#[derive(Debug)]
pub(crate) struct EmbedSubmission {
    /// Their tokens.
    pub(crate) texts: Vec<Vec<u32>>,
    pub(crate) arrived: Instant,
    /// Where the vectors go.
    pub(crate) reply: oneshot::Sender<Result<Vec<Vec<f32>>, EmbedError>>,
    pub(crate) client: Option<ClientWatch>,
    /// Its place in the queue.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A request on its way to the engine.
#[derive(Debug)]
pub(crate) struct AnswerSubmission {
    pub(crate) request: TokenRequest,
    pub(crate) route: AnswerRoute,
}

/// Where the answer to a request goes, and what of it.
#[derive(Debug)]
pub(crate) struct AnswerRoute {
    /// Texts that end the answer.
    pub(crate) stops: Vec<String>,
    /// Control tokens that are text in the answer.
    pub(crate) shown: Vec<u32>,
    pub(crate) arrived: Instant,
    /// Where events go. When its other half is dropped, the request is cancelled.
    pub(crate) events: UnboundedSender<AnswerEvent>,
    /// What knows whether the client is still there.
    pub(crate) client: Option<ClientWatch>,
    /// Its place in the queue, given back when the engine has ended it.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A token of an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerToken {
    pub(crate) token: u32,
    pub(crate) log_probability: f32,
    pub(crate) top: Vec<TokenChance>,
}

/// Why an answer is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerReason {
    Token,
    Stop(String),
    Length,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerEnd {
    pub(crate) reason: AnswerReason,
    /// Number of tokens that were generated.
    pub(crate) generated: usize,
    /// Number of the prompt's tokens that were in the cache, if the engine says so.
    pub(crate) cached: Option<usize>,
}

/// What clients are given of an error of a step.
pub(crate) const STEP_FAILED: &str = "the model could not be computed; the server's log says why";

/// What happens to a request, in this order: accepted or refused; parts; an end or a failure.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    Accepted,
    /// It can never run, for this reason.
    Refused(String),
    Part(String, Vec<AnswerToken>),
    End(AnswerEnd),
    /// The engine has failed, for this reason. Its owner knows more.
    Failed(&'static str),
    /// It took longer than requests may. Made by the receiver.
    TimedOut,
}
