//! Products of the vectors of few tokens and weights, in one launch with their norm, gate and
//! residual.
//!
//! `token_product.cu` reads bytes of rows of the weights below their number, from multiples of 16
//! bytes on that are not before a matrix's beginning, and elements of the other views below their
//! extents. A part of a row beyond its end is neither read nor multiplied. In shared memory it has
//! the bytes that are computed here.

use fercuda_tensor::BlockFormat;

use crate::block::{BlockRows, format_type, lanes_of_row, with_codebook};
use crate::copy;
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::rows::{matrix, sizes};
use crate::text::KernelText;
use crate::view::{BoundPlace, MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Tokens of a product at most.
pub const MOST_TOKENS: u64 = 8;
/// Matrices of a product at most.
pub const MOST_MATRICES: usize = 3;
/// Outputs of a product at most: their numbers have 32 bits.
const MOST_OUTPUTS: u64 = 1 << 30;
/// Blocks: one for each multiprocessor.
const BLOCKS: u64 = 132;
/// Units of a row of blocks from which a lane has two at once.
const LONG_ROW: u64 = 256;
/// Bytes of shared memory that a block takes where the device has them: so many that a block has a
/// multiprocessor alone, and as few that one of attention has room beside it.
const WANTED_SHARED: u32 = 200 << 10;

/// What the rows of the weights are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWeights {
    /// Floats of at most 32 bits.
    Plain,
    /// Blocks.
    Blocks(BlockFormat),
}

impl TokenWeights {
    /// Warps of a block, the stages of each at most, and bytes of a stage: the fastest of those
    /// that were measured on an H200.
    fn shares(self) -> [u64; 3] {
        match self {
            Self::Plain => [8, 3, 5500],
            Self::Blocks(_) => [24, 4, 2800],
        }
    }

    /// Elements of the vectors of all tokens of a product, at most.
    pub fn most_elements(self) -> u64 {
        // Beside them there is room for stages.
        match self {
            Self::Plain => 14 << 10,
            Self::Blocks(_) => 40 << 10,
        }
    }
}

/// Views of a product of few tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenProduct<'a> {
    /// Vectors of the tokens along the last dimension.
    pub x: &'a MemoryView,
    /// Weights of their norm, and what is added to the mean of squares.
    pub norm: Option<(&'a MemoryView, f64)>,
    /// Matrices, one to three of one type, `[outputs, inputs]`, or bytes of blocks.
    pub weights: &'a [MemoryView],
    /// What their rows are made of.
    pub format: TokenWeights,
    /// Two matrices: the result is SiLU of the first product by the second.
    pub is_gated: bool,
    /// Added to the result, and may be where the result is.
    pub residual: Option<&'a MemoryView>,
    /// No kernel that may still run when this one starts writes the weights.
    pub has_constant_weights: bool,
    /// The result: outputs of all matrices, one after another.
    pub to: &'a MemoryView,
}

/// A matrix of weights: rows of neighbouring bytes.
struct RowBytes {
    view: MemoryView,
    rows: u64,
    pitch: i64,
}

/// Units of a row: 32 elements of blocks, or 16 bytes of floats.
struct RowUnits {
    units: u64,
    row_bytes: u64,
    /// Bytes of as many units as make a block.
    block_bytes: u64,
    units_of_block: u64,
}

