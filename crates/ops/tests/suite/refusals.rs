//! Bad operands and parameters of gradients, norms, losses of linear layers, and linear algebra.

use fercuda_kernels::linear_loss::{self, LinearLoss};
use fercuda_kernels::loss::{ClassLoss, LossReduction};
use fercuda_kernels::maths::{self, ElementFunction};
use fercuda_kernels::norm::{self, NormSpec, NormStatistics};
use fercuda_kernels::pairs::{self, DistanceNorm};
use fercuda_kernels::window::{self, PoolKind};
use fercuda_kernels::{KernelError, NativeProgram};
use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::Bench;
use crate::views::UNLOADED;

fn of(dtype: Dtype, shape: &[u64]) -> Layout {
    Layout::contiguous(dtype, shape).unwrap()
}

fn f32(shape: &[u64]) -> Layout {
    of(Dtype::F32, shape)
}

fn i64(shape: &[u64]) -> Layout {
    of(Dtype::I64, shape)
}

fn op(name: &str) -> OpDescriptor {
    OpDescriptor::new(name).unwrap()
}

fn number(name: &str, parameter: &str, value: f64) -> OpDescriptor {
    op(name).number(parameter, value).unwrap()
}

fn list(op: OpDescriptor, name: &str, values: &[i64]) -> OpDescriptor {
    op.list(name, values).unwrap()
}

#[test]
fn misfits_of_gradients_and_algebra_say_what_to_try() {
    let bench = Bench::shared();
    let (x, image) = (f32(&[4, 4]), f32(&[1, 2, 4]));
    let pooled = list(op("avg_pool_backward"), "size", &[4]);
    let pooled = list(pooled, "kernel", &[2]);
    let cases: Vec<(OpDescriptor, Vec<Layout>, &str)> = vec![
        (op("layer_norm_backward"), vec![f32(&[4]), x], "shape of x"),
        (op("rms_norm_backward"), vec![x, x, x], "4 channels"),
        (number("group_norm", "groups", 3.0), vec![image], "divides"),
        (
            number("group_norm", "eps", f64::NAN),
            vec![image],
            "a number of f32",
        ),
        (op("batch_norm"), vec![f32(&[4])], "batch, channels"),
        (op("batch_norm_inference"), vec![image, x, x], "2 channels"),
        (op("sparsemax"), vec![f32(&[])], "at least one dimension"),
        (
            op("max_pool_backward"),
            vec![image, i64(&[1, 2, 4])],
            "`size`",
        ),
        (pooled.clone(), vec![image], "the pool's result"),
        (op("interpolate_backward"), vec![x], "1 to 3 dimensions"),
        (op("gather_backward"), vec![x, i64(&[4, 4])], "`shape`"),
        (
            op("index_select_backward"),
            vec![x, i64(&[3])],
            "each row of g",
        ),
        (
            op("grid_sample_backward"),
            vec![f32(&[1, 2, 3, 3]), f32(&[1, 2, 4, 4]), f32(&[1, 3, 4, 2])],
            "the result's shape",
        ),
        (
            op("cross_entropy"),
            vec![x, i64(&[4]), f32(&[3])],
            "one for each class",
        ),
        (
            op("linear_cross_entropy"),
            vec![x, f32(&[9, 3]), i64(&[4])],
            "[classes, inputs]",
        ),
        (
            op("linear_cross_entropy"),
            vec![x, x, i64(&[3])],
            "the last dimension",
        ),
        (
            number("linear_cross_entropy", "chunk", -1.0),
            vec![x, x, i64(&[4])],
            "or 0",
        ),
        (
            op("linear_cross_entropy_backward"),
            vec![f32(&[]), of(Dtype::F64, &[4]), x, x, i64(&[4])],
            "second result",
        ),
        (
            op("linear_cross_entropy"),
            vec![of(Dtype::F8E4m3, &[4, 4]); 3],
            "cast",
        ),
        (op("pow"), vec![x, f32(&[3])], "equal or 1"),
        (op("nextafter"), vec![of(Dtype::F8E4m3, &[4]); 2], "16 bits"),
        (
            op("lstsq"),
            vec![f32(&[3, 4]), f32(&[3, 1])],
            "as many rows as columns",
        ),
        (op("cholesky_solve"), vec![f32(&[3, 1]), x], "rows of both"),
        (
            number("matrix_power", "power", -1.0),
            vec![x],
            "the inverse first",
        ),
        (number("pinv", "rtol", 2.0), vec![x], "below 1"),
        (op("cross"), vec![x, x], "3 elements"),
        (op("kron"), vec![x, f32(&[4])], "as many dimensions"),
        (number("cdist", "p", 0.0), vec![x, x], "infinity"),
        (op("trace"), vec![f32(&[4])], "two dimensions"),
        (
            number("multinomial_different", "samples", 5.0),
            vec![x],
            "at most as many",
        ),
    ];
    for (op, operands, wanted) in cases {
        let plan = OpPlan::new(&bench.device, &op, &operands, &[], KernelPolicy::Auto);
        let shown = plan.map(|_| ()).unwrap_err().to_string();
        assert!(
            shown.contains(wanted) && shown.contains("try: "),
            "{shown}\nwanted: {wanted}"
        );
    }
}

