//! Kernels that reduce rows.
//!
//! A team of threads reduces a row: neighbouring lanes, a block, or a column of a block. The row is
//! read once for each pass of reductions, and once more to write; a short row is kept in registers
//! meanwhile. A thread accumulates its elements in order; then lanes are combined in pairs, and
//! warps. So a result depends on the length of the row alone.
//!
//! Invariant: every thread reaches every shuffle and barrier. A thread without a row computes the
//! last one, and writes nothing; positions beyond a row's end repeat its last elements, and do not
//! contribute.

use std::cell::RefCell;

use fercuda_ptx::build::{KernelBuilder, Pred, Ptr, Reg, RegVar, Shared};
use fercuda_tensor::Dtype;

use super::elements::{
    IndexType, applied, indices, load_at, of_each, offset, parameters, store_at,
};
use super::exchange::{get, put};
use super::value::{self, DynValue};
use crate::expr::arity;
use crate::kernel::{FusedKernel, KernelAccess, KernelKind, KernelStep, THREADS, Team};
use crate::op::{Binary, Reduction};

/// A partial result; with the index, for arg-reductions.
#[derive(Clone, Copy)]
struct Partial<'k> {
    value: DynValue<'k>,
    place: Option<DynValue<'k>>,
}

/// A [`Partial`] that is updated in a loop.
struct RunningPartial<'k> {
    value: ValueVariable<'k>,
    place: Option<ValueVariable<'k>>,
}

