//! Tests of stream hazards with checks on. They run one at a time, since findings are
//! process-wide.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_softgpu::control::{self, Config};
use fercuda_softgpu::report::{Finding, FindingKind};

fn d() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut config = Config::default();
        config.memory_bytes = 1 << 30;
        config.checks = true;
        config.quiet = true;
        assert!(control::configure(config));
        fercuda_softgpu::driver()
    })
}

macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind.
        assert_eq!(unsafe { d().$name($($arg),*) }.unwrap(), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

const PTX: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.visible .entry put(.param .u64 p)
{
    .reg .b64 %a;
    ld.param.u64 %a, [p];
    st.global.u32 [%a], 7;
    ret;
}
.visible .entry bump(.param .u64 p)
{
    .reg .b64 %a;
    .reg .b32 %r;
    ld.param.u64 %a, [p];
    ld.global.u32 %r, [%a];
    add.u32 %r, %r, 1;
    st.global.u32 [%a], %r;
    ret;
}
// when words[0] is 1: p[0] += 1, words[1] = 1; ends when words[0] is 2
.visible .entry serve(.param .u64 p, .param .u64 words)
{
    .reg .b64 %a, %w;
    .reg .b32 %r<3>;
    .reg .pred %p;
    ld.param.u64 %a, [p];
    ld.param.u64 %w, [words];
WAIT:
    nanosleep.u32 100;
    ld.acquire.sys.global.u32 %r1, [%w];
    setp.eq.u32 %p, %r1, 0;
    @%p bra WAIT;
    ld.global.u32 %r2, [%a];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%a], %r2;
    st.release.sys.global.u32 [%w+4], 1;
STAY:
    nanosleep.u32 100;
    ld.acquire.sys.global.u32 %r1, [%w];
    setp.ne.u32 %p, %r1, 2;
    @%p bra STAY;
    ret;
}
";

/// A context with two streams that know nothing of each other.
struct World {
    ctx: CUcontext,
    put: CUfunction,
    bump: CUfunction,
    a: CUstream,
    b: CUstream,
    _one: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut ctx, mut module) = (CUcontext::NULL, CUmodule::NULL);
        let (mut put, mut bump) = (CUfunction::NULL, CUfunction::NULL);
        let (mut a, mut b) = (CUstream::NULL, CUstream::NULL);
        ok!(cuInit(0));
        ok!(cuCtxCreate_v2(&mut ctx, 0, 0));
        ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut put, module, c"put".as_ptr()));
        ok!(cuModuleGetFunction(&mut bump, module, c"bump".as_ptr()));
        ok!(cuStreamCreate(&mut a, 1));
        ok!(cuStreamCreate(&mut b, 1));
        drop(control::take_findings());
        World {
            ctx,
            put,
            bump,
            a,
            b,
            _one: one,
        }
    }

    fn launch(&self, f: CUfunction, mut at: u64, stream: CUstream) {
        let mut params: [*mut c_void; 1] = [(&raw mut at).cast()];
        ok!(cuLaunchKernel(
            f,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            params.as_mut_ptr(),
            null_mut()
        ));
    }

    /// Everything found once all work is done.
    fn findings(&self) -> Vec<Finding> {
        ok!(cuCtxSynchronize());
        control::take_findings()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: our own context.
        drop(unsafe { d().cuCtxDestroy_v2(self.ctx) });
    }
}

fn alloc(len: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, len));
    at
}

fn event() -> CUevent {
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, 2));
    event
}

fn kinds(found: &[Finding]) -> Vec<FindingKind> {
    found.iter().map(|f| f.kind).collect()
}

#[test]
fn two_streams_without_an_event_between_them_are_a_hazard() {
    let w = World::new();
    let at = alloc(64);
    w.launch(w.put, at, w.a);
    w.launch(w.bump, at, w.b);
    let found = w.findings();
    // In either order: if `bump` came first, it also read uninitialised words.
    let hazard = found
        .iter()
        .find(|f| f.kind == FindingKind::StreamHazard)
        .unwrap_or_else(|| panic!("{found:?}"));
    let text = hazard.to_string();
    assert!(
        text.contains("put") && text.contains("bump") && text.contains("stream"),
        "{text}"
    );
}

