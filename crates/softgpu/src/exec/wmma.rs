//! `wmma`: load, multiply, store.
//!
//! The ISA leaves the layout of fragments open. Here a lane holds `size / 32` consecutive elements
//! of the row-major matrix; registers beyond those hold the same again, so that code that works on
//! every element of a fragment sees what hardware shows it.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::access::{WIDE, addresses, admit_shared, allow, by_tag};
use super::alu_float::round_of;
use super::checks::{self, CheckedAccess, MatrixPlace};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{AddressOperand, Ext, Lower, LowerError, Lowered, ModList, Opd, bad};
use super::matrix::{Multiplication, accumulator, element as element_of, list, multiply, shape};
use super::mma::{BitOp, FragmentLayout, Mma};
use super::product::Product;
use super::registers::{ALL, LANES, RowOperand};
use super::rendezvous::whole_warp;
use super::tags::{LOCAL_TAG, SHARED_TAG, TAG_MASK};
use crate::report::{AccessKind, MemSpace};

/// Size, type and layout of one fragment, in `imm` from bit 34.
#[derive(Debug, Clone, Copy)]
struct Fragment {
    rows: usize,
    cols: usize,
    /// Bits of an element.
    width: u32,
    col_major: bool,
    shared: bool,
    registers: usize,
}

impl Fragment {
    fn pack(self) -> u64 {
        (u64::from(self.col_major) << 34)
            | (u64::from(self.shared) << 35)
            | (u64::from(self.width.trailing_zeros()) << 36)
            | ((self.rows as u64) << 40)
            | ((self.cols as u64) << 48)
            | ((self.registers as u64) << 57)
    }
    fn unpack(v: u64) -> Self {
        Fragment {
            col_major: v >> 34 & 1 != 0,
            shared: v >> 35 & 1 != 0,
            width: 1 << (v >> 36 & 7),
            rows: (v >> 40 & 255) as usize,
            cols: (v >> 48 & 511) as usize,
            registers: (v >> 57) as usize,
        }
    }
    fn per_lane(self) -> usize {
        self.rows * self.cols / LANES
    }
    /// Elements in a register.
    fn per_register(self) -> usize {
        (32 / self.width as usize).max(1)
    }
}

fn element(ctx: &Ctx<'_>, x: u32, f: Fragment, lane: usize, n: usize) -> u64 {
    let per = f.per_register();
    let reg = RowOperand::from_bits(ctx.code.ext[x as usize + n / per]);
    if f.width == 64 {
        return ctx.rows.lane::<u64>(reg, lane);
    }
    let w = f.width;
    let v = u64::from(ctx.rows.lane::<u32>(reg, lane)) >> ((n % per) as u32 * w);
    if w == 32 { v } else { v & ((1 << w) - 1) }
}

/// Bytes of a matrix at most that is transferred line by line.
const MAX_BYTES: usize = 1024;

