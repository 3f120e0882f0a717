//! Two vectors, added on a device.
//!
//! `cargo run -p fercuda-cuda --example add`
//!
//! Runs on a GPU if there is one, else on the software device (`FERCUDA_DEVICE=soft` chooses it
//! anyway). On the latter it prints:
//! ```text
//! device: feRcuda software device
//! sums: [11.0, 22.0, 33.0, 44.0]
//! ```
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, Launch, Module, Result, Stream};

/// `out[i] = a[i] + b[i]` for `i < len`.
const ADD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 len)
{
    .reg .b64 %a, %b, %out;
    .reg .b32 %i, %len, %block, %threads, %thread;
    .reg .f32 %x, %y;
    .reg .pred %outside;
    ld.param.u32 %len, [len];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    setp.ge.u32 %outside, %i, %len;
    @%outside ret;
    ld.param.u64 %a, [a];
    ld.param.u64 %b, [b];
    ld.param.u64 %out, [out];
    mad.wide.u32 %a, %i, 4, %a;
    mad.wide.u32 %b, %i, 4, %b;
    mad.wide.u32 %out, %i, 4, %out;
    ld.global.f32 %x, [%a];
    ld.global.f32 %y, [%b];
    add.f32 %x, %x, %y;
    st.global.f32 [%out], %x;
    ret;
}
";

fn main() -> Result<()> {
    let device = Cuda::from_env()?.device(0)?;
    println!("device: {}", device.name()?);
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let add = Module::load(&context, &Image::ptx(ADD))?.function("vector_add")?;

    let a = DeviceBuffer::from_host(&[1.0f32, 2.0, 3.0, 4.0], &stream)?;
    let b = DeviceBuffer::from_host(&[10.0f32, 20.0, 30.0, 40.0], &stream)?;
    let mut out = DeviceBuffer::<f32>::zeroed(&stream, 4)?;
    // Number and sizes of the arguments are compared with the kernel's before it is launched.
    // SAFETY: the kernel accesses the first four elements of each buffer, which has four.
    unsafe { Launch::for_threads(4, 128).run(&add, &stream, (&a, &b, &mut out, 4u32)) }?;
    println!("sums: {:?}", out.to_vec(&stream)?);
    Ok(())
}
