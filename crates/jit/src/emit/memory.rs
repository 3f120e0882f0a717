//! Loads and stores of values, scalar or vectorised.
//!
//! Invariant: a narrow float is an f32 in a register; it is rounded on store, and where the
//! expression rounds, in the same way. Eight-bit floats are converted in pairs, as the instructions
//! require, and saturate.

use fercuda_ptx::build::{
    Bf16, Bf16x2, F16, F16x2, Global, KernelBuilder, MemoryElement, Ptr, Reg, Scalar,
};
use fercuda_ptx::words::{Mod, Op, ScalarType, Word};
use fercuda_tensor::Dtype;

use super::narrow::{fp8_pair, of_fp8_pair};
use super::value::DynValue;

fn at<'k, T: MemoryElement>(address: Reg<'k, u64>, bytes: i64) -> Ptr<'k, Global, T> {
    Ptr::from_address(address).offset(bytes / i64::from(T::BYTES))
}

/// Loads one element, `bytes` behind an address.
pub(super) fn load<'k>(dtype: Dtype, address: Reg<'k, u64>, bytes: i64) -> DynValue<'k> {
    match dtype {
        Dtype::F64 => DynValue::F64(at::<f64>(address, bytes).load()),
        Dtype::F32 => DynValue::F32(at::<f32>(address, bytes).load()),
        Dtype::F16 => DynValue::F32(at::<F16>(address, bytes).load().to()),
        Dtype::Bf16 => DynValue::F32(at::<Bf16>(address, bytes).load().widen()),
        Dtype::F8E4m3 | Dtype::F8E5m2 => {
            let byte = at::<u8>(address, bytes).load();
            DynValue::F32(of_fp8_pair(dtype, byte.to())[0])
        }
        Dtype::I8 => DynValue::I32(at::<i8>(address, bytes).load()),
        Dtype::I16 => DynValue::I32(at::<i16>(address, bytes).load().to()),
        Dtype::I32 => DynValue::I32(at::<i32>(address, bytes).load()),
        Dtype::I64 => DynValue::I64(at::<i64>(address, bytes).load()),
        Dtype::U8 => DynValue::U32(at::<u8>(address, bytes).load()),
        Dtype::U16 => DynValue::U32(at::<u16>(address, bytes).load().to()),
        Dtype::U32 => DynValue::U32(at::<u32>(address, bytes).load()),
        Dtype::U64 => DynValue::U64(at::<u64>(address, bytes).load()),
        Dtype::Bool => DynValue::Bool(at::<u8>(address, bytes).load().differs(0)),
    }
}

/// Loads elements of 4 bytes, four at once, then two.
fn loads_4<'k, T: MemoryElement>(
    address: Reg<'k, u64>,
    bytes: i64,
    count: u32,
) -> Vec<Reg<'k, T::Value>> {
    let first = at::<T>(address, bytes);
    let mut values: Vec<Reg<'k, T::Value>> = Vec::new();
    while values.len() < count as usize {
        let here = first.offset(values.len() as i64);
        match count as usize - values.len() {
            4.. => values.extend(here.load_vec::<4>()),
            2.. => values.extend(here.load_vec::<2>()),
            _ => values.push(here.load()),
        }
    }
    values
}

/// Loads elements of 8 bytes, two at once.
fn loads_8<'k, T: MemoryElement>(
    address: Reg<'k, u64>,
    bytes: i64,
    count: u32,
) -> Vec<Reg<'k, T::Value>> {
    let first = at::<T>(address, bytes);
    let mut values: Vec<Reg<'k, T::Value>> = Vec::new();
    while values.len() < count as usize {
        let here = first.offset(values.len() as i64);
        match count as usize - values.len() {
            2.. => values.extend(here.load_vec::<2>()),
            _ => values.push(here.load()),
        }
    }
    values
}

