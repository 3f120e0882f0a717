//! A device as the process's sessions share it: driver functions, context, and tenants.
//!
//! Invariant: memory is allocated through functions interposed before the driver: those of the
//! first library in this process, or our own. Elsewhere: the list of sessions (`runtime`).

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fercuda_cuda::{Context, Cuda, Device};
use fercuda_dispatcher::KernelCache;
use fercuda_regime::interface::{self, ActingTenant, Interface};
use fercuda_regime::{interpose, interposed_driver};

use crate::error::{Error, Holder, Result};
use crate::lent_ranges::LentRanges;
use crate::lock::lock;

/// How long returning memory to the driver waits for the device's work.
const TRIM_TIMEOUT: Duration = Duration::from_secs(1);

/// A device, and what sessions of it share.
#[derive(Debug)]
pub(crate) struct SharedDevice {
    device: Device,
    /// `None` where nothing is governed (`FERCUDA_DISABLE=1`).
    interposer: Option<&'static Interface>,
    /// Replaced by a reset.
    context: Mutex<Context>,
    /// Number of sessions in teardown.
    teardowns: Mutex<usize>,
    no_teardowns: Condvar,
    /// Memory ranges that programs' allocators have lent.
    pub(crate) lent_ranges: LentRanges,
    /// Kernels of the standard tasks, until a reboot.
    pub(crate) standard_kernels: KernelCache,
}

/// Counts a session in teardown until dropped, by whichever thread.
#[derive(Debug)]
pub(crate) struct TeardownCount(Arc<SharedDevice>);

impl TeardownCount {
    pub(crate) fn begin(device: &Arc<SharedDevice>) -> Self {
        *lock(&device.teardowns) += 1;
        Self(device.clone())
    }
}

impl Drop for TeardownCount {
    fn drop(&mut self) {
        *lock(&self.0.teardowns) -= 1;
        self.0.no_teardowns.notify_all();
    }
}

impl SharedDevice {
    /// Opens a device of this driver. The first one of a process interposes the pool before the
    /// driver, unless that is done.
    ///
    /// # Errors
    /// [`Error::Cuda`] if there is no such device; [`Error::OtherDriver`].
    pub(crate) fn open(cuda: Cuda, ordinal: u32) -> Result<Self> {
        let (cuda, interposer) = governed(cuda)?;
        let device = cuda.device(ordinal)?;
        let opened = Self {
            device,
            interposer,
            context: Mutex::new(Context::primary(device)?),
            teardowns: Mutex::default(),
            no_teardowns: Condvar::new(),
            lent_ranges: LentRanges::default(),
            standard_kernels: KernelCache::default(),
        };
        if let Some(interposer) = interposer {
            interposer.note_runtime(device.ordinal(), true);
        }
        Ok(opened)
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Interface of the functions interposed before the driver; `None` where nothing is governed.
    pub(crate) fn interposer(&self) -> Option<&'static Interface> {
        self.interposer
    }

    /// Replaces the context, after a reset.
    pub(crate) fn set_context(&self, context: Context) {
        *lock(&self.context) = context;
    }

    pub(crate) fn context(&self) -> Context {
        lock(&self.context).clone()
    }

    pub(crate) fn wait_for_teardowns(&self) {
        let teardowns = self
            .no_teardowns
            .wait_while(lock(&self.teardowns), |it| *it > 0);
        drop(teardowns.unwrap_or_else(PoisonError::into_inner));
    }

    /// Tenant with this name.
    pub(crate) fn tenant(&self, name: &str) -> Option<u32> {
        Some(self.interposer?.tenant(name))
    }

    /// Attributes the thread's calls to a tenant until the guard is dropped.
    pub(crate) fn act_as(&self, tenant: Option<u32>) -> Option<ActingTenant> {
        Some(self.interposer?.act_as(tenant?))
    }

    pub(crate) fn tell_limit(&self, tenant: Option<u32>, bytes: u64) {
        if let (Some(interposer), Some(tenant)) = (self.interposer, tenant) {
            interposer.record_limit(self.device.ordinal(), tenant, bytes);
        }
    }

    pub(crate) fn holders(&self) -> Vec<Holder> {
        let Some(interposer) = self.interposer else {
            return Vec::new();
        };
        let all = interposer.holders(self.device.ordinal()).into_iter();
        let mut all: Vec<Holder> = all
            .map(|(tenant, held)| Holder {
                tenant,
                pooled_bytes: held.pooled,
                governed_bytes: held.governed,
            })
            .collect();
        all.sort_by_key(|it| std::cmp::Reverse(it.pooled_bytes + it.governed_bytes));
        all
    }

    pub(crate) fn trim(&self) -> u64 {
        let device = self.device.ordinal();
        self.interposer
            .map_or(0, |it| it.trim(device, TRIM_TIMEOUT))
    }
}
impl Drop for SharedDevice {
    fn drop(&mut self) {
        if let Some(interposer) = self.interposer {
            interposer.note_runtime(self.device.ordinal(), false);
        }
    }
}

/// Interposes the pool before the driver; returns the governed driver and its interface.
fn governed(cuda: Cuda) -> Result<(Cuda, Option<&'static Interface>)> {
    // The opened library may be the hook, which is initialised by now, or another library of this
    // process has interposed already. Each library has a software device of its own.
    let others = || interface::find().filter(|_| !cuda.is_software());
    let interposer = if let Some(interposer) = others().filter(|_| interface::own().is_none()) {
        Some(interposer)
    } else {
        interpose(cuda.driver()).map_err(|elsewhere| Error::OtherDriver {
            before: elsewhere.driver,
            driver: cuda.driver().origin().to_string(),
        })?;
        interface::own()
    };
    let table = interposer.map(|interposer| interposed_driver(interposer, cuda.driver()));
    Ok((table.map_or(cuda, |table| cuda.through(table)), interposer))
}
