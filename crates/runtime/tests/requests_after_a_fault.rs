//! Answer of a process with a failed context: in a separate process, since NVIDIA's driver does not
//! recover from that.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and this one launches a kernel that fails"
)]

mod asking;
mod faulty;

use asking::{ask, outcome};
use fercuda_ledger::{RebootFailure, RebootOutcome};
use fercuda_runtime::{Error, Runtime, RuntimeConfig, SessionConfig};

#[test]
fn failed_context_is_reported_and_not_reset() {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    let requests = runtime.serve_requests(|| true).unwrap();
    let session = runtime
        .session("failing", SessionConfig::default())
        .unwrap();
    assert!(faulty::fail(&session).unwrap().wait().is_err());
    let failed = RebootOutcome::Failed(RebootFailure::Context);
    assert_eq!(outcome(&ask().unwrap()), failed);
    assert_eq!(outcome(&ask().unwrap()), failed, "it was reset");
    // The program itself may reset it.
    drop(session);
    // SAFETY: nothing else of this process is in the context.
    let reset = unsafe { runtime.reset() };
    if !runtime.device().cuda().is_software() {
        let lost = reset.unwrap_err();
        assert!(matches!(lost, Error::Lost { device: 0, .. }), "{lost}");
        assert_eq!(
            outcome(&ask().unwrap()),
            RebootOutcome::Failed(RebootFailure::Lost)
        );
        return;
    }
    assert!(reset.unwrap().was_reset);
    assert!(matches!(
        outcome(&ask().unwrap()),
        RebootOutcome::Rebooted { .. }
    ));
    drop(requests);
}
