//! Blocks that are reused in the order of streams, on an imaginary device.
//!
//! `cargo run -p fercuda-pool --example reuse`
//!
//! The stream that freed a block may take it again at once, as its later work runs later. Another
//! stream first waits for a fence behind the free; the host never waits. It prints:
//! ```text
//! stream 1 takes 64 MiB
//!   backing: 64 MiB at 0x10000000
//! stream 1 has 0x10000000, and frees it behind its work
//!   device: a fence at Stream(StreamId(1))
//! stream 1 takes 64 MiB
//! stream 1 has 0x10000000, and frees it behind its work
//!   device: a fence at Stream(StreamId(1))
//! stream 2 takes 64 MiB
//!   device: StreamId(2) waits for the fence
//! stream 2 has 0x10000000, and frees it behind its work
//!   device: a fence at Stream(StreamId(2))
//! ```
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::time::Duration;

use fercuda_pool::{
    AllocationRequest, DeviceClock, DevicePool, Error, GrowthRefused, MemoryBacking, MemoryBudget,
    PoolPlace, Span, StreamId, TenantId,
};

const MIB: u64 = 1 << 20;

/// The device's progress. With CUDA a point is an event; this device never gets anywhere.
struct Busy;

impl DeviceClock for Busy {
    type Point = ();
    fn record_fence(&self, place: PoolPlace) -> Option<()> {
        println!("  device: a fence at {place:?}");
        Some(())
    }
    fn passed(&self, (): &()) -> bool {
        false
    }
    fn wait(&self, stream: StreamId, (): &()) -> bool {
        println!("  device: {stream:?} waits for the fence");
        true
    }
    fn join(&self, (): &(), _: Duration) -> bool {
        false
    }
}

/// Where memory comes from: addresses in a row, from this one on.
struct Addresses(u64);

impl MemoryBacking for Addresses {
    fn piece_bytes(&self) -> u64 {
        2 * MIB
    }
    fn rounded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(2 * MIB)
    }
    fn new_bytes(&self, bytes: u64) -> u64 {
        bytes
    }
    fn site(&self, _: u64) -> Option<u64> {
        Some(self.0)
    }
    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let address = self.0;
        self.0 += bytes;
        println!("  backing: {} MiB at {address:#x}", bytes / MIB);
        Ok(Span { address, bytes })
    }
    fn separable(&self, _: Span) -> Option<Span> {
        None
    }
    fn shrink(&mut self, _: Span) {}
    fn release(&mut self, _: u64) -> u64 {
        0
    }
}

fn main() -> Result<(), Error> {
    let pool = DevicePool::new(Addresses(0x1000_0000), Busy, MemoryBudget::new(1024 * MIB));
    let [first, second] = [1, 2].map(|stream| PoolPlace::Stream(StreamId(stream)));
    for (name, place) in [
        ("stream 1", first),
        ("stream 1", first),
        ("stream 2", second),
    ] {
        println!("{name} takes 64 MiB");
        let block = pool.allocate(&AllocationRequest {
            bytes: 64 * MIB,
            align_bytes: 256,
            place,
            tenant: TenantId(0),
            note: (),
        })?;
        println!(
            "{name} has {:#x}, and frees it behind its work",
            block.address
        );
        pool.free(block.address, place)?;
    }
    Ok(())
}
