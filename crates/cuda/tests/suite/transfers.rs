//! Copies that the host does not wait for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fercuda_cuda::{CaptureMode, DeviceBuffer, Error, PinnedBuffer, Staging, Stream};

use crate::numbers::random;
use crate::support::{context, write_late};

#[test]
fn pinned_memory_begins_as_zeros_and_is_a_slice() {
    let context = context();
    let mut pinned = PinnedBuffer::<u32>::new(&context, 1000).unwrap();
    assert!(pinned.iter().all(|value| *value == 0));
    pinned[10..20].fill(3);
    assert_eq!(pinned.iter().sum::<u32>(), 30);
    assert_ne!(pinned.device_address().unwrap().0, 0);
    assert!(PinnedBuffer::<u64>::new(&context, usize::MAX).is_err());
}

#[test]
fn several_pinned_buffers_are_disjoint_and_share_memory_until_the_last_is_dropped() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut all = PinnedBuffer::<u32>::several(&context, 5, 300).unwrap();
    for (at, it) in (0..).zip(&mut all) {
        assert!(it.iter().all(|value| *value == 0));
        it.fill(at);
    }
    for (at, it) in (0..).zip(&all) {
        assert_eq!((it.len(), it.iter().sum::<u32>()), (300, 300 * at));
    }
    let first = all[0].device_address().unwrap().0;
    let last = all.pop().unwrap();
    drop(all);
    assert_eq!(last.device_address().unwrap().0, first + 4 * 300 * 4);
    let mut buffer = DeviceBuffer::<u32>::alloc(&context, 300).unwrap();
    let up = buffer.as_slice_mut().upload(last, &stream).unwrap();
    assert_eq!(*up.wait().unwrap(), [4; 300]);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [4; 300]);
    assert!(
        PinnedBuffer::<u32>::several(&context, 0, 9)
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        PinnedBuffer::<u32>::several(&context, 3, 0).unwrap().len(),
        3
    );
    assert!(PinnedBuffer::<u64>::several(&context, usize::MAX, 2).is_err());
}

#[test]
fn a_transfer_returns_its_memory_when_the_copy_is_done() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let values = random(10_000);
    let mut buffer = DeviceBuffer::<u32>::alloc(&context, values.len()).unwrap();
    let pinned = PinnedBuffer::from_slice(&context, &values).unwrap();
    let up = buffer.as_slice_mut().upload(pinned, &stream).unwrap();
    let down = buffer
        .as_slice()
        .download(vec![0; values.len()], &stream)
        .unwrap();
    assert!(down.wait().unwrap() == values);
    assert!(up.is_done().unwrap());
    let pinned = up.wait().unwrap();
    assert!(*pinned == values[..]);
}

#[test]
fn shared_pinned_memory_cannot_be_changed_while_a_copy_reads_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut shared = Arc::new(PinnedBuffer::from_slice(&context, &[5u32; 100]).unwrap());
    let mut first = DeviceBuffer::alloc(&context, 100).unwrap();
    let mut second = DeviceBuffer::alloc(&context, 100).unwrap();
    let one = first
        .as_slice_mut()
        .upload(shared.clone(), &stream)
        .unwrap();
    let two = second
        .as_slice_mut()
        .upload(shared.clone(), &stream)
        .unwrap();
    assert!(Arc::get_mut(&mut shared).is_none());
    drop((one.wait().unwrap(), two));
    assert!(Arc::get_mut(&mut shared).is_some());
    assert_eq!(second.to_vec(&stream).unwrap(), [5; 100]);
}

#[test]
fn a_transfer_dropped_or_forgotten_still_copies() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut late = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    for forget in [false, true] {
        write_late(&mut late, 1, &stream);
        let mut buffer = DeviceBuffer::<u32>::alloc(&context, 50).unwrap();
        let pinned = PinnedBuffer::from_slice(&context, &[9u32; 50]).unwrap();
        let transfer = buffer.as_slice_mut().upload(pinned, &stream).unwrap();
        if forget {
            std::mem::forget(transfer);
        } else {
            drop(transfer);
            assert!(stream.is_idle().unwrap());
        }
        assert_eq!(buffer.to_vec(&stream).unwrap(), [9; 50]);
    }
}

