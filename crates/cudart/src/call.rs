//! Frame of every runtime function: no unwinding, last error, driver, current context.
//!
//! The driver is opened and initialised by the first call that needs it. A thread without a
//! current context gets its device's primary one, which is retained once a process; a context
//! that the program has made current by the driver API is left alone.
//!
//! Invariant: after `context` has returned, a context is current in the calling thread, and it is
//! alive unless the program destroyed it by the driver API.
//! Elsewhere: which device a thread has set (`device`), error codes (`error`).

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda_sys::types::{CUcontext, CUdevice, CUresult, CUstream};
use fercuda_cuda_sys::{Driver, Missing};

use crate::error::{self, CudaResult, cudaError_t};

/// Calls a driver function; its code becomes the runtime's. In an `unsafe` place.
macro_rules! drv {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::call::check($crate::call::driver()?.$function($($argument),*))
    };
}

/// The same for a function with a per-thread twin, which the caller's default stream selects.
macro_rules! drv2 {
    ($function:ident $twin:ident($($argument:expr),* $(,)?)) => {
        match $crate::call::is_per_thread() {
            false => drv!($function($($argument),*)),
            true => drv!($twin($($argument),*)),
        }
    };
}

/// Defines exported runtime functions: a name, its per-thread twin in brackets if it has one,
/// arguments, and a body that is a `CudaResult`.
macro_rules! runtime_fns {
    ($(fn $name:ident [$($twin:ident)?] $args:tt $body:block)*) => {
        $(
            runtime_fns!(@one $name false $args $body);
            $(runtime_fns!(@one $twin true $args $body);)?
        )*
    };
    (@one $name:ident $per_thread:literal ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the runtime's own")]
        // SAFETY: the library stands for the runtime's own, which has this function; no other
        // library of a process defines it.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::error::cudaError_t {
            $crate::call::guard(stringify!($name), $per_thread, || -> CudaResult {
                // SAFETY: the caller promises what NVIDIA's reference requires of its arguments;
                // outputs are compared with null, and handles go to the driver unread.
                #[allow(unused_unsafe, reason = "some bodies need nothing unsafe")]
                unsafe { $body }
            })
        }
    };
}

thread_local! {
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    static READY: Cell<Option<u64>> = const { Cell::new(None) };
    static DEVICE: Cell<Option<CUdevice>> = const { Cell::new(None) };
}

/// Whether the function being called reads a null stream as the thread's own.
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD.try_with(Cell::get).unwrap_or(false)
}

/// Runs a function's body: a panic becomes an error, and an error the thread's last one.
pub(crate) fn guard(
    name: &'static str,
    per_thread: bool,
    body: impl FnOnce() -> CudaResult,
) -> cudaError_t {
    let before = PER_THREAD.try_with(|it| it.replace(per_thread));
    let done = catch_unwind(AssertUnwindSafe(body));
    PER_THREAD
        .try_with(|it| it.set(before.unwrap_or(false)))
        .ok();
    let code = match done {
        Ok(Ok(())) => cudaError_t::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            say(&format!("internal error in {name}; please report it"));
            cudaError_t::UNKNOWN
        }
    };
    error::note(code);
    code
}

/// Writes a line on standard error, unless `FERCUDA_QUIET` is set.
pub(crate) fn say(text: &str) {
    static QUIET: OnceLock<bool> = OnceLock::new();
    let is_quiet =
        QUIET.get_or_init(|| std::env::var_os("FERCUDA_QUIET").is_some_and(|it| it != "0"));
    if !is_quiet {
        use std::io::Write as _;
        // A closed standard error is the program's choice.
        writeln!(std::io::stderr(), "feRcuda runtime: {text}").ok();
    }
}

/// Refuses a function or an option: says so once for each name.
pub(crate) fn refuse(what: &str) -> CudaResult {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if lock(&SAID).insert(what.to_owned()) {
        say(&format!("{what} is not supported"));
    }
    Err(cudaError_t::NOT_SUPPORTED)
}

/// Locks; a panic elsewhere leaves these tables whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A driver's result as the runtime's.
pub(crate) fn check(result: Result<CUresult, Missing>) -> CudaResult {
    match result {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        Ok(code) => Err(code.into()),
        Err(missing) => {
            refuse(missing.symbol())?;
            Err(cudaError_t::NEWER_DRIVER)
        }
    }
}

/// The driver's table, opened and initialised.
///
/// # Errors
/// Without a driver: insufficient driver; the driver's own code if it cannot be initialised.
pub(crate) fn driver() -> CudaResult<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver, cudaError_t>> = OnceLock::new();
    let opened = DRIVER.get_or_init(|| {
        let driver = Driver::open().map_err(|error| {
            say(&error.to_string());
            cudaError_t::INSUFFICIENT_DRIVER
        })?;
        // SAFETY: no requirement but the flags, which are 0.
        check(unsafe { driver.cuInit(0) })?;
        Ok(driver)
    });
    opened.as_ref().map_err(|&code| code)
}

/// The primary contexts that this library has retained, by device.
static PRIMARY: Mutex<Vec<Option<CUcontext>>> = Mutex::new(Vec::new());
/// Raised when a primary context is reset, so that each thread looks for its own again.
static RESETS: AtomicU64 = AtomicU64::new(0);

/// The device that the thread has set, 0 if none.
pub(crate) fn chosen_device() -> CUdevice {
    DEVICE.try_with(Cell::get).ok().flatten().unwrap_or(0)
}

