//! Tests with a stand-in of the hub on loopback.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fetch;
mod folder;
mod stand_in;
