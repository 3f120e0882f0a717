//! Results of requests: alone, together, evicted and cancelled; and what is refused.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fercuda_llm::{
    Engine, EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId, SHAPES,
    SamplerConfig,
};
use fercuda_modelfile::{ModelFile, TensorType};
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tensor::{BlockFormat, Dtype};

use crate::model::{TinyModel, TinySizes};
use crate::recurrent::TinyStates;

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
        ..TinySizes::default()
    }
}

/// Sizes of an architecture some of whose layers have states.
pub(crate) fn hybrid(architecture: &'static str) -> TinySizes {
    TinySizes {
        layers: 4,
        states: Some(TinyStates {
            keys: 2,
            heads: 6,
            key_length: 12,
            value_length: 5,
            period: 2,
            further: 0,
        }),
        ..sizes(architecture)
    }
}

/// Sizes of each architecture, of models that have all that is special in it.
pub(crate) fn architectures() -> Vec<(&'static str, TinySizes)> {
    let experts = Some([7, 3, 20]);
    let windows = |architecture, layers| TinySizes {
        layers,
        window: 12,
        ..sizes(architecture)
    };
    vec![
        ("llama", sizes("llama")),
        ("qwen2", sizes("qwen2")),
        ("qwen3", sizes("qwen3")),
        (
            "qwen3moe",
            TinySizes {
                experts,
                ..sizes("qwen3moe")
            },
        ),
        ("gemma", sizes("gemma")),
        ("gemma2", windows("gemma2", 3)),
        ("gemma3", windows("gemma3", 7)),
        (
            "gemma3 pattern",
            TinySizes {
                pattern: Some(vec![false, true, false]),
                ..windows("gemma3", 3)
            },
        ),
        (
            "gpt-oss",
            TinySizes {
                experts,
                ..windows("gpt-oss", 3)
            },
        ),
        (
            "phi3",
            TinySizes {
                has_divisors: true,
                ..sizes("phi3")
            },
        ),
        (
            "phi3 short",
            TinySizes {
                has_divisors: true,
                context: 60,
                ..sizes("phi3")
            },
        ),
        ("mistral", windows("llama", 2)),
        (
            "llama3",
            TinySizes {
                has_divisors: true,
                ..sizes("llama")
            },
        ),
        (
            "llama4",
            TinySizes {
                layers: 4,
                experts: Some([5, 1, 20]),
                ..sizes("llama4")
            },
        ),
        ("qwen35", hybrid("qwen35")),
        (
            "mamba2",
            TinySizes {
                layers: 3,
                states: Some(TinyStates {
                    keys: 2,
                    heads: 6,
                    key_length: 12,
                    value_length: 5,
                    period: 0,
                    further: 0,
                }),
                ..sizes("mamba2")
            },
        ),
        (
            "qwen35moe",
            TinySizes {
                experts,
                ..hybrid("qwen35moe")
            },
        ),
        (
            "mixtral",
            TinySizes {
                experts,
                ..sizes("llama")
            },
        ),
    ]
}

pub(crate) fn config(name: &str) -> EngineConfig {
    // Names of sessions are unique in a process, which tests that run at once have in common.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    EngineConfig {
        session: format!("{name} {number}"),
        batch_tokens: Some(16),
        requests: 4,
        cached: Dtype::F32,
        ..EngineConfig::default()
    }
}

pub(crate) fn engine(model: &TinyModel, config: &EngineConfig) -> Engine {
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
        grammar: None,
        adapter: None,
    }
}

/// Compares what was chosen behind these tokens with the reference: probabilities where they are
/// reported, and that the token is as likely as any.
pub(crate) fn check(model: &TinyModel, before: &[u32], event: &GenerationEvent) {
    let wanted = model.log_probabilities(before);
    let near = |token: u32, own: f32| {
        let wanted = wanted[token as usize];
        let error = (f64::from(own) - wanted).abs();
        assert!(
            error < 1e-4,
            "token {token} behind {before:?}: {own}, not {wanted}"
        );
    };
    if let Some(own) = event.log_probability {
        near(event.token, own);
        event.top.iter().for_each(|(token, own)| near(*token, *own));
        assert_eq!(event.top.len(), 3);
    }
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
    for (name, sizes) in architectures() {
        println!("{name}");
        let model = TinyModel::random(&mut random, sizes);
        let config = EngineConfig {
            fused_products: Some(true),
            graphs: Some(matches!(name, "qwen2" | "qwen3moe" | "gpt-oss" | "qwen35")),
            ..config(name)
        };
        let mut engine = engine(&model, &config);
        // One longer than a step, one of a token.
        let first = prompt(&mut random, 37);
        for tokens in [first.clone(), prompt(&mut random, 1)] {
            let results = run(&mut engine, &model, vec![request(&tokens, 5)]);
            assert_eq!(results[0].len(), tokens.len() + 5);
        }
        // Two at once, of which one begins with two blocks that are kept.
        let mut again = first[..34].to_vec();
        again.push((first[34] + 1) % 50);
        let before = engine.computed_tokens();
        let others = vec![request(&again, 4), request(&prompt(&mut random, 11), 3)];
        run(&mut engine, &model, others);
        let computed = engine.computed_tokens() - before;
        assert_eq!(computed, (35 - 32 + 3) + (11 + 2), "{name}");
        let session = engine.session().clone();
        drop(engine);
        session.close().unwrap();
        assert_eq!(session.held_bytes(), 0);
    }
}

