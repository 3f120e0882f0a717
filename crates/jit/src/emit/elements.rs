//! Places of a domain's elements, and their loads and stores.

use fercuda_ptx::build::{Divide, Global, Int, KernelBuilder, Ptr, Reg};

use super::memory;
use super::value::{self, DynValue};
use crate::expr::arity;
use crate::kernel::{FusedKernel, KernelAccess, KernelStep};

/// Type of row and column counters and of offsets. Arithmetic wraps, so negative strides need no
/// special case.
pub(super) trait IndexType: Int + Divide + 'static {
    fn of(k: &KernelBuilder, number: u64) -> Reg<'_, Self>;
    fn from_u32(x: Reg<'_, u32>) -> Reg<'_, Self>;
    /// The address of an element of `bytes` bytes.
    fn place<'k>(base: Reg<'k, u64>, bytes: u64, offset: Reg<'k, Self>) -> Reg<'k, u64>;
    fn value(x: Reg<'_, Self>) -> DynValue<'_>;
    /// The largest value.
    const MOST: u64;
}

impl IndexType for u32 {
    fn of(k: &KernelBuilder, number: u64) -> Reg<'_, u32> {
        k.value(number as u32)
    }
    fn from_u32(x: Reg<'_, u32>) -> Reg<'_, u32> {
        x
    }
    fn place<'k>(base: Reg<'k, u64>, bytes: u64, offset: Reg<'k, u32>) -> Reg<'k, u64> {
        let offset = offset.bitcast::<i32>();
        match bytes {
            1 => Ptr::<Global, u8>::from_address(base)
                .index(offset)
                .address(),
            2 => Ptr::<Global, u16>::from_address(base)
                .index(offset)
                .address(),
            4 => Ptr::<Global, u32>::from_address(base)
                .index(offset)
                .address(),
            _ => Ptr::<Global, u64>::from_address(base)
                .index(offset)
                .address(),
        }
    }
    fn value(x: Reg<'_, u32>) -> DynValue<'_> {
        DynValue::U32(x)
    }
    const MOST: u64 = u32::MAX as u64;
}

impl IndexType for u64 {
    fn of(k: &KernelBuilder, number: u64) -> Reg<'_, u64> {
        k.value(number)
    }
    fn from_u32(x: Reg<'_, u32>) -> Reg<'_, u64> {
        x.to()
    }
    fn place<'k>(base: Reg<'k, u64>, bytes: u64, offset: Reg<'k, u64>) -> Reg<'k, u64> {
        offset.mul_add(bytes, base)
    }
    fn value(x: Reg<'_, u64>) -> DynValue<'_> {
        DynValue::U64(x)
    }
    const MOST: u64 = u64::MAX;
}

/// Decomposes a linear index into indices of the dimensions, the outermost first. The first extent
/// is not used.
pub(super) fn indices<'k, I: IndexType>(count: Reg<'k, I>, extents: &[u64]) -> Vec<Reg<'k, I>> {
    let k = count.kernel();
    let mut rest = count;
    let mut indices = Vec::new();
    for (at, extent) in extents.iter().enumerate().rev() {
        if at == 0 {
            indices.push(rest);
        } else {
            let extent = I::of(k, *extent);
            indices.push(rest % extent);
            rest = rest / extent;
        }
    }
    indices.reverse();
    indices
}

/// Offset of the element with these indices, in elements.
pub(super) fn offset<'k, I: IndexType>(
    k: &'k KernelBuilder,
    start: i64,
    indices: &[Reg<'k, I>],
    strides: &[i64],
) -> Reg<'k, I> {
    let mut sum: Option<Reg<'k, I>> = None;
    for (index, stride) in indices.iter().zip(strides) {
        let stride = stride.cast_unsigned();
        sum = match (sum, stride) {
            (sum, 0) => sum,
            (None, 1) => Some(*index),
            (None, stride) => Some(*index * I::of(k, stride)),
            (Some(sum), 1) => Some(sum + *index),
            (Some(sum), stride) => Some(index.mul_add(I::of(k, stride), sum)),
        };
    }
    let start = (start != 0).then(|| I::of(k, start.cast_unsigned()));
    match (sum, start) {
        (Some(sum), Some(start)) => sum + start,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => I::of(k, 0),
    }
}

/// The kernel's parameters: addresses, and the number of rows.
pub(super) fn parameters<'k, I: IndexType>(
    k: &'k KernelBuilder,
    kernel: &FusedKernel,
) -> (Vec<Reg<'k, u64>>, Reg<'k, I>) {
    let addresses = (0..kernel.arrays.len())
        .map(|n| k.param_ptr::<u8>(&format!("p{n}")).address())
        .collect();
    (addresses, k.param::<I>("n"))
}

/// Results of an operation for some neighbouring elements, or one result that all share.
pub(super) fn applied<'k>(
    kernel: &FusedKernel,
    at: usize,
    args: &[&[DynValue<'k>]],
) -> Vec<DynValue<'k>> {
    let (step, dtype) = kernel.steps[at];
    let KernelStep::Apply(op, of) = step else {
        return Vec::new();
    };
    let from = kernel.steps[of[arity(op) - 1] as usize].1;
    let count = args.iter().map(|arg| arg.len()).max().unwrap_or(1);
    (0..count)
        .map(|n| {
            let args: Vec<_> = args.iter().map(|arg| arg[n.min(arg.len() - 1)]).collect();
            value::apply(op, from, dtype, &args)
        })
        .collect()
}

/// The values of the `n`th of some neighbouring elements.
pub(super) fn of_each<'k>(values: &[DynValue<'k>], width: u32) -> Vec<DynValue<'k>> {
    (0..width as usize)
        .map(|n| values[n.min(values.len() - 1)])
        .collect()
}

pub(super) fn load_at<'k>(
    kernel: &FusedKernel,
    access: &KernelAccess,
    address: Reg<'k, u64>,
    bytes: i64,
    stride: i64,
    width: u32,
) -> Vec<DynValue<'k>> {
    let dtype = kernel.arrays[access.array as usize].1;
    if stride == 0 || width == 1 {
        return vec![memory::load(dtype, address, bytes)];
    }
    if access.vector {
        return memory::load_vector(dtype, address, bytes, width);
    }
    let apart = stride * dtype.bytes() as i64;
    (0..i64::from(width))
        .map(|n| memory::load(dtype, address, bytes + n * apart))
        .collect()
}

pub(super) fn store_at<'k>(
    k: &'k KernelBuilder,
    kernel: &FusedKernel,
    access: &KernelAccess,
    address: Reg<'k, u64>,
    bytes: i64,
    stride: i64,
    values: &[DynValue<'k>],
) {
    let dtype = kernel.arrays[access.array as usize].1;
    if access.vector && values.len() > 1 {
        return memory::store_vector(k, dtype, address, bytes, values);
    }
    let apart = stride * dtype.bytes() as i64;
    for (n, value) in values.iter().enumerate() {
        memory::store(dtype, address, bytes + n as i64 * apart, *value);
    }
}
