//! Matrix products, with what is done to each element of the result.
//!
//! All texts write each element of the result once; of the factors, the bias and the residual
//! they read elements at indices that they have compared with the extents, in shapes of the
//! result's extents. Those but `multiply.cu` read 16 bytes at once where a view has
//! neighbours at multiples of 16 bytes.

use fercuda_tensor::{Dtype, Layout, LayoutError};

pub use crate::epilogue::{Activation, ProductEpilogue};
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};
use crate::warpgroup;

type Result<T> = std::result::Result<T, KernelError>;

/// A text that computes products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductKernel {
    /// Of all types, by the arithmetic of threads.
    Threads,
    /// Of 16-bit floats, by tensor cores.
    Tensor,
    /// Of one row, by the arithmetic of threads: the right factor is read once.
    Gemv,
    /// Of 16-bit floats, by the warpgroups of sm_90a, where all lies at multiples of 16 bytes.
    Warpgroups,
    /// Of 16-bit floats and few rows, by tensor cores: the right factor is read once for each 16.
    Skinny,
}

/// Rows and columns of the result that a block computes, and its threads.
struct ProductTile {
    rows: u64,
    columns: u64,
    threads: u32,
}

/// Warps of a block of the text for one row.
const GEMV_WARPS: u64 = 8;

/// Warps that share a column of that text: as many as have nearly equal parts of the depth, which
/// are 32 times 16 bytes.
fn gemv_split(depth: u64, element: u64) -> u64 {
    let parts = depth.saturating_mul(element).div_ceil(32 * 16).max(1);
    let is_even = |split: &u64| 8 * (parts.div_ceil(*split) * split - parts) <= parts;
    let mut splits = (0..=GEMV_WARPS.ilog2()).rev().map(|bits| 1 << bits);
    splits.find(is_even).unwrap_or(1)
}

/// Number of tiles of the largest size from which they are used; smaller ones fill more of a
/// device.
const MANY_TILES: u64 = 132;

