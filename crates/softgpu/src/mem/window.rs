//! Accesses of kernels to memory that other blocks, copies and the host may touch at the same time.
//!
//! Invariant: every access lies inside a window, which is mapped memory. Scalars go through relaxed
//! atomics; bulk copies go through assembly, which like a GPU's loads has no undefined outcome in a
//! race,
//! only an unspecified one.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::shape::At;

/// A run of accessible addresses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    lo: u64,
    hi: u64,
}

/// An integer that memory holds.
pub(crate) trait MemoryInt: Copy + Default {
    /// Loads, relaxed.
    ///
    /// # Safety
    /// `at` is mapped and aligned.
    unsafe fn load(at: u64) -> Self;
    /// Stores, relaxed.
    ///
    /// # Safety
    /// `at` is mapped, writable and aligned.
    unsafe fn store(self, at: u64);
}

macro_rules! scalar {
    ($($t:ty, $atomic:ty;)*) => {$(
        impl MemoryInt for $t {
            #[inline(always)]
            unsafe fn load(at: u64) -> Self {
                // SAFETY: by the contract, a mapped and aligned address; atomics allow concurrent
                // access.
                unsafe { (*(at as *const $atomic)).load(Ordering::Relaxed) }
            }
            #[inline(always)]
            unsafe fn store(self, at: u64) {
                // SAFETY: as for `load`.
                unsafe { (*(at as *const $atomic)).store(self, Ordering::Relaxed) }
            }
        }
    )*};
}
scalar! { u8, AtomicU8; u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; }

impl Window {
    /// # Safety
    /// `lo..hi` is mapped readable, and writable if it is to be written through, and stays so while
    /// the window is used.
    pub(super) unsafe fn new(lo: u64, hi: u64) -> Self {
        Window { lo, hi }
    }

    /// Whether all of the range is inside.
    #[inline(always)]
    pub(crate) fn holds(&self, addr: u64, len: u64) -> bool {
        addr >= self.lo && addr < self.hi && self.hi - addr >= len
    }

    /// Where `len` bytes inside may begin: the first address, and how far behind it the last one
    /// is.
    #[inline(always)]
    pub(crate) fn starts(&self, len: u64) -> Option<(u64, u64)> {
        Some((self.lo, (self.hi - self.lo).checked_sub(len)?))
    }

    /// Whether eight aligned scalars are inside.
    #[inline(always)]
    fn holds_eight<T>(&self, addr: &[u64; 8]) -> bool {
        let size = size_of::<T>() as u64;
        // A window is memory, so much less than half of all addresses.
        self.starts(size)
            .is_some_and(|(first, last)| u64::within(addr, first, last, size - 1))
    }

    /// Loads eight aligned scalars.
    #[inline(always)]
    pub(crate) fn load_eight<T: MemoryInt>(&self, addr: &[u64; 8]) -> [T; 8] {
        assert!(self.holds_eight::<T>(addr));
        // SAFETY: inside the window and aligned, checked just above.
        addr.map(|a| unsafe { T::load(a) })
    }

    /// Stores eight aligned scalars, in order.
    #[inline(always)]
    pub(crate) fn store_eight<T: MemoryInt>(&self, addr: &[u64; 8], v: [T; 8]) {
        assert!(self.holds_eight::<T>(addr));
        for (&a, v) in addr.iter().zip(v) {
            // SAFETY: inside the window and aligned, checked just above.
            unsafe { v.store(a) }
        }
    }

    /// Loads an aligned scalar.
    #[inline(always)]
    pub(crate) fn load<T: MemoryInt>(&self, addr: u64) -> T {
        assert!(
            self.holds(addr, size_of::<T>() as u64) && addr.is_multiple_of(size_of::<T>() as u64)
        );
        // SAFETY: inside the window and aligned, checked just above.
        unsafe { T::load(addr) }
    }

    /// Stores an aligned scalar.
    #[inline(always)]
    pub(crate) fn store<T: MemoryInt>(&self, addr: u64, value: T) {
        assert!(
            self.holds(addr, size_of::<T>() as u64) && addr.is_multiple_of(size_of::<T>() as u64)
        );
        // SAFETY: inside the window and aligned, checked just above.
        unsafe { value.store(addr) }
    }

    /// The memory at `addr` as an atomic.
    #[inline(always)]
    pub(crate) fn atomic32(&self, addr: u64) -> &AtomicU32 {
        assert!(self.holds(addr, 4) && addr.is_multiple_of(4));
        // SAFETY: inside the window and aligned, checked just above; all other access is atomic or
        // assembly.
        unsafe { &*(addr as *const AtomicU32) }
    }

    /// The memory at `addr` as an atomic.
    #[inline(always)]
    pub(crate) fn atomic64(&self, addr: u64) -> &AtomicU64 {
        assert!(self.holds(addr, 8) && addr.is_multiple_of(8));
        // SAFETY: as for `atomic32`.
        unsafe { &*(addr as *const AtomicU64) }
    }

    /// The memory at `addr` as an atomic.
    #[inline(always)]
    pub(crate) fn atomic16(&self, addr: u64) -> &AtomicU16 {
        assert!(self.holds(addr, 2) && addr.is_multiple_of(2));
        // SAFETY: as for `atomic32`.
        unsafe { &*(addr as *const AtomicU16) }
    }

