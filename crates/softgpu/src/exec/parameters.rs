//! Parameters and results of device functions: registers and constants in a frame's fixed rows.
//!
//! An element of a parameter lies at a multiple of its size; a predicate takes a byte that is 0 or
//! 1.

use fercuda_ptx::ast::{Imm, Operand as Ast};
use fercuda_ptx::words::ScalarType as Ty;

use super::basics;
use super::fixed_rows::{load_fixed_at, store_fixed_at};
use super::lower::{Entity, Lower, Lowered, Opd, PredRef, VirtualReg, bad};
use super::width::bits;

/// Bytes that a value of a type takes in a parameter.
fn size(ty: Ty) -> u32 {
    bits(ty).div_ceil(8)
}

/// Reads element `n` of the parameter at `row` into a register of type `ty`.
pub(crate) fn load(l: &mut Lower<'_, '_>, v: VirtualReg, ty: Ty, row: u32, n: u32) {
    let at = n * size(ty);
    match ty {
        Ty::Pred => {
            let t = l.temp_rows(1);
            load_fixed_at(l, Opd::Def(t), row, at, 1);
            let d = if l.guard == PredRef::True {
                PredRef::Def(v)
            } else {
                PredRef::Both(v)
            };
            basics::to_pred(l, d, Opd::Use(t));
        }
        Ty::B128 => {
            load_fixed_at(l, Opd::Def(v), row, at, 8);
            load_fixed_at(l, Opd::DefHigh(v), row, at + 8, 8);
        }
        _ => load_fixed_at(l, Opd::Def(v), row, at, size(ty)),
    }
}

/// The reverse of [`load`].
pub(crate) fn store(l: &mut Lower<'_, '_>, v: VirtualReg, ty: Ty, row: u32, n: u32) {
    let at = n * size(ty);
    match ty {
        Ty::Pred => store_pred(l, PredRef::Use(v, false), row, at),
        Ty::B128 => {
            store_fixed_at(l, Opd::Use(v), row, at, 8);
            store_fixed_at(l, Opd::UseHigh(v), row, at + 8, 8);
        }
        _ => store_fixed_at(l, Opd::Use(v), row, at, size(ty)),
    }
}

fn store_pred(l: &mut Lower<'_, '_>, p: PredRef, row: u32, at: u32) {
    let t = l.temp_rows(1);
    let x = l.emit(
        basics::from_pred(),
        Opd::Def(t),
        Opd::None,
        Opd::None,
        Opd::None,
    );
    x.x_pred = Some(p);
    x.imm = 1;
    store_fixed_at(l, Opd::Use(t), row, at, 1);
}

/// The registers behind a result of a call, to be loaded when it returns.
#[derive(Debug)]
pub(crate) struct LateResult {
    v: VirtualReg,
    ty: Ty,
    row: u32,
    n: u32,
}

impl LateResult {
    pub(crate) fn load(&self, l: &mut Lower<'_, '_>) {
        load(l, self.v, self.ty, self.row, self.n);
    }
}

/// The registers that an operand names, in order.
fn registers(l: &mut Lower<'_, '_>, o: &Ast) -> Option<(Vec<VirtualReg>, Ty)> {
    match o {
        Ast::Name(s) => match l.lookup(*s) {
            Some(Entity::Reg(v, ty)) => Some((vec![v], ty)),
            _ => None,
        },
        Ast::Member(s, n) => match l.lookup(*s) {
            Some(Entity::Vector(parts, ty)) => Some((vec![*parts.get(usize::from(*n))?], ty)),
            _ => None,
        },
        Ast::Vector(items) => {
            let mut out = (Vec::new(), Ty::B32);
            for o in items {
                let (mut parts, ty) = registers(l, o)?;
                out.0.append(&mut parts);
                out.1 = ty;
            }
            Some(out)
        }
        _ => None,
    }
}

/// A result of a call as fixed rows. A register gets rows of its own, and is loaded from them later
/// by what is added to `late`; `formal` is the type that the function returns, if known.
pub(crate) fn result(
    l: &mut Lower<'_, '_>,
    o: &Ast,
    formal: Option<Ty>,
    late: &mut Vec<LateResult>,
) -> Lowered<(u32, u32)> {
    if let Ast::Name(s) = o {
        if l.name(*s) == "_" {
            let bytes = size(formal.unwrap_or(Ty::B64));
            return Ok((l.fixed(bytes), bytes.div_ceil(4)));
        }
        if let Some(Entity::Fixed(row, bytes)) = l.lookup(*s) {
            return Ok((row, bytes.div_ceil(4)));
        }
    }
    let Some((parts, ty)) = registers(l, o) else {
        return bad("a result must be a parameter or a register");
    };
    let bytes = size(ty) * parts.len() as u32;
    let row = l.fixed(bytes);
    for (n, v) in parts.into_iter().enumerate() {
        let n = n as u32;
        late.push(LateResult { v, ty, row, n });
    }
    Ok((row, bytes.div_ceil(4)))
}

/// An argument of a call as fixed rows; a register or constant gets rows of its own. `formal` is
/// the type of the function's parameter, if known: a constant takes it.
pub(crate) fn argument(l: &mut Lower<'_, '_>, o: &Ast, formal: Option<Ty>) -> Lowered<(u32, u32)> {
    if let Ast::Name(s) = o
        && let Some(Entity::Fixed(row, bytes)) = l.lookup(*s)
    {
        return Ok((row, bytes.div_ceil(4)));
    }
    if let Some((parts, ty)) = registers(l, o) {
        let bytes = size(ty) * parts.len() as u32;
        let row = l.fixed(bytes);
        for (n, v) in parts.into_iter().enumerate() {
            store(l, v, ty, row, n as u32);
        }
        return Ok((row, bytes.div_ceil(4)));
    }
    let unknown = if matches!(o, Ast::Imm(Imm::F64(_))) {
        Ty::B64
    } else {
        Ty::B32
    };
    let ty = formal.unwrap_or(unknown);
    if ty == Ty::Pred {
        let p = l.pred(o)?;
        let row = l.fixed(1);
        store_pred(l, p, row, 0);
        return Ok((row, 1));
    }
    let v = l.src(o, ty)?;
    let bytes = size(ty).min(8);
    let row = l.fixed(bytes);
    store_fixed_at(l, v, row, 0, bytes);
    Ok((row, bytes.div_ceil(4)))
}
