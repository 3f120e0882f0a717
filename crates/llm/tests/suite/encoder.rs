//! Encoders: vectors of texts, compared with a reference in f64.

use std::fs;
use std::path::Path;

use fercuda_llm::{
    Embedder, EmbedderConfig, EmbeddingPooling, EncoderConfig, Engine, LlmError, ModelConfig,
};
use fercuda_modelfile::{GgufBuilder, GgufValue, ModelFile, TensorType};
use fercuda_tensor::Dtype;
use serde_json::json;
use tempfile::TempDir;

use crate::checkpoint::{encoded, safetensors};
use crate::engine::{config, runtime};

const EPSILON: f64 = 1e-12;

/// A part of the model: its name in GGUF files and in checkpoints, its shape and elements.
struct EncoderTensor {
    gguf: String,
    there: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// A tiny encoder with random weights.
struct TinyEncoder {
    layers: usize,
    hidden: usize,
    heads: usize,
    inner: usize,
    context: usize,
    tensors: Vec<EncoderTensor>,
}

const VOCABULARY: usize = 40;

impl TinyEncoder {
    fn random(random: &mut fastrand::Rng) -> TinyEncoder {
        let (heads, length) = (random.usize(1..4), 4 * random.usize(1..4));
        let mut model = TinyEncoder {
            layers: 2,
            hidden: heads * length,
            heads,
            inner: random.usize(10..50),
            context: 50,
            tensors: Vec::new(),
        };
        let (hidden, inner) = (model.hidden, model.inner);
        let mut add = |gguf: String, there: String, shape: &[usize], around: f32, wide: f32| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| around + wide * (random.f32() - 0.5));
            model.tensors.push(EncoderTensor {
                gguf,
                there,
                shape: shape.to_vec(),
                values: values.collect(),
            });
        };
        for (gguf, there, rows) in [
            ("token_embd", "word_embeddings", VOCABULARY),
            ("position_embd", "position_embeddings", 50),
            ("token_types", "token_type_embeddings", 2),
        ] {
            let names = (
                format!("{gguf}.weight"),
                format!("embeddings.{there}.weight"),
            );
            add(names.0, names.1, &[rows, hidden], 0.0, 2.0);
        }
        let mut norms = vec![(
            "token_embd_norm".to_owned(),
            "embeddings.LayerNorm".to_owned(),
        )];
        let mut products = Vec::new();
        for layer in 0..2 {
            let (own, there) = (format!("blk.{layer}"), format!("encoder.layer.{layer}"));
            for (part, name, inputs, outputs) in [
                ("attn_q", "attention.self.query", hidden, hidden),
                ("attn_k", "attention.self.key", hidden, hidden),
                ("attn_v", "attention.self.value", hidden, hidden),
                ("attn_output", "attention.output.dense", hidden, hidden),
                ("ffn_up", "intermediate.dense", hidden, inner),
                ("ffn_down", "output.dense", inner, hidden),
            ] {
                let names = (format!("{own}.{part}"), format!("{there}.{name}"));
                products.push((names, inputs, outputs));
            }
            for (part, name) in [
                ("attn_output_norm", "attention.output.LayerNorm"),
                ("layer_output_norm", "output.LayerNorm"),
            ] {
                norms.push((format!("{own}.{part}"), format!("{there}.{name}")));
            }
        }
        for ((own, there), inputs, outputs) in products {
            let wide = 3.0 / (inputs as f32).sqrt();
            let name = |kind: &str| (format!("{own}.{kind}"), format!("{there}.{kind}"));
            let (weight, bias) = (name("weight"), name("bias"));
            add(weight.0, weight.1, &[outputs, inputs], 0.0, wide);
            add(bias.0, bias.1, &[outputs], 0.0, 0.5);
        }
        for (own, there) in norms {
            let name = |kind: &str| (format!("{own}.{kind}"), format!("{there}.{kind}"));
            let (weight, bias) = (name("weight"), name("bias"));
            add(weight.0, weight.1, &[hidden], 1.0, 0.4);
            add(bias.0, bias.1, &[hidden], 0.0, 0.4);
        }
        model
    }

    fn get(&self, name: &str) -> &[f32] {
        &self
            .tensors
            .iter()
            .find(|it| it.gguf == name)
            .unwrap()
            .values
    }

    fn product(&self, part: &str, x: &[f64]) -> Vec<f64> {
        let (weight, bias) = (
            self.get(&format!("{part}.weight")),
            self.get(&format!("{part}.bias")),
        );
        let rows = weight.chunks(x.len()).zip(bias);
        let row = |(row, bias): (&[f32], &f32)| {
            let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
            sum + f64::from(*bias)
        };
        rows.map(row).collect()
    }

    fn norm(&self, part: &str, x: &[f64]) -> Vec<f64> {
        let count = x.len() as f64;
        let mean = x.iter().sum::<f64>() / count;
        let variance = x.iter().map(|it| (it - mean) * (it - mean)).sum::<f64>() / count;
        let by = 1.0 / (variance + EPSILON).sqrt();
        let weights = self
            .get(&format!("{part}.weight"))
            .iter()
            .zip(self.get(&format!("{part}.bias")));
        let each = x.iter().zip(weights);
        each.map(|(x, (w, b))| (x - mean) * by * f64::from(*w) + f64::from(*b))
            .collect()
    }

    /// Vectors of the tokens of a text.
    fn tokens(&self, text: &[u32]) -> Vec<Vec<f64>> {
        let row = |name: &str, at: usize| {
            let row = &self.get(name)[at * self.hidden..][..self.hidden];
            row.iter().map(|it| f64::from(*it)).collect::<Vec<f64>>()
        };
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
        let mut x: Vec<Vec<f64>> = (0..)
            .zip(text)
            .map(|(at, token)| {
                let word = row("token_embd.weight", *token as usize);
                let place = sum(
                    &row("position_embd.weight", at),
                    &row("token_types.weight", 0),
                );
                self.norm("token_embd_norm", &sum(&word, &place))
            })
            .collect();
        let length = self.hidden / self.heads;
        for layer in 0..self.layers {
            let part = |name: &str| format!("blk.{layer}.{name}");
            let all = |name: &str| -> Vec<Vec<f64>> {
                x.iter().map(|x| self.product(&part(name), x)).collect()
            };
            let (q, k, v) = (all("attn_q"), all("attn_k"), all("attn_v"));
            x = x
                .iter()
                .zip(&q)
                .map(|(x, q)| {
                    let mut attended = Vec::new();
                    for head in 0..self.heads {
                        let own = head * length..(head + 1) * length;
                        let scores: Vec<f64> = k
                            .iter()
                            .map(|k| {
                                let dot: f64 = q[own.clone()]
                                    .iter()
                                    .zip(&k[own.clone()])
                                    .map(|(a, b)| a * b)
                                    .sum();
                                (dot / (length as f64).sqrt()).exp()
                            })
                            .collect();
                        let whole: f64 = scores.iter().sum();
                        for at in own {
                            let values = scores.iter().zip(&v).map(|(s, v)| s / whole * v[at]);
                            attended.push(values.sum());
                        }
                    }
                    let out = sum(&self.product(&part("attn_output"), &attended), x);
                    let x = self.norm(&part("attn_output_norm"), &out);
                    let inner = self.product(&part("ffn_up"), &x).into_iter().map(gelu);
                    let inner: Vec<f64> = inner.collect();
                    let down = sum(&self.product(&part("ffn_down"), &inner), &x);
                    self.norm(&part("layer_output_norm"), &down)
                })
                .collect();
        }
        x
    }

    /// The vector of a text.
    fn vector(&self, text: &[u32], pooling: EmbeddingPooling) -> Vec<f64> {
        let tokens = self.tokens(text);
        let own = match pooling {
            EmbeddingPooling::Mean => &tokens[..],
            EmbeddingPooling::First => &tokens[..1],
            EmbeddingPooling::Last => &tokens[tokens.len() - 1..],
        };
        let sums: Vec<f64> = (0..self.hidden)
            .map(|at| own.iter().map(|it| it[at]).sum())
            .collect();
        let length = sums.iter().map(|it| it * it).sum::<f64>().sqrt();
        sums.iter().map(|it| it / length).collect()
    }

    fn gguf(&self, pooling: u32) -> ModelFile {
        let mut file = GgufBuilder::new();
        let mut set = |key: &str, value: &GgufValue<'_>| file.set(key.as_bytes(), value).unwrap();
        set("general.architecture", &GgufValue::String(b"bert"));
        set("general.name", &GgufValue::String(b"tiny encoder"));
        for (key, number) in [
            ("block_count", self.layers),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.inner),
            ("attention.head_count", self.heads),
            ("context_length", self.context),
            ("pooling_type", pooling as usize),
        ] {
            set(&format!("bert.{key}"), &GgufValue::U32(number as u32));
        }
        set(
            "bert.attention.layer_norm_epsilon",
            &GgufValue::F32(EPSILON as f32),
        );
        for tensor in &self.tensors {
            let shape: Vec<u64> = tensor.shape.iter().map(|it| *it as u64).collect();
            file.add_tensor(&tensor.gguf, TensorType::Scalar(Dtype::F32), &shape)
                .unwrap();
        }
        let mut bytes = Vec::new();
        let mut writer = file.start(&mut bytes).unwrap();
        for tensor in &self.tensors {
            writer.write(&encoded(Dtype::F32, &tensor.values)).unwrap();
        }
        writer.finish().unwrap();
        ModelFile::from_bytes(Path::new("tiny.gguf"), bytes).unwrap()
    }

    /// A checkpoint's folder; names begin with that.
    fn folder(&self, prefix: &str, pooling: &str) -> TempDir {
        let folder = TempDir::new().unwrap();
        let tensors: Vec<_> = self
            .tensors
            .iter()
            .map(|it| {
                let there = match prefix {
                    "bert." => it.there.replace("LayerNorm.weight", "LayerNorm.gamma"),
                    _ => it.there.clone(),
                };
                let bytes = encoded(Dtype::F32, &it.values);
                (format!("{prefix}{there}"), "F32", it.shape.clone(), bytes)
            })
            .collect();
        fs::write(
            folder.path().join("model.safetensors"),
            safetensors(&tensors),
        )
        .unwrap();
        let config = json!({
            "model_type": "bert", "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "intermediate_size": self.inner,
            "max_position_embeddings": self.context, "hidden_act": "gelu",
            "layer_norm_eps": EPSILON, "vocab_size": VOCABULARY, "type_vocab_size": 2,
        });
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        if !pooling.is_empty() {
            fs::create_dir(folder.path().join("1_Pooling")).unwrap();
            let own = folder.path().join("1_Pooling/config.json");
            fs::write(own, json!({ pooling: true }).to_string()).unwrap();
        }
        folder
    }
}

