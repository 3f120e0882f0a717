//! Mamba-2: layers with states alone, without attention and gated units.

use super::spec::{DecoderSpec, PLAIN, RecurrenceRule};

pub(super) const SECOND: DecoderSpec = DecoderSpec {
    recurrence: Some(RecurrenceRule::Scan),
    has_attention: false,
    has_unit: false,
    ..PLAIN
};
