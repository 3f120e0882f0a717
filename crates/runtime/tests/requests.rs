//! Control requests to a process with a runtime, through its ledger: the process sends them to
//! itself, as `fercuda reboot` does to another.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod asking;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use asking::{ask, outcome};
use fercuda_ledger::{RebootOutcome, RequestError};
use fercuda_runtime::{Error, Runtime, RuntimeConfig, SessionConfig};

/// Serialises tests: one runtime accepts a device's requests, and tests run concurrently.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Runtime {
    Runtime::open(RuntimeConfig::default()).unwrap()
}

#[test]
fn accepted_request_reboots_once() {
    let _alone = alone();
    let runtime = runtime();
    let consents = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&consents);
    let requests = runtime.serve_requests(move || {
        counted.fetch_add(1, Relaxed);
        true
    });
    let requests = requests.unwrap();
    let session = runtime.session("served", SessionConfig::default()).unwrap();
    let buffer = session.buffer(&[1000], &[7u8; 1000]).unwrap();
    let RebootOutcome::Rebooted {
        epoch, sessions, ..
    } = outcome(&ask().unwrap())
    else {
        panic!("not rebooted");
    };
    assert_eq!((sessions, runtime.epoch()), (1, 1));
    let ended = session.layout(buffer).unwrap_err();
    assert!(
        matches!(ended, Error::Ended { .. } | Error::Stale(_)),
        "{ended}"
    );
    assert_eq!(runtime.sessions(), [""; 0]);
    // Polled some more times.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!((consents.load(Relaxed), runtime.epoch()), (1, 1));
    let again = outcome(&ask().unwrap());
    let RebootOutcome::Rebooted {
        epoch: next,
        sessions: 0,
        ..
    } = again
    else {
        panic!("{again:?}");
    };
    assert_eq!((next, consents.load(Relaxed)), (epoch + 1, 2));
    drop(requests);
}

#[test]
fn refused_request_keeps_the_sessions() {
    let _alone = alone();
    let runtime = runtime();
    let session = runtime.session("kept", SessionConfig::default()).unwrap();
    let buffer = session.buffer(&[10], &[7u8; 10]).unwrap();
    let refusals: [fn() -> bool; 2] = [|| false, || panic!("as a test wants it")];
    for refusal in refusals {
        let requests = runtime.serve_requests(refusal).unwrap();
        // Twice, as a panic must not end the polling thread.
        for _ in 0..2 {
            assert_eq!(outcome(&ask().unwrap()), RebootOutcome::Refused);
        }
        drop(requests);
    }
    assert_eq!(runtime.epoch(), 0);
    assert_eq!(session.download::<u8>(buffer).unwrap(), [7; 10]);
}

#[test]
fn requests_fail_unless_they_are_enabled() {
    let _alone = alone();
    let runtime = runtime();
    assert!(matches!(
        ask(),
        Err(RequestError::TakesNone { device: 0, .. })
    ));
    let requests = runtime.serve_requests(|| true).unwrap();
    let other = self::runtime();
    let refused = other.serve_requests(|| true).unwrap_err();
    assert!(matches!(refused, Error::Served { device: 0 }), "{refused}");
    drop(requests);
    assert!(matches!(ask(), Err(RequestError::TakesNone { .. })));
    // Another runtime may accept requests now.
    let requests = other.serve_requests(|| true).unwrap();
    let RebootOutcome::Rebooted { .. } = outcome(&ask().unwrap()) else {
        panic!("not rebooted");
    };
    assert_eq!((runtime.epoch(), other.epoch()), (0, 1));
    drop((requests, other, runtime));
    assert!(matches!(
        ask(),
        Err(RequestError::NoRuntime { device: 0, .. })
    ));
}

#[test]
fn job_that_a_reboot_waits_for_may_drop_the_request_guard() {
    let _alone = alone();
    let runtime = runtime();
    let (is_asked, asked) = channel();
    let requests = runtime.serve_requests(move || is_asked.send(()).is_ok());
    let requests = requests.unwrap();
    let session = runtime.session("within", SessionConfig::default()).unwrap();
    let (is_over, over) = channel();
    let job = session.submit(move |_| {
        asked.recv_timeout(Duration::from_secs(60)).unwrap();
        // The reboot should wait for this job by now; one that does not yet will wait later.
        std::thread::sleep(Duration::from_millis(200));
        drop(requests);
        is_over.send(()).unwrap();
        Ok(())
    });
    drop(job.unwrap());
    let request = ask().unwrap();
    if over.recv_timeout(Duration::from_secs(60)).is_err() {
        // Joining them would block as well.
        std::mem::forget((session, runtime));
        panic!("the job waits for the reboot, and the reboot for the job");
    }
    let rebooted = outcome(&request);
    assert!(
        matches!(rebooted, RebootOutcome::Rebooted { sessions: 1, .. }),
        "{rebooted:?}"
    );
    assert_eq!(runtime.epoch(), 1);
    // No more are accepted, as soon as that one is answered.
    let begun = Instant::now();
    while !matches!(ask(), Err(RequestError::TakesNone { .. })) {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it is served still"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
