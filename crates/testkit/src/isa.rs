//! Single instructions compared with recorded hardware results.
//!
//! `isa/table.txt` lists instruction forms, one per line: name, destination type, source types,
//! PTX, and `exact` or the terms of a sum; results are the same bits in both cases. Each becomes a
//! kernel of [`THREADS`] threads that loads its operands, executes the PTX and stores its results.
//! Operands come from the name alone ([`InstructionForm::inputs`]),
//! so any device computes on the same values; `isa/h200.bin` holds what an H200 (driver 580.159)
//! stored, results in order of rows, then destinations, then threads.
//!
//! Elsewhere: launching (`tests/isa.rs` and the `fercuda-filetest` program).

use std::fmt::Write as _;

/// Threads of a row's launch: two blocks of 128.
pub const THREADS: usize = 256;
/// Blocks of a row's launch.
pub const BLOCKS: u32 = 2;
/// Bytes of scratch memory a launch needs.
pub const SCRATCH_BYTES: usize = THREADS * 8;

/// The table.
pub const TABLE: &str = include_str!("../isa/table.txt");
/// What the H200 stored.
pub const RECORDED: &[u8] = include_bytes!("../isa/h200.bin");

/// One instruction form.
#[derive(Debug, Clone)]
pub struct InstructionForm {
    /// Unique; also the seed of its operands.
    pub name: String,
    /// Register and kind of value of each source.
    sources: Vec<(String, String)>,
    /// Register and register type of each destination.
    destinations: Vec<(String, &'static str)>,
    text: String,
}

/// The table's rows in order.
///
/// # Errors
/// A line that does not have five fields, or a kind of value that does not exist: the line.
pub fn rows() -> Result<Vec<InstructionForm>, String> {
    TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(InstructionForm::parse)
        .collect()
}

/// Type of the register that holds a value of `kind`.
fn register_type(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "u8" | "s8" | "u16" | "s16" | "b16" | "f16" | "bf16" | "nz16" => "b16",
        "u32" | "s32" | "b32" | "nz32" | "amt" | "amt8" | "amt5" | "soff" => "b32",
        "f16x2" | "bf16x2" | "f16x2u" | "bf16x2u" | "tf32u" => "b32",
        "f32" | "f32trig" | "f32m" | "f32u" => "f32",
        "f64" | "f64u" => "f64",
        "u64" | "s64" | "b64" | "nz64" => "b64",
        _ => return None,
    })
}

fn width(register: &str) -> usize {
    match register {
        "b16" => 2,
        "b64" | "f64" => 8,
        _ => 4,
    }
}

impl InstructionForm {
    fn parse(line: &str) -> Result<InstructionForm, String> {
        let bad = || format!("not a row of the table: {line}");
        let fields: Vec<&str> = line.split(" | ").collect();
        let [name, destination, sources, text, _] = fields[..] else {
            return Err(bad());
        };
        let mut row = InstructionForm {
            name: name.to_owned(),
            sources: Vec::new(),
            destinations: Vec::new(),
            text: text.to_owned(),
        };
        if let Some(fragment) = destination.strip_prefix("mma:") {
            // Fragments: `mma:type:registers` for A, B and C.
            let (ty, count) = fragment.split_once(':').ok_or_else(bad)?;
            let register = match ty {
                "f32" => "f32",
                "f64" => "f64",
                _ => "b32",
            };
            let count: usize = count.parse().map_err(|_| bad())?;
            row.destinations = (0..count).map(|i| (format!("%d{i}"), register)).collect();
            for (letter, source) in ["a", "b", "c"].iter().zip(sources.split(' ')) {
                let [_, kind, count] = source.split(':').collect::<Vec<_>>()[..] else {
                    return Err(bad());
                };
                for i in 0..count.parse::<usize>().map_err(|_| bad())? {
                    row.sources.push((format!("%{letter}{i}"), kind.to_owned()));
                }
            }
        } else {
            let register = register_type(destination).ok_or_else(bad)?;
            row.destinations.push(("%d".to_owned(), register));
            if text.contains("$d2") {
                row.destinations.push(("%dd".to_owned(), register));
            }
            for (letter, kind) in ["a", "b", "c", "e"].iter().zip(sources.split(' ')) {
                row.sources.push((format!("%{letter}"), kind.to_owned()));
            }
            row.text = text.replace("$d2", "%dd").replace('$', "%");
        }
        if row
            .sources
            .iter()
            .any(|(_, kind)| register_type(kind).is_none())
        {
            return Err(bad());
        }
        Ok(row)
    }

