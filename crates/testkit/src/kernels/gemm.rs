//! `C = alpha A B + beta C` in `f32`, row-major, any extents.
//!
//! A block computes a tile of C; the tiles of A and B that it needs pass through shared
//! memory, double-buffered: while one pair is multiplied, the next is on its way in registers.
//! A is transposed on the way, so that each thread reads its rows and columns as vectors.
//! A warp's lanes stand 4 by 8 over its part of the tile.
//!
//! Every element is one chain of fused multiply-adds over k = 0, 1, 2, ..., so the error
//! bound of recursive summation applies, and both tiles give equal bits.

use super::{
    ArgDoc, F32, F32_PTR, KernelDesc, LaunchGeometry, MAX_X, ShapeError, U32, arg, at_most,
};
use fercuda_ptx::build::{
    Arch, BuildError, Global, KernelBuilder, ModuleBuilder, Pred, Ptr, PtrVar, Reg, RegVar, Shared,
};

/// Extents: A is m by k, B is k by n, C is m by n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmExtents {
    /// Rows of A and C.
    pub m: u64,
    /// Columns of B and C.
    pub n: u64,
    /// Columns of A, rows of B.
    pub k: u64,
}

/// How much of C a block computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tile {
    /// 64 by 64, 16 elements a thread: for small C, where blocks must be many.
    Small,
    /// 128 by 128, 64 elements a thread: for C of a thousand rows and columns and more.
    Large,
}

impl Tile {
    /// Rows and columns of the tile.
    const fn extent(self) -> u32 {
        match self {
            Tile::Small => 64,
            Tile::Large => 128,
        }
    }

    /// Rows and columns of a thread's part.
    const fn per_thread(self) -> u32 {
        match self {
            Tile::Small => 4,
            Tile::Large => 8,
        }
    }

    const fn entry(self) -> &'static str {
        match self {
            Tile::Small => "gemm_64x64",
            Tile::Large => "gemm_128x128",
        }
    }

    /// The one to take for `shape` on a device of `multiprocessors`.
    #[must_use]
    pub fn for_shape(shape: &GemmExtents, multiprocessors: u32) -> Tile {
        let large = Tile::Large.extent().into();
        let blocks = shape
            .m
            .div_ceil(large)
            .saturating_mul(shape.n.div_ceil(large));
        if blocks >= u64::from(multiprocessors) {
            Tile::Large
        } else {
            Tile::Small
        }
    }
}

const ARGS: &[ArgDoc] = &[
    arg("a", F32_PTR, "[m, k] with rows lda apart"),
    arg("b", F32_PTR, "[k, n] with rows ldb apart"),
    arg(
        "c",
        F32_PTR,
        "[m, n] with rows ldc apart; overlaps neither a nor b",
    ),
    arg("m", U32, "rows of a and c"),
    arg("n", U32, "columns of b and c"),
    arg("k", U32, "columns of a, rows of b"),
    arg("lda", U32, "elements from row to row of a, at least k"),
    arg("ldb", U32, "elements from row to row of b, at least n"),
    arg("ldc", U32, "elements from row to row of c, at least n"),
    arg("alpha", F32, "factor of the product"),
    arg("beta", F32, "factor of the old c; where 0, c is not read"),
];

/// Threads a block; both tiles divide among as many.
const THREADS: u32 = 256;
/// Depth of a pair of tiles.
const DEPTH: u32 = 16;
/// Elements of a vector access.
const VEC: u32 = 4;
/// Lanes of a warp down the rows and along the columns.
const LANES: (u32, u32) = (4, 8);

/// `c = alpha * a * b + beta * c`.
///
/// Vector accesses are used where pointers and row distances are multiples of 16 bytes.
///
/// # Errors
/// None for architectures that exist.
pub fn f32(arch: Arch, tile: Tile) -> Result<KernelDesc<GemmExtents>, BuildError> {
    let mut module = ModuleBuilder::new(arch);
    module.kernel(tile.entry(), |k| write(k, tile));
    Ok(KernelDesc {
        module: module.finish()?,
        entry: tile.entry().into(),
        args: ARGS,
        geometry: Box::new(move |s| launch(s, tile)),
    })
}

