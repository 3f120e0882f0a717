//! Tests of bounds with checks on: accesses that leave a buffer of any size, whatever lies beside
//! it, and copies and fills that do. They run one at a time, since findings are process-wide.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_softgpu::control::{self, Config};
use fercuda_softgpu::report::{AccessKind, Finding, FindingKind};

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

macro_rules! code {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind, or device addresses that no host code follows.
        unsafe { d().$name($($arg),*) }.unwrap()
    };
}

macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(code!($name($($arg),*)), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

/// One byte is read and written at `p`.
const PTX: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 p)
{
    .reg .b64 %a;
    .reg .b32 %r;
    ld.param.u64 %a, [p];
    ld.global.u8 %r, [%a];
    st.global.u8 [%a], %r;
    ret;
}
";

struct World {
    ctx: CUcontext,
    touch: CUfunction,
    stream: CUstream,
    _one: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut ctx, mut module) = (CUcontext::NULL, CUmodule::NULL);
        let (mut touch, mut stream) = (CUfunction::NULL, CUstream::NULL);
        ok!(cuInit(0));
        ok!(cuCtxCreate_v2(&mut ctx, 0, 0));
        ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut touch, module, c"touch".as_ptr()));
        ok!(cuStreamCreate(&mut stream, 1));
        drop(control::take_findings());
        World {
            ctx,
            touch,
            stream,
            _one: one,
        }
    }

    /// Runs the kernel on one byte; returns the findings.
    fn touch(&self, mut at: u64) -> Vec<Finding> {
        let mut params: [*mut c_void; 1] = [(&raw mut at).cast()];
        ok!(cuLaunchKernel(
            self.touch,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            self.stream,
            params.as_mut_ptr(),
            null_mut()
        ));
        ok!(cuStreamSynchronize(self.stream));
        control::take_findings()
    }

    /// The kernel's access there is out of the bounds of the buffer that starts at `start`, in
    /// these words.
    fn assert_outside(&self, at: u64, start: u64, words: &str) {
        let findings = self.touch(at);
        assert_eq!(findings.len(), 2, "{words}: {findings:?}");
        for finding in findings {
            assert_eq!(finding.kind, FindingKind::OutOfBounds, "{finding}");
            let allocation = finding.allocation.as_ref().map(|a| a.start);
            assert_eq!(allocation, Some(start), "{words}: {finding}");
            assert!(finding.to_string().contains(words), "{words}: {finding}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _also_after_a_failed_test = code!(cuCtxDestroy_v2(self.ctx));
    }
}

const MIB: usize = 1 << 20;

const SIZES: [usize; 22] = [
    1,
    2,
    4,
    100,
    255,
    256,
    511,
    512,
    513,
    1000,
    1024,
    4096,
    4100,
    65536,
    1_000_000,
    MIB - 512,
    MIB,
    MIB + 512,
    2 * MIB,
    2 * MIB + 4,
    4 * MIB,
    32 * MIB,
];

#[derive(Clone, Copy, Debug)]
enum Source {
    Plain,
    Pitched,
    Managed,
    Pool,
    Host,
}

impl Source {
    const ALL: [Self; 5] = [
        Self::Plain,
        Self::Pitched,
        Self::Managed,
        Self::Pool,
        Self::Host,
    ];

    /// Allocates and fills; returns the start and the length.
    fn alloc(self, world: &World, len: usize) -> (u64, usize) {
        let mut at = 0;
        let mut all = len;
        match self {
            Self::Plain => ok!(cuMemAlloc_v2(&mut at, len)),
            Self::Pitched => {
                let mut pitch = 0;
                ok!(cuMemAllocPitch_v2(
                    &mut at,
                    &mut pitch,
                    len.div_ceil(2),
                    2,
                    4
                ));
                all = 2 * pitch;
            }
            Self::Managed => ok!(cuMemAllocManaged(&mut at, len, 1)),
            Self::Pool => ok!(cuMemAllocAsync(&mut at, len, world.stream)),
            Self::Host => {
                let mut host = null_mut();
                ok!(cuMemHostAlloc(&mut host, len, 3));
                at = host as u64;
            }
        }
        ok!(cuMemsetD8Async(at, 0, all, world.stream));
        (at, all)
    }

    fn free(self, world: &World, at: u64) {
        match self {
            Self::Plain | Self::Pitched | Self::Managed => ok!(cuMemFree_v2(at)),
            Self::Pool => ok!(cuMemFreeAsync(at, world.stream)),
            Self::Host => ok!(cuMemFreeHost(at as *mut c_void)),
        }
    }
}

#[test]
fn a_kernel_that_leaves_a_buffer_of_any_size_is_found_between_equals() {
    let world = World::new();
    for source in Source::ALL {
        for len in SIZES {
            let made: Vec<_> = (0..3).map(|_| source.alloc(&world, len)).collect();
            for &(start, len) in &made {
                assert_eq!(world.touch(start), [], "{source:?} {len}");
                assert_eq!(world.touch(start + len as u64 - 1), [], "{source:?} {len}");
                for beyond in [0, 3, 511, 4095] {
                    let past = format!("{beyond} bytes past the end of ");
                    world.assert_outside(start + len as u64 + beyond, start, &past);
                    let before = format!("{} bytes before ", beyond + 1);
                    world.assert_outside(start - 1 - beyond, start, &before);
                }
                // As far as a quarter of the buffer's own length.
                if len > 64 << 10 {
                    let far = (len / 4 - 1) as u64;
                    let past = format!("{far} bytes past the end of ");
                    world.assert_outside(start + len as u64 + far, start, &past);
                }
            }
            for (start, _) in made {
                source.free(&world, start);
            }
            ok!(cuStreamSynchronize(world.stream));
            assert_eq!(control::take_findings(), [], "{source:?} {len}");
        }
    }
}

/// 42 more sizes, of no pattern, up to 71 KB.
#[test]
fn a_kernel_that_leaves_a_buffer_of_an_odd_size_is_found() {
    let world = World::new();
    for len in (3..45).map(|n| n * n * 37 + 3) {
        for source in [Source::Plain, Source::Pool] {
            let made = [(); 3].map(|()| source.alloc(&world, len).0);
            let (start, end) = (made[1], made[1] + len as u64);
            assert_eq!(world.touch(end - 1), [], "{source:?} {len}");
            world.assert_outside(end, start, "0 bytes past the end of ");
            world.assert_outside(end + 4095, start, "4095 bytes past the end of ");
            world.assert_outside(start - 1, start, "1 bytes before ");
            made.into_iter().for_each(|at| source.free(&world, at));
            ok!(cuStreamSynchronize(world.stream));
        }
    }
}

/// One lane's access of each kind and size.
const FAR: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.visible .entry byte(.param .u64 p)
{ .reg .b64 %a; .reg .b32 %r; ld.param.u64 %a, [p]; ld.global.u8 %r, [%a]; ret; }
.visible .entry vector(.param .u64 p)
{ .reg .b64 %a; .reg .b32 %r<4>; ld.param.u64 %a, [p];
  ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%a]; ret; }
