//! Charges of a device that no call states, derived from the driver's figures.
//!
//! Elsewhere: reading those figures ([`crate::reconcile`]).

use std::sync::atomic::AtomicU64;

use crate::graph_charges::GraphCharges;

/// The charges derived from a device's figures, kept between two readings.
#[derive(Debug, Default)]
pub(crate) struct DeviceAccount {
    /// Taken by contexts when they were created.
    pub(crate) contexts: AtomicU64,
    /// Charged as code.
    pub(crate) code: AtomicU64,
    /// Charged for graphs, and for the driver's own pools.
    pub(crate) graphs: GraphCharges,
    pub(crate) pools: AtomicU64,
}
