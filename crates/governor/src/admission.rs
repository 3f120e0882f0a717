//! Admission of memory that the driver allocates: charging it, and refunding it.
//!
//! Elsewhere: the records of such memory ([`crate::governed`]).

use std::time::Duration;

use fercuda_ledger::{EventKind, Governed, LedgerDevice, LedgerEvent, Tenant};

use crate::device::GovernedDevice;
use crate::governed::{GovernedKey, GovernedPiece};
use crate::governor::Governor;
use crate::note::id;

/// How long a request that would be refused waits for the device's work on freed memory.
const PATIENCE: Duration = Duration::from_secs(1);

impl Governor {
    /// Makes room for memory that the driver is to allocate: charges it to its tenant and to the
    /// process, and shrinks the pool if it must. A refusal charges nothing and is recorded.
    pub fn admit(&self, piece: &GovernedPiece) -> bool {
        let Some(device) = self.charged(piece) else {
            return true;
        };
        let budget = device.budget();
        let tenant = budget.tenant(id(piece.tenant));
        let charged = tenant.charge(piece.bytes).or_else(|refused| {
            // The tenant's graphs may hold memory that none needs.
            let trimmed = self.trim_graphs(device);
            if trimmed > 0 {
                tenant.charge(piece.bytes)
            } else {
                Err(refused)
            }
        });
        if let Err(refused) = charged {
            self.record(
                EventKind::TenantLimit,
                device.row,
                piece,
                refused.limit_bytes,
            );
            return false;
        }
        if budget.charge(piece.bytes).is_ok() {
            return true;
        }
        self.release_unused(device);
        let Err(refused) = budget.charge(piece.bytes) else {
            return true;
        };
        tenant.refund(piece.bytes);
        self.record(EventKind::Refused, device.row, piece, refused.limit_bytes);
        false
    }

    /// Returns to the driver what neither the pool nor graphs need, waiting for freed memory that
    /// the device still uses; returns whether there was any.
    pub(crate) fn release_unused(&self, device: &GovernedDevice) -> bool {
        let released = device.trim_within(PATIENCE);
        let trimmed = self.trim_graphs(device);
        released > 0 || trimmed > 0
    }

    /// The device with the budget that a piece is charged to.
    fn charged(&self, piece: &GovernedPiece) -> Option<&GovernedDevice> {
        let device = piece.is_on_device().then(|| self.device(piece.device));
        device.flatten()
    }

    /// Reverts an admission: the memory was not made.
    pub fn cancel_admission(&self, piece: &GovernedPiece) {
        if let Some(device) = self.charged(piece) {
            device.budget().refund(piece.bytes);
            device.budget().tenant(id(piece.tenant)).refund(piece.bytes);
        }
    }

    /// Charges admitted memory that was made.
    pub fn made(&self, key: GovernedKey, piece: GovernedPiece) {
        self.count(&piece);
        if let Some(before) = self.governed.insert(key, piece) {
            self.ended(&before);
        }
    }

    /// Records code given to the driver, which takes memory for it at any later time.
    pub fn record_code(&self, key: GovernedKey, device: u32, bytes: u64) {
        let piece = GovernedPiece {
            // Libraries belong to no context.
            context: None,
            device,
            tenant: Tenant::OTHERS,
            kind: Governed::Module,
            bytes,
        };
        self.governed.insert(key, piece);
    }

    /// Charges admitted physical memory that was made.
    pub fn charge_physical(&self, handle: u64, piece: GovernedPiece) {
        self.count(&piece);
        if let Some(before) = self.governed.created(handle, piece) {
            self.ended(&before);
        }
    }

    fn count(&self, piece: &GovernedPiece) {
        let row = LedgerDevice::new(piece.device);
        self.ledger
            .govern(row, piece.tenant, piece.kind, piece.bytes);
        // It was allocated by the driver instead of the pool.
        let yields = || self.device(piece.device).is_some_and(|it| it.yields);
        if piece.kind == Governed::Linear && !yields() {
            self.record(EventKind::Fallback, row, piece, 0);
        }
    }

    /// Refunds a piece that was released.
    pub fn ended(&self, piece: &GovernedPiece) {
        // Code is charged when the driver's figures show it.
        if piece.kind == Governed::Module {
            return;
        }
        let row = LedgerDevice::new(piece.device);
        self.ledger
            .release(row, piece.tenant, piece.kind, piece.bytes);
        self.cancel_admission(piece);
    }

    fn record(&self, kind: EventKind, device: LedgerDevice, piece: &GovernedPiece, detail: u64) {
        self.ledger.record(LedgerEvent {
            kind,
            device,
            tenant: piece.tenant,
            bytes: piece.bytes,
            address: 0,
            detail,
            stream: 0,
            thread: 0,
        });
    }
}
