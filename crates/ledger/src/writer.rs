//! Writer side of the ledger, used by the threads of the governed process.
//!
//! Invariants: once a ledger is open, nothing here fails, waits or allocates. A charge is given
//! back to the cell it was made to, so sums hold whichever thread frees. In the child of a fork
//! every call does nothing.
//!
//! Counters are relaxed: each is a number by itself. Live bytes are the allocated ones less the
//! freed ones, which are never negative in a cell, since a block is freed by a thread that learned
//! of its allocation.

use std::env;
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::cells::{self, AccountKey};
use crate::collect::collect_memory;
use crate::error::{Error, FormatError, LedgerWarning, Result};
use crate::folder::Folder;
use crate::format::{
    AccountRow, CELLS, CellRow, DEVICES, DeviceRow, EVENTS, EventKind, FILE_BYTES, Governed,
    LedgerLayout, MAGIC, NAME_BYTES, OTHERS, PROGRAM_BYTES, SHARED, TENANTS, VERSION, cut,
    name_words,
};
use crate::map::{ChangeCount, LedgerMap};
use crate::owner::OwnerProcess;
use crate::snapshot::{self, LedgerSnapshot, OwnerState};

/// A process's ledger, for writing; any number of threads may use it.
#[derive(Debug)]
pub struct Ledger {
    map: LedgerMap,
    /// The file and its path. Its lock marks this process as alive.
    file: Option<(File, PathBuf)>,
    begun: Instant,
    /// The next writer number for a [`ThreadLedger`].
    writers: AtomicU64,
}

/// A thread publishes its change to the levels, and so to the peaks, once it reaches this many
/// bytes: a peak may miss as much per thread.
pub const STEP_BYTES: u64 = 256 << 10;

/// A device's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LedgerDevice(u8);

/// A tenant's row; the default is the one shared by tenants without their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tenant(u8);

impl Tenant {
    /// The row shared by all tenants without a row of their own.
    pub const OTHERS: Tenant = Tenant(OTHERS as u8);

    /// The tenant of row `index`; `None` if there is no such row.
    pub fn from_index(index: u32) -> Option<Tenant> {
        let index = u8::try_from(index).ok()?;
        (usize::from(index) < TENANTS).then_some(Tenant(index))
    }

    /// The index of its row.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The cell that an allocation was charged to: stored with the block, and its free is counted
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CellId(u16);

/// One thread's handle to the ledger. When it is dropped, other threads can take its cells once
/// nothing charged to them is live.
#[derive(Debug)]
pub struct ThreadLedger<'a> {
    ledger: &'a Ledger,
    /// Unique among all handles of this ledger.
    writer: u64,
    /// The thread's number.
    thread: u64,
    /// The cell used last, with its key.
    last: Option<(AccountKey, u16)>,
}

/// Figures of a device that are set by the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Physical memory taken from the driver.
    Pooled,
    /// The mapped part of it.
    Mapped,
    /// Free and reusable at once.
    Ready,
    /// Free, but pending work may still access it.
    Waiting,
    /// The process's limit; 0 for no limit.
    Limit,
}

/// An event for the ring. [`EventKind`] documents the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LedgerEvent {
    /// Its kind.
    pub kind: EventKind,
    /// The device it happened on.
    pub device: LedgerDevice,
    /// The tenant that caused it.
    pub tenant: Tenant,
    /// The number of bytes.
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

impl LedgerDevice {
    /// The row of the device with this ordinal. All ordinals from the last row on share it, so that
    /// no byte is lost.
    pub fn new(ordinal: u32) -> LedgerDevice {
        LedgerDevice(ordinal.min(DEVICES as u32 - 1) as u8)
    }

    pub(crate) fn row(self, layout: &LedgerLayout<AtomicU64>) -> &DeviceRow<AtomicU64> {
        &layout.devices[usize::from(self.0) % DEVICES]
    }
}