/// The primary context of a device, retained by the first call.
pub(crate) fn primary(device: CUdevice) -> CudaResult<CUcontext> {
    let at = usize::try_from(device).map_err(|_| cudaError_t::INVALID_DEVICE)?;
    let mut all = lock(&PRIMARY);
    if let Some(Some(context)) = all.get(at) {
        return Ok(*context);
    }
    let mut context = CUcontext::NULL;
    // SAFETY: the output outlives the call; the driver checks the device.
    unsafe { drv!(cuDevicePrimaryCtxRetain(&mut context, device)) }?;
    if all.len() <= at {
        all.resize(at + 1, None);
    }
    all[at] = Some(context);
    Ok(context)
}

/// Whether this library has retained the device's primary context.
pub(crate) fn is_retained(device: CUdevice) -> bool {
    let at = usize::try_from(device).unwrap_or(usize::MAX);
    lock(&PRIMARY).get(at).copied().flatten().is_some()
}

/// Forgets a device's primary context, which is being reset; the threads that had it current get
/// a new one at their next call.
pub(crate) fn forget_primary(device: CUdevice) {
    let at = usize::try_from(device).unwrap_or(usize::MAX);
    if let Some(context) = lock(&PRIMARY).get_mut(at) {
        *context = None;
    }
    RESETS.fetch_add(1, Ordering::Release);
}

/// Makes the device's primary context current in this thread.
pub(crate) fn set_device(device: CUdevice) -> CudaResult {
    let context = primary(device)?;
    // SAFETY: a handle that the driver gave.
    unsafe { drv!(cuCtxSetCurrent(context)) }?;
    DEVICE.try_with(|it| it.set(Some(device))).ok();
    READY
        .try_with(|it| it.set(Some(RESETS.load(Ordering::Acquire))))
        .ok();
    Ok(())
}

/// The context that is current in this thread; null if there is none.
pub(crate) fn current() -> CudaResult<CUcontext> {
    let mut context = CUcontext::NULL;
    // SAFETY: the output outlives the call.
    unsafe { drv!(cuCtxGetCurrent(&mut context)) }?;
    Ok(context)
}

/// The context that is current in this thread, made so if there is none.
pub(crate) fn context() -> CudaResult<CUcontext> {
    let now = current()?;
    let resets = RESETS.load(Ordering::Acquire);
    if !now.is_null() && (resets == 0 || READY.try_with(Cell::get) == Ok(Some(resets))) {
        return Ok(now);
    }
    // After a reset a primary context keeps its handle, and has to be retained anew.
    let device = match now.is_null() {
        true => chosen_device(),
        false => match current_device() {
            Ok(device) => device,
            Err(cudaError_t::CONTEXT_DESTROYED | cudaError_t::DEVICE_UNINITIALIZED) => {
                chosen_device()
            }
            Err(code) => return Err(code),
        },
    };
    let context = primary(device)?;
    if now.is_null() || is_dead(now) {
        // SAFETY: a handle that the driver gave.
        unsafe { drv!(cuCtxSetCurrent(context)) }?;
    }
    READY.try_with(|it| it.set(Some(resets))).ok();
    current()
}

fn is_dead(context: CUcontext) -> bool {
    let mut version = 0;
    // SAFETY: the driver looks the handle up; the output outlives the call.
    let alive =
        driver().and_then(|it| check(unsafe { it.cuCtxGetApiVersion(context, &mut version) }));
    alive.is_err()
}

/// The current context's device.
pub(crate) fn current_device() -> CudaResult<CUdevice> {
    let mut device = 0;
    // SAFETY: the output outlives the call.
    unsafe { drv!(cuCtxGetDevice(&mut device)) }?;
    Ok(device)
}

/// The device of the thread's context, which is made current if there is none.
pub(crate) fn device() -> CudaResult<CUdevice> {
    context()?;
    current_device()
}

/// The stream that a handle means in the function being called.
pub(crate) fn stream(handle: CUstream) -> CUstream {
    match handle.is_null() && is_per_thread() {
        true => fercuda_cuda_sys::types::CU_STREAM_PER_THREAD,
        false => handle,
    }
}

/// Writes a result through a pointer of the program's.
///
/// # Safety
/// `out` is null or may be written.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> CudaResult {
    if out.is_null() {
        return Err(cudaError_t::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// The same where the program may pass null.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_if<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, and the caller's promise.
        unsafe { out.write(value) };
    }
}

/// Reads a structure of the program's.
///
/// # Safety
/// `at` is null or points to a value for the duration of the call.
pub(crate) unsafe fn get<T: Copy>(at: *const T) -> CudaResult<T> {
    // SAFETY: the caller's promise; null is an error.
    let value = unsafe { at.as_ref() };
    value.copied().ok_or(cudaError_t::INVALID_VALUE)
}

/// Refuses a null output.
pub(crate) fn wanted<T>(out: *const T) -> CudaResult {
    match out.is_null() {
        true => Err(cudaError_t::INVALID_VALUE),
        false => Ok(()),
    }
}

/// A pointer as the driver's address.
pub(crate) fn address(pointer: *const c_void) -> u64 {
    pointer as usize as u64
}

/// An address of the driver's as a pointer.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}

/// A number of the API's that the driver wants without a sign.
pub(crate) fn unsigned(value: c_int) -> CudaResult<u32> {
    u32::try_from(value).map_err(|_| cudaError_t::INVALID_VALUE)
}
