//! Tests that need a process of their own: a lost context, memory shared between two processes, and
//! what other tests in the process would disturb.
//!
//! Each scenario runs in a new process of this program.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]
#![expect(clippy::print_stdout, reason = "this program is the test harness")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use fercuda_cuda::{
    CaptureMode, Context, Cuda, DeviceBuffer, Event, Image, IpcEventHandle, IpcMemoryHandle,
    Launch, Module, SharedWords, Stream,
};
use libtest_mimic::{Arguments, Trial};

#[path = "process/refused.rs"]
mod refused;
#[path = "process/resident.rs"]
mod resident;

const KERNELS: &str = include_str!("suite/kernels.ptx");

type Scenario = (&'static str, fn());

const SCENARIOS: &[Scenario] = &[
    (
        "every_later_call_of_a_lost_context_returns_its_error_and_nothing_aborts",
        lost_context,
    ),
    ("memory_and_events_are_shared_between_processes", share),
    (
        "memory_of_the_legacy_stream_is_freed_after_the_captures_it_would_break",
        drop_in_capture,
    ),
    (
        "a_forgotten_capture_does_not_keep_other_memory",
        forget_capture,
    ),
    (
        "memory_waits_for_a_stream_that_another_thread_is_dropping",
        drop_stream_in_thread,
    ),
    (
        "memory_waits_for_a_stream_that_a_callback_dropped",
        drop_stream_in_callback,
    ),
    (
        "deferred_frees_wait_for_no_later_resident_kernel",
        resident::one_after_the_other,
    ),
    (
        "dropping_memory_does_not_wait_for_a_kernel_that_became_resident_meanwhile",
        resident::started_meanwhile,
    ),
    (
        "memory_used_in_another_threads_stream_waits_for_no_resident_kernel",
        resident::of_another_thread,
    ),
    (
        "resident_kernels_end_with_a_context_that_is_reset",
        resident::in_a_context_that_is_reset,
    ),
    (
        "memory_that_outlives_a_reset_waits_for_no_kernel_of_the_next_context",
        resident::beyond_a_reset,
    ),
    (
        "what_another_librarys_callback_drops_is_destroyed_when_a_thread_may_call",
        refused::in_a_callback_of_another_library,
    ),
    ("try_synchronize_breaks_no_capture", refused::by_captures),
];

/// Scenarios that measure how much memory is free.
const COUNT_MEMORY: &[&str] = &[
    "memory_of_the_legacy_stream_is_freed_after_the_captures_it_would_break",
    "a_forgotten_capture_does_not_keep_other_memory",
    "deferred_frees_wait_for_no_later_resident_kernel",
    "dropping_memory_does_not_wait_for_a_kernel_that_became_resident_meanwhile",
    "memory_used_in_another_threads_stream_waits_for_no_resident_kernel",
    "resident_kernels_end_with_a_context_that_is_reset",
    "memory_that_outlives_a_reset_waits_for_no_kernel_of_the_next_context",
    "what_another_librarys_callback_drops_is_destroyed_when_a_thread_may_call",
];

/// Second processes of scenarios, started by the first.
const HELPERS: &[Scenario] = &[("borrow", borrow)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, name] = &arguments[..]
        && flag == "--scenario"
    {
        let (_, run) = SCENARIOS
            .iter()
            .chain(HELPERS)
            .find(|(known, _)| known == name)
            .expect("a scenario of this program");
        run();
        return ExitCode::SUCCESS;
    }
    let trials = SCENARIOS.iter().map(|(name, _)| {
        Trial::test(*name, || {
            let output = this_program(name).output()?;
            match output.status.success() {
                true => Ok(()),
                false => Err(failure(&output).into()),
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The exit status and the output of a scenario that failed.
fn failure(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    format!("{}\n{stdout}{stderr}", output.status)
}

fn this_program(scenario: &str) -> Command {
    let program = std::env::current_exe().expect("the system knows this program");
    let mut command = Command::new(program);
    command.args(["--scenario", scenario]);
    if COUNT_MEMORY.contains(&scenario) {
        // With checks on, freed memory is quarantined for a while.
        command.env("FERCUDA_SOFT_CHECK", "0");
    }
    command
}

fn context() -> Context {
    let cuda = Cuda::from_env().unwrap();
    Context::primary(cuda.device(0).unwrap()).unwrap()
}

fn lost_context() {
    let context = context();
    let (stream, other) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let mut buffer = DeviceBuffer::from_host(&[1u32; 100], &stream).unwrap();
    let ordered = DeviceBuffer::<u32>::alloc_ordered(&stream, 100).unwrap();
    let wild = module.function("wild").unwrap();
    // SAFETY: none: `wild` writes to an unmapped address. This process observes its lost context
    // and exits.
    unsafe { Launch::new(1, 1).run(&wild, &stream, ()) }.unwrap();
    let first = stream.synchronize().unwrap_err();
    assert!(first.is_sticky(), "{first}");
    assert_eq!(
        first.code().and_then(|code| code.name()),
        Some("CUDA_ERROR_ILLEGAL_ADDRESS")
    );
    assert!(first.to_string().contains("fercuda check"), "{first}");
    for later in [
        stream.synchronize().unwrap_err(),
        other.synchronize().unwrap_err(),
        context.synchronize().unwrap_err(),
        buffer.to_vec(&other).unwrap_err(),
        buffer.fill(1, &other).unwrap_err(),
        DeviceBuffer::<u32>::alloc(&context, 10).unwrap_err(),
        Stream::new(&context).unwrap_err(),
    ] {
        assert_eq!(later.code(), first.code(), "{later}");
        assert!(later.is_sticky(), "{later}");
    }
    // Nothing below can be freed, and nothing below may abort.
    drop((buffer, ordered, wild, module, stream, other, context));
}

fn spawn(scenario: &str) -> Child {
    this_program(scenario)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be run")
}

/// Lends memory and an event to another process, which writes to the memory.
fn share() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let values: Vec<u32> = (0..1000).collect();
    let memory = DeviceBuffer::from_host(&values, &stream).unwrap();
    let event = Event::shared(&context).unwrap();
    event.record(&stream).unwrap();
    let mut child = spawn("borrow");
    let mut to_child = child.stdin.take().unwrap();
    to_child
        .write_all(&IpcMemoryHandle::of(&memory).unwrap().to_bytes())
        .unwrap();
    to_child
        .write_all(&event.ipc_handle().unwrap().to_bytes())
        .unwrap();
    to_child.flush().unwrap();
    let mut reply = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut reply)
        .unwrap();
    assert_eq!(reply, "sum 499500\n");
    assert!(child.wait().unwrap().success());
    let mut expected = values;
    expected[0] = 4242;
    assert_eq!(memory.to_vec(&stream).unwrap(), expected);
}

fn borrow() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut bytes = [0; 64];
    std::io::stdin().read_exact(&mut bytes).unwrap();
    let memory = IpcMemoryHandle::from_bytes(bytes);
    std::io::stdin().read_exact(&mut bytes).unwrap();
    // SAFETY: the lender made the handle and keeps the event until this process has exited.
    let event = unsafe { Event::open(&context, &IpcEventHandle::from_bytes(bytes)) }.unwrap();
    stream.wait_for(&event).unwrap();
    // SAFETY: the lender keeps the memory until this process has exited.
    let memory = unsafe { memory.open(&context) }.unwrap();
    // The driver shares whole allocations, which may be longer than requested.
    let mut values = memory.cast::<u32>().unwrap();
    let lent = values.slice(..1000).unwrap().to_vec(&stream).unwrap();
    values
        .slice_mut(..1)
        .unwrap()
        .copy_from_host(&[4242], &stream)
        .unwrap();
    println!("sum {}", lent.iter().sum::<u32>());
}

fn free_bytes(context: &Context) -> u64 {
    context.memory_info().unwrap().0
}

fn drop_in_capture() {
    let context = context();
    let legacy = context.legacy_stream();
    let stream = Stream::blocking(&context).unwrap();
    let mut out = DeviceBuffer::<u8>::zeroed(&stream, 16).unwrap();
    let mut used = DeviceBuffer::<u8>::alloc(&context, 64 << 20).unwrap();
    used.fill(1, &legacy).unwrap();
    let before = free_bytes(&context);
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    out.fill(7, &stream).unwrap();
    drop(used);
    assert_eq!(
        free_bytes(&context),
        before,
        "its work cannot be waited for"
    );
    // A wait that is refused does not break the capture either.
    let error = legacy.synchronize().unwrap_err();
    assert!(!error.is_sticky(), "{error}");
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    exec.launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [7; 16]);
    assert!(free_bytes(&context) > before, "the last wait freed it");
}

fn forget_capture() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    std::mem::forget(stream.begin_capture(CaptureMode::Relaxed).unwrap());
    let other = Stream::new(&context).unwrap();
    let mut buffer = DeviceBuffer::<u8>::alloc(&context, 64 << 20).unwrap();
    buffer.fill(1, &other).unwrap();
    let before = free_bytes(&context);
    other.host_callback(move || drop(buffer)).unwrap();
    other.synchronize().unwrap();
    assert!(free_bytes(&context) > before, "the wait freed it");
}

/// Uses memory of one stream in another, lets `drop_stream` drop that one while its kernel runs,
/// and frees the memory: the free must be ordered after the kernel all the same. The kernel runs
/// until the host lets it end.
fn memory_outlives_work_of(drop_stream: impl FnOnce(Stream)) {
    let context = context();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let held = module.function("held").unwrap();
    let words = SharedWords::new(&context, 1).unwrap();
    let gate = words.device_address().unwrap().0;
    let (home, stream) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u32>::alloc_ordered(&home, 1).unwrap();
    out.fill(0, &home).unwrap();
    // SAFETY: `held` accesses the first value and the word, which exist until it is done.
    unsafe { Launch::new(1, 1).run(&held, &stream, (&mut out, 1u32, gate)) }.unwrap();
    let done = stream.record().unwrap();
    let open = || words.words()[0].store(1, Ordering::Release);
    let (is_freed, waits) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Time for a free that is not ordered after the kernel to run before it; with a
            // timeout, so that no thread waits for ever.
            waits.recv_timeout(Duration::from_secs(60)).ok();
            std::thread::sleep(Duration::from_millis(200));
            open();
        });
        drop_stream(stream);
        drop(out);
        let freed = home.record().unwrap();
        let is_held = !done.is_done().unwrap();
        is_freed.send(()).unwrap();
        freed.synchronize().unwrap();
        assert!(done.is_done().unwrap(), "freed while the kernel ran");
        assert!(is_held, "the host has waited for the kernel");
    });
}

fn drop_stream_in_thread() {
    memory_outlives_work_of(|stream| {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            sender.send(()).unwrap();
            drop(stream);
        });
        receiver.recv().unwrap();
        // Until that thread is inside the drop; if it is not yet, the test sees a stream that is
        // alive, which must work as well.
        std::thread::sleep(Duration::from_millis(2));
    });
}

fn drop_stream_in_callback() {
    memory_outlives_work_of(|stream| {
        let other = Stream::new(stream.context()).unwrap();
        let (sender, receiver) = mpsc::channel();
        other
            .host_callback(move || {
                drop(stream);
                sender.send(()).unwrap();
            })
            .unwrap();
        receiver.recv().unwrap();
        // Dropping `other` waits for it alone.
    });
}
