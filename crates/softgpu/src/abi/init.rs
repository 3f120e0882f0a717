//! Initialisation, errors, entry points, devices, the profiler.

use std::ffi::{c_char, c_int, c_uint, c_void};

use fercuda_cuda_sys::types::*;
use fercuda_cuda_sys::{Resolution, resolve};

use super::{get, put, put_if, put_text, text};
use crate::device::attributes as facts;
use crate::device::{CuResult, err, init, lock, machine};

/// A code's name as a C string that lives for ever.
fn error_name(code: CUresult) -> Option<&'static std::ffi::CStr> {
    use std::collections::HashMap;
    use std::ffi::CString;
    use std::sync::OnceLock;
    static NAMES: OnceLock<HashMap<u32, CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        CUresult::ALL
            .iter()
            .filter_map(|&(code, name)| Some((code.0, CString::new(name).ok()?)))
            .collect()
    });
    names.get(&code.0).map(CString::as_c_str)
}

/// What a code means, in a few words.
fn error_text(code: CUresult) -> Option<&'static std::ffi::CStr> {
    use std::collections::HashMap;
    use std::ffi::CString;
    use std::sync::OnceLock;
    static TEXTS: OnceLock<HashMap<u32, CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let say = |code: CUresult, name: &str| match code {
            CUresult::CUDA_SUCCESS => "no error".to_owned(),
            err::INVALID_VALUE => "invalid argument".to_owned(),
            err::OUT_OF_MEMORY => "out of memory".to_owned(),
            err::NOT_INITIALIZED => "initialization error".to_owned(),
            err::INVALID_DEVICE => "invalid device ordinal".to_owned(),
            err::INVALID_IMAGE => "device kernel image is invalid".to_owned(),
            err::INVALID_CONTEXT => "invalid device context".to_owned(),
            err::NO_BINARY_FOR_GPU => {
                "no kernel image is available for execution on the device".to_owned()
            }
            err::INVALID_PTX => "a PTX JIT compilation failed".to_owned(),
            err::INVALID_HANDLE => "invalid resource handle".to_owned(),
            err::NOT_FOUND => "named symbol not found".to_owned(),
            err::NOT_READY => "device not ready".to_owned(),
            err::NOT_SUPPORTED => "operation not supported".to_owned(),
            err::UNKNOWN => "unknown error".to_owned(),
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => {
                "an illegal memory access was encountered".to_owned()
            }
            CUresult::CUDA_ERROR_LAUNCH_FAILED => "unspecified launch failure".to_owned(),
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS => "misaligned address".to_owned(),
            CUresult::CUDA_ERROR_ASSERT => "device-side assert triggered".to_owned(),
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => {
                "the launch timed out and was terminated".to_owned()
            }
            // The name says it in words already.
            _ => name
                .trim_start_matches("CUDA_ERROR_")
                .to_ascii_lowercase()
                .replace('_', " "),
        };
        CUresult::ALL
            .iter()
            .rev()
            .filter_map(|&(code, name)| Some((code.0, CString::new(say(code, name)).ok()?)))
            .collect()
    });
    texts.get(&code.0).map(CString::as_c_str)
}

/// The memory of a device that its users may have.
fn total(dev: CUdevice) -> CuResult<u64> {
    Ok(machine()?.device(dev)?.phys.capacity())
}

/// What a program needs that asks for NVIDIA's undocumented tables.
const EXPORT_TABLES: &str = ": its tables are not documented\n  \
    NVIDIA's runtime library asks for them, which nvcc links into a program by default\n  \
    try: nvcc -cudart shared -gencode arch=compute_90,code=compute_90, and start the program by \
    fercuda check or fercuda run, which have a runtime library of their own";

