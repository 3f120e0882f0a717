//! Random products, and their reference.
//!
//! The bound of an element follows from its sum: k products and their additions round by the sum's
//! precision, relative to the sum of magnitudes; each later operation and the stored type round
//! once. What lies between the output's elements must stay.

use std::collections::BTreeMap;

use fastrand::Rng;
use fercuda_cuda::{CaptureMode, DeviceBuffer, Stream};
use fercuda_tensor::Dtype;
use fercuda_vendor::cublaslt::{
    Addend, AlgorithmRequest, CublasLt, MatrixLayout, MatrixOrder, MatrixProduct,
    ProductActivation, ProductMath, ProductOperands, ProductScaleFactors, ProductSpec, SplitSums,
};
use fercuda_vendor::{Error, Result};

const WORKSPACE_BYTES: usize = 32 << 20;
/// More bytes than any operand here reaches, and an offset.
const OPERAND_BYTES: usize = 4 << 20;

const MATHS: [ProductMath; 7] = [
    ProductMath::F64,
    ProductMath::F32,
    ProductMath::Tf32,
    ProductMath::F16,
    ProductMath::Bf16,
    ProductMath::I8,
    ProductMath::F8,
];

#[derive(Default)]
struct Counts {
    right: usize,
    captured: usize,
    without_algorithm: usize,
    /// By the library, when an algorithm that it had offered was to run.
    refused: usize,
    wrong: usize,
    /// The largest error, as a part of its bound.
    worst: f64,
}

/// A matrix's elements in host memory.
struct HostMatrix {
    layout: MatrixLayout,
    bytes: Vec<u8>,
    /// What the bytes encode.
    values: Vec<f64>,
}

fn element(layout: &MatrixLayout, batch: u64, row: u64, col: u64) -> usize {
    let (outer, inner) = match layout.order {
        MatrixOrder::Row => (row, col),
        MatrixOrder::Column => (col, row),
    };
    (batch * layout.batch_stride + outer * layout.leading + inner) as usize
}

fn reach_bytes(layout: &MatrixLayout) -> usize {
    let last = element(layout, layout.batch - 1, layout.rows - 1, layout.cols - 1);
    (last + 1) * layout.dtype.bytes() as usize
}

fn decode(bytes: &[u8], dtype: Dtype, index: usize) -> f64 {
    let size = dtype.bytes() as usize;
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[index * size..][..size]);
    dtype.value(u64::from_le_bytes(word))
}

fn random_bytes(random: &mut Rng, dtype: Dtype, count: usize) -> Vec<u8> {
    let size = dtype.bytes() as usize;
    let values = (0..count).map(|_| match dtype {
        Dtype::I8 | Dtype::I32 => f64::from(random.i32(-127..=127)),
        _ => 2.0 * random.f64() - 1.0,
    });
    values
        .flat_map(|value| dtype.encode(value).to_le_bytes()[..size].to_vec())
        .collect()
}

impl HostMatrix {
    fn random(random: &mut Rng, layout: MatrixLayout) -> Self {
        let count = reach_bytes(&layout) / layout.dtype.bytes() as usize;
        let bytes = random_bytes(random, layout.dtype, count);
        let values = (0..count).map(|it| decode(&bytes, layout.dtype, it));
        Self {
            layout,
            values: values.collect(),
            bytes,
        }
    }

    fn value(&self, batch: u64, row: u64, col: u64) -> f64 {
        self.values[element(&self.layout, batch, row, col)]
    }
}

/// A random product and the factors of one run.
struct Case {
    spec: ProductSpec,
    k: u64,
    alpha: f64,
    beta: f64,
    /// Of A, B and D.
    scales: [f32; 3],
}

fn layout(
    random: &mut Rng,
    (dtype, rows, cols): (Dtype, u64, u64),
    order: Option<MatrixOrder>,
    (batch, may_share): (u64, bool),
    unit: u64,
) -> MatrixLayout {
    let is_row = match order {
        Some(order) => order == MatrixOrder::Row,
        None => random.bool(),
    };
    let dense = match is_row {
        true => MatrixLayout::row_major(dtype, rows, cols),
        false => MatrixLayout::column_major(dtype, rows, cols),
    };
    let dense = dense.leading(dense.leading + unit * random.u64(0..4));
    let outer = if is_row { rows } else { cols };
    let stride = match may_share && random.u8(0..4) == 0 {
        true => 0,
        false => dense.leading * outer + unit * random.u64(0..3),
    };
    dense.batch(batch, stride)
}

