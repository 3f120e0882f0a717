//! Resident kernels, which run until the host asks them to stop, and drops meanwhile. A drop that
//! would wait for one for ever fails here instead.

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fercuda_cuda::{
    CaptureMode, Context, DeviceBuffer, Function, Image, Launch, Module, PhysicalMemory,
    PinnedBuffer, ResidentKernelGuard, SharedWords, Stream, VirtualRange, destroy_deferred,
};

use crate::{KERNELS, context};

const LONG: Duration = Duration::from_secs(30);
const MIB: usize = 1 << 20;

/// A kernel that polls a word until it is not 0.
const POLLS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry polls(.param .u64 word)
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

/// Runs `work`, and fails if that takes too long.
fn soon<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (give, take) = channel();
    thread::spawn(move || give.send(work()).unwrap());
    take.recv_timeout(LONG).expect("it takes too long")
}

/// A kernel that is resident from [`Kernel::begin`] to [`Kernel::end`].
struct Kernel {
    word: SharedWords,
    function: Function,
    stream: Stream,
    guard: Option<ResidentKernelGuard>,
}

impl Kernel {
    fn new(context: &Context) -> Self {
        let module = Module::load(context, &Image::ptx(POLLS)).unwrap();
        Self {
            word: SharedWords::new(context, 1).unwrap(),
            function: module.function("polls").unwrap(),
            stream: Stream::new(context).unwrap(),
            guard: None,
        }
    }

    fn begin(&mut self) {
        self.guard = Some(self.stream.context().guard_resident_kernel());
        let word = self.word.device_address().unwrap();
        // SAFETY: it reads the word, which lives until it has ended.
        unsafe { Launch::new(1, 1).run(&self.function, &self.stream, (word,)) }.unwrap();
    }

    fn end(&mut self) {
        self.request_stop();
        self.stream.synchronize().unwrap();
        self.guard = None;
    }

    fn request_stop(&self) {
        self.word.words()[0].store(1, Ordering::Release);
    }
}

impl Drop for Kernel {
    /// Stops the kernel, so that a failing test ends.
    fn drop(&mut self) {
        self.request_stop();
    }
}

fn free_bytes(context: &Context) -> u64 {
    context.memory_info().unwrap().0
}

/// Objects dropped while a kernel was resident are destroyed when none is, and not while the next
/// one is.
pub(crate) fn one_after_the_other() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut kernel = Kernel::new(&context);
    let before = free_bytes(&context);
    let plain = DeviceBuffer::<u8>::alloc(&context, MIB).unwrap();
    let pinned = PinnedBuffer::<u8>::new(&context, MIB).unwrap();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let first = context.guard_resident_kernel();
    drop((plain, pinned, module));
    drop(first);
    kernel.begin();
    let waited = soon(move || {
        let memory = DeviceBuffer::<u8>::alloc_ordered(&stream, 64).unwrap();
        stream.synchronize().unwrap();
        (memory, stream)
    });
    assert!(free_bytes(&context) < before, "it was freed");
    kernel.end();
    assert!(destroy_deferred());
    drop(waited);
    context.synchronize().unwrap();
    assert_eq!(free_bytes(&context), before);
}

/// A drop that has waited for the work with the memory does not wait for a kernel that became
/// resident meanwhile.
pub(crate) fn started_meanwhile() {
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
    // Time for the drop to wait for the stream. If it does not yet, this shows nothing.
    thread::sleep(Duration::from_millis(100));
    kernel.begin();
    go_on.send(()).unwrap();
    soon(move || dropped.join()).unwrap();
    assert!(free_bytes(&context) < before, "it was freed");
    kernel.end();
    assert!(destroy_deferred());
    assert_eq!(free_bytes(&context), before);
}

/// An object used in a stream that has no handle in the dropping thread does not wait for all
/// streams while a kernel is resident.
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
    assert!(free_bytes(&context) < before, "it was freed");
    kernel.end();
    assert!(destroy_deferred());
    stream.synchronize().unwrap();
    assert_eq!(free_bytes(&context), before);
}

/// Resetting a context ends the resident kernels in it, even if their guards live on.
pub(crate) fn in_a_context_that_is_reset() {
    let context = context();
    let lost = context.guard_resident_kernel();
    let pinned = PinnedBuffer::<u8>::new(&context, MIB).unwrap();
    drop(pinned);
    assert!(context.has_resident_kernel());
    // SAFETY: no other thread uses the context.
    let after = unsafe { context.reset() }.unwrap();
    assert!(
        !after.has_resident_kernel(),
        "it has ended with the context"
    );
    assert!(destroy_deferred());
    // A guard of the old context that is dropped late does not end a kernel of the new one.
    let guard = after.guard_resident_kernel();
    drop(lost);
    assert!(after.has_resident_kernel());
    let before = free_bytes(&after);
    let plain = DeviceBuffer::<u8>::alloc(&after, MIB).unwrap();
    drop(plain);
    assert!(free_bytes(&after) < before, "it was freed");
    drop(guard);
    assert!(!after.has_resident_kernel() && destroy_deferred());
    assert_eq!(free_bytes(&after), before);
}

/// Objects that belong to no context are destroyed by no reset, and dropping them does not wait for
/// a kernel that is resident in the next context.
pub(crate) fn beyond_a_reset() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let bytes = PhysicalMemory::granularity_bytes(&context).unwrap();
    let range = VirtualRange::reserve(&context, bytes).unwrap();
    let physical = PhysicalMemory::new(&context, bytes).unwrap();
    let mapped = range.map(0, &physical, &[context.device()]).unwrap();
    // Whether a pool's memory outlives the context depends on the driver.
    let is_software = context.device().cuda().is_software();
    let ordered = || DeviceBuffer::<u8>::alloc_ordered(&stream, MIB).unwrap();
    let ordered = is_software.then(ordered);
    let bytes = bytes + if is_software { MIB } else { 0 };
    stream.synchronize().unwrap();
    // SAFETY: no other thread uses the context.
    let after = unsafe { context.reset() }.unwrap();
    let mut kernel = Kernel::new(&after);
    let before = free_bytes(&after);
    kernel.begin();
    soon(move || drop((ordered, mapped, range, physical)));
    assert_eq!(free_bytes(&after), before, "it was freed");
    kernel.end();
    assert!(destroy_deferred());
    assert!(
        free_bytes(&after) >= before + bytes as u64,
        "it was not freed"
    );
}
