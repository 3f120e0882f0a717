//! Every op of every type it accepts, on random shapes and layouts, against its reference.

use std::collections::BTreeMap;

use fercuda_jit::TypeClass;
use fercuda_jit::reference::{ExactValue, Near};
use fercuda_ops::{
    KERNELS, KernelPolicy, OpDescriptor, OpFamily, OpOracle, OpPlan, OpRow, oracle, registry,
};
use fercuda_tensor::{Dtype, Layout};
use fercuda_trials::{Budget, Work};

use crate::bench::{Bench, Operand, first, layout};
use crate::native;

const WORK: Work = Work {
    name: "op-parity",
    least: 600,
    ci_seconds: 15,
    soak: 30_000,
};

/// Plans of an op that have finite results, and those of them with a finite bound for some.
#[derive(Default)]
pub(crate) struct Compared {
    kernels: BTreeMap<&'static str, u64>,
    pub(crate) plans: u64,
    pub(crate) bounded: u64,
}

/// A random shape: mostly small, some empty, of no dimensions, or with a long row.
pub(crate) fn shape(random: &mut fastrand::Rng, least_rank: usize) -> Vec<u64> {
    let rank = random.usize(least_rank..4);
    let mut shape: Vec<u64> = (0..rank).map(|_| random.u64(1..7)).collect();
    if rank > 0 {
        let axis = random.usize(..rank);
        match random.u32(..12) {
            0 => shape[axis] = 0,
            1..4 => shape[axis] = random.u64(20..300),
            _ => {}
        }
    }
    shape
}

/// A shape that is broadcast to another one.
pub(crate) fn narrower(random: &mut fastrand::Rng, shape: &[u64]) -> Vec<u64> {
    if random.u32(..3) > 0 {
        return shape.to_vec();
    }
    let from = random.usize(..=shape.len());
    let own = shape[from..].iter();
    own.map(|extent| if random.bool() { 1 } else { *extent })
        .collect()
}

/// An op with random parameters, and the shapes of its operands.
fn describe(
    random: &mut fastrand::Rng,
    row: &'static OpRow,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Vec<u64>>) {
    let mut op = OpDescriptor::new(row.name).unwrap();
    let along = row.has("axis");
    let whole = shape(random, usize::from(along));
    let rank = whole.len();
    for (number, _) in row.numbers {
        if random.bool() {
            continue;
        }
        // A narrow float has all of these exactly, and an integer the whole ones.
        let quarters = random.u32(1..9);
        let value = match dtype.is_float() {
            true => f64::from(quarters) / 4.0,
            false => f64::from(quarters),
        };
        op = op.number(number, value).unwrap();
    }
    if along {
        op = op.axes(&[random.usize(..rank)]).unwrap();
    } else if row.has("axes") && random.u32(..4) > 0 {
        let axes: Vec<usize> = (0..rank).filter(|_| random.bool()).collect();
        op = op.axes(&axes).unwrap().keep(random.bool()).unwrap();
    } else if row.has("order") {
        let mut order: Vec<usize> = (0..rank).collect();
        random.shuffle(&mut order);
        op = op.axes(&order).unwrap();
    }
    if row.has("to") {
        op = op.to(Dtype::ALL[random.usize(..Dtype::ALL.len())]).unwrap();
    }
    let given = row.operands.len() - random.usize(..=row.optional);
    let mut shapes: Vec<Vec<u64>> = Vec::new();
    for at in 0..given {
        shapes.push(match row.oracle {
            OpOracle::Rows(_) if at > 0 && row.has("operands") => vec![whole[op.axes_of(rank)[0]]],
            OpOracle::Each(_) => narrower(random, &whole),
            OpOracle::Broadcast => {
                op = op.clone().shape(&whole).unwrap();
                narrower(random, &whole)
            }
            _ => whole.clone(),
        });
    }
    (op, shapes)
}

/// Whether an op is undefined for no elements, as a maximum is.
fn is_undefined(op: &OpDescriptor, shapes: &[Vec<u64>]) -> bool {
    let Some(shape) = shapes.first() else {
        return false;
    };
    let axes = op.axes_of(shape.len());
    let reduced: u64 = axes.iter().filter_map(|axis| shape.get(*axis)).product();
    op.row().text.contains("{axes}") && reduced == 0
}

