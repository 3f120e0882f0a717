//! Cases in which the driver refuses, as only it can know: drops in another library's host
//! callback, and waits while another library captures.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

use fercuda_cuda::sys::types::{CUgraph, CUstreamCaptureMode};
use fercuda_cuda::{
    CaptureMode, DeviceBuffer, Image, MemoryPool, Module, PhysicalMemory, PinnedBuffer, Stream,
    VirtualRange, destroy_deferred,
};

use crate::{KERNELS, context, free_bytes};

const LONG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

type Objects = Vec<(&'static str, Box<dyn Send>)>;

/// Runs `body` in a host function that is not of this crate.
fn in_host_function(stream: &Stream, body: impl FnOnce() + Send + 'static) {
    type Body = Box<dyn FnOnce() + Send>;
    unsafe extern "C" fn run(body: *mut c_void) {
        // SAFETY: the box leaked below, once.
        let body = unsafe { Box::from_raw(body.cast::<Body>()) };
        // A panic has been printed, and must not reach the driver.
        drop(catch_unwind(AssertUnwindSafe(*body)));
    }
    let body: *mut Body = Box::into_raw(Box::new(Box::new(body)));
    let driver = stream.context().bind().unwrap();
    // SAFETY: `run` takes the box back, once.
    let queued = unsafe { driver.cuLaunchHostFunc(stream.raw(), Some(run), body.cast()) };
    assert_eq!(queued.unwrap().name(), Some("CUDA_SUCCESS"));
}

/// One object of each kind; the lenders of memory send by `returned` how it was returned.
fn objects(stream: &Stream, returned: &std::sync::mpsc::Sender<&'static str>) -> Objects {
    let context = stream.context();
    let mut used = [(); 2].map(|()| DeviceBuffer::<u8>::alloc_ordered(stream, MIB).unwrap());
    let other = Stream::new(context).unwrap();
    used[1].fill(1, &other).unwrap();
    let [ordered, shared] = used;
    let pool = MemoryPool::new(context, 0).unwrap();
    let of_pool = DeviceBuffer::<u8>::alloc_from(&pool, stream, MIB).unwrap();
    let bytes = PhysicalMemory::granularity_bytes(context).unwrap();
    let physical = PhysicalMemory::new(context, bytes).unwrap();
    let range = VirtualRange::reserve(context, bytes).unwrap();
    let mapped = range.map(0, &physical, &[context.device()]).unwrap();
    let kernels = Module::load(context, &Image::ptx(KERNELS)).unwrap();
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    let graph = capture.end().unwrap();
    let exec = graph.instantiate().unwrap();
    let mut lenders: [DeviceBuffer<u8>; 2] =
        [(); 2].map(|()| DeviceBuffer::alloc(context, MIB).unwrap());
    let [foreign, lent] = lenders.each_mut().map(|lender| lender.address());
    let [keep_foreign, keep_lent] = lenders;
    let owner = returned.clone();
    // SAFETY: the lender is dropped in the callback.
    let mut foreign = unsafe {
        DeviceBuffer::<u8>::foreign(context, foreign, MIB, move || {
            drop(keep_foreign);
            owner.send("foreign").ok();
        })
    }
    .unwrap();
    let owner = returned.clone();
    // SAFETY: as above; work queued with it in `stream` is done before the drop.
    let mut lent = unsafe {
        DeviceBuffer::<u8>::lent(stream, lent, MIB, move |behind| {
            let how = match behind {
                Some(_) => "lent",
                None => "lent, of a lost context",
            };
            drop(keep_lent);
            owner.send(how).ok();
        })
    }
    .unwrap();
    foreign.fill(1, stream).unwrap();
    lent.fill(1, stream).unwrap();
    vec![
        (
            "plain",
            Box::new(DeviceBuffer::<u8>::alloc(context, MIB).unwrap()),
        ),
        (
            "managed",
            Box::new(DeviceBuffer::<u8>::managed(context, MIB).unwrap()),
        ),
        ("ordered", Box::new(ordered)),
        ("ordered, used elsewhere", Box::new(shared)),
        ("ordered, of a pool", Box::new(of_pool)),
        ("foreign", Box::new(foreign)),
        ("lent", Box::new(lent)),
        ("mapped", Box::new(mapped)),
        ("range", Box::new(range)),
        ("physical memory", Box::new(physical)),
        ("pool", Box::new(pool)),
        (
            "page-locked memory",
            Box::new(PinnedBuffer::<u8>::new(context, MIB).unwrap()),
        ),
        ("module", Box::new(kernels)),
        ("event", Box::new(stream.record().unwrap())),
        ("stream", Box::new(other)),
        ("instantiated graph", Box::new(exec)),
        ("graph", Box::new(graph)),
    ]
}

/// A refused destruction is not taken to be done: it is repeated when a thread may call the driver,
/// and lenders of memory are notified then, in order.
pub(crate) fn in_a_callback_of_another_library() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (sender, returned) = channel();
    // A first pass, for what the driver retains of the first use.
    drop(objects(&stream, &sender));
    stream.synchronize().unwrap();
    assert!(destroy_deferred());
    assert_eq!(returned.try_iter().count(), 2);
    let before = free_bytes(&context);
    for (name, thing) in objects(&stream, &sender) {
        let (report, reported) = channel();
        in_host_function(&stream, move || {
            drop(thing);
            // Refused as well.
            report.send(destroy_deferred()).unwrap();
        });
        let is_gone = reported.recv_timeout(LONG).expect("it waits in a callback");
        // Another driver may destroy some of them in a callback.
        let may_be = !context.device().cuda().is_software();
        assert!(may_be || !is_gone, "{name}: taken to be destroyed");
        assert_eq!(
            returned.try_recv().ok(),
            None,
            "{name}: the lender was notified"
        );
        stream.synchronize().unwrap();
        assert!(destroy_deferred(), "{name}");
        stream.synchronize().unwrap();
        let is_lent = ["foreign", "lent"].contains(&name);
        assert_eq!(returned.try_recv().ok(), is_lent.then_some(name));
    }
    assert_eq!(free_bytes(&context), before, "not freed");
}

/// `Context::try_synchronize` does not break a capture that the crate or the driver knows of.
pub(crate) fn by_captures() {
    let context = context();
    let (stream, other) = (
        Stream::new(&context).unwrap(),
        Stream::blocking(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u8>::zeroed(&stream, 16).unwrap();
    context.try_synchronize().unwrap();
    let refused = || {
        let error = context.try_synchronize().unwrap_err();
        assert!(error.is_refusal(), "{error}");
    };
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    refused();
    out.fill(7, &stream).unwrap();
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    exec.launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [7; 16]);
    // This crate is not notified of another library's capture.
    let driver = context.bind().unwrap();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let mut graph = CUgraph::NULL;
    // SAFETY: the stream is alive; the graph is destroyed once.
    let answers = unsafe {
        let begun = driver.cuStreamBeginCapture_v2(other.raw(), mode);
        refused();
        [
            begun,
            driver.cuStreamEndCapture(other.raw(), &mut graph),
            driver.cuGraphDestroy(graph),
        ]
    };
    for answer in answers {
        assert_eq!(answer.unwrap().name(), Some("CUDA_SUCCESS"));
    }
    context.try_synchronize().unwrap();
}
