//! Teardown beside other threads, and deferred release.

use super::*;

#[test]
fn concurrent_close_waits_for_the_dispatchers() {
    let bench = Bench::new();
    for reboots in [false, true] {
        let session = bench.session("twice");
        let (resident, gate) = serve(&session, words(&session), small());
        let shut = shut(&resident, gate);
        let first = {
            let session = session.clone();
            std::thread::spawn(move || Session::close_all(&[session]).unwrap())
        };
        while !resident.stats().is_stopped {
            std::thread::yield_now();
        }
        // So that the first thread waits for the kernel by then.
        std::thread::sleep(Duration::from_millis(20));
        let is_over = Arc::new(AtomicBool::new(false));
        let second = {
            let (session, is_over) = (session.clone(), is_over.clone());
            let runtime = bench.runtime.clone();
            std::thread::spawn(move || {
                match reboots {
                    true => drop(runtime.reboot().unwrap()),
                    false => session.close().unwrap(),
                }
                assert!(is_over.load(Ordering::Acquire), "the kernel still runs");
                assert_eq!(session.held_bytes(), 0);
            })
        };
        std::thread::sleep(Duration::from_millis(50));
        is_over.store(true, Ordering::Release);
        shut.cancel();
        soon(move || first.join()).unwrap();
        soon(move || second.join()).unwrap();
    }
}

#[test]
fn job_that_closes_another_session_does_not_wait_for_it() {
    let bench = Bench::new();
    for has_dispatcher in [false, true] {
        let (session, other) = (bench.session("closed"), bench.session("closes"));
        let id = words(&session);
        load(&bench, &small());
        let (give, waits) = channel::<()>();
        let held_back = move || {
            waits.recv_timeout(LONG * 2).ok();
        };
        session.stream().host_callback(held_back).unwrap();
        // It runs behind that.
        let resident = has_dispatcher.then(|| serve(&session, id, small()).0);
        let closes = session.clone();
        let first = other.submit(move |_| closes.close()).unwrap();
        let next = other.submit(move |_| Ok(give.send(()).is_ok())).unwrap();
        soon(move || first.wait()).unwrap();
        assert!(soon(move || next.wait()).unwrap());
        soon(move || session.close()).unwrap();
        drop(resident);
        other.close().unwrap();
    }
}

#[test]
fn reboot_waits_for_the_jobs_of_a_session_without_handles() {
    let bench = Bench::new();
    let (session, other) = (bench.session("nameless"), bench.session("drops"));
    words(&session);
    let (begin, begins) = channel::<()>();
    let held_back = move || {
        begins.recv_timeout(LONG).ok();
    };
    session.stream().host_callback(held_back).unwrap();
    // More than the window: the last one waits on the host.
    for _ in 0..100 {
        session.submit(|_| Ok(())).unwrap();
    }
    let (go_on, waits) = channel::<()>();
    let last = session.submit(move |_| {
        waits.recv_timeout(LONG).ok();
        Ok(())
    });
    let dropped = other.submit(move |_| {
        drop(session);
        Ok(())
    });
    begin.send(()).unwrap();
    soon(move || dropped.unwrap().wait()).unwrap();
    let (say, said) = channel();
    let rebooted = {
        let runtime = bench.runtime.clone();
        std::thread::spawn(move || say.send(runtime.reboot().map(drop)).unwrap())
    };
    let runtime = bench.runtime.clone();
    let is_in = move || {
        let opened = runtime.session("meanwhile", Default::default());
        matches!(opened, Err(Error::Rebooting))
    };
    soon(move || {
        while !is_in() {
            std::thread::yield_now();
        }
    });
    // Time for a thread that wrongly does not wait.
    let early = said.recv_timeout(Duration::from_millis(200));
    go_on.send(()).unwrap();
    assert!(early.is_err(), "a job still waits");
    said.recv_timeout(LONG).unwrap().unwrap();
    rebooted.join().unwrap();
    last.unwrap().wait().unwrap();
}

