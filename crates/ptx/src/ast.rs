//! Syntax tree of PTX, built by the parser or the builder and printed by the printer.
//!
//! Invariant: everything that changes meaning is in the tree; comments and layout are not.
//! Positions ([`Inst::line`]) are not part of equality, so `parse(print(x)) == x`.
//!
//! Elsewhere: the words of the language ([`crate::words`]), parsing ([`crate::parse()`]),
//! printing ([`crate::print()`]), building ([`crate::build`]).

use crate::words::{Mod, Op, ScalarType, Space};

/// An interned name; its text is in the [`Symbols`] of the same [`PtxModule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sym(pub u32);

/// A translation unit.
///
/// Modules compare as their texts do: see [`crate::walk`].
#[derive(Debug, Clone)]
pub struct PtxModule {
    /// `.version` as (major, minor).
    pub version: (u32, u32),
    /// `.target` words in order, the architecture first: `["sm_90a", "debug"]`.
    pub target: Vec<String>,
    /// `.address_size`, 32 or 64.
    pub address_size: u32,
    /// Directives in order.
    pub items: Vec<Item>,
    /// Every name used in the module.
    pub symbols: Symbols,
}

/// A directive at module scope.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// `.global`, `.const`, `.shared` or `.tex` variable.
    Var(Var),
    /// `.entry` or `.func`, declared or defined.
    Function(PtxFunction),
    /// `.file index "path"[, timestamp, size]`.
    File {
        /// Referred to by `.loc`.
        index: u32,
        /// As written, without quotes.
        path: String,
        /// Modification time and size in bytes.
        stamp: Option<(u64, u64)>,
    },
    /// `.section name { ... }`: debugging data, kept as text, one line each.
    Section {
        /// With its dot: `.debug_str`.
        name: String,
        /// Verbatim, trimmed.
        lines: Vec<String>,
    },
    /// `.alias name, target;`
    Alias {
        /// New name.
        name: Sym,
        /// Existing function.
        target: Sym,
    },
    /// `.pragma "text";`
    Pragma(Vec<String>),
}

/// Visibility to the linker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Linkage {
    /// None given: local to the module.
    #[default]
    Local,
    /// `.visible`
    Visible,
    /// `.extern`
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// A variable, or a formal parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Var {
    /// Visibility; `Local` for everything but module scope.
    pub linkage: Linkage,
    /// Where it lives. `Param` for parameters; `Reg` for register parameters of a `.func`.
    pub space: Space,
    /// `.align n` in bytes, if written.
    pub align: Option<u32>,
    /// 2 or 4 for `.v2`/`.v4`, else 1.
    pub vector: u32,
    /// Element type.
    pub ty: ScalarType,
    /// Name.
    pub name: Sym,
    /// Array dimensions; a `None` dimension is `[]`.
    pub dims: Vec<Option<u64>>,
    /// Initial value, if written.
    pub init: Option<Init>,
    /// `.ptr` of a kernel parameter.
    pub ptr: Option<PtrAttr>,
    /// `.attribute(...)` content, verbatim: `.managed`.
    pub attributes: Vec<String>,
}

/// `.ptr .space .align n` of a kernel parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtrAttr {
    /// Space pointed to, generic if absent.
    pub space: Option<Space>,
    /// Bytes.
    pub align: Option<u32>,
}

/// An initialiser.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// A constant.
    Imm(Imm),
    /// An address: `name`, `name+8`, `generic(name)+8`; `mask(0xff, ...)` sets `mask`.
    Address {
        /// Variable or function.
        name: Sym,
        /// Bytes.
        offset: i64,
        /// `generic(...)`.
        generic: bool,
        /// The byte mask of `mask(...)`.
        mask: Option<u64>,
    },
    /// `{ ... }`, nested for several dimensions.
    List(Vec<Init>),
}

/// A constant as written; its width is its user's.
#[derive(Debug, Clone, Copy)]
pub enum Imm {
    /// An integer in two's complement; `unsigned` when written with the suffix `U`.
    Int {
        /// 64-bit value.
        value: i64,
        /// Suffix.
        unsigned: bool,
    },
    /// `0f3F800000`: bits of an f32.
    F32(u32),
    /// `0d...` or a decimal such as `1.5`: bits of an f64.
    F64(u64),
}

