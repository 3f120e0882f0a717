//! Integer arithmetic and bits, each instruction by its definition.

use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};

pub(super) const TABLE: &[Reference] = &[
    Reference::new("int_products", int_products),
    Reference::new("int_quotients", int_quotients),
    Reference::new("int_bits", int_bits),
    Reference::new("int128", int128),
    Reference::new("int256", int256),
];

fn rows(c: &LaunchInputs) -> Vec<(u32, u32, u64)> {
    let (a, b, p) = (c.get::<u32>("a"), c.get::<u32>("b"), c.get::<u64>("p"));
    (0..a.len()).map(|i| (a[i], b[i], p[i])).collect()
}

/// Sign-extended low 24 bits.
fn low24(v: u32) -> i64 {
    i64::from((v as i32) << 8 >> 8)
}

fn int_products(c: &LaunchInputs, e: &mut Expected) {
    let q = c.get::<u64>("q");
    let (mut r, mut w) = (Vec::new(), Vec::new());
    for (i, (x, y, u)) in rows(c).into_iter().enumerate() {
        let v = q[i];
        let (sx, sy) = (i64::from(x as i32), i64::from(y as i32));
        let unsigned24 = (u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff)) as u32;
        let narrow = (i32::from(x as i16) * i32::from(y as i16)) as u32;
        let (a, b) = (x.to_le_bytes(), y.to_le_bytes());
        let signed_dot = (0..4).fold(x as i32, |s, k| {
            s.wrapping_add(i32::from(a[k] as i8) * i32::from(b[k] as i8))
        }) as u32;
        let unsigned_dot = (0..4).fold(1u32, |s, k| {
            s.wrapping_add(u32::from(a[k]) * u32::from(b[k]))
        });
        let half_dot = 3u32
            .wrapping_add((x & 0xffff) * u32::from(b[0]))
            .wrapping_add((x >> 16) * u32::from(b[1]));
        r.extend([
            x.wrapping_mul(y),
            ((u64::from(x) * u64::from(y)) >> 32) as u32,
            ((sx * sy) >> 32) as u32,
            unsigned24 ^ narrow,
            (low24(x) * low24(y)) as u32,
            (((sx * sy) >> 32) as u32).wrapping_add(7),
            unsigned24.wrapping_add(x),
            x.abs_diff(y).wrapping_add(5),
            (x as i32).abs_diff(y as i32).wrapping_add(x),
            signed_dot ^ half_dot ^ unsigned_dot << 1,
        ]);
        let wide = |a: i128, b: i128| a.wrapping_mul(b);
        w.extend([
            u.wrapping_mul(v),
            ((u128::from(u) * u128::from(v)) >> 64) as u64,
            (wide((u as i64).into(), (v as i64).into()) >> 64) as u64,
            (u64::from(x) * u64::from(y)).wrapping_add(u),
            ((sx * sy) as u64).wrapping_add(v),
            u.wrapping_mul(v).wrapping_add(x.into()),
            (sx * sy) as u64,
        ]);
    }
    e.exact("r", &r);
    e.exact("w", &w);
}

fn int_quotients(c: &LaunchInputs, e: &mut Expected) {
    let q = c.get::<u64>("q");
    let (mut r, mut w) = (Vec::new(), Vec::new());
    for (i, (x, y, u)) in rows(c).into_iter().enumerate() {
        let (y, v) = (y | 1, q[i] | 1);
        let sy = if y as i32 == -1 { 3 } else { y as i32 };
        let sv = if v as i64 == -1 { 5 } else { v as i64 };
        r.extend([x / y, x % y, (x as i32 / sy) as u32, (x as i32 % sy) as u32]);
        w.extend([u / v, u % v, (u as i64 / sv) as u64, (u as i64 % sv) as u64]);
    }
    e.exact("r", &r);
    e.exact("w", &w);
}

/// Bits `at..at + len` of `v`, which has `width` bits; those past the end are zero, or the field's
/// own sign.
fn field(v: u64, at: u32, len: u32, width: u32, signed: bool) -> u64 {
    let bit = |i: u32| v >> i & 1;
    let fill = if signed && len > 0 {
        bit((at + len - 1).min(width - 1))
    } else {
        0
    };
    (0..width).fold(0, |d, i| {
        d | (if i < len && at + i < width {
            bit(at + i)
        } else {
            fill
        }) << i
    })
}

fn insert(field: u64, into: u64, at: u32, len: u32, width: u32) -> u64 {
    (0..len).filter(|i| at + i < width).fold(into, |d, i| {
        d & !(1 << (at + i)) | (field >> i & 1) << (at + i)
    })
}

fn bytes4(x: u32, y: u32, f: impl Fn(u8, u8) -> u8) -> u32 {
    let (a, b) = (x.to_le_bytes(), y.to_le_bytes());
    u32::from_le_bytes(std::array::from_fn(|i| f(a[i], b[i])))
}

