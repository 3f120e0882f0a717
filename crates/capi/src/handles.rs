//! Handle tables of the C interface.
//!
//! Invariants: a number names one object for ever, or nothing. A table's lock is held only during a
//! lookup, so no call waits behind work. Objects of a closed session or runtime are in no table.
//!
//! Elsewhere: tables, each beside its type (`c_api`); buffers, which have the runtime's numbers.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_ops::OpDevice;
use fercuda_runtime::{BufferId, GenerationalTable, HandleId, Runtime, Session, StaleHandle};

use crate::status::{CallFailure, Result, fer_status};

/// A session with its runtime's number.
pub(crate) struct OpenSession {
    pub(crate) runtime: u64,
    pub(crate) session: Session,
    /// Compilers of ops for its context, made by the first plan.
    ops: OnceLock<OpDevice>,
}

impl OpenSession {
    pub(crate) fn new(runtime: u64, session: Session) -> Self {
        Self {
            runtime,
            session,
            ops: OnceLock::new(),
        }
    }

    /// Compilers of ops, which end with the session.
    pub(crate) fn ops(&self) -> Result<&OpDevice> {
        if let Some(made) = self.ops.get() {
            return Ok(made);
        }
        // Two threads may both make them, one in vain.
        let made = OpDevice::new(self.session.stream().context())?;
        Ok(self.ops.get_or_init(|| made))
    }
}

pub(crate) static RUNTIMES: Handles<Runtime> = Handles::new(0);
pub(crate) static SESSIONS: Handles<OpenSession> = Handles::new(1);

/// Name of each kind of object, and the functions that return it.
const KINDS: [(&str, &str); 14] = [
    ("runtime", "fer_runtime_open"),
    ("session", "fer_session_open"),
    (
        "job",
        "fer_upload_async and other functions that submit work",
    ),
    ("module", "fer_module_load_ptx"),
    ("kernel", "fer_module_kernel"),
    ("arena", "fercuda_ignite"),
    ("dispatcher", "fer_persistent_dispatcher_boot"),
    ("ticket", "fer_dispatcher_submit"),
    ("consent to requests", "fer_runtime_serve_requests"),
    ("cache of graphs", "fer_graphs_open"),
    ("capture", "fer_capture_begin"),
    ("block of arguments", "fer_arguments_open"),
    ("descriptor of an op", "fer_op_open"),
    ("plan of an op", "fer_op_plan_open"),
];

/// First table number of these tables. Sessions' buffers would need as many tables before their
/// numbers collide.
const FIRST: u16 = 0xff00;

/// The objects of one kind.
pub(crate) struct Handles<T> {
    kind: u16,
    table: Mutex<Option<GenerationalTable<Arc<T>>>>,
}

/// The process that uses handles; 0 as long as none does.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Refuses the child of a fork: nothing works there, and locks may be held for ever.
pub(crate) fn check_process() -> Result<()> {
    let process = std::process::id();
    match PROCESS.compare_exchange(0, process, Relaxed, Relaxed) {
        Err(other) if other != process => Err(CallFailure::new(
            fer_status::FER_ERROR_FORKED,
            format!(
                "this process was forked from {other}, and handles of that do not work here\n\
                 try: a new process (exec), or to open runtimes only after the fork"
            ),
        )),
        _ => Ok(()),
    }
}

