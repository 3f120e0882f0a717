//! Rules of the operands of texture and surface instructions.
//!
//! Elsewhere: the other instructions ([`crate::operand_types`]), the check of a module by both
//! ([`crate::operands`]).

use crate::ast::Inst;
use crate::operand_types::{OperandRule, types, vector_length};
use crate::words::{Mod, Op, ScalarType as Ty, Word};

/// What the operands of an access to an image must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageRules {
    /// `.texref` or `.surfref`.
    pub(crate) reference: Ty,
    /// The place of the image among the operands.
    pub(crate) image: usize,
    /// The place of the elements that are read or written, their number and kind.
    pub(crate) data: usize,
    pub(crate) data_length: usize,
    pub(crate) data_rule: OperandRule,
    /// The least number of coordinates, the layer's included.
    pub(crate) coordinates: usize,
    pub(crate) has_layer: bool,
    pub(crate) layer_rule: OperandRule,
    pub(crate) coordinate_rule: OperandRule,
    /// Operands that must follow, of f32: a level, or the changes of the coordinates.
    pub(crate) further: usize,
}

/// The geometries: the least number of coordinates, and whether the first is a layer.
fn geometry(inst: &Inst) -> Option<(usize, bool)> {
    inst.mods.iter().find_map(|m| {
        Some(match m {
            Mod::Word(Word::N1d) => (1, false),
            Mod::Word(Word::N2d) => (2, false),
            Mod::Word(Word::N3d | Word::Cube | Word::N2dms) => (4, false),
            Mod::Word(Word::A1d) => (2, true),
            Mod::Word(Word::A2d | Word::Acube | Word::A2dms) => (4, true),
            _ => return None,
        })
    })
}

/// The rules of an instruction that accesses an image, or what is wrong with its modifiers; `None`
/// of other instructions.
pub(crate) fn image_rules(inst: &Inst) -> Option<Result<ImageRules, String>> {
    match inst.op {
        Op::Tex | Op::Tld4 => Some(texture(inst)),
        Op::Suld | Op::Sust | Op::Sured => Some(surface(inst)),
        _ => None,
    }
}

fn missing(inst: &Inst, what: &str) -> String {
    format!("{what} modifier required for instruction `{}`", inst.op)
}

fn unexpected(inst: &Inst) -> String {
    format!("unexpected types of instruction `{}`", inst.op)
}

fn texture(inst: &Inst) -> Result<ImageRules, String> {
    let word = |w| inst.mods.contains(&Mod::Word(w));
    let (coordinates, has_layer) = geometry(inst).ok_or_else(|| missing(inst, "geometry"))?;
    let components = [Word::R, Word::G, Word::B, Word::A];
    if inst.op == Op::Tld4 && !components.into_iter().any(word) {
        return Err(missing(inst, "component"));
    }
    let types: Vec<Ty> = types(inst).collect();
    let (data_length, data_rule) = match types.first() {
        Some(Ty::F32) => (4, OperandRule::Word),
        Some(&ty @ (Ty::U32 | Ty::S32)) => (4, OperandRule::Exact(ty)),
        Some(Ty::F16x2) => (2, OperandRule::Exact(Ty::F16x2)),
        Some(Ty::F16) => (4, OperandRule::Exact(Ty::B16)),
        _ => return Err(unexpected(inst)),
    };
    let coordinate_rule = match types.get(1) {
        Some(Ty::F32) => OperandRule::Word,
        Some(Ty::S32) => OperandRule::Exact(Ty::S32),
        _ => return Err(unexpected(inst)),
    };
    if vector_length(inst) != data_length {
        let message = format!("instruction `{}` requires .v{data_length}", inst.op);
        return Err(message);
    }
    Ok(ImageRules {
        reference: Ty::Texref,
        image: 1,
        data: 0,
        data_length,
        data_rule,
        coordinates,
        has_layer,
        layer_rule: OperandRule::Count,
        coordinate_rule,
        further: match (word(Word::Level), word(Word::Grad)) {
            (true, _) => 1,
            (_, true) => 2,
            _ => 0,
        },
    })
}

fn surface(inst: &Inst) -> Result<ImageRules, String> {
    let word = |w| inst.mods.contains(&Mod::Word(w));
    let (coordinates, has_layer) = geometry(inst).ok_or_else(|| missing(inst, "geometry"))?;
    let is_formatted = word(Word::P);
    if !is_formatted && !word(Word::B) || is_formatted && inst.op == Op::Suld {
        return Err(format!("no instruction `{}` of this form", inst.op));
    }
    if word(Word::Cube) || word(Word::Acube) || word(Word::N2dms) || word(Word::A2dms) {
        return Err(format!("unexpected geometry of instruction `{}`", inst.op));
    }
    if ![Word::Trap, Word::Clamp, Word::Zero].into_iter().any(word) {
        return Err(missing(inst, "clamp"));
    }
    let ty = types(inst).next().ok_or_else(|| unexpected(inst))?;
    let fits = match (inst.op, is_formatted) {
        (Op::Sured, true) => ty == Ty::B32,
        (Op::Sured, false) if word(Word::And) || word(Word::Or) || word(Word::Xor) => ty == Ty::B32,
        (Op::Sured, false) => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::B32),
        (_, true) => ty == Ty::B32,
        (_, false) => matches!(ty, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64),
    };
    if !fits {
        return Err(unexpected(inst));
    }
    Ok(ImageRules {
        reference: Ty::Surfref,
        image: usize::from(inst.op == Op::Suld),
        data: usize::from(inst.op != Op::Suld),
        data_length: vector_length(inst),
        data_rule: OperandRule::Wide(ty),
        coordinates,
        has_layer,
        layer_rule: OperandRule::Word,
        coordinate_rule: OperandRule::Count,
        further: 0,
    })
}
