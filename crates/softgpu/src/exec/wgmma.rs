//! `wgmma`: products of four warps, their fences, their groups and the waits for those.
//!
//! Each warp executes its quarter, 16 rows of A and D, when it issues the instruction. On a GPU the
//! four warps do it together, so a group of products is complete when all four have committed it:
//! a warp that waits for a group waits for the other three. So what is behind a wait may tell
//! others, in the name of the four, that the operands in shared memory are free.
//!
//! Elsewhere: where operands lie ([`super::wgmma_layout`]), what the sums are
//! ([`super::wgmma_sums`]).

use fercuda_ptx::ast::{Imm, Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::checks::{self, CheckedProduct};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain, handlers_with_vectors};
use super::lower::{Ext, InstRole, LTerm, Lower, LowerError, Lowered, ModList, Opd, bad};
use super::matrix::{accumulator, element, list, shape};
use super::mma::{BitOp, FragmentLayout, Mma};
use super::mma_vectors::{MAX_REGISTERS, Registers};
use super::registers::{LANES, PredOperand, RowOperand};
use super::rendezvous::whole_warp;
use super::state::{GROUP_WARPS, Split, SplitOutcome, SplitState};
use super::wgmma_layout::{MajorOrder, MatrixDescriptor, load_core};
use super::wgmma_sums::{BlockFragments, GroupProduct};
use crate::report::{Access, AccessKind, MemSpace};

/// Rows of A that a warp has.
const WARP_ROWS: u32 = 16;

/// `wgmma.mma_async`: `a` and `b` the descriptors, `c` the metadata, `imm` the predicate `scale-d`
/// (low half) and the product's index; in `ext` the registers of D, then those of A.
struct MultiplyGroup<const VECTORS: bool, const CHECK: bool>;

impl<const VECTORS: bool, const CHECK: bool> Exec for MultiplyGroup<VECTORS, CHECK> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let code = ctx.code;
        let p = &code.group_products[(i.imm >> 32) as usize];
        let ext = &code.ext[i.x as usize..];
        let first = ctx.mask.trailing_zeros() as usize & 31;
        let adds = ctx.rows.pred(PredOperand::from_bits(i.imm as u32)) >> first & 1 != 0;
        let each = p.registers_a_block() as usize;
        let sums = each * (p.columns / 8) as usize;
        let mask = ctx.mask;
        let reg = |n: usize| RowOperand::from_bits(ext[n]);
        let descriptor = MatrixDescriptor::of(ctx.rows.lane::<u64>(i.b, first));
        let number = if CHECK { check(ctx, i, p) } else { 0 };
        let quarter = (ctx.warp % GROUP_WARPS) as u32 * WARP_ROWS / 8;

        let mut a: Registers = [[0; LANES]; MAX_REGISTERS];
        if p.a_in_registers {
            for (n, row) in a.iter_mut().enumerate().take(4) {
                *row = ctx.rows.row(reg(sums + n));
            }
        } else {
            let from = MatrixDescriptor::of(ctx.rows.lane::<u64>(i.a, first));
            for n in 0..4 {
                let place = (quarter + (n & 1), n / 2);
                match load::<CHECK>(ctx, i, (&from, p.orders[0]), place, ("A", number)) {
                    Ok(words) => a[n as usize & 7] = words,
                    Err(at) => return beyond::<CHECK>(ctx, i, "A", at),
                }
            }
        }
        let signs = p.signs();
        a.iter_mut().flatten().for_each(|word| *word ^= signs);
        let metadata = match p.selector {
            Some(_) => ctx.rows.row::<u32>(i.c),
            None => [0; LANES],
        };
        let vectors = if VECTORS { p.in_vectors() } else { None };
        let mut b: Registers = [[0; LANES]; MAX_REGISTERS];
        let mut c: Registers = [[0; LANES]; MAX_REGISTERS];
        let mut d: Registers = [[0; LANES]; MAX_REGISTERS];
        for block in 0..(p.columns / 8) as usize {
            for (n, words) in b.iter_mut().enumerate().take(p.depth_of_b() as usize) {
                let place = (block as u32, n as u32);
                match load::<CHECK>(ctx, i, (&descriptor, p.orders[1]), place, ("B", number)) {
                    Ok(found) => *words = found,
                    Err(at) => return beyond::<CHECK>(ctx, i, "B", at),
                }
            }
            if adds {
                for (n, words) in c.iter_mut().enumerate().take(each) {
                    *words = ctx.rows.row(reg(block * each + n));
                }
            }
            // SAFETY: with `VECTORS` this is called only where there is AVX2 with FMA, and F16C,
            // which [`super::lanes`] asks for too.
            let done = vectors.is_some_and(|v| unsafe { v.run(&a, &b, &c, &mut d) }.is_ok());
            if !done {
                let fragments = BlockFragments {
                    a: &a,
                    b: &b,
                    c: &c,
                    metadata: &metadata,
                };
                p.run(&fragments, &mut d);
            }
            for (n, words) in d.iter().enumerate().take(each) {
                ctx.rows.set_row(reg(block * each + n), words, mask);
            }
        }
    }
}

