//! The thirteen hypotheses of the first design, each as a test that can fail, on either device.
//!
//! Kernels are the builder's own (`fercuda_testkit::kernels`). The device is the software device, or
//! `FERCUDA_DEVICE`. Figures are printed: run with `--nocapture` to see them.
#![expect(
    unsafe_code,
    reason = "launches: each passes the buffers and extents that the kernel's documentation asks for"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests, which may as the tests may"
)]

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::sys::types::{CUmemPool_attribute, CUresult};
use fercuda_cuda::{
    Context, Cuda, DeviceBuffer, Error, Image, Launch, MemoryPool, Module, PinnedBuffer, Select,
    Stream,
};
use fercuda_ptx::build::Arch;
use fercuda_testkit::kernels::{
    self, KernelDesc, attention, gemm, layernorm, q4_k, softmax, vector_add,
};
use fercuda_testkit::rng::{Rng, seed};

/// Half an ulp of one.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// The device, held alone: several of these tests measure time or memory.
struct Lab {
    context: Context,
    stream: Stream,
    seed: u64,
    rng: Rng,
    _alone: MutexGuard<'static, ()>,
}

fn lab(name: &str) -> Lab {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let select = if std::env::var_os(fercuda_cuda::DEVICE_VARIABLE).is_some() {
        Select::from_env().unwrap()
    } else {
        Select::Software
    };
    if select == Select::Software {
        // Enough for every test here, and little enough to fill to the brim; without effect after
        // the first.
        let mut config = fercuda_softgpu::control::config();
        config.memory_bytes = 2 << 30;
        // The checks keep freed memory from being reused, to detect uses after free: a pool cannot
        // be assessed then.
        config.checks = false;
        let _first = fercuda_softgpu::control::configure(config);
    }
    // Times and sizes are those of the device as programs use it, without checks.
    let mut config = fercuda_softgpu::control::config();
    config.checks = false;
    config.late_copies = false;
    let _only_the_first_call_counts = fercuda_softgpu::control::configure(config);
    let context = Context::primary(Cuda::select(select).unwrap().device(0).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let seed = seed();
    println!(
        "{name}: {}, FERCUDA_SEED={seed}",
        context.device().name().unwrap()
    );
    Lab {
        context,
        stream,
        seed,
        rng: Rng::new(seed, name),
        _alone: alone,
    }
}

impl Lab {
    fn is_software(&self) -> bool {
        self.context.device().cuda().is_software()
    }

    /// The software device hands a freed block on to a request of another size when the stream has
    /// come to the free, so the host must not run far ahead of it there. A GPU's driver does so at
    /// once.
    fn let_frees_happen(&self) {
        if self.is_software() {
            self.stream.synchronize().unwrap();
        }
    }

    fn uniform(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.rng.unit() * 2.0 - 1.0) as f32)
            .collect()
    }

    fn load<S>(&self, kernel: &KernelDesc<S>) -> fercuda_cuda::Function {
        let ptx = fercuda_ptx::print(&kernel.module);
        Module::load(&self.context, &Image::ptx(ptx))
            .unwrap()
            .function(&kernel.entry)
            .unwrap()
    }

    fn upload(&self, values: &[f32]) -> DeviceBuffer<f32> {
        DeviceBuffer::from_host(values, &self.stream).unwrap()
    }
}

fn shape(launch: kernels::LaunchGeometry) -> Launch {
    Launch::new(
        <(u32, u32, u32)>::from(launch.grid),
        <(u32, u32, u32)>::from(launch.block),
    )
    .shared_bytes(launch.dynamic_shared_bytes)
}

/// The largest of |got - want| in units of what is allowed.
fn worst(got: &[f32], want: &[(f64, f64)]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(g, (w, allowed))| {
            if g.is_nan() {
                f64::INFINITY
            } else {
                (f64::from(*g) - w).abs() / allowed
            }
        })
        .fold(0.0, f64::max)
}

