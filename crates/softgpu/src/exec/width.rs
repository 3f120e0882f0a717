//! Widths and kinds of PTX's scalar types.

use fercuda_ptx::words::ScalarType as Ty;

/// Bits of a type.
pub(crate) fn bits(ty: Ty) -> u32 {
    match ty {
        Ty::U8 | Ty::S8 | Ty::B8 | Ty::E4m3 | Ty::E5m2 => 8,
        Ty::U16 | Ty::S16 | Ty::B16 | Ty::F16 | Ty::Bf16 | Ty::E4m3x2 | Ty::E5m2x2 => 16,
        Ty::U64 | Ty::S64 | Ty::B64 | Ty::F64 | Ty::F32x2 => 64,
        Ty::Texref | Ty::Samplerref | Ty::Surfref => 64,
        Ty::B128 => 128,
        Ty::Pred => 1,
        _ => 32,
    }
}

/// Rows a register of that type takes.
pub(crate) fn rows(ty: Ty) -> u8 {
    match bits(ty) {
        64 => 2,
        128 => 4,
        _ => 1,
    }
}

pub(crate) fn is_signed(ty: Ty) -> bool {
    matches!(ty, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
}

pub(crate) fn is_float(ty: Ty) -> bool {
    matches!(
        ty,
        Ty::F32 | Ty::F64 | Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 | Ty::F32x2
    )
}
