//! Adding memory to the allocator, and removing it.

use std::num::NonZeroU64;

use super::free_set::{BlockNode, NONE, NodeState, SetId};
use super::layout::{BadRange, Span, UNIT_BYTES};
use super::{BlockAllocator, MemoryRange};
use crate::classes::{FIRST, SizeClass};

impl BlockAllocator {
    /// Adds memory as ready; it is merged with adjacent memory.
    ///
    /// # Errors
    /// [`BadRange`]; nothing has changed then.
    pub fn add(&mut self, span: Span) -> Result<(), BadRange> {
        self.add_range(span, true)
    }

    /// Adds memory as ready; it is never merged with adjacent memory.
    ///
    /// # Errors
    /// As for [`BlockAllocator::add`].
    pub fn add_apart(&mut self, span: Span) -> Result<(), BadRange> {
        self.add_range(span, false)
    }

    fn add_range(&mut self, span: Span, joins: bool) -> Result<(), BadRange> {
        let refused = BadRange(span);
        let Span { address, bytes } = span;
        let (start, len) = (address / UNIT_BYTES, bytes / UNIT_BYTES);
        let end = address.checked_add(bytes).ok_or(refused)? / UNIT_BYTES;
        let even = address.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES);
        let class = SizeClass::of(NonZeroU64::new(len).ok_or(refused)?);
        // Sums of a size and an alignment must not wrap either.
        if !even || class.first() >= FIRST {
            return Err(refused);
        }
        let before = self.ranges.range(..end).next_back();
        let before = before.map(|(at, range)| (*at, *range));
        if before.is_some_and(|(_, range)| self.nodes[range.end as usize].start > start) {
            return Err(refused);
        }
        let ends_here = |range: &MemoryRange| self.nodes[range.end as usize].start == start;
        let below = before.filter(|(_, range)| joins && ends_here(range));
        let new = self.occupy(start, len, NodeState::LiveBlock);
        let above = joins.then(|| self.ranges.remove(&end)).flatten();
        let last = match above {
            Some(above) => {
                self.link(new, above.first);
                above.end
            }
            None => {
                let last = self.occupy(end, 0, NodeState::End);
                self.link(new, last);
                last
            }
        };
        let (at, first) = match below {
            Some((at, range)) => {
                let beneath = self.nodes[range.end as usize].below;
                self.link(beneath, new);
                self.vacate(range.end);
                (at, range.first)
            }
            None => (start, new),
        };
        self.ranges.insert(at, MemoryRange { first, end: last });
        self.units += len;
        self.settle(new, SetId::READY, 0);
        Ok(())
    }

    /// Removes memory that is part of the ready block at `around`; returns whether it was.
    pub fn remove(&mut self, span: Span, around: Span) -> bool {
        let Some(node) = self.ready_at(around, span) else {
            return false;
        };
        let (start, len) = (span.address / UNIT_BYTES, span.bytes / UNIT_BYTES);
        let was = self.unlist(node);
        let node = self.cut_front(node, start, &was);
        self.cut_back(node, len, &was);
        let BlockNode { below, above, .. } = self.nodes[node as usize];
        let Some((&at, &range)) = self.ranges.range(..=start).next_back() else {
            unreachable!("a block lies in a range");
        };
        let rest = self.nodes[above as usize].state != NodeState::End;
        if rest {
            self.nodes[above as usize].below = NONE;
            let end = range.end;
            self.ranges
                .insert(start + len, MemoryRange { first: above, end });
        }
        if below == NONE {
            // If a part remains, it starts further up and is inserted below.
            self.ranges.remove(&at);
            if !rest {
                self.vacate(range.end);
            }
        } else {
            let end = match rest {
                true => self.occupy(start, 0, NodeState::End),
                false => {
                    self.nodes[range.end as usize].start = start;
                    range.end
                }
            };
            self.link(below, end);
            let first = range.first;
            self.ranges.insert(at, MemoryRange { first, end });
        }
        self.vacate(node);
        self.units -= len;
        true
    }
}
