//! Buffers, slices, pools, and when memory is freed.

use fercuda_cuda::{CaptureMode, DeviceBuffer, Error, Launch, MemoryPool, PinnedBuffer, Stream};

use crate::numbers::random;
use crate::support::{context, increment, kernel, many_iterations, write_late};

#[test]
fn copies_in_and_out_preserve_values() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    for len in [1, 3, 255, 4096, 100_003] {
        let values = random(len);
        let mut buffer = DeviceBuffer::from_host(&values, &stream).unwrap();
        assert_eq!((buffer.len(), buffer.is_empty()), (len, false));
        assert!(buffer.to_vec(&stream).unwrap() == values, "{len}");
        buffer.copy_from_host(&vec![7; len], &stream).unwrap();
        assert!(buffer.to_vec(&stream).unwrap() == vec![7; len], "{len}");
    }
}

#[test]
fn slices_are_parts_and_ranges_outside_are_errors() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let values = random(100);
    let mut buffer = DeviceBuffer::from_host(&values, &stream).unwrap();
    assert_eq!(
        buffer.slice(10..20).unwrap().to_vec(&stream).unwrap(),
        values[10..20]
    );
    assert_eq!(
        buffer.slice(..=4).unwrap().to_vec(&stream).unwrap(),
        values[..=4]
    );
    let part = buffer.slice(50..).unwrap();
    assert_eq!(
        part.slice(5..6).unwrap().to_vec(&stream).unwrap(),
        values[55..56]
    );
    assert_eq!(part.slice(50..).unwrap().len(), 0);
    for error in [
        buffer.slice(90..101).unwrap_err(),
        buffer.slice(101..).unwrap_err(),
        #[expect(clippy::reversed_empty_ranges, reason = "under test")]
        buffer.slice(5..4).unwrap_err(),
        buffer.slice(0..=usize::MAX).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Length { right: 100, .. }), "{error}");
    }
    let (mut head, mut tail) = buffer.as_slice_mut().split_at(40).unwrap();
    head.fill(1, &stream).unwrap();
    tail.reborrow()
        .copy_from(head.as_slice().slice(..60).unwrap_err_or(&head), &stream)
        .unwrap_err();
    tail.fill(2, &stream).unwrap();
    let now = buffer.to_vec(&stream).unwrap();
    assert!(now[..40].iter().all(|value| *value == 1) && now[40..].iter().all(|value| *value == 2));
}

/// The whole, after asserting that the slice was an error; it has the wrong length for the copy
/// that follows.
trait OrWhole<'a> {
    fn unwrap_err_or(
        self,
        whole: &'a fercuda_cuda::DeviceSliceMut<'_, u32>,
    ) -> fercuda_cuda::DeviceSlice<'a, u32>;
}

impl<'a> OrWhole<'a> for fercuda_cuda::Result<fercuda_cuda::DeviceSlice<'a, u32>> {
    fn unwrap_err_or(
        self,
        whole: &'a fercuda_cuda::DeviceSliceMut<'_, u32>,
    ) -> fercuda_cuda::DeviceSlice<'a, u32> {
        assert!(self.is_err());
        whole.as_slice()
    }
}

#[test]
fn lengths_that_differ_are_errors_with_both() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut buffer = DeviceBuffer::from_host(&[1u32, 2, 3], &stream).unwrap();
    let error = buffer.copy_from_host(&[1, 2], &stream).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot copy from the host: the slice has 2 elements, the buffer has 3"
    );
    assert!(buffer.copy_to_host(&mut [0; 4], &stream).is_err());
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1, 2, 3]);
}

#[test]
fn filling_works_for_the_widths_the_driver_has() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut bytes = DeviceBuffer::<u8>::alloc(&context, 9).unwrap();
    bytes.fill(0xab, &stream).unwrap();
    assert_eq!(bytes.to_vec(&stream).unwrap(), [0xab; 9]);
    let mut halves = DeviceBuffer::<u16>::alloc(&context, 9).unwrap();
    halves.fill(0xabcd, &stream).unwrap();
    assert_eq!(halves.to_vec(&stream).unwrap(), [0xabcd; 9]);
    let mut floats = DeviceBuffer::<f32>::alloc(&context, 9).unwrap();
    floats.slice_mut(1..8).unwrap().fill(1.5, &stream).unwrap();
    assert_eq!(
        floats.slice(1..8).unwrap().to_vec(&stream).unwrap(),
        [1.5; 7]
    );
    let mut wide = DeviceBuffer::<u64>::alloc(&context, 9).unwrap();
    wide.fill(u64::MAX, &stream).unwrap();
    assert_eq!(wide.to_vec(&stream).unwrap(), [u64::MAX; 9]);
    assert!(matches!(wide.fill(1, &stream), Err(Error::Value { .. })));
}