/// Random operands of an expression.
fn operands_of(
    random: &mut fastrand::Rng,
    row: &'static OpRow,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let (op, shapes) = describe(random, row, dtype);
    let tame = !matches!(row.oracle, OpOracle::Each(_)) && random.u32(..4) > 0;
    let operands = shapes.iter().enumerate().map(|(at, shape)| {
        let is_condition = row.types_of(row.operand(at)) == TypeClass::Bool;
        let dtype = if is_condition { Dtype::Bool } else { dtype };
        let mut operand = Operand::random(random, dtype, shape, tame);
        if row.name == "prod" && !dtype.is_float() {
            // Of other factors the reference is not exact in f64.
            operand
                .bits
                .iter_mut()
                .for_each(|bits| *bits = 1 + (*bits & 1));
        }
        operand
    });
    let operands = operands.collect();
    (op, operands)
}

fn check(random: &mut fastrand::Rng, row: &'static OpRow, dtype: Dtype, compared: &mut Compared) {
    let drawn = match row.is_expression() {
        true => operands_of(random, row, dtype),
        false => native::operands_of(random, row, dtype),
    };
    check_drawn(random, drawn, compared);
}

/// Runs an op on operands, and compares its results with the reference.
pub(crate) fn check_drawn(
    random: &mut fastrand::Rng,
    (op, operands): (OpDescriptor, Vec<Operand>),
    compared: &mut Compared,
) {
    let (bench, row) = (Bench::shared(), op.row());
    let layouts: Vec<Layout> = operands.iter().map(|it| it.layout).collect();
    let about = || format!("{op:?} of {layouts:?}");
    let kernels = KERNELS.iter().filter(|kernel| (kernel.computes)(row));
    let kernels: Vec<_> = kernels.map(|kernel| kernel.id).collect();
    let forced = KernelPolicy::Force(kernels[random.usize(..kernels.len())]);
    let plan = |outputs: &[Layout]| {
        let made = |policy| OpPlan::new(&bench.device, &op, &layouts, outputs, policy);
        made(forced).or_else(|_| made(KernelPolicy::Auto))
    };
    let own = match plan(&[]) {
        Ok(plan) => plan.outputs().to_vec(),
        Err(error) => {
            let message = error.to_string();
            let shapes: Vec<Vec<u64>> = layouts.iter().map(|it| it.shape().to_vec()).collect();
            assert!(is_undefined(&op, &shapes), "{message}\n{}", about());
            assert!(message.contains("empty axis"), "{message}");
            return;
        }
    };
    let laid_out = |own: &Layout| {
        let output = layout(random, own.dtype(), own.shape(), false);
        if output.may_overlap() { *own } else { output }
    };
    let outputs: Vec<Layout> = own.iter().map(laid_out).collect();
    let plan = plan(&outputs).unwrap();
    let firsts: Vec<u64> = outputs.iter().map(|output| first(random, output)).collect();
    let got = bench.run(&plan, &operands, &firsts);
    let got = got.unwrap_or_else(|error| panic!("{error}\n{}", about()));
    let kernel = match plan.refused_runs() {
        0 => plan.sku().id,
        _ => "refused by a library",
    };
    *compared.kernels.entry(kernel).or_default() += 1;
    let bits: Vec<Vec<u64>> = operands.iter().map(|it| it.bits.clone()).collect();
    let wanted = oracle::evaluate(&op, &layouts, &bits).unwrap();
    let is_finite = |near: &&Near| match near.value {
        ExactValue::Float(value) => value.is_finite(),
        ExactValue::Int(_) => true,
    };
    let mut finite = wanted.iter().flatten().filter(is_finite).peekable();
    compared.plans += u64::from(finite.peek().is_some());
    compared.bounded += u64::from(finite.any(|near| near.error.is_finite()));
    assert_eq!(got.len(), wanted.len(), "{}", about());
    for (number, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        let (result, dtype) = (row.result(number), outputs[number].dtype());
        assert_eq!(got.len(), wanted.len(), "{result}: {}", about());
        for (at, (got, near)) in got.iter().zip(wanted).enumerate() {
            assert!(
                near.allows(dtype, *got),
                "{}: {result}[{at}] is {:?}, should be {:?} within {:e}\n{}",
                row.name,
                dtype.value(*got),
                near.value,
                near.error,
                about(),
            );
        }
    }
}

/// The ops that are tried: all, or those that `FERCUDA_OPS` names, with commas between.
fn tried() -> Vec<&'static OpRow> {
    let named = std::env::var("FERCUDA_OPS").ok();
    let is_named = |row: &OpRow| {
        let Some(named) = &named else { return true };
        named.split(',').any(|name| name == row.name)
    };
    registry::rows().filter(|row| is_named(row)).collect()
}

