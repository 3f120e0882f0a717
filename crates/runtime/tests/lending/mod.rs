//! An allocator that reuses memory as soon as it is freed: if the order of the session's stream
//! were violated, the device's checks would detect it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use fercuda_cuda::{Context, DeviceAddr, DeviceBuffer, Stream};
use fercuda_runtime::MemoryAllocator;

/// One allocation, for one session.
pub(crate) struct Slab {
    memory: DeviceBuffer<u8>,
    /// Allocated blocks, from begin to length.
    given: Mutex<BTreeMap<u64, u64>>,
    /// Frees that match no block: a panic would be caught in the runtime.
    wrong: Mutex<Vec<(u64, u64)>>,
}

impl Slab {
    pub(crate) fn new(context: &Context, bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            memory: DeviceBuffer::alloc(context, bytes).unwrap(),
            given: Mutex::default(),
            wrong: Mutex::default(),
        })
    }

    /// Number of allocated blocks; checks that each free matched a block, once, with its length.
    pub(crate) fn given(&self) -> usize {
        assert_eq!(*self.wrong.lock().unwrap(), []);
        self.given.lock().unwrap().len()
    }
}

// SAFETY: blocks are disjoint parts of memory that this owns exclusively; they are reused by the
// same session, in the order of its stream.
unsafe impl MemoryAllocator for Slab {
    fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        _: &Stream,
    ) -> Result<DeviceAddr, Box<dyn Error + Send + Sync>> {
        let mut given = self.given.lock().unwrap();
        let begin = self.memory.address().0;
        let mut at = begin.next_multiple_of(alignment);
        for (from, len) in &*given {
            if at + bytes <= *from {
                break;
            }
            at = (from + len).next_multiple_of(alignment);
        }
        if at + bytes > begin + self.memory.len() as u64 {
            return Err(format!("the slab of {} bytes is full", self.memory.len()).into());
        }
        assert!(given.insert(at, bytes).is_none());
        Ok(DeviceAddr(at))
    }

    fn free(&self, address: DeviceAddr, bytes: u64, _: Option<&Stream>) {
        if self.given.lock().unwrap().remove(&address.0) != Some(bytes) {
            self.wrong.lock().unwrap().push((address.0, bytes));
        }
    }
}
