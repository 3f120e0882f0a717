//! Loads and stores.
//!
//! A warp's access is looked at as a whole first: one address for all, or neighbours in lane order, are
//! one copy; anything else goes lane by lane, after one range check for all lanes.
//!
//! Invariants: global memory is touched only through windows of accessible addresses; shared and local memory
//! are slices. An access that may not be made faults and changes nothing in its lane.
//!
//! Elsewhere: atomics ([`super::atomics`]), checks ([`super::checks`]).

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Space, Word};

use super::checks;
use super::convert;
use super::ctx::{Ctx, LOCAL_TAG, PARAM_TAG, SHARED_TAG, TAG_MASK};
use super::data::{self, lane_ops};
use super::lanes::{
    ALL, Exec, Handlers, LANES, Operand, RawLane, gather, handlers, handlers_any, handlers_plain,
    map1, map2,
};
use super::lower::{Address, Ext, Lower, Lowered, Mods, Opd, Reason, bad, bits, is_signed, rows};
use super::program::Inst;
use crate::mem::Scalar;
use crate::report::{Access, AccessKind, MemSpace};

/// Flags in the upper half of a memory instruction's `imm`; the lower half is the offset.
pub(crate) const WIDE: u64 = 1 << 32;
pub(crate) const STRONG: u64 = 1 << 33;
pub(crate) const RELEASE: u64 = 1 << 34;
pub(crate) const ACQUIRE: u64 = 1 << 35;
const COUNT_SHIFT: u32 = 40;
/// An offset beyond every memory, aligned for every access.
pub(crate) const NOWHERE: u32 = !15;

/// What memory is read and written as.
pub(crate) trait Elem: Scalar + PartialEq + 'static {
    type Raw: RawLane;
    const SIZE: usize;
    fn raw(self) -> Self::Raw;
    fn of(raw: Self::Raw) -> Self;
    fn from_slice(b: &[u8]) -> Self;
    fn to_slice(self, b: &mut [u8]);
}
macro_rules! elem {
    ($($t:ty, $raw:ty;)*) => {$(
        impl Elem for $t {
            type Raw = $raw;
            const SIZE: usize = size_of::<$t>();
            #[inline(always)]
            fn raw(self) -> $raw { <$raw>::from(self) }
            #[inline(always)]
            fn of(raw: $raw) -> Self { raw as $t }
            #[inline(always)]
            fn from_slice(b: &[u8]) -> Self {
                let mut a = [0; size_of::<$t>()];
                a.copy_from_slice(b);
                <$t>::from_le_bytes(a)
            }
            #[inline(always)]
            fn to_slice(self, b: &mut [u8]) { b.copy_from_slice(&self.to_le_bytes()) }
        }
    )*};
}
elem! { u8, u32; u16, u32; u32, u32; u64, u64; }

/// Vector length of a memory instruction.
#[inline(always)]
fn count(i: &Inst) -> usize {
    (i.imm >> COUNT_SHIFT) as usize & 15
}

/// Register of element `n`.
#[inline(always)]
fn part(ctx: &Ctx<'_>, i: &Inst, n: usize) -> Operand {
    if count(i) == 1 {
        i.d
    } else {
        Operand::from_bits(ctx.code.ext[i.x as usize + n])
    }
}

/// Addresses in all lanes.
#[inline(always)]
pub(crate) fn addresses(ctx: &Ctx<'_>, i: &Inst) -> [u64; LANES] {
    let offset = i.imm as u32 as i32 as i64 as u64;
    if i.imm & WIDE != 0 {
        let a = ctx.rows.row::<u64>(i.a);
        std::array::from_fn(|l| a[l].wrapping_add(offset))
    } else {
        let a = ctx.rows.row::<u32>(i.a);
        std::array::from_fn(|l| u64::from(a[l].wrapping_add(offset as u32)))
    }
}

/// Offsets in a space of 32 bits; what has more becomes an offset beyond every memory.
#[inline(always)]
pub(crate) fn offsets(ctx: &Ctx<'_>, i: &Inst) -> [u32; LANES] {
    let offset = i.imm as u32;
    if i.imm & WIDE != 0 {
        let a = ctx.rows.row::<u64>(i.a);
        std::array::from_fn(|l| {
            let v = a[l].wrapping_add(offset as i32 as i64 as u64);
            if v >> 32 == 0 { v as u32 } else { NOWHERE }
        })
    } else {
        let a = ctx.rows.row::<u32>(i.a);
        std::array::from_fn(|l| a[l].wrapping_add(offset))
    }
}

#[inline(always)]
fn each(mask: u32, mut f: impl FnMut(usize)) {
    let mut m = mask;
    while m != 0 {
        f(m.trailing_zeros() as usize);
        m &= m - 1;
    }
}

