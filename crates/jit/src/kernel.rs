//! One fused kernel: its domain, and its steps per element.

use std::fmt;

use fercuda_tensor::Dtype;

use crate::expr::{Prim, arity};
use crate::fold;
use crate::op::Reduction;

/// Threads of a block that maps, and of one with short rows.
pub(crate) const THREADS: u32 = 256;

/// Binding of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterBinding {
    /// An input of the expression.
    Input(u32),
    /// An output of the expression.
    Output(u32),
    /// Memory between kernels.
    Temporary(u32),
}

impl fmt::Display for ParameterBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(n) => write!(f, "input {n}"),
            Self::Output(n) => write!(f, "output {n}"),
            Self::Temporary(n) => write!(f, "temporary {n}"),
        }
    }
}

/// The threads that reduce a row together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Team {
    /// This many neighbouring lanes.
    Lanes(u32),
    /// A block of this many threads.
    Block(u32),
    /// The threads of one column of a block of 32 by this many: neighbouring threads have
    /// neighbouring rows.
    Columns(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KernelKind {
    Map {
        /// Number of elements that a thread processes at a time.
        width: u32,
        /// Whether there is a remainder.
        tail: bool,
    },
    Rows {
        team: Team,
        width: u32,
        /// Whether the threads keep the row in registers.
        resident: bool,
    },
}

/// Mapping from the domain's elements to an array's, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelAccess {
    /// Index of the parameter.
    pub(crate) array: u32,
    pub(crate) offset: i64,
    pub(crate) kept: Vec<i64>,
    pub(crate) cols: Vec<i64>,
    /// Offset from one part of a row to the next.
    pub(crate) part: i64,
    /// Whether neighbouring elements may be accessed as a vector.
    pub(crate) vector: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelStep {
    Const(u64),
    Load(u32),
    Apply(Prim, [u32; 3]),
    /// The result of a reduction.
    Reduced(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelReduction {
    pub(crate) op: Reduction,
    pub(crate) of: u32,
    /// Length of the longest chain of reductions that it depends on.
    pub(crate) stage: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelStore {
    pub(crate) access: u32,
    pub(crate) of: u32,
    /// Whether it is stored once per row.
    pub(crate) of_row: bool,
}

/// One kernel.
#[derive(Clone, Debug)]
pub(crate) struct FusedKernel {
    pub(crate) kind: KernelKind,
    pub(crate) kept: Vec<u64>,
    pub(crate) cols: Vec<u64>,
    pub(crate) arrays: Vec<(ParameterBinding, Dtype)>,
    pub(crate) accesses: Vec<KernelAccess>,
    /// The steps, each with its computation type.
    pub(crate) steps: Vec<(KernelStep, Dtype)>,
    pub(crate) reduced: Vec<KernelReduction>,
    pub(crate) stores: Vec<KernelStore>,
    /// Number of elements of a row's part; each part has its own block.
    pub(crate) part: Option<u64>,
    /// Whether offsets have 64 bits.
    pub(crate) wide: bool,
}

impl FusedKernel {
    /// Number of parts of a row.
    pub(crate) fn parts(&self) -> u64 {
        self.part.map_or(1, |part| self.row_len().div_ceil(part))
    }

    /// Number of rows, or of elements of a map.
    pub(crate) fn rows(&self) -> u64 {
        self.kept.iter().product()
    }

    pub(crate) fn row_len(&self) -> u64 {
        self.cols.iter().product()
    }
}

impl fmt::Display for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lanes(lanes) => write!(f, "{lanes} lanes a row"),
            Self::Block(threads) => write!(f, "{threads} threads a row"),
            Self::Columns(threads) => write!(f, "{threads} threads a row, 32 rows a block"),
        }
    }
}

/// Prints what the kernel's code depends on.
impl fmt::Display for FusedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.kept.get(1..).unwrap_or_default();
        match self.kind {
            KernelKind::Map { width, tail } => {
                write!(f, "map [n")?;
                inner.iter().try_for_each(|len| write!(f, ", {len}"))?;
                write!(f, "], {width} at a time")?;
                if tail {
                    write!(f, ", and what is left")?;
                }
            }
            KernelKind::Rows {
                team,
                width,
                resident,
            } => {
                write!(f, "rows [n")?;
                inner.iter().try_for_each(|len| write!(f, ", {len}"))?;
                write!(f, "] of {:?}, {team}, {width} at a time", self.cols)?;
                if let Some(part) = self.part {
                    write!(f, ", in parts of {part}")?;
                }
                f.write_str(if resident { ", kept" } else { ", read again" })?;
            }
        }
        writeln!(f, "{}", if self.wide { ", 64-bit offsets" } else { "" })?;
        for (at, (_, dtype)) in self.arrays.iter().enumerate() {
            writeln!(f, "  p{at}: {dtype}")?;
        }
        let access = |at: u32| {
            let KernelAccess {
                array,
                offset,
                kept,
                cols,
                part,
                vector,
            } = &self.accesses[at as usize];
            let mut text = format!("p{array} by {kept:?}");
            if !self.cols.is_empty() {
                text += &format!(" {cols:?}");
            }
            if *offset != 0 {
                text += &format!(" from {offset}");
            }
            if *part != 0 {
                text += &format!(" and {part} for each part");
            }
            if *vector {
                text += " in vectors";
            }
            text
        };
        for (at, (step, dtype)) in self.steps.iter().enumerate() {
            write!(f, "  v{at} {dtype} = ")?;
            match step {
                KernelStep::Const(bits) => writeln!(f, "{}", fold::show(*dtype, *bits))?,
                KernelStep::Load(at) => writeln!(f, "load {}", access(*at))?,
                KernelStep::Reduced(n) => writeln!(f, "r{n}")?,
                KernelStep::Apply(op, args) => {
                    write!(f, "{op}")?;
                    for arg in &args[..arity(*op)] {
                        write!(f, " v{arg}")?;
                    }
                    writeln!(f)?;
                }
            }
        }
        for (at, KernelReduction { op, of, stage }) in self.reduced.iter().enumerate() {
            writeln!(f, "  r{at} = {op} v{of} in pass {stage}")?;
        }
        for KernelStore {
            access: at,
            of,
            of_row,
        } in &self.stores
        {
            let once = if *of_row { " once a row" } else { "" };
            writeln!(f, "  store v{of} to {}{once}", access(*at))?;
        }
        Ok(())
    }
}
