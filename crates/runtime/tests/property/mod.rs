//! The properties of any plan and of any metadata of Triton; mutations and cargo-fuzz both call
//! them.

use fercuda_runtime::{Need, Plan, TritonMetadata};

/// A need a line: bytes, alignment, first step, step behind the last.
fn needs(text: &str) -> Vec<Need> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Need {
            bytes: number()?,
            align_bytes: number()?,
            from: number()? as u32,
            until: number()? as u32,
        })
    });
    lines.take(300).collect()
}

/// Places the needs of a text: those that are live together overlap nowhere.
pub(crate) fn holds_for_plan(bytes: &[u8]) {
    let needs = needs(&String::from_utf8_lossy(bytes));
    let Ok(plan) = Plan::of(&needs) else {
        return;
    };
    let placed: Vec<(&Need, u64)> = needs.iter().zip(plan.begins().iter().copied()).collect();
    for (at, (need, begin)) in placed.iter().enumerate() {
        assert!(begin.is_multiple_of(need.align_bytes));
        // What is live at no step takes nothing of the arena.
        let is_placed = need.bytes > 0 && need.from < need.until;
        assert!(!is_placed || begin + need.bytes <= plan.bytes());
        for (other, other_begin) in &placed[..at] {
            let meet = need.from.max(other.from) < need.until.min(other.until);
            let apart = begin + need.bytes <= *other_begin
                || other_begin + other.bytes <= *begin
                || need.bytes == 0
                || other.bytes == 0;
            assert!(
                !meet || apart,
                "{need:?} at {begin} and {other:?} at {other_begin}"
            );
        }
    }
}

/// Reads or refuses a text as metadata.
pub(crate) fn holds_for_metadata(bytes: &[u8]) {
    if let Err(error) = TritonMetadata::parse(&String::from_utf8_lossy(bytes)) {
        assert!(!error.to_string().is_empty());
    }
}
