//! Memory that the pool retains beyond its live bytes, for traces made from real models.
//!
//! `cargo run --release -p fercuda-pool --example replay`
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "../tests/traces/mod.rs"]
mod traces;

use traces::{Handles, replay, replay_on, step, traces};

fn main() {
    println!(
        "{:<30} {:>9} {:>9} {:>9} {:>7} {:>9} {:>8} {:>8} {:>6} {:>8} {:>6} {:>9} {:>7} {:>6}",
        "trace, seed",
        "calls",
        "live MiB",
        "phys. MiB",
        "ratio",
        "stranded",
        "created",
        "moved",
        "waits",
        "clock",
        "ns",
        "slabs MiB",
        "ratio",
        "slabs"
    );
    for trace in traces().into_iter().chain([step(40)]) {
        let outcome = replay(&trace);
        let slabs = replay_on(&trace, &Handles::slabs());
        let mib = |bytes: u64| bytes >> 20;
        let how = if trace.plain { "plain" } else { "stream" };
        println!(
            "{:<30} {:>9} {:>9} {:>9} {:>7.4} {:>9} {:>8} {:>8} {:>6} {:>8} {:>6.0} {:>9} {:>7.4} {:>6}",
            format!("{}, {how}, {}", trace.name, trace.seed),
            trace.events.len(),
            mib(outcome.peak_live),
            mib(outcome.peak_physical),
            outcome.ratio(),
            mib(outcome.stranded),
            outcome.made,
            outcome.moved,
            outcome.waits,
            outcome.calls,
            outcome.mean_ns,
            mib(slabs.peak_physical),
            slabs.ratio(),
            slabs.made,
        );
    }
}