    /// Operands of all threads: a register in 8 bytes, thread by thread, sources in order.
    #[must_use]
    pub fn inputs(&self) -> Vec<u64> {
        let mut random = SplitMix(fnv1a(&self.name));
        let mut values = Vec::with_capacity(THREADS * self.sources.len());
        for _ in 0..THREADS {
            for (_, kind) in &self.sources {
                let (first, second) = (random.next(), random.next());
                values.push(operand(kind, first, second));
            }
        }
        values
    }

    /// 8-byte results a thread stores.
    #[must_use]
    pub fn results(&self) -> usize {
        self.destinations.len()
    }

    /// Bytes that this row takes in [`RECORDED`].
    #[must_use]
    pub fn recorded_bytes(&self) -> usize {
        self.destinations
            .iter()
            .map(|(_, ty)| width(ty) * THREADS)
            .sum()
    }

    /// What the threads stored, in the layout of [`RECORDED`].
    #[must_use]
    pub fn record(&self, stored: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.recorded_bytes());
        for (i, (_, ty)) in self.destinations.iter().enumerate() {
            for thread in stored.chunks_exact(self.results()) {
                bytes.extend_from_slice(&thread[i].to_le_bytes()[..width(ty)]);
            }
        }
        bytes
    }

    /// The row's kernel, called `name`: operands, results and scratch memory are its parameters.
    #[must_use]
    pub fn kernel(&self, name: &str) -> String {
        let mut ptx = format!(
            ".visible .entry {name}(.param .u64 in, .param .u64 out, .param .u64 scratch)\n{{\n"
        );
        for (register, kind) in &self.sources {
            let ty = register_type(kind).unwrap_or("b32");
            let _ = writeln!(ptx, "    .reg .{ty} {register};");
        }
        for (register, ty) in &self.destinations {
            let _ = writeln!(ptx, "    .reg .{ty} {register};");
        }
        ptx.push_str(PROLOGUE);
        let _ = writeln!(
            ptx,
            "    mul.wide.u32 %off, %idx, {};",
            8 * self.sources.len()
        );
        ptx.push_str("    add.u64 %in, %in, %off;\n");
        let _ = writeln!(ptx, "    mul.wide.u32 %off, %idx, {};", 8 * self.results());
        ptx.push_str("    add.u64 %out, %out, %off;\n");
        for (i, (register, kind)) in self.sources.iter().enumerate() {
            let ty = register_type(kind).unwrap_or("b32");
            let _ = writeln!(ptx, "    ld.global.{ty} {register}, [%in+{}];", 8 * i);
        }
        for statement in self
            .text
            .split(';')
            .map(str::trim)
            .filter(|s| !s.is_empty())
        {
            let _ = writeln!(ptx, "    {statement};");
        }
        for (i, (register, ty)) in self.destinations.iter().enumerate() {
            let _ = writeln!(ptx, "    st.global.{ty} [%out+{}], {register};", 8 * i);
        }
        ptx.push_str("    ret;\n}\n");
        ptx
    }

    /// Descriptions of the first few threads with a result unlike the recorded one.
    #[must_use]
    pub fn mismatches(&self, stored: &[u64], recorded: &[u8]) -> Vec<String> {
        let inputs = self.inputs();
        let mut found = Vec::new();
        let mut at = 0;
        for (i, (register, ty)) in self.destinations.iter().enumerate() {
            let bytes = width(ty);
            for thread in 0..THREADS {
                let mut raw = [0; 8];
                raw[..bytes].copy_from_slice(&recorded[at..at + bytes]);
                at += bytes;
                let expected = u64::from_le_bytes(raw);
                raw = [0; 8];
                raw[..bytes]
                    .copy_from_slice(&stored[thread * self.results() + i].to_le_bytes()[..bytes]);
                let got = u64::from_le_bytes(raw);
                if got != expected && found.len() < 4 {
                    let n = self.sources.len();
                    found.push(format!(
                        "{}: thread {thread}, {register} = {got:#x}, recorded {expected:#x}, operands {:#x?}",
                        self.name,
                        &inputs[thread * n..(thread + 1) * n],
                    ));
                }
            }
        }
        found
    }
}

