//! Video instructions against the ISA's definition of them, every form with random operands.

use crate::bench::{bytes, launch, module, word, words};

const THREADS: usize = 64;

/// The bits of `v` that a selector such as `b1`, `h0` or none names, extended by the type.
fn extract(v: u32, selector: &str, ty: &str) -> i128 {
    let (shift, width) = place(selector);
    let bits = (u64::from(v) >> shift) & ((1 << width) - 1);
    if ty == "s32" && bits >> (width - 1) != 0 {
        i128::from(bits) - (1 << width)
    } else {
        i128::from(bits)
    }
}

/// (shift, width) of a selector.
fn place(selector: &str) -> (u32, u32) {
    match selector.strip_prefix('.').unwrap_or("") {
        "" => (0, 32),
        s if s.starts_with('b') => (8 * s[1..].parse::<u32>().unwrap(), 8),
        s => (16 * s[1..].parse::<u32>().unwrap(), 16),
    }
}

fn clamp(v: i128, ty: &str, width: u32) -> i128 {
    if ty == "s32" {
        v.clamp(-(1 << (width - 1)), (1 << (width - 1)) - 1)
    } else {
        v.clamp(0, (1 << width) - 1)
    }
}

fn basic(op: &str, x: i128, y: i128) -> i128 {
    match op {
        "vadd" => x + y,
        "vsub" => x - y,
        "vabsdiff" => (x - y).abs(),
        "vmin" => x.min(y),
        "vmax" => x.max(y),
        "vavrg" if x + y >= 0 => (x + y + 1) >> 1,
        "vavrg" => (x + y) >> 1,
        "vshl.clamp" => x << y.min(32),
        "vshl.wrap" => x << (y & 31),
        "vshr.clamp" => x >> y.min(32),
        "vshr.wrap" => x >> (y & 31),
        "eq" => i128::from(x == y),
        "ne" => i128::from(x != y),
        "lt" => i128::from(x < y),
        "le" => i128::from(x <= y),
        "gt" => i128::from(x > y),
        _ => i128::from(x >= y),
    }
}

/// Runs `instruction`, with operands `d`, `a`, `b`, `c`, on random words.
fn check(random: &mut fastrand::Rng, instruction: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let input: Vec<u32> = (0..3 * THREADS).map(|_| word(random)).collect();
    let body = format!(
        ".reg .u32 a, b, c, d;
        mad.wide.u32 %rd2, %r0, 12, %rd0;
        ld.global.u32 a, [%rd2]; ld.global.u32 b, [%rd2+4]; ld.global.u32 c, [%rd2+8];
        {instruction};
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        st.global.u32 [%rd3], d;"
    );
    let text = module("", &body);
    let out = words(&launch(&text, &bytes(&input), 4 * THREADS, THREADS as u32));
    for (got, from) in out.iter().zip(input.as_chunks::<3>().0) {
        let [a, b, c] = *from;
        assert_eq!(
            *got,
            expected(a, b, c),
            "{instruction} of {a:#x} {b:#x} {c:#x}"
        );
    }
}

fn any<'a>(random: &mut fastrand::Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(0..of.len())]
}

const TYPES: [&str; 2] = ["u32", "s32"];
const PARTS: [&str; 7] = ["", ".b0", ".b1", ".b2", ".b3", ".h0", ".h1"];

#[test]
fn one_integer_with_a_second_operation_or_a_merge() {
    let mut random = fercuda_trials::rng();
    for op in [
        "vadd",
        "vsub",
        "vabsdiff",
        "vmin",
        "vmax",
        "vshl.clamp",
        "vshl.wrap",
        "vshr.clamp",
        "vshr.wrap",
    ] {
        for _ in 0..12 {
            let random = &mut random;
            let shift = op.starts_with("vsh");
            let (td, ta) = (any(random, &TYPES), any(random, &TYPES));
            let tb = if shift { "u32" } else { any(random, &TYPES) };
            let (pa, pb) = (any(random, &PARTS), any(random, &PARTS));
            let sat = any(random, &["", ".sat"]);
            let second = any(random, &["", ".add", ".min", ".max"]);
            let merge = if second.is_empty() {
                any(random, &PARTS)
            } else {
                ""
            };
            let (base, mode) = match op.split_once('.') {
                Some((base, mode)) => (base, format!(".{mode}")),
                None => (op, String::new()),
            };
            let last = if second.is_empty() && merge.is_empty() {
                ""
            } else {
                ", c"
            };
            let text =
                format!("{base}.{td}.{ta}.{tb}{sat}{mode}{second} d{merge}, a{pa}, b{pb}{last}");
            check(random, &text, |a, b, c| {
                let v = basic(op, extract(a, pa, ta), extract(b, pb, tb));
                let (at, width) = place(merge);
                let v = if sat.is_empty() {
                    v
                } else {
                    clamp(v, td, width)
                };
                let third = extract(c, "", td);
                match second {
                    ".add" => (v + third) as u32,
                    ".min" => v.min(third) as u32,
                    ".max" => v.max(third) as u32,
                    _ if width == 32 => v as u32,
                    _ => {
                        let bits = ((1u32 << width) - 1) << at;
                        c & !bits | (v as u32) << at & bits
                    }
                }
            });
        }
    }
}

