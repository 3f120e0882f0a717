//! Driver table of the interposed functions, for callers that use the driver
//! through a table.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use fercuda_cuda_sys::Driver;

use crate::interface::Interface;
use crate::real_driver::{self, RealDriver, set_real_driver};
use crate::substitute::{is_disabled, symbol};

/// Another driver is interposed in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlreadyInterposed {
    /// The origin of that driver.
    pub driver: String,
}

/// Interposes the functions of `driver`, unless that is done. Does nothing if
/// `FERCUDA_DISABLE=1`.
///
/// # Errors
/// [`AlreadyInterposed`]: a process has one pool, and so one driver below it.
pub fn interpose(driver: &'static Driver) -> Result<(), AlreadyInterposed> {
    if is_disabled() {
        return Ok(());
    }
    if real_driver::real_driver().is_none() {
        let find = move |name: &str| own_function(driver, name);
        set_real_driver(Some(RealDriver::new(driver, Box::new(find), |_, _| None)));
    }
    match real_driver::table() {
        Some(current) if std::ptr::eq(current, driver) => Ok(()),
        current => Err(AlreadyInterposed {
            driver: current.map_or_else(|| "none".to_owned(), |it| it.origin().to_string()),
        }),
    }
}

/// Returns the table of interposed functions behind `interface`, the same one each
/// time. `real` is the driver that was opened; the table reports its origin.
pub fn interposed_driver(interface: &'static Interface, real: &'static Driver) -> &'static Driver {
    static TABLES: Mutex<Vec<(usize, &'static Driver)>> = Mutex::new(Vec::new());
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = std::ptr::from_ref(interface) as usize;
    if let Some((_, table)) = tables.iter().find(|(of, _)| *of == key) {
        return table;
    }
    let resolve = move |name: &core::ffi::CStr| interface.function(name.to_str().ok()?);
    // SAFETY: an interposed function has the type of the driver's function, which is
    // the table's type; a library with interposed functions is not unloaded.
    let table = unsafe { Driver::from_resolver(Box::new(resolve), real.origin().clone()) };
    let table = Box::leak(Box::new(table));
    tables.push((key, table));
    table
}

fn own_function(driver: &'static Driver, name: &str) -> Option<NonNull<c_void>> {
    driver.address(symbol(name)?).ok()
}
