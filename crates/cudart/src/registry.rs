//! Device code, kernels and variables that compiled programs register before `main`.
//!
//! nvcc's host code registers each fat binary with its kernels and variables in static
//! constructors. Nothing is loaded then: a fat binary becomes a library of the driver's when one
//! of its kernels or variables is first used, and belongs to no context. Code that was compiled to
//! be linked (`-rdc=true`) to PTX alone is linked first.
//!
//! Invariant: a handle that was returned stays valid until it is unregistered, and one that was
//! not is ignored. Elsewhere: launches (`launch`), the driver's libraries (`library`).

use core::ffi::{CStr, c_char, c_int, c_void};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::call::{self, driver, lock, say};
use crate::error::{CudaResult, cudaError_t, plain_name};
use crate::types::*;

/// Begins nvcc's wrapper of a fat binary (`fatbinary_section.h`).
const WRAPPER_MAGIC: c_int = 0x466243b1;
/// The version of a wrapper with fat binaries that are still to be linked.
const WRAPPER_LINKED: c_int = 2;
/// Begins a fat binary.
const FATBIN_MAGIC: u32 = 0xba55_ed50;
/// The most fat binaries that are linked into one.
const MAX_LINKED: usize = 65_536;
/// Room for the driver's messages about PTX.
const LOG_BYTES: usize = 8192;

/// nvcc's wrapper of a fat binary.
#[repr(C)]
#[derive(Clone, Copy)]
struct FatbinWrapper {
    magic: c_int,
    version: c_int,
    data: *const c_void,
    /// In version 2 a list of fat binaries that ends with null.
    linked: *const *const c_void,
}

/// A registered fat binary.
struct FatBinary {
    wrapper: FatbinWrapper,
    /// The library that it became, or why it could not.
    library: OnceLock<Result<CUlibrary, cudaError_t>>,
    /// Managed variables: where the program keeps their addresses, and their names.
    managed: Mutex<Vec<(usize, CString)>>,
}

// SAFETY: the pointers are to constants of the program, which are read only while it is
// registered, and never written.
unsafe impl Send for FatBinary {}
// SAFETY: as above.
unsafe impl Sync for FatBinary {}

/// A kernel of a fat binary.
struct Kernel {
    binary: Arc<FatBinary>,
    name: CString,
    handle: OnceLock<Result<CUkernel, cudaError_t>>,
}

/// A variable of a fat binary.
struct Variable {
    binary: Arc<FatBinary>,
    name: CString,
    is_managed: bool,
    size: usize,
}

/// Everything that is registered.
#[derive(Default)]
struct Registry {
    binaries: HashMap<usize, Arc<FatBinary>>,
    /// By the address of the host's function of the same name.
    kernels: HashMap<usize, Arc<Kernel>>,
    /// By the address of the host's variable of the same name.
    variables: HashMap<usize, Arc<Variable>>,
    /// The host's function of each kernel and driver function that was handed out.
    hosts: HashMap<usize, usize>,
}

fn registry() -> &'static Mutex<Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

/// Why device code could not be loaded last; 0 if all could.
static FAILURE: AtomicU32 = AtomicU32::new(0);

/// The error of a launch of no kernel: of device code that could not be loaded, if any was.
pub(crate) fn missing_kernel() -> cudaError_t {
    match FAILURE.load(Ordering::Relaxed) {
        0 => cudaError_t::INVALID_FUNCTION,
        code => cudaError_t(code),
    }
}

impl FatBinary {
    /// The driver's library of this code.
    fn library(&self) -> CudaResult<CUlibrary> {
        *self.library.get_or_init(|| {
            let loaded = self.load();
            if let Err(code) = loaded {
                FAILURE.store(code.0, Ordering::Relaxed);
                say(&format!(
                    "device code of the program cannot be loaded: {}\n  \
                     the software device needs PTX: nvcc -gencode arch=compute_90,code=compute_90",
                    plain_name(code)
                ));
            }
            loaded
        })
    }

