//! The writer: what the hooked program's threads do to their process's ledger.
//!
//! Invariants: after it was opened nothing here fails, waits or allocates.
//! What is charged to a cell is given back there, so sums hold whoever frees.
//! In the child of a fork every call does nothing.
//!
//! Counters are relaxed: each is a number by itself. What is live is what was
//! allocated less what was freed, which no cell has less of than 0, since a
//! block is given back by someone who learned of its allocation.

use std::env;
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::cells::{self, Who};
use crate::error::{Error, FormatError, Result, Warning};
use crate::folder::Folder;
use crate::format::{
    AccountRow, CELLS, CellRow, DEVICES, DeviceRow, EVENTS, EventKind, FILE_BYTES, Governed,
    Layout, MAGIC, NAME_BYTES, PROGRAM_BYTES, SHARED, TENANTS, VERSION, cut, name_words,
};
use crate::map::{Changes, Map};
use crate::owner::Process;
use crate::reader::collect_memory;
use crate::snapshot::{self, Owner, Snapshot};

/// A process's ledger, for writing; any number of threads may use it.
#[derive(Debug)]
pub struct Ledger {
    map: Map,
    /// The file, whose lock says that this process lives, and its path.
    file: Option<(File, PathBuf)>,
    begun: Instant,
    /// Numbers for [`Local`]s.
    writers: AtomicU64,
}

/// A thread tells levels, and so peaks, once what it holds has changed by this
/// much: a peak may miss as much of each thread.
pub const STEP_BYTES: u64 = 256 << 10;

/// The row for tenants that found no room.
pub(crate) const OTHERS: usize = 0;

/// A device's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device(u8);

/// A tenant's row; the default is that of all who have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tenant(u8);

impl Tenant {
    /// All who have no row of their own.
    pub const OTHERS: Tenant = Tenant(OTHERS as u8);

    /// That of a row; none if there is no such row.
    pub fn of_index(index: u32) -> Option<Tenant> {
        let index = u8::try_from(index).ok()?;
        (usize::from(index) < TENANTS).then_some(Tenant(index))
    }

    /// Its row.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The cell that an allocation was charged to: kept with the block, since it is
/// given back there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Charge(u16);

/// One thread's way into the ledger. When it is dropped its cells are others'
/// once nothing charged to them is live.
#[derive(Debug)]
pub struct Local<'a> {
    ledger: &'a Ledger,
    /// Different from that of every other one there ever was.
    writer: u64,
    /// The thread's number.
    thread: u64,
    /// The cell used last.
    last: Option<(Who, u16)>,
}

/// Figures of a device that the pool sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Physical memory taken from the driver.
    Pooled,
    /// That part of it which is mapped.
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

    pub(crate) fn row(self, layout: &Layout<AtomicU64>) -> &DeviceRow<AtomicU64> {
        &layout.devices[usize::from(self.0) % DEVICES]
    }
}

impl Ledger {
    /// Opens this process's ledger in the user's folder ([`Folder::from_env`])
    /// and sweeps those whose owners are gone. If there can be no file, the
    /// ledger is in memory that only [`Ledger::snapshot`] sees, and the warning
    /// says why. `run` is the run that the process belongs to, if a launcher
    /// started it.
    pub fn open(run: Option<NonZeroU64>) -> (Ledger, Option<Warning>) {
        Self::fallible(Folder::from_env().and_then(|folder| Self::in_file(&folder, run)))
    }

    /// [`Ledger::open`] in a folder of the caller's choice.
    pub fn open_in(folder: &Folder, run: Option<NonZeroU64>) -> (Ledger, Option<Warning>) {
        Self::fallible(Self::in_file(folder, run))
    }

    fn fallible(opened: Result<Ledger>) -> (Ledger, Option<Warning>) {
        match opened {
            Ok(ledger) => (ledger, None),
            Err(reason) => (Self::in_memory(), Some(Warning { reason })),
        }
    }

