//! Random adapters of tiny models: their files of both kinds, and the models with them merged.

use std::fs;
use std::path::PathBuf;

use fercuda_modelfile::{GgufBuilder, GgufValue, TensorType};
use fercuda_tensor::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoint::{FileTensor, encoded, in_halves, name_there, safetensors};
use crate::model::TinyModel;

/// Two factors of what is added to a matrix, with the rows that a file of llama.cpp has.
#[derive(Clone, Debug)]
pub(crate) struct TinyFactors {
    /// `blk.0.attn_q`
    pub(crate) place: String,
    pub(crate) rank: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

/// An adapter of a tiny model.
#[derive(Clone, Debug)]
pub(crate) struct TinyAdapter {
    pub(crate) factors: Vec<TinyFactors>,
    pub(crate) alpha: f64,
    architecture: &'static str,
    /// Rows of a head.
    length: usize,
}

/// Matrices that adapters change, by their names in files.
const PARTS: [&str; 8] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];

impl TinyAdapter {
    /// An adapter that changes all that it may, about as much as the weights are.
    pub(crate) fn random(random: &mut fastrand::Rng, model: &TinyModel, rank: usize) -> Self {
        let mut factors = Vec::new();
        for tensor in &model.tensors {
            let Some(place) = tensor.name.strip_suffix(".weight") else {
                continue;
            };
            let part = place.strip_prefix("blk.").and_then(|it| it.split_once('.'));
            let Some((layer, part)) = part else {
                continue;
            };
            let has_states = model.sizes.states_of(layer.parse().unwrap()).is_some();
            if !PARTS.contains(&part) || has_states && part.starts_with("attn") {
                continue;
            }
            let &[outputs, inputs] = tensor.shape.as_slice() else {
                continue;
            };
            let mut values = |count: usize, scale: f32| {
                let each = |_| scale * (2.0 * random.f32() - 1.0);
                (0..count).map(each).collect::<Vec<f32>>()
            };
            factors.push(TinyFactors {
                place: place.to_owned(),
                rank,
                inputs,
                outputs,
                a: values(rank * inputs, 1.0),
                b: values(outputs * rank, 1.5 / (inputs as f32 * rank as f32).sqrt()),
            });
        }
        Self {
            factors,
            alpha: 2.0 * rank as f64,
            architecture: model.sizes.architecture,
            length: model.sizes.length,
        }
    }

    /// An adapter of a model whose heads are not turned otherwise in files.
    pub(crate) fn new(factors: Vec<TinyFactors>, alpha: f64, architecture: &'static str) -> Self {
        Self {
            factors,
            alpha,
            architecture,
            length: 0,
        }
    }

    /// The adapter of these places alone.
    pub(crate) fn of(mut self, is_kept: impl Fn(&str) -> bool) -> Self {
        self.factors.retain(|it| is_kept(&it.place));
        self
    }

    /// The model with so much of the adapter added to its weights.
    pub(crate) fn merged(&self, model: &TinyModel, scale: f64) -> TinyModel {
        let mut merged = model.clone();
        for own in &self.factors {
            let by = scale * self.alpha / own.rank as f64;
            let name = format!("{}.weight", own.place);
            let tensor = merged.tensors.iter_mut().find(|it| it.name == name);
            for (at, value) in tensor.unwrap().values.iter_mut().enumerate() {
                *value = (f64::from(*value) + by * own.element(at)) as f32;
            }
        }
        merged
    }

    /// A GGUF file, as llama.cpp's converter writes it.
    pub(crate) fn gguf(&self) -> Vec<u8> {
        self.gguf_with(&[])
    }

