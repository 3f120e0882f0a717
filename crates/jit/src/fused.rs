//! Fusion: which kernels compute an expression, and the steps of each per element.
//!
//! A kernel iterates over a domain: kept dimensions, which index rows, and reduced ones,
//! which index a row's columns. Without reduced ones it is a map. Reductions of one domain
//! are one kernel, if none needs another kernel between; so is what is computed from their results
//! for each element of the domain, or for each row. Results that another kernel needs are stored
//! to a temporary.
//!
//! Invariant: kernels are in topological order. The printed code of a kernel determines its PTX
//! completely: the number of rows, and so the first kept extent, is not part of it.
//!
//! Elsewhere: code generation (`emit`).

use std::fmt;

use fercuda_tensor::{Dtype, Layout};

use crate::canonical::Canonical;
use crate::expr::{ArrayOrigin, Expr, ExprEntry, ExprId, LoadSource, arity};
use crate::kernel::{
    FusedKernel, KernelAccess, KernelKind, KernelReduction, KernelStep, KernelStore,
    ParameterBinding, Team,
};
use crate::split::split;

/// Maximum number of a row's elements that a thread keeps; longer rows are read again.
const RESIDENT: u64 = 16;
/// Maximum number of reductions of one kernel: each has a slot in shared memory.
const MOST_REDUCED: usize = 64;
/// Offsets below this are computed in 32 bits, with headroom for additions.
const NARROW: u64 = 1 << 30;

/// Memory that is live from one kernel to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Temporary {
    /// Type of an element.
    pub dtype: Dtype,
    /// Size.
    pub bytes: u64,
    /// The kernel that writes it.
    pub first: usize,
    /// The last kernel that reads it.
    pub last: usize,
}

/// The fused kernels. See the module.
#[derive(Clone, Debug)]
pub struct Fused {
    pub(crate) kernels: Vec<FusedKernel>,
    pub(crate) temporaries: Vec<Temporary>,
}

/// Work collected for one kernel.
struct KernelGroup {
    domain: IterationDomain,
    /// Number of elements of a row's part.
    part: Option<u64>,
    /// Arrays reduced in it.
    reduced: Vec<u32>,
    /// Stored for each element.
    written: Vec<GroupStore>,
    /// Stored for each row.
    of_rows: Vec<GroupStore>,
}

#[derive(Clone, Copy)]
struct GroupStore {
    of: ExprId,
    slot: StoreTarget,
    layout: Layout,
}

#[derive(Clone, Copy, PartialEq)]
enum StoreTarget {
    Output(u32),
    Array(u32),
}

/// Extents of more than one element, and which of them are reduced.
#[derive(Clone, PartialEq)]
struct IterationDomain {
    extents: Vec<u64>,
    reduced: Vec<bool>,
}

impl IterationDomain {
    fn map(shape: &[u64]) -> Self {
        let extents: Vec<u64> = shape.iter().copied().filter(|len| *len > 1).collect();
        let reduced = vec![false; extents.len()];
        Self { extents, reduced }
    }

    fn kept(&self) -> Vec<u64> {
        let kept = self.extents.iter().zip(&self.reduced);
        kept.filter(|(_, is)| !**is).map(|(len, _)| *len).collect()
    }

    fn is_map(&self) -> bool {
        !self.reduced.contains(&true)
    }
}

/// Strides of the dimensions of more than one element.
fn strides(layout: &Layout) -> Vec<i64> {
    let all = layout.shape().iter().zip(layout.strides());
    all.filter(|(len, _)| **len > 1).map(|(_, s)| *s).collect()
}

fn side_by_side(extents: &[u64]) -> Vec<i64> {
    let mut strides = vec![1; extents.len()];
    for at in (1..extents.len()).rev() {
        strides[at - 1] = strides[at] * extents[at] as i64;
    }
    strides
}

