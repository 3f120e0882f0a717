//! Checkpoints of Hugging Face's shape: the same models as in GGUF files, with the same results.

use std::fs;
use std::path::Path;

use fercuda_llm::{Engine, ModelConfig};
use fercuda_modelfile::{ModelFile, TensorType};
use fercuda_tensor::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::engine::{config, hybrid, prompt, request, run, runtime, sizes};
use crate::model::{TinyModel, TinySizes, TinyTensor};

/// A tensor of a checkpoint: its name, type, shape and bytes.
pub(crate) type FileTensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// Name of a tensor there.
pub(crate) fn name_there(name: &str) -> String {
    let parts = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("output", "lm_head"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    for (own, there) in [("ssm_a", "A_log"), ("ssm_dt.bias", "dt_bias")] {
        if let Some(layer) = name.strip_suffix(own) {
            let layer = layer.strip_prefix("blk.").unwrap();
            return format!("model.layers.{layer}linear_attn.{there}");
        }
    }
    let (place, end) = name.rsplit_once('.').unwrap();
    let (layer, part) = match place.strip_prefix("blk.") {
        Some(rest) => {
            let (layer, part) = rest.split_once('.').unwrap();
            (format!("model.layers.{layer}."), part)
        }
        None => (String::new(), place),
    };
    let (_, there) = parts.iter().find(|(own, _)| *own == part).unwrap();
    format!("{layer}{there}.{end}")
}

/// Rows of heads whose neighbours are turned together, in the order in which halves are.
pub(crate) fn in_halves(values: &[f32], width: usize, length: usize) -> Vec<f32> {
    let mut all = Vec::with_capacity(values.len());
    for head in values.chunks(length * width) {
        for half in 0..2 {
            for pair in 0..length / 2 {
                all.extend_from_slice(&head[(2 * pair + half) * width..][..width]);
            }
        }
    }
    all
}

pub(crate) fn encoded(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.bytes() as usize];
    TensorType::Scalar(dtype)
        .encode(values, &mut bytes)
        .unwrap();
    bytes
}

pub(crate) fn decoded(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.bytes() as usize];
    TensorType::Scalar(dtype)
        .decode(bytes, &mut values)
        .unwrap();
    values
}

/// The tensors of a model in this type; the model's own are rounded to it.
pub(crate) fn tensors(model: &mut TinyModel, dtype: Dtype, name: &'static str) -> Vec<FileTensor> {
    let sizes = model.sizes.clone();
    // Neighbours share keys there.
    model.has_grouped_keys = true;
    let is_hybrid = sizes.states.is_some();
    let is_turned = |name: &str| name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
    let mut all = Vec::new();
    for TinyTensor {
        name: own,
        shape,
        values,
        ..
    } in &mut model.tensors
    {
        *values = decoded(dtype, &encoded(dtype, values));
        let there = match sizes.architecture == "llama" && is_turned(own) {
            true => in_halves(values, sizes.hidden, sizes.length),
            false => values.clone(),
        };
        // What is there of these is another number.
        let changed: Option<fn(f32) -> f32> = match is_hybrid {
            true if own.ends_with("ssm_a") => Some(|it| (-it).ln()),
            true if own.contains("norm") && !own.contains("ssm_norm") => Some(|it| it - 1.0),
            _ => None,
        };
        let there: Vec<f32> = match changed {
            Some(change) => there.into_iter().map(change).collect(),
            None => there,
        };
        let shape = match own.ends_with("ssm_conv1d.weight") {
            true => vec![shape[0], 1, shape[1]],
            false => shape.clone(),
        };
        all.push((name_there(own), name, shape, encoded(dtype, &there)));
    }
    all
}

/// Names as models for images have them, with tensors of their own.
fn as_part_of_images(tensors: &mut Vec<FileTensor>) {
    for (name, ..) in tensors.iter_mut() {
        if let Some(rest) = name.strip_prefix("model.") {
            *name = format!("model.language_model.{rest}");
        }
    }
    for name in ["model.visual.merger.norm.weight", "mtp.norm.weight"] {
        tensors.push((name.to_owned(), "F32", vec![2], vec![0; 8]));
    }
}