#[test]
fn a_comparison_gives_one_or_zero() {
    let mut random = fercuda_trials::rng();
    for cmp in ["eq", "ne", "lt", "le", "gt", "ge"] {
        for second in ["", ".add", ".min", ".max"] {
            let random = &mut random;
            let (ta, tb) = (any(random, &TYPES), any(random, &TYPES));
            let (pa, pb) = (any(random, &PARTS), any(random, &PARTS));
            let merge = if second.is_empty() {
                any(random, &PARTS[1..])
            } else {
                ""
            };
            let text = format!("vset.{ta}.{tb}.{cmp}{second} d{merge}, a{pa}, b{pb}, c");
            check(random, &text, |a, b, c| {
                let v = basic(cmp, extract(a, pa, ta), extract(b, pb, tb)) as u32;
                match second {
                    ".add" => v.wrapping_add(c),
                    ".min" => v.min(c),
                    ".max" => v.max(c),
                    _ => {
                        let (at, width) = place(merge);
                        let bits = ((1u32 << width) - 1) << at;
                        c & !bits | v << at
                    }
                }
            });
        }
    }
}

#[test]
fn a_product_and_a_sum_with_negation_and_scale() {
    let mut random = fercuda_trials::rng();
    for _ in 0..60 {
        let random = &mut random;
        let (ta, tb) = (any(random, &TYPES), any(random, &TYPES));
        let (pa, pb) = (any(random, &PARTS), any(random, &PARTS));
        let po = any(random, &["", "", ".po"]);
        let sign = ["", "-"];
        let (na, nb, nc) = match (po, random.u32(0..3)) {
            (".po", _) => ("", "", ""),
            (_, 0) => (any(random, &sign), "", ""),
            (_, 1) => ("", any(random, &sign), ""),
            _ => ("", "", any(random, &sign)),
        };
        let (sat, scale) = (
            any(random, &["", ".sat"]),
            any(random, &["", ".shr7", ".shr15"]),
        );
        let signed = [ta, tb].contains(&"s32") || [na, nb, nc].contains(&"-");
        let td = if signed { "s32" } else { "u32" };
        let text = format!("vmad.{td}.{ta}.{tb}{po}{sat}{scale} d, {na}a{pa}, {nb}b{pb}, {nc}c");
        check(random, &text, |a, b, c| {
            let product = extract(a, pa, ta) * extract(b, pb, tb);
            let product = if na != nb { -product } else { product };
            // The summand is negated bit by bit before it is extended.
            let (c, one) = if nc.is_empty() { (c, 0) } else { (!c, 1) };
            let sum = product + extract(c, "", td) + one + i128::from(!po.is_empty());
            let v = match scale {
                ".shr7" => sum >> 7,
                ".shr15" => sum >> 15,
                _ => sum,
            };
            (if sat.is_empty() { v } else { clamp(v, td, 32) }) as u32
        });
    }
}

/// `n` digits below `below`, the last for the lowest integer.
fn digits(random: &mut fastrand::Rng, n: usize, below: u32) -> Vec<u32> {
    (0..n).map(|_| random.u32(0..below)).collect()
}

fn selector(letter: char, digits: &[u32]) -> String {
    let text: String = digits.iter().map(u32::to_string).collect();
    format!(".{letter}{text}")
}

#[test]
fn several_integers_are_selected_from_both_sources_and_merged_by_a_mask() {
    let mut random = fercuda_trials::rng();
    for op in [
        "vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "eq", "lt", "ge",
    ] {
        for n in [2usize, 4] {
            for _ in 0..8 {
                let random = &mut random;
                let (letter, width) = if n == 2 { ('h', 16) } else { ('b', 8) };
                let set = op.len() == 2;
                let (td, ta, tb) = (
                    any(random, &TYPES),
                    any(random, &TYPES),
                    any(random, &TYPES),
                );
                let (da, db) = (
                    digits(random, n, 2 * n as u32),
                    digits(random, n, 2 * n as u32),
                );
                let taken: Vec<u32> = (0..n as u32).rev().filter(|_| random.bool()).collect();
                let mask = if taken.is_empty() {
                    String::new()
                } else {
                    selector(letter, &taken)
                };
                let add = any(random, &["", ".add"]);
                let sat = if set || !add.is_empty() {
                    ""
                } else {
                    any(random, &["", ".sat"])
                };
                let name = if set {
                    format!("vset{n}.{ta}.{tb}.{op}{add}")
                } else {
                    format!("{op}{n}.{td}.{ta}.{tb}{sat}{add}")
                };
                let (sa, sb) = (selector(letter, &da), selector(letter, &db));
                check(
                    random,
                    &format!("{name} d{mask}, a{sa}, b{sb}, c"),
                    |a, b, c| {
                        let field = |digit: u32, ty: &str| {
                            let from = if digit < n as u32 { a } else { b };
                            extract(from, &format!(".{letter}{}", digit % n as u32), ty)
                        };
                        let mut out = c;
                        for k in 0..n as u32 {
                            if !taken.is_empty() && !taken.contains(&k) {
                                continue;
                            }
                            let at = n - 1 - k as usize;
                            let v = basic(op, field(da[at], ta), field(db[at], tb));
                            let v = if sat.is_empty() {
                                v
                            } else {
                                clamp(v, td, width)
                            };
                            let bits = ((1u32 << width) - 1) << (width * k);
                            out = if add.is_empty() {
                                out & !bits | (v as u32) << (width * k) & bits
                            } else {
                                out.wrapping_add(v as u32)
                            };
                        }
                        out
                    },
                );
            }
        }
    }
}
