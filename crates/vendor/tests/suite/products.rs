//! Products over a library that computes them by their definition.

use fastrand::Rng;
use fercuda_cuda::{CaptureMode, Context, DeviceBuffer, Stream};
use fercuda_tensor::Dtype;
use fercuda_vendor::Error;
use fercuda_vendor::cublaslt::{
    Addend, AlgorithmRequest, CublasLt, CublasLtLibrary, MatrixLayout, MatrixOrder, MatrixProduct,
    ProductActivation, ProductMath, ProductOperands, ProductScaleFactors, ProductSpec, SplitSums,
};

use crate::support::{FakeLibrary, context};

pub(crate) fn handle(fake: &FakeLibrary, context: &Context) -> CublasLt {
    // SAFETY: the fake has the interface and works on the software device.
    let library = unsafe { CublasLtLibrary::open(&fake.file()) }.unwrap();
    CublasLt::new(&library, context).unwrap()
}

/// A layout of random order, leading dimension and distance between matrices.
fn layout(random: &mut Rng, rows: u64, cols: u64, batch: u64, may_share: bool) -> MatrixLayout {
    let mut layout = match random.bool() {
        true => MatrixLayout::row_major(Dtype::F32, rows, cols),
        false => MatrixLayout::column_major(Dtype::F32, rows, cols),
    };
    let outer = match layout.order {
        MatrixOrder::Row => rows,
        MatrixOrder::Column => cols,
    };
    layout = layout.leading(layout.leading + random.u64(0..3));
    let stride = match may_share && random.bool() {
        true => 0,
        false => layout.leading * outer + random.u64(0..5),
    };
    layout.batch(batch, stride)
}

/// The index of an element.
fn at(layout: &MatrixLayout, batch: u64, row: u64, col: u64) -> usize {
    let (outer, inner) = match layout.order {
        MatrixOrder::Row => (row, col),
        MatrixOrder::Column => (col, row),
    };
    (batch * layout.batch_stride + outer * layout.leading + inner) as usize
}

/// As many elements as a layout reaches, and not one more.
fn values(random: &mut Rng, layout: &MatrixLayout) -> Vec<f32> {
    let len = at(layout, layout.batch - 1, layout.rows - 1, layout.cols - 1) + 1;
    (0..len).map(|_| random.i32(-8..=8) as f32).collect()
}

