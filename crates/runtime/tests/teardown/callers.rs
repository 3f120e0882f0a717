//! Teardown begun in jobs, host callbacks and deleters.

use super::*;

#[test]
fn deleter_of_lent_memory_may_end_its_session() {
    let bench = Bench::new();
    let lender = bench.session("lender");
    let stream = Stream::new(lender.stream().context()).unwrap();
    let lent = DeviceBuffer::from_host(&[0u32; LEN as usize], &stream).unwrap();
    for others in [0, 2] {
        let session = bench.session("borrower");
        let heard = Arc::new(AtomicBool::new(false));
        let (within, called) = (session.clone(), heard.clone());
        let runtime = bench.runtime.clone();
        let end = move || {
            let refused = runtime.reboot().unwrap_err();
            assert!(matches!(refused, Error::Within { .. }), "{refused}");
            within.close().unwrap();
            called.store(true, Ordering::Release);
        };
        // SAFETY: `lent` outlives the session.
        let id = unsafe { session.import(lent.address(), layout(), end) }.unwrap();
        let (resident, _) = serve(&session, id, small());
        session.free(id).unwrap();
        let resident = Arc::new(resident);
        let stops: Vec<_> = (0..=others)
            .map(|_| {
                let (resident, heard) = (resident.clone(), heard.clone());
                std::thread::spawn(move || {
                    resident.stop(LONG).unwrap();
                    assert!(heard.load(Ordering::Acquire), "it came back before the end");
                })
            })
            .collect();
        for stop in stops {
            soon(move || stop.join()).unwrap();
        }
        soon(move || session.close()).unwrap();
    }
}

#[test]
fn reboot_is_refused_where_it_would_wait_for_itself() {
    let bench = Bench::new();
    let session = bench.session("reboots");
    let lent = words(&session);
    let lent = session.memory(lent).unwrap();
    let other = bench.session("lent to");
    let said = Arc::new(Mutex::new(Vec::new()));
    let (says, runtime) = (said.clone(), bench.runtime.clone());
    let end = move || says.lock().unwrap().push(runtime.reboot().unwrap_err());
    // SAFETY: the test keeps it until both have ended.
    unsafe { other.import(lent.address(), layout(), end) }.unwrap();
    let runtime = bench.runtime.clone();
    let (give, take) = channel::<()>();
    let job = session.submit(move |_| {
        take.recv().ok();
        runtime.reboot()
    });
    let job = job.unwrap();
    let runtime = bench.runtime.clone();
    let rebooted = std::thread::spawn(move || runtime.reboot().unwrap());
    while session.buffers().is_ok() {
        std::thread::yield_now();
    }
    let runtime = bench.runtime.clone();
    let meanwhile = soon(move || runtime.reboot()).unwrap_err();
    assert!(matches!(meanwhile, Error::Rebooting), "{meanwhile}");
    let opened = bench.runtime.session("meanwhile", Default::default());
    assert!(matches!(opened, Err(Error::Rebooting)));
    drop(give);
    assert_eq!(soon(move || rebooted.join()).unwrap().sessions, 2);
    let within = job.wait().unwrap_err();
    assert!(
        matches!(within, Error::Within { doing: "reboot" }),
        "{within}"
    );
    let said = said.lock().unwrap();
    assert!(matches!(said[..], [Error::Within { .. }]), "{said:?}");
    drop(lent);
    bench.runtime.reboot().unwrap();
}

