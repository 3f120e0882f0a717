//! A device, on which expressions run beside the reference.

use std::sync::OnceLock;

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
use fercuda_jit::reference::{self, ExactValue};
use fercuda_jit::{BoundArg, Compiler, ExprGraph};
use fercuda_tensor::{Dtype, Layout};

pub(crate) struct Bench {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) compiler: Compiler,
}

/// Findings of the software device are process-wide, so expressions run one after the other.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Random numbers with a printed seed.
pub(crate) fn random() -> fastrand::Rng {
    fercuda_trials::rng()
}

impl Bench {
    /// Without a cache on disk.
    pub(crate) fn new() -> Self {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        Self {
            stream: Stream::new(&context).unwrap(),
            compiler: Compiler::with_cache(&context, None).unwrap(),
            context,
        }
    }

    pub(crate) fn shared() -> &'static Self {
        static BENCH: OnceLock<Bench> = OnceLock::new();
        BENCH.get_or_init(Self::new)
    }

    /// Runs a graph with these elements; returns those of its outputs.
    pub(crate) fn run(&self, graph: &ExprGraph, inputs: &[Vec<u64>]) -> Vec<Vec<u64>> {
        let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
        let put = |layout: &Layout, bits: &[u64]| {
            let bytes = scattered(layout, bits);
            DeviceBuffer::from_host(&bytes, &self.stream).unwrap()
        };
        let made: Vec<_> = graph
            .inputs()
            .zip(inputs)
            .map(|((_, layout), bits)| (put(layout, bits), first(layout)))
            .collect();
        let outputs: Vec<_> = graph
            .outputs()
            .map(|(_, layout)| {
                let bytes = vec![0xa5; scattered(layout, &vec![0; layout.len() as usize]).len()];
                let buffer = DeviceBuffer::from_host(&bytes, &self.stream).unwrap();
                (buffer, first(layout))
            })
            .collect();
        fn args(buffers: &[(DeviceBuffer<u8>, u64)]) -> Vec<BoundArg<'_>> {
            let args = buffers.iter();
            args.map(|(buffer, first)| BoundArg::of(buffer).first_at(*first))
                .collect()
        }
        let done = self
            .compiler
            .run(graph, &self.stream, &args(&made), &args(&outputs));
        if let Err(error) = done {
            panic!("{error}\n{graph}");
        }
        let got = graph
            .outputs()
            .zip(&outputs)
            .map(|((_, layout), (buffer, _))| {
                let bytes = match buffer.to_vec(&self.stream) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        let program = self.compiler.compile(graph).unwrap();
                        let program = program.program();
                        let faults = fercuda_softgpu::control::take_faults();
                        panic!(
                            "{error}\n{graph}\n{}\n{}\n{faults:?}",
                            program.fused(),
                            program.ptx().unwrap()
                        );
                    }
                };
                gathered(layout, &bytes)
            });
        let got = got.collect();
        self.sound(graph);
        got
    }

    /// Checks that the software device has found nothing.
    pub(crate) fn sound(&self, graph: &ExprGraph) {
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            if let Some(finding) = findings.first() {
                let program = self.compiler.compile(graph).unwrap();
                let program = program.program();
                panic!(
                    "{finding}\n{graph}\n{}\n{}",
                    program.fused(),
                    program.ptx().unwrap()
                );
            }
        }
    }

    /// Checks every element of every output against the reference.
    pub(crate) fn check(&self, graph: &ExprGraph, inputs: &[Vec<u64>]) {
        let got = self.run(graph, inputs);
        let wanted = reference::evaluate(graph, inputs);
        for (((name, layout), got), wanted) in graph.outputs().zip(&got).zip(&wanted) {
            assert_eq!(got.len(), wanted.len());
            for (at, (bits, near)) in got.iter().zip(wanted).enumerate() {
                let dtype = layout.dtype();
                assert!(
                    near.allows(dtype, *bits),
                    "{name}[{at}] is {:?}, should be {:?} within {:e}\n{graph}\ninputs: {}\n{}",
                    reference::decode(dtype, *bits),
                    near.value,
                    near.error,
                    shown(graph, inputs),
                    self.compiler.compile(graph).unwrap().program().fused(),
                );
            }
        }
    }
}

