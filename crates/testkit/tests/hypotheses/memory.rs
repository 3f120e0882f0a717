//! Memory pools, and allocations that fail: H8, H9 and H12.

use fercuda_cuda::sys::types::{CUmemPool_attribute, CUresult};
use fercuda_cuda::{DeviceBuffer, Error, MemoryPool};

use crate::lab::{Lab, lab};

fn reserved_high(lab: &Lab, pool: &MemoryPool) -> u64 {
    let driver = lab.context.bind().unwrap();
    let mut bytes = 0u64;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    // SAFETY: a live pool, and the attribute is a u64.
    let code =
        unsafe { driver.cuMemPoolGetAttribute(pool.raw(), attribute, (&raw mut bytes).cast()) }
            .unwrap();
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    bytes
}

#[test]
fn h8_a_pool_asks_the_device_for_memory_once_and_reuses_it() {
    let lab = lab("h8");
    let pool = MemoryPool::new(&lab.context, 0).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    let mut after_first = 0;
    for round in 0..1000 {
        // Twelve buffers live at once, in sizes below half a megabyte that come again every hundred
        // rounds.
        let live: Vec<DeviceBuffer<u8>> = (0..12)
            .map(|i| {
                DeviceBuffer::alloc_from(
                    &pool,
                    &lab.stream,
                    1000 * (1 + (i * 37 + round % 100) % 1000),
                )
                .unwrap()
            })
            .collect();
        drop(live);
        lab.let_frees_happen();
        if round == 99 {
            after_first = reserved_high(&lab, &pool);
        }
    }
    lab.stream.synchronize().unwrap();
    let high = reserved_high(&lab, &pool);
    println!(
        "h8: {} MiB reserved at most, {} MiB after a hundred rounds of twelve buffers",
        high >> 20,
        after_first >> 20
    );
    // 6 MB live at most. A pool that asked the device each time would have reserved as much in
    // every round.
    assert!(high <= 64 << 20, "{high} bytes were reserved for 6 MB");
    assert!(
        high <= after_first + after_first / 2,
        "the pool grew from {after_first} to {high} bytes under a steady load"
    );
}

#[test]
fn h9_too_large_an_allocation_is_an_error_and_the_next_one_works() {
    let mut lab = lab("h9");
    let total = lab.context.device().memory_bytes().unwrap();
    for asked in [total + (1 << 20), u64::MAX / 4] {
        match DeviceBuffer::<u8>::alloc(&lab.context, asked as usize) {
            Err(Error::OutOfMemory(why)) => assert_eq!(why.asked_bytes, asked),
            other => panic!("{asked} bytes of {total}: {other:?}"),
        }
    }
    // Filled to the brim in pieces, as a program would; then one piece given back is one that can
    // be had.
    let piece = (total / 16) as usize;
    let mut held = Vec::new();
    let refused = loop {
        assert!(held.len() < 17, "more was given than there is");
        match DeviceBuffer::<u8>::alloc(&lab.context, piece) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
    assert!(!refused.is_sticky());
    held.pop();
    held.push(DeviceBuffer::<u8>::alloc(&lab.context, piece).unwrap());
    drop(held);
    let values = lab.uniform(1000);
    assert_eq!(lab.upload(&values).to_vec(&lab.stream).unwrap(), values);
}

/// A driver's pool grows by pieces of 32 MiB, so it holds more than is live (an H200's, half as
/// much again): that it holds a tenth more at most is no promise of ours before we have a pool of
/// our own. That it does not go on growing under a steady load is.
///
/// The load is the same in each round, to the byte. A load that is new in each round has new peaks
/// of each size, for which a sound pool grows too, ever more seldom and without a bound that a test
/// could wait for: of 3000 simulated runs of 10,000 steps and as many again, every 40th grew by
/// more than a tenth. The same load again meets what it has left, and a pool that reuses it comes
/// to a round for which it asks nothing of the device: in as many runs of these that was the second
/// to the seventh, and each from the fifth on at most a fifth as often as the one before it. One
/// that loses a block of 300 asks in each.
#[test]
fn h12_a_pool_under_random_sizes_does_not_go_on_growing() {
    const ROUNDS: usize = 16;
    let lab = lab("h12");
    let pool = MemoryPool::new(&lab.context, 0).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    let (limit, steps) = (512 << 20, 5_000);
    let (mut highs, mut peak): (Vec<u64>, usize) = (Vec::new(), 0);
    while highs.len() < ROUNDS && highs.last_chunk().is_none_or(|[a, b]| a != b) {
        let mut random = lab.rng.clone();
        let (mut live, mut bytes): (Vec<DeviceBuffer<u8>>, usize) = (Vec::new(), 0);
        for _ in 0..steps {
            let size = 1024 + random.usize(..(10 << 20) - 1024);
            if bytes + size <= limit && (live.is_empty() || random.u64(..10) < 7) {
                live.push(DeviceBuffer::alloc_from(&pool, &lab.stream, size).unwrap());
                bytes += size;
            } else {
                let at = random.usize(..live.len());
                bytes -= live.swap_remove(at).len();
                lab.let_frees_happen();
            }
            peak = peak.max(bytes);
        }
        drop(live);
        lab.stream.synchronize().unwrap();
        highs.push(reserved_high(&lab, &pool));
    }
    let ratio = *highs.last().unwrap() as f64 / peak as f64;
    let mib: Vec<u64> = highs.iter().map(|bytes| bytes >> 20).collect();
    println!(
        "h12: {mib:?} MiB reserved round by round for {} MiB live at the peak: {ratio:.3}",
        peak >> 20
    );
    assert!(
        highs.last_chunk().is_some_and(|[a, b]| a == b),
        "it grew in each of {ROUNDS} rounds of one load: {mib:?} MiB, seed {}",
        lab.seed
    );
    // An H200 was seen to hold 1.5 times what is live, the software device's first fit 1.9 times.
    let most = if lab.is_software() { 2.5 } else { 2.0 };
    assert!(
        ratio <= most,
        "{ratio:.3} times what was live, seed {}",
        lab.seed
    );
}
