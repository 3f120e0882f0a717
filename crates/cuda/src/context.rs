//! Primary contexts, usable from any thread.
//!
//! CUDA keeps a current context for each thread. Here a context is a value: every operation makes
//! its own context current first, which costs one read of the driver's thread-local variable when
//! it already is.
//!
//! Invariant: every object made in a context holds it, so it is released after the last of them.
//! Elsewhere: destroying objects dropped in a host callback (`deferred`),
//! resident kernels (`resident`), default streams (`stream`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUcontext, CUdeviceptr, CUlimit, CUresult};

use crate::callback::{self, PanicMessage};
use crate::capture_mode::{self, RelaxedCaptureMode, check_blocking_captures};
use crate::deferred::{self, DestroyOutcome, NoResidentKernels};
use crate::device::Device;
use crate::error::{CallResult, Error, Result, call, check, is_refusal};
use crate::ids::next_id;
use crate::lock::lock;

/// The primary context of a device, shared with every library in the process
/// that uses the CUDA runtime. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<ContextInner>,
}

#[derive(Debug)]
struct ContextInner {
    device: Device,
    raw: CUcontext,
    driver: &'static Driver,
    /// Set once it was reset: nothing made in it exists any more.
    reset: AtomicBool,
    orphans: Mutex<OrphanedMemory>,
    /// What was made in it and is marked on a reset.
    observers: Mutex<Vec<Weak<dyn ResetObserver>>>,
    legacy_id: u64,
    legacy_panicked: PanicMessage,
    per_thread_id: u64,
}

/// Something made in a context that must know when that is reset.
pub(crate) trait ResetObserver: Send + Sync {
    /// Notes that the context was reset.
    fn mark_context_gone(&self);
}

/// Memory of the device's pools, which belongs to no context, that could not be freed in a context
/// that has failed; and the context in which it can be freed since that one was reset.
#[derive(Debug, Default)]
struct OrphanedMemory {
    addresses: Vec<CUdeviceptr>,
    after: Option<Context>,
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if *self.reset.get_mut() {
            return;
        }
        let (driver, device) = (self.driver, self.device.raw());
        deferred::destroy_or_defer(move || {
            // SAFETY: balances the retain in `primary`, once: this is repeated only if the driver
            // refused.
            destroy_outcome(&unsafe { driver.cuDevicePrimaryCtxRelease_v2(device) })
        });
    }
}

/// The outcome of a driver call that destroys something. An error other than a refusal is that of
/// earlier work, which is reported to the threads that wait for it, or of a lost context, in which
/// nothing is left to destroy.
fn destroy_outcome(answer: &CallResult) -> DestroyOutcome {
    match answer {
        Ok(code) if is_refusal(*code) => DestroyOutcome::Retry,
        _ => DestroyOutcome::Done,
    }
}

impl PartialEq for Context {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // The context made after a reset may have the handle of the one before.
        let is_there = || !self.is_reset() && !other.is_reset();
        Arc::ptr_eq(&self.inner, &other.inner)
            || (self.inner.raw == other.inner.raw
                && self.device().cuda() == other.device().cuda()
                && is_there())
    }
}

impl Eq for Context {}

impl Context {
    /// The primary context of `device`.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device is lost, or in exclusive use elsewhere;
    /// [`Error::InCallback`].
    pub fn primary(device: Device) -> Result<Self> {
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        let driver = device.cuda().driver();
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call; `ContextInner` releases what is retained.
        unsafe {
            call!(
                driver,
                cuDevicePrimaryCtxRetain(&mut raw, device.raw()),
                "open a context on {device}"
            )?;
        }
        Ok(Self {
            inner: Arc::new(ContextInner {
                device,
                raw,
                driver,
                reset: AtomicBool::new(false),
                orphans: Mutex::default(),
                observers: Mutex::default(),
                legacy_id: next_id(),
                legacy_panicked: PanicMessage::default(),
                per_thread_id: next_id(),
            }),
        })
    }