fn shown(graph: &ExprGraph, inputs: &[Vec<u64>]) -> String {
    let all = graph.inputs().zip(inputs).map(|((name, layout), bits)| {
        let few = bits.iter().take(64);
        let few: Vec<_> = few
            .map(|bits| reference::decode(layout.dtype(), *bits))
            .collect();
        format!("{name} = {few:?}")
    });
    all.collect::<Vec<_>>().join("\n")
}

/// Offset of the first element in the memory.
pub(crate) fn first(layout: &Layout) -> u64 {
    // A multiple of 16, so that vector accesses are used.
    layout
        .reach_bytes()
        .start
        .unsigned_abs()
        .next_multiple_of(16)
}

fn places(layout: &Layout) -> Vec<usize> {
    let mut all = vec![first(layout) as i64];
    if layout.is_empty() {
        return Vec::new();
    }
    for (len, stride) in layout.shape().iter().zip(layout.strides()) {
        let apart = stride * layout.dtype().bytes() as i64;
        let along = |first: i64| (0..*len as i64).map(move |n| first + n * apart);
        all = all.into_iter().flat_map(along).collect();
    }
    all.into_iter().map(|place| place as usize).collect()
}

/// Memory with these elements at the layout's offsets.
pub(crate) fn scattered(layout: &Layout, bits: &[u64]) -> Vec<u8> {
    let size = layout.dtype().bytes() as usize;
    let until = first(layout) + layout.reach_bytes().end.unsigned_abs();
    let mut bytes = vec![0; until as usize];
    for (place, bits) in places(layout).into_iter().zip(bits) {
        bytes[place..place + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    bytes
}

pub(crate) fn gathered(layout: &Layout, bytes: &[u8]) -> Vec<u64> {
    let size = layout.dtype().bytes() as usize;
    let all = places(layout).into_iter().map(|place| {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(&bytes[place..place + size]);
        u64::from_le_bytes(bits)
    });
    all.collect()
}

/// Elements of a type: floats mostly of ordinary size, and some special ones.
pub(crate) fn elements(random: &mut fastrand::Rng, dtype: Dtype, count: u64) -> Vec<u64> {
    (0..count).map(|_| element(random, dtype)).collect()
}

fn element(random: &mut fastrand::Rng, dtype: Dtype) -> u64 {
    let float = matches!(
        dtype,
        Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4m3 | Dtype::F8E5m2
    );
    let all = u64::MAX >> (64 - 8 * dtype.bytes());
    match random.u32(..100) {
        _ if dtype == Dtype::Bool => random.u64(..2),
        0..3 if float => {
            let special = [
                0.0,
                -0.0,
                1.0,
                -1.0,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
            ];
            reference::encode(
                dtype,
                ExactValue::Float(special[random.usize(..special.len())]),
            )
        }
        3..6 => random.u64(..) & all,
        _ if float => {
            let value = (random.f64() - 0.5) * f64::exp2(f64::from(random.i32(-6..6)));
            reference::encode(dtype, ExactValue::Float(value))
        }
        6..30 => random.u64(..) & all,
        _ => reference::encode(dtype, ExactValue::Int(random.i128(-9..10))),
    }
}

/// Floats in a range, or integers of that size.
pub(crate) fn between(
    random: &mut fastrand::Rng,
    dtype: Dtype,
    count: u64,
    (least, most): (f64, f64),
) -> Vec<u64> {
    let all = (0..count).map(|_| {
        let value = least + (most - least) * random.f64();
        reference::encode(dtype, ExactValue::Float(value))
    });
    all.collect()
}

/// A contiguous layout.
pub(crate) fn of(dtype: Dtype, shape: &[u64]) -> Layout {
    Layout::contiguous(dtype, shape).unwrap()
}
