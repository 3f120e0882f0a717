//! Compiler and its caches: programs on a device, compiled once and run.
//!
//! A compiler belongs to one context. It caches compiled expressions by their key, modules by their
//! code, and machine code on disk, where other processes find it. On the software device, which
//! has no machine code, PTX is cached there.
//!
//! Invariant: a launch is made only after every element that its kernels reach was found to be
//! inside the bound memory, and no output to overlap anything but an input that the program may
//! overwrite. A file on disk is loaded only if no other user can have written it and its hash is
//! right; else the program is compiled anew, and the file replaced.
//!
//! Elsewhere: the files (`fercuda_cache`), the passes (`program`).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fercuda_cache::{CacheKey, CacheLookup, CacheWarning, ProgramCache};
use fercuda_cuda::{
    Context, DeviceBuffer, Function, Image, KernelArg, Launch, Linked, Module, Stream,
};
use fercuda_ptx::build::Arch;

use crate::bound::{ALIGN, Bindings, BoundArg, BoundNames};
use crate::error::Error;
use crate::graph::ExprGraph;
use crate::kernel::ParameterBinding;
use crate::key::CodeKey;
use crate::program::{LaunchPlan, Program};

/// Maximum number of cached expressions, and of cached modules.
const MAX_CACHED: usize = 512;
/// Magic number of machine code. Output of a driver that links to something else, as the software
/// device does as a library, is readable by that driver only: PTX is cached then.
const MACHINE_CODE: &[u8] = b"\x7fELF";
/// Maximum size of the programs on disk, in bytes.
const MAX_DISK_BYTES: u64 = 256 << 20;
/// Blocks of a map per multiprocessor; each loops over more elements.
const BLOCKS: u32 = 32;
/// The newest architecture that PTX is generated for; later devices accept it.
const NEWEST: u32 = 90;

type Result<T> = std::result::Result<T, Error>;

/// CodeOrigin of compiled code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOrigin {
    /// CompiledExpr by this call.
    Compiled,
    /// Loaded from disk.
    Disk,
    /// Cached in memory by this compiler.
    Memory,
}

