//! Live bytes by step, in a bounded number of columns.
//!
//! Invariant: a column has the exact maximum of the total over its steps, and each tenant's part
//! of it at that moment.

/// What a column shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TimeColumn {
    /// The maximum of the total, relative to the bytes that were live before the first step.
    pub(super) total: i128,
    /// Each tenant's part of it; tenants beyond the list have none.
    pub(super) parts: Vec<i128>,
    /// The time of the first step, in microseconds since the first of all.
    pub(super) time_us: u64,
    /// Allocations that failed, and the largest of them.
    pub(super) failures: u64,
    pub(super) largest_failure: u64,
}

/// One operation of a device.
#[derive(Debug, Clone, Copy)]
pub(super) enum ColumnStep {
    /// A change of a tenant's live bytes.
    Change(usize, i128),
    /// A failed allocation of this size.
    Failure(u64),
}

/// Columns of equal numbers of steps, which double when there are too many columns.
#[derive(Debug)]
pub(super) struct TimeColumns {
    limit: usize,
    /// Steps of a column; the last may have less.
    pub(super) width: u64,
    pub(super) steps: u64,
    pub(super) columns: Vec<TimeColumn>,
    total: i128,
    live: Vec<i128>,
    /// The first maximum of the total, relative as in the columns: bytes, step, time.
    pub(super) peak: (i128, u64, u64),
}

impl TimeColumns {
    /// At most `limit` columns, an even number.
    pub(super) fn new(limit: usize) -> TimeColumns {
        TimeColumns {
            limit,
            width: 1,
            steps: 0,
            columns: Vec::new(),
            total: 0,
            live: Vec::new(),
            peak: (0, 0, 0),
        }
    }

    /// Adds a step, at a time that is not before the last one's.
    pub(super) fn add(&mut self, step: ColumnStep, time_us: u64) {
        if let ColumnStep::Change(tenant, bytes) = step {
            if tenant >= self.live.len() {
                self.live.resize(tenant + 1, 0);
            }
            self.live[tenant] += bytes;
            self.total += bytes;
        }
        if self.total > self.peak.0 {
            self.peak = (self.total, self.steps, time_us);
        }
        if self.steps == self.width * self.limit as u64 {
            self.halve();
        }
        if self.steps.is_multiple_of(self.width) {
            self.columns.push(TimeColumn {
                total: self.total,
                parts: self.live.clone(),
                time_us,
                ..TimeColumn::default()
            });
        }
        self.steps += 1;
        let Some(column) = self.columns.last_mut() else {
            return;
        };
        if self.total > column.total {
            column.total = self.total;
            column.parts.clone_from(&self.live);
        }
        if let ColumnStep::Failure(bytes) = step {
            column.failures += 1;
            column.largest_failure = column.largest_failure.max(bytes);
        }
    }

    /// Leaves at most `limit` columns.
    pub(super) fn shrink(&mut self, limit: usize) {
        while self.columns.len() > limit.max(1) {
            self.halve();
        }
    }

    /// Joins each two columns.
    fn halve(&mut self) {
        let mut joined = Vec::with_capacity(self.limit);
        let mut columns = std::mem::take(&mut self.columns).into_iter();
        while let Some(mut first) = columns.next() {
            if let Some(second) = columns.next() {
                if second.total > first.total {
                    (first.total, first.parts) = (second.total, second.parts);
                }
                first.failures += second.failures;
                first.largest_failure = first.largest_failure.max(second.largest_failure);
            }
            joined.push(first);
        }
        self.columns = joined;
        self.width *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::random;
    use super::*;

    #[test]
    fn each_column_has_the_exact_maximum_of_its_steps() {
        let mut random = random();
        for _ in 0..200 {
            let limit = 2 * random.usize(1..8);
            let steps = random.u64(1..500);
            let mut columns = TimeColumns::new(limit);
            let mut totals = Vec::new();
            let mut total = 0;
            let mut failures = 0;
            for time_us in 0..steps {
                if random.u8(..8) == 0 {
                    failures += 1;
                    columns.add(ColumnStep::Failure(7), time_us);
                } else {
                    let bytes = i128::from(random.i32(-100..100));
                    total += bytes;
                    columns.add(ColumnStep::Change(random.usize(..3), bytes), time_us);
                }
                totals.push(total);
            }
            assert_eq!(columns.steps, steps);
            assert!(columns.columns.len() <= limit);
            let chunks = totals.chunks(columns.width as usize);
            assert_eq!(chunks.len(), columns.columns.len());
            for (at, (chunk, column)) in chunks.zip(&columns.columns).enumerate() {
                assert_eq!(Some(&column.total), chunk.iter().max());
                assert_eq!(column.parts.iter().sum::<i128>(), column.total);
                assert_eq!(column.time_us, at as u64 * columns.width);
            }
            let counted: u64 = columns.columns.iter().map(|it| it.failures).sum();
            assert_eq!(counted, failures);
            let peak = totals.iter().max().copied().unwrap().max(0);
            assert_eq!(columns.peak.0, peak);
            if peak > 0 {
                assert_eq!(totals[columns.peak.1 as usize], peak);
            }
        }
    }
}
