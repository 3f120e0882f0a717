//! Fused attention in `f32` that never materialises the matrix of scores.
//!
//! A block takes 64 queries of one head and runs over keys and values in tiles, keeping for
//! each query the maximum score so far, the sum of exponentials and the weighted values,
//! rescaled when the maximum grows (Dao et al., "FlashAttention", 2022; Rabe and Staats,
//! "Self-attention does not need O(n^2) memory", 2021). Exponentials are base 2, with the
//! factor log2(e) folded into the scale of the queries.
//!
//! Sixteen rows of eight threads share a block: the eight of a row hold the scores and outputs
//! of the same four queries, so maxima and sums need shuffles only.

use super::{
    ArgDoc, F32, F32_PTR_16, KernelDesc, LaunchGeometry, MAX_X, S32, ShapeError, U32, arg, at_most,
};
use fercuda_ptx::build::{
    Arch, BuildError, Global, KernelBuilder, ModuleBuilder, Ptr, Reg, RegVar, Shared,
};

/// Length of a head's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadDim {
    /// 32 elements.
    D32,
    /// 64 elements.
    D64,
    /// 128 elements.
    D128,
}

impl HeadDim {
    /// As a number.
    #[must_use]
    pub const fn elements(self) -> u32 {
        match self {
            HeadDim::D32 => 32,
            HeadDim::D64 => 64,
            HeadDim::D128 => 128,
        }
    }

    const fn entry(self) -> &'static str {
        match self {
            HeadDim::D32 => "attention_d32",
            HeadDim::D64 => "attention_d64",
            HeadDim::D128 => "attention_d128",
        }
    }

    /// Keys of a tile.
    const fn keys(self) -> u32 {
        match self {
            HeadDim::D32 | HeadDim::D64 => 64,
            HeadDim::D128 => 32,
        }
    }
}

/// Extents of the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionExtents {
    /// Batch times query heads.
    pub heads: u64,
    /// Queries of a head.
    pub q_len: u64,
    /// Keys, and values, of a head.
    pub kv_len: u64,
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// All.
    None,
    /// Query i sees keys 0 to i.
    CausalFromStart,
    /// The last query sees all keys, the one before all but the last, and so on: queries are
    /// the end of the sequence, as in decoding with a cache.
    CausalToEnd,
}

impl AttentionExtents {
    /// The argument `visible` for this mask.
    #[must_use]
    pub fn visible(&self, mask: Mask) -> i64 {
        let (q, kv) = (self.q_len.cast_signed(), self.kv_len.cast_signed());
        match mask {
            Mask::None => kv,
            Mask::CausalFromStart => 1,
            Mask::CausalToEnd => kv - q + 1,
        }
    }
}

const ARGS: &[ArgDoc] = &[
    arg(
        "q",
        F32_PTR_16,
        "[heads, q_len, d], contiguous, aligned to 16",
    ),
    arg(
        "keys",
        F32_PTR_16,
        "[heads / group, kv_len, d], contiguous, aligned to 16",
    ),
    arg(
        "values",
        F32_PTR_16,
        "[heads / group, kv_len, d], contiguous, aligned to 16",
    ),
    arg(
        "out",
        F32_PTR_16,
        "[heads, q_len, d], contiguous, aligned to 16; overlaps no input",
    ),
    arg("heads", U32, "batch times query heads"),
    arg("q_len", U32, "queries a head"),
    arg("kv_len", U32, "keys a head"),
    arg(
        "group",
        U32,
        "neighbouring query heads that share keys and values; 1 if none do",
    ),
    arg(
        "visible",
        S32,
        "query i sees keys 0 .. i + visible; see AttentionExtents::visible",
    ),
    arg("scale", F32, "factor of the scores, usually 1 / sqrt(d)"),
];

/// Queries of a block.
const QUERIES: u32 = 64;
const THREADS: u32 = 128;
/// Threads that share a query.
const ACROSS: u32 = 8;
/// Rows of threads: the queries of a thread are this far apart.
const DOWN: u32 = THREADS / ACROSS;
/// Queries of a thread.
const OWN: u32 = QUERIES / DOWN;
/// Elements of a vector access.
const VEC: u32 = 4;

/// Places in shared memory, in elements. Rows read by several lanes at once are padded by a
/// vector, so that they fall into different banks.
struct SharedLayout {
    d: u32,
    keys: u32,
}

