//! Matrix instructions of a warp: the operands of `mma`, and `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! Elsewhere: what an `mma` computes ([`super::mma`]), fragments in memory ([`super::wmma`]).

use fercuda_ptx::ast::{Imm, Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::access::{NOWHERE, WIDE, addresses, admit_shared};
use super::alu_float::round_of;
use super::checks::CheckedAccess;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_any, handlers_plain, handlers_with_vectors};
use super::lower::{AddressOperand, Ext, Lower, LowerError, Lowered, ModList, Opd, bad};
use super::mma::{Accumulator, BitOp, FragmentLayout, Major, Mma, MmaElement};
use super::mma_quad::QuadProduct;
use super::mma_sparse::SparseProduct;
use super::mma_vectors::{MAX_REGISTERS, VectorProduct};
use super::product::Product;
use super::registers::{ALL, LANES, RowOperand};
use super::rendezvous::whole_warp;
use super::tags::{SHARED_TAG, TAG_MASK};
use crate::report::AccessKind;

pub(crate) fn element(ty: Ty) -> Option<MmaElement> {
    Some(match ty {
        Ty::F16 => MmaElement::F16,
        Ty::Bf16 => MmaElement::Bf16,
        Ty::Tf32 => MmaElement::Tf32,
        Ty::F64 => MmaElement::F64,
        Ty::E4m3 => MmaElement::E4m3,
        Ty::E5m2 => MmaElement::E5m2,
        Ty::S8 => MmaElement::S8,
        Ty::U8 => MmaElement::U8,
        Ty::S4 => MmaElement::S4,
        Ty::U4 => MmaElement::U4,
        Ty::B1 => MmaElement::B1,
        _ => return None,
    })
}

pub(crate) fn accumulator(ty: Ty) -> Option<Accumulator> {
    Some(match ty {
        Ty::F16 => Accumulator::F16,
        Ty::F32 => Accumulator::F32,
        Ty::F64 => Accumulator::F64,
        Ty::S32 => Accumulator::S32,
        _ => return None,
    })
}

/// Most registers of a result.
const MAX_OUT: usize = 8;

/// `mma` and `wmma.mma`: `imm` the operation's index; in `ext` the numbers of registers of A, B, C
/// and D, then those of D, A, B and C, and of the metadata of a sparse A.
struct Multiply;
impl Exec for Multiply {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let code = ctx.code;
        let p = &code.products[i.imm as usize];
        let ext = &code.ext[i.x as usize..];
        let counts = [ext[0], ext[1], ext[2], ext[3]];
        let reg = |n: u32| RowOperand::from_bits(ext[4 + n as usize]);
        let double = p.is_double();
        let mut out = [[0u64; LANES]; MAX_OUT];
        p.run(
            counts,
            |r, l| get(ctx, reg(counts[3] + r), l as usize, double),
            |r, l, v| out[r as usize % MAX_OUT][l as usize & 31] = v,
        );
        let mask = ctx.mask;
        for (r, row) in out.iter().enumerate().take(counts[3] as usize) {
            if double {
                ctx.rows.set_row::<u64>(reg(r as u32), row, mask);
            } else {
                ctx.rows
                    .set_row::<u32>(reg(r as u32), &row.map(|v| v as u32), mask);
            }
        }
    }
}

