//! Linear algebra: random operands far from singular ones, large matrices, and singular ones.

use fercuda_ops::{KernelPolicy, OpDescriptor, OpFamily, OpPlan, registry};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, Operand, layout};
use crate::native_sort::check;
use crate::parity::narrower;

/// Elements of all matrices of a shape, by their row and column.
fn filled(
    random: &mut fastrand::Rng,
    dtype: Dtype,
    outer: &[u64],
    [rows, columns]: [u64; 2],
    f: impl Fn(&mut fastrand::Rng, usize, usize) -> f64,
) -> Operand {
    let own = layout(random, dtype, &[outer, &[rows, columns]].concat(), true);
    let mut bits = Vec::new();
    for _ in 0..outer.iter().product::<u64>() {
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            bits.push(dtype.encode(f(random, i as usize, j as usize)));
        }
    }
    Operand::of(random, own, bits)
}

/// Matrices with one element in each column, at any row, that is larger than the others together.
fn dominated(
    random: &mut fastrand::Rng,
    dtype: Dtype,
    outer: &[u64],
    [rows, columns]: [u64; 2],
    is_mixed: bool,
) -> Operand {
    let mut order: Vec<usize> = (0..rows as usize).collect();
    if is_mixed {
        random.shuffle(&mut order);
    }
    // Products of many such elements are of ordinary size.
    let large = 0.25 * rows as f64 + 1.0;
    filled(random, dtype, outer, [rows, columns], |random, i, j| {
        let value = random.f64() - 0.5;
        let is_large = order.get(j) == Some(&i);
        let sign = if random.bool() { 1.0 } else { -1.0 };
        match is_large {
            true => sign * (1.0 + random.f64() / 4.0),
            false => value / large,
        }
    })
}

/// A few rows and columns, or some more.
fn extent(random: &mut fastrand::Rng) -> u64 {
    match random.u32(..8) {
        0 => random.u64(..2),
        1 => random.u64(16..40),
        _ => random.u64(1..12),
    }
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let outer: Vec<u64> = (0..random.usize(..3)).map(|_| random.u64(1..4)).collect();
    let outer = match random.u32(..12) {
        0 => vec![0],
        _ => outer,
    };
    let (n, other) = (extent(random), extent(random));
    of_extents(random, op, dtype, &outer, [n, other])
}

