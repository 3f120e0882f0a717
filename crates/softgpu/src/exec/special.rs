//! Special registers.

use fercuda_ptx::check::is_special_register;

use super::ctx::{Ctx, DecodedInst, RESERVED_SHARED_BYTES};
use super::lanes::{Exec, Handlers, handlers_any, handlers_plain};
use super::lower::{Lower, LowerError, Lowered, Opd, PredRef};
use super::program::{Const, LaunchValue};
use super::registers::PredOperand;
use super::tags::LOCAL_TAG;

/// What [`Read`] reads; the number is in the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Sreg {
    TidX,
    TidY,
    TidZ,
    NtidX,
    NtidY,
    NtidZ,
    CtaidX,
    CtaidY,
    CtaidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    Laneid,
    Warpid,
    Nwarpid,
    Smid,
    Nsmid,
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGt,
    MaskGe,
    Clock,
    ClockHi,
    Clock64,
    Globaltimer,
    GlobaltimerHi,
    Globaltimer64,
    DynamicShared,
    TotalShared,
    AggregateShared,
    ReservedBegin,
    ReservedEnd,
    ReservedCap,
    ReservedOffset0,
    ReservedOffset1,
    Gridid64,
    Envreg1,
    Envreg2,
    ClusteridX,
    ClusteridY,
    ClusteridZ,
    NclusteridX,
    NclusteridY,
    NclusteridZ,
    ClusterCtaidX,
    ClusterCtaidY,
    ClusterCtaidZ,
    ClusterNctaidX,
    ClusterNctaidY,
    ClusterNctaidZ,
    ClusterRank,
    ClusterSize,
    Zero,
}

const NAMES: &[(&str, Sreg, u8)] = &[
    ("%tid.x", Sreg::TidX, 1),
    ("%tid.y", Sreg::TidY, 1),
    ("%tid.z", Sreg::TidZ, 1),
    ("%ntid.x", Sreg::NtidX, 1),
    ("%ntid.y", Sreg::NtidY, 1),
    ("%ntid.z", Sreg::NtidZ, 1),
    ("%ctaid.x", Sreg::CtaidX, 1),
    ("%ctaid.y", Sreg::CtaidY, 1),
    ("%ctaid.z", Sreg::CtaidZ, 1),
    ("%nctaid.x", Sreg::NctaidX, 1),
    ("%nctaid.y", Sreg::NctaidY, 1),
    ("%nctaid.z", Sreg::NctaidZ, 1),
    ("%laneid", Sreg::Laneid, 1),
    ("%warpid", Sreg::Warpid, 1),
    ("%nwarpid", Sreg::Nwarpid, 1),
    ("%smid", Sreg::Smid, 1),
    ("%nsmid", Sreg::Nsmid, 1),
    ("%lanemask_eq", Sreg::MaskEq, 1),
    ("%lanemask_lt", Sreg::MaskLt, 1),
    ("%lanemask_le", Sreg::MaskLe, 1),
    ("%lanemask_gt", Sreg::MaskGt, 1),
    ("%lanemask_ge", Sreg::MaskGe, 1),
    ("%clock", Sreg::Clock, 1),
    ("%clock_hi", Sreg::ClockHi, 1),
    ("%clock64", Sreg::Clock64, 2),
    ("%globaltimer_lo", Sreg::Globaltimer, 1),
    ("%globaltimer_hi", Sreg::GlobaltimerHi, 1),
    ("%globaltimer", Sreg::Globaltimer64, 2),
    ("%dynamic_smem_size", Sreg::DynamicShared, 1),
    ("%total_smem_size", Sreg::TotalShared, 1),
    ("%aggr_smem_size", Sreg::AggregateShared, 1),
    ("%reserved_smem_offset_begin", Sreg::ReservedBegin, 1),
    ("%reserved_smem_offset_end", Sreg::ReservedEnd, 1),
    ("%reserved_smem_offset_cap", Sreg::ReservedCap, 1),
    ("%reserved_smem_offset_0", Sreg::ReservedOffset0, 1),
    ("%reserved_smem_offset_1", Sreg::ReservedOffset1, 1),
    ("%gridid", Sreg::Gridid64, 2),
    ("%clusterid.x", Sreg::ClusteridX, 1),
    ("%clusterid.y", Sreg::ClusteridY, 1),
    ("%clusterid.z", Sreg::ClusteridZ, 1),
    ("%nclusterid.x", Sreg::NclusteridX, 1),
    ("%nclusterid.y", Sreg::NclusteridY, 1),
    ("%nclusterid.z", Sreg::NclusteridZ, 1),
    ("%cluster_ctaid.x", Sreg::ClusterCtaidX, 1),
    ("%cluster_ctaid.y", Sreg::ClusterCtaidY, 1),
    ("%cluster_ctaid.z", Sreg::ClusterCtaidZ, 1),
    ("%cluster_nctaid.x", Sreg::ClusterNctaidX, 1),
    ("%cluster_nctaid.y", Sreg::ClusterNctaidY, 1),
    ("%cluster_nctaid.z", Sreg::ClusterNctaidZ, 1),
    ("%cluster_ctarank", Sreg::ClusterRank, 1),
    ("%cluster_nctarank", Sreg::ClusterSize, 1),
    ("%envreg1", Sreg::Envreg1, 1),
    ("%envreg2", Sreg::Envreg2, 1),
];

