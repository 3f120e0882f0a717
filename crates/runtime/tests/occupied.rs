//! A context that has failed while others hold memory of the device: a process of its
//! own, since that one stays as it is.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, and this one launches a kernel that fails"
)]

use fercuda_cuda::{DeviceBuffer, Image, Launch, Module};
use fercuda_runtime::{Error, Runtime, RuntimeConfig, Session, SessionConfig};

const FAULTY: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry beyond()
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    mov.u64 %d1, 64;
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
";

/// A job whose kernel writes where nothing is.
fn fail(session: &Session) -> fercuda_runtime::Job<()> {
    let job = session.submit(|stream| {
        let module = Module::load(stream.context(), &Image::ptx(FAULTY))?;
        let beyond = module.function("beyond")?;
        // SAFETY: that it writes where it should not is the point; what fails is the
        // context.
        unsafe { Launch::new(1, 1).run(&beyond, stream, ()) }?;
        Ok(())
    });
    job.unwrap()
}

#[test]
fn a_reset_that_would_take_memory_of_others_says_who_they_are() {
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    // Through the doors, but of no session: the tenant is this program.
    let others = DeviceBuffer::<u8>::alloc(&runtime.context(), 5000).unwrap();
    let session = runtime.session("faulty", SessionConfig::default()).unwrap();
    session.buffer(&[1000], &[1u8; 1000]).unwrap();
    assert!(fail(&session).wait().is_err());
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
