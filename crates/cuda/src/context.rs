//! Primary contexts, usable from any thread.
//!
//! CUDA keeps a current context for each thread. Here a context is a value:
//! every operation makes its own context current first, which costs one look
//! at the driver's thread-local variable when it already is.
//!
//! Invariant: whatever is made in a context holds it, so it is released after
//! the last of them. Elsewhere: destroying things from inside a host callback
//! (`callback`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use fercuda_cuda_sys::types::{CUcontext, CUdeviceptr, CUlimit, CUresult, CUstreamCaptureMode};
use fercuda_cuda_sys::{Driver, Missing};

use crate::callback::{self, Destroyed, NoneStays};
use crate::device::Device;
use crate::error::{Error, Result, call, check, is_refusal};
use crate::parked::{self, ParkedBytes};
use crate::stream::{self, Panicked, Stream};
use crate::uses::lock;

/// The primary context of a device, shared with every library in the process
/// that uses the CUDA runtime. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    raw: CUcontext,
    driver: &'static Driver,
    /// It was reset: nothing of it is there.
    ended: AtomicBool,
    orphans: Mutex<Orphans>,
    /// Those made in it, to be told of a reset.
    streams: Mutex<Vec<Weak<stream::Core>>>,
    legacy_id: u64,
    legacy_panicked: Panicked,
    per_thread_id: u64,
}

/// Memory of the device's pools, which is no context's, that could not be given back in
/// a context that has failed; and in which it can be since that was reset.
#[derive(Debug, Default)]
struct Orphans {
    addresses: Vec<CUdeviceptr>,
    after: Option<Context>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.ended.get_mut() {
            return;
        }
        let (driver, device) = (self.driver, self.device.raw());
        callback::outside(move || {
            // SAFETY: balances the retain in `primary`, once: this is done
            // unless the driver has refused.
            destroyed(&unsafe { driver.cuDevicePrimaryCtxRelease_v2(device) })
        });
    }
}

/// What a driver function answers.
type Answer = std::result::Result<CUresult, Missing>;

/// What has come of a call that destroys something. Any error but a refusal is that of earlier
/// work, which its waiters are told, or of a lost context, of which nothing is left to destroy.
fn destroyed(answer: &Answer) -> Destroyed {
    match answer {
        Ok(code) if is_refusal(*code) => Destroyed::NotYet,
        _ => Destroyed::Yes,
    }
}

