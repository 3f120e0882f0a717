//! The tour's steps, in order.
//!
//! Kernels come from `fercuda_testkit::kernels`, written with the builder and loaded as PTX text on
//! every device. Sizes are odd on purpose, so that partial tiles and rows are covered.
//!
//! Elsewhere: the expected results (`reference`).

use std::time::Instant;

use anyhow::Result;
use fercuda_cuda::{
    Arguments, CaptureMode, Context, DeviceBuffer, Function, Image, Launch, Module, Stream,
};
use fercuda_ptx::build::Arch;
use fercuda_testkit::kernels::attention::{self, HeadDim, Mask};
use fercuda_testkit::kernels::gemm::{self, Tile};
use fercuda_testkit::kernels::{self, KernelDesc, softmax, vector_add};

use super::reference::{self, ReferenceResult, judge};
use super::step::StepResult;

/// One step, with its name for error messages.
pub(crate) type TourStep = (&'static str, fn(&mut Tour) -> Result<StepResult>);

/// The tour.
pub(crate) const STEPS: [TourStep; 7] = [
    ("vector add", vector_add),
    ("softmax", softmax),
    ("matrix product", matrix_product),
    ("attention", |tour| attention(tour, false)),
    ("causal attention", |tour| attention(tour, true)),
    ("two streams", two_streams),
    ("graph replay", graph),
];

/// Times each step is run; the best time counts.
const RUNS: usize = 3;

/// State shared by the steps.
pub(crate) struct Tour {
    context: Context,
    stream: Stream,
    random: u64,
}

impl Tour {
    pub(crate) fn new(context: Context, seed: u64) -> Result<Tour> {
        Ok(Tour {
            stream: Stream::new(&context)?,
            context,
            random: seed,
        })
    }

    /// `count` numbers in (-1, 1), with all 24 significant bits of an f32.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        let numbers = std::iter::repeat_with(|| {
            // xorshift64*, with a constant so that a seed of zero works.
            let mut x = self.random ^ 0x9e37_79b9_7f4a_7c15;
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            self.random = x ^ 0x9e37_79b9_7f4a_7c15;
            let word = x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
            (word as f32 / (1 << 23) as f32 - 1.0) * 0.9
        });
        numbers.take(count).collect()
    }

    fn load<S>(&self, kernel: &KernelDesc<S>) -> Result<Function> {
        let text = fercuda_ptx::print(&kernel.module);
        Ok(Module::load(&self.context, &Image::ptx(text))?.function(&kernel.entry)?)
    }

    pub(crate) fn upload(&self, values: &[f32]) -> Result<DeviceBuffer<f32>> {
        Ok(DeviceBuffer::from_host(values, &self.stream)?)
    }

    fn empty(&self, count: usize) -> Result<DeviceBuffer<f32>> {
        Ok(DeviceBuffer::alloc(&self.context, count)?)
    }

    pub(crate) fn download(&self, buffer: &DeviceBuffer<f32>) -> Result<Vec<f32>> {
        Ok(buffer.to_vec(&self.stream)?)
    }

    /// The best time of several runs of `launch`, each waited for.
    fn time(&self, mut launch: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            self.stream.synchronize()?;
            let start = Instant::now();
            launch()?;
            self.stream.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(best)
    }
}

/// Queues a kernel with the parameters of its description.
///
/// # Safety
/// As for [`Launch::run`]: the buffers hold what the kernel reads and writes
/// for the shape that `geometry` was made from, and work on them is ordered.
unsafe fn start(
    function: &Function,
    stream: &Stream,
    geometry: &kernels::LaunchGeometry,
    arguments: impl Arguments,
) -> Result<()> {
    let launch = Launch::new(extents(geometry.grid), extents(geometry.block))
        .shared_bytes(geometry.dynamic_shared_bytes);
    // SAFETY: the caller's contract.
    unsafe { launch.run(function, stream, arguments)? };
    Ok(())
}

fn extents([x, y, z]: [u32; 3]) -> (u32, u32, u32) {
    (x, y, z)
}

/// The result of a step that is compared with a reference.
fn compared(
    name: &'static str,
    size: String,
    seconds: f64,
    got: &[f32],
    expected: &ReferenceResult,
) -> StepResult {
    let verdict = judge(got, expected);
    StepResult {
        name,
        size,
        seconds,
        error_ulp: Some(verdict.error_ulp),
        bound_ulp: Some(verdict.bound_ulp),
        finding: None,
        passed: verdict.passed(),
    }
}

