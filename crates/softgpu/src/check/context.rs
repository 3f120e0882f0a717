//! Check context of an operation.

use std::sync::Arc;

use crate::order::{OpId, Order};
use crate::report::FindingSink;

/// What is reported besides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Accesses that are volatile count as plain ones in races.
    pub volatile_races: bool,
    /// Plain writes of the same value by threads that nothing orders.
    pub same_values: bool,
}

/// The check context of an operation: its identity, the order, the sink of findings.
#[derive(Debug, Clone)]
pub struct CheckContext {
    /// This operation.
    pub op: OpId,
    /// The program's order.
    pub order: Arc<Order>,
    /// Where findings go.
    pub sink: Arc<FindingSink>,
    /// What is reported besides.
    pub options: CheckOptions,
}
