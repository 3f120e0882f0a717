//! Lowering of a function's syntax tree to code with virtual registers.
//!
//! Each family of instructions has its lowering beside its handlers (`alu_int`, `memory`, ...);
//! names, scopes and control flow are here, operands in `operands`. Registers are assigned by
//! [`super::assign`].
//!
//! Invariants: a block's only terminator is its last thing. A predicated instruction that ends a
//! block becomes a branch around a block of its own. An instruction that this device lacks becomes
//! a terminator that faults.

use std::sync::Arc;

use fercuda_ptx::ast::{self, Operand as Ast, Stmt, Sym};
use fercuda_ptx::words::{Mod, Op, ScalarType as Ty, Space, Word};
use rustc_hash::FxHashMap;

use super::ctx::{LOCAL_TAG, PARAM_TAG, SHARED_TAG};
use super::lanes::{Handlers, Isa};
use super::layout::{ModuleInfo, var_bytes};
use super::program::{Const, InstOrigin, KernelCode, LaneFn};
use super::{alu_float, alu_int, control, convert, data, memory, sync};

mod operands;
pub(crate) use operands::AddressOperand;

/// A virtual register.
pub(crate) type VirtualReg = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegisterClass {
    /// 1, 2 or 4 rows.
    Rows(u8),
    Pred,
}

/// An operand before registers are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Opd {
    #[default]
    None,
    Use(VirtualReg),
    Def(VirtualReg),
    /// Read and written, or written only in some lanes.
    Both(VirtualReg),
    /// The upper 64 bits of a 128-bit register.
    UseHigh(VirtualReg),
    DefHigh(VirtualReg),
    Const(u32),
    /// A row of the frame's fixed part: parameters of calls.
    Fixed(u32),
}

/// A predicate operand before registers are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PredRef {
    #[default]
    True,
    False,
    Use(VirtualReg, bool),
    Def(VirtualReg),
    Both(VirtualReg),
}

/// Further operands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ext {
    Row(Opd),
    Raw(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct LInst {
    pub(crate) handlers: Handlers,
    pub(crate) d: Opd,
    pub(crate) a: Opd,
    pub(crate) b: Opd,
    pub(crate) c: Opd,
    pub(crate) guard: PredRef,
    pub(crate) x: u32,
    pub(crate) x_pred: Option<PredRef>,
    pub(crate) imm: u64,
    pub(crate) imm_lo: Option<PredRef>,
    pub(crate) imm_hi: Option<PredRef>,
    pub(crate) ext: Vec<Ext>,
    pub(crate) origin: InstOrigin,
}

#[derive(Debug, Clone)]
pub(crate) enum LTerm {
    Jump(usize),
    Branch {
        pred: PredRef,
        taken: usize,
        fall: usize,
    },
    Switch {
        index: Opd,
        targets: Vec<usize>,
    },
    Call {
        callee: LCallee,
        args: Vec<(u32, u32)>,
        rets: Vec<(u32, u32)>,
        next: usize,
    },
    Ret,
    Exit,
    Barrier(LBarrier),
    WarpSync(usize),
    Yield(usize),
    Nap(usize),
    Trap,
    NotImplemented(Arc<str>),
    Bad(Arc<str>),
}

#[derive(Debug, Clone)]
pub(crate) enum LCallee {
    Direct(u32),
    Indirect(Opd),
    Printf,
    AssertFail,
    Malloc,
    Free,
}

#[derive(Debug, Clone)]
pub(crate) struct LBarrier {
    pub(crate) op: super::program::BarrierOp,
    pub(crate) aligned: bool,
    pub(crate) id: Opd,
    pub(crate) count: Option<Opd>,
    pub(crate) pred: PredRef,
    pub(crate) dest: Opd,
    pub(crate) dest_pred: PredRef,
    pub(crate) next: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct LBlock {
    pub(crate) insts: Vec<LInst>,
    pub(crate) sync: Option<Opd>,
    pub(crate) term: Option<LTerm>,
    pub(crate) origin: InstOrigin,
}

/// Why an instruction was not lowered.
#[derive(Debug, Clone)]
pub(crate) enum LowerError {
    Unsupported,
    Bad(String),
}

pub(crate) type Lowered<T> = Result<T, LowerError>;

pub(crate) fn bad<T>(why: impl Into<String>) -> Lowered<T> {
    Err(LowerError::Bad(why.into()))
}

/// Operand `n` of an instruction.
pub(crate) fn operand(i: &ast::Inst, n: usize) -> Lowered<&Ast> {
    i.operands
        .get(n)
        .ok_or_else(|| LowerError::Bad("too few operands".to_owned()))
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub(crate) enum Entity {
    Reg(VirtualReg, Ty),
    Vector(Vec<VirtualReg>, Ty),
    /// `%r<n>`: made when first used.
    Family(u32, Ty),
    Label(usize),
    Targets(Vec<Sym>),
    Prototype,
    /// Parameter of the kernel: byte offset.
    KernelParam(u32),
    /// Parameter of a call or of a device function: first fixed row, bytes.
    Fixed(u32, u32),
    /// Byte offset in the frame's local memory.
    Local(u32),
    Shared(u32),
}

/// Modifiers, asked by name.
pub(crate) struct Mods<'a>(pub(crate) &'a [Mod]);

impl Mods<'_> {
    pub(crate) fn has(&self, w: Word) -> bool {
        self.0.contains(&Mod::Word(w))
    }
    pub(crate) fn any(&self, ws: &[Word]) -> Option<Word> {
        self.words().find(|w| ws.contains(w))
    }
    pub(crate) fn words(&self) -> impl Iterator<Item = Word> + '_ {
        self.0
            .iter()
            .filter_map(|m| if let Mod::Word(w) = m { Some(*w) } else { None })
    }
    pub(crate) fn types(&self) -> impl Iterator<Item = Ty> + '_ {
        self.0
            .iter()
            .filter_map(|m| if let Mod::Type(t) = m { Some(*t) } else { None })
    }
    /// The `n`th type.
    pub(crate) fn ty(&self, n: usize) -> Lowered<Ty> {
        self.types()
            .nth(n)
            .ok_or_else(|| LowerError::Bad("a type is missing".to_owned()))
    }
}