#[inline(always)]
fn contiguous(a: &[u64; LANES], step: u64) -> bool {
    let mut bad = 0;
    for (l, &x) in a.iter().enumerate() {
        bad |= x ^ a[0].wrapping_add(l as u64 * step);
    }
    bad == 0
}

#[inline(always)]
fn uniform(a: &[u64; LANES]) -> bool {
    let mut bad = 0;
    for &x in a {
        bad |= x ^ a[0];
    }
    bad == 0
}

/// Least and greatest address of the active lanes, and all their bits.
#[inline(always)]
fn extent(a: &[u64; LANES], mask: u32) -> (u64, u64, u64) {
    let (mut lo, mut hi, mut or) = (u64::MAX, 0, 0);
    if mask == ALL {
        for &x in a {
            lo = lo.min(x);
            hi = hi.max(x);
            or |= x;
        }
    } else {
        each(mask, |l| {
            lo = lo.min(a[l]);
            hi = hi.max(a[l]);
            or |= a[l];
        });
    }
    (lo, hi, or)
}

/// Makes the window such that it holds the range, or says that there is none.
#[inline(always)]
fn window_holds(ctx: &mut Ctx<'_>, lo: u64, hi: u64, len: u64, write: bool) -> bool {
    let w = if write {
        &ctx.write_window
    } else {
        &ctx.read_window
    };
    w.spans(lo, hi, len) || open_window(ctx, lo, hi, len, write)
}

#[cold]
fn open_window(ctx: &mut Ctx<'_>, lo: u64, hi: u64, len: u64, write: bool) -> bool {
    let Some(found) = ctx
        .run
        .spec
        .space
        .window(ctx.run.spec.device.ordinal, lo, write)
    else {
        return false;
    };
    *(if write {
        &mut ctx.write_window
    } else {
        &mut ctx.read_window
    }) = found;
    found.spans(lo, hi, len)
}

/// Whether one lane may access; faults if not.
#[cold]
pub(crate) fn allow(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    lane: usize,
    addr: u64,
    len: u64,
    kind: AccessKind,
) -> bool {
    let access = Access {
        kind,
        space: MemSpace::Global,
        addr,
        len,
    };
    let write = kind != AccessKind::Read;
    if !addr.is_multiple_of(len.next_power_of_two()) {
        ctx.misaligned(i, lane as u32, access);
        return false;
    }
    if !window_holds(ctx, addr, addr, len, write) {
        ctx.illegal(i, lane as u32, access);
        return false;
    }
    true
}

fn load_global<T: Elem, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    addr: &[u64; LANES],
    mut mask: u32,
) {
    let n = count(i);
    let size = (T::SIZE * n) as u64;
    if CHECK {
        mask = checks::global(
            ctx,
            i,
            addr,
            mask,
            size,
            AccessKind::Read,
            i.imm & STRONG != 0,
        );
        each(!mask & ctx.mask, |l| {
            for k in 0..n {
                let d = part(ctx, i, k);
                ctx.rows.set_lane(d, l, T::Raw::default());
            }
        });
    }
    if mask == 0 {
        return;
    }
    if mask == ALL && addr[0].is_multiple_of(size) {
        if T::SIZE >= 4
            && contiguous(addr, size)
            && window_holds(ctx, addr[0], addr[0], 32 * size, false)
        {
            let w = ctx.read_window;
            match (n, T::SIZE) {
                (1, 4) => w.copy_out(addr[0], ctx.rows.bytes_mut(i.d)),
                (1, _) => w.copy_out(addr[0], ctx.rows.bytes2_mut(i.d)),
                _ => {
                    let mut buffer = [0u8; 32 * 32];
                    for k in 0..size / 2 {
                        let mut piece = [0u8; 64];
                        w.copy_out(addr[0] + k * 64, &mut piece);
                        buffer[k as usize * 64..k as usize * 64 + 64].copy_from_slice(&piece);
                    }
                    for k in 0..n {
                        let row: [T::Raw; LANES] = std::array::from_fn(|l| {
                            let at = (l * n + k) * T::SIZE;
                            T::from_slice(&buffer[at..at + T::SIZE]).raw()
                        });
                        let d = part(ctx, i, k);
                        ctx.rows.set_row(d, &row, ALL);
                    }
                }
            }
            return;
        }
        if uniform(addr) && window_holds(ctx, addr[0], addr[0], size, false) {
            for k in 0..n {
                let v: T = ctx.read_window.load(addr[0] + (k * T::SIZE) as u64);
                let d = part(ctx, i, k);
                ctx.rows.set_row(d, &[v.raw(); LANES], ALL);
            }
            return;
        }
    }
    let (lo, hi, or) = extent(addr, mask);
    let easy =
        or.is_multiple_of(size.next_power_of_two()) && window_holds(ctx, lo, hi, size, false);
    each(mask, |l| {
        if easy || allow(ctx, i, l, addr[l], size, AccessKind::Read) {
            for k in 0..n {
                let v: T = ctx.read_window.load(addr[l] + (k * T::SIZE) as u64);
                let d = part(ctx, i, k);
                ctx.rows.set_lane(d, l, v.raw());
            }
        }
    });
}

