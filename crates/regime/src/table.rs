//! The doors as a table of functions, for who calls the driver through one.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use fercuda_cuda_sys::{Driver, Symbol};

use crate::below::{self, Below, place};
use crate::exchange::{door, is_disabled};
use crate::interface::Interface;

/// The doors stand before another driver in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Which that is.
    pub before: String,
}

/// Has the doors stand before `driver`, unless they do already. Nothing is done where
/// nothing is to be governed (`FERCUDA_DISABLE=1`).
///
/// # Errors
/// [`Elsewhere`]: there is one pool in a process, and so one driver below it.
pub fn stand_before(driver: &'static Driver) -> Result<(), Elsewhere> {
    if is_disabled() {
        return Ok(());
    }
    if below::placed().is_none() {
        let find = move |name: &str| own_function(driver, name);
        place(Some(Below::new(driver, Box::new(find), |_, _| None)));
    }
    match below::driver() {
        Some(placed) if std::ptr::eq(placed, driver) => Ok(()),
        placed => Err(Elsewhere {
            before: placed.map_or_else(|| "none".to_owned(), |it| it.origin().to_string()),
        }),
    }
}

/// The table of the functions of whoever has these doors, the same one each time.
/// `below` is the driver that was opened, which says whose functions they are.
pub fn table(doors: &'static Interface, below: &'static Driver) -> &'static Driver {
    static TABLES: Mutex<Vec<(usize, &'static Driver)>> = Mutex::new(Vec::new());
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = std::ptr::from_ref(doors) as usize;
    if let Some((_, table)) = tables.iter().find(|(of, _)| *of == key) {
        return table;
    }
    let resolve = move |name: &core::ffi::CStr| doors.function(name.to_str().ok()?);
    // SAFETY: a door has the type of the function that it stands before, which is the
    // table's; who has doors is not unloaded.
    let table = unsafe { Driver::from_resolver(Box::new(resolve), below.origin().clone()) };
    let table = Box::leak(Box::new(table));
    tables.push((key, table));
    table
}

/// A driver's function of a name, with its door before it if it has one.
pub(crate) fn function(driver: &'static Driver, name: &str) -> Option<NonNull<c_void>> {
    let symbol = symbol(name)?;
    // A door stands only where the driver has a function behind it.
    let own = driver.address(symbol).ok()?;
    Some(door(symbol).unwrap_or(own))
}

fn own_function(driver: &'static Driver, name: &str) -> Option<NonNull<c_void>> {
    driver.address(symbol(name)?).ok()
}

fn symbol(name: &str) -> Option<Symbol> {
    Symbol::ALL.iter().find(|it| it.name() == name).copied()
}