/// The same of a dense product in vectors.
struct MultiplyVectors;
impl Exec for MultiplyVectors {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let code = ctx.code;
        let ext = &code.ext[i.x as usize..];
        let counts = [ext[0], ext[1], ext[2], ext[3]];
        let Product::Dense(p) = &code.products[i.imm as usize] else {
            return Multiply::run::<FULL>(ctx, i);
        };
        let Some(vectors) = VectorProduct::of(p, counts) else {
            return Multiply::run::<FULL>(ctx, i);
        };
        let mut names = ext[4..].iter().map(|&bits| RowOperand::from_bits(bits));
        let mut results = [RowOperand::default(); MAX_OUT];
        for (out, name) in results
            .iter_mut()
            .zip(names.by_ref())
            .take(counts[3] as usize)
        {
            *out = name;
        }
        let mut fragments = [[[0; LANES]; MAX_REGISTERS]; 3];
        for (registers, &n) in fragments.iter_mut().zip(&counts) {
            for (row, name) in registers.iter_mut().zip(names.by_ref().take(n as usize)) {
                *row = ctx.rows.row(name);
            }
        }
        let [a, b, c] = &fragments;
        let mut d = [[0; LANES]; MAX_REGISTERS];
        // SAFETY: this behaviour is called only where there is AVX2 with FMA, and F16C, which
        // [`super::lanes`] asks for too.
        if unsafe { vectors.run(a, b, c, &mut d) }.is_err() {
            return Multiply::run::<FULL>(ctx, i);
        }
        let mask = ctx.mask;
        for (name, row) in results.iter().zip(&d).take(counts[3] as usize) {
            ctx.rows.set_row(*name, row, mask);
        }
    }
}

#[inline(always)]
fn get(ctx: &Ctx<'_>, o: RowOperand, lane: usize, double: bool) -> u64 {
    if double {
        ctx.rows.lane::<u64>(o, lane)
    } else {
        u64::from(ctx.rows.lane::<u32>(o, lane))
    }
}

/// The operands of a product: D, A, B, C and, if A is sparse, its metadata.
pub(crate) struct Multiplication<'a> {
    pub(crate) fragments: [&'a Ast; 4],
    pub(crate) metadata: Option<&'a Ast>,
}

impl<'a> Multiplication<'a> {
    /// Those of an instruction without metadata.
    pub(crate) fn of(i: &'a Tree) -> Lowered<Self> {
        let [d, a, b, c] = i.operands.as_slice() else {
            return bad("four operands are needed");
        };
        Ok(Multiplication {
            fragments: [d, a, b, c],
            metadata: None,
        })
    }
}

/// Emits a product of fragments; `counts` are the registers that the ISA gives A, B, C and D, if it
/// fixes them.
pub(crate) fn multiply(
    l: &mut Lower<'_, '_>,
    operands: &Multiplication<'_>,
    p: Product,
    counts: Option<[usize; 4]>,
) -> Lowered<()> {
    let [od, oa, ob, oc] = operands.fragments.map(list);
    let have = [oa.len(), ob.len(), oc.len(), od.len()];
    if counts.is_some_and(|c| c != have) || od.len() > MAX_OUT {
        return bad("vectors of the wrong length");
    }
    let ty = if p.is_double() { Ty::F64 } else { Ty::B32 };
    let mut sources = Vec::new();
    for o in oa.iter().chain(&ob).chain(&oc).chain(operands.metadata) {
        sources.push(Ext::Row(l.src(o, ty)?));
    }
    whole_warp(l);
    let mut ext: Vec<Ext> = have.iter().map(|&n| Ext::Raw(n as u32)).collect();
    for o in &od {
        ext.push(Ext::Row(l.dst(o, ty)?));
    }
    ext.extend(sources);
    let n = l.products.len();
    let registers = have.map(|n| n as u32);
    let in_vectors = matches!(&p, Product::Dense(p) if VectorProduct::of(p, registers).is_some());
    let handlers = if in_vectors {
        handlers_with_vectors::<Multiply, MultiplyVectors>()
    } else {
        handlers_any::<Multiply>()
    };
    let x = l.emit(handlers, Opd::None, Opd::None, Opd::None, Opd::None);
    x.ext = ext;
    x.imm = n as u64;
    l.products.push(p);
    Ok(())
}

pub(crate) fn list(o: &Ast) -> Vec<Ast> {
    match o {
        Ast::Vector(v) => v.clone(),
        o => vec![o.clone()],
    }
}

/// Reads a shape such as `m16n8k16`.
pub(crate) fn shape(text: &str) -> Option<(u32, u32, u32)> {
    let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    match i.op {
        Op::Mma => mma(l, i, m),
        Op::Ldmatrix | Op::Stmatrix => matrix_copy(l, i, m),
        _ => {
            let a = l.src(&i.operands[1], Ty::B32)?;
            whole_warp(l);
            let d = l.dst(&i.operands[0], Ty::B32)?;
            l.emit(handlers_plain::<MoveMatrix>(), d, a, Opd::None, Opd::None);
            Ok(())
        }
    }
}

