//! Rules of operands: which types an instruction has, and which registers and constants each of
//! its operands may be.
//!
//! A register of bits goes with every type of its size, a register of a floating-point type with
//! that type and with bits alone, integers with integers. Where an instruction converts or accesses
//! memory, a register of integers or bits may be wider.
//!
//! What is not described here is not refused.

use crate::ast::{Imm, Inst};
use crate::words::{Mod, Op, ScalarType as Ty, Word};

/// Bits of a type, `None` of those whose values are packed in ways of their own.
pub(crate) fn bits(ty: Ty) -> Option<u32> {
    Some(match ty {
        Ty::Pred => 1,
        Ty::B8 | Ty::U8 | Ty::S8 => 8,
        Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 => 16,
        Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 => 32,
        Ty::F16x2 | Ty::Bf16x2 | Ty::U16x2 | Ty::S16x2 => 32,
        Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 64,
        Ty::B128 => 128,
        _ => return None,
    })
}

fn is_bits(ty: Ty) -> bool {
    // A register of two halves is one of bits.
    matches!(
        ty,
        Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128 | Ty::F16x2
    )
}

pub(crate) fn is_integer(ty: Ty) -> bool {
    matches!(
        ty,
        Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 | Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64
    )
}

fn is_plain_float(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::F32 | Ty::F64)
}

/// What an operand must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperandRule {
    /// Of this type.
    Exact(Ty),
    /// Of this type, or wider.
    Wide(Ty),
    /// A 32-bit integer: an amount, a position, a count.
    Count,
    /// Any 32 bits but two halves.
    Word,
    Pred,
    /// Not described.
    Any,
}

impl OperandRule {
    /// Whether a register of type `have` may stand here.
    pub(crate) fn takes_register(self, have: Ty) -> bool {
        let Some(size) = bits(have) else { return true };
        match self {
            OperandRule::Any => true,
            OperandRule::Pred => have == Ty::Pred,
            OperandRule::Count => size == 32 && !matches!(have, Ty::F32 | Ty::F16x2),
            OperandRule::Word => size == 32 && have != Ty::F16x2,
            OperandRule::Exact(Ty::Pred) => have == Ty::Pred || have == Ty::F16x2,
            OperandRule::Exact(ty) => match bits(ty) {
                Some(want) => want == size && agree(ty, have),
                None => have != Ty::Pred,
            },
            OperandRule::Wide(ty) => match bits(ty) {
                Some(want) => want <= size && have != Ty::Pred && agree(ty, have),
                None => have != Ty::Pred,
            },
        }
    }

    /// Whether a constant may stand here.
    pub(crate) fn takes_constant(self, imm: Imm) -> bool {
        let (OperandRule::Exact(ty) | OperandRule::Wide(ty)) = self else {
            return self != OperandRule::Count || matches!(imm, Imm::Int { .. });
        };
        match (ty, imm) {
            (Ty::F32 | Ty::F64, Imm::Int { .. }) => false,
            (Ty::F16, Imm::F32(_) | Imm::F64(_)) => false,
            (Ty::B16 | Ty::B8, Imm::F32(_) | Imm::F64(_)) => false,
            (Ty::B32, Imm::F64(_)) | (Ty::B64, Imm::F32(_)) => false,
            (ty, Imm::F32(_) | Imm::F64(_)) => !is_integer(ty),
            _ => true,
        }
    }
}

/// Whether an instruction's type goes with a register's, sizes apart.
fn agree(ty: Ty, have: Ty) -> bool {
    if is_bits(ty) && ty != Ty::F16x2 {
        return true;
    }
    if is_integer(ty) {
        return is_integer(have) || is_bits(have);
    }
    let packed = matches!(ty, Ty::F16x2 | Ty::Bf16x2 | Ty::U16x2 | Ty::S16x2);
    have == ty || is_bits(have) && (have != Ty::F16x2 || packed)
}

