//! A device with its pool, which is the process's, and the sessions there.
//!
//! Invariant: what a runtime allocates goes through doors that stand before the
//! driver: those of whoever came first in this process, or its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, Cuda, Device, Select, destroy_deferred};
use fercuda_regime::interface::{self, ActingTenant, Interface};
use fercuda_regime::{interpose, interposed_driver};

use crate::callbacks::{Allocator, Given};
use crate::dispatcher::Kernels;
use crate::error::{Error, Holder, Result, Why};
use crate::session::{Core, Session, SessionConfig, end_all};
use crate::within::is_within;

/// How long memory that is given back to the driver waits for the device's work.
const PATIENCE: Duration = Duration::from_secs(1);

/// Locks what no panic can leave half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which device a runtime is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// A GPU, the software device, or what `FERCUDA_DEVICE` asks for.
    pub select: Option<Select>,
    /// The device's ordinal.
    pub device: u32,
}

/// What a device's memory is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free bytes, as the driver says.
    pub free_bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
    /// Bytes that this process has freed and that are not free yet, as the driver would wait
    /// for a kernel that stays ([`Session::dispatcher`]) or refuse because of a capture: they
    /// are when a thread allocates or waits while there is none.
    pub parked_bytes: u64,
}

/// What a reboot came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reboot {
    /// How often the device's memory has begun anew, this time included.
    pub epoch: u64,
    /// Sessions that were ended.
    pub sessions: usize,
    /// Bytes that went back to the driver.
    pub returned_bytes: u64,
    /// Whether the context had failed, and was reset.
    pub was_reset: bool,
    /// Who else holds memory of the device.
    pub others: Vec<Holder>,
}

/// See the module. Cloning gives another name for it.
#[derive(Clone, Debug)]
pub struct Runtime {
    machine: Arc<Machine>,
}

/// A device as sessions see it.
#[derive(Debug)]
pub(crate) struct Machine {
    device: Device,
    /// None where nothing is governed (`FERCUDA_DISABLE=1`).
    doors: Option<&'static Interface>,
    /// Another one after a reset.
    context: Mutex<Context>,
    epoch: AtomicU64,
    sessions: Mutex<Sessions>,
    /// How many of them are being ended.
    ending: Mutex<usize>,
    none_ends: Condvar,
    /// What programs' own allocators have given.
    pub(crate) given: Given,
    /// Kernels of the standard tasks, until a reboot.
    pub(crate) standard: Kernels,
}

#[derive(Debug, Default)]
struct Sessions {
    /// In the order in which they were made.
    all: BTreeMap<u64, Weak<Core>>,
    /// Of all there have been.
    names: BTreeSet<String>,
    next: u64,
    phase: Phase,
}

#[derive(Clone, Debug, Default)]
enum Phase {
    #[default]
    Runs,
    /// One thread begins it anew. No session is opened, and no other thread does so.
    Reboots,
    /// What it came to, as the driver did not recover.
    Lost(Error),
}

impl Phase {
    fn check(&self) -> Result<()> {
        match self {
            Self::Runs => Ok(()),
            Self::Reboots => Err(Error::Rebooting),
            Self::Lost(error) => Err(error.clone()),
        }
    }
}

/// A session that is being ended, until this goes, by whatever thread.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Machine>);

impl UnderWay {
    pub(crate) fn begin(machine: &Arc<Machine>) -> Self {
        *lock(&machine.ending) += 1;
        Self(machine.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        *lock(&self.0.ending) -= 1;
        self.0.none_ends.notify_all();
    }
}

/// A device that begins anew, until this goes.
struct Rebooting<'m> {
    machine: &'m Machine,
    then: Phase,
}

impl<'m> Rebooting<'m> {
    fn begin(machine: &'m Machine) -> Result<Self> {
        let mut sessions = lock(&machine.sessions);
        sessions.phase.check()?;
        sessions.phase = Phase::Reboots;
        let then = Phase::Runs;
        Ok(Self { machine, then })
    }
}

impl Drop for Rebooting<'_> {
    fn drop(&mut self) {
        lock(&self.machine.sessions).phase = std::mem::take(&mut self.then);
    }
}

