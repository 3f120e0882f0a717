//! Virtual memory management.

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, download};

pub(crate) const GRANULE: usize = 2 << 20;

pub(crate) fn prop(shareable: bool) -> CUmemAllocationProp {
    let mut prop = CUmemAllocationProp::default();
    prop.r#type.0 = 1;
    prop.location.r#type.0 = 1;
    prop.requestedHandleTypes.0 = u32::from(shareable) as _;
    prop
}

pub(crate) fn access() -> CUmemAccessDesc {
    let mut desc = CUmemAccessDesc::default();
    desc.location.r#type.0 = 1;
    desc.flags.0 = 3;
    desc
}

#[test]
fn one_memory_mapped_twice_is_one_memory() {
    let _ctx = Ctx::new();
    let mut granularity = 0;
    let option = CUmemAllocationGranularity_flags(0);
    ok!(cuMemGetAllocationGranularity(
        &mut granularity,
        &prop(false),
        option
    ));
    assert_eq!(granularity, GRANULE);
    let (mut at, mut handle) = (0, 0);
    ok!(cuMemAddressReserve(&mut at, 4 * GRANULE, 0, 0, 0));
    ok!(cuMemCreate(&mut handle, 2 * GRANULE, &prop(false), 0));
    ok!(cuMemMap(at, 2 * GRANULE, 0, handle, 0));
    ok!(cuMemMap(at + 2 * GRANULE as u64, 2 * GRANULE, 0, handle, 0));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemMap(at, GRANULE, 0, handle, 0)
    );
    ok!(cuMemSetAccess(at, 4 * GRANULE, &access(), 1));
    ok!(cuMemRelease(handle));
    ok!(cuMemsetD8_v2(at + 100, 0x5A, 1000));
    assert_eq!(download(at + 2 * GRANULE as u64 + 100, 1000), [0x5A; 1000]);
    // A copy may cross from one mapping to the next.
    ok!(cuMemsetD8_v2(at + 2 * GRANULE as u64 - 10, 1, 20));
    let mut retained = 0;
    ok!(cuMemRetainAllocationHandle(&mut retained, at as *mut _));
    ok!(cuMemRelease(retained));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, GRANULE));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 4 * GRANULE));
    ok!(cuMemUnmap(at, 4 * GRANULE));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(at, 0, 1));
    ok!(cuMemAddressFree(at, 4 * GRANULE));
}

#[test]
fn a_descriptor_carries_memory_to_another_handle() {
    let _ctx = Ctx::new();
    let (mut a, mut b, mut handle) = (0, 0, 0);
    ok!(cuMemCreate(&mut handle, GRANULE, &prop(true), 0));
    let mut fd = -1i32;
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ok!(cuMemExportToShareableHandle(
        (&raw mut fd).cast(),
        handle,
        kind,
        0
    ));
    let mut imported = 0;
    ok!(cuMemImportFromShareableHandle(
        &mut imported,
        fd as usize as *mut _,
        kind
    ));
    ok!(cuMemAddressReserve(&mut a, GRANULE, 0, 0, 0));
    ok!(cuMemAddressReserve(&mut b, GRANULE, 0, 0, 0));
    ok!(cuMemMap(a, GRANULE, 0, handle, 0));
    ok!(cuMemMap(b, GRANULE, 0, imported, 0));
    ok!(cuMemSetAccess(a, GRANULE, &access(), 1));
    ok!(cuMemSetAccess(b, GRANULE, &access(), 1));
    ok!(cuMemsetD32_v2(a, 77, 4));
    assert_eq!(download(b, 4), [77, 0, 0, 0]);
    // SAFETY: the driver gave this descriptor to us.
    unsafe { libc::close(fd) };
    for (at, handle) in [(a, handle), (b, imported)] {
        ok!(cuMemUnmap(at, GRANULE));
        ok!(cuMemRelease(handle));
        ok!(cuMemAddressFree(at, GRANULE));
    }
    let plain = std::fs::File::open("/dev/null").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&plain);
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemImportFromShareableHandle(&mut imported, fd as usize as *mut _, kind)
    );
}

/// Memory that can be exported, mapped.
fn exportable() -> (u64, u64) {
    let (mut at, mut handle) = (0, 0);
    ok!(cuMemCreate(&mut handle, GRANULE, &prop(true), 0));
    ok!(cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0));
    ok!(cuMemMap(at, GRANULE, 0, handle, 0));
    ok!(cuMemSetAccess(at, GRANULE, &access(), 1));
    (at, handle)
}

fn released((at, handle): (u64, u64)) {
    ok!(cuMemUnmap(at, GRANULE));
    ok!(cuMemRelease(handle));
    ok!(cuMemAddressFree(at, GRANULE));
}

