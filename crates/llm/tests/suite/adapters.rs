//! LoRA adapters: results equal those of models with merged weights, alone and together.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use fercuda_llm::{
    AdapterFile, AdapterId, Engine, EngineConfig, GenerationRequest, LlmError, RequestId,
};
use fercuda_modelfile::{ModelFile, TensorType};
use fercuda_tensor::Dtype;
use serde_json::json;

use crate::checkpoint::{FileTensor, configuration, folder, tensors};
use crate::engine::{check, config, engine, hybrid, prompt, random_file, request, runtime, sizes};
use crate::lora_files::{TinyAdapter, TinyFactors, peft_folder};
use crate::model::{TinyModel, TinySizes};

fn with_room(name: &str, adapters: u64) -> EngineConfig {
    EngineConfig {
        adapters,
        adapter_rank: 8,
        ..config(name)
    }
}

fn load(
    engine: &mut Engine,
    (name, adapter): (&str, &TinyAdapter),
    is_gguf: bool,
    scale: f32,
) -> AdapterId {
    let (_folder, path) = adapter.saved(is_gguf);
    engine.load_adapter(name, &path, scale).unwrap()
}

/// A request with an adapter.
fn adapted(tokens: &[u32], max_tokens: usize, adapter: Option<AdapterId>) -> GenerationRequest {
    GenerationRequest {
        adapter,
        ..request(tokens, max_tokens)
    }
}

/// Runs requests to their ends, each compared with its own model; returns the tokens of the prompt
/// that each found in the cache.
fn run_each(engine: &mut Engine, requests: Vec<(GenerationRequest, &TinyModel)>) -> Vec<usize> {
    let mut all: HashMap<RequestId, (Vec<u32>, &TinyModel, usize)> = HashMap::new();
    let mut order = Vec::new();
    for (request, model) in requests {
        let tokens = request.tokens.clone();
        let id = engine.add(request).unwrap();
        all.insert(id, (tokens, model, 0));
        order.push(id);
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let (tokens, model, reused) = all.get_mut(&event.request).unwrap();
            check(model, tokens, &event);
            tokens.push(event.token);
            *reused = event.reused_tokens;
        }
    }
    let (running, waiting, free, blocks) = engine.load_figures();
    assert_eq!((running, waiting, free), (0, 0, blocks));
    order.iter().map(|id| all[id].2).collect()
}

/// Sizes of models whose matrices lie in different ways.
fn adaptable() -> Vec<(&'static str, TinySizes)> {
    let windows = |architecture| TinySizes {
        layers: 3,
        window: 12,
        ..sizes(architecture)
    };
    vec![
        ("llama", sizes("llama")),
        ("qwen2", sizes("qwen2")),
        ("qwen3", sizes("qwen3")),
        ("gemma2", windows("gemma2")),
        (
            "phi3",
            TinySizes {
                has_divisors: true,
                ..sizes("phi3")
            },
        ),
        ("qwen35", hybrid("qwen35")),
        (
            "mixtral",
            TinySizes {
                experts: Some([7, 3, 20]),
                ..sizes("llama")
            },
        ),
        (
            "llama4",
            TinySizes {
                layers: 4,
                experts: Some([5, 1, 20]),
                ..sizes("llama4")
            },
        ),
    ]
}

#[test]
fn adapters_of_each_architecture_equal_merged_weights() {
    let mut random = fercuda_trials::rng();
    for (name, sizes) in adaptable() {
        let model = TinyModel::random(&mut random, sizes);
        let config = EngineConfig {
            fused_products: Some(random.bool()),
            graphs: Some(random.bool()),
            ..with_room(name, 2)
        };
        let mut engine = engine(&model, &config);
        for is_gguf in [false, true] {
            println!("{name}, GGUF {is_gguf}");
            let rank = random.usize(1..=8);
            let adapter = TinyAdapter::random(&mut random, &model, rank);
            assert!(!adapter.factors.is_empty());
            let scale = 0.5 + random.f32();
            let own = format!("{name} {is_gguf}");
            let id = load(&mut engine, (&own, &adapter), is_gguf, scale);
            let merged = adapter.merged(&model, f64::from(scale));
            let tokens = prompt(&mut random, 37);
            run_each(&mut engine, vec![(adapted(&tokens, 4, Some(id)), &merged)]);
            // One token of a prompt alone is a step of one.
            let single = prompt(&mut random, 1);
            let single = adapted(&single, 3, Some(id));
            run_each(&mut engine, vec![(single, &merged)]);
        }
        let tokens = prompt(&mut random, 20);
        run_each(&mut engine, vec![(adapted(&tokens, 3, None), &model)]);
    }
}

