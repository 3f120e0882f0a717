//! Consistency check over the table of live blocks, for tests.

use super::BlockTable;
use super::shard::Shard;
use crate::blocks::{BlockId, Span};
use crate::origin::{ARENAS, BlockOrigin};
use crate::request::{TENANTS, TenantId};
use crate::threads::{Lock, SharedWord};
use crate::usage::LiveCount;

impl<N: Copy, L: Lock<Shard<N>>, W: SharedWord> BlockTable<N, L, W> {
    /// Checks all invariants; returns the number of blocks per origin. `span` gives the blocks'
    /// spans from another source. Nothing else may be charged to tenants that have a limit.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn audit(
        &self,
        span: impl Fn(BlockOrigin, BlockId) -> Option<Span>,
    ) -> Result<[usize; ARENAS + 1], String> {
        let mut blocks = [0; ARENAS + 1];
        let mut all = [LiveCount::default(); TENANTS];
        for shard in &self.shards {
            shard.0.shard.with(|shard| {
                let (mut cached, mut taken) = (0, 0);
                for (address, held) in shard.blocks.iter() {
                    let here = Span {
                        address,
                        bytes: held.bytes,
                    };
                    if span(held.origin, held.id) != Some(here) {
                        return Err(format!("{here:?} differs from what {:?} is", held.id));
                    }
                    blocks[held.origin.number()] += 1;
                    if let Some(at) = usize::from(held.cached).checked_sub(1) {
                        if shard.cached[at].0 != address {
                            return Err(format!("{here:?} is not in the list of its shard"));
                        }
                        taken |= 1 << at;
                        cached += held.bytes;
                        continue;
                    }
                    let one = LiveCount {
                        bytes: held.bytes,
                        blocks: 1,
                    };
                    all[held.tenant.index()].add(one);
                }
                match (cached, taken) == (shard.cached_bytes, shard.taken) {
                    true => Ok(()),
                    false => Err(format!("{cached} cached bytes differ from the count")),
                }
            })?;
        }
        for (tenant, count) in all.iter().enumerate() {
            let account = self.account(TenantId(tenant as u16));
            let is_limited = self.is_limited(TenantId(tenant as u16));
            let charged = self.budget.tenant(TenantId(tenant as u16)).used_bytes();
            if (account.live_bytes, account.blocks) != (count.bytes, count.blocks)
                || is_limited && charged != count.bytes
            {
                return Err(format!(
                    "tenant {tenant}: {count:?}, charged {charged}: {account:?}"
                ));
            }
        }
        Ok(blocks)
    }
}
