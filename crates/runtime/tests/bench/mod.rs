//! A device for one test at a time; at its end no session holds anything, by the ledger, and the
//! device's checks have found nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fercuda_runtime::{Runtime, RuntimeConfig, Session, SessionConfig};

/// A runtime that one test has exclusively.
pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::on(0).unwrap()
    }

    /// `None` if there is no such device.
    pub(crate) fn on(device: u32) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut config = fercuda_softgpu::control::config();
        (config.devices, config.checks) = (2, true);
        // Without effect from the second test on.
        let _set = fercuda_softgpu::control::configure(config);
        let select = None;
        let runtime = Runtime::open(RuntimeConfig { select, device });
        Some(Self {
            runtime: runtime.ok()?,
            _alone: alone,
        })
    }

    pub(crate) fn session(&self, name: &str) -> Session {
        self.runtime
            .session(name, SessionConfig::default())
            .unwrap()
    }

    pub(crate) fn is_software(&self) -> bool {
        self.runtime.device().cuda().is_software()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(self.runtime.sessions(), [""; 0]);
        assert!(self.runtime.is_governed());
        for holder in self.runtime.holders() {
            assert_eq!(holder.pooled_bytes, 0, "{holder:?}");
            assert_eq!(holder.governed_bytes, 0, "{holder:?}");
        }
        if self.is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
    }
}
