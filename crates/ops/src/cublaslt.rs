//! cuBLASLt as a candidate: matrix products whose layouts it can read.
//!
//! Invariant: a product that `spec` accepts has the operands and result of its op, in the order
//! in which the library takes them. Elsewhere: opening the library, and every check of memory
//! (`fercuda-vendor`).

use fercuda_cuda::Stream;
use fercuda_jit::BoundArg;
use fercuda_kernels::KernelError;
use fercuda_tensor::{Dtype, Layout};
use fercuda_vendor::Error;
use fercuda_vendor::cublaslt::{
    AlgorithmRequest, CublasLt, MatrixLayout, MatrixOrder, MatrixProduct, ProductActivation,
    ProductAlgorithm, ProductMath, ProductOperands, ProductSpec, SplitSums,
};

use crate::error::OpError;
use crate::request::OpRequest;

/// Largest workspace that an algorithm may want, in bytes.
const MOST_WORKSPACE: u64 = 32 << 20;
/// Alignment of the workspace, for which a plan reserves so much more.
const ALIGN: u64 = 256;
/// Number of algorithms to ask for: one that the library offers may be refused when it is run.
const ALGORITHMS: usize = 8;
/// What the library returns then: `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 15;
/// Alignment of operands that a plan's first algorithm relies on.
const ALIGNED: u32 = 16;

/// A product ready to run: by algorithms for memory at multiples of 16 bytes, and others for any,
/// the fastest first by the library's estimate.
#[derive(Debug)]
pub(crate) struct LibraryProduct {
    op: &'static str,
    product: MatrixProduct,
    algorithms: [Vec<ProductAlgorithm>; 2],
    element: u64,
    alpha: f64,
    has_bias: bool,
    /// Number of the op's operands, of which the library may not read the last.
    operands: usize,
}

/// Two dimensions of a matrix, with those before them as one batch.
fn matrix(name: &str, layout: &Layout, batch: u64) -> Result<MatrixLayout, String> {
    let ([outer @ .., rows, cols], [outer_strides @ .., row, col]) =
        (layout.shape(), layout.strides())
    else {
        return Err(format!("{name} is no matrix"));
    };
    let (order, leading, inner) = match (*row, *col) {
        (row, 1) => (MatrixOrder::Row, row, *cols),
        (_, row) if *rows == 1 && row == 1 => (MatrixOrder::Row, *cols as i64, *cols),
        (1, col) => (MatrixOrder::Column, col, *rows),
        _ => {
            return Err(format!(
                "neither dimension of {name} is contiguous ({layout})"
            ));
        }
    };
    let outer_len = if order == MatrixOrder::Row {
        *rows
    } else {
        *cols
    };
    // With one row the distance of rows is of no use, and may be anything.
    let leading = if outer_len == 1 {
        leading.max(inner as i64)
    } else {
        leading
    };
    if leading < inner as i64 {
        return Err(format!("rows of {name} overlap or are reversed ({layout})"));
    }
    let mut stride = 0;
    let mut reached: Option<(u64, i64)> = None;
    for (len, own) in outer.iter().zip(outer_strides).rev() {
        if *len == 1 {
            continue;
        }
        let (count, first) = *reached.get_or_insert((1, *own));
        if first.checked_mul(count as i64) != Some(*own) || first < 0 {
            return Err(format!(
                "the matrices of {name} are not equally far apart ({layout})"
            ));
        }
        reached = Some((count * len, first));
        stride = first;
    }
    let count: u64 = outer.iter().product();
    if count != batch && count != 1 {
        return Err(format!(
            "{name} has {count} matrices of {batch}, repeated among others"
        ));
    }
    Ok(MatrixLayout {
        dtype: layout.dtype(),
        rows: *rows,
        cols: *cols,
        order,
        leading: leading.unsigned_abs(),
        batch,
        batch_stride: if count == 1 { 0 } else { stride.unsigned_abs() },
    })
}

