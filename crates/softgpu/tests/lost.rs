//! A device that is lost, and the others.

use fercuda_cuda_sys::types::{CUcontext, CUresult};
use fercuda_softgpu::control::{self, Config};

#[test]
fn a_device_that_is_lost_says_so_for_ever_and_others_go_on() {
    let mut config = Config::default();
    (config.devices, config.lost) = (3, Some((1, 3)));
    assert!(control::configure(config) && !control::lose(0));
    let driver = fercuda_softgpu::driver();
    let on = |device| {
        let mut context = CUcontext::NULL;
        // SAFETY: `context` outlives the call.
        let made = unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) };
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
        // SAFETY: it was just made.
        let made = unsafe { driver.cuCtxSetCurrent(context) };
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
    };
    // SAFETY: no pointers are involved.
    let made = unsafe { driver.cuInit(0) };
    assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
    let (mut at, mut size) = ([0; 3], [0; 2]);
    for device in 0..3 {
        on(device);
        // SAFETY: the place outlives the call.
        let made = unsafe { driver.cuMemAlloc_v2(&mut at[device as usize], 64) };
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
    }
    // SAFETY: the memory is as long, and was made in the context that is current.
    let set = |at: u64| unsafe { driver.cuMemsetD8_v2(at, 5, 64) }.unwrap();
    on(1);
    for _ in 0..3 {
        assert_eq!(set(at[1]), CUresult::CUDA_SUCCESS);
    }
    let mut look = || {
        let [free, total] = &mut size;
        // SAFETY: both outlive the call.
        unsafe { driver.cuMemGetInfo_v2(free, total) }.unwrap()
    };
    assert_eq!(look(), CUresult::CUDA_SUCCESS);
    let lost = CUresult::CUDA_ERROR_UNKNOWN;
    // Without a wait the error may be returned by a later call.
    set(at[1]);
    assert_eq!((look(), set(at[1])), (lost, lost));
    on(0);
    for _ in 0..9 {
        assert_eq!(
            (set(at[0]), look()),
            (CUresult::CUDA_SUCCESS, CUresult::CUDA_SUCCESS)
        );
    }
    on(2);
    assert!(control::lose(2) && !control::lose(3));
    assert_eq!((look(), set(at[2])), (lost, lost));
}
