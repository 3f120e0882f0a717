//! Tests of the engine alone: launches during which the simulator fails, threads that wait, and the
//! order of blocks on one thread.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use fercuda_softgpu::exec::{CompileOptions, DeviceInfo, Executor, LaunchSpec, Loaded, compile};
use fercuda_softgpu::mem::AddressSpace;
use fercuda_softgpu::report::FaultKind;

const PTX: &str = ".version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);
.global .b8 text[3] = {104, 105, 0};
.visible .entry say()
{
    .reg .b64 %a;
    .param .b32 r;
    .param .b64 f;
    .param .b64 v;
    mov.u64 %a, text;
    st.param.b64 [f], %a;
    st.param.b64 [v], 0;
    call (r), vprintf, (f, v);
    ret;
}
";

#[test]
fn a_thread_that_fails_ends_the_launch_and_is_waited_for_no_longer() {
    let image = compile(
        &fercuda_ptx::parse(PTX).unwrap(),
        &CompileOptions::default(),
    )
    .unwrap();
    let space = AddressSpace::new(1 << 30, false).unwrap();
    let (at, _backing) = space.map_new(1, 1).unwrap();
    space.write(0, at, b"hi\0", None).unwrap();
    let addresses = [(Arc::from("text"), at)].into_iter().collect();
    // Helpers fail when they print; the launching thread waits until one has.
    let failed = Arc::new(AtomicBool::new(false));
    let print = {
        let failed = failed.clone();
        move |_: &str| {
            let name = std::thread::current().name().unwrap_or("").to_owned();
            if name.starts_with("fercuda-block") {
                failed.store(true, Ordering::Release);
                panic!("a defect, made for this test");
            }
            while !failed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    };
    let loaded = Loaded::new(image, addresses).unwrap();
    let spec = LaunchSpec {
        grid: [64, 1, 1],
        block: [1, 1, 1],
        cluster: [1; 3],
        explicit_cluster: false,
        dynamic_shared_bytes: 0,
        params: Vec::new(),
        device: DeviceInfo::default(),
        cooperative: false,
        space,
        checks: None,
        watchdog: None,
        late_copies: false,
        print: Arc::new(print),
        heap: None,
        bindings: Default::default(),
        cancel: None,
    };
    let (done, ended) = channel();
    std::thread::spawn(move || {
        done.send(Executor::new(4).run(&loaded, 0, &spec).map(|_| ()))
            .ok()
    });
    let fault = ended.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(fault.unwrap_err().kind, FaultKind::Internal);
}

/// Two warps: one rests until a word is set, the other waits for it at a barrier.
const RESTING: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry resting(.param .u64 word)
{
    .reg .b64 %a;
    .reg .b32 %r<3>;
    .reg .pred %p<3>;
    ld.param.u64 %a, [word];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra MEET;
LOOP:
    nanosleep.u32 1000;
    ld.volatile.global.u32 %r2, [%a];
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra LOOP;
MEET:
    bar.warp.sync -1;
    bar.sync 0;
    ret;
}
";

/// What this thread has spent on a processor.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let first = text.split_whitespace().next().map(str::parse);
    Duration::from_nanos(first.and_then(Result::ok).expect("a number"))
}

/// A launch of a kernel whose parameter is the address of a buffer, for a minute at most.
fn on_buffer(space: &Arc<AddressSpace>, at: u64, blocks: u32, threads: u32) -> LaunchSpec {
    LaunchSpec {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        cluster: [1; 3],
        explicit_cluster: false,
        dynamic_shared_bytes: 0,
        params: at.to_le_bytes().to_vec(),
        device: DeviceInfo::default(),
        cooperative: false,
        space: space.clone(),
        checks: None,
        watchdog: Some(Duration::from_secs(60)),
        late_copies: false,
        print: Arc::new(|_: &str| ()),
        heap: None,
        bindings: Default::default(),
        cancel: None,
    }
}

#[test]
fn threads_that_rest_leave_the_processor_to_others() {
    let wait = Duration::from_millis(400);
    let image = compile(
        &fercuda_ptx::parse(RESTING).unwrap(),
        &CompileOptions::default(),
    )
    .unwrap();
    for blocks in [1, 3] {
        let space = AddressSpace::new(1 << 30, false).unwrap();
        let (word, _backing) = space.map_new(1 << 12, 1).unwrap();
        let loaded = Loaded::new(image.clone(), Default::default()).unwrap();
        let spec = on_buffer(&space, word, blocks, 64);
        let setter = std::thread::spawn(move || {
            std::thread::sleep(wait);
            space.write(0, word, &1_u32.to_le_bytes(), None).unwrap();
        });
        let before = busy();
        Executor::new(1).run(&loaded, 0, &spec).unwrap();
        let spent = busy() - before;
        setter.join().unwrap();
        assert!(spent < wait / 2, "{blocks} blocks: {spent:?} of {wait:?}");
    }
}

