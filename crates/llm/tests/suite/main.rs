//! Tests of the engine on the software device, with tiny random models.

mod engine;
mod model;
