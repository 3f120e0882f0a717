//! Requests whose texts follow grammars, among others that follow none.

use std::collections::HashMap;
use std::path::Path;

use fercuda_grammar::{GrammarCompiler, GrammarSource};
use fercuda_llm::{
    Engine, EngineConfig, FinishReason, GenerationRequest, RequestId, SamplerConfig,
};
use fercuda_modelfile::ModelFile;
use fercuda_tokenizer::Tokenizer;

use crate::engine::{config, prompt, request, runtime, sizes};
use crate::model::{TinyModel, TinySizes};

fn tokenizer() -> Tokenizer {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokenizer/tests/references");
    Tokenizer::from_json(&std::fs::read(file.join("bytes.json")).unwrap()).unwrap()
}

/// A model with some more tokens than the tokenizer has.
fn engine(random: &mut fastrand::Rng, config: &EngineConfig) -> Engine {
    let sizes = TinySizes {
        vocabulary: 620,
        ..sizes("llama")
    };
    let model = TinyModel::random(random, sizes);
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    Engine::load(runtime(), &file, config, |_, _| {}).unwrap()
}

/// Runs all to their ends: tokens and ends of each.
fn run(
    engine: &mut Engine,
    requests: Vec<GenerationRequest>,
) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    let add = |it| engine.add(it).unwrap();
    let order: Vec<RequestId> = requests.into_iter().map(add).collect();
    let mut all: HashMap<RequestId, (Vec<u32>, Option<FinishReason>)> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let (tokens, end) = all.entry(event.request).or_default();
            if event.finished.is_none_or(FinishReason::has_token) {
                tokens.push(event.token);
            }
            *end = event.finished;
        }
    }
    let (running, waiting, free, blocks) = engine.load_figures();
    assert_eq!((running + waiting, free), (0, blocks));
    order.iter().map(|id| all[id].clone()).collect()
}

#[test]
fn texts_follow_their_grammars_and_others_stay_as_they_are() {
    let mut random = fercuda_trials::rng();
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer).unwrap();
    let compile = |source: &GrammarSource| Some(compiler.compile(source).unwrap());
    // Six blocks: not all fit at once, and some are computed again.
    let config = EngineConfig {
        cache_tokens: Some(96),
        ..config("grammars")
    };
    let mut engine = engine(&mut random, &config);
    let date = GrammarSource::Regex("2[0-9]{3}-[01][0-9] (am|pm)".to_owned());
    let words: Vec<String> = ["yes", "no", "perhaps"].map(str::to_owned).to_vec();
    let choice = GrammarSource::Choice(words.clone());
    let schema = "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"minItems\":2,\"maxItems\":2}";
    let schema = GrammarSource::JsonSchema(schema.to_owned());
    let plain: Vec<GenerationRequest> = (0..3)
        .map(|at| {
            let mut own = request(&prompt(&mut random, 8 + 9 * at), 9);
            own.top = (at == 1).then_some(2);
            own
        })
        .collect();
    let alone: Vec<_> = plain
        .iter()
        .map(|it| run(&mut engine, vec![it.clone()]).remove(0))
        .collect();
    let mut all = Vec::new();
    for (at, source) in [&date, &choice, &schema].into_iter().enumerate() {
        all.push(plain[at].clone());
        for temperature in [0.0, 2.0] {
            all.push(GenerationRequest {
                grammar: compile(source),
                sampler: SamplerConfig {
                    temperature,
                    repeat_penalty: 1.3,
                    ..SamplerConfig::default()
                },
                end_tokens: tokenizer.generation_ends().to_vec(),
                ..request(&prompt(&mut random, 5 + 8 * at), 90)
            });
        }
    }
    let results = run(&mut engine, all);
    for (at, group) in results.chunks(3).enumerate() {
        assert_eq!(group[0], alone[at], "a request beside those with grammars");
        for (tokens, end) in &group[1..] {
            let text = tokenizer.decode(tokens);
            match at {
                0 => {
                    assert_eq!(text.len(), 10, "{text}");
                    assert!(text.starts_with('2') && text.ends_with('m'), "{text}");
                }
                1 => assert!(words.contains(&text), "{text}"),
                _ => {
                    let value: Vec<u8> = serde_json::from_str(&text).unwrap();
                    let is_it = value.len() == 2 && value.iter().all(|it| [1, 2].contains(it));
                    assert!(is_it, "{text}");
                }
            }
            assert_eq!(*end, Some(FinishReason::GrammarEnd), "{text}");
        }
    }
}

#[test]
fn a_grammar_that_may_end_ends_by_an_end_token_alone() {
    let mut random = fercuda_trials::rng();
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer).unwrap();
    let mut engine = engine(&mut random, &config("ends of grammars"));
    // Nothing or so many digits: the end is one choice of several, and text goes on without it.
    let grammar = compiler
        .compile(&GrammarSource::Regex("[0-9]*".to_owned()))
        .unwrap();
    let ends = tokenizer.generation_ends().to_vec();
    for end_tokens in [ends, Vec::new()] {
        for seed in 0..6 {
            let own = GenerationRequest {
                grammar: Some(grammar.clone()),
                end_tokens: end_tokens.clone(),
                sampler: SamplerConfig {
                    temperature: 1.5,
                    seed: Some(seed),
                    ..SamplerConfig::default()
                },
                ..request(&[1, 2, 3], 12)
            };
            let (tokens, end) = run(&mut engine, vec![own]).remove(0);
            let (last, digits) = tokens.split_last().unwrap();
            let is_digits = |tokens: &[u32]| {
                tokenizer
                    .decode(tokens)
                    .bytes()
                    .all(|it| it.is_ascii_digit())
            };
            assert!(is_digits(digits), "{tokens:?}");
            match end {
                Some(FinishReason::End) => assert!(end_tokens.contains(last)),
                // Without end tokens of the request the grammar's end is one.
                Some(FinishReason::GrammarEnd) => assert!(end_tokens.is_empty()),
                Some(FinishReason::Length) => assert!(is_digits(&tokens) && tokens.len() == 12),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn probabilities_are_those_of_the_model_alone() {
    let mut random = fercuda_trials::rng();
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer).unwrap();
    let mut engine = engine(&mut random, &config("probabilities"));
    let free = request(&[7, 8, 9], 1);
    let mut events = Vec::new();
    let grammar = compiler
        .compile(&GrammarSource::Choice(vec!["yes".to_owned()]))
        .unwrap();
    let held = GenerationRequest {
        grammar: Some(grammar),
        ..free.clone()
    };
    for own in [free, held] {
        engine
            .generate(own, |event| {
                events.push(event.clone());
                events.len() != 2
            })
            .unwrap();
    }
    assert_eq!(events[0].top, events[1].top);
    assert_ne!(events[0].token, events[1].token, "chance of 1 in 600");
    assert!(events[1].log_probability < events[0].log_probability);
    assert!("yes".starts_with(&tokenizer.decode(&[events[1].token])));
}
