//! Code generation: kernels as PTX, written with `fercuda_ptx::build`.
//!
//! A map is a grid-stride loop: each thread takes some neighbouring elements, then those a whole
//! grid further on. Reductions of rows are in `rows`.
//!
//! Invariant: a kernel accesses only what its accesses reach from the addresses that it is given,
//! in elements of its domain; the launcher has checked that this memory exists. Parameters are the
//! addresses in order, then the number of rows.

mod elements;
mod exchange;
mod map;
mod math64;
mod memory;
mod narrow;
mod rows;
mod value;

use fercuda_ptx::ast::PtxModule;
use fercuda_ptx::build::{Arch, BuildError, ModuleBuilder};

use fercuda_tensor::Dtype;

use crate::expr::Prim;
use crate::kernel::{FusedKernel, KernelKind, KernelStep};

/// Name of the `n`th kernel of a program.
pub(crate) fn name(n: usize) -> String {
    format!("k{n}")
}

/// Generates a module with these kernels.
///
/// # Errors
/// [`BuildError::NeedsArch`] for an architecture that lacks an instruction.
pub(crate) fn module(kernels: &[FusedKernel], arch: Arch) -> Result<PtxModule, BuildError> {
    let mut module = ModuleBuilder::new(arch);
    if arch.number() < FP8 {
        for (n, kernel) in kernels.iter().enumerate() {
            if has_fp8(kernel) {
                return Err(BuildError::NeedsArch {
                    kernel: name(n),
                    what: "an eight-bit float".to_owned(),
                    needs: FP8,
                    target: arch,
                });
            }
        }
    }
    for (n, kernel) in kernels.iter().enumerate() {
        let name = name(n);
        module.kernel(&name, |k| match (kernel.kind, kernel.wide) {
            (KernelKind::Map { width, tail }, false) => map::map::<u32>(k, kernel, width, tail),
            (KernelKind::Map { width, tail }, true) => map::map::<u64>(k, kernel, width, tail),
            (KernelKind::Rows { .. }, false) => rows::rows::<u32>(k, kernel, &name),
            (KernelKind::Rows { .. }, true) => rows::rows::<u64>(k, kernel, &name),
        });
    }
    module.finish()
}

/// The first architecture that converts eight-bit floats.
const FP8: u32 = 89;

fn has_fp8(kernel: &FusedKernel) -> bool {
    let is = |dtype: Dtype| matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2);
    let rounds =
        |step: &KernelStep| matches!(step, KernelStep::Apply(Prim::Round(to), _) if is(*to));
    kernel.arrays.iter().any(|(_, dtype)| is(*dtype))
        || kernel.steps.iter().any(|(step, _)| rounds(step))
}