    /// Its device.
    pub fn device(&self) -> Device {
        self.inner.device
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// The driver's table, regardless of the current context.
    #[inline]
    pub(crate) fn driver(&self) -> &'static Driver {
        self.inner.driver
    }

    /// Registers something made in it, to be marked on a reset.
    pub(crate) fn observe_reset(&self, observer: Weak<dyn ResetObserver>) {
        let mut observers = lock(&self.inner.observers);
        if observers.len() == observers.capacity() {
            observers.retain(|it| it.strong_count() > 0);
        }
        observers.push(observer);
    }

    /// The identifier of its legacy stream, and the message of that one's callbacks.
    pub(crate) fn legacy_stream_parts(&self) -> (u64, PanicMessage) {
        (self.inner.legacy_id, self.inner.legacy_panicked.clone())
    }

    /// The identifier by which each thread finds its own default stream.
    pub(crate) fn per_thread_id(&self) -> u64 {
        self.inner.per_thread_id
    }

    /// The driver's table, with this context current in the calling thread.
    ///
    /// # Errors
    /// [`Error::InCallback`] inside a host callback.
    #[inline]
    pub fn bind(&self) -> Result<&'static Driver> {
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        let driver = self.inner.driver;
        if self.is_reset() {
            return Err(Error::ContextReset);
        }
        let mut current = CUcontext::NULL;
        // SAFETY: `current` outlives the call.
        let answer = unsafe { driver.cuCtxGetCurrent(&mut current) };
        check(answer, "cuCtxGetCurrent", || {
            "ask for the current context".to_owned()
        })?;
        if current != self.inner.raw {
            self.switch(driver)?;
        }
        Ok(driver)
    }

    /// As [`Context::bind`], to destroy something: `None` where the context is gone, and with it
    /// all that was made in it. A context that the driver refuses to query, as in another library's
    /// host callback, exists, and the call is to be retried.
    pub(crate) fn bind_to_destroy(
        &self,
    ) -> std::result::Result<Option<&'static Driver>, DestroyOutcome> {
        match self.bind() {
            Ok(driver) => Ok(Some(driver)),
            Err(error) if error.is_refusal() => Err(DestroyOutcome::Retry),
            Err(_) => Ok(None),
        }
    }

    /// Destroys, by `call`, an object of this context that is destroyed with it.
    pub(crate) fn destroy(
        &self,
        call: impl FnOnce(&'static Driver) -> CallResult,
    ) -> DestroyOutcome {
        match self.bind_to_destroy() {
            Ok(Some(driver)) => {
                let _relaxed = RelaxedCaptureMode::enter(driver);
                destroy_outcome(&call(driver))
            }
            Ok(None) => DestroyOutcome::Done,
            Err(retry) => retry,
        }
    }

    /// The same for an object that belongs to no context, such as physical memory: it is destroyed
    /// also after a reset.
    pub(crate) fn destroy_even_after_reset(
        &self,
        call: impl FnOnce(&'static Driver) -> CallResult,
    ) -> DestroyOutcome {
        match self.is_reset() {
            true => destroy_outcome(&call(self.driver())),
            false => self.destroy(call),
        }
    }

    /// Refuses objects of another driver: their handles mean nothing to this one.
    pub(crate) fn same_driver(&self, operation: &'static str, other: &Context) -> Result<()> {
        if other.is_reset() {
            return Err(Error::ContextReset);
        }
        if std::ptr::eq(self.inner.driver, other.inner.driver) {
            return Ok(());
        }
        Err(Error::OtherContext {
            operation,
            left: other.device().to_string(),
            right: self.device().to_string(),
        })
    }

    /// Whether it was reset, so that nothing made in it exists any more.
    #[inline]
    pub(crate) fn is_reset(&self) -> bool {
        self.inner.reset.load(Ordering::Acquire)
    }

    #[cold]
    fn switch(&self, driver: &'static Driver) -> Result<()> {
        // SAFETY: the context is retained while `self` lives.
        unsafe {
            call!(
                driver,
                cuCtxSetCurrent(self.inner.raw),
                "switch to {}",
                self.inner.device
            )
        }
    }

    /// Waits for what can still be waited for in a lost context: the driver returns from each
    /// stream's wait at once, while the software device's threads may still be leaving work of
    /// others.
    pub(crate) fn wait_for_lost_context(driver: &Driver) {
        // SAFETY: takes no arguments. It returns the error that is already known.
        drop(unsafe { driver.cuCtxSynchronize() });
    }

    /// Destroys it with all that was made in it, by any library, and with the error that it may
    /// have failed with. Objects made there through this crate return [`Error::ContextReset`] from
    /// then on, and are dropped without a driver call. Returns the context that replaces it.
    ///
    /// The software device recovers from every error by this. NVIDIA's driver does not, as its
    /// reference says of sticky errors: on an H200 with driver 580 every context that the process
    /// makes after an illegal address or a trap returns that error, whatever was released, reset,
    /// unloaded or reopened before.
    ///
    /// # Errors
    /// [`Error::Driver`] with the sticky error if the process has to exit because of it;
    /// [`Error::InCallback`]; [`Error::ContextReset`] if it was reset already.
    ///
    /// # Safety
    /// No other library uses the device's primary context, and no other thread is in a call of this
    /// crate for it: other libraries' handles mean nothing afterwards, and a driver may dereference
    /// them. Other values of [`Context::primary`] are not marked as reset.
    pub unsafe fn reset(&self) -> Result<Self> {
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        if self.is_reset() {
            return Err(Error::ContextReset);
        }
        let device = self.device();
        // SAFETY: takes no pointers; the caller vouches for other libraries.
        unsafe {
            call!(
                self.inner.driver,
                cuDevicePrimaryCtxReset_v2(device.raw()),
                "reset {device}"
            )?;
        }
        self.inner.reset.store(true, Ordering::Release);
        let observers = std::mem::take(&mut *lock(&self.inner.observers));
        observers
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|it| it.mark_context_gone());
        deferred::end_resident_kernels_in(self.key());
        let after = Self::primary(device)?;
        let addresses = {
            let mut orphans = lock(&self.inner.orphans);
            orphans.after = Some(after.clone());
            std::mem::take(&mut orphans.addresses)
        };
        for address in addresses {
            let after = after.clone();
            deferred::destroy_or_defer(move || after.free_orphan(address));
        }
        Ok(after)
    }

    /// Frees memory of the device's pools that no work uses, in whichever context that is possible
    /// by now; if the context has failed, when that is reset.
    pub(crate) fn free_orphan(&self, address: CUdeviceptr) -> DestroyOutcome {
        // SAFETY: memory of a pool, freed once: its owner has left that to this function, and no
        // work uses it.
        let free = |driver: &Driver| unsafe { driver.cuMemFree_v2(address) };
        let mut context = self.clone();
        loop {
            if let Some(after) = context.successor() {
                context = after;
                continue;
            }
            let none_resident = match NoResidentKernels::acquire() {
                Ok(none_resident) => none_resident,
                Err(retry) => return retry,
            };
            let answer = match context.bind_to_destroy() {
                Ok(Some(driver)) => {
                    let _relaxed = RelaxedCaptureMode::enter(driver);
                    free(driver).ok()
                }
                Ok(None) => None,
                Err(retry) => return retry,
            };
            drop(none_resident);
            match answer {
                Some(CUresult::CUDA_SUCCESS) => return DestroyOutcome::Done,
                Some(code) if is_refusal(code) => return DestroyOutcome::Retry,
                _ => {}
            }
            let mut orphans = lock(&context.inner.orphans);
            // The context may have been reset meanwhile.
            if orphans.after.is_none() {
                orphans.addresses.push(address);
                return DestroyOutcome::Done;
            }
        }
    }

    /// The context that replaced it when it was reset.
    fn successor(&self) -> Option<Self> {
        lock(&self.inner.orphans).after.clone()
    }

    /// Waits for all work in this context, in every stream.
    ///
    /// # Errors
    /// The first error of that work; a sticky one is returned by every later call.
    pub fn synchronize(&self) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: takes no arguments; this context is current.
        unsafe { call!(driver, cuCtxSynchronize(), "wait for {}", self.inner.device)? };
        deferred::drain();
        Ok(())
    }

    /// As [`Context::synchronize`], but refuses while a capture is in progress that the wait would
    /// break, as far as this crate knows: its own captures, and those of streams that wait for the
    /// legacy stream. For background threads. Runs no deferred destruction.
    ///
    /// # Errors
    /// As there; also [`Error::Capturing`].
    pub fn try_synchronize(&self) -> Result<()> {
        if capture_mode::is_capture_running() {
            return Err(Error::Capturing {
                operation: "wait for a device",
                advice: "wait until it ends",
            });
        }
        let driver = self.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        check_blocking_captures(driver)?;
        // SAFETY: takes no arguments; this context is current.
        unsafe { call!(driver, cuCtxSynchronize(), "wait for {}", self.inner.device) }
    }

    /// Identifies a primary context: the driver's handle as a number.
    pub(crate) fn key(&self) -> usize {
        self.inner.raw.0.addr()
    }

    /// Free and total memory of the device in bytes, as the driver counts it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let driver = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call.
        unsafe {
            call!(
                driver,
                cuMemGetInfo_v2(&mut free, &mut total),
                "ask for free memory"
            )?;
        }
        Ok((free as u64, total as u64))
    }

    /// Lets kernels and copies of this context access the memory of `other`. Doing so twice is no
    /// error.
    ///
    /// # Errors
    /// [`Error::Driver`] if the devices cannot access each other.
    pub fn enable_peer_access(&self, other: &Context) -> Result<()> {
        self.same_driver("enable peer access", other)?;
        let driver = self.bind()?;
        // SAFETY: `other` is a live context of this driver.
        let answer = unsafe { driver.cuCtxEnablePeerAccess(other.raw(), 0) };
        if let Ok(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) = answer {
            return Ok(());
        }
        check(answer, "cuCtxEnablePeerAccess", || {
            format!("let {} access {}", self.device(), other.device())
        })
    }

    /// Revokes [`Context::enable_peer_access`].
    ///
    /// # Errors
    /// [`Error::Driver`] if it was not enabled.
    pub fn disable_peer_access(&self, other: &Context) -> Result<()> {
        self.same_driver("disable peer access", other)?;
        let driver = self.bind()?;
        // SAFETY: `other` is a live context of this driver.
        unsafe {
            call!(
                driver,
                cuCtxDisablePeerAccess(other.raw()),
                "stop {} from accessing {}",
                self.device(),
                other.device()
            )
        }
    }

    /// The lowest and the highest priority a stream can have; a smaller
    /// number is the higher priority.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn stream_priorities(&self) -> Result<(i32, i32)> {
        let driver = self.bind()?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: both outlive the call.
        unsafe {
            call!(
                driver,
                cuCtxGetStreamPriorityRange(&mut lowest, &mut highest),
                "ask for stream priorities"
            )?;
        }
        Ok((lowest, highest))
    }

    /// One of the context's limits, such as the size of the printf buffer.
    ///
    /// # Errors
    /// [`Error::Driver`] for a limit the device does not have.
    pub fn limit(&self, limit: CUlimit) -> Result<u64> {
        let driver = self.bind()?;
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        unsafe { call!(driver, cuCtxGetLimit(&mut value, limit), "ask {limit:?}")? };
        Ok(value as u64)
    }

    /// Sets one of the context's limits.
    ///
    /// # Errors
    /// [`Error::Driver`] for a limit the device does not have.
    pub fn set_limit(&self, limit: CUlimit, value: u64) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: takes no pointers.
        unsafe {
            call!(
                driver,
                cuCtxSetLimit(limit, value as usize),
                "set {limit:?} to {value}"
            )
        }
    }
}