/// Rows of queries and keys lie otherwise in checkpoints of Llama than in its GGUF files.
#[test]
fn checkpoints_take_adapters_of_both_kinds() {
    let mut random = fercuda_trials::rng();
    for architecture in ["llama", "qwen2", "qwen35"] {
        let own = match architecture {
            "qwen35" => hybrid(architecture),
            _ => sizes(architecture),
        };
        let model_type = match architecture {
            "qwen35" => "qwen3_5_text",
            _ => architecture,
        };
        let mut model = TinyModel::random(&mut random, own);
        let tensors = tensors(&mut model, Dtype::F32, "F32");
        let folder = folder(&tensors, &configuration(&model, model_type), 1);
        let file = ModelFile::open(folder.path()).unwrap();
        let config = with_room("checkpoint", 2);
        let mut engine = Engine::load(runtime(), &file, &config, |_, _| {}).unwrap();
        let adapter = TinyAdapter::random(&mut random, &model, 3);
        let merged = adapter.merged(&model, 1.0);
        for (name, is_gguf) in [("peft", false), ("gguf", true)] {
            println!("{architecture}, {name}");
            let id = load(&mut engine, (name, &adapter), is_gguf, 1.0);
            let tokens = prompt(&mut random, 20);
            run_each(&mut engine, vec![(adapted(&tokens, 4, Some(id)), &merged)]);
        }
    }
}

#[test]
fn requests_with_different_adapters_run_at_once() {
    let mut random = fercuda_trials::rng();
    for sizes in [sizes("qwen3"), sizes("llama"), hybrid("qwen35")] {
        let name = sizes.architecture;
        println!("{name}");
        let model = TinyModel::random(&mut random, sizes);
        // Ten blocks: four requests of up to 45 positions do not always fit at once.
        let config = EngineConfig {
            fused_products: Some(true),
            cache_tokens: Some(160),
            graphs: Some(true),
            ..with_room(name, 3)
        };
        let mut engine = engine(&model, &config);
        let first = TinyAdapter::random(&mut random, &model, 4);
        // It changes some matrices alone.
        let second = TinyAdapter::random(&mut random, &model, 8);
        let second = second.of(|it| it.ends_with("attn_v") || it.ends_with("ffn_down"));
        let ids = [
            None,
            Some(load(&mut engine, ("first", &first), true, 1.0)),
            Some(load(&mut engine, ("second", &second), false, 1.0)),
        ];
        let models = [
            model.clone(),
            first.merged(&model, 1.0),
            second.merged(&model, 1.0),
        ];
        let shared = prompt(&mut random, 16);
        let (mut requests, mut ahead) = (Vec::new(), 0);
        for number in 0..9 {
            let length = random.usize(1..20);
            let mut tokens = prompt(&mut random, length);
            if number % 2 == 0 {
                tokens.splice(0..0, shared.iter().copied());
            }
            let which = number % 3;
            let mut own = adapted(&tokens, random.usize(1..12), ids[which]);
            if random.bool() {
                own.top = None;
            }
            requests.push((own, &models[which]));
        }
        run_each(&mut engine, requests);
        // Steps ahead of requests that have one, and of some with different ones.
        let mut all = HashMap::new();
        for which in [1, 2, 0] {
            let tokens = prompt(&mut random, 3);
            let mut own = adapted(&tokens, 8, ids[which]);
            own.top = None;
            let id = engine.add(own).unwrap();
            all.insert(id, (tokens, &models[which]));
        }
        while !engine.is_idle() {
            let events = engine.step().unwrap();
            ahead += usize::from(engine.is_ahead());
            for event in events {
                let (tokens, model) = all.get_mut(&event.request).unwrap();
                check(model, tokens, &event);
                tokens.push(event.token);
            }
        }
        assert!(ahead > 0, "{name}");
    }
}

