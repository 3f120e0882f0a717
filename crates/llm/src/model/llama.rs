//! Llama 2 and 3, Mistral, Mixtral, SmolLM2. Files have queries and keys with neighbours turned
//! together; those of Llama 3.1 and later have divisors of the frequencies.

use super::spec::{DecoderSpec, PLAIN, WindowPattern};

pub(super) const SPEC: DecoderSpec = DecoderSpec {
    pairs: "adjacent",
    windows: WindowPattern::Each,
    ..PLAIN
};
