//! The guest's workload: allocations of every kind that `fercuda-cuda` has, and computations;
//! results are compared with the host's.
//!
//! Invariant: a success message reports only what was compared.

use std::error::Error;
use std::fmt;

use fercuda_cuda::{
    Context, Cuda, DeviceBuffer, Image, Launch, Module, PhysicalMemory, Select, Stream,
    VirtualRange,
};
use fercuda_ptx::build::{Arch, ModuleBuilder};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Elements of the vectors: no multiple of a block.
const LEN: usize = 200_003;
/// Name of the kernel that adds them.
const VECTOR_ADD: &str = "vector_add";
/// Threads of its blocks.
const THREADS: u32 = 256;
/// Stream-ordered buffers that are allocated, filled and freed.
const ROUNDS: usize = 24;

/// Memory that stays allocated, with its expected contents.
pub(crate) struct RetainedMemory {
    context: Context,
    stream: Stream,
    sum: DeviceBuffer<f32>,
    expected: Vec<f32>,
    mapped: DeviceBuffer<u8>,
    pattern: u8,
}

impl fmt::Display for RetainedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sums and {ROUNDS} fills right", self.expected.len())
    }
}

/// See `fercuda_guest_take`.
pub(crate) fn take(device: u32, seed: u64) -> Result<RetainedMemory> {
    // The driver of the process, which may be the hook.
    let device = Cuda::select(Select::Hardware)?.device(device)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let (sum, expected) = add_vectors(&context, &stream, &mut random)?;
    for _ in 0..ROUNDS {
        let len = random.usize(1..1 << 20);
        let value = random.u32(..);
        let mut buffer = DeviceBuffer::<u32>::alloc_ordered(&stream, len)?;
        buffer.fill(value, &stream)?;
        let got = buffer.to_vec(&stream)?;
        if let Some(at) = got.iter().position(|word| *word != value) {
            return Err(format!("fill: word {at} of {len} is {}, not {value}", got[at]).into());
        }
    }
    let (mapped, pattern) = map_memory(&context, &stream, &mut random)?;
    Ok(RetainedMemory {
        context,
        stream,
        sum,
        expected,
        mapped,
        pattern,
    })
}

/// Adds two vectors on the device. Returns the sum and the expected values.
fn add_vectors(
    context: &Context,
    stream: &Stream,
    random: &mut fastrand::Rng,
) -> Result<(DeviceBuffer<f32>, Vec<f32>)> {
    let mut numbers = || -> Vec<f32> { (0..LEN).map(|_| random.f32() * 2.0 - 1.0).collect() };
    let (a, b) = (numbers(), numbers());
    let image = Image::ptx(vector_add_ptx()?);
    let function = Module::load(context, &image)?.function(VECTOR_ADD)?;
    let (device_a, device_b) = (
        DeviceBuffer::from_host(&a, stream)?,
        DeviceBuffer::from_host(&b, stream)?,
    );
    let mut sum = DeviceBuffer::alloc(context, LEN)?;
    let launch = Launch::new((LEN as u32).div_ceil(THREADS), THREADS);
    // SAFETY: it touches the first LEN elements of each, and each has LEN.
    unsafe {
        launch.run(
            &function,
            stream,
            (&device_a, &device_b, &mut sum, LEN as u32),
        )?
    };
    // One addition is rounded in one way only.
    let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    compare("sum", &sum.to_vec(stream)?, &expected)?;
    Ok((sum, expected))
}

/// `out[i] = a[i] + b[i]` for `i < n`, one thread an element.
fn vector_add_ptx() -> Result<String> {
    let mut module = ModuleBuilder::new(Arch::SM_80);
    module.kernel(VECTOR_ADD, |k| {
        let a = k.param_ptr::<f32>("a");
        let b = k.param_ptr::<f32>("b");
        let out = k.param_ptr::<f32>("out");
        let n = k.param::<u32>("n");
        let i = k.global_id();
        k.if_(i.lt(n).named("in_range"), || {
            out.index(i).store(a.index(i).load() + b.index(i).load());
        });
    });
    Ok(fercuda_ptx::print(&module.finish()?))
}

/// Allocates physical memory, maps it and fills it with a pattern.
fn map_memory(
    context: &Context,
    stream: &Stream,
    random: &mut fastrand::Rng,
) -> Result<(DeviceBuffer<u8>, u8)> {
    let bytes = PhysicalMemory::granularity_bytes(context)?;
    let range = VirtualRange::reserve(context, bytes)?;
    let memory = PhysicalMemory::new(context, bytes)?;
    let mut buffer = range.map(0, &memory, &[context.device()])?;
    let pattern = random.u8(..);
    buffer.fill_bytes(pattern, stream)?;
    Ok((buffer, pattern))
}

impl RetainedMemory {
    /// Compares the contents with the expected ones, and frees the memory.
    pub(crate) fn verify_and_free(self) -> Result<String> {
        compare("sum", &self.sum.to_vec(&self.stream)?, &self.expected)?;
        let mapped = self.mapped.to_vec(&self.stream)?;
        if mapped.iter().any(|byte| *byte != self.pattern) {
            return Err("mapped memory has changed".into());
        }
        let context = self.context.clone();
        drop(self);
        context.synchronize()?;
        Ok("its contents were unchanged".to_owned())
    }
}

fn compare(what: &str, got: &[f32], expected: &[f32]) -> Result<()> {
    let pairs = got.iter().zip(expected);
    let mut wrong = pairs
        .enumerate()
        .filter(|(_, (got, expected))| got != expected);
    match wrong.next() {
        _ if got.len() != expected.len() => Err(format!("{what}: {} elements", got.len()).into()),
        Some((at, (got, expected))) => {
            Err(format!("{what}: element {at} is {got}, not {expected}").into())
        }
        None => Ok(()),
    }
}
