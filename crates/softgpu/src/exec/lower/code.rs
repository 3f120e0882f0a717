//! Code with virtual registers: what lowering makes, and register assignment takes.

use std::sync::Arc;

use super::super::lanes::Handlers;
use super::super::program::{BarrierOp, InstOrigin};

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

/// What is known of an instruction besides its handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum InstRole {
    #[default]
    Other,
    /// Gives `a` to `d` as it is.
    Copy,
    /// Gives the sum of `a` and `b`, of 64 bits, to `d`.
    Sum,
    /// Accesses global memory by the addresses of 64 bits in `a`; adds `b` if `imm` has
    /// [`super::super::access::BASED`].
    Access,
    /// `wgmma.mma_async`: in `ext` the registers of D, written and read, and those of A.
    GroupProduct,
    /// `wgmma.fence`.
    GroupFence,
    /// `wgmma.commit_group`.
    GroupCommit,
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
    pub(crate) role: InstRole,
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
    /// Waits until at most so many groups of products of four warps are under way.
    AwaitProducts(u32, usize),
    /// Takes registers for a warp, or waits for them.
    TakeRegisters(u32, usize),
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
    pub(crate) op: BarrierOp,
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
    /// Whether it holds an instruction that all lanes of a warp execute together.
    pub(crate) whole: bool,
    pub(crate) term: Option<LTerm>,
    pub(crate) origin: InstOrigin,
}