impl Fused {
    /// Fuses a canonical form into kernels. `aligned`: whether bound memory is aligned to 16 bytes.
    pub fn of(canonical: &Canonical, aligned: bool) -> Self {
        let canonical = &split(canonical);
        let mut gathering = FusionBuilder {
            canonical,
            groups: Vec::new(),
            group_of: vec![usize::MAX; canonical.arrays.len()],
        };
        for (at, array) in canonical.arrays.iter().enumerate() {
            if array.from.count() == 0 {
                continue;
            }
            match array.made {
                ArrayOrigin::Reduced(..) | ArrayOrigin::Partial(..) => {
                    gathering.reduction(at as u32)
                }
                ArrayOrigin::Copied => {
                    let (of, slot) = (array.of, StoreTarget::Array(at as u32));
                    if let Ok(layout) = Layout::contiguous(array.dtype, &array.shape) {
                        let group = gathering.write(GroupStore { of, slot, layout });
                        gathering.group_of[at] = group;
                    }
                }
            }
        }
        for (at, out) in canonical.outputs.iter().enumerate() {
            if !out.layout.is_empty() {
                gathering.write(GroupStore {
                    of: out.of,
                    slot: StoreTarget::Output(at as u32),
                    layout: out.layout,
                });
            }
        }
        gathering.finish(aligned)
    }
}

struct FusionBuilder<'a> {
    canonical: &'a Canonical,
    groups: Vec<KernelGroup>,
    /// The group that computes each array.
    group_of: Vec<usize>,
}

impl FusionBuilder<'_> {
    /// The loads of computed arrays that an expression depends on.
    fn computed(&self, of: ExprId) -> Vec<(u32, Layout, i64)> {
        let below = self.canonical.reached(&[of]).into_iter();
        let loads = below.filter_map(|id| match self.canonical.entry(id).expr {
            Expr::Load {
                source: LoadSource::Array(n),
                layout,
                offset,
            } => Some((n, layout, offset)),
            _ => None,
        });
        loads.collect()
    }

    /// Whether a load reads, for each element or row of a group, the reduction's result of that
    /// row.
    fn is_own(&self, at: usize, load: (u32, Layout, i64), of_rows: bool) -> bool {
        let (array, layout, offset) = load;
        let domain = &self.groups[at].domain;
        if self.group_of[array as usize] != at || offset != 0 {
            return false;
        }
        if !self.groups[at].reduced.contains(&array) || self.groups[at].part.is_some() {
            return false;
        }
        let kept = domain.kept();
        let mut wanted = side_by_side(&kept).into_iter();
        let have = IterationDomain::map(layout.shape());
        if of_rows {
            return have.extents == kept && strides(&layout) == wanted.collect::<Vec<_>>();
        }
        let mut reduced = domain.reduced.iter();
        have.extents == domain.extents
            && strides(&layout).into_iter().all(|stride| {
                let is_reduced = reduced.next().copied().unwrap_or(false);
                let wanted = if is_reduced { Some(0) } else { wanted.next() };
                wanted == Some(stride)
            })
    }

    /// Whether an expression can be computed in a group: all its loads are available before, or are
    /// the group's own results. `Some(true)` if at least one is.
    fn fits(&self, at: usize, of: ExprId, of_rows: bool) -> Option<bool> {
        let mut own = false;
        for load in self.computed(of) {
            let before = self.group_of[load.0 as usize] < at;
            let is_own = self.is_own(at, load, of_rows);
            if !before && !is_own {
                return None;
            }
            own |= is_own;
        }
        Some(own)
    }

    fn reduction(&mut self, array: u32) {
        let made = self.canonical.arrays[array as usize];
        let (axes, part) = match made.made {
            ArrayOrigin::Reduced(_, axes) => (axes, None),
            ArrayOrigin::Partial(_, axes, part) => (axes, Some(part)),
            ArrayOrigin::Copied => return,
        };
        let long = (0..made.from.len()).filter(|at| made.from[*at] > 1);
        let domain = IterationDomain {
            extents: long.clone().map(|at| made.from[at]).collect(),
            reduced: long.map(|at| axes.has(at)).collect(),
        };
        let group = (0..self.groups.len()).rev().find(|at| {
            let group = &self.groups[*at];
            group.domain == domain
                && group.part == part
                && group.reduced.len() < MOST_REDUCED
                && self.fits(*at, made.of, false).is_some()
        });
        let group = group.unwrap_or_else(|| self.group(domain, part));
        self.groups[group].reduced.push(array);
        self.group_of[array as usize] = group;
    }

    fn group(&mut self, domain: IterationDomain, part: Option<u64>) -> usize {
        self.groups.push(KernelGroup {
            domain,
            part,
            reduced: Vec::new(),
            written: Vec::new(),
            of_rows: Vec::new(),
        });
        self.groups.len() - 1
    }

    /// Chooses the group in which something is stored for each element of a shape.
    fn write(&mut self, written: GroupStore) -> usize {
        let domain = IterationDomain::map(written.layout.shape());
        let mut map = None;
        for at in (0..self.groups.len()).rev() {
            let group = &self.groups[at];
            if group.part.is_some() {
                continue;
            }
            if group.domain.extents == domain.extents
                && let Some(own) = self.fits(at, written.of, false)
            {
                if own {
                    self.groups[at].written.push(written);
                    return at;
                }
                if group.domain.is_map() {
                    map = Some(at);
                }
            }
            let group = &self.groups[at];
            if !group.domain.is_map()
                && group.domain.kept() == domain.extents
                && self.fits(at, written.of, true) == Some(true)
            {
                self.groups[at].of_rows.push(written);
                return at;
            }
        }
        let at = map.unwrap_or_else(|| self.group(domain, None));
        self.groups[at].written.push(written);
        at
    }

    fn finish(self, aligned: bool) -> Fused {
        // Arrays that are loaded by another kernel than the one that computes them.
        let count = self.canonical.arrays.len();
        let mut last: Vec<Option<usize>> = vec![None; count];
        for (at, group) in self.groups.iter().enumerate() {
            let reduced = group.reduced.iter();
            let reduced = reduced.map(|n| (self.canonical.arrays[*n as usize].of, false));
            let written = group.written.iter().map(|written| (written.of, false));
            let of_rows = group.of_rows.iter().map(|written| (written.of, true));
            for (of, of_rows) in reduced.chain(written).chain(of_rows) {
                for load in self.computed(of) {
                    if !self.is_own(at, load, of_rows) {
                        last[load.0 as usize] = Some(at);
                    }
                }
            }
        }
        let mut temporaries = Vec::new();
        let mut slots: Vec<Option<ParameterBinding>> = vec![None; count];
        for (array, last) in last.iter().enumerate() {
            let (first, Some(last)) = (self.group_of[array], *last) else {
                continue;
            };
            let made = self.canonical.arrays[array];
            slots[array] = Some(ParameterBinding::Temporary(temporaries.len() as u32));
            temporaries.push(Temporary {
                dtype: made.dtype,
                bytes: made.shape.count() * made.dtype.bytes(),
                first,
                last,
            });
        }
        let groups = self.groups.iter().enumerate();
        let kernels = groups.map(|(at, group)| {
            KernelWriter {
                gathering: &self,
                at,
                slots: &slots,
                kernel: FusedKernel {
                    kind: KernelKind::Map {
                        width: 1,
                        tail: false,
                    },
                    kept: Vec::new(),
                    cols: Vec::new(),
                    arrays: Vec::new(),
                    accesses: Vec::new(),
                    steps: Vec::new(),
                    reduced: Vec::new(),
                    stores: Vec::new(),
                    part: group.part,
                    wide: false,
                },
            }
            .kernel(group, aligned)
        });
        let kernels = kernels.collect();
        Fused {
            kernels,
            temporaries,
        }
    }
}

