//! File-based tests: CUDA kernels with headers that specify their launches and expected outputs.
//!
//! A `.cu` file in `corpus/` begins with lines that name its launches, their arguments and how each
//! output is compared ([`filetest`]). A host reference of the same name ([`reference`]) computes
//! the expected outputs.
//!
//! Elsewhere: the devices (`fercuda_cuda`), the tests themselves (`tests/`).
#![deny(unsafe_code)]

pub mod approx;
pub mod data;
pub mod filetest;
pub mod folder;
pub mod isa;
pub mod kernels;
pub mod map_spec;
pub mod planted;
pub mod raw;
pub mod record;
pub mod reference;
pub mod rng;
pub mod runner;
