//! Programs of kernels: launches over operands, outputs and workspace of fixed layouts.
//!
//! Invariant: what a kernel accesses is elements of the views that its launch has as parameters, as
//! their shapes, also parameters, say. Every family's module vouches for its text. A view's
//! elements are those of the program's layouts (`view`), which `loader` compares with bound memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use fercuda_jit::ALIGN;
use fercuda_tensor::{Dtype, Layout, MAX_RANK};

use crate::error::KernelError;
use crate::text::KernelText;
use crate::view::{BoundPlace, MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of elements that a kernel goes over.
const MOST_ELEMENTS: u64 = 1 << 48;
/// Threads of a block of the kernels that go over elements.
pub(crate) const THREADS: u32 = 256;
/// Largest number of blocks in the first dimension of a grid.
const MAX_BLOCKS: u64 = (1 << 31) - 1;
/// Largest number of blocks in the second and third one.
pub(crate) const MAX_ROWS: u64 = 65535;
/// Blocks of a kernel whose threads loop over elements; more than all that run at once.
const LOOPING: u64 = 132 * 32;

/// Parameter of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parameter {
    /// Address of the first element of a view that is read.
    Address(MemoryView),
    /// Address of the first element of a view that is written, and may be read.
    Written(MemoryView),
    /// Extents and strides, as `Shape` of common.cuh.
    Shape(ShapeParameter),
    /// A tensor map of a view.
    Map(MapParameter),
    U32(u32),
    U64(u64),
    F64(f64),
}

/// A view of 16-bit floats as a tensor, the nearest dimension first, of which a copy moves a box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MapParameter {
    pub(crate) view: MemoryView,
    pub(crate) is_written: bool,
    pub(crate) dimensions: MapDimensions,
}

/// Extents, strides in bytes, of which the first is not read, and boxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MapDimensions {
    Three([u64; 3], [u64; 3], [u32; 3]),
    Four([u64; 4], [u64; 4], [u32; 4]),
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct NativeStep {
    pub(crate) text: KernelText,
    pub(crate) function: &'static str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    /// Neighbouring blocks that run together.
    pub(crate) cluster: u32,
    pub(crate) shared_bytes: u32,
    /// Shared memory that a block takes where the device has it, so that fewer blocks share a
    /// multiprocessor.
    pub(crate) wanted_shared_bytes: u32,
    pub(crate) parameters: Vec<Parameter>,
    /// It may be launched while the one before still runs: its kernel waits for that one itself.
    pub(crate) overlaps_previous: bool,
    /// An output and an operand for whose being one memory there is nothing to do.
    pub(crate) unless_same: Option<(usize, usize)>,
}

impl NativeStep {
    pub(crate) fn new(text: KernelText, function: &'static str) -> Self {
        Self {
            text,
            function,
            grid: [1; 3],
            block: THREADS,
            cluster: 1,
            shared_bytes: 0,
            wanted_shared_bytes: 0,
            parameters: Vec::new(),
            overlaps_previous: false,
            unless_same: None,
        }
    }

    /// As many blocks as that, or fewer whose threads loop.
    pub(crate) fn over(mut self, work: u64) -> Self {
        let blocks = work.div_ceil(u64::from(self.block)).clamp(1, LOOPING);
        self.grid[0] = blocks as u32;
        self
    }

    /// That many blocks, or fewer that loop.
    pub(crate) fn over_blocks(self, count: u64) -> Self {
        let block = u64::from(self.block);
        self.over(count.saturating_mul(block))
    }

    /// Exactly that many blocks.
    pub(crate) fn blocks(mut self, [x, y, z]: [u64; 3]) -> Result<Self> {
        for (count, most) in [(x, MAX_BLOCKS), (y, MAX_ROWS), (z, MAX_ROWS)] {
            if count > most {
                let what = "blocks of threads";
                return Err(KernelError::TooMany { what, count, most });
            }
        }
        self.grid = [x as u32, y as u32, z as u32];
        Ok(self)
    }

    /// Its kernel waits by itself for the one before.
    pub(crate) fn overlapping(mut self) -> Self {
        self.overlaps_previous = true;
        self
    }

