//! Members of a request's JSON objects, taken by name and type.
//!
//! Objects keep the order of their members, which templates show.

use fercuda_tokenizer::ChatValue;

use crate::api_error::{ApiError, ErrorKind};

/// Members of an object that were not taken yet.
#[derive(Debug)]
pub(crate) struct RequestMembers {
    /// Where the object stands in the body, as `messages[2].`; empty for the body.
    path: String,
    all: Vec<(String, ChatValue)>,
}

/// Name of a value's type.
fn type_name(value: &ChatValue) -> &'static str {
    match value {
        ChatValue::Null => "null",
        ChatValue::Bool(_) => "a truth value",
        ChatValue::Int(_) | ChatValue::Float(_) => "a number",
        ChatValue::Text(_) => "a text",
        ChatValue::List(_) => "a list",
        ChatValue::Object(_) => "an object",
    }
}

/// A whole number, also one that is written as `5.0`.
fn whole(value: &ChatValue) -> Option<i64> {
    match value {
        ChatValue::Int(it) => i64::try_from(*it).ok(),
        ChatValue::Float(it) if it.fract() == 0.0 && it.abs() < 1e15 => Some(*it as i64),
        _ => None,
    }
}

impl RequestMembers {
    /// Those of a body.
    ///
    /// # Errors
    /// What is wrong with its JSON, and where.
    pub(crate) fn of_body(body: &[u8]) -> Result<RequestMembers, ApiError> {
        let invalid = |what: String| ApiError::new(ErrorKind::Invalid, what);
        let text = std::str::from_utf8(body).map_err(|error| {
            let at = error.valid_up_to();
            invalid(format!("the body is no UTF-8 behind byte {at}"))
        })?;
        let value = ChatValue::from_json(text)
            .map_err(|error| invalid(format!("the body is no JSON: {error}")))?;
        match value {
            ChatValue::Object(all) => Ok(RequestMembers {
                path: String::new(),
                all,
            }),
            other => {
                let found = type_name(&other);
                Err(invalid(format!("the body is {found}, not an object")))
            }
        }
    }

    /// Those of a value at this place.
    ///
    /// # Errors
    /// If it is no object.
    pub(crate) fn of_value(path: String, value: ChatValue) -> Result<RequestMembers, ApiError> {
        match value {
            ChatValue::Object(all) => Ok(RequestMembers {
                path: path + ".",
                all,
            }),
            other => Err(wrong_type(path, &other, "an object")),
        }
    }

    /// The place of a member.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A member; null is as good as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<ChatValue> {
        let at = self.all.iter().position(|it| it.0 == name)?;
        let (_, value) = self.all.swap_remove(at);
        Some(value).filter(|it| *it != ChatValue::Null)
    }

    /// The name of a member that was not taken, if there is one.
    pub(crate) fn left(&self) -> Option<String> {
        let is_set = |it: &&(String, ChatValue)| it.1 != ChatValue::Null;
        self.all.iter().find(is_set).map(|it| it.0.clone())
    }

    fn typed<T>(
        &mut self,
        name: &str,
        wanted: &str,
        convert: impl FnOnce(ChatValue) -> Result<T, ChatValue>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match convert(value) {
            Ok(value) => Ok(Some(value)),
            Err(value) => Err(wrong_type(self.place(name), &value, wanted)),
        }
    }

    /// # Errors
    /// If the member has another type, as of all of these.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a text", |value| match value {
            ChatValue::Text(text) => Ok(text),
            other => Err(other),
        })
    }

    pub(crate) fn truth(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", |value| match value {
            ChatValue::Bool(it) => Ok(it),
            other => Err(other),
        })
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "a number", |value| match value {
            ChatValue::Int(it) => Ok(it as f64),
            ChatValue::Float(it) => Ok(it),
            other => Err(other),
        })
    }

    pub(crate) fn whole(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        let wanted = "a whole number below 2^63";
        self.typed(name, wanted, |value| whole(&value).ok_or(value))
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<ChatValue>>, ApiError> {
        self.typed(name, "a list", |value| match value {
            ChatValue::List(items) => Ok(items),
            other => Err(other),
        })
    }

    /// A text, or a list of texts.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        let wanted = "a text or a list of texts";
        self.typed(name, wanted, |value| match value {
            ChatValue::Text(text) => Ok(vec![text]),
            ChatValue::List(items) => {
                let text = |it: &ChatValue| match it {
                    ChatValue::Text(text) => Some(text.clone()),
                    _ => None,
                };
                let texts: Option<Vec<String>> = items.iter().map(text).collect();
                texts.ok_or(ChatValue::List(items))
            }
            other => Err(other),
        })
    }

    /// Numbers of tokens.
    pub(crate) fn tokens(&mut self, name: &str) -> Result<Option<Vec<u32>>, ApiError> {
        let wanted = "a list of numbers of tokens";
        self.typed(name, wanted, |value| match value {
            ChatValue::List(items) => tokens_of(&items).ok_or(ChatValue::List(items)),
            other => Err(other),
        })
    }

    /// The members of an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<RequestMembers>, ApiError> {
        let place = self.place(name);
        self.take(name)
            .map(|value| RequestMembers::of_value(place, value))
            .transpose()
    }
}

/// Numbers of tokens in a list, if it has nothing else.
pub(crate) fn tokens_of(items: &[ChatValue]) -> Option<Vec<u32>> {
    let token = |it: &ChatValue| u32::try_from(whole(it)?).ok();
    items.iter().map(token).collect()
}

/// An error of a member that has another type.
pub(crate) fn wrong_type(place: String, value: &ChatValue, wanted: &str) -> ApiError {
    let found = match (value, wanted) {
        (ChatValue::Int(it), _) => it.to_string(),
        (ChatValue::Float(it), _) => it.to_string(),
        (ChatValue::List(_), wanted) if wanted.contains("list") => "a list of others".to_owned(),
        (value, _) => type_name(value).to_owned(),
    };
    ApiError::of(place, format!("{found}, not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_taken_by_type_and_errors_name_them() {
        let body = br#"{"a": "5", "b": 5.0, "c": [1, -1], "d": null, "e": {"f": []}, "a2": true}"#;
        let members = || RequestMembers::of_body(body).unwrap();
        let refused = |error: ApiError, param: &str, message: &str| {
            assert_eq!(error.param.as_deref(), Some(param));
            assert_eq!(error.message, message);
        };
        let error = members().whole("a").unwrap_err();
        refused(error, "a", "a text, not a whole number below 2^63");
        assert_eq!(members().whole("b").unwrap(), Some(5));
        assert_eq!(members().whole("d").unwrap(), None);
        assert_eq!(members().text("zz").unwrap(), None);
        let error = members().tokens("c").unwrap_err();
        refused(
            error,
            "c",
            "a list of others, not a list of numbers of tokens",
        );
        let error = members().truth("b").unwrap_err();
        refused(error, "b", "5, not true or false");
        let mut inner = members().object("e").unwrap().unwrap();
        let error = inner.text("f").unwrap_err();
        refused(error, "e.f", "a list, not a text");
        for (body, said) in [
            (&b"[]"[..], "a list, not an object"),
            (b"{", "no JSON: EOF"),
            (b"{} x", "trailing"),
            (b"\"\xff\"", "no UTF-8 behind byte 1"),
        ] {
            let error = RequestMembers::of_body(body).unwrap_err();
            assert!(error.message.contains(said), "{}", error.message);
        }
    }
}
