//! Compiled program: the result of the passes, as PTX and launch plans.
//!
//! Invariant: the text is generated on demand; it depends on the kernels' code and the
//! architecture alone, and `code` is its key: two programs with one key have one text.
//!
//! Elsewhere: compiling and running it (`compiler`).

use fercuda_ptx::build::{Arch, BuildError};
use fercuda_tensor::{Layout, LayoutError};

use crate::canonical::Canonical;
use crate::emit;
use crate::fused::{Fused, Temporary};
use crate::graph::ExprGraph;
use crate::kernel::{FusedKernel, KernelAccess, KernelKind, ParameterBinding, THREADS, Team};
use crate::key::CodeKey;

/// Error of generating the program of a valid expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// An intermediate shape is larger than any memory.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The architecture lacks an instruction.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A kernel would have more blocks than a grid can have.
    #[error(
        "{rows} rows exceed the {limit} blocks of a grid\ntry: several expressions, each for a part"
    )]
    TooLarge {
        /// Rows of the kernel.
        rows: u64,
        /// The limit.
        limit: u64,
    },
}

/// Launch parameters of a kernel of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The kernel's name.
    pub name: String,
    /// Bindings of its address parameters, in order; the number of rows follows them.
    pub slots: Vec<ParameterBinding>,
    /// Number of rows, or of elements of a map: its last parameter.
    pub rows: u64,
    /// Whether that has 64 bits, else 32.
    pub wide: bool,
    /// Blocks along x.
    pub grid: u32,
    /// Blocks along y: parts of rows.
    pub parts: u32,
    /// Threads a block, along x and y.
    pub block: [u32; 2],
    /// Whether fewer blocks suffice, as each block loops over the elements.
    pub loops: bool,
}

/// An expression ready to be compiled for a device. Plain data.
#[derive(Clone, Debug)]
pub struct Program {
    fused: Fused,
    arch: Arch,
    /// CodeKey of the text.
    pub code: CodeKey,
    /// Launches, in their order.
    pub launches: Vec<LaunchPlan>,
    /// Memory between kernels.
    pub temporaries: Vec<Temporary>,
    /// Offset of each temporary in one allocation, in bytes.
    pub offsets: Vec<u64>,
    /// Size of that allocation.
    pub scratch_bytes: u64,
    /// Layouts of the inputs.
    pub inputs: Vec<Layout>,
    /// Layouts of the outputs.
    pub outputs: Vec<Layout>,
    /// For each output and input, whether both may be bound to the same memory.
    pub(crate) in_place: Vec<Vec<bool>>,
}

/// Maximum number of blocks along x.
const MAX_BLOCKS: u64 = (1 << 31) - 1;

impl Program {
    /// Runs all passes. `aligned`: whether bound memory is aligned to 16 bytes.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn of(graph: &ExprGraph, arch: Arch, aligned: bool) -> Result<Self, ProgramError> {
        let canonical = Canonical::of(graph)?;
        let fused = Fused::of(&canonical, aligned);
        Self::of_fused(graph, fused, arch)
    }

    /// Runs the last pass.
    ///
    /// # Errors
    /// As for [`Program::of`].
    pub fn of_fused(graph: &ExprGraph, fused: Fused, arch: Arch) -> Result<Self, ProgramError> {
        let launches: Result<Vec<LaunchPlan>, ProgramError> =
            fused.kernels.iter().enumerate().map(launch).collect();
        let inputs: Vec<Layout> = graph.inputs.iter().map(|input| input.layout).collect();
        let outputs: Vec<Layout> = graph.outputs.iter().map(|output| output.layout).collect();
        let of_output = |output: usize| {
            let input = |input| in_place(&fused, ParameterBinding::Output(output as u32), input);
            (0..inputs.len() as u32).map(input).collect()
        };
        let (offsets, scratch_bytes) = arena(&fused.temporaries);
        Ok(Self {
            code: code(&fused, arch),
            launches: launches?,
            temporaries: fused.temporaries.clone(),
            offsets,
            scratch_bytes,
            in_place: (0..outputs.len()).map(of_output).collect(),
            inputs,
            outputs,
            fused,
            arch,
        })
    }

    /// Generates the PTX.
    ///
    /// # Errors
    /// [`ProgramError::Build`].
    pub fn ptx(&self) -> Result<String, ProgramError> {
        let module = emit::module(&self.fused.kernels, self.arch)?;
        Ok(fercuda_ptx::print(&module))
    }

    /// The result of the pass before it.
    pub fn fused(&self) -> &Fused {
        &self.fused
    }
}