#[test]
fn h1_modules_load_with_the_parameters_they_declare_and_broken_ones_say_where() {
    let lab = lab("h1");
    fn counts<S>(lab: &Lab, kernel: &KernelDesc<S>) {
        let function = lab.load(kernel);
        let sizes = function
            .parameter_bytes()
            .expect("a driver of CUDA 12.4 or later tells");
        let want: Vec<usize> = kernel
            .args
            .iter()
            .map(|a| match a.kind {
                kernels::ArgKind::Pointer(..) => 8,
                // Every number these kernels take has 32 bits.
                kernels::ArgKind::Number(_) => 4,
            })
            .collect();
        assert_eq!(sizes, want, "{}", kernel.entry);
    }
    counts(&lab, &vector_add::f32(Arch::SM_90).unwrap());
    counts(&lab, &gemm::f32(Arch::SM_90, gemm::Tile::Small).unwrap());
    counts(&lab, &softmax::f32(Arch::SM_90).unwrap());
    counts(&lab, &layernorm::f32(Arch::SM_90).unwrap());
    counts(
        &lab,
        &attention::f32(Arch::SM_90, attention::HeadDim::D64).unwrap(),
    );
    counts(&lab, &q4_k::dequantize_f32(Arch::SM_90).unwrap());

    let ptx = fercuda_ptx::print(&vector_add::f32(Arch::SM_90).unwrap().module);
    let broken = ptx.replacen("ld.global", "ld.globular", 1);
    assert_ne!(ptx, broken);
    let line = broken.lines().position(|l| l.contains("globular")).unwrap() + 1;
    let error = Module::load(&lab.context, &Image::ptx(broken))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("line {line}")),
        "line {line} is not named in: {error}"
    );
    let module = Module::load(&lab.context, &Image::ptx(ptx)).unwrap();
    assert!(
        module
            .function("absent")
            .unwrap_err()
            .to_string()
            .contains("absent")
    );
}

#[test]
fn h2_a_launch_computes_every_element_and_no_other() {
    let mut lab = lab("h2");
    let kernel = vector_add::f32(Arch::SM_90).unwrap();
    let function = lab.load(&kernel);
    for n in [1usize, 31, 32, 257, 10_000, 65_537] {
        let (a, b) = (lab.uniform(n), lab.uniform(n));
        // Room behind the result shows whether more than n elements are written.
        let guard = lab.uniform(64);
        let mut out = lab.upload(&[vec![f32::NAN; n], guard.clone()].concat());
        let (da, db) = (lab.upload(&a), lab.upload(&b));
        let launch = shape(
            kernel
                .launch(&vector_add::VectorExtents { n: n as u64 })
                .unwrap(),
        );
        // SAFETY: three buffers of at least n elements.
        unsafe { launch.run(&function, &lab.stream, (&da, &db, &mut out, n as u32)) }.unwrap();
        let got = out.to_vec(&lab.stream).unwrap();
        let want: Vec<f32> = a.iter().zip(&b).map(|(x, y)| x + y).chain(guard).collect();
        assert!(
            got.iter()
                .zip(&want)
                .all(|(g, w)| g.to_bits() == w.to_bits()),
            "n = {n}, seed {}",
            lab.seed
        );
    }
}

#[test]
fn h3_bytes_come_back_as_they_went() {
    let mut lab = lab("h3");
    for len in [1usize, 3, 255, 4096, 65_537, (4 << 20) + 5] {
        let bytes: Vec<u8> = (0..len).map(|_| lab.rng.next() as u8).collect();
        let mut device = DeviceBuffer::from_host(&bytes, &lab.stream).unwrap();
        assert_eq!(
            device.to_vec(&lab.stream).unwrap(),
            bytes,
            "pageable, {len} bytes, seed {}",
            lab.seed
        );

        let (low, high) = (len / 3, len - len / 5);
        assert_eq!(
            device
                .slice(low..high)
                .unwrap()
                .to_vec(&lab.stream)
                .unwrap(),
            bytes[low..high],
            "a part, seed {}",
            lab.seed
        );

        let turned: Vec<u8> = bytes.iter().rev().copied().collect();
        let pinned = PinnedBuffer::from_slice(&lab.context, &turned).unwrap();
        drop(
            device
                .as_slice_mut()
                .upload(pinned, &lab.stream)
                .unwrap()
                .wait()
                .unwrap(),
        );
        let back = device
            .as_slice()
            .download(
                PinnedBuffer::<u8>::new(&lab.context, len).unwrap(),
                &lab.stream,
            )
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(
            back[..],
            turned[..],
            "pinned, {len} bytes, seed {}",
            lab.seed
        );
    }
}

/// Launches of one kernel timed together: a clock that ticks in tens of nanoseconds does not
/// resolve one.
const TOGETHER: usize = 8;