    fn load(&self) -> CudaResult<CUlibrary> {
        let parts = self.parts();
        if parts.is_empty() || self.has_code() {
            return load_library(self.wrapper.data);
        }
        // SAFETY: the parts are fat binaries of the program's.
        unsafe { link_library(&parts) }
    }

    /// Fat binaries of the program that are to be linked into this one.
    fn parts(&self) -> Vec<*const c_void> {
        let mut parts = Vec::new();
        if self.wrapper.version != WRAPPER_LINKED || self.wrapper.linked.is_null() {
            return parts;
        }
        for index in 0..MAX_LINKED {
            // SAFETY: nvcc's list ends with null, where this stops.
            let part = unsafe { self.wrapper.linked.add(index).read() };
            if part.is_null() {
                break;
            }
            parts.push(part);
        }
        parts
    }

    /// Whether the fat binary itself has an entry: one that only names its parts has none.
    fn has_code(&self) -> bool {
        let data = self.wrapper.data.cast::<u8>();
        if data.is_null() {
            return false;
        }
        // SAFETY: a fat binary begins with 16 bytes of header; `cast` aligns nothing, so it is
        // read unaligned.
        let header = unsafe { data.cast::<[u8; 16]>().read_unaligned() };
        let magic = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let payload = header[8..16].iter().any(|&byte| byte != 0);
        magic == FATBIN_MAGIC && payload
    }
}

/// Messages of the driver about PTX that it does not take.
struct JitLog {
    text: Vec<u8>,
}

impl JitLog {
    fn new() -> Self {
        Self {
            text: vec![0; LOG_BYTES],
        }
    }

    fn options() -> [CUjit_option; 2] {
        [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]
    }

    fn values(&mut self) -> [*mut c_void; 2] {
        let size = core::ptr::without_provenance_mut(self.text.len());
        [self.text.as_mut_ptr().cast(), size]
    }

    fn print(&self) {
        let text = self
            .text
            .split(|&byte| byte == 0)
            .next()
            .unwrap_or_default();
        if text.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(text);
        say(text.trim_end());
        if text.contains("__cudaCDP") {
            say("kernels of the program launch kernels, which needs NVIDIA's device runtime");
        }
    }
}

fn load_library(image: *const c_void) -> CudaResult<CUlibrary> {
    let mut library = CUlibrary::NULL;
    let mut log = JitLog::new();
    let (mut options, mut values) = (JitLog::options(), log.values());
    // SAFETY: the image is a constant of the program, and everything else outlives the call.
    let loaded = unsafe {
        drv!(cuLibraryLoadData(
            &mut library,
            image,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
            2,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
            0,
        ))
    };
    if loaded.is_err() {
        log.print();
    }
    loaded.map(|()| library)
}