impl ProductKernel {
    /// The tile of a product of these extents, of [`ProductKernel::Gemv`] by so many warps a
    /// column.
    fn tile(
        self,
        [rows, columns, batches]: [u64; 3],
        is_right_along_k: bool,
        split: u64,
    ) -> ProductTile {
        let tiles = |side: u64| {
            let of_one = rows.div_ceil(side).saturating_mul(columns.div_ceil(side));
            of_one.saturating_mul(batches)
        };
        let (rows, columns, threads) = match self {
            Self::Threads => (64, 64, 256),
            Self::Tensor | Self::Warpgroups if tiles(128) >= MANY_TILES => (128, 128, 128),
            Self::Tensor | Self::Warpgroups => (64, 64, 128),
            Self::Gemv => (1, GEMV_WARPS / split, 32 * GEMV_WARPS as u32),
            // Few columns want many warps for each.
            Self::Skinny if is_right_along_k && columns <= 8192 => (16, 16, 512),
            Self::Skinny if is_right_along_k => (16, 32, 256),
            Self::Skinny => (16, 32, 256),
        };
        ProductTile {
            rows,
            columns,
            threads,
        }
    }
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
    kernel: ProductKernel,
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
    let is_stored = to.dtype() == dtype
        || (dtype.is_float() && dtype != Dtype::F64 && to.dtype() == Dtype::F32);
    check(is_stored || to.dtype() == product_type(dtype), || {
        format!("products of {dtype} as {}", to.dtype())
    })?;
    let is_narrow = matches!(dtype, Dtype::F16 | Dtype::Bf16);
    let is_by_threads = matches!(kernel, ProductKernel::Threads | ProductKernel::Gemv);
    check(is_by_threads || is_narrow, || {
        format!("tensor cores for {dtype} and {}", to.dtype())
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
    // Memory at any address has no tensor maps; there the other text for tensor cores is taken.
    if kernel == ProductKernel::Warpgroups && program.is_aligned {
        let step = warpgroup::step(program, [&left, &right, to], &epilogue, residual.as_ref())?;
        program.push(step);
        return Ok(());
    }
    let name = summed(dtype);
    let is_near =
        |strides: [i64; 2], at: usize| strides[at].unsigned_abs() <= strides[1 - at].unsigned_abs();
    let fused = match name {
        "float" => "__fmaf_rn(a, b, c)",
        "double" => "__fma_rn(a, b, c)",
        _ => "((a) * (b) + (c))",
    };
    let (is_left_along_k, is_right_along_k) = (
        is_near(inner(&left.layout), 1),
        is_near(inner(&right.layout), 0),
    );
    let batches = outer.iter().product::<u64>();
    let split = gemv_split(depth, dtype.bytes());
    let tile = kernel.tile([*rows, *columns, batches], is_right_along_k, split);
    let (file, source, function) = match kernel {
        ProductKernel::Threads => {
            let source = include_str!("../cuda/multiply.cu");
            ("multiply.cu", source, "multiply")
        }
        ProductKernel::Gemv => ("gemv.cu", include_str!("../cuda/gemv.cu"), "gemv"),
        ProductKernel::Tensor | ProductKernel::Warpgroups => {
            ("tensor.cu", include_str!("../cuda/tensor.cu"), "tensor")
        }
        ProductKernel::Skinny => ("skinny.cu", include_str!("../cuda/skinny.cu"), "skinny"),
    };
    let mut text = KernelText::new(file, source)
        .with("ELEMENT", c_type(dtype))
        .with("RESULT", c_type(to.dtype()))
        .with("ACC", name)
        .with("ACTIVATION", epilogue.activation as u32)
        .with("IS_SCALED", u8::from(epilogue.scale.is_some()))
        .with("ERF", if name == "double" { "erf" } else { "erff" })
        .with("EXP", if name == "double" { "exp" } else { "expf" })
        .with("DIMS", to.shape().len())
        .with("LEFT_ALONG_K", u8::from(is_left_along_k))
        .with("RIGHT_ALONG_K", u8::from(is_right_along_k));
    if is_by_threads {
        text = text.with("MULTIPLY_ADD(a,b,c)", fused);
    }
    if kernel != ProductKernel::Threads {
        let last = to.shape().len() - 1;
        let vector =
            |view: &MemoryView, along| u8::from(view.has_vectors(program.is_aligned, along));
        // Of few rows the left factor is read along the depth, however it lies; and the right one
        // where there is a single row.
        let [reads_left_along_k, reads_right_along_k] = match kernel {
            ProductKernel::Gemv => [true, true],
            ProductKernel::Skinny => [true, is_right_along_k],
            _ => [is_left_along_k, is_right_along_k],
        };
        let of_left = if reads_left_along_k { last } else { last - 1 };
        let of_right = if reads_right_along_k { last - 1 } else { last };
        text = text
            .with("LEFT_VECTOR", vector(&left, of_left))
            .with("RIGHT_VECTOR", vector(&right, of_right))
            .with("ROWS", tile.rows)
            .with("COLUMNS", tile.columns);
    }
    match kernel {
        ProductKernel::Gemv => {
            text = text
                .with("THREADS", tile.threads)
                .with("SPLIT", split)
                .with("IS_SINGLE", u8::from(*rows == 1 && batches == 1));
        }
        ProductKernel::Skinny => text = text.with("THREADS", tile.threads),
        _ => {}
    }
    // Strides over the result's extents; along k they are those of the factor's own dimension.
    let shape = |view: &MemoryView| {
        let strides = view.layout.strides().iter().copied();
        ShapeParameter::new(to.shape().iter().copied().zip(strides))
    };
    let (down, across) = (rows.div_ceil(tile.rows), columns.div_ceil(tile.columns));
    let blocks = batches.saturating_mul(down).saturating_mul(across);
    let step = NativeStep::new(text, function)
        .threads(tile.threads)
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
