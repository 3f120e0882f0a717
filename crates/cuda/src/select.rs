//! Driver selection: NVIDIA's, or the software device's.
//!
//! Invariant: a process opens each driver at most once and never closes it, so a driver is
//! `&'static`. Elsewhere: the drivers themselves (`fercuda-cuda-sys`, `fercuda-softgpu`).

use std::sync::OnceLock;

use fercuda_cuda_sys::types::{CUresult, c_int};
use fercuda_cuda_sys::{Driver, OpenError};

use crate::callback;
use crate::error::{Error, Result, call};

/// The environment variable that selects the driver when the program does not.
pub const DEVICE_VARIABLE: &str = "FERCUDA_DEVICE";

/// Which device to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Select {
    /// A GPU if its driver is installed and has one, else the software device.
    #[default]
    Auto,
    /// A GPU, or an error.
    Hardware,
    /// The software device.
    Software,
}

impl Select {
    /// The value of `FERCUDA_DEVICE`: `soft`, `gpu` or `auto`, which is also the meaning of an
    /// absent or empty variable.
    ///
    /// # Errors
    /// [`Error::Selection`] for anything else.
    pub fn from_env() -> Result<Self> {
        let value = std::env::var_os(DEVICE_VARIABLE).unwrap_or_default();
        Self::parse(&value.to_string_lossy())
    }

    fn parse(value: &str) -> Result<Self> {
        match value {
            "" | "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Hardware),
            "soft" => Ok(Self::Software),
            _ => Err(Error::Selection {
                value: value.to_owned(),
            }),
        }
    }
}

/// One driver, initialised.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    driver: &'static Driver,
    software: bool,
}

impl PartialEq for Cuda {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.driver, other.driver)
    }
}

impl Eq for Cuda {}

impl Cuda {
    /// The driver that `FERCUDA_DEVICE` selects.
    ///
    /// # Errors
    /// As [`Cuda::select`], and [`Error::Selection`].
    pub fn from_env() -> Result<Self> {
        Self::select(Select::from_env()?)
    }

    /// The driver for `select`, initialised. Later calls return the same one.
    ///
    /// # Errors
    /// [`Error::NoDriver`] or [`Error::Driver`] where hardware was asked for and is not usable.
    pub fn select(select: Select) -> Result<Self> {
        match select {
            Select::Hardware => hardware(),
            Select::Software => software(),
            Select::Auto => match hardware() {
                Ok(cuda) if cuda.device_count()? > 0 => Ok(cuda),
                Ok(_) => software(),
                Err(error) if means_no_gpu(&error) => software(),
                // A broken GPU is reported, not silently replaced by the software device.
                Err(error) => Err(error),
            },
        }
    }

    /// The same driver through another table of its functions, such as one that governs its memory.
    /// Objects made through one table are unknown to the other.
    pub fn through(self, driver: &'static Driver) -> Self {
        Self { driver, ..self }
    }

    /// The table of functions, for calls that have no safe form in this crate.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The table, unless the thread runs a host callback.
    pub(crate) fn callable(&self) -> Result<&'static Driver> {
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        Ok(self.driver)
    }

    /// Whether this is the software device.
    pub fn is_software(&self) -> bool {
        self.software
    }

    /// The newest CUDA version the driver supports, as (major, minor).
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn version(&self) -> Result<(u32, u32)> {
        let mut version: c_int = 0;
        // SAFETY: `version` outlives the call.
        unsafe {
            call!(
                self.callable()?,
                cuDriverGetVersion(&mut version),
                "ask the driver's version"
            )?
        };
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// The number of devices of the driver.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn device_count(&self) -> Result<u32> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call.
        unsafe {
            call!(
                self.callable()?,
                cuDeviceGetCount(&mut count),
                "count the devices"
            )?
        };
        Ok(count.unsigned_abs())
    }
}

/// The table of functions for `select`; see [`Cuda::select`].
///
/// # Errors
/// As [`Cuda::select`].
pub fn driver(select: Select) -> Result<&'static Driver> {
    Cuda::select(select).map(|cuda| cuda.driver)
}

/// Whether `error` means that the machine has no GPU, rather than a broken one.
fn means_no_gpu(error: &Error) -> bool {
    matches!(error, Error::NoDriver(_))
        || matches!(
            error.code(),
            Some(CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY)
        )
}

fn hardware() -> Result<Cuda> {
    static OPENED: OnceLock<std::result::Result<&'static Driver, OpenError>> = OnceLock::new();
    static INITIALISED: OnceLock<CUresult> = OnceLock::new();
    let driver = OPENED
        .get_or_init(|| Driver::open().map(|driver| &*Box::leak(Box::new(driver))))
        .as_ref()
        .map_err(|error| Error::NoDriver(error.clone()))?;
    initialise(driver, &INITIALISED)?;
    Ok(Cuda {
        driver,
        software: false,
    })
}

fn software() -> Result<Cuda> {
    static MADE: OnceLock<Driver> = OnceLock::new();
    static INITIALISED: OnceLock<CUresult> = OnceLock::new();
    let driver = MADE.get_or_init(fercuda_softgpu::driver);
    initialise(driver, &INITIALISED)?;
    Ok(Cuda {
        driver,
        software: true,
    })
}

fn initialise(driver: &'static Driver, done: &OnceLock<CUresult>) -> Result<()> {
    let answer = match done.get() {
        Some(answer) => *answer,
        None => {
            // SAFETY: takes no pointers; a second thread may call it as well.
            let answer = unsafe { driver.cuInit(0)? };
            *done.get_or_init(|| answer)
        }
    };
    crate::error::check(Ok(answer), "cuInit", || {
        format!("initialise the driver in {}", driver.origin())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_takes_three_words_and_no_other() {
        assert_eq!(Select::parse("").unwrap(), Select::Auto);
        assert_eq!(Select::parse("auto").unwrap(), Select::Auto);
        assert_eq!(Select::parse("gpu").unwrap(), Select::Hardware);
        assert_eq!(Select::parse("soft").unwrap(), Select::Software);
        let error = Select::parse("tpu").unwrap_err().to_string();
        assert_eq!(error, "FERCUDA_DEVICE is \"tpu\"\ntry: soft, gpu or auto");
    }
}
