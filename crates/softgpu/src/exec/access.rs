//! Memory accesses of a warp: the admitted lanes, and conversion between rows and bytes.
//!
//! Lanes are processed eight at a time, since a kernel's blocks are rarely narrower: adjacent
//! addresses in lane order are one copy, one address for all is one access, and anything else goes
//! lane by lane.
//!
//! Invariants: global memory is accessed only through windows of accessible addresses; shared and
//! local memory are slices. An access that is not admitted faults and changes nothing in its lane.
//!
//! Elsewhere: the instructions ([`super::memory`], [`super::atomics`]), checks ([`super::checks`]).

use super::checks::{self, CheckedAccess};
use super::ctx::{Ctx, DecodedInst};
use super::registers::{ALL, LANES, RawLane, RegisterFile, RowOperand, each, eights, gather};
use super::tags::{LOCAL_TAG, PARAM_TAG, SHARED_TAG, TAG_MASK};
use crate::mem::{AddressShape, At, MemoryInt, Window};
use crate::report::{Access, AccessKind, MemSpace};

/// Flags in the upper half of a memory instruction's `imm`; the lower half is the offset.
pub(crate) const WIDE: u64 = 1 << 32;
pub(crate) const STRONG: u64 = 1 << 33;
/// Of a load or store: what all lanes read in `b` is added to each address.
pub(crate) const BASED: u64 = 1 << 56;
/// An offset beyond every memory, aligned for every access.
pub(crate) const NOWHERE: u32 = !15;