    /// Replaces 16 bytes if they are `expected`; returns what was there. One whole operation.
    pub(crate) fn compare_exchange_128(&self, addr: u64, expected: u128, new: u128) -> u128 {
        assert!(self.holds(addr, 16) && addr.is_multiple_of(16));
        if std::arch::is_x86_feature_detected!("cmpxchg16b") {
            // SAFETY: the instruction exists, the address is mapped, writable and aligned.
            return unsafe { exchange16(addr, expected, new) };
        }
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _guard = ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let old =
            u128::from(self.load::<u64>(addr)) | (u128::from(self.load::<u64>(addr + 8)) << 64);
        if old == expected {
            self.store(addr, new as u64);
            self.store(addr + 8, (new >> 64) as u64);
        }
        old
    }

    /// Tells the processor that `len` bytes from `addr` on may be read soon.
    #[inline(always)]
    pub(crate) fn expect(&self, addr: u64, len: u64) {
        for line in (0..len).step_by(64) {
            // SAFETY: a hint, which accesses nothing whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(addr.wrapping_add(line) as *const i8) }
        }
    }

    /// Copies memory out.
    #[inline(always)]
    pub(crate) fn copy_out<const N: usize>(&self, addr: u64, out: &mut [u8; N]) {
        assert!(self.holds(addr, N as u64));
        // SAFETY: the source is inside the window, the target is `out`.
        unsafe { copy32(addr, out.as_mut_ptr() as u64, N) }
    }

    /// Copies memory in.
    #[inline(always)]
    pub(crate) fn copy_in<const N: usize>(&self, addr: u64, data: &[u8; N]) {
        assert!(self.holds(addr, N as u64));
        // SAFETY: the target is inside the window, the source is `data`.
        unsafe { copy32(data.as_ptr() as u64, addr, N) }
    }

    /// Copies any number of bytes out.
    pub(crate) fn read_bytes(&self, addr: u64, out: &mut [u8]) {
        assert!(self.holds(addr, out.len() as u64));
        let (pieces, rest) = out.as_chunks_mut::<16>();
        let behind = addr + 16 * pieces.len() as u64;
        for (from, piece) in (addr..).step_by(16).zip(pieces) {
            // SAFETY: the source is inside the window, checked just above, the target is `piece`.
            unsafe { copy16(from, piece.as_mut_ptr() as u64) }
        }
        for (at, b) in (behind..).zip(rest) {
            *b = self.load::<u8>(at);
        }
    }

    /// Copies any number of bytes in.
    pub(crate) fn write_bytes(&self, addr: u64, data: &[u8]) {
        assert!(self.holds(addr, data.len() as u64));
        let (pieces, rest) = data.as_chunks::<16>();
        let behind = addr + 16 * pieces.len() as u64;
        for (to, piece) in (addr..).step_by(16).zip(pieces) {
            // SAFETY: the target is inside the window, checked just above, the source is `piece`.
            unsafe { copy16(piece.as_ptr() as u64, to) }
        }
        for (at, b) in (behind..).zip(rest) {
            self.store::<u8>(at, *b);
        }
    }
}

/// # Safety
/// The processor has `cmpxchg16b`; 16 bytes at `addr` are mapped, writable and aligned.
unsafe fn exchange16(addr: u64, expected: u128, new: u128) -> u128 {
    let (mut low, mut high) = (expected as u64, (expected >> 64) as u64);
    // SAFETY: by the contract. The compiler reserves `rbx`, so the block saves and restores it
    // by hand. Every other operand names its register: with `in(reg)` the compiler may choose
    // `rbx` for an operand that does not change, and the address would then be overwritten
    // before it is used.
    unsafe {
        asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            inout("rsi") new as u64 => _,
            in("rdi") addr,
            inout("rax") low,
            inout("rdx") high,
            in("rcx") (new >> 64) as u64,
            options(nostack),
        );
    }
    u128::from(low) | (u128::from(high) << 64)
}

/// Copies 16 bytes.
///
/// # Safety
/// Both ranges are mapped, the target writable.
#[inline(always)]
unsafe fn copy16(from: u64, to: u64) {
    // SAFETY: by the contract. The block is opaque to the compiler, so a concurrent writer makes
    // the value unspecified and nothing else.
    unsafe {
        asm!(
            "movups {a}, [{f}]",
            "movups [{t}], {a}",
            f = in(reg) from,
            t = in(reg) to,
            a = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `n` bytes, a multiple of 32.
///
/// # Safety
/// Both ranges are mapped, the target writable; they do not overlap.
#[inline(always)]
unsafe fn copy32(from: u64, to: u64, n: usize) {
    debug_assert!(n.is_multiple_of(32));
    for at in (0..n as u64).step_by(32) {
        // SAFETY: 32 bytes inside both ranges by the contract. SSE is part of x86-64. The block is
        // opaque to the compiler, so a concurrent writer makes the value unspecified and nothing
        // else.
        unsafe {
            asm!(
                "movups {a}, [{f}]",
                "movups {b}, [{f} + 16]",
                "movups [{t}], {a}",
                "movups [{t} + 16], {b}",
                f = in(reg) from + at,
                t = in(reg) to + at,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}
