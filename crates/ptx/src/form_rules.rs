//! Rules of an instruction's form: modifiers that do not go with its type or with each other,
//! constants out of range, state spaces that it does not access, versions that lack it.
//!
//! What is not described here is not refused. Elsewhere: types of operands
//! ([`crate::operand_types`]), declarations ([`crate::declaration_rules`]).

use crate::ast::{Imm, Inst, Operand, PtxModule};
use crate::cluster_rules::refuse_cluster;
use crate::operand_types::{bits, is_integer, types, vector_length};
use crate::wgmma_rules::refuse_group_form;
use crate::words::{Mod, Op, ScalarType as Ty, Space, Word};

/// What a module is written for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PtxTarget {
    /// `.version` as (major, minor).
    pub(crate) version: (u32, u32),
    /// The compute capability, as 80 for `sm_80`, if that is what the target is.
    pub(crate) capability: Option<u32>,
    /// Whether it is one architecture's alone: `sm_90a`.
    pub(crate) is_specific: bool,
}

impl PtxTarget {
    pub(crate) fn of(module: &PtxModule) -> Self {
        let name = module.target.first().and_then(|t| t.strip_prefix("sm_"));
        let digits = |t: &str| t.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
        PtxTarget {
            version: module.version,
            capability: name.and_then(|t| t[..digits(t)].parse().ok()),
            is_specific: name.is_some_and(|t| digits(t) < t.len()),
        }
    }
}

/// What is wrong with the form of an instruction, its operands' types apart.
pub(crate) fn refuse_form(inst: &Inst, target: PtxTarget) -> Option<String> {
    let types: Vec<Ty> = types(inst).collect();
    refuse_version(inst, target)
        .or_else(|| match *types.as_slice() {
            [ty] if is_arithmetic(inst.op) => refuse_arithmetic(inst, ty),
            [to, from] if inst.op == Op::Cvt => refuse_conversion(inst, to, from),
            [ty] if matches!(inst.op, Op::Atom | Op::Red) => refuse_atomic(inst, ty),
            _ => None,
        })
        .or_else(|| refuse_order(inst))
        .or_else(|| refuse_cluster(inst))
        .or_else(|| refuse_fragments(inst, &types))
        .or_else(|| refuse_space(inst))
        .or_else(|| refuse_group_form(inst, &types))
        .or_else(|| refuse_number(inst))
}

fn has(inst: &Inst, word: Word) -> bool {
    inst.mods.contains(&Mod::Word(word))
}

fn first_of(inst: &Inst, words: &[Word]) -> Option<Word> {
    words.iter().copied().find(|&w| has(inst, w))
}

fn illegal(inst: &Inst, word: Word) -> String {
    format!("illegal modifier `.{word}` for instruction `{}`", inst.op)
}

fn does_not_apply(inst: &Inst, word: Word, ty: Ty) -> String {
    let op = inst.op;
    format!("modifier `.{word}` of instruction `{op}` does not apply to type `.{ty}`")
}

/// Instructions whose lanes communicate without naming each other, and those of one architecture.
fn refuse_version(inst: &Inst, target: PtxTarget) -> Option<String> {
    let capability = target.capability?;
    let unnamed = matches!(inst.op, Op::Shfl | Op::Vote) && !has(inst, Word::Sync);
    if unnamed && capability >= 70 && target.version >= (6, 4) {
        let op = inst.op;
        return Some(format!(
            "instruction `{op}` without .sync is not in PTX 6.4 and later for .target sm_70 and \
             higher"
        ));
    }
    let op = inst.op;
    if op == Op::Wgmma && (capability != 90 || !target.is_specific) {
        return Some(format!("instruction `{op}` requires .target sm_90a"));
    }
    let later = match op {
        Op::Redux => types(inst).any(|ty| ty == Ty::F32).then_some(".f32"),
        Op::Stmatrix => first_of(inst, &[Word::M16n8]).map(|_| ".m16n8"),
        _ => None,
    };
    if let Some(word) = later
        && (capability < 100 || !target.is_specific)
    {
        return Some(format!(
            "`{word}` of instruction `{op}` requires .target sm_100a"
        ));
    }
    (op == Op::Setmaxnreg && !target.is_specific).then(|| {
        format!("instruction `{op}` requires a .target of one architecture, such as sm_90a")
    })
}

const DIRECTED: [Word; 4] = [Word::Rn, Word::Rz, Word::Rm, Word::Rp];
const TO_INTEGER: [Word; 4] = [Word::Rni, Word::Rzi, Word::Rmi, Word::Rpi];

