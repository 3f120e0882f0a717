//! `.approx` instructions over all their operands, compared with an H200 by sums.
//!
//! A kernel evaluates one form ([`FORMS`]) for 2^16 consecutive numbers in each of its blocks and
//! adds up a hash of each number and its result, so that a sum is right only if every result is.
//! `isa/approx.bin` holds what an H200 (driver 580.159.04) summed, form by form: for each of the
//! 256 groups of 2^24 numbers the sum over the whole group, then that over one block of it
//! ([`sampled_block`]), as little-endian u64.
//!
//! Elsewhere: launching (`tests/approx.rs`).

/// What the number of a result stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// The bits of an f32.
    F32,
    /// Two halves.
    Halves,
    /// A seed of dividend and divisor: any bits, or exponents that are near, or one at an end of
    /// the range.
    Quotient,
    /// The upper half of an f64; the lower is zero.
    UpperF64,
    /// A seed of an f64: any bits, or a subnormal or huge number.
    F64,
}

/// An instruction form.
#[derive(Debug, Clone, Copy)]
pub struct ApproxForm {
    /// The PTX opcode.
    pub opcode: &'static str,
    /// Its operands.
    pub operands: Operands,
}

const fn form(opcode: &'static str, operands: Operands) -> ApproxForm {
    ApproxForm { opcode, operands }
}

/// The forms in the order of [`RECORDED`].
pub const FORMS: [ApproxForm; 26] = [
    form("ex2.approx.f32", Operands::F32),
    form("ex2.approx.ftz.f32", Operands::F32),
    form("lg2.approx.f32", Operands::F32),
    form("lg2.approx.ftz.f32", Operands::F32),
    form("rcp.approx.f32", Operands::F32),
    form("rcp.approx.ftz.f32", Operands::F32),
    form("rsqrt.approx.f32", Operands::F32),
    form("rsqrt.approx.ftz.f32", Operands::F32),
    form("sqrt.approx.f32", Operands::F32),
    form("sqrt.approx.ftz.f32", Operands::F32),
    form("sin.approx.f32", Operands::F32),
    form("sin.approx.ftz.f32", Operands::F32),
    form("cos.approx.f32", Operands::F32),
    form("cos.approx.ftz.f32", Operands::F32),
    form("tanh.approx.f32", Operands::F32),
    form("div.approx.f32", Operands::Quotient),
    form("div.approx.ftz.f32", Operands::Quotient),
    form("div.full.f32", Operands::Quotient),
    form("div.full.ftz.f32", Operands::Quotient),
    form("ex2.approx.f16x2", Operands::Halves),
    form("tanh.approx.f16x2", Operands::Halves),
    form("ex2.approx.ftz.bf16x2", Operands::Halves),
    form("tanh.approx.bf16x2", Operands::Halves),
    form("rcp.approx.ftz.f64", Operands::UpperF64),
    form("rsqrt.approx.ftz.f64", Operands::UpperF64),
    form("rsqrt.approx.f64", Operands::F64),
];

/// Groups of a form, each of 256 blocks.
pub const GROUPS: u32 = 256;
/// Blocks of a group, each of 2^16 numbers.
pub const BLOCKS: u32 = 256;
/// Threads of a block.
pub const THREADS: u32 = 256;
/// What the H200 summed.
pub const RECORDED: &[u8] = include_bytes!("../isa/approx.bin");

/// The block of a group of which there is a sum, counted over all groups.
#[must_use]
pub fn sampled_block(group: u32) -> u32 {
    group * BLOCKS + (group * 151 + 37) % BLOCKS
}

/// What the H200 summed over a group of form number `form`, and over its sampled block.
///
/// # Panics
/// If there is no such form or group.
#[must_use]
pub fn recorded(form: usize, group: u32) -> [u64; 2] {
    let at = (form * GROUPS as usize + group as usize) * 16;
    let sum = |at: usize| RECORDED[at..at + 8].try_into().map(u64::from_le_bytes);
    match (sum(at), sum(at + 8)) {
        (Ok(group), Ok(block)) => [group, block],
        _ => [0; 2],
    }
}

