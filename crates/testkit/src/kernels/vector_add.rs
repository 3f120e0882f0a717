//! `out = a + b`, one thread an element.

use super::{ArgDoc, F32_PTR, KernelDesc, LaunchGeometry, MAX_X, U32, arg, at_most};
use fercuda_ptx::build::{Arch, BuildError, ModuleBuilder};

/// Length of the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorExtents {
    /// Elements.
    pub n: u64,
}

const ARGS: &[ArgDoc] = &[
    arg("a", F32_PTR, "[n]"),
    arg("b", F32_PTR, "[n]"),
    arg("out", F32_PTR, "[n]; may be a or b"),
    arg("n", U32, "elements"),
];

const THREADS: u32 = 256;

/// `out[i] = a[i] + b[i]` in `f32`.
///
/// # Errors
/// None for architectures that exist.
pub fn f32(arch: Arch) -> Result<KernelDesc<VectorExtents>, BuildError> {
    let mut module = ModuleBuilder::new(arch);
    module.kernel("vector_add", |k| {
        let a = k.param_ptr::<f32>("a");
        let b = k.param_ptr::<f32>("b");
        let out = k.param_ptr::<f32>("out");
        let n = k.param::<u32>("n");
        let i = k.global_id();
        let in_range = i.lt(n).named("in_range");
        k.if_(in_range, || {
            let sum = a.index(i).load() + b.index(i).load();
            out.index(i).store(sum.named("sum"));
        });
    });
    Ok(KernelDesc {
        module: module.finish()?,
        entry: "vector_add".into(),
        args: ARGS,
        geometry: Box::new(|s: &VectorExtents| {
            let n = at_most("vector_add", "n", s.n, MAX_X)?;
            Ok(LaunchGeometry {
                grid: [n.div_ceil(THREADS), 1, 1],
                block: [THREADS, 1, 1],
                dynamic_shared_bytes: 0,
            })
        }),
    })
}
