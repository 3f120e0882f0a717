//! Requests to this process, as `fercuda reboot` makes to another.

use std::time::{Duration, Instant};

use fercuda_ledger::{
    Folder, LedgerReader, OwnerState, PendingRequest, Progress, RebootOutcome, RequestError,
};

/// This process's ledger, as other processes find it.
fn ledger() -> LedgerReader {
    let folder = Folder::from_env().unwrap();
    let readers = folder.ledgers().unwrap().into_iter().flatten();
    let mut own = readers.filter(|reader| {
        reader.snapshot().is_ok_and(|it| {
            it.pid == u64::from(std::process::id()) && it.owner == OwnerState::Alive
        })
    });
    own.next().expect("a ledger of this process")
}

/// Requests a reboot of device 0.
pub(crate) fn ask() -> Result<PendingRequest, RequestError> {
    ledger().request_reboot(0, Duration::from_secs(60))
}

/// Waits for the result.
pub(crate) fn outcome(asked: &PendingRequest) -> RebootOutcome {
    let begun = Instant::now();
    loop {
        match asked.progress().unwrap() {
            Progress::Over(outcome) => return outcome,
            Progress::Waiting | Progress::Taken => {}
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no answer");
        std::thread::sleep(Duration::from_millis(5));
    }
}