/// A vector as a matrix of one row or one column.
fn as_matrix(layout: &Layout, is_column: bool) -> Result<Layout, String> {
    let shape = match layout.shape() {
        [len] if is_column => vec![*len, 1],
        [len] => vec![1, *len],
        other => other.to_vec(),
    };
    layout.reshape(&shape).map_err(|error| error.to_string())
}

/// The product that the library computes, or why it does not.
pub(crate) fn spec(request: &OpRequest<'_>) -> Result<ProductSpec, String> {
    let (op, operands) = (request.op, request.operands);
    let is_linear = match op.name() {
        "matmul" => false,
        "linear" => true,
        name => return Err(format!("{name} is no product of matrices")),
    };
    let ([x, y, rest @ ..], [out]) = (operands, request.outputs) else {
        return Err("a product has two factors and one result".to_owned());
    };
    let math = match x.dtype() {
        Dtype::F64 => ProductMath::F64,
        Dtype::F32 => ProductMath::F32,
        Dtype::F16 => ProductMath::F16,
        Dtype::Bf16 => ProductMath::Bf16,
        dtype => return Err(format!("products of {dtype} are left to other kernels")),
    };
    let activation = match op.choice_of("activation") {
        "relu" => ProductActivation::Relu,
        "gelu" if x.dtype() == Dtype::F64 => {
            return Err("no expression computes gelu of f64 behind it".to_owned());
        }
        // The others follow.
        _ => ProductActivation::None,
    };
    if [x, y, out].iter().any(|layout| layout.is_empty()) {
        return Err("an operand is empty".to_owned());
    }
    let (left, right, result) = match is_linear {
        true => {
            // All rows of x as one matrix.
            let flat = |layout: &Layout| {
                let width = layout.shape().last().copied().unwrap_or(1).max(1);
                let rows = layout.len() / width;
                layout
                    .reshape(&[rows, width])
                    .map_err(|error| error.to_string())
            };
            let weight = y.permute(&[1, 0]).map_err(|error| error.to_string())?;
            (flat(x)?, weight, flat(out)?)
        }
        false if x.shape().len() == 1 && y.shape().len() == 1 => {
            return Err("a product of two vectors is left to other kernels".to_owned());
        }
        false => {
            let (is_row, is_column) = (x.shape().len() == 1, y.shape().len() == 1);
            let mut shape = out.shape().to_vec();
            if is_row {
                shape.insert(shape.len() - 1, 1);
            }
            if is_column {
                shape.push(1);
            }
            let out = out.reshape(&shape).map_err(|error| error.to_string())?;
            (as_matrix(x, false)?, as_matrix(y, true)?, out)
        }
    };
    let batch = |layout: &Layout| -> u64 {
        let shape = layout.shape();
        shape[..shape.len().saturating_sub(2)].iter().product()
    };
    let all = batch(&result);
    let a = matrix("x", &left, all)?;
    let b = matrix(if is_linear { "weight" } else { "y" }, &right, all)?;
    let d = matrix("the result", &result, all)?;
    let mut spec = ProductSpec::new(math, a, b, d);
    if let [bias, ..] = rest {
        if bias.dtype() != d.dtype {
            return Err(format!("a bias of {} for {}", bias.dtype(), d.dtype));
        }
        if !bias.is_contiguous() || d.order != MatrixOrder::Row {
            return Err("the bias does not lie along the result's rows".to_owned());
        }
        spec.epilogue.bias = true;
    }
    spec.epilogue.activation = activation;
    Ok(spec)
}

/// What is done to the result `y` of the library, as an expression over it and `residual`.
pub(crate) fn following(request: &OpRequest<'_>) -> Option<String> {
    let activated = match request.op.choice_of("activation") {
        "gelu" => "gelu(y)",
        "silu" => "silu(y)",
        _ => "y",
    };
    match (activated, request.operands.get(3)) {
        ("y", None) => None,
        (activated, None) => Some(activated.to_owned()),
        (activated, Some(_)) => Some(format!("{activated} + residual")),
    }
}

