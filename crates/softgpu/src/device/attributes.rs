//! Device attributes. The rest of the model conforms to every number here.

use fercuda_cuda_sys::types::CUdevice_attribute as D;

use super::{CuResult, Machine, err};
use crate::exec::{BLOCK_REGISTERS, KernelInfo};

/// The name of a device.
pub const NAME: &str = "feRcuda software device";
pub(crate) const DRIVER_VERSION: i32 = 13000;
pub(crate) const COMPUTE: (i32, i32) = (9, 0);
/// As many as an H200 has, the card that this compute capability and these limits are of.
pub(crate) const MULTIPROCESSORS: u32 = 132;
pub(crate) const WARP: u32 = 32;
pub(crate) const MAX_THREADS: u32 = 1024;
/// Shared memory of a block without opting in, bytes.
pub(crate) const MAX_SHARED: u32 = 48 << 10;
/// With opting in: 227 KiB.
pub(crate) const MAX_SHARED_OPTIN: u32 = 227 << 10;
const SHARED_PER_MULTIPROCESSOR: u32 = 228 << 10;
const RESERVED_SHARED: u32 = 1 << 10;
const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
/// Multiprocessors of each group that a cluster lies in.
const GROUPS: [u32; 8] = [16, 16, 16, 16, 16, 16, 18, 18];
/// Blocks of a cluster that every device of this kind has room for.
pub(crate) const MAX_PORTABLE_CLUSTER: u32 = 8;
/// Blocks of a cluster, if the kernel opts in.
pub(crate) const MAX_CLUSTER: u32 = 16;
pub(crate) const MAX_PITCH: u64 = 0x7fff_ffff;
pub(crate) const CONSTANT_BYTES: i32 = 65536;

/// A device attribute; every one of CUDA 13.0 has a value.
pub(crate) fn device(m: &Machine, ordinal: u32, which: D) -> CuResult<i32> {
    let textures = |n: i32| n;
    Ok(match which.0 {
        1..=3 => MAX_THREADS as i32,
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65535,
        8 => MAX_SHARED as i32,
        9 => CONSTANT_BYTES,
        10 => WARP as i32,
        11 => MAX_PITCH as i32,
        12 | 82 => BLOCK_REGISTERS as i32,
        13 => 1_000_000,
        14 => 512,
        15 => 1,
        16 => MULTIPROCESSORS as i32,
        17 => i32::from(m.config.watchdog.is_some()),
        18 => 0,
        19 => 1,
        20 => 0,
        21 => textures(131_072),
        22 => textures(131_072),
        23 => textures(65536),
        24..=26 => textures(16384),
        27 | 28 => textures(32768),
        29 => textures(2048),
        30 => 512,
        31 => 1,
        32 => 0,
        33 => ordinal as i32 + 1,
        34 | 50 => 0,
        35 => 0,
        36 => 1_000_000,
        37 => 64,
        38 => 32 << 20,
        39 => THREADS_PER_MULTIPROCESSOR as i32,
        40 => 2,
        41 => 1,
        42 => textures(32768),
        43 => textures(2048),
        44 => 1,
        45 | 46 => textures(32768),
        47 | 48 => textures(8192),
        49 => textures(32768),
        51 => 32,
        52 | 53 => textures(32768),
        54 => textures(2046),
        55 => textures(32768),
        56 => textures(131_072),
        57 => textures(65536),
        58..=60 => textures(16384),
        61 | 63 | 64 => textures(32768),
        62 | 65 => textures(2048),
        66 | 67 => textures(32768),
        68 => textures(2046),
        69 => textures(1 << 28),
        70 => textures(131_072),
        71 => textures(65000),
        72 => textures(2_097_120),
        73 | 74 | 77 => textures(32768),
        75 => COMPUTE.0,
        76 => COMPUTE.1,
        78..=80 => 1,
        81 => SHARED_PER_MULTIPROCESSOR as i32,
        83 => 1,
        // Not a board of several GPUs; a group of its own.
        84 => 0,
        85 => ordinal as i32,
        86 => 1,
        87 => 2,
        // Ordinary host memory is not reachable without registration.
        88 => 0,
        89 => 1,
        90 => 1,
        91 => 1,
        92..=94 => 1,
        95 => 1,
        96 => 0,
        97 => MAX_SHARED_OPTIN as i32,
        98 => 1,
        99 => 1,
        100 => 0,
        101 => 1,
        102 | 103 => 1,
        104 | 105 => 0,
        106 => BLOCKS_PER_MULTIPROCESSOR as i32,
        107 => 0,
        108 | 109 => 0,
        110 => 0,
        111 => RESERVED_SHARED as i32,
        112 => 0,
        113 => 1,
        114 => 0,
        115 => 1,
        116..=118 => 0,
        // Pools can be shared by file descriptor.
        119 => 1,
        120 => 1,
        121 => 0,
        122 | 123 => 1,
        124 => 0,
        125 => 1,
        126 => 1,
        127 => 0,
        128 => 0,
        129 => 0,
        130 => 0,
        131 => -1,
        132 => 0,
        133 => 0,
        134 => 0,
        135 => 0,
        136 | 137 => 0,
        138 => 0,
        139 | 140 => 0,
        141..=145 => i32::from(which.0 != 143),
        146 => 0,
        147 => 0,
        _ => return Err(err::INVALID_VALUE),
    })
}