#[test]
fn an_event_orders_them() {
    let w = World::new();
    let (at, e) = (alloc(64), event());
    w.launch(w.put, at, w.a);
    ok!(cuEventRecord(e, w.a));
    ok!(cuStreamWaitEvent(w.b, e, 0));
    w.launch(w.bump, at, w.b);
    assert_eq!(kinds(&w.findings()), []);
}

#[test]
fn an_event_recorded_before_the_work_does_not() {
    let w = World::new();
    let (at, e) = (alloc(64), event());
    ok!(cuEventRecord(e, w.a));
    w.launch(w.put, at, w.a);
    ok!(cuStreamWaitEvent(w.b, e, 0));
    w.launch(w.bump, at, w.b);
    assert!(kinds(&w.findings()).contains(&FindingKind::StreamHazard));
}

#[test]
fn so_does_the_host_when_it_has_waited() {
    let w = World::new();
    let (at, e) = (alloc(64), event());
    w.launch(w.put, at, w.a);
    ok!(cuStreamSynchronize(w.a));
    w.launch(w.bump, at, w.b);
    ok!(cuEventRecord(e, w.b));
    ok!(cuEventSynchronize(e));
    w.launch(w.bump, at, w.a);
    ok!(cuCtxSynchronize());
    let mut out = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut out).cast(), at, 4));
    assert_eq!((out, kinds(&w.findings())), (9, vec![]));
}

#[test]
fn the_default_stream_orders_blocking_streams_and_no_others() {
    let w = World::new();
    let at = alloc(64);
    let mut blocking = CUstream::NULL;
    ok!(cuStreamCreate(&mut blocking, 0));
    w.launch(w.put, at, CUstream::NULL);
    w.launch(w.bump, at, blocking);
    w.launch(w.bump, at, CUstream::NULL);
    assert_eq!(kinds(&w.findings()), []);
    w.launch(w.bump, at, CUstream::NULL);
    w.launch(w.bump, at, w.a);
    assert!(kinds(&w.findings()).contains(&FindingKind::StreamHazard));
}

#[test]
fn a_copy_back_on_another_stream_is_a_hazard_too() {
    let w = World::new();
    let at = alloc(64);
    let mut pinned = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 64, 0));
    w.launch(w.put, at, w.a);
    ok!(cuMemcpyDtoHAsync_v2(pinned, at, 4, w.b));
    assert!(kinds(&w.findings()).contains(&FindingKind::StreamHazard));
    w.launch(w.bump, at, w.a);
    ok!(cuMemcpyDtoHAsync_v2(pinned, at, 4, w.a));
    assert_eq!(kinds(&w.findings()), []);
}

#[test]
fn memory_freed_in_stream_order_is_gone_for_other_streams() {
    let w = World::new();
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, 64, w.a));
    w.launch(w.put, at, w.a);
    let e = event();
    ok!(cuEventRecord(e, w.a));
    ok!(cuMemFreeAsync(at, w.a));
    ok!(cuStreamSynchronize(w.a));
    assert_eq!(kinds(&w.findings()), []);
    // Ordered behind the kernel, not before the free.
    ok!(cuStreamWaitEvent(w.b, e, 0));
    w.launch(w.bump, at, w.b);
    let found = w.findings();
    assert!(
        kinds(&found).contains(&FindingKind::UseAfterFree),
        "{found:?}"
    );
    let text = found[0].to_string();
    assert!(
        text.contains("cuMemAllocAsync") && text.contains("cuMemFreeAsync"),
        "{text}"
    );
}

#[test]
fn a_free_that_no_order_puts_behind_the_last_use_is_a_hazard() {
    let w = World::new();
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, 64, w.a));
    let e = event();
    ok!(cuEventRecord(e, w.a));
    ok!(cuStreamWaitEvent(w.b, e, 0));
    w.launch(w.put, at, w.b);
    // Until here all is in order; the free does not wait for the kernel on the other stream, and
    // comes when that has written.
    pass_unseen(&w, w.b);
    ok!(cuMemFreeAsync(at, w.a));
    assert_eq!(kinds(&w.findings()), [FindingKind::StreamHazard]);
}