/// Builder of a kernel.
struct KernelWriter<'a> {
    gathering: &'a FusionBuilder<'a>,
    at: usize,
    slots: &'a [Option<ParameterBinding>],
    kernel: FusedKernel,
}

impl KernelWriter<'_> {
    fn kernel(mut self, group: &KernelGroup, aligned: bool) -> FusedKernel {
        let domain = &group.domain;
        let canonical = self.gathering.canonical;
        let of_arrays: Vec<ExprId> = group
            .reduced
            .iter()
            .map(|array| canonical.arrays[*array as usize].of)
            .collect();
        let mut roots = of_arrays.clone();
        roots.extend(group.written.iter().map(|written| written.of));
        let of_elements = canonical.reached(&roots);
        let of_rows: Vec<ExprId> = group.of_rows.iter().map(|written| written.of).collect();
        let of_rows = canonical.reached(&of_rows);
        // An expression may be one per element and, with the same shape, one per row; so both are
        // part of its identity.
        let mut known: Vec<[Option<u32>; 2]> = vec![[None; 2]; canonical.exprs.len()];
        let mut all: Vec<(ExprId, bool)> = of_elements.into_iter().map(|id| (id, false)).collect();
        all.extend(of_rows.into_iter().map(|id| (id, true)));
        all.sort_unstable();
        for (id, rows) in all {
            let entry = *canonical.entry(id);
            let step = self.step(group, &entry, rows, &known);
            known[id as usize][usize::from(rows)] = Some(self.kernel.steps.len() as u32);
            self.kernel.steps.push((step, entry.dtype));
        }
        let place = |id: ExprId, rows: bool| known[id as usize][usize::from(rows)].unwrap_or(0);
        let mut stages: Vec<u32> = Vec::new();
        for (array, of) in group.reduced.iter().zip(of_arrays) {
            let (ArrayOrigin::Reduced(op, _) | ArrayOrigin::Partial(op, ..)) =
                canonical.arrays[*array as usize].made
            else {
                continue;
            };
            let of = place(of, false);
            let stage = self.stage(of, &stages);
            stages.push(stage);
            self.kernel.reduced.push(KernelReduction { op, of, stage });
        }
        for (written, rows) in group
            .written
            .iter()
            .map(|written| (written, false))
            .chain(group.of_rows.iter().map(|written| (written, true)))
        {
            let slot = match written.slot {
                StoreTarget::Output(n) => Some(ParameterBinding::Output(n)),
                StoreTarget::Array(n) => self.slots[n as usize],
            };
            let Some(slot) = slot else {
                continue;
            };
            let access = self.access(domain, slot, written.layout, 0, rows);
            let of = place(written.of, rows);
            self.kernel.stores.push(KernelStore {
                access,
                of,
                of_row: rows,
            });
        }
        // Reductions that another kernel loads.
        for (at, array) in group.reduced.iter().enumerate() {
            if let Some(slot) = self.slots[*array as usize] {
                let dtype = canonical.arrays[*array as usize].dtype;
                let kept = domain.kept();
                let array = self.array(slot, dtype);
                let (strides, part) = match group.part {
                    None => (side_by_side(&kept), 0),
                    // The parts are the last dimension.
                    Some(part) => {
                        let reduced = domain.extents.iter().zip(&domain.reduced);
                        let row: u64 = reduced
                            .filter(|(_, is)| **is)
                            .map(|(len, _)| *len)
                            .product();
                        let all = [&*kept, &[row.div_ceil(part)]].concat();
                        (side_by_side(&all)[..kept.len()].to_vec(), 1)
                    }
                };
                let access = self.push_access(KernelAccess {
                    array,
                    offset: 0,
                    kept: strides,
                    cols: vec![0; domain.extents.len() - kept.len()],
                    part,
                    vector: false,
                });
                let of = self.kernel.steps.len() as u32;
                self.kernel
                    .steps
                    .push((KernelStep::Reduced(at as u32), dtype));
                self.kernel.stores.push(KernelStore {
                    access,
                    of,
                    of_row: true,
                });
            }
        }
        self.kernel.kept = domain.kept();
        let cols = domain.extents.iter().zip(&domain.reduced);
        self.kernel.cols = cols.filter(|(_, is)| **is).map(|(len, _)| *len).collect();
        self.order(domain.is_map());
        merge(&mut self.kernel);
        if self.kernel.kept.is_empty() {
            self.kernel.kept.push(1);
            let accesses = self.kernel.accesses.iter_mut();
            accesses.for_each(|access| access.kept.push(0));
        }
        choose(&mut self.kernel, domain.is_map(), aligned);
        self.kernel
    }

    fn step(
        &mut self,
        group: &KernelGroup,
        entry: &ExprEntry,
        rows: bool,
        known: &[[Option<u32>; 2]],
    ) -> KernelStep {
        match entry.expr {
            Expr::Const(bits) => KernelStep::Const(bits),
            Expr::Apply(op, _) => {
                let mut args = [0; 3];
                for (to, from) in args.iter_mut().zip(entry.args()) {
                    *to = known[*from as usize][usize::from(rows)].unwrap_or(0);
                }
                KernelStep::Apply(op, args)
            }
            Expr::Load {
                source,
                layout,
                offset,
            } => {
                if let LoadSource::Array(n) = source
                    && self.gathering.is_own(self.at, (n, layout, offset), rows)
                    && let Some(at) = group.reduced.iter().position(|own| *own == n)
                {
                    return KernelStep::Reduced(at as u32);
                }
                let slot = match source {
                    LoadSource::Input(n) => ParameterBinding::Input(n),
                    LoadSource::Array(n) => {
                        self.slots[n as usize].unwrap_or(ParameterBinding::Temporary(n))
                    }
                };
                KernelStep::Load(self.access(&group.domain, slot, layout, offset, rows))
            }
        }
    }

    fn array(&mut self, slot: ParameterBinding, dtype: Dtype) -> u32 {
        let arrays = &mut self.kernel.arrays;
        let known = arrays.iter().position(|(known, _)| *known == slot);
        known.unwrap_or_else(|| {
            arrays.push((slot, dtype));
            arrays.len() - 1
        }) as u32
    }

    fn access(
        &mut self,
        domain: &IterationDomain,
        slot: ParameterBinding,
        layout: Layout,
        offset: i64,
        rows: bool,
    ) -> u32 {
        let all = strides(&layout);
        let array = self.array(slot, layout.dtype());
        let reduced = domain.reduced.iter().filter(|is| **is).count();
        let access = match rows {
            true => KernelAccess {
                array,
                offset,
                kept: all,
                cols: vec![0; reduced],
                part: 0,
                vector: false,
            },
            false => {
                let of = |wanted: bool| {
                    let all = all.iter().zip(&domain.reduced);
                    all.filter(|(_, is)| **is == wanted)
                        .map(|(stride, _)| *stride)
                        .collect()
                };
                KernelAccess {
                    array,
                    offset,
                    kept: of(false),
                    cols: of(true),
                    part: 0,
                    vector: false,
                }
            }
        };
        self.push_access(access)
    }

    fn push_access(&mut self, access: KernelAccess) -> u32 {
        let accesses = &mut self.kernel.accesses;
        let known = accesses.iter().position(|known| *known == access);
        known.unwrap_or_else(|| {
            accesses.push(access);
            accesses.len() - 1
        }) as u32
    }

    /// Length of the longest chain of reductions that an expression depends on.
    fn stage(&self, of: u32, stages: &[u32]) -> u32 {
        let mut is = vec![false; of as usize + 1];
        is[of as usize] = true;
        let mut stage = 0;
        for at in (0..is.len()).rev().filter(|at| *at <= of as usize) {
            if !is[at] {
                continue;
            }
            match self.kernel.steps[at].0 {
                KernelStep::Apply(op, args) => args[..arity(op)]
                    .iter()
                    .for_each(|arg| is[*arg as usize] = true),
                KernelStep::Reduced(n) => stage = stage.max(stages[n as usize] + 1),
                _ => {}
            }
        }
        stage
    }

    /// Orders the kept dimensions, which is free: that of the stores is best.
    fn order(&mut self, is_map: bool) {
        let kernel = &mut self.kernel;
        let Some(store) = kernel.stores.iter().find(|store| is_map || store.of_row) else {
            return;
        };
        let by = kernel.accesses[store.access as usize].kept.clone();
        let mut order: Vec<usize> = (0..kernel.kept.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(by[*at].unsigned_abs()));
        kernel.kept = order.iter().map(|at| kernel.kept[*at]).collect();
        for access in &mut kernel.accesses {
            access.kept = order.iter().map(|at| access.kept[*at]).collect();
        }
    }
}

