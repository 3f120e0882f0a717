//! Context of lowering: a function's blocks, names, registers and constants while they are built.

use std::sync::Arc;

use fercuda_ptx::ast::{self, AddrBase, Operand as Ast, Sym};
use fercuda_ptx::words::{Mod, ScalarType as Ty, Word};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::lanes::{Handlers, Isa, lane_call};
use super::super::layout::ModuleInfo;
use super::super::product::Product;
use super::super::program::{Const, InstOrigin, LaneFn, VariableBounds};
use super::super::wgmma_sums::GroupProduct;
use super::super::width::rows;
use super::code::{InstRole, LBlock, LInst, LTerm, Opd, PredRef, RegisterClass, VirtualReg};
use super::positions::InlinedCalls;

/// Numbers of variables that instructions have room for.
const MOST_VARIABLES: u32 = 1 << 12;

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
    /// Of an indirect call: the types of its parameters.
    Prototype(Vec<Ty>),
    /// Parameter of the kernel: byte offset.
    KernelParam(u32),
    /// Parameter of a call or of a device function: first fixed row, bytes.
    Fixed(u32, u32),
    /// Byte offset in the frame's local memory.
    Local(u32),
    Shared(u32),
}

/// Modifiers, asked by name.
pub(crate) struct ModList<'a>(pub(crate) &'a [Mod]);

impl ModList<'_> {
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

/// Everything shared by the functions of one kernel while they are lowered.
pub(crate) struct KernelLower<'m> {
    pub(crate) module: &'m ast::PtxModule,
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
    /// Variables whose bounds accesses are checked against, of all functions.
    pub(crate) variables: Vec<VariableBounds>,
    pub(super) variable_index: FxHashMap<Sym, u32>,
    /// Whether the kernel asks where the shared memory is that system software uses.
    pub(crate) reserves_shared: bool,
}

impl KernelLower<'_> {
    /// Accesses by addresses in variable `name` are to stay in these bounds.
    pub(super) fn bound(&mut self, name: Sym, bounds: VariableBounds) {
        self.variables.push(bounds);
        self.variable_index
            .insert(name, self.variables.len() as u32);
    }

    pub(super) fn opcode(&mut self, text: String) -> u32 {
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
    pub(super) scopes: Vec<FxHashMap<Sym, Entity>>,
    pub(crate) guard: PredRef,
    pub(crate) origin: InstOrigin,
    pub(super) inlined: InlinedCalls,
    pub(crate) lane_fns: Vec<LaneFn>,
    pub(crate) products: Vec<Product>,
    pub(crate) group_products: Vec<GroupProduct>,
    pub(super) fixed_next: u32,
    pub(crate) fixed_rows: u32,
    pub(super) local_next: u32,
    pub(crate) local_bytes: u32,
    /// Bytes of an element of each variable declared so far.
    pub(super) elements: FxHashMap<Sym, u64>,
    cc: Option<VirtualReg>,
    /// Lines of shuffles whose result is used whatever it is, with checks.
    pub(super) used_results: FxHashSet<u32>,
    /// Lines of loads that a compare-and-swap verifies, with checks.
    pub(super) verified_loads: FxHashSet<u32>,
    /// Variables that the addresses in registers are derived from, with checks.
    pub(super) derived: FxHashMap<Sym, Sym>,
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
            inlined: InlinedCalls::default(),
            lane_fns: Vec::new(),
            products: Vec::new(),
            group_products: Vec::new(),
            fixed_next: 0,
            fixed_rows: 0,
            local_next: 0,
            local_bytes: 0,
            elements: FxHashMap::default(),
            cc: None,
            used_results: FxHashSet::default(),
            verified_loads: FxHashSet::default(),
            derived: FxHashMap::default(),
            params: Vec::new(),
            rets: Vec::new(),
        }
    }

    // ---- names ------------------------------------------------------------------------------

    pub(crate) fn name(&self, s: Sym) -> &'m str {
        self.k.module.symbols.name(s)
    }

    pub(super) fn declare(&mut self, name: Sym, e: Entity) {
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

    /// Number from 1 of the variable that an address lies in, as far as it is known; else 0.
    pub(crate) fn variable_of(&self, address: &Ast) -> u32 {
        let Ast::Address {
            base: AddrBase::Name(s),
            ..
        } = address
        else {
            return 0;
        };
        let variable = self.derived.get(s).unwrap_or(s);
        let index = self.k.variable_index.get(variable).copied().unwrap_or(0);
        if index < MOST_VARIABLES { index } else { 0 }
    }

    /// Whether the result of the shuffle on a line is used whatever it is.
    pub(crate) fn result_is_used(&self, line: u32) -> bool {
        self.used_results.contains(&line)
    }

    /// Whether a compare-and-swap verifies what the load on a line gives.
    pub(crate) fn is_verified_load(&self, line: u32) -> bool {
        self.verified_loads.contains(&line)
    }

    // ---- building ---------------------------------------------------------------------------

    pub(crate) fn new_block(&mut self) -> usize {
        self.blocks.push(LBlock {
            insts: Vec::new(),
            sync: None,
            whole: false,
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
            role: InstRole::Other,
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

    /// Says what the last instruction is.
    pub(crate) fn last_is(&mut self, role: InstRole) {
        if let Some(last) = self.blocks[self.cur].insts.last_mut() {
            last.role = role;
        }
    }

    /// Has the last instruction write `d` in the place of temporary `a`, if it writes that and no
    /// guard stands before the write. Nothing else may read `a`.
    pub(crate) fn redirect(&mut self, a: Opd, d: Opd) -> bool {
        let (Opd::Use(t), Opd::Def(v)) = (a, d) else {
            return false;
        };
        let same = self.temp[t as usize] && self.classes[t as usize] == self.classes[v as usize];
        match self.blocks[self.cur].insts.last_mut() {
            Some(last) if same && self.guard == PredRef::True && last.d == Opd::Def(t) => {
                last.d = d;
                true
            }
            _ => false,
        }
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
        let i = self.emit(lane_call(), d.0, a.0, b.0, c.0);
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
