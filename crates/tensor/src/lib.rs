//! Element types and layouts of tensors. See the README.
#![forbid(unsafe_code)]

mod dtype;
mod layout;

pub use dtype::{Dtype, UnknownDtype};
pub use layout::{Layout, LayoutError, MAX_RANK};