#[test]
fn released_memory_is_kept_while_there_is_a_descriptor_of_it() {
    let _ctx = Ctx::new();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let memory = exportable();
    // Other tests of this process open few files, and memory without descriptors needs none.
    let many: Vec<_> = (0..200).map(|_| exportable()).collect();
    assert!(open() < before + 100);
    many.into_iter().for_each(released);
    ok!(cuMemsetD32_v2(memory.0, 77, 4));
    let mut fd = -1i32;
    let into = (&raw mut fd).cast();
    ok!(cuMemExportToShareableHandle(into, memory.1, kind, 0));
    released(memory);
    // Whatever is made now is other memory.
    let others: Vec<_> = (0..8).map(|_| exportable()).collect();
    for (at, _) in &others {
        ok!(cuMemsetD32_v2(*at, 78, 4));
    }
    let (mut at, mut imported) = (0, 0);
    let source = fd as usize as *mut _;
    ok!(cuMemImportFromShareableHandle(&mut imported, source, kind));
    // SAFETY: the driver gave this descriptor to us.
    unsafe { libc::close(fd) };
    ok!(cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0));
    ok!(cuMemMap(at, GRANULE, 0, imported, 0));
    ok!(cuMemSetAccess(at, GRANULE, &access(), 1));
    assert_eq!(download(at, 4), [77, 0, 0, 0]);
    others.into_iter().for_each(released);
    released((at, imported));
}

#[test]
fn a_descriptor_of_memory_cannot_be_cut_and_one_that_could_be_is_refused() {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    let _ctx = Ctx::new();
    let (mut handle, mut imported, mut fd) = (0, 0, -1i32);
    ok!(cuMemCreate(&mut handle, GRANULE, &prop(true), 0));
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ok!(cuMemExportToShareableHandle(
        (&raw mut fd).cast(),
        handle,
        kind,
        0
    ));
    for len in [0, GRANULE / 2, 2 * GRANULE] {
        // SAFETY: plain system call on the descriptor that the driver gave to us.
        assert_eq!(unsafe { libc::ftruncate(fd, len as i64) }, -1, "{len}");
    }
    // SAFETY: the driver gave it to us, and this is its only owner.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    ok!(cuMemRelease(handle));
    let both = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // The position of a descriptor says which memory it is of: here the first granule.
    let position = 1i64 << 24;
    for (name, seals, position, is_memory) in [
        (c"fercuda-device-memory", both, position, true),
        (c"fercuda-device-memory", both, 0, false),
        (c"fercuda-device-memory", both, 2 * position, false),
        (c"fercuda-device-memory", both, position + 1, false),
        (c"fercuda-device-memory", both, i64::MAX, false),
        (c"fercuda-device-memory", 0, position, false),
        (
            c"fercuda-device-memory",
            libc::F_SEAL_SHRINK,
            position,
            false,
        ),
        (c"fercuda-device-memory", libc::F_SEAL_GROW, position, false),
        (c"my-memfd:fercuda-device-memory", both, position, false),
        (c"fercuda-device-memory-of-mine", both, position, false),
    ] {
        // SAFETY: the name is a C string; plain system calls on the fresh descriptor.
        let file = unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(fd, GRANULE as i64), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            assert_eq!(libc::lseek(fd, position, libc::SEEK_SET), position);
            OwnedFd::from_raw_fd(fd)
        };
        let number = file.as_raw_fd() as usize as *mut _;
        if is_memory {
            ok!(cuMemImportFromShareableHandle(&mut imported, number, kind));
            ok!(cuMemRelease(imported));
        } else {
            fails!(
                CUDA_ERROR_INVALID_VALUE,
                cuMemImportFromShareableHandle(&mut imported, number, kind)
            );
        }
    }
}

#[test]
fn sizes_that_are_no_granules_are_refused() {
    let _ctx = Ctx::new();
    let (mut at, mut handle) = (0, 0);
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemCreate(&mut handle, 4096, &prop(false), 0)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemAddressReserve(&mut at, 4096, 0, 0, 0)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemCreate(&mut handle, 0, &prop(false), 0)
    );
}

#[test]
fn a_hint_beyond_the_addresses_there_are_is_only_a_hint() {
    let last = usize::MAX - GRANULE + 1;
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, GRANULE, 0, last as u64, 0));
    assert_ne!(at, last as u64);
    ok!(cuMemAddressFree(at, GRANULE));
    fails!(
        CUDA_ERROR_OUT_OF_MEMORY,
        cuMemAddressReserve(&mut at, last, 0, 0, 0)
    );
}