/// A dispatcher outside sessions, dropped by a host callback.
fn drop_in_callback(bench: &Bench, options: DispatchOptions, keeps_busy: bool) {
    let context = bench.runtime.context();
    let (set, gate) = gate::gated();
    let mut buffers = TaskBuffers::new();
    buffers.host(Arc::new(SharedWords::new(&context, 4).unwrap()));
    let dispatcher = Dispatcher::start(&context, &set, buffers, options).unwrap();
    if keeps_busy {
        let arguments = span(0..1).steps(u32::MAX);
        let busy = dispatcher.submit(0, gate, &arguments).unwrap();
        while !busy.has_begun() {
            std::thread::yield_now();
        }
    }
    let stream = Stream::new(&context).unwrap();
    let (dropped, is_dropped) = channel();
    let callback = move || {
        drop(dispatcher);
        dropped.send(()).unwrap();
    };
    stream.host_callback(callback).unwrap();
    is_dropped.recv_timeout(LONG).unwrap();
    // Not dropped here, since that waits, and releases ended kernels.
    std::mem::forget(stream);
}

#[test]
fn reboot_waits_for_kernels_that_were_requested_to_stop() {
    let bench = Bench::new();
    for keeps_busy in [false, true] {
        // The busy kernel runs for so long.
        let watchdog = Duration::from_secs(8);
        let options = DispatchOptions {
            watchdog,
            ..small()
        };
        drop_in_callback(&bench, options, keeps_busy);
        let runtime = bench.runtime.clone();
        soon(move || runtime.reboot()).unwrap();
    }
}

#[test]
fn allocation_does_not_wait_for_another_threads_release() {
    let bench = Bench::new();
    let lender = bench.session("lender");
    let stream = Stream::new(lender.stream().context()).unwrap();
    let lent = DeviceBuffer::from_host(&[0u32; LEN as usize], &stream).unwrap();
    let session = bench.session("borrower");
    let (enter, entered) = channel();
    let (go_on, waits) = channel::<()>();
    let waits = Mutex::new(waits);
    let end = move || {
        enter.send(()).unwrap();
        waits.lock().unwrap().recv_timeout(LONG * 2).ok();
    };
    // SAFETY: `lent` outlives the session.
    let id = unsafe { session.import(lent.address(), layout(), end) }.unwrap();
    let (resident, gate) = serve(&session, id, small());
    let shut = shut(&resident, gate);
    session.free(id).unwrap();
    let resident = Arc::new(resident);
    let (say, said) = channel();
    let within = resident.clone();
    let abandons = move || say.send(within.abandon()).unwrap();
    session.stream().host_callback(abandons).unwrap();
    // From now on an allocation polls its state.
    said.recv_timeout(LONG).unwrap().unwrap();
    let stops = {
        let resident = resident.clone();
        std::thread::spawn(move || resident.stop(LONG).unwrap())
    };
    shut.cancel();
    entered.recv_timeout(LONG).unwrap();
    let allocates = session.clone();
    soon(move || allocates.alloc(layout(), Regime::Pool)).unwrap();
    go_on.send(()).unwrap();
    soon(move || stops.join()).unwrap();
    drop(resident);
    session.close().unwrap();
}

#[test]
fn close_waits_for_another_threads_release() {
    let bench = Bench::new();
    let lender = bench.session("lender");
    let stream = Stream::new(lender.stream().context()).unwrap();
    let lent = DeviceBuffer::from_host(&[0u32; LEN as usize], &stream).unwrap();
    let session = bench.session("borrower");
    let (enter, entered) = channel();
    let (go_on, waits) = channel::<()>();
    let waits = Mutex::new(waits);
    let is_back = Arc::new(AtomicBool::new(false));
    let tells = is_back.clone();
    let end = move || {
        enter.send(()).unwrap();
        waits.lock().unwrap().recv_timeout(LONG * 2).ok();
        tells.store(true, Ordering::Release);
    };
    // SAFETY: `lent` outlives the session.
    let id = unsafe { session.import(lent.address(), layout(), end) }.unwrap();
    let (resident, _) = serve(&session, id, small());
    session.free(id).unwrap();
    let stops = std::thread::spawn(move || resident.stop(LONG).unwrap());
    entered.recv_timeout(LONG).unwrap();
    let (say, said) = channel();
    let closed = session.clone();
    let closes = std::thread::spawn(move || {
        closed.close().unwrap();
        say.send(is_back.load(Ordering::Acquire)).unwrap();
    });
    // Time for a thread that wrongly does not wait.
    let early = said.recv_timeout(Duration::from_millis(200));
    go_on.send(()).unwrap();
    let was_back = early.or_else(|_| said.recv_timeout(LONG)).unwrap();
    assert!(
        was_back,
        "it has ended, and memory of others is not given back"
    );
    soon(move || (closes.join().unwrap(), stops.join().unwrap()));
}