fn mma(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if m.has(Word::BlockScale) || m.words().any(|w| w.text().starts_with("kind")) {
        return Err(LowerError::Unsupported);
    }
    let (sm, sn, sk) = m
        .words()
        .find_map(|w| shape(w.text()))
        .ok_or(LowerError::Unsupported)?;
    let types: Vec<Ty> = m.types().collect();
    let [d, a, b, c] = types.as_slice() else {
        return Err(LowerError::Unsupported);
    };
    let (Some(d), Some(a), Some(b), Some(c)) =
        (accumulator(*d), element(*a), element(*b), accumulator(*c))
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
        layout: FragmentLayout::Mma,
    };
    if (sm, sn, sk) == (8, 8, 4) && a == MmaElement::F16 {
        let majors = m.words().filter_map(|w| match w {
            Word::Row => Some(Major::Row),
            Word::Col => Some(Major::Column),
            _ => None,
        });
        let [a, b] = majors.collect::<Vec<_>>()[..] else {
            return bad("the layouts of two matrices are needed");
        };
        let p = QuadProduct { product: p, a, b };
        return multiply(
            l,
            &Multiplication::of(i)?,
            Product::Quads(p),
            Some(p.counts()),
        );
    }
    let registers = |elements: u32, bits: u32| {
        let n = elements / 32;
        (if a == MmaElement::F64 {
            n
        } else {
            (n * bits).div_ceil(32)
        }) as usize
    };
    let width = |a: Accumulator| if a == Accumulator::F16 { 16 } else { 32 };
    let sparse = m.any(&[Word::Sp, Word::SpOrderedMetadata]).is_some();
    let stored = if sparse { sk / 2 } else { sk };
    let counts = [
        registers(sm * stored, a.bits()),
        registers(sk * sn, b.bits()),
        registers(sm * sn, width(c)),
        registers(sm * sn, width(d)),
    ];
    if sparse {
        return sparse_mma(l, i, p, counts);
    }
    let p = Product::dense(p, round_of(m));
    multiply(l, &Multiplication::of(i)?, p, Some(counts))
}

fn sparse_mma(l: &mut Lower<'_, '_>, i: &Tree, p: Mma, counts: [usize; 4]) -> Lowered<()> {
    let [d, a, b, c, e, f] = i.operands.as_slice() else {
        return bad("six operands are needed");
    };
    let &Ast::Imm(Imm::Int { value, .. }) = f else {
        return bad("the selector must be a constant");
    };
    let p = SparseProduct {
        product: p,
        selector: value as u32,
    };
    let is_known = matches!(
        (p.product.a.bits(), p.product.k),
        (32, 8 | 16) | (16, 16 | 32) | (8, 32 | 64) | (4, 64 | 128)
    );
    if (p.product.m, p.product.n) != (16, 8) || !is_known {
        return Err(LowerError::Unsupported);
    }
    if !p.is_selector_valid() {
        return bad(format!("a selector of {value}"));
    }
    let operands = Multiplication {
        fragments: [d, a, b, c],
        metadata: Some(e),
    };
    multiply(l, &operands, Product::Sparse(p), Some(counts))
}

