//! Modules: loaded code, its functions and its variables.
//!
//! Invariant: a module is unloaded after the last work that runs its code or uses its variables.
//! Elsewhere: image formats (`image`), launching (`launch`).

use std::ffi::{CStr, CString, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Pod;
use fercuda_cuda_sys::types::{
    CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult, c_uint,
};

use crate::allocation::DeviceAllocation;
use crate::buffer::DeviceBuffer;
use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred;
use crate::error::{Error, LoadFailure, Result, call};
use crate::image::Image;
use crate::parameters::{UNPACKED, pack};
use crate::uses::StreamUses;

/// A loaded module. Clones are handles to the same module, which its functions and variables hold.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

#[derive(Debug)]
pub(crate) struct ModuleInner {
    context: Context,
    raw: CUmodule,
    uses: StreamUses,
}

impl ModuleInner {
    pub(crate) fn uses(&self) -> &StreamUses {
        &self.uses
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        let (context, raw) = (self.context.clone(), self.raw);
        let uses = std::mem::take(&mut self.uses);
        deferred::destroy_or_defer(move || {
            let _none_resident = match uses.wait_for_all() {
                Ok(none_resident) => none_resident,
                Err(retry) => return retry,
            };
            // SAFETY: from cuModuleLoadDataEx, unloaded once (this closure is not called again
            // then), and no work runs its code.
            context.destroy(|driver| unsafe { driver.cuModuleUnload(raw) })
        });
    }
}

const LOG_BYTES: usize = 16 << 10;

impl Module {
    /// Loads `image`. PTX is compiled for the device now.
    ///
    /// # Errors
    /// [`Error::Image`] for corrupt bytes; [`Error::Load`] with the compiler's log if the driver
    /// refuses it. The context stays usable.
    pub fn load(context: &Context, image: &Image<'_>) -> Result<Self> {
        let checked = image.checked()?;
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(log.len() - 1),
        ];
        let mut raw = CUmodule::NULL;
        // SAFETY: the image was checked, and machine code is vouched for by the caller that made
        // the image of it; it outlives the call, as do the log and both arrays, which have the
        // length given.
        let answer = unsafe {
            driver.cuModuleLoadDataEx(
                &mut raw,
                checked.as_ptr(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )?
        };
        if answer != CUresult::CUDA_SUCCESS {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            return Err(Error::Load(Box::new(LoadFailure {
                code: answer,
                what: image.describe(),
                log: log.to_string_lossy().into_owned(),
            })));
        }
        let uses = StreamUses::default();
        Ok(Self {
            inner: Arc::new(ModuleInner {
                context: context.clone(),
                raw,
                uses,
            }),
        })
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUmodule {
        self.inner.raw
    }

    /// The kernel called `name`, with its parameters as the driver reports them.
    ///
    /// # Errors
    /// [`Error::Driver`] with CUDA_ERROR_NOT_FOUND if there is none.
    pub fn function(&self, name: &str) -> Result<Function> {
        let c_name = c_name("look up a kernel", name)?;
        let context = &self.inner.context;
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let mut raw = CUfunction::NULL;
        // SAFETY: the module is alive; name and `raw` outlive the call.
        unsafe {
            call!(
                driver,
                cuModuleGetFunction(&mut raw, self.inner.raw, c_name.as_ptr()),
                "find the kernel `{name}`"
            )?;
        }
        let mut sizes = Vec::new();
        let parameters = loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is alive; both outlive the call.
            match unsafe { driver.cuFuncGetParamInfo(raw, sizes.len(), &mut offset, &mut size) } {
                Ok(CUresult::CUDA_SUCCESS) => sizes.push(size),
                // The index after the last parameter is an invalid value.
                Ok(CUresult::CUDA_ERROR_INVALID_VALUE) => break Some(sizes.into_boxed_slice()),
                // A driver before CUDA 12.4 does not report them: nothing is checked.
                Ok(_) | Err(_) => break None,
            }
        };
        let mut function = FunctionInner {
            module: self.inner.clone(),
            raw,
            name: name.to_owned(),
            packed_parameters: parameters.as_deref().and_then(pack).unwrap_or(UNPACKED),
            parameters,
            max_threads: 0,
            max_shared_bytes: 0,
            static_shared_bytes: 0,
            dynamic_shared_bytes: AtomicU32::new(0),
        };
        let attribute = |attribute| function_attribute(context, raw, name, attribute);
        function.max_threads =
            attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        function.static_shared_bytes =
            attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let dynamic =
            attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?;
        function.dynamic_shared_bytes = AtomicU32::new(dynamic);
        let device_limit = context.device().max_shared_bytes()?;
        function.max_shared_bytes = device_limit.saturating_sub(function.static_shared_bytes);
        Ok(Function {
            inner: Arc::new(function),
        })
    }

    /// The variable called `name` as a buffer of `T`.
    ///
    /// # Errors
    /// [`Error::Driver`] with CUDA_ERROR_NOT_FOUND if there is none;
    /// [`Error::Value`] if its size is no multiple of that of `T`.
    pub fn global<T: Pod>(&self, name: &str) -> Result<DeviceBuffer<T>> {
        let c_name = c_name("look up a variable", name)?;
        let driver = self.inner.context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the module is alive; name and results outlive the call.
        unsafe {
            call!(
                driver,
                cuModuleGetGlobal_v2(&mut address, &mut bytes, self.inner.raw, c_name.as_ptr()),
                "find the variable `{name}`"
            )?;
        }
        if size_of::<T>() == 0 || !bytes.is_multiple_of(size_of::<T>()) {
            return Err(Error::Value {
                operation: "use a module's variable",
                reason: format!(
                    "`{name}` has {bytes} bytes, which is no multiple of {}",
                    size_of::<T>()
                ),
            });
        }
        let allocation =
            DeviceAllocation::global(&self.inner.context, self.inner.clone(), address, bytes);
        Ok(DeviceBuffer::from_allocation(
            allocation,
            bytes / size_of::<T>(),
        ))
    }
}

fn c_name(operation: &'static str, name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Value {
        operation,
        reason: format!("{name:?} contains a zero byte"),
    })
}