fn is_arithmetic(op: Op) -> bool {
    matches!(
        op,
        Op::Add
            | Op::Addc
            | Op::Sub
            | Op::Subc
            | Op::Mul
            | Op::Mad
            | Op::Madc
            | Op::Mul24
            | Op::Mad24
            | Op::Fma
            | Op::Div
            | Op::Rem
            | Op::Sad
            | Op::Min
            | Op::Max
            | Op::Abs
            | Op::Neg
            | Op::Setp
    )
}

/// Saturation, flushing and rounding of one type's arithmetic. Of the types that later versions
/// have added modifiers to, `.bf16` and its kin, nothing is refused.
fn refuse_arithmetic(inst: &Inst, ty: Ty) -> Option<String> {
    let op = inst.op;
    let short = matches!(ty, Ty::F16 | Ty::F16x2);
    let integer = is_integer(ty) || matches!(ty, Ty::U16x2 | Ty::S16x2);
    if !integer && !short && !matches!(ty, Ty::F32 | Ty::F64) {
        return None;
    }
    let signed = ty == Ty::S32;
    let saturates = match op {
        Op::Add | Op::Sub => signed || short || ty == Ty::F32,
        Op::Addc | Op::Subc => signed,
        Op::Mul | Op::Fma => short || ty == Ty::F32,
        Op::Mad | Op::Mad24 if integer => signed && has(inst, Word::Hi),
        Op::Mad => short || ty == Ty::F32,
        _ => false,
    };
    let rounds = match op {
        Op::Add | Op::Sub | Op::Mul | Op::Mad | Op::Fma | Op::Div if !integer => {
            let all = if short { 1 } else { DIRECTED.len() };
            &DIRECTED[..all]
        }
        _ => &[],
    };
    let chooses = matches!(op, Op::Min | Op::Max);
    let divides = op == Op::Div && ty == Ty::F32;
    let fits = |word: Word| match word {
        Word::Sat => saturates,
        Word::Ftz => short || ty == Ty::F32,
        Word::Rn | Word::Rz | Word::Rm | Word::Rp => rounds.contains(&word),
        Word::Approx | Word::Full => divides,
        Word::PropagateNan | Word::Xorsign => chooses && !integer && ty != Ty::F64,
        Word::Rni | Word::Rzi | Word::Rmi | Word::Rpi | Word::Rna => false,
        _ => true,
    };
    let words = inst.mods.iter().filter_map(|m| match m {
        Mod::Word(word) => Some(*word),
        Mod::Type(_) => None,
    });
    let mut words = words.filter(|&word| !fits(word));
    words.next().map(|word| does_not_apply(inst, word, ty))
}

/// Rounding and flushing of a conversion between plain numbers.
fn refuse_conversion(inst: &Inst, to: Ty, from: Ty) -> Option<String> {
    let plain = |ty| is_integer(ty) || matches!(ty, Ty::F16 | Ty::F32 | Ty::F64);
    if !plain(to) || !plain(from) {
        return None;
    }
    let (directed, to_integer) = (first_of(inst, &DIRECTED), first_of(inst, &TO_INTEGER));
    let wrong = match (is_integer(to), is_integer(from)) {
        (true, true) => directed.or(to_integer),
        (true, false) => directed,
        (false, true) => to_integer,
        (false, false) if bits(to) == bits(from) => directed,
        (false, false) if bits(to) > bits(from) => directed.or(to_integer),
        (false, false) => to_integer,
    };
    if let Some(word) = wrong {
        return Some(format!(
            "illegal rounding modifier `.{word}` for instruction `cvt` from .{from} to .{to}"
        ));
    }
    (has(inst, Word::Ftz) && to != Ty::F32 && from != Ty::F32)
        .then(|| format!("modifier `.ftz` of instruction `cvt` from .{from} to .{to} needs .f32"))
}

/// The types of an atomic operation on one element.
fn refuse_atomic(inst: &Inst, ty: Ty) -> Option<String> {
    if vector_length(inst) != 1 || has(inst, Word::Async) {
        return None;
    }
    let operations = [
        Word::Add,
        Word::Exch,
        Word::Cas,
        Word::Inc,
        Word::Dec,
        Word::Min,
        Word::Max,
        Word::And,
        Word::Or,
        Word::Xor,
    ];
    let operation = inst.mods.iter().rev().find_map(|m| match m {
        Mod::Word(w) if operations.contains(w) => Some(*w),
        _ => None,
    });
    let fits = match operation? {
        Word::Exch | Word::Cas if inst.op == Op::Red => {
            return Some(illegal(inst, operation?));
        }
        Word::Add if matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2) => {
            if !has(inst, Word::Noftz) {
                let op = inst.op;
                return Some(format!("`.noftz` is required for `{op}.add.{ty}`"));
            }
            true
        }
        Word::Add => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::F32 | Ty::F64),
        Word::Exch => matches!(ty, Ty::B32 | Ty::B64 | Ty::B128),
        Word::Cas => matches!(ty, Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128),
        Word::Inc | Word::Dec => ty == Ty::U32,
        Word::And | Word::Or | Word::Xor => matches!(ty, Ty::B32 | Ty::B64),
        _ => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
    };
    let op = inst.op;
    (!fits).then(|| format!("unexpected type `.{ty}` of instruction `{op}`"))
}

