//! A ledger in a folder of its own, and reproducible random numbers.

use fercuda_ledger::{Folder, Ledger, LedgerSnapshot};

/// A temporary folder, and its ledger folder.
pub(crate) fn folder() -> (tempfile::TempDir, Folder) {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::at(&root.path().join("ledgers")).unwrap();
    (root, folder)
}

/// A ledger with a file in `folder`.
pub(crate) fn open(folder: &Folder) -> Ledger {
    let (ledger, warning) = Ledger::open_in(folder, None);
    assert!(warning.is_none(), "{warning:?}");
    ledger
}

/// Live bytes of all devices.
pub(crate) fn live_bytes(snapshot: &LedgerSnapshot) -> u64 {
    snapshot.devices.iter().map(|row| row.live_bytes).sum()
}

/// Random numbers, from `FERCUDA_SEED` or a fresh seed, which a failing test
/// prints.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Random {
        Random(fercuda_trials::seed())
    }

    /// Another generator that does not repeat this one.
    pub(crate) fn split(&mut self) -> Random {
        Random(self.next())
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
