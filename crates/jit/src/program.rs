//! What the passes come to: PTX, and how to launch it.
//!
//! Invariant: the text is written when it is asked for; it depends on the kernels' code and the architecture alone, and `code`
//! is its key; two programs with one key have one text.
//!
//! Elsewhere: compiling and running it (`compiler`).

use fercuda_ptx::build::{Arch, BuildError};
use fercuda_tensor::{Layout, LayoutError};

use crate::canonical::Canonical;
use crate::emit;
use crate::fused::{Access, Fused, Kernel, Kind, Slot, THREADS, Team, Temporary};
use crate::graph::Graph;
use crate::key::Key;

/// Why there is no program for an expression that could be said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A shape on the way is larger than any memory.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The architecture lacks an instruction.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A kernel would have more blocks than a grid can.
    #[error(
        "{rows} rows are more than a grid has blocks, {limit}\ntry: several expressions, each for a part"
    )]
    TooLarge {
        /// Rows of the kernel.
        rows: u64,
        /// Most there can be.
        limit: u64,
    },
}

/// How a kernel of a program is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Its name.
    pub name: String,
    /// What its address parameters are, in order; the number of rows comes behind them.
    pub slots: Vec<Slot>,
    /// Rows, or elements of a map: its last parameter.
    pub rows: u64,
    /// Whether that has 64 bits, or 32.
    pub wide: bool,
    /// Blocks along x.
    pub grid: u32,
    /// Blocks along y: parts of rows.
    pub parts: u32,
    /// Threads a block, along x and y.
    pub block: [u32; 2],
    /// Whether more blocks than this are of no use, as each goes on to other elements.
    pub loops: bool,
}

/// An expression ready to be compiled for a device. Plain data.
#[derive(Clone, Debug)]
pub struct Program {
    fused: Fused,
    arch: Arch,
    /// What the text is known by.
    pub code: Key,
    /// Launches in their order.
    pub launches: Vec<LaunchPlan>,
    /// Memory between them.
    pub temporaries: Vec<Temporary>,
    /// Where each lies in one piece of memory, in bytes.
    pub offsets: Vec<u64>,
    /// How large that is.
    pub scratch_bytes: u64,
    /// What may be bound to inputs and outputs.
    pub inputs: Vec<Layout>,
    /// As for the inputs.
    pub outputs: Vec<Layout>,
    /// For each output, whether each input may be bound to the same memory.
    pub(crate) in_place: Vec<Vec<bool>>,
}

/// Most blocks along x.
const MAX_BLOCKS: u64 = (1 << 31) - 1;

impl Program {
    /// All passes. `aligned`: whether what is bound begins at multiples of 16 bytes.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn of(graph: &Graph, arch: Arch, aligned: bool) -> Result<Self, ProgramError> {
        let canonical = Canonical::of(graph)?;
        let fused = Fused::of(&canonical, aligned);
        Self::of_fused(graph, fused, arch)
    }

    /// The last pass.
    ///
    /// # Errors
    /// As for [`Program::of`].
    pub fn of_fused(graph: &Graph, fused: Fused, arch: Arch) -> Result<Self, ProgramError> {
        let launches: Result<Vec<LaunchPlan>, ProgramError> =
            fused.kernels.iter().enumerate().map(launch).collect();
        let inputs: Vec<Layout> = graph.inputs.iter().map(|input| input.layout).collect();
        let outputs: Vec<Layout> = graph.outputs.iter().map(|output| output.layout).collect();
        let of_output = |output: usize| {
            let input = |input| in_place(&fused, Slot::Output(output as u32), input);
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

    /// The text.
    ///
    /// # Errors
    /// [`ProgramError::Build`].
    pub fn ptx(&self) -> Result<String, ProgramError> {
        let module = emit::module(&self.fused.kernels, self.arch)?;
        Ok(fercuda_ptx::print(&module))
    }

    /// The pass before it.
    pub fn fused(&self) -> &Fused {
        &self.fused
    }
}

/// Temporaries begin at multiples of so much.
const ALIGN: u64 = 256;

/// Each as low as it can lie above those that are needed at the same time and lie below it.
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

/// What the text depends on.
pub(crate) fn code(fused: &Fused, arch: Arch) -> Key {
    let mut text = format!("{} {arch}\n", env!("CARGO_PKG_VERSION"));
    for kernel in &fused.kernels {
        text += &kernel.to_string();
    }
    Key::of(&text)
}

fn launch((n, kernel): (usize, &Kernel)) -> Result<LaunchPlan, ProgramError> {
    let rows = kernel.rows();
    let too_large = || ProgramError::TooLarge {
        rows,
        limit: MAX_BLOCKS,
    };
    let (blocks, block, loops) = match kernel.kind {
        Kind::Map { width, .. } => {
            let chunks = (rows / u64::from(width)).max(1);
            (chunks.div_ceil(THREADS.into()), [THREADS, 1], true)
        }
        Kind::Rows { team, .. } => match team {
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

/// Whether an output may lie on an input: a thread reads what it writes, and nothing else,
/// and no kernel comes between.
fn in_place(fused: &Fused, output: Slot, input: u32) -> bool {
    let [kernel] = fused.kernels.as_slice() else {
        return false;
    };
    if !matches!(kernel.kind, Kind::Map { .. }) {
        return false;
    }
    let slot_of = |access: &Access| kernel.arrays[access.array as usize];
    let of = |slot: Slot| kernel.accesses.iter().filter(move |a| slot_of(a).0 == slot);
    let mut written = of(output);
    let (Some(written), None) = (written.next(), written.next()) else {
        return false;
    };
    of(Slot::Input(input)).all(|read| {
        let bytes = |access: &Access| slot_of(access).1.bytes();
        (read.offset, &read.kept, bytes(read)) == (written.offset, &written.kept, bytes(written))
    })
}