/// Transfers a fragment whose address and stride are the same in all lanes, one row or column after
/// another. Returns whether it did: not if an element is no whole byte, or out of reach.
fn transfer_lines<const STORE: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: Fragment,
    base: &[u64; LANES],
    stride: &[u32; LANES],
) -> bool {
    let size = f.width as usize / 8;
    let bytes = f.rows * f.cols * size;
    let (lines, line) = if f.col_major {
        (f.cols, f.rows * size)
    } else {
        (f.rows, f.cols * size)
    };
    let first = base[0];
    let same = base.iter().all(|a| *a == first) && stride.iter().all(|s| *s == stride[0]);
    let whole = size > 0 && f.width < 64 && bytes <= MAX_BYTES && bytes.is_multiple_of(4 * LANES);
    if ctx.mask != ALL || !same || !whole || !first.is_multiple_of(size as u64) {
        return false;
    }
    let step = u64::from(stride[0]) * size as u64;
    let length = step * (lines as u64 - 1) + line as u64;
    let shared = f.shared || first & TAG_MASK == SHARED_TAG;
    let at = if shared {
        u64::from(first as u32)
    } else {
        first
    };
    let window = if STORE {
        ctx.write_window
    } else {
        ctx.read_window
    };
    let is_inside = if shared {
        at + length <= ctx.block.shared.len() as u64
    } else {
        if !window.holds(first, size as u64) {
            let kind = if STORE {
                AccessKind::Write
            } else {
                AccessKind::Read
            };
            // The next time it does, if it may.
            allow(ctx, i, 0, first, size as u64, kind);
            return false;
        }
        window.holds(at, length)
    };
    if !is_inside {
        return false;
    }
    let mut matrix = [0u8; MAX_BYTES];
    let code = ctx.code;
    let names = &code.ext[i.x as usize..][..f.registers];
    let each = bytes / 4 / LANES;
    if STORE {
        let words = matrix.as_chunks_mut::<4>().0;
        for (r, name) in names.iter().enumerate().take(each) {
            let row = ctx.rows.row::<u32>(RowOperand::from_bits(*name));
            for (words, v) in words.chunks_exact_mut(each).zip(row) {
                words[r] = v.to_le_bytes();
            }
        }
        if f.col_major {
            matrix = turned(&matrix, f.rows, f.cols, size);
        }
    }
    for (n, line) in matrix.chunks_exact_mut(line).enumerate().take(lines) {
        let at = at + step * n as u64;
        if shared {
            let there = &mut ctx.block.shared[at as usize..][..line.len()];
            if STORE {
                there.copy_from_slice(line);
            } else {
                line.copy_from_slice(there);
            }
        } else if STORE {
            window.write_bytes(at, line);
        } else {
            window.read_bytes(at, line);
        }
    }
    if !STORE {
        if f.col_major {
            matrix = turned(&matrix, f.cols, f.rows, size);
        }
        let words = matrix.as_chunks::<4>().0;
        for (r, name) in names.iter().enumerate() {
            let mut row = [0; LANES];
            for (v, words) in row.iter_mut().zip(words.chunks_exact(each)) {
                *v = u32::from_le_bytes(words[r % each]);
            }
            ctx.rows.set_row(RowOperand::from_bits(*name), &row, ALL);
        }
    }
    true
}

/// A matrix of `rows` rows with columns for rows.
fn turned(matrix: &[u8; MAX_BYTES], rows: usize, cols: usize, size: usize) -> [u8; MAX_BYTES] {
    fn turn<const N: usize>(from: &[u8], to: &mut [u8], rows: usize, cols: usize) {
        let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
        for (r, row) in from.chunks_exact(cols).enumerate().take(rows) {
            for (c, element) in row.iter().enumerate() {
                to[c * rows + r] = *element;
            }
        }
    }
    let mut out = [0; MAX_BYTES];
    match size {
        1 => turn::<1>(matrix, &mut out, rows, cols),
        2 => turn::<2>(matrix, &mut out, rows, cols),
        _ => turn::<4>(matrix, &mut out, rows, cols),
    }
    out
}

/// Bytes: a matrix of 16-bit and larger elements begins at a multiple of the first, and its lines
/// are multiples of the second apart. One of smaller elements needs what a lane holds of it, if
/// that is less.
const MATRIX_ALIGN: (u64, u64) = (32, 16);

/// With checks: judges where the matrix of a fragment lies.
fn check_place(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: Fragment,
    (base, stride): (&[u64; LANES], &[u32; LANES]),
    kind: AccessKind,
) {
    let first = base[ctx.mask.trailing_zeros() as usize & 31];
    let space = match first & TAG_MASK {
        SHARED_TAG => MemSpace::Shared,
        _ if f.shared => MemSpace::Shared,
        LOCAL_TAG => MemSpace::Local,
        _ => MemSpace::Global,
    };
    let (mut align, mut step_align) = MATRIX_ALIGN;
    if f.width < 16 {
        let fragment = 4 * f.registers as u64;
        (align, step_align) = (align.min(fragment), step_align.min(fragment));
    }
    let base = base.map(|at| match space {
        MemSpace::Global => at,
        _ => u64::from(at as u32),
    });
    let place = MatrixPlace {
        base: &base,
        step: &stride.map(|n| u64::from(n) * u64::from(f.width)),
        align,
        step_align,
        kind,
        space,
    };
    checks::matrix_place(ctx, i, &place);
}