/// A module of kernels `k<first>`, `k<first + 1>`, ... for some rows.
#[must_use]
pub fn module(rows: &[InstructionForm], first: usize) -> String {
    let mut text = String::from(".version 8.6\n.target sm_90\n.address_size 64\n\n");
    for (i, row) in rows.iter().enumerate() {
        text.push_str(&row.kernel(&format!("k{}", first + i)));
    }
    text
}

/// Registers that the table's PTX may use beside its operands: predicates %p and %q, %t, a cell of
/// scratch memory for each thread in global (%mg) and shared memory (%ms), and 16-byte rows of the
/// warp's cells (%rows).
const PROLOGUE: &str = "    .reg .pred %p, %q;
    .reg .b32 %t, %lin, %ms, %rows, %idx;
    .reg .b64 %in, %out, %mg, %off;
    .shared .align 16 .b8 cells[2048];
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    ld.param.u64 %mg, [scratch];
    mov.u32 %lin, %tid.x;
    mov.u32 %t, %ctaid.x;
    mad.lo.u32 %idx, %t, 128, %lin;
    mul.wide.u32 %off, %idx, 8;
    add.u64 %mg, %mg, %off;
    mov.u32 %ms, cells;
    mad.lo.u32 %ms, %lin, 8, %ms;
    mov.u32 %rows, cells;
    and.b32 %t, %lin, 15;
    mad.lo.u32 %rows, %t, 16, %rows;
    and.b32 %t, %lin, 0xffffffe0;
    mad.lo.u32 %rows, %t, 8, %rows;
";

fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Steele, Lea and Flood's generator.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A value of `kind` from two random words: half of them corner cases, a quarter any bits, a
/// quarter of middling magnitude. Kinds that end in `u` or `m` have no corner cases.
fn operand(kind: &str, first: u64, second: u64) -> u64 {
    let (class, choice) = (first & 3, first >> 8);
    let pick = |values: &[u64]| values[(choice % values.len() as u64) as usize];
    let float = |corners: &[u64], any: u64, middling: u64| match class {
        0 | 1 => pick(corners),
        2 => any,
        _ => middling,
    };
    let pair =
        |kind: &str| operand(kind, first, second) | operand(kind, first >> 4, second << 16) << 16;
    match kind {
        "amt" => second % 80,
        "amt8" => second & 0xff,
        "amt5" => second & 31,
        "soff" => u64::from(((second % 81) as i32 - 40) as u32),
        "f32" => float(CORNERS_F32, second >> 32, f32_near(second, -8, 24)),
        "f32trig" => f32_near(second, -8, 9),
        "f32m" => f32_near(second, -20, 40),
        "f64" => float(CORNERS_F64, second, f64_near(second, -8, 24, first)),
        "f16" => float(CORNERS_F16, second >> 48, f16_near(second, -6, 12)),
        "bf16" => float(CORNERS_BF16, second >> 48, bf16_near(second, -6, 12)),
        "f16x2" => pair("f16"),
        "bf16x2" => pair("bf16"),
        "f16x2u" => f16_near(first, -4, 6) | f16_near(second, -4, 6) << 16,
        "bf16x2u" => bf16_near(first, -4, 6) | bf16_near(second, -4, 6) << 16,
        "tf32u" => f32_near(second, -4, 6) & 0xffff_e000,
        "f32u" => f32_near(second, -4, 8),
        "f64u" => f64_near(second, -4, 8, first),
        _ => {
            let nonzero = kind.starts_with("nz");
            let bits: u32 = kind[if nonzero { 2 } else { 1 }..].parse().unwrap_or(64);
            let value = match class {
                0 => pick(CORNERS_INTEGER),
                1 => second >> (choice % 64),
                _ => second,
            };
            let value = if bits == 64 {
                value
            } else {
                value & ((1 << bits.max(16)) - 1)
            };
            if nonzero && value == 0 { 3 } else { value }
        }
    }
}

/// Sign, exponent in `low..low + range` and fraction from random bits.
fn f32_near(random: u64, low: i64, range: u64) -> u64 {
    (random & 1) << 31 | exponent(127, random, low, range) << 23 | random >> 41
}

