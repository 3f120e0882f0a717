//! Errors of requests, in the shape of each API.

use serde_json::{Value, json};

/// Sort of an error, which gives its status and its name in each API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    Invalid,
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
            Self::Invalid => (400, invalid, invalid),
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
    pub(crate) param: Option<&'static str>,
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
    pub(crate) fn of(param: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            param: Some(param),
            ..Self::new(ErrorKind::Invalid, message)
        }
    }

    pub(crate) fn status(&self) -> u16 {
        self.kind.row().0
    }

    /// In OpenAI's shape.
    pub(crate) fn to_openai(&self) -> Value {
        let error = json!({
            "message": self.message,
            "type": self.kind.row().1,
            "param": self.param,
            "code": match self.param {
                Some("model") => Some("model_not_found"),
                _ => self.kind.code(),
            },
        });
        json!({ "error": error })
    }

    /// In Anthropic's shape.
    pub(crate) fn to_anthropic(&self) -> Value {
        let message = match self.param {
            Some(param) => format!("{param}: {}", self.message),
            None => self.message.clone(),
        };
        let error = json!({ "type": self.kind.row().2, "message": message });
        json!({ "type": "error", "error": error })
    }
}
