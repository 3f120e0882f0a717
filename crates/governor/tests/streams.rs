//! Pool memory in use by kernels of several streams, on the software device with its checks: a
//! reallocated block is never still in use.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

#[macro_use]
mod support;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_governor::{DriverClock, StreamOrigin, VmmBacking};
use fercuda_pool::{
    AllocationRequest, BreakableRules, DeviceClock, DevicePool, MemoryBudget, PoolPlace, ReuseRule,
    StreamId, TenantId,
};
use fercuda_softgpu::control::{self, Config};
use fercuda_softgpu::report::FindingKind;

const PTX: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 p, .param .u32 n, .param .u32 value)
{
    .reg .b64 %a, %o; .reg .b32 %i, %n, %v; .reg .pred %p;
    ld.param.u64 %a, [p]; ld.param.u32 %n, [n]; ld.param.u32 %v, [value];
    mov.u32 %i, %tid.x;
LOOP:
    setp.ge.u32 %p, %i, %n;
    @%p ret;
    mul.wide.u32 %o, %i, 4; add.u64 %o, %a, %o;
    st.global.u32 [%o], %v;
    add.u32 %i, %i, 64;
    bra LOOP;
}
.visible .entry differ(.param .u64 p, .param .u32 n, .param .u32 value, .param .u64 count)
{
    .reg .b64 %a, %o, %c; .reg .b32 %i, %n, %v, %w; .reg .pred %p, %q;
    ld.param.u64 %a, [p]; ld.param.u32 %n, [n]; ld.param.u32 %v, [value]; ld.param.u64 %c, [count];
    mov.u32 %i, %tid.x;
LOOP:
    setp.ge.u32 %p, %i, %n;
    @%p ret;
    mul.wide.u32 %o, %i, 4; add.u64 %o, %a, %o;
    ld.global.u32 %w, [%o];
    setp.ne.u32 %q, %w, %v;
    @%q red.global.add.u32 [%c], 1;
    add.u32 %i, %i, 64;
    bra LOOP;
}
";

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut config = Config::default();
        config.memory_bytes = 64 << 20;
        config.checks = true;
        config.quiet = true;
        assert!(control::configure(config));
        fercuda_softgpu::driver()
    })
}

fn launch(function: CUfunction, stream: CUstream, mut arguments: Vec<u64>) {
    let mut pointers: Vec<*mut c_void> = arguments
        .iter_mut()
        .map(|a| std::ptr::from_mut(a).cast())
        .collect();
    ok!(cuLaunchKernel(
        function,
        1,
        1,
        1,
        64,
        1,
        1,
        0,
        stream,
        pointers.as_mut_ptr(),
        null_mut()
    ));
}

struct Block {
    address: u64,
    words: u64,
    value: u64,
    stream: usize,
}

const STREAMS: usize = 4;

/// Findings of the checks, and how many words differed from those written.
struct Seen {
    hazards: Vec<String>,
    wrong: u32,
    made: u32,
}

