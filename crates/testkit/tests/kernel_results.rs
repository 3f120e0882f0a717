//! The builder's kernels against references in f64, on whichever device there is.
//!
//! Shapes are the edges and some random ones; each test prints its seed, and `FERCUDA_SEED` repeats
//! it. On the software device its checks must find nothing. Every tolerance is an error bound
//! derived from the sizes: `u` is the rounding error of one `f32` operation, `gamma(n)` that of n
//! in a row.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fastrand::Rng;
use fercuda_cuda::{
    Arguments, Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream,
};
use fercuda_ptx::build::Arch;
use fercuda_testkit::kernels::attention::{self, HeadDim, Mask};
use fercuda_testkit::kernels::gemm::{self, Tile};
use fercuda_testkit::kernels::{self, KernelDesc, layernorm, q4_k, softmax, vector_add};

/// Half the distance from 1 to the next `f32`.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Error in units of `U` of one exponential: 2 ulp of the instruction, four roundings about it.
const EXP: f64 = 8.0;

/// Relative error of `n` rounded operations in a row (Higham, "Accuracy and Stability of
/// Numerical Algorithms", lemma 3.1).
fn gamma(n: f64) -> f64 {
    n * U / (1.0 - n * U)
}

/// Values from -scale to scale.
fn values(random: &mut Rng, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|_| (random.f32() * 2.0 - 1.0) * scale).collect()
}

struct Bench {
    context: Context,
    stream: Stream,
}

impl Bench {
    fn new() -> Self {
        let device = Cuda::from_env()
            .and_then(|c| c.device(0))
            .expect("a device");
        let context = Context::primary(device).expect("its context");
        let stream = Stream::new(&context).expect("a stream");
        Bench { context, stream }
    }

    fn load<S>(&self, desc: &KernelDesc<S>) -> Function {
        let ptx = fercuda_ptx::print(&desc.module);
        let module = Module::load(&self.context, &Image::ptx(&ptx)).expect("the kernel loads");
        module.function(&desc.entry).expect("its entry exists")
    }

    fn put(&self, values: &[f32]) -> DeviceBuffer<f32> {
        DeviceBuffer::from_host(values, &self.stream).expect("room on the device")
    }

    fn get(&self, buffer: &DeviceBuffer<f32>) -> Vec<f32> {
        let values = buffer
            .to_vec(&self.stream)
            .expect("the kernel ran without fault");
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
        values
    }

    fn run<A: Arguments>(&self, function: &Function, l: kernels::LaunchGeometry, arguments: A) {
        let ([gx, gy, gz], [bx, by, bz]) = (l.grid, l.block);
        let launch = Launch::new((gx, gy, gz), (bx, by, bz)).shared_bytes(l.dynamic_shared_bytes);
        // SAFETY: the arguments are those that the kernel's description lists, the launch is
        // what it gives for their shape, and buffers are as long as that shape says.
        unsafe { launch.run(function, &self.stream, arguments) }.expect("the launch is accepted");
    }
}

fn to_f64(v: &[f32]) -> Vec<f64> {
    v.iter().map(|&x| f64::from(x)).collect()
}

/// Every element within its bound.
fn assert_within(what: &str, got: &[f32], wanted: &[f64], bound: &[f64]) {
    assert_eq!(
        (got.len(), bound.len()),
        (wanted.len(), wanted.len()),
        "{what}"
    );
    for (i, ((&g, &w), &b)) in got.iter().zip(wanted).zip(bound).enumerate() {
        let error = (f64::from(g) - w).abs();
        assert!(
            error <= b,
            "{what}: element {i} is {g}, should be {w}: error {error:e} beyond {b:e}"
        );
    }
}

#[test]
fn vector_add_is_the_rounded_sum() {
    let (bench, mut random) = (Bench::new(), fercuda_trials::rng());
    let desc = vector_add::f32(Arch::SM_80).unwrap();
    let function = bench.load(&desc);
    for n in [1, 31, 32, 255, 256, 257, 1 + random.u64(..100_000) as usize] {
        let (a, b) = (values(&mut random, n, 1e3), values(&mut random, n, 1.0));
        // One element more than the kernel may touch.
        let mut out = bench.put(&vec![7.0; n + 1]);
        let launch = desc
            .launch(&vector_add::VectorExtents { n: n as u64 })
            .unwrap();
        bench.run(
            &function,
            launch,
            (&bench.put(&a), &bench.put(&b), &mut out, n as u32),
        );
        let got = bench.get(&out);
        let wanted: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).chain([7.0]).collect();
        assert!(got == wanted, "n = {n}");
    }
}

