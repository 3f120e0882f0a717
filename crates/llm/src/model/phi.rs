//! Phi-3, 3.5 and 4: products for queries, keys and values in one matrix, the gated unit's two in
//! another, and divisors of the frequencies for short and for long contexts.

use super::spec::{DecoderSpec, PLAIN, WindowPattern};

pub(super) const THIRD: DecoderSpec = DecoderSpec {
    windows: WindowPattern::Each,
    ..PLAIN
};
