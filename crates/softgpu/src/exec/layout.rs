//! Layout of a module: functions, variables, initial values, shared memory.
//!
//! Invariant: a kernel's shared variables, and those of all it may call, have one layout per
//! kernel.

use std::sync::Arc;

use fercuda_ptx::ast::{
    self, AddrBase, Directive, Imm, Init, Item, Linkage, Operand, Stmt, Sym, Var,
};
use fercuda_ptx::words::{Op, ScalarType as Ty, Space};
use rustc_hash::{FxHashMap, FxHashSet};

use super::interface::{
    CompileError, KernelInfo, ModuleReference, ModuleVariable, ParamLayout, ReferenceKind,
    Relocation,
};
use super::pressure;
use super::width::bits;

/// Most bytes of a kernel's parameters, of a thread's local variables and of a block's static
/// shared variables: what a card of this compute capability has, and what keeps a declaration from
/// taking the host's memory.
const MAX_PARAM_BYTES: u64 = 32_764;
/// The same of a kernel of a module older than PTX 8.1, or for less than compute capability 7.0.
const OLD_MAX_PARAM_BYTES: u64 = 4_352;
const MAX_LOCAL_BYTES: u64 = 512 << 10;
const MAX_STATIC_SHARED_BYTES: u64 = 48 << 10;

/// Space of a variable that has an address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VariableSpace {
    Global,
    Const,
}

#[derive(Debug, Default)]
pub(crate) struct ModuleInfo {
    /// Index in the module's items, of definitions where there is one.
    pub(crate) functions: Vec<usize>,
    pub(crate) function_index: FxHashMap<Sym, u32>,
    pub(crate) variables: FxHashMap<Sym, VariableSpace>,
    /// Module-level shared variables: (bytes, alignment, dynamic).
    shared: FxHashMap<Sym, (u64, u64, bool)>,
    pub(crate) files: Vec<Arc<str>>,
    uses: Vec<FunctionUses>,
}

#[derive(Debug, Default)]
struct FunctionUses {
    names: FxHashSet<Sym>,
    indirect: bool,
    shared: Vec<(Sym, u64, u64, bool)>,
    local_bytes: u64,
    /// The largest parameter of a call.
    argument_bytes: u64,
    registers: u32,
}

/// Bytes of an element of a variable, or of a variable that is no array.
pub(crate) fn element_of(v: &Var) -> u64 {
    u64::from(bits(v.ty)).div_ceil(8) * u64::from(v.vector.max(1))
}

/// Bytes of an element of the module's variable `name`.
pub(crate) fn element_bytes(module: &ast::PtxModule, name: Sym) -> Option<u64> {
    module.items.iter().find_map(|item| match item {
        Item::Var(v) if v.name == name => Some(element_of(v)),
        _ => None,
    })
}

/// (bytes, alignment) of a variable.
pub(crate) fn var_bytes(v: &Var) -> (u64, u64) {
    let element = element_of(v);
    // A size beyond 64 bits exceeds every limit.
    let bytes = v
        .dims
        .iter()
        .fold(element, |n, d| n.saturating_mul(d.unwrap_or(0)));
    (
        bytes,
        u64::from(v.align.unwrap_or(element.max(1) as u32)).max(1),
    )
}

/// Whether a module's kernels may have parameters of more than the old limit.
fn has_large_parameters(module: &ast::PtxModule) -> bool {
    let target = module.target.first().and_then(|t| t.strip_prefix("sm_"));
    let digits = target.map(|t| t.trim_end_matches(|c: char| !c.is_ascii_digit()));
    let capability = digits.and_then(|d| d.parse::<u32>().ok());
    module.version >= (8, 1) && capability.is_none_or(|n| n >= 70)
}

/// Whether a shared variable is the launch's dynamic memory: one that is declared without its size.
/// A size makes it a variable as any other.
fn is_dynamic(v: &Var) -> bool {
    v.linkage == Linkage::Extern && v.dims.contains(&None)
}

/// What a variable refers to, if it is a reference; `.tex` is the old name of `.global .texref`.
fn reference_kind(v: &Var) -> Option<ReferenceKind> {
    match (v.space, v.ty) {
        (Space::Tex, _) | (Space::Global, Ty::Texref) => Some(ReferenceKind::Texture),
        (Space::Global, Ty::Samplerref) => Some(ReferenceKind::Sampler),
        (Space::Global, Ty::Surfref) => Some(ReferenceKind::Surface),
        _ => None,
    }
}

