//! Loads and stores of all lanes of a warp that lie one behind the other.
//!
//! Most accesses of kernels are such: then the first address says all, and one copy does it. What
//! is none is left to [`super::access`], and so is what is checked, lane by lane.

use super::access::{BASED, LaneElement, LaneMemory, WIDE};
use super::ctx::{Ctx, DecodedInst};
use super::registers::{ALL, LANES, RegisterFile, RowOperand};
use crate::mem::{At, Window};

/// Most bytes of a lane's part, and so the pieces of 32 bytes of all parts at most.
const MOST_RUN_BYTES: usize = 16;

/// Calls `$run::<$t, _, N>` with the number of elements as a constant, if it is one whose accesses
/// have runs.
macro_rules! with_count {
    ($n:expr, $run:ident, $t:ty, $($argument:expr),*) => {
        match $n {
            1 => $run::<$t, _, 1>($($argument),*),
            2 => $run::<$t, _, 2>($($argument),*),
            _ => $run::<$t, _, 4>($($argument),*),
        }
    };
}

/// Bytes of a lane, of as many elements as an access with runs has at most.
#[inline(always)]
fn run_size<T: LaneElement>(parts: &[u32]) -> Option<usize> {
    let size = T::SIZE * parts.len();
    (size <= MOST_RUN_BYTES && parts.len() <= 4).then_some(size)
}

/// Loads `parts` in all lanes, if they lie one behind the other in shared memory or, unless
/// `SHARED`, in global memory. Returns whether they do.
#[inline(always)]
pub(crate) fn load_run<T: LaneElement, const SHARED: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    parts: &[u32],
) -> bool {
    let Some(size) = run_size::<T>(parts) else {
        return false;
    };
    if SHARED {
        let Some(first) = offset_run(ctx, i, size, ctx.block.shared.len()) else {
            return false;
        };
        let m: &[u8] = &ctx.block.shared;
        with_count!(parts.len(), read_run, T, &mut ctx.rows, parts, m, first);
        return true;
    }
    let window = ctx.read_window;
    let Some(first) = global_run(ctx, i, size, &window) else {
        return false;
    };
    with_count!(
        parts.len(),
        read_run,
        T,
        &mut ctx.rows,
        parts,
        &window,
        first
    );
    // The next warp's, as a rule.
    let len = (size * LANES) as u64;
    window.expect(first + len, len.min(128));
    true
}

/// The same of a store.
#[inline(always)]
pub(crate) fn store_run<T: LaneElement, const SHARED: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    parts: &[u32],
) -> bool {
    let Some(size) = run_size::<T>(parts) else {
        return false;
    };
    if SHARED {
        let Some(first) = offset_run(ctx, i, size, ctx.block.shared.len()) else {
            return false;
        };
        let m: &mut [u8] = &mut ctx.block.shared;
        with_count!(parts.len(), write_run, T, &ctx.rows, parts, m, first);
        return true;
    }
    let mut window = ctx.write_window;
    let Some(first) = global_run(ctx, i, size, &window) else {
        return false;
    };
    with_count!(
        parts.len(),
        write_run,
        T,
        &ctx.rows,
        parts,
        &mut window,
        first
    );
    true
}

/// Where the accesses of all lanes begin, if they lie one behind the other in memory that `window`
/// holds, and aligned.
#[inline(always)]
fn global_run(ctx: &Ctx<'_>, i: &DecodedInst, size: usize, window: &Window) -> Option<u64> {
    if ctx.mask != ALL || i.imm & WIDE == 0 {
        return None;
    }
    let row = ctx.rows.row_ref::<u64>(i.a);
    let base = match i.imm & BASED {
        0 => 0,
        _ => ctx.rows.lane::<u64>(i.b, 0),
    };
    let offset = i.imm as u32 as i32 as i64 as u64;
    let first = row[0].wrapping_add(base).wrapping_add(offset);
    let fits = first.is_multiple_of(size as u64) && window.holds(first, (LANES * size) as u64);
    (fits && u64::is_run(row, size)).then_some(first)
}

/// The same in memory of `len` bytes, by addresses of 32 bits.
#[inline(always)]
fn offset_run(ctx: &Ctx<'_>, i: &DecodedInst, size: usize, len: usize) -> Option<u32> {
    if ctx.mask != ALL || i.imm & WIDE != 0 {
        return None;
    }
    let row = ctx.rows.row_ref::<u32>(i.a);
    let first = row[0].wrapping_add(i.imm as u32);
    let fits = (first as usize).is_multiple_of(size) && first as usize + LANES * size <= len;
    (fits && u32::is_run(row, size)).then_some(first)
}

// ---- rows from and to bytes -----------------------------------------------------------------

/// [`super::access::read`] of all lanes, which lie one behind the other from `first` on; `N`
/// elements each, of 16 bytes at most.
#[inline(always)]
fn read_run<T: LaneElement, M: LaneMemory + ?Sized, const N: usize>(
    rows: &mut RegisterFile,
    parts: &[u32],
    m: &M,
    first: M::At,
) {
    let d: [RowOperand; N] = std::array::from_fn(|k| RowOperand::from_bits(parts[k]));
    if N == 1 && T::SIZE >= 4 {
        let pieces = (0..4).flat_map(|n| (0..T::SIZE / 4).map(move |p| (n, p)));
        for (at, (n, p)) in pieces.enumerate() {
            m.copy_out(
                first.plus(32 * at),
                &mut rows.bytes_mut::<T::Raw>(d[0], n)[p],
            );
        }
        return;
    }
    let mut pieces = [[0; 32]; MOST_RUN_BYTES];
    for (p, piece) in pieces[..T::SIZE * N].iter_mut().enumerate() {
        m.copy_out(first.plus(32 * p), piece);
    }
    let bytes = pieces.as_flattened();
    for (k, &d) in d.iter().enumerate() {
        for n in 0..4 {
            let element = |l| {
                let at = ((8 * n + l) * N + k) * T::SIZE;
                T::from_slice(&bytes[at..at + T::SIZE]).raw()
            };
            rows.put(d, n, std::array::from_fn(element));
        }
    }
}

/// The reverse of [`read_run`].
#[inline(always)]
fn write_run<T: LaneElement, M: LaneMemory + ?Sized, const N: usize>(
    rows: &RegisterFile,
    parts: &[u32],
    m: &mut M,
    first: M::At,
) {
    let d: [RowOperand; N] = std::array::from_fn(|k| RowOperand::from_bits(parts[k]));
    if N == 1 && T::SIZE >= 4 {
        let pieces = (0..4).flat_map(|n| (0..T::SIZE / 4).map(move |p| (n, p)));
        for (at, (n, p)) in pieces.enumerate() {
            m.copy_in(first.plus(32 * at), &rows.bytes::<T::Raw>(d[0], n)[p]);
        }
        return;
    }
    let mut pieces = [[0; 32]; MOST_RUN_BYTES];
    let bytes = pieces.as_flattened_mut();
    for (k, &d) in d.iter().enumerate() {
        for n in 0..4 {
            for (l, v) in rows.chunk(d, n).into_iter().enumerate() {
                let at = ((8 * n + l) * N + k) * T::SIZE;
                T::of(v).to_slice(&mut bytes[at..at + T::SIZE]);
            }
        }
    }
    for (p, piece) in pieces[..T::SIZE * N].iter().enumerate() {
        m.copy_in(first.plus(32 * p), piece);
    }
}