fn function_attribute(
    context: &Context,
    raw: CUfunction,
    name: &str,
    attribute: CUfunction_attribute,
) -> Result<u32> {
    let driver = context.bind()?;
    let mut value = 0;
    // SAFETY: the function is alive and `value` outlives the call.
    unsafe {
        call!(
            driver,
            cuFuncGetAttribute(&mut value, attribute, raw),
            "ask {attribute:?} of `{name}`"
        )?;
    }
    Ok(value.unsigned_abs())
}

/// A kernel of a module. Clones are handles to the same kernel.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) inner: Arc<FunctionInner>,
}

#[derive(Debug)]
pub(crate) struct FunctionInner {
    pub(crate) module: Arc<ModuleInner>,
    pub(crate) raw: CUfunction,
    pub(crate) name: String,
    /// The size of each parameter, if the driver reports it.
    pub(crate) parameters: Option<Box<[usize]>>,
    /// The same packed by `pack`, or [`UNPACKED`].
    pub(crate) packed_parameters: [u64; 2],
    pub(crate) max_threads: u32,
    /// The most dynamic shared memory it can be allowed, in bytes.
    pub(crate) max_shared_bytes: u32,
    static_shared_bytes: u32,
    /// Dynamic shared memory it is allowed at present, in bytes.
    dynamic_shared_bytes: AtomicU32,
}

impl Function {
    /// The name it was found by.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUfunction {
        self.inner.raw
    }

    /// The context it was loaded in.
    pub fn context(&self) -> &Context {
        &self.inner.module.context
    }

    /// The size in bytes of each parameter; `None` if the driver is too old to report it, in which
    /// case a launch does not check them.
    pub fn parameter_bytes(&self) -> Option<&[usize]> {
        self.inner.parameters.as_deref()
    }

    /// One of the driver's attributes.
    ///
    /// # Errors
    /// [`Error::Driver`] for an attribute the driver does not know.
    pub fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32> {
        function_attribute(self.context(), self.inner.raw, self.name(), attribute)
    }

    /// The most threads that a block of this kernel may have.
    pub fn max_threads_per_block(&self) -> u32 {
        self.inner.max_threads
    }

    /// Shared memory the kernel declares, in bytes a block.
    pub fn static_shared_bytes(&self) -> u32 {
        self.inner.static_shared_bytes
    }

    /// Registers of a thread.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn registers(&self) -> Result<u32> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// Local memory of a thread, in bytes.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn local_bytes(&self) -> Result<u32> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    }

    /// How many of its blocks a multiprocessor can run at once.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocks_per_multiprocessor(
        &self,
        threads: u32,
        dynamic_shared_bytes: u32,
    ) -> Result<u32> {
        let driver = self.context().bind()?;
        let mut blocks = 0;
        // SAFETY: the function is alive and `blocks` outlives the call.
        unsafe {
            call!(
                driver,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &mut blocks,
                    self.inner.raw,
                    threads.cast_signed(),
                    dynamic_shared_bytes as usize,
                ),
                "ask the occupancy of `{}`",
                self.name()
            )?;
        }
        Ok(blocks.unsigned_abs())
    }

    /// Whether the kernel is allowed `bytes` of dynamic shared memory.
    #[inline]
    pub(crate) fn may_use_shared(&self, bytes: u32) -> bool {
        bytes <= self.inner.dynamic_shared_bytes.load(Ordering::Relaxed)
    }

    /// Allows the kernel `bytes` of dynamic shared memory.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Result<()> {
        if self.may_use_shared(bytes) {
            return Ok(());
        }
        if bytes > self.inner.max_shared_bytes {
            return Err(Error::LaunchLimit {
                kernel: self.inner.name.clone(),
                what: "dynamic shared memory in bytes",
                asked: bytes.into(),
                limit: self.inner.max_shared_bytes.into(),
                advice: "smaller tiles, or keep part of them in registers",
            });
        }
        // The maximum, so that another handle of this kernel never lowers what this one was
        // allowed.
        let most = self.inner.max_shared_bytes;
        self.set_attribute(
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            most,
        )?;
        self.inner
            .dynamic_shared_bytes
            .store(most, Ordering::Relaxed);
        Ok(())
    }

    /// Allows clusters of more than the eight blocks that every device can run; whether a size is
    /// possible is reported by [`Launch::run`](crate::Launch::run).
    ///
    /// # Errors
    /// [`Error::Driver`] if the device has no clusters.
    pub fn allow_non_portable_clusters(&self) -> Result<()> {
        self.set_attribute(
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
            1,
        )
    }

    fn set_attribute(&self, attribute: CUfunction_attribute, value: u32) -> Result<()> {
        let driver = self.context().bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        // SAFETY: the function is alive.
        unsafe {
            call!(
                driver,
                cuFuncSetAttribute(self.inner.raw, attribute, value.cast_signed()),
                "set {attribute:?} of `{}` to {value}",
                self.name()
            )
        }
    }
}