impl Ledger {
    /// Opens this process's ledger in the user's folder ([`Folder::from_env`]) and sweeps those
    /// of processes that are gone. If there can be no file, the ledger is in memory that only
    /// [`Ledger::snapshot`] sees, and the warning gives the reason. `run` is the run that the
    /// process belongs to, if a launcher started it.
    pub fn open(run: Option<NonZeroU64>) -> (Ledger, Option<LedgerWarning>) {
        Self::fallible(Folder::from_env().and_then(|folder| Self::in_file(&folder, run)))
    }

    /// As [`Ledger::open`], in the given folder.
    pub fn open_in(folder: &Folder, run: Option<NonZeroU64>) -> (Ledger, Option<LedgerWarning>) {
        Self::fallible(Self::in_file(folder, run))
    }

    fn fallible(opened: Result<Ledger>) -> (Ledger, Option<LedgerWarning>) {
        match opened {
            Ok(ledger) => (ledger, None),
            Err(reason) => (Self::in_memory(), Some(LedgerWarning { reason })),
        }
    }

    fn in_file(folder: &Folder, run: Option<NonZeroU64>) -> Result<Ledger> {
        // A failed sweep does not prevent opening a ledger.
        folder.sweep().ok();
        let process = OwnerProcess::this();
        let draft = folder.draft(&process)?;
        let mapping = Error::system("map a ledger in", folder.path());
        let map = draft.file().and_then(LedgerMap::file).map_err(mapping)?;
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
        let map = LedgerMap::anonymous();
        write_header(map.layout(), &OwnerProcess::this(), None);
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

    /// Whether this process opened it. The child of a fork has to open its own: it cannot write
    /// this one.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.map.is_mine()
    }

    /// The process's change counter, for its owner to count in; `None` where the kernel is too old
    /// to zero it in the child of a fork.
    pub fn changes(&self) -> Option<&ChangeCount> {
        self.map.changes()
    }

    /// The ledger's words, unless this is the child of a fork.
    #[inline]
    pub(crate) fn layout(&self) -> Option<&LedgerLayout<AtomicU64>> {
        self.map.is_mine().then(|| self.map.layout())
    }

    /// The row of the tenant named `name`, created if there is room. Names that agree in their
    /// first 48 bytes have different rows, but look alike.
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

