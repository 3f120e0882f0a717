//! A set of free blocks: free lists by size, and an order by epoch.

use super::layout::{Span, UNIT_BYTES};
use crate::classes::{FIRST, SECOND, SizeClass};

pub(super) const NONE: u32 = u32::MAX;

/// A set of free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub(super) u32);

impl SetId {
    /// The set of blocks that any stream may take; it has no epochs.
    pub const READY: SetId = SetId(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// No block: the slot is available.
    Vacant,
    Free,
    LiveBlock,
    /// Not a block but the sentinel at the end of a range; of length zero.
    End,
}

/// A block, or a vacant slot: one cache line. Addresses and sizes are in units.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct BlockNode {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The epoch in which a free block entered its set.
    pub(super) epoch: u64,
    /// The blocks adjacent in the same range.
    pub(super) below: u32,
    pub(super) above: u32,
    /// Neighbours in the list of its size, or of vacant slots; `previous` is meaningless in the
    /// first node of a list.
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Neighbours in the order of its set.
    pub(super) earlier: u32,
    pub(super) later: u32,
    pub(super) generation: u32,
    pub(super) set: SetId,
    pub(super) state: NodeState,
}

const _: () = assert!(
    size_of::<BlockNode>() == 64,
    "a block's bookkeeping is a cache line"
);

impl BlockNode {
    pub(super) fn span(&self) -> Span {
        Span {
            address: self.start * UNIT_BYTES,
            bytes: self.len * UNIT_BYTES,
        }
    }
}

/// The former state of a free block that was unlisted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListPosition {
    pub(super) set: SetId,
    pub(super) epoch: u64,
    pub(super) later: u32,
}

/// The free blocks of one set. Fields are in the order in which they are read.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct FreeSet {
    pub(super) units: u64,
    pub(super) first: u64,
    /// The ends of the order; not maintained for the set of ready blocks.
    pub(super) oldest: u32,
    pub(super) newest: u32,
    pub(super) second: [u32; FIRST],
    /// False if the set was dropped.
    pub(super) there: bool,
    pub(super) heads: [u32; FIRST * SECOND],
}

impl Default for FreeSet {
    fn default() -> Self {
        Self {
            first: 0,
            second: [0; FIRST],
            heads: [NONE; FIRST * SECOND],
            oldest: NONE,
            newest: NONE,
            units: 0,
            there: true,
        }
    }
}

impl FreeSet {
    /// The first block of the first nonempty list from `class` on.
    #[inline]
    pub(super) fn first_from(&self, class: SizeClass) -> Option<u32> {
        Some(self.heads[self.first_class(class)?.0])
    }

    /// The first class from `class` on with a nonempty list.
    #[inline]
    pub(super) fn first_class(&self, class: SizeClass) -> Option<SizeClass> {
        let first = class.first();
        let here = self.second.get(first)? & (u32::MAX << class.second());
        let (first, second) = if here != 0 {
            (first, here)
        } else {
            let higher = self.first & u64::MAX.checked_shl(first as u32 + 1)?;
            if higher == 0 {
                return None;
            }
            let first = higher.trailing_zeros() as usize;
            (first, self.second[first])
        };
        Some(SizeClass(first * SECOND + second.trailing_zeros() as usize))
    }

    /// Puts a block into the list of its size.
    #[inline(always)]
    pub(super) fn insert(&mut self, nodes: &mut [BlockNode], index: u32, class: SizeClass) {
        self.first |= 1 << class.first();
        self.second[class.first()] |= 1 << class.second();
        let next = std::mem::replace(&mut self.heads[class.0], index);
        nodes[index as usize].next = next;
        if let Some(next) = nodes.get_mut(next as usize) {
            next.previous = index;
        }
    }

    /// Takes a block out of the list of its size.
    #[inline(always)]
    pub(super) fn remove(&mut self, nodes: &mut [BlockNode], index: u32, class: SizeClass) {
        let node = &nodes[index as usize];
        let (previous, next) = (node.previous, node.next);
        let head = &mut self.heads[class.0];
        if *head == index {
            *head = next;
            if next == NONE {
                let second = &mut self.second[class.first()];
                *second &= !(1 << class.second());
                if *second == 0 {
                    self.first &= !(1 << class.first());
                }
            }
            return;
        }
        nodes[previous as usize].next = next;
        if let Some(next) = nodes.get_mut(next as usize) {
            next.previous = previous;
        }
    }

    /// Inserts a block into the order, just before `later`, or as the newest.
    #[inline]
    pub(super) fn remember(&mut self, nodes: &mut [BlockNode], index: u32, later: u32) {
        let earlier = match nodes.get_mut(later as usize) {
            Some(node) => std::mem::replace(&mut node.earlier, index),
            None => std::mem::replace(&mut self.newest, index),
        };
        match nodes.get_mut(earlier as usize) {
            Some(node) => node.later = index,
            None => self.oldest = index,
        }
        let node = &mut nodes[index as usize];
        (node.earlier, node.later) = (earlier, later);
    }

    /// Removes a block from the order.
    #[inline]
    pub(super) fn forget(&mut self, nodes: &mut [BlockNode], index: u32) {
        let node = &nodes[index as usize];
        let (earlier, later) = (node.earlier, node.later);
        match nodes.get_mut(later as usize) {
            Some(node) => node.earlier = earlier,
            None => self.newest = earlier,
        }
        match nodes.get_mut(earlier as usize) {
            Some(node) => node.later = later,
            None => self.oldest = later,
        }
    }

    /// Replaces a block by another at the same position of the order.
    #[inline]
    pub(super) fn replace(&mut self, nodes: &mut [BlockNode], index: u32, other: u32) {
        let node = &nodes[index as usize];
        let (earlier, later) = (node.earlier, node.later);
        match nodes.get_mut(later as usize) {
            Some(node) => node.earlier = other,
            None => self.newest = other,
        }
        match nodes.get_mut(earlier as usize) {
            Some(node) => node.later = other,
            None => self.oldest = other,
        }
        let node = &mut nodes[other as usize];
        (node.earlier, node.later) = (earlier, later);
    }

    /// Moves a block to the newest end of the order.
    #[inline]
    pub(super) fn renew(&mut self, nodes: &mut [BlockNode], index: u32) {
        if self.newest != index {
            self.forget(nodes, index);
            self.remember(nodes, index, NONE);
        }
    }

    /// The first block of a list.
    #[inline]
    pub(super) fn head(&self, class: SizeClass) -> Option<u32> {
        self.heads.get(class.0).copied()
    }
}
