//! Memory ranges that programs' allocators have lent.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::lock::lock;

/// The ranges that the allocators of a runtime's sessions have lent, from begin to end address.
pub(crate) type LentRanges = Mutex<BTreeMap<u64, u64>>;

/// Adds a range, or returns the existing one that it would overlap.
pub(crate) fn add(lent_ranges: &LentRanges, from: u64, until: u64) -> Option<(u64, u64)> {
    let mut lent_ranges = lock(lent_ranges);
    let below = lent_ranges.range(..until).next_back();
    let over = below.filter(|(_, end)| **end > from);
    let over = over.map(|(from, until)| (*from, *until));
    if over.is_none() {
        lent_ranges.insert(from, until);
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap() {
        let lent_ranges = LentRanges::default();
        let mut random = fastrand::Rng::new();
        let seed = random.get_seed();
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for _ in 0..2000 {
            let from = random.u64(1..300);
            let until = from + random.u64(1..20);
            let over = add(&lent_ranges, from, until);
            let is_over = |it: &&(u64, u64)| it.0 < until && from < it.1;
            match over {
                Some(other) => assert!(kept.iter().filter(is_over).any(|it| *it == other)),
                None => {
                    assert!(!kept.iter().any(|it| is_over(&it)), "seed {seed}");
                    kept.push((from, until));
                }
            }
            if kept.len() > 8 {
                let (from, _) = kept.swap_remove(random.usize(0..kept.len()));
                lock(&lent_ranges).remove(&from);
            }
        }
    }
}
