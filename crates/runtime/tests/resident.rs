//! Dispatchers of sessions, and the standard tasks: on the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and one task is its own"
)]

mod bench;
mod gate;

use std::time::Duration;

use bench::Bench;
use fercuda_runtime::{
    BufferId, DispatchError, DispatchOptions, Dtype, Error, Layout, Regime, Resident, Session,
    StandardTask, TaskArgs, TaskBuffer, TaskDone, TaskError, TaskId, TaskSet,
};

const LONG: Duration = Duration::from_secs(120);
const LEN: u64 = 1024;

fn small() -> DispatchOptions {
    DispatchOptions {
        capacity: 8,
        threads: 64,
        // A loaded machine may run a kernel once in seconds.
        watchdog: Duration::from_secs(30),
        ..DispatchOptions::default()
    }
}

/// Adds a span: these words of a buffer, by its index.
fn span(it: TaskArgs, place: u32, words: std::ops::Range<u64>) -> TaskArgs {
    it.span(TaskBuffer(place), words.start * 4..words.end * 4)
}

fn run(
    resident: &Resident,
    task: StandardTask,
    arguments: &TaskArgs,
) -> Result<TaskDone, TaskError> {
    resident.submit(0, task.id(), arguments).unwrap().wait(LONG)
}

/// A dispatcher over two buffers of `LEN` words.
fn serve(session: &Session) -> (Resident, [BufferId; 2]) {
    let words = vec![0u32; LEN as usize];
    let ids = [(); 2].map(|()| session.buffer(&[LEN], &words).unwrap());
    let set = TaskSet::standard();
    (session.dispatcher(&set, &ids, small()).unwrap(), ids)
}

#[test]
fn standard_tasks_match_the_host() {
    let bench = Bench::new();
    let session = bench.session("standard");
    let (resident, ids) = serve(&session);
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..12 {
        // Small enough that all sums and products are finite.
        let mut number = || (random.f32() - 0.5) * f32::from(random.u8(..));
        let mut host = [(); 2].map(|()| (0..LEN).map(|_| number()).collect::<Vec<f32>>());
        let a = number();
        for (id, values) in ids.iter().zip(&host) {
            session.upload_bytes(*id, &bytes_of(values)).unwrap();
        }
        let len = random.u64(0..300);
        let (at, from) = (random.u64(0..LEN - len), random.u64(0..LEN - len));
        let pattern = random.u32(..);
        let range = |begin: u64| begin as usize..(begin + len) as usize;
        let is = |values: &[Vec<f32>; 2]| {
            for (id, values) in ids.iter().zip(values) {
                assert_eq!(session.download_bytes(*id).unwrap(), bytes_of(values));
            }
        };
        let pair = |to, by| {
            span(
                span(TaskArgs::new(), to, at..at + len),
                by,
                from..from + len,
            )
        };

        let done = run(&resident, StandardTask::Copy, &pair(0, 1)).unwrap();
        assert_eq!(done.value, len);
        let copied = host[1][range(from)].to_vec();
        host[0][range(at)].copy_from_slice(&copied);
        is(&host);

        let axpy = pair(1, 0).word(a.to_bits().into());
        let done = run(&resident, StandardTask::AxpyF32, &axpy).unwrap();
        assert_eq!(done.value, len);
        for i in 0..len as usize {
            let x = host[0][from as usize + i];
            let y = &mut host[1][at as usize + i];
            *y = a.mul_add(x, *y);
        }
        is(&host);

        // The sum is among its own values.
        let into = at + random.u64(0..len + 1);
        let sum = |task: StandardTask| {
            let it = span(TaskArgs::new(), 1, into..into + 1);
            run(&resident, task, &span(it, 1, at..at + len)).unwrap()
        };
        let exact: f64 = host[1][range(at)].iter().map(|v| f64::from(*v)).sum();
        let size: f64 = host[1][range(at)].iter().map(|v| f64::from(v.abs())).sum();
        let got = f32::from_bits(sum(StandardTask::SumF32).value as u32);
        // Each value passes at most `len` roundings of half a unit.
        let bound = len as f64 * f64::from(f32::EPSILON) / 2.0 * size * 1.001;
        assert!((f64::from(got) - exact).abs() <= bound, "{got} {exact}");
        host[1][into as usize] = got;
        is(&host);
        let bits = host[1][range(at)].iter().map(|v| v.to_bits());
        let wanted = bits.fold(0, u32::wrapping_add);
        assert_eq!(sum(StandardTask::SumU32).value, u64::from(wanted));
        host[1][into as usize] = f32::from_bits(wanted);
        is(&host);

        let fill = span(TaskArgs::new(), 0, at..at + len).word(u64::from(pattern) | 7 << 40);
        let done = run(&resident, StandardTask::Fill, &fill).unwrap();
        assert_eq!((done.value, u64::from(done.steps)), (len, len.div_ceil(64)));
        host[0][range(at)].fill(f32::from_bits(pattern));
        is(&host);
    }
    resident.stop(LONG).unwrap();
    session.close().unwrap();
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_bits().to_le_bytes())
        .collect()
}

