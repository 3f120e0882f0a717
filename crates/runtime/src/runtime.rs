//! Runtime of one device: the process's pool of the device, and its sessions.
//!
//! Invariant: a runtime allocates through functions interposed before the driver: those of the
//! first library in this process, or its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, Cuda, Device, Select, destroy_deferred};
use fercuda_dispatcher::blocks_teardown;
use fercuda_regime::interface::Interface;

use crate::callbacks::MemoryAllocator;
use crate::error::{EndReason, Error, Holder, Result};
use crate::lock::lock;
use crate::session::{Session, SessionConfig, SessionCore, tear_down_all};
use crate::shared_device::SharedDevice;

/// Device of a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// A GPU, the software device, or the choice of `FERCUDA_DEVICE`.
    pub select: Option<Select>,
    /// The device's ordinal.
    pub device: u32,
}

/// Memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free bytes, as reported by the driver.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes in deferred frees: this process has freed them, but the driver would wait for a
    /// resident kernel ([`Session::dispatcher`]) or refuse because of a capture. They are freed
    /// when a thread allocates or waits while there is none.
    pub parked_bytes: u64,
}

/// Result of a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reboot {
    /// Epoch of the device's memory: the number of reboots, including this one.
    pub epoch: u64,
    /// Number of sessions that were ended.
    pub sessions: usize,
    /// Bytes that were returned to the driver.
    pub returned_bytes: u64,
    /// Whether the context had failed, and was reset.
    pub was_reset: bool,
    /// Other tenants that hold memory of the device.
    pub others: Vec<Holder>,
}

/// A runtime of one device. See the module. Clones share one runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    inner: Arc<RuntimeInner>,
}

/// A device and its sessions, shared by all handles.
#[derive(Debug)]
struct RuntimeInner {
    device: Arc<SharedDevice>,
    epoch: AtomicU64,
    sessions: Mutex<SessionList>,
}

#[derive(Debug, Default)]
struct SessionList {
    /// In the order in which they were opened.
    all: BTreeMap<u64, Weak<SessionCore>>,
    /// Names of all sessions ever opened.
    names: BTreeSet<String>,
    next: u64,
    phase: RuntimePhase,
}

#[derive(Clone, Debug, Default)]
enum RuntimePhase {
    #[default]
    Running,
    /// One thread is rebooting. No session can be opened, and no other thread can reboot.
    Rebooting,
    /// The driver did not recover from a reset; the error.
    Lost(Error),
}

impl RuntimePhase {
    fn check(&self) -> Result<()> {
        match self {
            Self::Running => Ok(()),
            Self::Rebooting => Err(Error::Rebooting),
            Self::Lost(error) => Err(error.clone()),
        }
    }
}

/// Guard of a reboot; sets the next phase when dropped.
struct RebootGuard<'m> {
    inner: &'m RuntimeInner,
    then: RuntimePhase,
}

impl<'m> RebootGuard<'m> {
    fn begin(inner: &'m RuntimeInner) -> Result<Self> {
        let mut sessions = lock(&inner.sessions);
        sessions.phase.check()?;
        sessions.phase = RuntimePhase::Rebooting;
        let then = RuntimePhase::Running;
        Ok(Self { inner, then })
    }
}

impl Drop for RebootGuard<'_> {
    fn drop(&mut self) {
        lock(&self.inner.sessions).phase = std::mem::take(&mut self.then);
    }
}

impl Runtime {
    /// Opens a runtime for a device. The first one of a process interposes the pool before the
    /// driver, unless that is done.
    ///
    /// # Errors
    /// [`Error::Cuda`] if there is no matching device; [`Error::OtherDriver`].
    pub fn open(config: RuntimeConfig) -> Result<Self> {
        let select = match config.select {
            Some(select) => select,
            None => Select::from_env()?,
        };
        let device = SharedDevice::open(Cuda::select(select)?, config.device)?;
        let inner = RuntimeInner {
            device: Arc::new(device),
            epoch: AtomicU64::new(0),
            sessions: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The runtime's device.
    pub fn device(&self) -> Device {
        self.inner.device.device()
    }

    /// The runtime's context; a reboot that resets it replaces it.
    pub fn context(&self) -> Context {
        self.inner.device.context()
    }

    /// Whether memory is governed: a pool and a ledger exist.
    pub fn is_governed(&self) -> bool {
        self.inner.device.interposer().is_some()
    }

    /// The driver's figures of the device's memory, and the bytes in deferred frees.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn memory(&self) -> Result<MemoryInfo> {
        let context = self.context();
        let (free_bytes, total_bytes) = context.memory_info()?;
        Ok(MemoryInfo {
            free_bytes,
            total_bytes,
            parked_bytes: context.deferred_free_bytes(),
        })
    }

    /// Interface of the functions interposed before the driver; `None` where nothing is governed.
    pub(crate) fn interposer(&self) -> Option<&'static Interface> {
        self.inner.device.interposer()
    }