impl SharedLayout {
    const fn row_pitch(&self) -> u32 {
        self.d + VEC
    }
    const fn weight_pitch(&self) -> u32 {
        self.keys + VEC
    }
    const fn keys_at(&self) -> u32 {
        QUERIES * self.row_pitch()
    }
    const fn values_at(&self) -> u32 {
        self.keys_at() + self.keys * self.row_pitch()
    }
    const fn weights_at(&self) -> u32 {
        self.values_at() + self.keys * self.d
    }
    const fn bytes(&self) -> u32 {
        (self.weights_at() + QUERIES * self.weight_pitch()) * 4
    }
}

/// `out = softmax(scale * q k^T, masked) v` for each head.
///
/// A query without a visible key results in zeros.
///
/// # Errors
/// [`BuildError::NeedsArch`] before sm_80.
pub fn f32(arch: Arch, head_dim: HeadDim) -> Result<KernelDesc<AttentionExtents>, BuildError> {
    let layout = SharedLayout {
        d: head_dim.elements(),
        keys: head_dim.keys(),
    };
    let bytes = layout.bytes();
    let mut module = ModuleBuilder::new(arch);
    module.kernel(head_dim.entry(), |k| write(k, &layout));
    Ok(KernelDesc {
        module: module.finish()?,
        entry: head_dim.entry().into(),
        args: ARGS,
        geometry: Box::new(move |s| launch(s, bytes)),
    })
}

fn launch(s: &AttentionExtents, dynamic_shared_bytes: u32) -> Result<LaunchGeometry, ShapeError> {
    // Positions are signed in the kernel, and a sum of two must fit.
    let limit = MAX_X / 2 - u64::from(QUERIES);
    let q_len = at_most("attention", "q_len", s.q_len, limit)?;
    at_most("attention", "kv_len", s.kv_len, limit)?;
    let blocks = u64::from(q_len.div_ceil(QUERIES)).saturating_mul(s.heads);
    let blocks = at_most(
        "attention",
        "blocks of 64 queries over all heads",
        blocks,
        MAX_X,
    )?;
    Ok(LaunchGeometry {
        grid: [blocks, 1, 1],
        block: [THREADS, 1, 1],
        dynamic_shared_bytes,
    })
}

