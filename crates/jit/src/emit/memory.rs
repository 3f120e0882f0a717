//! Values from memory and to memory, one at a time or several side by side.
//!
//! Invariant: a narrow float is an f32 in a register; it is rounded where it is stored, and
//! where an expression says so, in the same way. Eight-bit floats come and go in pairs, as
//! the instructions take them, and saturate.

use fercuda_ptx::build::{Bf16, Bf16x2, Element, F16, F16x2, Global, Kernel, Ptr, Reg, Scalar};
use fercuda_ptx::words::{Mod, Op, ScalarType, Word};
use fercuda_tensor::Dtype;

use super::value::Value;

fn at<'k, T: Element>(address: Reg<'k, u64>, bytes: i64) -> Ptr<'k, Global, T> {
    Ptr::from_address(address).offset(bytes / i64::from(T::BYTES))
}

fn fp8(dtype: Dtype) -> ScalarType {
    match dtype {
        Dtype::F8E5m2 => ScalarType::E5m2x2,
        _ => ScalarType::E4m3x2,
    }
}

/// Two eight-bit floats, the first in the low byte. NVIDIA's assembler takes registers
/// of 16 bits for them that are of no type, and none of integers.
fn fp8_pair<'k>(dtype: Dtype, low: Reg<'k, f32>, high: Reg<'k, f32>) -> Reg<'k, u16> {
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

fn of_fp8_pair<'k>(dtype: Dtype, pair: Reg<'k, u16>) -> [Reg<'k, f32>; 2] {
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

/// The nearest value that a narrow float has, ties to even, as an f32.
pub(super) fn rounded<'k>(to: Dtype, x: Value<'k>) -> Value<'k> {
    let Value::F32(x) = x else {
        return x;
    };
    Value::F32(match to {
        Dtype::F16 => x.to::<F16>().to(),
        Dtype::Bf16 => x.to::<Bf16>().widen(),
        _ => of_fp8_pair(to, fp8_pair(to, x, x))[0],
    })
}

/// One element, `bytes` behind an address.
pub(super) fn load<'k>(dtype: Dtype, address: Reg<'k, u64>, bytes: i64) -> Value<'k> {
    match dtype {
        Dtype::F64 => Value::F64(at::<f64>(address, bytes).load()),
        Dtype::F32 => Value::F32(at::<f32>(address, bytes).load()),
        Dtype::F16 => Value::F32(at::<F16>(address, bytes).load().to()),
        Dtype::Bf16 => Value::F32(at::<Bf16>(address, bytes).load().widen()),
        Dtype::F8E4m3 | Dtype::F8E5m2 => {
            let byte = at::<u8>(address, bytes).load();
            Value::F32(of_fp8_pair(dtype, byte.to())[0])
        }
        Dtype::I8 => Value::I32(at::<i8>(address, bytes).load()),
        Dtype::I16 => Value::I32(at::<i16>(address, bytes).load().to()),
        Dtype::I32 => Value::I32(at::<i32>(address, bytes).load()),
        Dtype::I64 => Value::I64(at::<i64>(address, bytes).load()),
        Dtype::U8 => Value::U32(at::<u8>(address, bytes).load()),
        Dtype::U16 => Value::U32(at::<u16>(address, bytes).load().to()),
        Dtype::U32 => Value::U32(at::<u32>(address, bytes).load()),
        Dtype::U64 => Value::U64(at::<u64>(address, bytes).load()),
        Dtype::Bool => Value::Bool(at::<u8>(address, bytes).load().differs(0)),
    }
}

/// Elements of 4 bytes, four at once, then two.
fn loads_4<'k, T: Element>(
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

/// Elements of 8 bytes, two at once.
fn loads_8<'k, T: Element>(
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

/// `count` elements side by side, at a multiple of what they take, or of 16 bytes.
pub(super) fn load_vector<'k>(
    dtype: Dtype,
    address: Reg<'k, u64>,
    bytes: i64,
    count: u32,
) -> Vec<Value<'k>> {
    match dtype {
        Dtype::F64 => all(loads_8::<f64>(address, bytes, count), Value::F64),
        Dtype::I64 => all(loads_8::<i64>(address, bytes, count), Value::I64),
        Dtype::U64 => all(loads_8::<u64>(address, bytes, count), Value::U64),
        Dtype::F32 => all(loads_4::<f32>(address, bytes, count), Value::F32),
        Dtype::I32 => all(loads_4::<i32>(address, bytes, count), Value::I32),
        Dtype::U32 => all(loads_4::<u32>(address, bytes, count), Value::U32),
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
    value: impl Fn(Reg<'k, T>) -> Value<'k>,
) -> Vec<Value<'k>> {
    registers.into_iter().map(value).collect()
}

