//! A block that was freed, with its device and where it was freed.

use fercuda_ledger::Tenant;
use fercuda_pool::{FreedBlock, PoolPlace};

use crate::device::GovernedDevice;
use crate::note::BlockNote;

/// A block that was freed.
#[derive(Clone, Copy, Debug)]
pub struct ReleasedBlock<'g> {
    /// Its device.
    pub device: &'g GovernedDevice,
    /// The block, as it was.
    pub block: FreedBlock<BlockNote>,
    /// Where it was freed.
    pub place: PoolPlace,
}

impl ReleasedBlock<'_> {
    /// The tenant that it was charged to.
    pub fn tenant(&self) -> Tenant {
        Tenant::from_index(u32::from(self.block.tenant.0)).unwrap_or(Tenant::OTHERS)
    }
}
