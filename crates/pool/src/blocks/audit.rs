//! Consistency check over all blocks, for tests.

use std::num::NonZeroU64;

use super::BlockAllocator;
use super::free_set::{FreeSet, NONE, NodeState, SetId};
use super::layout::Span;
use crate::classes::{FIRST, SECOND, SizeClass};

impl BlockAllocator {
    /// The set in which all of a span is free, as part of one block; for tests.
    #[doc(hidden)]
    pub fn free_set(&self, span: Span) -> Option<SetId> {
        let mut free = self
            .nodes
            .iter()
            .filter(|node| node.state == NodeState::Free);
        let around = free.find(|node| {
            let here = node.span();
            here.address <= span.address && span.end() <= here.end()
        });
        around.map(|node| node.set)
    }

    /// Checks all invariants; for tests.
    ///
    /// # Errors
    /// The first violation.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let (mut units, mut seen) = (0, 0);
        let mut free = vec![0; self.sets.len()];
        for (start, range) in &self.ranges {
            let (mut at, mut below, mut index) = (*start, NONE, range.first);
            let mut last = None;
            loop {
                let Some(node) = self.nodes.get(index as usize) else {
                    return Err(format!("the range at {start} has no end"));
                };
                seen += 1;
                if node.start != at || node.below != below {
                    return Err(format!("block {index} is at the wrong address: {node:?}"));
                }
                if node.state == NodeState::End {
                    if index != range.end || node.len != 0 {
                        return Err(format!("{index} ends the range at {start}: {node:?}"));
                    }
                    break;
                }
                let set = (node.state == NodeState::Free).then_some(node.set);
                match node.state {
                    _ if node.len == 0 => return Err(format!("block {index} is empty")),
                    NodeState::Free if last == set => {
                        return Err(format!("free neighbours of one set at {index}"));
                    }
                    NodeState::Free => free[node.set.0 as usize] += node.len,
                    NodeState::LiveBlock => {}
                    NodeState::Vacant | NodeState::End => {
                        return Err(format!("block {index} is vacant"));
                    }
                }
                last = set;
                at += node.len;
                units += node.len;
                below = index;
                index = node.above;
            }
        }
        for (id, set) in self.sets.iter().enumerate() {
            let listed = self.audit_set(SetId(id as u32), set)?;
            if free[id] != listed || set.units != listed || !set.there && listed != 0 {
                return Err(format!("set {id}: {listed} units in lists: {set:?}"));
            }
        }
        if units != self.units {
            return Err(format!("{units} units; kept {}", self.units));
        }
        let vacant = self
            .nodes
            .iter()
            .filter(|node| node.state == NodeState::Vacant);
        if seen + vacant.count() != self.nodes.len() {
            return Err(format!("{seen} of {} nodes were visited", self.nodes.len()));
        }
        Ok(())
    }

    fn audit_set(&self, id: SetId, set: &FreeSet) -> Result<u64, String> {
        let (mut listed, mut count) = (0, 0u32);
        for first in 0..FIRST {
            if (set.first >> first & 1 == 1) != (set.second[first] != 0) {
                return Err(format!(
                    "{id:?}: bit map of level {first} disagrees with its second level"
                ));
            }
            for second in 0..SECOND {
                let class = SizeClass(first * SECOND + second);
                let (mut index, mut previous) = (set.heads[class.0], NONE);
                if (set.second[first] >> second & 1 == 1) != (index != NONE) {
                    return Err(format!(
                        "{id:?}: list {first}, {second}, disagrees with its bit map"
                    ));
                }
                while let Some(node) = self.nodes.get(index as usize) {
                    let its = NonZeroU64::new(node.len).map(SizeClass::of);
                    let linked = previous == NONE || node.previous == previous;
                    if (node.state, node.set, its, linked)
                        != (NodeState::Free, id, Some(class), true)
                    {
                        return Err(format!("block {index} is in the wrong list: {node:?}"));
                    }
                    listed += node.len;
                    count += 1;
                    previous = index;
                    index = node.next;
                }
            }
        }
        if id == SetId::READY {
            return Ok(listed);
        }
        let (mut index, mut earlier, mut epoch) = (set.oldest, NONE, 0);
        while let Some(node) = self.nodes.get(index as usize) {
            if node.earlier != earlier || node.epoch < epoch || node.set != id || count == 0 {
                return Err(format!("block {index} is out of order: {node:?}"));
            }
            count -= 1;
            (earlier, epoch) = (index, node.epoch);
            index = node.later;
        }
        match (earlier == set.newest, count) {
            (true, 0) => Ok(listed),
            _ => Err(format!("{id:?}: its order disagrees with its lists")),
        }
    }
}