/// Times of a launch of one kernel, in seconds, by the safe layer and by calling the driver's
/// function; each the mean of [`TOGETHER`].
fn launch_times(lab: &Lab, pairs: usize) -> (Vec<f64>, Vec<f64>) {
    let kernel = vector_add::f32(Arch::SM_90).unwrap();
    let function = lab.load(&kernel);
    let values = vec![1.0f32; 32];
    let (a, b, mut out) = (
        lab.upload(&values),
        lab.upload(&values),
        lab.upload(&values),
    );
    let geometry = kernel.launch(&vector_add::VectorExtents { n: 32 }).unwrap();
    let launch = shape(geometry);
    lab.stream.synchronize().unwrap();
    let driver = lab.context.bind().unwrap();
    let address = driver
        .address(fercuda_cuda::sys::Symbol::cuLaunchKernel)
        .unwrap();
    // SAFETY: the table gives this symbol's address and its type.
    let raw = unsafe {
        std::mem::transmute::<
            std::ptr::NonNull<c_void>,
            fercuda_cuda::sys::signatures::cuLaunchKernel,
        >(address)
    };
    let (handle, stream) = (function.raw(), lab.stream.raw());
    let (mut pa, mut pb, mut pc, mut n) = (a.address().0, b.address().0, out.address().0, 32u32);
    let mut arguments: [*mut c_void; 4] = [
        (&raw mut pa).cast(),
        (&raw mut pb).cast(),
        (&raw mut pc).cast(),
        (&raw mut n).cast(),
    ];
    let [gx, gy, gz] = geometry.grid;
    let [bx, by, bz] = geometry.block;

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut ours_once = || {
        let start = Instant::now();
        for _ in 0..TOGETHER {
            // SAFETY: three buffers of 32 elements.
            unsafe { launch.run(&function, &lab.stream, (&a, &b, &mut out, 32u32)) }.unwrap();
        }
        start.elapsed().as_secs_f64() / TOGETHER as f64
    };
    let mut raw_once = || {
        let start = Instant::now();
        for _ in 0..TOGETHER {
            // SAFETY: live handles, and addresses of four values of the kernel's types.
            let code = unsafe {
                raw(
                    handle,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    0,
                    stream,
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            assert_eq!(code, CUresult::CUDA_SUCCESS);
        }
        start.elapsed().as_secs_f64() / TOGETHER as f64
    };
    for _ in 0..200 {
        ours_once();
        raw_once();
    }
    lab.stream.synchronize().unwrap();
    // Pairs in turn (ours first, then theirs first), and the queue never full: neither waits for
    // the device.
    for i in 0..pairs {
        // The pair after a wait is not counted, whatever it takes. One of its sides wakes the
        // stream's thread, and both find the processor's caches as other work has left them. Of
        // either side's samples one in 62 would hold a wake-up: p99 would be the 38th percentile of
        // 160 of those, which the system's scheduler makes, and differ by a fifth between two runs
        // of the same code.
        if i % 31 == 0 {
            ours_once();
            raw_once();
        }
        if i % 2 == 0 {
            ours.push(ours_once());
            theirs.push(raw_once());
        } else {
            theirs.push(raw_once());
            ours.push(ours_once());
        }
        // An odd number, so that either side is as often the first.
        if i % 31 == 30 {
            lab.stream.synchronize().unwrap();
        }
    }
    lab.stream.synchronize().unwrap();
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    (ours, theirs)
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * q) as usize]
}

#[test]
fn h4_the_safe_layer_adds_less_than_two_microseconds_to_a_launch() {
    let lab = lab("h4");
    let (ours, theirs) = launch_times(&lab, 2000);
    let (a, b) = (quantile(&ours, 0.5) * 1e6, quantile(&theirs, 0.5) * 1e6);
    println!("h4: median {a:.3} us, function pointer {b:.3} us");
    assert!(a - b <= 2.0, "{:.3} us more a launch", a - b);
}

#[test]
fn h5_products_are_within_a_bound_from_their_sizes() {
    let mut lab = lab("h5");
    let sizes = if lab.is_software() {
        vec![(1, 1, 1), (64, 64, 64), (37, 91, 53), (130, 67, 128)]
    } else {
        vec![(1, 1, 1), (37, 91, 53), (512, 512, 512), (1000, 700, 333)]
    };
    for tile in [gemm::Tile::Small, gemm::Tile::Large] {
        let kernel = gemm::f32(Arch::SM_90, tile).unwrap();
        let function = lab.load(&kernel);
        for &(m, n, k) in &sizes {
            let (a, b, c) = (lab.uniform(m * k), lab.uniform(k * n), lab.uniform(m * n));
            let (da, db, mut dc) = (lab.upload(&a), lab.upload(&b), lab.upload(&c));
            let (alpha, beta) = (1.5f32, -0.25f32);
            let launch = shape(
                kernel
                    .launch(&gemm::GemmExtents {
                        m: m as u64,
                        n: n as u64,
                        k: k as u64,
                    })
                    .unwrap(),
            );
            let (m32, n32, k32) = (m as u32, n as u32, k as u32);
            // SAFETY: m x k, k x n and m x n elements, rows contiguous.
            unsafe {
                launch.run(
                    &function,
                    &lab.stream,
                    (&da, &db, &mut dc, m32, n32, k32, k32, n32, n32, alpha, beta),
                )
            }
            .unwrap();
            let got = dc.to_vec(&lab.stream).unwrap();
            let mut want = Vec::new();
            for i in 0..m {
                for j in 0..n {
                    let (mut sum, mut size) = (0.0f64, 0.0f64);
                    for l in 0..k {
                        let p = f64::from(a[i * k + l]) * f64::from(b[l * n + j]);
                        sum += p;
                        size += p.abs();
                    }
                    let old = f64::from(beta) * f64::from(c[i * n + j]);
                    // k fused steps, then two products and a sum: every rounding at most a unit of
                    // the magnitudes.
                    let steps = (k + 3) as f64 * UNIT;
                    want.push((
                        f64::from(alpha) * sum + old,
                        steps / (1.0 - steps) * (f64::from(alpha) * size + old.abs()),
                    ));
                }
            }
            let w = worst(&got, &want);
            println!("h5: {m} x {n} x {k} {tile:?}: {w:.3} of the bound");
            assert!(
                w <= 1.0,
                "{m} x {n} x {k} {tile:?}: {w} times the bound, seed {}",
                lab.seed
            );
        }
    }
}

