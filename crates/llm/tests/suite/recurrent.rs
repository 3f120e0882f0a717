//! Layers whose state goes from token to token, of tiny models in f64 by loops.

use std::path::Path;

use fercuda_llm::{Engine, EngineConfig, GenerationRequest};
use fercuda_modelfile::ModelFile;

use crate::engine::{config, hybrid, prompt, request, run, runtime};
use crate::model::{EPSILON, TinyModel, TinySizes};

/// Of models with states: what a query reads of one may be close to 0, and a norm that divides by
/// it would make rounding errors of f32 as large as differences that are looked for.
const STATE_EPSILON: f64 = 1e-2;
/// Tokens of the window of convolutions.
const TAPS: usize = 4;

/// States of a tiny model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TinyStates {
    /// Heads of keys, and of values.
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    pub(crate) key_length: usize,
    pub(crate) value_length: usize,
    /// Layers of a period, of which the last one has attention; 0 for none, and Mamba-2's scan.
    pub(crate) period: usize,
    /// Layers behind the others that predict further tokens.
    pub(crate) further: usize,
}

impl TinyStates {
    fn values(&self) -> usize {
        self.heads * self.value_length
    }

    fn channels(&self) -> usize {
        self.values() + 2 * self.keys * self.key_length
    }

    /// Tensors of a layer: names, shapes, and what their elements are around, with how far.
    pub(crate) fn tensors(&self, hidden: usize) -> Vec<(&'static str, Vec<usize>, [f32; 2])> {
        let (heads, values, channels) = (self.heads, self.values(), self.channels());
        let far = 2.0 / (hidden as f32).sqrt();
        if self.period == 0 {
            return vec![
                (
                    "ssm_in.weight",
                    vec![values + channels + heads, hidden],
                    [0.0, far],
                ),
                ("ssm_conv1d.weight", vec![channels, TAPS], [0.0, 1.0]),
                ("ssm_conv1d.bias", vec![channels], [0.0, 0.5]),
                ("ssm_dt.bias", vec![heads], [-0.5, 1.0]),
                ("ssm_a", vec![heads, 1], [-0.7, 0.6]),
                ("ssm_d", vec![heads, 1], [0.5, 0.5]),
                (
                    "ssm_norm.weight",
                    vec![self.keys, values / self.keys],
                    [1.0, 0.5],
                ),
                (
                    "ssm_out.weight",
                    vec![hidden, values],
                    [0.0, 2.0 / (values as f32).sqrt()],
                ),
            ];
        }
        vec![
            ("attn_qkv.weight", vec![channels, hidden], [0.0, far]),
            ("attn_gate.weight", vec![values, hidden], [0.0, far]),
            ("ssm_alpha.weight", vec![heads, hidden], [0.0, far]),
            ("ssm_beta.weight", vec![heads, hidden], [0.0, far]),
            ("ssm_conv1d.weight", vec![channels, TAPS], [0.0, 1.0]),
            ("ssm_dt.bias", vec![heads], [-0.5, 1.0]),
            ("ssm_a", vec![heads], [-0.7, 0.6]),
            ("ssm_norm.weight", vec![self.value_length], [1.0, 0.5]),
            (
                "ssm_out.weight",
                vec![hidden, values],
                [0.0, 2.0 / (values as f32).sqrt()],
            ),
        ]
    }

    /// Keys of a file's metadata.
    pub(crate) fn numbers(&self) -> Vec<(&'static str, usize)> {
        let mut all = vec![
            ("ssm.conv_kernel", TAPS),
            ("ssm.inner_size", self.values()),
            ("ssm.state_size", self.key_length),
            ("ssm.time_step_rank", self.heads),
            ("ssm.group_count", self.keys),
        ];
        if self.further > 0 {
            all.push(("nextn_predict_layers", self.further));
        }
        if self.period > 0 {
            all.push(("full_attention_interval", self.period));
        }
        all
    }
}

