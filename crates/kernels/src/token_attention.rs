//! Attention of tokens of which each is the last one of its sequence, in one launch.
//!
//! `token_attention.cu` reads and writes elements by numbers below the extents of their views; what
//! comes from memory, the place of a token, its sequence and the blocks of that, is compared with
//! them first. A block of threads is known by its number below that of `arrived`.

use fercuda_tensor::Dtype;

use crate::attention::{RotaryPairs, has_chunks};
use crate::copy;
use crate::error::KernelError;
use crate::head_inputs::{HeadNumbers, HeadViews};
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Threads of a block.
const THREADS: u32 = 256;
/// Positions of a sequence at most: their numbers have 32 bits.
const MOST_POSITIONS: u64 = 1 << 31;
/// Heads that share a block at most, and elements of them.
const MOST_HEADS: u64 = 8;
const MOST_ELEMENTS: u64 = 1024;
/// Elements of a head for tensor cores at most: a warp has 16 keys and values in registers.
const MOST_TILE_LENGTH: u64 = 128;
/// Blocks that suffice for all multiprocessors, which have two each, and keys of a part at least.
const ENOUGH_BLOCKS: u64 = 264;
const LEAST_PART: u64 = 128;

/// Operands and results.
#[derive(Clone, Copy, Debug)]
pub struct TokenAttention {
    /// Those of the way to attention; the queries are of the shape of the result.
    pub heads: HeadViews,
    /// Numbers of the way to attention.
    pub numbers: HeadNumbers,
    /// Blocks of each sequence, `[sequences, blocks of one]`.
    pub table: MemoryView,
    /// Sequence of each token.
    pub sequence: MemoryView,
    /// A zero for each token and head of keys, or more.
    pub arrived: MemoryView,
    /// The zeros after.
    pub arrived_to: MemoryView,
    /// Factor of scores.
    pub scale: f64,
    /// Scores are `limit * tanh(score / limit)`, if it is above 0.
    pub limit: f64,
    /// Number of last positions that are attended to; 0 for all.
    pub window: u64,
    /// No kernel that may still run when this one starts writes other operands than `x`.
    pub has_constant_cache: bool,
}

/// Whether heads of so many elements over a cache of that type, in order at multiples of 16 bytes,
/// have such a kernel.
pub fn has_token_attention(cached: Dtype, length: u64) -> bool {
    let width = 16 / cached.bytes();
    let is_narrow = cached.is_float() && cached != Dtype::F64;
    is_narrow
        && length > 0
        && length.is_multiple_of(width)
        && length / width <= 32
        && length <= MOST_ELEMENTS / 2
}

