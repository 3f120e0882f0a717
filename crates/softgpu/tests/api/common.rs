//! The driver's table of this process, and shorthands.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_softgpu::control::{self, Config};

pub const MEMORY: u64 = 1 << 30;

/// Whether the device checks accesses; set before it is first used.
pub static CHECKS: AtomicBool = AtomicBool::new(false);

/// The device under test: two devices of 1 GiB.
pub fn d() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut config = Config::default();
        config.devices = 2;
        config.memory_bytes = MEMORY;
        config.quiet = true;
        config.checks = CHECKS.load(Ordering::Acquire);
        assert!(
            control::configure(config),
            "the first use of the device in this process"
        );
        let driver = fercuda_softgpu::driver();
        // SAFETY: no pointers are involved.
        assert_eq!(unsafe { driver.cuInit(0) }.unwrap(), CUresult::CUDA_SUCCESS);
        driver
    })
}

/// Calls a driver function and gives its code.
#[macro_export]
macro_rules! code {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        #[allow(unused_unsafe, reason = "arguments may be unsafe expressions themselves")]
        // SAFETY: every test passes live pointers of the right kind, or tests what a wrong one
        // does.
        let code = unsafe { $crate::common::d().$name($($arg),*) }.expect("the table is complete");
        code
    }};
}

/// Calls a driver function that must succeed.
#[macro_export]
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!($crate::code!($name($($arg),*)), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

/// Calls a driver function that must fail with a code.
#[macro_export]
macro_rules! fails {
    ($code:ident, $name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!($crate::code!($name($($arg),*)), CUresult::$code, stringify!($name))
    };
}

/// A context of its own, current on this thread until dropped.
pub struct Ctx(pub CUcontext);

impl Ctx {
    pub fn new() -> Self {
        Self::on(0)
    }

    pub fn on(device: i32) -> Self {
        let mut ctx = CUcontext::NULL;
        ok!(cuCtxCreate_v2(&mut ctx, 0, device));
        Ctx(ctx)
    }
}

impl Drop for Ctx {
    fn drop(&mut self) {
        code!(cuCtxDestroy_v2(self.0));
    }
}

/// A memory pool of device 0, with the properties that need saying and no others.
pub fn pool() -> CUmemoryPool {
    let mut props = CUmemPoolProps::default();
    props.allocType.0 = 1;
    props.location.r#type.0 = 1;
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &props));
    pool
}

/// A figure of a memory pool.
pub fn pool_figure(pool: CUmemoryPool, which: CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
    value
}

pub fn alloc(len: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, len));
    at
}

pub fn free(at: u64) {
    ok!(cuMemFree_v2(at));
}

pub fn upload(bytes: &[u8]) -> u64 {
    let at = alloc(bytes.len());
    ok!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()));
    at
}

pub fn download(at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xEE; len];
    ok!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, len));
    out
}

pub fn stream(flags: u32) -> CUstream {
    let mut stream = CUstream::NULL;
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

pub fn event(flags: u32) -> CUevent {
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, flags));
    event
}

/// Kernels enough for the driver's own tests.
pub const PTX: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 counter = 7;
.visible .entry idle() { ret; }
.visible .entry add(.param .u64 p, .param .u32 n)
{
    .reg .b64 %a;
    .reg .b32 %r, %n;
    ld.param.u64 %a, [p];
    ld.param.u32 %n, [n];
    ld.global.u32 %r, [%a];
    add.u32 %r, %r, %n;
    st.global.u32 [%a], %r;
    ret;
}
.visible .entry trapped() { trap; ret; }
.visible .entry count(.param .u64 p)
{
    .reg .b64 %a;
    .reg .b32 %r;
    ld.param.u64 %a, [p];
    atom.global.add.u32 %r, [%a], 1;
    ret;
}
";

pub fn module() -> CUmodule {
    let mut module = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    module
}

pub fn function(module: CUmodule, name: &std::ffi::CStr) -> CUfunction {
    let mut function = CUfunction::NULL;
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

/// Launches one thread of `add`.
pub fn add(f: CUfunction, at: u64, n: u32, stream: CUstream) {
    let (mut at, mut n) = (at, n);
    let mut params = [(&raw mut at).cast(), (&raw mut n).cast()];
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
        std::ptr::null_mut()
    ));
}
