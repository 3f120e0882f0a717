//! Tiny random models: a GGUF file, and their logits in f64 by loops.

use fercuda_modelfile::{GgufBuilder, GgufKind, GgufValue, TensorType};
use fercuda_tensor::{BlockFormat, Dtype};

use crate::recurrent::TinyStates;

/// Sizes of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct TinySizes {
    pub(crate) architecture: &'static str,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) shared: usize,
    pub(crate) length: usize,
    pub(crate) inner: usize,
    pub(crate) vocabulary: usize,
    pub(crate) context: u32,
    /// Number of experts, of those that a token chooses, and their inner elements.
    pub(crate) experts: Option<[usize; 3]>,
    /// Positions of windows; 0 for none.
    pub(crate) window: usize,
    /// Whether frequencies have divisors.
    pub(crate) has_divisors: bool,
    /// Whether each layer has a window, instead of the architecture's pattern.
    pub(crate) pattern: Option<Vec<bool>>,
    /// Keys of the architecture with a truth value.
    pub(crate) flags: Vec<(&'static str, bool)>,
    /// Format of the experts' weights.
    pub(crate) blocks: Option<BlockFormat>,
    /// States of layers without attention.
    pub(crate) states: Option<TinyStates>,
}

/// What an architecture has, as its papers and its code say.
#[derive(Clone, Copy)]
struct TinyTraits {
    turns_neighbours: bool,
    /// 1 for biases of queries, keys and values, 2 for those behind attention and of experts too.
    biases: u8,
    has_head_norms: bool,
    /// Whether experts are weighted by sigmoids of what they read, beside one of all tokens, and
    /// every fourth layer is not turned, the others with norms of heads without weights.
    is_llama4: bool,
    has_post_norms: bool,
    has_sinks: bool,
    /// Layers of a period, of which the last one has no window; 0 if all have one.
    period: usize,
    unit: TinyUnit,
    is_scaled: bool,
    /// Limits of scores and of logits.
    limits: [f64; 2],
    is_tied: bool,
    /// Whether matrices are one for queries, keys and values, and one for the gated unit's two.
    is_fused: bool,
    /// Whether layers have no attention and no gated unit.
    is_alone: bool,
    /// Whether attention has a gate, and experts one of all tokens with a gate.
    is_gated: bool,
}

#[derive(Clone, Copy)]
enum TinyUnit {
    Silu,
    GeluTanh,
    /// Clamped at 7, with the gate's sigmoid of 1.702 times it, and 1 added to the other factor.
    Clamped,
}

const PLAIN: TinyTraits = TinyTraits {
    turns_neighbours: false,
    biases: 0,
    has_head_norms: false,
    is_llama4: false,
    has_post_norms: false,
    has_sinks: false,
    period: 0,
    unit: TinyUnit::Silu,
    is_scaled: false,
    limits: [0.0, 0.0],
    is_tied: false,
    is_fused: false,
    is_alone: false,
    is_gated: false,
};

fn traits(architecture: &str) -> TinyTraits {
    let gemma = TinyTraits {
        unit: TinyUnit::GeluTanh,
        is_scaled: true,
        is_tied: true,
        ..PLAIN
    };
    match architecture {
        "llama" => TinyTraits {
            turns_neighbours: true,
            ..PLAIN
        },
        "llama4" => TinyTraits {
            turns_neighbours: true,
            is_llama4: true,
            ..PLAIN
        },
        "qwen2" => TinyTraits { biases: 1, ..PLAIN },
        "qwen3" | "qwen3moe" => TinyTraits {
            has_head_norms: true,
            is_tied: architecture == "qwen3",
            ..PLAIN
        },
        "qwen35" | "qwen35moe" => TinyTraits {
            has_head_norms: true,
            is_gated: true,
            ..PLAIN
        },
        "mamba2" => TinyTraits {
            is_alone: true,
            ..PLAIN
        },
        "gemma" => gemma,
        "gemma2" => TinyTraits {
            has_post_norms: true,
            period: 2,
            limits: [50.0, 30.0],
            ..gemma
        },
        "gemma3" => TinyTraits {
            has_post_norms: true,
            has_head_norms: true,
            period: 6,
            ..gemma
        },
        "gpt-oss" => TinyTraits {
            biases: 2,
            has_sinks: true,
            period: 2,
            unit: TinyUnit::Clamped,
            ..PLAIN
        },
        "phi3" => TinyTraits {
            is_fused: true,
            ..PLAIN
        },
        other => panic!("there is no reference of {other}"),
    }
}

