//! Ends of sessions, reboots, other devices and forks.

use super::*;

#[test]
fn concurrent_closes_end_a_session_once_and_return_when_it_has_ended() {
    let bench = Bench::new();
    let lender = bench.session("lender");
    let stream = Stream::new(lender.stream().context()).unwrap();
    let lent = DeviceBuffer::from_host(&[0u32; 16], &stream).unwrap();
    let layout = Layout::contiguous(Dtype::U32, &[16]).unwrap();
    for _ in 0..30 {
        let session = bench.session("ended twice");
        session.buffer(&[1000], &[1u8; 1000]).unwrap();
        drop(session.submit(|_| Ok(())).unwrap());
        let (ended, within) = (Arc::new(AtomicU32::new(0)), session.clone());
        let heard = ended.clone();
        // SAFETY: `lent` outlives the session.
        let id = unsafe {
            session.import(lent.address(), layout, move || {
                std::thread::sleep(Duration::from_millis(5));
                // The deleter must not wait for the end.
                within.close().unwrap();
                heard.fetch_add(1, Ordering::SeqCst);
            })
        };
        id.unwrap();
        std::thread::scope(|threads| {
            for _ in 0..3 {
                let (session, heard) = (session.clone(), ended.clone());
                threads.spawn(move || {
                    session.close().unwrap();
                    assert_eq!(
                        heard.load(Ordering::SeqCst),
                        1,
                        "close came back before the end"
                    );
                    let ended = session.buffers().unwrap_err();
                    assert!(
                        matches!(
                            ended,
                            Error::Ended {
                                why: EndReason::Closed,
                                ..
                            }
                        ),
                        "{ended}"
                    );
                });
            }
        });
        assert_eq!(session.held_bytes(), 0);
    }
}

#[test]
fn reboot_ends_sessions_and_returns_all_memory() {
    let bench = Bench::new();
    let mut before = None;
    let mut epoch = bench.runtime.epoch();
    for _ in 0..20 {
        let sessions: Vec<Session> = ["one", "two"].map(|name| bench.session(name)).into();
        let ids: Vec<BufferId> = sessions
            .iter()
            .map(|session| session.buffer(&[300_000], &[1u64; 300_000]).unwrap())
            .collect();
        drop(sessions[0].download_async(ids[0]).unwrap());
        let reboot = bench.runtime.reboot().unwrap();
        assert_eq!((reboot.sessions, reboot.was_reset), (2, false));
        assert!(reboot.returned_bytes >= 2 * 8 * 300_000, "{reboot:?}");
        epoch += 1;
        assert_eq!(bench.runtime.epoch(), epoch);
        // After the first round the driver has allocated its own memory.
        let after = bench.runtime.memory().unwrap();
        assert_eq!(*before.get_or_insert(after), after);
        for (session, id) in sessions.iter().zip(ids) {
            let ended = session.download_bytes(id).unwrap_err();
            assert!(
                matches!(
                    ended,
                    Error::Ended {
                        why: EndReason::Rebooted(_),
                        ..
                    }
                ),
                "{ended}"
            );
        }
    }
}

#[test]
fn memory_behind_device_work_is_freed_when_that_is_done() {
    const MIB: u64 = 1 << 20;
    let bench = Bench::new();
    bench.runtime.trim();
    let session = bench.session("slow");
    let layout = Layout::contiguous(Dtype::U8, &[8 * MIB]).unwrap();
    let id = session.alloc(layout, Regime::Pool).unwrap();
    let slow = || std::thread::sleep(Duration::from_millis(50));
    session.stream().host_callback(slow).unwrap();
    session.free(id).unwrap();
    assert_eq!(bench.runtime.trim(), 8 * MIB);
    // Nor does anything wait where nothing is pending. A wrong wait takes a second each time; a
    // correct call may be descheduled as long, but not each time.
    let is_waited_for = |_| {
        let begun = Instant::now();
        assert_eq!(bench.runtime.trim(), 0);
        begun.elapsed() > Duration::from_millis(500)
    };
    assert!(!(0..20).all(is_waited_for));
    session.close().unwrap();
}

#[test]
fn buffers_are_copied_between_devices() {
    let Some(second) = Bench::on(1) else { return };
    let first = Runtime::open(RuntimeConfig::default()).unwrap();
    let here = first.session("here", SessionConfig::default()).unwrap();
    let there = second.session("there");
    let values: Vec<f64> = (0..999).map(f64::from).collect();
    let from = here.buffer(&[999], &values).unwrap();
    let to = there.buffer(&[999], &vec![0.0; 999]).unwrap();
    there.copy(to, &here, from).unwrap();
    assert_eq!(there.download::<f64>(to).unwrap(), values);
    here.fill_bytes(from, 0).unwrap();
    here.copy(from, &there, to).unwrap();
    assert_eq!(here.download::<f64>(from).unwrap(), values);
    assert_eq!(here.stream().context().device().ordinal(), 0);
    assert_eq!(there.stream().context().device().ordinal(), 1);
    here.close().unwrap();
    there.close().unwrap();
}

#[test]
fn forked_child_gets_an_error() {
    let bench = Bench::new();
    let session = bench.session("forked");
    let id = session.buffer(&[2], &[1u8, 2]).unwrap();
    drop(session.submit(|_| Ok(())).unwrap());
    // SAFETY: the child calls nothing but this library and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_told = |error: Error| matches!(error, Error::Forked { .. });
        let refusals = [
            session.download_bytes(id).map(drop),
            session.free(id),
            session.submit(|_| Ok(())).map(drop),
            session.close(),
            session.synchronize(),
        ];
        let all = refusals.into_iter().all(|it| it.is_err_and(is_told));
        // SAFETY: it exits at once.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: the child that was made above; `status` outlives the call.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the child hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
    assert_eq!(session.download::<u8>(id).unwrap(), [1, 2]);
    session.close().unwrap();
}