.visible .entry atomic(.param .u64 p)
{ .reg .b64 %a, %v; ld.param.u64 %a, [p]; atom.global.add.u64 %v, [%a], 1; ret; }
.visible .entry store(.param .u64 p)
{ .reg .b64 %a; ld.param.u64 %a, [p]; st.u64 [%a], %a; ret; }
.visible .entry copy(.param .u64 p)
{ .reg .b64 %a; .shared .align 16 .b8 s[16]; ld.param.u64 %a, [p];
  cp.async.ca.shared.global [s], [%a], 16; cp.async.wait_all; ret; }
";

#[test]
fn an_access_at_the_end_of_all_addresses_is_a_fault_as_any_other() {
    for name in [c"byte", c"vector", c"atomic", c"store", c"copy"] {
        for at in [0, 1 << 47, 1 << 63, u64::MAX, u64::MAX - 7, u64::MAX - 15] {
            let world = World::new();
            let (mut module, mut kernel) = (CUmodule::NULL, CUfunction::NULL);
            ok!(cuModuleLoadData(&mut module, FAR.as_ptr().cast()));
            ok!(cuModuleGetFunction(&mut kernel, module, name.as_ptr()));
            let mut p = at;
            let mut params: [*mut c_void; 1] = [(&raw mut p).cast()];
            let (s, list) = (world.stream, params.as_mut_ptr());
            ok!(cuLaunchKernel(
                kernel,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                s,
                list,
                null_mut()
            ));
            let end = code!(cuStreamSynchronize(s));
            let findings = control::take_findings();
            // A misaligned access is not made.
            let expected = match findings[..] {
                [
                    Finding {
                        kind: FindingKind::Misaligned,
                        ..
                    },
                ] => CUresult::CUDA_SUCCESS,
                _ => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            };
            assert_eq!(end, expected, "{name:?} at {at:#x}");
            assert_eq!(findings.len(), 1, "{name:?} at {at:#x}: {findings:?}");
        }
    }
}

