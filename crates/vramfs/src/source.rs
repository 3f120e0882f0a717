//! Source of the kernels: CUDA C++ beside this file, and a computed header of constants.
//!
//! Invariant: the CUDA C++ contains no constant of the code, the checksums or the layout.

use std::fmt::Write as _;

use crate::code::{self, PARITY};
use crate::network::XorNetwork;
use crate::{crc, gf, layout};

/// The kernels' source.
pub(crate) const KERNELS: &str = include_str!("device/kernels.cu");
/// The name of the header that the kernels include.
pub(crate) const HEADER_NAME: &str = "constants.h";

/// Generates the header.
pub(crate) fn header() -> String {
    let mut text = String::from("#pragma once\n");
    for (name, value) in [
        ("ROW_BYTES", layout::ROW_BYTES),
        ("DATA_ROWS", layout::DATA_ROWS),
        ("CODED_ROWS", layout::CODED_ROWS),
        ("RECORD_OFFSET", layout::RECORD_OFFSET),
        ("BLOCK_BYTES", layout::BLOCK_BYTES),
        ("WORDS", layout::WORDS),
        ("MAGIC_OFFSET", layout::MAGIC_OFFSET),
        ("IDENTITY_WORDS", layout::IDENTITY_WORDS),
        ("RECORD_SUM_OFFSET", layout::RECORD_SUM_OFFSET),
        ("MAGIC", layout::MAGIC as usize),
        (
            "SUM_OF_ZEROS",
            crc::crc32c(&[0; layout::ROW_BYTES]) as usize,
        ),
        ("MODULUS", usize::from(gf::MODULUS)),
        ("INLINE_JOBS_MAX", layout::INLINE_JOBS_MAX),
        ("SWEEP_WORDS", layout::SWEEP_WORDS),
        ("SHARED_BYTES", layout::SHARED_BYTES),
        ("SHARED_WITH_TABLES_BYTES", layout::SHARED_WITH_TABLES_BYTES),
        ("SHARED_WITH_JOBS_BYTES", layout::SHARED_WITH_JOBS_BYTES),
        ("SHARED_TO_REFRESH_BYTES", layout::SHARED_TO_REFRESH_BYTES),
    ] {
        add(
            &mut text,
            format_args!("constexpr unsigned {name} = {value}u;\n"),
        );
    }
    for (at, odd) in layout::MIX.iter().enumerate() {
        add(
            &mut text,
            format_args!("constexpr unsigned long long MIX{at} = {odd}ull;\n"),
        );
    }
    for (name, symbols) in [("MASK", code::MASK), ("MASK_VALUES", code::mask_values())] {
        add(
            &mut text,
            format_args!(
                "__device__ const unsigned char {name}[{PARITY}] = {};\n",
                list(&symbols)
            ),
        );
    }
    let first = code::FIRST_ROOT;
    add(
        &mut text,
        format_args!("constexpr int FIRST_ROOT = {first};\n"),
    );
    let exp: Vec<u8> = (0..gf::ORDER).map(gf::alpha).collect();
    let log: Vec<u8> = (0..=255).map(|x| gf::log(x).unwrap_or(0)).collect();
    add(
        &mut text,
        format_args!(
            "__device__ const unsigned char EXP[255] = {};\n",
            list(&exp)
        ),
    );
    add(
        &mut text,
        format_args!(
            "__device__ const unsigned char LOG[256] = {};\n",
            list(&log)
        ),
    );
    sums(&mut text);
    horner(&mut text);
    advance(&mut text);
    parity_of(&mut text);
    text
}

/// Lookup of a product with a constant: for each bit of the product four bits that select which of
/// the lower four bits of the symbol it is the sum of, and in the second word which of the upper
/// ones.
fn choices(constant: u8) -> [u32; 2] {
    let mut words = [0; 2];
    for bit in 0..8 {
        let product = gf::mul(constant, 1 << bit);
        for of in (0..8).filter(|of| product >> of & 1 != 0) {
            words[bit / 4] |= 1 << (4 * of + bit % 4);
        }
    }
    words
}

fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    match text.write_fmt(what) {
        Ok(()) => {}
        Err(_) => unreachable!("a string takes everything"),
    }
}

fn list<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    format!("{{{}}}", values.join(","))
}

fn sums(text: &mut String) {
    let table = |bytes: usize| {
        let parts: Vec<String> = crc::shift_tables(bytes).iter().map(|it| list(it)).collect();
        list(&parts)
    };
    add(text, format_args!("#define SUM_WORD {}\n", table(4)));
    // From the end of a lane's first half to the beginning of its second, and back a chunk.
    let half = layout::ROW_BYTES / 2 - 16;
    add(text, format_args!("#define SUM_HALF {}\n", table(half)));
    let lanes: Vec<[[u32; 256]; 4]> = (0..32)
        .map(|lane| crc::shift_tables(16 * (31 - lane)))
        .collect();
    let nibbles: Vec<String> = (0..8)
        .map(|nibble| {
            let values: Vec<String> = (0..16)
                .map(|value| {
                    let at = value << (4 * (nibble % 2));
                    let of: Vec<u32> = lanes.iter().map(|tables| tables[nibble / 2][at]).collect();
                    list(&of)
                })
                .collect();
            list(&values)
        })
        .collect();
    add(text, format_args!("#define SUM_LANES {}\n", list(&nibbles)));
    let bits = crc::bit_tables(layout::ROW_BYTES);
    let words: Vec<u32> = bits
        .fragments
        .iter()
        .flatten()
        .flatten()
        .flatten()
        .copied()
        .collect();
    add(
        text,
        format_args!("#define SUM_FRAGMENTS {}\n", list(&words)),
    );
    let words: Vec<u32> = bits.columns.iter().flatten().copied().collect();
    add(text, format_args!("#define SUM_COLUMNS {}\n", list(&words)));
    let words: Vec<u32> = bits.joins.iter().flatten().flatten().copied().collect();
    add(text, format_args!("#define SUM_JOINS {}\n", list(&words)));
    let columns = crc::word_columns(layout::ROW_BYTES, layout::CODED_ROWS);
    let of_parity: Vec<String> = columns[code::DATA..].iter().map(|it| list(it)).collect();
    add(
        text,
        format_args!("#define RECORD_COLUMNS_OF_PARITY {}\n", list(&of_parity)),
    );
    let rows: Vec<String> = columns
        .iter()
        .zip(code::parity_of_data())
        .map(|(columns, constants)| {
            let choices = constants.map(|it| list(&choices(it)));
            format!("{{{},{}}}", list(columns), list(&choices))
        })
        .collect();
    add(
        text,
        format_args!("#define TABLES_OF_ROWS {}\n", list(&rows)),
    );
}

/// One step of Horner's rule at each root.
fn horner(text: &mut String) {
    text.push_str(
        "__device__ __forceinline__ void horner(unsigned (&s)[8][8], const unsigned (&d)[8]) {\n",
    );
    for j in 0..PARITY {
        let network = XorNetwork::products(&[gf::alpha(code::root(j))]);
        text.push_str("    {\n");
        text.push_str(&network.statements(|i| format!("s[{j}][{i}]"), |o| format!("s[{j}][{o}]")));
        text.push_str("    }\n");
        for bit in 0..8 {
            add(text, format_args!("    s[{j}][{bit}] ^= d[{bit}];\n"));
        }
    }
    text.push_str("}\n");
}

