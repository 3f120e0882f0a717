//! Register rows of 32 lanes, and the instruction handlers over them, compiled per ISA.
//!
//! A register is a row (128 bytes, 32 lanes of 32 bits; 16- and 8-bit registers too,
//! zero-extended), two rows (32 lanes of 64 bits) or four (two times 32 lanes of 64 bits).
//! Constants are rows of a bank of their own. A predicate is a bit mask.
//!
//! All `unsafe` of the executor is here. It rests on one fact: every operand was verified when the
//! code was decoded
//! ([`super::program`]), and frames and banks have four spare rows behind the last, so that any row
//! number that passed can be read and written at any width.
//!
//! Every handler is compiled twice, for plain x86-64 and for AVX2 with FMA; [`Isa::detect`] chooses
//! when code is decoded.

use super::ctx::Ctx;
use super::program::Inst;
use crate::mem::{At, Scalar};

pub(crate) const LANES: usize = 32;
pub(crate) const ROW_BYTES: usize = 128;
pub(crate) const ALL: u32 = u32::MAX;

/// Executes one instruction for the active lanes.
///
/// # Safety
/// The instruction belongs to the function of the frame that is bound to the context, and the
/// processor has the features the handler was compiled for.
pub(crate) type Handler = for<'l> unsafe fn(&mut Ctx<'l>, &Inst);

/// A row of the frame, or of the constants when odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Operand(u32);

impl Operand {
    pub(crate) fn reg(row: u32) -> Self {
        Operand(row * ROW_BYTES as u32)
    }
    pub(crate) fn constant(row: u32) -> Self {
        Operand((row * ROW_BYTES as u32) | 1)
    }
    pub(crate) fn is_const(self) -> bool {
        self.0 & 1 != 0
    }
    pub(crate) fn row(self) -> u32 {
        self.0 / ROW_BYTES as u32
    }
    pub(crate) fn from_bits(bits: u32) -> Self {
        Operand(bits)
    }
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
    /// The row `n` further.
    pub(crate) fn plus(self, n: u32) -> Self {
        Operand(self.0 + n * ROW_BYTES as u32)
    }
}

/// A predicate, perhaps negated. Slot 0 is always true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PredOperand(u32);

impl Default for PredOperand {
    fn default() -> Self {
        Self::TRUE
    }
}

impl PredOperand {
    pub(crate) const TRUE: Self = PredOperand(0);
    pub(crate) const FALSE: Self = PredOperand(1);
    pub(crate) fn new(slot: u32, negated: bool) -> Self {
        PredOperand((slot << 1) | u32::from(negated))
    }
    pub(crate) fn slot(self) -> u32 {
        self.0 >> 1
    }
    pub(crate) fn from_bits(bits: u32) -> Self {
        PredOperand(bits)
    }
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

#[repr(C, align(128))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegisterRow([u8; ROW_BYTES]);

impl RegisterRow {
    pub(crate) const ZERO: RegisterRow = RegisterRow([0; ROW_BYTES]);
    pub(crate) fn bytes(&mut self) -> &mut [u8; ROW_BYTES] {
        &mut self.0
    }
}

/// The storage of a frame: rows and predicates, with spare rows behind.
#[derive(Debug)]
pub(crate) struct FrameRows {
    rows: Box<[RegisterRow]>,
    preds: Box<[u32]>,
}

impl FrameRows {
    pub(crate) fn new(rows: u32, preds: u32) -> Self {
        let mut preds = vec![0; preds.max(1) as usize].into_boxed_slice();
        preds[0] = ALL;
        FrameRows {
            rows: vec![RegisterRow::ZERO; rows as usize + 4].into_boxed_slice(),
            preds,
        }
    }
    pub(crate) fn fits(&self, rows: u32, preds: u32) -> bool {
        self.rows.len() >= rows as usize + 4 && self.preds.len() >= preds.max(1) as usize
    }
    pub(crate) fn clear(&mut self) {
        self.rows.fill(RegisterRow::ZERO);
        self.preds[1..].fill(0);
    }
    pub(crate) fn row(&mut self, row: u32) -> &mut [u8; ROW_BYTES] {
        self.rows[row as usize].bytes()
    }
}

/// The frame and constants that instructions work on.
pub(crate) struct RegisterFile {
    /// Frame, constants.
    banks: [*mut u8; 2],
    preds: *mut u32,
}

// SAFETY: the pointers are into boxes that the same block state owns; they move with it from thread
// to thread.
unsafe impl Send for RegisterFile {}

impl RegisterFile {
    pub(crate) fn unbound() -> Self {
        RegisterFile {
            banks: [std::ptr::null_mut(); 2],
            preds: std::ptr::null_mut(),
        }
    }

