//! Checkpoints of further architectures: Gemma, Phi, Mamba-2, and models with experts in each of
//! the layouts that such files have.

use std::fs;

use fercuda_llm::{EngineConfig, GenerationEvent, LlmError, ModelConfig};
use fercuda_modelfile::ModelFile;
use fercuda_tensor::{BlockFormat, Dtype};
use serde_json::{Value, json};

use crate::checkpoint::{FileTensor, decoded, encoded, folder, load};
use crate::engine::{config, engine, prompt, request, run, runtime, sizes};
use crate::model::{TinyModel, TinySizes};
use crate::tiny_checkpoint::{TinyExperts, described, plain, sizes_of, tensors};

/// A model type, its sizes by the name of an architecture's, and layouts of experts.
const TYPES: [(&str, &str, &[TinyExperts]); 17] = [
    ("gemma", "gemma", &[TinyExperts::Separate]),
    ("gemma2", "gemma2", &[TinyExperts::Separate]),
    ("gemma3_text", "gemma3", &[TinyExperts::Separate]),
    ("gemma3_text", "gemma3 pattern", &[TinyExperts::Separate]),
    ("gemma3", "gemma3", &[TinyExperts::Separate]),
    ("phi3", "phi3", &[TinyExperts::Separate]),
    ("phi3", "phi3 short", &[TinyExperts::Separate]),
    ("qwen3_moe", "qwen3moe", &BOTH),
    ("mixtral", "mixtral", &BOTH),
    ("gpt_oss", "gpt-oss", &[TinyExperts::Stacked]),
    ("qwen3_5_moe_text", "qwen35moe", &BOTH),
    ("qwen3_5_moe", "qwen35moe", &BOTH),
    ("mamba2", "mamba2", &[TinyExperts::Separate]),
    ("llama4_text", "llama4", &BOTH),
    ("llama4", "llama4", &BOTH),
    ("llama", "llama", &[TinyExperts::Separate]),
    ("mistral", "mistral", &[TinyExperts::Separate]),
];
const BOTH: [TinyExperts; 2] = [TinyExperts::Separate, TinyExperts::Stacked];

#[test]
fn checkpoints_of_further_architectures_equal_the_reference() {
    let mut random = fercuda_trials::rng();
    for (model_type, name, layouts) in TYPES {
        for layout in layouts {
            println!("{model_type} of {name}, {layout:?}");
            let mut model = TinyModel::random(&mut random, sizes_of(name));
            let tensors = tensors(&mut model, model_type, *layout);
            let files = random.usize(1..4);
            let folder = folder(&tensors, &described(&model, model_type), files);
            let mut engine = load(folder.path(), &format!("{model_type} in files")).unwrap();
            let left_out: &[&str] = match tensors.iter().any(|it| it.0.starts_with("vision")) {
                true => &["parts for images and videos"],
                false => &[],
            };
            assert_eq!(engine.model().left_out, left_out);
            let tokens = prompt(&mut random, 37);
            let results = run(&mut engine, &model, vec![request(&tokens, 5)]);
            assert_eq!(results[0].len(), 42);
        }
    }
}

/// All that a request reports.
fn reported(engine: &mut fercuda_llm::Engine, tokens: &[u32]) -> Vec<(u32, Vec<(u32, f32)>)> {
    let mut all = Vec::new();
    let mut asked = request(tokens, 4);
    asked.top = Some(50);
    let mut keep = |event: &GenerationEvent| {
        all.push((event.token, event.top.clone()));
        true
    };
    engine.generate(asked, |event| keep(event)).unwrap();
    all
}

#[test]
fn blocks_of_experts_are_those_of_the_same_gguf_file() {
    let mut random = fercuda_trials::rng();
    let sizes = TinySizes {
        layers: 3,
        hidden: 64,
        experts: Some([5, 2, 32]),
        blocks: Some(BlockFormat::MXFP4),
        window: 12,
        ..sizes("gpt-oss")
    };
    let mut model = TinyModel::random(&mut random, sizes);
    let tokens = prompt(&mut random, 30);
    let mut of_gguf = engine(&model, &config("blocks in gguf"));
    let wanted = reported(&mut of_gguf, &tokens);
    let tensors = tensors(&mut model, "gpt_oss", TinyExperts::Blocks);
    let mut config = described(&model, "gpt_oss");
    config["quantization_config"] = json!({"quant_method": "mxfp4"});
    let folder = folder(&tensors, &config, 2);
    let mut of_checkpoint = load(folder.path(), "blocks in files").unwrap();
    assert_eq!(reported(&mut of_checkpoint, &tokens), wanted);
}