/// The types that an instruction's first type may be; `None` if it is not described.
fn allowed(inst: &Inst) -> Option<fn(Ty) -> bool> {
    fn sized(ty: Ty, sizes: std::ops::RangeInclusive<u32>) -> bool {
        bits(ty).is_none_or(|n| sizes.contains(&n))
    }
    let word = |w| inst.mods.contains(&Mod::Word(w));
    Some(match inst.op {
        Op::Add | Op::Sub | Op::Min | Op::Max => |ty| !plain_bits(ty) && sized(ty, 16..=64),
        Op::Mul | Op::Mad if word(Word::Lo) || word(Word::Hi) => {
            |ty| is_integer(ty) && sized(ty, 16..=64)
        }
        Op::Mul | Op::Mad if word(Word::Wide) => |ty| is_integer(ty) && sized(ty, 16..=32),
        Op::Mul | Op::Mad | Op::Fma => |ty| !plain_bits(ty) && !is_integer(ty),
        Op::Div => |ty| is_integer(ty) && sized(ty, 16..=64) || matches!(ty, Ty::F32 | Ty::F64),
        Op::Rem | Op::Sad => |ty| is_integer(ty) && sized(ty, 16..=64),
        Op::Abs | Op::Neg => {
            |ty| !plain_bits(ty) && !matches!(ty, Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 | Ty::S8)
        }
        Op::And | Op::Or | Op::Xor | Op::Not => {
            |ty| matches!(ty, Ty::Pred | Ty::B16 | Ty::B32 | Ty::B64)
        }
        Op::Cnot | Op::Shl => |ty| matches!(ty, Ty::B16 | Ty::B32 | Ty::B64),
        Op::Shr => |ty| (plain_bits(ty) || is_integer(ty)) && sized(ty, 16..=64),
        Op::Popc | Op::Clz | Op::Brev | Op::Bfi => |ty| matches!(ty, Ty::B32 | Ty::B64),
        Op::Bfe | Op::Bfind => |ty| is_integer(ty) && sized(ty, 32..=64),
        Op::Lop3 | Op::Prmt | Op::Shf => |ty| ty == Ty::B32,
        Op::Selp | Op::Slct => |ty| sized(ty, 16..=64) && ty != Ty::Pred,
        Op::Mov => |ty| ty == Ty::Pred || sized(ty, 16..=128),
        _ => return None,
    })
}

fn plain_bits(ty: Ty) -> bool {
    is_bits(ty) && ty != Ty::F16x2
}

/// What is wrong with the types and modifiers of an instruction, operands apart.
pub(crate) fn refuse_modifiers(inst: &Inst) -> Option<String> {
    let types: Vec<Ty> = types(inst).collect();
    let op = inst.op;
    if let Some(allowed) = allowed(inst) {
        match types.first() {
            None => return Some(format!("a type is missing of instruction `{op}`")),
            Some(&ty) if !allowed(ty) => {
                return Some(format!("unexpected type `.{ty}` of instruction `{op}`"));
            }
            _ => {}
        }
    }
    let rounds = inst.mods.iter().any(|m| {
        let is = |w: Word| m.text().split("::").next() == Some(w.text());
        [
            Word::Rn,
            Word::Rz,
            Word::Rm,
            Word::Rp,
            Word::Rna,
            Word::Rni,
            Word::Rzi,
            Word::Rmi,
            Word::Rpi,
            Word::Rs,
            Word::Approx,
            Word::Full,
        ]
        .into_iter()
        .any(is)
    });
    let needs = match (op, types.as_slice()) {
        (Op::Fma | Op::Mad | Op::Div | Op::Rcp | Op::Sqrt, [Ty::F32 | Ty::F64, ..]) => true,
        (Op::Fma, [Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2]) => true,
        (Op::Cvt, &[to, from]) => {
            is_plain_float(to) && is_integer(from)
                || is_integer(to) && is_plain_float(from)
                || is_plain_float(to) && is_plain_float(from) && bits(to) < bits(from)
        }
        _ => false,
    };
    (needs && !rounds).then(|| format!("rounding modifier required for instruction `{op}`"))
}

/// The least compute capability, as 80 for 8.0, of a target that has the instruction; 0 if every
/// one has it, or it is not described.
pub(crate) fn least_capability(inst: &Inst) -> u32 {
    let word = |w| inst.mods.contains(&Mod::Word(w));
    match inst.op {
        Op::Alloca | Op::Stacksave | Op::Stackrestore => 52,
        Op::Dp4a | Op::Dp2a => 61,
        Op::Fence if word(Word::Proxy) && !word(Word::Alias) => 90,
        Op::Bmsk | Op::Szext | Op::Match | Op::Nanosleep | Op::Fence | Op::Mma | Op::Wmma => 70,
        Op::Ldmatrix | Op::Movmatrix | Op::Tanh => 75,
        Op::Mbarrier if word(Word::TryWait) => 90,
        Op::Redux | Op::Createpolicy | Op::Mbarrier | Op::Applypriority | Op::Discard => 80,
        Op::Cp if word(Word::Bulk) => 90,
        Op::Cp if word(Word::Async) => 80,
        Op::Cvt if types(inst).any(|ty| matches!(ty, Ty::E4m3x2 | Ty::E5m2x2)) => 89,
        Op::Atom | Op::Red if types(inst).any(|ty| matches!(ty, Ty::Bf16 | Ty::Bf16x2)) => 90,
        Op::Atom | Op::Red if types(inst).any(|ty| ty == Ty::F16) => 70,
        Op::Elect
        | Op::Griddepcontrol
        | Op::Mapa
        | Op::Getctarank
        | Op::Stmatrix
        | Op::Multimem
        | Op::Tensormap => 90,
        Op::Barrier if word(Word::Cluster) => 90,
        Op::St | Op::Red if word(Word::Async) => 90,
        _ => 0,
    }
}

