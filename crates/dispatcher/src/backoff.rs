//! Back-off of a waiting thread.

use std::time::Duration;

/// Back-off of a waiting thread: spin, then yield, then sleep.
pub(crate) struct Backoff(pub(crate) u32);

impl Backoff {
    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..2000 => std::hint::spin_loop(),
            2000..2200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    /// Whether it is time for a more expensive check.
    pub(crate) fn is_long(&self) -> bool {
        self.0 >= 2000 && self.0.is_multiple_of(16)
    }
}