fn launch(s: &GemmExtents, tile: Tile) -> Result<LaunchGeometry, ShapeError> {
    // Less a tile, so that the row or column after the last one does not wrap.
    let limit = MAX_X - 128;
    let m = at_most("gemm", "m", s.m, limit)?;
    let n = at_most(
        "gemm",
        "n",
        s.n,
        limit.min(65_535 * u64::from(tile.extent())),
    )?;
    at_most("gemm", "k", s.k, limit)?;
    let grid = [m.div_ceil(tile.extent()), n.div_ceil(tile.extent()), 1];
    Ok(LaunchGeometry {
        grid,
        block: [THREADS, 1, 1],
        dynamic_shared_bytes: 0,
    })
}

/// One thread's part of a tile of A or B in transit from global to shared memory.
struct TileInFlight<'k> {
    /// Where this thread's first vector begins; moves along k.
    source: PtrVar<'k, Global, f32>,
    /// Elements from one of this thread's vectors to the next: a number of rows.
    rows_apart: u32,
    row_stride: Reg<'k, u32>,
    /// Row of the first vector, relative to the matrix, and how many rows there are; for B
    /// rows are along k and change as `source` moves.
    row: Reg<'k, u32>,
    col: Reg<'k, u32>,
    values: Vec<[RegVar<'k, f32>; VEC as usize]>,
}

impl<'k> TileInFlight<'k> {
    fn vector(&self, i: usize) -> Ptr<'k, Global, f32> {
        if i == 0 {
            return *self.source;
        }
        let rows = self.row_stride * (self.rows_apart * i as u32);
        self.source.index(rows)
    }

    /// Takes the tile, four at a time.
    fn take_vectors(&self) {
        for (i, values) in self.values.iter().enumerate() {
            let loaded = self.vector(i).load_vec_readonly::<4>();
            values.iter().zip(loaded).for_each(|(v, l)| v.set(l));
        }
    }

    /// Takes what is inside of `rows` by `cols`, zeros elsewhere.
    fn take_checked(
        &self,
        row: Reg<'k, u32>,
        col: Reg<'k, u32>,
        rows: Reg<'k, u32>,
        cols: Reg<'k, u32>,
    ) {
        for (i, values) in self.values.iter().enumerate() {
            let here = self.vector(i);
            let row_inside = (row + self.rows_apart * i as u32).lt(rows);
            for (j, value) in values.iter().enumerate() {
                let inside = row_inside & (col + j as u32).lt(cols);
                value.set(here.offset(j as i64).load_if(inside, 0.0));
            }
        }
    }
}

