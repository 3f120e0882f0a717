//! Losses by index, updates, quantisation, segments and the others: views, parameters and memory.

use fercuda_cuda::{CaptureMode, DeviceBuffer};
use fercuda_jit::BoundArg;
use fercuda_kernels::ctc::CtcViews;
use fercuda_kernels::loss::{ClassLoss, LossReduction};
use fercuda_kernels::optimise::{UpdateNumbers, UpdateRule, UpdateViews};
use fercuda_kernels::quantise::QuantisedRange;
use fercuda_kernels::random::RandomSeed;
use fercuda_kernels::sample::{GridSampling, OutsidePlaces};
use fercuda_kernels::segment::{RowBags, SegmentReduction};
use fercuda_kernels::sparse::CompressedRows;
use fercuda_kernels::window::SlidingWindow;
use fercuda_kernels::{
    KernelError, MemoryView, NativeProgram, boxes, ctc, draw, loss, optimise, patch, quantise,
    sample, segment, sparse,
};
use fercuda_ops::{KernelPolicy, OpDescriptor, OpError, OpPlan, oracle};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, ONE, Operand};
use crate::views::UNLOADED;

fn of(dtype: Dtype, shape: &[u64]) -> Layout {
    Layout::contiguous(dtype, shape).unwrap()
}

fn op(name: &str) -> OpDescriptor {
    OpDescriptor::new(name).unwrap()
}

fn plan(op: &OpDescriptor, operands: &[Layout]) -> Result<OpPlan, OpError> {
    let device = &Bench::shared().device;
    OpPlan::new(device, op, operands, &[], KernelPolicy::Auto)
}

fn assert_refused(result: Result<(), KernelError>, wanted: &str) {
    let shown = result.unwrap_err().to_string();
    assert!(shown.contains(wanted), "{shown}\nwanted: {wanted}");
}

/// A program with a large view and a small one of floats, and of indices.
fn views() -> (NativeProgram, [MemoryView; 4]) {
    let all = [
        of(Dtype::F32, &[64, 64]),
        of(Dtype::I64, &[64]),
        of(Dtype::I64, &[2]),
    ];
    let p = NativeProgram::new(&all, &[of(Dtype::F32, &[1, 1])], UNLOADED);
    let views = [p.input(0), p.input(1), p.input(2), p.output(0)];
    (p, views)
}

#[test]
fn views_of_other_sizes_are_refused_by_the_kernels_of_indices() {
    let (mut p, [x, index, few, small]) = views();
    let of_classes = ClassLoss {
        is_logits: true,
        smoothing: 0.0,
        z_weight: 0.0,
        ignored: -1,
        reduction: LossReduction::Each,
    };
    let losses = loss::of_classes(&mut p, &of_classes, [&x, &few, &small], None);
    assert_refused(losses, "the index is [2]");
    let losses = loss::of_classes(&mut p, &of_classes, [&x, &index, &small], None);
    assert_refused(losses, "the losses is f32[1, 1]");
    let gradients = loss::of_classes_backward(&mut p, &of_classes, [&index, &x, &index, &x], None);
    assert_refused(gradients, "the gradient is i64[64]");

    let sum = SegmentReduction::Sum;
    assert_refused(
        segment::reduce(&mut p, [&x, &few, &small], sum),
        "to f32[1, 1]",
    );
    let bags = RowBags {
        index,
        offsets: few,
        weights: None,
        reduction: sum,
    };
    assert_refused(segment::bags(&mut p, &bags, &x, &small), "by bags");
    assert_refused(segment::bags(&mut p, &bags, &x, &x), "offsets i64[2] of 64");
    assert_refused(
        segment::rows_backward(&mut p, &few, &x, &x),
        "f32[64, 64] to",
    );

    let matrix = CompressedRows {
        values: x,
        index,
        offsets: few,
    };
    assert_refused(sparse::multiply(&mut p, &matrix, &x, &x), "of 64 rows");
    assert_refused(
        sparse::sampled_product(&mut p, &matrix, [&x, &x, &small]),
        "of 64 rows",
    );

    let of_samples = CtcViews {
        x,
        labels: x,
        lengths: few,
        label_lengths: few,
        to: small,
    };
    assert_refused(ctc::losses(&mut p, &of_samples, 0), "f32[64, 64] by");
    let seed = RandomSeed { seed: 0, stream: 0 };
    assert_refused(
        draw::permutation(&mut p, &small, seed),
        "a permutation of f32",
    );
    assert_refused(
        draw::places(&mut p, &x, &few, seed),
        "f32[64, 64] to i64[2]",
    );
    let kept = boxes::suppress(&mut p, [&x, &index], [&index, &few], 0.5);
    assert_refused(kept, "the boxes is f32[64, 64]");
}

