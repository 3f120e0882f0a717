//! Ops on whichever device there is, against their references.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod families;
mod gradients;
mod named;
mod native;
mod native_algebra;
mod native_attention;
mod native_box;
mod native_class;
mod native_expert;
mod native_fourier;
mod native_norm;
mod native_quant;
mod native_recurrence;
mod native_segment;
mod native_small;
mod native_sort;
mod native_token;
mod native_update;
mod native_window;
mod page;
mod parity;
mod plans;
mod refusals;
mod views;
mod warpgroups;
