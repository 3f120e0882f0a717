//! `mma.m8n8k4` of f16 and `mma.sp`, against matrices that are multiplied on the host.
//!
//! Elements are small integers, so that every sum is exact in every format.

use half::f16;

use crate::bench::{bytes, fault, launch, module, words};

/// Loads `n` words of each thread from word `at` of its `all` words on, into `%x0` and on.
fn loads(register: &str, n: usize, at: usize) -> String {
    (0..n)
        .map(|k| format!("ld.global.b32 {register}{k}, [%rd2+{}];\n", 4 * (at + k)))
        .collect()
}

fn list(register: &str, n: usize) -> String {
    let names: Vec<String> = (0..n).map(|k| format!("{register}{k}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Runs `instruction d, a, b, c` with the last operands `tail` on 32 lanes' fragments; gives each
/// lane's registers of D.
fn product(
    instruction: &str,
    tail: &str,
    fragments: &[Vec<Vec<u32>>; 4],
    out: usize,
) -> Vec<Vec<u32>> {
    let [a, b, c, e] = fragments;
    let (na, nb, nc, ne) = (a[0].len(), b[0].len(), c[0].len(), e[0].len());
    let all = na + nb + nc + ne;
    let stores: String = (0..out)
        .map(|k| format!("st.global.b32 [%rd3+{}], %d{k};\n", 4 * k))
        .collect();
    let body = format!(
        ".reg .b32 %a<8>, %b<8>, %c<8>, %d<8>, %e<2>;
        mad.wide.u32 %rd2, %r0, {}, %rd0; mad.wide.u32 %rd3, %r0, {}, %rd1;
        {}{}{}{}
        {instruction} {}, {}, {}, {}{tail};
        {stores}",
        4 * all,
        4 * out,
        loads("%a", na, 0),
        loads("%b", nb, na),
        loads("%c", nc, na + nb),
        loads("%e", ne, na + nb + nc),
        list("%d", out),
        list("%a", na),
        list("%b", nb),
        list("%c", nc),
    );
    let input: Vec<u32> = (0..32)
        .flat_map(|l| [&a[l], &b[l], &c[l], &e[l]].into_iter().flatten().copied())
        .collect();
    let result = words(&launch(&module("", &body), &bytes(&input), 128 * out, 32));
    result.chunks(out).map(<[u32]>::to_vec).collect()
}

/// An element type: its bits, and the bits of a small integer.
#[derive(Clone, Copy)]
pub(crate) struct Element {
    pub(crate) name: &'static str,
    pub(crate) bits: u32,
    pub(crate) encode: fn(i32) -> u32,
    pub(crate) least: i32,
}

pub(crate) const ELEMENTS: [Element; 9] = [
    Element {
        name: "f16",
        bits: 16,
        encode: |v| u32::from(f16::from_f32(v as f32).to_bits()),
        least: -4,
    },
    Element {
        name: "bf16",
        bits: 16,
        encode: |v| (v as f32).to_bits() >> 16,
        least: -4,
    },
    Element {
        name: "tf32",
        bits: 32,
        encode: |v| (v as f32).to_bits(),
        least: -4,
    },
    Element {
        name: "s8",
        bits: 8,
        encode: |v| v as u8 as u32,
        least: -4,
    },
    Element {
        name: "u8",
        bits: 8,
        encode: |v| v as u8 as u32,
        least: 0,
    },
    Element {
        name: "s4",
        bits: 4,
        encode: |v| v as u32 & 15,
        least: -4,
    },
    Element {
        name: "u4",
        bits: 4,
        encode: |v| v as u32 & 15,
        least: 0,
    },
    // Sign, biased exponent and the two leading bits of the fraction.
    Element {
        name: "e4m3",
        bits: 8,
        encode: |v| fp8(v, 7, 3),
        least: -4,
    },
    Element {
        name: "e5m2",
        bits: 8,
        encode: |v| fp8(v, 15, 2),
        least: -4,
    },
];

fn fp8(v: i32, bias: u32, fraction: u32) -> u32 {
    let sign = if v < 0 { 0x80 } else { 0 };
    let n = v.unsigned_abs();
    if n == 0 {
        return sign;
    }
    let exponent = n.ilog2();
    let rest = (n << fraction >> exponent) & ((1 << fraction) - 1);
    sign | (exponent + bias) << fraction | rest
}

/// Puts elements, each with its lane and number within the fragment, into registers.
fn pack(
    bits: u32,
    registers: usize,
    elements: impl Iterator<Item = (usize, usize, u32)>,
) -> Vec<Vec<u32>> {
    let mut out = vec![vec![0u32; registers]; 32];
    let per = (32 / bits) as usize;
    for (lane, i, v) in elements {
        out[lane][i / per] |= v << (bits * (i % per) as u32);
    }
    out
}

pub(crate) fn sum_bits(kind: &str, v: i32) -> u32 {
    match kind {
        "f16" => u32::from(f16::from_f32(v as f32).to_bits()),
        "f32" => (v as f32).to_bits(),
        _ => v as u32,
    }
}

#[test]
fn eight_lanes_multiply_8_by_4_with_4_by_8() {
    let mut random = fercuda_trials::rng();
    for (a_major, b_major) in [
        ("row", "row"),
        ("row", "col"),
        ("col", "row"),
        ("col", "col"),
    ] {
        for (dtype, ctype) in [("f32", "f32"), ("f32", "f16"), ("f16", "f16")] {
            let mut some = || random.i32(-8..9);
            let a: Vec<i32> = (0..4 * 32).map(|_| some()).collect();
            let b: Vec<i32> = (0..4 * 32).map(|_| some()).collect();
            let c: Vec<i32> = (0..4 * 64).map(|_| some()).collect();
            // The quad of a lane, its place among the eight, and whether it is in the upper half.
            let quad = |lane: usize| lane % 16 / 4;
            let high = |lane: usize| if lane >= 16 { 4 } else { 0 };
            let f = ELEMENTS[0];
            let each4 = || (0..32usize).flat_map(|l| (0..4usize).map(move |i| (l, i)));
            let fa = pack(
                16,
                2,
                each4().map(|(l, i)| {
                    let (row, col) = match a_major {
                        "row" => (l % 4 + high(l), i),
                        _ => (i + high(l), l % 4),
                    };
                    (l, i, (f.encode)(a[quad(l) * 32 + row * 4 + col]))
                }),
            );
            let fb = pack(
                16,
                2,
                each4().map(|(l, i)| {
                    let (row, col) = match b_major {
                        "row" => (l % 4, i + high(l)),
                        _ => (i, l % 4 + high(l)),
                    };
                    (l, i, (f.encode)(b[quad(l) * 32 + row * 8 + col]))
                }),
            );
            let sum_place = |kind: &str, l: usize, i: usize| match kind {
                "f16" => (l % 4 + high(l), i),
                _ => ((l & 1) + (i & 2) + high(l), (i & 4) + (l & 2) + (i & 1)),
            };
            let width = |kind: &str| if kind == "f16" { 16 } else { 32 };
            let each8 = || (0..32usize).flat_map(|l| (0..8usize).map(move |i| (l, i)));
            let fc = pack(
                width(ctype),
                width(ctype) as usize / 4,
                each8().map(|(l, i)| {
                    let (row, col) = sum_place(ctype, l, i);
                    (l, i, sum_bits(ctype, c[quad(l) * 64 + row * 8 + col]))
                }),
            );
            let expected = pack(
                width(dtype),
                width(dtype) as usize / 4,
                each8().map(|(l, i)| {
                    let (row, col) = sum_place(dtype, l, i);
                    let q = quad(l);
                    let dot: i32 = (0..4)
                        .map(|k| a[q * 32 + row * 4 + k] * b[q * 32 + k * 8 + col])
                        .sum();
                    (l, i, sum_bits(dtype, c[q * 64 + row * 8 + col] + dot))
                }),
            );
            let name =
                format!("mma.sync.aligned.m8n8k4.{a_major}.{b_major}.{dtype}.f16.f16.{ctype}");
            let none = vec![Vec::new(); 32];
            let got = product(&name, "", &[fa, fb, fc, none], expected[0].len());
            assert_eq!(got, expected, "{name}");
        }
    }
}

/// A random choice of the stored places of a group: columns, and the metadata that names them.
pub(crate) fn group(random: &mut fastrand::Rng, element: Element) -> (Vec<usize>, u32) {
    if element.name == "tf32" {
        return if random.bool() {
            (vec![0], 0b0100)
        } else {
            (vec![1], 0b1110)
        };
    }
    let first = random.usize(0..3);
    let second = random.usize(first + 1..4);
    let bits = (first | second << 2) as u32;
    if element.bits == 4 {
        let pairs = [first, second].into_iter();
        (pairs.flat_map(|p| [2 * p, 2 * p + 1]).collect(), bits)
    } else {
        (vec![first, second], bits)
    }
}

/// Where a lane's part of a dense 16 by n matrix of A's kind begins, by the ISA's tables of dense
/// fragments: (row, column) of element `i`.
pub(crate) fn place_a(bits: u32, lane: usize, i: usize) -> (usize, usize) {
    let per = 32 / bits as usize;
    let register = i / per;
    (
        lane / 4 + 8 * (register % 2),
        (register / 2) * 4 * per + lane % 4 * per + i % per,
    )
}

fn place_b(bits: u32, lane: usize, i: usize) -> (usize, usize) {
    let per = 32 / bits as usize;
    (i / per * 4 * per + lane % 4 * per + i % per, lane / 4)
}

fn sparse(random: &mut fastrand::Rng, element: Element, k: usize, sums: &str, selector: usize) {
    let (m, n, stored) = (16, 8, k / 2);
    let width = match element.bits {
        32 => 2,
        4 => 8,
        _ => 4,
    };
    let row_bits = k / width * 4;
    let mut dense = vec![vec![0i32; k]; m];
    let mut kept = vec![vec![0i32; stored]; m];
    let mut metadata = vec![0u64; m];
    for row in 0..m {
        let mut at = 0;
        for g in 0..k / width {
            let (columns, bits) = group(random, element);
            metadata[row] |= u64::from(bits) << (4 * g);
            for column in columns {
                let v = random.i32(element.least..5);
                dense[row][g * width + column] = v;
                kept[row][at] = v;
                at += 1;
            }
        }
        assert_eq!(at, stored);
    }
    let b: Vec<Vec<i32>> = (0..k)
        .map(|_| (0..n).map(|_| random.i32(element.least..5)).collect())
        .collect();
    let c: Vec<Vec<i32>> = (0..m)
        .map(|_| (0..n).map(|_| random.i32(-9..9)).collect())
        .collect();
    let each = |count: usize| (0..32usize).flat_map(move |l| (0..count).map(move |i| (l, i)));
    let fa = pack(
        element.bits,
        m * stored * element.bits as usize / 1024,
        each(m * stored / 32).map(|(l, i)| {
            let (row, col) = place_a(element.bits, l, i);
            (l, i, (element.encode)(kept[row][col]))
        }),
    );
    let fb = pack(
        element.bits,
        k * n * element.bits as usize / 1024,
        each(k * n / 32).map(|(l, i)| {
            let (row, col) = place_b(element.bits, l, i);
            (l, i, (element.encode)(b[row][col]))
        }),
    );
    let sum_width = if sums == "f16" { 16 } else { 32 };
    let sum_fragment = |value: &dyn Fn(usize, usize) -> i32| {
        pack(
            sum_width,
            4 * sum_width as usize / 32,
            each(4).map(|(l, i)| {
                let (row, col) = (l / 4 + 8 * (i / 2), l % 4 * 2 + i % 2);
                (l, i, sum_bits(sums, value(row, col)))
            }),
        )
    };
    let fc = sum_fragment(&|row, col| c[row][col]);
    let expected = sum_fragment(&|row, col| {
        c[row][col] + (0..k).map(|x| dense[row][x] * b[x][col]).sum::<i32>()
    });
    // Lanes that are not asked have other bits.
    let e: Vec<Vec<u32>> = (0..32usize)
        .map(|lane| {
            let (row, four) = (lane / 4, lane % 4);
            let word = match row_bits {
                16 if four == selector => metadata[row] | metadata[row + 8] << 16,
                // Of wide elements a lane has a half of both rows; of others all of one row.
                32 if four / 2 == selector && element.bits >= 16 => {
                    let half = |row: usize| metadata[row] >> (16 * (four % 2)) & 0xffff;
                    half(row) | half(row + 8) << 16
                }
                32 if four / 2 == selector => metadata[row + 8 * (four % 2)],
                64 => metadata[row + 8 * (four % 2)] >> (32 * (four / 2)),
                _ => random.u64(..),
            };
            vec![word as u32]
        })
        .collect();
    let name = format!(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k{k}.row.col.{sums}.{0}.{0}.{sums}",
        element.name
    );
    let got = product(
        &name,
        &format!(", %e0, {selector:#x}"),
        &[fa, fb, fc, e],
        expected[0].len(),
    );
    assert_eq!(got, expected, "{name}, selector {selector}");
}

#[test]
fn a_sparse_matrix_is_multiplied_by_its_metadata() {
    let mut random = fercuda_trials::rng();
    for element in ELEMENTS {
        let depths: &[usize] = match element.bits {
            32 => &[8, 16],
            16 => &[16, 32],
            8 if element.name.starts_with('e') => &[64],
            8 => &[32, 64],
            _ => &[64, 128],
        };
        let sums: &[&str] = match element.name {
            "f16" => &["f32", "f16"],
            "s8" | "u8" | "s4" | "u4" => &["s32"],
            _ => &["f32"],
        };
        for &k in depths {
            for sums in sums {
                let width = match element.bits {
                    32 => 2,
                    4 => 8,
                    _ => 4,
                };
                for selector in 0..64 / (k / width * 4) {
                    sparse(&mut random, element, k, sums, selector);
                }
            }
        }
    }
}

#[test]
fn a_selector_that_names_no_lanes_is_refused() {
    let body = ".reg .b32 a, e; .reg .f32 c;
        mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {c,c,c,c}, {a,a,a,a}, {a,a,a,a}, {c,c,c,c}, e, 2;";
    let text = fault(&module("", body));
    assert!(text.contains("selector"), "{text}");
}

#[test]
fn a_zero_that_is_not_stored_is_not_multiplied() {
    // Every element of B but those in the stored columns is infinite.
    let body = ".reg .b32 a, b, e; .reg .f32 c<4>, d<4>;
        mov.b32 a, 0x3c003c00; mov.b32 e, 0x44444444;
        mov.f32 c0, 0f00000000; mov.b32 b, 0x3c003c00;
        mov.u32 %r1, %laneid; and.b32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0;
        @%p1 mov.b32 b, 0x7c007c00;
        mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0,d1,d2,d3}, {a,a}, {b,b}, {c0,c0,c0,c0}, e, 0;
        mad.wide.u32 %rd2, %r0, 16, %rd1;
        st.global.v4.f32 [%rd2], {d0,d1,d2,d3};";
    let out = words(&launch(&module("", body), &[0; 4], 512, 32));
    assert_eq!(out, [8f32.to_bits(); 128]);
}
