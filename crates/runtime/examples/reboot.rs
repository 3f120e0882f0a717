//! Test of many reboots of a runtime in one process, with a check each time that the driver reports
//! as
//! much free memory as before. On the software device every tenth reboot follows a kernel that has
//! written to an invalid address; NVIDIA's driver does not recover from that (see the README).
//!
//! `cargo run --release -p fercuda-runtime --example reboot -- 1000`
#![expect(
    unsafe_code,
    clippy::print_stdout,
    reason = "it launches a kernel that fails, resets a context, and prints the result"
)]

#[path = "../tests/faulty/mod.rs"]
mod faulty;

use std::time::{Duration, Instant};

use faulty::fail;
use fercuda_runtime::{Error, Result, Runtime, RuntimeConfig, SessionConfig};

fn main() -> Result<()> {
    let times: u32 = std::env::args()
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or(100);
    let runtime = Runtime::open(RuntimeConfig::default())?;
    let session = runtime.session("first", SessionConfig::default())?;
    let fails = runtime.device().cuda().is_software();
    if fails {
        assert!(fail(&session)?.wait().is_err(), "the kernel did not fail");
    }
    // SAFETY: nothing else uses the context.
    unsafe { runtime.reset() }?;
    // After the first round the driver has allocated its own memory.
    let mut before = None;
    let (mut plain, mut resets) = (Duration::ZERO, Duration::ZERO);
    let mut reset_count = 0;
    for time in 1..=times {
        let session = runtime.session("rebooted", SessionConfig::default())?;
        let values = vec![time; 500_000];
        let id = session.buffer(&[500_000], &values)?;
        assert!(session.download::<u32>(id)? == values, "wrong values");
        let is_faulty = fails && time % 10 == 0;
        if is_faulty {
            let failed = fail(&session)?.wait();
            assert!(
                failed.is_err_and(|error| error.is_sticky()),
                "it did not fail"
            );
        }
        let begun = Instant::now();
        let reboot = match runtime.reboot() {
            Err(Error::Failed { .. }) => {
                // SAFETY: nothing else uses the context.
                let reboot = unsafe { runtime.reset() }?;
                resets += begun.elapsed();
                reset_count += 1;
                reboot
            }
            reboot => {
                plain += begun.elapsed();
                reboot?
            }
        };
        assert!(reboot.was_reset == is_faulty, "{reboot:?}");
        assert!(
            session.download::<u32>(id).is_err(),
            "an earlier handle names something"
        );
        let after = runtime.memory()?;
        let before = *before.get_or_insert(after);
        assert!(
            after == before,
            "reboot {time}: {after:?}, before {before:?}"
        );
    }
    let before = before.unwrap_or_default();
    let mean = |all: Duration, count: u32| all.as_secs_f64() * 1e3 / f64::from(count.max(1));
    println!(
        "{times} reboots, {reset_count} of a failed context: {:.2} ms each, {:.2} ms with a reset; \
         free memory {} B of {} B each time",
        mean(plain, times - reset_count),
        mean(resets, reset_count),
        before.free_bytes,
        before.total_bytes
    );
    Ok(())
}
