//! Kernels without reductions, as a grid-stride loop.

use fercuda_ptx::build::{KernelBuilder, Reg};

use super::elements::{
    IndexType, applied, indices, load_at, of_each, offset, parameters, store_at,
};
use super::value::DynValue;
use crate::expr::arity;
use crate::kernel::{FusedKernel, KernelAccess, KernelStep, THREADS};

/// Writes the kernel of a map.
pub(super) fn map<I: IndexType>(k: &KernelBuilder, kernel: &FusedKernel, width: u32, tail: bool) {
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
