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

mod allocation;
mod buffer;
mod callback;
mod contended_lock;
mod context;
mod deferred;
mod device;
mod error;
mod event;
mod graph;
mod graph_exec;
mod image;
mod ipc;
mod launch;
mod link;
mod module;
mod pinned;
mod pool;
mod select;
mod staging;
mod stream;
mod transfer;
mod uses;
mod vmm;

pub use buffer::{DeviceAddr, DeviceBuffer, DeviceSlice, DeviceSliceMut};
pub use callback::{destroy_deferred, destroy_later, is_in_callback};
pub use contended_lock::{ContendedGuard, ContendedLock};
pub use context::{Context, ResidentKernelGuard};
pub use deferred::DeferredFrees;
pub use device::Device;
pub use error::{
    ArgumentError, ByteSize, DriverFailure, Error, LoadFailure, OutOfMemory, Result, is_sticky,
};
pub use event::Event;
pub use fercuda_cuda_sys as sys;
pub use graph::{Capture, CaptureMode, Graph, HostSlot};
pub use graph_exec::{GraphExec, ReleasedResources, RetiredGraph};
pub use image::{Image, ImageError};
pub use ipc::{IpcEventHandle, IpcMemoryHandle};
pub use launch::{Argument, Arguments, ByValue, Dim, KernelArg, Launch};
pub use link::Linked;
pub use module::{Function, Module};
pub use pinned::{PinnedBuffer, SharedWords};
pub use pool::MemoryPool;
pub use select::{Cuda, DEVICE_VARIABLE, Select, driver};
pub use staging::Staging;
pub use stream::Stream;
pub use transfer::{CopyScope, Transfer};
pub use vmm::{PhysicalMemory, VirtualRange};