#[test]
fn experts_of_eight_bits_with_scales_of_blocks_are_unpacked() {
    let mut random = fercuda_trials::rng();
    let mut model = TinyModel::random(&mut random, sizes_of("qwen3moe"));
    let scale = 1.0 / 32.0;
    let codes = |values: &[f32]| {
        let all: Vec<f32> = values.iter().map(|it| it / scale).collect();
        encoded(Dtype::F8E4m3, &all)
    };
    for tensor in &mut model.tensors {
        if tensor.name.ends_with("_exps.weight") {
            let narrow = decoded(Dtype::F8E4m3, &codes(&tensor.values));
            tensor.values = narrow.iter().map(|it| it * scale).collect();
        }
    }
    let mut all = Vec::new();
    for (name, kind, shape, bytes) in tensors(&mut model, "qwen3_moe", TinyExperts::Separate) {
        if !name.contains(".experts.") {
            all.push((name, kind, shape, bytes));
            continue;
        }
        let of_scales = [shape[0].div_ceil(8), shape[1].div_ceil(8)];
        let scales = vec![scale; of_scales[0] * of_scales[1]];
        all.push(plain(format!("{name}_scale_inv"), &of_scales, &scales));
        let codes = codes(&decoded(Dtype::F32, &bytes));
        all.push((name, "F8_E4M3", shape, codes));
    }
    let mut config = described(&model, "qwen3_moe");
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [8, 8]});
    let folder = folder(&all, &config, 2);
    let mut engine = load(folder.path(), "fp8 experts").unwrap();
    let tokens = prompt(&mut random, 20);
    run(&mut engine, &model, vec![request(&tokens, 3)]);
}

#[test]
fn windows_that_a_key_switches_on_are_those_of_all_layers() {
    let mut random = fercuda_trials::rng();
    for (model_type, name) in [("qwen3_moe", "qwen3moe"), ("phi3", "phi3")] {
        let own = TinySizes {
            window: 12,
            ..sizes_of(name)
        };
        let mut model = TinyModel::random(&mut random, own);
        let tensors = tensors(&mut model, model_type, TinyExperts::Separate);
        let mut config = described(&model, model_type);
        config["sliding_window"] = json!(12);
        config["use_sliding_window"] = json!(model_type == "qwen3_moe");
        let folder = folder(&tensors, &config, 1);
        let mut engine = load(folder.path(), &format!("{model_type} of windows")).unwrap();
        let tokens = prompt(&mut random, 37);
        run(&mut engine, &model, vec![request(&tokens, 3)]);
    }
}

/// The weights that are planned for, in MiB.
fn planned(error: LlmError) -> f64 {
    let LlmError::Memory { what, .. } = error else {
        panic!("{error}")
    };
    let (_, rest) = what.split_once("weights ").unwrap();
    rest.split_once(" MiB").unwrap().0.parse().unwrap()
}

#[test]
fn planned_memory_has_the_experts() {
    let mut random = fercuda_trials::rng();
    for (model_type, architecture, layout) in [
        ("qwen3_moe", "qwen3moe", TinyExperts::Separate),
        ("qwen3_moe", "qwen3moe", TinyExperts::Stacked),
        ("gpt_oss", "gpt-oss", TinyExperts::Stacked),
        ("gpt_oss", "gpt-oss", TinyExperts::Blocks),
        ("qwen3_5_moe_text", "qwen35moe", TinyExperts::Stacked),
    ] {
        let sizes = TinySizes {
            hidden: 64,
            experts: Some([48, 3, 128]),
            blocks: (layout == TinyExperts::Blocks).then_some(BlockFormat::MXFP4),
            ..sizes_of(architecture)
        };
        let mut model = TinyModel::random(&mut random, sizes);
        let config = EngineConfig {
            cache_tokens: Some(1 << 30),
            ..config("planned experts")
        };
        let failed = |file: &ModelFile| {
            planned(fercuda_llm::Engine::load(runtime(), file, &config, |_, _| {}).unwrap_err())
        };
        let path = std::path::Path::new("tiny.gguf");
        let wanted = failed(&ModelFile::from_bytes(path, model.file()).unwrap());
        let tensors = tensors(&mut model, model_type, layout);
        let folder = folder(&tensors, &described(&model, model_type), 1);
        let own = failed(&ModelFile::open(folder.path()).unwrap());
        assert!(wanted > 2.0, "{wanted}");
        assert!(
            (own / wanted - 1.0).abs() < 0.1,
            "{model_type}: {own}, not {wanted}"
        );
    }
}

/// Keys with values that are refused, and what the error says: of a model type and its sizes.
type TinyRefusals = (
    &'static str,
    &'static str,
    Vec<(&'static str, Value, &'static str)>,
);

