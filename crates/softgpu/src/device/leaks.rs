//! Leaks: memory that a program took and did not free before its context, or itself, ended.
//!
//! Blocks that one place of the program took by one function are one finding. What is no leak:
//! module variables, registered memory of the program's own, memory of other processes, and what a
//! stream is still to free.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::allocation::{Allocation, AllocationSource};
use super::site::caller_name;
use crate::mem::{AllocInfo, AllocKind, DriverCallSite};
use crate::report::{Finding, FindingActor, FindingKind};

/// Blocks of one place.
struct LeakPlace {
    number: u64,
    bytes: u64,
    first: Option<Arc<AllocInfo>>,
}

/// Leaked memory by the call that took it and where the program made that.
#[derive(Default)]
pub(super) struct Leaks(BTreeMap<(&'static str, usize), LeakPlace>);

impl Leaks {
    pub(super) fn add(&mut self, made: &DriverCallSite, bytes: u64, info: Option<Arc<AllocInfo>>) {
        let blocks = self.0.entry((made.call, made.caller)).or_insert(LeakPlace {
            number: 0,
            bytes: 0,
            first: None,
        });
        blocks.number += 1;
        blocks.bytes += bytes;
        let is_earlier = |new: &AllocInfo| blocks.first.as_ref().is_none_or(|old| new.id < old.id);
        if info.as_deref().is_some_and(is_earlier) {
            blocks.first = info;
        }
    }

    /// Adds a live block, if the program was to free it.
    pub(super) fn add_block(&mut self, allocation: &Allocation, info: Option<Arc<AllocInfo>>) {
        let is_its_own = matches!(
            allocation.source,
            AllocationSource::Device
                | AllocationSource::Pool(_)
                | AllocationSource::Host(_)
                | AllocationSource::Managed
        );
        if let Some(info) = info.filter(|_| is_its_own) {
            self.add(&info.made.clone(), info.len, Some(info));
        }
    }

    /// Adds those blocks of kernels' `malloc` among `live` that lie in a range.
    pub(super) fn add_heap(&mut self, live: &[Arc<AllocInfo>], range: std::ops::Range<u64>) {
        let is_in = |it: &&Arc<AllocInfo>| it.kind == AllocKind::Heap && range.contains(&it.start);
        for info in live.iter().filter(is_in) {
            self.add(&info.made, info.len, Some(info.clone()));
        }
    }

    /// A finding for each place; `end` says what ended.
    pub(super) fn findings(self, end: &str) -> impl Iterator<Item = Finding> {
        self.0.into_iter().map(move |((call, caller), blocks)| {
            let (number, bytes) = (blocks.number, blocks.bytes);
            let s = if number == 1 { "" } else { "s" };
            let place = caller_name(caller);
            Finding {
                kind: FindingKind::Leak,
                access: None,
                actor: FindingActor::Operation(match place {
                    Some(place) => format!("{call}, called from {place}"),
                    None => call.to_owned(),
                }),
                note: format!("{number} block{s}, {bytes} bytes in all, not freed before {end}"),
                allocation: blocks.first,
                other: None,
                count: number,
            }
        })
    }
}