/// Bits of a type.
pub(crate) fn bits(ty: Ty) -> u32 {
    match ty {
        Ty::U8 | Ty::S8 | Ty::B8 | Ty::E4m3 | Ty::E5m2 => 8,
        Ty::U16 | Ty::S16 | Ty::B16 | Ty::F16 | Ty::Bf16 | Ty::E4m3x2 | Ty::E5m2x2 => 16,
        Ty::U64 | Ty::S64 | Ty::B64 | Ty::F64 | Ty::F32x2 => 64,
        Ty::B128 => 128,
        Ty::Pred => 1,
        _ => 32,
    }
}

/// Rows a register of that type takes.
pub(crate) fn rows(ty: Ty) -> u8 {
    match bits(ty) {
        64 => 2,
        128 => 4,
        _ => 1,
    }
}

pub(crate) fn is_signed(ty: Ty) -> bool {
    matches!(ty, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
}

/// Everything shared by the functions of one kernel while they are lowered.
pub(crate) struct KernelLower<'m> {
    pub(crate) module: &'m ast::Module,
    pub(crate) info: &'m ModuleInfo,
    pub(crate) isa: Isa,
    pub(crate) checks: bool,
    pub(crate) shared: FxHashMap<Sym, u32>,
    pub(crate) opcodes: Vec<Arc<str>>,
    pub(crate) opcode_index: FxHashMap<String, u32>,
    /// Code index of a function of the module.
    pub(crate) functions: FxHashMap<u32, u32>,
    /// Whether a block may learn from another: there is an instruction that orders accesses or
    /// prints.
    pub(crate) communicates: bool,
}

impl KernelLower<'_> {
    fn opcode(&mut self, text: String) -> u32 {
        if let Some(&i) = self.opcode_index.get(&text) {
            return i;
        }
        let i = self.opcodes.len() as u32;
        self.opcodes.push(text.as_str().into());
        self.opcode_index.insert(text, i);
        i
    }
}

/// One function while it is lowered.
pub(crate) struct Lower<'k, 'm> {
    pub(crate) k: &'k mut KernelLower<'m>,
    pub(crate) blocks: Vec<LBlock>,
    pub(crate) cur: usize,
    pub(crate) classes: Vec<RegisterClass>,
    pub(crate) temp: Vec<bool>,
    pub(crate) consts: Vec<Const>,
    const_index: FxHashMap<Const, u32>,
    scopes: Vec<FxHashMap<Sym, Entity>>,
    pub(crate) guard: PredRef,
    pub(crate) origin: InstOrigin,
    pub(crate) lane_fns: Vec<LaneFn>,
    pub(crate) products: Vec<super::mma::Mma>,
    fixed_next: u32,
    pub(crate) fixed_rows: u32,
    local_next: u32,
    pub(crate) local_bytes: u32,
    cc: Option<VirtualReg>,
    pub(crate) params: Vec<(u32, u32)>,
    pub(crate) rets: Vec<(u32, u32)>,
}