/// LRU cache of a fixed number of entries.
struct LruMap<K, V> {
    entries: HashMap<K, (V, u64)>,
    now: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> LruMap<K, V> {
    fn new() -> Self {
        Self {
            entries: HashMap::new(),
            now: 0,
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        self.now += 1;
        let (value, used) = self.entries.get_mut(key)?;
        *used = self.now;
        Some(value.clone())
    }

    fn put(&mut self, key: K, value: V) {
        self.now += 1;
        if self.entries.len() >= MAX_CACHED && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, (value, self.now));
    }
}

/// State shared by a compiler and its compiled expressions.
struct CompilerShared {
    context: Context,
    arch: Arch,
    multiprocessors: u32,
    /// Architecture, driver and everything else that machine code depends on.
    device: String,
    is_software: bool,
    disk: Option<ProgramCache>,
    modules: Mutex<LruMap<CodeKey, Module>>,
    warnings: Mutex<Vec<CacheWarning>>,
}

/// Compiles expressions for one context, and caches them.
pub struct Compiler {
    shared: Arc<CompilerShared>,
    expressions: Mutex<LruMap<ExprGraph, CompiledExpr>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Compiler {
    /// Creates a compiler with the user's cache on disk ([`ProgramCache::of_user_for`]).
    ///
    /// # Errors
    /// [`Error::Cuda`] if the device's properties cannot be read.
    pub fn new(context: &Context) -> Result<Self> {
        Self::with_cache(context, ProgramCache::of_user_for("jit"))
    }

    /// As [`Compiler::new`], with another cache on disk, or none.
    ///
    /// # Errors
    /// As for [`Compiler::new`].
    pub fn with_cache(context: &Context, disk: Option<ProgramCache>) -> Result<Self> {
        let device = context.device();
        let (major, minor) = device.compute_capability()?;
        let driver = device.cuda().version()?;
        let is_software = device.cuda().is_software();
        let kind = if is_software { "text" } else { "machine code" };
        Ok(Self {
            shared: Arc::new(CompilerShared {
                context: context.clone(),
                arch: Arch::new((10 * major + minor).min(NEWEST)),
                multiprocessors: device.multiprocessors()?,
                device: format!("{kind} for {major}.{minor} by driver {driver:?}"),
                is_software,
                disk,
                modules: Mutex::new(LruMap::new()),
                warnings: Mutex::new(Vec::new()),
            }),
            expressions: Mutex::new(LruMap::new()),
        })
    }

    /// Takes the warnings about the cache on disk since the last call.
    pub fn take_warnings(&self) -> Vec<CacheWarning> {
        std::mem::take(&mut *lock(&self.shared.warnings))
    }

    /// The architecture that PTX is generated for.
    pub fn arch(&self) -> Arch {
        self.shared.arch
    }

    /// Compiles an expression, or finds it in the cache.
    ///
    /// # Errors
    /// [`Error::Program`]; [`Error::Cuda`] if the driver refuses the code.
    pub fn compile(&self, graph: &ExprGraph) -> Result<CompiledExpr> {
        if let Some(known) = lock(&self.expressions).get(graph) {
            return Ok(known);
        }
        // Outside the lock: two concurrent threads may both compile it, one in vain.
        let made = CompiledExpr::new(&self.shared, graph, true)?;
        lock(&self.expressions).put(graph.clone(), made.clone());
        Ok(made)
    }

    /// Compiles and runs an expression.
    ///
    /// # Errors
    /// As for [`Compiler::compile`] and [`CompiledExpr::run`].
    pub fn run(
        &self,
        graph: &ExprGraph,
        stream: &Stream,
        inputs: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
    ) -> Result<()> {
        self.compile(graph)?.run(stream, inputs, outputs)
    }
}

impl CompilerShared {
    fn module(&self, program: &Program) -> Result<(Module, CodeOrigin)> {
        if let Some(known) = lock(&self.modules).get(&program.code) {
            return Ok((known, CodeOrigin::Memory));
        }
        let mut key = CacheKey::new();
        key.add("version", env!("CARGO_PKG_VERSION"));
        key.add("device", &self.device);
        key.add("code", program.code.to_string());
        let found = self.disk.as_ref().map(|disk| disk.look_up(&key));
        let loaded = match found {
            Some(CacheLookup::Found(entry)) => match self.load(&entry.code) {
                Ok(module) => Some(module),
                Err(error) => {
                    self.warn(format!("it was not loaded: {error}"));
                    None
                }
            },
            Some(CacheLookup::Unusable(warning)) => {
                lock(&self.warnings).push(warning);
                None
            }
            Some(CacheLookup::Absent) | None => None,
        };
        let (module, origin) = match loaded {
            Some(module) => (module, CodeOrigin::Disk),
            None => {
                let ptx = program.ptx()?;
                let (module, code) = self.compile(&ptx)?;
                if let Some(disk) = &self.disk {
                    let kept = disk.store(&key, &code, "", &[]);
                    let kept = kept.and_then(|()| disk.trim(MAX_DISK_BYTES));
                    lock(&self.warnings).extend(kept.err());
                }
                (module, CodeOrigin::Compiled)
            }
        };
        lock(&self.modules).put(program.code, module.clone());
        Ok((module, origin))
    }

    fn warn(&self, reason: String) {
        let path = self.disk.as_ref().map(|disk| disk.directory().to_owned());
        let path = path.unwrap_or_default();
        lock(&self.warnings).push(CacheWarning { path, reason });
    }

