//! Attention over cached keys and values, rotary positions, and what is stored in a cache.
//!
//! `attention.cu` and `flash_attention.cu` read queries, keys and values by numbers below the
//! extents of their views. What comes from memory is compared first: a position with the table's
//! room, a sequence with its rows, a block with those of the cache, a place that is stored to with
//! all of them.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Threads of a block, which go over as many keys at once.
const THREADS: u32 = 128;
/// Blocks for which positions are split.
const ENOUGH_BLOCKS: u64 = 512;
/// Positions of a split, at least.
const LEAST_SPLIT: u64 = 128;
/// Most heads that one block computes together.
const MOST_HEADS: u64 = 8;
/// Bytes of the queries in shared memory.
const MOST_QUERY_BYTES: u64 = 16 << 10;

/// Blocks of the form for tensor cores for which positions are split: as many as run at once.
const ENOUGH_TILES: u64 = 384;
/// Blocks that suffice where a block has 128 rows, which are written for each split.
const MULTIPROCESSORS: u64 = 132;
/// Rows of all heads from which a block has 128 of them.
const MANY_ROWS: u64 = 128 * MULTIPROCESSORS;
/// Most elements of a head of that form.
const MOST_TILE_LENGTH: u64 = 256;
/// Elements of a key and a value together up to which a tile has 64 of both, and not 32.
const WIDE_TILE: u64 = 288;
/// Rows from which a block of that form has several tokens.
const ENOUGH_ROWS: u64 = 16;

/// Most elements of a head.
pub const MOST_HEAD_LENGTH: u64 = 1024;

/// Which elements of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryPairs {
    /// One of the first half, and that of the second half at the same place.
    Halves,
    /// Neighbours.
    Adjacent,
}

fn text() -> KernelText {
    KernelText::new("attention.cu", include_str!("../cuda/attention.cu"))
}

/// Checks that a view has one whole number a token.
pub(crate) fn check_index(what: &str, view: &MemoryView, tokens: u64) -> Result<()> {
    check(view.is_index() && view.shape() == [tokens], || {
        format!("{what} is {} for {tokens} tokens", view.layout)
    })
}

/// Adds `x[tokens, heads, length]`, with the first `2 * frequencies` elements of each head turned
/// by the angles `position * frequency`, times `magnitude`; the others are copied.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn rotate(
    program: &mut NativeProgram,
    [x, position, frequency, to]: [&MemoryView; 4],
    pairs: RotaryPairs,
    magnitude: f64,
) -> Result<()> {
    let (&[tokens, heads, length], &[turned]) = (x.shape(), frequency.shape()) else {
        return check(false, || format!("{} by {}", x.layout, frequency.layout));
    };
    to.check("the result", x.shape(), x.dtype())?;
    check_index("the position", position, tokens)?;
    check(
        x.dtype().is_float()
            && frequency.dtype() == Dtype::F32
            && turned.checked_mul(2).is_some_and(|all| all <= length),
        || format!("{} turned by {}", x.layout, frequency.layout),
    )?;
    if x.layout.is_empty() {
        return Ok(());
    }
    // Each element is read before the thread that reads it writes it.
    program.allow_same(to, x);
    let rest = length - 2 * turned;
    let count = tokens * heads * (turned + rest);
    let text = text()
        .with_type("ELEMENT", x.dtype())
        .with_type("POSITION", position.dtype())
        .with("IS_ADJACENT", u32::from(pairs == RotaryPairs::Adjacent));
    let step = NativeStep::new(text, "rotate")
        .view(to)
        .writes()
        .view(x)
        .address(position)
        .u64(position.first_stride())
        .address(frequency)
        .u64(frequency.first_stride())
        .f64(magnitude)
        .u64(turned)
        .u64(rest)
        .u64(heads)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}