impl<'k, 'm> Lower<'k, 'm> {
    pub(crate) fn new(k: &'k mut KernelLower<'m>) -> Self {
        Lower {
            k,
            blocks: Vec::new(),
            cur: 0,
            classes: Vec::new(),
            temp: Vec::new(),
            consts: Vec::new(),
            const_index: FxHashMap::default(),
            scopes: vec![FxHashMap::default()],
            guard: PredRef::True,
            origin: InstOrigin::default(),
            lane_fns: Vec::new(),
            products: Vec::new(),
            fixed_next: 0,
            fixed_rows: 0,
            local_next: 0,
            local_bytes: 0,
            cc: None,
            params: Vec::new(),
            rets: Vec::new(),
        }
    }

    /// Lowers a whole function.
    pub(crate) fn function(&mut self, f: &'m ast::Function) -> Result<(), String> {
        self.cur = self.new_block();
        if f.entry {
            let mut offset = 0u32;
            for p in &f.params {
                let (size, align) = var_bytes(p);
                offset = offset.next_multiple_of(align as u32);
                self.declare(p.name, Entity::KernelParam(offset));
                offset += size as u32;
            }
        } else {
            for (list, out) in [(&f.params, false), (&f.returns, true)] {
                for p in list {
                    let (size, _) = var_bytes(p);
                    let at = self.fixed(size as u32);
                    if out {
                        &mut self.rets
                    } else {
                        &mut self.params
                    }
                    .push((at, (size as u32).div_ceil(4)));
                    if p.space == Space::Reg {
                        let v = self.reg(RegisterClass::Rows(rows(p.ty)));
                        self.declare(p.name, Entity::Reg(v, p.ty));
                        if !out {
                            memory::load_fixed(self, Opd::Def(v), at, bits(p.ty) / 8);
                        }
                    } else {
                        self.declare(p.name, Entity::Fixed(at, size as u32));
                    }
                }
            }
        }
        let body = f
            .body
            .as_ref()
            .ok_or("a function without a body is called")?;
        self.stmts(body, f)?;
        if self.blocks[self.cur].term.is_none() {
            self.ret(f);
        }
        for b in &mut self.blocks {
            b.term.get_or_insert(LTerm::Ret);
        }
        Ok(())
    }

    fn ret(&mut self, f: &ast::Function) {
        for (n, p) in f.returns.iter().enumerate() {
            if p.space == Space::Reg
                && let Some(Entity::Reg(v, ty)) = self.lookup(p.name)
            {
                let at = self.rets[n].0;
                memory::store_fixed(self, Opd::Use(v), at, bits(ty) / 8);
            }
        }
        self.terminate(LTerm::Ret);
    }

    fn stmts(&mut self, list: &'m [Stmt], f: &'m ast::Function) -> Result<(), String> {
        self.scopes.push(FxHashMap::default());
        let (fixed, local) = (self.fixed_next, self.local_next);
        for s in list {
            match s {
                Stmt::Label(name) => {
                    let b = self.new_block();
                    self.declare(*name, Entity::Label(b));
                }
                Stmt::BranchTargets { name, targets } | Stmt::CallTargets { name, targets } => {
                    self.declare(*name, Entity::Targets(targets.clone()));
                }
                Stmt::CallPrototype { name, .. } => self.declare(*name, Entity::Prototype),
                Stmt::Reg { vector, ty, names } => {
                    for &(name, count) in names {
                        let entity = if *vector > 1 {
                            Entity::Vector(
                                (0..*vector).map(|_| self.reg(class(*ty))).collect(),
                                *ty,
                            )
                        } else if let Some(n) = count {
                            Entity::Family(n, *ty)
                        } else {
                            Entity::Reg(self.reg(class(*ty)), *ty)
                        };
                        self.declare(name, entity);
                    }
                }
                Stmt::Var(v) => self.var(v)?,
                _ => {}
            }
        }
        for s in list {
            match s {
                Stmt::Label(name) => {
                    if let Some(Entity::Label(b)) = self.lookup(*name) {
                        if self.blocks[self.cur].term.is_none() {
                            self.terminate_to(LTerm::Jump(b), b);
                        }
                        self.cur = b;
                    }
                }
                Stmt::Inst(i) => self.inst(i, f)?,
                Stmt::Block(inner) => self.stmts(inner, f)?,
                Stmt::Loc(loc) => {
                    self.origin.file = loc.file + 1;
                    self.origin.source_line = loc.line;
                }
                _ => {}
            }
        }
        self.scopes.pop();
        self.fixed_next = fixed;
        self.local_next = local;
        Ok(())
    }

