//! Control flow and constants of decoded code.
//!
//! The index of a block is its scheduling priority: lower first. Instructions are in
//! [`super::ctx`].

use std::sync::Arc;

use super::registers::{PredOperand, RowOperand};
use crate::report::{AccessKind, MemSpace};

/// How a basic block ends.
#[derive(Debug, Clone)]
pub(crate) enum Terminator {
    Jump(u32),
    Branch {
        pred: PredOperand,
        taken: u32,
        fall: u32,
    },
    Switch {
        index: RowOperand,
        targets: Box<[u32]>,
    },
    Call(Box<CallTerminator>),
    Ret,
    Exit,
    Barrier(Box<BarrierSite>),
    /// `bar.warp.sync`, or a wait of asynchronous copies and the like that ends a block only to be
    /// seen.
    WarpSync(u32),
    /// Hands the processor to other warps, then goes on.
    Yield(u32),
    /// As `Yield`, and there may be nothing to do for a while.
    Nap(u32),
    /// Waits until at most `keep` groups of products of four warps are under way.
    AwaitProducts {
        keep: u32,
        next: u32,
    },
    /// Takes `wanted` registers for each thread of a warp, or waits for them.
    TakeRegisters {
        wanted: u32,
        next: u32,
    },
    Trap,
    NotImplemented(Arc<str>),
    Bad(Arc<str>),
}

#[derive(Debug, Clone)]
pub(crate) enum Callee {
    /// Index in [`KernelCode::functions`].
    Direct(u32),
    Indirect(RowOperand),
    Printf,
    AssertFail,
    Malloc,
    Free,
}

#[derive(Debug, Clone)]
pub(crate) struct CallTerminator {
    pub(crate) callee: Callee,
    /// (first row in the caller's fixed rows, rows).
    pub(crate) args: Box<[(u32, u32)]>,
    pub(crate) rets: Box<[(u32, u32)]>,
    pub(crate) next: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierOp {
    Sync,
    Arrive,
    RedPopc,
    RedAnd,
    RedOr,
    Cluster,
    ClusterArrive,
    ClusterArriveRelaxed,
}

#[derive(Debug, Clone)]
pub(crate) struct BarrierSite {
    pub(crate) op: BarrierOp,
    pub(crate) aligned: bool,
    pub(crate) id: RowOperand,
    /// Threads, if given.
    pub(crate) count: Option<RowOperand>,
    pub(crate) pred: PredOperand,
    /// Row, or predicate for and/or.
    pub(crate) dest: RowOperand,
    pub(crate) dest_pred: PredOperand,
    pub(crate) next: u32,
}

/// Straight-line code and its end.
#[derive(Debug, Clone)]
pub(crate) struct CodeBlock {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Row with the lanes that must arrive together before this block begins.
    pub(crate) sync: Option<RowOperand>,
    /// Whether those are all lanes of the warp, exited ones too.
    pub(crate) whole: bool,
    pub(crate) term: Terminator,
    /// Instruction index by which reports name the end.
    pub(crate) term_pc: u32,
}

/// Where an instruction came from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InstOrigin {
    pub(crate) line: u32,
    /// Index in [`KernelCode::opcodes`].
    pub(crate) opcode: u32,
    /// File index + 1 and line of `.loc`; 0 if none.
    pub(crate) file: u32,
    pub(crate) source_line: u32,
    /// File index and line of a library's code that was inlined there; line 0 if none was.
    pub(crate) library: (u32, u32),
}

/// A variable in shared or local memory, which accesses derived from it may not leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VariableBounds {
    pub(crate) name: Arc<str>,
    /// Offset, of a local variable in its function's frame.
    pub(crate) start: u32,
    /// Bytes; to the end of the memory if that many are not there.
    pub(crate) len: u32,
    pub(crate) space: MemSpace,
}

/// A constant row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Const {
    B32(u32),
    B64(u64),
    /// Address of a variable of the module.
    Address {
        name: Arc<str>,
        addend: i64,
    },
    /// Known when the kernel is launched.
    Launch(LaunchValue),
}

impl Const {
    /// Rows that it fills.
    pub(crate) fn rows(&self) -> u32 {
        match self {
            Const::B32(_) => 1,
            Const::Launch(v) => v.rows(),
            Const::B64(_) | Const::Address { .. } => 2,
        }
    }
}

/// A value that is the same in all threads of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LaunchValue {
    /// Bytes (1, 2, 4 or 8) of the kernel's parameters.
    Parameter { at: u32, bytes: u32 },
    /// Threads of a block along an axis.
    BlockSize(usize),
    /// Blocks of the grid along an axis.
    GridSize(usize),
}

impl LaunchValue {
    pub(crate) fn rows(self) -> u32 {
        match self {
            LaunchValue::Parameter { bytes: 8, .. } => 2,
            _ => 1,
        }
    }
}

pub(crate) type LaneFn = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// What an opcode does to memory, for reports about an earlier access.
pub(crate) fn access_kind(opcode: &str) -> AccessKind {
    let base = opcode.split('.').next().unwrap_or("");
    match base {
        "atom" | "red" | "sured" => AccessKind::Atomic,
        "st" | "stmatrix" | "sust" => AccessKind::Write,
        "cp" => AccessKind::AsyncCopy,
        "wmma" if opcode.contains("store") => AccessKind::Write,
        _ => AccessKind::Read,
    }
}

/// Whether an opcode accesses memory that threads share.
pub(crate) fn touches_memory(opcode: &str) -> bool {
    let mut words = opcode.split('.');
    match words.next().unwrap_or("") {
        "ld" | "st" => !words.any(|w| w.starts_with("param")),
        "ldu" | "atom" | "red" | "cp" | "ldmatrix" | "stmatrix" | "multimem" => true,
        "tex" | "tld4" | "suld" | "sust" | "sured" => true,
        "wmma" => matches!(words.next(), Some("load" | "store")),
        _ => false,
    }
}