impl PartialEq for Context {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // The one that comes after a reset may have the handle of the one before.
        let is_there = || !self.has_ended() && !other.has_ended();
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
        if callback::inside() {
            return Err(Error::InCallback);
        }
        let driver = device.cuda().driver();
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call; `Inner` releases what is retained.
        unsafe {
            call!(
                driver,
                cuDevicePrimaryCtxRetain(&mut raw, device.raw()),
                "open a context on {device}"
            )?;
        }
        Ok(Self {
            inner: Arc::new(Inner {
                device,
                raw,
                driver,
                ended: AtomicBool::new(false),
                orphans: Mutex::default(),
                streams: Mutex::default(),
                legacy_id: stream::next_id(),
                legacy_panicked: Panicked::default(),
                per_thread_id: stream::next_id(),
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

    /// The driver's table, whatever context is current.
    #[inline]
    pub(crate) fn driver(&self) -> &'static Driver {
        self.inner.driver
    }

    /// Has a stream of it told when it is reset.
    pub(crate) fn note_stream(&self, core: &Arc<stream::Core>) {
        let mut streams = lock(&self.inner.streams);
        if streams.len() == streams.capacity() {
            streams.retain(|it| it.strong_count() > 0);
        }
        streams.push(Arc::downgrade(core));
    }

    /// The driver's table, with this context current in the calling thread.
    ///
    /// # Errors
    /// [`Error::InCallback`] inside a host callback.
    #[inline]
    pub fn bind(&self) -> Result<&'static Driver> {
        if callback::inside() {
            return Err(Error::InCallback);
        }
        let driver = self.inner.driver;
        if self.has_ended() {
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

    /// As [`Context::bind`], to destroy something: `None` where the context is gone, and all
    /// that was made in it. A context that the driver refuses to look at, as in another
    /// library's host callback, is there, and is to be asked again.
    pub(crate) fn bind_to_destroy(
        &self,
    ) -> std::result::Result<Option<&'static Driver>, Destroyed> {
        match self.bind() {
            Ok(driver) => Ok(Some(driver)),
            Err(error) if error.is_refusal() => Err(Destroyed::NotYet),
            Err(_) => Ok(None),
        }
    }

    /// Destroys by `call` what was made in this context and goes with it.
    pub(crate) fn destroy(&self, call: impl FnOnce(&'static Driver) -> Answer) -> Destroyed {
        match self.bind_to_destroy() {
            Ok(Some(driver)) => {
                let _relaxed = Relaxed::enter(driver);
                destroyed(&call(driver))
            }
            Ok(None) => Destroyed::Yes,
            Err(not_yet) => not_yet,
        }
    }

    /// The same of what is no context's, such as physical memory: that goes also after a
    /// reset.
    pub(crate) fn destroy_even_after_a_reset(
        &self,
        call: impl FnOnce(&'static Driver) -> Answer,
    ) -> Destroyed {
        match self.has_ended() {
            true => destroyed(&call(self.driver())),
            false => self.destroy(call),
        }
    }

    /// Refuses what belongs to another driver, whose handles mean nothing to
    /// this one.
    pub(crate) fn same_driver(&self, operation: &'static str, other: &Context) -> Result<()> {
        if other.has_ended() {
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

    /// Whether it was reset, and nothing of it is there.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.inner.ended.load(Ordering::Acquire)
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

    /// Waits for what can still be waited for in a lost context: it answers
    /// each stream at once, while work of others may be on its way out of the
    /// software device's threads.
    pub(crate) fn settle_lost(driver: &Driver) {
        // SAFETY: takes no arguments. It answers the error that is known.
        drop(unsafe { driver.cuCtxSynchronize() });
    }

    /// Destroys it with all that was made in it, by whatever library, and with the error
    /// that it may have failed with. Whatever this crate has made there answers
    /// [`Error::ContextReset`] from now on, and goes without a call of the driver. The
    /// one that comes in its place is returned.
    ///
    /// The software device recovers from every error by that. NVIDIA's driver does not, as
    /// its reference says of sticky errors: on an H200 with driver 580 every context that
    /// the process makes after an illegal address or a trap answers that error, whatever
    /// was released, reset, unloaded or opened anew before.
    ///
    /// # Errors
    /// [`Error::Driver`] with the sticky error if the process has to end for it; [`Error::InCallback`];
    /// [`Error::ContextReset`] if that was done already.
    ///
    /// # Safety
    /// Nobody else uses the device's primary context, and no other thread is in a call of
    /// this crate for it: other libraries' handles mean nothing afterwards, and a driver
    /// may follow them. Other values of [`Context::primary`] are not told.
    pub unsafe fn reset(&self) -> Result<Self> {
        if callback::inside() {
            return Err(Error::InCallback);
        }
        if self.has_ended() {
            return Err(Error::ContextReset);
        }
        let device = self.device();
        // SAFETY: takes no pointers; the caller answers for others.
        unsafe {
            call!(
                self.inner.driver,
                cuDevicePrimaryCtxReset_v2(device.raw()),
                "reset {device}"
            )?;
        }
        self.inner.ended.store(true, Ordering::Release);
        let streams = std::mem::take(&mut *lock(&self.inner.streams));
        streams
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|it| it.end());
        callback::stays_ended_in(self.place());
        let after = Self::primary(device)?;
        let addresses = {
            let mut orphans = lock(&self.inner.orphans);
            orphans.after = Some(after.clone());
            std::mem::take(&mut orphans.addresses)
        };
        for address in addresses {
            let after = after.clone();
            callback::outside(move || after.give_back_orphan(address));
        }
        Ok(after)
    }

    /// Gives back memory of the device's pools that no work uses, in whatever context
    /// that can be done by now; of one that has failed, when that is reset.
    pub(crate) fn give_back_orphan(&self, address: CUdeviceptr) -> Destroyed {
        // SAFETY: memory of a pool, which is given back once: whoever owned it has
        // left it to this, and no work uses it.
        let free = |driver: &Driver| unsafe { driver.cuMemFree_v2(address) };
        let mut context = self.clone();
        loop {
            if let Some(after) = context.after() {
                context = after;
                continue;
            }
            let none_stays = match NoneStays::now() {
                Ok(none_stays) => none_stays,
                Err(not_yet) => return not_yet,
            };
            let answer = match context.bind_to_destroy() {
                Ok(Some(driver)) => {
                    let _relaxed = Relaxed::enter(driver);
                    free(driver).ok()
                }
                Ok(None) => None,
                Err(not_yet) => return not_yet,
            };
            drop(none_stays);
            match answer {
                Some(CUresult::CUDA_SUCCESS) => return Destroyed::Yes,
                Some(code) if is_refusal(code) => return Destroyed::NotYet,
                _ => {}
            }
            let mut orphans = lock(&context.inner.orphans);
            // It may have been reset by now.
            if orphans.after.is_none() {
                orphans.addresses.push(address);
                return Destroyed::Yes;
            }
        }
    }

    /// What came in its place when it was reset.
    fn after(&self) -> Option<Self> {
        lock(&self.inner.orphans).after.clone()
    }

    /// Waits for all work in this context, of whatever stream.
    ///
    /// # Errors
    /// The first error of that work, and a sticky one ever after.
    pub fn synchronize(&self) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: takes no arguments; this context is current.
        unsafe { call!(driver, cuCtxSynchronize(), "wait for {}", self.inner.device)? };
        callback::drain();
        Ok(())
    }

    /// As [`Context::synchronize`], for a thread that nobody waits for: not while there is
    /// a capture that the question would break, as far as that is known of those of this
    /// crate's, and of streams that wait for the legacy stream. Destroys nothing.
    ///
    /// # Errors
    /// As there; also [`Error::Capturing`].
    pub fn settle(&self) -> Result<()> {
        if callback::captures_run() {
            return Err(Error::Capturing {
                operation: "wait for a device",
                advice: "wait until it ends",
            });
        }
        let driver = self.bind()?;
        let _relaxed = Relaxed::enter(driver);
        stream::ask_for_blocking_captures(driver)?;
        // SAFETY: takes no arguments; this context is current.
        unsafe { call!(driver, cuCtxSynchronize(), "wait for {}", self.inner.device) }
    }

    /// Has so many bytes of device memory counted as parked ([`Context::parked_bytes`])
    /// until what is returned is dropped: for who keeps what the program has let go of.
    pub fn park(&self, bytes: u64) -> ParkedBytes {
        ParkedBytes::count(self, bytes)
    }

    /// A kernel that will stay in this context until the host tells it to end. As long
    /// as that is not dropped, nor the context reset, what would wait for the whole device
    /// when it is destroyed (modules, page-locked memory, device memory that is not in stream
    /// order or was used in the per-thread stream of another thread) is destroyed later; so
    /// nobody waits for the kernel by dropping something.
    ///
    /// To be called before the kernel is launched: waits, a second at most, until no other
    /// thread destroys such a thing.
    pub fn stay(&self) -> Stay {
        Stay {
            number: callback::stay_begins(self.place()),
            _context: self.clone(),
        }
    }

    /// Whether a kernel stays here ([`Context::stay`]), so that
    /// [`Context::synchronize`] would wait for it.
    pub fn has_stay(&self) -> bool {
        callback::stays_in(self.place())
    }

    /// By when the kernels that stay here will have ended that were told to
    /// ([`Stay::is_told`]); none if none was.
    pub fn stays_end_by(&self) -> Option<Instant> {
        callback::told_end_by(self.place())
    }

    /// What tells a primary context from others: its driver's own handle.
    pub(crate) fn place(&self) -> usize {
        self.inner.raw.0.addr()
    }

    /// Bytes of device memory that this process has let go of and the driver does not have
    /// back: it would wait for a kernel that stays ([`Context::stay`]), or be refused because
    /// of a capture. They go back when a thread allocates or waits after that, and what
    /// somebody parks ([`Context::park`]) when he says. Until then they are not free.
    pub fn parked_bytes(&self) -> u64 {
        parked::bytes_in(self.place())
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

    /// Lets kernels and copies of this context reach the memory of `other`.
    /// Doing so twice is no error.
    ///
    /// # Errors
    /// [`Error::Driver`] if the devices cannot reach each other.
    pub fn enable_peer_access(&self, other: &Context) -> Result<()> {
        self.same_driver("give a peer access", other)?;
        let driver = self.bind()?;
        // SAFETY: `other` is a live context of this driver.
        let answer = unsafe { driver.cuCtxEnablePeerAccess(other.raw(), 0) };
        if let Ok(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) = answer {
            return Ok(());
        }
        check(answer, "cuCtxEnablePeerAccess", || {
            format!("let {} reach {}", self.device(), other.device())
        })
    }

    /// Takes back what [`Context::enable_peer_access`] gave.
    ///
    /// # Errors
    /// [`Error::Driver`] if it was not given.
    pub fn disable_peer_access(&self, other: &Context) -> Result<()> {
        self.same_driver("take a peer's access back", other)?;
        let driver = self.bind()?;
        // SAFETY: `other` is a live context of this driver.
        unsafe {
            call!(
                driver,
                cuCtxDisablePeerAccess(other.raw()),
                "stop {} from reaching {}",
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

    /// The stream that waits for, and is waited for by, every stream that was
    /// not made non-blocking. Work of the CUDA runtime's null stream is here.
    pub fn legacy_stream(&self) -> Stream {
        let panicked = self.inner.legacy_panicked.clone();
        Stream::legacy(self.clone(), self.inner.legacy_id, panicked)
    }

    /// The calling thread's own default stream; an error in any other thread.
    pub fn per_thread_stream(&self) -> Stream {
        Stream::per_thread(self.clone(), self.inner.per_thread_id)
    }
}

/// A kernel that stays; see [`Context::stay`]. Dropped when it has ended.
#[derive(Debug)]
#[must_use]
pub struct Stay {
    number: u64,
    _context: Context,
}

impl Stay {
    /// The kernel was told to end, and may take so long from now on, which the last call
    /// says: for who waits for that without being who told it ([`Context::stays_end_by`]).
    pub fn is_told(&self, longest: Duration) {
        callback::stay_is_told(self.number, longest);
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        callback::stay_ended(self.number);
    }
}

/// While it lives, calls of this thread that a global capture anywhere in the
/// process forbids are allowed, and do not end that capture.
pub(crate) struct Relaxed {
    driver: &'static Driver,
    before: Option<CUstreamCaptureMode>,
}

impl Relaxed {
    pub(crate) fn enter(driver: &'static Driver) -> Self {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` outlives the call.
        let answer = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        // A driver too old to capture has nothing to relax.
        let before = matches!(answer, Ok(CUresult::CUDA_SUCCESS)).then_some(mode);
        Self { driver, before }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` outlives the call.
            let answer = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
            // It worked on the way in and takes any mode it gave, unless the
            // process is at its end.
            drop(answer);
        }
    }
}
