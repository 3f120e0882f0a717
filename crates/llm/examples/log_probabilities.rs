//! Log-probabilities of all tokens behind each prefix of given ones, for comparisons.
//!
//! `log_probabilities [--adapter PATH] MODEL TOKEN...`: a line for each prefix, in the order of the
//! vocabulary. Keys and values are f32, and prefixes are kept, so each prefix is computed from the
//! one before it.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::Path;

use fercuda_llm::{AdapterFile, Engine, EngineConfig, GenerationRequest, SamplerConfig};
use fercuda_modelfile::ModelFile;
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tensor::Dtype;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (adapter, rest) = match arguments.as_slice() {
        [option, path, rest @ ..] if option == "--adapter" => (Some(path), rest),
        rest => (None, rest),
    };
    let [model, tokens @ ..] = rest else {
        return Err("usage: log_probabilities [--adapter PATH] MODEL TOKEN...".into());
    };
    let adapter = match adapter {
        Some(path) => Some(AdapterFile::open(Path::new(path))?),
        None => None,
    };
    let tokens: Result<Vec<u32>, _> = tokens.iter().map(|it| it.parse()).collect();
    let tokens = tokens?;
    let runtime = Runtime::open(RuntimeConfig::default())?;
    let config = EngineConfig {
        cached: Dtype::F32,
        adapters: adapter.is_some().into(),
        adapter_rank: adapter.as_ref().map_or(1, AdapterFile::rank),
        ..EngineConfig::default()
    };
    let file = ModelFile::open(Path::new(model))?;
    let mut engine = Engine::load(&runtime, &file, &config, |_, _| {})?;
    let adapter = match &adapter {
        Some(file) => Some(engine.load_adapter_file("own", file, 1.0)?),
        None => None,
    };
    let vocabulary = engine.vocabulary() as usize;
    for length in 1..=tokens.len() {
        let request = GenerationRequest {
            tokens: tokens[..length].to_vec(),
            max_tokens: 1,
            sampler: SamplerConfig::default(),
            end_tokens: Vec::new(),
            top: Some(vocabulary),
            grammar: None,
            adapter,
        };
        let mut all = vec![f32::NAN; vocabulary];
        engine.generate(request, |event| {
            for (token, own) in &event.top {
                all[*token as usize] = *own;
            }
            true
        })?;
        let line: Vec<String> = all.iter().map(|it| format!("{it:e}")).collect();
        println!("{}", line.join(" "));
    }
    Ok(())
}