#[test]
fn an_empty_buffer_needs_no_memory_and_does_nothing() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut empty = DeviceBuffer::<f64>::from_host(&[], &stream).unwrap();
    empty.fill(1.0, &stream).unwrap();
    empty.fill_bytes(1, &stream).unwrap();
    let other = DeviceBuffer::<f64>::alloc_ordered(&stream, 0).unwrap();
    empty.copy_from(other.as_slice(), &stream).unwrap();
    assert_eq!(empty.to_vec(&stream).unwrap(), [0.0; 0]);
    assert!(PinnedBuffer::<u32>::new(&context, 0).unwrap().is_empty());
}

#[test]
fn a_copy_on_the_device_keeps_to_its_range() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let values = random(64);
    let source = DeviceBuffer::from_host(&values, &stream).unwrap();
    let mut target = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    target
        .slice_mut(8..16)
        .unwrap()
        .copy_from(source.slice(0..8).unwrap(), &stream)
        .unwrap();
    let copied = target.to_vec(&stream).unwrap();
    assert_eq!(copied[8..16], values[..8]);
    assert!(
        copied[..8]
            .iter()
            .chain(&copied[16..])
            .all(|value| *value == 0)
    );
}

#[test]
fn a_buffer_is_read_as_another_type_of_the_same_bytes() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::from_host(&[1.0f32, -2.0, 0.5], &stream).unwrap();
    let bits = buffer.cast::<u32>().unwrap();
    assert_eq!(
        bits.to_vec(&stream).unwrap(),
        [1.0f32, -2.0, 0.5].map(f32::to_bits)
    );
    assert_eq!(bits.cast::<u64>().unwrap().len(), 1);
}

#[test]
fn out_of_memory_is_an_error_with_numbers_and_the_context_stays_usable() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let total = context.device().memory_bytes().unwrap();
    let len = usize::try_from(total).unwrap() + 1;
    for error in [
        DeviceBuffer::<u8>::alloc(&context, len).unwrap_err(),
        DeviceBuffer::<u8>::alloc_ordered(&stream, len).unwrap_err(),
    ] {
        let Error::OutOfMemory(report) = &error else {
            panic!("{error}")
        };
        assert_eq!(report.asked_bytes, len as u64);
        assert_eq!(report.free_and_total_bytes.unwrap().1, total);
        assert!(!error.is_sticky());
    }
    let error = DeviceBuffer::<u64>::alloc(&context, usize::MAX).unwrap_err();
    assert!(matches!(error, Error::Value { .. }), "{error}");
    let buffer = DeviceBuffer::from_host(&[3u32; 10], &stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [3; 10]);
}

#[test]
fn memory_is_not_freed_before_the_kernel_that_writes_it_is_done() {
    let context = context();
    let (busy, stream) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    for _ in 0..5 {
        let mut written = DeviceBuffer::<u32>::zeroed(&busy, 1024).unwrap();
        write_late(&mut written, u32::MAX, &busy);
        drop(written);
        let others: Vec<_> = (0..8)
            .map(|_| DeviceBuffer::<u32>::zeroed(&stream, 1024).unwrap())
            .collect();
        busy.synchronize().unwrap();
        for other in &others {
            assert_eq!(other.to_vec(&stream).unwrap(), [0; 1024]);
        }
    }
}

#[test]
fn stream_ordered_memory_is_not_freed_before_another_stream_is_done_with_it() {
    let context = context();
    let (home, busy) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    for _ in 0..5 {
        let mut written = DeviceBuffer::<u32>::alloc_ordered(&home, 1024).unwrap();
        written.fill(0, &home).unwrap();
        write_late(&mut written, u32::MAX, &busy);
        drop(written);
        let mut others: Vec<_> = (0..8)
            .map(|_| DeviceBuffer::<u32>::alloc_ordered(&home, 1024).unwrap())
            .collect();
        for other in &mut others {
            other.fill(0, &home).unwrap();
        }
        home.synchronize().unwrap();
        busy.synchronize().unwrap();
        for other in &others {
            assert_eq!(other.to_vec(&home).unwrap(), [0; 1024]);
        }
    }
}

