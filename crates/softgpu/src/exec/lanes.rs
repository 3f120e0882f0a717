//! Instruction handlers over rows of 32 lanes, compiled for each instruction set.
//!
//! Every handler is compiled twice, for plain x86-64 and for AVX2 with FMA; [`Isa::detect`] chooses
//! when code is decoded. A handler is called only for instructions of the function whose frame is
//! bound, on a processor that has what it was compiled for: `unsafe` here rests on that.

use super::ctx::{Ctx, DecodedInst, Handler};
use super::registers::{ALL, LANES, MaskRow, RawLane, RowOperand};

/// A type that lanes are read as.
pub(crate) trait Lane: Copy {
    type Raw: RawLane;
    fn from_raw(raw: Self::Raw) -> Self;
    fn to_raw(self) -> Self::Raw;
}

macro_rules! lane {
    ($($t:ty, $raw:ty, |$r:ident| $from:expr, |$v:ident| $to:expr;)*) => {$(
        impl Lane for $t {
            type Raw = $raw;
            #[inline(always)]
            fn from_raw($r: $raw) -> Self { $from }
            #[inline(always)]
            fn to_raw(self) -> $raw { let $v = self; $to }
        }
    )*};
}
lane! {
    u8, u32, |r| r as u8, |v| u32::from(v);
    i8, u32, |r| r as i8, |v| u32::from(v as u8);
    u16, u32, |r| r as u16, |v| u32::from(v);
    i16, u32, |r| r as i16, |v| u32::from(v as u16);
    u32, u32, |r| r, |v| v;
    i32, u32, |r| r as i32, |v| v as u32;
    f32, u32, |r| f32::from_bits(r), |v| v.to_bits();
    u64, u64, |r| r, |v| v;
    i64, u64, |r| r as i64, |v| v as u64;
    f64, u64, |r| f64::from_bits(r), |v| v.to_bits();
}

#[inline(always)]
fn store_chunk<D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    d: RowOperand,
    n: usize,
    r: [D::Raw; 8],
) {
    if FULL {
        ctx.rows.put(d, n, r);
    } else {
        let old: [D::Raw; 8] = ctx.rows.chunk(d, n);
        let m: &[u32; LANES] = &ctx.mask_row.0;
        let v = std::array::from_fn(|k| if m[n * 8 + k] != 0 { r[k] } else { old[k] });
        ctx.rows.put(d, n, v);
    }
}

/// `d = f(a)` in every active lane.
#[inline(always)]
pub(crate) fn map1<A: Lane, D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: impl Fn(A) -> D,
) {
    for n in 0..4 {
        let a: [A::Raw; 8] = ctx.rows.chunk(i.a, n);
        let r = std::array::from_fn(|k| f(A::from_raw(a[k])).to_raw());
        store_chunk::<D, FULL>(ctx, i.d, n, r);
    }
}

/// [`map1`] in one loop over the lanes: of a long function the compiler makes vectors only so.
#[inline(always)]
pub(crate) fn map1_loop<A: Lane, D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: impl Fn(A) -> D,
) {
    let a: [[A::Raw; 8]; 4] = std::array::from_fn(|n| ctx.rows.chunk(i.a, n));
    let mut r: [[D::Raw; 8]; 4] = std::array::from_fn(|n| ctx.rows.chunk(i.d, n));
    for (r, a) in r.as_flattened_mut().iter_mut().zip(a.as_flattened()) {
        *r = f(A::from_raw(*a)).to_raw();
    }
    for (n, r) in r.into_iter().enumerate() {
        store_chunk::<D, FULL>(ctx, i.d, n, r);
    }
}

/// [`map2`] in one loop over the lanes, as [`map1_loop`].
#[inline(always)]
pub(crate) fn map2_loop<A: Lane, B: Lane, D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: impl Fn(A, B) -> D,
) {
    let a: [[A::Raw; 8]; 4] = std::array::from_fn(|n| ctx.rows.chunk(i.a, n));
    let b: [[B::Raw; 8]; 4] = std::array::from_fn(|n| ctx.rows.chunk(i.b, n));
    let mut r: [[D::Raw; 8]; 4] = std::array::from_fn(|n| ctx.rows.chunk(i.d, n));
    let pairs = a.as_flattened().iter().zip(b.as_flattened());
    for (r, (a, b)) in r.as_flattened_mut().iter_mut().zip(pairs) {
        *r = f(A::from_raw(*a), B::from_raw(*b)).to_raw();
    }
    for (n, r) in r.into_iter().enumerate() {
        store_chunk::<D, FULL>(ctx, i.d, n, r);
    }
}