/// Returns once `stream` has run what it has, of which neither the host nor a stream learns in
/// order: by a word that a plain store writes.
fn pass_unseen(w: &World, stream: CUstream) {
    let mut host: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&mut host, 4, 0));
    // SAFETY: a word of our own, which the kernel writes once.
    let word = unsafe { &*host.cast::<AtomicU32>() };
    word.store(0, Ordering::SeqCst);
    w.launch(w.put, host.expose_provenance() as u64, stream);
    while word.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_pools_block_that_a_stream_has_freed_is_anothers_from_its_allocation_on() {
    let w = World::new();
    let mut pool = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    for len in [64, 61, 4099] {
        let (mut at, mut again) = (0, 0);
        ok!(cuMemAllocAsync(&mut at, len, w.a));
        ok!(cuMemsetD8Async(at, 1, len, w.a));
        w.launch(w.put, at, w.a);
        ok!(cuMemFreeAsync(at, w.a));
        pass_unseen(&w, w.a);
        // Out of quarantine.
        ok!(cuMemPoolTrimTo(pool, 0));
        ok!(cuMemAllocAsync(&mut again, len, w.b));
        assert_eq!(at, again);
        ok!(cuMemsetD8Async(at, 2, len, w.b));
        pass_unseen(&w, w.b);
        assert_eq!(kinds(&control::take_findings()), [], "{len} bytes");
        // The last owner, or the new one where it is not ordered behind the allocation.
        w.launch(w.put, at, w.a);
        pass_unseen(&w, w.a);
        // With the allocation, and with the fill if that was later: nothing orders the two.
        let found = kinds(&control::take_findings());
        assert!(!found.is_empty(), "{len} bytes");
        let is_hazard = |kind: &FindingKind| *kind == FindingKind::StreamHazard;
        assert!(found.iter().all(is_hazard), "{len} bytes: {found:?}");
        ok!(cuMemFreeAsync(at, w.b));
        drop(w.findings());
        ok!(cuMemPoolTrimTo(pool, 0));
    }
}

#[test]
fn a_use_in_another_stream_that_is_not_ordered_behind_the_allocation_is_a_hazard() {
    let w = World::new();
    for is_ordered in [false, true] {
        let mut at = 0;
        ok!(cuMemAllocAsync(&mut at, 64, w.a));
        if is_ordered {
            let e = event();
            ok!(cuEventRecord(e, w.a));
            ok!(cuStreamWaitEvent(w.b, e, 0));
        }
        w.launch(w.put, at, w.b);
        let found = w.findings();
        let hazards = kinds(&found);
        let expected: &[_] = if is_ordered {
            &[]
        } else {
            &[FindingKind::StreamHazard]
        };
        assert_eq!(hazards, expected, "{found:?}");
        ok!(cuMemFreeAsync(at, w.a));
    }
}

#[test]
fn allocations_and_frees_that_outrun_their_streams_are_no_hazards_and_find_memory() {
    let w = World::new();
    let seed = fercuda_trials::seed();
    // All of the device but 64 MiB.
    let (mut free, mut total, mut taken) = (0, 0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    let mut props = CUmemAllocationProp::default();
    props.r#type.0 = 1;
    props.location.r#type.0 = 1;
    ok!(cuMemCreate(&mut taken, free - (64 << 20), &props, 0));
    let current = w.ctx;
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ thread);
                ok!(cuCtxSetCurrent(current));
                let mut stream = CUstream::NULL;
                ok!(cuStreamCreate(&mut stream, 1));
                for _ in 0..150 {
                    let mut at = 0;
                    let len = random.usize(256..1 << 20);
                    ok!(cuMemAllocAsync(&mut at, len, stream));
                    ok!(cuMemsetD8Async(at, 1, len, stream));
                    ok!(cuMemFreeAsync(at, stream));
                }
                ok!(cuStreamDestroy_v2(stream));
            });
        }
    });
    assert_eq!(kinds(&w.findings()), []);
    ok!(cuMemRelease(taken));
}