#[test]
fn standard_task_with_bad_spans_fails_and_writes_nothing() {
    use StandardTask::{AxpyF32, Copy, Fill, SumF32, SumU32};
    let bench = Bench::new();
    let session = bench.session("bad");
    let (resident, ids) = serve(&session);
    let before: Vec<u32> = (0..LEN as u32).map(|at| at ^ 0xa5a5).collect();
    for id in ids {
        session.upload(id, &before).unwrap();
    }
    let one = |words: std::ops::Range<u64>| span(TaskArgs::new(), 0, words);
    let two = |to: std::ops::Range<u64>, by, from| span(one(to), by, from);
    let bytes = |bytes: std::ops::Range<u64>| TaskArgs::new().span(TaskBuffer(0), bytes);
    let outside = Err(TaskError::OutOfBounds);
    let failed = Err(TaskError::Failed);
    let bad = [
        ("beyond the end", Fill, one(LEN - 1..LEN + 1), &outside),
        ("no whole words", Fill, bytes(0..6), &outside),
        ("unaligned", Fill, bytes(2..6), &outside),
        ("no span", Fill, TaskArgs::new(), &outside),
        ("one span", Copy, one(0..4), &outside),
        ("no such buffer", Copy, two(0..4, 2, 0..4), &outside),
        (
            "source beyond",
            Copy,
            two(0..4, 1, LEN - 3..LEN + 1),
            &outside,
        ),
        ("longer target", Copy, two(0..5, 1, 0..4), &failed),
        ("longer source", Copy, two(0..4, 1, 0..5), &failed),
        ("shifted", Copy, two(0..100, 0, 99..199), &failed),
        ("shifted back", AxpyF32, two(5..15, 0, 0..10), &failed),
        ("lengths", AxpyF32, two(0..7, 1, 0..8), &failed),
        ("two for a sum", SumU32, two(0..2, 1, 0..8), &failed),
        ("none for a sum", SumF32, two(4..4, 1, 0..8), &failed),
        ("values beyond", SumF32, two(0..1, 1, 0..LEN + 1), &outside),
    ];
    for (what, task, arguments, wanted) in bad {
        assert_eq!(run(&resident, task, &arguments), *wanted, "{what}");
        for id in ids {
            assert_eq!(session.download::<u32>(id).unwrap(), before, "{what}");
        }
    }
    // An unfinished sum is not written.
    let sum = two(0..1, 1, 0..LEN).steps(3);
    assert_eq!(
        run(&resident, SumU32, &sum),
        Err(TaskError::OverBudget { steps: 3 })
    );
    assert_eq!(session.download::<u32>(ids[0]).unwrap(), before);
    // Neighbours, and one that is both, are fine.
    for arguments in [
        two(0..100, 0, 100..200),
        two(100..200, 0, 0..100),
        two(3..9, 0, 3..9),
    ] {
        let len = run(&resident, Copy, &arguments).unwrap().value;
        assert!(len == 100 || len == 6);
    }
    let stats = resident.stats();
    assert_eq!((stats.submitted, stats.done), (19, 19));
    assert_eq!((stats.waiting, stats.dropped), (0, 0));
    drop(resident);
    session.close().unwrap();
}

#[test]
fn standard_tasks_have_their_documented_numbers() {
    let set = TaskSet::standard();
    for it in StandardTask::ALL {
        assert_eq!(set.name(it.id()), Some(it.name()));
    }
    assert_eq!(set.name(TaskId(StandardTask::ALL.len() as u32)), None);
}

#[test]
fn buffer_is_retained_until_the_kernel_has_exited() {
    let bench = Bench::new();
    let session = bench.session("kept");
    let words = session.buffer(&[LEN], &vec![1u32; LEN as usize]).unwrap();
    let seen = session.view(words, |layout| Ok((*layout, 0))).unwrap();
    let set = TaskSet::standard();
    let resident = session.dispatcher(&set, &[words], small()).unwrap();
    session.free(words).unwrap();
    session.free(seen).unwrap();
    assert_eq!(session.held_bytes(), LEN * 4);
    let sum = span(span(TaskArgs::new(), 0, 0..1), 0, 0..LEN);
    assert_eq!(
        run(&resident, StandardTask::SumU32, &sum).unwrap().value,
        LEN
    );
    resident.stop(LONG).unwrap();
    assert_eq!(session.held_bytes(), 0);
    session.close().unwrap();
}