/// Where a variable ends that lies behind `at` bytes.
fn behind(at: u64, size: u64, align: u64) -> u64 {
    at.checked_next_multiple_of(align)
        .and_then(|start| start.checked_add(size))
        .unwrap_or(u64::MAX)
}

/// A variable in shared memory.
#[derive(Debug, Clone, Copy)]
struct SharedVariable {
    name: Sym,
    size: u64,
    align: u64,
    /// It is the launch's dynamic memory.
    dynamic: bool,
}

impl ModuleInfo {
    pub(crate) fn new(module: &ast::PtxModule) -> Self {
        let mut info = ModuleInfo::default();
        let mut aliases = Vec::new();
        for (n, item) in module.items.iter().enumerate() {
            match item {
                Item::Function(f) => {
                    if let Some(&old) = info.function_index.get(&f.name) {
                        if f.body.is_some() {
                            info.functions[old as usize] = n;
                        }
                    } else {
                        info.function_index
                            .insert(f.name, info.functions.len() as u32);
                        info.functions.push(n);
                    }
                }
                Item::Var(v) => info.variable(v),
                Item::File { index, path, .. } => {
                    let at = *index as usize;
                    if info.files.len() <= at && at < 1 << 16 {
                        info.files.resize(at + 1, "".into());
                    }
                    if at < info.files.len() {
                        info.files[at] = path.as_str().into();
                    }
                }
                Item::Alias { name, target } => aliases.push((*name, *target)),
                _ => {}
            }
        }
        for (name, target) in aliases {
            if let Some(&f) = info.function_index.get(&target) {
                info.function_index.insert(name, f);
            }
        }
        info.uses = info
            .functions
            .iter()
            .map(|&n| {
                let mut uses = FunctionUses::default();
                if let Item::Function(f) = &module.items[n]
                    && let Some(body) = &f.body
                {
                    uses.scan(body);
                    uses.registers = pressure::registers(body, &module.symbols);
                }
                uses
            })
            .collect();
        let mut inner = Vec::new();
        for &n in &info.functions {
            if let Item::Function(f) = &module.items[n]
                && let Some(body) = &f.body
            {
                each_var(body, &mut |v| {
                    if matches!(v.space, Space::Global | Space::Const) {
                        inner.push((
                            v.name,
                            if v.space == Space::Const {
                                VariableSpace::Const
                            } else {
                                VariableSpace::Global
                            },
                        ));
                    }
                });
            }
        }
        info.variables.extend(inner);
        info
    }

    fn variable(&mut self, v: &Var) {
        let (size, align) = var_bytes(v);
        match v.space {
            Space::Global | Space::Tex => {
                self.variables.insert(v.name, VariableSpace::Global);
            }
            Space::Const => {
                self.variables.insert(v.name, VariableSpace::Const);
            }
            Space::Shared => {
                self.shared.insert(v.name, (size, align, is_dynamic(v)));
            }
            _ => {}
        }
    }