#[test]
fn h5_softmax_and_layernorm_hold_for_rows_of_any_length() {
    let mut lab = lab("h5b");
    let (soft, norm) = (
        softmax::f32(Arch::SM_90).unwrap(),
        layernorm::f32(Arch::SM_90).unwrap(),
    );
    let (soft_function, norm_function) = (lab.load(&soft), lab.load(&norm));
    for cols in [1usize, 7, 32, 33, 100, 513, 1025, 4099] {
        let count = 5;
        let x: Vec<f32> = lab.uniform(count * cols).iter().map(|v| v * 10.0).collect();
        let (gamma, beta) = (lab.uniform(cols), lab.uniform(cols));
        let extent = softmax::RowExtents {
            rows: count as u64,
            cols: cols as u64,
        };
        let dx = lab.upload(&x);
        let mut out = lab.upload(&vec![f32::NAN; x.len()]);
        let launch = shape(soft.launch(&extent).unwrap());
        // SAFETY: two buffers of rows x cols elements.
        unsafe {
            launch.run(
                &soft_function,
                &lab.stream,
                (&dx, &mut out, count as u32, cols as u32),
            )
        }
        .unwrap();
        let got = out.to_vec(&lab.stream).unwrap();
        let mut want = Vec::new();
        for row in x.chunks(cols) {
            let high = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|v| f64::from(v - high).exp()).sum();
            // The exponent's argument reaches 20: its roundings are magnified by as much; then the
            // sum's chain.
            let relative =
                (4.0 * 20.0 + 16.0 + (cols as f64).log2().ceil() + cols as f64 / 32.0) * UNIT;
            want.extend(row.iter().map(|v| {
                let y = (f64::from(*v) - f64::from(high)).exp() / sum;
                (y, y * relative + f64::from(f32::MIN_POSITIVE))
            }));
        }
        let w = worst(&got, &want);
        assert!(
            w <= 1.0,
            "softmax of {cols}: {w} times the bound, seed {}",
            lab.seed
        );

        let (dg, db) = (lab.upload(&gamma), lab.upload(&beta));
        let launch = shape(norm.launch(&extent).unwrap());
        // SAFETY: rows x cols elements in and out, cols factors and addends.
        unsafe {
            launch.run(
                &norm_function,
                &lab.stream,
                (&dx, &dg, &db, &mut out, count as u32, cols as u32, 1e-5f32),
            )
        }
        .unwrap();
        let got = out.to_vec(&lab.stream).unwrap();
        let mut want = Vec::new();
        for row in x.chunks(cols) {
            let n = cols as f64;
            let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let size = row.iter().map(|v| f64::from(v.abs())).sum::<f64>() / n;
            let scale = 1.0
                / (row
                    .iter()
                    .map(|v| (f64::from(*v) - mean).powi(2))
                    .sum::<f64>()
                    / n
                    + f64::from(1e-5f32))
                .sqrt();
            let chain = (n / 32.0 + 20.0) * UNIT;
            for (v, (g, b)) in row.iter().zip(gamma.iter().zip(&beta)) {
                let y = (f64::from(*v) - mean) * scale * f64::from(*g);
                let moved = chain * size + UNIT * (f64::from(v.abs()) + mean.abs());
                let bound = chain * (y.abs() + f64::from(b.abs()))
                    + 2.0 * moved * scale * f64::from(g.abs());
                want.push((y + f64::from(*b), bound + 1e-30));
            }
        }
        let w = worst(&got, &want);
        assert!(
            w <= 1.0,
            "layernorm of {cols}: {w} times the bound, seed {}",
            lab.seed
        );
    }
}