#[test]
fn branches_of_a_graph_are_unordered_and_its_edges_are_not() {
    let w = World::new();
    for joined in [false, true] {
        let at = alloc(64);
        ok!(cuMemsetD32_v2(at, 0, 16));
        ok!(cuCtxSynchronize());
        let (fork, join) = (event(), event());
        ok!(cuStreamBeginCapture_v2(w.a, CUstreamCaptureMode(2)));
        ok!(cuEventRecord(fork, w.a));
        ok!(cuStreamWaitEvent(w.b, fork, 0));
        w.launch(w.put, at, w.a);
        if joined {
            ok!(cuEventRecord(fork, w.a));
            ok!(cuStreamWaitEvent(w.b, fork, 0));
        }
        w.launch(w.bump, at, w.b);
        ok!(cuEventRecord(join, w.b));
        ok!(cuStreamWaitEvent(w.a, join, 0));
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        ok!(cuStreamEndCapture(w.a, &mut graph));
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(cuGraphLaunch(exec, w.a));
        ok!(cuGraphLaunch(exec, w.a));
        let mut out = 0u32;
        ok!(cuMemcpyDtoHAsync_v2((&raw mut out).cast(), at, 4, w.a));
        let hazards = kinds(&w.findings());
        assert_eq!(
            hazards.contains(&FindingKind::StreamHazard),
            !joined,
            "{hazards:?}"
        );
        ok!(cuGraphExecDestroy(exec));
        ok!(cuGraphDestroy(graph));
    }
}

#[test]
fn a_value_that_a_stream_waits_for_orders_what_was_written_before_it() {
    let w = World::new();
    let (at, word) = (alloc(64), alloc(64));
    ok!(cuMemsetD32_v2(word, 0, 16));
    ok!(cuCtxSynchronize());
    ok!(cuStreamWaitValue32_v2(w.b, word, 1, 0));
    w.launch(w.bump, at, w.b);
    w.launch(w.put, at, w.a);
    ok!(cuStreamWriteValue32_v2(w.a, word, 1, 0));
    assert_eq!(kinds(&w.findings()), []);
}

#[test]
fn a_host_functions_release_to_the_host_adds_order() {
    /// Tells the host, and stays until the host has gone on.
    unsafe extern "C" fn tell(flags: *mut c_void) {
        // SAFETY: the test passes two live flags.
        let [released, went_on] = unsafe { &*flags.cast::<[AtomicU32; 2]>() };
        released.store(1, Ordering::Release);
        while went_on.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
    }
    let w = World::new();
    let at = alloc(64);
    let flags = [const { AtomicU32::new(0) }; 2];
    w.launch(w.put, at, w.a);
    ok!(cuLaunchHostFunc(
        w.a,
        Some(tell),
        (&raw const flags).cast_mut().cast()
    ));
    while flags[0].load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    w.launch(w.bump, at, w.b);
    ok!(cuStreamSynchronize(w.b));
    flags[1].store(1, Ordering::Release);
    assert_eq!(kinds(&w.findings()), []);
}

#[test]
fn memory_never_written_is_reported_where_it_is_copied_out() {
    let w = World::new();
    let (at, mut out) = (alloc(64), [0u8; 64]);
    ok!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, 64));
    let found = w.findings();
    assert_eq!(kinds(&found), [FindingKind::Uninitialised], "{found:?}");
    let text = found[0].to_string();
    assert!(
        text.contains("64-byte global read") && text.contains("cuMemcpyDtoH_v2"),
        "{text}"
    );
    let mut pinned: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 64, 0));
    ok!(cuMemcpyDtoHAsync_v2(pinned, at, 64, w.a));
    assert_eq!(kinds(&w.findings()), [FindingKind::Uninitialised]);
    ok!(cuMemFreeHost(pinned));
}