    pub(crate) fn function<'m>(&self, module: &'m ast::PtxModule, f: u32) -> &'m ast::PtxFunction {
        match &module.items[self.functions[f as usize]] {
            Item::Function(f) => f,
            _ => unreachable!("`functions` indexes functions"),
        }
    }

    /// The kernel and every defined function that it may call, the kernel first.
    pub(crate) fn reachable(&self, module: &ast::PtxModule, kernel: u32) -> Vec<u32> {
        let mut out = vec![kernel];
        let mut seen: FxHashSet<u32> = FxHashSet::from_iter([kernel]);
        let mut at = 0;
        while at < out.len() {
            let uses = &self.uses[out[at] as usize];
            at += 1;
            let mut next: Vec<u32> = uses
                .names
                .iter()
                .filter_map(|s| self.function_index.get(s))
                .copied()
                .collect();
            if uses.indirect {
                next.extend(0..self.functions.len() as u32);
            }
            next.sort_unstable();
            for f in next {
                let tree = self.function(module, f);
                if !tree.entry && tree.body.is_some() && seen.insert(f) {
                    out.push(f);
                }
            }
        }
        out
    }

    /// Rejects sizes beyond every device, before anything of that size is allocated.
    pub(crate) fn check_sizes(&self, module: &ast::PtxModule) -> Result<(), CompileError> {
        let max_param_bytes = if has_large_parameters(module) {
            MAX_PARAM_BYTES
        } else {
            OLD_MAX_PARAM_BYTES
        };
        for f in 0..self.functions.len() as u32 {
            let tree = self.function(module, f);
            let Some(body) = &tree.body else { continue };
            let uses = &self.uses[f as usize];
            let (mut params, mut shared) = (0, 0);
            for p in tree.params.iter().chain(&tree.returns) {
                let (size, align) = var_bytes(p);
                params = behind(params, size, align);
            }
            if tree.entry {
                for v in self.shared_variables(&self.reachable(module, f)) {
                    if !v.dynamic {
                        shared = behind(shared, v.size, v.align);
                    }
                }
            }
            let limits = [
                (
                    "parameters",
                    params,
                    if tree.entry {
                        max_param_bytes
                    } else {
                        MAX_PARAM_BYTES
                    },
                ),
                ("an argument", uses.argument_bytes, MAX_PARAM_BYTES),
                ("local variables", uses.local_bytes, MAX_LOCAL_BYTES),
                ("shared variables", shared, MAX_STATIC_SHARED_BYTES),
            ];
            for (what, bytes, limit) in limits {
                if bytes > limit {
                    let name = module.symbols.name(tree.name);
                    return Err(CompileError {
                        line: first_line(body),
                        message: format!(
                            "`{name}` has {what} of {bytes:#x} bytes, the device room for {limit:#x}"
                        ),
                    });
                }
            }
        }
        Ok(())
    }

    /// The shared variables that `functions` use, each once, in order. Functions have their own
    /// variables of a name; those of one kernel share storage that has room for the largest.
    fn shared_variables(&self, functions: &[u32]) -> Vec<SharedVariable> {
        let mut all: Vec<SharedVariable> = Vec::new();
        for &f in functions {
            let uses = &self.uses[f as usize];
            let named = uses.names.iter().filter_map(|s| {
                let &(size, align, dynamic) = self.shared.get(s)?;
                Some((*s, size, align, dynamic))
            });
            all.extend(uses.shared.iter().copied().chain(named).map(
                |(name, size, align, dynamic)| SharedVariable {
                    name,
                    size,
                    align,
                    dynamic,
                },
            ));
        }
        all.sort_by_key(|v| v.name);
        all.dedup_by(|next, v| {
            let same = next.name == v.name;
            if same {
                v.size = v.size.max(next.size);
                v.align = v.align.max(next.align);
            }
            same
        });
        all
    }

    /// Offsets of the shared variables that `functions` use, and the bytes they take.
    pub(crate) fn shared_layout(&self, functions: &[u32]) -> (FxHashMap<Sym, u32>, u32) {
        let variables = self.shared_variables(functions);
        let mut at = 0u64;
        let mut out = FxHashMap::default();
        for v in variables.iter().filter(|v| !v.dynamic) {
            at = at.next_multiple_of(v.align);
            out.insert(v.name, at as u32);
            at += v.size;
        }
        let end = at as u32;
        for v in variables.iter().filter(|v| v.dynamic) {
            out.insert(v.name, end.next_multiple_of((v.align as u32).max(16)));
        }
        (out, end)
    }

    /// Names, offsets and bytes of the shared variables of `functions` that `offsets` places;
    /// dynamic ones reach to the end.
    pub(crate) fn shared_extents(
        &self,
        functions: &[u32],
        offsets: &FxHashMap<Sym, u32>,
    ) -> Vec<(Sym, u32, u32)> {
        self.shared_variables(functions)
            .into_iter()
            .filter_map(|v| {
                let len = if v.dynamic { u32::MAX } else { v.size as u32 };
                Some((v.name, *offsets.get(&v.name)?, len))
            })
            .collect()
    }

    /// The outsides of the kernels, each with its function index.
    pub(crate) fn kernels(&self, module: &ast::PtxModule) -> Vec<(KernelInfo, u32)> {
        let const_bytes: u64 = module
            .items
            .iter()
            .filter_map(|i| if let Item::Var(v) = i { Some(v) } else { None })
            .filter(|v| v.space == Space::Const)
            .map(|v| var_bytes(v).0)
            .sum();
        let mut out = Vec::new();
        for f in 0..self.functions.len() as u32 {
            let tree = self.function(module, f);
            if !tree.entry || tree.body.is_none() {
                continue;
            }
            let reach = self.reachable(module, f);
            let mut k = KernelInfo {
                name: module.symbols.name(tree.name).into(),
                static_shared_bytes: self.shared_layout(&reach).1,
                local_bytes: self.uses[f as usize].local_bytes as u32,
                const_bytes: const_bytes as u32,
                registers: reach
                    .iter()
                    .map(|&r| self.uses[r as usize].registers)
                    .max()
                    .unwrap_or(0),
                ..KernelInfo::default()
            };
            let mut offset = 0;
            for p in &tree.params {
                let (size, align) = var_bytes(p);
                offset = (offset as u64).next_multiple_of(align) as u32;
                k.params.push(ParamLayout {
                    offset,
                    size: size as u32,
                    align: align as u32,
                });
                offset += size as u32;
            }
            k.param_bytes = offset;
            let mut most_registers = None;
            for d in &tree.directives {
                if let Directive::Numbers(name, n) = d {
                    let three = || {
                        let at = |i: usize| n.get(i).copied().unwrap_or(1).max(1);
                        Some([at(0), at(1), at(2)])
                    };
                    match name.as_str() {
                        "maxnreg" => most_registers = n.first().copied(),
                        "maxntid" => k.max_threads = three(),
                        "reqntid" => k.required_threads = three(),
                        "minnctapersm" => k.min_blocks = n.first().copied(),
                        "reqnctapercluster" => k.required_cluster = three(),
                        "maxclusterrank" => k.max_cluster_rank = n.first().copied(),
                        _ => {}
                    }
                }
                k.blocks_are_clusters |=
                    matches!(d, Directive::Flag(f) if f == "blocksareclusters");
                k.explicit_cluster |= matches!(d, Directive::Flag(f) if f == "explicitcluster");
            }
            k.registers = pressure::allotted(&k, k.registers, most_registers);
            k.line = first_line(tree.body.as_deref().unwrap_or(&[]));
            out.push((k, f));
        }
        out
    }

    /// The texture, sampler and surface references.
    pub(crate) fn references(&self, module: &ast::PtxModule) -> Vec<ModuleReference> {
        let mut seen = FxHashSet::default();
        let variables = module.items.iter().filter_map(|item| match item {
            Item::Var(v) => Some((v.name, reference_kind(v)?)),
            _ => None,
        });
        variables
            .filter(|(name, _)| seen.insert(*name))
            .map(|(name, kind)| ModuleReference {
                name: module.symbols.name(name).into(),
                kind,
            })
            .collect()
    }

    /// The variables with their initial bytes.
    pub(crate) fn image_variables(
        &self,
        module: &ast::PtxModule,
    ) -> Result<Vec<ModuleVariable>, CompileError> {
        let mut out = Vec::new();
        let mut error = None;
        // One that is declared external with its size, and that no other module brings, is defined.
        let defined: FxHashSet<Sym> = module
            .items
            .iter()
            .filter_map(|i| if let Item::Var(v) = i { Some(v) } else { None })
            .filter(|v| v.linkage != Linkage::Extern)
            .map(|v| v.name)
            .collect();
        let mut taken = FxHashSet::default();
        let mut add = |v: &Var| {
            let is_here = v.linkage != Linkage::Extern
                || !v.dims.contains(&None) && !defined.contains(&v.name) && taken.insert(v.name);
            if matches!(v.space, Space::Global | Space::Const)
                && reference_kind(v).is_none()
                && is_here
            {
                match self.image_variable(module, v) {
                    Ok(v) => out.push(v),
                    Err(e) => error = Some(e),
                }
            }
        };
        for item in &module.items {
            match item {
                Item::Var(v) => add(v),
                Item::Function(f) => each_var(f.body.as_deref().unwrap_or(&[]), &mut add),
                _ => {}
            }
        }
        match error {
            Some(message) => Err(CompileError { line: 0, message }),
            None => Ok(out),
        }
    }

    fn image_variable(&self, module: &ast::PtxModule, v: &Var) -> Result<ModuleVariable, String> {
        let (mut size, align) = var_bytes(v);
        let width = u64::from(bits(v.ty)).div_ceil(8);
        let mut init = Vec::new();
        let mut relocations = Vec::new();
        if let Some(i) = &v.init {
            self.init(module, i, v.ty, width, &mut init, &mut relocations)?;
        }
        // An open dimension takes what its initialiser holds.
        size = size.max(init.len() as u64);
        Ok(ModuleVariable {
            name: module.symbols.name(v.name).into(),
            size,
            align,
            constant: v.space == Space::Const,
            managed: v.attributes.iter().any(|a| a.contains("managed")),
            external: true,
            init,
            relocations,
        })
    }

    fn init(
        &self,
        module: &ast::PtxModule,
        i: &Init,
        ty: Ty,
        width: u64,
        out: &mut Vec<u8>,
        relocations: &mut Vec<Relocation>,
    ) -> Result<(), String> {
        match i {
            Init::Imm(imm) => {
                let b = match (imm, ty) {
                    (Imm::Int { value, .. }, Ty::F32) => u64::from((*value as f32).to_bits()),
                    (Imm::Int { value, .. }, Ty::F64) => (*value as f64).to_bits(),
                    (Imm::Int { value, .. }, _) => *value as u64,
                    (Imm::F32(b), Ty::F64) => f64::from(f32::from_bits(*b)).to_bits(),
                    (Imm::F32(b), _) => u64::from(*b),
                    (Imm::F64(b), Ty::F32) => u64::from((f64::from_bits(*b) as f32).to_bits()),
                    (Imm::F64(b), _) => *b,
                };
                out.extend_from_slice(&b.to_le_bytes()[..(width as usize).min(8)]);
                out.resize(out.len() + (width as usize).saturating_sub(8), 0);
            }
            Init::Address {
                name, offset, mask, ..
            } => {
                let text = module.symbols.name(*name);
                if let Some(m) = mask {
                    let shift = m.trailing_zeros() & 56;
                    if let Some(&f) = self.function_index.get(name) {
                        let at =
                            (super::tags::FUNCTION_TAG | u64::from(f)).wrapping_add(*offset as u64);
                        out.push((at >> shift) as u8);
                        return Ok(());
                    }
                    return Err(format!(
                        "mask() of the address of `{text}` in an initialiser is not supported"
                    ));
                }
                if let Some(&f) = self.function_index.get(name) {
                    let at =
                        (super::tags::FUNCTION_TAG | u64::from(f)).wrapping_add(*offset as u64);
                    out.extend_from_slice(&at.to_le_bytes()[..(width as usize).min(8)]);
                } else {
                    relocations.push(Relocation {
                        offset: out.len() as u64,
                        size: width.min(8) as u32,
                        symbol: text.into(),
                        addend: *offset,
                    });
                    out.resize(out.len() + width as usize, 0);
                }
            }
            Init::List(list) => {
                for i in list {
                    self.init(module, i, ty, width, out, relocations)?;
                }
            }
        }
        Ok(())
    }
}

