//! Tokens that are chosen, and how.

/// A token of a row of logits.
#[derive(Debug, Default)]
pub(crate) struct ChosenToken {
    pub(crate) token: u32,
    /// By the model alone.
    pub(crate) log_probability: Option<f32>,
    pub(crate) top: Vec<(u32, f32)>,
}

/// How tokens are chosen; of several rows the last of their ways serves all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowChoice {
    /// The most likely ones.
    Largest,
    /// By settings on the device.
    Sampled,
    /// By their logits on the host.
    OnHost,
}