/// `1,000,003`
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn vector_add(tour: &mut Tour) -> Result<StepResult> {
    let n = 1_000_003;
    let kernel = vector_add::f32(Arch::SM_80)?;
    let function = tour.load(&kernel)?;
    let (a, b) = (tour.numbers(n), tour.numbers(n));
    let (device_a, device_b) = (tour.upload(&a)?, tour.upload(&b)?);
    let mut out = tour.empty(n)?;
    let geometry = kernel.launch(&vector_add::VectorExtents { n: n as u64 })?;
    let seconds = tour.time(|| {
        let arguments = (&device_a, &device_b, &mut out, n as u32);
        // SAFETY: it touches the first n elements of each; each has n.
        unsafe { start(&function, &tour.stream, &geometry, arguments) }
    })?;
    let got = tour.download(&out)?;
    let expected = reference::sum(&a, &b);
    Ok(compared("vector add", grouped(n), seconds, &got, &expected))
}

fn softmax(tour: &mut Tour) -> Result<StepResult> {
    let (rows, columns) = (257, 1003);
    let kernel = softmax::f32(Arch::SM_80)?;
    let function = tour.load(&kernel)?;
    let mut x = tour.numbers(rows * columns);
    for value in &mut x {
        *value *= 20.0;
    }
    let device_x = tour.upload(&x)?;
    let mut out = tour.empty(x.len())?;
    let geometry = kernel.launch(&softmax::RowExtents {
        rows: rows as u64,
        cols: columns as u64,
    })?;
    let seconds = tour.time(|| {
        let arguments = (&device_x, &mut out, rows as u32, columns as u32);
        // SAFETY: a block for each row, and both have rows times columns elements.
        unsafe { start(&function, &tour.stream, &geometry, arguments) }
    })?;
    let got = tour.download(&out)?;
    // A thread visits each of its elements once, and the block's reduction adds one
    // rescaling to the row's maximum.
    let steps = columns.div_ceil(geometry.block[0] as usize) + 1;
    let expected = reference::softmax(&x, columns, steps);
    let size = format!("{rows} rows of {columns}");
    Ok(compared("softmax", size, seconds, &got, &expected))
}

fn matrix_product(tour: &mut Tour) -> Result<StepResult> {
    let (m, n, k) = (250, 190, 330);
    let shape = gemm::GemmExtents {
        m: m as u64,
        n: n as u64,
        k: k as u64,
    };
    let kernel = gemm::f32(Arch::SM_80, Tile::Small)?;
    let function = tour.load(&kernel)?;
    let (a, b) = (tour.numbers(m * k), tour.numbers(k * n));
    let (device_a, device_b) = (tour.upload(&a)?, tour.upload(&b)?);
    let mut c = tour.empty(m * n)?;
    let geometry = kernel.launch(&shape)?;
    let [rows, columns, depth] = [m as u32, n as u32, k as u32];
    let seconds = tour.time(|| {
        let arguments = (
            &device_a, &device_b, &mut c, rows, columns, depth, depth, columns, columns, 1.0f32,
            0.0f32,
        );
        // SAFETY: a has m times k elements, b k times n and c m times n, with
        // rows as far apart as they are long.
        unsafe { start(&function, &tour.stream, &geometry, arguments) }
    })?;
    let got = tour.download(&c)?;
    let expected = reference::product(&a, &b, m, n, k);
    let size = format!("{m} x {k} by {k} x {n}");
    Ok(compared("matrix product", size, seconds, &got, &expected))
}

fn attention(tour: &mut Tour, causal: bool) -> Result<StepResult> {
    let (length, width) = (190, 64);
    let shape = attention::AttentionExtents {
        heads: 1,
        q_len: length as u64,
        kv_len: length as u64,
    };
    let mask = if causal {
        Mask::CausalFromStart
    } else {
        Mask::None
    };
    let kernel = attention::f32(Arch::SM_80, HeadDim::D64)?;
    let function = tour.load(&kernel)?;
    let mut inputs = Vec::new();
    for _ in 0..3 {
        inputs.push(tour.numbers(length * width));
    }
    let [q, k, v] = [&inputs[0], &inputs[1], &inputs[2]];
    let (device_q, device_k, device_v) = (tour.upload(q)?, tour.upload(k)?, tour.upload(v)?);
    let mut out = tour.empty(length * width)?;
    let geometry = kernel.launch(&shape)?;
    let visible = i32::try_from(shape.visible(mask))?;
    let scale = 1.0 / (width as f32).sqrt();
    let rows = length as u32;
    let seconds = tour.time(|| {
        let arguments = (
            &device_q, &device_k, &device_v, &mut out, 1u32, rows, rows, 1u32, visible, scale,
        );
        // SAFETY: one head of `length` rows of `width` elements in each of the
        // four; cuMemAlloc aligns to 256 bytes.
        unsafe { start(&function, &tour.stream, &geometry, arguments) }
    })?;
    let got = tour.download(&out)?;
    let shape = reference::AttentionShape {
        length,
        width,
        causal,
        // The shortest tile of keys that the kernel uses.
        tile: 32,
    };
    let expected = reference::attention(q, k, v, shape);
    let name = if causal { "  causal" } else { "attention" };
    let size = format!("{length} queries of {width}");
    Ok(compared(name, size, seconds, &got, &expected))
}

