//! Steps that check guesses of tokens: what is generated stays what it was.

use std::collections::HashMap;

use fercuda_llm::{
    DraftRequest, Drafter, EngineConfig, FinishReason, GenerationRequest, LlmError, ModelDrafter,
    RequestId, SamplerConfig,
};

use crate::engine::{architectures, check, config, engine, hybrid, prompt, request, sizes};
use crate::model::TinyModel;

/// Guesses of which some are what the model chooses, and some are not, and some are no tokens.
#[derive(Debug)]
struct HalfRight {
    model: TinyModel,
    random: fastrand::Rng,
}

impl Drafter for HalfRight {
    fn draft(&mut self, requests: &[DraftRequest<'_>]) -> Result<Vec<Vec<u32>>, LlmError> {
        let drafts = requests.iter().map(|it| {
            let mut tokens = it.tokens.to_vec();
            // More than are asked for are not looked at.
            for _ in 0..self.random.usize(..=it.most + 2) {
                let token = match self.random.usize(..8) {
                    0 => self.random.u32(..60),
                    _ => {
                        let all = self.model.log_probabilities(&tokens);
                        let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        all.iter().position(|it| *it == most).unwrap() as u32
                    }
                };
                tokens.push(token.min(49));
                if token > 49 {
                    tokens.pop();
                    tokens.push(u32::MAX);
                    break;
                }
            }
            tokens.split_off(it.tokens.len())
        });
        Ok(drafts.collect())
    }
}

#[test]
fn requests_with_guesses_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    let others = ["qwen3", "mamba2", "gpt-oss", "gemma3"];
    for name in ["qwen35", others[random.usize(..others.len())]] {
        let mut all = architectures().into_iter();
        let (_, sizes) = all.find(|(it, _)| *it == name).unwrap();
        let model = TinyModel::random(&mut random, sizes);
        // Eleven blocks: four requests of up to 45 positions do not always fit at once.
        let config = EngineConfig {
            fused_products: Some(random.bool()),
            cache_tokens: Some(176),
            graphs: Some(random.bool()),
            draft_tokens: random.u64(1..8),
            ..config(name)
        };
        let mut engine = engine(&model, &config);
        if random.usize(..4) > 0 {
            let drafter = HalfRight {
                model: model.clone(),
                random: fastrand::Rng::with_seed(random.u64(..)),
            };
            engine.guess_by(Box::new(drafter)).unwrap();
        }
        let mut all: HashMap<RequestId, (GenerationRequest, Vec<u32>)> = HashMap::new();
        let mut ended = 0;
        let mut left = 12;
        while left > 0 || !engine.is_idle() {
            if left > 0 && random.usize(..4) == 0 {
                left -= 1;
                let length = random.usize(1..25);
                let tokens = prompt(&mut random, length);
                let mut own = request(&tokens, random.usize(1..20));
                if random.bool() {
                    own.top = None;
                }
                own.end_tokens = (0..random.usize(..3)).map(|_| random.u32(..50)).collect();
                all.insert(engine.add(own.clone()).unwrap(), (own, tokens));
            }
            if random.usize(..16) == 0
                && let Some(id) = all.keys().nth(random.usize(..=all.len())).copied()
            {
                engine.cancel(id);
                all.remove(&id);
            }
            for event in engine.step().unwrap() {
                let (request, tokens) = all.get_mut(&event.request).unwrap();
                check(&model, tokens, &event);
                tokens.push(event.token);
                let generated = tokens.len() - request.tokens.len();
                let wanted = match request.end_tokens.contains(&event.token) {
                    true => Some(FinishReason::End),
                    false if generated == request.max_tokens => Some(FinishReason::Length),
                    false => None,
                };
                assert_eq!(event.finished, wanted, "{name}");
                if wanted.is_some() {
                    ended += 1;
                    all.remove(&event.request);
                }
            }
        }
        assert!(all.is_empty() && ended > 0, "{name}");
        let (running, waiting, free, blocks) = engine.load_figures();
        assert_eq!((running, waiting, free), (0, 0, blocks), "{name}");
    }
}