fn refusals_of_dense_models() -> Vec<TinyRefusals> {
    let nested = json!({"full_attention": {"rope_theta": 1e4}});
    vec![
        (
            "gemma3",
            "gemma3",
            vec![
                (
                    "text_config",
                    json!({"model_type": "llama"}),
                    "text_config.model_type is \"llama\"",
                ),
                ("text_config", json!({"model_type": 3}), "model_type is 3"),
                ("text_config", json!("none"), "text_config is \"none\""),
            ],
        ),
        (
            "gemma2",
            "gemma2",
            vec![
                ("hidden_activation", json!("silu"), "activation \"silu\""),
                (
                    "use_bidirectional_attention",
                    json!(true),
                    "use_bidirectional_attention",
                ),
                ("attention_bias", json!(true), "attention_bias"),
                (
                    "attn_logit_softcapping",
                    json!(-1),
                    "attn_logit_softcapping is -1",
                ),
                ("layer_types", json!(["strided"]), "layer_types has 1 of 3"),
                (
                    "layer_types",
                    json!(["strided", 1, 2]),
                    "layer_types has \"strided\"",
                ),
                (
                    "rope_parameters",
                    nested.clone(),
                    "differ between types of layers",
                ),
                ("mlp_bias", json!(true), "mlp_bias is true"),
            ],
        ),
        (
            "gemma3_text",
            "gemma3",
            vec![
                ("sliding_window", json!(null), "sliding_window"),
                (
                    "rope_parameters",
                    nested,
                    "rope_parameters and rope_scaling",
                ),
                (
                    "rope_scaling",
                    json!({"type": "spiral"}),
                    "scaled by \"spiral\"",
                ),
                ("rope_scaling", json!([1]), "no object"),
            ],
        ),
        (
            "phi3",
            "phi3",
            vec![
                (
                    "rope_scaling",
                    json!({"type": "longrope"}),
                    "short_factor is no list of 2",
                ),
                (
                    "rope_scaling",
                    json!({"type": "linear", "factor": 2}),
                    "scaled by \"linear\"",
                ),
                ("partial_rotary_factor", json!(0.1), "turned elements"),
                (
                    "original_max_position_embeddings",
                    json!(0),
                    "embeddings is 0",
                ),
            ],
        ),
    ]
}

fn refusals_of_others() -> Vec<TinyRefusals> {
    vec![
        (
            "qwen3_moe",
            "qwen3moe",
            vec![
                ("norm_topk_prob", json!(false), "norm_topk_prob is false"),
                ("norm_topk_prob", json!(null), "norm_topk_prob is false"),
                ("num_experts", json!(8), "not [8, "),
                ("num_experts", json!(5000), "num_experts is 5000"),
                ("num_local_experts", json!(6), "num_local_experts 6"),
                ("num_experts_per_tok", json!(9), "num_experts_per_tok is 9"),
                ("moe_intermediate_size", json!(21), "[21, 24]"),
                ("attention_bias", json!("yes"), "attention_bias is \"yes\""),
            ],
        ),
        (
            "gpt_oss",
            "gpt-oss",
            vec![
                ("swiglu_limit", json!(8.0), "swiglu_limit is 8"),
                ("attention_bias", json!(false), "attention_bias"),
                ("num_local_experts", json!(8), "not [8, "),
            ],
        ),
        (
            "mamba2",
            "mamba2",
            vec![
                ("time_step_limit", json!([0.0, 1.0]), "time_step_limit"),
                ("use_bias", json!(true), "use_bias is true"),
                ("expand", json!(3), "3 times 24"),
                ("n_groups", json!(4), "no multiple of 4"),
            ],
        ),
        (
            "llama4_text",
            "llama4",
            vec![
                ("use_qk_norm", json!(false), "use_qk_norm is false"),
                ("no_rope_layers", json!([1, 1, 0, 1]), "no_rope_layers"),
                ("floor_scale", json!(1), "floor_scale"),
            ],
        ),
        (
            "qwen3_5_moe_text",
            "qwen35moe",
            vec![("attention_bias", json!(true), "attention_bias is true")],
        ),
    ]
}

#[test]
fn keys_that_change_results_are_refused_by_name() {
    let mut random = fercuda_trials::rng();
    let refusals = refusals_of_dense_models()
        .into_iter()
        .chain(refusals_of_others());
    for (model_type, name, changes) in refusals {
        let layout = match model_type {
            "gpt_oss" => TinyExperts::Stacked,
            _ => TinyExperts::Separate,
        };
        let mut model = TinyModel::random(&mut random, sizes_of(name));
        let tensors = tensors(&mut model, model_type, layout);
        let plain = described(&model, model_type);
        for (key, value, message) in changes {
            let mut config = plain.clone();
            config[key] = value;
            let folder = folder(&tensors, &config, 1);
            let error = load(folder.path(), "refused keys").unwrap_err().to_string();
            assert!(error.contains(message), "{model_type}, {key}: {error}");
            assert!(error.contains("\ntry: "), "{error}");
        }
    }
}