/// A type of one lane's access to memory.
pub(crate) trait LaneElement: MemoryInt + PartialEq + 'static {
    type Raw: RawLane;
    const SIZE: usize;
    fn raw(self) -> Self::Raw;
    fn of(raw: Self::Raw) -> Self;
    fn from_slice(b: &[u8]) -> Self;
    fn to_slice(self, b: &mut [u8]);
}
macro_rules! elem {
    ($($t:ty, $raw:ty;)*) => {$(
        impl LaneElement for $t {
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

/// Addresses in all lanes.
#[inline(always)]
pub(crate) fn addresses(ctx: &Ctx<'_>, i: &DecodedInst) -> [u64; LANES] {
    let offset = i.imm as u32 as i32 as i64 as u64;
    if i.imm & WIDE != 0 {
        let a = ctx.rows.row::<u64>(i.a);
        std::array::from_fn(|l| a[l].wrapping_add(offset))
    } else {
        let a = ctx.rows.row::<u32>(i.a);
        std::array::from_fn(|l| u64::from(a[l].wrapping_add(offset as u32)))
    }
}

/// Offsets in a space of 32 bits; a larger one becomes an offset beyond every memory.
#[inline(always)]
pub(crate) fn offsets(ctx: &Ctx<'_>, i: &DecodedInst) -> [u32; LANES] {
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

/// Splits a generic access by space: (mask, tag) pairs that are not empty.
#[inline(always)]
pub(crate) fn by_tag(addr: &[u64; LANES], mask: u32) -> [(u32, u64); 4] {
    if u64::within(addr, 0, !TAG_MASK, 0) {
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

// ---- admission ------------------------------------------------------------------------------

/// The lanes with an admitted access to shared memory: it passed the checks and is in bounds.
#[inline(always)]
pub(crate) fn admit_shared<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mut mask: u32,
    access: CheckedAccess<'_>,
) -> u32 {
    if CHECK {
        mask = checks::shared(ctx, i, off, mask, access);
    }
    let len = ctx.block.shared.len();
    let (size, kind) = (access.size, access.kind);
    inside(ctx, i, off, mask, size, len, kind, MemSpace::Shared)
}

/// The lanes with an aligned access inside `len` bytes; the others fault.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "an access taken apart")]
pub(crate) fn inside(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    size: u32,
    len: usize,
    kind: AccessKind,
    space: MemSpace,
) -> u32 {
    let low = size.next_power_of_two() - 1;
    // An access of all lanes, in memory of less than half of all offsets.
    if mask == ALL
        && let Some(last) = len.checked_sub(size as usize)
        && let Ok(last) = i32::try_from(last)
        && u32::within(off, 0, last as u32, low)
    {
        return ALL;
    }
    outside(ctx, i, off, mask, size, len, kind, space)
}

/// The same lane by lane.
#[expect(clippy::too_many_arguments, reason = "the slow half of `inside`")]
fn outside(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
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
            if !checks::beyond_memory(ctx, i, l as u32, access, len) {
                ctx.illegal(i, l as u32, access);
            }
        } else {
            ok |= 1 << l;
        }
    });
    ok
}

/// Accesses global memory window by window: `f` gets each window with its aligned lanes. A lane in
/// no window faults. Returns the lanes that pass the checks.
#[inline(always)]
pub(crate) fn by_window<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mut mask: u32,
    access: CheckedAccess<'_>,
    mut f: impl FnMut(&mut Ctx<'_>, Window, u32),
) -> u32 {
    let (size, kind) = (u64::from(access.size), access.kind);
    if CHECK {
        mask = checks::global(ctx, i, addr, mask, access);
    }
    let checked = mask;
    let low = size.next_power_of_two() - 1;
    while mask != 0 {
        let window = if kind == AccessKind::Read {
            ctx.read_window
        } else {
            ctx.write_window
        };
        let mut here = 0;
        if mask == ALL
            && let Some((first, last)) = window.starts(size)
            && u64::within(addr, first, last, low)
        {
            here = ALL;
        } else {
            each(mask, |l| {
                let ok = window.holds(addr[l], size) && addr[l] & low == 0;
                here |= u32::from(ok) << l;
            });
        }
        if here == 0 {
            // The first lane's window is the next one, or there is none.
            let l = mask.trailing_zeros() as usize;
            if !allow(ctx, i, l, addr[l], size, kind) {
                mask &= mask - 1;
            }
            continue;
        }
        f(ctx, window, here);
        mask &= !here;
    }
    checked
}

/// Whether one lane may access global memory, which then lies in the window; faults if not.
#[cold]
pub(crate) fn allow(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
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
    let (spec, device) = (&ctx.run.spec, ctx.run.spec.device.ordinal);
    let window = if write {
        &mut ctx.write_window
    } else {
        &mut ctx.read_window
    };
    if !window.holds(addr, len)
        && let Some(found) = spec.space.window(device, addr, write)
    {
        *window = found;
    }
    if !window.holds(addr, len) {
        ctx.illegal(i, lane as u32, access);
        return false;
    }
    true
}

// ---- rows from and to bytes -----------------------------------------------------------------

/// Memory that admitted lanes access.
pub(crate) trait LaneMemory {
    type At: At;
    fn load<T: LaneElement>(&self, at: Self::At) -> T;
    fn store<T: LaneElement>(&mut self, at: Self::At, v: T);
    fn load_eight<T: LaneElement>(&self, at: &[Self::At; 8]) -> [T; 8];
    fn store_eight<T: LaneElement>(&mut self, at: &[Self::At; 8], v: [T; 8]);
    fn copy_out(&self, at: Self::At, out: &mut [u8; 32]);
    fn copy_in(&mut self, at: Self::At, data: &[u8; 32]);
}

impl LaneMemory for Window {
    type At = u64;
    #[inline(always)]
    fn load<T: LaneElement>(&self, at: u64) -> T {
        Window::load(self, at)
    }
    #[inline(always)]
    fn store<T: LaneElement>(&mut self, at: u64, v: T) {
        Window::store(self, at, v);
    }
    #[inline(always)]
    fn load_eight<T: LaneElement>(&self, at: &[u64; 8]) -> [T; 8] {
        Window::load_eight(self, at)
    }
    #[inline(always)]
    fn store_eight<T: LaneElement>(&mut self, at: &[u64; 8], v: [T; 8]) {
        Window::store_eight(self, at, v);
    }
    #[inline(always)]
    fn copy_out(&self, at: u64, out: &mut [u8; 32]) {
        Window::copy_out(self, at, out);
    }
    #[inline(always)]
    fn copy_in(&mut self, at: u64, data: &[u8; 32]) {
        Window::copy_in(self, at, data);
    }
}

impl LaneMemory for [u8] {
    type At = u32;
    #[inline(always)]
    fn load<T: LaneElement>(&self, at: u32) -> T {
        T::from_slice(&self[at as usize..][..T::SIZE])
    }
    #[inline(always)]
    fn store<T: LaneElement>(&mut self, at: u32, v: T) {
        v.to_slice(&mut self[at as usize..][..T::SIZE]);
    }
    #[inline(always)]
    fn load_eight<T: LaneElement>(&self, at: &[u32; 8]) -> [T; 8] {
        gather(self, at)
    }
    #[inline(always)]
    fn store_eight<T: LaneElement>(&mut self, at: &[u32; 8], v: [T; 8]) {
        for (a, v) in at.iter().zip(v) {
            self.store(*a, v);
        }
    }
    #[inline(always)]
    fn copy_out(&self, at: u32, out: &mut [u8; 32]) {
        out.copy_from_slice(&self[at as usize..][..32]);
    }
    #[inline(always)]
    fn copy_in(&mut self, at: u32, data: &[u8; 32]) {
        self[at as usize..][..32].copy_from_slice(data);
    }
}

/// Reads each lane's elements, one behind the other at its address, into the rows that `parts`
/// names.
#[inline(always)]
pub(crate) fn read<T: LaneElement, M: LaneMemory + ?Sized>(
    rows: &mut RegisterFile,
    parts: &[u32],
    m: &M,
    at: &[M::At; LANES],
    mask: u32,
) {
    let d = |k: usize| RowOperand::from_bits(parts[k]);
    match parts.len() {
        1 => read_each::<T, M, 1>(rows, std::array::from_fn(d), m, at, mask),
        2 => read_each::<T, M, 2>(rows, std::array::from_fn(d), m, at, mask),
        4 => read_each::<T, M, 4>(rows, std::array::from_fn(d), m, at, mask),
        _ => read_each::<T, M, 8>(rows, std::array::from_fn(d), m, at, mask),
    }
}

#[inline(always)]
fn read_each<T: LaneElement, M: LaneMemory + ?Sized, const N: usize>(
    rows: &mut RegisterFile,
    d: [RowOperand; N],
    m: &M,
    at: &[M::At; LANES],
    mask: u32,
) {
    let size = T::SIZE * N;
    for (n, eight) in eights(at).iter().enumerate() {
        if mask >> (8 * n) & 255 != 255 {
            each(mask & 255 << (8 * n), |l| {
                for (k, &d) in d.iter().enumerate() {
                    rows.set_lane(d, l, m.load::<T>(at[l].plus(k * T::SIZE)).raw());
                }
            });
            continue;
        }
        match At::shape(eight, size) {
            // A row as it is: its lanes are as wide as the elements.
            AddressShape::Step if T::SIZE >= 4 && N == 1 => {
                let row = rows.bytes_mut::<T::Raw>(d[0], n);
                for (p, piece) in row.iter_mut().enumerate() {
                    m.copy_out(eight[0].plus(32 * p), piece);
                }
            }
            AddressShape::Step if size.is_multiple_of(4) => {
                let mut pieces = [[0; 32]; 8];
                for (p, piece) in pieces[..size / 4].iter_mut().enumerate() {
                    m.copy_out(eight[0].plus(32 * p), piece);
                }
                let bytes = pieces.as_flattened();
                for (k, &d) in d.iter().enumerate() {
                    let at = |l| (l * N + k) * T::SIZE;
                    let element = |l| T::from_slice(&bytes[at(l)..at(l) + T::SIZE]).raw();
                    rows.put(d, n, std::array::from_fn(element));
                }
            }
            AddressShape::Same => {
                for (k, &d) in d.iter().enumerate() {
                    let v: T = m.load(eight[0].plus(k * T::SIZE));
                    rows.put(d, n, [v.raw(); 8]);
                }
            }
            _ => {
                for (k, &d) in d.iter().enumerate() {
                    let v: [T; 8] = m.load_eight(&eight.map(|a| a.plus(k * T::SIZE)));
                    rows.put(d, n, v.map(T::raw));
                }
            }
        }
    }
}

/// The reverse of [`read`]. If lanes write the same bytes, the last one's value remains.
#[inline(always)]
pub(crate) fn write<T: LaneElement, M: LaneMemory + ?Sized>(
    rows: &RegisterFile,
    parts: &[u32],
    m: &mut M,
    at: &[M::At; LANES],
    mask: u32,
) {
    let d = |k: usize| RowOperand::from_bits(parts[k]);
    match parts.len() {
        1 => write_each::<T, M, 1>(rows, std::array::from_fn(d), m, at, mask),
        2 => write_each::<T, M, 2>(rows, std::array::from_fn(d), m, at, mask),
        4 => write_each::<T, M, 4>(rows, std::array::from_fn(d), m, at, mask),
        _ => write_each::<T, M, 8>(rows, std::array::from_fn(d), m, at, mask),
    }
}

#[inline(always)]
fn write_each<T: LaneElement, M: LaneMemory + ?Sized, const N: usize>(
    rows: &RegisterFile,
    d: [RowOperand; N],
    m: &mut M,
    at: &[M::At; LANES],
    mask: u32,
) {
    let size = T::SIZE * N;
    for (n, eight) in eights(at).iter().enumerate() {
        if mask >> (8 * n) & 255 != 255 {
            each(mask & 255 << (8 * n), |l| {
                for (k, &d) in d.iter().enumerate() {
                    m.store(at[l].plus(k * T::SIZE), T::of(rows.lane(d, l)));
                }
            });
            continue;
        }
        match At::shape(eight, size) {
            AddressShape::Step if T::SIZE >= 4 && N == 1 => {
                for (p, piece) in rows.bytes::<T::Raw>(d[0], n).iter().enumerate() {
                    m.copy_in(eight[0].plus(32 * p), piece);
                }
            }
            AddressShape::Step if size.is_multiple_of(4) => {
                let mut pieces = [[0; 32]; 8];
                let bytes = pieces.as_flattened_mut();
                for (k, &d) in d.iter().enumerate() {
                    for (l, v) in rows.chunk(d, n).into_iter().enumerate() {
                        let at = (l * N + k) * T::SIZE;
                        T::of(v).to_slice(&mut bytes[at..at + T::SIZE]);
                    }
                }
                for (p, piece) in pieces[..size / 4].iter().enumerate() {
                    m.copy_in(eight[0].plus(32 * p), piece);
                }
            }
            _ => {
                for (k, &d) in d.iter().enumerate() {
                    let at = eight.map(|a| a.plus(k * T::SIZE));
                    m.store_eight(&at, rows.chunk(d, n).map(T::of));
                }
            }
        }
    }
}

// ---- local memory ---------------------------------------------------------------------------

/// Word of `local` that holds byte `off` of `lane`.
#[inline(always)]
pub(crate) fn local_word(off: u32, lane: usize) -> usize {
    (off as usize / 4) * 32 + lane
}

pub(crate) fn local_get<T: LaneElement>(words: &[u32], off: u32, lane: usize) -> T {
    let w = local_word(off, lane);
    let v = u64::from(words[w])
        | if T::SIZE == 8 {
            u64::from(words[w + 32]) << 32
        } else {
            0
        };
    T::from_slice(&(v >> (8 * (off % 4))).to_le_bytes()[..T::SIZE])
}

pub(crate) fn local_put<T: LaneElement>(words: &mut [u32], off: u32, lane: usize, v: T) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::registers::FrameRows;
    use super::*;

    /// Offsets of 32 elements of `size` bytes in every distinguished shape, eight lanes at a time.
    fn offsets_of(ways: [u8; 4], base: [u32; 4], size: usize) -> [u32; LANES] {
        std::array::from_fn(|l| {
            let (n, l) = (l / 8, l as u32 % 8);
            let place = match ways[n] {
                0 => l,
                1 => 0,
                2 => 7 - l,
                _ => l * l % 5,
            };
            (base[n] + place) * size as u32
        })
    }

    /// Writes rows to memory and reads them back into others, as whole accesses and lane by lane.
    fn round<T: LaneElement>(n: usize, ways: [u8; 4], base: [u32; 4], mask: u32, content: &[u8]) {
        let mut frame = FrameRows::new(64, 1);
        let mut rows = RegisterFile::unbound();
        // SAFETY: the frame lives as long as the rows here, and is theirs alone; no instruction
        // runs.
        unsafe { rows.bind(&mut frame, &[]) };
        let parts = |first: u32| -> Vec<u32> {
            (0..n as u32)
                .map(|k| RowOperand::reg(first + 2 * k).bits())
                .collect()
        };
        let (from, to) = (parts(0), parts(32));
        let at = offsets_of(ways, base, T::SIZE * n);
        let element =
            |k: usize, l: usize| T::from_slice(&content[(k * LANES + l) * 8..][..T::SIZE]);
        for (k, &d) in from.iter().enumerate() {
            for l in 0..LANES {
                rows.set_lane(RowOperand::from_bits(d), l, element(k, l).raw());
            }
        }
        let mut memory = content.to_vec();
        let mut want = content.to_vec();
        write::<T, [u8]>(&rows, &from, &mut memory, &at, mask);
        each(mask, |l| {
            for k in 0..n {
                element(k, l).to_slice(&mut want[at[l] as usize + k * T::SIZE..][..T::SIZE]);
            }
        });
        assert_eq!(memory, want);
        read::<T, [u8]>(&mut rows, &to, &memory, &at, mask);
        for (k, &d) in to.iter().enumerate() {
            for l in 0..LANES {
                let got: T::Raw = rows.lane(RowOperand::from_bits(d), l);
                let want = match mask >> l & 1 {
                    0 => T::default(),
                    _ => T::from_slice(&memory[at[l] as usize + k * T::SIZE..][..T::SIZE]),
                };
                assert!(T::of(got) == want, "element {k} of lane {l}");
            }
        }
    }

    proptest! {
        #[test]
        fn an_access_is_its_lanes_one_after_the_other(
            ways in prop::array::uniform4(0u8..4),
            base in prop::array::uniform4(0u32..24),
            mask in prop_oneof![Just(ALL), any::<u32>(), (0u32..4).prop_map(|n| ALL << (8 * n))],
            content in prop::collection::vec(any::<u8>(), 4096),
        ) {
            for n in [1, 2, 4, 8] {
                round::<u8>(n, ways, base, mask, &content);
                round::<u16>(n, ways, base, mask, &content);
                round::<u32>(n, ways, base, mask, &content);
                if n < 8 {
                    round::<u64>(n, ways, base, mask, &content);
                }
            }
        }
    }
}
