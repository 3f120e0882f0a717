//! CUDA in safe Rust, over NVIDIA's driver or the software device.
//!
//! A [`Cuda`] is a driver, a [`Device`] one of its devices, and everything else is made in a
//! [`Context`]. [`Stream`]s take work: copies of [`DeviceBuffer`]s, [`Launch`]es of a [`Module`]'s
//! [`Function`]s, whole [`Graph`]s.
//!
//! Invariants: no safe function reads through a pointer it was given, and nothing is destroyed
//! before the work that uses it is done. A caller of unsafe code promises that a kernel does what
//! it should ([`Launch::run`]) and that bytes from elsewhere are what they claim to be
//! ([`Image::binary`], [`Event::open`], [`IpcMemoryHandle::open`]).
//! Elsewhere: the C interface (`fercuda-cuda-sys`), the software device (`fercuda-softgpu`), CUDA
//! C++ to PTX (`fercuda-nvrtc`).

mod address;
mod allocation;
mod argument;
mod buffer;
mod callback;
mod capture_mode;
mod capture_state;
mod contended_lock;
mod context;
mod deferred;
mod device;
mod error;
mod event;
mod graph;
mod graph_exec;
mod host_callback;
mod ids;
mod image;
mod ipc;
mod keep_alive;
mod launch;
mod link;
mod lock;
mod mapped;
mod module;
mod parameters;
mod pinned;
mod pool;
mod queued_resource;
mod resident;
mod select;
mod slice;
mod staging;
mod stream;
mod tensor_map;
mod transfer;
mod uses;
mod vmm;
mod wait;

pub use address::DeviceAddr;
pub use argument::{Argument, Arguments, ByValue, KernelArg};
pub use buffer::DeviceBuffer;
pub use callback::is_in_callback;
pub use contended_lock::{ContendedGuard, ContendedLock};
pub use context::Context;
pub use deferred::{DeferredFrees, destroy_deferred, destroy_later};
pub use device::Device;
pub use error::{
    ArgumentError, ByteSize, DriverFailure, Error, ImageError, LoadFailure, OutOfMemory, Result,
    is_sticky,
};
pub use event::{Event, IpcEventHandle};
pub use fercuda_cuda_sys as sys;
pub use graph::{Capture, CaptureMode, Graph, HostSlot};
pub use graph_exec::{GraphExec, ReleasedResources, RetiredGraph};
pub use image::Image;
pub use ipc::IpcMemoryHandle;
pub use launch::{Dim, Launch};
pub use link::Linked;
pub use module::{Function, Module};
pub use pinned::{PinnedBuffer, SharedWords};
pub use pool::MemoryPool;
pub use queued_resource::QueuedResource;
pub use resident::ResidentKernelGuard;
pub use select::{Cuda, DEVICE_VARIABLE, Select, driver};
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use staging::Staging;
pub use stream::Stream;
pub use tensor_map::{BoundTensorMap, TensorMapElement, TensorMapSpec};
pub use transfer::{CopyScope, Transfer};
pub use vmm::{PhysicalMemory, VirtualRange};
