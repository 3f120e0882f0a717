//! Kernel under construction: registers, labels, statements, scopes.
//!
//! Every method appends; nothing is reordered. The state is in a `RefCell` that is borrowed
//! only inside a method, so closures of control flow may
//! call back freely.
//!
//! Invariant: names here are indices into [`KernelState::names`]; text is chosen when the module
//! is finished (`finish`). A register is usable only inside the branch or loop body that
//! sets it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;

use super::ptr::{Const, Global, Local, Ptr, Shared, Space};
use super::reg::{Arg, Pred, Reg, Src, Var};
use super::types::{ConstElement, Element, Int, Scalar, Type};
use super::{Arch, BuildError};
use crate::ast::{self, AddrBase, Guard, Imm, Init, Inst, Linkage, Operand, PtrAttr, Stmt, Sym};
use crate::words::{self, Mod, Op, ScalarType, Word};

/// Static shared memory a kernel may have, in bytes.
pub const STATIC_SHARED_LIMIT: u64 = 48 * 1024;

/// Parameter bytes a kernel may have.
const PARAM_LIMIT: u64 = 4096;

/// A kernel being written; see [`super::ModuleBuilder::kernel`].
pub struct Kernel {
    pub(crate) state: RefCell<KernelState>,
    /// Distinguishes kernels, so that a register of another one is noticed.
    pub(crate) id: u64,
}

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
pub(crate) struct KernelState {
    pub(crate) entry: String,
    pub(crate) arch: Arch,
    pub(crate) names: Vec<Name>,
    pub(crate) body: Vec<EmittedLine>,
    pub(crate) params: Vec<ast::Var>,
    pub(crate) directives: Vec<ast::Directive>,
    /// Variables at module scope that this kernel brings.
    pub(crate) globals: Vec<ast::Var>,
    objects: HashMap<String, Sym>,
    fixed: HashMap<&'static str, Sym>,
    specials: HashMap<&'static str, (Sym, u32)>,
    scopes: Vec<u32>,
    scope_count: u32,
    label_count: u32,
    shared_bytes: u64,
    param_bytes: u64,
    pub(crate) error: Option<BuildError>,
}

impl KernelState {
    pub(crate) fn name(&mut self, name: Name) -> Sym {
        self.names.push(name);
        Sym(self.names.len() as u32 - 1)
    }