#[test]
fn views_of_other_sizes_are_refused_by_the_kernels_of_elements() {
    let (mut p, [x, index, few, small]) = views();
    let mut update = UpdateViews {
        x,
        gradient: small,
        states: vec![],
        rate: small,
        step: None,
        to: x,
        states_to: vec![],
    };
    let numbers = UpdateNumbers::default();
    let sgd = optimise::update(&mut p, UpdateRule::Sgd, &update, numbers);
    assert_refused(sgd, "the gradient is f32[1, 1]");
    update.gradient = x;
    let adam = optimise::update(&mut p, UpdateRule::Adam, &update, numbers);
    assert_refused(adam, "[0, 0] states");
    let sgd = optimise::update(&mut p, UpdateRule::Sgd, &update, numbers);
    assert_refused(sgd, "the rate is f32[1, 1]");
    assert_refused(
        optimise::norm(&mut p, &[x], &small),
        "the norm is f32[1, 1]",
    );
    assert_refused(
        optimise::unscale(&mut p, [&x, &small, &small, &small]),
        "the result is",
    );

    let range = QuantisedRange {
        low: 0.0,
        high: 1.0,
    };
    let scales = quantise::scales(&mut p, &x, 1, &small, None, range);
    assert_refused(scales, "the scales is f32[1, 1]");
    let numbers = quantise::quantise(&mut p, [&x, &x, &x], None, range);
    assert_refused(numbers, "f32 to f32");
    let back = quantise::dequantise(&mut p, [&x, &small, &x], Some(&index));
    assert_refused(back, "the scales is f32[1, 1]");
    assert_refused(quantise::pack(&mut p, &index, &small), "packed to");
    assert_refused(quantise::unpack(&mut p, &few, &index, true), "unpacked to");

    let window = SlidingWindow {
        kernel: [1; 3],
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    };
    let pooled = patch::power_pool(&mut p, &x, &small, &window, 2.0);
    assert_refused(pooled, "not of five dimensions");
    let columns = patch::to_columns(&mut p, &x, &small, &window, [1; 3]);
    assert_refused(columns, "not of five dimensions");
    let sampling = GridSampling {
        is_linear: true,
        are_corners: true,
        outside: OutsidePlaces::Zeros,
    };
    assert_refused(
        sample::grid(&mut p, sampling, [&x, &x, &small]),
        "4 dimensions",
    );
    assert_refused(sample::affine(&mut p, &x, &small, true), "3 dimensions");
    let aligned = sample::boxes(&mut p, [&x, &x, &index, &small], 1.0, 1);
    assert_refused(aligned, "4 dimensions");
}

#[test]
fn numbers_that_an_op_cannot_have_are_refused_with_what_to_try() {
    let x = of(Dtype::F32, &[4, 4]);
    let index = of(Dtype::I64, &[4]);
    let cases = [
        (
            op("cross_entropy").number("smoothing", 2.0),
            vec![x, index],
            "a number from 0 to 1",
        ),
        (op("quantise").number("bits", 9.0), vec![x], "2 to 8"),
        (op("quantise_f8").to(Dtype::I8), vec![x], "f8e4m3, f8e5m2"),
        (
            op("nms").number("threshold", -1.0),
            vec![x, of(Dtype::F32, &[4])],
            "from 0 to 1",
        ),
        (
            op("multinomial").number("samples", -1.0),
            vec![x],
            "0 or more",
        ),
        (
            op("embedding_backward").number("rows", 0.5),
            vec![x, index],
            "a whole number",
        ),
        (
            op("truncated_normal")
                .shape(&[4])
                .unwrap()
                .number("low", 3.0),
            vec![],
            "low, then high",
        ),
        (
            op("lp_pool")
                .list("kernel", &[1])
                .unwrap()
                .number("power", 0.0),
            vec![of(Dtype::F32, &[1, 1, 4])],
            "1/16 to 64",
        ),
        (
            op("adamw").number("beta1", f64::NAN),
            vec![x, x, x, x, of(Dtype::F32, &[]), of(Dtype::I32, &[])],
            "numbers of f32",
        ),
        (
            op("csr_matvec").checked(),
            vec![of(Dtype::F32, &[4]), index, index, x],
            "[columns]",
        ),
    ];
    for (op, operands, wanted) in cases {
        let shown = plan(&op.unwrap(), &operands).unwrap_err().to_string();
        assert!(
            shown.contains(wanted) && shown.contains("try: "),
            "{shown}\nwanted: {wanted}"
        );
    }
    let half = of(Dtype::F16, &[4]);
    let state = plan(
        &op("sgd_momentum"),
        &[half, half, half, of(Dtype::F32, &[])],
    );
    let shown = state.unwrap_err().to_string();
    assert!(shown.contains("a state is f16[4], not f32[4]"), "{shown}");
}