fn store_global<T: Elem, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    addr: &[u64; LANES],
    mut mask: u32,
) {
    let n = count(i);
    let size = (T::SIZE * n) as u64;
    if CHECK {
        mask = checks::global(
            ctx,
            i,
            addr,
            mask,
            size,
            AccessKind::Write,
            i.imm & STRONG != 0,
        );
    }
    if mask == 0 {
        return;
    }
    if mask == ALL
        && T::SIZE >= 4
        && addr[0].is_multiple_of(size)
        && contiguous(addr, size)
        && window_holds(ctx, addr[0], addr[0], 32 * size, true)
    {
        let w = ctx.write_window;
        let mut buffer = [0u8; 32 * 32];
        for k in 0..n {
            let d = part(ctx, i, k);
            let row = ctx.rows.row::<T::Raw>(d);
            for (l, v) in row.iter().enumerate() {
                let at = (l * n + k) * T::SIZE;
                T::of(*v).to_slice(&mut buffer[at..at + T::SIZE]);
            }
        }
        for k in 0..size / 2 {
            let mut piece = [0u8; 64];
            piece.copy_from_slice(&buffer[k as usize * 64..k as usize * 64 + 64]);
            w.copy_in(addr[0] + k * 64, &piece);
        }
        return;
    }
    let (lo, hi, or) = extent(addr, mask);
    let easy = or.is_multiple_of(size.next_power_of_two()) && window_holds(ctx, lo, hi, size, true);
    each(mask, |l| {
        if easy || allow(ctx, i, l, addr[l], size, AccessKind::Write) {
            for k in 0..n {
                let d = part(ctx, i, k);
                let v = T::of(ctx.rows.lane::<T::Raw>(d, l));
                ctx.write_window.store(addr[l] + (k * T::SIZE) as u64, v);
            }
        }
    });
}

/// Whether all active lanes stay inside `len` bytes, aligned; else the lanes that do, after a fault.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "an access taken apart")]
pub(crate) fn inside(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mask: u32,
    size: u32,
    len: usize,
    kind: AccessKind,
    space: MemSpace,
) -> u32 {
    let (mut hi, mut or) = (0, 0);
    if mask == ALL {
        for &o in off {
            hi = hi.max(o);
            or |= o;
        }
    } else {
        each(mask, |l| {
            hi = hi.max(off[l]);
            or |= off[l];
        });
    }
    if hi as usize + size as usize <= len && or & (size.next_power_of_two() - 1) == 0 {
        return mask;
    }
    outside(ctx, i, off, mask, size, len, kind, space)
}

#[cold]
#[expect(clippy::too_many_arguments, reason = "the cold half of `inside`")]
fn outside(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mask: u32,
    size: u32,
    len: usize,
    kind: AccessKind,
    space: MemSpace,
) -> u32 {
    let mut ok = 0;
    each(mask, |l| {
        let access = Access {
            kind,
            space,
            addr: u64::from(off[l]),
            len: u64::from(size),
        };
        if off[l] & (size.next_power_of_two() - 1) != 0 {
            ctx.misaligned(i, l as u32, access);
        } else if off[l] as usize + size as usize > len {
            ctx.illegal(i, l as u32, access);
        } else {
            ok |= 1 << l;
        }
    });
    ok
}

