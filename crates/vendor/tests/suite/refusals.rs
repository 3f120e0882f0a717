//! Input that is refused before the library is called.

use fercuda_cuda::{DeviceAddr, DeviceBuffer, Stream};
use fercuda_tensor::Dtype;
use fercuda_vendor::cublaslt::{
    Addend, AlgorithmRequest, MatrixLayout, MatrixProduct, ProductMath, ProductOperands,
    ProductSpec,
};

use crate::products::handle;
use crate::support::{FakeLibrary, context};

fn square(dtype: Dtype) -> MatrixLayout {
    MatrixLayout::row_major(dtype, 4, 4)
}

fn spec(math: ProductMath, a: Dtype, b: Dtype, d: Dtype) -> ProductSpec {
    ProductSpec::new(math, square(a), square(b), square(d))
}

#[test]
fn descriptions_that_do_not_go_together_are_refused_and_make_nothing() {
    use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64, I8, I32, U8};
    let fake = FakeLibrary::new("cublaslt", &[]);
    let lt = handle(&fake, &context());
    let f32s = spec(ProductMath::F32, F32, F32, F32);
    let changed = |change: &dyn Fn(&mut ProductSpec)| {
        let mut spec = f32s;
        change(&mut spec);
        spec
    };
    let cases = [
        (
            spec(ProductMath::F32, F32, F16, F32),
            "F32 does not multiply f32 by f16",
        ),
        (
            spec(ProductMath::F16, F16, F16, Bf16),
            "F16 does not multiply f16 by f16",
        ),
        (
            spec(ProductMath::F64, F64, F64, F32),
            "add f32 and store f32",
        ),
        (
            spec(ProductMath::Tf32, F16, F16, F32),
            "Tf32 does not multiply",
        ),
        (spec(ProductMath::I8, I8, I8, I8), "I8 does not multiply"),
        (spec(ProductMath::I8, U8, I8, I32), "I8 does not multiply"),
        (
            spec(ProductMath::F8, F8E5m2, F8E5m2, F32),
            "F8 does not multiply",
        ),
        (
            spec(ProductMath::F8, F8E4m3, F8E4m3, F64),
            "F8 does not multiply",
        ),
        (
            changed(&|it| it.scaled.a = true),
            "are for 8-bit floats, not F32",
        ),
        (
            changed(&|it| it.fast_accumulation = true),
            "are for 8-bit floats, not F32",
        ),
        (
            ProductSpec {
                scaled: fercuda_vendor::cublaslt::ScaledParts {
                    d: true,
                    ..Default::default()
                },
                ..spec(ProductMath::F8, F8E4m3, F8E4m3, F32)
            },
            "the output has a scale factor, and is f32",
        ),
        (
            ProductSpec {
                c: Addend::Output,
                ..spec(ProductMath::F8, F8E4m3, F8E4m3, F8E4m3)
            },
            "f8e4m3 output cannot be added to",
        ),
        (
            changed(&|it| it.a.leading = 3),
            "the leading dimension of A is 3, less than the 4",
        ),
        (
            changed(&|it| it.d = MatrixLayout::column_major(F32, 4, 4).leading(2)),
            "the leading dimension of D is 2",
        ),
        (
            changed(&|it| it.b.rows = 5),
            "4x4 by 5x4 does not make the output's 4x4",
        ),
        (
            changed(&|it| it.d.cols = 3),
            "4x4 by 4x4 does not make the output's 4x3",
        ),
        (changed(&|it| it.a.cols = 0), "by 4x4 does not make"),
        (
            changed(&|it| it.d.batch = 2),
            "batches of [1, 1, 2], and the output of 2",
        ),
        (
            changed(&|it| {
                (it.a.batch, it.b.batch) = (2, 2);
                it.d = it.d.batch(2, 15);
            }),
            "elements of the output share memory",
        ),
        (
            changed(&|it| it.c = Addend::Matrix(MatrixLayout::column_major(F32, 4, 4))),
            "has not the output's extents and order",
        ),
        (
            changed(&|it| {
                it.d.leading = 5;
                it.c = Addend::Matrix(it.d.leading(6));
            }),
            "is aligned to 2 elements",
        ),
        (
            changed(&|it| it.a.batch_stride = u64::MAX),
            "A is too large",
        ),
        (changed(&|it| it.a.leading = 1 << 62), "A is too large"),
    ];
    let count = fake.log().len();
    for (spec, reason) in cases {
        let error = MatrixProduct::new(&lt, &spec).unwrap_err().to_string();
        assert!(error.starts_with("cannot describe a product: "), "{error}");
        assert!(error.contains(reason), "{reason}\nis not in\n{error}");
    }
    let mut empty = f32s;
    (empty.a.cols, empty.b.rows) = (0, 0);
    let error = MatrixProduct::new(&lt, &empty).unwrap_err().to_string();
    assert!(error.contains("A is empty"), "{error}");
    assert_eq!(fake.log().len(), count, "the library was called");
}