#[test]
fn products_of_every_layout_are_those_of_the_definition() {
    let fake = FakeLibrary::new("cublaslt", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let lt = handle(&fake, &context);
    let mut random = fercuda_trials::rng();
    for _ in 0..200 {
        let [m, n, k] = [(); 3].map(|()| random.u64(1..=6));
        let batch = random.u64(1..=3);
        let (transpose_a, transpose_b) = (random.bool(), random.bool());
        let (a_rows, a_cols) = if transpose_a { (k, m) } else { (m, k) };
        let (b_rows, b_cols) = if transpose_b { (n, k) } else { (k, n) };
        let a = layout(&mut random, a_rows, a_cols, batch, true);
        let b = layout(&mut random, b_rows, b_cols, batch, true);
        let d = layout(&mut random, m, n, batch, false);
        let mut spec = ProductSpec::new(ProductMath::F32, a, b, d);
        (spec.transpose_a, spec.transpose_b) = (transpose_a, transpose_b);
        spec.epilogue.bias = random.bool();
        if random.bool() {
            spec.epilogue.activation = ProductActivation::Relu;
        }
        let c = MatrixLayout {
            order: d.order,
            leading: d.leading + 4,
            batch_stride: d.batch_stride + 4 * (2 + d.rows.max(d.cols)),
            ..d
        };
        spec.c = [Addend::None, Addend::Output, Addend::Matrix(c)][random.usize(0..3)];
        let (alpha, beta) = match spec.c {
            Addend::None => (2.0, 0.0),
            _ => (-1.0, 3.0),
        };
        let product = MatrixProduct::new(&lt, &spec).unwrap();
        let algorithm = product.algorithms(&AlgorithmRequest::new()).unwrap()[0];
        let [a_host, b_host, c_host, d_host] =
            [a, b, c, d].map(|layout| values(&mut random, &layout));
        let bias_len = if d.order == MatrixOrder::Row { n } else { m };
        let bias_host: Vec<f32> = (0..bias_len).map(|_| random.i32(-9..9) as f32).collect();
        let upload = |host: &[f32]| DeviceBuffer::from_host(host, &stream).unwrap();
        let (a_gpu, b_gpu, c_gpu) = (upload(&a_host), upload(&b_host), upload(&c_host));
        let (mut d_gpu, bias_gpu) = (upload(&d_host), upload(&bias_host));
        let mut operands =
            ProductOperands::new(a_gpu.as_slice(), b_gpu.as_slice(), d_gpu.as_slice_mut());
        operands = operands.alpha(alpha).beta(beta);
        if spec.epilogue.bias {
            operands = operands.bias(bias_gpu.as_slice());
        }
        if matches!(spec.c, Addend::Matrix(_)) {
            operands = operands.addend(c_gpu.as_slice());
        }
        product.run(&stream, &algorithm, operands).unwrap();
        // Small integers: every sum is exact. What lies between the elements stays.
        let mut expected = d_host.clone();
        for index in 0..batch * m * n {
            let (batch, row, col) = (index / (m * n), index / n % m, index % n);
            let term = |i| {
                let (a_row, a_col) = if transpose_a { (i, row) } else { (row, i) };
                let (b_row, b_col) = if transpose_b { (col, i) } else { (i, col) };
                a_host[at(&a, batch, a_row, a_col)] * b_host[at(&b, batch, b_row, b_col)]
            };
            let mut value = alpha as f32 * (0..k).map(term).sum::<f32>();
            value += match spec.c {
                Addend::None => 0.0,
                Addend::Output => beta as f32 * d_host[at(&d, batch, row, col)],
                Addend::Matrix(_) => beta as f32 * c_host[at(&c, batch, row, col)],
            };
            if spec.epilogue.bias {
                let along = if d.order == MatrixOrder::Row {
                    col
                } else {
                    row
                };
                value += bias_host[along as usize];
            }
            if spec.epilogue.activation == ProductActivation::Relu {
                value = value.max(0.0);
            }
            expected[at(&d, batch, row, col)] = value;
        }
        assert_eq!(d_gpu.to_vec(&stream).unwrap(), expected, "{spec:?}");
    }
    drop(lt);
    for (made, destroyed) in [
        ("create handle", "destroy handle"),
        ("create desc", "destroy desc"),
        ("create layout", "destroy layout"),
    ] {
        assert_eq!(fake.count(made), fake.count(destroyed), "{made}");
    }
    assert_eq!(fake.count("destroy handle"), 1);
    assert_eq!(fake.count("destroy desc"), 200);
}

#[test]
fn the_library_gets_column_major_layouts_batches_and_attributes() {
    let fake = FakeLibrary::new("cublaslt", &[]);
    let context = context();
    let lt = handle(&fake, &context);
    // A row-major output: B's transpose is the left factor.
    let a = MatrixLayout::row_major(Dtype::Bf16, 5, 7)
        .leading(9)
        .batch(2, 100);
    let b = MatrixLayout::column_major(Dtype::Bf16, 7, 3)
        .leading(8)
        .batch(2, 0);
    let d = MatrixLayout::row_major(Dtype::Bf16, 5, 3)
        .leading(4)
        .batch(2, 50);
    let mut spec = ProductSpec::new(ProductMath::Bf16, a, b, d);
    spec.epilogue.bias = true;
    spec.epilogue.activation = ProductActivation::Gelu;
    let product = MatrixProduct::new(&lt, &spec).unwrap();
    let request = AlgorithmRequest::new().count(4).workspace_bytes(1000);
    let found = product
        .algorithms(&request.sums(SplitSums::ComputeType))
        .unwrap();
    let needs: Vec<u64> = found.iter().map(|it| it.workspace_bytes()).collect();
    assert_eq!(needs, [0, 512]);
    assert_eq!(found[0].waves(), 0.5);
    let expected = [
        "create handle",
        "create desc compute=68 scale=0",
        // Left: B, stored as its own columns, so transposed; right: A.
        "desc attribute 3 = 1",
        "desc attribute 4 = 0",
        "desc attribute 7 = 36",
        "desc attribute 26 = 14",
        "create layout type=14 rows=7 cols=3 ld=8",
        "layout attribute 5 = 2",
        "layout attribute 6 = 0",
        "create layout type=14 rows=7 cols=5 ld=9",
        "layout attribute 5 = 2",
        "layout attribute 6 = 100",
        "create layout type=14 rows=3 cols=5 ld=4",
        "layout attribute 5 = 2",
        "layout attribute 6 = 50",
        "create layout type=14 rows=3 cols=5 ld=4",
        "layout attribute 5 = 2",
        "layout attribute 6 = 50",
        "heuristic count=4 workspace=1000 align=256,256,256,256 reductions=2 bias=1",
        "destroy preference",
    ];
    assert_eq!(fake.log(), expected);
}

#[test]
fn eight_bit_products_pass_scale_factors_and_integers() {
    let fake = FakeLibrary::new("cublaslt", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let lt = handle(&fake, &context);
    let a = MatrixLayout::row_major(Dtype::F8E4m3, 16, 16);
    let b = MatrixLayout::column_major(Dtype::F8E5m2, 16, 16);
    let d = MatrixLayout::row_major(Dtype::F8E4m3, 16, 16);
    let mut spec = ProductSpec::new(ProductMath::F8, a, b, d);
    (spec.scaled.a, spec.scaled.d, spec.fast_accumulation) = (true, true, true);
    let product = MatrixProduct::new(&lt, &spec).unwrap();
    let algorithm = product.algorithms(&AlgorithmRequest::new()).unwrap()[0];
    let bytes = DeviceBuffer::<u8>::zeroed(&stream, 256).unwrap();
    let mut out = DeviceBuffer::<u8>::zeroed(&stream, 256).unwrap();
    let factor = DeviceBuffer::from_host(&[2.0f32], &stream).unwrap();
    let scales = ProductScaleFactors {
        a: Some(factor.as_slice()),
        b: None,
        d: Some(factor.as_slice()),
    };
    let operands = ProductOperands::new(bytes.as_slice(), bytes.as_slice(), out.as_slice_mut());
    product
        .run(&stream, &algorithm, operands.scales(scales))
        .unwrap();
    // A is the right factor of a row-major output; C is bf16 and absent.
    let log = fake.log();
    assert!(log.contains(&"desc attribute 25 = 1".to_owned()), "{log:?}");
    assert!(
        log.contains(&"create layout type=14 rows=16 cols=16 ld=16".to_owned()),
        "{log:?}"
    );
    let run = "matmul magic=a190 alpha=1 beta=0 in_place=0 workspace=0 bytes=0 stream=1 scales=011";
    assert_eq!(log.last().unwrap(), run);

    let (a, b) = (
        MatrixLayout::row_major(Dtype::I8, 2, 3),
        MatrixLayout::column_major(Dtype::I8, 3, 2),
    );
    let d = MatrixLayout::row_major(Dtype::I32, 2, 2);
    let product = MatrixProduct::new(&lt, &ProductSpec::new(ProductMath::I8, a, b, d)).unwrap();
    let algorithm = product.algorithms(&AlgorithmRequest::new()).unwrap()[0];
    let left = DeviceBuffer::from_host(&[1i8, 2, 3, -4, 5, 6], &stream).unwrap();
    let right = DeviceBuffer::from_host(&[1i8, 1, 1, 127, -1, 0], &stream).unwrap();
    let mut out = DeviceBuffer::<i32>::zeroed(&stream, 4).unwrap();
    stream.synchronize().unwrap();
    let mut run = |alpha: f64| {
        let operands = ProductOperands::new(left.as_slice(), right.as_slice(), out.as_slice_mut());
        product.run(&stream, &algorithm, operands.alpha(alpha))
    };
    let error = run(0.5).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("alpha of a product of integers is 0.5"),
        "{error}"
    );
    run(2.0).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [12, 250, 14, -1026]);
}