/// Experts in blocks, whose products round what they are multiplied with to 8 bits. All are chosen:
/// else such a rounding may change the choice.
#[test]
fn experts_in_blocks_are_near_the_reference() {
    let mut random = fercuda_trials::rng();
    for (architecture, format) in [
        ("gpt-oss", BlockFormat::MXFP4),
        ("qwen3moe", BlockFormat::Q8_0),
    ] {
        let sizes = TinySizes {
            hidden: 64,
            experts: Some([4, 4, 32]),
            blocks: Some(format),
            window: if architecture == "gpt-oss" { 12 } else { 0 },
            ..sizes(architecture)
        };
        let model = TinyModel::random(&mut random, sizes);
        let mut engine = engine(&model, &config(&format!("{architecture} in blocks")));
        let tokens = prompt(&mut random, 30);
        let (mut behind, mut off) = (tokens.clone(), 0f64);
        engine
            .generate(request(&tokens, 6), |event| {
                let wanted = model.log_probabilities(&behind);
                for (token, own) in &event.top {
                    off = off.max((f64::from(*own) - wanted[*token as usize]).abs());
                }
                behind.push(event.token);
                true
            })
            .unwrap();
        println!("{architecture}: {off}");
        // An activation is off by at most 1 / 254 of the largest of its block.
        assert!(off < 0.1, "{architecture}: {off}");
    }
}

/// Models of the generator have all tensors of their architecture.
#[test]
fn random_models_of_tiny_shapes_generate() {
    let mut random = fercuda_trials::rng();
    let tiny = SHAPES.iter().filter(|it| it.name.starts_with("tiny"));
    for shape in tiny {
        let kind = match shape.architecture {
            "gpt-oss" => TensorType::Block(BlockFormat::MXFP4),
            "qwen3moe" => TensorType::Scalar(Dtype::Bf16),
            _ => TensorType::Block(BlockFormat::Q8_0),
        };
        let mut bytes = Vec::new();
        shape
            .write(&mut bytes, kind, random.u64(..), |_, _| {})
            .unwrap();
        let file = ModelFile::from_bytes(Path::new("tiny.gguf"), bytes).unwrap();
        let config = EngineConfig {
            context: Some(64),
            ..config(shape.name)
        };
        let mut engine = Engine::load(runtime(), &file, &config, |_, _| {}).unwrap();
        let mut own = request(&prompt(&mut random, 2), 2);
        own.top = None;
        let mut count = 0;
        engine
            .generate(own, |_| {
                count += 1;
                true
            })
            .unwrap();
        assert_eq!(count, 2, "{}", shape.name);
    }
}

#[test]
fn requests_together_and_evicted_ones_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    // Six blocks: three requests of 20 to 40 positions do not fit at once.
    let config = EngineConfig {
        fused_products: Some(true),
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
    let wanted = "does not have blk.2.attn_norm.weight, which llama needs";
    assert!(error.contains(wanted), "{error}");
    for (architecture, tensor) in [
        ("gpt-oss", "blk.1.attn_sinks.weight"),
        ("gpt-oss", "blk.0.ffn_up_exps.bias"),
        ("gpt-oss", "blk.0.attn_output.bias"),
        ("qwen3moe", "blk.1.ffn_gate_inp.weight"),
        ("gemma3", "blk.0.post_ffw_norm.weight"),
        ("llama4", "blk.1.ffn_gate_shexp.weight"),
        ("phi3", "blk.0.ffn_up.weight"),
    ] {
        let experts =
            matches!(architecture, "gpt-oss" | "qwen3moe" | "llama4").then_some([3, 2, 8]);
        let own = TinySizes {
            experts,
            ..sizes(architecture)
        };
        let other = TinyModel::random(&mut random, own).without(tensor);
        let error = refused(other.file());
        let wanted = format!("does not have {tensor}, which {architecture} needs");
        assert!(error.contains(&wanted), "{error}");
    }
    // What would be left out, and that of another kind of layer.
    for left in ["blk.1.ffn_up.bias", "blk.0.attn_q_norm.weight"] {
        let other = TinyModel::random(&mut random, sizes("qwen2")).with(left, 24);
        let error = refused(other.file());
        let wanted = format!("has {left}, which qwen2 is computed without");
        assert!(error.contains(&wanted), "{error}");
    }
    let mut refused_by = |own: TinySizes| refused(TinyModel::random(&mut random, own).file());
    let flagged = TinySizes {
        experts: Some([4, 2, 8]),
        flags: vec![("expert_weights_norm", false)],
        ..sizes("qwen3moe")
    };
    let error = refused_by(flagged);
    assert!(
        error.contains("qwen3moe.expert_weights_norm is false"),
        "{error}"
    );
    let beyond = TinySizes {
        experts: Some([4, 5, 8]),
        ..sizes("qwen3moe")
    };
    let error = refused_by(beyond);
    assert!(
        error.contains("qwen3moe.expert_used_count is 5, not 1 to 4"),
        "{error}"
    );
    let mut other = TinyModel::random(&mut random, sizes("gemma2"));
    other.sizes.pattern = Some(vec![true]);
    let error = refused(other.file());
    let wanted = "sliding_window_pattern is no period and no list of 2";
    assert!(error.contains(wanted), "{error}");
    let mut other = TinyModel::random(&mut random, sizes("llama"));
    other.sizes.heads = 5;
    let error = refused(other.file());
    assert!(error.contains("5 heads are no multiple of 2"), "{error}");
}

