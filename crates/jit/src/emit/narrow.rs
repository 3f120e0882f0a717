//! Conversions of narrow floats in registers.

use fercuda_ptx::build::{Bf16, F16, F16x2, Reg};
use fercuda_ptx::words::{Mod, Op, ScalarType, Word};
use fercuda_tensor::Dtype;

fn fp8(dtype: Dtype) -> ScalarType {
    match dtype {
        Dtype::F8E5m2 => ScalarType::E5m2x2,
        _ => ScalarType::E4m3x2,
    }
}

/// Packs two eight-bit floats, the first in the low byte. For them NVIDIA's assembler accepts
/// untyped registers of 16 bits, and no integer ones.
pub(super) fn fp8_pair<'k>(dtype: Dtype, low: Reg<'k, f32>, high: Reg<'k, f32>) -> Reg<'k, u16> {
    let mods = [
        Mod::Word(Word::Rn),
        Mod::Word(Word::Satfinite),
        Mod::Type(fp8(dtype)),
        Mod::Type(ScalarType::F32),
    ];
    let sources = [high.operand(), low.operand()];
    let pair: Reg<'k, F16> = low.kernel().raw(Op::Cvt, &mods, &sources);
    pair.bitcast()
}

pub(super) fn of_fp8_pair<'k>(dtype: Dtype, pair: Reg<'k, u16>) -> [Reg<'k, f32>; 2] {
    let mods = [
        Mod::Word(Word::Rn),
        Mod::Type(ScalarType::F16x2),
        Mod::Type(fp8(dtype)),
    ];
    let bits: Reg<'k, F16> = pair.bitcast();
    let halves: Reg<'k, F16x2> = bits.kernel().raw(Op::Cvt, &mods, &[bits.operand()]);
    let (low, high) = halves.unpack();
    [low.to(), high.to()]
}

/// Rounds to the nearest value of a narrow float, ties to even; the result is an f32.
pub(super) fn rounded(to: Dtype, x: Reg<'_, f32>) -> Reg<'_, f32> {
    match to {
        Dtype::F16 => x.to::<F16>().to(),
        Dtype::Bf16 => x.to::<Bf16>().widen(),
        _ => of_fp8_pair(to, fp8_pair(to, x, x))[0],
    }
}
