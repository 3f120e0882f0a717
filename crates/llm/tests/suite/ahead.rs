//! Steps that are queued before the tokens of those before them are known.

use std::collections::HashMap;

use fercuda_llm::{EngineConfig, FinishReason, GenerationRequest, RequestId, SamplerConfig};

use crate::engine::{check, config, engine, hybrid, prompt, request, sizes};
use crate::model::TinyModel;

/// What a request is to generate, and has.
struct Followed {
    request: GenerationRequest,
    tokens: Vec<u32>,
    finished: Option<FinishReason>,
}

impl Followed {
    fn is_right(&self) {
        let generated = &self.tokens[self.request.tokens.len()..];
        let ends = |token: &u32| self.request.end_tokens.contains(token);
        let Some((last, others)) = generated.split_last() else {
            return;
        };
        assert!(!others.iter().any(ends), "{generated:?}");
        assert!(generated.len() <= self.request.max_tokens);
        match self.finished {
            Some(FinishReason::End) => assert!(ends(last)),
            Some(reason) => {
                assert_eq!(reason, FinishReason::Length);
                assert_eq!(generated.len(), self.request.max_tokens);
            }
            // It was taken back.
            None => assert!(!ends(last)),
        }
    }
}

#[test]
fn requests_that_come_and_go_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    for sizes in [sizes("qwen3"), hybrid("qwen35")] {
        let name = sizes.architecture;
        let model = TinyModel::random(&mut random, sizes);
        // Ten blocks: four requests of up to 45 positions do not always fit at once.
        let config = EngineConfig {
            fused_products: Some(true),
            cache_tokens: Some(160),
            graphs: Some(random.bool()),
            ..config(name)
        };
        let mut engine = engine(&model, &config);
        let mut all: HashMap<RequestId, Followed> = HashMap::new();
        let shared = prompt(&mut random, 16);
        let (mut left, mut ahead) = (14, 0);
        while left > 0 || !engine.is_idle() {
            if left > 0 && random.usize(..4) == 0 {
                left -= 1;
                let length = random.usize(1..25);
                let mut tokens = prompt(&mut random, length);
                if random.usize(..3) == 0 {
                    // It begins as others do.
                    tokens.splice(0..0, shared.iter().copied());
                }
                let mut own = request(&tokens, random.usize(1..20));
                if random.usize(..4) > 0 {
                    own.top = None;
                }
                own.end_tokens = (0..random.usize(..8)).map(|_| random.u32(..50)).collect();
                let id = engine.add(own.clone()).unwrap();
                let followed = Followed {
                    request: own,
                    tokens,
                    finished: None,
                };
                all.insert(id, followed);
            }
            if random.usize(..12) == 0
                && let Some(id) = all.keys().nth(random.usize(..=all.len()))
            {
                engine.cancel(*id);
            }
            let events = engine.step().unwrap();
            ahead += usize::from(engine.is_ahead());
            for event in events {
                let followed = all.get_mut(&event.request).unwrap();
                assert_eq!(followed.finished, None, "{name}");
                check(&model, &followed.tokens, &event);
                followed.tokens.push(event.token);
                followed.finished = event.finished;
            }
        }
        all.values().for_each(Followed::is_right);
        // Of one that runs alone, whatever came before.
        let mut alone = request(&prompt(&mut random, 3), 8);
        alone.top = None;
        engine.add(alone).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
            ahead += usize::from(engine.is_ahead());
        }
        assert!(ahead > 0, "{name}");
        let (running, waiting, free, blocks) = engine.load_figures();
        assert_eq!((running, waiting, free), (0, 0, blocks), "{name}");
    }
}

#[test]
fn the_device_chooses_as_the_host_does_and_seeds_count_alone() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    let mut requests = Vec::new();
    for _ in 0..24 {
        let length = random.usize(1..20);
        let mut own = request(&prompt(&mut random, length), random.usize(1..16));
        own.sampler = SamplerConfig {
            temperature: [0.0, 0.8, 1.0, 3.0][random.usize(..4)],
            top_k: [0, 0, 5, 20][random.usize(..4)],
            top_p: [1.0, 0.9, 0.5][random.usize(..3)],
            min_p: [0.0, 0.0, 0.1][random.usize(..3)],
            seed: Some(random.u64(..)),
            ..SamplerConfig::default()
        };
        requests.push(own);
    }
    let tokens_of = |top: Option<usize>, together: usize, name: &str| {
        let mut engine = engine(&model, &config(name));
        let mut all: HashMap<RequestId, Vec<u32>> = HashMap::new();
        let mut order = Vec::new();
        let mut ahead = 0;
        for some in requests.chunks(together) {
            for request in some {
                let mut own = request.clone();
                own.top = top;
                order.push(engine.add(own).unwrap());
            }
            while !engine.is_idle() {
                for event in engine.step().unwrap() {
                    all.entry(event.request).or_default().push(event.token);
                }
                ahead += usize::from(engine.is_ahead());
            }
        }
        assert!(ahead > 0 || top.is_some());
        let tokens = order.iter().map(|id| all[id].clone());
        tokens.collect::<Vec<Vec<u32>>>()
    };
    // Probabilities are of use to the host, which chooses then.
    let wanted = tokens_of(Some(0), 1, "on the host");
    for (together, name) in [(1, "alone"), (24, "together")] {
        let own = tokens_of(None, together, name);
        let equal = own.iter().zip(&wanted).filter(|(a, b)| a == b).count();
        // A sum's rounding may decide for another token, once in very many.
        assert!(equal + 1 >= own.len(), "{name}: {own:?}, not {wanted:?}");
    }
}