#[test]
fn reboot_waits_for_a_stopping_kernel_and_for_no_other() {
    let bench = Bench::new();
    // A deferred free exists, which is unrelated.
    let asked = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let (counts, ends) = (asked.clone(), is_over.clone());
    destroy_later(move || {
        counts.fetch_add(1, Ordering::Relaxed);
        ends.load(Ordering::Acquire)
    });
    let stay = bench.runtime.context().guard_resident_kernel();
    let runtime = bench.runtime.clone();
    let refused = soon(move || runtime.reboot()).unwrap_err();
    assert!(matches!(refused, Error::Resident { .. }), "{refused}");
    // A waiting thread polls every millisecond.
    assert!(asked.load(Ordering::Relaxed) < 100, "it was waited for");
    is_over.store(true, Ordering::Release);
    stay.note_stop_requested(LONG * 2);
    let (say, said) = channel();
    let runtime = bench.runtime.clone();
    let reboots = std::thread::spawn(move || say.send(runtime.reboot()).unwrap());
    // Time for a thread that wrongly does not wait.
    let early = said.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "{early:?}");
    drop(stay);
    said.recv_timeout(LONG).unwrap().unwrap();
    reboots.join().unwrap();
    // And for that not for ever.
    let stay = bench.runtime.context().guard_resident_kernel();
    stay.note_stop_requested(Duration::from_millis(5));
    let runtime = bench.runtime.clone();
    let refused = soon(move || runtime.reboot()).unwrap_err();
    assert!(matches!(refused, Error::Resident { .. }), "{refused}");
    drop(stay);
}

#[test]
fn each_dispatcher_is_waited_for_also_if_user_code_panics() {
    let bench = Bench::new();
    let session = bench.session("panics");
    let (idle, _) = serve(&session, words(&session), small());
    let (busy, gate) = serve(&session, words(&session), small());
    let shut = shut(&busy, gate);
    let me = std::thread::current().id();
    // The next thread that waits runs it: the one that ends the first dispatcher.
    destroy_later(move || std::thread::current().id() != me && panic!("on purpose"));
    let (say, said) = channel();
    let closed = session.clone();
    let closes = std::thread::spawn(move || {
        let closed = catch_unwind(AssertUnwindSafe(|| closed.close()));
        say.send(closed.is_err()).unwrap();
    });
    // Time for a thread that wrongly does not wait.
    let early = said.recv_timeout(Duration::from_millis(200));
    shut.cancel();
    assert!(early.is_err(), "it has ended, and a kernel runs");
    assert!(said.recv_timeout(LONG).unwrap(), "the panic is passed on");
    soon(move || closes.join().unwrap());
    drop((idle, busy));
}

#[test]
fn growing_arena_may_run_deferred_frees_of_its_own_memory() {
    let bench = Bench::new();
    let session = bench.session("grows");
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Only;
    impl Key for Only {
        fn generation(&self) -> u64 {
            0
        }
    }
    let graphs = session.graphs::<Only>(GraphBudget::default()).unwrap();
    soon(move || {
        let recorded = graphs.record(Only, RecordOptions::default(), |recording| {
            let mut scratch = Some(recording.alloc::<u8>(64)?);
            // For the next thread that allocates: the arena itself.
            destroy_later(move || {
                drop(scratch.take());
                true
            });
            let grown = recording.alloc::<u8>(64 << 20)?;
            Ok(grown.len())
        });
        assert_eq!(recorded.unwrap().0, 64 << 20);
    });
    session.close().unwrap();
}

