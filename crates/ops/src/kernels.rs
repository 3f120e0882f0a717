//! Table of kernels: the candidates among which a plan chooses.
//!
//! Invariant: `supports` accepts a request only if the kernel computes it within the error bound
//! of the op, and gives the reason otherwise. Elsewhere: the choice (`plan`).

use fercuda_kernels::{KernelError, NativeProgram, ProgramForm};
use fercuda_tensor::{Dtype, Layout};

use crate::cublaslt;
use crate::cufft;
use crate::parameters::OpParameters;
use crate::request::OpRequest;
use crate::row::{OpFamily, OpOracle, OpRow, RowLowering};
use crate::table::{products, sequences};

/// Implementation that a kernel comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Expressions compiled by `fercuda-jit`.
    Jit,
    /// CUDA C++ of `fercuda-kernels`, compiled by NVRTC.
    Cuda,
    /// cuBLASLt, NVIDIA's library, opened at run time.
    CublasLt,
    /// cuFFT, NVIDIA's library, opened at run time.
    Cufft,
}

/// A kernel.
#[derive(Debug)]
pub struct KernelRow {
    /// Its name, for [`crate::KernelPolicy::Force`].
    pub id: &'static str,
    /// Its implementation.
    pub backend: Backend,
    /// Order in which elements are combined.
    pub order: &'static str,
    /// Types in which values are computed and summed.
    pub accumulator: &'static str,
    /// Whether equal operands of equal layouts give equal bits, in each run.
    pub is_deterministic: bool,
    /// Whether it computes the op for some request.
    pub computes: fn(&OpRow) -> bool,
    /// Whether it computes the request, else why not.
    pub supports: fn(&OpRequest<'_>) -> Result<(), String>,
    /// Whether a library is faster for the request, and is chosen where it supports it.
    pub yields: fn(&OpRequest<'_>) -> bool,
    /// Its launches, if they are others than those of the op's row.
    pub lower: Option<fn(&OpParameters, &mut NativeProgram) -> RowLowering>,
}

/// All kernels; the first one that supports a request is chosen.
pub const KERNELS: &[KernelRow] = &[
    native(
        "cuda.copy",
        "elements are independent",
        "none: bits are moved",
        true,
        |row| has_native(row, "cuda.copy"),
        |request| check_native(request, "cuda.copy"),
    ),
    native(
        "cuda.index",
        "none for sums and products of scattered values",
        "f32 for floats, f64 for f64, 32 or 64 bits for integers",
        false,
        |row| has_native(row, "cuda.index"),
        |request| check_native(request, "cuda.index"),
    ),
    KernelRow {
        // Threads store results of f32 one by one: 0.9 of the library's speed.
        yields: |request| request.outputs.first().map(Layout::dtype) == Some(Dtype::F32),
        ..product(
            "cuda.warpgroup",
            "one after another along the depth, by 16, in one part, two or four",
            "f32, by tensor cores",
            warpgroups,
            products::warpgroups,
        )
    },
    KernelRow {
        id: "cublaslt",
        backend: Backend::CublasLt,
        order: "by the library; it may round a product to its type before a bias",
        accumulator: "f32 for narrower floats, else the type",
        is_deterministic: true,
        computes: |row| products::OPS.contains(&row.name),
        lower: None,
        yields: |_| false,
        supports: |request| {
            if let Some(reason) = request.no_cublaslt {
                return Err(reason.to_owned());
            }
            cublaslt::spec(request).map(|_| ())
        },
    },
    product(
        "cuda.gemv",
        "fixed by the length of the depth",
        "f32 for floats, f64 for f64, 32 or 64 bits for integers",
        |request| {
            let rows = products::rows(request.op, request.operands);
            if rows > 1 {
                return Err(format!("{rows} rows, it is for one"));
            }
            if !products::is_right_along_depth(request.op, request.operands) {
                return Err("neighbours of the right factor are not along the depth".to_owned());
            }
            compiled(request)
        },
        products::gemv,
    ),
    product(
        "cuda.skinny",
        "fixed by the layout of the factors",
        "f32, by tensor cores",
        |request| {
            tensor_cores(request)?;
            match products::rows(request.op, request.operands) {
                0..=16 => Ok(()),
                rows => Err(format!("{rows} rows, it is for at most 16")),
            }
        },
        products::skinny,
    ),
    product(
        "cuda.tensor",
        "one after another along the depth, by 16",
        "f32, by tensor cores",
        tensor_cores,
        products::tensor,
    ),
    native(
        "cuda.multiply",
        "one after another along the depth",
        "f32 for floats, f64 for f64, 32 or 64 bits for integers",
        true,
        |row| has_native(row, "cuda.multiply"),
        |request| check_native(request, "cuda.multiply"),
    ),
    native(
        "cuda.loss",
        "fixed by the number of rows and classes",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.loss"),
        |request| check_native(request, "cuda.loss"),
    ),
    native(
        "cuda.linear_loss",
        "classes in parts, fixed by the numbers of rows and classes",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.linear_loss"),
        |request| check_native(request, "cuda.linear_loss"),
    ),
    native(
        "cuda.maths",
        "elements are independent",
        "f32 for narrower floats, else the type",
        true,
        |row| has_native(row, "cuda.maths"),
        |request| check_native(request, "cuda.maths"),
    ),
    native(
        "cuda.norm",
        "fixed by the number of elements that are combined",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.norm"),
        |request| check_native(request, "cuda.norm"),
    ),
    native(
        "cuda.optimise",
        "fixed by the number of elements",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.optimise"),
        |request| check_native(request, "cuda.optimise"),
    ),
    native(
        "cuda.patch",
        "by places of the window",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.patch"),
        |request| check_native(request, "cuda.patch"),
    ),
    native(
        "cuda.sample",
        "by places between elements, and samples in order",
        "f64",
        true,
        |row| has_native(row, "cuda.sample"),
        |request| check_native(request, "cuda.sample"),
    ),
    native(
        "cuda.spread",
        "none for sums of what grids' places give to elements",
        "f64 for places, f32 for floats, f64 for f64",
        false,
        |row| has_native(row, "cuda.spread"),
        |request| check_native(request, "cuda.spread"),
    ),
    native(
        "cuda.boxes",
        "by scores; equal ones stay in order",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.boxes"),
        |request| check_native(request, "cuda.boxes"),
    ),
    native(
        "cuda.ctc",
        "steps in order, states are independent",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.ctc"),
        |request| check_native(request, "cuda.ctc"),
    ),
    native(
        "cuda.place",
        "elements are independent",
        "f64 for floats, 64 bits for integers",
        true,
        |row| has_native(row, "cuda.place"),
        |request| check_native(request, "cuda.place"),
    ),
    native(
        "cuda.quantise",
        "elements are independent, and largest magnitudes of any order",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.quantise"),
        |request| check_native(request, "cuda.quantise"),
    ),
    native(
        "cuda.block",
        "fixed by the numbers of rows and elements",
        "32 bits for codes of one scale, else f32",
        true,
        |row| has_native(row, "cuda.block"),
        |request| check_native(request, "cuda.block"),
    ),
    native(
        "cuda.token",
        "fixed by the number of elements of a row",
        "f32; 32 bits for codes of 16 elements",
        true,
        |row| has_native(row, "cuda.token"),
        |request| check_native(request, "cuda.token"),
    ),
    native(
        "cuda.expert",
        "fixed by the number of elements of a row",
        "f32",
        true,
        |row| has_native(row, "cuda.expert"),
        |request| check_native(request, "cuda.expert"),
    ),
    native(
        "cuda.random",
        "elements are independent",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.random"),
        |request| check_native(request, "cuda.random"),
    ),
    native(
        "cuda.draw",
        "weights in order, in parts that the length gives; elements are independent",
        "f64",
        true,
        |row| has_native(row, "cuda.draw"),
        |request| check_native(request, "cuda.draw"),
    ),
    native(
        "cuda.sparse",
        "elements of a row in order, or by the threads of a block",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.sparse"),
        |request| check_native(request, "cuda.sparse"),
    ),
    native(
        "cuda.window",
        "by channels and places of the window",
        "f32 for floats, f64 for f64 and interpolation",
        true,
        |row| has_native(row, "cuda.window"),
        |request| check_native(request, "cuda.window"),
    ),
    native(
        "cuda.scan",
        "fixed by the layouts",
        "f32 for floats, f64 for f64, 64 bits for integers and bool",
        true,
        |row| has_native(row, "cuda.scan"),
        |request| check_native(request, "cuda.scan"),
    ),
    native(
        "cuda.sort",
        "stable: equal elements stay in order",
        "none: bits are moved",
        true,
        |row| has_native(row, "cuda.sort"),
        |request| check_native(request, "cuda.sort"),
    ),
    KernelRow {
        computes: |row| row.name == "attention",
        lower: Some(sequences::warpgroups),
        ..native(
            "cuda.warpgroup_attention",
            "keys in tiles that the extents fix, the last ones first",
            "f32, by tensor cores",
            true,
            |_| false,
            |request| on_warpgroups(request, sequences::warpgroups),
        )
    },
    native(
        "cuda.attention",
        "keys in tiles and parts that the layouts fix",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.attention"),
        |request| check_native(request, "cuda.attention"),
    ),
    native(
        "cuda.recurrence",
        "tokens in order, and elements of a key by eight threads",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.recurrence"),
        |request| check_native(request, "cuda.recurrence"),
    ),
    native(
        "cuda.choice",
        "by the threads of a block; fixed by the length of a row",
        "f64 for sums of weights, f32 for weights",
        true,
        |row| has_native(row, "cuda.choice"),
        |request| check_native(request, "cuda.choice"),
    ),
    native(
        "cuda.segment",
        "rows in order, or by the threads of a block; none for gradients of tables",
        "f32 for floats, f64 for f64",
        false,
        |row| has_native(row, "cuda.segment"),
        |request| check_native(request, "cuda.segment"),
    ),
    native(
        "cuda.select",
        "stable: chosen elements stay in order",
        "64 bits for numbers of elements",
        true,
        |row| has_native(row, "cuda.select"),
        |request| check_native(request, "cuda.select"),
    ),
    KernelRow {
        id: "cufft",
        backend: Backend::Cufft,
        order: "by the library",
        accumulator: "the type",
        // It may choose another algorithm for another number of rows.
        is_deterministic: false,
        computes: |row| row.family == OpFamily::Transform,
        lower: None,
        yields: |_| false,
        supports: |request| {
            if let Some(reason) = request.no_cufft {
                return Err(reason.to_owned());
            }
            cufft::spec(request).map(|_| ())
        },
    },
    native(
        "cuda.fft",
        "fixed by the lengths",
        "f32 for floats, f64 for f64 and roots of unity",
        true,
        |row| has_native(row, "cuda.fft"),
        |request| check_native(request, "cuda.fft"),
    ),
    native(
        "cuda.algebra",
        "fixed by the extents of a matrix",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.algebra"),
        |request| check_native(request, "cuda.algebra"),
    ),
    native(
        "cuda.pairs",
        "elements of a row one after another",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.pairs"),
        |request| check_native(request, "cuda.pairs"),
    ),
    native(
        "cuda.eigen",
        "fixed by the extents of a matrix",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.eigen"),
        |request| check_native(request, "cuda.eigen"),
    ),
    native(
        "cuda.jacobi",
        "fixed by the extents of a matrix",
        "f32 for floats, f64 for f64",
        true,
        |row| has_native(row, "cuda.jacobi"),
        |request| check_native(request, "cuda.jacobi"),
    ),
    KernelRow {
        id: "jit.map",
        backend: Backend::Jit,
        order: "elements are independent",
        accumulator: "f32 for narrower floats, else the type",
        is_deterministic: true,
        lower: None,
        yields: |_| false,
        computes: OpRow::is_expression,
        supports: |request| {
            expression(request)?;
            if is_by_rows(request.op.row()) {
                let op = request.op.name();
                return Err(format!("{op} combines elements, a map does not"));
            }
            narrow_floats(request)
        },
    },
    KernelRow {
        id: "jit.rows",
        backend: Backend::Jit,
        order: "fixed by the length and layout of a row",
        accumulator: "f32 for floats, f64 for f64, 64 bits for integers and bool",
        is_deterministic: true,
        lower: None,
        yields: |_| false,
        computes: OpRow::is_expression,
        supports: |request| {
            expression(request)?;
            if !is_by_rows(request.op.row()) {
                let op = request.op.name();
                return Err(format!(
                    "{op} computes each element by itself, without rows"
                ));
            }
            narrow_floats(request)
        },
    },
];

/// Whether a library computes the request.
pub(crate) fn has_library(request: &OpRequest<'_>) -> bool {
    let is_library = |kernel: &&KernelRow| {
        matches!(kernel.backend, Backend::CublasLt | Backend::Cufft)
            && (kernel.computes)(request.op.row())
    };
    let mut libraries = KERNELS.iter().filter(is_library);
    libraries.any(|kernel| (kernel.supports)(request).is_ok())
}

/// A kernel of `fercuda-kernels`.
const fn native(
    id: &'static str,
    order: &'static str,
    accumulator: &'static str,
    is_deterministic: bool,
    computes: fn(&OpRow) -> bool,
    supports: fn(&OpRequest<'_>) -> Result<(), String>,
) -> KernelRow {
    KernelRow {
        id,
        backend: Backend::Cuda,
        order,
        accumulator,
        is_deterministic,
        computes,
        supports,
        yields: |_| false,
        lower: None,
    }
}

/// A kernel of `fercuda-kernels` for products, with launches of its own.
const fn product(
    id: &'static str,
    order: &'static str,
    accumulator: &'static str,
    supports: fn(&OpRequest<'_>) -> Result<(), String>,
    lower: fn(&OpParameters, &mut NativeProgram) -> RowLowering,
) -> KernelRow {
    let computes = |row: &OpRow| products::OPS.contains(&row.name);
    KernelRow {
        lower: Some(lower),
        ..native(id, order, accumulator, true, computes, supports)
    }
}

fn has_native(row: &OpRow, id: &str) -> bool {
    row.native.as_ref().is_some_and(|rule| rule.kernel == id)
}

fn check_native(request: &OpRequest<'_>, id: &str) -> Result<(), String> {
    let (op, family) = (request.op.name(), id.trim_start_matches("cuda."));
    if !has_native(request.op.row(), id) {
        return Err(format!("{op} is not one of the ops of {family}.cu"));
    }
    compiled(request)
}

/// Refuses what needs NVRTC without it.
fn compiled(request: &OpRequest<'_>) -> Result<(), String> {
    match request.no_compiler {
        None => Ok(()),
        Some(_) => Err("it is compiled by NVRTC, which cannot be used".to_owned()),
    }
}

/// Refuses products that are not of 16-bit floats.
fn tensor_cores(request: &OpRequest<'_>) -> Result<(), String> {
    let dtype = request.operands.first().map(Layout::dtype);
    match dtype {
        Some(Dtype::F16 | Dtype::Bf16) => compiled(request),
        Some(dtype) => Err(format!("it is of f16 and bf16, not {dtype}")),
        None => Err("a product has two factors".to_owned()),
    }
}

/// Refuses products of few rows, or of factors that tensor maps do not describe.
fn warpgroups(request: &OpRequest<'_>) -> Result<(), String> {
    tensor_cores(request)?;
    if request.arch != 90 {
        return Err(format!(
            "it is for sm_90, the device is sm_{}",
            request.arch
        ));
    }
    let rows = products::rows(request.op, request.operands);
    if rows <= 16 {
        return Err(format!("{rows} rows, it is for more than 16"));
    }
    on_warpgroups(request, products::warpgroups)
}

/// Refuses what warpgroups of sm_90 cannot do: other types and devices, and layouts that no tensor
/// map describes.
fn on_warpgroups(
    request: &OpRequest<'_>,
    lower: fn(&OpParameters, &mut NativeProgram) -> RowLowering,
) -> Result<(), String> {
    tensor_cores(request)?;
    if request.arch != 90 {
        return Err(format!(
            "it is for sm_90, the device is sm_{}",
            request.arch
        ));
    }
    // As an H200 would have it; a smaller device has smaller tiles.
    let form = ProgramForm {
        is_aligned: true,
        shared_bytes: 226 << 10,
        multiprocessors: 132,
    };
    let mut program = NativeProgram::new(request.operands, request.outputs, form);
    match lower(request.op, &mut program) {
        Ok(()) => Ok(()),
        Err(KernelError::Views { what }) => Err(what),
        Err(other) => Err(other.to_string()),
    }
}

/// Refuses what is no expression.
fn expression(request: &OpRequest<'_>) -> Result<(), String> {
    match request.op.row().is_expression() {
        true => Ok(()),
        false => Err(format!("{} is no expression", request.op.name())),
    }
}

fn is_by_rows(row: &OpRow) -> bool {
    matches!(row.oracle, OpOracle::Fold(_) | OpOracle::Rows(_))
}

/// Refuses eight-bit floats on devices without instructions that convert them.
fn narrow_floats(request: &OpRequest<'_>) -> Result<(), String> {
    let all = request.operands.iter().chain(request.outputs);
    let narrow = all
        .map(Layout::dtype)
        .find(|dtype| matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2));
    match narrow {
        Some(dtype) if request.arch < 89 => Err(format!(
            "{dtype} needs sm_89 or later, the device is sm_{}",
            request.arch
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::OpDescriptor;

    /// Whether the kernel of warpgroups and the library support a product on sm_90 with that
    /// result, and the former yields to the latter.
    fn yields(result: &str, no_cublaslt: Option<&str>) -> [bool; 3] {
        let op = OpDescriptor::new("linear").unwrap();
        let op = op.choice("result", result).unwrap();
        let dtype = if result == "f32" {
            Dtype::F32
        } else {
            Dtype::Bf16
        };
        let of = |dtype, shape: [u64; 2]| Layout::contiguous(dtype, &shape).unwrap();
        let operands = [of(Dtype::Bf16, [512, 64]), of(Dtype::Bf16, [256, 64])];
        let request = OpRequest {
            op: &op,
            operands: &operands,
            outputs: &[of(dtype, [512, 256])],
            arch: 90,
            no_compiler: None,
            no_cublaslt,
            no_cufft: Some("there is none"),
        };
        let row = KERNELS
            .iter()
            .find(|row| row.id == "cuda.warpgroup")
            .unwrap();
        [
            (row.supports)(&request).is_ok(),
            has_library(&request),
            (row.yields)(&request),
        ]
    }

    #[test]
    fn products_of_warpgroups_yield_to_a_library_for_results_of_f32_alone() {
        assert_eq!(yields("same", None), [true, true, false]);
        assert_eq!(yields("f32", None), [true, true, true]);
        // Without the library they are taken all the same.
        let [supports, has_library, _] = yields("f32", Some("there is none"));
        assert!(supports && !has_library);
    }
}