#[test]
fn unsuitable_buffers_are_refused() {
    let bench = Bench::new();
    let session = bench.session("refused");
    let whole = session.buffer(&[8, 8], &[0u32; 64]).unwrap();
    let turned = session
        .view(whole, |_| {
            Ok((Layout::strided(Dtype::U32, &[8, 8], &[1, 8])?, 0))
        })
        .unwrap();
    let shifted = session
        .view(whole, |_| Ok((Layout::contiguous(Dtype::U32, &[8])?, 4)))
        .unwrap();
    let part = session
        .view(whole, |_| Ok((Layout::contiguous(Dtype::U32, &[8])?, 16)))
        .unwrap();
    let boot = |id| session.dispatcher(&TaskSet::standard(), &[id], small());
    for (id, word) in [(turned, "not contiguous"), (shifted, "multiple of 16")] {
        let refused = boot(id).unwrap_err();
        let is_buffer = |it: &DispatchError| matches!(it, DispatchError::Buffer { .. });
        assert!(
            matches!(&refused, Error::Dispatch(it) if is_buffer(it)),
            "{refused}"
        );
        assert!(refused.to_string().contains(word), "{refused}");
    }
    // A view is a range: bytes behind it are outside the span.
    let resident = boot(part).unwrap();
    let fill = |words| {
        run(
            &resident,
            StandardTask::Fill,
            &span(TaskArgs::new(), 0, words).word(9),
        )
    };
    assert_eq!(fill(0..9), Err(TaskError::OutOfBounds));
    assert_eq!(fill(0..8).unwrap().value, 8);
    let got = session.download::<u32>(whole).unwrap();
    assert!(
        got.iter()
            .enumerate()
            .all(|(at, it)| *it == if (4..12).contains(&at) { 9 } else { 0 })
    );
    session.free(whole).unwrap();
    assert!(boot(whole).is_err());
    drop(resident);
    session.close().unwrap();
    let late = boot(part).unwrap_err();
    assert!(matches!(late, Error::Ended { .. }), "{late}");
}

#[test]
fn session_ends_behind_the_tasks_of_its_dispatcher() {
    let bench = Bench::new();
    for reboots in [false, true] {
        let session = bench.session("ending");
        let words = session.buffer(&[LEN], &vec![0u32; LEN as usize]).unwrap();
        let (set, gate) = gate::gated();
        let resident = session.dispatcher(&set, &[words], small()).unwrap();
        // It stays closed: it runs for this many polls.
        let gate_of = |steps| span(TaskArgs::new(), 0, 0..1).steps(steps);
        let shut = resident.submit(0, gate, &gate_of(1000)).unwrap();
        let fill = span(TaskArgs::new(), 0, 1..100);
        let jobs: Vec<_> = (0..5)
            .map(|_| resident.submit(0, StandardTask::Fill.id(), &fill).unwrap())
            .collect();
        while !shut.has_begun() {
            std::thread::yield_now();
        }
        let running = resident.stop(Duration::ZERO);
        assert!(
            matches!(running, Err(DispatchError::Running { waiting: 6 })),
            "{running:?}"
        );
        assert!(!jobs[0].has_begun());
        let late = resident.submit(0, StandardTask::Fill.id(), &fill);
        assert!(matches!(late, Err(DispatchError::Stopped)));
        match reboots {
            true => assert_eq!(bench.runtime.reboot().unwrap().sessions, 1),
            false => session.close().unwrap(),
        }
        assert_eq!(
            shut.poll(),
            Some(Err(TaskError::OverBudget { steps: 1000 }))
        );
        for job in &jobs {
            assert_eq!(job.poll().unwrap().unwrap().value, 99);
        }
        let late = resident.submit(0, StandardTask::Fill.id(), &fill);
        assert!(matches!(late, Err(DispatchError::Stopped)));
        resident.stop(Duration::ZERO).unwrap();
        let stats = resident.stats();
        assert!(stats.is_stopped && stats.done == 6 && stats.dropped == 0);
    }
}

#[test]
fn session_does_not_wait_for_ever_for_a_task() {
    let bench = Bench::new();
    let session = bench.session("watched");
    let words = session
        .alloc(
            Layout::contiguous(Dtype::U32, &[LEN]).unwrap(),
            Regime::Pool,
        )
        .unwrap();
    session.fill_bytes(words, 0).unwrap();
    let (set, gate) = gate::gated();
    let options = DispatchOptions {
        // Long enough for a loaded machine to let the kernel check for cancellation.
        watchdog: Duration::from_secs(4),
        steps: u32::MAX,
        ..small()
    };
    let resident = session.dispatcher(&set, &[words], options).unwrap();
    let all = span(TaskArgs::new(), 0, 0..1);
    let shut = resident.submit(0, gate, &all).unwrap();
    let behind = resident.submit(0, StandardTask::Fill.id(), &all).unwrap();
    session.close().unwrap();
    assert_eq!(shut.poll(), Some(Err(TaskError::Cancelled)));
    assert_eq!(behind.poll().unwrap().unwrap().value, 1);
}