fn load_shared<T: Elem, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mut mask: u32,
) {
    let n = count(i);
    let size = (T::SIZE * n) as u32;
    if CHECK {
        mask = checks::shared(
            ctx,
            i,
            off,
            mask,
            size,
            AccessKind::Read,
            i.imm & STRONG != 0,
        );
    }
    let len = ctx.block.shared.len();
    let mask = inside(
        ctx,
        i,
        off,
        mask,
        size,
        len,
        AccessKind::Read,
        MemSpace::Shared,
    );
    if mask == ALL {
        let mut bad = 0;
        for (l, &o) in off.iter().enumerate() {
            bad |= o ^ off[0].wrapping_add(l as u32 * size);
        }
        let base = off[0] as usize;
        let sh: &[u8] = &ctx.block.shared;
        if bad == 0 && n == 1 && base + 32 * T::SIZE <= sh.len() {
            let piece = &sh[base..base + 32 * T::SIZE];
            let row: [T::Raw; LANES] = std::array::from_fn(|l| {
                T::from_slice(&piece[l * T::SIZE..(l + 1) * T::SIZE]).raw()
            });
            ctx.rows.set_row(i.d, &row, ALL);
            return;
        }
        for k in 0..n {
            let d = part(ctx, i, k);
            let sh: &[u8] = &ctx.block.shared;
            let Some(values) = gather::<T>(sh.get(k * T::SIZE..).unwrap_or(&[]), off) else {
                return;
            };
            let row: [T::Raw; LANES] = std::array::from_fn(|l| values[l].raw());
            ctx.rows.set_row(d, &row, ALL);
        }
        return;
    }
    for k in 0..n {
        let d = part(ctx, i, k);
        each(mask, |l| {
            let at = off[l] as usize + k * T::SIZE;
            let v = T::from_slice(&ctx.block.shared[at..at + T::SIZE]);
            ctx.rows.set_lane(d, l, v.raw());
        });
    }
}

fn store_shared<T: Elem, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mut mask: u32,
) {
    let n = count(i);
    let size = (T::SIZE * n) as u32;
    if CHECK {
        mask = checks::shared(
            ctx,
            i,
            off,
            mask,
            size,
            AccessKind::Write,
            i.imm & STRONG != 0,
        );
    }
    let len = ctx.block.shared.len();
    let mask = inside(
        ctx,
        i,
        off,
        mask,
        size,
        len,
        AccessKind::Write,
        MemSpace::Shared,
    );
    for k in 0..n {
        let d = part(ctx, i, k);
        let row = ctx.rows.row::<T::Raw>(d);
        let sh: &mut [u8] = &mut ctx.block.shared;
        each(mask, |l| {
            let at = off[l] as usize + k * T::SIZE;
            T::of(row[l]).to_slice(&mut sh[at..at + T::SIZE]);
        });
    }
}

/// Word of `local` that holds byte `off` of `lane`.
#[inline(always)]
pub(crate) fn local_word(off: u32, lane: usize) -> usize {
    (off as usize / 4) * 32 + lane
}

pub(crate) fn local_get<T: Elem>(words: &[u32], off: u32, lane: usize) -> T {
    let w = local_word(off, lane);
    let v = u64::from(words[w])
        | if T::SIZE == 8 {
            u64::from(words[w + 32]) << 32
        } else {
            0
        };
    T::from_slice(&(v >> (8 * (off % 4))).to_le_bytes()[..T::SIZE])
}

pub(crate) fn local_put<T: Elem>(words: &mut [u32], off: u32, lane: usize, v: T) {
    let w = local_word(off, lane);
    let mut b = [0u8; 8];
    v.to_slice(&mut b[..T::SIZE]);
    let v = u64::from_le_bytes(b);
    match T::SIZE {
        8 => {
            words[w] = v as u32;
            words[w + 32] = (v >> 32) as u32;
        }
        4 => words[w] = v as u32,
        n => {
            let shift = 8 * (off % 4);
            let m = (((1u64 << (8 * n)) - 1) as u32) << shift;
            words[w] = (words[w] & !m) | ((v as u32) << shift & m);
        }
    }
}

fn load_local<T: Elem, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mut mask: u32,
) {
    let n = count(i);
    let size = (T::SIZE * n) as u32;
    let len = ctx.w().local.len() / 8;
    mask = inside(
        ctx,
        i,
        off,
        mask,
        size,
        len,
        AccessKind::Read,
        MemSpace::Local,
    );
    if CHECK {
        checks::local(ctx, i, off, mask, size, false);
    }
    let mut same = 0;
    for &o in off {
        same |= o ^ off[0];
    }
    for k in 0..n {
        let d = part(ctx, i, k);
        let warp = ctx.warp;
        if mask == ALL && same == 0 && T::SIZE == 4 {
            let at = local_word(off[0] + (k * T::SIZE) as u32, 0);
            let mut row = [0u32; LANES];
            row.copy_from_slice(&ctx.block.warps[warp].local[at..at + 32]);
            ctx.rows.set_row(d, &row, ALL);
            continue;
        }
        each(mask, |l| {
            let v: T = local_get(
                &ctx.block.warps[warp].local,
                off[l] + (k * T::SIZE) as u32,
                l,
            );
            ctx.rows.set_lane(d, l, v.raw());
        });
    }
}

