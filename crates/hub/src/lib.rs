//! Models by what a caller names: a file, a folder, or a repository of Hugging Face's hub. See
//! the README.
#![forbid(unsafe_code)]

mod download;
mod error;
mod hub;
mod json;
mod name;
mod select;
mod source;
mod token;
mod transport;

pub use download::DownloadProgress;
pub use error::{HubError, Result, SourceError};
pub use hub::{Hub, HubSettings};
pub use name::{HubName, ModelName};
pub use source::ModelSource;
pub use token::HubToken;
