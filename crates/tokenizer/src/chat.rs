//! Chat templates, rendered as transformers renders them by jinja2.

mod data;
mod dates;
mod filters;
mod limits;
mod marks;
mod methods;
mod python;
mod source;
mod sums;
mod tag_tokens;
mod template;

pub use data::ChatValue;
pub use template::{ChatRequest, ChatTemplate};
