//! CUDA in safe Rust, over NVIDIA's driver or the software device.
//!
//! A [`Cuda`] is a driver, a [`Device`] one of its devices, a [`Context`] what
//! everything is made in. [`Stream`]s take work: copies of [`DeviceBuffer`]s,
//! [`Launch`]es of a [`Module`]'s [`Function`]s, whole [`Graph`]s.
//!
//! Invariants: nothing safe reads through a pointer it was given, and nothing
//! is destroyed before the work that uses it is done. The promises a caller
//! makes are that a kernel does what it should ([`Launch::run`]) and that bytes
//! from elsewhere are what they are said to be ([`Image::binary`],
//! [`Event::open`], [`IpcMemoryHandle::open`], [`nvrtc::Nvrtc::open`]).
//! Elsewhere: the C interface (`fercuda-cuda-sys`), the software device
//! (`fercuda-softgpu`), CUDA C++ to PTX ([`nvrtc`]).

mod allocation;
mod buffer;
mod callback;
mod context;
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
pub mod nvrtc;
mod parked;
mod pinned;
mod pool;
mod select;
mod staging;
mod stream;
mod transfer;
mod turn;
mod uses;
mod vmm;

pub use buffer::{DeviceAddr, DeviceBuffer, DeviceSlice, DeviceSliceMut};
pub use callback::{destroy_later, destroy_what_can_be, is_in_callback};
pub use context::{Context, Stay};
pub use device::Device;
pub use error::{
    ArgumentError, Bytes, Error, Failure, LoadFailure, OutOfMemory, Result, is_sticky,
};
pub use event::Event;
pub use fercuda_cuda_sys as sys;
pub use graph::{Capture, CaptureMode, Graph, HostSlot};
pub use graph_exec::{Forgotten, GraphExec, RetiredGraph};
pub use image::{Image, ImageError};
pub use ipc::{IpcEventHandle, IpcMemoryHandle};
pub use launch::{Argument, Arguments, ByValue, Dim, Launch, Value};
pub use link::Linked;
pub use module::{Function, Module};
pub use nvrtc::cache;
pub use parked::ParkedBytes;
pub use pinned::{PinnedBuffer, SharedWords};
pub use pool::MemoryPool;
pub use select::{Cuda, DEVICE_VARIABLE, Select, driver};
pub use staging::Staging;
pub use stream::Stream;
pub use transfer::{CopyScope, Transfer};
pub use turn::{Taken, Turn};
pub use vmm::{PhysicalMemory, VirtualRange};
