//! The ledger file's layout, version 1: README.md's tables as types.
//!
//! Everything is a little-endian 64-bit word at a multiple of eight, so that any content is a valid
//! value of these types. `T` is the word: atomic where the file is mapped, `u64` where it was read.
//!
//! Invariant: the offsets written here are the compiler's, or compilation fails; a test compares
//! README.md with them. The first 64 bytes mean the same in every version, so that any reader can
//! identify the owner.

use std::mem::{offset_of, size_of};
use std::sync::atomic::AtomicU64;

use serde::Serialize;

use crate::ring::EventRing;

/// The version of the format that this crate writes and reads.
pub const VERSION: u64 = 1;
/// Rows of the table of devices. Ordinals above share the last row.
pub const DEVICES: usize = 16;
/// Rows of the table of tenants; row 0 is for tenants without a row of their own.
pub const TENANTS: usize = 64;
/// The row for tenants without a row of their own.
pub(crate) const OTHERS: usize = 0;
/// Shared cells, one per tenant and device, written by any thread.
pub const SHARED: usize = TENANTS * DEVICES;
/// All cells: the shared ones, then those owned by one thread each.
pub const CELLS: usize = 4096;
/// Entries of the ring of events.
pub const EVENTS: usize = 4096;
/// Bytes of a tenant's name that are stored.
pub const NAME_BYTES: usize = 48;
/// Bytes of the program's name that are stored.
pub const PROGRAM_BYTES: usize = 64;
/// The size of a ledger file.
pub const FILE_BYTES: usize = size_of::<LedgerLayout<u64>>();

/// The magic number at the start of a ledger file.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"fercledg");
/// The words of an event besides its sequence number.
pub(crate) const EVENT_WORDS: usize = 7;
/// How many kinds of governed memory the file has room for.
pub(crate) const KINDS: usize = 16;

const _: () = assert!(cfg!(target_endian = "little"), "the file is little-endian");

/// A field's position in the file: one row of README.md's tables, as the code has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerField {
    /// The record it belongs to.
    pub record: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its offset in the record.
    pub offset_bytes: usize,
    /// Its length.
    pub len_bytes: usize,
}

