//! Integer and bit operations that are more than one machine instruction.

/// `bfe.u32`/`bfe.u64` (`bits` 32 or 64): a field of `length` bits from `position`, zero-extended.
#[inline(always)]
pub(crate) fn bfe_unsigned(a: u64, position: u32, length: u32, bits: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= bits {
        return 0;
    }
    let field = a >> position;
    if length >= 64 {
        field
    } else {
        field & ((1 << length) - 1)
    }
}

/// `bfe.s32`/`bfe.s64`: the field's top bit is extended; beyond the register the register's sign
/// is.
#[inline(always)]
pub(crate) fn bfe_signed(a: i64, position: u32, length: u32, bits: u32) -> i64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let sign_at = (position + length - 1).min(bits - 1);
    let sign = a >> sign_at & 1;
    let mut field = if position >= bits {
        0
    } else {
        ((a as u64) & mask(bits)) >> position
    };
    let have = length.min(bits.saturating_sub(position));
    field &= mask(have);
    if sign == 1 {
        field |= !mask(have);
    }
    field as i64
}

/// The low `n` bits set.
#[inline(always)]
fn mask(n: u32) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// `bfi`: the low `length` bits of `a` placed at `position` of `b`.
#[inline(always)]
pub(crate) fn bfi(a: u64, b: u64, position: u32, length: u32, bits: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= bits {
        return b;
    }
    let field = mask(length.min(bits - position)) << position;
    b & !field | (a << position) & field
}

/// `bfind{.shiftamt}`: position of the most significant bit that is not sign; all ones if there is
/// none.
#[inline(always)]
pub(crate) fn bfind(a: u64, bits: u32, signed: bool, shift_amount: bool) -> u32 {
    let a = if signed && a >> (bits - 1) & 1 == 1 {
        !a & mask(bits)
    } else {
        a & mask(bits)
    };
    if a == 0 {
        return u32::MAX;
    }
    let at = 63 - a.leading_zeros();
    if shift_amount { bits - 1 - at } else { at }
}

/// `fns.b32`: the position of the `|offset|`-th set bit from `base`, upwards or downwards; all ones
/// if there is none.
#[inline(always)]
pub(crate) fn fns(a: u32, base: u32, offset: i32) -> u32 {
    let set = |i: i32| a >> i & 1 == 1;
    if base > 31 {
        return u32::MAX;
    }
    let base = base as i32;
    if offset == 0 {
        return if set(base) { base as u32 } else { u32::MAX };
    }
    let step = offset.signum();
    let (mut at, mut found) = (base, 0);
    while (0..32).contains(&at) {
        if set(at) {
            found += 1;
            if found == offset.abs() {
                return at as u32;
            }
        }
        at += step;
    }
    u32::MAX
}

/// `szext`: extends the low `n` bits; `n` modulo 32 (`wrap`) or clamped to 32.
#[inline(always)]
pub(crate) fn szext(a: u32, n: u32, wrap: bool, signed: bool) -> u32 {
    let n = if wrap { n & 31 } else { n.min(32) };
    match n {
        0 => 0,
        32 => a,
        _ if signed => ((a << (32 - n)) as i32 >> (32 - n)) as u32,
        _ => a & mask(n) as u32,
    }
}

/// `bmsk`: `length` ones from `position`; both modulo 32 (`wrap`) or clamped to 32.
#[inline(always)]
pub(crate) fn bmsk(position: u32, length: u32, wrap: bool) -> u32 {
    let fit = |x: u32| if wrap { x & 31 } else { x.min(32) };
    let (position, length) = (fit(position), fit(length));
    if position >= 32 {
        0
    } else {
        (mask(length) << position) as u32
    }
}

/// `shf`: the 64 bits `hi:lo` shifted, upper (left) or lower (right) word.
#[inline(always)]
pub(crate) fn shf(lo: u32, hi: u32, n: u32, left: bool, wrap: bool) -> u32 {
    let n = if wrap { n & 31 } else { n.min(32) };
    let both = u64::from(hi) << 32 | u64::from(lo);
    if left {
        (both << n >> 32) as u32
    } else {
        (both >> n) as u32
    }
}

/// `lop3`: the function with the truth table `table`.
#[inline(always)]
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let mut out = 0;
    for i in 0..8u32 {
        if table >> i & 1 == 1 {
            let pick = |x: u32, bit: u32| if i >> bit & 1 == 1 { x } else { !x };
            out |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    out
}

/// Modes of `prmt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Permute {
    Index,
    Forward4,
    Backward4,
    Replicate8,
    EdgeClampLeft,
    EdgeClampRight,
    Replicate16,
}

/// `prmt`: four bytes chosen from the eight of `b:a`.
#[inline(always)]
pub(crate) fn prmt(a: u32, b: u32, c: u32, mode: Permute) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |i: u32| (bytes >> (8 * (i & 7))) as u8;
    let s = c & 3;
    let mut out = 0;
    for i in 0..4u32 {
        let v = match mode {
            Permute::Index => {
                let selector = c >> (4 * i) & 0xf;
                let v = byte(selector & 7);
                if selector & 8 != 0 {
                    ((v as i8) >> 7) as u8
                } else {
                    v
                }
            }
            Permute::Forward4 => byte(s + i),
            Permute::Backward4 => byte(s.wrapping_sub(i)),
            Permute::Replicate8 => byte(s),
            Permute::EdgeClampLeft => byte(s.max(i)),
            Permute::EdgeClampRight => byte(s.min(i)),
            Permute::Replicate16 => byte((s & 1) * 2 + (i & 1)),
        };
        out |= u32::from(v) << (8 * i);
    }
    out
}

/// The `i`-th byte, extended.
#[inline(always)]
fn byte(x: u32, i: u32, signed: bool) -> i32 {
    let v = (x >> (8 * i)) as u8;
    if signed {
        i32::from(v as i8)
    } else {
        i32::from(v)
    }
}

/// `dp4a`
#[inline(always)]
pub(crate) fn dp4a(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let mut sum = c as i32;
    for i in 0..4 {
        sum = sum.wrapping_add(byte(a, i, a_signed) * byte(b, i, b_signed));
    }
    sum as u32
}

/// `dp2a`: the two halves of `a` with the lower or upper two bytes of `b`.
#[inline(always)]
pub(crate) fn dp2a(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, upper: bool) -> u32 {
    let mut sum = c as i32;
    for i in 0..2 {
        let h = (a >> (16 * i)) as u16;
        let h = if a_signed {
            i32::from(h as i16)
        } else {
            i32::from(h)
        };
        sum = sum.wrapping_add(h.wrapping_mul(byte(b, i + 2 * u32::from(upper), b_signed)));
    }
    sum as u32
}

/// `mul24`: bits 0..32 (`lo`) or 16..48 (`hi`) of the 48-bit product of two 24-bit operands.
#[inline(always)]
pub(crate) fn mul24(a: u32, b: u32, high: bool, signed: bool) -> u32 {
    let fit = |x: u32| {
        if signed {
            i64::from((x << 8) as i32 >> 8)
        } else {
            i64::from(x & 0xff_ffff)
        }
    };
    let p = fit(a).wrapping_mul(fit(b));
    (if high { p >> 16 } else { p }) as u32
}