/// Runs with one thing wrong each.
#[test]
fn operands_that_are_short_misaligned_or_overlap_are_refused_and_not_run() {
    let fake = FakeLibrary::new("cublaslt", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let lt = handle(&fake, &context);
    let layout = square(Dtype::F32).leading(6);
    let mut spec = ProductSpec::new(ProductMath::F32, layout, layout, layout);
    spec.epilogue.bias = true;
    let product = MatrixProduct::new(&lt, &spec).unwrap();
    let request = AlgorithmRequest::new().count(3).workspace_bytes(4096);
    let algorithms = product.algorithms(&request).unwrap();
    let (plain, hungry) = (algorithms[0], algorithms[1]);
    // A layout reaches 3 * 6 + 4 elements.
    let memory = DeviceBuffer::<f32>::zeroed(&stream, 1024).unwrap();
    let base = memory.address().0;
    let mut out = DeviceBuffer::<f32>::zeroed(&stream, 1024).unwrap();
    let mut work = DeviceBuffer::<u8>::zeroed(&stream, 8192).unwrap();
    stream.synchronize().unwrap();
    let alias = |offset: u64, len: usize| {
        // SAFETY: within `memory`, which outlives it.
        unsafe { DeviceBuffer::<f32>::foreign(&context, DeviceAddr(base + offset), len, || {}) }
            .unwrap()
    };
    let part = |from: usize, len: usize| memory.slice(from..from + len).unwrap();
    let (a, b, bias) = (part(0, 22), part(64, 22), part(128, 4));
    let reason = |result: fercuda_vendor::Result<()>| result.unwrap_err().to_string();

    let d = out.slice_mut(..22).unwrap();
    product
        .run(&stream, &plain, ProductOperands::new(a, b, d).bias(bias))
        .unwrap();
    assert_eq!(fake.count("matmul"), 1);

    let d = out.slice_mut(..22).unwrap();
    let text = reason(product.run(
        &stream,
        &plain,
        ProductOperands::new(part(0, 21), b, d).bias(bias),
    ));
    assert!(
        text.contains("A has 84 bytes, and its layout reaches 88"),
        "{text}"
    );
    let d = out.slice_mut(..22).unwrap();
    let text = reason(product.run(
        &stream,
        &plain,
        ProductOperands::new(a, part(64, 3), d).bias(bias),
    ));
    assert!(text.contains("B has 12 bytes"), "{text}");
    let d = out.slice_mut(..21).unwrap();
    let text = reason(product.run(&stream, &plain, ProductOperands::new(a, b, d).bias(bias)));
    assert!(text.contains("D has 84 bytes"), "{text}");
    let d = out.slice_mut(..22).unwrap();
    let short = part(128, 3);
    let text = reason(product.run(&stream, &plain, ProductOperands::new(a, b, d).bias(short)));
    assert!(
        text.contains("the bias has 12 bytes, and its layout reaches 16"),
        "{text}"
    );

    let d = out.slice_mut(..22).unwrap();
    let text = reason(product.run(&stream, &plain, ProductOperands::new(a, b, d)));
    assert!(
        text.contains("the product has a bias, and none was given"),
        "{text}"
    );
    let d = out.slice_mut(..22).unwrap();
    let operands = ProductOperands::new(a, b, d).bias(bias).addend(a);
    let text = reason(product.run(&stream, &plain, operands));
    assert!(
        text.contains("an added matrix was given, and the product has none"),
        "{text}"
    );
    let d = out.slice_mut(..22).unwrap();
    let operands = ProductOperands::new(a, b, d).bias(bias).beta(1.0);
    let text = reason(product.run(&stream, &plain, operands));
    assert!(text.contains("beta is 1 and nothing is added"), "{text}");
    let halves = DeviceBuffer::<u16>::zeroed(&stream, 1024).unwrap();
    let d = out.slice_mut(..22).unwrap();
    let operands = ProductOperands::new(halves.as_slice(), b, d).bias(bias);
    let text = reason(product.run(&stream, &plain, operands));
    assert!(
        text.contains("elements of A have 2 bytes, and f32 has others"),
        "{text}"
    );

    // Within the alignment of the request, unless it is as the operands'.
    let d = out.slice_mut(..22).unwrap();
    let text = reason(product.run(
        &stream,
        &plain,
        ProductOperands::new(part(1, 22), b, d).bias(bias),
    ));
    assert!(text.contains("no multiple of 256 bytes"), "{text}");
    let d = out.slice_mut(3..25).unwrap();
    let operands = ProductOperands::new(part(1, 22), b, d).bias(bias);
    let aligned = product
        .algorithms(&AlgorithmRequest::new().aligned_as(&operands))
        .unwrap()[0];
    product.run(&stream, &aligned, operands).unwrap();
    // A row-major output has B first.
    assert_eq!(
        fake.count("heuristic count=1 workspace=0 align=256,4,4,4"),
        1,
        "{:?}",
        fake.log()
    );

    // Half an element is none, also as bytes.
    let bytes = memory.as_slice().as_bytes().slice(2..200).unwrap();
    let operands = ProductOperands::new(bytes, b, out.slice_mut(..22).unwrap()).bias(bias);
    let request = AlgorithmRequest::new().aligned_as(&operands);
    let odd = product.algorithms(&request).unwrap()[0];
    let text = reason(product.run(&stream, &odd, operands));
    assert!(text.contains("no multiple of 4 bytes"), "{text}");

    // The output over A's last element, and over its neighbour.
    let mut over = alias(4 * 21, 22);
    let unaligned = |operands: &ProductOperands<'_>| {
        product
            .algorithms(&AlgorithmRequest::new().aligned_as(operands))
            .unwrap()[0]
    };
    let operands = ProductOperands::new(a, b, over.as_slice_mut()).bias(bias);
    let text = reason(product.run(&stream, &unaligned(&operands), operands));
    assert!(
        text.contains("D (0x") && text.contains(" and A (0x"),
        "{text}"
    );
    let mut beside = alias(4 * 22, 22);
    let operands = ProductOperands::new(a, b, beside.as_slice_mut()).bias(bias);
    product
        .run(&stream, &unaligned(&operands), operands)
        .unwrap();
    let mut over = alias(4 * 131, 22);
    let operands = ProductOperands::new(a, b, over.as_slice_mut()).bias(bias);
    let text = reason(product.run(&stream, &unaligned(&operands), operands));
    assert!(
        text.contains("and the bias (0x") && text.contains("overlap"),
        "{text}"
    );

    let ran = fake.count("matmul");
    let operands = ProductOperands::new(a, b, out.slice_mut(..22).unwrap()).bias(bias);
    let text = reason(product.run(&stream, &hungry, operands));
    assert!(
        text.contains("needs 512 bytes of workspace, and none was given"),
        "{text}"
    );
    for (range, expected) in [
        (0..511, "needs 512 bytes of workspace, and it has 511"),
        (16..4096, "the workspace is at"),
    ] {
        let operands = ProductOperands::new(a, b, out.slice_mut(..22).unwrap()).bias(bias);
        let operands = operands.workspace(work.slice_mut(range).unwrap());
        let text = reason(product.run(&stream, &hungry, operands));
        assert!(text.contains(expected), "{text}");
    }
    let mut shared = alias(0, 1024).cast::<u8>().unwrap();
    let operands = ProductOperands::new(a, b, out.slice_mut(..22).unwrap()).bias(bias);
    let operands = operands.workspace(shared.as_slice_mut());
    let text = reason(product.run(&stream, &hungry, operands));
    assert!(
        text.contains("the workspace (0x") && text.contains("and A (0x"),
        "{text}"
    );

    let other = MatrixProduct::new(&lt, &spec).unwrap();
    let operands = ProductOperands::new(a, b, out.slice_mut(..22).unwrap()).bias(bias);
    let text = reason(other.run(&stream, &plain, operands));
    assert!(
        text.contains("the algorithm is of another product"),
        "{text}"
    );
    for count in [0, 1001] {
        let text = product
            .algorithms(&AlgorithmRequest::new().count(count))
            .unwrap_err();
        assert!(
            text.to_string().contains("not between 1 and 1000"),
            "{text}"
        );
    }
    assert_eq!(fake.count("matmul"), ran, "a refused product was run");
}