/// Loads or stores a fragment: `a` the address, `b` the stride in elements.
struct FragmentTransfer<const STORE: bool, const CHECK: bool>;
impl<const STORE: bool, const CHECK: bool> Exec for FragmentTransfer<STORE, CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let f = Fragment::unpack(i.imm);
        let base = addresses(ctx, i);
        let stride = ctx.rows.row::<u32>(i.b);
        let kind = if STORE {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let n = f.per_lane();
        let width = f.width;
        let size = (width / 8).max(1);
        let all = ctx.mask;
        if !CHECK && transfer_lines::<STORE>(ctx, i, f, &base, &stride) {
            return;
        }
        if CHECK {
            check_place(ctx, i, f, (&base, &stride), kind);
        }
        let mut values = vec![0u64; n * LANES];
        for k in 0..n {
            let mut shift = [0u32; LANES];
            let addr: [u64; LANES] = std::array::from_fn(|l| {
                let index = l * n + k;
                let (r, c) = (index / f.cols, index % f.cols);
                let (major, minor) = if f.col_major { (c, r) } else { (r, c) };
                let bit = (major as u64 * u64::from(stride[l]) + minor as u64) * u64::from(width);
                shift[l] = (bit % 8) as u32;
                let tag = if f.shared { SHARED_TAG } else { 0 };
                (base[l].wrapping_add(bit / 8)) | tag
            });
            if STORE {
                for l in 0..LANES {
                    values[l * n + k] = element(ctx, i.x, f, l, k);
                }
            }
            let access = CheckedAccess::plain(size, kind);
            for (mut mask, tag) in by_tag(&addr, all) {
                if mask == 0 {
                    continue;
                }
                if tag == SHARED_TAG {
                    let off: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                    mask = admit_shared::<CHECK>(ctx, i, &off, mask, access);
                    for l in (0..LANES).filter(|&l| mask >> l & 1 != 0) {
                        let at = off[l] as usize;
                        let bytes = &mut ctx.block.shared[at..at + size as usize];
                        if STORE {
                            bytes
                                .copy_from_slice(&values[l * n + k].to_le_bytes()[..size as usize]);
                        } else {
                            let mut b = [0; 8];
                            b[..size as usize].copy_from_slice(bytes);
                            values[l * n + k] = u64::from_le_bytes(b) >> shift[l];
                        }
                    }
                } else {
                    if CHECK {
                        mask = checks::global(ctx, i, &addr, mask, access);
                    }
                    for l in (0..LANES).filter(|&l| mask >> l & 1 != 0) {
                        if !allow(ctx, i, l, addr[l], u64::from(size), kind) {
                            continue;
                        }
                        if STORE {
                            let bytes = values[l * n + k].to_le_bytes();
                            ctx.write_window
                                .write_bytes(addr[l], &bytes[..size as usize]);
                        } else {
                            let mut b = [0; 8];
                            ctx.read_window.read_bytes(addr[l], &mut b[..size as usize]);
                            values[l * n + k] = u64::from_le_bytes(b) >> shift[l];
                        }
                    }
                }
            }
        }
        if STORE {
            return;
        }
        let per = f.per_register();
        let code = ctx.code;
        for r in 0..f.registers {
            let reg = RowOperand::from_bits(code.ext[i.x as usize + r]);
            for l in 0..LANES {
                if f.width == 64 {
                    ctx.rows.set_lane::<u64>(reg, l, values[l * n + r % n]);
                    continue;
                }
                let mut v = 0u32;
                for x in 0..per {
                    let e = values[l * n + (r * per + x) % n] as u32;
                    let m = if width == 32 {
                        u32::MAX
                    } else {
                        (1 << width) - 1
                    };
                    v |= (e & m) << (x as u32 * width);
                }
                ctx.rows.set_lane::<u32>(reg, l, v);
            }
        }
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let (sm, sn, sk) = m
        .words()
        .find_map(|w| shape(w.text()))
        .ok_or(LowerError::Unsupported)?;
    if m.has(Word::Mma) {
        return product(l, i, m, (sm, sn, sk));
    }
    let store = m.has(Word::Store);
    let which = m
        .any(&[Word::A, Word::B, Word::C, Word::D])
        .ok_or(LowerError::Unsupported)?;
    let ty = m.types().last().ok_or(LowerError::Unsupported)?;
    let width = match ty {
        Ty::S32 | Ty::F32 => 32,
        _ => element_of(ty).ok_or(LowerError::Unsupported)?.bits(),
    };
    let (rows, cols) = match which {
        Word::A => (sm, sk),
        Word::B => (sk, sn),
        _ => (sm, sn),
    };
    let (regs, address) = if store {
        (&i.operands[1], &i.operands[0])
    } else {
        (&i.operands[0], &i.operands[1])
    };
    let regs = list(regs);
    let stride = match i.operands.get(2) {
        Some(s) => l.src(s, Ty::U32)?,
        None => l.c32(if m.has(Word::Col) { rows } else { cols }),
    };
    let AddressOperand::Value {
        base,
        wide,
        offset,
        space,
    } = l.address(address)?
    else {
        return bad("an address is needed");
    };
    let shared = m.any(&[Word::Shared, Word::SharedCta]).is_some()
        || space == Some(fercuda_ptx::words::Space::Shared);
    let f = Fragment {
        rows: rows as usize,
        cols: cols as usize,
        width,
        col_major: m.has(Word::Col),
        shared,
        registers: regs.len(),
    };
    if f.per_lane() == 0 || regs.len() > 64 {
        return Err(LowerError::Unsupported);
    }
    let ty = if width == 64 { Ty::F64 } else { Ty::B32 };
    let mut ext = Vec::new();
    if store {
        for r in &regs {
            ext.push(Ext::Row(l.src(r, ty)?));
        }
    }
    whole_warp(l);
    if !store {
        for r in &regs {
            ext.push(Ext::Row(l.dst(r, ty)?));
        }
    }
    let h = match (store, l.k.checks) {
        (false, false) => handlers_plain::<FragmentTransfer<false, false>>(),
        (false, true) => handlers_plain::<FragmentTransfer<false, true>>(),
        (true, false) => handlers_plain::<FragmentTransfer<true, false>>(),
        (true, true) => handlers_plain::<FragmentTransfer<true, true>>(),
    };
    let x = l.emit(h, Opd::None, base, stride, Opd::None);
    x.ext = ext;
    x.imm = u64::from(offset as u32) | if wide { WIDE } else { 0 } | f.pack();
    Ok(())
}

fn product(
    l: &mut Lower<'_, '_>,
    i: &Tree,
    m: &ModList<'_>,
    (sm, sn, sk): (u32, u32, u32),
) -> Lowered<()> {
    let types: Vec<Ty> = m.types().collect();
    let (d, a, b, c) = match types.as_slice() {
        // f16 inputs are not named.
        [d, c] => (*d, Ty::F16, Ty::F16, *c),
        [d, a, b, c] => (*d, *a, *b, *c),
        _ => return Err(LowerError::Unsupported),
    };
    let (Some(d), Some(a), Some(b), Some(c)) =
        (accumulator(d), element_of(a), element_of(b), accumulator(c))
    else {
        return Err(LowerError::Unsupported);
    };
    let p = Mma {
        m: sm,
        n: sn,
        k: sk,
        a,
        b,
        c,
        d,
        saturate: m.has(Word::Satfinite),
        bit_op: if m.has(Word::And) {
            BitOp::And
        } else {
            BitOp::Xor
        },
        layout: FragmentLayout::Wmma,
    };
    let p = Product::dense(p, round_of(m));
    multiply(l, &Multiplication::of(i)?, p, None)
}