impl ApproxForm {
    /// A module with the kernel `sums`: block `b` of the grid adds the sum over block `first + b`
    /// of the form to `out[b]`.
    #[must_use]
    pub fn module(&self) -> String {
        let opcode = self.opcode;
        let f32 = |dividend: &str| {
            format!("mov.b32 %f0, {dividend};\n{opcode} %f2, %f0;\nmov.b32 %y, %f2;\n")
        };
        let f64 = format!("mov.b64 %d0, %z;\n{opcode} %d1, %d0;\nmov.b64 %w, %d1;\n");
        let evaluate = match self.operands {
            Operands::F32 => f32("%i"),
            Operands::Halves => format!("{opcode} %y, %i;\n"),
            Operands::Quotient => {
                let seed = seed(0x9e37_79b9_7f4a_7c15);
                let divide = format!("{opcode} %f2, %f0, %f1;\nmov.b32 %y, %f2;\n");
                [&seed, QUOTIENT, &divide].concat()
            }
            Operands::UpperF64 => format!("mov.b32 %y, 0;\nmov.b64 %z, {{%y, %i}};\n{f64}"),
            Operands::F64 => [&seed(0xd1b5_4a32_d192_ed03), WIDE, &f64].concat(),
        };
        let combine = match self.operands {
            Operands::UpperF64 | Operands::F64 => [&seed(0), "add.u64 %z, %z, %w;\n"].concat(),
            _ => "mov.b64 %z, {%y, %i};\n".to_owned(),
        };
        [HEAD, &evaluate, &combine, &mix(), TAIL].concat()
    }
}

/// `%z` from `%i` and a constant.
fn seed(constant: u64) -> String {
    let add = format!("cvt.u64.u32 %z, %i;\nadd.u64 %z, %z, 0x{constant:x};\n");
    add + &mix()
}

/// Mixes the bits of `%z` (Steele, Lea and Flood).
fn mix() -> String {
    let step = |shift: u32| format!("shr.u64 %s, %z, {shift};\nxor.b64 %z, %z, %s;\n");
    let times = |factor: u64| format!("mul.lo.u64 %z, %z, 0x{factor:x};\n");
    [
        step(30),
        times(0xbf58_476d_1ce4_e5b9),
        step(27),
        times(0x94d0_49bb_1331_11eb),
        step(31),
    ]
    .concat()
}

/// `%i` goes through the block's numbers that are this thread's.
const HEAD: &str = ".version 8.6
.target sm_90
.address_size 64

.visible .entry sums(.param .u64 out, .param .u32 first)
{
.reg .pred %p;
.reg .b32 %i, %end, %y, %t, %a, %b, %e, %class;
.reg .b64 %z, %s, %w, %sum, %out;
.reg .f32 %f<3>;
.reg .f64 %d<2>;
mov.u32 %a, %ctaid.x;
ld.param.u64 %out, [out];
mad.wide.u32 %out, %a, 8, %out;
ld.param.u32 %b, [first];
add.u32 %a, %a, %b;
shl.b32 %a, %a, 16;
mov.u32 %i, %tid.x;
add.u32 %i, %i, %a;
add.u32 %end, %i, 65536;
mov.u64 %sum, 0;
next:
";

/// Dividend and divisor of the seed `%z`, by the last two bits of `%i`: as they are; the
/// divisor's exponent near the dividend's; that of the divisor, or of the dividend, at an end.
const QUOTIENT: &str = "mov.b64 {%a, %b}, %z;
and.b32 %class, %i, 3;
bfe.u32 %e, %a, 23, 8;
bfe.u32 %t, %b, 23, 3;
add.u32 %e, %e, %t;
add.u32 %e, %e, 252;
bfi.b32 %y, %e, %b, 23, 8;
add.u32 %e, %t, 248;
setp.lt.u32 %p, %t, 3;
selp.b32 %e, %t, %e, %p;
bfi.b32 %t, %e, %b, 23, 8;
setp.eq.u32 %p, %class, 1;
selp.b32 %b, %y, %b, %p;
setp.eq.u32 %p, %class, 2;
selp.b32 %b, %t, %b, %p;
bfe.u32 %t, %a, 23, 3;
add.u32 %e, %t, 248;
setp.lt.u32 %p, %t, 3;
selp.b32 %e, %t, %e, %p;
bfi.b32 %t, %e, %a, 23, 8;
setp.eq.u32 %p, %class, 3;
selp.b32 %a, %t, %a, %p;
mov.b32 %f0, %a;
mov.b32 %f1, %b;
";

/// An operand of the seed `%z`; every fourth has an exponent at an end.
const WIDE: &str = "and.b32 %class, %i, 3;
shr.u64 %s, %z, 53;
and.b64 %s, %s, 1;
setp.ne.u64 %p, %s, 0;
and.b64 %w, %z, 0x801fffffffffffff;
or.b64 %s, %w, 0x7fe0000000000000;
selp.b64 %w, %s, %w, %p;
setp.eq.u32 %p, %class, 3;
selp.b64 %z, %w, %z, %p;
";

const TAIL: &str = "add.u64 %sum, %sum, %z;
add.u32 %i, %i, 256;
setp.ne.u32 %p, %i, %end;
@%p bra next;
red.global.add.u64 [%out], %sum;
ret;
}
";
