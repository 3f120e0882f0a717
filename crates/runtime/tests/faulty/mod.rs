//! A kernel that writes to an invalid address.

use fercuda_cuda::{Image, Launch, Module};
use fercuda_runtime::{Job, Result, Session};

/// It is called `beyond` and takes no arguments.
pub(crate) const FAULTY: &str = "
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

/// Submits a job that launches it.
pub(crate) fn fail(session: &Session) -> Result<Job<()>> {
    session.submit(|stream| {
        let module = Module::load(stream.context(), &Image::ptx(FAULTY))?;
        let beyond = module.function("beyond")?;
        // SAFETY: that it writes to an invalid address is intended; the context fails.
        unsafe { Launch::new(1, 1).run(&beyond, stream, ()) }?;
        Ok(())
    })
}
