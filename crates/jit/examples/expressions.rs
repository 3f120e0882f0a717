//! Measurement of the cost of expressions: from building one to its result, cold and warm, and the
//! throughput of their kernels beside the memory's.
//!
//! `expressions [--small]`: on whichever device `FERCUDA_DEVICE` says. Medians of several, inputs
//! random; kernels are timed by events over many launches, on buffers that are together
//! larger than the cache. `--small` is for the software device.
#![expect(clippy::print_stdout, reason = "figures for people")]

use std::time::{Duration, Instant};

use fercuda_cache::ProgramCache;
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Event, Image, Launch, Module, Stream};
use fercuda_jit::{
    Binary, BoundArg, CodeOrigin, Compiler, ExprError, ExprGraph, ExprNodeId, Reduction,
};
use fercuda_tensor::{Dtype, Layout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Made = std::result::Result<(), ExprError>;

/// Throughput of a copy on an H200, bytes read and written per second.
const FLOOR: f64 = 4.24e12;
/// Buffers that are together larger than an H200's L2.
const CACHE: u64 = 256 << 20;

struct Case {
    name: &'static str,
    make: fn(&mut ExprGraph, [u64; 2], Dtype) -> Made,
    shape: [u64; 2],
    dtype: Dtype,
}

fn input(
    graph: &mut ExprGraph,
    name: &str,
    dtype: Dtype,
    shape: &[u64],
) -> std::result::Result<ExprNodeId, ExprError> {
    let layout = Layout::contiguous(dtype, shape).map_err(|error| ExprError::Layout {
        op: name.to_owned(),
        error,
    })?;
    graph.input(name, layout)
}

fn add(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let a = input(graph, "a", dtype, &shape)?;
    let b = input(graph, "b", dtype, &shape)?;
    let y = graph.binary(Binary::Add, a, b)?;
    graph.output("y", y)
}

fn gelu(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let bias = input(graph, "bias", dtype, &shape[1..])?;
    let y = graph.binary(Binary::Add, x, bias)?;
    let y = graph.gelu(y)?;
    graph.output("y", y)
}

fn softmax(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let mask = input(graph, "mask", dtype, &shape[1..])?;
    let scale = graph.constant(dtype, 0.125)?;
    let y = graph.affine(x, scale, mask)?;
    let y = graph.softmax(y, 1)?;
    graph.output("y", y)
}

fn layer_norm(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let gamma = input(graph, "gamma", dtype, &shape[1..])?;
    let beta = input(graph, "beta", dtype, &shape[1..])?;
    let y = graph.layer_norm(x, 1, Some(gamma), Some(beta), 1e-5)?;
    graph.output("y", y)
}

fn rms_norm(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let gamma = input(graph, "gamma", dtype, &shape[1..])?;
    let y = graph.rms_norm(x, 1, Some(gamma), 1e-6)?;
    graph.output("y", y)
}

fn sum_rows(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let y = graph.reduce(Reduction::Sum, x, &[1], false)?;
    graph.output("y", y)
}

fn sum_columns(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let y = graph.reduce(Reduction::Sum, x, &[0], false)?;
    graph.output("y", y)
}

fn sum_all(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let y = graph.reduce(Reduction::Sum, x, &[0, 1], false)?;
    graph.output("y", y)
}

fn transpose(graph: &mut ExprGraph, shape: [u64; 2], dtype: Dtype) -> Made {
    let x = input(graph, "x", dtype, &shape)?;
    let y = graph.permute(x, &[1, 0])?;
    graph.output("y", y)
}

const F32: Dtype = Dtype::F32;
const F16: Dtype = Dtype::F16;

#[rustfmt::skip]
const CASES: [Case; 12] = [
    Case { name: "add", make: add, shape: [4096, 4096], dtype: F32 },
    Case { name: "add", make: add, shape: [4096, 4096], dtype: F16 },
    Case { name: "gelu(x + bias)", make: gelu, shape: [8192, 4096], dtype: F16 },
    Case { name: "softmax(x * c + m)", make: softmax, shape: [4096, 4096], dtype: F32 },
    Case { name: "softmax(x * c + m)", make: softmax, shape: [16384, 1024], dtype: F16 },
    Case { name: "softmax(x * c + m)", make: softmax, shape: [256, 131072], dtype: F16 },
    Case { name: "layer_norm", make: layer_norm, shape: [8192, 4096], dtype: F16 },
    Case { name: "rms_norm", make: rms_norm, shape: [8192, 4096], dtype: Dtype::Bf16 },
    Case { name: "sum of rows", make: sum_rows, shape: [4096, 4096], dtype: F32 },
    Case { name: "sum of columns", make: sum_columns, shape: [4096, 4096], dtype: F32 },
    Case { name: "sum of all", make: sum_all, shape: [4096, 4096], dtype: F32 },
    Case { name: "transpose", make: transpose, shape: [4096, 4096], dtype: F32 },
];

impl Case {
    fn graph(&self, shape: [u64; 2]) -> Result<ExprGraph> {
        let mut graph = ExprGraph::new();
        (self.make)(&mut graph, shape, self.dtype)?;
        Ok(graph)
    }
}

/// Buffers for one run of a graph.
struct Buffers {
    inputs: Vec<DeviceBuffer<u8>>,
    outputs: Vec<DeviceBuffer<u8>>,
}

impl Buffers {
    fn new(graph: &ExprGraph, stream: &Stream, random: &[u8]) -> Result<Self> {
        let inputs = graph.inputs().map(|(_, layout)| {
            // Random bits with exponents below the largest: no NaN.
            let bytes = layout.bytes() as usize;
            let data: Vec<u8> = random.iter().cycle().take(bytes).copied().collect();
            DeviceBuffer::from_host(&data, stream)
        });
        let outputs = graph
            .outputs()
            .map(|(_, layout)| DeviceBuffer::zeroed(stream, layout.bytes() as usize));
        Ok(Self {
            inputs: inputs.collect::<std::result::Result<_, _>>()?,
            outputs: outputs.collect::<std::result::Result<_, _>>()?,
        })
    }

    fn args(&self) -> (Vec<BoundArg<'_>>, Vec<BoundArg<'_>>) {
        let inputs = self.inputs.iter().map(BoundArg::of).collect();
        (inputs, self.outputs.iter().map(BoundArg::of).collect())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn bytes(graph: &ExprGraph) -> u64 {
    let all = graph.inputs().chain(graph.outputs());
    all.map(|(_, layout)| layout.bytes()).sum()
}

fn of(shape: [u64; 2]) -> String {
    format!("{} x {}", shape[0], shape[1])
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn main() -> Result<()> {
    let small = std::env::args().any(|arg| arg == "--small");
    let device = Cuda::from_env()?.device(0)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    println!("{device}, driver {:?}", device.cuda().version()?);
    let mut numbers = fastrand::Rng::new();
    // Halves and f32 from about -2 to 2, however they are read.
    let random: Vec<u8> = (0..1 << 20)
        .map(|at| match at % 2 {
            0 => numbers.u8(..),
            _ => 0x38 | (numbers.u8(..) & 0x87),
        })
        .collect();
    warm_up(&context, &stream)?;

    println!("\nfrom expression to result, host's milliseconds (launch and wait included)");
    println!(
        "{:<22} {:>14} {:>6}  {:>8} {:>8} {:>10}",
        "", "shape", "", "cold", "on disk", "other rows"
    );
    for case in &CASES {
        let shape = if small {
            [case.shape[0].min(16), case.shape[1].min(512)]
        } else {
            case.shape
        };
        let (mut cold, mut found, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5 {
            let folder = Folder::new()?;
            let more = [shape[0] / 2, shape[1]];
            for (times, shape, cached, wanted) in [
                (&mut cold, shape, true, CodeOrigin::Compiled),
                (&mut found, shape, true, CodeOrigin::Disk),
                (&mut other, more, false, CodeOrigin::Memory),
            ] {
                let disk = ProgramCache::at_for(&folder.0, "jit");
                let compiler = Compiler::with_cache(&context, Some(disk))?;
                if !cached {
                    compiler.compile(&case.graph([shape[0] * 2, shape[1]])?)?;
                }
                let buffers = Buffers::new(&case.graph(shape)?, &stream, &random)?;
                let (inputs, outputs) = buffers.args();
                stream.synchronize()?;
                let begun = Instant::now();
                let graph = case.graph(shape)?;
                let compiled = compiler.compile(&graph)?;
                compiled.run(&stream, &inputs, &outputs)?;
                stream.synchronize()?;
                let time = begun.elapsed();
                // If rows are not the first extent this case does not exist.
                if compiled.origin() == wanted {
                    times.push(time);
                }
            }
        }
        let ms = |times: Vec<Duration>| match times.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.2}", median(times).as_secs_f64() * 1e3),
        };
        let (cold, found, other) = (ms(cold), ms(found), ms(other));
        println!(
            "{:<22} {:>14} {:>6}  {cold:>8} {found:>8} {other:>10}",
            case.name,
            of(shape),
            case.dtype.name()
        );
    }

    warm(&context, &stream, &random)?;

    println!("\nkernels, and the least that memory needs");
    println!(
        "{:<22} {:>14} {:>6}  {:>9} {:>9} {:>7}",
        "", "shape", "", "us", "floor us", "TB/s"
    );
    for case in &CASES {
        let shape = if small {
            [case.shape[0].min(16), case.shape[1].min(512)]
        } else {
            case.shape
        };
        let graph = case.graph(shape)?;
        let compiled = Compiler::with_cache(&context, None)?.compile(&graph)?;
        let one = bytes(&graph);
        let sets = if small {
            2
        } else {
            (CACHE / one + 1).clamp(2, 64)
        };
        let all: Result<Vec<Buffers>> = (0..sets)
            .map(|_| Buffers::new(&graph, &stream, &random))
            .collect();
        let all = all?;
        let mut times = Vec::new();
        for round in 0..if small { 2 } else { 12 } {
            let begun = Event::timed(&context)?;
            begun.record(&stream)?;
            let launches = if small { 2 } else { 64 };
            for n in 0..launches {
                let (inputs, outputs) = all[n % all.len()].args();
                compiled.run(&stream, &inputs, &outputs)?;
            }
            let ended = Event::timed(&context)?;
            ended.record(&stream)?;
            ended.synchronize()?;
            if round > 0 {
                times.push(ended.since(&begun)? / launches as u32);
            }
        }
        let time = median(times);
        let floor = one as f64 / FLOOR * 1e6;
        let rate = one as f64 / time.as_secs_f64() / 1e12;
        println!(
            "{:<22} {:>14} {:>6}  {:>9.1} {floor:>9.1} {rate:>7.3}",
            case.name,
            of(shape),
            case.dtype.name(),
            us(time)
        );
    }
    Ok(())
}

/// A folder that is deleted on drop.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let name = format!(
            "fercuda-jit-expressions-{}-{}",
            std::process::id(),
            fastrand::u64(..)
        );
        Ok(Self(std::env::temp_dir().join(name)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The first compilation and the first launch include the driver's own initialisation.
fn warm_up(context: &Context, stream: &Stream) -> Result<()> {
    let case = Case {
        name: "",
        make: add,
        shape: [3, 5],
        dtype: Dtype::F64,
    };
    let graph = case.graph(case.shape)?;
    let buffers = Buffers::new(&graph, stream, &[0])?;
    let (inputs, outputs) = buffers.args();
    Compiler::with_cache(context, None)?.run(&graph, stream, &inputs, &outputs)?;
    Ok(stream.synchronize()?)
}

const EMPTY: &str = ".version 8.0\n.target sm_75\n.address_size 64\n\
    .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }\n";

/// Host time of a cached expression.
fn warm(context: &Context, stream: &Stream, random: &[u8]) -> Result<()> {
    let case = Case {
        name: "softmax",
        make: softmax,
        shape: [8, 128],
        dtype: F16,
    };
    let compiler = Compiler::with_cache(context, None)?;
    let graph = case.graph(case.shape)?;
    let compiled = compiler.compile(&graph)?;
    let buffers = Buffers::new(&graph, stream, random)?;
    let (inputs, outputs) = buffers.args();
    let function = Module::load(context, &Image::ptx(EMPTY))?.function("k")?;
    let launch = Launch::new(1, 32);
    let mut rows: [Vec<Duration>; 4] = Default::default();
    for _ in 0..400 {
        stream.synchronize()?;
        let begun = Instant::now();
        let (a, b, c) = (&buffers.inputs[0], &buffers.inputs[1], &buffers.outputs[0]);
        // SAFETY: the kernel does nothing.
        unsafe { launch.run(&function, stream, (a, b, c, 1u32))? };
        rows[0].push(begun.elapsed());
        stream.synchronize()?;
        let begun = Instant::now();
        compiled.run(stream, &inputs, &outputs)?;
        rows[1].push(begun.elapsed());
        stream.synchronize()?;
        let begun = Instant::now();
        compiler.run(&graph, stream, &inputs, &outputs)?;
        rows[2].push(begun.elapsed());
        stream.synchronize()?;
        let begun = Instant::now();
        compiler.run(&case.graph(case.shape)?, stream, &inputs, &outputs)?;
        rows[3].push(begun.elapsed());
    }
    stream.synchronize()?;
    println!("\nwarm, host's microseconds a call: softmax(x * c + m) of f16[8, 128]");
    let names = [
        "a bare launch",
        "what is compiled, run",
        "a graph, looked up and run",
        "the same graph, said again, looked up and run",
    ];
    for (name, times) in names.into_iter().zip(rows) {
        println!("{name:<48} {:>8.2}", us(median(times)));
    }
    Ok(())
}