/// A mutable [`DynValue`].
#[derive(Clone, Copy)]
enum ValueVariable<'k> {
    F64(RegVar<'k, f64>),
    F32(RegVar<'k, f32>),
    I32(RegVar<'k, i32>),
    U32(RegVar<'k, u32>),
    I64(RegVar<'k, i64>),
    U64(RegVar<'k, u64>),
}

impl<'k> ValueVariable<'k> {
    fn new(k: &'k KernelBuilder, name: &str, value: DynValue<'k>) -> Self {
        match value {
            DynValue::F64(x) => Self::F64(k.var(name, x)),
            DynValue::F32(x) => Self::F32(k.var(name, x)),
            DynValue::I32(x) => Self::I32(k.var(name, x)),
            DynValue::U32(x) => Self::U32(k.var(name, x)),
            DynValue::I64(x) => Self::I64(k.var(name, x)),
            DynValue::U64(x) => Self::U64(k.var(name, x)),
            // No reduction is over predicates.
            DynValue::Bool(x) => Self::U32(k.var(name, x.select(k.value(1u32), 0u32))),
        }
    }

    fn get(self) -> DynValue<'k> {
        match self {
            Self::F64(x) => DynValue::F64(*x),
            Self::F32(x) => DynValue::F32(*x),
            Self::I32(x) => DynValue::I32(*x),
            Self::U32(x) => DynValue::U32(*x),
            Self::I64(x) => DynValue::I64(*x),
            Self::U64(x) => DynValue::U64(*x),
        }
    }

    fn set(self, value: DynValue<'k>) {
        match (self, value) {
            (Self::F64(to), DynValue::F64(x)) => to.set(x),
            (Self::F32(to), DynValue::F32(x)) => to.set(x),
            (Self::I32(to), DynValue::I32(x)) => to.set(x),
            (Self::U32(to), DynValue::U32(x)) => to.set(x),
            (Self::I64(to), DynValue::I64(x)) => to.set(x),
            (Self::U64(to), DynValue::U64(x)) => to.set(x),
            _ => {}
        }
    }
}

/// Identity element of a reduction.
fn identity<'k>(k: &'k KernelBuilder, op: Reduction, dtype: Dtype) -> DynValue<'k> {
    let larger = matches!(op, Reduction::Max | Reduction::ArgMax);
    let bits = 8 * dtype.bytes() as u32;
    let constant = match (op, dtype) {
        (Reduction::Sum | Reduction::Mean, _) => 0,
        (Reduction::Prod, Dtype::F64) => 1f64.to_bits(),
        (Reduction::Prod, Dtype::F32) => 1f32.to_bits().into(),
        (Reduction::Prod, _) => 1,
        (_, Dtype::F64) if larger => f64::NEG_INFINITY.to_bits(),
        (_, Dtype::F64) => f64::INFINITY.to_bits(),
        (_, Dtype::F32) if larger => f32::NEG_INFINITY.to_bits().into(),
        (_, Dtype::F32) => f32::INFINITY.to_bits().into(),
        (_, signed) if signed.is_signed() => {
            let most = (1i128 << (bits - 1)) - 1;
            (if larger { -most - 1 } else { most }) as u64
        }
        _ if larger => 0,
        _ => ((1u128 << bits) - 1) as u64,
    };
    DynValue::constant(k, dtype, constant)
}

/// Combines two partial results; commutative.
fn joined<'k>(op: Reduction, dtype: Dtype, a: Partial<'k>, b: Partial<'k>) -> Partial<'k> {
    let only = |value| Partial { value, place: None };
    match (op, a.place, b.place) {
        (Reduction::ArgMin | Reduction::ArgMax, Some(a_place), Some(b_place)) => {
            let (x, y) = (a.value, b.value);
            let mut better = match op {
                Reduction::ArgMax => x.lt(y),
                _ => y.lt(x),
            };
            let mut same = x.equals(y);
            if let (Some(x), Some(y)) = (x.nan(), y.nan()) {
                better = better | (y & !x);
                same = same | (x & y);
            }
            let second = better | (same & b_place.lt(a_place));
            Partial {
                value: y.or(second, x),
                place: Some(b_place.or(second, a_place)),
            }
        }
        (Reduction::Prod, ..) => only(value::binary(Binary::Mul, dtype, a.value, b.value)),
        (Reduction::Min, ..) => only(value::extreme(false, a.value, b.value)),
        (Reduction::Max, ..) => only(value::extreme(true, a.value, b.value)),
        _ => only(value::binary(Binary::Add, dtype, a.value, b.value)),
    }
}

/// Combines a partial result with one of elements behind its own: the first of equal ones is kept
/// without a comparison of places.
fn joined_in_order<'k>(op: Reduction, dtype: Dtype, a: Partial<'k>, b: Partial<'k>) -> Partial<'k> {
    let (Some(a_place), Some(b_place)) = (a.place, b.place) else {
        return joined(op, dtype, a, b);
    };
    let (x, y) = (a.value, b.value);
    // True too where one of them is NaN; the first NaN is kept.
    let mut second = match op {
        Reduction::ArgMax => !y.le(x),
        _ => !x.le(y),
    };
    if let Some(nan) = x.nan() {
        second = second & !nan;
    }
    Partial {
        value: y.or(second, x),
        place: Some(b_place.or(second, a_place)),
    }
}

/// Combines partial results, those of neighbouring elements in order, as a balanced tree.
fn tree<'k>(op: Reduction, dtype: Dtype, mut all: Vec<Partial<'k>>) -> Partial<'k> {
    while all.len() > 1 {
        let pairs = all.chunks(2).map(|pair| match pair {
            [a, b] => joined_in_order(op, dtype, *a, *b),
            [a] => *a,
            _ => pair[0],
        });
        all = pairs.collect();
    }
    all[0]
}

