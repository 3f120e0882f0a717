//! The bytes of a ledger file, version 1: README.md's tables as types.
//!
//! Everything is a little-endian 64-bit word at a multiple of eight, so that
//! any content is a valid value of these types. `T` is the word: atomic where
//! it is mapped, `u64` where it was read.
//!
//! Invariant: the offsets written here are the compiler's, or it refuses; a
//! test holds README.md to them. The first 64 bytes mean the same in every
//! version, so that any reader can tell whose file it is.

use std::mem::{offset_of, size_of};
use std::sync::atomic::AtomicU64;

use serde::Serialize;

use crate::ring::Ring;

/// The version of the format that this crate writes and reads.
pub const VERSION: u64 = 1;
/// Rows of the table of devices. Ordinals above share the last row.
pub const DEVICES: usize = 16;
/// Rows of the table of tenants; row 0 is for those that found no room.
pub const TENANTS: usize = 64;
/// Cells that are a tenant's at a device, whichever thread writes them.
pub const SHARED: usize = TENANTS * DEVICES;
/// All cells: the shared ones, then those of one thread each.
pub const CELLS: usize = 4096;
/// Entries of the ring of events.
pub const EVENTS: usize = 4096;
/// Bytes of a tenant's name that are kept.
pub const NAME_BYTES: usize = 48;
/// Bytes of the program's name that are kept.
pub const PROGRAM_BYTES: usize = 64;
/// The size of a ledger file.
pub const FILE_BYTES: usize = size_of::<Layout<u64>>();

/// What a ledger file begins with.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"fercledg");
/// The words of an event besides its sequence number.
pub(crate) const EVENT_WORDS: usize = 7;
/// Kinds of governed memory there is room for.
pub(crate) const KINDS: usize = 16;

const _: () = assert!(cfg!(target_endian = "little"), "the file is little-endian");

/// Where a field lies: the row of README.md's tables that is the code's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The record it is of.
    pub record: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Where it begins in the record.
    pub offset_bytes: usize,
    /// How long it is.
    pub len_bytes: usize,
}

