//! The resident kernel, on a device: the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

#[path = "../../ptx/tests/ptxas/mod.rs"]
mod ptxas;

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, Cuda, DeviceBuffer, SharedWords, Stream};
use fercuda_dispatcher::{
    DispatchError, DispatchOptions, Dispatcher, Task, TaskArgs, TaskBuffer, TaskBuffers, TaskDone,
    TaskError, TaskId, TaskJob, TaskSet,
};

const LONG: Duration = Duration::from_secs(30);

/// Gives one test at a time the device: a resident kernel blocks every wait for the whole device.
/// At the end the device's checks must have found nothing.
struct Bench {
    context: Context,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        Self {
            context: Context::primary(device).unwrap(),
            _alone: alone,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
    }
}

/// The functions of these tests, with host memory for them.
struct Served {
    dispatcher: Dispatcher,
    tasks: Tasks,
    words: Arc<SharedWords>,
    buffer: TaskBuffer,
}

#[derive(Clone, Copy)]
struct Tasks {
    /// c[i] = a[i] + b[i]; returns their number.
    add: TaskId,
    /// a[word 0] += word 1, by one thread; returns the old value.
    bump: TaskId,
    /// Waits until a[0] is not 0, then does as `bump` on a[1..].
    gate: TaskId,
    /// log[log[0]] = word 0; log[0] += 1.
    note: TaskId,
    /// Fails if word 0 is odd.
    odd: TaskId,
    /// Waits for a[0] without counting steps.
    wild: TaskId,
}

#[test]
fn body_that_builds_its_own_kernel_gets_an_error() {
    let mine: Rc<OnceCell<TaskSet>> = Rc::default();
    let refusals = Rc::new(Cell::new(0));
    let (asks, tells) = (Rc::downgrade(&mine), refusals.clone());
    let mut set = TaskSet::new();
    let body = move |_: &Task<'_>| {
        let set = asks.upgrade().unwrap();
        let refused = DispatchOptions::default().listing(set.get().unwrap());
        assert!(
            matches!(refused, Err(DispatchError::Value { .. })),
            "{refused:?}"
        );
        tells.set(tells.get() + 1);
    };
    // SAFETY: it touches nothing.
    unsafe { set.add("asks", body) };
    assert!(mine.set(set).is_ok());
    // And the next build is not affected.
    for _ in 0..2 {
        DispatchOptions::default()
            .listing(mine.get().unwrap())
            .unwrap();
    }
    assert_eq!(refusals.get(), 2);
}

fn set() -> (TaskSet, Tasks) {
    let mut set = TaskSet::new();
    // SAFETY: all of them access their spans only; `wild` has a loop of its own, which one test
    // ends.
    let tasks = unsafe {
        Tasks {
            add: set.add("sum", |t| {
                let (a, b, c) = (t.span::<u32>(0), t.span::<u32>(1), t.span::<u32>(2));
                t.for_each(c.len(), |i| c.store(i, a.load(i) + b.load(i)));
                t.returns(c.len().to::<u64>());
            }),
            bump: set.add("bump", |t| {
                let k = t.kernel();
                let cells = t.span::<u32>(0);
                k.if_(k.tid_x().equals(0u32), || {
                    let at = t.word(0).to::<u32>();
                    let before = cells.load(at);
                    cells.store(at, before + t.word(1).to::<u32>());
                    t.returns(before.to::<u64>());
                });
            }),
            gate: set.add("gate", |t| {
                let k = t.kernel();
                let gate = t.span::<u32>(0);
                t.repeat("closed", |turn| {
                    let zero = k.value(0u32);
                    turn.break_if(gate.load_volatile(zero).differs(0u32));
                    k.nanosleep(1000);
                });
            }),
            note: set.add("note", |t| {
                let k = t.kernel();
                let log = t.span::<u32>(0);
                k.if_(k.tid_x().equals(0u32), || {
                    let zero = k.value(0u32);
                    let len = log.load(zero);
                    log.store(len, t.word(0).to::<u32>());
                    log.store(zero, len + 1);
                });
            }),
            odd: set.add("odd", |t| {
                let k = t.kernel();
                k.if_((t.word(0) & 1u64).equals(1u64), || t.fail());
                t.returns(t.word(0));
            }),
            wild: set.add("wild", |t| {
                let k = t.kernel();
                let gate = t.span::<u32>(0);
                k.loop_("for_ever", |turn| {
                    let zero = k.value(0u32);
                    turn.break_if(gate.load_volatile(zero).differs(0u32));
                    k.nanosleep(1000);
                });
            }),
        }
    };
    (set, tasks)
}

