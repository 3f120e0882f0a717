//! Products with weights in blocks of quantised elements, and conversions of such blocks.
//!
//! A row of a weight is blocks one after another. `block_product.cu` and `block_rows.cu` read bytes
//! of whole blocks of rows below the number of rows, and elements of rows and of columns below
//! theirs; where blocks lie at odd multiples of 2 they also read the 2 bytes before a block, which
//! are of the block before it: rows follow each other without gaps then. Indices are compared with
//! the number of rows.

use fercuda_tensor::{BlockFormat, Dtype};

use crate::copy;
use crate::error::KernelError;
use crate::expert::{self, FEW_PAIRS};
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::rows::{flat_shape, matrix, sizes};
use crate::text::KernelText;
use crate::view::{BoundPlace, MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Rows of activations up to which a product reads the weight by warps, without tensor cores.
const FEW_ROWS: u64 = 16;
/// Rows that one such warp has at most.
const MOST_TILE: u64 = 8;
/// Warps of a block of the products, and columns of a tile of tensor cores.
const WARPS: u64 = 4;
const ACROSS: u64 = 64;
/// Warps that suffice to read at the speed of memory: several for each multiprocessor.
const MANY_WARPS: u64 = 132 * 16;

/// Format of 8 bits in which a product has its activations, with sums for the weight's minimums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationBlocks {
    /// Blocks of 32 elements.
    Q8_0,
    /// Blocks of 32 elements, and the sum of each.
    Q8_1,
    /// Blocks of 256 elements.
    Q8K,
}

impl ActivationBlocks {
    /// That of products with a weight of this format: as in llama.cpp on a processor.
    pub fn of(weight: BlockFormat) -> Self {
        match weight {
            BlockFormat::Q4_1 | BlockFormat::Q5_1 => Self::Q8_1,
            format if format.elements() == 256 => Self::Q8K,
            _ => Self::Q8_0,
        }
    }

    /// The format of blocks.
    pub fn format(self) -> BlockFormat {
        match self {
            Self::Q8_0 => BlockFormat::Q8_0,
            Self::Q8_1 => BlockFormat::Q8_1,
            Self::Q8K => BlockFormat::Q8_K,
        }
    }

    /// Elements that have one scale and one sum in the workspace.
    fn run(self) -> u64 {
        match self {
            Self::Q8K => 16,
            _ => 32,
        }
    }
}

/// The C++ struct of a format.
pub(crate) fn format_type(format: BlockFormat) -> &'static str {
    match format {
        BlockFormat::Q1_0 => "Q1_0",
        BlockFormat::Q2_0 => "Q2_0",
        BlockFormat::Q4_0 => "Q4_0",
        BlockFormat::Q4_1 => "Q4_1",
        BlockFormat::Q5_0 => "Q5_0",
        BlockFormat::Q5_1 => "Q5_1",
        BlockFormat::Q8_0 => "Q8_0",
        BlockFormat::Q8_1 => "Q8_1",
        BlockFormat::Q2_K => "Q2_K",
        BlockFormat::Q3_K => "Q3_K",
        BlockFormat::Q4_K => "Q4_K",
        BlockFormat::Q5_K => "Q5_K",
        BlockFormat::Q6_K => "Q6_K",
        BlockFormat::Q8_K => "Q8_K",
        BlockFormat::IQ1_S => "Iq1S",
        BlockFormat::IQ1_M => "Iq1M",
        BlockFormat::IQ2_XXS => "Iq2Xxs",
        BlockFormat::IQ2_XS => "Iq2Xs",
        BlockFormat::IQ2_S => "Iq2S",
        BlockFormat::IQ3_XXS => "Iq3Xxs",
        BlockFormat::IQ3_S => "Iq3S",
        BlockFormat::IQ4_NL => "Iq4Nl",
        BlockFormat::IQ4_XS => "Iq4Xs",
        BlockFormat::TQ1_0 => "Tq1_0",
        BlockFormat::TQ2_0 => "Tq2_0",
        BlockFormat::MXFP4 => "Mxfp4",
        BlockFormat::NVFP4 => "Nvfp4",
    }
}

/// Rows of blocks: bytes of a row are neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRows {
    pub(crate) view: MemoryView,
    format: BlockFormat,
    pub(crate) rows: u64,
    /// Bytes from a row to the next.
    pub(crate) pitch: i64,
    /// Units of 32 elements of a row.
    units: u64,
}