/// Reads a special register into a temporary: (value, rows).
pub(crate) fn read(l: &mut Lower<'_, '_>, name: &str) -> Lowered<(Opd, u8)> {
    let found = NAMES.iter().find(|n| n.0 == name);
    let (sreg, rows) = match found {
        Some(n) => (n.1, n.2),
        // Fourth components, performance counters that count nothing, values of no driver.
        None if is_special_register(name) => {
            let is_wide = name.ends_with("_64") || name == "%current_graph_exec";
            (Sreg::Zero, if is_wide { 2 } else { 1 })
        }
        None => return Err(LowerError::Bad(format!("unknown name `{name}`"))),
    };
    let launch = match sreg {
        Sreg::NtidX => Some(LaunchValue::BlockSize(0)),
        Sreg::NtidY => Some(LaunchValue::BlockSize(1)),
        Sreg::NtidZ => Some(LaunchValue::BlockSize(2)),
        Sreg::NctaidX => Some(LaunchValue::GridSize(0)),
        Sreg::NctaidY => Some(LaunchValue::GridSize(1)),
        Sreg::NctaidZ => Some(LaunchValue::GridSize(2)),
        _ => None,
    };
    if let Some(value) = launch {
        return Ok((l.constant(Const::Launch(value)), 1));
    }
    l.k.reserves_shared |= name.starts_with("%reserved_smem");
    let t = l.temp_rows(rows);
    l.prepare(
        handlers_any::<Read>(),
        Opd::Def(t),
        Opd::None,
        Opd::None,
        Opd::None,
    )
    .imm = sreg as u64;
    Ok((Opd::Use(t), rows))
}

pub(crate) fn local_address() -> Handlers {
    handlers_plain::<LocalAddress>()
}

/// The address in local space of an offset in the frame.
struct LocalAddress;
impl Exec for LocalAddress {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let at = u64::from(ctx.local_base).wrapping_add(i.imm) & !LOCAL_TAG;
        let mask = ctx.mask;
        ctx.rows.set_row::<u64>(i.d, &[at; 32], mask);
    }
}

/// A special register about the block's cluster; 0 of every other number.
fn of_cluster(ctx: &Ctx<'_>, n: u64) -> u32 {
    let (cluster, count) = ctx.run.cluster_shape();
    let axis = |first: Sreg| n.checked_sub(first as u64).filter(|&axis| axis < 3);
    if let Some(axis) = axis(Sreg::ClusteridX) {
        return ctx.block.index[axis as usize] / cluster[axis as usize].max(1);
    }
    if let Some(axis) = axis(Sreg::NclusteridX) {
        return count[axis as usize];
    }
    if let Some(axis) = axis(Sreg::ClusterCtaidX) {
        return ctx.block.index[axis as usize] % cluster[axis as usize].max(1);
    }
    if let Some(axis) = axis(Sreg::ClusterNctaidX) {
        return cluster[axis as usize];
    }
    match n {
        n if n == Sreg::ClusterRank as u64 => ctx.rank(),
        n if n == Sreg::ClusterSize as u64 => ctx.run.cluster_size,
        _ => 0,
    }
}

/// `p = whether the launch has clusters that were asked for`.
struct ReadExplicitCluster;
impl Exec for ReadExplicitCluster {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let value = match ctx.run.spec.explicit_cluster {
            true => u32::MAX,
            false => 0,
        };
        let mask = ctx.mask;
        let to = PredOperand::from_bits(i.imm as u32);
        ctx.rows.set_pred(to, value, mask);
    }
}

/// Reads `%is_explicit_cluster` into a temporary.
pub(crate) fn explicit_cluster(l: &mut Lower<'_, '_>) -> PredRef {
    let t = l.temp_pred();
    let none = Opd::None;
    let x = l.prepare(
        handlers_plain::<ReadExplicitCluster>(),
        none,
        none,
        none,
        none,
    );
    x.imm_lo = Some(PredRef::Def(t));
    PredRef::Use(t, false)
}