fn types(random: &mut Rng, math: ProductMath) -> [Dtype; 3] {
    use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64, I8, I32};
    match math {
        ProductMath::F64 => [F64; 3],
        ProductMath::F32 | ProductMath::Tf32 => [F32; 3],
        ProductMath::F16 => [F16, F16, [F16, F32][random.usize(0..2)]],
        ProductMath::Bf16 => [Bf16, Bf16, [Bf16, F32][random.usize(0..2)]],
        ProductMath::I8 => [I8, I8, I32],
        ProductMath::F8 => {
            let [a, b] = [[F8E4m3; 2], [F8E4m3, F8E5m2], [F8E5m2, F8E4m3]][random.usize(0..3)];
            [a, b, [Bf16, F16, F32, F8E4m3][random.usize(0..4)]]
        }
    }
}

fn case(random: &mut Rng, math: ProductMath) -> Case {
    let is_8_bit = matches!(math, ProductMath::I8 | ProductMath::F8);
    let is_f8 = math == ProductMath::F8;
    let [a_type, b_type, d_type] = types(random, math);
    // Kernels for 8-bit types take extents of whole 16 bytes, in one combination of orders.
    let unit = if is_8_bit { 16 } else { 1 };
    let mut extent = |most: u64| match is_8_bit || random.bool() {
        true => 16 * random.u64(1..=most / 16),
        false => random.u64(1..=most),
    };
    let (m, n, k) = (extent(96), extent(96), extent(512));
    let batch = if random.bool() { 1 } else { random.u64(2..=3) };
    let transposes = [(); 2].map(|()| !is_8_bit && random.bool());
    let order = |order| is_8_bit.then_some(order);
    let (a_rows, a_cols) = if transposes[0] { (k, m) } else { (m, k) };
    let (b_rows, b_cols) = if transposes[1] { (n, k) } else { (k, n) };
    let row = order(MatrixOrder::Row);
    let a = layout(random, (a_type, a_rows, a_cols), row, (batch, true), unit);
    let column = order(MatrixOrder::Column);
    let b = layout(
        random,
        (b_type, b_rows, b_cols),
        column,
        (batch, true),
        unit,
    );
    let d = layout(random, (d_type, m, n), None, (batch, false), unit);
    let mut spec = ProductSpec::new(math, a, b, d);
    [spec.transpose_a, spec.transpose_b] = transposes;
    if math != ProductMath::I8 {
        spec.epilogue.bias = random.bool();
        let activations = [
            ProductActivation::None,
            ProductActivation::Relu,
            ProductActivation::Gelu,
        ];
        spec.epilogue.activation = activations[random.usize(0..3)];
        // No more aligned than the output, of which the library's kernels take no account.
        let apart = 16 / d_type.bytes();
        let leading = d.leading + apart * random.u64(0..2);
        let outer = if d.order == MatrixOrder::Row { m } else { n };
        let stride = d.batch_stride + apart * (outer + random.u64(0..3));
        let c = d.leading(leading).batch(batch, stride);
        let can_add = d_type != Dtype::F8E4m3;
        spec.c = match random.u8(0..3) {
            1 if can_add => Addend::Output,
            2 if can_add => Addend::Matrix(c),
            _ => Addend::None,
        };
    }
    if is_f8 {
        spec.scaled.a = random.bool();
        spec.scaled.b = random.bool();
        spec.scaled.d = d_type == Dtype::F8E4m3 && random.bool();
        spec.fast_accumulation = random.u8(0..4) == 0;
    }
    let factors = [1.0, -1.0, 0.5, 2.0];
    let integers = [1.0, -1.0, 2.0, 3.0];
    let mut factor = || match math {
        ProductMath::I8 => integers[random.usize(0..4)],
        _ => factors[random.usize(0..4)],
    };
    let alpha = factor();
    let beta = if spec.c == Addend::None {
        0.0
    } else {
        factor()
    };
    let mut scale = |has| {
        if has {
            [0.5, 2.0][random.usize(0..2)]
        } else {
            1.0
        }
    };
    let scales = [
        scale(spec.scaled.a),
        scale(spec.scaled.b),
        scale(spec.scaled.d),
    ];
    Case {
        spec,
        k,
        alpha,
        beta,
        scales,
    }
}

