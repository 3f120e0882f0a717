//! Executing PTX: warps of 32 lanes over decoded code.
//!
//! [`compile`] turns a module into an [`Image`], once; [`Loaded`] gives its variables their
//! addresses; [`Executor::run`] runs a grid.

mod access;
mod alu_float;
mod alu_int;
mod assign;
mod atomics;
mod block;
mod builtins;
mod cfg;
mod check_order;
mod checks;
mod control;
mod convert;
mod copies;
mod ctx;
mod data;
mod grid;
mod halves;
mod lanes;
mod layout;
mod lower;
mod matrix;
mod memory;
mod mma;
mod printf;
mod program;
mod scalar;
mod special;
mod sync;
mod video;
mod warp;
mod wmma;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fercuda_ptx::ast;
use rustc_hash::FxHashMap;

use crate::check::CheckContext;
use crate::mem::AddressSpace;
use crate::report::{Fault, FaultKind};

use self::lanes::{Isa, RegisterRow};
use self::layout::ModuleInfo;
use self::program::{Const, FunctionCode, KernelCode};

/// A lazily computed result.
type OnceResult<T> = OnceLock<Result<Arc<T>, String>>;

/// How to compile.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Do without AVX2, FMA and the like even where the processor has them.
    pub baseline: bool,
}

/// A module that cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct CompileError {
    /// 1-based PTX line, 0 if none.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

/// A module, checked and laid out; kernels are decoded when first run.
#[derive(Debug)]
pub struct Image {
    pub(crate) kernels: Vec<KernelInfo>,
    pub(crate) variables: Vec<ModuleVariable>,
    module: ast::Module,
    info: ModuleInfo,
    /// Function index of each kernel.
    functions: Vec<u32>,
    isa: Isa,
    /// Decoded code of each kernel, without and with checks.
    code: Vec<[OnceResult<KernelCode>; 2]>,
}

/// A kernel's outside.
#[derive(Debug, Clone, Default)]
pub struct KernelInfo {
    /// Name.
    pub name: Arc<str>,
    /// Parameters in order.
    pub params: Vec<KernelParam>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Bytes of shared memory, without the dynamic part.
    pub static_shared_bytes: u32,
    /// Bytes of local memory a thread has in the kernel itself.
    pub local_bytes: u32,
    /// Bytes of constant memory in its module.
    pub const_bytes: u32,
    /// 32-bit registers a thread needs, an estimate: those of the PTX that live at the same time.
    pub registers: u32,
    /// `.maxntid`, if given.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`, if given.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`, if given.
    pub min_blocks: Option<u32>,
    /// `.reqnctapercluster`, if given.
    pub required_cluster: Option<[u32; 3]>,
    /// 1-based line of its header.
    pub line: u32,
}

/// A kernel parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParam {
    /// Byte offset in the parameter block.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
    /// Bytes.
    pub align: u32,
}

/// A `.global` or `.const` variable of a module.
#[derive(Debug, Clone)]
pub struct ModuleVariable {
    /// Name.
    pub name: Arc<str>,
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub align: u64,
    /// `.const` rather than `.global`.
    pub constant: bool,
    /// `.attribute(.managed)`.
    pub managed: bool,
    /// Visible to `cuModuleGetGlobal`: everything but `.extern`.
    pub external: bool,
    /// Initial bytes; the rest, or all if empty, is zero.
    pub init: Vec<u8>,
    /// Addresses to add to the initial bytes.
    pub relocations: Vec<Relocation>,
}

/// `bytes[offset..offset+size] = address of symbol + addend`.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// Bytes.
    pub offset: u64,
    /// 4 or 8.
    pub size: u32,
    /// Variable or function.
    pub symbol: Arc<str>,
    /// Bytes.
    pub addend: i64,
}

/// Checks and lays out a module. An instruction that the device lacks is not an error here, but a
/// fault of the kernel that has it.
///
/// # Errors
/// [`CompileError`] for names that do not exist, operands of wrong kinds, and the like.
pub fn compile(module: &ast::Module, options: &CompileOptions) -> Result<Arc<Image>, CompileError> {
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
    let code = kernels
        .iter()
        .map(|_| [OnceLock::new(), OnceLock::new()])
        .collect();
    let isa = if options.baseline {
        Isa::Baseline
    } else {
        Isa::detect()
    };
    Ok(Arc::new(Image {
        kernels,
        variables,
        module,
        info,
        functions,
        isa,
        code,
    }))
}

impl Image {
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

    /// The variables; each needs an address before the image can be loaded.
    #[must_use]
    pub fn variables(&self) -> &[ModuleVariable] {
        &self.variables
    }
}

/// An image with addresses assigned to its variables.
#[derive(Debug)]
pub struct Loaded {
    pub(crate) image: Arc<Image>,
    pub(crate) addresses: FxHashMap<Arc<str>, u64>,
    prepared: Vec<[OnceResult<PreparedKernel>; 2]>,
}

/// A kernel's code with its constants, addresses included.
#[derive(Debug)]
pub(crate) struct PreparedKernel {
    pub(crate) code: Arc<KernelCode>,
    /// A bank for each function.
    pub(crate) consts: Vec<Box<[RegisterRow]>>,
    /// Where each function's instructions begin when all are counted through.
    starts: Vec<u32>,
}

