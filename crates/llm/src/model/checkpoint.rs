//! Architectures whose checkpoints are read, as Hugging Face's programs write them.

use super::checkpoint_names as names;
use super::checkpoint_spec::{
    AttentionBiases, CheckpointSpec, ExpertNames, ExpertOrder, WindowKeys,
};

/// Architectures whose checkpoints are read.
pub(crate) const CHECKPOINTS: [CheckpointSpec; 19] = [
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN35,
    CheckpointSpec {
        model_type: "qwen3_5",
        ..QWEN35
    },
    GEMMA,
    GEMMA2,
    GEMMA3,
    CheckpointSpec {
        model_type: "gemma3",
        ..GEMMA3
    },
    PHI3,
    QWEN3_MOE,
    MIXTRAL,
    GPT_OSS,
    QWEN35_MOE,
    CheckpointSpec {
        model_type: "qwen3_5_moe",
        ..QWEN35_MOE
    },
    MAMBA2,
    LLAMA4,
    CheckpointSpec {
        model_type: "llama4",
        ..LLAMA4
    },
];

const LLAMA: CheckpointSpec = CheckpointSpec {
    model_type: "llama",
    architecture: "llama",
    outer: &names::OUTER,
    layer: &names::DECODER_LAYER,
    experts: None,
    has_norms_around_0: false,
    is_tied: false,
    pairs: "halves",
    epsilon: "rms_norm_eps",
    activation: ("hidden_act", &["silu", "swish"]),
    biases: AttentionBiases::ByKey(false),
    windows: WindowKeys::None,
    has_score_keys: false,
    has_two_rotations: false,
    defaults: &[("rms_norm_eps", 1e-6), ("rope_theta", 1e4)],
    flags: &[],
    constants: &[],
};

const MISTRAL: CheckpointSpec = CheckpointSpec {
    model_type: "mistral",
    biases: AttentionBiases::Never,
    windows: WindowKeys::Each,
    defaults: &[
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("sliding_window", 4096.0),
    ],
    ..LLAMA
};

const QWEN2: CheckpointSpec = CheckpointSpec {
    model_type: "qwen2",
    architecture: "qwen2",
    biases: AttentionBiases::Always,
    windows: WindowKeys::SwitchedFrom,
    defaults: &[
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("sliding_window", 4096.0),
        ("max_window_layers", 28.0),
    ],
    ..LLAMA
};

const QWEN3: CheckpointSpec = CheckpointSpec {
    model_type: "qwen3",
    architecture: "qwen3",
    biases: AttentionBiases::ByKey(false),
    defaults: &[
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("head_dim", 128.0),
        ("sliding_window", 4096.0),
        ("max_window_layers", 28.0),
    ],
    ..QWEN2
};

/// The text model of Qwen3.5, which is also a part of the one for images.
const QWEN35: CheckpointSpec = CheckpointSpec {
    model_type: "qwen3_5_text",
    architecture: "qwen35",
    layer: &names::QWEN35_LAYER,
    has_norms_around_0: true,
    biases: AttentionBiases::Never,
    defaults: &[
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("head_dim", 256.0),
        ("partial_rotary_factor", 0.25),
        ("linear_conv_kernel_dim", 4.0),
        ("linear_key_head_dim", 128.0),
        ("linear_value_head_dim", 128.0),
        ("linear_num_key_heads", 16.0),
        ("linear_num_value_heads", 32.0),
    ],
    flags: &[("attention_bias", false, false)],
    ..LLAMA
};

const GEMMA: CheckpointSpec = CheckpointSpec {
    model_type: "gemma",
    architecture: "gemma",
    has_norms_around_0: true,
    is_tied: true,
    // The first files name the exact function, and were made with the approximation.
    activation: ("hidden_act", &["gelu_pytorch_tanh", "gelu"]),
    defaults: &[
        ("hidden_size", 3072.0),
        ("intermediate_size", 24_576.0),
        ("num_hidden_layers", 28.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 16.0),
        ("head_dim", 256.0),
        ("max_position_embeddings", 8192.0),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
    ],
    flags: &[("use_bidirectional_attention", false, false)],
    ..LLAMA
};