    /// A handle for the thread with this number, of which the lowest 48 bits are kept. To be kept
    /// as long as the thread runs.
    pub fn local(&self, thread: u64) -> ThreadLedger<'_> {
        ThreadLedger {
            ledger: self,
            writer: self.writers.fetch_add(1, Relaxed),
            thread,
            last: None,
        }
    }

    /// Charges an allocation of a thread that has no [`ThreadLedger`] (any more): to `tenant`, and
    /// to no stream and thread.
    pub fn charge(&self, device: LedgerDevice, tenant: Tenant, bytes: u64) -> CellId {
        let charge = self.cell(device, tenant);
        self.count(charge, bytes);
        charge
    }

    /// The shared cell of `tenant`, for an allocation that is yet to be made.
    pub fn cell(&self, device: LedgerDevice, tenant: Tenant) -> CellId {
        CellId(AccountKey::new(device.0, tenant.0, 0, 0).shared() as u16)
    }

    /// Counts an allocation of `bytes` in the cell that [`Ledger::cell`] named.
    pub fn count(&self, charge: CellId, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        let cell = charge.cell(layout);
        cell.charge_shared(bytes);
        move_levels(layout, charge.account_key(cell), bytes);
    }

    /// Counts a free of `bytes`, for a thread that has no [`ThreadLedger`].
    pub fn discharge(&self, charge: CellId, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        let cell = charge.cell(layout);
        cell.discharge_foreign(bytes);
        move_levels(layout, charge.account_key(cell), bytes.wrapping_neg());
    }

    /// Charges memory that the driver allocated itself.
    #[inline]
    pub fn govern(&self, device: LedgerDevice, tenant: Tenant, kind: Governed, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        device.row(layout).governed_bytes[kind as usize].fetch_add(bytes, Relaxed);
        account(layout, device, tenant)
            .governed_bytes
            .fetch_add(bytes, Relaxed);
    }

    /// Reverts a charge of [`Ledger::govern`].
    #[inline]
    pub fn release(&self, device: LedgerDevice, tenant: Tenant, kind: Governed, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        device.row(layout).governed_bytes[kind as usize].fetch_sub(bytes, Relaxed);
        account(layout, device, tenant)
            .governed_bytes
            .fetch_sub(bytes, Relaxed);
    }

    /// The epoch of a device's memory: how often it was reset.
    pub fn epoch(&self, device: LedgerDevice) -> u64 {
        self.layout()
            .map_or(0, |it| device.row(it).epoch.load(Relaxed))
    }

    /// The bytes that [`Ledger::govern`] has charged to a tenant and that are not released.
    pub fn governed(&self, device: LedgerDevice, tenant: Tenant) -> u64 {
        self.layout().map_or(0, |layout| {
            account(layout, device, tenant).governed_bytes.load(Relaxed)
        })
    }

    /// Sets a figure of the pool. Only for the holder of that device's pool lock: of two concurrent
    /// writes, one is lost.
    #[inline]
    pub fn set(&self, device: LedgerDevice, gauge: Gauge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        gauge.word(device.row(layout)).store(bytes, Relaxed);
    }

    /// Adds to a figure of the pool; any thread may call it.
    #[inline]
    pub fn add(&self, device: LedgerDevice, gauge: Gauge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        gauge.word(device.row(layout)).fetch_add(bytes, Relaxed);
    }

    /// Subtracts from a figure of the pool what was added before.
    #[inline]
    pub fn subtract(&self, device: LedgerDevice, gauge: Gauge, bytes: u64) {
        let Some(layout) = self.layout() else { return };
        gauge.word(device.row(layout)).fetch_sub(bytes, Relaxed);
    }

    /// Sets the limit of `tenant` on `device`; 0 for no limit.
    pub fn set_tenant_limit(&self, device: LedgerDevice, tenant: Tenant, limit_bytes: u64) {
        let Some(layout) = self.layout() else { return };
        account(layout, device, tenant)
            .limit_bytes
            .store(limit_bytes, Relaxed);
    }

    /// Stores the driver's figures for a device, and the used bytes that nothing here accounts for.
    pub fn reconcile(
        &self,
        device: LedgerDevice,
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
    pub fn record(&self, event: LedgerEvent) {
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

    /// The current content.
    ///
    /// # Errors
    /// [`FormatError`] if another process has overwritten the file's header.
    pub fn snapshot(&self) -> std::result::Result<LedgerSnapshot, FormatError> {
        let collected = collect_memory(self.map.words());
        snapshot::assemble(&collected, FILE_BYTES as u64, OwnerState::Alive)
    }

    /// Nanoseconds since the ledger was opened. The clock is read in user space.
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

impl ThreadLedger<'_> {
    /// Charges an allocation to `tenant` and `stream`, before its address is given to any caller.
    /// The stream's number must be unique in the process, as `cuStreamGetId` returns it.
    #[inline]
    pub fn charge(
        &mut self,
        device: LedgerDevice,
        tenant: Tenant,
        stream: u64,
        bytes: u64,
    ) -> CellId {
        let charge = self.cell(device, tenant, stream);
        self.count(charge, bytes);
        charge
    }

    /// The cell for an allocation of `tenant` in `stream` that is yet to be made: a refused one is
    /// not counted. Valid until the next call of this method.
    #[inline]
    pub fn cell(&mut self, device: LedgerDevice, tenant: Tenant, stream: u64) -> CellId {
        let Some(layout) = self.ledger.layout() else {
            return CellId(0);
        };
        let key = AccountKey::new(device.0, tenant.0, self.thread, stream);
        match self.last {
            Some((last, place)) if last == key => CellId(place),
            _ => match self.find(layout, key) {
                Some(place) => CellId(place),
                None => self.ledger.cell(device, tenant),
            },
        }
    }

    /// Counts an allocation of `bytes` in the cell returned by [`ThreadLedger::cell`], before its
    /// address is given to any caller.
    #[inline]
    pub fn count(&mut self, charge: CellId, bytes: u64) {
        if usize::from(charge.0) < SHARED {
            return self.ledger.count(charge, bytes);
        }
        let Some(layout) = self.ledger.layout() else {
            return;
        };
        let cell = charge.cell(layout);
        cell.charge(bytes);
        if let Some(change) = cell.move_level(bytes, STEP_BYTES) {
            move_levels(layout, cell.account_key(), change);
        }
    }

    /// Counts a free of `bytes`, whichever thread allocated them.
    #[inline]
    pub fn discharge(&mut self, charge: CellId, bytes: u64) {
        let Some(layout) = self.ledger.layout() else {
            return;
        };
        let cell = charge.cell(layout);
        // A cell with a live block is never taken over, so this stays true.
        if !cell.is_of(self.writer) {
            return self.ledger.discharge(charge, bytes);
        }
        cell.discharge(bytes);
        if let Some(change) = cell.move_level(bytes.wrapping_neg(), STEP_BYTES) {
            move_levels(layout, cell.account_key(), change);
        }
    }

    /// Finds or takes a cell; `None` if none is available.
    #[cold]
    fn find(&mut self, layout: &LedgerLayout<AtomicU64>, key: AccountKey) -> Option<u16> {
        // The cell used last may be taken for `key`.
        self.last = None;
        let publish = |was, bytes| move_levels(layout, was, bytes);
        let place = cells::find_or_take(&layout.cells, SHARED, self.writer, key, publish)?;
        self.last = Some((key, place as u16));
        Some(place as u16)
    }
}

impl Drop for ThreadLedger<'_> {
    fn drop(&mut self) {
        if let Some(layout) = self.ledger.layout() {
            cells::leave(&layout.cells[SHARED..], self.writer);
        }
    }
}