/// x (1 + erf(x / root of 2)) / 2, by the series of erf.
fn gelu(x: f64) -> f64 {
    let z = x / 2.0_f64.sqrt();
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        let n = f64::from(n);
        term *= -z * z / n;
        sum += term / (2.0 * n + 1.0);
    }
    let erf = match z.abs() > 5.0 {
        true => z.signum(),
        false => sum * 2.0 / std::f64::consts::PI.sqrt(),
    };
    x * (1.0 + erf) / 2.0
}

fn embedder(file: &ModelFile, name: &str) -> Embedder {
    let config = EmbedderConfig {
        session: name.to_owned(),
        batch_tokens: Some(64),
    };
    Embedder::load(runtime(), file, &config, |_, _| {}).unwrap()
}

fn check(
    model: &TinyEncoder,
    embedder: &mut Embedder,
    random: &mut fastrand::Rng,
    pooling: EmbeddingPooling,
) {
    assert_eq!(embedder.model().pooling, pooling);
    // More than a step has, of all lengths.
    let texts: Vec<Vec<u32>> = [1, 2, 15, 16, 17, 50, 33, 1, 48]
        .into_iter()
        .map(|length| {
            (0..length)
                .map(|_| random.u32(..VOCABULARY as u32))
                .collect()
        })
        .collect();
    let vectors = embedder.embed(&texts).unwrap();
    assert_eq!(vectors.len(), texts.len());
    for (text, vector) in texts.iter().zip(&vectors) {
        let wanted = model.vector(text, pooling);
        let off = vector
            .iter()
            .zip(&wanted)
            .map(|(own, it)| (f64::from(*own) - it).abs());
        let off = off.fold(0.0, f64::max);
        assert!(off < 2e-5, "{off} of {} tokens", text.len());
    }
    // Alone it is the same, but for the order of sums.
    let alone = embedder.embed(&texts[4..5]).unwrap();
    let off = alone[0]
        .iter()
        .zip(&vectors[4])
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(off < 1e-5, "{off}");
}

