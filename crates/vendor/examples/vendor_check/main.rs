//! Check of cuBLASLt and cuFFT on a GPU, through this crate, against references in f64.
//!
//! `vendor_check [PRODUCTS [TRANSFORMS]]` runs so many random products and transforms (600 and
//! 300), prints counts, and exits with 1 if one is wrong, or if a kind of product never ran.
//! `FERCUDA_SEED` repeats a run; the seed is printed.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod products;
mod transforms;

use std::process::ExitCode;

use fercuda_cuda::{Context, Cuda, Select, Stream};
use fercuda_vendor::Result;
use fercuda_vendor::cublaslt::{CublasLt, CublasLtLibrary};
use fercuda_vendor::cufft::CufftLibrary;

fn main() -> ExitCode {
    let counts: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|it| it.parse().ok())
        .collect();
    let products = counts.first().copied().unwrap_or(600);
    let transforms = counts.get(1).copied().unwrap_or(300);
    match run(products, transforms) {
        Ok(0) => {
            println!("all is as the references say");
            ExitCode::SUCCESS
        }
        Ok(failures) => {
            println!("{failures} failures");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(products: usize, transforms: usize) -> Result<usize> {
    let mut random = fercuda_trials::rng();
    let context = Context::primary(Cuda::select(Select::Hardware)?.device(0)?)?;
    println!("on {}", context.device());
    let stream = Stream::new(&context)?;
    let lt = CublasLtLibrary::find()?;
    println!("cuBLASLt {} in {}", lt.version(), lt.file().display());
    let lt = CublasLt::new(&lt, &context)?;
    let mut failures = products::check(&lt, &stream, &mut random, products)?;
    let fft = CufftLibrary::find()?;
    println!("cuFFT {} in {}", fft.version(), fft.file().display());
    failures += transforms::check(&fft, &stream, &mut random, transforms)?;
    Ok(failures)
}