const GEMMA2: CheckpointSpec = CheckpointSpec {
    model_type: "gemma2",
    architecture: "gemma2",
    layer: &names::GEMMA_LAYER,
    activation: ("hidden_activation", &["gelu_pytorch_tanh"]),
    windows: WindowKeys::Period { key: None },
    has_score_keys: true,
    defaults: &[
        ("hidden_size", 2304.0),
        ("intermediate_size", 9216.0),
        ("num_hidden_layers", 26.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("max_position_embeddings", 8192.0),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("query_pre_attn_scalar", 256.0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("sliding_window", 4096.0),
    ],
    ..GEMMA
};

/// The text model of Gemma 3, which is also a part of the one for images.
const GEMMA3: CheckpointSpec = CheckpointSpec {
    model_type: "gemma3_text",
    architecture: "gemma3",
    windows: WindowKeys::Period {
        key: Some("sliding_window_pattern"),
    },
    has_two_rotations: true,
    defaults: &[
        ("hidden_size", 2304.0),
        ("intermediate_size", 9216.0),
        ("num_hidden_layers", 26.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("max_position_embeddings", 131_072.0),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e6),
        ("rope_local_base_freq", 1e4),
        ("query_pre_attn_scalar", 256.0),
        ("sliding_window", 4096.0),
    ],
    ..GEMMA2
};

const PHI3: CheckpointSpec = CheckpointSpec {
    model_type: "phi3",
    architecture: "phi3",
    layer: &names::PHI_LAYER,
    biases: AttentionBiases::Never,
    windows: WindowKeys::Each,
    defaults: &[
        ("hidden_size", 3072.0),
        ("intermediate_size", 8192.0),
        ("num_hidden_layers", 32.0),
        ("num_attention_heads", 32.0),
        ("max_position_embeddings", 4096.0),
        ("original_max_position_embeddings", 4096.0),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 1e4),
    ],
    flags: &[("attention_bias", false, false)],
    ..LLAMA
};

/// Experts of Qwen's models.
const QWEN_EXPERTS: ExpertNames = ExpertNames {
    each: Some(("mlp.experts", ["gate_proj", "up_proj", "down_proj"])),
    joined: "mlp.experts",
    order: ExpertOrder::Rows,
    inner: "moe_intermediate_size",
    shared: None,
    dense: "intermediate_size",
};

const QWEN3_MOE: CheckpointSpec = CheckpointSpec {
    model_type: "qwen3_moe",
    architecture: "qwen3moe",
    experts: Some(QWEN_EXPERTS),
    windows: WindowKeys::Switched,
    defaults: &[
        ("hidden_size", 2048.0),
        ("intermediate_size", 6144.0),
        ("num_hidden_layers", 24.0),
        ("num_attention_heads", 32.0),
        ("num_key_value_heads", 4.0),
        ("max_position_embeddings", 32_768.0),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("sliding_window", 4096.0),
        ("num_experts", 128.0),
        ("num_experts_per_tok", 8.0),
        ("moe_intermediate_size", 768.0),
    ],
    flags: &[("norm_topk_prob", true, false)],
    ..QWEN3
};

const MIXTRAL: CheckpointSpec = CheckpointSpec {
    model_type: "mixtral",
    layer: &names::MIXTRAL_LAYER,
    experts: Some(ExpertNames {
        each: Some(("block_sparse_moe.experts", ["w1", "w3", "w2"])),
        inner: "intermediate_size",
        ..QWEN_EXPERTS
    }),
    defaults: &[
        ("hidden_size", 4096.0),
        ("intermediate_size", 14_336.0),
        ("num_hidden_layers", 32.0),
        ("num_attention_heads", 32.0),
        ("num_key_value_heads", 8.0),
        ("max_position_embeddings", 131_072.0),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 1e6),
        ("num_experts", 8.0),
        ("num_experts_per_tok", 2.0),
    ],
    ..MISTRAL
};

