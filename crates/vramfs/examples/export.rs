//! Throughput of a kernel on a file mapped from a mounted filesystem: `export DIR [MIB]`.
//!
//! `DIR` is in a filesystem of `fercuda vram mount`, on the device that `FERCUDA_DEVICE` selects. A
//! file is made there and mapped, once to be written and once to be read; the same kernels use as
//! much memory of this process for comparison. Prints best and median of twenty launches by the
//! device's clock. The sum of all words is checked, and some words by system calls.
#![expect(clippy::print_stdout, reason = "figures are for people")]
#![expect(
    unsafe_code,
    reason = "launching kernels, which are written here, over memory that is mapped"
)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Event, Function, Image, Launch, Module, Stream};
use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc};
use fercuda_vramfs::import::Import;
use fercuda_vramfs::layout::DATA_BYTES;
use rustix::fs::{FallocateFlags, fallocate};

const KERNELS: &str = r#"
__device__ unsigned word(unsigned long long at) {
    unsigned x = unsigned(at) * 2654435761u ^ unsigned(at >> 32);
    return x ^ x >> 15;
}

// A block of threads loops over parts of 32 KiB: there are so few blocks that each takes as many
// parts.
extern "C" __global__ void __launch_bounds__(256)
sum(const unsigned long long* chunks, unsigned parts, unsigned long long* total) {
    unsigned long long sum = 0;
    for (unsigned part = blockIdx.x; part < parts; part += gridDim.x) {
        const uint4* from = reinterpret_cast<const uint4*>(chunks[part >> 2] + ((part & 3) << 15));
        uint4 words[8];
        for (int k = 0; k < 8; ++k) words[k] = __ldcs(from + threadIdx.x + 256 * k);
        for (int k = 0; k < 8; ++k)
            sum += (unsigned long long)(words[k].x) + words[k].y + words[k].z + words[k].w;
    }
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

extern "C" __global__ void __launch_bounds__(256)
fill(const unsigned long long* chunks, unsigned parts, unsigned long long*) {
    for (unsigned part = blockIdx.x; part < parts; part += gridDim.x) {
        uint4* to = reinterpret_cast<uint4*>(chunks[part >> 2] + ((part & 3) << 15));
        const unsigned long long first = (unsigned long long)(part) * 8192;
        for (int k = 0; k < 8; ++k) {
            const unsigned at = threadIdx.x + 256 * k;
            const unsigned long long of = first + 4 * at;
            to[at] = make_uint4(word(of), word(of + 1), word(of + 2), word(of + 3));
        }
    }
}
"#;
const PARTS_A_CHUNK: usize = 4;
const TIMES: usize = 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The kernels' function of the same name.
fn word(at: u64) -> u32 {
    let x = (at as u32).wrapping_mul(2_654_435_761) ^ (at >> 32) as u32;
    x ^ x >> 15
}

struct KernelBenchmark {
    stream: Stream,
    sum: Function,
    fill: Function,
    blocks: u32,
    bytes: u64,
}

impl KernelBenchmark {
    fn new(context: &Context, bytes: u64) -> Result<Self> {
        let (major, minor) = context.device().compute_capability()?;
        let program = CudaSource::new("export.cu", KERNELS, GpuArch::new(major, minor));
        let compiled = Nvrtc::find()?.compile(&program)?;
        let module = Module::load(context, &Image::from(&compiled))?;
        Ok(Self {
            stream: Stream::new(context)?,
            sum: module.function("sum")?,
            fill: module.function("fill")?,
            blocks: 8 * context.device().multiprocessors()?,
            bytes,
        })
    }

    /// Launches a kernel on the chunks at these addresses `times` times. Returns the best and the
    /// median time, and the last launch's sum.
    fn run(&self, kernel: &Function, chunks: &[u64], times: usize) -> Result<(f64, f64, u64)> {
        let stream = &self.stream;
        let table = DeviceBuffer::from_host(chunks, stream)?;
        let mut total = DeviceBuffer::<u64>::zeroed(stream, 1)?;
        let parts = (chunks.len() * PARTS_A_CHUNK) as u32;
        let launch = Launch::new(self.blocks.min(parts), 256u32);
        let mut all = Vec::new();
        for _ in 0..times {
            total.fill_bytes(0, stream)?;
            let (begin, end) = (
                Event::timed(stream.context())?,
                Event::timed(stream.context())?,
            );
            begin.record(stream)?;
            // SAFETY: the chunks are 128 KiB each, of memory that stays mapped until the stream is
            // synchronized below.
            unsafe { launch.run(kernel, stream, (&table, parts, &mut total)) }?;
            end.record(stream)?;
            stream.synchronize()?;
            all.push(end.since(&begin)?.as_secs_f64());
        }
        all.sort_by(f64::total_cmp);
        Ok((all[0], all[all.len() / 2], total.to_vec(stream)?[0]))
    }

    fn show(&self, what: &str, (best, median, _): (f64, f64, u64)) {
        let rate = |time: f64| self.bytes as f64 / time / 1e9;
        println!(
            "{what:32} median {:7.1} GB/s, best {:7.1}",
            rate(median),
            rate(best)
        );
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let dir = words.next().ok_or("try: export DIR [MIB]")?;
    let mib: u64 = words.next().map_or(Ok(1024), |it| it.parse())?;
    let times = words.next().map_or(Ok(TIMES), |it| it.parse())?;
    let bytes = (mib.max(1)) << 20;
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    let bench = KernelBenchmark::new(&context, bytes)?;
    let chunk = DATA_BYTES as u64;
    let own = DeviceBuffer::<u8>::alloc(&context, bytes as usize)?;
    let own_chunks: Vec<u64> = (0..bytes / chunk)
        .map(|at| own.address().0 + at * chunk)
        .collect();
    println!("{}, a file of {mib} MiB", context.device());

    let at = Path::new(&dir).join("export-example");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&at)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    let done = measure(&bench, &context, &at, &file, &own_chunks, times);
    std::fs::remove_file(&at)?;
    done
}

fn measure(
    bench: &KernelBenchmark,
    context: &Context,
    at: &Path,
    file: &File,
    own: &[u64],
    times: usize,
) -> Result<()> {
    let chunks = |it: &Import| it.chunks().ok_or("a chunk is not contiguous");
    let began = Instant::now();
    let mapped = Import::open(at, context, true)?;
    println!(
        "mapped to be written in {:.1} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    bench.show("own memory, written", bench.run(&bench.fill, own, times)?);
    let written = bench.run(&bench.fill, &chunks(&mapped)?, times)?;
    bench.show("the file, written", written);
    let began = Instant::now();
    mapped.close()?;
    println!(
        "given back in {:.1} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    let began = Instant::now();
    let mapped = Import::open(at, context, false)?;
    println!(
        "mapped to be read in {:.1} ms: {} segments, {} bytes apart",
        began.elapsed().as_secs_f64() * 1e3,
        mapped.segments().len(),
        mapped.stride_bytes().unwrap_or(0)
    );
    let of_own = bench.run(&bench.sum, own, times)?;
    bench.show("own memory, read", of_own);
    let of_file = bench.run(&bench.sum, &chunks(&mapped)?, times)?;
    bench.show("the file, read", of_file);
    println!("{:.1} % of it", 100.0 * of_own.1 / of_file.1);
    mapped.close()?;
    let wanted = (0..bench.bytes / 4).fold(0u64, |sum, at| sum + u64::from(word(at)));
    if (of_own.2, of_file.2) != (wanted, wanted) {
        return Err(format!("the sums are {} and {}, not {wanted}", of_own.2, of_file.2).into());
    }
    for _ in 0..1000 {
        let at = fastrand::u64(..bench.bytes / 4);
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 4 * at)?;
        if u32::from_ne_bytes(read) != word(at) {
            return Err(format!("word {at} of the file is {read:x?}").into());
        }
    }
    println!("the sum is right, and so are a thousand words read by system calls");
    Ok(())
}
