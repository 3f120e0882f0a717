//! Matrix products by cuBLASLt, NVIDIA's library, opened at run time.
//!
//! `cargo run -p fercuda-vendor --example products`
//!
//! Multiplies two row-major matrices, adds a bias to each column and applies ReLU, in one call of
//! the library; then captures the same product into a graph and replays it. Without the library or
//! a GPU it says what was tried and what to install.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use fercuda_cuda::{CaptureMode, Context, Cuda, DeviceBuffer, Stream};
use fercuda_tensor::Dtype;
use fercuda_vendor::cublaslt::{
    AlgorithmRequest, CublasLt, CublasLtLibrary, MatrixLayout, MatrixProduct, ProductActivation,
    ProductMath, ProductOperands, ProductSpec,
};
use fercuda_vendor::{Error, Result};

const WORKSPACE_BYTES: usize = 4 << 20;

fn main() -> Result<()> {
    match run() {
        // These say what is missing; nothing is wrong with the program.
        Err(error @ (Error::NotFound(_) | Error::SoftwareDevice { .. })) => {
            println!("{error}");
            Ok(())
        }
        other => other,
    }
}

fn run() -> Result<()> {
    let library = CublasLtLibrary::find()?;
    println!(
        "cuBLASLt {}: {}",
        library.version(),
        library.file().display()
    );
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    let stream = Stream::new(&context)?;
    // Refused here if the context is of the software device.
    let lt = CublasLt::new(&library, &context)?;

    // D = relu(A B + bias): 2x3 by 3x4. A row-major output has a bias for each column.
    let a = MatrixLayout::row_major(Dtype::F32, 2, 3);
    let b = MatrixLayout::row_major(Dtype::F32, 3, 4);
    let d = MatrixLayout::row_major(Dtype::F32, 2, 4);
    let mut spec = ProductSpec::new(ProductMath::F32, a, b, d);
    spec.epilogue.bias = true;
    spec.epilogue.activation = ProductActivation::Relu;
    let product = MatrixProduct::new(&lt, &spec)?;

    // The library's candidates, the fastest first by its own estimate.
    let request = AlgorithmRequest::new()
        .count(4)
        .workspace_bytes(WORKSPACE_BYTES as u64);
    let algorithms = product.algorithms(&request)?;
    for algorithm in &algorithms {
        println!(
            "an algorithm with {} bytes of workspace",
            algorithm.workspace_bytes()
        );
    }

    let a = DeviceBuffer::from_host(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &stream)?;
    let b = [
        1.0f32, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0,
    ];
    let b = DeviceBuffer::from_host(&b, &stream)?;
    let bias = DeviceBuffer::from_host(&[0.0f32, 0.0, -5.0, 100.0], &stream)?;
    let mut d = DeviceBuffer::<f32>::zeroed(&stream, 8)?;
    let mut workspace = DeviceBuffer::<u8>::alloc(&context, WORKSPACE_BYTES)?;
    let operands = ProductOperands::new(a.as_slice(), b.as_slice(), d.as_slice_mut())
        .bias(bias.as_slice())
        .workspace(workspace.as_slice_mut());
    product.run(&stream, &algorithms[0], operands)?;
    println!("{:?}", d.to_vec(&stream)?);

    // The same as a graph: nothing is allocated and nothing waited for while it is queued.
    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    let operands = ProductOperands::new(a.as_slice(), b.as_slice(), d.as_slice_mut())
        .alpha(10.0)
        .bias(bias.as_slice())
        .workspace(workspace.as_slice_mut());
    product.run(&stream, &algorithms[0], operands)?;
    let mut graph = capture.end()?.instantiate()?;
    graph.launch(&stream)?;
    println!("{:?}", d.to_vec(&stream)?);
    Ok(())
}
