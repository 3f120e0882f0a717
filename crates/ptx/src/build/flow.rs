//! Special registers and control flow of a kernel.
//!
//! Invariant: labels are placed in the order of the calls; a branch or loop body is a scope of
//! registers.

use std::marker::PhantomData;

use super::kernel::KernelBuilder;
use super::reg::{Arg, Pred, Reg, Src};
use super::state::{EmittedLine, Name, w};
use super::types::{Int, Type};
use crate::ast::{Guard, Operand, Stmt, Sym};
use crate::words::{Mod, Op, Word};

impl KernelBuilder {
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

    /// Waits for the threads of `mask` in this warp; orders their accesses.
    pub fn warp_barrier<'k>(&'k self, mask: impl Arg<'k, u32>) {
        let mask = self.src(mask.src());
        self.emit(Op::Bar, vec![w(Word::Warp), w(Word::Sync)], 0, vec![mask]);
    }
}

macro_rules! specials {
    ($($(#[$doc:meta])* $fn:ident: $t:ty = $text:literal $how:ident;)*) => {
        impl KernelBuilder {
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

/// A [`KernelBuilder::loop_`] from inside.
pub struct Loop<'l> {
    kernel: &'l KernelBuilder,
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
