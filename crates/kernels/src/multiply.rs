//! Matrix products, with what is done to each element of the result.
//!
//! `multiply.cu` writes each element of the result once; of the factors, the bias and the residual
//! it reads elements at indices that it has compared with the extents, in shapes of the result's
//! extents.

use fercuda_tensor::{Dtype, Layout, LayoutError};

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Rows and columns of the result that a block computes.
const SIDE: u64 = 64;

/// Function of each element of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// None.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// x by the normal distribution's function.
    Gelu,
    /// x by its sigmoid.
    Silu,
}

/// What is done to each element of a product.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductEpilogue<'a> {
    /// A factor of the product; 1 without one.
    pub scale: Option<f64>,
    /// One number for each column, added to it.
    pub bias: Option<&'a MemoryView>,
    /// A function of the sum.
    pub activation: Activation,
    /// Elements of the result's shape, added at the end.
    pub residual: Option<&'a MemoryView>,
}

/// The type in which products are summed, in C++.
fn summed(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "double",
        Dtype::I64 | Dtype::U64 => "u64",
        dtype if dtype.is_float() => "float",
        _ => "u32",
    }
}

/// Type of the product of matrices: that of the factors, but of 8 and 16 bits 32.
pub fn product_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::I8 | Dtype::I16 => Dtype::I32,
        Dtype::U8 | Dtype::U16 | Dtype::Bool => Dtype::U32,
        dtype => dtype,
    }
}

/// Strides of a matrix's last two dimensions.
fn inner(layout: &Layout) -> [i64; 2] {
    match layout.strides() {
        [.., rows, columns] => [*rows, *columns],
        _ => [0, 0],
    }
}

/// Adds the product of matrices of the last two dimensions, those before them broadcast to the
/// result's.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together; [`KernelError::TooMany`].
pub fn matrices(
    program: &mut NativeProgram,
    [left, right, to]: [&MemoryView; 3],
    epilogue: ProductEpilogue<'_>,
) -> Result<()> {
    let [outer @ .., rows, columns] = to.shape() else {
        let (dimension, rank) = (1, to.shape().len());
        return Err(LayoutError::NoDimension { dimension, rank }.into());
    };
    let dtype = left.dtype();
    check(right.dtype() == dtype, || {
        format!("{} by {}", dtype, right.dtype())
    })?;
    let of_bias = epilogue.bias.map_or(dtype, MemoryView::dtype);
    check(of_bias == dtype, || {
        format!("a bias of {of_bias} for {dtype}")
    })?;
    let of_residual = epilogue.residual.map_or(to.dtype(), MemoryView::dtype);
    check(of_residual == to.dtype(), || {
        format!("a residual of {of_residual}")
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let depth = left.shape().last().copied().unwrap_or_default();
    let spread = |view: &MemoryView, matrix: [u64; 2]| {
        let shape: Vec<u64> = outer.iter().copied().chain(matrix).collect();
        view.broadcast(&shape)
    };
    let left = spread(left, [*rows, depth])?;
    let right = spread(right, [depth, *columns])?;
    let residual = epilogue
        .residual
        .map(|view| spread(view, [*rows, *columns]));
    let residual = residual.transpose()?;
    let name = summed(dtype);
    let is_near =
        |strides: [i64; 2], at: usize| u8::from(strides[at].abs() <= strides[1 - at].abs());
    let fused = match name {
        "float" => "__fmaf_rn(a, b, c)",
        "double" => "__fma_rn(a, b, c)",
        _ => "((a) * (b) + (c))",
    };
    let text = KernelText::new("multiply.cu", include_str!("../cuda/multiply.cu"))
        .with("ELEMENT", c_type(dtype))
        .with("RESULT", c_type(to.dtype()))
        .with("ACC", name)
        .with("MULTIPLY_ADD(a,b,c)", fused)
        .with("ACTIVATION", epilogue.activation as u32)
        .with("IS_SCALED", u8::from(epilogue.scale.is_some()))
        .with("ERF", if name == "double" { "erf" } else { "erff" })
        .with("EXP", if name == "double" { "exp" } else { "expf" })
        .with("DIMS", to.shape().len())
        .with("LEFT_ALONG_K", is_near(inner(&left.layout), 1))
        .with("RIGHT_ALONG_K", is_near(inner(&right.layout), 0));
    // Strides over the result's extents; along k they are those of the factor's own dimension.
    let shape = |view: &MemoryView| {
        let strides = view.layout.strides().iter().copied();
        ShapeParameter::new(to.shape().iter().copied().zip(strides))
    };
    let (down, across) = (rows.div_ceil(SIDE), columns.div_ceil(SIDE));
    let blocks = outer.iter().product::<u64>();
    let blocks = blocks.saturating_mul(down).saturating_mul(across);
    let step = NativeStep::new(text, "multiply")
        .address(to)
        .writes()
        .shape(shape(to))
        .address(&left)
        .shape(shape(&left))
        .address(&right)
        .shape(shape(&right));
    let step = match epilogue.bias {
        Some(bias) => {
            let bias = bias.broadcast(&[*columns])?;
            let stride = bias.layout.strides().first().copied().unwrap_or_default();
            step.address(&bias).u64(stride.cast_unsigned())
        }
        None => step.u64(0).u64(0),
    };
    let step = match &residual {
        Some(residual) => step.address(residual).shape(shape(residual)),
        None => step.u64(0).shape(shape(to)),
    };
    let step = step
        .f64(epilogue.scale.unwrap_or(1.0))
        .u64(depth)
        .u64(down)
        .u64(across)
        .blocks([blocks, 1, 1])?;
    program.push(step);
    Ok(())
}