fn serve(bench: &Bench, len: usize, options: DispatchOptions) -> Served {
    let (set, tasks) = set();
    let words = Arc::new(SharedWords::new(&bench.context, len).unwrap());
    let mut buffers = TaskBuffers::new();
    let buffer = buffers.host(words.clone());
    let dispatcher = Dispatcher::start(&bench.context, &set, buffers, options).unwrap();
    Served {
        dispatcher,
        tasks,
        words,
        buffer,
    }
}

fn small() -> DispatchOptions {
    DispatchOptions {
        capacity: 8,
        threads: 64,
        // A loaded machine may run a kernel once in seconds.
        watchdog: Duration::from_secs(30),
        ..DispatchOptions::default()
    }
}

impl Served {
    fn submit(&self, task: TaskId, arguments: TaskArgs) -> TaskJob {
        self.dispatcher.submit(0, task, &arguments).unwrap()
    }

    /// A span of these words.
    fn of(&self, words: std::ops::Range<u64>) -> TaskArgs {
        TaskArgs::new().span(self.buffer, words.start * 4..words.end * 4)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        &self.words.words()[at]
    }

    /// Checks that a good task still runs.
    fn is_well(&self) {
        let last = self.words.words().len() - 1;
        let before = self.word(last).load(Ordering::Relaxed);
        let all = self.of(0..self.words.words().len() as u64);
        let job = self.submit(self.tasks.bump, all.word(last as u64).word(3));
        assert_eq!(job.wait(LONG).unwrap().value, u64::from(before));
        assert_eq!(self.word(last).load(Ordering::Relaxed), before + 3);
    }

    fn stop(self) {
        self.dispatcher.stop(LONG).unwrap();
    }
}

#[test]
fn tasks_run_and_return_values() {
    let bench = Bench::new();
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let served = serve(&bench, 3 * 1024, small());
    for _ in 0..40 {
        let len = random.usize(0..500) as u64;
        let values: Vec<u32> = (0..2 * len).map(|_| random.u32(..)).collect();
        for (at, value) in values.iter().enumerate() {
            served.word(at).store(*value, Ordering::Relaxed);
        }
        let bytes = |from: u64| from * 4..(from + len) * 4;
        let arguments = TaskArgs::new()
            .span(served.buffer, bytes(0))
            .span(served.buffer, bytes(len))
            .span(served.buffer, bytes(2 * len));
        let job = served.submit(served.tasks.add, arguments);
        let done = job.wait(LONG).unwrap();
        assert_eq!(done.value, len);
        assert_eq!(u64::from(done.steps), len.div_ceil(64));
        for at in 0..len as usize {
            let sum = values[at].wrapping_add(values[at + len as usize]);
            assert_eq!(
                served.word(at + 2 * len as usize).load(Ordering::Relaxed),
                sum
            );
        }
    }
    served.stop();
}

#[test]
fn device_memory_is_shared_with_tasks_in_host_order() {
    let bench = Bench::new();
    let (set, tasks) = set();
    let stream = Stream::new(&bench.context).unwrap();
    let values: Vec<u8> = (0..=255).collect();
    let mut memory = DeviceBuffer::<u8>::alloc_ordered(&stream, 512).unwrap();
    memory.fill(0, &stream).unwrap();
    stream.synchronize().unwrap();
    let mut written = memory.part::<u8>(0, 256).unwrap();
    let read = memory.part::<u32>(256, 64).unwrap();
    let mut buffers = TaskBuffers::new();
    let buffer = buffers.device(memory);
    let dispatcher = Dispatcher::start(&bench.context, &set, buffers, small()).unwrap();
    let arguments = TaskArgs::new()
        .span(buffer, 0..256)
        .span(buffer, 0..256)
        .span(buffer, 256..512);
    for turn in 0..3 {
        // Written and read by another stream, ordered by the host alone.
        let values: Vec<u8> = values.iter().map(|value| value ^ turn).collect();
        written.copy_from_host(&values, &stream).unwrap();
        let job = dispatcher.submit(1, tasks.add, &arguments).unwrap();
        assert_eq!(job.wait(LONG).unwrap().value, 64);
        let doubled = read.to_vec(&stream).unwrap();
        for (at, word) in doubled.iter().enumerate() {
            let bytes: [u8; 4] = values[4 * at..4 * at + 4].try_into().unwrap();
            assert_eq!(*word, u32::from_le_bytes(bytes).wrapping_mul(2));
        }
    }
    dispatcher.stop(LONG).unwrap();
}

