//! The table itself: entry points, devices, errors, bad arguments.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use fercuda_cuda_sys::types::*;
use fercuda_cuda_sys::{ENTRIES, Symbol};

use crate::common::{Ctx, d};

#[test]
fn every_symbol_of_the_table_has_an_address() {
    for &symbol in Symbol::ALL {
        assert!(d().has(symbol), "{}", symbol.name());
    }
}

#[test]
fn every_device_attribute_has_an_answer() {
    d();
    for &(attribute, name) in CUdevice_attribute::ALL {
        if attribute == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX {
            continue;
        }
        let mut value = 0;
        assert_eq!(
            code!(cuDeviceGetAttribute(&mut value, attribute, 0)),
            CUresult::CUDA_SUCCESS,
            "{name}"
        );
    }
    let mut value = 0;
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuDeviceGetAttribute(&mut value, CUdevice_attribute(9999), 0)
    );
    fails!(
        CUDA_ERROR_INVALID_DEVICE,
        cuDeviceGetAttribute(&mut value, CUdevice_attribute(1), 2)
    );
    fails!(
        CUDA_ERROR_INVALID_DEVICE,
        cuDeviceGetAttribute(&mut value, CUdevice_attribute(1), -1)
    );
}

#[test]
fn every_code_has_a_name_and_a_meaning() {
    for &(code, name) in CUresult::ALL {
        let mut text = null();
        ok!(cuGetErrorName(code, &mut text));
        // SAFETY: the driver gave a terminated string.
        let found = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
        assert!(found == name || CUresult::ALL.iter().any(|&(c, n)| c == code && n == found));
        ok!(cuGetErrorString(code, &mut text));
        // SAFETY: likewise.
        assert!(!unsafe { CStr::from_ptr(text) }.is_empty());
    }
    let mut text = null();
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuGetErrorName(CUresult(424_242), &mut text)
    );
    assert!(text.is_null());
}

#[test]
fn an_entry_point_is_found_by_name_and_version() {
    let mut address = null_mut();
    let mut status = CUdriverProcAddressQueryResult::default();
    ok!(cuGetProcAddress_v2(
        c"cuMemAlloc".as_ptr(),
        &mut address,
        13000,
        0,
        &mut status
    ));
    assert_eq!(
        address,
        d().address(Symbol::cuMemAlloc_v2).unwrap().as_ptr()
    );
    ok!(cuGetProcAddress_v2(
        c"cuNoSuchThing".as_ptr(),
        &mut address,
        13000,
        0,
        &mut status
    ));
    assert!(address.is_null());
    assert_eq!(
        status,
        CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    );
    for entry in ENTRIES {
        let name = std::ffi::CString::new(entry.base).unwrap();
        ok!(cuGetProcAddress_v2(
            name.as_ptr(),
            &mut address,
            13000,
            0,
            &mut status
        ));
        assert!(!address.is_null(), "{}", entry.base);
    }
}

#[test]
fn undocumented_tables_are_not_given_out() {
    let mut table = null();
    let id = CUuuid::default();
    fails!(CUDA_ERROR_NOT_SUPPORTED, cuGetExportTable(&mut table, &id));
    assert!(table.is_null());
}

#[test]
fn devices_are_distinguishable() {
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 2);
    let mut ids = [CUuuid::default(); 2];
    ok!(cuDeviceGetUuid_v2(&mut ids[0], 0));
    ok!(cuDeviceGetUuid_v2(&mut ids[1], 1));
    assert_ne!(ids[0].bytes, ids[1].bytes);
    let mut text = [0; 32];
    for device in 0..2 {
        ok!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, device));
        let mut found = -1;
        ok!(cuDeviceGetByPCIBusId(&mut found, text.as_ptr()));
        assert_eq!(found, device);
    }
    let mut name = [1; 8];
    ok!(cuDeviceGetName(name.as_mut_ptr(), 8, 0));
    assert_eq!(name[7], 0);
}

#[test]
fn null_where_a_result_belongs_is_an_invalid_value() {
    let _ctx = Ctx::new();
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(null_mut(), 16));
    fails!(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(null_mut(), 0));
    fails!(CUDA_ERROR_INVALID_VALUE, cuEventCreate(null_mut(), 0));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuModuleLoadData(null_mut(), c"".as_ptr().cast())
    );
    fails!(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(null_mut()));
    fails!(CUDA_ERROR_INVALID_VALUE, cuCtxGetCurrent(null_mut()));
    fails!(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(null_mut(), 0));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(null()));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuLaunchKernelEx(null(), CUfunction::NULL, null_mut(), null_mut())
    );
}

#[test]
fn numbers_that_are_no_handles_are_errors_and_no_crashes() {
    let _ctx = Ctx::new();
    let wild = [3usize, 8, 0x7fff_dead_beef, usize::MAX, 0x41 << 48];
    for handle in wild {
        let p = handle as *mut std::ffi::c_void;
        fails!(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(CUstream(p)));
        fails!(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(CUevent(p)));
        fails!(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(CUmodule(p)));
        fails!(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(CUcontext(p)));
        fails!(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(CUlibrary(p)));
        fails!(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(CUgraph(p)));
        fails!(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(CUmemoryPool(p)));
        fails!(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle as u64));
        let launch = code!(cuLaunchKernel(
            CUfunction(p),
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            CUstream::NULL,
            null_mut(),
            null_mut()
        ));
        assert_eq!(launch, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}
