//! Helpers shared by tests with their own driver.

/// Calls a function of the test's `driver()`, which must succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: live pointers of the right kind.
        assert_eq!(unsafe { driver().$name($($arg),*) }.unwrap(), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}