/// Defines records: their fields with the offsets they must have, how they are read from words, and
/// all of it as data. A field is one word, or as many as its brackets give.
macro_rules! records {
    ($(
        $(#[$doc:meta])*
        $record:ident, $size:literal {
            $( $(#[$field_doc:meta])* $offset:literal $field:ident $([$count:expr])?, )*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub(crate) struct $record<T> {
                $( $(#[$field_doc])* pub(crate) $field: records!(@type T $($count)?), )*
            }

            const _: () = {
                assert!(size_of::<$record<u64>>() == $size);
                assert!(size_of::<$record<AtomicU64>>() == $size);
                $( assert!(offset_of!($record<AtomicU64>, $field) == $offset); )*
            };

            impl LedgerRecord for $record<u64> {
                fn read(words: &[u64]) -> Self {
                    let mut words = words.iter().copied();
                    let mut next = || words.next().unwrap_or(0);
                    $record { $( $field: records!(@read next $($count)?), )* }
                }
            }
        )*

        /// Every field of every record, in order.
        pub const FIELDS: &[LedgerField] = &[
            $($(
                LedgerField {
                    record: stringify!($record),
                    name: stringify!($field),
                    offset_bytes: $offset,
                    len_bytes: size_of::<records!(@type u64 $($count)?)>(),
                },
            )*)*
        ];
    };
    (@type $word:ident) => { $word };
    (@type $word:ident $count:expr) => { [$word; $count] };
    (@read $next:ident) => { $next() };
    (@read $next:ident $count:expr) => { std::array::from_fn(|_| $next()) };
}

/// A record that can be read from its words; words that are missing are zero.
pub(crate) trait LedgerRecord {
    fn read(words: &[u64]) -> Self;
}

records! {
    /// What the file is and which process owns it.
    Header, 512 {
        /// `fercledg`.
        0 magic,
        /// [`VERSION`].
        8 version,
        /// [`FILE_BYTES`].
        16 file_bytes,
        /// The owner's process id in its own PID namespace.
        24 pid,
        /// When the owner started, in clock ticks since the machine booted.
        32 start_ticks,
        /// The inode of the owner's PID namespace; 0 if unknown.
        40 pid_namespace,
        /// The kernel's boot id; 0 if unknown.
        48 boot_id [2],
        /// When the ledger was opened, in nanoseconds since 1970.
        64 begun_at_unix_ns,
        72 device_rows,
        80 tenant_rows,
        88 cell_rows,
        96 shared_cells,
        104 event_rows,
        /// Length of the program's name in bytes.
        112 program_len,
        /// The program's name, UTF-8.
        120 program [8],
        /// The run that the process belongs to, as its launcher numbered it; 0 if none.
        184 run,
        192 header_reserved [40],
    }

    /// One device. All zero if the process never used it.
    DeviceRow, 512 {
        /// Approximate live bytes: cells publish changes in steps of 256 KiB.
        0 level_bytes,
        /// The maximum of `level_bytes`.
        8 peak_bytes,
        // The words that allocations write have a cache line to themselves.
        16 device_reserved [6],
        /// Physical memory that the pool has taken from the driver.
        64 pooled_bytes,
        /// The mapped part of it; the rest is spare.
        72 mapped_bytes,
        /// Free, and reusable at once.
        80 ready_bytes,
        /// Free, but pending work may still access it.
        88 waiting_bytes,
        /// The process's limit; 0 if unlimited.
        96 limit_bytes,
        /// Used according to the driver, but accounted for by nothing here.
        104 ungoverned_bytes,
        /// The device's total memory, as last reported by the driver.
        112 driver_total_bytes,
        /// The device's free memory, as last reported by the driver.
        120 driver_free_bytes,
        /// When the driver reported it, in nanoseconds since the ledger was opened.
        128 reconciled_at_ns,
        /// The pool's epoch.
        136 epoch,
        /// Events of each kind, in the order of `EventKind`.
        144 events [14],
        /// Governed bytes of each kind, in the order of `Governed`.
        256 governed_bytes [KINDS],
        /// Open runtimes.
        384 runtimes,
        /// 1 while a runtime accepts requests.
        392 takes_requests,
        /// The current request (`requests`).
        400 request [3],
        /// Its status.
        424 answer,
        /// Its result, by status.
        432 answer_detail [3],
        456 requests_reserved [7],
    }

    /// One tenant: a library that allocates, by name.
    TenantRow, 64 {
        /// A hash of its whole name; 0 if the row is free.
        0 key,
        /// Length of its name in bytes; 0 until the name is there.
        8 name_len,
        /// Its name, UTF-8, cut at 48 bytes.
        16 name [6],
    }

    /// One tenant's account at one device.
    AccountRow, 64 {
        /// Approximate live bytes: cells publish changes in steps of 256 KiB.
        0 level_bytes,
        /// The maximum of `level_bytes`.
        8 peak_bytes,
        /// The tenant's limit; 0 if unlimited.
        16 limit_bytes,
        /// The tenant's share of the device's governed bytes.
        24 governed_bytes,
        32 account_reserved [4],
    }

    /// The allocations of one thread for one tenant in one stream of a device.
    CellRow, 128 {
        /// The writer's number times four, plus 1 in use, 2 left or 3 being folded; 0 if never
        /// used, and in a shared cell.
        0 state,
        /// The device's row in the lowest byte, the tenant's in the next, then six bytes of the
        /// thread's number; 0 in a shared cell.
        8 account_key,
        /// The stream's number.
        16 stream,
        /// Bytes allocated since the cell was taken.
        24 allocated_bytes,
        /// The number of allocations.
        32 allocs,
        /// Bytes freed by the thread itself.
        40 freed_bytes,
        /// The number of those frees.
        48 frees,
        /// The change not yet published to the levels.
        56 pending_bytes,
        // The words that other threads write have a cache line to themselves.
        /// Bytes freed by other threads; in a shared cell, by any thread.
        64 foreign_freed_bytes,
        /// The number of those frees.
        72 foreign_frees,
        80 cell_reserved [6],
    }
}

/// A whole file.
#[repr(C)]
pub(crate) struct LedgerLayout<T> {
    pub(crate) header: Header<T>,
    pub(crate) devices: [DeviceRow<T>; DEVICES],
    pub(crate) tenants: [TenantRow<T>; TENANTS],
    pub(crate) accounts: [[AccountRow<T>; DEVICES]; TENANTS],
    pub(crate) cells: [CellRow<T>; CELLS],
    pub(crate) ring: EventRing<T, EVENTS, EVENT_WORDS>,
}

const _: () = {
    assert!(offset_of!(LedgerLayout<AtomicU64>, header) == 0);
    assert!(offset_of!(LedgerLayout<AtomicU64>, devices) == 512);
    assert!(offset_of!(LedgerLayout<AtomicU64>, tenants) == 8704);
    assert!(offset_of!(LedgerLayout<AtomicU64>, accounts) == 12800);
    assert!(offset_of!(LedgerLayout<AtomicU64>, cells) == 78336);
    assert!(offset_of!(LedgerLayout<AtomicU64>, ring) == 602_624);
    assert!(size_of::<LedgerLayout<AtomicU64>>() == 864_832);
    assert!(size_of::<LedgerLayout<AtomicU64>>() == FILE_BYTES);
    assert!(align_of::<LedgerLayout<AtomicU64>>() == 8);
    assert!(EventKind::ALL.len() <= 14 && Governed::ALL.len() <= KINDS);
};

/// The origin of device memory that the pool cannot suballocate but that is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum Governed {
    /// Linear memory that the driver supplied instead of the pool.
    Linear = 0,
    /// Arrays and mipmapped arrays: their layout is the driver's.
    Array = 1,
    /// Managed memory: it migrates between host and device.
    Managed = 2,
    /// Memory nodes of graphs, and allocations captured into one.
    Graph = 3,
    /// Physical memory created with `cuMemCreate` by the program itself.
    Vmm = 4,
    /// Multicast objects.
    Multicast = 5,
    /// Memory of another process, opened by its IPC handle.
    IpcImport = 6,
    /// External memory, imported from another API such as Vulkan.
    External = 7,
    /// Pinned host memory, allocated or registered.
    Host = 8,
    /// A context's stacks, heap and buffers.
    Context = 9,
    /// Code and variables of loaded modules.
    Module = 10,
    /// The driver's own memory pools.
    DriverPool = 11,
}

impl Governed {
    /// Whether it is physical memory of the device taken by this process, and so part of the
    /// driver's used figure. A multicast object is a view of memory that is charged by itself.
    pub fn is_on_device(self) -> bool {
        !matches!(
            self,
            Self::Multicast | Self::Host | Self::IpcImport | Self::External
        )
    }

    /// Every kind, in the order of the file.
    pub const ALL: [Governed; 12] = [
        Self::Linear,
        Self::Array,
        Self::Managed,
        Self::Graph,
        Self::Vmm,
        Self::Multicast,
        Self::IpcImport,
        Self::External,
        Self::Host,
        Self::Context,
        Self::Module,
        Self::DriverPool,
    ];

    /// Its name in exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Array => "array",
            Self::Managed => "managed",
            Self::Graph => "graph",
            Self::Vmm => "vmm",
            Self::Multicast => "multicast",
            Self::IpcImport => "ipc_import",
            Self::External => "external",
            Self::Host => "host",
            Self::Context => "context",
            Self::Module => "module",
            Self::DriverPool => "driver_pool",
        }
    }
}

/// What happened, in the ring of events and the devices' counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum EventKind {
    /// The pool took `bytes` from the driver; `detail` is the new total.
    Growth = 0,
    /// The pool returned `bytes` to the driver; `detail` is the new total.
    Trim = 1,
    /// A request for `bytes` failed; `detail` is the largest free block.
    OutOfMemory = 2,
    /// `bytes` at `address` came from the driver instead of the pool.
    Fallback = 3,
    /// `address` was freed but does not belong to the pool.
    ForeignFree = 4,
    /// A request for `bytes` was refused because of the limit `detail`.
    Refused = 5,
    /// A request for `bytes` was refused because of the tenant's limit `detail`.
    TenantLimit = 6,
    /// The pool's epoch became `detail`.
    Epoch = 7,
}

impl EventKind {
    /// Every kind, in the order of the file.
    pub const ALL: [EventKind; 8] = [
        Self::Growth,
        Self::Trim,
        Self::OutOfMemory,
        Self::Fallback,
        Self::ForeignFree,
        Self::Refused,
        Self::TenantLimit,
        Self::Epoch,
    ];

    /// Its name in exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Growth => "growth",
            Self::Trim => "trim",
            Self::OutOfMemory => "out_of_memory",
            Self::Fallback => "fallback",
            Self::ForeignFree => "foreign_free",
            Self::Refused => "refused",
            Self::TenantLimit => "tenant_limit",
            Self::Epoch => "epoch",
        }
    }
}