struct Read;
impl Exec for Read {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let spec = &ctx.run.spec;
        let block = ctx.block.index;
        let linear = |l: u32| ctx.linear_thread(l);
        let wide = |v: u64| [v; 32];
        let mask = ctx.mask;
        let is = |s: Sreg| i.imm == s as u64;
        if is(Sreg::TidX) || is(Sreg::TidY) || is(Sreg::TidZ) {
            let (bx, by) = (spec.block[0], spec.block[1]);
            let first = linear(0);
            // Rows of threads are often as long as the block, or whole warps.
            let x = if first < bx { first } else { first % bx };
            let row: [u32; 32] = if is(Sreg::TidX) && x + 32 <= bx {
                std::array::from_fn(|l| x + l as u32)
            } else {
                std::array::from_fn(|l| {
                    let t = first + l as u32;
                    if is(Sreg::TidX) {
                        t % bx
                    } else if is(Sreg::TidY) {
                        t / bx % by
                    } else {
                        t / bx / by
                    }
                })
            };
            ctx.rows.set_row::<u32>(i.d, &row, mask);
            return;
        }
        // What tells the time may be read while lanes wait.
        if is(Sreg::Clock64) || is(Sreg::Globaltimer64) || is(Sreg::Gridid64) {
            let v = if is(Sreg::Gridid64) {
                ctx.run.grid_id
            } else if is(Sreg::Clock64) {
                ctx.run.nanoseconds()
            } else {
                ctx.run.wall_nanoseconds()
            };
            ctx.waits += u32::from(!is(Sreg::Gridid64));
            ctx.rows.set_row::<u64>(i.d, &wide(v), mask);
            return;
        }
        let lanes = |f: fn(u32) -> u32| std::array::from_fn(|l| f(l as u32));
        let row: [u32; 32] = match i.imm {
            n if n == Sreg::Laneid as u64 => lanes(|l| l),
            n if n == Sreg::MaskEq as u64 => lanes(|l| 1 << l),
            n if n == Sreg::MaskLt as u64 => lanes(|l| (1 << l) - 1),
            n if n == Sreg::MaskLe as u64 => lanes(|l| u32::MAX >> (31 - l)),
            n if n == Sreg::MaskGt as u64 => lanes(|l| !(u32::MAX >> (31 - l))),
            n if n == Sreg::MaskGe as u64 => lanes(|l| !((1 << l) - 1)),
            n => {
                let all = match n {
                    n if n == Sreg::CtaidX as u64 => block[0],
                    n if n == Sreg::CtaidY as u64 => block[1],
                    n if n == Sreg::CtaidZ as u64 => block[2],
                    n if n == Sreg::Warpid as u64 => ctx.warp as u32,
                    n if n == Sreg::Nwarpid as u64 => ctx.block.warps.len() as u32,
                    n if n == Sreg::Smid as u64 => {
                        (ctx.block.linear % u64::from(spec.device.multiprocessors.max(1))) as u32
                    }
                    n if n == Sreg::Nsmid as u64 => spec.device.multiprocessors,
                    n if n == Sreg::Clock as u64 => ctx.run.nanoseconds() as u32,
                    n if n == Sreg::ClockHi as u64 => (ctx.run.nanoseconds() >> 32) as u32,
                    n if n == Sreg::Globaltimer as u64 => ctx.run.wall_nanoseconds() as u32,
                    n if n == Sreg::GlobaltimerHi as u64 => {
                        (ctx.run.wall_nanoseconds() >> 32) as u32
                    }
                    n if n == Sreg::DynamicShared as u64 => spec.dynamic_shared_bytes,
                    n if n == Sreg::TotalShared as u64 => ctx.run.shared_bytes,
                    n if n == Sreg::AggregateShared as u64 => {
                        ctx.run.shared_bytes + RESERVED_SHARED_BYTES
                    }
                    n if n == Sreg::ReservedBegin as u64 || n == Sreg::ReservedOffset0 as u64 => {
                        ctx.run.reserved_at
                    }
                    n if n == Sreg::ReservedOffset1 as u64 => {
                        ctx.run.reserved_at + RESERVED_SHARED_BYTES / 2
                    }
                    n if n == Sreg::ReservedEnd as u64 => {
                        ctx.run.reserved_at + RESERVED_SHARED_BYTES
                    }
                    n if n == Sreg::ReservedCap as u64 => RESERVED_SHARED_BYTES,
                    n if n == Sreg::Envreg1 as u64 => (ctx.run.workspace >> 32) as u32,
                    n if n == Sreg::Envreg2 as u64 => ctx.run.workspace as u32,
                    n => of_cluster(ctx, n),
                };
                [all; 32]
            }
        };
        let clocks = [
            Sreg::Clock,
            Sreg::ClockHi,
            Sreg::Globaltimer,
            Sreg::GlobaltimerHi,
        ];
        ctx.waits += u32::from(clocks.into_iter().any(is));
        ctx.rows.set_row::<u32>(i.d, &row, mask);
    }
}
