//! Functions of one or two elements, by CUDA's mathematical functions.
//!
//! `maths.cu` goes over views of one shape, each element at the offset of its number, and writes
//! each element of its results once, after it has read those of the operands at the same place.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::loops::Loops;
use crate::program::{NativeProgram, NativeStep};
use crate::text::{KernelText, c_type, unit_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// A function of one or two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementFunction {
    /// A function of CUDA's by its name for f64; that for f32 has an `f` behind.
    Cuda(&'static str),
    /// The remainder with the sign of the second, 0 by 0 of integers.
    Remainder,
    /// The quotient down to an integer, 0 by 0 of integers.
    FloorQuotient,
    /// The derivative of ln of the gamma function.
    Digamma,
    /// sin(pi x) / (pi x).
    Sinc,
    /// x by a power of two.
    Scaled,
    /// Whether the sign is set.
    SignBit,
    /// The quotient by what is above 0, else infinity.
    ByWeight,
    /// The second, or -1 where the first is infinite.
    PlaceOfFinite,
    /// 1 / x where it is above a part of the second, of these bits of f64, else 0.
    InverseAbove(u64),
    /// 1 where x is above a part of the second, of these bits of f64, else 0.
    IsAbove(u64),
    /// The value itself, as another float.
    Same,
    /// The product.
    Product,
    /// The largest common divisor of magnitudes.
    CommonDivisor,
    /// The least common multiple of magnitudes.
    CommonMultiple,
}

impl ElementFunction {
    /// The expression in C++ of x and y, of a type in which these are computed.
    fn call(self, real: Dtype, operands: usize) -> String {
        let suffix = if real == Dtype::F64 { "" } else { "f" };
        match self {
            Self::Cuda(name) if operands == 1 => format!("{name}{suffix}(x)"),
            Self::Cuda(name) => format!("{name}{suffix}(x, y)"),
            Self::Remainder => "remainder_of(x, y)".to_owned(),
            Self::FloorQuotient => "floor_quotient(x, y)".to_owned(),
            Self::Digamma => "digamma((double)x)".to_owned(),
            Self::Sinc => "sinc_of(x)".to_owned(),
            Self::Scaled => format!("ldexp{suffix}(x, limited((i64)y))"),
            Self::SignBit => "sign_of(x) ? 1 : 0".to_owned(),
            Self::ByWeight => "y > 0 ? x / (Real)y : (Real)as_float(0x7f800000)".to_owned(),
            Self::PlaceOfFinite => "x == (Real)as_float(0x7f800000) ? -1 : y".to_owned(),
            Self::InverseAbove(part) => {
                let part = f64::from_bits(part);
                format!("x > (Real){part:e} * y ? (Real)1 / x : x * 0")
            }
            Self::IsAbove(part) => format!("x > (Real){:e} * y ? 1 : 0", f64::from_bits(part)),
            Self::Same => "x".to_owned(),
            Self::Product => "x * y".to_owned(),
            Self::CommonDivisor => "common_divisor(size_of(x), size_of(y))".to_owned(),
            Self::CommonMultiple => "common_multiple(size_of(x), size_of(y))".to_owned(),
        }
    }
}

fn text(loops: &Loops, element: Dtype, result: Dtype) -> KernelText {
    KernelText::new("maths.cu", include_str!("../cuda/maths.cu"))
        .with_type("ELEMENT", element)
        .with_type("RESULT", result)
        .with("IS_FLOAT", u8::from(element.is_float()))
        .with("IS_SIGNED", u8::from(element.is_signed()))
        .with("DIMS", loops.dims())
}

/// The type in which elements are computed.
fn real(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// Adds `to = function(operands)`, of one or two operands, which are broadcast to the result.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together, [`KernelError::Views`].
pub fn apply(
    program: &mut NativeProgram,
    function: ElementFunction,
    operands: &[&MemoryView],
    to: &MemoryView,
) -> Result<()> {
    let [first, others @ ..] = operands else {
        return check(false, || "no operand".to_owned());
    };
    check(others.len() < 2, || "more than two operands".to_owned())?;
    for operand in operands {
        program.allow_same(to, operand);
    }
    let x = first.broadcast(to.shape())?;
    let y = others.first().unwrap_or(first).broadcast(to.shape())?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let loops = Loops::over(&[to, &x, &y]).merge();
    let dtype = x.dtype();
    let text = text(&loops, dtype, to.dtype())
        .with_type("SECOND", y.dtype())
        .with("CALL", function.call(real(dtype), operands.len()));
    let count = loops.count();
    let step = NativeStep::new(text, "apply")
        .looped(to, &loops, 0)
        .writes()
        .looped(&x, &loops, 1)
        .looped(&y, &loops, 2)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}

/// The elements in the type in which those of their type are computed: themselves, or a copy in the
/// workspace.
///
/// # Errors
/// [`KernelError::Layout`] of what does not fit.
pub fn computed(program: &mut NativeProgram, x: &MemoryView) -> Result<MemoryView> {
    let wide = real(x.dtype());
    if wide == x.dtype() {
        return Ok(*x);
    }
    let to = program.reserve(wide, x.shape())?;
    apply(program, ElementFunction::Same, &[x], &to)?;
    Ok(to)
}

/// Where a result is computed in that type: itself, or workspace.
///
/// # Errors
/// [`KernelError::Layout`] of what does not fit.
pub fn computed_result(program: &mut NativeProgram, to: &MemoryView) -> Result<MemoryView> {
    let wide = real(to.dtype());
    match wide == to.dtype() {
        true => Ok(*to),
        false => program.reserve(wide, to.shape()),
    }
}

/// Adds the narrowing of what was computed to a result.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together.
pub fn narrow(program: &mut NativeProgram, computed: &MemoryView, to: &MemoryView) -> Result<()> {
    match computed == to {
        true => Ok(()),
        false => apply(program, ElementFunction::Same, &[computed], to),
    }
}

/// Adds the next elements from those of `x` towards those of `y`.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together, [`KernelError::Views`].
pub fn next_towards(program: &mut NativeProgram, [x, y, to]: [&MemoryView; 3]) -> Result<()> {
    let dtype = to.dtype();
    let is_wide = dtype.is_float() && dtype.bytes() > 1;
    check(is_wide && x.dtype() == dtype && y.dtype() == dtype, || {
        format!("{} and {} to {dtype}", x.dtype(), y.dtype())
    })?;
    program.allow_same(to, x);
    program.allow_same(to, y);
    let (x, y) = (x.broadcast(to.shape())?, y.broadcast(to.shape())?);
    if to.layout.is_empty() {
        return Ok(());
    }
    let loops = Loops::over(&[to, &x, &y]).merge();
    let text = text(&loops, dtype, dtype)
        .with("STEPS", 1)
        .with("BITS", unit_type(dtype.bytes()));
    let count = loops.count();
    let step = NativeStep::new(text, "step_elements")
        .looped(to, &loops, 0)
        .writes()
        .looped(&x, &loops, 1)
        .looped(&y, &loops, 2)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}

/// Adds the elements as numbers from a half to below 1, and their exponents of 2, of i32.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn parts(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
    exponents: &MemoryView,
) -> Result<()> {
    to.check("the numbers", x.shape(), x.dtype())?;
    exponents.check("the exponents", x.shape(), Dtype::I32)?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let loops = Loops::over(&[to, exponents, x]).merge();
    let text = text(&loops, x.dtype(), x.dtype())
        .with("PARTS", 1)
        .with("SECOND", c_type(x.dtype()));
    let count = loops.count();
    let step = NativeStep::new(text, "part_elements")
        .looped(to, &loops, 0)
        .writes()
        .looped(exponents, &loops, 1)
        .writes()
        .looped(x, &loops, 2)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}
