//! The driver that the doors stand before: the first that was named, to the end of
//! the process.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use std::sync::OnceLock;

use fercuda_cuda_sys::{Driver, Symbol};

type Find = dyn Fn(&str) -> Option<NonNull<c_void>> + Send + Sync;

/// A driver, and what else is asked of who opened it.
pub struct Below {
    /// Its functions, by their types. All that there are have been found: nothing is
    /// asked of the loader while somebody waits for a door.
    pub driver: &'static Driver,
    find: Box<Find>,
    noted: fn(&[u8], NonNull<c_void>) -> Option<NonNull<c_void>>,
}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Below").field(&self.driver).finish()
    }
}

static BELOW: OnceLock<Option<Below>> = OnceLock::new();

impl Below {
    /// A driver by its table. `find` says what the driver exports under a name.
    /// `noted` is what is given out for a function that makes contexts and has no
    /// door, by the name asked for and the address that the driver gave: something
    /// that calls [`crate::may_have_other_contexts`] and goes on there. Without it that
    /// is called already when the function is asked for.
    pub fn new(
        driver: &'static Driver,
        find: Box<Find>,
        noted: fn(&[u8], NonNull<c_void>) -> Option<NonNull<c_void>>,
    ) -> Self {
        for symbol in Symbol::ALL {
            // Each is found now, and not by its first caller, who may hold
            // something then. Which there are is asked again by who calls them.
            driver.has(*symbol);
        }
        Self {
            driver,
            find,
            noted,
        }
    }

    /// The address of what it exports under a name.
    pub fn find(&self, name: &str) -> Option<NonNull<c_void>> {
        (self.find)(name)
    }

    /// See [`Below::new`].
    pub(crate) fn noted(&self, asked: &[u8], address: NonNull<c_void>) -> Option<NonNull<c_void>> {
        (self.noted)(asked, address)
    }
}

/// Has the doors stand before a driver, or, on a machine that has none, before nothing;
/// and says what they stand before, which is what was named first.
pub fn place(below: Option<Below>) -> Option<&'static Below> {
    BELOW.get_or_init(|| below).as_ref()
}

/// What the doors stand before, once that was named.
#[inline]
pub fn placed() -> Option<Option<&'static Below>> {
    BELOW.get().map(Option::as_ref)
}

/// The driver that the doors stand before.
#[inline]
pub(crate) fn driver() -> Option<&'static Driver> {
    Some(BELOW.get()?.as_ref()?.driver)
}