driver_fns! {
    fn cuGetErrorName[](error: CUresult, str: *mut *const c_char) {
        let found = error_name(error);
        put(str, found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
        if found.is_some() { Ok(()) } else { Err(err::INVALID_VALUE) }
    }

    fn cuGetErrorString[](error: CUresult, str: *mut *const c_char) {
        let found = error_text(error);
        put(str, found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
        if found.is_some() { Ok(()) } else { Err(err::INVALID_VALUE) }
    }

    fn cuInit[](flags: c_uint) {
        crate::device::context::prepare_thread();
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        init().map(|_| ())
    }

    fn cuDriverGetVersion[](driver_version: *mut c_int) {
        put(driver_version, facts::DRIVER_VERSION)
    }

    fn cuGetProcAddress_v2[](
        symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: u64,
        symbol_status: *mut CUdriverProcAddressQueryResult,
    ) {
        let name = text(symbol)?;
        if pfn.is_null() {
            return Err(err::INVALID_VALUE);
        }
        if let Some(address) = super::extension::find(name) {
            put_if(symbol_status, CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS);
            *pfn = address.as_ptr();
            return Ok(());
        }
        let found = resolve(name, cuda_version, flags);
        put_if(symbol_status, found.status().ok_or(err::INVALID_VALUE)?);
        let address = match found {
            Resolution::Symbol(symbol) => super::address(symbol),
            _ => None,
        };
        *pfn = address.map_or(std::ptr::null_mut(), |a| a.as_ptr());
        // With a place for the status, an unknown name is an answer and no error.
        if address.is_none() && symbol_status.is_null() { Err(err::NOT_FOUND) } else { Ok(()) }
    }

    fn cuGetProcAddress[](symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: u64) {
        match cuGetProcAddress_v2(symbol, pfn, cuda_version, flags, std::ptr::null_mut()) {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    // NVIDIA's undocumented tables are not imitated.
    fn cuGetExportTable[](export_table: *mut *const c_void, export_table_id: *const CUuuid) {
        if export_table_id.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(export_table, std::ptr::null())?;
        Err(super::unsupported_with("cuGetExportTable", EXPORT_TABLES))
    }

    fn cuDeviceGetCount[](count: *mut c_int) {
        put(count, machine()?.devices.len() as c_int)
    }

    fn cuDeviceGet[](device: *mut CUdevice, ordinal: c_int) {
        put(device, machine()?.device(ordinal)?.ordinal as CUdevice)
    }

    fn cuDeviceGetName[](name: *mut c_char, len: c_int, dev: CUdevice) {
        machine()?.device(dev)?;
        put_text(name, len, facts::NAME)
    }

    fn cuDeviceGetUuid[](uuid: *mut CUuuid, dev: CUdevice) {
        let device = machine()?.device(dev)?;
        put(uuid, CUuuid { bytes: facts::uuid(device.ordinal).map(|b| b as c_char) })
    }

    fn cuDeviceGetUuid_v2[](uuid: *mut CUuuid, dev: CUdevice) {
        let device = machine()?.device(dev)?;
        put(uuid, CUuuid { bytes: facts::uuid(device.ordinal).map(|b| b as c_char) })
    }

    fn cuDeviceTotalMem[](bytes: *mut c_uint, dev: CUdevice) {
        put(bytes, u32::try_from(total(dev)?).unwrap_or(u32::MAX))
    }

    fn cuDeviceTotalMem_v2[](bytes: *mut usize, dev: CUdevice) {
        put(bytes, total(dev)? as usize)
    }

    fn cuDeviceGetAttribute[](value: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice) {
        let m = machine()?;
        let device = m.device(dev)?;
        put(value, facts::device(m, device.ordinal, attrib)?)
    }

    fn cuDeviceGetProperties[](prop: *mut CUdevprop, dev: CUdevice) {
        let m = machine()?;
        m.device(dev)?;
        put(prop, CUdevprop {
            maxThreadsPerBlock: facts::MAX_THREADS as c_int,
            maxThreadsDim: [1024, 1024, 64],
            maxGridSize: [0x7fff_ffff, 65535, 65535],
            sharedMemPerBlock: facts::MAX_SHARED as c_int,
            totalConstantMemory: facts::CONSTANT_BYTES,
            SIMDWidth: facts::WARP as c_int,
            memPitch: facts::MAX_PITCH as c_int,
            regsPerBlock: 65536,
            clockRate: 1_000_000,
            textureAlign: 512,
        })
    }

    fn cuDeviceComputeCapability[](major: *mut c_int, minor: *mut c_int, dev: CUdevice) {
        machine()?.device(dev)?;
        put(major, facts::COMPUTE.0)?;
        put(minor, facts::COMPUTE.1)
    }

    fn cuDeviceGetByPCIBusId[](dev: *mut CUdevice, pci_bus_id: *const c_char) {
        let m = machine()?;
        let wanted = text(pci_bus_id)?.to_ascii_lowercase();
        let is_it = |ordinal: u32| {
            let full = facts::pci_bus_id(ordinal);
            full == wanted || full[5..] == wanted || full[..10] == wanted
        };
        let found = m.devices.iter().map(|d| d.ordinal).find(|&o| is_it(o)).ok_or(err::INVALID_DEVICE)?;
        put(dev, found as CUdevice)
    }

    fn cuDeviceGetPCIBusId[](pci_bus_id: *mut c_char, len: c_int, dev: CUdevice) {
        let device = machine()?.device(dev)?;
        put_text(pci_bus_id, len, &facts::pci_bus_id(device.ordinal))
    }

    fn cuDeviceGetExecAffinitySupport[](value: *mut c_int, kind: CUexecAffinityType, dev: CUdevice) {
        machine()?.device(dev)?;
        if kind.0 != 0 {
            return Err(err::INVALID_VALUE);
        }
        put(value, 0)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth[](
        max_width_in_elements: *mut usize, format: CUarray_format, num_channels: c_uint, dev: CUdevice,
    ) {
        machine()?.device(dev)?;
        if !matches!(num_channels, 1 | 2 | 4) || format.0 == 0 {
            return Err(err::INVALID_VALUE);
        }
        put(max_width_in_elements, 1 << 28)
    }

    fn cuDeviceCanAccessPeer[](can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice) {
        let m = machine()?;
        let (a, b) = (m.device(dev)?.ordinal, m.device(peer_dev)?.ordinal);
        put(can_access_peer, c_int::from(a != b))
    }

    fn cuDeviceGetP2PAttribute[](
        value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice,
    ) {
        let m = machine()?;
        let (a, b) = (m.device(src_device)?.ordinal, m.device(dst_device)?.ordinal);
        if a == b {
            return Err(err::INVALID_DEVICE);
        }
        put(value, match attrib.0 {
            1 => 0,
            2 | 3 => 1,
            4 | 5 => 0,
            _ => return Err(err::INVALID_VALUE),
        })
    }

    fn cuFlushGPUDirectRDMAWrites[](
        target: CUflushGPUDirectRDMAWritesTarget, scope: CUflushGPUDirectRDMAWritesScope,
    ) {
        let _ = (target, scope);
        machine().map(|_| ())
    }

    fn cuProfilerInitialize[](config_file: *const c_char, output_file: *const c_char, output_mode: CUoutput_mode) {
        let _ = (config_file, output_file, output_mode);
        machine().map(|_| ())
    }

    // There is no profiler, so starting and stopping it succeeds.
    fn cuProfilerStart[]() {
        crate::device::context::current().map(|_| ())
    }

    fn cuProfilerStop[]() {
        crate::device::context::current().map(|_| ())
    }

    fn cuDeviceSetMemPool[](dev: CUdevice, pool: CUmemoryPool) {
        let m = machine()?;
        let device = m.device(dev)?;
        let pool = m.pools.get(pool.0 as usize).ok_or(err::INVALID_VALUE)?;
        if pool.device != device.ordinal {
            return Err(err::INVALID_VALUE);
        }
        *lock(&device.current_pool) = Some(pool);
        Ok(())
    }

    fn cuDeviceGetMemPool[](pool: *mut CUmemoryPool, dev: CUdevice) {
        let m = machine()?;
        let device = m.device(dev)?;
        put(pool, CUmemoryPool(crate::device::pool::current_pool(m, device).handle as *mut _))
    }

    fn cuDeviceGetDefaultMemPool[](pool_out: *mut CUmemoryPool, dev: CUdevice) {
        let m = machine()?;
        let device = m.device(dev)?;
        put(pool_out, CUmemoryPool(crate::device::pool::default_pool(m, device).handle as *mut _))
    }

    fn cuDeviceGraphMemTrim[](device: CUdevice) {
        let m = machine()?;
        let device = m.device(device)?;
        device.graph_blocks.trim(&m.space, 0);
        device.graph_pool.trim(&device.phys);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute[](device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) {
        let m = machine()?;
        put(value.cast::<u64>(), m.device(device)?.graph_pool.attribute(attr)?)
    }

    fn cuDeviceSetGraphMemAttribute[](device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) {
        machine()?.device(device)?.graph_pool.reset(attr, *get(value.cast::<u64>())?)
    }
}