    fn fail(&mut self, error: impl FnOnce(&str) -> BuildError) {
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

    fn scope(&self) -> u32 {
        self.scopes.last().copied().unwrap_or(0)
    }

    fn check_use(&mut self, sym: Sym) {
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
        Operand::Name(s) | Operand::Not(s) | Operand::Offset(s, _) | Operand::Member(s, _) => f(*s),
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

impl Kernel {
    pub(crate) fn new(entry: &str, arch: Arch, id: u64) -> Self {
        let state = KernelState {
            entry: entry.to_owned(),
            arch,
            names: Vec::new(),
            body: Vec::new(),
            params: Vec::new(),
            directives: Vec::new(),
            globals: Vec::new(),
            objects: HashMap::new(),
            fixed: HashMap::new(),
            specials: HashMap::new(),
            scopes: vec![0],
            scope_count: 1,
            label_count: 0,
            shared_bytes: 0,
            param_bytes: 0,
            error: None,
        };
        Kernel {
            state: RefCell::new(state),
            id,
        }
    }

    pub(crate) fn fail(&self, error: impl FnOnce(&str) -> BuildError) {
        self.state.borrow_mut().fail(error);
    }

    /// Records that the emitted instruction requires `sm` or later.
    pub(crate) fn needs(&self, sm: u32, what: &str) {
        let mut s = self.state.borrow_mut();
        let arch = s.arch;
        if arch.number() < sm {
            s.fail(|kernel| BuildError::NeedsArch {
                kernel: kernel.to_owned(),
                what: what.to_owned(),
                needs: sm,
                target: arch,
            });
        }
    }

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

    pub(crate) fn fixed(&self, text: &'static str) -> Sym {
        let mut s = self.state.borrow_mut();
        if let Some(&sym) = s.fixed.get(text) {
            return sym;
        }
        let sym = s.name(Name::Fixed(text.to_owned()));
        s.fixed.insert(text, sym);
        sym
    }

    /// Emits an instruction that writes its first `dsts` operands.
    pub(crate) fn emit(&self, op: Op, mods: Vec<Mod>, dsts: usize, operands: Vec<Operand>) {
        self.emit_guarded(None, op, mods, dsts, operands);
    }

    pub(crate) fn emit_guarded(
        &self,
        guard: Option<Guard>,
        op: Op,
        mods: Vec<Mod>,
        dsts: usize,
        operands: Vec<Operand>,
    ) {
        let mut s = self.state.borrow_mut();
        // Only operands that a caller made by hand can name what is not here.
        let mut unknown = false;
        let known = s.names.len();
        operands
            .iter()
            .for_each(|o| names_in(o, &mut |sym| unknown |= sym.0 as usize >= known));
        if unknown {
            s.fail(|kernel| BuildError::ForeignRegister {
                kernel: kernel.to_owned(),
            });
            return;
        }
        if let Some(g) = guard {
            s.check_use(g.pred);
        }
        for operand in operands.iter().skip(dsts) {
            names_in(operand, &mut |sym| s.check_use(sym));
        }
        let stmt = Stmt::Inst(Inst {
            guard,
            op,
            mods,
            operands,
            line: 0,
        });
        s.body.push(EmittedLine {
            stmt,
            dsts,
            sets: false,
        });
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

    /// Checks that something of `other` may be used here.
    pub(crate) fn same(&self, other: &Kernel) {
        if self.id != other.id {
            self.fail(|kernel| BuildError::ForeignRegister {
                kernel: kernel.to_owned(),
            });
        }
    }

    pub(crate) fn mark_last_as_set(&self) {
        if let Some(line) = self.state.borrow_mut().body.last_mut() {
            line.sets = true;
        }
    }

    // Parameters.

    fn add_param(&self, name: &str, ty: ScalarType, bytes: u32, ptr: Option<PtrAttr>) -> Sym {
        let sym = self.object(name);
        let mut s = self.state.borrow_mut();
        s.param_bytes = s.param_bytes.next_multiple_of(u64::from(bytes)) + u64::from(bytes);
        let bytes = s.param_bytes;
        if bytes > PARAM_LIMIT {
            s.fail(|kernel| BuildError::TooManyParams {
                kernel: kernel.to_owned(),
                bytes,
                limit: PARAM_LIMIT,
            });
        }
        s.params.push(ast::Var {
            linkage: Linkage::Local,
            space: words::Space::Param,
            align: None,
            vector: 1,
            ty,
            name: sym,
            dims: Vec::new(),
            init: None,
            ptr,
            attributes: Vec::new(),
        });
        sym
    }

    /// The name of a parameter or variable: given once, and a legal identifier.
    fn object(&self, name: &str) -> Sym {
        let mut s = self.state.borrow_mut();
        if !super::is_identifier(name) {
            s.fail(|kernel| BuildError::BadName {
                kernel: kernel.to_owned(),
                name: name.to_owned(),
            });
        } else if s.objects.contains_key(name) || s.entry == name {
            s.fail(|kernel| BuildError::DuplicateName {
                kernel: kernel.to_owned(),
                name: name.to_owned(),
            });
        }
        let sym = s.name(Name::Object(name.to_owned()));
        s.objects.insert(name.to_owned(), sym);
        sym
    }

    /// The next parameter: a number, loaded into a register named after it.
    pub fn param<T: Scalar>(&self, name: &str) -> Reg<'_, T> {
        let sym = self.add_param(name, T::REG, T::BYTES, None);
        let address = Operand::Address {
            base: AddrBase::Name(sym),
            offset: 0,
        };
        self.op::<T>(
            Op::Ld,
            vec![w(Word::Param), Mod::Type(T::REG)],
            vec![address],
        )
        .named(name)
    }

    /// The next parameter: a pointer to device memory, given as a 64-bit address.
    pub fn param_ptr<T: Element>(&self, name: &str) -> Ptr<'_, Global, T> {
        self.param_ptr_aligned(name, T::BYTES)
    }

    /// As [`Kernel::param_ptr`], aligned to `align_bytes` by contract: vector accesses need it.
    pub fn param_ptr_aligned<T: Element>(
        &self,
        name: &str,
        align_bytes: u32,
    ) -> Ptr<'_, Global, T> {
        let attr = PtrAttr {
            space: Some(words::Space::Global),
            align: Some(align_bytes),
        };
        let sym = self.add_param(name, ScalarType::U64, 8, Some(attr));
        let address = Operand::Address {
            base: AddrBase::Name(sym),
            offset: 0,
        };
        let generic = self.op::<u64>(
            Op::Ld,
            vec![w(Word::Param), Mod::Type(ScalarType::U64)],
            vec![address],
        );
        let base = self
            .op::<u64>(
                Op::Cvta,
                vec![w(Word::To), w(Word::Global), Mod::Type(ScalarType::U64)],
                vec![generic.operand()],
            )
            .named(name);
        Ptr::new(self, base.sym, 0)
    }

    // Variables.

    fn array<T: Element>(
        &self,
        name: &str,
        space: words::Space,
        len: u64,
        init: Option<Init>,
    ) -> (Sym, ast::Var) {
        let sym = self.object(name);
        let align = if space == words::Space::Shared {
            16
        } else {
            T::BYTES
        };
        let var = ast::Var {
            linkage: Linkage::Local,
            space,
            align: Some(align),
            vector: 1,
            ty: T::MEM,
            name: sym,
            dims: vec![Some(len)],
            init,
            ptr: None,
            attributes: Vec::new(),
        };
        (sym, var)
    }

    fn declare(&self, var: ast::Var) {
        let mut s = self.state.borrow_mut();
        s.body.push(EmittedLine {
            stmt: Stmt::Var(var),
            dsts: 0,
            sets: false,
        });
    }

    fn base_of<S: Space, T: Element>(&self, sym: Sym, name: &str) -> Ptr<'_, S, T> {
        let base = self
            .op::<S::Address>(
                Op::Mov,
                vec![Mod::Type(<S::Address as Type>::TY)],
                vec![Operand::Name(sym)],
            )
            .named(name);
        Ptr::new(self, base.sym, 0)
    }