#[test]
fn prefixes_are_not_shared_between_adapters() {
    let mut random = fercuda_trials::rng();
    for sizes in [sizes("qwen3"), hybrid("qwen35")] {
        let model = TinyModel::random(&mut random, sizes);
        let config = EngineConfig {
            cache_tokens: Some(400),
            kept_states: Some(8),
            ..with_room("prefixes", 2)
        };
        let mut engine = engine(&model, &config);
        let adapter = TinyAdapter::random(&mut random, &model, 4);
        let id = load(&mut engine, ("one", &adapter), true, 1.0);
        let other = load(&mut engine, ("half", &adapter), false, 0.5);
        let merged = adapter.merged(&model, 1.0);
        let half = adapter.merged(&model, 0.5);
        let tokens = prompt(&mut random, 40);
        for round in 0..2 {
            for (adapter, model) in [(None, &model), (Some(id), &merged), (Some(other), &half)] {
                let own = adapted(&tokens, 2, adapter);
                let reused = run_each(&mut engine, vec![(own, model)]);
                // What none has computed is not there; its own is.
                assert_eq!(reused[0] > 0, round > 0, "{adapter:?}");
            }
        }
    }
}

/// The bytes of a model's f32 file with an adapter added to its weights.
fn merged_file(mut file: Vec<u8>, factors: &[TinyFactors]) -> Vec<u8> {
    let parsed = ModelFile::from_bytes(Path::new("tiny.gguf"), file.clone()).unwrap();
    for own in factors {
        let tensor = parsed.tensor(&format!("{}.weight", own.place)).unwrap();
        let begin = tensor.at as usize;
        let bytes = file[begin..begin + tensor.bytes.len()].chunks_exact_mut(4);
        for (at, bytes) in bytes.enumerate() {
            let value = f32::from_le_bytes(bytes.try_into().unwrap());
            let sum = (f64::from(value) + 2.0 * own.element(at)) as f32;
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
    }
    file
}

/// Log-probabilities of all tokens behind a prompt.
fn chances(engine: &mut Engine, tokens: &[u32], adapter: Option<AdapterId>) -> HashMap<u32, f32> {
    let mut own = adapted(tokens, 1, adapter);
    own.top = Some(512);
    let mut all = HashMap::new();
    let finished = engine.generate(own, |event| {
        all.extend(event.top.iter().copied());
        true
    });
    finished.unwrap();
    all
}

#[test]
fn weights_in_blocks_take_adapters() {
    let mut random = fercuda_trials::rng();
    let tokens: Vec<u32> = (0..80).map(|_| random.u32(..500)).collect();
    let exact = random_file(TensorType::Scalar(Dtype::F32));
    let parsed = ModelFile::from_bytes(Path::new("tiny.gguf"), exact.clone()).unwrap();
    let mut factors = Vec::new();
    for tensor in parsed.tensors() {
        let place = tensor.name.strip_suffix(".weight").unwrap_or_default();
        let &[outputs, inputs] = tensor.shape.as_slice() else {
            continue;
        };
        let is_changed = ["attn_q", "attn_v", "ffn_gate", "ffn_down"];
        if !is_changed.iter().any(|it| place.ends_with(it)) {
            continue;
        }
        let (inputs, outputs) = (inputs as usize, outputs as usize);
        let values = tensor.decode().unwrap();
        let size = values.iter().fold(0f32, |most, it| most.max(it.abs()));
        let mut drawn = |count: usize, scale: f32| {
            let each = |_| scale * (2.0 * random.f32() - 1.0);
            (0..count).map(each).collect::<Vec<f32>>()
        };
        factors.push(TinyFactors {
            place: place.to_owned(),
            rank: 4,
            inputs,
            outputs,
            a: drawn(4 * inputs, 1.0),
            b: drawn(4 * outputs, 0.4 * size),
        });
    }
    assert!(factors.len() >= 4);
    let architecture = "llama";
    let bytes = TinyAdapter::new(factors.clone(), 8.0, architecture).gguf();
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("adapter.gguf");
    fs::write(&path, bytes).unwrap();
    let open = |file: Vec<u8>, is_wide, cached| {
        let config = EngineConfig {
            wide_products: Some(is_wide),
            fused_products: Some(is_wide),
            batch_tokens: Some(256),
            cached,
            ..with_room("blocks", 1)
        };
        let file = ModelFile::from_bytes(Path::new("tiny.gguf"), file).unwrap();
        Engine::load(runtime(), &file, &config, |_, _| {}).unwrap()
    };
    let of_f32 = |file| chances(&mut open(file, false, Dtype::F32), &tokens, None);
    let (wanted, plain) = (of_f32(merged_file(exact.clone(), &factors)), of_f32(exact));
    let off = |own: &HashMap<u32, f32>| {
        let squares = wanted
            .iter()
            .map(|(token, it)| f64::from(it - own[token]).powi(2));
        (squares.sum::<f64>() / wanted.len() as f64).sqrt()
    };
    // What the adapter changes is far more than what types lose.
    assert!(off(&plain) > 0.2, "{}", off(&plain));
    for (kind, most) in [("Q8_0", 0.04), ("F16", 0.004), ("BF16", 0.025)] {
        for is_wide in [false, true] {
            let mut engine = open(random_file(kind.parse().unwrap()), is_wide, Dtype::F16);
            let id = engine.load_adapter("own", &path, 1.0).unwrap();
            let off = off(&chances(&mut engine, &tokens, Some(id)));
            println!("{kind} wide {is_wide}: {off}");
            assert!(off < most, "{kind} wide {is_wide}: {off}");
        }
    }
}

#[test]
fn scales_by_roots_and_patterns_are_peft_s() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen2"));
    let mut engine = engine(&model, &with_room("scales", 2));
    let adapter = TinyAdapter::random(&mut random, &model, 4);
    let mut config = adapter.configuration();
    config["use_rslora"] = json!(true);
    // alpha is twice the rank: alpha / 2 = alpha / r * (r / 2).
    let folder = peft_folder(&adapter.peft_tensors(), &config);
    let id = engine.load_adapter("root", folder.path(), 1.0).unwrap();
    let merged = adapter.merged(&model, 2.0);
    let tokens = prompt(&mut random, 9);
    run_each(&mut engine, vec![(adapted(&tokens, 2, Some(id)), &merged)]);
    let mut config = adapter.configuration();
    config["alpha_pattern"] = json!({"layers.0.mlp.up_proj": 24.0, "q_proj": 0.0});
    let folder = peft_folder(&adapter.peft_tensors(), &config);
    let tensors = folder.path().join("adapter_model.safetensors");
    let id = engine.load_adapter("patterns", &tensors, 1.0).unwrap();
    let mut same = adapter.clone().of(|it| !it.ends_with("attn_q"));
    for own in &mut same.factors {
        if own.place == "blk.0.ffn_up" {
            own.b.iter_mut().for_each(|it| *it *= 3.0);
        }
    }
    let merged = same.merged(&model, 1.0);
    run_each(&mut engine, vec![(adapted(&tokens, 2, Some(id)), &merged)]);
}

