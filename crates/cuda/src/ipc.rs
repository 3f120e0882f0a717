//! Inter-process handles of memory.
//!
//! A handle is plain bytes, to be sent over any channel. Elsewhere: those of events (`event`).

use fercuda_cuda_sys::types::{CU_IPC_HANDLE_SIZE, CUipcMem_flags, CUipcMemHandle, c_char};

use crate::allocation::DeviceAllocation;
use crate::buffer::DeviceBuffer;
use crate::context::Context;
use crate::error::{Result, call};

/// Handle by which other processes open device memory of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcMemoryHandle {
    bytes: [u8; CU_IPC_HANDLE_SIZE],
}

impl IpcMemoryHandle {
    /// A handle for the allocation of `buffer`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) for memory the driver cannot
    /// share, such as stream-ordered memory.
    pub fn of<T: bytemuck::Pod>(buffer: &DeviceBuffer<T>) -> Result<Self> {
        let driver = buffer.context().bind()?;
        let mut raw = CUipcMemHandle::default();
        // SAFETY: `raw` outlives the call; the driver checks the address.
        unsafe {
            call!(
                driver,
                cuIpcGetMemHandle(&mut raw, buffer.address().0),
                "share memory with other processes"
            )?;
        }
        Ok(Self {
            bytes: raw.reserved.map(|byte| byte as u8),
        })
    }

    /// The handle as bytes.
    pub fn to_bytes(self) -> [u8; CU_IPC_HANDLE_SIZE] {
        self.bytes
    }

    /// The handle another process sent.
    pub fn from_bytes(bytes: [u8; CU_IPC_HANDLE_SIZE]) -> Self {
        Self { bytes }
    }

    /// Opens the memory another process shared, all of it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the handle is not one, is of
    /// this process, or its memory is gone.
    ///
    /// # Safety
    /// The handle came from [`IpcMemoryHandle::of`] in another process, byte for byte: NVIDIA's
    /// driver trusts its content. That process keeps the memory until the returned buffer is
    /// dropped and its work done: CUDA does not keep it alive.
    pub unsafe fn open(&self, context: &Context) -> Result<DeviceBuffer<u8>> {
        let driver = context.bind()?;
        let raw = CUipcMemHandle {
            reserved: self.bytes.map(|byte| byte as c_char),
        };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        let mut address = 0;
        // SAFETY: `address` outlives the call; the caller vouches for the handle.
        unsafe {
            call!(
                driver,
                cuIpcOpenMemHandle_v2(&mut address, raw, flags),
                "open shared memory"
            )?;
        }
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both outlive the call.
        let range = unsafe {
            call!(
                driver,
                cuMemGetAddressRange_v2(&mut base, &mut bytes, address),
                "ask the size of shared memory"
            )
        };
        let allocation = DeviceAllocation::imported(context, address, bytes);
        range?;
        Ok(DeviceBuffer::from_allocation(allocation, bytes))
    }
}
