//! User-supplied allocator of a session, implemented by a Python object.
//!
//! Invariants: an exception in `allocate` is the cause of the exception of `alloc`, and one in
//! `free` goes to `sys.unraisablehook`. It is not called after the interpreter has begun to
//! exit. Elsewhere: validation of its results, and the order of frees (`fercuda_runtime`).

use std::error::Error;

use fercuda_cuda::{DeviceAddr, Stream};
use fercuda_runtime::MemoryAllocator;
use pyo3::prelude::*;

use crate::alive::{self, SharedPyObject};
use crate::raised::{keep_raised, take_raised};
use crate::stream::check_address;

/// An object with `allocate(bytes, stream)` and `free(address, bytes, stream)`.
pub(crate) struct PythonAllocator(SharedPyObject);

impl PythonAllocator {
    pub(crate) fn new(allocator: Py<PyAny>) -> Self {
        Self(SharedPyObject::new(allocator))
    }

    fn call<R>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Option<PyResult<R>> {
        self.0.get().map(|allocator| work(allocator.bind(py)))
    }
}

/// A stream as a Python integer.
fn handle(stream: &Stream) -> usize {
    stream.raw().0.addr()
}

// SAFETY: the caller that passes the object guarantees, as the stubs say, that there is memory
// where it says, and that nothing else uses it until it is freed in stream order.
unsafe impl MemoryAllocator for PythonAllocator {
    fn allocate(
        &self,
        bytes: u64,
        _alignment: u64,
        stream: &Stream,
    ) -> Result<DeviceAddr, Box<dyn Error + Send + Sync>> {
        let mut given = None;
        alive::with_python(|py| {
            drop(take_raised());
            let ask = |allocator: &Bound<'_, PyAny>| {
                let given = allocator.call_method1("allocate", (bytes, handle(stream)))?;
                given.extract::<u64>()
            };
            given = self.call(py, ask).map(|given| {
                given.map_err(|error| {
                    let said = error.to_string();
                    keep_raised(error);
                    said
                })
            });
        });
        let address =
            given.ok_or("the interpreter is exiting, so the allocator is no longer called")??;
        // A null address is reported by the code that validates allocators' results.
        if address != 0
            && let Err(error) = check_address(stream.context(), address)
        {
            self.free(DeviceAddr(address), bytes, Some(stream));
            return Err(format!("{error}; the memory was freed again").into());
        }
        Ok(DeviceAddr(address))
    }

    fn free(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>) {
        alive::with_python(|py| {
            let back = (address.0, bytes, stream.map(handle));
            let freed = self.call(py, |allocator| {
                allocator.call_method1("free", back)?;
                Ok(())
            });
            if let Some(Err(error)) = freed {
                // There is no caller to raise in, as in a `__del__`.
                error.write_unraisable(py, self.0.get().map(|it| it.bind(py)));
            }
        });
    }
}