    fn in_file(folder: &Folder, run: Option<NonZeroU64>) -> Result<Ledger> {
        // What cannot be swept is no reason to go without.
        folder.sweep().ok();
        let process = Process::this();
        let draft = folder.draft(&process)?;
        let mapping = Error::system("map a ledger in", folder.path());
        let map = draft.file().and_then(Map::file).map_err(mapping)?;
        write_header(map.layout(), &process, run);
        Ok(Ledger {
            map,
            file: Some(draft.publish()?),
            begun: Instant::now(),
            writers: AtomicU64::new(1),
        })
    }

    /// A ledger in memory that only this process sees.
    pub fn in_memory() -> Ledger {
        let map = Map::anonymous();
        write_header(map.layout(), &Process::this(), None);
        Ledger {
            map,
            file: None,
            begun: Instant::now(),
            writers: AtomicU64::new(1),
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

    /// Counts for its owner what changes in this process; none where the kernel
    /// is too old to empty it in the child of a fork.
    pub fn changes(&self) -> Option<&Changes> {
        self.map.changes()
    }

    /// The ledger's words, unless this is the child of a fork.
    #[inline]
    pub(crate) fn layout(&self) -> Option<&Layout<AtomicU64>> {
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

    /// A way into the ledger for the thread with this number, of which the
    /// lowest 48 bits are kept. For as long as the thread runs.
    pub fn local(&self, thread: u64) -> Local<'_> {
        Local {
            ledger: self,
            writer: self.writers.fetch_add(1, Relaxed),
            thread,
            last: None,
        }
    }

    /// Charges an allocation of a thread that has no [`Local`], or has it no
    /// more: to `tenant`, and to no stream and thread.
    pub fn charge(&self, device: Device, tenant: Tenant, bytes: u64) -> Charge {
        let charge = self.cell(device, tenant);
        self.count(charge, bytes);
        charge
    }

    /// The shared cell of `tenant`, for an allocation that is not made yet.
    pub fn cell(&self, device: Device, tenant: Tenant) -> Charge {
        Charge(Who::new(device.0, tenant.0, 0, 0).shared() as u16)
    }

    /// Counts an allocation of `bytes` in the cell that [`Ledger::cell`] named.
    pub fn count(&self, charge: Charge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        let cell = charge.cell(layout);
        cell.charge_shared(bytes);
        move_levels(layout, charge.who(cell), bytes);
    }

    /// Gives back an allocation of `bytes`, for a thread that has no [`Local`].
    pub fn discharge(&self, charge: Charge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        let cell = charge.cell(layout);
        cell.discharge_foreign(bytes);
        move_levels(layout, charge.who(cell), bytes.wrapping_neg());
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

    /// How often a device's memory has begun anew.
    pub fn epoch(&self, device: Device) -> u64 {
        self.layout()
            .map_or(0, |it| device.row(it).epoch.load(Relaxed))
    }

    /// What [`Ledger::govern`] has charged to a tenant and is not given back, in bytes.
    pub fn governed(&self, device: Device, tenant: Tenant) -> u64 {
        self.layout().map_or(0, |layout| {
            account(layout, device, tenant).governed_bytes.load(Relaxed)
        })
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

impl Local<'_> {
    /// Charges an allocation to `tenant` and `stream`, before its address is
    /// given to anyone. The stream's number must be the process's only one for
    /// it, as `cuStreamGetId` gives it.
    #[inline]
    pub fn charge(&mut self, device: Device, tenant: Tenant, stream: u64, bytes: u64) -> Charge {
        let charge = self.cell(device, tenant, stream);
        self.count(charge, bytes);
        charge
    }

    /// The cell for an allocation of `tenant` in `stream` that is not made yet:
    /// one that is refused was none. Good until the next call of this.
    #[inline]
    pub fn cell(&mut self, device: Device, tenant: Tenant, stream: u64) -> Charge {
        let Some(layout) = self.ledger.layout() else {
            return Charge(0);
        };
        let who = Who::new(device.0, tenant.0, self.thread, stream);
        match self.last {
            Some((last, place)) if last == who => Charge(place),
            _ => match self.find(layout, who) {
                Some(place) => Charge(place),
                None => self.ledger.cell(device, tenant),
            },
        }
    }

    /// Counts an allocation of `bytes` in the cell that [`Local::cell`] named,
    /// before its address is given to anyone.
    #[inline]
    pub fn count(&mut self, charge: Charge, bytes: u64) {
        if usize::from(charge.0) < SHARED {
            return self.ledger.count(charge, bytes);
        }
        let Some(layout) = self.ledger.layout() else {
            return;
        };
        let cell = charge.cell(layout);
        cell.charge(bytes);
        if let Some(change) = cell.move_level(bytes, STEP_BYTES) {
            move_levels(layout, cell.who(), change);
        }
    }

    /// Gives back an allocation of `bytes`, whoever made it.
    #[inline]
    pub fn discharge(&mut self, charge: Charge, bytes: u64) {
        let Some(layout) = self.ledger.layout() else {
            return;
        };
        let cell = charge.cell(layout);
        // A cell with a live block is taken by nobody, so this stays true.
        if !cell.is_of(self.writer) {
            return self.ledger.discharge(charge, bytes);
        }
        cell.discharge(bytes);
        if let Some(change) = cell.move_level(bytes.wrapping_neg(), STEP_BYTES) {
            move_levels(layout, cell.who(), change);
        }
    }

    /// Finds or takes a cell; `None` if there is none.
    #[cold]
    fn find(&mut self, layout: &Layout<AtomicU64>, who: Who) -> Option<u16> {
        // The one used last may be taken for `who`.
        self.last = None;
        let untold = |was, bytes| move_levels(layout, was, bytes);
        let place = cells::find_or_take(&layout.cells, SHARED, self.writer, who, untold)?;
        self.last = Some((who, place as u16));
        Some(place as u16)
    }
}

impl Drop for Local<'_> {
    fn drop(&mut self) {
        if let Some(layout) = self.ledger.layout() {
            cells::leave(&layout.cells[SHARED..], self.writer);
        }
    }
}

impl Charge {
    #[inline]
    fn cell(self, layout: &Layout<AtomicU64>) -> &CellRow<AtomicU64> {
        // The remainder tells the compiler what the constructors ensure.
        &layout.cells[usize::from(self.0) % CELLS]
    }

    /// Whose the cell is; a shared one's place says it.
    fn who(self, cell: &CellRow<AtomicU64>) -> Who {
        let place = usize::from(self.0);
        if place < SHARED {
            return Who::new((place % DEVICES) as u8, (place / DEVICES) as u8, 0, 0);
        }
        cell.who()
    }
}

fn account(layout: &Layout<AtomicU64>, device: Device, tenant: Tenant) -> &AccountRow<AtomicU64> {
    // The remainders tell the compiler what the constructors ensure.
    &layout.accounts[usize::from(tenant.0) % TENANTS][usize::from(device.0) % DEVICES]
}

/// Tells the levels of a device and a tenant's account, and lifts their peaks.
/// Not part of its callers: whoever has large blocks comes here each time.
#[inline(never)]
fn move_levels(layout: &Layout<AtomicU64>, who: Who, change: u64) {
    if change == 0 {
        return;
    }
    let device = &layout.devices[who.device() % DEVICES];
    let account = &layout.accounts[who.tenant() % TENANTS][who.device() % DEVICES];
    for (level, peak) in [
        (&device.level_bytes, &device.peak_bytes),
        (&account.level_bytes, &account.peak_bytes),
    ] {
        let now = level.fetch_add(change, Relaxed).wrapping_add(change);
        // A free may be told before its allocation: then it is below zero.
        let is_positive = now <= i64::MAX as u64;
        if is_positive && now > peak.load(Relaxed) {
            peak.fetch_max(now, Relaxed);
        }
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

fn write_header(layout: &Layout<AtomicU64>, process: &Process, run: Option<NonZeroU64>) {
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
        (&header.cell_rows, CELLS as u64),
        (&header.shared_cells, SHARED as u64),
        (&header.event_rows, EVENTS as u64),
        (&header.run, run.map_or(0, NonZeroU64::get)),
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