fn store_local<T: Elem, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mut mask: u32,
) {
    let n = count(i);
    let size = (T::SIZE * n) as u32;
    let len = ctx.w().local.len() / 8;
    mask = inside(
        ctx,
        i,
        off,
        mask,
        size,
        len,
        AccessKind::Write,
        MemSpace::Local,
    );
    if CHECK {
        checks::local(ctx, i, off, mask, size, true);
    }
    for k in 0..n {
        let d = part(ctx, i, k);
        let warp = ctx.warp;
        each(mask, |l| {
            let v = T::of(ctx.rows.lane::<T::Raw>(d, l));
            local_put(
                &mut ctx.block.warps[warp].local,
                off[l] + (k * T::SIZE) as u32,
                l,
                v,
            );
        });
    }
}

/// Loads from the kernel's parameters at computed offsets.
fn load_param<T: Elem>(ctx: &mut Ctx<'_>, i: &Inst, off: &[u32; LANES], mask: u32) {
    let n = count(i);
    let run = ctx.run;
    let mask = inside(
        ctx,
        i,
        off,
        mask,
        (T::SIZE * n) as u32,
        run.spec.params.len(),
        AccessKind::Read,
        MemSpace::Param,
    );
    for k in 0..n {
        let d = part(ctx, i, k);
        each(mask, |l| {
            let at = off[l] as usize + k * T::SIZE;
            let v = T::from_slice(&run.spec.params[at..at + T::SIZE]);
            ctx.rows.set_lane(d, l, v.raw());
        });
    }
}

/// Spaces as const parameters.
const GLOBAL: u8 = 0;
const GENERIC: u8 = 1;
const SHARED: u8 = 2;
const LOCAL: u8 = 3;
const PARAM: u8 = 4;

/// Splits a generic access by space: (mask, tag) pairs that are not empty.
#[inline(always)]
pub(crate) fn by_tag(addr: &[u64; LANES], mask: u32) -> [(u32, u64); 4] {
    let mut all = 0;
    each(mask, |l| all |= addr[l] & TAG_MASK);
    if all == 0 {
        return [(mask, 0), (0, SHARED_TAG), (0, LOCAL_TAG), (0, PARAM_TAG)];
    }
    let mut out = [(0, 0), (0, SHARED_TAG), (0, LOCAL_TAG), (0, PARAM_TAG)];
    each(mask, |l| {
        let n = match addr[l] & TAG_MASK {
            SHARED_TAG => 1,
            LOCAL_TAG => 2,
            PARAM_TAG => 3,
            _ => 0,
        };
        out[n].0 |= 1 << l;
    });
    out
}

struct Load<T, const SPACE: u8, const CHECK: bool>(std::marker::PhantomData<T>);
impl<T: Elem, const SPACE: u8, const CHECK: bool> Exec for Load<T, SPACE, CHECK> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let mask = ctx.mask;
        if CHECK && i.imm & ACQUIRE != 0 || i.imm & STRONG != 0 {
            ctx.waits += 1;
        }
        match SPACE {
            SHARED => load_shared::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            LOCAL => load_local::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            PARAM => load_param::<T>(ctx, i, &offsets(ctx, i), mask),
            GLOBAL => load_global::<T, CHECK>(ctx, i, &addresses(ctx, i), mask),
            _ => {
                let addr = addresses(ctx, i);
                let low: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                for (mask, tag) in by_tag(&addr, mask) {
                    if mask == 0 {
                        continue;
                    }
                    match tag {
                        SHARED_TAG => load_shared::<T, CHECK>(ctx, i, &low, mask),
                        LOCAL_TAG => load_local::<T, CHECK>(ctx, i, &low, mask),
                        PARAM_TAG => load_param::<T>(ctx, i, &low, mask),
                        _ => load_global::<T, CHECK>(ctx, i, &addr, mask),
                    }
                }
            }
        }
    }
}

struct Store<T, const SPACE: u8, const CHECK: bool>(std::marker::PhantomData<T>);
impl<T: Elem, const SPACE: u8, const CHECK: bool> Exec for Store<T, SPACE, CHECK> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let mask = ctx.mask;
        if i.imm & RELEASE != 0 {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if CHECK {
                checks::fence(ctx);
            }
        }
        match SPACE {
            SHARED => store_shared::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            LOCAL => store_local::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            GLOBAL => store_global::<T, CHECK>(ctx, i, &addresses(ctx, i), mask),
            _ => {
                let addr = addresses(ctx, i);
                let low: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                for (mask, tag) in by_tag(&addr, mask) {
                    if mask == 0 {
                        continue;
                    }
                    match tag {
                        SHARED_TAG => store_shared::<T, CHECK>(ctx, i, &low, mask),
                        LOCAL_TAG => store_local::<T, CHECK>(ctx, i, &low, mask),
                        // Parameters are not writable: an address in nobody's memory faults.
                        _ => store_global::<T, CHECK>(ctx, i, &addr, mask),
                    }
                }
            }
        }
    }
}