struct Attention {
    heads: usize,
    length: usize,
    dim: usize,
    causal: bool,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Attention {
    /// Result, and a bound for f32: scores' roundings, then the weights', each magnified by what
    /// follows it.
    fn truth(&self) -> Vec<(f64, f64)> {
        let (len, dim) = (self.length, self.dim);
        let scale = 1.0 / (dim as f64).sqrt();
        let mut out = Vec::new();
        for h in 0..self.heads {
            let at = |x: &[f32], i: usize, d: usize| f64::from(x[(h * len + i) * dim + d]);
            for i in 0..len {
                let last = if self.causal { i + 1 } else { len };
                let dot = |j: usize, abs: bool| {
                    (0..dim)
                        .map(|d| at(&self.q, i, d) * at(&self.k, j, d))
                        .map(|p| if abs { p.abs() } else { p })
                        .sum::<f64>()
                        * scale
                };
                let scores: Vec<f64> = (0..last).map(|j| dot(j, false)).collect();
                let spread = (0..last).map(|j| dot(j, true)).fold(0.0, f64::max);
                let high = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - high).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let reach = scores.iter().map(|s| high - s).fold(0.0, f64::max);
                let relative =
                    (2.0 * (dim as f64 + 2.0) * spread + 4.0 * reach + 2.0 * last as f64 + 16.0)
                        * UNIT;
                for d in 0..dim {
                    let y = (0..last)
                        .map(|j| weights[j] * at(&self.v, j, d))
                        .sum::<f64>()
                        / sum;
                    let size = (0..last)
                        .map(|j| weights[j] * at(&self.v, j, d).abs())
                        .sum::<f64>()
                        / sum;
                    out.push((y, relative * size));
                }
            }
        }
        out
    }

    fn ours(&self, lab: &Lab) -> Vec<f32> {
        let dim = match self.dim {
            32 => attention::HeadDim::D32,
            64 => attention::HeadDim::D64,
            _ => attention::HeadDim::D128,
        };
        let kernel = attention::f32(Arch::SM_90, dim).unwrap();
        let function = lab.load(&kernel);
        let extent = attention::AttentionExtents {
            heads: self.heads as u64,
            q_len: self.length as u64,
            kv_len: self.length as u64,
        };
        let visible = extent.visible(if self.causal {
            attention::Mask::CausalFromStart
        } else {
            attention::Mask::None
        });
        let (q, k, v) = (
            lab.upload(&self.q),
            lab.upload(&self.k),
            lab.upload(&self.v),
        );
        let mut out = lab.upload(&vec![f32::NAN; self.q.len()]);
        let launch = shape(kernel.launch(&extent).unwrap());
        let (heads, len) = (self.heads as u32, self.length as u32);
        let scale = 1.0 / (self.dim as f32).sqrt();
        // SAFETY: four buffers of heads x length x dim elements.
        unsafe {
            launch.run(
                &function,
                &lab.stream,
                (
                    &q,
                    &k,
                    &v,
                    &mut out,
                    heads,
                    len,
                    len,
                    1u32,
                    visible as i32,
                    scale,
                ),
            )
        }
        .unwrap();
        out.to_vec(&lab.stream).unwrap()
    }
}

#[test]
fn h6_attention_is_within_its_bound_and_on_a_gpu_no_worse_than_twice_pytorch() {
    let mut lab = lab("h6");
    let lengths: &[usize] = if lab.is_software() {
        &[1, 33, 80]
    } else {
        &[1, 33, 300, 640]
    };
    for &length in lengths {
        for (dim, causal) in [(32, false), (64, true), (64, false), (128, true)] {
            let heads = 2;
            let n = heads * length * dim;
            let case = Attention {
                heads,
                length,
                dim,
                causal,
                q: lab.uniform(n),
                k: lab.uniform(n),
                v: lab.uniform(n),
            };
            let truth = case.truth();
            let got = case.ours(&lab);
            let w = worst(&got, &truth);
            let error = |got: &[f32]| {
                got.iter()
                    .zip(&truth)
                    .map(|(g, t)| (f64::from(*g) - t.0).abs())
                    .fold(0.0, f64::max)
            };
            println!(
                "h6: length {length} dim {dim} causal {causal}: {w:.3} of the bound, largest error {:.3e}",
                error(&got)
            );
            assert!(
                w <= 1.0,
                "length {length} dim {dim} causal {causal}: {w} times the bound, seed {}",
                lab.seed
            );
            if !lab.is_software() {
                let torch = pytorch(&case);
                println!("h6: PyTorch's largest error {:.3e}", error(&torch));
                // An error of a unit or two either way is no difference.
                let floor = 4.0 * UNIT;
                assert!(
                    error(&got) <= 2.0 * error(&torch).max(floor),
                    "{:.3e} against {:.3e}, seed {}",
                    error(&got),
                    error(&torch),
                    lab.seed
                );
            }
        }
    }
}

fn pytorch(case: &Attention) -> Vec<f32> {
    let folder = Scratch::new("attention");
    let paths: Vec<PathBuf> = ["q", "k", "v", "out"]
        .iter()
        .map(|n| folder.0.join(n))
        .collect();
    for (path, values) in paths.iter().zip([&case.q, &case.k, &case.v]) {
        std::fs::write(path, bytemuck::cast_slice(values)).unwrap();
    }
    let numbers =
        [case.heads, case.length, case.dim, usize::from(case.causal)].map(|n| n.to_string());
    oracle(
        "attention.py",
        numbers
            .iter()
            .map(AsRef::<Path>::as_ref)
            .chain(paths.iter().map(PathBuf::as_path)),
        "FERCUDA_TORCH_PYTHON",
    );
    floats(&paths[3])
}