impl Runtime {
    /// A runtime for a device. The first one of a process stands the doors of the pool
    /// before the driver, unless that is done.
    ///
    /// # Errors
    /// [`Error::Cuda`] without such a device; [`Error::OtherDriver`].
    pub fn open(config: RuntimeConfig) -> Result<Self> {
        let select = match config.select {
            Some(select) => select,
            None => Select::from_env()?,
        };
        let (cuda, doors) = governed(Cuda::select(select)?)?;
        let device = cuda.device(config.device)?;
        let machine = Machine {
            device,
            doors,
            context: Mutex::new(Context::primary(device)?),
            epoch: AtomicU64::new(0),
            sessions: Mutex::default(),
            ending: Mutex::default(),
            none_ends: Condvar::new(),
            given: Given::default(),
            standard: Kernels::default(),
        };
        if let Some(doors) = doors {
            doors.note_runtime(device.ordinal(), true);
        }
        Ok(Self {
            machine: Arc::new(machine),
        })
    }

    /// Its device.
    pub fn device(&self) -> Device {
        self.machine.device
    }

    /// Its context; another one after a reboot that has reset it.
    pub fn context(&self) -> Context {
        self.machine.context()
    }

    /// Whether memory is governed: there is a pool and a ledger.
    pub fn is_governed(&self) -> bool {
        self.machine.doors.is_some()
    }

    /// What the driver says of the device's memory, and what it will get back.
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