/// A kernel parameter at a constant offset: the same in all lanes.
struct Parameter<T>(std::marker::PhantomData<T>);
impl<T: Elem> Exec for Parameter<T> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let at = i.imm as usize;
        let v = match ctx.run.spec.params.get(at..at + T::SIZE) {
            Some(b) => T::from_slice(b).raw(),
            None => T::Raw::default(),
        };
        let mask = if FULL { ALL } else { ctx.mask };
        ctx.rows.set_row(i.d, &[v; LANES], mask);
    }
}

lane_ops! {
    WordToLow = map1(u64, u32) |a| a as u32;
    WordToHigh = map1(u64, u32) |a| (a >> 32) as u32;
    WordsToLong = map2(u32, u32, u64) |a, b| u64::from(a) | (u64::from(b) << 32);
}

/// `d = (a >> imm[0..8]) & imm[32..]`.
struct Extract;
impl Exec for Extract {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let (s, m) = (i.imm as u32 & 31, (i.imm >> 32) as u32);
        map1::<u32, u32, FULL>(ctx, i, |a| (a >> s) & m);
    }
}

/// `d = (b & !(m << s)) | ((a & m) << s)`.
struct Insert;
impl Exec for Insert {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let (s, m) = (i.imm as u32 & 31, (i.imm >> 32) as u32);
        map2::<u32, u32, u32, FULL>(ctx, i, |a, b| (b & !(m << s)) | ((a & m) << s));
    }
}

/// Reads a parameter of a call from fixed rows: `bytes` (1, 2, 4, 8) at byte 0 of `row`.
pub(crate) fn load_fixed(l: &mut Lower<'_, '_>, d: Opd, row: u32, bytes: u32) {
    load_fixed_at(l, d, row, 0, bytes);
}

fn load_fixed_at(l: &mut Lower<'_, '_>, d: Opd, row: u32, at: u32, bytes: u32) {
    let r = row + at / 4;
    match bytes {
        8 => {
            l.emit(
                handlers::<WordsToLong>(),
                d,
                Opd::Fixed(r),
                Opd::Fixed(r + 1),
                Opd::None,
            );
        }
        4 => {
            l.emit(data::copy32(), d, Opd::Fixed(r), Opd::None, Opd::None);
        }
        n => {
            l.emit(
                handlers::<Extract>(),
                d,
                Opd::Fixed(r),
                Opd::None,
                Opd::None,
            )
            .imm = u64::from(8 * (at % 4)) | (((1 << (8 * n)) - 1) << 32);
        }
    }
}

/// Writes a parameter of a call to fixed rows.
pub(crate) fn store_fixed(l: &mut Lower<'_, '_>, a: Opd, row: u32, bytes: u32) {
    store_fixed_at(l, a, row, 0, bytes);
}

fn store_fixed_at(l: &mut Lower<'_, '_>, a: Opd, row: u32, at: u32, bytes: u32) {
    let r = row + at / 4;
    match bytes {
        8 => {
            l.emit(
                handlers::<WordToLow>(),
                Opd::Fixed(r),
                a,
                Opd::None,
                Opd::None,
            );
            l.emit(
                handlers::<WordToHigh>(),
                Opd::Fixed(r + 1),
                a,
                Opd::None,
                Opd::None,
            );
        }
        4 => {
            l.emit(data::copy32(), Opd::Fixed(r), a, Opd::None, Opd::None);
        }
        n => {
            l.emit(
                handlers::<Insert>(),
                Opd::Fixed(r),
                a,
                Opd::Fixed(r),
                Opd::None,
            )
            .imm = u64::from(8 * (at % 4)) | (((1 << (8 * n)) - 1) << 32);
        }
    }
}

fn space_of(m: &Mods<'_>, var: Option<Space>) -> u8 {
    let words = [
        Word::Global,
        Word::Shared,
        Word::SharedCta,
        Word::SharedCluster,
        Word::Local,
        Word::Param,
        Word::ParamEntry,
        Word::ParamFunc,
        Word::Const,
    ];
    match (m.any(&words), var) {
        (Some(Word::Shared | Word::SharedCta | Word::SharedCluster), _) => SHARED,
        (Some(Word::Local), _) => LOCAL,
        (Some(Word::Param | Word::ParamEntry | Word::ParamFunc), _) => PARAM,
        (Some(_), _) => GLOBAL,
        // A variable's address in its own space, used without naming the space.
        (None, Some(Space::Shared)) => SHARED,
        (None, Some(Space::Local)) => LOCAL,
        (None, Some(Space::Param)) => PARAM,
        (None, Some(_)) => GLOBAL,
        (None, None) => GENERIC,
    }
}

