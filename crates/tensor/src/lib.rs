//! Element types, block formats and layouts of tensors. See the README.
#![forbid(unsafe_code)]

mod block;
mod dtype;
mod layout;

pub use block::{BlockError, BlockFormat, UnknownBlockFormat};
pub use dtype::{Dtype, UnknownDtype};
pub use layout::{Layout, LayoutError, MAX_RANK};
