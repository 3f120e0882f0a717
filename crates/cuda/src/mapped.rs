//! Mapped memory as a buffer.
//!
//! Elsewhere: ranges, physical memory and mappings (`vmm`).

use crate::allocation::DeviceAllocation;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::Result;
use crate::vmm::{PhysicalMemory, VirtualRange};

impl VirtualRange {
    /// Maps all of `memory` at `offset`, readable and writable from `devices`.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) if it would reach outside the range or into another
    /// mapping; [`Error::Driver`](crate::Error::Driver) if the offset is no multiple of the
    /// granularity.
    pub fn map(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        devices: &[Device],
    ) -> Result<DeviceBuffer<u8>> {
        // Dropping the allocation unmaps, from when it is made.
        let allocation = self.map_owned(offset, memory, devices, DeviceAllocation::mapped)?;
        Ok(DeviceBuffer::from_allocation(allocation, memory.bytes()))
    }
}