#[test]
fn a_scope_lends_memory_to_copies_and_waits_for_them() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let input = random(1000);
    let mut output = vec![0; 1000];
    let mut buffer = DeviceBuffer::<u32>::alloc(&context, 1000).unwrap();
    let count = stream
        .scope(|copies| {
            copies.upload(&mut buffer.as_slice_mut(), &input)?;
            copies.download(buffer.as_slice(), &mut output)?;
            Ok(2)
        })
        .unwrap();
    assert_eq!(count, 2);
    assert!(input == output);
}

#[test]
fn a_scope_that_panics_waits_all_the_same() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut late = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let mut output = [0];
    write_late(&mut late, 77, &stream);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        stream.scope(|copies| -> fercuda_cuda::Result<()> {
            copies.download(late.as_slice(), &mut output)?;
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert!(stream.is_idle().unwrap());
    assert_eq!(output, [77]);
}

#[test]
fn a_length_that_differs_is_an_error_before_anything_is_queued() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 4).unwrap();
    let error = buffer
        .as_slice_mut()
        .upload(vec![1; 5], &stream)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Length {
                left: 5,
                right: 4,
                ..
            }
        ),
        "{error}"
    );
    assert!(buffer.as_slice().download(vec![0; 3], &stream).is_err());
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0; 4]);
}

#[test]
fn a_ring_slot_is_not_overwritten_before_its_last_copy_is_done() {
    const COPIES: usize = 150;
    let context = context();
    let streams = [
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    ];
    for (slots, in_turns) in [(1, 1), (4, 1), (9, 1), (9, 5), (64, 7), (64, 1000)] {
        let mut ring = Staging::new(&context, 8, slots).unwrap();
        let mut late = DeviceBuffer::<u32>::zeroed(&streams[0], 1).unwrap();
        let mut out = DeviceBuffer::<u64>::zeroed(&streams[0], COPIES).unwrap();
        streams[0].synchronize().unwrap();
        // The copies have to wait, so that the host is ahead of them.
        write_late(&mut late, 1, &streams[0]);
        let values = random(COPIES);
        for (index, value) in values.iter().enumerate() {
            let stream = &streams[index / in_turns % 2];
            let to = &mut out.slice_mut(index..=index).unwrap();
            ring.upload(to, &[u64::from(*value)], stream).unwrap();
        }
        let last = Stream::new(&context).unwrap();
        if slots == 64 {
            drop(ring);
        }
        for stream in &streams {
            last.wait_for(&stream.record().unwrap()).unwrap();
        }
        let copied = out.to_vec(&last).unwrap();
        let same = copied
            .iter()
            .zip(&values)
            .all(|(copied, value)| *copied == u64::from(*value));
        assert!(same, "{slots} slots, {in_turns} in turn");
    }
}

#[test]
fn a_ring_refuses_values_that_do_not_fit_and_captures() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut ring = Staging::new(&context, 1, 1).unwrap();
    let bytes = ring.slot_bytes();
    let mut out = DeviceBuffer::<u8>::zeroed(&stream, bytes + 1).unwrap();
    let too_long = ring.upload(&mut out.as_slice_mut(), &vec![0; bytes + 1], &stream);
    assert!(matches!(too_long, Err(Error::Value { .. })), "{too_long:?}");
    let other = ring.upload(&mut out.as_slice_mut(), &[1], &stream);
    assert!(matches!(other, Err(Error::Length { .. })), "{other:?}");
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    let mut some = out.slice_mut(..3).unwrap();
    let captured = ring.upload(&mut some, &[1, 2, 3], &stream);
    assert!(
        matches!(captured, Err(Error::Capturing { .. })),
        "{captured:?}"
    );
    drop(capture);
    ring.upload(&mut some, &[1, 2, 3], &stream).unwrap();
    assert_eq!(
        out.slice(..4).unwrap().to_vec(&stream).unwrap(),
        [1, 2, 3, 0]
    );
}