#[test]
fn captured_steps_of_an_optimiser_in_place_read_rate_and_step_from_memory() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let upload = |values: &[f32]| DeviceBuffer::from_host(values, &bench.stream).unwrap();
    let vector = of(Dtype::F32, &[100]);
    let operands = [
        vector,
        vector,
        vector,
        vector,
        of(Dtype::F32, &[]),
        of(Dtype::I32, &[]),
    ];
    let adam = plan(&op("adamw"), &operands).unwrap();
    assert_eq!(adam.workspace_bytes(), 0);
    let values: Vec<f32> = (0..100).map(|n| n as f32 / 8.0 - 5.0).collect();
    let (x, g) = (upload(&values), upload(&values));
    let states = [upload(&[0.0; 100]), upload(&[0.0; 100])];
    let mut rate = upload(&[0.5]);
    let mut step = DeviceBuffer::from_host(&[1i32], &bench.stream).unwrap();
    let own = [&x, &states[0], &states[1]].map(BoundArg::of);
    let mut graph = {
        let all = [
            own[0],
            BoundArg::of(&g),
            own[1],
            own[2],
            BoundArg::of(&rate),
            BoundArg::of(&step),
        ];
        let capture = bench.stream.begin_capture(CaptureMode::Global).unwrap();
        adam.run(&bench.stream, &all, &own, None).unwrap();
        capture.end().unwrap().instantiate().unwrap()
    };
    graph.launch(&bench.stream).unwrap();
    let after = x.to_vec(&bench.stream).unwrap();
    // Of a first step the change is the gradient's sign, but for eps.
    for (after, before) in after.iter().zip(&values) {
        let sign = if *before == 0.0 { 0.0 } else { before.signum() };
        let wanted = before * (1.0 - 0.5 * 0.01) - 0.5 * sign;
        assert!((after - wanted).abs() < 1e-5, "{after} of {before}");
    }
    rate.copy_from_host(&[0.0], &bench.stream).unwrap();
    step.copy_from_host(&[2], &bench.stream).unwrap();
    graph.launch(&bench.stream).unwrap();
    assert_eq!(x.to_vec(&bench.stream).unwrap(), after);
    bench.assert_sound();
}

#[test]
fn checked_plans_report_columns_classes_and_offsets_outside() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let floats = |values: &[f32]| DeviceBuffer::from_host(values, &bench.stream).unwrap();
    let whole = |values: &[i64]| DeviceBuffer::from_host(values, &bench.stream).unwrap();
    let x = floats(&[1., 2., 3., 4.]);
    let run = |op: OpDescriptor, layouts: &[Layout], operands: &[BoundArg<'_>], want: &[f32]| {
        let plan = plan(&op.checked().unwrap(), layouts).unwrap();
        let size = plan.workspace_bytes() as usize;
        let workspace = DeviceBuffer::<u8>::zeroed(&bench.stream, size).unwrap();
        let workspace = BoundArg::of(&workspace);
        let y = floats(&vec![7.0; want.len()]);
        let outputs = [BoundArg::of(&y)];
        plan.run(&bench.stream, operands, &outputs, Some(workspace))
            .unwrap();
        assert_eq!(y.to_vec(&bench.stream).unwrap(), want);
        let checked = plan.check(&bench.stream, &workspace);
        checked.map_err(|error| error.to_string())
    };
    let layouts = [
        of(Dtype::F32, &[3]),
        of(Dtype::I64, &[3]),
        of(Dtype::I64, &[3]),
        of(Dtype::F32, &[4]),
    ];
    let (columns, offsets) = (whole(&[0, 9, 3]), whole(&[0, 2, 3]));
    let operands = [&x, &x].map(BoundArg::of);
    let operands = [
        operands[0],
        BoundArg::of(&columns),
        BoundArg::of(&offsets),
        operands[1],
    ];
    let shown = run(op("csr_matvec"), &layouts, &operands, &[1., 12.]).unwrap_err();
    assert!(shown.contains("csr_matvec: index 9"), "{shown}");

    let segments = whole(&[0, 3, 5, 4]);
    let operands = [BoundArg::of(&x), BoundArg::of(&segments)];
    let layouts = [of(Dtype::F32, &[4]), of(Dtype::I64, &[4])];
    let shown = run(op("segment_reduce"), &layouts, &operands, &[6., 0., 0.]).unwrap_err();
    assert!(shown.contains("segment_reduce: index 5"), "{shown}");

    let class = whole(&[-100, 4]);
    let operands = [BoundArg::of(&x), BoundArg::of(&class)];
    let layouts = [of(Dtype::F32, &[2, 2]), of(Dtype::I64, &[2])];
    let each = op("nll_loss").choice("reduce", "none").unwrap();
    let shown = run(each.clone(), &layouts, &operands, &[0., 0.]).unwrap_err();
    assert!(shown.contains("nll_loss: index 4, number 1"), "{shown}");
    // What is ignored is not outside.
    let class = whole(&[-100, 1]);
    let operands = [BoundArg::of(&x), BoundArg::of(&class)];
    run(each, &layouts, &operands, &[0., -4.]).unwrap();
    bench.assert_sound();
}

