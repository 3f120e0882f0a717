//! Copies and fills: checked when the call is made, executed in stream order.

use fercuda_cuda_sys::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS};

use super::memory::is_ours;
use super::objects::{CopyPlan, CopySide, FillPlan, StreamRun};
use super::range::{ByteRows, HostAccess, check_range};
use super::{CuResult, Machine, err};

impl CopyPlan {
    pub(crate) fn linear(dst: u64, src: u64, len: u64) -> Self {
        let side = |at| CopySide {
            at,
            pitch: len,
            slice: len,
        };
        CopyPlan {
            dst: side(dst),
            src: side(src),
            width: len,
            height: 1,
            depth: 1,
            staged: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    fn rows(&self, side: CopySide) -> impl Iterator<Item = u64> + use<> {
        let (height, depth) = (self.height, self.depth);
        (0..depth)
            .flat_map(move |z| (0..height).map(move |y| side.at + z * side.slice + y * side.pitch))
    }

    /// Whether both sides are gapless, so that the copy is one run of bytes.
    fn run_len(&self) -> Option<u64> {
        let dense = |s: CopySide| {
            (self.height == 1 || s.pitch == self.width)
                && (self.depth == 1 || s.slice == self.width * self.height)
        };
        (dense(self.dst) && dense(self.src)).then_some(self.width * self.height * self.depth)
    }

    /// Checks one side that must be device memory.
    pub(crate) fn check_side(&self, m: &Machine, side: CopySide, access: HostAccess) -> CuResult {
        let rows = ByteRows {
            at: side.at,
            width: self.width,
            height: self.height,
            pitch: side.pitch,
            depth: self.depth,
            slice: side.slice,
        };
        check_range(m, rows, access)
    }

    /// Whether a side is the program's own memory, which a driver must not touch after an
    /// asynchronous call returns.
    pub(crate) fn is_pageable(&self, m: &Machine, side: CopySide) -> bool {
        !is_ours(m, side.at)
    }

    /// Takes the source's bytes now.
    ///
    /// # Safety
    /// The source is readable.
    pub(crate) unsafe fn stage(&mut self) {
        let mut bytes = Vec::with_capacity((self.width * self.height * self.depth) as usize);
        for row in self.rows(self.src) {
            // SAFETY: by this function's contract.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(row as *const u8, self.width as usize)
            });
        }
        self.staged = Some(bytes.into());
        self.src = CopySide {
            at: 0,
            pitch: self.width,
            slice: self.width * self.height,
        };
    }

    pub(crate) fn run(&self, m: &Machine, running: &StreamRun) {
        let check = m.check(running.op);
        let base = self
            .staged
            .as_ref()
            .map_or(0, |bytes| bytes.as_ptr() as u64);
        let copy = |dst: u64, src: u64, len: u64| {
            // SAFETY: device ranges were live when the call was made, and freeing them waits for
            // this operation or is ordered behind it by the program; host ranges are the caller's
            // promise. Freed memory stays mapped.
            unsafe { m.space.copy(dst, src + base, len, check.as_ref()) }
        };
        match self.run_len() {
            Some(len) => copy(self.dst.at, self.src.at, len),
            None => {
                self.rows(self.dst)
                    .zip(self.rows(self.src))
                    .for_each(|(dst, src)| copy(dst, src, self.width));
            }
        }
    }
}

impl FillPlan {
    pub(crate) fn check(&self, m: &Machine, call: &'static str) -> CuResult {
        let row = self
            .width
            .checked_mul(self.element)
            .ok_or(err::INVALID_VALUE)?;
        let aligned =
            self.dst.is_multiple_of(self.element) && (self.height <= 1 || self.pitch >= row);
        if !matches!(self.element, 1 | 2 | 4) || !aligned {
            return Err(err::INVALID_VALUE);
        }
        let access = HostAccess::write(call);
        let rows = ByteRows {
            height: self.height,
            pitch: self.pitch,
            ..ByteRows::linear(self.dst, row)
        };
        check_range(m, rows, access)
    }

    pub(crate) fn run(&self, m: &Machine, running: &StreamRun) {
        let check = m.check(running.op);
        let (rows, count) = if self.pitch == self.width * self.element {
            (1, self.width * self.height)
        } else {
            (self.height, self.width)
        };
        for y in 0..rows {
            // SAFETY: checked to be device memory when the call was made; as for copies from then
            // on.
            unsafe {
                m.space.fill(
                    self.dst + y * self.pitch,
                    self.value,
                    self.element,
                    count,
                    check.as_ref(),
                );
            }
        }
    }

    pub(crate) fn from_params(p: &CUDA_MEMSET_NODE_PARAMS) -> Self {
        FillPlan {
            dst: p.dst,
            pitch: p.pitch as u64,
            value: p.value,
            element: u64::from(p.elementSize),
            width: p.width as u64,
            height: p.height as u64,
        }
    }

    pub(crate) fn to_params(&self) -> CUDA_MEMSET_NODE_PARAMS {
        CUDA_MEMSET_NODE_PARAMS {
            dst: self.dst,
            pitch: self.pitch as usize,
            value: self.value,
            elementSize: self.element as u32,
            width: self.width as usize,
            height: self.height as usize,
        }
    }
}