impl TokenProduct<'_> {
    fn rows_of(&self, program: &mut NativeProgram, at: usize) -> Result<RowBytes> {
        let view = &self.weights[at];
        if let TokenWeights::Blocks(format) = self.format {
            let own = BlockRows::of(program, view, format)?;
            let (view, rows, pitch) = (own.view, own.rows, own.pitch);
            return Ok(RowBytes { view, rows, pitch });
        }
        let dtype = view.dtype();
        let is_float = dtype.is_float() && dtype.bytes() <= 4;
        let &[rows, inputs] = view.shape() else {
            let what = format!("weights {}", view.layout);
            return Err(KernelError::Views { what });
        };
        check(is_float, || format!("weights of {dtype}"))?;
        let is_near = view.layout.strides()[1] == 1 || inputs <= 1;
        let view = match is_near {
            true => *view,
            false => {
                let staged = program.reserve(dtype, view.shape())?;
                copy::elements(program, view, &staged)?;
                staged
            }
        };
        let pitch = match rows {
            0 | 1 => inputs as i64,
            _ => view.layout.strides()[0],
        };
        let pitch = pitch * dtype.bytes() as i64;
        Ok(RowBytes { view, rows, pitch })
    }

    fn units(&self, depth: u64) -> RowUnits {
        match self.format {
            TokenWeights::Plain => {
                let row_bytes = depth * self.weights[0].dtype().bytes();
                RowUnits {
                    units: row_bytes.div_ceil(16),
                    row_bytes,
                    block_bytes: 16,
                    units_of_block: 1,
                }
            }
            TokenWeights::Blocks(format) => {
                let (bytes, elements) = (format.bytes() as u64, format.elements() as u64);
                RowUnits {
                    units: depth / 32,
                    row_bytes: depth / elements * bytes,
                    block_bytes: bytes,
                    units_of_block: elements / 32,
                }
            }
        }
    }

    fn check(&self, rows: &[RowBytes]) -> Result<[u64; 3]> {
        let ((tokens, depth), (own, columns)) = (sizes(self.x), sizes(self.to));
        let what = || {
            let shapes: Vec<&[u64]> = self.weights.iter().map(MemoryView::shape).collect();
            format!("{} by {shapes:?} to {}", self.x.layout, self.to.layout)
        };
        let inputs = |view: &MemoryView| match (self.format, view.shape()) {
            (TokenWeights::Plain, [_, inputs]) => Some(*inputs),
            (TokenWeights::Blocks(format), [_, bytes]) => {
                let blocks = bytes / format.bytes() as u64;
                blocks.checked_mul(format.elements() as u64)
            }
            _ => None,
        };
        let all = rows.iter().map(|it| it.rows);
        let given = match self.is_gated {
            true => all.clone().max(),
            false => all
                .clone()
                .try_fold(0, |sum: u64, own| sum.checked_add(own)),
        };
        let is_alike = |view: &MemoryView| {
            inputs(view) == Some(depth) && view.dtype() == self.weights[0].dtype()
        };
        let fits = !self.x.shape().is_empty()
            && !self.to.shape().is_empty()
            && tokens == own
            && given == Some(columns)
            && self.weights.iter().all(is_alike)
            && (1..=MOST_MATRICES).contains(&rows.len())
            && (!self.is_gated || rows.len() == 2 && rows[0].rows == rows[1].rows);
        check(fits, what)?;
        let dtype = self.x.dtype();
        let is_float = dtype.is_float() && dtype.bytes() <= 4;
        check(is_float && self.to.dtype() == dtype, what)?;
        if let Some((norm, _)) = self.norm {
            norm.check("the norm", &[depth], dtype)?;
        }
        if let Some(residual) = self.residual {
            residual.check("the residual", self.to.shape(), dtype)?;
        }
        let limits = [
            ("outputs of one product", columns, MOST_OUTPUTS),
            ("tokens of one product", tokens, MOST_TOKENS),
            (
                "elements of the tokens of one product",
                tokens.saturating_mul(depth),
                self.format.most_elements(),
            ),
        ];
        for (what, count, most) in limits {
            if count > most {
                return Err(KernelError::TooMany { what, count, most });
            }
        }
        Ok([tokens, depth, columns])
    }
}

/// How lanes share rows, and rows come into shared memory.
struct TokenGeometry {
    warps: u64,
    stages: u64,
    group: u64,
    turns: u64,
    is_async: bool,
    is_shifted: bool,
    shared_bytes: u64,
}

impl TokenGeometry {
    /// The geometry for a device whose blocks have so many bytes of shared memory.
    fn of(
        product: &TokenProduct<'_>,
        rows: &[RowBytes],
        units: &RowUnits,
        (tokens, depth): (u64, u64),
        (is_aligned, most_shared): (bool, u64),
    ) -> Self {
        let columns = 1 + u64::from(product.is_gated);
        let [warps, stages, most] = product.format.shares();
        let of_block = units.units_of_block;
        // A stage has whole blocks.
        let whole = |group: u64| of_block.div_ceil(group).max(1);
        let bytes_of_line = |group: u64, turns: u64| group * turns / of_block * units.block_bytes;
        let mut group = lanes_of_row(units.units);
        let least = |group: u64| 32 / group * columns * bytes_of_line(group, whole(group));
        while group < 32 && least(group) > most {
            group *= 2;
        }
        let lines = 32 / group * columns;
        let turns = match product.format {
            // As few equal parts of a row as fit.
            TokenWeights::Plain => {
                let chunks = (lines * units.row_bytes).div_ceil(most).max(1);
                units.units.div_ceil(group * chunks)
            }
            TokenWeights::Blocks(_) if units.units >= LONG_ROW => 2,
            TokenWeights::Blocks(_) => 1,
        };
        let is_bound = |row: &RowBytes| {
            let is_aligned = is_aligned || row.view.place == BoundPlace::Scratch;
            is_aligned && row.view.offset_bytes % 16 == 0
        };
        let has_even_rows = rows.iter().all(|row| row.pitch % 16 == 0);
        let is_async = rows.iter().all(is_bound)
            && (has_even_rows || product.format != TokenWeights::Plain)
            && rows.iter().all(|row| row.pitch >= 0);
        let vectors = match product.format {
            TokenWeights::Plain => {
                let of_unit = 16 / product.weights[0].dtype().bytes();
                tokens * units.units * of_unit * 4
            }
            // Up to four factors of a unit.
            TokenWeights::Blocks(_) => tokens * (depth + 16 * units.units),
        };
        let whole_turns = |turns: u64| turns.next_multiple_of(whole(group)).max(whole(group));
        let mut own = Self {
            warps,
            stages,
            group,
            turns: whole_turns(turns),
            is_async,
            is_shifted: false,
            shared_bytes: 0,
        };
        loop {
            let of_line = bytes_of_line(group, own.turns);
            own.is_shifted = is_async && (!has_even_rows || of_line % 16 != 0);
            let line = of_line + if own.is_shifted { 15 } else { 0 };
            let of_warp = own.stages * lines * line.next_multiple_of(16);
            own.shared_bytes = own.warps * of_warp + vectors.next_multiple_of(16);
            // What makes the least difference is given up first.
            if own.shared_bytes <= most_shared {
                return own;
            } else if own.stages > 3 {
                own.stages -= 1;
            } else if own.turns > whole(group) {
                own.turns = whole_turns(own.turns / 2);
            } else if own.stages > 2 {
                own.stages -= 1;
            } else if own.warps > 1 {
                own.warps -= own.warps.div_ceil(4);
            } else {
                return own;
            }
        }
    }
}

