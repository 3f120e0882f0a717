//! Steps that are queued before the tokens of those before them are known.

use std::collections::HashMap;

use fercuda_llm::{EngineConfig, FinishReason, GenerationRequest, RequestId};

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
