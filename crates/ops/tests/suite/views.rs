//! Views of kernels that do not go together, and elements at the limits of types.

use fercuda_cuda::DeviceBuffer;
use fercuda_jit::BoundArg;
use fercuda_kernels::index::ScatterCombine;
use fercuda_kernels::multiply::{ProductEpilogue, ProductKernel};
use fercuda_kernels::random::RandomSeed;
use fercuda_kernels::window::PoolKind;
use fercuda_kernels::{
    KernelError, NativeProgram, ProgramForm, copy, index, multiply, place, random, window,
};
use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan, oracle};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, ONE};

fn of(dtype: Dtype, shape: &[u64]) -> Layout {
    Layout::contiguous(dtype, shape).unwrap()
}

/// The form of programs that are not loaded.
pub(crate) const UNLOADED: ProgramForm = ProgramForm {
    is_aligned: true,
    shared_bytes: 98 << 10,
    multiprocessors: 132,
};

fn program(inputs: &[Layout], output: Layout) -> NativeProgram {
    NativeProgram::new(inputs, &[output], UNLOADED)
}

fn assert_refused(result: Result<(), KernelError>, wanted: &str) {
    let shown = result.unwrap_err().to_string();
    assert!(shown.contains(wanted), "{shown}\nwanted: {wanted}");
}

#[test]
fn views_of_other_sizes_are_refused_by_every_family() {
    let f32s = |shape: &[u64]| of(Dtype::F32, shape);
    let mut p = program(&[f32s(&[4096])], of(Dtype::F64, &[4096]));
    let (x, out) = (p.input(0), p.output(0));
    assert_refused(copy::elements(&mut p, &x, &out), "f32 to f64");

    let mut p = program(&[f32s(&[4]), of(Dtype::I64, &[1])], f32s(&[4096]));
    let (x, i, out) = (p.input(0), p.input(1), p.output(0));
    assert_refused(index::gather(&mut p, &x, &i, 0, &out), "the index is [1]");
    assert_refused(index::gather(&mut p, &x, &i, 3, &i), "axis 3");
    let store = ScatterCombine::Store;
    assert_refused(
        index::scatter(&mut p, &x, &i, 0, &out, store),
        "the index is [1]",
    );

    let mut p = program(&[f32s(&[8, 8]), of(Dtype::F64, &[8, 8])], f32s(&[8, 8]));
    let (x, y, out) = (p.input(0), p.input(1), p.output(0));
    let plain = ProductEpilogue::default();
    assert_refused(
        multiply::matrices(&mut p, ProductKernel::Threads, [&y, &x, &out], plain),
        "f64 by f32",
    );
    assert_refused(
        multiply::matrices(&mut p, ProductKernel::Tensor, [&x, &x, &out], plain),
        "tensor cores for f32",
    );

    let mut p = program(&[f32s(&[1, 1]), of(Dtype::Bool, &[1])], f32s(&[64, 64]));
    let (x, mask, out) = (p.input(0), p.input(1), p.output(0));
    let lower = place::TrianglePart::Lower;
    assert_refused(
        place::triangle(&mut p, &x, &out, lower, 0),
        "the operand is f32[1, 1]",
    );
    let seed = RandomSeed { seed: 0, stream: 0 };
    let dropped = random::dropout(&mut p, [&out, &out, &mask], 0.5, seed);
    assert_refused(dropped, "the mask is bool[1]");

    let five = [1, 1, 1, 1, 4096];
    let mut p = program(&[f32s(&five), of(Dtype::I64, &[1; 5])], f32s(&five));
    let (x, i, out) = (p.input(0), p.input(1), p.output(0));
    let pooled = window::pool(&mut p, PoolKind::Most, &x, &out, Some(&i), None);
    assert_refused(pooled, "the places is i64[1, 1, 1, 1, 1]");
}

#[test]
fn views_of_other_programs_and_written_operands_are_not_loaded() {
    let kernels = Bench::shared().device.kernels();
    let small = of(Dtype::F32, &[1]);
    let load = |inputs: &[Layout], output: Layout, add: &dyn Fn(&mut NativeProgram)| {
        let loaded = kernels.load(|form| {
            let mut p = NativeProgram::new(inputs, &[output], form);
            add(&mut p);
            Ok(p)
        });
        loaded.map(|_| ())
    };
    let other = program(&[], of(Dtype::F32, &[1 << 20]));
    let of_other = load(&[small], small, &|p| copy::fill(p, &other.output(0), 0));
    assert_refused(of_other, "of another program");
    let of_operand = load(&[small], small, &|p| {
        let x = p.input(0);
        copy::fill(p, &x, 0);
    });
    assert_refused(of_operand, "an operand is written");
    let repeated = Layout::strided(Dtype::F32, &[64], &[0]).unwrap();
    assert_refused(load(&[], repeated, &|_| {}), "may overlap");
    let endless = Layout::strided(Dtype::F32, &[1 << 60], &[0]).unwrap();
    assert_refused(load(&[endless], small, &|_| {}), "elements of one layout");
    let forms = kernels.load(|form| {
        let output = if form.is_aligned {
            small
        } else {
            of(Dtype::F32, &[2])
        };
        Ok(NativeProgram::new(&[], &[output], form))
    });
    assert_refused(forms.map(|_| ()), "layouts of their own");
}

fn op(name: &str) -> OpDescriptor {
    OpDescriptor::new(name).unwrap()
}