#[test]
fn an_error_code_and_a_lack_of_algorithms_are_errors() {
    let fake = FakeLibrary::new("cublaslt", &["STATUS_OF_MATMUL=13"]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let lt = handle(&fake, &context);
    let square = |dtype| MatrixLayout::row_major(dtype, 4, 4);
    let of = |math, dtype| ProductSpec::new(math, square(dtype), square(dtype), square(dtype));
    let product = MatrixProduct::new(&lt, &of(ProductMath::F64, Dtype::F64)).unwrap();
    let algorithm = product.algorithms(&AlgorithmRequest::new()).unwrap()[0];
    let a = DeviceBuffer::<f64>::zeroed(&stream, 16).unwrap();
    let mut d = DeviceBuffer::<f64>::zeroed(&stream, 16).unwrap();
    let operands = ProductOperands::new(a.as_slice(), a.as_slice(), d.as_slice_mut());
    let error = product.run(&stream, &algorithm, operands).unwrap_err();
    let text = "cannot queue a product: cublasLtMatmul of cuBLASLt returned \
                CUBLAS_STATUS_EXECUTION_FAILED (13)";
    assert_eq!(error.to_string(), text);

    let half = MatrixProduct::new(&lt, &of(ProductMath::F16, Dtype::F16)).unwrap();
    let error = half
        .algorithms(&AlgorithmRequest::new().workspace_bytes(99))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoAlgorithm {
                workspace_bytes: 99,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("cuBLASLt 13.1.0 has no algorithm for F16 (f16 4x4")
    );
}

#[test]
fn a_captured_product_keeps_its_descriptors_until_the_graph_is_dropped() {
    let fake = FakeLibrary::new("cublaslt", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let lt = handle(&fake, &context);
    let square = MatrixLayout::row_major(Dtype::F32, 4, 4);
    let spec = ProductSpec::new(ProductMath::F32, square, square, square);
    let product = MatrixProduct::new(&lt, &spec).unwrap();
    let request = AlgorithmRequest::new().count(3).workspace_bytes(512);
    let algorithm = product.algorithms(&request).unwrap()[1];
    let a = DeviceBuffer::<f32>::zeroed(&stream, 16).unwrap();
    let mut d = DeviceBuffer::<f32>::zeroed(&stream, 16).unwrap();
    let mut work = DeviceBuffer::<u8>::zeroed(&stream, 512).unwrap();
    stream.synchronize().unwrap();
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    let operands = ProductOperands::new(a.as_slice(), a.as_slice(), d.as_slice_mut());
    let operands = operands.workspace(work.as_slice_mut());
    product.run(&stream, &algorithm, operands).unwrap();
    let graph = capture.end().unwrap();
    drop((product, lt, a, d, work));
    assert_eq!(fake.count("destroy desc") + fake.count("destroy handle"), 0);
    let run = "matmul magic=a190 alpha=1 beta=0 in_place=1 workspace=1 bytes=512";
    assert_eq!(fake.count(run), 1, "{:?}", fake.log());
    drop(graph);
    assert_eq!(
        (fake.count("destroy desc"), fake.count("destroy handle")),
        (1, 1)
    );
    assert_eq!(fake.count("destroy layout"), 4);
}
