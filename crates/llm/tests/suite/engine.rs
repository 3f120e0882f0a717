//! Results of requests: alone, together, evicted and cancelled; and what is refused.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use fercuda_llm::{
    Engine, EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId,
    SamplerConfig,
};
use fercuda_modelfile::ModelFile;
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tensor::Dtype;

use crate::model::{TinyModel, TinySizes};

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::open(RuntimeConfig::default()).unwrap())
}

pub(crate) fn sizes(architecture: &'static str) -> TinySizes {
    TinySizes {
        architecture,
        layers: 2,
        hidden: 24,
        heads: 6,
        shared: 2,
        length: 8,
        inner: 40,
        vocabulary: 50,
        context: 96,
    }
}

pub(crate) fn config(name: &str) -> EngineConfig {
    EngineConfig {
        session: name.to_owned(),
        batch_tokens: 16,
        requests: 4,
        cached: Dtype::F32,
        ..EngineConfig::default()
    }
}

fn engine(model: &TinyModel, config: &EngineConfig) -> Engine {
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    Engine::load(runtime(), &file, config, |_, _| {}).unwrap()
}

pub(crate) fn prompt(random: &mut fastrand::Rng, length: usize) -> Vec<u32> {
    (0..length).map(|_| random.u32(..50)).collect()
}

pub(crate) fn request(tokens: &[u32], max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        tokens: tokens.to_vec(),
        max_tokens,
        sampler: SamplerConfig::default(),
        end_tokens: Vec::new(),
        top: Some(3),
    }
}

/// Compares what was chosen behind these tokens with the reference: probabilities, and that the
/// token is as likely as any.
fn check(model: &TinyModel, before: &[u32], event: &GenerationEvent) {
    let wanted = model.log_probabilities(before);
    let near = |token: u32, own: f32| {
        let wanted = wanted[token as usize];
        let error = (f64::from(own) - wanted).abs();
        assert!(
            error < 1e-4,
            "token {token} behind {before:?}: {own}, not {wanted}"
        );
    };
    near(event.token, event.log_probability.unwrap());
    event.top.iter().for_each(|(token, own)| near(*token, *own));
    assert_eq!(event.top.len(), 3);
    let most = wanted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    assert!(
        wanted[event.token as usize] > most - 2e-4,
        "{event:?} of {most}"
    );
}

/// Runs all requests to their ends; the tokens of each are compared as they come.
pub(crate) fn run(
    engine: &mut Engine,
    model: &TinyModel,
    requests: Vec<GenerationRequest>,
) -> Vec<Vec<u32>> {
    let mut all: HashMap<RequestId, Vec<u32>> = HashMap::new();
    let mut order = Vec::new();
    for request in requests {
        let tokens = request.tokens.clone();
        let id = engine.add(request).unwrap();
        all.insert(id, tokens);
        order.push(id);
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let tokens = all.get_mut(&event.request).unwrap();
            check(model, tokens, &event);
            tokens.push(event.token);
        }
    }
    let (running, waiting, free, blocks) = engine.load_figures();
    assert_eq!((running, waiting), (0, 0));
    assert_eq!(free, blocks);
    order.iter().map(|id| all[id].clone()).collect()
}

#[test]
fn probabilities_of_each_architecture_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    for architecture in ["llama", "qwen2", "qwen3"] {
        let model = TinyModel::random(&mut random, sizes(architecture));
        let config = EngineConfig {
            graphs: Some(architecture == "qwen2"),
            ..config(architecture)
        };
        let mut engine = engine(&model, &config);
        // One longer than a step, one of a token.
        for length in [37, 1] {
            let tokens = prompt(&mut random, length);
            let results = run(&mut engine, &model, vec![request(&tokens, 5)]);
            assert_eq!(results[0].len(), length + 5);
        }
        let session = engine.session().clone();
        drop(engine);
        session.close().unwrap();
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn requests_together_and_evicted_ones_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    // Six blocks: three requests of 20 to 40 positions do not fit at once.
    let config = EngineConfig {
        cache_tokens: Some(96),
        ..config("together")
    };
    let mut engine = engine(&model, &config);
    let all: Vec<GenerationRequest> = (0..7)
        .map(|_| {
            let length = random.usize(1..30);
            request(&prompt(&mut random, length), random.usize(1..14))
        })
        .collect();
    let wanted: Vec<usize> = all
        .iter()
        .map(|it| it.tokens.len() + it.max_tokens)
        .collect();
    let results = run(&mut engine, &model, all);
    let lengths: Vec<usize> = results.iter().map(Vec::len).collect();
    assert_eq!(lengths, wanted);
}

