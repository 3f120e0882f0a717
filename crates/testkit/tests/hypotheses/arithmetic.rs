//! Products, softmax, attention and quantised weights: H5 to H7.

use std::path::{Path, PathBuf};

use fercuda_cuda::DeviceBuffer;
use fercuda_ptx::build::Arch;
use fercuda_testkit::kernels::{attention, gemm, layernorm, q4_k, softmax};

use crate::lab::{Lab, UNIT, lab, shape, worst};
use crate::oracle::{Scratch, bundle, floats, oracle};

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
