//! Language models over the governed pool. See the README.
#![forbid(unsafe_code)]

mod blocks;
mod checkpoint;
mod config;
mod decoder;
mod engine;
mod error;
mod model;
mod random_model;
mod recorder;
mod request;
mod sampler;
mod tensors;
mod weights;

pub use config::ModelConfig;
pub use engine::Engine;
pub use error::LlmError;
pub use random_model::{ModelShape, SHAPES};
pub use request::{EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId};
pub use sampler::SamplerConfig;
