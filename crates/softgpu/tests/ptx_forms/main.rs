//! Forms of PTX that people write and compilers emit, against references on the host with random
//! data. Each kernel runs with checks and without, with the same result and no finding.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod accesses;
mod bench;
mod heap;
mod parameters;
mod products;
mod shared;
mod stack;
mod vectors;
mod video;
mod wgmma;
