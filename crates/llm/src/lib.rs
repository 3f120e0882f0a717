//! Language models over the governed pool. See the README.
#![forbid(unsafe_code)]

mod adapter_file;
mod adapter_loading;
mod adapter_ops;
mod adapter_targets;
mod adapters;
mod blocks;
mod checkpoint;
mod checkpoint_keys;
mod checkpoint_layers;
mod checkpoint_rotary;
mod choice;
mod chosen;
mod config;
mod decoder;
mod draft_model;
mod drafts;
mod embedder;
mod encoder;
mod encoder_config;
mod engine;
mod error;
mod exchange;
mod expert_tensors;
mod file_matrix;
mod keys;
mod memory_plan;
mod model;
mod peft_config;
mod random_model;
mod recorder;
mod recurrence_config;
mod recurrent;
mod request;
mod rotary;
mod sampler;
mod schedule;
mod scores;
mod states;
mod step_inputs;
mod step_ops;
mod step_parts;
mod tensors;
mod weights;

pub use adapter_file::AdapterFile;
pub use config::{ExpertConfig, ModelConfig};
pub use draft_model::ModelDrafter;
pub use drafts::{DraftRequest, Drafter, NgramDrafter};
pub use embedder::{Embedder, EmbedderConfig};
pub use encoder_config::{EmbeddingPooling, EncoderConfig};
pub use engine::{Engine, tenant_name};
pub use error::LlmError;
pub use random_model::{ModelShape, SHAPES, StateShape};
pub use request::{
    AdapterId, EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId,
};
pub use sampler::SamplerConfig;