/// Links fat binaries and loads the result.
///
/// # Safety
/// Each part is a fat binary.
unsafe fn link_library(parts: &[*const c_void]) -> CudaResult<CUlibrary> {
    call::context()?;
    let mut log = JitLog::new();
    let (mut options, mut values) = (JitLog::options(), log.values());
    let mut state = CUlinkState::NULL;
    // SAFETY: options and values outlive the state, which is destroyed below.
    unsafe {
        drv!(cuLinkCreate_v2(
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
            &mut state
        ))?;
    }
    let linked = parts.iter().enumerate().try_for_each(|(index, &part)| {
        let name = CString::new(format!("part {index}")).unwrap_or_default();
        let mut unread = JitLog::new();
        let (mut options, mut values) = (JitLog::options(), unread.values());
        // SAFETY: the header of a fat binary says how long it is.
        let added = unsafe {
            let length = fatbin_length(part);
            drv!(cuLinkAddData_v2(
                state,
                CUjitInputType::CU_JIT_INPUT_FATBINARY,
                part.cast_mut(),
                length,
                name.as_ptr(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            ))
        };
        // nvcc adds NVIDIA's device runtime, which has no PTX, also to programs that do not use
        // it. If something of it is needed, the link fails by that name.
        match added {
            Err(cudaError_t::NO_IMAGE) => Ok(()),
            other => other,
        }
    });
    let mut image = core::ptr::null_mut();
    let mut size = 0;
    // SAFETY: the outputs outlive the call; the image lives as long as the state.
    let done = linked.and_then(|()| unsafe { drv!(cuLinkComplete(state, &mut image, &mut size)) });
    let library = done.and_then(|()| load_library(image));
    if library.is_err() {
        log.print();
    }
    // SAFETY: the state of above, of which nothing is used any more.
    unsafe { drv!(cuLinkDestroy(state)) }?;
    library
}

/// The length that a fat binary's header gives.
///
/// # Safety
/// At least 16 bytes can be read.
unsafe fn fatbin_length(data: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    let header = unsafe { data.cast::<[u8; 16]>().read_unaligned() };
    let head = u16::from_le_bytes([header[6], header[7]]);
    let mut body = [0; 8];
    body.copy_from_slice(&header[8..]);
    usize::from(head) + u64::from_le_bytes(body) as usize
}

impl Kernel {
    fn handle(&self) -> CudaResult<CUkernel> {
        *self.handle.get_or_init(|| {
            let library = self.binary.library()?;
            let mut kernel = CUkernel::NULL;
            // SAFETY: the output and the name outlive the call.
            unsafe { drv!(cuLibraryGetKernel(&mut kernel, library, self.name.as_ptr())) }
                .map_err(|_| cudaError_t::INVALID_FUNCTION)?;
            Ok(kernel)
        })
    }
}

/// Notes which host function a handle of the driver's stands for.
fn remember(handle: usize, host: usize) {
    lock(registry()).hosts.insert(handle, host);
}

/// The kernel of a host function, or of a kernel's handle that is passed in its place.
pub(crate) fn kernel(function: *const c_void) -> CudaResult<CUkernel> {
    let found = lock(registry()).kernels.get(&(function as usize)).cloned();
    let Some(found) = found else {
        return kernel_handle(function);
    };
    let kernel = found.handle()?;
    remember(kernel.0 as usize, function as usize);
    Ok(kernel)
}

/// A handle of a kernel, if it is one that the driver knows.
fn kernel_handle(handle: *const c_void) -> CudaResult<CUkernel> {
    let kernel = CUkernel(handle.cast_mut());
    if kernel.is_null() || !is_known_kernel(kernel) {
        return Err(cudaError_t::INVALID_FUNCTION);
    }
    Ok(kernel)
}

/// Kernels that were handed out by their handles.
static KNOWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Notes a kernel that was handed out: its handle may stand for a host function.
pub(crate) fn hand_out(kernel: CUkernel) {
    lock(&KNOWN).insert(kernel.0 as usize);
}

fn is_known_kernel(kernel: CUkernel) -> bool {
    lock(&KNOWN).contains(&(kernel.0 as usize))
}

/// The driver's function of a host function, in the current context.
pub(crate) fn function(host: *const c_void) -> CudaResult<CUfunction> {
    let kernel = kernel(host)?;
    call::context()?;
    let mut function = CUfunction::NULL;
    // SAFETY: the output outlives the call; the driver gave the handle.
    unsafe { drv!(cuKernelGetFunction(&mut function, kernel)) }?;
    remember(function.0 as usize, host as usize);
    Ok(function)
}

/// What a program knows a kernel or function of the driver's by: the host's function, if it is a
/// registered one, else the handle.
pub(crate) fn host_function(handle: *mut c_void) -> *mut c_void {
    let hosts = &lock(registry()).hosts;
    hosts
        .get(&(handle as usize))
        .map_or(handle, |&host| host as *mut c_void)
}

/// Address and size of a variable in the current context.
pub(crate) fn variable(symbol: *const c_void) -> CudaResult<(u64, usize)> {
    let found = lock(registry()).variables.get(&(symbol as usize)).cloned();
    let variable = found.ok_or(cudaError_t::INVALID_SYMBOL)?;
    call::context()?;
    let library = variable.binary.library()?;
    let (mut at, mut size) = (0, 0);
    let name = variable.name.as_ptr();
    // SAFETY: outputs and name outlive the call.
    let found = unsafe {
        match variable.is_managed {
            true => drv!(cuLibraryGetManaged(&mut at, &mut size, library, name)),
            false => drv!(cuLibraryGetGlobal(&mut at, &mut size, library, name)),
        }
    };
    found.map_err(|code| match code {
        cudaError_t::SYMBOL_NOT_FOUND => cudaError_t::INVALID_SYMBOL,
        other => other,
    })?;
    Ok((at, if size == 0 { variable.size } else { size }))
}

/// Gives the managed variables of a fat binary their addresses.
fn init_managed(binary: &Arc<FatBinary>) -> CudaResult {
    let managed: Vec<_> = lock(&binary.managed).clone();
    if managed.is_empty() {
        return Ok(());
    }
    call::context()?;
    let library = binary.library()?;
    for (place, name) in managed {
        let (mut at, mut size) = (0, 0);
        // SAFETY: outputs and name outlive the call.
        unsafe {
            drv!(cuLibraryGetManaged(
                &mut at,
                &mut size,
                library,
                name.as_ptr()
            ))
        }?;
        // SAFETY: the program registered this pointer as the place of the variable's address.
        unsafe { (place as *mut *mut c_void).write(call::pointer(at)) };
        // The program names the variable by its memory from now on.
        let variable = Variable {
            binary: binary.clone(),
            name,
            is_managed: true,
            size,
        };
        lock(registry())
            .variables
            .insert(at as usize, Arc::new(variable));
    }
    Ok(())
}

fn binary(handle: *mut *mut c_void) -> Option<Arc<FatBinary>> {
    lock(registry()).binaries.get(&(handle as usize)).cloned()
}

/// A registered name.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn registered_name(name: *const c_char) -> Option<CString> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller's promise.
    Some(unsafe { CStr::from_ptr(name) }.to_owned())
}