/// All ops with all their types, in random order.
fn pairs(random: &mut fastrand::Rng) -> Vec<(&'static OpRow, Dtype)> {
    let mut all: Vec<_> = tried()
        .into_iter()
        .flat_map(|row| Dtype::ALL.map(|dtype| (row, dtype)))
        .filter(|(row, dtype)| row.types.has(*dtype))
        .collect();
    random.shuffle(&mut all);
    // Every op is among the first.
    let mut seen = std::collections::HashSet::new();
    all.sort_by_cached_key(|(row, _)| !seen.insert(row.name));
    all
}

#[test]
fn every_op_is_within_its_bound_of_its_reference() {
    for (name, seed) in fercuda_trials::seeds(env!("CARGO_MANIFEST_DIR"), WORK) {
        println!("{name}: {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let budget = Budget::begin(WORK);
        let mut compared: BTreeMap<&str, Compared> = BTreeMap::new();
        let (mut done, mut all) = (0, Vec::new());
        while budget.has_left(done) {
            if all.is_empty() {
                all = pairs(&mut random);
                all.reverse();
            }
            let Some((row, dtype)) = all.pop() else { break };
            check(
                &mut random,
                row,
                dtype,
                compared.entry(row.name).or_default(),
            );
            done += 1;
        }
        println!("{done} plans of {} ops", compared.len());
        // An infinite bound holds for anything. Some plans have no other, as one of the standard
        // deviations of single elements.
        for row in tried() {
            let Some(Compared { plans, bounded, .. }) = compared.get(row.name) else {
                panic!("{} was not tried", row.name)
            };
            let is_tested = *plans < 20 || bounded * 2 > *plans;
            assert!(is_tested, "{}: {bounded} of {plans} have a bound", row.name);
        }
    }
}

const PRODUCTS: Work = Work {
    name: "op-products",
    least: 30,
    ci_seconds: 3,
    soak: 5_000,
};

#[test]
fn products_are_within_their_bounds_by_each_kernel() {
    for (name, seed) in fercuda_trials::seeds(env!("CARGO_MANIFEST_DIR"), PRODUCTS) {
        println!("{name}: {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let budget = Budget::begin(PRODUCTS);
        let rows = registry::rows().filter(|row| row.family == OpFamily::Product);
        let rows: Vec<_> = rows.collect();
        let narrow = [Dtype::F16, Dtype::Bf16];
        let wide = [Dtype::F32, Dtype::F64, Dtype::I8];
        let (mut done, mut compared) = (0, Compared::default());
        while budget.has_left(done) {
            let row = rows[random.usize(..rows.len())];
            let dtype = match random.u32(..4) {
                0 => wide[random.usize(..wide.len())],
                _ => narrow[random.usize(..narrow.len())],
            };
            if row.types.has(dtype) {
                check(&mut random, row, dtype, &mut compared);
                done += 1;
            }
        }
        println!("{done} products by {:?}", compared.kernels);
        assert!(compared.bounded * 2 > compared.plans);
    }
}

/// Convolutions that are products of matrices, some of more images than are multiplied at once.
#[test]
fn convolutions_with_many_products_are_within_their_bounds() {
    let seed = fercuda_trials::seed();
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut compared = Compared::default();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F64] {
        let groups = random.u64(1..3);
        let (stride, padding) = (random.i64(1..3), random.i64(0..2));
        let (inputs, outputs) = (random.u64(8..14), random.u64(8..20));
        let side = stride.unsigned_abs() * 20 + random.u64(3..8);
        let op = OpDescriptor::new("conv").unwrap();
        let op = op.number("groups", groups as f64).unwrap();
        let op = op.list("stride", &[stride; 2]).unwrap();
        let op = op.list("padding", &[padding; 2]).unwrap();
        let images = random.u64(2..4);
        let shapes = [
            vec![images, inputs * groups, side, side],
            vec![outputs * groups, inputs, 3, 3],
            vec![outputs * groups],
        ];
        let given = if random.bool() { 2 } else { 3 };
        let operands = shapes[..given].iter();
        let operands = operands.map(|shape| Operand::random(&mut random, dtype, shape, true));
        let operands = operands.collect();
        check_drawn(&mut random, (op, operands), &mut compared);
    }
    assert_eq!(compared.plans, compared.bounded);
}
