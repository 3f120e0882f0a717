//! Checks of memory accesses: bounds, initialisation, and races with recorded accesses.
//!
//! Invariant: called only from code decoded for checking. A finding never changes the results of a
//! correct program; an access outside every allocation is not executed.

mod begin;
mod block;
mod conflict;
mod found;
mod global;
mod launch;
mod mbarriers;
mod members;
mod ordering;
mod site;
mod stores;
mod variables;

pub(crate) use begin::{begin, end_block, start_block};
pub(crate) use block::{beyond_local, local, shared};
pub(crate) use found::found;
pub(crate) use global::{CheckedAccess, global, replay};
pub(crate) use launch::LaunchCheck;
pub(crate) use mbarriers::mbarrier;
pub(crate) use members::{absent, members};
pub(crate) use ordering::{
    acquire_from_host, arrived, fence, initialised, landed, one_way, opened, synchronise,
    synchronise_acquire, synchronise_release, tells_host, warp_synced,
};
pub(crate) use stores::StoredValues;
pub(crate) use variables::beyond_memory;