const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// Reads a three-dimensional copy's description and checks its device sides.
pub(crate) fn plan_3d(m: &Machine, c: &CUDA_MEMCPY3D, call: &'static str) -> CuResult<CopyPlan> {
    let (width, height, depth) = (c.WidthInBytes as u64, c.Height as u64, c.Depth as u64);
    let side =
        |kind: u32, host: u64, device: u64, x: u64, y: u64, z: u64, pitch: u64, rows: u64| {
            let base = match kind {
                HOST => host,
                DEVICE | UNIFIED => device,
                ARRAY => return Err(err::NOT_SUPPORTED),
                _ => return Err(err::INVALID_VALUE),
            };
            let row_end = x.checked_add(width).ok_or(err::INVALID_VALUE)?;
            let last_row = y.checked_add(height).ok_or(err::INVALID_VALUE)?;
            let pitch = if pitch == 0 { row_end } else { pitch };
            let rows = if rows == 0 { last_row } else { rows };
            if (height > 1 || depth > 1) && (pitch < row_end || (depth > 1 && rows < last_row)) {
                return Err(err::INVALID_VALUE);
            }
            let slice = pitch.checked_mul(rows).ok_or(err::INVALID_VALUE)?;
            let offset = z
                .checked_mul(slice)
                .and_then(|n| n.checked_add(y.checked_mul(pitch)?))
                .and_then(|n| n.checked_add(x))
                .ok_or(err::INVALID_VALUE)?;
            let at = base.checked_add(offset).ok_or(err::INVALID_VALUE)?;
            if base == 0 && width != 0 && height != 0 && depth != 0 {
                return Err(err::INVALID_VALUE);
            }
            Ok(CopySide { at, pitch, slice })
        };
    let plan = CopyPlan {
        src: side(
            c.srcMemoryType.0,
            c.srcHost as u64,
            c.srcDevice,
            c.srcXInBytes as u64,
            c.srcY as u64,
            c.srcZ as u64,
            c.srcPitch as u64,
            c.srcHeight as u64,
        )?,
        dst: side(
            c.dstMemoryType.0,
            c.dstHost as u64,
            c.dstDevice,
            c.dstXInBytes as u64,
            c.dstY as u64,
            c.dstZ as u64,
            c.dstPitch as u64,
            c.dstHeight as u64,
        )?,
        width,
        height,
        depth,
        staged: None,
    };
    if plan.is_empty() {
        return Ok(plan);
    }
    // A device address must be in device memory as a whole, whatever the description declares.
    let sides = [
        (c.srcMemoryType.0, plan.src, HostAccess::read(call)),
        (c.dstMemoryType.0, plan.dst, HostAccess::write(call)),
    ];
    for (kind, side, access) in sides {
        if kind == DEVICE || is_ours(m, side.at) {
            plan.check_side(m, side, access)?;
        }
    }
    Ok(plan)
}

/// The same of a two-dimensional one.
pub(crate) fn plan_2d(m: &Machine, c: &CUDA_MEMCPY2D, call: &'static str) -> CuResult<CopyPlan> {
    let wide = CUDA_MEMCPY3D {
        srcXInBytes: c.srcXInBytes,
        srcY: c.srcY,
        srcMemoryType: c.srcMemoryType,
        srcHost: c.srcHost,
        srcDevice: c.srcDevice,
        srcArray: c.srcArray,
        srcPitch: c.srcPitch,
        dstXInBytes: c.dstXInBytes,
        dstY: c.dstY,
        dstMemoryType: c.dstMemoryType,
        dstHost: c.dstHost,
        dstDevice: c.dstDevice,
        dstArray: c.dstArray,
        dstPitch: c.dstPitch,
        WidthInBytes: c.WidthInBytes,
        Height: c.Height,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    let too_narrow =
        |pitch: usize, x: usize| pitch != 0 && pitch < x.saturating_add(c.WidthInBytes);
    if too_narrow(c.srcPitch, c.srcXInBytes) || too_narrow(c.dstPitch, c.dstXInBytes) {
        return Err(err::INVALID_VALUE);
    }
    plan_3d(m, &wide, call)
}

/// A plan as graph nodes describe it.
pub(crate) fn to_params(m: &Machine, plan: &CopyPlan) -> CUDA_MEMCPY3D {
    let mut c = CUDA_MEMCPY3D {
        WidthInBytes: plan.width as usize,
        Height: plan.height as usize,
        Depth: plan.depth as usize,
        srcPitch: plan.src.pitch as usize,
        dstPitch: plan.dst.pitch as usize,
        srcHeight: (plan.src.slice / plan.src.pitch.max(1)) as usize,
        dstHeight: (plan.dst.slice / plan.dst.pitch.max(1)) as usize,
        ..CUDA_MEMCPY3D::default()
    };
    if is_ours(m, plan.src.at) {
        c.srcMemoryType.0 = DEVICE;
        c.srcDevice = plan.src.at;
    } else {
        c.srcMemoryType.0 = HOST;
        c.srcHost = plan.src.at as *const _;
    }
    if is_ours(m, plan.dst.at) {
        c.dstMemoryType.0 = DEVICE;
        c.dstDevice = plan.dst.at;
    } else {
        c.dstMemoryType.0 = HOST;
        c.dstHost = plan.dst.at as *mut _;
    }
    c
}