impl BlockRows {
    /// The rows of a view along its last dimension, copied into workspace unless their bytes are
    /// neighbours and rows have one distance.
    pub(crate) fn of(
        program: &mut NativeProgram,
        view: &MemoryView,
        format: BlockFormat,
    ) -> Result<Self> {
        let (rows, bytes) = sizes(view);
        let of_block = format.bytes() as u64;
        let fits = view.dtype() == Dtype::U8 && bytes % of_block == 0 && !view.shape().is_empty();
        check(fits, || format!("{} for blocks of {format}", view.layout))?;
        let are_near = |view: &MemoryView| match view.layout.strides() {
            [_, 1] => true,
            _ => bytes <= 1 || view.layout.is_empty(),
        };
        let view = match view.reshape(&[rows, bytes]) {
            Ok(view) if are_near(&view) => view,
            _ => {
                let staged = program.reserve(Dtype::U8, view.shape())?;
                copy::elements(program, view, &staged)?;
                staged.reshape(&[rows, bytes])?
            }
        };
        Ok(Self {
            view,
            format,
            rows,
            pitch: match rows {
                0 | 1 => bytes as i64,
                _ => view.layout.strides()[0],
            },
            units: bytes / of_block * (format.elements() as u64 / 32),
        })
    }

    /// The power of two that addresses of blocks are multiples of, and whether they follow each
    /// other without gaps from a multiple of 16 on.
    fn align(&self, is_aligned: bool) -> (u64, bool) {
        let is_aligned = is_aligned || self.view.place == BoundPlace::Scratch;
        let row = self.units / (self.format.elements() as u64 / 32) * self.format.bytes() as u64;
        let is_dense = is_aligned && self.view.offset_bytes % 16 == 0 && self.pitch == row as i64;
        let all = self.pitch.unsigned_abs()
            | self.view.offset_bytes.unsigned_abs()
            | self.format.bytes() as u64
            | if is_aligned { 16 } else { 1 };
        match 1 << all.trailing_zeros() {
            2 if !is_dense => (1, false),
            align => (align, is_dense),
        }
    }

    fn elements(&self) -> u64 {
        self.units * 32
    }

    fn with_format(&self, text: KernelText, (align, is_dense): (u64, bool)) -> KernelText {
        let text = text
            .with("FORMAT", format_type(self.format))
            .with("BLOCK_ALIGN", align)
            .with("IS_DENSE", u8::from(is_dense));
        with_codebook(text, self.format)
    }
}

/// A text with the codebook of a format that has one.
pub(crate) fn with_codebook(text: KernelText, format: BlockFormat) -> KernelText {
    match format.codebook() {
        Some(rows) => {
            let rows: Vec<String> = rows.iter().map(u16::to_string).collect();
            text.with("CODEBOOK", rows.join(","))
        }
        None => text,
    }
}

/// Views of a product: `to = x weight^T + bias + residual`, of rows of x and rows of the weight.
#[derive(Clone, Copy, Debug)]
pub struct BlockProduct<'a> {
    /// Activations, with rows along the last dimension.
    pub x: &'a MemoryView,
    /// The weight's blocks: a row for each column of the result; such rows for each expert, where
    /// experts are chosen.
    pub weight: &'a MemoryView,
    /// Expert of each row of the result; as many neighbours as there are for each have a row of x.
    /// A choice of no expert gives zeros.
    pub choice: Option<&'a MemoryView>,
    /// Another weight: the product is multiplied by SiLU of that with this one.
    pub gate: Option<&'a MemoryView>,
    /// One number for each column, of each expert where experts are chosen.
    pub bias: Option<&'a MemoryView>,
    /// Elements of the result's shape, which may be where the result is.
    pub residual: Option<&'a MemoryView>,
    /// The result.
    pub to: &'a MemoryView,
}

/// Units of a row from which on a warp shares it: fewer are those of small models.
const LONG_ROW: u64 = 64;
/// Units that a lane has at least of a shorter row.
const LEAST_UNITS: u64 = 8;

/// Lanes that share a row of the weight: as many as have nearly equal parts of it.
pub(crate) fn lanes_of_row(units: u64) -> u64 {
    let is_even = |lanes: u64| 10 * (units.div_ceil(lanes) * lanes - units) <= units;
    let has_enough = |lanes: u64| units >= LONG_ROW || units / lanes >= LEAST_UNITS;
    let mut all = (0..=5).rev().map(|bits| 1 << bits);
    all.find(|lanes| is_even(*lanes) && has_enough(*lanes))
        .unwrap_or(1)
}