fn f64_near(random: u64, low: i64, range: u64, fraction: u64) -> u64 {
    (random & 1) << 63 | exponent(1023, random, low, range) << 52 | fraction >> 12
}

fn f16_near(random: u64, low: i64, range: u64) -> u64 {
    (random & 1) << 15 | exponent(15, random, low, range) << 10 | random >> 54
}

fn bf16_near(random: u64, low: i64, range: u64) -> u64 {
    (random & 1) << 15 | exponent(127, random, low, range) << 7 | random >> 57
}

fn exponent(bias: i64, random: u64, low: i64, range: u64) -> u64 {
    (bias + low + ((random >> 1) % range) as i64) as u64
}

/// Around the ends of every width.
const CORNERS_INTEGER: &[u64] = &[
    0x0,
    0x1,
    0x2,
    0x3,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x10000,
    0x7fffffff,
    0x80000000,
    0xffffffff,
    0x100000000,
    0x7fffffffffffffff,
    0x8000000000000000,
    0xffffffffffffffff,
    0xfffffffffffffffe,
    0xffffffffffff8000,
    0xffffffff80000000,
];

/// Zeros, infinities, NaN of all kinds, subnormals, powers of two and where formats and integers
/// end.
const CORNERS_F32: &[u64] = &[
    0x0, 0x80000000, 0x3f800000, 0xbf800000, 0x3f000000, 0x7f800000, 0xff800000, 0x7fc00000,
    0x7fffffff, 0xffc00001, 0x7f800001, 0x1, 0x80000001, 0x7fffff, 0x800000, 0x80800000,
    0x7f7fffff, 0xff7fffff, 0x3f7fffff, 0x3f800001, 0x40000000, 0x3fc00000, 0x40200000, 0x4b000000,
    0x4b800000, 0xcb000001, 0x4f000000, 0xcf000000, 0x4f800000, 0x5f000000, 0x5f800000, 0x437f0000,
    0x43800000, 0x47800000, 0x477fe000, 0x477ff000, 0x387fc000, 0x33800000, 0x33000000, 0x43e00000,
    0x43e80000, 0x47600000, 0x3b000000, 0x1000000, 0x400000,
];

/// As [`CORNERS_F32`], and where f32 and f16 end.
const CORNERS_F64: &[u64] = &[
    0x0,
    0x8000000000000000,
    0x3ff0000000000000,
    0xbff0000000000000,
    0x3fe0000000000000,
    0x7ff0000000000000,
    0xfff0000000000000,
    0x7ff8000000000000,
    0x7fffffffffffffff,
    0xfff8000000000001,
    0x7ff0000000000001,
    0x1,
    0x8000000000000001,
    0xfffffffffffff,
    0x10000000000000,
    0x7fefffffffffffff,
    0xffefffffffffffff,
    0x3fefffffffffffff,
    0x3ff0000000000001,
    0x4000000000000000,
    0x4004000000000000,
    0x4330000000000000,
    0x4340000000000000,
    0x41e0000000000000,
    0xc1e0000000000000,
    0x41f0000000000000,
    0x43e0000000000000,
    0x43f0000000000000,
    0x47efffffe0000000,
    0x47efffffefffffff,
    0x47effffff0000000,
    0x36a0000000000000,
    0x3690000000000000,
    0x380fffffc0000000,
    0x40effc0000000000,
    0x40effe0000000000,
    0x3f10000000000000,
    0x3e60000000000000,
];

/// As [`CORNERS_F32`].
const CORNERS_F16: &[u64] = &[
    0x0, 0x8000, 0x3c00, 0xbc00, 0x3800, 0x7c00, 0xfc00, 0x7e00, 0x7fff, 0xfe01, 0x7c01, 0x1,
    0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x3bff, 0x3c01, 0x4000, 0x4100, 0x5bf8, 0x5c00, 0x6400,
    0x5700, 0x5f00, 0x7800,
];

/// As [`CORNERS_F32`].
const CORNERS_BF16: &[u64] = &[
    0x0, 0x8000, 0x3f80, 0xbf80, 0x3f00, 0x7f80, 0xff80, 0x7fc0, 0x7fff, 0xffc1, 0x7f81, 0x1,
    0x8001, 0x7f, 0x80, 0x7f7f, 0xff7f, 0x3f7f, 0x3f81, 0x4000, 0x4020, 0x4300, 0x437f, 0x4f00,
    0x4380,
];