fn plan(op: &OpDescriptor, operands: &[Layout]) -> Result<OpPlan, fercuda_ops::OpError> {
    let device = &Bench::shared().device;
    OpPlan::new(device, op, operands, &[], KernelPolicy::Auto)
}

#[test]
fn infinities_of_eight_bits_that_are_moved_stay_infinities() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let upload = |bytes: &[u8]| DeviceBuffer::from_host(bytes, &bench.stream).unwrap();
    // f8e5m2: infinity, minus infinity, 1.
    let x = upload(&[0x7c, 0xfc, 0x3c]);
    let (index, source) = (upload(&[2]), upload(&[0x3c]));
    let y = upload(&[0; 3]);
    let f8 = |shape: &[u64]| of(Dtype::F8E5m2, shape);
    let add = plan(&op("index_add"), &[f8(&[3]), of(Dtype::U8, &[1]), f8(&[1])]).unwrap();
    let workspace = vec![0; add.workspace_bytes() as usize];
    let workspace = upload(&workspace);
    let operands = [&x, &index, &source].map(BoundArg::of);
    let outputs = [BoundArg::of(&y)];
    let workspace = Some(BoundArg::of(&workspace));
    add.run(&bench.stream, &operands, &outputs, workspace)
        .unwrap();
    assert_eq!(y.to_vec(&bench.stream).unwrap(), [0x7c, 0xfc, 0x40]);
    let nearest = op("interpolate").list("size", &[3]).unwrap();
    let nearest = plan(&nearest, &[f8(&[1, 1, 3])]).unwrap();
    nearest
        .run(&bench.stream, &operands[..1], &outputs, None)
        .unwrap();
    assert_eq!(y.to_vec(&bench.stream).unwrap(), [0x7c, 0xfc, 0x3c]);
    bench.assert_sound();
}

#[test]
fn windows_far_larger_than_their_operand_end() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let x = DeviceBuffer::from_host(&[3f32], &bench.stream).unwrap();
    let y = DeviceBuffer::from_host(&[0f32], &bench.stream).unwrap();
    let mut pool = op("avg_pool").choice("count", "inside").unwrap();
    for (list, value) in [("kernel", 1 << 31), ("padding", 1 << 30), ("stride", 2)] {
        pool = pool.list(list, &[value]).unwrap();
    }
    let plan = plan(&pool, &[of(Dtype::F32, &[1, 1, 1])]).unwrap();
    let (x, out) = (BoundArg::of(&x), BoundArg::of(&y));
    plan.run(&bench.stream, &[x], &[out], None).unwrap();
    assert_eq!(y.to_vec(&bench.stream).unwrap(), [3.0]);
    bench.assert_sound();
}

#[test]
fn numbers_outside_of_a_type_and_missing_elements_are_refused() {
    let uniform = |low: f64, high: f64| {
        let op = op("random_uniform").shape(&[4]).unwrap();
        let op = op.number("low", low).unwrap().number("high", high).unwrap();
        plan(&op, &[])
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    uniform(-3e38, 3e38).unwrap();
    for (low, high) in [(f64::NAN, 1.0), (0.0, 1e39), (2.0, 1.0)] {
        assert!(uniform(low, high).unwrap_err().contains("try: "));
    }
    let wide = op("interpolate").list("size", &[1 << 31]).unwrap();
    let shown = plan(&wide, &[of(Dtype::F8E4m3, &[1, 1, 1 << 34])]).unwrap_err();
    assert!(
        shown.to_string().contains("places of one dimension"),
        "{shown}"
    );
    let shown = op("full").graph(&[]).unwrap_err().to_string();
    assert!(shown.contains("it is no expression"), "{shown}");
    let x = of(Dtype::F32, &[2]);
    let shown = oracle::evaluate(&op("flip"), &[x], &[])
        .unwrap_err()
        .to_string();
    assert!(
        shown.contains("elements are given for other layouts"),
        "{shown}"
    );
    // Whose difference is no f32: each number is between them all the same.
    let bench = Bench::shared();
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let far = op("random_uniform").shape(&[64]).unwrap();
    let far = far
        .number("low", -3e38)
        .unwrap()
        .number("high", 3e38)
        .unwrap();
    let plan = plan(&far, &[]).unwrap();
    let y = DeviceBuffer::from_host(&[0f32; 64], &bench.stream).unwrap();
    plan.run(&bench.stream, &[], &[BoundArg::of(&y)], None)
        .unwrap();
    let got = y.to_vec(&bench.stream).unwrap();
    assert!(got.iter().all(|y| y.is_finite()), "{got:?}");
}

#[test]
fn ops_that_add_a_dimension_say_so_of_the_largest_rank() {
    let x = of(Dtype::F32, &[2, 1, 1, 1, 1, 1, 1, 3]);
    let tile = op("tile")
        .list("repeats", &[1, 1, 1, 1, 1, 1, 1, 2])
        .unwrap();
    let index = of(Dtype::I64, &[1; 7]);
    let embedding = plan(&op("embedding"), &[of(Dtype::F32, &[4, 4]), index]);
    for refused in [plan(&tile, &[x]), embedding] {
        let shown = refused.unwrap_err().to_string();
        assert!(shown.contains("9 dimensions, at most 8"), "{shown}");
        assert!(
            shown.contains("try: operands of fewer dimensions"),
            "{shown}"
        );
    }
}
