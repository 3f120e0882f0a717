//! Compiled modules: checked and laid out, their kernels decoded when first run.

use std::sync::{Arc, OnceLock};

use fercuda_ptx::ast;
use rustc_hash::FxHashMap;

use super::ctx::{BoundKernel, KernelCode};
use super::interface::{CompileError, KernelInfo, ModuleReference, ModuleVariable};
use super::lanes::Isa;
use super::layout::ModuleInfo;
use super::lower;

/// A lazily computed result.
type OnceResult<T> = OnceLock<Result<Arc<T>, String>>;

/// How to compile.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Do without AVX2, FMA and the like even where the processor has them.
    pub baseline: bool,
}

/// A module, checked and laid out; kernels are decoded when first run.
#[derive(Debug)]
pub struct CompiledModule {
    pub(crate) kernels: Vec<KernelInfo>,
    pub(crate) variables: Vec<ModuleVariable>,
    references: Vec<ModuleReference>,
    module: ast::PtxModule,
    info: ModuleInfo,
    /// Function index of each kernel.
    functions: Vec<u32>,
    isa: Isa,
    /// Decoded code of each kernel, without and with checks.
    code: Vec<[OnceResult<KernelCode>; 2]>,
}

/// Checks and lays out a module. An instruction that the device lacks is not an error here, but a
/// fault of the kernel that has it.
///
/// # Errors
/// [`CompileError`] for names that do not exist, operands of wrong kinds, and the like.
pub fn compile(
    module: &ast::PtxModule,
    options: &CompileOptions,
) -> Result<Arc<CompiledModule>, CompileError> {
    if module.address_size == 32 {
        return Err(CompileError {
            line: 0,
            message: "32-bit addresses are not supported".to_owned(),
        });
    }
    let module = module.clone();
    let info = ModuleInfo::new(&module);
    info.check_sizes(&module)?;
    let (kernels, functions): (Vec<_>, Vec<_>) = info.kernels(&module).into_iter().unzip();
    let variables = info.image_variables(&module)?;
    let references = info.references(&module);
    let code = kernels
        .iter()
        .map(|_| [OnceLock::new(), OnceLock::new()])
        .collect();
    let isa = if options.baseline {
        Isa::Baseline
    } else {
        Isa::detect()
    };
    Ok(Arc::new(CompiledModule {
        kernels,
        variables,
        references,
        module,
        info,
        functions,
        isa,
        code,
    }))
}

impl CompiledModule {
    /// The kernels, in order.
    #[must_use]
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    /// A kernel's index by name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|k| &*k.name == name)
    }

    fn code(&self, kernel: usize, checks: bool) -> Result<Arc<KernelCode>, String> {
        self.code[kernel][usize::from(checks)]
            .get_or_init(|| {
                lower::kernel(
                    &self.module,
                    &self.info,
                    self.functions[kernel],
                    self.isa,
                    checks,
                )
                .map(Arc::new)
            })
            .clone()
    }

    /// Whether a kernel of it may call `malloc` or `free`.
    #[must_use]
    pub fn uses_heap(&self) -> bool {
        ["malloc", "free"].into_iter().any(|name| {
            let declared = self.module.function(name);
            declared.is_some_and(|f| f.body.is_none())
        })
    }

    /// The variables; each needs an address before the image can be loaded.
    #[must_use]
    pub fn variables(&self) -> &[ModuleVariable] {
        &self.variables
    }

    /// The texture, sampler and surface references; the address of each is its handle.
    #[must_use]
    pub fn references(&self) -> &[ModuleReference] {
        &self.references
    }
}

/// An image with addresses assigned to its variables.
#[derive(Debug)]
pub struct Loaded {
    pub(crate) image: Arc<CompiledModule>,
    pub(crate) addresses: FxHashMap<Arc<str>, u64>,
    prepared: Vec<[OnceResult<BoundKernel>; 2]>,
}

impl Loaded {
    /// Binds `addresses` (variable name to device address), which must name every variable of the
    /// image.
    ///
    /// # Errors
    /// [`CompileError`] naming a variable without address.
    pub fn new(
        image: Arc<CompiledModule>,
        addresses: FxHashMap<Arc<str>, u64>,
    ) -> Result<Arc<Self>, CompileError> {
        if let Some(v) = image
            .variables
            .iter()
            .find(|v| !addresses.contains_key(&v.name))
        {
            return Err(CompileError {
                line: 0,
                message: format!("variable `{}` has no address", v.name),
            });
        }
        let prepared = image
            .kernels
            .iter()
            .map(|_| [OnceLock::new(), OnceLock::new()])
            .collect();
        Ok(Arc::new(Loaded {
            image,
            addresses,
            prepared,
        }))
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Arc<CompiledModule> {
        &self.image
    }

    pub(super) fn prepared(&self, kernel: usize, checks: bool) -> Result<Arc<BoundKernel>, String> {
        self.prepared[kernel][usize::from(checks)]
            .get_or_init(|| {
                BoundKernel::new(self.image.code(kernel, checks)?, &self.addresses).map(Arc::new)
            })
            .clone()
    }

    /// Initial bytes of a variable, relocations applied; what lies behind them is zero.
    #[must_use]
    pub fn initial_bytes(&self, variable: usize) -> Vec<u8> {
        let v = &self.image.variables[variable];
        let mut bytes = v.init.clone();
        for r in &v.relocations {
            let target = self.addresses.get(&r.symbol).copied().unwrap_or(0);
            let value = target.wrapping_add(r.addend as u64).to_le_bytes();
            let at = r.offset as usize;
            bytes[at..at + r.size as usize].copy_from_slice(&value[..r.size as usize]);
        }
        bytes
    }
}