/// Adds `to = n w^T + residual`, where `n` is `x` or its norm, or the gated product.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn token_product(program: &mut NativeProgram, product: &TokenProduct<'_>) -> Result<()> {
    let before = program.launches();
    let rows = (0..product.weights.len()).map(|at| product.rows_of(program, at));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let [tokens, depth, columns] = product.check(&rows)?;
    let (x, to) = (product.x, product.to);
    if to.layout.is_empty() {
        return Ok(());
    }
    if let Some(residual) = product.residual {
        program.allow_same(to, residual);
    }
    let x = matrix(program, x, [tokens, depth])?;
    let residual = product.residual;
    let residual = residual.map(|it| matrix(program, it, [tokens, columns]));
    let residual = residual.transpose()?;
    let result = match to.reshape(&[tokens, columns]) {
        Ok(result) => result,
        Err(_) => program.reserve(to.dtype(), &[tokens, columns])?,
    };
    let is_copied = program.launches() > before;
    let units = product.units(depth);
    let is_aligned = program.is_aligned;
    let most_shared = u64::from(program.most_shared_bytes.min(WANTED_SHARED));
    let device = (is_aligned, most_shared);
    let shared = TokenGeometry::of(product, &rows, &units, (tokens, depth), device);
    if shared.shared_bytes > most_shared {
        return Err(KernelError::TooMany {
            what: "bytes of shared memory of one product",
            count: shared.shared_bytes,
            most: most_shared,
        });
    }
    let is_near = |view: &MemoryView, along: usize| {
        view.place != BoundPlace::Scratch && view.has_vectors(is_aligned, along)
    };
    let norm = product.norm;
    let is_vector =
        depth % 4 == 0 && is_near(&x, 1) && norm.is_none_or(|(norm, _)| is_near(norm, 0));
    let text = KernelText::new("token_product.cu", include_str!("../cuda/token_product.cu"))
        .with_type("ELEMENT", x.dtype())
        .with("TOKENS", tokens)
        .with("MATRICES", rows.len())
        .with("IS_GATED", u8::from(product.is_gated))
        .with("IS_NORMED", u8::from(norm.is_some()))
        .with(
            "IS_EARLY",
            u8::from(product.has_constant_weights && !is_copied),
        )
        .with("IS_X_VECTOR", u8::from(is_vector))
        .with("GROUP", shared.group)
        .with("TURNS", shared.turns)
        .with("WARPS", shared.warps)
        .with("STAGES", shared.stages)
        .with("IS_ASYNC", u8::from(shared.is_async))
        .with("IS_SHIFTED", u8::from(shared.is_shifted))
        .with("DEPTH", depth)
        .with("UNITS", units.units)
        .with("ROW_BYTES", units.row_bytes);
    let counts = ["COUNT_0", "COUNT_1", "COUNT_2"].into_iter().enumerate();
    let text = counts.fold(text, |text, (at, name)| {
        text.with(name, rows.get(at).map_or(0, |row| row.rows))
    });
    let text = match product.format {
        TokenWeights::Plain => text.with_type("PLAIN", product.weights[0].dtype()),
        TokenWeights::Blocks(format) => {
            // In shared memory a line begins as it does in memory, or at a multiple of 16.
            let pitches = rows.iter().map(|row| row.pitch.unsigned_abs());
            let pitches = pitches.fold(format.bytes() as u64 | 16, |all, own| all | own);
            let own = match shared.is_async {
                true => pitches,
                false => format.bytes() as u64 | 16,
            };
            let text = text
                .with("FORMAT", format_type(format))
                .with("BLOCK_ALIGN", 1 << own.trailing_zeros())
                .with("IS_DENSE", 1);
            with_codebook(text, format)
        }
    };
    let tasks = |rows: u64| rows.div_ceil(32 / shared.group);
    let all: u64 = match product.is_gated {
        true => tasks(columns),
        false => rows.iter().map(|row| tasks(row.rows)).sum(),
    };
    let mut step = NativeStep::new(text, "token_product")
        .threads(32 * shared.warps as u32)
        .strided(&result)
        .writes()
        .strided(&x);
    step = match norm {
        Some((norm, _)) => step.address(norm).u64(norm.first_stride()),
        None => step.u64(0).u64(0),
    };
    step = match &residual {
        Some(residual) => step.strided(residual),
        None => step.u64(0).u64(0).u64(0),
    };
    step = step.f64(norm.map_or(0.0, |(_, eps)| eps));
    for at in 0..MOST_MATRICES {
        step = match rows.get(at) {
            Some(row) => step.address(&row.view).u64(row.pitch.cast_unsigned()),
            None => step.u64(0).u64(0),
        };
    }
    step.shared_bytes = shared.shared_bytes as u32;
    // A block has a multiprocessor alone: those of the next kernel begin where this one's have
    // ended, and read weights while the others go on. With several on one, two of the next kernel
    // may be where others have none.
    if all >= BLOCKS {
        step.wanted_shared_bytes = WANTED_SHARED;
    }
    let step = step.overlapping().blocks([all.clamp(1, BLOCKS), 1, 1])?;
    program.push(step);
    match result.place == to.place {
        true => Ok(()),
        false => copy::elements(program, &result.reshape(to.shape())?, to),
    }
}

