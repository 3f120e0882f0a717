//! Tiny random models: a GGUF file, and their logits in f64 by loops.

use fercuda_modelfile::{GgufBuilder, GgufValue, TensorType};
use fercuda_tensor::Dtype;

/// Sizes of a model.
#[derive(Clone, Debug)]
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
}

/// A model whose weights are f32.
#[derive(Debug)]
pub(crate) struct TinyModel {
    pub(crate) sizes: TinySizes,
    pub(crate) tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

const BASE: f64 = 10_000.0;
const EPSILON: f64 = 1e-5;

impl TinyModel {
    pub(crate) fn random(random: &mut fastrand::Rng, sizes: TinySizes) -> Self {
        let TinySizes {
            hidden,
            heads,
            shared,
            length,
            inner,
            ..
        } = sizes;
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize], scale: f32, around: f32| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| around + scale * (2.0 * random.f32() - 1.0));
            tensors.push((name, shape.to_vec(), values.collect()));
        };
        let matrix = |width: usize| 2.0 / (width as f32).sqrt();
        add(
            "token_embd.weight".into(),
            &[sizes.vocabulary, hidden],
            1.0,
            0.0,
        );
        for layer in 0..sizes.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            add(name("attn_norm.weight"), &[hidden], 0.5, 1.0);
            add(
                name("attn_q.weight"),
                &[heads * length, hidden],
                matrix(hidden),
                0.0,
            );
            add(
                name("attn_k.weight"),
                &[shared * length, hidden],
                matrix(hidden),
                0.0,
            );
            add(
                name("attn_v.weight"),
                &[shared * length, hidden],
                matrix(hidden),
                0.0,
            );
            if sizes.architecture == "qwen2" {
                add(name("attn_q.bias"), &[heads * length], 0.5, 0.0);
                add(name("attn_k.bias"), &[shared * length], 0.5, 0.0);
                add(name("attn_v.bias"), &[shared * length], 0.5, 0.0);
            }
            if sizes.architecture == "qwen3" {
                add(name("attn_q_norm.weight"), &[length], 0.5, 1.0);
                add(name("attn_k_norm.weight"), &[length], 0.5, 1.0);
            }
            let values = heads * length;
            add(
                name("attn_output.weight"),
                &[hidden, values],
                matrix(values),
                0.0,
            );
            add(name("ffn_norm.weight"), &[hidden], 0.5, 1.0);
            add(
                name("ffn_gate.weight"),
                &[inner, hidden],
                matrix(hidden),
                0.0,
            );
            add(name("ffn_up.weight"), &[inner, hidden], matrix(hidden), 0.0);
            add(
                name("ffn_down.weight"),
                &[hidden, inner],
                matrix(inner),
                0.0,
            );
        }
        add("output_norm.weight".into(), &[hidden], 0.5, 1.0);
        if sizes.architecture != "qwen3" {
            add(
                "output.weight".into(),
                &[sizes.vocabulary, hidden],
                matrix(hidden),
                0.0,
            );
        }
        Self { sizes, tensors }
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
        for (key, number) in [
            ("block_count", sizes.layers),
            ("embedding_length", sizes.hidden),
            ("feed_forward_length", sizes.inner),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.shared),
            ("attention.key_length", sizes.length),
            ("attention.value_length", sizes.length),
            ("context_length", sizes.context as usize),
        ] {
            set(&own(key), &GgufValue::U32(number as u32));
        }
        set(
            &own("attention.layer_norm_rms_epsilon"),
            &GgufValue::F32(EPSILON as f32),
        );
        set(&own("rope.freq_base"), &GgufValue::F32(BASE as f32));
        for (name, shape, _) in &self.tensors {
            let shape: Vec<u64> = shape.iter().map(|it| *it as u64).collect();
            file.add_tensor(name, TensorType::Scalar(Dtype::F32), &shape)
                .unwrap();
        }
        let mut bytes = Vec::new();
        let mut writer = file.start(&mut bytes).unwrap();
        for (_, _, values) in &self.tensors {
            let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            writer.write(&data).unwrap();
        }
        writer.finish().unwrap();
        bytes
    }

    fn get(&self, name: &str) -> Option<&[f32]> {
        let found = self.tensors.iter().find(|(own, _, _)| own == name);
        found.map(|(_, _, values)| values.as_slice())
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.get(name).unwrap().chunks(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let by = 1.0 / (squares / x.len() as f64 + EPSILON).sqrt();
        let weights = self.get(name).unwrap();
        x.iter()
            .zip(weights)
            .map(|(x, w)| x * by * f64::from(*w))
            .collect()
    }

    /// Turns pairs of a head, and does its norm before, if there is one.
    fn turned(&self, norm: &str, head: &[f64], position: usize) -> Vec<f64> {
        let mut head = match self.get(norm) {
            Some(_) => self.norm(norm, head),
            None => head.to_vec(),
        };
        let half = head.len() / 2;
        for pair in 0..half {
            let frequency = BASE.powf(-2.0 * pair as f64 / head.len() as f64);
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            let (first, second) = match self.sizes.architecture {
                "llama" => (2 * pair, 2 * pair + 1),
                _ => (pair, pair + half),
            };
            let (a, b) = (head[first], head[second]);
            (head[first], head[second]) = (a * cosine - b * sine, a * sine + b * cosine);
        }
        head
    }

    /// Logits behind the last of some tokens.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let TinySizes {
            hidden,
            heads,
            shared,
            length,
            ..
        } = self.sizes;
        let embedding = self.get("token_embd.weight").unwrap();
        let row = |token: &u32| &embedding[*token as usize * hidden..][..hidden];
        let floats = |row: &[f32]| row.iter().map(|it| f64::from(*it)).collect::<Vec<f64>>();
        let mut all: Vec<Vec<f64>> = tokens.iter().map(|token| floats(row(token))).collect();
        for layer in 0..self.sizes.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let biased = |part: &str, x: &[f64]| {
                let mut y = self.product(&name(&format!("{part}.weight")), x);
                if let Some(bias) = self.get(&name(&format!("{part}.bias"))) {
                    y.iter_mut()
                        .zip(bias)
                        .for_each(|(y, b)| *y += f64::from(*b));
                }
                y
            };
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, x) in all.iter_mut().enumerate() {
                let normed = self.norm(&name("attn_norm.weight"), x);
                let q = biased("attn_q", &normed);
                let norm = name("attn_k_norm.weight");
                let key = biased("attn_k", &normed);
                let key = key
                    .chunks(length)
                    .map(|head| self.turned(&norm, head, position));
                keys.push(key.collect::<Vec<Vec<f64>>>());
                values.push(biased("attn_v", &normed));
                let mut attended = Vec::new();
                for head in 0..heads {
                    let norm = name("attn_q_norm.weight");
                    let q = self.turned(&norm, &q[head * length..][..length], position);
                    let of = head / (heads / shared);
                    let score = |key: &Vec<Vec<f64>>| {
                        let dot: f64 = key[of].iter().zip(&q).map(|(k, q)| k * q).sum();
                        (dot / (length as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = keys.iter().map(score).collect();
                    let total: f64 = weights.iter().sum();
                    for d in 0..length {
                        let sum = weights.iter().zip(&values);
                        let sum: f64 = sum.map(|(w, v)| w * v[of * length + d]).sum();
                        attended.push(sum / total);
                    }
                }
                let out = self.product(&name("attn_output.weight"), &attended);
                x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
                let normed = self.norm(&name("ffn_norm.weight"), x);
                let gate = self.product(&name("ffn_gate.weight"), &normed);
                let up = self.product(&name("ffn_up.weight"), &normed);
                let unit: Vec<f64> = gate
                    .iter()
                    .zip(up)
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                let down = self.product(&name("ffn_down.weight"), &unit);
                x.iter_mut().zip(down).for_each(|(x, y)| *x += y);
            }
        }
        let normed = self.norm("output_norm.weight", &all[tokens.len() - 1]);
        match self.get("output.weight") {
            Some(_) => self.product("output.weight", &normed),
            None => self.product("token_embd.weight", &normed),
        }
    }

    /// Logarithms of the probabilities of the next token.
    pub(crate) fn log_probabilities(&self, tokens: &[u32]) -> Vec<f64> {
        let logits = self.logits(tokens);
        let sum: f64 = logits.iter().map(|it| it.exp()).sum();
        logits.iter().map(|it| it - sum.ln()).collect()
    }
}
