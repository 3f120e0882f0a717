//! Scans, sorting and selection: random operands, and rows of many lengths.

use fercuda_jit::reference::Near;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpFamily, OpPlan, OpRow, oracle, registry};
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
    let mut own = shape(random, usize::from(row.has("axis")));
    if row.name == "searchsorted" {
        return search_operands(random, op, dtype, own);
    }
    let axis = if row.has("axis") {
        random.usize(..own.len())
    } else {
        0
    };
    if matches!(row.name, "kth_value" | "median") {
        own[axis] = own[axis].max(1);
    }
    let len = own.get(axis).copied().unwrap_or(1);
    let op = if row.has("axis") {
        op.axes(&[axis]).unwrap()
    } else {
        op
    };
    let op = match row.name {
        "topk" => op.number("k", random.u64(..=len) as f64).unwrap(),
        "kth_value" => op.number("k", random.u64(1..=len) as f64).unwrap(),
        "bincount" | "histogram" => random_bins(random, op),
        _ => op,
    };
    let op = random_choices(random, op);
    let x = elements(random, row, dtype, &own);
    let mut operands = vec![x];
    if row.name == "masked_select" {
        operands.push(Operand::random(random, Dtype::Bool, &own, false));
    }
    (op, operands)
}

fn random_choices(random: &mut fastrand::Rng, op: OpDescriptor) -> OpDescriptor {
    let choices = op.row().choices.iter();
    choices.fold(op, |op, (name, values)| {
        op.choice(name, values[random.usize(..values.len())])
            .unwrap()
    })
}

/// A few bins, or more than a block has in shared memory.
fn random_bins(random: &mut fastrand::Rng, op: OpDescriptor) -> OpDescriptor {
    let bins = if random.bool() {
        random.u32(1..12)
    } else {
        5000
    };
    let op = op.number("bins", bins.into()).unwrap();
    if op.name() == "bincount" {
        return op;
    }
    let low = f64::from(random.i32(-5..3)) / 2.0;
    let high = low + f64::from(random.u32(1..20)) / 4.0;
    let op = op.number("low", low).unwrap();
    op.number("high", high).unwrap()
}