fn write(k: &KernelBuilder, layout: &SharedLayout) {
    k.max_threads(THREADS);
    let q = k.param_ptr_aligned::<f32>("q", 16);
    let keys = k.param_ptr_aligned::<f32>("keys", 16);
    let values = k.param_ptr_aligned::<f32>("values", 16);
    let out = k.param_ptr_aligned::<f32>("out", 16);
    let heads = k.param::<u32>("heads");
    let q_len = k.param::<u32>("q_len");
    let kv_len = k.param::<u32>("kv_len");
    let group = k.param::<u32>("group");
    let visible = k.param::<i32>("visible");
    let scale = k.param::<f32>("scale");
    let shared = k.dynamic_shared::<f32>("tiles");

    let (d, tile_keys) = (layout.d, layout.keys);
    let tid = k.tid_x();
    let across = (tid % ACROSS).named("across");
    let down = (tid / ACROSS).named("down");

    // Late queries see most keys under a causal mask, so their blocks come first.
    let block = k.ctaid_x();
    let head = (block % heads).named("head");
    let tiles = k.nctaid_x() / heads;
    let q0 = ((tiles - 1 - block / heads) * QUERIES).named("q0");
    let q_rows = q.index(head.mul_wide(q_len) * u64::from(d)).named("q_rows");
    let out_rows = out
        .index(head.mul_wide(q_len) * u64::from(d))
        .named("out_rows");
    let kv_head = head / group;
    let key_rows = keys
        .index(kv_head.mul_wide(kv_len) * u64::from(d))
        .named("key_rows");
    let value_rows = values
        .index(kv_head.mul_wide(kv_len) * u64::from(d))
        .named("value_rows");

    let q_factor = scale * std::f32::consts::LOG2_E;
    let q_tile = SharedTile {
        rows: QUERIES,
        d,
        pitch: layout.row_pitch(),
        at: shared,
    };
    let key_tile = SharedTile {
        rows: tile_keys,
        d,
        pitch: layout.row_pitch(),
        at: shared.offset(layout.keys_at().into()),
    };
    let value_tile = SharedTile {
        rows: tile_keys,
        d,
        pitch: d,
        at: shared.offset(layout.values_at().into()),
    };
    q_tile.fill(k, q_rows, q0, q_len, q_factor);

    let weights = shared.offset(layout.weights_at().into());
    let my_weights = weights
        .index(down * layout.weight_pitch())
        .named("my_weights");
    let my_queries = q_tile.at.index(down * q_tile.pitch).named("my_queries");
    let my_keys = key_tile.at.index(across * key_tile.pitch).named("my_keys");
    let my_values = value_tile.at.index(across * VEC).named("my_values");

    let max: Vec<_> = (0..OWN)
        .map(|r| k.var(format!("max_{r}"), f32::NEG_INFINITY))
        .collect();
    let sum: Vec<_> = (0..OWN).map(|r| k.var(format!("sum_{r}"), 0.0)).collect();
    let output: Vec<Vec<RegVar<'_, f32>>> = (0..OWN)
        .map(|r| {
            (0..d / ACROSS)
                .map(|c| k.var(format!("out_{r}_{c}"), 0.0))
                .collect()
        })
        .collect();
    let scores: Vec<Vec<RegVar<'_, f32>>> = (0..OWN)
        .map(|r| {
            (0..tile_keys / ACROSS)
                .map(|c| k.var(format!("score_{r}_{c}"), 0.0))
                .collect()
        })
        .collect();

    // Keys beyond what the block's last query sees are not even read.
    let first_query = q0.to::<i32>();
    let seen_by_last = (first_query + visible + (QUERIES as i32 - 1))
        .max(0)
        .to::<u32>();
    let kv_end = kv_len.min(seen_by_last).named("kv_end");

    // Copies run beside arithmetic: values arrive while scores are computed, the next keys
    // while weights and outputs are.
    key_tile.copy(k, key_rows, k.value(0), kv_len);
    k.copy_commit();
    k.for_range("kv0", 0, kv_end, tile_keys, |kv0| {
        // The keys have arrived, and no thread reads the last values any more.
        k.copy_wait(0);
        k.barrier();
        value_tile.copy(k, value_rows, kv0, kv_len);
        k.copy_commit();

        scores.iter().flatten().for_each(|s| s.set(0.0));
        k.for_range("dim", 0, d, 16, |dim| {
            let (my_queries, my_keys) = (my_queries.index(dim), my_keys.index(dim));
            for step in 0..4 {
                let rows: Vec<[Reg<'_, f32>; 4]> = (0..OWN)
                    .map(|r| {
                        my_queries
                            .offset(i64::from(r * DOWN * q_tile.pitch + step * VEC))
                            .load_vec()
                    })
                    .collect();
                for c in 0..tile_keys / ACROSS {
                    let key = my_keys
                        .offset(i64::from(c * ACROSS * key_tile.pitch + step * VEC))
                        .load_vec::<4>();
                    for (row, scores) in rows.iter().zip(&scores) {
                        for (&q, key) in row.iter().zip(key) {
                            scores[c as usize].accumulate(q, key);
                        }
                    }
                }
            }
        });

        // The values have arrived, and no thread reads these keys any more.
        k.copy_wait(0);
        k.barrier();
        key_tile.copy(k, key_rows, kv0 + tile_keys, kv_len);
        k.copy_commit();

        // Only the last tiles hold keys that some query of the block may not see.
        let tile_end = (kv0 + tile_keys).named("tile_end");
        let seen_by_all = tile_end.to::<i32>().le(first_query + visible);
        let masked = (!(seen_by_all & tile_end.le(kv_len))).named("masked");
        k.if_(masked, || {
            for (r, scores) in scores.iter().enumerate() {
                let query = first_query + down.to::<i32>() + (r as u32 * DOWN) as i32;
                let end = (query + visible).min(kv_len.to::<i32>());
                for (c, score) in scores.iter().enumerate() {
                    let key = (kv0 + across).to::<i32>() + (c as u32 * ACROSS) as i32;
                    score.set(key.lt(end).select(*score, f32::NEG_INFINITY));
                }
            }
        });

        for r in 0..OWN as usize {
            let row = &scores[r];
            let tile_max = row.iter().fold(*max[r], |m, s| m.max(*s));
            let new_max = k
                .group_reduce(ACROSS, tile_max, |a, b| a.max(b))
                .named("new_max");
            // While nothing was seen the maximum is -inf, and -inf - -inf would be NaN.
            let shift = new_max
                .equals(f32::NEG_INFINITY)
                .select(0.0, new_max)
                .named("shift");
            let rescale = (max[r] - shift).exp2_approx().named("rescale");
            max[r].set(new_max);
            sum[r].set(sum[r] * rescale);
            for (c, score) in row.iter().enumerate() {
                let weight = (*score - shift).exp2_approx();
                sum[r].set(sum[r] + weight);
                let at = r as u32 * DOWN * layout.weight_pitch() + c as u32 * ACROSS;
                my_weights.index(across).offset(at.into()).store(weight);
            }
            output[r].iter().for_each(|o| o.set(*o * rescale));
        }
        // The weights of a query are written and read by the same warp.
        k.warp_barrier(fercuda_ptx::build::FULL_MASK);

        k.for_range("key", 0, tile_keys, VEC, |key| {
            let my_weights = my_weights.index(key);
            let my_values = my_values.index(key * d);
            let weights: Vec<[Reg<'_, f32>; 4]> = (0..OWN)
                .map(|r| {
                    my_weights
                        .offset(i64::from(r * DOWN * layout.weight_pitch()))
                        .load_vec()
                })
                .collect();
            for step in 0..VEC {
                for part in 0..d / (ACROSS * VEC) {
                    let value = my_values
                        .offset(i64::from(step * d + part * ACROSS * VEC))
                        .load_vec::<4>();
                    for (weights, output) in weights.iter().zip(&output) {
                        for (j, value) in value.into_iter().enumerate() {
                            output[(part * VEC) as usize + j]
                                .accumulate(weights[step as usize], value);
                        }
                    }
                }
            }
        });
    });

    k.copy_wait(0);

    for r in 0..OWN as usize {
        let total = k.group_reduce(ACROSS, *sum[r], |a, b| a + b);
        let inverse = total
            .equals(0.0)
            .select(0.0, total.recip())
            .named("inverse");
        let row = q0 + down + r as u32 * DOWN;
        let inside = row.lt(q_len).named(format!("row_{r}_inside"));
        k.if_(inside, || {
            let out = out_rows.index(row.mul_wide(d)).index(across * VEC);
            for part in 0..d / (ACROSS * VEC) {
                let value = |j: u32| output[r][(part * VEC + j) as usize] * inverse;
                out.offset(i64::from(part * ACROSS * VEC)).store_vec([
                    value(0),
                    value(1),
                    value(2),
                    value(3),
                ]);
            }
        });
    }
}

/// Rows of `d` elements in shared memory.
struct SharedTile<'k> {
    rows: u32,
    d: u32,
    pitch: u32,
    at: Ptr<'k, Shared, f32>,
}

impl<'k> SharedTile<'k> {
    /// Rows of one pass of the block, and the row and column where this thread begins.
    fn divide(&self, k: &'k KernelBuilder) -> (u32, Reg<'k, u32>, Reg<'k, u32>) {
        let vectors = self.d / VEC;
        (
            THREADS / vectors,
            k.tid_x() / vectors,
            (k.tid_x() % vectors) * VEC,
        )
    }

    /// Fills it with rows `first ..` of `source`, which has `len`, times `factor`; rows beyond
    /// are zeros.
    fn fill(
        &self,
        k: &'k KernelBuilder,
        source: Ptr<'k, Global, f32>,
        first: Reg<'k, u32>,
        len: Reg<'k, u32>,
        factor: Reg<'k, f32>,
    ) {
        let (step, row, col) = self.divide(k);
        k.for_range("fill_row", row, self.rows, step, |row| {
            let from = first + row;
            let values: [RegVar<'k, f32>; 4] = std::array::from_fn(|_| k.var("fill", 0.0));
            k.if_(from.lt(len), || {
                let loaded = source
                    .index(from.mul_wide(self.d))
                    .index(col)
                    .load_vec_readonly::<4>();
                values
                    .iter()
                    .zip(loaded)
                    .for_each(|(v, l)| v.set(l * factor));
            });
            self.at
                .index(row * self.pitch + col)
                .store_vec(values.map(|v| *v));
        });
    }

    /// Begins to copy rows `first ..` of `source`, which has `len`; rows beyond are zeros.
    fn copy(
        &self,
        k: &'k KernelBuilder,
        source: Ptr<'k, Global, f32>,
        first: Reg<'k, u32>,
        len: Reg<'k, u32>,
    ) {
        let (step, row, col) = self.divide(k);
        let from = source.index((first + row).mul_wide(self.d)).index(col);
        let to = self.at.index(row * self.pitch + col);
        for pass in 0..self.rows / step {
            let rows = pass * step;
            let inside = (first + row + rows).lt(len);
            to.offset(i64::from(rows * self.pitch))
                .copy_16_from_or_zero(from.offset(i64::from(rows * self.d)), inside);
        }
    }
}