#[test]
fn permutations_have_each_place_once_and_truncated_numbers_are_inside() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let seed = fastrand::i64(..);
    println!("seed {seed}");
    let permutation = op("random_permutation").shape(&[5000]).unwrap();
    let permutation = plan(&permutation.list("seed", &[seed]).unwrap(), &[]).unwrap();
    let y = DeviceBuffer::<i64>::zeroed(&bench.stream, 5000).unwrap();
    let size = permutation.workspace_bytes() as usize;
    let workspace = DeviceBuffer::<u8>::zeroed(&bench.stream, size).unwrap();
    let workspace = Some(BoundArg::of(&workspace));
    permutation
        .run(&bench.stream, &[], &[BoundArg::of(&y)], workspace)
        .unwrap();
    let mut got = y.to_vec(&bench.stream).unwrap();
    assert!(got.iter().zip(0..).filter(|(got, at)| *got == at).count() < 20);
    got.sort_unstable();
    assert!(got.into_iter().eq(0..5000));
    let far = op("truncated_normal")
        .shape(&[4000])
        .unwrap()
        .list("seed", &[seed])
        .unwrap();
    let far = far
        .number("low", 3.0)
        .unwrap()
        .number("high", 1e30)
        .unwrap();
    let z = DeviceBuffer::<f32>::zeroed(&bench.stream, 4000).unwrap();
    plan(&far, &[])
        .unwrap()
        .run(&bench.stream, &[], &[BoundArg::of(&z)], None)
        .unwrap();
    let got = z.to_vec(&bench.stream).unwrap();
    assert!(got.iter().all(|it| (3.0..8.0).contains(it)));
    let mean = got.iter().sum::<f32>() / 4000.0;
    // The mean of what is above 3 is the density there by the chance: 3.283; six deviations.
    assert!(
        (mean - 3.283).abs() < 6.0 * 0.267 / 4000f32.sqrt(),
        "{mean}"
    );
    bench.assert_sound();
}

