//! Plans of ops, cached for each context of the process; and the sessions that ops run in where the
//! caller has none.
//!
//! Invariants: equal descriptors over equal layouts have one plan a context, as long as it is among
//! the last used; a context that was reset has none. Elsewhere: choosing and compiling a kernel
//! (`fercuda_ops`), operands (`op_operands`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fercuda_cuda::Context;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpDevice, OpError, OpPlan};
use fercuda_runtime::{Error, Layout, Result, Runtime, RuntimeConfig, Session, SessionConfig};

use crate::alive::lock;

/// Largest number of plans of a context.
const MAX_PLANS: usize = 1024;

/// What a plan is made for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub(crate) op: OpDescriptor,
    pub(crate) operands: Vec<Layout>,
    /// Layouts of given outputs; none for new ones.
    pub(crate) outputs: Vec<Layout>,
    /// The kernel that is demanded.
    pub(crate) sku: Option<String>,
}

/// A plan with the number of the look-up that last found it.
struct CachedPlan {
    plan: Arc<OpPlan>,
    used: u64,
}

/// Counters of look-ups.
#[derive(Clone, Copy, Default)]
pub(crate) struct PlanCounters {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) plans: usize,
}

#[derive(Default)]
struct PlanCache {
    plans: HashMap<PlanKey, CachedPlan>,
    counters: PlanCounters,
}

/// Compilers and plans of one context.
pub(crate) struct OpContext {
    context: Context,
    device: OpDevice,
    cache: Mutex<PlanCache>,
}

static CONTEXTS: Mutex<Vec<Arc<OpContext>>> = Mutex::new(Vec::new());

impl OpContext {
    /// That of a session's context.
    ///
    /// # Errors
    /// [`OpError::Device`].
    pub(crate) fn of(context: &Context) -> std::result::Result<Arc<Self>, OpError> {
        let mut contexts = lock(&CONTEXTS);
        if let Some(known) = contexts.iter().find(|it| it.context == *context) {
            return Ok(known.clone());
        }
        // A reset has destroyed the modules of the others.
        contexts.retain(|it| it.context.bind().is_ok());
        let made = Arc::new(Self {
            context: context.clone(),
            device: OpDevice::new(context)?,
            cache: Mutex::default(),
        });
        contexts.push(made.clone());
        Ok(made)
    }

    /// The plan of that key, made by the first call.
    ///
    /// # Errors
    /// Those of [`OpPlan::new`].
    pub(crate) fn plan(&self, key: PlanKey) -> std::result::Result<Arc<OpPlan>, OpError> {
        {
            let mut cache = lock(&self.cache);
            let PlanCache { plans, counters } = &mut *cache;
            if let Some(known) = plans.get_mut(&key) {
                counters.hits += 1;
                known.used = counters.hits + counters.misses;
                return Ok(known.plan.clone());
            }
        }
        // Outside the lock: two threads may both make it, one in vain.
        let policy = key.sku.as_deref();
        let policy = match policy {
            None => KernelPolicy::Auto,
            Some("measured") => KernelPolicy::Measured,
            Some(id) => KernelPolicy::Force(id),
        };
        let made = OpPlan::new(&self.device, &key.op, &key.operands, &key.outputs, policy)?;
        let made = Arc::new(made);
        let mut cache = lock(&self.cache);
        let PlanCache { plans, counters } = &mut *cache;
        counters.misses += 1;
        if plans.len() >= MAX_PLANS {
            let oldest = plans.iter().min_by_key(|(_, it)| it.used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| plans.remove(&key));
        }
        let used = counters.hits + counters.misses;
        let plan = made.clone();
        plans.insert(key, CachedPlan { plan, used });
        Ok(made)
    }
}

/// Counters of all contexts together.
pub(crate) fn counters() -> PlanCounters {
    let contexts = lock(&CONTEXTS);
    let mut all = PlanCounters::default();
    for context in contexts.iter() {
        let cache = lock(&context.cache);
        all.hits += cache.counters.hits;
        all.misses += cache.counters.misses;
        all.plans += cache.plans.len();
    }
    all
}

/// Drops all plans, and the compiled code that no other plan has.
pub(crate) fn clear() {
    let contexts = std::mem::take(&mut *lock(&CONTEXTS));
    drop(contexts);
}

/// The session of a device for callers without one.
struct DefaultSession {
    device: u32,
    /// Open as long as its session.
    _runtime: Runtime,
    session: Session,
}

static DEFAULTS: Mutex<Vec<DefaultSession>> = Mutex::new(Vec::new());

/// The default session of a device: the one made before, unless it was closed or a reboot has ended
/// it.
///
/// # Errors
/// Those of opening the device and a session.
pub(crate) fn default_session(device: u32) -> Result<Session> {
    let mut all = lock(&DEFAULTS);
    let is_open = |it: &DefaultSession| it.session.buffers().is_ok();
    if let Some(it) = all.iter().find(|it| it.device == device && is_open(it)) {
        return Ok(it.session.clone());
    }
    all.retain(|it| it.device != device);
    let select = None;
    let runtime = Runtime::open(RuntimeConfig { select, device })?;
    let mut number = 1;
    let session = loop {
        let name = match number {
            1 => "ops".to_owned(),
            number => format!("ops{number}"),
        };
        match runtime.session(&name, SessionConfig::default()) {
            // The program has given that name to a session itself.
            Err(Error::Name { .. }) => number += 1,
            made => break made?,
        }
    };
    all.push(DefaultSession {
        device,
        _runtime: runtime,
        session: session.clone(),
    });
    Ok(session)
}