    /// Points at a frame and a constant bank.
    ///
    /// # Safety
    /// Both stay in place until the next `bind`; they belong to the function of the instructions
    /// that run meanwhile, and no other code accesses the frame.
    pub(crate) unsafe fn bind(&mut self, frame: &mut FrameRows, consts: &[RegisterRow]) {
        self.banks = [
            frame.rows.as_mut_ptr().cast(),
            consts.as_ptr().cast::<u8>().cast_mut(),
        ];
        self.preds = frame.preds.as_mut_ptr();
    }

    #[inline(always)]
    fn at(&self, o: Operand) -> *mut u8 {
        // SAFETY: `o` was verified against the bound function, so the offset stays inside the bank.
        unsafe { self.banks[(o.0 & 1) as usize].add((o.0 & !1) as usize) }
    }

    /// Eight lanes from `chunk * 8`.
    #[inline(always)]
    pub(crate) fn chunk<R: RawLane>(&self, o: Operand, chunk: usize) -> [R; 8] {
        // SAFETY: any verified row can be read at up to four rows' width (module invariant), which
        // four chunks of lanes of at most 64 bits are; rows are aligned.
        unsafe { self.at(o).cast::<[R; 8]>().add(chunk & 3).read() }
    }

    /// Eight lanes from `chunk * 8`.
    #[inline(always)]
    pub(crate) fn put<R: RawLane>(&mut self, o: Operand, chunk: usize, v: [R; 8]) {
        // SAFETY: as for `chunk`; destinations are never constants (verified).
        unsafe { self.at(o).cast::<[R; 8]>().add(chunk & 3).write(v) }
    }

    /// All lanes.
    #[inline(always)]
    pub(crate) fn row<R: RawLane>(&self, o: Operand) -> [R; LANES] {
        // SAFETY: as for `chunk`.
        unsafe { self.at(o).cast::<[R; LANES]>().read() }
    }

    /// One lane.
    #[inline(always)]
    pub(crate) fn lane<R: RawLane>(&self, o: Operand, lane: usize) -> R {
        // SAFETY: as for `chunk`, for a lane below 32.
        unsafe { self.at(o).cast::<R>().add(lane & 31).read() }
    }

    /// One lane.
    #[inline(always)]
    pub(crate) fn set_lane<R: RawLane>(&mut self, o: Operand, lane: usize, v: R) {
        // SAFETY: as for `put`, for a lane below 32.
        unsafe { self.at(o).cast::<R>().add(lane & 31).write(v) }
    }

    /// The lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set_row<R: RawLane>(&mut self, o: Operand, v: &[R; LANES], mask: u32) {
        if mask == ALL {
            // SAFETY: as for `put`.
            unsafe { self.at(o).cast::<[R; LANES]>().write(*v) }
        } else {
            let mut m = mask;
            while m != 0 {
                let l = m.trailing_zeros() as usize;
                self.set_lane(o, l, v[l]);
                m &= m - 1;
            }
        }
    }

    /// Eight lanes from `chunk * 8`, as bytes.
    #[inline(always)]
    pub(crate) fn bytes<R: RawLane>(&self, o: Operand, chunk: usize) -> &[[u8; 32]] {
        let len = size_of::<[R; 8]>() / 32;
        // SAFETY: as for `chunk`; the borrow of `self` keeps writers away.
        unsafe {
            std::slice::from_raw_parts(self.at(o).cast::<[u8; 32]>().add(len * (chunk & 3)), len)
        }
    }