    fn compile(&self, ptx: &str) -> Result<(Module, Vec<u8>)> {
        if self.is_software {
            let module = Module::load(&self.context, &Image::ptx(ptx))?;
            return Ok((module, ptx.as_bytes().to_vec()));
        }
        let linked = Linked::of(&self.context, "expression", ptx)?;
        if !linked.bytes().starts_with(MACHINE_CODE) {
            let module = Module::load(&self.context, &Image::ptx(ptx))?;
            return Ok((module, ptx.as_bytes().to_vec()));
        }
        let module = Module::load(&self.context, &Image::linked(&linked))?;
        Ok((module, linked.bytes().to_vec()))
    }

    /// Loads code from the cache.
    fn load(&self, code: &[u8]) -> Result<Module> {
        if self.is_software || !code.starts_with(MACHINE_CODE) {
            let text = String::from_utf8_lossy(code);
            return Ok(Module::load(&self.context, &Image::ptx(text))?);
        }
        // SAFETY: the cache returns content with the hash that was written with it, from a file and
        // a directory that only this user can write to; `compile` wrote it, as generated by the
        // driver's linker, under a key of device, driver and this version.
        #[expect(unsafe_code, reason = "machine code that this module has written")]
        let image = unsafe { Image::binary(code) }.map_err(fercuda_cuda::Error::Image)?;
        Ok(Module::load(&self.context, &image)?)
    }
}

/// A prepared launch.
struct PreparedKernel {
    function: Function,
    launch: Launch,
    plan: LaunchPlan,
}

/// A compiled expression. Clones share it.
#[derive(Clone)]
pub struct CompiledExpr {
    inner: Arc<CompiledInner>,
}

struct CompiledInner {
    shared: Arc<CompilerShared>,
    graph: ExprGraph,
    program: Program,
    launches: Vec<PreparedKernel>,
    origin: CodeOrigin,
    /// The variant for memory that is not aligned to 16 bytes.
    unaligned: OnceLock<CompiledExpr>,
}

impl CompiledExpr {
    fn new(shared: &Arc<CompilerShared>, graph: &ExprGraph, aligned: bool) -> Result<Self> {
        let program = Program::of(graph, shared.arch, aligned)?;
        let mut launches = Vec::new();
        let mut origin = CodeOrigin::Memory;
        if !program.launches.is_empty() {
            let (module, from) = shared.module(&program)?;
            origin = from;
            let most = shared.multiprocessors.saturating_mul(BLOCKS).max(1);
            for plan in &program.launches {
                let grid = if plan.loops {
                    plan.grid.min(most)
                } else {
                    plan.grid
                };
                let [x, y] = plan.block;
                launches.push(PreparedKernel {
                    function: module.function(&plan.name)?,
                    launch: Launch::new((grid, plan.parts), (x, y)),
                    plan: plan.clone(),
                });
            }
        }
        Ok(Self {
            inner: Arc::new(CompiledInner {
                shared: shared.clone(),
                graph: graph.clone(),
                program,
                launches,
                origin,
                unaligned: OnceLock::new(),
            }),
        })
    }

    /// The compiled program.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// CodeOrigin of its code when it was created.
    pub fn origin(&self) -> CodeOrigin {
        self.inner.origin
    }

    /// Compiles the variant for memory that is not aligned to 16 bytes, which the first run with
    /// such memory compiles otherwise. After this no run compiles anything.
    ///
    /// # Errors
    /// As for [`Compiler::compile`].
    pub fn prepare_unaligned(&self) -> Result<()> {
        self.unaligned().map(|_| ())
    }

