//! Properties in which architectures of decoders differ.

/// What decoders of an architecture have of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecoderSpec {
    /// Which elements are turned together: a value of the choice of the op `rope`.
    pub(crate) pairs: &'static str,
    /// Products with biases, which are read of any architecture where a file has them.
    pub(crate) biases: BiasedProducts,
    /// Norms of each head of queries and keys.
    pub(crate) head_norms: HeadNorms,
    /// Which layers have a window.
    pub(crate) windows: WindowPattern,
    /// Base of the angles of layers with a window, where the file has none; `None` for that of all.
    pub(crate) window_base: Option<f64>,
    /// The last layer of so many is without rotation.
    pub(crate) unturned: Option<u64>,
    /// Most positions that are computed as the model does.
    pub(crate) most_context: Option<u64>,
    /// How experts are weighted.
    pub(crate) weighting: ExpertWeighting,
    /// Whether each head has a score without value.
    pub(crate) has_sinks: bool,
    /// The op of the gated unit.
    pub(crate) unit: &'static str,
    /// Name of the norm before the gated unit.
    pub(crate) unit_norm: &'static str,
    /// Whether what attention and the unit give has norms, before it is added.
    pub(crate) has_post_norms: bool,
    /// Whether embeddings are times the root of their length.
    pub(crate) is_scaled: bool,
    /// Limits of scores of attention and of logits, where the file has none; 0 for no limit.
    pub(crate) limits: [f64; 2],
    /// Number of layers of the one size whose scores are scaled by hidden elements a head.
    pub(crate) wide_scale_layers: Option<u64>,
    /// Whether pairs between which YaRN goes over are rounded to whole ones.
    pub(crate) has_whole_yarn: bool,
    /// The recurrence of layers without attention.
    pub(crate) recurrence: Option<RecurrenceRule>,
    /// Whether there are layers with attention.
    pub(crate) has_attention: bool,
    /// Whether layers have a gated unit.
    pub(crate) has_unit: bool,
    /// Whether what attention gives is times the sigmoid of a gate, whose rows in the matrix of
    /// queries are behind those of each head.
    pub(crate) has_attention_gate: bool,
}

/// How the states of layers without attention go from token to token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrenceRule {
    /// The gated delta rule, in all layers but the last one of so many, if a file does not say.
    Delta { period: u64 },
    /// The scan of Mamba-2, in all layers.
    Scan,
}

/// Products that an architecture adds biases to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BiasedProducts {
    None,
    /// Those for queries, keys and values.
    Attention,
    /// These, the one behind attention, and those of experts.
    All,
}

/// Norms of heads of queries and keys, before they are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    None,
    Weighted,
    /// Of layers with a rotation, without weights; not of models with so many experts.
    Plain {
        unless_experts: u64,
    },
}

/// Weights of the experts that a token chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertWeighting {
    /// The softmax of their scores, by which results are multiplied.
    Softmax,
    /// The sigmoid of each score, by which what the expert reads is multiplied.
    SigmoidBefore,
}

/// Layers whose attention has a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowPattern {
    None,
    /// Each, if the file has a window.
    Each,
    /// All but the last one of so many, with so many positions if the file does not say.
    Period {
        layers: u64,
        positions: u64,
    },
}

/// A decoder as most are: norms before attention and the unit, SwiGLU, scores of all positions.
pub(super) const PLAIN: DecoderSpec = DecoderSpec {
    pairs: "halves",
    biases: BiasedProducts::None,
    head_norms: HeadNorms::None,
    windows: WindowPattern::None,
    window_base: None,
    unturned: None,
    most_context: None,
    weighting: ExpertWeighting::Softmax,
    has_sinks: false,
    unit: "swiglu",
    unit_norm: "ffn_norm",
    has_post_norms: false,
    is_scaled: false,
    limits: [0.0, 0.0],
    wide_scale_layers: None,
    has_whole_yarn: true,
    recurrence: None,
    has_attention: true,
    has_unit: true,
    has_attention_gate: false,
};