#[test]
fn requests_end_by_tokens_context_and_their_caller() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen2"));
    let mut engine = engine(&model, &config("ends"));
    let tokens = prompt(&mut random, 90);
    let mut seen = Vec::new();
    let finished = engine
        .generate(request(&tokens, 100), |event| {
            seen.push(event.token);
            true
        })
        .unwrap();
    // The same tokens by the device's choice alone.
    let mut bare = request(&tokens, 100);
    bare.top = None;
    let mut others = Vec::new();
    engine
        .generate(bare, |event| {
            others.push(event.token);
            true
        })
        .unwrap();
    assert_eq!(others, seen);
    // The context has 96 positions; the last token needs none.
    assert_eq!((finished, seen.len()), (Some(FinishReason::Length), 7));
    let mut ends = request(&tokens, 100);
    ends.end_tokens = vec![seen[2]];
    let first = seen.iter().position(|it| *it == seen[2]).unwrap();
    let mut count = 0;
    let finished = engine.generate(ends, |_| {
        count += 1;
        true
    });
    assert_eq!(
        (finished.unwrap(), count),
        (Some(FinishReason::End), first + 1)
    );
    let finished = engine.generate(request(&tokens, 100), |_| false).unwrap();
    assert_eq!(finished, None);
    let id = engine.add(request(&tokens, 1)).unwrap();
    assert!(engine.cancel(id) && !engine.cancel(id));
    let (running, waiting, free, blocks) = engine.load_figures();
    assert_eq!((running, waiting, free), (0, 0, blocks));
}

#[test]
fn a_prompt_that_was_computed_before_is_not_computed_again() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen3"));
    let mut engine = engine(&model, &config("prefix"));
    let tokens = prompt(&mut random, 50);
    let first = run(&mut engine, &model, vec![request(&tokens, 20)]);
    let before = engine.computed_tokens();
    // The next message of a conversation: 69 tokens of it are in the cache, 64 in full blocks.
    let mut longer = first[0].clone();
    longer.extend(prompt(&mut random, 9));
    run(&mut engine, &model, vec![request(&longer, 3)]);
    assert_eq!(engine.computed_tokens() - before, 79 - 64 + 2);
    // Two that begin alike while both run, of which one differs in its second block.
    let mut other = tokens.clone();
    other[20] = (other[20] + 1) % 50;
    let before = engine.computed_tokens();
    run(
        &mut engine,
        &model,
        vec![request(&tokens, 2), request(&other, 2)],
    );
    assert_eq!(
        engine.computed_tokens() - before,
        (50 - 48 + 1) + (50 - 16 + 1)
    );
}

#[test]
fn seeds_repeat_whatever_else_runs() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    let mut engine = engine(&model, &config("seeds"));
    let mut own = request(&prompt(&mut random, 5), 12);
    own.sampler = SamplerConfig {
        temperature: 1.0,
        seed: Some(7),
        ..SamplerConfig::default()
    };
    let mut generate = |own: GenerationRequest| {
        let mut tokens = Vec::new();
        let each = |event: &GenerationEvent| {
            tokens.push(event.token);
            true
        };
        engine.generate(own, each).unwrap();
        tokens
    };
    let first = generate(own.clone());
    assert_eq!(generate(own.clone()), first);
    own.sampler.seed = Some(8);
    assert_ne!(generate(own), first);
}

#[test]
fn requests_that_can_never_run_are_refused() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    let mut engine = engine(&model, &config("refused"));
    for (tokens, message) in [
        (vec![], "a prompt without tokens"),
        (vec![50], "token 50 of a vocabulary of 50"),
        (vec![1; 97], "97 tokens in 96 positions"),
    ] {
        let error = engine.add(request(&tokens, 1)).unwrap_err().to_string();
        assert!(
            error.contains(message) && error.contains("\ntry: "),
            "{error}"
        );
    }
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    let open = |config: &EngineConfig| {
        let error = Engine::load(runtime(), &file, config, |_, _| {}).unwrap_err();
        error.to_string()
    };
    let large = EngineConfig {
        cache_tokens: Some(1 << 30),
        ..config("large")
    };
    let error = open(&large);
    assert!(error.contains("a cache of 1073741824 positions"), "{error}");
    assert!(error.contains("try: a cache of at most "), "{error}");
    let beyond = EngineConfig {
        context: Some(97),
        ..config("beyond")
    };
    assert!(open(&beyond).contains("a context of 97 of a model with 96"));
}

#[test]
fn files_that_are_no_such_model_are_refused() {
    let mut random = fercuda_trials::rng();
    let refused = |bytes: Vec<u8>| {
        let file = ModelFile::from_bytes(Path::new("tiny.gguf"), bytes).unwrap();
        let error = Engine::load(runtime(), &file, &config("files"), |_, _| {}).unwrap_err();
        error.to_string()
    };
    let mut other = TinyModel::random(&mut random, sizes("llama"));
    other.sizes.architecture = "mamba9";
    let error = refused(other.file());
    assert!(error.contains("\"mamba9\" is not supported"), "{error}");
    let mut other = TinyModel::random(&mut random, sizes("llama"));
    other.sizes.layers = 3;
    let error = refused(other.file());
    assert!(error.contains("blk.2."), "{error}");
    let mut other = TinyModel::random(&mut random, sizes("llama"));
    other.sizes.heads = 5;
    let error = refused(other.file());
    assert!(error.contains("5 heads are no multiple of 2"), "{error}");
}