    /// Tenants of this process that hold memory of the device.
    pub fn holders(&self) -> Vec<Holder> {
        self.inner.device.holders()
    }

    /// Returns unused memory of the pool to the driver; returns the number of bytes. Waits up to a
    /// second for memory that was freed behind work of the device.
    pub fn trim(&self) -> u64 {
        self.inner.device.trim()
    }

    /// Number of reboots.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch.load(Relaxed)
    }

    /// Opens a session; its name is its tenant in the ledger.
    ///
    /// # Errors
    /// [`Error::Name`] while another session has that name, or a library of that name holds memory;
    /// [`Error::Rebooting`]; [`Error::Lost`]; [`Error::Cuda`].
    pub fn session(&self, name: &str, config: SessionConfig) -> Result<Session> {
        self.open_session(name, config, None)
    }

    /// Opens a session with an allocator for its buffers of [`Regime::Callbacks`](crate::Regime).
    /// The allocator is dropped once the session and all memory from it are gone.
    ///
    /// # Errors
    /// As for [`Runtime::session`].
    pub fn session_with_allocator(
        &self,
        name: &str,
        config: SessionConfig,
        allocator: Arc<dyn MemoryAllocator>,
    ) -> Result<Session> {
        self.open_session(name, config, Some(allocator))
    }

    fn open_session(
        &self,
        name: &str,
        config: SessionConfig,
        allocator: Option<Arc<dyn MemoryAllocator>>,
    ) -> Result<Session> {
        let is_held = self
            .inner
            .device
            .holders()
            .iter()
            .any(|it| it.tenant == name);
        // The last reference to user code must not be dropped under the lock.
        let _kept = allocator.clone();
        let live: Vec<Arc<SessionCore>>;
        let mut sessions = lock(&self.inner.sessions);
        sessions.phase.check()?;
        sessions.all.retain(|_, session| session.strong_count() > 0);
        live = sessions.all.values().filter_map(Weak::upgrade).collect();
        let is_open = live.iter().any(|it| it.name() == name && it.is_open());
        if is_open || (is_held && !sessions.names.contains(name)) {
            return Err(Error::Name {
                name: name.to_owned(),
            });
        }
        let core = SessionCore::open(&self.inner.device, next_number(), name, config, allocator)?;
        let number = sessions.next;
        sessions.next += 1;
        sessions.names.insert(name.to_owned());
        sessions.all.insert(number, Arc::downgrade(&core));
        drop(sessions);
        Ok(Session::of(core))
    }

    /// Names of the open sessions.
    pub fn sessions(&self) -> Vec<String> {
        let left = self.inner.sessions_left();
        let open = left.iter().filter(|it| it.is_open());
        open.map(|it| it.name().to_owned()).collect()
    }

    /// Ends all sessions, the last one first, returns all memory to the driver, and begins a new
    /// epoch: the ledger's counters continue in it, and earlier handles are stale.
    ///
    /// # Errors
    /// [`Error::Failed`] if the context has failed, as by an illegal address: the sessions have
    /// ended then, and [`Runtime::reset`] helps. [`Error::Dispatch`] if a session's dispatcher is
    /// lost, and [`Error::Resident`] if a resident kernel runs that belongs to no session: the
    /// sessions have ended then as well, and no memory was returned. [`Error::Rebooting`] while
    /// another thread reboots; [`Error::Within`] in a job, in a host callback, and in a deleter of
    /// lent memory.
    pub fn reboot(&self) -> Result<Reboot> {
        self.reboot_or_reset(None::<fn(&Context)>)
    }

    /// As [`Runtime::reboot`]; and if the context has failed it is reset, unless other tenants hold
    /// memory of the device.
    ///
    /// # Errors
    /// [`Error::Occupied`], with the tenants: the sessions have ended then, and the context is
    /// unchanged. [`Error::Lost`] if the driver does not recover, as NVIDIA's does not: the process
    /// has to exit.
    ///
    /// # Safety
    /// Other resources of the device's primary context than memory, such as streams, modules and
    /// handles of libraries, are not used any more: they were destroyed with the context, and a
    /// driver may dereference what is left of them. Nor is any other thread in a call for a session
    /// of this device or for what sessions have created, or enters one before this returns.
    #[expect(unsafe_code, reason = "handles of other libraries are unknown here")]
    pub unsafe fn reset(&self) -> Result<Reboot> {
        self.reboot_or_reset(Some(|_: &Context| ()))
    }

    /// As [`Runtime::reset`], for a caller with threads that may be in a call for the context:
    /// before the context is reset, once sessions have ended, `quiet` is called, and keeps these
    /// threads away until the value that it returns is dropped.
    ///
    /// # Errors
    /// As for [`Runtime::reset`].
    ///
    /// # Safety
    /// As there.
    #[expect(unsafe_code, reason = "as for `reset`")]
    pub unsafe fn reset_with<G>(&self, quiet: impl FnOnce(&Context) -> G) -> Result<Reboot> {
        self.reboot_or_reset(Some(quiet))
    }

    #[expect(unsafe_code, reason = "as for `reset`, its only caller that resets")]
    fn reboot_or_reset<G>(&self, quiet: Option<impl FnOnce(&Context) -> G>) -> Result<Reboot> {
        let inner = &self.inner;
        let shared = &inner.device;
        let left = || inner.sessions_left();
        if blocks_teardown() || left().iter().any(|it| it.blocks_teardown()) {
            // A session's teardown would wait for this thread, or this thread for itself.
            return Err(Error::Within { doing: "reboot" });
        }
        let mut guard = RebootGuard::begin(inner)?;
        let next = inner.epoch.load(Relaxed) + 1;
        let ended = tear_down_all(&left(), EndReason::Rebooted(next));
        // Also sessions without any handle are gone now.
        shared.wait_for_teardowns();
        let is_sticky = |error: &Error| error.is_sticky();
        let mut failed = ended.iter().flat_map(|it| it.as_ref().err()).any(is_sticky);
        let before = shared.context();
        if !failed {
            wait_for_stopping_kernels(&before);
        }
        if !failed && before.has_resident_kernel() {
            // Waiting for the device would mean waiting for that kernel, unless the context failed.
            let asked = before.legacy_stream().is_idle().map_err(Error::from);
            failed = asked.is_err_and(|error| error.is_sticky());
            if !failed {
                let device = shared.device().ordinal();
                let mut errors = ended.into_iter().filter_map(Result::err);
                let lost = errors.find(|error| matches!(error, Error::Dispatch(_)));
                return Err(lost.unwrap_or(Error::Resident { device }));
            }
        }
        failed |= before.synchronize().is_err_and(|error| error.is_sticky());
        if failed && quiet.is_none() {
            return Err(Error::Failed {
                device: shared.device().ordinal(),
            });
        }
        shared.standard_kernels.clear();
        // Memory that sessions could not free in a failed context is destroyed with it.
        let own = lock(&inner.sessions).names.clone();
        let mut others = shared.holders();
        others.retain(|it| !own.contains(&it.tenant));
        if failed && !others.is_empty() {
            return Err(Error::Occupied {
                device: shared.device().ordinal(),
                holders: others,
            });
        }
        let mut returned_bytes = shared.trim();
        if failed {
            let _quiet = quiet.map(|quiet| quiet(&before));
            // SAFETY: the promise of `reset`'s caller; sessions have ended.
            let after = unsafe { before.reset() };
            let device = shared.device().ordinal();
            let after = after.map_err(|error| Error::Lost {
                device,
                source: Arc::new(error),
            });
            match after {
                Ok(after) => shared.set_context(after),
                Err(error) => {
                    guard.then = RuntimePhase::Lost(error.clone());
                    return Err(error);
                }
            }
            // Deferred frees complete in the new context.
            shared.context().synchronize()?;
            returned_bytes += shared.trim();
        }
        let epoch = shared
            .interposer()
            .map(|it| it.next_epoch(shared.device().ordinal()));
        inner.epoch.store(next, Relaxed);
        Ok(Reboot {
            epoch: epoch.unwrap_or(next),
            sessions: ended.len(),
            returned_bytes,
            was_reset: failed,
            others,
        })
    }
}

/// Waits for resident kernels that were requested to stop, as long as they may take. No other
/// thread waits for some of these: their resources are released by a later allocation or wait;
/// others are waited for by a drop.
fn wait_for_stopping_kernels(context: &Context) {
    loop {
        destroy_deferred();
        match context.resident_kernels_stop_by() {
            Some(by) if Instant::now() < by => std::thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}

/// Number for a new handle table. It wraps after 2^16 sessions; a handle of a session that ended so
/// long ago may then name another value.
fn next_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Relaxed)
}

impl RuntimeInner {
    /// The sessions that have not ended.
    fn sessions_left(&self) -> Vec<Arc<SessionCore>> {
        let sessions = lock(&self.sessions);
        let mut live: Vec<Arc<SessionCore>> =
            sessions.all.values().filter_map(Weak::upgrade).collect();
        drop(sessions);
        live.retain(|session| !session.has_ended());
        live
    }
}