impl TinySizes {
    /// The states of a layer, if it has some.
    pub(crate) fn states_of(&self, layer: usize) -> Option<TinyStates> {
        self.states
            .filter(|it| !(layer + 1).is_multiple_of(it.period))
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn by_length(x: &[f64]) -> Vec<f64> {
    let by = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x * by).collect()
}

/// What the convolution of a channel gives for a token, through SiLU.
fn convolved(window: &[f64], bias: f64, before: impl Fn(usize) -> f64, token: usize) -> f64 {
    let taps = (0..TAPS).filter(|tap| token + tap + 1 >= TAPS);
    let sum: f64 = taps
        .map(|tap| window[tap] * before(token + tap + 1 - TAPS))
        .sum();
    (sum + bias) * sigmoid(sum + bias)
}

impl TinyModel {
    /// Added to means of squares.
    pub(crate) fn epsilon(&self) -> f64 {
        match self.sizes.states {
            Some(_) => STATE_EPSILON,
            None => EPSILON,
        }
    }

    fn vector(&self, name: &str) -> Vec<f64> {
        let own = self.get(name).unwrap();
        own.iter().map(|it| f64::from(*it)).collect()
    }

    /// As [`TinyModel::recurrent`], of Mamba-2.
    fn scanned(&self, layer: usize, states: TinyStates, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let vector = |part: &str| self.vector(&name(part));
        let (window, biases) = (vector("ssm_conv1d.weight"), vector("ssm_conv1d.bias"));
        let (rate, bias, skip) = (vector("ssm_a"), vector("ssm_dt.bias"), vector("ssm_d"));
        let norm = vector("ssm_norm.weight");
        let (values, channels) = (states.values(), states.channels());
        let length = states.key_length;
        let projected: Vec<Vec<f64>> = normed
            .iter()
            .map(|x| self.product(&name("ssm_in.weight"), x))
            .collect();
        let mut all = vec![vec![0.0; length]; values];
        let mut results = Vec::new();
        for token in 0..normed.len() {
            let own = &projected[token];
            let mixed: Vec<f64> = (0..channels)
                .map(|channel| {
                    let before = |at: usize| projected[at][values + channel];
                    convolved(&window[channel * TAPS..], biases[channel], before, token)
                })
                .collect();
            let mut given = Vec::new();
            for (at, state) in all.iter_mut().enumerate() {
                let head = at / states.value_length;
                let group = head / (states.heads / states.keys);
                let written = &mixed[values + group * length..][..length];
                let read = &mixed[values + (states.keys + group) * length..][..length];
                let step = (own[values + channels + head] + bias[head]).exp().ln_1p();
                for (state, written) in state.iter_mut().zip(written) {
                    *state = *state * (rate[head] * step).exp() + written * mixed[at] * step;
                }
                let gate = own[at];
                let value = dot(state, read) + skip[head] * mixed[at];
                given.push(value * gate * sigmoid(gate));
            }
            let each = values / states.keys;
            let normed = given
                .chunks(each)
                .zip(norm.chunks(each))
                .flat_map(|(x, w)| {
                    let by = 1.0 / (dot(x, x) / each as f64 + self.epsilon()).sqrt();
                    x.iter().zip(w).map(move |(x, w)| x * by * w)
                });
            let normed: Vec<f64> = normed.collect();
            results.push(self.product(&name("ssm_out.weight"), &normed));
        }
        results
    }