/// Adds to `to` what `cache[blocks, places, heads, length]` has, but for `rows[tokens, heads,
/// length]`, which are in the places that `slot[tokens]` numbers. Of tokens with one place, one is
/// stored. If `to` is the cache's own memory, nothing else is copied.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn append(
    program: &mut NativeProgram,
    [cache, rows, slot, to]: [&MemoryView; 4],
) -> Result<()> {
    let (&[blocks, places, heads, length], &[tokens, ..]) = (cache.shape(), rows.shape()) else {
        return check(false, || format!("{} into {}", rows.layout, cache.layout));
    };
    to.check("the result", cache.shape(), cache.dtype())?;
    check_index("the index", slot, tokens)?;
    let fits = rows.shape() == [tokens, heads, length];
    check(
        fits && rows.dtype().is_float() && cache.dtype().is_float(),
        || format!("{} into {}", rows.layout, cache.layout),
    )?;
    program.allow_same(to, cache);
    let before = program.launches();
    copy::elements(program, cache, to)?;
    program.skip_if_same(before, to, cache);
    if rows.layout.is_empty() || cache.layout.is_empty() {
        return Ok(());
    }
    let count = rows.layout.len();
    let text = text()
        .with_type("ELEMENT", rows.dtype())
        .with_type("CACHED", cache.dtype())
        .with_type("SLOT", slot.dtype());
    let step = NativeStep::new(text, "append")
        .view(to)
        .writes()
        .view(rows)
        .address(slot)
        .u64(slot.first_stride())
        .u64(places)
        // At most the number of elements, which fits.
        .u64(blocks * places)
        .u64(heads)
        .u64(length)
        .u64(count)
        .over(count);
    program.push(with_fault(step, program));
    Ok(())
}

/// Operands of attention over a cache.
#[derive(Clone, Copy, Debug)]
pub struct AttentionViews {
    /// Queries, `[tokens, heads, length]`.
    pub q: MemoryView,
    /// Keys, `[blocks, places, shared heads, length]`.
    pub k: MemoryView,
    /// Values, `[blocks, places, shared heads, value length]`.
    pub v: MemoryView,
    /// Blocks of each sequence, `[sequences, blocks of one]`.
    pub table: MemoryView,
    /// Sequence of each token.
    pub sequence: MemoryView,
    /// Position of each token in its sequence: the last one that it attends to.
    pub position: MemoryView,
    /// A score of each head that has no value.
    pub sinks: Option<MemoryView>,
    /// The result, `[tokens, heads, value length]`.
    pub to: MemoryView,
}

/// Numbers of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionNumbers {
    /// Factor of scores.
    pub scale: f64,
    /// Scores are `limit * tanh(score / limit)`, if it is above 0.
    pub limit: f64,
    /// Largest exponent of the slopes by which scores fall with the distance; 0 for none.
    pub bias: f64,
    /// Number of last positions that are attended to; 0 for all.
    pub window: u64,
    /// Whether queries and weights may be rounded to the cache's type, or to f16 if it has 8 bits.
    pub is_rounded: bool,
    /// About how many tokens of a sequence follow one another. The results do not depend on it, but
    /// for the order of sums.
    pub run: u64,
}

impl AttentionViews {
    fn check(&self) -> Result<()> {
        let what = || {
            let Self { q, k, v, to, .. } = self;
            format!(
                "q {}, k {}, v {}, to {}",
                q.layout, k.layout, v.layout, to.layout
            )
        };
        let (&[tokens, heads, length], &[blocks, places, shared, key_length]) =
            (self.q.shape(), self.k.shape())
        else {
            return check(false, what);
        };
        let &[value_blocks, value_places, value_heads, value_length] = self.v.shape() else {
            return check(false, what);
        };
        let fits = [value_blocks, value_places, value_heads] == [blocks, places, shared]
            && key_length == length
            && self.to.shape() == [tokens, heads, value_length]
            && self.to.dtype() == self.q.dtype()
            && self.k.dtype() == self.v.dtype();
        let lengths = [length, value_length];
        let is_bounded = lengths.iter().all(|it| (1..=MOST_HEAD_LENGTH).contains(it));
        let is_shared = shared > 0 && heads % shared == 0;
        let floats = [&self.q, &self.k].map(|view| view.dtype());
        let has_types = floats.iter().all(|dtype| dtype.is_float())
            && (floats[0] == Dtype::F64) == (floats[1] == Dtype::F64);
        check(
            fits && is_bounded && is_shared && has_types && places > 0,
            what,
        )?;
        check(
            self.table.is_index() && self.table.shape().len() == 2,
            || format!("the table is {}", self.table.layout),
        )?;
        check_index("the sequence", &self.sequence, tokens)?;
        check_index("the position", &self.position, tokens)?;
        match &self.sinks {
            Some(sinks) => sinks.check("the sinks", &[heads], Dtype::F32),
            None => Ok(()),
        }
    }

    /// Elements of a key that are read at once.
    fn width(&self, is_aligned: bool) -> u64 {
        match has_chunks(&self.k, is_aligned) {
            true => 16 / self.k.dtype().bytes(),
            false => 1,
        }
    }

