//! The writer: what the hooked program's threads do to their process's ledger.
//!
//! Invariants: after it was opened nothing here fails, waits or allocates.
//! What is charged to rows is given back to the same rows, so sums hold
//! whoever frees. In the child of a fork every call does nothing.
//!
//! Counters are relaxed: each is a number by itself, and whoever adds up
//! several checks that the sums agree. A counter does not go below zero, since
//! a block is given back by someone who learned of its allocation.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, FormatError, Result, Warning};
use crate::folder::Folder;
use crate::format::{
    AccountRow, DEVICES, DeviceRow, EVENTS, EventKind, FILE_BYTES, Governed, Layout, MAGIC,
    NAME_BYTES, PROGRAM_BYTES, STREAMS, TENANTS, THREADS, VERSION, cut, name_words,
};
use crate::map::Map;
use crate::owner::Process;
use crate::reader::collect_memory;
use crate::rows::{self, OTHERS};
use crate::snapshot::{self, Owner, Snapshot};

/// A process's ledger, for writing; any number of threads may use it.
#[derive(Debug)]
pub struct Ledger {
    map: Map,
    /// The file, whose lock says that this process lives, and its path.
    file: Option<(File, PathBuf)>,
    begun: Instant,
}

/// A device's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device(u8);

/// A tenant's row; the default is that of all who have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tenant(u8);

/// A stream's row; the default is that of all who have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(u8);

/// A thread's row; the default is that of all who have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Thread(u16);

/// Whom an allocation is charged to. Kept with the block, because it is given
/// back to the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Charge {
    /// Where it lies.
    pub device: Device,
    /// Which library asked for it.
    pub tenant: Tenant,
    /// The stream it was allocated in.
    pub stream: Stream,
    /// The thread that asked.
    pub thread: Thread,
}

/// Figures of a device that the pool sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Address space taken from the driver.
    Pooled,
    /// That part of it which has memory behind it.
    Mapped,
    /// Free and reusable at once.
    Ready,
    /// Free and waiting for work that may still touch it.
    Waiting,
    /// What the process may use at most; 0 for no limit.
    Limit,
}

/// Something worth telling. The fields mean what [`EventKind`] says of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub device: Device,
    /// At whose request.
    pub tenant: Tenant,
    /// How many bytes.
    pub bytes: u64,
    /// A device address, or 0.
    pub address: u64,
    /// See [`EventKind`].
    pub detail: u64,
    /// The stream's number, or 0.
    pub stream: u64,
    /// The thread's number, or 0.
    pub thread: u64,
}

impl Device {
    /// The row of the device with this ordinal. All from the last row on share
    /// it, so that no byte is lost.
    pub fn new(ordinal: u32) -> Device {
        Device(ordinal.min(DEVICES as u32 - 1) as u8)
    }

    fn row(self, layout: &Layout<AtomicU64>) -> &DeviceRow<AtomicU64> {
        &layout.devices[usize::from(self.0) % DEVICES]
    }
}

impl Ledger {
    /// Opens this process's ledger in the user's folder ([`Folder::from_env`])
    /// and sweeps those whose owners are gone. If there can be no file, the
    /// ledger is in memory that only [`Ledger::snapshot`] sees, and the warning
    /// says why.
    pub fn open() -> (Ledger, Option<Warning>) {
        Self::fallible(Folder::from_env().and_then(|folder| Self::in_file(&folder)))
    }

    /// [`Ledger::open`] in a folder of the caller's choice.
    pub fn open_in(folder: &Folder) -> (Ledger, Option<Warning>) {
        Self::fallible(Self::in_file(folder))
    }

    fn fallible(opened: Result<Ledger>) -> (Ledger, Option<Warning>) {
        match opened {
            Ok(ledger) => (ledger, None),
            Err(reason) => (Self::in_memory(), Some(Warning { reason })),
        }
    }

    fn in_file(folder: &Folder) -> Result<Ledger> {
        // What cannot be swept is no reason to go without.
        folder.sweep().ok();
        let process = Process::this();
        let draft = folder.draft(&process)?;
        let mapping = Error::system("map a ledger in", folder.path());
        let map = draft.file().and_then(Map::file).map_err(mapping)?;
        write_header(map.layout(), &process);
        Ok(Ledger {
            map,
            file: Some(draft.publish()?),
            begun: Instant::now(),
        })
    }

    /// A ledger in memory that only this process sees.
    pub fn in_memory() -> Ledger {
        let map = Map::anonymous();
        write_header(map.layout(), &Process::this());
        Ledger {
            map,
            file: None,
            begun: Instant::now(),
        }
    }