    /// An array of `len` elements that the threads of a block share, aligned to 16 bytes.
    pub fn shared<T: Element>(&self, name: &str, len: u32) -> Ptr<'_, Shared, T> {
        let (sym, var) = self.array::<T>(name, words::Space::Shared, u64::from(len), None);
        self.declare(var);
        {
            let mut s = self.state.borrow_mut();
            s.shared_bytes =
                s.shared_bytes.next_multiple_of(16) + u64::from(len) * u64::from(T::BYTES);
            let bytes = s.shared_bytes;
            if bytes > STATIC_SHARED_LIMIT {
                s.fail(|kernel| BuildError::TooMuchShared {
                    kernel: kernel.to_owned(),
                    bytes,
                    limit: STATIC_SHARED_LIMIT,
                });
            }
        }
        self.base_of(sym, name)
    }

    /// The block's dynamic shared memory, sized at launch, aligned to 16 bytes.
    pub fn dynamic_shared<T: Element>(&self, name: &str) -> Ptr<'_, Shared, T> {
        let (sym, mut var) = self.array::<T>(name, words::Space::Shared, 0, None);
        var.linkage = Linkage::Extern;
        var.dims = vec![None];
        self.state.borrow_mut().globals.push(var);
        self.base_of(sym, name)
    }

    /// An array of `len` elements of the thread's own.
    pub fn local<T: Element>(&self, name: &str, len: u32) -> Ptr<'_, Local, T> {
        let (sym, var) = self.array::<T>(name, words::Space::Local, u64::from(len), None);
        self.declare(var);
        self.base_of(sym, name)
    }

    /// An array in constant memory with these values, at module scope.
    pub fn constant<T: ConstElement>(&self, name: &str, values: &[T]) -> Ptr<'_, Const, T> {
        let init = Init::List(values.iter().map(|&v| Init::Imm(v.imm())).collect());
        let (sym, var) =
            self.array::<T>(name, words::Space::Const, values.len() as u64, Some(init));
        self.state.borrow_mut().globals.push(var);
        self.base_of(sym, name)
    }

    /// A register that can be set again; `name` is its name in the listing.
    pub fn var<'k, T: Type>(
        &'k self,
        name: impl Into<String>,
        initial: impl Arg<'k, T>,
    ) -> Var<'k, T> {
        let initial = self.src(initial.src());
        let reg = self.fresh::<T>().named(name);
        self.emit(
            Op::Mov,
            vec![Mod::Type(T::REG)],
            1,
            vec![Operand::Name(reg.sym), initial],
        );
        self.mark_last_as_set();
        Var { reg }
    }

    /// A register holding a constant.
    pub fn value<'k, T: Scalar>(&'k self, value: impl Arg<'k, T>) -> Reg<'k, T> {
        let value = self.src(value.src());
        self.op(Op::Mov, vec![Mod::Type(T::REG)], vec![value])
    }

    // Directives.

    /// Launches have at most `threads` threads a block; the compiler may use registers accordingly.
    pub fn max_threads(&self, threads: u32) {
        if threads == 0 || threads > 1024 {
            self.fail(|kernel| BuildError::BadBlock {
                kernel: kernel.to_owned(),
                threads,
            });
        }
        self.directive("maxntid", vec![threads]);
    }

    /// Launches have exactly `[x, y, z]` threads a block.
    pub fn exact_threads(&self, [x, y, z]: [u32; 3]) {
        let threads = x.saturating_mul(y).saturating_mul(z);
        if threads == 0 || threads > 1024 {
            self.fail(|kernel| BuildError::BadBlock {
                kernel: kernel.to_owned(),
                threads,
            });
        }
        self.directive("reqntid", vec![x, y, z]);
    }

    /// The compiler should leave room for `blocks` blocks on a multiprocessor.
    pub fn min_blocks(&self, blocks: u32) {
        self.directive("minnctapersm", vec![blocks]);
    }

    fn directive(&self, word: &str, numbers: Vec<u32>) {
        self.state
            .borrow_mut()
            .directives
            .push(ast::Directive::Numbers(word.to_owned(), numbers));
    }

    // Special registers.

    fn special<T: Type>(&self, text: &'static str, name: &'static str) -> Reg<'_, T> {
        let known = {
            let s = self.state.borrow();
            s.specials
                .get(text)
                .copied()
                .filter(|(_, scope)| s.scopes.contains(scope))
        };
        if let Some((sym, _)) = known {
            return Reg {
                kernel: self,
                sym,
                ty: PhantomData,
            };
        }
        let reg = self.volatile_special(text).named(name);
        let mut s = self.state.borrow_mut();
        let scope = s.scope();
        s.specials.insert(text, (reg.sym, scope));
        reg
    }

    fn volatile_special<T: Type>(&self, text: &'static str) -> Reg<'_, T> {
        let sym = self.fixed(text);
        self.op::<T>(Op::Mov, vec![Mod::Type(T::REG)], vec![Operand::Name(sym)])
    }

    /// `ctaid.x * ntid.x + tid.x`: the number of this thread in a one-dimensional grid.
    pub fn global_id(&self) -> Reg<'_, u32> {
        self.ctaid_x()
            .mul_add(self.ntid_x(), self.tid_x())
            .named("global_id")
    }

    // Control flow.

    fn label(&self, text: String) -> Sym {
        self.state.borrow_mut().name(Name::Label(text))
    }

    fn place(&self, label: Sym) {
        self.state.borrow_mut().body.push(EmittedLine {
            stmt: Stmt::Label(label),
            dsts: 0,
            sets: false,
        });
    }

    fn bra(&self, target: Sym) {
        self.emit(Op::Bra, Vec::new(), 0, vec![Operand::Name(target)]);
    }

    fn bra_if(&self, pred: Pred<'_>, wanted: bool, target: Sym) {
        let Operand::Name(sym) = self.src(Src::of(pred)) else {
            return;
        };
        let guard = Guard {
            pred: sym,
            negated: !wanted,
        };
        self.emit_guarded(
            Some(guard),
            Op::Bra,
            Vec::new(),
            0,
            vec![Operand::Name(target)],
        );
    }

    fn scoped<R>(&self, body: impl FnOnce() -> R) -> R {
        {
            let mut s = self.state.borrow_mut();
            let id = s.scope_count;
            s.scope_count += 1;
            s.scopes.push(id);
        }
        let r = body();
        self.state.borrow_mut().scopes.pop();
        r
    }

    /// What labels about `pred` are called: its name, or a number.
    fn condition_name(&self, pred: Pred<'_>) -> String {
        let mut s = self.state.borrow_mut();
        if let Some(Name::Reg {
            wanted: Some(name), ..
        }) = s.names.get(pred.sym.0 as usize)
        {
            return name.clone();
        }
        s.label_count += 1;
        s.label_count.to_string()
    }

    /// Runs `body` where `pred` holds.
    pub fn if_(&self, pred: Pred<'_>, body: impl FnOnce()) {
        let end = self.label(format!("end_if_{}", self.condition_name(pred)));
        self.bra_if(pred, false, end);
        self.scoped(body);
        self.place(end);
    }

    /// Runs `then` where `pred` holds and `otherwise` elsewhere.
    pub fn if_else(&self, pred: Pred<'_>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let name = self.condition_name(pred);
        let (other, end) = (
            self.label(format!("else_{name}")),
            self.label(format!("end_if_{name}")),
        );
        self.bra_if(pred, false, other);
        self.scoped(then);
        self.bra(end);
        self.place(other);
        self.scoped(otherwise);
        self.place(end);
    }

    /// Repeats `body` while the predicate that `condition` computes holds.
    pub fn while_<'k>(
        &'k self,
        name: &str,
        condition: impl FnOnce() -> Pred<'k>,
        body: impl FnOnce(),
    ) {
        let (head, end) = (
            self.label(format!("while_{name}")),
            self.label(format!("end_while_{name}")),
        );
        self.place(head);
        self.scoped(|| {
            self.bra_if(condition(), false, end);
            self.scoped(body);
        });
        self.bra(head);
        self.place(end);
    }

    /// Repeats `body` until it breaks.
    pub fn loop_(&self, name: &str, body: impl for<'l> FnOnce(&'l Loop<'l>)) {
        let (head, end) = (
            self.label(format!("loop_{name}")),
            self.label(format!("end_loop_{name}")),
        );
        self.place(head);
        self.scoped(|| {
            body(&Loop {
                kernel: self,
                head,
                end,
            })
        });
        self.bra(head);
        self.place(end);
    }

    /// Runs `body` for `i = start, start + step, ...` while `i < end`.
    ///
    /// `end + step` must be representable in `T`; `step` must be positive.
    pub fn for_range<'k, T: Int>(
        &'k self,
        name: &str,
        start: impl Arg<'k, T>,
        end: impl Arg<'k, T>,
        step: impl Arg<'k, T>,
        body: impl FnOnce(Reg<'k, T>),
    ) {
        let i = self.var(name, start);
        let (head, exit) = (
            self.label(format!("for_{name}")),
            self.label(format!("end_for_{name}")),
        );
        self.place(head);
        self.scoped(|| {
            self.bra_if(i.ge(end), true, exit);
            self.scoped(|| body(*i));
            i.set(i.plus(step));
        });
        self.bra(head);
        self.place(exit);
    }

    /// Ends this thread.
    pub fn ret(&self) {
        self.emit(Op::Ret, Vec::new(), 0, Vec::new());
    }

    /// Ends this thread where `pred` holds.
    pub fn ret_if(&self, pred: Pred<'_>) {
        let Operand::Name(sym) = self.src(Src::of(pred)) else {
            return;
        };
        self.emit_guarded(
            Some(Guard {
                pred: sym,
                negated: false,
            }),
            Op::Ret,
            Vec::new(),
            0,
            Vec::new(),
        );
    }

    /// Ends the whole launch with an error.
    pub fn trap(&self) {
        self.emit(Op::Trap, Vec::new(), 0, Vec::new());
    }

    // Synchronisation.

    /// Waits until every thread of the block is here; orders their shared and global accesses.
    pub fn barrier(&self) {
        let zero = Operand::Imm(Imm::Int {
            value: 0,
            unsigned: false,
        });
        self.emit(Op::Bar, vec![w(Word::Sync)], 0, vec![zero]);
    }

    /// Waits for `threads` threads (a multiple of 32) at barrier `id` (0 to 15).
    pub fn named_barrier(&self, id: u32, threads: u32) {
        if id > 15 || threads == 0 || !threads.is_multiple_of(32) {
            self.fail(|kernel| BuildError::BadBarrier {
                kernel: kernel.to_owned(),
                id,
                threads,
            });
        }
        let imm = |v: u32| {
            Operand::Imm(Imm::Int {
                value: i64::from(v),
                unsigned: false,
            })
        };
        self.emit(Op::Bar, vec![w(Word::Sync)], 0, vec![imm(id), imm(threads)]);
    }

    /// Waits for the threads of `mask` in this warp; orders their accesses.
    pub fn warp_barrier<'k>(&'k self, mask: impl Arg<'k, u32>) {
        let mask = self.src(mask.src());
        self.emit(Op::Bar, vec![w(Word::Warp), w(Word::Sync)], 0, vec![mask]);
    }

    /// Orders this thread's accesses before and after, as the block sees them.
    pub fn fence_block(&self) {
        self.emit(
            Op::Fence,
            vec![w(Word::AcqRel), w(Word::Cta)],
            0,
            Vec::new(),
        );
    }

    /// Orders this thread's accesses before and after, as the device sees them.
    pub fn fence_device(&self) {
        self.emit(
            Op::Fence,
            vec![w(Word::AcqRel), w(Word::Gpu)],
            0,
            Vec::new(),
        );
    }

    /// Lets this thread rest for about `nanoseconds`, at most a million.
    pub fn nanosleep(&self, nanoseconds: u32) {
        let time = Operand::Imm(Imm::Int {
            value: i64::from(nanoseconds.min(1_000_000)),
            unsigned: false,
        });
        self.emit(
            Op::Nanosleep,
            vec![Mod::Type(ScalarType::U32)],
            0,
            vec![time],
        );
    }

    /// An instruction with one result that this builder has no method for. The words are
    /// not checked against the operands.
    pub fn raw<T: Type>(&self, op: Op, mods: &[Mod], sources: &[Operand]) -> Reg<'_, T> {
        self.op(op, mods.to_vec(), sources.to_vec())
    }

    /// As [`Kernel::raw`], for an instruction with no result.
    pub fn raw_void(&self, op: Op, mods: &[Mod], sources: &[Operand]) {
        self.emit(op, mods.to_vec(), 0, sources.to_vec());
    }
}