#[test]
fn bad_task_fails_alone_and_the_next_one_runs() {
    let bench = Bench::new();
    let served = serve(&bench, 64, small());
    let tasks = served.tasks;
    let whole = || served.of(0..64);
    let three = |it: TaskArgs| it.span(served.buffer, 0..64).span(served.buffer, 0..64);
    let none = || TaskArgs::new();
    let elsewhere = TaskBuffer(7);
    let backwards = std::ops::Range { start: 16, end: 8 };
    let bad: [(&str, TaskId, TaskArgs, TaskError); 13] = [
        (
            "number",
            TaskId(99),
            none(),
            TaskError::Unknown { number: 99 },
        ),
        ("no spans", tasks.add, none(), TaskError::OutOfBounds),
        (
            "index",
            tasks.bump,
            whole().word(64),
            TaskError::OutOfBounds,
        ),
        (
            "far",
            tasks.bump,
            whole().word(u64::from(u32::MAX)),
            TaskError::OutOfBounds,
        ),
        (
            "buffer",
            tasks.add,
            three(none().span(elsewhere, 0..64)),
            TaskError::OutOfBounds,
        ),
        (
            "end",
            tasks.add,
            three(none().span(served.buffer, 4..260)),
            TaskError::OutOfBounds,
        ),
        (
            "beginning",
            tasks.add,
            three(none().span(served.buffer, 260..264)),
            TaskError::OutOfBounds,
        ),
        (
            "wrapping",
            tasks.add,
            three(none().span(served.buffer, u64::MAX - 3..u64::MAX)),
            TaskError::OutOfBounds,
        ),
        (
            "backwards",
            tasks.add,
            three(none().span(served.buffer, backwards)),
            TaskError::OutOfBounds,
        ),
        (
            "unaligned",
            tasks.add,
            three(none().span(served.buffer, 2..66)),
            TaskError::OutOfBounds,
        ),
        (
            "shorter inputs",
            tasks.add,
            served
                .of(0..3)
                .span(served.buffer, 0..64)
                .span(served.buffer, 128..192),
            TaskError::OutOfBounds,
        ),
        (
            "steps",
            tasks.gate,
            whole().steps(500),
            TaskError::OverBudget { steps: 500 },
        ),
        ("its own word", tasks.odd, none().word(5), TaskError::Failed),
    ];
    for (what, task, arguments, wanted) in bad {
        let canaries: Vec<u32> = (0..63).map(|_| fastrand::u32(..)).collect();
        for (at, canary) in canaries.iter().enumerate().skip(1) {
            served.word(at).store(*canary, Ordering::Relaxed);
        }
        let got = served.submit(task, arguments).wait(LONG);
        assert_eq!(got.unwrap_err(), wanted, "{what}");
        if what != "shorter inputs" {
            for (at, canary) in canaries.iter().enumerate().skip(1) {
                assert_eq!(served.word(at).load(Ordering::Relaxed), *canary, "{what}");
            }
        }
        served.is_well();
    }
    let fine = served.submit(tasks.odd, TaskArgs::new().word(6)).wait(LONG);
    assert_eq!(fine, Ok(TaskDone { value: 6, steps: 0 }));
    let (words, spans) = (0..5).fold((none(), none()), |(words, spans), _| {
        (words.word(1), spans.span(served.buffer, 0..4))
    });
    for arguments in [words, spans] {
        let refused = served.dispatcher.submit(0, tasks.odd, &arguments);
        assert!(matches!(refused, Err(DispatchError::Value { .. })));
    }
    let refused = served.dispatcher.submit(2, tasks.odd, &none());
    assert!(matches!(refused, Err(DispatchError::Value { .. })));
    served.stop();
}