/// Defines records: their fields with the offsets they must have, how they are
/// read from words, and all of it as data. A field is one word, or as many as
/// its brackets say.
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

            impl Record for $record<u64> {
                fn read(words: &[u64]) -> Self {
                    let mut words = words.iter().copied();
                    let mut next = || words.next().unwrap_or(0);
                    $record { $( $field: records!(@read next $($count)?), )* }
                }
            }
        )*

        /// Every field of every record, in order.
        pub const FIELDS: &[Field] = &[
            $($(
                Field {
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
pub(crate) trait Record {
    fn read(words: &[u64]) -> Self;
}

records! {
    /// What the file is and whose.
    Header, 512 {
        /// `fercledg`.
        0 magic,
        /// [`VERSION`].
        8 version,
        /// [`FILE_BYTES`].
        16 file_bytes,
        /// The owner's process number in its own namespace.
        24 pid,
        /// When the owner started: clock ticks since the machine did.
        32 start_ticks,
        /// The inode of the owner's namespace of processes; 0 if unknown.
        40 pid_namespace,
        /// The machine's boot, as it names it; 0 if unknown.
        48 boot_id [2],
        /// When the ledger was begun: nanoseconds since 1970.
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
        /// About what is live: cells tell it in steps of 256 KiB.
        0 level_bytes,
        /// The most that `level_bytes` was.
        8 peak_bytes,
        // What allocations write has a cache line to itself.
        16 device_reserved [6],
        /// Physical memory that the pool has taken from the driver.
        64 pooled_bytes,
        /// That part of it which is mapped; the rest is spare.
        72 mapped_bytes,
        /// Free, and reusable at once.
        80 ready_bytes,
        /// Free, and waiting for work that may still touch it.
        88 waiting_bytes,
        /// What the process may use at most; 0 if not limited.
        96 limit_bytes,
        /// What the driver says is used and nothing accounts for.
        104 ungoverned_bytes,
        /// The device's memory, as the driver said last.
        112 driver_total_bytes,
        /// What of it was free, as the driver said last.
        120 driver_free_bytes,
        /// When it said so: nanoseconds since the ledger was begun.
        128 reconciled_at_ns,
        /// The pool's epoch.
        136 epoch,
        /// Events of each kind, in the order of `EventKind`.
        144 events [14],
        /// Governed bytes of each kind, in the order of `Governed`.
        256 governed_bytes [KINDS],
        /// Runtimes that are open.
        384 runtimes,
        /// 1 while one of them takes requests.
        392 takes_requests,
        /// What is asked (`requests`).
        400 request [3],
        /// How far that is.
        424 answer,
        /// What came of it, by state.
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
        /// About what is live: cells tell it in steps of 256 KiB.
        0 level_bytes,
        /// The most that `level_bytes` was.
        8 peak_bytes,
        /// What the tenant may use at most; 0 if not limited.
        16 limit_bytes,
        /// Its part of the device's governed bytes.
        24 governed_bytes,
        32 account_reserved [4],
    }

    /// What one thread allocated for one tenant in one stream of a device.
    CellRow, 128 {
        /// Its writer times four, plus 1 in use, 2 left or 3 being folded; 0 if
        /// never used, and in a shared cell.
        0 state,
        /// Device and tenant's row, one byte each from the lowest, then six of
        /// the thread's number; 0 in a shared cell.
        8 who,
        /// The stream's number.
        16 stream,
        /// Allocated since the cell was taken.
        24 allocated_bytes,
        /// How many times.
        32 allocs,
        /// Freed by the thread itself.
        40 freed_bytes,
        /// How many times.
        48 frees,
        /// What levels have not heard of.
        56 untold_bytes,
        // What other threads write has a cache line to itself.
        /// Freed by other threads; in a shared cell, by anyone.
        64 foreign_freed_bytes,
        /// How many times.
        72 foreign_frees,
        80 cell_reserved [6],
    }
}

/// A whole file.
#[repr(C)]
pub(crate) struct Layout<T> {
    pub(crate) header: Header<T>,
    pub(crate) devices: [DeviceRow<T>; DEVICES],
    pub(crate) tenants: [TenantRow<T>; TENANTS],
    pub(crate) accounts: [[AccountRow<T>; DEVICES]; TENANTS],
    pub(crate) cells: [CellRow<T>; CELLS],
    pub(crate) ring: Ring<T, EVENTS, EVENT_WORDS>,
}

const _: () = {
    assert!(offset_of!(Layout<AtomicU64>, header) == 0);
    assert!(offset_of!(Layout<AtomicU64>, devices) == 512);
    assert!(offset_of!(Layout<AtomicU64>, tenants) == 8704);
    assert!(offset_of!(Layout<AtomicU64>, accounts) == 12800);
    assert!(offset_of!(Layout<AtomicU64>, cells) == 78336);
    assert!(offset_of!(Layout<AtomicU64>, ring) == 602_624);
    assert!(size_of::<Layout<AtomicU64>>() == 864_832);
    assert!(size_of::<Layout<AtomicU64>>() == FILE_BYTES);
    assert!(align_of::<Layout<AtomicU64>>() == 8);
    assert!(EventKind::ALL.len() <= 14 && Governed::ALL.len() <= KINDS);
};

/// Why memory that no pool can carve is charged: what asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum Governed {
    /// Linear memory that the driver gave in the pool's stead.
    Linear = 0,
    /// Arrays and mipmapped arrays: their layout is the driver's.
    Array = 1,
    /// Managed memory: it moves between host and device.
    Managed = 2,
    /// Memory nodes of graphs, and allocations captured into one.
    Graph = 3,
    /// Physical memory made with `cuMemCreate` by the program itself.
    Vmm = 4,
    /// Multicast objects.
    Multicast = 5,
    /// Memory of another process, opened by its handle.
    IpcImport = 6,
    /// External memory: of another interface, such as Vulkan.
    External = 7,
    /// Pinned host memory, allocated or registered.
    Host = 8,
    /// What a context holds: its stacks, heap and buffers.
    Context = 9,
    /// Code and variables of loaded modules.
    Module = 10,
    /// What the driver's own pools hold.
    DriverPool = 11,
}

impl Governed {
    /// Whether it is physical memory of the device that the process takes, and
    /// so part of what the driver says is used. A multicast object is a view of
    /// memory that is charged by itself.
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
    /// The pool took `bytes` from the driver; `detail` is what it has now.
    Growth = 0,
    /// The pool gave `bytes` back; `detail` is what it has now.
    Trim = 1,
    /// `bytes` were asked for and are nowhere; `detail` is the largest block.
    OutOfMemory = 2,
    /// `bytes` at `address` came from the driver in the pool's stead.
    Fallback = 3,
    /// `address` was freed and is not ours.
    ForeignFree = 4,
    /// `bytes` were refused because of the limit `detail`.
    Refused = 5,
    /// `bytes` were refused because of the tenant's limit `detail`.
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

/// Cuts `text` after at most `limit` bytes, at the end of a character.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A name's bytes as words, the last one filled with zeros.
pub(crate) fn name_words(name: &str) -> impl Iterator<Item = u64> {
    name.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// The name that words hold. What a terminal might take for a command, or is
/// no UTF-8, is replaced.
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
    fn a_name_is_cut_between_characters() {
        assert_eq!(cut("torch", 48), "torch");
        assert_eq!(cut("größe", 3), "gr");
        assert_eq!(cut("größe", 4), "grö");
    }

    #[test]
    fn a_name_comes_back_from_its_words_and_commands_do_not() {
        let words: Vec<u64> = name_words("cuBLAS workspace").collect();
        assert_eq!(words.len(), 2);
        assert_eq!(name_from(&words, 16), "cuBLAS workspace");
        assert_eq!(name_from(&words, u64::MAX), "cuBLAS workspace");
        let words: Vec<u64> = name_words("a\u{1b}[2Jb\n").collect();
        assert_eq!(name_from(&words, 7), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(name_from(&[u64::MAX], 2), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn kinds_are_numbered_by_their_place() {
        for (place, kind) in Governed::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
        for (place, kind) in EventKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
    }
}