    /// Queues the expression in `stream`. Buffers are bound in the order in which the graph's
    /// inputs and outputs were named. Memory between kernels is allocated from the stream's pool.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Reach`], [`Error::Misaligned`], [`Error::Overlap`]: nothing is
    /// queued. [`Error::Cuda`] as the driver refuses; earlier kernels are queued then.
    pub fn run(
        &self,
        stream: &Stream,
        inputs: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
    ) -> Result<()> {
        let ready = self.checked(inputs, outputs)?;
        let bytes = ready.inner.program.scratch_bytes;
        if bytes == 0 {
            return ready.launch(stream, inputs, outputs, None);
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let scratch = DeviceBuffer::<u8>::alloc_ordered(stream, bytes)?;
        ready.launch(stream, inputs, outputs, Some(BoundArg::of(&scratch)))
    }

    /// As [`CompiledExpr::run`], with the caller's memory between kernels, which has
    /// [`Program::scratch_bytes`] and is aligned to 16: required in a capture.
    ///
    /// # Errors
    /// As for [`CompiledExpr::run`].
    pub fn run_with(
        &self,
        stream: &Stream,
        inputs: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        scratch: BoundArg<'_>,
    ) -> Result<()> {
        let ready = self.checked(inputs, outputs)?;
        let wanted = ready.inner.program.scratch_bytes;
        self.inner
            .bindings()
            .check_scratch(inputs, outputs, scratch, wanted)?;
        ready.launch(stream, inputs, outputs, Some(scratch))
    }

    /// Checks the bindings; returns the variant to run with them.
    fn checked(&self, inputs: &[BoundArg<'_>], outputs: &[BoundArg<'_>]) -> Result<Self> {
        let bits = self.inner.bindings().check(inputs, outputs)?;
        if bits.is_multiple_of(ALIGN) {
            return Ok(self.clone());
        }
        self.unaligned()
    }

    /// The variant for memory that is not aligned to 16 bytes.
    fn unaligned(&self) -> Result<Self> {
        let inner = &*self.inner;
        if let Some(known) = inner.unaligned.get() {
            return Ok(known.clone());
        }
        let made = Self::new(&inner.shared, &inner.graph, false)?;
        Ok(inner.unaligned.get_or_init(|| made).clone())
    }

    fn launch(
        &self,
        stream: &Stream,
        inputs: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        scratch: Option<BoundArg<'_>>,
    ) -> Result<()> {
        let program = &self.inner.program;
        for ready in &self.inner.launches {
            let mut values = Vec::with_capacity(ready.plan.slots.len() + 1);
            for slot in &ready.plan.slots {
                values.push(match slot {
                    ParameterBinding::Input(n) => inputs[*n as usize].argument(0)?,
                    ParameterBinding::Output(n) => outputs[*n as usize].argument(0)?,
                    ParameterBinding::Temporary(n) => {
                        let scratch = scratch.unwrap_or(outputs[0]);
                        scratch.argument(program.offsets[*n as usize].cast_signed())?
                    }
                });
            }
            values.push(match ready.plan.wide {
                true => KernelArg::number(ready.plan.rows),
                false => KernelArg::number(ready.plan.rows as u32),
            });
            // SAFETY: `emit` wrote the kernel for this plan. It accesses only elements of its
            // accesses; `checked` has found their reach inside the memory that is bound and
            // retained by the launch, aligned to their size, and to 16 bytes for vectors;
            // temporaries are inside the scratch memory; its size was checked or allocated.
            // Parameters are these addresses and the number of rows.
            #[expect(unsafe_code, reason = "a generated kernel with a checked reach")]
            unsafe {
                ready
                    .launch
                    .run(&ready.function, stream, values.as_slice())?;
            }
        }
        Ok(())
    }
}

impl CompiledInner {
    fn bindings(&self) -> Bindings<'_> {
        Bindings {
            inputs: &self.program.inputs,
            outputs: &self.program.outputs,
            in_place: &self.program.in_place,
            names: self,
        }
    }
}

impl BoundNames for CompiledInner {
    fn input(&self, at: usize) -> String {
        self.graph.inputs[at].name.clone()
    }

    fn output(&self, at: usize) -> String {
        self.graph.outputs[at].name.clone()
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiler({})", self.shared.device)
    }
}

impl std::fmt::Debug for CompiledExpr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({})", self.inner.program.code)
    }
}
