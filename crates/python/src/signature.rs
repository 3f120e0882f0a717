//! Kinds of kernels' parameters, as PTX declares them.
//!
//! A driver reports only sizes, in which an address is no different from an f64. Elsewhere:
//! arguments (`kernels`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fercuda_ptx::ast::{Item, Var};
use fercuda_ptx::words::ScalarType;

/// What a parameter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    /// An address or an integer: PTX has the same types for both.
    Integer,
    Float,
    /// Bits without a type, several values or a structure.
    Untyped,
}

/// A parameter of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct ParameterDeclaration {
    name: String,
    ty: &'static str,
    is_pointer: bool,
    pub(crate) kind: ParameterKind,
}

impl ParameterDeclaration {
    fn of(var: &Var, name: &str) -> Self {
        let kind = match var.ty {
            _ if var.vector != 1 || !var.dims.is_empty() => ParameterKind::Untyped,
            ScalarType::U8
            | ScalarType::U16
            | ScalarType::U32
            | ScalarType::U64
            | ScalarType::S8
            | ScalarType::S16
            | ScalarType::S32
            | ScalarType::S64 => ParameterKind::Integer,
            ScalarType::F16 | ScalarType::Bf16 | ScalarType::F32 | ScalarType::F64 => {
                ParameterKind::Float
            }
            _ => ParameterKind::Untyped,
        };
        Self {
            name: name.to_owned(),
            ty: var.ty.text(),
            is_pointer: var.ptr.is_some(),
            kind,
        }
    }
}

impl fmt::Display for ParameterDeclaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ParameterKind::Integer if self.is_pointer => "an address",
            ParameterKind::Integer if self.ty.ends_with("64") => "an address or an integer",
            ParameterKind::Integer => "an integer",
            ParameterKind::Float => "a float",
            ParameterKind::Untyped => "bits",
        };
        write!(f, "`{}` ({kind}, .{})", self.name, self.ty)
    }
}

/// The parameters of each kernel of a module.
#[derive(Debug, Default)]
pub(crate) struct ModuleSignatures(HashMap<String, Arc<[ParameterDeclaration]>>);

impl ModuleSignatures {
    /// Reads them from PTX; none from text that we cannot parse, though the driver can.
    pub(crate) fn read(ptx: &str) -> Self {
        let Ok(module) = fercuda_ptx::parse(ptx) else {
            return Self::default();
        };
        let name = |sym| module.symbols.name(sym);
        let kernels = module.items.iter().filter_map(|item| match item {
            Item::Function(function) if function.entry => Some(function),
            _ => None,
        });
        let signature = |params: &[Var]| {
            let declared = |var: &Var| ParameterDeclaration::of(var, name(var.name));
            params.iter().map(declared).collect()
        };
        Self(
            kernels
                .map(|kernel| (name(kernel.name).to_owned(), signature(&kernel.params)))
                .collect(),
        )
    }

    pub(crate) fn of(&self, kernel: &str) -> Option<Arc<[ParameterDeclaration]>> {
        self.0.get(kernel).cloned()
    }
}