pub(crate) fn types(inst: &Inst) -> impl Iterator<Item = Ty> {
    inst.mods.iter().filter_map(|m| match m {
        Mod::Type(ty) => Some(*ty),
        Mod::Word(_) => None,
    })
}

/// The length of a vector access.
pub(crate) fn vector_length(inst: &Inst) -> usize {
    let word = |w| inst.mods.contains(&Mod::Word(w));
    match (word(Word::V2), word(Word::V4), word(Word::V8)) {
        (true, ..) => 2,
        (_, true, _) => 4,
        (.., true) => 8,
        _ => 1,
    }
}

/// The rules of an instruction's operands in order, of as many as are described.
pub(crate) fn rules(inst: &Inst) -> Vec<OperandRule> {
    use OperandRule::{Any, Count, Exact, Pred, Wide};
    let types: Vec<Ty> = types(inst).collect();
    let word = |w| inst.mods.contains(&Mod::Word(w));
    let alike = |ty: Ty| vec![Exact(ty); inst.operands.len()];
    match (inst.op, types.as_slice()) {
        (Op::Mul | Op::Mad, &[ty]) if word(Word::Wide) => {
            let double = match ty {
                Ty::U16 => Ty::U32,
                Ty::S16 => Ty::S32,
                Ty::U32 => Ty::U64,
                _ => Ty::S64,
            };
            vec![Exact(double), Exact(ty), Exact(ty), Exact(double)]
        }
        (
            Op::Add
            | Op::Addc
            | Op::Sub
            | Op::Subc
            | Op::Mul
            | Op::Mad
            | Op::Madc
            | Op::Fma
            | Op::Div
            | Op::Rem
            | Op::Min
            | Op::Max
            | Op::Abs
            | Op::Neg
            | Op::And
            | Op::Or
            | Op::Xor
            | Op::Not
            | Op::Cnot
            | Op::Sad
            | Op::Copysign
            | Op::Mul24
            | Op::Mad24
            | Op::Brev
            | Op::Prmt
            | Op::Sin
            | Op::Cos
            | Op::Ex2
            | Op::Lg2
            | Op::Rcp
            | Op::Rsqrt
            | Op::Sqrt
            | Op::Tanh,
            &[ty],
        ) => alike(ty),
        (Op::Mov, &[ty]) if vector_length(inst) == 1 => alike(ty),
        (Op::Shl | Op::Shr, &[ty]) => vec![Exact(ty), Exact(ty), Count],
        (Op::Shf, &[ty]) => vec![Exact(ty), Exact(ty), Exact(ty), Count],
        (Op::Popc | Op::Clz | Op::Bfind | Op::Getctarank, &[ty]) => vec![Count, Exact(ty)],
        (Op::Mapa, &[ty]) => vec![Exact(ty), Exact(ty), Count],
        (Op::Bfe, &[ty]) => vec![Exact(ty), Exact(ty), Count, Count],
        (Op::Bfi, &[ty]) => vec![Exact(ty), Exact(ty), Exact(ty), Count, Count],
        (Op::Lop3, &[ty]) => vec![Exact(ty), Exact(ty), Exact(ty), Exact(ty), Any, Pred],
        (Op::Setp, &[ty]) => vec![Pred, Exact(ty), Exact(ty), Pred],
        (Op::Set, &[to, from]) => vec![Exact(to), Exact(from), Exact(from), Pred],
        (Op::Selp, &[ty]) => vec![Exact(ty), Exact(ty), Exact(ty), Pred],
        (Op::Slct, &[ty, by]) => vec![Exact(ty), Exact(ty), Exact(ty), Exact(by)],
        (Op::Cvt, &[to, from]) if inst.operands.len() == 2 => vec![Wide(to), Wide(from)],
        (Op::Cvta, &[ty]) => vec![Exact(ty), Exact(ty)],
        (Op::Ld | Op::Ldu, &[ty]) => vec![Wide(ty), Any],
        (Op::St, &[ty]) => vec![Any, Wide(ty)],
        (Op::Atom, &[ty]) if vector_length(inst) == 1 => {
            vec![Exact(ty), Any, Exact(ty), Exact(ty)]
        }
        (Op::Red, &[ty]) if vector_length(inst) == 1 => vec![Any, Exact(ty)],
        (Op::Txq | Op::Suq, &[ty]) => vec![Exact(ty)],
        (Op::Testp, &[ty]) => vec![Pred, Exact(ty)],
        (Op::Shfl, &[ty]) => vec![Exact(ty), Exact(ty)],
        (Op::Vote, &[ty]) => vec![Exact(ty), Pred],
        _ => Vec::new(),
    }
}
