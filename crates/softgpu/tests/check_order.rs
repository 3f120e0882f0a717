//! Tests that reports do not depend on the number of threads that run checked blocks.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::sync::Arc;
use std::time::Duration;

use fercuda_softgpu::check::{CheckContext, CheckOptions};
use fercuda_softgpu::exec::{
    CompileOptions, DeviceInfo, Executor, LaunchSpec, LaunchStats, Loaded, compile,
};
use fercuda_softgpu::mem::{AddressSpace, AllocKind, DriverCallSite, GRANULE};
use fercuda_softgpu::order::{ActorId, OpKind, Order};
use fercuda_softgpu::report::{Fault, FaultKind, FindingSink};

const THREADS: [usize; 3] = [1, 2, 4];

/// A kernel `k` of one buffer; `%r0` to `%r2` are thread, block and their number in the grid of
/// 64-thread blocks, `%rd1` is the buffer and `%rd2` the thread's word in it.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 buffer)
{{
    .reg .u32 %r<16>; .reg .u64 %rd<8>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [buffer];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
    mad.lo.u32 %r2, %r1, 64, %r0;
    mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd1, %rd2;
{body}
    ret;
}}
"
    )
}

struct Outcome {
    result: Result<LaunchStats, Box<Fault>>,
    findings: Vec<String>,
    words: Vec<u32>,
}

/// Runs `blocks` of 64 threads on a buffer of which `written` bytes are initialised.
fn launch(
    ptx: &str,
    blocks: u32,
    threads: usize,
    written: u64,
    watchdog: Option<Duration>,
) -> Outcome {
    let image = compile(
        &fercuda_ptx::parse(ptx).unwrap(),
        &CompileOptions::default(),
    )
    .unwrap();
    let space = AddressSpace::new(64 * GRANULE, true).unwrap();
    let (at, _backing) = space.map_new(GRANULE, 1).unwrap();
    let (kind, site) = (AllocKind::Device, DriverCallSite::default());
    space.add(at, GRANULE, kind, 0, None, site, false, None);
    space.shadow().unwrap().mark_initialised(at, written);
    let (order, sink) = (Arc::new(Order::new()), Arc::new(FindingSink::new()));
    let loaded = Loaded::new(image, Default::default()).unwrap();
    let spec = LaunchSpec {
        grid: [blocks, 1, 1],
        block: [64, 1, 1],
        cluster: [1; 3],
        explicit_cluster: false,
        dynamic_shared_bytes: 0,
        params: at.to_le_bytes().to_vec(),
        device: DeviceInfo::default(),
        cooperative: false,
        space: space.clone(),
        checks: Some(CheckContext {
            op: order.begin(ActorId::HOST, OpKind::Call("launch")),
            order,
            sink: sink.clone(),
            options: CheckOptions::default(),
        }),
        watchdog,
        late_copies: false,
        print: Arc::new(|_| {}),
        heap: None,
        bindings: Default::default(),
        cancel: None,
    };
    let result = Executor::new(threads).run(&loaded, 0, &spec);
    let mut bytes = vec![0; 64 * 4 * blocks as usize];
    space.read(0, at, &mut bytes, None).unwrap();
    let words = bytes.as_chunks::<4>().0;
    Outcome {
        result,
        findings: sink
            .take()
            .iter()
            .map(|f| relative(&f.to_string(), at))
            .collect(),
        words: words.iter().map(|w| u32::from_le_bytes(*w)).collect(),
    }
}