    /// As `gguf`, with these keys and texts instead.
    pub(crate) fn gguf_with(&self, keys: &[(&str, &str)]) -> Vec<u8> {
        let mut file = GgufBuilder::new();
        for (key, text) in [
            ("general.type", "adapter"),
            ("general.architecture", self.architecture),
            ("adapter.type", "lora"),
            ("adapter.alora.invocation_tokens", ""),
        ] {
            let other = keys.iter().find(|(own, _)| *own == key);
            let text = other.map_or(text, |(_, text)| text);
            if !text.is_empty() {
                let text = GgufValue::String(text.as_bytes());
                file.set(key.as_bytes(), &text).unwrap();
            }
        }
        let alpha = GgufValue::F32(self.alpha as f32);
        file.set(b"adapter.lora.alpha", &alpha).unwrap();
        let mut data = Vec::new();
        for own in &self.factors {
            for (end, [rows, columns], values) in [
                ("lora_a", [own.rank, own.inputs], &own.a),
                ("lora_b", [own.outputs, own.rank], &own.b),
            ] {
                let name = format!("{}.weight.{end}", own.place);
                let kind = TensorType::Scalar(Dtype::F32);
                let shape = [rows as u64, columns as u64];
                file.add_tensor(&name, kind, &shape).unwrap();
                data.push(encoded(Dtype::F32, values));
            }
        }
        let mut bytes = Vec::new();
        let mut writer = file.start(&mut bytes).unwrap();
        data.iter().for_each(|it| writer.write(it).unwrap());
        writer.finish().unwrap();
        bytes
    }

    /// The configuration that PEFT saves.
    pub(crate) fn configuration(&self) -> Value {
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.factors[0].rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "use_dora": false,
            "use_rslora": false,
            "modules_to_save": null,
            "rank_pattern": {},
            "alpha_pattern": {},
            "target_modules": ["q_proj"],
        })
    }

    /// The tensors that PEFT saves.
    pub(crate) fn peft_tensors(&self) -> Vec<FileTensor> {
        let mut all = Vec::new();
        for own in &self.factors {
            let there = match own.place.rsplit_once('.').unwrap() {
                (layer, "attn_qkv") => peft_module(layer, "self_attn.qkv_proj"),
                (layer, "ffn_up") if self.architecture == "phi3" => {
                    peft_module(layer, "mlp.gate_up_proj")
                }
                _ => {
                    let name = name_there(&format!("{}.weight", own.place));
                    name.strip_suffix(".weight").unwrap().to_owned()
                }
            };
            let is_turned = own.place.ends_with("attn_q") || own.place.ends_with("attn_k");
            let b = match self.architecture == "llama" && is_turned {
                true => in_halves(&own.b, own.rank, self.length),
                false => own.b.clone(),
            };
            for (end, shape, values) in [
                ("lora_A", vec![own.rank, own.inputs], &own.a),
                ("lora_B", vec![own.outputs, own.rank], &b),
            ] {
                let name = format!("base_model.model.{there}.{end}.weight");
                all.push((name, "F32", shape, encoded(Dtype::F32, values)));
            }
        }
        all
    }

    /// A folder as PEFT saves one.
    pub(crate) fn peft(&self) -> TempDir {
        peft_folder(&self.peft_tensors(), &self.configuration())
    }

    /// The adapter's files of one kind, in a folder that lives as long.
    pub(crate) fn saved(&self, is_gguf: bool) -> (TempDir, PathBuf) {
        match is_gguf {
            true => {
                let folder = TempDir::new().unwrap();
                let path = folder.path().join("adapter.gguf");
                fs::write(&path, self.gguf()).unwrap();
                (folder, path)
            }
            false => {
                let folder = self.peft();
                let path = folder.path().to_owned();
                (folder, path)
            }
        }
    }
}

fn peft_module(layer: &str, module: &str) -> String {
    let number = layer.strip_prefix("blk.").unwrap();
    format!("model.layers.{number}.{module}")
}

/// A folder with these tensors and this configuration.
pub(crate) fn peft_folder(tensors: &[FileTensor], config: &Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
    fs::write(path.join("adapter_model.safetensors"), safetensors(tensors)).unwrap();
    folder
}

impl TinyFactors {
    /// An element of the product of the factors.
    pub(crate) fn element(&self, at: usize) -> f64 {
        let (row, column) = (at / self.inputs, at % self.inputs);
        let terms = (0..self.rank).map(|k| {
            let a = f64::from(self.a[k * self.inputs + column]);
            f64::from(self.b[row * self.rank + k]) * a
        });
        terms.sum()
    }
}
