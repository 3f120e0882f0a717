//! Greedy tokens behind given ones, and how long they took.
//!
//! `tokens MODEL COUNT TOKEN...`: on whichever device `FERCUDA_DEVICE` says. The numbers of the
//! tokens are printed in one line, and times of the prompt and of each later token in another.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::Path;
use std::time::Instant;

use fercuda_llm::{Engine, EngineConfig, GenerationRequest, SamplerConfig};
use fercuda_runtime::{Runtime, RuntimeConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, count, tokens @ ..] = arguments.as_slice() else {
        return Err("usage: tokens MODEL COUNT TOKEN...".into());
    };
    let tokens: Result<Vec<u32>, _> = tokens.iter().map(|it| it.parse()).collect();
    let runtime = Runtime::open(RuntimeConfig::default())?;
    let begun = Instant::now();
    let config = EngineConfig::default();
    let mut engine = Engine::open(&runtime, Path::new(model), &config, |_, _| {})?;
    println!("loaded in {:.2?}", begun.elapsed());
    let request = GenerationRequest {
        tokens: tokens?,
        max_tokens: count.parse()?,
        sampler: SamplerConfig::default(),
        end_tokens: Vec::new(),
        top: None,
        grammar: None,
        adapter: None,
    };
    for round in ["first", "second"] {
        let (mut all, mut times) = (Vec::new(), Vec::new());
        let mut begun = Instant::now();
        engine.generate(request.clone(), |event| {
            all.push(event.token.to_string());
            times.push(begun.elapsed());
            begun = Instant::now();
            true
        })?;
        println!("{round}: {}", all.join(" "));
        let prompt = times.remove(0);
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        println!("prompt {prompt:.2?}, a token {median:.2?} (median)");
    }
    Ok(())
}
