//! HTTP server of a language model, over an engine that is a trait.
#![forbid(unsafe_code)]

mod answer;
mod answer_event;
mod anthropic;
mod api_error;
mod client_watch;
mod connection;
mod engine_loop;
mod members;
mod metrics;
mod openai;
mod openai_request;
mod order;
mod server;
mod service;
mod stream;
mod token_engine;
mod tool_syntax;

pub use answer::ServedModel;
pub use server::{Server, ServerConfig, ServerError, ServerStop};
pub use token_engine::{
    EngineLoad, GeneratedToken, TokenChance, TokenEngine, TokenFinish, TokenRequest, TokenSampling,
};