    fn var(&mut self, v: &ast::Var) -> Result<(), String> {
        let (size, align) = var_bytes(v);
        let entity = match v.space {
            Space::Param => Entity::Fixed(self.fixed(size as u32), size as u32),
            Space::Local => {
                let at = self.local_next.next_multiple_of((align as u32).max(4));
                self.local_next = at + size as u32;
                self.local_bytes = self.local_bytes.max(self.local_next);
                Entity::Local(at)
            }
            Space::Shared => match self.k.shared.get(&v.name) {
                Some(&at) => Entity::Shared(at),
                None => {
                    return Err(format!(
                        "shared variable `{}` has no address",
                        self.name(v.name)
                    ));
                }
            },
            // Module-level places were given to variables of functions too.
            Space::Global | Space::Const => return Ok(()),
            _ => return Err(format!("a variable in .{} inside a function", v.space)),
        };
        self.declare(v.name, entity);
        Ok(())
    }

    fn inst(&mut self, i: &'m ast::Inst, f: &'m ast::Function) -> Result<(), String> {
        let mut text = i.op.text().to_owned();
        for m in &i.mods {
            text.push('.');
            text.push_str(m.text());
        }
        self.origin.line = i.line;
        self.origin.opcode = self.k.opcode(text.clone());
        if self.blocks[self.cur].term.is_some() {
            // Dead code behind a jump; it still may declare nothing, so it is dropped.
            self.cur = self.new_block();
        }
        let before = (self.cur, self.blocks[self.cur].insts.len());
        let done = self.guarded_inst(i, f);
        self.guard = PredRef::True;
        match done {
            Ok(()) => Ok(()),
            Err(reason) => {
                if self.cur == before.0 {
                    self.blocks[self.cur].insts.truncate(before.1);
                }
                let term = match reason {
                    LowerError::Unsupported => LTerm::NotImplemented(text.into()),
                    LowerError::Bad(why) => LTerm::Bad(format!("{text}: {why}").into()),
                };
                if self.blocks[self.cur].term.is_some() {
                    self.cur = self.new_block();
                }
                self.terminate(term);
                Ok(())
            }
        }
    }

    fn guarded_inst(&mut self, i: &'m ast::Inst, f: &'m ast::Function) -> Lowered<()> {
        let guard = match &i.guard {
            Some(g) => self.pred_named(g.pred, g.negated)?,
            None => PredRef::True,
        };
        let m = Mods(&i.mods);
        // Branches use their guard themselves; other ends of blocks are branched around.
        if i.op == Op::Bra {
            return control::bra(self, i, guard);
        }
        if control::ends_block(i) && guard != PredRef::True {
            let (body, next) = (self.new_block(), self.new_block());
            self.terminate_to(
                LTerm::Branch {
                    pred: guard,
                    taken: body,
                    fall: next,
                },
                body,
            );
            let done = self.dispatch(i, &m, f);
            if self.blocks[self.cur].term.is_none() {
                self.terminate_to(LTerm::Jump(next), next);
            }
            self.cur = next;
            return match done {
                Err(LowerError::Unsupported) => {
                    let text: Arc<str> = self.k.opcodes[self.origin.opcode as usize].clone();
                    self.blocks[body].insts.clear();
                    self.blocks[body].term = Some(LTerm::NotImplemented(text));
                    Ok(())
                }
                other => other,
            };
        }
        self.guard = guard;
        self.dispatch(i, &m, f)
    }

