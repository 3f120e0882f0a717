//! Kernels of the corpus, written with [`fercuda_ptx::build`].
//!
//! Each module has one function that gives a [`KernelDesc`]: the PTX module, its entry, its
//! arguments in order, and from a shape the launch.
//!
//! Invariant: arithmetic is rounded as written (no contraction), so results are equal bit for
//! bit wherever the module runs, `.approx` instructions apart.
//!
//! Elsewhere: launching (`fercuda-cuda`).

pub mod attention;
pub mod gemm;
pub mod layernorm;
pub mod q4_k;
mod rows;
pub mod softmax;
pub mod vector_add;

use fercuda_ptx::ast::PtxModule;
use fercuda_ptx::words::ScalarType;

type Geometry<S> = Box<dyn Fn(&S) -> Result<LaunchGeometry, ShapeError> + Send + Sync>;

/// A kernel and how to call it; `S` is the shape of its problem.
pub struct KernelDesc<S> {
    /// The module, with this kernel as its only entry.
    pub module: PtxModule,
    /// Name of the entry.
    pub entry: String,
    /// Arguments in order.
    pub args: &'static [ArgDoc],
    geometry: Geometry<S>,
}

impl<S> KernelDesc<S> {
    /// How to launch it for `shape`.
    ///
    /// # Errors
    /// [`ShapeError`] for a shape that it cannot take.
    pub fn launch(&self, shape: &S) -> Result<LaunchGeometry, ShapeError> {
        (self.geometry)(shape)
    }
}

/// One argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgDoc {
    /// Name in the listing.
    pub name: &'static str,
    /// What it is.
    pub kind: ArgKind,
    /// Shape and meaning.
    pub doc: &'static str,
}

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgKind {
    /// Address of device memory holding this type, aligned to this many bytes.
    Pointer(ScalarType, u32),
    /// A number.
    Number(ScalarType),
}

const fn arg(name: &'static str, kind: ArgKind, doc: &'static str) -> ArgDoc {
    ArgDoc { name, kind, doc }
}

const F32_PTR: ArgKind = ArgKind::Pointer(ScalarType::F32, 4);
const F32_PTR_16: ArgKind = ArgKind::Pointer(ScalarType::F32, 16);
const F32: ArgKind = ArgKind::Number(ScalarType::F32);
const U32: ArgKind = ArgKind::Number(ScalarType::U32);
const S32: ArgKind = ArgKind::Number(ScalarType::S32);

/// A launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchGeometry {
    /// Blocks; a dimension is 0 if there is nothing to do, and then nothing may be launched.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Dynamic shared memory a block, in bytes; above 48 KiB the function's limit must be raised.
    pub dynamic_shared_bytes: u32,
}

/// A shape that a kernel cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}: {what} is {value}, at most {limit} can be had\ntry: {hint}")]
#[non_exhaustive]
pub struct ShapeError {
    /// Kernel.
    pub kernel: &'static str,
    /// Which extent.
    pub what: &'static str,
    /// As given.
    pub value: u64,
    /// Largest that works.
    pub limit: u64,
    /// What to do.
    pub hint: &'static str,
}

/// Most blocks along x, and most elements along a row.
const MAX_X: u64 = (1 << 31) - 1;

fn at_most(
    kernel: &'static str,
    what: &'static str,
    value: u64,
    limit: u64,
) -> Result<u32, ShapeError> {
    match u32::try_from(value) {
        Ok(v) if value <= limit => Ok(v),
        _ => Err(ShapeError {
            kernel,
            what,
            value,
            limit,
            hint: "split the problem over several launches",
        }),
    }
}
