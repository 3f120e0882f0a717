//! Exists so that cargo fetches cudarc; see Cargo.toml.
