//! Lowering of operands: registers, constants, predicates, variables, addresses.

use std::sync::Arc;

use fercuda_ptx::ast::{AddrBase, Imm, Operand as Ast, Sym};
use fercuda_ptx::words::{ScalarType as Ty, Space};

use super::super::basics::{Copy64, Narrow8, Narrow16, Pack16, Pack32, Pack64};
use super::super::lanes::handlers;
use super::super::layout::VariableSpace as VarPlace;
use super::super::program::Const;
use super::super::tags::FUNCTION_TAG;
use super::super::width::{bits, is_float, is_signed, rows};
use super::super::{basics, special};
use super::{Entity, Lower, LowerError, Lowered, Opd, PredRef, VirtualReg, bad};

/// Where a variable begins.
#[derive(Debug, Clone)]
pub(crate) enum VarBase {
    /// An offset in its space, or a function.
    Known(u64),
    Global(Arc<str>),
    Local(u32),
    Fixed(u32, u32),
}

/// A memory operand.
#[derive(Debug, Clone)]
pub(crate) enum AddressOperand {
    Value {
        base: Opd,
        wide: bool,
        offset: i32,
        space: Option<Space>,
    },
    /// Constant offset into the kernel's parameters.
    Param(u32),
    /// Constant offset into a parameter of a call.
    Fixed { row: u32, bytes: u32, offset: i64 },
}

impl Lower<'_, '_> {
    /// A predicate register.
    pub(crate) fn pred_named(&mut self, s: Sym, negated: bool) -> Lowered<PredRef> {
        match self.lookup(s) {
            Some(Entity::Reg(v, Ty::Pred)) => Ok(PredRef::Use(v, negated)),
            None if self.name(s) == "%is_explicit_cluster" => {
                Ok(match special::explicit_cluster(self) {
                    PredRef::Use(t, _) => PredRef::Use(t, negated),
                    other => other,
                })
            }
            _ => bad(format!("`{}` is no predicate", self.name(s))),
        }
    }

    /// A predicate operand, also negated or constant.
    pub(crate) fn pred(&mut self, o: &Ast) -> Lowered<PredRef> {
        match o {
            Ast::Name(s) => self.pred_named(*s, false),
            Ast::Not(s) => self.pred_named(*s, true),
            Ast::Imm(Imm::Int { value, .. }) => Ok(if *value != 0 {
                PredRef::True
            } else {
                PredRef::False
            }),
            _ => bad("expected a predicate"),
        }
    }

    /// A predicate destination; `_` is one that is never read.
    pub(crate) fn pred_dst(&mut self, o: &Ast) -> Lowered<PredRef> {
        match o {
            Ast::Name(s) if self.name(*s) == "_" => Ok(PredRef::Def(self.temp_pred())),
            Ast::Name(s) => match self.pred_named(*s, false)? {
                PredRef::Use(v, _) => Ok(if self.guard == PredRef::True {
                    PredRef::Def(v)
                } else {
                    PredRef::Both(v)
                }),
                p => Ok(p),
            },
            _ => bad("expected a predicate"),
        }
    }

    fn imm_bits(&self, imm: Imm, ty: Ty) -> u64 {
        match (imm, ty) {
            (Imm::F32(b), Ty::F64) => f64::from(f32::from_bits(b)).to_bits(),
            (Imm::F32(b), _) => u64::from(b),
            (Imm::F64(b), Ty::F32) => u64::from((f64::from_bits(b) as f32).to_bits()),
            (Imm::F64(b), _) => b,
            (Imm::Int { value, .. }, Ty::F32) => u64::from((value as f32).to_bits()),
            (Imm::Int { value, .. }, Ty::F64) => (value as f64).to_bits(),
            (Imm::Int { value, .. }, _) => match bits(ty) {
                8 => u64::from(value as u8),
                16 => u64::from(value as u16),
                32 => u64::from(value as u32),
                _ => value as u64,
            },
        }
    }