/// Runs what a static constructor calls: no panic may leave it.
fn quietly<T>(default: T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(default)
}

/// Registers a fat binary, by nvcc's wrapper of it.
///
/// # Safety
/// `wrapper` is what nvcc's host code passes.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __cudaRegisterFatBinary(wrapper: *mut c_void) -> *mut *mut c_void {
    quietly(core::ptr::null_mut(), || {
        // SAFETY: the caller passes a wrapper, or null.
        let wrapper = unsafe { wrapper.cast::<FatbinWrapper>().as_ref() };
        let Some(&wrapper) = wrapper.filter(|it| it.magic == WRAPPER_MAGIC) else {
            say("a program registers device code in a form that is not known");
            return core::ptr::null_mut();
        };
        let binary = Arc::new(FatBinary {
            wrapper,
            library: OnceLock::new(),
            managed: Mutex::default(),
        });
        let handle = Arc::as_ptr(&binary) as usize;
        lock(registry()).binaries.insert(handle, binary);
        handle as *mut *mut c_void
    })
}

/// Ends the registration of a fat binary.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

/// Forgets a fat binary with its kernels and variables, and unloads it.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaUnregisterFatBinary(handle: *mut *mut c_void) {
    quietly((), || {
        let mut all = lock(registry());
        let Some(binary) = all.binaries.remove(&(handle as usize)) else {
            return;
        };
        let is_gone = |it: &Kernel| Arc::ptr_eq(&it.binary, &binary);
        let hosts = all.kernels.iter().filter(|(_, it)| is_gone(it));
        let hosts: BTreeSet<usize> = hosts.map(|(&host, _)| host).collect();
        all.hosts.retain(|_, host| !hosts.contains(host));
        all.kernels.retain(|_, it| !is_gone(it));
        all.variables
            .retain(|_, it| !Arc::ptr_eq(&it.binary, &binary));
        drop(all);
        if let (Some(Ok(library)), Ok(driver)) = (binary.library.get(), driver()) {
            // A process that ends may have shut down the driver: then nothing is left to unload.
            // SAFETY: the library of this binary, which no table has any more.
            call::check(unsafe { driver.cuLibraryUnload(*library) }).ok();
        }
    });
}