/// Spins on the device's clock, and records when it began and when it ended.
const SPAN: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry span(.param .u64 out, .param .u64 nanoseconds)
{
    .reg .pred %p;
    .reg .b64 %out, %span, %begin, %now, %passed;
    ld.param.u64 %out, [out];
    ld.param.u64 %span, [nanoseconds];
    cvta.to.global.u64 %out, %out;
    mov.u64 %begin, %globaltimer;
$again:
    mov.u64 %now, %globaltimer;
    sub.u64 %passed, %now, %begin;
    setp.lt.u64 %p, %passed, %span;
    @%p bra $again;
    st.global.u64 [%out], %begin;
    st.global.u64 [%out+8], %now;
    ret;
}
";

/// Runs one kernel on each of two streams and checks that they overlap. Streams that can run
/// concurrently do so at least once; a busy host may launch the second only after the first
/// has ended, and then longer kernels are tried.
fn two_streams(tour: &mut Tour) -> Result<StepResult> {
    const SPANS_MS: [u64; 3] = [20, 100, 500];
    let mut step = streams_of(tour, SPANS_MS[0])?;
    for span_ms in &SPANS_MS[1..] {
        if !step.passed {
            step = streams_of(tour, *span_ms)?;
        }
    }
    Ok(step)
}

fn streams_of(tour: &mut Tour, span_ms: u64) -> Result<StepResult> {
    let span_ns = span_ms * 1_000_000;
    let function = Module::load(&tour.context, &Image::ptx(SPAN))?.function("span")?;
    let streams = [Stream::new(&tour.context)?, Stream::new(&tour.context)?];
    let mut times = Vec::new();
    for stream in &streams {
        times.push(DeviceBuffer::<u64>::zeroed(stream, 2)?);
        stream.synchronize()?;
    }
    let start = Instant::now();
    for (stream, times) in streams.iter().zip(&mut times) {
        let launch = Launch::new(1, 1);
        // SAFETY: it writes two elements of `times`, which has two.
        unsafe { launch.run(&function, stream, (times, span_ns))? };
    }
    for stream in &streams {
        stream.synchronize()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut spans = Vec::new();
    for (stream, times) in streams.iter().zip(&times) {
        let both = times.to_vec(stream)?;
        spans.push((both[0], both[1]));
    }
    let begin = spans[0].0.max(spans[1].0);
    let end = spans[0].1.min(spans[1].1);
    let together = end.saturating_sub(begin) as f64 / span_ns as f64;
    Ok(StepResult {
        name: "two streams",
        size: format!("2 kernels of {span_ms} ms"),
        seconds,
        error_ulp: None,
        bound_ulp: None,
        finding: Some(format!(
            "by the device's clock they overlapped for {:.0} % of the time",
            100.0 * together.min(1.0)
        )),
        // In sequence it would be 0 %.
        passed: together > 0.5,
    })
}

/// A captured graph, replayed: x = x + y, in integers, so exact.
fn graph(tour: &mut Tour) -> Result<StepResult> {
    let (n, nodes, replays) = (10_007, 8, 25);
    let kernel = vector_add::f32(Arch::SM_80)?;
    let function = tour.load(&kernel)?;
    let x: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
    let y: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
    let mut device_x = tour.upload(&x)?;
    let device_y = tour.upload(&y)?;
    let geometry = kernel.launch(&vector_add::VectorExtents { n: n as u64 })?;
    tour.stream.synchronize()?;
    let capture = tour.stream.begin_capture(CaptureMode::ThreadLocal)?;
    for _ in 0..nodes {
        let address = device_x.address();
        let arguments = (address, &device_y, &mut device_x, n as u32);
        // SAFETY: it reads and writes the first n elements of x and reads as
        // many of y; both have n, and outlive the graph's last launch.
        unsafe { start(&function, &tour.stream, &geometry, arguments)? };
    }
    let mut exec = capture.end()?.instantiate()?;
    exec.upload(&tour.stream)?;
    tour.stream.synchronize()?;
    let start = Instant::now();
    for _ in 0..replays {
        exec.launch(&tour.stream)?;
    }
    tour.stream.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    let got = tour.download(&device_x)?;
    let times = f64::from(nodes * replays);
    let expected = x
        .iter()
        .zip(&y)
        .map(|(x, y)| f64::from(*x) + times * f64::from(*y))
        .collect();
    let expected = reference::exactly(expected);
    let size = format!("{nodes} kernels x {replays}");
    Ok(compared("graph replay", size, seconds, &got, &expected))
}