struct RowEmitter<'a, 'k, I> {
    k: &'k KernelBuilder,
    kernel: &'a FusedKernel,
    team: Team,
    width: u32,
    /// This thread's index in its team.
    member: Reg<'k, u32>,
    /// Threads of a team.
    threads: u64,
    /// Whether the row exists; `None` if it always does.
    valid: Option<Pred<'k>>,
    /// Address of the row's beginning, for each access.
    starts: Vec<Reg<'k, u64>>,
    /// Whether a step varies along the row.
    varies: Vec<bool>,
    /// Values of steps that do not vary.
    fixed: Vec<Option<DynValue<'k>>>,
    results: Vec<Option<DynValue<'k>>>,
    scratch: Option<[Ptr<'k, Shared, u64>; 2]>,
    /// The kernel's name, the prefix of its variables.
    name: &'a str,
    /// This thread's first chunk, and its first column.
    own_chunk: Reg<'k, I>,
    first: Reg<'k, I>,
    /// Where this block's part of the row begins, in chunks; `None` if it has the whole row.
    part: Option<Reg<'k, I>>,
    /// The address of that, for each access used so far.
    own: RefCell<Vec<Option<Reg<'k, u64>>>>,
}

/// The elements of a row that a thread processes at a time.
struct RowChunk<'k, I> {
    /// Offsets of its columns from the row's start, for each access used so far: a register and
    /// bytes behind it.
    places: Vec<Option<(Reg<'k, u64>, i64)>>,
    values: Vec<Option<Vec<DynValue<'k>>>>,
    at: ChunkPosition<'k, I>,
    /// Whether it is inside the row; `None` if it always is.
    valid: Option<Pred<'k>>,
}

enum ChunkPosition<'k, I> {
    /// This many columns behind this thread's first.
    Behind(u64),
    /// A column.
    Column(Reg<'k, I>),
}

pub(super) fn rows<I: IndexType>(k: &KernelBuilder, kernel: &FusedKernel, name: &str) {
    let KernelKind::Rows {
        team,
        width,
        resident,
    } = kernel.kind
    else {
        return;
    };
    let (addresses, n) = parameters::<I>(k, kernel);
    let block = I::from_u32(k.ctaid_x());
    let (row, member, threads, valid) = match team {
        Team::Block(threads) => {
            k.max_threads(threads);
            (block, k.tid_x(), threads, None)
        }
        Team::Lanes(lanes) => {
            k.max_threads(THREADS);
            let tid = k.tid_x();
            let row = I::from_u32(tid >> lanes.trailing_zeros());
            let row = block.mul_add(I::of(k, u64::from(THREADS / lanes)), row);
            (row, tid & (lanes - 1), lanes, Some(row.lt(n)))
        }
        Team::Columns(threads) => {
            k.max_threads(32 * threads);
            let row = block.mul_add(I::of(k, 32), I::from_u32(k.tid_x()));
            (row, k.tid_y(), threads, Some(row.lt(n)))
        }
    };
    let row = match valid {
        Some(valid) => valid.select(row, n - I::of(k, 1)),
        None => row,
    };
    let of_row = indices(row.named("row"), &kernel.kept);
    let part = kernel.part.map(|_| I::from_u32(k.ctaid_y()));
    let starts = kernel.accesses.iter().map(|access| {
        let offset = offset(k, access.offset, &of_row, &access.kept);
        let offset = match part {
            Some(part) if access.part == 1 => offset + part,
            _ => offset,
        };
        let bytes = kernel.arrays[access.array as usize].1.bytes();
        I::place(addresses[access.array as usize], bytes, offset)
    });
    let starts = starts.collect();
    let part = part.zip(kernel.part);
    let part = part.map(|(part, len)| part * I::of(k, len / u64::from(width)));
    let own_chunk = match part {
        Some(part) => part + I::from_u32(member),
        None => I::from_u32(member),
    };
    let first = own_chunk;
    let first = if width > 1 {
        first << width.trailing_zeros()
    } else {
        first
    };
    let mut rows = RowEmitter {
        k,
        kernel,
        team,
        width,
        member,
        threads: threads.into(),
        valid,
        starts,
        varies: varies(kernel),
        fixed: vec![None; kernel.steps.len()],
        results: vec![None; kernel.reduced.len()],
        scratch: None,
        name,
        own_chunk,
        first,
        part,
        own: RefCell::new(vec![None; kernel.accesses.len()]),
    };
    rows.run(resident);
}

fn varies(kernel: &FusedKernel) -> Vec<bool> {
    let mut varies = Vec::new();
    for (step, _) in &kernel.steps {
        varies.push(match step {
            KernelStep::Const(_) | KernelStep::Reduced(_) => false,
            KernelStep::Load(access) => {
                let cols = &kernel.accesses[*access as usize].cols;
                cols.iter().any(|stride| *stride != 0)
            }
            KernelStep::Apply(op, args) => {
                args[..arity(*op)].iter().any(|arg| varies[*arg as usize])
            }
        });
    }
    varies
}

impl<'k, I: IndexType> RowEmitter<'_, 'k, I> {
    fn run(&mut self, resident: bool) {
        let chunks = self.kernel.row_len() / u64::from(self.width);
        let mut kept: Vec<RowChunk<'k, I>> = match resident {
            true => (0..self.own_chunks(chunks).div_ceil(self.threads))
                .map(|slot| self.chunk(slot, chunks))
                .collect(),
            false => Vec::new(),
        };
        let stages = self.kernel.reduced.iter().map(|reduced| reduced.stage + 1);
        for stage in 0..stages.max().unwrap_or(0) {
            let wanted: Vec<usize> = (0..self.kernel.reduced.len())
                .filter(|at| self.kernel.reduced[*at].stage == stage)
                .collect();
            for at in &wanted {
                self.fix(self.kernel.reduced[*at].of);
            }
            let partial = match resident {
                true => self.reduce_kept(&wanted, &mut kept),
                false => self.reduce_loop(&wanted, stage, chunks),
            };
            for (at, partial) in wanted.into_iter().zip(partial) {
                let reduced = self.kernel.reduced[at];
                let dtype = self.kernel.steps[reduced.of as usize].1;
                let whole = self.combine(reduced.op, dtype, partial);
                self.results[at] = Some(match whole.place {
                    Some(DynValue::U32(place)) => DynValue::I64(place.to()),
                    Some(DynValue::U64(place)) => DynValue::I64(place.bitcast()),
                    _ => whole.value,
                });
            }
        }
        let stores = self.kernel.stores.clone();
        let of_elements: Vec<_> = stores.iter().filter(|store| !store.of_row).collect();
        if !of_elements.is_empty() {
            for store in &of_elements {
                self.fix(store.of);
            }
            let write = |rows: &Self, chunk: &mut RowChunk<'k, I>| {
                let ready: Vec<_> = of_elements
                    .iter()
                    .map(|store| {
                        let values = rows.values(chunk, store.of);
                        let place = rows.place(chunk, store.access);
                        (store.access, of_each(&values, rows.width), place)
                    })
                    .collect();
                let write = || {
                    for (access, values, (address, bytes)) in &ready {
                        let access = &rows.kernel.accesses[*access as usize];
                        let stride = access.cols.last().copied().unwrap_or(0);
                        let (k, kernel) = (rows.k, rows.kernel);
                        store_at(k, kernel, access, *address, *bytes, stride, values);
                    }
                };
                let valid = match (rows.valid, chunk.valid) {
                    (Some(row), Some(chunk)) => Some(row & chunk),
                    (one, other) => one.or(other),
                };
                match valid {
                    Some(valid) => rows.k.if_(valid.named("writes"), write),
                    None => write(),
                }
            };
            match resident {
                true => kept.iter_mut().for_each(|chunk| write(self, chunk)),
                false => self.each_chunk("written", chunks, |chunk| write(self, chunk)),
            }
        }
        let of_rows: Vec<_> = stores.iter().filter(|store| store.of_row).collect();
        if of_rows.is_empty() {
            return;
        }
        for store in &of_rows {
            self.fix(store.of);
        }
        let is_first = self.member.equals(0);
        let writes = match self.valid {
            Some(valid) => valid & is_first,
            None => is_first,
        };
        self.k.if_(writes.named("writes_row"), || {
            for store in of_rows {
                let Some(value) = self.fixed[store.of as usize] else {
                    continue;
                };
                let access = &self.kernel.accesses[store.access as usize];
                let start = self.starts[store.access as usize];
                store_at(self.k, self.kernel, access, start, 0, 0, &[value]);
            }
        });
    }

    /// Computes the parts of a step that do not vary along the row, at a point where the team has
    /// it.
    fn fix(&mut self, root: u32) {
        let mut is = vec![false; root as usize + 1];
        is[root as usize] = true;
        for at in (0..is.len()).rev() {
            if let (true, KernelStep::Apply(op, args)) = (is[at], self.kernel.steps[at].0) {
                let args = &args[..arity(op)];
                args.iter().for_each(|arg| is[*arg as usize] = true);
            }
        }
        for at in (0..is.len()).filter(|at| is[*at]) {
            if self.varies[at] || self.fixed[at].is_some() {
                continue;
            }
            let (step, dtype) = self.kernel.steps[at];
            self.fixed[at] = match step {
                KernelStep::Const(bits) => Some(DynValue::constant(self.k, dtype, bits)),
                KernelStep::Reduced(n) => self.results[n as usize],
                KernelStep::Load(access) => {
                    let start = self.starts[access as usize];
                    let access = &self.kernel.accesses[access as usize];
                    load_at(self.kernel, access, start, 0, 0, 1).pop()
                }
                KernelStep::Apply(op, args) => {
                    let args = args[..arity(op)].iter();
                    let args: Vec<Vec<DynValue<'k>>> = args
                        .map(|arg| self.fixed[*arg as usize].into_iter().collect())
                        .collect();
                    let args: Vec<&[DynValue<'k>]> = args.iter().map(|arg| &**arg).collect();
                    applied(self.kernel, at, &args).pop()
                }
            };
        }
    }

    /// Maximum number of chunks of a block.
    fn own_chunks(&self, chunks: u64) -> u64 {
        let part = self.kernel.part.unwrap_or(u64::MAX);
        chunks.min(part / u64::from(self.width))
    }

    /// The `slot`th chunk that this thread keeps.
    fn chunk(&self, slot: u64, chunks: u64) -> RowChunk<'k, I> {
        let k = self.k;
        let own = self.own_chunks(chunks);
        if (slot + 1) * self.threads <= own && chunks.is_multiple_of(own) {
            let at = ChunkPosition::Behind(slot * self.threads * u64::from(self.width));
            return self.chunk_at(at, None);
        }
        // A part has as many chunks as its threads can keep, so its end is the same bound.
        let own = self.own_chunk + I::of(k, slot * self.threads);
        let valid = own.lt(I::of(k, chunks));
        let last = own.min(I::of(k, chunks - 1));
        let shift = self.width.trailing_zeros();
        let column = if shift == 0 { last } else { last << shift };
        self.chunk_at(ChunkPosition::Column(column), Some(valid))
    }

    fn chunk_at(&self, at: ChunkPosition<'k, I>, valid: Option<Pred<'k>>) -> RowChunk<'k, I> {
        RowChunk {
            places: vec![None; self.kernel.accesses.len()],
            values: vec![None; self.kernel.steps.len()],
            at,
            valid,
        }
    }

    /// Iterates over the row in a loop.
    fn each_chunk(&self, name: &str, chunks: u64, body: impl FnOnce(&mut RowChunk<'k, I>)) {
        let k = self.k;
        let own = self.own_chunks(chunks);
        let (chunks, step) = (I::of(k, chunks), I::of(k, self.threads));
        let end = match self.part {
            Some(part) => (part + I::of(k, own)).min(chunks),
            None => chunks,
        };
        let shift = self.width.trailing_zeros();
        k.for_range(name, self.own_chunk, end, step, |chunk| {
            let column = if shift == 0 { chunk } else { chunk << shift };
            body(&mut self.chunk_at(ChunkPosition::Column(column), None));
        });
    }

    /// Position of a chunk in an access.
    fn place(&self, chunk: &mut RowChunk<'k, I>, access: u32) -> (Reg<'k, u64>, i64) {
        if let Some(known) = chunk.places[access as usize] {
            return known;
        }
        let start = self.starts[access as usize];
        let KernelAccess { array, cols, .. } = &self.kernel.accesses[access as usize];
        let size = self.kernel.arrays[*array as usize].1.bytes();
        let along = |column: Reg<'k, I>| {
            // The outermost extent is known too, but not needed.
            let indices = indices(column, &self.kernel.cols);
            I::place(start, size, offset(self.k, 0, &indices, cols))
        };
        let place = match chunk.at {
            ChunkPosition::Column(column) => (along(column), 0),
            ChunkPosition::Behind(columns) => {
                let bytes = cols.last().map(|stride| stride * size as i64);
                let bytes = bytes.and_then(|bytes| bytes.checked_mul(columns.cast_signed()));
                match bytes {
                    Some(bytes) if cols.len() == 1 && i32::try_from(bytes).is_ok() => {
                        let own = self.own.borrow()[access as usize];
                        let own = own.unwrap_or_else(|| along(self.first));
                        self.own.borrow_mut()[access as usize] = Some(own);
                        (own, bytes)
                    }
                    _ => (along(self.first + I::of(self.k, columns)), 0),
                }
            }
        };
        chunk.places[access as usize] = Some(place);
        place
    }

    /// Values of a step for the elements of a chunk, or one value that all share.
    fn values(&self, chunk: &mut RowChunk<'k, I>, root: u32) -> Vec<DynValue<'k>> {
        let mut is = vec![false; root as usize + 1];
        is[root as usize] = true;
        for at in (0..is.len()).rev().filter(|at| self.varies[*at]) {
            if let (true, None, KernelStep::Apply(op, args)) =
                (is[at], &chunk.values[at], self.kernel.steps[at].0)
            {
                let args = &args[..arity(op)];
                args.iter().for_each(|arg| is[*arg as usize] = true);
            }
        }
        for at in (0..is.len()).filter(|at| is[*at]) {
            if chunk.values[at].is_some() {
                continue;
            }
            if !self.varies[at] {
                chunk.values[at] = Some(self.fixed[at].into_iter().collect());
                continue;
            }
            let new = match self.kernel.steps[at].0 {
                KernelStep::Load(n) => {
                    let (address, bytes) = self.place(chunk, n);
                    let access = &self.kernel.accesses[n as usize];
                    let stride = access.cols.last().copied().unwrap_or(0);
                    load_at(self.kernel, access, address, bytes, stride, self.width)
                }
                KernelStep::Apply(op, args) => {
                    let args = args[..arity(op)].iter();
                    let args: Vec<&[DynValue<'k>]> = args
                        .map(|arg| chunk.values[*arg as usize].as_deref().unwrap_or_default())
                        .collect();
                    applied(self.kernel, at, &args)
                }
                _ => Vec::new(),
            };
            chunk.values[at] = Some(new);
        }
        chunk.values[root as usize].clone().unwrap_or_default()
    }

    /// Reduces a chunk.
    fn partial(&self, chunk: &mut RowChunk<'k, I>, reduced: usize) -> Partial<'k> {
        let reduced = self.kernel.reduced[reduced];
        let dtype = self.kernel.steps[reduced.of as usize].1;
        let values = of_each(&self.values(chunk, reduced.of), self.width);
        let asks = matches!(reduced.op, Reduction::ArgMin | Reduction::ArgMax);
        // Places in the chunk are constants; where it begins is added to that of the result.
        let parts = values.into_iter().enumerate().map(|(n, value)| Partial {
            value,
            place: asks.then(|| I::value(I::of(self.k, n as u64))),
        });
        let part = tree(reduced.op, dtype, parts.collect());
        let first = match chunk.at {
            ChunkPosition::Column(column) => column,
            ChunkPosition::Behind(columns) => self.first + I::of(self.k, columns),
        };
        let moved = |place| {
            let dtype = match place {
                DynValue::U64(_) => Dtype::U64,
                _ => Dtype::U32,
            };
            value::binary(Binary::Add, dtype, place, I::value(first))
        };
        Partial {
            place: part.place.map(moved),
            ..part
        }
    }

    fn nothing(&self, reduced: usize) -> Partial<'k> {
        let reduced = self.kernel.reduced[reduced];
        let dtype = self.kernel.steps[reduced.of as usize].1;
        let asks = matches!(reduced.op, Reduction::ArgMin | Reduction::ArgMax);
        Partial {
            value: identity(self.k, reduced.op, dtype),
            place: asks.then(|| I::value(I::of(self.k, I::MOST))),
        }
    }

    fn reduce_kept(&self, wanted: &[usize], kept: &mut [RowChunk<'k, I>]) -> Vec<Partial<'k>> {
        let mut sums: Vec<Option<Partial<'k>>> = vec![None; wanted.len()];
        for chunk in kept {
            for (sum, at) in sums.iter_mut().zip(wanted) {
                let reduced = self.kernel.reduced[*at];
                let dtype = self.kernel.steps[reduced.of as usize].1;
                let mut part = self.partial(chunk, *at);
                // For the other reductions a repeated element changes nothing.
                if let (Reduction::Sum | Reduction::Prod, Some(valid)) = (reduced.op, chunk.valid) {
                    part.value = part.value.or(valid, self.nothing(*at).value);
                }
                *sum = Some(match *sum {
                    // The chunks follow each other.
                    Some(sum) => joined_in_order(reduced.op, dtype, sum, part),
                    None => part,
                });
            }
        }
        let sums = sums.into_iter().zip(wanted);
        sums.map(|(sum, at)| sum.unwrap_or_else(|| self.nothing(*at)))
            .collect()
    }

    fn reduce_loop(&self, wanted: &[usize], stage: u32, chunks: u64) -> Vec<Partial<'k>> {
        let running: Vec<RunningPartial<'k>> = wanted
            .iter()
            .map(|at| {
                let nothing = self.nothing(*at);
                let name = |what: &str| format!("{what}_{at}");
                RunningPartial {
                    value: ValueVariable::new(self.k, &name("so_far"), nothing.value),
                    place: nothing
                        .place
                        .map(|place| ValueVariable::new(self.k, &name("place"), place)),
                }
            })
            .collect();
        let now = |running: &RunningPartial<'k>| Partial {
            value: running.value.get(),
            place: running.place.map(ValueVariable::get),
        };
        self.each_chunk(&format!("pass_{stage}"), chunks, |chunk| {
            for (running, at) in running.iter().zip(wanted) {
                let reduced = self.kernel.reduced[*at];
                let dtype = self.kernel.steps[reduced.of as usize].1;
                let part = self.partial(chunk, *at);
                let sum = joined(reduced.op, dtype, now(running), part);
                running.value.set(sum.value);
                if let (Some(variable), Some(place)) = (running.place, sum.place) {
                    variable.set(place);
                }
            }
        });
        running.iter().map(now).collect()
    }

    /// Combines the team's partial results; every thread of it gets the result.
    fn combine(&mut self, op: Reduction, dtype: Dtype, own: Partial<'k>) -> Partial<'k> {
        match self.team {
            Team::Lanes(lanes) => self.across(op, dtype, own, lanes),
            Team::Block(threads) => {
                let own = self.across(op, dtype, own, 32);
                let warps = threads / 32;
                if warps < 2 {
                    return own;
                }
                let k = self.k;
                let lane = k.lane();
                let warp = k.tid_x() >> 5;
                self.exchange(op, own, warps, warp, lane.equals(0));
                let group = warps.next_power_of_two();
                let from = lane & (group - 1);
                let mut found = self.found(own, from.min(warps - 1));
                if group != warps {
                    let nothing = self.nothing_like(op, dtype, own);
                    let is = from.lt(warps);
                    found.value = found.value.or(is, nothing.value);
                    if let (Some(place), Some(none)) = (found.place, nothing.place) {
                        found.place = Some(place.or(is, none));
                    }
                }
                self.across(op, dtype, found, group)
            }
            Team::Columns(threads) => {
                if threads < 2 {
                    return own;
                }
                let k = self.k;
                let (x, y) = (k.tid_x(), k.tid_y());
                let all = k.tid_x().lt(32);
                self.exchange(op, own, 32 * threads, y.mul_add(32, x), all);
                let mut sum = self.found(own, x);
                for n in 1..threads {
                    let next = self.found(own, x + 32 * n);
                    sum = joined(op, dtype, sum, next);
                }
                sum
            }
        }
    }

    fn nothing_like(&self, op: Reduction, dtype: Dtype, own: Partial<'k>) -> Partial<'k> {
        Partial {
            value: identity(self.k, op, dtype),
            place: own.place.map(|_| I::value(I::of(self.k, I::MOST))),
        }
    }

    /// Combines over neighbouring lanes, a power of two.
    fn across(&self, op: Reduction, dtype: Dtype, own: Partial<'k>, lanes: u32) -> Partial<'k> {
        let mut sum = own;
        let mut apart = lanes / 2;
        while apart > 0 {
            let other = Partial {
                value: sum.value.of_lane(apart),
                place: sum.place.map(|place| place.of_lane(apart)),
            };
            sum = joined(op, dtype, sum, other);
            apart /= 2;
        }
        sum
    }

    /// Publishes some threads' values in shared memory.
    fn exchange(
        &mut self,
        op: Reduction,
        own: Partial<'k>,
        len: u32,
        to: Reg<'k, u32>,
        publishes: Pred<'k>,
    ) {
        let k = self.k;
        let asks = |op| matches!(op, Reduction::ArgMin | Reduction::ArgMax);
        match self.scratch {
            // Another thread may still be reading the previous values.
            Some(_) => k.barrier(),
            None => {
                let any = self.kernel.reduced.iter().any(|reduced| asks(reduced.op));
                let name = |what: &str| format!("{}_{what}", self.name);
                let values = k.shared::<u64>(&name("values"), len);
                let places = match any {
                    true => k.shared::<u64>(&name("places"), len),
                    false => values,
                };
                self.scratch = Some([values, places]);
            }
        }
        let Some([values, places]) = self.scratch else {
            return;
        };
        k.if_(publishes.named("writes"), || {
            put(values, to, own.value);
            if let (true, Some(place)) = (asks(op), own.place) {
                put(places, to, place);
            }
        });
        k.barrier();
    }

    fn found(&self, like: Partial<'k>, from: Reg<'k, u32>) -> Partial<'k> {
        match self.scratch {
            Some([values, places]) => Partial {
                value: get(values, from, like.value),
                place: like.place.map(|place| get(places, from, place)),
            },
            None => like,
        }
    }
}
