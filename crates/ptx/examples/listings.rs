//! Writes the PTX of every finished kernel into a folder: `listings FOLDER [sm_90]`.

use std::error::Error;
use std::path::PathBuf;

use fercuda_ptx::ast::Module;
use fercuda_ptx::build::{Arch, BuildError};
use fercuda_ptx::kernels::attention::{self, HeadDim};
use fercuda_ptx::kernels::gemm::{self, Tile};
use fercuda_ptx::kernels::{KernelDesc, layernorm, q4_k, softmax, vector_add};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: listings FOLDER [sm_NN]")?);
    let arch = args
        .next()
        .map_or(Ok(80), |a| a.trim_start_matches("sm_").parse())?;
    let arch = Arch::new(arch);
    for (entry, module) in [
        part(vector_add::f32(arch))?,
        part(softmax::f32(arch))?,
        part(layernorm::f32(arch))?,
        part(q4_k::dequantize_f32(arch))?,
        part(gemm::f32(arch, Tile::Small))?,
        part(gemm::f32(arch, Tile::Large))?,
        part(attention::f32(arch, HeadDim::D32))?,
        part(attention::f32(arch, HeadDim::D64))?,
        part(attention::f32(arch, HeadDim::D128))?,
    ] {
        std::fs::write(
            folder.join(entry).with_extension("ptx"),
            fercuda_ptx::print(&module),
        )?;
    }
    Ok(())
}

fn part<S>(desc: Result<KernelDesc<S>, BuildError>) -> Result<(String, Module), BuildError> {
    desc.map(|d| (d.entry, d.module))
}
