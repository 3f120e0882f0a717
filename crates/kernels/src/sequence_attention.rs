//! Attention of whole sequences, of queries, keys and values beside each other in memory.
//!
//! `sequence_attention.cu` reads at indices below the extents of its views.
//! `warpgroup_attention.cu` reads and writes by tensor maps: boxes of the views that the maps are
//! made of, cut off at their extents.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{MapDimensions, MapParameter, NativeProgram, NativeStep};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Most elements of a head.
pub const MOST_SEQUENCE_HEAD: u64 = 1024;
/// Rows of a block of threads of the text for all floats.
const WARPS: u64 = 4;
/// Queries of a tile of the text for warpgroups.
const TILE_ROWS: u64 = 128;
/// Elements of a line of 128 bytes.
const LINE: u64 = 64;
/// Most elements of a head of that text, and most queries or keys.
const MOST_TILE_HEAD: u64 = 256;
const MOST_TILE_TOKENS: u64 = 1 << 30;
/// Bytes of keys and values that stay in the cache while all queries of their heads pass.
const SECTION_BYTES: u64 = 32 << 20;
/// Limit of a tensor map's strides, in bytes.
const MOST_STRIDE: u64 = 1 << 40;

/// A text that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SequenceKernel {
    /// Of all floats, by the arithmetic of threads.
    Threads,
    /// Of 16-bit floats, by warpgroups of sm_90a, where all lies at multiples of 16 bytes.
    Warpgroups,
}

/// Operands of attention of whole sequences, each `[batches, tokens, heads, length]`.
#[derive(Clone, Copy, Debug)]
pub struct SequenceViews {
    /// Queries.
    pub q: MemoryView,
    /// Keys, of as many heads or fewer, each for some neighbours of the queries'.
    pub k: MemoryView,
    /// Values, of the keys' heads.
    pub v: MemoryView,
    /// A score of each head of queries that has no value, f32.
    pub sinks: Option<MemoryView>,
    /// The result, of the queries' tokens and heads and the values' length.
    pub to: MemoryView,
}

/// Numbers of attention of whole sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceNumbers {
    /// Factor of scores.
    pub scale: f64,
    /// Scores are `limit * tanh(score / limit)`, if it is above 0.
    pub limit: f64,
    /// Number of last keys up to a query's place that it attends to; 0 for all.
    pub window: u64,
    /// Whether a query attends to no keys behind its place. The last query is at the last key's.
    pub is_causal: bool,
}

impl SequenceViews {
    fn check(&self) -> Result<()> {
        let Self { q, k, v, to, sinks } = self;
        let what = || {
            format!(
                "q {}, k {}, v {}, to {}",
                q.layout, k.layout, v.layout, to.layout
            )
        };
        let (&[batches, tokens, heads, length], &[_, keys, shared, _], &[.., value_length]) =
            (q.shape(), k.shape(), v.shape())
        else {
            return check(false, what);
        };
        let lengths = [length, value_length];
        let fits = k.shape() == [batches, keys, shared, length]
            && v.shape() == [batches, keys, shared, value_length]
            && to.shape() == [batches, tokens, heads, value_length]
            && [k, v, to].iter().all(|view| view.dtype() == q.dtype())
            && q.dtype().is_float()
            && lengths
                .iter()
                .all(|it| (1..=MOST_SEQUENCE_HEAD).contains(it))
            && shared > 0
            && heads.is_multiple_of(shared);
        check(fits, what)?;
        match sinks {
            Some(sinks) => sinks.check("the sinks", &[heads], Dtype::F32),
            None => Ok(()),
        }
    }
}

/// Adds attention of each head of queries to the keys of its sequence. A query without keys has 0.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, or of memory at multiples of 16 bytes
/// that no tensor map describes, for warpgroups; [`KernelError::TooMany`].
pub fn attend_sequences(
    program: &mut NativeProgram,
    kernel: SequenceKernel,
    views: &SequenceViews,
    numbers: SequenceNumbers,
) -> Result<()> {
    views.check()?;
    check(numbers.is_causal || numbers.window == 0, || {
        "a window without places of queries".to_owned()
    })?;
    if views.to.layout.is_empty() {
        return Ok(());
    }
    // Memory at any address has no tensor maps.
    let step = match kernel {
        SequenceKernel::Warpgroups if program.is_aligned => by_warpgroups(program, views, numbers)?,
        _ => by_threads(views, numbers)?,
    };
    program.push(step);
    Ok(())
}

