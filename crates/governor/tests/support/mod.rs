//! What tests over a driver of theirs share.

/// Calls a function of the test's `driver()`, which has to succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind.
        assert_eq!(unsafe { driver().$name($($arg),*) }.unwrap(), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}