/// What an adapter's files are refused with.
fn refused(engine: &mut Engine, path: &Path) -> String {
    let names = engine.adapter_names().to_vec();
    let error = engine.load_adapter("refused", path, 1.0).unwrap_err();
    assert_eq!(engine.adapter_names(), names);
    let text = error.to_string();
    assert!(text.contains("\ntry: "), "{text}");
    text
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    let mut engine = engine(&model, &with_room("refused", 1));
    let adapter = TinyAdapter::random(&mut random, &model, 4);
    let tensors = adapter.peft_tensors();
    let mut refuse = |change: &dyn Fn(&mut Vec<FileTensor>), wanted: &str| {
        let mut own = tensors.clone();
        change(&mut own);
        let folder = peft_folder(&own, &adapter.configuration());
        let text = refused(&mut engine, folder.path());
        assert!(text.contains(wanted), "{text}");
    };
    let layer = "base_model.model.model.layers.0.";
    refuse(&|all| all.truncate(1), "without its other factor");
    refuse(&|all| all.clear(), "changes no matrix");
    refuse(
        &|all| all[0].0 = "base_model.model.lm_head.lora_A.weight".to_owned(),
        "lm_head",
    );
    refuse(
        &|all| all[0].0 = "base_model.model.model.embed_tokens.lora_embedding_A".to_owned(),
        "embeddings are not supported",
    );
    refuse(
        &|all| all[0].0 = format!("{layer}self_attn.q_proj.lora_magnitude_vector.weight"),
        "DoRA is not supported",
    );
    refuse(
        &|all| {
            for (factor, own) in ["lora_A", "lora_B"].iter().zip(&mut all[..2]) {
                own.0 = format!("{layer}self_attn.qkv_proj.{factor}.weight");
            }
        },
        "have attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down",
    );
    refuse(
        &|all| {
            for own in &mut all[..2] {
                own.0 = own.0.replace("layers.0", "layers.7");
            }
        },
        "of layer 7",
    );
    refuse(&|all| all[1].2.reverse(), "has 4 rows");
    refuse(
        &|all| {
            let rank = all[0].2[0];
            all[0].2[1] -= 1;
            let bytes = 4 * rank * all[0].2[1];
            all[0].3.truncate(bytes);
        },
        "is [4, 23], not [4, 24]",
    );
    refuse(&|all| all[0].2 = vec![96], "and no matrix");
    refuse(
        &|all| all[0].3[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
        "has NaN",
    );
    let again = |all: &mut Vec<FileTensor>| {
        let mut own = all[0].clone();
        own.0 = own
            .0
            .replace("base_model.model.model.", "base_model.model.");
        all.push(own);
    };
    refuse(&again, "are for one matrix");
}

#[test]
fn files_that_are_no_adapters_of_the_model_are_refused() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen2"));
    let mut engine = engine(&model, &with_room("refused", 1));
    let adapter = TinyAdapter::random(&mut random, &model, 4);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("adapter.gguf");
    for (keys, wanted) in [
        (("general.type", "model"), "general.type is \"model\""),
        (("general.type", ""), "general.type is absent"),
        (("adapter.type", "ia3"), "adapter.type is \"ia3\""),
        (
            ("general.architecture", "llama"),
            "is for models of \"llama\"",
        ),
        (("general.architecture", ""), "general.architecture"),
        (
            ("adapter.alora.invocation_tokens", "x"),
            "behind some tokens",
        ),
    ] {
        fs::write(&path, adapter.gguf_with(&[keys])).unwrap();
        let text = refused(&mut engine, &path);
        assert!(text.contains(wanted), "{text}");
    }
    fs::write(&path, model.file()).unwrap();
    assert!(refused(&mut engine, &path).contains("the file is no LoRA adapter"));
    let mut config = adapter.configuration();
    config["use_dora"] = json!(true);
    let dora = peft_folder(&adapter.peft_tensors(), &config);
    assert!(refused(&mut engine, dora.path()).contains("use_dora"));
    config["use_dora"] = json!(false);
    config["r"] = json!(5);
    let other = peft_folder(&adapter.peft_tensors(), &config);
    assert!(refused(&mut engine, other.path()).contains("adapter_config.json says 5"));
    fs::remove_file(other.path().join("adapter_model.safetensors")).unwrap();
    assert!(refused(&mut engine, other.path()).contains("does not have adapter_model"));
    fs::remove_file(dora.path().join("adapter_config.json")).unwrap();
    assert!(refused(&mut engine, dora.path()).contains("there is no adapter_config.json"));
}

