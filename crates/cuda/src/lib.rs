//! feRcuda.
