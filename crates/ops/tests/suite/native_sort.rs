//! Scans, sorting and selection: random operands, and rows of many lengths.

use fercuda_jit::reference::Near;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan, OpRow, oracle, registry};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, Operand, layout};
use crate::parity::shape;

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let row = op.row();
    let own = shape(random, usize::from(row.has("axis")));
    let op = match row.has("axis") {
        true => op.axes(&[random.usize(..own.len())]).unwrap(),
        false => op,
    };
    let x = elements(random, row, dtype, &own);
    (op, vec![x])
}

/// Random elements: of few values, or of any.
fn elements(random: &mut fastrand::Rng, row: &OpRow, dtype: Dtype, own: &[u64]) -> Operand {
    let tame = random.bool();
    let mut x = Operand::random(random, dtype, own, tame);
    if row.name == "cumprod" && !dtype.is_float() {
        // Of other factors the reference is not exact in f64.
        let few = |random: &mut fastrand::Rng| match random.u32(..8) {
            0 => 2.0,
            1 if dtype.is_signed() => -1.0,
            _ => 1.0,
        };
        x.bits
            .iter_mut()
            .for_each(|it| *it = dtype.encode(few(random)));
    } else if random.u32(..4) == 0 {
        let few: Vec<u64> = x.bits.iter().copied().take(3).collect();
        x.bits
            .iter_mut()
            .for_each(|it| *it = few[random.usize(..few.len())]);
    }
    x
}

/// Runs an op, and compares all elements with the reference.
fn check(random: &mut fastrand::Rng, op: &OpDescriptor, operands: &[Operand]) {
    let bench = Bench::shared();
    let layouts: Vec<Layout> = operands.iter().map(|it| it.layout).collect();
    let plan = OpPlan::new(&bench.device, op, &layouts, &[], KernelPolicy::Auto);
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let firsts: Vec<u64> = plan
        .outputs()
        .iter()
        .map(|_| 16 * random.u64(..2))
        .collect();
    let got = bench.run(&plan, operands, &firsts).unwrap();
    let bits: Vec<Vec<u64>> = operands.iter().map(|it| it.bits.clone()).collect();
    let wanted = oracle::evaluate(op, &layouts, &bits).unwrap();
    for (number, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        let dtype = plan.outputs()[number].dtype();
        assert_eq!(got.len(), wanted.len(), "{op:?}");
        let mut pairs = got.iter().zip(wanted);
        let is_wrong = |(got, near): (&u64, &Near)| !near.allows(dtype, *got);
        if let Some(at) = pairs.position(is_wrong) {
            let (got, near) = (dtype.value(got[at]), wanted[at]);
            panic!("{op:?} of {layouts:?}: result {number} [{at}] is {got}, should be {near:?}");
        }
    }
}

/// Lengths of rows about the sizes of warps, blocks and chunks, and random ones.
fn lengths(random: &mut fastrand::Rng) -> Vec<u64> {
    let mut all = vec![
        1, 2, 31, 32, 33, 256, 257, 1024, 2047, 2048, 2049, 4096, 5000,
    ];
    all.extend((0..4).map(|_| random.u64(1..5000)));
    all
}

fn order_rows(kernel: &'static str) -> impl Iterator<Item = &'static OpRow> {
    registry::rows().filter(move |row| {
        let rule = row.native.as_ref();
        rule.is_some_and(|rule| rule.kernel == kernel)
    })
}

#[test]
fn scans_of_rows_of_all_lengths() {
    let mut random = fercuda_trials::rng();
    for row in order_rows("cuda.scan") {
        let dtypes: Vec<Dtype> = row.dtypes().collect();
        for len in lengths(&mut random) {
            let dtype = dtypes[random.usize(..dtypes.len())];
            let own = match random.u32(..3) {
                0 => vec![len],
                1 => vec![2, len, 3],
                _ => vec![len, 2],
            };
            let axis = own
                .iter()
                .position(|extent| *extent == len)
                .unwrap_or_default();
            let op = OpDescriptor::new(row.name).unwrap().axes(&[axis]).unwrap();
            let x = elements(&mut random, row, dtype, &own);
            check(&mut random, &op, &[x]);
        }
    }
}

#[test]
fn scan_keeps_what_is_before_nan_and_infinity() {
    let mut random = fercuda_trials::rng();
    let values = [
        1.0,
        f64::INFINITY,
        2.0,
        f64::NEG_INFINITY,
        1.0,
        f64::NAN,
        3.0,
    ];
    for row in order_rows("cuda.scan") {
        let bits = values.iter().map(|value| Dtype::F32.encode(*value));
        let own = layout(&mut random, Dtype::F32, &[7], true);
        let x = Operand::of(&mut random, own, bits.collect());
        check(&mut random, &OpDescriptor::new(row.name).unwrap(), &[x]);
    }
}

#[test]
fn scan_of_no_dimensions_is_an_error() {
    for row in order_rows("cuda.scan") {
        let op = OpDescriptor::new(row.name).unwrap();
        let x = Layout::contiguous(Dtype::F32, &[]).unwrap();
        let device = &Bench::shared().device;
        let error = OpPlan::new(device, &op, &[x], &[], KernelPolicy::Auto).unwrap_err();
        assert!(
            error.to_string().contains("at least one dimension"),
            "{error}"
        );
    }
}