/// Addresses as distances from `base`, which differs from run to run.
fn relative(text: &str, base: u64) -> String {
    let word = |w: &str| {
        let hex = w.strip_prefix("0x").map(|h| h.trim_end_matches(','));
        match hex.and_then(|h| u64::from_str_radix(h, 16).ok()) {
            Some(n) if n >= base => format!("buffer+{}", n - base),
            _ => w.to_owned(),
        }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_race_is_reported_in_the_same_words_by_any_number_of_threads() {
    // Each block reads the first word of the next one, which that one writes; word 0 is written by
    // all.
    let ptx = kernel(
        "    ld.global.u32 %r3, [%rd2+256];
    add.u32 %r3, %r3, 1;
    st.global.u32 [%rd2], %r3;
    st.global.u32 [%rd1], %r1;",
    );
    let first = launch(&ptx, 200, 1, 100_000, None);
    assert!(
        first.result.is_ok() && first.findings.len() >= 2,
        "{:?}",
        first.findings
    );
    for threads in THREADS {
        for _ in 0..10 {
            let again = launch(&ptx, 200, threads, 100_000, None);
            assert_eq!(again.findings, first.findings, "{threads} threads");
        }
    }
}

#[test]
fn what_a_lower_block_writes_is_initialised_for_a_higher_one_and_not_the_other_way() {
    // A block reads what the one before it wrote: a race, and no more. Block 0 reads uninitialised
    // words.
    let ptx = kernel(
        "    ld.global.u32 %r3, [%rd2];
    st.global.u32 [%rd2+256], %r3;",
    );
    for threads in THREADS {
        let found = launch(&ptx, 50, threads, 0, None).findings;
        let uninitialised: Vec<_> = found
            .iter()
            .filter(|f| f.contains("never written"))
            .collect();
        assert_eq!(uninitialised.len(), 1, "{found:?}");
        assert!(uninitialised[0].contains("block (0,0,0)"), "{found:?}");
    }
}

#[test]
fn blocks_that_only_tally_are_checked_in_their_order() {
    // Atomics without readers of their results: sums and a maximum, and in two blocks a plain
    // store that they meet. The words that are not initialised are the tallies' own of block 3.
    let ptx = kernel(
        "    and.b32 %r3, %r2, 7; mul.wide.u32 %rd3, %r3, 4; add.u64 %rd3, %rd1, %rd3;
    red.global.add.u32 [%rd3], 1;
    atom.global.max.u32 %r4, [%rd1+32], %r2;
    setp.eq.u32 %p1, %r1, 3; @%p1 red.global.add.u32 [%rd2+65536], %r2;
    setp.ne.u32 %p0, %r0, 0; @%p0 ret;
    setp.lt.u32 %p0, %r1, 198; @%p0 ret;
    st.global.u32 [%rd1+36], %r1; red.global.add.u32 [%rd1+36], 1;",
    );
    let first = launch(&ptx, 200, 1, 60_000, None);
    assert!(first.findings.len() >= 2, "{:?}", first.findings);
    for threads in THREADS {
        for _ in 0..5 {
            let again = launch(&ptx, 200, threads, 60_000, None);
            assert_eq!(again.findings, first.findings, "{threads} threads");
            assert_eq!(again.words[..8], [1600; 8]);
            assert_eq!(again.words[8], 200 * 64 - 1);
        }
    }
}

#[test]
fn the_fault_is_the_lowest_block_s_however_late_it_comes() {
    // Block 1 takes long and then faults; the others do at once, and what they do before is not
    // reported.
    let ptx = kernel(
        "    setp.eq.u32 %p0, %r1, 0;
    @%p0 ret;
    setp.ne.u32 %p0, %r1, 1;
    @%p0 bra BAD;
    mov.u32 %r3, 0;
LOOP:
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 200000;
    @%p1 bra LOOP;
BAD:
    ld.global.u32 %r4, [%rd2];
    mov.u64 %rd3, 64;
    st.global.u32 [%rd3], %r1;",
    );
    let first = launch(&ptx, 40, 1, 0, None);
    for threads in THREADS {
        let again = launch(&ptx, 40, threads, 0, None);
        let fault = again.result.unwrap_err();
        assert!(
            matches!(fault.kind, FaultKind::IllegalAddress(_)),
            "{fault}"
        );
        assert_eq!(fault.place.map(|p| p.block), Some([1, 0, 0]));
        assert_eq!(again.findings, first.findings, "{threads} threads");
    }
}

#[test]
fn a_block_that_does_more_than_it_can_write_down_waits_for_its_turn() {
    // Scattered words of the buffer, many times over: 5,000 accesses of 256 bytes each for every
    // warp. The last block reads one uninitialised word.
    let ptx = kernel(
        "    mov.u32 %r3, 0; mov.u32 %r5, 0;
LOOP:
    mad.lo.u32 %r4, %r0, 7919, %r3; and.b32 %r4, %r4, 2047;
    mul.wide.u32 %rd3, %r4, 4; add.u64 %rd3, %rd1, %rd3;
    ld.global.u32 %r6, [%rd3+131072]; add.u32 %r5, %r5, %r6;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 5000;
    @%p1 bra LOOP;
    st.global.u32 [%rd2], %r5;
    setp.ne.u32 %p0, %r1, 11;
    @%p0 ret;
    ld.global.u32 %r6, [%rd1+262144];",
    );
    for threads in THREADS {
        let o = launch(&ptx, 12, threads, 200_000, None);
        assert_eq!(o.result.unwrap().blocks, 12);
        assert_eq!(o.words, vec![0; 64 * 12]);
        assert_eq!(o.findings.len(), 1, "{:?}", o.findings);
        assert!(o.findings[0].contains("block (11,0,0)"), "{:?}", o.findings);
    }
}

#[test]
fn a_block_that_never_ends_is_stopped_with_what_it_had_done() {
    let ptx = kernel(
        "    ld.global.u32 %r3, [%rd2];
    setp.ne.u32 %p0, %r1, 3;
    @%p0 ret;
LOOP:
    bra LOOP;",
    );
    // A machine that is busy elsewhere may stop the launch before block 3 has come to its load.
    let longer = |o: &Outcome, watchdog_ms: u64| o.findings.is_empty() && watchdog_ms < 60_000;
    for threads in THREADS {
        let mut watchdog_ms = 200;
        let o = loop {
            let watchdog = Duration::from_millis(watchdog_ms);
            let o = launch(&ptx, 8, threads, 3 * 256, Some(watchdog));
            if !longer(&o, watchdog_ms) {
                break o;
            }
            watchdog_ms *= 4;
        };
        let fault = o.result.unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Timeout { .. }), "{fault}");
        let place = fault.place.expect("where it was stopped");
        assert_eq!((place.block, &*place.opcode), ([3, 0, 0], "bra"));
        assert_eq!(o.findings.len(), 1, "{:?}", o.findings);
        assert!(o.findings[0].contains("block (3,0,0)"), "{:?}", o.findings);
    }
}