/// Merges two dimensions into one if for every access the outer one continues where the inner one
/// ends.
fn merge(kernel: &mut FusedKernel) {
    let FusedKernel {
        kept,
        cols,
        accesses,
        ..
    } = kernel;
    let mut at = 1;
    while at < kept.len() {
        let len = kept[at] as i64;
        if accesses.iter().all(|a| a.kept[at - 1] == a.kept[at] * len) {
            kept[at - 1] *= kept[at];
            kept.remove(at);
            for access in accesses.iter_mut() {
                access.kept.remove(at - 1);
            }
        } else {
            at += 1;
        }
    }
    let mut at = 1;
    while at < cols.len() {
        let len = cols[at] as i64;
        if accesses.iter().all(|a| a.cols[at - 1] == a.cols[at] * len) {
            cols[at - 1] *= cols[at];
            cols.remove(at);
            for access in accesses.iter_mut() {
                access.cols.remove(at - 1);
            }
        } else {
            at += 1;
        }
    }
}

/// Chooses the team, and the number of elements at a time.
fn choose(kernel: &mut FusedKernel, is_map: bool, aligned: bool) {
    let span = |access: &KernelAccess| {
        let kept = access.kept.iter().zip(&kernel.kept);
        let cols = access.cols.iter().zip(&kernel.cols);
        kept.chain(cols)
            .map(|(stride, len)| stride.unsigned_abs().saturating_mul(len - 1))
            .fold(access.offset.unsigned_abs(), u64::saturating_add)
    };
    let count = kernel.rows().saturating_mul(kernel.row_len());
    let wide = kernel.accesses.iter().map(span).any(|span| span >= NARROW);
    kernel.wide = wide || kernel.rows() >= NARROW || kernel.row_len() >= NARROW;
    if is_map {
        let inner = kernel.kept.last().copied().unwrap_or(1);
        let any_len = kernel.kept.len() < 2;
        let width = width(
            kernel,
            |access| access.kept.last().copied(),
            |width| aligned && (any_len && inner >= width || inner % width == 0),
        );
        let tail = !count.is_multiple_of(width.into());
        kernel.kind = KernelKind::Map { width, tail };
        return;
    }
    let of_elements = |access: &&KernelAccess| access.cols.iter().any(|stride| *stride != 0);
    let is_along = |strides: &[i64]| strides.last() == Some(&1);
    let elements = kernel.accesses.iter().filter(of_elements);
    let (along_rows, across) = elements.fold((0, 0), |(along, across), access| {
        match (is_along(&access.cols), is_along(&access.kept)) {
            (true, _) => (along + 1, across),
            (false, true) => (along, across + 1),
            _ => (along, across),
        }
    });
    let row = kernel.part.unwrap_or(kernel.row_len());
    if across > along_rows {
        let threads = (row / RESIDENT).next_power_of_two().clamp(1, 32) as u32;
        let resident = row.div_ceil(threads.into()) <= RESIDENT;
        kernel.kind = KernelKind::Rows {
            team: Team::Columns(threads),
            width: 1,
            resident,
        };
        return;
    }
    let inner = kernel.cols.last().copied().unwrap_or(1);
    let width = width(
        kernel,
        |access| access.cols.last().copied(),
        |width| aligned && inner % width == 0,
    );
    let chunks = row.div_ceil(width.into());
    let kept_by = |threads: u64| chunks.div_ceil(threads) * u64::from(width);
    let team = match kept_by(32) <= RESIDENT {
        true => Team::Lanes(chunks.next_power_of_two().min(32) as u32),
        false => {
            let threads = row.div_ceil(RESIDENT / 2).next_multiple_of(32);
            Team::Block(threads.clamp(64, 1024) as u32)
        }
    };
    let threads = match team {
        Team::Lanes(threads) | Team::Block(threads) | Team::Columns(threads) => threads,
    };
    kernel.kind = KernelKind::Rows {
        team,
        width,
        resident: kept_by(threads.into()) <= RESIDENT,
    };
}

