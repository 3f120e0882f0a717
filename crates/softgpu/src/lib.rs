//! The software device: the documented CUDA driver API over a PTX interpreter.
//!
//! [`order`] says what happened before what.

pub mod check;
pub mod exec;
pub mod mem;
pub mod order;
pub mod report;
