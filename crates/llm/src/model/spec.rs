//! Properties in which architectures of decoders differ.

/// What decoders of an architecture have of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecoderSpec {
    /// Which elements are turned together: a value of the choice of the op `rope`.
    pub(crate) pairs: &'static str,
    /// Whether products for queries, keys and values have biases.
    pub(crate) has_biases: bool,
    /// Whether each head of queries and keys has a norm.
    pub(crate) has_head_norms: bool,
    /// Whether attention has a window.
    pub(crate) has_window: bool,
    /// The op of the gated unit.
    pub(crate) unit: &'static str,
}
