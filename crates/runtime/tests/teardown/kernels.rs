//! Sessions and reboots beside resident kernels.

use super::*;

#[test]
fn dispatcher_ends_while_another_is_resident() {
    let bench = Bench::new();
    let session = bench.session("two");
    let (one, _) = serve(&session, words(&session), small());
    let (other, _) = serve(&session, words(&session), small());
    let ticket = fill(&one);
    // Its resources wait for the whole device: code, and page-locked memory with the last ticket.
    soon(move || {
        one.stop(Duration::from_secs(20)).unwrap();
        drop(one);
        ticket.wait(LONG).unwrap();
    });
    assert_eq!(fill(&other).wait(LONG).unwrap().value, LEN - 1);
    let managed = session.alloc(layout(), Regime::Managed).unwrap();
    let freed = session.clone();
    soon(move || freed.free(managed)).unwrap();
    assert_eq!(fill(&other).wait(LONG).unwrap().value, LEN - 1);
    // And again with both ending.
    let (third, _) = serve(&session, words(&session), small());
    let jobs = [fill(&other), fill(&third), fill(&other)];
    let closed = session.clone();
    soon(move || closed.close()).unwrap();
    for job in jobs {
        assert_eq!(job.poll().unwrap().unwrap().value, LEN - 1);
    }
    assert!(matches!(
        third.submit(0, StandardTask::Fill.id(), &span(0..1)),
        Err(DispatchError::Stopped)
    ));
    drop((other, third));
}

/// Gives a session resources that are freed when the whole device is idle.
fn one_of_each(session: &Session) {
    for regime in [Regime::Managed, Regime::Driver, Regime::Pinned] {
        session.alloc(layout(), regime).unwrap();
    }
    let id = words(session);
    let mut expression = Expression::new();
    let input = expression.input("x", layout()).unwrap();
    let twice = expression.binary(Binary::Add, input, input).unwrap();
    expression.output("y", twice).unwrap();
    session.evaluate(&expression, &[id]).unwrap();
}

#[test]
fn sessions_end_together_with_resident_kernels_in_either() {
    enum How {
        Reboot,
        CloseAll,
        OneByOne,
    }
    let bench = Bench::new();
    for how in [How::Reboot, How::CloseAll, How::OneByOne] {
        let (first, last) = (bench.session("first"), bench.session("last"));
        one_of_each(&last);
        one_of_each(&first);
        let (resident, _) = serve(&first, words(&first), small());
        let (late, _) = serve(&last, words(&last), small());
        let jobs = [fill(&resident), fill(&late)];
        let runtime = bench.runtime.clone();
        soon(move || match how {
            How::Reboot => assert_eq!(runtime.reboot().unwrap().sessions, 2),
            How::CloseAll => Session::close_all(&[first, last]).unwrap(),
            How::OneByOne => {
                last.close().unwrap();
                first.close().unwrap();
            }
        });
        for job in jobs {
            assert_eq!(job.poll().unwrap().unwrap().value, LEN - 1);
        }
    }
}

#[test]
fn reboot_does_not_wait_for_a_kernel_outside_sessions() {
    let bench = Bench::new();
    let set = TaskSet::standard();
    let buffers = TaskBuffers::new();
    let context = bench.runtime.context();
    let session = bench.session("rebooted");
    one_of_each(&session);
    let stays = Dispatcher::start(&context, &set, buffers, small()).unwrap();
    let runtime = bench.runtime.clone();
    let refused = soon(move || runtime.reboot()).unwrap_err();
    assert!(
        matches!(refused, Error::Resident { device: 0 }),
        "{refused}"
    );
    assert!(session.buffers().is_err());
    stays.stop(LONG).unwrap();
    bench.runtime.reboot().unwrap();
}