/// The rounding of each addition, and what the factors' precision adds, relative to the sum of
/// magnitudes.
fn sum_error(case: &Case) -> f64 {
    let k = case.k as f64;
    let of = |bits: i32| (k + 8.0) * 2f64.powi(-bits);
    match case.spec.math {
        ProductMath::F64 => of(52),
        ProductMath::F32 | ProductMath::F16 | ProductMath::Bf16 => of(23),
        // Both factors keep 10 bits.
        ProductMath::Tf32 => of(23) + 2f64.powi(-9),
        ProductMath::I8 => 0.0,
        // Hopper adds 32 products at a time with 13 bits below the largest, and f32 takes over
        // after every 128 unless fast accumulation is allowed.
        ProductMath::F8 => {
            let steps = if case.spec.fast_accumulation {
                k / 32.0 + 1.0
            } else {
                4.0
            };
            of(23) + steps * 2f64.powi(-13)
        }
    }
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// The reference of one element from its sum and sum of magnitudes, and its bound.
fn expected(case: &Case, (sum, magnitude): (f64, f64), c: f64, bias: f64) -> (f64, f64) {
    let Case {
        spec,
        alpha,
        beta,
        scales,
        ..
    } = case;
    let factor = alpha * f64::from(scales[0]) * f64::from(scales[1]);
    let eps = match spec.math {
        ProductMath::F64 => 2f64.powi(-52),
        ProductMath::I8 => 0.0,
        _ => 2f64.powi(-23),
    };
    let linear = factor * sum + beta * c + bias;
    let terms = factor.abs() * magnitude + (beta * c).abs() + bias.abs();
    let mut bound = factor.abs() * magnitude * sum_error(case) + 4.0 * eps * terms;
    // Some algorithms store the sum before a kernel of its own applies the epilogue.
    let has_epilogue = spec.epilogue.bias || spec.epilogue.activation != ProductActivation::None;
    if let (true, Some((_, bits))) = (has_epilogue, spec.d.dtype.float_format()) {
        bound += (factor * sum + beta * c).abs() * 2f64.powi(-(bits as i32));
    }
    let value = match spec.epilogue.activation {
        ProductActivation::None => linear,
        ProductActivation::Relu => linear.max(0.0),
        ProductActivation::Gelu => {
            // Its slope is below 1.13; the hardware's tanh is within 2^-10.5.
            bound = 1.13 * bound + 0.5 * linear.abs() * 2f64.powi(-10);
            gelu(linear)
        }
    };
    let scaled = value * f64::from(scales[2]);
    bound *= f64::from(scales[2]);
    let dtype = spec.d.dtype;
    let Some((exponent_bits, fraction_bits)) = dtype.float_format() else {
        return (scaled, bound);
    };
    let smallest = 2f64.powi(2 - (1 << (exponent_bits - 1)) - fraction_bits as i32);
    let rounding = (scaled.abs() + bound) * 2f64.powi(-(fraction_bits as i32)) + smallest;
    (dtype.nearest(scaled), bound + rounding)
}

/// The number of wrong elements, the worst error as a part of its bound, and the first wrong one.
fn compare(
    case: &Case,
    [a, b, c, d]: [&HostMatrix; 4],
    bias: &[u8],
    found: &[u8],
) -> (usize, f64, String) {
    let spec = &case.spec;
    let (mut wrong, mut worst, mut first) = (0, 0f64, String::new());
    let mut is_element = vec![false; d.bytes.len()];
    let size = d.layout.dtype.bytes() as usize;
    for batch in 0..d.layout.batch {
        for (row, col) in (0..d.layout.rows).flat_map(|r| (0..d.layout.cols).map(move |c| (r, c))) {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for i in 0..case.k {
                let (a_row, a_col) = if spec.transpose_a { (i, row) } else { (row, i) };
                let (b_row, b_col) = if spec.transpose_b { (col, i) } else { (i, col) };
                let term = a.value(batch, a_row, a_col) * b.value(batch, b_row, b_col);
                sum += term;
                magnitude += term.abs();
            }
            let added = match spec.c {
                Addend::None => 0.0,
                Addend::Output => d.value(batch, row, col),
                Addend::Matrix(_) => c.value(batch, row, col),
            };
            let along = match d.layout.order {
                MatrixOrder::Row => col,
                MatrixOrder::Column => row,
            };
            let shift = match spec.epilogue.bias {
                true => decode(bias, spec.bias_dtype(), along as usize),
                false => 0.0,
            };
            let (value, bound) = expected(case, (sum, magnitude), added, shift);
            let index = element(&d.layout, batch, row, col);
            let stored = decode(found, d.layout.dtype, index);
            is_element[index * size..][..size].fill(true);
            let error = (stored - value).abs();
            let is_right = error <= bound;
            if is_right && bound > 0.0 {
                worst = worst.max(error / bound);
            }
            if !is_right {
                wrong += 1;
                if first.is_empty() {
                    first = format!(
                        "element ({batch}, {row}, {col}) is {stored}, expected {value} +- {bound:.3e}"
                    );
                }
            }
        }
    }
    for (index, is_element) in is_element.iter().enumerate() {
        if !is_element && found[index] != d.bytes[index] {
            wrong += 1;
            first = format!("byte {index}, which is in no element, was written");
        }
    }
    (wrong, worst, first)
}

/// Device memory of all cases.
struct Memory {
    a: DeviceBuffer<u8>,
    b: DeviceBuffer<u8>,
    c: DeviceBuffer<u8>,
    d: DeviceBuffer<u8>,
    bias: DeviceBuffer<u8>,
    workspace: DeviceBuffer<u8>,
}

/// Copies `bytes` to `offset` and returns the place.
fn place(
    to: &mut DeviceBuffer<u8>,
    bytes: &[u8],
    offset: usize,
    stream: &Stream,
) -> Result<std::ops::Range<usize>> {
    let range = offset..offset + bytes.len();
    to.slice_mut(range.clone())?.copy_from_host(bytes, stream)?;
    Ok(range)
}

/// Runs one case; none if the library has no algorithm for it. Returns the output's bytes.
fn run(
    lt: &CublasLt,
    stream: &Stream,
    memory: &mut Memory,
    case: &Case,
    ([a, b, c, d], bias): ([&HostMatrix; 4], &[u8]),
    (random, is_captured): (&mut Rng, bool),
) -> Result<Option<Vec<u8>>> {
    let spec = &case.spec;
    let product = MatrixProduct::new(lt, spec)?;
    let mut offset = |dtype: Dtype| match random.u8(0..3) {
        0 => random.usize(1..20) * dtype.bytes() as usize,
        1 => 16 * random.usize(1..9),
        _ => 0,
    };
    let offsets = [a, b, c, d].map(|it| offset(it.layout.dtype));
    let bias_offset = offset(spec.bias_dtype());
    let at_a = place(&mut memory.a, &a.bytes, offsets[0], stream)?;
    let at_b = place(&mut memory.b, &b.bytes, offsets[1], stream)?;
    let at_c = place(&mut memory.c, &c.bytes, offsets[2], stream)?;
    let at_d = place(&mut memory.d, &d.bytes, offsets[3], stream)?;
    let at_bias = place(&mut memory.bias, bias, bias_offset, stream)?;
    let scales = DeviceBuffer::from_host(&case.scales, stream)?;
    let scale = |index: usize, has: bool| -> Result<_> {
        Ok(match has {
            true => Some(scales.slice(index..=index)?),
            false => None,
        })
    };
    let mut operands = ProductOperands::new(
        memory.a.slice(at_a)?,
        memory.b.slice(at_b)?,
        memory.d.slice_mut(at_d.clone())?,
    );
    operands = operands.alpha(case.alpha).beta(case.beta);
    operands = operands.scales(ProductScaleFactors {
        a: scale(0, spec.scaled.a)?,
        b: scale(1, spec.scaled.b)?,
        d: scale(2, spec.scaled.d)?,
    });
    if spec.epilogue.bias {
        operands = operands.bias(memory.bias.slice(at_bias)?);
    }
    if matches!(spec.c, Addend::Matrix(_)) {
        operands = operands.addend(memory.c.slice(at_c)?);
    }
    operands = operands.workspace(memory.workspace.as_slice_mut());
    let request = AlgorithmRequest::new()
        .count(8)
        .workspace_bytes(WORKSPACE_BYTES as u64);
    let request = request.sums(SplitSums::ComputeType).aligned_as(&operands);
    let algorithms = match product.algorithms(&request) {
        Ok(algorithms) => algorithms,
        Err(Error::NoAlgorithm { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let algorithm = algorithms[random.usize(0..algorithms.len())];
    match is_captured {
        true => {
            let capture = stream.begin_capture(CaptureMode::Global)?;
            product.run(stream, &algorithm, operands)?;
            let graph = capture.end()?;
            // The graph keeps what it needs of it.
            drop(product);
            graph.instantiate()?.launch(stream)?;
        }
        false => product.run(stream, &algorithm, operands)?,
    }
    Ok(Some(memory.d.slice(at_d)?.to_vec(stream)?))
}

/// Checks `count` products, prints a line for each kind, and returns the number of failures.
pub(crate) fn check(
    lt: &CublasLt,
    stream: &Stream,
    random: &mut Rng,
    count: usize,
) -> Result<usize> {
    let zeroed = |bytes| DeviceBuffer::<u8>::zeroed(stream, bytes);
    let mut memory = Memory {
        a: zeroed(OPERAND_BYTES)?,
        b: zeroed(OPERAND_BYTES)?,
        c: zeroed(OPERAND_BYTES)?,
        d: zeroed(OPERAND_BYTES)?,
        bias: zeroed(OPERAND_BYTES)?,
        workspace: zeroed(WORKSPACE_BYTES)?,
    };
    let mut all: BTreeMap<String, Counts> = BTreeMap::new();
    for index in 0..count {
        let case = case(random, MATHS[index % MATHS.len()]);
        let spec = &case.spec;
        let [a, b, d] = [spec.a, spec.b, spec.d].map(|it| HostMatrix::random(random, it));
        let c = match spec.c {
            Addend::Matrix(c) => HostMatrix::random(random, c),
            Addend::None | Addend::Output => HostMatrix::random(random, spec.d),
        };
        let bias_len = spec.d.rows.max(spec.d.cols) as usize;
        let bias = random_bytes(random, spec.bias_dtype(), bias_len);
        let counts = all
            .entry(format!("{:?} -> {}", spec.math, spec.d.dtype))
            .or_default();
        let is_captured = random.u8(0..6) == 0;
        let host = ([&a, &b, &c, &d], bias.as_slice());
        let found = run(lt, stream, &mut memory, &case, host, (random, is_captured));
        let failure = match found {
            Ok(None) => {
                counts.without_algorithm += 1;
                continue;
            }
            Ok(Some(found)) => {
                let (wrong, worst, first) = compare(&case, host.0, &bias, &found);
                counts.worst = counts.worst.max(worst);
                (wrong > 0).then(|| format!("{wrong} elements are wrong: {first}"))
            }
            Err(Error::Call(failure)) if failure.status == "CUBLAS_STATUS_NOT_SUPPORTED" => {
                counts.refused += 1;
                continue;
            }
            Err(error) => Some(error.to_string()),
        };
        match failure {
            None => {
                counts.right += 1;
                counts.captured += usize::from(is_captured);
            }
            Some(failure) => {
                counts.wrong += 1;
                println!(
                    "product {index}: {spec}, {:?}, C {:?}, alpha {}, beta {}, scales {:?}, \
                     captured {is_captured}\n  {failure}",
                    spec.epilogue, spec.c, case.alpha, case.beta, case.scales
                );
            }
        }
    }
    let mut failures = 0;
    for (kind, counts) in &all {
        println!(
            "{kind}: {} right ({} captured), {} wrong, {} without algorithm, {} refused by one that \
             was offered, worst error {:.3} of its bound",
            counts.right,
            counts.captured,
            counts.wrong,
            counts.without_algorithm,
            counts.refused,
            counts.worst
        );
        failures += counts.wrong;
        if counts.right == 0 && count >= 200 {
            println!("{kind}: none was right");
            failures += 1;
        }
    }
    Ok(failures)
}
