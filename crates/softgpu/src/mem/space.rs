//! The address space, with the state of its granules.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::allocation::{AllocInfo, AllocKind, AllocationRecords, DriverCallSite};
use super::backing::{Backing, BackingInner, Heap, memory_file};
use super::error::{MemError, os_error};
use super::granule::{GRANULE, round_up};
use super::ranges::FreeRanges;
use super::window::Window;
use crate::check::{CheckContext, Shadow};
use crate::lock::lock;

/// Devices that access bits can tell apart.
pub const MAX_DEVICES: u32 = 16;

const HEAP_LEN: u64 = 1 << 42;

const FIRST_CHOICE: u64 = 0x0700_0000_0000;

/// Host memory that kernels may reach.
#[derive(Debug, Clone, Copy)]
struct RegisteredHost {
    len: u64,
    /// Bit `d`: device `d` may read.
    devices: u32,
    writable: bool,
}

impl RegisteredHost {
    fn allows(&self, device: u32, write: bool) -> bool {
        self.devices & (1 << device) != 0 && (self.writable || !write)
    }
}

/// The memory of one process's software devices.
///
/// Only this crate reserves and maps parts of it, and says what device may access them: an access
/// bit on addresses without memory would let safe code crash the process.
/// ```compile_fail
/// # fn main() -> Result<(), fercuda_softgpu::mem::MemError> {
/// let space = fercuda_softgpu::mem::AddressSpace::new(1 << 32, false)?;
/// space.set_access(space.base(), 1 << 21, 0, true, true)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AddressSpace {
    base: u64,
    size: u64,
    /// Bit `d`: device `d` may read; bit `16 + d`: may write.
    access: Box<[AtomicU32]>,
    addresses: Mutex<FreeRanges>,
    heap: Arc<Heap>,
    registered: RwLock<BTreeMap<u64, RegisteredHost>>,
    records: AllocationRecords,
    shadow: Option<Shadow>,
}

impl AddressSpace {
    /// Reserves `size` bytes of addresses; with `checks`, also a shadow of them.
    ///
    /// # Errors
    /// [`MemError::System`].
    pub fn new(size: u64, checks: bool) -> Result<Arc<Self>, MemError> {
        let size = round_up(size);
        let file = Arc::new(memory_file(HEAP_LEN)?);
        // A fixed hint, so that reports of two runs of a program have the same addresses.
        // SAFETY: without MAP_FIXED the kernel takes the address as a hint and replaces nothing of
        // ours.
        let raw = unsafe {
            libc::mmap(
                FIRST_CHOICE as *mut c_void,
                (size + GRANULE) as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(os_error("reserve addresses", size));
        }
        let base = (raw as u64).next_multiple_of(GRANULE);
        let mut offsets = FreeRanges::default();
        offsets.give(0, HEAP_LEN);
        let mut addresses = FreeRanges::default();
        addresses.give(base, size);
        let mut space = AddressSpace {
            base,
            size,
            access: (0..size / GRANULE).map(|_| AtomicU32::new(0)).collect(),
            addresses: Mutex::new(addresses),
            heap: Arc::new(Heap {
                file,
                free: Mutex::new(offsets),
                used: AtomicU64::new(0),
                exported: Mutex::default(),
            }),
            registered: RwLock::default(),
            records: AllocationRecords::default(),
            shadow: None,
        };
        // If that fails, dropping the space gives the addresses back.
        space.shadow = checks.then(|| Shadow::new(base, size)).transpose()?;
        Ok(Arc::new(space))
    }

    /// First address.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of addresses.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The shadow, if checks are on.
    #[must_use]
    pub fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    /// Whether all of the range lies in this space.
    #[must_use]
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        addr >= self.base && len <= self.size && addr - self.base <= self.size - len
    }

    /// Takes a run of addresses, at `hint` if that is free (0: anywhere). Nothing is mapped there
    /// yet.
    ///
    /// # Errors
    /// [`MemError::NoAddresses`].
    pub(crate) fn reserve(&self, len: u64, align: u64, hint: u64) -> Result<u64, MemError> {
        let len = round_up(len);
        let mut free = lock(&self.addresses);
        if hint != 0 && hint.is_multiple_of(align.max(GRANULE)) && free.take_at(hint, len) {
            return Ok(hint);
        }
        free.take(len, align.max(GRANULE))
            .ok_or(MemError::NoAddresses { len })
    }