#[test]
fn dispatcher_dropped_in_a_host_callback_keeps_its_resources() {
    let bench = Bench::new();
    let session = bench.session("callback");
    let id = words(&session);
    let address = session.export(id).unwrap().address;
    let (resident, gate) = serve(&session, id, small());
    let shut = shut(&resident, gate);
    let behind = fill(&resident);
    session.free(id).unwrap();
    let held_bytes = session.held_bytes();
    let (dropped, is_dropped) = channel();
    let callback = move || {
        drop(resident);
        dropped.send(()).unwrap();
    };
    session.stream().host_callback(callback).unwrap();
    is_dropped.recv_timeout(LONG).unwrap();
    for _ in 0..3 {
        let other = session.alloc(layout(), Regime::Pool).unwrap();
        assert_ne!(session.export(other).unwrap().address, address);
        session.free(other).unwrap();
    }
    assert_eq!(session.held_bytes(), held_bytes);
    assert_eq!(shut.poll(), None);
    shut.cancel();
    assert_eq!(shut.wait(LONG), Err(TaskError::Cancelled));
    assert_eq!(behind.wait(LONG), Err(TaskError::Stopped));
    soon(move || session.close()).unwrap();
}

#[test]
fn watchdog_may_have_the_maximum_duration() {
    let bench = Bench::new();
    let options = DispatchOptions {
        watchdog: Duration::MAX,
        ..small()
    };
    for closes in [true, false] {
        let session = bench.session("unwatched");
        let (resident, gate) = serve(&session, words(&session), options);
        let shut = shut(&resident, gate);
        let waits = {
            let session = session.clone();
            std::thread::spawn(move || match closes {
                true => session.close().unwrap(),
                false => drop(resident),
            })
        };
        // The waiting thread checks the running task meanwhile.
        assert_eq!(
            shut.wait(Duration::from_millis(300)),
            Err(TaskError::TimedOut)
        );
        shut.cancel();
        assert_eq!(shut.wait(LONG), Err(TaskError::Cancelled));
        soon(move || waits.join()).unwrap();
        soon(move || session.close()).unwrap();
    }
}

#[test]
fn session_ends_also_if_user_code_panics() {
    let bench = Bench::new();
    let session = bench.session("panics");
    words(&session);
    let (ended, runtime) = (session.clone(), bench.runtime.clone());
    let panicked = soon(move || {
        // For the next thread that waits through `fercuda-cuda`: this one, in `close`.
        destroy_later(|| panic!("user code"));
        let panicked = catch_unwind(AssertUnwindSafe(|| ended.close())).is_err();
        // The thread does not count as one in teardown any more.
        panicked && runtime.reboot().is_ok()
    });
    assert!(panicked);
    let again = session.clone();
    soon(move || again.close()).unwrap();
    assert_eq!(session.held_bytes(), 0);
}

#[test]
fn queued_kernel_is_not_lost() {
    let bench = Bench::new();
    let session = bench.session("queued");
    let id = words(&session);
    let (go_on, waits) = channel::<()>();
    let hold = move || {
        waits.recv_timeout(LONG).ok();
    };
    let options = DispatchOptions {
        watchdog: Duration::from_millis(20),
        ..small()
    };
    load(&bench, &options);
    session.stream().host_callback(hold).unwrap();
    let (resident, _) = serve(&session, id, options);
    let behind = fill(&resident);
    session.free(id).unwrap();
    soon(move || drop(resident));
    assert_eq!(behind.poll(), None);
    assert_eq!(session.held_bytes(), LEN * 4);
    go_on.send(()).unwrap();
    assert_eq!(behind.wait(LONG), Err(TaskError::Stopped));
    // A later allocation or wait releases it.
    session.synchronize().unwrap();
    assert_eq!(session.held_bytes(), 0);
    soon(move || session.close()).unwrap();
}

#[test]
fn job_cannot_start_a_dispatcher_during_teardown() {
    let bench = Bench::new();
    let session = bench.session("ending");
    let id = words(&session);
    let within = session.clone();
    let (give, take) = channel();
    let job = session.submit(move |_| {
        while give.send(()).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let booted = within.dispatcher(&TaskSet::standard(), &[id], small());
        Ok(booted.map(|it| it.stats()))
    });
    let closed = {
        let session = session.clone();
        std::thread::spawn(move || session.close().unwrap())
    };
    while session.buffers().is_ok() {
        std::thread::yield_now();
    }
    drop(take);
    let refused = job.unwrap().wait_for(LONG).unwrap().unwrap_err();
    assert!(
        matches!(
            &refused,
            Error::Ended {
                why: EndReason::Closed,
                ..
            }
        ),
        "{refused}"
    );
    soon(move || closed.join()).unwrap();
}