/// The value at a root after `ROWS` more rows of zeros.
fn advance(text: &mut String) {
    text.push_str(
        "template <int ROWS> __device__ void advance(unsigned root, unsigned (&t)[8]);\n",
    );
    for rows in [layout::DATA_ROWS / 8, layout::CODED_ROWS / 8] {
        add(
            text,
            format_args!(
                "template <> __device__ __forceinline__ void advance<{rows}>(unsigned root, unsigned (&t)[8]) {{\n    switch (root) {{\n"
            ),
        );
        for j in 0..PARITY {
            let network = XorNetwork::products(&[gf::alpha(code::root(j) * rows as i32)]);
            add(text, format_args!("    case {j}: {{\n"));
            text.push_str(&network.statements(|i| format!("t[{i}]"), |o| format!("t[{o}]")));
            text.push_str("    } break;\n");
        }
        text.push_str("    }\n}\n");
    }
}

/// A symbol of parity from the values of data at the roots.
fn parity_of(text: &mut String) {
    text.push_str("__device__ __forceinline__ void parity_of(unsigned symbol, const unsigned (&v)[8][8], unsigned (&p)[8]) {\n    switch (symbol) {\n");
    for (i, constants) in code::parity_of_values().iter().enumerate() {
        let network = XorNetwork::products(constants);
        add(text, format_args!("    case {i}: {{\n"));
        text.push_str(&network.statements(
            |at| format!("v[{}][{}]", at / 8, at % 8),
            |o| format!("p[{o}]"),
        ));
        text.push_str("    } break;\n");
    }
    text.push_str("    }\n}\n");
}

/// The name of [`mover`]'s kernel.
pub(crate) const MOVER: &str = "vramfs_move";

/// Returns the PTX of a kernel that moves rows: a thread block of `threads` for each part of each
/// entry of a list (source, destination and length, 32 bytes each); each thread moves 16 bytes four
/// times. All loads are issued before the first store.
pub(crate) fn mover(threads: u32) -> String {
    const AT_ONCE: u32 = 4;
    let stride = 16 * threads;
    let mut loads = String::new();
    let mut stores = String::new();
    for k in 0..AT_ONCE {
        let words: Vec<String> = (0..4).map(|word| format!("%w{}", 4 * k + word)).collect();
        let words = words.join(", ");
        loads += &format!(
            "    add.u64 %offset{k}, %first, {};\n\
             \x20   setp.lt.u64 %there{k}, %offset{k}, %bytes;\n\
             \x20   add.u64 %address, %from, %offset{k};\n\
             \x20   @%there{k} ld.global.v4.u32 {{{words}}}, [%address];\n",
            k * stride
        );
        stores += &format!(
            "    add.u64 %address, %to, %offset{k};\n\
             \x20   @%there{k} st.global.v4.u32 [%address], {{{words}}};\n"
        );
    }
    format!(
        ".version 6.0\n.target sm_50\n.address_size 64\n\
         .visible .entry {MOVER}(.param .u64 list)\n\
         {{\n\
         \x20   .reg .pred %there<{AT_ONCE}>;\n\
         \x20   .reg .b32 %w<{words}>, %thread, %part, %entry;\n\
         \x20   .reg .b64 %offset<{AT_ONCE}>, %first, %within, %from, %to, %bytes, %address, %list, %place;\n\
         \x20   ld.param.u64 %list, [list];\n\
         \x20   mov.u32 %thread, %tid.x;\n\
         \x20   mov.u32 %part, %ctaid.x;\n\
         \x20   mov.u32 %entry, %ctaid.y;\n\
         \x20   mul.wide.u32 %place, %entry, 32;\n\
         \x20   add.u64 %place, %list, %place;\n\
         \x20   ld.global.v2.u64 {{%from, %to}}, [%place];\n\
         \x20   ld.global.u64 %bytes, [%place+16];\n\
         \x20   mul.wide.u32 %first, %part, {part};\n\
         \x20   mul.wide.u32 %within, %thread, 16;\n\
         \x20   add.u64 %first, %first, %within;\n\
         {loads}{stores}\
         \x20   ret;\n\
         }}\n",
        words = 4 * AT_ONCE,
        part = AT_ONCE * stride,
    )
}