    /// Its file; `None` if it is in memory only.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Whether this process opened it. The child of a fork has to open its
    /// own: in this one it can write nothing.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.map.is_mine()
    }

    /// The ledger's words, unless this is the child of a fork.
    #[inline]
    fn layout(&self) -> Option<&Layout<AtomicU64>> {
        self.map.is_mine().then(|| self.map.layout())
    }

    /// The row of the tenant of this name, made if there is room. Names of
    /// which the first 48 bytes agree are told apart, but look alike.
    pub fn tenant(&self, name: &str) -> Tenant {
        let Some(layout) = self.layout() else {
            return Tenant::default();
        };
        let key = key_of(name);
        for (place, row) in layout.tenants.iter().enumerate().skip(OTHERS + 1) {
            let taken = match row.key.load(Relaxed) {
                0 => row.key.compare_exchange(0, key, Relaxed, Relaxed),
                other => Err(other),
            };
            match taken {
                Ok(_) => {
                    let name = cut(name, NAME_BYTES);
                    store_name(&row.name, &row.name_len, name);
                    return Tenant(place as u8);
                }
                Err(other) if other == key => return Tenant(place as u8),
                Err(_) => {}
            }
        }
        Tenant::default()
    }

    /// The row of the stream `number`, made if there is room. The number must
    /// be the process's only one for that stream, as `cuStreamGetId` gives it.
    /// A few loads if the stream is known; worth keeping all the same.
    pub fn stream(&self, device: Device, number: u64) -> Stream {
        let Some(layout) = self.layout() else {
            return Stream::default();
        };
        let rows = &layout.streams;
        let found = rows::find_or_take(
            STREAMS,
            |place| (&rows[place].state, &rows[place].live_bytes),
            number,
        );
        if found.fresh {
            rows[found.place].device.store(u64::from(device.0), Relaxed);
        }
        Stream(found.place as u8)
    }

    /// The stream is destroyed: its row is another's once nothing allocated in
    /// it is live.
    pub fn end_stream(&self, stream: Stream) {
        if let Some(layout) = self.layout() {
            rows::end(&layout.streams[usize::from(stream.0)].state);
        }
    }

    /// The row of the thread `number`, made if there is room.
    pub fn thread(&self, number: u64) -> Thread {
        let Some(layout) = self.layout() else {
            return Thread::default();
        };
        let rows = &layout.threads;
        let found = rows::find_or_take(
            THREADS,
            |place| (&rows[place].state, &rows[place].live_bytes),
            number,
        );
        if found.fresh {
            rows[found.place].allocs.store(0, Relaxed);
        }
        Thread(found.place as u16)
    }

    /// The thread ends: its row is another's once nothing that it allocated is
    /// live.
    pub fn end_thread(&self, thread: Thread) {
        if let Some(layout) = self.layout() {
            rows::end(&layout.threads[usize::from(thread.0) % THREADS].state);
        }
    }

    /// Charges one allocation, before its address is given to anyone.
    #[inline]
    pub fn charge(&self, to: Charge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        let device = to.device.row(layout);
        let account = account(layout, to.device, to.tenant);
        raise(&device.live_bytes, &device.peak_bytes, bytes);
        raise(&account.live_bytes, &account.peak_bytes, bytes);
        account.allocs.fetch_add(1, Relaxed);
        layout.streams[usize::from(to.stream.0)]
            .live_bytes
            .fetch_add(bytes, Relaxed);
        let thread = &layout.threads[usize::from(to.thread.0) % THREADS];
        thread.live_bytes.fetch_add(bytes, Relaxed);
        thread.allocs.fetch_add(1, Relaxed);
    }

    /// Gives back one allocation of `bytes`, to the rows it was charged to.
    #[inline]
    pub fn discharge(&self, from: Charge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        let account = account(layout, from.device, from.tenant);
        from.device.row(layout).live_bytes.fetch_sub(bytes, Relaxed);
        account.live_bytes.fetch_sub(bytes, Relaxed);
        account.frees.fetch_add(1, Relaxed);
        // Release: who takes a row that has ended and finds nothing live in it
        // comes after everything charged to it.
        layout.streams[usize::from(from.stream.0)]
            .live_bytes
            .fetch_sub(bytes, Release);
        layout.threads[usize::from(from.thread.0) % THREADS]
            .live_bytes
            .fetch_sub(bytes, Release);
    }

    /// Charges memory that the driver gave by itself.
    #[inline]
    pub fn govern(&self, device: Device, tenant: Tenant, kind: Governed, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        device.row(layout).governed_bytes[kind as usize].fetch_add(bytes, Relaxed);
        account(layout, device, tenant)
            .governed_bytes
            .fetch_add(bytes, Relaxed);
    }

    /// Gives back what [`Ledger::govern`] charged.
    #[inline]
    pub fn release(&self, device: Device, tenant: Tenant, kind: Governed, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        device.row(layout).governed_bytes[kind as usize].fetch_sub(bytes, Relaxed);
        account(layout, device, tenant)
            .governed_bytes
            .fetch_sub(bytes, Relaxed);
    }

    /// Sets a figure of the pool. For whoever holds the pool of that device:
    /// of two at once, one stays.
    #[inline]
    pub fn set(&self, device: Device, gauge: Gauge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        gauge.word(device.row(layout)).store(bytes, Relaxed);
    }

    /// Adds to a figure of the pool; any thread may.
    #[inline]
    pub fn add(&self, device: Device, gauge: Gauge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        gauge.word(device.row(layout)).fetch_add(bytes, Relaxed);
    }

    /// Takes away from a figure of the pool what was added before.
    #[inline]
    pub fn subtract(&self, device: Device, gauge: Gauge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        gauge.word(device.row(layout)).fetch_sub(bytes, Relaxed);
    }

    /// Says what `tenant` may use at most at `device`; 0 for no limit.
    pub fn set_tenant_limit(&self, device: Device, tenant: Tenant, limit_bytes: u64) {
        let Some(layout) = self.layout() else { return };
        account(layout, device, tenant)
            .limit_bytes
            .store(limit_bytes, Relaxed);
    }

    /// Notes what the driver says of a device, and how much of what is used
    /// nothing here accounts for.
    pub fn reconcile(
        &self,
        device: Device,
        total_bytes: u64,
        free_bytes: u64,
        ungoverned_bytes: u64,
    ) {
        let Some(layout) = self.layout() else { return };
        let row = device.row(layout);
        row.driver_total_bytes.store(total_bytes, Relaxed);
        row.driver_free_bytes.store(free_bytes, Relaxed);
        row.ungoverned_bytes.store(ungoverned_bytes, Relaxed);
        row.reconciled_at_ns.store(self.now_ns(), Relaxed);
    }

    /// Counts an event and writes it into the ring.
    pub fn record(&self, event: Event) {
        let Some(layout) = self.layout() else { return };
        let row = event.device.row(layout);
        row.events[event.kind as usize].fetch_add(1, Relaxed);
        if event.kind == EventKind::Epoch {
            row.epoch.store(event.detail, Relaxed);
        }
        let mut what = [0; 8];
        what[..3].copy_from_slice(&[event.kind as u8, event.device.0, event.tenant.0]);
        layout.ring.write([
            self.now_ns(),
            u64::from_le_bytes(what),
            event.bytes,
            event.address,
            event.detail,
            event.stream,
            event.thread,
        ]);
    }

    /// What is in it now.
    ///
    /// # Errors
    /// [`FormatError`] if somebody has overwritten the file's header.
    pub fn snapshot(&self) -> std::result::Result<Snapshot, FormatError> {
        let collected = collect_memory(self.map.words());
        snapshot::assemble(&collected, FILE_BYTES as u64, Owner::Alive)
    }

    /// Nanoseconds since it was opened. The clock is read in user space.
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