/// Rows shorter than a warp, about a warp, about a short row's limit, long; unaligned ones.
fn row_shapes(random: &mut Rng) -> Vec<(usize, usize)> {
    let mut shapes = vec![
        (1, 1),
        (9, 1),
        (3, 2),
        (5, 31),
        (8, 32),
        (2, 33),
        (17, 100),
        (4, 127),
        (3, 511),
        (3, 512),
        (2, 513),
    ];
    shapes.extend([(2, 516), (2, 1000), (2, 2048), (1, 2049), (1, 20_000)]);
    shapes.push((
        1 + random.u64(..20) as usize,
        1 + random.u64(..600) as usize,
    ));
    shapes.push((
        1 + random.u64(..3) as usize,
        513 + random.u64(..5000) as usize,
    ));
    shapes
}

/// Most elements of a row that one thread adds up.
fn per_thread(cols: usize, block: [u32; 3]) -> f64 {
    (cols.div_ceil(block[0] as usize) + 3) as f64
}

#[test]
fn softmax_of_rows_of_any_length_is_within_its_error_bound() {
    let (bench, mut random) = (Bench::new(), fercuda_trials::rng());
    let desc = softmax::f32(Arch::SM_80).unwrap();
    let function = bench.load(&desc);
    for (rows, cols) in row_shapes(&mut random) {
        let scale = [1.0, 10.0, 80.0][random.u64(..3) as usize];
        let x = values(&mut random, rows * cols, scale);
        let mut out = bench.put(&vec![7.0; rows * cols]);
        let launch = desc
            .launch(&softmax::RowExtents {
                rows: rows as u64,
                cols: cols as u64,
            })
            .unwrap();
        bench.run(
            &function,
            launch,
            (&bench.put(&x), &mut out, rows as u32, cols as u32),
        );
        let got = bench.get(&out);
        for (r, (x, got)) in to_f64(&x).chunks(cols).zip(got.chunks(cols)).enumerate() {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let range = max - x.iter().copied().fold(f64::INFINITY, f64::min);
            let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
            let wanted: Vec<f64> = x.iter().map(|x| (x - max).exp() / sum).collect();
            // A term of the sum: its own exponential, an addition and a rescaling for each
            // element that its thread adds after it, and the reductions. Rounding x - max
            // costs its size once in the term, and once more over all rescalings together.
            let n = per_thread(cols, launch.block);
            let operations = n * (EXP + 3.0) + 2.0 * (EXP + 2.0) + 10.0;
            let relative = gamma(2.0 * (operations + 2.0 * range));
            // What underflows, in the term or in the quotient, is smaller than this.
            let bound: Vec<f64> = wanted
                .iter()
                .map(|w| w * relative + 2f64.powi(-140))
                .collect();
            assert_within(
                &format!("softmax {rows}x{cols}, row {r}"),
                got,
                &wanted,
                &bound,
            );
            let total: f64 = to_f64(got).iter().sum();
            assert!(
                (total - 1.0).abs() <= relative + cols as f64 * 2f64.powi(-140),
                "row {r} sums to {total}"
            );
        }
    }
}

#[test]
fn softmax_gives_zero_for_what_is_masked_and_nan_where_nothing_is_left() {
    let bench = Bench::new();
    let desc = softmax::f32(Arch::SM_80).unwrap();
    let function = bench.load(&desc);
    let no = f32::NEG_INFINITY;
    for cols in [5usize, 700] {
        let row = |first: &[f32], rest: f32| -> Vec<f32> {
            (0..cols)
                .map(|i| first.get(i).copied().unwrap_or(rest))
                .collect()
        };
        let x = [
            row(&[no, 1.0, no, 1.0], no),
            row(&[], no),
            row(&[f32::NAN], 1.0),
        ]
        .concat();
        let mut out = bench.put(&x);
        let launch = desc
            .launch(&softmax::RowExtents {
                rows: 3,
                cols: cols as u64,
            })
            .unwrap();
        bench.run(
            &function,
            launch,
            (&bench.put(&x), &mut out, 3u32, cols as u32),
        );
        let got = bench.get(&out);
        assert_eq!(got[..cols], row(&[0.0, 0.5, 0.0, 0.5], 0.0));
        assert!(got[cols..].iter().all(|v| v.is_nan()), "{got:?}");
    }
}

