//! A context that has failed while another tenant holds memory of the device: in a separate
//! process, since the context stays failed.
#![expect(
    unsafe_code,
    reason = "a test reports by panicking, and this one launches a kernel that fails"
)]

mod faulty;

use faulty::fail;
use fercuda_cuda::DeviceBuffer;
use fercuda_runtime::{Error, Runtime, RuntimeConfig, SessionConfig};

#[test]
fn reset_is_refused_with_the_other_tenants_names() {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    // Through the interposed functions, but outside sessions: the tenant is this program.
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
