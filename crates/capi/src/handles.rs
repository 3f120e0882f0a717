//! Tables of what C holds by number.
//!
//! Invariants: a number names one thing for ever, or nothing. A table's lock is held
//! while a number is looked up and no longer, so nothing waits behind work. What
//! belongs to a session or runtime that is gone is in no table.
//!
//! Elsewhere: buffers, whose numbers are the runtime's own.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fercuda_runtime::{BufferId, HandleId, HandleTable, Runtime, Session, StaleHandle};

use crate::c_api::arenas::Arena;
use crate::c_api::dispatchers::{Running, Ticket};
use crate::c_api::graphs::{Block, Cached, Capture};
use crate::c_api::jobs::Pending;
use crate::c_api::launches::{Kernel, Loaded};
use crate::c_api::requests::Serving;
use crate::status::{Failure, Result, fer_status};

/// A session, and whose it is.
pub(crate) struct Open {
    pub(crate) runtime: u64,
    pub(crate) session: Session,
}

pub(crate) static RUNTIMES: Handles<Runtime> = Handles::new(0);
pub(crate) static SESSIONS: Handles<Open> = Handles::new(1);
pub(crate) static JOBS: Handles<Pending> = Handles::new(2);
pub(crate) static MODULES: Handles<Loaded> = Handles::new(3);
pub(crate) static KERNELS: Handles<Kernel> = Handles::new(4);
pub(crate) static ARENAS: Handles<Arena> = Handles::new(5);
pub(crate) static DISPATCHERS: Handles<Running> = Handles::new(6);
pub(crate) static TICKETS: Handles<Ticket> = Handles::new(7);
pub(crate) static REQUESTS: Handles<Serving> = Handles::new(8);
pub(crate) static GRAPHS: Handles<Cached> = Handles::new(9);
pub(crate) static CAPTURES: Handles<Capture> = Handles::new(10);
pub(crate) static ARGUMENTS: Handles<Block> = Handles::new(11);

/// What each is, and what gives one.
const KINDS: [(&str, &str); 12] = [
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
];

/// Numbers of tables from here on are not those of sessions' buffers, of which there
/// would have to be so many.
const FIRST: u16 = 0xff00;

/// The things of one kind.
pub(crate) struct Handles<T> {
    kind: u16,
    table: Mutex<Option<HandleTable<Arc<T>>>>,
}

/// The process that has handles; 0 as long as none has.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The child of a fork has nothing that works, and locks that nobody gives back.
pub(crate) fn check_process() -> Result<()> {
    let process = std::process::id();
    match PROCESS.compare_exchange(0, process, Relaxed, Relaxed) {
        Err(other) if other != process => Err(Failure::new(
            fer_status::FER_ERROR_FORKED,
            format!(
                "this process was forked from {other}, whose handles do not work here\n\
                 try: a new process (exec), or to open runtimes only after the fork"
            ),
        )),
        _ => Ok(()),
    }
}

impl<T> Handles<T> {
    const fn new(kind: u16) -> Self {
        Self {
            kind,
            table: Mutex::new(None),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<HandleTable<Arc<T>>>>> {
        check_process()?;
        Ok(self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes something in, which belongs to nothing.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let mut table = self.lock()?;
        let table = table.get_or_insert_with(|| HandleTable::new(FIRST + self.kind));
        let id = table.insert(Arc::new(value)).map_err(|_| self.full())?;
        Ok(id.to_bits())
    }

    /// Takes something in that is `owner`'s. If that is gone by then, so is this.
    pub(crate) fn insert_of<O>(&self, owners: &Handles<O>, owner: u64, value: T) -> Result<u64> {
        let number = self.insert(value)?;
        // Who closes the owner takes it out first, and then what is its.
        let Err(gone) = owners.get("the owner", owner) else {
            return Ok(number);
        };
        // Who closed the owner may have been quicker, and then it is out.
        drop(self.remove("it", number));
        Err(Failure::new(fer_status::FER_ERROR_ENDED, gone.message))
    }

    /// Whether a number is one of this kind, whatever it names.
    pub(crate) fn may_have(&self, number: u64) -> bool {
        HandleId::from_bits(number).is_some_and(|id| id.table() == FIRST + self.kind)
    }

    /// What a number names, shared: it is there as long as this is.
    pub(crate) fn get(&self, name: &str, number: u64) -> Result<Arc<T>> {
        let id = self.id(name, number)?;
        let table = self.lock()?;
        let found = table.as_ref().map(|table| table.get(id).cloned());
        drop(table);
        self.found(name, id, found)
    }

    /// The same, and from now on the number names nothing.
    pub(crate) fn remove(&self, name: &str, number: u64) -> Result<Arc<T>> {
        let id = self.id(name, number)?;
        let mut table = self.lock()?;
        let found = table.as_mut().map(|table| table.remove(id));
        drop(table);
        self.found(name, id, found)
    }

    /// Takes out all that are meant, with their numbers.
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
            let zero = format!("it is 0, which is no {what}\ntry: what {maker} gave");
            Failure::argument(name, zero)
        })
    }