    /// As [`AddressSpace::reserve`]; addresses that were not asked for have vacant ones on both
    /// sides, at least a granule.
    ///
    /// # Errors
    /// [`MemError::NoAddresses`].
    pub(crate) fn reserve_apart(&self, len: u64, align: u64, hint: u64) -> Result<u64, MemError> {
        let (len, align) = (round_up(len), align.max(GRANULE));
        let mut free = lock(&self.addresses);
        if hint != 0 && hint.is_multiple_of(align) && free.take_at(hint, len) {
            return Ok(hint);
        }
        let around = len.saturating_add(align.saturating_add(GRANULE));
        let Some(whole) = free.take(around, align) else {
            // Side by side rather than not at all.
            return free.take(len, align).ok_or(MemError::NoAddresses { len });
        };
        free.give(whole, align);
        free.give(whole + align + len, GRANULE);
        // What was freed there before is marked so.
        self.set_guard(whole + align - GRANULE, GRANULE);
        self.set_guard(whole + align + len, GRANULE);
        Ok(whole + align)
    }

    /// Gives back a run of addresses, unmapped before.
    pub(crate) fn release(&self, start: u64, len: u64) {
        lock(&self.addresses).give(start, round_up(len));
    }

    /// Takes physical memory.
    ///
    /// # Errors
    /// [`MemError::NoAddresses`] after 4 TiB.
    pub(crate) fn backing(&self, len: u64) -> Result<Backing, MemError> {
        let len = round_up(len);
        self.heap.collect();
        let offset = lock(&self.heap.free)
            .take(len, GRANULE)
            .ok_or(MemError::NoAddresses { len })?;
        self.heap.used.fetch_add(len, Ordering::Relaxed);
        Ok(Backing(Arc::new(BackingInner {
            file: self.heap.file.clone(),
            offset,
            len,
            heap: Some(self.heap.clone()),
            exported: AtomicBool::new(false),
        })))
    }

    /// Maps `len` bytes of `backing` from `offset` at `start`, without access for any device.
    ///
    /// The caller keeps `backing` for as long as it is mapped.
    ///
    /// # Errors
    /// [`MemError::BadRange`] outside this space or not in granules; [`MemError::System`].
    pub(crate) fn map(
        &self,
        start: u64,
        len: u64,
        backing: &Backing,
        offset: u64,
    ) -> Result<(), MemError> {
        self.granules(start, len)?;
        if offset
            .checked_add(len)
            .is_none_or(|end| end > round_up(backing.len()))
        {
            return Err(MemError::BadRange {
                start: offset,
                len,
                what: "outside the physical memory",
            });
        }
        // SAFETY: the range is inside our own reservation (checked above), so only our mappings are
        // replaced.
        let at = unsafe {
            libc::mmap(
                start as *mut c_void,
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                backing.fd(),
                (backing.offset() + offset) as i64,
            )
        };
        if at == libc::MAP_FAILED {
            Err(os_error("map memory", len))
        } else {
            Ok(())
        }
    }