fn load_handlers(ty_bytes: u32, space: u8, check: bool) -> Handlers {
    fn h<T: Elem, const C: bool>(space: u8) -> Handlers {
        match space {
            SHARED => handlers_any::<Load<T, SHARED, C>>(),
            LOCAL => handlers_any::<Load<T, LOCAL, C>>(),
            PARAM => handlers_plain::<Load<T, PARAM, C>>(),
            GLOBAL => handlers_any::<Load<T, GLOBAL, C>>(),
            _ => handlers_any::<Load<T, GENERIC, C>>(),
        }
    }
    match (ty_bytes, check) {
        (1, false) => h::<u8, false>(space),
        (1, true) => h::<u8, true>(space),
        (2, false) => h::<u16, false>(space),
        (2, true) => h::<u16, true>(space),
        (4, false) => h::<u32, false>(space),
        (4, true) => h::<u32, true>(space),
        (_, false) => h::<u64, false>(space),
        (_, true) => h::<u64, true>(space),
    }
}

fn store_handlers(ty_bytes: u32, space: u8, check: bool) -> Handlers {
    fn h<T: Elem, const C: bool>(space: u8) -> Handlers {
        match space {
            SHARED => handlers_any::<Store<T, SHARED, C>>(),
            LOCAL => handlers_any::<Store<T, LOCAL, C>>(),
            GLOBAL => handlers_any::<Store<T, GLOBAL, C>>(),
            _ => handlers_any::<Store<T, GENERIC, C>>(),
        }
    }
    match (ty_bytes, check) {
        (1, false) => h::<u8, false>(space),
        (1, true) => h::<u8, true>(space),
        (2, false) => h::<u16, false>(space),
        (2, true) => h::<u16, true>(space),
        (4, false) => h::<u32, false>(space),
        (4, true) => h::<u32, true>(space),
        (_, false) => h::<u64, false>(space),
        (_, true) => h::<u64, true>(space),
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Ld | Op::Ldu => load(l, i, m),
        Op::St => store(l, i, m),
        _ => return super::atomics::lower(l, i, m),
    })
}

fn vector_len(m: &Mods<'_>) -> usize {
    match m.any(&[Word::V2, Word::V4, Word::V8]) {
        Some(Word::V2) => 2,
        Some(Word::V4) => 4,
        Some(_) => 8,
        None => 1,
    }
}

/// Order of a memory instruction as flags.
pub(crate) fn order_flags(m: &Mods<'_>) -> u64 {
    let strong = m.any(&[
        Word::Volatile,
        Word::Relaxed,
        Word::Acquire,
        Word::Release,
        Word::AcqRel,
        Word::Sc,
        Word::Mmio,
        Word::Cv,
    ]);
    let mut f = if strong.is_some() { STRONG } else { 0 };
    if m.any(&[Word::Release, Word::AcqRel, Word::Sc]).is_some() {
        f |= RELEASE;
    }
    if m.any(&[Word::Acquire, Word::AcqRel, Word::Sc]).is_some() {
        f |= ACQUIRE;
    }
    f
}

fn elements(o: &Ast) -> Vec<Ast> {
    match o {
        Ast::Vector(v) => v.clone(),
        o => vec![o.clone()],
    }
}