#[test]
fn h7_q4_k_weights_expand_to_the_bits_of_an_independent_dequantiser() {
    let lab = lab("h7");
    let (blocks, folder) = (1000usize, Scratch::new("q4_k"));
    let (packed, values) = (folder.0.join("blocks"), folder.0.join("values"));
    // A bundle brings what the package computed where it was made.
    let (packed, values) = match bundle().map(|b| b.join("corpus")) {
        Some(folder) => (folder.join("q4_k.blocks"), folder.join("q4_k.values")),
        None => {
            let numbers = [lab.seed.to_string(), blocks.to_string()];
            oracle(
                "q4_k.py",
                numbers
                    .iter()
                    .map(AsRef::<Path>::as_ref)
                    .chain([packed.as_path(), values.as_path()]),
                "FERCUDA_PYTHON",
            );
            (packed, values)
        }
    };
    let bytes = std::fs::read(packed).unwrap();
    let want = floats(&values);
    assert_eq!((bytes.len(), want.len()), (blocks * 144, blocks * 256));

    let kernel = q4_k::dequantize_f32(Arch::SM_90).unwrap();
    let function = lab.load(&kernel);
    let input = DeviceBuffer::from_host(&bytes, &lab.stream).unwrap();
    let mut out = lab.upload(&vec![f32::NAN; want.len()]);
    let launch = shape(
        kernel
            .launch(&q4_k::Q4KExtents {
                blocks: blocks as u64,
            })
            .unwrap(),
    );
    // SAFETY: 144 bytes in and 256 floats out for each block.
    unsafe { launch.run(&function, &lab.stream, (&input, &mut out, blocks as u32)) }.unwrap();
    let got = out.to_vec(&lab.stream).unwrap();
    let differ = got
        .iter()
        .zip(&want)
        .position(|(g, w)| g.to_bits() != w.to_bits());
    assert!(
        differ.is_none(),
        "value {differ:?} differs: {:?} and {:?}, seed {}",
        got[differ.unwrap()],
        want[differ.unwrap()],
        lab.seed
    );
}

fn reserved_high(lab: &Lab, pool: &MemoryPool) -> u64 {
    let driver = lab.context.bind().unwrap();
    let mut bytes = 0u64;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    // SAFETY: a live pool, and the attribute is a u64.
    let code =
        unsafe { driver.cuMemPoolGetAttribute(pool.raw(), attribute, (&raw mut bytes).cast()) }
            .unwrap();
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    bytes
}

#[test]
fn h8_a_pool_asks_the_device_for_memory_once_and_reuses_it() {
    let lab = lab("h8");
    let pool = MemoryPool::new(&lab.context, 0).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    let mut after_first = 0;
    for round in 0..1000 {
        // Twelve buffers live at once, in sizes below half a megabyte that come again every hundred
        // rounds.
        let live: Vec<DeviceBuffer<u8>> = (0..12)
            .map(|i| {
                DeviceBuffer::alloc_from(
                    &pool,
                    &lab.stream,
                    1000 * (1 + (i * 37 + round % 100) % 1000),
                )
                .unwrap()
            })
            .collect();
        drop(live);
        lab.let_frees_happen();
        if round == 99 {
            after_first = reserved_high(&lab, &pool);
        }
    }
    lab.stream.synchronize().unwrap();
    let high = reserved_high(&lab, &pool);
    println!(
        "h8: {} MiB reserved at most, {} MiB after a hundred rounds of twelve buffers",
        high >> 20,
        after_first >> 20
    );
    // 6 MB live at most. A pool that asked the device each time would have reserved as much in
    // every round.
    assert!(high <= 64 << 20, "{high} bytes were reserved for 6 MB");
    assert!(
        high <= after_first + after_first / 2,
        "the pool grew from {after_first} to {high} bytes under a steady load"
    );
}