/// Loads `count` contiguous elements, aligned to their total size or to 16 bytes.
pub(super) fn load_vector<'k>(
    dtype: Dtype,
    address: Reg<'k, u64>,
    bytes: i64,
    count: u32,
) -> Vec<DynValue<'k>> {
    match dtype {
        Dtype::F64 => all(loads_8::<f64>(address, bytes, count), DynValue::F64),
        Dtype::I64 => all(loads_8::<i64>(address, bytes, count), DynValue::I64),
        Dtype::U64 => all(loads_8::<u64>(address, bytes, count), DynValue::U64),
        Dtype::F32 => all(loads_4::<f32>(address, bytes, count), DynValue::F32),
        Dtype::I32 => all(loads_4::<i32>(address, bytes, count), DynValue::I32),
        Dtype::U32 => all(loads_4::<u32>(address, bytes, count), DynValue::U32),
        narrow => {
            let size = narrow.bytes() as u32;
            if size * count == 2 {
                let pair = at::<u16>(address, bytes).load().to::<u32>();
                return of_word(narrow, pair, 2);
            }
            let words = loads_4::<u32>(address, bytes, size * count / 4);
            let words = words.into_iter();
            words
                .flat_map(|word| of_word(narrow, word, 4 / size))
                .collect()
        }
    }
}

fn all<'k, T>(
    registers: Vec<Reg<'k, T>>,
    value: impl Fn(Reg<'k, T>) -> DynValue<'k>,
) -> Vec<DynValue<'k>> {
    registers.into_iter().map(value).collect()
}

/// Unpacks the first `count` elements of a word.
fn of_word<'k>(dtype: Dtype, word: Reg<'k, u32>, count: u32) -> Vec<DynValue<'k>> {
    let signed = |size: u32, n: u32| {
        let up = (word << (32 - size * (n + 1))).bitcast::<i32>();
        DynValue::I32(up >> (32 - size))
    };
    let unsigned = |size: u32, n: u32| match size * (n + 1) {
        32 => word >> (32 - size),
        _ if n == 0 => word & ((1 << size) - 1),
        _ => (word >> (size * n)) & ((1 << size) - 1),
    };
    match dtype {
        Dtype::F16 => {
            let (low, high) = word.bitcast::<F16x2>().unpack();
            vec![DynValue::F32(low.to()), DynValue::F32(high.to())]
        }
        Dtype::Bf16 => {
            let low = (word << 16).bitcast::<f32>();
            let high = (word & 0xffff_0000).bitcast::<f32>();
            vec![DynValue::F32(low), DynValue::F32(high)]
        }
        Dtype::F8E4m3 | Dtype::F8E5m2 => {
            let mut values = of_fp8_pair(dtype, word.to()).to_vec();
            if count > 2 {
                values.extend(of_fp8_pair(dtype, (word >> 16).to()));
            }
            values.into_iter().map(DynValue::F32).collect()
        }
        Dtype::I16 => (0..count).map(|n| signed(16, n)).collect(),
        Dtype::I8 => (0..count).map(|n| signed(8, n)).collect(),
        Dtype::U16 => (0..count).map(|n| DynValue::U32(unsigned(16, n))).collect(),
        Dtype::Bool => (0..count)
            .map(|n| DynValue::Bool(unsigned(8, n).differs(0)))
            .collect(),
        _ => (0..count).map(|n| DynValue::U32(unsigned(8, n))).collect(),
    }
}

/// An integer's low bits, as they are stored.
fn bits(value: DynValue<'_>) -> Option<Reg<'_, u32>> {
    match value {
        DynValue::I32(x) => Some(x.bitcast()),
        DynValue::U32(x) => Some(x),
        DynValue::Bool(x) => Some(x.select(x.kernel().value(1u32), 0u32)),
        _ => None,
    }
}

/// Stores one element, `bytes` behind an address.
pub(super) fn store<'k>(dtype: Dtype, address: Reg<'k, u64>, bytes: i64, value: DynValue<'k>) {
    match (dtype, value) {
        (_, DynValue::F64(x)) => at::<f64>(address, bytes).store(x),
        (_, DynValue::I64(x)) => at::<i64>(address, bytes).store(x),
        (_, DynValue::U64(x)) => at::<u64>(address, bytes).store(x),
        (Dtype::F16, DynValue::F32(x)) => at::<F16>(address, bytes).store(x.to::<F16>()),
        (Dtype::Bf16, DynValue::F32(x)) => at::<Bf16>(address, bytes).store(x.to::<Bf16>()),
        (Dtype::F8E4m3 | Dtype::F8E5m2, DynValue::F32(x)) => {
            at::<u8>(address, bytes).store(fp8_pair(dtype, x, x).to::<u32>());
        }
        (_, DynValue::F32(x)) => at::<f32>(address, bytes).store(x),
        (_, value) => {
            let Some(x) = bits(value) else {
                return;
            };
            match dtype.bytes() {
                1 => at::<u8>(address, bytes).store(x),
                2 => at::<u16>(address, bytes).store(x.to::<u16>()),
                _ => at::<u32>(address, bytes).store(x),
            }
        }
    }
}

