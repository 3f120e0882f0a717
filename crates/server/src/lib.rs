//! HTTP server of a language model, over an engine that is a trait.
#![forbid(unsafe_code)]

mod answer;
mod answer_event;
mod anthropic;
mod anthropic_request;
mod api_error;
mod client_watch;
mod connection;
mod embeddings;
mod engine_loop;
mod grammar_request;
mod grammars;
mod members;
mod metrics;
mod openai;
mod openai_request;
mod order;
mod response_store;
mod responses;
mod responses_request;
mod server;
mod service;
mod stream;
mod token_engine;
mod token_logs;
mod tool_grammar;
mod tool_syntax;

pub use answer::ServedModel;
pub use server::{Server, ServerConfig, ServerError, ServerStop};
pub use token_engine::{
    EmbedError, EngineLoad, EngineMemory, GeneratedToken, TokenChance, TokenEngine, TokenFinish,
    TokenRequest, TokenSampling,
};
