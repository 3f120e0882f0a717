//! Rust types of registers.
//!
//! Rust's own number types stand for PTX's; `bool` is a predicate. Halves have no
//! Rust type, so they have markers here.
//!
//! Invariant: the traits are sealed; only their constants map a Rust type to a PTX word.

use crate::ast::Imm;
use crate::words::{Mod, ScalarType, Word};

mod sealed {
    pub trait SealedType {}
}
pub(crate) use sealed::SealedType;

/// IEEE binary16.
#[derive(Debug, Clone, Copy)]
pub enum F16 {}
/// bfloat16.
#[derive(Debug, Clone, Copy)]
pub enum Bf16 {}
/// Two binary16 in 32 bits, the lower one first.
#[derive(Debug, Clone, Copy)]
pub enum F16x2 {}
/// Two bfloat16 in 32 bits, the lower one first.
#[derive(Debug, Clone, Copy)]
pub enum Bf16x2 {}

/// An `f32` rounded to 11 bits of significand, as tensor cores multiply it.
#[derive(Debug, Clone, Copy)]
pub enum Tf32 {}

/// A type of register.
pub trait Type: SealedType + Copy + 'static {
    /// The type in arithmetic: `add.TY`.
    const TY: ScalarType;
    /// The type in declarations.
    const REG: ScalarType;
    /// The untyped form of the same width: `and.BITS`.
    const BITS: ScalarType;
    /// Beginning of the names of unnamed registers.
    const PREFIX: &'static str;
}

/// A number: anything but a predicate.
pub trait Scalar: Type {
    /// Size in a register.
    const BYTES: u32;
}

/// A type with `+`, `-` and `*`.
pub trait Num: Scalar {
    /// Between opcode and type of `add` and `sub`.
    const ADD: &'static [Mod];
    /// Between opcode and type of `mul` and `mad`/`fma`.
    const MUL: &'static [Mod];
    /// Whether multiply-add is spelt `fma`.
    const FLOAT: bool;
}

/// An ordered type: `min`, `max`, comparisons.
pub trait Ordered: Scalar {
    /// Comparison that is true of unequal values and of NaN.
    const NE: Word;
}

/// An integer.
pub trait Int: Num + Ordered {
    /// Whether negative values exist.
    const SIGNED: bool;
}

/// A type with bitwise operations.
pub trait BitOps: Type {}

/// `f32` or `f64`.
pub trait Float: Num + Ordered {}

/// A 32-bit register, as shuffles take it.
pub trait Bits32: Scalar {}

/// A type that atomic addition knows.
pub trait AtomicAdd: MemoryElement<Value = Self> + Num {}

/// A type that atomic minimum and maximum know.
pub trait AtomicMinMax: MemoryElement<Value = Self> + Int {}

/// A type that exchange and compare-and-swap know.
pub trait AtomicSwap: MemoryElement<Value = Self> + Scalar {}

/// An element type of memory.
pub trait MemoryElement: SealedType + Copy + 'static {
    /// The register it is loaded into: a byte widens to 32 bits.
    type Value: Scalar;
    /// The type in `ld`, `st` and declarations.
    const MEM: ScalarType;
    /// Size in memory.
    const BYTES: u32;
}

macro_rules! types {
    ($($t:ty: $ty:ident $reg:ident $bits:ident $prefix:literal $bytes:literal;)*) => {$(
        impl SealedType for $t {}
        impl Type for $t {
            const TY: ScalarType = ScalarType::$ty;
            const REG: ScalarType = ScalarType::$reg;
            const BITS: ScalarType = ScalarType::$bits;
            const PREFIX: &'static str = $prefix;
        }
        impl Scalar for $t {
            const BYTES: u32 = $bytes;
        }
        impl MemoryElement for $t {
            type Value = $t;
            const MEM: ScalarType = ScalarType::$reg;
            const BYTES: u32 = $bytes;
        }
    )*};
}

types! {
    u16: U16 U16 B16 "us" 2;
    i16: S16 S16 B16 "is" 2;
    u32: U32 U32 B32 "u" 4;
    i32: S32 S32 B32 "i" 4;
    u64: U64 U64 B64 "ul" 8;
    i64: S64 S64 B64 "il" 8;
    f32: F32 F32 B32 "f" 4;
    f64: F64 F64 B64 "d" 8;
    F16: F16 B16 B16 "h" 2;
    Bf16: Bf16 B16 B16 "bf" 2;
    F16x2: F16x2 B32 B32 "hh" 4;
    Bf16x2: Bf16x2 B32 B32 "bb" 4;
    Tf32: Tf32 B32 B32 "tf" 4;
}

impl SealedType for bool {}
impl Type for bool {
    const TY: ScalarType = ScalarType::Pred;
    const REG: ScalarType = ScalarType::Pred;
    const BITS: ScalarType = ScalarType::Pred;
    const PREFIX: &'static str = "p";
}

impl SealedType for u8 {}
impl MemoryElement for u8 {
    type Value = u32;
    const MEM: ScalarType = ScalarType::U8;
    const BYTES: u32 = 1;
}

