//! An allocator of the program's own, from which a session has memory: an object of Python's.
//!
//! Invariants: what it raises when it is asked is the cause of what `alloc` raises, and what it
//! raises when memory goes back is told to `sys.unraisablehook`. From the interpreter's exit on
//! it is not called. Elsewhere: what is looked at of what it gives, and in which order memory
//! goes back (`fercuda_runtime`).

use std::cell::RefCell;
use std::error::Error;

use fercuda_cuda::{DeviceAddr, Stream};
use fercuda_runtime::Allocator;
use pyo3::prelude::*;

use crate::alive::{self, Keeper};
use crate::stream::check_address;

thread_local! {
    /// What the allocator that the thread has asked last has raised, until that is told.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// What was raised in the calling thread, once.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}

/// An object with `allocate(bytes, stream)` and `free(address, bytes, stream)`.
pub(crate) struct Lender(Keeper);

impl Lender {
    pub(crate) fn new(allocator: Py<PyAny>) -> Self {
        Self(Keeper::new(allocator))
    }

    fn call<R>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Option<PyResult<R>> {
        self.0.get().map(|allocator| work(allocator.bind(py)))
    }
}

/// A stream as Python has it.
fn handle(stream: &Stream) -> usize {
    stream.raw().0.addr()
}

// SAFETY: that there is memory where the object says, which nobody else uses until it is given
// back in the order of the stream, is what who passes it vouches for, as the stubs say.
unsafe impl Allocator for Lender {
    fn allocate(
        &self,
        bytes: u64,
        _alignment: u64,
        stream: &Stream,
    ) -> Result<DeviceAddr, Box<dyn Error + Send + Sync>> {
        let mut given = None;
        alive::with_python(|py| {
            RAISED.take();
            let ask = |allocator: &Bound<'_, PyAny>| {
                let given = allocator.call_method1("allocate", (bytes, handle(stream)))?;
                given.extract::<u64>()
            };
            given = self.call(py, ask).map(|given| {
                given.map_err(|error| {
                    let said = error.to_string();
                    RAISED.set(Some(error));
                    said
                })
            });
        });
        let address = given.ok_or("the interpreter ends, and it is not called any more")??;
        // 0 is told by who looks at what allocators give.
        if address != 0
            && let Err(error) = check_address(stream.context(), address)
        {
            self.free(DeviceAddr(address), bytes, Some(stream));
            return Err(format!("{error}; it was given back").into());
        }
        Ok(DeviceAddr(address))
    }

    fn free(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>) {
        alive::with_python(|py| {
            let back = (address.0, bytes, stream.map(handle));
            let told = self.call(py, |allocator| {
                allocator.call_method1("free", back)?;
                Ok(())
            });
            if let Some(Err(error)) = told {
                // Nobody waits for it: as of a `__del__`.
                error.write_unraisable(py, self.0.get().map(|it| it.bind(py)));
            }
        });
    }
}