fn by_threads(views: &SequenceViews, numbers: SequenceNumbers) -> Result<NativeStep> {
    let SequenceViews { q, k, v, to, .. } = views;
    let &[batches, tokens, heads, length] = q.shape() else {
        return Err(none());
    };
    let rows = batches.saturating_mul(tokens).saturating_mul(heads);
    let source = include_str!("../cuda/sequence_attention.cu");
    let text = KernelText::new("sequence_attention.cu", source)
        .with("ELEMENT", c_type(q.dtype()))
        .with("LENGTH", length)
        .with("VALUE_LENGTH", v.shape()[3])
        .with("IS_CAUSAL", u8::from(numbers.is_causal));
    let step = NativeStep::new(text, "sequence_attention")
        .view(to)
        .writes()
        .view(q)
        .view(k)
        .view(v);
    let step = match &views.sinks {
        Some(sinks) => step.address(sinks).u64(sinks.first_stride()),
        None => step.u64(0).u64(0),
    };
    step.f64(numbers.scale)
        .f64(numbers.limit)
        .u64(numbers.window)
        .u64(heads / k.shape()[2])
        .u64(rows)
        .threads(32 * WARPS as u32)
        .blocks([rows.div_ceil(WARPS), 1, 1])
}

fn none() -> KernelError {
    KernelError::Views {
        what: "attention of fewer dimensions".to_owned(),
    }
}

/// How a block keeps tiles of keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SequenceTile {
    keys: u64,
    stages: u64,
    /// Whether results leave through the queries' memory.
    is_in_queries: bool,
    shared_bytes: u64,
}

/// The largest tile of keys that fits registers and shared memory. Each thread has sums of a row of
/// values, and scores and weights of a row of keys.
fn tile_of(
    [length, value_length]: [u64; 2],
    keys: u64,
    is_causal: bool,
    most_shared_bytes: u64,
) -> Option<SequenceTile> {
    let is_long = keys >= 4096;
    let most = match (value_length, is_causal) {
        (64, _) if is_long => 192,
        (64, _) => 128,
        (128, false) if keys >= 2048 => 160,
        (128, true) if is_long => 160,
        (128, _) => 128,
        (192, _) => 96,
        _ => 80,
    };
    let stages = 2;
    let sizes = (1..=most / 16).rev().flat_map(|count| {
        let keys = 16 * count;
        [false, true].map(|is_in_queries| {
            let apart = if is_in_queries { 0 } else { value_length };
            let rows = TILE_ROWS * (length + apart) * 2;
            SequenceTile {
                keys,
                stages,
                is_in_queries,
                shared_bytes: rows + stages * keys * (length + value_length) * 2 + 1024,
            }
        })
    });
    let mut fitting = sizes.filter(|tile| {
        tile.shared_bytes <= most_shared_bytes && (!tile.is_in_queries || value_length <= length)
    });
    fitting.next()
}

/// The map of heads: elements, heads, tokens and batches.
fn map_of(view: &MemoryView, tokens: u64, is_written: bool) -> Result<MapParameter> {
    let (&[batches, all, heads, length], &[of_batch, of_token, of_head, near]) =
        (view.shape(), view.layout.strides())
    else {
        return Err(none());
    };
    check(near == 1 || length == 1, || {
        format!("no neighbours in memory along a head of {}", view.layout)
    })?;
    let is_at_multiple = view.offset_bytes % 16 == 0;
    let step = |extent: u64, stride: i64, least: u64| -> Result<u64> {
        let bytes = match extent {
            1 => least.next_multiple_of(16),
            _ => u64::try_from(stride).map_or(0, |stride| stride.saturating_mul(2)),
        };
        let fits = (16..MOST_STRIDE).contains(&bytes) && bytes % 16 == 0 && is_at_multiple;
        check(fits, || {
            format!("heads of {} are not at multiples of 16 bytes", view.layout)
        })?;
        Ok(bytes)
    };
    let line = length * 2;
    let strides = [
        2,
        step(heads, of_head, line)?,
        step(all, of_token, line)?,
        step(batches, of_batch, line)?,
    ];
    Ok(MapParameter {
        view: *view,
        is_written,
        dimensions: MapDimensions::Four(
            [length, heads, all, batches],
            strides,
            [LINE as u32, 1, tokens as u32, 1],
        ),
    })
}