    /// Takes all access away and unmaps.
    ///
    /// # Errors
    /// [`MemError::BadRange`], [`MemError::System`].
    pub(crate) fn unmap(&self, start: u64, len: u64) -> Result<(), MemError> {
        for g in self.granules(start, len)? {
            self.access[g].store(0, Ordering::Release);
        }
        // SAFETY: inside our own reservation. Readable anonymous memory rather than a hole, so that
        // a kernel that looked up this range just before does not bring the process down.
        let at = unsafe {
            libc::mmap(
                start as *mut c_void,
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            Err(os_error("unmap memory", len))
        } else {
            Ok(())
        }
    }

    /// Sets `device`'s access to a mapped range.
    ///
    /// # Errors
    /// [`MemError::BadRange`].
    pub(crate) fn set_access(
        &self,
        start: u64,
        len: u64,
        device: u32,
        read: bool,
        write: bool,
    ) -> Result<(), MemError> {
        if device >= MAX_DEVICES {
            return Err(MemError::BadRange {
                start,
                len,
                what: "of a device beyond the last one",
            });
        }
        let bits = (u32::from(read) << device) | (u32::from(write) << (16 + device));
        let clear = !((1 << device) | (1 << (16 + device)));
        for g in self.granules(start, len)? {
            self.access[g]
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
                    Some((old & clear) | bits)
                })
                .ok();
        }
        Ok(())
    }

    /// What `device` may do at `addr`: (read, write).
    #[must_use]
    pub(crate) fn access_of(&self, addr: u64, device: u32) -> (bool, bool) {
        if !self.contains(addr, 1) {
            return (false, false);
        }
        let bits = self.access[((addr - self.base) / GRANULE) as usize].load(Ordering::Acquire);
        (bits & (1 << device) != 0, bits & (1 << (16 + device)) != 0)
    }

    /// Reserves, backs and maps at once, readable and writable by the devices in `devices` (bit
    /// `d`).
    ///
    /// # Errors
    /// As for the steps; nothing is left behind.
    pub fn map_new(&self, len: u64, devices: u32) -> Result<(u64, Backing), MemError> {
        let len = round_up(len);
        let backing = self.backing(len)?;
        let start = self.reserve(len, GRANULE, 0)?;
        if let Err(e) = self.map(start, len, &backing, 0) {
            self.release(start, len);
            return Err(e);
        }
        for device in (0..MAX_DEVICES).filter(|d| devices & (1 << d) != 0) {
            if let Err(e) = self.set_access(start, len, device, true, true) {
                self.unmap(start, len)?;
                self.release(start, len);
                return Err(e);
            }
        }
        Ok((start, backing))
    }

    /// Makes ordinary host memory reachable by the devices in `devices`.
    ///
    /// # Safety
    /// The memory stays mapped and readable, if `writable` also writable, until
    /// [`AddressSpace::unregister_host`].
    ///
    /// # Errors
    /// [`MemError::BadRange`] if part of it is registered.
    pub(crate) unsafe fn register_host(
        &self,
        start: u64,
        len: u64,
        devices: u32,
        writable: bool,
    ) -> Result<(), MemError> {
        let mut map = self
            .registered
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if map
            .range(..start + len)
            .next_back()
            .is_some_and(|(&s, r)| s + r.len > start)
        {
            return Err(MemError::BadRange {
                start,
                len,
                what: "registered already",
            });
        }
        let registered = RegisteredHost {
            len,
            devices,
            writable,
        };
        map.insert(start, registered);
        Ok(())
    }

    /// Ends a registration; returns its length, or `None` if there is none at `start`.
    pub(crate) fn unregister_host(&self, start: u64) -> Option<u64> {
        self.registered
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&start)
            .map(|r| r.len)
    }

    /// The host address for an access by `device`, if it may.
    #[must_use]
    pub(crate) fn translate(
        &self,
        device: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Option<*mut u8> {
        if self.contains(addr, len.max(1)) {
            let first = ((addr - self.base) / GRANULE) as usize;
            let last = ((addr - self.base + len.max(1) - 1) / GRANULE) as usize;
            let bit = Self::bit(device, write);
            return self.access[first..=last]
                .iter()
                .all(|a| a.load(Ordering::Acquire) & bit != 0)
                .then_some(addr as *mut u8);
        }
        let map = self
            .registered
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let (&start, r) = map.range(..=addr).next_back()?;
        (r.allows(device, write) && addr.checked_add(len)? <= start + r.len)
            .then_some(addr as *mut u8)
    }

    /// The longest run of addresses around `addr` (looking at most 1 GiB each way) that `device`
    /// may access.
    pub(crate) fn window(&self, device: u32, addr: u64, write: bool) -> Option<Window> {
        if !self.contains(addr, 1) {
            let map = self
                .registered
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            let (&start, r) = map.range(..=addr).next_back()?;
            // SAFETY: a registered range is accessible by the contract of `register_host`; one that
            // is not writable becomes no window to write through.
            return (r.allows(device, write) && addr < start + r.len)
                .then(|| unsafe { Window::new(start, start + r.len) });
        }
        let bit = Self::bit(device, write);
        let ok = |g: usize| self.access[g].load(Ordering::Acquire) & bit != 0;
        let at = ((addr - self.base) / GRANULE) as usize;
        if !ok(at) {
            return None;
        }
        let mut lo = at;
        while lo > 0 && at - lo < 512 && ok(lo - 1) {
            lo -= 1;
        }
        let mut hi = at + 1;
        while hi < self.access.len() && hi - at < 512 && ok(hi) {
            hi += 1;
        }
        // SAFETY: granules with an access bit are mapped readable and writable, and stay mapped
        // (module invariant).
        Some(unsafe {
            Window::new(
                self.base + lo as u64 * GRANULE,
                self.base + hi as u64 * GRANULE,
            )
        })
    }

    fn bit(device: u32, write: bool) -> u32 {
        if write {
            1 << (16 + device)
        } else {
            1 << device
        }
    }

    fn granules(&self, start: u64, len: u64) -> Result<std::ops::Range<usize>, MemError> {
        if !self.contains(start, len)
            || !start.is_multiple_of(GRANULE)
            || !len.is_multiple_of(GRANULE)
        {
            return Err(MemError::BadRange {
                start,
                len,
                what: "not whole granules of this address space",
            });
        }
        let first = ((start - self.base) / GRANULE) as usize;
        Ok(first..first + (len / GRANULE) as usize)
    }

    // ---- records -------------------------------------------------------------------------

    /// Records an allocation. With checks on, its bytes become accessible, and initialised if
    /// `initialised`; `ctx` is the operation that made it.
    #[expect(
        clippy::too_many_arguments,
        reason = "a record's fields, each of another type"
    )]
    pub fn add(
        &self,
        start: u64,
        len: u64,
        kind: AllocKind,
        device: u32,
        name: Option<Arc<str>>,
        made: DriverCallSite,
        initialised: bool,
        ctx: Option<&CheckContext>,
    ) -> Arc<AllocInfo> {
        let info = self.records.add(start, len, kind, device, name, made);
        if let Some(shadow) = &self.shadow {
            shadow.allocated(&self.records, &info, initialised, ctx);
        }
        info
    }

    /// Marks a range as part of no allocation, whatever was there before. Only checks see it.
    pub(crate) fn set_guard(&self, start: u64, len: u64) {
        if let Some(shadow) = &self.shadow {
            shadow.clear(start, len);
        }
    }

    /// Drops the records of accesses to a range, whose next owner no work of the last one concerns.
    /// Only checks have any.
    pub(crate) fn forget_accesses(&self, start: u64, len: u64) {
        if let Some(shadow) = &self.shadow {
            shadow.forget(start, len);
        }
    }

    /// Retires the allocation that starts at `start`. With checks on, later accesses are uses after
    /// free, and uses that `ctx`'s operation does not follow are hazards.
    pub fn retire(
        &self,
        start: u64,
        freed: DriverCallSite,
        ctx: Option<&CheckContext>,
    ) -> Option<Arc<AllocInfo>> {
        let info = self.records.retire(start, freed)?;
        if let Some(shadow) = &self.shadow {
            shadow.freed(&self.records, &info, ctx);
        }
        Some(info)
    }

    /// The live allocation that holds `addr`.
    #[must_use]
    pub fn find_live(&self, addr: u64) -> Option<Arc<AllocInfo>> {
        self.records.find_live(addr)
    }

    /// The allocation that holds `addr`, else the one freed last that did.
    #[must_use]
    pub fn find(&self, addr: u64) -> Option<Arc<AllocInfo>> {
        self.records.find(addr)
    }

    /// The live allocations on either side of `addr`: the last that starts at or before it, the
    /// first after.
    #[must_use]
    pub fn neighbours(&self, addr: u64) -> (Option<Arc<AllocInfo>>, Option<Arc<AllocInfo>>) {
        self.records.neighbours(addr)
    }

    /// Every live allocation, by address.
    #[must_use]
    pub fn live(&self) -> Vec<Arc<AllocInfo>> {
        self.records.live()
    }

    // ---- bulk operations of the driver ------------------------------------------------------

    /// Copies between two ranges that the caller has found accessible with
    /// [`AddressSpace::translate`] or that are the program's own host memory. In check mode records
    /// the copy in the shadow.
    ///
    /// # Safety
    /// `src..src+len` is readable and `dst..dst+len` writable for the duration.
    pub(crate) unsafe fn copy(&self, dst: u64, src: u64, len: u64, ctx: Option<&CheckContext>) {
        if let (Some(shadow), Some(ctx)) = (&self.shadow, ctx) {
            shadow.copied(&self.records, dst, src, len, ctx);
        }
        // SAFETY: by this function's contract. `copy` tolerates overlap, as the driver does.
        unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, len as usize) }
    }

    /// Fills `count` elements of `width` (1, 2 or 4) bytes.
    ///
    /// # Safety
    /// The range is writable for the duration.
    pub(crate) unsafe fn fill(
        &self,
        dst: u64,
        value: u32,
        width: u64,
        count: u64,
        ctx: Option<&CheckContext>,
    ) {
        if let (Some(shadow), Some(ctx)) = (&self.shadow, ctx) {
            shadow.written(&self.records, dst, width * count, ctx);
        }
        // SAFETY: by this function's contract; elements may be unaligned, hence bytes or unaligned
        // writes.
        unsafe {
            match width {
                1 => std::ptr::write_bytes(dst as *mut u8, value as u8, count as usize),
                2 => (0..count as usize)
                    .for_each(|i| (dst as *mut u16).add(i).write_unaligned(value as u16)),
                _ => (0..count as usize)
                    .for_each(|i| (dst as *mut u32).add(i).write_unaligned(value)),
            }
        }
    }

    /// Reads device memory into `out`.
    ///
    /// # Errors
    /// [`MemError::BadRange`] if the range is not accessible to `device`.
    pub fn read(
        &self,
        device: u32,
        addr: u64,
        out: &mut [u8],
        ctx: Option<&CheckContext>,
    ) -> Result<(), MemError> {
        let len = out.len() as u64;
        let at = (device < MAX_DEVICES)
            .then(|| self.translate(device, addr, len, false))
            .flatten()
            .ok_or(MemError::BadRange {
                start: addr,
                len,
                what: "not accessible",
            })?;
        if let (Some(shadow), Some(ctx)) = (&self.shadow, ctx) {
            shadow.read(&self.records, addr, len, ctx);
        }
        // SAFETY: `translate` found the whole range mapped; `out` is ours alone.
        unsafe { std::ptr::copy(at, out.as_mut_ptr(), out.len()) }
        Ok(())
    }

    /// Fills device memory with zeros.
    ///
    /// # Errors
    /// [`MemError::BadRange`] if the range is not writable by `device`.
    pub(crate) fn zero(
        &self,
        device: u32,
        addr: u64,
        len: u64,
        ctx: Option<&CheckContext>,
    ) -> Result<(), MemError> {
        if len == 0 {
            return Ok(());
        }
        self.translate(device, addr, len, true)
            .ok_or(MemError::BadRange {
                start: addr,
                len,
                what: "not writable",
            })?;
        // SAFETY: `translate` found the whole range mapped and writable.
        unsafe { self.fill(addr, 0, 1, len, ctx) };
        Ok(())
    }

    /// Writes device memory from `data`.
    ///
    /// # Errors
    /// [`MemError::BadRange`] if the range is not writable by `device`.
    pub fn write(
        &self,
        device: u32,
        addr: u64,
        data: &[u8],
        ctx: Option<&CheckContext>,
    ) -> Result<(), MemError> {
        let len = data.len() as u64;
        let at = (device < MAX_DEVICES)
            .then(|| self.translate(device, addr, len, true))
            .flatten()
            .ok_or(MemError::BadRange {
                start: addr,
                len,
                what: "not writable",
            })?;
        if let (Some(shadow), Some(ctx)) = (&self.shadow, ctx) {
            shadow.written(&self.records, addr, len, ctx);
        }
        // SAFETY: `translate` found the whole range mapped; `data` is borrowed for the call.
        unsafe { std::ptr::copy(data.as_ptr(), at, data.len()) }
        Ok(())
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours, and the last owner of the space is going.
        unsafe { libc::munmap(self.base as *mut c_void, self.size as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_backing_mapped_twice_shows_one_content() {
        let space = AddressSpace::new(64 * GRANULE, false).unwrap();
        let (a, backing) = space.map_new(GRANULE, 1).unwrap();
        let b = space.reserve(GRANULE, GRANULE, 0).unwrap();
        space.map(b, GRANULE, &backing, 0).unwrap();
        space.set_access(b, GRANULE, 0, true, false).unwrap();
        space.write(0, a + 5, &[1, 2, 3], None).unwrap();
        let mut out = [0; 3];
        space.read(0, b + 5, &mut out, None).unwrap();
        assert_eq!(out, [1, 2, 3]);
        assert!(space.write(0, b, &[0], None).is_err());
        assert!(space.translate(1, a, 1, false).is_none());
    }

    #[test]
    fn a_device_beyond_the_last_one_has_no_access() {
        let space = AddressSpace::new(4 * GRANULE, false).unwrap();
        let (a, _backing) = space.map_new(GRANULE, u32::MAX).unwrap();
        for device in [MAX_DEVICES, 31, 32, u32::MAX] {
            assert!(space.set_access(a, GRANULE, device, true, true).is_err());
            assert!(space.read(device, a, &mut [0], None).is_err(), "{device}");
            assert!(space.write(device, a, &[0], None).is_err(), "{device}");
        }
        space.read(MAX_DEVICES - 1, a, &mut [0], None).unwrap();
    }

    #[test]
    fn a_freed_backing_is_zero_when_it_comes_back() {
        let space = AddressSpace::new(8 * GRANULE, false).unwrap();
        let (a, backing) = space.map_new(GRANULE, 1).unwrap();
        space.write(0, a, &[9; 64], None).unwrap();
        space.unmap(a, GRANULE).unwrap();
        space.release(a, GRANULE);
        drop(backing);
        let (b, _backing) = space.map_new(GRANULE, 1).unwrap();
        let mut out = [1; 64];
        space.read(0, b, &mut out, None).unwrap();
        assert_eq!(out, [0; 64]);
    }
}
