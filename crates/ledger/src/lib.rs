//! Device memory accounting: counters in shared memory, one writer process, many readers.
//!
//! A [`Ledger`] is the writer: one per process, used by any number of threads. A [`Folder`] finds
//! the ledgers of this user, a [`LedgerReader`] reads one while its owner lives and after, and a
//! [`LedgerSnapshot`] is the result: plain data, JSON or [Prometheus text](fn@prometheus).
//!
//! Invariants: charging takes no lock, allocates nothing and makes no system call, and threads that
//! free what they allocated share no cache line. A charged byte is in exactly one cell, and all
//! tables are sums over cells, so they agree. No file content makes a reader panic. Nothing that
//! happens to the file makes the writer fail. Elsewhere: choosing blocks (`fercuda-pool`), querying
//! the driver's own figures, displaying them (`fercuda-cli`). README.md specifies the file format.
#![deny(unsafe_code)]

mod cells;
mod collect;
mod error;
mod folder;
mod format;
#[expect(unsafe_code, reason = "maps memory and accesses it as atomics")]
mod map;
mod owner;
mod private;
mod prometheus;
mod reader;
mod requests;
mod ring;
mod share_socket;
mod shares;
mod snapshot;
mod word;
mod writer;

pub use error::{Error, FormatError, LedgerWarning, Result};
pub use folder::{Folder, RunHold};
pub use format::{
    CELLS, DEVICES, EVENTS, EventKind, FIELDS, FILE_BYTES, Governed, LedgerField, NAME_BYTES,
    PROGRAM_BYTES, SHARED, TENANTS, VERSION,
};
pub use map::ChangeCount;
pub use prometheus::prometheus;
pub use reader::LedgerReader;
pub use requests::{PendingRequest, Progress, RebootFailure, RebootOutcome, RequestError};
pub use share_socket::{
    AcceptedConnection, BATCH, DescriptorBatch, DescriptorRequest, ShareConnection, ShareListener,
};
pub use shares::{
    LingeringShare, OfferedShare, OpenedShare, Share, ShareFileId, ShareName, ShareSource,
};
pub use snapshot::{
    DeviceSnapshot, EventSnapshot, GovernedBytes, LedgerSnapshot, OwnerState, StreamSnapshot,
    TenantAccount, TenantSnapshot, ThreadSnapshot,
};
pub use writer::{
    CellId, Gauge, Ledger, LedgerDevice, LedgerEvent, STEP_BYTES, Tenant, ThreadLedger,
};