/// A safetensors file.
pub(crate) fn safetensors(tensors: &[FileTensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, kind, shape, bytes) in tensors {
        let from = data.len();
        data.extend_from_slice(bytes);
        let row = json!({"dtype": kind, "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(name.clone(), row);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}

/// The configuration of a model, as transformers writes it.
pub(crate) fn configuration(model: &TinyModel, model_type: &str) -> Value {
    let sizes = &model.sizes;
    if model_type == "qwen3_5" {
        let is_tied = false;
        let text = configuration(model, "qwen3_5_text");
        return json!({
            "model_type": model_type,
            "text_config": text,
            "tie_word_embeddings": is_tied,
            "vision_config": {"depth": 1},
        });
    }
    let mut config = json!({
        "architectures": ["AnyForCausalLM"],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.shared,
        "head_dim": sizes.length,
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": model.epsilon(),
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "sliding_window": null,
        "tie_word_embeddings": model.tensors.iter().all(|it| it.name != "output.weight"),
        "torch_dtype": "float32",
    });
    if let Some(states) = sizes.states {
        let types = (0..sizes.layers).map(|layer| match sizes.states_of(layer) {
            Some(_) => "linear_attention",
            None => "full_attention",
        });
        for (key, value) in [
            ("layer_types", json!(types.collect::<Vec<&str>>())),
            ("linear_conv_kernel_dim", json!(4)),
            ("linear_num_key_heads", json!(states.keys)),
            ("linear_num_value_heads", json!(states.heads)),
            ("linear_key_head_dim", json!(states.key_length)),
            ("linear_value_head_dim", json!(states.value_length)),
            ("partial_rotary_factor", json!(0.5)),
        ] {
            config[key] = value;
        }
    }
    config
}

/// A folder with a checkpoint in so many files.
pub(crate) fn folder(tensors: &[FileTensor], config: &Value, files: usize) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    if files == 1 {
        fs::write(
            folder.path().join("model.safetensors"),
            safetensors(tensors),
        )
        .unwrap();
        return folder;
    }
    let mut map = serde_json::Map::new();
    for (number, part) in tensors.chunks(tensors.len().div_ceil(files)).enumerate() {
        let name = format!("model-{:05}-of-{files:05}.safetensors", number + 1);
        fs::write(folder.path().join(&name), safetensors(part)).unwrap();
        map.extend(part.iter().map(|it| (it.0.clone(), json!(name))));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    folder
}

pub(crate) fn load(folder: &Path, name: &str) -> Result<Engine, fercuda_llm::LlmError> {
    let file = ModelFile::open(folder)?;
    Engine::load(runtime(), &file, &config(name), |_, _| {})
}

#[test]
fn checkpoints_of_each_architecture_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    for (model_type, architecture) in [
        ("llama", "llama"),
        ("mistral", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("qwen3_5_text", "qwen35"),
        ("qwen3_5", "qwen35"),
    ] {
        let is_hybrid = architecture == "qwen35";
        let own = if is_hybrid {
            hybrid(architecture)
        } else {
            sizes(architecture)
        };
        let mut model = TinyModel::random(&mut random, own);
        let mut tensors = tensors(&mut model, Dtype::F32, "F32");
        if model_type == "qwen3_5" {
            as_part_of_images(&mut tensors);
        }
        let files = random.usize(1..4);
        let folder = folder(&tensors, &configuration(&model, model_type), files);
        let mut engine = load(folder.path(), &format!("{model_type} in a folder")).unwrap();
        let left_out: &[&str] = match model_type {
            "qwen3_5" => &[
                "parts for images and videos",
                "layers that predict further tokens",
            ],
            _ => &[],
        };
        assert_eq!(engine.model().left_out, left_out);
        let tokens = prompt(&mut random, 37);
        let results = run(&mut engine, &model, vec![request(&tokens, 5)]);
        assert_eq!(results[0].len(), 42);
    }
}

#[test]
fn windows_of_some_layers_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    for is_listed in [false, true] {
        let sizes = TinySizes {
            window: 12,
            pattern: Some(vec![false, true]),
            ..sizes("qwen2")
        };
        let mut model = TinyModel::random(&mut random, sizes);
        let tensors = tensors(&mut model, Dtype::F32, "F32");
        let mut config = configuration(&model, "qwen2");
        config["use_sliding_window"] = json!(true);
        config["sliding_window"] = json!(12);
        match is_listed {
            true => config["layer_types"] = json!(["full_attention", "sliding_attention"]),
            false => config["max_window_layers"] = json!(1),
        }
        let folder = folder(&tensors, &config, 1);
        let mut engine = load(folder.path(), "windows").unwrap();
        let tokens = prompt(&mut random, 37);
        run(&mut engine, &model, vec![request(&tokens, 3)]);
    }
}

/// Differences of probabilities that rounding of activations makes.
fn check_near(engine: &mut Engine, model: &TinyModel, tokens: &[u32], most: f64) {
    let wanted = model.log_probabilities(tokens);
    let mut seen = Vec::new();
    let mut asked = request(tokens, 1);
    asked.top = Some(50);
    engine
        .generate(asked, |event| {
            seen = event.top.clone();
            true
        })
        .unwrap();
    assert_eq!(seen.len(), 50);
    for (token, own) in seen {
        let error = (f64::from(own) - wanted[token as usize]).abs();
        assert!(error < most, "token {token} behind {tokens:?}: {error}");
    }
}

#[test]
fn narrow_types_are_as_near_as_their_rounding_lets_them() {
    let mut random = fercuda_trials::rng();
    for (dtype, name, most) in [(Dtype::F16, "F16", 0.03), (Dtype::Bf16, "BF16", 0.25)] {
        let mut model = TinyModel::random(&mut random, sizes("qwen3"));
        let tensors = tensors(&mut model, dtype, name);
        let folder = folder(&tensors, &configuration(&model, "qwen3"), 2);
        let mut engine = load(folder.path(), name).unwrap();
        check_near(&mut engine, &model, &prompt(&mut random, 20), most);
    }
}

#[test]
fn weights_of_eight_bits_with_scales_of_blocks_are_unpacked() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyModel::random(&mut random, sizes("llama"));
    let mut all = Vec::new();
    let sizes = model.sizes.clone();
    for TinyTensor {
        name: own,
        shape,
        values,
        ..
    } in &mut model.tensors
    {
        let is_packed = own.starts_with("blk.") && shape.len() == 2;
        if !is_packed {
            all.push((
                name_there(own),
                "F32",
                shape.clone(),
                encoded(Dtype::F32, values),
            ));
            continue;
        }
        let (rows, columns) = (shape[0], shape[1]);
        let turned = own.ends_with("attn_q.weight") || own.ends_with("attn_k.weight");
        // Scales of blocks of 8 by 8, codes of what is left.
        let block = 8;
        let scales: Vec<f32> = (0..rows.div_ceil(block) * columns.div_ceil(block))
            .map(|_| 0.005 + 0.01 * random.f32())
            .collect();
        let codes: Vec<u8> = (0..rows * columns)
            .map(|_| random.u8(..) & 0x7f & !0x40 | (random.u8(..) & 0x80))
            .collect();
        let plain = decoded(Dtype::F8E4m3, &codes);
        let there: Vec<f32> = (0..rows * columns)
            .map(|at| {
                let (row, column) = (at / columns, at % columns);
                plain[at] * scales[row / block * columns.div_ceil(block) + column / block]
            })
            .collect();
        // The reference has neighbours turned together.
        *values = there.clone();
        if turned {
            for (head, from) in there.chunks(sizes.length * columns).enumerate() {
                for row in 0..sizes.length {
                    let to = (head * sizes.length + row) * columns;
                    let of = (row % 2) * sizes.length / 2 + row / 2;
                    values[to..to + columns].copy_from_slice(&from[of * columns..][..columns]);
                }
            }
        }
        let name = name_there(own);
        let of_scales = vec![rows.div_ceil(block), columns.div_ceil(block)];
        let scales = encoded(Dtype::F32, &scales);
        all.push((format!("{name}_scale_inv"), "F32", of_scales, scales));
        all.push((name, "F8_E4M3", shape.clone(), codes));
    }
    let mut config = configuration(&model, "llama");
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [8, 8]});
    let folder = folder(&all, &config, 1);
    let mut engine = load(folder.path(), "fp8").unwrap();
    run(
        &mut engine,
        &model,
        vec![request(&prompt(&mut random, 20), 3)],
    );
}