#[test]
fn a_buffer_that_is_partly_written_is_copied_out_whole() {
    let w = World::new();
    let (at, other, mut out) = (alloc(64), alloc(64), [0u8; 64]);
    // From device to device what was not written stays so, and is no finding.
    ok!(cuMemcpyDtoD_v2(other, at, 64));
    ok!(cuCtxSynchronize());
    w.launch(w.put, at, w.a);
    ok!(cuStreamSynchronize(w.a));
    ok!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, 64));
    ok!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, 0));
    assert_eq!(kinds(&w.findings()), []);
}

#[test]
fn a_free_of_pool_memory_by_call_waits_for_no_work() {
    let w = World::new();
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, 64, w.a));
    w.launch(w.put, at, w.a);
    ok!(cuMemFree_v2(at));
    let found = w.findings();
    assert_eq!(kinds(&found), [FindingKind::StreamHazard], "{found:?}");
    let text = found[0].to_string();
    assert!(
        text.contains("cuMemFree_v2") && text.contains("freed before that work was complete"),
        "{text}"
    );
}

#[test]
fn pool_memory_is_freed_by_call_when_the_host_has_waited() {
    let w = World::new();
    let used = |stream| {
        let mut at = 0;
        ok!(cuMemAllocAsync(&mut at, 64, stream));
        w.launch(w.put, at, stream);
        at
    };
    let at = used(w.a);
    ok!(cuStreamSynchronize(w.a));
    ok!(cuMemFree_v2(at));
    let (at, e) = (used(w.b), event());
    ok!(cuEventRecord(e, w.b));
    ok!(cuEventSynchronize(e));
    ok!(cuMemFree_v2(at));
    let at = used(w.a);
    ok!(cuCtxSynchronize());
    ok!(cuMemFree_v2(at));
    // So is what no work has used.
    let mut unused = 0;
    ok!(cuMemAllocAsync(&mut unused, 64, w.a));
    ok!(cuMemFree_v2(unused));
    // Ordinary memory is waited for.
    let at = alloc(64);
    w.launch(w.put, at, w.a);
    ok!(cuMemFree_v2(at));
    assert_eq!(kinds(&w.findings()), []);
}

/// Lets `serve`, which runs all the while, do its work behind a `put` in another stream, and a
/// `bump` behind it. The host waits for the `put` if the argument requests it, and for the kernel's
/// word always.
fn served_beside_a_stream(w: &World, waits: bool) -> Vec<Finding> {
    let at = alloc(64);
    let mut serve = CUfunction::NULL;
    let mut module = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut serve, module, c"serve".as_ptr()));
    let mut host: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&mut host, 8, 0));
    // SAFETY: two words of our own, which the host and the kernel use as atomics only.
    let words = unsafe { std::slice::from_raw_parts(host.cast::<AtomicU32>(), 2) };
    words
        .iter()
        .for_each(|word| word.store(0, Ordering::SeqCst));
    let (mut p, mut q) = (at, host.expose_provenance() as u64);
    let mut params: [*mut c_void; 2] = [(&raw mut p).cast(), (&raw mut q).cast()];
    ok!(cuLaunchKernel(
        serve,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        w.a,
        params.as_mut_ptr(),
        null_mut()
    ));
    w.launch(w.put, at, w.b);
    if waits {
        ok!(cuStreamSynchronize(w.b));
    }
    words[0].store(1, Ordering::SeqCst);
    while words[1].load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    w.launch(w.bump, at, w.b);
    ok!(cuStreamSynchronize(w.b));
    words[0].store(2, Ordering::SeqCst);
    let found = w.findings();
    ok!(cuMemFreeHost(host));
    found
}

#[test]
fn a_kernel_and_the_host_that_speak_to_each_other_are_ordered_by_it() {
    let w = World::new();
    assert_eq!(kinds(&served_beside_a_stream(&w, true)), []);
}

#[test]
fn a_release_adds_no_order_to_work_the_host_did_not_wait_for() {
    let w = World::new();
    let found = served_beside_a_stream(&w, false);
    assert!(
        kinds(&found).contains(&FindingKind::StreamHazard),
        "{found:?}"
    );
}