#[test]
fn room_and_names_are_limits() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("qwen3"));
    let adapter = TinyAdapter::random(&mut random, &model, 4);
    let large = TinyAdapter::random(&mut random, &model, 9);
    let (_first, path) = adapter.saved(true);
    let (_second, large) = large.saved(false);
    let mut none = engine(&model, &config("none"));
    assert!(refused(&mut none, &path).contains("without room for adapters"));
    let file = AdapterFile::open(&large).unwrap();
    assert_eq!(file.rank(), 9);
    let mut engine = engine(&model, &with_room("room", 1));
    assert!(refused(&mut engine, &large).contains("the rank 9, and there is room for 8"));
    let error = engine.load_adapter("x", &path, f32::INFINITY).unwrap_err();
    assert!(matches!(error, LlmError::Request { .. }), "{error}");
    let id = engine.load_adapter("own", &path, 1.0).unwrap();
    assert_eq!(engine.adapter("own"), Some(id));
    assert_eq!(engine.adapter("other"), None);
    assert!(refused(&mut engine, &path).contains("1 adapters that there is room for"));
    let error = engine.load_adapter("own", &path, 1.0).unwrap_err();
    assert!(error.to_string().contains("\"own\" is there"), "{error}");
    let error = none.add(adapted(&[1], 1, Some(id))).unwrap_err();
    assert!(error.to_string().contains("adapter 0 of 0"), "{error}");
    // What is planned has them.
    let large = EngineConfig {
        cache_tokens: Some(1 << 30),
        ..with_room("large", 2)
    };
    let file = ModelFile::from_bytes(Path::new("tiny.gguf"), model.file()).unwrap();
    let error = Engine::load(runtime(), &file, &large, |_, _| {}).unwrap_err();
    assert!(
        error.to_string().contains("2 adapters of the rank 8"),
        "{error}"
    );
    for (adapters, adapter_rank) in [(1025, 8), (1, 0), (1, 1025)] {
        let config = EngineConfig {
            adapters,
            adapter_rank,
            ..config("beyond")
        };
        let error = Engine::load(runtime(), &file, &config, |_, _| {}).unwrap_err();
        assert!(matches!(error, LlmError::Request { .. }), "{error}");
    }
}

