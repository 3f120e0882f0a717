//! Plans: the choice of a kernel, bad input, memory.

use std::path::Path;

use fercuda_cache::ProgramCache;
use fercuda_cuda::{CaptureMode, DeviceBuffer};
use fercuda_jit::{BoundArg, Compiler};
use fercuda_ops::{
    KERNELS, KernelPolicy, KernelRow, OpDescriptor, OpDevice, OpError, OpPlan, OpRequest,
};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, ONE};

fn op(name: &str) -> OpDescriptor {
    OpDescriptor::new(name).unwrap()
}

fn of(dtype: Dtype, shape: &[u64]) -> Layout {
    Layout::contiguous(dtype, shape).unwrap()
}

fn plan(
    op: &OpDescriptor,
    operands: &[Layout],
    policy: KernelPolicy<'_>,
) -> Result<OpPlan, OpError> {
    OpPlan::new(&Bench::shared().device, op, operands, &[], policy)
}

#[test]
fn sku_says_which_kernel_was_chosen_and_why_the_others_were_not() {
    let x = of(Dtype::F32, &[4, 8]);
    let map = plan(&op("silu"), &[x], KernelPolicy::Auto).unwrap();
    assert_eq!(map.sku().id, "jit.map");
    let shown = map.sku().to_string();
    assert!(
        shown.contains("not jit.rows: silu computes each element"),
        "{shown}"
    );
    assert_eq!((map.sku().launches, map.workspace_bytes()), (1, 0));
    let rows = plan(&op("softmax"), &[x], KernelPolicy::Force("jit.rows")).unwrap();
    assert_eq!(rows.sku().id, "jit.rows");
    assert!(rows.sku().reason.contains("demanded"), "{}", rows.sku());
    let error = plan(&op("softmax"), &[x], KernelPolicy::Force("jit.map")).unwrap_err();
    let shown = error.to_string();
    assert!(
        shown.contains("jit.map: softmax combines elements"),
        "{shown}"
    );
    assert!(shown.contains("jit.rows: jit.map was demanded"), "{shown}");
    let error = plan(&op("softmax"), &[x], KernelPolicy::Force("cublas")).unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains("there is no \"cublas\"; "), "{shown}");
    let lists = |kernel: &KernelRow| shown.contains(kernel.id);
    assert!(KERNELS.iter().all(lists), "{shown}");
}

#[test]
fn eight_bit_floats_are_refused_where_the_device_has_no_conversions() {
    let x = of(Dtype::F8E4m3, &[4]);
    let map = KERNELS
        .iter()
        .find(|kernel| kernel.id == "jit.map")
        .unwrap();
    for (arch, is_refused) in [(80, true), (89, false), (90, false)] {
        let request = OpRequest {
            op: &op("relu"),
            operands: &[x],
            outputs: &[x],
            arch,
            no_compiler: None,
            no_cublaslt: None,
            no_cufft: None,
        };
        let answer = (map.supports)(&request);
        assert_eq!(answer.is_err(), is_refused, "sm_{arch}: {answer:?}");
        if let Err(reason) = answer {
            assert!(reason.contains("f8e4m3 needs sm_89"), "{reason}");
        }
    }
}