impl PartialEq for Imm {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Imm::Int {
                    value: a,
                    unsigned: ua,
                },
                Imm::Int {
                    value: b,
                    unsigned: ub,
                },
            ) => a == b && ua == ub,
            (Imm::F32(a), Imm::F32(b)) => a == b,
            (Imm::F64(a), Imm::F64(b)) => a == b,
            _ => false,
        }
    }
}
impl Eq for Imm {}

/// `.entry` or `.func`.
#[derive(Debug, Clone, PartialEq)]
pub struct PtxFunction {
    /// Visibility.
    pub linkage: Linkage,
    /// A kernel rather than a device function.
    pub entry: bool,
    /// Name.
    pub name: Sym,
    /// Return parameters of a `.func`.
    pub returns: Vec<Var>,
    /// Parameters in order.
    pub params: Vec<Var>,
    /// Between the header and the body, in order.
    pub directives: Vec<Directive>,
    /// `None` for a declaration.
    pub body: Option<Vec<Stmt>>,
}

/// A directive between a function's header and body.
#[derive(Debug, Clone, PartialEq)]
pub enum Directive {
    /// A bare word such as `.noreturn`, `.explicitcluster`, without its dot.
    Flag(String),
    /// A word with numbers: `.maxntid 128, 1, 1`, without its dot.
    Numbers(String, Vec<u32>),
    /// `.pragma "text", ...;`
    Pragma(Vec<String>),
    /// `.attribute(...)` content, verbatim.
    Attribute(Vec<String>),
}

/// One statement of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Stmt {
    /// `.reg .b32 %r<10>, %x;` one entry per declarator.
    Reg {
        /// 1, 2 or 4.
        vector: u32,
        /// Element type.
        ty: ScalarType,
        /// (name, count of `<count>`): `%r<10>` declares `%r0`..`%r9`.
        names: Vec<(Sym, Option<u32>)>,
    },
    /// `.local`, `.shared`, `.param`, `.const` or `.global` variable in a body.
    Var(Var),
    /// `name:`
    Label(Sym),
    /// An instruction.
    Inst(Inst),
    /// `{ ... }`
    Block(Vec<Stmt>),
    /// `.loc`
    Loc(Loc),
    /// `.pragma "text";`
    Pragma(Vec<String>),
    /// `name: .branchtargets a, b;`
    BranchTargets {
        /// Used by `brx.idx`.
        name: Sym,
        /// Labels in index order.
        targets: Vec<Sym>,
    },
    /// `name: .calltargets a, b;`
    CallTargets {
        /// Used by an indirect `call`.
        name: Sym,
        /// Functions.
        targets: Vec<Sym>,
    },
    /// `name: .callprototype (ret) _ (params);`
    CallPrototype {
        /// Used by an indirect `call`.
        name: Sym,
        /// Return parameters.
        returns: Vec<Var>,
        /// Parameters.
        params: Vec<Var>,
        /// `.noreturn` and the like.
        directives: Vec<Directive>,
    },
}

/// A source position in force from here on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loc {
    /// Index of `.file`.
    pub file: u32,
    /// 1-based.
    pub line: u32,
    /// 1-based, 0 if unknown.
    pub column: u32,
    /// `function_name label[+offset], inlined_at file line column`.
    pub inlined: Option<InlinedAt>,
}

/// The inlining part of a [`Loc`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlinedAt {
    /// Label of the function's name in a debug section.
    pub function: Sym,
    /// Bytes added to that label.
    pub offset: u64,
    /// Position of the call.
    pub file: u32,
    /// 1-based.
    pub line: u32,
    /// 1-based.
    pub column: u32,
}

/// An instruction.
#[derive(Debug, Clone)]
pub struct Inst {
    /// `@%p` or `@!%p`.
    pub guard: Option<Guard>,
    /// Base opcode.
    pub op: Op,
    /// Everything after the opcode's first dot, in order, types included.
    pub mods: Mods,
    /// In written order: destinations first.
    pub operands: Vec<Operand>,
    /// 1-based line in the text it came from; 0 if built. Not compared.
    pub line: u32,
}

