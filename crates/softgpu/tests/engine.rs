//! Tests of the engine alone: launches during which the simulator fails.

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
        let spec = LaunchSpec {
            grid: [blocks, 1, 1],
            block: [64, 1, 1],
            dynamic_shared_bytes: 0,
            params: word.to_le_bytes().to_vec(),
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
        };
        let setter = std::thread::spawn(move || {
            std::thread::sleep(wait);
            space.write(0, word, &1_u32.to_le_bytes(), None).unwrap();
        });
        let before = busy();
        Executor::new(0).run(&loaded, 0, &spec).unwrap();
        let spent = busy() - before;
        setter.join().unwrap();
        assert!(spent < wait / 2, "{blocks} blocks: {spent:?} of {wait:?}");
    }
}