/// Registers a kernel by the host's function of the same name.
///
/// # Safety
/// `name` is null or a C string.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    host: *const c_char,
    _device: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _tid: *mut c_void,
    _bid: *mut c_void,
    _block: *mut c_void,
    _grid: *mut c_void,
    _warp: *mut c_int,
) {
    quietly((), || {
        // SAFETY: the caller's promise.
        let name = unsafe { registered_name(name) };
        if let (Some(binary), Some(name)) = (binary(handle), name) {
            let kernel = Kernel {
                binary,
                name,
                handle: OnceLock::new(),
            };
            lock(registry())
                .kernels
                .insert(host as usize, Arc::new(kernel));
        }
    });
}

/// Registers a variable by the host's variable of the same name.
///
/// # Safety
/// `name` is null or a C string.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    host: *mut c_char,
    _device: *mut c_char,
    name: *const c_char,
    _is_external: c_int,
    size: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    quietly((), || {
        // SAFETY: the caller's promise.
        let name = unsafe { registered_name(name) };
        if let (Some(binary), Some(name)) = (binary(handle), name) {
            let variable = Variable {
                binary,
                name,
                is_managed: false,
                size,
            };
            lock(registry())
                .variables
                .insert(host as usize, Arc::new(variable));
        }
    });
}

/// Registers a managed variable by the place where the program keeps its address.
///
/// # Safety
/// `name` is null or a C string.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __cudaRegisterManagedVar(
    handle: *mut *mut c_void,
    host: *mut *mut c_void,
    _device: *mut c_char,
    name: *const c_char,
    _is_external: c_int,
    size: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    quietly((), || {
        // SAFETY: the caller's promise.
        let name = unsafe { registered_name(name) };
        let (Some(binary), Some(name)) = (binary(handle), name) else {
            return;
        };
        lock(&binary.managed).push((host as usize, name.clone()));
        let variable = Variable {
            binary,
            name,
            is_managed: true,
            size,
        };
        lock(registry())
            .variables
            .insert(host as usize, Arc::new(variable));
    });
}

/// Loads a fat binary for its managed variables; returns 1 if it is ready.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaInitModule(handle: *mut *mut c_void) -> c_char {
    quietly(0, || {
        let ready = binary(handle).map(|binary| init_managed(&binary));
        c_char::from(matches!(ready, Some(Ok(()))))
    })
}

/// Registers a texture reference, which CUDA 12 has removed: said once, and ignored.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterTexture(
    _handle: *mut *mut c_void,
    _host: *const c_void,
    _device: *mut *const c_void,
    _name: *const c_char,
    _dimension: c_int,
    _is_normalized: c_int,
    _is_external: c_int,
) {
    quietly((), || {
        call::refuse("__cudaRegisterTexture (texture references)").unwrap_or_default()
    });
}

/// Registers a surface reference, which CUDA 12 has removed: said once, and ignored.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterSurface(
    _handle: *mut *mut c_void,
    _host: *const c_void,
    _device: *mut *const c_void,
    _name: *const c_char,
    _dimension: c_int,
    _is_external: c_int,
) {
    quietly((), || {
        call::refuse("__cudaRegisterSurface (surface references)").unwrap_or_default()
    });
}