fn int_bits(c: &LaunchInputs, e: &mut Expected) {
    let (mut r, mut w) = (Vec::new(), Vec::new());
    for (i, (x, y, u)) in rows(c).into_iter().enumerate() {
        let both = u64::from(x) | u64::from(y) << 32;
        let pool = both.to_le_bytes();
        let pick = |selector: u32| {
            u32::from_le_bytes(std::array::from_fn(|k| {
                pool[(selector >> (4 * k) & 7) as usize]
            }))
        };
        let z = u as u32;
        let past = y & 127;
        let clamped = (y & 63).min(32);
        let mode = i as u32 & 3;
        let sign_apart = if (x as i32) < 0 { !x } else { x };
        r.extend([
            x.count_ones(),
            x.leading_zeros(),
            if x == 0 { 0 } else { x.trailing_zeros() + 1 },
            x.reverse_bits(),
            pick(y >> 7),
            (both << (y & 31) >> 32) as u32,
            (both >> (y & 31)) as u32,
            (both << clamped >> 32) as u32,
            (both >> clamped) as u32,
            field(x.into(), y & 63, y >> 8 & 63, 32, false) as u32,
            field(x.into(), y & 63, y >> 8 & 63, 32, true) as u32,
            insert(x.into(), y.into(), y >> 4 & 63, y >> 12 & 63, 32) as u32,
            x ^ y ^ z,
            x & y | x & z | y & z,
            if past > 31 { 0 } else { x << past },
            if past > 31 { 0 } else { x >> past },
            ((x as i32) >> past.min(31)) as u32,
            if x == 0 {
                u32::MAX
            } else {
                31 - x.leading_zeros()
            },
            if sign_apart == 0 {
                u32::MAX
            } else {
                sign_apart.leading_zeros()
            },
            (both >> (8 * mode)) as u32,
            if mode & 1 == 0 {
                x & 0xffff | x << 16
            } else {
                x >> 16 | x & 0xffff_0000
            },
            bytes4(x, y, u8::wrapping_add),
            (x & 0xffff).max(y & 0xffff) | (x >> 16).max(y >> 16) << 16,
            bytes4(x, y, |a, b| if a > b { 0xff } else { 0 }),
            (0i32.wrapping_sub(x as i32).wrapping_abs() as u32) ^ u32::from(x == 0),
        ]);
        let first = if u == 0 { 0 } else { u.trailing_zeros() + 1 };
        w.extend([
            u64::from(u.count_ones()) | u64::from(u.leading_zeros()) << 8 | u64::from(first) << 16,
            u.reverse_bits(),
            field(u, y & 127, y >> 8 & 127, 64, true),
            insert(x.into(), u, y & 63, y >> 12 & 63, 64),
            ((u as i64) >> past.min(63)) as u64,
            if past > 63 { 0 } else { u << past },
        ]);
    }
    e.exact("r", &r);
    e.exact("w", &w);
}

fn int128(c: &LaunchInputs, e: &mut Expected) {
    let join = |name: &str| {
        c.get::<u64>(name)
            .chunks(2)
            .map(|p| u128::from(p[0]) | u128::from(p[1]) << 64)
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = join("a").into_iter().zip(join("b")).collect();
    let each = |f: &dyn Fn(u32, u128, u128) -> u128| {
        rows.iter()
            .enumerate()
            .flat_map(|(t, (x, y))| {
                let v = f(t as u32, *x, *y);
                [v as u64, (v >> 64) as u64]
            })
            .collect::<Vec<u64>>()
    };
    e.exact("sum", &each(&|_, x, y| x.wrapping_add(y).wrapping_sub(3)));
    e.exact("product", &each(&|_, x, y| x.wrapping_mul(y)));
    e.exact("quotient", &each(&|t, x, y| x / (y >> (t & 63) | 1)));
    e.exact(
        "shifted",
        &each(&|t, x, y| ((x as i128) >> (t & 127)) as u128 ^ y << (t & 127)),
    );
}

fn int256(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.get::<u32>("a"), c.get::<u32>("b"));
    let (mut sum, mut difference, mut column) = (Vec::new(), Vec::new(), Vec::new());
    for (x, y) in a.chunks(8).zip(b.chunks(8)) {
        let (mut carry, mut borrow) = (0i64, 0i64);
        for (p, q) in x.iter().zip(y) {
            carry += i64::from(*p) + i64::from(*q);
            sum.push(carry as u32);
            carry >>= 32;
            borrow += i64::from(*p) - i64::from(*q);
            difference.push(borrow as u32);
            borrow >>= 32;
        }
        let join = |v: &[u32]| u128::from(v[0]) | u128::from(v[1]) << 32;
        let product = join(x) * join(y);
        column.extend((0..4).map(|i| (product >> (32 * i)) as u32));
    }
    e.exact("sum", &sum);
    e.exact("difference", &difference);
    e.exact("column", &column);
}