/// Random operands of these extents; of square matrices the first one counts.
fn of_extents(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
    outer: &[u64],
    [n, other]: [u64; 2],
) -> (OpDescriptor, Vec<Operand>) {
    let choices = op.row().choices.iter();
    let op = choices.fold(op, |op, (name, values)| {
        let value = values[random.usize(..values.len())];
        op.choice(name, value).unwrap()
    });
    let is_upper = op.choice_of("triangle") == "upper";
    let of_a = narrower(random, outer);
    let of_a = if of_a.len() == outer.len() {
        outer
    } else {
        &of_a
    };
    match op.name() {
        "cholesky" => {
            // The other triangle is not read.
            let failing = match random.u32(..4) {
                0 => random.usize(..40),
                _ => usize::MAX,
            };
            let x = filled(random, dtype, outer, [n, n], |random, i, j| {
                let size = 0.5 * n as f64 + 1.0;
                match i.cmp(&j) {
                    std::cmp::Ordering::Equal if i == failing => -size,
                    std::cmp::Ordering::Equal => size + random.f64(),
                    std::cmp::Ordering::Less if !is_upper => f64::NAN,
                    std::cmp::Ordering::Greater if is_upper => f64::NAN,
                    _ => random.f64() - 0.5,
                }
            });
            (op, vec![x])
        }
        "solve_triangular" => {
            let is_unit = op.choice_of("diagonal") == "unit";
            let a = filled(random, dtype, of_a, [n, n], |random, i, j| match i == j {
                true if is_unit => f64::NAN,
                true => 1.0 + random.f64(),
                false if (j > i) == is_upper => 2.0 * (random.f64() - 0.5) / n as f64,
                false => f64::NAN,
            });
            let b = Operand::random(random, dtype, &[outer, &[n, other]].concat(), true);
            (op, vec![a, b])
        }
        "cholesky_solve" => {
            let factor = filled(random, dtype, outer, [n, n], |random, i, j| match i == j {
                true => 1.0 + random.f64(),
                false if (j > i) == is_upper => 2.0 * (random.f64() - 0.5) / n as f64,
                false => f64::NAN,
            });
            let b = Operand::random(random, dtype, &[outer, &[n, other]].concat(), true);
            (op, vec![b, factor])
        }
        "lstsq" => {
            let (rows, columns) = (n.max(other), n.min(other));
            let a = dominated(random, dtype, outer, [rows, columns], false);
            let wide = random.u64(..5);
            let b = Operand::random(random, dtype, &[outer, &[rows, wide]].concat(), true);
            (op, vec![a, b])
        }
        "eigvals" => {
            // Values far from each other, some of them pairs of complex ones.
            let n = n.min(8);
            let mut order: Vec<usize> = (0..n as usize).collect();
            random.shuffle(&mut order);
            let turned: Vec<bool> = (0..n).map(|at| at % 2 == 0 && random.bool()).collect();
            let is_turned = |i: usize| turned[i - i % 2] && (i - i % 2 + 1) < n as usize;
            let x = filled(random, dtype, outer, [n, n], |random, i, j| {
                let noise = 0.25 * (random.f64() - 0.5);
                match (i == j, i / 2 == j / 2 && is_turned(i)) {
                    (true, true) => 2.0 * order[i - i % 2] as f64,
                    (true, false) => 2.0 * order[i] as f64 + noise,
                    (false, true) => {
                        if i < j {
                            2.0
                        } else {
                            -1.5
                        }
                    }
                    _ => noise,
                }
            });
            (op, vec![x])
        }
        "pinv" | "matrix_rank" => {
            // Few rotations of well separated vectors.
            let (rows, columns) = (n.min(24), other.min(24));
            let x = dominated(random, dtype, outer, [rows, columns], true);
            (op, vec![x])
        }
        "cov" | "corrcoef" => {
            let x = Operand::random(random, dtype, &[outer, &[other.min(12), n]].concat(), true);
            (op, vec![x])
        }
        "matrix_power" => {
            let op = op.number("power", f64::from(random.u32(..7))).unwrap();
            (op, vec![dominated(random, dtype, outer, [n, n], true)])
        }
        "cross" => {
            let axis = random.usize(..=outer.len());
            let mut own = [outer, &[n]].concat();
            own[axis] = 3;
            let op = op.axes(&[axis]).unwrap();
            let operands = [0, 1].map(|_| Operand::random(random, dtype, &own, true));
            (op, operands.into_iter().collect())
        }
        "diagonal" | "trace" | "diag_embed" => {
            let op = op.number("offset", f64::from(random.i32(-6..7))).unwrap();
            let shape = match op.name() {
                "diag_embed" => [outer, &[n]].concat(),
                _ => [outer, &[n, other]].concat(),
            };
            (op, vec![Operand::random(random, dtype, &shape, true)])
        }
        "kron" => {
            let own = [outer, &[n]].concat();
            let inner: Vec<u64> = own.iter().map(|_| random.u64(..5)).collect();
            let operands = [own, inner].map(|shape| Operand::random(random, dtype, &shape, true));
            (op, operands.into_iter().collect())
        }
        "cdist" => {
            let powers = [0.5, 1.0, 1.5, 2.0, 3.0, f64::INFINITY];
            let op = op
                .number("p", powers[random.usize(..powers.len())])
                .unwrap();
            let length = random.u64(..9);
            let shapes = [
                [outer, &[n, length]].concat(),
                [of_a, &[other, length]].concat(),
            ];
            let operands = shapes.map(|shape| Operand::random(random, dtype, &shape, true));
            (op, operands.into_iter().collect())
        }
        "solve" => {
            let a = dominated(random, dtype, of_a, [n, n], true);
            let b = Operand::random(random, dtype, &[outer, &[n, other]].concat(), true);
            (op, vec![a, b])
        }
        "eigh" | "svd" => {
            // Values far from each other.
            let wide = if op.name() == "eigh" { n } else { other };
            let mut order: Vec<usize> = (0..n.max(wide) as usize).collect();
            random.shuffle(&mut order);
            let x = filled(random, dtype, outer, [n, wide], |random, i, j| {
                match i == j {
                    true => 1.0 + order[i] as f64,
                    false if op.name() == "svd" || (j > i) == is_upper => {
                        0.3 * (random.f64() - 0.5)
                    }
                    false => f64::NAN,
                }
            });
            (op, vec![x])
        }
        "lu" => (op, vec![dominated(random, dtype, outer, [n, other], true)]),
        "qr" => (op, vec![dominated(random, dtype, outer, [n, other], false)]),
        _ => (op, vec![dominated(random, dtype, outer, [n, n], true)]),
    }
}

