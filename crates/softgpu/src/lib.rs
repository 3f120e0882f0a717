//! The software device: the documented CUDA driver API over a PTX interpreter.
//!
//! [`order`] says what happened before what.

pub mod order;