#[test]
fn layernorm_of_rows_of_any_length_is_within_its_error_bound() {
    let (bench, mut random) = (Bench::new(), fercuda_trials::rng());
    let desc = layernorm::f32(Arch::SM_80).unwrap();
    let function = bench.load(&desc);
    let eps = 1e-5f32;
    for (rows, cols) in row_shapes(&mut random) {
        // A mean away from zero, which a sum of squares would not survive.
        let x: Vec<f32> = values(&mut random, rows * cols, 2.0)
            .iter()
            .map(|v| v + 30.0)
            .collect();
        let (factor, addend) = (
            values(&mut random, cols, 2.0),
            values(&mut random, cols, 1.0),
        );
        let mut out = bench.put(&vec![7.0; rows * cols]);
        let launch = desc
            .launch(&layernorm::RowExtents {
                rows: rows as u64,
                cols: cols as u64,
            })
            .unwrap();
        let (xd, fd, ad) = (bench.put(&x), bench.put(&factor), bench.put(&addend));
        bench.run(
            &function,
            launch,
            (&xd, &fd, &ad, &mut out, rows as u32, cols as u32, eps),
        );
        let got = bench.get(&out);
        let (factor, addend) = (to_f64(&factor), to_f64(&addend));
        for (r, (x, got)) in to_f64(&x).chunks(cols).zip(got.chunks(cols)).enumerate() {
            let n = cols as f64;
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let spread = variance + f64::from(eps);

            let depth = per_thread(cols, launch.block) + 12.0;
            let mean_error = gamma(depth) * x.iter().map(|x| x.abs()).sum::<f64>() / n;
            // Sum of (d + e)^2 with |e| <= mean_error + U |d|.
            let variance_error = 2.0 * variance.sqrt() * mean_error
                + mean_error.powi(2)
                + gamma(depth + 4.0) * (variance.sqrt() + mean_error).powi(2);
            let inverse = spread.sqrt().recip();
            let least = spread - variance_error - 2.0 * U * spread;
            assert!(
                least > 0.0,
                "the bound is vacuous for row {r} of {rows}x{cols}"
            );
            let inverse_error = least.sqrt().recip() * (1.0 + 3.0 * U) - inverse;
            let (wanted, bound): (Vec<f64>, Vec<f64>) = x
                .iter()
                .zip(factor.iter().zip(&addend))
                .map(|(x, (f, a))| {
                    let d = x - mean;
                    let d_error = mean_error + U * (d.abs() + mean_error);
                    let normal_error = d_error * inverse + (d.abs() + d_error) * inverse_error;
                    let normal_error = normal_error + U * (d.abs() * inverse + normal_error);
                    let y = d * inverse * f + a;
                    (
                        y,
                        normal_error * f.abs() + U * (y.abs() + normal_error * f.abs()),
                    )
                })
                .unzip();
            assert_within(
                &format!("layernorm {rows}x{cols}, row {r}"),
                got,
                &wanted,
                &bound,
            );
        }
    }
}

struct Product {
    m: usize,
    n: usize,
    k: usize,
    /// Elements between rows beyond their length.
    gap: usize,
    alpha: f32,
    beta: f32,
}