#[test]
fn mapped_memory_is_not_followed_by_other_memory() {
    let world = World::new();
    let mut prop = CUmemAllocationProp::default();
    prop.r#type.0 = 1;
    prop.location.r#type.0 = 1;
    let mut access = CUmemAccessDesc::default();
    access.location.r#type.0 = 1;
    access.flags.0 = 3;
    let map = |hint: u64| {
        let (mut at, mut handle) = (0, 0);
        ok!(cuMemAddressReserve(&mut at, 2 * MIB, 0, hint, 0));
        ok!(cuMemCreate(&mut handle, 2 * MIB, &prop, 0));
        ok!(cuMemMap(at, 2 * MIB, 0, handle, 0));
        ok!(cuMemSetAccess(at, 2 * MIB, &access, 1));
        ok!(cuMemRelease(handle));
        at
    };
    let apart = [map(0), map(0), map(0)];
    for at in apart {
        world.assert_outside(at + 2 * MIB as u64, at, "0 bytes past the end of ");
        world.assert_outside(at - 1, at, "1 bytes before ");
    }
    // Memory that grows at addresses of the program's choice is one range, for copies too.
    let more = map(apart[2] + 2 * MIB as u64);
    assert_eq!(more, apart[2] + 2 * MIB as u64);
    assert_eq!(world.touch(more), []);
    ok!(cuMemsetD8_v2(more - 8, 0, 16));
    for at in apart.into_iter().chain([more]) {
        ok!(cuMemUnmap(at, 2 * MIB));
        ok!(cuMemAddressFree(at, 2 * MIB));
    }
    assert_eq!(control::take_findings(), []);
}

/// A call is refused, and reported as an access of `len` bytes behind the buffer at `start`.
fn assert_refused(call: &str, result: CUresult, kind: AccessKind, (start, len): (u64, u64)) {
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_VALUE, "{call}");
    let findings = control::take_findings();
    let [finding] = &findings[..] else {
        panic!("{call}: {findings:?}");
    };
    assert_eq!(finding.kind, FindingKind::OutOfBounds, "{finding}");
    let (Some(access), Some(allocation)) = (finding.access, finding.allocation.as_ref()) else {
        panic!("{call}: {finding}");
    };
    assert_eq!((access.kind, access.len), (kind, len), "{call}: {finding}");
    assert_eq!(allocation.start, start, "{call}: {finding}");
    assert_eq!(access.addr, allocation.end(), "{call}: {finding}");
    assert!(finding.to_string().contains(call), "{call}: {finding}");
}