/// Memory order and scope of an access.
fn refuse_order(inst: &Inst) -> Option<String> {
    let op = inst.op;
    let scope = first_of(inst, &[Word::Cta, Word::Cluster, Word::Gpu, Word::Sys]);
    let orders: &[Word] = match op {
        Op::Ld => &[Word::Relaxed, Word::Acquire],
        Op::St => &[Word::Relaxed, Word::Release],
        Op::Fence if inst.mods.len() == 1 => {
            let order = first_of(inst, &[Word::AcqRel, Word::Sc])?;
            return Some(format!("scope required for `{op}.{order}`"));
        }
        Op::Membar if inst.mods.is_empty() => {
            return Some("level required for `membar`".to_owned());
        }
        Op::Membar => return first_of(inst, &[Word::Gpu]).map(|w| illegal(inst, w)),
        Op::Red => {
            return first_of(inst, &[Word::Acquire, Word::AcqRel]).map(|w| illegal(inst, w));
        }
        _ => return None,
    };
    if has(inst, Word::Async) || has(inst, Word::Mmio) {
        return None;
    }
    let all = [Word::Relaxed, Word::Acquire, Word::Release, Word::AcqRel];
    let order = first_of(inst, &all);
    if let Some(word) = order.filter(|w| !orders.contains(w)) {
        return Some(illegal(inst, word));
    }
    if op == Op::St && has(inst, Word::Nc) {
        return Some(illegal(inst, Word::Nc));
    }
    match (order, scope) {
        (Some(order), None) => Some(format!("modifier `.{order}` of `{op}` requires a scope")),
        (None, Some(scope)) => Some(format!("modifier `.{scope}` of `{op}` requires an order")),
        (Some(order), _) if has(inst, Word::Nc) => {
            Some(format!("modifiers `.{order}` and `.nc` of `{op}` together"))
        }
        _ => None,
    }
}

/// Rows, columns and depth of a product's shape, as in `m16n8k8`.
fn shape(inst: &Inst) -> Option<[u32; 3]> {
    inst.mods.iter().find_map(|m| {
        let (rows, rest) = m.text().strip_prefix('m')?.split_once('n')?;
        let (columns, depth) = rest.split_once('k')?;
        let numbers = [rows.parse(), columns.parse(), depth.parse()];
        match numbers {
            [Ok(rows), Ok(columns), Ok(depth)] => Some([rows, columns, depth]),
            _ => None,
        }
    })
}

/// Bits of an element of a matrix, of the types whose registers hold nothing else.
fn element_bits(ty: Ty) -> Option<u32> {
    Some(match ty {
        Ty::B1 => 1,
        Ty::S4 | Ty::U4 => 4,
        Ty::S8 | Ty::U8 | Ty::E4m3 | Ty::E5m2 => 8,
        Ty::F16 | Ty::Bf16 => 16,
        Ty::Tf32 | Ty::F32 | Ty::S32 => 32,
        Ty::F64 => 64,
        _ => return None,
    })
}

/// Numbers of registers that hold a warp's part of a matrix.
fn refuse_fragments(inst: &Inst, types: &[Ty]) -> Option<String> {
    let counts: Vec<u32> = match (inst.op, types) {
        (Op::Ldmatrix | Op::Stmatrix, [Ty::B16]) => {
            let count = match first_of(inst, &[Word::X1, Word::X2, Word::X4])? {
                Word::X1 => 1,
                Word::X2 => 2,
                _ => 4,
            };
            let other = u32::from(inst.op == Op::Stmatrix);
            if other == 1 {
                vec![0, count]
            } else {
                vec![count]
            }
        }
        (Op::Mma, &[to, left, right, sum]) => {
            let [rows, columns, depth] = shape(inst)?;
            let is_sparse = has(inst, Word::Sp) || has(inst, Word::SpOrderedMetadata);
            let registers = |elements: u32, ty: Ty| {
                let bits = element_bits(ty)?;
                // 32 lanes with registers of 32 bits, or of 64 for what is as long.
                Some((elements * bits / (32 * bits.max(32))).max(1))
            };
            let stored = depth / if is_sparse { 2 } else { 1 };
            if [rows, columns, depth] == [8, 8, 4] && left == Ty::F16 {
                // Each quarter of the warp has a product of its own.
                let sums = |ty| if ty == Ty::F32 { 8 } else { 4 };
                vec![sums(to), 2, 2, sums(sum)]
            } else {
                vec![
                    registers(rows * columns, to)?,
                    registers(rows * stored, left)?,
                    registers(depth * columns, right)?,
                    registers(rows * columns, sum)?,
                ]
            }
        }
        _ => return None,
    };
    let mut operands = inst.operands.iter().zip(counts).enumerate();
    operands.find_map(|(n, (operand, count))| match operand {
        Operand::Vector(items) if count > 0 && items.len() as u32 != count => Some(format!(
            "operand {n} of instruction `{}` has {} registers of {count}",
            inst.op,
            items.len()
        )),
        _ => None,
    })
}