/// Sorted rows, and values to find in them.
fn search_operands(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
    own: Vec<u64>,
) -> (OpDescriptor, Vec<Operand>) {
    let len = random.u64(..20) as usize;
    let mut of_sorted = own.clone();
    match of_sorted.last_mut() {
        Some(last) if random.bool() => *last = len as u64,
        _ => of_sorted = vec![len as u64],
    }
    let mut sorted = elements(random, op.row(), dtype, &of_sorted);
    for row in sorted.bits.chunks_mut(len.max(1)) {
        row.sort_by(|a, b| {
            let (a, b) = (dtype.value(*a), dtype.value(*b));
            let nan = a.is_nan().cmp(&b.is_nan());
            a.partial_cmp(&b).unwrap_or(nan)
        });
    }
    let mut values = elements(random, op.row(), dtype, &own);
    for bits in &mut values.bits {
        if !sorted.bits.is_empty() && random.bool() {
            *bits = sorted.bits[random.usize(..sorted.bits.len())];
        }
    }
    (random_choices(random, op), vec![sorted, values])
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
pub(crate) fn check(random: &mut fastrand::Rng, op: &OpDescriptor, operands: &[Operand]) {
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
        // Each type is compiled apart: some lengths a run, others in the next.
        let mut lengths = lengths(&mut random);
        random.shuffle(&mut lengths);
        for len in lengths.into_iter().take(8) {
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
fn scans_of_many_rows_go_over_a_row_chunk_after_chunk() {
    let mut random = fercuda_trials::rng();
    for row in order_rows("cuda.scan") {
        let dtypes: Vec<Dtype> = row.dtypes().collect();
        let dtype = dtypes[random.usize(..dtypes.len())];
        // With whole chunks, a part of one, and rows that do not begin at multiples of 16 bytes.
        let lengths = [4096, 2056, random.u64(2049..2600)];
        let len = lengths[random.usize(..3)];
        let op = OpDescriptor::new(row.name).unwrap().axes(&[1]).unwrap();
        let x = elements(&mut random, row, dtype, &[256, len]);
        check(&mut random, &op, &[x]);
    }
}

#[test]
fn transposing_copies_move_sixteen_bytes_at_once() {
    let mut random = fercuda_trials::rng();
    for dtype in [Dtype::F16, Dtype::F32, Dtype::I8, Dtype::F64] {
        for _ in 0..6 {
            let near = 16 / dtype.bytes();
            let mut side = || near * random.u64(1..=200 / near);
            let own = [2, side(), side()];
            let orders = [[0, 2, 1], [2, 0, 1], [1, 2, 0], [2, 1, 0]];
            let order = orders[random.usize(..orders.len())];
            let op = OpDescriptor::new("permute").unwrap().axes(&order).unwrap();
            let layout = Layout::contiguous(dtype, &own).unwrap();
            let mask = u64::MAX >> (64 - 8 * dtype.bytes());
            let bits = (0..layout.len()).map(|_| match dtype.is_float() {
                true => dtype.encode(random.f64()),
                false => random.u64(..) & mask,
            });
            let bits = bits.collect();
            let x = Operand::of(&mut random, layout, bits);
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
fn sorts_of_rows_of_all_lengths() {
    let mut random = fercuda_trials::rng();
    let dtypes = Dtype::ALL;
    let mut ops: Vec<_> = order_rows("cuda.sort")
        .filter(|row| row.has("axis"))
        .collect();
    for len in lengths(&mut random) {
        random.shuffle(&mut ops);
        for row in &ops[..2] {
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
            let op = match row.name {
                "topk" | "kth_value" => op.number("k", random.u64(1..=len) as f64).unwrap(),
                _ => op,
            };
            let op = random_choices(&mut random, op);
            let x = elements(&mut random, row, dtype, &own);
            check(&mut random, &op, &[x]);
        }
    }
}

#[test]
fn long_rows_of_every_type_are_sorted() {
    let mut random = fercuda_trials::rng();
    for dtype in Dtype::ALL {
        let op = random_choices(&mut random, OpDescriptor::new("sort").unwrap());
        let x = elements(&mut random, op.row(), dtype, &[2, 4500]);
        check(&mut random, &op, &[x]);
    }
}

#[test]
fn sorted_zeros_and_nan_keep_their_bits_and_their_order() {
    let mut random = fercuda_trials::rng();
    let special = [
        0.0f32,
        -0.0,
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1.0,
    ];
    for len in [40, 3000] {
        let bits = (0..len).map(|_| special[random.usize(..special.len())].to_bits().into());
        let bits: Vec<u64> = bits.collect();
        let own = Layout::contiguous(Dtype::F32, &[len]).unwrap();
        let op = OpDescriptor::new("sort").unwrap();
        let x = Operand::of(&mut random, own, bits.clone());
        check(&mut random, &op, std::slice::from_ref(&x));
        let bench = Bench::shared();
        let plan = OpPlan::new(&bench.device, &op, &[own], &[], KernelPolicy::Auto).unwrap();
        let got = bench.run(&plan, &[x], &[0, 0]).unwrap();
        let moved: Vec<u64> = got[1].iter().map(|at| bits[*at as usize]).collect();
        assert_eq!(got[0], moved);
    }
}

/// The message of an op that is refused.
fn refusal(op: &OpDescriptor, operands: &[Layout]) -> String {
    let device = &Bench::shared().device;
    let plan = OpPlan::new(device, op, operands, &[], KernelPolicy::Auto);
    plan.unwrap_err().to_string()
}

#[test]
fn topk_of_none_and_of_all_and_of_too_many() {
    let mut random = fercuda_trials::rng();
    let of = |k: f64| OpDescriptor::new("topk").unwrap().number("k", k).unwrap();
    for len in [5, 2048, 2500] {
        for k in [0, 1, len] {
            let op = of(k as f64);
            let x = elements(&mut random, op.row(), Dtype::F32, &[2, len]);
            check(&mut random, &op, &[x]);
        }
    }
    let x = Layout::contiguous(Dtype::F32, &[2, 5]).unwrap();
    let error = refusal(&of(6.0), &[x]);
    assert!(error.contains("k is 6, the axis has 5 elements"), "{error}");
    assert!(error.contains("try: 0 to 5"), "{error}");
    assert!(refusal(&of(1.5), &[x]).contains("a whole number"));
    let kth = OpDescriptor::new("kth_value").unwrap();
    assert!(refusal(&kth.number("k", 0.0).unwrap(), &[x]).contains("try: 1 to 5"));
    let empty = Layout::contiguous(Dtype::F32, &[2, 0]).unwrap();
    let error = refusal(&OpDescriptor::new("median").unwrap(), &[empty]);
    assert!(error.contains("empty axis"), "{error}");
}

#[test]
fn search_of_unsorted_rows_stays_inside() {
    let mut random = fercuda_trials::rng();
    let op = OpDescriptor::new("searchsorted").unwrap();
    let rows = elements(&mut random, op.row(), Dtype::F32, &[3, 50]);
    let values = elements(&mut random, op.row(), Dtype::F32, &[3, 20]);
    let bench = Bench::shared();
    let layouts = [rows.layout, values.layout];
    let plan = OpPlan::new(&bench.device, &op, &layouts, &[], KernelPolicy::Auto).unwrap();
    let got = bench.run(&plan, &[rows, values], &[0]).unwrap();
    assert!(got[0].iter().all(|place| *place <= 50));
    let error = refusal(
        &op,
        &[layouts[0], Layout::contiguous(Dtype::F32, &[2, 3]).unwrap()],
    );
    assert!(error.contains("not the sorted rows"), "{error}");
}

#[test]
fn axis_of_no_dimensions_is_an_error() {
    for row in registry::rows().filter(|row| row.family == OpFamily::Order && row.has("axis")) {
        let op = OpDescriptor::new(row.name).unwrap();
        let error = refusal(&op, &[Layout::contiguous(Dtype::F32, &[]).unwrap()]);
        assert!(error.contains("at least one dimension"), "{error}");
    }
}

#[test]
fn selections_of_all_lengths() {
    let mut random = fercuda_trials::rng();
    let dtypes = Dtype::ALL;
    for len in lengths(&mut random) {
        for row in order_rows("cuda.select") {
            let all: Vec<Dtype> = dtypes.into_iter().filter(|it| row.types.has(*it)).collect();
            let dtype = all[random.usize(..all.len())];
            let own = if random.bool() {
                vec![len]
            } else {
                vec![2, len]
            };
            let op = OpDescriptor::new(row.name).unwrap();
            let op = match row.has("axis") || row.numbers.is_empty() {
                true => op,
                false => random_bins(&mut random, op),
            };
            let mut operands = vec![elements(&mut random, row, dtype, &own)];
            if row.name == "masked_select" {
                operands.push(Operand::random(&mut random, Dtype::Bool, &own, false));
            }
            check(&mut random, &op, &operands);
        }
    }
}

#[test]
fn selections_of_none_of_all_and_of_one() {
    let mut random = fercuda_trials::rng();
    for own in [vec![], vec![0], vec![1], vec![3, 700]] {
        let layout = Layout::contiguous(Dtype::F32, &own).unwrap();
        for value in [0.0f32, -0.0, 1.0, f32::NAN] {
            let bits = vec![u64::from(value.to_bits()); layout.len() as usize];
            let x = || Operand {
                layout,
                bits: bits.clone(),
                first: 0,
            };
            for name in ["nonzero", "unique"] {
                let op = OpDescriptor::new(name).unwrap();
                check(&mut random, &op, &[x()]);
            }
            let op = OpDescriptor::new("masked_select").unwrap();
            let mask = Operand {
                layout: Layout::contiguous(Dtype::Bool, &own).unwrap(),
                bits: vec![u64::from(value > 0.0); layout.len() as usize],
                first: 0,
            };
            check(&mut random, &op, &[x(), mask]);
        }
    }
}

#[test]
fn ends_of_a_histogram_are_in_it_and_what_is_beyond_is_not() {
    let mut random = fercuda_trials::rng();
    let values = [
        0.0,
        0.25,
        0.5,
        1.0,
        1.001,
        -0.001,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let bits = values.map(|value| Dtype::F64.encode(value)).to_vec();
    let own = Layout::contiguous(Dtype::F64, &[values.len() as u64]).unwrap();
    let op = OpDescriptor::new("histogram")
        .unwrap()
        .number("bins", 4.0)
        .unwrap();
    let x = || Operand {
        layout: own,
        bits: bits.clone(),
        first: 0,
    };
    check(&mut random, &op, &[x()]);
    let bench = Bench::shared();
    let plan = OpPlan::new(&bench.device, &op, &[own], &[], KernelPolicy::Auto).unwrap();
    assert_eq!(bench.run(&plan, &[x()], &[0]).unwrap()[0], [1, 1, 1, 1]);
    let error = refusal(&op.clone().number("high", -1.0).unwrap(), &[own]);
    assert!(error.contains("`low` below `high`"), "{error}");
    let error = refusal(&op.number("bins", 0.0).unwrap(), &[own]);
    assert!(error.contains("1 or more"), "{error}");
}

/// More rows than blocks, so that a block goes over several, and rows for a thread each.
#[test]
fn many_rows() {
    let mut random = fercuda_trials::rng();
    for row in registry::rows().filter(|row| row.family == OpFamily::Order && row.has("axis")) {
        let op = OpDescriptor::new(row.name).unwrap();
        for (dtype, own, axis) in [(Dtype::I16, [4500, 3], 1), (Dtype::F32, [3, 4500], 0)] {
            let dtype = if row.types.has(dtype) {
                dtype
            } else {
                Dtype::F64
            };
            let x = elements(&mut random, row, dtype, &own);
            check(&mut random, &op.clone().axes(&[axis]).unwrap(), &[x]);
        }
    }
    let op = OpDescriptor::new("cumsum").unwrap();
    let x = elements(&mut random, op.row(), Dtype::F32, &[4300, 70]);
    check(&mut random, &op, &[x]);
}

/// More chunks than one thread sums the counts of.
#[test]
fn row_of_many_chunks() {
    let mut random = fercuda_trials::rng();
    for name in ["cumsum", "cummax", "sort", "unique", "nonzero"] {
        let op = OpDescriptor::new(name).unwrap();
        let x = elements(&mut random, op.row(), Dtype::F16, &[90_000]);
        check(&mut random, &op, &[x]);
    }
}

/// Plans for more elements than 32 bits count, which no test has the memory to run.
#[test]
fn rows_that_need_wide_indices_are_planned() {
    let device = &Bench::shared().device;
    for name in [
        "cumsum", "cummin", "sort", "topk", "median", "unique", "nonzero", "bincount",
    ] {
        for dtype in [Dtype::U8, Dtype::U64] {
            let op = OpDescriptor::new(name).unwrap();
            let x = Layout::contiguous(dtype, &[1 << 33]).unwrap();
            let plan = OpPlan::new(device, &op, &[x], &[], KernelPolicy::Auto).unwrap();
            assert!(plan.sku().launches > 0, "{}", plan.sku());
        }
    }
}