/// A core of a matrix, the one at `place`; where it lies if that is outside of shared memory.
/// With checks it is read in the name of a product, by a matrix's name and the product's number.
#[inline(always)]
fn load<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    (from, order): (&MatrixDescriptor, MajorOrder),
    place: (u32, u32),
    (name, number): (&str, u32),
) -> Result<[u32; LANES], u32> {
    let rows = from.core(order, place.0, place.1);
    match load_core(&ctx.block.shared, &rows, order) {
        Some(words) => {
            if CHECK {
                checks::product_reads(ctx, i, number, name, &rows);
            }
            Ok(words)
        }
        None => Err(rows.into_iter().max().unwrap_or(0)),
    }
}

/// Takes a product down, with what is wrong with its operands; its number.
fn check(ctx: &mut Ctx<'_>, i: &DecodedInst, p: &GroupProduct) -> u32 {
    let first = ctx.mask.trailing_zeros() as usize & 31;
    let b = ctx.rows.row::<u64>(i.b);
    checks::same_descriptor(ctx, i, &b);
    let a = (!p.a_in_registers).then(|| ctx.rows.row::<u64>(i.a));
    if let Some(a) = &a {
        checks::same_descriptor(ctx, i, a);
    }
    let operands = CheckedProduct {
        a: a.map(|a| a[first]),
        b: b[first],
        product: (i.imm >> 32) as u32,
    };
    checks::product(ctx, i, &operands)
}

/// A matrix reaches beyond shared memory: the kernel ends, with checks after a finding.
#[cold]
fn beyond<const CHECK: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst, matrix: &str, at: u32) {
    if CHECK {
        // Accesses outside are not executed, and the kernel goes on.
        return checks::operand_outside(ctx, i, matrix, at);
    }
    let access = Access {
        kind: AccessKind::Read,
        space: MemSpace::Shared,
        addr: u64::from(at),
        len: 16,
    };
    ctx.illegal(i, ctx.mask.trailing_zeros() & 31, access);
}

/// `wgmma.fence`: what a thread does to registers is in order here, but checks take it down.
struct GroupFence;
impl Exec for GroupFence {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &DecodedInst) {
        let products = &mut ctx.w().products;
        products.fenced = true;
        products.unfenced.clear();
    }
}

/// `wgmma.commit_group`.
struct CommitProducts;
impl Exec for CommitProducts {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &DecodedInst) {
        ctx.w().products.committed += 1;
    }
}

/// The warps that form products with the one at hand.
fn group(ctx: &Ctx<'_>) -> std::ops::Range<usize> {
    let first = ctx.warp / GROUP_WARPS * GROUP_WARPS;
    first..(first + GROUP_WARPS).min(ctx.block.warps.len())
}

/// Whether all warps of the group have committed so many groups of products. Those that have exited
/// commit none.
fn is_complete(ctx: &Ctx<'_>, groups: u32) -> bool {
    let warps = &ctx.block.warps[group(ctx)];
    warps
        .iter()
        .all(|w| w.live == 0 || w.products.committed >= groups)
}

