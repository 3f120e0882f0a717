//! Tests of the engine on the software device, with tiny random models.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod ahead;
mod checkpoint;
mod checkpoint_types;
mod drafts;
mod encoder;
mod engine;
mod grammar;
mod lora_files;
mod model;
mod recurrent;
mod tiny_checkpoint;