#[test]
fn another_stream_waits_for_a_stream_ordered_allocation() {
    let context = context();
    let (home, other) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let mut first = DeviceBuffer::<u32>::zeroed(&home, 1).unwrap();
    write_late(&mut first, 1, &home);
    let mut buffer = DeviceBuffer::<u32>::alloc_ordered(&home, 16).unwrap();
    buffer.fill(6, &other).unwrap();
    assert_eq!(buffer.to_vec(&other).unwrap(), [6; 16]);
    // `other` came after everything in `home`.
    assert!(home.is_idle().unwrap());
    assert_eq!(first.to_vec(&other).unwrap(), [1]);
}

#[test]
fn a_stream_dropped_with_work_finishes_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    write_late(&mut out, 3, &stream);
    increment(&mut out, &stream);
    drop(stream);
    let other = Stream::new(&context).unwrap();
    assert_eq!(out.to_vec(&other).unwrap(), [4]);
}

#[test]
fn a_pool_counts_allocated_bytes_and_trimming_releases_them() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let pool = MemoryPool::new(&context, 0).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    assert_eq!(pool.used_bytes().unwrap(), 0);
    let buffer = DeviceBuffer::<u8>::alloc_from(&pool, &stream, 1 << 20).unwrap();
    stream.synchronize().unwrap();
    assert!(pool.used_bytes().unwrap() >= 1 << 20);
    drop(buffer);
    stream.synchronize().unwrap();
    assert_eq!(pool.used_bytes().unwrap(), 0);
    assert!(pool.reserved_bytes().unwrap() >= 1 << 20);
    pool.trim(0).unwrap();
    assert_eq!(pool.reserved_bytes().unwrap(), 0);
    let of_device = MemoryPool::of_device(&context).unwrap();
    let buffer = DeviceBuffer::<u8>::alloc_from(&of_device, &stream, 100).unwrap();
    assert!(of_device.used_bytes().unwrap() >= 100);
    drop((of_device, buffer));
}

#[test]
fn a_pool_lives_as_long_as_its_buffers() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let pool = MemoryPool::new(&context, 0).unwrap();
    let mut buffer = DeviceBuffer::<u32>::alloc_from(&pool, &stream, 100).unwrap();
    drop(pool);
    buffer.fill(8, &stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [8; 100]);
}

#[test]
fn the_per_thread_stream_does_not_allocate_in_stream_order() {
    let context = context();
    let error = DeviceBuffer::<u32>::alloc_ordered(&context.per_thread_stream(), 1).unwrap_err();
    assert!(matches!(error, Error::Value { .. }), "{error}");
}

#[test]
fn a_part_holds_the_whole_and_reaches_no_further() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let pool = MemoryPool::new(&context, 0).unwrap();
    let whole = DeviceBuffer::<u8>::alloc_from(&pool, &stream, 4096).unwrap();
    let address = whole.address().0;
    let mut low = whole.part::<u32>(0, 256).unwrap();
    let mut high = whole.part::<u64>(1024, 384).unwrap();
    assert_eq!(high.address().0, address + 1024);
    assert!(matches!(
        whole.part::<u64>(1024, 385),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        whole.part::<u64>(usize::MAX, 2),
        Err(Error::Length { .. })
    ));
    assert!(matches!(whole.part::<u64>(12, 1), Err(Error::Value { .. })));
    assert_eq!(
        whole.part::<u64>(4096, 0).unwrap().to_vec(&stream).unwrap(),
        []
    );
    drop(whole);
    // A stream other than the home stream of the whole waits for the allocation, and is waited for
    // by the free.
    let other = Stream::new(&context).unwrap();
    let late = kernel(&context, "late");
    low.fill(7, &stream).unwrap();
    high.fill(0x0909_0909_0909_0909, &other).unwrap();
    other.wait_for(&stream.record().unwrap()).unwrap();
    // SAFETY: `late` touches the first value.
    unsafe { Launch::new(1, 1).run(&late, &other, (&mut low, 8u32, many_iterations(&context))) }
        .unwrap();
    drop((low, high));
    let others: Vec<_> = (0..8)
        .map(|_| {
            let mut other = DeviceBuffer::<u32>::alloc_from(&pool, &stream, 1024).unwrap();
            other.fill(1, &stream).unwrap();
            other
        })
        .collect();
    other.synchronize().unwrap();
    for buffer in &others {
        assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 1024]);
    }
    drop(others);
    stream.synchronize().unwrap();
    assert_eq!(pool.used_bytes().unwrap(), 0);
}