#[test]
fn gemm_of_any_extents_is_within_its_error_bound_and_tiles_agree() {
    let (bench, mut random) = (Bench::new(), fercuda_trials::rng());
    let tiles = [Tile::Small, Tile::Large].map(|t| gemm::f32(Arch::SM_80, t).unwrap());
    let functions = [bench.load(&tiles[0]), bench.load(&tiles[1])];
    let mut shapes = vec![
        (1, 1, 1),
        (1, 70, 5),
        (70, 1, 5),
        (64, 64, 16),
        (65, 63, 17),
        (128, 128, 32),
    ];
    shapes.extend([(129, 132, 33), (3, 3, 100), (7, 9, 0)]);
    shapes.push([0; 3].map(|_| 1 + random.u64(..150) as usize).into());
    for (m, n, k) in shapes {
        let gap = [0, 3, 4][random.u64(..3) as usize];
        let (alpha, beta) = [(1.0, 0.0), (1.5, -0.5)][random.u64(..2) as usize];
        let p = Product {
            m,
            n,
            k,
            gap,
            alpha,
            beta,
        };
        let results = [0, 1]
            .map(|i| check_product(&bench, &tiles[i], &functions[i], &p, &mut random.clone()));
        assert!(results[0] == results[1], "the tiles differ at {m}x{n}x{k}");
        random.u64(..);
    }
}

fn check_product(
    bench: &Bench,
    desc: &KernelDesc<gemm::GemmExtents>,
    function: &Function,
    p: &Product,
    random: &mut Rng,
) -> Vec<u32> {
    let &Product {
        m,
        n,
        k,
        gap,
        alpha,
        beta,
    } = p;
    let (lda, ldb, ldc) = (k + gap, n + gap, n + gap);
    // What lies between rows is poison: a product that takes it in is NaN.
    let mut matrix = |rows: usize, cols: usize| -> Vec<f32> {
        let mut values = values(random, (rows * (cols + gap)).max(1), 1.0);
        values
            .chunks_mut((cols + gap).max(1))
            .for_each(|row| row.iter_mut().skip(cols).for_each(|v| *v = f32::NAN));
        values
    };
    let (a, b) = (matrix(m, k), matrix(k, n));
    let c = values(random, m * ldc, 1.0);
    // Where beta is 0, C may hold anything.
    let given = if beta == 0.0 {
        vec![f32::NAN; m * ldc]
    } else {
        c.clone()
    };
    let mut out = bench.put(&given);
    let launch = desc
        .launch(&gemm::GemmExtents {
            m: m as u64,
            n: n as u64,
            k: k as u64,
        })
        .unwrap();
    let [m32, n32, k32, lda32, ldb32, ldc32] = [m, n, k, lda, ldb, ldc].map(|v| v as u32);
    let (ad, bd) = (bench.put(&a), bench.put(&b));
    bench.run(
        function,
        launch,
        (
            &ad, &bd, &mut out, m32, n32, k32, lda32, ldb32, ldc32, alpha, beta,
        ),
    );
    let got = bench.get(&out);
    let (a, b, c) = (to_f64(&a), to_f64(&b), to_f64(&c));
    let (alpha, beta) = (f64::from(alpha), f64::from(beta));
    let mut inside = Vec::new();
    for i in 0..m {
        let terms = |j: usize| {
            (0..k)
                .map(move |d| (i, d, j))
                .map(|(i, d, j)| a[i * lda + d] * b[d * ldb + j])
        };
        let old = |j: usize| {
            if beta == 0.0 {
                0.0
            } else {
                beta * c[i * ldc + j]
            }
        };
        let wanted: Vec<f64> = (0..n)
            .map(|j| alpha * terms(j).sum::<f64>() + old(j))
            .collect();
        let bound: Vec<f64> = (0..n)
            .map(|j| {
                let size = alpha.abs() * terms(j).map(f64::abs).sum::<f64>() + old(j).abs();
                gamma(k as f64 + 3.0) * size
            })
            .collect();
        let row = &got[i * ldc..(i + 1) * ldc];
        assert_within(
            &format!("{} {m}x{n}x{k}, row {i}", desc.entry),
            &row[..n],
            &wanted,
            &bound,
        );
        let untouched = row[n..]
            .iter()
            .zip(&given[i * ldc + n..])
            .all(|(x, y)| x.to_bits() == y.to_bits());
        assert!(untouched, "{} wrote between rows of {m}x{n}", desc.entry);
        inside.extend(row[..n].iter().map(|v| v.to_bits()));
    }
    inside
}

struct Heads {
    d: HeadDim,
    heads: usize,
    group: usize,
    q_len: usize,
    kv_len: usize,
    mask: Mask,
}

