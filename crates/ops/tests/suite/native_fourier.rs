//! Fourier transforms: random operands, rows of many lengths, and transforms that undo each other.

use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, Operand};
use crate::native_sort::check;

/// A length with small prime factors, or any.
fn length(random: &mut fastrand::Rng) -> u64 {
    let smooth = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 21, 28, 30, 32, 49, 60, 105,
    ];
    match random.u32(..8) {
        0..5 => smooth[random.usize(..smooth.len())],
        5 => 64 * random.u64(1..4),
        _ => random.u64(1..70),
    }
}

/// Random parameters of the op, and a random operand.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let rank = random.usize(1..4);
    let mut own: Vec<u64> = (0..rank).map(|_| random.u64(1..4)).collect();
    let mut axes: Vec<usize> = (0..rank).collect();
    random.shuffle(&mut axes);
    axes.truncate(random.usize(1..=rank.min(2)));
    if random.u32(..4) == 0 {
        axes = vec![rank - 1];
    }
    for axis in &axes {
        own[*axis] = length(random) / (axes.len() as u64).pow(2) + 1;
    }
    if rank > axes.len() && random.u32(..8) == 0 {
        let others: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
        own[others[0]] = 0;
    }
    let last = axes[axes.len() - 1];
    let is_default = axes == [rank - 1] && random.bool();
    let op = if is_default {
        op
    } else {
        op.axes(&axes).unwrap()
    };
    of_shape(random, op, dtype, own, last)
}

/// A random operand of numbers of that shape.
fn of_shape(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
    mut own: Vec<u64>,
    last: usize,
) -> (OpDescriptor, Vec<Operand>) {
    let norms = op.row().choices[0].1;
    let mut op = op
        .choice("norm", norms[random.usize(..norms.len())])
        .unwrap();
    let name = op.name();
    if name == "irfft" {
        let n = own[last];
        own[last] = n / 2 + 1;
        if n % 2 == 1 || random.bool() {
            op = op.number("n", n as f64).unwrap();
        }
    }
    if name != "rfft" {
        own.push(2);
    }
    let x = Operand::random(random, dtype, &own, true);
    (op, vec![x])
}

#[test]
fn transforms_of_rows_of_all_lengths() {
    let mut random = fercuda_trials::rng();
    // Of one launch, of several, and by a chirp of several.
    let mut lengths = vec![1, 2, 11, 127, 1024, 1536, 2048, 2050, 2187, 4096, 4116];
    lengths.extend((0..3).map(|_| random.u64(1..3000)));
    for len in lengths {
        for name in ["fft", "ifft", "rfft", "irfft"] {
            let dtype = [Dtype::F32, Dtype::F64, Dtype::F16][random.usize(..3)];
            let (own, axis) = match random.u32(..3) {
                0 => (vec![len], 0),
                1 => (vec![2, len], 1),
                _ => (vec![len, 2], 0),
            };
            let op = OpDescriptor::new(name).unwrap().axes(&[axis]).unwrap();
            let (op, operands) = of_shape(&mut random, op, dtype, own, axis);
            check(&mut random, &op, &operands);
        }
    }
}

#[test]
fn more_rows_than_a_block_takes_at_once() {
    let mut random = fercuda_trials::rng();
    for len in [3, 16, 13] {
        let op = OpDescriptor::new("fft").unwrap();
        let own = vec![random.u64(500..700), len];
        let (op, operands) = of_shape(&mut random, op, Dtype::F32, own, 1);
        check(&mut random, &op, &operands);
    }
}

#[test]
fn empty_axes_and_halves_of_other_lengths_are_refused() {
    let bench = Bench::shared();
    let plan = |op: OpDescriptor, shape: &[u64]| {
        let operand: Layout = Layout::contiguous(Dtype::F32, shape).unwrap();
        let plan = OpPlan::new(&bench.device, &op, &[operand], &[], KernelPolicy::Auto);
        plan.map(|plan| plan.outputs()[0].shape().to_vec())
            .map_err(|error| error.to_string())
    };
    let op = |name: &str| OpDescriptor::new(name).unwrap();
    assert_eq!(plan(op("fft"), &[3, 8, 2]).unwrap(), [3, 8, 2]);
    assert_eq!(plan(op("rfft"), &[3, 8]).unwrap(), [3, 5, 2]);
    assert_eq!(plan(op("irfft"), &[3, 5, 2]).unwrap(), [3, 8]);
    let nine = op("irfft").number("n", 9.0).unwrap();
    assert_eq!(plan(nine, &[3, 5, 2]).unwrap(), [3, 9]);
    for (op, shape, wanted) in [
        (op("fft"), vec![3, 0, 2], "empty axis"),
        (op("fft"), vec![3, 8], "is not 2"),
        (op("fft"), vec![2], "has no axis"),
        (
            op("fft").axes(&[2]).unwrap(),
            vec![3, 8, 2],
            "there is no axis 2",
        ),
        (
            op("irfft").number("n", 7.0).unwrap(),
            vec![3, 5, 2],
            "half spectrum",
        ),
        (op("irfft"), vec![1, 2], "half spectrum"),
    ] {
        let error = plan(op, &shape).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn library_is_refused_with_its_reason() {
    let bench = Bench::shared();
    let operand = Layout::contiguous(Dtype::F32, &[3, 5, 2]).unwrap();
    let op = OpDescriptor::new("irfft").unwrap();
    let plan = OpPlan::new(&bench.device, &op, &[operand], &[], KernelPolicy::Auto).unwrap();
    assert_eq!(plan.sku().id, "cuda.fft");
    let is_library = |it: &&fercuda_ops::RejectedKernel| it.id == "cufft";
    let rejected = plan.sku().rejected.iter().find(is_library).unwrap();
    assert!(!rejected.reason.is_empty());
    let forced = KernelPolicy::Force("cufft");
    let error = OpPlan::new(&bench.device, &op, &[operand], &[], forced).unwrap_err();
    assert!(error.to_string().contains(&rejected.reason), "{error}");
}