/// Runs a random program; with `broken`, on a pool that breaks a rule; with `arenas`, as a thread
/// under constant lock contention.
fn run(seed: u64, broken: Option<ReuseRule>, arenas: bool) -> Seen {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut context, mut module) = (CUcontext::NULL, CUmodule::NULL);
    let (mut fill, mut differ) = (CUfunction::NULL, CUfunction::NULL);
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut fill, module, c"fill".as_ptr()));
    ok!(cuModuleGetFunction(&mut differ, module, c"differ".as_ptr()));
    let clock = DriverClock::new(driver());
    clock.add_context(context);
    let mut streams = [CUstream::NULL; STREAMS];
    for (n, stream) in streams.iter_mut().enumerate() {
        ok!(cuStreamCreate(stream, 1));
        // SAFETY: a stream of the context, which outlives the test.
        unsafe { clock.add_stream(StreamId(n as u64), context, StreamOrigin::Created(*stream)) };
    }
    let mut counter = 0;
    ok!(cuMemAlloc_v2(&mut counter, 4));
    ok!(cuMemsetD8_v2(counter, 0, 4));
    let vmm = VmmBacking::new(driver(), 0).unwrap();
    // Little memory, so that it is reused constantly.
    let pool: DevicePool<_, _, _, BreakableRules> =
        DevicePool::with_rules(vmm, clock, MemoryBudget::new(16 << 20));
    if let Some(rule) = broken {
        pool.break_rule(rule);
    }
    let mut live: Vec<Block> = Vec::new();
    let mut made = 0;
    for step in 0..3000u64 {
        if arenas && step.is_multiple_of(64) {
            pool.assume_contention();
        }
        let bits = random.u64(..);
        let stream = (bits >> 8) as usize % STREAMS;
        if bits.is_multiple_of(2) || live.is_empty() {
            let words = (bits >> 16)
                % if bits.is_multiple_of(32) {
                    300_000
                } else {
                    4000
                }
                + 1;
            let request = AllocationRequest {
                bytes: words * 4,
                align_bytes: 512,
                place: PoolPlace::Stream(StreamId(stream as u64)),
                tenant: TenantId(0),
                note: (),
            };
            let Ok(span) = pool.allocate(&request) else {
                continue;
            };
            made += 1;
            launch(fill, streams[stream], vec![span.address, words, step]);
            live.push(Block {
                address: span.address,
                words,
                value: step,
                stream,
            });
        } else {
            let block = live.swap_remove((bits >> 16) as usize % live.len());
            let follow = || {
                let clock = pool.clock();
                let point = clock.record_fence(PoolPlace::Stream(StreamId(block.stream as u64)));
                assert!(clock.wait(StreamId(stream as u64), &point.unwrap()));
            };
            // Read, and freed, in the stream that wrote it, or in another that waits for that.
            let reader = match bits % 8 {
                5 if stream != block.stream => {
                    follow();
                    stream
                }
                _ => block.stream,
            };
            launch(
                differ,
                streams[reader],
                vec![block.address, block.words, block.value, counter],
            );
            let place = match bits % 8 {
                1 => PoolPlace::Anywhere,
                3 if stream != block.stream => {
                    follow();
                    PoolPlace::Stream(StreamId(stream as u64))
                }
                _ => PoolPlace::Stream(StreamId(reader as u64)),
            };
            pool.free(block.address, place).unwrap();
        }
        if bits % 512 == 1 {
            pool.trim();
        }
        pool.audit().unwrap();
    }
    ok!(cuCtxSynchronize());
    let mut wrong = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut wrong).cast(), counter, 4));
    let findings = control::take_findings();
    let hazards = findings
        .iter()
        .filter(|f| f.kind != FindingKind::GlobalRace)
        .map(ToString::to_string)
        .collect();
    for block in live {
        pool.free(block.address, PoolPlace::Anywhere).unwrap();
    }
    let begun = pool.begin_host_wait(None);
    ok!(cuCtxSynchronize());
    pool.end_host_wait(&begun);
    pool.trim();
    assert_eq!((pool.usage().bytes, pool.budget().used_bytes()), (0, 0));
    drop(pool);
    ok!(cuCtxDestroy_v2(context));
    Seen {
        hazards,
        wrong,
        made,
    }
}

fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}

/// One test, since findings belong to the process.
#[test]
fn blocks_that_move_between_streams_are_never_in_use_twice_unless_a_rule_is_broken() {
    let seed = fresh_seed();
    println!("seed {seed}");
    for arenas in [false, true] {
        let seen = run(seed, None, arenas);
        assert_eq!(seen.hazards, Vec::<String>::new());
        assert_eq!(seen.wrong, 0, "words overwritten by another stream");
        assert!(seen.made > 1000, "{} blocks", seen.made);
    }
    for (rule, arenas) in [
        (ReuseRule::OthersWait, false),
        (ReuseRule::WaitsHaveAnEnd, false),
        (ReuseRule::FencesHaveAnEnd, false),
        (ReuseRule::AnywhereWaits, false),
        (ReuseRule::ElsewhereIsLost, true),
    ] {
        // Threads cache most of the blocks freed in a stream for that stream, so a single program
        // may not trigger the violation. An unbounded wait is detected in one of ten to twenty: 400
        // programs miss it once in a hundred million runs.
        let seen = (0..400)
            .map(|n| run(seed + n, Some(rule), arenas))
            .find(|seen| !seen.hazards.is_empty());
        let seen =
            seen.unwrap_or_else(|| panic!("{rule:?} is broken, and no violation was detected"));
        println!("{rule:?}: {}", seen.hazards[0]);
        assert!(seen.hazards.iter().any(|hazard| hazard.contains("hazard")));
    }
}