#[test]
fn tensors_of_experts_that_lie_are_named() {
    let mut random = fercuda_trials::rng();
    let refused = |model_type: &str, tensors: &[FileTensor], config: &Value| {
        let folder = folder(tensors, config, 1);
        let error = load(folder.path(), "refused experts")
            .unwrap_err()
            .to_string();
        assert!(error.contains("\ntry: "), "{model_type}: {error}");
        error
    };
    let mut model = TinyModel::random(&mut random, sizes_of("mixtral"));
    let all = tensors(&mut model, "mixtral", TinyExperts::Separate);
    let config = described(&model, "mixtral");
    let name = "model.layers.1.block_sparse_moe.experts.4.w3.weight";
    let without: Vec<FileTensor> = all.iter().filter(|it| it.0 != name).cloned().collect();
    assert!(refused("mixtral", &without, &config).contains(name));
    let mut mixed = all.clone();
    let other = mixed.iter_mut().find(|it| it.0 == name).unwrap();
    other.1 = "F16";
    other.3 = vec![0; other.3.len() / 2];
    assert!(refused("mixtral", &mixed, &config).contains("different types"));
    let stacked = tensors(&mut model, "mixtral", TinyExperts::Stacked);
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    for (kind, message) in [("F8_E4M3", "elements of"), ("I32", "elements of")] {
        let mut narrow = stacked.clone();
        let other = narrow.iter_mut().find(|it| it.0 == name).unwrap();
        let bytes = if kind == "I32" { 4 } else { 1 };
        (other.1, other.3) = (kind, vec![0; other.3.len() / 4 * bytes]);
        let error = refused("mixtral", &narrow, &config);
        assert!(error.contains(name) && error.contains(message), "{error}");
    }
    // A lying shape of codes and of scales.
    let sizes = TinySizes {
        hidden: 64,
        experts: Some([5, 2, 32]),
        blocks: Some(BlockFormat::MXFP4),
        window: 12,
        ..sizes("gpt-oss")
    };
    let mut model = TinyModel::random(&mut random, sizes);
    let all = tensors(&mut model, "gpt_oss", TinyExperts::Blocks);
    let config = described(&model, "gpt_oss");
    for end in [
        "gate_up_proj_blocks",
        "down_proj_scales",
        "gate_up_proj_bias",
    ] {
        let mut lying = all.clone();
        let other = lying.iter_mut().find(|it| it.0.ends_with(end)).unwrap();
        other.2.swap(0, 1);
        let name = other.0.clone();
        assert!(refused("gpt_oss", &lying, &config).contains(&name), "{end}");
    }
}

#[test]
fn configurations_of_random_values_make_no_panic() {
    let mut random = fercuda_trials::rng();
    for (model_type, name, layouts) in TYPES {
        let mut model = TinyModel::random(&mut random, sizes_of(name));
        let tensors = tensors(&mut model, model_type, layouts[0]);
        let plain = described(&model, model_type);
        let folder = folder(&tensors, &plain, 1);
        let part = if plain["text_config"].is_null() {
            ""
        } else {
            "text_config"
        };
        let keys = match part {
            "" => plain.as_object().unwrap(),
            part => plain[part].as_object().unwrap(),
        };
        let keys: Vec<String> = keys
            .keys()
            .filter(|it| *it != "model_type")
            .cloned()
            .collect();
        for _ in 0..60 {
            let mut config = plain.clone();
            for _ in 0..random.usize(1..3) {
                let key = &keys[random.usize(..keys.len())];
                let value = match random.u8(..8) {
                    0 => json!(null),
                    1 => json!(random.u64(..)),
                    2 => json!(random.f64() * 1e300),
                    3 => json!([1, "sliding_attention"]),
                    4 => json!({"rope_type": "longrope", "factor": random.f64()}),
                    5 => json!(1u64 << random.u32(..40)),
                    6 => json!(random.u32(..12)),
                    _ => json!(random.bool()),
                };
                match part {
                    "" => config[key] = value,
                    part => config[part][key] = value,
                }
            }
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let file = ModelFile::open(folder.path()).unwrap();
            // Most are refused; what is taken has the sizes of the files' tensors.
            if let Ok(config) = ModelConfig::of(&file) {
                assert!(config.layers <= 4096 && config.hidden <= 1 << 24);
                let own = EngineConfig {
                    context: Some(64),
                    ..crate::engine::config("random keys")
                };
                drop(fercuda_llm::Engine::load(runtime(), &file, &own, |_, _| {}));
            }
        }
    }
}