/// `ldmatrix` and `stmatrix`: `imm` bits 40.. the matrices, 44 transposed; registers in `ext`.
struct MatrixCopy<const STORE: bool, const CHECK: bool>;
impl<const STORE: bool, const CHECK: bool> Exec for MatrixCopy<STORE, CHECK> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let n = (i.imm >> 40) as usize & 7;
        let trans = i.imm >> 44 & 1 != 0;
        let addr = addresses(ctx, i);
        let off: [u32; LANES] = std::array::from_fn(|l| {
            if addr[l] & TAG_MASK == SHARED_TAG || addr[l] >> 32 == 0 {
                addr[l] as u32
            } else {
                NOWHERE
            }
        });
        let rows_mask = if n == 4 { u32::MAX } else { (1 << (8 * n)) - 1 };
        let kind = if STORE {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let mask = rows_mask & ctx.mask;
        let ok = admit_shared::<CHECK>(ctx, i, &off, mask, CheckedAccess::plain(16, kind));
        if ok != rows_mask {
            return;
        }
        let code = ctx.code;
        for (j, rows) in off.as_chunks::<8>().0.iter().enumerate().take(n) {
            let reg = RowOperand::from_bits(code.ext[i.x as usize + j]);
            // A row of a matrix is 16 bytes, and in registers the words of four lanes.
            if STORE {
                let words = ctx.rows.row::<u32>(reg);
                let words = if trans { transposed(&words) } else { words };
                for (at, words) in rows.iter().zip(words.as_chunks::<4>().0) {
                    let bytes = words.map(u32::to_le_bytes);
                    ctx.block.shared[*at as usize..][..16].copy_from_slice(bytes.as_flattened());
                }
            } else {
                let mut words = [0u32; LANES];
                for (at, words) in rows.iter().zip(words.as_chunks_mut::<4>().0) {
                    let bytes = &ctx.block.shared[*at as usize..][..16];
                    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                        *word = u32::from_le_bytes(*bytes);
                    }
                }
                let words = if trans { transposed(&words) } else { words };
                ctx.rows.set_row(reg, &words, ALL);
            }
        }
    }
}

fn matrix_copy(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if !m.has(Word::M8n8) {
        return Err(LowerError::Unsupported);
    }
    let store = i.op == Op::Stmatrix;
    let n = match m.any(&[Word::X1, Word::X2, Word::X4]) {
        Some(Word::X1) => 1,
        Some(Word::X2) => 2,
        Some(_) => 4,
        None => return Err(LowerError::Unsupported),
    };
    let (registers, address) = if store {
        (&i.operands[1], &i.operands[0])
    } else {
        (&i.operands[0], &i.operands[1])
    };
    let parts = super::matrix::list(registers);
    if parts.len() != n {
        return bad("a vector of the wrong length");
    }
    let AddressOperand::Value {
        base, wide, offset, ..
    } = l.address(address)?
    else {
        return bad("a shared address is needed");
    };
    let mut sources = Vec::new();
    if store {
        for p in &parts {
            sources.push(Ext::Row(l.src(p, Ty::B32)?));
        }
    }
    whole_warp(l);
    if !store {
        for p in &parts {
            sources.push(Ext::Row(l.dst(p, Ty::B32)?));
        }
    }
    let h = match (store, l.k.checks) {
        (false, false) => handlers_any::<MatrixCopy<false, false>>(),
        (false, true) => handlers_any::<MatrixCopy<false, true>>(),
        (true, false) => handlers_any::<MatrixCopy<true, false>>(),
        (true, true) => handlers_any::<MatrixCopy<true, true>>(),
    };
    let x = l.emit(h, Opd::None, base, Opd::None, Opd::None);
    x.ext = sources;
    x.imm = u64::from(offset as u32)
        | if wide { WIDE } else { 0 }
        | ((n as u64) << 40)
        | (u64::from(m.has(Word::Trans)) << 44);
    Ok(())
}

/// A matrix of 8 by 8 halves with rows and columns exchanged; a row is the words of four lanes.
#[inline(always)]
fn transposed(a: &[u32; LANES]) -> [u32; LANES] {
    let half = |r: usize, c: usize| (a[r * 4 + c / 2] >> (16 * (c % 2))) & 0xffff;
    std::array::from_fn(|l| half(2 * (l % 4), l / 4) | (half(2 * (l % 4) + 1, l / 4) << 16))
}

/// `movmatrix.trans`.
struct MoveMatrix;
impl Exec for MoveMatrix {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let row = transposed(&ctx.rows.row::<u32>(i.a));
        let mask = ctx.mask;
        ctx.rows.set_row(i.d, &row, mask);
    }
}