    pub(crate) fn threads(mut self, block: u32) -> Self {
        self.block = block;
        self
    }

    /// A view: its address and its shape, which are two parameters.
    pub(crate) fn view(mut self, view: &MemoryView) -> Self {
        self.parameters.push(Parameter::Address(*view));
        self.parameters
            .push(Parameter::Shape(ShapeParameter::of(&view.layout)));
        self
    }

    /// The address of a view whose shape the kernel knows from elsewhere.
    pub(crate) fn address(mut self, view: &MemoryView) -> Self {
        self.parameters.push(Parameter::Address(*view));
        self
    }

    /// Says that the view given last is written.
    pub(crate) fn writes(mut self) -> Self {
        let is_address = |it: &&mut Parameter| matches!(it, Parameter::Address(_));
        if let Some(last) = self.parameters.iter_mut().rev().find(is_address)
            && let Parameter::Address(view) = *last
        {
            *last = Parameter::Written(view);
        }
        self
    }

    /// A tensor map.
    pub(crate) fn map(mut self, map: MapParameter) -> Self {
        self.parameters.push(Parameter::Map(map));
        self
    }

    /// Extents and strides that go with the address before.
    pub(crate) fn shape(mut self, shape: ShapeParameter) -> Self {
        self.parameters.push(Parameter::Shape(shape));
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.parameters.push(Parameter::U32(value));
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.parameters.push(Parameter::U64(value));
        self
    }

    pub(crate) fn f64(mut self, value: f64) -> Self {
        self.parameters.push(Parameter::F64(value));
        self
    }
}

/// Extents and strides as a kernel gets them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct ShapeParameter {
    extents: [u64; MAX_RANK],
    strides: [i64; MAX_RANK],
}

impl ShapeParameter {
    pub(crate) fn of(layout: &Layout) -> Self {
        Self::new(
            layout
                .shape()
                .iter()
                .copied()
                .zip(layout.strides().iter().copied()),
        )
    }

    /// Of dimensions' extents and strides, at most eight.
    pub(crate) fn new(dimensions: impl Iterator<Item = (u64, i64)>) -> Self {
        let mut shape = Self {
            extents: [1; MAX_RANK],
            strides: [0; MAX_RANK],
        };
        for (at, (extent, stride)) in dimensions.take(MAX_RANK).enumerate() {
            (shape.extents[at], shape.strides[at]) = (extent, stride);
        }
        shape
    }
}

/// Launches over operands, outputs and workspace of fixed layouts.
#[derive(Debug)]
pub struct NativeProgram {
    /// A number that no other program of this process has, by which it knows its views.
    id: u64,
    pub(crate) inputs: Vec<Layout>,
    pub(crate) outputs: Vec<Layout>,
    pub(crate) in_place: Vec<Vec<bool>>,
    pub(crate) steps: Vec<NativeStep>,
    pub(crate) scratch_bytes: u64,
    /// Where the first index outside of its axis is recorded, in a checked program.
    pub(crate) fault: Option<MemoryView>,
    /// Whether the addresses of everything that is bound are multiples of 16.
    pub(crate) is_aligned: bool,
    /// Dynamic shared memory that a block of the device may have.
    pub(crate) most_shared_bytes: u32,
    /// Multiprocessors of the device.
    pub(crate) multiprocessors: u32,
}

/// What a program is made for: the memory that it is bound to, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramForm {
    /// Whether the addresses of everything that is bound are multiples of 16.
    pub is_aligned: bool,
    /// Dynamic shared memory that a block of the device may have, beside 1 KiB of its kernel's own.
    pub shared_bytes: u32,
    /// Multiprocessors of the device.
    pub multiprocessors: u32,
}

