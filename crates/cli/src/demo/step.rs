//! Result of one step of the tour.

use serde::Serialize;

/// The result of one step: a row of the table.
#[derive(Debug, Serialize)]
pub(super) struct StepResult {
    pub(super) name: &'static str,
    pub(super) size: String,
    /// From launch until the host sees it complete, the best of three.
    pub(super) seconds: f64,
    /// In ulp of the largest value; absent where nothing is compared.
    pub(super) error_ulp: Option<f64>,
    pub(super) bound_ulp: Option<f64>,
    /// What was found, if it is not a rounding error.
    pub(super) finding: Option<String>,
    pub(super) passed: bool,
}