fn write<'k>(k: &'k KernelBuilder, tile: Tile) {
    k.max_threads(THREADS);
    k.min_blocks(2);
    let a = k.param_ptr::<f32>("a");
    let b = k.param_ptr::<f32>("b");
    let c = k.param_ptr::<f32>("c");
    let m = k.param::<u32>("m");
    let n = k.param::<u32>("n");
    let depth = k.param::<u32>("k");
    let lda = k.param::<u32>("lda");
    let ldb = k.param::<u32>("ldb");
    let ldc = k.param::<u32>("ldc");
    let alpha = k.param::<f32>("alpha");
    let beta = k.param::<f32>("beta");

    let extent = tile.extent();
    let own = tile.per_thread();
    // Rows of the transposed A are padded by a vector, against bank conflicts.
    let a_pitch = extent + VEC;
    let (a_len, b_len) = (DEPTH * a_pitch, DEPTH * extent);
    let a_tiles = k.shared::<f32>("a_tiles", 2 * a_len);
    let b_tiles = k.shared::<f32>("b_tiles", 2 * b_len);

    let tid = k.tid_x();
    let row0 = (k.ctaid_x() * extent).named("row0");
    let col0 = (k.ctaid_y() * extent).named("col0");

    // What this thread carries: of A, vectors along k; of B, vectors along n.
    let vectors = (extent * DEPTH / VEC / THREADS) as usize;
    let a_vectors = DEPTH / VEC;
    let b_vectors = extent / VEC;
    let carrier =
        |name: &str, p: Ptr<'k, Global, f32>, row: Reg<'k, u32>, col, stride, rows_apart| {
            let start = p.index(row.mul_wide(stride)).index(col);
            let value = |i, j| k.var(format!("{name}_next_{i}_{j}"), 0.0);
            TileInFlight {
                source: start.var(format!("{name}_source")),
                rows_apart,
                row_stride: stride,
                row,
                col,
                values: (0..vectors)
                    .map(|i| std::array::from_fn(|j| value(i, j)))
                    .collect(),
            }
        };
    let a_in_row = (tid / a_vectors).named("a_in_row");
    let a_in_col = ((tid % a_vectors) * VEC).named("a_in_col");
    let b_in_row = (tid / b_vectors).named("b_in_row");
    let b_in_col = ((tid % b_vectors) * VEC).named("b_in_col");
    let a_in = carrier("a", a, row0 + a_in_row, a_in_col, lda, THREADS / a_vectors);
    let b_in = carrier("b", b, b_in_row, col0 + b_in_col, ldb, THREADS / b_vectors);

    // Where it puts them, and where its rows and columns begin.
    let (warp, lane) = (tid >> 5, tid & 31);
    let warps_along = extent / (LANES.1 * own);
    let my_row = ((warp / warps_along) * (LANES.0 * own) + (lane / LANES.1) * VEC).named("my_row");
    let my_col = ((warp % warps_along) * (LANES.1 * own) + (lane % LANES.1) * VEC).named("my_col");
    let a_put = a_tiles.index(a_in_col * a_pitch + a_in_row).named("a_put");
    let b_put = b_tiles.index(b_in_row * extent + b_in_col).named("b_put");
    let a_get = a_tiles.index(my_row).named("a_get");
    let b_get = b_tiles.index(my_col).named("b_get");

    let acc: Vec<Vec<RegVar<'_, f32>>> = (0..own)
        .map(|i| {
            (0..own)
                .map(|j| k.var(format!("acc_{i}_{j}"), 0.0))
                .collect()
        })
        .collect();

    let rows_full = (row0 + extent).le(m);
    let cols_full = (col0 + extent).le(n);
    let aligned = test_alignment(a, lda) & test_alignment(b, ldb);
    let vectors_ok = (rows_full & cols_full & aligned).named("vectors_ok");

    let take = |at: Reg<'_, u32>| {
        let full = (vectors_ok & (at + DEPTH).le(depth)).named("full");
        k.if_else(
            full,
            || {
                a_in.take_vectors();
                b_in.take_vectors();
            },
            || {
                a_in.take_checked(a_in.row, at + a_in.col, m, depth);
                b_in.take_checked(at + b_in.row, b_in.col, depth, n);
            },
        );
        a_in.source.advance(DEPTH);
        b_in.source.advance(ldb * DEPTH);
    };
    let put = |buffer: Reg<'_, u32>| {
        let a_put = a_put.index(buffer * a_len);
        let b_put = b_put.index(buffer * b_len);
        for (i, values) in a_in.values.iter().enumerate() {
            let row = i as i64 * i64::from(a_in.rows_apart);
            for (j, value) in values.iter().enumerate() {
                a_put
                    .offset(j as i64 * i64::from(a_pitch) + row)
                    .store(*value);
            }
        }
        for (i, values) in b_in.values.iter().enumerate() {
            let row = i as i64 * i64::from(b_in.rows_apart);
            b_put
                .offset(row * i64::from(extent))
                .store_vec(values.map(|v| *v));
        }
    };

    k.if_(depth.differs(0).named("any_depth"), || {
        let zero = k.value::<u32>(0);
        take(zero);
        put(zero);
        k.barrier();
        let buffer = k.var("buffer", 0);
        k.for_range("at", 0, depth, DEPTH, |at| {
            let next = (at + DEPTH).named("next");
            let more = next.lt(depth).named("more");
            k.if_(more, || take(next));
            multiply(
                tile,
                a_get.index(*buffer * a_len),
                b_get.index(*buffer * b_len),
                &acc,
            );
            buffer.set(buffer ^ 1);
            k.if_(more, || put(*buffer));
            k.barrier();
        });
    });

    finish(
        k,
        tile,
        &acc,
        c,
        TileOutput {
            row: row0 + my_row,
            col: col0 + my_col,
            m,
            n,
            ldc,
            alpha,
            beta,
        },
    );
}

