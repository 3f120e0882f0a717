//! Check context of an operation.

use std::sync::Arc;

use crate::order::{OpId, Order};
use crate::report::FindingSink;

/// The check context of an operation: its identity, the order, the sink of findings.
#[derive(Debug, Clone)]
pub struct CheckContext {
    /// This operation.
    pub op: OpId,
    /// The program's order.
    pub order: Arc<Order>,
    /// Where findings go.
    pub sink: Arc<FindingSink>,
}