fn each_var(body: &[Stmt], f: &mut impl FnMut(&Var)) {
    for s in body {
        match s {
            Stmt::Var(v) => f(v),
            Stmt::Block(inner) => each_var(inner, f),
            _ => {}
        }
    }
}

fn first_line(body: &[Stmt]) -> u32 {
    body.iter()
        .find_map(|s| match s {
            Stmt::Inst(i) => Some(i.line),
            Stmt::Block(inner) => Some(first_line(inner)),
            _ => None,
        })
        .unwrap_or(0)
}

impl FunctionUses {
    fn scan(&mut self, body: &[Stmt]) {
        for s in body {
            match s {
                Stmt::Block(inner) => self.scan(inner),
                Stmt::Inst(i) => {
                    for o in &i.operands {
                        self.operand(o);
                    }
                    // A call through a register has a prototype or a target list as its last
                    // operand.
                    if i.op == Op::Call && i.operands.len() >= 2 {
                        self.indirect |= matches!(i.operands.last(), Some(Operand::Name(_)));
                    }
                }
                Stmt::CallTargets { targets, .. } => self.names.extend(targets.iter().copied()),
                Stmt::Var(v) => {
                    let (size, align) = var_bytes(v);
                    match v.space {
                        Space::Shared => self.shared.push((v.name, size, align, is_dynamic(v))),
                        Space::Local => self.local_bytes = behind(self.local_bytes, size, align),
                        Space::Param => self.argument_bytes = self.argument_bytes.max(size),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }

    fn operand(&mut self, o: &Operand) {
        match o {
            Operand::Name(s) | Operand::Offset(s, _) => {
                self.names.insert(*s);
            }
            Operand::Address {
                base: AddrBase::Name(s),
                ..
            } => {
                self.names.insert(*s);
            }
            Operand::Vector(v) | Operand::List(v) | Operand::Bracket(v) => {
                v.iter().for_each(|o| self.operand(o))
            }
            _ => {}
        }
    }
}