#[test]
fn bad_operands_and_parameters_are_refused_with_what_to_try() {
    let f = |shape: &[u64]| of(Dtype::F32, shape);
    let int = of(Dtype::I32, &[3]);
    let refused: [(OpDescriptor, &[Layout], &str); 13] = [
        (op("add"), &[f(&[3])], "add of 1 operands\ntry: x, y"),
        (op("layer_norm"), &[], "the last 2 may be left out"),
        (op("exp"), &[int], "exp: operand x is i32, it takes a float"),
        (
            op("add"),
            &[f(&[3]), int],
            "operand y is i32, the one before it f32",
        ),
        (
            op("where"),
            &[f(&[3]), f(&[3]), f(&[3])],
            "operand condition is f32, it takes bool",
        ),
        (
            op("add"),
            &[f(&[3]), f(&[4])],
            "[4] and [3] are no shapes to broadcast",
        ),
        (
            op("sum").axes(&[2]).unwrap(),
            &[f(&[3, 4])],
            "there is no axis 2 in [3, 4]",
        ),
        (
            op("sum").axes(&[0, 0]).unwrap(),
            &[f(&[3, 4])],
            "axis 0 is there twice",
        ),
        (op("softmax"), &[f(&[])], "there is no axis 0 in []"),
        (op("amax"), &[f(&[0])], "undefined for an empty axis"),
        (
            op("cast"),
            &[f(&[3])],
            "cast: it has no type to convert to\ntry: `to`",
        ),
        (
            op("permute").axes(&[0, 0]).unwrap(),
            &[f(&[3, 4])],
            "permute of f32[3, 4]",
        ),
        (
            op("layer_norm"),
            &[f(&[2, 3]), f(&[2])],
            "layer_norm of f32[2, 3] and f32[2]",
        ),
    ];
    for (op, operands, wanted) in refused {
        let error = plan(&op, operands, KernelPolicy::Auto)
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{error}\nwanted: {wanted}");
        assert!(error.contains("try: "), "{error}");
    }
    for (error, wanted) in [
        (op("relu").axes(&[0]).unwrap_err(), "relu: it has no axes"),
        (op("relu").keep(true).unwrap_err(), "relu: it keeps no axes"),
        (
            op("softmax").axes(&[0, 1]).unwrap_err(),
            "along one axis, not 2",
        ),
        (
            op("elu").number("slope", 1.0).unwrap_err(),
            "no number \"slope\"\ntry: alpha",
        ),
        (
            op("add").to(Dtype::F16).unwrap_err(),
            "converts to no other type",
        ),
        (
            op("add").shape(&[3]).unwrap_err(),
            "its shape follows from its operands",
        ),
    ] {
        assert!(
            error.to_string().contains(wanted),
            "{error}\nwanted: {wanted}"
        );
    }
    let unsigned = of(Dtype::U8, &[3]);
    let clamp = op("clamp").number("low", -1.0).unwrap();
    let error = plan(&clamp, &[unsigned], KernelPolicy::Auto)
        .unwrap_err()
        .to_string();
    assert!(error.contains("u8 cannot represent"), "{error}");
}

#[test]
fn output_of_another_type_or_shape_or_that_overlaps_itself_is_refused() {
    let x = of(Dtype::F32, &[3, 4]);
    for output in [
        of(Dtype::F16, &[3, 4]),
        of(Dtype::F32, &[4, 3]),
        Layout::strided(Dtype::F32, &[3, 4], &[0, 1]).unwrap(),
    ] {
        let policy = KernelPolicy::Auto;
        let device = &Bench::shared().device;
        let error = OpPlan::new(device, &op("exp"), &[x], &[output], policy).unwrap_err();
        assert!(matches!(error, OpError::Output { .. }), "{error}");
        assert!(
            error.to_string().contains("exp: the result is f32[3, 4]"),
            "{error}"
        );
    }
}

/// Runs `plan` with bindings that it must refuse, and returns the message; the output must stay
/// as it was.
fn refused(
    plan: &OpPlan,
    operands: &[BoundArg<'_>],
    output: &DeviceBuffer<f32>,
    first: u64,
    workspace: Option<BoundArg<'_>>,
) -> String {
    let bench = Bench::shared();
    let before = output.to_vec(&bench.stream).unwrap();
    let output_at = BoundArg::of(output).first_at(first);
    let error = plan
        .run(&bench.stream, operands, &[output_at], workspace)
        .unwrap_err();
    let after = output.to_vec(&bench.stream).unwrap();
    assert_eq!(before, after, "{error}");
    error.to_string()
}

#[test]
fn memory_that_does_not_fit_is_refused_and_nothing_is_written() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let values: Vec<f32> = (0..64).map(|n| n as f32).collect();
    let buffer = || DeviceBuffer::from_host(&values, &bench.stream).unwrap();
    let (x, y) = (buffer(), buffer());
    let all = BoundArg::of(&x);
    let exp = |len| plan(&op("exp"), &[of(Dtype::F32, &[len])], KernelPolicy::Auto).unwrap();
    let shown = refused(&exp(65), &[all], &y, 0, None);
    assert!(shown.contains("reaches bytes 0 to 260 of 256"), "{shown}");
    let shown = refused(&exp(64), &[all], &y, 4, None);
    assert!(shown.contains("reaches bytes 4 to 260 of 256"), "{shown}");
    let back = Layout::strided(Dtype::F32, &[8], &[-1]).unwrap();
    let reversed = plan(&op("copy"), &[back], KernelPolicy::Auto).unwrap();
    let shown = refused(&reversed, &[all], &y, 0, None);
    assert!(shown.contains("reaches bytes -28 to 4"), "{shown}");
    let shown = refused(&exp(8), &[all.first_at(2)], &y, 0, None);
    assert!(shown.contains("is no multiple of 4"), "{shown}");
    let shown = refused(&exp(8), &[all, all], &y, 0, None);
    assert!(shown.contains("2 inputs are bound"), "{shown}");
    // An output a little behind its operand, and rows in place.
    let shown = refused(&exp(32), &[all], &x, 16, None);
    assert!(shown.contains("overlaps input"), "{shown}");
    let rows = plan(
        &op("softmax"),
        &[of(Dtype::F32, &[8, 8])],
        KernelPolicy::Auto,
    )
    .unwrap();
    let shown = refused(&rows, &[all], &x, 0, None);
    assert!(shown.contains("overlaps input"), "{shown}");
    bench.assert_sound();
}

