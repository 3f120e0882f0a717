//! Errors of requests, in the shape of each API.

use std::borrow::Cow;

use serde_json::{Value, json};

/// Sort of an error, which gives its status and its name in each API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    Invalid,
    /// The prompt has more tokens than the context.
    TooLong,
    Key,
    Host,
    NotFound,
    Method,
    BodyTooSlow,
    TooLarge,
    MediaType,
    /// The queue is full.
    Full,
    Internal,
    /// The server stops, or the engine has ended.
    Unavailable,
    TimedOut,
}

impl ErrorKind {
    /// Status, OpenAI's name, Anthropic's name.
    fn row(self) -> (u16, &'static str, &'static str) {
        let invalid = "invalid_request_error";
        match self {
            Self::Invalid | Self::TooLong => (400, invalid, invalid),
            Self::Key => (401, invalid, "authentication_error"),
            Self::Host => (403, invalid, "permission_error"),
            Self::NotFound => (404, invalid, "not_found_error"),
            Self::Method => (405, invalid, invalid),
            Self::BodyTooSlow => (408, invalid, invalid),
            Self::TooLarge => (413, invalid, "request_too_large"),
            Self::MediaType => (415, invalid, invalid),
            Self::Full => (429, "rate_limit_error", "rate_limit_error"),
            Self::Internal => (500, "server_error", "api_error"),
            Self::Unavailable => (503, "server_error", "overloaded_error"),
            Self::TimedOut => (504, "server_error", "timeout_error"),
        }
    }

    /// OpenAI's code, where programs look for one.
    fn code(self) -> Option<&'static str> {
        match self {
            Self::TooLong => Some("context_length_exceeded"),
            Self::Key => Some("invalid_api_key"),
            Self::NotFound => Some("not_found"),
            Self::Full => Some("queue_full"),
            _ => None,
        }
    }
}

/// An error of a request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The member that is wrong.
    pub(crate) param: Option<Cow<'static, str>>,
    /// Seconds after which it may succeed.
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError {
            kind,
            message: message.into(),
            param: None,
            retry_after: None,
        }
    }

    /// An error of a member of the body.
    pub(crate) fn of(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> ApiError {
        ApiError {
            param: Some(param.into()),
            ..Self::new(ErrorKind::Invalid, message)
        }
    }

    /// With another name of the member that is wrong, where it has that one.
    pub(crate) fn renamed(mut self, from: &str, to: &'static str) -> ApiError {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.into());
        }
        self
    }

    pub(crate) fn status(&self) -> u16 {
        self.kind.row().0
    }

    /// The message, with the member that is wrong.
    fn text(&self) -> String {
        match &self.param {
            Some(param) => format!("{param}: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// The member of the body that is wrong, without what is in it.
    fn top_param(&self) -> Option<&str> {
        let param = self.param.as_deref()?;
        param.split(['.', '[']).next()
    }

    /// In OpenAI's shape.
    pub(crate) fn to_openai(&self) -> Value {
        let error = json!({
            "message": self.text(),
            "type": self.kind.row().1,
            "param": self.top_param(),
            "code": match (self.top_param(), self.kind) {
                (Some("model"), ErrorKind::NotFound) => Some("model_not_found"),
                _ => self.kind.code(),
            },
        });
        json!({ "error": error })
    }

    /// In Anthropic's shape.
    pub(crate) fn to_anthropic(&self) -> Value {
        let error = json!({ "type": self.kind.row().2, "message": self.text() });
        json!({ "type": "error", "error": error })
    }
}