#[test]
fn a_wait_for_an_mbarrier_that_never_completes_is_stopped_at_the_wait() {
    // Of the two warps that it expects one arrives; the other waits at a barrier for both.
    let ptx = kernel(
        "    .shared .align 8 .b64 full;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [full], 64;
    bar.sync 0;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra SECOND;
    mbarrier.arrive.shared.b64 %rd3, [full];
WAIT:
    mbarrier.test_wait.shared.b64 %p2, [full], %rd3;
    @!%p2 bra WAIT;
SECOND:
    bar.sync 0;",
    );
    let line = 1 + ptx.lines().position(|it| it.contains("test_wait")).unwrap() as u32;
    for threads in THREADS {
        let o = launch(&ptx, 2, threads, 4, Some(Duration::from_millis(300)));
        let fault = o.result.unwrap_err();
        let FaultKind::Deadlock(why) = &fault.kind else {
            panic!("{fault}");
        };
        assert!(why.contains("missing are 32 of 64 arrivals"), "{fault}");
        let place = fault.place.unwrap();
        assert_eq!(place.block, [0, 0, 0], "{place}");
        assert_eq!(place.thread, [32, 0, 0], "{place}");
        assert!((line..line + 2).contains(&place.ptx_line), "{place}");
    }
}

#[test]
fn blocks_that_may_wait_for_each_other_still_do() {
    // Each block waits for the one behind it, by a volatile load.
    let ptx = kernel(
        "    setp.eq.u32 %p0, %r1, 3;
    @%p0 bra SET;
LOOP:
    ld.volatile.global.u32 %r3, [%rd2+256];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra LOOP;
SET:
    mov.u32 %r4, 1;
    st.volatile.global.u32 [%rd2], %r4;",
    );
    for threads in THREADS {
        let o = launch(&ptx, 4, threads, 100_000, Some(Duration::from_secs(60)));
        assert!(o.result.is_ok(), "{:?}", o.result);
        assert_eq!(o.words, vec![1; 64 * 4]);
    }
}

#[test]
fn blocks_that_wait_for_a_plain_word_come_to_an_end_and_are_reported() {
    // All blocks but the last wait for it, by loads that nothing makes volatile; the compiler of a
    // program forgot a word. One thread alone would wait with the first block for ever, two with
    // the first and the second.
    let wait = |pause: &str| {
        kernel(&format!(
            "    setp.eq.u32 %p0, %r1, 3;
    @%p0 bra SET;
LOOP:
    {pause}
    ld.global.u32 %r3, [%rd1];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra LOOP;
    ret;
SET:
    mov.u32 %r4, 1;
    st.global.u32 [%rd1], %r4;"
        ))
    };
    for ptx in [wait(""), wait("nanosleep.u32 20;")] {
        for threads in THREADS {
            let o = launch(&ptx, 4, threads, 100_000, Some(Duration::from_secs(60)));
            assert_eq!(o.result.unwrap().blocks, 4, "{threads} threads");
            assert_eq!(o.findings.len(), 1, "{:?}", o.findings);
            assert!(
                o.findings[0].contains("global memory race"),
                "{:?}",
                o.findings
            );
        }
    }
}

#[test]
fn a_volatile_word_of_a_thread_s_own_orders_no_blocks() {
    // The same local address in both blocks, but not the same word.
    for space in [".local", ""] {
        let ptx = kernel(&format!(
            "    .local .align 4 .b8 own[16];
    mov.u64 %rd3, own;
    {}
    mov.u32 %r4, 1;
    setp.eq.u32 %p0, %r1, 1;
    @%p0 bra SECOND;
    st.global.u32 [%rd1], %r4;
    membar.gl;
    st.volatile{space}.u32 [%rd3], %r4;
    ret;
SECOND:
    st.volatile{space}.u32 [%rd3], %r4;
    ld.volatile{space}.u32 %r5, [%rd3];
    ld.global.u32 %r6, [%rd1];",
            if space.is_empty() {
                "cvta.local.u64 %rd3, %rd3;"
            } else {
                ""
            }
        ));
        let found = launch(&ptx, 2, 1, 100_000, None).findings;
        assert!(
            found
                .iter()
                .any(|f| f.contains("line 2") && f.contains("global read")),
            "{found:?}"
        );
    }
}
