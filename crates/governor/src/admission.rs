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

/// Why memory was not admitted.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRefused {
    kind: EventKind,
    limit_bytes: u64,
}

impl AdmissionRefused {
    /// Whether the process's limit refused it, and not the tenant's own.
    pub fn is_of_process(&self) -> bool {
        self.kind == EventKind::Refused
    }
}

impl Governor {
    /// Makes room for memory that the driver is to allocate: charges it to its tenant and to the
    /// process, and shrinks the pool if it must. A refusal charges nothing and is recorded.
    pub fn admit(&self, piece: &GovernedPiece) -> bool {
        let admitted = self.try_admit(piece);
        if let Err(refused) = admitted {
            self.record_refusal(piece, refused);
        }
        admitted.is_ok()
    }

    /// As [`Governor::admit`]; a refusal is not recorded, since another attempt may follow.
    ///
    /// # Errors
    /// It would exceed the limit of the tenant or of the process.
    pub fn try_admit(&self, piece: &GovernedPiece) -> Result<(), AdmissionRefused> {
        let Some(device) = self.charged(piece) else {
            return Ok(());
        };
        let refused = |kind| move |limit_bytes| AdmissionRefused { kind, limit_bytes };
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
        charged.map_err(|it| refused(EventKind::TenantLimit)(it.limit_bytes))?;
        if budget.charge(piece.bytes).is_ok() {
            return Ok(());
        }
        self.release_unused(device);
        let Err(it) = budget.charge(piece.bytes) else {
            return Ok(());
        };
        tenant.refund(piece.bytes);
        Err(refused(EventKind::Refused)(it.limit_bytes))
    }

    /// Records a refusal.
    pub fn record_refusal(&self, piece: &GovernedPiece, refused: AdmissionRefused) {
        let row = LedgerDevice::new(piece.device);
        self.record(refused.kind, row, piece, refused.limit_bytes);
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