/// Alignment of temporaries.
const ALIGN: u64 = 256;

/// Places each temporary as low as possible above those that are live at the same time and lie
/// below it.
fn arena(temporaries: &[Temporary]) -> (Vec<u64>, u64) {
    let mut placed: Vec<(u64, u64)> = Vec::new();
    for (at, one) in temporaries.iter().enumerate() {
        let len = one.bytes.next_multiple_of(ALIGN);
        let earlier = temporaries[..at].iter().zip(&placed);
        let meets = earlier.filter(|(other, _)| other.first <= one.last && one.first <= other.last);
        let mut taken: Vec<(u64, u64)> = meets.map(|(_, place)| *place).collect();
        taken.sort_unstable();
        let mut start = 0;
        for (from, until) in taken {
            if start + len <= from {
                break;
            }
            start = start.max(until);
        }
        placed.push((start, start + len));
    }
    let most = placed.iter().map(|(_, until)| *until).max().unwrap_or(0);
    (placed.into_iter().map(|(from, _)| from).collect(), most)
}

/// Hash of what the text depends on.
pub(crate) fn code(fused: &Fused, arch: Arch) -> CodeKey {
    let mut text = format!("{} {arch}\n", env!("CARGO_PKG_VERSION"));
    for kernel in &fused.kernels {
        text += &kernel.to_string();
    }
    CodeKey::of(&text)
}

fn launch((n, kernel): (usize, &FusedKernel)) -> Result<LaunchPlan, ProgramError> {
    let rows = kernel.rows();
    let too_large = || ProgramError::TooLarge {
        rows,
        limit: MAX_BLOCKS,
    };
    let (blocks, block, loops) = match kernel.kind {
        KernelKind::Map { width, .. } => {
            let chunks = (rows / u64::from(width)).max(1);
            (chunks.div_ceil(THREADS.into()), [THREADS, 1], true)
        }
        KernelKind::Rows { team, .. } => match team {
            Team::Lanes(lanes) => {
                let of_block = u64::from(THREADS / lanes);
                (rows.div_ceil(of_block), [THREADS, 1], false)
            }
            Team::Block(threads) => (rows, [threads, 1], false),
            Team::Columns(threads) => (rows.div_ceil(32), [32, threads], false),
        },
    };
    let blocks = if loops { blocks.min(1 << 20) } else { blocks };
    let grid = u32::try_from(blocks).ok();
    let grid = grid.filter(|blocks| u64::from(*blocks) <= MAX_BLOCKS);
    Ok(LaunchPlan {
        name: emit::name(n),
        slots: kernel.arrays.iter().map(|(slot, _)| *slot).collect(),
        rows,
        wide: kernel.wide,
        grid: grid.ok_or_else(too_large)?,
        parts: kernel.parts() as u32,
        block,
        loops,
    })
}

/// Whether an output may be bound to an input's memory: each thread reads exactly what it writes,
/// and no kernel comes between.
fn in_place(fused: &Fused, output: ParameterBinding, input: u32) -> bool {
    let [kernel] = fused.kernels.as_slice() else {
        return false;
    };
    if !matches!(kernel.kind, KernelKind::Map { .. }) {
        return false;
    }
    let slot_of = |access: &KernelAccess| kernel.arrays[access.array as usize];
    let of = |slot: ParameterBinding| kernel.accesses.iter().filter(move |a| slot_of(a).0 == slot);
    let mut written = of(output);
    let (Some(written), None) = (written.next(), written.next()) else {
        return false;
    };
    of(ParameterBinding::Input(input)).all(|read| {
        let bytes = |access: &KernelAccess| slot_of(access).1.bytes();
        (read.offset, &read.kept, bytes(read)) == (written.offset, &written.kept, bytes(written))
    })
}
