//! Names and statements of a kernel before its text is chosen.
//!
//! Invariant: names here are indices into [`KernelDraft::names`]; text is chosen when the module
//! is finished (`finish`). A register is usable only inside the branch or loop body that
//! sets it.

use std::collections::HashMap;

use super::error::{Arch, BuildError};
use crate::ast::{self, AddrBase, Operand, Stmt, Sym};
use crate::words::{Mod, Op, ScalarType, Word};

/// What a local name stands for.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    /// A register.
    Reg {
        /// Type in its declaration.
        ty: ScalarType,
        /// Beginning of its name if it has no other.
        prefix: &'static str,
        /// Wanted name, without `%`.
        wanted: Option<String>,
        /// Branch or loop body in which it is set.
        scope: u32,
    },
    /// Text that may not change: special registers, and the sink.
    Fixed(String),
    /// A parameter or variable: this text if it is free.
    Object(String),
    /// A label: this text if it is free, after `$`.
    Label(String),
}

/// A statement and how many of its operands are destinations.
#[derive(Debug, Clone)]
pub(crate) struct EmittedLine {
    pub(crate) stmt: Stmt,
    pub(crate) dsts: usize,
    /// Made by [`Var::set`]: may be merged with the instruction before it.
    pub(crate) sets: bool,
}

#[derive(Debug)]
pub(crate) struct KernelDraft {
    pub(crate) entry: String,
    pub(crate) arch: Arch,
    pub(crate) names: Vec<Name>,
    pub(crate) body: Vec<EmittedLine>,
    pub(crate) params: Vec<ast::Var>,
    pub(crate) directives: Vec<ast::Directive>,
    /// Variables at module scope that this kernel brings.
    pub(crate) globals: Vec<ast::Var>,
    pub(crate) objects: HashMap<String, Sym>,
    pub(crate) fixed: HashMap<&'static str, Sym>,
    pub(crate) specials: HashMap<&'static str, (Sym, u32)>,
    pub(crate) scopes: Vec<u32>,
    pub(crate) scope_count: u32,
    pub(crate) label_count: u32,
    pub(crate) shared_bytes: u64,
    pub(crate) param_bytes: u64,
    pub(crate) error: Option<BuildError>,
}

impl KernelDraft {
    pub(crate) fn name(&mut self, name: Name) -> Sym {
        self.names.push(name);
        Sym(self.names.len() as u32 - 1)
    }

    pub(crate) fn fail(&mut self, error: impl FnOnce(&str) -> BuildError) {
        if self.error.is_none() {
            self.error = Some(error(&self.entry));
        }
    }

    /// The text of a parameter's or variable's name.
    pub(crate) fn text(&self, sym: Sym) -> &str {
        match self.names.get(sym.0 as usize) {
            Some(Name::Object(text)) => text,
            _ => "",
        }
    }

    pub(crate) fn scope(&self) -> u32 {
        self.scopes.last().copied().unwrap_or(0)
    }

    pub(crate) fn check_use(&mut self, sym: Sym) {
        if let Some(Name::Reg {
            scope,
            wanted,
            prefix,
            ..
        }) = self.names.get(sym.0 as usize)
            && !self.scopes.contains(scope)
        {
            let register = wanted
                .clone()
                .unwrap_or_else(|| format!("{prefix}{}", sym.0));
            self.fail(|kernel| BuildError::RegisterOutOfScope {
                kernel: kernel.to_owned(),
                register,
            });
        }
    }
}

/// Registers named in an operand.
pub(crate) fn names_in(operand: &Operand, f: &mut impl FnMut(Sym)) {
    match operand {
        Operand::Name(s)
        | Operand::Not(s)
        | Operand::Offset(s, _)
        | Operand::Index(s, _)
        | Operand::Member(s, _) => f(*s),
        Operand::Negated(o) => names_in(o, f),
        Operand::Address {
            base: AddrBase::Name(s),
            ..
        } => f(*s),
        Operand::Address {
            base: AddrBase::Imm(_),
            ..
        }
        | Operand::Imm(_) => {}
        Operand::Bracket(v) | Operand::Vector(v) | Operand::List(v) => {
            v.iter().for_each(|o| names_in(o, f))
        }
        Operand::Select(a, b) => {
            f(*a);
            f(*b);
        }
        Operand::Pair(a, b) => {
            names_in(a, f);
            names_in(b, f);
        }
    }
}

/// `.name.name` as modifiers.
pub(crate) fn mods(words: &[&[Mod]]) -> Vec<Mod> {
    words.concat()
}

pub(crate) const fn w(word: Word) -> Mod {
    Mod::Word(word)
}

/// Whether `name` can name a kernel, parameter or variable.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.len() > usize::from(name.starts_with('_'))
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !Op::ALL.iter().any(|op| op.text() == name)
        && name != "WARP_SZ"
}