    /// What the doors before its device may be asked; none where nothing is governed.
    pub(crate) fn doors(&self) -> Option<&'static Interface> {
        self.machine.doors
    }

    /// Who holds memory of the device in this process.
    pub fn holders(&self) -> Vec<Holder> {
        self.machine.holders()
    }

    /// Gives back to the driver what the pool has and nobody uses; how many bytes. What was
    /// given up behind work of the device is waited for, a second at most.
    pub fn trim(&self) -> u64 {
        self.machine.trim()
    }

    /// How often it was rebooted.
    pub fn epoch(&self) -> u64 {
        self.machine.epoch.load(Relaxed)
    }

    /// A session of this name, which is its tenant in the ledger.
    ///
    /// # Errors
    /// [`Error::Name`] while another has that name, or a library that holds memory;
    /// [`Error::Rebooting`]; [`Error::Lost`]; [`Error::Cuda`].
    pub fn session(&self, name: &str, config: SessionConfig) -> Result<Session> {
        self.open_session(name, config, None)
    }

    /// The same with an allocator, from which its buffers of
    /// [`Regime::Callbacks`](crate::Regime) come. It is let go of when the session is, and all
    /// that it gave.
    ///
    /// # Errors
    /// As for [`Runtime::session`].
    pub fn session_with_allocator(
        &self,
        name: &str,
        config: SessionConfig,
        allocator: Arc<dyn Allocator>,
    ) -> Result<Session> {
        self.open_session(name, config, Some(allocator))
    }

    fn open_session(
        &self,
        name: &str,
        config: SessionConfig,
        allocator: Option<Arc<dyn Allocator>>,
    ) -> Result<Session> {
        let is_held = self.machine.holders().iter().any(|it| it.tenant == name);
        // What goes with its last name here is a program's in part, and not let go of in
        // the lock.
        let _kept = allocator.clone();
        let live: Vec<Arc<Core>>;
        let mut sessions = lock(&self.machine.sessions);
        sessions.phase.check()?;
        sessions.all.retain(|_, session| session.strong_count() > 0);
        live = sessions.all.values().filter_map(Weak::upgrade).collect();
        let is_open = live.iter().any(|it| it.name() == name && it.is_open());
        if is_open || (is_held && !sessions.names.contains(name)) {
            return Err(Error::Name {
                name: name.to_owned(),
            });
        }
        let core = Core::open(&self.machine, next_number(), name, config, allocator)?;
        let number = sessions.next;
        sessions.next += 1;
        sessions.names.insert(name.to_owned());
        sessions.all.insert(number, Arc::downgrade(&core));
        drop(sessions);
        Ok(Session::of(core))
    }

    /// The names of the sessions that are open.
    pub fn sessions(&self) -> Vec<String> {
        let left = self.machine.sessions_left();
        let open = left.iter().filter(|it| it.is_open());
        open.map(|it| it.name().to_owned()).collect()
    }

    /// Ends all sessions, the last one first, gives all memory back to the driver, and
    /// begins anew: the ledger's counters go on in another epoch, and handles of before
    /// name nothing.
    ///
    /// # Errors
    /// [`Error::Failed`] if the context has failed, as by an illegal address: the sessions
    /// have ended then, and [`Runtime::reset`] helps. [`Error::Dispatch`] if a session's
    /// dispatcher is lost, and [`Error::Resident`] if a kernel stays that is no session's:
    /// they have ended then as well, and nothing was given back to the driver.
    /// [`Error::Rebooting`] while another thread does it; [`Error::Within`] in a job, in a
    /// host callback, and where lent memory is given back.
    pub fn reboot(&self) -> Result<Reboot> {
        self.begin_anew(None::<fn(&Context)>)
    }

    /// The same; and if the context has failed it is reset, unless others hold memory of
    /// the device.
    ///
    /// # Errors
    /// [`Error::Occupied`], with who that is: the sessions have ended then, and the
    /// context is as it was. [`Error::Lost`] if the driver does not recover, as NVIDIA's
    /// does not: the process has to end.
    ///
    /// # Safety
    /// What others have made in the device's primary context and is no memory, such as
    /// streams, modules and the handles of libraries, is not used any more: it went with
    /// the context, and a driver may follow what is left of it. Nor is any other thread in a
    /// call for a session of this device or with what sessions have made, or makes one before
    /// this has returned.
    #[expect(unsafe_code, reason = "nobody here knows of others' handles")]
    pub unsafe fn reset(&self) -> Result<Reboot> {
        self.begin_anew(Some(|_: &Context| ()))
    }

    /// The same for who has threads of his own that may be in a call for the context: if it
    /// is reset, `quiet` is called before, when sessions have ended, and keeps them from it
    /// until what it returns is dropped.
    ///
    /// # Errors
    /// As for [`Runtime::reset`].
    ///
    /// # Safety
    /// As there.
    #[expect(unsafe_code, reason = "as for `reset`")]
    pub unsafe fn reset_with<G>(&self, quiet: impl FnOnce(&Context) -> G) -> Result<Reboot> {
        self.begin_anew(Some(quiet))
    }

    #[expect(unsafe_code, reason = "as for `reset`, which alone lets it")]
    fn begin_anew<G>(&self, quiet: Option<impl FnOnce(&Context) -> G>) -> Result<Reboot> {
        let machine = &self.machine;
        let left = || machine.sessions_left();
        if is_within() || left().iter().any(|it| it.is_within()) {
            // A session would wait for this thread, or this thread for itself.
            return Err(Error::Within { doing: "reboot" });
        }
        let mut rebooting = Rebooting::begin(machine)?;
        let next = machine.epoch.load(Relaxed) + 1;
        let ended = end_all(&left(), Why::Rebooted(next));
        // Also of those that nobody has a name of, nothing is left.
        machine.wait_for_endings();
        let is_sticky = |error: &Error| error.is_sticky();
        let mut failed = ended.iter().flat_map(|it| it.as_ref().err()).any(is_sticky);
        let before = machine.context();
        if !failed {
            let_told_kernels_end(&before);
        }
        if !failed && before.has_resident_kernel() {
            // To wait for the device would be to wait for that, unless the context failed.
            let asked = before.legacy_stream().is_idle().map_err(Error::from);
            failed = asked.is_err_and(|error| error.is_sticky());
            if !failed {
                let device = machine.device.ordinal();
                let mut errors = ended.into_iter().filter_map(Result::err);
                let lost = errors.find(|error| matches!(error, Error::Dispatch(_)));
                return Err(lost.unwrap_or(Error::Resident { device }));
            }
        }
        failed |= before.synchronize().is_err_and(|error| error.is_sticky());
        if failed && quiet.is_none() {
            return Err(Error::Failed {
                device: machine.device.ordinal(),
            });
        }
        machine.standard.clear();
        // What sessions could not give back in a context that has failed goes with it.
        let own = lock(&machine.sessions).names.clone();
        let mut others = machine.holders();
        others.retain(|it| !own.contains(&it.tenant));
        if failed && !others.is_empty() {
            return Err(Error::Occupied {
                device: machine.device.ordinal(),
                holders: others,
            });
        }
        let mut returned_bytes = machine.trim();
        if failed {
            let _quiet = quiet.map(|quiet| quiet(&before));
            // SAFETY: the promise of `reset`'s caller; sessions have ended.
            let after = unsafe { before.reset() };
            let device = machine.device.ordinal();
            let after = after.map_err(|error| Error::Lost {
                device,
                source: Arc::new(error),
            });
            match after {
                Ok(after) => *lock(&machine.context) = after,
                Err(error) => {
                    rebooting.then = Phase::Lost(error.clone());
                    return Err(error);
                }
            }
            // What could not be given back before waits for the new context.
            machine.context().synchronize()?;
            returned_bytes += machine.trim();
        }
        let told = machine
            .doors
            .map(|it| it.next_epoch(machine.device.ordinal()));
        machine.epoch.store(next, Relaxed);
        Ok(Reboot {
            epoch: told.unwrap_or(next),
            sessions: ended.len(),
            returned_bytes,
            was_reset: failed,
            others,
        })
    }
}