macro_rules! specials {
    ($($(#[$doc:meta])* $fn:ident: $t:ty = $text:literal $how:ident;)*) => {
        impl Kernel {
            $($(#[$doc])* pub fn $fn(&self) -> Reg<'_, $t> { specials!(@$how self $text $fn) })*
        }
    };
    (@once $self:ident $text:literal $fn:ident) => { $self.special($text, stringify!($fn)) };
    (@fresh $self:ident $text:literal $fn:ident) => { $self.volatile_special($text) };
}

specials! {
    /// Thread in block, x.
    tid_x: u32 = "%tid.x" once;
    /// Thread in block, y.
    tid_y: u32 = "%tid.y" once;
    /// Thread in block, z.
    tid_z: u32 = "%tid.z" once;
    /// Threads a block, x.
    ntid_x: u32 = "%ntid.x" once;
    /// Threads a block, y.
    ntid_y: u32 = "%ntid.y" once;
    /// Threads a block, z.
    ntid_z: u32 = "%ntid.z" once;
    /// Block in grid, x.
    ctaid_x: u32 = "%ctaid.x" once;
    /// Block in grid, y.
    ctaid_y: u32 = "%ctaid.y" once;
    /// Block in grid, z.
    ctaid_z: u32 = "%ctaid.z" once;
    /// Blocks in the grid, x.
    nctaid_x: u32 = "%nctaid.x" once;
    /// Blocks in the grid, y.
    nctaid_y: u32 = "%nctaid.y" once;
    /// Blocks in the grid, z.
    nctaid_z: u32 = "%nctaid.z" once;
    /// Lane in warp, 0 to 31.
    lane: u32 = "%laneid" once;
    /// Mask of lanes below this one.
    lanemask_lt: u32 = "%lanemask_lt" once;
    /// Mask of lanes up to this one.
    lanemask_le: u32 = "%lanemask_le" once;
    /// Mask of lanes above this one.
    lanemask_gt: u32 = "%lanemask_gt" once;
    /// Multiprocessor at this moment.
    smid: u32 = "%smid" fresh;
    /// Cycle counter of the multiprocessor.
    clock64: u64 = "%clock64" fresh;
    /// Nanoseconds since the device's epoch.
    globaltimer: u64 = "%globaltimer" fresh;
    /// Dynamic shared memory of this launch, in bytes.
    dynamic_shared_bytes: u32 = "%dynamic_smem_size" once;
}

/// A [`Kernel::loop_`] from inside.
pub struct Loop<'l> {
    kernel: &'l Kernel,
    head: Sym,
    end: Sym,
}

impl Loop<'_> {
    /// Leaves the loop.
    pub fn break_(&self) {
        self.kernel.bra(self.end);
    }

    /// Leaves the loop where `pred` holds.
    pub fn break_if(&self, pred: Pred<'_>) {
        self.kernel.bra_if(pred, true, self.end);
    }

    /// Begins the next round.
    pub fn continue_(&self) {
        self.kernel.bra(self.head);
    }

    /// Begins the next round where `pred` holds.
    pub fn continue_if(&self, pred: Pred<'_>) {
        self.kernel.bra_if(pred, true, self.head);
    }
}