impl CellId {
    #[inline]
    fn cell(self, layout: &LedgerLayout<AtomicU64>) -> &CellRow<AtomicU64> {
        // The remainder tells the compiler what the constructors ensure.
        &layout.cells[usize::from(self.0) % CELLS]
    }

    /// The account the cell belongs to; that of a shared cell follows from its index.
    fn account_key(self, cell: &CellRow<AtomicU64>) -> AccountKey {
        let place = usize::from(self.0);
        if place < SHARED {
            return AccountKey::new((place % DEVICES) as u8, (place / DEVICES) as u8, 0, 0);
        }
        cell.account_key()
    }
}

fn account(
    layout: &LedgerLayout<AtomicU64>,
    device: LedgerDevice,
    tenant: Tenant,
) -> &AccountRow<AtomicU64> {
    // The remainders tell the compiler what the constructors ensure.
    &layout.accounts[usize::from(tenant.0) % TENANTS][usize::from(device.0) % DEVICES]
}

/// Publishes a change to the levels of a device and a tenant's account, and raises their peaks. Not
/// inlined: threads with large blocks call it each time.
#[inline(never)]
fn move_levels(layout: &LedgerLayout<AtomicU64>, key: AccountKey, change: u64) {
    if change == 0 {
        return;
    }
    let device = &layout.devices[key.device() % DEVICES];
    let account = &layout.accounts[key.tenant() % TENANTS][key.device() % DEVICES];
    for (level, peak) in [
        (&device.level_bytes, &device.peak_bytes),
        (&account.level_bytes, &account.peak_bytes),
    ] {
        let now = level.fetch_add(change, Relaxed).wrapping_add(change);
        // A free may be published before its allocation: then the level is negative.
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
    // The length last: until then the name is not visible.
    len_bytes.store(name.len() as u64, Release);
}

/// A name's key, never 0: FNV-1a. Two names with the same hash would share a row, and its sums stay
/// right.
fn key_of(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.max(1)
}

fn write_header(layout: &LedgerLayout<AtomicU64>, process: &OwnerProcess, run: Option<NonZeroU64>) {
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
