//! Operands that stand for others: vector registers for their components, elements of arrays for
//! addresses.

use fercuda_ptx::ast::{self, AddrBase, Operand as Ast, Sym};
use fercuda_ptx::words::Op;

use super::super::layout::element_bytes;
use super::{Entity, Lower, Lowered, bad};

/// The operand that an instruction reads or writes memory through.
fn address_operand(op: Op) -> Option<usize> {
    match op {
        Op::Ld | Op::Ldu | Op::Atom => Some(1),
        Op::St | Op::Red | Op::Prefetch | Op::Prefetchu => Some(0),
        _ => None,
    }
}

fn is_compound(o: &Ast) -> bool {
    matches!(
        o,
        Ast::Name(_) | Ast::Index(..) | Ast::List(_) | Ast::Bracket(_) | Ast::Pair(..)
    )
}

impl Lower<'_, '_> {
    /// The instruction with such operands written out, if it has any.
    pub(super) fn expand(&mut self, i: &ast::Inst) -> Lowered<Option<ast::Inst>> {
        let mut found = false;
        for o in i.operands.iter().filter(|o| is_compound(o)) {
            found |= self.is_expandable(o);
        }
        if !found {
            return Ok(None);
        }
        let mut out = i.clone();
        for (n, o) in out.operands.iter_mut().enumerate() {
            if address_operand(i.op) == Some(n)
                && let Ast::Index(name, index) = *o
            {
                *o = Ast::Address {
                    base: AddrBase::Name(name),
                    offset: self.element_offset(name, index)?,
                };
            } else {
                self.expand_operand(o)?;
            }
        }
        Ok(Some(out))
    }

    fn is_expandable(&mut self, o: &Ast) -> bool {
        match o {
            Ast::Name(name) => matches!(self.lookup(*name), Some(Entity::Vector(..))),
            Ast::Index(..) => true,
            Ast::List(items) | Ast::Bracket(items) => items.iter().any(|o| self.is_expandable(o)),
            Ast::Pair(a, b) => self.is_expandable(a) || self.is_expandable(b),
            _ => false,
        }
    }

    fn expand_operand(&mut self, o: &mut Ast) -> Lowered<()> {
        match o {
            Ast::Name(name) => {
                if let Some(Entity::Vector(parts, _)) = self.lookup(*name) {
                    let name = *name;
                    *o = Ast::Vector(
                        (0..parts.len() as u8)
                            .map(|n| Ast::Member(name, n))
                            .collect(),
                    );
                }
            }
            Ast::Index(name, index) => {
                *o = Ast::Offset(*name, self.element_offset(*name, *index)?);
            }
            Ast::List(items) | Ast::Bracket(items) => {
                for o in items {
                    self.expand_operand(o)?;
                }
            }
            Ast::Pair(a, b) => {
                self.expand_operand(a)?;
                self.expand_operand(b)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The offset in bytes of an element of an array.
    fn element_offset(&mut self, name: Sym, index: i64) -> Lowered<i64> {
        let size = self.elements.get(&name).copied();
        match size.or_else(|| element_bytes(self.k.module, name)) {
            Some(size) => Ok(index.wrapping_mul(size as i64)),
            None => bad(format!("`{}` is no array", self.name(name))),
        }
    }
}