    /// Whether there is a form for tensor cores.
    fn is_tiled(&self, is_aligned: bool) -> bool {
        // An element of 8 bits is exact in f16.
        let is_narrow = self.k.dtype().bytes() <= 2;
        let has_length = |view: &MemoryView| {
            let length = view.shape()[3];
            length.is_multiple_of(16) && length <= MOST_TILE_LENGTH && has_chunks(view, is_aligned)
        };
        is_narrow && [&self.k, &self.v].into_iter().all(has_length)
    }

    /// Adds what all kernels of attention have as parameters, but the number of splits.
    fn parameters(
        &self,
        step: NativeStep,
        parts: Option<&MemoryView>,
        numbers: AttentionNumbers,
        groups: u64,
    ) -> NativeStep {
        let step = step.view(&self.to).writes();
        let step = match parts {
            Some(parts) => step.address(parts).writes(),
            None => step.u64(0),
        };
        let step = step
            .view(&self.q)
            .view(&self.k)
            .view(&self.v)
            .view(&self.table)
            .address(&self.sequence)
            .u64(self.sequence.first_stride())
            .address(&self.position)
            .u64(self.position.first_stride());
        // The largest power of two that is not above the number of heads.
        let biased = 1 << self.q.shape()[1].ilog2();
        optional(step, self.sinks.as_ref())
            .f64(numbers.scale)
            .f64(numbers.limit)
            .f64(numbers.bias)
            .u64(biased)
            .u64(numbers.window)
            .u64(self.k.shape()[2])
            .u64(groups)
    }

    /// A text with the types and lengths of these.
    fn described(&self, text: KernelText) -> KernelText {
        text.with_type("ELEMENT", self.q.dtype())
            .with_type("CACHED", self.k.dtype())
            .with_type("TABLE", self.table.dtype())
            .with_type("SEQUENCE", self.sequence.dtype())
            .with_type("POSITION", self.position.dtype())
            .with("LENGTH", self.q.shape()[2])
            .with("VALUE_LENGTH", self.v.shape()[3])
    }

    /// Positions that a sequence may have.
    fn room(&self) -> u64 {
        self.table.shape()[1].saturating_mul(self.k.shape()[1])
    }

    /// Memory for what splits have, where there are several.
    fn parts(
        &self,
        program: &mut NativeProgram,
        real: Dtype,
        splits: u64,
    ) -> Result<Option<MemoryView>> {
        let &[tokens, heads, value_length] = self.to.shape() else {
            return Ok(None);
        };
        let shape = [tokens, heads, splits, value_length + 2];
        match splits {
            1 => Ok(None),
            _ => program.reserve(real, &shape).map(Some),
        }
    }
}

/// Whether all elements of a cache's heads are read 16 bytes at a time.
pub(crate) fn has_chunks(view: &MemoryView, is_aligned: bool) -> bool {
    let width = 16 / view.dtype().bytes();
    view.has_vectors(is_aligned, 3) && view.shape()[3].is_multiple_of(width)
}

fn optional(step: NativeStep, view: Option<&MemoryView>) -> NativeStep {
    match view {
        Some(view) => step.address(view).u64(view.first_stride()),
        None => step.u64(0).u64(0),
    }
}

/// Adds attention of each token's queries to the keys of its sequence up to its position. A token
/// without keys has 0: one whose position is negative, or whose sequence the table does not have.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, [`KernelError::TooMany`].
pub fn attend(
    program: &mut NativeProgram,
    views: &AttentionViews,
    numbers: AttentionNumbers,
) -> Result<()> {
    views.check()?;
    if views.to.layout.is_empty() {
        return Ok(());
    }
    match numbers.is_rounded && views.is_tiled(program.is_aligned) {
        true => attend_tiles(program, views, numbers),
        false => attend_keys(program, views, numbers),
    }
}

