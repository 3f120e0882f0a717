//! Names of tensors in Hugging Face's checkpoints, a table for each architecture.
//!
//! Rows have the name in GGUF files, which the rest of the crate uses, and the name there.

/// How checkpoints of an architecture are written.
#[derive(Debug, PartialEq)]
pub(crate) struct CheckpointSpec {
    /// `model_type` of its configuration.
    pub(crate) model_type: &'static str,
    /// Name of the architecture in GGUF files.
    pub(crate) architecture: &'static str,
    /// Parts of layers: `blk.3.attn_q` is `layers.3.self_attn.q_proj`.
    pub(crate) layer: &'static [(&'static str, &'static str)],
    /// Whether weights of norms are 1 less, but of those of states.
    pub(crate) has_norms_around_0: bool,
    /// Values of absent keys.
    pub(crate) defaults: &'static [(&'static str, f64)],
}

/// Parts beside layers.
pub(crate) const WHOLE: [(&str, &str); 3] = [
    ("token_embd", "embed_tokens"),
    ("output_norm", "norm"),
    ("output", "lm_head"),
];

/// Layers of Llama and of those that follow it.
const DECODER_LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Layers of Qwen3.5. Names with their end are those of single numbers of heads.
const QWEN35_LAYER: [(&str, &str); 20] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Architectures whose checkpoints are read.
pub(crate) const CHECKPOINTS: [CheckpointSpec; 6] = [
    CheckpointSpec {
        model_type: "llama",
        architecture: "llama",
        layer: &DECODER_LAYER,
        has_norms_around_0: false,
        defaults: &[("rms_norm_eps", 1e-6), ("rope_theta", 1e4)],
    },
    CheckpointSpec {
        model_type: "mistral",
        architecture: "llama",
        layer: &DECODER_LAYER,
        has_norms_around_0: false,
        defaults: &[
            ("rms_norm_eps", 1e-6),
            ("rope_theta", 1e4),
            ("sliding_window", 4096.0),
        ],
    },
    CheckpointSpec {
        model_type: "qwen2",
        architecture: "qwen2",
        layer: &DECODER_LAYER,
        has_norms_around_0: false,
        defaults: &[
            ("rms_norm_eps", 1e-6),
            ("rope_theta", 1e4),
            ("max_window_layers", 28.0),
        ],
    },
    CheckpointSpec {
        model_type: "qwen3",
        architecture: "qwen3",
        layer: &DECODER_LAYER,
        has_norms_around_0: false,
        defaults: &[
            ("rms_norm_eps", 1e-6),
            ("rope_theta", 1e4),
            ("head_dim", 128.0),
            ("max_window_layers", 28.0),
        ],
    },
    QWEN35,
    CheckpointSpec {
        model_type: "qwen3_5",
        ..QWEN35
    },
];

/// The text model of Qwen3.5, which is also a part of the one for images.
const QWEN35: CheckpointSpec = CheckpointSpec {
    model_type: "qwen3_5_text",
    architecture: "qwen35",
    layer: &QWEN35_LAYER,
    has_norms_around_0: true,
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
};

impl CheckpointSpec {
    /// The checkpoint's name of a tensor that GGUF files call `name`, without what all names but
    /// that of the head begin with; `None` where checkpoints have none.
    pub(crate) fn tensor(&self, name: &str) -> Option<String> {
        let of = |table: &[(&str, &'static str)], part: &str| {
            let found = table.iter().find(|(own, _)| *own == part);
            found.map(|(_, there)| *there)
        };
        let rest = name.strip_prefix("blk.").and_then(|it| it.split_once('.'));
        // A name with its end.
        let whole = rest.and_then(|(layer, rest)| Some((layer, of(self.layer, rest)?)));
        if let Some((layer, there)) = whole {
            return Some(format!("layers.{layer}.{there}"));
        }
        let (place, end) = name.rsplit_once('.')?;
        let Some(rest) = place.strip_prefix("blk.") else {
            return of(&WHOLE, place).map(|there| format!("{there}.{end}"));
        };
        let (layer, part) = rest.split_once('.')?;
        of(self.layer, part).map(|there| format!("layers.{layer}.{there}.{end}"))
    }

    /// The value that an absent key stands for.
    pub(crate) fn default_of(&self, key: &str) -> Option<f64> {
        let found = self.defaults.iter().find(|(own, _)| *own == key);
        found.map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_and_of_checkpoints_are_the_same_tensors() {
        let spec = &CHECKPOINTS[3];
        let name = |name| spec.tensor(name).unwrap_or_default();
        assert_eq!(name("token_embd.weight"), "embed_tokens.weight");
        assert_eq!(name("output.weight"), "lm_head.weight");
        assert_eq!(
            name("blk.12.attn_q_norm.weight"),
            "layers.12.self_attn.q_norm.weight"
        );
        assert_eq!(name("blk.0.attn_k.bias"), "layers.0.self_attn.k_proj.bias");
        let spec = &CHECKPOINTS[4];
        for (own, there) in [
            ("ssm_a", "linear_attn.A_log"),
            ("ssm_dt.bias", "linear_attn.dt_bias"),
            ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
            ("ssm_out.weight", "linear_attn.out_proj.weight"),
        ] {
            let name = spec.tensor(&format!("blk.7.{own}"));
            assert_eq!(name, Some(format!("layers.7.{there}")));
        }
        let spec = &CHECKPOINTS[3];
        for none in ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "x", ""] {
            assert_eq!(spec.tensor(none), None, "{none}");
        }
    }
}