#[test]
fn full_ring_is_an_error_and_higher_priorities_run_first() {
    let bench = Bench::new();
    let served = serve(&bench, 64, small());
    let gate = served.submit(served.tasks.gate, served.of(0..1));
    let log = || served.of(8..64);
    served.word(8).store(1, Ordering::Relaxed);
    let mut jobs = Vec::new();
    // The gate occupies a slot of the high priority until it is open.
    for (priority, room) in [(1, 8), (0, 7)] {
        for number in 0..room {
            let arguments = log().word(u64::from(priority * 100 + number));
            let job = served
                .dispatcher
                .submit(priority, served.tasks.note, &arguments);
            jobs.push(job.unwrap());
        }
        let full = served
            .dispatcher
            .submit(priority, served.tasks.note, &log().word(0))
            .unwrap_err();
        assert!(
            matches!(full, DispatchError::Full { capacity: 8, .. }),
            "{full}"
        );
    }
    assert!(gate.poll().is_none() && jobs.iter().all(|job| job.poll().is_none()));
    served.word(0).store(1, Ordering::Release);
    gate.wait(LONG).unwrap();
    for job in &jobs {
        job.wait(LONG).unwrap();
    }
    let noted: Vec<u32> = (9..24)
        .map(|at| served.word(at).load(Ordering::Relaxed))
        .collect();
    let wanted: Vec<u32> = (0..7).chain(100..108).collect();
    assert_eq!(noted, wanted);
    // A completed task frees its slot, whichever thread waited for it.
    for _ in 0..20 {
        served.is_well();
    }
    served.stop();
}

#[test]
fn stop_runs_submitted_tasks_and_drop_does_not() {
    let bench = Bench::new();
    for drains in [true, false] {
        let served = serve(&bench, 64, small());
        let gate = served.submit(served.tasks.gate, served.of(0..1));
        served.word(8).store(1, Ordering::Relaxed);
        let jobs: Vec<_> = (0..5)
            .map(|number| served.submit(served.tasks.note, served.of(8..64).word(number)))
            .collect();
        while !gate.has_begun() {
            std::thread::yield_now();
        }
        let (words, context) = (served.words.clone(), bench.context.clone());
        let opener = std::thread::spawn(move || {
            // That is known right behind the stop command.
            while context.resident_kernels_stop_by().is_none() {
                std::thread::yield_now();
            }
            words.words()[0].store(1, Ordering::Release);
        });
        let words = served.words.clone();
        if drains {
            served.stop();
        } else {
            drop(served.dispatcher);
        }
        opener.join().unwrap();
        gate.wait(LONG).unwrap();
        let noted = words.words()[8].load(Ordering::Relaxed);
        for job in &jobs {
            let wanted = match drains {
                true => Ok(TaskDone { value: 0, steps: 0 }),
                false => Err(TaskError::Stopped),
            };
            assert_eq!(job.wait(LONG), wanted);
            assert_eq!(job.poll(), Some(wanted));
        }
        assert_eq!(noted, if drains { 6 } else { 1 });
    }
}

#[test]
fn cancelled_task_ends_whether_it_runs_or_not() {
    let bench = Bench::new();
    let served = serve(&bench, 64, small());
    let gate = served.submit(served.tasks.gate, served.of(0..1));
    served.word(8).store(1, Ordering::Relaxed);
    let waiting = served.submit(served.tasks.note, served.of(8..64).word(1));
    let wanted = served.submit(served.tasks.note, served.of(8..64).word(2));
    waiting.cancel();
    assert_eq!(
        gate.wait(Duration::from_millis(30)),
        Err(TaskError::TimedOut)
    );
    gate.cancel();
    assert_eq!(gate.wait(LONG), Err(TaskError::Cancelled));
    assert_eq!(waiting.wait(LONG), Err(TaskError::Cancelled));
    wanted.wait(LONG).unwrap();
    let noted = [8, 9].map(|at| served.word(at).load(Ordering::Relaxed));
    assert_eq!(noted, [2, 2]);
    // A completed job is not cancelled any more, nor is the next task in its slot.
    gate.cancel();
    for _ in 0..8 {
        gate.cancel();
        served.is_well();
    }
    served.stop();
}

#[test]
fn watchdog_cancels_late_tasks_and_reports_lost_ones() {
    let bench = Bench::new();
    let options = DispatchOptions {
        // Long enough for a loaded machine to let the kernel check for cancellation.
        watchdog: Duration::from_secs(4),
        steps: u32::MAX,
        ..small()
    };
    let served = serve(&bench, 64, options);
    let began = Instant::now();
    let gate = served.submit(served.tasks.gate, served.of(0..1));
    assert_eq!(gate.wait(LONG), Err(TaskError::Cancelled));
    assert!(began.elapsed() >= options.watchdog);
    served.is_well();
    let wild = served.submit(served.tasks.wild, served.of(0..1));
    let behind = served.submit(served.tasks.odd, TaskArgs::new());
    assert_eq!(wild.wait(LONG), Err(TaskError::Lost));
    assert_eq!(behind.wait(LONG), Err(TaskError::Lost));
    let refused = served
        .dispatcher
        .submit(0, served.tasks.odd, &TaskArgs::new());
    assert!(matches!(refused, Err(DispatchError::Lost)));
    let stopped = served.dispatcher.stop(LONG);
    assert!(matches!(stopped, Err(DispatchError::Lost)), "{stopped:?}");
    // For once it can be ended, so that it blocks no other test.
    served.words.words()[0].store(1, Ordering::Release);
    bench.context.synchronize().unwrap();
}