/// Split `s` waits at the end of block `pc` until no more than `keep` groups are under way.
pub(crate) fn wait(ctx: &mut Ctx<'_>, s: usize, pc: u32, (keep, next): (u32, u32)) -> SplitOutcome {
    let groups = ctx.w().products.committed.saturating_sub(keep);
    if is_complete(ctx, groups) {
        complete(ctx, pc, groups);
        return SplitOutcome::Go(next);
    }
    let split = &mut ctx.w().splits[s];
    split.pc = pc;
    split.state = SplitState::Products { groups, next };
    SplitOutcome::Choose
}

/// The groups up to that number are complete for the warp that has waited for them at the end of
/// block `pc`.
fn complete(ctx: &mut Ctx<'_>, pc: u32, groups: u32) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    ctx.w().products.pending.retain(|p| p.group > groups);
    checks::products_done(ctx, groups);
    let gone = group(ctx).find(|&w| {
        let w = &ctx.block.warps[w];
        w.live == 0 && w.products.committed < groups
    });
    if let Some(gone) = gone {
        let pc = ctx.code.blocks[pc as usize].term_pc;
        checks::left_group(ctx, pc, gone as u32);
    }
}

/// Has the splits of the current warp go on whose groups are complete. Returns whether there are
/// such.
pub(crate) fn wake(ctx: &mut Ctx<'_>, select: impl Fn(&mut Ctx<'_>, &Split)) -> bool {
    let mut woken = false;
    for s in 0..ctx.w().splits.len() {
        let SplitState::Products { groups, next } = ctx.w().splits[s].state else {
            continue;
        };
        if is_complete(ctx, groups) {
            let split = ctx.w().splits[s];
            select(ctx, &split);
            complete(ctx, split.pc, groups);
            let split = &mut ctx.w().splits[s];
            split.state = SplitState::Ready;
            split.pc = next;
            woken = true;
        }
    }
    woken
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    if i.op != Op::Wgmma {
        return None;
    }
    let none = Opd::None;
    Some(if m.has(Word::Fence) {
        whole_warp(l);
        l.emit(handlers_plain::<GroupFence>(), none, none, none, none);
        l.last_is(InstRole::GroupFence);
        Ok(())
    } else if m.has(Word::CommitGroup) {
        whole_warp(l);
        l.emit(handlers_plain::<CommitProducts>(), none, none, none, none);
        l.last_is(InstRole::GroupCommit);
        Ok(())
    } else if m.has(Word::WaitGroup) {
        wait_group(l, i)
    } else if m.has(Word::MmaAsync) {
        multiply(l, i, m)
    } else {
        Err(LowerError::Unsupported)
    })
}

fn wait_group(l: &mut Lower<'_, '_>, i: &Tree) -> Lowered<()> {
    let Some(&Ast::Imm(Imm::Int { value, .. })) = i.operands.first() else {
        return bad("a number of groups is needed");
    };
    let keep = u32::try_from(value).unwrap_or(u32::MAX);
    whole_warp(l);
    let next = l.new_block();
    l.terminate_to(LTerm::AwaitProducts(keep, next), next);
    Ok(())
}

/// The constants behind the operands that registers hold.
fn constants(operands: &[Ast]) -> Lowered<Vec<i64>> {
    let values = operands.iter().map(|o| match o {
        Ast::Imm(Imm::Int { value, .. }) => Ok(*value),
        _ => bad("a constant is needed"),
    });
    values.collect()
}