#[test]
fn matrices_larger_than_shared_memory() {
    let mut random = fercuda_trials::rng();
    let rows = registry::rows().filter(|row| row.family == OpFamily::Algebra);
    for row in rows {
        // Rotations are many, and f64 fills the memory with fewer rows.
        let is_slow = matches!(row.name, "eigh" | "svd");
        let (n, other) = match is_slow {
            true => (random.u64(73..76), random.u64(48..52)),
            false => (random.u64(105..120), random.u64(90..130)),
        };
        let dtype = match is_slow || random.bool() {
            true => Dtype::F64,
            false => Dtype::F32,
        };
        let op = OpDescriptor::new(row.name).unwrap();
        let (op, operands) = of_extents(&mut random, op, dtype, &[], [n, other]);
        check(&mut random, &op, &operands);
    }
}

#[test]
fn more_matrices_than_blocks() {
    let mut random = fercuda_trials::rng();
    for name in ["inverse", "cholesky"] {
        let op = OpDescriptor::new(name).unwrap();
        let (op, operands) = of_extents(&mut random, op, Dtype::F32, &[4200], [3, 3]);
        check(&mut random, &op, &operands);
    }
}

/// Runs an op on one contiguous operand.
fn run(name: &str, shape: &[u64], x: &[f64]) -> Vec<Vec<f64>> {
    let bench = Bench::shared();
    let mut random = fercuda_trials::rng();
    let own = Layout::contiguous(Dtype::F32, shape).unwrap();
    let bits = x.iter().map(|value| Dtype::F32.encode(*value)).collect();
    let x = Operand::of(&mut random, own, bits);
    let op = OpDescriptor::new(name).unwrap();
    let plan = OpPlan::new(&bench.device, &op, &[own], &[], KernelPolicy::Auto).unwrap();
    let firsts = vec![0; plan.outputs().len()];
    let got = bench.run(&plan, &[x], &firsts).unwrap();
    let values = got.iter().zip(plan.outputs());
    values
        .map(|(bits, layout)| bits.iter().map(|it| layout.dtype().value(*it)).collect())
        .collect()
}