impl SealedType for i8 {}
impl MemoryElement for i8 {
    type Value = i32;
    const MEM: ScalarType = ScalarType::S8;
    const BYTES: u32 = 1;
}

const LO: &[Mod] = &[Mod::Word(Word::Lo)];
const RN: &[Mod] = &[Mod::Word(Word::Rn)];

macro_rules! nums {
    ($($t:ty: $add:expr, $mul:expr, $float:literal;)*) => {$(
        impl Num for $t {
            const ADD: &'static [Mod] = $add;
            const MUL: &'static [Mod] = $mul;
            const FLOAT: bool = $float;
        }
    )*};
}

nums! {
    u16: &[], LO, false;
    i16: &[], LO, false;
    u32: &[], LO, false;
    i32: &[], LO, false;
    u64: &[], LO, false;
    i64: &[], LO, false;
    f32: RN, RN, true;
    f64: RN, RN, true;
    F16: RN, RN, true;
    F16x2: RN, RN, true;
}

macro_rules! marks {
    ($($tr:ident: $($t:ty),*;)*) => {$($(impl $tr for $t {})*)*};
}

marks! {
    BitOps: u16, i16, u32, i32, u64, i64, bool;
    Float: f32, f64;
    Bits32: u32, i32, f32, F16x2, Bf16x2;
    AtomicAdd: u32, u64, f32, f64, i32;
    AtomicMinMax: u32, i32, u64, i64;
    AtomicSwap: u32, i32, u64, i64, f32, f64;
}

macro_rules! ordered {
    ($($t:ty: $ne:ident;)*) => {$(
        impl Ordered for $t {
            const NE: Word = Word::$ne;
        }
    )*};
}

ordered! {
    u16: Ne;
    i16: Ne;
    u32: Ne;
    i32: Ne;
    u64: Ne;
    i64: Ne;
    f32: Neu;
    f64: Neu;
    F16: Neu;
}

macro_rules! ints {
    ($($t:ty: $signed:literal;)*) => {$(
        impl Int for $t {
            const SIGNED: bool = $signed;
        }
    )*};
}

ints! {
    u16: false;
    i16: true;
    u32: false;
    i32: true;
    u64: false;
    i64: true;
}

/// A conversion that one `cvt` makes.
///
/// Rounding: integer to float to nearest even; float to integer towards zero, saturating,
/// NaN to 0; float to narrower float to nearest even
/// (to [`Tf32`]: ties away from zero); integer to narrower integer keeps
/// the low bits.
pub trait Convert<To: Scalar>: Scalar {
    /// Between `cvt` and the types.
    const ROUNDING: &'static [Mod];
    /// Lowest `sm_` that has it.
    const ARCH: u32 = 0;
}

macro_rules! converts {
    ($($rounding:expr, $arch:literal { $($from:ty => $($to:ty),+;)* })*) => {$($($(
        impl Convert<$to> for $from {
            const ROUNDING: &'static [Mod] = $rounding;
            const ARCH: u32 = $arch;
        }
    )+)*)*};
}

const RZI: &[Mod] = &[Mod::Word(Word::Rzi)];

converts! {
    &[], 0 {
        u16 => i16, u32, i32, u64, i64;
        i16 => u16, u32, i32, u64, i64;
        u32 => u16, i16, i32, u64, i64;
        i32 => u16, i16, u32, u64, i64;
        u64 => u16, i16, u32, i32, i64;
        i64 => u16, i16, u32, i32, u64;
        f32 => f64;
        F16 => f32, f64;
    }
    RN, 0 {
        u16 => f32, f64, F16;
        i16 => f32, f64, F16;
        u32 => f32, f64, F16;
        i32 => f32, f64, F16;
        u64 => f32, f64, F16;
        i64 => f32, f64, F16;
        f64 => f32, F16;
        f32 => F16;
    }
    RZI, 0 {
        f32 => u16, i16, u32, i32, u64, i64;
        f64 => u16, i16, u32, i32, u64, i64;
        F16 => u16, i16, u32, i32, u64, i64;
    }
    RN, 80 {
        f32 => Bf16;
    }
    &[Mod::Word(Word::Rna)], 80 {
        f32 => Tf32;
    }
}

/// A Rust number as a constant: an operand, or an element of an initialised array.
pub trait ConstElement: MemoryElement {
    /// The constant.
    fn imm(self) -> Imm;
}

macro_rules! const_ints {
    ($($t:ty)*) => {$(
        impl ConstElement for $t {
            fn imm(self) -> Imm {
                Imm::Int { value: i64::from(self), unsigned: false }
            }
        }
    )*};
}

const_ints! { u8 i8 u16 i16 u32 i32 i64 }

impl ConstElement for u64 {
    fn imm(self) -> Imm {
        Imm::Int {
            value: self.cast_signed(),
            unsigned: self > i64::MAX as u64,
        }
    }
}

impl ConstElement for f32 {
    fn imm(self) -> Imm {
        Imm::F32(self.to_bits())
    }
}

impl ConstElement for f64 {
    fn imm(self) -> Imm {
        Imm::F64(self.to_bits())
    }
}
