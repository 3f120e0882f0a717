//! Shared fixtures: a context, the kernels, data.

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream};

pub(crate) const KERNELS: &str = include_str!("kernels.ptx");

pub(crate) fn context() -> Context {
    let cuda = Cuda::from_env().expect("FERCUDA_DEVICE selects an existing device");
    Context::primary(cuda.device(0).unwrap()).unwrap()
}

pub(crate) fn kernel(context: &Context, name: &str) -> Function {
    Module::load(context, &Image::ptx(KERNELS))
        .unwrap()
        .function(name)
        .unwrap()
}

/// Iterations of `late`'s loop that take long enough to be observed by the host.
pub(crate) fn many_iterations(context: &Context) -> u32 {
    if context.device().cuda().is_software() {
        100_000
    } else {
        2_000_000
    }
}

/// Queues a kernel that runs for a while and then writes `value` to `out[0]`.
pub(crate) fn write_late(out: &mut DeviceBuffer<u32>, value: u32, stream: &Stream) {
    let context = stream.context().clone();
    let late = kernel(&context, "late");
    assert!(!out.is_empty());
    // SAFETY: `late` touches the first value only.
    unsafe { Launch::new(1, 1).run(&late, stream, (out, value, many_iterations(&context))) }
        .unwrap();
}

pub(crate) fn increment(out: &mut DeviceBuffer<u32>, stream: &Stream) {
    let increment = kernel(stream.context(), "increment");
    assert!(!out.is_empty());
    // SAFETY: `increment` touches the first value only.
    unsafe { Launch::new(1, 1).run(&increment, stream, (out,)) }.unwrap();
}