/// The views of a product that go together, as matrices and rows of blocks.
struct ProductMatrices {
    x: MemoryView,
    weight: BlockRows,
    gate: Option<BlockRows>,
    residual: Option<MemoryView>,
    /// The result, or workspace that is copied to it.
    result: MemoryView,
    rows: u64,
    columns: u64,
    depth: u64,
    /// Number of experts, and of rows of the result that have one row of x.
    experts: u64,
    slots: u64,
}

impl ProductMatrices {
    fn of(
        program: &mut NativeProgram,
        format: BlockFormat,
        views: &BlockProduct<'_>,
    ) -> Result<Self> {
        let (x, to) = (views.x, views.to);
        let ((of_x, depth), (rows, columns)) = (sizes(x), sizes(to));
        let (experts, slots) = match views.choice {
            Some(index) => {
                let experts = views.weight.shape().first().copied().unwrap_or_default();
                expert::check_choice(index, experts)?;
                let what = || format!("{} for choices {}", to.layout, index.layout);
                check(index.layout.len() == rows, what)?;
                (experts, expert::slots(x, index)?)
            }
            None => (1, 1),
        };
        let weight = BlockRows::of(program, views.weight, format)?;
        let gate = views.gate.map(|gate| BlockRows::of(program, gate, format));
        let gate = gate.transpose()?;
        let all = experts.checked_mul(columns);
        let is_of_shape = |it: &BlockRows| it.elements() == depth && Some(it.rows) == all;
        let fits = of_x * slots == rows && is_of_shape(&weight) && gate.iter().all(is_of_shape);
        check(fits && !x.shape().is_empty(), || {
            format!("{} by {}", x.layout, views.weight.layout)
        })?;
        let is_float = |it: Dtype| it.is_float() && it.bytes() < 8;
        check(is_float(x.dtype()) && is_float(to.dtype()), || {
            format!("{} to {}", x.dtype(), to.dtype())
        })?;
        if let Some(bias) = views.bias {
            match views.choice {
                Some(_) => bias.check("the bias", &[experts, columns], x.dtype())?,
                None => bias.check("the bias", &[columns], x.dtype())?,
            }
        }
        if let Some(residual) = views.residual {
            residual.check("the residual", to.shape(), x.dtype())?;
        }
        let residual = views.residual;
        let residual = residual.map(|residual| matrix(program, residual, [rows, columns]));
        Ok(Self {
            x: matrix(program, x, [of_x, depth])?,
            weight,
            gate,
            residual: residual.transpose()?,
            result: match to.reshape(&[rows, columns]) {
                Ok(result) => result,
                Err(_) => program.reserve(to.dtype(), &[rows, columns])?,
            },
            rows,
            columns,
            depth,
            experts,
            slots,
        })
    }
}

/// How the work of a product is shared.
struct ProductGeometry {
    function: &'static str,
    /// Rows of a block of threads, lanes of a row of the weight, columns of a lane.
    tile: u64,
    group: u64,
    own: u64,
    grid: [u64; 3],
}

impl ProductGeometry {
    /// That of a product whose rows each have an expert.
    fn of_pairs(pairs: u64, columns: u64, units: u64, (experts, is_gated): (u64, bool)) -> Self {
        if pairs <= FEW_PAIRS {
            let one = Self::of(1, columns, units, is_gated);
            return Self {
                grid: [one.grid[0], pairs, 1],
                ..one
            };
        }
        let tile = if pairs > 48 * experts { 64 } else { 32 };
        Self {
            function: "multiply_many",
            tile,
            group: 1,
            own: 1,
            // The first extent follows from the grouping.
            grid: [0, columns.div_ceil(ACROSS), 1],
        }
    }

    fn of(rows: u64, columns: u64, units: u64, is_gated: bool) -> Self {
        if rows > FEW_ROWS {
            let tile = if rows > 32 { 64 } else { 32 };
            return Self {
                function: "multiply_many",
                tile,
                group: 1,
                own: 1,
                grid: [rows.div_ceil(tile), columns.div_ceil(ACROSS), 1],
            };
        }
        let (tile, group) = (rows.next_power_of_two().min(MOST_TILE), lanes_of_row(units));
        let warps = columns.div_ceil(32 / group) * rows.div_ceil(tile);
        // Two columns halve what is read of the activations, but also the number of warps.
        let is_halved = units < LONG_ROW || warps >= 2 * MANY_WARPS;
        let own = 1 + u64::from(is_halved && !is_gated);
        let across = columns.div_ceil(WARPS * (32 / group) * own);
        Self {
            function: "multiply_few",
            tile,
            group,
            own,
            grid: [across, rows.div_ceil(tile), 1],
        }
    }
}