/// A model whose weights are f32, but for those of experts.
#[derive(Clone, Debug)]
pub(crate) struct TinyModel {
    pub(crate) sizes: TinySizes,
    pub(crate) tensors: Vec<TinyTensor>,
    /// Whether neighbouring heads have the same keys, as in checkpoints.
    pub(crate) has_grouped_keys: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct TinyTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
    /// Its bytes, if they are blocks.
    pub(crate) blocks: Option<(BlockFormat, Vec<u8>)>,
}

pub(crate) const BASE: f64 = 10_000.0;
/// Base of layers with a window, of gemma3.
pub(crate) const WINDOW_BASE: f64 = 500.0;
pub(crate) const EPSILON: f64 = 1e-5;
/// Of YaRN: its factor, and the context before.
pub(crate) const YARN: (f64, f64) = (4.0, 100.0);
/// Context up to which frequencies have the short divisors of phi3.
pub(crate) const SHORT_CONTEXT: u32 = 64;
pub(crate) const PHI_MAGNITUDE: f64 = 1.25;

impl TinyModel {
    pub(crate) fn random(random: &mut fastrand::Rng, sizes: TinySizes) -> Self {
        let mut model = Self {
            sizes: sizes.clone(),
            tensors: Vec::new(),
            has_grouped_keys: false,
        };
        let TinySizes {
            hidden,
            heads,
            shared,
            length,
            ..
        } = sizes;
        let own = traits(sizes.architecture);
        let pairs = model.turned() / 2;
        let mut add = |name: String, shape: &[usize], scale: f32, around: f32| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| around + scale * (2.0 * random.f32() - 1.0));
            model.tensors.push(TinyTensor {
                name,
                shape: shape.to_vec(),
                values: values.collect(),
                blocks: None,
            });
        };
        let matrix = |width: usize| 2.0 / (width as f32).sqrt();
        let embedding = [sizes.vocabulary, hidden];
        // Times the root of their length, they are as large as others.
        let scale = if own.is_scaled { matrix(hidden) } else { 1.0 };
        add("token_embd.weight".into(), &embedding, scale, 0.0);
        for layer in 0..sizes.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let mut norms = vec![("attn_norm", hidden)];
            match sizes.architecture {
                "mamba2" => {}
                "gpt-oss" | "qwen35" | "qwen35moe" => norms.push(("post_attention_norm", hidden)),
                _ => norms.push(("ffn_norm", hidden)),
            }
            let states = sizes.states_of(layer);
            if own.has_head_norms && states.is_none() {
                norms.extend([("attn_q_norm", length), ("attn_k_norm", length)]);
            }
            if own.has_post_norms {
                norms.extend([("post_attention_norm", hidden), ("post_ffw_norm", hidden)]);
            }
            for (part, length) in norms {
                add(name(&format!("{part}.weight")), &[length], 0.5, 1.0);
            }
            let values = heads * length;
            let of_keys = shared * length;
            let of_queries = if own.is_gated { 2 * values } else { values };
            let mut matrices = match (own.is_fused, states) {
                (_, Some(_)) => Vec::new(),
                (true, _) => vec![("attn_qkv", vec![values + 2 * of_keys, hidden])],
                (false, _) => vec![
                    ("attn_q", vec![of_queries, hidden]),
                    ("attn_k", vec![of_keys, hidden]),
                    ("attn_v", vec![of_keys, hidden]),
                ],
            };
            match states {
                Some(states) => {
                    for (part, shape, [around, far]) in states.tensors(hidden) {
                        add(name(part), &shape, far, around);
                    }
                }
                None => matrices.push(("attn_output", vec![hidden, values])),
            }
            let inner = sizes.inner;
            // Of Llama 4 layers with experts and without may alternate.
            let experts = sizes.experts.filter(|_| !own.is_llama4 || layer % 2 == 1);
            match experts {
                None if own.is_alone => {}
                Some([count, _, inner]) => matrices.extend([
                    ("ffn_gate_inp", vec![count, hidden]),
                    ("ffn_gate_exps", vec![count, inner, hidden]),
                    ("ffn_up_exps", vec![count, inner, hidden]),
                    ("ffn_down_exps", vec![count, hidden, inner]),
                ]),
                None if own.is_fused => matrices.push(("ffn_up", vec![2 * inner, hidden])),
                None => matrices.extend([
                    ("ffn_gate", vec![inner, hidden]),
                    ("ffn_up", vec![inner, hidden]),
                ]),
            }
            match experts {
                None if own.is_alone => {}
                None => matrices.push(("ffn_down", vec![hidden, inner])),
                Some([_, _, inner]) if own.is_llama4 || own.is_gated => matrices.extend([
                    ("ffn_gate_shexp", vec![inner, hidden]),
                    ("ffn_up_shexp", vec![inner, hidden]),
                    ("ffn_down_shexp", vec![hidden, inner]),
                ]),
                Some(_) => {}
            }
            for (part, shape) in &matrices {
                let (rows, width) = shape.split_at(shape.len() - 1);
                add(
                    name(&format!("{part}.weight")),
                    shape,
                    matrix(width[0]),
                    0.0,
                );
                let is_attention = matches!(*part, "attn_q" | "attn_k" | "attn_v");
                if own.biases > 1 || own.biases > 0 && is_attention {
                    add(name(&format!("{part}.bias")), rows, 0.5, 0.0);
                }
            }
            if own.is_gated && experts.is_some() {
                add(name("ffn_gate_inp_shexp.weight"), &[hidden], 1.0, 0.0);
            }
            if own.has_sinks {
                add(name("attn_sinks.weight"), &[heads], 2.0, 0.0);
            }
        }
        add("output_norm.weight".into(), &[hidden], 0.5, 1.0);
        if !own.is_tied {
            add("output.weight".into(), &embedding, matrix(hidden), 0.0);
        }
        let mut divisors = |name: &str| add(name.into(), &[pairs], 0.9, 2.0);
        match (sizes.has_divisors, own.is_fused) {
            (true, false) => divisors("rope_freqs.weight"),
            (true, true) => {
                divisors("rope_factors_short.weight");
                divisors("rope_factors_long.weight");
            }
            _ => {}
        }
        model.quantise();
        model
    }

    /// The model without a tensor.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|it| it.name != name);
        self
    }

    /// Stores the weights of experts as blocks; their values are those that the blocks have.
    fn quantise(&mut self) {
        let Some(format) = self.sizes.blocks else {
            return;
        };
        let those = self.tensors.iter_mut();
        for tensor in those.filter(|it| it.name.ends_with("_exps.weight")) {
            let blocks = tensor.values.len() / format.elements();
            let mut bytes = vec![0; blocks * format.bytes()];
            format.encode(&tensor.values, &mut bytes).unwrap();
            format.decode(&bytes, &mut tensor.values).unwrap();
            tensor.blocks = Some((format, bytes));
        }
    }

    /// Elements of a head that are turned.
    fn turned(&self) -> usize {
        match self.sizes.architecture {
            "phi3" | "qwen35" | "qwen35moe" => self.sizes.length / 4 * 2,
            _ => self.sizes.length,
        }
    }

    /// The model with one more vector.
    pub(crate) fn with(mut self, name: &str, length: usize) -> Self {
        self.tensors.push(TinyTensor {
            name: name.to_owned(),
            shape: vec![length],
            values: vec![0.5; length],
            blocks: None,
        });
        self
    }

    /// The model as a file's bytes.
    pub(crate) fn file(&self) -> Vec<u8> {
        let sizes = &self.sizes;
        let mut file = GgufBuilder::new();
        let own = |key: &str| format!("{}.{key}", sizes.architecture);
        let mut set = |key: &str, value: &GgufValue<'_>| file.set(key.as_bytes(), value).unwrap();
        set(
            "general.architecture",
            &GgufValue::String(sizes.architecture.as_bytes()),
        );
        let mut numbers = vec![
            (
                "block_count",
                sizes.layers + sizes.states.map_or(0, |it| it.further),
            ),
            ("embedding_length", sizes.hidden),
            ("feed_forward_length", sizes.inner),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.shared),
            ("attention.key_length", sizes.length),
            ("attention.value_length", sizes.length),
            ("context_length", sizes.context as usize),
            ("rope.dimension_count", self.turned()),
        ];
        if let Some([count, used, inner]) = sizes.experts {
            numbers.extend([
                ("expert_count", count),
                ("expert_used_count", used),
                ("expert_feed_forward_length", inner),
            ]);
        }
        numbers.extend(sizes.states.iter().flat_map(TinyStates::numbers));
        if sizes.window > 0 {
            numbers.push(("attention.sliding_window", sizes.window));
        }
        let mut floats = vec![
            ("attention.layer_norm_rms_epsilon", self.epsilon()),
            ("rope.freq_base", BASE),
        ];
        match sizes.architecture {
            "gemma3" => {
                floats.extend([
                    ("rope.freq_base_swa", WINDOW_BASE),
                    ("rope.scaling.factor", 2.0),
                ]);
            }
            "gpt-oss" => {
                set(&own("rope.scaling.type"), &GgufValue::String(b"yarn"));
                floats.push(("rope.scaling.factor", YARN.0));
                numbers.push(("rope.scaling.original_context_length", YARN.1 as usize));
            }
            "phi3" => {
                floats.push(("rope.scaling.attn_factor", PHI_MAGNITUDE));
                let original = SHORT_CONTEXT as usize;
                numbers.push(("rope.scaling.original_context_length", original));
            }
            _ => {}
        }
        for (key, number) in numbers {
            set(&own(key), &GgufValue::U32(number as u32));
        }
        for (key, flag) in &sizes.flags {
            set(&own(key), &GgufValue::Bool(*flag));
        }
        for (key, number) in floats {
            set(&own(key), &GgufValue::F32(number as f32));
        }
        if let Some(pattern) = &sizes.pattern {
            let key = own("attention.sliding_window_pattern");
            let all = pattern.iter().map(|it| GgufValue::Bool(*it));
            file.set_array(key.as_bytes(), GgufKind::Bool, all).unwrap();
        }
        for tensor in &self.tensors {
            let shape: Vec<u64> = tensor.shape.iter().map(|it| *it as u64).collect();
            let kind = match &tensor.blocks {
                Some((format, _)) => TensorType::Block(*format),
                None => TensorType::Scalar(Dtype::F32),
            };
            file.add_tensor(&tensor.name, kind, &shape).unwrap();
        }
        let mut bytes = Vec::new();
        let mut writer = file.start(&mut bytes).unwrap();
        for tensor in &self.tensors {
            let values = tensor.values.iter().flat_map(|it| it.to_le_bytes());
            match &tensor.blocks {
                Some((_, blocks)) => writer.write(blocks).unwrap(),
                None => writer.write(&values.collect::<Vec<u8>>()).unwrap(),
            }
        }
        writer.finish().unwrap();
        bytes
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[f32]> {
        let found = self.tensors.iter().find(|it| it.name == name);
        found.map(|it| it.values.as_slice())
    }

    /// Rows of a matrix by x.
    fn rows(weight: &[f32], x: &[f64]) -> Vec<f64> {
        let rows = weight.chunks(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    }

    pub(crate) fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        Self::rows(self.get(name).unwrap(), x)
    }

    /// The product of a layer's part, and its bias, if there is one.
    fn biased(&self, part: &str, x: &[f64]) -> Vec<f64> {
        let mut y = self.product(&format!("{part}.weight"), x);
        if let Some(bias) = self.get(&format!("{part}.bias")) {
            y.iter_mut()
                .zip(bias)
                .for_each(|(y, b)| *y += f64::from(*b));
        }
        y
    }

    /// The product of an expert's matrix, and its bias.
    fn of_expert(&self, part: &str, expert: usize, x: &[f64]) -> Vec<f64> {
        let count = self.sizes.experts.unwrap()[0];
        let weight = self.get(&format!("{part}.weight")).unwrap();
        let each = weight.len() / count;
        let mut y = Self::rows(&weight[expert * each..][..each], x);
        if let Some(bias) = self.get(&format!("{part}.bias")) {
            let own = &bias[expert * y.len()..][..y.len()];
            y.iter_mut().zip(own).for_each(|(y, b)| *y += f64::from(*b));
        }
        y
    }

    pub(crate) fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let by = 1.0 / (squares / x.len() as f64 + self.epsilon()).sqrt();
        let weights = self.get(name).unwrap();
        x.iter()
            .zip(weights)
            .map(|(x, w)| x * by * f64::from(*w))
            .collect()
    }

    fn has_window(&self, layer: usize) -> bool {
        if let Some(pattern) = &self.sizes.pattern {
            return pattern[layer];
        }
        let period = traits(self.sizes.architecture).period;
        self.sizes.window > 0 && (period == 0 || layer % period != period - 1)
    }

    /// Frequency of a pair, and the factor of sines and cosines.
    fn frequency(&self, layer: usize, pair: usize) -> (f64, f64) {
        let turned = self.turned() as f64;
        let of = |base: f64| base.powf(-2.0 * pair as f64 / turned);
        let divided = |name: &str| of(BASE) / f64::from(self.get(name).unwrap()[pair]);
        match self.sizes.architecture {
            "gemma3" if self.has_window(layer) => (of(WINDOW_BASE), 1.0),
            "gemma3" => (of(BASE) / 2.0, 1.0),
            "gpt-oss" => {
                let (factor, original) = YARN;
                let pair_of = |turns: f64| {
                    turned * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * BASE.ln())
                };
                let (low, high) = (pair_of(32.0).max(0.0), pair_of(1.0).min(turned - 1.0));
                let slow = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                let own = of(BASE);
                (
                    own / factor * slow + own * (1.0 - slow),
                    1.0 + 0.1 * factor.ln(),
                )
            }
            "phi3" if self.sizes.context > SHORT_CONTEXT => {
                (divided("rope_factors_long.weight"), PHI_MAGNITUDE)
            }
            "phi3" => (divided("rope_factors_short.weight"), PHI_MAGNITUDE),
            _ if self.sizes.has_divisors => (divided("rope_freqs.weight"), 1.0),
            _ => (of(BASE), 1.0),
        }
    }

    /// Turns pairs of a head, and does its norm before, if there is one.
    fn turn(&self, (layer, norm): (usize, &str), head: &[f64], position: usize) -> Vec<f64> {
        let mut head = match self.get(norm) {
            Some(_) => self.norm(norm, head),
            None => head.to_vec(),
        };
        let is_llama4 = traits(self.sizes.architecture).is_llama4;
        if is_llama4 && layer % 4 == 3 {
            return head;
        }
        let half = self.turned() / 2;
        for pair in 0..half {
            let (frequency, magnitude) = self.frequency(layer, pair);
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            let (sine, cosine) = (sine * magnitude, cosine * magnitude);
            let (first, second) = match traits(self.sizes.architecture).turns_neighbours {
                true => (2 * pair, 2 * pair + 1),
                false => (pair, pair + half),
            };
            let (a, b) = (head[first], head[second]);
            (head[first], head[second]) = (a * cosine - b * sine, a * sine + b * cosine);
        }
        if is_llama4 {
            let squares: f64 = head.iter().map(|x| x * x).sum();
            let by = 1.0 / (squares / head.len() as f64 + EPSILON).sqrt();
            head.iter_mut().for_each(|x| *x *= by);
        }
        head
    }

    /// Queries, keys, values, and gates, if there are some.
    fn projected(&self, layer: usize, x: &[f64]) -> [Vec<f64>; 4] {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let TinySizes {
            heads,
            shared,
            length,
            ..
        } = self.sizes;
        if !traits(self.sizes.architecture).is_fused {
            let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|it| self.biased(&name(it), x));
            if !traits(self.sizes.architecture).is_gated {
                return [q, k, v, Vec::new()];
            }
            // A head's gate is behind its query.
            let part = |first: usize| {
                let all = q.chunks(length).skip(first).step_by(2);
                all.flatten().copied().collect()
            };
            return [part(0), k, v, part(1)];
        }
        let all = self.biased(&name("attn_qkv"), x);
        let (q, rest) = all.split_at(heads * length);
        let (k, v) = rest.split_at(shared * length);
        [q, k, v, &[]].map(<[f64]>::to_vec)
    }

    fn gated(unit: TinyUnit, gate: &[f64], up: &[f64]) -> Vec<f64> {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let both = gate.iter().zip(up);
        let each = |(g, u): (&f64, &f64)| match unit {
            TinyUnit::Silu => g * sigmoid(*g) * u,
            TinyUnit::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                0.5 * g * (1.0 + inner.tanh()) * u
            }
            TinyUnit::Clamped => {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                g * sigmoid(1.702 * g) * (u + 1.0)
            }
        };
        both.map(each).collect()
    }

    /// The gated unit, or those of the experts that x chooses.
    fn unit(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let own = traits(self.sizes.architecture);
        let experts = self.sizes.experts;
        let is_dense = self.get(&name("ffn_gate_inp.weight")).is_none();
        let Some([_, used, _]) = experts.filter(|_| !is_dense) else {
            let unit = match own.is_fused {
                true => {
                    let both = self.biased(&name("ffn_up"), x);
                    let (gate, up) = both.split_at(self.sizes.inner);
                    Self::gated(own.unit, gate, up)
                }
                false => {
                    let [gate, up] = ["ffn_gate", "ffn_up"].map(|it| self.biased(&name(it), x));
                    Self::gated(own.unit, &gate, &up)
                }
            };
            return self.biased(&name("ffn_down"), &unit);
        };
        let scores = self.biased(&name("ffn_gate_inp"), x);
        // The softmax of all, of which the largest are taken and divided by their sum.
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|it| (it - most).exp()).collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        let total: f64 = order[..used].iter().map(|at| weights[*at]).sum();
        let mut sum = match own.is_llama4 || own.is_gated {
            true => {
                let [gate, up] =
                    ["ffn_gate_shexp", "ffn_up_shexp"].map(|it| self.biased(&name(it), x));
                let unit = Self::gated(own.unit, &gate, &up);
                let by = match own.is_gated {
                    true => self.product(&name("ffn_gate_inp_shexp.weight"), x)[0],
                    false => f64::INFINITY,
                };
                let by = 1.0 / (1.0 + (-by).exp());
                let shared = self.biased(&name("ffn_down_shexp"), &unit);
                shared.iter().map(|it| by * it).collect()
            }
            false => vec![0.0; x.len()],
        };
        for expert in &order[..used] {
            let by = match own.is_llama4 {
                true => 1.0 / (1.0 + (-scores[*expert]).exp()),
                false => 1.0,
            };
            let read: Vec<f64> = x.iter().map(|it| it * by).collect();
            let [gate, up] = ["ffn_gate_exps", "ffn_up_exps"]
                .map(|part| self.of_expert(&name(part), *expert, &read));
            let unit = Self::gated(own.unit, &gate, &up);
            let down = self.of_expert(&name("ffn_down_exps"), *expert, &unit);
            let weight = match own.is_llama4 {
                true => 1.0,
                false => weights[*expert] / total,
            };
            sum.iter_mut()
                .zip(down)
                .for_each(|(to, y)| *to += weight * y);
        }
        sum
    }

    /// Attention of a token over keys and values of its own position and those before.
    fn attended(
        &self,
        layer: usize,
        q: &[f64],
        keys: &[Vec<Vec<f64>>],
        values: &[Vec<f64>],
    ) -> Vec<f64> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let own = traits(self.sizes.architecture);
        let TinySizes {
            heads,
            shared,
            length,
            window,
            ..
        } = self.sizes;
        let last = keys.len() - 1;
        let first = match self.has_window(layer) {
            true => keys.len().saturating_sub(window),
            false => 0,
        };
        let limited = |score: f64| match own.limits[0] > 0.0 {
            true => own.limits[0] * (score / own.limits[0]).tanh(),
            false => score,
        };
        let mut attended = Vec::new();
        for head in 0..heads {
            let norm = name("attn_q_norm.weight");
            let q = self.turn((layer, &norm), &q[head * length..][..length], last);
            let of = head / (heads / shared);
            let score = |key: &Vec<Vec<f64>>| {
                let dot: f64 = key[of].iter().zip(&q).map(|(k, q)| k * q).sum();
                limited(dot / (length as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = keys[first..].iter().map(score).collect();
            let sink = self.get(&name("attn_sinks.weight"));
            let sink = sink.map_or(0.0, |it| f64::from(it[head]).exp());
            let total: f64 = weights.iter().sum::<f64>() + sink;
            for d in 0..length {
                let sum = weights.iter().zip(&values[first..]);
                let sum: f64 = sum.map(|(w, v)| w * v[of * length + d]).sum();
                attended.push(sum / total);
            }
        }
        attended
    }

    /// What attention or the unit gives, by its norm, if there is one.
    fn behind(&self, norm: &str, x: Vec<f64>) -> Vec<f64> {
        match traits(self.sizes.architecture).has_post_norms {
            true => self.norm(norm, &x),
            false => x,
        }
    }

    /// Logits behind the last of some tokens.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let TinySizes { hidden, length, .. } = self.sizes;
        let own = traits(self.sizes.architecture);
        let embedding = self.get("token_embd.weight").unwrap();
        let row = |token: &u32| &embedding[*token as usize * hidden..][..hidden];
        let by = if own.is_scaled {
            (hidden as f64).sqrt()
        } else {
            1.0
        };
        let floats = |row: &[f32]| row.iter().map(|it| by * f64::from(*it)).collect();
        let mut all: Vec<Vec<f64>> = tokens.iter().map(|token| floats(row(token))).collect();
        for layer in 0..self.sizes.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let unit_norm = match self.sizes.architecture {
                "gpt-oss" | "qwen35" | "qwen35moe" => "post_attention_norm.weight",
                _ => "ffn_norm.weight",
            };
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let states = self.sizes.states_of(layer);
            let recurrent = states.map(|states| {
                let normed = all.iter().map(|x| self.norm(&name("attn_norm.weight"), x));
                self.recurrent(layer, states, &normed.collect::<Vec<_>>())
            });
            for (position, x) in all.iter_mut().enumerate() {
                if let Some(recurrent) = &recurrent {
                    x.iter_mut()
                        .zip(&recurrent[position])
                        .for_each(|(x, y)| *x += y);
                    if !own.is_alone {
                        let normed = self.norm(&name(unit_norm), x);
                        let out = self.unit(layer, &normed);
                        x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
                    }
                    continue;
                }
                let normed = self.norm(&name("attn_norm.weight"), x);
                let [q, key, value, gate] = self.projected(layer, &normed);
                let norm = name("attn_k_norm.weight");
                let key = key
                    .chunks(length)
                    .map(|head| self.turn((layer, &norm), head, position));
                keys.push(key.collect::<Vec<Vec<f64>>>());
                values.push(value);
                let mut attended = self.attended(layer, &q, &keys, &values);
                let gated = attended.iter_mut().zip(&gate);
                gated.for_each(|(x, gate)| *x /= 1.0 + (-gate).exp());
                let out = self.biased(&name("attn_output"), &attended);
                let out = self.behind(&name("post_attention_norm.weight"), out);
                x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
                let normed = self.norm(&name(unit_norm), x);
                let out = self.unit(layer, &normed);
                let out = self.behind(&name("post_ffw_norm.weight"), out);
                x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
            }
        }
        let normed = self.norm("output_norm.weight", &all[tokens.len() - 1]);
        let logits = match self.get("output.weight") {
            Some(_) => self.product("output.weight", &normed),
            None => self.product("token_embd.weight", &normed),
        };
        let limited = |logit: f64| match own.limits[1] > 0.0 {
            true => own.limits[1] * (logit / own.limits[1]).tanh(),
            false => logit,
        };
        logits.into_iter().map(limited).collect()
    }

    /// Logarithms of the probabilities of the next token.
    pub(crate) fn log_probabilities(&self, tokens: &[u32]) -> Vec<f64> {
        let logits = self.logits(tokens);
        let sum: f64 = logits.iter().map(|it| it.exp()).sum();
        logits.iter().map(|it| it - sum.ln()).collect()
    }
}