    /// A source read as `ty`; registers of another width are converted.
    pub(crate) fn src(&mut self, o: &Ast, ty: Ty) -> Lowered<Opd> {
        let want = rows(ty);
        let found = match o {
            Ast::Imm(imm) => {
                let b = self.imm_bits(*imm, ty);
                return Ok(if want >= 2 {
                    self.c64(b)
                } else {
                    self.c32(b as u32)
                });
            }
            Ast::Name(s) => {
                let text = self.name(*s);
                match self.lookup(*s) {
                    Some(Entity::Reg(_, Ty::Pred)) => {
                        return bad(format!("`{text}` is a predicate"));
                    }
                    Some(Entity::Reg(v, have)) => (Opd::Use(v), rows(have)),
                    Some(_) => return self.address_value(*s, 0, want),
                    None if text.starts_with('%') => special::read(self, text)?,
                    None if text == "WARP_SZ" => (self.c32(32), 1),
                    None => return self.address_value(*s, 0, want),
                }
            }
            Ast::Offset(s, n) => match self.lookup(*s) {
                Some(Entity::Reg(v, have)) if have != Ty::Pred => self.sum(v, have, *n)?,
                _ => return self.address_value(*s, *n, want),
            },
            Ast::Member(s, n) => match self.lookup(*s) {
                Some(Entity::Vector(vs, have)) if usize::from(*n) < vs.len() => {
                    (Opd::Use(vs[usize::from(*n)]), rows(have))
                }
                _ => match special::read(
                    self,
                    &format!(
                        "{}.{}",
                        self.name(*s),
                        ["x", "y", "z", "w"][usize::from(*n & 3)]
                    ),
                ) {
                    Ok(found) => found,
                    Err(_) => return bad(format!("`{}` is no vector", self.name(*s))),
                },
            },
            Ast::Vector(parts) => return pack(self, parts, ty),
            _ => return bad("an operand of a kind that cannot stand here"),
        };
        Ok(self.resize(found.0, found.1, want, is_signed(ty)))
    }

    /// A register and a constant added: `%r1+4` as a source.
    fn sum(&mut self, v: VirtualReg, ty: Ty, n: i64) -> Lowered<(Opd, u8)> {
        if is_float(ty) || bits(ty) > 64 {
            return bad("a constant is added to integers only");
        }
        let t = self.temp_rows(rows(ty));
        let (h, c) = match rows(ty) {
            2 => (basics::add64(), self.c64(n as u64)),
            _ => (basics::add32(), self.c32(n as u32)),
        };
        self.prepare(h, Opd::Def(t), Opd::Use(v), c, Opd::None);
        let cut = match bits(ty) {
            8 => handlers::<Narrow8>(),
            16 => handlers::<Narrow16>(),
            _ => return Ok((Opd::Use(t), rows(ty))),
        };
        let short = self.temp_rows(1);
        self.prepare(cut, Opd::Def(short), Opd::Use(t), Opd::None, Opd::None);
        Ok((Opd::Use(short), 1))
    }

    /// Changes the width of a value: 1 or 2 rows.
    pub(crate) fn resize(&mut self, o: Opd, have: u8, want: u8, signed: bool) -> Opd {
        match (have, want) {
            (1, 2) => {
                let t = self.temp_rows(2);
                let h = if signed {
                    basics::widen_signed()
                } else {
                    basics::widen()
                };
                self.prepare(h, Opd::Def(t), o, Opd::None, Opd::None);
                Opd::Use(t)
            }
            (2 | 4, 1) => {
                let t = self.temp_rows(1);
                self.prepare(basics::narrow(), Opd::Def(t), o, Opd::None, Opd::None);
                Opd::Use(t)
            }
            _ => o,
        }
    }

    /// A destination's register and its type; `_` is one that is never read.
    pub(crate) fn dst_reg(&mut self, o: &Ast, ty: Ty) -> Lowered<(VirtualReg, Ty)> {
        match o {
            Ast::Name(s) if self.name(*s) == "_" => Ok((self.temp_rows(rows(ty)), ty)),
            Ast::Name(s) => match self.lookup(*s) {
                Some(Entity::Reg(v, have)) => Ok((v, have)),
                _ => bad(format!("`{}` is no register", self.name(*s))),
            },
            Ast::Member(s, n) => match self.lookup(*s) {
                Some(Entity::Vector(vs, have)) if usize::from(*n) < vs.len() => {
                    Ok((vs[usize::from(*n)], have))
                }
                _ => bad(format!("`{}` is no vector", self.name(*s))),
            },
            _ => bad("a destination must be a register"),
        }
    }

    /// A destination of exactly the width of `ty`.
    pub(crate) fn dst(&mut self, o: &Ast, ty: Ty) -> Lowered<Opd> {
        let (v, have) = self.dst_reg(o, ty)?;
        if have == Ty::Pred {
            return bad("a predicate as destination");
        }
        if rows(have) != rows(ty) {
            return bad("a destination of the wrong width");
        }
        Ok(Opd::Def(v))
    }