/// Stores contiguous elements, the inverse of [`load_vector`].
pub(super) fn store_vector<'k>(
    k: &'k KernelBuilder,
    dtype: Dtype,
    address: Reg<'k, u64>,
    bytes: i64,
    values: &[DynValue<'k>],
) {
    macro_rules! typed {
        ($stores:ident, $t:ty, $variant:ident) => {{
            let all = values.iter().filter_map(|value| match value {
                DynValue::$variant(x) => Some(*x),
                _ => None,
            });
            $stores::<$t>(address, bytes, &all.collect::<Vec<_>>());
        }};
    }
    match dtype {
        Dtype::F64 => typed!(stores_8, f64, F64),
        Dtype::I64 => typed!(stores_8, i64, I64),
        Dtype::U64 => typed!(stores_8, u64, U64),
        Dtype::F32 => typed!(stores_4, f32, F32),
        Dtype::I32 => typed!(stores_4, i32, I32),
        Dtype::U32 => typed!(stores_4, u32, U32),
        narrow => {
            let size = narrow.bytes() as usize;
            let words: Vec<_> = values
                .chunks(4 / size)
                .map(|values| to_word(k, narrow, values))
                .collect();
            match (size * values.len(), words.as_slice()) {
                (2, [pair]) => at::<u16>(address, bytes).store(pair.to::<u16>()),
                (_, words) => stores_4::<u32>(address, bytes, words),
            }
        }
    }
}

fn stores_4<'k, T: MemoryElement>(address: Reg<'k, u64>, bytes: i64, values: &[Reg<'k, T::Value>]) {
    let first = at::<T>(address, bytes);
    let mut done = 0;
    while done < values.len() {
        let here = first.offset(done as i64);
        done += match values[done..] {
            [a, b, c, d, ..] => {
                here.store_vec([a, b, c, d]);
                4
            }
            [a, b, ..] => {
                here.store_vec([a, b]);
                2
            }
            [a, ..] => {
                here.store(a);
                1
            }
            [] => return,
        };
    }
}

fn stores_8<'k, T: MemoryElement>(address: Reg<'k, u64>, bytes: i64, values: &[Reg<'k, T::Value>]) {
    let first = at::<T>(address, bytes);
    for (n, pair) in values.chunks(2).enumerate() {
        let here = first.offset(2 * n as i64);
        match *pair {
            [a, b] => here.store_vec([a, b]),
            [a] => here.store(a),
            _ => {}
        }
    }
}

/// Packs two halves from two f32, in one instruction.
fn halves<'k, T: Scalar>(ty: ScalarType, low: Reg<'k, f32>, high: Reg<'k, f32>) -> Reg<'k, u32> {
    let mods = [
        Mod::Word(Word::Rn),
        Mod::Type(ty),
        Mod::Type(ScalarType::F32),
    ];
    let sources = [high.operand(), low.operand()];
    low.kernel().raw::<T>(Op::Cvt, &mods, &sources).bitcast()
}

fn to_word<'k>(k: &'k KernelBuilder, dtype: Dtype, values: &[DynValue<'k>]) -> Reg<'k, u32> {
    let float = |n: usize| match values.get(n) {
        Some(DynValue::F32(x)) => *x,
        _ => k.value(0.0f32),
    };
    let size = 8 * dtype.bytes() as u32;
    match dtype {
        Dtype::F16 => halves::<F16x2>(ScalarType::F16x2, float(0), float(1)),
        Dtype::Bf16 => halves::<Bf16x2>(ScalarType::Bf16x2, float(0), float(1)),
        Dtype::F8E4m3 | Dtype::F8E5m2 => {
            let low = fp8_pair(dtype, float(0), float(1)).to::<u32>();
            match values.len() {
                2 => low,
                _ => (fp8_pair(dtype, float(2), float(3)).to::<u32>() << 16) | low,
            }
        }
        _ => {
            let parts = values.iter().filter_map(|value| bits(*value)).enumerate();
            let parts = parts.map(|(n, x)| match n as u32 * size + size {
                32 => x << (32 - size),
                _ if n == 0 => x & ((1 << size) - 1),
                _ => (x & ((1 << size) - 1)) << (n as u32 * size),
            });
            parts
                .reduce(|word, part| word | part)
                .unwrap_or_else(|| k.value(0u32))
        }
    }
}