/// Waits while kernels stay that were told to end, as long as they may take: of some nobody
/// else does, as what they used is left to who allocates or waits, and others are being
/// waited for by who drops them.
fn let_told_kernels_end(context: &Context) {
    loop {
        destroy_deferred();
        match context.resident_kernels_stop_by() {
            Some(by) if Instant::now() < by => std::thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}

/// The driver with the doors before it, and what they may be asked.
fn governed(cuda: Cuda) -> Result<(Cuda, Option<&'static Interface>)> {
    // What was opened may be the hook, which has begun by now, or another library of
    // this process has doors before it. The software device is each library's own.
    let others = || interface::find().filter(|_| !cuda.is_software());
    let doors = if let Some(doors) = others().filter(|_| interface::own().is_none()) {
        Some(doors)
    } else {
        interpose(cuda.driver()).map_err(|elsewhere| Error::OtherDriver {
            before: elsewhere.driver,
            driver: cuda.driver().origin().to_string(),
        })?;
        interface::own()
    };
    let table = doors.map(|doors| interposed_driver(doors, cuda.driver()));
    Ok((table.map_or(cuda, |table| cuda.through(table)), doors))
}

/// The number of a table of handles. After so many sessions numbers come again; a handle
/// of one that ended so long ago may then name something.
fn next_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Relaxed)
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(doors) = self.doors {
            doors.note_runtime(self.device.ordinal(), false);
        }
    }
}

impl Machine {
    pub(crate) fn context(&self) -> Context {
        lock(&self.context).clone()
    }

    fn wait_for_endings(&self) {
        let ending = self.none_ends.wait_while(lock(&self.ending), |it| *it > 0);
        drop(ending.unwrap_or_else(PoisonError::into_inner));
    }

    /// Those that have not ended.
    fn sessions_left(&self) -> Vec<Arc<Core>> {
        let sessions = lock(&self.sessions);
        let mut live: Vec<Arc<Core>> = sessions.all.values().filter_map(Weak::upgrade).collect();
        drop(sessions);
        live.retain(|session| !session.has_ended());
        live
    }

    /// The tenant of a name.
    pub(crate) fn tenant(&self, name: &str) -> Option<u32> {
        Some(self.doors?.tenant(name))
    }

    /// From now on the thread's calls are a tenant's.
    pub(crate) fn act_as(&self, tenant: Option<u32>) -> Option<ActingTenant> {
        Some(self.doors?.act_as(tenant?))
    }

    pub(crate) fn tell_limit(&self, tenant: Option<u32>, bytes: u64) {
        if let (Some(doors), Some(tenant)) = (self.doors, tenant) {
            doors.record_limit(self.device.ordinal(), tenant, bytes);
        }
    }

    pub(crate) fn holders(&self) -> Vec<Holder> {
        let Some(doors) = self.doors else {
            return Vec::new();
        };
        let all = doors.holders(self.device.ordinal()).into_iter();
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

    fn trim(&self) -> u64 {
        let device = self.device.ordinal();
        self.doors.map_or(0, |it| it.trim(device, PATIENCE))
    }
}