/// Describes a product to the library, and asks it for algorithms, of which that of the given
/// number is tried first.
///
/// # Errors
/// Why the library does not compute it.
pub(crate) fn prepare(
    lt: &CublasLt,
    request: &OpRequest<'_>,
    number: usize,
) -> Result<LibraryProduct, String> {
    let spec = spec(request)?;
    let alpha = match request.op.name() {
        "linear" => request.op.number_of("scale"),
        _ => 1.0,
    };
    let shown = |error: Error| error.to_string();
    let product = MatrixProduct::new(lt, &spec).map_err(shown)?;
    let element = spec.a.dtype.bytes();
    let algorithm = |alignment: u32| {
        let wanted = AlgorithmRequest::new()
            .workspace_bytes(MOST_WORKSPACE)
            .alignment(alignment)
            .count(ALGORITHMS)
            .sums(SplitSums::ComputeType);
        product.algorithms(&wanted).map_err(shown)
    };
    let mut algorithms = [algorithm(ALIGNED)?, algorithm(element as u32)?];
    let offered = algorithms[0].len();
    if number >= offered.max(1) {
        return Err(format!(
            "cuBLASLt offers {offered} algorithms, there is no {number}"
        ));
    }
    for all in &mut algorithms {
        if number < all.len() {
            all[..=number].rotate_right(1);
        }
    }
    Ok(LibraryProduct {
        op: request.op.name(),
        product,
        algorithms,
        element,
        alpha,
        has_bias: spec.epilogue.bias,
        operands: request.operands.len(),
    })
}

impl LibraryProduct {
    /// Number of algorithms for aligned memory.
    pub(crate) fn algorithms(&self) -> usize {
        self.algorithms[0].len()
    }

    /// Workspace of either algorithm, with room to align it.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        let all = self.algorithms.iter().flatten();
        let most = all.map(ProductAlgorithm::workspace_bytes);
        match most.max().unwrap_or_default() {
            0 => 0,
            bytes => bytes + ALIGN,
        }
    }

    /// Queues the product by the first algorithm that the library does not refuse. The answer is
    /// whether there was one; else nothing is queued.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        operands: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        workspace: Option<BoundArg<'_>>,
    ) -> Result<bool, OpError> {
        let bound = |error: fercuda_jit::Error| OpError::Run {
            op: self.op,
            error: Box::new(KernelError::Bound(error)),
        };
        for (what, wanted, given) in [
            ("input", self.operands, operands.len()),
            ("output", 1, outputs.len()),
        ] {
            if wanted != given {
                return Err(bound(fercuda_jit::Error::Count {
                    what,
                    wanted,
                    given,
                }));
            }
        }
        let operands = &operands[..2 + usize::from(self.has_bias)];
        let all = operands.iter().chain(outputs);
        let bits = all.fold(0, |bits, arg| bits | arg.address());
        if !bits.is_multiple_of(self.element) {
            return Err(bound(fercuda_jit::Error::Misaligned {
                what: "memory",
                name: "one of those bound".to_owned(),
                address: bits,
                align: self.element,
            }));
        }
        let algorithms = match bits.is_multiple_of(u64::from(ALIGNED)) {
            true => &self.algorithms[0],
            false => &self.algorithms[1],
        };
        let workspace = workspace.map(|workspace| {
            let address = workspace.address();
            let skipped = address.next_multiple_of(ALIGN) - address;
            workspace.skip(skipped).memory()
        });
        let workspace = workspace.transpose().map_err(bound)?;
        let mut memory = Vec::new();
        for arg in operands.iter().chain(outputs) {
            memory.push(arg.memory().map_err(bound)?);
        }
        let output = memory[operands.len()];
        for algorithm in algorithms {
            let parts = [memory[0], memory[1], output];
            let mut arguments = ProductOperands::of_bytes(parts, workspace).alpha(self.alpha);
            if self.has_bias {
                arguments = arguments.bias(memory[2]);
            }
            match self.product.run(stream, algorithm, arguments) {
                Ok(()) => return Ok(true),
                Err(Error::Call(failure)) if failure.code == NOT_SUPPORTED => {}
                Err(error) => {
                    return Err(OpError::Library {
                        op: self.op,
                        error: Box::new(error),
                    });
                }
            }
        }
        Ok(false)
    }
}
