//! The real driver behind the interposed functions.
//!
//! Invariant: a process has one; the first that is set stays to the end of the process.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use std::sync::OnceLock;

use fercuda_cuda_sys::{Driver, Symbol};

type FindExport = dyn Fn(&str) -> Option<NonNull<c_void>> + Send + Sync;

/// A driver, with the lookup of its exports.
pub struct RealDriver {
    /// Its functions, by their types. All of them are resolved: the loader is not
    /// called while another thread waits for an interposed function.
    pub driver: &'static Driver,
    find: Box<FindExport>,
    noting_stub: fn(&[u8], NonNull<c_void>) -> Option<NonNull<c_void>>,
}

impl fmt::Debug for RealDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RealDriver").field(&self.driver).finish()
    }
}

static REAL_DRIVER: OnceLock<Option<RealDriver>> = OnceLock::new();

impl RealDriver {
    /// A driver by its table. `find` returns the driver's export of a name.
    ///
    /// `noting_stub` returns what to hand out for a function that creates contexts
    /// and is not interposed, from the requested name and the address that the driver
    /// gave: a stub that calls [`crate::mark_unseen_contexts`] and jumps to that
    /// address. Without a stub, [`crate::mark_unseen_contexts`] is called as soon as
    /// the function is requested.
    pub fn new(
        driver: &'static Driver,
        find: Box<FindExport>,
        noting_stub: fn(&[u8], NonNull<c_void>) -> Option<NonNull<c_void>>,
    ) -> Self {
        for symbol in Symbol::ALL {
            // Resolves each function here instead of at its first call, when the caller may
            // hold a lock. Callers check for themselves which ones exist.
            driver.has(*symbol);
        }
        Self {
            driver,
            find,
            noting_stub,
        }
    }

    /// The address of the driver's export of a name.
    pub fn find(&self, name: &str) -> Option<NonNull<c_void>> {
        (self.find)(name)
    }

    /// See [`RealDriver::new`].
    pub(crate) fn noting_stub(
        &self,
        name: &[u8],
        address: NonNull<c_void>,
    ) -> Option<NonNull<c_void>> {
        (self.noting_stub)(name, address)
    }
}

/// Sets the real driver, or none on a machine without one, unless that was done before.
/// Returns the one that was set first.
pub fn set_real_driver(driver: Option<RealDriver>) -> Option<&'static RealDriver> {
    REAL_DRIVER.get_or_init(|| driver).as_ref()
}

/// The real driver: `None` before it is set, `Some(None)` on a machine without one.
#[inline]
pub fn real_driver() -> Option<Option<&'static RealDriver>> {
    REAL_DRIVER.get().map(Option::as_ref)
}

/// The table of the real driver, if there is one.
#[inline]
pub(crate) fn table() -> Option<&'static Driver> {
    Some(REAL_DRIVER.get()?.as_ref()?.driver)
}
