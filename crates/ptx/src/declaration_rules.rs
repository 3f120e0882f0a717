//! Rules of declared variables: alignment, extents, initial values, room.

use crate::ast::{Imm, Init, Item, Linkage, PtxModule, Var};
use crate::operand_types::{bits, is_integer};
use crate::words::{ScalarType as Ty, Space};

/// Bytes of the bank of constants.
const MAX_CONST_BYTES: u64 = 64 << 10;

/// What is wrong with a variable, wherever it is declared, if anything is; `name` is its name.
pub(crate) fn refuse_declaration(var: &Var, name: &str) -> Option<String> {
    if let Some(align) = var.align.filter(|a| !a.is_power_of_two()) {
        return Some(format!(
            "`{name}` has an alignment of {align}, no power of two"
        ));
    }
    if var.ty == Ty::Pred && var.space != Space::Reg {
        return Some(format!("predicate `{name}` is no register"));
    }
    let is_dynamic = var.linkage == Linkage::Extern;
    let is_open = match var.dims.as_slice() {
        [None, rest @ ..] => var.init.is_none() || rest.contains(&Some(0)),
        dims => dims.contains(&Some(0)),
    };
    if is_open && !is_dynamic && var.space != Space::Reg {
        return Some(format!("variable `{name}` has an incomplete type"));
    }
    let init = var.init.as_ref()?;
    if !matches!(var.space, Space::Global | Space::Const) {
        return Some(format!(
            "variable `{name}` in .{} has an initial value",
            var.space
        ));
    }
    if is_dynamic {
        return Some(format!("external variable `{name}` has an initial value"));
    }
    if matches!(var.ty, Ty::Texref | Ty::Samplerref | Ty::Surfref) {
        return None;
    }
    let mut extents = var.dims.clone();
    if var.vector > 1 {
        extents.push(Some(u64::from(var.vector)));
    }
    refuse_value(init, &extents, var.ty).map(|what| format!("`{name}` {what}"))
}

/// What is wrong with an initial value of an array of those extents.
fn refuse_value(init: &Init, extents: &[Option<u64>], ty: Ty) -> Option<&'static str> {
    const MISMATCH: &str = "has an initial value of another type";
    match (init, extents) {
        (Init::List(list), [extent, rest @ ..]) => {
            if extent.is_some_and(|n| list.len() as u64 > n) {
                return Some("has more initial values than elements");
            }
            list.iter().find_map(|init| refuse_value(init, rest, ty))
        }
        (Init::List(_), []) | (_, [_, ..]) => Some(MISMATCH),
        (Init::Imm(Imm::Int { .. }), []) => matches!(ty, Ty::F32 | Ty::F64).then_some(MISMATCH),
        (Init::Imm(_), []) => is_integer(ty).then_some(MISMATCH),
        (Init::Address { .. }, []) => None,
    }
}

/// What is wrong with the module's constants together, if anything is.
pub(crate) fn refuse_constants(module: &PtxModule) -> Option<String> {
    let mut bytes = 0u64;
    for item in &module.items {
        let Item::Var(var) = item else { continue };
        if var.space != Space::Const {
            continue;
        }
        let element = u64::from(bits(var.ty)?.div_ceil(8)) * u64::from(var.vector.max(1));
        let listed = match &var.init {
            Some(Init::List(list)) => list.len() as u64,
            _ => 0,
        };
        let extents = var.dims.iter().map(|d| d.unwrap_or(listed));
        let size = extents.fold(element, u64::saturating_mul);
        let align = u64::from(var.align.unwrap_or(1)).max(element).max(1);
        bytes = bytes
            .checked_next_multiple_of(align)
            .unwrap_or(u64::MAX)
            .saturating_add(size);
    }
    (bytes > MAX_CONST_BYTES).then(|| {
        format!("constants of {bytes:#x} bytes, where there is room for {MAX_CONST_BYTES:#x}")
    })
}
