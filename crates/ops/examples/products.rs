//! Measurement of matrix products by all kernels, the library's algorithms among them.
//!
//! `products [--dtype bf16] [--op linear] [--shapes 64x4096x4096,..]`: for each product, of rows by
//! outputs by inputs, the time of `linear`, or of `matmul`, whose right factor lies the other way,
//! by the fastest of our kernels, by that of warpgroups, and by cuBLASLt's fastest and first
//! algorithm, all in turns on random numbers in memory larger than the cache. Elements of the
//! result by warpgroups are compared with sums in f64. Without `--shapes`: 40 of language models'
//! layers.
#![expect(clippy::print_stdout, reason = "figures for people")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
use fercuda_jit::BoundArg;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpDevice, OpPlan, OpTuner, TuneSet};
use fercuda_tensor::{Dtype, Layout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Memory of all sets of a product, at most, and of the cache that they have to exceed.
const MOST_BYTES: u64 = 4 << 30;
const CACHE_BYTES: u64 = 256 << 20;

/// Rows, outputs and inputs of the products that are measured by default.
fn shapes() -> Vec<[u64; 3]> {
    let mut all = Vec::new();
    for [outputs, inputs] in [
        [4096, 4096],
        [6144, 4096],
        [28672, 4096],
        [4096, 14336],
        [14336, 4096],
        [8192, 8192],
    ] {
        for rows in [64, 128, 256, 512, 2048, 8192] {
            all.push([rows, outputs, inputs]);
        }
    }
    all.extend([[1024; 3], [2048; 3], [4096; 3], [16384, 4096, 1024]]);
    all
}

/// Random numbers between -1 and 1, the same bytes again and again after 16 MiB.
fn random_buffer(
    random: &mut fastrand::Rng,
    layout: &Layout,
    stream: &Stream,
) -> Result<(Vec<u8>, DeviceBuffer<u8>)> {
    let size = usize::try_from(layout.bytes())?;
    let dtype = layout.dtype();
    let element = dtype.bytes() as usize;
    let one = |_| dtype.encode(random.f64() * 2.0 - 1.0).to_le_bytes();
    let pattern: Vec<u8> = (0..size.min(16 << 20) / element)
        .map(one)
        .flat_map(|bytes| bytes.into_iter().take(element))
        .collect();
    let bytes: Vec<u8> = pattern.iter().copied().cycle().take(size).collect();
    let buffer = DeviceBuffer::from_host(&bytes, stream)?;
    Ok((bytes, buffer))
}

/// The largest part of its bound that the error of some elements has.
fn largest_error(random: &mut fastrand::Rng, case: &ProductCase, [x, w, got]: [&[u8]; 3]) -> f64 {
    let (dtype, [rows, outputs, inputs]) = (case.dtype, case.shape);
    let size = dtype.bytes() as usize;
    let at = |bytes: &[u8], place: u64| {
        let mut own = [0; 8];
        own[..size].copy_from_slice(&bytes[place as usize * size..][..size]);
        dtype.value(u64::from_le_bytes(own))
    };
    let mut worst = 0f64;
    for _ in 0..200 {
        let (row, column) = (random.u64(..rows), random.u64(..outputs));
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for k in 0..inputs {
            let product = at(x, row * inputs + k)
                * at(
                    w,
                    match case.is_linear {
                        true => column * inputs + k,
                        false => k * outputs + column,
                    },
                );
            sum += product;
            magnitude += product.abs();
        }
        let unit = 2f64.powi(-24);
        let rounding = if dtype == Dtype::F16 {
            2f64.powi(-11)
        } else {
            2f64.powi(-8)
        };
        let bound = 2.0 * (inputs as f64 + 4.0) * unit * magnitude + rounding * sum.abs();
        let error = (at(got, row * outputs + column) - sum).abs();
        worst = worst.max(if error.is_nan() {
            f64::INFINITY
        } else {
            error / bound
        });
    }
    worst
}

/// A product.
struct ProductCase {
    dtype: Dtype,
    is_linear: bool,
    shape: [u64; 3],
}

/// Times of one product, in microseconds.
struct ProductTimes {
    ours: (String, f64),
    planned: f64,
    best: f64,
    first: f64,
}

fn measure(device: &OpDevice, stream: &Stream, case: &ProductCase) -> Result<ProductTimes> {
    let (dtype, [rows, outputs, inputs]) = (case.dtype, case.shape);
    let (name, right) = match case.is_linear {
        true => ("linear", [outputs, inputs]),
        false => ("matmul", [inputs, outputs]),
    };
    let op = OpDescriptor::new(name)?;
    let x = Layout::contiguous(dtype, &[rows, inputs])?;
    let w = Layout::contiguous(dtype, &right)?;
    let to = Layout::contiguous(dtype, &[rows, outputs])?;
    let mut random = fastrand::Rng::new();
    let of_set = x.bytes() + w.bytes() + to.bytes();
    let count = (CACHE_BYTES / of_set + 1).clamp(1, (MOST_BYTES / of_set).max(1));
    let set = |random: &mut fastrand::Rng| -> Result<_> {
        Ok([
            random_buffer(random, &x, stream)?,
            random_buffer(random, &w, stream)?,
            random_buffer(random, &to, stream)?,
        ])
    };
    let sets: Vec<_> = (0..count)
        .map(|_| set(&mut random))
        .collect::<Result<_>>()?;
    let tuner = OpTuner::new(device, &op, &[x, w], &[to])?;
    let workspace = usize::try_from(tuner.workspace_bytes())?.max(1);
    let workspace = DeviceBuffer::<u8>::zeroed(stream, workspace)?;
    let bound: Vec<TuneSet<'_>> = sets
        .iter()
        .map(|[(_, x), (_, w), (_, to)]| TuneSet {
            operands: vec![BoundArg::of(x), BoundArg::of(w)],
            outputs: vec![BoundArg::of(to)],
        })
        .collect();
    let measured = tuner.measure(stream, &bound, Some(BoundArg::of(&workspace)))?;
    let time = |id: &str| {
        let own = measured.kernels.iter().find(|it| it.id == id);
        own.map_or(f64::NAN, |it| it.time.as_secs_f64() * 1e6)
    };
    let is_library = |id: &str| id.starts_with("cublaslt");
    let ours = measured.kernels.iter().find(|it| !is_library(&it.id));
    let ours = ours.ok_or("none of our kernels computes it")?;
    let best = measured.kernels.iter().find(|it| is_library(&it.id));
    let policy = KernelPolicy::Force("cuda.warpgroup");
    let plan = OpPlan::new(device, &op, &[x, w], &[to], policy);
    if let Ok(plan) = plan {
        let [(host_x, x), (host_w, w), (_, to)] = &sets[0];
        plan.run(
            stream,
            &[BoundArg::of(x), BoundArg::of(w)],
            &[BoundArg::of(to)],
            Some(BoundArg::of(&workspace)),
        )?;
        let got = to.to_vec(stream)?;
        let worst = largest_error(&mut random, case, [host_x, host_w, &got]);
        if worst > 1.0 {
            return Err(format!("{:?}: an error is {worst:.1} times its bound", case.shape).into());
        }
    }
    Ok(ProductTimes {
        ours: (ours.id.clone(), ours.time.as_secs_f64() * 1e6),
        planned: time("cuda.warpgroup"),
        best: best.map_or(f64::NAN, |it| it.time.as_secs_f64() * 1e6),
        first: time("cublaslt:0"),
    })
}

fn main() -> Result<()> {
    let (mut dtype, mut is_linear, mut of) = (Dtype::Bf16, true, shapes());
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        match name.as_str() {
            "--dtype" => dtype = value.parse()?,
            "--op" => is_linear = value == "linear",
            "--shapes" => {
                let shape = |text: &str| -> Result<[u64; 3]> {
                    let numbers = text
                        .split('x')
                        .map(str::parse)
                        .collect::<std::result::Result<Vec<u64>, _>>()?;
                    numbers
                        .try_into()
                        .map_err(|_| format!("{text} is no shape as 64x4096x4096").into())
                };
                of = value.split(',').map(shape).collect::<Result<_>>()?;
            }
            _ => return Err(format!("there is no option {name}").into()),
        }
    }
    let cuda = Cuda::from_env()?;
    let context = Context::primary(cuda.device(0)?)?;
    let stream = Stream::new(&context)?;
    let device = OpDevice::new(&context)?;
    println!("{}, {dtype}", context.device().name()?);
    println!(
        "rows x outputs x inputs: cuBLASLt's best, its TFLOP/s; best over first, our kernel's"
    );
    let (mut logarithms, mut beside_first) = (0.0, 0.0);
    for shape in &of {
        let [rows, outputs, inputs] = *shape;
        let times = measure(
            &device,
            &stream,
            &ProductCase {
                dtype,
                is_linear,
                shape: *shape,
            },
        )?;
        let work = 2.0 * (rows * outputs * inputs) as f64;
        let warpgroup = times.best / times.planned;
        println!(
            "{rows:>5} x {outputs:>5} x {inputs:>5}: {:>8.1} us {:>4.0}; first {:.3}, warpgroup {warpgroup:.3}, best of ours {:.3} ({})",
            times.best,
            work / times.best * 1e-6,
            times.best / times.first,
            times.best / times.ours.1,
            times.ours.0,
        );
        logarithms += warpgroup.ln();
        beside_first += (times.first / times.planned).ln();
    }
    let count = of.len() as f64;
    println!(
        "geometric means of warpgroup: {:.3} of the library's best, {:.3} of its first",
        (logarithms / count).exp(),
        (beside_first / count).exp()
    );
    Ok(())
}
