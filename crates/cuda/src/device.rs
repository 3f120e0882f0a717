//! Devices and their properties.

use std::ffi::CStr;
use std::fmt;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CUdevice, CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation,
    CUmemLocationType, CUuuid, c_char, c_int,
};

use crate::error::{Error, Result, call};
use crate::select::Cuda;

/// A device of a driver. A plain identifier: it holds no resource.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    cuda: Cuda,
    ordinal: u32,
    raw: CUdevice,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Ok(name) => write!(f, "device {} ({name})", self.ordinal),
            Err(_) => write!(f, "device {}", self.ordinal),
        }
    }
}

impl Cuda {
    /// The device of this ordinal.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(Error::NoDevice {
                ordinal,
                count,
                driver: self.driver().origin().to_string(),
                advice: if self.is_software() {
                    "FERCUDA_SOFT_DEVICES sets how many the software device shows"
                } else {
                    "check nvidia-smi and CUDA_VISIBLE_DEVICES, or set FERCUDA_DEVICE=soft"
                },
            });
        }
        Device::new(*self, ordinal)
    }

    /// All devices, by ordinal.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn devices(&self) -> Result<Vec<Device>> {
        (0..self.device_count()?)
            .map(|ordinal| Device::new(*self, ordinal))
            .collect()
    }
}

impl Device {
    fn new(cuda: Cuda, ordinal: u32) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: `raw` outlives the call.
        unsafe {
            call!(
                cuda.callable()?,
                cuDeviceGet(&mut raw, ordinal as c_int),
                "open device {ordinal}"
            )?;
        }
        Ok(Self { cuda, ordinal, raw })
    }

    fn driver(&self) -> Result<&'static Driver> {
        self.cuda.callable()
    }

    /// Its memory as a location.
    pub(crate) fn location(&self) -> CUmemLocation {
        CUmemLocation {
            r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.raw,
        }
    }

    /// Access rights for it to read and write memory.
    pub(crate) fn full_access(&self) -> CUmemAccessDesc {
        CUmemAccessDesc {
            location: self.location(),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }

    /// Refuses devices of another driver: their numbers mean nothing to this one.
    pub(crate) fn refuse_foreign(&self, operation: &'static str, others: &[Self]) -> Result<()> {
        match others.iter().find(|other| other.cuda != self.cuda) {
            None => Ok(()),
            Some(other) => Err(Error::Value {
                operation,
                reason: format!("{other} belongs to another driver than {self}"),
            }),
        }
    }

    /// The driver it belongs to.
    pub fn cuda(&self) -> Cuda {
        self.cuda
    }

    /// Its index in the driver's list.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUdevice {
        self.raw
    }

    /// Its name, for instance `NVIDIA H200`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn name(&self) -> Result<String> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the length given is the array's.
        unsafe {
            call!(
                self.driver()?,
                cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, self.raw),
                "ask the name of device {}",
                self.ordinal
            )?;
        }
        Ok(text_of(&name))
    }

    /// Whether it is the software device, by its name. That recognises one provided by another
    /// library too, where [`Cuda::is_software`] knows only that of this crate.
    ///
    /// # Errors
    /// As for [`Device::name`].
    ///
    /// [`Cuda::is_software`]: crate::Cuda::is_software
    pub fn is_software(&self) -> Result<bool> {
        Ok(self.cuda().is_software() || self.name()? == fercuda_softgpu::NAME)
    }

    /// Its PCI bus identifier, for instance `0000:3b:00.0`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn pci_bus_id(&self) -> Result<String> {
        let mut id = [0 as c_char; 32];
        // SAFETY: the length given is the array's.
        unsafe {
            call!(
                self.driver()?,
                cuDeviceGetPCIBusId(id.as_mut_ptr(), id.len() as c_int, self.raw),
                "ask the bus id of device {}",
                self.ordinal
            )?;
        }
        Ok(text_of(&id))
    }

    /// Its UUID, which is the same after reboots and in every device order.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid::default();
        // SAFETY: `uuid` outlives the call.
        unsafe {
            call!(
                self.driver()?,
                cuDeviceGetUuid_v2(&mut uuid, self.raw),
                "ask the uuid of device {}",
                self.ordinal
            )?;
        }
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Its memory in bytes, used or not.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: `bytes` outlives the call.
        unsafe {
            call!(
                self.driver()?,
                cuDeviceTotalMem_v2(&mut bytes, self.raw),
                "ask the memory of device {}",
                self.ordinal
            )?;
        }
        Ok(bytes as u64)
    }

    /// One of the driver's attributes.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) for an attribute the driver
    /// does not know.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        unsafe {
            call!(
                self.driver()?,
                cuDeviceGetAttribute(&mut value, attribute, self.raw),
                "ask {attribute:?} of device {}",
                self.ordinal
            )?;
        }
        Ok(value)
    }

    /// The compute capability, for instance (9, 0).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        let major =
            self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor =
            self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// The number of multiprocessors.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn multiprocessors(&self) -> Result<u32> {
        self.number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// Threads in a warp.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn warp_size(&self) -> Result<u32> {
        self.number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)
    }

    /// Threads a block may have.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn max_threads_per_block(&self) -> Result<u32> {
        self.number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Shared memory a block may have when the kernel opts in, in bytes.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn max_shared_bytes(&self) -> Result<u32> {
        self.number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    /// Whether kernels may be launched cooperatively.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn has_cooperative_launch(&self) -> Result<bool> {
        self.flag(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)
    }

    /// Whether it supports stream-ordered allocation.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn has_memory_pools(&self) -> Result<bool> {
        self.flag(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
    }

    /// Whether it supports virtual memory management: reserving address ranges and mapping memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn has_virtual_memory(&self) -> Result<bool> {
        self.flag(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
    }

    /// Whether kernels on this device could access the memory of `other`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn can_access_peer(&self, other: &Device) -> Result<bool> {
        if self.cuda != other.cuda {
            return Ok(false);
        }
        let mut can = 0;
        // SAFETY: `can` outlives the call.
        unsafe {
            call!(
                self.driver()?,
                cuDeviceCanAccessPeer(&mut can, self.raw, other.raw),
                "ask whether device {} can access device {}",
                self.ordinal,
                other.ordinal
            )?;
        }
        Ok(can != 0)
    }

    fn number(&self, attribute: CUdevice_attribute) -> Result<u32> {
        Ok(self.attribute(attribute)?.unsigned_abs())
    }

    fn flag(&self, attribute: CUdevice_attribute) -> Result<bool> {
        Ok(self.attribute(attribute)? != 0)
    }
}

/// The C string in a buffer, which may lack the terminator.
fn text_of(buffer: &[c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(buffer);
    CStr::from_bytes_until_nul(bytes).map_or_else(
        |_| String::from_utf8_lossy(bytes).into_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}