#[test]
fn element_operations_run_in_place() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let values: Vec<f32> = (0..100).map(|n| n as f32 - 50.0).collect();
    let x = DeviceBuffer::from_host(&values, &bench.stream).unwrap();
    let layout = of(Dtype::F32, &[100]);
    let square = plan(&op("square"), &[layout], KernelPolicy::Auto).unwrap();
    let both = BoundArg::of(&x);
    square.run(&bench.stream, &[both], &[both], None).unwrap();
    let got = x.to_vec(&bench.stream).unwrap();
    assert!(
        got.iter().zip(&values).all(|(got, x)| *got == x * x),
        "{got:?}"
    );
    bench.assert_sound();
}

#[test]
fn long_rows_need_the_workspace_that_the_plan_states() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let len = 70_000;
    let x = DeviceBuffer::from_host(&vec![1f32; len], &bench.stream).unwrap();
    let y = DeviceBuffer::from_host(&[7f32], &bench.stream).unwrap();
    let sum = plan(
        &op("sum"),
        &[of(Dtype::F32, &[len as u64])],
        KernelPolicy::Auto,
    )
    .unwrap();
    let bytes = sum.workspace_bytes();
    assert!(bytes > 0 && bytes < 4 * len as u64, "{bytes}");
    let operands = [BoundArg::of(&x)];
    let shown = refused(&sum, &operands, &y, 0, None);
    assert!(
        shown.contains(&format!("sum needs {bytes} bytes of workspace")),
        "{shown}"
    );
    let small = DeviceBuffer::<u8>::zeroed(&bench.stream, bytes as usize - 1).unwrap();
    let shown = refused(&sum, &operands, &y, 0, Some(BoundArg::of(&small)));
    assert!(shown.contains(&format!("of {}", bytes - 1)), "{shown}");
    let exact = DeviceBuffer::<u8>::zeroed(&bench.stream, bytes as usize).unwrap();
    let workspace = Some(BoundArg::of(&exact));
    sum.run(&bench.stream, &operands, &[BoundArg::of(&y)], workspace)
        .unwrap();
    // A whole number below 2^24 is exact in f32, in any order.
    assert_eq!(y.to_vec(&bench.stream).unwrap(), [len as f32]);
    bench.assert_sound();
}

