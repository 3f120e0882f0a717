//! Jobs: order, cancellation, failures and destructors.

use super::*;

/// A job that waits on the host until it is released.
fn held_back(session: &Session) -> std::sync::mpsc::Sender<()> {
    let (go_on, wait) = channel();
    let job = session.submit(move |_| {
        wait.recv_timeout(Duration::from_secs(20)).ok();
        Ok(())
    });
    drop(job.unwrap());
    go_on
}

#[test]
fn jobs_complete_in_order_and_can_be_cancelled_before_submission() {
    let bench = Bench::new();
    let session = bench.session("jobs");
    let log = Arc::new(Mutex::new(Vec::new()));
    let go_on = held_back(&session);
    let noted = |number: u32| {
        let log = log.clone();
        session.submit(move |_| {
            log.lock().unwrap().push(number);
            Ok(number)
        })
    };
    let jobs: Vec<_> = (0..200).map(|number| noted(number).unwrap()).collect();
    assert_eq!(jobs[7].status(), Status::Waiting);
    let late = jobs[7].wait_for(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    assert!(jobs[7].cancel());
    assert!(jobs[7].cancel(), "it stays cancelled");
    // A synchronous call comes behind them: it waits for the waiting jobs.
    let waits = {
        let session = session.clone();
        std::thread::spawn(move || {
            let id = session.buffer(&[3], &[1u8, 2, 3]).unwrap();
            session.download::<u8>(id).unwrap()
        })
    };
    go_on.send(()).unwrap();
    assert_eq!(waits.join().unwrap(), [1, 2, 3]);
    let expected: Vec<u32> = (0..200).filter(|number| *number != 7).collect();
    for (number, job) in (0..200).zip(&jobs) {
        let outcome = job.wait();
        match number {
            7 => assert!(
                matches!(outcome, Err(Error::Cancelled { job: 9 })),
                "{outcome:?}"
            ),
            number => assert_eq!(outcome.unwrap(), number),
        }
        assert!(!job.cancel() || number == 7);
    }
    assert_eq!(*log.lock().unwrap(), expected);
    assert!(matches!(jobs[1].wait(), Err(Error::Taken { job: 3 })));
    let panics = session.submit(|_| -> Result<(), Error> { panic!("on purpose") });
    let panicked = panics.unwrap().wait().unwrap_err();
    assert!(panicked.to_string().contains("on purpose"), "{panicked}");
    // Nothing else has failed.
    let ended = session.close().unwrap_err();
    assert!(matches!(ended, Error::Panicked { .. }), "{ended}");
    assert!(session.submit(|_| Ok(())).is_err());
}

#[test]
fn job_that_fails_on_the_host_does_not_stop_later_jobs() {
    let bench = Bench::new();
    let session = bench.session("busy");
    let (go_on, waits) = channel::<()>();
    let busy = session.submit(move |stream| {
        let until_released = move || {
            waits.recv_timeout(Duration::from_secs(60)).ok();
        };
        Ok(stream.host_callback(until_released)?)
    });
    let bad = session.submit(|_| -> Result<(), Error> { Err(Error::Rebooting) });
    let (busy, bad) = (busy.unwrap(), bad.unwrap());
    // Long enough for the submission thread to poll the device.
    let late = bad.wait_for(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    go_on.send(()).unwrap();
    busy.wait().unwrap();
    let failed = bad.wait().unwrap_err();
    assert!(matches!(failed, Error::Rebooting), "{failed}");
    assert_eq!(session.submit(|_| Ok(7)).unwrap().wait().unwrap(), 7);
    session.close().unwrap_err();
}

#[test]
fn job_without_notification_does_not_fail_others() {
    let bench = Bench::new();
    let session = bench.session("captured");
    // The session's jobs were done when that began.
    let capture = session.stream().begin_capture(CaptureMode::Relaxed);
    let unnotified = [(); 2].map(|()| session.submit(|_| Ok(())).unwrap());
    // Also for jobs waited for after the capture has ended.
    for job in unnotified {
        let refused = job.wait_for(LONG).unwrap_err();
        assert!(matches!(refused, Error::Cuda(_)), "{refused}");
    }
    drop(capture.unwrap());
    let notified = [3, 4].map(|it| session.submit(move |_| Ok(it)).unwrap());
    assert_eq!(notified.map(|job| job.wait_for(LONG).unwrap()), [3, 4]);
    session.close().unwrap_err();
}

#[test]
fn job_that_fails_with_another_devices_context_does_not_fail_others() {
    let bench = Bench::new();
    let session = bench.session("healthy");
    let (go_on, waits) = channel::<()>();
    let busy = session.submit(move |stream| {
        let until_released = move || {
            waits.recv_timeout(Duration::from_secs(60)).ok();
        };
        Ok(stream.host_callback(until_released)?)
    });
    let bad = session.submit(|_| -> Result<(), Error> {
        Err(Error::from(fercuda_cuda::Error::Driver(Box::new(
            DriverFailure {
                call: "cuMemcpyPeerAsync",
                code: CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
                doing: "copy from another device".to_owned(),
            },
        ))))
    });
    let behind = session.submit(|_| Ok(7)).unwrap();
    while behind.status() == Status::Waiting {
        std::thread::yield_now();
    }
    go_on.send(()).unwrap();
    busy.unwrap().wait_for(LONG).unwrap();
    let failed = bad.unwrap().wait_for(LONG).unwrap_err();
    assert!(failed.is_sticky(), "{failed}");
    assert_eq!(behind.wait_for(LONG).unwrap(), 7);
    assert_eq!(
        session.submit(|_| Ok(8)).unwrap().wait_for(LONG).unwrap(),
        8
    );
    session.close().unwrap_err();
}

#[test]
fn every_job_is_over_after_synchronize() {
    let bench = Bench::new();
    let session = bench.session("jobs");
    for round in 0..100 {
        let jobs: Vec<_> = (0..50)
            .map(|_| {
                let work = |stream: &Stream| {
                    stream.host_callback(|| std::thread::sleep(Duration::from_micros(50)))?;
                    Ok(())
                };
                session.submit(work).unwrap()
            })
            .collect();
        // From then on only the device has to be waited for.
        while jobs[49].status() == Status::Waiting {
            std::thread::yield_now();
        }
        session.synchronize().unwrap();
        let done = |job: &Job<()>| job.status() == Status::Done;
        assert!(jobs.iter().all(done), "round {round}: {jobs:?}");
    }
}

#[test]
fn job_may_use_its_session_but_not_wait_for_its_other_jobs() {
    let bench = Bench::new();
    let session = bench.session("within");
    let id = session.buffer(&[4], &[0u8; 4]).unwrap();
    let within = session.clone();
    let job = session.submit(move |_| {
        within.fill_bytes(id, 3)?;
        let other = within.buffer(&[4], &[1u8, 2, 3, 4])?;
        within.copy(id, &within, other)?;
        within.free(other)?;
        within.synchronize()?;
        within.download::<u8>(id)
    });
    assert_eq!(job.unwrap().wait().unwrap(), [1, 2, 3, 4]);
    let (give, take) = channel::<fercuda_runtime::Job<()>>();
    let waits = session
        .submit(move |_| take.recv().unwrap().wait())
        .unwrap();
    give.send(session.submit(|_| Ok(())).unwrap()).unwrap();
    let refused = waits.wait().unwrap_err();
    assert!(matches!(refused, Error::WithinJob { job: 3 }), "{refused}");
    // Ended by one of its jobs: the later ones are done all the same.
    let closes = session.clone();
    let last = session.submit(move |_| closes.close()).unwrap();
    last.wait().unwrap();
    assert!(session.buffers().is_err());
    session.close().unwrap();
    assert_eq!(session.held_bytes(), 0);
}

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a value that panics when it is dropped");
        }
    }
}