impl NativeProgram {
    /// A program without launches.
    pub fn new(inputs: &[Layout], outputs: &[Layout], form: ProgramForm) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            in_place: vec![vec![false; inputs.len()]; outputs.len()],
            steps: Vec::new(),
            scratch_bytes: 0,
            fault: None,
            is_aligned: form.is_aligned,
            most_shared_bytes: form.shared_bytes,
            multiprocessors: form.multiprocessors,
        }
    }

    /// Number of launches.
    pub fn launches(&self) -> usize {
        self.steps.len()
    }

    /// Size of the workspace, which is aligned to 16.
    pub fn workspace_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Number of operands.
    pub fn operands(&self) -> usize {
        self.inputs.len()
    }

    /// A whole operand.
    ///
    /// # Panics
    /// Without an operand of that number.
    pub fn input(&self, at: usize) -> MemoryView {
        MemoryView {
            program: self.id,
            place: BoundPlace::Input(at),
            offset_bytes: 0,
            layout: self.inputs[at],
        }
    }

    /// A whole output.
    ///
    /// # Panics
    /// Without an output of that number.
    pub fn output(&self, at: usize) -> MemoryView {
        MemoryView {
            program: self.id,
            place: BoundPlace::Output(at),
            offset_bytes: 0,
            layout: self.outputs[at],
        }
    }

    /// Reserves workspace for elements in order, uninitialised.
    pub(crate) fn reserve(&mut self, dtype: Dtype, shape: &[u64]) -> Result<MemoryView> {
        let layout = Layout::contiguous(dtype, shape)?;
        let too_many = |count| KernelError::TooMany {
            what: "bytes of workspace",
            count,
            most: i64::MAX as u64,
        };
        let from = self.scratch_bytes.next_multiple_of(ALIGN);
        let until = from.saturating_add(layout.bytes());
        let offset_bytes = i64::try_from(from).map_err(|_| too_many(from))?;
        i64::try_from(until).map_err(|_| too_many(until))?;
        self.scratch_bytes = until;
        Ok(MemoryView {
            program: self.id,
            place: BoundPlace::Scratch,
            offset_bytes,
            layout,
        })
    }

    /// Allows a whole output to be the memory of a whole operand, exactly, if both have one layout.
    /// The kernel reads each element before the same thread writes it, not through `__restrict__`.
    pub(crate) fn allow_same(&mut self, to: &MemoryView, from: &MemoryView) {
        if let (BoundPlace::Output(output), BoundPlace::Input(input)) = (to.place, from.place) {
            self.in_place[output][input] = self.outputs[output] == self.inputs[input];
        }
    }

    /// Leaves out the steps from `first` on where a whole output is a whole operand's memory.
    pub(crate) fn skip_if_same(&mut self, first: usize, to: &MemoryView, from: &MemoryView) {
        if let (BoundPlace::Output(output), BoundPlace::Input(input)) = (to.place, from.place) {
            for step in self.steps.iter_mut().skip(first) {
                step.unless_same = Some((output, input));
            }
        }
    }

    /// Checks that each view is of this program, that no operand is written, and no two elements of
    /// an output or a written view share memory; and that a loop over elements ends in a day.
    pub(crate) fn check(&self) -> Result<()> {
        let layouts = self.inputs.iter().chain(&self.outputs);
        if let Some(layout) = layouts.into_iter().find(|it| it.len() > MOST_ELEMENTS) {
            let (what, count, most) = ("elements of one layout", layout.len(), MOST_ELEMENTS);
            return Err(KernelError::TooMany { what, count, most });
        }
        for output in &self.outputs {
            check(!output.may_overlap(), || {
                format!("elements of the output {output} may overlap")
            })?;
        }
        for parameter in self.steps.iter().flat_map(|step| &step.parameters) {
            let (view, is_written) = match parameter {
                Parameter::Address(view) => (view, false),
                Parameter::Written(view) => (view, true),
                Parameter::Map(map) => (&map.view, map.is_written),
                _ => continue,
            };
            check(view.program == self.id, || {
                "one is of another program".to_owned()
            })?;
            let is_input = matches!(view.place, BoundPlace::Input(_));
            check(!is_written || !is_input, || {
                "an operand is written".to_owned()
            })?;
            check(!is_written || !view.layout.may_overlap(), || {
                format!("elements of the written {} may overlap", view.layout)
            })?;
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, step: NativeStep) {
        self.steps.push(step);
    }

    /// Names of the kernels of a text that it launches.
    pub(crate) fn kernels_of(&self, text: &KernelText) -> BTreeSet<&'static str> {
        let of_text = self.steps.iter().filter(|step| step.text == *text);
        of_text.map(|step| step.function).collect()
    }
}