#[test]
fn attention_of_any_lengths_and_masks_is_within_its_error_bound() {
    let (bench, mut random) = (Bench::new(), fercuda_trials::rng());
    let masks = [Mask::None, Mask::CausalFromStart, Mask::CausalToEnd];
    for d in [HeadDim::D32, HeadDim::D64, HeadDim::D128] {
        let desc = attention::f32(Arch::SM_80, d).unwrap();
        let function = bench.load(&desc);
        let mut shapes = vec![
            (1, 1, 1, 1, Mask::None),
            (2, 1, 64, 64, Mask::CausalFromStart),
            (2, 2, 65, 33, Mask::None),
            (2, 1, 3, 100, Mask::CausalToEnd),
            (1, 1, 100, 30, Mask::CausalToEnd),
            (1, 1, 70, 20, Mask::CausalFromStart),
            (3, 3, 5, 0, Mask::None),
        ];
        let mut any = |n: u64| 1 + random.u64(..n) as usize;
        shapes.push((4, 2, any(80), any(150), masks[any(3) - 1]));
        for (heads, group, q_len, kv_len, mask) in shapes {
            let h = Heads {
                d,
                heads,
                group,
                q_len,
                kv_len,
                mask,
            };
            check_attention(&bench, &desc, &function, &h, &mut random);
        }
    }
}

fn check_attention(
    bench: &Bench,
    desc: &KernelDesc<attention::AttentionExtents>,
    function: &Function,
    h: &Heads,
    random: &mut Rng,
) {
    let &Heads {
        d,
        heads,
        group,
        q_len,
        kv_len,
        mask,
    } = h;
    let d = d.elements() as usize;
    let q = values(random, heads * q_len * d, 3.0);
    let [k, v] = [0; 2].map(|_| values(random, (heads / group * kv_len * d).max(4), 1.0));
    let mut out = bench.put(&vec![7.0; heads * q_len * d]);
    let shape = attention::AttentionExtents {
        heads: heads as u64,
        q_len: q_len as u64,
        kv_len: kv_len as u64,
    };
    let visible = i32::try_from(shape.visible(mask)).unwrap();
    let scale = 1.0 / (d as f32).sqrt();
    let (qd, kd, vd) = (bench.put(&q), bench.put(&k), bench.put(&v));
    let numbers = [heads, q_len, kv_len, group].map(|n| n as u32);
    let launch = desc.launch(&shape).unwrap();
    bench.run(
        function,
        launch,
        (
            &qd, &kd, &vd, &mut out, numbers[0], numbers[1], numbers[2], numbers[3], visible, scale,
        ),
    );
    let got = bench.get(&out);

    let (q, k, v, scale) = (to_f64(&q), to_f64(&k), to_f64(&v), f64::from(scale));
    let tiles = kv_len.div_ceil(32) as f64;
    for head in 0..heads {
        let at = head / group * kv_len * d;
        let (k, v) = (&k[at..], &v[at..]);
        for i in 0..q_len {
            let q = &q[(head * q_len + i) * d..][..d];
            let seen = usize::try_from(i as i64 + i64::from(visible))
                .unwrap_or(0)
                .min(kv_len);
            let products = |j: usize| {
                q.iter()
                    .zip(&k[j * d..(j + 1) * d])
                    .map(|(q, k)| q * k * scale)
            };
            let scores: Vec<f64> = (0..seen).map(|j| products(j).sum()).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            // A score is off by its dot product and the rounding of the query's factor, and
            // again by its size when the maximum is subtracted.
            let score_error = (0..seen)
                .map(|j| gamma(d as f64 + 4.0) * products(j).map(f64::abs).sum::<f64>())
                .fold(0.0, f64::max);
            let size = scores.iter().copied().fold(0.0, |a: f64, s| a.max(s.abs()));
            let weight_error = score_error + 2.0 * U * size + EXP * U;
            // Weights and their sum err alike; both are rescaled once a tile, and added in order.
            let relative = (2.0 * weight_error).exp_m1()
                + 2.0 * gamma(kv_len as f64 + tiles * (EXP + 2.0) + 20.0);
            let mut wanted = vec![0.0; d];
            let mut weight_of = vec![0.0; d];
            for (j, s) in scores.iter().enumerate() {
                let weight = (s - max).exp() / sum;
                for c in 0..d {
                    wanted[c] += weight * v[j * d + c];
                    weight_of[c] += weight * v[j * d + c].abs();
                }
            }
            let bound: Vec<f64> = weight_of
                .iter()
                .map(|w| relative * w + 2f64.powi(-140))
                .collect();
            let got = &got[(head * q_len + i) * d..][..d];
            let what = format!(
                "{} {heads} heads, {q_len} by {kv_len}, {mask:?}, query {i}",
                desc.entry
            );
            assert_within(&what, got, &wanted, &bound);
        }
    }
}