#[test]
fn forked_child_leaves_the_dispatcher_to_its_parent() {
    let bench = Bench::new();
    let context = bench.runtime.context();
    let (set, gate) = gate::gated();
    let mut buffers = TaskBuffers::new();
    buffers.host(Arc::new(SharedWords::new(&context, LEN as usize).unwrap()));
    let dispatcher = Dispatcher::start(&context, &set, buffers, small()).unwrap();
    let busy = dispatcher.submit(0, gate, &span(0..1).steps(u32::MAX));
    let busy = busy.unwrap();
    while !busy.has_begun() {
        std::thread::yield_now();
    }
    // SAFETY: the child calls nothing but this library and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fill = dispatcher.submit(0, StandardTask::Fill.id(), &span(1..2));
        let is_refused = matches!(fill, Err(DispatchError::Forked { .. }))
            && matches!(busy.poll(), Some(Err(TaskError::Forked { .. })))
            && matches!(busy.wait(LONG), Err(TaskError::Forked { .. }))
            && dispatcher.stats().submitted == 0;
        busy.cancel();
        drop((busy, dispatcher));
        // SAFETY: it exits at once.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let begun = std::time::Instant::now();
    let mut status = 0;
    // SAFETY: the child that was made above; `status` outlives the call.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        assert!(begun.elapsed() < LONG, "the child hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0, "the child got no error");
    assert_eq!(busy.poll(), None, "its task was cancelled");
    busy.cancel();
    assert_eq!(busy.wait(LONG), Err(TaskError::Cancelled));
    let fill = dispatcher.submit(0, StandardTask::Fill.id(), &span(1..LEN));
    assert_eq!(fill.unwrap().wait(LONG).unwrap().value, LEN - 1);
    dispatcher.stop(LONG).unwrap();
}

#[test]
fn dispatcher_dropped_during_teardown_runs_its_tasks() {
    let bench = Bench::new();
    let session = bench.session("both");
    let (resident, gate) = serve(&session, words(&session), small());
    let shut = shut(&resident, gate);
    let behind = fill(&resident);
    let closes = {
        let session = session.clone();
        std::thread::spawn(move || session.close().unwrap())
    };
    while session.buffers().is_ok() {
        std::thread::yield_now();
    }
    soon(move || drop(resident));
    shut.cancel();
    assert_eq!(behind.wait(LONG).unwrap().value, LEN - 1);
    soon(move || closes.join()).unwrap();
}

#[test]
fn dispatcher_started_during_teardown_is_requested_to_stop() {
    let bench = Bench::new();
    // Starting one runs deferred frees many times: at each of them once.
    for turn in 0..12 {
        let session = bench.session("ends");
        let id = words(&session);
        let (sender, receiver) = channel();
        let (go_on, waits) = channel::<()>();
        let is_over = Arc::new(AtomicBool::new(false));
        let starts = {
            let (session, is_over) = (session.clone(), is_over.clone());
            std::thread::spawn(move || {
                let (me, at_turn) = (std::thread::current().id(), sender.clone());
                let mut asked = 0;
                destroy_later(move || {
                    if std::thread::current().id() != me {
                        return is_over.load(Ordering::Acquire);
                    }
                    asked += 1;
                    let is_turn = asked > turn;
                    if is_turn {
                        at_turn.send(()).unwrap();
                        waits.recv_timeout(LONG * 2).ok();
                    }
                    is_turn
                });
                let set = TaskSet::standard();
                let started = session.dispatcher(&set, &[id], small()).map(drop);
                // The receiver is gone if this was the last one.
                sender.send(()).ok();
                started
            })
        };
        receiver.recv_timeout(LONG).unwrap();
        let closed = session.clone();
        soon(move || closed.close()).unwrap();
        go_on.send(()).ok();
        // Whether it had begun by then or not.
        drop(soon(move || starts.join()).unwrap());
        is_over.store(true, Ordering::Release);
        // No kernel is resident.
        let runtime = bench.runtime.clone();
        soon(move || runtime.reboot()).unwrap();
    }
}
