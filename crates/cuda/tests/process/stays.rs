//! Kernels that stay until the host tells them to end, and what is dropped meanwhile. What
//! would wait for one for ever fails here instead.

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fercuda_cuda::{
    CaptureMode, Context, DeviceBuffer, Function, Image, Launch, Module, PhysicalMemory,
    PinnedBuffer, SharedWords, Stay, Stream, VirtualRange, destroy_what_can_be,
};

use crate::{KERNELS, context};

const LONG: Duration = Duration::from_secs(30);
const MIB: usize = 1 << 20;

/// It looks at a word until that is not 0.
const STAYS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry stays(.param .u64 word)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [word];
shut:
    nanosleep.u32 1000;
    ld.acquire.sys.global.u32 %r1, [%d1];
    setp.eq.u32 %p, %r1, 0;
    @%p bra shut;
    ret;
}
";

/// Does it, and fails if that takes too long.
fn soon<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (give, take) = channel();
    thread::spawn(move || give.send(work()).unwrap());
    take.recv_timeout(LONG).expect("it takes too long")
}

/// A kernel that stays from [`Kernel::begin`] to [`Kernel::end`].
struct Kernel {
    word: SharedWords,
    function: Function,
    stream: Stream,
    stay: Option<Stay>,
}

impl Kernel {
    fn new(context: &Context) -> Self {
        let module = Module::load(context, &Image::ptx(STAYS)).unwrap();
        Self {
            word: SharedWords::new(context, 1).unwrap(),
            function: module.function("stays").unwrap(),
            stream: Stream::new(context).unwrap(),
            stay: None,
        }
    }

    fn begin(&mut self) {
        self.stay = Some(self.stream.context().stay());
        let word = self.word.device_address().unwrap();
        // SAFETY: it reads the word, which stays until it has ended.
        unsafe { Launch::new(1, 1).run(&self.function, &self.stream, (word,)) }.unwrap();
    }

    fn end(&mut self) {
        self.tell();
        self.stream.synchronize().unwrap();
        self.stay = None;
    }

    fn tell(&self) {
        self.word.words()[0].store(1, Ordering::Release);
    }
}

impl Drop for Kernel {
    /// So that a test that fails ends.
    fn drop(&mut self) {
        self.tell();
    }
}

fn free_bytes(context: &Context) -> u64 {
    context.memory_info().unwrap().0
}

/// What was dropped while a kernel stayed is given back when one stays no more, and not
/// while the next does.
pub(crate) fn one_after_the_other() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut kernel = Kernel::new(&context);
    let before = free_bytes(&context);
    let plain = DeviceBuffer::<u8>::alloc(&context, MIB).unwrap();
    let pinned = PinnedBuffer::<u8>::new(&context, MIB).unwrap();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let first = context.stay();
    drop((plain, pinned, module));
    drop(first);
    kernel.begin();
    let asks = soon(move || {
        let memory = DeviceBuffer::<u8>::alloc_ordered(&stream, 64).unwrap();
        stream.synchronize().unwrap();
        (memory, stream)
    });
    assert!(free_bytes(&context) < before, "it was given back");
    kernel.end();
    assert!(destroy_what_can_be());
    drop(asks);
    context.synchronize().unwrap();
    assert_eq!(free_bytes(&context), before);
}

/// Who has waited for the work with what it drops does not wait for a kernel that began
/// meanwhile.
pub(crate) fn begun_meanwhile() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut kernel = Kernel::new(&context);
    let before = free_bytes(&context);
    let (go_on, waits) = channel::<()>();
    let mut plain = DeviceBuffer::<u8>::alloc(&context, MIB).unwrap();
    stream
        .host_callback(move || {
            waits.recv_timeout(LONG).ok();
        })
        .unwrap();
    plain.fill_bytes(0, &stream).unwrap();
    let dropped = thread::spawn(move || drop(plain));
    // So that it waits for the stream. If it does not yet, this shows nothing.
    thread::sleep(Duration::from_millis(100));
    kernel.begin();
    go_on.send(()).unwrap();
    soon(move || dropped.join()).unwrap();
    assert!(free_bytes(&context) < before, "it was given back");
    kernel.end();
    assert!(destroy_what_can_be());
    assert_eq!(free_bytes(&context), before);
}

