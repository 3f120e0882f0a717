//! Properties in which checkpoints of architectures differ: names of tensors, keys, their defaults.

/// How checkpoints of an architecture are written.
#[derive(Debug, PartialEq)]
pub(crate) struct CheckpointSpec {
    /// `model_type` of its configuration.
    pub(crate) model_type: &'static str,
    /// Name of the architecture in GGUF files.
    pub(crate) architecture: &'static str,
    /// Parts beside layers: `token_embd` is `embed_tokens`.
    pub(crate) outer: &'static [(&'static str, &'static str)],
    /// Parts of layers: `blk.3.attn_q` is `layers.3.self_attn.q_proj`. A part may stand there more
    /// than once, with the names that it has in checkpoints of different programs.
    pub(crate) layer: &'static [(&'static str, &'static str)],
    /// Tensors of experts, of which each token chooses some.
    pub(crate) experts: Option<ExpertNames>,
    /// Whether weights of norms are 1 less, but of those of states.
    pub(crate) has_norms_around_0: bool,
    /// Whether one matrix is for tokens and for logits, if the configuration does not say.
    pub(crate) is_tied: bool,
    /// Which elements of a head are turned together.
    pub(crate) pairs: &'static str,
    /// The key of the norms' constant.
    pub(crate) epsilon: &'static str,
    /// The key of the unit's activation, and the names that the activation may have.
    pub(crate) activation: (&'static str, &'static [&'static str]),
    /// Biases of products for queries, keys and values.
    pub(crate) biases: AttentionBiases,
    /// Which layers have a window.
    pub(crate) windows: WindowKeys,
    /// Whether the configuration has a scale of scores, and limits of scores and of logits.
    pub(crate) has_score_keys: bool,
    /// Whether layers with a window and those without have angles of their own.
    pub(crate) has_two_rotations: bool,
    /// Values of absent keys.
    pub(crate) defaults: &'static [(&'static str, f64)],
    /// Keys of which one value is computed, that value, and the one of an absent key.
    pub(crate) flags: &'static [(&'static str, bool, bool)],
    /// Keys of numbers of which one is computed, which is also the one of an absent key.
    pub(crate) constants: &'static [(&'static str, f64)],
}

/// Names of the tensors of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpertNames {
    /// What names of one expert's tensors begin with, before its number, and end with: of the
    /// gate, of what it is multiplied with, and of the result.
    pub(crate) each: Option<(&'static str, [&'static str; 3])>,
    /// What names of tensors of all experts begin with.
    pub(crate) joined: &'static str,
    pub(crate) order: ExpertOrder,
    /// Key of the elements of the unit of each expert.
    pub(crate) inner: &'static str,
    /// Key of those of the expert of all tokens.
    pub(crate) shared: Option<&'static str>,
    /// Key of those of layers without experts.
    pub(crate) dense: &'static str,
}

/// How a tensor of all experts has gates and what they are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertOrder {
    /// As rows: all gates of an expert, then the others.
    Rows,
    /// As columns in that order.
    Columns,
    /// As columns in turns. Blocks of MXFP4 are rows in turns.
    ColumnsInTurns,
}

/// A matrix of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertPart {
    Gate,
    Up,
    Down,
}

/// Biases of products for queries, keys and values in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionBiases {
    /// There are none.
    Never,
    Always,
    /// Those of which the key `attention_bias` says whether they are there, and its default.
    ByKey(bool),
}

/// The layers whose attention has a window of `sliding_window` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowKeys {
    None,
    /// All, or those that `layer_types` says.
    Each,
    /// With `use_sliding_window`: all.
    Switched,
    /// With `use_sliding_window`: those that `layer_types` says, else those from
    /// `max_window_layers` on.
    SwitchedFrom,
    /// Those that `layer_types` says, else all but the last one of as many as that key says, or
    /// the architecture.
    Period {
        key: Option<&'static str>,
    },
}

/// The name in a table.
fn names_of<'a>(
    table: &'a [(&'static str, &'static str)],
    part: &'a str,
) -> impl Iterator<Item = &'static str> + 'a {
    let found = table.iter().filter(move |(own, _)| *own == part);
    found.map(|(_, there)| *there)
}

impl CheckpointSpec {
    /// The checkpoint's names of a tensor that GGUF files call `name`, without what all names but
    /// that of the head begin with; none where checkpoints have none. Tensors of experts have
    /// none here.
    pub(crate) fn tensors(&self, name: &str) -> Vec<String> {
        let rest = name.strip_prefix("blk.").and_then(|it| it.split_once('.'));
        let Some((layer, part)) = rest else {
            let Some((place, end)) = name.rsplit_once('.') else {
                return Vec::new();
            };
            let all = names_of(self.outer, place).map(|there| format!("{there}.{end}"));
            return all.collect();
        };
        // A name with its end.
        let whole: Vec<String> = names_of(self.layer, part)
            .map(|there| format!("layers.{layer}.{there}"))
            .collect();
        if !whole.is_empty() {
            return whole;
        }
        let Some((part, end)) = part.rsplit_once('.') else {
            return Vec::new();
        };
        let all = names_of(self.layer, part);
        all.map(|there| format!("layers.{layer}.{there}.{end}"))
            .collect()
    }

    /// The layer, the matrix and the end of the name of a tensor of experts.
    pub(crate) fn expert_part<'a>(&self, name: &'a str) -> Option<(&'a str, ExpertPart, &'a str)> {
        self.experts?;
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, end) = part.split_once('.')?;
        let part = match part {
            "ffn_gate_exps" => ExpertPart::Gate,
            "ffn_up_exps" => ExpertPart::Up,
            "ffn_down_exps" => ExpertPart::Down,
            _ => return None,
        };
        Some((layer, part, end))
    }

    /// The value that an absent key stands for.
    pub(crate) fn default_of(&self, key: &str) -> Option<f64> {
        let found = self.defaults.iter().find(|(own, _)| *own == key);
        found.map(|(_, value)| *value)
    }
}