fn assert_refused(result: Result<(), KernelError>, wanted: &str) {
    let shown = result.unwrap_err().to_string();
    assert!(shown.contains(wanted), "{shown}\nwanted: {wanted}");
}

#[test]
fn views_that_do_not_go_together_are_refused() {
    let inputs = [f32(&[4, 4]), i64(&[4]), f32(&[3])];
    let mut p = NativeProgram::new(&inputs, &[f32(&[4, 4]), f32(&[2])], UNLOADED);
    let [x, index, few] = [0, 1, 2].map(|at| p.input(at));
    let [to, small] = [0, 1].map(|at| p.output(at));
    let spec = NormSpec {
        groups: vec![0],
        channels: vec![1],
        is_centred: true,
        is_scaled: true,
        eps: 0.0,
    };
    let computed = NormStatistics::Computed;
    let normed = norm::normalise(&mut p, &spec, [&x, &to], [Some(&few), None], computed);
    assert_refused(normed, "of 4 channels");
    let normed = norm::normalise(&mut p, &spec, [&x, &small], [None; 2], computed);
    assert_refused(normed, "the result");
    let beyond = NormSpec {
        groups: vec![2],
        ..spec.clone()
    };
    let normed = norm::normalise(&mut p, &beyond, [&x, &to], [None; 2], computed);
    assert_refused(normed, "of 2 dimensions");
    assert_refused(norm::sparsemax(&mut p, &x, &small), "the result");

    let pooled = window::pool_backward(&mut p, PoolKind::MeanOfAll, [&x, &to], None, None);
    assert_refused(pooled, "five dimensions");

    let loss = ClassLoss {
        is_logits: true,
        smoothing: 0.0,
        z_weight: 0.0,
        ignored: 0,
        reduction: LossReduction::Each,
    };
    let all = LinearLoss {
        x: &x,
        weight: &x,
        bias: Some(&few),
        index: &index,
        width: 0,
        loss,
    };
    assert_refused(
        linear_loss::losses(&mut p, &all, &small, &small),
        "the bias",
    );
    let all = LinearLoss { bias: None, ..all };
    assert_refused(
        linear_loss::losses(&mut p, &all, &small, &small),
        "losses of",
    );

    let sine = ElementFunction::Cuda("sin");
    assert_refused(maths::apply(&mut p, sine, &[], &to), "no operand");
    assert_refused(maths::apply(&mut p, sine, &[&x; 3], &to), "more than two");
    assert_refused(pairs::cross(&mut p, [&x, &x, &to]), "of 4 elements");
    assert_refused(pairs::row_sums(&mut p, &x, &small), "sums");
    let apart = pairs::distances(&mut p, DistanceNorm::Sum, [&index, &x, &to]);
    assert_refused(apart, "i64");
}