#[cfg(test)]
mod tests {
    use fercuda_tensor::{Dtype, Layout};

    use super::*;
    use crate::program::ProgramForm;

    /// Threads and shared memory of a block for two matrices of 500 outputs.
    fn block_of(
        format: TokenWeights,
        [tokens, depth]: [u64; 2],
        is_gated: bool,
        shared_bytes: u32,
    ) -> [u32; 2] {
        let of = |dtype, shape: [u64; 2]| Layout::contiguous(dtype, &shape).unwrap();
        let weight = match format {
            TokenWeights::Plain => of(Dtype::F32, [500, depth]),
            TokenWeights::Blocks(own) => {
                let bytes = depth / own.elements() as u64 * own.bytes() as u64;
                of(Dtype::U8, [500, bytes])
            }
        };
        let inputs = [of(Dtype::F32, [tokens, depth]), weight, weight];
        let output = of(Dtype::F32, [tokens, if is_gated { 500 } else { 1000 }]);
        let form = ProgramForm {
            is_aligned: true,
            shared_bytes,
            multiprocessors: 132,
        };
        let mut program = NativeProgram::new(&inputs, &[output], form);
        let product = TokenProduct {
            x: &program.input(0),
            norm: None,
            weights: &[program.input(1), program.input(2)],
            format,
            is_gated,
            residual: None,
            has_constant_weights: true,
            to: &program.output(0),
        };
        token_product(&mut program, &product).unwrap();
        let step = program.steps.last().unwrap();
        [step.block, step.shared_bytes]
    }

    #[test]
    fn blocks_have_the_shared_memory_of_their_device() {
        let formats = BlockFormat::ALL.into_iter().map(TokenWeights::Blocks);
        for format in formats.chain([TokenWeights::Plain]) {
            let elements = match format {
                TokenWeights::Plain => 1,
                TokenWeights::Blocks(own) => own.elements() as u64,
            };
            for tokens in [1, 3, MOST_TOKENS] {
                let most = format.most_elements() / tokens;
                let depths = [elements, 2560, 9728, most].map(|it| it / elements * elements);
                for depth in depths.into_iter().filter(|it| (1..=most).contains(it)) {
                    // Devices since 2020 have 99, 163 or 227 KB, of which 1 is not dynamic.
                    for (is_gated, kilobytes) in [(false, 98), (true, 98), (true, 162), (true, 226)]
                    {
                        let [threads, bytes] =
                            block_of(format, [tokens, depth], is_gated, kilobytes << 10);
                        let about = format!("{format:?}: {tokens} of {depth}, {kilobytes} KB");
                        assert!(
                            threads >= 32 && bytes <= kilobytes << 10,
                            "{about}: {bytes}"
                        );
                    }
                }
            }
        }
    }
}