/// Adds the product of activations, quantised to 8 bits, and a weight in blocks.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn product(
    program: &mut NativeProgram,
    format: BlockFormat,
    views: BlockProduct<'_>,
) -> Result<()> {
    let to = views.to;
    let all = ProductMatrices::of(program, format, &views)?;
    if to.layout.is_empty() {
        return Ok(());
    }
    if let Some(residual) = views.residual {
        program.allow_same(to, residual);
    }
    let (weight, rows, columns) = (&all.weight, all.rows, all.columns);
    let kind = ActivationBlocks::of(format);
    let of_x = rows / all.slots;
    let codes = program.reserve(Dtype::U8, &[of_x, all.depth])?;
    let scales = program.reserve(Dtype::F32, &[of_x, all.depth / kind.run(), 2])?;
    let across = all.depth / kind.format().elements() as u64;
    if across > 0 {
        let step = NativeStep::new(encoding_text(all.x.dtype(), kind), "quantise_rows")
            .threads(32 * WARPS as u32)
            .address(&codes)
            .writes()
            .address(&scales)
            .writes()
            .strided(&all.x)
            .u64(across)
            .u64(of_x * across)
            .over_blocks((of_x * across).div_ceil(WARPS));
        program.push(step);
    }
    let is_aligned = program.is_aligned;
    let both = [Some(weight), all.gate.as_ref()].into_iter().flatten();
    let places = both.map(|it| it.align(is_aligned));
    let align = places.fold((16, true), |all, own| (all.0.min(own.0), all.1 && own.1));
    let is_gated = all.gate.is_some();
    let mut shared = match views.choice {
        Some(_) => ProductGeometry::of_pairs(rows, columns, weight.units, (all.experts, is_gated)),
        None => ProductGeometry::of(rows, columns, weight.units, is_gated),
    };
    let choice = match views.choice {
        Some(index) => Some(PairsOfProduct::of(program, index, &all, &mut shared)?),
        None => None,
    };
    let text = KernelText::new("block_product.cu", include_str!("../cuda/block_product.cu"))
        .with_type("ELEMENT", all.x.dtype())
        .with_type("RESULT", to.dtype())
        .with("KIND", kind as u32)
        .with("IS_GATED", u8::from(is_gated))
        .with("IS_GROUPED", u8::from(choice.is_some()))
        .with("TILE", shared.tile)
        .with("GROUP", shared.group)
        .with("COLUMNS", shared.own);
    let text = match views.choice {
        Some(index) => text.with_type("INDEX", index.dtype()),
        None => text,
    };
    let gate = all.gate.as_ref().unwrap_or(weight);
    let step = NativeStep::new(weight.with_format(text, align), shared.function)
        .threads(32 * WARPS as u32)
        .strided(&all.result)
        .writes()
        .address(&weight.view)
        .address(&gate.view)
        .u64(weight.pitch.cast_unsigned())
        .u64(gate.pitch.cast_unsigned())
        .address(&codes)
        .address(&scales);
    let step = match views.bias {
        Some(bias) => {
            let stride = bias.layout.strides().last().copied().unwrap_or_default();
            step.address(bias).u64(stride.cast_unsigned())
        }
        None => step.u64(0).u64(0),
    };
    let step = match &all.residual {
        Some(residual) => step.strided(residual),
        None => step.u64(0).u64(0).u64(0),
    };
    let units = narrow(weight.units)?;
    let step = step.u64(rows).u64(columns).u32(units);
    let step = match &choice {
        Some(pairs) => pairs.parameters(step, &all, views.bias, program),
        None => step,
    };
    program.push(step.blocks(shared.grid)?);
    match all.result.place == to.place {
        true => Ok(()),
        false => copy::elements(program, &all.result.reshape(to.shape())?, to),
    }
}

/// How a product by experts finds the expert of a row of its result.
enum PairsOfProduct {
    /// By the index of each.
    Alone(MemoryView),
    Grouped(expert::ExpertGroups),
}

impl PairsOfProduct {
    fn of(
        program: &mut NativeProgram,
        index: &MemoryView,
        all: &ProductMatrices,
        shared: &mut ProductGeometry,
    ) -> Result<Self> {
        if all.rows <= FEW_PAIRS {
            return Ok(Self::Alone(*index));
        }
        let groups = expert::group(program, index, all.experts, shared.tile)?;
        shared.grid[0] = groups.most;
        Ok(Self::Grouped(groups))
    }