#[test]
fn singular_matrices_have_the_documented_results() {
    let singular = [1.0, 2.0, 2.0, 4.0];
    assert_eq!(run("determinant", &[2, 2], &singular), [[0.0]]);
    let all = run("slogdet", &[2, 2], &singular);
    assert_eq!(all, [[0.0], [f64::NEG_INFINITY]]);
    let all = run("inverse", &[2, 2], &singular);
    assert!(all[0].iter().all(|it| !it.is_finite()), "{all:?}");
    let all = run("lu", &[2, 2], &singular);
    assert_eq!(all, [vec![2.0, 4.0, 0.5, 0.0], vec![1.0, 1.0]]);
    // A column of zeros is passed over.
    let all = run("lu", &[2, 2], &[0.0, 3.0, 0.0, 5.0]);
    assert_eq!(all, [vec![0.0, 3.0, 0.0, 5.0], vec![0.0, 1.0]]);
    let all = run("cholesky", &[2, 2], &[4.0, 0.0, 2.0, 1.0]);
    assert_eq!(all[0][..3], [2.0, 0.0, 1.0]);
    assert!(all[0][3].is_nan(), "{all:?}");
    let all = run("qr", &[2, 2], &[0.0, 3.0, 0.0, 4.0]);
    let (q, r) = (&all[0], &all[1]);
    assert!((q[0] * q[1] + q[2] * q[3]).abs() < 1e-6, "{q:?}");
    assert!(r[0] == 0.0 && r[2] == 0.0 && r[3] >= 0.0, "{r:?}");
    assert_eq!(run("determinant", &[0, 0], &[]), [[1.0]]);
}

#[test]
fn spectra_of_degenerate_matrices() {
    let all = run("svd", &[2, 2], &[0.0; 4]);
    assert_eq!(all, [vec![0.0; 4], vec![0.0; 2], vec![1.0, 0.0, 0.0, 1.0]]);
    // Of rank 1: 5 is the one value.
    let all = run("svd", &[2, 3], &[3.0, 0.0, 0.0, 4.0, 0.0, 0.0]);
    assert!(
        (all[1][0] - 5.0).abs() < 1e-5 && all[1][1].abs() < 1e-5,
        "{all:?}"
    );
    let all = run("eigh", &[2, 2], &[f64::INFINITY, 0.0, 0.0, 1.0]);
    assert!(all.iter().flatten().all(|it| it.is_nan()), "{all:?}");
    // Equal values have any vectors, which are orthogonal.
    let all = run("eigh", &[2, 2], &[3.0, 0.0, 0.0, 3.0]);
    assert_eq!(all, [vec![3.0, 3.0], vec![1.0, 0.0, 0.0, 1.0]]);
    let all = run("eigh", &[2, 2], &[1.0, 5.0, 1.0, 1.0]);
    let wanted = [0.0, 2.0];
    assert!(
        all[0].iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-5),
        "{all:?}"
    );
}

#[test]
fn eigenvalues_of_known_matrices() {
    let near = |name: &str, x: &[f64], wanted: &[[f64; 2]]| {
        let n = wanted.len() as u64;
        let got = run("eigvals", &[n, n], x).remove(0);
        let wanted: Vec<f64> = wanted.iter().flatten().copied().collect();
        for (got, wanted) in got.iter().zip(&wanted) {
            // A value of many equal ones moves by the root of a rounding.
            assert!((got - wanted).abs() < 2e-2, "{name}: {got} is not {wanted}");
        }
    };
    near("nothing", &[0.0; 9], &[[0.0; 2]; 3]);
    near("one", &[5.0], &[[5.0, 0.0]]);
    let root = 0.75f64.sqrt();
    // All have one magnitude, so that shifts by the last two rows do not lead on.
    let turn = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    near("a turn", &turn, &[[-0.5, -root], [-0.5, root], [1.0, 0.0]]);
    let mut cycle = [0.0; 16];
    (0..4).for_each(|i| cycle[4 * ((i + 1) % 4) + i] = 1.0);
    let of_cycle = [[-1.0, 0.0], [0.0, -1.0], [0.0, 1.0], [1.0, 0.0]];
    near("a cycle", &cycle, &of_cycle);
    // (x - 1)(x - 2)(x - 3)(x - 4), by its coefficients.
    let companion = [
        10.0, -35.0, 50.0, -24.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0,
    ];
    let whole = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]];
    near("a companion", &companion, &whole);
    let joined = [2.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 2.0];
    near("a chain", &joined, &[[2.0, 0.0]; 3]);
    let unknown = run("eigvals", &[2, 2], &[1.0, f64::INFINITY, 0.0, 1.0]).remove(0);
    assert!(unknown.iter().all(|it| it.is_nan()), "{unknown:?}");
}
