//! Values that buffers and kernels take: element types, and arguments of launches.

use std::sync::Arc;

use bytemuck::Pod;
use fercuda_cuda::KernelArg;
use fercuda_tensor::Dtype;

use super::entry::BufferId;

/// Type of values in a buffer.
pub trait BufferElement: Pod {
    /// The element type.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(impl BufferElement for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}

elements!(
    f64 => F64, f32 => F32, half::f16 => F16, half::bf16 => Bf16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64
);

/// Argument of a kernel.
#[derive(Clone, Debug)]
pub enum LaunchArgument {
    /// The address of a buffer's first element.
    Buffer(BufferId),
    /// A number of 1, 2, 4 or 8 bytes.
    Number(KernelArg<'static>),
    /// A structure, as C lays it out.
    Structure(Arc<[u8]>),
}

impl From<BufferId> for LaunchArgument {
    fn from(id: BufferId) -> Self {
        Self::Buffer(id)
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl From<$type> for LaunchArgument {
            fn from(number: $type) -> Self {
                Self::Number(KernelArg::number(number))
            }
        })*
    };
}

numbers!(f64 f32 i8 i16 i32 i64 u8 u16 u32 u64);