    fn parameters(
        &self,
        step: NativeStep,
        all: &ProductMatrices,
        bias: Option<&MemoryView>,
        program: &NativeProgram,
    ) -> NativeStep {
        let of_expert = bias.and_then(|bias| bias.layout.strides().first().copied());
        let step = step
            .u64(of_expert.unwrap_or_default().cast_unsigned())
            .u64(all.experts)
            .u64(all.slots);
        match self {
            Self::Alone(index) => {
                let step = step.address(index).shape(flat_shape(index));
                with_fault(step, program)
            }
            Self::Grouped(groups) => step.address(&groups.order).address(&groups.tiles),
        }
    }
}

/// Units of a row, whose elements the kernels count in 32 bits.
fn narrow(units: u64) -> Result<u32> {
    let most = u64::from(u32::MAX / 32 - 4);
    match u32::try_from(units) {
        Ok(own) if units <= most => Ok(own),
        _ => Err(KernelError::TooMany {
            what: "elements of a row of blocks",
            count: units.saturating_mul(32),
            most: most * 32,
        }),
    }
}

/// The text of what makes codes of 8 bits.
fn encoding_text(from: Dtype, kind: ActivationBlocks) -> KernelText {
    rows_text()
        .with_type("ELEMENT", from)
        .with("KIND", kind as u32)
}

fn rows_text() -> KernelText {
    KernelText::new("block_rows.cu", include_str!("../cuda/block_rows.cu"))
}

/// Adds the elements of blocks along the last dimension.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn decode(
    program: &mut NativeProgram,
    format: BlockFormat,
    blocks: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let from = BlockRows::of(program, blocks, format)?;
    let fits = sizes(to) == (from.rows, from.elements()) && to.dtype().is_float();
    check(fits, || format!("{} to {}", blocks.layout, to.layout))?;
    if to.layout.is_empty() {
        return Ok(());
    }
    narrow(from.units)?;
    let last = to.shape().len() - 1;
    let is_vector = to.has_vectors(program.is_aligned, last);
    let text = rows_text()
        .with_type("RESULT", to.dtype())
        .with("IS_VECTOR", u8::from(is_vector));
    let text = from.with_format(text, from.align(program.is_aligned));
    let count = from.rows * from.units;
    let step = NativeStep::new(text, "decode_rows")
        .rows(to)
        .writes()
        .address(&from.view)
        .u64(from.pitch.cast_unsigned())
        .u64(from.units)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}

/// Adds the elements of the rows of blocks that indices choose; zeros for an index outside.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn choose(
    program: &mut NativeProgram,
    format: BlockFormat,
    blocks: &MemoryView,
    index: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let from = BlockRows::of(program, blocks, format)?;
    let chosen = index.layout.len();
    let fits = sizes(to) == (chosen, from.elements()) && to.dtype().is_float();
    check(fits && index.is_index(), || {
        format!("{} by {} to {}", blocks.layout, index.layout, to.layout)
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    narrow(from.units)?;
    let text = rows_text()
        .with_type("RESULT", to.dtype())
        .with_type("INDEX", index.dtype());
    let text = from.with_format(text, from.align(program.is_aligned));
    let count = chosen * from.units;
    let step = NativeStep::new(text, "decode_chosen")
        .rows(to)
        .writes()
        .address(&from.view)
        .u64(from.pitch.cast_unsigned())
        .address(index)
        .shape(flat_shape(index))
        .u64(from.rows)
        .u64(from.units)
        .u64(count)
        .over(count);
    program.push(with_fault(step, program));
    Ok(())
}

/// Adds blocks of 8 bits of elements along the last dimension.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn encode(
    program: &mut NativeProgram,
    kind: ActivationBlocks,
    x: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let ((rows, depth), format) = (sizes(x), kind.format());
    let (elements, bytes) = (format.elements() as u64, format.bytes() as u64);
    let across = depth / elements;
    let fits = depth % elements == 0 && sizes(to) == (rows, across * bytes);
    let are_types = x.dtype().is_float() && x.dtype().bytes() < 8 && to.dtype() == Dtype::U8;
    check(fits && are_types && !x.shape().is_empty(), || {
        format!("{} to {} as {format}", x.layout, to.layout)
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let blocks = rows * across;
    let step = NativeStep::new(encoding_text(x.dtype(), kind), "encode_rows")
        .rows(to)
        .writes()
        .rows(x)
        .u64(across)
        .u64(blocks)
        .over(blocks.saturating_mul(32));
    program.push(step);
    Ok(())
}