/// Blocks of a kernel that fit a multiprocessor at once, 0 if none does.
pub(crate) fn blocks_per_multiprocessor(
    kernel: &KernelInfo,
    threads: u32,
    dynamic_shared: u32,
) -> u32 {
    if threads == 0 || threads > MAX_THREADS {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let by_threads = THREADS_PER_MULTIPROCESSOR / (warps * WARP);
    // Registers are allocated to warps in units of 256.
    let per_warp = (kernel.registers.clamp(16, 255) * WARP).next_multiple_of(256);
    let by_registers = (BLOCK_REGISTERS / per_warp) / warps;
    let shared = u64::from(kernel.static_shared_bytes)
        + u64::from(dynamic_shared)
        + u64::from(RESERVED_SHARED);
    let by_shared = u64::from(SHARED_PER_MULTIPROCESSOR) / shared.next_multiple_of(128);
    by_threads
        .min(by_registers)
        .min(by_shared as u32)
        .min(BLOCKS_PER_MULTIPROCESSOR)
}

/// Clusters of `size` blocks that fit the device at once: each lies in one group.
pub(crate) fn active_clusters(
    kernel: &KernelInfo,
    threads: u32,
    dynamic_shared: u32,
    size: u32,
) -> u32 {
    let blocks = blocks_per_multiprocessor(kernel, threads, dynamic_shared);
    let clusters = GROUPS.map(|group| (group * blocks).checked_div(size).unwrap_or(0));
    clusters.iter().sum()
}

/// The most dynamic shared memory with which `blocks` blocks still fit.
pub(crate) fn available_shared(kernel: &KernelInfo, blocks: u32) -> u64 {
    let each = SHARED_PER_MULTIPROCESSOR / blocks.max(1) / 128 * 128;
    u64::from(
        each.saturating_sub(RESERVED_SHARED + kernel.static_shared_bytes)
            .min(MAX_SHARED_OPTIN),
    )
}

/// Sixteen bytes that identify a device and are the same in every run.
pub(crate) fn uuid(ordinal: u32) -> [u8; 16] {
    let mut id = *b"feRcuda-softgpu\0";
    id[15] = ordinal as u8;
    id
}

pub(crate) fn pci_bus_id(ordinal: u32) -> String {
    format!("0000:{:02x}:00.0", ordinal + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_is_bounded_by_threads_registers_and_shared_memory() {
        let kernel = |registers, shared| KernelInfo {
            registers,
            static_shared_bytes: shared,
            ..KernelInfo::default()
        };
        assert_eq!(
            active_clusters(&kernel(16, 0), 128, MAX_SHARED_OPTIN, 2),
            66
        );
        assert_eq!(
            active_clusters(&kernel(16, 0), 128, MAX_SHARED_OPTIN, 16),
            8
        );
        assert_eq!(blocks_per_multiprocessor(&kernel(16, 0), 1024, 0), 2);
        assert_eq!(blocks_per_multiprocessor(&kernel(16, 0), 32, 0), 32);
        assert_eq!(blocks_per_multiprocessor(&kernel(255, 0), 1024, 0), 0);
        assert_eq!(blocks_per_multiprocessor(&kernel(16, 0), 128, 100 << 10), 2);
        assert_eq!(
            blocks_per_multiprocessor(&kernel(16, 0), 128, MAX_SHARED_OPTIN),
            1
        );
    }
}
