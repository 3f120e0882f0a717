//! Counts of the tests of a suite.

/// What one suite came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Count {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Count {
    pub(crate) fn add(&mut self, other: &Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}