/// Number of programs that a compiler has stored.
fn stored(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn runs_are_captured_and_compile_nothing_whatever_the_alignment() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let folder = tempfile::tempdir().unwrap();
    let cache = ProgramCache::at_for(folder.path(), "jit");
    let compiler = Compiler::with_cache(&bench.context, Some(cache)).unwrap();
    let layout = of(Dtype::F32, &[32]);
    let sigmoid = op("sigmoid");
    let device = OpDevice::with_compiler(&bench.context, compiler).unwrap();
    let plan = OpPlan::new(&device, &sigmoid, &[layout], &[], KernelPolicy::Auto).unwrap();
    // One for memory aligned to 16 bytes, one for other memory; each is stored when compiled.
    let programs = stored(folder.path());
    assert!(programs >= 2, "{programs}");
    let x = DeviceBuffer::from_host(&[0f32; 64], &bench.stream).unwrap();
    let y = DeviceBuffer::<f32>::zeroed(&bench.stream, 64).unwrap();
    let capture = bench.stream.begin_capture(CaptureMode::Global).unwrap();
    for first in [0, 4] {
        let (x, y) = (
            BoundArg::of(&x).first_at(first),
            BoundArg::of(&y).first_at(first),
        );
        plan.run(&bench.stream, &[x], &[y], None).unwrap();
    }
    let mut graph = capture.end().unwrap().instantiate().unwrap();
    graph.launch(&bench.stream).unwrap();
    let got = y.to_vec(&bench.stream).unwrap();
    assert!(got[..33].iter().all(|y| (y - 0.5).abs() < 1e-6), "{got:?}");
    assert!(got[33..].iter().all(|y| *y == 0.0), "{got:?}");
    assert_eq!(stored(folder.path()), programs);
    bench.assert_sound();
}

#[test]
fn checked_plan_reports_the_first_index_outside_of_its_axis() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let x = DeviceBuffer::from_host(&[1f32, 2., 3., 4.], &bench.stream).unwrap();
    let select = op("index_select").checked().unwrap();
    let layouts = [of(Dtype::F32, &[4]), of(Dtype::I64, &[5])];
    let plan = plan(&select, &layouts, KernelPolicy::Auto).unwrap();
    let bytes = plan.workspace_bytes();
    assert_eq!(bytes, 16);
    let workspace = DeviceBuffer::<u8>::zeroed(&bench.stream, bytes as usize).unwrap();
    let workspace = BoundArg::of(&workspace);
    let y = DeviceBuffer::from_host(&[7f32; 5], &bench.stream).unwrap();
    let run = |index: [i64; 5]| {
        let index = DeviceBuffer::from_host(&index, &bench.stream).unwrap();
        let operands = [BoundArg::of(&x), BoundArg::of(&index)];
        let outputs = [BoundArg::of(&y)];
        plan.run(&bench.stream, &operands, &outputs, Some(workspace))
            .unwrap();
        plan.check(&bench.stream, &workspace)
    };
    run([3, 2, 1, 0, 3]).unwrap();
    let shown = run([0, 1, -7, 2, 3]).unwrap_err().to_string();
    assert!(
        shown.contains("index_select: index -7, number 2 of"),
        "{shown}"
    );
    assert_eq!(y.to_vec(&bench.stream).unwrap(), [1., 2., 0., 3., 4.]);
    // The record is of one run.
    run([0, 1, 2, 3, 0]).unwrap();
    let shown = op("relu").checked().unwrap_err().to_string();
    assert!(shown.contains("relu: it has no indices"), "{shown}");
    bench.assert_sound();
}

#[test]
fn dropout_and_triangles_run_in_place() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let values: Vec<f32> = (1..37).map(|n| n as f32).collect();
    let layout = of(Dtype::F32, &[6, 6]);
    let x = DeviceBuffer::from_host(&values, &bench.stream).unwrap();
    let tril = plan(&op("tril"), &[layout], KernelPolicy::Auto).unwrap();
    let both = BoundArg::of(&x);
    tril.run(&bench.stream, &[both], &[both], None).unwrap();
    let got = x.to_vec(&bench.stream).unwrap();
    let at = |n: usize| if n % 6 <= n / 6 { values[n] } else { 0.0 };
    assert_eq!(got, (0..36).map(at).collect::<Vec<f32>>());
    let drop = plan(&op("dropout"), &[layout], KernelPolicy::Auto).unwrap();
    let mask = DeviceBuffer::<u8>::zeroed(&bench.stream, 36).unwrap();
    let outputs = [both, BoundArg::of(&mask)];
    drop.run(&bench.stream, &[both], &outputs, None).unwrap();
    let (after, mask) = (
        x.to_vec(&bench.stream).unwrap(),
        mask.to_vec(&bench.stream).unwrap(),
    );
    let kept = got.iter().zip(&mask).map(|(x, m)| x * 2.0 * f32::from(*m));
    assert_eq!(after, kept.collect::<Vec<f32>>());
    bench.assert_sound();
}