fn load(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let ty = m
        .types()
        .last()
        .ok_or_else(|| Reason::Bad("a type is missing".to_owned()))?;
    let n = vector_len(m);
    let parts = elements(&i.operands[0]);
    if parts.len() != n {
        return bad("a vector of the wrong length");
    }
    let flags = order_flags(m);
    let bytes = bits(ty) / 8;
    let address = l.address(&i.operands[1])?;
    // Each element: a destination of the loaded width, then what widens or sign-extends it.
    let mut dests = Vec::new();
    let mut after = Vec::new();
    for p in &parts {
        let (v, reg) = l.dst_reg(p, ty)?;
        if reg == Ty::Pred || rows(reg) < rows(ty) {
            return bad("a destination of the wrong width");
        }
        if ty == Ty::B128 {
            dests.push(Opd::Def(v));
            dests.push(Opd::DefHigh(v));
        } else if is_signed(ty) && bits(ty) < 32 && bits(reg) > bits(ty) || rows(reg) != rows(ty) {
            let t = l.temp_rows(rows(ty));
            dests.push(Opd::Def(t));
            after.push((t, v, reg));
        } else {
            dests.push(Opd::Def(v));
        }
    }
    let unit = bytes.min(8);
    match address {
        Address::Param(at) => {
            for (k, d) in dests.iter().enumerate() {
                let h = match unit {
                    1 => handlers::<Parameter<u8>>(),
                    2 => handlers::<Parameter<u16>>(),
                    4 => handlers::<Parameter<u32>>(),
                    _ => handlers::<Parameter<u64>>(),
                };
                l.emit(h, *d, Opd::None, Opd::None, Opd::None).imm =
                    u64::from(at + k as u32 * unit);
            }
        }
        Address::Fixed {
            row,
            bytes: size,
            offset,
        } => {
            for (k, d) in dests.iter().enumerate() {
                let at = offset + k as i64 * i64::from(unit);
                if at < 0
                    || at + i64::from(unit) > i64::from(size)
                    || at % i64::from(unit.min(4)) != 0
                {
                    return bad("an offset outside the parameter");
                }
                load_fixed_at(l, *d, row, at as u32, unit);
            }
        }
        Address::Value {
            base,
            wide,
            offset,
            space,
        } => {
            let space = space_of(m, space);
            let h = load_handlers(unit, space, l.k.checks);
            let count = dests.len();
            let guarded = l.guard != super::lower::P::True;
            let x = l.emit(
                h,
                if count == 1 { dests[0] } else { Opd::None },
                base,
                Opd::None,
                Opd::None,
            );
            x.imm = u64::from(offset as u32)
                | if wide { WIDE } else { 0 }
                | flags
                | ((count as u64) << COUNT_SHIFT);
            if count > 1 {
                x.ext = dests
                    .iter()
                    .map(|&d| {
                        Ext::Row(match d {
                            // A destination behind a guard keeps its old value in other lanes.
                            Opd::Def(v) if guarded => Opd::Both(v),
                            d => d,
                        })
                    })
                    .collect();
            }
            if flags & ACQUIRE != 0 || flags & STRONG != 0 && l.k.checks {
                super::atomics::emit_acquire(l, base, wide, offset, space == SHARED);
            }
        }
    }
    for (t, v, reg) in after {
        if is_signed(ty) && bits(ty) < 32 {
            if rows(reg) == 2 {
                let u = l.temp_rows(1);
                convert::sign_extend(l, Opd::Def(u), Opd::Use(t), ty, Ty::S32);
                l.emit(
                    data::widen_signed(),
                    Opd::Def(v),
                    Opd::Use(u),
                    Opd::None,
                    Opd::None,
                );
            } else {
                convert::sign_extend(l, Opd::Def(v), Opd::Use(t), ty, reg);
            }
        } else {
            let h = if is_signed(ty) {
                data::widen_signed()
            } else {
                data::widen()
            };
            l.emit(h, Opd::Def(v), Opd::Use(t), Opd::None, Opd::None);
        }
    }
    Ok(())
}

fn store(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    if m.has(Word::Async) {
        return Err(Reason::Unsupported);
    }
    let ty = m
        .types()
        .last()
        .ok_or_else(|| Reason::Bad("a type is missing".to_owned()))?;
    let n = vector_len(m);
    let parts = elements(&i.operands[1]);
    if parts.len() != n {
        return bad("a vector of the wrong length");
    }
    let flags = order_flags(m);
    let unit = (bits(ty) / 8).min(8);
    let address = l.address(&i.operands[0])?;
    let mut sources = Vec::new();
    for p in &parts {
        let a = l.src(p, ty)?;
        sources.push(a);
        if ty == Ty::B128 {
            let Opd::Use(v) = a else {
                return bad("a 128-bit source must be a register");
            };
            sources.push(Opd::UseHigh(v));
        }
    }
    match address {
        Address::Param(_) => return bad("a kernel's parameters cannot be written"),
        Address::Fixed {
            row,
            bytes: size,
            offset,
        } => {
            for (k, a) in sources.iter().enumerate() {
                let at = offset + k as i64 * i64::from(unit);
                if at < 0
                    || at + i64::from(unit) > i64::from(size)
                    || at % i64::from(unit.min(4)) != 0
                {
                    return bad("an offset outside the parameter");
                }
                store_fixed_at(l, *a, row, at as u32, unit);
            }
        }
        Address::Value {
            base,
            wide,
            offset,
            space,
        } => {
            let space = space_of(m, space);
            if space == PARAM {
                return Err(Reason::Unsupported);
            }
            let h = store_handlers(unit, space, l.k.checks);
            let count = sources.len();
            if flags & STRONG != 0 && l.k.checks {
                super::atomics::emit_release(l, base, wide, offset, space == SHARED);
            }
            let x = l.emit(
                h,
                if count == 1 { sources[0] } else { Opd::None },
                base,
                Opd::None,
                Opd::None,
            );
            x.imm = u64::from(offset as u32)
                | if wide { WIDE } else { 0 }
                | flags
                | ((count as u64) << COUNT_SHIFT);
            if count > 1 {
                x.ext = sources.iter().map(|&a| Ext::Row(a)).collect();
            }
        }
    }
    Ok(())
}