/// Adds attention in which a thread computes the scores of a key.
fn attend_keys(
    program: &mut NativeProgram,
    views: &AttentionViews,
    numbers: AttentionNumbers,
) -> Result<()> {
    let AttentionViews { q, k, .. } = views;
    let (tokens, heads, length) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let shared = k.shape()[2];
    let real = match q.dtype() {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let per_key = heads / shared;
    let is_group = |size: &u64| {
        per_key.is_multiple_of(*size) && size * length * real.bytes() <= MOST_QUERY_BYTES
    };
    let group = (1..=MOST_HEADS).rev().find(is_group).unwrap_or(1);
    let groups = per_key / group;
    let blocks = tokens * shared * groups;
    let room = views.room();
    let splits = ENOUGH_BLOCKS
        .div_ceil(blocks)
        .clamp(1, room.div_ceil(LEAST_SPLIT).max(1));
    let per_split = room
        .div_ceil(splits)
        .checked_next_multiple_of(u64::from(THREADS))
        .unwrap_or(u64::MAX);
    let parts = views.parts(program, real, splits)?;
    let text = views
        .described(text())
        .with("GROUP", group)
        .with("WIDTH", views.width(program.is_aligned));
    let step = views
        .parameters(
            NativeStep::new(text, "attend"),
            parts.as_ref(),
            numbers,
            groups,
        )
        .u64(splits)
        .u64(per_split)
        .threads(THREADS)
        .overlapping()
        .blocks([blocks, splits, 1])?;
    program.push(step);
    combine(program, views, parts.as_ref(), splits)
}

/// Adds attention in which a warp multiplies tiles of 16 rows by keys and by values.
fn attend_tiles(
    program: &mut NativeProgram,
    views: &AttentionViews,
    numbers: AttentionNumbers,
) -> Result<()> {
    let AttentionViews { q, k, v, .. } = views;
    let (tokens, heads, length) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let (shared, value_length) = (k.shape()[2], v.shape()[3]);
    let per_key = heads / shared;
    let by_keys = numbers.run.saturating_mul(per_key) < ENOUGH_ROWS || tokens == 1;
    // A warp has 16 keys, or 16 rows.
    let (keys, threads) = match length + value_length <= WIDE_TILE {
        true if !by_keys && tokens * heads >= MANY_ROWS => (64, 256),
        true => (64, 128),
        false => (32, 64),
    };
    let most_rows = match by_keys {
        true => MOST_HEADS,
        false => u64::from(threads) / 2,
    };
    let is_group = |size: &u64| per_key.is_multiple_of(*size);
    let group = (1..=most_rows).rev().find(is_group).unwrap_or(1);
    let groups = per_key / group;
    let of_tile = match by_keys {
        true => 1,
        false => (most_rows / group).min(tokens),
    };
    let blocks = tokens.div_ceil(of_tile) * shared * groups;
    let enough = if by_keys {
        ENOUGH_TILES
    } else {
        MULTIPROCESSORS
    };
    let splits = enough
        .div_ceil(blocks)
        .clamp(1, views.room().div_ceil(keys).max(1));
    let parts = views.parts(program, Dtype::F32, splits)?;
    let source = include_str!("../cuda/flash_attention.cu");
    let text = views
        .described(KernelText::new("flash_attention.cu", source))
        .with("GROUP", group)
        .with("TOKENS", of_tile)
        .with("KEYS", keys)
        .with("THREADS", threads)
        .with(
            "IS_PLAIN",
            u8::from(numbers.limit == 0.0 && numbers.bias == 0.0),
        )
        .with("BY_KEYS", u32::from(by_keys));
    let step = views
        .parameters(
            NativeStep::new(text, "flash"),
            parts.as_ref(),
            numbers,
            groups,
        )
        .u64(splits)
        .threads(threads)
        .overlapping()
        .blocks([blocks, splits, 1])?;
    program.push(step);
    combine(program, views, parts.as_ref(), splits)
}

/// Adds the joining of splits.
fn combine(
    program: &mut NativeProgram,
    views: &AttentionViews,
    parts: Option<&MemoryView>,
    splits: u64,
) -> Result<()> {
    let Some(parts) = parts else {
        return Ok(());
    };
    let (q, to) = (&views.q, &views.to);
    let rows = q.shape()[0] * q.shape()[1];
    let text = text()
        .with_type("ELEMENT", q.dtype())
        .with("LENGTH", q.shape()[2])
        .with("VALUE_LENGTH", to.shape()[2])
        .with("MOST_SPLITS", splits)
        .with("THREADS_COMBINE", THREADS);
    let step = NativeStep::new(text, "combine").view(to).writes();
    let step = optional(step.address(parts), views.sinks.as_ref())
        .u64(splits)
        .u64(rows)
        .threads(THREADS)
        .overlapping()
        .blocks([rows.div_ceil(u64::from(THREADS / 32)), 1, 1])?;
    program.push(step);
    Ok(())
}
