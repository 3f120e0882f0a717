//! The thirteen hypotheses of the first design, each as a test that can fail, on either device.
//!
//! Kernels are the builder's own (`fercuda_testkit::kernels`). The device is the software device,
//! or `FERCUDA_DEVICE`. Figures are printed: run with `--nocapture` to see them.
#![expect(
    unsafe_code,
    reason = "launches: each passes the buffers and extents that the kernel's documentation asks for"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests, which may as the tests may"
)]

mod arithmetic;
mod lab;
mod launches;
mod memory;
mod oracle;
