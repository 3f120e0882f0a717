//! Who holds how much device memory: counters in shared memory.
//!
//! A [`Ledger`] is the writer: one a process, any number of threads. A
//! [`Folder`] finds the ledgers of this user, a [`Reader`] reads one while its
//! owner lives and after, a [`Snapshot`] is what it read, as data, JSON or
//! [Prometheus text](prometheus).
//!
//! Invariants: charging takes no lock, allocates nothing and makes no system
//! call, and threads that free what they allocated share no cache line. A byte
//! charged is in exactly one cell, and all tables are sums over cells, so they
//! agree. No content of a file makes a reader panic. Nothing that happens to
//! the file makes the writer fail.
//! Elsewhere: choosing blocks (`fercuda-pool`), asking the driver for its own
//! figures, drawing them (`fercuda-cli`). The bytes of the file are in
//! README.md.
#![deny(unsafe_code)]

mod cells;
mod error;
mod folder;
mod format;
#[expect(unsafe_code, reason = "mapping memory, and seeing it as atomics")]
mod map;
mod owner;
mod prometheus;
mod reader;
mod requests;
mod ring;
mod shares;
mod snapshot;
mod word;
mod writer;

pub use error::{Error, FormatError, Result, Warning};
pub use folder::{Folder, Hold};
pub use format::{
    CELLS, DEVICES, EVENTS, EventKind, FIELDS, FILE_BYTES, Field, Governed, NAME_BYTES,
    PROGRAM_BYTES, SHARED, TENANTS, VERSION,
};
pub use map::Changes;
pub use prometheus::prometheus;
pub use reader::Reader;
pub use requests::{AskError, Asked, Failure, Outcome, Progress};
pub use shares::{Lingering, Offered, Opened, Share, ShareName};
pub use snapshot::{
    DeviceSnapshot, EventSnapshot, GovernedBytes, Owner, Snapshot, StreamSnapshot, TenantAccount,
    TenantSnapshot, ThreadSnapshot,
};
pub use writer::{Charge, Device, Event, Gauge, Ledger, Local, STEP_BYTES, Tenant};