impl PartialEq for Inst {
    fn eq(&self, other: &Self) -> bool {
        self.guard == other.guard
            && self.op == other.op
            && self.mods == other.mods
            && self.operands == other.operands
    }
}

/// Modifiers in order.
pub type Mods = Vec<Mod>;

/// A predicate guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// Predicate register.
    pub pred: Sym,
    /// `@!`
    pub negated: bool,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register, special register (`%tid.x` is one name), variable, label or function.
    /// Also the sink `_`.
    Name(Sym),
    /// `!%p`
    Not(Sym),
    /// A constant.
    Imm(Imm),
    /// `name+8` outside brackets.
    Offset(Sym, i64),
    /// `name[2]`: an element of an array, counted in elements.
    Index(Sym, i64),
    /// `-%r1`, `-%r1.h0`: a register, or a part of it, that `vmad` negates.
    Negated(Box<Operand>),
    /// `[base+offset]`.
    Address {
        /// Register, variable or constant.
        base: AddrBase,
        /// Bytes.
        offset: i64,
    },
    /// `[name, {a, b}]` and `[a, {x}, {y}]`: textures and tensor maps.
    Bracket(Vec<Operand>),
    /// `{a, b, c, d}`
    Vector(Vec<Operand>),
    /// `a|b`: the two destinations of `setp` and `shfl`.
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)`: argument and result lists of `call`.
    List(Vec<Operand>),
    /// `%v.x`: a component (0..=3) of a vector register.
    Member(Sym, u8),
    /// `a.b0`, `a.h1`, `a.b3210`: the bytes or halves a video instruction takes; the second
    /// symbol is the selector's text.
    Select(Sym, Sym),
}

/// What an address starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddrBase {
    /// Register or variable.
    Name(Sym),
    /// Absolute; the whole address, so that the offset beside it is 0.
    Imm(i64),
}

/// The names of a module, each stored once.
///
/// Equality compares the names in order.
#[derive(Debug, Clone, Default)]
pub struct Symbols {
    text: String,
    ends: Vec<u32>,
    index: hashbrown::HashTable<u32>,
}

impl PartialEq for Symbols {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.ends == other.ends
    }
}

impl Symbols {
    /// The symbol for `name`, made if new.
    pub fn intern(&mut self, name: &str) -> Sym {
        let hash = hash_name(name);
        let Symbols { text, ends, index } = self;
        let slice = |i: u32| {
            let start = if i == 0 {
                0
            } else {
                ends[i as usize - 1] as usize
            };
            &text[start..ends[i as usize] as usize]
        };
        if let Some(&i) = index.find(hash, |&i| slice(i) == name) {
            return Sym(i);
        }
        let i = u32::try_from(self.ends.len())
            .expect("fewer than 2^32 names: the parser bounds its input to 2^31 bytes");
        self.text.push_str(name);
        self.ends.push(self.text.len() as u32);
        let Symbols { text, ends, index } = self;
        index.insert_unique(hash, i, |&i| {
            let start = if i == 0 {
                0
            } else {
                ends[i as usize - 1] as usize
            };
            hash_name(&text[start..ends[i as usize] as usize])
        });
        Sym(i)
    }

    /// The symbol for `name`, if it exists.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Sym> {
        self.index
            .find(hash_name(name), |&i| self.name(Sym(i)) == name)
            .map(|&i| Sym(i))
    }

    /// The text of `sym`.
    ///
    /// # Panics
    /// If `sym` is another module's.
    #[must_use]
    pub fn name(&self, sym: Sym) -> &str {
        let i = sym.0 as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.text[start..self.ends[i] as usize]
    }

    /// Number of names; every `Sym` is below it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

fn hash_name(name: &str) -> u64 {
    use std::hash::Hasher;
    let mut h = rustc_hash::FxHasher::default();
    h.write(name.as_bytes());
    h.finish()
}