const GPT_OSS: CheckpointSpec = CheckpointSpec {
    model_type: "gpt_oss",
    architecture: "gpt-oss",
    layer: &names::GPT_OSS_LAYER,
    experts: Some(ExpertNames {
        each: None,
        order: ExpertOrder::ColumnsInTurns,
        inner: "intermediate_size",
        ..QWEN_EXPERTS
    }),
    biases: AttentionBiases::ByKey(true),
    windows: WindowKeys::Period { key: None },
    defaults: &[
        ("hidden_size", 2880.0),
        ("intermediate_size", 2880.0),
        ("num_hidden_layers", 36.0),
        ("num_attention_heads", 64.0),
        ("num_key_value_heads", 8.0),
        ("head_dim", 64.0),
        ("max_position_embeddings", 131_072.0),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 150_000.0),
        ("sliding_window", 128.0),
        ("num_experts", 128.0),
        ("num_experts_per_tok", 4.0),
    ],
    constants: &[("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)],
    ..LLAMA
};

/// The text model of Qwen3.5 with experts, which is also a part of the one for images.
const QWEN35_MOE: CheckpointSpec = CheckpointSpec {
    model_type: "qwen3_5_moe_text",
    architecture: "qwen35moe",
    experts: Some(ExpertNames {
        shared: Some("shared_expert_intermediate_size"),
        ..QWEN_EXPERTS
    }),
    defaults: &[
        ("hidden_size", 2048.0),
        ("num_hidden_layers", 40.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 2.0),
        ("max_position_embeddings", 32_768.0),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("head_dim", 256.0),
        ("partial_rotary_factor", 0.25),
        ("linear_conv_kernel_dim", 4.0),
        ("linear_key_head_dim", 128.0),
        ("linear_value_head_dim", 128.0),
        ("linear_num_key_heads", 16.0),
        ("linear_num_value_heads", 32.0),
        ("num_experts", 256.0),
        ("num_experts_per_tok", 8.0),
        ("moe_intermediate_size", 512.0),
        ("shared_expert_intermediate_size", 512.0),
    ],
    ..QWEN35
};

const MAMBA2: CheckpointSpec = CheckpointSpec {
    model_type: "mamba2",
    architecture: "mamba2",
    outer: &names::MAMBA_OUTER,
    layer: &names::MAMBA_LAYER,
    epsilon: "layer_norm_epsilon",
    biases: AttentionBiases::Never,
    defaults: &[
        ("hidden_size", 4096.0),
        ("num_hidden_layers", 64.0),
        ("layer_norm_epsilon", 1e-5),
        ("num_heads", 128.0),
        ("head_dim", 64.0),
        ("state_size", 128.0),
        ("conv_kernel", 4.0),
        ("n_groups", 8.0),
        ("expand", 2.0),
        // There are no positions: that of GGUF files, as llama.cpp's converter writes it.
        ("max_position_embeddings", 1_048_576.0),
    ],
    flags: &[("use_bias", false, false), ("rms_norm", true, true)],
    ..LLAMA
};

/// The text model of Llama 4, which is also a part of the one for images.
const LLAMA4: CheckpointSpec = CheckpointSpec {
    model_type: "llama4_text",
    architecture: "llama4",
    layer: &names::LLAMA4_LAYER,
    experts: Some(ExpertNames {
        each: Some((
            "feed_forward.experts",
            ["gate_proj", "up_proj", "down_proj"],
        )),
        joined: "feed_forward.experts",
        order: ExpertOrder::Columns,
        inner: "intermediate_size",
        shared: Some("intermediate_size"),
        dense: "intermediate_size_mlp",
    }),
    // As in its authors' own code, and unlike Llama's checkpoints.
    pairs: "adjacent",
    defaults: &[
        ("hidden_size", 5120.0),
        ("intermediate_size", 8192.0),
        ("intermediate_size_mlp", 16_384.0),
        ("num_hidden_layers", 48.0),
        ("num_attention_heads", 40.0),
        ("num_key_value_heads", 8.0),
        ("head_dim", 128.0),
        ("max_position_embeddings", 131_072.0),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 500_000.0),
        ("num_experts", 16.0),
        ("num_experts_per_tok", 1.0),
        ("attention_chunk_size", 8192.0),
        ("floor_scale", 8192.0),
        ("no_rope_layer_interval", 4.0),
    ],
    ..LLAMA
};

#[cfg(test)]
mod tests {
    use super::*;

    fn row(model_type: &str) -> &'static CheckpointSpec {
        let mut all = CHECKPOINTS.iter();
        all.find(|it| it.model_type == model_type).unwrap()
    }

    #[test]
    fn names_of_files_and_of_checkpoints_are_the_same_tensors() {
        let spec = row("qwen3");
        let name = |name| spec.tensors(name).concat();
        assert_eq!(name("token_embd.weight"), "embed_tokens.weight");
        assert_eq!(name("output.weight"), "lm_head.weight");
        assert_eq!(
            name("blk.12.attn_q_norm.weight"),
            "layers.12.self_attn.q_norm.weight"
        );
        assert_eq!(name("blk.0.attn_k.bias"), "layers.0.self_attn.k_proj.bias");
        for none in ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "x", ""] {
            assert_eq!(spec.tensors(none), Vec::<String>::new(), "{none}");
        }
        for (model_type, own, there) in [
            ("qwen3_5", "ssm_a", "linear_attn.A_log"),
            ("qwen3_5", "ssm_dt.bias", "linear_attn.dt_bias"),
            ("qwen3_5", "ssm_conv1d.weight", "linear_attn.conv1d.weight"),
            ("qwen3_5", "ssm_out.weight", "linear_attn.out_proj.weight"),
            ("gpt_oss", "attn_sinks.weight", "self_attn.sinks"),
            ("mamba2", "ssm_d", "mixer.D"),
        ] {
            let name = row(model_type).tensors(&format!("blk.7.{own}"));
            assert_eq!(name, [format!("layers.7.{there}")]);
        }
        let name = row("mixtral").tensors("blk.1.ffn_gate_inp.weight");
        let wanted = ["block_sparse_moe", "mlp"].map(|it| format!("layers.1.{it}.gate.weight"));
        assert_eq!(name, wanted);
    }

    #[test]
    fn rows_of_one_type_are_one() {
        for (number, spec) in CHECKPOINTS.iter().enumerate() {
            let same = CHECKPOINTS
                .iter()
                .position(|it| it.model_type == spec.model_type);
            assert_eq!(same, Some(number), "{}", spec.model_type);
        }
    }
}
