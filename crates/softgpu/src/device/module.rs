//! Modules in a context, libraries in all of them, and the functions in both.
//!
//! A library is compiled once; it becomes a module of a context when a kernel or variable of it is
//! first used there.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use fercuda_cuda_sys::types::CUfunction_attribute as F;
use rustc_hash::FxHashMap;

use super::allocation::AllocationSource;
use super::attributes::{MAX_CLUSTER, MAX_PORTABLE_CLUSTER, MAX_SHARED, MAX_SHARED_OPTIN};
use super::memory::host_op;
use super::objects::{
    FunctionSettings, Library, SoftContext, SoftFunction, SoftKernel, SoftModule,
};
use super::site::site;
use super::texture_reference::{create_for_module, remove_for_module};
use super::{CuResult, Machine, err, lock};
use crate::exec::{CompiledModule, KernelInfo, Loaded, ReferenceKind};
use crate::mem::AllocKind;
use crate::order::OpId;

impl FunctionSettings {
    fn copy_from(&self, other: &FunctionSettings) {
        let pairs = [
            (&self.max_dynamic, &other.max_dynamic),
            (&self.carveout, &other.carveout),
            (&self.non_portable, &other.non_portable),
            (&self.policy, &other.policy),
        ];
        for (a, b) in pairs
            .into_iter()
            .chain(self.cluster.iter().zip(&other.cluster))
        {
            a.store(b.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

impl SoftFunction {
    pub(crate) fn kernel(&self) -> &KernelInfo {
        &self.module.loaded.image().kernels()[self.index]
    }

    pub(crate) fn dynamic_shared_limit(&self) -> u32 {
        dynamic_limit(self.kernel(), &self.settings)
    }

    /// The size of clusters that was set for it; `None` if none was.
    pub(crate) fn cluster_setting(&self) -> Option<[u32; 3]> {
        let set = self.settings.cluster.each_ref();
        let set = set.map(|n| n.load(Ordering::Acquire) as u32);
        // Of a size of which a part is set, the rest is one.
        (set != [0; 3]).then(|| set.map(|n| n.max(1)))
    }

    /// Most blocks of its clusters: those that every device can run, or all that this one can.
    pub(crate) fn largest_cluster(&self) -> u32 {
        match self.settings.non_portable.load(Ordering::Acquire) {
            0 => MAX_PORTABLE_CLUSTER,
            _ => MAX_CLUSTER,
        }
    }
}

fn dynamic_limit(kernel: &KernelInfo, settings: &FunctionSettings) -> u32 {
    let plain = MAX_SHARED.saturating_sub(kernel.static_shared_bytes);
    plain.max(u32::try_from(settings.max_dynamic.load(Ordering::Acquire)).unwrap_or(0))
}

/// `cuFuncGetAttribute` and `cuKernelGetAttribute`.
pub(crate) fn attribute(
    kernel: &KernelInfo,
    settings: &FunctionSettings,
    which: F,
) -> CuResult<i32> {
    let load = |a: &AtomicI32| a.load(Ordering::Acquire);
    let required = |i: usize| kernel.required_cluster.map(|c| c[i] as i32);
    Ok(match which {
        F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => {
            let bound = kernel.max_threads.or(kernel.required_threads);
            bound.map_or(1024, |t| t.iter().map(|&n| n.max(1)).product::<u32>()) as i32
        }
        F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.static_shared_bytes as i32,
        F::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => kernel.const_bytes as i32,
        F::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => kernel.local_bytes as i32,
        F::CU_FUNC_ATTRIBUTE_NUM_REGS => kernel.registers.clamp(1, 255) as i32,
        F::CU_FUNC_ATTRIBUTE_PTX_VERSION | F::CU_FUNC_ATTRIBUTE_BINARY_VERSION => 90,
        F::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
        F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => match load(&settings.max_dynamic) {
            -1 => MAX_SHARED.saturating_sub(kernel.static_shared_bytes) as i32,
            set => set,
        },
        F::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => load(&settings.carveout),
        F::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => {
            i32::from(kernel.explicit_cluster && kernel.required_cluster.is_none())
        }
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => {
            required(0).unwrap_or_else(|| load(&settings.cluster[0]))
        }
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => {
            required(1).unwrap_or_else(|| load(&settings.cluster[1]))
        }
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => {
            required(2).unwrap_or_else(|| load(&settings.cluster[2]))
        }
        F::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => load(&settings.non_portable),
        F::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => load(&settings.policy),
        _ => return Err(err::INVALID_VALUE),
    })
}

pub(crate) fn set_attribute(
    kernel: &KernelInfo,
    settings: &FunctionSettings,
    which: F,
    value: i32,
) -> CuResult {
    let slot = match which {
        F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            let room = MAX_SHARED_OPTIN.saturating_sub(kernel.static_shared_bytes) as i32;
            if !(0..=room).contains(&value) {
                return Err(err::INVALID_VALUE);
            }
            &settings.max_dynamic
        }
        F::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
            &settings.carveout
        }
        // What the kernel says of itself cannot be changed.
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        | F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
        | F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            if kernel.required_cluster.is_some() =>
        {
            return Err(err::INVALID_VALUE);
        }
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH if value >= 0 => &settings.cluster[0],
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT if value >= 0 => &settings.cluster[1],
        F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH if value >= 0 => &settings.cluster[2],
        F::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED if (0..=1).contains(&value) => {
            &settings.non_portable
        }
        F::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => {
            &settings.policy
        }
        _ => return Err(err::INVALID_VALUE),
    };
    slot.store(value, Ordering::Release);
    Ok(())
}

/// `cuFuncGetParamInfo`: (offset, size).
pub(crate) fn param_info(kernel: &KernelInfo, index: usize) -> CuResult<(usize, usize)> {
    kernel
        .params
        .get(index)
        .map(|p| (p.offset as usize, p.size as usize))
        .ok_or(err::INVALID_VALUE)
}

/// Allocates the image's variables in a context, and creates the module's handle.
pub(crate) fn load(
    m: &'static Machine,
    ctx: &SoftContext,
    image: Arc<CompiledModule>,
    library: usize,
) -> CuResult<Arc<SoftModule>> {
    let device = &m.devices[ctx.device as usize];
    let mut globals: FxHashMap<Arc<str>, (u64, u64)> = FxHashMap::default();
    let op = if image.variables().is_empty() {
        OpId::NONE
    } else {
        host_op(m, "cuModuleLoadData")
    };
    let undo = |globals: &FxHashMap<Arc<str>, (u64, u64)>| {
        for &(at, _) in globals.values() {
            free_global(m, at, OpId::NONE);
        }
    };
    for v in image.variables() {
        let len = v.size.max(1);
        let taken = if v.managed {
            device.managed_blocks.alloc(&m.space, len)
        } else {
            device.alloc_block(m, len)
        };
        let at = match taken {
            Ok(at) => at,
            Err(e) => {
                undo(&globals);
                return Err(e);
            }
        };
        let source = if v.managed {
            AllocationSource::Managed
        } else {
            AllocationSource::Global
        };
        m.memory.insert(m, ctx, at, len, source, ctx.device);
        let made = site("cuModuleLoadData");
        let check = m.check(op);
        m.space.add(
            at,
            len,
            AllocKind::Global,
            ctx.device,
            Some(v.name.clone()),
            made,
            true,
            check.as_ref(),
        );
        globals.insert(v.name.clone(), (at, v.size));
    }
    let references: FxHashMap<Arc<str>, (ReferenceKind, usize)> = image
        .references()
        .iter()
        .map(|r| (r.name.clone(), (r.kind, create_for_module(m, r.kind))))
        .collect();
    let handles = references
        .iter()
        .map(|(name, r)| (name.clone(), r.1 as u64));
    let addresses = globals
        .iter()
        .map(|(name, &(at, _))| (name.clone(), at))
        .chain(handles)
        .collect();
    let loaded = match Loaded::new(image.clone(), addresses) {
        Ok(loaded) => loaded,
        Err(e) => {
            super::say(&format!("software device: {e}"));
            undo(&globals);
            for &(_, handle) in references.values() {
                remove_for_module(m, handle);
            }
            return Err(err::INVALID_PTX);
        }
    };
    for (i, v) in image.variables().iter().enumerate() {
        if let Some(&(at, _)) = globals.get(&v.name) {
            let bytes = loaded.initial_bytes(i);
            let len = bytes.len() as u64;
            let check = m.check(op);
            // Fresh memory of this device, so the writes cannot be refused.
            m.space
                .write(ctx.device, at, &bytes, check.as_ref())
                .and_then(|()| {
                    let rest = v.size.saturating_sub(len);
                    m.space.zero(ctx.device, at + len, rest, check.as_ref())
                })
                .map_err(|_| err::UNKNOWN)?;
        }
    }
    let (handle, module) = m.modules.insert_with(|handle| {
        Arc::new(SoftModule {
            handle,
            ctx_id: ctx.id,
            ctx_handle: ctx.handle,
            device: ctx.device,
            loaded,
            globals,
            references,
            functions: Mutex::default(),
            library,
        })
    });
    lock(&ctx.modules).push(handle);
    Ok(module)
}

fn free_global(m: &Machine, at: u64, op: OpId) {
    if let Some(a) = m.memory.take(at, |a| {
        matches!(
            a.source,
            AllocationSource::Global | AllocationSource::Managed
        )
    }) {
        super::memory::retire(m, &a, "cuModuleUnload", op);
        super::memory::give_back(m, &a);
    }
}

impl SoftModule {
    /// Frees the variables and removes the functions. The context's work is complete.
    pub(crate) fn unload(&self, m: &Machine) {
        let op = if self.globals.is_empty() {
            OpId::NONE
        } else {
            host_op(m, "cuModuleUnload")
        };
        for &(at, _) in self.globals.values() {
            free_global(m, at, op);
        }
        for &(_, handle) in self.references.values() {
            remove_for_module(m, handle);
        }
        for (_, handle) in lock(&self.functions).drain() {
            m.functions.remove(handle);
        }
    }

    pub(crate) fn global(&self, name: &str) -> CuResult<(u64, u64)> {
        self.globals.get(name).copied().ok_or(err::NOT_FOUND)
    }

    pub(crate) fn function(self: &Arc<Self>, m: &Machine, index: usize) -> Arc<SoftFunction> {
        let mut functions = lock(&self.functions);
        if let Some(found) = functions.get(&index).and_then(|&h| m.functions.get(h)) {
            return found;
        }
        let name = self.loaded.image().kernels()[index].name.clone();
        let (handle, function) = m.functions.insert_with(|handle| {
            Arc::new(SoftFunction {
                handle,
                module: self.clone(),
                index,
                c_name: CString::new(&*name).unwrap_or_default(),
                name,
                settings: FunctionSettings::default(),
                legacy: Mutex::default(),
            })
        });
        functions.insert(index, handle);
        function
    }
}

/// `cuModuleUnload`.
pub(crate) fn unload(m: &Machine, handle: usize) -> CuResult {
    let module = m
        .modules
        .get(handle)
        .filter(|module| module.library == 0)
        .ok_or(err::INVALID_HANDLE)?;
    if let Some(ctx) = m.contexts.get(module.ctx_handle) {
        // Errors of the context's work are reported by its own calls.
        ctx.synchronize(m).ok();
        lock(&ctx.modules).retain(|&h| h != handle);
    }
    m.modules.remove(handle);
    module.unload(m);
    Ok(())
}

impl SoftKernel {
    pub(crate) fn info(&self) -> &KernelInfo {
        &self.image.kernels()[self.index]
    }
}

pub(crate) fn load_library(m: &Machine, image: Arc<CompiledModule>) -> Arc<Library> {
    m.libraries
        .insert_with(|handle| {
            Arc::new(Library {
                handle,
                image,
                modules: Mutex::default(),
                kernels: OnceLock::new(),
            })
        })
        .1
}

impl Library {
    /// Handles of all its kernels, in the image's order.
    pub(crate) fn kernels(&self, m: &Machine) -> &[usize] {
        self.kernels.get_or_init(|| {
            let image = &self.image;
            (0..image.kernels().len())
                .map(|index| {
                    let c_name = CString::new(&*image.kernels()[index].name).unwrap_or_default();
                    let make = |_| {
                        let settings = FunctionSettings::default();
                        Arc::new(SoftKernel {
                            library: self.handle,
                            image: image.clone(),
                            index,
                            c_name,
                            settings,
                        })
                    };
                    m.kernels.insert_with(make).0
                })
                .collect()
        })
    }

    pub(crate) fn module(
        &self,
        m: &'static Machine,
        ctx: &SoftContext,
    ) -> CuResult<Arc<SoftModule>> {
        let mut modules = lock(&self.modules);
        if let Some(found) = modules.get(&ctx.id).and_then(|&h| m.modules.get(h)) {
            return Ok(found);
        }
        let module = load(m, ctx, self.image.clone(), self.handle)?;
        modules.insert(ctx.id, module.handle);
        Ok(module)
    }
}

pub(crate) fn unload_library(m: &Machine, handle: usize) -> CuResult {
    let library = m.libraries.remove(handle).ok_or(err::INVALID_HANDLE)?;
    for (_, module) in lock(&library.modules).drain() {
        if let Some(module) = m.modules.remove(module) {
            if let Some(ctx) = m.contexts.get(module.ctx_handle) {
                ctx.synchronize(m).ok();
                lock(&ctx.modules).retain(|&h| h != module.handle);
            }
            module.unload(m);
        }
    }
    for &kernel in library.kernels.get().into_iter().flatten() {
        m.kernels.remove(kernel);
    }
    Ok(())
}

/// A launchable object: a function, or a library kernel for the given context.
pub(crate) fn resolve(
    m: &'static Machine,
    ctx: &SoftContext,
    handle: usize,
) -> CuResult<Arc<SoftFunction>> {
    if let Some(function) = m.functions.get(handle) {
        return Ok(function);
    }
    let kernel = m.kernels.get(handle).ok_or(err::INVALID_HANDLE)?;
    let library = m.libraries.get(kernel.library).ok_or(err::INVALID_HANDLE)?;
    let function = library.module(m, ctx)?.function(m, kernel.index);
    function.settings.copy_from(&kernel.settings);
    Ok(function)
}
