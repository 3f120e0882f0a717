//! Reductions of bulk copies: each element of the destination with that of the source.

use std::sync::atomic::Ordering;

use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::lower::{LowerError, Lowered, ModList};
use super::rmw::{AtomicKind, KINDS, RMW, Rmw, apply, apply_global};
use crate::mem::Window;
use crate::tensor_map::MapElement;

/// An operation and the type of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BulkReduction {
    pub(crate) op: Rmw,
    pub(crate) kind: AtomicKind,
    /// Whether subnormal numbers are flushed. Those of `add.f32` are not, unlike by an atomic
    /// (recorded on an H200).
    pub(crate) flushes: bool,
}

impl BulkReduction {
    /// As 16 bits; 0 is none. Of an instruction, by which nothing is flushed.
    pub(crate) fn bits(this: Option<Self>) -> u16 {
        this.map_or(0, |r| 0x8000 | (r.op as u16) << 8 | r.kind as u16)
    }

    pub(crate) fn from_bits(bits: u16) -> Option<Self> {
        (bits & 0x8000 != 0).then(|| BulkReduction {
            op: RMW[usize::from(bits >> 8 & 0x7f) % RMW.len()],
            kind: KINDS[usize::from(bits & 0xff) % KINDS.len()],
            flushes: false,
        })
    }

    /// The operation that an instruction names.
    pub(crate) fn operation(m: &ModList<'_>) -> Lowered<Rmw> {
        let named = m.words().find_map(|w| {
            Some(match w {
                Word::Add => Rmw::Add,
                Word::Inc => Rmw::Inc,
                Word::Dec => Rmw::Dec,
                Word::Min => Rmw::Min,
                Word::Max => Rmw::Max,
                Word::And => Rmw::And,
                Word::Or => Rmw::Or,
                Word::Xor => Rmw::Xor,
                _ => return None,
            })
        });
        named.ok_or(LowerError::Unsupported)
    }

    pub(crate) fn named(m: &ModList<'_>) -> Lowered<Self> {
        let kind = match m.ty(0)? {
            Ty::U32 | Ty::B32 => AtomicKind::B32,
            Ty::S32 => AtomicKind::S32,
            Ty::U64 | Ty::B64 => AtomicKind::B64,
            Ty::S64 => AtomicKind::S64,
            Ty::F16 => AtomicKind::F16,
            Ty::Bf16 => AtomicKind::Bf16,
            Ty::F32 => AtomicKind::F32,
            Ty::F64 => AtomicKind::F64,
            _ => return Err(LowerError::Unsupported),
        };
        let op = Self::operation(m)?;
        Ok(BulkReduction {
            op,
            kind,
            flushes: false,
        })
    }

    /// The new value of one location of global memory.
    fn of(self, old: u64, new: u64) -> u64 {
        match self.kind {
            AtomicKind::F32 if !self.flushes => apply(self.op, self.kind, old, new, 0),
            _ => apply_global(self.op, self.kind, old, new, 0),
        }
    }

    /// The same on the elements of a tensor map; `None` if that has no such operation.
    pub(crate) fn on(op: Rmw, element: MapElement) -> Option<Self> {
        let bitwise = matches!(op, Rmw::And | Rmw::Or | Rmw::Xor);
        let kind = match element {
            MapElement::U32 => AtomicKind::B32,
            MapElement::S32 => AtomicKind::S32,
            MapElement::U64 => AtomicKind::B64,
            MapElement::S64 => AtomicKind::S64,
            _ if bitwise => return None,
            MapElement::F16 => AtomicKind::F16,
            MapElement::Bf16 => AtomicKind::Bf16,
            MapElement::F32 | MapElement::F32Ftz => AtomicKind::F32,
            MapElement::F64 => AtomicKind::F64,
            _ => return None,
        };
        let fits = match op {
            Rmw::Inc | Rmw::Dec => kind == AtomicKind::B32,
            Rmw::Min | Rmw::Max => !matches!(kind, AtomicKind::F32 | AtomicKind::F64),
            Rmw::Add => kind != AtomicKind::S64,
            _ => true,
        };
        fits.then_some(BulkReduction {
            op,
            kind,
            flushes: element == MapElement::F32Ftz,
        })
    }
}

fn value(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

/// Reduces global memory at `addr`, which the window holds, by `bytes`.
pub(crate) fn reduce_global(window: Window, addr: u64, bytes: &[u8], r: BulkReduction) {
    let size = r.kind.size() as usize;
    for (n, element) in bytes.chunks_exact(size).enumerate() {
        let at = addr + (n * size) as u64;
        let b = value(element);
        macro_rules! exchange {
            ($cell:expr, $t:ty) => {{
                let cell = $cell;
                let mut seen = cell.load(Ordering::SeqCst);
                loop {
                    let new = r.of(u64::from(seen), b) as $t;
                    match cell.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::SeqCst)
                    {
                        Ok(_) => break,
                        Err(now) => seen = now,
                    }
                }
            }};
        }
        match size {
            2 => exchange!(window.atomic16(at), u16),
            4 => exchange!(window.atomic32(at), u32),
            _ => exchange!(window.atomic64(at), u64),
        }
    }
}

/// Reduces a block's shared memory by `bytes`.
pub(crate) fn reduce_shared(target: &mut [u8], bytes: &[u8], r: BulkReduction) {
    let size = r.kind.size() as usize;
    for (old, new) in target.chunks_exact_mut(size).zip(bytes.chunks_exact(size)) {
        let result = apply(r.op, r.kind, value(old), value(new), 0);
        old.copy_from_slice(&result.to_le_bytes()[..size]);
    }
}
