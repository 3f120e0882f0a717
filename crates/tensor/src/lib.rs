//! What an element is and where elements lie. See the README.
#![forbid(unsafe_code)]

mod dtype;
mod layout;

pub use dtype::{Dtype, UnknownDtype};
pub use layout::{Layout, LayoutError, MAX_RANK};