/// `d = f(a, b)` in every active lane.
#[inline(always)]
pub(crate) fn map2<A: Lane, B: Lane, D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: impl Fn(A, B) -> D,
) {
    for n in 0..4 {
        let a: [A::Raw; 8] = ctx.rows.chunk(i.a, n);
        let b: [B::Raw; 8] = ctx.rows.chunk(i.b, n);
        let r = std::array::from_fn(|k| f(A::from_raw(a[k]), B::from_raw(b[k])).to_raw());
        store_chunk::<D, FULL>(ctx, i.d, n, r);
    }
}

/// `d = f(a, b, c)` in every active lane.
#[inline(always)]
pub(crate) fn map3<A: Lane, B: Lane, C: Lane, D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    f: impl Fn(A, B, C) -> D,
) {
    for n in 0..4 {
        let a: [A::Raw; 8] = ctx.rows.chunk(i.a, n);
        let b: [B::Raw; 8] = ctx.rows.chunk(i.b, n);
        let c: [C::Raw; 8] = ctx.rows.chunk(i.c, n);
        let r = std::array::from_fn(|k| {
            f(A::from_raw(a[k]), B::from_raw(b[k]), C::from_raw(c[k])).to_raw()
        });
        store_chunk::<D, FULL>(ctx, i.d, n, r);
    }
}

/// The lanes (active or not) where `f(a, b)`.
#[inline(always)]
pub(crate) fn test2<A: Lane, B: Lane>(
    ctx: &Ctx<'_>,
    i: &DecodedInst,
    f: impl Fn(A, B) -> bool,
) -> u32 {
    let mut out = 0;
    for n in 0..4 {
        let a: [A::Raw; 8] = ctx.rows.chunk(i.a, n);
        let b: [B::Raw; 8] = ctx.rows.chunk(i.b, n);
        let r: [u32; 8] =
            std::array::from_fn(|k| u32::from(f(A::from_raw(a[k]), B::from_raw(b[k]))) << k);
        let bits = r.iter().fold(0, |x, y| x | y);
        out |= bits << (n * 8);
    }
    out
}

/// `d = p ? a : b` in every active lane.
#[inline(always)]
pub(crate) fn select<T: Lane, const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst, p: u32) {
    let m = MaskRow::new(p);
    for n in 0..4 {
        let a: [T::Raw; 8] = ctx.rows.chunk(i.a, n);
        let b: [T::Raw; 8] = ctx.rows.chunk(i.b, n);
        let r = std::array::from_fn(|k| if m.0[n * 8 + k] != 0 { a[k] } else { b[k] });
        store_chunk::<T, FULL>(ctx, i.d, n, r);
    }
}

/// Behaviour of an instruction.
pub(crate) trait Exec: 'static {
    /// For the active lanes; with `FULL` these are all 32.
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst);
}

/// Which of its two compilations code uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    Baseline,
    V3,
}

impl Isa {
    pub(crate) fn detect() -> Self {
        let v3 = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("f16c")
            && std::arch::is_x86_feature_detected!("popcnt")
            && std::arch::is_x86_feature_detected!("lzcnt");
        if v3 { Isa::V3 } else { Isa::Baseline }
    }
}

/// A behaviour's compilations.
#[derive(Clone, Copy)]
pub(crate) struct Handlers {
    baseline: [Handler; 2],
    v3: [Handler; 2],
}

impl Handlers {
    pub(crate) fn pick(&self, isa: Isa) -> [Handler; 2] {
        match isa {
            Isa::Baseline => self.baseline,
            Isa::V3 => self.v3,
        }
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handlers")
    }
}

unsafe fn plain<E: Exec, const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
    E::run::<FULL>(ctx, i);
}

#[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,popcnt,lzcnt")]
unsafe fn v3<E: Exec, const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
    E::run::<FULL>(ctx, i);
}