    fn dispatch(&mut self, i: &'m ast::Inst, m: &Mods<'_>, f: &'m ast::Function) -> Lowered<()> {
        if matches!(i.op, Op::Ret) {
            if f.entry {
                self.terminate(LTerm::Exit);
            } else {
                self.ret(f);
            }
            return Ok(());
        }
        if let Some(done) = control::lower(self, i, m) {
            return done;
        }
        for family in [
            data::lower,
            memory::lower,
            convert::lower,
            sync::lower,
            alu_int::lower,
            alu_float::lower,
        ] {
            if let Some(done) = family(self, i, m) {
                return done;
            }
        }
        Err(LowerError::Unsupported)
    }

    // ---- names ------------------------------------------------------------------------------

    pub(crate) fn name(&self, s: Sym) -> &'m str {
        self.k.module.symbols.name(s)
    }

    fn declare(&mut self, name: Sym, e: Entity) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, e);
        }
    }

    pub(crate) fn lookup(&mut self, name: Sym) -> Option<Entity> {
        for scope in self.scopes.iter().rev() {
            if let Some(e) = scope.get(&name)
                && !matches!(e, Entity::Family(..))
            {
                return Some(e.clone());
            }
        }
        let text = self.name(name);
        let digits = text.len() - text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // `%r12` may be family `%r` or, were it declared so, `%r1`; the longest prefix that was
        // declared wins.
        for cut in 1..=digits {
            let (prefix, number) = text.split_at(text.len() - cut);
            let Some(prefix) = self.k.module.symbols.get(prefix) else {
                continue;
            };
            let Ok(n) = number.parse::<u32>() else {
                continue;
            };
            for at in (0..self.scopes.len()).rev() {
                if let Some(&Entity::Family(count, ty)) = self.scopes[at].get(&prefix)
                    && n < count
                {
                    let e = Entity::Reg(self.reg(class(ty)), ty);
                    self.scopes[at].insert(name, e.clone());
                    return Some(e);
                }
            }
        }
        self.k.shared.get(&name).map(|&at| Entity::Shared(at))
    }

    // ---- building ---------------------------------------------------------------------------

    pub(crate) fn new_block(&mut self) -> usize {
        self.blocks.push(LBlock {
            insts: Vec::new(),
            sync: None,
            term: None,
            origin: self.origin,
        });
        self.blocks.len() - 1
    }

    pub(crate) fn terminate(&mut self, term: LTerm) {
        let b = &mut self.blocks[self.cur];
        b.term = Some(term);
        b.origin = self.origin;
    }

    /// Ends the current block and goes on in `next`.
    pub(crate) fn terminate_to(&mut self, term: LTerm, next: usize) {
        self.terminate(term);
        self.cur = next;
    }

    /// Begins a block that starts only when the lanes in `mask` have come together.
    pub(crate) fn sync_point(&mut self, mask: Opd) {
        let b = self.new_block();
        self.terminate_to(LTerm::Jump(b), b);
        self.blocks[b].sync = Some(mask);
    }

    pub(crate) fn reg(&mut self, class: RegisterClass) -> VirtualReg {
        self.classes.push(class);
        self.temp.push(false);
        self.classes.len() as VirtualReg - 1
    }

    pub(crate) fn temp_rows(&mut self, n: u8) -> VirtualReg {
        let v = self.reg(RegisterClass::Rows(n));
        self.temp[v as usize] = true;
        v
    }

    pub(crate) fn temp_pred(&mut self) -> VirtualReg {
        let v = self.reg(RegisterClass::Pred);
        self.temp[v as usize] = true;
        v
    }

    /// The carry flag.
    pub(crate) fn carry(&mut self) -> VirtualReg {
        if let Some(v) = self.cc {
            return v;
        }
        let v = self.reg(RegisterClass::Pred);
        self.cc = Some(v);
        v
    }

    pub(crate) fn fixed(&mut self, bytes: u32) -> u32 {
        let at = self.fixed_next;
        self.fixed_next += bytes.div_ceil(4).max(1);
        self.fixed_rows = self.fixed_rows.max(self.fixed_next);
        at
    }

    pub(crate) fn constant(&mut self, c: Const) -> Opd {
        if let Some(&i) = self.const_index.get(&c) {
            return Opd::Const(i);
        }
        let i = self.consts.len() as u32;
        self.consts.push(c.clone());
        self.const_index.insert(c, i);
        Opd::Const(i)
    }

    pub(crate) fn c32(&mut self, v: u32) -> Opd {
        self.constant(Const::B32(v))
    }

    pub(crate) fn c64(&mut self, v: u64) -> Opd {
        self.constant(Const::B64(v))
    }

    fn push(&mut self, mut i: LInst) -> &mut LInst {
        if i.guard != PredRef::True {
            let temp = &self.temp;
            for o in [&mut i.d, &mut i.a, &mut i.b, &mut i.c] {
                if let Opd::Def(v) = *o
                    && !temp[v as usize]
                {
                    *o = Opd::Both(v);
                }
            }
        }
        let insts = &mut self.blocks[self.cur].insts;
        insts.push(i);
        let at = insts.len() - 1;
        &mut insts[at]
    }

    /// An instruction under the current guard.
    pub(crate) fn emit(
        &mut self,
        handlers: Handlers,
        d: Opd,
        a: Opd,
        b: Opd,
        c: Opd,
    ) -> &mut LInst {
        let (guard, origin) = (self.guard, self.origin);
        self.push(LInst {
            handlers,
            d,
            a,
            b,
            c,
            guard,
            x: 0,
            x_pred: None,
            imm: 0,
            imm_lo: None,
            imm_hi: None,
            ext: Vec::new(),
            origin,
        })
    }

    /// An instruction without side effect on a temporary: it needs no guard.
    pub(crate) fn prepare(
        &mut self,
        handlers: Handlers,
        d: Opd,
        a: Opd,
        b: Opd,
        c: Opd,
    ) -> &mut LInst {
        let guard = std::mem::take(&mut self.guard);
        self.emit(handlers, d, a, b, c);
        self.guard = guard;
        let insts = &mut self.blocks[self.cur].insts;
        let at = insts.len() - 1;
        &mut insts[at]
    }

    /// `d = f(a, b, c)` lane by lane, for what is rare or intricate. The widths are those of the
    /// operands.
    pub(crate) fn lane_fn(
        &mut self,
        d: (Opd, bool),
        a: (Opd, bool),
        b: (Opd, bool),
        c: (Opd, bool),
        f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static,
    ) {
        let x = self.lane_fns.len() as u32;
        self.lane_fns.push(Box::new(f));
        let wide = |o: (Opd, bool), bit: u64| u64::from(o.1) << bit;
        let imm = wide(d, 0) | wide(a, 1) | wide(b, 2) | wide(c, 3);
        let i = self.emit(data::lane_call(), d.0, a.0, b.0, c.0);
        i.x = x;
        i.imm = imm;
    }
}