    /// A destination that may be wider than `ty`; call [`Lower::finish`] behind the instruction.
    pub(crate) fn dst_wide(
        &mut self,
        o: &Ast,
        ty: Ty,
    ) -> Lowered<(Opd, Option<(VirtualReg, Opd)>)> {
        let (v, have) = self.dst_reg(o, ty)?;
        if have == Ty::Pred {
            return bad("a predicate as destination");
        }
        if rows(have) == rows(ty) {
            return Ok((Opd::Def(v), None));
        }
        if rows(have) < rows(ty) {
            return bad("a destination that is too narrow");
        }
        let t = self.temp_rows(rows(ty));
        Ok((Opd::Def(t), Some((t, Opd::Def(v)))))
    }

    /// Widens a temporary into the destination that [`Lower::dst_wide`] put aside.
    pub(crate) fn finish(&mut self, wide: Option<(VirtualReg, Opd)>, signed: bool) {
        if let Some((t, d)) = wide {
            let h = if signed {
                basics::widen_signed()
            } else {
                basics::widen()
            };
            self.emit(h, d, Opd::Use(t), Opd::None, Opd::None);
        }
    }

    /// The address of a variable or function in its own space, as a value.
    fn address_value(&mut self, s: Sym, addend: i64, want: u8) -> Lowered<Opd> {
        let (base, space) = self.variable(s)?;
        match base {
            VarBase::Known(at) => {
                let at = at.wrapping_add(addend as u64);
                let _ = space;
                Ok(if want == 2 {
                    self.c64(at)
                } else {
                    self.c32(at as u32)
                })
            }
            VarBase::Global(name) => {
                let c = self.constant(Const::Address { name, addend });
                Ok(self.resize(c, 2, want, false))
            }
            VarBase::Local(at) => {
                let t = self.temp_rows(2);
                self.prepare(
                    special::local_address(),
                    Opd::Def(t),
                    Opd::None,
                    Opd::None,
                    Opd::None,
                )
                .imm = u64::from(at).wrapping_add(addend as u64);
                Ok(self.resize(Opd::Use(t), 2, want, false))
            }
            VarBase::Fixed(..) => Err(LowerError::Unsupported),
        }
    }

    /// Where a variable is.
    pub(crate) fn variable(&mut self, s: Sym) -> Lowered<(VarBase, Space)> {
        match self.lookup(s) {
            Some(Entity::Shared(at)) => return Ok((VarBase::Known(u64::from(at)), Space::Shared)),
            Some(Entity::Local(at)) => return Ok((VarBase::Local(at), Space::Local)),
            Some(Entity::KernelParam(at)) => {
                return Ok((VarBase::Known(u64::from(at)), Space::Param));
            }
            Some(Entity::Fixed(row, bytes)) => {
                return Ok((VarBase::Fixed(row, bytes), Space::Param));
            }
            _ => {}
        }
        let text = self.name(s);
        if let Some(&f) = self.k.info.function_index.get(&s) {
            return Ok((VarBase::Known(FUNCTION_TAG | u64::from(f)), Space::Global));
        }
        match self.k.info.variables.get(&s) {
            Some(VarPlace::Global) => Ok((VarBase::Global(text.into()), Space::Global)),
            Some(VarPlace::Const) => Ok((VarBase::Global(text.into()), Space::Const)),
            None => bad(format!("unknown name `{text}`")),
        }
    }