    fn words(&self) -> (&'static str, &'static str) {
        KINDS[usize::from(self.kind)]
    }

    fn full(&self) -> Failure {
        let (what, _) = self.words();
        Failure::new(
            fer_status::FER_ERROR_LIMIT,
            format!("there is no handle left for another {what}\ntry: to close or free some"),
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
            // Of no table that there is, or never given out.
            _ => match kind_of(id) {
                Some(other) if other != what => format!("it is of a {other}, and no {what}"),
                _ => format!("it never was a {what}"),
            },
        };
        Err(Failure::new(
            fer_status::FER_ERROR_STALE_HANDLE,
            format!(
                "{name}: {:#018x} names nothing: {why}\ntry: what {maker} gave, as long as it is open",
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

/// A buffer's number as the runtime reads it, which then says whether it names one.
pub(crate) fn buffer(name: &str, number: u64) -> Result<BufferId> {
    let id = BufferId::from_bits(number).ok_or_else(|| {
        Failure::argument(
            name,
            "it is 0, which is no buffer\ntry: what fer_alloc_buffer gave",
        )
    })?;
    match kind_of(id) {
        Some(other) => Err(Failure::new(
            fer_status::FER_ERROR_STALE_HANDLE,
            format!(
                "{name}: {number:#018x} is of a {other}, and no buffer\ntry: what fer_alloc_buffer gave"
            ),
        )),
        None => Ok(id),
    }
}

/// Closes sessions that were taken out of their table, with what is theirs: the first
/// error of their work, though they are closed all the same.
pub(crate) fn end(closing: &[(u64, Arc<Open>)]) -> Result<()> {
    let is_closing = |session: u64| closing.iter().any(|(number, _)| *number == session);
    for (_, job) in JOBS.take(|job| is_closing(job.session)) {
        job.forget();
    }
    // Owners first: who then puts something of theirs in takes it out again.
    let graphs = GRAPHS.take(|graphs| is_closing(graphs.session));
    for (_, capture) in CAPTURES.take(|capture| is_closing(capture.session)) {
        capture.end();
    }
    let blocks = ARGUMENTS.take(|block| is_closing(block.session));
    let modules = MODULES.take(|module| is_closing(module.session));
    let kernels = KERNELS.take(|kernel| is_closing(kernel.session));
    let arenas = ARENAS.take(|arena| is_closing(arena.session));
    let dispatchers = DISPATCHERS.take(|dispatcher| is_closing(dispatcher.session));
    let tickets = TICKETS.take(|ticket| is_closing(ticket.session));
    let sessions: Vec<Session> = closing.iter().map(|(_, it)| it.session.clone()).collect();
    let ended = Session::close_all(&sessions);
    // Their work is done, so nothing runs in the modules any more, and tasks have been run.
    drop((kernels, modules, arenas, tickets, dispatchers));
    drop((graphs, blocks));
    Ok(ended?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_why_it_names_nothing() {
        static THINGS: Handles<u32> = Handles::new(3);
        let says = |failure: Failure, status, parts: &[&str]| {
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
        says(other, stale, &["of a module, and no job"]);
        let other = buffer("buffer", number).unwrap_err();
        says(other, stale, &["of a module, and no buffer"]);
        THINGS.remove("module", number).unwrap();
        let freed = THINGS.remove("module", number).unwrap_err();
        says(freed, stale, &["closed or freed"]);
        assert_ne!(THINGS.insert(6).unwrap(), number);
    }

    #[test]
    fn what_comes_after_its_owner_has_gone_is_taken_back() {
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
