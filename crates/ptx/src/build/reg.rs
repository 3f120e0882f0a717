//! Registers, and what an operand can be.
//!
//! A [`Reg`] names a register, not a value: an instruction reads it when it is emitted,
//! which is at once.

use std::marker::PhantomData;
use std::ops;

use super::error::BuildError;
use super::kernel::KernelBuilder;
use super::state::Name;
use super::types::{ConstElement, Scalar, Type};
use crate::ast::{Imm, Operand, Sym};
use crate::words::{Mod, Op};

/// A register of type `T`, set once unless it belongs to a [`RegVar`].
pub struct Reg<'k, T> {
    pub(crate) kernel: &'k KernelBuilder,
    pub(crate) sym: Sym,
    pub(crate) ty: PhantomData<T>,
}

/// A predicate.
pub type Pred<'k> = Reg<'k, bool>;

impl<T> Clone for Reg<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Reg<'_, T> {}

/// A register that can be set again. Dereferences to its register; reading happens when an
/// instruction is emitted, so an earlier [`RegVar::snapshot`] keeps an earlier value.
pub struct RegVar<'k, T> {
    pub(crate) reg: Reg<'k, T>,
}

impl<T> Clone for RegVar<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for RegVar<'_, T> {}

impl<'k, T> ops::Deref for RegVar<'k, T> {
    type Target = Reg<'k, T>;
    fn deref(&self) -> &Reg<'k, T> {
        &self.reg
    }
}

impl<'k, T: Type> RegVar<'k, T> {
    /// Replaces the value.
    pub fn set(self, value: impl Arg<'k, T>) {
        let k = self.reg.kernel;
        let value = k.src(value.src());
        k.emit(
            Op::Mov,
            vec![Mod::Type(T::REG)],
            1,
            vec![Operand::Name(self.reg.sym), value],
        );
        k.mark_last_as_set();
    }

    /// The present value in a register of its own.
    #[must_use]
    pub fn snapshot(self) -> Reg<'k, T> {
        let k = self.reg.kernel;
        k.op(Op::Mov, vec![Mod::Type(T::REG)], vec![self.reg.operand()])
    }
}

/// A source operand of type `T`, checked.
pub struct Src<'k, T> {
    pub(crate) operand: Operand,
    /// Which kernel's register it is.
    pub(crate) kernel: Option<u64>,
    ty: PhantomData<(&'k (), T)>,
}

impl<'k, T> Src<'k, T> {
    pub(crate) fn of(reg: Reg<'k, T>) -> Self {
        Src {
            operand: Operand::Name(reg.sym),
            kernel: Some(reg.kernel.id),
            ty: PhantomData,
        }
    }

    fn imm(imm: Imm) -> Self {
        Src {
            operand: Operand::Imm(imm),
            kernel: None,
            ty: PhantomData,
        }
    }
}

/// What an operand of type `T` can be: a register, a variable or a Rust constant.
pub trait Arg<'k, T: Type>: Copy {
    /// As an operand.
    fn src(self) -> Src<'k, T>;
}

impl<'k, T: Type> Arg<'k, T> for Reg<'k, T> {
    fn src(self) -> Src<'k, T> {
        Src::of(self)
    }
}

impl<'k, T: Type> Arg<'k, T> for RegVar<'k, T> {
    fn src(self) -> Src<'k, T> {
        Src::of(self.reg)
    }
}

macro_rules! constants {
    ($($t:ty)*) => {$(
        impl<'k> Arg<'k, $t> for $t {
            fn src(self) -> Src<'k, $t> {
                Src::imm(ConstElement::imm(self))
            }
        }
    )*};
}
constants! { u16 i16 u32 i32 u64 i64 f32 f64 }

impl<'k, T: Type> Reg<'k, T> {
    /// Gives the register a name in the listing; a number is added if it is taken.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        let mut s = self.kernel.state.borrow_mut();
        if let Some(Name::Reg { wanted, .. }) = s.names.get_mut(self.sym.0 as usize) {
            *wanted = Some(name.into());
        }
        self
    }

    /// The kernel it belongs to.
    #[must_use]
    pub fn kernel(self) -> &'k KernelBuilder {
        self.kernel
    }

    /// As an operand of [`KernelBuilder::raw`].
    #[must_use]
    pub fn operand(self) -> Operand {
        Operand::Name(self.sym)
    }

    pub(crate) fn unary<U: Type>(self, op: Op, mods: Vec<Mod>) -> Reg<'k, U> {
        let a = self.own();
        self.kernel.op(op, mods, vec![a])
    }

    pub(crate) fn binary<U: Type, V: Type>(
        self,
        op: Op,
        mods: Vec<Mod>,
        b: impl Arg<'k, V>,
    ) -> Reg<'k, U> {
        let (a, b) = (self.own(), self.kernel.src(b.src()));
        self.kernel.op(op, mods, vec![a, b])
    }

    pub(crate) fn own(self) -> Operand {
        Operand::Name(self.sym)
    }
}

impl KernelBuilder {
    /// A new register of type `T`, set in the present scope.
    pub(crate) fn fresh<T: Type>(&self) -> Reg<'_, T> {
        let mut s = self.state.borrow_mut();
        let scope = s.scope();
        let sym = s.name(Name::Reg {
            ty: T::REG,
            prefix: T::PREFIX,
            wanted: None,
            scope,
        });
        Reg {
            kernel: self,
            sym,
            ty: PhantomData,
        }
    }

    /// `op.mods %new, sources`.
    pub(crate) fn op<T: Type>(&self, op: Op, mods: Vec<Mod>, sources: Vec<Operand>) -> Reg<'_, T> {
        let d = self.fresh::<T>();
        let mut operands = vec![Operand::Name(d.sym)];
        operands.extend(sources);
        self.emit(op, mods, 1, operands);
        d
    }

    /// The operand for `source`, having checked that it is this kernel's.
    pub(crate) fn src<T: Type>(&self, source: Src<'_, T>) -> Operand {
        if source.kernel.is_some_and(|id| id != self.id) {
            self.fail(|kernel| BuildError::ForeignRegister {
                kernel: kernel.to_owned(),
            });
            return Operand::Imm(Imm::Int {
                value: 0,
                unsigned: false,
            });
        }
        source.operand
    }

    /// A register that can be set again; `name` is its name in the listing.
    pub fn var<'k, T: Type>(
        &'k self,
        name: impl Into<String>,
        initial: impl Arg<'k, T>,
    ) -> RegVar<'k, T> {
        let initial = self.src(initial.src());
        let reg = self.fresh::<T>().named(name);
        self.emit(
            Op::Mov,
            vec![Mod::Type(T::REG)],
            1,
            vec![Operand::Name(reg.sym), initial],
        );
        self.mark_last_as_set();
        RegVar { reg }
    }

    /// A register holding a constant.
    pub fn value<'k, T: Scalar>(&'k self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.src(value.src());
        self.op(Op::Mov, vec![Mod::Type(T::REG)], vec![value])
    }

    /// An instruction with one result that this builder has no method for. The words are
    /// not checked against the operands.
    pub fn raw<T: Type>(&self, op: Op, mods: &[Mod], sources: &[Operand]) -> Reg<'_, T> {
        self.op(op, mods.to_vec(), sources.to_vec())
    }
}
