//! Free list of ranges.

use std::collections::BTreeMap;

/// Runs of free addresses or offsets; neighbours are joined.
#[derive(Debug, Default)]
pub(crate) struct FreeRanges(BTreeMap<u64, u64>);

impl FreeRanges {
    /// The first run that holds `len` from a multiple of `align`.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (&start, _) = self.0.iter().find(|&(&start, &have)| {
            let aligned = start.next_multiple_of(align);
            aligned - start <= have && have - (aligned - start) >= len
        })?;
        let aligned = start.next_multiple_of(align);
        self.take_at(aligned, len).then_some(aligned)
    }

    /// Exactly these; whether they were free.
    pub(super) fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&start, &have)) = self.0.range(..=at).next_back() else {
            return false;
        };
        if at.checked_add(len).is_none_or(|end| end > start + have) {
            return false;
        }
        self.0.remove(&start);
        if at > start {
            self.0.insert(start, at - start);
        }
        if start + have > at + len {
            self.0.insert(at + len, start + have - at - len);
        }
        true
    }

    pub(crate) fn give(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &n)) = self.0.range(..start).next_back()
            && before + n == start
        {
            self.0.remove(&before);
            start = before;
            len += n;
        }
        if let Some(n) = self.0.remove(&(start + len)) {
            len += n;
        }
        self.0.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut free = FreeRanges::default();
        free.give(0, 100);
        assert_eq!(free.take(10, 1), Some(0));
        assert_eq!(free.take(10, 16), Some(16));
        free.give(0, 10);
        free.give(16, 10);
        assert_eq!(free.0.into_iter().collect::<Vec<_>>(), [(0, 100)]);
    }
}
