//! Operations on blocks: kernels of the code, and plain copies of rows.
//!
//! A worker has its own stream, and page-locked memory for rows, jobs and outcomes. It takes a
//! batch of blocks and returns when the device is done.
//!
//! Invariants: when a worker returns, the device no longer uses what it was given, or the context
//! has failed, but for an update that was started, which any later call waits for; a failed worker
//! is unusable, and its memory is leaked. The caller guarantees that a
//! block is changed by one worker at a time, or only read: two concurrent changes leave it invalid.
//!
//! From the bottom up: what a call is to do (`work`, `outcome`), the kernels (`kernels`), their
//! arguments and results (`mailbox`), plain copies (`copier`), one thread's worker (`worker`),
//! kernels over many blocks (`lists`, `sweep`), host-side verification of a few rows (`verifiers`,
//! `host_verify`). Elsewhere: kernel source (`source`), layout (`layout`), memory (`blocks`).
#![expect(
    unsafe_code,
    reason = "launching the kernels that are written here, and copies by address"
)]

mod copier;
mod host_verify;
mod kernels;
mod lists;
mod mailbox;
mod outcome;
mod sweep;
mod verifiers;
mod work;
mod worker;

pub use self::copier::{Copier, Mover};
pub use self::kernels::{KernelTarget, Kernels};
pub use self::outcome::BlockOutcome;
pub use self::work::{BlockWork, Identity, RowLocation};
pub use self::worker::{PendingUpdate, Worker};