#[test]
fn a_copy_or_fill_that_leaves_its_buffer_is_refused_and_reported() {
    let world = World::new();
    // Byte 1 of a buffer of one byte is in none.
    for len in SIZES.into_iter().filter(|len| *len > 1) {
        let (a, _) = Source::Plain.alloc(&world, len);
        let (b, _) = Source::Plain.alloc(&world, len);
        ok!(cuCtxSynchronize());
        let mut host = vec![0u8; len + 8];
        let host = host.as_mut_ptr().cast::<c_void>();
        let (read, write) = (AccessKind::Read, AccessKind::Write);
        let over = len + 8;
        let r = code!(cuMemsetD8_v2(a, 1, over));
        assert_refused("cuMemsetD8_v2", r, write, (a, 8));
        let r = code!(cuMemsetD8Async(a, 1, over, world.stream));
        assert_refused("cuMemsetD8Async", r, write, (a, 8));
        let r = code!(cuMemcpyHtoD_v2(a, host, over));
        assert_refused("cuMemcpyHtoD_v2", r, write, (a, 8));
        let r = code!(cuMemcpyDtoH_v2(host, a, over));
        assert_refused("cuMemcpyDtoH_v2", r, read, (a, 8));
        let r = code!(cuMemcpyDtoHAsync_v2(host, a, over, world.stream));
        assert_refused("cuMemcpyDtoHAsync_v2", r, read, (a, 8));
        // One byte too many of either side.
        let r = code!(cuMemcpyDtoD_v2(a + 1, b, len));
        assert_refused("cuMemcpyDtoD_v2", r, write, (a, 1));
        let r = code!(cuMemcpyDtoD_v2(a, b + 1, len));
        assert_refused("cuMemcpyDtoD_v2", r, read, (b, 1));
        let r = code!(cuMemcpy(host as u64, a + 1, len));
        assert_refused("cuMemcpy", r, read, (a, 1));
        let r = code!(cuMemsetD2D8_v2(a, len + 4, 0, 1, 2));
        assert_eq!(r, CUresult::CUDA_ERROR_INVALID_VALUE);
        drop(control::take_findings());
        let c = CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: host,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstDevice: a,
            dstXInBytes: 1,
            WidthInBytes: len,
            Height: 1,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        };
        let r = code!(cuMemcpy3D_v2(&c));
        assert_refused("cuMemcpy3D_v2", r, write, (a, 1));
        let flat = CUDA_MEMCPY2D {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: a,
            srcXInBytes: 1,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: host,
            WidthInBytes: len,
            Height: 1,
            ..CUDA_MEMCPY2D::default()
        };
        let r = code!(cuMemcpy2DAsync_v2(&flat, world.stream));
        assert_refused("cuMemcpy2DAsync_v2", r, read, (a, 1));
        let (mut graph, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
        ok!(cuGraphCreate(&mut graph, 0));
        let r = code!(cuGraphAddMemcpyNode(
            &mut node,
            graph,
            std::ptr::null(),
            0,
            &c,
            world.ctx
        ));
        assert_refused("cuGraphAddMemcpyNode", r, write, (a, 1));
        let fill = CUDA_MEMSET_NODE_PARAMS {
            dst: a,
            pitch: over,
            value: 1,
            elementSize: 1,
            width: over,
            height: 1,
        };
        let r = code!(cuGraphAddMemsetNode(
            &mut node,
            graph,
            std::ptr::null(),
            0,
            &fill,
            world.ctx
        ));
        assert_refused("cuGraphAddMemsetNode", r, write, (a, 8));
        ok!(cuGraphDestroy(graph));
        // Exactly all of it is right.
        ok!(cuMemsetD8_v2(a, 1, len));
        ok!(cuMemcpyDtoD_v2(b, a, len));
        ok!(cuMemcpyDtoH_v2(host, b, len));
        ok!(cuMemFree_v2(a));
        ok!(cuMemFree_v2(b));
        assert_eq!(control::take_findings(), [], "{len}");
    }
}

#[test]
fn guards_and_freed_memory_are_not_counted() {
    let world = World::new();
    let available = || {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        free
    };
    let before = available();
    for len in [1, 512, MIB, MIB + 512, 2 * MIB, 2 * MIB + 4, 32 * MIB] {
        let (at, _) = Source::Plain.alloc(&world, len);
        assert_eq!(
            before - available(),
            len.next_multiple_of(2 * MIB),
            "{len} bytes"
        );
        ok!(cuMemFree_v2(at));
        assert_eq!(available(), before, "{len} bytes");
    }
    // Small blocks share granules as they do without checks.
    let small: Vec<u64> = (0..4096)
        .map(|_| Source::Plain.alloc(&world, 512).0)
        .collect();
    assert_eq!(before - available(), 2 * MIB);
    for at in small {
        ok!(cuMemFree_v2(at));
    }
    assert_eq!(available(), before);
    // All of the device can be had in one piece and in many.
    let mut whole = 0;
    ok!(cuMemAlloc_v2(&mut whole, before));
    assert_eq!(available(), 0);
    ok!(cuMemFree_v2(whole));
    let pieces: Vec<u64> = (0..before / (2 * MIB))
        .map(|_| {
            let mut at = 0;
            ok!(cuMemAlloc_v2(&mut at, 2 * MIB));
            at
        })
        .collect();
    assert_eq!(available(), before % (2 * MIB));
    for at in pieces {
        ok!(cuMemFree_v2(at));
    }
}
