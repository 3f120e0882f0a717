//! Copies and fills: checked when the call is made, executed in stream order.

use fercuda_cuda_sys::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUarray};

use super::allocation::{Allocation, AllocationSource};
use super::memory::is_ours;
use super::objects::{CopyPlan, CopySide, FillPlan, StreamRun};
use super::range::{ByteRows, HostAccess, check_range};
use super::{CuResult, Machine, err};
use crate::check::CheckContext;
use crate::mem::AllocKind;
use crate::report::{Access, AccessKind, Finding, FindingActor, FindingKind, MemSpace};

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
        if let Some(check) = &check {
            self.check_download(m, check);
        }
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

impl CopyPlan {
    /// Reports a copy to the host of bytes none of which was ever written. With some of them
    /// written it is a structure with its padding, or a buffer that was not filled to its end.
    fn check_download(&self, m: &Machine, check: &CheckContext) {
        let to_host = || {
            let target = m.space.find_live(self.dst.at);
            target.map_or(!m.space.contains(self.dst.at, 1), |target| {
                target.kind == AllocKind::Pinned
            })
        };
        let Some(shadow) = m.space.shadow() else {
            return;
        };
        let is_unwritten = self.staged.is_none()
            && self
                .rows(self.src)
                .all(|row| shadow.holds_nothing(row, self.width));
        if !is_unwritten || !to_host() {
            return;
        }
        check.sink.add(Finding {
            kind: FindingKind::Uninitialised,
            access: Some(Access {
                kind: AccessKind::Read,
                space: MemSpace::Global,
                addr: self.src.at,
                len: self.width * self.height * self.depth,
            }),
            actor: FindingActor::Operation(check.order.describe(check.op)),
            note: "nothing has written any of its bytes".to_owned(),
            allocation: m.space.find(self.src.at),
            other: None,
            count: 1,
        });
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

/// One side of a copy as a description gives it.
struct SideDescription {
    kind: u32,
    host: u64,
    device: u64,
    array: usize,
    /// Bytes, rows and slices from the start.
    origin: [u64; 3],
    pitch: u64,
    rows: u64,
}

impl SideDescription {
    /// Where the side's `width` bytes, `height` rows and `depth` slices are.
    fn place(&self, m: &Machine, [width, height, depth]: [u64; 3]) -> CuResult<CopySide> {
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            ARRAY => return array_side(m, self.array, self.origin, [width, height, depth]),
            _ => return Err(err::INVALID_VALUE),
        };
        let [x, y, z] = self.origin;
        let row_end = x.checked_add(width).ok_or(err::INVALID_VALUE)?;
        let last_row = y.checked_add(height).ok_or(err::INVALID_VALUE)?;
        let pitch = if self.pitch == 0 { row_end } else { self.pitch };
        let rows = if self.rows == 0 { last_row } else { self.rows };
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
    }
}

/// The side of a copy in an array, of whole texels: `origin` and `size` are bytes, rows, slices.
pub(crate) fn array_side(
    m: &Machine,
    array: usize,
    origin: [u64; 3],
    size: [u64; 3],
) -> CuResult<CopySide> {
    let array = m.arrays.get(array).ok_or(err::INVALID_HANDLE)?;
    let texel = u64::from(array.format.bytes());
    let room = [
        array.row_bytes(),
        u64::from(array.level.extent[1]),
        array.slices(),
    ];
    let fits = (0..3).all(|n| {
        let end = origin[n].checked_add(size[n]);
        end.is_some_and(|end| end <= room[n])
    });
    let is_whole = origin[0].is_multiple_of(texel) && size[0].is_multiple_of(texel);
    if !fits || !is_whole {
        return Err(err::INVALID_VALUE);
    }
    let level = array.level;
    Ok(CopySide {
        at: level.at + origin[0] + origin[1] * level.pitch + origin[2] * level.slice,
        pitch: level.pitch,
        slice: level.slice,
    })
}

/// Reads a three-dimensional copy's description and checks its device sides.
pub(crate) fn plan_3d(m: &Machine, c: &CUDA_MEMCPY3D, call: &'static str) -> CuResult<CopyPlan> {
    let (width, height, depth) = (c.WidthInBytes as u64, c.Height as u64, c.Depth as u64);
    if c.srcLOD != 0 || c.dstLOD != 0 {
        return Err(err::INVALID_VALUE);
    }
    let src = SideDescription {
        kind: c.srcMemoryType.0,
        host: c.srcHost as u64,
        device: c.srcDevice,
        array: c.srcArray.0 as usize,
        origin: [c.srcXInBytes, c.srcY, c.srcZ].map(|n| n as u64),
        pitch: c.srcPitch as u64,
        rows: c.srcHeight as u64,
    };
    let dst = SideDescription {
        kind: c.dstMemoryType.0,
        host: c.dstHost as u64,
        device: c.dstDevice,
        array: c.dstArray.0 as usize,
        origin: [c.dstXInBytes, c.dstY, c.dstZ].map(|n| n as u64),
        pitch: c.dstPitch as u64,
        rows: c.dstHeight as u64,
    };
    let size = [width, height, depth];
    let plan = CopyPlan {
        src: src.place(m, size)?,
        dst: dst.place(m, size)?,
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
        (src.kind, plan.src, HostAccess::read(call)),
        (dst.kind, plan.dst, HostAccess::write(call)),
    ];
    for (kind, side, access) in sides {
        if kind == DEVICE || kind == ARRAY || is_ours(m, side.at) {
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

/// The array that an address lies in, and where: bytes, rows, slices.
fn array_at(m: &Machine, at: u64) -> Option<(CUarray, [usize; 3])> {
    let is_array = |a: &Allocation| matches!(a.source, AllocationSource::Array);
    m.memory.find(at).filter(|a| is_array(a))?;
    let array = m.arrays.all().into_iter().find(|a| a.holds(at))?;
    let offset = at - array.level.at;
    let (slice, pitch) = (array.level.slice, array.level.pitch);
    let place = [
        offset % slice % pitch,
        offset % slice / pitch,
        offset / slice,
    ];
    Some((CUarray(array.handle as *mut _), place.map(|n| n as usize)))
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
    if let Some((array, [x, y, z])) = array_at(m, plan.src.at) {
        c.srcMemoryType.0 = ARRAY;
        c.srcArray = array;
        (c.srcXInBytes, c.srcY, c.srcZ) = (x, y, z);
        (c.srcPitch, c.srcHeight) = (0, 0);
    } else if is_ours(m, plan.src.at) {
        c.srcMemoryType.0 = DEVICE;
        c.srcDevice = plan.src.at;
    } else {
        c.srcMemoryType.0 = HOST;
        c.srcHost = plan.src.at as *const _;
    }
    if let Some((array, [x, y, z])) = array_at(m, plan.dst.at) {
        c.dstMemoryType.0 = ARRAY;
        c.dstArray = array;
        (c.dstXInBytes, c.dstY, c.dstZ) = (x, y, z);
        (c.dstPitch, c.dstHeight) = (0, 0);
    } else if is_ours(m, plan.dst.at) {
        c.dstMemoryType.0 = DEVICE;
        c.dstDevice = plan.dst.at;
    } else {
        c.dstMemoryType.0 = HOST;
        c.dstHost = plan.dst.at as *mut _;
    }
    c
}