#[test]
fn panics_of_a_lenders_callback_and_of_their_payloads_are_contained() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("it was dropped");
        }
    }
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let memory = DeviceBuffer::<u8>::alloc(&context, 64).unwrap();
    let address = memory.address();
    // SAFETY: `memory` outlives both.
    let (foreign, lent) = unsafe {
        let end = || std::panic::panic_any(Bomb);
        let foreign = DeviceBuffer::<u8>::foreign(&context, address, 64, end);
        let take = |_: Option<&Stream>| std::panic::panic_any(Bomb);
        (
            foreign,
            DeviceBuffer::<u8>::lent(&stream, address, 64, take),
        )
    };
    drop((foreign.unwrap(), lent.unwrap()));
    stream.synchronize().unwrap();
}

#[test]
fn what_a_foreign_stream_uses_is_kept_until_its_work_is_done() {
    let context = context();
    let owner = Stream::new(&context).unwrap();
    for round in 1..6 {
        // Memory, module and stream are dropped while the work runs. A stream is named anew each
        // time, as a call of another library's does.
        let mut memory = DeviceBuffer::<u32>::alloc(&context, 16).unwrap();
        let copy = memory.part::<u32>(0, 16).unwrap();
        // SAFETY: `owner` outlives it.
        let foreign = unsafe { Stream::foreign(&context, owner.raw()) };
        write_late(&mut memory, round, &foreign);
        assert!(!foreign.is_captured_by_any().unwrap());
        drop((memory, foreign));
        owner.synchronize().unwrap();
        assert_eq!(copy.to_vec(&owner).unwrap()[0], round);
    }
    // In the order of the owner's work.
    let mut first = DeviceBuffer::<u32>::zeroed(&owner, 1).unwrap();
    write_late(&mut first, 7, &owner);
    // SAFETY: as above.
    let foreign = unsafe { Stream::foreign(&context, owner.raw()) };
    increment(&mut first, &foreign);
    assert_eq!(first.to_vec(&foreign).unwrap(), [8]);
    // What is allocated in stream order is freed there, and a foreign handle may be gone by then.
    assert!(DeviceBuffer::<u8>::alloc_ordered(&foreign, 8).is_err());
    let capture = owner.begin_capture(CaptureMode::Global).unwrap();
    assert!(foreign.is_captured_by_any().unwrap());
    drop(capture);
    assert!(!foreign.is_captured_by_any().unwrap());
}

#[test]
fn borrowed_memory_is_used_without_a_note_and_its_drop_waits_for_nothing() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let memory = DeviceBuffer::<u32>::zeroed(&stream, 4).unwrap();
    // SAFETY: `memory` outlives the work.
    let mut borrowed =
        unsafe { DeviceBuffer::<u32>::borrowed(&context, memory.address(), 4) }.unwrap();
    // Kept, as its module's drop would wait.
    let late = kernel(&context, "late");
    let iterations = 20 * many_iterations(&context);
    // SAFETY: `late` touches the first value only.
    unsafe { Launch::new(1, 1).run(&late, &stream, (&mut borrowed, 3u32, iterations)) }.unwrap();
    drop(borrowed);
    assert!(!stream.is_idle().unwrap(), "the drop waited");
    assert_eq!(memory.to_vec(&stream).unwrap()[0], 3);
    let address = memory.address();
    for wrong in [
        fercuda_cuda::DeviceAddr(0),
        fercuda_cuda::DeviceAddr(address.0 + 1),
    ] {
        // SAFETY: nothing uses it.
        let refused = unsafe { DeviceBuffer::<u32>::borrowed(&context, wrong, 1) };
        assert!(refused.is_err());
    }
}