/// The first `count` elements in a word.
fn of_word<'k>(dtype: Dtype, word: Reg<'k, u32>, count: u32) -> Vec<Value<'k>> {
    let signed = |size: u32, n: u32| {
        let up = (word << (32 - size * (n + 1))).bitcast::<i32>();
        Value::I32(up >> (32 - size))
    };
    let unsigned = |size: u32, n: u32| match size * (n + 1) {
        32 => word >> (32 - size),
        _ if n == 0 => word & ((1 << size) - 1),
        _ => (word >> (size * n)) & ((1 << size) - 1),
    };
    match dtype {
        Dtype::F16 => {
            let (low, high) = word.bitcast::<F16x2>().unpack();
            vec![Value::F32(low.to()), Value::F32(high.to())]
        }
        Dtype::Bf16 => {
            let low = (word << 16).bitcast::<f32>();
            let high = (word & 0xffff_0000).bitcast::<f32>();
            vec![Value::F32(low), Value::F32(high)]
        }
        Dtype::F8E4m3 | Dtype::F8E5m2 => {
            let mut values = of_fp8_pair(dtype, word.to()).to_vec();
            if count > 2 {
                values.extend(of_fp8_pair(dtype, (word >> 16).to()));
            }
            values.into_iter().map(Value::F32).collect()
        }
        Dtype::I16 => (0..count).map(|n| signed(16, n)).collect(),
        Dtype::I8 => (0..count).map(|n| signed(8, n)).collect(),
        Dtype::U16 => (0..count).map(|n| Value::U32(unsigned(16, n))).collect(),
        Dtype::Bool => (0..count)
            .map(|n| Value::Bool(unsigned(8, n).differs(0)))
            .collect(),
        _ => (0..count).map(|n| Value::U32(unsigned(8, n))).collect(),
    }
}

/// A whole number's low bits, as they are stored.
fn bits(value: Value<'_>) -> Option<Reg<'_, u32>> {
    match value {
        Value::I32(x) => Some(x.bitcast()),
        Value::U32(x) => Some(x),
        Value::Bool(x) => Some(x.select(x.kernel().value(1u32), 0u32)),
        _ => None,
    }
}

/// Writes one element, `bytes` behind an address.
pub(super) fn store<'k>(dtype: Dtype, address: Reg<'k, u64>, bytes: i64, value: Value<'k>) {
    match (dtype, value) {
        (_, Value::F64(x)) => at::<f64>(address, bytes).store(x),
        (_, Value::I64(x)) => at::<i64>(address, bytes).store(x),
        (_, Value::U64(x)) => at::<u64>(address, bytes).store(x),
        (Dtype::F16, Value::F32(x)) => at::<F16>(address, bytes).store(x.to::<F16>()),
        (Dtype::Bf16, Value::F32(x)) => at::<Bf16>(address, bytes).store(x.to::<Bf16>()),
        (Dtype::F8E4m3 | Dtype::F8E5m2, Value::F32(x)) => {
            at::<u8>(address, bytes).store(fp8_pair(dtype, x, x).to::<u32>());
        }
        (_, Value::F32(x)) => at::<f32>(address, bytes).store(x),
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

/// Writes elements side by side, where [`load_vector`] would read them.
pub(super) fn store_vector<'k>(
    k: &'k Kernel,
    dtype: Dtype,
    address: Reg<'k, u64>,
    bytes: i64,
    values: &[Value<'k>],
) {
    macro_rules! typed {
        ($stores:ident, $t:ty, $variant:ident) => {{
            let all = values.iter().filter_map(|value| match value {
                Value::$variant(x) => Some(*x),
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

fn stores_4<'k, T: Element>(address: Reg<'k, u64>, bytes: i64, values: &[Reg<'k, T::Value>]) {
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

fn stores_8<'k, T: Element>(address: Reg<'k, u64>, bytes: i64, values: &[Reg<'k, T::Value>]) {
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

/// Two halves from two f32, in one instruction.
fn halves<'k, T: Scalar>(ty: ScalarType, low: Reg<'k, f32>, high: Reg<'k, f32>) -> Reg<'k, u32> {
    let mods = [
        Mod::Word(Word::Rn),
        Mod::Type(ty),
        Mod::Type(ScalarType::F32),
    ];
    let sources = [high.operand(), low.operand()];
    low.kernel().raw::<T>(Op::Cvt, &mods, &sources).bitcast()
}

fn to_word<'k>(k: &'k Kernel, dtype: Dtype, values: &[Value<'k>]) -> Reg<'k, u32> {
    let float = |n: usize| match values.get(n) {
        Some(Value::F32(x)) => *x,
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
