//! Decoded code: the output of lowering, which warps execute.
//!
//! Invariant: every row and predicate that an instruction, its further operands or the end of a
//! block names lies inside its function's frame or constant bank, with room for the widest row
//! behind it, and no destination is a constant: `assign` creates and verifies each operand,
//! [`FunctionCode::verify`] the instructions as a whole. The index of a block is its scheduling
//! priority: lower first.

use std::sync::Arc;

use super::lanes::{Handler, Operand, PredOperand};
use crate::report::AccessKind;

/// One instruction. A cache line.
#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct Inst {
    /// For some lanes, for all lanes.
    pub(crate) f: [Handler; 2],
    /// The same behind a guard.
    pub(crate) inner: [Handler; 2],
    pub(crate) d: Operand,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    pub(crate) guard: PredOperand,
    /// Flags, or the start of more operands in [`FunctionCode::ext`], or an index of a lane
    /// function.
    pub(crate) x: u32,
    pub(crate) imm: u64,
}

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
        index: Operand,
        targets: Box<[u32]>,
    },
    Call(Box<CallSite>),
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
    Trap,
    NotImplemented(Arc<str>),
    Bad(Arc<str>),
}

#[derive(Debug, Clone)]
pub(crate) enum Callee {
    /// Index in [`KernelCode::functions`].
    Direct(u32),
    Indirect(Operand),
    Printf,
    AssertFail,
    Malloc,
    Free,
}

#[derive(Debug, Clone)]
pub(crate) struct CallSite {
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
}

#[derive(Debug, Clone)]
pub(crate) struct BarrierSite {
    pub(crate) op: BarrierOp,
    pub(crate) aligned: bool,
    pub(crate) id: Operand,
    /// Threads, if given.
    pub(crate) count: Option<Operand>,
    pub(crate) pred: PredOperand,
    /// Row, or predicate for and/or.
    pub(crate) dest: Operand,
    pub(crate) dest_pred: PredOperand,
    pub(crate) next: u32,
}

/// Straight-line code and its end.
#[derive(Debug, Clone)]
pub(crate) struct CodeBlock {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Row with the lanes that must arrive together before this block begins.
    pub(crate) sync: Option<Operand>,
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
}

pub(crate) type LaneFn = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// A function with registers assigned.
pub(crate) struct FunctionCode {
    pub(crate) name: Arc<str>,
    pub(crate) insts: Vec<Inst>,
    pub(crate) origins: Vec<InstOrigin>,
    pub(crate) blocks: Vec<CodeBlock>,
    pub(crate) ext: Vec<u32>,
    pub(crate) lane_fns: Vec<LaneFn>,
    pub(crate) products: Vec<super::mma::Mma>,
    pub(crate) consts: Vec<(u32, Const)>,
    pub(crate) const_rows: u32,
    pub(crate) rows: u32,
    pub(crate) preds: u32,
    /// Formal parameters and results: (first fixed row, rows).
    pub(crate) params: Vec<(u32, u32)>,
    pub(crate) rets: Vec<(u32, u32)>,
    pub(crate) local_bytes: u32,
    /// Whether some row is read before it is written, so that frames must begin zeroed.
    pub(crate) zeroed: bool,
}

impl std::fmt::Debug for FunctionCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionCode")
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl FunctionCode {
    /// Checks that every operand of every instruction lies inside the frame or the constant bank.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let ok = |o: Operand| {
            o.row()
                < if o.is_const() {
                    self.const_rows
                } else {
                    self.rows
                }
        };
        let pred_ok = |p: PredOperand| p.slot() < self.preds;
        for (n, i) in self.insts.iter().enumerate() {
            if !([i.d, i.a, i.b, i.c].into_iter().all(ok) && pred_ok(i.guard)) || i.d.is_const() {
                return Err(format!(
                    "instruction {n} of {} names a row outside its frame",
                    self.name
                ));
            }
        }
        for b in &self.blocks {
            if b.end as usize > self.insts.len() || b.start > b.end {
                return Err(format!("a block of {} lies outside its code", self.name));
            }
        }
        Ok(())
    }
}

/// A kernel with the functions it may call.
#[derive(Debug)]
pub(crate) struct KernelCode {
    pub(crate) name: Arc<str>,
    /// The kernel is the first.
    pub(crate) functions: Vec<FunctionCode>,
    /// Function of an address, by index in the module; `u32::MAX` if absent.
    pub(crate) by_index: Vec<u32>,
    pub(crate) opcodes: Vec<Arc<str>>,
    pub(crate) files: Vec<Arc<str>>,
    pub(crate) shared_bytes: u32,
    /// Whether blocks have a means of speaking to each other, or to the outside, that has an order.
    pub(crate) communicates: bool,
}

/// What an opcode does to memory, for reports about an earlier access.
pub(crate) fn access_kind(opcode: &str) -> AccessKind {
    let base = opcode.split('.').next().unwrap_or("");
    match base {
        "atom" | "red" => AccessKind::Atomic,
        "st" | "stmatrix" => AccessKind::Write,
        "cp" => AccessKind::AsyncCopy,
        "wmma" if opcode.contains("store") => AccessKind::Write,
        _ => AccessKind::Read,
    }
}