#[test]
fn many_tensors_are_updated_in_place_by_one_launch_for_eight() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let upload = |values: &[f32]| DeviceBuffer::from_host(values, &bench.stream).unwrap();
    let lengths: [u64; 9] = [1, 700, 3, 64, 5, 33, 2, 8, 17];
    let single = of(Dtype::F32, &[]);
    let mut layouts = vec![single];
    for len in lengths {
        layouts.extend([of(Dtype::F32, &[len]); 3]);
    }
    let momentum = plan(&op("multi_sgd_momentum"), &layouts).unwrap();
    assert_eq!(momentum.sku().launches, 2);
    let rate = upload(&[0.25]);
    let ones = |value: f32| lengths.map(|len| upload(&vec![value; len as usize]));
    let (x, g, v) = (ones(8.0), ones(2.0), ones(0.0));
    let mut operands = vec![BoundArg::of(&rate)];
    let mut outputs = Vec::new();
    for ((x, g), v) in x.iter().zip(&g).zip(&v) {
        operands.extend([x, g, v].map(BoundArg::of));
        outputs.extend([x, v].map(BoundArg::of));
    }
    momentum
        .run(&bench.stream, &operands, &outputs, None)
        .unwrap();
    for (x, v) in x.iter().zip(&v) {
        assert!(x.to_vec(&bench.stream).unwrap().iter().all(|x| *x == 7.5));
        assert!(v.to_vec(&bench.stream).unwrap().iter().all(|v| *v == 2.0));
    }
    // Another tensor's memory is refused.
    outputs.swap(0, 2);
    let refused = momentum.run(&bench.stream, &operands, &outputs, None);
    let shown = refused.unwrap_err().to_string();
    assert!(shown.contains("multi_sgd_momentum"), "{shown}");
    let shown = plan(&op("multi_sgd_momentum"), &layouts[..6])
        .unwrap_err()
        .to_string();
    assert!(
        shown.contains("the last 3 together 1 to 42 times"),
        "{shown}"
    );
    bench.assert_sound();
}

/// Bits of all results, of operands whose first elements are so far into their memory.
fn ran(plan: &OpPlan, operands: &[(Layout, &[f64])], first: u64) -> Vec<Vec<u64>> {
    let encoded = operands.iter().map(|(layout, values)| Operand {
        layout: *layout,
        bits: values.iter().map(|it| layout.dtype().encode(*it)).collect(),
        first,
    });
    let encoded: Vec<Operand> = encoded.collect();
    let firsts = vec![0; plan.outputs().len()];
    Bench::shared().run(plan, &encoded, &firsts).unwrap()
}

#[test]
fn asymmetric_numbers_have_a_scale_where_the_range_is_beyond_the_type() {
    let x = of(Dtype::F32, &[3]);
    let values = [-3e38, 1e38, 3e38];
    let plan = plan(&op("quantise_asymmetric"), &[x]).unwrap();
    let [numbers, scale, zero] = &ran(&plan, &[(x, &values)], 0)[..] else {
        panic!("three results");
    };
    let scale = Dtype::F32.value(scale[0]);
    assert!((scale / (6e38 / 255.0) - 1.0).abs() < 1e-6, "{scale}");
    let zero = zero[0] as i32;
    for (number, value) in numbers.iter().zip(values) {
        let near = (plan.outputs()[0].dtype().value(*number) - f64::from(zero)) * scale;
        assert!((near - value).abs() <= scale, "{near} for {value}");
    }
}

#[test]
fn products_promise_nothing_where_a_partial_sum_may_overflow() {
    let layouts = [of(Dtype::F32, &[1, 3]), of(Dtype::F32, &[3, 1])];
    let bits = |values: &[f64]| values.iter().map(|it| Dtype::F32.encode(*it)).collect();
    let operands: [Vec<u64>; 2] = [bits(&[3.4e38, 3.4e38, -3.4e38]), bits(&[1.0; 3])];
    let near = oracle::evaluate(&op("matmul"), &layouts, &operands).unwrap();
    assert_eq!(near[0][0].error, f64::INFINITY);
    let operands: [Vec<u64>; 2] = [bits(&[3.0, 3.5, -3.5]), bits(&[1.0; 3])];
    let near = oracle::evaluate(&op("matmul"), &layouts, &operands).unwrap();
    assert!(near[0][0].error < 1e-4);
}

#[test]
fn a_product_of_one_row_has_equal_bits_at_any_alignment() {
    let mut random = fercuda_trials::rng();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let depth = random.u64(100..3000);
        // Rows begin at multiples of 16 bytes from the first one.
        let apart = depth.next_multiple_of(8) as i64;
        let x = of(dtype, &[1, depth]);
        let weight = Layout::strided(dtype, &[3, depth], &[apart, 1]).unwrap();
        let mut draw = |count| -> Vec<f64> { (0..count).map(|_| random.f64() - 0.5).collect() };
        let values = [draw(depth), draw(3 * depth)];
        let device = &Bench::shared().device;
        let force = KernelPolicy::Force("cuda.gemv");
        let plan = OpPlan::new(device, &op("linear"), &[x, weight], &[], force).unwrap();
        let operands = [(x, &values[0][..]), (weight, &values[1][..])];
        let aligned = ran(&plan, &operands, 0);
        assert_eq!(
            aligned,
            ran(&plan, &operands, dtype.bytes()),
            "{dtype} of {depth}"
        );
    }
}
