//! Kernel under construction, and the instructions appended to it.
//!
//! Every method appends; nothing is reordered. The state is in a `RefCell` that is borrowed
//! only inside a method, so closures of control flow may
//! call back freely.
//!
//! Elsewhere: registers (`reg`), parameters and variables (`declare`), control flow (`flow`).

use std::cell::RefCell;
use std::collections::HashMap;

use super::error::{Arch, BuildError};
use super::state::{EmittedLine, KernelDraft, Name, names_in, w};
use crate::ast::{self, Guard, Imm, Inst, Operand, Stmt, Sym};
use crate::words::{Mod, Op, ScalarType, Word};

/// A kernel being written; see [`super::ModuleBuilder::kernel`].
pub struct KernelBuilder {
    pub(crate) state: RefCell<KernelDraft>,
    /// Distinguishes kernels, so that a register of another one is noticed.
    pub(crate) id: u64,
}

impl KernelBuilder {
    pub(crate) fn new(entry: &str, arch: Arch, id: u64) -> Self {
        let state = KernelDraft {
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
        KernelBuilder {
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
    /// Checks that something of `other` may be used here.
    pub(crate) fn same(&self, other: &KernelBuilder) {
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

    /// As [`KernelBuilder::raw`], for an instruction with no result.
    pub fn raw_void(&self, op: Op, mods: &[Mod], sources: &[Operand]) {
        self.emit(op, mods.to_vec(), 0, sources.to_vec());
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
}