/// The tiny shape in a type, as a file.
pub(crate) fn random_file(kind: TensorType) -> Vec<u8> {
    let shape = SHAPES.iter().find(|it| it.name == "tiny").unwrap();
    let mut file = Vec::new();
    shape.write(&mut file, kind, 11, |_, _| {}).unwrap();
    file
}

/// Log-probabilities of the tokens that the f32 model likes most behind a prompt.
fn first_chances(file: Vec<u8>, config: &EngineConfig, tokens: &[u32]) -> HashMap<u32, f32> {
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), file).unwrap();
    let mut engine = Engine::load(runtime(), &file, config, |_, _| {}).unwrap();
    let request = GenerationRequest {
        top: Some(512),
        grammar: None,
        ..request(tokens, 1)
    };
    let mut chances = HashMap::new();
    engine
        .generate(request, |event| {
            chances.extend(event.top.iter().copied());
            true
        })
        .unwrap();
    chances
}

#[test]
fn blocks_and_wider_weights_are_near_the_model_in_f32() {
    let mut random = fercuda_trials::rng();
    let tokens: Vec<u32> = (0..80).map(|_| random.u32(..500)).collect();
    let wide = |wide_products| EngineConfig {
        wide_products: Some(wide_products),
        batch_tokens: Some(256),
        ..config("wide")
    };
    let exact = first_chances(
        random_file(TensorType::Scalar(Dtype::F32)),
        &wide(false),
        &tokens,
    );
    // What the weights lose by their type is the most of it.
    let cases = [
        ("Q8_0", Dtype::F16, 0.04),
        ("Q4_K", Dtype::F16, 0.35),
        ("F16", Dtype::F32, 0.004),
        ("BF16", Dtype::Bf16, 0.025),
    ];
    for (kind, cached, most) in cases {
        let file = random_file(kind.parse().unwrap());
        for is_wide in [false, true] {
            let config = EngineConfig {
                cached,
                fused_products: Some(is_wide),
                ..wide(is_wide)
            };
            let own = first_chances(file.clone(), &config, &tokens);
            let squares: f64 = exact
                .iter()
                .map(|(token, chance)| f64::from(chance - own[token]).powi(2))
                .sum();
            let off = (squares / exact.len() as f64).sqrt();
            assert!(off < most, "{kind} wide {is_wide} cache {cached}: {off}");
            println!("{kind} wide {is_wide} cache {cached}: {off}");
        }
    }
}

#[test]
fn weights_that_are_no_numbers_end_their_requests() {
    let mut file = random_file(TensorType::Scalar(Dtype::F32));
    // The last tensor is a matrix; all of its rows have one.
    let end = file.len();
    for at in (end - 4096..end).step_by(4) {
        file[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), file).unwrap();
    let mut engine = Engine::load(runtime(), &file, &config("no numbers"), |_, _| {}).unwrap();
    for top in [None, Some(1)] {
        let request = GenerationRequest {
            top,
            ..request(&[1, 2, 3], 4)
        };
        let error = engine.generate(request, |_| true).unwrap_err();
        assert!(error.to_string().contains("no numbers"), "{error}");
        assert!(engine.is_idle());
    }
}

#[test]
fn scores_are_probabilities_of_each_token_behind_the_others() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen3"));
    let mut engine = engine(&model, &config("scores"));
    for length in [1, 2, 30] {
        let tokens = prompt(&mut random, length);
        let scores = engine.score(&tokens).unwrap();
        assert_eq!(scores.len(), length - 1);
        for (at, score) in scores.iter().enumerate() {
            let wanted = model.log_probabilities(&tokens[..=at])[tokens[at + 1] as usize];
            let off = (f64::from(*score) - wanted).abs();
            assert!(
                off < 1e-4,
                "token {at} of {tokens:?}: {score}, not {wanted}"
            );
        }
    }
    let long = vec![0; 97];
    let error = engine.score(&long).unwrap_err().to_string();
    assert!(error.contains("97 tokens"), "{error}");
    engine.add(request(&[1], 2)).unwrap();
    let error = engine.score(&[1, 2]).unwrap_err().to_string();
    assert!(error.contains("while requests run"), "{error}");
    let (.., free, blocks) = engine.load_figures();
    assert_eq!(free, blocks);
}
