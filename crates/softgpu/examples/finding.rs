//! A kernel with a defect, and what the software device reports of it.
//!
//! `cargo run -p fercuda-softgpu --example finding`
//!
//! Eight threads write to a buffer of four words. A GPU would let four of them write into what lies
//! behind it. No GPU is needed. It prints:
//! ```text
//! out of bounds: 4-byte global write at 0x70000000010
//!    kernel: fill, PTX line 11: st.global.u32
//!    thread: (4,0,0) of block (0,0,0)
//!    memory: 0 bytes past the end of device allocation 1 (16 bytes at 0x70000000000 on device 0)
//!      made: cuMemAlloc_v2, call 1 of thread main
//!    seen 4 times
//! ```
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use fercuda_cuda_sys::types::{CUcontext, CUfunction, CUmodule, CUresult, CUstream};
use fercuda_softgpu::control::{self, Config};

/// `out[thread] = 7`, without a comparison to the buffer's length.
const PTX: &CStr = c".version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 out)
{
    .reg .b64 %out, %at;
    .reg .b32 %i;
    ld.param.u64 %out, [out];
    mov.u32 %i, %tid.x;
    mad.wide.u32 %at, %i, 4, %out;
    st.global.u32 [%at], 7;
    ret;
}
";

/// A function of the driver's table, with an error unless it succeeds.
macro_rules! call {
    ($driver:ident.$name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers to live variables, and handles of the kind that the function takes.
        match unsafe { $driver.$name($($argument),*) }? {
            CUresult::CUDA_SUCCESS => {}
            status => return Err(format!("{} returned {status:?}", stringify!($name)).into()),
        }
    };
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::default();
    config.checks = true;
    assert!(
        control::configure(config),
        "settings are made before cuInit"
    );
    // The table that NVIDIA's driver fills elsewhere.
    let driver = fercuda_softgpu::driver();
    let (mut context, mut module) = (CUcontext::NULL, CUmodule::NULL);
    let (mut fill, mut out) = (CUfunction::NULL, 0);
    call!(driver.cuInit(0));
    call!(driver.cuCtxCreate_v2(&mut context, 0, 0));
    call!(driver.cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    call!(driver.cuModuleGetFunction(&mut fill, module, c"fill".as_ptr()));
    call!(driver.cuMemAlloc_v2(&mut out, 4 * 4));
    let mut arguments: [*mut c_void; 1] = [(&raw mut out).cast()];
    let (threads, none) = (8, CUstream::NULL);
    call!(driver.cuLaunchKernel(
        fill,
        1,
        1,
        1,
        threads,
        1,
        1,
        0,
        none,
        arguments.as_mut_ptr(),
        null_mut(),
    ));
    call!(driver.cuCtxSynchronize());
    for finding in control::take_findings() {
        println!("{finding}");
    }
    Ok(())
}