#[test]
fn session_closed_by_a_job_ends_after_its_jobs() {
    let bench = Bench::new();
    for own in [true, false] {
        let (session, other) = (bench.session("closed"), bench.session("closes"));
        let id = words(&session);
        let (begin, begins) = channel::<()>();
        let closes = session.clone();
        let giver = if own { &session } else { &other };
        let first = giver.submit(move |_| {
            begins.recv().ok();
            closes.close()
        });
        let within = session.clone();
        let (go_on, waits) = channel::<()>();
        let last = session.submit(move |_| {
            waits.recv().ok();
            within.download::<u32>(id)
        });
        let (first, last) = (first.unwrap(), last.unwrap());
        drop(begin);
        while session.buffers().is_ok() {
            std::thread::yield_now();
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let waits = {
            let (session, is_over) = (session.clone(), is_over.clone());
            std::thread::spawn(move || {
                session.close().unwrap();
                assert!(is_over.load(Ordering::Acquire), "jobs still wait");
                assert_eq!(session.held_bytes(), 0);
            })
        };
        std::thread::sleep(Duration::from_millis(20));
        is_over.store(true, Ordering::Release);
        drop(go_on);
        soon(move || waits.join()).unwrap();
        first.wait().unwrap();
        assert_eq!(last.wait().unwrap(), [0; LEN as usize]);
        other.close().unwrap();
    }
}

#[test]
fn drain_does_not_weaken_a_stop_command() {
    let bench = Bench::new();
    let session = bench.session("orders");
    let (resident, gate) = serve(&session, words(&session), small());
    let shut = shut(&resident, gate);
    let behind = fill(&resident);
    let resident = Arc::new(resident);
    let abandons = {
        let resident = resident.clone();
        std::thread::spawn(move || resident.abandon().unwrap())
    };
    while !resident.stats().is_stopped {
        std::thread::yield_now();
    }
    // The stop command comes right behind that.
    std::thread::sleep(Duration::from_millis(20));
    let later = resident.stop(Duration::from_millis(1));
    assert!(
        matches!(later, Err(DispatchError::Running { .. })),
        "{later:?}"
    );
    shut.cancel();
    soon(move || abandons.join()).unwrap();
    assert_eq!(shut.wait(LONG), Err(TaskError::Cancelled));
    assert_eq!(behind.wait(LONG), Err(TaskError::Stopped));
    drop(resident);
    session.close().unwrap();
}

#[test]
fn polling_detects_that_the_kernel_has_exited() {
    let bench = Bench::new();
    let session = bench.session("looks");
    let mut set = TaskSet::new();
    // SAFETY: it accesses nothing; its threads exit by themselves, which ends the kernel and is the
    // subject of the test.
    let leave = unsafe { set.add("leave", |t| t.kernel().ret()) };
    let id = words(&session);
    let resident = session.dispatcher(&set, &[id], small()).unwrap();
    let jobs = [(); 2].map(|()| resident.submit(0, leave, &TaskArgs::new()).unwrap());
    let began = std::time::Instant::now();
    while jobs[1].poll().is_none() {
        assert!(began.elapsed() < LONG, "the exit is not detected");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(jobs[0].poll(), Some(Err(TaskError::Stopped)));
    assert_eq!(jobs[1].poll(), Some(Err(TaskError::Stopped)));
    // And by the counters alone.
    let late = resident.submit(0, leave, &TaskArgs::new()).unwrap();
    while resident.stats().dropped < 3 {
        assert!(began.elapsed() < LONG, "the task is not counted as dropped");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(late.poll(), Some(Err(TaskError::Stopped)));
    drop(resident);
    session.close().unwrap();
}

/// Runs code in a host function of another library, known to the driver alone.
fn in_host_function(stream: &Stream, body: impl FnOnce() + Send + 'static) {
    type Body = Box<dyn FnOnce() + Send>;
    unsafe extern "C" fn run(body: *mut std::ffi::c_void) {
        // SAFETY: the box that was leaked below, once.
        let body = unsafe { Box::from_raw(body.cast::<Body>()) };
        // A panic in there was printed, and must not reach the driver.
        drop(catch_unwind(AssertUnwindSafe(*body)));
    }
    let body: *mut Body = Box::into_raw(Box::new(Box::new(body)));
    let driver = stream.context().bind().unwrap();
    // SAFETY: `run` takes the box back, once.
    let queued = unsafe { driver.cuLaunchHostFunc(stream.raw(), Some(run), body.cast()) };
    assert_eq!(queued.unwrap(), CUresult::CUDA_SUCCESS);
}

fn in_callback(stream: &Stream, is_foreign: bool, body: impl FnOnce() + Send + 'static) {
    match is_foreign {
        true => in_host_function(stream, body),
        false => stream.host_callback(body).unwrap(),
    }
}

#[test]
fn session_dropped_in_a_host_callback_ends_behind_its_jobs() {
    let bench = Bench::new();
    for is_foreign in [false, true] {
        let session = bench.session("callback");
        words(&session);
        let (go_on, waits) = channel::<()>();
        let name = session.clone();
        in_callback(session.stream(), is_foreign, move || {
            waits.recv_timeout(LONG).ok();
            drop(name);
        });
        let jobs = [1, 2, 3].map(|it| session.submit(move |_| Ok(it)).unwrap());
        drop(session);
        go_on.send(()).unwrap();
        let done = soon(move || jobs.map(|job| job.wait().unwrap()));
        assert_eq!(done, [1, 2, 3]);
        // This waits until it has ended.
        let runtime = bench.runtime.clone();
        soon(move || runtime.reboot()).unwrap();
    }
}

#[test]
fn host_callback_may_close_the_session_that_waits_for_it() {
    let bench = Bench::new();
    for is_foreign in [false, true] {
        let session = bench.session("callback");
        let (go_on, waits) = channel::<()>();
        let (say, said) = channel();
        let (within, runtime) = (session.clone(), bench.runtime.clone());
        in_callback(session.stream(), is_foreign, move || {
            waits.recv_timeout(LONG).ok();
            let closed = within.close();
            say.send((closed, runtime.reboot())).unwrap();
        });
        let closes = {
            let session = session.clone();
            std::thread::spawn(move || session.close())
        };
        while session.buffers().is_ok() {
            std::thread::yield_now();
        }
        go_on.send(()).unwrap();
        let (closed, rebooted) = said.recv_timeout(LONG).expect("it waits for itself");
        closed.unwrap();
        let refused = rebooted.unwrap_err();
        assert!(matches!(refused, Error::Within { .. }), "{refused}");
        soon(move || closes.join().unwrap()).unwrap();
    }
}

#[test]
fn host_function_that_stops_a_dispatcher_gets_an_error() {
    let bench = Bench::new();
    for is_foreign in [false, true] {
        let session = bench.session("callback");
        let (resident, gate) = serve(&session, words(&session), small());
        let shut = shut(&resident, gate);
        let resident = Arc::new(resident);
        let (say, said) = channel();
        let within = resident.clone();
        in_callback(session.stream(), is_foreign, move || {
            say.send(within.stop(Duration::MAX)).unwrap();
        });
        let refused = said.recv_timeout(LONG).expect("it asks for ever");
        assert!(
            matches!(&refused, Err(DispatchError::Cuda(error)) if error.is_in_callback()),
            "{refused:?}"
        );
        shut.cancel();
        soon(move || resident.stop(LONG)).unwrap();
        soon(move || session.close()).unwrap();
    }
}