    /// An address operand: (base register or constant of 64 or 32 bits, whether 64, offset, space
    /// of a variable).
    pub(crate) fn address(&mut self, o: &Ast) -> Lowered<AddressOperand> {
        let Ast::Address { base, offset } = o else {
            return bad("expected an address");
        };
        match base {
            AddrBase::Imm(n) => {
                let c = self.c64((*n as u64).wrapping_add(*offset as u64));
                Ok(AddressOperand::Value {
                    base: c,
                    wide: true,
                    offset: 0,
                    space: None,
                })
            }
            AddrBase::Name(s) => {
                if let Some(Entity::Reg(v, have)) = self.lookup(*s) {
                    let (base, offset) = self.small_offset(Opd::Use(v), rows(have) == 2, *offset);
                    return Ok(AddressOperand::Value {
                        base,
                        wide: rows(have) == 2,
                        offset,
                        space: None,
                    });
                }
                match self.variable(*s)? {
                    (VarBase::Fixed(row, bytes), _) => Ok(AddressOperand::Fixed {
                        row,
                        bytes,
                        offset: *offset,
                    }),
                    (VarBase::Known(at), Space::Param) => Ok(AddressOperand::Param(
                        (at.wrapping_add(*offset as u64)) as u32,
                    )),
                    (VarBase::Known(at), space) => {
                        let c = self.c64(at.wrapping_add(*offset as u64));
                        Ok(AddressOperand::Value {
                            base: c,
                            wide: true,
                            offset: 0,
                            space: Some(space),
                        })
                    }
                    (VarBase::Global(name), space) => {
                        let c = self.constant(Const::Address {
                            name,
                            addend: *offset,
                        });
                        Ok(AddressOperand::Value {
                            base: c,
                            wide: true,
                            offset: 0,
                            space: Some(space),
                        })
                    }
                    (VarBase::Local(_), space) => {
                        let base = self.address_value(*s, *offset, 2)?;
                        Ok(AddressOperand::Value {
                            base,
                            wide: true,
                            offset: 0,
                            space: Some(space),
                        })
                    }
                }
            }
        }
    }

    fn small_offset(&mut self, base: Opd, wide: bool, offset: i64) -> (Opd, i32) {
        if let Ok(n) = i32::try_from(offset) {
            return (base, n);
        }
        let t = self.temp_rows(if wide { 2 } else { 1 });
        let (h, c) = if wide {
            (basics::add64(), self.c64(offset as u64))
        } else {
            (basics::add32(), self.c32(offset as u32))
        };
        self.prepare(h, Opd::Def(t), base, c, Opd::None);
        (Opd::Use(t), 0)
    }
}

/// A vector operand as one value in a temporary.
pub(crate) fn pack(l: &mut Lower<'_, '_>, parts: &[Ast], ty: Ty) -> Lowered<Opd> {
    let t = l.temp_rows(rows(ty));
    let guard = std::mem::take(&mut l.guard);
    let done = pack_into(l, parts, ty, Opd::Def(t));
    l.guard = guard;
    done?;
    Ok(Opd::Use(t))
}

pub(crate) fn pack_into(l: &mut Lower<'_, '_>, parts: &[Ast], ty: Ty, d: Opd) -> Lowered<()> {
    match (bits(ty), parts) {
        (128, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B64)?, l.src(b, Ty::B64)?);
            let Opd::Def(v) = d else {
                return bad("a 128-bit destination must be a register");
            };
            l.emit(handlers::<Copy64>(), d, a, Opd::None, Opd::None);
            l.emit(
                handlers::<Copy64>(),
                Opd::DefHigh(v),
                b,
                Opd::None,
                Opd::None,
            );
        }
        (128, [_, _, _, _]) => {
            let (lo, hi) = (
                pack(l, &parts[..2], Ty::B64)?,
                pack(l, &parts[2..], Ty::B64)?,
            );
            let Opd::Def(v) = d else {
                return bad("a 128-bit destination must be a register");
            };
            l.emit(handlers::<Copy64>(), d, lo, Opd::None, Opd::None);
            l.emit(
                handlers::<Copy64>(),
                Opd::DefHigh(v),
                hi,
                Opd::None,
                Opd::None,
            );
        }
        (64, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B32)?, l.src(b, Ty::B32)?);
            l.emit(handlers::<Pack64>(), d, a, b, Opd::None);
        }
        (64, [_, _, _, _]) => {
            let (a, b) = (
                pack(l, &parts[..2], Ty::B32)?,
                pack(l, &parts[2..], Ty::B32)?,
            );
            l.emit(handlers::<Pack64>(), d, a, b, Opd::None);
        }
        (32, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B16)?, l.src(b, Ty::B16)?);
            l.emit(handlers::<Pack32>(), d, a, b, Opd::None);
        }
        (32, [_, _, _, _]) => {
            let (a, b) = (
                pack(l, &parts[..2], Ty::B16)?,
                pack(l, &parts[2..], Ty::B16)?,
            );
            l.emit(handlers::<Pack32>(), d, a, b, Opd::None);
        }
        (16, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B8)?, l.src(b, Ty::B8)?);
            l.emit(handlers::<Pack16>(), d, a, b, Opd::None);
        }
        _ => return bad("a vector of this shape"),
    }
    Ok(())
}
