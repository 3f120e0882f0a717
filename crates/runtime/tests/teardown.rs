//! Concurrent shutdown of dispatchers, sessions and runtimes: on the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`. A deadlock becomes a failure here.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, one task is its own, and it lends memory"
)]

mod bench;
mod gate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bench::Bench;
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{DeviceBuffer, SharedWords, Stream, destroy_later};
use fercuda_runtime::jit::{Binary, ExprGraph as Expression};
use fercuda_runtime::{
    Budget, BufferId, DispatchError, DispatchOptions, Dispatcher, Dtype, EndReason, Error, Key,
    Layout, RecordOptions, Regime, Resident, Session, StandardTask, TaskArgs, TaskBuffer,
    TaskBuffers, TaskError, TaskId, TaskJob, TaskSet,
};

const LONG: Duration = Duration::from_secs(30);
const LEN: u64 = 1024;

/// Runs work, and fails if that takes too long.
fn soon<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (give, take) = channel();
    let thread = std::thread::spawn(move || give.send(work()).unwrap());
    let done = take.recv_timeout(LONG);
    if thread.is_finished() {
        thread.join().unwrap();
    }
    done.expect("it takes too long")
}

fn small() -> DispatchOptions {
    DispatchOptions {
        capacity: 8,
        threads: 64,
        ..DispatchOptions::default()
    }
}

fn layout() -> Layout {
    Layout::contiguous(Dtype::U32, &[LEN]).unwrap()
}

fn words(session: &Session) -> BufferId {
    session.buffer(&[LEN], &[0u32; LEN as usize]).unwrap()
}

/// A dispatcher over one buffer, with the standard tasks and one that waits until the buffer's
/// first word is not 0, which it never is.
fn serve(session: &Session, id: BufferId, options: DispatchOptions) -> (Resident, TaskId) {
    SET.with(|(set, gate)| (session.dispatcher(set, &[id], options).unwrap(), *gate))
}

/// Loads the kernel before a wait or a resident kernel.
fn load(bench: &Bench, options: &DispatchOptions) {
    SET.with(|(set, _)| set.load(&bench.runtime.context(), options))
        .unwrap();
}

thread_local! {
    /// The test's own set, loaded once: loading code waits for the device.
    static SET: (TaskSet, TaskId) = gate::gated();
}

fn span(words: std::ops::Range<u64>) -> TaskArgs {
    TaskArgs::new().span(TaskBuffer(0), words.start * 4..words.end * 4)
}

fn fill(resident: &Resident) -> TaskJob {
    let arguments = span(1..LEN);
    resident
        .submit(0, StandardTask::Fill.id(), &arguments)
        .unwrap()
}

/// The gate, once begun: it runs until it is cancelled, or has exhausted its steps.
fn shut(resident: &Resident, gate: TaskId) -> TaskJob {
    let arguments = span(0..1).steps(u32::MAX);
    let shut = resident.submit(0, gate, &arguments).unwrap();
    while !shut.has_begun() {
        std::thread::yield_now();
    }
    shut
}

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
        let options = DispatchOptions {
            // Long enough for a loaded machine to let the kernel check for cancellation.
            watchdog: Duration::from_secs(1),
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
    let graphs = session.graphs::<Only>(Budget::default()).unwrap();
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
