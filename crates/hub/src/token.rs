//! Access token of a hub, which no message shows.

use std::fmt;

use crate::error::{HubError, Result};

/// A token that requests to the hub carry, and those to no other host. Its `Debug` hides it.
#[derive(Clone)]
pub struct HubToken(String);

impl HubToken {
    /// A token of visible ASCII characters; `origin` says where it comes from.
    ///
    /// # Errors
    /// [`HubError::Setting`] of others.
    pub fn new(text: &str, origin: &str) -> Result<HubToken> {
        let text = text.trim();
        if text.is_empty() || text.len() > 4096 || !text.chars().all(|it| it.is_ascii_graphic()) {
            return Err(HubError::Setting {
                variable: origin.to_owned(),
                what: "is no token of visible ASCII characters".to_owned(),
            });
        }
        Ok(HubToken(text.to_owned()))
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubToken(..)")
    }
}