#[test]
fn h9_too_large_an_allocation_is_an_error_and_the_next_one_works() {
    let mut lab = lab("h9");
    let total = lab.context.device().memory_bytes().unwrap();
    for asked in [total + (1 << 20), u64::MAX / 4] {
        match DeviceBuffer::<u8>::alloc(&lab.context, asked as usize) {
            Err(Error::OutOfMemory(why)) => assert_eq!(why.asked_bytes, asked),
            other => panic!("{asked} bytes of {total}: {other:?}"),
        }
    }
    // Filled to the brim in pieces, as a program would; then one piece given back is one that can
    // be had.
    let piece = (total / 16) as usize;
    let mut held = Vec::new();
    let refused = loop {
        assert!(held.len() < 17, "more was given than there is");
        match DeviceBuffer::<u8>::alloc(&lab.context, piece) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
    assert!(!refused.is_sticky());
    held.pop();
    held.push(DeviceBuffer::<u8>::alloc(&lab.context, piece).unwrap());
    drop(held);
    let values = lab.uniform(1000);
    assert_eq!(lab.upload(&values).to_vec(&lab.stream).unwrap(), values);
}

/// Spins for `ns` nanoseconds of the device's clock and writes when it began and ended.
const SPIN: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 times, .param .u64 ns)
{
    .reg .u64 %out, %ns, %begin, %now, %gone;
    .reg .pred %p;
    ld.param.u64 %out, [times];
    ld.param.u64 %ns, [ns];
    cvta.to.global.u64 %out, %out;
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %gone, %now, %begin;
    setp.lt.u64 %p, %gone, %ns;
    @%p bra again;
    st.global.u64 [%out], %begin;
    st.global.u64 [%out+8], %now;
    ret;
}
";

#[test]
fn h10_kernels_of_two_streams_overlap_by_the_devices_own_clock() {
    let lab = lab("h10");
    let function = Module::load(&lab.context, &Image::ptx(SPIN))
        .unwrap()
        .function("spin")
        .unwrap();
    let other = Stream::new(&lab.context).unwrap();
    let mut times = [0, 1].map(|_| DeviceBuffer::from_host(&[0u64; 2], &lab.stream).unwrap());
    lab.stream.synchronize().unwrap();
    let mut overlap = |streams: [&Stream; 2], ns: u64| {
        for (stream, out) in streams.into_iter().zip(&mut times) {
            // SAFETY: room for two u64.
            unsafe { Launch::new(1, 1).run(&function, stream, (out, ns)) }.unwrap();
        }
        lab.context.synchronize().unwrap();
        let [a, b] = [0, 1].map(|i| times[i].to_vec(&lab.stream).unwrap());
        for t in [&a, &b] {
            assert!(
                t[1] - t[0] >= ns,
                "a kernel spun {} ns of {ns}",
                t[1] - t[0]
            );
        }
        a[1].min(b[1]).saturating_sub(a[0].max(b[0]))
    };
    let mut ns = 100_000_000u64;
    let in_one = overlap([&lab.stream, &lab.stream], ns);
    assert_eq!(in_one, 0, "one stream runs one kernel after the other");
    // A busy machine may begin the second late, by a time of its own: kernels that spin for longer
    // overlap still, unless one waits for the other.
    loop {
        let in_two = overlap([&lab.stream, &other], ns);
        println!("h10: {in_one} ns overlap in one stream, {in_two} of {ns} in two");
        if in_two >= ns / 2 {
            return;
        }
        assert!(
            ns < 10_000_000_000,
            "two streams overlap for {in_two} ns of {ns} only"
        );
        ns *= 5;
    }
}

#[test]
fn h11_a_launch_costs_no_more_than_a_twentieth_over_a_raw_function_pointer() {
    let lab = lab("h11");
    let mut seen = Vec::new();
    // The claim is about optimised code; without optimisation the test still sees what is grossly
    // wrong.
    let limit = if cfg!(debug_assertions) { 1.5 } else { 1.05 };
    // A busy machine disturbs the tail of either; five attempts, and one must be quiet enough to
    // see the truth.
    for _ in 0..5 {
        let (ours, theirs) = launch_times(&lab, 10_000);
        let ratio = |q| quantile(&ours, q) / quantile(&theirs, q);
        let (median, tail) = (ratio(0.5), ratio(0.99));
        println!(
            "h11: median {:.3} us / {:.3} us = {median:.3}; p99 {:.3} us / {:.3} us = {tail:.3}",
            quantile(&ours, 0.5) * 1e6,
            quantile(&theirs, 0.5) * 1e6,
            quantile(&ours, 0.99) * 1e6,
            quantile(&theirs, 0.99) * 1e6
        );
        if median <= limit && tail <= limit {
            return;
        }
        seen.push((median, tail));
    }
    panic!("ratios of median and p99 to a raw call, five times: {seen:.3?}");
}