/// What an engine generates for one request after another, its steps, and its counts of guesses.
fn generated(
    model: &TinyModel,
    config: &EngineConfig,
    drafter: Option<Box<dyn Drafter>>,
    requests: &[GenerationRequest],
) -> (Vec<Vec<u32>>, usize, (u64, u64)) {
    let mut engine = engine(model, config);
    if let Some(drafter) = drafter {
        engine.guess_by(drafter).unwrap();
    }
    let (mut all, mut steps) = (Vec::new(), 0);
    for request in requests {
        engine.add(request.clone()).unwrap();
        let mut tokens = Vec::new();
        while !engine.is_idle() {
            tokens.extend(engine.step().unwrap().iter().map(|it| it.token));
            steps += 1;
        }
        all.push(tokens);
    }
    (all, steps, engine.guessed_tokens())
}

#[test]
fn a_seed_gives_the_same_tokens_with_guesses_and_without() {
    let mut random = fercuda_trials::rng();
    for sizes in [sizes("llama"), hybrid("qwen35")] {
        let model = TinyModel::random(&mut random, sizes);
        let requests: Vec<GenerationRequest> = (0..2)
            .map(|_| {
                let mut own = request(&prompt(&mut random, 5), 40);
                own.top = None;
                own.sampler = SamplerConfig {
                    temperature: 0.7,
                    top_p: 0.9,
                    repeat_penalty: 1.1,
                    seed: Some(random.u64(..)),
                    ..SamplerConfig::default()
                };
                own
            })
            .collect();
        let plain = config("without guesses");
        let with = EngineConfig {
            draft_tokens: 7,
            ..config("with guesses")
        };
        let (wanted, ..) = generated(&model, &plain, None, &requests);
        let drafter = || HalfRight {
            model: model.clone(),
            random: fastrand::Rng::new(),
        };
        for drafter in [None, Some(Box::new(drafter()) as Box<dyn Drafter>)] {
            let (own, ..) = generated(&model, &with, drafter, &requests);
            assert_eq!(own, wanted);
        }
    }
}

#[test]
fn right_guesses_save_steps_and_wrong_ones_are_counted() {
    let mut random = fercuda_trials::rng();
    for sizes in [sizes("qwen3"), hybrid("qwen35")] {
        let model = TinyModel::random(&mut random, sizes);
        let mut own = request(&prompt(&mut random, 5), 50);
        own.top = None;
        let with = EngineConfig {
            draft_tokens: 3,
            ..config("guessed")
        };
        // The model itself guesses.
        let drafts = engine(&model, &config("guesses"));
        let drafter = Box::new(ModelDrafter::new(drafts).unwrap());
        let requests = [own.clone()];
        let (wanted, plain, none) = generated(&model, &config("alone"), None, &requests);
        assert_eq!(none, (0, 0));
        let (tokens, steps, (guesses, right)) = generated(&model, &with, Some(drafter), &requests);
        assert_eq!(tokens, wanted);
        // A near tie may be decided the other way in a step of several tokens.
        assert!(right * 10 >= guesses * 8, "{right} of {guesses}");
        assert!(right >= 25, "{right}");
        assert!(steps < plain / 2, "{steps} of {plain}");
        // Another model's guesses are mostly wrong.
        let other = TinyModel::random(&mut random, sizes_of_other());
        let drafter = Box::new(ModelDrafter::new(engine(&other, &config("other"))).unwrap());
        let (tokens, _, (guesses, right)) = generated(&model, &with, Some(drafter), &requests);
        assert_eq!(tokens, wanted);
        assert!(guesses > 0 && right < guesses, "{right} of {guesses}");
    }
}

fn sizes_of_other() -> crate::model::TinySizes {
    crate::model::TinySizes {
        hidden: 16,
        heads: 2,
        ..sizes("qwen3")
    }
}

#[test]
fn guesses_without_room_are_refused() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen3"));
    let mut plain = engine(&model, &config("no room"));
    let error = plain.guess_by(Box::new(fercuda_llm::NgramDrafter::new()));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("draft_tokens"), "{error}");
    let mut busy = engine(&model, &config("busy"));
    busy.add(request(&[1], 1)).unwrap();
    assert!(ModelDrafter::new(busy).is_err());
    // Of rows for guesses there are more than tokens of a step.
    let with = EngineConfig {
        draft_tokens: 7,
        batch_tokens: Some(8),
        ..config("scores")
    };
    let tokens = prompt(&mut random, 30);
    let wanted = plain.score(&tokens).unwrap();
    let own = engine(&model, &with).score(&tokens).unwrap();
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
    assert!(own.iter().zip(&wanted).all(near), "{own:?}, not {wanted:?}");
}
