//! Wall-clock time, in nanoseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::tree::Time;

/// Returns the current time; before 1970 it is negative.
pub(crate) fn now() -> Time {
    let nanoseconds = |it: Duration| Time::try_from(it.as_nanos()).unwrap_or(Time::MAX);
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => nanoseconds(since),
        Err(before) => -nanoseconds(before.duration()),
    }
}