    /// Eight lanes from `chunk * 8`, as bytes.
    #[inline(always)]
    pub(crate) fn bytes_mut<R: RawLane>(&mut self, o: Operand, chunk: usize) -> &mut [[u8; 32]] {
        let len = size_of::<[R; 8]>() / 32;
        // SAFETY: as for `put`; the borrow of `self` keeps other row accesses away.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.at(o).cast::<[u8; 32]>().add(len * (chunk & 3)),
                len,
            )
        }
    }

    #[inline(always)]
    pub(crate) fn pred(&self, p: PredOperand) -> u32 {
        // SAFETY: the slot was verified against the bound function.
        let v = unsafe { *self.preds.add(p.slot() as usize) };
        v ^ 0u32.wrapping_sub(p.0 & 1)
    }

    /// Sets the lanes of `mask`; slot 0 stays true.
    #[inline(always)]
    pub(crate) fn set_pred(&mut self, p: PredOperand, value: u32, mask: u32) {
        if p.slot() == 0 {
            return;
        }
        // SAFETY: as for `pred`.
        unsafe {
            let at = self.preds.add(p.slot() as usize);
            *at = (*at & !mask) | (value & mask);
        }
    }
}

/// All lanes, eight at a time.
#[inline(always)]
pub(crate) fn eights<A>(a: &[A; LANES]) -> &[[A; 8]] {
    a.as_chunks().0
}

/// Little-endian integers at eight offsets in `bytes`.
///
/// # Panics
/// If one reaches beyond the end.
#[inline(always)]
pub(crate) fn gather<T: Scalar>(bytes: &[u8], off: &[u32; 8]) -> [T; 8] {
    let last = bytes.len().checked_sub(size_of::<T>());
    let last = last.and_then(|n| i32::try_from(n).ok());
    assert!(last.is_some_and(|last| u32::within(off, 0, last as u32, 0)));
    let at = bytes.as_ptr();
    // SAFETY: a `T` fits from every offset on, checked just above; it is a plain integer.
    off.map(|o| unsafe { at.add(o as usize).cast::<T>().read_unaligned() })
}

/// What a lane of a row is.
pub(crate) trait RawLane: Copy + Default + 'static {}
impl RawLane for u32 {}
impl RawLane for u64 {}

/// The active lanes as a row of zeros and ones.
#[repr(C, align(32))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaskRow(pub(crate) [u32; LANES]);

impl MaskRow {
    #[inline(always)]
    pub(crate) fn new(mask: u32) -> Self {
        MaskRow(std::array::from_fn(|l| 0u32.wrapping_sub((mask >> l) & 1)))
    }
}

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
fn store_chunk<D: Lane, const FULL: bool>(ctx: &mut Ctx<'_>, d: Operand, n: usize, r: [D::Raw; 8]) {
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
    i: &Inst,
    f: impl Fn(A) -> D,
) {
    for n in 0..4 {
        let a: [A::Raw; 8] = ctx.rows.chunk(i.a, n);
        let r = std::array::from_fn(|k| f(A::from_raw(a[k])).to_raw());
        store_chunk::<D, FULL>(ctx, i.d, n, r);
    }
}

/// `d = f(a, b)` in every active lane.
#[inline(always)]
pub(crate) fn map2<A: Lane, B: Lane, D: Lane, const FULL: bool>(
    ctx: &mut Ctx<'_>,
    i: &Inst,
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
    i: &Inst,
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
pub(crate) fn test2<A: Lane, B: Lane>(ctx: &Ctx<'_>, i: &Inst, f: impl Fn(A, B) -> bool) -> u32 {
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
pub(crate) fn select<T: Lane, const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst, p: u32) {
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
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst);
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

unsafe fn plain<E: Exec, const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
    E::run::<FULL>(ctx, i);
}

#[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,popcnt,lzcnt")]
unsafe fn v3<E: Exec, const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
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
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
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
pub(crate) unsafe fn run(ctx: &mut Ctx<'_>, insts: &[Inst]) {
    let full = usize::from(ctx.mask == ALL);
    for i in insts {
        // SAFETY: by the contract; the handlers were picked for this processor when the code was
        // decoded.
        unsafe { i.f[full](ctx, i) }
    }
}