#[test]
fn destructors_of_a_jobs_values_may_panic() {
    let bench = Bench::new();
    let session = bench.session("grenades");
    for _ in 0..3 {
        let go_on = held_back(&session);
        let held = Grenade;
        let cancelled = session.submit(move |_| {
            std::mem::forget(held);
            Ok(())
        });
        assert!(cancelled.unwrap().cancel());
        // Its values are forgotten with it.
        drop(session.submit(|_| Ok(Grenade)).unwrap());
        go_on.send(()).unwrap();
        let after = session.submit(|_| Ok(5)).unwrap();
        assert_eq!(after.wait_for(Duration::from_secs(20)).unwrap(), 5);
    }
    session.close().unwrap();
}

#[test]
fn jobs_submitted_during_teardown_are_done_or_refused() {
    let bench = Bench::new();
    for _ in 0..50 {
        let session = bench.session("closing");
        let done = Arc::new(AtomicU32::new(0));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                let (session, done) = (session.clone(), done.clone());
                threads.spawn(move || {
                    for _ in 0..20 {
                        let counted = done.clone();
                        let job = session.submit(move |_| {
                            counted.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        });
                        let Ok(job) = job else { return };
                        match job.wait_for(Duration::from_secs(20)) {
                            Ok(()) | Err(Error::GivenUp { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            let session = session.clone();
            threads.spawn(move || session.close().unwrap());
        });
        session.close().unwrap();
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn error_of_a_call_is_not_reported_again_by_close() {
    let bench = Bench::new();
    let session = bench.session("reported once");
    let scale = session.load(&Image::ptx(SCALE)).unwrap();
    let scale = scale.function("scale").unwrap();
    let go_on = held_back(&session);
    let waits = std::thread::spawn({
        let session = session.clone();
        move || {
            // It waits on the host behind that.
            // SAFETY: nothing is launched.
            unsafe { session.launch(&scale, Launch::new(1, 32), &[1.0f64.into()]) }
        }
    });
    std::thread::sleep(Duration::from_millis(5));
    go_on.send(()).unwrap();
    let refused = waits.join().unwrap().unwrap_err();
    assert!(
        refused.to_string().contains("takes 3 arguments"),
        "{refused}"
    );
    session.close().unwrap();
}

struct Unparker(std::thread::Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unparker(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
        }
    }
}

#[test]
fn job_is_a_future() {
    let bench = Bench::new();
    let session = bench.session("future");
    let id = session.buffer(&[4], &[1u16, 2, 3, 4]).unwrap();
    let go_on = held_back(&session);
    let download = session.download_async(id).unwrap();
    let after = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        go_on.send(()).unwrap();
    });
    assert_eq!(block_on(download).unwrap(), [1, 0, 2, 0, 3, 0, 4, 0]);
    after.join().unwrap();
    let go_on = held_back(&session);
    let cancelled = session.download_async(id).unwrap();
    assert!(cancelled.cancel());
    assert!(matches!(block_on(cancelled), Err(Error::Cancelled { .. })));
    go_on.send(()).unwrap();
    session.close().unwrap();
}
