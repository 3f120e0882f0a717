//! Code generation: kernels as PTX, written with `fercuda_ptx::build`.
//!
//! A map is a grid-stride loop: each thread takes some neighbouring elements, then those a whole
//! grid further on. Reductions of rows are in `rows`.
//!
//! Invariant: a kernel accesses only what its accesses reach from the addresses that it is given,
//! in elements of its domain; the launcher has checked that this memory exists. Parameters are the
//! addresses in order, then the number of rows.

mod math64;
mod memory;
mod rows;
mod value;

use fercuda_ptx::ast::Module;
use fercuda_ptx::build::{
    Arch, BuildError, Divide, Global, Int, KernelBuilder, ModuleBuilder, Ptr, Reg,
};

use fercuda_tensor::Dtype;

use crate::canonical::{Prim, arity};
use crate::fused::{FusedKernel, KernelAccess, KernelKind, KernelStep, THREADS};
use value::DynValue;

/// Name of the `n`th kernel of a program.
pub(crate) fn name(n: usize) -> String {
    format!("k{n}")
}

/// Generates a module with these kernels.
///
/// # Errors
/// [`BuildError::NeedsArch`] for an architecture that lacks an instruction.
pub(crate) fn module(kernels: &[FusedKernel], arch: Arch) -> Result<Module, BuildError> {
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
            (KernelKind::Map { width, tail }, false) => map::<u32>(k, kernel, width, tail),
            (KernelKind::Map { width, tail }, true) => map::<u64>(k, kernel, width, tail),
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

/// Type of row and column counters and of offsets. Arithmetic wraps, so negative strides need no
/// special case.
trait IndexType: Int + Divide + 'static {
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
fn indices<'k, I: IndexType>(count: Reg<'k, I>, extents: &[u64]) -> Vec<Reg<'k, I>> {
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
fn offset<'k, I: IndexType>(
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
fn parameters<'k, I: IndexType>(
    k: &'k KernelBuilder,
    kernel: &FusedKernel,
) -> (Vec<Reg<'k, u64>>, Reg<'k, I>) {
    let addresses = (0..kernel.arrays.len())
        .map(|n| k.param_ptr::<u8>(&format!("p{n}")).address())
        .collect();
    (addresses, k.param::<I>("n"))
}

/// Results of an operation for some neighbouring elements, or one result that all share.
fn applied<'k>(kernel: &FusedKernel, at: usize, args: &[&[DynValue<'k>]]) -> Vec<DynValue<'k>> {
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
fn of_each<'k>(values: &[DynValue<'k>], width: u32) -> Vec<DynValue<'k>> {
    (0..width as usize)
        .map(|n| values[n.min(values.len() - 1)])
        .collect()
}

fn load_at<'k>(
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

fn store_at<'k>(
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

fn map<I: IndexType>(k: &KernelBuilder, kernel: &FusedKernel, width: u32, tail: bool) {
    k.max_threads(THREADS);
    let (addresses, n) = parameters::<I>(k, kernel);
    let block = I::from_u32(k.ctaid_x());
    let threads = I::from_u32(k.ntid_x());
    let thread = block.mul_add(threads, I::from_u32(k.tid_x()));
    let step = threads * I::from_u32(k.nctaid_x());
    let shift = width.trailing_zeros();
    let chunks = if shift == 0 { n } else { n >> shift };
    let body = |first: Reg<'_, I>, width: u32| {
        let indices = indices(first, &kernel.kept);
        let place = |access: &KernelAccess| {
            let offset = offset(k, access.offset, &indices, &access.kept);
            let bytes = kernel.arrays[access.array as usize].1.bytes();
            I::place(addresses[access.array as usize], bytes, offset)
        };
        let inner = |access: &KernelAccess| access.kept.last().copied().unwrap_or(0);
        let mut values: Vec<Vec<DynValue<'_>>> = Vec::new();
        for (at, (step, dtype)) in kernel.steps.iter().enumerate() {
            let new = match step {
                KernelStep::Const(bits) => vec![DynValue::constant(k, *dtype, *bits)],
                KernelStep::Load(access) => {
                    let access = &kernel.accesses[*access as usize];
                    load_at(kernel, access, place(access), 0, inner(access), width)
                }
                KernelStep::Apply(op, args) => {
                    let args = &args[..arity(*op)];
                    let args: Vec<&[DynValue<'_>]> =
                        args.iter().map(|arg| &*values[*arg as usize]).collect();
                    applied(kernel, at, &args)
                }
                // A map has no reductions.
                KernelStep::Reduced(_) => Vec::new(),
            };
            values.push(new);
        }
        for store in &kernel.stores {
            let access = &kernel.accesses[store.access as usize];
            let values = of_each(&values[store.of as usize], width);
            store_at(k, kernel, access, place(access), 0, inner(access), &values);
        }
    };
    k.for_range("chunk", thread, chunks, step, |chunk| {
        let first = if shift == 0 { chunk } else { chunk << shift };
        body(first, width);
    });
    if tail && width > 1 {
        let done = chunks << shift;
        let left = n - done;
        k.if_(thread.lt(left).named("is_left"), || body(done + thread, 1));
    }
}