pub(crate) fn class(ty: Ty) -> RegisterClass {
    if ty == Ty::Pred {
        RegisterClass::Pred
    } else {
        RegisterClass::Rows(rows(ty))
    }
}

/// The tag of generic addresses into a space.
pub(crate) fn tag(space: Word) -> Option<u64> {
    Some(match space {
        Word::Shared | Word::SharedCta | Word::SharedCluster => SHARED_TAG,
        Word::Local => LOCAL_TAG,
        Word::Param | Word::ParamEntry => PARAM_TAG,
        Word::Global | Word::Const => 0,
        _ => return None,
    })
}

/// Lowers a kernel and everything it may call.
pub(crate) fn kernel(
    module: &ast::Module,
    info: &ModuleInfo,
    kernel: u32,
    isa: Isa,
    checks: bool,
) -> Result<KernelCode, String> {
    let reach = info.reachable(module, kernel);
    let (shared, shared_bytes) = info.shared_layout(&reach);
    let functions: FxHashMap<u32, u32> = reach
        .iter()
        .enumerate()
        .map(|(n, &f)| (f, n as u32))
        .collect();
    let mut by_index = vec![u32::MAX; info.functions.len()];
    for (&f, &n) in &functions {
        by_index[f as usize] = n;
    }
    let mut k = KernelLower {
        module,
        info,
        isa,
        checks,
        shared,
        opcodes: Vec::new(),
        opcode_index: FxHashMap::default(),
        functions,
        communicates: false,
    };
    let mut codes = Vec::new();
    for &f in &reach {
        let tree = info.function(module, f);
        let mut l = Lower::new(&mut k);
        l.function(tree)?;
        let name = module.symbols.name(tree.name);
        codes.push(super::assign::assign(l, name.into())?);
    }
    Ok(KernelCode {
        name: module
            .symbols
            .name(info.function(module, kernel).name)
            .into(),
        functions: codes,
        by_index,
        opcodes: k.opcodes,
        files: info.files.clone(),
        shared_bytes,
        communicates: k.communicates,
    })
}