/// Truncates `text` to at most `limit` bytes, on a character boundary.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A name's bytes as words, the last one zero-padded.
pub(crate) fn name_words(name: &str) -> impl Iterator<Item = u64> {
    name.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// The name stored in `words`. Control characters and invalid UTF-8 are replaced.
pub(crate) fn name_from(words: &[u64], len_bytes: u64) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = usize::try_from(len_bytes)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    String::from_utf8_lossy(&bytes[..len])
        .chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_truncated_on_a_character_boundary() {
        assert_eq!(cut("torch", 48), "torch");
        assert_eq!(cut("größe", 3), "gr");
        assert_eq!(cut("größe", 4), "grö");
    }

    #[test]
    fn a_name_survives_its_words_and_control_characters_are_replaced() {
        let words: Vec<u64> = name_words("cuBLAS workspace").collect();
        assert_eq!(words.len(), 2);
        assert_eq!(name_from(&words, 16), "cuBLAS workspace");
        assert_eq!(name_from(&words, u64::MAX), "cuBLAS workspace");
        let words: Vec<u64> = name_words("a\u{1b}[2Jb\n").collect();
        assert_eq!(name_from(&words, 7), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(name_from(&[u64::MAX], 2), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn kinds_are_numbered_in_the_order_of_the_file() {
        for (place, kind) in Governed::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
        for (place, kind) in EventKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
    }
}
