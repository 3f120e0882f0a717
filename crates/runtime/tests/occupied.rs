//! A context that has failed while others hold memory of the device: a process of its
//! own, since that one stays as it is.
#![expect(
    unsafe_code,
    reason = "a test reports by panicking, and this one launches a kernel that fails"
)]

mod faulty;

use faulty::fail;
use fercuda_cuda::DeviceBuffer;
use fercuda_runtime::{Error, Runtime, RuntimeConfig, SessionConfig};

#[test]
fn a_reset_that_would_take_memory_of_others_says_who_they_are() {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    // Through the doors, but of no session: the tenant is this program.
    let others = DeviceBuffer::<u8>::alloc(&runtime.context(), 5000).unwrap();
    let session = runtime.session("faulty", SessionConfig::default()).unwrap();
    session.buffer(&[1000], &[1u8; 1000]).unwrap();
    assert!(fail(&session).unwrap().wait().is_err());
    // SAFETY: it is refused.
    let refused = unsafe { runtime.reset() }.unwrap_err();
    let Error::Occupied { holders, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(holders.len(), 1, "{refused}");
    assert!(holders[0].tenant.contains("occupied"), "{refused}");
    assert_eq!(runtime.sessions(), [""; 0]);
    drop(others);
}