/// Binary16, from its definition.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        e => (1024.0 + fraction) * 2f32.powi(e - 25),
    }
}

/// Value `i` of a block, one at a time, from the description of the format.
fn q4_k_value(block: &[u8], i: usize) -> f32 {
    let [d, dmin] = [0, 2].map(|at| half(u16::from_le_bytes([block[at], block[at + 1]])));
    let (packed, nibbles) = (&block[4..16], &block[16..]);
    let group = i / 32;
    let (scale, min) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low = packed[group + 4];
        (
            low & 15 | packed[group - 4] >> 6 << 4,
            low >> 4 | packed[group] >> 6 << 4,
        )
    };
    let byte = nibbles[group / 2 * 32 + i % 32];
    let q = if group.is_multiple_of(2) {
        byte & 15
    } else {
        byte >> 4
    };
    d * f32::from(scale) * f32::from(q) - dmin * f32::from(min)
}

#[test]
fn q4_k_is_dequantised_bit_for_bit() {
    let (bench, mut random) = (Bench::new(), fercuda_trials::rng());
    let desc = q4_k::dequantize_f32(Arch::SM_80).unwrap();
    let function = bench.load(&desc);
    for blocks in [1usize, 7, 8, 9, 1 + random.u64(..200) as usize] {
        let mut bytes: Vec<u8> = (0..blocks * 144).map(|_| random.u64(..) as u8).collect();
        for block in bytes.chunks_mut(144) {
            // Finite factors: NaN has many forms, and no model holds one.
            for at in [1, 3] {
                if block[at] & 0x7c == 0x7c {
                    block[at] ^= 0x40;
                }
            }
        }
        let wanted: Vec<u32> = bytes
            .chunks(144)
            .flat_map(|b| (0..256).map(|i| q4_k_value(b, i).to_bits()))
            .collect();
        let got = dequantise(&bench, &desc, &function, &bytes);
        assert!(got == wanted, "{blocks} blocks");
    }
}

#[test]
fn q4_k_equals_the_gguf_package_bit_for_bit() {
    let bench = Bench::new();
    let desc = q4_k::dequantize_f32(Arch::SM_80).unwrap();
    let function = bench.load(&desc);
    let (blocks, values) = (
        include_bytes!("q4_k/blocks.bin"),
        include_bytes!("q4_k/values.bin"),
    );
    let (values, rest) = values.as_chunks::<4>();
    assert_eq!(
        (blocks.len(), values.len(), rest.len()),
        (16 * 144, 16 * 256, 0)
    );
    let wanted: Vec<u32> = values.iter().map(|v| u32::from_le_bytes(*v)).collect();
    assert!(dequantise(&bench, &desc, &function, blocks) == wanted);
    let ours: Vec<u32> = blocks
        .chunks(144)
        .flat_map(|b| (0..256).map(|i| q4_k_value(b, i).to_bits()))
        .collect();
    assert!(ours == wanted, "the reference of the test above is wrong");
}

fn dequantise(
    bench: &Bench,
    desc: &KernelDesc<q4_k::Q4KExtents>,
    function: &Function,
    bytes: &[u8],
) -> Vec<u32> {
    let blocks = bytes.len() / 144;
    let source = DeviceBuffer::from_host(bytes, &bench.stream).expect("room on the device");
    let mut out = bench.put(&vec![7.0; blocks * 256]);
    let launch = desc
        .launch(&q4_k::Q4KExtents {
            blocks: blocks as u64,
        })
        .expect("few blocks");
    bench.run(function, launch, (&source, &mut out, blocks as u32));
    bench.get(&out).iter().map(|v| v.to_bits()).collect()
}