/// A kernel of one buffer `%a`; `%r1` is the block's number and `%b` where its 128 bytes begin.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 buffer)
{{
    .reg .b64 %a, %b, %t<4>; .reg .b32 %r<20>; .reg .pred %p<4>;
    ld.param.u64 %a, [buffer];
    mov.u32 %r1, %ctaid.x; mul.wide.u32 %b, %r1, 128; add.u64 %b, %b, %a;
{body}
    ret;
}}
"
    )
}

/// Runs blocks on one thread. Returns the first two words of each, and the instructions of warps.
fn run_blocks(ptx: &str, blocks: u32, threads: u32) -> (Vec<[u32; 2]>, u64) {
    let module = fercuda_ptx::parse(ptx).unwrap();
    let image = compile(&module, &CompileOptions::default()).unwrap();
    let space = AddressSpace::new(1 << 30, false).unwrap();
    let (at, _backing) = space.map_new(1 << 12, 1).unwrap();
    let spec = on_buffer(&space, at, blocks, threads);
    let loaded = Loaded::new(image, Default::default()).unwrap();
    let stats = Executor::new(1).run(&loaded, 0, &spec).unwrap();
    let word = |at: u64| {
        let mut word = [0; 4];
        space.read(0, at, &mut word, None).unwrap();
        u32::from_le_bytes(word)
    };
    let begins = (0..u64::from(blocks)).map(|n| at + 128 * n);
    let words = begins.map(|at| [word(at), word(at + 4)]).collect();
    (words, stats.warp_instructions)
}

#[test]
fn a_block_that_reads_a_clock_in_a_loop_lets_others_begin() {
    // Each block waits for the one behind it, by plain loads and for ten seconds at most.
    for clock in ["%globaltimer", "%clock64"] {
        let ptx = kernel(&format!(
            "mov.u64 %t0, {clock}; mov.u32 %r5, 1;
             setp.eq.u32 %p0, %r1, 3; @%p0 bra DONE;
         LOOP:
             mov.u64 %t1, {clock}; sub.u64 %t2, %t1, %t0;
             setp.gt.u64 %p1, %t2, 10000000000; @%p1 bra LATE;
             ld.global.u32 %r6, [%b+128]; setp.eq.u32 %p2, %r6, 0; @%p2 bra LOOP;
             bra DONE;
         LATE:
             mov.u32 %r5, 2;
         DONE:
             st.global.u32 [%b], %r5;"
        ));
        let (words, instructions) = run_blocks(&ptx, 4, 32);
        assert!(words.iter().all(|it| it[0] == 1), "{clock}: {words:?}");
        // A block that waits by loads alone goes on for four million.
        assert!(instructions < 4_000_000, "{clock}: {instructions}");
    }
}

#[test]
fn reading_where_a_thread_is_does_not_count_as_waiting() {
    // The blocks before have ended when one begins: its first word is their number, as it finds it
    // in the last block's second word.
    let read = "
        mov.u32 %r9, %tid.x; mov.u32 %r10, %laneid; mov.u32 %r11, %ntid.x; mov.u32 %r12, %warpid;
        mov.u64 %t1, %gridid; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r11;
        add.u32 %r9, %r9, %r12; st.global.u32 [%b+8], %r9; st.global.u64 [%b+16], %t1; bar.sync 0;";
    let body = format!(
        "ld.global.u32 %r5, [%a+4]; bar.sync 0;{}
         st.global.u32 [%b], %r5; add.u32 %r6, %r1, 1; st.global.u32 [%a+4], %r6;",
        read.repeat(20)
    );
    let (words, _) = run_blocks(&kernel(&body), 6, 256);
    let begun: Vec<u32> = words.iter().map(|it| it[0]).collect();
    assert_eq!(begun, [0, 1, 2, 3, 4, 5]);
}

const SHARED: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry large(.param .b64 out)
{
    .shared .align 4 .b8 tile[1024];
    .reg .b32 %r;
    mov.u32 %r, tile;
    st.shared.b32 [%r+1020], %r;
    ret;
}
.visible .entry small(.param .b64 out)
{
    .shared .align 4 .b8 tile[64];
    .reg .b32 %r;
    mov.u32 %r, tile;
    st.shared.b32 [%r+60], %r;
    ret;
}
";

#[test]
fn shared_arrays_of_one_name_have_the_size_that_their_kernel_declares() {
    let module = fercuda_ptx::parse(SHARED).unwrap();
    let image = compile(&module, &CompileOptions::default()).unwrap();
    let bytes = |name| image.kernels()[image.kernel(name).unwrap()].static_shared_bytes;
    assert_eq!((bytes("large"), bytes("small")), (1024, 64));
}