#[test]
fn what_is_not_supported_is_named() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyModel::random(&mut random, sizes("qwen2"));
    let tensors = tensors(&mut model, Dtype::F32, "F32");
    let plain = configuration(&model, "qwen2");
    let refused = |tensors: &[FileTensor], changes: &[(&str, Value)]| {
        let mut config = plain.clone();
        for (key, value) in changes {
            config[*key] = value.clone();
        }
        let folder = folder(tensors, &config, 2);
        let error = load(folder.path(), "refused").unwrap_err().to_string();
        assert!(error.contains("\ntry: "), "{error}");
        error
    };
    for (key, value, message) in [
        ("model_type", json!("moonlight9"), "type \"moonlight9\""),
        ("model_type", json!(3), "does not have model_type"),
        ("hidden_act", json!("gelu"), "activation \"gelu\""),
        ("num_hidden_layers", json!(0), "num_hidden_layers is 0"),
        ("num_hidden_layers", json!(3), "layers.2."),
        ("num_hidden_layers", json!(1e300), "num_hidden_layers is 1"),
        (
            "num_key_value_heads",
            json!(4),
            "6 heads are no multiple of 4",
        ),
        ("hidden_size", json!("many"), "hidden_size is \"many\""),
        ("hidden_size", json!(32), "[any, 32]"),
        ("head_dim", json!(1 << 21), "free"),
        ("head_dim", json!(16_777_216), "6 heads of 16777216"),
        ("rope_scaling", json!({"type": "su"}), "scaled by \"su\""),
        ("rope_scaling", json!({"type": "linear"}), "without factor"),
        ("rope_theta", json!(-1.0), "the base -1"),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 2, "beta_fast": 0}),
            "beta_fast is 0",
        ),
    ] {
        let error = refused(&tensors, &[(key, value)]);
        assert!(error.contains(message), "{key}: {error}");
    }
    let window = [
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(16)),
        ("layer_types", json!(["full_attention"])),
    ];
    let error = refused(&tensors, &window);
    assert!(error.contains("layer_types has 1 of 2 layers"), "{error}");
    let mut biased = tensors.clone();
    let bias = "model.layers.0.mlp.up_proj.bias".to_owned();
    biased.push((bias.clone(), "F32", vec![40], vec![0; 160]));
    let error = refused(&biased, &[]);
    assert!(error.contains(&bias), "{error}");
    let headless: Vec<FileTensor> = tensors
        .iter()
        .filter(|it| it.0 != "lm_head.weight")
        .cloned()
        .collect();
    let error = refused(&headless, &[]);
    assert!(error.contains("lm_head.weight"), "{error}");
    let alone = folder(&tensors, &plain, 1);
    fs::remove_file(alone.path().join("config.json")).unwrap();
    let error = load(alone.path(), "refused").unwrap_err().to_string();
    assert!(error.contains("no config.json"), "{error}");
}