/// Chooses the vector width: the elements of the smallest type are 16 bytes, if those of no type
/// are more than 32. Sets for each access whether it can be vectorised.
fn width(
    kernel: &mut FusedKernel,
    inner: impl Fn(&KernelAccess) -> Option<i64>,
    divides: impl Fn(u64) -> bool,
) -> u32 {
    let bytes_of = |access: &KernelAccess| kernel.arrays[access.array as usize].1.bytes();
    let along = kernel.accesses.iter().filter(|a| inner(a) == Some(1));
    let Some((least, most)) = along
        .map(bytes_of)
        .fold(None, |found: Option<(u64, u64)>, bytes| match found {
            None => Some((bytes, bytes)),
            Some((least, most)) => Some((least.min(bytes), most.max(bytes))),
        })
    else {
        return 1;
    };
    let mut width = (16 / least).min(32 / most);
    while width > 1 && !divides(width) {
        width /= 2;
    }
    let vectors: Vec<bool> = kernel
        .accesses
        .iter()
        .map(|access| {
            let bytes = bytes_of(access);
            let unit = (width * bytes).min(16) as i64;
            let is_whole = |elements: i64| elements * bytes as i64 % unit == 0;
            let others = access.kept.iter().chain(&access.cols);
            // The inner stride is 1, and the only one that is not a multiple.
            let uneven = others.filter(|stride| !is_whole(**stride)).count();
            width > 1 && inner(access) == Some(1) && uneven == 1 && is_whole(access.offset)
        })
        .collect();
    for (access, vector) in kernel.accesses.iter_mut().zip(vectors) {
        access.vector = vector;
    }
    width as u32
}

/// Prints the kernels with their bindings.
impl fmt::Display for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, kernel) in self.kernels.iter().enumerate() {
            write!(f, "k{at}: {kernel}")?;
            write!(f, "  n = {}", kernel.kept.first().unwrap_or(&1))?;
            for (at, (slot, _)) in kernel.arrays.iter().enumerate() {
                write!(f, ", p{at} = {slot}")?;
            }
            writeln!(f)?;
        }
        for (at, temporary) in self.temporaries.iter().enumerate() {
            let Temporary {
                dtype,
                bytes,
                first,
                last,
            } = temporary;
            writeln!(
                f,
                "temporary {at}: {bytes} bytes of {dtype}, from k{first} to k{last}"
            )?;
        }
        Ok(())
    }
}
