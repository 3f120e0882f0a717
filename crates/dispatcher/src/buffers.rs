//! Memory that a dispatcher's tasks may access.

use std::fmt;
use std::sync::Arc;

use fercuda_cuda::{DeviceBuffer, SharedWords};

/// Memory that tasks may access, to be registered with a dispatcher.
#[derive(Debug, Default)]
pub struct TaskBuffers {
    pub(crate) all: Vec<RegisteredBuffer>,
}

pub(crate) enum RegisteredBuffer {
    Device(DeviceBuffer<u8>),
    /// Memory with a value that lives as long as the kernel may use it.
    Kept {
        memory: DeviceBuffer<u8>,
        _owner: Box<dyn Send + Sync>,
    },
    Host(Arc<SharedWords>),
}

/// Index of a buffer in [`TaskBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskBuffer(pub u32);

impl TaskBuffers {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds device memory. Until the dispatcher has ended, other work that uses it must be ordered
    /// by the host: the host waits for tasks before such work, and for that work before tasks.
    pub fn device(&mut self, memory: DeviceBuffer<u8>) -> TaskBuffer {
        self.add(RegisteredBuffer::Device(memory))
    }

    /// Adds host memory.
    pub fn host(&mut self, memory: Arc<SharedWords>) -> TaskBuffer {
        self.add(RegisteredBuffer::Host(memory))
    }

    /// As [`TaskBuffers::device`], and keeps `owner` until the kernel has exited: what the memory
    /// belongs to, or is charged to.
    pub fn device_of(
        &mut self,
        memory: DeviceBuffer<u8>,
        owner: impl Send + Sync + 'static,
    ) -> TaskBuffer {
        self.add(RegisteredBuffer::Kept {
            memory,
            _owner: Box::new(owner),
        })
    }

    fn add(&mut self, it: RegisteredBuffer) -> TaskBuffer {
        self.all.push(it);
        TaskBuffer((self.all.len() - 1) as u32)
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(memory) | Self::Kept { memory, .. } => {
                f.debug_tuple("Device").field(memory).finish()
            }
            Self::Host(memory) => f.debug_tuple("Host").field(memory).finish(),
        }
    }
}