    /// What a layer adds to each token, whose norms are given.
    pub(crate) fn recurrent(
        &self,
        layer: usize,
        states: TinyStates,
        normed: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        if states.period == 0 {
            return self.scanned(layer, states, normed);
        }
        let name = |part: &str| format!("blk.{layer}.{part}");
        let vector = |part: &str| self.vector(&name(part));
        let TinyStates {
            keys,
            heads,
            key_length,
            value_length,
            ..
        } = states;
        let (window, rate, bias) = (
            vector("ssm_conv1d.weight"),
            vector("ssm_a"),
            vector("ssm_dt.bias"),
        );
        let projected: Vec<Vec<f64>> = normed
            .iter()
            .map(|x| self.product(&name("attn_qkv.weight"), x))
            .collect();
        // A matrix of each head: a row of each element of a value.
        let mut all = vec![vec![vec![0.0; key_length]; value_length]; heads];
        let mut results = Vec::new();
        for (token, x) in normed.iter().enumerate() {
            let mixed = |channel: usize| {
                let before = |at: usize| projected[at][channel];
                convolved(&window[channel * TAPS..], 0.0, before, token)
            };
            let mixed: Vec<f64> = (0..states.channels()).map(mixed).collect();
            let steps = self.product(&name("ssm_alpha.weight"), x);
            let rates = self.product(&name("ssm_beta.weight"), x);
            let gate = self.product(&name("attn_gate.weight"), x);
            let mut values = Vec::new();
            for head in 0..heads {
                // In files, value heads of one key are as far apart as there are keys.
                let key_at = match self.has_grouped_keys {
                    true => head / (heads / keys),
                    false => head % keys,
                } * key_length;
                let query = by_length(&mixed[key_at..][..key_length]);
                let key = by_length(&mixed[keys * key_length + key_at..][..key_length]);
                let value = &mixed[2 * keys * key_length + head * value_length..];
                let kept = (rate[head] * (steps[head] + bias[head]).exp().ln_1p()).exp();
                let beta = sigmoid(rates[head]);
                let mut own = Vec::new();
                for (row, value) in all[head].iter_mut().zip(value) {
                    row.iter_mut().for_each(|it| *it *= kept);
                    let change = (value - dot(row, &key)) * beta;
                    row.iter_mut().zip(&key).for_each(|(s, k)| *s += k * change);
                    own.push(dot(row, &query) / (key_length as f64).sqrt());
                }
                let gates = &gate[head * value_length..][..value_length];
                let own = self.norm(&name("ssm_norm.weight"), &own);
                values.extend(own.iter().zip(gates).map(|(x, g)| x * g * sigmoid(*g)));
            }
            results.push(self.product(&name("ssm_out.weight"), &values));
        }
        results
    }
}

/// An engine of a hybrid model that keeps so many states of prefixes.
fn engine_keeping(model: &TinyModel, states: u64, name: &str) -> Engine {
    let config = EngineConfig {
        kept_states: Some(states),
        context: Some(96),
        cache_tokens: Some(96 * 4),
        ..config(name)
    };
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    Engine::load(runtime(), &file, &config, |_, _| {}).unwrap()
}

/// Tokens that are computed for a request, whose results are compared with the reference.
fn computed(
    engine: &mut Engine,
    model: &TinyModel,
    tokens: &[u32],
    count: usize,
) -> (u64, Vec<u32>) {
    let before = engine.computed_tokens();
    let results = run(engine, model, vec![request(tokens, count)]);
    (engine.computed_tokens() - before, results[0].clone())
}

#[test]
fn a_second_turn_goes_on_from_the_state_behind_the_first_ones_answer() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, hybrid("qwen35"));
    let mut engine = engine_keeping(&model, 4, "second turn");
    let tokens = prompt(&mut random, 40);
    // States are kept behind 32 tokens of the prompt, then behind 48 and, instead, behind 64.
    let (count, mut first) = computed(&mut engine, &model, &tokens, 30);
    assert_eq!(count, 40 + 29);
    first.extend(prompt(&mut random, 9));
    let (count, _) = computed(&mut engine, &model, &first, 3);
    assert_eq!(count, 79 - 64 + 2);
    // The same prompt, and another answer than the first one.
    let mut other = tokens.clone();
    other.push((first[40] + 1) % 50);
    let (count, _) = computed(&mut engine, &model, &other, 1);
    assert_eq!(count, 41 - 32);
    // Nothing is kept behind 48 tokens.
    let (count, _) = computed(&mut engine, &model, &first[..50], 1);
    assert_eq!(count, 50 - 32);
    // Where another one ended, as many tokens are known, the state is kept from then on.
    let (count, _) = computed(&mut engine, &model, &first[..50], 1);
    assert_eq!(count, 50 - 48);
}

#[test]
fn prompts_that_begin_alike_share_the_state_behind_that() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, hybrid("qwen35"));
    let mut engine = engine_keeping(&model, 8, "shared beginnings");
    let begins = prompt(&mut random, 33);
    let mut with_end = |number: u32| {
        let mut tokens = begins.clone();
        tokens.push(number);
        tokens.extend(prompt(&mut random, 30));
        tokens
    };
    // The first one keeps no state there, the second one does, and the third one has it.
    for (number, wanted) in [(1, 64), (2, 64), (3, 64 - 32)] {
        let (count, _) = computed(&mut engine, &model, &with_end(number), 1);
        assert_eq!(count, wanted, "{number}");
    }
}