impl<T> Handles<T> {
    /// Creates the table of a kind, by its index in [`KINDS`]; each kind has one.
    pub(crate) const fn new(kind: u16) -> Self {
        Self {
            kind,
            table: Mutex::new(None),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<GenerationalTable<Arc<T>>>>> {
        check_process()?;
        Ok(self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Inserts an object without an owner.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let mut table = self.lock()?;
        let table = table.get_or_insert_with(|| GenerationalTable::new(FIRST + self.kind));
        let id = table.insert(Arc::new(value)).map_err(|_| self.full())?;
        Ok(id.to_bits())
    }

    /// Inserts an object that belongs to `owner`. If that is gone by then, the object is removed.
    pub(crate) fn insert_of<O>(&self, owners: &Handles<O>, owner: u64, value: T) -> Result<u64> {
        let number = self.insert(value)?;
        // Closing the owner removes it first, and then its objects.
        let Err(gone) = owners.get("the owner", owner) else {
            return Ok(number);
        };
        // The owner was closed first; the object may be removed already.
        drop(self.remove("it", number));
        Err(CallFailure::new(fer_status::FER_ERROR_ENDED, gone.message))
    }

    /// Whether a number is of this kind, whatever it names.
    pub(crate) fn may_have(&self, number: u64) -> bool {
        HandleId::from_bits(number).is_some_and(|id| id.table() == FIRST + self.kind)
    }

    /// Returns the object that a number names, shared: it lives as long as the reference.
    pub(crate) fn get(&self, name: &str, number: u64) -> Result<Arc<T>> {
        let id = self.id(name, number)?;
        let table = self.lock()?;
        let found = table.as_ref().map(|table| table.get(id).cloned());
        drop(table);
        self.found(name, id, found)
    }

    /// The same, and removes it: the number is stale from now on.
    pub(crate) fn remove(&self, name: &str, number: u64) -> Result<Arc<T>> {
        let id = self.id(name, number)?;
        let mut table = self.lock()?;
        let found = table.as_mut().map(|table| table.remove(id));
        drop(table);
        self.found(name, id, found)
    }

    /// Removes all objects that match, with their numbers.
    pub(crate) fn take(&self, is_meant: impl Fn(&T) -> bool) -> Vec<(u64, Arc<T>)> {
        let Ok(mut table) = self.lock() else {
            return Vec::new();
        };
        let Some(table) = table.as_mut() else {
            return Vec::new();
        };
        let ids = table.iter().filter(|(_, value)| is_meant(value));
        let ids: Vec<HandleId> = ids.map(|(id, _)| id).collect();
        let taken = ids.into_iter();
        taken
            .filter_map(|id| Some((id.to_bits(), table.remove(id).ok()?)))
            .collect()
    }

    fn id(&self, name: &str, number: u64) -> Result<HandleId> {
        let (what, maker) = self.words();
        HandleId::from_bits(number).ok_or_else(|| {
            let zero = format!("it is 0, which is not a {what}\ntry: a handle from {maker}");
            CallFailure::argument(name, zero)
        })
    }

    fn words(&self) -> (&'static str, &'static str) {
        KINDS[usize::from(self.kind)]
    }

    fn full(&self) -> CallFailure {
        let (what, _) = self.words();
        CallFailure::new(
            fer_status::FER_ERROR_LIMIT,
            format!("no handle is left for another {what}\ntry: to close or free some"),
        )
    }

    fn found<V>(
        &self,
        name: &str,
        id: HandleId,
        found: Option<core::result::Result<V, StaleHandle>>,
    ) -> Result<V> {
        let (what, maker) = self.words();
        let why = match found {
            Some(Ok(value)) => return Ok(value),
            Some(Err(StaleHandle::Freed { ago, .. } | StaleHandle::Replaced { ago, .. })) => {
                format!("the {what} was closed or freed, {ago:.1?} ago or before that")
            }
            // Of no existing table, or never returned.
            _ => match kind_of(id) {
                Some(other) if other != what => format!("it is of a {other}, not of a {what}"),
                _ => format!("it never was a {what}"),
            },
        };
        Err(CallFailure::new(
            fer_status::FER_ERROR_STALE_HANDLE,
            format!(
                "{name}: {:#018x} names nothing: {why}\ntry: a handle from {maker} that is open",
                id.to_bits()
            ),
        ))
    }
}

fn kind_of(id: HandleId) -> Option<&'static str> {
    let kind = id.table().checked_sub(FIRST)?;
    let (what, _) = KINDS.get(usize::from(kind))?;
    Some(what)
}

/// Converts a buffer's number into the runtime's handle, which the runtime then validates.
pub(crate) fn buffer(name: &str, number: u64) -> Result<BufferId> {
    let id = BufferId::from_bits(number).ok_or_else(|| {
        CallFailure::argument(
            name,
            "it is 0, which is not a buffer\ntry: a handle from fer_alloc_buffer",
        )
    })?;
    match kind_of(id) {
        Some(other) => Err(CallFailure::new(
            fer_status::FER_ERROR_STALE_HANDLE,
            format!(
                "{name}: {number:#018x} is of a {other}, not of a buffer\ntry: a handle from fer_alloc_buffer"
            ),
        )),
        None => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_number_reports_the_reason() {
        static THINGS: Handles<u32> = Handles::new(3);
        let says = |failure: CallFailure, status, parts: &[&str]| {
            assert_eq!(failure.status, status, "{}", failure.message);
            for part in parts {
                assert!(failure.message.contains(part), "{}", failure.message);
            }
        };
        let stale = fer_status::FER_ERROR_STALE_HANDLE;
        let never = THINGS.get("module", 77).unwrap_err();
        says(never, stale, &["module: 0x", "never was a module", "try:"]);
        let number = THINGS.insert(5).unwrap();
        assert_eq!(*THINGS.get("module", number).unwrap(), 5);
        let zero = THINGS.get("module", 0).unwrap_err();
        says(zero, fer_status::FER_ERROR_INVALID_ARGUMENT, &["it is 0"]);
        let other = Handles::<u8>::new(2).get("job", number).unwrap_err();
        says(other, stale, &["of a module, not of a job"]);
        let other = buffer("buffer", number).unwrap_err();
        says(other, stale, &["of a module, not of a buffer"]);
        THINGS.remove("module", number).unwrap();
        let freed = THINGS.remove("module", number).unwrap_err();
        says(freed, stale, &["closed or freed"]);
        assert_ne!(THINGS.insert(6).unwrap(), number);
    }

    #[test]
    fn object_of_a_closed_owner_is_removed() {
        static OWNERS: Handles<()> = Handles::new(1);
        static THINGS: Handles<u32> = Handles::new(2);
        let owner = OWNERS.insert(()).unwrap();
        THINGS.insert_of(&OWNERS, owner, 1).unwrap();
        OWNERS.remove("session", owner).unwrap();
        assert_eq!(THINGS.take(|_| true).len(), 1);
        let late = THINGS.insert_of(&OWNERS, owner, 2).unwrap_err();
        assert_eq!(late.status, fer_status::FER_ERROR_ENDED);
        assert!(THINGS.take(|_| true).is_empty());
    }
}