/// A driver's pool grows by pieces of 32 MiB, so it holds more than is live (an H200's, half as
/// much again): that it holds a tenth more at most is no promise of ours before we have a pool of
/// our own. That it does not go on growing under a steady load is.
///
/// The load is the same in each round, to the byte. A load that is new in each round has new peaks
/// of each size, for which a sound pool grows too, ever more seldom and without a bound that a test
/// could wait for: of 3000 simulated runs of 10,000 steps and as many again, every 40th grew by
/// more than a tenth. The same load again meets what it has left, and a pool that reuses it comes
/// to a round for which it asks nothing of the device: in as many runs of these that was the second
/// to the seventh, and each from the fifth on at most a fifth as often as the one before it. One
/// that loses a block of 300 asks in each.
#[test]
fn h12_a_pool_under_random_sizes_does_not_go_on_growing() {
    const ROUNDS: usize = 16;
    let lab = lab("h12");
    let pool = MemoryPool::new(&lab.context, 0).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    let (limit, steps) = (512 << 20, 5_000);
    let (mut highs, mut peak): (Vec<u64>, usize) = (Vec::new(), 0);
    while highs.len() < ROUNDS && highs.last_chunk().is_none_or(|[a, b]| a != b) {
        let mut random = lab.rng.clone();
        let (mut live, mut bytes): (Vec<DeviceBuffer<u8>>, usize) = (Vec::new(), 0);
        for _ in 0..steps {
            let size = 1024 + random.below((10 << 20) - 1024) as usize;
            if bytes + size <= limit && (live.is_empty() || random.below(10) < 7) {
                live.push(DeviceBuffer::alloc_from(&pool, &lab.stream, size).unwrap());
                bytes += size;
            } else {
                let at = random.below(live.len() as u64) as usize;
                bytes -= live.swap_remove(at).len();
                lab.let_frees_happen();
            }
            peak = peak.max(bytes);
        }
        drop(live);
        lab.stream.synchronize().unwrap();
        highs.push(reserved_high(&lab, &pool));
    }
    let ratio = *highs.last().unwrap() as f64 / peak as f64;
    let mib: Vec<u64> = highs.iter().map(|bytes| bytes >> 20).collect();
    println!(
        "h12: {mib:?} MiB reserved round by round for {} MiB live at the peak: {ratio:.3}",
        peak >> 20
    );
    assert!(
        highs.last_chunk().is_some_and(|[a, b]| a == b),
        "it grew in each of {ROUNDS} rounds of one load: {mib:?} MiB, seed {}",
        lab.seed
    );
    // An H200 was seen to hold 1.5 times what is live, the software device's first fit 1.9 times.
    let most = if lab.is_software() { 2.5 } else { 2.0 };
    assert!(
        ratio <= most,
        "{ratio:.3} times what was live, seed {}",
        lab.seed
    );
}

#[test]
fn h13_four_threads_share_a_context_and_every_result_is_right() {
    let mut lab = lab("h13");
    let kernel = vector_add::f32(Arch::SM_90).unwrap();
    let function = lab.load(&kernel);
    let n = 1000usize;
    // Whole numbers, so that a thousand sums are exact.
    let step: Vec<f32> = (0..n).map(|_| lab.rng.below(9) as f32 - 4.0).collect();
    let shared = lab.upload(&step);
    lab.stream.synchronize().unwrap();
    let launch = shape(
        kernel
            .launch(&vector_add::VectorExtents { n: n as u64 })
            .unwrap(),
    );
    let (context, function, shared, step, seed) =
        (&lab.context, &function, &shared, &step, lab.seed);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let mut sum = DeviceBuffer::from_host(&vec![thread as f32; n], &stream).unwrap();
                for _ in 0..1000 {
                    let address = sum.address();
                    // SAFETY: n elements each; the result may be an operand.
                    unsafe { launch.run(function, &stream, (&mut sum, shared, address, n as u32)) }
                        .unwrap();
                }
                let got = sum.to_vec(&stream).unwrap();
                for (i, (g, s)) in got.iter().zip(step).enumerate() {
                    assert_eq!(
                        *g,
                        thread as f32 + 1000.0 * s,
                        "thread {thread}, element {i}, seed {seed}"
                    );
                }
            });
        }
    });
}

/// A folder that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_nanos();
        let path =
            std::env::temp_dir().join(format!("fercuda-{name}-{}-{nanos}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Runs a script of `oracle/` with the Python that `variable` names, or the usual one.
fn oracle<'a>(script: &str, arguments: impl Iterator<Item = &'a Path>, variable: &str) {
    let python = std::env::var_os(variable).unwrap_or_else(|| "python3".into());
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Where this program was carried to another machine, its sources came along.
    let folder = bundle().map_or_else(
        || sources.join("oracle"),
        |b| b.join("files/crates/testkit/oracle"),
    );
    let output = Command::new(&python)
        .arg(folder.join(script))
        .args(arguments)
        .output();
    let output = output.unwrap_or_else(|e| {
        panic!(
            "cannot run {}: {e}\ntry: {variable}=/path/to/python",
            python.display()
        )
    });
    assert!(
        output.status.success(),
        "{script}: {}\ntry: `cargo xtask test`, which installs what it needs",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The folder that carried this program here, if one did.
fn bundle() -> Option<PathBuf> {
    std::env::var_os("FERCUDA_BUNDLE").map(PathBuf::from)
}

fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path)
        .unwrap()
        .chunks_exact(4)
        .map(bytemuck::pod_read_unaligned)
        .collect()
}