impl Gauge {
    fn word(self, row: &DeviceRow<AtomicU64>) -> &AtomicU64 {
        match self {
            Self::Pooled => &row.pooled_bytes,
            Self::Mapped => &row.mapped_bytes,
            Self::Ready => &row.ready_bytes,
            Self::Waiting => &row.waiting_bytes,
            Self::Limit => &row.limit_bytes,
        }
    }
}

#[inline]
fn account(layout: &Layout<AtomicU64>, device: Device, tenant: Tenant) -> &AccountRow<AtomicU64> {
    // The remainders tell the compiler what the constructors ensure.
    &layout.accounts[usize::from(tenant.0) % TENANTS][usize::from(device.0) % DEVICES]
}

/// Adds to a counter and lifts its peak. The sums that the additions return
/// are all the values the counter ever has, so the peak is exact.
#[inline]
fn raise(live: &AtomicU64, peak: &AtomicU64, bytes: u64) {
    let now = live.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    if now > peak.load(Relaxed) {
        peak.fetch_max(now, Relaxed);
    }
}

fn store_name(words: &[AtomicU64], len_bytes: &AtomicU64, name: &str) {
    for (word, value) in words.iter().zip(name_words(name)) {
        word.store(value, Relaxed);
    }
    // The length last: until then the name is not there.
    len_bytes.store(name.len() as u64, Release);
}

/// A name's key, never 0: FNV-1a. Should two ever agree they share a row, and
/// its sums stay right.
fn key_of(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.max(1)
}

fn write_header(layout: &Layout<AtomicU64>, process: &Process) {
    let header = &layout.header;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let begun_at = since_1970.map_or(0, |since| since.as_nanos() as u64);
    for (word, value) in [
        (&header.version, VERSION),
        (&header.file_bytes, FILE_BYTES as u64),
        (&header.pid, process.pid),
        (&header.start_ticks, process.start_ticks),
        (&header.pid_namespace, process.sight.pid_namespace),
        (&header.boot_id[0], process.sight.boot_id[0]),
        (&header.boot_id[1], process.sight.boot_id[1]),
        (&header.begun_at_unix_ns, begun_at),
        (&header.device_rows, DEVICES as u64),
        (&header.tenant_rows, TENANTS as u64),
        (&header.stream_rows, STREAMS as u64),
        (&header.thread_rows, THREADS as u64),
        (&header.event_rows, EVENTS as u64),
    ] {
        word.store(value, Relaxed);
    }
    let program = env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let program = program.to_string_lossy();
    store_name(
        &header.program,
        &header.program_len,
        cut(&program, PROGRAM_BYTES),
    );
    header.magic.store(MAGIC, Release);
}