/// Whatever the bytes are, they are an adapter or an error.
#[test]
fn damaged_files_are_errors() {
    let mut random = fercuda_trials::rng();
    let model = TinyModel::random(&mut random, sizes("llama"));
    let adapter = TinyAdapter::random(&mut random, &model, 2);
    let mut engine = engine(&model, &with_room("damaged", 600));
    let folder = adapter.peft();
    let tensors = folder.path().join("adapter_model.safetensors");
    let config = folder.path().join("adapter_config.json");
    let gguf = folder.path().join("adapter.gguf");
    let gguf_bytes = adapter.gguf();
    fs::write(&gguf, &gguf_bytes).unwrap();
    let mut loaded = 0;
    for number in 0..300 {
        for (written, opened) in [
            (&tensors, folder.path()),
            (&config, folder.path()),
            (&gguf, gguf.as_path()),
        ] {
            let before = fs::read(written).unwrap();
            let mut bytes = before.clone();
            // Headers are where numbers and names are.
            let most = bytes.len().min(3000);
            match random.usize(..4) {
                0 => bytes.truncate(random.usize(..before.len())),
                _ => {
                    for _ in 0..random.usize(1..4) {
                        bytes[random.usize(..most)] = random.u8(..);
                    }
                }
            }
            fs::write(written, &bytes).unwrap();
            let name = format!("{number} {}", written.display());
            loaded += usize::from(engine.load_adapter(&name, opened, 1.0).is_ok());
            fs::write(written, &before).unwrap();
        }
    }
    println!("{loaded} are adapters still");
}