/// The state space that an instruction names, if it names one.
pub(crate) fn named_space(inst: &Inst) -> Option<Space> {
    inst.mods.iter().find_map(|m| {
        Some(match m {
            Mod::Word(Word::Global) => Space::Global,
            Mod::Word(Word::Shared | Word::SharedCta | Word::SharedCluster) => Space::Shared,
            Mod::Word(Word::Local) => Space::Local,
            Mod::Word(Word::Const) => Space::Const,
            Mod::Word(Word::Param | Word::ParamEntry | Word::ParamFunc) => Space::Param,
            _ => return None,
        })
    })
}

/// Whether a variable of `space` may be the address of an instruction that accesses memory.
pub(crate) fn takes_space(inst: &Inst, space: Space) -> bool {
    let accesses = matches!(inst.op, Op::Ld | Op::Ldu | Op::St | Op::Atom | Op::Red);
    if !accesses || has(inst, Word::Async) {
        return true;
    }
    match named_space(inst) {
        Some(named) => named == space,
        None => !matches!(space, Space::Const | Space::Param),
    }
}

/// A state space that the instruction does not access.
fn refuse_space(inst: &Inst) -> Option<String> {
    let space = named_space(inst)?;
    let is_wrong = match inst.op {
        Op::St => space == Space::Const,
        Op::Atom | Op::Red => !matches!(space, Space::Global | Space::Shared),
        Op::Ldu => space != Space::Global,
        _ => false,
    };
    is_wrong.then(|| format!("state space .{space} of instruction `{}`", inst.op))
}

/// Constants in places that take some numbers only.
fn refuse_number(inst: &Inst) -> Option<String> {
    let number = |n: usize| match inst.operands.get(n) {
        Some(Operand::Imm(Imm::Int { value, .. })) => Some(*value),
        _ => None,
    };
    let op = inst.op;
    let outside = |n: usize, last: i64| {
        let value = number(n).filter(|v| !(0..=last).contains(v))?;
        Some(format!(
            "operand {n} of instruction `{op}` is {value}, not in 0 to {last}"
        ))
    };
    match op {
        Op::Bar | Op::Barrier if !has(inst, Word::Warp) && !has(inst, Word::Cluster) => {
            let first = usize::from(has(inst, Word::Red));
            let count = number(first + 1).filter(|_| !has(inst, Word::Red) || first == 1);
            outside(first, 15).or_else(|| match count {
                Some(0) if has(inst, Word::Arrive) => Some(format!(
                    "instruction `{op}.arrive` needs a number of threads"
                )),
                Some(n) if n % 32 != 0 => Some(format!(
                    "{n} threads of instruction `{op}`, no multiple of a warp's 32"
                )),
                _ => None,
            })
        }
        Op::Alloca => {
            let align = number(2).filter(|a| a.count_ones() != 1 || *a < 0)?;
            Some(format!("an alignment of {align} bytes, no power of two"))
        }
        Op::Cp if has(inst, Word::Ca) || has(inst, Word::Cg) => {
            let sizes: &[i64] = if has(inst, Word::Cg) {
                &[16]
            } else {
                &[4, 8, 16]
            };
            let size = number(2).filter(|size| !sizes.contains(size))?;
            Some(format!("a copy of {size} bytes, expected {sizes:?}"))
        }
        Op::Bfe => outside(2, 255).or_else(|| outside(3, 255)),
        Op::Bfi => outside(3, 255).or_else(|| outside(4, 255)),
        Op::Pmevent => outside(0, 15),
        _ => None,
    }
}

/// The bits of the integers that a move may read a special register as.
pub(crate) fn special_bits(name: &str) -> &'static [u32] {
    let vector = name.split_once('.').map_or("", |(vector, _)| vector);
    match (name, vector) {
        (_, "%tid" | "%ntid" | "%ctaid" | "%nctaid") => &[16, 32],
        ("%gridid", _) => &[16, 32, 64],
        ("%clock64" | "%globaltimer" | "%current_graph_exec", _) => &[64],
        _ if name.ends_with("_64") => &[64],
        _ => &[32],
    }
}