#[test]
fn vectors_of_files_of_each_kind_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    let model = TinyEncoder::random(&mut random);
    for (number, pooling) in [
        (1, EmbeddingPooling::Mean),
        (2, EmbeddingPooling::First),
        (3, EmbeddingPooling::Last),
    ] {
        let file = model.gguf(number);
        check(
            &model,
            &mut embedder(&file, "encoder"),
            &mut random,
            pooling,
        );
    }
    for (prefix, key, pooling) in [
        ("", "", EmbeddingPooling::Mean),
        ("bert.", "pooling_mode_cls_token", EmbeddingPooling::First),
    ] {
        let folder = model.folder(prefix, key);
        let file = ModelFile::open(folder.path()).unwrap();
        let mut embedder = embedder(&file, "checkpoint");
        check(&model, &mut embedder, &mut random, pooling);
        let session = embedder.session().clone();
        drop(embedder);
        session.close().unwrap();
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn what_does_not_fit_or_is_no_encoder_is_refused() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyEncoder::random(&mut random);
    let file = model.gguf(1);
    let mut own = embedder(&file, "refusals");
    for (tokens, said) in [
        (vec![], "without tokens"),
        (vec![1; 51], "51 tokens in 50 positions"),
        (vec![40], "a vocabulary of 40"),
    ] {
        let error = own.embed(&[vec![1], tokens]).unwrap_err();
        assert!(matches!(error, LlmError::Request { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(own.embed(&[]).unwrap().len(), 0);
    // An encoder generates nothing, and what generates is no encoder.
    assert!(EncoderConfig::is_encoder(&file));
    let error = ModelConfig::of(&file).unwrap_err().to_string();
    assert!(error.contains("makes embeddings"), "{error}");
    assert!(Engine::load(runtime(), &file, &config("none"), |_, _| {}).is_err());
    let sizes = crate::engine::sizes("qwen2");
    let decoder = crate::model::TinyModel::random(&mut random, sizes).file();
    let decoder = ModelFile::from_bytes(Path::new("tiny.gguf"), decoder).unwrap();
    assert!(!EncoderConfig::is_encoder(&decoder));
    let error = EncoderConfig::of(&decoder).unwrap_err().to_string();
    assert!(error.contains("makes no embeddings"), "{error}");
    assert!(
        EncoderConfig::of(&model.gguf(4))
            .unwrap_err()
            .to_string()
            .contains("pooling_type")
    );
    // Tensors that are absent, or of other shapes.
    let load = |model: &TinyEncoder| {
        let config = EmbedderConfig::default();
        Embedder::load(runtime(), &model.gguf(1), &config, |_, _| {})
            .unwrap_err()
            .to_string()
    };
    let heads = std::mem::replace(&mut model.heads, 2 * model.hidden);
    assert!(load(&model).contains("no multiple of"));
    model.heads = heads;
    let at = random.usize(..model.tensors.len());
    let left = model.tensors.remove(at);
    assert!(load(&model).contains(&left.gguf), "{}", left.gguf);
    let mut wrong = EncoderTensor {
        shape: vec![left.shape[0] + 1],
        ..left
    };
    wrong.values = vec![0.0; wrong.shape[0]];
    let name = wrong.gguf.clone();
    model.tensors.push(wrong);
    assert!(load(&model).contains(&name), "{name}");
}
