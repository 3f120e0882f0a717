//! Register rows of 32 lanes, frames of them, and the operands that name them.
//!
//! A register is a row (128 bytes, 32 lanes of 32 bits; 16- and 8-bit registers too,
//! zero-extended), two rows (32 lanes of 64 bits) or four (two times 32 lanes of 64 bits).
//! Constants are rows of a bank of their own. A predicate is a bit mask.
//!
//! The `unsafe` here rests on one fact: every operand was verified when the code was decoded
//! ([`super::ctx::FunctionCode::verify`]), and frames and banks have four spare rows behind the
//! last, so that any row number that passed can be read and written at any width.

use crate::mem::{At, MemoryInt};

pub(crate) const LANES: usize = 32;

pub(crate) const ROW_BYTES: usize = 128;

pub(crate) const ALL: u32 = u32::MAX;

/// A row of the frame, or of the constants when odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RowOperand(u32);

impl RowOperand {
    pub(crate) fn reg(row: u32) -> Self {
        RowOperand(row * ROW_BYTES as u32)
    }
    pub(crate) fn constant(row: u32) -> Self {
        RowOperand((row * ROW_BYTES as u32) | 1)
    }
    pub(crate) fn is_const(self) -> bool {
        self.0 & 1 != 0
    }
    pub(crate) fn row(self) -> u32 {
        self.0 / ROW_BYTES as u32
    }
    pub(crate) fn from_bits(bits: u32) -> Self {
        RowOperand(bits)
    }
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
    /// The row `n` further.
    pub(crate) fn plus(self, n: u32) -> Self {
        RowOperand(self.0 + n * ROW_BYTES as u32)
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
    fn at(&self, o: RowOperand) -> *mut u8 {
        // SAFETY: `o` was verified against the bound function, so the offset stays inside the bank.
        unsafe { self.banks[(o.0 & 1) as usize].add((o.0 & !1) as usize) }
    }

    /// Eight lanes from `chunk * 8`.
    #[inline(always)]
    pub(crate) fn chunk<R: RawLane>(&self, o: RowOperand, chunk: usize) -> [R; 8] {
        // SAFETY: any verified row can be read at up to four rows' width (module invariant), which
        // four chunks of lanes of at most 64 bits are; rows are aligned.
        unsafe { self.at(o).cast::<[R; 8]>().add(chunk & 3).read() }
    }

    /// Eight lanes from `chunk * 8`.
    #[inline(always)]
    pub(crate) fn put<R: RawLane>(&mut self, o: RowOperand, chunk: usize, v: [R; 8]) {
        // SAFETY: as for `chunk`; destinations are never constants (verified).
        unsafe { self.at(o).cast::<[R; 8]>().add(chunk & 3).write(v) }
    }

    /// All lanes.
    #[inline(always)]
    pub(crate) fn row<R: RawLane>(&self, o: RowOperand) -> [R; LANES] {
        // SAFETY: as for `chunk`.
        unsafe { self.at(o).cast::<[R; LANES]>().read() }
    }

    /// All lanes, where they are.
    #[inline(always)]
    pub(crate) fn row_ref<R: RawLane>(&self, o: RowOperand) -> &[R; LANES] {
        // SAFETY: as for `chunk`; the borrow of `self` keeps writers away.
        unsafe { &*self.at(o).cast::<[R; LANES]>() }
    }

    /// One lane.
    #[inline(always)]
    pub(crate) fn lane<R: RawLane>(&self, o: RowOperand, lane: usize) -> R {
        // SAFETY: as for `chunk`, for a lane below 32.
        unsafe { self.at(o).cast::<R>().add(lane & 31).read() }
    }

    /// One lane.
    #[inline(always)]
    pub(crate) fn set_lane<R: RawLane>(&mut self, o: RowOperand, lane: usize, v: R) {
        // SAFETY: as for `put`, for a lane below 32.
        unsafe { self.at(o).cast::<R>().add(lane & 31).write(v) }
    }

    /// The lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set_row<R: RawLane>(&mut self, o: RowOperand, v: &[R; LANES], mask: u32) {
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
    pub(crate) fn bytes<R: RawLane>(&self, o: RowOperand, chunk: usize) -> &[[u8; 32]] {
        let len = size_of::<[R; 8]>() / 32;
        // SAFETY: as for `chunk`; the borrow of `self` keeps writers away.
        unsafe {
            std::slice::from_raw_parts(self.at(o).cast::<[u8; 32]>().add(len * (chunk & 3)), len)
        }
    }

    /// Eight lanes from `chunk * 8`, as bytes.
    #[inline(always)]
    pub(crate) fn bytes_mut<R: RawLane>(&mut self, o: RowOperand, chunk: usize) -> &mut [[u8; 32]] {
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
pub(crate) fn gather<T: MemoryInt>(bytes: &[u8], off: &[u32; 8]) -> [T; 8] {
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

/// Calls `f` for each lane of `mask`, in order.
#[inline(always)]
pub(crate) fn each(mask: u32, mut f: impl FnMut(usize)) {
    let mut m = mask;
    while m != 0 {
        f(m.trailing_zeros() as usize);
        m &= m - 1;
    }
}
