//! The property of any bytes that are read as a ledger; mutations and cargo-fuzz both call it.

use std::fs;

use fercuda_ledger::{Governed, LedgerDevice, LedgerSnapshot};

use crate::support::{folder, open};

/// A ledger's bytes with something in every table.
pub(crate) fn valid() -> Vec<u8> {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    for name in ["torch", "jax"] {
        let device = LedgerDevice::new(0);
        let tenant = ledger.tenant(name);
        ledger.charge(device, tenant, 1000);
        ledger.local(1).charge(device, tenant, 7, 1000);
        ledger.govern(device, tenant, Governed::Array, 1000);
    }
    fs::read(ledger.path().unwrap()).unwrap()
}

/// Uses everything a snapshot offers, which must not panic.
pub(crate) fn use_all(bytes: &[u8]) {
    let Ok(snapshot) = LedgerSnapshot::from_bytes(bytes) else {
        return;
    };
    let text = fercuda_ledger::prometheus(std::slice::from_ref(&snapshot));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    snapshot.json().unwrap();
    for device in &snapshot.devices {
        device.governed_bytes();
    }
    for tenant in &snapshot.tenants {
        tenant.live_bytes();
    }
}

/// A ledger of which some words are replaced, as a file's size is fixed.
pub(crate) struct PatchedLedger {
    whole: Vec<u8>,
    changed: Vec<u8>,
}

impl PatchedLedger {
    pub(crate) fn new(whole: Vec<u8>) -> Self {
        Self {
            changed: whole.clone(),
            whole,
        }
    }

    /// Uses the ledger with each 12 bytes written into it: four of a word's number, eight of its
    /// value.
    pub(crate) fn holds_for(&mut self, patches: &[u8]) {
        let words = (self.whole.len() / 8) as u32;
        let places = |patch: &[u8; 12]| {
            let [a, b, c, d, ..] = *patch;
            let at = (u32::from_le_bytes([a, b, c, d]) % words) as usize * 8;
            at..at + 8
        };
        let patches = patches.as_chunks::<12>().0;
        for patch in patches {
            self.changed[places(patch)].copy_from_slice(&patch[4..]);
        }
        use_all(&self.changed);
        for patch in patches {
            let at = places(patch);
            self.changed[at.clone()].copy_from_slice(&self.whole[at]);
        }
    }
}
