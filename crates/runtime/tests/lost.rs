//! A dispatcher that is lost: in a separate process, since its kernel stays resident.
#![expect(unsafe_code, reason = "its task runs for ever")]

mod wild;

use std::sync::mpsc::channel;
use std::time::Duration;

use fercuda_runtime::{
    DispatchError, DispatchOptions, Dtype, Error, Layout, Regime, Runtime, RuntimeConfig,
    SessionConfig, TaskArgs, TaskBuffer, TaskError,
};

#[test]
fn lost_dispatcher_is_reported_and_never_waited_for() {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    let open = |name| runtime.session(name, SessionConfig::default()).unwrap();
    let (session, other) = (open("lost"), open("other"));
    let layout = Layout::contiguous(Dtype::U32, &[64]).unwrap();
    let id = session.buffer(&[64], &[0u32; 64]).unwrap();
    for regime in [Regime::Managed, Regime::Driver, Regime::Pinned] {
        session.alloc(layout, regime).unwrap();
        other.alloc(layout, regime).unwrap();
    }
    let (set, wild) = wild::wild();
    let options = DispatchOptions {
        watchdog: Duration::from_millis(50),
        ..DispatchOptions::default()
    };
    let resident = session.dispatcher(&set, &[id], options).unwrap();
    let arguments = TaskArgs::new().span(TaskBuffer(0), 0..4);
    let job = resident.submit(0, wild, &arguments).unwrap();
    let (give, take) = channel();
    std::thread::spawn(move || {
        let is_lost = |error: &Error| matches!(error, Error::Dispatch(error) if matches!(**error, DispatchError::Lost));
        let rebooted = runtime.reboot().unwrap_err();
        assert!(is_lost(&rebooted), "{rebooted}");
        assert_eq!(job.wait(Duration::ZERO), Err(TaskError::Lost));
        assert!(session.buffers().is_err() && other.buffers().is_err());
        // Nor later, without any handle.
        drop((resident, job, session, other));
        let again = runtime.reboot().unwrap_err();
        assert!(matches!(again, Error::Resident { device: 0 }), "{again}");
        give.send(runtime).unwrap();
    });
    let runtime = take.recv_timeout(Duration::from_secs(60)).unwrap();
    // Exits without the driver's teardown, which waits for the device.
    std::mem::forget(runtime);
}
