//! Tensors and configurations of tiny models as checkpoints of their types have them.

use fercuda_tensor::Dtype;
use serde_json::{Value, json};

use crate::checkpoint::{FileTensor, configuration, encoded, in_halves};
use crate::engine::architectures;
use crate::model::{
    PHI_MAGNITUDE, SHORT_CONTEXT, TinyModel, TinySizes, TinyTensor, WINDOW_BASE, YARN,
};

/// How the files have experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TinyExperts {
    /// A tensor of each.
    Separate,
    /// One of all, with the rows or columns that the type has.
    Stacked,
    /// Blocks of MXFP4.
    Blocks,
}

pub(crate) fn sizes_of(name: &str) -> TinySizes {
    let found = architectures().into_iter().find(|it| it.0 == name);
    let mut sizes = found.unwrap().1;
    if let Some(states) = sizes.states.as_mut().filter(|it| it.period == 0) {
        // Heads have a multiple of the model's elements there.
        states.value_length = 8;
    }
    sizes
}

/// Names of the parts of a type's layers.
fn part_there(model_type: &str, part: &str) -> String {
    let of_type: &[(&str, &str)] = match model_type {
        "mamba2" => &[
            ("attn_norm.weight", "norm.weight"),
            ("ssm_a", "mixer.A_log"),
            ("ssm_d", "mixer.D"),
            ("ssm_dt.bias", "mixer.dt_bias"),
            ("ssm_in", "mixer.in_proj"),
            ("ssm_conv1d", "mixer.conv1d"),
            ("ssm_norm", "mixer.norm"),
            ("ssm_out", "mixer.out_proj"),
        ],
        "gemma2" | "gemma3" | "gemma3_text" => &[
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        "phi3" => &[
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        "gpt_oss" => &[
            ("attn_sinks.weight", "self_attn.sinks"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        "mixtral" => &[("ffn_gate_inp", "block_sparse_moe.gate")],
        "llama4" | "llama4_text" => &[
            ("ffn_gate_inp", "feed_forward.router"),
            ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
            ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
            ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
            ("ffn_gate", "feed_forward.gate_proj"),
            ("ffn_up", "feed_forward.up_proj"),
            ("ffn_down", "feed_forward.down_proj"),
        ],
        _ => &[],
    };
    let of_all = [
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a", "linear_attn.A_log"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
        ("attn_norm", "input_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("ffn_gate_inp", "mlp.gate"),
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ];
    let all = || of_type.iter().chain(&of_all);
    if let Some((_, there)) = all().find(|(own, _)| *own == part) {
        return (*there).to_owned();
    }
    let (place, end) = part.rsplit_once('.').unwrap();
    let (_, there) = all().find(|(own, _)| *own == place).unwrap();
    format!("{there}.{end}")
}

/// Rows as columns.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    places.map(|at| values[at]).collect()
}

/// Codes of MXFP4 as checkpoints have them, where neighbours share a byte.
fn of_blocks(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in bytes.chunks(17) {
        scales.push(block[0]);
        let own = &block[1..];
        let code = |at: usize| own[at % 16] >> (4 * (at / 16)) & 15;
        codes.extend((0..16).map(|at| code(2 * at) | code(2 * at + 1) << 4));
    }
    (codes, scales)
}

pub(crate) fn plain(name: String, shape: &[usize], values: &[f32]) -> FileTensor {
    (name, "F32", shape.to_vec(), encoded(Dtype::F32, values))
}

/// Tensors of a layer's experts: gates, what they are multiplied with, results.
fn experts(
    layer: &str,
    model_type: &str,
    layout: TinyExperts,
    [gate, up, down]: [&TinyTensor; 3],
) -> Vec<FileTensor> {
    let place = match model_type {
        "mixtral" if layout == TinyExperts::Separate => "block_sparse_moe.experts",
        "llama4" | "llama4_text" => "feed_forward.experts",
        _ => "mlp.experts",
    };
    let name = |end: &str| format!("{layer}{place}.{end}");
    let (count, inner) = (gate.shape[0], gate.shape[1]);
    let of = |tensor: &TinyTensor, expert: usize| {
        let each = tensor.values.len() / count;
        tensor.values[expert * each..][..each].to_vec()
    };
    if layout == TinyExperts::Separate {
        let ends = match model_type {
            "mixtral" => ["w1", "w3", "w2"],
            _ => ["gate_proj", "up_proj", "down_proj"],
        };
        let all = (0..count).flat_map(|expert| {
            let own = ends.iter().zip([gate, up, down]);
            own.map(move |(end, tensor)| (expert, end, tensor))
        });
        return all
            .map(|(expert, end, tensor)| {
                let name = name(&format!("{expert}.{end}.weight"));
                plain(name, &tensor.shape[1..], &of(tensor, expert))
            })
            .collect();
    }
    let is_in_turns = model_type == "gpt_oss";
    // Of an expert gates and the others, by parts of so many numbers.
    let both = |gates: &[f32], ups: &[f32], row: usize| -> Vec<f32> {
        match is_in_turns {
            true => {
                let rows = gates.chunks(row).zip(ups.chunks(row));
                rows.flat_map(|(gate, up)| [gate, up].concat()).collect()
            }
            false => [gates, ups].concat(),
        }
    };
    let hidden = gate.values.len() / (count * inner.max(1));
    if gate.name.ends_with(".bias") {
        let all = (0..count).flat_map(|it| both(&of(gate, it), &of(up, it), 1));
        let all: Vec<f32> = all.collect();
        return vec![
            plain(name("gate_up_proj_bias"), &[count, 2 * inner], &all),
            plain(name("down_proj_bias"), &down.shape, &down.values),
        ];
    }
    if layout == TinyExperts::Blocks {
        let bytes = |tensor: &TinyTensor| tensor.blocks.clone().unwrap().1;
        let row = hidden / 32 * 17;
        let rows = [bytes(gate), bytes(up)];
        let rows = rows[0].chunks(row).zip(rows[1].chunks(row));
        let all: Vec<u8> = rows.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let of = |end: &str, bytes: &[u8], shape: [usize; 3]| {
            let (codes, scales) = of_blocks(bytes);
            [
                (
                    name(&format!("{end}_blocks")),
                    "U8",
                    [&shape[..], &[16]].concat(),
                    codes,
                ),
                (name(&format!("{end}_scales")), "U8", shape.to_vec(), scales),
            ]
        };
        let gates = of("gate_up_proj", &all, [count, 2 * inner, hidden / 32]);
        let results = of("down_proj", &bytes(down), [count, hidden, inner / 32]);
        return gates.into_iter().chain(results).collect();
    }
    let is_turned = is_in_turns || model_type.starts_with("llama4");
    let (mut gates, mut results) = (Vec::new(), Vec::new());
    for expert in 0..count {
        let own = both(&of(gate, expert), &of(up, expert), hidden);
        let down = of(down, expert);
        match is_turned {
            true => {
                gates.extend(transposed(&own, 2 * inner));
                results.extend(transposed(&down, hidden));
            }
            false => {
                gates.extend(own);
                results.extend(down);
            }
        }
    }
    let (first, second) = match is_turned {
        true => ([count, hidden, 2 * inner], [count, inner, hidden]),
        false => ([count, 2 * inner, hidden], [count, hidden, inner]),
    };
    vec![
        plain(name("gate_up_proj"), &first, &gates),
        plain(name("down_proj"), &second, &results),
    ]
}

/// The tensors of a model as files of that type have them.
pub(crate) fn tensors(
    model: &mut TinyModel,
    model_type: &str,
    layout: TinyExperts,
) -> Vec<FileTensor> {
    // Neighbours share keys there.
    model.has_grouped_keys = true;
    let prefix = match model_type {
        "gemma3" | "llama4" => "language_model.model.",
        "qwen3_5_moe" => "model.language_model.",
        "mamba2" => "backbone.",
        _ => "model.",
    };
    let is_around_0 = model_type.starts_with("gemma") || model_type.starts_with("qwen3_5");
    let mut all = Vec::new();
    for tensor in &model.tensors {
        let TinyTensor {
            name: own,
            shape,
            values,
            ..
        } = tensor;
        if own.starts_with("rope_") {
            continue;
        }
        let Some((layer, part)) = own.strip_prefix("blk.").and_then(|it| it.split_once('.')) else {
            let there = match own.as_str() {
                "token_embd.weight" if model_type == "mamba2" => "embeddings.weight",
                "token_embd.weight" => "embed_tokens.weight",
                "output_norm.weight" if model_type == "mamba2" => "norm_f.weight",
                "output_norm.weight" => "norm.weight",
                _ => "lm_head.weight",
            };
            let prefix = match there {
                "lm_head.weight" if prefix.starts_with("language") => "language_model.",
                "lm_head.weight" => "",
                _ => prefix,
            };
            let less = if is_around_0 && own.contains("norm") {
                1.0
            } else {
                0.0
            };
            let there_values: Vec<f32> = values.iter().map(|it| it - less).collect();
            let name = format!("{prefix}{there}");
            all.push(plain(name, shape, &there_values));
            continue;
        };
        let layer = format!("{prefix}layers.{layer}.");
        if let Some((_, kind)) = part.split_once("_exps.") {
            if part.starts_with("ffn_gate_exps") {
                let begin = own.strip_suffix(part).unwrap();
                let three = ["gate", "up", "down"].map(|it| {
                    let name = format!("{begin}ffn_{it}_exps.{kind}");
                    model.tensors.iter().find(|it| it.name == name).unwrap()
                });
                all.extend(experts(&layer, model_type, layout, three));
            }
            continue;
        }
        let is_turned = matches!(part, "attn_q.weight" | "attn_k.weight");
        let values: Vec<f32> = match part {
            _ if is_turned && matches!(model_type, "llama" | "mistral" | "mixtral") => {
                in_halves(values, model.sizes.hidden, model.sizes.length)
            }
            "ssm_a" => values.iter().map(|it| (-it).ln()).collect(),
            part if is_around_0 && part.contains("norm") && part != "ssm_norm.weight" => {
                values.iter().map(|it| it - 1.0).collect()
            }
            _ => values.clone(),
        };
        let shape = match part {
            "ssm_conv1d.weight" => vec![shape[0], 1, shape[1]],
            "ssm_a" | "ssm_d" => vec![values.len()],
            "ssm_norm.weight" => vec![values.len()],
            "ffn_gate_inp_shexp.weight" => vec![1, shape[0]],
            _ => shape.clone(),
        };
        let name = format!("{layer}{}", part_there(model_type, part));
        all.push(plain(name, &shape, &values));
    }
    if matches!(model_type, "gemma3" | "llama4" | "qwen3_5_moe") {
        all.push(plain(
            "vision_tower.norm.weight".to_owned(),
            &[2],
            &[0.0; 2],
        ));
    }
    all
}

/// What a type's configuration has besides what all have.
fn own_keys(model: &TinyModel, model_type: &str) -> Vec<(&'static str, Value)> {
    let sizes = &model.sizes;
    let factors = |name: &str| {
        let found = model.tensors.iter().find(|it| it.name == name);
        json!(found.map(|it| it.values.clone()))
    };
    let pattern = sizes.pattern.as_ref().map(|pattern| {
        let name = |it: &bool| {
            if *it {
                "sliding_attention"
            } else {
                "full_attention"
            }
        };
        pattern.iter().map(name).collect::<Vec<&str>>()
    });
    match model_type {
        "gemma" => vec![
            ("hidden_act", json!("gelu")),
            ("hidden_activation", json!(null)),
        ],
        "gemma2" => vec![
            ("hidden_activation", json!("gelu_pytorch_tanh")),
            ("hidden_act", json!("ignored")),
            ("sliding_window", json!(sizes.window)),
            ("query_pre_attn_scalar", json!(sizes.length)),
        ],
        "gemma3_text" => vec![
            ("query_pre_attn_scalar", json!(sizes.length)),
            ("sliding_window", json!(sizes.window)),
            ("rope_theta", json!(10_000.0)),
            ("rope_local_base_freq", json!(WINDOW_BASE)),
            (
                "rope_scaling",
                json!({"rope_type": "linear", "factor": 2.0}),
            ),
            ("layer_types", json!(pattern)),
        ],
        "phi3" => vec![
            ("partial_rotary_factor", json!(0.5)),
            ("original_max_position_embeddings", json!(SHORT_CONTEXT)),
            (
                "rope_scaling",
                json!({
                    "type": "longrope",
                    "short_factor": factors("rope_factors_short.weight"),
                    "long_factor": factors("rope_factors_long.weight"),
                    "attention_factor": PHI_MAGNITUDE,
                }),
            ),
        ],
        "mamba2" => {
            let states = sizes.states.unwrap();
            vec![
                ("layer_norm_epsilon", json!(model.epsilon())),
                ("num_heads", json!(states.heads)),
                ("head_dim", json!(states.value_length)),
                ("n_groups", json!(states.keys)),
                ("state_size", json!(states.key_length)),
                ("expand", json!(2)),
                ("time_step_limit", json!([0.0, {"__float__": "Infinity"}])),
            ]
        }
        "mistral" => vec![("sliding_window", json!(sizes.window))],
        _ => expert_keys(sizes, model_type),
    }
}

/// Those of types with experts.
fn expert_keys(sizes: &TinySizes, model_type: &str) -> Vec<(&'static str, Value)> {
    let [count, used, inner] = sizes.experts.unwrap_or_default();
    match model_type {
        "qwen3_moe" | "qwen3_5_moe_text" => vec![
            ("num_experts", json!(count)),
            ("num_experts_per_tok", json!(used)),
            ("moe_intermediate_size", json!(inner)),
            ("shared_expert_intermediate_size", json!(inner)),
            ("norm_topk_prob", json!(true)),
        ],
        "mixtral" => vec![
            ("num_local_experts", json!(count)),
            ("num_experts_per_tok", json!(used)),
            ("intermediate_size", json!(inner)),
        ],
        "gpt_oss" => vec![
            ("num_local_experts", json!(count)),
            ("num_experts_per_tok", json!(used)),
            ("intermediate_size", json!(inner)),
            ("sliding_window", json!(sizes.window)),
            ("attention_bias", json!(true)),
            (
                "rope_scaling",
                json!({
                    "rope_type": "yarn",
                    "factor": YARN.0,
                    "original_max_position_embeddings": YARN.1,
                    "truncate": false,
                }),
            ),
        ],
        "llama4_text" => vec![
            ("num_local_experts", json!(count)),
            ("num_experts_per_tok", json!(used)),
            ("intermediate_size", json!(inner)),
            ("intermediate_size_mlp", json!(sizes.inner)),
            ("no_rope_layers", json!([1, 1, 1, 0])),
        ],
        _ => Vec::new(),
    }
}

/// The configuration of a model, as transformers writes it.
pub(crate) fn described(model: &TinyModel, model_type: &str) -> Value {
    let part = match model_type {
        "gemma3" => "gemma3_text",
        "llama4" => "llama4_text",
        "qwen3_5_moe" => "qwen3_5_moe_text",
        own => {
            let mut config = configuration(model, own);
            if let Some(states) = model.sizes.states.filter(|it| it.period > 0) {
                config["full_attention_interval"] = json!(states.period);
            }
            for (key, value) in own_keys(model, own) {
                config[key] = value;
            }
            return config;
        }
    };
    let text = described(model, part);
    let is_tied = text["tie_word_embeddings"].clone();
    json!({
        "model_type": model_type,
        "text_config": text,
        "tie_word_embeddings": is_tied,
        "vision_config": {"depth": 1},
    })
}
