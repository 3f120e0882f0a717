//! cuFFT as a candidate: transforms along the last dimensions of contiguous numbers.
//!
//! Invariant: a transform that `spec` accepts has the operand and the result of its op, of the
//! types in which the library computes, and does not write the operand. Elsewhere: opening the
//! library, and every check of its memory (`fercuda-vendor`).

use fercuda_cuda::{Context, Stream};
use fercuda_jit::{Bindings, BoundArg, BoundNames, CompiledExpr, Compiler, ExprGraph, text};
use fercuda_kernels::KernelError;
use fercuda_kernels::fft::FourierKind;
use fercuda_tensor::{Dtype, Layout};
use fercuda_vendor::cufft::{
    CufftLibrary, TransformDirection, TransformKind, TransformPlan, TransformPrecision,
    TransformSpec,
};

use crate::error::OpError;
use crate::request::OpRequest;
use crate::table::transforms;

/// Alignment of the workspace, for which a plan reserves so much more.
const ALIGN: u64 = 256;
/// Largest number of axes of one transform.
const MOST_AXES: usize = 3;

/// A transform of the library's, ready to run on complex numbers at multiples of their size.
#[derive(Debug)]
pub(crate) struct LibraryTransform {
    op: &'static str,
    plan: TransformPlan,
    direction: TransformDirection,
    /// The factor of the result, in place.
    following: Option<CompiledExpr>,
    operand: Layout,
    output: Layout,
    /// Bytes of a complex number.
    number: u64,
}

/// The transform that the library computes, or why it does not.
pub(crate) fn spec(request: &OpRequest<'_>) -> Result<TransformSpec, String> {
    let ([x], [out]) = (request.operands, request.outputs) else {
        return Err("a transform has one operand and one result".to_owned());
    };
    let precision = match x.dtype() {
        Dtype::F64 => TransformPrecision::F64,
        Dtype::F32 => TransformPrecision::F32,
        dtype => return Err(format!("transforms of {dtype} are left to other kernels")),
    };
    if x.is_empty() {
        return Err("the operand is empty".to_owned());
    }
    let (stages, _) = transforms::stages(request.op, x.shape()).map_err(|misfit| misfit.what)?;
    let kind = match request.op.name() {
        "rfft" => TransformKind::RealToComplex,
        "irfft" => return Err("the library overwrites half a spectrum".to_owned()),
        _ => TransformKind::ComplexToComplex,
    };
    let rank = x.shape().len() - usize::from(kind == TransformKind::ComplexToComplex);
    let mut axes: Vec<(usize, u64)> = stages.iter().map(|it| (it.axis, it.len)).collect();
    if stages[0].kind == FourierKind::RealToHalf {
        // The half spectrum is that of the last axis, which comes first.
        axes.rotate_left(1);
    }
    let count = axes.len();
    let is_last = (rank - count..rank).eq(axes.iter().map(|(axis, _)| *axis));
    if count > MOST_AXES || !is_last {
        let what = "the axes are not the last ones in order, three at most";
        return Err(what.to_owned());
    }
    for (name, layout) in [("x", x), ("the result", out)] {
        if !layout.is_contiguous() {
            return Err(format!("{name} is not contiguous ({layout})"));
        }
    }
    let lengths: Vec<u64> = axes.iter().map(|(_, len)| *len).collect();
    let batch = x.shape()[..rank - count].iter().product();
    Ok(TransformSpec::new(kind, precision, &lengths).batch(batch))
}

/// Describes a transform to the library, which makes its tables.
///
/// # Errors
/// Why the library does not compute it.
pub(crate) fn prepare(
    library: &CufftLibrary,
    context: &Context,
    compiler: &Compiler,
    request: &OpRequest<'_>,
) -> Result<LibraryTransform, String> {
    let spec = spec(request)?;
    let ([x], [out]) = (request.operands, request.outputs) else {
        return Err("a transform has one operand and one result".to_owned());
    };
    let (stages, _) = transforms::stages(request.op, x.shape()).map_err(|misfit| misfit.what)?;
    let plan = TransformPlan::new(library, context, &spec);
    let following = match transforms::scale(request.op, &stages) {
        1.0 => None,
        scale => Some(scaled(compiler, out, scale)?),
    };
    Ok(LibraryTransform {
        op: request.op.name(),
        plan: plan.map_err(|error| error.to_string())?,
        direction: match transforms::is_inverse(request.op) {
            true => TransformDirection::Inverse,
            false => TransformDirection::Forward,
        },
        following,
        operand: *x,
        output: *out,
        number: 2 * spec.precision.bytes(),
    })
}

/// Compiles the product of the result and a factor, in place.
fn scaled(compiler: &Compiler, out: &Layout, scale: f64) -> Result<CompiledExpr, String> {
    let mut graph = ExprGraph::new();
    let added = graph.input("y", *out);
    added.map_err(|error| error.to_string())?;
    let product = format!("y * ({scale})").to_lowercase();
    text::parse(&mut graph, &product).map_err(|error| error.what)?;
    let laid_out = graph.lay_out("out", *out);
    laid_out.map_err(|error| error.to_string())?;
    let compiled = compiler.compile(&graph);
    let compiled = compiled.map_err(|error| error.to_string())?;
    let ready = compiled.prepare_unaligned();
    ready.map_err(|error| error.to_string())?;
    Ok(compiled)
}

impl LibraryTransform {
    /// Number of launches, of which the library's count as one.
    pub(crate) fn launches(&self) -> usize {
        1 + usize::from(self.following.is_some())
    }

    /// Its workspace, with room to align it.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        match self.plan.workspace_bytes() {
            0 => 0,
            bytes => bytes + ALIGN,
        }
    }

    /// Queues the transform, unless memory is not at a multiple of a complex number's size. The
    /// answer is whether it is queued.
    pub(crate) fn run(
        &self,
        names: &dyn BoundNames,
        stream: &Stream,
        operands: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        workspace: Option<BoundArg<'_>>,
    ) -> Result<bool, OpError> {
        let bound = |error: fercuda_jit::Error| OpError::Run {
            op: self.op,
            error: Box::new(KernelError::Bound(error)),
        };
        let bindings = Bindings {
            inputs: &[self.operand],
            outputs: &[self.output],
            in_place: &[vec![false]],
            names,
        };
        let bits = bindings.check(operands, outputs).map_err(bound)?;
        if !bits.is_multiple_of(self.number) {
            return Ok(false);
        }
        let workspace = workspace.filter(|_| self.plan.workspace_bytes() > 0);
        let aligned = workspace.map(|workspace| {
            bindings.check_scratch(operands, outputs, workspace, self.workspace_bytes())?;
            let address = workspace.address();
            let skipped = address.next_multiple_of(ALIGN) - address;
            workspace.skip(skipped).memory()
        });
        let workspace = aligned.transpose().map_err(bound)?;
        let memory = [
            operands[0].memory().map_err(bound)?,
            outputs[0].memory().map_err(bound)?,
        ];
        let queued = self
            .plan
            .run_bytes(stream, self.direction, memory, workspace);
        queued.map_err(|error| OpError::Library {
            op: self.op,
            error: Box::new(error),
        })?;
        let Some(following) = &self.following else {
            return Ok(true);
        };
        let scaled = following.run(stream, outputs, outputs);
        scaled.map_err(|error| OpError::Run {
            op: self.op,
            error: Box::new(error.into()),
        })?;
        Ok(true)
    }
}
