//! Where the driver refuses, which only the driver knows: what is dropped in another library's
//! host callback, and who waits while another library captures.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

use fercuda_cuda::sys::types::{CUgraph, CUstreamCaptureMode};
use fercuda_cuda::{
    CaptureMode, DeviceBuffer, Image, MemoryPool, Module, PhysicalMemory, PinnedBuffer, Stream,
    VirtualRange, destroy_what_can_be,
};

use crate::{KERNELS, context, free_bytes};

const LONG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

type Things = Vec<(&'static str, Box<dyn Send>)>;

/// Runs `body` in a host function that is none of this crate's.
fn in_host_function(stream: &Stream, body: impl FnOnce() + Send + 'static) {
    type Body = Box<dyn FnOnce() + Send>;
    unsafe extern "C" fn run(body: *mut c_void) {
        // SAFETY: the box that was leaked below, once.
        let body = unsafe { Box::from_raw(body.cast::<Body>()) };
        // What panics in there has said so, and does not reach the driver.
        drop(catch_unwind(AssertUnwindSafe(*body)));
    }
    let body: *mut Body = Box::into_raw(Box::new(Box::new(body)));
    let driver = stream.context().bind().unwrap();
    // SAFETY: `run` takes the box back, once.
    let queued = unsafe { driver.cuLaunchHostFunc(stream.raw(), Some(run), body.cast()) };
    assert_eq!(queued.unwrap().name(), Some("CUDA_SUCCESS"));
}

/// One of each kind, and those that lend some hear by `tell` how it came back.
fn things(stream: &Stream, tell: &std::sync::mpsc::Sender<&'static str>) -> Things {
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
    let hears = tell.clone();
    // SAFETY: the lender goes when it hears of the end.
    let mut foreign = unsafe {
        DeviceBuffer::<u8>::foreign(context, foreign, MIB, move || {
            drop(keep_foreign);
            hears.send("foreign").ok();
        })
    }
    .unwrap();
    let hears = tell.clone();
    // SAFETY: as above; what was queued with it in `stream` is done before it goes.
    let mut lent = unsafe {
        DeviceBuffer::<u8>::lent(stream, lent, MIB, move |behind| {
            let how = match behind {
                Some(_) => "lent",
                None => "lent, of a context that is lost",
            };
            drop(keep_lent);
            hears.send(how).ok();
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

/// Nothing is taken for gone because the driver refuses to destroy it; it goes when a thread may
/// ask, and who lent memory hears of it then, and in order.
pub(crate) fn in_a_callback_of_another_library() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (tell, told) = channel();
    // Once for what the driver keeps of the first use.
    drop(things(&stream, &tell));
    stream.synchronize().unwrap();
    assert!(destroy_what_can_be());
    assert_eq!(told.try_iter().count(), 2);
    let before = free_bytes(&context);
    for (name, thing) in things(&stream, &tell) {
        let (say, said) = channel();
        in_host_function(&stream, move || {
            drop(thing);
            // Refused as well.
            say.send(destroy_what_can_be()).unwrap();
        });
        let is_gone = said.recv_timeout(LONG).expect("it waits in a callback");
        // Another driver may destroy some of them there.
        let may_be = !context.device().cuda().is_software();
        assert!(may_be || !is_gone, "{name}: taken for gone");
        assert_eq!(
            told.try_recv().ok(),
            None,
            "{name}: the lender has heard of it"
        );
        stream.synchronize().unwrap();
        assert!(destroy_what_can_be(), "{name}");
        stream.synchronize().unwrap();
        let is_lent = ["foreign", "lent"].contains(&name);
        assert_eq!(told.try_recv().ok(), is_lent.then_some(name));
    }
    assert_eq!(free_bytes(&context), before, "not given back");
}

/// Who waits for all work by the way does not break a capture that may be known of.
pub(crate) fn by_captures() {
    let context = context();
    let (stream, other) = (
        Stream::new(&context).unwrap(),
        Stream::blocking(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u8>::zeroed(&stream, 16).unwrap();
    context.settle().unwrap();
    let refused = || {
        let error = context.settle().unwrap_err();
        assert!(error.is_refusal(), "{error}");
    };
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    refused();
    out.fill(7, &stream).unwrap();
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    exec.launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [7; 16]);
    // Of another library's nobody has told us.
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
    context.settle().unwrap();
}