#[test]
fn task_submitted_while_the_dispatcher_is_lost_gets_an_error() {
    let bench = Bench::new();
    let options = DispatchOptions {
        watchdog: Duration::from_millis(3),
        ..small()
    };
    for _ in 0..20 {
        let served = serve(&bench, 64, options);
        let wild = served.submit(served.tasks.wild, served.of(0..1));
        let jobs = std::thread::scope(|threads| {
            let submits = || {
                let mut jobs = Vec::new();
                loop {
                    match served
                        .dispatcher
                        .submit(0, served.tasks.odd, &TaskArgs::new())
                    {
                        Ok(job) => jobs.push(job),
                        Err(DispatchError::Full { .. }) => {}
                        Err(DispatchError::Lost) => return jobs,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let threads: Vec<_> = (0..4).map(|_| threads.spawn(submits)).collect();
            assert_eq!(wild.wait(LONG), Err(TaskError::Lost));
            let jobs = threads.into_iter().flat_map(|it| it.join().unwrap());
            jobs.collect::<Vec<_>>()
        });
        for job in jobs {
            assert_eq!(job.poll(), Some(Err(TaskError::Lost)));
        }
        served.words.words()[0].store(1, Ordering::Release);
        drop(served);
        bench.context.synchronize().unwrap();
    }
}

#[test]
fn several_blocks_and_threads_run_each_task_once() {
    const EACH: u64 = 300;
    let bench = Bench::new();
    let options = DispatchOptions {
        blocks: 3,
        capacity: 16,
        ..small()
    };
    let served = serve(&bench, 2 * EACH as usize + 1, options);
    std::thread::scope(|threads| {
        for thread in 0..2 {
            let served = &served;
            threads.spawn(move || {
                let mut jobs = Vec::new();
                for number in 0..EACH {
                    let cell = thread * EACH + number;
                    let all = served.of(0..2 * EACH).word(cell).word(cell + 1);
                    let priority = (number % 2) as u32;
                    let job = loop {
                        match served.dispatcher.submit(priority, served.tasks.bump, &all) {
                            Ok(job) => break job,
                            Err(DispatchError::Full { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    // The results of some are never read.
                    if number % 3 != 0 {
                        jobs.push(job);
                    }
                }
                for job in jobs {
                    assert_eq!(job.wait(LONG).unwrap().value, 0);
                }
            });
        }
    });
    let words = served.words.clone();
    served.stop();
    for cell in 0..2 * EACH as usize {
        let value = words.words()[cell].load(Ordering::Relaxed);
        assert_eq!(value, cell as u32 + 1);
    }
}

#[test]
fn kernel_parses_and_nvidias_assembler_accepts_it() {
    for options in [small(), DispatchOptions::default()] {
        let text = options.listing(&set().0).unwrap();
        let module = fercuda_ptx::parse(&text).unwrap();
        assert_eq!(fercuda_ptx::print(&module), text);
        let Some(ptxas) = ptxas::find() else { continue };
        let said = ptxas.assemble(&text, fercuda_ptx::build::Arch::SM_90);
        assert!(!said.contains("warning"), "{said}");
    }
}

#[test]
fn invalid_options_are_errors() {
    let bench = Bench::new();
    let (set, _) = set();
    let wrong: [fn(&mut DispatchOptions); 7] = [
        |it| it.capacity = 0,
        |it| it.capacity = 12,
        |it| it.priorities = 0,
        |it| it.priorities = 9,
        |it| it.blocks = 0,
        |it| it.threads = 48,
        |it| it.threads = 2048,
    ];
    for change in wrong {
        let mut options = small();
        change(&mut options);
        let refused = Dispatcher::start(&bench.context, &set, TaskBuffers::new(), options);
        assert!(matches!(refused, Err(DispatchError::Value { .. })));
    }
}