#[test]
fn few_slots_of_states_make_requests_slower_and_not_other() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, hybrid("qwen35"));
    for states in [0, 2] {
        let mut engine = engine_keeping(&model, states, "few slots");
        let begins = prompt(&mut random, 40);
        for _ in 0..2 {
            let all = (0..5).map(|_| {
                let mut tokens = begins[..random.usize(1..40)].to_vec();
                tokens.extend(prompt(&mut random, 3));
                request(&tokens, random.usize(1..20))
            });
            let all: Vec<GenerationRequest> = all.collect();
            run(&mut engine, &model, all);
        }
        // Scores go over all tokens, in parts, from their beginning.
        let scores = engine.score(&begins).unwrap();
        for (at, own) in scores.iter().enumerate() {
            let wanted = model.log_probabilities(&begins[..=at])[begins[at + 1] as usize];
            assert!(
                (f64::from(*own) - wanted).abs() < 1e-4,
                "{own}, not {wanted}"
            );
        }
    }
}

#[test]
fn evicted_requests_with_states_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, hybrid("qwen35moe"));
    let config = EngineConfig {
        cache_tokens: Some(96),
        ..config("evicted states")
    };
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    let mut engine = Engine::load(runtime(), &file, &config, |_, _| {}).unwrap();
    let all: Vec<GenerationRequest> = (0..6)
        .map(|_| {
            let length = random.usize(1..30);
            request(&prompt(&mut random, length), random.usize(1..14))
        })
        .collect();
    run(&mut engine, &model, all);
    let id = engine.add(request(&prompt(&mut random, 30), 9)).unwrap();
    engine.step().unwrap();
    assert!(engine.cancel(id));
    run(
        &mut engine,
        &model,
        vec![request(&prompt(&mut random, 30), 2)],
    );
}

#[test]
fn states_that_do_not_fit_and_sizes_of_no_model_are_named() {
    let mut random = fercuda_trials::rng();
    let refused = |model: &TinyModel| {
        let config = EngineConfig {
            kept_states: Some(1 << 20),
            ..config("refused states")
        };
        let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
        let error = Engine::load(runtime(), &file, &config, |_, _| {}).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("\ntry: "), "{error}");
        error
    };
    let mut model = TinyModel::random(&mut random, hybrid("qwen35"));
    let mut with = |change: fn(&mut TinyStates)| {
        let mut states = hybrid("qwen35").states.unwrap();
        change(&mut states);
        model.sizes.states = Some(states);
        refused(&model)
    };
    let error = with(|it| (it.key_length, it.value_length) = (256, 256));
    assert!(error.contains("1048580 states"), "{error}");
    assert!(error.contains("fewer requests"), "{error}");
    for (change, message) in [
        (
            (|it| it.key_length = 257) as fn(&mut TinyStates),
            "states of 257",
        ),
        (|it| it.value_length = 1000, "states of 1000"),
        (|it| it.keys = 5, "6 heads are no multiple of 5"),
        (|it| it.keys = 0, "group_count is 0"),
        (|it| it.heads = 1 << 24, "inner_size is 83886080"),
    ] {
        let error = with(change);
        assert!(error.contains(message), "{error}");
    }
    let model = TinyModel::random(&mut random, hybrid("qwen35"));
    let file = ModelFile::from_bytes(Path::new("x.gguf"), model.without("blk.0.ssm_a").file());
    let error = Engine::load(runtime(), &file.unwrap(), &config("refused"), |_, _| {});
    let error = error.unwrap_err().to_string();
    assert!(error.contains("does not have blk.0.ssm_a"), "{error}");
}

#[test]
fn layers_that_predict_further_tokens_are_left_out_and_named() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyModel::random(&mut random, hybrid("qwen35"));
    let states = model.sizes.states.as_mut().unwrap();
    states.further = 1;
    let mut model = model.with("blk.4.nextn.enorm.weight", 24);
    let mut engine = engine_keeping(&model, 1, "further");
    let left_out = &engine.model().left_out;
    assert_eq!(left_out, &["layers that predict further tokens"]);
    run(
        &mut engine,
        &model,
        vec![request(&prompt(&mut random, 20), 3)],
    );
    // A file none of whose layers is computed.
    model.sizes.layers = 0;
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    let error = Engine::load(runtime(), &file, &config("further"), |_, _| {});
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("1 of 1 layers predict further tokens"),
        "{error}"
    );
}
