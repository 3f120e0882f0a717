//! The interposed functions over the software device, as a program calls them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_governor::{GovernedDevice, Governor};
use fercuda_regime::{governor, interface, interpose, interposed_driver};
use fercuda_softgpu::control::{self, Config};

pub const MIB: u64 = 1 << 20;
/// The device's memory.
pub const MEMORY: u64 = 512 * MIB;

/// The driver below.
pub fn real() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut config = Config::default();
        config.memory_bytes = MEMORY;
        config.quiet = true;
        config.checks = true;
        assert!(control::configure(config));
        fercuda_softgpu::driver()
    })
}

/// The driver as a governed program sees it.
pub fn driver() -> &'static Driver {
    static GOVERNED: OnceLock<&'static Driver> = OnceLock::new();
    GOVERNED.get_or_init(|| {
        interpose(real()).expect("no other driver is interposed");
        let own = interface::own().expect("the driver is interposed");
        interposed_driver(own, real())
    })
}

/// Calls a function of the governed driver; returns its result.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind, or wrong arguments that the driver refuses.
        unsafe { crate::support::driver().$name($($arg),*) }.expect(stringify!($name))
    };
}

/// The same of a call that must succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(call!($name($($arg),*)), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

/// Ensures a context, and lets one test at a time use the device.
pub fn begin() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let context = CONTEXT.get_or_init(|| {
        ok!(cuInit(0));
        let mut context = CUcontext::NULL;
        ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
        context.0 as usize
    });
    ok!(cuCtxSetCurrent(CUcontext(*context as *mut _)));
    turn
}

pub fn its_governor() -> &'static Governor {
    governor().expect("calls are governed")
}

pub fn device() -> &'static GovernedDevice {
    its_governor().device(0).expect("the device has a pool")
}

/// The device's used bytes, according to the driver below.
pub fn used_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both outlive the call.
    let asked = unsafe { real().cuMemGetInfo_v2(&mut free, &mut total) };
    assert_eq!(asked.expect("cuMemGetInfo"), CUresult::CUDA_SUCCESS);
    (total - free) as u64
}

/// Free bytes as the program sees them.
pub fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free as u64
}

/// The seed in `FERCUDA_SEED`, or a fresh one; a failing test shows it.
#[expect(clippy::print_stdout, reason = "a failing test shows its seed")]
pub fn seed() -> u64 {
    let given = std::env::var("FERCUDA_SEED").ok();
    let seed = given.map_or_else(
        || fastrand::u64(..1 << 32),
        |it| it.parse().expect("a number"),
    );
    println!("FERCUDA_SEED={seed}");
    seed
}

pub fn properties() -> CUmemAllocationProp {
    CUmemAllocationProp {
        r#type: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation {
            r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        ..Default::default()
    }
}
