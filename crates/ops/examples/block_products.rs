//! Measurement of the products of one token of a language model with weights in blocks.
//!
//! `block_products [--format q4_1] [--rows 1] [--rounds 5] [--layers 30] [--width 576]`: the shapes
//! of SmolLM2-135M, on whichever device `FERCUDA_DEVICE` says; a width of 768 is for formats of 256
//! elements. Each layer has weights of its own. The
//! time of a round is that of all products one after another; the smallest and the median are
//! printed, and the time of making each kind of plan.
#![expect(clippy::print_stdout, reason = "figures for people")]

use std::time::Instant;

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
use fercuda_jit::BoundArg;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpDevice, OpPlan};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Inputs and outputs of a layer's products, and whether it is the gated one; of a model of that
/// width.
fn layer(width: u64) -> [(u64, u64, bool); 5] {
    let hidden = width / 3 * 8;
    [
        (width, width + 2 * (width / 3), false),
        (width, width, false),
        (width, hidden, true),
        (hidden, width, false),
        // The last one is of the whole model.
        (width, 49152, false),
    ]
}

/// A plan with its memory; weights of each layer.
struct ProductCase {
    plan: OpPlan,
    x: DeviceBuffer<u8>,
    weights: Vec<Vec<DeviceBuffer<u8>>>,
    to: DeviceBuffer<u8>,
    workspace: DeviceBuffer<u8>,
}

impl ProductCase {
    fn run(&self, stream: &Stream, layer: usize) -> Result<()> {
        let weights = self.weights[layer].iter().map(BoundArg::of);
        let operands: Vec<BoundArg<'_>> = std::iter::once(BoundArg::of(&self.x))
            .chain(weights)
            .collect();
        let workspace = Some(BoundArg::of(&self.workspace));
        Ok(self
            .plan
            .run(stream, &operands, &[BoundArg::of(&self.to)], workspace)?)
    }
}

fn prepare(
    device: &OpDevice,
    stream: &Stream,
    format: BlockFormat,
    rows: u64,
    (inputs, outputs, is_gated): (u64, u64, bool),
    layers: usize,
) -> Result<ProductCase> {
    let bytes = inputs / format.elements() as u64 * format.bytes() as u64;
    let x = Layout::contiguous(Dtype::F32, &[rows, inputs])?;
    let w = Layout::contiguous(Dtype::U8, &[outputs, bytes])?;
    let (name, operands) = match is_gated {
        true => ("quantised_swiglu", vec![x, w, w]),
        false => ("quantised_linear", vec![x, w]),
    };
    let op = OpDescriptor::new(name)?.choice("format", &format.name().to_lowercase())?;
    let begun = Instant::now();
    let plan = OpPlan::new(device, &op, &operands, &[], KernelPolicy::Auto)?;
    println!(
        "{name} [{rows}, {inputs}] by [{outputs}, {inputs}]: plan in {:.0?}",
        begun.elapsed()
    );
    let mut random = fastrand::Rng::with_seed(1);
    let elements: Vec<u8> = (0..rows * inputs)
        .flat_map(|_| (random.f32() - 0.5).to_le_bytes())
        .collect();
    let of_bytes = usize::try_from(outputs * bytes)?;
    let weight = |random: &mut fastrand::Rng| -> Result<DeviceBuffer<u8>> {
        let own: Vec<u8> = (0..of_bytes).map(|_| random.u8(..) & 0x37).collect();
        Ok(DeviceBuffer::from_host(&own, stream)?)
    };
    let mut of_layer = || -> Result<Vec<DeviceBuffer<u8>>> {
        (1..operands.len()).map(|_| weight(&mut random)).collect()
    };
    let weights = (0..layers).map(|_| of_layer()).collect::<Result<_>>()?;
    let workspace = usize::try_from(plan.workspace_bytes())?;
    Ok(ProductCase {
        x: DeviceBuffer::from_host(&elements, stream)?,
        weights,
        to: DeviceBuffer::zeroed(stream, usize::try_from(rows * outputs * 4)?)?,
        workspace: DeviceBuffer::zeroed(stream, workspace.max(1))?,
        plan,
    })
}

fn main() -> Result<()> {
    let (mut format, mut width) = (BlockFormat::Q4_1, 576);
    let (mut rows, mut rounds, mut layers) = (1, 5, 30);
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        match name.as_str() {
            "--format" => format = value.parse()?,
            "--width" => width = value.parse()?,
            "--rows" => rows = value.parse()?,
            "--rounds" => rounds = value.parse()?,
            "--layers" => layers = value.parse()?,
            _ => return Err(format!("there is no option {name}").into()),
        }
    }
    let cuda = Cuda::from_env()?;
    let context = Context::primary(cuda.device(0)?)?;
    let stream = Stream::new(&context)?;
    let device = OpDevice::new(&context)?;
    let shapes = layer(width);
    let cases = shapes.iter().enumerate().map(|(at, shape)| {
        let layers = if at + 1 < shapes.len() { layers } else { 1 };
        prepare(&device, &stream, format, rows, *shape, layers)
    });
    let cases = cases.collect::<Result<Vec<_>>>()?;
    let (head, of_layer) = cases.split_last().ok_or("there are no products")?;
    let mut all = Vec::new();
    let mut parts = vec![0.0; cases.len()];
    for _ in 0..rounds {
        let begun = Instant::now();
        for layer in 0..layers {
            for case in of_layer {
                case.run(&stream, layer)?;
            }
        }
        head.run(&stream, 0)?;
        stream.synchronize()?;
        all.push(begun.elapsed().as_secs_f64() * 1e3);
        for (case, part) in cases.iter().zip(&mut parts) {
            let begun = Instant::now();
            for layer in 0..case.weights.len() {
                case.run(&stream, layer)?;
            }
            stream.synchronize()?;
            *part = begun.elapsed().as_secs_f64() * 1e3;
        }
    }
    all.sort_by(f64::total_cmp);
    let (least, median) = (all[0], all[all.len() / 2]);
    println!(
        "{format}, {rows} rows: least {least:.1} ms, median {median:.1} ms; by product {parts:.1?} ms"
    );
    Ok(())
}
