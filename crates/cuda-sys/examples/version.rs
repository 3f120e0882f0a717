//! The installed driver's version, by the table of its functions.
//!
//! `cargo run -p fercuda-cuda-sys --example version`
//!
//! Prints where the driver is and which CUDA version it is for, or, without one, every path that
//! was tried and what to do. Nothing of CUDA is needed to build it.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;

use fercuda_cuda_sys::types::CUresult;
use fercuda_cuda_sys::{Driver, Symbol};

fn main() -> Result<(), Box<dyn Error>> {
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    // No library was asked for a function so far. Each is looked up when it is first called.
    let mut version = 0;
    // SAFETY: the function writes one integer, and works before `cuInit`.
    let status = unsafe { driver.cuDriverGetVersion(&mut version) }?;
    if status != CUresult::CUDA_SUCCESS {
        return Err(format!("cuDriverGetVersion returned {status:?}").into());
    }
    let (major, minor) = (version / 1000, version % 1000 / 10);
    println!("{}: a driver for CUDA {major}.{minor}", driver.origin());
    for symbol in [Symbol::cuGraphAddNode_v2, Symbol::cuLaunchKernelEx] {
        let has = if driver.has(symbol) { "has" } else { "lacks" };
        println!("it {has} {}", symbol.name());
    }
    Ok(())
}
