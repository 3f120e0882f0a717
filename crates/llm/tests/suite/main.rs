//! Tests of the engine on the software device, with tiny random models.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ahead;
mod checkpoint;
mod encoder;
mod engine;
mod grammar;
mod model;
mod recurrent;
