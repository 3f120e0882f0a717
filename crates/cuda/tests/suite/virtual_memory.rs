//! Address ranges, physical memory and mappings.

use std::os::fd::AsFd;

use fercuda_cuda::{DeviceBuffer, Error, PhysicalMemory, Stream, VirtualRange};

use crate::numbers::random;
use crate::support::{context, increment, write_late};

#[test]
fn mapped_memory_is_a_buffer_and_a_range_holds_several() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let unit = PhysicalMemory::granularity_bytes(&context).unwrap();
    let range = VirtualRange::reserve(&context, 4 * unit).unwrap();
    assert_eq!(range.bytes(), 4 * unit);
    let device = [context.device()];
    let one = PhysicalMemory::new(&context, unit).unwrap();
    let two = PhysicalMemory::new(&context, 2 * unit).unwrap();
    let mut first = range.map(0, &one, &device).unwrap().cast::<u32>().unwrap();
    let mut second = range
        .map(unit, &two, &device)
        .unwrap()
        .cast::<u32>()
        .unwrap();
    assert_eq!(second.address().0, range.address().0 + unit as u64);
    let (a, b) = (random(unit / 4), random(unit / 2));
    first.copy_from_host(&a, &stream).unwrap();
    second.copy_from_host(&b, &stream).unwrap();
    increment(&mut first, &stream);
    assert_eq!(first.to_vec(&stream).unwrap()[0], a[0].wrapping_add(1));
    assert!(second.to_vec(&stream).unwrap() == b);
}

#[test]
fn mapped_memory_may_be_mapped_twice_and_moved() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let unit = PhysicalMemory::granularity_bytes(&context).unwrap();
    let range = VirtualRange::reserve(&context, 2 * unit).unwrap();
    let memory = PhysicalMemory::new(&context, unit).unwrap();
    let mut here = range.map(0, &memory, &[context.device()]).unwrap();
    let there = range.map(unit, &memory, &[context.device()]).unwrap();
    here.fill(7, &stream).unwrap();
    assert!(there.to_vec(&stream).unwrap().iter().all(|byte| *byte == 7));
    drop(here);
    let again = range.map(0, &memory, &[context.device()]).unwrap();
    assert!(again.to_vec(&stream).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn mappings_that_overlap_or_reach_outside_are_errors() {
    let context = context();
    let unit = PhysicalMemory::granularity_bytes(&context).unwrap();
    let range = VirtualRange::reserve(&context, 4 * unit).unwrap();
    let memory = PhysicalMemory::new(&context, 2 * unit).unwrap();
    let device = [context.device()];
    let mapped = range.map(unit, &memory, &device).unwrap();
    for offset in [0, unit, 2 * unit, 3 * unit, 4 * unit, usize::MAX - unit] {
        let error = range.map(offset, &memory, &device).unwrap_err();
        assert!(matches!(error, Error::Value { .. }), "{error}");
    }
    drop(mapped);
    drop(range.map(2 * unit, &memory, &device).unwrap());
    assert!(matches!(
        range.map(1, &memory, &device),
        Err(Error::Driver(_))
    ));
    assert!(PhysicalMemory::new(&context, unit + 1).is_err());
}

#[test]
fn range_and_memory_live_as_long_as_the_mapping() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let unit = PhysicalMemory::granularity_bytes(&context).unwrap();
    let mut mapped: DeviceBuffer<u32> = {
        let range = VirtualRange::reserve(&context, unit).unwrap();
        let memory = PhysicalMemory::new(&context, unit).unwrap();
        range
            .map(0, &memory, &[context.device()])
            .unwrap()
            .cast()
            .unwrap()
    };
    mapped.fill(1, &stream).unwrap();
    write_late(&mut mapped, 2, &stream);
    assert_eq!(mapped.slice(..2).unwrap().to_vec(&stream).unwrap(), [2, 1]);
    write_late(&mut mapped, 3, &stream);
    drop(mapped);
    stream.synchronize().unwrap();
}

#[test]
fn physical_memory_goes_through_a_file_descriptor() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let unit = PhysicalMemory::granularity_bytes(&context).unwrap();
    let memory = PhysicalMemory::shareable(&context, unit).unwrap();
    let fd = memory.export().unwrap();
    let same = PhysicalMemory::import(&context, fd.as_fd(), unit).unwrap();
    drop(fd);
    let range = VirtualRange::reserve(&context, 2 * unit).unwrap();
    let mut here = range.map(0, &memory, &[context.device()]).unwrap();
    let there = range.map(unit, &same, &[context.device()]).unwrap();
    here.fill(9, &stream).unwrap();
    assert!(there.to_vec(&stream).unwrap().iter().all(|byte| *byte == 9));
    assert!(
        PhysicalMemory::new(&context, unit)
            .unwrap()
            .export()
            .is_err()
    );
}