fn by_warpgroups(
    program: &NativeProgram,
    views: &SequenceViews,
    numbers: SequenceNumbers,
) -> Result<NativeStep> {
    let SequenceViews { q, k, v, to, .. } = views;
    let &[batches, tokens, heads, own_length] = q.shape() else {
        return Err(none());
    };
    let (keys, shared) = (k.shape()[1], k.shape()[2]);
    // Boxes beyond a head's end are filled with zeros.
    let lengths = [own_length, v.shape()[3]].map(|it| it.next_multiple_of(LINE));
    let [length, value_length] = lengths;
    let is_narrow = matches!(q.dtype(), Dtype::F16 | Dtype::Bf16);
    check(is_narrow, || format!("warpgroups for {}", q.dtype()))?;
    check(lengths.iter().all(|it| *it <= MOST_TILE_HEAD), || {
        format!("heads of more than {MOST_TILE_HEAD} elements")
    })?;
    let count = [keys, tokens, heads.saturating_mul(batches), numbers.window];
    check(
        keys > 0 && count.iter().all(|it| *it <= MOST_TILE_TOKENS),
        || format!("{tokens} queries of {heads} heads in {batches} sequences of {keys} keys"),
    )?;
    // Its largest score is that of the largest product.
    check(numbers.scale > 0.0, || {
        format!("a scale of {}, it is for more than 0", numbers.scale)
    })?;
    let most = u64::from(program.most_shared_bytes);
    let tile = tile_of(lengths, keys, numbers.is_causal, most);
    let Some(tile) = tile else {
        return check(false, || "too little shared memory for a tile".to_owned()).and(Err(none()));
    };
    let group = heads / shared;
    let of_head = keys.saturating_mul(length + value_length).saturating_mul(2);
    let section = (SECTION_BYTES / of_head.max(1))
        .max(1)
        .saturating_mul(group);
    let section = section.min(heads * batches);
    let (down, all) = (tokens.div_ceil(TILE_ROWS), heads * batches);
    let tiles = down.saturating_mul(all);
    let most_tiles = u64::from(u32::MAX >> 2);
    if tiles > most_tiles {
        return Err(KernelError::TooMany {
            what: "tiles of queries",
            count: tiles,
            most: most_tiles,
        });
    }
    // With a causal mask tiles have few keys or many: pairs of both are alike, if there are enough
    // for all multiprocessors.
    let multiprocessors = u64::from(program.multiprocessors);
    let pair = match numbers.is_causal && tiles >= 2 * multiprocessors {
        true => 2,
        false => 1,
    };
    let units = down.div_ceil(pair) * all;
    let text = KernelText::new(
        "warpgroup_attention.cu",
        include_str!("../cuda/warpgroup_attention.cu"),
    )
    .specific()
    .with("ELEMENT", c_type(q.dtype()))
    .with("LENGTH", length)
    .with("VALUE_LENGTH", value_length)
    .with("KEYS", tile.keys)
    .with("STAGES", tile.stages)
    .with("IN_QUERIES", u8::from(tile.is_in_queries))
    .with("IS_CAUSAL", u8::from(numbers.is_causal))
    .with("HAS_WINDOW", u8::from(numbers.window > 0))
    .with("HAS_LIMIT", u8::from(numbers.limit > 0.0))
    .with("HAS_SINKS", u8::from(views.sinks.is_some()));
    let step = NativeStep::new(text, "warpgroup_attention")
        .threads(384)
        .map(map_of(q, TILE_ROWS, false)?)
        .map(map_of(k, tile.keys, false)?)
        .map(map_of(v, tile.keys, false)?)
        .map(map_of(to, TILE_ROWS / 2, true)?);
    let step = match &views.sinks {
        Some(sinks) => step.address(sinks).u64(sinks.first_stride()),
        None => step.u64(0).u64(0),
    };
    let mut step = step
        .f64(numbers.scale)
        .f64(numbers.limit)
        .u32(tokens as u32)
        .u32(keys as u32)
        .u32(heads as u32)
        .u32(group as u32)
        .u32(batches as u32)
        .u32(section as u32)
        .u32(numbers.window as u32)
        .u32(pair as u32)
        .blocks([units.min(multiprocessors), 1, 1])?;
    step.shared_bytes = tile.shared_bytes as u32;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_lengths_has_a_tile_on_an_h200() {
        for length in [64, 128, 192, 256] {
            for value_length in [64, 128, 192, 256] {
                for (keys, is_causal) in [(64, false), (64, true), (8192, false), (8192, true)] {
                    let tile = tile_of([length, value_length], keys, is_causal, 226 << 10);
                    let tile = tile.unwrap();
                    assert!(tile.keys >= 64, "{length} {value_length}: {tile:?}");
                    // Registers of sums, scores and weights.
                    let registers = value_length / 2 + tile.keys / 2 + tile.keys / 4;
                    assert!(registers <= 208, "{length} {value_length}: {tile:?}");
                }
            }
        }
        assert_eq!(tile_of([64, 64], 64, false, 16 << 10), None);
    }
}