/// What was used in a stream that has no name in the thread that drops it is not waited
/// for by way of all streams while a kernel stays.
pub(crate) fn of_another_thread() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut kernel = Kernel::new(&context);
    let before = free_bytes(&context);
    let mut ordered = DeviceBuffer::<u8>::alloc_ordered(&stream, MIB).unwrap();
    let mut captured = DeviceBuffer::<u8>::alloc_ordered(&stream, MIB).unwrap();
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    captured.fill_bytes(0, &stream).unwrap();
    let mut graph = capture.end().unwrap().instantiate().unwrap();
    drop(captured);
    let (ordered, graph) = {
        let context = context.clone();
        let uses = move || {
            let own = context.per_thread_stream();
            ordered.fill_bytes(0, &own).unwrap();
            graph.launch(&own).unwrap();
            own.synchronize().unwrap();
            (ordered, graph)
        };
        thread::spawn(uses).join().unwrap()
    };
    kernel.begin();
    soon(move || drop((ordered, graph)));
    assert!(free_bytes(&context) < before, "it was given back");
    kernel.end();
    assert!(destroy_what_can_be());
    stream.synchronize().unwrap();
    assert_eq!(free_bytes(&context), before);
}

/// With a context that is reset go the kernels that stayed there, whoever still says so.
pub(crate) fn in_a_context_that_is_reset() {
    let context = context();
    let lost = context.stay();
    let pinned = PinnedBuffer::<u8>::new(&context, MIB).unwrap();
    drop(pinned);
    assert!(context.has_stay());
    // SAFETY: nobody else is here.
    let after = unsafe { context.reset() }.unwrap();
    assert!(!after.has_stay(), "it has ended with the context");
    assert!(destroy_what_can_be());
    // Who is late does not take another's away.
    let stay = after.stay();
    drop(lost);
    assert!(after.has_stay());
    let before = free_bytes(&after);
    let plain = DeviceBuffer::<u8>::alloc(&after, MIB).unwrap();
    drop(plain);
    assert!(free_bytes(&after) < before, "it was given back");
    drop(stay);
    assert!(!after.has_stay() && destroy_what_can_be());
    assert_eq!(free_bytes(&after), before);
}

/// What is no context's goes with none, and who drops it does not wait for a kernel that
/// stays in the one that came after.
pub(crate) fn beyond_a_reset() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let bytes = PhysicalMemory::granularity_bytes(&context).unwrap();
    let range = VirtualRange::reserve(&context, bytes).unwrap();
    let physical = PhysicalMemory::new(&context, bytes).unwrap();
    let mapped = range.map(0, &physical, &[context.device()]).unwrap();
    // Whether a pool's memory outlives the context is a driver's own affair.
    let is_software = context.device().cuda().is_software();
    let ordered = || DeviceBuffer::<u8>::alloc_ordered(&stream, MIB).unwrap();
    let ordered = is_software.then(ordered);
    let bytes = bytes + if is_software { MIB } else { 0 };
    stream.synchronize().unwrap();
    // SAFETY: nobody else is here.
    let after = unsafe { context.reset() }.unwrap();
    let mut kernel = Kernel::new(&after);
    let before = free_bytes(&after);
    kernel.begin();
    soon(move || drop((ordered, mapped, range, physical)));
    assert_eq!(free_bytes(&after), before, "it was given back");
    kernel.end();
    assert!(destroy_what_can_be());
    assert!(
        free_bytes(&after) >= before + bytes as u64,
        "it was not given back"
    );
}