/// Which operands a product has: D, A and B, metadata with its selector, `scale-d`, and the
/// constants behind.
struct ProductTree<'a> {
    matrices: [&'a Ast; 3],
    metadata: Option<(&'a Ast, i64)>,
    scale: &'a Ast,
    constants: Vec<i64>,
}

impl<'a> ProductTree<'a> {
    fn of(i: &'a Tree, is_sparse: bool) -> Lowered<Self> {
        let [d, a, b, rest @ ..] = i.operands.as_slice() else {
            return bad("too few operands");
        };
        let (metadata, rest) = match rest {
            [e, selector, rest @ ..] if is_sparse => {
                let selector = constants(std::slice::from_ref(selector))?;
                (selector.first().map(|&s| (e, s)), rest)
            }
            _ => (None, rest),
        };
        let [scale, rest @ ..] = rest else {
            return bad("too few operands");
        };
        Ok(ProductTree {
            matrices: [d, a, b],
            metadata,
            scale,
            constants: constants(rest)?,
        })
    }

    fn has_a_in_registers(&self) -> bool {
        matches!(self.matrices[1], Ast::Vector(_))
    }

    /// What the instruction with these modifiers computes.
    fn product(&self, m: &ModList<'_>) -> Lowered<GroupProduct> {
        let shape = m.words().find_map(|w| shape(w.text()));
        let (64, columns, depth) = shape.ok_or(LowerError::Unsupported)? else {
            return Err(LowerError::Unsupported);
        };
        let [d, a, b] = m.types().collect::<Vec<Ty>>()[..] else {
            return bad("three types are needed");
        };
        let (Some(sums), Some(left), Some(right)) = (accumulator(d), element(a), element(b)) else {
            return Err(LowerError::Unsupported);
        };
        let (scales, transposed) = self.constants.split_at(self.constants.len().min(2));
        let order = |t: Option<&i64>| match t {
            Some(1) => MajorOrder::Side,
            _ => MajorOrder::Depth,
        };
        let a_in_registers = self.has_a_in_registers();
        let orders = match a_in_registers {
            true => [MajorOrder::Depth, order(transposed.first())],
            false => [order(transposed.first()), order(transposed.get(1))],
        };
        Ok(GroupProduct {
            product: Mma {
                m: WARP_ROWS,
                n: 8,
                k: depth,
                a: left,
                b: right,
                c: sums,
                d: sums,
                saturate: m.has(Word::Satfinite),
                bit_op: BitOp::And,
                layout: FragmentLayout::Mma,
            },
            columns,
            selector: self.metadata.map(|(_, s)| s as u32),
            a_in_registers,
            negate: scales.iter().product::<i64>() < 0,
            orders,
        })
    }
}

fn multiply(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let tree = ProductTree::of(i, m.has(Word::Sp))?;
    let p = tree.product(m)?;
    let [d, a, b] = tree.matrices;
    let (d, a) = (list(d), list(a));
    let sums = p.columns / 8 * p.registers_a_block();
    if d.len() as u32 != sums || p.a_in_registers && a.len() != 4 {
        return bad("vectors of the wrong length");
    }
    let first = match p.a_in_registers {
        true => Opd::None,
        false => l.src(&a[0], Ty::B64)?,
    };
    let second = l.src(b, Ty::B64)?;
    let metadata = match tree.metadata {
        Some((e, _)) => l.src(e, Ty::B32)?,
        None => Opd::None,
    };
    let scale = l.pred(tree.scale)?;
    let mut sources = Vec::new();
    if p.a_in_registers {
        for o in &a {
            sources.push(Ext::Row(l.src(o, Ty::B32)?));
        }
    }
    whole_warp(l);
    let mut ext = Vec::new();
    for o in &d {
        // The sums are read too, but for those of the first product.
        ext.push(Ext::Row(match l.dst(o, Ty::B32)? {
            Opd::Def(v) => Opd::Both(v),
            o => o,
        }));
    }
    ext.extend(sources);
    let n = l.group_products.len() as u64;
    let h = if l.k.checks {
        handlers_with_vectors::<MultiplyGroup<false, true>, MultiplyGroup<true, true>>()
    } else {
        handlers_with_vectors::<MultiplyGroup<false, false>, MultiplyGroup<true, false>>()
    };
    let x = l.emit(h, Opd::None, first, second, metadata);
    x.ext = ext;
    x.imm = n << 32;
    x.imm_lo = Some(scale);
    l.last_is(InstRole::GroupProduct);
    l.group_products.push(p);
    Ok(())
}
