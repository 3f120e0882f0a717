//! Tensor maps: what copies between tensors and shared memory by the copy engine of sm_90 need.
//!
//! Invariant: every byte of the tensor that a map describes is in the memory that it was made of.

use std::sync::Arc;

use fercuda_cuda_sys::types::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle, c_void,
};

use crate::allocation::DeviceAllocation;
use crate::error::{Result, call};
use crate::slice::DeviceSlice;

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorMapElement {
    /// IEEE's 16 bits.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl TensorMapElement {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        2
    }
}

/// Tensor of 3 to 5 dimensions, the nearest first, and the box of it that one copy moves. In shared
/// memory lines of 128, 64 and 32 bytes have their chunks of 16 bytes swizzled by the number of 128
/// bytes; others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapSpec<const RANK: usize> {
    /// Type of the elements.
    pub element: TensorMapElement,
    /// Elements of each dimension; those of the first one are neighbours.
    pub extents: [u64; RANK],
    /// Bytes from one element of each dimension to the next, multiples of 16; the first is not
    /// read.
    pub strides: [u64; RANK],
    /// Elements of the box in each dimension.
    pub boxed: [u32; RANK],
}

/// Tensor map, which kernels take by value as a `const __grid_constant__` parameter of 128 bytes.
#[derive(Clone, Debug)]
pub struct BoundTensorMap {
    map: CUtensorMap,
    memory: Arc<DeviceAllocation>,
}

impl BoundTensorMap {
    /// A map of the tensor whose first element is that of `memory`.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if the tensor does not end inside `memory`;
    /// [`Error::Driver`](crate::Error::Driver) as the driver refuses: an address or a stride that
    /// is no multiple of 16 bytes, a box of more than 256 elements along a dimension, no elements.
    pub fn tiled<const RANK: usize>(
        memory: DeviceSlice<'_, u8>,
        spec: &TensorMapSpec<RANK>,
    ) -> Result<Self> {
        let steps = spec.extents.iter().zip(spec.strides).skip(1);
        let steps = steps.map(|(lines, stride)| lines.saturating_sub(1).saturating_mul(stride));
        let near = spec.extents.first().copied().unwrap_or_default();
        let line = near.saturating_mul(spec.element.bytes());
        let reach = steps.fold(line, u64::saturating_add);
        let memory = memory.slice(..usize::try_from(reach).unwrap_or(usize::MAX))?;
        let allocation = memory.allocation();
        let driver = allocation.context().bind()?;
        let element = match spec.element {
            TensorMapElement::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            TensorMapElement::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        let boxed = spec.boxed.first().copied().unwrap_or_default();
        let line = u64::from(boxed).saturating_mul(spec.element.bytes());
        let swizzle = match line {
            128 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            32 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            _ => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have as many elements as the rank says, the strides one less behind
        // the first; the address is a number for the driver.
        unsafe {
            call!(
                driver,
                cuTensorMapEncodeTiled(
                    &mut map,
                    element,
                    RANK as u32,
                    memory.address().0 as *mut c_void,
                    spec.extents.as_ptr(),
                    spec.strides.as_ptr().wrapping_add(1),
                    spec.boxed.as_ptr(),
                    [1; RANK].as_ptr(),
                    CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle,
                    CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                ),
                "describe a tensor of {:?} elements at {}, {:?} bytes apart, in boxes of {:?}",
                spec.extents,
                memory.address(),
                spec.strides,
                spec.boxed
            )?;
        }
        let memory = Arc::clone(allocation);
        Ok(Self { map, memory })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.map.opaque)
    }

    pub(crate) fn memory(&self) -> &Arc<DeviceAllocation> {
        &self.memory
    }
}
