//! Checks of memory accesses: bounds, initialisation, and races with recorded accesses.
//!
//! Invariant: called only from code decoded for checking. A finding never changes the results of a
//! correct program; an access outside every allocation is not executed.

mod begin;
mod block;
mod cluster;
mod conflict;
mod found;
mod global;
mod launch;
mod matrices;
mod mbarriers;
mod members;
mod ordering;
mod products;
mod proxy;
mod proxy_global;
mod quick;
mod register_file;
mod site;
mod sources;
mod stores;
mod variables;

pub(crate) use begin::{begin, end_block, start_block};
pub(crate) use block::{above_stack, beyond_local, local, shared};
pub(crate) use cluster::{
    asynchronous, leaves_cluster, no_such_rank, other_mbarrier, peer, peer_has_ended, peer_mbarrier,
};
pub(crate) use found::found;
pub(crate) use global::{CheckedAccess, replay};
pub(crate) use launch::LaunchCheck;
pub(crate) use matrices::{MatrixPlace, matrix_place, part_of_warp};
pub(crate) use mbarriers::{
    MbarrierStep, mbarrier, never_completes, phase_over, phase_release, phase_seen, surplus_arrival,
};
pub(crate) use members::{absent, members};
pub(crate) use ordering::{
    Published, acquire, acquire_from_host, arrived, fence, initialised, landed, lanes_met, opened,
    release, synchronise, tells_host,
};
pub(crate) use products::{
    CheckedProduct, FragmentUse, left_group, operand_outside, product, product_reads,
    products_done, reads_unfenced, same_descriptor, touches_product,
};
pub(crate) use proxy::{
    begin_copy, commit_bulk, complete_copy, copies_left, copy_shared, proxy_fence, refused,
    tensor_misuse, wait_bulk,
};
pub(crate) use proxy_global::copy_global;
pub(crate) use register_file::{RegisterFault, registers};
pub(crate) use sources::global;
pub(crate) use stores::StoredValues;
pub(crate) use variables::beyond_memory;