/// Whether each row of a matrix begins at a multiple of 16 bytes.
fn test_alignment<'k>(p: Ptr<'k, Global, f32>, stride: Reg<'k, u32>) -> Pred<'k> {
    (p.address() & 15).equals(0) & (stride & 3).equals(0)
}

/// Adds the product of a pair of tiles to `acc`.
fn multiply<'k>(
    tile: Tile,
    a: Ptr<'k, Shared, f32>,
    b: Ptr<'k, Shared, f32>,
    acc: &[Vec<RegVar<'k, f32>>],
) {
    let extent = tile.extent();
    let groups = tile.per_thread() / VEC;
    let fragment = |p: Ptr<'k, Shared, f32>, step: u32| -> Vec<Reg<'k, f32>> {
        (0..groups)
            .flat_map(|g| p.offset(i64::from(g * step)).load_vec::<4>())
            .collect()
    };
    for d in 0..DEPTH {
        let rows = fragment(a.offset(i64::from(d * (extent + VEC))), LANES.0 * VEC);
        let cols = fragment(b.offset(i64::from(d * extent)), LANES.1 * VEC);
        for (acc, &row) in acc.iter().zip(&rows) {
            for (acc, &col) in acc.iter().zip(&cols) {
                acc.accumulate(row, col);
            }
        }
    }
}

/// The destination of a thread's elements.
struct TileOutput<'k> {
    row: Reg<'k, u32>,
    col: Reg<'k, u32>,
    m: Reg<'k, u32>,
    n: Reg<'k, u32>,
    ldc: Reg<'k, u32>,
    alpha: Reg<'k, f32>,
    beta: Reg<'k, f32>,
}

fn finish<'k>(
    k: &'k KernelBuilder,
    tile: Tile,
    acc: &[Vec<RegVar<'k, f32>>],
    c: Ptr<'k, Global, f32>,
    o: TileOutput<'k>,
) {
    let own = tile.per_thread();
    let reads_c = o.beta.differs(0.0).named("reads_c");
    let vectors = (test_alignment(c, o.ldc) & (o.n & 3).equals(0)).named("c_vectors");
    // Row i of a thread: four in a row, then the next group of its warp.
    let place = |i: u32, lanes: u32| (i / VEC) * lanes * VEC + i % VEC;
    for i in 0..own {
        let row = o.row + place(i, LANES.0);
        let row_inside = row.lt(o.m).named(format!("row_{i}_inside"));
        k.if_(row_inside, || {
            let c = c.index(row.mul_wide(o.ldc)).index(o.col);
            for g in 0..own / VEC {
                let first = place(g * VEC, LANES.1);
                let col = o.col + first;
                let c = c.offset(i64::from(first));
                let acc: Vec<_> = (0..VEC)
                    .map(|j| acc[i as usize][(g * VEC + j) as usize])
                    .collect();
                let inside: Vec<_> = (0..VEC).map(|j| (col + j).lt(o.n)).collect();
                acc.iter().for_each(|acc| acc.set(*acc * o.alpha));
                k.if_(reads_c, || {
                    for (j, (acc, &inside)) in acc.iter().zip(&inside).enumerate() {
                        let old = c.offset(j as i64).load_if(inside, 0.0);
                        acc.set(old.mul_add(o.beta, *acc));
                    }
                });
                // With n a multiple of 4 a vector is inside as a whole or not at all.
                let values: [Reg<'_, f32>; 4] = [*acc[0], *acc[1], *acc[2], *acc[3]];
                k.if_else(
                    vectors,
                    || k.if_(inside[0], || c.store_vec(values)),
                    || {
                        for (j, (&value, &inside)) in values.iter().zip(&inside).enumerate() {
                            c.offset(j as i64).store_if(inside, value);
                        }
                    },
                );
            }
        });
    }
}