#[test]
fn files_that_are_cut_short_or_lie_are_named() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyModel::random(&mut random, sizes("llama"));
    let tensors = tensors(&mut model, Dtype::F32, "F32");
    let config = configuration(&model, "llama");
    let second = "model-00002-of-00003.safetensors";
    for _ in 0..8 {
        let folder = folder(&tensors, &config, 3);
        let path = folder.path().join(second);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..random.usize(..whole.len())]).unwrap();
        let error = load(folder.path(), "short").unwrap_err().to_string();
        assert!(error.contains(second) && error.contains("try: "), "{error}");
    }
    let absent = folder(&tensors, &config, 3);
    fs::remove_file(absent.path().join(second)).unwrap();
    let error = load(absent.path(), "absent").unwrap_err().to_string();
    assert!(error.contains(second), "{error}");
    // Its index names another file for a tensor.
    let lying = folder(&tensors, &config, 3);
    let path = lying.path().join("model.safetensors.index.json");
    let index = fs::read_to_string(&path).unwrap();
    let swapped = index.replacen("-00002-", "-00001-", 1);
    assert_ne!(swapped, index);
    fs::write(&path, swapped).unwrap();
    let error = load(lying.path(), "lying").unwrap_err().to_string();
    assert!(error.contains("as the index says"), "{error}");
}

#[test]
fn a_configuration_of_random_values_makes_no_panic() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyModel::random(&mut random, sizes("qwen3"));
    let tensors = tensors(&mut model, Dtype::F32, "F32");
    let plain = configuration(&model, "qwen3");
    let folder = folder(&tensors, &plain, 1);
    let keys: Vec<String> = plain.as_object().unwrap().keys().cloned().collect();
    for _ in 0..300 {
        let mut config = plain.clone();
        for _ in 0..random.usize(1..4) {
            let key = &keys[random.usize(..keys.len())];
            config[key] = match random.u8(..9) {
                0 => json!(null),
                1 => json!(random.u64(..)),
                2 => json!(random.i64(..)),
                3 => json!(random.f64() * 1e300),
                4 => json!([1, "x"]),
                5 => json!({"rope_type": "llama3", "factor": random.f64() * 1e9 - 1.0}),
                6 => json!({"type": "yarn", "factor": random.f64(), "rope_theta": 1e-300}),
                7 => json!(1u64 << random.u32(..40)),
                _ => json!("qwen2"),
            };
        }
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let file = ModelFile::open(folder.path()).unwrap();
        // Most are refused; of what is taken the sizes are bounded.
        if let Ok(config) = ModelConfig::of(&file) {
            assert!(config.layers <= 4096 && config.hidden <= 1 << 24);
        }
    }
}