/// All four compilations.
pub(crate) const fn handlers<E: Exec>() -> Handlers {
    Handlers {
        baseline: [plain::<E, false>, plain::<E, true>],
        v3: [v3::<E, false>, v3::<E, true>],
    }
}

/// For instructions that gain nothing from knowing that all lanes are active.
pub(crate) const fn handlers_any<E: Exec>() -> Handlers {
    Handlers {
        baseline: [plain::<E, false>, plain::<E, false>],
        v3: [v3::<E, false>, v3::<E, false>],
    }
}

/// `V` where there is AVX2 with FMA, `E` elsewhere, for instructions that gain nothing from knowing
/// that all lanes are active. `V` is called on no other processor.
pub(crate) const fn handlers_with_vectors<E: Exec, V: Exec>() -> Handlers {
    Handlers {
        baseline: [plain::<E, false>, plain::<E, false>],
        v3: [v3::<V, false>, v3::<V, false>],
    }
}

/// For instructions that gain nothing from vectors either.
pub(crate) const fn handlers_plain<E: Exec>() -> Handlers {
    Handlers {
        baseline: [plain::<E, false>, plain::<E, false>],
        v3: [plain::<E, false>, plain::<E, false>],
    }
}

/// Runs the instruction behind a guard for the lanes that pass it.
struct Guarded;

impl Exec for Guarded {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let pass = ctx.rows.pred(i.guard) & ctx.mask;
        if pass == ctx.mask {
            // SAFETY: `inner` was chosen for this processor together with `f`, for the same
            // instruction.
            unsafe { i.inner[usize::from(FULL)](ctx, i) }
        } else if pass != 0 {
            let (mask, row) = (ctx.mask, ctx.mask_row);
            ctx.mask = pass;
            ctx.mask_row = MaskRow::new(pass);
            // SAFETY: as above.
            unsafe { i.inner[0](ctx, i) }
            ctx.mask = mask;
            ctx.mask_row = row;
        }
    }
}

pub(crate) fn guarded() -> Handlers {
    handlers::<Guarded>()
}

/// Runs straight-line code.
///
/// # Safety
/// `insts` belong to the function of the frame that is bound to `ctx`.
#[inline(always)]
pub(crate) unsafe fn run(ctx: &mut Ctx<'_>, insts: &[DecodedInst]) {
    let full = usize::from(ctx.mask == ALL);
    for i in insts {
        // SAFETY: by the contract; the handlers were picked for this processor when the code was
        // decoded.
        unsafe { i.f[full](ctx, i) }
    }
}

/// Declares behaviours that work lane by lane.
macro_rules! lane_ops {
    ($($name:ident = $map:ident($($t:ty),+) |$($p:ident),+| $e:expr;)*) => {$(
        pub(crate) struct $name;
        impl $crate::exec::lanes::Exec for $name {
            #[inline(always)]
            fn run<const FULL: bool>(ctx: &mut $crate::exec::ctx::Ctx<'_>, i: &$crate::exec::ctx::DecodedInst) {
                $map::<$($t,)+ FULL>(ctx, i, |$($p),+| $e);
            }
        }
    )*};
}
pub(crate) use lane_ops;

/// Calls a lane function; see [`Lower::lane_fn`].
struct LaneCall;

impl Exec for LaneCall {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let f = &ctx.code.lane_fns[i.x as usize];
        let mut m = ctx.mask;
        while m != 0 {
            let l = m.trailing_zeros() as usize;
            m &= m - 1;
            let get = |ctx: &Ctx<'_>, o, bit: u32| {
                if i.imm >> bit & 1 != 0 {
                    ctx.rows.lane::<u64>(o, l)
                } else {
                    u64::from(ctx.rows.lane::<u32>(o, l))
                }
            };
            let v = f(get(ctx, i.a, 1), get(ctx, i.b, 2), get(ctx, i.c, 3));
            if i.imm & 1 != 0 {
                ctx.rows.set_lane::<u64>(i.d, l, v);
            } else {
                ctx.rows.set_lane::<u32>(i.d, l, v as u32);
            }
        }
    }
}

pub(crate) fn lane_call() -> Handlers {
    handlers_plain::<LaneCall>()
}