impl PreparedKernel {
    fn new(code: Arc<KernelCode>, addresses: &FxHashMap<Arc<str>, u64>) -> Result<Self, String> {
        let mut consts = Vec::new();
        let mut starts = Vec::new();
        let mut at = 0;
        for f in &code.functions {
            starts.push(at);
            at += f.origins.len() as u32;
            let mut bank = vec![RegisterRow::ZERO; f.const_rows as usize + 4].into_boxed_slice();
            for (row, c) in &f.consts {
                let value = match c {
                    Const::B32(v) => u64::from(*v) << 32 | u64::from(*v),
                    Const::B64(v) => *v,
                    Const::Address { name, addend } => addresses
                        .get(name)
                        .ok_or_else(|| format!("variable `{name}` has no address"))?
                        .wrapping_add(*addend as u64),
                };
                let rows = if matches!(c, Const::B32(_)) { 1 } else { 2 };
                for r in 0..rows {
                    for piece in bank[*row as usize + r].bytes().chunks_exact_mut(8) {
                        piece.copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
            consts.push(bank);
        }
        Ok(PreparedKernel {
            code,
            consts,
            starts,
        })
    }

    /// One number for an instruction of any function.
    fn global_pc(&self, f: &FunctionCode, pc: u32) -> u32 {
        let n = self
            .code
            .functions
            .iter()
            .position(|g| std::ptr::eq(f, g))
            .unwrap_or(0);
        self.starts[n] + pc
    }

    /// The function and instruction of such a number.
    fn locate(&self, pc: u32) -> (usize, u32) {
        let n = self.starts.partition_point(|&s| s <= pc).saturating_sub(1);
        (n, pc - self.starts[n])
    }
}

impl Loaded {
    /// Binds `addresses` (variable name to device address), which must name every variable of the
    /// image.
    ///
    /// # Errors
    /// [`CompileError`] naming a variable without address.
    pub fn new(
        image: Arc<Image>,
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
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    fn prepared(&self, kernel: usize, checks: bool) -> Result<Arc<PreparedKernel>, String> {
        self.prepared[kernel][usize::from(checks)]
            .get_or_init(|| {
                PreparedKernel::new(self.image.code(kernel, checks)?, &self.addresses).map(Arc::new)
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

/// Receives the output of `printf`, one whole call at a time.
pub type PrintSink = Arc<dyn Fn(&str) + Send + Sync>;

/// The device's properties in special registers.
#[derive(Debug, Clone, Copy)]
pub struct DeviceInfo {
    /// Ordinal; selects access bits of the address space.
    pub ordinal: u32,
    /// Multiprocessors (`%nsmid`).
    pub multiprocessors: u32,
    /// Largest shared memory of a block, opt-in, bytes.
    pub max_shared_bytes: u32,
    /// Local memory a thread may have, stack included, bytes.
    pub stack_limit_bytes: u64,
}

impl Default for DeviceInfo {
    fn default() -> Self {
        DeviceInfo {
            ordinal: 0,
            multiprocessors: 132,
            max_shared_bytes: 232_448,
            stack_limit_bytes: 512 << 10,
        }
    }
}

/// One launch.
#[derive(Clone)]
pub struct LaunchSpec {
    /// Module.
    pub loaded: Arc<Loaded>,
    /// Index of the kernel in its image.
    pub kernel: usize,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared_bytes: u32,
    /// The parameter block.
    pub params: Vec<u8>,
    /// Device.
    pub device: DeviceInfo,
    /// All blocks resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// Memory.
    pub space: Arc<AddressSpace>,
    /// Checks, if on; the address space then has a shadow.
    pub checks: Option<CheckContext>,
    /// Longest run, if limited.
    pub watchdog: Option<Duration>,
    /// Run `cp.async` as late as its waits allow even without checks.
    pub late_copies: bool,
    /// Where `printf` goes.
    pub print: PrintSink,
    /// Set from outside to end the launch early (it then ends without fault).
    pub cancel: Option<Arc<AtomicBool>>,
}

impl fmt::Debug for LaunchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchSpec")
            .field("kernel", &self.kernel)
            .field("grid", &self.grid)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

/// What a launch cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Instructions, one for each warp that executed one.
    pub warp_instructions: u64,
    /// Blocks.
    pub blocks: u64,
    /// Wall clock.
    pub elapsed: Duration,
}

/// Runs launches on a set of threads.
#[derive(Debug)]
pub struct Executor {
    threads: usize,
    pool: Arc<grid::HelperPool>,
}

impl Executor {
    /// With `threads` threads in all, the caller's included (0: as many as the machine has).
    /// A checked launch that stands still otherwise is lent more.
    #[must_use]
    pub fn new(threads: usize) -> Arc<Self> {
        let threads = if threads == 0 {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        } else {
            threads
        };
        Arc::new(Executor {
            threads,
            pool: grid::HelperPool::new(threads - 1),
        })
    }

    /// Threads, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs a launch to its end on this thread, helped by idle ones.
    ///
    /// # Errors
    /// The [`Fault`] that ended it; memory is as the blocks had left it by then.
    pub fn run(&self, spec: &LaunchSpec) -> Result<LaunchStats, Box<Fault>> {
        let illegal = |why: String| {
            Box::new(Fault {
                kind: FaultKind::IllegalInstruction(why),
                place: None,
                allocation: None,
            })
        };
        if spec.grid.contains(&0) || spec.block.contains(&0) {
            return Err(illegal("a launch of no threads".to_owned()));
        }
        let prepared = spec
            .loaded
            .prepared(spec.kernel, spec.checks.is_some())
            .map_err(illegal)?;
        self.pool.run(spec, prepared)
    }
}