/// Adds attention of each token to the keys of its sequence up to its own, which is stored in the
/// cache at its place. The place must be that of the token's position by the table, and no token's
/// place another one's key; else results are of either.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, [`KernelError::TooMany`].
pub fn token_attention(program: &mut NativeProgram, all: &TokenAttention) -> Result<()> {
    let HeadViews { x, q, to, .. } = &all.heads;
    let [k, v] = to;
    all.heads.check()?;
    let (&[tokens, heads, length], &[_, places, shared, _]) = (q.shape(), k.shape()) else {
        return Ok(());
    };
    let fits = shared > 0
        && heads % shared == 0
        && heads > 0
        && places > 0
        && v.shape() == k.shape()
        && has_token_attention(k.dtype(), length)
        && x.dtype() != Dtype::F64;
    check(fits, || {
        format!("q {}, k {}, v {}", q.layout, k.layout, v.layout)
    })?;
    check(all.table.is_index() && all.table.shape().len() == 2, || {
        format!("the table is {}", all.table.layout)
    })?;
    crate::attention::check_index("the sequence", &all.sequence, tokens)?;
    let per_key = heads / shared;
    let is_group = |size: &u64| per_key.is_multiple_of(*size) && size * length <= MOST_ELEMENTS;
    let group = (1..=MOST_HEADS).rev().find(is_group).unwrap_or(1);
    let groups = per_key / group;
    let blocks = tokens * shared * groups;
    let counts = all.arrived.layout.len();
    let counter = all.arrived.dtype();
    let fits = matches!(counter, Dtype::U32 | Dtype::I32) && counts >= blocks;
    check(fits && all.arrived.shape().len() == 1, || {
        format!("zeros {} for {blocks} blocks", all.arrived.layout)
    })?;
    all.arrived_to
        .check("the zeros", all.arrived.shape(), counter)?;
    for (to, from) in [
        (k, &all.heads.cache[0]),
        (v, &all.heads.cache[1]),
        (&all.arrived_to, &all.arrived),
    ] {
        program.allow_same(to, from);
        let before = program.launches();
        copy::elements(program, from, to)?;
        program.skip_if_same(before, to, from);
    }
    if blocks == 0 {
        return Ok(());
    }
    // A cache whose keys are not read 16 bytes at a time is copied. It is read where it was: the
    // new one has the same keys but those of these tokens, which are known here.
    let before = program.launches();
    let mut read = all.heads.cache;
    for view in &mut read {
        if !has_chunks(view, program.is_aligned) {
            let staged = program.reserve(view.dtype(), view.shape())?;
            copy::elements(program, view, &staged)?;
            *view = staged;
        }
    }
    let is_early = all.has_constant_cache && program.launches() == before;
    let arrived = match all.arrived_to.layout.strides() {
        [1] => all.arrived_to,
        _ => {
            let zeros = program.reserve(counter, &[counts])?;
            copy::fill(program, &zeros, 0);
            zeros
        }
    };
    let room = all.table.shape()[1].saturating_mul(places);
    if room > MOST_POSITIONS {
        let (what, count, most) = ("positions of a sequence", room, MOST_POSITIONS);
        return Err(KernelError::TooMany { what, count, most });
    }
    let splits = ENOUGH_BLOCKS
        .div_ceil(blocks)
        .clamp(1, room.div_ceil(LEAST_PART).max(1));
    let parts = program.reserve(Dtype::F32, &[tokens, heads, splits, length + 2])?;
    let is_tiled =
        k.dtype().bytes() <= 2 && length.is_multiple_of(32) && length <= MOST_TILE_LENGTH;
    let lanes = (length / (16 / k.dtype().bytes())).next_power_of_two();
    let source = include_str!("../cuda/token_attention.cu");
    let text = KernelText::new("token_attention.cu", source)
        .with_type("ELEMENT", x.dtype())
        .with_type("CACHED", k.dtype())
        .with_type("POSITION", all.heads.position.dtype())
        .with_type("SEQUENCE", all.sequence.dtype())
        .with_type("TABLE", all.table.dtype())
        .with_type("SLOT", all.heads.slot.dtype())
        .with("LENGTH", length)
        .with("VALUE_LENGTH", length)
        .with("GROUP", group)
        .with("LANES", lanes)
        .with("LEAST_PART", LEAST_PART)
        .with("IS_TILED", u8::from(is_tiled))
        .with("HAS_LIMIT", u8::from(all.limit > 0.0))
        .with("IS_EARLY", u8::from(is_early))
        .with("PAIRS", all.heads.frequency.shape()[0])
        .with(
            "IS_ADJACENT",
            u32::from(all.numbers.pairs == RotaryPairs::Adjacent),
        );
    let mut step = NativeStep::new(text, "token_attention");
    for view in [q, k, v] {
        step = step.view(view).writes();
    }
    step = step.address(&arrived).writes().address(&parts).writes();
    for view in [&read[0], &read[1], x] {
        step = step.view(view);
    }
    for view in [&all.heads.position, &all.heads.frequency, &all.heads.slot] {
        step = step.address(view).u64(view.first_stride());
    }
    step = step.view(&all.table);
    step = step.address(&all.sequence).u64(all.sequence.first_stride());
    for at in 0..2 {
        step = match &all.heads.norms {
            Some(norms) => step.address(&norms[at]).u64(norms[at].first_stride()),
            None => step.u64(0).u64(0),
        };
    }
    let step = step
        .f64(all.numbers.epsilon)
        .f64(all.numbers.magnitude)
        .f64(all.scale)
        .f64(all.limit)
        .u64(all.window)
        .u64(groups);
    let step = with_fault(step, program)
        .threads(THREADS)
        .overlapping()
        .blocks([blocks, splits, 1])?;
    program.push(step);
    Ok(())
}
